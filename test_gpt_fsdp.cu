// test_gpt_fsdp: every test of the program, by name.
//   build/test_gpt_fsdp                 all tests of `make test`
//   build/test_gpt_fsdp NAME...         the tests whose name contains one of NAME (=NAME: is NAME)
//   build/test_gpt_fsdp --all           also the larger combinations (names ending in _all)
//   build/test_gpt_fsdp --list          names and statements
// Each test runs in a separate process: forked, or, if it needs ranks, under mpirun (which starts this program again
// with --run NAME). One test per core runs at a time (TEST_JOBS=N: N tests), and beside more than one another that only
// waits (TEST_WAITS) and, while cores are idle, up to as many again. The longest start first. A test's output is shown
// only if it fails. One late test of a run, late while processors were under pressure, runs once more, alone
// (test_is_excused). The last line has the counts.
//
// The tests are five objects, so that an edit compiles the one that it is in. A file of tests is included by the object
// that has what its tests call beside public headers:
//   test_gpt_fsdp.cu     only public headers: what runs the program, reads its files, or asks its scripts; and this
//                        runner
//   dev/test/ops.cc      ops, on the CPU and on emulated CUDA; kernels/cpu/threads.cc
//   dev/test/launch.cc   the inside of launch/
//   dev/test/data.cc     the inside of data/ and its modules files, tokenizer, chat, tokens
//   dev/test/model.cc    the inside of the other modules, or of the trainer
// An object compiles its modules whole, and exports their public headers to the others: together they are the program.
// What a test needs of another object's inside is a function of that object, in dev/test/lent.h. Helpers that several
// files share are in dev/test/*_helpers.h.
#define PART_LAUNCH 1
#include "base/base.h"
#include "base/processor.h"
#include "launch/launch.h"
#include "data/data.h"
#include "data/checkpoint/checkpoint.h"
#include "run/plan/plan.h"
#include "dev/test/harness.h"
#include "dev/test/cli_helpers.h"
#include "dev/test/lent.h"
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "dev/test/test_cli.h"
#include "dev/test/test_cli_checkpoint.h"
#include "dev/test/test_cli_modes.h"
#include "dev/test/test_first_hour.h"
#include "dev/test/test_docs.h"
#include "dev/test/test_compat.h"
#include "dev/test/test_container.h"
#include "dev/test/test_arm.h"
#include "dev/test/test_memory_order.h"
#include "dev/test/test_readme.h"
#include "dev/test/test_doors.h"
#include "dev/test/terminal_helpers.h"
#include "dev/test/test_report.h"
#include "dev/test/test_gpu_day.h"
#include "dev/test/test_own_files.h"
#include "dev/test/test_weights.h"
#include "dev/test/test_harness.h"

TestCase *test_cases;
int test_failures;
bool test_was_late, test_spectates;

// Whether this thread says what it waits for, and has waited for a second. In some tests ranks wait for one that will
// not come, dozens of them at once.
static bool test_waits_long(double now) {
  static __thread uint64_t came_to;
  static __thread double since_ms;
  const uint64_t progress = WORD_GET(&liveness_words.progress);
  if (progress != came_to || !WORD_GET(&liveness_words.what)) came_to = progress, since_ms = now;
  return now - since_ms > 1000;
}
// In place of libc's. Whoever waits for another rank calls this again and again: Open MPI, the transports, emulated
// streams. Who waits for long sleeps between calls: a rank that only yields uses up the share of the cores that Linux
// gives its session beside other busy ones, or all sessions together where it has no autogroups, and takes it from the
// rank that is waited for (dev/results/2026-11-25-sessions.md). A rank that has waited long sleeps longer, and so does
// one beyond those that train: nobody waits for it.
extern "C" int sched_yield() noexcept {
  static __thread double begun_ms, last_ms;
  const double now = now_ms();
  if (now - last_ms > 0.05) begun_ms = now;      // something was done since the last call: another wait
  if (test_waits_long(now) || test_spectates) usleep(500);
  else if (now - begun_ms > 0.1) usleep(100);
  else syscall(SYS_sched_yield);
  last_ms = now_ms();
  return 0;
}
// In place of libc's, for those that wait by short sleeps.
extern "C" int usleep(useconds_t us) {
  if (us < 500 && test_waits_long(now_ms())) us = 500;
  const timespec time = {us / 1000000, us % 1000000 * 1000};
  return nanosleep(&time, NULL);
}

enum { TEST_TIMEOUT_S = 300 * (TEST_SANITIZED ? 4 : 1) };

static bool test_is_wide(const TestCase *t) {
  size_t n = strlen(t->name);
  return n > 4 && !strcmp(t->name + n - 4, "_all");
}
static bool test_is_named(const TestCase *t, const char *name) {
  return name[0] == '=' ? !strcmp(t->name, name + 1) : strstr(t->name, name) != NULL;
}
static bool test_wanted(const TestCase *t, int names, char **name, bool all) {
  if (!names) return all || !test_is_wide(t);
  for (int i = 0; i < names; i++) if (test_is_named(t, name[i])) return true;
  return false;
}

// ---- running tests, several at a time -------------------------------------------------------------------------------
// A running test: its process, the file of its output, its directory; once it has ended, the time that it and all that
// it waited for computed.
struct TestJob { const TestCase *test; pid_t child; int log; TestClock start; double cpu_s; char dir[64]; };
enum { TEST_MOST_JOBS = 64 };
// again: a late test that shall run once more, or has.
struct TestTally { int passed, failed, skipped; const TestCase *again; char notes[1 << 16]; };
static volatile sig_atomic_t test_interrupted;
static void on_test_interrupt(int signal) { test_interrupted = signal; }
static const int test_interrupts[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

// In the child: all output goes to `log`. It leads a session of its own, which tells its processes from others', and
// which Linux gives a share of the cores (autogroups): a rank that yields gives way within its session, so beside
// another test, or a user's program in the same one, it would not be the rank that it waits for which runs next.
static void test_child(const TestCase *t, const char *self, int log) {
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  if (setsid() < 0) { perror("setsid"); _exit(TEST_EXIT_FAILED); }
  for (int s : test_interrupts) signal(s, SIG_DFL);
  const char *device = getenv("DEVICE");
  if (!device || strcmp(device, "cuda")) setenv("CUDA_VISIBLE_DEVICES", "", 1);        // GPUs are for DEVICE=cuda
  if (t->np) {
    char np[16];
    snprintf(np, sizeof np, "%d", t->np);
    const char *mpirun = getenv("MPIRUN") ? getenv("MPIRUN") : "mpirun";
    execlp(mpirun, mpirun, "--oversubscribe", "--bind-to", "none", "-np", np, self, "--run", t->name, (char *)NULL);
    fprintf(stderr, "cannot start %s: %s\n", mpirun, strerror(errno));
    _exit(TEST_EXIT_FAILED);
  }
  t->run();
  fflush(NULL);
  _exit(test_exit_code());
}
static void test_start(TestJob *job, const TestCase *t, const char *self) {
  char log_path[] = "/tmp/test_gpt_fsdp_log_XXXXXX";
  snprintf(job->dir, sizeof job->dir, "/tmp/test_gpt_fsdp_XXXXXX");
  job->test = t;
  job->log = mkstemp(log_path);
  if (!mkdtemp(job->dir) || job->log < 0) { perror("/tmp"); exit(1); }
  unlink(log_path);
  setenv("TEST_TMP", job->dir, 1);
  job->start = test_clock();
  fflush(NULL);
  job->child = fork();
  if (!job->child) test_child(t, self, job->log);
}
// Ends what a test that has ended left running: all of its session, and what left that but was told the test's
// directory. First by SIGTERM, after which scripts remove what they have made, such as network namespaces.
static void test_end_rest(const TestJob *job) {
  setenv("TEST_TMP", job->dir, 1);
  bool left = true;
  for (int turn = 0; left && turn < 1000; turn++) {
    if (turn) usleep(5000);
    left = false;
    DIR *dir = opendir("/proc");
    for (dirent *e; dir && (e = readdir(dir));) {
      const int pid = atoi(e->d_name);
      if (pid <= 0 || pid == getpid() || (getsid(pid) != job->child && !cli_is_ours(pid, -1))) continue;
      if (!cli_lives(pid)) continue;
      left = true;
      if (!turn || turn > 600) kill(pid, turn ? SIGKILL : SIGTERM);
    }
    if (dir) closedir(dir);
  }
}
// Whether the test has ended; one that is too late is killed. `code`: its exit status, or -1 after a timeout.
static bool test_ended(TestJob *job, int *code) {
  int status;
  rusage used;
  const char *limit = getenv("TEST_LIMIT_S");
  const int limit_s = limit ? atoi(limit) : TEST_TIMEOUT_S * (test_is_wide(job->test) ? 4 : 1);
  const bool late = now_ms() - job->start.ms > limit_s * 1e3;
  if (late || test_interrupted) kill(job->child, SIGKILL);
  if (!wait4(job->child, &status, late || test_interrupted ? 0 : WNOHANG, &used)) return false;
  job->cpu_s = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
               (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
  test_end_rest(job);
  *code = late ? -1 : WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return true;
}

// The reason a test gave for skipping, from its output.
static void test_skip_reason(int log, char *reason, size_t bytes) {
  static char text[65536];
  ssize_t n = pread(log, text, sizeof text - 1, 0);
  text[n > 0 ? n : 0] = 0;
  const char *at = strstr(text, TEST_SKIP_PREFIX);
  snprintf(reason, bytes, "%.*s", at ? (int)strcspn(at + strlen(TEST_SKIP_PREFIX), "\n") : 0,
           at ? at + strlen(TEST_SKIP_PREFIX) : "");
}
static void test_show(int log) {
  static char text[1 << 16];
  ssize_t n;
  for (off_t at = 0; (n = pread(log, text, sizeof text, at)) > 0; at += n) fwrite(text, 1, (size_t)n, stdout);
}

// Lines that a test wants shown even if it passes.
static void test_show_notes(int log) {
  static char text[65536];
  const ssize_t n = pread(log, text, sizeof text - 1, 0);
  text[n > 0 ? n : 0] = 0;
  for (char *rest = text, *line; (line = strsep(&rest, "\n"));)
    if (!strncmp(line, "NOTE: ", 6)) printf("    %s\n", line + 6);
}
// Whether a test that took too long, and until then had failed in nothing else, runs once more: one in a run of all,
// late while processors were under pressure. Not if it is about ranks that hang, die or are stopped: that one of them
// ends too late is what it would tell. Those are the tests that wait, and those named so.
static bool test_is_excused(const TestJob *job, int code, const TestTally *tally) {
  const TestCase *t = job->test;
  return (code < 0 || code == TEST_EXIT_LATE) && !tally->again && !test_interrupted && test_pressed(&job->start) &&
         !t->waits && !strstr(t->name, "liveness") && !strstr(t->name, "hang");
}
static void test_note(TestTally *tally, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void test_note(TestTally *tally, const char *fmt, ...) {
  const size_t n = strlen(tally->notes);
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(tally->notes + n, sizeof tally->notes - n, fmt, ap);
  va_end(ap);
}
// Prints how a test ended and removes its files.
static void test_report(TestJob *job, int code, TestTally *tally) {
  const TestCase *t = job->test;
  char command[128], reason[512];
  const bool skip = code == TEST_EXIT_SKIPPED, excused = test_is_excused(job, code, tally);
  const bool failed = code && !skip && !excused;
  if (!test_interrupted)
    printf("%-7s %s (%.1f s, %.1f s of CPU)\n", excused ? "late" : failed ? "FAILED" : skip ? "skipped" : "ok", t->name,
           (now_ms() - job->start.ms) / 1e3, job->cpu_s);
  if ((failed || excused) && !test_interrupted) {
    printf("    must hold: %s\n    %s %d\n", t->statement, code < 0 ? "timed out" : "exit", code);
    test_show(job->log);
  }
  if (!code) test_show_notes(job->log);
  if (skip) {
    test_skip_reason(job->log, reason, sizeof reason);
    test_note(tally, "skipped %s: %s\n", t->name, reason);
  }
  if (excused) {
    tally->again = t;
    printf("    processors were under pressure: it runs once more, alone, after the others\n");
    test_note(tally, "late, ran once more: %s\n", t->name);
  }
  fflush(stdout);
  tally->passed += !code;
  tally->failed += failed;
  tally->skipped += skip;
  close(job->log);
  snprintf(command, sizeof command, "rm -rf '%s'", job->dir);
  if (system(command)) printf("    cannot remove %s\n", job->dir);
  job->child = 0;
}
// Takes the first test out of tests[0 to count): of all that are left, or of those that wait or do not. NULL: none.
TEST_HOT static TestCase *test_take(TestCase **tests, int count, bool any, bool waits) {
  for (int i = 0; i < count; i++) {
    TestCase *t = tests[i];
    if (!t || (!any && t->waits != waits)) continue;
    tests[i] = NULL;
    return t;
  }
  return NULL;
}
// How many of the cores that this process may use were idle since the last call (TEST_IDLE: a test says how many).
static double test_idle_cores() {
  static double idle_before, ms_before;
  double idle = 0, now = now_ms(), idles, waits;
  char line[512];
  int core;
  cpu_set_t cores;
  if (const char *told = getenv("TEST_IDLE")) return atof(told);
  CPU_ZERO(&cores);
  sched_getaffinity(0, sizeof cores, &cores);
  FILE *f = fopen("/proc/stat", "r");
  while (f && fgets(line, sizeof line, f))
    if (line[3] != ' ' && sscanf(line, "cpu%d %*u %*u %*u %lf %lf", &core, &idles, &waits) == 3 &&
        CPU_ISSET(core, &cores))
      idle += (idles + waits) / (double)sysconf(_SC_CLK_TCK);
  if (f) fclose(f);
  const double share = (idle - idle_before) / (now - ms_before) * 1e3;
  idle_before = idle, ms_before = now;
  return share;
}
// Runs tests[0 to count), in their order, and empties it: at most `jobs` at a time and, beside more than one, one of
// those that wait and, every half second that much of a core was idle, another: many others wait for a part of their
// time. Reports each as it ends.
static void test_run_all(TestCase **tests, int count, int jobs, const char *self, TestTally *tally) {
  static TestJob job[2 * TEST_MOST_JOBS + 1];
  const int slots = jobs > 1 ? 2 * jobs + 1 : 1;
  double looked = now_ms();
  test_idle_cores();
  for (bool running = true; running; usleep(2000)) {
    const bool looks = slots > 1 && now_ms() - looked > 500;
    bool idle = looks && test_idle_cores() > 0.4;
    if (looks) looked = now_ms();
    running = false;
    for (int j = 0, code; j < slots; j++) {
      if (job[j].child && test_ended(&job[j], &code)) test_report(&job[j], code, tally);
      const bool asks = !job[j].child && !test_interrupted && (j <= jobs || idle);
      TestCase *t = asks ? test_take(tests, count, slots == 1 || j > jobs, j == jobs) : NULL;
      if (t) test_start(&job[j], t, self);
      if (t && j > jobs) idle = false;
      running |= job[j].child != 0;
    }
  }
}
// Tests at a time: TEST_JOBS, else one per core that this process may use. A GPU has memory for one.
static int test_jobs() {
  const char *asked = getenv("TEST_JOBS"), *device = getenv("DEVICE");
  cpu_set_t cores;
  CPU_ZERO(&cores);
  sched_getaffinity(0, sizeof cores, &cores);
  const int jobs = asked && *asked ? atoi(asked) : device && !strcmp(device, "cuda") ? 1 : CPU_COUNT(&cores);
  return jobs < 1 ? 1 : jobs > TEST_MOST_JOBS ? TEST_MOST_JOBS : jobs;
}

// A name that no test has would run nothing and pass.
static const char *test_unknown(int names, char **name) {
  for (int i = 0; i < names; i++) {
    const TestCase *t = test_cases;
    while (t && !test_is_named(t, name[i])) t = t->next;
    if (!t) return name[i];
  }
  return NULL;
}
// Those that take seven seconds and more, the longest first: a run should not end with one of them alone.
static const char *const test_longest[] = {
    "restarts_without_a_host", "schedule_rounds_in_any_order", "preflight_on_two_hosts", "restarts_with_the_ranks_left",
    "liveness_names_who_fell_out", "cuda_modes_change_no_bit", "schedule_of_meshes", "schedule_of_offload",
    "first_prove_shows_equal_weights", "schedule_dtypes_in_any_order", "liveness_across_hosts",
    "report_pages_are_drawn", "cli_a_signal_ends_every_rank", "rdzv_hosts_are_rejected_by_name",
    "cli_sigterm_under_mpirun_leaves_whole_checkpoints", "schedule_of_offload_alone", "docs_commands_of_readme_run",
    "schedule_of_layouts", "out_of_another_run", "schedule_needs_every_wait_offload",
    "rdzv_nothing_is_left_of_a_killed_part", "schedule_nccl_in_any_order", "cli_batch_size_auto",
    "rdzv_mpirun_ends_after_rank_0", "liveness_knows_what_is_no_hang", "schedule_needs_every_wait_muon",
    "ranks_and_threads_change_no_bit_fp32", "logits_wait_for_late_readers", "kill_at_random_instants",
    "muon_gives_one_rank_s_bits_over_streams", "cli_chat_runs_and_resumes", "docs_made_output_is_what_is_printed",
    "machine_busy_cores_are_told", "ranks_and_threads_change_no_bit_bf16_wire", "search_rows_are_plans",
    "first_make_probes_once", "schedule_mpi_in_any_order", "cuda_cross_entropy_forms", "schedule_needs_every_wait_nccl",
    "doors_of_instruction_sets", "schedule_log_is_proven_cpu", "block_heads_share_k_and_v",
    "schedule_needs_every_wait_graph", "trace_of_gpus", "ops_touch_what_they_declare",
    "generated_corpus_reaches_its_entropy"};
enum { TEST_LONGEST = (int)(sizeof test_longest / sizeof *test_longest) };
static const char *test_longest_name(int i) { return i < TEST_LONGEST ? test_longest[i] : NULL; }
static int test_length(const TestCase *t) {                      // place among the longest, or after all of them
  int i = 0;
  while (i < TEST_LONGEST && strcmp(t->name, test_longest[i])) i++;
  return i;
}
static int test_order(const void *a, const void *b) {            // the longest, then as they stand in the files
  const TestCase *x = *(TestCase *const *)a, *y = *(TestCase *const *)b;
  const int by_length = test_length(x) - test_length(y), by_file = strcmp(strrchr(x->file, '/'), strrchr(y->file, '/'));
  return by_length ? by_length : by_file ? by_file : x->line - y->line;
}

static int run_one_rank(int *argc, char ***argv, const char *name) {
  static char who[64];
  MPI_Init(argc, argv);
  int rank, failures = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  snprintf(who, sizeof who, "rank %d", rank);
  who_am_i = who;
  die_hook = lent_die_everywhere;
  TestCase *t = test_cases;
  while (t && strcmp(t->name, name)) t = t->next;
  EXPECT(t, "there is no test %s", name);
  if (t) t->run();
  MPI_Allreduce(&test_failures, &failures, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  leave_even_by_a_crash(failures ? TEST_EXIT_FAILED : 0);
  MPI_Finalize();
  return failures ? TEST_EXIT_FAILED : 0;
}

int main(int argc, char **argv) {
  if (argc == 3 && !strcmp(argv[1], "--run")) return run_one_rank(&argc, &argv, argv[2]);
  const bool all = argc > 1 && !strcmp(argv[1], "--all"), list = argc > 1 && !strcmp(argv[1], "--list");
  const int names = argc - 1 - (all || list);
  char **name = argv + 1 + (all || list);
  static TestTally tally;
  int count = 0, wanted = 0;
  for (TestCase *t = test_cases; t; t = t->next) count++;
  TestCase **tests = (TestCase **)malloc(sizeof(TestCase *) * (size_t)count);
  for (TestCase *t = test_cases; t; t = t->next) if (test_wanted(t, names, name, all)) tests[wanted++] = t;
  qsort(tests, (size_t)wanted, sizeof *tests, test_order);
  for (int i = 0; i < wanted && list; i++) printf("%-44s %s\n", tests[i]->name, tests[i]->statement);
  if (list) return 0;
  if (const char *unknown = test_unknown(names, name)) {
    fprintf(stderr, "no test's name contains '%s'; --list shows them\n", unknown);
    return 2;
  }
  if (!geteuid()) { setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1); setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1); }
  for (const auto &told : test_open_mpi) setenv(told.name, told.value, 0);
  for (int s : test_interrupts)
    if (signal(s, on_test_interrupt) == SIG_IGN && s == SIGHUP) signal(s, SIG_IGN);    // nohup
  test_run_all(tests, wanted, test_jobs(), argv[0], &tally);
  if (tally.again) {
    tests[0] = (TestCase *)tally.again;
    test_run_all(tests, 1, 1, argv[0], &tally);
  }
  free(tests);
  if (test_interrupted) fprintf(stderr, "stopped by signal %d\n", (int)test_interrupted);
  if (test_interrupted) return 128 + test_interrupted;
  printf("%s%d passed, %d failed, %d skipped\n", tally.notes, tally.passed, tally.failed, tally.skipped);
  return tally.failed ? 1 : 0;
}
