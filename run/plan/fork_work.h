// fork_work.h: many independent pieces of work on all cores, by processes and not threads, so that the code of a piece
// may use static memory. A piece leaves its result in memory that the processes share.
#pragma once
#include "plan.h"
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

// `bytes` of zeros that processes forked later share. Give them back with munmap.
static inline void *fork_memory(size_t bytes) {
  void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(p != MAP_FAILED, "no shared memory of %zu bytes for what several processes compute", bytes);
  return p;
}
// The number of processes to use: that of the cores that this process may use, by its mask and its cgroup's quota.
static inline int fork_processes() {
  cpu_set_t mask;
  const int cores = sched_getaffinity(0, sizeof mask, &mask) ? 1 : CPU_COUNT(&mask);
  const double quota = cgroup_cores("");
  return quota < cores ? (quota < 1 ? 1 : (int)quota) : cores < 1 ? 1 : cores;
}
// Piece `i` of what `of` points to. Its results must be in memory of fork_memory.
typedef void ForkPiece(void *of, int64_t i);
typedef void ForkProgress(int64_t done, int64_t count);
struct ForkShared { int64_t next, done; };       // the next piece that nobody does yet; pieces done
// Does pieces until none is left.
static inline void fork_pieces(ForkShared *s, int64_t count, ForkPiece *piece, void *of, ForkProgress *progress) {
  for (;;) {
    const int64_t i = __atomic_fetch_add(&s->next, 1, __ATOMIC_RELAXED);
    if (i >= count) return;
    piece(of, i);
    const int64_t done = __atomic_add_fetch(&s->done, 1, __ATOMIC_RELAXED);
    if (progress) progress(done, count);
  }
}
// Does `count` pieces in `processes` processes, of which this process is one and alone calls `progress`. Any process
// may do any piece. If one of the others fails, this process exits with that one's exit code, or, if a signal ended it,
// with a line of its own.
static inline void fork_work(int processes, int64_t count, ForkPiece *piece, void *of, ForkProgress *progress) {
  ForkShared *s = (ForkShared *)fork_memory(sizeof *s);
  pid_t *child = (pid_t *)calloc((size_t)processes, sizeof(pid_t));
  const pid_t parent = getpid();
  fflush(NULL);
  for (int k = 1; k < processes && k < count; k++) {
    child[k] = fork();                           // if fork fails, the other processes do the pieces
    if (child[k]) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(0);
    fork_pieces(s, count, piece, of, NULL);
    _exit(0);
  }
  fork_pieces(s, count, piece, of, progress);
  for (int k = 1; k < processes; k++) {
    int status = 0;
    if (child[k] <= 0 || waitpid(child[k], &status, 0) != child[k]) continue;
    if (WIFEXITED(status) && WEXITSTATUS(status)) exit(WEXITSTATUS(status));
    CHECK(WIFEXITED(status), "a process that computed a part was ended by signal %d: run it again with fewer cores "
          "(taskset), if memory was short", WTERMSIG(status));
  }
  free(child);
  munmap(s, sizeof *s);
}
