// test_gpt_fsdp: every test of the program, by name. It includes the trainer, so it sees all of it.
//   build/test_gpt_fsdp                 all tests of `make test`
//   build/test_gpt_fsdp NAME...         the tests whose name contains one of NAME
//   build/test_gpt_fsdp --all           also the wider products (names ending in _all)
//   build/test_gpt_fsdp --list          names and statements
// Each test runs in a process of its own: forked, or, when it needs ranks, under mpirun (which starts this program
// again with --run NAME). What a test prints is shown only when it fails. The last line counts.
#define TRAINER_AS_LIBRARY 1
#include "train_gpt_fsdp.cu"
#include "dev/test/harness.h"
#include <sys/wait.h>

#include "dev/test/test_threads.h"
#include "dev/test/op_helpers.h"
#include "dev/test/test_matmul.h"
#include "dev/test/test_attention.h"
#include "dev/test/test_ops.h"
#include "dev/test/test_fp8.h"
#include "dev/test/test_safetensors.h"
#include "dev/test/test_tokenizer.h"
#include "dev/test/test_data.h"
#include "dev/test/test_train.h"
#include "dev/test/test_interchange.h"
#include "dev/test/test_fsdp.h"
#include "dev/test/test_matmul_split.h"
#include "dev/test/test_modes.h"
#include "dev/test/test_recompute.h"
#include "dev/test/cuda_helpers.h"
#include "dev/test/test_emulation.h"
#include "dev/test/test_cuda_runtime.h"
#include "dev/test/test_cuda_matmul.h"
#include "dev/test/test_cuda_attention.h"
#include "dev/test/test_cuda_ops.h"
#include "dev/test/test_schedule.h"
#include "dev/test/test_schedule_log.h"
#include "dev/test/test_cuda_train.h"
#include "dev/test/test_checkpoint.h"
#include "dev/test/test_checkpoint_modes.h"
#include "dev/test/test_master.h"
#include "dev/test/test_cli.h"
#include "dev/test/test_machine.h"
#include "dev/test/test_options.h"
#include "dev/test/test_cli_checkpoint.h"
#include "dev/test/test_corpora.h"
#include "dev/test/test_cli_modes.h"
#include "dev/test/test_first_hour.h"
#include "dev/test/test_docs.h"
#include "dev/test/test_readme.h"
#include "dev/test/test_report.h"
#include "dev/test/test_kill.h"

enum { TEST_TIMEOUT_S = 300 * (TEST_SANITIZED ? 4 : 1) };

static bool test_is_wide(const TestCase *t) {
  size_t n = strlen(t->name);
  return n > 4 && !strcmp(t->name + n - 4, "_all");
}
static bool test_wanted(const TestCase *t, int names, char **name, bool all) {
  if (!names) return all || !test_is_wide(t);
  for (int i = 0; i < names; i++) if (strstr(t->name, name[i])) return true;
  return false;
}

// In the child: everything it prints goes to `log`; the test's own process group makes a timeout reach mpirun's ranks.
static void test_child(const TestCase *t, const char *self, int log) {
  setpgid(0, 0);
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
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
  _exit(test_failures ? TEST_EXIT_FAILED : 0);
}

// Runs one test; returns its exit status, or -1 after a timeout. Its output is left in `log`.
static int test_execute(const TestCase *t, const char *self, int log) {
  fflush(NULL);
  pid_t child = fork();
  if (!child) test_child(t, self, log);
  setpgid(child, child);
  int status;
  for (double start = now_ms(); waitpid(child, &status, WNOHANG) == 0; usleep(2000)) {
    if (now_ms() - start < TEST_TIMEOUT_S * 1e3) continue;
    kill(-child, SIGKILL);
    waitpid(child, &status, 0);
    return -1;
  }
  kill(-child, SIGKILL);                         // whatever the test left running
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
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

static int test_order(const void *a, const void *b) {            // as they stand in the files
  const TestCase *x = *(TestCase *const *)a, *y = *(TestCase *const *)b;
  const int by_file = strcmp(x->file, y->file);
  return by_file ? by_file : x->line - y->line;
}

static int run_one_rank(int *argc, char ***argv, const char *name) {
  static char who[64];
  MPI_Init(argc, argv);
  int rank, failures = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  snprintf(who, sizeof who, "rank %d", rank);
  who_am_i = who;
  die_hook = die_everywhere;
  TestCase *t = test_cases;
  while (t && strcmp(t->name, name)) t = t->next;
  EXPECT(t, "there is no test %s", name);
  if (t) t->run();
  MPI_Allreduce(&test_failures, &failures, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Finalize();
  return failures ? TEST_EXIT_FAILED : 0;
}

int main(int argc, char **argv) {
  if (argc == 3 && !strcmp(argv[1], "--run")) return run_one_rank(&argc, &argv, argv[2]);
  const bool all = argc > 1 && !strcmp(argv[1], "--all"), list = argc > 1 && !strcmp(argv[1], "--list");
  const int names = argc - 1 - (all || list);
  char **name = argv + 1 + (all || list);
  int count = 0, passed = 0, failed = 0, skipped = 0;
  for (TestCase *t = test_cases; t; t = t->next) count++;
  TestCase **tests = (TestCase **)malloc(sizeof(TestCase *) * (size_t)count);
  count = 0;
  for (TestCase *t = test_cases; t; t = t->next) tests[count++] = t;
  qsort(tests, (size_t)count, sizeof *tests, test_order);
  if (!geteuid()) { setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1); setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1); }
  static char reasons[1 << 16];
  for (int i = 0; i < count; i++) {
    TestCase *t = tests[i];
    if (!test_wanted(t, names, name, all)) continue;
    if (list) { printf("%-44s %s\n", t->name, t->statement); continue; }
    char dir[64] = "/tmp/test_gpt_fsdp_XXXXXX", log_path[] = "/tmp/test_gpt_fsdp_log_XXXXXX", command[128], reason[512];
    if (!mkdtemp(dir)) { perror("mkdtemp"); return 1; }
    setenv("TEST_TMP", dir, 1);
    int log = mkstemp(log_path);
    unlink(log_path);
    const double start = now_ms();
    int code = test_execute(t, argv[0], log);
    const bool skip = code == TEST_EXIT_SKIPPED;
    printf("%-7s %s (%.1f s)\n", code == 0 ? "ok" : skip ? "skipped" : "FAILED", t->name, (now_ms() - start) / 1e3);
    if (code && !skip) {
      printf("    must hold: %s\n    %s %d\n", t->statement, code < 0 ? "timed out" : "exit", code);
      test_show(log);
    }
    if (skip) {
      test_skip_reason(log, reason, sizeof reason);
      snprintf(reasons + strlen(reasons), sizeof reasons - strlen(reasons), "skipped %s: %s\n", t->name, reason);
    }
    fflush(stdout);
    passed += code == 0;
    failed += code && !skip;
    skipped += skip;
    close(log);
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    if (system(command)) printf("    cannot remove %s\n", dir);
  }
  free(tests);
  if (list) return 0;
  if (!passed && !failed && !skipped) { fprintf(stderr, "no test has such a name; --list shows them\n"); return 2; }
  printf("%s%d passed, %d failed, %d skipped\n", reasons, passed, failed, skipped);
  return failed ? 1 : 0;
}
