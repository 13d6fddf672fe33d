// restart_rules.h: --restarts K: what is started again, with how many ranks, and from where. Of ranks that meet by
// --rdzv:
//
// restarts.h, which watches a run that was started alone, follows the same rules.
//
// Host 0 decides. After a start that was lost it tells all processes to come again, and meets those that do, at most K
// times: with a nonce of its own, and for file:// a token of its own. It waits --restart_wait seconds for those that do
// not come, then goes on without them; who comes later is asked to wait for the next start.
//
// A rank that died takes its place with it; a host that was out of reach, or a daemon or mpirun that was killed, takes
// none, if its process comes again. Of the ranks that are left as many run as divide the microbatches of a step,
// filling hosts in their order, since sums are by microbatch: the bits are those of any other number. Host 0's own
// process keeps at least one place, and when it dies all ends.
//
// Every start but the first goes on from the newest whole checkpoint in OUT if this run has written one, else from
// where the first began. A start after one that reached no new checkpoint waits, longer each time; after three such
// starts in a row there is no other.
#pragma once
#include "launch.h"
#include "rdzv_local.h"

// What host 0 remembers of a process from start to start. here: it took part in the last one. dead: ranks that died in
// its place; first, ranks: what it had in the last start. waits: one has come since that started.
struct RdzvPlace { bool here, waits; int64_t pid, dead, first, ranks; char host[65]; };
// start: starts before this one; fruitless: the last of these that reached no new checkpoint. heard: of all starts;
// died only of the last. job: the last one's nonce. blames: that start ended as one does whose rank died. first_world:
// ranks of the first start. ended: how the last one did.
struct RestartState {
  int64_t most, wait_s, start, fruitless, first_world;
  RdzvHeard heard;
  char job[RDZV_JOB_BYTES], ended[160];
  bool blames;
  RdzvPlace *place;                              // [members]
};

// What a start from a checkpoint costs, in words: the steps that are done again.
static inline const char *steps_again(char *to, size_t bytes, int64_t steps) {
  snprintf(to, bytes, "%lld step%s done again", (long long)steps, steps == 1 ? " is" : "s are");
  return to;
}
// Exit codes that would come again, or were asked for: 0, a wrong request, something missing, a loss that is not
// finite, saved and stopped by a signal; what users and schedulers send are HUP, INT, QUIT and TERM.
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
  char inside[1400];
  DIR *dir = opendir(ckpt);
  for (dirent *e; dir && (e = readdir(dir));) {
    const int64_t step = strncmp(e->d_name, "step_", 5) ? -1 : rdzv_number(e->d_name + 5);
    snprintf(inside, sizeof inside, "%.1000s/%.200s/trainer.json", ckpt, e->d_name);
    if (step > newest && !access(inside, F_OK)) newest = step;
  }
  if (dir) closedir(dir);
  return newest;
}
// Whether a rank's own death ends mpirun with this code: 4, or that of a signal.
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
  char from[1400], to[1400];
  DIR *dir = opendir(out);
  for (dirent *e; dir && (e = readdir(dir));) {
    if (strncmp(e->d_name, "flight-", 7)) continue;
    snprintf(to, sizeof to, "%.1000s/lost-%lld", out, (long long)start);
    mkdir(to, 0777);
    snprintf(to, sizeof to, "%.1000s/lost-%lld/%.200s", out, (long long)start, e->d_name);
    snprintf(from, sizeof from, "%.1000s/%.200s", out, e->d_name);
    rename(from, to);
  }
  if (dir) closedir(dir);
}
