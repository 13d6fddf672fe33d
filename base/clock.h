// clock.h: the clocks that everything reads.
#pragma once
#include <stdint.h>
#include <time.h>

static inline int64_t clock_ns(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
// From some instant on, the same one for all processes of this machine; never set back.
static inline int64_t now_ns() { return clock_ns(CLOCK_MONOTONIC); }
static inline double now_ms() { return (double)now_ns() * 1e-6; }
// The clock on the wall, which may be set: since 1970.
static inline int64_t wall_ns() { return clock_ns(CLOCK_REALTIME); }
