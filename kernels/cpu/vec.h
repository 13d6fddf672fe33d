// vec.h: sixteen fp32 lanes, the same to the last bit on every instruction set. CPU sections only.
//
//   vf       16 floats: one zmm with AVX-512, two ymm with AVX2
//   vm       16 lane masks
//   vf_load / vf_store            from and to float, bf16, fp16, fp8 (round to nearest even; fp8 saturates)
//   vf_load_n / vf_store_n        the first n <= 16 lanes; the others load as zero and are not stored
//   vf_pass                       a non-temporal store, p on 64 bytes; vf_passed() before other threads may read it
//   vf_keep / vf_keep_n           the same stores; they return what a load of all 16 lanes would give afterwards
//   vf_fma(a, b, c) = a b + c     always fused; + and * are never contracted (-ffp-contract=off)
//   vf_exp2, vf_log, vf_gelu      own polynomials: libm differs between machines and takes 16 ns per element
//   vf_sum, vf_max_of             over the lanes, in a fixed tree: 8, 4, 2, 1 apart
//
// All functions are static: one object is built per instruction set, and the linker could replace one object's copy of
// a shared inline function by another's.
#pragma once
#include "kernels/device.h"
#include "threads.h"
#pragma GCC diagnostic push // gcc 12 warns about its own _mm512_undefined_ps() (GCC bug 105593)
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
INLINE bool vf_any_nan(vf a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q) != 0; }
INLINE vf vf_select(vm m, vf yes, vf no) { return _mm512_mask_blend_ps(m, no, yes); }
INLINE vf vf_zero_where(vm m, vf a) { return _mm512_maskz_mov_ps((vm)~m, a); }
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
INLINE vi vi_max(vi a, vi b) { return _mm512_max_epi32(a, b); }              // signed
INLINE vi vi_min(vi a, vi b) { return _mm512_min_epi32(a, b); }
INLINE vi vi_load(const void *p) { return _mm512_loadu_si512(p); }
INLINE void vi_store(void *p, vi a) { _mm512_storeu_si512(p, a); }
INLINE vi vi_load_bytes(const void *p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)); }
INLINE void vi_store_bytes(void *p, vi a) { _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(a)); }  // 0 .. 255

INLINE __m256 vf_low_half(vf a) { return _mm512_castps512_ps256(a); }
INLINE __m256 vf_high_half(vf a) { return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a), 1)); }

INLINE vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void vf_store(float *p, vf a) { _mm512_storeu_ps(p, a); }
INLINE void vf_pass(float *p, vf a) { _mm512_stream_ps(p, a); }
INLINE vf vf_load_n(const float *p, int64_t n) { return _mm512_maskz_loadu_ps(vm_first(n), p); }
INLINE void vf_store_n(float *p, vf a, int64_t n) { _mm512_mask_storeu_ps(p, vm_first(n), a); }
INLINE vf vf_from_half_bits(__m256i h, bf16 *) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
INLINE vf vf_from_half_bits(__m256i h, fp16 *) { return _mm512_cvtph_ps(h); }
INLINE __m256i vf_to_half_bits(vf a, fp16 *) {
  return _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
// The upper and the lower 16 bits of every lane, and the inverse, which sign-extends the lower ones. The upper bits
// take one permutation (a narrowing move is two operations on Intel).
INLINE __m256i vi_upper_halves(vi a) {
  alignas(64) static const uint16_t upper[32] = {1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31};
  return _mm512_castsi512_si256(_mm512_permutexvar_epi16(_mm512_load_si512(upper), a));
}
INLINE __m256i vi_lower_halves(vi a) { return _mm512_cvtepi32_epi16(a); }
INLINE vi vi_of_signed(__m256i h) { return _mm512_cvtepi16_epi32(h); }
INLINE __m256i vf_round_bf16(vf a) {             // in integers
  const __m512i u = _mm512_castps_si512(a), up = _mm512_add_epi32(u, _mm512_set1_epi32(0x7fff));
  const __mmask16 odd = _mm512_test_epi32_mask(u, _mm512_set1_epi32(0x10000));
  const __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
  __m512i r = _mm512_mask_add_epi32(up, odd, up, _mm512_set1_epi32(1));
  r = _mm512_mask_or_epi32(r, nan, u, _mm512_set1_epi32(0x400000));
  return vi_upper_halves(r);
}
#ifdef __AVX512BF16__
// vcvtneps2bf16 rounds the same way in one operation, but reads subnormals as zero, which the other instruction sets do
// not. If there is a subnormal, integers round instead. Saves 0.6 ns of 1.3 per vector on Zen 4, and bf16 stores are
// the most frequent ones.
INLINE __m256i vf_to_half_bits(vf a, bf16 *) {
  if (__builtin_expect(_mm512_fpclass_ps_mask(a, 0x20), 0)) return vf_round_bf16(a);
  return (__m256i)_mm512_cvtneps_pbh(a);
}
#else
INLINE __m256i vf_to_half_bits(vf a, bf16 *) { return vf_round_bf16(a); }
#endif
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
INLINE bool vf_any_nan(vf x) { return _mm256_movemask_ps(_mm256_cmp_ps(x.a, x.b, _CMP_UNORD_Q)) != 0; }    // in either
INLINE vf vf_select(vm m, vf yes, vf no) {
  VF_BOTH(vf, _mm256_blendv_ps(no.a, yes.a, m.a), _mm256_blendv_ps(no.b, yes.b, m.b));
}
INLINE vf vf_zero_where(vm m, vf x) { VF_BOTH(vf, _mm256_andnot_ps(m.a, x.a), _mm256_andnot_ps(m.b, x.b)); }
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
INLINE vi vi_max(vi x, vi y) { VF_BOTH(vi, _mm256_max_epi32(x.a, y.a), _mm256_max_epi32(x.b, y.b)); }
INLINE vi vi_min(vi x, vi y) { VF_BOTH(vi, _mm256_min_epi32(x.a, y.a), _mm256_min_epi32(x.b, y.b)); }
INLINE vi vi_load(const void *p) {
  VF_BOTH(vi, _mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)p + 1));
}
INLINE void vi_store(void *p, vi x) {
  _mm256_storeu_si256((__m256i *)p, x.a);
  _mm256_storeu_si256((__m256i *)p + 1, x.b);
}
INLINE vi vi_load_bytes(const void *p) {
  const __m128i x = _mm_loadu_si128((const __m128i *)p);
  VF_BOTH(vi, _mm256_cvtepu8_epi32(x), _mm256_cvtepu8_epi32(_mm_unpackhi_epi64(x, x)));
}
INLINE void vi_store_bytes(void *p, vi x) {      // lanes of 0 .. 255; packus works within 128-bit halves
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(x.a, x.b), 0xd8);
  const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128((__m128i *)p, bytes);
}

INLINE __m256 vf_low_half(vf x) { return x.a; }
INLINE __m256 vf_high_half(vf x) { return x.b; }

INLINE vf vf_load(const float *p) { VF_BOTH(vf, _mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)); }
INLINE void vf_store(float *p, vf x) { _mm256_storeu_ps(p, x.a); _mm256_storeu_ps(p + 8, x.b); }
INLINE void vf_pass(float *p, vf x) { _mm256_stream_ps(p, x.a); _mm256_stream_ps(p + 8, x.b); }
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
// Lanes below 2^16 as 16 bits each. packus works within 128-bit halves, so the result is permuted afterwards.
INLINE __m256i vi_pack_halves(vi x) { return _mm256_permute4x64_epi64(_mm256_packus_epi32(x.a, x.b), 0xd8); }
INLINE __m256i vi_upper_halves(vi x) { return vi_pack_halves(vi_shr(x, 16)); }
INLINE __m256i vi_lower_halves(vi x) { return vi_pack_halves(vi_and(x, vi_set1(0xffff))); }
INLINE vi vi_of_signed(__m256i h) {
  VF_BOTH(vi, _mm256_cvtepi16_epi32(_mm256_castsi256_si128(h)), _mm256_cvtepi16_epi32(_mm256_extracti128_si256(h, 1)));
}
INLINE __m256 bf16_half_to_f32(__m128i h) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
INLINE __m256i f32_to_bf16_half(__m256 x) {      // not for NaN; results in the low 16 bits of each lane
  __m256i u = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  return _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
}
INLINE __m256i f32_nan_to_bf16_half(__m256 x) {  // any x; a NaN becomes quiet
  __m256i quiet = _mm256_srli_epi32(_mm256_or_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x400000)), 16);
  return _mm256_blendv_epi8(f32_to_bf16_half(x), quiet, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
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
INLINE __m256i vf_to_half_bits(vf x, bf16 *) {
  vi r = {f32_to_bf16_half(x.a), f32_to_bf16_half(x.b)};
  if (__builtin_expect(vf_any_nan(x), 0))
    r = {f32_nan_to_bf16_half(x.a), f32_nan_to_bf16_half(x.b)};
  return vi_pack_halves(r);
}
#endif

// ---- the same code for both instruction sets ------------------------------------------------------------------------
INLINE vf vf_zero() { return vf_set1(0.0f); }
INLINE void vf_passed() { _mm_sfence(); }
template <class H> INLINE vf vf_load(const H *p) {
  return vf_from_half_bits(_mm256_loadu_si256((const __m256i *)p), (H *)0);
}
template <class H> INLINE void vf_store(H *p, vf x) { _mm256_storeu_si256((__m256i *)p, vf_to_half_bits(x, (H *)0)); }
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
  const __m256i h = vf_to_half_bits(x, p);
  _mm256_storeu_si256((__m256i *)p, h);
  return vf_from_half_bits(h, p);
}
template <class T> INLINE vf vf_keep_n(T *p, vf x, int64_t n) {
  if (n >= VF) return vf_keep(p, x);
  T part[VF];
  const vf kept = vf_keep(part, x);
  vf_store_n(p, x, n);
  return kept;
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
