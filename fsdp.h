// fsdp.h: fully sharded data parallelism (ZeRO-3), inlined. Every parameter, gradient and optimizer state lives once,
// cut over the ranks; a unit (one transformer block, or the root: embeddings and final norm) is gathered just before it
// computes and its gradient is reduced just after. Rajbhandari et al. 2020 (ZeRO), Zhao et al. 2023 (PyTorch FSDP).
//
//   1 memory     MemoryPlan: every byte is planned under a name, printed, then taken under that name
//   2 mesh       who is where; cores; the shared window of the ranks of one host
//   3 units      parameters -> units -> pieces: which rank owns which elements, as data
//   4 transport  the comm table: self, or mpi (copies inside a host, nonblocking point-to-point between hosts); all
//                traffic is counted here
//   5 gather     fsdp_gather / fsdp_wait / fsdp_release
//   6 reduce     fsdp_grads / fsdp_reduce: ordered, so that N ranks give bit for bit what one rank gives
//   7 optimizer  norm, update, initialisation, reading and writing of sharded state
//
// What the model code sees, for unit u:
//   fsdp_gather(f,u) start    fsdp_wait(f,u) -> its parameters, whole    fsdp_release(f,u)
//   fsdp_grads(f,u) -> its gradient buffer, whole                        fsdp_reduce(f,u) start
//   fsdp_poll(f) between ops, so that messages move while we compute
//
// Formulas, per rank and step, for N ranks, L blocks, K gather slots, A microbatches a rank. U: elements of a block
// unit, P: of all units, both padded to N equal shards. b_p, b_r: bytes of a parameter and on the wire. f = (N-1)/N.
//   gathers      1 + L + (2A-1) max(L-K, 0)            a block still whole in its slot is not gathered again
//   reductions   A (L+1)
//   wire bytes   f (root b_p + (L + (2A-1) max(L-K,0)) U b_p + A P b_r)
//   small        one all-gather (norm, losses, stop flag) and one barrier
//   memory       see fsdp_plan
// At N = 1 nothing is gathered: units are read in place. fsdp_formula states this as code, a test compares it with the
// counters of part 4.
//
// Bit-identity: the owner adds contributions in order of the global microbatch m = a N + r, each first rounded to the
// wire dtype (its own too, and at N = 1): one left fold, the same for every N that divides the number of microbatches.
#pragma once
#include "kernels/ops.h"
#include "kernels/all.h"
#include <errno.h>
#include <mpi.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
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
// X(identifier, words). Lines marked "window" lie in memory that the other ranks of the host can read.
#define MEMORY_LINES(X) \
  X(MEM_PARAMS,       "parameter shards (window)") \
  X(MEM_MASTER,       "fp32 master shards") \
  X(MEM_OPTIMIZER,    "optimizer state shards") \
  X(MEM_GRADS,        "gradient shards, fp32") \
  X(MEM_GATHER_SLOTS, "gather slots, blocks") \
  X(MEM_ROOT_PARAMS,  "gathered root") \
  X(MEM_GRAD_SLOTS,   "gradient slots, blocks (window)") \
  X(MEM_ROOT_GRADS,   "root gradient, fp32 (window)") \
  X(MEM_STAGING_OUT,  "reduction staging out (window)") \
  X(MEM_STAGING_IN,   "reduction staging in") \
  X(MEM_CONTROL,      "control block (window)") \
  X(MEM_ACTIVATIONS,  "activations and their gradients") \
  X(MEM_HEAD,         "head: logits of one chunk") \
  X(MEM_WORKSPACE,    "kernel workspace") \
  X(MEM_DATA,         "tokens, batches, sample order")

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
static inline bool memory_in_window(int line) { return strstr(memory_words[line], "(window)") != NULL; }

// planned: from the formulas, before anything is allocated. taken: added up by the allocator. They must be equal.
struct MemoryPlan { size_t planned_bytes[MEM_COUNT], taken_bytes[MEM_COUNT]; };

static inline size_t memory_planned_total(const MemoryPlan *m, bool window_only) {
  size_t total = 0;
  for (int i = 0; i < MEM_COUNT; i++) if (!window_only || memory_in_window(i)) total += m->planned_bytes[i];
  return total;
}

// Zeroed private memory of `bytes`, counted under `line`; page-aligned, huge pages where the kernel grants them.
static inline void *memory_take(MemoryPlan *m, MemoryName line, size_t bytes) {
  m->taken_bytes[line] += bytes;
  if (!bytes) return NULL;
  void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) die_missing("cannot allocate %zu bytes for %s: %s", bytes, memory_words[line], strerror(errno));
  madvise(p, bytes, MADV_HUGEPAGE);
  return p;
}
static inline void memory_give_back(void *p, size_t bytes) { if (p) munmap(p, bytes); }

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
  Piece piece[MAX_PIECES];
};

// 128 elements: parameters start on 256-byte boundaries in every dtype of two bytes or more.
enum { PARAM_ALIGN_NUMEL = 128 };

// Lays out the parameters of one unit (they are consecutive in `param`) over `world` ranks, flat.
static inline void unit_layout(Unit *u, Param *param, int world) {
  int64_t at = 0;
  for (int i = 0; i < u->params; i++) {
    Param *p = &param[u->first_param + i];
    p->numel_padded = p->padded_rows * (p->ndim == 2 ? p->shape[1] : 1);
    p->offset = at;
    at += round_up(p->numel_padded, PARAM_ALIGN_NUMEL);
  }
  u->shard_numel = round_up((at + world - 1) / world, PARAM_ALIGN_NUMEL);
  u->full_numel = u->shard_numel * world;
  u->pieces = 1;
  u->piece[0] = Piece{0, 0, u->shard_numel};
}

// The part of parameter p that lies in rank's shard: a run of `numel` elements at `in_param` of the parameter and
// `in_shard` of the shard. Returns false when there is none. (The flat layout has at most one run.)
struct Run { int64_t in_param, in_shard, numel; };
static inline bool shard_run(const Unit *u, const Param *p, int rank, Run *run) {
  for (int i = 0; i < u->pieces; i++) {
    const Piece *c = &u->piece[i];
    int64_t first = c->full_offset + rank * c->numel;
    int64_t a = max64(first, p->offset), b = min64(first + c->numel, p->offset + p->numel_padded);
    if (a >= b) continue;
    *run = Run{a - p->offset, c->shard_offset + a - first, b - a};
    return true;
  }
  return false;
}

// ================================================================================================ state
// What the ranks of one host tell each other, at the start of each window. Counters only grow.
struct Control {
  alignas(64) uint64_t ready;                    // reduction rounds whose data this rank has laid out
  alignas(64) uint64_t done;                     // reduction rounds this rank has added up
};
// The control block takes one page, and OpenMPI may start a window anywhere in a page: one more to align it.
enum { CONTROL_PAGE_BYTES = 4096, CONTROL_BYTES = 2 * CONTROL_PAGE_BYTES };
static inline char *page_aligned(char *p) {
  return (char *)(((uintptr_t)p + CONTROL_PAGE_BYTES - 1) / CONTROL_PAGE_BYTES * CONTROL_PAGE_BYTES);
}

// Traffic as the transport saw it. Received bytes: what others sent equals it, by symmetry.
struct Traffic { int64_t gathers, reductions, small, gather_bytes, reduce_bytes, small_bytes; };

enum OptimizerKind { OPTIMIZER_ADAMW, OPTIMIZER_SGD };

struct FsdpConfig {
  Dtype param_dtype, wire_dtype;
  int gather_slots;                              // K
  OptimizerKind optimizer;
  bool windows;
};

enum SlotState { SLOT_EMPTY, SLOT_PENDING, SLOT_WHOLE };
// data: the slot's own memory; whole: where the gathered unit is to be read (at N = 1 the shard itself).
struct GatherSlot { int unit; SlotState state; bool in_use; char *data, *whole; MPI_Request *requests; int pending; };

// The one reduction in flight: rounds of at most chunk_numel elements of every owner's shard.
struct ReduceJob {
  bool active, first;                            // first: microbatch 0 of the step, overwrites the shard
  int unit, slot, rounds, prepared, consumed;
  uint64_t round0;                               // global number of its first round
  const char *full;                              // the unit's gradient buffer
};

struct Comm;
struct Fsdp {
  Ctx *ctx;
  const Comm *comm;                              // transport, see part 4
  MemoryPlan *plan;
  FsdpConfig cfg;
  Mesh mesh;
  int params, units;                             // unit 0 is the root, unit 1 + l is block l
  Param *param;
  Unit *unit;
  char *window; // [control | parameter shards | gradient slots | root gradient | staging]
  size_t window_bytes;
  MPI_Win win;
  bool has_win;
  size_t grad_slots_at, root_grads_at, staging_at;               // offsets in the window
  size_t *params_at;                                             // [units] offsets in the window
  int64_t *shard_at, shard_total;                                // [units] elements before unit u's shard, all shards
  float *master, *m, *v, *grads;                                 // private shards of all units, in order of units
  GatherSlot *slot;                                              // [K] for blocks, [K] is the root's
  int64_t chunk_numel;
  char *staging_in;                                              // [2][remote][chunk]
  MPI_Request *sends[2], *receives[2];                           // of the reduction, by parity of the round
  int sends_pending[2], receives_pending[2];
  ReduceJob job;
  uint64_t rounds_started;                                       // global round counter, alike on all ranks
  int64_t block_reductions;
  uint64_t slot_rounds[3];                                       // rounds after which gradient slot s is free; [2] root
  int microbatches_reduced;                                      // of the root, this step
  Traffic traffic;
};

static inline size_t fsdp_param_bytes(const Fsdp *f) { return dtype_bytes(f->cfg.param_dtype); }
static inline int64_t fsdp_block_numel(const Fsdp *f) { return f->units > 1 ? f->unit[1].full_numel : 0; }
// The root's gradient is summed in fp32 over the head's chunks and rounded for the wire chunk by chunk.
static inline bool fsdp_unit_staged(const Fsdp *f, int u) { return u == 0 && f->cfg.wire_dtype != F32; }
enum { STAGE_NUMEL = 1 << 18 };

// The formulas of memory, per rank. `staged` and remote peers cost two chunks in flight each way.
static inline void fsdp_plan(const Fsdp *f, MemoryPlan *m) {
  const size_t b_p = fsdp_param_bytes(f), b_r = dtype_bytes(f->cfg.wire_dtype);
  const size_t shards = (size_t)f->shard_total, U = (size_t)fsdp_block_numel(f), root = (size_t)f->unit[0].full_numel;
  const size_t N = (size_t)f->mesh.world, K = (size_t)f->cfg.gather_slots;
  m->planned_bytes[MEM_PARAMS] = shards * b_p;
  m->planned_bytes[MEM_MASTER] = f->cfg.param_dtype == F32 ? 0 : shards * 4;
  m->planned_bytes[MEM_OPTIMIZER] = shards * (f->cfg.optimizer == OPTIMIZER_ADAMW ? 8 : 4);
  m->planned_bytes[MEM_GRADS] = shards * 4;
  m->planned_bytes[MEM_GATHER_SLOTS] = N == 1 ? 0 : K * U * b_p;
  m->planned_bytes[MEM_ROOT_PARAMS] = N == 1 ? 0 : root * b_p;
  m->planned_bytes[MEM_GRAD_SLOTS] = 2 * U * b_r;
  m->planned_bytes[MEM_ROOT_GRADS] = root * 4;
  m->planned_bytes[MEM_STAGING_OUT] = fsdp_unit_staged(f, 0) ? 2 * N * (size_t)f->chunk_numel * b_r : 0;
  m->planned_bytes[MEM_STAGING_IN] = 2 * (size_t)f->mesh.remote * (size_t)f->chunk_numel * b_r;
  m->planned_bytes[MEM_CONTROL] = CONTROL_BYTES;
}

// The formulas of traffic, per rank and step of A microbatches a rank; small_bytes: of the step's one small all-gather.
static inline Traffic fsdp_formula(const Fsdp *f, int A, int64_t small_bytes) {
  const int64_t N = f->mesh.world, L = f->units - 1, K = f->cfg.gather_slots;
  const int64_t b_p = (int64_t)fsdp_param_bytes(f), b_r = (int64_t)dtype_bytes(f->cfg.wire_dtype);
  const int64_t U = fsdp_block_numel(f), root = f->unit[0].full_numel, P = root + L * U;
  Traffic t = {};
  const int64_t block_gathers = L + (2 * A - 1) * max64(L - K, 0);
  t.gathers = N == 1 ? 0 : 1 + block_gathers;
  t.reductions = A * (L + 1);
  t.gather_bytes = (root * b_p + block_gathers * U * b_p) / N * (N - 1);
  t.reduce_bytes = A * (P * b_r / N) * (N - 1);
  t.small = 2;
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
  mesh_open(&f->mesh, comm, cfg.windows);
  f->unit = (Unit *)calloc((size_t)units, sizeof(Unit));
  f->shard_at = (int64_t *)calloc((size_t)units, sizeof(int64_t));
  f->params_at = (size_t *)calloc((size_t)units, sizeof(size_t));
  for (int i = params - 1; i >= 0; i--) { f->unit[param[i].unit].first_param = i; f->unit[param[i].unit].params++; }
  int64_t largest = 0;
  for (int u = 0; u < units; u++) {
    if (u == 0) snprintf(f->unit[u].name, sizeof f->unit[u].name, "root");
    else snprintf(f->unit[u].name, sizeof f->unit[u].name, "h.%d", u - 1);
    unit_layout(&f->unit[u], param, f->mesh.world);
    f->shard_at[u] = f->shard_total;
    f->shard_total += f->unit[u].shard_numel;
    largest = max64(largest, f->unit[u].shard_numel);
  }
  f->chunk_numel = min64(STAGE_NUMEL, largest);
}

// ================================================================================================ 4 transport
static inline Control *fsdp_control(const Fsdp *f, int r) { return (Control *)f->mesh.peer[r].window; }
static inline uint64_t counter_read(const uint64_t *c) { return __atomic_load_n(c, __ATOMIC_ACQUIRE); }
static inline void counter_publish(uint64_t *c, uint64_t value) { __atomic_store_n(c, value, __ATOMIC_RELEASE); }

static inline MPI_Datatype fsdp_mpi_type(Dtype t) { return dtype_bytes(t) == 4 ? MPI_FLOAT : MPI_UINT16_T; }
static inline int fsdp_mpi_count(int64_t n) {
  CHECK(n <= INT32_MAX, "message of %lld elements", (long long)n);
  return (int)n;
}

// Where peers' /dev/shm windows would lie, and whether they fit; called by one rank a host before allocating.
static inline void fsdp_check_window_space(const Fsdp *f, size_t bytes_of_host) {
  const char *dir = getenv("OMPI_MCA_osc_sm_backing_directory");
  if (!dir) dir = "/dev/shm";
  struct statvfs s;
  if (statvfs(dir, &s)) return;
  size_t available = (size_t)s.f_bavail * s.f_frsize;
  if (bytes_of_host > available)
    die_missing("shared-memory windows of this host's %d ranks need %.1f MiB in %s, %.1f MiB are free: give it more "
                "(docker run --shm-size=%zum), or run with --shm off",
                f->mesh.node_world, (double)bytes_of_host / 1048576.0, dir, (double)available / 1048576.0,
                bytes_of_host / 1048576 + 64);
}

// Takes the window: shared with the host's ranks when there are any, private otherwise.
static inline void fsdp_open_window(Fsdp *f) {
  const size_t b_p = fsdp_param_bytes(f), b_r = dtype_bytes(f->cfg.wire_dtype);
  MemoryPlan *m = f->plan;
  size_t at = CONTROL_PAGE_BYTES;
  m->taken_bytes[MEM_CONTROL] += CONTROL_BYTES;
  for (int u = 0; u < f->units; u++) {
    f->params_at[u] = at;
    at += (size_t)f->unit[u].shard_numel * b_p;
    m->taken_bytes[MEM_PARAMS] += (size_t)f->unit[u].shard_numel * b_p;
  }
  f->grad_slots_at = at;
  for (int s = 0; s < 2 && f->units > 1; s++) {
    at += (size_t)f->unit[1].full_numel * b_r;
    m->taken_bytes[MEM_GRAD_SLOTS] += (size_t)f->unit[1].full_numel * b_r;
  }
  f->root_grads_at = at;
  at += (size_t)f->unit[0].full_numel * 4;
  m->taken_bytes[MEM_ROOT_GRADS] += (size_t)f->unit[0].full_numel * 4;
  f->staging_at = at;
  if (fsdp_unit_staged(f, 0)) {
    size_t staging = 2 * (size_t)f->mesh.world * (size_t)f->chunk_numel * b_r;
    at += staging;
    m->taken_bytes[MEM_STAGING_OUT] += staging;
  }
  f->window_bytes = at = at + CONTROL_BYTES - CONTROL_PAGE_BYTES;
  f->has_win = f->mesh.windows && f->mesh.node_world > 1;
  if (!f->has_win) {
    f->window = (char *)mmap(NULL, at, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (f->window == MAP_FAILED) die_missing("cannot allocate %zu bytes of window: %s", at, strerror(errno));
    madvise(f->window, at, MADV_HUGEPAGE);
    f->mesh.peer[f->mesh.rank].window = f->window;
    return;
  }
  if (f->mesh.node_rank == 0) fsdp_check_window_space(f, at * (size_t)f->mesh.node_world);
  MPI_Barrier(f->mesh.node);                     // nobody allocates before the host's first rank has checked
  MPI_Info info;
  MPI_Info_create(&info);
  MPI_Info_set(info, "alloc_shared_noncontig", "true");          // every rank's part lies the same way in its page
  MPI_Win_allocate_shared((MPI_Aint)at, 1, info, f->mesh.node, &f->window, &f->win);
  MPI_Info_free(&info);
  MPI_Win_lock_all(MPI_MODE_NOCHECK, f->win);
  f->window = page_aligned(f->window);
  memset(f->window, 0, at - CONTROL_PAGE_BYTES);
  int *world_rank = (int *)malloc(sizeof(int) * (size_t)f->mesh.node_world);
  MPI_Allgather(&f->mesh.rank, 1, MPI_INT, world_rank, 1, MPI_INT, f->mesh.node);
  for (int r = 0; r < f->mesh.node_world; r++) {
    MPI_Aint size;
    int unit;
    char *start;
    MPI_Win_shared_query(f->win, r, &size, &unit, &start);
    f->mesh.peer[world_rank[r]].window = page_aligned(start); // segments map to whole pages: the same shift everywhere
  }
  free(world_rank);
  MPI_Barrier(f->mesh.node);
}

static inline char *fsdp_param_shard(const Fsdp *f, int rank, int u) {
  return f->mesh.peer[rank].window + f->params_at[u];
}
// Where rank r (its window at `window`) lays out what it contributes to `owner` in a round, from shard element `first`.
static inline char *fsdp_contribution(const Fsdp *f, char *window, int owner, uint64_t round, int64_t first) {
  const ReduceJob *job = &f->job;
  const size_t b_r = dtype_bytes(f->cfg.wire_dtype);
  if (fsdp_unit_staged(f, job->unit)) {
    size_t chunk = (size_t)f->chunk_numel * b_r, parity = round & 1;
    return window + f->staging_at + (parity * (size_t)f->mesh.world + (size_t)owner) * chunk;
  }
  const Piece *c = &f->unit[job->unit].piece[0];
  return window + (job->full - f->window) + (size_t)(c->full_offset + owner * c->numel + first) * b_r;
}

// ---- the comm table: what a transport does. Sections 5 and 6 know no other way to reach a peer.
struct Comm {
  const char *name;
  void (*gather_start)(Fsdp *f, int u, GatherSlot *s);             // begins to make unit u whole
  void (*gather_finish)(Fsdp *f, int u, GatherSlot *s);            // waits for it and sets s->whole
  bool (*round_free)(Fsdp *f, uint64_t round);                     // may the memory of this round be written again?
  void (*round_send)(Fsdp *f, uint64_t round, int64_t first, int64_t n);       // own contributions lie ready: give them
  bool (*round_arrived)(Fsdp *f, uint64_t round);                  // are all contributions to the own shard here?
  const char *(*round_input)(const Fsdp *f, uint64_t round, int r, int64_t first);     // rank r's, in the wire dtype
  void (*round_done)(Fsdp *f, uint64_t round);                     // the own shard has them: peers may go on
  bool (*grads_free)(Fsdp *f, int slot);                           // has everybody read this gradient slot?
  void (*progress)(Fsdp *f);                                       // lets messages move
};

// ---- self: one rank. Units are read in place, contributions are the own ones.
static inline void comm_self_gather_start(Fsdp *, int, GatherSlot *) {}
static inline void comm_self_gather_finish(Fsdp *f, int u, GatherSlot *s) { s->whole = fsdp_param_shard(f, 0, u); }
static inline bool comm_self_yes(Fsdp *, uint64_t) { return true; }
static inline void comm_self_send(Fsdp *, uint64_t, int64_t, int64_t) {}
static inline const char *comm_self_input(const Fsdp *f, uint64_t round, int, int64_t first) {
  return fsdp_contribution(f, f->window, 0, round, first);
}
static inline void comm_self_done(Fsdp *, uint64_t) {}
static inline bool comm_self_grads_free(Fsdp *, int) { return true; }
static inline void comm_self_progress(Fsdp *) {}
static const Comm comm_self = {
    "self", comm_self_gather_start, comm_self_gather_finish, comm_self_yes, comm_self_send, comm_self_yes,
    comm_self_input, comm_self_done, comm_self_grads_free, comm_self_progress};

// ---- mpi: ranks of one host read each other's windows, ranks of different hosts exchange nonblocking messages.
static inline bool requests_done(MPI_Request *r, int *pending) {
  if (!*pending) return true;
  int flag = 0;
  MPI_Testall(*pending, r, &flag, MPI_STATUSES_IGNORE);
  if (flag) *pending = 0;
  return flag;
}
// OpenMPI moves messages only inside its calls.
static inline void comm_mpi_progress(Fsdp *f) {
  int flag;
  if (f->mesh.remote) MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, f->mesh.reduce_comm, &flag, MPI_STATUS_IGNORE);
}
static inline void comm_mpi_gather_start(Fsdp *f, int u, GatherSlot *s) {
  f->traffic.gathers++;
  const MPI_Datatype type = fsdp_mpi_type(f->cfg.param_dtype);
  const size_t b = fsdp_param_bytes(f);
  for (int r = 0; r < f->mesh.world && f->mesh.remote; r++) {
    if (r == f->mesh.rank || mesh_shares_memory(&f->mesh, r)) continue;
    for (int i = 0; i < f->unit[u].pieces; i++) {
      const Piece *c = &f->unit[u].piece[i];
      char *to = s->data + (size_t)(c->full_offset + r * c->numel) * b;
      char *from = fsdp_param_shard(f, f->mesh.rank, u) + (size_t)c->shard_offset * b;
      MPI_Irecv(to, fsdp_mpi_count(c->numel), type, r, u, f->mesh.gather_comm, &s->requests[s->pending++]);
      MPI_Isend(from, fsdp_mpi_count(c->numel), type, r, u, f->mesh.gather_comm, &s->requests[s->pending++]);
      f->traffic.gather_bytes += c->numel * (int64_t)b;
    }
  }
}
static inline void fsdp_poll(Fsdp *f);
// Shards of ranks on this host are copied here, by all threads: their owners change them only between two barriers.
static inline void comm_mpi_gather_finish(Fsdp *f, int u, GatherSlot *s) {
  const size_t b = fsdp_param_bytes(f);
  for (int i = 0; i < f->unit[u].pieces; i++) {
    const Piece *c = &f->unit[u].piece[i];
    for (int k = 0; k < f->mesh.world; k++) {
      int r = (f->mesh.rank + k) % f->mesh.world;              // start with the own shard: ranks do not all read one
      if (r != f->mesh.rank && !mesh_shares_memory(&f->mesh, r)) continue;
      f->ctx->ops->copy(f->ctx, s->data + (size_t)(c->full_offset + r * c->numel) * b,
                        fsdp_param_shard(f, r, u) + (size_t)c->shard_offset * b, (size_t)c->numel * b);
      if (r != f->mesh.rank) f->traffic.gather_bytes += c->numel * (int64_t)b;
    }
  }
  for (int spins = 0; !requests_done(s->requests, &s->pending); fsdp_poll(f)) mesh_pause(&f->mesh, &spins);
  s->whole = s->data;
}
// Have the peers of this host added up everything before round `rounds`?
static inline bool comm_mpi_peers_done(const Fsdp *f, uint64_t rounds) {
  for (int r = 0; r < f->mesh.world; r++)
    if (r != f->mesh.rank && mesh_shares_memory(&f->mesh, r) && counter_read(&fsdp_control(f, r)->done) < rounds)
      return false;
  return true;
}
// Two rounds are in flight: round - 2 used this memory. Only staging is written per round; slots are grads_free's.
static inline bool comm_mpi_round_free(Fsdp *f, uint64_t round) {
  if (!requests_done(f->sends[round & 1], &f->sends_pending[round & 1])) return false;
  return !fsdp_unit_staged(f, f->job.unit) || round < 2 || comm_mpi_peers_done(f, round - 1);
}
static inline char *comm_mpi_staging_in(const Fsdp *f, uint64_t round, int remote_peer) {
  const size_t chunk_bytes = (size_t)f->chunk_numel * dtype_bytes(f->cfg.wire_dtype);
  return f->staging_in + ((round & 1) * (size_t)f->mesh.remote + (size_t)remote_peer) * chunk_bytes;
}
static inline void comm_mpi_round_send(Fsdp *f, uint64_t round, int64_t first, int64_t n) {
  const int parity = (int)(round & 1), tag = (int)(round & 0x3fff), me = f->mesh.rank;
  const MPI_Datatype type = fsdp_mpi_type(f->cfg.wire_dtype);
  // A slot is complete before its first round: all of its rounds can be read from then on.
  const uint64_t ready = fsdp_unit_staged(f, f->job.unit) ? round + 1 : f->rounds_started;
  counter_publish(&fsdp_control(f, me)->ready, ready);
  for (int r = 0, k = 0; r < f->mesh.world && f->mesh.remote; r++) {
    if (r == me || mesh_shares_memory(&f->mesh, r)) continue;
    MPI_Irecv(comm_mpi_staging_in(f, round, k++), fsdp_mpi_count(n), type, r, tag, f->mesh.reduce_comm,
              &f->receives[parity][f->receives_pending[parity]++]);
    MPI_Isend(fsdp_contribution(f, f->window, r, round, first), fsdp_mpi_count(n), type, r, tag, f->mesh.reduce_comm,
              &f->sends[parity][f->sends_pending[parity]++]);
  }
}
static inline bool comm_mpi_round_arrived(Fsdp *f, uint64_t round) {
  for (int r = 0; r < f->mesh.world; r++)
    if (r != f->mesh.rank && mesh_shares_memory(&f->mesh, r) && counter_read(&fsdp_control(f, r)->ready) < round + 1)
      return false;
  return requests_done(f->receives[round & 1], &f->receives_pending[round & 1]);
}
static inline const char *comm_mpi_round_input(const Fsdp *f, uint64_t round, int r, int64_t first) {
  const int me = f->mesh.rank;
  if (r == me || mesh_shares_memory(&f->mesh, r))
    return fsdp_contribution(f, f->mesh.peer[r].window, me, round, first);
  int remote_peer = 0;
  for (int q = 0; q < r; q++) remote_peer += q != me && !mesh_shares_memory(&f->mesh, q);
  return comm_mpi_staging_in(f, round, remote_peer);
}
static inline void comm_mpi_round_done(Fsdp *f, uint64_t round) {
  counter_publish(&fsdp_control(f, f->mesh.rank)->done, round + 1);
}
static inline bool comm_mpi_grads_free(Fsdp *f, int slot) {
  return comm_mpi_peers_done(f, f->slot_rounds[slot]) && requests_done(f->sends[0], &f->sends_pending[0]) &&
         requests_done(f->sends[1], &f->sends_pending[1]);
}
static const Comm comm_mpi = {
    "mpi", comm_mpi_gather_start, comm_mpi_gather_finish, comm_mpi_round_free, comm_mpi_round_send,
    comm_mpi_round_arrived, comm_mpi_round_input, comm_mpi_round_done, comm_mpi_grads_free, comm_mpi_progress};

// ---- small exchanges, the same over every transport
// `bytes` of every rank to every rank, in order of rank: once a step.
static inline void fsdp_small_all_gather(Fsdp *f, const void *mine, void *all, size_t bytes) {
  f->traffic.small++;
  f->traffic.small_bytes += (int64_t)bytes * (f->mesh.world - 1);
  MPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, f->mesh.comm);
}
static inline void fsdp_barrier(Fsdp *f) {
  f->traffic.small++;
  MPI_Barrier(f->mesh.comm);
}

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
static inline void fsdp_release(Fsdp *f, int u) { fsdp_slot(f, u)->in_use = false; }

// Parameter p of a gathered unit whose full buffer is `base`; rows include the padding rows.
static inline Tensor fsdp_tensor(const Fsdp *f, void *base, int p, Dtype dtype) {
  const Param *q = &f->param[p];
  return tensor_of((char *)base + (size_t)q->offset * dtype_bytes(dtype), dtype, q->padded_rows,
                   q->ndim == 2 ? q->shape[1] : -1);
}

// ================================================================================================ 6 reduce
static inline int fsdp_rounds(const Fsdp *f, int u) {
  bool chunked = f->mesh.remote || fsdp_unit_staged(f, u);
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
    convert(f->ctx, tensor_of(fsdp_contribution(f, f->window, o, round, first), f->cfg.wire_dtype, n),
            tensor_of((char *)job->full + (size_t)(c->full_offset + o * c->numel + first) * 4, F32, n));
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
  const size_t b_r = dtype_bytes(f->cfg.wire_dtype);
  float *sum = f->grads + f->shard_at[job->unit] + first;
  for (int64_t at = 0; at < n; at += STAGE_NUMEL) {            // all ranks' part of a block while the sum is in cache
    int64_t part = min64(STAGE_NUMEL, n - at);
    for (int r = 0; r < f->mesh.world; r++) {
      const char *in = f->comm->round_input(f, round, r, first) + (size_t)at * b_r;
      accumulate(f->ctx, tensor_of(sum + at, F32, part), tensor_of((void *)in, f->cfg.wire_dtype, part),
                 job->first && r == 0 ? OVERWRITE : ADD);
    }
  }
  f->traffic.reduce_bytes += (f->mesh.world - 1) * n * (int64_t)b_r;
  f->comm->round_done(f, round);
  if (++job->consumed == job->rounds) job->active = false;
  return true;
}

// Moves the reduction in flight as far as it goes without waiting. Called between ops.
static inline void fsdp_poll(Fsdp *f) {
  f->comm->progress(f);
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
static inline char *fsdp_grad_slot_data(const Fsdp *f, int slot) {
  if (slot == 2) return f->window + f->root_grads_at;
  return f->window + f->grad_slots_at + (size_t)slot * (size_t)fsdp_block_numel(f) * dtype_bytes(f->cfg.wire_dtype);
}

// The whole gradient buffer of unit u, to be overwritten: blocks in the wire dtype (one of two slots), the root in
// fp32. Waits until the reduction that used the memory before has been read by everybody.
static inline void *fsdp_grads(Fsdp *f, int u) {
  const int slot = fsdp_grad_slot(f, u);
  if (f->job.active && f->job.slot == slot) fsdp_reduce_finish(f);
  for (int spins = 0; !f->comm->grads_free(f, slot); fsdp_poll(f)) mesh_pause(&f->mesh, &spins);
  return fsdp_grad_slot_data(f, slot);
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
  job->full = fsdp_grad_slot_data(f, s);
  f->rounds_started += (uint64_t)job->rounds;
  f->slot_rounds[s] = f->rounds_started;
  f->block_reductions += u != 0;
  f->traffic.reductions++;
  fsdp_poll(f);
}

// ================================================================================================ 7 optimizer
// Takes all memory of the plan's sharding lines. Collective. f->plan must hold the plan.
static inline void fsdp_open(Fsdp *f, MemoryPlan *plan) {
  f->plan = plan;
  f->comm = f->mesh.world == 1 ? &comm_self : &comm_mpi;
  fsdp_open_window(f);
  const size_t shards = (size_t)f->shard_total, b_p = fsdp_param_bytes(f);
  if (f->cfg.param_dtype != F32) f->master = (float *)memory_take(plan, MEM_MASTER, shards * 4);
  f->m = (float *)memory_take(plan, MEM_OPTIMIZER, shards * 4);
  if (f->cfg.optimizer == OPTIMIZER_ADAMW) f->v = (float *)memory_take(plan, MEM_OPTIMIZER, shards * 4);
  f->grads = (float *)memory_take(plan, MEM_GRADS, shards * 4);
  const int K = f->cfg.gather_slots, remote = f->mesh.remote;
  f->slot = (GatherSlot *)calloc((size_t)K + 1, sizeof(GatherSlot));
  for (int k = 0; k <= K && f->mesh.world > 1; k++) {            // one rank reads its units in place
    f->slot[k].data = (char *)memory_take(plan, k == K ? MEM_ROOT_PARAMS : MEM_GATHER_SLOTS,
                                          (size_t)(k == K ? f->unit[0].full_numel : fsdp_block_numel(f)) * b_p);
    f->slot[k].requests = (MPI_Request *)calloc((size_t)(2 * remote * MAX_PIECES + 1), sizeof(MPI_Request));
  }
  for (int parity = 0; parity < 2; parity++) {
    f->sends[parity] = (MPI_Request *)calloc((size_t)remote + 1, sizeof(MPI_Request));
    f->receives[parity] = (MPI_Request *)calloc((size_t)remote + 1, sizeof(MPI_Request));
  }
  f->staging_in = (char *)memory_take(plan, MEM_STAGING_IN,
                                      2 * (size_t)remote * (size_t)f->chunk_numel * dtype_bytes(f->cfg.wire_dtype));
}

static inline void fsdp_close(Fsdp *f) {
  const size_t shards = (size_t)f->shard_total * 4, b_p = fsdp_param_bytes(f);
  memory_give_back(f->master, shards);
  memory_give_back(f->m, shards);
  memory_give_back(f->v, shards);
  memory_give_back(f->grads, shards);
  memory_give_back(f->staging_in, f->plan ? f->plan->taken_bytes[MEM_STAGING_IN] : 0);
  for (int k = 0; f->slot && k <= f->cfg.gather_slots; k++) {
    int64_t n = k == f->cfg.gather_slots ? f->unit[0].full_numel : fsdp_block_numel(f);
    memory_give_back(f->slot[k].data, (size_t)n * b_p);
    free(f->slot[k].requests);
  }
  for (int parity = 0; parity < 2; parity++) { free(f->sends[parity]); free(f->receives[parity]); }
  if (f->has_win) { MPI_Win_unlock_all(f->win); MPI_Win_free(&f->win); }
  else memory_give_back(f->window, f->window_bytes);
  free(f->slot); free(f->unit); free(f->param); free(f->shard_at); free(f->params_at);
  mesh_close(&f->mesh);
  memset(f, 0, sizeof *f);
}

enum ShardState { STATE_MASTER, STATE_M, STATE_V, STATE_GRAD };
// The fp32 shard of unit u in a state. In fp32 the parameter shard itself is the master.
static inline float *fsdp_shard(const Fsdp *f, ShardState state, int u) {
  if (state == STATE_MASTER && f->cfg.param_dtype == F32) return (float *)fsdp_param_shard(f, f->mesh.rank, u);
  float *base = state == STATE_MASTER ? f->master : state == STATE_M ? f->m : state == STATE_V ? f->v : f->grads;
  return base ? base + f->shard_at[u] : NULL;
}

// All reductions of the step are complete after this; adds the squares of the own gradient shards to limbs.
static inline void fsdp_norm_accumulate(Fsdp *f, int64_t *limbs) {
  fsdp_reduce_finish(f);
  norm_accumulate(f->ctx, limbs, tensor_of(f->grads, F32, f->shard_total));
}

struct OptimizerArgs { OptimizerKind kind; AdamwArgs adamw; SgdArgs sgd; };

// One optimizer step on the own shards; gathered copies become stale. Ends with a barrier: from then on peers may read.
static inline void fsdp_update(Fsdp *f, OptimizerArgs a) {
  for (int p = 0; p < f->params; p++) {
    const Param *q = &f->param[p];
    Run run;
    if (!shard_run(&f->unit[q->unit], q, f->mesh.rank, &run)) continue;
    const int u = q->unit;
    char *low = fsdp_param_shard(f, f->mesh.rank, u) + (size_t)run.in_shard * fsdp_param_bytes(f);
    Tensor param = tensor_of(f->cfg.param_dtype == F32 ? NULL : low, f->cfg.param_dtype, run.numel);
    Tensor master = tensor_of(fsdp_shard(f, STATE_MASTER, u) + run.in_shard, F32, run.numel);
    Tensor m = tensor_of(fsdp_shard(f, STATE_M, u) + run.in_shard, F32, run.numel);
    Tensor grad = tensor_of(fsdp_shard(f, STATE_GRAD, u) + run.in_shard, F32, run.numel);
    if (a.kind == OPTIMIZER_ADAMW) {
      AdamwArgs args = a.adamw;
      if (!q->decay) args.weight_decay = 0;
      adamw_update(f->ctx, param, master, m, tensor_of(fsdp_shard(f, STATE_V, u) + run.in_shard, F32, run.numel), grad,
                   args);
    } else {
      SgdArgs args = a.sgd;
      if (!q->decay) args.weight_decay = 0;
      sgd_update(f->ctx, param, master, m, grad, args);
    }
  }
}

// Ends a step: what was gathered is stale, and from here on peers may read the new shards. Collective.
static inline void fsdp_step_end(Fsdp *f) {
  for (int k = 0; k <= f->cfg.gather_slots; k++) { f->slot[k].state = SLOT_EMPTY; f->slot[k].unit = -1; }
  fsdp_barrier(f);
}

// Writes the compute-dtype copy of the own shard of unit u from its master.
static inline void fsdp_refresh_params(Fsdp *f, int u) {
  if (f->cfg.param_dtype == F32) return;
  convert(f->ctx, tensor_of(fsdp_param_shard(f, f->mesh.rank, u), f->cfg.param_dtype, f->unit[u].shard_numel),
          tensor_of(fsdp_shard(f, STATE_MASTER, u), F32, f->unit[u].shard_numel));
}

// Initialises the own shards by counter: element i of tensor t is the same for every N. Collective (ends in a barrier).
static inline void fsdp_init_params(Fsdp *f, uint64_t seed) {
  for (int p = 0; p < f->params; p++) {
    const Param *q = &f->param[p];
    Run run;
    if (!shard_run(&f->unit[q->unit], q, f->mesh.rank, &run)) continue;
    int64_t logical = q->shape[0] * (q->ndim == 2 ? q->shape[1] : 1);          // padding rows stay zero
    int64_t n = min64(run.numel, logical - run.in_param);
    float *to = fsdp_shard(f, STATE_MASTER, q->unit) + run.in_shard;
    if (n <= 0) continue;
    if (q->init == INIT_NORMAL) normal_fill(f->ctx, tensor_of(to, F32, n), seed, (uint32_t)p, run.in_param, q->std);
    for (int64_t i = 0; i < n && q->init == INIT_ONE; i++) to[i] = 1.0f;
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
    if (r == f->mesh.rank)
      memcpy(full + run.in_param, fsdp_shard(f, state, q->unit) + run.in_shard, (size_t)run.numel * 4);
    if (f->mesh.world > 1) MPI_Bcast(full + run.in_param, fsdp_mpi_count(run.numel), MPI_FLOAT, r, f->mesh.comm);
  }
}
// Sets the own part of parameter p's state from `full` (logical rows; padding rows become zero). Follow a change of
// STATE_MASTER by fsdp_refresh_params and fsdp_step_end.
static inline void fsdp_write_param(Fsdp *f, ShardState state, int p, const float *full) {
  const Param *q = &f->param[p];
  Run run;
  if (!shard_run(&f->unit[q->unit], q, f->mesh.rank, &run)) return;
  int64_t logical = q->shape[0] * (q->ndim == 2 ? q->shape[1] : 1);
  float *to = fsdp_shard(f, state, q->unit) + run.in_shard;
  for (int64_t i = 0; i < run.numel; i++) to[i] = run.in_param + i < logical ? full[run.in_param + i] : 0.0f;
}
