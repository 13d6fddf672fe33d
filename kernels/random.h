// random.h: random numbers that depend only on where they are used, never on rank, thread or order.
//
// Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3"): ten rounds of two
// 32x32->64 bit multiplications turn a 128-bit counter under a 64-bit key into four independent 32-bit words.
//
//   philox4x32        four words of one counter                                          (everywhere)
//   dropout_scale     1/(1-p) where element j of a sample is kept, else 0                (everywhere)
//   philox16          the words of four neighbouring counters, in order                  (CPU sections)
//   philox_words      words of up to 16 neighbouring elements; of a CUDA thread's: lane.cuh
//   dropout_scale16   dropout_scale of 16 neighbouring elements, any alignment           (CPU sections)
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

// The factor of element `element` of global sample `sample` (see Dropout in ops.h): 1/(1-p) if kept, 0 if dropped.
HD float dropout_scale(const Dropout *d, int64_t sample, int64_t element) {
  Philox c = {(uint32_t)(element >> 2), (uint32_t)sample, d->step, d->tensor};
  Philox r = philox4x32(d->seed, c);
  uint32_t word = (element & 3) == 0 ? r.x : (element & 3) == 1 ? r.y : (element & 3) == 2 ? r.z : r.w;
  return word < dropout_threshold(d->p) ? 0.0f : 1.0f / (1.0f - d->p);
}

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
INLINE vi philox_words(uint64_t seed, Philox c, int64_t element, int64_t = VF) {
  c.x = (uint32_t)(element >> 2);
  const vi words = philox16(seed, c);
  if (!(element & 3)) return words;
  uint32_t both[32];
  vi_store(both, words);
  c.x += 4;
  vi_store(both + 16, philox16(seed, c));
  return vi_load(both + (element & 3));
}
// dropout_scale of elements element .. element+15 of a sample.
INLINE vf dropout_scale16(const Dropout *d, int64_t sample, int64_t element) {
  const vi words = philox_words(d->seed, Philox{0, (uint32_t)sample, d->step, d->tensor}, element);
  return vf_select(vi_below(words, dropout_threshold(d->p)), vf_zero(), vf_set1(1.0f / (1.0f - d->p)));
}
#endif
