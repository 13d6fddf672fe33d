// gemm_few.h: matrix multiplies of a few rows, as generation has them: b is used once, so nothing of it is packed. It
// is read along its rows, in memory's order, and transposed in registers: lanes are columns of out. The summation order
// is that of gemm.h: blocks of gemm_block_k, with its chains, so that a row has the same bits among few and among many.
#pragma once
#include "gemm_tiles.h"

enum { GEMM_FEW_ROWS = MATMUL_FEW_ROWS, GEMM_FEW_AHEAD = 512 };  // bytes of rows in order that are asked for ahead
static __attribute__((unused)) bool gemm_is_few(const GemmJob *j, const GemmKernel *g) {
  return j->a.count <= GEMM_FEW_ROWS && j->a.k_contiguous && j->b.k_contiguous && !j->finish_sums && !j->lower &&
         !j->b.blocks && !g->mend && (g->step_k == g->step_words || j->K % 2 == 0) &&
         (size_t)(j->K + 64) * GEMM_FEW_ROWS * 4 <= GEMM_SHARED_MIN;
}
// VF words of a row from word w on, of `words`; those after are zero.
template <class T, bool DOT> INLINE vf gemm_few_words(const T *row, int64_t w, int64_t words) {
  if (DOT) return vf_load_n((const float *)(const void *)row + w, words - w);
  return vf_load_n(row + w, words - w);
}
#if AMX_TILES
// The bits of amx_dot, by vectors: acc[row] += the sums over 16 words of r's columns, denormals being zero.
template <int ROWS> INLINE void gemm_few_tile_step(vf *acc, const float *a, int64_t a_stride, const vf *r) {
  const vi high = vi_set1(-0x10000);
  vf even[ROWS], odd[ROWS];
  for (int i = 0; i < ROWS; i++) even[i] = odd[i] = vf_zero();
  for (int d = 0; d < VF; d++) {
    const vf y = vi_as_float(vi_shl(vf_bits(r[d]), 16)), z = vi_as_float(vi_and(vf_bits(r[d]), high));
    for (int i = 0; i < ROWS; i++) {
      const vi x = vf_bits(vf_set1(a[i * a_stride + d]));
      even[i] = vf_fma(vi_as_float(vi_shl(x, 16)), y, even[i]);
      odd[i] = vf_fma(vi_as_float(vi_and(x, high)), z, odd[i]);
    }
  }
  for (int i = 0; i < ROWS; i++) acc[i] = vf_add(acc[i], vf_add(even[i], odd[i]));
}
#endif
// sums[row][VF] = or +=: columns col .. of b over one block of k, `words` words from word w0 on.
template <class T, bool DOT, int ROWS>
static void gemm_few_block(float *sums, const float *a, int64_t a_stride, const GemmJob *j, int64_t col, int64_t w0,
                           int64_t words, bool add) {
  const int64_t per = DOT ? 2 : 1, rows = j->b.count - col;
  vf acc[ROWS];
  for (int i = 0; i < ROWS; i++) acc[i] = vf_zero();
  const T *const from = (const T *)j->b.data + col * j->b.stride + w0 * per;
#if AMX_TILES
  const unsigned mxcsr = DOT ? amx_flush_begin() : 0;          // fp32 keeps denormals
#endif
  for (int64_t w = 0; w < words; w += VF) {
    vf r[VF];
    int64_t ahead = w * per + GEMM_FEW_AHEAD / (int64_t)sizeof(T);
    if (w0 * per + ahead >= j->b.stride) ahead += (VF - 1) * j->b.stride;      // of the columns that come next
    for (int l = 0; l < VF; l++) {
      r[l] = l < rows ? gemm_few_words<T, DOT>(from + l * j->b.stride, w, words) : vf_zero();
      __builtin_prefetch(from + l * j->b.stride + ahead);
    }
    vf_transpose(r);
#if AMX_TILES
    if (DOT) { gemm_few_tile_step<ROWS>(acc, a + w0 + w, a_stride, r); continue; }
#endif
    for (int d = 0; d < VF; d++)                 // words after the last are zero in a and b
      for (int i = 0; i < ROWS; i++) acc[i] = gemm_step<DOT>(a + i * a_stride + w0 + w, d, r[d], acc[i]);
  }
#if AMX_TILES
  for (vf &x : acc) __asm__ volatile("" : "+v"(x));    // no addition moves behind the change
  if (DOT) amx_flush_end(mxcsr);
#endif
  for (int i = 0; i < ROWS; i++) {
    float *const to = sums + i * GEMM_NR;
    vf_store(to, add ? vf_add(vf_load(to), acc[i]) : acc[i]);
  }
}
// a's rows as words, `rows` of them, those that are not there zero, at the start of the workspace. Returns words
// from row to row.
template <class T, bool DOT> static int64_t gemm_few_copy(Ctx *c, const GemmJob *j, int rows) {
  const int64_t stride = gemm_round_up(gemm_ceil_div(j->K, DOT ? 2 : 1), VF);
  float *const a = (float *)c->workspace;
  memset(a, 0, sizeof(float) * (size_t)(rows * stride));
  for (int64_t i = 0; i < j->a.count; i++) {
    const T *from = (const T *)j->a.data + i * j->a.stride;
    if (DOT) memcpy(a + i * stride, from, (size_t)j->K * sizeof(T));
    else for (int64_t k = 0; k < j->K; k += VF) vf_store(a + i * stride + k, vf_load_n(from + k, j->K - k));
  }
  return stride;
}
template <class T, bool DOT, int ROWS> static void gemm_few_columns(Ctx *c, const GemmJob *j, const GemmKernel *g) {
  const int64_t words = gemm_ceil_div(j->K, DOT ? 2 : 1), block = gemm_words(g, gemm_block_k(j->K, g));
  const int64_t stride = gemm_few_copy<T, DOT>(c, j, ROWS), rows = j->a.count;
  const float *const a = (const float *)c->workspace;
  parallel_tasks(c->threads, gemm_ceil_div(j->b.count, GEMM_NR), 4, [=](int64_t task) {
    alignas(64) float sums[ROWS * GEMM_NR];
    const int64_t first = task * GEMM_NR;
    for (int64_t col = 0; col < GEMM_NR && first + col < j->b.count; col += VF)
      for (int64_t w = 0; w < words; w += block)
        gemm_few_block<T, DOT, ROWS>(sums + col, a, stride, j, first + col, w, gemm_min(block, words - w), w > 0);
    j->finish(j, sums, ROWS * GEMM_NR, 0, first, rows, gemm_min(GEMM_NR, j->b.count - first));
  });
}
// A job that gemm_is_few holds of.
static __attribute__((unused)) void gemm_few(Ctx *c, const GemmJob *j, const GemmKernel *g) {
#if GEMM_PAIRS
  if (j->a.dtype == BF16) {
    if (j->a.count == 1) gemm_few_columns<bf16, true, 1>(c, j, g);
    else gemm_few_columns<bf16, true, GEMM_FEW_ROWS>(c, j, g);
    return;
  }
#endif
  DISPATCH(j->a.dtype, T, {
    if (j->a.count == 1) gemm_few_columns<T, false, 1>(c, j, g);
    else gemm_few_columns<T, false, GEMM_FEW_ROWS>(c, j, g);
  });
}
