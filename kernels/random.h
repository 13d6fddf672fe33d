// random.h: random numbers that depend only on where they are used, never on rank, thread or order.
//
// Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3"): ten rounds of two
// 32x32->64 bit multiplications turn a 128-bit counter under a 64-bit key into four independent 32-bit words.
//
//   philox4x32        four words of one counter                                          (everywhere)
//   dropout_scale     1/(1-p) where element j of a sample is kept, else 0                (everywhere)
//   philox16          the words of four neighbouring counters, in order                  (CPU sections)
//   philox_firsts, philox_seconds   of every pair of words, the first or second in both lanes
//   dropout_scale16   dropout_scale of 16 neighbouring elements, any alignment           (CPU sections)
//
// Key: the seed. Counter (x, y, z, w):
//   dropout       x = element / 4, y = sample, z = step, w = tensor; word element % 4    element < 2^34, w < 2^32 - 2
//   normal_fill   x, y = (element / 4) low and high, z = tensor, w = 2^32 - 1            (elementwise.cuh)
//   sampling      x = number of the token drawn, w = 2^32 - 2                            (trainer)
#pragma once
#include "ops.h"

struct Philox { uint32_t x, y, z, w; };

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
#ifdef __AVX512F__
INLINE vi philox_lanes(uint32_t x, uint32_t y, uint32_t z, uint32_t w) {      // the same in each of the four counters
  return _mm512_set4_epi32((int)w, (int)z, (int)y, (int)x);
}
INLINE vi philox_round(vi s, vi factors, vi key) {
  vi product = _mm512_shuffle_epi32(_mm512_mul_epu32(s, factors), (_MM_PERM_ENUM)0x1B);
  return vi_xor(product, vi_xor(_mm512_srli_epi64(s, 32), key));
}
INLINE vi philox_firsts(vi w) { return _mm512_shuffle_epi32(w, (_MM_PERM_ENUM)0xA0); }   // of each pair, to both lanes
INLINE vi philox_seconds(vi w) { return _mm512_shuffle_epi32(w, (_MM_PERM_ENUM)0xF5); }
INLINE vm philox_below(vi words, uint32_t threshold) { return _mm512_cmplt_epu32_mask(words, vi_set1((int)threshold)); }
#else
INLINE vi philox_lanes(uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  __m256i one = _mm256_set_epi32((int)w, (int)z, (int)y, (int)x, (int)w, (int)z, (int)y, (int)x);
  VF_BOTH(vi, one, one);
}
INLINE __m256i philox_half_round(__m256i s, __m256i factors, __m256i key) {
  __m256i product = _mm256_shuffle_epi32(_mm256_mul_epu32(s, factors), 0x1B);
  return _mm256_xor_si256(product, _mm256_xor_si256(_mm256_srli_epi64(s, 32), key));
}
INLINE vi philox_round(vi s, vi factors, vi key) {
  VF_BOTH(vi, philox_half_round(s.a, factors.a, key.a), philox_half_round(s.b, factors.b, key.b));
}
INLINE vi philox_firsts(vi w) { VF_BOTH(vi, _mm256_shuffle_epi32(w.a, 0xA0), _mm256_shuffle_epi32(w.b, 0xA0)); }
INLINE vi philox_seconds(vi w) { VF_BOTH(vi, _mm256_shuffle_epi32(w.a, 0xF5), _mm256_shuffle_epi32(w.b, 0xF5)); }
INLINE vm philox_below(vi words, uint32_t threshold) {                        // unsigned, by the signed comparison
  const vi flip = vi_set1(INT32_MIN);
  return vi_gt(vi_xor(vi_set1((int)threshold), flip), vi_xor(words, flip));
}
#endif

// The sixteen words of counters (x, ...), (x+1, ...), (x+2, ...), (x+3, ...), in order; x wraps at 2^32.
INLINE vi philox16(uint64_t seed, Philox c) {
  alignas(64) static const uint32_t ahead[16] = {0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0};
  const vi factors = philox_lanes(0xD2511F53u, 0, 0xCD9E8D57u, 0), weyl = philox_lanes(0x9E3779B9u, 0, 0xBB67AE85u, 0);
  vi s = vi_add(philox_lanes(c.x, c.y, c.z, c.w), vi_load(ahead));
  vi key = philox_lanes((uint32_t)seed, 0, (uint32_t)(seed >> 32), 0);
  for (int round = 0; round < 10; round++, key = vi_add(key, weyl)) s = philox_round(s, factors, key);
  return s;
}

// dropout_scale of elements element .. element+15 of a sample. An element that is a multiple of 4 costs half the time.
INLINE vf dropout_scale16(const Dropout *d, int64_t sample, int64_t element) {
  Philox c = {(uint32_t)(element >> 2), (uint32_t)sample, d->step, d->tensor};
  vi words = philox16(d->seed, c);
  if (element & 3) {
    uint32_t both[32];
    vi_store(both, words);
    c.x += 4;
    vi_store(both + 16, philox16(d->seed, c));
    words = vi_load(both + (element & 3));
  }
  return vf_select(philox_below(words, dropout_threshold(d->p)), vf_zero(), vf_set1(1.0f / (1.0f - d->p)));
}
#endif
