// transport_self.h: one rank alone: it reduces its own contributions; units are read zero-copy, or copied from the
// host. Also the streams of a device, which the NCCL transport uses, too.
#pragma once
#include "transport_updates.h"

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
  step_event_record(f->ctx, &f->events.began);
  step_event_wait(&f->gather_ctx, &f->events.began);
}
static inline void streams_gather_finish(Fsdp *f, int, GatherSlot *slot) { step_event_wait(f->ctx, &slot->arrived); }
static inline void streams_gradient_ready(Fsdp *f) {
  step_event_record(f->ctx, &f->events.grads_ready);
  step_event_wait(&f->reduce_ctx, &f->events.grads_ready);
}
static inline void streams_gradient_added(Fsdp *f) {
  step_event_record(&f->reduce_ctx, &f->events.grads_free[f->job.buffer]);
}
static inline bool streams_grads_free(Fsdp *f, int buffer) {
  step_event_wait(f->ctx, &f->events.grads_free[buffer]);
  return true;
}
static inline void streams_returns_wait(Fsdp *f) {
  step_event_record(&f->reduce_ctx, &f->events.reduced);
  step_event_wait(f->ctx, &f->events.reduced);
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
  const GatherSource g = fsdp_source(f, slot->from_secondary);
  EACH_PIECE_OF_STAGE(f, s, u, i) {
    const GatherPiece p = fsdp_gather_piece(f, g, u, i);
    f->ctx->ops->copy(&f->gather_ctx, slot->data + p.to_at, fsdp_home(f, p.from_at), p.bytes);
  }
  step_event_record(&f->gather_ctx, &slot->arrived);
}
static inline bool comm_self_yes(Fsdp *, uint64_t) { return true; }
static inline const char *comm_self_part_input(const Fsdp *f, uint64_t round, int i, int, ReduceSpan x, PieceRun run) {
  return fsdp_work(f, fsdp_contribution_at(f, i, round, x, run));
}
static inline void comm_self_small(Fsdp *f, const void *mine, void *all, size_t bytes) {
  record_collective(f->record, RECORD_MODEL, COLLECTIVE_ALL_GATHER, OVER_WORLD, 1, 0);
  f->ctx->ops->copy(f->ctx, all, mine, bytes);
}
// One rank owns every matrix. Matrices are copied, between host and device, only for an offloaded optimizer.
static inline void comm_self_exchange(Fsdp *, int, bool) {}
static inline void comm_self_updates(Fsdp *f, UpdateMove move, int round) {
  if (fsdp_offloads(f)) updates_by_stream(f, move, round, comm_self_exchange);
}
// The table: no peers, so every poll succeeds, and there is no chain along hosts.
static inline Comm comm_self_table() {
  Comm c = {};
  c.connect = comm_self_nothing;
  c.open = comm_self_open;
  c.close = comm_self_close;
  c.step_begin = streams_step_begin;
  c.step_end = comm_self_nothing;
  c.progress = comm_self_nothing;
  c.gather_start = comm_self_gather_start;
  c.gather_finish = streams_gather_finish;
  c.gradient_ready = streams_gradient_ready;
  c.round_free = comm_self_yes;
  c.round_send = [](Fsdp *, uint64_t, ReduceSpan) {};
  c.chain_arrived = comm_self_yes;
  c.chain_take = c.chain_give = [](Fsdp *, uint64_t, ReduceSpan, float *) {};
  c.part_arrived = [](Fsdp *, uint64_t, int, ReduceSpan) { return true; };
  c.part_input = comm_self_part_input;
  c.round_done = [](Fsdp *, uint64_t) {};
  c.gradient_added = streams_gradient_added;
  c.grads_free = streams_grads_free;
  c.return_start = [](Fsdp *, SumReturn *) {};
  c.return_arrived = [](Fsdp *, SumReturn *) { return true; };
  c.returns_wait = streams_returns_wait;
  c.small_all_gather = comm_self_small;
  c.updates = comm_self_updates;
  return c;
}
static const Comm comm_self = comm_self_table();
