// vec.h: sixteen fp32 lanes, the same to the last bit on every instruction set. CPU sections only.
//
//   vf, vi, vm       16 floats, integers, lane masks: one zmm with AVX-512, two ymm with AVX2, four registers with NEON
//   vh, v16          8 floats, the half of a vf; 16 lanes of 16 bits
//   vd, vl           8 doubles; 8 integers of 64 bits
//   vf_load / vf_store            from and to float, bf16, fp16, fp8 (round to nearest even; fp8 saturates)
//   vf_load_n / vf_store_n        the first n <= 16 lanes; the others load as zero and are not stored
//   vf_pass                       a non-temporal store, p on 64 bytes; vf_passed() before other threads may read it
//   vf_keep / vf_keep_n           the same stores; they return what a load of all 16 lanes would give afterwards
//   vf_fma(a, b, c) = a b + c     always fused; + and * are never contracted (-ffp-contract=off)
//   vf_exp2, vf_log, vf_gelu      own polynomials: libm differs between machines and takes 16 ns per element
//   vf_sum, vf_max_of             over the lanes, in a fixed tree: 8, 4, 2, 1 apart
//   vf_max(a, b), vf_min(a, b)    b where they are equal or one is NaN, as x86 has it
//   vf_transpose, vh_transpose    16 x 16 and 8 x 8 floats, in place; v8_transpose: 8 x 8 bf16, N a row, in memory
//   vi_sar, vi_shl_by, vi_shr_by  shifts that keep the sign; by a number that is not known when this is compiled
//   vi_load_nibbles(p)            four bits of 8 bytes, the upper ones first; other bits of the lanes are any
//   vf_table(table, at)           of 16 floats on 64 bytes those that the lowest four bits of the lanes say
//   vi_load_columns(to, row, at)  16 bytes of each of 16 rows, transposed: lane l of to[j] has word j of row l
//   vi_products4(a, b)            of every four lanes: the 64-bit products of lanes 2 and 0, upper words first
//   vi_odds_down, vi_evens, vi_odds, vi_below   of every pair: (second, 0), the first twice, the second twice; a < b
//   VF_ROWS, VF_VECTORS           rows and vectors of a small matrix multiply whose sums stay in registers
//
// All functions are static: one object is built per instruction set, and the linker could replace one object's copy of
// a shared inline function by another's.
#pragma once
#include "kernels/device.h"
#include "threads.h"

#define VF 16                                    // lanes
#define INLINE static inline __attribute__((always_inline))
#ifdef __aarch64__
#include "vec_neon.h"
#else
#include "vec_x86.h"
#endif

// ---- the same code for all instruction sets -------------------------------------------------------------------------
INLINE vf vf_zero() { return vf_set1(0.0f); }
template <class H> INLINE vf vf_load(const H *p) { return vf_from_half_bits(v16_load(p), (H *)0); }
template <class H> INLINE void vf_store(H *p, vf x) { v16_store(p, vf_to_half_bits(x, (H *)0)); }
INLINE vf vf_load(const fp8 *p) {                // as to_f32, lane by lane
  const vi x = vi_load_bytes(p), sign = vi_shl(vi_and(x, vi_set1(0x80)), 24), rest = vi_and(x, vi_set1(0x7f));
  const vi high = vi_shl(rest, 20), normal = vi_add(high, vi_set1(0x3c000000));
  const vi tiny = vf_bits(vf_sub(vi_as_float(vi_or(high, vi_set1(0x3c800000))), vf_set1(0x1p-6f)));
  vi size = vi_select(vi_gt(rest, vi_set1(7)), normal, tiny);
  size = vi_select(vi_gt(rest, vi_set1(0x7e)), vi_set1(0x7fc00000), size);
  return vi_as_float(vi_or(size, sign));
}
INLINE void vf_store(fp8 *p, vf x) {             // as round_to, lane by lane
  const vi u = vf_bits(x), sign = vi_and(vi_shr(u, 24), vi_set1(0x80)), all = vi_and(u, vi_set1(0x7fffffff));
  const vi a = vi_min(all, vi_set1(0x43e00000)), odd = vi_and(vi_shr(a, 20), vi_set1(1));
  const vi normal = vi_shr(vi_add(vi_add(a, vi_set1(0x7ffff - 0x3c000000)), odd), 20);
  const vi tiny = vi_sub(vf_bits(vf_add(vi_as_float(a), vf_set1(0x1p14f))), vi_set1(0x46800000));
  const vi size = vi_or(vi_select(vi_gt(vi_set1(0x3c800000), a), tiny, normal), sign);
  vi_store_bytes(p, vi_select(vi_gt(all, vi_set1(0x7f800000)), vi_set1(0x7f), size));
}
template <class H> INLINE vf vf_load_n(const H *p, int64_t n) {
  if (n >= VF) return vf_load(p);
  H part[VF] = {};
  if (n > 0) memcpy(part, p, (size_t)n * sizeof(H));
  return vf_load(part);
}
template <class H> INLINE void vf_store_n(H *p, vf x, int64_t n) {
  if (n >= VF) { vf_store(p, x); return; }
  H part[VF];
  vf_store(part, x);
  if (n > 0) memcpy(p, part, (size_t)n * sizeof(H));
}
INLINE vf vf_keep(float *p, vf x) { vf_store(p, x); return x; }
template <class H> INLINE vf vf_keep(H *p, vf x) {
  const v16 h = vf_to_half_bits(x, p);
  v16_store(p, h);
  return vf_from_half_bits(h, p);
}
template <class T> INLINE vf vf_keep_n(T *p, vf x, int64_t n) {
  if (n >= VF) return vf_keep(p, x);
  T part[VF];
  const vf kept = vf_keep(part, x);
  vf_store_n(p, x, n);
  return kept;
}
// 2^x: x = n + f exactly, |f| <= 1/2, minimax polynomial of degree 6 in f with p(0) = 1 (relative error 2e-9). Adding
// 1.5 2^23 + 127 rounds x and leaves n + 127 in the lowest bits; a shift then puts it in the exponent's place. Error
// below 1 ulp. Results below 2^-126 are 0 (so 2^-inf = 0), above 2^127.5 Inf. e^x is 2^(x log2 e), with log2 e merged
// into the factor of x: 8 operations of the multipliers instead of the 11 of splitting x by ln 2, in 0.6 times the time
// on Zen 4.
INLINE vf vf_exp2(vf x) {
  const vm tiny = vf_lt(x, vf_set1(-126.0f));
  x = vf_min(vf_set1(128.0f), x);                // in this order a NaN stays a NaN
  const vf shift = vf_set1(12582912.0f + 127.0f), t = vf_add(x, shift), f = vf_sub(x, vf_sub(t, shift));
  vf p = vf_set1(0.0001535336196f);
  p = vf_fma(p, f, vf_set1(0.001339887385f));
  p = vf_fma(p, f, vf_set1(0.009618436918f));
  p = vf_fma(p, f, vf_set1(0.05550332367f));
  p = vf_fma(p, f, vf_set1(0.2402264774f));
  p = vf_fma(p, f, vf_set1(0.6931471825f));
  p = vf_fma(p, f, vf_set1(1.0f));
  return vf_zero_where(tiny, vf_mul(p, vi_as_float(vi_shl(vf_bits(t), 23))));
}

// ln x for normal positive x: x = 2^e m with m in [sqrt(1/2), sqrt(2)), polynomial in m - 1 (Cephes logf coefficients).
// The caller must avoid other arguments.
INLINE vf vf_log(vf x) {
  vi u = vf_bits(x);
  vi e = vi_sub(vi_shr(u, 23), vi_set1(126));
  vf m = vi_as_float(vi_or(vi_and(u, vi_set1(0x007fffff)), vi_set1(0x3f000000)));      // [0.5, 1)
  vm small = vf_lt(m, vf_set1(0.707106781f));
  vf fe = vf_sub(vi_to_float(e), vf_select(small, vf_set1(1.0f), vf_zero()));
  vf t = vf_sub(vf_add(m, vf_select(small, m, vf_zero())), vf_set1(1.0f));
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
INLINE float scalar_log(float x) { return vf_first_lane(vf_log(vf_set1(x))); }

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
