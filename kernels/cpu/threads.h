// threads.h: the CPU threads of a rank, and how an op divides its work among them.
//
//   parallel(threads, body)                          body(thread, threads) on each of them
//   parallel_for(threads, begin, end, step, body)    body(i) for i = begin, begin + step, ... below end; equal shares
//   parallel_tasks(threads, tasks, chunk, body)      body(i) for 0 <= i < tasks; a free thread takes the next chunk
//                                                    where there is one step or chunk only, the caller does it, alone
//   thread_share, thread_tasks, thread_max           inside a body: an equal share; the next tasks; a maximum of all
//   threads_barrier()                                inside a body: no thread continues before all have arrived
//   thread_number                                    which thread of its region this is; 0 outside
//
// A body is a lambda that captures by value ([=]): each thread then works on a private copy, which stays in registers.
// A region inside a region, or one that starts while another host thread has the threads, runs on its caller alone:
// no result depends on the number of threads.
//
// How they wait. A region of a small model lasts tens of microseconds, and waking a sleeper takes about as long, so
// a waiting thread spins. But where threads outnumber free cores, the thread that is waited for may need the very core
// that the waiter spins on: two runs of `tiny` side by side then lost three quarters of their speed. Whether to spin or
// to sleep is the ski-rental problem, and history decides it (Karlin et al. 1991, "Empirical studies of competitive
// spinning for a shared-memory multiprocessor"): a thread whose last waits ended soon spins for up to SPIN_MAX cycles,
// else it sleeps.
#pragma once
#include <stdint.h>

typedef void (*ThreadBody)(void *arg, int thread, int threads);
// Runs body(arg, t, threads) for every t below `threads`, 0 on the caller; returns when all are done. Threads are
// started when they are first needed, and kept.
void threads_run(int threads, ThreadBody body, void *arg);
void threads_barrier();
extern __thread int thread_number;
// If set, each thread of the pool calls it with its number when it starts; it decides on which CPUs the caller runs.
// -1: wherever the rank may, for a thread that is started beside the pool.
extern void (*thread_place)(int thread);

// Thread `thread` of `threads` has begin, begin + step, ... below end, of 0 .. n.
struct ThreadShare { int64_t begin, end; };
static inline ThreadShare thread_share(int64_t n, int64_t step, int thread, int threads) {
  const int64_t steps = (n + step - 1) / step, end = steps * (thread + 1) / threads * step;
  return ThreadShare{steps * thread / threads * step, end < n ? end : n};
}
// All threads of a region call it with the same counter, which starts at 0.
template <class F> static inline void thread_tasks(int64_t *taken, int64_t tasks, int64_t chunk, const F &body) {
  for (int64_t at; (at = __atomic_fetch_add(taken, chunk, __ATOMIC_RELAXED)) < tasks;)
    for (int64_t i = at; i < tasks && i < at + chunk; i++) body(i);
}
// *largest becomes x where x is larger.
template <class T> static inline void thread_max(T *largest, T x) {
  T now = __atomic_load_n(largest, __ATOMIC_RELAXED);
  while (x > now && !__atomic_compare_exchange_n(largest, &now, x, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
}

template <class F> static void threads_body(void *arg, int thread, int threads) {
  const F body = *(const F *)arg;
  body(thread, threads);
}
template <class F> static inline void parallel(int threads, const F &body) {
  threads_run(threads, threads_body<F>, (void *)&body);
}
template <class F>
static inline void parallel_for(int threads, int64_t begin, int64_t end, int64_t step, const F &body) {
  parallel(end - begin > step ? threads : 1, [=](int thread, int all) {
    const ThreadShare mine = thread_share(end - begin, step, thread, all);
    for (int64_t i = mine.begin; i < mine.end; i += step) body(begin + i);
  });
}
template <class F> static inline void parallel_tasks(int threads, int64_t tasks, int64_t chunk, const F &body) {
  int64_t counter = 0, *const taken = &counter;
  parallel(tasks > chunk ? threads : 1, [=](int, int) { thread_tasks(taken, tasks, chunk, body); });
}

#if PART_THREADS
// ---- the threads themselves: once in a program, in threads.cc
#include "base/base.h"
#include "kernels/device.h"
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

// Ticks of processor_ticks() (2 to 4 a nanosecond). Trust counts waits that ended within SPIN_MAX; one that did
// not costs SPIN_DOUBT of them.
enum { SPIN_MAX = 100000, SPIN_LEAST = 2000, SPIN_TRUST = 32, SPIN_DOUBT = 4 };

// What threads wait for: a value that changes. changed_at: when it did. A sleeper learns from it how long it would have
// had to spin, which is not how long it slept.
struct alignas(64) ThreadWord { uint32_t value, sleepers; uint64_t changed_at; };

struct alignas(64) ThreadPool {
  ThreadWord job, done, barrier;                 // job, done: a region's number; barrier: how often all have arrived
  alignas(64) int running;                       // started threads that have not ended the region
  int waiting, busy, started;                    // at the barrier; a region is at work; threads besides the caller
  alignas(64) int threads;                       // of the region
  ThreadBody body;
  void *arg;
};
static ThreadPool thread_pool;
__thread int thread_number;
void (*thread_place)(int thread);
static __thread int thread_team = 1, thread_trust = SPIN_TRUST;  // team: threads of the region this one is in

static inline void thread_word_set(ThreadWord *w, uint32_t value) {
  __atomic_store_n(&w->changed_at, processor_ticks(), __ATOMIC_RELAXED);
  __atomic_store_n(&w->value, value, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&w->sleepers, __ATOMIC_SEQ_CST))
    syscall(SYS_futex, &w->value, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}
// Returns once the word is no longer `old`.
static inline void thread_word_wait(ThreadWord *w, uint32_t old) {
  const uint64_t begun = processor_ticks(), spin = thread_trust > 0 ? SPIN_MAX : SPIN_LEAST;
  while (__atomic_load_n(&w->value, __ATOMIC_ACQUIRE) == old) {
    if (processor_ticks() - begun < spin) { processor_pause(); continue; }
    __atomic_fetch_add(&w->sleepers, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &w->value, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);     // not if it has changed by now
    __atomic_fetch_sub(&w->sleepers, 1, __ATOMIC_SEQ_CST);
  }
  const int64_t waited = (int64_t)(__atomic_load_n(&w->changed_at, __ATOMIC_RELAXED) - begun);
  thread_trust += waited < SPIN_MAX ? 1 : -SPIN_DOUBT;
  thread_trust = thread_trust > SPIN_TRUST ? SPIN_TRUST : thread_trust < -SPIN_TRUST ? -SPIN_TRUST : thread_trust;
}

static void thread_part(ThreadPool *p, int thread) {
  thread_number = thread;
  thread_team = p->threads;
  p->body(p->arg, thread, p->threads);
  thread_number = 0;
  thread_team = 1;
}
struct ThreadStart { int number; uint32_t job; };          // job: the last region before this thread started
static void *thread_life(void *to) {
  const ThreadStart start = *(ThreadStart *)to;
  ThreadPool *p = &thread_pool;
  free(to);
  if (thread_place) thread_place(start.number);
  for (uint32_t job = start.job;; job++) {
    thread_word_wait(&p->job, job);
    if (start.number < p->threads) thread_part(p, start.number);
    if (!__atomic_sub_fetch(&p->running, 1, __ATOMIC_ACQ_REL)) thread_word_set(&p->done, job + 1);
  }
  return NULL;
}
// A forked process has only the thread that forked it.
static void threads_forget() { thread_pool = ThreadPool{}; }
// Signals go to the main thread, because they must interrupt its write that waits for a terminal.
static void threads_start(ThreadPool *p, int threads) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  if (!p->started) pthread_atfork(NULL, NULL, threads_forget);
  for (; p->started < threads - 1; p->started++) {
    pthread_t thread;
    ThreadStart *start = (ThreadStart *)malloc(sizeof *start);
    *start = ThreadStart{p->started + 1, p->job.value};
    const int fault = pthread_create(&thread, NULL, thread_life, start);
    if (fault) die_missing("thread %d of %d cannot be started: %s; ask for fewer with --threads", p->started + 2,
                           threads, strerror(fault));
    pthread_detach(thread);
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}
static void threads_run_alone(ThreadBody body, void *arg) {
  const int number = thread_number, team = thread_team;
  thread_number = 0;
  thread_team = 1;
  body(arg, 0, 1);
  thread_number = number;
  thread_team = team;
}
void threads_run(int threads, ThreadBody body, void *arg) {
  ThreadPool *p = &thread_pool;
  if (threads <= 1 || __atomic_exchange_n(&p->busy, 1, __ATOMIC_ACQUIRE)) { threads_run_alone(body, arg); return; }
  if (p->started < threads - 1) threads_start(p, threads);
  p->threads = threads;
  p->body = body;
  p->arg = arg;
  const uint32_t job = p->job.value;
  __atomic_store_n(&p->running, p->started, __ATOMIC_RELAXED);
  thread_word_set(&p->job, job + 1);
  thread_part(p, 0);
  while (__atomic_load_n(&p->done.value, __ATOMIC_ACQUIRE) != job + 1) thread_word_wait(&p->done, job);
  __atomic_store_n(&p->busy, 0, __ATOMIC_RELEASE);
}
void threads_barrier() {
  ThreadPool *p = &thread_pool;
  if (thread_team == 1) return;
  const uint32_t turn = __atomic_load_n(&p->barrier.value, __ATOMIC_ACQUIRE);
  const bool last = __atomic_add_fetch(&p->waiting, 1, __ATOMIC_ACQ_REL) == thread_team;
  if (!last) { thread_word_wait(&p->barrier, turn); return; }
  p->waiting = 0;
  thread_word_set(&p->barrier, turn + 1);
}
#endif
