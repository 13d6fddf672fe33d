// fsdp.h: fully sharded data parallelism (ZeRO-3) and every mode around it, inlined. Parameters, gradients and
// optimizer state are cut over the ranks; what the model needs is gathered just before it computes and its gradient is
// reduced just after. Rajbhandari et al. 2020 (ZeRO), Zhao et al. 2023 (PyTorch FSDP), Wang et al. 2024 (ZeRO++).
//
//   1 memory     MemoryPlan: every byte is planned under a name, printed, then taken under it (fsdp/memory_plan.h)
//   2 mesh       replicas x shards: who is where (fsdp/mesh.h)
//   3 units      parameters -> units -> pieces: which rank owns which elements, as data (fsdp/units.h)
//   4 transport  the comm table: self, mpi or nccl (fsdp/transport.h); all traffic is counted there
//   5 gather     fsdp_gather / fsdp_wait / fsdp_weight / fsdp_release
//   6 reduce     fsdp_grads / fsdp_grad / fsdp_reduce: ordered, so that N ranks give bit for bit what one rank gives
//   7 state      norm, update, E4M3 scales, initialisation, reading and writing of shards (fsdp/sharded_state.h)
//
// What the model code sees, for stage s (0: outside the blocks, 1 + l: block l) and parameter p:
//   fsdp_gather(f,s) start   fsdp_wait(f,s)   fsdp_weight(f,p) -> whole, in the compute dtype   fsdp_release(f,s)
//   fsdp_grads(f,s)          fsdp_grad(f,p) -> its gradient, whole; no data if frozen           fsdp_reduce(f,s) start
//   fsdp_poll(f) between ops, so that messages move while we compute
//
// Modes. There is one schedule; a mode is numbers in it:
//   full_shard (zero3)      mesh 1 x N; K gather slots: a block is gathered for its forward and again for its backward
//   shard_grad_op (zero2)   K = L slots: every block is gathered once a step
//   zero1                   that, and gradients are added up whole on each rank: one reduction and one gather a step
//   hybrid_shard            mesh R x S: all of it inside a replica, and sums of shards passed along the replicas
//   no_shard (ddp)          mesh N x 1: a shard is the whole, nothing is gathered
//   reshard_after_forward   on: K slots, off: K = L, G: a block's first gather of a step leaves 1/G of it on every
//                           rank, and later ones only ask the G neighbours that hold the rest
//   dtypes                  stored and gathered in param_dtype (matrices in E4M3 with fp8), computed in compute_dtype,
//                           reduced in wire_dtype; what is gathered in another dtype is expanded after its arrival.
//                           Masters are fp32: the parameter itself, or kept beside it, or of bf16 what it lacks of them
//   offload                 masters, moments and gradient shards lie in host memory, and parameter shards if asked
//   in place                where every shard group lies on one host and shares its memory (CPU, windows): the parts of
//                           a unit lie there one behind the other, as a gather would lay them, so the unit is whole
//                           already and weights are read from there. No gather, no slot; nothing needs to be kept.
//                           Nobody writes there but each rank its part, in its update, when all have read.
//                           One rank whose gradients need no rounding for the wire sums them in its shard
//
// Devices. Everything an op touches is device memory; on a CPU that is host memory. Three streams: the model's, one for
// gathers, one for reductions, ordered by events; the host waits for them only where it takes part itself (messages,
// windows, an offloaded optimizer). On a CPU a call is done when it returns, so streams and events are nothing there;
// the schedule is the same text. Whoever adds an access to memory that another stream touches adds the wait that orders
// it; an access that no op makes is told to the record where it happens (fsdp/record.h). The tests remove each wait
// once and must then fail.
//
// Traffic, per rank and step, for a mesh of R x S, L blocks, K gather slots, A microbatches a rank, r this rank's
// replica, F the lowest block whose backward is needed (0 unless the ones below and the embeddings are frozen).
// |u|: what a rank's shard of unit u puts on the wire, padding between ranks included: elements e(u) of what trains,
// bytes g(u) as gathered. b: bytes of the wire dtype. l' = min(F, L - K).
//   gathers of block l      1 + A [l' <= l < L - K] + (A-1) [not l' <= l < K], of everything else 1
//                           each (S-1) g(u); with reshard G all but the first (G-1) (S/G) g(u)
//                           none where shards are read in place: nothing is moved
//   reductions of u         A, or 1 if accumulated locally; each (S-1) e(u) b; none if all of u is frozen, or if one
//                           rank sums its gradient in its shard
//   along the replicas      fp32 partial sums of shards: 4 s(u) for each reduction, less the first of replica 0; the
//                           whole once more to all but the last replica. native: 2 (R-1)/R of 4 s(u), once a step.
//                           s(u): e(u) and the gaps that align pieces in a shard
//   small                   one all-gather (norm, losses, stop flag); over mpi a barrier too; fp8: one of maxima
// With L blocks in one unit each, A reductions, no freezing and R = 1 that is, in bytes, f = (N-1)/N, U a block, P all:
//   f (root b_p + (L + (2A-1) max(L-K,0)) U b_p + A P b_r); in place f A P b_r
// Memory: see fsdp_declare (fsdp/layout.h). fsdp_formula states the traffic as code, a test compares it with the
// counters of part 4.
//
// Bit-identity: the owner adds contributions in order of the global microbatch m = a N + rank, each first rounded to
// the wire dtype (its own too, and at N = 1): one left fold, the same for every N that divides the number of
// microbatches, every mesh, layout, wrap and slot count. Replicas pass the running sum on, in order. Only --reduce
// native gives the order away, to NCCL, and --accumulate local adds a rank's own microbatches first.
#pragma once
#include "kernels/ops.h"
#include "kernels/all.h"
#include "kernels/cpu/threads.h"
#include <errno.h>
#include <fnmatch.h>
#include <mpi.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <time.h>
#include "fsdp/liveness.h"

static inline double now_ms() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}
static inline int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// ================================================================================================ 1 memory
#include "fsdp/memory_plan.h"

// ================================================================================================ 2 mesh
#include "fsdp/mesh.h"

// ================================================================================================ 3 units
#include "fsdp/units.h"

// ================================================================================================ state
enum OptimizerKind { OPTIMIZER_ADAMW, OPTIMIZER_SGD };
enum CommKind { COMM_SELF, COMM_MPI, COMM_NCCL };
enum Fp8 { FP8_OFF, FP8_GATHER, FP8_MATMUL };    // matmul: the forward products take E4M3 weights too
enum Offload { OFFLOAD_NONE, OFFLOAD_OPTIMIZER, OFFLOAD_PARAMS };              // params: and the optimizer

struct FsdpConfig {
  Dtype param_dtype, compute_dtype, wire_dtype;
  MeshShape mesh;
  ShardLayout layout;
  WrapPolicy wrap;
  int64_t wrap_least;                            // of WRAP_MIN_PARAMS
  int blocks, gather_slots;                      // L, K
  int first_backward;                            // F: no block below it is visited by a backward
  int64_t microbatches;                          // A, of a rank and step
  bool local;                                    // gradients add up whole on each rank and are reduced once a step
  Fp8 fp8;
  Offload offload;
  const Ops *host_ops;                           // of the host's optimizer when it is offloaded
  bool share_slots;                              // the model's buffers may lie where gradient slots do (placement.h)
  size_t slots_bytes, pool_bytes;                // of the pool that has both, if so; of the pool of own buffers; 0: as
                                                 // many as the sharding layer has there
  OptimizerKind optimizer;
  CommKind comm;
  bool windows, copies;                          // COMM_MPI: ranks of one host read each other's memory; copies:
                                                 // parameters are copied from there, not read in place
  bool comms_of_one;                             // COMM_NCCL: one rank tells itself all by NCCL (what a test asks of
                                                 // one GPU), instead of nothing
  bool native_reduce;                            // COMM_NCCL: NCCL's sums instead of the ordered ones
  size_t small_bytes;                            // what the step's small all-gather takes from each rank
  bool weights_only;                             // to evaluate and sample: no gradients, no optimizer, no reductions
};

// Traffic as the transport saw it: what this rank received. All ranks together send as much.
struct Traffic { int64_t gathers, reductions, small, gather_bytes, reduce_bytes, replicate_bytes, small_bytes; };
static inline Traffic traffic_add(Traffic x, Traffic y, int sign) {
  return Traffic{x.gathers + sign * y.gathers,
                 x.reductions + sign * y.reductions,
                 x.small + sign * y.small,
                 x.gather_bytes + sign * y.gather_bytes,
                 x.reduce_bytes + sign * y.reduce_bytes,
                 x.replicate_bytes + sign * y.replicate_bytes,
                 x.small_bytes + sign * y.small_bytes};
}

// An event and whether it was recorded since the step began: what was recorded earlier needs no wait, and a captured
// step must not wait for what lies outside it.
struct StepEvent { void *event; bool recorded; };

enum SlotState { SLOT_EMPTY, SLOT_PENDING, SLOT_WHOLE };
// A stage's gathered units, one after the other. landing: pinned host memory where messages arrive that the device must
// fetch. from_kept: the gather in flight asks the kept group.
struct GatherSlot {
  int stage;
  SlotState state;
  bool in_use, from_kept;
  char *data, *landing;
  MPI_Request *requests;
  int pending;
  StepEvent arrived, released;                   // the gather is complete; the model has read it for the last time
};

// The one reduction in flight, of a stage: rounds of at most chunk_numel elements of every owner's shard, unit by unit.
struct ReduceJob {
  bool active, first;                            // first: of the step, overwrites the shard
  int stage, slot, rounds, prepared, consumed;
  uint64_t round0, last_round0;                  // global number of its first round; of the stage's reduction before
};
// Round j of a job: elements [first, first + numel) of unit u's shards.
struct ReduceSpan { int unit; int64_t first, numel; };

// Parts of working memory, and where they lie in it. on_host: in its mirror alone.
enum WorkName { WORK_CONTROL,                    // what the ranks of a host tell each other
                WORK_SUMS,                       // gradient shards that replicas read
                WORK_PARAMS, WORK_KEPT,          // parameter shards; blocks kept after forward
                WORK_STAGING,                    // contributions rounded for the wire
                WORK_SLOTS, WORK_WHOLE,          // gradient slots and what shares with them; whole gradients
                WORK_PARTS };
struct WorkPart { size_t at, bytes; bool on_host; };
// Parts of the pool that this rank's own buffers share with the model's (placement.h).
enum PoolName { POOL_BLOCK_SLOTS, POOL_ROOT_SLOT,        // gather slots
                POOL_EXPANDED, POOL_ROOT_EXPANDED,       // copies in the compute dtype: of one block, of stage 0
                POOL_SUM, POOL_STAGING_IN,               // offloaded: a round's sum; others' contributions
                POOL_PARTS };
struct PoolPlace { bool in_slots; size_t at; };  // of a buffer there; in_slots: of the pool that has gradient slots

// What follows from the configuration and this rank's place in the mesh. Fixed once fsdp_layout and, for offsets,
// fsdp_declare have made it (fsdp/layout.h).
struct FsdpLayout {
  int params, units, stages;
  Param *param;
  Unit *unit;
  Stage *stage;
  bool mirrored;                                 // messages and windows need a copy of what a device has
  bool in_place;                                 // units lie whole where shards do
  bool blocks_alike;                             // all blocks lay out their gradients alike
  bool blocks_in_root;                           // stage 0 has parameters of blocks
  int64_t state_numel, sum_numel;                // of all units: elements of moments; of gradient shards apart
  int64_t master_numel, low_numel;               // of all units: fp32 masters; low halves of masters
  int64_t chunk_numel;                           // of a round, in every owner's shard
  size_t params_bytes;                           // of all units
  size_t grad_slot_bytes, block_slot_bytes, publish_bytes;       // of one slot; of a block's gather slot; of a buffer
  int scales, scales_trained;                    // of E4M3; those that train come first
  // Working memory: what peers may read, and what is sent from. With COMM_MPI they read it in a window of the same
  // layout: on a CPU the window is the working memory, else its mirror in pinned memory. Offsets hold in both.
  WorkPart part[WORK_PARTS];
  size_t work_bytes, work_on_host;               // on_host: of the parts that lie in the mirror alone; they come first
  size_t pool[POOL_PARTS], pool_bytes;           // of each part; of all
  PoolPlace *pool_place;                         // of each block's gather slot, then of the other parts that there are
};

struct Comm;
struct Record;
struct Fsdp {
  Ctx *ctx, gather_ctx, reduce_ctx;              // the model's stream, and those of gathers and reductions
  Ctx host_ctx;                                  // of an offloaded optimizer
  const Comm *comm;                              // transport, see part 4
  MemoryPlan *plan;
  FsdpConfig cfg;
  Mesh mesh;
  FsdpLayout lay;
  // ---- memory: addresses, from fsdp_open on
  char *work, *window;
  char *params_home;                             // where parameter shards lie, at their offsets
  char *host_params;                             // offloaded, where there is no mirror
  MPI_Win win;
  bool has_win;
  float *master, *m, *v, *grads;                 // shards of all units, in order of units
  low16 *low;                                    // of bf16 parameters: with them fp32 masters (kernels/master.cuh)
  char *pool;                                    // of this rank's own buffers and the model's
  float *sum;                                    // offloaded: a round's sum, on the device
  char *publish[2];                              // offloaded: pinned, parameters of a unit on their way to the device
  int64_t *host_limbs;                           // offloaded: pinned, of the norm
  char *block_landings, *root_landing;           // of gather slots
  char *expanded, *root_expanded;                // copies in the compute dtype: of one block, of stage 0
  char *staging_in, *landing_in;                 // others' contributions, on the device and on the host
  char *small_host;                              // pinned: small collectives of a mirrored device
  float *scale, *amax, *amax_all;                // E4M3: [scales] factors; own maxima; of all ranks
  // Of the placement: whether other buffers lie in gradient slots, staging and gradient shards, and where in a training
  // step slots are waited for because of that.
  bool slot_shared[2], staging_shared, *sums_shared;             // [stages]
  const uint8_t *wait;                           // [points of the dry run]
  int points;                                    // of a microbatch
  // ---- gathering
  bool training;                                 // the pass has a backward
  GatherSlot *slot;                              // [K] for blocks, [K] is stage 0's
  int expanded_stage, root_is_expanded;          // 0: none
  bool expanded_matrices;
  bool *kept_valid;                              // [stages] the kept parts are this step's
  uint64_t kept_count, *kept_number;             // [stages]
  // ---- reducing
  ReduceJob job;
  int point;                                     // how many of the step's are past
  int grad_slot;                                 // that the model writes
  int64_t block_reductions;
  uint64_t rounds_started;                       // global round counter, alike on all ranks
  uint64_t *stage_round0;                        // [stages] of the last reduction
  uint64_t *slot_rounds;                         // [3 + L] rounds after which gradient slot s is free
  // ---- events, messages, communicators
  StepEvent began, grads_ready, *grads_free, reduced, exchange_ready, exchanged, mirror_filled, drained, published[2];
  MPI_Request *sends[2], *receives[2], chain_send[2], chain_receive[2], chain_back[2];   // by parity of the round
  MPI_Request *replicate_requests;               // [replicas]
  int sends_pending[2], receives_pending[2], chain_sends[2], chain_receives[2], chain_backs[2];
  void *nccl_gather, *nccl_kept, *nccl_reduce, *nccl_replicate, *nccl_world;
  // ---- who watches
  uint32_t *marks, marks_made[MARKS];            // NULL, or where the device says how far it is (liveness.h)
  void (*background)(void *to);                                  // NULL, or called whenever messages are moved on
  void *background_to;
  Record *record;                                // NULL, or of this run, or of a dry one
  Traffic traffic;
};

// The stream of c has come to `code`.
static inline void fsdp_mark(Fsdp *f, Ctx *c, DeviceMark stream, int code) {
  if (f->marks) c->ops->mark(c, &f->marks[stream], mark_value(++f->marks_made[stream], code));
}
static inline size_t fsdp_wire_bytes(const Fsdp *f) { return dtype_bytes(f->cfg.wire_dtype); }
static inline bool fsdp_trains(const Fsdp *f) { return !f->cfg.weights_only; }
static inline int fsdp_shards(const Fsdp *f) { return f->cfg.mesh.shards; }
// Sums go along the replicas, in their order.
static inline bool fsdp_chains(const Fsdp *f) { return f->cfg.mesh.replicas > 1 && !f->cfg.native_reduce; }
static inline bool fsdp_offloads(const Fsdp *f) { return f->cfg.offload != OFFLOAD_NONE; }
// What a small all-gather takes from each rank, at most.
static inline size_t fsdp_small_most_bytes(const Fsdp *f) {
  const size_t scales = (size_t)f->lay.scales * sizeof(float);
  return scales > f->cfg.small_bytes ? scales : f->cfg.small_bytes;
}
static inline size_t fsdp_moments(const Fsdp *f) { return f->cfg.optimizer == OPTIMIZER_ADAMW ? 2 : 1; }

#include "fsdp/record.h"
#include "fsdp/placement.h"

#include "fsdp/layout.h"

// ================================================================================================ 4 transport
#include "fsdp/transport.h"

// ================================================================================================ 5 gather
static inline int fsdp_slot_number(const Fsdp *f, int s) {
  return s == 0 ? f->cfg.gather_slots : (s - 1) % f->cfg.gather_slots;
}
static inline GatherSlot *fsdp_slot(Fsdp *f, int s) { return &f->slot[fsdp_slot_number(f, s)]; }

// Starts gathering stage s, unless it is still whole in its slot. Block l lives in slot l mod K. Collective: all ranks
// call it for the same stages in the same order.
static inline void fsdp_gather(Fsdp *f, int s) {
  GatherSlot *slot = fsdp_slot(f, s);
  if (slot->stage == s && slot->state != SLOT_EMPTY) return;
  CHECK(!slot->in_use, "stage %d is gathered into a slot that stage %d still uses", s, slot->stage);
  slot->stage = s;
  slot->state = SLOT_PENDING;
  slot->from_kept = f->kept_valid[s];
  const Doing was = doing(f->record, DOING_GATHER, s, 0);
  if (!f->lay.in_place && f->lay.stage[s].units) f->comm->gather_start(f, s, slot);
  doing_again(f->record, was);
}
// Starts gathering the stages that the model will need after s, as far as slots reach.
static inline void fsdp_prefetch(Fsdp *f, int s, int direction, int last) {
  for (int i = 1; i < f->cfg.gather_slots && s != last; i++) fsdp_gather(f, s += direction);
}

// Where a gathered unit lies.
static inline char *fsdp_gathered(const Fsdp *f, int u) {
  const int s = f->lay.unit[u].stage;
  if (f->lay.in_place) return f->params_home + f->lay.unit[u].params_at;
  return f->slot[fsdp_slot_number(f, s)].data + f->lay.unit[u].slot_at;
}
static inline char *fsdp_expanded(const Fsdp *f, int s) { return s ? f->expanded : f->root_expanded; }
// Parameter p in its gathered stage, as it is stored.
static inline Tensor fsdp_stored(const Fsdp *f, int p) {
  const Param *q = &f->lay.param[p];
  const Piece *c = &f->lay.unit[q->unit].piece[q->piece];
  return tensor_of(fsdp_gathered(f, q->unit) + c->full_at + (size_t)q->in_piece * dtype_bytes(c->dtype), c->dtype,
                   q->padded_rows, q->ndim == 2 ? q->shape[1] : -1);
}
static inline Tensor fsdp_scale(const Fsdp *f, int p) { return tensor_of(f->scale + f->lay.param[p].scale, F32, 1); }

// Writes what stage s stores in another dtype once more, in the compute dtype. E4M3 matrices one by one, each has its
// scale; what else there is, piece by piece: fp32 parameters as if they were stored rounded.
static inline void fsdp_expand(Fsdp *f, int s, bool matrices) {
  const Dtype to = f->cfg.compute_dtype;
  for (int u = f->lay.stage[s].first_unit; u < f->lay.stage[s].first_unit + f->lay.stage[s].units; u++) {
    char *base = fsdp_expanded(f, s) + (size_t)f->lay.unit[u].expand_slot_at * dtype_bytes(to);
    for (int i = 0; i < f->lay.unit[u].pieces; i++) {
      const Piece *c = &f->lay.unit[u].piece[i];
      if (!c->expands || c->dtype == F8) continue;
      const int64_t n = c->numel * fsdp_shards(f);
      const Tensor out = tensor_of(base + (size_t)c->expand_at * dtype_bytes(to), to, n);
      const Tensor in = tensor_of(fsdp_gathered(f, u) + c->full_at, c->dtype, n);
      if (c->dtype == F32) param_from_master(f->ctx, out, Tensor{}, in);
      else convert(f->ctx, out, in);
    }
    for (int p = 0; p < f->lay.params && matrices; p++) {
      const Param *q = &f->lay.param[p];
      if (q->unit != u || q->dtype != F8) continue;
      const Piece *c = &f->lay.unit[u].piece[q->piece];
      const int64_t n = q->numel_padded;
      fp8_decode(f->ctx, tensor_of(base + (size_t)(c->expand_at + q->in_piece) * dtype_bytes(to), to, n),
                 reshaped(fsdp_stored(f, p), n), fsdp_scale(f, p));
    }
  }
}

// Tells the record that stage s is whole, or no longer read: what is gathered, and its copy in the compute dtype.
static inline void fsdp_hold_gathered(Fsdp *f, RecordKind kind, int s) {
  const Stage *x = &f->lay.stage[s];
  if (f->record && x->units)
    record_held(f->record, kind, HELD_WEIGHTS, s, fsdp_gathered(f, x->first_unit), x->full_bytes);
}
static inline void fsdp_hold_expanded(Fsdp *f, RecordKind kind, int s) {
  record_held(f->record, kind, HELD_WEIGHTS, s, fsdp_expanded(f, s),
              (size_t)f->lay.stage[s].expand_numel * dtype_bytes(f->cfg.compute_dtype));
}
// Whether the model reads what is gathered of stage s itself, and not only its copy in the compute dtype.
static inline bool fsdp_reads_gathered(const Fsdp *f, int s) {
  bool reads = f->cfg.fp8 == FP8_MATMUL;
  EACH_PIECE_OF_STAGE(f, s, u, i) reads = reads || !f->lay.unit[u].piece[i].expands;
  return reads;
}
static inline void fsdp_point(Fsdp *f);
static inline void fsdp_grads_wait(Fsdp *f, int slot);
// Waits until stage s is whole: its weights may be read until fsdp_release. matrices: E4M3 ones are wanted in the
// compute dtype.
static inline void fsdp_wait(Fsdp *f, int s, bool matrices) {
  fsdp_point(f);
  fsdp_gather(f, s);
  GatherSlot *slot = fsdp_slot(f, s);
  slot->in_use = true;
  const Doing was = doing(f->record, DOING_GATHER, s, 0);
  if (slot->state != SLOT_WHOLE && !f->lay.in_place && f->lay.stage[s].units) f->comm->gather_finish(f, s, slot);
  slot->state = SLOT_WHOLE;
  liveness_stage(s);
  fsdp_hold_gathered(f, RECORD_HOLD, s);
  const bool ready = s ? f->expanded_stage == s && (f->expanded_matrices || !matrices) : f->root_is_expanded;
  doing(f->record, DOING_EXPAND, s, 0);
  if (f->lay.stage[s].expand_numel && !ready) {
    fsdp_expand(f, s, matrices || !s);
    if (!s) f->root_is_expanded = 1;
    else f->expanded_stage = s, f->expanded_matrices = matrices;
  }
  doing_again(f->record, was);
  fsdp_hold_expanded(f, RECORD_HOLD, s);
  if (!fsdp_reads_gathered(f, s)) fsdp_hold_gathered(f, RECORD_FREE, s);
}

// Parameter p, whole, in the compute dtype; rows include the padding rows. Its stage has been waited for.
static inline Tensor fsdp_weight(Fsdp *f, int p) {
  const Param *q = &f->lay.param[p];
  const Unit *u = &f->lay.unit[q->unit];
  const Piece *c = &u->piece[q->piece];
  const GatherSlot *slot = fsdp_slot(f, u->stage);
  CHECK(slot->stage == u->stage && slot->in_use, "%s is read while it is not gathered", q->name);
  if (!c->expands) return fsdp_stored(f, p);
  const size_t b = dtype_bytes(f->cfg.compute_dtype);
  return tensor_of(fsdp_expanded(f, u->stage) + (size_t)(u->expand_slot_at + c->expand_at + q->in_piece) * b,
                   f->cfg.compute_dtype, q->padded_rows, q->ndim == 2 ? q->shape[1] : -1);
}
// An E4M3 matrix as it is stored; its scale is fsdp_scale.
static inline Tensor fsdp_weight_e4m3(Fsdp *f, int p) { return fsdp_stored(f, p); }

// Stage s is not read any more; its slot may take another stage. What lies there stays whole until one does.
static inline void fsdp_release(Fsdp *f, int s) {
  GatherSlot *slot = fsdp_slot(f, s);
  slot->in_use = false;
  if (fsdp_reads_gathered(f, s)) fsdp_hold_gathered(f, RECORD_FREE, s);
  fsdp_hold_expanded(f, RECORD_FREE, s);
  if (!f->lay.in_place) step_event_record(f->ctx, &slot->released);
}

// What was gathered is stale.
static inline void fsdp_forget(Fsdp *f) {
  for (int k = 0; k <= f->cfg.gather_slots; k++) { f->slot[k].state = SLOT_EMPTY; f->slot[k].stage = -1; }
  for (int s = 0; s < f->lay.stages; s++) f->kept_valid[s] = false;
  f->expanded_stage = f->root_is_expanded = 0;
}

// Begins a step, or any other pass over the model: what other streams do from here on comes after all that was asked of
// the model's stream before. A pass takes nothing over from the one before: a replayed graph changes weights and slots
// unseen by the host, and one that is captured must gather everything itself. training: a backward follows each
// forward. Collective.
static inline void fsdp_step_begin(Fsdp *f, bool training) {
  fsdp_forget(f);
  f->training = training;
  memset(f->marks_made, 0, sizeof f->marks_made);
  if (f->record) f->record->pass++;
  for (int k = 0; k <= f->cfg.gather_slots; k++) f->slot[k].arrived.recorded = f->slot[k].released.recorded = false;
  for (int i = 0; i < 2 + f->lay.stages; i++) f->grads_free[i].recorded = false;
  f->comm->step_begin(f);
  f->block_reductions = 0;                       // every pass uses the slots in the order of the record
  f->point = 0;
  for (int slot = 0; slot < 2; slot++) if (f->slot_shared[slot]) fsdp_grads_wait(f, slot);
  for (int s = 0; s < f->lay.stages && f->staging_shared; s++)
    if (f->lay.stage[s].staged) fsdp_grads_wait(f, 2 + s);       // what was sent for it has been read, too
}

// Waits for all that was asked of the model's stream, and meanwhile looks whether NCCL lost a peer: a stream that needs
// it never ends.
static inline void fsdp_sync(Fsdp *f) {
  const Ops *ops = f->ctx->ops;
  bool done = f->cfg.comm != COMM_NCCL;
  if (!done) ops->event_record(f->ctx, f->drained.event);
  for (int spins = 0; !done; f->comm->progress(f)) {
    ops->event_done(f->ctx, f->drained.event, &done);
    if (f->background) f->background(f->background_to);
    if (!done) liveness_pause(&spins, "the GPU", STAGE_NONE);
  }
  ops->sync(f->ctx);
  liveness_arrived();
}

// ================================================================================================ 6 reduce
static inline ReduceSpan fsdp_round_span(const Fsdp *f, int s, int j) {
  int u = f->lay.stage[s].first_unit;
  for (; j >= f->lay.unit[u].rounds; u++) j -= f->lay.unit[u].rounds;
  const int64_t n = f->lay.unit[u].state_numel;
  if (f->lay.unit[u].rounds == 1) return ReduceSpan{u, 0, n};
  return ReduceSpan{u, j * f->lay.chunk_numel, min64(f->lay.chunk_numel, n - j * f->lay.chunk_numel)};
}
static inline ReduceSpan fsdp_span_of(const Fsdp *f, uint64_t round) {
  return fsdp_round_span(f, f->job.stage, (int)(round - f->job.round0));
}

// Lays out round job.prepared, rounded for the wire where that is needed, and gives it away. False if it must wait.
static inline bool fsdp_reduce_prepare(Fsdp *f) {
  ReduceJob *job = &f->job;
  const uint64_t round = job->round0 + (uint64_t)job->prepared;
  if (job->prepared == job->rounds || job->prepared >= job->consumed + 2) return false;
  doing(f->record, DOING_REDUCE, job->stage, round);
  if (!f->comm->round_free(f, round)) return false;
  const ReduceSpan x = fsdp_span_of(f, round);
  const Unit *u = &f->lay.unit[x.unit];
  PieceRun run;
  for (int i = 0; i < u->pieces && f->lay.stage[job->stage].staged; i++) {
    if (!piece_run(u, i, x.first, x.numel, &run)) continue;
    for (int o = 0; o < fsdp_shards(f); o++)
      convert(&f->reduce_ctx,
              tensor_of(f->work + fsdp_contribution_at(f, o, round, x, run), f->cfg.wire_dtype, run.numel),
              tensor_of(f->work + u->grads_at + (size_t)(run.grad_at + o * run.owner_stride) * 4, F32, run.numel));
  }
  f->comm->round_send(f, round, x);
  job->prepared++;
  return true;
}

// Adds all ranks' contributions to a run of the sum, in order of ranks and as many at once as accumulate takes; a
// mirrored device has room for one. In parts that stay in cache where that is not all of them.
static inline void fsdp_add_run(Fsdp *f, float *sum, uint64_t round, ReduceSpan x, PieceRun run, bool overwrite) {
  const size_t b_r = fsdp_wire_bytes(f);
  // In a dry run all contributions lie at one place: the own one and another's tell everything.
  const int all = f->comm == &comm_plan ? (int)min64(fsdp_shards(f), 2) : fsdp_shards(f);
  const int inputs = f->cfg.native_reduce ? 1 : all;
  for (int64_t at = 0; at < run.numel; at += f->lay.chunk_numel) {
    const int64_t n = min64(f->lay.chunk_numel, run.numel - at);
    Summands some = {f->cfg.wire_dtype, 0, {}};
    bool begins = overwrite;
    for (int i = 0; i < inputs; i++) {
      const char *in = f->comm->round_input(f, round, i, x, run) + (size_t)at * b_r;
      if (f->lay.mirrored && i != f->mesh.shard.me) {
        f->ctx->ops->copy(&f->reduce_ctx, f->staging_in, in, (size_t)n * b_r);
        in = f->staging_in;
      }
      some.data[some.count++] = in;
      if (!f->lay.mirrored && i + 1 < inputs && some.count < SUMMANDS_MOST) continue;
      accumulate(&f->reduce_ctx, tensor_of(sum + at, F32, n), some, begins ? OVERWRITE : ADD);
      some.count = 0;
      begins = false;
    }
  }
}
// Adds round job.consumed to the own shard if every contribution is there: over ranks in order, so over microbatches in
// order. Of several replicas each adds its own to the sum of those before. Returns whether it did.
static inline bool fsdp_reduce_consume(Fsdp *f) {
  ReduceJob *job = &f->job;
  const uint64_t round = job->round0 + (uint64_t)job->consumed;
  doing(f->record, DOING_REDUCE, job->stage, round);
  if (job->consumed >= job->prepared || !f->comm->round_arrived(f, round)) return false;
  const ReduceSpan x = fsdp_span_of(f, round);
  const Unit *u = &f->lay.unit[x.unit];
  const bool off = fsdp_offloads(f), chain = fsdp_chains(f);
  const bool begins = job->first && (!chain || f->mesh.replicate.me == 0);     // nothing was added yet
  const bool in_whole = f->lay.stage[job->stage].sums_in_whole;
  float *own = in_whole ? NULL : f->grads + u->sum_base + x.first, *sum = off ? f->sum : own;
  const size_t bytes = (size_t)x.numel * sizeof(float);
  doing(f->record, DOING_CHAIN, job->stage, round);
  if (chain && !begins) f->comm->chain_take(f, round, x, sum);
  else if (off && begins) f->ctx->ops->zero(&f->reduce_ctx, sum, bytes);       // the gaps between pieces
  else if (off) f->ctx->ops->copy(&f->reduce_ctx, sum, own, bytes);
  doing(f->record, DOING_REDUCE, job->stage, round);
  PieceRun run;
  for (int i = 0; i < u->pieces; i++) {
    if (!piece_run(u, i, x.first, x.numel, &run)) continue;
    float *to = in_whole ? fsdp_own_gradient(f, x.unit, i) + run.state_at - u->piece[i].state_at
                         : sum + run.state_at - x.first;
    fsdp_add_run(f, to, round, x, run, begins);
    f->traffic.reduce_bytes += (fsdp_shards(f) - 1) * run.numel * (int64_t)fsdp_wire_bytes(f);
  }
  const bool given = chain && f->lay.mirrored;   // chain_give copies it
  if (off && !given) f->ctx->ops->copy(&f->reduce_ctx, own, sum, bytes);
  if (chain) f->comm->chain_give(f, round, x, sum);
  f->comm->round_done(f, round);
  liveness_arrived();
  if (++job->consumed < job->rounds) return true;
  f->comm->reduce_end(f);
  job->active = false;
  return true;
}

// Moves the reduction in flight as far as it goes without waiting. Called between ops.
static inline void fsdp_poll(Fsdp *f) {
  const Doing was = doing(f->record, DOING_REDUCE, 0, 0);
  f->comm->progress(f);
  if (f->background) f->background(f->background_to);
  while (f->job.active && (fsdp_reduce_prepare(f) || fsdp_reduce_consume(f))) {}
  doing_again(f->record, was);
}
static inline void fsdp_reduce_finish(Fsdp *f) {
  for (int spins = 0; f->job.active;) {
    const int before = f->job.prepared + f->job.consumed;
    fsdp_poll(f);
    if (f->job.active && f->job.prepared + f->job.consumed == before)
      liveness_pause(&spins, fsdp_chains(f) ? "the reduction along the replicas" : "the reduction", f->job.stage);
  }
}

// Gradient slots: 0 and 1 for blocks in turn, 2 is stage 0's; whole gradients of block l have 2 + l for their own.
static inline int fsdp_grad_slot(const Fsdp *f, int s) {
  return f->lay.stage[s].grads == GRADS_IN_SLOT ? (int)(f->block_reductions & 1) : 2 + s;
}
// Tells the record that a gradient buffer is complete, or may be written again; and its mirror, which peers read.
static inline void fsdp_hold_gradient(Fsdp *f, RecordKind kind, int s, int slot) {
  if (!f->record) return;
  const bool block = slot < 2;                   // else of stage slot - 2, whole
  const Stage *x = &f->lay.stage[block ? 0 : slot - 2];
  const size_t bytes = block ? f->lay.grad_slot_bytes : (size_t)x->grad_numel * 4;
  const size_t at = block ? f->lay.part[WORK_SLOTS].at + (size_t)slot * bytes : f->lay.unit[x->first_unit].grads_at;
  record_held(f->record, kind, HELD_GRADIENT, s, f->work + at, bytes);
  if (f->lay.mirrored) record_held(f->record, kind, HELD_GRADIENT, s, f->window + at, bytes);
}
// Waits until a gradient slot's memory may be written, with a gradient or what else lies there: everybody has read what
// lay there.
static inline void fsdp_grads_wait(Fsdp *f, int slot) {
  if (f->job.active && f->job.slot == slot) fsdp_reduce_finish(f);
  for (int spins = 0; !f->comm->grads_free(f, slot); fsdp_poll(f))
    liveness_pause(&spins, "peers that read its gradients", STAGE_NONE);
  liveness_arrived();
  fsdp_hold_gradient(f, RECORD_FREE, 0, slot);
  for (int i = 0; i < 2; i++)                    // what was reduced before has been read before
    if (i != slot && f->slot_rounds[i] <= f->slot_rounds[slot]) fsdp_hold_gradient(f, RECORD_FREE, STAGE_NONE, i);
}
// Bits of the slots that a step waits for at its point number `point`.
static inline int fsdp_waits_at(const Fsdp *f, int point) {
  const int P = f->points;                       // from the second on, every other microbatch is alike
  return !P ? 0 : f->wait[point < P ? point : P + (point - P) % (2 * P)];
}
// A place of the step where the placement may have it wait for gradient slots.
static inline void fsdp_point(Fsdp *f) {
  record_point(f->record);
  const int waits = f->training ? fsdp_waits_at(f, f->point++) : 0;
  for (int slot = 0; slot < 2; slot++) if (waits >> slot & 1) fsdp_grads_wait(f, slot);
}
// Zeroes what lies between the parameters of stage s's gradient in a slot, or in the shard it is summed in.
static inline void fsdp_zero_gaps(Fsdp *f, int s, int slot) {
  const int64_t b = (int64_t)fsdp_wire_bytes(f);
  EACH_PIECE_OF_STAGE(f, s, u, i) {
    const Piece *c = &f->lay.unit[u].piece[i];
    char *piece = f->lay.stage[s].grads == GRADS_IN_SHARD ? (char *)(f->grads + f->lay.unit[u].sum_base + c->state_at)
                                            : f->work + fsdp_unit_grads_at(f, u, slot) + c->grad_at * b;
    int64_t at = 0;                              // parameters lie in a piece in their order
    for (int p = 0; p < f->lay.params && c->trains; p++) {
      const Param *q = &f->lay.param[p];
      if (q->unit != u || q->piece != i) continue;
      if (q->in_piece > at) f->ctx->ops->zero(f->ctx, piece + at * b, (size_t)((q->in_piece - at) * b));
      at = q->in_piece + q->numel_padded;
    }
    const int64_t end = round_up(fsdp_shards(f) * c->numel, PARAM_ALIGN_NUMEL);
    if (c->trains && end > at) f->ctx->ops->zero(f->ctx, piece + at * b, (size_t)((end - at) * b));
  }
}
// Zeroes what aligns pieces in the shards of stage s: reductions write all else.
static inline void fsdp_zero_shard_gaps(Fsdp *f, int s) {
  EACH_PIECE_OF_STAGE(f, s, u, i) {
    const Piece *c = &f->lay.unit[u].piece[i];
    float *const end = f->grads + f->lay.unit[u].sum_base + c->state_at + c->numel;
    const int64_t gap = round_up(c->numel, PARAM_ALIGN_NUMEL) - c->numel;
    if (c->trains && gap) f->ctx->ops->zero(f->ctx, end, (size_t)gap * sizeof(float));
  }
}
// Makes stage s's gradient buffer ready to be written: waits until the reduction that used the memory before has been
// read by everybody. Gaps, which reductions or the norm read too, may hold logits, activations or another block's
// gradient.
static inline void fsdp_grads(Fsdp *f, int s) {
  const int slot = f->grad_slot = fsdp_grad_slot(f, s);
  const GradHome home = f->lay.stage[s].grads;
  if (home == GRADS_NONE) return;
  if (f->sums_shared[s] && home == GRADS_IN_SHARD) fsdp_zero_gaps(f, s, slot);
  if (f->sums_shared[s] && home != GRADS_IN_SHARD) fsdp_zero_shard_gaps(f, s);
  if (home == GRADS_IN_SHARD) return;
  fsdp_grads_wait(f, slot);
  if (home == GRADS_WHOLE || (f->lay.blocks_alike && !f->slot_shared[slot])) return;
  fsdp_zero_gaps(f, s, slot);
}
// The whole gradient of parameter p, in the buffer that fsdp_grads made ready: in the wire dtype, or fp32 where it is
// added to, as it is in the gradient shard of one rank. data is NULL if p is frozen.
static inline Tensor fsdp_grad(Fsdp *f, int p) {
  const Param *q = &f->lay.param[p];
  const Unit *u = &f->lay.unit[q->unit];
  const GradHome home = f->lay.stage[u->stage].grads;
  const Piece *c = &u->piece[q->piece];
  const Dtype dtype = home == GRADS_IN_SLOT ? f->cfg.wire_dtype : F32;
  char *data = NULL;
  if (!q->frozen && home == GRADS_IN_SHARD) data = (char *)(f->grads + u->sum_base + c->state_at + q->in_piece);
  else if (!q->frozen) {
    const int slot = home == GRADS_WHOLE ? fsdp_grad_slot(f, u->stage) : f->grad_slot;
    data = f->work + fsdp_unit_grads_at(f, q->unit, slot) + (size_t)(c->grad_at + q->in_piece) * dtype_bytes(dtype);
  }
  return tensor_of(data, dtype, q->padded_rows, q->ndim == 2 ? q->shape[1] : -1);
}
// Whether the a-th microbatch's gradients of stage s overwrite their buffer or are added to it.
static inline Accumulate fsdp_grad_mode(const Fsdp *f, int s, int a) {
  return a && (f->cfg.local || f->lay.stage[s].grads == GRADS_IN_SHARD) ? ADD : OVERWRITE;
}
// Starts reducing stage s's gradient into the fp32 shards, if this is due. a: this rank's microbatch of `microbatches`
// in the step. Collective.
static inline void fsdp_reduce(Fsdp *f, int s, int a, int microbatches) {
  const GradHome home = f->lay.stage[s].grads;
  if (home == GRADS_NONE || home == GRADS_IN_SHARD || (f->cfg.local && a < microbatches - 1)) return;
  fsdp_reduce_finish(f);
  const int slot = fsdp_grad_slot(f, s);
  ReduceJob *job = &f->job;
  *job = ReduceJob{};
  job->active = true;
  job->first = a == 0 || f->cfg.local;
  job->stage = s;
  job->slot = slot;
  job->rounds = f->lay.stage[s].rounds;
  job->round0 = f->rounds_started;
  job->last_round0 = f->stage_round0[s];
  f->stage_round0[s] = job->round0;
  f->rounds_started += (uint64_t)job->rounds;
  f->slot_rounds[slot] = f->rounds_started;
  f->block_reductions += home == GRADS_IN_SLOT;
  for (int u = f->lay.stage[s].first_unit; u < f->lay.stage[s].first_unit + f->lay.stage[s].units; u++) {
    if (!f->lay.unit[u].state_numel) continue;
    f->traffic.reductions++;
    record_collective(f->record, RECORD_HOST, COLLECTIVE_REDUCE, OVER_NONE, 1, 0);
  }
  f->comm->reduce_start(f);
  fsdp_hold_gradient(f, RECORD_HOLD, s, slot);
  fsdp_mark(f, &f->reduce_ctx, MARK_REDUCE, 1 + s);
  fsdp_poll(f);
}

// ================================================================================================ open and close
static inline void fsdp_open_events(Fsdp *f) {
  Ctx *c = f->ctx;
  for (int k = 0; k <= f->cfg.gather_slots; k++) {
    step_event_open(c, &f->slot[k].arrived, "stage arrived");
    step_event_open(c, &f->slot[k].released, "stage released");
  }
  for (int s = 0; s < 2 + f->lay.stages; s++)
    step_event_open(c, &f->grads_free[s], s < 2 ? "block slot free" : s == 2 ? "root slot free" : "gradient free");
  step_event_open(c, &f->began, "step began");
  step_event_open(c, &f->grads_ready, "gradients ready");
  step_event_open(c, &f->reduced, "reduced");
  step_event_open(c, &f->exchange_ready, "exchange ready");
  step_event_open(c, &f->exchanged, "exchanged");
  step_event_open(c, &f->mirror_filled, "mirror filled");
  step_event_open(c, &f->drained, "drained");
  for (StepEvent &e : f->published) step_event_open(c, &e, "parameters published");
}

// Where the optimizer's state lies and is computed with: the device, or the host.
static inline Ctx *fsdp_state_ctx(Fsdp *f) { return fsdp_offloads(f) ? &f->host_ctx : f->ctx; }

// Opens what takes memory of its own, and notes in the plan how much. Collective, before fsdp_open.
static inline void fsdp_connect(Fsdp *f, MemoryPlan *plan) {
  static const Comm *const comms[] = {&comm_self, &comm_mpi, &comm_nccl};      // by CommKind
  f->plan = plan;
  f->comm = comms[f->cfg.comm];
  f->comm->connect(f);
}
// Takes all memory that the plan has, the caller's too. Collective.
static inline void fsdp_open(Fsdp *f) {
  const int K = f->cfg.gather_slots;
  f->slot = (GatherSlot *)calloc((size_t)K + 1, sizeof(GatherSlot));
  f->comm->open(f);
  memory_take_all(f->ctx, f->plan);
  if (f->host_params) f->params_home = f->host_params - f->lay.part[WORK_PARAMS].at;
  fsdp_open_pool(f);
  for (int k = 0; k <= K; k++)
    f->slot[k].landing = k == K ? f->root_landing
                         : f->block_landings ? f->block_landings + (size_t)k * f->lay.block_slot_bytes : NULL;
  if (f->lay.part[WORK_SUMS].bytes) f->grads = (float *)((f->lay.part[WORK_SUMS].on_host ? f->window : f->work) +
                                                     f->lay.part[WORK_SUMS].at);
  f->amax = f->scale + f->lay.scales;
  f->amax_all = f->amax + f->lay.scales;
  f->host_ctx.ops = f->cfg.host_ops;
  f->host_ctx.threads = f->ctx->threads;
  fsdp_open_events(f);
}

// Frees what fsdp_layout took.
static inline void fsdp_layout_free(Fsdp *f) {
  for (int u = 0; u < f->lay.units; u++) free(f->lay.unit[u].piece);
  void *const owned[] = {f->slot, f->lay.unit, f->lay.param, f->lay.stage, f->kept_valid, f->kept_number,
                         f->stage_round0, f->slot_rounds, f->grads_free, f->sums_shared, f->lay.pool_place};
  for (void *p : owned) free(p);
  mesh_close(&f->mesh);
  memset(f, 0, sizeof *f);
}
// Gives back all memory that the plan had.
static inline void fsdp_close(Fsdp *f) {
  Ctx *c = f->ctx;
  for (int k = 0; k <= f->cfg.gather_slots; k++) {
    c->ops->event_close(c, f->slot[k].arrived.event);
    c->ops->event_close(c, f->slot[k].released.event);
  }
  StepEvent *const events[] = {&f->began, &f->grads_ready, &f->reduced, &f->exchange_ready, &f->exchanged,
                               &f->mirror_filled, &f->drained, &f->published[0], &f->published[1]};
  for (StepEvent *e : events) c->ops->event_close(c, e->event);
  for (int s = 0; s < 2 + f->lay.stages; s++) c->ops->event_close(c, f->grads_free[s].event);
  f->comm->close(f);
  memory_give_back_all(c, f->plan);
  fsdp_layout_free(f);
}

// ================================================================================================ 7 state
#include "fsdp/sharded_state.h"

// ================================================================================================ dry runs
#include "fsdp/dry_run.h"
