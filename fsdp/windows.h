// windows.h: memory that the ranks of a host share, for --comm mpi: each rank's window, in which peers read its shards
// and gradients, and the counters at its start by which they wait for each other.
#pragma once
#include "kernels/cpu/threads.h"
#include "transport.h"

static inline Control *fsdp_control(const Fsdp *f, int r) { return (Control *)f->mesh.peer[r].window; }
static inline uint64_t counter_read(const uint64_t *c) { return __atomic_load_n(c, __ATOMIC_ACQUIRE); }
static inline void counter_publish(Fsdp *f, uint64_t *c, uint64_t value) {
  record_told(f->record, RECORD_PUBLISH, RECORD_HOST, 0, Access{ACCESS_WRITE, (uintptr_t)c, value});
  __atomic_store_n(c, value, __ATOMIC_RELEASE);
}
// Whether a counter in the window of a rank of this host has reached `value`.
static inline bool counter_reached(Fsdp *f, const uint64_t *c, uint64_t value) {
  if (counter_read(c) < value) return false;
  record_told(f->record, RECORD_OBSERVE, RECORD_HOST, 0, Access{ACCESS_READ, (uintptr_t)c, value});
  return true;
}
// A full memory fence. Called before and after a collective that separates ranks' writes to windows from their reads:
// MPI guarantees the order of its own memory only.
static inline void windows_fence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline char *page_aligned(char *p) {
  return (char *)(((uintptr_t)p + CONTROL_PAGE_BYTES - 1) / CONTROL_PAGE_BYTES * CONTROL_PAGE_BYTES);
}
static inline size_t comm_mpi_shared_bytes(const Fsdp *f) {
  return f->lay.work_bytes - (CONTROL_BYTES - CONTROL_PAGE_BYTES);
}
// Bytes of a rank's window. If shards are read zero-copy, all shards of a group are at the end of its first rank's
// window.
static inline size_t comm_mpi_window_bytes(const Fsdp *f, int rank) {
  if (!f->lay.in_place) return f->lay.work_bytes;
  const size_t shards = rank % fsdp_shards(f) ? 0 : (size_t)fsdp_shards(f);
  return f->lay.work_bytes - f->lay.params_bytes + shards * f->lay.params_bytes;
}
// The i-th rank of the shard group, and whether messages reach it.
static inline bool comm_mpi_is_remote(const Fsdp *f, int i) {
  return i != f->mesh.shard.me && !mesh_shares_memory(&f->mesh, f->mesh.shard.rank[i]);
}
static inline bool comm_mpi_is_neighbour(const Fsdp *f, int i) {
  return i != f->mesh.shard.me && mesh_shares_memory(&f->mesh, f->mesh.shard.rank[i]);
}

// Checks, on one rank per host and before anything is allocated, whether all windows of the host fit into its shared
// memory. If not, ends all ranks with one line. All ranks call it, also over hosts that have no windows.
static inline void fsdp_check_window_space(const Fsdp *f) {
  // Replicas differ in nothing that takes memory, but hosts may hold unlike shares of a shard group.
  unsigned long long mine = comm_mpi_window_bytes(f, f->mesh.rank), bytes_of_host = 0;
  MPI_Allreduce(&mine, &bytes_of_host, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, f->mesh.node);
  const bool asks = f->mem.has_win && !f->mesh.node_rank;
  const char *dir;
  Error error = {};
  errno = 0;
  const size_t available = windows_room(&dir), wanted = windows_need(bytes_of_host);
  if (asks && !available && errno)
    fail(&error, "%.200s, where shared-memory windows would be: %s; make it, or run with --shm off", dir,
         strerror(errno));
  else if (asks && wanted > available)
    fail(&error, "shared-memory windows of this host's %d ranks need %.1f MiB in %.200s, %.1f MiB are free: give it "
         "more (docker run --shm-size=%zum), or run with --shm off", f->mesh.node_world, (double)wanted / 1048576.0,
         dir, (double)available / 1048576.0, wanted / 1048576 + 64);
  agree_no_error(f->mesh.comm, error.text, EXIT_MISSING);
}
enum { WINDOW_POPULATE_WRITE = 23 };             // MADV_POPULATE_WRITE, which older headers lack
// Makes the kernel allocate the pages of [p, p + bytes) now, by a call that can fail: if /dev/shm is full, the first
// touch of a page would end the process. Returns true also if the kernel lacks the call (before Linux 5.14).
static inline bool window_take_pages(const void *p, size_t bytes) {
  const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = (uintptr_t)p / page * page;
  return !bytes || !madvise((void *)first, (uintptr_t)p + bytes - first, WINDOW_POPULATE_WRITE) || errno == EINVAL;
}

// Zeroes this rank's part of the windows, which allocates its pages, each on the NUMA node of the thread that touches
// it first. Threads take pieces of 2 MiB in turn, so that all NUMA nodes of the rank share the traffic to every buffer.
static const size_t WINDOW_PIECE_BYTES = 1 << 21;
static inline void comm_mpi_zero(const Fsdp *f, void *p, size_t bytes) {
  int failed = 0, *const fault = &failed;        // errno of a thread
  parallel(bytes > 2 * WINDOW_PIECE_BYTES ? f->ctx->threads : 1, [=](int thread, int threads) {
    const size_t turn = (size_t)threads * WINDOW_PIECE_BYTES;
    for (size_t at = (size_t)thread * WINDOW_PIECE_BYTES; at < bytes; at += turn) {
      char *piece = (char *)p + at;
      const size_t left = bytes - at, n = left < WINDOW_PIECE_BYTES ? left : WINDOW_PIECE_BYTES;
      if (!window_take_pages(piece, n)) { __atomic_store_n(fault, errno, __ATOMIC_RELAXED); return; }
      memset(piece, 0, n);
    }
  });
  if (failed)
    die_missing("shared memory is full: the window of this rank, %.1f MiB, was not to be had (%s); other runs may have "
                "taken it meanwhile: try again, or run with --shm off",
                (double)comm_mpi_window_bytes(f, f->mesh.rank) / 1048576.0, strerror(failed));
}
static inline void comm_mpi_zero_windows(Fsdp *f) {
  comm_mpi_zero(f, f->mem.window, f->lay.in_place ? f->lay.part[WORK_PARAMS].at : comm_mpi_shared_bytes(f));
  for (int u = 0; u < f->lay.units && f->lay.in_place; u++)
    for (int i = 0; i < f->lay.unit[u].pieces; i++)
      comm_mpi_zero(f, fsdp_own_piece(f, u, i), piece_bytes(&f->lay.unit[u].piece[i]));
}
// Takes the window: shared with the host's ranks when there are any, private otherwise. All ranks call it.
static inline void comm_mpi_open_window(Fsdp *f) {
  f->mem.has_win = f->mesh.windows && f->mesh.node_world > 1;
  fsdp_check_window_space(f);
  if (!f->mem.has_win) {
    f->mem.window = fsdp_memory_or_die(f, f->lay.work_bytes, f->lay.mirrored ? MEMORY_PINNED : MEMORY_DEVICE, "window");
    f->mesh.peer[f->mesh.rank].window = f->mem.params_home.at = f->mem.window;
    return;
  }
  const unsigned long long mine = comm_mpi_window_bytes(f, f->mesh.rank);
  MPI_Info info;
  MPI_Info_create(&info);
  MPI_Info_set(info, "alloc_shared_noncontig", "true");          // every rank's part is the same way in its page
  MPI_Comm_set_errhandler(f->mesh.node, MPI_ERRORS_RETURN);
  const int failed = MPI_Win_allocate_shared((MPI_Aint)mine, 1, info, f->mesh.node, &f->mem.window, &f->mem.win);
  MPI_Comm_set_errhandler(f->mesh.node, MPI_ERRORS_ARE_FATAL);
  MPI_Info_free(&info);
  if (failed)
    die_missing("OpenMPI cannot make this rank's shared-memory window of %.1f MiB: see its message above, or run with "
                "--shm off", (double)mine / 1048576.0);
  MPI_Win_lock_all(MPI_MODE_NOCHECK, f->mem.win);
  f->mem.window = page_aligned(f->mem.window);
  int *world_rank = (int *)malloc(sizeof(int) * (size_t)f->mesh.node_world);
  MPI_Allgather(&f->mesh.rank, 1, MPI_INT, world_rank, 1, MPI_INT, f->mesh.node);
  for (int r = 0; r < f->mesh.node_world; r++) {
    MPI_Aint size;
    int unit;
    char *start;
    MPI_Win_shared_query(f->mem.win, r, &size, &unit, &start);
    f->mesh.peer[world_rank[r]].window = page_aligned(start); // segments map to whole pages: the same shift everywhere
  }
  free(world_rank);
  f->mem.params_home.at = f->mesh.peer[f->lay.in_place ? f->mesh.shard.rank[0] : f->mesh.rank].window;
  comm_mpi_zero_windows(f);
  for (int r = 0; r < f->mesh.world && f->lay.mirrored; r++)
    if (mesh_shares_memory(&f->mesh, r))
      f->ctx->ops->memory_pin(f->ctx, f->mesh.peer[r].window, comm_mpi_shared_bytes(f));
  windows_fence();
  MPI_Barrier(f->mesh.node);
  windows_fence();
}
