// clock.h: the clocks that everything reads.
#pragma once
#include "base.h"
#include <time.h>

static inline int64_t clock_ns(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
int64_t now_ns() { return clock_ns(CLOCK_MONOTONIC); }
int64_t wall_ns() { return clock_ns(CLOCK_REALTIME); }
