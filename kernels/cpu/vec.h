// vec.h: sixteen fp32 lanes, the same to the last bit on every instruction set. CPU sections only.
//
//   vf, vi, vm       16 floats, integers, lane masks: one zmm with AVX-512, two ymm with AVX2, four registers with NEON
//   vh, v16          8 floats, the half of a vf; 16 lanes of 16 bits
//   vd, vl           8 doubles; 8 integers of 64 bits
//   vf_load / vf_store            from and to float, bf16, fp16, fp8 (round to nearest even; fp8 saturates)
//   vf_load_n / vf_store_n        the first n <= 16 lanes; the others load as zero and are not stored
//   vf_pass                       a non-temporal store, p on 64 bytes; vf_passed() before other threads may read it
//   vf_set_n(x, n)                x in the first n lanes; the others are any
//   vf_walk(n, f)                 f(i, count) for vectors from element 0 to n, of 16 elements and the last of the rest
//   vf_largest(p, n)              the bits of the largest magnitude of n elements; NaN counts as larger than Inf
//   each, LANES_OF, LANES_EACH    in code that is shared with CUDA's lanes (kernels/flat.cuh)
//   vf_keep / vf_keep_n           the same stores; they return what a load of all 16 lanes would give afterwards
//   vf_fma(a, b, c) = a b + c     always fused; + and * are never contracted (-ffp-contract=off)
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
// What is computed of them, e^x for one, is in kernels/formulas.cuh.
// All functions are static: one object is built per instruction set, and the linker could replace one object's copy of
// a shared inline function by another's.
#pragma once
#include "kernels/device.h"
#include "threads.h"

#define VF 16                                    // lanes
#define INLINE static inline __attribute__((always_inline))
#define LANES_OF inline __attribute__((always_inline))
#define LANES_EACH __attribute__((always_inline))
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
INLINE vf vf_set_n(float x, int64_t) { return vf_set1(x); }
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
template <class F, class... V> INLINE void each(int64_t, F f, V &...x) { f(x...); }
template <class F> INLINE void vf_walk(int64_t n, F f) {
  int64_t i = 0;
  for (; i + VF <= n; i += VF) f(i, (int64_t)VF);
  if (i < n) f(i, n - i);
}
template <class T> static int32_t vf_largest(const T *p, int64_t n) {
  vi most = vi_set1(0);
  vf_walk(n, [&](int64_t i, int64_t count) LANES_EACH {
    most = vi_max(most, vi_and(vf_bits(vf_load_n(p + i, count)), vi_set1(0x7fffffff)));
  });
  int32_t lane[VF], largest = 0;
  vi_store(lane, most);
  for (int k = 0; k < VF; k++) if (lane[k] > largest) largest = lane[k];
  return largest;
}
