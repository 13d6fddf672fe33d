// transport.h: how ranks reach each other: struct Comm, the table that a transport fills, and what all of them use:
// events, where a unit's parts lie, what a gather and a round of a reduction consist of.
//
//   transport_self.h     one rank, and what a device does with streams of its own
//   transport_mpi.h      windows (windows.h) inside a host, messages between hosts
//   transport_nccl.h     NCCL
//   transport_plan.h     nobody is there: dry runs
//   transport_updates.h  Muon's matrices, over any of them
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
#include <errno.h>
#include "layout.h"
#include "note.h"

// What is done with a round of Muon's matrices (owned.h), in this order. FREE: waits until its slot may be written.
// GIVE: this rank's momenta are written; they go to their owners. WHOLE: waits until this rank's matrix has all of
// them. BACK: its update is computed; its runs go back. ARRIVED: waits for this rank's runs. TAKEN: it has read them.
enum UpdateMove { UPDATES_FREE, UPDATES_GIVE, UPDATES_WHOLE, UPDATES_BACK, UPDATES_ARRIVED, UPDATES_TAKEN };
// What a transport does. The parts above (gather.h, reduce.h, update.h, sharded_state.h) know no other way to reach a
// peer. Each fills what it does otherwise than one rank alone (transport_self.h).
struct Comm {
  void (*connect)(Fsdp *f);                                        // opens libraries whose memory must be measured
  void (*open)(Fsdp *f);                                           // allocates working memory and windows
  void (*close)(Fsdp *f);
  void (*step_begin)(Fsdp *f);                                     // side streams continue after all work so far
  void (*step_end)(Fsdp *f);                                       // new shards are complete: peers may read them
  void (*progress)(Fsdp *f);                                       // lets messages move, notices what failed
  void (*gather_start)(Fsdp *f, int s, GatherSlot *slot);          // starts gathering stage s
  void (*gather_finish)(Fsdp *f, int s, GatherSlot *slot);         // the model may read the slot from here on

  // A reduction, and its rounds in the order of their steps (reduce.h).
  void (*reduce_start)(Fsdp *f);                                   // backward has completed the job's gradient
  bool (*round_free)(Fsdp *f, uint64_t round);                     // may the memory of this round be written again?
  void (*round_send)(Fsdp *f, uint64_t round, ReduceSpan x);       // sends this rank's contributions
  bool (*chain_arrived)(Fsdp *f, uint64_t round);                  // with replicas: is the sum of those before there?
  void (*chain_take)(Fsdp *f, uint64_t round, ReduceSpan x, float *sum);       // gets it
  void (*hosts_begin)(Fsdp *f, uint64_t round, ReduceSpan x);      // along hosts: it goes to the first host
  // Have a part's contributions arrived, and along hosts its sum?
  bool (*part_arrived)(Fsdp *f, uint64_t round, int part, ReduceSpan x);
  // The i-th contribution to a part.
  const char *(*part_input)(const Fsdp *f, uint64_t round, int i, int part, ReduceSpan x, PieceRun run);
  void (*hosts_give)(Fsdp *f, uint64_t round, int part, ReduceSpan x);         // along hosts: its sum goes on
  void (*round_done)(Fsdp *f, uint64_t round);                     // all are added: peers may reuse memory
  bool (*hosts_back)(Fsdp *f, uint64_t round, ReduceSpan x);       // has the own sum come from the last host?
  void (*chain_give)(Fsdp *f, uint64_t round, ReduceSpan x, float *sum);       // passes it to the next replica
  void (*reduce_end)(Fsdp *f);                                     // all rounds of the job are added up
  bool (*grads_free)(Fsdp *f, int slot);                           // have all peers read this gradient slot?
  // With replicas: a unit's sum of the step goes to all of them; has it come? It is in this rank's shard then.
  void (*return_start)(Fsdp *f, SumReturn *r);
  bool (*return_arrived)(Fsdp *f, SumReturn *r);
  void (*reduce_join)(Fsdp *f);                                    // the model may read the gradient shards

  void (*small_all_gather)(Fsdp *f, const void *mine, void *all, size_t bytes);        // device memory, order of ranks
  void (*updates)(Fsdp *f, UpdateMove move, int round);            // exchanges a round of Muon's matrices
};

static inline void step_event_open(Ctx *c, StepEvent *e, const char *name) {
  c->ops->event_open(c, &e->event, name);
  e->recorded = false;
}
static inline void step_event_close(Ctx *c, StepEvent *e, const char *) { c->ops->event_close(c, e->event); }
static inline void step_event_record(Ctx *c, StepEvent *e) {
  c->ops->event_record(c, e->event);
  e->recorded = true;
}
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
// Device memory of the working layout, but for what comes first and lies on the host.
static inline void fsdp_open_work(Fsdp *f) {
  const size_t skipped = f->lay.work_on_host;
  f->mem.work = fsdp_memory_or_die(f, f->lay.work_bytes - skipped, MEMORY_DEVICE, "shards and gradient slots");
  f->mem.work -= skipped;
  f->mem.params_home = f->lay.part[WORK_PARAMS].on_host ? f->mem.window : f->mem.work;
}
static inline void fsdp_close_work(Fsdp *f) {
  const size_t skipped = f->lay.work_on_host;
  f->ctx->ops->memory_free(f->ctx, f->mem.work + skipped, f->lay.work_bytes - skipped, MEMORY_DEVICE);
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
  return (float *)(f->mem.work + f->lay.unit[u].grads_at) + c->grad_at + f->mesh.shard.me * c->numel;
}
// The runs of a round: of each piece of x's unit that has elements there.
#define EACH_RUN(f, x, run) \
  for (int piece_ = 0; piece_ < (f)->lay.unit[(x).unit].pieces; piece_++) \
    if (PieceRun run = {}; piece_run(&(f)->lay.unit[(x).unit], piece_, (x).first, (x).numel, &run))
// This rank's gradient shard, elements from x.first on; NULL where it is part of a whole gradient.
static inline float *fsdp_grads_of(const Fsdp *f, ReduceSpan x) {
  const Unit *u = &f->lay.unit[x.unit];
  return f->lay.stage[u->stage].shard_aliases_gradient ? NULL : f->shards.grads + u->sum_base + x.first;
}
// Where this rank's sum is while it is added to: offloaded, on the device.
static inline float *fsdp_round_sum(const Fsdp *f, ReduceSpan x) {
  return fsdp_offloads(f) ? f->mem.sum : fsdp_grads_of(f, x);
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
// Where the sum of a part is in a round, elements of a run: along hosts apart from all shards, but for OWN_SHARD;
// straight, it is the own shard's.
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
  return f->mem.params_home + f->lay.unit[u].params_at + f->lay.unit[u].piece[i].shard_at;
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

// ---- gathering: from the shards of the shard group's ranks, or from the secondary shards of a smaller group
// A rank's part of a piece is `widen` of its shards there, at `at` of working memory.
struct GatherSource { const RankGroup *group; size_t widen; bool secondary; };
static inline GatherSource fsdp_source(const Fsdp *f, bool secondary) {
  if (!secondary) return GatherSource{&f->mesh.shard, 1, false};
  return GatherSource{&f->mesh.secondary, (size_t)(fsdp_shards(f) / f->cfg.mesh.secondary), true};
}
// One piece of a gather: `bytes` of every rank of the source, from from_at of its working memory to to_at (of rank 0;
// rank i's follow) of the slot.
struct GatherPiece { size_t from_at, to_at, bytes; };
static inline GatherPiece fsdp_gather_piece(const Fsdp *f, GatherSource g, int u, int i) {
  const Unit *q = &f->lay.unit[u];
  const Piece *c = &q->piece[i];
  return GatherPiece{(g.secondary ? q->secondary_at : q->params_at) + c->shard_at * g.widen, q->slot_at + c->full_at,
                     (size_t)c->numel * g.widen * dtype_bytes(c->dtype)};
}
#define EACH_UNIT_OF_STAGE(f, s, u) \
  for (int u = (f)->lay.stage[s].first_unit; u < (f)->lay.stage[s].first_unit + (f)->lay.stage[s].units; u++)
#define EACH_PIECE_OF_STAGE(f, s, u, i) \
  EACH_UNIT_OF_STAGE(f, s, u) \
    for (int i = 0; i < (f)->lay.unit[u].pieces; i++)

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
    f->ctx->ops->copy(&f->gather_ctx, f->mem.work + p.from_at, slot->data + p.to_at + (size_t)g.group->me * p.bytes,
                      p.bytes);
  }
  f->gather.secondary_valid[s] = true;
  f->gather.secondary_number[s] = ++f->gather.secondary_count;
}

// ---- sums along the replicas
// The replica whose sum this one goes on from: the one before; for the first one the last, of the reduction before.
static inline int chain_before(const Fsdp *f) {
  const RankGroup *g = &f->mesh.replicate;
  return g->rank[(g->me + g->size - 1) % g->size];
}
// Whether this rank's sum of the last reduction goes back to the first replica before this one overwrites it.
static inline bool chain_returns(const Fsdp *f) {
  return !f->job.first && f->mesh.replicate.me == f->mesh.replicate.size - 1;
}
static inline size_t chain_at(const Fsdp *f, ReduceSpan x) {                  // in working memory
  return f->lay.part[WORK_SUMS].at + (size_t)(f->lay.unit[x.unit].sum_base + x.first) * sizeof(float);
}
static inline void chain_count(Fsdp *f, int64_t n) { f->traffic.replicate_bytes += n * 4; }
// Along hosts: which way a sum goes.
enum HostsMove { HOSTS_SEND, HOSTS_RECEIVE };
