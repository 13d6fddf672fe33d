// plan.h: the second door of fsdp/: what plans, predictions, reports and traces get of a layer, as results: bytes by
// line, what moves and how much of it, names of units, transitions of the schedule. And its dry runs, which they and
// the placement of buffers by lifetimes (fsdp/placement.h) come from.
#pragma once
#include "fsdp.h"
#include "kernels/op_calls.h"
#include "memory/memory.h"

// ---- passes over the model ------------------------------------------------------------------------------------------
// Every pass has buffers of its own in the same memory. They are declared in the same order in each dry run of it,
// where they get addresses of their own, and each time it is run, where they are where the placement put them. Later
// calls may ask for less than the dry run did. Only the model's stream touches them. again: of a dry run the same
// buffers.
enum PassKind { PASS_TRAIN, PASS_EVAL, PASS_SAMPLE, PASSES };
struct Declare;
Declare *fsdp_pass(Fsdp *f, PassKind pass, bool again = false);
char *declare_bytes(Declare *d, const char *name, int layer, size_t bytes);            // layer: -1: of no block
Tensor declare(Declare *d, const char *name, int layer, Dtype dtype, int64_t d0, int64_t d1 = -1, int64_t d2 = -1);
char *declare_workspace(Declare *d, size_t bytes);             // of the ops; it alone may end between two places
// Whether every host has room for what shares memory with gradient slots, which lie in a window (a container's /dev/shm
// may be 64 MiB), alike on all ranks; if not, nothing is shared from here on: place passes anew. Collective.
bool fsdp_shared_slots_fit(Fsdp *f);

// ---- dry runs -------------------------------------------------------------------------------------------------------
// A dry run is a layer of the same rank as another, over ops that compute nothing: it only says what a run would do.
// Streams: the model's, of all-gathers, of reductions; HOST: an optimizer on the host.
enum RecordStream { RECORD_MODEL, RECORD_GATHER, RECORD_REDUCE, RECORD_HOST, RECORD_STREAMS };
// Ranks of a group: how many, on how many hosts, and how many on this rank's, itself included.
struct GroupPlace { int size, hosts, here; };
// What moves in a dry run:
//   GATHER          `bytes` of each rank of the group, to all others
//   CONTRIBUTIONS   to a sum: `bytes` of each rank of the group; ring: `bytes` come into each rank round a ring instead
//   SUM             `bytes` of a partial sum, in one message; `hops` equal ones, one after the other, precede it: from
//                   the start of the reduction on with after_start, else from where its stream is
//   RETURN, SMALL   `bytes` come into each rank of the group round a ring
//   UPDATES         Muon's matrices: `inside` a host and `between` hosts, the larger of what is sent and received
//   START           nothing: a reduction starts
enum DryMoveKind { MOVE_GATHER, MOVE_CONTRIBUTIONS, MOVE_SUM, MOVE_RETURN, MOVE_UPDATES, MOVE_SMALL, MOVE_START };
struct DryMove {
  DryMoveKind kind;
  GroupPlace group;
  double bytes, inside, between;
  double copied;                                 // copies: so much by this rank's cores from ranks of its host
  bool ring, near, after_start, copies;          // near: SUM, on this host
  bool from_host;                                // the device fetches it first
  int hops;
};
struct DryWatch {
  void (*op)(DryWatch *w, RecordStream stream, const OpTouch *x);                 // OP_GIVE and OP_TAKE: a transport's
  void (*event)(DryWatch *w, RecordStream stream, int number, bool waits);        // else the stream records it
  void (*move)(DryWatch *w, RecordStream stream, const DryMove *x);     // its first access begins it; NULL: it is over
  void (*phase)(DryWatch *w, const char *name);
};
// Its memory is from here on, at addresses that no allocator gives: nothing may be read or written there.
static const uintptr_t RECORD_ADDRESSES = (uintptr_t)1 << 56;
// Ops that compute nothing; absent where no step calls them. gpu: of a device whose calls return before they are done.
Ops plan_table(bool gpu);
// Lays out a dry run of f, of a step with so many microbatches, whose ranks exchange small_bytes. c: of the dry run's
// model; it gets ops and device. watch: NULL, or told; the dry run then shares memory as f's placement says. Until
// fsdp_dry_close. Between the two: declare all memory, then open.
Fsdp *fsdp_dry_layout(const Fsdp *f, Ctx *c, int64_t microbatches, size_t small_bytes, DryWatch *watch);
void fsdp_dry_open(Fsdp *dry, MemoryPlan *plan);
void fsdp_dry_close(Fsdp *dry);
// Gives the buffers of all passes that were run in `dry` their memory in f, whose memory is not declared yet.
void fsdp_place(Fsdp *f, Fsdp *dry);
// placed, alive: bytes that are shared by what is never alive at once, and the most of them that are alive at once;
// calls: of ops, at most, in a training step.
struct Placed { size_t placed, alive; int64_t calls; };
Placed fsdp_placed(const Fsdp *f);
// Writes where the buffers of the training pass that was run in `dry` lie in f (memory_map.h), as a member of a JSON
// object.
void fsdp_memory_map(FILE *to, const Fsdp *f, Fsdp *dry, const MemoryPlan *plan);

// ---- what moves -----------------------------------------------------------------------------------------------------
// The formulas of traffic, per rank and step of A microbatches a rank; and where it comes from. Of rings the bytes that
// cross to another host are those that its adapter carries: the ranks of a group on one host share them.
Traffic fsdp_formula(const Fsdp *f, int A);
enum LinkUse { LINK_GATHERS, LINK_REDUCTIONS, LINK_REPLICAS, LINK_UPDATES, LINK_SMALL, LINK_USES };
struct Links { int64_t inside[LINK_USES], between[LINK_USES]; };
Links fsdp_links(const Fsdp *f, int A);
// Whether gradients go between the hosts of such a world as sums along them. One line in `error` if --between_hosts
// chain was asked for where it cannot be.
bool fsdp_hosts_chain(const FsdpConfig *c, int world, int per_host, bool gpu, Error *error);
// How many matrices each rank of a world owns with Muon, malloc'ed.
int *fsdp_owned_counts(const Param *param, int params, int world);
// The units inside blocks that WRAP_MIN_PARAMS would make.
int fsdp_block_units(Param *param, int params, int64_t least);

// ---- what reports say -----------------------------------------------------------------------------------------------
// numel, trained: parameters; whole, of a rank: bytes gathered, and of one rank's shard.
struct UnitFigures { const char *name; int stage; int64_t params, numel, trained; size_t whole_bytes, rank_bytes; };
int fsdp_units(const Fsdp *f);
UnitFigures fsdp_unit_figures(const Fsdp *f, int u);
// Norms of unit u in the last step, of what trains; u -1: of all units. gradient: of the sum over microbatches, before
// loss scale and clipping are taken out. False: no unit's are added up, or nothing of u trains.
struct LayerNorms { double gradient, change, weights; };
bool fsdp_layer_norms(const Fsdp *f, int u, LayerNorms *x);
bool fsdp_in_place(const Fsdp *f);               // nothing is gathered
bool fsdp_along_hosts(const Fsdp *f);            // so sums travel (hosts.h)
bool fsdp_needs_messages(const Fsdp *f);         // not all of its shard group reads each other's memory
int fsdp_owned(const Fsdp *f, int *rounds);      // matrices that Muon updates, and the most of a rank
// Groups of `size` consecutive ranks that cross hosts although one host has room for a group; shard groups whose ranks
// on hosts are not consecutive, so that sums do not go along these.
int fsdp_groups_across(const Fsdp *f, int size);
int fsdp_groups_mixed(const Fsdp *f);

// ---- a traced step --------------------------------------------------------------------------------------------------
// What notes (note.h) are of, collectives first. ROUND: contributions of peers; ROOM: memory to reduce in; SLOT: peers
// that read the gradient there.
enum NoteOf {
  NOTE_GATHER, NOTE_REDUCTION, NOTE_SMALL, NOTE_SUMS, NOTE_BARRIER, NOTE_UPDATES, NOTE_RETURN, NOTE_JOIN, NOTE_STEP_END,
  NOTE_ROUND, NOTE_ROOM, NOTE_SLOT, NOTE_MESSAGES, NOTE_BACKGROUND
};
// ADDED: all rounds of a reduction are.
enum NotePoint { POINT_BEGIN, POINT_BEGUN, POINT_WAIT, POINT_ASKED, POINT_ARRIVED, POINT_ADDED, POINT_END };
// on: where a device is then. slot: of a gather. round: of a reduction its first one, of a return its last, alike on
// all ranks. last: of the stage's reductions of the step.
struct Note { NoteOf of; NotePoint point; int stage, slot; uint64_t round; bool last; const Ctx *on; };
// Until fsdp_trace_end, `note` is told each transition of the schedule, and the ops of gathers and of reductions are
// these tables'. own: whether a stream of their own runs them.
void fsdp_trace_begin(Fsdp *f, const Ops *gather, const Ops *reduce, void (*note)(const Note *x), bool own[2]);
void fsdp_trace_end(Fsdp *f, const Ops *ops);
int fsdp_host_of(const Fsdp *f, int rank);       // the lowest rank of its host
int fsdp_reduced_last(const Fsdp *f);            // the stage that is reduced, or was last
// The stage of which a gradient shard is at p, or p inside of it; STAGE_NONE. The first round of its last reduction.
int fsdp_stage_of_gradient(const Fsdp *f, const void *p, uint64_t *round);

// ---- what is not finite (finite.h) ----------------------------------------------------------------------------------
// What was found: argument `name` of `op`, as it was read or written; `count` of its elements are not finite, the first
// one is number `element`. weight: of the same call, for a name; NULL: it has none.
struct Finite {
  bool found, read;
  const char *op, *name;
  Tensor t;
  const void *weight;
  int64_t element, count;
  float value;
  void (*tell)(void *to, const Finite *x);       // called once, at once: what lies where may change later
  void *to;
  float *scratch;                                // of the device, 4 bytes that nobody else touches meanwhile
};
// Until finite_end c's ops look at what they read and write.
void finite_begin(Ctx *c, Finite *x);
void finite_end(Ctx *c);
// The parameter that has this element, or whose gradient has; gathered and in use, in the stage at work or outside the
// blocks; -1: none. The number in the shard group of the rank that owns an element.
int fsdp_param_at(Fsdp *f, uintptr_t at, bool gradient, int64_t *element);
int fsdp_owner_of(const Fsdp *f, int p, int64_t element);
