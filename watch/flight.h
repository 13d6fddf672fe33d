// flight.h: the flight recorder: what this process did last, for the report of a run that hangs. Two rings of fixed
// size, one of ops and one of everything else (steps, phases, stages, collectives, waits), always on: an entry is a
// time stamp and a few stores. The main thread writes; the heartbeat thread reads the rings when it must
// (flight_file.h).
//
// A step's collectives (gathers, reductions, exchanges, barriers) are numbered from 1 in the order in which the host
// starts them, which is the same on all ranks. On a GPU the host only enqueues a collective then; the device starts it
// when its stream comes to it.
#pragma once
#include "watch.h"

Flight flight = {{}, {}, 0, MICROBATCH_NONE, STAGE_NONE, NULL, 0, {NULL, 0, STAGE_NONE}, false};

// All of these are the main thread's.
static inline void flight_add(FlightRing *r, FlightKind kind, const char *what, int stage, int number) {
  if (flight.dry) return;
  const uint64_t count = WORD_GET(&r->count);
  FlightEntry *e = &r->entry[count % FLIGHT_ENTRIES];
  __atomic_thread_fence(__ATOMIC_RELEASE);       // a reader that sees a part of this entry sees the count before it
  *e = FlightEntry{now_ns(), flight.step, what, number, stage, (int16_t)kind, (int16_t)flight.microbatch};
  __atomic_store_n(&r->count, count + 1, __ATOMIC_RELEASE);      // a reader that sees this count sees the whole entry
}
void flight_op(const char *op) {
  WORD_SET(&flight.op, op);
  flight_add(&flight.ops, FLIGHT_OP, op, flight.stage, 0);
}
static inline void flight_step(int64_t step) {
  WORD_SET(&flight.step, step);
  WORD_SET(&flight.begun, 0);
  flight_add(&flight.events, FLIGHT_STEP, NULL, STAGE_NONE, 0);
}
static inline void flight_microbatch(int microbatch) { WORD_SET(&flight.microbatch, microbatch); }
FlightCollective flight_begin(const char *what, int stage) {
  const int32_t number = flight.begun + 1;
  WORD_SET(&flight.begun, number);
  flight_add(&flight.events, FLIGHT_BEGIN, what, stage, number);
  return FlightCollective{what, number, stage};
}
void flight_end(FlightCollective c) {
  if (c.number) flight_add(&flight.events, FLIGHT_END, c.what, c.stage, c.number);
}
void flight_in(FlightCollective c) {
  WORD_SET(&flight.in.what, c.what);
  WORD_SET(&flight.in.stage, c.stage);
  WORD_SET(&flight.in.number, c.number);
}

// Reads entry i, counted from the first that was ever written. False if it was overwritten. Any thread.
static inline bool flight_get(const FlightRing *r, uint64_t i, FlightEntry *e) {
  *e = r->entry[i % FLIGHT_ENTRIES];
  __atomic_thread_fence(__ATOMIC_ACQUIRE);
  return WORD_GET(&r->count) - i < FLIGHT_ENTRIES;               // not even started to be written again
}
