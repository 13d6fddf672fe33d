// vec.h: sixteen fp32 lanes, the same to the last bit on every instruction set. CPU sections only.
//
//   vf       16 floats: one zmm with AVX-512, two ymm with AVX2
//   vm       16 lane masks
//   vf_load / vf_store            from and to float, bf16, fp16 (round to nearest even)
//   vf_load_n / vf_store_n        the first n <= 16 lanes; the others load as zero and are not stored
//   vf_fma(a, b, c) = a b + c     always fused; + and * are never contracted (-ffp-contract=off)
//   vf_exp, vf_log, vf_sigmoid    own polynomials: libm differs between machines and takes 16 ns an element
//   vf_sum, vf_max_of             over the lanes, in a fixed tree: 8, 4, 2, 1 apart
//
// All functions are static: one object is built per instruction set, and a shared inline would leak code of one into
// another at link time.
#pragma once
#include "device.h"
#pragma GCC diagnostic push // gcc 12 sees its own _mm512_undefined_ps() as a mistake (GCC bug 105593)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#define VF 16                                    // lanes
#define INLINE static inline __attribute__((always_inline))

#ifdef __AVX512F__
typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vm;
INLINE vm vm_first(int64_t n) { return n >= 16 ? (vm)0xffff : n <= 0 ? (vm)0 : (vm)((1u << n) - 1); }
INLINE vf vf_set1(float x) { return _mm512_set1_ps(x); }
INLINE vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
INLINE vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
INLINE vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
INLINE vf vf_sqrt(vf a) { return _mm512_sqrt_ps(a); }
INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
INLINE vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
INLINE vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
INLINE vf vf_round(vf a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INLINE vm vf_lt(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
INLINE vf vf_select(vm m, vf yes, vf no) { return _mm512_mask_blend_ps(m, no, yes); }
INLINE vi vf_to_int(vf a) { return _mm512_cvtps_epi32(a); }                 // nearest even
INLINE vf vi_to_float(vi a) { return _mm512_cvtepi32_ps(a); }
INLINE vi vf_bits(vf a) { return _mm512_castps_si512(a); }
INLINE vf vi_as_float(vi a) { return _mm512_castsi512_ps(a); }
INLINE vi vi_set1(int32_t x) { return _mm512_set1_epi32(x); }
INLINE vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
INLINE vi vi_sub(vi a, vi b) { return _mm512_sub_epi32(a, b); }
INLINE vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
INLINE vi vi_or(vi a, vi b) { return _mm512_or_si512(a, b); }
INLINE vi vi_xor(vi a, vi b) { return _mm512_xor_si512(a, b); }
#define vi_shl(a, n) _mm512_slli_epi32(a, n)
#define vi_shr(a, n) _mm512_srli_epi32(a, n)
INLINE vm vi_gt(vi a, vi b) { return _mm512_cmpgt_epi32_mask(a, b); }        // signed
INLINE vi vi_select(vm m, vi yes, vi no) { return _mm512_mask_blend_epi32(m, no, yes); }
INLINE vi vi_load(const void *p) { return _mm512_loadu_si512(p); }
INLINE void vi_store(void *p, vi a) { _mm512_storeu_si512(p, a); }

INLINE __m256 vf_low_half(vf a) { return _mm512_castps512_ps256(a); }
INLINE __m256 vf_high_half(vf a) { return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a), 1)); }

INLINE vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void vf_store(float *p, vf a) { _mm512_storeu_ps(p, a); }
INLINE vf vf_load_n(const float *p, int64_t n) { return _mm512_maskz_loadu_ps(vm_first(n), p); }
INLINE void vf_store_n(float *p, vf a, int64_t n) { _mm512_mask_storeu_ps(p, vm_first(n), a); }
INLINE vf vf_from_half_bits(__m256i h, bf16 *) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
INLINE vf vf_from_half_bits(__m256i h, fp16 *) { return _mm512_cvtph_ps(h); }
INLINE __m256i vf_to_half_bits(vf a, fp16 *) {
  return _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
INLINE __m256i vf_to_half_bits(vf a, bf16 *) {
  // Not vcvtneps2bf16: it flushes subnormals, and the other instruction sets do not.
  __m512i u = _mm512_castps_si512(a), odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  __m512i r = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
  r = _mm512_mask_or_epi32(r, nan, u, _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16));
}
#else
struct vf { __m256 a, b; };
struct vi { __m256i a, b; };
struct vm { __m256 a, b; };
INLINE vm vm_first(int64_t n) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i count = _mm256_set1_epi32(n >= 16 ? 16 : n <= 0 ? 0 : (int)n);
  vm m = {_mm256_castsi256_ps(_mm256_cmpgt_epi32(count, lane)),
          _mm256_castsi256_ps(_mm256_cmpgt_epi32(count, _mm256_add_epi32(lane, _mm256_set1_epi32(8))))};
  return m;
}
#define VF_BOTH(type, expr_a, expr_b) do { type r_ = {expr_a, expr_b}; return r_; } while (0)
INLINE vf vf_set1(float x) { VF_BOTH(vf, _mm256_set1_ps(x), _mm256_set1_ps(x)); }
INLINE vf vf_add(vf x, vf y) { VF_BOTH(vf, _mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)); }
INLINE vf vf_sub(vf x, vf y) { VF_BOTH(vf, _mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)); }
INLINE vf vf_mul(vf x, vf y) { VF_BOTH(vf, _mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)); }
INLINE vf vf_div(vf x, vf y) { VF_BOTH(vf, _mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)); }
INLINE vf vf_sqrt(vf x) { VF_BOTH(vf, _mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)); }
INLINE vf vf_fma(vf x, vf y, vf z) { VF_BOTH(vf, _mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)); }
INLINE vf vf_max(vf x, vf y) { VF_BOTH(vf, _mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)); }
INLINE vf vf_min(vf x, vf y) { VF_BOTH(vf, _mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)); }
#define VF_NEAREST (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
INLINE vf vf_round(vf x) { VF_BOTH(vf, _mm256_round_ps(x.a, VF_NEAREST), _mm256_round_ps(x.b, VF_NEAREST)); }
INLINE vm vf_lt(vf x, vf y) { VF_BOTH(vm, _mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ)); }
INLINE vf vf_select(vm m, vf yes, vf no) {
  VF_BOTH(vf, _mm256_blendv_ps(no.a, yes.a, m.a), _mm256_blendv_ps(no.b, yes.b, m.b));
}
INLINE vi vf_to_int(vf x) { VF_BOTH(vi, _mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)); }
INLINE vf vi_to_float(vi x) { VF_BOTH(vf, _mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)); }
INLINE vi vf_bits(vf x) { VF_BOTH(vi, _mm256_castps_si256(x.a), _mm256_castps_si256(x.b)); }
INLINE vf vi_as_float(vi x) { VF_BOTH(vf, _mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)); }
INLINE vi vi_set1(int32_t x) { VF_BOTH(vi, _mm256_set1_epi32(x), _mm256_set1_epi32(x)); }
INLINE vi vi_add(vi x, vi y) { VF_BOTH(vi, _mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)); }
INLINE vi vi_sub(vi x, vi y) { VF_BOTH(vi, _mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)); }
INLINE vi vi_and(vi x, vi y) { VF_BOTH(vi, _mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)); }
INLINE vi vi_or(vi x, vi y) { VF_BOTH(vi, _mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)); }
INLINE vi vi_xor(vi x, vi y) { VF_BOTH(vi, _mm256_xor_si256(x.a, y.a), _mm256_xor_si256(x.b, y.b)); }
INLINE vi vi_shl(vi x, int n) { VF_BOTH(vi, _mm256_slli_epi32(x.a, n), _mm256_slli_epi32(x.b, n)); }
INLINE vi vi_shr(vi x, int n) { VF_BOTH(vi, _mm256_srli_epi32(x.a, n), _mm256_srli_epi32(x.b, n)); }
INLINE vm vi_gt(vi x, vi y) {
  VF_BOTH(vm, _mm256_castsi256_ps(_mm256_cmpgt_epi32(x.a, y.a)), _mm256_castsi256_ps(_mm256_cmpgt_epi32(x.b, y.b)));
}
INLINE vi vi_select(vm m, vi yes, vi no) { return vf_bits(vf_select(m, vi_as_float(yes), vi_as_float(no))); }
INLINE vi vi_load(const void *p) {
  VF_BOTH(vi, _mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)p + 1));
}
INLINE void vi_store(void *p, vi x) {
  _mm256_storeu_si256((__m256i *)p, x.a);
  _mm256_storeu_si256((__m256i *)p + 1, x.b);
}

INLINE __m256 vf_low_half(vf x) { return x.a; }
INLINE __m256 vf_high_half(vf x) { return x.b; }

INLINE vf vf_load(const float *p) { VF_BOTH(vf, _mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)); }
INLINE void vf_store(float *p, vf x) { _mm256_storeu_ps(p, x.a); _mm256_storeu_ps(p + 8, x.b); }
INLINE vf vf_load_n(const float *p, int64_t n) {
  if (n >= VF) return vf_load(p);
  vm m = vm_first(n);
  VF_BOTH(vf, _mm256_maskload_ps(p, _mm256_castps_si256(m.a)), _mm256_maskload_ps(p + 8, _mm256_castps_si256(m.b)));
}
INLINE void vf_store_n(float *p, vf x, int64_t n) {
  if (n >= VF) { vf_store(p, x); return; }      // AVX2's masked stores are microcoded on AMD: tens of cycles each
  vm m = vm_first(n);
  _mm256_maskstore_ps(p, _mm256_castps_si256(m.a), x.a);
  _mm256_maskstore_ps(p + 8, _mm256_castps_si256(m.b), x.b);
}
INLINE __m256 bf16_half_to_f32(__m128i h) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
INLINE __m256i f32_to_bf16_half(__m256 x) {      // results in the low 16 bits of each lane
  __m256i u = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  __m256i r = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
  r = _mm256_blendv_epi8(r, quiet, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
  return _mm256_srli_epi32(r, 16);
}
INLINE vf vf_from_half_bits(__m256i h, bf16 *) {
  VF_BOTH(vf, bf16_half_to_f32(_mm256_castsi256_si128(h)), bf16_half_to_f32(_mm256_extracti128_si256(h, 1)));
}
INLINE vf vf_from_half_bits(__m256i h, fp16 *) {
  VF_BOTH(vf, _mm256_cvtph_ps(_mm256_castsi256_si128(h)), _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1)));
}
INLINE __m256i vf_to_half_bits(vf x, fp16 *) {
  return _mm256_set_m128i(_mm256_cvtps_ph(x.b, VF_NEAREST), _mm256_cvtps_ph(x.a, VF_NEAREST));
}
INLINE __m256i vf_to_half_bits(vf x, bf16 *) {   // packus works within 128-bit halves: put them in order afterwards
  return _mm256_permute4x64_epi64(_mm256_packus_epi32(f32_to_bf16_half(x.a), f32_to_bf16_half(x.b)), 0xd8);
}
#endif

// ---- the rest is the same text for both ----------------------------------------------------------------------------
INLINE vf vf_zero() { return vf_set1(0.0f); }
template <class H> INLINE vf vf_load(const H *p) {
  return vf_from_half_bits(_mm256_loadu_si256((const __m256i *)p), (H *)0);
}
template <class H> INLINE void vf_store(H *p, vf x) { _mm256_storeu_si256((__m256i *)p, vf_to_half_bits(x, (H *)0)); }
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
INLINE float vf_first_lane(vf x) { return _mm256_cvtss_f32(vf_low_half(x)); }
INLINE float vf_sum(vf x) {
  __m256 h = _mm256_add_ps(vf_low_half(x), vf_high_half(x));
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}
INLINE float vf_max_of(vf x) {
  __m256 h = _mm256_max_ps(vf_low_half(x), vf_high_half(x));
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_shuffle_ps(q, q, 1)));
}

// e^x: x = n ln2 + r with |r| <= ln2/2, a polynomial of degree 6 in r (Cephes expf coefficients), exponent by integer
// add. Error below 1.5 ulp. Results below the smallest normal are 0 (so e^-inf = 0); above e^88.37 it saturates.
INLINE vf vf_exp(vf x) {
  const vf low = vf_set1(-87.336544f);
  vm tiny = vf_lt(x, low);
  x = vf_min(vf_set1(88.3762626f), vf_max(low, x));      // in this order a NaN stays a NaN
  vf n = vf_round(vf_mul(x, vf_set1(1.44269504f)));
  vf r = vf_fma(n, vf_set1(-0.693359375f), x);
  r = vf_fma(n, vf_set1(2.12194440e-4f), r);
  vf p = vf_set1(1.9875691500e-4f);
  p = vf_fma(p, r, vf_set1(1.3981999507e-3f));
  p = vf_fma(p, r, vf_set1(8.3334519073e-3f));
  p = vf_fma(p, r, vf_set1(4.1665795894e-2f));
  p = vf_fma(p, r, vf_set1(1.6666665459e-1f));
  p = vf_fma(p, r, vf_set1(5.0000001201e-1f));
  p = vf_add(vf_fma(p, vf_mul(r, r), r), vf_set1(1.0f));
  vf two_n = vi_as_float(vi_shl(vi_add(vf_to_int(n), vi_set1(127)), 23));
  return vf_select(tiny, vf_zero(), vf_mul(p, two_n));
}

// ln x for normal positive x: x = 2^e m with m in [sqrt(1/2), sqrt(2)), polynomial in m - 1 (Cephes logf coefficients).
// Other arguments are the caller's to avoid.
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

INLINE vf vf_sigmoid(vf x) {                     // 1 / (1 + e^-x)
  return vf_div(vf_set1(1.0f), vf_add(vf_set1(1.0f), vf_exp(vf_sub(vf_zero(), x))));
}

// GELU, tanh form (Hendrycks & Gimpel 2016): x/2 (1 + tanh u) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3).
INLINE vf vf_gelu(vf x) {
  vf u2 = vf_mul(x, vf_fma(vf_mul(x, x), vf_set1(0.0713548162726f), vf_set1(1.59576912161f)));
  return vf_mul(x, vf_sigmoid(u2));
}
// d gelu / dx = s + x s (1 - s) 2u', s = sigmoid(2u), 2u' = 2 sqrt(2/pi) (1 + 3 * 0.044715 x^2)
INLINE vf vf_gelu_grad(vf x) {
  vf x2 = vf_mul(x, x);
  vf s = vf_sigmoid(vf_mul(x, vf_fma(x2, vf_set1(0.0713548162726f), vf_set1(1.59576912161f))));
  vf du2 = vf_fma(x2, vf_set1(0.2140644488178f), vf_set1(1.59576912161f));
  return vf_fma(vf_mul(x, vf_mul(s, vf_sub(vf_set1(1.0f), s))), du2, s);
}
