// types.h: the internal types, which only fsdp/ includes: meshes, units, layout (constant after fsdp_declare), run-time
// state, struct Fsdp, the table of a transport, records and placements. The file that has a part's functions describes
// the part.
#pragma once
#include "plan.h"

// ---- mesh.h ---------------------------------------------------------------------------------------------------------
// Another rank. host: the lowest rank on its host. window: where the peer's window is mapped in this process; NULL if
// it is on another host.
struct Peer { int host; char *window; };
// The ranks of a group, in the order of its communicators: rank[i] is a rank of the mesh, rank[me] is this rank.
struct RankGroup { int size, me; int *rank; };
struct Mesh {
  // A communicator for each purpose, so that messages of one never match those of another. node: the ranks of a host.
  MPI_Comm comm, gather_comm, reduce_comm, chain_comm, node;
  int rank, world, node_rank, node_world, hosts;
  MeshShape shape;
  RankGroup shard, replicate, secondary;
  bool windows;                                  // ranks of a host read each other's memory; if not, all send messages
  int remote;                                    // number of peers in the shard group that need messages
  char host[64];
  Peer *peer;                                    // [world]
};

// ---- units.h --------------------------------------------------------------------------------------------------------
// A parameter, and what the layout decides about it. kept: of each of its matrices if it is kept quantized; matrices of
// different types are in different pieces.
struct KeptPlace { int piece; int64_t in_piece; };
struct ParamPlace {
  const Param *param;
  Dtype dtype;                                   // in which it is stored and gathered
  bool owned;                                    // Muon: for each of its matrices one rank computes the update
  int unit, piece, scale;                        // scale: number of its E4M3 scale; -1: it has none
  int64_t in_piece;                              // its first element, counted from the piece's
  KeptPlace kept[3];
  int64_t expand_at;                             // kept quantized: first element in the unit's copy in the compute
                                                 // dtype; -1: it has no copy, ops read its quantization blocks
};
// Rank i of the shard group owns elements [i numel, (i + 1) numel) of a piece. Its parameters are alike: what they are
// stored in, whether and how the optimizer updates them, the first of them says for all. Frozen pieces have no gradient
// and no optimizer state. They come last in a shard, so that gradients and optimizer state have no gaps.
struct Piece {
  const ParamPlace *like;                        // the first of its parameters
  int type;                                      // type of its quantization blocks, never cut between ranks; else 0
  int moments;                                   // of the optimizer: 0 to 2
  int64_t numel;                                 // elements of one rank's part
  // Where the piece starts, in bytes: full_at in the gathered unit, shard_at in a rank's parameter shard.
  size_t full_at, shard_at;
  // Where the piece starts, in elements: state_at in a rank's first moments and gradient shard; master_at in its fp32
  // masters, or, if split, their low halves; grad_at in the unit's whole gradient; expand_at in the unit's copy in the
  // compute dtype; second_at in a rank's second moments.
  int64_t state_at, master_at, grad_at, expand_at;
  int64_t second_at;
  bool has_master;                               // an fp32 master, or the low half of one, is stored beside the shard
  bool split;                                    // has_master: the low halves of masters are stored, not whole ones
  bool expands;                                  // it is stored in another dtype than the compute dtype
};
struct Unit {
  char name[64];
  int stage, params, pieces;
  Piece *piece;
  size_t full_bytes, shard_bytes, slot_at;       // bytes gathered; of one rank's shard; its offset in its stage's slot
  int64_t shard_numel, state_numel;              // of one rank: all elements; the trained ones, which come first
  int64_t second_numel;                          // of one rank: those with a second moment
  int64_t master_numel, low_numel;               // of one rank: fp32 masters; low halves of masters
  int64_t grad_numel, expand_numel;              // whole gradient; copy in the compute dtype
  int64_t grad_slot_at, expand_slot_at;          // elements: where its gradient and copy start in its stage's
  int rounds;                                    // in which its gradient is reduced
  // Where it starts in memory that holds all units one after the other. In elements: moments, second moments, fp32
  // masters, low halves, and gradient shards that are not part of a whole gradient. In bytes: parameter shards,
  // secondary shards, whole gradients.
  int64_t state_base, second_base, master_base, low_base, sum_base;
  size_t params_at, secondary_at, grads_at;
};
// Where backward writes a stage's gradient.
//   in shard   into the gradient shard itself, because this rank is the only one: there is no reduction. Later
//              microbatches are added there, in fp32 (sum_dtype)
//   in slot    into one of two slots, which blocks take alternately, in reduce_dtype, once per microbatch
//   whole      into the stage's own fp32 buffer, because backward adds to it: for each chunk of the head's rows, or for
//              each microbatch
//   in whole   as `whole`, and the gradient shard is this rank's part of that buffer
enum GradHome { GRADS_NONE, GRADS_IN_SHARD, GRADS_IN_SLOT, GRADS_WHOLE, GRADS_SHARD_IN_WHOLE };
static inline bool grads_are_whole(GradHome home) { return home >= GRADS_WHOLE; }
// staged: its gradient is rounded to reduce_dtype in a separate buffer before it is sent. rounds: number of rounds in
// which a reduction of all its units goes. The sizes are sums over its units.
struct Stage {
  int first_unit, units;
  size_t full_bytes;
  int64_t grad_numel, expand_numel;
  bool trains;
  GradHome grads;
  bool staged;
  int rounds;
};
// Of elements [first, first + n) of a gradient shard those that belong to piece i: `numel` elements at state_at. In the
// unit's whole gradient, those of owner o are at grad_at + o owner_stride. Returns false if there are none.
struct PieceRun { int piece; int64_t state_at, grad_at, owner_stride, numel; };

// ---- state.h --------------------------------------------------------------------------------------------------------
// Rounds of Muon updates in flight: in one momenta are sent to the owners, in one owners compute, in one updates
// return.
enum { UPDATE_SLOTS = 3 };
// An event, and whether it has been recorded since the step started. Nobody waits for an event of an earlier step: its
// work is over, and a captured step must not wait for events outside of the capture.
struct StepEvent { void *event; bool recorded; };
// Messages that are waited for together: `pending` requests, in an array with capacity `room`.
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
  FlightCollective gather;                       // the last gather into this slot
  StepEvent arrived, released;                   // the gather is complete; the model's last read of it
};
// The steps of each round of a reduction (reduce.h).
enum ReduceStep { REDUCE_SEND, REDUCE_BEGIN, REDUCE_FOLD, REDUCE_END, REDUCE_STEPS };
// The reduction in flight (there is at most one), of one stage. It goes in rounds, unit by unit; a round covers at most
// chunk_numel elements of every owner's shard.
struct ReduceJob {
  bool active, first, last;                      // first, last reduction of the stage in this step; first: overwrites
                                                 // the gradient shard, later ones add to it
  int stage, buffer, rounds;                     // buffer: of fsdp_grad_buffer
  int past[REDUCE_STEPS];                        // past[s]: number of rounds that have taken step s
  int part;                                      // parts that the round which is folded next has already folded
  int64_t moves;                                 // steps taken by all rounds
  uint64_t round0, last_round0;                  // number of its first round, and of the stage's last reduction
  FlightCollective collective;
};
// With replicas: the broadcast of a unit's reduced gradient to all replicas. round: the last round of the reduction
// that made it. Several broadcasts can be in flight, in the order in which they started: entries [0, begun), of which
// [0, taken) have arrived.
struct SumReturn { int unit; uint64_t round; };
struct SumReturns { int begun, taken; SumReturn *of; };
// What one round covers: elements [first, first + numel) of the shards of one unit.
struct ReduceSpan { int unit; int64_t first, numel; };
// The parts of working memory and their places in it. on_host: the part exists only in the mirror on the host.
enum WorkName { WORK_CONTROL,                    // counters by which the ranks of a host wait for each other
                WORK_SUMS,                       // gradient shards that replicas read
                WORK_PARAMS, WORK_SECONDARY,     // parameter shards; secondary shards
                WORK_UPDATES,                    // Muon: matrices that this rank owns, where peers write and read them
                WORK_STAGING,                    // contributions rounded for communication
                WORK_SLOTS, WORK_WHOLE,          // gradient slots with what reuses them; whole gradients
                WORK_PARTS };
struct WorkPart { size_t at, bytes; bool on_host; };
// Parts of the pool that this rank's own buffers share with the model's (placement.h).
enum PoolName { POOL_BLOCK_SLOTS, POOL_ROOT_SLOT,        // all-gather buffers
                POOL_EXPANDED, POOL_ROOT_EXPANDED,       // copies in the compute dtype: of one block, of stage 0
                POOL_SUM, POOL_STAGING_IN,               // offloaded: a round's sum; others' contributions
                POOL_UPDATES, POOL_ORTHOGONAL,           // Muon: updates on their way; scratch of newton_schulz
                POOL_PARTS };
// Which contributions a rank adds to which sums. A part is what one owner's shard gets in a round. Ranks are numbers in
// the shard group. before: the rank from which the part's partial sum comes to this rank; after: to which it goes.
struct HostPart { int owner, before, after; };
// part: [parts] the parts that this rank adds to, in order of owners; part[own]: this rank's own part. It adds the
// contributions of ranks [first, first + ranks). hosts: number of hosts in the reduction chain (hosts.h), of which this
// rank's is number `me`; 0: gradients go straight to their owners, and a rank adds those of the whole shard group to
// its own part. begin, end: ranks of the first and the last host that add to this rank's shard. adder: [shards] which
// of this host's ranks adds to an owner's part.
struct HostsLayout {
  int hosts, me, first, ranks, parts, own, begin, end;
  int *adder;
  HostPart *part;
};
// Muon's matrices in the order of their rounds (owned.h). round_first: [rounds + 1] a round's first entry of `matrix`.
// in_place: owners' matrices are written and read through shared memory. A slot of POOL_UPDATES has stage_bytes for the
// runs of a round that are sent or received, and matrix_bytes for this rank's matrix; a slot in host memory has
// host_bytes. work_bytes: scratch of newton_schulz.
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
  ParamPlace *place;                             // [params]
  Unit *unit;
  Stage *stage;
  bool mirrored;                                 // a host copy (mirror) of device memory serves messages and windows
  bool in_place;                                 // shards are so that every unit is whole: nothing is gathered
  bool blocks_alike;                             // gradients of all blocks have the same layout
  bool blocks_in_root;                           // --wrap put parameters of blocks into stage 0
  bool adapters;                                 // LoRA: these train, and what they adapt does not
  int64_t state_numel, sum_numel;                // of all units: elements of a moment; of separate gradient shards
  Dtype sum_dtype;                               // of separate gradient shards: F32, or BF16 (grads_are_lone)
  int64_t second_numel;                          // of all units: elements of the second moment
  int64_t master_numel, low_numel;               // of all units: fp32 masters; low halves of masters
  int64_t chunk_numel;                           // elements of every owner's shard in one round, at most
  size_t params_bytes;                           // of all units
  // of one gradient slot, one block's all-gather buffer, one publish buffer
  size_t grad_slot_bytes, block_slot_bytes, publish_bytes;
  int scales, scales_trained;                    // E4M3 scales, and those of trained parameters, which come first
  // Working memory: what peers may read, and what is sent from. With COMM_MPI they read it in a window of the same
  // layout: on a CPU the window is the working memory, else its mirror in pinned memory. Offsets hold in both.
  WorkPart part[WORK_PARTS];
  size_t work_bytes, work_on_host;               // on_host: of the parts that are in the mirror alone; they come first
  size_t pool[POOL_PARTS], pool_bytes;           // of each part; of all
  size_t *pool_at;                               // of each block's all-gather buffer, then of the other parts that
                                                 // there are
  OwnedLayout owned;
  HostsLayout hosts;
};
// Memory at `at` that holds working memory from offset `from` on.
struct WorkMemory { char *at; size_t from; };
static inline char *work_at(WorkMemory m, size_t offset) { return m.at + (offset - m.from); }
// Addresses, from fsdp_open on, of the declared buffers that no other part of struct Fsdp has.
struct FsdpMemory {
  WorkMemory work;
  char *window;                                  // start of the window, or mirror, of working memory
  MPI_Win win;
  bool has_win;
  WorkMemory params_home;                        // memory that has the parameter shards
  char *host_params;                             // --offload params without a mirror
  char *pool;                                    // pool of this rank's own buffers and the model's (PoolName)
  float *sum;                                    // offloaded: a round's sum, on the device
  char *expanded, *root_expanded;                // copies in the compute dtype: of one block, of stage 0
  char *staging_in, *landing_in;                 // others' contributions, on the device and on the host
  char *block_landings, *root_landing;           // of all-gather buffers
  char *small_host;                              // pinned: small collectives of a mirrored device
};
// What this rank owns of all units, in order of units, in the memory of the optimizer (host memory if offloaded).
struct FsdpShards {
  float *master, *grads;                         // grads: in sum_dtype
  char *m, *v;                                   // in moment_dtype
  low16 *low;                                    // low 16 bits of the masters of bf16 parameters (kernels/master.cuh)
  float *scale, *amax, *amax_all;                // E4M3: [scales] factors; own maxima; [world][scales] all maxima
  int64_t *host_limbs;                           // offloaded, pinned: limbs of the gradient norm's exact sum
  char *publish[2];                              // offloaded: pinned, parameters of a unit on their way to the device
  StepEvent published[2];
};
// What the placement decided: whether other buffers reuse gradient slots, staging and gradient shards, and at which
// points a training step therefore waits for slots. unwanted: nothing may be shared. slots_bytes: of the pool of
// gradient slots and activations; pool_bytes: of the pool of own buffers and activations; workspace_bytes: how much
// larger the ops' workspace makes the two. 0: not placed yet.
struct SharedMemory {
  bool unwanted;
  size_t slots_bytes, pool_bytes, workspace_bytes;
  bool slot[2], staging, *sums;                  // [stages]
  const uint8_t *wait;                           // [points of the dry run] bits of the slots waited for there
  int points;                                    // points of a microbatch
};
struct Gathering {
  bool training;                                 // the pass has a backward
  GatherSlot *slot;                              // [K] for blocks, [K] is stage 0's
  int expanded_stage, root_is_expanded;          // block (1 + l) whose copy in the compute dtype is made; stage 0's
  bool expanded_matrices;                        // that copy has its matrices, too (fsdp_wait)
  bool *secondary_valid;                         // [stages] the secondary shards are this step's
  uint64_t secondary_count, *secondary_number;   // secondary shards stored so far; [stages] the count at its storing
};
struct Reducing {
  int point;                                     // points of the step that are past (fsdp_wait_point)
  int buffer;                                    // gradient buffer that backward writes now (fsdp_grad_buffer)
  int64_t block_reductions;                      // of this step, from gradient slots
  uint64_t rounds_started;                       // rounds of all steps so far, the same on all ranks
  uint64_t *stage_round0;                        // [stages] first round of the stage's last reduction
  uint64_t *buffer_rounds;                         // [3 + L] rounds after which a gradient buffer is free
  FlightCollective *buffer_collective;           // [3 + L] this step's last reduction from the buffer
};
// --log_layers.
struct LayerSums {
  int64_t *sums, *host;                          // limbs of this rank's sums, then all ranks'; host: all ranks', copied
  int64_t *offloaded;                            // offloaded optimizer: this rank's sums in host memory
  float *scratch;                                // two chunks of masters, in the optimizer's memory
};
struct MuonUpdates {
  char *slots, *host, *orthogonal;               // slots of updates; their host memory; scratch of newton_schulz
  uint64_t rounds;                               // rounds of all steps before, the same on all ranks
  StepEvent ready, whole[UPDATE_SLOTS], back[UPDATE_SLOTS];
  MessageSet messages[UPDATE_SLOTS];
};
struct StepEvents {
  StepEvent began, grads_ready, *grads_free, reduced, exchange_ready, exchanged, mirror_filled, drained;
};
// Sets of messages of COMM_MPI. Arrays of two are indexed by the parity of the round. parts: [2][parts + 1] with a
// reduction chain along hosts: for each part's sum, then for the own shard's result. returns: for SumReturns.of[i].
struct Messages {
  MessageSet sends[2], receives[2], chain_sends[2], chain_receives[2], chain_backs[2], *parts, *returns;
};
// With COMM_NCCL.
struct Communicators { void *gather, *secondary, *reduce, *replicate, *world; };
struct Watch {
  void (*note)(const Note *x);                   // NULL, or called at each transition of the schedule (--trace)
  FsdpHooks hooks;
  uint32_t passes_marked;                        // marks that the model's stream has made in this pass
};
struct Comm;
struct Record;
struct DryRun;
struct Passes;
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
  DryRun *dry;                                   // NULL: a real run
  Passes *passes;
  Traffic traffic;
};

// ---- record.h -------------------------------------------------------------------------------------------------------
// X(identifier, word): kinds of entries; each comment lists the fields of RecordEntry that this kind uses.
#define RECORD_KINDS(X) \
  X(RECORD_ACCESS, "access")         /* access, rank and block: of that memory, call: its number, op */ \
  X(RECORD_EVENT, "event")           /* event: recorded by the stream */ \
  X(RECORD_WAIT, "wait")             /* event: the stream waits for it */ \
  X(RECORD_DONE, "done")             /* event: the host has seen it to be over */ \
  X(RECORD_SYNC, "sync")             /* the host has waited for the stream */ \
  X(RECORD_PUBLISH, "publish")       /* access: the counter, and as bytes its new value */ \
  X(RECORD_OBSERVE, "observe")       /* the same, of rank: it has reached that value at least */ \
  X(RECORD_SEND, "send")             /* access: what is read; rank: to; op: channel; number: set of messages */ \
  X(RECORD_RECEIVE, "receive")       /* access: may be written from here on; rank: from; as SEND */ \
  X(RECORD_ENDED, "ended")           /* number: a set of messages, which are gone or have arrived */ \
  X(RECORD_COLLECTIVE, "collective") /* op: kind, number: communicator, access: how many, bytes that arrive here */ \
  X(RECORD_HOLD, "hold")             /* access: complete from here on; op: what it is, stage: of which */ \
  X(RECORD_FREE, "free")             /* access: may be written from here on */ \
  X(RECORD_POINT, "point")           /* where the host may wait for what the plan says */
#define RECORD_COLLECTIVES(X) \
  X(COLLECTIVE_GATHER, "gather") X(COLLECTIVE_REDUCE, "reduce") X(COLLECTIVE_BARRIER, "barrier") \
  X(COLLECTIVE_ALL_GATHER, "all-gather") X(COLLECTIVE_REDUCE_SCATTER, "reduce-scatter") \
  X(COLLECTIVE_ALL_REDUCE, "all-reduce") X(COLLECTIVE_BROADCAST, "broadcast") X(COLLECTIVE_UPDATES, "updates") \
  X(COLLECTIVE_RETURN, "return")
// NONE: a collective recorded for its order and its count; entries of what it consists of follow.
#define RECORD_COMMUNICATORS(X) \
  X(OVER_NONE, "none") X(OVER_SHARD_GATHER, "shard group, gathers") X(OVER_SECONDARY, "secondary group") \
  X(OVER_SHARD_REDUCE, "shard group, reductions") X(OVER_REPLICATE, "replicate group") X(OVER_WORLD, "all ranks")
// Part of the schedule that an entry belongs to.
#define RECORD_PARTS(X) \
  X(SCHEDULE_MODEL, "model") X(SCHEDULE_GATHER, "gather") X(SCHEDULE_EXPAND, "expand") X(SCHEDULE_REDUCE, "reduce") \
  X(SCHEDULE_CHAIN, "chain") X(SCHEDULE_RETURN, "return") X(SCHEDULE_SMALL, "small") X(SCHEDULE_UPDATE, "update")
#define X(id, words) id,
enum RecordKind { RECORD_KINDS(X) };
enum CollectiveKind { RECORD_COLLECTIVES(X) };
enum Communicator { RECORD_COMMUNICATORS(X) COMMUNICATORS };
enum SchedulePart { RECORD_PARTS(X) };
#undef X
enum Held { HELD_WEIGHTS, HELD_GRADIENT };
// The part of the schedule (SchedulePart) that runs now, its stage, and its round of a reduction.
struct SchedulePlace { uint16_t what; int16_t stage; uint32_t round; };
// access.at is an offset in block number `block` of rank `rank`, or, with block -1, an address. pass: number of passes
// started so far.
struct RecordEntry {
  RecordKind kind : 8;
  RecordStream stream : 8;
  unsigned op : 8;
  int block : 8;
  bool context;                                  // the memory belongs to an op's context, and is no argument
  int rank;
  union { int call, event, number; };
  uint32_t pass;
  SchedulePlace place;
  Access access;
};
// Memory at another address in each process. number: the same for all ranks' windows.
struct RecordBlock { uintptr_t at; size_t bytes; int rank, number; };
struct RecordGroup { const void *comm; int size, me; const int *rank; };
struct RecordName { const void *of; const char *words; };
struct Record {
  TouchSink sink;
  RecordEntry *entry;
  int count, room, calls, events, sides;
  uintptr_t next_address;
  char error[256];                               // "" or the first call that may not touch what it touches
  bool paused;
  uint32_t pass;
  SchedulePlace place;
  DryWatch *watch;                               // NULL, or called in a dry run, which then makes no entries
  // In a real run: its memory blocks, its communicators, and its events and sets of messages, numbered.
  int rank, blocks, names, names_room;
  RecordBlock block[128];
  RecordGroup group[COMMUNICATORS];
  RecordName *name;
  bool grouped;                                  // between NCCL's group start and end
  const void *group_set;                         // set of messages of the last NCCL receive
};

// ---- placement.h ----------------------------------------------------------------------------------------------------
enum Pool { POOL_SHARDS, POOL_ACTS, POOL_SLOTS, POOLS };
// A span of time, in numbers of record entries, both ends included. last: the last entry that was enqueued in it; its
// work may end later.
struct Interval { int from, to, last; };
struct Buffer {
  const char *name;
  int layer;                                     // number of its block; -1: of no block
  size_t bytes;
  uintptr_t address;                             // in the dry run
  Pool pool;
  size_t at;                                     // offset in the pool, in bytes
  int first, intervals;                          // its live intervals: Pass.interval[first + i], latest first
  int begins, alive;                             // start of the earliest interval; length of all intervals together
  int number, urgent;                            // index in Meets; larger urgent: placed sooner
  bool workspace;                                // the ops' workspace
};
// A buffer of the sharding layer, and whether a declared buffer shares its memory. slot: its number if it is a gradient
// slot, which peers read; else -1.
struct FixedBuffer { Buffer buffer; int slot; bool shared; };
enum { FIXED_MAX = 1024 };
// Numbers of the record's entries of kind RECORD_POINT.
struct Points { int *entry, count; };
// Which buffers are live at the same time: bits a * words * 64 + b and b * words * 64 + a are set if a and b are.
struct Meets { uint64_t *bit; int words; };
// The buffers of one pass. wait: [points] bits of the slots that are waited for at a point; waits: bits set in all.
struct Pass {
  Buffer *buffer;
  int count, room;
  Interval *interval;
  int intervals, intervals_room;
  uint8_t *wait;
  int points, waits;
  // Only until the buffers are placed: the fixed buffers with their lifetimes in this pass; `natural`: the lifetimes of
  // the two gradient slots before slot_give has shortened them.
  Buffer *fixed;
  Meets meets;
  Points at;
  Interval *natural[2];
};
// bytes: the pool's size so far; most: its size limit. open: buffers may be placed there.
struct PoolSpace { size_t bytes, most; bool open; };
struct Placement {
  PoolSpace pool[POOLS];
  FixedBuffer fixed[FIXED_MAX];
  int fixed_count;
  size_t workspace_bytes;                        // what all pools together take more because of the workspace
  size_t alive_most_bytes;                       // the largest sum of all that is live at once, in any pass: a lower
                                                 // bound of all pools together
};
// Declares a pass's buffers: with `record`, in a dry run; without, in a real run, where each call returns the address
// that the placement chose, from base[pool]. Both make the same calls in the same order. next: number of the next call.
struct Declare { Pass *pass; Record *record; char *base[POOLS]; int next; };
// All passes of a layer. declared: passes whose dry run was made; learning: the pass that a dry run is in, or NULL.
// microbatches: of the dry run that placed them; calls: number of op calls in a training step.
struct Passes {
  Placement placement;
  Pass pass[PASSES], *learning;
  Declare declare;
  bool declared[PASSES];
  int microbatches;
  int64_t calls;
};
struct DryRun { Record record; Ops ops; const Fsdp *of; };

// ---- owned.h --------------------------------------------------------------------------------------------------------
// One of Muon's matrices: number `part` of parameter `param`. first: its first element in the parameter. stage_at:
// offset in bytes of this rank's run in the stage of its round's slot.
struct OwnedMatrix {
  int param, part;
  int64_t rows, cols, first;
  int owner, round;
  size_t stage_at;
};
// Loops over the matrices of a round, at most one per owner.
#define EACH_OWNED(f, round_, x) \
  for (const OwnedMatrix *x = (f)->lay.owned.matrix + (f)->lay.owned.round_first[round_]; \
       x < (f)->lay.owned.matrix + (f)->lay.owned.round_first[(round_) + 1]; x++)

// ---- hosts.h --------------------------------------------------------------------------------------------------------
// Bytes that this rank receives in a reduction: from its own host's ranks, and from other hosts' (hosts_formula).
struct HostsTraffic { int64_t inside, between; };

// ---- transport.h ----------------------------------------------------------------------------------------------------
// What is done with a round of Muon's matrices (owned.h), in this order. FREE: waits until the round's slot may be
// written. GIVE: this rank has written its momenta; they are sent to the owners. WHOLE: waits until the matrix that
// this rank owns has all momenta. BACK: this rank has computed its matrix's update; the runs of it are sent to their
// ranks. ARRIVED: waits for the updates of this rank's runs. TAKEN: this rank has read them.
enum UpdateMove { UPDATES_FREE, UPDATES_GIVE, UPDATES_WHOLE, UPDATES_BACK, UPDATES_ARRIVED, UPDATES_TAKEN };
// A transport's functions. gather.h, reduce.h, update.h and sharded_state.h have no other way to reach a peer. Each
// transport starts from the table of one rank alone (transport_self.h) and replaces what it does differently.
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
  void (*gradient_ready)(Fsdp *f);                                   // backward has completed the job's gradient
  bool (*round_free)(Fsdp *f, uint64_t round);                     // may the memory of this round be written again?
  void (*round_send)(Fsdp *f, uint64_t round, ReduceSpan x);       // sends this rank's contributions
  bool (*chain_arrived)(Fsdp *f, uint64_t round);                  // has the sum of the replicas before arrived?
  void (*chain_take)(Fsdp *f, uint64_t round, ReduceSpan x, float *sum);       // copies that sum to `sum`
  void (*hosts_begin)(Fsdp *f, uint64_t round, ReduceSpan x);      // sends the initial sum to the chain's first host
  // Have a part's contributions arrived, and, in a chain along hosts, its partial sum?
  bool (*part_arrived)(Fsdp *f, uint64_t round, int part, ReduceSpan x);
  // The i-th contribution to a part.
  const char *(*part_input)(const Fsdp *f, uint64_t round, int i, int part, ReduceSpan x, PieceRun run);
  void (*hosts_give)(Fsdp *f, uint64_t round, int part, ReduceSpan x);         // sends a part's sum to the next host
  void (*round_done)(Fsdp *f, uint64_t round);                     // all are added: peers may reuse memory
  bool (*hosts_back)(Fsdp *f, uint64_t round, ReduceSpan x);       // has the own shard's sum come from the last host?
  void (*chain_give)(Fsdp *f, uint64_t round, ReduceSpan x, float *sum);       // passes `sum` to the next replica
  void (*gradient_added)(Fsdp *f);                                     // all rounds of the job are added up
  bool (*grads_free)(Fsdp *f, int buffer);                         // have all peers read this gradient buffer?
  // With replicas: starts the broadcast of a unit's reduced gradient to all of them; has it arrived in this rank's
  // shard?
  void (*return_start)(Fsdp *f, SumReturn *r);
  bool (*return_arrived)(Fsdp *f, SumReturn *r);
  void (*returns_wait)(Fsdp *f);                                    // the model may read the gradient shards

  void (*small_all_gather)(Fsdp *f, const void *mine, void *all, size_t bytes);        // device memory, order of ranks
  void (*updates)(Fsdp *f, UpdateMove move, int round);            // exchanges a round of Muon's matrices
};
// Loops over the runs of a round: one for each piece of x's unit that has elements in the span x.
#define EACH_RUN(f, x, run) \
  for (int piece_ = 0; piece_ < (f)->lay.unit[(x).unit].pieces; piece_++) \
    if (PieceRun run = {}; piece_run(&(f)->lay.unit[(x).unit], piece_, (x).first, (x).numel, &run))
// The group that a gather asks. Each of its ranks stores `widen` shards' parts of a piece: 1 in the shard group, S / K
// in a secondary group of K ranks.
struct GatherSource { const RankGroup *group; size_t widen; bool secondary; };
// One piece of a gather: `bytes` from every rank of the source, from offset from_at of its working memory to offset
// to_at + i * bytes of the slot for the source's i-th rank.
struct GatherPiece { size_t from_at, to_at, bytes; };
#define EACH_UNIT_OF_STAGE(f, s, u) \
  for (int u = (f)->lay.stage[s].first_unit; u < (f)->lay.stage[s].first_unit + (f)->lay.stage[s].units; u++)
#define EACH_PIECE_OF_STAGE(f, s, u, i) \
  EACH_UNIT_OF_STAGE(f, s, u) \
    for (int i = 0; i < (f)->lay.unit[u].pieces; i++)
