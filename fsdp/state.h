// state.h: what the sharding layer is configured with, what follows from that once and for all, and what changes while
// it runs: struct Fsdp, which every part of it works on.
#pragma once
#include "kernels/all.h"
#include "liveness.h"
#include "memory_plan.h"
#include "mesh.h"
#include "units.h"

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
  FlightCollective gather;                       // the last one into it
  StepEvent arrived, released;                   // the gather is complete; the model has read it for the last time
};

// The one reduction in flight, of a stage: rounds of at most chunk_numel elements of every owner's shard, unit by unit.
struct ReduceJob {
  bool active, first;                            // first: of the step, overwrites the shard
  int stage, slot, rounds, prepared, consumed;
  uint64_t round0, last_round0;                  // global number of its first round; of the stage's reduction before
  FlightCollective collective;
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
  FlightCollective *slot_collective;             // [3 + L] of this step, the last reduction from there
  // ---- events, messages, communicators
  StepEvent began, grads_ready, *grads_free, reduced, exchange_ready, exchanged, mirror_filled, drained, published[2];
  MPI_Request *sends[2], *receives[2], chain_send[2], chain_receive[2], chain_back[2];   // by parity of the round
  MPI_Request *replicate_requests;               // [replicas]
  int sends_pending[2], receives_pending[2], chain_sends[2], chain_receives[2], chain_backs[2];
  void *nccl_gather, *nccl_kept, *nccl_reduce, *nccl_replicate, *nccl_world;
  // ---- who watches
  uint32_t *marks, passes_marked;                // NULL, or where the device says how far it is (liveness.h)
  void (*meanwhile)(Fsdp *f);                    // fsdp_poll: what a transport does while it waits
  void (*background)(void *to);                                  // NULL, or called whenever messages are moved on
  void *background_to;
  Record *record;                                // NULL, or of this run, or of a dry one
  Traffic traffic;
};

// The stream of c has come to `code`.
static inline void fsdp_mark(Fsdp *f, Ctx *c, DeviceMark stream, int code) {
  if (!f->marks) return;
  const uint32_t number = stream == MARK_MODEL ? ++f->passes_marked : (uint32_t)flight.begun;
  c->ops->mark(c, &f->marks[stream], mark_value(number, code));
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
