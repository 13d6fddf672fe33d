// vec_neon.h: the sixteen lanes of vec.h on ARM (aarch64): four registers of four lanes. Part of vec.h, which says what
// the functions do. Where x86 and ARM differ, x86's results are made: the operand that a minimum or a maximum returns,
// integers of numbers out of range. NaNs are in the same places; their sign may differ.
#pragma once
#include <arm_neon.h>

struct vf { float32x4_t q[4]; };
struct vi { int32x4_t q[4]; };
struct vm { uint32x4_t q[4]; };
struct vh { float32x4_t q[2]; };
struct v16 { uint16x8_t q[2]; };
struct vd { float64x2_t q[4]; };
struct vl { int64x2_t q[4]; };
#define VF_1(type, of, x) (type{{of(x.q[0]), of(x.q[1]), of(x.q[2]), of(x.q[3])}})
#define VF_2(type, of, x, y) (type{{of(x.q[0], y.q[0]), of(x.q[1], y.q[1]), of(x.q[2], y.q[2]), of(x.q[3], y.q[3])}})
#define VF_3(type, of, x, y, z) (type{{of(x.q[0], y.q[0], z.q[0]), of(x.q[1], y.q[1], z.q[1]), \
                                       of(x.q[2], y.q[2], z.q[2]), of(x.q[3], y.q[3], z.q[3])}})
#define VF_SAME(type, x) (type{{x, x, x, x}})
enum { VF_ROWS = 5, VF_VECTORS = 1 };            // 20 of 32 registers: a vf takes four; the operands need 9

// ---- four lanes
INLINE float32x4_t neon_max(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
INLINE float32x4_t neon_min(float32x4_t a, float32x4_t b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
INLINE float32x4_t neon_fma(float32x4_t a, float32x4_t b, float32x4_t c) { return vfmaq_f32(c, a, b); }
INLINE int32x4_t neon_to_int(float32x4_t a) {    // out of range and NaN: INT32_MIN
  return vbslq_s32(vcltq_f32(a, vdupq_n_f32(0x1p31f)), vcvtnq_s32_f32(a), vdupq_n_s32(INT32_MIN));
}
INLINE float32x4_t neon_clear(uint32x4_t m, float32x4_t a) {
  return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(a), m));
}
INLINE void neon_transpose4(float32x4_t *a, float32x4_t *b, float32x4_t *c, float32x4_t *d) {
  const float64x2_t ab0 = vreinterpretq_f64_f32(vzip1q_f32(*a, *b)), ab1 = vreinterpretq_f64_f32(vzip2q_f32(*a, *b));
  const float64x2_t cd0 = vreinterpretq_f64_f32(vzip1q_f32(*c, *d)), cd1 = vreinterpretq_f64_f32(vzip2q_f32(*c, *d));
  *a = vreinterpretq_f32_f64(vzip1q_f64(ab0, cd0));
  *b = vreinterpretq_f32_f64(vzip2q_f64(ab0, cd0));
  *c = vreinterpretq_f32_f64(vzip1q_f64(ab1, cd1));
  *d = vreinterpretq_f32_f64(vzip2q_f64(ab1, cd1));
}

// ---- sixteen
INLINE vm vm_first(int64_t n) {
  static const int32_t lane[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const int32x4_t count = vdupq_n_s32(n >= 16 ? 16 : n <= 0 ? 0 : (int)n);
  return vm{{vcgtq_s32(count, vld1q_s32(lane)), vcgtq_s32(count, vld1q_s32(lane + 4)),
             vcgtq_s32(count, vld1q_s32(lane + 8)), vcgtq_s32(count, vld1q_s32(lane + 12))}};
}
INLINE vf vf_set1(float x) { return VF_SAME(vf, vdupq_n_f32(x)); }
INLINE vf vf_add(vf x, vf y) { return VF_2(vf, vaddq_f32, x, y); }
INLINE vf vf_sub(vf x, vf y) { return VF_2(vf, vsubq_f32, x, y); }
INLINE vf vf_mul(vf x, vf y) { return VF_2(vf, vmulq_f32, x, y); }
INLINE vf vf_div(vf x, vf y) { return VF_2(vf, vdivq_f32, x, y); }
INLINE vf vf_sqrt(vf x) { return VF_1(vf, vsqrtq_f32, x); }
INLINE vf vf_fma(vf x, vf y, vf z) { return VF_3(vf, neon_fma, x, y, z); }
INLINE vf vf_max(vf x, vf y) { return VF_2(vf, neon_max, x, y); }
INLINE vf vf_min(vf x, vf y) { return VF_2(vf, neon_min, x, y); }
INLINE vf vf_round(vf x) { return VF_1(vf, vrndnq_f32, x); }
INLINE vm vf_lt(vf x, vf y) { return VF_2(vm, vcltq_f32, x, y); }
INLINE bool vf_any_nan(vf x) {
  const vm m = VF_2(vm, vceqq_f32, x, x);
  return vminvq_u32(vandq_u32(vandq_u32(m.q[0], m.q[1]), vandq_u32(m.q[2], m.q[3]))) == 0;
}
INLINE vf vf_select(vm m, vf yes, vf no) { return VF_3(vf, vbslq_f32, m, yes, no); }
INLINE vf vf_zero_where(vm m, vf x) { return VF_2(vf, neon_clear, m, x); }
INLINE vi vf_to_int(vf x) { return VF_1(vi, neon_to_int, x); }
INLINE vf vi_to_float(vi x) { return VF_1(vf, vcvtq_f32_s32, x); }
INLINE vi vf_bits(vf x) { return VF_1(vi, vreinterpretq_s32_f32, x); }
INLINE vf vi_as_float(vi x) { return VF_1(vf, vreinterpretq_f32_s32, x); }
INLINE vi vi_set1(int32_t x) { return VF_SAME(vi, vdupq_n_s32(x)); }
INLINE vi vi_add(vi x, vi y) { return VF_2(vi, vaddq_s32, x, y); }
INLINE vi vi_sub(vi x, vi y) { return VF_2(vi, vsubq_s32, x, y); }
INLINE vi vi_and(vi x, vi y) { return VF_2(vi, vandq_s32, x, y); }
INLINE vi vi_or(vi x, vi y) { return VF_2(vi, vorrq_s32, x, y); }
INLINE vi vi_xor(vi x, vi y) { return VF_2(vi, veorq_s32, x, y); }
#define vi_shl(a, n) vi_shift<n>(a)
#define vi_shr(a, n) vi_shift<-(n)>(a)
template <int N> INLINE int32x4_t neon_shift(int32x4_t x) {
  const uint32x4_t u = vreinterpretq_u32_s32(x);
  if constexpr (N >= 0) return vreinterpretq_s32_u32(vshlq_n_u32(u, N));
  else return vreinterpretq_s32_u32(vshrq_n_u32(u, -N));
}
template <int N> INLINE vi vi_shift(vi x) { return VF_1(vi, neon_shift<N>, x); }
#define vi_sar(a, n) vi_shift_signed<n>(a)
template <int N> INLINE int32x4_t neon_shift_signed(int32x4_t x) { return vshrq_n_s32(x, N); }
template <int N> INLINE vi vi_shift_signed(vi x) { return VF_1(vi, neon_shift_signed<N>, x); }
INLINE int32x4_t neon_shift_by(int32x4_t x, int32x4_t n) {
  return vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(x), n));
}
INLINE vi vi_shl_by(vi x, int n) { return VF_2(vi, neon_shift_by, x, vi_set1(n)); }
INLINE vi vi_shr_by(vi x, int n) { return VF_2(vi, neon_shift_by, x, vi_set1(-n)); }
INLINE vm vi_gt(vi x, vi y) { return VF_2(vm, vcgtq_s32, x, y); }
INLINE vi vi_select(vm m, vi yes, vi no) { return VF_3(vi, vbslq_s32, m, yes, no); }
INLINE vi vi_max(vi x, vi y) { return VF_2(vi, vmaxq_s32, x, y); }
INLINE vi vi_min(vi x, vi y) { return VF_2(vi, vminq_s32, x, y); }
INLINE vi vi_load(const void *p) {
  const int32_t *x = (const int32_t *)p;
  return vi{{vld1q_s32(x), vld1q_s32(x + 4), vld1q_s32(x + 8), vld1q_s32(x + 12)}};
}
INLINE void vi_load_columns(vi to[4], const uint8_t *const row[16], int64_t at) {
  for (int g = 0; g < 4; g++) {
    float32x4_t r[4];
    for (int i = 0; i < 4; i++) r[i] = vreinterpretq_f32_u8(vld1q_u8(row[4 * g + i] + at));
    neon_transpose4(&r[0], &r[1], &r[2], &r[3]);
    for (int i = 0; i < 4; i++) to[i].q[g] = vreinterpretq_s32_f32(r[i]);
  }
}
INLINE void vi_store(void *p, vi x) { for (int i = 0; i < 4; i++) vst1q_s32((int32_t *)p + 4 * i, x.q[i]); }
INLINE vf vf_load(const float *p) { return vf{{vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}}; }
INLINE void vf_store(float *p, vf x) { for (int i = 0; i < 4; i++) vst1q_f32(p + 4 * i, x.q[i]); }
INLINE void vf_pass(float *p, vf x) { vf_store(p, x); }      // no store of ARM promises to pass the caches
INLINE void vf_passed() {}
INLINE vh vf_low_half(vf x) { return vh{{x.q[0], x.q[1]}}; }
INLINE vh vf_high_half(vf x) { return vh{{x.q[2], x.q[3]}}; }
INLINE float vf_first_lane(vf x) { return vgetq_lane_f32(x.q[0], 0); }
INLINE float vf_sum(vf x) {
  const float32x4_t s = vaddq_f32(vaddq_f32(x.q[0], x.q[2]), vaddq_f32(x.q[1], x.q[3]));
  const float32x2_t pair = vadd_f32(vget_low_f32(s), vget_high_f32(s));
  return vget_lane_f32(pair, 0) + vget_lane_f32(pair, 1);
}
INLINE float vf_max_of(vf x) {
  const float32x4_t m = neon_max(neon_max(x.q[0], x.q[2]), neon_max(x.q[1], x.q[3]));
  const float32x4_t pair = neon_max(m, vextq_f32(m, m, 2));
  return vgetq_lane_f32(neon_max(pair, vdupq_laneq_f32(pair, 1)), 0);
}
INLINE void vf_transpose(vf r[16]) {
  for (int i = 0; i < 4; i++)
    for (int j = i; j < 4; j++) {
      neon_transpose4(&r[4 * i].q[j], &r[4 * i + 1].q[j], &r[4 * i + 2].q[j], &r[4 * i + 3].q[j]);
      if (i == j) continue;
      neon_transpose4(&r[4 * j].q[i], &r[4 * j + 1].q[i], &r[4 * j + 2].q[i], &r[4 * j + 3].q[i]);
      for (int k = 0; k < 4; k++) {
        const float32x4_t t = r[4 * i + k].q[j];
        r[4 * i + k].q[j] = r[4 * j + k].q[i];
        r[4 * j + k].q[i] = t;
      }
    }
}

// ---- eight and sixteen bits
INLINE vi vi_of_halves(v16 h) {
  return vi{{vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(h.q[0]))), vreinterpretq_s32_u32(vmovl_high_u16(h.q[0])),
             vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(h.q[1]))), vreinterpretq_s32_u32(vmovl_high_u16(h.q[1]))}};
}
INLINE vi vi_of_signed(v16 h) {
  const int16x8_t a = vreinterpretq_s16_u16(h.q[0]), b = vreinterpretq_s16_u16(h.q[1]);
  return vi{{vmovl_s16(vget_low_s16(a)), vmovl_high_s16(a), vmovl_s16(vget_low_s16(b)), vmovl_high_s16(b)}};
}
INLINE v16 vi_upper_halves(vi x) {
  const uint16x8_t a = vreinterpretq_u16_s32(x.q[0]), b = vreinterpretq_u16_s32(x.q[1]);
  const uint16x8_t c = vreinterpretq_u16_s32(x.q[2]), d = vreinterpretq_u16_s32(x.q[3]);
  return v16{{vuzp2q_u16(a, b), vuzp2q_u16(c, d)}};
}
INLINE v16 vi_lower_halves(vi x) {
  const uint16x8_t a = vreinterpretq_u16_s32(x.q[0]), b = vreinterpretq_u16_s32(x.q[1]);
  const uint16x8_t c = vreinterpretq_u16_s32(x.q[2]), d = vreinterpretq_u16_s32(x.q[3]);
  return v16{{vuzp1q_u16(a, b), vuzp1q_u16(c, d)}};
}
INLINE v16 v16_zero() { return v16{{vdupq_n_u16(0), vdupq_n_u16(0)}}; }
INLINE v16 v16_load(const void *p) { return v16{{vld1q_u16((const uint16_t *)p), vld1q_u16((const uint16_t *)p + 8)}}; }
INLINE v16 v16_load_n(const void *p, int64_t n) {
  v16 x = v16_zero();
  if (n > 0) memcpy(&x, p, (size_t)n * 2);
  return x;
}
INLINE void v16_store(void *p, v16 x) { vst1q_u16((uint16_t *)p, x.q[0]), vst1q_u16((uint16_t *)p + 8, x.q[1]); }
INLINE vi vi_of_bytes(uint8x16_t x) { return vi_of_halves(v16{{vmovl_u8(vget_low_u8(x)), vmovl_high_u8(x)}}); }
INLINE vi vi_load_bytes(const void *p) { return vi_of_bytes(vld1q_u8((const uint8_t *)p)); }
INLINE vi vi_load_nibbles(const void *p) {
  const uint8x8_t x = vld1_u8((const uint8_t *)p), high = vshr_n_u8(x, 4);
  return vi_of_bytes(vcombine_u8(vzip1_u8(high, x), vzip2_u8(high, x)));
}
INLINE vf vf_table(const float *table, vi at) {  // bytes of the table: four for each lane
  const uint8_t *const t = (const uint8_t *)table;
  const uint8x16x4_t bytes = {{vld1q_u8(t), vld1q_u8(t + 16), vld1q_u8(t + 32), vld1q_u8(t + 48)}};
  vf x;
  for (int i = 0; i < 4; i++) {
    const uint32x4_t four = vandq_u32(vreinterpretq_u32_s32(at.q[i]), vdupq_n_u32(15));
    const uint32x4_t index = vmlaq_n_u32(vdupq_n_u32(0x03020100), four, 0x04040404);
    x.q[i] = vreinterpretq_f32_u8(vqtbl4q_u8(bytes, vreinterpretq_u8_u32(index)));
  }
  return x;
}
INLINE void vi_store_bytes(void *p, vi x) {      // lanes of 0 .. 255
  const v16 h = vi_lower_halves(x);
  vst1q_u8((uint8_t *)p, vuzp1q_u8(vreinterpretq_u8_u16(h.q[0]), vreinterpretq_u8_u16(h.q[1])));
}
INLINE vf vf_from_half_bits(v16 h, bf16 *) { return vi_as_float(vi_shl(vi_of_halves(h), 16)); }
INLINE vf vf_from_half_bits(v16 h, fp16 *) {
  const float16x8_t a = vreinterpretq_f16_u16(h.q[0]), b = vreinterpretq_f16_u16(h.q[1]);
  return vf{{vcvt_f32_f16(vget_low_f16(a)), vcvt_high_f32_f16(a), vcvt_f32_f16(vget_low_f16(b)), vcvt_high_f32_f16(b)}};
}
INLINE v16 vf_to_half_bits(vf x, fp16 *) {
  return v16{{vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(x.q[0]), x.q[1])),
              vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(x.q[2]), x.q[3]))}};
}
INLINE v16 vf_to_half_bits(vf x, bf16 *) {       // to nearest even; a NaN becomes quiet
  const vi u = vf_bits(x), odd = vi_and(vi_shr(u, 16), vi_set1(1));
  const vi r = vi_add(u, vi_add(odd, vi_set1(0x7fff)));
  if (!__builtin_expect(vf_any_nan(x), 0)) return vi_upper_halves(r);
  return vi_upper_halves(vi_select(VF_2(vm, vceqq_f32, x, x), r, vi_or(u, vi_set1(0x400000))));
}

// ---- Philox's round, in counters of four lanes x y z w
INLINE vi vi_set4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  const int32_t lanes[4] = {(int32_t)x, (int32_t)y, (int32_t)z, (int32_t)w};
  return VF_SAME(vi, vld1q_s32(lanes));
}
INLINE int32x4_t neon_products4(int32x4_t a, int32x4_t b) {
  const uint64x2_t p = vmull_u32(vmovn_u64(vreinterpretq_u64_s32(a)), vmovn_u64(vreinterpretq_u64_s32(b)));
  const uint32x4_t swapped = vrev64q_u32(vreinterpretq_u32_u64(p));
  return vreinterpretq_s32_u32(vextq_u32(swapped, swapped, 2));
}
INLINE int32x4_t neon_odds_down(int32x4_t a) {
  return vreinterpretq_s32_u64(vshrq_n_u64(vreinterpretq_u64_s32(a), 32));
}
INLINE vi vi_products4(vi x, vi y) { return VF_2(vi, neon_products4, x, y); }
INLINE vi vi_odds_down(vi x) { return VF_1(vi, neon_odds_down, x); }
INLINE vi vi_evens(vi x) { return VF_2(vi, vtrn1q_s32, x, x); }
INLINE vi vi_odds(vi x) { return VF_2(vi, vtrn2q_s32, x, x); }
INLINE uint32x4_t neon_below(int32x4_t a, int32x4_t b) {
  return vcltq_u32(vreinterpretq_u32_s32(a), vreinterpretq_u32_s32(b));
}
INLINE vm vi_below(vi x, uint32_t y) { return VF_2(vm, neon_below, x, vi_set1((int32_t)y)); }

// ---- eight
INLINE vh vh_zero() { return vh{{vdupq_n_f32(0), vdupq_n_f32(0)}}; }
INLINE vh vh_load(const float *p) { return vh{{vld1q_f32(p), vld1q_f32(p + 4)}}; }
INLINE vh vh_load(const fp16 *p) {
  const float16x8_t x = vreinterpretq_f16_u16(vld1q_u16((const uint16_t *)p));
  return vh{{vcvt_f32_f16(vget_low_f16(x)), vcvt_high_f32_f16(x)}};
}
INLINE vh vh_load(const bf16 *p) {
  const uint16x8_t x = vld1q_u16((const uint16_t *)p), zero = vdupq_n_u16(0);
  return vh{{vreinterpretq_f32_u16(vzip1q_u16(zero, x)), vreinterpretq_f32_u16(vzip2q_u16(zero, x))}};
}
INLINE void vh_store(float *p, vh x) { vst1q_f32(p, x.q[0]), vst1q_f32(p + 4, x.q[1]); }
INLINE void vh_transpose(vh r[8]) {
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 2; j++) neon_transpose4(&r[i].q[j], &r[i + 1].q[j], &r[i + 2].q[j], &r[i + 3].q[j]);
  for (int k = 0; k < 4; k++) {
    const float32x4_t t = r[k].q[1];
    r[k].q[1] = r[k + 4].q[0];
    r[k + 4].q[0] = t;
  }
}
INLINE void v8_transpose(bf16 *to, const bf16 *from, int64_t N) {
  uint16x8_t r[8];
  for (int i = 0; i < 8; i++) r[i] = vld1q_u16((const uint16_t *)(from + i * N));
  for (int round = 0; round < 3; round++) {      // interleaving row i with row i + 4, three times, transposes
    uint16x8_t s[8];
    for (int i = 0; i < 4; i++) s[2 * i] = vzip1q_u16(r[i], r[i + 4]), s[2 * i + 1] = vzip2q_u16(r[i], r[i + 4]);
    for (int i = 0; i < 8; i++) r[i] = s[i];
  }
  for (int i = 0; i < 8; i++) vst1q_u16((uint16_t *)(to + i * N), r[i]);
}
INLINE vd vd_of(vh x) {
  return vd{{vcvt_f64_f32(vget_low_f32(x.q[0])), vcvt_high_f64_f32(x.q[0]), vcvt_f64_f32(vget_low_f32(x.q[1])),
             vcvt_high_f64_f32(x.q[1])}};
}
INLINE vd vd_set1(double x) { return VF_SAME(vd, vdupq_n_f64(x)); }
INLINE vd vd_add(vd x, vd y) { return VF_2(vd, vaddq_f64, x, y); }
INLINE vd vd_sub(vd x, vd y) { return VF_2(vd, vsubq_f64, x, y); }
INLINE float64x2_t neon_square_add(float64x2_t x, float64x2_t y) { return vfmaq_f64(y, x, x); }
INLINE float64x2_t neon_square_sub(float64x2_t x, float64x2_t y) { return vfmaq_f64(vnegq_f64(y), x, x); }
INLINE vd vd_square_add(vd x, vd y) { return VF_2(vd, neon_square_add, x, y); }
INLINE vd vd_square_sub(vd x, vd y) { return VF_2(vd, neon_square_sub, x, y); }
INLINE vl vl_zero() { return VF_SAME(vl, vdupq_n_s64(0)); }
INLINE int64x2_t neon_add_bits(int64x2_t s, float64x2_t x) { return vaddq_s64(s, vreinterpretq_s64_f64(x)); }
INLINE vl vl_add_bits(vl s, vd x) { return VF_2(vl, neon_add_bits, s, x); }
