// fsdp.h: fully sharded data parallelism (ZeRO-3) and every mode around it, inlined. Parameters, gradients and
// optimizer state are cut over the ranks; what the model needs is gathered just before it computes and its gradient is
// reduced just after. Rajbhandari et al. 2020 (ZeRO), Zhao et al. 2023 (PyTorch FSDP), Wang et al. 2024 (ZeRO++).
//
// The parts, each a file, in the order in which they are built on each other:
//   fsdp/plan.h            the second public header: results for plans, predictions, reports and traces; dry runs
//   fsdp/types.h           the types of all parts: what follows from the configuration once and for all, and what
//                          changes: struct Fsdp
//   fsdp/mesh.h            replicas x shards: who is where
//   fsdp/units.h           parameters -> units -> pieces: which rank owns which elements, as data
//   fsdp/state.h           short functions over struct Fsdp that every part uses
//   fsdp/record.h          what a run does, entry by entry: for proofs of its order, and for dry runs
//   fsdp/placement.h       buffers that are never live at once share memory
//   fsdp/owned.h           Muon: which rank computes the update of which matrix
//   fsdp/hosts.h           inter-node reduction chain: gradients cross hosts as fp32 partial sums
//   fsdp/layout.h          decisions and the list of all buffers
//   fsdp/transport.h       struct Comm: the table of functions that each transport fills
//   fsdp/transport_self.h, windows.h, transport_mpi.h, transport_nccl.h, transport_plan.h: the transports
//   fsdp/transport_updates.h   Muon's matrices, sent by any of the transports
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
//   full_shard (zero3)      mesh 1 x N; K all-gather buffers: a block is gathered for its forward and again for its
//                           backward
//   shard_grad_op (zero2)   K = L slots: every block is gathered once per step
//   zero1                   zero2, and each rank adds up whole gradients: one reduction and one gather per step
//   hybrid_shard            mesh R x S: full_shard inside each replica; fp32 sums of gradient shards are passed from
//                           replica to replica, and the last replica's result is broadcast to all during backward
//   no_shard (ddp)          mesh N x 1: a shard is the whole, nothing is gathered
//   reshard_after_forward   on: K slots, off: K = L, G: a block's first gather of a step leaves 1/G of it on every
//                           rank, and later ones only ask the G neighbours that hold the rest
//   dtypes                  stored and gathered in param_dtype (matrices in E4M3 with fp8, frozen ones as the bytes of
//                           their file with base_dtype), computed in compute_dtype, reduced in wire_dtype; what is
//                           gathered in another dtype is expanded after its arrival.
//                           Masters are fp32: the parameter itself, or an fp32 copy beside it, or, beside a bf16
//                           parameter, the low 16 bits of its master
//   offload                 masters, moments and gradient shards are in host memory, and parameter shards if asked
//   in place                where every shard group is on one host and shares its memory (CPU, windows): the ranks'
//                           parts of a unit are stored one after the other, as a gather would store them, so the unit
//                           is whole already and weights are read from it. There is no gather and no slot.
//                           Each rank writes only its own part, in its update, after all ranks have read the unit.
//                           One rank alone whose wire dtype is fp32 adds up gradients in its shard
//
// Devices. Everything an op touches is device memory; on a CPU that is host memory. Three streams: the model's, one for
// gathers, one for reductions, ordered by events; the host waits for them only where it takes part itself (messages,
// windows, an offloaded optimizer). On a CPU a call is done when it returns, so streams and events do nothing there;
// the schedule is the same code. Whoever adds an access to memory that another stream touches adds the wait that orders
// it; the code that makes an access without an op also records it (fsdp/record.h). The tests remove each wait
// once and must then fail.
//
// Traffic, per rank and step, for a mesh of R x S, L blocks, K all-gather buffers, A microbatches per rank, r this
// rank's replica, F the lowest block whose backward is needed (0 unless the ones below and the embeddings are frozen).
// |u|: what a rank's shard of unit u communicates, padding between ranks included: elements e(u) of what trains,
// bytes g(u) as gathered. b: bytes of reduce_dtype. l' = min(F, L - K).
//   gathers of block l      1 + A [l' <= l < L - K] + (A-1) [not l' <= l < K], of everything else 1
//                           each (S-1) g(u); with reshard G all but the first (G-1) (S/G) g(u)
//                           none where shards are read zero-copy: nothing is moved
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
// reduce_dtype (its own too, and at N = 1): one left fold, the same for every N that divides the number of
// microbatches, every mesh, layout, wrap and slot count. Replicas pass the running sum on, in order. Only --reduce
// native gives the order away, to NCCL, and --accumulate local adds a rank's own microbatches first.
#pragma once
#include "kernels/ops.h"

struct Fsdp;                                     // fsdp/types.h; one a rank, and one more in each dry run
struct MemoryPlan;                               // fsdp/plan.h

// ---- parameters -----------------------------------------------------------------------------------------------------
enum Init { INIT_NORMAL, INIT_ZERO, INIT_ONE };
struct Param {
  char name[64];
  int ndim;
  int64_t shape[2];                              // as the user and every file see it
  int64_t padded_rows;                           // rows in memory; the ones beyond shape[0] are zero and stay so
  Init init;
  float std;                                     // of INIT_NORMAL
  bool decay;                                    // weight decay applies
  float lr_scale;                                // factor of its learning rate
  bool linear;                                   // weight of a block's matrix multiply: E4M3 with --fp8; Muon's
  int matrices;                                  // matrices that it stacks by rows: 3 for q/k/v, 2 for gate/up
  int64_t matrix_rows[3];                        // rows of each of them
  bool frozen;                                   // no gradient, no optimizer state
  bool adapter;                                  // LoRA's factor of a frozen matrix: fp32, alone in checkpoints
  int64_t row_from, row_end;                     // only rows [row_from, row_end) train; row_end 0: all rows, or none
  int adapts;                                    // adapter: number of the parameter that it adapts
  unsigned parts;                                // adapter: bit i is set if matrix i of that parameter has an adapter
  // Frozen, kept quantized as its file's bytes: `keeps` matrices (else 0), and of each the type of its quantization
  // blocks, or of its numbers (blocks.h).
  int keeps, kept[3];
  bool read_in_blocks;                           // the model reads it quantized where matrix multiplies can
  int stage;                                     // the stage that needs it
};
enum { PARAM_ALIGN_BYTES = 256, PARAM_ALIGN_NUMEL = 128 };       // 128 elements: 256 bytes in every dtype but E4M3
static inline int64_t param_cols(const Param *p) { return p->ndim == 2 ? p->shape[1] : 1; }
// Its elements without padding rows, as files have them.
static inline int64_t param_numel(const Param *p) { return p->shape[0] * param_cols(p); }
// Its elements in memory: with padding rows, which a parameter that is kept quantized does not have.
static inline int64_t param_numel_padded(const Param *p) {
  return (p->keeps ? p->shape[0] : p->padded_rows) * param_cols(p);
}
// The first element of one of its matrices.
static inline int64_t param_part_first(const Param *p, int part) {
  int64_t rows = 0;
  for (int k = 0; k < part; k++) rows += p->matrix_rows[k];
  return rows * param_cols(p);
}
// Whether all matrices of a parameter are kept as quantization blocks, which ops may read as stored.
bool param_in_blocks(const Param *p);
// Whether a parameter is in checkpoints of adapters: a factor of LoRA, or a matrix of which some rows train.
static inline bool param_trains_beside(const Param *p) { return p->adapter || p->row_end; }

// ---- configuration --------------------------------------------------------------------------------------------------
enum WrapPolicy { WRAP_BLOCK, WRAP_MODEL, WRAP_MIN_PARAMS };
enum ShardLayout : int { SHARD_FLAT, SHARD_DIM0 };
enum OptimizerKind : int { OPTIMIZER_ADAMW, OPTIMIZER_SGD, OPTIMIZER_MUON };   // MUON: AdamW for all but its matrices
enum CommKind { COMM_SELF, COMM_MPI, COMM_NCCL };
enum Fp8 : int { FP8_OFF, FP8_GATHER, FP8_MATMUL };    // matmul: the forward products take E4M3 weights too
enum BetweenHosts : int { BETWEEN_AUTO, BETWEEN_CHAIN, BETWEEN_DIRECT };   // how gradients go between hosts (hosts.h)
enum Offload : int { OFFLOAD_NONE, OFFLOAD_OPTIMIZER, OFFLOAD_PARAMS };        // PARAMS: parameters and optimizer
struct MeshShape { int replicas, shards, secondary; };         // R, S, ranks of a secondary group (0: none)
struct FsdpConfig {
  Dtype param_dtype, compute_dtype, wire_dtype;
  MeshShape mesh;
  ShardLayout layout;
  WrapPolicy wrap;
  int64_t wrap_least;                            // WRAP_MIN_PARAMS: elements that make a module a unit
  int blocks, gather_slots;                      // L blocks, K all-gather buffers for them
  int first_backward;                            // F: backward does not go below this block
  int64_t microbatches;                          // A: microbatches of one rank in one step
  bool local;                                    // each rank adds up whole gradients; they are reduced once per step
  Fp8 fp8;
  Offload offload;
  const Ops *host_ops;                           // the CPU ops of an offloaded optimizer
  OptimizerKind optimizer;
  Dtype moment_dtype;                            // F32, or BF16, stochastically rounded: of AdamW alone
  CommKind comm;
  bool windows, copies;                          // COMM_MPI: ranks of one host read each other's memory; copies:
                                                 // parameters are copied from there, not read zero-copy
  bool comms_of_one;                             // COMM_NCCL: a single rank opens communicators all the same (for
                                                 // tests on one GPU)
  bool native_reduce;                            // COMM_NCCL: NCCL adds, in its own order
  BetweenHosts between;
  size_t small_bytes;                            // bytes that each rank gives to the step's small all-gather
  bool log_layers;                               // norms of each unit are added up in each step (layers.h)
  bool weights_only;                             // evaluation and sampling only: no gradients, optimizer or reductions
};
struct OptimizerArgs { OptimizerKind kind; AdamwArgs adamw; SgdArgs sgd; MuonArgs muon; };
// What this rank has received: collectives by line of the plan, and bytes. returns: broadcasts of a unit's sum to all
// replicas. replicate_bytes: sums along the replicas, and these broadcasts. All ranks together send as much as they
// receive.
struct Traffic {
  int64_t gathers, reductions, returns, updates, small;
  int64_t gather_bytes, reduce_bytes, replicate_bytes, update_bytes, small_bytes;
};

// ---- its life -------------------------------------------------------------------------------------------------------
// The ranks of a run. comm: the communicator of all of them. MPI_COMM_NULL: the layer is a plan's, for rank `rank` of
// `world` ranks with per_host consecutive ranks on each host; none of these ranks need be running.
struct FsdpRanks { MPI_Comm comm; int rank, world, per_host; };
// Makes a rank's layer: lays out its units, places and rounds, and allocates no model-sized memory. The layer takes
// over `param`, a malloc'ed array; ctx is the model's. With a communicator: one line in `error` if the ranks' hosts do
// not support cfg; the program can then only end. All ranks of comm call it. fsdp_close frees the layer, or, if it was
// not opened, fsdp_layout_free.
Fsdp *fsdp_layout(FsdpRanks ranks, Ctx *ctx, FsdpConfig cfg, Param *param, int params, Error *error);
void fsdp_layout_free(Fsdp *f);
// Declares all memory of the sharding layer in m. Neither f nor *m may move until fsdp_open has taken the memory.
void fsdp_declare(Fsdp *f, MemoryPlan *m);
// Opens libraries with memory of their own (NCCL); the plan then says how much. All ranks call it before fsdp_open.
void fsdp_connect(Fsdp *f, MemoryPlan *plan);
// Allocates all memory declared in the plan, the caller's too; nothing may be declared afterwards. All ranks call it.
void fsdp_open(Fsdp *f);
void fsdp_close(Fsdp *f);
// What the layer does for its caller from now on. marks: NULL, or words in which the device counts its progress, one
// per DeviceMark. background: NULL, or a function that is called with background_to whenever messages are moved on.
struct FsdpHooks { uint32_t *marks; void (*background)(void *to); void *background_to; };
void fsdp_hook(Fsdp *f, FsdpHooks h);

// ---- where this rank is; shard, replica: its numbers in its groups --------------------------------------------------
const FsdpConfig *fsdp_config(const Fsdp *f);
int fsdp_rank(const Fsdp *f);
int fsdp_world(const Fsdp *f);
int fsdp_shard(const Fsdp *f);
int fsdp_replica(const Fsdp *f);
int fsdp_hosts(const Fsdp *f);
int fsdp_host_world(const Fsdp *f);              // ranks of this host
MPI_Comm fsdp_comm(const Fsdp *f);               // all ranks
MPI_Comm fsdp_host_comm(const Fsdp *f);          // this host's ranks
int fsdp_mpi_count(int64_t n);                   // n as an int, which MPI's counts are; it must fit
// The largest `mine` among all ranks; in a plan, whose ranks do not run, this rank's. All ranks call it.
size_t fsdp_most(const Fsdp *f, size_t mine);
bool fsdp_device_sends(const Fsdp *f);           // NCCL: the host enqueues collectives and does not take part in them
bool fsdp_has_adapters(const Fsdp *f);
bool fsdp_blocks_in_root(const Fsdp *f);         // --wrap put parameters of blocks into stage 0
int fsdp_stages(const Fsdp *f);
int fsdp_params(const Fsdp *f);
const Param *fsdp_param(const Fsdp *f, int p);   // an array's element: parameters in the order given to fsdp_layout
Traffic fsdp_traffic(const Fsdp *f);             // counted so far
// Sets the counters: adds a replayed graph's traffic, which no code counts, or takes out what is not to be counted.
void fsdp_set_traffic(Fsdp *f, Traffic x);
Traffic traffic_add(Traffic x, Traffic y, int sign);

// ---- a step ---------------------------------------------------------------------------------------------------------
// Starts a step, or any other pass over the model. Other streams continue only after everything that was enqueued on
// the model's stream so far. Nothing gathered by an earlier pass is used: a replayed graph changes weights and slots
// without the host seeing it, and a pass that is captured must gather everything itself. training: backward follows
// forward. All ranks call it.
void fsdp_step_begin(Fsdp *f, bool training);
// Starts a phase (forward, backward, update). microbatch: its number among this rank's in the step, or MICROBATCH_NONE.
// mark: the code that the device stores in the hooks' marks when its stream reaches this point.
void fsdp_phase_begin(Fsdp *f, const char *phase, int microbatch, int mark);
void fsdp_phase_end(Fsdp *f);
// Records that the host reads or writes memory that a stream also accesses; tests prove the order from the record.
void fsdp_host_touches(Fsdp *f, bool writes, const void *p, size_t bytes);
// Starts gathering stage s, unless it is still whole in its slot. Block l lives in slot l mod K. All ranks call it,
// for the same stages in the same order.
void fsdp_gather(Fsdp *f, int s);
// Starts gathering the stages after s, in steps of `direction` (1 or -1), up to stage `last` and at most K - 1 of them.
void fsdp_prefetch(Fsdp *f, int s, int direction, int last);
// Waits until stage s is whole: its weights may be read until fsdp_release. matrices: whether matrices stored in E4M3
// or in quantization blocks must also be expanded to the compute dtype.
void fsdp_wait(Fsdp *f, int s, bool matrices);
// Parameter p, whole, in the compute dtype; rows include the padding rows. Its stage has been waited for.
Tensor fsdp_weight(Fsdp *f, int p);
// Parameter p, whole, in the dtype in which it is stored. Kept quantized: its matrix number `part` as a tensor of
// (rows, bytes of a row), of the type in Param.kept[part].
Tensor fsdp_stored(const Fsdp *f, int p, int part = 0);
// All matrices of a parameter that is kept quantized and has no copy in the compute dtype: matrix multiplies take it in
// place of fsdp_weight, which then has no data. For any other parameter it has no parts.
QuantMatrix fsdp_quant(const Fsdp *f, int p);
Tensor fsdp_scale(const Fsdp *f, int p);         // the scale of a parameter stored in E4M3
// The model has read stage s for now. Its slot may take another stage; until then stage s stays whole in it.
void fsdp_release(Fsdp *f, int s);
// Prepares the gradient buffer of stage s for backward: waits until all peers have read the gradient that was there
// before, and zeroes the gaps between parameters where other data may have been: reductions and the norm read the gaps.
void fsdp_grads_prepare(Fsdp *f, int s);
// The whole gradient of parameter p, in the buffer that fsdp_grads_prepare has prepared: in reduce_dtype, or in fp32
// where gradients are added up there. data is NULL if p is frozen.
Tensor fsdp_grad(Fsdp *f, int p);
// Whether the a-th microbatch's gradients of stage s overwrite their buffer or are added to it.
Accumulate fsdp_grad_mode(const Fsdp *f, int s, int a);
// Starts reducing stage s's gradient into the fp32 shards, if this is due. a: this rank's microbatch of `microbatches`
// in the step. All ranks call it.
void fsdp_reduce(Fsdp *f, int s, int a, int microbatches);
// Advances the reduction in flight as far as it can without waiting. Called between ops.
void fsdp_poll(Fsdp *f);
void fsdp_reduce_wait(Fsdp *f);                  // until no reduction is in flight
// After fsdp_reduce_wait, once per step: the model may read the gradient shards.
void fsdp_returns_wait(Fsdp *f);
// Waits until all reductions of the step are complete. Then adds the squares of this rank's gradient shards to `limbs`,
// an exact sum of NORM_LIMBS integers in device memory. Only the last replica adds its squares: it is the first to have
// the sum of all replicas.
void fsdp_norm_accumulate(Fsdp *f, int64_t *limbs);
// Gathers `bytes` from every rank into `all`, in order of ranks; both are device memory. All ranks call it once a step.
void fsdp_small_all_gather(Fsdp *f, const void *mine, void *all, size_t bytes);
// One optimizer step on this rank's shards, with the step's state (whether it is skipped, clipping) in ctx->state, or,
// for an offloaded optimizer, in `host`, a copy of it that the caller has waited for. Gathered copies become stale.
// Padding is zero, has no gradient and stays zero. A skipped step changes nothing. With fp8 all ranks call it.
void fsdp_update(Fsdp *f, OptimizerArgs a, StepState *host);
// Makes all parameter shards from the masters, after these were changed. All ranks call it.
void fsdp_publish(Fsdp *f);
// Ends a step: what was gathered is stale, and peers may read the new shards from now on. All ranks call it.
void fsdp_step_end(Fsdp *f);
// Waits for everything enqueued on the model's stream, and checks meanwhile whether NCCL has lost a peer: a stream that
// waits for a lost peer would never end.
void fsdp_sync(Fsdp *f);

// ---- state in and out -----------------------------------------------------------------------------------------------
enum ShardState { STATE_MASTER, STATE_M, STATE_V, STATE_GRAD };
// Parameters without an fp32 master, frozen or split, take new values through scratch memory, where they are rounded or
// cut into halves. A frozen E4M3 matrix needs its scale first: all values are given twice, with PASS_MEASURE, after
// fsdp_forget_scales, and, after fsdp_frozen_scales, with PASS_STORE.
enum ValuePass { PASS_STORE, PASS_MEASURE };
// A run of a parameter's elements in a shard: `numel` elements, which start in_range elements after the parameter's
// first and in_piece elements after the first of that rank's part of the piece. part: the matrix that the run is of, if
// the parameter is kept quantized (else 0); more runs of the parameter may follow, in other pieces.
struct Span { int64_t in_range, in_piece, numel; int part = 0; };
// Fills in the run of parameter p in the shard of rank `shard` of the shard group, after the first `past` elements of p
// in that shard. Returns false if there is none.
bool fsdp_span(const Fsdp *f, int p, int shard, Span *span, int64_t past = 0);
// Sets elements [at, at + n) of those that this rank owns of parameter p, in a state, to values in host memory. After
// changes of STATE_MASTER call fsdp_publish and fsdp_step_end.
void fsdp_set_own(Fsdp *f, ShardState state, int p, int64_t at, const float *host, int64_t n, ValuePass pass);
// Copies elements [at, at + n) of those that this rank owns of parameter p to host memory. A frozen parameter without a
// master gives its stored values, widened to fp32. A moment that p does not have reads as zero.
void fsdp_get_own(Fsdp *f, ShardState state, int p, int64_t at, float *host, int64_t n);
// All elements that this rank owns of parameter p in a state, if the host can read them where they are; else NULL.
float *fsdp_own_on_host(const Fsdp *f, ShardState state, int p);
// Starts a copy of all elements that this rank owns of parameter p to pinned host memory `to`, bypassing the caches;
// fsdp_snapshot_wait waits for all such copies. A moment that p does not have is left out.
void fsdp_snapshot_own(Fsdp *f, ShardState state, int p, float *to);
void fsdp_snapshot_wait(Fsdp *f);
// fsdp_set_own_blocks sets elements [at, at + n) of those that this rank owns of a parameter kept quantized, to whole
// quantization blocks as stored; fsdp_own_type is the block type of own element `at`.
void fsdp_set_own_blocks(Fsdp *f, int p, int64_t at, const void *blocks, int64_t n);
int fsdp_own_type(const Fsdp *f, int p, int64_t at);
// What is kept of parameter p: the dtype in which it is stored and gathered, the number of its moments (0 to 2), and
// whether Muon updates its matrices, each on one rank.
struct ParamState { Dtype dtype; int moments; bool owned; };
ParamState fsdp_param_state(const Fsdp *f, int p);
bool fsdp_needs_measure(const Fsdp *f);          // there are frozen E4M3 matrices
void fsdp_forget_scales(Fsdp *f);
void fsdp_frozen_scales(Fsdp *f);                // sets scales from what all ranks measured. All ranks call it
// A hash of all weights but those of param_trains_beside; with `beside` of these, too. All ranks call it.
uint64_t fsdp_weights_hash(Fsdp *f, bool beside = false);
// Whether all weights are finite; if not, *param and *element are the first one that is not. Every rank gets the same
// result. All ranks call it.
bool fsdp_weights_finite(Fsdp *f, int *param, int64_t *element);
// Initialises the shards that this rank owns. Random numbers are counted by parameter and element, so that values do
// not depend on the number of ranks. All ranks call it; ends with a barrier.
void fsdp_init_params(Fsdp *f, uint64_t seed);
