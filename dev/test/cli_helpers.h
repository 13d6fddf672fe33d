// cli_helpers.h: what every test needs that runs the program as its users do, alone and under mpirun: commands with a
// time limit, what they printed and wrote. A run that hangs fails its test. TEST_TMP in the environment identifies the
// processes of a test.
#pragma once
#include <ctype.h>
#include <dirent.h>
#include <limits.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

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
// Whether something that started at `since` may continue, or was in time: limit_s, or CLI_LIMIT_S while processors are
// under pressure. What hangs does not end by then either.
static inline bool cli_in_time(const TestClock *since, double limit_s) {
  const double s = (now_ms() - since->ms) / 1e3;
  return s < limit_s || (s < CLI_LIMIT_S && test_pressed(since));
}
// Whether a command may continue: limit_s, or three times as long while processors are under pressure.
static inline bool cli_may_run(const TestClock *since, double limit_s) {
  const double s = (now_ms() - since->ms) / 1e3;
  return s < limit_s || (s < 3 * limit_s && test_pressed(since));
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
    if (late || cli_may_run(&r->since, limit_s)) continue;
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
  EXPECT(!late, "still running after %.0f s; it printed:\n%.3000s", r->ms / 1e3, r->text);
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
// The program rejected: exit code, and exactly one line of its own about it, which is `line` (if `line` ends in ...,
// figures may follow).
static inline void cli_expect_rejection(const CliRun *r, const char *what, int code, const char *line) {
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
  EXPECT(!strstr(r->text, "MPI_ABORT"), "%s: OpenMPI's banner stands after the line:\n%.3000s", what, r->text);
  EXPECT(lines == 1, "%s: %d lines of the program, must be 1; all it printed:\n%.3000s", what, lines, r->text);
  EXPECT(open_end ? !strncmp(said, want, n - 3) : !strcmp(said, want), "%s: it said\n      %s\n    must be\n      %s",
         what, said, line);
  EXPECT(r->code == code, "%s: exit code %d, must be %d", what, r->code, code);
}

// ---- small things to train on, and what a run leaves ----------------------------------------------------------------
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
// Whether runs of the program are on a GPU, as cli_small's are then: all ranks on one, over --comm mpi.
static inline bool cli_on_gpu() {
  const char *device = getenv("DEVICE");
  return device && !strcmp(device, "cuda");
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

// ---- rejections, ends, files ----------------------------------------------------------------------------------------
struct CliRejection { int ranks; const char *options; int code; const char *line; };
static inline void cli_expect_rejections(const CliRejection *table, int count) {
  test_mpirun_patience(0);
  for (int i = 0; i < count; i++) {
    CliRun r;
    char what[1100];
    snprintf(what, sizeof what, "%d ranks, %s", table[i].ranks, table[i].options);
    CLI_RUN(&r, "%s %s --out %s %s", cli_ranks(table[i].ranks), cli_small(), cli_path("out"), table[i].options);
    cli_expect_rejection(&r, what, table[i].code, table[i].line);
    cli_free(&r);
  }
  cli_expect_nothing_left("after the rejections");
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
// Whole lines of a file that a run writes; cli_metrics is for one that has ended.
static inline int cli_lines(const char *path) {
  FILE *f = fopen(path, "r");
  int lines = 0;
  for (int c; f && (c = fgetc(f)) != EOF;) lines += c == '\n';
  if (f) fclose(f);
  return lines;
}
// Starts a run that would not end automatically and waits until it has done some steps.
static inline bool cli_start_endless(CliRun *r, const char *out, int ranks, const char *options) {
  char metrics[600];
  snprintf(metrics, sizeof metrics, "%s/metrics.jsonl", out);
  remove(metrics);
  cli_start(r, "exec %s %s --epochs 1000000 --eval_every 1000000000 --out %s %s", cli_ranks(ranks), cli_small(), out,
            options);
  for (const TestClock since = test_clock(); cli_may_run(&since, CLI_LIMIT_S); usleep(20000)) {
    if (cli_lines(metrics) > 3) return true;     // the run's record, and steps
    if (waitpid(r->pid, NULL, WNOHANG)) break;
  }
  test_fail(__FILE__, __LINE__, "%d ranks %s: no step was made", ranks, options);
  kill(-r->pid, SIGKILL);
  cli_find_process(-1, true);
  return false;
}
// `text` with the test's directory for every @. Four can be in use.
static inline const char *cli_expand(const char *text) {
  static char whole[4][2048];
  static int turn;
  char *to = whole[turn = (turn + 1) % 4];
  size_t n = 0;
  for (; *text && n < sizeof whole[0] - 512; text++) {
    if (*text == '@') n += (size_t)snprintf(to + n, 512, "%s", test_tmp());
    else to[n++] = *text;
  }
  to[n] = 0;
  return to;
}
// Names in a directory that start with `part`.
static inline int cli_names(const char *directory, const char *part) {
  int count = 0;
  DIR *dir = opendir(directory);
  for (dirent *e; dir && (e = readdir(dir));)
    count += strcmp(e->d_name, ".") && strcmp(e->d_name, "..") && !strncmp(e->d_name, part, strlen(part));
  if (dir) closedir(dir);
  return count;
}
static inline void cli_expect_same_file(const char *what, const char *a, const char *b) {
  int64_t a_bytes = 0, b_bytes = 0;
  char *x = file_get(a, 1 << 28, &a_bytes), *y = file_get(b, 1 << 28, &b_bytes);
  EXPECT(x && y, "%s: %s or %s cannot be read", what, a, b);
  EXPECT(!x || !y || (a_bytes == b_bytes && !memcmp(x, y, (size_t)a_bytes)), "%s: %s and %s differ", what, a, b);
  free(x);
  free(y);
}
// Waits until a running command has printed `count` lines with `part`. False, and a failed test, after the time limit.
static inline bool cli_wait_for(CliRun *r, const char *part, int count) {
  for (const TestClock since = test_clock(); cli_may_run(&since, CLI_LIMIT_S); usleep(5000)) {
    int64_t bytes;
    char *text = file_get(r->path, CLI_TEXT_BYTES, &bytes);
    const bool there = text && cli_count(text, part) >= count;
    free(text);
    if (there) return true;
    if (kill(r->pid, 0)) break;
  }
  test_fail(__FILE__, __LINE__, "there are no %d lines that say '%s'", count, part);
  kill(-r->pid, SIGKILL);
  cli_find_process(-1, true);
  return false;
}
// The evaluations of a run's last step, digit by digit. malloc'ed.
static inline char *cli_last_evals(const char *out) {
  char *all = cli_series(out), *save = NULL, *evals = (char *)calloc(1, 4096);
  for (char *line = strtok_r(all, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
    const char *loss = strstr(line, "\"loss\":");
    if (strstr(line, "\"accuracy\":") && loss && strlen(evals) < 3000) sprintf(evals + strlen(evals), "%.300s\n", loss);
  }
  free(all);
  return evals;
}
static inline const char *liveness_self() {
  static char self[512];
  const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
  self[n > 0 ? n : 0] = 0;
  return self;
}
static inline char *data_read(const char *path, size_t *n) {  // zero-terminated; NULL: no such file
  FILE *f = fopen(path, "rb");
  if (!f) return NULL;
  char *p = (char *)calloc(1, 1 << 20);
  *n = fread(p, 1, (1 << 20) - 1, f);
  fclose(f);
  return p;
}
static const char corpora_pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n";
// The last record of OUT/metrics.jsonl is the run's end, with this reason.
static inline void cli_expect_end(const char *what, const char *out, const char *reason) {
  CliMetrics m;
  cli_metrics(&m, out);
  const cJSON *last = m.lines ? m.line[m.lines - 1] : NULL;
  EXPECT(last && cli_is_kind(last, "end") && !strcmp(cli_string(last, "reason"), reason),
         "%s: the last record is of kind '%s' and says '%s', must say '%s'", what, cli_string(last, "kind"),
         cli_string(last, "reason"), reason);
  cli_metrics_free(&m);
}
