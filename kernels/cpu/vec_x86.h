// vec_x86.h: the sixteen lanes of vec.h on x86-64: one zmm with AVX-512, two ymm with AVX2. Part of vec.h, which says
// what the functions do.
#pragma once
#pragma GCC diagnostic push // gcc 12 warns about its own _mm512_undefined_ps() (GCC bug 105593)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

typedef __m256 vh;
typedef __m256i v16;
INLINE vh vh_zero() { return _mm256_setzero_ps(); }
INLINE vh vh_load(const float *p) { return _mm256_loadu_ps(p); }
INLINE vh vh_load(const fp16 *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
INLINE vh vh_load(const bf16 *p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
INLINE void vh_store(float *p, vh x) { _mm256_storeu_ps(p, x); }
INLINE void vh_transpose(vh r[8]) {       // 24 shuffles for 64 words
  __m256 t[8], u[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    for (int h = 0; h < 2; h++) {
      u[i + 2 * h] = _mm256_shuffle_ps(t[i + h], t[i + h + 2], 0x44);
      u[i + 2 * h + 1] = _mm256_shuffle_ps(t[i + h], t[i + h + 2], 0xee);
    }
  }
  for (int i = 0; i < 4; i++) {
    r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
    r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
  }
}
INLINE v16 v16_zero() { return _mm256_setzero_si256(); }
INLINE v16 v16_load(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
INLINE void v16_store(void *p, v16 x) { _mm256_storeu_si256((__m256i *)p, x); }
INLINE void v8_transpose(bf16 *to, const bf16 *from, int64_t N) {
  __m128i r[8], s[8];
  for (int i = 0; i < 8; i++) r[i] = _mm_loadu_si128((const __m128i *)(from + i * N));
  for (int i = 0; i < 8; i += 2) {               // words (row i, row i + 1) of columns 0..3, then 4..7
    s[i] = _mm_unpacklo_epi16(r[i], r[i + 1]);
    s[i + 1] = _mm_unpackhi_epi16(r[i], r[i + 1]);
  }
  for (int h = 0; h < 2; h++) for (int i = 0; i < 8; i += 4) {       // r[2h + i ..]: rows i .. i+3 of columns 4h..
    r[2 * h + i] = _mm_unpacklo_epi32(s[i + h], s[i + 2 + h]);
    r[2 * h + i + 1] = _mm_unpackhi_epi32(s[i + h], s[i + 2 + h]);
  }
  for (int i = 0; i < 4; i++) {
    _mm_storeu_si128((__m128i *)(to + 2 * i * N), _mm_unpacklo_epi64(r[i], r[i + 4]));
    _mm_storeu_si128((__m128i *)(to + (2 * i + 1) * N), _mm_unpackhi_epi64(r[i], r[i + 4]));
  }
}
INLINE void vf_passed() { _mm_sfence(); }
INLINE __m128i v8_load_nibbles(const void *p) {  // the upper four bits are any
  const __m128i x = _mm_loadl_epi64((const __m128i *)p);
  return _mm_unpacklo_epi8(_mm_srli_epi16(x, 4), x);
}

#ifdef __AVX512F__
enum { VF_ROWS = 8, VF_VECTORS = 2 };            // 16 of 32 registers
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
#define vi_sar(a, n) _mm512_srai_epi32(a, n)
INLINE vi vi_shl_by(vi a, int n) { return _mm512_sll_epi32(a, _mm_cvtsi32_si128(n)); }
INLINE vi vi_shr_by(vi a, int n) { return _mm512_srl_epi32(a, _mm_cvtsi32_si128(n)); }
INLINE vm vi_gt(vi a, vi b) { return _mm512_cmpgt_epi32_mask(a, b); }        // signed
INLINE vi vi_select(vm m, vi yes, vi no) { return _mm512_mask_blend_epi32(m, no, yes); }
INLINE vi vi_max(vi a, vi b) { return _mm512_max_epi32(a, b); }              // signed
INLINE vi vi_min(vi a, vi b) { return _mm512_min_epi32(a, b); }
INLINE vi vi_load(const void *p) { return _mm512_loadu_si512(p); }
INLINE void vi_store(void *p, vi a) { _mm512_storeu_si512(p, a); }
INLINE vi vi_load_bytes(const void *p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)); }
INLINE vi vi_load_nibbles(const void *p) { return _mm512_cvtepu8_epi32(v8_load_nibbles(p)); }
INLINE vf vf_table(const float *table, vi at) { return _mm512_permutexvar_ps(at, _mm512_load_ps(table)); }
INLINE void vi_store_bytes(void *p, vi a) { _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(a)); }  // 0 .. 255
INLINE void vi_load_columns(vi to[4], const uint8_t *const row[16], int64_t at) {
  __m512i r[4];
  for (int i = 0; i < 4; i++) {                  // rows i, i + 4, i + 8, i + 12, so that quarters turn by themselves
    const __m128i *const p[4] = {(const __m128i *)(row[i] + at), (const __m128i *)(row[i + 4] + at),
                                 (const __m128i *)(row[i + 8] + at), (const __m128i *)(row[i + 12] + at)};
    r[i] = _mm512_castsi128_si512(_mm_loadu_si128(p[0]));
    r[i] = _mm512_inserti32x4(r[i], _mm_loadu_si128(p[1]), 1);
    r[i] = _mm512_inserti32x4(r[i], _mm_loadu_si128(p[2]), 2);
    r[i] = _mm512_inserti32x4(r[i], _mm_loadu_si128(p[3]), 3);
  }
  const __m512i a = _mm512_unpacklo_epi32(r[0], r[1]), b = _mm512_unpackhi_epi32(r[0], r[1]);
  const __m512i c = _mm512_unpacklo_epi32(r[2], r[3]), d = _mm512_unpackhi_epi32(r[2], r[3]);
  to[0] = _mm512_unpacklo_epi64(a, c), to[1] = _mm512_unpackhi_epi64(a, c);
  to[2] = _mm512_unpacklo_epi64(b, d), to[3] = _mm512_unpackhi_epi64(b, d);
}

INLINE vh vf_low_half(vf a) { return _mm512_castps512_ps256(a); }
INLINE vh vf_high_half(vf a) { return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a), 1)); }

INLINE vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void vf_store(float *p, vf a) { _mm512_storeu_ps(p, a); }
INLINE void vf_pass(float *p, vf a) { _mm512_stream_ps(p, a); }
INLINE vf vf_load_n(const float *p, int64_t n) { return _mm512_maskz_loadu_ps(vm_first(n), p); }
INLINE void vf_store_n(float *p, vf a, int64_t n) { _mm512_mask_storeu_ps(p, vm_first(n), a); }
INLINE vf vf_from_half_bits(v16 h, bf16 *) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
INLINE vf vf_from_half_bits(v16 h, fp16 *) { return _mm512_cvtph_ps(h); }
INLINE v16 vf_to_half_bits(vf a, fp16 *) {
  return _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
// The upper and the lower 16 bits of every lane, and the inverse, which sign-extends the lower ones. The upper bits
// take one permutation (a narrowing move is two operations on Intel).
INLINE v16 vi_upper_halves(vi a) {
  alignas(64) static const uint16_t upper[32] = {1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31};
  return _mm512_castsi512_si256(_mm512_permutexvar_epi16(_mm512_load_si512(upper), a));
}
INLINE v16 vi_lower_halves(vi a) { return _mm512_cvtepi32_epi16(a); }
INLINE vi vi_of_signed(v16 h) { return _mm512_cvtepi16_epi32(h); }
INLINE vi vi_of_halves(v16 h) { return _mm512_cvtepu16_epi32(h); }
INLINE v16 v16_load_n(const void *p, int64_t n) { return _mm256_maskz_loadu_epi16(vm_first(n), p); }
INLINE v16 vf_round_bf16(vf a) {             // in integers
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
INLINE v16 vf_to_half_bits(vf a, bf16 *) {
  if (__builtin_expect(_mm512_fpclass_ps_mask(a, 0x20), 0)) return vf_round_bf16(a);
  return (__m256i)_mm512_cvtneps_pbh(a);
}
#else
INLINE v16 vf_to_half_bits(vf a, bf16 *) { return vf_round_bf16(a); }
#endif

// Philox's round, in counters of four lanes x y z w.
INLINE vi vi_set4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  return _mm512_set4_epi32((int)w, (int)z, (int)y, (int)x);
}
INLINE vi vi_products4(vi a, vi b) { return _mm512_shuffle_epi32(_mm512_mul_epu32(a, b), (_MM_PERM_ENUM)0x1B); }
INLINE vi vi_odds_down(vi a) { return _mm512_srli_epi64(a, 32); }
INLINE vi vi_evens(vi a) { return _mm512_shuffle_epi32(a, (_MM_PERM_ENUM)0xA0); }
INLINE vi vi_odds(vi a) { return _mm512_shuffle_epi32(a, (_MM_PERM_ENUM)0xF5); }
INLINE vm vi_below(vi a, uint32_t b) { return _mm512_cmplt_epu32_mask(a, vi_set1((int)b)); }

typedef __m512d vd;
typedef __m512i vl;
INLINE vd vd_of(vh x) { return _mm512_cvtps_pd(x); }
INLINE vd vd_set1(double x) { return _mm512_set1_pd(x); }
INLINE vd vd_add(vd x, vd y) { return _mm512_add_pd(x, y); }
INLINE vd vd_sub(vd x, vd y) { return _mm512_sub_pd(x, y); }
INLINE vd vd_square_add(vd x, vd y) { return _mm512_fmadd_pd(x, x, y); }
INLINE vd vd_square_sub(vd x, vd y) { return _mm512_fmsub_pd(x, x, y); }
INLINE vl vl_zero() { return _mm512_setzero_si512(); }
INLINE vl vl_add_bits(vl sum, vd x) { return _mm512_add_epi64(sum, _mm512_castpd_si512(x)); }

INLINE void vf_transpose(vf r[16]) {
  vf t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
    r[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  for (int i = 0; i < 4; i++) {                  // now move whole 128-bit quarters
    t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
  }
  for (int i = 0; i < 8; i++) {
    r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
    r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
  }
}
#else
enum { VF_ROWS = 6, VF_VECTORS = 1 };            // 12 of 16 registers: a vf takes two
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
INLINE vi vi_sar(vi x, int n) { VF_BOTH(vi, _mm256_srai_epi32(x.a, n), _mm256_srai_epi32(x.b, n)); }
INLINE vi vi_shl_by(vi x, int n) {
  VF_BOTH(vi, _mm256_sll_epi32(x.a, _mm_cvtsi32_si128(n)), _mm256_sll_epi32(x.b, _mm_cvtsi32_si128(n)));
}
INLINE vi vi_shr_by(vi x, int n) {
  VF_BOTH(vi, _mm256_srl_epi32(x.a, _mm_cvtsi32_si128(n)), _mm256_srl_epi32(x.b, _mm_cvtsi32_si128(n)));
}
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
INLINE vi vi_of_bytes(__m128i x) {
  VF_BOTH(vi, _mm256_cvtepu8_epi32(x), _mm256_cvtepu8_epi32(_mm_unpackhi_epi64(x, x)));
}
INLINE vi vi_load_bytes(const void *p) { return vi_of_bytes(_mm_loadu_si128((const __m128i *)p)); }
INLINE vi vi_load_nibbles(const void *p) { return vi_of_bytes(v8_load_nibbles(p)); }
INLINE __m256 vf_half_table(const float *table, __m256i at) {
  const __m256 low = _mm256_permutevar8x32_ps(_mm256_load_ps(table), at);
  const __m256 high = _mm256_permutevar8x32_ps(_mm256_load_ps(table + 8), at);
  return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(at, 28)));
}
INLINE vf vf_table(const float *table, vi at) { VF_BOTH(vf, vf_half_table(table, at.a), vf_half_table(table, at.b)); }
INLINE void vi_store_bytes(void *p, vi x) {      // lanes of 0 .. 255; packus works within 128-bit halves
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(x.a, x.b), 0xd8);
  const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128((__m128i *)p, bytes);
}

INLINE void vi_load_columns(vi to[4], const uint8_t *const row[16], int64_t at) {
  __m256i out[2][4];
  for (int h = 0; h < 2; h++) {
    __m256i r[4];
    for (int i = 0; i < 4; i++) {
      const uint8_t *const low = row[8 * h + i] + at, *const high = row[8 * h + i + 4] + at;
      r[i] = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)low));
      r[i] = _mm256_inserti128_si256(r[i], _mm_loadu_si128((const __m128i *)high), 1);
    }
    const __m256i a = _mm256_unpacklo_epi32(r[0], r[1]), b = _mm256_unpackhi_epi32(r[0], r[1]);
    const __m256i c = _mm256_unpacklo_epi32(r[2], r[3]), d = _mm256_unpackhi_epi32(r[2], r[3]);
    out[h][0] = _mm256_unpacklo_epi64(a, c), out[h][1] = _mm256_unpackhi_epi64(a, c);
    out[h][2] = _mm256_unpacklo_epi64(b, d), out[h][3] = _mm256_unpackhi_epi64(b, d);
  }
  for (int i = 0; i < 4; i++) to[i] = vi{out[0][i], out[1][i]};
}

INLINE vh vf_low_half(vf x) { return x.a; }
INLINE vh vf_high_half(vf x) { return x.b; }

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
INLINE v16 vi_pack_halves(vi x) { return _mm256_permute4x64_epi64(_mm256_packus_epi32(x.a, x.b), 0xd8); }
INLINE v16 vi_upper_halves(vi x) { return vi_pack_halves(vi_shr(x, 16)); }
INLINE v16 vi_lower_halves(vi x) { return vi_pack_halves(vi_and(x, vi_set1(0xffff))); }
INLINE vi vi_of_signed(v16 h) {
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
INLINE vf vf_from_half_bits(v16 h, bf16 *) {
  VF_BOTH(vf, bf16_half_to_f32(_mm256_castsi256_si128(h)), bf16_half_to_f32(_mm256_extracti128_si256(h, 1)));
}
INLINE vf vf_from_half_bits(v16 h, fp16 *) {
  VF_BOTH(vf, _mm256_cvtph_ps(_mm256_castsi256_si128(h)), _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1)));
}
INLINE v16 vf_to_half_bits(vf x, fp16 *) {
  return _mm256_set_m128i(_mm256_cvtps_ph(x.b, VF_NEAREST), _mm256_cvtps_ph(x.a, VF_NEAREST));
}
INLINE v16 vf_to_half_bits(vf x, bf16 *) {
  vi r = {f32_to_bf16_half(x.a), f32_to_bf16_half(x.b)};
  if (__builtin_expect(vf_any_nan(x), 0))
    r = {f32_nan_to_bf16_half(x.a), f32_nan_to_bf16_half(x.b)};
  return vi_pack_halves(r);
}

INLINE vi vi_set4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  __m256i one = _mm256_set_epi32((int)w, (int)z, (int)y, (int)x, (int)w, (int)z, (int)y, (int)x);
  VF_BOTH(vi, one, one);
}
INLINE __m256i vi_half_products4(__m256i a, __m256i b) { return _mm256_shuffle_epi32(_mm256_mul_epu32(a, b), 0x1B); }
INLINE vi vi_products4(vi x, vi y) { VF_BOTH(vi, vi_half_products4(x.a, y.a), vi_half_products4(x.b, y.b)); }
INLINE vi vi_odds_down(vi x) { VF_BOTH(vi, _mm256_srli_epi64(x.a, 32), _mm256_srli_epi64(x.b, 32)); }
INLINE vi vi_evens(vi w) { VF_BOTH(vi, _mm256_shuffle_epi32(w.a, 0xA0), _mm256_shuffle_epi32(w.b, 0xA0)); }
INLINE vi vi_odds(vi w) { VF_BOTH(vi, _mm256_shuffle_epi32(w.a, 0xF5), _mm256_shuffle_epi32(w.b, 0xF5)); }
INLINE vm vi_below(vi words, uint32_t threshold) {                           // by the signed comparison
  const vi flip = vi_set1(INT32_MIN);
  return vi_gt(vi_xor(vi_set1((int)threshold), flip), vi_xor(words, flip));
}

struct vd { __m256d a, b; };
struct vl { __m256i a, b; };
INLINE vd vd_of(vh x) {
  VF_BOTH(vd, _mm256_cvtps_pd(_mm256_castps256_ps128(x)), _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)));
}
INLINE vd vd_set1(double x) { VF_BOTH(vd, _mm256_set1_pd(x), _mm256_set1_pd(x)); }
INLINE vd vd_add(vd x, vd y) { VF_BOTH(vd, _mm256_add_pd(x.a, y.a), _mm256_add_pd(x.b, y.b)); }
INLINE vd vd_sub(vd x, vd y) { VF_BOTH(vd, _mm256_sub_pd(x.a, y.a), _mm256_sub_pd(x.b, y.b)); }
INLINE vd vd_square_add(vd x, vd y) {
  VF_BOTH(vd, _mm256_fmadd_pd(x.a, x.a, y.a), _mm256_fmadd_pd(x.b, x.b, y.b));
}
INLINE vd vd_square_sub(vd x, vd y) {
  VF_BOTH(vd, _mm256_fmsub_pd(x.a, x.a, y.a), _mm256_fmsub_pd(x.b, x.b, y.b));
}
INLINE vl vl_zero() { VF_BOTH(vl, _mm256_setzero_si256(), _mm256_setzero_si256()); }
INLINE vl vl_add_bits(vl s, vd x) {
  VF_BOTH(vl, _mm256_add_epi64(s.a, _mm256_castpd_si256(x.a)), _mm256_add_epi64(s.b, _mm256_castpd_si256(x.b)));
}

INLINE void vf_transpose(vf r[16]) {
  vh quarter[4][8];
  for (int i = 0; i < 8; i++) {
    quarter[0][i] = r[i].a;
    quarter[1][i] = r[i + 8].a;
    quarter[2][i] = r[i].b;
    quarter[3][i] = r[i + 8].b;
  }
  for (int i = 0; i < 4; i++) vh_transpose(quarter[i]);
  for (int i = 0; i < 8; i++) {
    r[i].a = quarter[0][i];
    r[i].b = quarter[1][i];
    r[i + 8].a = quarter[2][i];
    r[i + 8].b = quarter[3][i];
  }
}
#endif

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
