// liveness.h: what the main thread of a rank says of itself, for the report about a run that hangs. heartbeats.h reads
// it, and ends such a run.
//
//   liveness_progress    the main thread, or one that works for it, has done something
//   liveness_step, liveness_phase, liveness_stage, liveness_microbatch
//                        where the main thread is: what a report says
//   liveness_wait, liveness_arrived                    it begins to wait for others; it has what it waited for
//   liveness_pause, liveness_poll                      one look of a waiting loop
//   watchdog_pause       it prints: while a terminal or pipe takes nothing that is no hang
#pragma once
#if PART_LAUNCH
#include "flight.h"
#include "processor.h"
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <unistd.h>

// Step, microbatch, stage, op and collective are the flight recorder's (flight.h).
struct alignas(64) LivenessWords {
  uint64_t progress;
  const char *phase, *what, *where;              // what it waits for, NULL: nothing; where: the function that waits
  int what_stage;                                // the stage that it waits for: see liveness_stage
  int prints;                                    // 1 + the descriptor to which it writes text now, or 0
};
static LivenessWords liveness_words = {0, "start-up", NULL, NULL, STAGE_NONE, 0};

// Any thread.
static inline void liveness_progress() { __atomic_fetch_add(&liveness_words.progress, 1, __ATOMIC_RELAXED); }
// The main thread waits for other ranks, or for a device that does: `what`, of a stage. Strings that live on.
static inline void liveness_wait(const char *what, const char *where, int stage) {
  if (WORD_GET(&liveness_words.what) != what)    // else it still waits for the same
    flight_add(&flight.events, FLIGHT_WAIT, what, stage, WORD_GET(&flight.in.number));
  WORD_SET(&liveness_words.where, where);
  WORD_SET(&liveness_words.what_stage, stage);
  WORD_SET(&liveness_words.what, what);
}
static inline void liveness_arrived() {
  if (const char *what = WORD_GET(&liveness_words.what))
    flight_add(&flight.events, FLIGHT_CAME, what, WORD_GET(&liveness_words.what_stage), WORD_GET(&flight.in.number));
  WORD_SET(&liveness_words.what, (const char *)NULL);
  liveness_progress();
}
// What a call of MPI has returned, now that it has.
static inline int liveness_after(int result) {
  liveness_arrived();
  return result;
}
void liveness_poll(const char *what) {
  if (what) liveness_wait(what, NULL, STAGE_NONE);
  else liveness_arrived();
}
// The main thread computes stage `stage` of the model: 0 outside the blocks, 1 + l block l.
static inline void liveness_stage(int stage) {
  liveness_arrived();
  WORD_SET(&flight.stage, stage);
  WORD_SET(&flight.op, (const char *)NULL);
  if (stage != STAGE_NONE) flight_add(&flight.events, FLIGHT_STAGE, NULL, stage, 0);
}
static inline void liveness_phase(const char *phase) {
  WORD_SET(&liveness_words.phase, phase);
  liveness_stage(STAGE_NONE);
  flight_add(&flight.events, FLIGHT_PHASE, phase, STAGE_NONE, 0);
}
// microbatch: of this rank in its step, or MICROBATCH_NONE.
static inline void liveness_microbatch(int microbatch) { flight_microbatch(microbatch); }
static inline void liveness_step(int64_t step) { flight_step(step); }
// The main thread writes text to `fd` from here on; -1: no longer. This is no progress: a save that hangs is reported
// on as well.
enum { WATCHDOG_USER = -3 };                      // in place of a descriptor: it waits for somebody to type
static inline void watchdog_pause(int fd) { WORD_SET(&liveness_words.prints, fd + 1); }
// Whether it waits for a reader now. A file always takes more: a disk that hangs is no slow reader.
static inline bool watchdog_paused() {
  pollfd p = {WORD_GET(&liveness_words.prints) - 1, POLLOUT, 0};
  return p.fd == WATCHDOG_USER || (p.fd >= 0 && !poll(&p, 1, 0));
}
// Between two looks at what has not come yet: lets another process run, since ranks may outnumber cores. Where a yield
// takes long it went to a busy program, and so would the next: Linux lets that run for a tick (4 ms). Whoever sleeps is
// served when it wakes.
static inline void liveness_pause(int *spins, const char *what, int stage) {
  enum { SPINS = 200 };
  if (*spins < SPINS) { ++*spins; processor_pause(); return; }
  liveness_wait(what, NULL, stage);
  if (*spins > SPINS) { usleep(20); return; }
  const double begun = now_ms();
  sched_yield();
  if (now_ms() - begun > 1) *spins = SPINS + 1;  // until this wait is over
}

// What a device tells of itself, one word a stream: a number that grows within a step, and what the stream came to. The
// number of a gather or a reduction is that of its collective; the model's counts passes: two a microbatch.
enum DeviceMark { MARK_MODEL, MARK_GATHER, MARK_REDUCE, MARKS };
enum { MARK_BACKWARD = 1, MARK_UPDATE = 2, MARK_EXCHANGE = 0xfff, MARK_BITS = 12 };  // of the others: 1 + stage
static inline uint32_t mark_value(uint32_t number, int code) { return number << MARK_BITS | (uint32_t)code; }
static inline int mark_code(uint32_t value) { return (int)(value & ((1u << MARK_BITS) - 1)); }
static inline int mark_number(uint32_t value) { return (int)(value >> MARK_BITS); }
#endif
