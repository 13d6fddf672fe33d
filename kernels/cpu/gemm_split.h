// gemm_split.h: fp32 GEMMs on AMX tiles, which multiply bf16 only (--matmul_precision high on a CPU). Part of gemm.h in
// the tables with tiles: one more GemmKernel. Other instruction sets reject the option: six multiplies on vdpbf16ps,
// which has twice the throughput of fp32 multiply-adds, would take three times as long as plain fp32. Tiles have about
// seventeen times the throughput.
//
// Method: an fp32 number is the sum of three bf16 (Henry, Tang and Heinecke, "Leveraging the bfloat16 artificial
// intelligence datatype for higher-precision computations", 2019). Of the nine products of parts the six largest are
// computed:
//   x0 = x to 8 bits, x1 = x - x0 to 8 bits, x2 = x - x0 - x1; to nearest, ties away from zero: an addition and a mask
//   a b ~ a0 b2 + a0 b1 + a1 b1 + a1 b0 + a2 b0 + a0 b0, all into the same fp32 sums
//
// Order of sums: k is cut into blocks (gemm_block_k: at most 192, so that 36 KB of a stay in a 48 KB L1 while b streams
// through), and blocks into steps of 32. A step computes the six products in the order above. Each shares a factor with
// the previous one and only a0 is loaded twice: 14 tile loads for 24 tile dot products. Ascending order takes 22 loads
// and gains no accuracy after the first step, because the sums are then already large. One dot product is two chains of
// 16 fused multiply-adds from zero, over k = 0..15 and 16..31 of the step; their sum is added to the tile. Blocks are
// added in fp32. With as many loads a prototype reached 450 to 566 GFLOP/s per core, on a Xeon whose fp32 GEMMs reach
// 180.
//
// Error. u = 2^-24, 2^e <= |x| < 2^(e+1). Both remainders are exact in fp32, |x1| <= 2^(e-8), |x2| <= 2^(e-17), and x2
// has at most 8 bits, x being a multiple of 2^(e-23): the split is exact. |x0| + |x1| + |x2| <= |x| (1 + 2^-7 + 2^-17).
// The products left out are at most (2^-25 + 2^-25 + 2^-34) |a b| < 1.001 u |a b|. The computed ones are together at
// most 1.016 |a b|. Each passes at most 15 roundings in its chain, one where the two chains meet, 6 s - 1 in the tile
// (s steps per block; the first addition is to zero) and B - 1 between B blocks. So
//   |error| <= 1.02 (6 s + B + 15) u sum |a b|  +  K 2^-104,      B = ceil(K / 192), s = ceil(K / (32 B))
// against (K' + B' - 1) u sum |a b| for B' chains of K' fused multiply-adds: 55 against 257 for K = 512, and the
// smaller one for K from 23 to 100 000.
// The absolute term: tiles read denormals as zero and flush denormal results. That loses less than 2^-126 in each of
// 6.4 operations per product. An operand with denormal parts (only below 2^-103) loses less than 1.01 2^-126 times the
// other operand.
//
// The plain kernel computes what tiles cannot: fused multiply-adds in gemm.h's order, with the same bits as without the
// option. The decision is made for each element of the result, from its own row of a and its own row of b. The plain
// kernel computes
//   - sums that are not finite. An infinity, a NaN, or a number that bf16 rounds to infinity (from 2^128 - 2^119 on)
//     has NaN as x2, which makes every product with it NaN.
//   - sums where, in one block of k, one row has an element of 2^20 or more and the other an element below 2^-102
//     (zero included): gemm_tile_split turns these sums into NaN. If all elements are below 2^20, small elements lose
//     no more than the absolute term and need no repair. They are common: GELU makes them from -9.3 on.
#pragma once
#include "gemm_amx.h"
#if AMX_TILES

// Panels of both operands: steps of 32 rows x 32 k, [part][half][16 lines][16 words], in the order in which tiles load
// them. A word holds k and k + 16, so that rows need no shuffle. a: lines are 16 rows, words the pairs of k; b: the
// reverse. The word after the parts says whether the step has an element of 2^20 or more; 31 unused words align the
// next step.
enum { SPLIT_TILE = 256, SPLIT_PART = 512, SPLIT_LARGE_HERE = 3 * SPLIT_PART, SPLIT_STEP = 49 * 32 };      // words

// ---- packing: 32 x 32 numbers at a time ----------------------------------------------------------------------------
INLINE vi split_upper_halves(vf x, vf y) {       // y's above x's
  return vi_or(vi_shr(vf_bits(x), 16), vi_and(vf_bits(y), vi_set1(-0x10000)));
}
INLINE vf split_round(vf x) { return vi_as_float(vi_and(vi_add(vf_bits(x), vi_set1(0x8000)), vi_set1(-0x10000))); }
INLINE vi split_magnitude(vi word) { return vi_and(word, vi_set1(0x7fff7fff)); }
enum { SPLIT_K = 192 };                          // in a block
static const int16_t SPLIT_LARGE = 0x4980, SPLIT_SMALL = 0x0c80;                // 2^20, 2^-102

// Splits block (32 x 32) into a step. lines_are_rows: block[row][k], for a; else block[k][row], for b.
INLINE void split_block(uint32_t *step, const float *block, bool lines_are_rows) {
  vi largest = vi_set1(0);
  uint32_t *to = step;
  for (int line = 0; line < 32; line++, to += 16) {
    const float *at = block + (lines_are_rows ? line * 32 : line % 16 * 32 + line / 16 * 16);
    vf x = vf_load(at), y = vf_load(at + (lines_are_rows ? 16 : 16 * 32));
    for (int part = 0; part < 3; part++) {
      const vf x_part = part < 2 ? split_round(x) : x, y_part = part < 2 ? split_round(y) : y;
      const vi word = split_upper_halves(x_part, y_part);
      vi_store(to + part * SPLIT_PART, word);
      if (part == 0) largest = _mm512_max_epu16(largest, split_magnitude(word));
      x = vf_sub(x, x_part);
      y = vf_sub(y, y_part);
    }
  }
  step[SPLIT_LARGE_HERE] = _mm512_cmpge_epu16_mask(largest, _mm512_set1_epi16(SPLIT_LARGE)) != 0;
}
static void split_pack(uint32_t *panel, int64_t panels, const GemmOperand *x, int64_t i0, int64_t k0, int64_t k_count,
                       bool lines_are_rows) {
  alignas(64) float block[32 * 32 + GEMM_GAP];
  for (int64_t p = 0; p < panels; p++, panel += GEMM_GAP) {
    for (int64_t k = 0; k < k_count; k += 32, panel += SPLIT_STEP) {
      if (x->blocks) {                           // b, of which a panel of words is such a block
        gemm_pack_blocks<float, false>((uint32_t *)block, 32, 1, x, i0 + p * 32, k0 + k, gemm_min(32, k_count - k), 32);
        split_block(panel, block, false);
        continue;
      }
      GemmSource s = gemm_source(x, i0 + p * 32, k0 + k, k_count - k);
      if (lines_are_rows) { const int64_t rows = s.rows; s.rows = s.k_count; s.k_count = rows; }
      if (lines_are_rows == x->k_contiguous) gemm_pack_columns<float>((uint32_t *)block, 32, 1, s, 32);
      else gemm_pack_rows<float>((uint32_t *)block, 32, 1, s, s.k_count * (int64_t)sizeof(float), 32);
      split_block(panel, block, lines_are_rows);
    }
  }
}
static void gemm_pack_split_a(uint32_t *panel, int, int64_t panels, const GemmOperand *x, int64_t i0, int64_t k0,
                              int64_t k_count, int64_t) {
  split_pack(panel, panels, x, i0, k0, k_count, true);
}
static void gemm_pack_split_b(uint32_t *panel, int, int64_t panels, const GemmOperand *x, int64_t i0, int64_t k0,
                              int64_t k_count, int64_t) {
  split_pack(panel, panels, x, i0, k0, k_count, false);
}

// ---- tiles ---------------------------------------------------------------------------------------------------------
INLINE void split_load_a(const uint32_t *part) {
  amx_load(4, part, 64);
  amx_load(5, part + SPLIT_TILE, 64);
}
INLINE void split_load_b(const uint32_t *part) {
  amx_stream_load(6, part, 64);
  amx_stream_load(7, part + SPLIT_TILE, 64);
}
INLINE void split_dots(GemmDue<GemmRowCall> *due) {          // and a few rows of the previous tile
  amx_dot(0, 4, 6); amx_dot(1, 4, 7); amx_dot(2, 5, 6); amx_dot(3, 5, 7);
  gemm_due_rows(due, due->rows_a_step);
}

// Which of a panel's 32 rows have an element below 2^-102, and which have one of 2^20 or more.
struct SplitRows { uint32_t small, large; };
static SplitRows split_rows(const uint32_t *panel, int64_t words, bool lines_are_rows) {
  const vi small = _mm512_set1_epi16(SPLIT_SMALL), large = _mm512_set1_epi16(SPLIT_LARGE);
  SplitRows r = {0, 0};
  for (; words; words -= SPLIT_STEP / 32, panel += SPLIT_STEP) {
    for (int line = 0; line < 32; line++) {      // of the first part
      const vi x = split_magnitude(vi_load(panel + line * 16));
      const uint32_t is_small = _mm512_cmplt_epu16_mask(x, small), is_large = _mm512_cmpge_epu16_mask(x, large);
      if (lines_are_rows) {
        r.small |= (uint32_t)(is_small != 0) << line;
        r.large |= (uint32_t)(is_large != 0) << line;
      } else {                                   // two bits per row
        r.small |= _pext_u32(is_small | is_small >> 1, 0x55555555) << line / 16 * 16;
        r.large |= _pext_u32(is_large | is_large >> 1, 0x55555555) << line / 16 * 16;
      }
    }
  }
  return r;
}
// Sets to NaN the elements where small and large operands meet. Rare: called when a panel has an element of 2^20 or
// more.
__attribute__((noinline, cold)) static void split_spoil(const uint32_t *a, const uint32_t *b, int64_t words,
                                                        float *tile) {
  const SplitRows x = split_rows(a, words, true), y = split_rows(b, words, false);
  for (int row = 0; row < 32; row++) {
    const uint32_t cols = (x.small >> row & 1 ? y.large : 0) | (x.large >> row & 1 ? y.small : 0);
    for (int half = 0; half < 2; half++) {
      float *to = tile + row * GEMM_NR + half * VF;
      vf_store(to, vf_select((vm)(cols >> half * 16), vf_set1(NAN), vf_load(to)));
    }
  }
}
static void gemm_tile_split(const uint32_t *a, const uint32_t *b, int64_t words, float *tile, GemmSide *side) {
  const uint32_t *const a_end = a + words * 32, *x = a, *y = b;
  GemmDue<GemmRowCall> due = gemm_due<GemmRowCall>(side, words / (SPLIT_STEP / 32));
  due.rows_a_step = (due.rows_a_step + 5) / 6;
  uint32_t large = 0;
  amx_zero(0); amx_zero(1); amx_zero(2); amx_zero(3);
  for (; x < a_end; x += SPLIT_STEP, y += SPLIT_STEP) {
    split_load_a(x);
    split_load_b(y + 2 * SPLIT_PART);
    split_dots(&due);
    split_load_b(y + SPLIT_PART);
    split_dots(&due);
    split_load_a(x + SPLIT_PART);
    split_dots(&due);
    split_load_b(y);
    split_dots(&due);
    split_load_a(x + 2 * SPLIT_PART);
    split_dots(&due);
    split_load_a(x);
    split_dots(&due);
    large |= x[SPLIT_LARGE_HERE] | y[SPLIT_LARGE_HERE];
  }
  amx_store_sums(tile);
  if (large) split_spoil(a, b, words, tile);
}

// ---- what the plain kernel computes again ---------------------------------------------------------------------------
// Which of the first `cols` lanes are not finite.
INLINE vm split_not_finite(vf x, int64_t cols) {
  return vm_first(cols) & _mm512_fpclass_ps_mask(x, 0x99);       // NaN (0x81), infinity (0x18)
}
// The rows of a panel by the plain kernel, all of K. Ordinary numbers do not take this path, which costs 7 times the
// tiles.
__attribute__((noinline, cold)) static void split_mend_rows(const GemmJob *j, float *tile, int64_t row, int64_t col,
                                                            int64_t rows, int64_t cols) {
  alignas(64) uint32_t a[GEMM_MR * GEMM_K_WORDS + GEMM_GAP], b[GEMM_NR * GEMM_K_WORDS + GEMM_GAP];
  alignas(64) float chain[GEMM_MR * GEMM_NR], block[GEMM_MR * GEMM_NR];
  const GemmKernel g = gemm_kernel_fma<float>();
  const int64_t k_block = gemm_block_k(j->K, &g);
  for (int64_t k = 0; k < j->K; k += k_block) {
    const int64_t k_count = gemm_min(k_block, j->K - k), words = gemm_words(&g, k_count);
    g.pack_a(a, GEMM_MR, 1, &j->a, row, k, k_count, words);
    g.pack_b(b, GEMM_NR, 1, &j->b, col, k, k_count, words);
    g.tile_of(GEMM_MR)(a, b, words, k ? block : chain, NULL);
    for (int i = 0; k && i < GEMM_MR * GEMM_NR; i += VF)
      vf_store(chain + i, vf_add(vf_load(chain + i), vf_load(block + i)));
  }
  for (int64_t r = 0; r < rows; r++)
    for (int64_t v = 0; v < cols; v += VF) {
      float *to = tile + r * GEMM_NR + v;
      vf_store(to, vf_select(split_not_finite(vf_load(to), cols - v), vf_load(chain + r * GEMM_NR + v), vf_load(to)));
    }
}
// Zero times a finite number is zero. If the result is not zero, the tile needs mending (or its padding is not finite).
// This takes half the time of comparisons: 34 against 71 ns per tile on Zen 4; AMX computes the tile of K = 512 in
// about 1800.
INLINE bool split_all_finite(const float *tile) {
  vf zeros[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
  for (int i = 0; i < 32 * 32; i += 4 * VF)
    for (int q = 0; q < 4; q++) zeros[q] = vf_fma(vf_load(tile + i + q * VF), vf_zero(), zeros[q]);
  const vf sum = vf_add(vf_add(zeros[0], zeros[1]), vf_add(zeros[2], zeros[3]));
  return !split_not_finite(sum, VF);
}
static void gemm_mend_split(const GemmJob *j, float *tile, int64_t row, int64_t col, int64_t rows, int64_t cols) {
  if (split_all_finite(tile)) return;
  for (int64_t first = 0; first < rows; first += GEMM_MR) {
    const int64_t n = gemm_min(GEMM_MR, rows - first);
    vm some = 0;
    for (int64_t r = first; r < first + n; r++)
      for (int64_t v = 0; v < cols; v += VF) some |= split_not_finite(vf_load(tile + r * GEMM_NR + v), cols - v);
    if (some) split_mend_rows(j, tile + first * GEMM_NR, row + first, col, n, cols);
  }
}

static GemmTile *gemm_tile_split_of(int64_t) { return gemm_tile_split; }
static GemmKernel gemm_kernel_split() {
  const int step_words = SPLIT_STEP / 32, most_words = SPLIT_K / 32 * step_words;
  return GemmKernel{32, 32, 32, step_words, most_words, most_words, step_words, gemm_pack_split_a, gemm_pack_split_b,
                    gemm_tile_split_of, gemm_mend_split};
}
#endif
