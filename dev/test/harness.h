// harness.h: how a test is written. TEST and TEST_MPI register a function; test_gpt_fsdp.cu runs them by name.
//
//   TEST(name, "what must be true") { ... }           one forked process, MPI not initialised
//   TEST_MPI(name, np, "what must be true") { ... }   every one of np ranks under mpirun runs the body
//   TEST_WAITS(name, "what must be true") { ... }     a TEST that waits most of its time, for mpirun's patience or a
//                                                     heartbeat's: runs beside those that compute
//   EXPECT(cond, "format", ...)   records a failure and continues;  REQUIRE(...) records it and leaves the test
//   SKIP("format", ...)           ends the test as skipped; the reason is printed in the closing lines
//   printf("NOTE: ...\n")         a line that is also shown if the test passes
//   test_tmp()                    a directory for this test alone, removed after it
//
// Which object a file of tests is a part of: see the top of test_gpt_fsdp.cu.
//
// A test is an equivalence between two ways to the same value. Tolerances are derived next to their use.
#pragma once
#include <initializer_list>                      // for (x : {a, b}) in test bodies
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)                // of this binary; the trainer is built the same way
static const bool TEST_SANITIZED = true;
#else
static const bool TEST_SANITIZED = false;
#endif
// The test program is compiled without optimization, but for loops over every byte or number.
#if defined(__GNUC__) && !defined(__clang__)
#define TEST_HOT __attribute__((optimize("O3")))
#else
#define TEST_HOT
#endif
struct TestCase { const char *name, *statement, *file; int line, np; bool waits; void (*run)(); TestCase *next; };
extern TestCase *test_cases;                     // of all objects, in no order; the runner sorts
extern int test_failures;                        // of the running test, in this process
extern bool test_was_late;                       // it took too long before anything else failed
extern bool test_spectates;                      // this rank takes no part in what the others do now
static const int TEST_EXIT_FAILED = 1, TEST_EXIT_LATE = 75, TEST_EXIT_SKIPPED = 77;
static inline int test_exit_code() { return !test_failures ? 0 : test_was_late ? TEST_EXIT_LATE : TEST_EXIT_FAILED; }

#define TEST_REGISTER(id, ranks, waits, words) \
  static void test_##id(); \
  static TestCase case_##id = {#id, words, __FILE__, __LINE__, ranks, waits, test_##id, NULL}; \
  __attribute__((constructor)) static void register_##id() { case_##id.next = test_cases; test_cases = &case_##id; } \
  static void test_##id()
#define TEST(id, words) TEST_REGISTER(id, 0, false, words)
#define TEST_MPI(id, ranks, words) TEST_REGISTER(id, ranks, false, words)
#define TEST_WAITS(id, words) TEST_REGISTER(id, 0, true, words)

__attribute__((format(printf, 3, 4))) static inline void test_fail(const char *file, int line, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  fprintf(stderr, "    %s:%d: ", file, line);
  vfprintf(stderr, fmt, ap);
  fprintf(stderr, "\n");
  va_end(ap);
  if (++test_failures == 20) { fprintf(stderr, "    further failures are not shown\n"); exit(test_exit_code()); }
}
#define EXPECT(cond, ...) do { if (!(cond)) test_fail(__FILE__, __LINE__, __VA_ARGS__); } while (0)
#define REQUIRE(cond, ...) do { if (!(cond)) { test_fail(__FILE__, __LINE__, __VA_ARGS__); return; } } while (0)

// When something started, and how long until then some process had no core to run on (Linux' pressure stall
// information; TEST_PRESSURE: another file than its own); stalled_ms -1: this kernel does not say.
struct TestClock { double ms, stalled_ms; };
static inline TestClock test_clock() {
  const char *path = getenv("TEST_PRESSURE");
  TestClock now = {now_ms(), -1};
  double us;
  // A test's pipe is empty between two writers, again and again where others keep them from their core.
  for (int turn = path ? 1000 : 1; turn && now.stalled_ms < 0; turn--) {
    FILE *f = fopen(path ? path : "/proc/pressure/cpu", "r");
    if (f && fscanf(f, "some avg10=%*f avg60=%*f avg300=%*f total=%lf", &us) == 1) now.stalled_ms = us * 1e-3;
    if (f) fclose(f);
  }
  return now;
}
// Whether processors were under pressure since then: more tasks than cores for a fifth of the time.
static inline bool test_pressed(const TestClock *since) {
  const TestClock now = test_clock();
  return since->stalled_ms >= 0 && now.stalled_ms - since->stalled_ms > 0.2 * (now.ms - since->ms);
}

// The reason of a skip reaches the runner through the output: a line with this prefix.
#define TEST_SKIP_PREFIX "SKIP: "
__attribute__((format(printf, 1, 2), noreturn)) static inline void test_skip(const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  fprintf(stderr, TEST_SKIP_PREFIX);
  vfprintf(stderr, fmt, ap);
  fprintf(stderr, "\n");
  va_end(ap);
  _exit(TEST_EXIT_SKIPPED);
}
#define SKIP(...) test_skip(__VA_ARGS__)

// What Open MPI is told in all tests, unless the user's environment tells it otherwise; first_ranks_start_as_installed
// leaves it out. A run of all tests starts more than a thousand ranks.
//   OMPI_MCA_pml                  where libraries of cluster networks are installed, each rank would have them look for
//                                 hardware: 0.2 s
//   OMPI_MCA_mpi_yield_when_idle  ranks that wait would keep their cores where mpirun has one for each; but other tests
//                                 run on these cores too
static const struct { const char *name, *value; } test_open_mpi[] = {
    {"OMPI_MCA_pml", "ob1"}, {"OMPI_MCA_mpi_yield_when_idle", "1"}};

// After a rank has failed, and after a signal, mpirun waits this long for its ranks to end, even if all have: a second
// unless told. 0: for a test whose ranks end automatically, after what they had to say. More: for one whose ranks need
// the time on a busy machine.
static inline void test_mpirun_patience(int seconds) {
  char text[16];
  snprintf(text, sizeof text, "%d", seconds);
  setenv("OMPI_MCA_odls_base_sigkill_timeout", text, 1);
  setenv("PRTE_MCA_odls_base_sigkill_timeout", text, 1);         // of Open MPI 5
}

// The running test's own directory; the runner makes it and removes it afterwards.
static inline const char *test_tmp() {
  const char *dir = getenv("TEST_TMP");
  return dir ? dir : "/tmp";
}
