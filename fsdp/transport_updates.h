// transport_updates.h: Muon's matrices on their way to their owners and back (owned.h), whatever carries them.
#pragma once
#include "transport.h"

// A message of a round: `bytes` at `at`, sent to or received from rank `peer`: a run of a matrix, as momenta, or, with
// `back`, as the owner's update.
struct UpdateMessage { char *at; size_t bytes; int peer; bool sends, back; };
// Calls `message` for each message that this rank sends and receives in a round, one way, and counts the traffic. Two
// ranks exchange at most one message each way. On a mirrored device messages are in host memory.
static inline void updates_each_message(Fsdp *f, int round, bool back,
                                        void (*message)(Fsdp *f, int round, UpdateMessage m)) {
  const int S = fsdp_shards(f), me = f->mesh.rank, N = f->mesh.world, first = back ? 0 : me / S * S;
  const bool host = f->lay.mirrored;
  Span run;
  if (N == 1 || f->lay.owned.in_place) return;
  f->traffic.updates++;
  record_collective(f->record, RECORD_HOST, COLLECTIVE_UPDATES, OVER_NONE, 1, 0);
  EACH_OWNED(f, round, x) {
    const bool own = x->owner == me;
    if (!own && (back || owned_gives(f, x)) && owned_run(f, x, f->mesh.shard.me, &run)) {
      const size_t bytes = owned_bytes(run.numel);
      char *at = host ? owned_host_stage(f, x) : owned_stage_of(f, x);
      message(f, round, UpdateMessage{at, bytes, x->owner, !back, back});
      f->traffic.update_bytes += back ? (int64_t)bytes : 0;
    }
    for (int r = first; r < (back ? N : first + S) && own; r++) {
      if (r == me || !owned_run(f, x, r % S, &run)) continue;
      char *matrix = host ? owned_host_matrix(f, round) : owned_matrix(f, me, round);
      const size_t bytes = owned_bytes(run.numel);
      message(f, round, UpdateMessage{matrix + owned_bytes(run.in_range), bytes, r, back, back});
      f->traffic.update_bytes += back ? 0 : (int64_t)bytes;
    }
  }
}
// Offloaded optimizer: copies the runs of a round from host memory, where the optimizer writes momenta, to the device,
// where they are sent or orthogonalised; with `back` copies updates to the host. A mirrored device copies only the runs
// of its own matrix.
static inline void updates_copy(Fsdp *f, int round, bool back) {
  Span run;
  EACH_OWNED(f, round, x) {
    const bool own = x->owner == f->mesh.rank;
    if (!fsdp_offloads(f) || (!own && (f->lay.mirrored || (!back && !owned_gives(f, x))))) continue;
    if (!owned_run(f, x, f->mesh.shard.me, &run)) continue;
    char *host = owned_host_stage(f, x), *here = owned_stage_of(f, x);
    if (own) here = owned_matrix(f, x->owner, round) + owned_bytes(run.in_range);
    f->ctx->ops->copy(&f->reduce_ctx, back ? host : here, back ? here : host, owned_bytes(run.numel));
  }
}
// Whether this rank sends, receives or copies anything in a round.
static inline bool updates_move(const Fsdp *f, int round, bool back) {
  const int S = fsdp_shards(f), me = f->mesh.rank;
  Span run;
  EACH_OWNED(f, round, x) {
    const bool own = x->owner == me;
    if ((own ? fsdp_offloads(f) : back || owned_gives(f, x)) && owned_run(f, x, f->mesh.shard.me, &run)) return true;
    for (int r = back ? 0 : me / S * S; r < (back ? f->mesh.world : me / S * S + S) && own; r++)
      if (r != me && owned_run(f, x, r % S, &run)) return true;
  }
  return false;
}
// Comm.updates for transports whose exchange runs on the stream of reductions. exchange: sends and receives a round,
// one way or `back`. A rank that has no messages or copies in a round does not wait.
static inline void updates_by_stream(Fsdp *f, UpdateMove move, int round, void (*exchange)(Fsdp *, int, bool)) {
  const int slot = owned_slot(f, round);
  const bool off = fsdp_offloads(f);
  Ctx *c = f->ctx;
  if (move == UPDATES_GIVE || move == UPDATES_BACK) {
    const bool back = move == UPDATES_BACK, moves = updates_move(f, round, back);
    if (moves && (!off || back)) {               // offloaded momenta are the host's
      step_event_record(c, &f->muon.ready);
      step_event_wait(&f->reduce_ctx, &f->muon.ready);
    }
    if (!back) updates_copy(f, round, false);
    exchange(f, round, back);
    if (back) updates_copy(f, round, true);
    if (moves) step_event_record(&f->reduce_ctx, back ? &f->muon.back[slot] : &f->muon.whole[slot]);
  }
  if ((move != UPDATES_WHOLE && move != UPDATES_ARRIVED) || !updates_move(f, round, move == UPDATES_ARRIVED)) return;
  if (move == UPDATES_WHOLE) step_event_wait(c, &f->muon.whole[slot]);
  if (move == UPDATES_ARRIVED && !off) step_event_wait(c, &f->muon.back[slot]);
  bool done = move != UPDATES_ARRIVED || !off;
  for (int spins = 0; !done;) {
    c->ops->event_done(c, f->muon.back[slot].event, &done);
    if (!done) liveness_pause(&spins, "the updates of Muon", STAGE_NONE);
  }
}
