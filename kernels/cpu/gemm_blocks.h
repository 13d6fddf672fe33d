// gemm_blocks.h: matrix multiplies of a few rows with rows that are stored in blocks (blocks.h), as they lie: b is read
// once, 2 to 8.5 bits a number, and a number is its block's formula in fp32, rounded to the dtype of the product. The
// order of sums is that of gemm.h, so that a result has the bits of a multiply by the expanded rows.
//
// Lanes are columns of out, as in gemm_few.h. Where that transposes numbers, this transposes the bytes of 16 rows, four
// or more numbers in a lane's 32 bits at once; then the numbers are picked out of the lanes, k by k. Products of scales
// and small integers are exact in fp32, so that a fused multiply-add rounds what the formula rounds.
#pragma once
#include "gemm_few.h"
#include "kernels/blocks.h"
#include "kernels/master.cuh"

// 32 numbers of each of 16 rows: bytes, four k a lane, k ascending from the lowest. Number k is scale[k / 16] times a
// signed byte, or for a type with a least number an unsigned byte, plus `least`. Of other types: the numbers.
struct BlockLanes { vi u[8]; vf scale[2], least; };
struct BlockNumbers { vf x[32]; };
INLINE constexpr bool block_has_lanes(int type) { return type != BLOCK_MXFP4 && type != BLOCK_NF4; }
INLINE constexpr bool block_has_least(int type) {
  return type == BLOCK_Q4_1 || type == BLOCK_Q5_1 || type == BLOCK_Q4_K || type == BLOCK_Q5_K;
}
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
// Numbers 32 part .. of the blocks at byte `at` of each row.
template <int TYPE> INLINE void block_lanes(BlockLanes *to, const uint8_t *const *row, int64_t at, int part) {
  vi s[4];
  if constexpr (TYPE != BLOCK_Q6_K) vi_load_columns(s, row, at);
  if constexpr (TYPE == BLOCK_Q4_K || TYPE == BLOCK_Q5_K) {
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
  } else {
    const vi fifth = TYPE == BLOCK_Q5_0 ? vi_or(vi_shr(s[0], 16), vi_shl(s[1], 16)) : s[1];
    const bool has_fifth = TYPE == BLOCK_Q5_0 || TYPE == BLOCK_Q5_1;
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
template <int TYPE> INLINE void block_lanes(BlockNumbers *to, const uint8_t *const *row, int64_t at, int part) {
  for (int run = 0; run < 2; run++) {
    alignas(64) float x[VF];
    vf r[VF];
    for (int l = 0; l < VF; l++) {
      for (int i = 0; i < BLOCK_RUN; i++) x[i] = block_value<TYPE>(row[l] + at, 2 * part + run, i);
      r[l] = vf_load(x);
    }
    vf_transpose(r);
    for (int i = 0; i < BLOCK_RUN; i++) to->x[BLOCK_RUN * run + i] = r[i];
  }
}
// Number 16 run + i of them, known when this is compiled.
template <int TYPE> INLINE vf block_lanes_value(const BlockNumbers *b, int run, int i) {
  return b->x[BLOCK_RUN * run + i];
}
template <int TYPE> INLINE vf block_lanes_value(const BlockLanes *b, int run, int i) {
  const vi x = b->u[4 * run + i / 4];
  if constexpr (block_has_least(TYPE)) {
    const vi low = i % 4 == 0 ? x : i % 4 == 1 ? vi_shr(x, 8) : i % 4 == 2 ? vi_shr(x, 16) : vi_shr(x, 24);
    return vf_fma(b->scale[run], vi_to_float(i % 4 == 3 ? low : vi_and(low, vi_set1(255))), b->least);
  } else {
    const vi high = i % 4 == 0 ? vi_shl(x, 24) : i % 4 == 1 ? vi_shl(x, 16) : i % 4 == 2 ? vi_shl(x, 8) : x;
    return vf_mul(b->scale[run], vi_to_float(vi_sar(high, 24)));
  }
}
// As numbers of the dtype that is multiplied, rounded as parameters are (master.cuh), which keeps NaNs by block_quiet.
template <class T> INLINE void block_quiet(T *, BlockLanes *) {}
template <class T> INLINE void block_quiet(T *, BlockNumbers *) {}
INLINE void block_quiet(bf16 *, BlockLanes *b) {
  for (vf *x : {&b->scale[0], &b->scale[1], &b->least}) *x = vi_as_float(master_lane_bits(*x));
}
INLINE void block_quiet(bf16 *, BlockNumbers *b) { for (vf &x : b->x) x = vi_as_float(master_lane_bits(x)); }
INLINE vf block_rounded(vf x, float *) { return x; }
INLINE vf block_rounded(vf x, fp16 *to) { return vf_from_half_bits(vf_to_half_bits(x, to), to); }
INLINE vf block_rounded(vf x, bf16 *) {
  return vi_as_float(vi_and(vi_add(vf_bits(x), vi_set1(0x8000)), vi_set1((int)0xffff0000u)));
}
// Two of bf16, x lower.
INLINE vf block_pair(vf x, vf y) {
  return vi_as_float(vi_or(vi_shr(vi_add(vf_bits(x), vi_set1(0x8000)), 16), vf_bits(block_rounded(y, (bf16 *)NULL))));
}
// One run of 16 numbers of GEMM_NR columns. a: its words of the first row.
template <int TYPE, class T, bool DOT, int ROWS, class B>
INLINE void gemm_blocks_run(vf acc[ROWS][GEMM_NR / VF], const B *b, int run, const float *a,
                            int64_t a_stride) {
#pragma GCC unroll 16
  for (int i = 0; i < (DOT ? 8 : 16); i++)
#pragma GCC unroll 2
    for (int v = 0; v < GEMM_NR / VF; v++) {
      vf w;
      if constexpr (DOT)
        w = block_pair(block_lanes_value<TYPE>(b + v, run, 2 * i), block_lanes_value<TYPE>(b + v, run, 2 * i + 1));
      else
        w = block_rounded(block_lanes_value<TYPE>(b + v, run, i), (T *)NULL);
#pragma GCC unroll 4
      for (int r = 0; r < ROWS; r++) acc[r][v] = gemm_step<DOT>(a + r * a_stride, i, w, acc[r][v]);
    }
}
// sums[ROWS][GEMM_NR] of the columns whose bytes begin at row[0] .. ; ahead: bytes to the columns that come next.
template <int TYPE, class T, bool DOT, int ROWS, class B>
static void gemm_blocks_columns(float *sums, const float *a, int64_t a_stride, const uint8_t *const *row, int64_t ahead,
                                int64_t K, int64_t block_k) {
  enum { VECS = GEMM_NR / VF };
  constexpr int parts = block_values(TYPE) / 32, bytes = block_bytes(TYPE);
  vf acc[ROWS][VECS];
  for (int r = 0; r < ROWS; r++) for (int v = 0; v < VECS; v++) acc[r][v] = vf_zero();
  int64_t left = block_k;
  for (int64_t k = 0, at = 0; k < K; at += bytes)
    for (int part = 0; part < parts; part++) {
      B b[VECS];
      const char *const next = (const char *)row[0] + ahead + (at + part * bytes / parts) * GEMM_NR;
      for (int i = 0; i < bytes * GEMM_NR / parts; i += 64) __builtin_prefetch(next + i);
      for (int v = 0; v < VECS; v++) block_lanes<TYPE>(&b[v], row + v * VF, at, part), block_quiet((T *)NULL, &b[v]);
      for (int run = 0; run < 2; run++, k += BLOCK_RUN, a += DOT ? BLOCK_RUN / 2 : BLOCK_RUN) {
        gemm_blocks_run<TYPE, T, DOT, ROWS>(acc, b, run, a, a_stride);
        left -= BLOCK_RUN;
        if (left && k + BLOCK_RUN < K) continue;
        const bool add = k + BLOCK_RUN > block_k;
        for (int r = 0; r < ROWS; r++)
          for (int v = 0; v < VECS; v++) {
            float *const to = sums + r * GEMM_NR + v * VF;
            vf_store(to, add ? vf_add(vf_load(to), acc[r][v]) : acc[r][v]);
            acc[r][v] = vf_zero();
          }
        left = block_k;
      }
    }
}
template <int TYPE, class T, bool DOT, int ROWS>
static void gemm_blocks_rows(Ctx *c, const GemmJob *j, int64_t block_k) {
  const int64_t a_stride = gemm_few_copy<T, DOT>(c, j, ROWS), row_bytes = blocks_bytes(TYPE, j->K);
  const float *const a = (const float *)c->workspace;
  parallel_tasks(c->threads, gemm_ceil_div(j->b.count, GEMM_NR), 4, [=](int64_t task) {
    alignas(64) float sums[ROWS * GEMM_NR];
    const int64_t first = task * GEMM_NR, cols = gemm_min(GEMM_NR, j->b.count - first);
    const uint8_t *row[GEMM_NR];
    for (int64_t l = 0; l < GEMM_NR; l++)        // columns that are not there: the last one again
      row[l] = (const uint8_t *)j->b.data + (first + gemm_min(l, cols - 1)) * row_bytes;
    if constexpr (block_has_lanes(TYPE))
      gemm_blocks_columns<TYPE, T, DOT, ROWS, BlockLanes>(sums, a, a_stride, row, GEMM_NR * row_bytes, j->K, block_k);
    else
      gemm_blocks_columns<TYPE, T, DOT, ROWS, BlockNumbers>(sums, a, a_stride, row, GEMM_NR * row_bytes, j->K, block_k);
    j->finish(j, sums, ROWS * GEMM_NR, 0, first, j->a.count, cols);
  });
}
template <class T, bool DOT> static void gemm_blocks_of(Ctx *c, const GemmJob *j, int type) {
  const GemmKernel g = {GEMM_MR, 2, DOT ? 32 : 16, 16, GEMM_K_WORDS, GEMM_K_WORDS, 0, NULL, NULL, NULL, NULL};
  const int64_t block_k = gemm_block_k(j->K, &g);
  BLOCK_DISPATCH(type, TYPE, {
    if (j->a.count == 1) gemm_blocks_rows<TYPE, T, DOT, 1>(c, j, block_k);
    else gemm_blocks_rows<TYPE, T, DOT, GEMM_FEW_ROWS>(c, j, block_k);
  });
}
// A job of at most GEMM_FEW_ROWS rows whose b is rows of blocks of `type`.
static void gemm_blocks(Ctx *c, const GemmJob *j, int type) {
#if GEMM_PAIRS
  if (j->a.dtype == BF16) gemm_blocks_of<bf16, true>(c, j, type);
#else
  if (j->a.dtype == BF16) gemm_blocks_of<bf16, false>(c, j, type);
#endif
  if (j->a.dtype == F16) gemm_blocks_of<fp16, false>(c, j, type);
  if (j->a.dtype == F32) gemm_blocks_of<float, false>(c, j, type);
}
