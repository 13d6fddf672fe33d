// fsdp.h: fully sharded data parallelism (ZeRO-3) and every mode around it, inlined. Parameters, gradients and
// optimizer state are cut over the ranks; what the model needs is gathered just before it computes and its gradient is
// reduced just after. Rajbhandari et al. 2020 (ZeRO), Zhao et al. 2023 (PyTorch FSDP), Wang et al. 2024 (ZeRO++).
//
//   1 memory     MemoryPlan: every byte is planned under a name, printed, then taken under it (kernels/memory_plan.h)
//   2 mesh       replicas x shards: who is where (kernels/mesh.h)
//   3 units      parameters -> units -> pieces: which rank owns which elements, as data (kernels/units.h)
//   4 transport  the comm table: self, mpi or nccl (kernels/transport.h); all traffic is counted there
//   5 gather     fsdp_gather / fsdp_wait / fsdp_weight / fsdp_release
//   6 reduce     fsdp_grads / fsdp_grad / fsdp_reduce: ordered, so that N ranks give bit for bit what one rank gives
//   7 state      norm, update, E4M3 scales, initialisation, reading and writing of shards (kernels/sharded_state.h)
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
// it, and tells the schedule's log: the tests remove each wait once and must then fail.
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
// Memory: see fsdp_plan. fsdp_formula states the traffic as code, a test compares it with the counters of part 4.
//
// Bit-identity: the owner adds contributions in order of the global microbatch m = a N + rank, each first rounded to
// the wire dtype (its own too, and at N = 1): one left fold, the same for every N that divides the number of
// microbatches, every mesh, layout, wrap and slot count. Replicas pass the running sum on, in order. Only --reduce
// native gives the order away, to NCCL, and --accumulate local adds a rank's own microbatches first.
#pragma once
#include "kernels/ops.h"
#include "kernels/all.h"
#include "kernels/threads.h"
#include <errno.h>
#include <fnmatch.h>
#include <mpi.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <time.h>
#include "kernels/liveness.h"

static inline double now_ms() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}
static inline int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// ================================================================================================ 1 memory
#include "kernels/memory_plan.h"

// ================================================================================================ 2 mesh
#include "kernels/mesh.h"

// ================================================================================================ 3 units
#include "kernels/units.h"

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
  size_t slots_bytes;                            // of the pool that has both, if so
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
struct StepEvent { void *event; bool recorded; int number; };

enum SlotState { SLOT_EMPTY, SLOT_PENDING, SLOT_WHOLE };
// A stage's gathered units, one after the other. landing: pinned host memory where messages arrive that the device must
// fetch. from_kept: the gather in flight asks the kept group.
struct GatherSlot {
  int stage;
  SlotState state;
  bool in_use, from_kept;
  char *data, *landing;
  size_t bytes;
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

struct Comm;
struct ScheduleLog;
struct Record;
struct Fsdp {
  Ctx *ctx, gather_ctx, reduce_ctx;              // the model's stream, and those of gathers and reductions
  Ctx host_ctx;                                  // of an offloaded optimizer
  const Comm *comm;                              // transport, see part 4
  MemoryPlan *plan;
  FsdpConfig cfg;
  Mesh mesh;
  int params, units, stages;
  Param *param;
  Unit *unit;
  Stage *stage;
  // Working memory: [control | gradient shards of replicas | parameter shards | kept blocks | gradient slots, and where
  // they are shared the pool of both | whole gradients | staging]. With COMM_MPI peers read it in a window of the same
  // layout: on a CPU the window is the working memory, else its mirror in pinned memory. Offsets hold in both.
  // Parameter shards that are read in place come last: all of a group's lie in its first rank's window.
  char *work, *window;
  size_t work_bytes, work_on_host, params_at, kept_at, grads_at, grad_slots_at, grad_slot_bytes;
  size_t staging_at;
  char *params_home;                             // the working memory where parameter shards lie, at its offsets
  MPI_Win win;
  bool has_win, mirrored;
  bool in_place;                                 // units lie whole where shards do, which is decided when laying out
  int64_t state_numel, sum_numel;                // of all units: elements of moments; of gradient shards apart
  int64_t master_numel, low_numel;               // of all units: fp32 masters; low halves of masters
  size_t params_bytes, kept_bytes;               // of all units
  float *master, *m, *v, *grads;                 // shards of all units, in order of units
  low16 *low;                                    // of bf16 parameters: with them fp32 masters (kernels/master.cuh)
  float *sum;                                    // offloaded: a round's sum, on the device
  char *publish[2];                              // offloaded: pinned, parameters of a unit on their way to the device
  int64_t *host_limbs;                           // offloaded: pinned, of the norm
  char *host_state;
  size_t host_state_bytes, publish_bytes;
  GatherSlot *slot;                              // [K] for blocks, [K] is stage 0's
  char *expanded, *root_expanded;                // copies in the compute dtype: of one block, of stage 0
  int expanded_stage, root_is_expanded;          // 0: none
  bool expanded_matrices, training;
  bool *kept_valid;                              // [stages] the kept parts are this step's
  uint64_t kept_count, *kept_number;             // [stages]
  int64_t chunk_numel;
  char *staging_in, *landing_in;                 // others' contributions, on the device and on the host
  char *small_host;                              // pinned: small collectives of a mirrored device
  float *scale, *amax, *amax_all;                // E4M3: [scales] factors; own maxima; of all ranks
  int scales, scales_trained;                    // those that train come first
  MPI_Request *sends[2], *receives[2], chain_send[2], chain_receive[2], chain_back[2];   // by parity of the round
  MPI_Request *replicate_requests;               // [replicas]
  int sends_pending[2], receives_pending[2], chain_sends[2], chain_receives[2], chain_backs[2];
  ReduceJob job;
  uint64_t rounds_started;                       // global round counter, alike on all ranks
  uint64_t *stage_round0;                        // [stages] of the last reduction
  int64_t block_reductions;
  bool blocks_alike;                             // all blocks lay out their gradients alike
  int grad_slot;                                 // that the model writes
  uint64_t *slot_rounds;                         // [3 + L] rounds after which gradient slot s is free
  StepEvent began, grads_ready, *grads_free, reduced, exchange_ready, exchanged, mirror_filled, drained, published[2];
  int events;
  uint32_t *marks, marks_made[MARKS];            // NULL, or where the device says how far it is (liveness.h)
  void *nccl_gather, *nccl_kept, *nccl_reduce, *nccl_replicate, *nccl_world;   // communicators
  void (*background)(void *to);                                  // NULL, or called whenever messages are moved on
  void *background_to;
  ScheduleLog *log;                              // NULL, or where the schedule is recorded
  Record *record;                                // NULL, or of a dry run
  // Of the placement: whether other buffers lie in gradient slots and in gradient shards, and where in a training step
  // slots are waited for because of that. point: how many of the step's are past.
  bool slot_shared[2], *sums_shared;             // [stages]
  const uint8_t *wait;                           // [points of the dry run]
  int points, point;                             // points: of a microbatch
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
// The sum over one rank is what it computes itself. Where nothing is to be rounded for the wire, its gradients are
// written straight into the gradient shard and later microbatches are added to it there: no buffer, no reduction. Only
// gradients that a microbatch adds up itself (stage 0: over the head's chunks) must be complete before they are added,
// and so must those of a device whose sums depend on whether it adds.
static inline bool fsdp_grads_in_place(const Fsdp *f, int s) {
  const FsdpConfig *c = &f->cfg;
  const bool one = f->mesh.world == 1 && !c->comms_of_one && c->wire_dtype == F32 && c->offload == OFFLOAD_NONE;
  return one && (c->local || c->microbatches == 1 || (s && c->wrap == WRAP_BLOCK && !f->ctx->ops->nccl));
}
// Gradients that are added to, over the head's chunks or over microbatches, are fp32 and lie in a buffer of their own;
// the others are written once, in the wire dtype, into one of two slots.
static inline bool fsdp_stage_whole(const Fsdp *f, int s) { return s == 0 || f->cfg.local; }
static inline bool fsdp_stage_staged(const Fsdp *f, int s) {
  return fsdp_stage_whole(f, s) && f->cfg.wire_dtype != F32;
}
static inline size_t fsdp_largest_slot_bytes(const Fsdp *f) {
  size_t most = 0;
  for (int s = 1; s < f->stages; s++) if (f->stage[s].full_bytes > most) most = f->stage[s].full_bytes;
  return most;
}
static inline int64_t fsdp_largest_expanded(const Fsdp *f) {
  int64_t most = 0;
  for (int s = 1; s < f->stages; s++) most = max64(most, f->stage[s].expand_numel);
  return most;
}
static inline int64_t fsdp_largest_gradient(const Fsdp *f) {
  int64_t most = 0;
  for (int s = 1; s < f->stages; s++) if (!fsdp_grads_in_place(f, s)) most = max64(most, f->stage[s].grad_numel);
  return most;
}
static inline int64_t fsdp_largest_shard(const Fsdp *f) {
  int64_t most = 0;
  for (int u = 0; u < f->units; u++) most = max64(most, f->unit[u].state_numel);
  return most;
}
// Elements of one owner's shard in a round: few on a CPU, where a chunk should stay in cache; over NCCL what keeps
// messages long and, up to 128 shards, the staging of all ranks together below 2^23 elements.
enum { STAGE_NUMEL = 1 << 18, STAGE_NUMEL_NCCL_MOST = 1 << 20, STAGE_NUMEL_NCCL_LEAST = 1 << 16 };
static inline int64_t fsdp_stage_numel(CommKind comm, int shards) {
  if (comm != COMM_NCCL) return STAGE_NUMEL;
  return max64(STAGE_NUMEL_NCCL_LEAST, min64(STAGE_NUMEL_NCCL_MOST, (1 << 23) / shards / 128 * 128));
}
// Elements that arrive and have not been added yet.
static inline size_t fsdp_staging_in_numel(const Fsdp *f) {
  if (!fsdp_trains(f)) return 0;
  const size_t chunk = (size_t)f->chunk_numel, S = (size_t)fsdp_shards(f);
  const size_t nccl = f->cfg.native_reduce ? (size_t)fsdp_largest_shard(f) : 2 * S * chunk;
  if (f->cfg.comm == COMM_NCCL) return S == 1 && !f->cfg.comms_of_one ? 0 : nccl;
  return f->mirrored && S > 1 ? chunk : 2 * (size_t)f->mesh.remote * chunk;
}
// What an offloading device adds up before it goes to the host: a round. NCCL's own sum of a unit is one.
static inline size_t fsdp_sum_bytes(const Fsdp *f) {
  return 4 * (size_t)(f->cfg.native_reduce ? fsdp_largest_shard(f) : f->chunk_numel);
}
// Contributions are rounded for the wire into staging, two rounds of them.
static inline size_t fsdp_staging_out_numel(const Fsdp *f) {
  bool staged = false;
  for (int s = 0; s < f->stages; s++) staged = staged || (f->stage[s].trains && fsdp_stage_staged(f, s));
  return staged && fsdp_trains(f) ? 2 * (size_t)fsdp_shards(f) * (size_t)f->chunk_numel : 0;
}
// Whether the model's buffers may lie where gradient slots do when these are not in use. Not on a mirrored device: all
// of it would have a mirror.
static inline bool fsdp_shares_slots(const Fsdp *f) {
  return f->cfg.share_slots && fsdp_trains(f) && !f->cfg.local && f->grad_slot_bytes && !f->mirrored;
}
// The part of a whole gradient that its owner has, and the shard that its sum makes, are the same elements. So the sum
// is written there, and the shard has no memory of its own, where a step reduces the gradient once and every element of
// the own contribution has been read when its sum is written: what is rounded for the wire, or sent by NCCL, is read in
// a round before; else accumulate reads those of all ranks at once. Nobody else reads that part. It does not go along
// replicas, whose sums come to the shard before the own contribution is added, nor on a mirrored device, which adds one
// rank after the other, nor where shards lie on the host.
static inline bool fsdp_sums_in_whole(const Fsdp *f, int s) {
  const FsdpConfig *c = &f->cfg;
  const bool once = c->local || c->microbatches == 1, apart = c->mesh.replicas > 1 || c->offload != OFFLOAD_NONE;
  const bool read_before = fsdp_stage_staged(f, s) || c->comm == COMM_NCCL;
  return fsdp_trains(f) && fsdp_stage_whole(f, s) && !fsdp_grads_in_place(f, s) && once && !apart &&
         (read_before || (!f->mirrored && c->mesh.shards <= SUMMANDS_MOST));
}
// Elements of shards that lie so.
static inline int64_t fsdp_sums_in_whole_numel(const Fsdp *f) {
  int64_t n = 0;
  for (int u = 0; u < f->units; u++) n += fsdp_sums_in_whole(f, f->unit[u].stage) ? unit_wire_numel(&f->unit[u]) : 0;
  return n;
}
// fp32 elements of the gradients that have a buffer of their own.
static inline int64_t fsdp_whole_grads_numel(const Fsdp *f) {
  int64_t n = 0;
  for (int s = 0; s < f->stages; s++)
    n += fsdp_stage_whole(f, s) && !fsdp_grads_in_place(f, s) ? f->stage[s].grad_numel : 0;
  return fsdp_trains(f) ? n : 0;
}
// With windows, replicas read each other's gradient shards.
static inline bool fsdp_grads_in_work(const Fsdp *f) {
  return fsdp_chains(f) && f->cfg.comm == COMM_MPI && fsdp_trains(f);
}
// Whether they may lie where gradient shards do: where these are the owner's alone, on the device.
static inline bool fsdp_shares_sums(const Fsdp *f) {
  return fsdp_trains(f) && f->sum_numel && !fsdp_offloads(f) && !fsdp_chains(f);
}
// Elements of f->grads before those of stage s.
static inline int64_t fsdp_sums_before(const Fsdp *f, int s) {
  int64_t n = 0;
  for (int u = 0; u < f->units && f->unit[u].stage < s; u++)
    n += fsdp_sums_in_whole(f, f->unit[u].stage) ? 0 : f->unit[u].state_numel;
  return n;
}
// What a small all-gather takes from each rank, at most.
static inline size_t fsdp_small_most_bytes(const Fsdp *f) {
  const size_t scales = (size_t)f->scales * sizeof(float);
  return scales > f->cfg.small_bytes ? scales : f->cfg.small_bytes;
}
static inline size_t fsdp_moments(const Fsdp *f) { return f->cfg.optimizer == OPTIMIZER_ADAMW ? 2 : 1; }

#include "kernels/schedule_log.h"
#include "kernels/record.h"
#include "kernels/placement.h"

// What the ranks of one host tell each other, at the start of each window. Counters only grow.
struct Control {
  alignas(64) uint64_t ready;                    // reduction rounds whose data this rank has laid out
  alignas(64) uint64_t done;                     // reduction rounds this rank has added up
  alignas(64) uint64_t partial;                  // reduction rounds whose sum, so far, lies in this rank's shard
  alignas(64) uint64_t kept;                     // blocks kept after forward, since the start
};
// The control block takes one page, and OpenMPI may start a window anywhere in a page: one more to align it.
enum { CONTROL_PAGE_BYTES = 4096, CONTROL_BYTES = 2 * CONTROL_PAGE_BYTES };

// Of a plan: the working memory, which the host's other ranks see in a window.
static inline size_t fsdp_shared_bytes(const Fsdp *f, const MemoryPlan *m) {
  static const MemoryName lines[] = {MEM_PARAMS,     MEM_KEPT,        MEM_GRAD_SLOTS,
                                     MEM_SLOTS_SHARED, MEM_STAGING_OUT, MEM_CONTROL};
  size_t bytes = f->cfg.offload == OFFLOAD_PARAMS ? f->params_bytes : 0;
  for (MemoryName line : lines) bytes += m->planned_bytes[line];
  if (fsdp_grads_in_work(f)) bytes += (size_t)f->state_numel * 4;
  return bytes + (size_t)fsdp_whole_grads_numel(f) * 4;
}
// The formulas of memory, per rank.
static inline void fsdp_plan(const Fsdp *f, MemoryPlan *m) {
  const size_t b_r = fsdp_wire_bytes(f), b_c = dtype_bytes(f->cfg.compute_dtype);
  const size_t trains = fsdp_trains(f), off = fsdp_offloads(f), on = trains && !off;
  const size_t K = (size_t)f->cfg.gather_slots, chunk = (size_t)f->chunk_numel;
  const size_t slots = f->in_place ? 0 : K * fsdp_largest_slot_bytes(f) + f->stage[0].full_bytes;
  const size_t state = (size_t)f->state_numel * 4, master = (size_t)f->master_numel * 4, moments = fsdp_moments(f);
  const size_t sums = (size_t)f->sum_numel * 4, in_whole = (size_t)fsdp_sums_in_whole_numel(f) * 4;
  const size_t whole = (size_t)fsdp_whole_grads_numel(f) * 4;
  const bool mpi = f->cfg.comm == COMM_MPI, lands = f->mirrored && f->mesh.remote;
  const bool params_on_host = f->cfg.offload == OFFLOAD_PARAMS;
  m->planned_bytes[MEM_PARAMS] = params_on_host ? 0 : f->params_bytes;
  m->planned_bytes[MEM_HOST_PARAMS] = params_on_host && !f->mirrored ? f->params_bytes : 0;
  m->planned_bytes[MEM_KEPT] = f->kept_bytes;
  m->planned_bytes[MEM_MASTER] = off ? 0 : master;
  m->planned_bytes[MEM_MASTER_LOW] = off ? 0 : (size_t)f->low_numel * 2;
  m->planned_bytes[MEM_OPTIMIZER] = on * moments * state;
  m->planned_bytes[MEM_GRADS] = on * (sums + in_whole);
  m->planned_bytes[MEM_HOST_STATE] = off ? f->host_state_bytes : 0;
  m->planned_bytes[MEM_OFFLOAD] = off * fsdp_sum_bytes(f);
  m->planned_bytes[MEM_GATHER_SLOTS] = slots ? slots - f->stage[0].full_bytes : 0;
  m->planned_bytes[MEM_ROOT_PARAMS] = slots ? f->stage[0].full_bytes : 0;
  m->planned_bytes[MEM_EXPANDED] = (size_t)(fsdp_largest_expanded(f) + f->stage[0].expand_numel) * b_c;
  const bool shares = fsdp_shares_slots(f);
  m->planned_bytes[MEM_GRAD_SLOTS] = trains && !f->cfg.local && !shares ? 2 * f->grad_slot_bytes : 0;
  m->planned_bytes[MEM_SLOTS_SHARED] = shares ? f->cfg.slots_bytes : 0;
  m->planned_bytes[in_whole ? MEM_PEERS_GRADS : MEM_ROOT_GRADS] = whole - in_whole;    // alike for all stages
  m->planned_bytes[MEM_STAGING_OUT] = fsdp_staging_out_numel(f) * b_r;
  m->planned_bytes[MEM_STAGING_IN] = fsdp_staging_in_numel(f) * b_r;
  m->planned_bytes[MEM_SCALES] = (size_t)f->scales * 4 * (size_t)(2 + f->mesh.world);
  m->planned_bytes[MEM_CONTROL] = mpi ? CONTROL_BYTES : 0;
  m->planned_bytes[MEM_MIRROR] = f->mirrored ? fsdp_shared_bytes(f, m) : 0;
  m->planned_bytes[MEM_LANDING] =
      (lands ? slots + trains * 2 * (size_t)f->mesh.remote * chunk * b_r : 0) +
      (f->mirrored ? (size_t)(f->mesh.world + 1) * fsdp_small_most_bytes(f) : 0);
}

// How often a step of A microbatches gathers block l: see the top.
static inline int64_t fsdp_block_gathers(const FsdpConfig *c, int l, int A) {
  const int64_t L = c->blocks, K = c->gather_slots, low = min64(c->first_backward, L - K);
  return 1 + (l >= low && l < L - K ? A : 0) + (l >= low && l < K ? 0 : A - 1);
}
// The formulas of traffic, per rank and step of A microbatches a rank.
static inline Traffic fsdp_formula(const Fsdp *f, int A) {
  const int64_t S = fsdp_shards(f), R = f->cfg.mesh.replicas, r = f->mesh.replicate.me, N = f->mesh.world;
  const int64_t b_r = (int64_t)fsdp_wire_bytes(f), G = f->cfg.mesh.kept, reductions = f->cfg.local ? 1 : A;
  Traffic t = {};
  for (int i = 0; i < f->units; i++) {
    const Unit *u = &f->unit[i];
    const int64_t n = u->stage ? fsdp_block_gathers(&f->cfg, u->stage - 1, A) : 1, bytes = unit_wire_bytes(u);
    const int64_t far = u->stage && G ? 1 : n;   // gathers that ask the whole shard group
    if (S > 1 && !f->in_place) {
      t.gathers += n;
      t.gather_bytes += far * (S - 1) * bytes + (n - far) * (G - 1) * (G ? S / G : 0) * bytes;
    }
    if (!u->state_numel || fsdp_grads_in_place(f, u->stage)) continue;
    t.reductions += reductions;
    t.reduce_bytes += reductions * (S - 1) * unit_wire_numel(u) * b_r;
    if (fsdp_chains(f)) t.replicate_bytes += (reductions - (r == 0)) * u->state_numel * 4;
  }
  if (fsdp_chains(f) && r < R - 1) t.replicate_bytes += f->state_numel * 4;
  if (R > 1 && f->cfg.native_reduce) t.replicate_bytes += f->state_numel * 4 * 2 * (R - 1) / R;
  t.small = (f->cfg.comm == COMM_MPI ? 2 : 1) + (f->scales_trained ? 1 : 0);
  t.small_bytes = (N - 1) * ((int64_t)f->cfg.small_bytes + 4 * f->scales_trained);
  return t;
}

// ---- layout
static inline void fsdp_layout_stages(Fsdp *f) {
  f->stages = 1 + f->cfg.blocks;
  f->stage = (Stage *)calloc((size_t)f->stages, sizeof(Stage));
  const int64_t S = fsdp_shards(f);
  for (int i = f->units - 1; i >= 0; i--) f->stage[f->unit[i].stage].first_unit = i;
  for (int i = 0; i < f->units; i++) {
    Unit *u = &f->unit[i];
    Stage *s = &f->stage[u->stage];
    u->slot_at = s->full_bytes;
    u->grad_slot_at = s->grad_numel;
    u->expand_slot_at = s->expand_numel;
    u->state_base = f->state_numel;
    u->master_base = f->master_numel;
    u->low_base = f->low_numel;
    u->sum_base = f->sum_numel;
    s->units++;
    s->full_bytes += u->full_bytes;
    s->grad_numel += u->grad_numel;
    s->expand_numel += u->expand_numel;
    s->trains = s->trains || u->state_numel;
    f->state_numel += u->state_numel;
    f->sum_numel += fsdp_sums_in_whole(f, u->stage) ? 0 : u->state_numel;
    f->master_numel += u->master_numel;
    f->low_numel += u->low_numel;
    f->params_bytes += u->shard_bytes;
    const int64_t kept = f->in_place ? 0 : f->cfg.mesh.kept;
    if (u->stage && kept && fsdp_trains(f)) f->kept_bytes += u->shard_bytes * (size_t)(S / kept);
  }
}
// Whether parameter p's gradient lies at the same place of its block as parameter q's of another one.
static inline bool fsdp_same_gradient(const Fsdp *f, int p, int q) {
  const Param *const pair[2] = {&f->param[p], &f->param[q]};
  int64_t at[2];
  for (int i = 0; i < 2; i++) {
    const Unit *u = &f->unit[pair[i]->unit];
    at[i] = pair[i]->frozen ? -1 : u->grad_slot_at + u->piece[pair[i]->piece].grad_at + pair[i]->in_piece;
  }
  return at[0] == at[1] && pair[0]->numel_padded == pair[1]->numel_padded;
}
// Where all do as the first one, the gaps between parameters of a gradient slot, which reductions read too, stay zero.
static inline bool fsdp_blocks_are_alike(const Fsdp *f) {
  for (int s = 2, p, q; s < f->stages; s++)
    for (p = q = 0;; p++, q++) {
      while (p < f->params && f->unit[f->param[p].unit].stage != 1) p++;
      while (q < f->params && f->unit[f->param[q].unit].stage != s) q++;
      if ((p == f->params) != (q == f->params)) return false;
      if (p == f->params) break;
      if (!fsdp_same_gradient(f, p, q)) return false;
    }
  return true;
}
static inline bool param_is_e4m3(const Param *p, const FsdpConfig *cfg) { return p->linear && cfg->fp8 != FP8_OFF; }
// Dtypes, and numbers of the E4M3 scales: those that train first.
static inline void fsdp_layout_dtypes(Fsdp *f) {
  for (int frozen = 0; frozen <= 1; frozen++) {
    for (int i = 0; i < f->params; i++) {
      Param *p = &f->param[i];
      if (p->frozen != (bool)frozen) continue;
      const bool e4m3 = param_is_e4m3(p, &f->cfg);
      p->dtype = e4m3 ? F8 : f->cfg.param_dtype;
      p->scale = e4m3 ? f->scales++ : -1;
    }
    if (!frozen) f->scales_trained = f->scales;
  }
}

// Where shared-memory windows would lie, and how many bytes are free there; 0 and errno where that cannot be asked.
static inline size_t windows_room(const char **dir) {
  *dir = getenv("OMPI_MCA_osc_sm_backing_directory");
  if (!*dir) *dir = "/dev/shm";
  struct statvfs s;
  return statvfs(*dir, &s) ? 0 : (size_t)s.f_bavail * s.f_frsize;
}
static inline size_t windows_need(size_t bytes) { return bytes + bytes / 20; } // OpenMPI asks for a twentieth more
// What shares memory with gradient slots lies in a window. Returns whether every host has room for that (a container's
// /dev/shm may be 64 MiB); if not, nothing is to be shared, on all ranks alike. Collective.
static inline bool fsdp_shared_slots_fit(const Fsdp *f) {
  if (!fsdp_shares_slots(f) || f->cfg.comm != COMM_MPI) return true;
  MemoryPlan plan = {};
  fsdp_plan(f, &plan);
  unsigned long long mine = fsdp_shared_bytes(f, &plan), host = 0;
  MPI_Allreduce(&mine, &host, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, f->mesh.node);
  const char *dir;
  int here = !f->mesh.windows || f->mesh.node_world == 1 || windows_need((size_t)host) <= windows_room(&dir), all = 0;
  MPI_Allreduce(&here, &all, 1, MPI_INT, MPI_MIN, f->mesh.comm);
  return all;
}

// Lays out units and decides chunks, as rank mesh.rank sees it; allocates nothing big and asks nobody. `mesh` and
// `param` are owned by f from here on.
static inline void fsdp_layout(Fsdp *f, Ctx *ctx, Mesh mesh, FsdpConfig cfg, Param *param, int params) {
  memset(f, 0, sizeof *f);
  f->ctx = ctx;
  f->cfg = cfg;
  f->param = param;
  f->params = params;
  f->mirrored = cfg.comm == COMM_MPI && ctx->ops->nccl;
  f->mesh = mesh;
  if (cfg.comm != COMM_MPI) f->mesh.remote = 0;
  f->in_place = cfg.comms_of_one ? false
                : cfg.mesh.shards == 1 ? cfg.offload != OFFLOAD_PARAMS
                                       : !cfg.copies && !f->mirrored && mesh_shards_share_memory(&f->mesh);
  fsdp_layout_dtypes(f);
  f->unit = units_wrap(param, params, cfg.wrap, cfg.wrap_least, &f->units);
  const LayoutConfig k = {cfg.layout, cfg.compute_dtype, cfg.offload == OFFLOAD_OPTIMIZER, f->in_place,
                          f->mesh.shard.me};
  for (int u = 0; u < f->units; u++) unit_layout(&f->unit[u], u, param, params, k, cfg.mesh.shards);
  fsdp_layout_stages(f);
  f->blocks_alike = fsdp_blocks_are_alike(f);
  f->grad_slot_bytes = align_bytes((size_t)fsdp_largest_gradient(f) * fsdp_wire_bytes(f));
  f->chunk_numel = min64(fsdp_stage_numel(cfg.comm, cfg.mesh.shards), fsdp_largest_shard(f));
  f->publish_bytes = 0;
  for (int u = 0; u < f->units; u++)
    if (f->unit[u].shard_bytes > f->publish_bytes) f->publish_bytes = f->unit[u].shard_bytes;
  if (cfg.offload != OFFLOAD_OPTIMIZER) f->publish_bytes = 0;
  const size_t grads = fsdp_grads_in_work(f) && f->mirrored ? 0 : 1;           // else they lie in the mirror
  f->host_state_bytes = (size_t)f->master_numel * 4 + (size_t)f->low_numel * 2 +
                        (fsdp_moments(f) + grads) * (size_t)f->state_numel * 4 + 2 * f->publish_bytes +
                        NORM_LIMBS * sizeof(int64_t) + 2 * (size_t)max64(f->scales, 1) * sizeof(float);
  f->kept_valid = (bool *)calloc((size_t)f->stages, sizeof(bool));
  f->sums_shared = (bool *)calloc((size_t)f->stages, sizeof(bool));
  f->kept_number = (uint64_t *)calloc((size_t)f->stages, sizeof(uint64_t));
  f->stage_round0 = (uint64_t *)calloc((size_t)f->stages, sizeof(uint64_t));
  f->slot_rounds = (uint64_t *)calloc((size_t)(2 + f->stages), sizeof(uint64_t));
  f->grads_free = (StepEvent *)calloc((size_t)(2 + f->stages), sizeof(StepEvent));
}

// ================================================================================================ 4 transport
#include "kernels/transport.h"

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
  if (!f->in_place && f->stage[s].units) f->comm->gather_start(f, s, slot);
}
// Starts gathering the stages that the model will need after s, as far as slots reach.
static inline void fsdp_prefetch(Fsdp *f, int s, int direction, int last) {
  for (int i = 1; i < f->cfg.gather_slots && s != last; i++) fsdp_gather(f, s += direction);
}

// Where a gathered unit lies.
static inline char *fsdp_gathered(const Fsdp *f, int u) {
  const int s = f->unit[u].stage;
  if (f->in_place) return f->params_home + f->unit[u].params_at;
  return f->slot[fsdp_slot_number(f, s)].data + f->unit[u].slot_at;
}
static inline char *fsdp_expanded(const Fsdp *f, int s) { return s ? f->expanded : f->root_expanded; }
// Parameter p in its gathered stage, as it is stored.
static inline Tensor fsdp_stored(const Fsdp *f, int p) {
  const Param *q = &f->param[p];
  const Piece *c = &f->unit[q->unit].piece[q->piece];
  return tensor_of(fsdp_gathered(f, q->unit) + c->full_at + (size_t)q->in_piece * dtype_bytes(c->dtype), c->dtype,
                   q->padded_rows, q->ndim == 2 ? q->shape[1] : -1);
}
static inline Tensor fsdp_scale(const Fsdp *f, int p) { return tensor_of(f->scale + f->param[p].scale, F32, 1); }

// Writes what stage s stores in another dtype once more, in the compute dtype. E4M3 matrices one by one, each has its
// scale; what else there is, piece by piece: fp32 parameters as if they were stored rounded.
static inline void fsdp_expand(Fsdp *f, int s, bool matrices) {
  const Dtype to = f->cfg.compute_dtype;
  for (int u = f->stage[s].first_unit; u < f->stage[s].first_unit + f->stage[s].units; u++) {
    char *base = fsdp_expanded(f, s) + (size_t)f->unit[u].expand_slot_at * dtype_bytes(to);
    for (int i = 0; i < f->unit[u].pieces; i++) {
      const Piece *c = &f->unit[u].piece[i];
      if (!c->expands || c->dtype == F8) continue;
      const int64_t n = c->numel * fsdp_shards(f);
      const Tensor out = tensor_of(base + (size_t)c->expand_at * dtype_bytes(to), to, n);
      const Tensor in = tensor_of(fsdp_gathered(f, u) + c->full_at, c->dtype, n);
      if (c->dtype == F32) param_from_master(f->ctx, out, Tensor{}, in);
      else convert(f->ctx, out, in);
    }
    for (int p = 0; p < f->params && matrices; p++) {
      const Param *q = &f->param[p];
      if (q->unit != u || q->dtype != F8) continue;
      const Piece *c = &f->unit[u].piece[q->piece];
      const int64_t n = q->numel_padded;
      fp8_decode(f->ctx, tensor_of(base + (size_t)(c->expand_at + q->in_piece) * dtype_bytes(to), to, n),
                 reshaped(fsdp_stored(f, p), n), fsdp_scale(f, p));
    }
  }
}

static inline void fsdp_point(Fsdp *f);
static inline void fsdp_slot_give(Fsdp *f, int slot);
// Waits until stage s is whole: its weights may be read until fsdp_release. matrices: E4M3 ones are wanted in the
// compute dtype.
static inline void fsdp_wait(Fsdp *f, int s, bool matrices) {
  fsdp_point(f);
  fsdp_gather(f, s);
  GatherSlot *slot = fsdp_slot(f, s);
  slot->in_use = true;
  if (slot->state != SLOT_WHOLE && !f->in_place && f->stage[s].units) f->comm->gather_finish(f, s, slot);
  slot->state = SLOT_WHOLE;
  liveness_stage(s);
  const bool ready = s ? f->expanded_stage == s && (f->expanded_matrices || !matrices) : f->root_is_expanded;
  if (!f->stage[s].expand_numel || ready) return;
  fsdp_log_read_stage(f, s);
  fsdp_log_expanded(f, LOG_WRITE, s, matrices);
  fsdp_expand(f, s, matrices || !s);
  if (!s) { f->root_is_expanded = 1; return; }
  f->expanded_stage = s;
  f->expanded_matrices = matrices;
}

// Parameter p, whole, in the compute dtype; rows include the padding rows. Its stage has been waited for.
static inline Tensor fsdp_weight(Fsdp *f, int p) {
  const Param *q = &f->param[p];
  const Unit *u = &f->unit[q->unit];
  const Piece *c = &u->piece[q->piece];
  const GatherSlot *slot = fsdp_slot(f, u->stage);
  CHECK(slot->stage == u->stage && slot->in_use, "%s is read while it is not gathered", q->name);
  if (c->expands) fsdp_log_expanded(f, LOG_READ, u->stage, f->expanded_matrices || c->dtype == F8);
  else fsdp_log_read_stage(f, u->stage);
  if (!c->expands) return fsdp_stored(f, p);
  const size_t b = dtype_bytes(f->cfg.compute_dtype);
  return tensor_of(fsdp_expanded(f, u->stage) + (size_t)(u->expand_slot_at + c->expand_at + q->in_piece) * b,
                   f->cfg.compute_dtype, q->padded_rows, q->ndim == 2 ? q->shape[1] : -1);
}
// An E4M3 matrix as it is stored; its scale is fsdp_scale.
static inline Tensor fsdp_weight_e4m3(Fsdp *f, int p) {
  fsdp_log_read_stage(f, f->unit[f->param[p].unit].stage);
  return fsdp_stored(f, p);
}

// Stage s is not read any more; its slot may take another stage. What lies there stays whole until one does.
static inline void fsdp_release(Fsdp *f, int s) {
  GatherSlot *slot = fsdp_slot(f, s);
  slot->in_use = false;
  fsdp_log_release(f, s, fsdp_slot_number(f, s));
  if (!f->in_place) step_event_record(f, f->ctx, &slot->released);
}

// What was gathered is stale.
static inline void fsdp_forget(Fsdp *f) {
  for (int k = 0; k <= f->cfg.gather_slots; k++) { f->slot[k].state = SLOT_EMPTY; f->slot[k].stage = -1; }
  for (int s = 0; s < f->stages; s++) f->kept_valid[s] = false;
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
  if (f->log) f->log->pass++;
  for (int k = 0; k <= f->cfg.gather_slots; k++) f->slot[k].arrived.recorded = f->slot[k].released.recorded = false;
  for (int i = 0; i < 2 + f->stages; i++) f->grads_free[i].recorded = false;
  f->comm->step_begin(f);
  f->block_reductions = 0;                       // every pass uses the slots in the order of the record
  f->point = 0;
  for (int slot = 0; slot < 2; slot++) if (f->slot_shared[slot]) fsdp_slot_give(f, slot);
  if (training) fsdp_log_lent(f, LOG_WRITE, f->stages);
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
  fsdp_log_sync(f, STREAM_MODEL);
  fsdp_log_report(f);
}

// ================================================================================================ 6 reduce
static inline int fsdp_unit_rounds(const Fsdp *f, int u) {
  const bool ordered_nccl = f->cfg.comm == COMM_NCCL && !f->cfg.native_reduce &&
                            (fsdp_shards(f) > 1 || f->cfg.comms_of_one);
  const bool chunked = f->mesh.remote || fsdp_stage_staged(f, f->unit[u].stage) || ordered_nccl || fsdp_chains(f) ||
                       (fsdp_offloads(f) && !f->cfg.native_reduce);
  const int64_t n = f->unit[u].state_numel;
  return !n ? 0 : chunked ? (int)((n + f->chunk_numel - 1) / f->chunk_numel) : 1;
}
static inline int fsdp_stage_rounds(const Fsdp *f, int s) {
  int rounds = 0;
  for (int u = f->stage[s].first_unit; u < f->stage[s].first_unit + f->stage[s].units; u++)
    rounds += fsdp_unit_rounds(f, u);
  return rounds;
}
static inline ReduceSpan fsdp_round_span(const Fsdp *f, int s, int j) {
  int u = f->stage[s].first_unit;
  for (; j >= fsdp_unit_rounds(f, u); u++) j -= fsdp_unit_rounds(f, u);
  const int64_t n = f->unit[u].state_numel;
  if (fsdp_unit_rounds(f, u) == 1) return ReduceSpan{u, 0, n};
  return ReduceSpan{u, j * f->chunk_numel, min64(f->chunk_numel, n - j * f->chunk_numel)};
}
static inline ReduceSpan fsdp_span_of(const Fsdp *f, uint64_t round) {
  return fsdp_round_span(f, f->job.stage, (int)(round - f->job.round0));
}

// Lays out round job.prepared, rounded for the wire where that is needed, and gives it away. False if it must wait.
static inline bool fsdp_reduce_prepare(Fsdp *f) {
  ReduceJob *job = &f->job;
  const uint64_t round = job->round0 + (uint64_t)job->prepared;
  if (job->prepared == job->rounds || job->prepared >= job->consumed + 2) return false;
  if (!f->comm->round_free(f, round)) return false;
  const ReduceSpan x = fsdp_span_of(f, round);
  const Unit *u = &f->unit[x.unit];
  if (fsdp_stage_staged(f, job->stage)) {
    fsdp_log_grads(f, LOG_READ, STREAM_REDUCE, LOG_GRADS, job->slot);
    fsdp_log_own_part_read(f, round);
    fsdp_log_access(f, LOG_WRITE, STREAM_REDUCE, LOG_STAGED, (int)(round & 1), f->mesh.rank, round);
  }
  PieceRun run;
  for (int i = 0; i < u->pieces && fsdp_stage_staged(f, job->stage); i++) {
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
  const int inputs = f->cfg.native_reduce ? 1 : fsdp_shards(f);
  for (int64_t at = 0; at < run.numel; at += f->chunk_numel) {
    const int64_t n = min64(f->chunk_numel, run.numel - at);
    Summands some = {f->cfg.wire_dtype, 0, {}};
    bool begins = overwrite;
    for (int i = 0; i < inputs; i++) {
      const char *in = f->comm->round_input(f, round, i, x, run) + (size_t)at * b_r;
      if (f->mirrored && i != f->mesh.shard.me) {
        f->ctx->ops->copy(&f->reduce_ctx, f->staging_in, in, (size_t)n * b_r);
        in = f->staging_in;
      }
      some.data[some.count++] = in;
      if (!f->mirrored && i + 1 < inputs && some.count < SUMMANDS_MOST) continue;
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
  if (job->consumed >= job->prepared || !f->comm->round_arrived(f, round)) return false;
  const ReduceSpan x = fsdp_span_of(f, round);
  const Unit *u = &f->unit[x.unit];
  const bool off = fsdp_offloads(f), chain = fsdp_chains(f);
  const bool begins = job->first && (!chain || f->mesh.replicate.me == 0);     // nothing was added yet
  const bool in_whole = fsdp_sums_in_whole(f, job->stage);
  float *own = in_whole ? NULL : f->grads + u->sum_base + x.first, *sum = off ? f->sum : own;
  const size_t bytes = (size_t)x.numel * sizeof(float);
  if (!job->first && !chain) fsdp_log_partial_read(f, round, LOG_SUM, f->mesh.rank);
  if (chain && !begins) f->comm->chain_take(f, round, x, sum);
  else if (off && begins) f->ctx->ops->zero(&f->reduce_ctx, sum, bytes);       // the gaps between pieces
  else if (off) f->ctx->ops->copy(&f->reduce_ctx, sum, own, bytes);
  PieceRun run;
  for (int i = 0; i < u->pieces; i++) {
    if (!piece_run(u, i, x.first, x.numel, &run)) continue;
    float *to = in_whole ? fsdp_own_gradient(f, x.unit, i) + run.state_at - u->piece[i].state_at
                         : sum + run.state_at - x.first;
    fsdp_add_run(f, to, round, x, run, begins);
    f->traffic.reduce_bytes += (fsdp_shards(f) - 1) * run.numel * (int64_t)fsdp_wire_bytes(f);
  }
  fsdp_log_sum_write(f, round, fsdp_log_own_sum(f));
  if (off && !(chain && f->mirrored)) f->ctx->ops->copy(&f->reduce_ctx, own, sum, bytes);      // else chain_give does
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
  f->comm->progress(f);
  if (f->background) f->background(f->background_to);
  while (f->job.active && (fsdp_reduce_prepare(f) || fsdp_reduce_consume(f))) {}
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
  return fsdp_stage_whole(f, s) ? 2 + s : (int)(f->block_reductions & 1);
}
// Waits until a gradient slot's memory may be written: everybody has read what lay there.
static inline void fsdp_grads_wait(Fsdp *f, int slot) {
  if (f->job.active && f->job.slot == slot) fsdp_reduce_finish(f);
  for (int spins = 0; !f->comm->grads_free(f, slot); fsdp_poll(f))
    liveness_pause(&spins, "peers that read its gradients", STAGE_NONE);
  liveness_arrived();
  fsdp_log_grads_begin(f, slot);
}
// Other buffers may lie in the gradient slot from here on.
static inline void fsdp_slot_give(Fsdp *f, int slot) {
  fsdp_grads_wait(f, slot);
  fsdp_log_grads(f, LOG_WRITE, STREAM_MODEL, LOG_GRADS, slot);
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
  for (int slot = 0; slot < 2; slot++) if (waits >> slot & 1) fsdp_slot_give(f, slot);
}
// Zeroes what lies between the parameters of stage s's gradient in a slot, or in the shard it is summed in.
static inline void fsdp_zero_gaps(Fsdp *f, int s, int slot) {
  const int64_t b = (int64_t)fsdp_wire_bytes(f);
  EACH_PIECE_OF_STAGE(f, s, u, i) {
    const Piece *c = &f->unit[u].piece[i];
    char *piece = fsdp_grads_in_place(f, s) ? (char *)(f->grads + f->unit[u].sum_base + c->state_at)
                                            : f->work + fsdp_unit_grads_at(f, u, slot) + c->grad_at * b;
    int64_t at = 0;                              // parameters lie in a piece in their order
    for (int p = 0; p < f->params && c->trains; p++) {
      const Param *q = &f->param[p];
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
    const Piece *c = &f->unit[u].piece[i];
    float *const end = f->grads + f->unit[u].sum_base + c->state_at + c->numel;
    const int64_t gap = round_up(c->numel, PARAM_ALIGN_NUMEL) - c->numel;
    if (c->trains && gap) f->ctx->ops->zero(f->ctx, end, (size_t)gap * sizeof(float));
  }
}
// Makes stage s's gradient buffer ready to be written: waits until the reduction that used the memory before has been
// read by everybody. Gaps, which reductions or the norm read too, may hold logits, activations or another block's
// gradient.
static inline void fsdp_grads(Fsdp *f, int s) {
  const int slot = f->grad_slot = fsdp_grad_slot(f, s);
  const bool in_place = fsdp_grads_in_place(f, s), shared = f->sums_shared[s];
  if (!f->stage[s].trains) return;
  if (shared && in_place) fsdp_zero_gaps(f, s, slot);
  if (shared && !in_place) fsdp_zero_shard_gaps(f, s);
  if (in_place) return;
  fsdp_grads_wait(f, slot);
  if (fsdp_stage_whole(f, s) || (f->blocks_alike && !f->slot_shared[slot])) return;
  fsdp_log_grads(f, LOG_WRITE, STREAM_MODEL, LOG_GRADS, slot);
  fsdp_zero_gaps(f, s, slot);
}
// The whole gradient of parameter p, in the buffer that fsdp_grads made ready: in the wire dtype, or fp32 where it is
// added to, as it is in the gradient shard of one rank. data is NULL if p is frozen.
static inline Tensor fsdp_grad(Fsdp *f, int p) {
  const Param *q = &f->param[p];
  const Unit *u = &f->unit[q->unit];
  const bool whole = fsdp_stage_whole(f, u->stage);
  const Dtype dtype = whole ? F32 : f->cfg.wire_dtype;
  const int slot = whole ? fsdp_grad_slot(f, u->stage) : f->grad_slot;
  const Piece *c = &u->piece[q->piece];
  char *data = NULL;
  if (fsdp_grads_in_place(f, u->stage)) data = (char *)(f->grads + u->sum_base + c->state_at + q->in_piece);
  else data = f->work + fsdp_unit_grads_at(f, q->unit, slot) + (size_t)(c->grad_at + q->in_piece) * dtype_bytes(dtype);
  if (!q->frozen && !fsdp_grads_in_place(f, u->stage)) fsdp_log_gradient(f, u->stage, slot);
  return tensor_of(q->frozen ? NULL : data, dtype, q->padded_rows, q->ndim == 2 ? q->shape[1] : -1);
}
// Whether the a-th microbatch's gradients of stage s overwrite their buffer or are added to it.
static inline Accumulate fsdp_grad_mode(const Fsdp *f, int s, int a) {
  return a && (f->cfg.local || fsdp_grads_in_place(f, s)) ? ADD : OVERWRITE;
}
// Stage s's gradient was summed in place: only the log takes notice.
static inline void fsdp_reduced_in_place(Fsdp *f, int s, int a) {
  const int rounds = fsdp_stage_rounds(f, s);
  const bool adds = a && !f->cfg.local;
  if (adds) fsdp_log_stage_sums(f, LOG_READ, s);
  f->stage_round0[s] = f->rounds_started;
  f->rounds_started += (uint64_t)rounds;
  fsdp_log_stage_sums(f, LOG_WRITE, s);
}

// Starts reducing stage s's gradient into the fp32 shards, if this is due. a: this rank's microbatch of `microbatches`
// in the step. Collective.
static inline void fsdp_reduce(Fsdp *f, int s, int a, int microbatches) {
  fsdp_log_lent(f, LOG_READ, s);
  if (!f->stage[s].trains || (f->cfg.local && a < microbatches - 1)) return;
  if (fsdp_grads_in_place(f, s)) { fsdp_reduced_in_place(f, s, a); return; }
  fsdp_reduce_finish(f);
  const int slot = fsdp_grad_slot(f, s);
  fsdp_log_gradient(f, s, slot);                 // the last write was enqueued before this
  ReduceJob *job = &f->job;
  *job = ReduceJob{};
  job->active = true;
  job->first = a == 0 || f->cfg.local;
  job->stage = s;
  job->slot = slot;
  job->rounds = fsdp_stage_rounds(f, s);
  job->round0 = f->rounds_started;
  job->last_round0 = f->stage_round0[s];
  f->stage_round0[s] = job->round0;
  f->rounds_started += (uint64_t)job->rounds;
  f->slot_rounds[slot] = f->rounds_started;
  f->block_reductions += !fsdp_stage_whole(f, s);
  for (int u = f->stage[s].first_unit; u < f->stage[s].first_unit + f->stage[s].units; u++) {
    if (!f->unit[u].state_numel) continue;
    f->traffic.reductions++;
    fsdp_log_collective(
        f, STREAM_HOST, COLLECTIVE_REDUCE, s, LOG_COMM_NONE,
        (uint64_t)(unit_wire_numel(&f->unit[u]) * (int64_t)fsdp_wire_bytes(f) * (fsdp_shards(f) - 1)));
  }
  f->comm->reduce_start(f);
  fsdp_mark(f, &f->reduce_ctx, MARK_REDUCE, 1 + s);
  fsdp_poll(f);
}

// ================================================================================================ open and close
static inline void fsdp_open_events(Fsdp *f) {
  Ctx *c = f->ctx;
  for (int k = 0; k <= f->cfg.gather_slots; k++) {
    step_event_open(f, c, &f->slot[k].arrived, "stage arrived");
    step_event_open(f, c, &f->slot[k].released, "stage released");
  }
  for (int s = 0; s < 2 + f->stages; s++)
    step_event_open(f, c, &f->grads_free[s], s < 2 ? "block slot free" : s == 2 ? "root slot free" : "gradient free");
  step_event_open(f, c, &f->began, "step began");
  step_event_open(f, c, &f->grads_ready, "gradients ready");
  step_event_open(f, c, &f->reduced, "reduced");
  step_event_open(f, c, &f->exchange_ready, "exchange ready");
  step_event_open(f, c, &f->exchanged, "exchanged");
  step_event_open(f, c, &f->mirror_filled, "mirror filled");
  step_event_open(f, c, &f->drained, "drained");
  for (StepEvent &e : f->published) step_event_open(f, c, &e, "parameters published");
}

// Where the optimizer's state lies and is computed with: the device, or the host.
static inline Ctx *fsdp_state_ctx(Fsdp *f) { return fsdp_offloads(f) ? &f->host_ctx : f->ctx; }

// Takes host memory for what is offloaded, under its lines.
static inline void fsdp_open_offload(Fsdp *f) {
  Ctx *c = f->ctx;
  char *at = f->host_state = (char *)memory_take(c, f->plan, MEM_HOST_STATE, f->host_state_bytes);
  const size_t state = (size_t)f->state_numel * 4;
  f->master = f->master_numel ? (float *)at : NULL;
  at += (size_t)f->master_numel * 4;
  f->low = f->low_numel ? (low16 *)at : NULL;
  at += (size_t)f->low_numel * 2;
  f->m = (float *)at;
  if (fsdp_moments(f) == 2) f->v = (float *)(at + state);
  at += fsdp_moments(f) * state;
  if (fsdp_grads_in_work(f) && f->mirrored) f->grads = (float *)(f->window + f->grads_at);
  else { f->grads = (float *)at; at += state; }
  for (char *&p : f->publish) { p = at; at += f->publish_bytes; }
  f->host_limbs = (int64_t *)at;
  f->sum = (float *)memory_take(c, f->plan, MEM_OFFLOAD, fsdp_sum_bytes(f));
  f->host_ctx = Ctx{};
  f->host_ctx.ops = f->cfg.host_ops;
  f->host_ctx.threads = c->threads;
}
// Opens what takes memory of its own, and notes in the plan how much. Collective, before fsdp_open.
static inline void fsdp_connect(Fsdp *f, MemoryPlan *plan) {
  static const Comm *const comms[] = {&comm_self, &comm_mpi, &comm_nccl};      // by CommKind
  f->plan = plan;
  f->comm = comms[f->cfg.comm];
  f->comm->connect(f);
}
// Takes all memory of the plan's sharding lines. Collective.
static inline void fsdp_open(Fsdp *f) {
  MemoryPlan *plan = f->plan;
  Ctx *c = f->ctx;
  const size_t state = (size_t)f->state_numel * 4, b_c = dtype_bytes(f->cfg.compute_dtype);
  const int K = f->cfg.gather_slots;
  f->slot = (GatherSlot *)calloc((size_t)K + 1, sizeof(GatherSlot));
  for (int k = 0; k <= K && !f->in_place; k++)
    f->slot[k].bytes = k == K ? f->stage[0].full_bytes : fsdp_largest_slot_bytes(f);
  f->comm->open(f);
  if (fsdp_offloads(f)) fsdp_open_offload(f);
  else {
    if (f->master_numel) f->master = (float *)memory_take(c, plan, MEM_MASTER, (size_t)f->master_numel * 4);
    if (f->low_numel) f->low = (low16 *)memory_take(c, plan, MEM_MASTER_LOW, (size_t)f->low_numel * 2);
    if (fsdp_trains(f)) f->m = (float *)memory_take(c, plan, MEM_OPTIMIZER, state);
    if (fsdp_trains(f) && fsdp_moments(f) == 2) f->v = (float *)memory_take(c, plan, MEM_OPTIMIZER, state);
    if (fsdp_grads_in_work(f)) { f->grads = (float *)(f->work + f->grads_at); plan->taken_bytes[MEM_GRADS] += state; }
    else if (fsdp_trains(f)) f->grads = (float *)memory_take(c, plan, MEM_GRADS, (size_t)f->sum_numel * 4);
  }
  for (int k = 0; k <= K; k++)
    f->slot[k].data = (char *)memory_take(c, plan, k == K ? MEM_ROOT_PARAMS : MEM_GATHER_SLOTS, f->slot[k].bytes);
  f->expanded = (char *)memory_take(c, plan, MEM_EXPANDED, (size_t)fsdp_largest_expanded(f) * b_c);
  f->root_expanded = (char *)memory_take(c, plan, MEM_EXPANDED, (size_t)f->stage[0].expand_numel * b_c);
  f->staging_in = (char *)memory_take(c, plan, MEM_STAGING_IN, fsdp_staging_in_numel(f) * fsdp_wire_bytes(f));
  f->scale = (float *)memory_take(c, plan, MEM_SCALES, (size_t)f->scales * 4 * (size_t)(2 + f->mesh.world));
  f->amax = f->scale + f->scales;
  f->amax_all = f->amax + f->scales;
  const size_t small_host_bytes = fsdp_small_most_bytes(f) * (size_t)(f->mesh.world + 1);
  if (f->mirrored) f->small_host = (char *)memory_take(c, plan, MEM_LANDING, small_host_bytes);
  fsdp_open_events(f);
}

// ---- dry runs
// Opens f, which has been laid out, for a dry run over the planning table: its memory is addresses of `r`.
static inline void fsdp_dry_open(Fsdp *f, MemoryPlan *plan, Record *r) {
  f->plan = plan;
  f->comm = &comm_plan;
  f->record = r;
  f->cfg.slots_bytes = 2 * f->grad_slot_bytes;
  f->slot_shared[0] = f->slot_shared[1] = fsdp_shares_slots(f);  // so that the record has the zeroing of gaps
  for (int s = 0; s < f->stages; s++) f->sums_shared[s] = fsdp_shares_sums(f) && !fsdp_sums_in_whole(f, s);
  fsdp_open(f);
}
// Tells the placement which pools there are and what of f lies in them, at the addresses of the dry run. In order of
// addresses.
static inline void fsdp_pools(const Fsdp *f, Placement *p) {
  const size_t slot = f->grad_slot_bytes, sums = (size_t)f->sum_numel * 4;
  p->pool[POOL_ACTS] = PoolSpace{0, SIZE_MAX, true};
  if (fsdp_shares_slots(f)) p->pool[POOL_SLOTS] = PoolSpace{2 * slot, SIZE_MAX, true};
  if (fsdp_shares_sums(f)) p->pool[POOL_SHARDS] = PoolSpace{sums, sums, true};
  for (int k = 0; k < 2 && fsdp_shares_slots(f); k++) {
    const size_t at = (size_t)k * slot;
    placement_fix(p, "gradient slot", k, POOL_SLOTS, at, slot, f->work + f->grad_slots_at + at);
  }
  for (int s = 0; s < f->stages && fsdp_shares_sums(f); s++) {
    const size_t at = (size_t)fsdp_sums_before(f, s) * 4, end = (size_t)fsdp_sums_before(f, s + 1) * 4;
    placement_fix(p, "gradient shard", s, POOL_SHARDS, at, end - at, (char *)f->grads + at);
  }
}
// Follows a placement: sizes of pools, what is shared, and where a training step waits, as long as `train` lives, a dry
// run of `microbatches`.
static inline void fsdp_take_placement(Fsdp *f, const Placement *p, const Pass *train, int microbatches) {
  f->cfg.slots_bytes = p->pool[POOL_SLOTS].bytes;
  f->slot_shared[0] = f->slot_shared[1] = false;
  for (int i = 0; i < p->fixed_count; i++) {
    const FixedBuffer *x = &p->fixed[i];
    if (x->slot) f->slot_shared[x->buffer.layer] = x->shared;
    else f->sums_shared[x->buffer.layer] = x->shared;
  }
  f->wait = train->wait;
  f->points = train->points / microbatches;
}

// Frees what fsdp_layout took.
static inline void fsdp_layout_free(Fsdp *f) {
  for (int u = 0; u < f->units; u++) free(f->unit[u].piece);
  void *const owned[] = {f->slot, f->unit, f->param, f->stage, f->kept_valid, f->kept_number, f->stage_round0,
                         f->slot_rounds, f->grads_free, f->sums_shared};
  for (void *p : owned) free(p);
  mesh_close(&f->mesh);
  memset(f, 0, sizeof *f);
}
static inline void fsdp_close(Fsdp *f) {
  Ctx *c = f->ctx;
  const size_t state = (size_t)f->state_numel * 4, b_c = dtype_bytes(f->cfg.compute_dtype);
  if (fsdp_offloads(f)) {
    memory_give_back(c, MEM_HOST_STATE, f->host_state, f->host_state_bytes);
    memory_give_back(c, MEM_OFFLOAD, f->sum, fsdp_sum_bytes(f));
  } else {
    memory_give_back(c, MEM_MASTER, f->master, (size_t)f->master_numel * 4);
    memory_give_back(c, MEM_MASTER_LOW, f->low, (size_t)f->low_numel * 2);
    memory_give_back(c, MEM_OPTIMIZER, f->m, state);
    memory_give_back(c, MEM_OPTIMIZER, f->v, state);
    if (!fsdp_grads_in_work(f)) memory_give_back(c, MEM_GRADS, f->grads, (size_t)f->sum_numel * 4);
  }
  memory_give_back(c, MEM_EXPANDED, f->expanded, (size_t)fsdp_largest_expanded(f) * b_c);
  memory_give_back(c, MEM_EXPANDED, f->root_expanded, (size_t)f->stage[0].expand_numel * b_c);
  memory_give_back(c, MEM_STAGING_IN, f->staging_in, fsdp_staging_in_numel(f) * fsdp_wire_bytes(f));
  memory_give_back(c, MEM_SCALES, f->scale, (size_t)f->scales * 4 * (size_t)(2 + f->mesh.world));
  memory_give_back(c, MEM_LANDING, f->small_host, fsdp_small_most_bytes(f) * (size_t)(f->mesh.world + 1));
  for (int k = 0; k <= f->cfg.gather_slots; k++) {
    memory_give_back(c, MEM_GATHER_SLOTS, f->slot[k].data, f->slot[k].bytes);
    c->ops->event_close(c, f->slot[k].arrived.event);
    c->ops->event_close(c, f->slot[k].released.event);
  }
  StepEvent *const events[] = {&f->began, &f->grads_ready, &f->reduced, &f->exchange_ready, &f->exchanged,
                               &f->mirror_filled, &f->drained, &f->published[0], &f->published[1]};
  for (StepEvent *e : events) c->ops->event_close(c, e->event);
  for (int s = 0; s < 2 + f->stages; s++) c->ops->event_close(c, f->grads_free[s].event);
  f->comm->close(f);
  fsdp_layout_free(f);
}

// ================================================================================================ 7 state
#include "kernels/sharded_state.h"
