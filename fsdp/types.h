// types.h: the types of the inside, which fsdp/ alone includes: meshes, units, what follows from the configuration,
// what changes, struct Fsdp, the table of a transport, records and placements. Each part is described where its
// functions are.
#pragma once
#include "fsdp.h"
#include "plan.h"

// ---- mesh.h ---------------------------------------------------------------------------------------------------------
// Another rank. host: the lowest rank on its host. window: where the peer's window is mapped in this process; NULL if
// it is on another host.
struct Peer { int host; char *window; };
// The ranks of a group, in the order of its collectives: rank[i] is a rank of the mesh, rank[me] is this rank.
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
// Rank i of the shard group owns elements [i numel, (i + 1) numel) of a piece. Its parameters are alike: what they are
// stored in, whether and how the optimizer updates them, the first of them says for all. Frozen pieces have no gradient
// and no optimizer state. They come last in a shard, so that gradients and optimizer state have no gaps.
struct Piece {
  const Param *like;                             // the first of its parameters
  int type;                                      // of blocks, of which a rank has whole ones; else 0
  int moments;                                   // of the optimizer: 0 to 2
  int64_t numel;                                 // of one rank
  // Where the piece begins. In bytes: in the gathered unit; in a rank's shard.
  size_t full_at, shard_at;
  // In elements: in a rank's moments and gradient shard; in its fp32 masters, or their low halves; in the unit's whole
  // gradient; in its copy in the compute dtype.
  int64_t state_at, master_at, grad_at, expand_at;
  int64_t second_at;                             // in elements: in a rank's second moments
  bool has_master;                               // an fp32 master, or the low half of one, is stored beside the shard
  bool split;                                    // it is a low half
  bool expands;                                  // it is stored in another dtype than the compute dtype
};
struct Unit {
  char name[64];
  int stage, params, pieces;
  Piece *piece;
  size_t full_bytes, shard_bytes, slot_at;       // gathered; of one rank; slot_at: where it begins in its stage
  int64_t shard_numel, state_numel;              // of one rank: all elements; the trained ones, which come first
  int64_t second_numel;                          // of one rank: those with a second moment
  int64_t master_numel, low_numel;               // of one rank: fp32 masters; low halves of masters
  int64_t grad_numel, expand_numel;              // whole gradient; copy in the compute dtype
  int64_t grad_slot_at, expand_slot_at;          // elements: where these begin in its stage's
  int rounds;                                    // in which its gradient is reduced
  // Where it begins in memory that holds all units one after the other. In elements: moments, second moments, fp32
  // masters, low halves, and gradient shards that are not part of a whole gradient. In bytes: parameter shards,
  // secondary shards, whole gradients.
  int64_t state_base, second_base, master_base, low_base, sum_base;
  size_t params_at, secondary_at, grads_at;
};
// Where backward writes a stage's gradient.
//   in shard   into the gradient shard itself, because this rank is the only one: there is no reduction. Later
//              microbatches are added there
//   in slot    into one of two slots, which blocks take in turn, in the wire dtype, once a microbatch
//   whole      into an fp32 buffer of its own, because backward adds to it: chunk by chunk of the head, or with each
//              microbatch
//   in whole   the same, and the shard is this rank's part of that buffer
enum GradHome { GRADS_NONE, GRADS_IN_SHARD, GRADS_IN_SLOT, GRADS_WHOLE, GRADS_SHARD_IN_WHOLE };
static inline bool grads_are_whole(GradHome home) { return home >= GRADS_WHOLE; }
// staged: its gradient is rounded to the wire dtype in a separate buffer before it is sent. rounds: of a reduction of
// all its units.
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
  int stage, buffer, rounds;
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
// A block that has working memory from offset `from` on.
struct WorkMemory { char *at; size_t from; };
static inline char *work_at(WorkMemory m, size_t offset) { return m.at + (offset - m.from); }
// Addresses, from fsdp_open on, of what fsdp_declare describes and no part below has.
struct FsdpMemory {
  WorkMemory work;
  char *window;                                  // window or mirror of working memory, from its beginning on
  MPI_Win win;
  bool has_win;
  WorkMemory params_home;                        // that has the parameter shards
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
// points of a training step that makes it wait for slots. unwanted: nothing may be shared. Bytes of the two pools that
// it has made, slots with activations and own buffers with activations, and what they take more because of the ops'
// workspace; 0: not placed yet.
struct SharedMemory {
  bool unwanted;
  size_t slots_bytes, pool_bytes, workspace_bytes;
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
  int buffer;                                    // that backward writes now (fsdp_grad_buffer)
  int64_t block_reductions;
  uint64_t rounds_started;                       // global round counter, alike on all ranks
  uint64_t *stage_round0;                        // [stages] of the last reduction
  uint64_t *buffer_rounds;                         // [3 + L] rounds after which a gradient buffer is free
  FlightCollective *buffer_collective;             // [3 + L] of this step, the last reduction from it
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
struct Watch {
  void (*note)(const Note *x);                   // NULL, or told each transition (--trace)
  FsdpHooks hooks;
  uint32_t passes_marked;
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
// X(identifier, word): fields that an entry uses, besides those of all.
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
// NONE: only told, for the order and the number; what it is made of follows.
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
// What the schedule does now, of which stage, in which round of a reduction.
struct SchedulePlace { uint16_t what; int16_t stage; uint32_t round; };
// Memory is named by its owner, block and offset; block -1: `at` is an address. pass: number of passes begun so far.
struct RecordEntry {
  RecordKind kind : 8;
  RecordStream stream : 8;
  unsigned op : 8;
  int block : 8;
  bool context;                                  // of an op's context, not an argument
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
  DryWatch *watch;                               // of a dry run: NULL, or told, in place of entries
  // Of a real run: what it has memory in, its communicators, and its events and sets of messages by number.
  int rank, blocks, names, names_room;
  RecordBlock block[128];
  RecordGroup group[COMMUNICATORS];
  RecordName *name;
  bool grouped;                                  // in a group of NCCL's calls, over the last one's communicator
  const void *group_set;
};

// ---- placement.h ----------------------------------------------------------------------------------------------------
enum Pool { POOL_SHARDS, POOL_ACTS, POOL_SLOTS, POOLS };
// A span of time, both ends included. last: the last entry in it that was enqueued; it may end later.
struct Interval { int from, to, last; };
struct Buffer {
  const char *name;
  int layer;                                     // of its block; -1: none
  size_t bytes;
  uintptr_t address;                             // in the dry run
  Pool pool;
  size_t at;                                     // in the pool
  int first, intervals;                          // when it is alive, latest first
  int begins, alive;                             // when first, and how long in all
  int number, urgent;                            // of all that are placed with it; urgent: the more, the sooner placed
  bool workspace;                                // of the ops
};
// A buffer of the sharding layer, and whether what is declared shares its memory. slot: of a gradient slot, which peers
// read, its number, else -1.
struct FixedBuffer { Buffer buffer; int slot; bool shared; };
enum { FIXED_MAX = 1024 };
// Entries of the record's points.
struct Points { int *entry, count; };
// Which buffers are alive at the same time: for two of them, bits a * words * 64 + b and b * words * 64 + a.
struct Meets { uint64_t *bit; int words; };
// One pass. wait: for each point, bits of the slots that are waited for there; waits: of all points.
struct Pass {
  Buffer *buffer;
  int count, room;
  Interval *interval;
  int intervals, intervals_room;
  uint8_t *wait;
  int points, waits;
  // Until it has its places: the fixed buffers with their lifetimes here, and of the slots what they were before these
  // are given away.
  Buffer *fixed;
  Meets meets;
  Points at;
  Interval *natural[2];
};
// open: buffers may be placed there. most: its size limit.
struct PoolSpace { size_t bytes, most; bool open; };
struct Placement {
  PoolSpace pool[POOLS];
  FixedBuffer fixed[FIXED_MAX];
  int fixed_count;
  size_t workspace_bytes;                        // what all pools together take more because of the workspace
  size_t alive_most_bytes;                       // the largest sum of all that is alive at once, in any pass: a lower
                                                 // bound of all pools together
};
// Declares a pass's buffers in a dry run (record), or finds the places that they got (base). The same calls in the same
// order do both.
struct Declare { Pass *pass; Record *record; char *base[POOLS]; int next; };
// All passes of a layer. declared: those that were run; learning: the one that is, in a dry run, or NULL. microbatches:
// of the dry run that placed them; calls: of ops in a training step.
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
// A matrix: the part-th of a parameter. first: its first element there. stage_at: of this rank's run, in
// the stage of its round's slot.
struct OwnedMatrix {
  int param, part;
  int64_t rows, cols, first;
  int owner, round;
  size_t stage_at;
};
// The matrices of a round, one an owner.
#define EACH_OWNED(f, round_, x) \
  for (const OwnedMatrix *x = (f)->lay.owned.matrix + (f)->lay.owned.round_first[round_]; \
       x < (f)->lay.owned.matrix + (f)->lay.owned.round_first[(round_) + 1]; x++)

// ---- hosts.h --------------------------------------------------------------------------------------------------------
// What this rank receives of a reduction with e elements of each shard, of b bytes on the wire: from its host, and from
// others. begins: nothing was added before.
struct HostsTraffic { int64_t inside, between; };

// ---- transport.h ----------------------------------------------------------------------------------------------------
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
  void (*gradient_ready)(Fsdp *f);                                   // backward has completed the job's gradient
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
  void (*gradient_added)(Fsdp *f);                                     // all rounds of the job are added up
  bool (*grads_free)(Fsdp *f, int buffer);                         // have all peers read this gradient buffer?
  // With replicas: a unit's sum of the step goes to all of them; has it come? It is in this rank's shard then.
  void (*return_start)(Fsdp *f, SumReturn *r);
  bool (*return_arrived)(Fsdp *f, SumReturn *r);
  void (*returns_wait)(Fsdp *f);                                    // the model may read the gradient shards

  void (*small_all_gather)(Fsdp *f, const void *mine, void *all, size_t bytes);        // device memory, order of ranks
  void (*updates)(Fsdp *f, UpdateMove move, int round);            // exchanges a round of Muon's matrices
};
// The runs of a round: of each piece of x's unit that has elements there.
#define EACH_RUN(f, x, run) \
  for (int piece_ = 0; piece_ < (f)->lay.unit[(x).unit].pieces; piece_++) \
    if (PieceRun run = {}; piece_run(&(f)->lay.unit[(x).unit], piece_, (x).first, (x).numel, &run))
// A rank's part of a piece is `widen` of its shards there, at `at` of working memory.
struct GatherSource { const RankGroup *group; size_t widen; bool secondary; };
// One piece of a gather: `bytes` of every rank of the source, from from_at of its working memory to to_at (of rank 0;
// rank i's follow) of the slot.
struct GatherPiece { size_t from_at, to_at, bytes; };
#define EACH_UNIT_OF_STAGE(f, s, u) \
  for (int u = (f)->lay.stage[s].first_unit; u < (f)->lay.stage[s].first_unit + (f)->lay.stage[s].units; u++)
#define EACH_PIECE_OF_STAGE(f, s, u, i) \
  EACH_UNIT_OF_STAGE(f, s, u) \
    for (int i = 0; i < (f)->lay.unit[u].pieces; i++)
