// rdzv_local.h: what a rendezvous does on one host: programs that it starts, and ranks that take the place of the
// processes that the user started.
//
// Local sockets have no files (abstract names), are asked for the user behind them, and end with their processes.
#pragma once
#include "base/newfile/newfile.h"
#include "rdzv_where.h"
#include <sched.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>

extern char **environ;

// A line on stderr, in one write.
__attribute__((format(printf, 1, 2))) static inline void rdzv_say(const char *fmt, ...) {
  char line[2048] = "train_gpt_fsdp: ";
  va_list ap;
  va_start(ap, fmt);
  text_add_list(line, sizeof line - 1, fmt, ap);
  va_end(ap);
  strcat(line, "\n");
  if (write(STDERR_FILENO, line, strlen(line)) < 0) return;      // nobody reads it
}

// ---- environments ---------------------------------------------------------------------------------------------------
// A list of NAME=VALUE, NULL at its end, each malloc'ed; all zero: empty.
struct RdzvEnv { char **entry; int count; };
static inline int rdzv_env_find(const RdzvEnv *e, const char *name) {
  const size_t n = strlen(name);
  for (int i = 0; i < e->count; i++) if (!strncmp(e->entry[i], name, n) && e->entry[i][n] == '=') return i;
  return -1;
}
// Sets or replaces a variable; value NULL removes it.
static inline void rdzv_env_set(RdzvEnv *e, const char *name, const char *value) {
  const int at = rdzv_env_find(e, name);
  if (!value && at < 0) return;
  if (!value) {
    free(e->entry[at]);
    e->entry[at] = e->entry[--e->count];
    e->entry[e->count] = NULL;
    return;
  }
  char *text = (char *)malloc(strlen(name) + strlen(value) + 2);
  sprintf(text, "%s=%s", name, value);
  if (at >= 0) {
    free(e->entry[at]);
    e->entry[at] = text;
    return;
  }
  e->entry = (char **)realloc(e->entry, sizeof(char *) * ((size_t)e->count + 2));
  e->entry[e->count++] = text;
  e->entry[e->count] = NULL;
}
static inline void rdzv_env_put(RdzvEnv *e, const char *entry) {
  const char *equals = strchr(entry, '=');
  if (!equals || equals == entry) return;
  char *name = strndup(entry, (size_t)(equals - entry));
  rdzv_env_set(e, name, equals + 1);
  free(name);
}
// This process's environment, without the token.
static inline void rdzv_env_copy(RdzvEnv *e) {
  *e = RdzvEnv{};
  for (char **v = environ; *v; v++) rdzv_env_put(e, *v);
  rdzv_env_set(e, RDZV_TOKEN_VARIABLE, NULL);
}
static inline void rdzv_env_free(RdzvEnv *e) {
  for (int i = 0; i < e->count; i++) free(e->entry[i]);
  free(e->entry);
  *e = RdzvEnv{};
}
// Has Open MPI use the network interface that leads to the other hosts, and no other, unless the user has chosen. ""
// leaves the choice to Open MPI: all ranks are on one host. PRTE_*: the names of Open MPI 5.
static inline void rdzv_env_network(RdzvEnv *e, const char *interface) {
  static const struct { const char *set, *instead; } names[] = {
      {"OMPI_MCA_oob_tcp_if_include", "OMPI_MCA_oob_tcp_if_exclude"},
      {"OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_btl_tcp_if_exclude"},
      {"PRTE_MCA_prte_if_include", "PRTE_MCA_prte_if_exclude"}};
  for (const auto &n : names)
    if (interface[0] && rdzv_env_find(e, n.set) < 0 && rdzv_env_find(e, n.instead) < 0)
      rdzv_env_set(e, n.set, interface);
  if (interface[0]) rdzv_env_set(e, "OMPI_MCA_oob_tcp_disable_ipv6_family", "0");
}

// ---- children -------------------------------------------------------------------------------------------------------
// The signals that a process of a rendezvous reads from rdzv_signals_open's file. Signals that were ignored when the
// process was started (nohup) stay ignored.
static inline void rdzv_signal_set(sigset_t *set) {
  sigemptyset(set);
  for (int s : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT, SIGCHLD}) {
    struct sigaction now;
    if (!sigaction(s, NULL, &now) && now.sa_handler == SIG_IGN && s != SIGCHLD) continue;
    sigaddset(set, s);
  }
}
// Blocks these signals and returns a file that they are read from.
static inline int rdzv_signals_open() {
  sigset_t set;
  rdzv_signal_set(&set);
  sigprocmask(SIG_BLOCK, &set, NULL);
  return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}
// The next signal that has come; 0: none.
static inline int rdzv_signal_next(int fd) {
  signalfd_siginfo s;
  return read(fd, &s, sizeof s) == sizeof s ? (int)s.ssi_signo : 0;
}

// A child process. pid 0: not running. code: exit code, or 128 + the signal that ended it (then killed is true).
struct RdzvChild { pid_t pid; int code; bool killed; };
// Starts a program found by PATH in a session of its own, with no input: Ctrl-C reaches it only through us, and ranks
// that yield give way to each other, not to other programs of this terminal or shell (Linux' autogroups). It gets
// SIGTERM when this process ends, however that happens. False with errno: it could not be started.
static inline bool rdzv_child_start(RdzvChild *c, char *const *words, const RdzvEnv *env) {
  int report[2], fault = 0;
  if (pipe2(report, O_CLOEXEC)) return false;
  const pid_t parent = getpid();
  c->pid = fork();
  if (c->pid < 0) {
    fault = errno;
    close(report[0]), close(report[1]);
    c->pid = 0, errno = fault;
    return false;
  }
  if (!c->pid) {
    sigset_t none;
    sigemptyset(&none);
    setsid();
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(1);           // it ended before it could be watched
    const int null = open("/dev/null", O_RDONLY);
    dup2(null, STDIN_FILENO);
    signal(SIGCHLD, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execvpe(words[0], words, env->entry);
    fault = errno;
    if (write(report[1], &fault, sizeof fault) < 0) _exit(126);
    _exit(127);
  }
  close(report[1]);
  const bool failed = read(report[0], &fault, sizeof fault) == sizeof fault;
  close(report[0]);
  if (!failed) return true;
  waitpid(c->pid, NULL, 0);
  c->pid = 0, errno = fault;
  return false;
}
// Whether the child has ended, or never ran.
static inline bool rdzv_child_ended(RdzvChild *c) {
  int status;
  if (c->pid && waitpid(c->pid, &status, WNOHANG) == c->pid) {
    c->code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    c->killed = !WIFEXITED(status);
    c->pid = 0;
  }
  return !c->pid;
}
// Waits until the child has ended: after wait_ms sends SIGTERM, after three seconds more SIGKILL to its whole group.
static inline void rdzv_child_end(RdzvChild *c, double wait_ms) {
  for (int turn = 0; turn < 3 && c->pid; turn++) {
    const double begun = now_ms(), limit = turn == 0 ? wait_ms : turn == 1 ? 3000 : 1e9;
    if (turn) kill(turn == 1 ? c->pid : -c->pid, turn == 1 ? SIGTERM : SIGKILL);
    while (!rdzv_child_ended(c) && now_ms() - begun < limit) usleep(5000);
  }
}

// ---- places of ranks ------------------------------------------------------------------------------------------------
// A rank's seat (place) in the process that it replaces. listener: a local socket to which the rank connects for what
// it needs; fd: then the connection, which lasts as long as the rank lives, -1: none; pid: the rank's.
struct RdzvSeat { int listener, fd; pid_t pid; };
// What ranks report over that connection (restarts.h). From rank 0: NOTE_STEP: step a is done; NOTE_SAVED: step a has a
// whole checkpoint; NOTE_BATCH: a sequences per step, b per microbatch; NOTE_END: its exit code a; NOTE_OURS: OUT/ckpt
// has only checkpoints of this run. From any rank: NOTE_DIED: rank a has died; NOTE_JOB: Open MPI's job number a.
enum RdzvNoteKind { NOTE_STEP = 1, NOTE_SAVED, NOTE_BATCH, NOTE_DIED, NOTE_JOB, NOTE_END, NOTE_OURS };
struct RdzvNote { int64_t kind, a, b; };
// What was reported so far; all zero: nothing. step: the last step done; saved: 1 + the step of the newest checkpoint;
// sequences, batch: per step, per microbatch; died: 1 + the rank that died; done: rank 0 has ended with exit code 0;
// ours: OUT/ckpt has only checkpoints of this run.
struct RdzvHeard { int64_t step, saved, sequences, batch, died, job; bool done, ours; };
// came: number of ranks that have connected; needs: the bytes that each of them gets.
struct RdzvSeats { RdzvSeat *seat; int count, came; RdzvBytes needs; RdzvHeard heard; };
// Rank 0 hears all ranks, the others hear only rank 0: when it says that another one has died, that one was the first.
static inline void rdzv_hear_died(int64_t *died, int64_t rank) {
  if (rank >= 0 && *died <= 1) *died = 1 + rank;
}
static inline void rdzv_hear(RdzvHeard *h, const RdzvNote *n) {
  if (n->kind == NOTE_STEP && n->a > h->step) h->step = n->a;
  if (n->kind == NOTE_SAVED && n->a >= h->saved) h->saved = n->a + 1;
  if (n->kind == NOTE_BATCH && n->b > 0 && n->a > 0 && n->a % n->b == 0) h->sequences = n->a, h->batch = n->b;
  if (n->kind == NOTE_DIED) rdzv_hear_died(&h->died, n->a);
  if (n->kind == NOTE_JOB && n->a > 0 && n->a <= UINT32_MAX) h->job = n->a;
  if (n->kind == NOTE_END) h->done = !n->a;
  if (n->kind == NOTE_OURS) h->ours = true;
}

static inline NetAddress rdzv_seat_address(const char *job, int64_t rank) {
  return net_local("train_gpt_fsdp/rank/%s/%lld", job, (long long)rank);
}
static inline NetAddress rdzv_hand_address(const char *job) {
  return net_local("train_gpt_fsdp/hand/%s", job);
}
static inline void rdzv_add_block(RdzvBytes *b, const void *bytes, size_t n) {
  rdzv_add_number(b, (int64_t)n);
  rdzv_add(b, bytes, n);
}
static inline void rdzv_add_strings(RdzvBytes *b, char *const *list, int count) {
  rdzv_add_number(b, count);
  for (int i = 0; i < count; i++) rdzv_add_block(b, list[i], strlen(list[i]) + 1);
}
// Appends what the rank that mpirun starts instead of this process needs to run as this process would: directory, cores
// that it may use (none: unknown), arguments, environment.
static inline void rdzv_needs_write(RdzvBytes *b, int argc, char **argv, const RdzvEnv *env) {
  char here[4096];
  cpu_set_t *cores = CPU_ALLOC(8192);
  const size_t bytes = CPU_ALLOC_SIZE(8192);
  const bool known = !sched_getaffinity(0, bytes, cores);
  if (!getcwd(here, sizeof here)) here[0] = 0;
  rdzv_add_block(b, here, strlen(here) + 1);
  rdzv_add_block(b, cores, known ? bytes : 0);
  rdzv_add_strings(b, argv, argc);
  rdzv_add_strings(b, env->entry, env->count);
  CPU_FREE(cores);
}
// Opens the seats (places) of `count` ranks from `first` on: a local socket for each. False with one line in `error`.
static inline bool rdzv_seats_open(RdzvSeats *s, const char *job, int64_t first, int count, Error *error) {
  s->seat = (RdzvSeat *)calloc((size_t)count + 1, sizeof(RdzvSeat));
  s->heard = RdzvHeard{};
  for (s->count = 0; s->count < count; s->count++) {
    const NetAddress a = rdzv_seat_address(job, first + s->count);
    s->seat[s->count] = RdzvSeat{net_listen(&a, 1024), -1, 0};
    REJECT(s->seat[s->count].listener < 0, "no place for rank %lld: %s", (long long)first + s->count, strerror(errno));
  }
  return true;
}
// Reads the notes that the rank in seat x has sent. False: that rank has ended.
static inline bool rdzv_seat_hear(RdzvSeats *s, const RdzvSeat *x) {
  RdzvNote note;
  ssize_t n;
  while ((n = recv(x->fd, &note, sizeof note, MSG_DONTWAIT)) == sizeof note) rdzv_hear(&s->heard, &note);
  return n != 0;
}
// Gives ranks that have connected what they need, reads what ranks report, and closes seats of ranks that have ended.
// Waits at most for a rank to read.
static inline void rdzv_seats_look(RdzvSeats *s) {
  for (int i = 0; i < s->count; i++) {
    RdzvSeat *x = &s->seat[i];
    if (x->fd >= 0 && !rdzv_seat_hear(s, x)) {
      close(x->fd);
      x->fd = -1, x->pid = 0;
    }
    const int fd = x->listener >= 0 && x->fd < 0 ? accept4(x->listener, NULL, NULL, SOCK_CLOEXEC) : -1;
    if (fd < 0) continue;
    const timeval limit = {5, 0};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    size_t at = 0;
    const bool ours = net_peer_is_ours(fd, &x->pid);
    RdzvBytes all = {};
    rdzv_add_block(&all, s->needs.p, s->needs.n);
    for (ssize_t n; ours && at < all.n && (n = send(fd, all.p + at, all.n - at, MSG_NOSIGNAL)) > 0;) at += (size_t)n;
    rdzv_bytes_free(&all);
    if (at) x->fd = fd, s->came++;
    else close(fd), x->pid = 0;
  }
}
// Whether every seat has had its rank, and all ranks have ended.
static inline bool rdzv_seats_ended(const RdzvSeats *s) {
  bool alive = s->came < s->count;
  for (int i = 0; i < s->count; i++) alive = alive || s->seat[i].fd >= 0;
  return !alive;
}
// Fills in the files to poll for rdzv_seats_look, one for each seat; returns their number.
static inline int rdzv_seats_poll(const RdzvSeats *s, pollfd *p) {
  int n = 0;
  for (int i = 0; i < s->count; i++) {
    if (s->seat[i].fd < 0) p[n++] = pollfd{s->seat[i].listener, POLLIN, 0};
    else p[n++] = pollfd{s->seat[i].fd, POLLIN, 0};
  }
  return n;
}
// Removes the shared memory of a job's ranks on this host, which Open MPI leaves if mpirun or a daemon was killed:
// vader_segment.HOST.USER.JOB.RANK (Open MPI 5: sm_segment). The job's ranks must have ended.
static inline void rdzv_remove_segments(int64_t job) {
  char part[64];
  snprintf(part, sizeof part, ".%u.%x.", (unsigned)getuid(), (unsigned)job);
  if (!job) return;
  directory_each("/dev/shm", [&](const char *name, const char *path) {
    const bool segment = !strncmp(name, "vader_segment.", 14) || !strncmp(name, "sm_segment.", 11);
    if (segment && strstr(name, part)) unlink(path);
  });
}
// Waits wait_ms for ranks to end, kills those that are left, and closes all seats. s->heard stays.
static inline void rdzv_seats_close(RdzvSeats *s, double wait_ms) {
  bool alive = true;
  for (const double begun = now_ms(); alive; usleep(5000)) {
    alive = false;
    rdzv_seats_look(s);
    const bool late = now_ms() - begun > wait_ms;
    for (int i = 0; i < s->count; i++) {
      alive = alive || s->seat[i].fd >= 0;
      if (late && s->seat[i].fd >= 0 && s->seat[i].pid > 1) kill(s->seat[i].pid, SIGKILL);
    }
    if (now_ms() - begun > wait_ms + 3000) break;           // a rank is in an uninterruptible call
  }
  for (int i = 0; i < s->count; i++) {
    if (s->seat[i].listener >= 0) close(s->seat[i].listener);
    if (s->seat[i].fd >= 0) close(s->seat[i].fd);
  }
  free(s->seat);
  rdzv_bytes_free(&s->needs);
  const RdzvHeard heard = s->heard;
  if (!alive) rdzv_remove_segments(heard.job);
  *s = RdzvSeats{};
  s->heard = heard;
}

// ---- what mpirun starts ---------------------------------------------------------------------------------------------
enum { RDZV_RANK_NEEDS_MAX = 64 << 20 };
static inline bool rdzv_read_all(int fd, void *to, size_t n) {
  for (size_t at = 0; at < n;) {
    const ssize_t got = read(fd, (char *)to + at, n - at);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += (size_t)got;
  }
  return true;
}
// A block of rdzv_add_block inside the reader's bytes; NULL: there is none.
static inline const uint8_t *rdzv_take_block(RdzvReader *r, size_t *n) {
  const int64_t bytes = rdzv_take_number(r);
  r->bad = r->bad || bytes < 0 || (uint64_t)bytes > r->n;
  if (r->bad) return NULL;
  const uint8_t *p = r->p;
  *n = (size_t)bytes;
  r->p += *n, r->n -= *n;
  return p;
}
// A list of rdzv_add_strings: pointers into the reader's bytes, NULL at its end, malloc'ed; NULL: there is none.
static inline char **rdzv_take_strings(RdzvReader *r) {
  const int64_t count = rdzv_take_number(r);
  r->bad = r->bad || count < 0 || (uint64_t)count > r->n / 8;
  if (r->bad) return NULL;
  char **list = (char **)calloc((size_t)count + 1, sizeof(char *));
  for (int64_t i = 0; i < count && !r->bad; i++) {
    size_t n = 0;
    const uint8_t *p = rdzv_take_block(r, &n);
    r->bad = r->bad || !n || p[n - 1];
    list[i] = (char *)p;
  }
  if (!r->bad) return list;
  free(list);
  return NULL;
}
// A rank's environment: that of the process whose place it takes, and what Open MPI's daemon told this one, except the
// networks, which each host has chosen for itself.
static inline void rdzv_rank_env(RdzvEnv *env, char *const *theirs, const char *job, int seat) {
  char number[16];
  static const char *const ours[] = {"OMPI_", "PMIX_", "ORTE_", "PRTE_", "OPAL_"};
  static const char *const kept[] = {"OMPI_MCA_oob_tcp_", "OMPI_MCA_btl_tcp_", "PRTE_MCA_prte_if_",
                                     "OMPI_MCA_mpi_yield_when_idle"};
  *env = RdzvEnv{};
  for (char *const *v = theirs; *v; v++) rdzv_env_put(env, *v);
  for (char **v = environ; *v; v++) {
    bool take = false, keep = false;
    for (const char *prefix : ours) take = take || !strncmp(*v, prefix, strlen(prefix));
    for (const char *prefix : kept) keep = keep || !strncmp(*v, prefix, strlen(prefix));
    if (take && !keep) rdzv_env_put(env, *v);
  }
  rdzv_env_set(env, "TRAIN_GPT_FSDP_RDZV", job);
  snprintf(number, sizeof number, "%d", seat);
  rdzv_env_set(env, "TRAIN_GPT_FSDP_SEAT", number);
}
// A rank that mpirun has started: connects to its place, takes what belongs there and becomes the program. The
// connection stays open, so that its place knows how long it lives. Returns an exit code where that is not possible.
static inline int rdzv_rank_main(const char *job) {
  const int64_t rank = rdzv_number(getenv("OMPI_COMM_WORLD_RANK"));
  const NetAddress a = rdzv_seat_address(job, rank);
  const int fd = net_connect(&a, 5000);
  RdzvReader size = {NULL, 8, false};
  uint8_t length[8];
  if (fd < 0) {
    rdzv_say("rank %lld has no place on this host: %s", (long long)rank, strerror(errno));
    return 1;
  }
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
  size.p = length;
  const bool begun = rdzv_read_all(fd, length, sizeof length);
  const int64_t bytes = begun ? rdzv_take_number(&size) : 0;
  uint8_t *all = bytes > 0 && bytes < RDZV_RANK_NEEDS_MAX ? (uint8_t *)malloc((size_t)bytes) : NULL;
  if (!all || !rdzv_read_all(fd, all, (size_t)bytes)) {
    rdzv_say("rank %lld: the process whose place it takes has gone", (long long)rank);
    return 1;
  }
  RdzvReader r = {all, (size_t)bytes, false};
  size_t n = 0, cores_bytes = 0;
  const char *here = (const char *)rdzv_take_block(&r, &n);
  const cpu_set_t *cores = (const cpu_set_t *)rdzv_take_block(&r, &cores_bytes);
  char **argv = rdzv_take_strings(&r), **theirs = rdzv_take_strings(&r);
  RdzvEnv env;
  char program[4096];
  const ssize_t length_of_path = readlink("/proc/self/exe", program, sizeof program - 1);
  if (!here || !cores || !argv || !theirs || !argv[0] || length_of_path < 0) return 1;
  program[length_of_path] = 0;
  rdzv_rank_env(&env, theirs, job, fd);
  if (here[0] && chdir(here)) rdzv_say("rank %lld: cannot enter %s: %s", (long long)rank, here, strerror(errno));
  cpu_set_t *mask = (cpu_set_t *)malloc(cores_bytes + 1);        // aligned
  memcpy(mask, cores, cores_bytes);
  if (cores_bytes && sched_setaffinity(0, cores_bytes, mask))
    rdzv_say("rank %lld: cannot take the cores of the process whose place it takes: %s", (long long)rank,
             strerror(errno));
  fcntl(fd, F_SETFD, 0);                         // stays open
  execve(program, argv, env.entry);
  rdzv_say("rank %lld: cannot start %s: %s", (long long)rank, program, strerror(errno));
  return 1;
}

// mpirun's remote agent: AGENT rdzv_hand JOB HOST WORDS... Hands host and daemon to host 0's process, which hands the
// daemon on. 0: it is on its way.
static inline int rdzv_hand_main(int count, char *const *words, const char *job) {
  const NetAddress a = rdzv_hand_address(job);
  RdzvWords daemon;
  if (count < 2 || !rdzv_daemon_from(&daemon, count - 1, words + 1)) {
    rdzv_say("mpirun's command for %s has no daemon of Open MPI 4 or 5 in it", count ? words[0] : "a host");
    return 1;
  }
  const int fd = net_connect(&a, 5000);
  RdzvBytes b = {};
  rdzv_add_text(&b, words[0]);
  rdzv_words_write(&b, &daemon);
  rdzv_words_free(&daemon);
  if (fd < 0) {
    rdzv_say("host 0's process has gone: %s", strerror(errno));
    return 1;
  }
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
  char answer = 1;
  for (size_t at = 0; at < b.n;) {
    const ssize_t n = send(fd, b.p + at, b.n - at, MSG_NOSIGNAL);
    if (n <= 0) return 1;
    at += (size_t)n;
  }
  shutdown(fd, SHUT_WR);
  return rdzv_read_all(fd, &answer, 1) ? answer : 1;
}
