// transport.h: how ranks reach each other: the table of transports, struct Comm, and three of them (transport_plan.h: a
// fourth, for dry runs).
//
//   self   one rank: it reduces its own contributions; units are read in place, or copied from the host
//   mpi    ranks of one host read each other's windows: contributions in place, and parameters too where all of a shard
//          group is on one host, so that nothing is gathered. Ranks of different hosts exchange nonblocking messages. A
//          device whose memory the host cannot access has a mirror of its shared memory in a pinned window, and copies
//          both ways. The host waits for these copies, so such a step cannot be captured. Any number of ranks can share
//          a device
//   nccl   one communicator for each group on each stream. Stream of reductions: all ranks (the small all-gather), and
//          split from that the shard group and the replicate group. Stream of gathers: the shard group, and split from
//          that the kept group. Split communicators share NCCL's buffers and run one after the other, as their stream
//          makes them do anyway. Gathers and reductions share no buffers, so that they overlap; only events order them.
//          All ranks enqueue the same calls in the same order, and each call reaches the device before the next one
//          (collectives.cuh): that order keeps several communicators from deadlock
//
// Replicas. After a round of a reduction, the partial sum is in this rank's shard. The next replica reads it there,
// adds its own contributions, and so on; the first replica's next reduction continues from the last one's sum. No rank
// overwrites a sum before its reader has it, because what it would write is computed from what the reader passes on;
// the step's small all-gather orders the first reduction of the next step. (So a rank may post the receive of a message
// that cannot have been sent yet into memory from which another is still being sent.) After a stage's last reduction of
// the step, the last replica's sums of its units go to all replicas, while backward goes on; native, NCCL adds them up.
// With messages, two rounds at a time are on their way along the replicas and back to the first: with many replicas and
// microbatches, --accumulate local avoids that.
//
// All traffic is counted here.
#pragma once
#include "kernels/cpu/threads.h"
#include <errno.h>
#include <sched.h>
#include <sys/mman.h>
#include <signal.h>
#include "layout.h"

// What is done with a round of Muon's matrices (owned.h), in this order. FREE: waits until its slot may be written.
// GIVE: this rank's momenta are written; they go to their owners. WHOLE: waits until this rank's matrix has all of
// them. BACK: its update is computed; its runs go back. ARRIVED: waits for this rank's runs. TAKEN: it has read them.
enum UpdateMove { UPDATES_FREE, UPDATES_GIVE, UPDATES_WHOLE, UPDATES_BACK, UPDATES_ARRIVED, UPDATES_TAKEN };
// Sums along hosts (hosts.h). What is done with a round, in this order, between round_send and round_done.
struct CommHosts {
  bool (*known)(Fsdp *f, uint64_t round);                          // has the sum of the replicas before arrived?
  void (*begin)(Fsdp *f, uint64_t round, ReduceSpan x);            // the own shard's sum goes to the first host
  // have a part's sum, and what this host adds to it?
  bool (*arrived)(Fsdp *f, uint64_t round, int part, ReduceSpan x);
  // contribution of the i-th rank of this host
  const char *(*input)(const Fsdp *f, uint64_t round, int i, int part, ReduceSpan x, PieceRun run);
  void (*give)(Fsdp *f, uint64_t round, int part, ReduceSpan x);   // the sum goes on
  bool (*back)(Fsdp *f, uint64_t round, ReduceSpan x);             // has the own shard's come from the last host?
};
// What a transport does. The parts above (gather.h, reduce.h, update.h, sharded_state.h) know no other way to reach a
// peer.
struct Comm {
  const char *name;
  void (*connect)(Fsdp *f);                                        // opens libraries whose memory must be measured
  void (*open)(Fsdp *f);                                           // allocates working memory and windows
  void (*close)(Fsdp *f);
  void (*step_begin)(Fsdp *f);                                     // side streams continue after all work so far
  void (*step_end)(Fsdp *f);                                       // new shards are complete: peers may read them
  void (*gather_start)(Fsdp *f, int s, GatherSlot *slot);          // starts gathering stage s
  void (*gather_finish)(Fsdp *f, int s, GatherSlot *slot);         // the model may read the slot from here on
  void (*reduce_start)(Fsdp *f);                                   // backward has completed the job's gradient
  bool (*round_free)(Fsdp *f, uint64_t round);                     // may the memory of this round be written again?
  void (*round_send)(Fsdp *f, uint64_t round, ReduceSpan x);       // sends this rank's contributions
  // have all contributions to this rank's shard arrived?
  bool (*round_arrived)(Fsdp *f, uint64_t round);
  // contribution of rank i
  const char *(*round_input)(const Fsdp *f, uint64_t round, int i, ReduceSpan x, PieceRun run);
  void (*chain_take)(Fsdp *f, uint64_t round, ReduceSpan x, float *sum);       // gets the sum of the replicas before
  void (*chain_give)(Fsdp *f, uint64_t round, ReduceSpan x, float *sum);       // passes the sum to the next replica
  void (*round_done)(Fsdp *f, uint64_t round);                     // they are added up: peers may reuse memory
  void (*reduce_end)(Fsdp *f);                                     // all rounds of the job are added up
  bool (*grads_free)(Fsdp *f, int slot);                           // have all peers read this gradient slot?
  // With replicas: a unit's sum of the step goes to all of them; has it come? It is in this rank's shard then.
  void (*return_start)(Fsdp *f, SumReturn *r);
  bool (*return_arrived)(Fsdp *f, SumReturn *r);
  void (*reduce_join)(Fsdp *f);                                    // the model may read the gradient shards
  void (*small_all_gather)(Fsdp *f, const void *mine, void *all, size_t bytes);        // device memory, order of ranks
  void (*progress)(Fsdp *f);                                       // lets messages move, notices what failed
  void (*updates)(Fsdp *f, UpdateMove move, int round);            // exchanges a round of Muon's matrices
  const CommHosts *hosts;                                          // NULL: it has no sums along hosts
};

static inline void step_event_open(Ctx *c, StepEvent *e, const char *name) {
  c->ops->event_open(c, &e->event, name);
  e->recorded = false;
}
static inline void step_event_record(Ctx *c, StepEvent *e) {
  c->ops->event_record(c, e->event);
  e->recorded = true;
}
static inline void step_event_wait(Ctx *c, const StepEvent *e) {
  if (e->recorded) c->ops->event_wait(c, e->event);
}

enum : size_t { MESSAGE_MOST_BYTES = 1 << 30 };  // a count is an int, and some networks take less
static inline int fsdp_mpi_count(int64_t n) {
  CHECK(n <= INT32_MAX, "message of %lld elements", (long long)n);
  return (int)n;
}

// ---- memory that is shared, or could be
static inline char *fsdp_memory_or_die(Fsdp *f, size_t bytes, MemoryKind kind, const char *what) {
  void *p = NULL;
  f->ctx->ops->memory_alloc(f->ctx, &p, bytes, kind);
  if (bytes && !p) die_missing("cannot allocate %zu bytes of %s: %s", bytes, what, strerror(ENOMEM));
  return (char *)p;
}
// Device memory of the working layout, but for what comes first and lies on the host.
static inline void fsdp_open_work(Fsdp *f) {
  const size_t skipped = f->lay.work_on_host;
  f->work = fsdp_memory_or_die(f, f->lay.work_bytes - skipped, MEMORY_DEVICE, "shards and gradient slots") - skipped;
  f->params_home = f->lay.part[WORK_PARAMS].on_host ? f->window : f->work;
}
static inline void fsdp_close_work(Fsdp *f) {
  const size_t skipped = f->lay.work_on_host;
  f->ctx->ops->memory_free(f->ctx, f->work + skipped, f->lay.work_bytes - skipped, MEMORY_DEVICE);
}

// Where unit u's gradient lies, whole, if it is in gradient slot `slot`: an offset in working memory.
static inline size_t fsdp_unit_grads_at(const Fsdp *f, int u, int slot) {
  const Unit *q = &f->lay.unit[u];
  if (f->lay.stage[q->stage].grads == GRADS_WHOLE) return q->grads_at;
  const size_t slot_at = f->lay.part[WORK_SLOTS].at + (size_t)slot * f->lay.grad_slot_bytes;
  return slot_at + (size_t)q->grad_slot_at * fsdp_wire_bytes(f);
}
// The part of unit u's whole gradient that this rank's part of piece i owns.
static inline float *fsdp_own_gradient(const Fsdp *f, int u, int i) {
  const Piece *c = &f->lay.unit[u].piece[i];
  return (float *)(f->work + f->lay.unit[u].grads_at) + c->grad_at + f->mesh.shard.me * c->numel;
}
// Where this rank's sum of a run of piece i lies; sum: where elements from x.first on do, if they lie apart.
static inline float *fsdp_own_sum(const Fsdp *f, ReduceSpan x, int i, PieceRun run, float *sum) {
  const Unit *u = &f->lay.unit[x.unit];
  if (!f->lay.stage[u->stage].sums_in_whole) return sum + run.state_at - x.first;
  return fsdp_own_gradient(f, x.unit, i) + run.state_at - u->piece[i].state_at;
}
static inline float *fsdp_grads_of(const Fsdp *f, ReduceSpan x) {
  return f->lay.stage[f->lay.unit[x.unit].stage].sums_in_whole ? NULL
                                                               : f->grads + f->lay.unit[x.unit].sum_base + x.first;
}
// Whether nothing was added yet to what this rank's shard group reduces now.
static inline bool fsdp_begins(const Fsdp *f) {
  return f->job.first && (!fsdp_chains(f) || f->mesh.replicate.me == 0);
}
// Along hosts: whether the sum of a part comes to this rank by messages.
static inline bool hosts_receives_part(const Fsdp *f, int part) {
  const HostsLayout *h = &f->lay.hosts;
  return h->part[part].before != f->mesh.shard.me && (h->me || !fsdp_begins(f));
}
// Along hosts: the sum of a part in a round; elements from x.first on.
static inline float *hosts_sum(const Fsdp *f, uint64_t round, int part) {
  char *sums = f->staging_in + (round & 1) * hosts_round_bytes(f) + hosts_inputs_bytes(f);
  return (float *)sums + (size_t)part * (size_t)f->lay.chunk_numel;
}
static inline char *fsdp_own_piece(const Fsdp *f, int u, int i) {
  return f->params_home + f->lay.unit[u].params_at + f->lay.unit[u].piece[i].shard_at;
}
// Where a rank lays out what it contributes to the group's rank `owner` in a round: an offset in working memory and in
// windows alike.
static inline size_t fsdp_contribution_at(const Fsdp *f, int owner, uint64_t round, ReduceSpan x, PieceRun run) {
  const size_t b_r = fsdp_wire_bytes(f), chunk = (size_t)f->lay.chunk_numel, S = (size_t)fsdp_shards(f);
  if (!f->lay.stage[f->job.stage].staged)
    return fsdp_unit_grads_at(f, x.unit, f->job.slot) + (size_t)(run.grad_at + owner * run.owner_stride) * b_r;
  const size_t half = f->lay.part[WORK_STAGING].at + (round & 1) * S * chunk * b_r;
  const size_t in_round = (size_t)(run.state_at - x.first);
  if (f->cfg.native_reduce)                      // ncclReduceScatter wants the owners' parts without gaps
    return half + (S * in_round + (size_t)owner * (size_t)run.numel) * b_r;
  return half + ((size_t)owner * chunk + in_round) * b_r;
}

// ---- gathering: from the shards of the group's ranks, or from what the kept group kept
// A rank's part of a piece is `widen` of its shards there, at `at` of working memory.
struct GatherSource { const RankGroup *group; size_t widen; bool kept; };
static inline GatherSource fsdp_gather_source(const Fsdp *f, const GatherSlot *slot) {
  if (!slot->from_kept) return GatherSource{&f->mesh.shard, 1, false};
  return GatherSource{&f->mesh.kept, (size_t)(fsdp_shards(f) / f->cfg.mesh.kept), true};
}
// One piece of a gather: `bytes` of every rank of the source, from from_at of its working memory to to_at (of rank 0;
// rank i's follow) of the slot.
struct GatherPiece { size_t from_at, to_at, bytes; };
static inline GatherPiece fsdp_gather_piece(const Fsdp *f, GatherSource g, int u, int i) {
  const Unit *q = &f->lay.unit[u];
  const Piece *c = &q->piece[i];
  return GatherPiece{(g.kept ? q->kept_at : q->params_at) + c->shard_at * g.widen, q->slot_at + c->full_at,
                     (size_t)c->numel * g.widen * dtype_bytes(c->dtype)};
}
#define EACH_PIECE_OF_STAGE(f, s, u, i) \
  for (int u = (f)->lay.stage[s].first_unit; u < (f)->lay.stage[s].first_unit + (f)->lay.stage[s].units; u++) \
    for (int i = 0; i < (f)->lay.unit[u].pieces; i++)

static inline void fsdp_count_gather(Fsdp *f, int s, const GatherSlot *slot) {
  const GatherSource g = fsdp_gather_source(f, slot);
  if (g.group->size == 1) return;
  f->traffic.gathers += f->lay.stage[s].units;
  record_collective(f->record, RECORD_HOST, COLLECTIVE_GATHER, OVER_NONE, f->lay.stage[s].units, 0);
}
// Whether this gather, which asked the whole shard group, leaves a part of the stage here.
static inline bool fsdp_keeps(const Fsdp *f, int s, const GatherSlot *slot) {
  return f->lay.part[WORK_KEPT].bytes && f->training && s && !slot->from_kept;
}
// Copies this rank's part of the whole stage to where it is kept.
static inline void fsdp_keep(Fsdp *f, int s, GatherSlot *slot) {
  const GatherSource g = {&f->mesh.kept, (size_t)(fsdp_shards(f) / f->cfg.mesh.kept), true};
  EACH_PIECE_OF_STAGE(f, s, u, i) {
    const GatherPiece p = fsdp_gather_piece(f, g, u, i);
    f->ctx->ops->copy(&f->gather_ctx, f->work + p.from_at, slot->data + p.to_at + (size_t)g.group->me * p.bytes,
                      p.bytes);
  }
  f->kept_valid[s] = true;
  f->kept_number[s] = ++f->kept_count;
}

// ---- Muon's matrices (owned.h)
// Of a round: this rank's run of a matrix, or its part of the own one. back: after the owner has computed it.
struct UpdateMessage { char *at; size_t bytes; int peer; bool sends, back; };
// Gives `message` all that this rank sends and receives in a round: between two ranks at most one each way. With
// messages, a mirrored device's lie on the host. Counts them.
static inline void updates_each_message(Fsdp *f, int round, bool back,
                                        void (*message)(Fsdp *f, int round, UpdateMessage m)) {
  const int S = fsdp_shards(f), me = f->mesh.rank, N = f->mesh.world, first = back ? 0 : me / S * S;
  const bool host = f->lay.mirrored;
  Run run;
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
// Runs of a round between the device and the host, whose optimizer writes and reads them: to where they are sent from
// or orthogonalised, or back. A mirrored device has only those of its own matrix.
static inline void updates_copy(Fsdp *f, int round, bool back) {
  Run run;
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
  Run run;
  EACH_OWNED(f, round, x) {
    const bool own = x->owner == me;
    if ((own ? fsdp_offloads(f) : back || owned_gives(f, x)) && owned_run(f, x, f->mesh.shard.me, &run)) return true;
    for (int r = back ? 0 : me / S * S; r < (back ? f->mesh.world : me / S * S + S) && own; r++)
      if (r != me && owned_run(f, x, r % S, &run)) return true;
  }
  return false;
}
// exchange: sends and receives a round on the stream of reductions, one way or back. A rank that moves nothing waits
// for nothing.
static inline void updates_by_stream(Fsdp *f, UpdateMove move, int round, void (*exchange)(Fsdp *, int, bool)) {
  const int slot = owned_slot(f, round);
  const bool off = fsdp_offloads(f);
  Ctx *c = f->ctx;
  if (move == UPDATES_GIVE || move == UPDATES_BACK) {
    const bool back = move == UPDATES_BACK, moves = updates_move(f, round, back);
    if (moves && (!off || back)) {               // offloaded momenta are the host's
      step_event_record(c, &f->update_ready);
      step_event_wait(&f->reduce_ctx, &f->update_ready);
    }
    if (!back) updates_copy(f, round, false);
    exchange(f, round, back);
    if (back) updates_copy(f, round, true);
    if (moves) step_event_record(&f->reduce_ctx, back ? &f->update_back[slot] : &f->update_whole[slot]);
  }
  if ((move != UPDATES_WHOLE && move != UPDATES_ARRIVED) || !updates_move(f, round, move == UPDATES_ARRIVED)) return;
  if (move == UPDATES_WHOLE) step_event_wait(c, &f->update_whole[slot]);
  if (move == UPDATES_ARRIVED && !off) step_event_wait(c, &f->update_back[slot]);
  bool done = move != UPDATES_ARRIVED || !off;
  for (int spins = 0; !done;) {
    c->ops->event_done(c, f->update_back[slot].event, &done);
    if (!done) liveness_pause(&spins, "the updates of Muon", STAGE_NONE);
  }
}

// ================================================================================================ self
// What one device does with streams of its own, over NCCL or alone.
static inline void streams_open(Fsdp *f) {
  f->ctx->ops->side_open(f->ctx, &f->gather_ctx, "gather");
  f->ctx->ops->side_open(f->ctx, &f->reduce_ctx, "reduce");
}
static inline void streams_close(Fsdp *f) {
  f->ctx->ops->side_close(&f->gather_ctx);
  f->ctx->ops->side_close(&f->reduce_ctx);
}
static inline void streams_step_begin(Fsdp *f) {
  if (f->lay.in_place) return;                       // nothing is gathered
  step_event_record(f->ctx, &f->began);
  step_event_wait(&f->gather_ctx, &f->began);
}
static inline void streams_gather_finish(Fsdp *f, int, GatherSlot *slot) { step_event_wait(f->ctx, &slot->arrived); }
static inline void streams_reduce_start(Fsdp *f) {
  step_event_record(f->ctx, &f->grads_ready);
  step_event_wait(&f->reduce_ctx, &f->grads_ready);
}
static inline void streams_reduce_end(Fsdp *f) { step_event_record(&f->reduce_ctx, &f->grads_free[f->job.slot]); }
static inline bool streams_grads_free(Fsdp *f, int slot) {
  step_event_wait(f->ctx, &f->grads_free[slot]);
  return true;
}
static inline void streams_reduce_join(Fsdp *f) {
  step_event_record(&f->reduce_ctx, &f->reduced);
  step_event_wait(f->ctx, &f->reduced);
}

static inline void comm_self_nothing(Fsdp *) {}
static inline void comm_self_open(Fsdp *f) {
  fsdp_open_work(f);
  if (fsdp_offloads(f)) streams_open(f);         // copies overlap what is computed
  else f->gather_ctx = f->reduce_ctx = *f->ctx;  // nothing to overlap: one stream
}
static inline void comm_self_close(Fsdp *f) {
  fsdp_close_work(f);
  if (fsdp_offloads(f)) streams_close(f);
}
// The shard is the whole; it comes from the host.
static inline void comm_self_gather_start(Fsdp *f, int s, GatherSlot *slot) {
  fsdp_count_gather(f, s, slot);
  step_event_wait(&f->gather_ctx, &slot->released);
  fsdp_mark(f, &f->gather_ctx, MARK_GATHER, 1 + s);
  const GatherSource g = fsdp_gather_source(f, slot);
  EACH_PIECE_OF_STAGE(f, s, u, i) {
    const GatherPiece p = fsdp_gather_piece(f, g, u, i);
    f->ctx->ops->copy(&f->gather_ctx, slot->data + p.to_at, f->params_home + p.from_at, p.bytes);
  }
  step_event_record(&f->gather_ctx, &slot->arrived);
}
static inline bool comm_self_yes(Fsdp *, uint64_t) { return true; }
static inline void comm_self_send(Fsdp *, uint64_t, ReduceSpan) {}
static inline const char *comm_self_input(const Fsdp *f, uint64_t round, int i, ReduceSpan x, PieceRun run) {
  return f->work + fsdp_contribution_at(f, i, round, x, run);
}
static inline void comm_self_chain(Fsdp *, uint64_t, ReduceSpan, float *) {}
static inline void comm_self_done(Fsdp *, uint64_t) {}
static inline void comm_self_return(Fsdp *, SumReturn *) {}
static inline bool comm_self_returned(Fsdp *, SumReturn *) { return true; }
static inline void comm_self_small(Fsdp *f, const void *mine, void *all, size_t bytes) {
  record_collective(f->record, RECORD_MODEL, COLLECTIVE_ALL_GATHER, OVER_WORLD, 1, 0);
  f->ctx->ops->copy(f->ctx, all, mine, bytes);
}
// One rank owns every matrix. Only where the optimizer is on the host do they come and go.
static inline void comm_self_exchange(Fsdp *, int, bool) {}
static inline void comm_self_updates(Fsdp *f, UpdateMove move, int round) {
  if (fsdp_offloads(f)) updates_by_stream(f, move, round, comm_self_exchange);
}
static const Comm comm_self = {
    "self", comm_self_nothing, comm_self_open, comm_self_close, streams_step_begin, comm_self_nothing,
    comm_self_gather_start, streams_gather_finish, streams_reduce_start, comm_self_yes, comm_self_send, comm_self_yes,
    comm_self_input, comm_self_chain, comm_self_chain, comm_self_done, streams_reduce_end, streams_grads_free,
    comm_self_return, comm_self_returned, streams_reduce_join, comm_self_small, comm_self_nothing, comm_self_updates,
    NULL};

// ================================================================================================ mpi
static inline Control *fsdp_control(const Fsdp *f, int r) { return (Control *)f->mesh.peer[r].window; }
static inline uint64_t counter_read(const uint64_t *c) { return __atomic_load_n(c, __ATOMIC_ACQUIRE); }
static inline void counter_publish(Fsdp *f, uint64_t *c, uint64_t value) {
  record_told(f->record, RECORD_PUBLISH, RECORD_HOST, 0, Access{ACCESS_WRITE, (uintptr_t)c, value});
  __atomic_store_n(c, value, __ATOMIC_RELEASE);
}
// Whether a counter, of a rank of this host, has reached value.
static inline bool counter_reached(Fsdp *f, const uint64_t *c, uint64_t value) {
  if (counter_read(c) < value) return false;
  record_told(f->record, RECORD_OBSERVE, RECORD_HOST, 0, Access{ACCESS_READ, (uintptr_t)c, value});
  return true;
}
static inline char *page_aligned(char *p) {
  return (char *)(((uintptr_t)p + CONTROL_PAGE_BYTES - 1) / CONTROL_PAGE_BYTES * CONTROL_PAGE_BYTES);
}
static inline size_t comm_mpi_shared_bytes(const Fsdp *f) {
  return f->lay.work_bytes - (CONTROL_BYTES - CONTROL_PAGE_BYTES);
}
// Where shards are read in place, all of a group's lie at the end of its first rank's window.
static inline size_t comm_mpi_window_bytes(const Fsdp *f, int rank) {
  if (!f->lay.in_place) return f->lay.work_bytes;
  const size_t shards = rank % fsdp_shards(f) ? 0 : (size_t)fsdp_shards(f);
  return f->lay.work_bytes - f->lay.params_bytes + shards * f->lay.params_bytes;
}
// The i-th rank of the shard group, and whether messages reach it.
static inline bool comm_mpi_is_remote(const Fsdp *f, int i) {
  return i != f->mesh.shard.me && !mesh_shares_memory(&f->mesh, f->mesh.shard.rank[i]);
}
static inline bool comm_mpi_is_neighbour(const Fsdp *f, int i) {
  return i != f->mesh.shard.me && mesh_shares_memory(&f->mesh, f->mesh.shard.rank[i]);
}

// Where peers' /dev/shm windows would lie, and whether they fit: known by one rank a host before anything is allocated.
// Collective, also over hosts that have no windows; ends all ranks with one line.
static inline void fsdp_check_window_space(const Fsdp *f) {
  // Replicas differ in nothing that takes memory, but hosts may hold unlike shares of a shard group.
  unsigned long long mine = comm_mpi_window_bytes(f, f->mesh.rank), bytes_of_host = 0;
  MPI_Allreduce(&mine, &bytes_of_host, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, f->mesh.node);
  const bool asks = f->has_win && !f->mesh.node_rank;
  const char *dir;
  char error[512] = "";
  errno = 0;
  const size_t available = windows_room(&dir), wanted = windows_need(bytes_of_host);
  if (asks && !available && errno)
    snprintf(error, sizeof error, "%.200s, where shared-memory windows would lie: %s; make it, or run with --shm off",
             dir, strerror(errno));
  else if (asks && wanted > available)
    snprintf(error, sizeof error, "shared-memory windows of this host's %d ranks need %.1f MiB in %.200s, %.1f MiB are "
             "free: give it more (docker run --shm-size=%zum), or run with --shm off", f->mesh.node_world,
             (double)wanted / 1048576.0, dir, (double)available / 1048576.0, wanted / 1048576 + 64);
  agree_no_error(f->mesh.comm, error, EXIT_MISSING);
}
enum { WINDOW_POPULATE_WRITE = 23 };             // MADV_POPULATE_WRITE, which older headers lack
// Makes the kernel give the pages of [p, p + bytes) now, by a call that can fail: a first touch of a page that a full
// /dev/shm no longer has ends the process. True also where the kernel is too old for the call (Linux 5.14).
static inline bool window_take_pages(const void *p, size_t bytes) {
  const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = (uintptr_t)p / page * page;
  return !bytes || !madvise((void *)first, (uintptr_t)p + bytes - first, WINDOW_POPULATE_WRITE) || errno == EINVAL;
}

// Zeroes what this rank owns of the windows: their memory is taken now, near the cores of the threads that touch it
// first. These take turns: all of them use every part of it, and all NUMA nodes of the rank then share the traffic.
static const size_t WINDOW_PIECE_BYTES = 1 << 21;
static inline void comm_mpi_zero(const Fsdp *f, void *p, size_t bytes) {
  int failed = 0, *const fault = &failed;        // errno of a thread
  parallel(bytes > 2 * WINDOW_PIECE_BYTES ? f->ctx->threads : 1, [=](int thread, int threads) {
    const size_t turn = (size_t)threads * WINDOW_PIECE_BYTES;
    for (size_t at = (size_t)thread * WINDOW_PIECE_BYTES; at < bytes; at += turn) {
      char *piece = (char *)p + at;
      const size_t left = bytes - at, n = left < WINDOW_PIECE_BYTES ? left : WINDOW_PIECE_BYTES;
      if (!window_take_pages(piece, n)) { __atomic_store_n(fault, errno, __ATOMIC_RELAXED); return; }
      memset(piece, 0, n);
    }
  });
  if (failed)
    die_missing("shared memory is full: the window of this rank, %.1f MiB, was not to be had (%s); other runs may have "
                "taken it meanwhile: try again, or run with --shm off",
                (double)comm_mpi_window_bytes(f, f->mesh.rank) / 1048576.0, strerror(failed));
}
static inline void comm_mpi_zero_windows(Fsdp *f) {
  comm_mpi_zero(f, f->window, f->lay.in_place ? f->lay.part[WORK_PARAMS].at : comm_mpi_shared_bytes(f));
  for (int u = 0; u < f->lay.units && f->lay.in_place; u++)
    for (int i = 0; i < f->lay.unit[u].pieces; i++)
      comm_mpi_zero(f, fsdp_own_piece(f, u, i), piece_bytes(&f->lay.unit[u].piece[i]));
}
// Takes the window: shared with the host's ranks when there are any, private otherwise. Collective.
static inline void comm_mpi_open_window(Fsdp *f) {
  f->has_win = f->mesh.windows && f->mesh.node_world > 1;
  fsdp_check_window_space(f);
  if (!f->has_win) {
    f->window = fsdp_memory_or_die(f, f->lay.work_bytes, f->lay.mirrored ? MEMORY_PINNED : MEMORY_DEVICE, "window");
    f->mesh.peer[f->mesh.rank].window = f->params_home = f->window;
    return;
  }
  const unsigned long long mine = comm_mpi_window_bytes(f, f->mesh.rank);
  MPI_Info info;
  MPI_Info_create(&info);
  MPI_Info_set(info, "alloc_shared_noncontig", "true");          // every rank's part lies the same way in its page
  MPI_Comm_set_errhandler(f->mesh.node, MPI_ERRORS_RETURN);
  const int failed = MPI_Win_allocate_shared((MPI_Aint)mine, 1, info, f->mesh.node, &f->window, &f->win);
  MPI_Comm_set_errhandler(f->mesh.node, MPI_ERRORS_ARE_FATAL);
  MPI_Info_free(&info);
  if (failed)
    die_missing("OpenMPI cannot make this rank's shared-memory window of %.1f MiB: see its message above, or run with "
                "--shm off", (double)mine / 1048576.0);
  MPI_Win_lock_all(MPI_MODE_NOCHECK, f->win);
  f->window = page_aligned(f->window);
  int *world_rank = (int *)malloc(sizeof(int) * (size_t)f->mesh.node_world);
  MPI_Allgather(&f->mesh.rank, 1, MPI_INT, world_rank, 1, MPI_INT, f->mesh.node);
  for (int r = 0; r < f->mesh.node_world; r++) {
    MPI_Aint size;
    int unit;
    char *start;
    MPI_Win_shared_query(f->win, r, &size, &unit, &start);
    f->mesh.peer[world_rank[r]].window = page_aligned(start); // segments map to whole pages: the same shift everywhere
  }
  free(world_rank);
  f->params_home = f->mesh.peer[f->lay.in_place ? f->mesh.shard.rank[0] : f->mesh.rank].window;
  comm_mpi_zero_windows(f);
  for (int r = 0; r < f->mesh.world && f->lay.mirrored; r++)
    if (mesh_shares_memory(&f->mesh, r))
      f->ctx->ops->memory_pin(f->ctx, f->mesh.peer[r].window, comm_mpi_shared_bytes(f));
  MPI_Barrier(f->mesh.node);
}
// Messages of a stage's gather with one peer, at most.
static inline int fsdp_most_pieces(const Fsdp *f) {
  int most = 1;
  for (int s = 0; s < f->lay.stages; s++) {
    int messages = 0;
    for (int u = f->lay.stage[s].first_unit; u < f->lay.stage[s].first_unit + f->lay.stage[s].units; u++)
      messages += f->lay.unit[u].pieces + (int)(f->lay.unit[u].full_bytes / MESSAGE_MOST_BYTES);
    most = messages > most ? messages : most;
  }
  return most;
}
// Messages of a unit's sum on its way back, at most: from the last replica to all others.
static inline size_t fsdp_return_messages(const Fsdp *f) {
  const size_t bytes = (size_t)fsdp_stage_most(f).state * 4;
  return (size_t)f->mesh.replicate.size * (1 + bytes / MESSAGE_MOST_BYTES);
}
static inline void comm_mpi_open(Fsdp *f) {
  comm_mpi_open_window(f);
  f->work = f->window;
  if (f->lay.mirrored) {
    fsdp_open_work(f);
    streams_open(f);
  } else f->gather_ctx = f->reduce_ctx = *f->ctx;
  const size_t remote = (size_t)f->mesh.remote, pieces = (size_t)fsdp_most_pieces(f);
  const size_t parts = (size_t)f->lay.hosts.parts + 1, requests = (2 * remote + parts) * pieces + 1;
  for (int k = 0; k <= f->cfg.gather_slots; k++)
    f->slot[k].requests = (MPI_Request *)calloc(requests, sizeof(MPI_Request));
  for (int parity = 0; parity < 2; parity++) {
    f->sends[parity] = (MPI_Request *)calloc(requests, sizeof(MPI_Request));
    f->receives[parity] = (MPI_Request *)calloc(requests, sizeof(MPI_Request));
  }
  f->return_requests = (MPI_Request *)calloc((size_t)f->lay.units * fsdp_return_messages(f), sizeof(MPI_Request));
  f->part_receives = (MPI_Request *)calloc(2 * parts * pieces, sizeof(MPI_Request));
  f->part_pending = (int *)calloc(2 * parts, sizeof(int));
  for (MPI_Request *&r : f->update_requests) r = (MPI_Request *)calloc(2 * (size_t)f->mesh.world, sizeof(MPI_Request));
}
static inline void comm_mpi_close(Fsdp *f) {
  const Ops *ops = f->ctx->ops;
  for (int k = 0; k <= f->cfg.gather_slots; k++) free(f->slot[k].requests);
  for (int parity = 0; parity < 2; parity++) { free(f->sends[parity]); free(f->receives[parity]); }
  free(f->return_requests);
  free(f->part_receives);
  free(f->part_pending);
  for (MPI_Request *r : f->update_requests) free(r);
  if (f->lay.mirrored) {
    fsdp_close_work(f);
    streams_close(f);
  }
  for (int r = 0; r < f->mesh.world && f->lay.mirrored && f->has_win; r++)
    if (mesh_shares_memory(&f->mesh, r)) ops->memory_unpin(f->ctx, f->mesh.peer[r].window);
  if (f->has_win) { MPI_Win_unlock_all(f->win); MPI_Win_free(&f->win); }
  else ops->memory_free(f->ctx, f->window, f->lay.work_bytes, f->lay.mirrored ? MEMORY_PINNED : MEMORY_DEVICE);
}

// A mirrored device is waited for: what lands and what is fetched overwrites what passes before have read.
static inline void comm_mpi_step_begin(Fsdp *f) {
  if (f->lay.mirrored) f->ctx->ops->sync(f->ctx);
}
// The barrier separates the writing of shards from their reading. The reading, in place or by gathers, is separated
// from the next writing by the step's small all-gather, which no rank leaves before all have ended their passes and
// which every update comes after.
// What else writes shards, initialisation and loading, comes before all passes and ends here, too.
static inline void comm_mpi_step_end(Fsdp *f) {
  if (f->lay.mirrored) {
    const size_t at = f->lay.part[WORK_PARAMS].at;
    if (f->params_home != f->window) f->ctx->ops->copy(f->ctx, f->window + at, f->work + at, f->lay.params_bytes);
    f->ctx->ops->sync(f->ctx);
  }
  f->traffic.small++;
  record_collective(f->record, RECORD_HOST, COLLECTIVE_BARRIER, OVER_WORLD, 1, 0);
  const FlightCollective barrier = flight_begin("the barrier after the update", STAGE_NONE);
  flight_in(barrier);
  MPI_Barrier(f->mesh.comm);
  flight_out();
  flight_end(barrier);
}

// A message of one of the mesh's communicators, and the requests that it joins.
struct MessageSet { MPI_Request *request; int *pending; };
static inline MPI_Comm channel_comm(const Fsdp *f, Channel c) {
  return c == CHANNEL_GATHER ? f->mesh.gather_comm : c == CHANNEL_REDUCE ? f->mesh.reduce_comm : f->mesh.chain_comm;
}
static inline void message_send(Fsdp *f, Channel c, MessageSet s, const void *p, int bytes, int to, int tag) {
  record_message(f->record, RECORD_SEND, RECORD_HOST, c, s.request, to, p, (size_t)bytes);
  MPI_Isend(p, bytes, MPI_BYTE, to, tag, channel_comm(f, c), &s.request[(*s.pending)++]);
}
static inline void message_receive(Fsdp *f, Channel c, MessageSet s, void *p, int bytes, int from, int tag) {
  record_message(f->record, RECORD_RECEIVE, RECORD_HOST, c, s.request, from, p, (size_t)bytes);
  MPI_Irecv(p, bytes, MPI_BYTE, from, tag, channel_comm(f, c), &s.request[(*s.pending)++]);
}
static inline bool messages_done(Fsdp *f, MessageSet s) {
  if (!*s.pending) return true;
  int flag = 0;
  MPI_Testall(*s.pending, s.request, &flag, MPI_STATUSES_IGNORE);
  if (flag) *s.pending = 0;
  if (flag) record_ended(f->record, RECORD_HOST, s.request);
  return flag;
}
// OpenMPI moves messages only inside its calls.
static inline void comm_mpi_progress(Fsdp *f) {
  int flag;
  if (f->mesh.hosts > 1 || !f->mesh.windows)
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, f->mesh.reduce_comm, &flag, MPI_STATUS_IGNORE);
}
// A device fetches from the landing on its own time: messages may arrive there again when it has done so.
static inline void comm_mpi_landing_free(Fsdp *f, int s, GatherSlot *slot) {
  bool done = !slot->landing || !slot->arrived.recorded;
  for (int spins = 0; !done; f->meanwhile(f)) {
    f->ctx->ops->event_done(f->ctx, slot->arrived.event, &done);
    if (!done) liveness_pause(&spins, "a copy of the GPU", s);
  }
}
static inline void comm_mpi_gather_start(Fsdp *f, int s, GatherSlot *slot) {
  fsdp_count_gather(f, s, slot);
  comm_mpi_landing_free(f, s, slot);
  const GatherSource g = fsdp_gather_source(f, slot);
  const MessageSet set = {slot->requests, &slot->pending};
  char *landing = f->lay.mirrored ? slot->landing : slot->data;
  for (int k = 0; k < g.group->size && f->mesh.remote; k++) {
    const int r = g.group->rank[k];
    if (r == f->mesh.rank || mesh_shares_memory(&f->mesh, r)) continue;
    EACH_PIECE_OF_STAGE(f, s, u, i) {
      const GatherPiece p = fsdp_gather_piece(f, g, u, i);
      for (size_t at = 0; at < p.bytes; at += MESSAGE_MOST_BYTES) {
        const int n = (int)(p.bytes - at < MESSAGE_MOST_BYTES ? p.bytes - at : MESSAGE_MOST_BYTES);
        message_receive(f, CHANNEL_GATHER, set, landing + p.to_at + (size_t)k * p.bytes + at, n, r, s);
        message_send(f, CHANNEL_GATHER, set, f->window + p.from_at + at, n, r, s);
      }
      f->traffic.gather_bytes += (int64_t)p.bytes;
    }
  }
}
// Copies the k-th rank's part of stage s to the slot; remote parts of a mirrored device come from their landing.
static inline void comm_mpi_fetch(Fsdp *f, int s, GatherSlot *slot, GatherSource g, int k) {
  const int r = g.group->rank[k];
  const bool mine = r == f->mesh.rank, local = mine || mesh_shares_memory(&f->mesh, r);
  const char *home = mine ? (g.kept ? f->work : f->params_home) : f->mesh.peer[r].window;
  EACH_PIECE_OF_STAGE(f, s, u, i) {
    const GatherPiece p = fsdp_gather_piece(f, g, u, i);
    const size_t to = p.to_at + (size_t)k * p.bytes;
    f->ctx->ops->copy(&f->gather_ctx, slot->data + to, local ? home + p.from_at : slot->landing + to, p.bytes);
    if (local && !mine) f->traffic.gather_bytes += (int64_t)p.bytes;
  }
}
// What was kept lies in this rank's window from here on, for its neighbours and for messages.
static inline void comm_mpi_keep(Fsdp *f, int s, GatherSlot *slot) {
  const GatherSource g = {&f->mesh.kept, (size_t)(fsdp_shards(f) / f->cfg.mesh.kept), true};
  fsdp_keep(f, s, slot);
  EACH_PIECE_OF_STAGE(f, s, u, i) {
    const GatherPiece p = fsdp_gather_piece(f, g, u, i);
    if (f->lay.mirrored) f->ctx->ops->copy(&f->gather_ctx, f->window + p.from_at, f->work + p.from_at, p.bytes);
  }
  if (f->lay.mirrored) f->ctx->ops->sync(&f->gather_ctx);
  counter_publish(f, &fsdp_control(f, f->mesh.rank)->kept, f->kept_count);
}
// Shards of ranks on this host are copied here: their owners change them only between two barriers, and what they keep
// after they have said so, only in the next step.
static inline void comm_mpi_gather_finish(Fsdp *f, int s, GatherSlot *slot) {
  const GatherSource g = fsdp_gather_source(f, slot);
  step_event_wait(&f->gather_ctx, &slot->released);
  for (int i = 0; i < g.group->size; i++) {
    const int k = (g.group->me + i) % g.group->size, r = g.group->rank[k];     // start with the own shard: ranks do not
    if (r != f->mesh.rank && !mesh_shares_memory(&f->mesh, r)) continue;       // all read one
    const bool asks = g.kept && r != f->mesh.rank;
    const uint64_t *kept = &fsdp_control(f, r)->kept;
    for (int spins = 0; asks && !counter_reached(f, kept, f->kept_number[s]); f->meanwhile(f))
      liveness_pause(&spins, "the gather", s);
    comm_mpi_fetch(f, s, slot, g, k);
  }
  for (int spins = 0; !messages_done(f, MessageSet{slot->requests, &slot->pending}); f->meanwhile(f))
    liveness_pause(&spins, "the gather", s);
  for (int k = 0; k < g.group->size && slot->landing; k++)
    if (!mesh_shares_memory(&f->mesh, g.group->rank[k]) && k != g.group->me) comm_mpi_fetch(f, s, slot, g, k);
  if (fsdp_keeps(f, s, slot)) comm_mpi_keep(f, s, slot);
  step_event_record(&f->gather_ctx, &slot->arrived);
  step_event_wait(f->ctx, &slot->arrived);
}
// A mirrored device brings the complete gradient to the window; what is staged goes round by round.
static inline void comm_mpi_reduce_start(Fsdp *f) {
  streams_reduce_start(f);
  if (!f->lay.mirrored || fsdp_shards(f) == 1 || f->lay.stage[f->job.stage].staged) return;       // nobody reads it
  const Stage *s = &f->lay.stage[f->job.stage];
  for (int u = s->first_unit; u < s->first_unit + s->units; u++) {
    const size_t at = fsdp_unit_grads_at(f, u, f->job.slot);
    f->ctx->ops->copy(&f->reduce_ctx, f->window + at, f->work + at,
                      (size_t)f->lay.unit[u].grad_numel * fsdp_wire_bytes(f));
  }
  step_event_record(&f->reduce_ctx, &f->mirror_filled);
}
// Have the peers of this host added up everything before round `rounds`?
static inline bool comm_mpi_peers_done(Fsdp *f, uint64_t rounds) {
  for (int i = 0; i < fsdp_shards(f); i++)
    if (comm_mpi_is_neighbour(f, i) &&
        !counter_reached(f, &fsdp_control(f, f->mesh.shard.rank[i])->done, rounds))
      return false;
  return true;
}
// Two rounds are in flight: round - 2 used this memory. Only staging is written per round; slots are grads_free's.
static inline bool comm_mpi_round_free(Fsdp *f, uint64_t round) {
  const int parity = (int)(round & 1);
  bool filled = true;
  if (!messages_done(f, MessageSet{f->sends[parity], &f->sends_pending[parity]})) return false;
  if (!messages_done(f, MessageSet{&f->chain_send[parity], &f->chain_sends[parity]})) return false;
  if (!messages_done(f, MessageSet{&f->chain_back[parity], &f->chain_backs[parity]})) return false;
  if (f->lay.stage[f->job.stage].staged) return round < 2 || comm_mpi_peers_done(f, round - 1);
  const bool fills = f->lay.mirrored && fsdp_shards(f) > 1;
  if (fills) f->ctx->ops->event_done(f->ctx, f->mirror_filled.event, &filled);
  return filled;
}
static inline char *comm_mpi_landing_in(const Fsdp *f, uint64_t round, int remote_peer) {
  const size_t chunk_bytes = (size_t)f->lay.chunk_numel * fsdp_wire_bytes(f);
  char *base = f->lay.mirrored ? f->landing_in : f->staging_in;
  return base + ((round & 1) * (size_t)f->mesh.remote + (size_t)remote_peer) * chunk_bytes;
}

// ---- sums along the replicas
// The replica whose sum this one goes on from: the one before; for the first one the last, of the reduction before.
static inline int chain_before(const Fsdp *f) {
  const RankGroup *g = &f->mesh.replicate;
  return g->rank[(g->me + g->size - 1) % g->size];
}
static inline bool chain_begins(const Fsdp *f) { return f->job.first && f->mesh.replicate.me == 0; }
// Whether this rank's sum of the last reduction goes back to the first replica before this one overwrites it.
static inline bool chain_returns(const Fsdp *f) {
  return !f->job.first && f->mesh.replicate.me == f->mesh.replicate.size - 1;
}
static inline size_t chain_at(const Fsdp *f, ReduceSpan x) {                  // in working memory
  return f->lay.part[WORK_SUMS].at + (size_t)(f->lay.unit[x.unit].sum_base + x.first) * sizeof(float);
}
static inline void chain_count(Fsdp *f, int64_t n) { f->traffic.replicate_bytes += n * 4; }
// Messages land in the own shard, or in its mirror. They can only come when it has been read: see the top.
static inline void comm_mpi_chain_post(Fsdp *f, uint64_t round, ReduceSpan x) {
  const int parity = (int)(round & 1), tag = (int)(round & 0x3fff), n = fsdp_mpi_count(x.numel * 4);
  const RankGroup *g = &f->mesh.replicate;
  const MessageSet back = {&f->chain_back[parity], &f->chain_backs[parity]};
  const MessageSet next = {&f->chain_receive[parity], &f->chain_receives[parity]};
  char *shard = f->window + chain_at(f, x);
  if (chain_returns(f) && !mesh_shares_memory(&f->mesh, g->rank[0]))
    message_send(f, CHANNEL_CHAIN, back, shard, n, g->rank[0], tag);
  if (!chain_begins(f) && !mesh_shares_memory(&f->mesh, chain_before(f)))
    message_receive(f, CHANNEL_CHAIN, next, shard, n, chain_before(f), tag);
}
static inline bool comm_mpi_chain_arrived(Fsdp *f, uint64_t round) {
  if (!fsdp_chains(f) || chain_begins(f)) return true;
  const int parity = (int)(round & 1), before = chain_before(f);
  if (!mesh_shares_memory(&f->mesh, before))
    return messages_done(f, MessageSet{&f->chain_receive[parity], &f->chain_receives[parity]});
  const uint64_t wanted = f->mesh.replicate.me ? round : f->job.last_round0 + (round - f->job.round0);
  return counter_reached(f, &fsdp_control(f, before)->partial, wanted + 1);
}
static inline void comm_mpi_chain_take(Fsdp *f, uint64_t, ReduceSpan x, float *sum) {
  const int before = chain_before(f);
  const bool local = mesh_shares_memory(&f->mesh, before);
  const char *from = (local ? f->mesh.peer[before].window : f->window) + chain_at(f, x);
  chain_count(f, x.numel);
  if (from != (const char *)sum) f->ctx->ops->copy(&f->reduce_ctx, sum, from, (size_t)x.numel * 4);
}
static inline void comm_mpi_chain_give(Fsdp *f, uint64_t round, ReduceSpan x, float *sum) {
  const RankGroup *g = &f->mesh.replicate;
  const int parity = (int)(round & 1);
  char *shard = f->window + chain_at(f, x);
  if (shard != (char *)sum) {
    f->ctx->ops->copy(&f->reduce_ctx, shard, sum, (size_t)x.numel * 4);
    f->ctx->ops->sync(&f->reduce_ctx);
  }
  counter_publish(f, &fsdp_control(f, f->mesh.rank)->partial, round + 1);
  if (g->me == g->size - 1 || mesh_shares_memory(&f->mesh, g->rank[g->me + 1])) return;
  message_send(f, CHANNEL_CHAIN, MessageSet{&f->chain_send[parity], &f->chain_sends[parity]}, shard,
               fsdp_mpi_count(x.numel * 4), g->rank[g->me + 1], (int)(round & 0x3fff));
}
// ---- back to all replicas
// The last replica's sum of a unit in working memory, in every replica's window at the same place.
static inline size_t return_at(const Fsdp *f, const SumReturn *r) {
  return f->lay.part[WORK_SUMS].at + (size_t)f->lay.unit[r->unit].sum_base * sizeof(float);
}
static inline size_t return_bytes(const Fsdp *f, const SumReturn *r) {
  return (size_t)f->lay.unit[r->unit].state_numel * sizeof(float);
}
static inline MessageSet return_messages(Fsdp *f, SumReturn *r) {
  return MessageSet{f->return_requests + (size_t)(r - f->returns.of) * fsdp_return_messages(f), &r->pending};
}
// By messages to those that do not share memory with the last replica: few, one replica a host. They land in the own
// shard, or in its mirror. They can only come when it has been read: see the top.
static inline void comm_mpi_return_start(Fsdp *f, SumReturn *r) {
  const RankGroup *g = &f->mesh.replicate;
  const int last = g->rank[g->size - 1], tag = 0x4000;
  const bool gives = g->me == g->size - 1;
  const size_t bytes = return_bytes(f, r);
  const MessageSet set = return_messages(f, r);
  char *sum = f->window + return_at(f, r);
  for (size_t at = 0; at < bytes; at += MESSAGE_MOST_BYTES) {
    const int n = (int)(bytes - at < MESSAGE_MOST_BYTES ? bytes - at : MESSAGE_MOST_BYTES);
    for (int i = 0; i < g->size - 1 && gives; i++)
      if (!mesh_shares_memory(&f->mesh, g->rank[i]))
        message_send(f, CHANNEL_RETURN, set, sum + at, n, g->rank[i], tag);
    if (!gives && !mesh_shares_memory(&f->mesh, last))
      message_receive(f, CHANNEL_RETURN, set, sum + at, n, last, tag);
  }
}
// Else out of the last replica's window, when that has added up r's round.
static inline bool comm_mpi_return_arrived(Fsdp *f, SumReturn *r) {
  const RankGroup *g = &f->mesh.replicate;
  const int last = g->rank[g->size - 1];
  const bool gives = g->me == g->size - 1, local = mesh_shares_memory(&f->mesh, last);
  if (!messages_done(f, return_messages(f, r))) return false;
  if (gives) return true;
  if (local && !counter_reached(f, &fsdp_control(f, last)->partial, r->round + 1)) return false;
  const char *from = (local ? f->mesh.peer[last].window : f->window) + return_at(f, r);
  float *own = f->grads + f->lay.unit[r->unit].sum_base;
  if (from != (const char *)own) f->ctx->ops->copy(&f->reduce_ctx, own, from, return_bytes(f, r));
  return true;
}
// A mirrored device's host has waited for every round, but not for copies of sums that came back.
static inline void comm_mpi_reduce_join(Fsdp *f) {
  for (int spins = 0; f->returns.begun; f->meanwhile(f))
    liveness_pause(&spins, "the last replica's sums", f->lay.unit[f->returns.of[f->returns.taken].unit].stage);
  if (!f->lay.mirrored || fsdp_chains(f)) streams_reduce_join(f);
}

// ---- sums along hosts
// Receives of a part's sum in a round, or of the own result: as the part behind all others.
static inline MessageSet hosts_receives(Fsdp *f, uint64_t round, int part) {
  const size_t i = (round & 1) * (size_t)(f->lay.hosts.parts + 1) + (size_t)part;
  return MessageSet{f->part_receives + i * (size_t)fsdp_most_pieces(f), &f->part_pending[i]};
}
// A sum of a round in messages: of a part, to or from rank `peer` of the shard group; sum NULL: of the own shard.
// What an owner begins with and what comes back to it go from the last host to the first in one round: by channels.
enum HostsMove { HOSTS_SEND, HOSTS_RECEIVE };
static inline void hosts_message(Fsdp *f, uint64_t round, ReduceSpan x, float *sum, HostsMove move, Channel c,
                                 MessageSet set, int peer) {
  const int r = f->mesh.shard.rank[peer], tag = (int)(round & 0x3fff);
  PieceRun run;
  for (int i = 0; i < f->lay.unit[x.unit].pieces; i++) {
    if (!piece_run(&f->lay.unit[x.unit], i, x.first, x.numel, &run)) continue;
    float *at = sum ? sum + run.state_at - x.first : fsdp_own_sum(f, x, i, run, fsdp_grads_of(f, x));
    const int bytes = fsdp_mpi_count(run.numel * 4);
    if (move == HOSTS_SEND) message_send(f, c, set, at, bytes, r, tag);
    else message_receive(f, c, set, at, bytes, r, tag);
  }
}
static inline MessageSet hosts_sends(Fsdp *f, uint64_t round) {
  return MessageSet{f->sends[round & 1], &f->sends_pending[round & 1]};
}
// A round is laid out: sums may arrive.
static inline void comm_mpi_parts_post(Fsdp *f, uint64_t round, ReduceSpan x) {
  const HostsLayout *h = &f->lay.hosts;
  for (int p = 0; p < h->parts; p++) {
    if (!hosts_receives_part(f, p)) continue;
    hosts_message(f, round, x, hosts_sum(f, round, p), HOSTS_RECEIVE, h->me ? CHANNEL_REDUCE : CHANNEL_CHAIN,
                  hosts_receives(f, round, p), h->part[p].before);
  }
}
// The result comes to where the sum is sent from that it goes on from, and so after that has arrived; in a whole
// gradient, to where this rank has added its own contribution before.
static inline void comm_mpi_part_begin(Fsdp *f, uint64_t round, ReduceSpan x) {
  const HostsLayout *h = &f->lay.hosts;
  const int me = f->mesh.shard.me;
  const Doing was = doing(f->record, DOING_CHAIN, f->job.stage, round);
  if (h->begin != me && !fsdp_begins(f))
    hosts_message(f, round, x, NULL, HOSTS_SEND, CHANNEL_CHAIN, hosts_sends(f, round), h->begin);
  doing_again(f->record, was);
  if (h->end != me)
    hosts_message(f, round, x, NULL, HOSTS_RECEIVE, CHANNEL_REDUCE, hosts_receives(f, round, h->parts), h->end);
}
static inline bool comm_mpi_part_arrived(Fsdp *f, uint64_t round, int part, ReduceSpan) {
  for (int i = 0; i < fsdp_shards(f); i++)
    if (comm_mpi_is_neighbour(f, i) &&
        !counter_reached(f, &fsdp_control(f, f->mesh.shard.rank[i])->ready, round + 1)) return false;
  return messages_done(f, hosts_receives(f, round, part));
}
static inline const char *comm_mpi_part_input(const Fsdp *f, uint64_t round, int i, int part, ReduceSpan x,
                                              PieceRun run) {
  const HostsLayout *h = &f->lay.hosts;
  const int r = h->first + i;
  const char *memory = r == f->mesh.shard.me ? f->work : f->mesh.peer[f->mesh.shard.rank[r]].window;
  return memory + fsdp_contribution_at(f, h->part[part].owner, round, x, run);
}
static inline void comm_mpi_part_give(Fsdp *f, uint64_t round, int part, ReduceSpan x) {
  const int after = f->lay.hosts.part[part].after;
  if (after != f->mesh.shard.me)
    hosts_message(f, round, x, hosts_sum(f, round, part), HOSTS_SEND, CHANNEL_REDUCE, hosts_sends(f, round), after);
}
static inline bool comm_mpi_part_back(Fsdp *f, uint64_t round, ReduceSpan) {
  return messages_done(f, hosts_receives(f, round, f->lay.hosts.parts));
}
static const CommHosts hosts_mpi = {comm_mpi_chain_arrived, comm_mpi_part_begin, comm_mpi_part_arrived,
                                    comm_mpi_part_input,    comm_mpi_part_give,  comm_mpi_part_back};

static inline void comm_mpi_round_send(Fsdp *f, uint64_t round, ReduceSpan x) {
  const int parity = (int)(round & 1), tag = (int)(round & 0x3fff), S = fsdp_shards(f);
  const bool staged = f->lay.stage[f->job.stage].staged;
  if (f->lay.mirrored && staged) {
    const size_t half = (size_t)S * (size_t)f->lay.chunk_numel * fsdp_wire_bytes(f);
    const size_t at = f->lay.part[WORK_STAGING].at + (round & 1) * half;
    f->ctx->ops->copy(&f->reduce_ctx, f->window + at, f->work + at, half);
    f->ctx->ops->sync(&f->reduce_ctx);
  }
  // A slot is complete before its first round: all of its rounds can be read from then on.
  counter_publish(f, &fsdp_control(f, f->mesh.rank)->ready, staged ? round + 1 : f->rounds_started);
  const Doing was = doing(f->record, DOING_CHAIN, f->job.stage, round);
  if (fsdp_chains(f)) comm_mpi_chain_post(f, round, x);
  doing_again(f->record, was);
  if (f->lay.hosts.hosts) {
    comm_mpi_parts_post(f, round, x);
    return;
  }
  const MessageSet in = {f->receives[parity], &f->receives_pending[parity]};
  const MessageSet out = {f->sends[parity], &f->sends_pending[parity]};
  PieceRun run;
  for (int i = 0, k = 0; i < S && f->mesh.remote; i++) {
    if (!comm_mpi_is_remote(f, i)) continue;
    const int r = f->mesh.shard.rank[i];
    char *landing = comm_mpi_landing_in(f, round, k++);
    for (int c = 0; c < f->lay.unit[x.unit].pieces; c++) {
      if (!piece_run(&f->lay.unit[x.unit], c, x.first, x.numel, &run)) continue;
      const int bytes = fsdp_mpi_count(run.numel * (int64_t)fsdp_wire_bytes(f));
      message_receive(f, CHANNEL_REDUCE, in, landing + (size_t)(run.state_at - x.first) * fsdp_wire_bytes(f), bytes, r,
                      tag);
      message_send(f, CHANNEL_REDUCE, out, f->window + fsdp_contribution_at(f, i, round, x, run), bytes, r, tag);
    }
  }
}
static inline bool comm_mpi_round_arrived(Fsdp *f, uint64_t round) {
  for (int i = 0; i < fsdp_shards(f); i++) {
    const int r = f->mesh.shard.rank[i];
    if (comm_mpi_is_neighbour(f, i) && !counter_reached(f, &fsdp_control(f, r)->ready, round + 1))
      return false;
  }
  return messages_done(f, MessageSet{f->receives[round & 1], &f->receives_pending[round & 1]}) &&
         comm_mpi_chain_arrived(f, round);
}
static inline const char *comm_mpi_round_input(const Fsdp *f, uint64_t round, int i, ReduceSpan x, PieceRun run) {
  const int me = f->mesh.shard.me;
  if (i == me) return f->work + fsdp_contribution_at(f, me, round, x, run);
  if (comm_mpi_is_neighbour(f, i)) {
    return f->mesh.peer[f->mesh.shard.rank[i]].window + fsdp_contribution_at(f, me, round, x, run);
  }
  int remote_peer = 0;
  for (int q = 0; q < i; q++) remote_peer += comm_mpi_is_remote(f, q);
  return comm_mpi_landing_in(f, round, remote_peer) + (size_t)(run.state_at - x.first) * fsdp_wire_bytes(f);
}
// Peers may write again what this rank has read: a device must have copied it by then.
static inline void comm_mpi_round_done(Fsdp *f, uint64_t round) {
  if (f->lay.mirrored) f->ctx->ops->sync(&f->reduce_ctx);
  counter_publish(f, &fsdp_control(f, f->mesh.rank)->done, round + 1);
}
static inline bool comm_mpi_grads_free(Fsdp *f, int slot) {
  return comm_mpi_peers_done(f, f->slot_rounds[slot]) &&
         messages_done(f, MessageSet{f->sends[0], &f->sends_pending[0]}) &&
         messages_done(f, MessageSet{f->sends[1], &f->sends_pending[1]});
}
static inline void comm_mpi_small(Fsdp *f, const void *mine, void *all, size_t bytes) {
  const size_t everything = bytes * (size_t)f->mesh.world;
  const void *from = f->lay.mirrored ? f->small_host : mine;
  void *to = f->lay.mirrored ? f->small_host + bytes : all;
  if (f->lay.mirrored) {
    f->ctx->ops->copy(f->ctx, f->small_host, mine, bytes);
    f->ctx->ops->sync(f->ctx);
  }
  record_exchange(f->record, RECORD_HOST, COLLECTIVE_ALL_GATHER, OVER_WORLD, everything - bytes,
                  Exchanged{from, bytes, to, everything});
  MPI_Allgather(from, (int)bytes, MPI_BYTE, to, (int)bytes, MPI_BYTE, f->mesh.comm);
  if (f->lay.mirrored) f->ctx->ops->copy(f->ctx, all, to, everything);
}
// ---- Muon's matrices
// Waits until a counter of rank r has reached `value`.
static inline void comm_mpi_updates_wait(Fsdp *f, const uint64_t *counter, uint64_t value) {
  for (int spins = 0; !counter_reached(f, counter, value); f->meanwhile(f))
    liveness_pause(&spins, "the updates of Muon", STAGE_NONE);
  liveness_arrived();
}
// All ranks share memory: momenta are written into owners' windows, updates are read there.
static inline void comm_mpi_updates_in_place(Fsdp *f, UpdateMove move, int round) {
  const uint64_t count = f->update_rounds + (uint64_t)round + 1;
  const int S = fsdp_shards(f), N = f->mesh.world, slots = f->lay.owned.slots;
  Control *own = fsdp_control(f, f->mesh.rank);
  Run run;
  // The slots of a step's first rounds are free: everybody has passed its small all-gather.
  for (int r = 0; r < N && move == UPDATES_FREE && round >= slots; r++)
    if (r != f->mesh.rank) comm_mpi_updates_wait(f, &fsdp_control(f, r)->taken, count - (uint64_t)slots);
  if (N > 1 && move == UPDATES_GIVE) counter_publish(f, &own->momenta, count);
  if (N > 1 && move == UPDATES_BACK) counter_publish(f, &own->updates, count);
  if (N > 1 && move == UPDATES_TAKEN) counter_publish(f, &own->taken, count);
  EACH_OWNED(f, round, x) {
    for (int i = 0; i < S && move == UPDATES_WHOLE && x->owner == f->mesh.rank; i++)
      if (comm_mpi_is_neighbour(f, i) && owned_run(f, x, i, &run))
        comm_mpi_updates_wait(f, &fsdp_control(f, f->mesh.shard.rank[i])->momenta, count);
    if (move == UPDATES_ARRIVED && x->owner != f->mesh.rank && owned_run(f, x, f->mesh.shard.me, &run))
      comm_mpi_updates_wait(f, &fsdp_control(f, x->owner)->updates, count);
  }
}
static inline void comm_mpi_update_message(Fsdp *f, int round, UpdateMessage m) {
  enum { TAG_GIVE = 0x4001, TAG_BACK = 0x4002 };
  const int slot = owned_slot(f, round), bytes = fsdp_mpi_count((int64_t)m.bytes), tag = m.back ? TAG_BACK : TAG_GIVE;
  const MessageSet set = {f->update_requests[slot], &f->updates_pending[slot]};
  if (m.sends) message_send(f, CHANNEL_CHAIN, set, m.at, bytes, m.peer, tag);
  else message_receive(f, CHANNEL_CHAIN, set, m.at, bytes, m.peer, tag);
}
static inline void comm_mpi_updates_finish(Fsdp *f, int round) {
  const int slot = owned_slot(f, round);
  const MessageSet set = {f->update_requests[slot], &f->updates_pending[slot]};
  for (int spins = 0; !messages_done(f, set); f->meanwhile(f))
    liveness_pause(&spins, "the updates of Muon", STAGE_NONE);
  liveness_arrived();
}
// Of a mirrored device, to or from the host: the runs of others' matrices, where the device has them; and the own
// matrix, of which only others' runs come from the host.
static inline void comm_mpi_mirror_runs(Fsdp *f, int round, bool to_host) {
  Run run;
  EACH_OWNED(f, round, x) {
    if (x->owner == f->mesh.rank || (to_host && !owned_gives(f, x))) continue;
    if (!owned_run(f, x, f->mesh.shard.me, &run)) continue;
    char *here = owned_stage_of(f, x), *host = owned_host_stage(f, x);
    f->ctx->ops->copy(&f->reduce_ctx, to_host ? host : here, to_host ? here : host, owned_bytes(run.numel));
  }
}
static inline void comm_mpi_mirror_matrix(Fsdp *f, int round, bool to_host) {
  Run run;
  EACH_OWNED(f, round, x) for (int i = 0; i < fsdp_shards(f) && x->owner == f->mesh.rank; i++) {
    if (!owned_run(f, x, i, &run) || (!to_host && i == f->mesh.shard.me)) continue;
    char *here = owned_matrix(f, x->owner, round) + owned_bytes(run.in_range);
    char *host = owned_host_matrix(f, round) + owned_bytes(run.in_range);
    f->ctx->ops->copy(&f->reduce_ctx, to_host ? host : here, to_host ? here : host, owned_bytes(run.numel));
  }
}
// The host waits for copies to it before it sends.
static inline void comm_mpi_updates_mirrored(Fsdp *f, UpdateMove move, int round) {
  const bool off = fsdp_offloads(f), back = move == UPDATES_BACK;
  const int slot = owned_slot(f, round);
  if (move == UPDATES_GIVE || back) {
    if (!off || back) {
      step_event_record(f->ctx, &f->update_ready);
      step_event_wait(&f->reduce_ctx, &f->update_ready);
    }
    if (back) comm_mpi_mirror_matrix(f, round, true);
    else if (!off) comm_mpi_mirror_runs(f, round, true);
    updates_copy(f, round, back);
    f->ctx->ops->sync(&f->reduce_ctx);
    updates_each_message(f, round, back, comm_mpi_update_message);
  }
  if (move != UPDATES_WHOLE && move != UPDATES_ARRIVED) return;
  comm_mpi_updates_finish(f, round);
  if (move == UPDATES_ARRIVED && off) return;
  StepEvent *there = move == UPDATES_WHOLE ? &f->update_whole[slot] : &f->update_back[slot];
  if (move == UPDATES_WHOLE) comm_mpi_mirror_matrix(f, round, false);
  else comm_mpi_mirror_runs(f, round, false);
  step_event_record(&f->reduce_ctx, there);
  step_event_wait(f->ctx, there);
}
static inline void comm_mpi_updates(Fsdp *f, UpdateMove move, int round) {
  if (f->lay.owned.in_place) comm_mpi_updates_in_place(f, move, round);
  else if (f->lay.mirrored) comm_mpi_updates_mirrored(f, move, round);
  else if (move == UPDATES_GIVE || move == UPDATES_BACK)
    updates_each_message(f, round, move == UPDATES_BACK, comm_mpi_update_message);
  else if (move == UPDATES_WHOLE || move == UPDATES_ARRIVED) comm_mpi_updates_finish(f, round);
}
static const Comm comm_mpi = {
    "mpi", comm_self_nothing, comm_mpi_open, comm_mpi_close, comm_mpi_step_begin, comm_mpi_step_end,
    comm_mpi_gather_start, comm_mpi_gather_finish, comm_mpi_reduce_start, comm_mpi_round_free, comm_mpi_round_send,
    comm_mpi_round_arrived,
    comm_mpi_round_input, comm_mpi_chain_take, comm_mpi_chain_give, comm_mpi_round_done, comm_self_nothing,
    comm_mpi_grads_free, comm_mpi_return_start, comm_mpi_return_arrived, comm_mpi_reduce_join, comm_mpi_small,
    comm_mpi_progress, comm_mpi_updates,
    &hosts_mpi};

// ================================================================================================ nccl
// Whether the ranks of a group tell each other anything: a test lets one rank tell itself (comms_of_one).
static inline bool comm_nccl_meets(const Fsdp *f, const RankGroup *g) { return g->size > 1 || f->cfg.comms_of_one; }
// Opens a communicator of all ranks of a group by the id that its first rank makes. All ranks of the program come here.
static inline void *comm_nccl_group(Fsdp *f, const RankGroup *g) {
  const Collectives *nccl = f->ctx->ops->nccl;
  void *comm = NULL;
  char id[NCCL_ID_BYTES] = {}, *ids = (char *)malloc((size_t)f->mesh.world * NCCL_ID_BYTES);
  if (g->me == 0 && comm_nccl_meets(f, g)) nccl->id_make(f->ctx, id);
  MPI_Allgather(id, NCCL_ID_BYTES, MPI_BYTE, ids, NCCL_ID_BYTES, MPI_BYTE, f->mesh.comm);
  if (comm_nccl_meets(f, g))
    nccl->comm_open(f->ctx, &comm, ids + (size_t)g->rank[0] * NCCL_ID_BYTES, g->me, g->size);
  free(ids);
  return comm;
}
// The part of `parent` that is this group; all its ranks come here.
static inline void *comm_nccl_part(Fsdp *f, void *parent, const RankGroup *g) {
  void *comm = NULL;
  if (parent && comm_nccl_meets(f, g)) f->ctx->ops->nccl->comm_split(f->ctx, &comm, parent, g->rank[0], g->me);
  return comm;
}
static inline void comm_nccl_warm(Fsdp *f);
// NCCL connects at the first call of a kind: all that a step makes come once, before its memory is measured. That is
// also why a capture finds nothing to connect.
static inline void comm_nccl_connect(Fsdp *f) {
  size_t before, after, total;
  RankGroup all = rank_group(0, 1, f->mesh.world, f->mesh.rank);
  f->ctx->ops->memory_left(f->ctx, &before, &total);
  streams_open(f);
  liveness_phase("opening NCCL's communicators");
  f->nccl_world = comm_nccl_group(f, &all);
  f->nccl_reduce = comm_nccl_part(f, f->nccl_world, &f->mesh.shard);
  if (f->cfg.mesh.replicas > 1) f->nccl_replicate = comm_nccl_part(f, f->nccl_world, &f->mesh.replicate);
  f->nccl_gather = comm_nccl_group(f, &f->mesh.shard);
  if (f->lay.part[WORK_KEPT].bytes) f->nccl_kept = comm_nccl_part(f, f->nccl_gather, &f->mesh.kept);
  comm_nccl_warm(f);
  f->ctx->ops->memory_left(f->ctx, &after, &total);
  liveness_phase("start-up");
  memory_measure(f->plan, MEM_NCCL, before, after);
  free(all.rank);
}
// Parts before what they were split from.
static inline void comm_nccl_close(Fsdp *f) {
  void *const comms[] = {f->nccl_kept, f->nccl_gather, f->nccl_replicate, f->nccl_reduce, f->nccl_world};
  for (void *comm : comms) if (comm) f->ctx->ops->nccl->comm_close(f->ctx, comm);
  streams_close(f);
  fsdp_close_work(f);
}
// An offloaded shard is copied to its place in the slot first, and gathered from there.
static inline void comm_nccl_gather_start(Fsdp *f, int s, GatherSlot *slot) {
  const Collectives *nccl = f->ctx->ops->nccl;
  const GatherSource g = fsdp_gather_source(f, slot);
  const bool from_host = f->cfg.offload == OFFLOAD_PARAMS && !g.kept;
  fsdp_count_gather(f, s, slot);
  step_event_wait(&f->gather_ctx, &slot->released);
  fsdp_mark(f, &f->gather_ctx, MARK_GATHER, 1 + s);
  EACH_PIECE_OF_STAGE(f, s, u, i) {
    const GatherPiece p = fsdp_gather_piece(f, g, u, i);
    if (from_host)
      f->ctx->ops->copy(&f->gather_ctx, slot->data + p.to_at + (size_t)g.group->me * p.bytes,
                        f->params_home + p.from_at, p.bytes);
  }
  const bool meets = comm_nccl_meets(f, g.group);
  if (meets) nccl->group_begin(&f->gather_ctx);
  EACH_PIECE_OF_STAGE(f, s, u, i) {
    if (!meets) continue;
    const GatherPiece p = fsdp_gather_piece(f, g, u, i);
    char *to = slot->data + p.to_at;
    nccl->all_gather(&f->gather_ctx, g.kept ? f->nccl_kept : f->nccl_gather, to,
                     from_host ? to + (size_t)g.group->me * p.bytes : f->work + p.from_at, p.bytes);
    f->traffic.gather_bytes += (g.group->size - 1) * (int64_t)p.bytes;
  }
  if (meets) nccl->group_end(&f->gather_ctx);
  if (fsdp_keeps(f, s, slot)) fsdp_keep(f, s, slot);
  step_event_record(&f->gather_ctx, &slot->arrived);
}
// NCCL's own sum arrives in one place, round after round.
static inline bool comm_nccl_round_free(Fsdp *f, uint64_t) {
  return !f->cfg.native_reduce || f->job.prepared == f->job.consumed;
}
static inline char *comm_nccl_staging_in(const Fsdp *f, uint64_t round, int i) {
  if (f->cfg.native_reduce) return f->staging_in;
  if (f->lay.hosts.hosts) return f->staging_in + (round & 1) * hosts_round_bytes(f);
  const size_t chunk_bytes = (size_t)f->lay.chunk_numel * fsdp_wire_bytes(f);
  return f->staging_in + ((round & 1) * (size_t)fsdp_shards(f) + (size_t)i) * chunk_bytes;
}
// ---- sums along hosts
// All ranks of the group enqueue these in one order: what a round's ranks of a host contribute; what owners begin with;
// parts along the hosts, in order of owners; results. A part's message waits only for those of owners before it and of
// hosts before, so that no messages wait for each other in a circle. A part goes on while the next one comes.
// What the i-th rank of this host contributes to a part.
static inline char *comm_nccl_part_staging(const Fsdp *f, uint64_t round, int i, int part) {
  const HostsLayout *h = &f->lay.hosts;
  const int other = i - (h->first + i > f->mesh.shard.me);
  return comm_nccl_staging_in(f, round, 0) +
         (size_t)(part * (h->ranks - 1) + other) * (size_t)f->lay.chunk_numel * fsdp_wire_bytes(f);
}
static inline void comm_nccl_parts_post(Fsdp *f, uint64_t round, ReduceSpan x) {
  const Collectives *nccl = f->ctx->ops->nccl;
  const HostsLayout *h = &f->lay.hosts;
  const size_t b_r = fsdp_wire_bytes(f);
  const int me = f->mesh.shard.me;
  PieceRun run;
  nccl->group_begin(&f->reduce_ctx);
  for (int c = 0; c < f->lay.unit[x.unit].pieces; c++) {
    if (!piece_run(&f->lay.unit[x.unit], c, x.first, x.numel, &run)) continue;
    const size_t to = (size_t)(run.state_at - x.first) * b_r, bytes = (size_t)run.numel * b_r;
    for (int o = 0; o < fsdp_shards(f); o++)
      if (h->adder[o] != me)
        nccl->send(&f->reduce_ctx, f->nccl_reduce, f->work + fsdp_contribution_at(f, o, round, x, run), bytes,
                   h->adder[o]);
    for (int p = 0; p < h->parts; p++) for (int i = 0; i < h->ranks; i++)
      if (h->first + i != me)
        nccl->receive(&f->reduce_ctx, f->nccl_reduce, comm_nccl_part_staging(f, round, i, p) + to, bytes, h->first + i);
  }
  nccl->group_end(&f->reduce_ctx);
}
// A sum to or from rank `peer` of the shard group, piece by piece; sum NULL: of the own shard.
static inline void comm_nccl_sum(Fsdp *f, ReduceSpan x, float *sum, HostsMove move, int peer) {
  const Collectives *nccl = f->ctx->ops->nccl;
  PieceRun run;
  for (int i = 0; i < f->lay.unit[x.unit].pieces; i++) {
    if (!piece_run(&f->lay.unit[x.unit], i, x.first, x.numel, &run)) continue;
    float *at = sum ? sum + run.state_at - x.first : fsdp_own_sum(f, x, i, run, fsdp_grads_of(f, x));
    const size_t bytes = (size_t)run.numel * 4;
    if (move == HOSTS_SEND) nccl->send(&f->reduce_ctx, f->nccl_reduce, at, bytes, peer);
    else nccl->receive(&f->reduce_ctx, f->nccl_reduce, at, bytes, peer);
  }
}
static inline void comm_nccl_part_begin(Fsdp *f, uint64_t round, ReduceSpan x) {
  const Collectives *nccl = f->ctx->ops->nccl;
  const HostsLayout *h = &f->lay.hosts;
  if (fsdp_begins(f)) return;
  nccl->group_begin(&f->reduce_ctx);
  for (int p = 0; p < h->parts && !h->me; p++)
    if (hosts_receives_part(f, p)) comm_nccl_sum(f, x, hosts_sum(f, round, p), HOSTS_RECEIVE, h->part[p].before);
  const Doing was = doing(f->record, DOING_CHAIN, f->job.stage, round);
  if (h->begin != f->mesh.shard.me) comm_nccl_sum(f, x, NULL, HOSTS_SEND, h->begin);
  doing_again(f->record, was);
  nccl->group_end(&f->reduce_ctx);
}
static inline void comm_nccl_part_exchange(Fsdp *f, uint64_t round, int gives, int takes, ReduceSpan x) {
  const Collectives *nccl = f->ctx->ops->nccl;
  const HostsLayout *h = &f->lay.hosts;
  nccl->group_begin(&f->reduce_ctx);
  if (gives >= 0 && h->me < h->hosts - 1)
    comm_nccl_sum(f, x, hosts_sum(f, round, gives), HOSTS_SEND, h->part[gives].after);
  if (takes < h->parts && h->me)
    comm_nccl_sum(f, x, hosts_sum(f, round, takes), HOSTS_RECEIVE, h->part[takes].before);
  nccl->group_end(&f->reduce_ctx);
}
static inline bool comm_nccl_part_arrived(Fsdp *f, uint64_t round, int part, ReduceSpan x) {
  if (!part) comm_nccl_part_exchange(f, round, -1, 0, x);
  return true;
}
static inline const char *comm_nccl_part_input(const Fsdp *f, uint64_t round, int i, int part, ReduceSpan x,
                                               PieceRun run) {
  const HostsLayout *h = &f->lay.hosts;
  if (h->first + i == f->mesh.shard.me) return f->work + fsdp_contribution_at(f, h->part[part].owner, round, x, run);
  return comm_nccl_part_staging(f, round, i, part) + (size_t)(run.state_at - x.first) * fsdp_wire_bytes(f);
}
static inline void comm_nccl_part_give(Fsdp *f, uint64_t round, int part, ReduceSpan x) {
  comm_nccl_part_exchange(f, round, part, part + 1, x);
}
// Results of a round come after the parts of the next one: hosts before the last are at work on these meanwhile.
static inline bool comm_nccl_part_back(Fsdp *f, uint64_t round, ReduceSpan x) {
  const Collectives *nccl = f->ctx->ops->nccl;
  const HostsLayout *h = &f->lay.hosts;
  nccl->group_begin(&f->reduce_ctx);
  for (int p = 0; p < h->parts && h->me == h->hosts - 1; p++)
    if (h->part[p].after != f->mesh.shard.me)
      comm_nccl_sum(f, x, hosts_sum(f, round, p), HOSTS_SEND, h->part[p].after);
  if (h->end != f->mesh.shard.me) comm_nccl_sum(f, x, NULL, HOSTS_RECEIVE, h->end);
  nccl->group_end(&f->reduce_ctx);
  return true;
}
static const CommHosts hosts_nccl = {comm_self_yes,        comm_nccl_part_begin, comm_nccl_part_arrived,
                                     comm_nccl_part_input, comm_nccl_part_give,  comm_nccl_part_back};
// Ordered: all-to-all, each rank's part of the own shard into its own chunk; fsdp.h adds them in order of ranks.
static inline void comm_nccl_round_send(Fsdp *f, uint64_t round, ReduceSpan x) {
  const Collectives *nccl = f->ctx->ops->nccl;
  const size_t b_r = fsdp_wire_bytes(f);
  const int S = fsdp_shards(f);
  if (!comm_nccl_meets(f, &f->mesh.shard)) return;
  if (f->lay.hosts.hosts) {
    comm_nccl_parts_post(f, round, x);
    return;
  }
  PieceRun run;
  nccl->group_begin(&f->reduce_ctx);
  for (int c = 0; c < f->lay.unit[x.unit].pieces; c++) {
    if (!piece_run(&f->lay.unit[x.unit], c, x.first, x.numel, &run)) continue;
    const size_t to = (size_t)(run.state_at - x.first) * b_r, bytes = (size_t)run.numel * b_r;
    if (f->cfg.native_reduce)
      nccl->reduce_scatter(&f->reduce_ctx, f->nccl_reduce,
                           tensor_of(f->staging_in + to, f->cfg.wire_dtype, run.numel),
                           f->work + fsdp_contribution_at(f, 0, round, x, run));
    for (int i = 0; i < S && !f->cfg.native_reduce; i++) {
      nccl->send(&f->reduce_ctx, f->nccl_reduce, f->work + fsdp_contribution_at(f, i, round, x, run), bytes, i);
      nccl->receive(&f->reduce_ctx, f->nccl_reduce, comm_nccl_staging_in(f, round, i) + to, bytes, i);
    }
  }
  nccl->group_end(&f->reduce_ctx);
}
static inline const char *comm_nccl_round_input(const Fsdp *f, uint64_t round, int i, ReduceSpan x, PieceRun run) {
  if (!comm_nccl_meets(f, &f->mesh.shard)) return f->work + fsdp_contribution_at(f, i, round, x, run);
  return comm_nccl_staging_in(f, round, i) + (size_t)(run.state_at - x.first) * fsdp_wire_bytes(f);
}
// Between the last replica and the first one, at the same place of the order that all ranks enqueue in: the sums of the
// reduction before go back, of one round or all of a unit's, from `from` of the last to `to` of the first.
static inline void comm_nccl_chain_back(Fsdp *f, const float *from, float *to, int64_t numel_) {
  const Collectives *nccl = f->ctx->ops->nccl;
  const RankGroup *g = &f->mesh.replicate;
  if (g->me) nccl->send(&f->reduce_ctx, f->nccl_replicate, from, (size_t)numel_ * 4, 0);
  else nccl->receive(&f->reduce_ctx, f->nccl_replicate, to, (size_t)numel_ * 4, g->size - 1);
}
// The sum comes straight to where it is added to. What goes back to the first replica lies in its own place, so that a
// unit's go back at once and rounds follow each other along the replicas; offloaded, all rounds have but one place on
// the device, and each goes round before the next.
static inline void comm_nccl_chain_take(Fsdp *f, uint64_t, ReduceSpan x, float *sum) {
  const RankGroup *g = &f->mesh.replicate;
  const Unit *u = &f->lay.unit[x.unit];
  const bool off = fsdp_offloads(f), first = g->me == 0;
  float *own = f->grads + u->sum_base;
  chain_count(f, x.numel);
  if (off && chain_returns(f)) f->ctx->ops->copy(&f->reduce_ctx, sum, own + x.first, (size_t)x.numel * 4);
  if (off && (first || chain_returns(f))) comm_nccl_chain_back(f, sum, sum, x.numel);
  else if (!x.first && (first || chain_returns(f))) comm_nccl_chain_back(f, own, own, u->state_numel);
  if (!first) f->ctx->ops->nccl->receive(&f->reduce_ctx, f->nccl_replicate, sum, (size_t)x.numel * 4, g->me - 1);
}
static inline void comm_nccl_chain_give(Fsdp *f, uint64_t, ReduceSpan x, float *sum) {
  const RankGroup *g = &f->mesh.replicate;
  if (g->me < g->size - 1)
    f->ctx->ops->nccl->send(&f->reduce_ctx, f->nccl_replicate, sum, (size_t)x.numel * 4, g->me + 1);
}
// The last replica's sum of a unit to all of them; or all replicas' sums, by NCCL.
static inline void comm_nccl_return_start(Fsdp *f, SumReturn *r) {
  const Collectives *nccl = f->ctx->ops->nccl;
  const Unit *u = &f->lay.unit[r->unit];
  const bool off = fsdp_offloads(f);
  const int64_t n = u->state_numel, chunk = off ? f->lay.chunk_numel : n;
  for (int64_t at = 0; at < n; at += chunk) {
    const int64_t k = min64(chunk, n - at);
    float *own = f->grads + u->sum_base + at, *sum = off ? f->sum : own;
    if (off) f->ctx->ops->copy(&f->reduce_ctx, sum, own, (size_t)k * 4);
    if (f->cfg.native_reduce) nccl->all_reduce(&f->reduce_ctx, f->nccl_replicate, tensor_of(sum, F32, k));
    else nccl->broadcast(&f->reduce_ctx, f->nccl_replicate, sum, (size_t)k * 4, f->mesh.replicate.size - 1);
    if (off) f->ctx->ops->copy(&f->reduce_ctx, own, sum, (size_t)k * 4);
  }
}
// Over the communicator of all ranks, on the stream whose others were split from it.
static inline void comm_nccl_small(Fsdp *f, const void *mine, void *all, size_t bytes) {
  if (!f->nccl_world) { comm_self_small(f, mine, all, bytes); return; }
  step_event_record(f->ctx, &f->exchange_ready);
  step_event_wait(&f->reduce_ctx, &f->exchange_ready);
  fsdp_mark(f, &f->reduce_ctx, MARK_REDUCE, MARK_EXCHANGE);
  f->ctx->ops->nccl->all_gather(&f->reduce_ctx, f->nccl_world, all, mine, bytes);
  step_event_record(&f->reduce_ctx, &f->exchanged);
  step_event_wait(f->ctx, &f->exchanged);
}
// Every kind of call that a step makes over a communicator, with as many bytes as the least and the most of its calls
// have: which algorithm NCCL takes, and so what it connects, depends on that. The memory is given back.
struct WarmBytes { size_t least, most; };
static inline WarmBytes warm_with(WarmBytes w, size_t bytes) {
  if (!bytes) return w;
  return WarmBytes{w.most && w.least < bytes ? w.least : bytes, w.most > bytes ? w.most : bytes};
}
static inline WarmBytes comm_nccl_gathers(const Fsdp *f, bool kept) {
  const GatherSource g = {kept ? &f->mesh.kept : &f->mesh.shard,
                          kept ? (size_t)(fsdp_shards(f) / f->cfg.mesh.kept) : 1, kept};
  WarmBytes w = {};
  for (int s = kept ? 1 : 0; s < f->lay.stages; s++)
    EACH_PIECE_OF_STAGE(f, s, u, i) w = warm_with(w, fsdp_gather_piece(f, g, u, i).bytes);
  return w;
}
static inline void comm_nccl_warm_gather(Fsdp *f, Ctx *c, void *comm, const RankGroup *g, char *memory, WarmBytes w) {
  const size_t sizes[] = {w.least, w.most};
  for (size_t bytes : sizes)
    if (comm && bytes) f->ctx->ops->nccl->all_gather(c, comm, memory, memory + (size_t)g->me * bytes, bytes);
}
// Of sums that go back to all replicas.
static inline WarmBytes comm_nccl_returns(const Fsdp *f) {
  WarmBytes w = {};
  for (int u = 0; u < f->lay.units; u++) {
    const int64_t n = f->lay.unit[u].state_numel, chunk = fsdp_offloads(f) ? min64(n, f->lay.chunk_numel) : n;
    w = warm_with(w, (size_t)chunk * 4);
    w = warm_with(w, (size_t)(n % max64(chunk, 1)) * 4);
  }
  return w;
}
static inline void comm_nccl_warm_reduce(Fsdp *f, char *memory, WarmBytes chunks) {
  const Collectives *nccl = f->ctx->ops->nccl;
  const RankGroup *g = &f->mesh.shard, *r = &f->mesh.replicate;
  const size_t b_r = fsdp_wire_bytes(f);
  Ctx *c = &f->reduce_ctx;
  const size_t sizes[] = {chunks.least, chunks.most};
  for (size_t bytes : sizes) {
    if (!f->nccl_reduce || !bytes) continue;
    if (f->cfg.native_reduce)
      nccl->reduce_scatter(c, f->nccl_reduce, tensor_of(memory + (size_t)g->me * bytes, f->cfg.wire_dtype,
                                                        (int64_t)(bytes / b_r)), memory);
    nccl->group_begin(c);
    for (int i = 0; i < g->size && !f->cfg.native_reduce; i++) {
      nccl->send(c, f->nccl_reduce, memory, bytes, i);
      nccl->receive(c, f->nccl_reduce, memory + (size_t)(1 + i) * bytes, bytes, i);
    }
    nccl->group_end(c);
  }
  nccl->group_begin(c);                          // Muon's matrices, between any two ranks
  for (int i = 0; i < f->mesh.world && f->lay.owned.rounds; i++) {
    if (i == f->mesh.rank) continue;
    nccl->send(c, f->nccl_world, memory, 256, i);
    nccl->receive(c, f->nccl_world, memory + (size_t)(1 + i) * 256, 256, i);
  }
  nccl->group_end(c);
  if (!f->nccl_replicate) return;
  if (fsdp_chains(f)) {                          // round the ring of replicas: to the next one, and from the one before
    nccl->group_begin(c);
    nccl->send(c, f->nccl_replicate, memory, 4, (r->me + 1) % r->size);
    nccl->receive(c, f->nccl_replicate, memory + 256, 4, (r->me + r->size - 1) % r->size);
    nccl->group_end(c);
  }
  const WarmBytes sums = comm_nccl_returns(f);
  const size_t of_sums[] = {sums.least, sums.most};
  for (size_t bytes : of_sums) {
    if (!bytes) continue;
    if (f->cfg.native_reduce) nccl->all_reduce(c, f->nccl_replicate, tensor_of(memory, F32, (int64_t)(bytes / 4)));
    else nccl->broadcast(c, f->nccl_replicate, memory, bytes, r->size - 1);
  }
}
static inline void comm_nccl_warm(Fsdp *f) {
  if (!f->nccl_world) return;
  const Collectives *nccl = f->ctx->ops->nccl;
  const bool trains = fsdp_trains(f);
  const size_t S = (size_t)fsdp_shards(f), world = (size_t)f->mesh.world, small = fsdp_small_most_bytes(f);
  WarmBytes gathers = comm_nccl_gathers(f, false), kept = {}, chunks = {};
  if (f->nccl_kept) kept = comm_nccl_gathers(f, true);
  if (f->lay.in_place) gathers = WarmBytes{};
  const int64_t most = f->cfg.native_reduce ? fsdp_stage_most(f).state : f->lay.chunk_numel;
  for (int u = 0; u < f->lay.units && trains; u++)
    for (int i = 0; i < f->lay.unit[u].pieces; i++)
      for (size_t b : {fsdp_wire_bytes(f), f->lay.hosts.hosts ? sizeof(float) : 0})     // along hosts: sums, too
        chunks = warm_with(chunks, (size_t)min64(f->lay.unit[u].piece[i].numel, most) * b);
  size_t bytes = world * small;
  const size_t needs[] = {gathers.most * S, kept.most * (size_t)f->mesh.kept.size, chunks.most * (S + 1),
                          256 * (world + 1),
                          f->nccl_replicate && trains ? comm_nccl_returns(f).most : 0};
  for (size_t n : needs) if (n > bytes) bytes = n;
  char *memory = fsdp_memory_or_die(f, bytes, MEMORY_DEVICE, "the first calls of NCCL");
  comm_nccl_warm_gather(f, &f->gather_ctx, f->nccl_gather, &f->mesh.shard, memory, gathers);
  comm_nccl_warm_gather(f, &f->gather_ctx, f->nccl_kept, &f->mesh.kept, memory, kept);
  f->ctx->ops->sync(&f->gather_ctx);
  if (trains) comm_nccl_warm_reduce(f, memory, chunks);
  const size_t smalls[] = {f->cfg.small_bytes, small, (size_t)f->lay.scales_trained * 4, fsdp_layers_bytes(f)};
  for (size_t k : smalls)
    if (k) nccl->all_gather(&f->reduce_ctx, f->nccl_world, memory, memory + (size_t)f->mesh.rank * k, k);
  f->ctx->ops->sync(&f->reduce_ctx);
  f->ctx->ops->memory_free(f->ctx, memory, bytes, MEMORY_DEVICE);
}
// A peer or a link that was lost fails no call of ours: its kernels wait on the device.
static inline void comm_nccl_progress(Fsdp *f) {
  void *const comms[] = {f->nccl_gather, f->nccl_reduce, f->nccl_kept, f->nccl_replicate, f->nccl_world};
  for (void *comm : comms) if (comm) f->ctx->ops->nccl->comm_check(f->ctx, comm);
}
static inline void comm_nccl_update_message(Fsdp *f, int, UpdateMessage m) {
  const Collectives *nccl = f->ctx->ops->nccl;
  if (m.sends) nccl->send(&f->reduce_ctx, f->nccl_world, m.at, m.bytes, m.peer);
  else nccl->receive(&f->reduce_ctx, f->nccl_world, m.at, m.bytes, m.peer);
}
static inline void comm_nccl_exchange(Fsdp *f, int round, bool back) {
  if (f->mesh.world == 1) return;
  f->ctx->ops->nccl->group_begin(&f->reduce_ctx);
  updates_each_message(f, round, back, comm_nccl_update_message);
  f->ctx->ops->nccl->group_end(&f->reduce_ctx);
}
static inline void comm_nccl_updates(Fsdp *f, UpdateMove move, int round) {
  if (f->mesh.world > 1 || fsdp_offloads(f)) updates_by_stream(f, move, round, comm_nccl_exchange);
}
static const Comm comm_nccl = {
    "nccl", comm_nccl_connect, fsdp_open_work, comm_nccl_close, streams_step_begin, comm_self_nothing,
    comm_nccl_gather_start, streams_gather_finish, streams_reduce_start, comm_nccl_round_free, comm_nccl_round_send,
    comm_self_yes,
    comm_nccl_round_input, comm_nccl_chain_take, comm_nccl_chain_give, comm_self_done, streams_reduce_end,
    streams_grads_free, comm_nccl_return_start, comm_self_returned, streams_reduce_join, comm_nccl_small,
    comm_nccl_progress, comm_nccl_updates,
    &hosts_nccl};

// ================================================================================================ record
// Begins or goes on recording f's run in r, whose tables f was opened with (record_tables).
static inline void fsdp_record(Fsdp *f, Record *r) {
  void *const comms[COMMUNICATORS] = {NULL, f->nccl_gather, f->nccl_kept, f->nccl_reduce, f->nccl_replicate,
                                      f->nccl_world};
  f->record = r;
  r->rank = f->mesh.rank;
  r->paused = false;
  r->blocks = 0;
  for (int i = 0; i < f->mesh.world; i++) record_block(r, i, 0, f->mesh.peer[i].window, comm_mpi_window_bytes(f, i));
  if (f->work != f->window)
    record_block(r, r->rank, 1, f->work + f->lay.work_on_host, f->lay.work_bytes - f->lay.work_on_host);
  for (int i = 0; i < f->plan->blocks; i++) {
    const MemoryBlock *b = &f->plan->block[i];
    void *p = NULL;
    if (b->pointer) memcpy(&p, b->pointer, sizeof p);
    record_block(r, r->rank, 2 + i, p, b->bytes + b->besides);
  }
  for (int i = 0; i < COMMUNICATORS; i++) {
    const RankGroup *g = i == OVER_KEPT ? &f->mesh.kept : i == OVER_REPLICATE ? &f->mesh.replicate : &f->mesh.shard;
    r->group[i] = RecordGroup{comms[i], g->size, g->me, g->rank};
    if (i == OVER_WORLD) r->group[i] = RecordGroup{comms[i], f->mesh.world, f->mesh.rank, NULL};
  }
}
