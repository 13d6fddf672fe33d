// norm.h: the exact norm of optimizer.cuh: what its limbs are, and the norm that they make.
//
// g is fp32, so g^2 (48 bits) is exact in fp64. Each square is rounded once, to the nearest multiple of 2^-110,
// independent of what it is added to. It is never halfway, because it is an odd number times an even power of two. The
// rest is integer arithmetic: limb j counts units of 2^(32 j - 110), so the order of additions, threads and ranks
// cannot matter. 13 limbs reach 2^306, past FLT_MAX^2 (2^256) times 2^49 elements; the last limb counts elements that
// are infinite or NaN. Squares up to 2^-111 (|g| <= 2^-55.5) count as 0: a billion of them would have added 2^-81 to a
// sum of squares. An element adds less than 2^32 to a limb, so 2^31 elements fit, in any number of calls: carries are
// brought up once per step, before the limbs of several ranks are added.
#pragma once
#include "ops.h"

enum { NORM_FLOOR_EXPONENT = -110, NORM_NONFINITE = 13 };       // NORM_LIMBS is in ops.h

// g^2 = square 2^(shift - 110), with what is below 2^-110 rounded. bits: those of |g|, which is finite.
struct NormSquare { uint64_t square; int shift; };
HD NormSquare norm_square(uint32_t bits) {
  const uint32_t exponent = bits >> 23, m = exponent ? (bits & 0x7fffffu) | 0x800000u : bits;
  const int shift = 2 * ((int)(exponent ? exponent : 1) - 150) - NORM_FLOOR_EXPONENT;
  const uint64_t square = (uint64_t)m * m;
  if (shift >= 0) return NormSquare{square, shift};
  return NormSquare{shift < -50 ? 0 : (square + ((uint64_t)1 << (-shift - 1))) >> -shift, 0};
}
// Brings every limb but the highest below 2^32, so that those of 2^31 ranks can be added element by element.
HD void norm_carry(int64_t *limbs) {
  for (int j = 0; j + 1 < NORM_NONFINITE; j++) {
    limbs[j + 1] += limbs[j] >> 32;
    limbs[j] &= 0xffffffff;
  }
}
// Adds the limbs of another rank, or unit, which may have carries left.
HD void norm_add_carried(int64_t *limbs, const int64_t *of) {
  int64_t carried[NORM_LIMBS];
  for (int j = 0; j < NORM_LIMBS; j++) carried[j] = of[j];
  norm_carry(carried);
  for (int j = 0; j < NORM_LIMBS; j++) limbs[j] += carried[j];
}
// sqrt of the total; NaN if any element was not finite.
HD double norm_finish(const int64_t *limbs) {
  if (limbs[NORM_NONFINITE] != 0) return NAN;
  uint32_t digit[NORM_LIMBS + 2] = {};
  int64_t carry = 0;
  int top = 0;
  for (int j = 0; j < NORM_NONFINITE + 2; j++) { // carries leave one 32-bit digit per limb
    carry += j < NORM_NONFINITE ? limbs[j] : 0;
    digit[j] = (uint32_t)carry;
    carry >>= 32;
    if (digit[j]) top = j;
  }
  // The three leading digits and a sticky bit for the rest determine the nearest fp64.
  uint64_t high = (uint64_t)digit[top] << 32 | (top >= 1 ? digit[top - 1] : 0), low = top >= 2 ? digit[top - 2] : 0;
  bool rest = false;
  for (int j = 0; j < top - 2; j++) rest |= digit[j] != 0;
  int shift = 0;                                 // brings the leading bit to the top of 64
  while (high && !(high << shift >> 63)) shift++;
  if (shift) high = high << shift | low >> (32 - shift), low = low << shift & 0xffffffffu;
  double total = (double)(high | (low != 0 || rest));
  return sqrt(ldexp(total, NORM_FLOOR_EXPONENT + 32 * (top - 1) - shift));
}
