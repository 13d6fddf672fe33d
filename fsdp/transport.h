// transport.h: what all transports use: events, places of a unit's parts, the pieces of a gather and the runs of a
// round of a reduction. (struct Comm, the table that a transport fills, is in types.h.)
//
//   transport_self.h     one rank, and the streams of a device
//   transport_mpi.h      windows (windows.h) inside a host, messages between hosts
//   transport_nccl.h     NCCL
//   transport_plan.h     dry runs: no peers
//   transport_updates.h  Muon's matrices, over any of these transports
//
// Replicas. After a round of a reduction, the partial sum is in this rank's shard. The next replica reads it there,
// adds its own contributions, and so on; the first replica's next reduction continues from the last one's sum. No rank
// overwrites a sum before its reader has it, because its next sum is computed from the sum that the reader passes on;
// the step's small all-gather orders the first reduction of the next step. (So a rank may post the receive of a message
// that cannot have been sent yet into memory from which another is still being sent.) After a stage's last reduction of
// the step, the last replica's sums of its units go to all replicas, while backward continues; native, NCCL adds them
// up. With messages, two rounds at a time are on their way along the replicas and back to the first: with many replicas
// and microbatches, --accumulate local avoids that.
//
// f->traffic is counted here and in the transports (all-gathers, chain sums, updates, barriers), in reduce.h
// (reductions, broadcasts of their results) and in sharded_state.h (the small all-gather).
#pragma once
#include "layout.h"
#include "note.h"

static inline void step_event_open(Ctx *c, StepEvent *e, const char *name) {
  c->ops->event_open(c, &e->event, name);
  e->recorded = false;
}
static inline void step_event_close(Ctx *c, StepEvent *e, const char *) { c->ops->event_close(c, e->event); }
static inline void step_event_record(Ctx *c, StepEvent *e) {
  c->ops->event_record(c, e->event);
  e->recorded = true;
}
// The stream of ctx waits for the event, if it was recorded in this step.
static inline void step_event_wait(Ctx *c, const StepEvent *e) {
  if (e->recorded) c->ops->event_wait(c, e->event);
}

// ---- memory that is shared, or could be
static inline char *fsdp_memory_or_die(Fsdp *f, size_t bytes, MemoryKind kind, const char *what) {
  void *p = NULL;
  f->ctx->ops->memory_alloc(f->ctx, &p, bytes, kind);
  if (bytes && !p) die_missing("cannot allocate %zu bytes of %s: %s", bytes, what, strerror(ENOMEM));
  return (char *)p;
}
// Allocates working memory on the device, without its first work_on_host bytes, which are in the host mirror alone.
static inline void fsdp_open_work(Fsdp *f) {
  const size_t from = f->lay.work_on_host, bytes = f->lay.work_bytes - from;
  f->mem.work = WorkMemory{fsdp_memory_or_die(f, bytes, MEMORY_DEVICE, "shards and gradient slots"), from};
  f->mem.params_home = f->lay.part[WORK_PARAMS].on_host ? WorkMemory{f->mem.window, 0} : f->mem.work;
}
static inline void fsdp_close_work(Fsdp *f) {
  f->ctx->ops->memory_free(f->ctx, f->mem.work.at, f->lay.work_bytes - f->mem.work.from, MEMORY_DEVICE);
}

// Offset in working memory of unit u's whole gradient, if it is in gradient buffer `buffer`.
static inline size_t fsdp_unit_grads_at(const Fsdp *f, int u, int buffer) {
  const Unit *q = &f->lay.unit[u];
  if (grads_are_whole(f->lay.stage[q->stage].grads)) return q->grads_at;
  const size_t slot_at = f->lay.part[WORK_SLOTS].at + (size_t)buffer * f->lay.grad_slot_bytes;
  return slot_at + (size_t)q->grad_slot_at * fsdp_wire_bytes(f);
}
// The part of unit u's whole gradient that this rank's part of piece i owns.
static inline float *fsdp_own_gradient(const Fsdp *f, int u, int i) {
  const Piece *c = &f->lay.unit[u].piece[i];
  return (float *)fsdp_work(f, f->lay.unit[u].grads_at) + c->grad_at + f->mesh.shard.me * c->numel;
}
// This rank's gradient shard, elements from x.first on; NULL where it is part of a whole gradient.
static inline float *fsdp_grad_shard(const Fsdp *f, ReduceSpan x) {
  const Unit *u = &f->lay.unit[x.unit];
  return f->lay.stage[u->stage].grads == GRADS_SHARD_IN_WHOLE ? NULL : f->shards.grads + u->sum_base + x.first;
}
// Where this rank's sum is while contributions are added: its gradient shard, or, offloaded, a buffer on the device.
static inline float *fsdp_round_sum(const Fsdp *f, ReduceSpan x) {
  return fsdp_offloads(f) ? f->mem.sum : fsdp_grad_shard(f, x);
}
// Whether this rank's shard group starts the sum: it is the step's first reduction of the stage, on the first replica.
static inline bool fsdp_begins(const Fsdp *f) {
  return f->job.first && (!fsdp_chains(f) || f->mesh.replicate.me == 0);
}
// Along hosts: whether the partial sum of a part comes to this rank by messages.
static inline bool hosts_receives_part(const Fsdp *f, int part) {
  const HostsLayout *h = &f->lay.hosts;
  return h->part[part].before != f->mesh.shard.me && (h->me || !fsdp_begins(f));
}
// Address of the sum of a part's run in a round: along hosts in memory of its own, but with OWN_SHARD the gradient
// shard; without a chain it is the gradient shard's sum.
enum { OWN_SHARD = -1 };
static inline float *fsdp_part_sum(const Fsdp *f, uint64_t round, int part, ReduceSpan x, PieceRun run) {
  float *sum = fsdp_round_sum(f, x);
  if (f->lay.hosts.hosts && part != OWN_SHARD)
    sum = (float *)(f->mem.staging_in + (round & 1) * hosts_round_bytes(f) + hosts_inputs_bytes(f)) +
          (size_t)part * (size_t)f->lay.chunk_numel;
  if (sum) return sum + run.state_at - x.first;
  return fsdp_own_gradient(f, x.unit, run.piece) + run.state_at - f->lay.unit[x.unit].piece[run.piece].state_at;
}
static inline char *fsdp_own_piece(const Fsdp *f, int u, int i) {
  return fsdp_home(f, f->lay.unit[u].params_at + f->lay.unit[u].piece[i].shard_at);
}
// Where a rank lays out what it contributes to the group's rank `owner` in a round: an offset in working memory and in
// windows alike.
static inline size_t fsdp_contribution_at(const Fsdp *f, int owner, uint64_t round, ReduceSpan x, PieceRun run) {
  const size_t b_r = fsdp_wire_bytes(f), chunk = (size_t)f->lay.chunk_numel, S = (size_t)fsdp_shards(f);
  if (!f->lay.stage[f->job.stage].staged)
    return fsdp_unit_grads_at(f, x.unit, f->job.buffer) + (size_t)(run.grad_at + owner * run.owner_stride) * b_r;
  const size_t half = f->lay.part[WORK_STAGING].at + (round & 1) * S * chunk * b_r;
  const size_t in_round = (size_t)(run.state_at - x.first);
  if (f->cfg.native_reduce)                      // ncclReduceScatter wants the owners' parts without gaps
    return half + (S * in_round + (size_t)owner * (size_t)run.numel) * b_r;
  return half + ((size_t)owner * chunk + in_round) * b_r;
}

// ---- gathering: from the shards of the shard group's ranks, or from the secondary shards of a smaller group
static inline GatherSource fsdp_source(const Fsdp *f, bool secondary) {
  if (!secondary) return GatherSource{&f->mesh.shard, 1, false};
  return GatherSource{&f->mesh.secondary, (size_t)(fsdp_shards(f) / f->cfg.mesh.secondary), true};
}
// Where a gathered piece comes from and goes to, for transports.
static inline GatherPiece fsdp_gather_piece(const Fsdp *f, GatherSource g, int u, int i) {
  const Unit *q = &f->lay.unit[u];
  const Piece *c = &q->piece[i];
  return GatherPiece{(g.secondary ? q->secondary_at : q->params_at) + c->shard_at * g.widen, q->slot_at + c->full_at,
                     piece_bytes(c) * g.widen};
}

static inline void fsdp_count_gather(Fsdp *f, int s, const GatherSlot *slot) {
  const GatherSource g = fsdp_source(f, slot->from_secondary);
  if (g.group->size == 1) return;
  f->traffic.gathers += f->lay.stage[s].units;
  record_collective(f->record, RECORD_HOST, COLLECTIVE_GATHER, OVER_NONE, f->lay.stage[s].units, 0);
}
// Whether this gather, which asks the whole shard group, leaves a secondary shard of the stage here.
static inline bool fsdp_stores_secondary(const Fsdp *f, int s, const GatherSlot *slot) {
  return f->lay.part[WORK_SECONDARY].bytes && f->gather.training && s && !slot->from_secondary;
}
// Copies this rank's secondary shard out of the whole stage.
static inline void fsdp_store_secondary(Fsdp *f, int s, GatherSlot *slot) {
  const GatherSource g = fsdp_source(f, true);
  EACH_PIECE_OF_STAGE(f, s, u, i) {
    const GatherPiece p = fsdp_gather_piece(f, g, u, i);
    f->ctx->ops->copy(&f->gather_ctx, fsdp_work(f, p.from_at), slot->data + p.to_at + (size_t)g.group->me * p.bytes,
                      p.bytes);
  }
  f->gather.secondary_valid[s] = true;
  f->gather.secondary_number[s] = ++f->gather.secondary_count;
}

// ---- sums along the replicas
// Whether this rank, of the last replica, sends its sum of the stage's reduction before back to the first replica
// before this reduction overwrites it.
static inline bool chain_returns(const Fsdp *f) {
  return !f->job.first && f->mesh.replicate.me == f->mesh.replicate.size - 1;
}
static inline size_t chain_at(const Fsdp *f, ReduceSpan x) {                  // in working memory
  return f->lay.part[WORK_SUMS].at + (size_t)(f->lay.unit[x.unit].sum_base + x.first) * sizeof(float);
}
static inline void chain_count(Fsdp *f, int64_t n) { f->traffic.replicate_bytes += n * 4; }
// Along hosts: whether this rank sends or receives a sum.
enum HostsMove { HOSTS_SEND, HOSTS_RECEIVE };
