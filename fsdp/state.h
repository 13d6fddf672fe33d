// state.h: the data of the sharding layer: its configuration (FsdpConfig), what follows from it once and for all
// (FsdpLayout), and what changes while it runs (struct Fsdp, which has both).
#pragma once
#include "kernels/all.h"
#include "base/heartbeats.h"
#include "memory_plan.h"
#include "mesh.h"
#include "units.h"

enum OptimizerKind { OPTIMIZER_ADAMW, OPTIMIZER_SGD, OPTIMIZER_MUON };          // Muon: AdamW beside it
enum CommKind { COMM_SELF, COMM_MPI, COMM_NCCL };
enum Fp8 { FP8_OFF, FP8_GATHER, FP8_MATMUL };    // matmul: the forward products take E4M3 weights too
enum BetweenHosts { BETWEEN_AUTO, BETWEEN_CHAIN, BETWEEN_DIRECT };   // how gradients go between hosts (hosts.h)
enum Offload { OFFLOAD_NONE, OFFLOAD_OPTIMIZER, OFFLOAD_PARAMS };              // params: and the optimizer

struct FsdpConfig {
  Dtype param_dtype, compute_dtype, wire_dtype;
  MeshShape mesh;
  ShardLayout layout;
  WrapPolicy wrap;
  int64_t wrap_least;                            // of WRAP_MIN_PARAMS
  int blocks, gather_slots;                      // L blocks, K gather slots for them
  int first_backward;                            // F: backward does not go below this block
  int64_t microbatches;                          // A: microbatches of one rank in one step
  bool local;                                    // each rank adds up whole gradients; they are reduced once a step
  Fp8 fp8;
  Offload offload;
  const Ops *host_ops;                           // the CPU ops of an offloaded optimizer
  bool share_slots;                              // activations may reuse the memory of gradient slots (placement.h)
  size_t slots_bytes, pool_bytes;                // bytes of the two pools that the placement has made: slots with
                                                 // activations, own buffers with activations; 0: not placed yet
  size_t workspace_bytes;                        // what they take more because of the ops' workspace
  OptimizerKind optimizer;
  CommKind comm;
  bool windows, copies;                          // COMM_MPI: ranks of one host read each other's memory; copies:
                                                 // parameters are copied from there, not read in place
  bool comms_of_one;                             // COMM_NCCL: a single rank opens communicators all the same (for
                                                 // tests on one GPU)
  bool native_reduce;                            // COMM_NCCL: NCCL adds, in its own order
  BetweenHosts between;
  size_t small_bytes;                            // bytes that each rank gives to the step's small all-gather
  bool log_layers;                               // norms of each unit are added up in each step (layers.h)
  bool weights_only;                             // evaluation and sampling only: no gradients, optimizer or reductions
};

// What this rank has received, as the transport counted it. All ranks together send as much as they receive.
struct Traffic {
  int64_t gathers, reductions, returns, updates, small;
  int64_t gather_bytes, reduce_bytes, replicate_bytes, update_bytes, small_bytes;
};
static inline Traffic traffic_add(Traffic x, Traffic y, int sign) {
  return Traffic{x.gathers + sign * y.gathers,
                 x.reductions + sign * y.reductions,
                 x.returns + sign * y.returns,
                 x.updates + sign * y.updates,
                 x.small + sign * y.small,
                 x.gather_bytes + sign * y.gather_bytes,
                 x.reduce_bytes + sign * y.reduce_bytes,
                 x.replicate_bytes + sign * y.replicate_bytes,
                 x.update_bytes + sign * y.update_bytes,
                 x.small_bytes + sign * y.small_bytes};
}

// Rounds of updates in flight: one whose matrices come to their owners, one that they compute, one that goes back.
enum { UPDATE_SLOTS = 3 };
// An event, and whether it has been recorded since the step began. An event of an earlier step needs no wait, and a
// captured step must not wait for events outside of it.
struct StepEvent { void *event; bool recorded; };

// Messages that are waited for together.
struct MessageSet { MPI_Request *request; int pending, room; };

enum SlotState { SLOT_EMPTY, SLOT_PENDING, SLOT_WHOLE };
// The memory into which a stage is gathered: its units, one after the other. landing: pinned host memory for messages
// that the device then copies. from_secondary: the gather in flight asks the secondary group, not the shard group.
struct GatherSlot {
  int stage;
  SlotState state;
  bool in_use, from_secondary;
  char *data, *landing;
  MessageSet messages;
  FlightCollective gather;                       // the last one into it
  StepEvent arrived, released;                   // the gather is complete; the model's last read of it
};

// The steps of each round of a reduction (reduce.h).
enum ReduceStep { REDUCE_SEND, REDUCE_BEGIN, REDUCE_FOLD, REDUCE_END, REDUCE_STEPS };
// The reduction in flight (there is at most one), of one stage. It goes in rounds, unit by unit; a round covers at most
// chunk_numel elements of every owner's shard.
struct ReduceJob {
  bool active, first, last;                      // of the stage's in this step; the first one overwrites the shard
  int stage, slot, rounds;
  int past[REDUCE_STEPS];                        // rounds that have taken each step
  int part;                                      // of the round that is folded next, parts that have been
  int64_t moves;                                 // grows with each step
  uint64_t round0, last_round0;                  // number of its first round, and of the stage's last reduction
  FlightCollective collective;
};
// With replicas, a unit's sum of the step on its way back to all of them. round: the last one of the reduction that
// made it. Several can be on their way, in the order in which they began: these are
// [0, begun), of which [0, taken) have come.
struct SumReturn { int unit; uint64_t round; };
struct SumReturns { int begun, taken; SumReturn *of; };
// What one round covers: elements [first, first + numel) of the shards of one unit.
struct ReduceSpan { int unit; int64_t first, numel; };

// The parts of working memory and their places in it. on_host: the part exists only in the mirror on the host.
enum WorkName { WORK_CONTROL,                    // counters by which the ranks of a host wait for each other
                WORK_SUMS,                       // gradient shards that replicas read
                WORK_PARAMS, WORK_SECONDARY,     // parameter shards; secondary shards
                WORK_UPDATES,                    // Muon: matrices that this rank owns, where peers write and read them
                WORK_STAGING,                    // contributions rounded for the wire
                WORK_SLOTS, WORK_WHOLE,          // gradient slots with what reuses them; whole gradients
                WORK_PARTS };
struct WorkPart { size_t at, bytes; bool on_host; };
// Parts of the pool that this rank's own buffers share with the model's (placement.h).
enum PoolName { POOL_BLOCK_SLOTS, POOL_ROOT_SLOT,        // gather slots
                POOL_EXPANDED, POOL_ROOT_EXPANDED,       // copies in the compute dtype: of one block, of stage 0
                POOL_SUM, POOL_STAGING_IN,               // offloaded: a round's sum; others' contributions
                POOL_UPDATES, POOL_ORTHOGONAL,           // Muon: updates on their way; scratch of newton_schulz
                POOL_PARTS };
// Which contributions a rank adds to which sums. A part: what an owner's shard gets in a round. Ranks are numbers in
// the shard group. before, after: from where its sum comes to this rank, and where it goes.
struct HostPart { int owner, before, after; };
// part: those that this rank adds to, in order of owners; own: the one that is its own. It adds the contributions of
// ranks [first, first + ranks). hosts: that sums go along (hosts.h); 0: gradients go straight to their owners, and a
// rank adds those of the whole shard group to its own part. me: this rank's host. begin, end: ranks of the first and
// the last host that add to this rank's shard. adder: [shards] which of this host's ranks adds to an owner's part.
struct HostsLayout {
  int hosts, me, first, ranks, parts, own, begin, end;
  int *adder;
  HostPart *part;
};
// Muon's matrices in the order of their rounds (owned.h). round_first: [rounds + 1] of matrix. in_place: owners' are
// written and read through shared memory. Bytes of one slot of POOL_UPDATES: the runs of a round that are sent or
// received, and the matrix of this rank; of one on the host. work_bytes: of newton_schulz.
struct OwnedMatrix;
struct OwnedLayout {
  int matrices, rounds, slots;
  OwnedMatrix *matrix;
  int *round_first;
  bool in_place;
  size_t stage_bytes, matrix_bytes, host_bytes, work_bytes;
};

// What follows from the configuration and this rank's place in the mesh. fsdp_layout makes it, fsdp_declare adds the
// offsets (layout.h), and after that it does not change.
struct FsdpLayout {
  int params, units, stages;
  Param *param;
  Unit *unit;
  Stage *stage;
  bool mirrored;                                 // a host copy (mirror) of device memory serves messages and windows
  bool in_place;                                 // shards lie so that every unit is whole: nothing is gathered
  bool blocks_alike;                             // gradients of all blocks have the same layout
  bool blocks_in_root;                           // --wrap put parameters of blocks into stage 0
  bool adapters;                                 // LoRA: these train, and what they adapt does not
  int64_t state_numel, sum_numel;                // of all units: elements of a moment; of separate gradient shards
  int64_t second_numel;                          // of all units: elements of the second moment
  int64_t master_numel, low_numel;               // of all units: fp32 masters; low halves of masters
  int64_t chunk_numel;                           // elements of every owner's shard in one round, at most
  size_t params_bytes;                           // of all units
  // of one gradient slot, one block's gather slot, one publish buffer
  size_t grad_slot_bytes, block_slot_bytes, publish_bytes;
  int scales, scales_trained;                    // number of E4M3 scales; those of trained parameters come first
  // Working memory: what peers may read, and what is sent from. With COMM_MPI they read it in a window of the same
  // layout: on a CPU the window is the working memory, else its mirror in pinned memory. Offsets hold in both.
  WorkPart part[WORK_PARTS];
  size_t work_bytes, work_on_host;               // on_host: of the parts that lie in the mirror alone; they come first
  size_t pool[POOL_PARTS], pool_bytes;           // of each part; of all
  size_t *pool_at;                               // of each block's gather slot, then of the other parts that there are
  OwnedLayout owned;
  HostsLayout hosts;
};

// ---- the parts of struct Fsdp
// Addresses, from fsdp_open on, of what fsdp_declare describes and no part below has.
struct FsdpMemory {
  char *work, *window;                           // working memory; its window or mirror
  MPI_Win win;
  bool has_win;
  char *params_home;                             // base of the parameter shards' offsets
  char *host_params;                             // --offload params without a mirror
  char *pool;                                    // of this rank's own buffers and the model's
  float *sum;                                    // offloaded: a round's sum, on the device
  char *expanded, *root_expanded;                // copies in the compute dtype: of one block, of stage 0
  char *staging_in, *landing_in;                 // others' contributions, on the device and on the host
  char *block_landings, *root_landing;           // of gather slots
  char *small_host;                              // pinned: small collectives of a mirrored device
};
// What this rank owns of all units, in order of units, where the optimizer is; and what that needs besides.
struct FsdpShards {
  float *master, *m, *v, *grads;
  low16 *low;                                    // of bf16 parameters: with them fp32 masters (kernels/master.cuh)
  float *scale, *amax, *amax_all;                // E4M3: [scales] factors; own maxima; of all ranks
  int64_t *host_limbs;                           // offloaded: pinned, of the norm
  char *publish[2];                              // offloaded: pinned, parameters of a unit on their way to the device
  StepEvent published[2];
};
// What the placement decided: whether other buffers reuse gradient slots, staging and gradient shards, and at which
// points of a training step that makes it wait for slots.
struct SharedMemory {
  bool slot[2], staging, *sums;                  // [stages]
  const uint8_t *wait;                           // [points of the dry run]
  int points;                                    // of a microbatch
};
struct Gathering {
  bool training;                                 // the pass has a backward
  GatherSlot *slot;                              // [K] for blocks, [K] is stage 0's
  int expanded_stage, root_is_expanded;          // 0: none
  bool expanded_matrices;
  bool *secondary_valid;                         // [stages] the secondary shards are this step's
  uint64_t secondary_count, *secondary_number;   // [stages]
};
struct Reducing {
  int point;                                     // points of the step that are past
  int grad_slot;                                 // the slot that backward writes now
  int64_t block_reductions;
  uint64_t rounds_started;                       // global round counter, alike on all ranks
  uint64_t *stage_round0;                        // [stages] of the last reduction
  uint64_t *slot_rounds;                         // [3 + L] rounds after which gradient slot s is free
  FlightCollective *slot_collective;             // [3 + L] of this step, the last reduction from there
};
// --log_layers.
struct LayerSums {
  int64_t *sums, *host;                          // limbs of this rank's sums, then of all ranks'; these on the host
  int64_t *offloaded;                            // this rank's, on the host, where they are added up
  float *scratch;                                // two chunks of masters, where the optimizer is
};
struct MuonUpdates {
  char *slots, *host, *orthogonal;               // of updates; these on the host; scratch of newton_schulz
  uint64_t rounds;                               // of all steps before, alike on all ranks
  StepEvent ready, whole[UPDATE_SLOTS], back[UPDATE_SLOTS];
  MessageSet messages[UPDATE_SLOTS];
};
struct StepEvents {
  StepEvent began, grads_ready, *grads_free, reduced, exchange_ready, exchanged, mirror_filled, drained;
};
// With COMM_MPI. Those of rounds by parity of the round. parts: along hosts, of each part's sum, then of the own
// result. returns: of each of SumReturns.of.
struct Messages {
  MessageSet sends[2], receives[2], chain_sends[2], chain_receives[2], chain_backs[2], *parts, *returns;
};
// With COMM_NCCL.
struct Communicators { void *gather, *secondary, *reduce, *replicate, *world; };
// What notes (note.h) are of, collectives first. ROUND: contributions of peers; ROOM: memory to reduce in; SLOT: peers
// that read the gradient there. ADDED: a round of a reduction is.
enum NoteOf {
  NOTE_GATHER, NOTE_REDUCTION, NOTE_SMALL, NOTE_SUMS, NOTE_BARRIER, NOTE_UPDATES, NOTE_RETURN, NOTE_JOIN, NOTE_STEP_END,
  NOTE_ROUND, NOTE_ROOM, NOTE_SLOT, NOTE_MESSAGES, NOTE_BACKGROUND
};
enum NotePoint { POINT_BEGIN, POINT_BEGUN, POINT_WAIT, POINT_ASKED, POINT_ARRIVED, POINT_ADDED, POINT_END };
struct Watch {
  void (*note)(struct Fsdp *f, NoteOf of, NotePoint point, int stage);  // NULL, or told each transition (--trace)
  uint32_t *marks, passes_marked;                // NULL, or words in which the device counts its progress
  void (*background)(void *to);                  // NULL, or called whenever messages are moved on
  void *background_to;
};

struct Comm;
struct Record;
struct Fsdp {
  Ctx *ctx, gather_ctx, reduce_ctx;              // the model's stream, and those of gathers and reductions
  Ctx host_ctx;                                  // of an offloaded optimizer
  const Comm *comm;                              // the transport (transport.h)
  MemoryPlan *plan;
  FsdpConfig cfg;
  Mesh mesh;
  FsdpLayout lay;
  FsdpMemory mem;
  FsdpShards shards;
  SharedMemory shared;
  Gathering gather;
  Reducing reduce;
  ReduceJob job;
  SumReturns returns;
  LayerSums layers;
  MuonUpdates muon;
  StepEvents events;
  Messages messages;
  Communicators nccl;
  Watch watch;
  void (*meanwhile)(Fsdp *f);                    // fsdp_poll: what a transport does while it waits
  Record *record;                                // NULL, or the record of this run or dry run
  Traffic traffic;
};

// What the rest of the program asks. shard, replica: numbers of this rank in its groups. comm: of all ranks; host_comm:
// of this host's. in_place: nothing is gathered. along_hosts: so sums travel (hosts.h). adds_locally: a rank its
// microbatches. device_sends: the host only enqueues.
static inline int fsdp_rank(const Fsdp *f) { return f->mesh.rank; }
static inline int fsdp_world(const Fsdp *f) { return f->mesh.world; }
static inline int fsdp_hosts(const Fsdp *f) { return f->mesh.hosts; }
static inline int fsdp_shard(const Fsdp *f) { return f->mesh.shard.me; }
static inline int fsdp_replica(const Fsdp *f) { return f->mesh.replicate.me; }
static inline MPI_Comm fsdp_comm(const Fsdp *f) { return f->mesh.comm; }
static inline MPI_Comm fsdp_host_comm(const Fsdp *f) { return f->mesh.node; }
static inline int fsdp_host_world(const Fsdp *f) { return f->mesh.node_world; }
static inline MeshShape fsdp_mesh(const Fsdp *f) { return f->cfg.mesh; }
static inline bool fsdp_in_place(const Fsdp *f) { return f->lay.in_place; }
static inline bool fsdp_along_hosts(const Fsdp *f) { return f->lay.hosts.hosts; }
static inline bool fsdp_adds_locally(const Fsdp *f) { return f->cfg.local; }
static inline bool fsdp_device_sends(const Fsdp *f) { return f->ctx->ops->nccl && f->cfg.comm != COMM_MPI; }
static inline bool fsdp_has_adapters(const Fsdp *f) { return f->lay.adapters; }
static inline int fsdp_stages(const Fsdp *f) { return f->lay.stages; }
static inline int fsdp_params(const Fsdp *f) { return f->lay.params; }
static inline const Param *fsdp_param(const Fsdp *f, int p) { return &f->lay.param[p]; }
static inline int fsdp_units(const Fsdp *f) { return f->lay.units; }
static inline const Unit *fsdp_unit(const Fsdp *f, int u) { return &f->lay.unit[u]; }

// Marks on the stream of c that it has reached `code`.
static inline void fsdp_mark(Fsdp *f, Ctx *c, DeviceMark stream, int code) {
  if (!f->watch.marks) return;
  const uint32_t number = stream == MARK_MODEL ? ++f->watch.passes_marked : (uint32_t)flight.begun;
  c->ops->mark(c, &f->watch.marks[stream], mark_value(number, code));
}
static inline size_t fsdp_wire_bytes(const Fsdp *f) { return dtype_bytes(f->cfg.wire_dtype); }
static inline bool fsdp_trains(const Fsdp *f) { return !f->cfg.weights_only; }
static inline int fsdp_shards(const Fsdp *f) { return f->cfg.mesh.shards; }
// Whether partial sums are passed from replica to replica.
static inline bool fsdp_chains(const Fsdp *f) { return f->cfg.mesh.replicas > 1 && !f->cfg.native_reduce; }
static inline bool fsdp_offloads(const Fsdp *f) { return f->cfg.offload != OFFLOAD_NONE; }
// --log_layers: bytes of a rank's sums; elements of a chunk, which fit into a cache.
enum { LAYER_SUMS = 3, LAYER_CHUNK = 1 << 16, LAYER_CHUNK_CUDA = 1 << 21 };
static inline size_t fsdp_layers_bytes(const Fsdp *f) {
  return f->cfg.log_layers && fsdp_trains(f) ? (size_t)f->lay.units * LAYER_SUMS * NORM_LIMBS * sizeof(int64_t) : 0;
}
static inline int64_t layer_chunk_numel(const Fsdp *f) {
  return f->ctx->ops->nccl && !fsdp_offloads(f) ? LAYER_CHUNK_CUDA : LAYER_CHUNK;
}
// What a small all-gather takes from each rank, at most.
static inline size_t fsdp_small_most_bytes(const Fsdp *f) {
  const size_t scales = (size_t)f->lay.scales * sizeof(float), layers = fsdp_layers_bytes(f);
  const size_t most = scales > f->cfg.small_bytes ? scales : f->cfg.small_bytes;
  return layers > most ? layers : most;
}
// Moments of the optimizer, at most; of a parameter, which may have fewer (units.h: Piece).
static inline size_t fsdp_moments(const Fsdp *f) { return f->cfg.optimizer == OPTIMIZER_SGD ? 1 : 2; }
static inline int fsdp_param_moments(const Fsdp *f, const Param *p) {
  return f->lay.unit[p->unit].piece[p->piece].moments;
}
