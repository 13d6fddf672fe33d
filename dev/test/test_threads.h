// test_threads.h: what kernels/cpu/threads.h promises: every index once, barriers that hold, nested regions, and waits
// that end in sleep.
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

// Adds one to count[i] for each index that a division passes to `body`.
static void threads_count(int *count, int64_t i) { __atomic_fetch_add(&count[i], 1, __ATOMIC_RELAXED); }

TEST(threads_divide_exactly, "each way to divide work visits every index once, for any threads, step, chunk") {
  enum { MOST = 400 };
  static int count[MOST];
  for (int threads : {1, 2, 3, 7, 16}) for (int64_t n : {0, 1, 2, 6, 97, 400}) for (int64_t step : {1, 3, 64, 500}) {
    int *const visits = count;
    memset(count, 0, sizeof count);
    parallel_for(threads, 0, n, step, [=](int64_t i) { threads_count(visits, i); });
    for (int64_t i = 0; i < MOST; i++)
      EXPECT(count[i] == (i < n && i % step == 0), "parallel_for %d threads, %lld by %lld: %lld visited %d times",
             threads, (long long)n, (long long)step, (long long)i, count[i]);
    memset(count, 0, sizeof count);
    parallel_for(threads, 7, 7 + n, step, [=](int64_t i) { threads_count(visits, i - 7); });
    for (int64_t i = 0; i < MOST; i++)
      EXPECT(count[i] == (i < n && i % step == 0), "parallel_for from 7: %lld", (long long)i);
    memset(count, 0, sizeof count);
    parallel_tasks(threads, n, step, [=](int64_t i) { threads_count(visits, i); });
    for (int64_t i = 0; i < MOST; i++)
      EXPECT(count[i] == (i < n), "parallel_tasks %d threads, %lld by %lld: %lld visited %d times", threads,
             (long long)n, (long long)step, (long long)i, count[i]);
  }
}

TEST(threads_one_step_wakes_nobody, "work of one step or one chunk is done by its caller; more is divided") {
  const pthread_t self = pthread_self();
  static int elsewhere;
  int *const others = &elsewhere;
  const auto note = [=](int64_t) { if (!pthread_equal(self, pthread_self())) threads_count(others, 0); };
  for (int i = 0; i < 20; i++) {
    parallel_for(4, 3, 7, 4, note);
    parallel_tasks(4, 4, 4, note);
  }
  EXPECT(!elsewhere, "%d calls in other threads", elsewhere);
  parallel_for(4, 0, 8, 4, note);                // thread_share gives two steps to threads 1 and 3
  EXPECT(elsewhere == 2, "%d of two steps in other threads", elsewhere);
}

TEST(threads_barriers_hold, "after a barrier every thread sees what all wrote before it, turn after turn") {
  enum { THREADS = 5, TURNS = 300 };
  static int at[THREADS], wrong;
  int *const turn_of = at, *const fault = &wrong;
  parallel(THREADS, [=](int thread, int threads) {
    for (int turn = 1; turn <= TURNS; turn++) {
      __atomic_store_n(&turn_of[thread], turn, __ATOMIC_RELAXED);
      threads_barrier();
      for (int other = 0; other < threads; other++)
        if (__atomic_load_n(&turn_of[other], __ATOMIC_RELAXED) != turn) __atomic_store_n(fault, turn, __ATOMIC_RELAXED);
      threads_barrier();
    }
  });
  EXPECT(!wrong, "in turn %d a thread had passed the barrier too early", wrong);
  for (int t : at) EXPECT(t == TURNS, "a thread took %d turns of %d", t, (int)TURNS);
}

// Values seen inside a region: threads and thread_number of thread 0 and 1, and those of a nested region.
struct ThreadsSeen { int threads, number, inner_threads, inner_number, after; };
static void *threads_from_another(void *to) {
  int *const threads = (int *)to;
  parallel(4, [=](int, int all) { *threads = all; threads_barrier(); });
  return NULL;
}
TEST(threads_regions_nest, "a nested region, or one beside another thread's region, runs on its caller alone") {
  static ThreadsSeen seen[3];
  static int beside;
  ThreadsSeen *const to = seen;
  parallel(3, [=](int thread, int threads) {
    ThreadsSeen *const mine = &to[thread];
    mine->threads = threads;
    mine->number = thread_number;
    parallel(4, [=](int inner, int inner_threads) {
      mine->inner_threads = inner_threads;
      mine->inner_number = 10 * inner + thread_number;
      threads_barrier();
    });
    mine->after = thread_number;
    threads_barrier();                           // still one of all three
    if (thread) return;
    pthread_t other;
    if (!pthread_create(&other, NULL, threads_from_another, &beside)) pthread_join(other, NULL);
  });
  for (int t = 0; t < 3; t++) {
    const ThreadsSeen *s = &seen[t];
    EXPECT(s->threads == 3 && s->number == t && s->after == t, "thread %d of %d says it is %d, then %d", t, s->threads,
           s->number, s->after);
    EXPECT(s->inner_threads == 1 && s->inner_number == 0, "an inner region has %d threads", s->inner_threads);
  }
  EXPECT(beside == 1, "a region beside another has %d threads", beside);
  EXPECT(thread_number == 0, "outside a region the thread's number is %d", thread_number);
  threads_from_another(&beside);
  EXPECT(beside == 4, "after them a region has %d threads of 4", beside);
}

TEST(threads_start_again_after_a_fork, "a forked process starts its own threads; the parent keeps its threads") {
  int all = 0;
  threads_from_another(&all);
  fflush(NULL);
  const pid_t child = fork();
  if (!child) {
    int mine = 0;
    threads_from_another(&mine);
    _exit(mine);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child && WIFEXITED(status), "the child ended with %d", status);
  EXPECT(WEXITSTATUS(status) == 4, "the child's region had %d threads", WEXITSTATUS(status));
  threads_from_another(&all);
  EXPECT(all == 4, "the parent's has %d", all);
}

static double threads_cpu_ms() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}
TEST(threads_wait_asleep,
     "a thread that waits long takes no core from others, inside a region and between two regions") {
  int *const nothing = NULL;
  parallel(4, [=](int, int) { (void)nothing; });
  const double before = threads_cpu_ms();
  usleep(300000);                                // three threads wait for a region,
  parallel(4, [=](int thread, int) {             // three at its end and at a barrier for the first
    if (!thread) usleep(300000);
    threads_barrier();
    if (thread == 1) usleep(300000);
  });
  const double took = threads_cpu_ms() - before;
  // Three waits per thread that spin for at most 100000 cycles, 0.1 ms at 1 GHz; spinning all the time would take 900
  // ms.
  EXPECT(took < 100, "waiting for 900 ms took %.1f ms of the cores", took);
}

TEST(threads_learn_from_waits, "long waits make a thread sleep at once; short ones make it spin again") {
  static ThreadWord word;
  thread_trust = SPIN_TRUST;
  for (int wait = 0; wait < SPIN_TRUST / SPIN_DOUBT; wait++) {
    const uint32_t old = word.value;
    pthread_t setter;
    REQUIRE(!pthread_create(&setter, NULL, [](void *w) -> void * {
      usleep(20000);                             // 20 ms: over SPIN_MAX at any clock above 5 MHz
      thread_word_set((ThreadWord *)w, ((ThreadWord *)w)->value + 1);
      return NULL;
    }, &word), "no thread");
    thread_word_wait(&word, old);
    pthread_join(setter, NULL);
    EXPECT(word.value == old + 1, "the wait ended at %u, not at %u", word.value, old + 1);
  }
  EXPECT(thread_trust <= 0, "after %d long waits the thread still spins (%d)", SPIN_TRUST / SPIN_DOUBT, thread_trust);
  for (int wait = 0; wait < 2 * SPIN_TRUST; wait++) thread_word_wait(&word, word.value - 1);   // over before it starts
  EXPECT(thread_trust == SPIN_TRUST, "after short waits it does not spin (%d)", thread_trust);
}

TEST(threads_leave_signals_to_the_first, "signals interrupt only the thread that started the program") {
  sigset_t blocked;
  sigemptyset(&blocked);
  sigset_t *const of_other = &blocked;
  parallel(2, [=](int thread, int) { if (thread) pthread_sigmask(SIG_SETMASK, NULL, of_other); });
  for (int s : {SIGINT, SIGTERM, SIGUSR1, SIGHUP}) {
    sigset_t mine;
    pthread_sigmask(SIG_SETMASK, NULL, &mine);
    EXPECT(sigismember(&blocked, s) == 1 && !sigismember(&mine, s), "signal %d", s);
  }
}
