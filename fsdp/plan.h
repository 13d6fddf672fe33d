// plan.h: the second public header of fsdp/: results for plans, predictions, reports and traces: bytes by line of the
// memory plan, traffic, names of units, transitions of the schedule. Also dry runs, from which predictions and the
// placement of buffers by lifetimes (fsdp/placement.h) are made.
#pragma once
#include "fsdp.h"
#include "kernels/op_calls.h"
#include "memory/memory.h"

// ---- passes over the model ------------------------------------------------------------------------------------------
// Each pass has its own buffers; all passes use the same memory. A pass declares its buffers in the same order in each
// dry run, where every buffer gets an address of its own, and in each real run, where a buffer is where the placement
// put it. A real run may ask for fewer bytes than the dry run did. Only the model's stream touches these buffers.
// fsdp_pass starts the declaring. again: the dry run goes through the pass once more with the same buffers.
enum PassKind { PASS_TRAIN, PASS_EVAL, PASS_SAMPLE, PASSES };
struct Declare;
Declare *fsdp_pass(Fsdp *f, PassKind pass, bool again = false);
char *declare_bytes(Declare *d, const char *name, int layer, size_t bytes);            // layer: -1: of no block
Tensor declare(Declare *d, const char *name, int layer, Dtype dtype, int64_t d0, int64_t d1 = -1, int64_t d2 = -1);
char *declare_workspace(Declare *d, size_t bytes);             // of the ops; it alone may end between two places
// Whether every host has room for what shares memory with gradient slots, which are in a window (a container's /dev/shm
// may be 64 MiB), alike on all ranks; if not, nothing is shared from here on: place passes anew. All ranks call it.
bool fsdp_shared_slots_fit(Fsdp *f);

// ---- dry runs -------------------------------------------------------------------------------------------------------
// A dry run is a layer of the same rank as another, over ops that compute nothing: it only says what a run would do.
// Streams: the model's, of all-gathers, of reductions; HOST: an optimizer on the host.
enum RecordStream { RECORD_MODEL, RECORD_GATHER, RECORD_REDUCE, RECORD_HOST, RECORD_STREAMS };
// Ranks of a group: how many, on how many hosts, and how many of them on this rank's host, this rank included.
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
  void (*move)(DryWatch *w, RecordStream stream, const DryMove *x);     // its first access starts it; NULL: it is over
  void (*phase)(DryWatch *w, const char *name);
};
// A dry run's memory has addresses from here on, which no allocator gives: nothing may be read or written there.
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
// placed, alive: bytes that are shared by buffers of disjoint live ranges, and the most of them that are live at once;
// calls: of ops, at most, in a training step.
struct Placed { size_t placed, alive; int64_t calls; };
Placed fsdp_placed(const Fsdp *f);
// Writes the places in f of the buffers of the training pass run in `dry` (memory_map.h): a key and value of JSON.
void fsdp_memory_map(FILE *to, const Fsdp *f, Fsdp *dry, const MemoryPlan *plan);

// ---- what moves -----------------------------------------------------------------------------------------------------
// fsdp_formula: traffic per rank and step, with A microbatches per rank. fsdp_links: the same bytes by use, from ranks
// of this host (inside) and from other hosts (between). Of a ring's traffic `between` is what a host's network adapter
// carries, divided by the ranks of the group on that host.
Traffic fsdp_formula(const Fsdp *f, int A);
enum LinkUse { LINK_GATHERS, LINK_REDUCTIONS, LINK_REPLICAS, LINK_UPDATES, LINK_SMALL, LINK_USES };
struct Links { int64_t inside[LINK_USES], between[LINK_USES]; };
Links fsdp_links(const Fsdp *f, int A);
// Whether a world of per_host ranks on each host would use the inter-node reduction chain (hosts.h). One line in
// `error` if --between_hosts chain was asked for and is not supported there.
bool fsdp_hosts_chain(const FsdpConfig *c, int world, int per_host, bool gpu, Error *error);
// [world] how many matrices each rank owns with Muon. Free the result.
int *fsdp_owned_counts(const Param *param, int params, int world);
// How many units inside blocks WRAP_MIN_PARAMS would make with `least` elements.
int fsdp_block_units(const Param *param, int params, int64_t least);

// ---- what reports say -----------------------------------------------------------------------------------------------
// A unit: numel and trained: its elements, and those that train; whole_bytes gathered; rank_bytes of one rank's shard.
struct UnitFigures { const char *name; int stage; int64_t params, numel, trained; size_t whole_bytes, rank_bytes; };
int fsdp_units(const Fsdp *f);
UnitFigures fsdp_unit_figures(const Fsdp *f, int u);
// Norms of unit u in the last step, over the elements that train; u -1: of all units. gradient: of the sum over
// microbatches, before division by the loss scale and clipping. False without --log_layers, or if nothing of u trains.
struct LayerNorms { double gradient, change, weights; };
bool fsdp_layer_norms(const Fsdp *f, int u, LayerNorms *x);
bool fsdp_in_place(const Fsdp *f);               // nothing is gathered
bool fsdp_along_hosts(const Fsdp *f);            // gradients use the inter-node reduction chain (hosts.h)
bool fsdp_needs_messages(const Fsdp *f);         // not all ranks of its shard group read each other's memory
int fsdp_owned(const Fsdp *f, int *rounds);      // number of matrices that Muon updates; *rounds: the most of one rank
// fsdp_groups_across: number of groups of `size` consecutive ranks that span hosts although a host has that many ranks.
// fsdp_groups_mixed: number of shard groups without a reduction chain because a host's ranks are not consecutive.
int fsdp_groups_across(const Fsdp *f, int size);
int fsdp_groups_mixed(const Fsdp *f);

// ---- a traced step --------------------------------------------------------------------------------------------------
// What a note (note.h) is about; collectives come first. Waits: ROUND for contributions of peers, ROOM for free memory
// to reduce in, SLOT for peers that read the gradient in a slot.
enum NoteOf {
  NOTE_GATHER, NOTE_REDUCTION, NOTE_SMALL, NOTE_SUMS, NOTE_BARRIER, NOTE_UPDATES, NOTE_RETURN, NOTE_JOIN, NOTE_STEP_END,
  NOTE_ROUND, NOTE_ROOM, NOTE_SLOT, NOTE_MESSAGES, NOTE_BACKGROUND
};
// ADDED: all rounds of a reduction are added up.
enum NotePoint { POINT_BEGIN, POINT_BEGUN, POINT_WAIT, POINT_ASKED, POINT_ARRIVED, POINT_ADDED, POINT_END };
// on: the context whose stream the transition belongs to. slot: number of a gather's slot. round: of a reduction its
// first round, of a return the last one; the same on all ranks. last: it is the stage's last reduction of the step.
struct Note { NoteOf of; NotePoint point; int stage, slot; uint64_t round; bool last; const Ctx *on; };
// Until fsdp_trace_end, `note` is called at each transition of the schedule, and the streams of gathers and of
// reductions use these two tables of ops. own: set to whether gathers, and reductions, have a stream of their own.
void fsdp_trace_begin(Fsdp *f, const Ops *gather, const Ops *reduce, void (*note)(const Note *x), bool own[2]);
void fsdp_trace_end(Fsdp *f, const Ops *ops);
int fsdp_host_of(const Fsdp *f, int rank);       // the lowest rank of its host
int fsdp_reduced_last(const Fsdp *f);            // the stage of the reduction in flight, or of the last one
// The stage whose gradient shard has address p, or STAGE_NONE; *round: the first round of the stage's last reduction.
int fsdp_stage_of_gradient(const Fsdp *f, const void *p, uint64_t *round);

// ---- what is not finite (finite.h) ----------------------------------------------------------------------------------
// The first tensor found with elements that are not finite: argument `name` of `op`, read (`read`) or written by it;
// `count` of its elements are not finite, the first of them is number `element` and has `value`. weight: the address of
// the same call's argument "weight", from which a parameter's name follows; NULL: the call has none.
struct Finite {
  bool found, read;
  const char *op, *name;
  Tensor t;
  const void *weight;
  int64_t element, count;
  float value;
  void (*tell)(void *to, const Finite *x);       // called at once when it is found: later the memory may be reused
  void *to;
  float *scratch;                                // 4 bytes of device memory, for this search alone
};
// Until finite_end every op of c checks the tensors that it reads and writes.
void finite_begin(Ctx *c, Finite *x);
void finite_end(Ctx *c);
// fsdp_param_at: the parameter whose weight, or gradient, has address `at`, and the element there; the parameter's
// stage must be gathered and in use, and be the current stage or stage 0; -1: none. fsdp_owner_of: the rank, by its
// number in the shard group, that owns an element.
int fsdp_param_at(Fsdp *f, uintptr_t at, bool gradient, int64_t *element);
int fsdp_owner_of(const Fsdp *f, int p, int64_t element);
