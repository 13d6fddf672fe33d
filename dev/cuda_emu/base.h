// base.h: how the emulation reports failures, and the source of the adversary's random numbers.
#pragma once
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The kernels' families are objects, which share the emulation's functions and variables. EMU_ONCE: what a program has
// once is in this object.
#define EMU(T) inline T
#if !defined(ONE_FAMILY) || FAMILY_device
#define EMU_ONCE 1
#endif

// What is running: the op at the head of a stream, "" for the host.
inline const char *emu_running = "";
void emu_print_thread();

// Reports an operation that is impossible on a GPU (what and where), and ends the process with a signal.
__attribute__((format(printf, 1, 2), noreturn)) inline void emu_fail(const char *fmt, ...);

// ---- adversary
// The seed determines what CUDA leaves open: which stream runs next, where blocks start, which lane is first.
inline uint64_t emu_seed_now = [] {
  const char *s = getenv("EMU_SEED");
  return s ? strtoull(s, NULL, 10) : 1ull;
}();
inline uint64_t emu_random_state = emu_seed_now * 0x9e3779b97f4a7c15u + 1;

EMU(uint64_t) emu_random64() {                   // xorshift64 (Marsaglia 2003)
  emu_random_state ^= emu_random_state << 13;
  emu_random_state ^= emu_random_state >> 7;
  emu_random_state ^= emu_random_state << 17;
  return emu_random_state;
}
EMU(unsigned) emu_random(unsigned n) { return (unsigned)((emu_random64() >> 33) % n); }

inline void emu_fail(const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  fflush(stdout);
  fprintf(stderr, "cuda_emu: ");
  vfprintf(stderr, fmt, ap);
  va_end(ap);
  if (*emu_running) fprintf(stderr, "; in %s", emu_running);
  emu_print_thread();
  fprintf(stderr, "; seed %llu\n", (unsigned long long)emu_seed_now);
  fflush(stderr);
  abort();
}
