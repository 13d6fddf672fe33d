// terminal.h: what the program prints, wherever it goes: a terminal, a file, a pipe, or through mpirun. (metrics.jsonl:
// run/report/log.h.)
//
// Conventions
//   - control bytes and invalid UTF-8 appear as \x1b (text_escape); a sample's bytes reach files and pipes unchanged.
//   - after the reader has gone (EPIPE) nothing is printed. Training, metrics.jsonl and checkpoints continue.
//   - mpirun ends when nobody reads its stdout. So ranks on its host write directly to its terminal or pipe; ranks on
//     other hosts cannot, but everything except errors is printed by rank 0.
#pragma once
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include "gpus.h"

Terminal terminal = {false, false, false, false, STDOUT_FILENO, 0};

// ---- text and the open line -----------------------------------------------------------------------------------------
int terminal_columns() {
  struct winsize w = {};
  return !ioctl(terminal.width_fd, TIOCGWINSZ, &w) && w.ws_col ? w.ws_col : 80;
}
// What to print before text on stdout or stderr so that the open line is ended.
static const char *line_end_text() {
  static const char *const text[] = {"", "\n", "\r\033[K"};
  const int which = !terminal.shown ? 0 : terminal.transient ? 2 : 1;
  terminal.shown = 0;
  return text[which];
}
void line_end() {
  watchdog_pause(STDOUT_FILENO);
  fputs(line_end_text(), stdout);
  fflush(stdout);
  watchdog_pause(-1);
}
void line_draw(const char *text, bool transient) {
  const int columns = terminal_columns(), n = (int)strlen(text), most = columns > 1 ? columns - 1 : 1;
  if (terminal.shown && terminal.transient != transient) line_end();
  const bool wrapped = terminal.shown >= columns;                // the terminal became narrower than the line
  terminal.transient = transient;
  terminal.shown = n < most ? n : most;
  watchdog_pause(STDOUT_FILENO);
  printf("%s\r%.*s\033[K", wrapped ? "\n" : "", most, text);
  fflush(stdout);
  watchdog_pause(-1);
}

static void say_to(FILE *to, const char *before, const char *fmt, va_list ap) {
  char *text = NULL;
  const int n = vasprintf(&text, fmt, ap);
  if (n < 0) return;
  const size_t head = strlen(before);
  char *all = (char *)malloc(head + 4 * (size_t)n + 1);
  if (!all) { free(text); return; }
  memcpy(all, before, head + 1);
  text_escape(all + head, 4 * (size_t)n + 1, (const uint8_t *)text, (size_t)n, false);
  watchdog_pause(STDOUT_FILENO);                // a reader may take its time
  fflush(stdout);
  watchdog_pause(fileno(to));
  fwrite(all, 1, strlen(all), to);               // in one piece: other ranks write as well
  fflush(to);
  watchdog_pause(-1);
  free(all);
  free(text);
}
void say(const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  say_to(stdout, line_end_text(), fmt, ap);
  va_end(ap);
}
void say_error(const char *fmt, ...) {
  const bool both = terminal.out && terminal.err;
  const char *before = both && terminal.shown ? line_end_text() : both && terminal.launched ? "\r\033[K" : "";
  va_list ap;
  va_start(ap, fmt);
  say_to(stderr, before, fmt, ap);
  va_end(ap);
}
static void say_error_line(const char *line) { say_error("%s\n", line); }

void say_bytes(const uint8_t *bytes, int n) {
  static uint8_t kept[4];                        // the start of a character
  static int kept_count;
  watchdog_pause(STDOUT_FILENO);
  if (!terminal.out && bytes) fwrite(bytes, 1, (size_t)n, stdout);
  if (terminal.out) {
    const size_t all = (size_t)(kept_count + (bytes ? n : 0));
    uint8_t *from = (uint8_t *)malloc(all + 1);
    char *to = (char *)malloc(4 * all + 1);
    memcpy(from, kept, (size_t)kept_count);
    if (bytes) memcpy(from + kept_count, bytes, (size_t)n);
    const size_t used = text_escape(to, 4 * all + 1, from, all, bytes != NULL);
    kept_count = (int)(all - used);
    memcpy(kept, from + used, (size_t)kept_count);
    fputs(to, stdout);
    free(from);
    free(to);
    terminal.transient = false;
    terminal.shown = bytes != NULL;              // a signal that ends us here ends the line too
  }
  if (!bytes) fputs("\n", stdout);
  fflush(stdout);
  watchdog_pause(-1);
}

bool terminal_lost() {
  pollfd out = {STDOUT_FILENO, 0, 0};
  const bool lost = fflush(stdout) || ferror(stdout);
  return lost && !(poll(&out, 1, 0) > 0 && (out.revents & (POLLERR | POLLHUP)));
}

// ---- signals that end the process -----------------------------------------------------------------------------------
void terminal_end_line_at_once() {
  static const char newline[] = "\n";
  if (terminal.shown && write(STDOUT_FILENO, newline, 1) == 1) terminal.shown = 0;
}
static void on_last_signal(int signal_) {
  terminal_end_line_at_once();
  liveness_leave(true);
  signal(signal_, SIG_DFL);
  raise(signal_);
}
void terminal_last_signal(int signal_) {
  struct sigaction a = {};
  a.sa_handler = on_last_signal;
  sigaction(signal_, &a, NULL);
}

// ---- who reads ------------------------------------------------------------------------------------------------------
static bool process_is_mpirun(int pid) {
  char path[64], name[32] = "";
  snprintf(path, sizeof path, "/proc/%d/comm", pid);
  FILE *f = fopen(path, "r");
  if (f && fscanf(f, "%31s", name) != 1) name[0] = 0;
  if (f) fclose(f);
  static const char *const known[] = {"mpirun", "mpiexec", "orterun", "prterun"};
  for (const char *k : known) if (!strcmp(name, k)) return true;
  return false;
}
// Whether mpirun was asked to edit what ranks print, not only to pass it on: --tag-output, --output-filename, --xml ...
// Open MPI 4 shows this in the environment, 5 only on its command line.
static bool mpirun_edits_output(int pid) {
  char path[64], text[1 << 16];
  static const char *const variables[] = {"OMPI_MCA_orte_tag_output", "OMPI_MCA_orte_timestamp_output",
                                          "OMPI_MCA_orte_xml_output", "OMPI_MCA_orte_output_filename"};
  for (const char *v : variables) if (getenv(v)) return true;
  snprintf(path, sizeof path, "/proc/%d/cmdline", pid);
  FILE *f = fopen(path, "r");
  const size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
  if (f) fclose(f);
  text[n] = 0;
  for (size_t at = 0; at < n; at += strlen(text + at) + 1) {
    const char *word = text + at, *name = strrchr(word, '/');
    if (!strcmp(name ? name + 1 : word, program_invocation_short_name)) break;   // what follows is ours
    const bool option = word[0] == '-' || strstr(word, "orte_") || strstr(word, "prte_");
    if (option && (strstr(word, "output") || strstr(word, "xml") || strstr(word, "xterm"))) return true;
  }
  return false;
}
// Whether process `pid` has this pipe open.
static bool process_has_pipe(int pid, const struct stat *pipe) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd", pid);
  bool found = false;
  directory_each(path, [&](const char *, const char *inside) {
    struct stat st;
    found = found || (!stat(inside, &st) && st.st_dev == pipe->st_dev && st.st_ino == pipe->st_ino);
  });
  return found;
}
// From here on writes directly to mpirun's terminal or pipe what mpirun would pass on from our `fd`: a pipe without a
// reader would end mpirun, and when mpirun is asked to end it drops part of what it should pass on. Returns whether the
// target is a terminal. If mpirun edits what ranks print, only the terminal's width is taken from there.
static bool terminal_through(int pid, int fd) {
  char path[64];
  struct stat st;
  const bool ours = fd == STDOUT_FILENO ? isatty(fd)
                                        : !fstat(fd, &st) && S_ISFIFO(st.st_mode) && process_has_pipe(pid, &st);
  if (!ours) return fd != STDOUT_FILENO && isatty(fd);           // redirected between mpirun and us
  snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
  int theirs = open(path, O_WRONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
  const bool gone = theirs < 0 && errno == ENXIO, shows = theirs >= 0 && isatty(theirs);
  const bool pipe = !stat(path, &st) && S_ISFIFO(st.st_mode);
  const bool plain = process_is_mpirun(pid) && !mpirun_edits_output(pid);
  if (gone && pipe && plain) theirs = open("/dev/null", O_WRONLY | O_CLOEXEC);               // the reader has gone
  if (theirs >= 0 && (pipe || shows) && plain) {
    fcntl(theirs, F_SETFL, 0);                   // wait for a slow reader
    dup2(theirs, fd);
  } else if (shows && fd == STDOUT_FILENO) {
    terminal.width_fd = theirs;
    return true;
  }
  if (theirs >= 0) close(theirs);
  return shows;
}
void terminal_open() {
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);                      // ulimit -f: the write fails and is reported, as on a full disk
  error_hook = say_error_line;
  liveness_line_end = terminal_end_line_at_once;
  terminal.launched = getenv("OMPI_COMM_WORLD_RANK") != NULL;
  const int pid = terminal.launched ? launcher_pid() : 0;
  terminal.out = pid ? terminal_through(pid, STDOUT_FILENO) : isatty(STDOUT_FILENO);
  terminal.err = pid ? terminal_through(pid, STDERR_FILENO) : isatty(STDERR_FILENO);
}
void show_progress(const char *what, int64_t done, int64_t total) {
  static double begun_ms, next_ms;
  static int64_t before = INT64_MAX;
  const double now = now_ms();
  if (done < before) { begun_ms = now; next_ms = now + 1000; }   // something new has started
  before = done;
  if (now < next_ms || !total) return;
  next_ms = now + (terminal.out ? 200 : 10000);
  char line[128];
  snprintf(line, sizeof line, "%s: %lld %% of %.2f GB, %.2f GB/s", what, (long long)(100 * done / total),
           (double)total * 1e-9, (double)done * 1e-6 / (now - begun_ms));
  if (terminal.out) line_draw(line, true);
  else say("%s\n", line);
}
