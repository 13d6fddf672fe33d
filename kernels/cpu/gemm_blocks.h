// gemm_blocks.h: matrix multiplies of a few rows with rows that are stored in blocks (blocks.h), as stored: b is read
// once, 2 to 8.5 bits a number, and a number is its block's formula in fp32, rounded to the dtype of the product. The
// summation order is that of gemm.h, so that a result has the bits of a multiply by the expanded rows.
//
// Lanes are columns of out, as in gemm_few.h.
#pragma once
#include "gemm_few.h"
#include "block_vec.h"

// 32 numbers of VF columns: as block_lanes gives them, or, where TYPE is BLOCK_NONE, decoded when this runs. The former
// is a tenth to a third faster; the latter is compiled once for all types.
struct GemmBlocksPart { BlockLanes lanes; alignas(64) float values[32 * VF]; };
template <int TYPE> INLINE vf gemm_blocks_value(const GemmBlocksPart *b, int run, int i) {
  if constexpr (TYPE == BLOCK_NONE) return vf_load(b->values + (run * BLOCK_RUN + i) * VF);
  else return block_lanes_value<TYPE>(&b->lanes, run, i);
}
// One run of 16 numbers of GEMM_NR columns. a: its words of the first row.
template <int TYPE, class T, bool DOT, int ROWS>
INLINE void gemm_blocks_run(vf acc[ROWS][GEMM_NR / VF], const GemmBlocksPart *b, int run, const float *a,
                            int64_t a_stride) {
#pragma GCC unroll 16
  for (int i = 0; i < (DOT ? 8 : 16); i++)
#pragma GCC unroll 2
    for (int v = 0; v < GEMM_NR / VF; v++) {
      vf w;
      if constexpr (DOT)
        w = block_pair(gemm_blocks_value<TYPE>(b + v, run, 2 * i), gemm_blocks_value<TYPE>(b + v, run, 2 * i + 1));
      else
        w = block_rounded(gemm_blocks_value<TYPE>(b + v, run, i), (T *)NULL);
#pragma GCC unroll 4
      for (int r = 0; r < ROWS; r++) acc[r][v] = gemm_step<DOT>(a + r * a_stride, i, w, acc[r][v]);
    }
}
// sums[ROWS][GEMM_NR] of the columns whose bytes start at row[0] .. ; ahead: bytes to the columns that come next.
template <int TYPE, class T, bool DOT, int ROWS>
static void gemm_blocks_columns(float *sums, const float *a, int64_t a_stride, BlockDecoder of,
                                const uint8_t *const *row, int64_t ahead, int64_t K, int64_t block_k) {
  enum { VECS = GEMM_NR / VF };
  const bool bf = block_to_bf16((T *)NULL);
  if constexpr (TYPE != BLOCK_NONE) of.values = block_values(TYPE), of.bytes = block_bytes(TYPE);
  const int parts = of.values / 32;
  vf acc[ROWS][VECS];
  for (int r = 0; r < ROWS; r++) for (int v = 0; v < VECS; v++) acc[r][v] = vf_zero();
  int64_t left = block_k;
  for (int64_t k = 0, at = 0; k < K; at += of.bytes)
    for (int part = 0; part < parts; part++) {
      GemmBlocksPart b[VECS];
      const char *const next = (const char *)row[0] + ahead + (at + part * of.bytes / parts) * GEMM_NR;
      for (int i = 0; i < of.bytes * GEMM_NR / parts; i += 64) __builtin_prefetch(next + i);
      for (int v = 0; v < VECS; v++) {
        if constexpr (TYPE == BLOCK_NONE) of.lanes(b[v].values, row + v * VF, at, part, bf);
        else block_lanes<TYPE>(&b[v].lanes, row + v * VF, at, part, bf);
      }
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
template <int TYPE, class T, bool DOT, int ROWS> static void gemm_blocks_rows(Ctx *c, const GemmJob *j, int type) {
  const GemmKernel g = {GEMM_MR, 2, DOT ? 32 : 16, 16, GEMM_K_WORDS, GEMM_K_WORDS, 0, NULL, NULL, NULL, NULL};
  const int64_t block_k = gemm_block_k(j->K, &g), row_bytes = blocks_bytes(type, j->K);
  const int64_t a_stride = gemm_few_copy<T, DOT>(c, j, ROWS);
  const float *const a = (const float *)c->workspace;
  const BlockDecoder of = block_decoder(type);
  parallel_tasks(c->threads, gemm_ceil_div(j->b.count, GEMM_NR), 4, [=](int64_t task) {
    alignas(64) float sums[ROWS * GEMM_NR];
    const int64_t first = task * GEMM_NR, cols = gemm_min(GEMM_NR, j->b.count - first);
    const uint8_t *row[GEMM_NR];
    for (int64_t l = 0; l < GEMM_NR; l++)        // columns that are not there: the last one again
      row[l] = (const uint8_t *)j->b.data + (first + gemm_min(l, cols - 1)) * row_bytes;
    gemm_blocks_columns<TYPE, T, DOT, ROWS>(sums, a, a_stride, of, row, GEMM_NR * row_bytes, j->K, block_k);
    j->finish(j, sums, ROWS * GEMM_NR, 0, first, j->a.count, cols);
  });
}
// A job of at most GEMM_FEW_ROWS rows whose b is rows of blocks of `type`. What generation in bf16 takes, and fp32, is
// compiled for each type.
static void gemm_blocks(Ctx *c, const GemmJob *j, int type) {
  const bool one = j->a.count == 1;
  if (j->a.dtype == F16) gemm_blocks_rows<BLOCK_NONE, fp16, false, GEMM_FEW_ROWS>(c, j, type);
  else if (j->a.dtype == F32 && one) BLOCK_DISPATCH(type, TYPE, gemm_blocks_rows<TYPE, float, false, 1>(c, j, type));
  else if (j->a.dtype == F32)
    BLOCK_DISPATCH(type, TYPE, gemm_blocks_rows<TYPE, float, false, GEMM_FEW_ROWS>(c, j, type));
  else if (one) BLOCK_DISPATCH(type, TYPE, gemm_blocks_rows<TYPE, bf16, GEMM_PAIRS, 1>(c, j, type));
  else gemm_blocks_rows<BLOCK_NONE, bf16, GEMM_PAIRS, GEMM_FEW_ROWS>(c, j, type);
}
