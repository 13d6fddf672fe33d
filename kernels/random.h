// random.h: random numbers that depend only on where they are used, never on rank, thread or order.
//
// Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3"): ten rounds of two
// 32x32->64 bit multiplications turn a 128-bit counter under a 64-bit key into four independent 32-bit words.
//
//   philox4x32        four words of one counter                                          (everywhere)
//   philox16          the words of four neighbouring counters, in order                  (CPU sections)
//   philox_words      words of n neighbouring elements (flat.cuh)                        (both devices' sections)
//   dropped           n neighbouring elements after dropout                              (both devices' sections)
//
// Key: the seed. Counter (x, y, z, w):
//   dropout       x = element / 4, y = sample, z = step, w = tensor; word element % 4    element < 2^34, w < 2^32 - 3
//   normal_fill   x, y = (element / 4) low and high, z = tensor, w = 2^32 - 1            (elementwise.cuh)
//   moments       x = element / 4, y = parameter, z = step, w = 2^32 - 3; word element % 4       (optimizer.cuh)
//   sampling      x = number of the token sampled, w = 2^32 - 2                          (trainer)
#pragma once
#include "ops.h"

struct Philox { uint32_t x, y, z, w; };
enum : uint32_t { RANDOM_MOMENTS = UINT32_MAX - 2 };             // w of the counters that round moments

HD Philox philox4x32(uint64_t seed, Philox c) {
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
  for (int round = 0; round < 10; round++) {
    uint64_t a = (uint64_t)0xD2511F53u * c.x, b = (uint64_t)0xCD9E8D57u * c.z;
    Philox next = {(uint32_t)(b >> 32) ^ c.y ^ k0, (uint32_t)b, (uint32_t)(a >> 32) ^ c.w ^ k1, (uint32_t)a};
    c = next;
    k0 += 0x9E3779B9u;                           // Weyl sequences: the golden ratio and sqrt(3) - 1
    k1 += 0xBB67AE85u;
  }
  return c;
}

// An element is dropped iff its word is below p 2^32, so the probability is exact to 2^-32; p < 1.
HD uint32_t dropout_threshold(float p) { return (uint32_t)((double)p * 4294967296.0); }

#if PART_CPU
#include "kernels/cpu/vec.h"

// Four counters side by side, each as four neighbouring 32-bit lanes x y z w. A round multiplies the even lanes, so one
// widening multiplication, a reversal within the counter and two xors are the whole round of four counters.
INLINE vi philox_round(vi s, vi factors, vi key) {
  return vi_xor(vi_products4(s, factors), vi_xor(vi_odds_down(s), key));
}

// The sixteen words of counters (x, ...), (x+1, ...), (x+2, ...), (x+3, ...), in order; x wraps at 2^32.
INLINE vi philox16(uint64_t seed, Philox c) {
  alignas(64) static const uint32_t ahead[16] = {0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0};
  const vi factors = vi_set4(0xD2511F53u, 0, 0xCD9E8D57u, 0), weyl = vi_set4(0x9E3779B9u, 0, 0xBB67AE85u, 0);
  vi s = vi_add(vi_set4(c.x, c.y, c.z, c.w), vi_load(ahead));
  vi key = vi_set4((uint32_t)seed, 0, (uint32_t)(seed >> 32), 0);
  for (int round = 0; round < 10; round++, key = vi_add(key, weyl)) s = philox_round(s, factors, key);
  return s;
}

// Words of elements element .. element+15: word element % 4 of counter (element / 4, c.y, c.z, c.w). An element that is
// a multiple of 4 costs half the time.
template <bool = false> INLINE vi philox_words(uint64_t seed, Philox c, int64_t element, int64_t = VF) {
  c.x = (uint32_t)(element >> 2);
  const vi words = philox16(seed, c);
  if (!(element & 3)) return words;
  uint32_t both[32];
  vi_store(both, words);
  c.x += 4;
  vi_store(both + 16, philox16(seed, c));
  return vi_load(both + (element & 3));
}
#endif

#if PART_CUDA
#include "kernels/cuda/lane.cuh"
// Words of W elements from `element` on. WHOLE: W is 1, or element a multiple of 4.
template <bool WHOLE = false, int W>
INLINE LaneBits<W> philox_words(uint64_t seed, Philox c, int64_t element, LaneCount<W>) {
  LaneBits<W> r;
  Philox four = {};
  UNROLL for (int i = 0; i < W; i++) {
    const int word = (int)((WHOLE && W > 1 ? 0 : element) + i) & 3;
    c.x = (uint32_t)((element + i) >> 2);
    if (!i || !word) four = philox4x32(seed, c);
    r.x[i] = (vi)(word == 0 ? four.x : word == 1 ? four.y : word == 2 ? four.z : four.w);
  }
  return r;
}
#endif

#if PART_CPU || PART_CUDA
// A Dropout with the values that the host computes before the op runs, which reads the step when it runs.
struct DropKey { uint64_t seed; int64_t sample0; uint32_t tensor, threshold; float kept; bool on; };
static inline DropKey drop_key(Dropout d) {
  return DropKey{d.seed, d.sample0, d.tensor, dropout_threshold(d.p), 1.0f / (1.0f - d.p), d.p > 0.0f};
}
INLINE uint32_t drop_step(const DropKey *k, const StepState *state) { return k->on ? state->in.step : 0; }
// Of a word: whether its element is dropped, and what dropout multiplies the element by.
INLINE vm drop_here(vi word, uint32_t threshold) { return vi_below(word, threshold); }
INLINE vf drop_factor(vi word, uint32_t threshold, float kept) {
  return vf_select(drop_here(word, threshold), vf_set1(0.0f), vf_set1(kept));
}
// x, elements `element` .. `element` + n - 1 of a sample, after dropout; for CUDA a multiple of 4, or n is 1.
template <class V, class N>
INLINE V dropped(V x, const DropKey *k, uint32_t step, int64_t sample, int64_t element, N n) {
  const auto words = philox_words<true>(k->seed, Philox{0, (uint32_t)sample, step, k->tensor}, element, n);
  each(n, [k](vf &y, vi word) LANES_EACH { y = vf_mul(y, drop_factor(word, k->threshold, k->kept)); }, x, words);
  return x;
}
#endif
