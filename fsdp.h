// fsdp.h: fully sharded data parallelism (ZeRO-3), inlined. Every parameter, gradient and optimizer state lives once,
// cut over the ranks; a unit (one transformer block, or the root: embeddings and final norm) is gathered just before it
// computes and its gradient is reduced just after. Rajbhandari et al. 2020 (ZeRO), Zhao et al. 2023 (PyTorch FSDP).
//
//   1 memory     MemoryPlan: every byte is planned under a name, printed, then taken under that name
//   2 mesh       who is where
//   3 units      parameters -> units -> pieces: which rank owns which elements, as data
//   4 transport  the comm table: self, mpi or nccl (kernels/transport.h); all traffic is counted there
//   5 gather     fsdp_gather / fsdp_wait / fsdp_release
//   6 reduce     fsdp_grads / fsdp_reduce: ordered, so that N ranks give bit for bit what one rank gives
//   7 optimizer  norm, update, initialisation, reading and writing of sharded state
//
// What the model code sees, for unit u:
//   fsdp_gather(f,u) start    fsdp_wait(f,u) -> its parameters, whole    fsdp_release(f,u)
//   fsdp_grads(f,u) -> its gradient buffer, whole                        fsdp_reduce(f,u) start
//   fsdp_poll(f) between ops, so that messages move while we compute
//
// Devices. Everything an op touches is device memory; on a CPU that is host memory. Three streams: the model's, one for
// gathers, one for reductions, ordered by events and never by waiting on the host. On a CPU a call is done when it
// returns, so streams and events are nothing there; the schedule is the same text. Whoever adds an access to memory
// that another stream touches adds the wait that orders it: the tests remove each wait once and must then fail.
//
// Formulas, per rank and step, for N ranks, L blocks, K gather slots, A microbatches a rank. U: elements of a block
// unit, P: of all units, both padded to N equal shards. b_p, b_r: bytes of a parameter and on the wire. f = (N-1)/N.
//   gathers      1 + L + (2A-1) max(L-K, 0)            a block still whole in its slot is not gathered again
//   reductions   A (L+1)
//   wire bytes   f (root b_p + (L + (2A-1) max(L-K,0)) U b_p + A P b_r)
//   small        one all-gather (norm, losses, stop flag); over mpi a barrier too
//   memory       see fsdp_plan
// With --comm self nothing is gathered: units are read in place. fsdp_formula states this as code, a test compares it
// with the counters of part 4.
//
// Bit-identity: the owner adds contributions in order of the global microbatch m = a N + r, each first rounded to the
// wire dtype (its own too, and at N = 1): one left fold, the same for every N that divides the number of microbatches.
// Only --reduce native gives the order away, to NCCL.
#pragma once
#include "kernels/ops.h"
#include "kernels/all.h"
#include <errno.h>
#include <mpi.h>
#include <sched.h>
#include <signal.h>
#include <sys/statvfs.h>
#include <time.h>

static inline double now_ms() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}
static inline int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// ================================================================================================ 1 memory
// X(identifier, words). Lines of working memory lie on the device; on a CPU with --comm mpi those marked "shared" lie
// in a window that the other ranks of the host read. "host" lines are host memory on every device.
#define MEMORY_LINES(X) \
  X(MEM_PARAMS,       "parameter shards, shared") \
  X(MEM_MASTER,       "fp32 master shards") \
  X(MEM_OPTIMIZER,    "optimizer state shards") \
  X(MEM_GRADS,        "gradient shards, fp32") \
  X(MEM_GATHER_SLOTS, "gather slots, blocks") \
  X(MEM_ROOT_PARAMS,  "gathered root") \
  X(MEM_GRAD_SLOTS,   "gradient slots, blocks, shared") \
  X(MEM_ROOT_GRADS,   "root gradient, fp32, shared") \
  X(MEM_STAGING_OUT,  "reduction staging out, shared") \
  X(MEM_STAGING_IN,   "reduction staging in") \
  X(MEM_CONTROL,      "control block, shared") \
  X(MEM_ACTIVATIONS,  "activations and their gradients") \
  X(MEM_HEAD,         "head: logits of one chunk") \
  X(MEM_WORKSPACE,    "kernel workspace") \
  X(MEM_STEP,         "step state and exchange") \
  X(MEM_MIRROR,       "host: mirror of the shared lines") \
  X(MEM_LANDING,      "host: landing of messages") \
  X(MEM_CHECKPOINT,   "host: checkpoint buffers") \
  X(MEM_DATA,         "host: tokens, batches, sample order")

enum MemoryName {
#define X(id, words) id,
  MEMORY_LINES(X)
#undef X
  MEM_COUNT
};
static const char *const memory_words[] = {
#define X(id, words) words,
  MEMORY_LINES(X)
#undef X
};
static inline bool memory_on_host(int line) { return !strncmp(memory_words[line], "host:", 5); }

// planned: from the formulas, before anything is allocated. taken: added up by the allocator. They must be equal.
struct MemoryPlan { size_t planned_bytes[MEM_COUNT], taken_bytes[MEM_COUNT]; };

enum MemoryPart { MEMORY_ALL, MEMORY_ON_DEVICE, MEMORY_ON_HOST };
static inline size_t memory_planned_total(const MemoryPlan *m, MemoryPart part) {
  size_t total = 0;
  for (int i = 0; i < MEM_COUNT; i++)
    if (part == MEMORY_ALL || (part == MEMORY_ON_HOST) == memory_on_host(i)) total += m->planned_bytes[i];
  return total;
}

// Zeroed memory of `bytes`, counted under `line`: of the device, or pinned host memory for host lines.
static inline void *memory_take(Ctx *c, MemoryPlan *m, MemoryName line, size_t bytes) {
  void *p = NULL;
  m->taken_bytes[line] += bytes;
  c->ops->memory_alloc(c, &p, bytes, memory_on_host(line) ? MEMORY_PINNED : MEMORY_DEVICE);
  if (bytes && !p) die_missing("cannot allocate %zu bytes for %s: %s", bytes, memory_words[line], strerror(ENOMEM));
  return p;
}
static inline void memory_give_back(Ctx *c, MemoryName line, void *p, size_t bytes) {
  if (p) c->ops->memory_free(c, p, bytes, memory_on_host(line) ? MEMORY_PINNED : MEMORY_DEVICE);
}

static inline void memory_check_taken(const MemoryPlan *m) {
  for (int i = 0; i < MEM_COUNT; i++)
    CHECK(m->planned_bytes[i] == m->taken_bytes[i], "memory plan: %s was planned as %zu bytes and taken as %zu",
          memory_words[i], m->planned_bytes[i], m->taken_bytes[i]);
}

// ================================================================================================ 2 mesh
struct Peer { int host, pid; char *window; };    // window: where this process sees the peer's window; NULL if remote

struct Mesh {
  MPI_Comm comm, gather_comm, reduce_comm, node; // one communicator a purpose: message order never mixes
  int rank, world, node_rank, node_world, hosts;
  bool windows;                                  // ranks of one host share memory; else messages inside a host too
  int remote;                                    // peers reached by messages
  char host[64];
  Peer *peer;                                    // [world]
};

// Collective over `comm`. use_windows: shared memory inside a host (else point-to-point everywhere).
static inline void mesh_open(Mesh *m, MPI_Comm comm, bool use_windows) {
  memset(m, 0, sizeof *m);
  MPI_Comm_dup(comm, &m->comm);
  MPI_Comm_dup(comm, &m->gather_comm);
  MPI_Comm_dup(comm, &m->reduce_comm);
  MPI_Comm_rank(m->comm, &m->rank);
  MPI_Comm_size(m->comm, &m->world);
  MPI_Comm_split_type(m->comm, MPI_COMM_TYPE_SHARED, m->rank, MPI_INFO_NULL, &m->node);
  MPI_Comm_rank(m->node, &m->node_rank);
  MPI_Comm_size(m->node, &m->node_world);
  gethostname(m->host, sizeof m->host - 1);
  m->windows = use_windows;
  int leader = m->rank;                          // a host is named by the world rank of its first rank
  MPI_Bcast(&leader, 1, MPI_INT, 0, m->node);
  int mine[2] = {leader, (int)getpid()}, *all = (int *)malloc(sizeof(int) * 2 * (size_t)m->world);
  MPI_Allgather(mine, 2, MPI_INT, all, 2, MPI_INT, m->comm);
  m->peer = (Peer *)calloc((size_t)m->world, sizeof(Peer));
  for (int r = 0; r < m->world; r++) {
    m->peer[r].host = all[2 * r];
    m->peer[r].pid = all[2 * r + 1];
    m->hosts += all[2 * r] == r;
    m->remote += r != m->rank && !(use_windows && all[2 * r] == leader);
  }
  free(all);
}
static inline bool mesh_shares_memory(const Mesh *m, int r) {
  return m->windows && m->peer[r].host == m->peer[m->rank].host;
}

static inline void mesh_close(Mesh *m) {
  free(m->peer);
  MPI_Comm_free(&m->node);
  MPI_Comm_free(&m->reduce_comm);
  MPI_Comm_free(&m->gather_comm);
  MPI_Comm_free(&m->comm);
}

// Between two looks at a peer's counter: lets another process run (ranks may outnumber cores), and now and then asks
// whether the peers of this host still live, so that a dead rank is named instead of waited for.
static inline void mesh_pause(const Mesh *m, int *spins) {
  if (++*spins < 200) { __builtin_ia32_pause(); return; }
  sched_yield();
  if (*spins % 20000) return;
  for (int r = 0; r < m->world; r++)
    if (mesh_shares_memory(m, r) && kill(m->peer[r].pid, 0) && errno == ESRCH)
      die_missing("rank %d (pid %d on %s) has died; this rank ends too", r, m->peer[r].pid, m->host);
}

// ================================================================================================ 3 units
enum Init { INIT_NORMAL, INIT_ZERO, INIT_ONE };

struct Param {
  char name[64];
  int ndim;
  int64_t shape[2];                              // as the user and every file see it
  int64_t padded_rows;                           // rows in memory; the ones beyond shape[0] are zero and stay so
  Init init;
  float std;                                     // of INIT_NORMAL
  bool decay;                                    // weight decay applies
  int unit;
  int64_t offset, numel_padded;                  // in the unit's full buffer
};

// Rank r holds full elements [full_offset + r numel, + numel) of a piece at [shard_offset, + numel) of its shard.
// The flat layout has one piece a unit.
struct Piece { int64_t full_offset, shard_offset, numel; };
enum { MAX_PIECES = 1 };

struct Unit {
  char name[32];
  int first_param, params, pieces;
  int64_t full_numel, shard_numel;               // full = world * shard
  int64_t decay_numel;                           // of the full buffer, from its start, get weight decay; the rest none
  Piece piece[MAX_PIECES];
};

// 128 elements: parameters start on 256-byte boundaries in every dtype of two bytes or more.
enum { PARAM_ALIGN_NUMEL = 128 };

// Lays out the parameters of one unit (they are consecutive in `param`) over `world` ranks, flat. Those with weight
// decay come first, so that an update is two long runs and not one for each bias.
static inline void unit_layout(Unit *u, Param *param, int world) {
  int64_t at = 0;
  for (int decay = 1; decay >= 0; decay--) {
    for (int i = 0; i < u->params; i++) {
      Param *p = &param[u->first_param + i];
      if (p->decay != (bool)decay) continue;
      p->numel_padded = p->padded_rows * (p->ndim == 2 ? p->shape[1] : 1);
      p->offset = at;
      at += round_up(p->numel_padded, PARAM_ALIGN_NUMEL);
    }
    if (decay) u->decay_numel = at;
  }
  u->shard_numel = round_up((at + world - 1) / world, PARAM_ALIGN_NUMEL);
  u->full_numel = u->shard_numel * world;
  u->pieces = 1;
  u->piece[0] = Piece{0, 0, u->shard_numel};
}

// The part of elements [from, to) of unit u that lies in rank's shard: `numel` elements at in_range from `from` on and
// at in_shard of the shard. Returns false when there is none. (The flat layout has at most one run.)
struct Run { int64_t in_range, in_shard, numel; };
static inline bool unit_run(const Unit *u, int64_t from, int64_t to, int rank, Run *run) {
  for (int i = 0; i < u->pieces; i++) {
    const Piece *c = &u->piece[i];
    int64_t first = c->full_offset + rank * c->numel;
    int64_t a = max64(first, from), b = min64(first + c->numel, to);
    if (a >= b) continue;
    *run = Run{a - from, c->shard_offset + a - first, b - a};
    return true;
  }
  return false;
}
// The same of parameter p: in_range counts from its first element.
static inline bool shard_run(const Unit *u, const Param *p, int rank, Run *run) {
  return unit_run(u, p->offset, p->offset + p->numel_padded, rank, run);
}

// ================================================================================================ state
enum OptimizerKind { OPTIMIZER_ADAMW, OPTIMIZER_SGD };
enum CommKind { COMM_SELF, COMM_MPI, COMM_NCCL };

struct FsdpConfig {
  Dtype param_dtype, wire_dtype;
  int gather_slots;                              // K
  OptimizerKind optimizer;
  CommKind comm;
  bool windows;                                  // COMM_MPI: ranks of one host read each other's memory
  bool native_reduce;                            // COMM_NCCL: ncclReduceScatter instead of the ordered sum
  size_t small_bytes;                            // what a small all-gather takes from each rank, at most
  bool weights_only;                             // to evaluate and sample: no gradients, no optimizer, no reductions
};

// Traffic as the transport saw it. Received bytes: what others sent equals it, by symmetry.
struct Traffic { int64_t gathers, reductions, small, gather_bytes, reduce_bytes, small_bytes; };
static inline Traffic traffic_add(Traffic x, Traffic y, int sign) {
  return Traffic{x.gathers + sign * y.gathers,           x.reductions + sign * y.reductions,
                 x.small + sign * y.small,               x.gather_bytes + sign * y.gather_bytes,
                 x.reduce_bytes + sign * y.reduce_bytes, x.small_bytes + sign * y.small_bytes};
}

// An event and whether it was recorded since the step began: what was recorded earlier needs no wait, and a captured
// step must not wait for what lies outside it.
struct StepEvent { void *event; bool recorded; };

enum SlotState { SLOT_EMPTY, SLOT_PENDING, SLOT_WHOLE };
// data: the slot's own memory; whole: where the gathered unit is to be read (with COMM_SELF the shard itself); landing:
// pinned host memory where messages arrive that the device must fetch.
struct GatherSlot {
  int unit;
  SlotState state;
  bool in_use;
  char *data, *whole, *landing;
  MPI_Request *requests;
  int pending;
  StepEvent arrived, released;                   // the gather is complete; the model has read it for the last time
};

// The one reduction in flight: rounds of at most chunk_numel elements of every owner's shard.
struct ReduceJob {
  bool active, first;                            // first: microbatch 0 of the step, overwrites the shard
  int unit, slot, rounds, prepared, consumed;
  uint64_t round0;                               // global number of its first round
  size_t full_at;                                // the unit's gradient buffer, in working memory
};

struct Comm;
struct Fsdp {
  Ctx *ctx, gather_ctx, reduce_ctx;              // the model's stream, and those of gathers and reductions
  const Comm *comm;                              // transport, see part 4
  MemoryPlan *plan;
  FsdpConfig cfg;
  Mesh mesh;
  int params, units;                             // unit 0 is the root, unit 1 + l is block l
  Param *param;
  Unit *unit;
  // Working memory: [control | parameter shards | gradient slots | root gradient | staging]. With COMM_MPI peers read
  // it in a window of the same layout: on a CPU the window is the working memory, else its mirror in pinned memory.
  char *work, *window;
  size_t work_bytes, grad_slots_at, root_grads_at, staging_at;   // offsets in both
  size_t *params_at;                                             // [units]
  MPI_Win win;
  bool has_win, mirrored;
  int64_t *shard_at, shard_total;                                // [units] elements before unit u's shard, all shards
  float *master, *m, *v, *grads;                                 // private shards of all units, in order of units
  GatherSlot *slot;                                              // [K] for blocks, [K] is the root's
  int64_t chunk_numel;
  char *staging_in, *landing_in;                                 // others' contributions, on the device and on the host
  char *small_host;                                              // pinned: the small all-gather of a mirrored device
  MPI_Request *sends[2], *receives[2];                           // of the reduction, by parity of the round
  int sends_pending[2], receives_pending[2];
  ReduceJob job;
  uint64_t rounds_started;                                       // global round counter, alike on all ranks
  int64_t block_reductions;
  uint64_t slot_rounds[3];                                       // rounds after which gradient slot s is free; [2] root
  StepEvent began, grads_ready, grads_free[3], reduced, exchange_ready, exchanged, mirror_filled, drained;
  void *nccl_gather, *nccl_reduce;                               // communicators
  void (*background)(void *to);                                  // NULL, or called whenever messages are moved on
  void *background_to;
  Traffic traffic;
};

static inline size_t fsdp_param_bytes(const Fsdp *f) { return dtype_bytes(f->cfg.param_dtype); }
static inline size_t fsdp_wire_bytes(const Fsdp *f) { return dtype_bytes(f->cfg.wire_dtype); }
static inline int64_t fsdp_block_numel(const Fsdp *f) { return f->units > 1 ? f->unit[1].full_numel : 0; }
// The root's gradient is summed in fp32 over the head's chunks and rounded for the wire chunk by chunk.
static inline bool fsdp_unit_staged(const Fsdp *f, int u) { return u == 0 && f->cfg.wire_dtype != F32; }
// Elements of one owner's shard in a round: few on a CPU, where a chunk should stay in cache; over NCCL what keeps
// messages long and the staging of all ranks together below 2^23 elements.
enum { STAGE_NUMEL = 1 << 18, STAGE_NUMEL_NCCL_MOST = 1 << 20, STAGE_NUMEL_NCCL_LEAST = 1 << 16 };
static inline int64_t fsdp_stage_numel(CommKind comm, int world) {
  if (comm != COMM_NCCL) return STAGE_NUMEL;
  return max64(STAGE_NUMEL_NCCL_LEAST, min64(STAGE_NUMEL_NCCL_MOST, (1 << 23) / world / 128 * 128));
}
static inline int64_t fsdp_largest_shard(const Fsdp *f) {
  return max64(f->unit[0].shard_numel, f->units > 1 ? f->unit[1].shard_numel : 0);
}
// Elements that arrive and have not been added yet.
static inline size_t fsdp_staging_in_numel(const Fsdp *f) {
  if (f->cfg.weights_only) return 0;
  const size_t chunk = (size_t)f->chunk_numel, N = (size_t)f->mesh.world;
  if (f->cfg.comm == COMM_NCCL) return f->cfg.native_reduce ? (size_t)fsdp_largest_shard(f) : 2 * N * chunk;
  return f->mirrored ? chunk : 2 * (size_t)f->mesh.remote * chunk;
}

// What the ranks of one host tell each other, at the start of each window. Counters only grow.
struct Control {
  alignas(64) uint64_t ready;                    // reduction rounds whose data this rank has laid out
  alignas(64) uint64_t done;                     // reduction rounds this rank has added up
};
// The control block takes one page, and OpenMPI may start a window anywhere in a page: one more to align it.
enum { CONTROL_PAGE_BYTES = 4096, CONTROL_BYTES = 2 * CONTROL_PAGE_BYTES };

// The formulas of memory, per rank.
static inline void fsdp_plan(const Fsdp *f, MemoryPlan *m) {
  const size_t b_p = fsdp_param_bytes(f), b_r = fsdp_wire_bytes(f);
  const size_t shards = (size_t)f->shard_total, U = (size_t)fsdp_block_numel(f), root = (size_t)f->unit[0].full_numel;
  const size_t trains = !f->cfg.weights_only;
  const size_t N = (size_t)f->mesh.world, K = (size_t)f->cfg.gather_slots, chunk = (size_t)f->chunk_numel;
  const bool whole = f->cfg.comm != COMM_SELF, mpi = f->cfg.comm == COMM_MPI, lands = f->mirrored && f->mesh.remote;
  m->planned_bytes[MEM_PARAMS] = shards * b_p;
  m->planned_bytes[MEM_MASTER] = f->cfg.param_dtype == F32 ? 0 : shards * 4;
  m->planned_bytes[MEM_OPTIMIZER] = trains * shards * (f->cfg.optimizer == OPTIMIZER_ADAMW ? 8 : 4);
  m->planned_bytes[MEM_GRADS] = trains * shards * 4;
  m->planned_bytes[MEM_GATHER_SLOTS] = whole ? K * U * b_p : 0;
  m->planned_bytes[MEM_ROOT_PARAMS] = whole ? root * b_p : 0;
  m->planned_bytes[MEM_GRAD_SLOTS] = trains * 2 * U * b_r;
  m->planned_bytes[MEM_ROOT_GRADS] = trains * root * 4;
  m->planned_bytes[MEM_STAGING_OUT] = fsdp_unit_staged(f, 0) ? trains * 2 * N * chunk * b_r : 0;
  m->planned_bytes[MEM_STAGING_IN] = fsdp_staging_in_numel(f) * b_r;
  m->planned_bytes[MEM_CONTROL] = mpi ? CONTROL_BYTES : 0;
  static const MemoryName shared_lines[] = {MEM_PARAMS, MEM_GRAD_SLOTS, MEM_ROOT_GRADS, MEM_STAGING_OUT, MEM_CONTROL};
  size_t shared = 0;
  for (MemoryName line : shared_lines) shared += m->planned_bytes[line];
  m->planned_bytes[MEM_MIRROR] = f->mirrored ? shared : 0;
  m->planned_bytes[MEM_LANDING] =
      (lands ? (K * U + root) * b_p + trains * 2 * (size_t)f->mesh.remote * chunk * b_r : 0) +
      (f->mirrored ? (N + 1) * f->cfg.small_bytes : 0);
}

// The formulas of traffic, per rank and step of A microbatches a rank; small_bytes: of the step's one small all-gather.
static inline Traffic fsdp_formula(const Fsdp *f, int A, int64_t small_bytes) {
  const int64_t N = f->mesh.world, L = f->units - 1, K = f->cfg.gather_slots;
  const int64_t b_p = (int64_t)fsdp_param_bytes(f), b_r = (int64_t)fsdp_wire_bytes(f);
  const int64_t U = fsdp_block_numel(f), root = f->unit[0].full_numel, P = root + L * U;
  Traffic t = {};
  const int64_t block_gathers = L + (2 * A - 1) * max64(L - K, 0);
  t.gathers = f->cfg.comm == COMM_SELF ? 0 : 1 + block_gathers;
  t.reductions = A * (L + 1);
  t.gather_bytes = (root * b_p + block_gathers * U * b_p) / N * (N - 1);
  t.reduce_bytes = A * (P * b_r / N) * (N - 1);
  t.small = f->cfg.comm == COMM_MPI ? 2 : 1;
  t.small_bytes = (N - 1) * small_bytes;
  return t;
}

// Lays out units and decides chunks; allocates nothing big. `param` is owned by f from here on.
static inline void fsdp_layout(Fsdp *f, Ctx *ctx, MPI_Comm comm, FsdpConfig cfg, Param *param, int params, int units) {
  memset(f, 0, sizeof *f);
  f->ctx = ctx;
  f->cfg = cfg;
  f->param = param;
  f->params = params;
  f->units = units;
  f->mirrored = cfg.comm == COMM_MPI && ctx->ops->nccl;
  mesh_open(&f->mesh, comm, cfg.windows && cfg.comm == COMM_MPI);
  if (cfg.comm != COMM_MPI) f->mesh.remote = 0;
  f->unit = (Unit *)calloc((size_t)units, sizeof(Unit));
  f->shard_at = (int64_t *)calloc((size_t)units, sizeof(int64_t));
  f->params_at = (size_t *)calloc((size_t)units, sizeof(size_t));
  for (int i = params - 1; i >= 0; i--) { f->unit[param[i].unit].first_param = i; f->unit[param[i].unit].params++; }
  for (int u = 0; u < units; u++) {
    if (u == 0) snprintf(f->unit[u].name, sizeof f->unit[u].name, "root");
    else snprintf(f->unit[u].name, sizeof f->unit[u].name, "h.%d", u - 1);
    unit_layout(&f->unit[u], param, f->mesh.world);
    f->shard_at[u] = f->shard_total;
    f->shard_total += f->unit[u].shard_numel;
  }
  f->chunk_numel = min64(fsdp_stage_numel(cfg.comm, f->mesh.world), fsdp_largest_shard(f));
}

// ================================================================================================ 4 transport
#include "kernels/transport.h"

// ================================================================================================ 5 gather
static inline GatherSlot *fsdp_slot(Fsdp *f, int u) {
  return &f->slot[u == 0 ? f->cfg.gather_slots : (u - 1) % f->cfg.gather_slots];
}

// Starts gathering unit u, unless it is still whole in its slot. Block l lives in slot l mod K. Collective: all ranks
// call it for the same units in the same order.
static inline void fsdp_gather(Fsdp *f, int u) {
  GatherSlot *s = fsdp_slot(f, u);
  if (s->unit == u && s->state != SLOT_EMPTY) return;
  CHECK(!s->in_use, "unit %s is gathered into a slot that %s still uses", f->unit[u].name, f->unit[s->unit].name);
  s->unit = u;
  s->state = SLOT_PENDING;
  f->comm->gather_start(f, u, s);
}

// Waits until unit u is whole and returns its full buffer, in the parameter dtype, valid until fsdp_release.
static inline void *fsdp_wait(Fsdp *f, int u) {
  fsdp_gather(f, u);
  GatherSlot *s = fsdp_slot(f, u);
  s->in_use = true;
  if (s->state != SLOT_WHOLE) f->comm->gather_finish(f, u, s);
  s->state = SLOT_WHOLE;
  return s->whole;
}

// Unit u is not read any more; its slot may take another unit. What lies there stays whole until one does.
static inline void fsdp_release(Fsdp *f, int u) {
  GatherSlot *s = fsdp_slot(f, u);
  s->in_use = false;
  if (f->cfg.comm != COMM_SELF) step_event_record(f->ctx, &s->released);
}

// What was gathered is stale.
static inline void fsdp_forget(Fsdp *f) {
  for (int k = 0; k <= f->cfg.gather_slots; k++) { f->slot[k].state = SLOT_EMPTY; f->slot[k].unit = -1; }
}

// Begins a step, or any other pass over the model: what other streams do from here on comes after all that was asked of
// the model's stream before. A pass takes nothing over from the one before: a replayed graph changes weights and slots
// unseen by the host, and one that is captured must gather everything itself. Collective.
static inline void fsdp_step_begin(Fsdp *f) {
  fsdp_forget(f);
  for (int k = 0; k <= f->cfg.gather_slots; k++) f->slot[k].arrived.recorded = f->slot[k].released.recorded = false;
  for (StepEvent &e : f->grads_free) e.recorded = false;
  f->comm->step_begin(f);
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
    if (!done) mesh_pause(&f->mesh, &spins);
  }
  ops->sync(f->ctx);
}

// Parameter p of a gathered unit whose full buffer is `base`; rows include the padding rows.
static inline Tensor fsdp_tensor(const Fsdp *f, void *base, int p, Dtype dtype) {
  const Param *q = &f->param[p];
  return tensor_of((char *)base + (size_t)q->offset * dtype_bytes(dtype), dtype, q->padded_rows,
                   q->ndim == 2 ? q->shape[1] : -1);
}

// ================================================================================================ 6 reduce
static inline int fsdp_rounds(const Fsdp *f, int u) {
  const bool chunked = f->mesh.remote || fsdp_unit_staged(f, u) || (f->cfg.comm == COMM_NCCL && !f->cfg.native_reduce);
  return chunked ? (int)((f->unit[u].shard_numel + f->chunk_numel - 1) / f->chunk_numel) : 1;
}
// Round j covers shard elements [first, first + numel) of every owner.
static inline void fsdp_round_span(const Fsdp *f, int u, int rounds, int j, int64_t *first, int64_t *numel_) {
  *first = rounds == 1 ? 0 : j * f->chunk_numel;
  *numel_ = rounds == 1 ? f->unit[u].shard_numel : min64(f->chunk_numel, f->unit[u].shard_numel - *first);
}

// Lays out round job.prepared, rounded for the wire where that is needed, and gives it away. False if it must wait.
static inline bool fsdp_reduce_prepare(Fsdp *f) {
  ReduceJob *job = &f->job;
  const uint64_t round = job->round0 + (uint64_t)job->prepared;
  if (job->prepared == job->rounds || job->prepared >= job->consumed + 2) return false;
  if (!f->comm->round_free(f, round)) return false;
  int64_t first, n;
  fsdp_round_span(f, job->unit, job->rounds, job->prepared, &first, &n);
  const Piece *c = &f->unit[job->unit].piece[0];
  for (int o = 0; o < f->mesh.world && fsdp_unit_staged(f, job->unit); o++)
    convert(&f->reduce_ctx, tensor_of(f->work + fsdp_contribution_at(f, o, round, first), f->cfg.wire_dtype, n),
            tensor_of(f->work + job->full_at + (size_t)(c->full_offset + o * c->numel + first) * 4, F32, n));
  f->comm->round_send(f, round, first, n);
  job->prepared++;
  return true;
}

// Adds round job.consumed to the own shard if every contribution is there: over ranks in order, so over microbatches in
// order. Returns whether it did.
static inline bool fsdp_reduce_consume(Fsdp *f) {
  ReduceJob *job = &f->job;
  const uint64_t round = job->round0 + (uint64_t)job->consumed;
  if (job->consumed >= job->prepared || !f->comm->round_arrived(f, round)) return false;
  int64_t first, n;
  fsdp_round_span(f, job->unit, job->rounds, job->consumed, &first, &n);
  const size_t b_r = fsdp_wire_bytes(f);
  float *sum = f->grads + f->shard_at[job->unit] + first;
  const int inputs = f->cfg.native_reduce ? 1 : f->mesh.world;
  for (int64_t at = 0; at < n; at += f->chunk_numel) {         // all ranks' part of a block while the sum is in cache
    int64_t part = min64(f->chunk_numel, n - at);
    for (int r = 0; r < inputs; r++) {
      const char *in = f->comm->round_input(f, round, r, first) + (size_t)at * b_r;
      if (f->mirrored) f->ctx->ops->copy(&f->reduce_ctx, f->staging_in, in, (size_t)part * b_r);
      if (f->mirrored) in = f->staging_in;
      accumulate(&f->reduce_ctx, tensor_of(sum + at, F32, part), tensor_of((void *)in, f->cfg.wire_dtype, part),
                 job->first && r == 0 ? OVERWRITE : ADD);
    }
  }
  f->traffic.reduce_bytes += (f->mesh.world - 1) * n * (int64_t)b_r;
  f->comm->round_done(f, round);
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
    if (f->job.active && f->job.prepared + f->job.consumed == before) mesh_pause(&f->mesh, &spins);
  }
}

// Gradient slots: 0 and 1 for blocks in turn, 2 is the root's.
static inline int fsdp_grad_slot(const Fsdp *f, int u) { return u == 0 ? 2 : (int)(f->block_reductions & 1); }
static inline size_t fsdp_grad_slot_at(const Fsdp *f, int slot) {        // in working memory
  if (slot == 2) return f->root_grads_at;
  return f->grad_slots_at + (size_t)slot * (size_t)fsdp_block_numel(f) * fsdp_wire_bytes(f);
}

// The whole gradient buffer of unit u, to be overwritten: blocks in the wire dtype (one of two slots), the root in
// fp32. Waits until the reduction that used the memory before has been read by everybody.
static inline void *fsdp_grads(Fsdp *f, int u) {
  const int slot = fsdp_grad_slot(f, u);
  if (f->job.active && f->job.slot == slot) fsdp_reduce_finish(f);
  for (int spins = 0; !f->comm->grads_free(f, slot); fsdp_poll(f)) mesh_pause(&f->mesh, &spins);
  return f->work + fsdp_grad_slot_at(f, slot);
}
static inline Dtype fsdp_grad_dtype(const Fsdp *f, int u) { return u == 0 ? F32 : f->cfg.wire_dtype; }

// Starts reducing unit u's gradient buffer into the fp32 shards. microbatch: this rank's a-th of the step. Collective.
static inline void fsdp_reduce(Fsdp *f, int u, int microbatch) {
  fsdp_reduce_finish(f);
  const int s = fsdp_grad_slot(f, u);
  ReduceJob *job = &f->job;
  *job = ReduceJob{};
  job->active = true;
  job->first = microbatch == 0;
  job->unit = u;
  job->slot = s;
  job->rounds = fsdp_rounds(f, u);
  job->round0 = f->rounds_started;
  job->full_at = fsdp_grad_slot_at(f, s);
  f->rounds_started += (uint64_t)job->rounds;
  f->slot_rounds[s] = f->rounds_started;
  f->block_reductions += u != 0;
  f->traffic.reductions++;
  f->comm->reduce_start(f);
  fsdp_poll(f);
}

// ================================================================================================ 7 optimizer
static inline void fsdp_open_events(Fsdp *f) {
  Ctx *c = f->ctx;
  for (int k = 0; k <= f->cfg.gather_slots; k++) {
    step_event_open(c, &f->slot[k].arrived, "unit arrived");
    step_event_open(c, &f->slot[k].released, "unit released");
  }
  step_event_open(c, &f->began, "step began");
  step_event_open(c, &f->grads_ready, "gradients ready");
  for (int s = 0; s < 3; s++) step_event_open(c, &f->grads_free[s], s < 2 ? "block slot free" : "root slot free");
  step_event_open(c, &f->reduced, "reduced");
  step_event_open(c, &f->exchange_ready, "exchange ready");
  step_event_open(c, &f->exchanged, "exchanged");
  step_event_open(c, &f->mirror_filled, "mirror filled");
  step_event_open(c, &f->drained, "drained");
}

// Takes all memory of the plan's sharding lines. Collective. f->plan must hold the plan.
static inline void fsdp_open(Fsdp *f, MemoryPlan *plan) {
  static const Comm *const comms[] = {&comm_self, &comm_mpi, &comm_nccl};      // by CommKind
  f->plan = plan;
  f->comm = comms[f->cfg.comm];
  Ctx *c = f->ctx;
  const size_t shards = (size_t)f->shard_total, b_p = fsdp_param_bytes(f);
  const int K = f->cfg.gather_slots;
  f->slot = (GatherSlot *)calloc((size_t)K + 1, sizeof(GatherSlot));
  f->comm->open(f);
  if (f->cfg.param_dtype != F32) f->master = (float *)memory_take(c, plan, MEM_MASTER, shards * 4);
  const bool trains = !f->cfg.weights_only;
  if (trains) f->m = (float *)memory_take(c, plan, MEM_OPTIMIZER, shards * 4);
  if (trains && f->cfg.optimizer == OPTIMIZER_ADAMW) f->v = (float *)memory_take(c, plan, MEM_OPTIMIZER, shards * 4);
  if (trains) f->grads = (float *)memory_take(c, plan, MEM_GRADS, shards * 4);
  for (int k = 0; k <= K && f->cfg.comm != COMM_SELF; k++)
    f->slot[k].data = (char *)memory_take(c, plan, k == K ? MEM_ROOT_PARAMS : MEM_GATHER_SLOTS,
                                          (size_t)(k == K ? f->unit[0].full_numel : fsdp_block_numel(f)) * b_p);
  const size_t staging_in_bytes = fsdp_staging_in_numel(f) * fsdp_wire_bytes(f);
  if (trains) f->staging_in = (char *)memory_take(c, plan, MEM_STAGING_IN, staging_in_bytes);
  const size_t small_host_bytes = f->cfg.small_bytes * (size_t)(f->mesh.world + 1);
  if (f->mirrored) f->small_host = (char *)memory_take(c, plan, MEM_LANDING, small_host_bytes);
  fsdp_open_events(f);
}

static inline void fsdp_close(Fsdp *f) {
  Ctx *c = f->ctx;
  const size_t shards = (size_t)f->shard_total * 4, b_p = fsdp_param_bytes(f);
  memory_give_back(c, MEM_MASTER, f->master, shards);
  memory_give_back(c, MEM_OPTIMIZER, f->m, shards);
  memory_give_back(c, MEM_OPTIMIZER, f->v, shards);
  memory_give_back(c, MEM_GRADS, f->grads, shards);
  memory_give_back(c, MEM_STAGING_IN, f->staging_in, fsdp_staging_in_numel(f) * fsdp_wire_bytes(f));
  memory_give_back(c, MEM_LANDING, f->small_host, f->cfg.small_bytes * (size_t)(f->mesh.world + 1));
  for (int k = 0; k <= f->cfg.gather_slots; k++) {
    const int64_t n = k == f->cfg.gather_slots ? f->unit[0].full_numel : fsdp_block_numel(f);
    memory_give_back(c, MEM_GATHER_SLOTS, f->slot[k].data, (size_t)n * b_p);
    c->ops->event_close(c, f->slot[k].arrived.event);
    c->ops->event_close(c, f->slot[k].released.event);
  }
  StepEvent *const events[] = {&f->began, &f->grads_ready, &f->grads_free[0], &f->grads_free[1], &f->grads_free[2],
                               &f->reduced, &f->exchange_ready, &f->exchanged, &f->mirror_filled, &f->drained};
  for (StepEvent *e : events) c->ops->event_close(c, e->event);
  f->comm->close(f);
  free(f->slot); free(f->unit); free(f->param); free(f->shard_at); free(f->params_at);
  mesh_close(&f->mesh);
  memset(f, 0, sizeof *f);
}

enum ShardState { STATE_MASTER, STATE_M, STATE_V, STATE_GRAD };
// The fp32 shard of unit u in a state. In fp32 the parameter shard itself is the master.
static inline float *fsdp_shard(const Fsdp *f, ShardState state, int u) {
  if (state == STATE_MASTER && f->cfg.param_dtype == F32) return (float *)fsdp_own_params(f, u);
  float *base = state == STATE_MASTER ? f->master : state == STATE_M ? f->m : state == STATE_V ? f->v : f->grads;
  return base ? base + f->shard_at[u] : NULL;
}

// All reductions of the step are complete after this; adds the squares of the own gradient shards to limbs,
// which lie in device memory.
static inline void fsdp_norm_accumulate(Fsdp *f, int64_t *limbs) {
  fsdp_reduce_finish(f);
  f->comm->reduce_join(f);
  norm_accumulate(f->ctx, limbs, tensor_of(f->grads, F32, f->shard_total));
}

struct OptimizerArgs { OptimizerKind kind; AdamwArgs adamw; SgdArgs sgd; };

// `bytes` of every rank to every rank, in order of rank: once a step. Device memory.
static inline void fsdp_small_all_gather(Fsdp *f, const void *mine, void *all, size_t bytes) {
  f->traffic.small++;
  f->traffic.small_bytes += (int64_t)bytes * (f->mesh.world - 1);
  f->comm->small_all_gather(f, mine, all, bytes);
}

// One optimizer step on a run of the own shard of unit u.
static inline void fsdp_update_run(Fsdp *f, int u, Run run, OptimizerArgs a) {
  char *low = fsdp_own_params(f, u) + (size_t)run.in_shard * fsdp_param_bytes(f);
  Tensor param = tensor_of(f->cfg.param_dtype == F32 ? NULL : low, f->cfg.param_dtype, run.numel);
  Tensor master = tensor_of(fsdp_shard(f, STATE_MASTER, u) + run.in_shard, F32, run.numel);
  Tensor m = tensor_of(fsdp_shard(f, STATE_M, u) + run.in_shard, F32, run.numel);
  Tensor grad = tensor_of(fsdp_shard(f, STATE_GRAD, u) + run.in_shard, F32, run.numel);
  if (a.kind == OPTIMIZER_SGD) { sgd_update(f->ctx, param, master, m, grad, a.sgd); return; }
  Tensor v = tensor_of(fsdp_shard(f, STATE_V, u) + run.in_shard, F32, run.numel);
  adamw_update(f->ctx, param, master, m, v, grad, a.adamw);
}

// One optimizer step on the own shards, by what ctx->state says; gathered copies become stale. The gaps between
// parameters are zero, have no gradient and stay zero.
static inline void fsdp_update(Fsdp *f, OptimizerArgs decayed) {
  OptimizerArgs plain = decayed;
  plain.adamw.weight_decay = plain.sgd.weight_decay = 0;
  for (int u = 0; u < f->units; u++) {
    const Unit *q = &f->unit[u];
    Run run;
    if (unit_run(q, 0, q->decay_numel, f->mesh.rank, &run)) fsdp_update_run(f, u, run, decayed);
    if (unit_run(q, q->decay_numel, q->full_numel, f->mesh.rank, &run)) fsdp_update_run(f, u, run, plain);
  }
}

// Ends a step: what was gathered is stale, and from here on peers may read the new shards. Collective.
static inline void fsdp_step_end(Fsdp *f) {
  fsdp_forget(f);
  f->comm->step_end(f);
}

// Writes the compute-dtype copy of the own shard of unit u from its master.
static inline void fsdp_refresh_params(Fsdp *f, int u) {
  if (f->cfg.param_dtype == F32) return;
  convert(f->ctx, tensor_of(fsdp_own_params(f, u), f->cfg.param_dtype, f->unit[u].shard_numel),
          tensor_of(fsdp_shard(f, STATE_MASTER, u), F32, f->unit[u].shard_numel));
}

// Initialises the own shards by counter: element i of tensor t is the same for every N. Collective (ends in a barrier).
static inline void fsdp_init_params(Fsdp *f, uint64_t seed) {
  for (int p = 0; p < f->params; p++) {
    const Param *q = &f->param[p];
    Run run;
    if (!shard_run(&f->unit[q->unit], q, f->mesh.rank, &run)) continue;
    int64_t logical = q->shape[0] * (q->ndim == 2 ? q->shape[1] : 1);          // padding rows stay zero
    int64_t n = min64(run.numel, logical - run.in_range);
    float *to = fsdp_shard(f, STATE_MASTER, q->unit) + run.in_shard;
    if (n <= 0) continue;
    if (q->init == INIT_NORMAL) normal_fill(f->ctx, tensor_of(to, F32, n), seed, (uint32_t)p, run.in_range, q->std);
    if (q->init == INIT_ONE) fill(f->ctx, tensor_of(to, F32, n), 1.0f);
  }
  for (int u = 0; u < f->units; u++) fsdp_refresh_params(f, u);
  fsdp_step_end(f);
}

// Copies parameter p's state into `full` (padded_rows x cols floats) on every rank. Collective. For tests and files.
static inline void fsdp_read_param(Fsdp *f, ShardState state, int p, float *full) {
  const Param *q = &f->param[p];
  for (int r = 0; r < f->mesh.world; r++) {
    Run run;
    if (!shard_run(&f->unit[q->unit], q, r, &run)) continue;
    if (r == f->mesh.rank) {
      const float *from = fsdp_shard(f, state, q->unit) + run.in_shard;
      f->ctx->ops->copy(f->ctx, full + run.in_range, from, (size_t)run.numel * 4);
      f->ctx->ops->sync(f->ctx);
    }
    if (f->mesh.world > 1) MPI_Bcast(full + run.in_range, fsdp_mpi_count(run.numel), MPI_FLOAT, r, f->mesh.comm);
  }
}
// Sets the own part of parameter p's state from `full` (logical rows; padding rows stay as they are). Follow a change
// of STATE_MASTER by fsdp_refresh_params and fsdp_step_end.
static inline void fsdp_write_param(Fsdp *f, ShardState state, int p, const float *full) {
  const Param *q = &f->param[p];
  Run run;
  if (!shard_run(&f->unit[q->unit], q, f->mesh.rank, &run)) return;
  int64_t logical = q->shape[0] * (q->ndim == 2 ? q->shape[1] : 1);
  float *to = fsdp_shard(f, state, q->unit) + run.in_shard;
  const int64_t n = min64(run.numel, logical - run.in_range);
  if (n <= 0) return;
  f->ctx->ops->copy(f->ctx, to, full + run.in_range, (size_t)n * 4);
  f->ctx->ops->sync(f->ctx);
}
