// block_vec.h: values of quantization blocks (kernels/blocks.h) in the lanes of vec.h: sixteen neighbours of a row, or
// the same value of sixteen rows; behind block_decode.h. CPU sections only, family blocks.
#pragma once
#include "block_decode.h"

template <int TYPE> alignas(64) static constexpr BlockCodes block_table = block_codes(TYPE);

// ---- sixteen neighbours: block_number of run `run`
template <int TYPE> INLINE vf block_run_numbers(const uint8_t *b, int run) {
  const int k = run / 2, at = 16 * (run % 2);
  const vi low = vi_set1(15);
  if constexpr (TYPE == BLOCK_NF4) return vf_table(block_table<TYPE>.code, vi_load_nibbles(b + 4 + 8 * run));
  else if constexpr (TYPE == BLOCK_Q8_0) return vi_to_float(vi_sar(vi_shl(vi_load_bytes(b + 2 + at), 24), 24));
  else if constexpr (TYPE == BLOCK_Q6_K) {
    const uint8_t *const four = b + run / 8 * 64 + k % 2 * 32 + at, *const two = b + 128 + run / 8 * 32 + at;
    const vi high = vi_and(vi_shr_by(vi_load_bytes(two), k % 4 * 2), vi_set1(3));
    return vi_to_float(vi_sub(vi_or(vi_and(vi_shr_by(vi_load_bytes(four), k % 4 / 2 * 4), low), vi_shl(high, 4)),
                              vi_set1(32)));
  } else if constexpr (block_is_k45(TYPE)) {
    const vi four = vi_and(vi_shr_by(vi_load_bytes(b + block_bytes(TYPE) - 128 + k / 2 * 32 + at), k % 2 * 4), low);
    if constexpr (TYPE == BLOCK_Q4_K) return vi_to_float(four);
    return vi_to_float(vi_or(four, vi_shl(vi_and(vi_shr_by(vi_load_bytes(b + 16 + at), k), vi_set1(1)), 4)));
  } else {
    alignas(64) static const int32_t bit[16] = {1, 2, 4, 8, 1 << 4, 1 << 5, 1 << 6, 1 << 7, 1 << 8, 1 << 9, 1 << 10,
                                                1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15};
    const uint8_t *const q = b + block_bytes(TYPE) - 16, *const fifth = q - 4 + 2 * run;
    vi x = vi_shr_by(vi_load_bytes(q), 4 * run);
    if constexpr (block_has_codes(TYPE)) return vf_table(block_table<TYPE>.code, x);
    x = vi_and(x, low);
    if constexpr (block_has_fifth(TYPE))
      x = vi_select(vi_gt(vi_and(vi_set1(fifth[0] | fifth[1] << 8), vi_load(bit)), vi_set1(0)), vi_or(x, vi_set1(16)),
                    x);
    if constexpr (block_has_least(TYPE)) return vi_to_float(x);
    return vi_to_float(vi_sub(x, vi_set1(TYPE == BLOCK_Q4_0 ? 8 : 16)));
  }
}
// block_value of run `run`, in fp32, of a block whose head is h.
template <int TYPE> INLINE vf block_run(BlockHead h, const uint8_t *b, int run) {
  const vf x = vf_mul(vf_set1(block_scale<TYPE>(h, b, run)), block_run_numbers<TYPE>(b, run));
  if constexpr (!block_has_least(TYPE)) return x;
  const vf least = vf_set1(block_least<TYPE>(h, b, run));
  if constexpr (block_is_k45(TYPE)) return vf_sub(x, least);
  else return vf_add(x, least);
}

// ---- the same value of sixteen rows: bytes are transposed, four or more values in a lane's 32 bits at once, and then
// picked out of the lanes, k by k. Products of scales and small integers are exact in fp32, so that a fused
// multiply-add rounds what the formula rounds
// 32 values of each row: bytes, four k a lane, k ascending from the lowest. Value k is scale[k / 16] times a signed
// byte, or for a type with least numbers an unsigned byte, plus `least`; or of one with codes, what four bits mean.
struct BlockLanes { vi u[8]; vf scale[2], least; };
INLINE vf vi_lower_fp16(vi x) { return vf_from_half_bits(vi_lower_halves(x), (fp16 *)NULL); }
INLINE vf vi_upper_fp16(vi x) { return vf_from_half_bits(vi_upper_halves(x), (fp16 *)NULL); }
// Unsigned bytes below 128, less `by`, as signed bytes.
INLINE vi vi_bytes_less(vi x, int by) {
  const vi high = vi_set1((int)0x80808080u);
  return vi_xor(vi_sub(vi_or(x, high), vi_set1(by * 0x01010101)), high);
}
// Numbers of four bits of 16 bytes: the low ones, then the high ones. fifth: a bit for each; NULL: none.
INLINE void block_lanes_four(BlockLanes *to, const uint8_t *const *row, int64_t at, const vi *fifth) {
  vi x[4];
  const vi low = vi_set1(0x0f0f0f0f), one = vi_set1(0x10101010);
  vi_load_columns(x, row, at);
#pragma GCC unroll 4
  for (int j = 0; j < 4; j++) {
    to->u[j] = vi_and(x[j], low), to->u[4 + j] = vi_and(vi_shr(x[j], 4), low);
    if (!fifth) continue;
    for (int h = 0; h < 2; h++) {                // bits n .. n + 3 of *fifth, to bits 4, 12, 20 and 28
      const vi four = vi_and(vi_shr_by(*fifth, 16 * h + 4 * j), vi_set1(15));
      const vi spread = vi_or(vi_or(vi_shl(four, 4), vi_shl(four, 11)), vi_or(vi_shl(four, 18), vi_shl(four, 25)));
      to->u[4 * h + j] = vi_or(to->u[4 * h + j], vi_and(spread, one));
    }
  }
}
// Scales of six bits of sub-block k of Q4_K and Q5_K; s: dwords of its block. See block_q45_k.
INLINE void block_lanes_scales_k(BlockLanes *to, const vi s[4], int k) {
  const int by = 8 * (k % 4);
  const vi six = vi_set1(63), four = vi_set1(15), two = vi_set1(0x30);
  const vi a = vi_shr_by(s[1], by), b = vi_shr_by(s[2], by), c = vi_shr_by(s[3], by);
  const vi scale = k < 4 ? vi_and(a, six) : vi_or(vi_and(c, four), vi_and(vi_shr(a, 2), two));
  const vi least = k < 4 ? vi_and(b, six) : vi_or(vi_and(vi_shr(c, 4), four), vi_and(vi_shr(b, 2), two));
  to->scale[0] = to->scale[1] = vf_mul(vi_lower_fp16(s[0]), vi_to_float(scale));
  to->least = vf_sub(vf_zero(), vf_mul(vi_upper_fp16(s[0]), vi_to_float(least)));
}
// Values 32 part .. of the blocks at byte `at` of each row. Of types with codes the lanes' bits as stored: the lowest
// four of a byte are looked up, in NF4 first the upper ones.
template <int TYPE> INLINE void block_lanes_of(BlockLanes *to, const uint8_t *const *row, int64_t at, int part) {
  vi s[4];
  if constexpr (TYPE != BLOCK_Q6_K) vi_load_columns(s, row, at);
  if constexpr (block_is_k45(TYPE)) {
    const int64_t q = at + (TYPE == BLOCK_Q4_K ? 16 : 48) + part / 2 * 32;
    block_lanes_scales_k(to, s, part);
    vi_load_columns(to->u, row, q);
    vi_load_columns(to->u + 4, row, q + 16);
    for (int j = 0; j < 8; j++) to->u[j] = vi_and(vi_shr_by(to->u[j], part % 2 * 4), vi_set1(0x0f0f0f0f));
    if constexpr (TYPE == BLOCK_Q4_K) return;
    vi high[8];
    vi_load_columns(high, row, at + 16);
    vi_load_columns(high + 4, row, at + 32);
    for (int j = 0; j < 8; j++)
      to->u[j] = vi_or(to->u[j], vi_shl(vi_and(vi_shr_by(high[j], part), vi_set1(0x01010101)), 4));
  } else if constexpr (TYPE == BLOCK_Q6_K) {
    const int half = part / 4, group = part % 4;
    vi high[8];
    vi_load_columns(s, row, at + 194);           // the block's last 16 bytes
    const vf d = vi_upper_fp16(s[3]);
    to->least = vf_zero();
    vi_load_columns(s, row, at + 192);
    const vi scales = vi_shl_by(s[part / 2], 16 * (1 - part % 2));
    to->scale[0] = vf_mul(d, vi_to_float(vi_sar(vi_shl(scales, 8), 24)));
    to->scale[1] = vf_mul(d, vi_to_float(vi_sar(scales, 24)));
    vi_load_columns(to->u, row, at + 64 * half + 32 * (group & 1));
    vi_load_columns(to->u + 4, row, at + 64 * half + 32 * (group & 1) + 16);
    vi_load_columns(high, row, at + 128 + 32 * half);
    vi_load_columns(high + 4, row, at + 144 + 32 * half);
    for (int j = 0; j < 8; j++) {
      const vi two = vi_shl(vi_and(vi_shr_by(high[j], 2 * group), vi_set1(0x03030303)), 4);
      to->u[j] = vi_bytes_less(vi_or(vi_and(vi_shr_by(to->u[j], group / 2 * 4), vi_set1(0x0f0f0f0f)), two), 32);
    }
  } else if constexpr (TYPE == BLOCK_MXFP4) {
    const vi e = vi_and(s[0], vi_set1(255)), more = vi_shl(vi_sub(e, vi_set1(1)), 23);
    to->scale[0] = to->scale[1] = vi_as_float(vi_select(vi_gt(e, vi_set1(1)), more, vi_shl(vi_add(e, vi_set1(1)), 21)));
    vi_load_columns(to->u, row, at + 1);
    for (int j = 0; j < 4; j++) to->u[4 + j] = vi_shr(to->u[j], 4);
  } else if constexpr (TYPE == BLOCK_NF4) {
    to->scale[0] = to->scale[1] = vi_as_float(s[0]);
    vi_load_columns(s, row, at + 4 + 16 * part);
    for (int j = 0; j < 4; j++) to->u[2 * j] = s[j], to->u[2 * j + 1] = vi_shr(s[j], 16);
  } else {
    const vi fifth = TYPE == BLOCK_Q5_0 ? vi_or(vi_shr(s[0], 16), vi_shl(s[1], 16)) : s[1];
    const bool has_fifth = block_has_fifth(TYPE);
    to->scale[0] = to->scale[1] = vi_lower_fp16(s[0]);
    to->least = vi_upper_fp16(s[0]);
    if constexpr (TYPE == BLOCK_Q8_0) {
      vi_load_columns(to->u, row, at + 2);
      vi_load_columns(to->u + 4, row, at + 18);
      return;
    }
    block_lanes_four(to, row, at + block_bytes(TYPE) - 16, has_fifth ? &fifth : NULL);
    for (int j = 0; j < 8 && !block_has_least(TYPE); j++) to->u[j] = vi_bytes_less(to->u[j], has_fifth ? 16 : 8);
  }
}
template <int TYPE>
INLINE void block_lanes(BlockLanes *to, const uint8_t *const *row, int64_t at, int part, bool bf) {
  block_lanes_of<TYPE>(to, row, at, part);
  if (!bf) return;
  for (vf &x : to->scale) x = vi_as_float(master_lane_bits(x));
  if constexpr (block_has_least(TYPE)) to->least = vi_as_float(master_lane_bits(to->least));
}
// Value 16 run + i of them, i known when this is compiled.
template <int TYPE> INLINE vf block_lanes_value(const BlockLanes *b, int run, int i) {
  const vi x = b->u[4 * run + i / 4];
  if constexpr (block_has_codes(TYPE)) {
    const int by = TYPE == BLOCK_NF4 ? i % 4 / 2 * 8 + (i % 2 ? 0 : 4) : i % 4 * 8;
    const vi four = by == 0 ? x : by == 4 ? vi_shr(x, 4) : by == 8 ? vi_shr(x, 8) : by == 12 ? vi_shr(x, 12)
                  : by == 16 ? vi_shr(x, 16) : vi_shr(x, 24);
    return vf_mul(b->scale[run], vf_table(block_table<TYPE>.code, four));
  } else if constexpr (block_has_least(TYPE)) {
    const vi low = i % 4 == 0 ? x : i % 4 == 1 ? vi_shr(x, 8) : i % 4 == 2 ? vi_shr(x, 16) : vi_shr(x, 24);
    return vf_fma(b->scale[run], vi_to_float(i % 4 == 3 ? low : vi_and(low, vi_set1(255))), b->least);
  } else {
    const vi high = i % 4 == 0 ? vi_shl(x, 24) : i % 4 == 1 ? vi_shl(x, 16) : i % 4 == 2 ? vi_shl(x, 8) : x;
    return vf_mul(b->scale[run], vi_to_float(vi_sar(high, 24)));
  }
}

// ---- block_decode.h's functions of a type
template <int TYPE>
static void block_decode_lanes(float *to, const uint8_t *const *row, int64_t at, int part, bool bf) {
  BlockLanes b;
  block_lanes<TYPE>(&b, row, at, part, bf);
  for (int run = 0; run < 2; run++)
#pragma GCC unroll 16
    for (int i = 0; i < BLOCK_RUN; i++, to += VF) vf_store(to, block_lanes_value<TYPE>(&b, run, i));
}
template <int TYPE> static void block_decode_values(float *to, const uint8_t *b, int first, int runs, bool bf) {
  BlockHead h = block_head<TYPE>(b);
  if (bf) h = {bits_f32(master_bits(h.scale)), bits_f32(master_bits(h.least))};
  for (int run = first; run < first + runs; run++) vf_store(to + run * BLOCK_RUN, block_run<TYPE>(h, b, run));
}
BlockDecoder block_decoder(int type) {
  BLOCK_DISPATCH(type, TYPE,
                 return BlockDecoder{block_values(TYPE), block_bytes(TYPE), block_decode_lanes<TYPE>,
                                     block_decode_values<TYPE>});
}
