// flight.h: what this process did last, for the report of a run that does not go on: the flight recorder. Two rings of
// fixed memory, one of ops and one of all else (steps, phases, stages, collectives, waits), always on: an entry is a
// time stamp and a few stores. The main thread writes; the heartbeat thread reads them whenever it must
// (flight_file.h).
//
// A step's collectives (gathers, reductions, exchanges, barriers) are numbered from 1 in the order in which they are
// begun, which is the same on all ranks. On a device they begin when its stream comes to them; the host has only
// enqueued them then.
#pragma once
#if PART_LAUNCH
#include "clock.h"
#include <stddef.h>

// X(identifier, word in files). `what` of an entry: the op; the phase; the kind of collective; what is waited for.
#define FLIGHT_KINDS(X) \
  X(FLIGHT_STEP, "step")       /* begins; what: NULL */ \
  X(FLIGHT_PHASE, "phase")     \
  X(FLIGHT_STAGE, "stage")     /* its weights are whole, its ops follow */ \
  X(FLIGHT_OP, "op")           /* was called */ \
  X(FLIGHT_BEGIN, "begin")     /* of a collective: this rank takes part from here on */ \
  X(FLIGHT_END, "end")         /* of a collective */ \
  X(FLIGHT_WAIT, "wait")       /* the main thread waits */ \
  X(FLIGHT_CAME, "came")       /* what it waited for is there */
#define X(id, word) id,
enum FlightKind { FLIGHT_KINDS(X) FLIGHT_KIND_COUNT };
#undef X
enum { FLIGHT_ENTRIES = 1024 };                  // of a ring: a power of two
enum { STAGE_NONE = -1, MICROBATCH_NONE = -1 };
struct FlightEntry {
  int64_t ns, step;                              // ns: CLOCK_MONOTONIC
  const char *what;                              // a string that lives on
  int32_t number, stage;                         // number: of a collective, else 0
  int16_t kind, microbatch;
};
struct FlightRing { uint64_t count; FlightEntry entry[FLIGHT_ENTRIES]; };      // count: of all that were ever written
// A collective of a step. number 0: none.
struct FlightCollective { const char *what; int32_t number, stage; };
struct Flight {
  FlightRing events, ops;
  // Where the main thread is. step 0: before the first. stage: 0 outside the blocks, 1 + l block l.
  int64_t step;
  int32_t microbatch, stage;
  const char *op;                                // called last; NULL: none in this phase
  int32_t begun;                                 // collectives of this step so far
  FlightCollective in;                           // the one that it cannot go on without; number 0: none
  bool dry;                                      // a dry run leaves nothing
};
static Flight flight = {{}, {}, 0, MICROBATCH_NONE, STAGE_NONE, NULL, 0, {NULL, 0, STAGE_NONE}, false};

// A word that another thread, or the device, reads or writes at the same time. Words that are set one after the other
// are seen so by who reads them in the opposite order.
#define WORD_SET(word, value) __atomic_store_n(word, value, __ATOMIC_RELEASE)
#define WORD_GET(word) __atomic_load_n(word, __ATOMIC_ACQUIRE)

// All of these are the main thread's.
static inline void flight_add(FlightRing *r, FlightKind kind, const char *what, int stage, int number) {
  if (flight.dry) return;
  const uint64_t count = WORD_GET(&r->count);
  FlightEntry *e = &r->entry[count % FLIGHT_ENTRIES];
  __atomic_thread_fence(__ATOMIC_RELEASE);       // whoever sees a part of this entry sees the count before it
  *e = FlightEntry{now_ns(), flight.step, what, number, stage, (int16_t)kind, (int16_t)flight.microbatch};
  __atomic_store_n(&r->count, count + 1, __ATOMIC_RELEASE);      // whoever reads this count sees the entry whole
}
static inline void flight_op(const char *op) {
  WORD_SET(&flight.op, op);
  flight_add(&flight.ops, FLIGHT_OP, op, flight.stage, 0);
}
static inline void flight_step(int64_t step) {
  WORD_SET(&flight.step, step);
  WORD_SET(&flight.begun, 0);
  flight_add(&flight.events, FLIGHT_STEP, NULL, STAGE_NONE, 0);
}
static inline void flight_microbatch(int microbatch) { WORD_SET(&flight.microbatch, microbatch); }
// Begins a collective, of a stage. Returns it, for flight_end.
static inline FlightCollective flight_begin(const char *what, int stage) {
  const int32_t number = flight.begun + 1;
  WORD_SET(&flight.begun, number);
  flight_add(&flight.events, FLIGHT_BEGIN, what, stage, number);
  return FlightCollective{what, number, stage};
}
static inline void flight_end(FlightCollective c) {
  if (c.number) flight_add(&flight.events, FLIGHT_END, c.what, c.stage, c.number);
}
// From here on, until the next call, the main thread cannot go on before c has ended.
static inline void flight_in(FlightCollective c) {
  WORD_SET(&flight.in.what, c.what);
  WORD_SET(&flight.in.stage, c.stage);
  WORD_SET(&flight.in.number, c.number);
}
static inline void flight_out() { WORD_SET(&flight.in.number, 0); }

// Entry i of all that were ever written. False if it is not there any more. Any thread.
static inline bool flight_get(const FlightRing *r, uint64_t i, FlightEntry *e) {
  *e = r->entry[i % FLIGHT_ENTRIES];
  __atomic_thread_fence(__ATOMIC_ACQUIRE);
  return WORD_GET(&r->count) - i < FLIGHT_ENTRIES;               // not even begun to be written again
}
#endif
