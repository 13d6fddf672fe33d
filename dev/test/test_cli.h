// test_cli.h: the program as its users run it, alone and under mpirun: what it refuses and with which line, what it
// writes, how it ends when it is stopped, killed, or out of disk, and that two hosts compute the same as one process.
// Every run has a time limit; a run that hangs fails its test. TEST_TMP in the environment identifies the processes of
// a test.
#include <dlfcn.h>
#include <ctype.h>
#include <dirent.h>
#include <limits.h>
#include <sys/stat.h>

// ---- running a command ----------------------------------------------------------------------------------------------
// What a command printed (stdout and stderr in order), how it ended (128 + signal; -1: time limit), how long it ran.
struct CliRun { pid_t pid; char *text; int code; TestClock since; double ms; char path[512]; };
enum { CLI_TEXT_BYTES = 1 << 20, CLI_LIMIT_S = 60 };

static inline const char *cli_path(const char *name) {           // a file in the test's directory; eight can be in use
  static char path[8][512];
  static int turn;
  turn = (turn + 1) % 8;
  snprintf(path[turn], sizeof path[0], "%s/%s", test_tmp(), name);
  return path[turn];
}
static inline const char *cli_program() {
  static char path[PATH_MAX];
  const char *given = getenv("TRAIN_GPT_FSDP");
  if (!path[0] && !realpath(given && *given ? given : "train_gpt_fsdp", path)) {
    test_fail(__FILE__, __LINE__, "no program: TRAIN_GPT_FSDP names it, else ./train_gpt_fsdp");
    exit(TEST_EXIT_FAILED);
  }
  return path;
}
// "mpirun ... -np N PROGRAM", or the program alone for ranks == 0.
static inline const char *cli_ranks(int ranks) {
  static char text[2][PATH_MAX + 256];
  static int turn;
  const char *mpirun = getenv("MPIRUN");
  turn = !turn;
  if (!ranks) snprintf(text[turn], sizeof text[0], "%s", cli_program());
  else snprintf(text[turn], sizeof text[0], "%s --oversubscribe --bind-to none -np %d %s",
                mpirun && *mpirun ? mpirun : "mpirun", ranks, cli_program());
  return text[turn];
}

// Whether process `pid` was started by this test; with rank >= 0, whether it is that rank of an mpirun as well.
static inline bool cli_is_ours(int pid, int rank) {
  static char text[1 << 17];
  char path[64], want[600];
  snprintf(path, sizeof path, "/proc/%d/environ", pid);
  FILE *f = fopen(path, "rb");
  size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
  if (f) fclose(f);
  text[n] = 0;
  bool ours = false, is_rank = rank < 0;
  for (size_t at = 0; at < n; at += strlen(text + at) + 1) {
    snprintf(want, sizeof want, "TEST_TMP=%s", test_tmp());
    ours = ours || !strcmp(text + at, want);
    snprintf(want, sizeof want, "OMPI_COMM_WORLD_RANK=%d", rank);
    is_rank = is_rank || !strcmp(text + at, want);
  }
  return ours && is_rank;
}
// Whether process `pid` is there, and no zombie.
static inline bool cli_lives(int pid) {
  char path[64], state = 'Z';
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  FILE *f = fopen(path, "r");
  if (f && fscanf(f, "%*d (%*[^)]) %c", &state) != 1) state = 'Z';
  if (f) fclose(f);
  return state != 'Z';
}
// A running process of this test (see cli_is_ours) other than this one; 0: none. kill_all: kills all that it finds.
static inline int cli_find_process(int rank, bool kill_all) {
  DIR *dir = opendir("/proc");
  int found = 0;
  for (dirent *e; dir && (e = readdir(dir));) {
    const int pid = atoi(e->d_name);
    if (pid <= 0 || pid == getpid() || !cli_is_ours(pid, rank)) continue;
    found = pid;
    if (kill_all) kill(pid, SIGKILL);
  }
  if (dir) closedir(dir);
  return found;
}
// Whether something that began at `since` may go on, or was in time: limit_s, or CLI_LIMIT_S while processors are under
// pressure. What hangs does not end by then either.
static inline bool cli_in_time(const TestClock *since, double limit_s) {
  const double s = (now_ms() - since->ms) / 1e3;
  return s < limit_s || (s < CLI_LIMIT_S && test_pressed(since));
}
// Ends the test as failed if anything it started still runs after five seconds.
static inline void cli_expect_nothing_left(const char *what) {
  for (const TestClock since = test_clock(); cli_find_process(-1, false); usleep(20000)) {
    if (cli_in_time(&since, 5)) continue;
    test_fail(__FILE__, __LINE__, "%s: process %d still runs", what, cli_find_process(-1, false));
    cli_find_process(-1, true);
    return;
  }
}

// Starts `sh -c command` in a separate process group, with its output going to a file.
static inline void cli_start(CliRun *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static inline void cli_start(CliRun *r, const char *fmt, ...) {
  static char command[16384];
  static int count;
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(command, sizeof command, fmt, ap);
  va_end(ap);
  memset(r, 0, sizeof *r);
  snprintf(r->path, sizeof r->path, "%s/output%d", test_tmp(), count++);
  r->since = test_clock();
  fflush(NULL);
  r->pid = fork();
  if (r->pid) { setpgid(r->pid, r->pid); return; }
  setpgid(0, 0);
  signal(SIGINT, SIG_DFL);                       // a shell that runs the tests in the background ignores it,
  signal(SIGHUP, SIG_DFL);                       // and nohup this one
  int in = open("/dev/null", O_RDONLY), out = open(r->path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
  dup2(in, STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  dup2(out, STDERR_FILENO);
  execl("/bin/sh", "sh", "-c", command, (char *)NULL);
  _exit(127);
}
// Waits for a started command, at most limit_s; after that everything it started is killed and the test fails. Reads
// its output.
static inline void cli_wait(CliRun *r, double limit_s) {
  if (TEST_SANITIZED) limit_s *= 4;              // sanitized code is several times slower
  int status = 0;
  bool late = false;
  while (waitpid(r->pid, &status, WNOHANG) == 0) {
    usleep(2000);
    if (late || now_ms() - r->since.ms < limit_s * 1e3) continue;
    late = true;
    kill(-r->pid, SIGKILL);
    cli_find_process(-1, true);
  }
  r->ms = now_ms() - r->since.ms;
  r->code = late ? -1 : WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  r->text = (char *)calloc(1, CLI_TEXT_BYTES);
  FILE *f = fopen(r->path, "rb");
  size_t n = f ? fread(r->text, 1, CLI_TEXT_BYTES - 1, f) : 0;
  if (f) fclose(f);
  for (size_t i = 0; i < n; i++) if (!r->text[i]) r->text[i] = ' ';
  test_was_late = test_was_late || (late && !test_failures);
  EXPECT(!late, "still running after %.0f s; it printed:\n%.3000s", limit_s, r->text);
}
static inline void cli_free(CliRun *r) { free(r->text); r->text = NULL; }

// Runs a command to its end. The text is the caller's (cli_free).
#define CLI_RUN(r, ...) do { cli_start(r, __VA_ARGS__); cli_wait(r, CLI_LIMIT_S); } while (0)

// Number of lines of `text` that contain `part`.
static inline int cli_count(const char *text, const char *part) {
  int count = 0;
  for (const char *line = text; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
    const char *at = strstr(line, part), *end = strchr(line, '\n');
    count += at && (!end || at < end);
  }
  return count;
}
// The program refused: exit code, and exactly one line of its own about it, which is `line` (if `line` ends in ...,
// figures may follow).
static inline void cli_expect_refusal(const CliRun *r, const char *what, int code, const char *line) {
  char said[4096] = "", want[1024];
  int lines = 0;
  for (const char *p = r->text; p && *p; p = strchr(p, '\n') ? strchr(p, '\n') + 1 : NULL) {
    const bool alone = !strncmp(p, "train_gpt_fsdp: ", 16), rank = !strncmp(p, "rank ", 5) && isdigit(p[5]);
    if (!alone && !rank) continue;
    const char *message = alone ? p + 16 : strstr(p, ": ") + 2;
    snprintf(said, sizeof said, "%.*s", (int)strcspn(message, "\n"), message);
    lines++;
  }
  const size_t n = strlen(line);
  const bool open_end = n > 3 && !strcmp(line + n - 3, "...");
  snprintf(want, sizeof want, "%.*s", (int)(open_end ? n - 3 : n), line);
  EXPECT(!strstr(r->text, "MPI_ABORT"), "%s: OpenMPI's banner stands behind the line:\n%.3000s", what, r->text);
  EXPECT(lines == 1, "%s: %d lines of the program, must be 1; all it printed:\n%.3000s", what, lines, r->text);
  EXPECT(open_end ? !strncmp(said, want, n - 3) : !strcmp(said, want), "%s: it said\n      %s\n    must be\n      %s",
         what, said, line);
  EXPECT(r->code == code, "%s: exit code %d, must be %d", what, r->code, code);
}

// ---- small things to train on ---------------------------------------------------------------------------------------
static inline void cli_write(const char *path, const void *bytes, size_t n) {
  FILE *f = fopen(path, "wb");
  if (!f || fwrite(bytes, 1, n, f) != n || fclose(f)) {
    test_fail(__FILE__, __LINE__, "cannot write %s", path);
    exit(TEST_EXIT_FAILED);
  }
}
// TEST_TMP/text: three files of simple sentences, `sentences` in train.txt. Returns the directory.
static inline const char *cli_text(int sentences) {
  static const char *const who[] = {"the fox", "a dog", "one crow", "this cat", "every wolf"};
  static const char *const does[] = {"sees", "follows", "finds", "likes"};
  static char dir[512];
  static char text[1 << 18];
  snprintf(dir, sizeof dir, "%s", cli_path("text"));
  mkdir(dir, 0777);
  for (const char *split : {"train", "valid", "test"}) {
    size_t n = 0;
    for (int i = 0; i < (split[1] == 'r' ? sentences : 20); i++)
      n += (size_t)snprintf(text + n, sizeof text - n, "%s %s %s by %d .\n", who[i % 5], does[i * i % 7 % 4],
                            who[i * 3 % 11 % 5], i % 13);
    char path[600];
    snprintf(path, sizeof path, "%s/%s.txt", dir, split);
    cli_write(path, text, n);
  }
  return dir;
}
// A small model on that text. Options after these override them.
static inline const char *cli_small() {
  static char text[2048];
  const char *device = getenv("DEVICE");
  snprintf(
      text, sizeof text,
      "--n_layer 2 --n_head 2 --n_embd 24 --seq_len 8 --n_positions 16 --vocab_size 290 --batch_size 2 --threads 1 "
      "--lr 0.01 --cache= --sample_tokens 4 --data %s %s %s",
      cli_text(60), device && *device ? "--device" : "", device ? device : "");
  return text;
}

// A metrics.jsonl, each line parsed. A line that is not a JSON object or has no end of line fails the test.
struct CliMetrics { int lines; cJSON **line; };
static inline void cli_metrics(CliMetrics *m, const char *out) {
  char path[700];
  snprintf(path, sizeof path, "%s/metrics.jsonl", out);
  FILE *f = fopen(path, "r");
  char *text = NULL;
  size_t room = 0;
  *m = {};
  EXPECT(f, "no %s", path);
  for (ssize_t n; f && (n = getline(&text, &room, f)) > 0;) {
    cJSON *line = text[n - 1] == '\n' ? cJSON_Parse(text) : NULL;
    EXPECT(cJSON_IsObject(line), "%s: line %d is not a whole JSON object: %.200s", path, m->lines + 1, text);
    m->line = (cJSON **)realloc(m->line, sizeof(cJSON *) * (size_t)(m->lines + 1));
    m->line[m->lines++] = line;
  }
  if (f) fclose(f);
  free(text);
}
static inline void cli_metrics_free(CliMetrics *m) {
  for (int i = 0; i < m->lines; i++) cJSON_Delete(m->line[i]);
  free(m->line);
}
static inline const char *cli_string(const cJSON *line, const char *key) {
  const cJSON *v = cJSON_GetObjectItemCaseSensitive(line, key);
  return cJSON_IsString(v) ? v->valuestring : "";
}
static inline bool cli_is_kind(const cJSON *line, const char *kind) { return !strcmp(cli_string(line, "kind"), kind); }

// The losses, gradient norms, learning rates and accuracies of a run as written, digit by digit: they must not depend
// on ranks or on interruptions. malloc'ed.
static inline char *cli_series(const char *out) {
  char path[600];
  snprintf(path, sizeof path, "%s/metrics.jsonl", out);
  char *all = (char *)calloc(1, CLI_TEXT_BYTES), *text = NULL;
  size_t n = 0, room = 0;
  FILE *f = fopen(path, "r");
  EXPECT(f, "no %s", path);
  while (f && getline(&text, &room, f) > 0 && n < CLI_TEXT_BYTES - 1024) {
    if (!strstr(text, "\"kind\":\"step\"") && !strstr(text, "\"kind\":\"eval\"")) continue;
    for (const char *key : {"\"step\":", "\"loss\":", "\"grad_norm\":", "\"lr\":", "\"accuracy\":"}) {
      const char *at = strstr(text, key);
      if (at) n += (size_t)snprintf(all + n, CLI_TEXT_BYTES - n, "%.*s ", (int)strcspn(at, ",}"), at);
    }
    all[n++] = '\n';
  }
  if (f) fclose(f);
  free(text);
  return all;
}
// Both runs wrote the same series, and it has at least `steps` losses.
static inline void cli_expect_same_series(const char *what, const char *out_a, const char *out_b, int steps) {
  char *a = cli_series(out_a), *b = cli_series(out_b);
  EXPECT(cli_count(a, "\"grad_norm\":") >= steps, "%s: %d steps written, must be %d", what,
         cli_count(a, "\"grad_norm\":"), steps);
  size_t at = 0;
  while (a[at] && a[at] == b[at]) at++;
  size_t line = at;
  while (line && a[line - 1] != '\n') line--;
  EXPECT(!strcmp(a, b), "%s: the runs differ:\n      %.*s\n      %.*s", what, (int)strcspn(a + line, "\n"), a + line,
         (int)strcspn(b + line, "\n"), b + line);
  free(a);
  free(b);
}
static inline void cli_expect_done(const CliRun *r, const char *what) {
  EXPECT(r->code == 0, "%s: exit code %d; it printed:\n%.3000s", what, r->code, r->text);
}
// Skips the test if a mount namespace with a small private tmpfs cannot be made here.
static inline void cli_need_mount_namespace() {
  CliRun r;
  CLI_RUN(&r, "mkdir -p %s && unshare -m mount -t tmpfs -o size=1m tmpfs %s", cli_path("mnt"), cli_path("mnt"));
  if (r.code) SKIP("a mount namespace with a tmpfs cannot be made here: %.*s", (int)strcspn(r.text, "\n"), r.text);
  cli_free(&r);
}

// ---- bad input ------------------------------------------------------------------------------------------------------
struct CliRefusal { int ranks; const char *options; int code; const char *line; };

static inline void cli_expect_refusals(const CliRefusal *table, int count) {
  test_mpirun_patience(0);
  for (int i = 0; i < count; i++) {
    CliRun r;
    char what[1100];
    snprintf(what, sizeof what, "%d ranks, %s", table[i].ranks, table[i].options);
    CLI_RUN(&r, "%s %s --out %s %s", cli_ranks(table[i].ranks), cli_small(), cli_path("out"), table[i].options);
    cli_expect_refusal(&r, what, table[i].code, table[i].line);
    cli_free(&r);
  }
  cli_expect_nothing_left("after the refusals");
}

TEST(cli_refuses_bad_options, "each wrong option: one clear line, once for all ranks, exit code 2 or 3, no rank left") {
  static const CliRefusal table[] = {
      {0, "--batch_siz 4", 2, "unknown option --batch_siz: did you mean --batch_size? See --help"},
      {2, "--batch_siz 4", 2, "unknown option --batch_siz: did you mean --batch_size? See --help"},
      {0, "--test-batch 4", 2, "unknown option --test_batch: did you mean --test_batch_size? See --help"},
      {0, "--quux 4", 2, "unknown option --quux: see --help"},
      {0, "lr 4", 2, "'lr' is not an option: did you mean --lr? See --help"},
      {2, "--lr", 2, "--lr needs a value"},
      {0, "--prompt --lr 1", 2, "--prompt needs a value (one that starts with -- goes after =)"},
      {2, "--lr 1001", 2, "--lr 1001 is out of range: 1e-20 to 1000"},
      {0, "--lr 1e999", 2, "--lr 1e999 is out of range: 1e-20 to 1000"},
      {0, "--batch-size=0", 2, "--batch_size auto, or 0, needs --global_batch, the sequences of a step: it decides "
       "into how many microbatches they are cut"},
      {0, "--seed 9223372036854775808", 2, "--seed 9223372036854775808 is out of range: 0 to 9223372036854775807"},
      {2, "--epochs many", 2, "--epochs needs a whole number, not 'many'"},
      {0, "--epochs 1.5", 2, "--epochs needs a whole number, not '1.5'"},
      {0, "--dropout nan", 2, "--dropout needs a number, not 'nan'"},
      {0, "--lr=", 2, "--lr needs a number, not ''"},
      {2, "--schedule cosin", 2, "--schedule 'cosin' is not known: choose one of cosine|linear|constant|step|wsd"},
      {0, "--save_model=maybe", 2, "--save_model is on or off, not 'maybe'"},
      {2, "--keep -1", 2, "--keep -1 is out of range: 0 to 1048576"},
      {0, "--keep_best=best", 2, "--keep_best is on or off, not 'best'"},
      {0, "--save_every x", 2, "--save_every needs a whole number, not 'x'"},
      {0, "--save_every -2", 2, "--save_every -2 is out of range: -1 or more"},
      {0, "--save_async=maybe", 2, "--save_async is on or off, not 'maybe'"},
      {2, "--out=", 2, "--out needs a path"},
      {2, "--resume=", 2, "--resume is empty, as a shell variable is that was not set: give its "
       "value, or leave the option out"},
      {0, "--wrap min_params:0x10", 2,
       "--wrap 'min_params:0x10' is not block, model or min_params:N with a whole number N of at least 1"},
      {0, "--seq_len 66000 --n_positions 66000 --n_head 4 --n_embd 4 --dropout 0.1", 2,
       "--dropout with --n_head 4 and --seq_len 66000: attention has more weights than random numbers; "
       "shorten the sequences, or leave --dropout out"},
      {0, "--init_from=", 2, "--init_from is empty, ..."},
      {0, "--export_hf=", 2, "--export_hf is empty, ..."},
      {2, "--eval_only", 2, "--eval_only needs weights: --resume CHECKPOINT or --init_from PATH"},
      {0, "--sample_only", 2, "--sample_only needs weights: --resume CHECKPOINT or --init_from PATH"},
      {0, "--n_head 5", 2, "--n_head 5 does not divide --n_embd 24"},
      {2, "--n_head 5", 2, "--n_head 5 does not divide --n_embd 24"},
      {0, "--seq_len 17", 2, "--seq_len 17 is longer than --n_positions 16"},
      {2, "--global_batch 6", 2, "--global_batch 6 is not divisible by batch_size 2 x 2 ranks"},
      {2, "--global_batch 8 --grad_accum 3", 2,
       "--global_batch 8 is not batch_size 2 x 2 ranks x grad_accum 3: leave --grad_accum out"},
      {2, "--gamma 0.5 --schedule cosine", 2, "--gamma belongs to --schedule step, not to cosine"},
      {2, "--no_cuda --device cuda", 2, "--no_cuda and --device cuda exclude each other"},
      {2, "--comm nccl --device cpu", 2, "--comm nccl needs --device cuda"},
      {0, "--graph on --device cpu", 2, "--graph on needs --device cuda: a CPU has nothing to capture"},
      {2, "--graph on --comm mpi", 2,
       "--graph on does not go with --comm mpi: the host waits for copies inside the step, which cannot be captured"},
      {0, "--tune --device cpu", 2, "--tune needs --device cuda"},
      {2, "--sm_margin 16 --device cpu", 2, "--sm_margin needs --device cuda; this run computes on the CPU"},
      {0, "--attention mma --device cpu", 2, "--attention needs --device cuda; this run computes on the CPU"},
      {0, "--sm_margin 1", 2, "--sm_margin 1: two kernels of NCCL run at once..."},
      {2, "--matmul_precision high --device cpu --isa avx2", 3,
       "--matmul_precision high: on a CPU it needs tiles (AMX); with avx2 the six bf16 multiplies that replace an "
       "fp32 one would take longer than that one; leave it out"},
      {0, "--matmul_precision high --device cpu --param_dtype bf16", 2,
       "--matmul_precision high: on a CPU it applies to fp32 matrix multiplies, and --buffer_dtype bf16 has none"},
      {2, "--reduce native --device cpu", 2, "--reduce native needs --comm nccl"},
      {2, "--comm self", 2, "--comm self is for one rank, there are 2"}};
  cli_expect_refusals(table, (int)(sizeof table / sizeof *table));
  const CliRefusal no_cuda[] = {
      {2, "--device cuda", 2,
       "--device cuda: this build has no CUDA kernels (nvcc was not found, or CUDA=0); use --device cpu"},
      {2, "--reduce native", 2, "--reduce native needs --device cuda; this run computes on the CPU: this build..."},
      {2, "--tune", 2, "--tune needs --device cuda; this run computes on the CPU: this build has no CUDA kernels"}};
  const CliRefusal no_driver[] = {
      {2, "--device cuda", 3, "--device cuda: no NVIDIA driver..."},
      {2, "--reduce native", 2, "--reduce native needs --device cuda; this run computes on the CPU: no NVIDIA..."},
      {2, "--tune", 2, "--tune needs --device cuda; this run computes on the CPU: no NVIDIA driver..."}};
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (!&ops_cuda) cli_expect_refusals(no_cuda, 3);
  else if (!driver) cli_expect_refusals(no_driver, 3);
  if (driver) dlclose(driver);
  char line[128], options[64];
  const int best = cpu_best_table();
  snprintf(line, sizeof line, "--isa amx: the best this CPU has is %s", cpu_tables[best].name);
  snprintf(options, sizeof options, "--isa amx --device cpu");
  const CliRefusal isa = {2, options, 3, line};
  if (best < CPU_TABLES - 1) cli_expect_refusals(&isa, 1);
  const bool arm = !strcmp(PROCESSOR_NAME, "aarch64");             // the plainest table of the other processor
  snprintf(line, sizeof line, "--isa %s: the best this CPU has is %s", arm ? "avx2" : "neon", cpu_tables[best].name);
  snprintf(options, sizeof options, "--isa %s --device cpu", arm ? "avx2" : "neon");
  cli_expect_refusals(&isa, 1);
}

// ---- modes that cannot work
// Options as `world` ranks see them, `per_host` on each host (0: unequal numbers). `error` gets the refusal, or "" if
// there is none.
static inline void modes_resolve(Options *o, int world, int per_host, const char *options, char *error, size_t bytes) {
  char text[1024], *argv[64] = {(char *)"test"}, *save = NULL;
  int argc = 1;
  snprintf(text, sizeof text, "--n_layer 4 --n_head 2 --n_embd 32 --seq_len 8 --n_positions 16 --vocab_size 290 "
           "--batch_size 2 --threads 1 %s", options);
  for (char *word = strtok_r(text, " ", &save); word; word = strtok_r(NULL, " ", &save)) argv[argc++] = word;
  error[0] = 0;
  if (options_parse(o, argc, argv, error, bytes)) options_resolve(o, world, per_host, error, bytes);
}

TEST(modes_that_cannot_work_are_refused,
     "each wrong or contradictory option of the modes, and each that would have no effect: refused by name, based on "
     "options and number of ranks alone") {
  static const struct { int world, per_host; const char *options, *line; } table[] = {
      {4, 4, "--strategy full-shar", "--strategy 'full-shar' is not known: choose one of full_shard|shard_grad_op|"
       "hybrid_shard|no_shard|zero3|zero2|zero1|ddp"},
      {4, 4, "--shard rows", "--shard 'rows' is not known: choose one of flat|dim0"},
      {4, 4, "--accumulate once", "--accumulate 'once' is not known: choose one of sharded|local"},
      {4, 4, "--offload disk", "--offload 'disk' is not known: choose one of none|optimizer|params"},
      {4, 4, "--recompute all", "--recompute 'all' is not known: choose one of auto|none|gelu|norm|mlp|block, or "
       "from the first block on LEVEL:COUNT,... like block:5,mlp"},
      {4, 4, "--recompute mlps:2", "--recompute 'mlps:2' is not known: choose one of auto|none|gelu|norm|mlp|block, or "
       "from the first block on LEVEL:COUNT,... like block:5,mlp"},
      {4, 4, "--recompute auto:1,mlp", "--recompute 'auto:1,mlp' is not known: choose one of auto|none|gelu|norm|mlp|"
       "block, or from the first block on LEVEL:COUNT,... like block:5,mlp"},
      {4, 4, "--recompute=", "--recompute '' is not known: choose one of auto|none|gelu|norm|mlp|block, or from the "
       "first block on LEVEL:COUNT,... like block:5,mlp"},
      {4, 4, "--recompute block:2,", "--recompute 'block:2,' is not known: choose one of auto|none|gelu|norm|mlp|block"
       ", or from the first block on LEVEL:COUNT,... like block:5,mlp"},
      {4, 4, "--recompute mlp:0,block", "--recompute 'mlp:0,block': 'mlp:' needs a number of blocks, at least 1"},
      {4, 4, "--recompute block,mlp:", "--recompute 'block,mlp:': only the last level may omit its number of blocks, "
       "not 'block'"},
      {4, 4, "--recompute gelu:1,mlp:", "--recompute 'gelu:1,mlp:': 'mlp:' needs a number of blocks, at least 1"},
      {4, 4, "--recompute mlp:2x", "--recompute 'mlp:2x': 'mlp:' needs a number of blocks, at least 1"},
      {4, 4, "--recompute mlp:-1", "--recompute 'mlp:-1': 'mlp:' needs a number of blocks, at least 1"},
      {4, 4, "--recompute mlp:99999999999999999999", "--recompute 'mlp:99999999999999999999': 'mlp:' needs a number of "
       "blocks, at least 1"},
      {4, 4, "--recompute block:3,mlp:2", "--recompute 'block:3,mlp:2' names more blocks than the 4 there are"},
      {4, 4, "--fp8 on", "--fp8 'on' is not known: choose one of off|gather|matmul"},
      {4, 4, "--buffer_dtype float8", "--buffer_dtype 'float8' is not known: choose one of auto|fp32|bf16|fp16"},
      {4, 4, "--mesh 3x1", "--mesh 3x1 has 3 ranks, there are 4"},
      {1, 1, "--mesh 2x2", "--mesh 2x2 has 4 ranks, there is 1"},
      {4, 4, "--mesh 999999999x999999999", "--mesh 999999999x999999999 has 999999998000000001 ranks, there are 4"},
      {4, 4, "--strategy ddp --mesh 2x2", "--strategy ddp shards nothing: its mesh is 4x1, not 2x2"},
      {4, 4, "--strategy zero3 --mesh 4x1", "--strategy zero3 has one replica: its mesh is 1x4, not 4x1; replicas of "
       "shards need --strategy hybrid_shard"},
      {4, 4, "--strategy zero2 --mesh 2x2", "--strategy zero2 has one replica: its mesh is 1x4, not 2x2; replicas of "
       "shards need --strategy hybrid_shard, with --reshard_after_forward off to keep parameters whole"},
      {4, 0, "--strategy hybrid_shard",
       "--strategy hybrid_shard: hosts have different numbers of ranks: give --mesh RxS"},
      {4, 4, "--strategy hybrid_shard", "--strategy hybrid_shard shards inside a host and replicates over hosts; this "
       "run has one host: give --mesh RxS, or choose full_shard"},
      {4, 1, "--strategy hybrid_shard", "--strategy hybrid_shard shards inside a host; each host here has one rank: "
       "give --mesh RxS, or choose full_shard or no_shard"},
      {4, 4, "--reshard_after_forward 3",
       "--reshard_after_forward 3: a shard group has 4 ranks; the number must divide that and be smaller"},
      {4, 4, "--reshard_after_forward 4",
       "--reshard_after_forward 4: a shard group has 4 ranks; the number must divide that and be smaller"},
      {4, 4, "--mesh 2x2 --reshard_after_forward 2",
       "--reshard_after_forward 2: a shard group has 2 ranks; the number must divide that and be smaller"},
      {1, 1, "--reshard_after_forward 2",
       "--reshard_after_forward 2: a shard group has 1 rank; the number must divide that and be smaller"},
      {4, 4, "--reshard_after_forward 2 --gather_slots 4",
       "--reshard_after_forward 2 has no effect: 4 blocks stay whole in as many --gather_slots"},
      {4, 4, "--reshard_after_forward 2 --n_layer 1",
       "--reshard_after_forward 2 has no effect: 1 block stays whole in as many --gather_slots"},
      {2, 2, "--strategy zero2 --reshard_after_forward on", "--strategy zero2 keeps parameters whole after forward: it "
       "does not go with --reshard_after_forward on"},
      {2, 2, "--strategy zero1 --gather_slots 3",
       "--strategy zero1 keeps all 4 blocks whole: --gather_slots 3 does not go with it"},
      {2, 2, "--reshard_after_forward off --gather_slots 1",
       "--reshard_after_forward off keeps all 4 blocks whole: --gather_slots 1 does not go with it"},
      {2, 2, "--strategy zero1 --accumulate sharded", "--strategy zero1 adds up whole gradients and reduces once a "
       "step: it does not go with --accumulate sharded"},
      {2, 2, "--strategy ddp --gather_slots 2",
       "--strategy ddp keeps every parameter whole on each rank: --gather_slots has no effect"},
      {1, 1, "--strategy no_shard --reshard_after_forward off",
       "--strategy no_shard keeps every parameter whole on each rank: --reshard_after_forward has no effect"},
      {4, 4, "--mesh 4x1 --gather_slots 2",
       "--mesh 4x1 keeps every parameter whole on each rank: --gather_slots has no effect"},
      {2, 2, "--wrap model --gather_slots 2", "--wrap model leaves no unit inside a block: all is gathered once a step "
       "and stays whole, --gather_slots has no effect"},
      {4, 4, "--wrap model --reshard_after_forward 2", "--wrap model leaves no unit inside a block: all is gathered "
       "once a step and stays whole, --reshard_after_forward has no effect"},
      {4, 4, "--wrap min_params:1e9 --reshard_after_forward on", "--wrap min_params:1e9 leaves no unit inside a block: "
       "all is gathered once a step and stays whole, --reshard_after_forward has no effect"},
      {2, 2, "--offload optimizer --device cpu",
       "--offload optimizer needs --device cuda: on a CPU all parameters are in host memory already"},
      {2, 2, "--offload params --graph on",
       "--graph on does not go with --offload: the host's optimizer cannot be captured"},
      {2, 2, "--offload params --eval_only", "--offload is for training: it does not go with --eval_only"},
      {2, 2, "--fp8 matmul --param_dtype bf16 --device cpu",
       "--fp8 matmul needs --device cuda, compute capability 8.9 or later; --fp8 gather works here"},
      {2, 2, "--fp8 matmul", "--fp8 matmul computes all else in bf16: it needs --buffer_dtype bf16 (or --param_dtype "
       "bf16), not fp32"},
      {2, 2, "--logits_dtype bf16 --dtype fp16",
       "--logits_dtype bf16 needs --buffer_dtype bf16 (or --dtype bf16), not fp16: use --logits_dtype fp32"},
      {2, 2, "--fp8 matmul --buffer_dtype bf16 --n_embd 24",
       "--fp8 matmul needs an --n_embd divisible by 16, not 24"},
      {2, 2, "--fp8 matmul --buffer_dtype bf16 --test_batch_size 3", "--fp8 matmul needs batches of a multiple of 16 "
       "tokens, not 24: change --seq_len, --batch_size or --test_batch_size"},
      {2, 2, "--reduce native --comm mpi", "--reduce native needs --comm nccl"},
      {2, 2, "--freeze nothing", "--freeze nothing matches no parameter; names are like wte.weight, "
       "h.0.attn.c_attn.bias, ln_f.weight"},
      {2, 2, "--freeze lm_head,wte", "--freeze lm_head matches no parameter; names are like wte.weight, "
       "h.0.attn.c_attn.bias, ln_f.weight"},
      {2, 2, "--freeze *", "--freeze * leaves nothing to train"},
      {2, 2, "--freeze ,,", "--freeze ',,' names no parameter"},
      {2, 2, "--no_decay h.7.*", "--no_decay h.7.* matches no parameter; names are like wte.weight, "
       "h.0.attn.c_attn.bias, ln_f.weight"},
      {2, 2, "--no_decay ,", "--no_decay ',' names no parameter"},
      {2, 2, "--lr_scale wte=0.5,wtf=2", "--lr_scale wtf matches no parameter; names are like wte.weight, "
       "h.0.attn.c_attn.bias, ln_f.weight"},
      {2, 2, "--lr_scale wte", "--lr_scale 'wte' is not PATTERN=X with X above 0, at most 1e6, like 'wte=0.1' "
       "(--freeze trains nothing)"},
      {2, 2, "--lr_scale wte=0", "--lr_scale 'wte=0' is not PATTERN=X with X above 0, at most 1e6, like 'wte=0.1' "
       "(--freeze trains nothing)"},
      {2, 2, "--lr_scale wte=1x", "--lr_scale 'wte=1x' is not PATTERN=X with X above 0, at most 1e6, like 'wte=0.1' "
       "(--freeze trains nothing)"}};
  Options o;
  char error[2048], want[256], options[128];
  for (const auto &row : table) {
    modes_resolve(&o, row.world, row.per_host, row.options, error, sizeof error);
    EXPECT(!strcmp(error, row.line), "%d ranks, %s:\n      %s\n    must be\n      %s", row.world, row.options, error,
           row.line);
  }
  for (const char *mesh : {"x", "4", "2x", "x2", "0x2", "4x0", "2X2", "2x2x1", "-1x4", "+2x2", "2*2",
                           "99999999999x1"}) {
    snprintf(options, sizeof options, "--mesh=%s", mesh);
    snprintf(want, sizeof want, "--mesh '%s' is not RxS: R replicas of S shards, like 2x4", mesh);
    modes_resolve(&o, 4, 4, options, error, sizeof error);
    EXPECT(!strcmp(error, want), "%s: %s, must be %s", options, error, want);
  }
  for (const char *wrap : {"", "h", "min_params", "min_params:", "min_params:0", "min_params:-5", "min_params:abc",
                           "min_params:1.5", "min_params:1e16", "min_params:5k", "MODELS"}) {
    snprintf(options, sizeof options, "--wrap=%s", wrap);
    snprintf(want, sizeof want, "--wrap '%s' is not block, model or min_params:N with a whole number N of at least 1",
             wrap);
    modes_resolve(&o, 4, 4, options, error, sizeof error);
    EXPECT(!strcmp(error, want), "%s: %s, must be %s", options, error, want);
  }
  for (const char *reshard : {"", "0", "1", "-2", "2.5", "one", "2x", "99999999999"}) {
    snprintf(options, sizeof options, "--reshard_after_forward=%s", reshard);
    snprintf(want, sizeof want, "--reshard_after_forward '%s' is not on, off or a number of ranks of at least 2",
             reshard);
    modes_resolve(&o, 4, 4, options, error, sizeof error);
    EXPECT(!strcmp(error, want), "%s: %s, must be %s", options, error, want);
  }
}

TEST(modes_at_the_edge_resolve,
     "legal but rare combinations: the mesh, slots, resharding and accumulation that result") {
  static const struct { int world, per_host; const char *options, *strategy, *mesh; int slots; const char *reshard; }
  table[] = {{1, 1, "", "full_shard", "1x1", 2, "on"},
             {3, 0, "", "full_shard", "1x3", 2, "on"},
             {1, 1, "--strategy hybrid_shard", "hybrid_shard", "1x1", 2, "on"},
             {8, 4, "--strategy hybrid_shard", "hybrid_shard", "2x4", 2, "on"},
             {8, 4, "--strategy hybrid_shard --reshard_after_forward 2", "hybrid_shard", "2x4", 2, "2"},
             {4, 4, "--mesh 2x2", "hybrid_shard", "2x2", 2, "on"},
             {4, 4, "--mesh 4x1", "no_shard", "4x1", 2, "on"},
             {4, 4, "--mesh 1x4", "full_shard", "1x4", 2, "on"},
             {1, 1, "--mesh 1x1", "full_shard", "1x1", 2, "on"},
             {2, 2, "--strategy ddp", "ddp", "2x1", 2, "on"},
             {2, 2, "--strategy ddp --mesh 2x1 --wrap model", "ddp", "2x1", 2, "on"},
             {2, 2, "--strategy ddp --offload params --gather_slots 1", "ddp", "2x1", 1, "on"},
             {2, 2, "--strategy zero2", "zero2", "1x2", 4, "off"},
             {2, 2, "--strategy zero2 --reshard_after_forward off", "zero2", "1x2", 4, "off"},
             {2, 2, "--strategy zero1 --accumulate local --gather_slots 4", "zero1", "1x2", 4, "off"},
             {2, 2, "--reshard_after_forward off", "full_shard", "1x2", 4, "off"},
             {2, 2, "--gather_slots 9", "full_shard", "1x2", 4, "on"},
             {1, 1, "--gather_slots 1", "full_shard", "1x1", 1, "on"},
             {4, 4, "--reshard_after_forward 2 --gather_slots 3", "full_shard", "1x4", 3, "2"},
             {2, 2, "--wrap model", "full_shard", "1x2", 2, "on"},
             {2, 2, "--wrap model --reshard_after_forward off", "full_shard", "1x2", 4, "off"},
             {2, 2, "--wrap min_params:1e9", "full_shard", "1x2", 2, "on"},
             {2, 2, "--wrap min_params:4128 --gather_slots 1", "full_shard", "1x2", 1, "on"},
             {2, 2, "--fp8 gather --freeze *.c_*", "full_shard", "1x2", 2, "on"},
             {2, 2, "--fp8 matmul --param_dtype bf16", "full_shard", "1x2", 2, "on"},
             {2, 2, "--accumulate local", "full_shard", "1x2", 2, "on"},
             {2, 2, "--freeze=", "full_shard", "1x2", 2, "on"}};
  Options o;
  char error[2048], mesh[32];
  for (const auto &row : table) {
    modes_resolve(&o, row.world, row.per_host, row.options, error, sizeof error);
    EXPECT(!error[0], "%d ranks, %s: %s", row.world, row.options, error);
    snprintf(mesh, sizeof mesh, "%dx%d", o.replicas, o.shards);
    const char *strategy = option_word(&o, OPT_strategy), *accumulate = option_word(&o, OPT_accumulate);
    EXPECT(!strcmp(strategy, row.strategy) && !strcmp(mesh, row.mesh) && o.gather_slots == row.slots &&
               !strcmp(o.reshard_after_forward, row.reshard),
           "%d ranks, %s: %s, mesh %s, %lld slots, reshard %s; must be %s, %s, %d, %s", row.world, row.options,
           strategy, mesh, (long long)o.gather_slots, o.reshard_after_forward, row.strategy, row.mesh, row.slots,
           row.reshard);
    const bool local = strstr(row.options, "zero1") || strstr(row.options, "local");
    EXPECT(!strcmp(accumulate, local ? "local" : "sharded"), "%s: --accumulate %s", row.options, accumulate);
    EXPECT(option_dtype(&o, OPT_buffer_dtype) == option_dtype(&o, OPT_param_dtype), "%s: --buffer_dtype %s",
           row.options, option_word(&o, OPT_buffer_dtype));
  }
  modes_resolve(&o, 2, 2, "--freeze=wte,h.0.*", error, sizeof error);
  strcpy(o.freeze, " wte ,\th.0.* ");
  EXPECT(sharding_check_params(&o, error, sizeof error) && !strcmp(o.freeze, "wte,h.0.*"), "--freeze '%s': %s",
         o.freeze, error);
}

TEST(fp8_products_need_their_gpu,
     "--fp8 matmul names the GPU and its compute capability below 8.9; gather has no such requirement") {
  Options o;
  options_default(&o);
  static const struct { int major, minor; bool ok; } gpus[] = {{8, 0, false}, {8, 6, false}, {8, 9, true}, {9, 0, true},
                                                               {10, 0, true}, {12, 0, true}};
  for (const char *fp8 : {"off", "gather", "matmul"}) for (const auto &g : gpus) {
    DeviceInfo d = {};
    char error[256] = "", want[256] = "";
    snprintf(d.name, sizeof d.name, "NVIDIA X");
    d.major = g.major, d.minor = g.minor;
    option_pick(&o, OPT_fp8, fp8);
    check_fp8(&o, &d, error, sizeof error);
    if (!strcmp(fp8, "matmul") && !g.ok)
      snprintf(want, sizeof want, "--fp8 matmul needs compute capability 8.9 or later, NVIDIA X has %d.%d: use --fp8 "
               "gather", g.major, g.minor);
    EXPECT(!strcmp(error, want), "--fp8 %s on sm_%d%d: '%s', must be '%s'", fp8, g.major, g.minor, error, want);
  }
}

TEST(cli_refuses_modes,
     "wrong modes, from the program: one line for all ranks, exit code 2; legal ones at the edge run") {
  const CliRefusal table[] = {
      {4, "--mesh 0x2", 2, "--mesh '0x2' is not RxS: R replicas of S shards, like 2x4"},
      {2, "--freeze 'zzz, wte'", 2,
       "--freeze zzz matches no parameter; names are like wte.weight, h.0.attn.c_attn.bias, ln_f.weight"},
      {0, "--strategy hybrid-shar", 2, "--strategy 'hybrid-shar' is not known: choose one of full_shard|"
       "shard_grad_op|hybrid_shard|no_shard|zero3|zero2|zero1|ddp"}};
  cli_expect_refusals(table, (int)(sizeof table / sizeof *table));
  const CliRefusal on_cpu[] = {{2, "--offload params", 2, "--offload params needs --device cuda; this run computes on "
                                "the CPU: ..."},
                               {0, "--fp8 matmul --param_dtype bf16 --n_embd 32", 2,
                                "--fp8 matmul needs --device cuda; this run computes on the CPU: ..."}};
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (!driver && !getenv("DEVICE")) cli_expect_refusals(on_cpu, 2);
  if (driver) dlclose(driver);
  static const struct { int ranks; const char *options, *says; } legal[] = {
      {0, "--strategy hybrid_shard --wrap min_params:1e9", "units: 1, "},
      {2, "--freeze 'wte, h.0.*' --gather-slots 9", "\n  h.0 "},
      {2, "--strategy zero1 --grad_accum 2", "notice: --strategy zero1 adds a rank's 2 microbatches before"}};
  for (const auto &row : legal) {
    CliRun r;
    CLI_RUN(&r, "%s %s --verbose --max_steps 1 --eval_every -1 --save_every -1 --out %s %s", cli_ranks(row.ranks),
            cli_small(), cli_path("out"), row.options);
    cli_expect_done(&r, row.options);
    EXPECT(strstr(r.text, row.says), "%s: nothing says '%s':\n%.3000s", row.options, row.says, r.text);
    cli_free(&r);
  }
}

TEST(cli_unit_table_is_short, "48 equal blocks are one line of the unit table, differing blocks have separate lines") {
  CliRun r;
  CLI_RUN(&r, "%s %s --verbose --n_layer 48 --freeze 'h.0.*,h.1.*,h.5.mlp.*' --max_steps 1 --eval_every -1 "
          "--save_every -1 --out %s", cli_ranks(0), cli_small(), cli_path("out"));
  cli_expect_done(&r, "48 blocks");
  for (const char *line : {"units: 49, ", "  root  ", "  h.0 .. h.1  ", "  h.2 .. h.4  ", "  h.5  ", "  h.6 .. h.47  "})
    EXPECT(cli_count(r.text, line) == 1, "%d lines say '%s':\n%.3000s", cli_count(r.text, line), line, r.text);
  EXPECT(cli_count(r.text, "  h.") == 4, "other lines of blocks:\n%.3000s", r.text);
  cli_free(&r);
}

// A token file in llm.c's format: `numel_` tokens that count up below `vocab`, cut after `bytes` (0: whole).
static inline void cli_token_file(const char *path, int numel_, int vocab, size_t bytes) {
  static uint8_t file[1 << 16];
  memset(file, 0, sizeof file);
  const int32_t header[3] = {20240520, 1, numel_};
  memcpy(file, header, sizeof header);
  for (int i = 0; i < numel_; i++) {
    const uint16_t id = (uint16_t)(i * 7 % vocab);
    memcpy(file + 1024 + 2 * i, &id, 2);
  }
  cli_write(path, file, bytes ? bytes : 1024 + 2 * (size_t)numel_);
}

// The same for --data TEST_TMP/`name` and more options. Every %s of `line` is TEST_TMP/name.
static inline void cli_expect_bad_data(const char *name, const char *more, int code, const char *line) {
  char options[1024], whole[2048], path[512];
  snprintf(path, sizeof path, "%s", cli_path(name));
  snprintf(options, sizeof options, "--data %s %s", path, more);
  size_t n = 0;
  for (; *line && n < sizeof whole - 1; line++) {
    if (strncmp(line, "%s", 2)) { whole[n++] = *line; continue; }
    n += (size_t)snprintf(whole + n, sizeof whole - n, "%s", path);
    line++;
  }
  whole[n] = 0;
  const CliRefusal refusal = {2, options, code, whole};
  cli_expect_refusals(&refusal, 1);
}

TEST(cli_refuses_bad_data, "missing, empty, cut, foreign or short corpora: one clear line, exit code 2 or 3") {
  CliRun r;
  cli_text(60);
  CLI_RUN(&r, "cd %s && cp -r text empty && : > empty/train.txt && cp -r text partial && rm partial/train.txt",
          test_tmp());
  cli_expect_done(&r, "copies of the text");
  cli_free(&r);
  cli_expect_bad_data("none", "", 3,
                      "--data %s: No such file or directory; give a directory with train.txt, valid.txt and test.txt, "
                      "a text file, conversations in a .jsonl, a table .parquet, a token FILE.bin, random, or "
                      "generated");
  cli_expect_bad_data("empty", "", 3, "%s/train.txt is empty: it was cut short or never written; fetch it again");
  cli_expect_bad_data("partial", "", 3, "--data %s has no train.txt (or wiki.train.tokens), but valid.txt: ...");
  cli_token_file(cli_path("x_val.bin"), 500, 290, 0);
  cli_token_file(cli_path("x_train.bin"), 2000, 290, 1024 + 3000);
  cli_expect_bad_data("x_train.bin", "", 3,
                      "%s is cut short: its header counts 2000 GPT-2 tokens of 2 bytes, so the file should have 5024 "
                      "bytes, but it has 4024; copy or write it again");
  cli_token_file(cli_path("x_train.bin"), 2000, 500, 0);
  cli_expect_bad_data("x_train.bin", "", 2,
                      "%s: token 42 is 294, not below --vocab_size 290: the file has another vocabulary; its largest "
                      "token is 499, so --vocab_size must be at least 500 (GPT-2's is 50257)");
  cli_token_file(cli_path("x_train.bin"), 80, 290, 0);
  cli_expect_bad_data("x_train.bin", "--batch_size 5", 2,
                      "the corpus is shorter than one global batch: its 80 training tokens make 9 samples of --seq_len "
                      "8, and a step takes 10 (2 microbatches of --batch_size 5): use a larger corpus, or a smaller "
                      "--seq_len, --batch_size, --global_batch or number of ranks");
  cli_token_file(cli_path("x_train.bin"), 2000, 290, 0);
  cli_expect_bad_data("x_train.bin", "--prompt hello", 2,
                      "--prompt needs text to train a tokenizer on; --data %s holds tokens");
}

TEST(cli_refuses_an_out_it_cannot_write,
     "--out that cannot be made or written: one line, exit code 3, before any training") {
  char line[1024], options[700];
  cli_write(cli_path("file"), "x", 1);
  snprintf(options, sizeof options, "--out %s", cli_path("file"));
  snprintf(line, sizeof line, "--out %s cannot be written: Not a directory", cli_path("file"));
  const CliRefusal file = {2, options, 3, line};
  cli_expect_refusals(&file, 1);
  snprintf(options, sizeof options, "--out %s/deeper", cli_path("file"));
  snprintf(line, sizeof line, "--out %s/deeper cannot be made: Not a directory", cli_path("file"));
  const CliRefusal below = {2, options, 3, line};
  cli_expect_refusals(&below, 1);
}

TEST(cli_refuses_a_plan_beyond_memory,
     "a memory plan that the host cannot hold: one line, exit code 3, nothing allocated") {
  test_mpirun_patience(0);
  CliRun r;
  CLI_RUN(&r, "%s --model gpt2-xl --batch_size 1024 --data random --out %s", cli_ranks(2), cli_path("out"));
  const bool gpu = strstr(r.text, "this GPU's") != NULL;
  cli_expect_refusal(&r, "gpt2-xl, batch 1024", 3, gpu ? "the memory plan of this GPU's 2 ranks is ..."
                                                       : "the memory plan of this host's 2 ranks is ...");
  EXPECT(strstr(r.text, gpu ? "GiB are free: lower --batch_size or --seq_len, choose --recompute block"
                            : "GiB are available: lower --batch_size or --seq_len, choose --recompute block"),
         "no advice:\n%.2000s", r.text);
  cli_free(&r);
  cli_expect_nothing_left("after the refusal");
}

TEST(cli_windows_take_their_pages,
     "a call reports pages that cannot be had, where a first touch would end the process") {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  FILE *file = tmpfile();                        // of one page, mapped as two: the second behaves like a full /dev/shm
  EXPECT(file && !ftruncate(fileno(file), (off_t)page), "no temporary file");
  char *p = (char *)mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
  EXPECT(p != MAP_FAILED, "no mapping: %s", strerror(errno));
  if (madvise(p, page, WINDOW_POPULATE_WRITE)) SKIP("this kernel cannot be asked for pages (Linux 5.14 can)");
  EXPECT(window_take_pages(p, page) && window_take_pages(p + 100, page - 100) && window_take_pages(p, 0),
         "pages that are there: %s", strerror(errno));
  EXPECT(!window_take_pages(p, 2 * page) && !window_take_pages(p + page, 1), "a page that is not there was given");
  munmap(p, 2 * page);
  fclose(file);
}

TEST(cli_refuses_windows_that_cannot_be,
     "windows that OpenMPI is configured not to make, or to make nowhere: one line, exit code 3") {
  CliRun r;
  char line[512];
  snprintf(line, sizeof line, "%s, where shared-memory windows would lie: No such file or directory; make it, or ...",
           cli_path("nowhere"));
  setenv("OMPI_MCA_osc_sm_backing_directory", cli_path("nowhere"), 1);
  CLI_RUN(&r, "%s %s --out %s", cli_ranks(2), cli_small(), cli_path("out"));
  unsetenv("OMPI_MCA_osc_sm_backing_directory");
  cli_expect_refusal(&r, "no directory for windows", 3, line);
  cli_free(&r);
  setenv("OMPI_MCA_osc", "^sm", 1);
  CLI_RUN(&r, "%s %s --out %s", cli_ranks(2), cli_small(), cli_path("out"));
  unsetenv("OMPI_MCA_osc");
  EXPECT(r.code == 3 && strstr(r.text, "OpenMPI cannot make this rank's shared-memory window of "),
         "no windows: exit code %d\n%.2000s", r.code, r.text);
  cli_free(&r);
  cli_expect_nothing_left("after the refusals");
}

TEST(cli_cores_under_a_shell, "a shell between mpirun and the program changes neither threads nor notices") {
  for (int ranks = 1; ranks <= 2; ranks++) {
    CliRun plain, shell;
    const char *mpirun = getenv("MPIRUN") && *getenv("MPIRUN") ? getenv("MPIRUN") : "mpirun";
    CLI_RUN(&plain, "%s --oversubscribe -np %d %s %s --threads 0 --max_steps 1 --out %s", mpirun, ranks, cli_program(),
            cli_small(), cli_path("out"));
    CLI_RUN(&shell, "%s --oversubscribe -np %d sh -c '%s %s --threads 0 --max_steps 1 --out %s; exit $?'", mpirun,
            ranks, cli_program(), cli_small(), cli_path("out2"));
    const char *at[] = {strstr(plain.text, " on 1 host, "), strstr(shell.text, " on 1 host, ")};
    EXPECT(at[0] && at[1] && !strncmp(at[0], at[1], 24), "%d ranks: %.24s, under a shell %.24s", ranks,
           at[0] ? at[0] : "?", at[1] ? at[1] : "?");
    EXPECT(cli_count(plain.text, "outnumber cores") == cli_count(shell.text, "outnumber cores"), "%d ranks: notices",
           ranks);
    cli_free(&plain);
    cli_free(&shell);
  }
}

TEST(cli_refuses_windows_beyond_dev_shm,
     "shared-memory windows that /dev/shm cannot hold: one line, exit code 3; --shm off, as it advises, then works") {
  test_mpirun_patience(0);
  cli_need_mount_namespace();
  const char *larger = "--n_embd 512 --max_steps 1 --sample_tokens 0 --test_batch_size 16";
  CliRun r;
  CLI_RUN(&r, "unshare -m sh -c 'mount -t tmpfs -o size=12m tmpfs /dev/shm && exec %s %s --out %s %s'", cli_ranks(2),
          cli_small(), cli_path("out"), larger);
  cli_expect_refusal(&r, "/dev/shm of 12 MiB", 3, "shared-memory windows of this host's 2 ranks need ...");
  EXPECT(strstr(r.text, "or run with --shm off"), "no advice:\n%.2000s", r.text);
  cli_free(&r);
  cli_expect_nothing_left("after the refusal");
  CLI_RUN(&r, "unshare -m sh -c 'mount -t tmpfs -o size=12m tmpfs /dev/shm && exec %s %s --out %s %s --shm off'",
          cli_ranks(2), cli_small(), cli_path("out"), larger);
  cli_expect_done(&r, "/dev/shm of 12 MiB, --shm off");
  cli_free(&r);
}

TEST(cli_slots_are_shared_where_windows_hold,
     "a /dev/shm with no room for what shares memory with gradient slots, but for all else: the slots get separate "
     "memory, losses are the same") {
  cli_need_mount_namespace();
  const char *options = "--model tiny --device cpu --data random --vocab_size 3000 --max_steps 3 --sample_tokens 0 "
                        "--eval_every -1 --save_every -1 --log_every 1 --verbose";
  CliRun lent, apart;
  CLI_RUN(&lent, "%s %s --out %s", cli_ranks(2), options, cli_path("out"));
  CLI_RUN(&apart, "unshare -m sh -c 'mount -t tmpfs -o size=16m tmpfs /dev/shm && exec %s %s --out %s'", cli_ranks(2),
          options, cli_path("out2"));
  cli_expect_done(&lent, "/dev/shm as it is");
  cli_expect_done(&apart, "/dev/shm of 16 MiB");
  EXPECT(strstr(lent.text, "gradient slots, or activations, shared") &&
         !strstr(lent.text, "gradient slots, blocks, shared"), "slots are not shared:\n%.3000s", lent.text);
  EXPECT(strstr(apart.text, "gradient slots, blocks, shared") && !strstr(apart.text, "gradient slots, or"),
         "slots do not lie apart:\n%.3000s", apart.text);
  const char *a = strstr(lent.text, "step 3/3  loss "), *b = strstr(apart.text, "step 3/3  loss ");
  EXPECT(a && b && !strncmp(a, b, 22), "losses differ: %.22s, %.22s", a ? a : "none", b ? b : "none");
  cli_free(&lent);
  cli_free(&apart);
}

TEST(cli_names_the_rank_that_differs,
     "ranks started with different options: the rank and the option are named, once, exit code 2") {
  static const struct { const char *first, *second, *line; } table[] = {
      {"--lr 1", "--lr 2", "rank 1 of 2 on "},
      {"--vocab_size 280", "--vocab_size 290",
       "this rank differs from rank 0: '--vocab_size 290' here, '--vocab_size 280' there"},
      {"--lr 1", "--lr 2", "this rank differs from rank 0: '--lr 2' here, '--lr 1' there"},
      {"", "--save_model", "this rank differs from rank 0: '--save_model on' here, '--save_model off' there"},
      {"", "--lrr 2", "unknown option --lrr: did you mean --lr? See --help"},
      {"", "--config x", "this rank differs from rank 0: '--config x' here, '--config ' there"},
      {"", "--eval_only", "rank 1 of 2 on "},
      {"", "--eval_only", "--eval_only needs weights: --resume CHECKPOINT or --init_from PATH"}};
  test_mpirun_patience(0);
  for (const auto &row : table) {
    CliRun r;
    char options[2600];
    snprintf(options, sizeof options, "%s --out %s", cli_small(), cli_path("out"));
    CLI_RUN(&r, "%s %s %s : -np 1 %s %s %s", cli_ranks(1), options, row.first, cli_program(), options, row.second);
    EXPECT(r.code == 2, "%s : %s: exit code %d, must be 2", row.first, row.second, r.code);
    EXPECT(cli_count(r.text, row.line) == 1, "%s : %s: not exactly one line says\n      %s\n%.2000s", row.first,
           row.second, row.line, r.text);
    EXPECT(cli_count(r.text, "rank 0 of 2") == 0, "%s : %s: rank 0 speaks too:\n%.2000s", row.first, row.second,
           r.text);
    cli_free(&r);
  }
  cli_expect_nothing_left("after the refusals");
}

// ---- ends -----------------------------------------------------------------------------------------------------------
// Whole lines of a file that a run writes; cli_metrics is for one that has ended.
static inline int cli_lines(const char *path) {
  FILE *f = fopen(path, "r");
  int lines = 0;
  for (int c; f && (c = fgetc(f)) != EOF;) lines += c == '\n';
  if (f) fclose(f);
  return lines;
}
// Starts a run that would not end by itself and waits until it has done some steps.
static inline bool cli_start_endless(CliRun *r, const char *out, int ranks, const char *options) {
  char metrics[600];
  snprintf(metrics, sizeof metrics, "%s/metrics.jsonl", out);
  remove(metrics);
  cli_start(r, "exec %s %s --epochs 1000000 --eval_every 1000000000 --out %s %s", cli_ranks(ranks), cli_small(), out,
            options);
  for (double start = now_ms(); now_ms() - start < CLI_LIMIT_S * 1e3; usleep(20000)) {
    if (cli_lines(metrics) > 3) return true;     // the run's record, and steps
    if (waitpid(r->pid, NULL, WNOHANG)) break;
  }
  test_fail(__FILE__, __LINE__, "%d ranks %s: no step was made", ranks, options);
  kill(-r->pid, SIGKILL);
  cli_find_process(-1, true);
  return false;
}

TEST_WAITS(cli_a_dead_rank_ends_the_others,
     "a rank that is killed in a step: the others end within seconds, the rank is named, no process is left") {
  static const struct { int killed; const char *options, *says; } table[] = {
      {1, "", "rank 1"}, {0, "", "rank 0"}, {2, "--shm off", "rank 2"}, {1, "--reduce_dtype bf16", "rank 1"}};
  for (const auto &row : table) {
    CliRun r;
    const char *out = cli_path("out");
    if (!cli_start_endless(&r, out, 3, row.options)) return;
    const int pid = cli_find_process(row.killed, false);
    REQUIRE(pid > 0, "rank %d is not found among the processes", row.killed);
    kill(pid, SIGKILL);
    r.since = test_clock();
    cli_wait(&r, CLI_LIMIT_S);
    EXPECT(cli_in_time(&r.since, 15), "%s: the others took %.1f s to end", row.options, r.ms / 1e3);
    EXPECT(r.code != 0, "%s: exit code 0 though rank %d was killed", row.options, row.killed);
    EXPECT(cli_count(r.text, row.says) >= 1, "%s: nothing names rank %d:\n%.3000s", row.options, row.killed, r.text);
    cli_expect_nothing_left("after a rank was killed");
    cli_free(&r);
  }
}

TEST_WAITS(cli_a_signal_ends_every_rank,
     "Ctrl-C or SIGTERM, to mpirun or the program alone: the step ends, metrics.jsonl is whole and says so; the "
     "program alone saves first") {
  static const struct { int ranks, signal, code; const char *reason; } table[] = {
      {0, SIGINT, EXIT_SAVED, "saved"}, {0, SIGTERM, EXIT_SAVED, "saved"},
      {2, SIGINT, 0, "signal"}, {2, SIGTERM, 0, "signal"}};      // mpirun gives the run a code of its own, never 0
  test_mpirun_patience(3);
  for (const auto &row : table) {
    CliMetrics m;
    CliRun r;
    char what[64];
    const char *out = cli_path("out");
    snprintf(what, sizeof what, "%d ranks, signal %d", row.ranks, row.signal);
    if (!cli_start_endless(&r, out, row.ranks, "")) return;
    kill(r.pid, row.signal);
    r.since = test_clock();
    cli_wait(&r, CLI_LIMIT_S);
    EXPECT(cli_in_time(&r.since, 15), "%s: it took %.1f s to end", what, r.ms / 1e3);
    EXPECT(row.code ? r.code == row.code : r.code != 0, "%s: exit code %d", what, r.code);
    if (!row.ranks)
      EXPECT(cli_count(r.text, "stopped by signal after step ") == 1, "%s: it printed:\n%.2000s", what, r.text);
    cli_metrics(&m, out);
    EXPECT(m.lines > 3 && cli_is_kind(m.line[m.lines - 1], "end") &&
               !strcmp(cli_string(m.line[m.lines - 1], "reason"), row.reason),
           "%s: metrics.jsonl has %d lines and its last one does not say '%s'", what, m.lines, row.reason);
    cli_metrics_free(&m);
    cli_expect_nothing_left(what);
    cli_free(&r);
  }
}

TEST(cli_a_signal_ends_a_sample, "Ctrl-C while text is sampled, after training, ends the program at once") {
  for (int ranks : {0, 2}) {
    CliRun r;
    cli_start(&r, "exec %s %s --max_steps 1 --sample_tokens 1048576 --out %s", cli_ranks(ranks), cli_small(),
              cli_path("out"));
    char sample[600];
    struct stat st;
    snprintf(sample, sizeof sample, "%s/sample.txt", cli_path("out"));
    for (double start = now_ms(); stat(sample, &st) && now_ms() - start < CLI_LIMIT_S * 1e3;) usleep(20000);
    kill(r.pid, SIGINT);
    r.since = test_clock();
    cli_wait(&r, CLI_LIMIT_S);
    EXPECT(cli_in_time(&r.since, 15) && (ranks ? r.code != 0 : r.code == 128 + SIGINT),
           "%d ranks: %.1f s to end, exit code %d", ranks, r.ms / 1e3, r.code);
    cli_expect_nothing_left("after the signal");
    remove(sample);
    cli_free(&r);
  }
}

TEST(cli_a_loss_that_is_not_finite_ends_the_run,
     "a learning rate far too high: one line with the step, one with the first tensor, exit code 5 from every rank, "
     "metrics.jsonl stays JSON") {
  CliMetrics m;
  CliRun r;
  CLI_RUN(&r, "%s %s --optimizer sgd --lr 1000 --clip 0 --epochs 4 --out %s", cli_ranks(2), cli_small(),
          cli_path("out"));
  EXPECT(r.code == EXIT_NOT_FINITE, "exit code %d, must be %d", r.code, EXIT_NOT_FINITE);
  EXPECT(cli_count(r.text, "  first: ") == 1, "the first tensor is not named:\n%.3000s", r.text);
  EXPECT(cli_count(r.text, "is not finite: lower --lr, or raise --warmup") == 1,
         "not exactly one line says so:\n%.3000s", r.text);
  cli_metrics(&m, cli_path("out"));
  REQUIRE(m.lines >= 3, "%d lines of metrics", m.lines);
  const cJSON *last = m.line[m.lines - 3];        // then what was not finite, and the end
  EXPECT(cli_is_kind(last, "step") && (cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(last, "loss")) ||
                                       cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(last, "grad_norm"))),
         "the last step has neither loss nor norm null");
  EXPECT(!strcmp(cli_string(m.line[m.lines - 1], "reason"), "not finite"),
         "the last record does not say why the run ended");
  cli_metrics_free(&m);
  cli_free(&r);
  cli_expect_nothing_left("after the run");
}

TEST(cli_a_full_disk_is_said,
     "a full disk: a notice, and training goes on; weights that cannot be saved: one line, exit code 3, no half file") {
  cli_need_mount_namespace();
  CliRun r;
  const char *dir = cli_path("mnt");
  static const char notice[] =
      "metrics.jsonl cannot be written any more (No space left on device); training continues without it";
  CLI_RUN(&r, "unshare -m sh -c 'mount -t tmpfs -o size=32k tmpfs %s && %s %s --out %s --epochs 30 --save_model "
          "--save_every -1; code=$?; ls %s; tail -c 1 %s/metrics.jsonl | od -An -tx1; exit $code'", dir, cli_ranks(2),
          cli_small(), dir, dir, dir);
  EXPECT(r.code == 3, "exit code %d, must be 3; it printed:\n%.3000s", r.code, r.text);
  EXPECT(cli_count(r.text, notice) == 1, "not exactly one notice:\n%.3000s", r.text);
  EXPECT(cli_count(r.text, "valid: loss") == 30, "training did not go on to its end:\n%.3000s", r.text);
  EXPECT(cli_count(r.text, "mnt/model.safetensors") == 1 && cli_count(r.text, "cannot write ") == 1,
         "not exactly one line on the weights:\n%.3000s", r.text);
  EXPECT(!strstr(r.text, "\nmodel.safetensors"), "a half file is left:\n%.3000s", r.text);
  EXPECT(strstr(r.text, "\n 0a\n"), "metrics.jsonl does not end with a whole line:\n%.3000s", r.text);
  cli_free(&r);
}

// ---- what a run writes ----------------------------------------------------------------------------------------------
static inline void cli_expect_run_record(const cJSON *run) {
  EXPECT(cli_is_kind(run, "run") && cli_string(run, "version")[0] && cli_string(run, "build")[0],
         "the first record has no version");
  const cJSON *mesh = cJSON_GetObjectItemCaseSensitive(run, "mesh");
  EXPECT(cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(mesh, "replicas")) == 1 &&
             cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(mesh, "shards")) == 2 &&
             cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(mesh, "kept")) == 0 &&
             cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(run, "units")) == 3,
         "the first record has not the mesh 1x2 and three units");
  const cJSON *config = cJSON_GetObjectItemCaseSensitive(run, "config"),
              *plan = cJSON_GetObjectItemCaseSensitive(run, "memory_plan_bytes");
  for (const OptionSpec &s : option_specs)
    EXPECT(cJSON_GetObjectItemCaseSensitive(config, s.name), "the first record has no option %s", s.name);
  double sum = 0;
  for (const char *words : memory_words) {
    const cJSON *bytes = cJSON_GetObjectItemCaseSensitive(plan, words);
    EXPECT(cJSON_IsNumber(bytes), "the first record has no memory of '%s'", words);
    sum += bytes ? bytes->valuedouble : 0;
  }
  const cJSON *total = cJSON_GetObjectItemCaseSensitive(plan, "total");
  EXPECT(cJSON_IsNumber(total) && total->valuedouble == sum && sum > 0,
         "the memory plan's total is not the sum of its lines, %.0f", sum);
  EXPECT(!strcmp(cli_string(cJSON_GetObjectItemCaseSensitive(run, "config"), "prompt"), "say \"\\\t\xef\xbf\xbd"),
         "the prompt is written as %s", cli_string(config, "prompt"));
}

TEST(cli_metrics_are_whole_and_equal,
     "metrics.jsonl: configuration and plan, then every step; the same digits on 1 and 2 ranks, windows or messages") {
  CliMetrics m;
  CliRun r;
  const char *rows[][3] = {{"one", "", "--global_batch 8"},
                           {"two", "2", "--grad-accum=2"},
                           {"off", "2", "--global-batch 8 --shm off --comm mpi"},
                           {"spelled", "", "--batch-size=2 --global-batch=8"}};
  for (const auto &row : rows) {
    CLI_RUN(&r, "%s %s --max_steps 6 --eval_every 4 --save_every -1 --out %s --prompt "
            "\"$(printf 'say \"\\\\\\t\\377')\" %s",
            cli_ranks(row[1][0] ? 2 : 0), cli_small(), cli_path(row[0]), row[2]);
    cli_expect_done(&r, row[0]);
    cli_free(&r);
  }
  for (const char *other : {"two", "off", "spelled"})
    cli_expect_same_series(other, cli_path("one"), cli_path(other), 6);
  cli_metrics(&m, cli_path("two"));
  int gemms = 0;                                 // of a GPU: the algorithms that were chosen
  for (int i = 0; i < m.lines; i++) gemms += cli_is_kind(m.line[i], "matmul_plans");
  REQUIRE(m.lines == 1 + 6 + 3 + 1 + gemms && gemms <= 1,
          "%d records, must be the run's, 6 steps, 3 evaluations and the end", m.lines);
  cli_expect_run_record(m.line[0]);
  int step = 0;
  for (int i = 1; i < m.lines; i++) {
    if (!cli_is_kind(m.line[i], "step")) continue;
    EXPECT(cJSON_GetObjectItemCaseSensitive(m.line[i], "step")->valueint == ++step, "step %d is not in its place",
           step);
    for (const char *key : {"loss", "lr", "grad_norm", "tokens_per_s", "ms"})
      EXPECT(cJSON_IsNumber(cJSON_GetObjectItemCaseSensitive(m.line[i], key)), "step %d has no %s", step, key);
  }
  EXPECT(step == 6, "%d steps, must be 6", step);
  EXPECT(!strcmp(cli_string(m.line[m.lines - 1], "reason"), "done"),
         "the last record does not say that the run is done");
  cli_metrics_free(&m);
}

TEST(cli_saved_weights_open,
     "--save_model: every parameter by name, shape and finite value; the same bytes from 1 and 2 ranks") {
  for (const char *tied : {"on", "off"}) {
    CliRun r;
    for (int ranks : {0, 2}) {
      CLI_RUN(&r, "%s %s --tie_head %s --max_steps 3 --global_batch 4 --save_model --out %s", cli_ranks(ranks),
              cli_small(), tied, cli_path(ranks ? "two" : "one"));
      cli_expect_done(&r, tied);
      cli_free(&r);
    }
    CLI_RUN(&r, "cmp %s/model.safetensors %s/model.safetensors", cli_path("one"), cli_path("two"));
    EXPECT(r.code == 0, "tied %s: the weights of 1 and 2 ranks differ: %s", tied, r.text);
    cli_free(&r);
    SafetensorsFile s;
    char path[600];
    snprintf(path, sizeof path, "%s/model.safetensors", cli_path("two"));
    REQUIRE(safetensors_open(&s, path), "%s", s.error);
    Options o;
    test_options(&o, 1,
                 "--n_layer 2 --n_head 2 --n_embd 24 --seq_len 8 --n_positions 16 --vocab_size 290 --tie_head %s",
                 tied);
    const Model model = model_of(&o);
    int count;
    Param *p = model_params(&model, &count);
    for (int i = 0; i < count; i++) {
      Tensor t;
      if (!safetensors_find(&s, p[i].name, F32, &t)) { test_fail(__FILE__, __LINE__, "%s", s.error); continue; }
      EXPECT(t.ndim == p[i].ndim && t.shape[0] == p[i].shape[0] && (t.ndim == 1 || t.shape[1] == p[i].shape[1]),
             "%s has another shape", p[i].name);
      double largest = 0;
      for (int64_t k = 0; k < numel(t); k++) largest = fmax(largest, fabs((double)((const float *)t.data)[k]));
      EXPECT(isfinite(largest) && largest > 0, "%s: its largest magnitude is %g", p[i].name, largest);
    }
    EXPECT(s.count == count, "%d tensors in the header, must be %d parameters", s.count, count);
    free(p);
    safetensors_close(&s);
  }
}

TEST(cli_samples_are_equal, "1 and 2 ranks continue a prompt the same way, on the terminal and in sample.txt") {
  static const char *const options[] = {"--temperature 0", "--temperature 0.9 --top_k 0 --seed 7"};
  static const char prompt[] = "the fox follows";
  for (const char *option : options) {
    static char sample[2][4096];
    for (int ranks : {0, 2}) {
      CliRun r;
      CLI_RUN(&r, "%s %s --max_steps 20 --global_batch 4 --sample_tokens 40 --prompt '%s' %s --out %s",
              cli_ranks(ranks), cli_small(), prompt, option, cli_path("out"));
      cli_expect_done(&r, option);
      char path[600];
      snprintf(path, sizeof path, "%s/sample.txt", cli_path("out"));
      FILE *f = fopen(path, "rb");
      REQUIRE(f, "no sample.txt");
      char *text = sample[ranks > 0];
      text[fread(text, 1, sizeof sample[0] - 1, f)] = 0;
      fclose(f);
      EXPECT(!strncmp(text, prompt, strlen(prompt)) && strlen(text) > strlen(prompt) + 20, "%s: sample.txt holds '%s'",
             option, text);
      EXPECT(strstr(r.text, text), "%s: sample.txt is not what was printed", option);
      cli_free(&r);
    }
    EXPECT(!strcmp(sample[0], sample[1]), "%s: 1 rank wrote '%s', 2 ranks '%s'", option, sample[0], sample[1]);
  }
}

TEST(cli_two_hosts_compute_the_same,
     "2 and 4 ranks on two hosts, fp32 and bf16 on the wire: every loss equals one process's, digit by digit") {
  for (const char *wire : {"fp32", "bf16"}) {
    CliRun r;
    CLI_RUN(&r, "%s %s --max_steps 4 --global_batch 8 --reduce_dtype %s --out %s", cli_ranks(0), cli_small(), wire,
            cli_path("one"));
    cli_expect_done(&r, wire);
    cli_free(&r);
    for (int per : {1, 2}) {
      char what[64];
      snprintf(what, sizeof what, "%d ranks a host, %s wire", per, wire);
      CLI_RUN(&r, "PER=%d dev/two_hosts.sh %s %s --max_steps 4 --global_batch 8 --reduce_dtype %s --out %s", per,
              cli_program(), cli_small(), wire, cli_path("hosts"));
      if (r.code == 77) SKIP("%.*s", (int)strcspn(r.text, "\n"), r.text);
      cli_expect_done(&r, what);
      EXPECT(strstr(r.text, "on 2 hosts"), "%s: the ranks were not on two hosts:\n%.1000s", what, r.text);
      cli_expect_same_series(what, cli_path("one"), cli_path("hosts"), 4);
      cli_free(&r);
    }
  }
  cli_expect_nothing_left("after the two hosts");
}

TEST(groups_across_hosts_are_counted, "groups of ranks that span several hosts although one has room, by placement") {
  static const struct { int world, per, stride, size, across; } table[] = {
      {4, 2, 1, 2, 0}, {4, 2, 2, 2, 2}, {4, 2, 2, 1, 0}, {4, 2, 1, 4, 0},
      {6, 3, 1, 2, 1}, {6, 3, 1, 3, 0}, {8, 4, 2, 4, 2}};
  for (const auto &row : table) {
    Mesh m = {};
    Peer peer[8] = {};
    for (int r = 0; r < row.world; r++) peer[r].host = row.stride == 1 ? r / row.per : r % (row.world / row.per);
    m.world = row.world, m.node_world = row.per, m.peer = peer;
    const int across = groups_across_hosts(&m, row.size);
    EXPECT(across == row.across, "%d ranks, %d a host, stride %d, groups of %d: %d, must be %d", row.world, row.per,
           row.stride, row.size, across, row.across);
  }
}
TEST(cli_notes_groups_across_hosts, "shard groups placed across two hosts: one notice says how many and what to do") {
  CliRun r;
  CLI_RUN(&r, "OMPI_MCA_rmaps_base_mapping_policy=node PER=2 dev/two_hosts.sh %s %s --mesh 2x2 --max_steps 1 "
          "--eval_every -1 --save_every -1 --sample_tokens 0 --out %s", cli_program(), cli_small(), cli_path("out"));
  if (r.code == 77) SKIP("%.*s", (int)strcspn(r.text, "\n"), r.text);
  cli_expect_done(&r, "by node");
  EXPECT(cli_count(r.text, "notice: 2 of 2 shard groups cross hosts although 2 ranks fit on one: their gathers go over "
                   "the network; place ranks host by host") == 1 && cli_count(r.text, " cross hosts ") == 1,
         "not one notice:\n%.3000s", r.text);
  cli_free(&r);
  CLI_RUN(&r, "OMPI_MCA_rmaps_base_mapping_policy=node PER=2 dev/two_hosts.sh %s %s --max_steps 1 --eval_every -1 "
          "--save_every -1 --sample_tokens 0 --out %s", cli_program(), cli_small(), cli_path("out"));
  cli_expect_done(&r, "by node");
  EXPECT(cli_count(r.text, "notice: the ranks of a host are not consecutive in 1 of 1 shard groups: each rank sends "
                   "its gradients to all owners on other hosts; place ranks host by host") == 1 &&
         strstr(r.text, "gradients by messages"), "no notice of ranks in turn:\n%.3000s", r.text);
  cli_free(&r);
}
TEST(cli_refuses_sums_along_hosts_that_cannot_be, "--between_hosts chain: one line says why it cannot be") {
  static const struct { const char *options, *why; } table[] = {
      {"", "no shard group spans several hosts"},
      {"--plan on --world 8 --ranks_per_host 4 --device cuda --comm mpi",
       "on GPUs with --comm mpi gradients go straight to their owners"},
      {"--plan on --world 8 --ranks_per_host 2 --device cuda --mesh 2x4",
       "on GPUs with replicas gradients go straight to their owners"},
      {"--plan on --world 8 --ranks_per_host 4 --device cuda --offload optimizer",
       "with --offload gradients go straight to their owners"},
      {"--plan on --world 8 --ranks_per_host 4 --device cpu --shm off", "--shm off sends messages inside a host, too"}};
  for (const auto &row : table) {
    CliRun r;
    char line[256];
    snprintf(line, sizeof line, "--between_hosts chain: %s; leave it out", row.why);
    CLI_RUN(&r, "%s %s --between_hosts chain --max_steps 1 --out %s %s", cli_ranks(row.options[0] ? 0 : 2), cli_small(),
            cli_path("out"), row.options);
    EXPECT(r.code == 2 && cli_count(r.text, line) == 1, "%s: exit %d, not the line '%s':\n%.2000s", row.options, r.code,
           line, r.text);
    cli_free(&r);
  }
}

TEST_WAITS(cli_a_dead_host_ends_the_other, "a rank that is killed on one host ends the run on both") {
  CliRun r;
  char metrics[600];
  snprintf(metrics, sizeof metrics, "%s/metrics.jsonl", cli_path("out"));
  cli_start(&r, "exec dev/two_hosts.sh %s %s --epochs 1000000 --eval_every 1000000000 --out %s", cli_program(),
            cli_small(), cli_path("out"));
  struct stat st;
  double start = now_ms();
  while ((stat(metrics, &st) || st.st_size < 4096) && now_ms() - start < CLI_LIMIT_S * 1e3 && !kill(r.pid, 0)) {
    int status;
    if (waitpid(r.pid, &status, WNOHANG) && WIFEXITED(status) && WEXITSTATUS(status) == 77)
      SKIP("two hosts cannot be made here");
    usleep(20000);
  }
  const int pid = cli_find_process(1, false);
  REQUIRE(pid > 0, "rank 1 is not found among the processes");
  kill(pid, SIGKILL);
  r.since = test_clock();
  cli_wait(&r, CLI_LIMIT_S);
  EXPECT(cli_in_time(&r.since, 15) && r.code != 0, "it took %.1f s to end, exit code %d", r.ms / 1e3, r.code);
  EXPECT(strstr(r.text, "rank 1"), "nothing names rank 1:\n%.3000s", r.text);
  cli_free(&r);
  cli_expect_nothing_left("after a rank was killed");
}

// ---- help and progress ----------------------------------------------------------------------------------------------
TEST(cli_help_is_complete, "--help all lists every option with its group, once for all ranks; --version; exit code 0") {
  for (int ranks : {0, 2}) {
    CliRun r;
    CLI_RUN(&r, "%s --help all", cli_ranks(ranks));
    cli_expect_done(&r, "--help all");
    for (const OptionSpec &s : option_specs) {
      char want[160];
      snprintf(want, sizeof want, "  --%s ", s.name);
      EXPECT(cli_count(r.text, want) == 1, "--help all has %d lines of --%s", cli_count(r.text, want), s.name);
      EXPECT(cli_count(r.text, s.help) == 1, "--help all has %d lines that say: %s", cli_count(r.text, s.help), s.help);
    }
    for (const auto &group : option_groups) {
      char want[160];
      snprintf(want, sizeof want, "\n%s\n", group.title);
      const char *first = strstr(r.text, want);
      EXPECT(first && !strstr(first + 1, want), "--help all does not have group %s once", group.title);
    }
    cli_free(&r);
    CLI_RUN(&r, "%s --version", cli_ranks(ranks));
    EXPECT(r.code == 0 && cli_count(r.text, "train_gpt_fsdp " PROGRAM_VERSION " (") == 1, "--version: exit code %d, %s",
           r.code, r.text);
    cli_free(&r);
  }
}

TEST(cli_progress_fits_where_it_goes, "in a pipe or file plain lines; on a terminal one line that is overwritten") {
  CliRun r;
  for (int ranks : {0, 2}) {
    CLI_RUN(&r, "%s %s --max_steps 10 --log_every 4 --out %s | cat", cli_ranks(ranks), cli_small(), cli_path("out"));
    cli_expect_done(&r, "in a pipe");
    EXPECT(!strchr(r.text, '\r') && !strchr(r.text, '\033'), "%d ranks: control characters in a pipe:\n%.3000s", ranks,
           r.text);
    EXPECT(cli_count(r.text, "  ETA ") == 4, "%d ranks: %d progress lines, must be those of steps 1, 4, 8 and 10",
           ranks, cli_count(r.text, "  ETA "));
    for (const char *part : {"step 8/10  loss ", "  lr ", "  |g| ", " tok/s", "  ETA ", " MiB", "[####"})
      EXPECT(strstr(r.text, part), "%d ranks: no '%s' in the progress", ranks, part);
    cli_free(&r);
  }
  CLI_RUN(&r, "script -qec true /dev/null");
  if (r.code) SKIP("no `script` (util-linux) here to make a terminal; plain lines were tested");
  cli_free(&r);
  for (int ranks : {0, 2}) {
    CLI_RUN(&r, "script -qec \"%s %s --max_steps 10 --log_every 4 --out %s\" /dev/null", cli_ranks(ranks), cli_small(),
            cli_path("out"));
    cli_expect_done(&r, "on a terminal");
    int rewritten = 0;
    for (const char *at = r.text; (at = strstr(at, "\r[#")); at++) rewritten++;
    EXPECT(rewritten == 10, "%d ranks: %d steps were written over the line, must be 10:\n%.3000s", ranks, rewritten,
           r.text);
    EXPECT(strstr(r.text, "\nvalid: loss"), "%d ranks: the evaluation does not start on a line of its own", ranks);
    cli_free(&r);
  }
}
