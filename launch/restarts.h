// restarts.h: --restarts K: a run that ended without being asked to starts again from its newest checkpoint, at most K
// times.
//
// A process that crashed cannot start itself again, so the run is a child of a process that only watches it: without
// MPI, threads or GPU. The parent passes signals on to the run, and exits with the run's exit code.
//
// A run is started again if a signal killed it (a crash, the kernel out of memory), or after exit codes 1 and 4 (a
// fault, a rank lost or stuck). Not so after a wrong request, a missing file or a loss that is not finite, which would
// come again, nor after three starts in a row without a new checkpoint.
//
// Ranks that rendezvous by --rdzv are started again by host 0 (launch/restart_rules.h); functions of this file tell
// host 0 what it must know. Ranks of an MPI launcher end with it, and only its user can start them again: --restarts is
// rejected there, with the shell loop to type.
#pragma once
#include "restart_rules.h"
#include <sys/mman.h>

// Memory shared by a run and its watching parent. step: the last step done; saved: the last step that has a checkpoint
// of this run, -1: none; ckpt: the directory of checkpoints, which has only this run's; "": the run has not saved yet.
struct RestartsShared { int64_t step, saved; char ckpt[4096]; };
static RestartsShared restarts_alone = {0, -1, ""}, *restarts_shared = &restarts_alone;
static int restarts_seat = -1;                   // of a rank of a rendezvous: the connection to the process it replaces
static bool restarts_first;                      // this is rank 0
static inline void restarts_tell(int64_t kind, int64_t a, int64_t b) {
  const RdzvNote note = {kind, a, b};
  if (restarts_seat >= 0 && send(restarts_seat, &note, sizeof note, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) return;
}
void restarts_died(int rank) {
  if (restarts_first) restarts_tell(NOTE_STEP, WORD_GET(&flight.step) - 1, 0);
  restarts_tell(NOTE_DIED, rank, 0);
}
// Reports the exit code, at exit or the end of main; a rank that is killed reports none.
static inline void restarts_ended(int code, void *) { restarts_tell(NOTE_END, code, 0); }
void restarts_open() {
  const char *seat = getenv("TRAIN_GPT_FSDP_RDZV") ? getenv("TRAIN_GPT_FSDP_SEAT") : NULL;
  const char *rank = getenv("OMPI_COMM_WORLD_RANK");
  restarts_seat = seat ? (int)rdzv_number(seat) : -1;
  if (restarts_seat < 0) return;
  fcntl(restarts_seat, F_SETFD, FD_CLOEXEC);
  restarts_first = rank && !strcmp(rank, "0");
  if (restarts_first) on_exit(restarts_ended, NULL);
  const char *job = getenv("PMIX_NAMESPACE");    // of Open MPI 4; 5 has a text there (restarts_job)
  if (job) restarts_tell(NOTE_JOB, (int64_t)strtoull(job, NULL, 10), 0);
}
// The number of the MPI job, from /proc/self/maps: it is in the name of a rank's shared memory,
// sm_segment.HOST.USER.JOB.RANK; 0: there is none. Open MPI 5 has it nowhere else.
static inline int64_t restarts_job(const char *maps) {
  char line[1024];
  uint64_t job = 0;
  FILE *f = fopen(maps, "r");
  while (f && !job && fgets(line, sizeof line, f)) {
    char *name = strstr(line, "/sm_segment."), *rank = name ? strrchr(name, '.') : NULL;
    if (rank) *rank = 0;
    const char *number = rank ? strrchr(name, '.') : NULL;
    if (number) job = strtoull(number + 1, NULL, 16);
  }
  if (f) fclose(f);
  return (int64_t)job;
}
void restarts_batch(int64_t sequences, int64_t batch) {
  const int64_t job = restarts_seat >= 0 ? restarts_job("/proc/self/maps") : 0;
  if (job) restarts_tell(NOTE_JOB, job, 0);
  if (restarts_first) restarts_tell(NOTE_BATCH, sequences, batch);
}
void restarts_step(int64_t step) {
  static double told_ms = -1e9;
  __atomic_store_n(&restarts_shared->step, step, __ATOMIC_RELAXED);
  if (!restarts_first || now_ms() - told_ms < 250) return;
  told_ms = now_ms();
  restarts_tell(NOTE_STEP, step, 0);
}
void restarts_saved(int64_t step) {
  __atomic_store_n(&restarts_shared->saved, step, __ATOMIC_RELAXED);
  if (restarts_first) restarts_tell(NOTE_STEP, step, 0), restarts_tell(NOTE_SAVED, step, 0);
}
void restarts_ours(const char *ckpt) {
  snprintf(restarts_shared->ckpt, sizeof restarts_shared->ckpt, "%s", ckpt);
  if (restarts_first) restarts_tell(NOTE_OURS, 0, 0);
}

static volatile sig_atomic_t restarts_child;     // its PID; 0: none
// A terminal's Ctrl-C reaches the child by itself; a second one would end it at once.
static inline void restarts_pass_on(int signal, siginfo_t *from, void *) {
  if (restarts_child && from->si_code <= 0) kill((pid_t)restarts_child, signal);
}
// The exit code for a child's wait status.
static inline int restarts_code(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
// Notes a checkpoint that got its name right before the run was killed, so that the run could not report it.
static inline void restarts_find() {
  RestartsShared *s = restarts_shared;
  const int64_t newest = s->ckpt[0] ? restart_newest(s->ckpt) : -1;
  if (newest > s->saved) s->saved = newest;
  if (newest > s->step) s->step = newest;
}
// Prints the warning before start `number`. fruitless: starts in a row that reached no new checkpoint. False: there are
// too many of these, and no further start.
static inline bool restarts_say(const RestartsAsk *ask, int status, int64_t number, int64_t fruitless) {
  const RestartsShared *s = restarts_shared;
  char ended[64], again[64], waits[40] = "", from[256] = "step 0";
  if (WIFEXITED(status)) snprintf(ended, sizeof ended, "ended with exit code %d", WEXITSTATUS(status));
  else snprintf(ended, sizeof ended, "was killed by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
  if (s->saved >= 0)
    snprintf(from, sizeof from, "the checkpoint of step %lld, %s", (long long)s->saved,
             steps_again(again, sizeof again, s->step - s->saved));
  else if (ask->resume[0]) snprintf(from, sizeof from, "--resume %.200s", ask->resume);
  if (fruitless >= RDZV_FRUITLESS_MAX) {
    say_error("warning: the run %s after step %lld; it is not started again: %d starts in a row reached no new "
              "checkpoint\n", ended, (long long)s->step, RDZV_FRUITLESS_MAX);
    return false;
  }
  if (fruitless) snprintf(waits, sizeof waits, " in %.0f s", restart_pause_s(fruitless));
  say_error("warning: the run %s after step %lld; it starts again%s (%lld of %lld) from %s\n", ended,
            (long long)s->step, waits, (long long)number, (long long)ask->most, from);
  return true;
}
// Waits before a start. One of the signals, which are blocked, ends the wait, and is passed on to the run when it runs.
static inline void restarts_pause(double seconds, const sigset_t *signals) {
  const timespec t = {(time_t)seconds, (long)((seconds - floor(seconds)) * 1e9)};
  const int s = seconds > 0 ? sigtimedwait(signals, NULL, &t) : -1;
  if (s > 0) kill(getpid(), s);
}
bool restarts_supervise(const RestartsAsk *ask) {
  static const int passed[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};
  struct sigaction before[4], pass = {};
  void *shared = mmap(NULL, sizeof(RestartsShared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) die_missing("--restarts: no memory: %s", strerror(errno));
  restarts_shared = (RestartsShared *)shared;
  *restarts_shared = restarts_alone;
  pass.sa_sigaction = restarts_pass_on;
  pass.sa_flags = SA_SIGINFO | SA_RESTART;
  sigset_t some, mask;
  sigemptyset(&some);
  for (int s : passed) sigaddset(&some, s);
  sigprocmask(SIG_BLOCK, NULL, &mask);
  for (int64_t starts = 0, fruitless = 0;; starts++) {
    int status = 0;
    const int64_t saved_before = restarts_shared->saved;
    sigprocmask(SIG_BLOCK, &some, NULL);         // one that comes now is the child's
    restarts_pause(restart_pause_s(fruitless), &some);
    fflush(NULL);
    const pid_t parent = getpid(), child = fork();
    if (child < 0) die_missing("--restarts: the run cannot be started: %s", strerror(errno));
    if (!child) {
      prctl(PR_SET_PDEATHSIG, SIGTERM);          // nobody is left who would start it again
      if (getppid() != parent) _exit(EXIT_STOPPED);              // it went before that
      for (int i = 0; i < 4 && starts; i++) sigaction(passed[i], &before[i], NULL);
      sigprocmask(SIG_SETMASK, &mask, NULL);
      return restarts_shared->saved >= 0;
    }
    restarts_child = child;
    for (int i = 0; i < 4 && !starts; i++) {
      sigaction(passed[i], NULL, &before[i]);
      if (before[i].sa_handler != SIG_IGN) sigaction(passed[i], &pass, NULL);  // nohup: stays ignored
    }
    sigprocmask(SIG_SETMASK, &mask, NULL);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    restarts_child = 0;
    const int code = restarts_code(status);
    if (!restart_is_worth(code) || starts == ask->most) exit(code);
    restarts_find();
    fruitless = restarts_shared->saved > saved_before ? 0 : fruitless + 1;
    if (!restarts_say(ask, status, starts + 1, fruitless)) exit(code);
    rdzv_keep_flights(ask->out, starts + 1);
  }
}
