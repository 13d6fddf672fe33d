// fsdp.h: fully sharded data parallelism (ZeRO-3) and every mode around it, inlined. Parameters, gradients and
// optimizer state are cut over the ranks; what the model needs is gathered just before it computes and its gradient is
// reduced just after. Rajbhandari et al. 2020 (ZeRO), Zhao et al. 2023 (PyTorch FSDP), Wang et al. 2024 (ZeRO++).
//
// The parts, each a file, in the order in which they are built on each other:
//   base/base.h            no rank waits for ever (heartbeats)
//   fsdp/types.h           the types of all parts: configuration, what follows from it once and for all, and what
//                          changes: struct Fsdp
//   fsdp/memory_plan.h     every byte is planned under a name, printed, then taken under it
//   fsdp/mesh.h            replicas x shards: who is where
//   fsdp/units.h           parameters -> units -> pieces: which rank owns which elements, as data
//   fsdp/state.h           what every part asks of struct Fsdp
//   fsdp/record.h          what a run does, entry by entry: for proofs of its order, and for dry runs
//   fsdp/placement.h       memory by lifetimes
//   fsdp/owned.h           Muon: which rank computes the update of which matrix
//   fsdp/hosts.h           gradients between hosts as sums that travel along them
//   fsdp/layout.h          decisions and the list of all buffers
//   fsdp/transport.h       the comm table; all traffic is counted by those who fill it:
//   fsdp/transport_self.h, windows.h, transport_mpi.h, transport_nccl.h, transport_plan.h; transport_updates.h: Muon's
//   fsdp/reduce.h          fsdp_grads_prepare, fsdp_grad, fsdp_reduce: ordered, so that N ranks give bit for bit what
//                          one rank gives
//   fsdp/gather.h          fsdp_gather, fsdp_wait, fsdp_weight, fsdp_release
//   fsdp/sharded_state.h   norm, E4M3 scales, initialisation, reading and writing of shards
//   fsdp/update.h          the optimizer's step on shards
//   fsdp/open.h            opening and closing
// docs/design.md follows a gradient through them.
//
// What the model code sees, for stage s (0: outside the blocks, 1 + l: block l) and parameter p:
//   fsdp_gather(f,s) start   fsdp_wait(f,s)   fsdp_weight(f,p) -> whole, in the compute dtype   fsdp_release(f,s)
//   fsdp_grads_prepare(f,s)  fsdp_grad(f,p) -> its gradient, whole; no data if frozen           fsdp_reduce(f,s) start
//   fsdp_poll(f) between ops, so that messages move while we compute
//
// Modes. There is one schedule; a mode is numbers in it:
//   full_shard (zero3)      mesh 1 x N; K gather slots: a block is gathered for its forward and again for its backward
//   shard_grad_op (zero2)   K = L slots: every block is gathered once a step
//   zero1                   that, and gradients are added up whole on each rank: one reduction and one gather a step
//   hybrid_shard            mesh R x S: all of it inside a replica, and sums of shards passed along the replicas, and
//                           back to all of them beside backward
//   no_shard (ddp)          mesh N x 1: a shard is the whole, nothing is gathered
//   reshard_after_forward   on: K slots, off: K = L, G: a block's first gather of a step leaves 1/G of it on every
//                           rank, and later ones only ask the G neighbours that hold the rest
//   dtypes                  stored and gathered in param_dtype (matrices in E4M3 with fp8, frozen ones as the bytes of
//                           their file with base_dtype), computed in compute_dtype, reduced in wire_dtype; what is
//                           gathered in another dtype is expanded after its arrival.
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
//   reductions of u         A, or 1 if accumulated locally; each (S-1) e(u) b, or along hosts what fsdp/hosts.h
//                           says; none if all of u is frozen, or if one rank sums its gradient in its shard
//   along the replicas      fp32 partial sums of shards: 4 s(u) for each reduction, less the first of replica 0; the
//                           result once more to all but the last replica. native: 2 (R-1)/R of 4 s(u) instead.
//                           s(u): e(u) and the gaps that align pieces in a shard. Ways back: 1 for each u that
//                           trains, in each step, when its last reduction is over
//   updates of Muon         rounds: the most matrices a rank owns; 2 exchanges a round. Of a matrix of n elements
//                           its owner gets 2 (n - own) bytes, every other rank 2 own, own: elements of it in a rank's
//                           shard. None in place (fsdp/owned.h)
//   small                   one all-gather (norm, losses, stop flag); over mpi a barrier too; fp8: one of maxima
// With L blocks in one unit each, A reductions, no freezing and R = 1 that is, in bytes, f = (N-1)/N, U a block, P all:
//   f (root b_p + (L + (2A-1) max(L-K,0)) U b_p + A P b_r); in place f A P b_r
// Memory: see fsdp_declare (fsdp/layout.h). fsdp_formula states the traffic as code, a test compares it with the
// counters of the transport.
//
// Bit-identity: the owner adds contributions in order of the global microbatch m = a N + rank, each first rounded to
// the wire dtype (its own too, and at N = 1): one left fold, the same for every N that divides the number of
// microbatches, every mesh, layout, wrap and slot count. Replicas pass the running sum on, in order. Only --reduce
// native gives the order away, to NCCL, and --accumulate local adds a rank's own microbatches first.
#pragma once
#include "fsdp/types.h"

// ---- memory_plan.h --------------------------------------------------------------------------------------------------
// Declares `bytes` of zeroed memory under a line. `pointer` is the address of a pointer, of any type, that
// memory_take_all sets and memory_give_back_all reads; it stays as it is for 0 bytes. besides: as many bytes more,
// which are declared under other lines, without a pointer.
void memory_declare(MemoryPlan *m, MemoryName line, size_t bytes, void *pointer, size_t besides = 0);
// Bytes that were declared: of a part; of a use.
size_t memory_planned_total(const MemoryPlan *m, MemoryPart part);
size_t memory_planned_use(const MemoryPlan *m, MemoryUse use);
// What a library has allocated: free memory before and after. Other programs on the device may allocate or free in
// between, so the number is only printed; whether the plan fits is decided by what is free.
void memory_measure(MemoryPlan *m, MemoryName line, size_t before, size_t after);
// Ends the run with a fault where a line has taken other bytes than were declared.
void memory_check_taken(const MemoryPlan *m);

// ---- mesh.h ---------------------------------------------------------------------------------------------------------
// The group of the ranks first, first + stride, ..., of which `rank` is one. Free .rank.
RankGroup rank_group(int first, int stride, int size, int rank);
// Opens the mesh of the ranks of `comm`, of which there are shape.replicas x shape.shards. Collective.
void mesh_open(Mesh *m, MPI_Comm comm, MeshShape shape, bool windows);
// For plans: the mesh that rank `rank` of `world` ranks would have, with `per_host` consecutive ranks on each host. The
// ranks need not be running, and the mesh has no communicators.
void mesh_pretend(Mesh *m, MeshShape shape, bool windows, int rank, int world, int per_host);
// The largest `mine` of all ranks; without communicators this rank's. Collective.
size_t mesh_most(const Mesh *m, size_t mine);
void mesh_close(Mesh *m);

// ---- units.h --------------------------------------------------------------------------------------------------------
static inline int64_t param_cols(const Param *p) { return p->ndim == 2 ? p->shape[1] : 1; }
// Its elements without padding rows, as files have them.
static inline int64_t param_numel(const Param *p) { return p->shape[0] * param_cols(p); }
// Runs of elements of a parameter in a shard, at most: one for each matrix whose bytes are kept. The first element of
// one of its matrices.
static inline int param_runs(const Param *p) { return p->keeps ? p->keeps : 1; }
static inline int64_t param_part_first(const Param *p, int part) {
  int64_t rows = 0;
  for (int k = 0; k < part; k++) rows += p->matrix_rows[k];
  return rows * param_cols(p);
}
// Whether all that is kept of a parameter's bytes is blocks, which ops may read as they lie.
static inline bool param_in_blocks(const Param *p) {
  bool blocks = p->keeps > 0;
  for (int k = 0; k < p->keeps; k++) blocks = blocks && block_values(p->kept[k].type) > 1;
  return blocks;
}
// Whether a parameter is in checkpoints of adapters: a factor, or one of which some rows train beside them.
static inline bool param_trains_beside(const Param *p) { return p->adapter || p->row_end; }
// Whether a glob names it: *, ? and [] as in a shell.
bool param_matches(const Param *p, const char *glob);
// Marks as frozen each parameter that matches one of the comma-separated globs of `patterns`. Returns false, with one
// line in `error`, if a glob matches nothing or nothing is left to train.
bool params_freeze(Param *param, int params, const char *patterns, char *error, size_t error_bytes);
// Chooses the units and fills in param[].unit. Returns a malloc'ed array of *units units, in order of stages. least: of
// WRAP_MIN_PARAMS.
Unit *units_wrap(Param *param, int params, WrapPolicy policy, int64_t least, int *units);
// The part of parameter p that is in the shard of rank i (Span), behind its first `past` elements there; false if there
// is none. Where bytes are kept there may be more of it behind that run, in another piece.
bool shard_run(const Unit *u, const Param *p, int i, Span *run, int64_t past = 0);
// Of elements [first, first + n) of a gradient shard those of piece i (PieceRun); false if there are none.
bool piece_run(const Unit *u, int i, int64_t first, int64_t n, PieceRun *run);
// Bytes of a rank's parameter shard without these gaps: what a gather sends.
int64_t unit_wire_bytes(const Unit *u);

// ---- state.h --------------------------------------------------------------------------------------------------------
Traffic traffic_add(Traffic x, Traffic y, int sign);
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
static inline size_t fsdp_wire_bytes(const Fsdp *f) { return dtype_bytes(f->cfg.wire_dtype); }
static inline int fsdp_shards(const Fsdp *f) { return f->cfg.mesh.shards; }
// Whether partial sums are passed from replica to replica.
static inline bool fsdp_chains(const Fsdp *f) { return f->cfg.mesh.replicas > 1 && !f->cfg.native_reduce; }
static inline bool fsdp_offloads(const Fsdp *f) { return f->cfg.offload != OFFLOAD_NONE; }
int fsdp_param_moments(const Fsdp *f, const Param *p);
// Working memory at an offset; parameter shards at theirs, which may lie elsewhere.
static inline char *fsdp_work(const Fsdp *f, size_t at) { return work_at(f->mem.work, at); }
static inline char *fsdp_home(const Fsdp *f, size_t at) { return work_at(f->mem.params_home, at); }

// ---- op_calls.h -----------------------------------------------------------------------------------------------------
extern TouchSink *touch_of_host;                 // of contexts without a device, an optimizer's on the host; NULL: none
// A context that has w->ops must have a device of `real`. Copies are not watched: see watch_copies.
void watch_table(OpWatch *w, const Ops *real);
// Also of copies and zeroing: every context for which they are called has a table that is watched.
void watch_copies(OpWatch *w);

// ---- record.h -------------------------------------------------------------------------------------------------------
static inline RecordStream record_stream(const Ctx *c) { return (RecordStream)(intptr_t)c->stream; }
static inline Record *record_of(const Ctx *c) { return (Record *)c->device; }
void record_open(Record *r);
static inline void record_close(Record *r) { free(r->entry); free(r->name); }
void plan_event_open(Ctx *c, void **event, const char *);
// The planning table; `gpu`: of a device whose calls return before they are done. What a step does not call is absent.
Ops plan_table(bool gpu);
// The host reads or writes memory that a stream accesses, too.
void record_host(Record *r, AccessKind kind, const void *p, size_t bytes);

// ---- note.h ---------------------------------------------------------------------------------------------------------
// microbatch: MICROBATCH_NONE, or of this rank in its step. mark: what the device says when it comes here.
void note_phase(Fsdp *f, const char *phase, int microbatch, int mark);
static inline void note_phase_end(Fsdp *f) { f->ctx->ops->range_end(f->ctx); }

// ---- finite.h -------------------------------------------------------------------------------------------------------
// The same table, but that it looks. A context that has it must have a device of `real`.
void finite_table(FiniteTable *t, const Ops *real, Finite *x);

// ---- placement.h ----------------------------------------------------------------------------------------------------
size_t placement_bytes(const Placement *pl);
// A buffer of the pass; nobody but the model's stream touches it. In a dry run it gets an address of its own. Later
// calls may ask for less than the dry run did.
char *declare_bytes(Declare *d, const char *name, int layer, size_t bytes);
// The ops' workspace. It alone may end between two places.
char *declare_workspace(Declare *d, size_t bytes);
Tensor declare(Declare *d, const char *name, int layer, Dtype dtype, int64_t d0, int64_t d1 = -1, int64_t d2 = -1);
// Learns from the record of a pass that was declared when its buffers are alive.
void pass_lifetimes(Placement *pl, Pass *p, const Record *r);
// Places the buffers of all passes, whose lifetimes are known.
void placement_place(Placement *pl, Pass *pass, int passes);
// Gives p the places that the same pass got.
void pass_take_places(Pass *p, const Pass *placed);
void pass_free(Pass *p);

// ---- owned.h --------------------------------------------------------------------------------------------------------
static inline size_t owned_bytes(int64_t numel) { return (size_t)numel * dtype_bytes(BF16); }
// The part of a matrix in the shard of rank `i` of the shard group: in_range counts from the matrix's first element,
// in_piece from the first of that rank's part of the piece. Returns false when there is none.
bool owned_run(const Fsdp *f, const OwnedMatrix *x, int i, Span *run);
// Whether this rank gives its run of a matrix to the owner: its replica is the owner's.
bool owned_gives(const Fsdp *f, const OwnedMatrix *x);
// Deals `count` matrices out to `world` ranks. With more ranks than matrices, owners are spread over them.
void owned_deal(OwnedMatrix *x, int count, int world);
// Bytes of updates that this rank receives in a step: from ranks of its host, or from others.
int64_t owned_wire_bytes(const Fsdp *f, bool near);

// ---- hosts.h --------------------------------------------------------------------------------------------------------
// Shard groups in which a host's ranks are not consecutive.
int hosts_out_of_order(const Mesh *m);
// Whether sums go along the hosts of every shard group that spans several. Alike on all ranks. By itself: where the
// busiest host has fewer bytes to send or receive; on GPUs not, because nothing of it was measured there yet.
bool hosts_chosen(const FsdpConfig *c, const Mesh *m, bool gpu);
// One line in `error` if --between_hosts chain was asked for where it cannot be; false then.
bool hosts_check(const FsdpConfig *c, const Mesh *m, bool gpu, char *error, size_t error_bytes);

// ---- layout.h -------------------------------------------------------------------------------------------------------
// How often a step of A microbatches gathers block l: see fsdp.h.
int64_t fsdp_block_gathers(const FsdpConfig *c, int l, int A);
// What comes of a reduction of unit u. first: of the step. Between hosts: only known of sums along them.
HostsTraffic fsdp_hosts_traffic(const Fsdp *f, const Unit *u, bool first);
// The formulas of traffic, per rank and step of A microbatches a rank.
Traffic fsdp_formula(const Fsdp *f, int A);
// Lays out units and decides chunks, as rank mesh.rank sees it; allocates nothing big and asks nobody. `mesh` and
// `param` are owned by f from here on.
void fsdp_layout(Fsdp *f, Ctx *ctx, Mesh mesh, FsdpConfig cfg, Param *param, int params);
// Declares all memory of the sharding layer in m, which must stay where it is, and f too, until it is taken.
void fsdp_declare(Fsdp *f, MemoryPlan *m);
// What shares memory with gradient slots lies in a window. Returns whether every host has room for that (a container's
// /dev/shm may be 64 MiB); if not, nothing is to be shared, on all ranks alike. Collective.
bool fsdp_shared_slots_fit(Fsdp *f);

// ---- transport.h ----------------------------------------------------------------------------------------------------
void step_event_record(Ctx *c, StepEvent *e);
// The stream of ctx waits for the event, if it was recorded in this step.
void step_event_wait(Ctx *c, const StepEvent *e);
// Along hosts: whether the sum of a part comes to this rank by messages.
bool hosts_receives_part(const Fsdp *f, int part);
GatherSource fsdp_source(const Fsdp *f, bool secondary);
// Where a gathered piece comes from and goes to, for transports.
GatherPiece fsdp_gather_piece(const Fsdp *f, GatherSource g, int u, int i);
// The replica whose sum this one goes on from: the one before; for the first one the last, of the reduction before.
int chain_before(const Fsdp *f);

// ---- transport_updates.h --------------------------------------------------------------------------------------------
// Whether this rank sends, receives or copies anything in a round.
bool updates_move(const Fsdp *f, int round, bool back);

// ---- transport_mpi.h ------------------------------------------------------------------------------------------------
int fsdp_mpi_count(int64_t n);

// ---- transport_plan.h -----------------------------------------------------------------------------------------------
extern const Comm comm_plan;

// ---- reduce.h -------------------------------------------------------------------------------------------------------
// Moves the reduction in flight on as far as it can without waiting. Called between ops.
void fsdp_poll(Fsdp *f);
void fsdp_reduce_wait(Fsdp *f);
// Prepares the gradient buffer of stage s for backward: waits until all peers have read the gradient that was there
// before, and zeroes the gaps, which reductions and the norm read too, and where other data may have been.
void fsdp_grads_prepare(Fsdp *f, int s);
// The whole gradient of parameter p, in the buffer that fsdp_grads_prepare has prepared: in the wire dtype, or in fp32
// where gradients are added up there. data is NULL if p is frozen.
Tensor fsdp_grad(Fsdp *f, int p);
// Whether the a-th microbatch's gradients of stage s overwrite their buffer or are added to it.
Accumulate fsdp_grad_mode(const Fsdp *f, int s, int a);
// Starts reducing stage s's gradient into the fp32 shards, if this is due. a: this rank's microbatch of `microbatches`
// in the step. Collective.
void fsdp_reduce(Fsdp *f, int s, int a, int microbatches);

// ---- gather.h -------------------------------------------------------------------------------------------------------
int fsdp_slot_number(const Fsdp *f, int s);
static inline GatherSlot *fsdp_slot(Fsdp *f, int s) { return &f->gather.slot[fsdp_slot_number(f, s)]; }
// Starts gathering stage s, unless it is still whole in its slot. Block l lives in slot l mod K. Collective: all ranks
// call it for the same stages in the same order.
void fsdp_gather(Fsdp *f, int s);
// Starts gathering the stages that the model will need after s, as far as slots reach.
void fsdp_prefetch(Fsdp *f, int s, int direction, int last);
// Parameter p in its gathered stage, as it is stored; of one whose bytes are kept the given matrix, (rows, bytes of a
// row) of type Param.kept says.
Tensor fsdp_stored(const Fsdp *f, int p, int part = 0);
// The same of all matrices of one that has no copy in the compute dtype: matrix multiplies take it in place of
// fsdp_weight, which then has no data. Of any other: absent.
QuantMatrix fsdp_quant(const Fsdp *f, int p);
Tensor fsdp_scale(const Fsdp *f, int p);
// Waits until stage s is whole: its weights may be read until fsdp_release. matrices: those in E4M3 and in blocks are
// wanted in the compute dtype.
void fsdp_wait(Fsdp *f, int s, bool matrices);
// Parameter p, whole, in the compute dtype; rows include the padding rows. Its stage has been waited for.
Tensor fsdp_weight(Fsdp *f, int p);
// An E4M3 matrix as it is stored; its scale is fsdp_scale.
static inline Tensor fsdp_weight_e4m3(Fsdp *f, int p) { return fsdp_stored(f, p); }
// Stage s is not read any more. Its slot may take another stage; until then the stage stays whole in it.
void fsdp_release(Fsdp *f, int s);
// Begins a step, or any other pass over the model. Other streams continue only after everything that was enqueued on
// the model's stream so far. Nothing gathered by an earlier pass is used: a replayed graph changes weights and slots
// without the host seeing it, and a pass that is captured must gather everything itself. training: backward follows
// forward. Collective.
void fsdp_step_begin(Fsdp *f, bool training);
// Waits for everything enqueued on the model's stream, and checks meanwhile whether NCCL has lost a peer: a stream that
// waits for a lost peer would never end.
void fsdp_sync(Fsdp *f);

// ---- sharded_state.h ------------------------------------------------------------------------------------------------
// Where this rank's part of piece i of unit u is in an fp32 state. NULL if it is not there: a frozen piece has only
// masters, and those only if it is stored in fp32; a master in two halves is not stored in fp32.
float *fsdp_piece_state(const Fsdp *f, ShardState state, int u, int i);
// The elements of parameter p that this rank owns, and where they are in an fp32 state (NULL: not there). Returns false
// if it owns none.
bool fsdp_own(const Fsdp *f, ShardState state, int p, Span *run, float **at);
// After fsdp_reduce_wait, once a step: the model may read the gradient shards.
void fsdp_returns_wait(Fsdp *f);
// Waits until all reductions of the step are complete. Then adds the squares of this rank's gradient shards to limbs,
// in device memory. Only the last replica adds its squares: it is the first to have the sum of all replicas.
void fsdp_norm_accumulate(Fsdp *f, int64_t *limbs);
// Gathers `bytes` of every rank into `all`, in order of ranks, in device memory; once a step. Collective.
void fsdp_small_all_gather(Fsdp *f, const void *mine, void *all, size_t bytes);
// Makes all parameter shards from the masters, after these were changed. Collective.
void fsdp_publish(Fsdp *f);
// Ends a step: what was gathered is stale, and peers may read the new shards from now on. Collective.
void fsdp_step_end(Fsdp *f);
static inline bool fsdp_needs_measure(const Fsdp *f) { return f->lay.scales > f->lay.scales_trained; }
// Before a PASS_MEASURE.
void fsdp_forget_scales(Fsdp *f);
// Sets the E4M3 scales from the magnitudes that all ranks have measured. Collective.
void fsdp_frozen_scales(Fsdp *f);
// Sets elements [at, at + n) of those that this rank owns of parameter p, in a state, to values in host memory. After
// changes of STATE_MASTER call fsdp_publish and fsdp_step_end.
void fsdp_set_own(Fsdp *f, ShardState state, int p, int64_t at, const float *host, int64_t n, ValuePass pass);
// The same of a parameter whose bytes are kept, to whole blocks as they are stored. The type of those that element `at`
// is in.
void fsdp_set_own_blocks(Fsdp *f, int p, int64_t at, const void *blocks, int64_t n);
int fsdp_own_type(const Fsdp *f, int p, int64_t at);
// Copies elements [at, at + n) of those that this rank owns of parameter p, in a state, to host memory. A frozen
// parameter without a master gives its stored values, widened to fp32. A moment that it does not have reads as zero.
void fsdp_get_own(Fsdp *f, ShardState state, int p, int64_t at, float *host, int64_t n);
// beside: with what trains beside them, adapters and rows. Collective.
uint64_t fsdp_weights_hash(Fsdp *f, bool beside = false);
// Whether all weights are finite; else the first that is not, by its parameter. Every rank gets the same. Collective.
bool fsdp_weights_finite(Fsdp *f, int *param, int64_t *element);
// Initialises the shards that this rank owns. Random numbers are counted by parameter and element, so that values do
// not depend on the number of ranks. Collective; ends with a barrier.
void fsdp_init_params(Fsdp *f, uint64_t seed);

// ---- layers.h -------------------------------------------------------------------------------------------------------
LayerNorms layer_norms(const Fsdp *f, int u);

// ---- update.h -------------------------------------------------------------------------------------------------------
// One optimizer step on the own shards, by what ctx->state says (offloaded: host_ctx.state, which the caller has waited
// for); gathered copies become stale. Padding is zero, has no gradient and stays zero. A skipped step writes nothing
// and publishes what was there. Collective with fp8.
void fsdp_update(Fsdp *f, OptimizerArgs a);

// ---- open.h ---------------------------------------------------------------------------------------------------------
// Opens what takes memory of its own, and notes in the plan how much. Collective, before fsdp_open.
void fsdp_connect(Fsdp *f, MemoryPlan *plan);
// Takes all memory that the plan has, the caller's too. Collective.
void fsdp_open(Fsdp *f);
// Frees what fsdp_layout took.
void fsdp_layout_free(Fsdp *f);
void fsdp_close(Fsdp *f);

// ---- dry_run.h ------------------------------------------------------------------------------------------------------
// Makes `dry` the layer of the same rank as f, over the planning table of ctx: laid out as f is, with places of its
// own, which fsdp_declare gives it. cfg: f's, with fewer microbatches and no pools.
void fsdp_dry_layout(Fsdp *dry, const Fsdp *f, Ctx *ctx, FsdpConfig cfg);
// Opens it: its memory is addresses of `r`.
void fsdp_dry_open(Fsdp *f, MemoryPlan *plan, Record *r);
void fsdp_dry_close(Fsdp *f);
// Tells the placement which pools there are and what of f lies in them, at the addresses of the dry run.
void fsdp_pools(const Fsdp *f, Placement *p);
// Follows a placement: sizes of pools, what is shared, and where a training step waits, as long as `train` lives, a dry
// run of `microbatches`.
void fsdp_take_placement(Fsdp *f, const Placement *p, const Pass *train, int microbatches);
