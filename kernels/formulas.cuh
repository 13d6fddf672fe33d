// formulas.cuh: functions of one number, one text for both devices: vf is sixteen numbers of a CPU (vec.h), one of a
// CUDA lane (lane.cuh). An operation rounds alike in both, and nothing is contracted (-ffp-contract=off,
// --fmad=false), so results have the same bits.
#pragma once
#if PART_CPU
#include "kernels/cpu/vec.h"
#elif PART_CUDA
#include "kernels/cuda/lane.cuh"
#endif

#if PART_CPU || PART_CUDA
// 2^f, |f| <= 1/2: minimax polynomial of degree 6 with p(0) = 1 (relative error 2e-9 before rounding).
INLINE vf vf_exp2_fraction(vf f) {
  vf p = vf_set1(0.0001535336196f);
  p = vf_fma(p, f, vf_set1(0.001339887385f));
  p = vf_fma(p, f, vf_set1(0.009618436918f));
  p = vf_fma(p, f, vf_set1(0.05550332367f));
  p = vf_fma(p, f, vf_set1(0.2402264774f));
  p = vf_fma(p, f, vf_set1(0.6931471825f));
  return vf_fma(p, f, vf_set1(1.0f));
}
// 2^x: x = n + f exactly. Adding 1.5 2^23 + 127 rounds x and leaves n + 127 in the lowest bits; a shift then puts it in
// the exponent's place. Error below 1 ulp. Results below 2^-126 are 0 (so 2^-inf = 0), above 2^127.5 Inf. e^x is
// 2^(x log2 e), with log2 e merged into the factor of x: 8 operations of the multipliers instead of the 11 of splitting
// x by ln 2, in 0.6 times the time on Zen 4.
INLINE vf vf_exp2(vf x) {
  const vm tiny = vf_lt(x, vf_set1(-126.0f));
  x = vf_min(vf_set1(128.0f), x);                // in this order a NaN stays a NaN
  const vf shift = vf_set1(12582912.0f + 127.0f), t = vf_add(x, shift), f = vf_sub(x, vf_sub(t, shift));
  return vf_zero_where(tiny, vf_mul(vf_exp2_fraction(f), vi_as_float(vi_shl(vf_bits(t), 23))));
}
#if PART_CPU
INLINE vf fast_exp2(vf x) { return vf_exp2(x); } // CUDA has an instruction (gpu.h)
#endif

// x, which is no NaN, rounded to bf16 by 16 random bits: away from 0 with the probability that what is cut off is of
// the distance of x's two neighbours in bf16, so that the mean is x (stochastic rounding).
INLINE vf vf_round_random(vf x, vi bits) {
  return vi_as_float(vi_and(vi_add(vf_bits(x), vi_and(bits, vi_set1(0xffff))), vi_set1(-65536)));
}

// ln x for normal positive x: x = 2^e m with m in [sqrt(1/2), sqrt(2)), polynomial in m - 1 (Cephes logf coefficients).
// The caller must avoid other arguments.
INLINE vf vf_log(vf x) {
  vi u = vf_bits(x);
  vi e = vi_sub(vi_shr(u, 23), vi_set1(126));
  vf m = vi_as_float(vi_or(vi_and(u, vi_set1(0x007fffff)), vi_set1(0x3f000000)));      // [0.5, 1)
  vm small = vf_lt(m, vf_set1(0.707106781f));
  vf fe = vf_sub(vi_to_float(e), vf_select(small, vf_set1(1.0f), vf_set1(0.0f)));
  vf t = vf_sub(vf_add(m, vf_select(small, m, vf_set1(0.0f))), vf_set1(1.0f));
  vf z = vf_mul(t, t), p = vf_set1(7.0376836292e-2f);
  p = vf_fma(p, t, vf_set1(-1.1514610310e-1f));
  p = vf_fma(p, t, vf_set1(1.1676998740e-1f));
  p = vf_fma(p, t, vf_set1(-1.2420140846e-1f));
  p = vf_fma(p, t, vf_set1(1.4249322787e-1f));
  p = vf_fma(p, t, vf_set1(-1.6668057665e-1f));
  p = vf_fma(p, t, vf_set1(2.0000714765e-1f));
  p = vf_fma(p, t, vf_set1(-2.4999993993e-1f));
  p = vf_fma(p, t, vf_set1(3.3333331174e-1f));
  p = vf_mul(vf_mul(p, t), z);
  p = vf_fma(fe, vf_set1(-2.12194440e-4f), p);
  p = vf_fma(z, vf_set1(-0.5f), p);
  return vf_fma(fe, vf_set1(0.693359375f), vf_add(t, p));
}

// ln of a sum of 2^x: from the largest x, and from the ln of the sum of 2^(x - max).
INLINE vf vf_log_sum(vf max, vf log_sum) { return vf_fma(max, vf_set1(0.693147181f), log_sum); }
// The gradient of an argument of a softmax: p is its result, whose gradient is dp, and mean the sum of all p dp.
INLINE vf vf_softmax_grad(vf p, vf dp, vf mean) { return vf_mul(p, vf_sub(dp, mean)); }

// sin(2 pi t) for 0 <= t < 5/4: t is reduced to a quarter turn around 0 without error; then the Taylor polynomial of
// degree 13 in 2 pi t, whose remainder (pi/2)^15 / 15! = 7e-10 is below fp32 precision.
INLINE vf vf_sin_turns(vf t) {
  t = vf_sub(t, vf_round(t));                                                 // [-1/2, 1/2]
  const vi sign = vi_and(vf_bits(t), vi_set1(INT32_MIN));
  vf size = vi_as_float(vi_xor(vf_bits(t), sign));
  size = vf_min(size, vf_sub(vf_set1(0.5f), size));                           // sin(pi - x) = sin x
  const vf x = vi_as_float(vi_or(vf_bits(vf_mul(size, vf_set1(6.28318531f))), sign)), z = vf_mul(x, x);
  vf p = vf_set1(1.60590438e-10f);
  p = vf_fma(p, z, vf_set1(-2.50521084e-8f));
  p = vf_fma(p, z, vf_set1(2.75573192e-6f));
  p = vf_fma(p, z, vf_set1(-1.98412698e-4f));
  p = vf_fma(p, z, vf_set1(8.33333333e-3f));
  p = vf_fma(p, z, vf_set1(-1.66666667e-1f));
  return vf_fma(vf_mul(p, z), x, x);
}

// 1 / (1 + e^-x)
INLINE vf vf_sigmoid(vf x) {
  return vf_div(vf_set1(1.0f), vf_add(vf_set1(1.0f), vf_exp2(vf_mul(x, vf_set1(-1.44269504f)))));
}
// (1 - e) / (1 + e) with e = e^-2|x|, and x's sign: absolute error about 2^-23.
INLINE vf vf_tanh(vf x) {
  const vi sign = vi_and(vf_bits(x), vi_set1(INT32_MIN));
  const vf size = vi_as_float(vi_xor(vf_bits(x), sign)), e = vf_exp2(vf_mul(size, vf_set1(-2.88539008f)));
  const vf t = vf_div(vf_sub(vf_set1(1.0f), e), vf_add(vf_set1(1.0f), e));
  return vi_as_float(vi_or(vf_bits(t), sign));
}
INLINE vf vf_relu(vf x) { return vf_max(vf_set1(0.0f), x); }     // in this order a NaN stays one

// GELU, tanh form (Hendrycks & Gimpel 2016): x/2 (1 + tanh u) = x sigmoid(2u) = x / (1 + e^-2u),
// u = sqrt(2/pi) (x + 0.044715 x^3). The result is 1 + e^-2u, e^-2u = 2^(x (b + a x^2)) with log2 e in a and b.
INLINE vf vf_gelu_divisor(vf x, vf x2) {
  return vf_add(vf_set1(1.0f), vf_exp2(vf_mul(x, vf_fma(x2, vf_set1(-0.10294323958f), vf_set1(-2.30220819814f)))));
}
INLINE vf vf_gelu(vf x) { return vf_div(x, vf_gelu_divisor(x, vf_mul(x, x))); }
// d gelu / dx = s + x s (1 - s) 2u', s = sigmoid(2u), 2u' = 2 sqrt(2/pi) (1 + 3 * 0.044715 x^2)
INLINE vf vf_gelu_grad(vf x) {
  const vf x2 = vf_mul(x, x), s = vf_div(vf_set1(1.0f), vf_gelu_divisor(x, x2));
  const vf du2 = vf_fma(x2, vf_set1(0.2140644488178f), vf_set1(1.59576912161f));
  return vf_fma(vf_mul(x, vf_mul(s, vf_sub(vf_set1(1.0f), s))), du2, s);
}
#endif
