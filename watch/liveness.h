// liveness.h: what the main thread of a rank reports about itself, for the report about a run that hangs. heartbeats.h
// reads this, and ends such a run.
#pragma once
#include "flight.h"
#include <poll.h>
#include <sched.h>

LivenessWords liveness_words = {0, "start-up", NULL, NULL, STAGE_NONE, 0};

void liveness_wait(const char *what, const char *where, int stage) {
  if (WORD_GET(&liveness_words.what) != what)    // else it still waits for the same
    flight_add(&flight.events, FLIGHT_WAIT, what, stage, WORD_GET(&flight.in.number));
  WORD_SET(&liveness_words.where, where);
  WORD_SET(&liveness_words.what_stage, stage);
  WORD_SET(&liveness_words.what, what);
}
void liveness_arrived() {
  if (const char *what = WORD_GET(&liveness_words.what))
    flight_add(&flight.events, FLIGHT_CAME, what, WORD_GET(&liveness_words.what_stage), WORD_GET(&flight.in.number));
  WORD_SET(&liveness_words.what, (const char *)NULL);
  liveness_progress();
}
int liveness_after(int result) {
  liveness_arrived();
  return result;
}
void liveness_poll(const char *what) {
  if (what) liveness_wait(what, NULL, STAGE_NONE);
  else liveness_arrived();
}
void liveness_stage(int stage) {
  liveness_arrived();
  WORD_SET(&flight.stage, stage);
  WORD_SET(&flight.op, (const char *)NULL);
  if (stage != STAGE_NONE) flight_add(&flight.events, FLIGHT_STAGE, NULL, stage, 0);
}
void liveness_phase(const char *phase) {
  WORD_SET(&liveness_words.phase, phase);
  liveness_stage(STAGE_NONE);
  flight_add(&flight.events, FLIGHT_PHASE, phase, STAGE_NONE, 0);
}
void liveness_microbatch(int microbatch) { flight_microbatch(microbatch); }
void liveness_step(int64_t step) { flight_step(step); }
// Whether the main thread waits for a reader of its output, or for the user. A file always accepts data, so a disk that
// hangs does not count as a slow reader.
static inline bool watchdog_paused() {
  pollfd p = {WORD_GET(&liveness_words.prints) - 1, POLLOUT, 0};
  return p.fd == WATCHDOG_USER || (p.fd >= 0 && !poll(&p, 1, 0));
}
void liveness_pause(int *spins, const char *what, int stage) {
  enum { SPINS = 200 };
  if (*spins < SPINS) { ++*spins; processor_pause(); return; }
  liveness_wait(what, NULL, stage);
  if (*spins > SPINS) { usleep(20); return; }
  const double begun = now_ms();
  sched_yield();
  if (now_ms() - begun > 1) *spins = SPINS + 1;  // sleep until this wait is over
}

static inline int mark_code(uint32_t value) { return (int)(value & ((1u << MARK_BITS) - 1)); }
static inline int mark_number(uint32_t value) { return (int)(value >> MARK_BITS); }
