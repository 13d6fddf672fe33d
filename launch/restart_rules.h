// restart_rules.h: --restarts K for ranks that rendezvous by --rdzv: when they start again, how many, and from where.
// restarts.h, which watches a run that was started alone, follows the same rules.
//
// Host 0 decides. When a start has failed it tells all processes to connect again, and starts the ranks again with
// those that do, at most K times: each time with a new nonce, and for file:// a new token. It waits --restart_wait
// seconds for processes that do not come, then continues without them; a process that comes later is told to wait for
// the next start.
//
// A rank that died is not replaced: its process can run one rank fewer. A host that was out of reach, or a daemon or
// mpirun that was killed, loses no ranks if its process connects again. Of the ranks that are left, the largest number
// that divides the microbatches of a step runs, filling hosts in their order: gradients are summed by microbatch, so
// results do not depend on that number. Host 0's own process always keeps at least one rank; when that process dies the
// job ends.
//
// Every start but the first resumes from the newest whole checkpoint in OUT if this run has written one, else it starts
// as the first did. After a start that has reached no new checkpoint the next one waits, longer each time; after three
// such starts in a row there is no further one.
#pragma once
#include "rdzv_local.h"

// What host 0 remembers of a process from one start to the next. here: it took part in the last start. dead: how many
// of its ranks have died; first, ranks: its first rank and number of ranks in the last start. waits: a process with its
// number has connected since that start, and waits for the next.
struct RdzvPlace { bool here, waits; int64_t pid, dead, first, ranks; char host[65]; };
// start: the number of starts before this one; fruitless: how many of the last ones, in a row, have reached no new
// checkpoint. heard: what ranks reported, over all starts (died: in the last one only). job: the nonce of the last
// start; blames: its exit code is that of a start whose rank died; ended: how it ended, in words. first_world: number
// of ranks of the first start.
struct RestartState {
  int64_t most, wait_s, start, fruitless, first_world;
  RdzvHeard heard;
  char job[RDZV_JOB_BYTES], ended[160];
  bool blames;
  RdzvPlace *place;                              // [members]
};

// In words: how many steps a start from a checkpoint does again.
static inline const char *steps_again(char *to, size_t bytes, int64_t steps) {
  snprintf(to, bytes, "%lld step%s done again", (long long)steps, steps == 1 ? " is" : "s are");
  return to;
}
// Whether a start that ended with this exit code is worth another one. Not so: success, exit codes that would come
// again (a wrong request, something missing, a loss that is not finite), and runs that were ended by a user or
// scheduler (saved or stopped by a signal; killed by HUP, INT, QUIT, TERM).
static inline bool restart_is_worth(int code) {
  for (int ends : {0, 2, 3, 5, 85, 130, 128 + SIGHUP, 128 + SIGQUIT, 128 + SIGTERM}) if (code == ends) return false;
  return true;
}
enum { RDZV_FRUITLESS_MAX = 3 };
static double restart_first_pause_s = 5;      // tests wait less
// How long a start waits after `fruitless` starts in a row that reached no new checkpoint: 0, 5, 20 s.
static inline double restart_pause_s(int64_t fruitless) {
  double s = fruitless > 0 ? restart_first_pause_s : 0;
  for (int64_t i = 1; i < fruitless; i++) s *= 4;
  return s;
}
// The step of the newest checkpoint in a directory, -1: there is none. Checkpoints have such a name once they are
// whole; a run that is killed right then has told nobody.
static inline int64_t restart_newest(const char *ckpt) {
  int64_t newest = -1;
  directory_each(ckpt, [&](const char *name, const char *path) {
    const int64_t step = strncmp(name, "step_", 5) ? -1 : rdzv_number(name + 5);
    char inside[1400];
    snprintf(inside, sizeof inside, "%.1300s/trainer.json", path);
    if (step > newest && !access(inside, F_OK)) newest = step;
  });
  return newest;
}
// Whether mpirun's exit code may be that of a rank that died on its own: 4, or 128 + a signal.
static inline bool restart_blames_rank(int code) { return code == 4 || (code > 128 && code < 128 + 65); }
// The largest number of ranks, at most `most`, that divides the microbatches of a step.
static inline int64_t restart_ranks(int64_t microbatches, int64_t most) {
  int64_t n = most < microbatches ? most : microbatches;
  while (n > 1 && microbatches % n) n--;
  return n > 0 ? n : 1;
}
// Arguments for ranks: the process's own, then what the plan adds. `to` has room for argc + 7 words; `numbers` keeps
// the digits.
static inline int restart_words(char **to, char (*numbers)[24], int argc, char *const *argv, const RdzvPlan *q) {
  int n = 0;
  for (int i = 0; i < argc; i++) to[n++] = argv[i];
  if (q->resume) to[n++] = (char *)"--resume", to[n++] = (char *)"auto";
  const struct { const char *name; int64_t value; } numbers_[] = {{"--global_batch", q->sequences},
                                                                  {"--grad_accum", q->accum}};
  for (int i = 0; i < 2; i++) {
    if (!numbers_[i].value) continue;
    snprintf(numbers[i], sizeof numbers[i], "%lld", (long long)numbers_[i].value);
    to[n++] = (char *)numbers_[i].name, to[n++] = numbers[i];
  }
  to[n] = NULL;
  return n;
}
// Moves OUT/flight-*.json to OUT/lost-START. Hosts that share OUT all do this; each file moves once.
static inline void rdzv_keep_flights(const char *out, int64_t start) {
  directory_each(out, [&](const char *name, const char *from) {
    char to[1400];
    if (strncmp(name, "flight-", 7)) return;
    const int n = snprintf(to, sizeof to, "%.1000s/lost-%lld", out, (long long)start);
    mkdir(to, 0777);
    snprintf(to + n, sizeof to - (size_t)n, "/%.200s", name);
    rename(from, to);
  });
}
