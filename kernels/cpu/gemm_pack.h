// gemm_pack.h: packs operands of gemm.h into panels.
//
// A panel is words x width: word w of row i is panel[w * width + i]. Rows beyond the operand and words beyond k are
// zero. Stores are whole vectors. The part that reaches into the next word is overwritten by that word, because words
// ascend; the part beyond the last word goes into the gap between panels. Rows are prefetched a few ahead (4 to 10 %
// faster).
#pragma once
#include "gemm_job.h"

INLINE int64_t gemm_min(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t gemm_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
INLINE int64_t gemm_round_up(int64_t a, int64_t to) { return gemm_ceil_div(a, to) * to; }

enum { GEMM_GAP = 16 };                          // words after each panel
INLINE int64_t gemm_panel_words(int width, int64_t words) { return words * width + GEMM_GAP; }
struct GemmPair { bf16 even_k, odd_k; };         // a word that is copied without conversion
INLINE vh vh_load(const GemmPair *p) { return vh_load((const float *)p); }
// Eight words of which only `bytes` bytes exist; zeros follow.
template <class T> INLINE vh gemm_load8(const char *p, int64_t bytes) {
  if (bytes >= (int64_t)(8 * sizeof(T))) return vh_load((const T *)p);
  T part[8] = {};
  if (bytes > 0) memcpy(part, p, (size_t)bytes);
  return vh_load(part);
}

// Where a call's rows begin, and how many rows and k exist.
struct GemmSource { const char *from; int64_t stride_bytes, rows, k_count; };
static GemmSource gemm_source(const GemmOperand *x, int64_t i0, int64_t k0, int64_t k_count) {
  const int64_t size = (int64_t)dtype_bytes(x->dtype), at = x->k_contiguous ? i0 * x->stride + k0 : k0 * x->stride + i0;
  GemmSource s = {(const char *)x->data + at * size, x->stride * size, x->count - i0, k_count};
  return s;
}

// k contiguous: 8 x 8 transposes. Groups of 8 rows go from last to first, so that the part of a group's store that
// reaches into the next word (width 14 or 6) is overwritten by the first group. T: the word as stored; k_bytes: of a
// row.
template <class T>
static void gemm_pack_rows(uint32_t *panel, int width, int64_t panels, GemmSource s, int64_t k_bytes, int64_t words) {
  for (int64_t p = 0; p < panels; p++, panel += gemm_panel_words(width, words)) {
    for (int64_t g = (width - 1) / 8 * 8; g >= 0; g -= 8) {
      const int64_t first = p * width + g;
      const char *from = s.from + first * s.stride_bytes;
      for (int64_t w = 0; w < words; w += 8, from += 8 * sizeof(T)) {
        vh r[8];
        const int64_t left = k_bytes - w * (int64_t)sizeof(T);
        for (int i = 0; i < 8; i++) {
          r[i] = first + i < s.rows ? gemm_load8<T>(from + i * s.stride_bytes, left) : vh_zero();
          __builtin_prefetch(from + (width + i) * s.stride_bytes);
        }
        vh_transpose(r);
        for (int i = 0; i < 8; i++) vh_store((float *)panel + (w + i) * width + g, r[i]);
      }
    }
  }
}
// i contiguous: a copy with conversion. k is the outer loop, so that memory is read along its rows.
template <class T>
static void gemm_pack_columns(uint32_t *panel, int width, int64_t panels, GemmSource s, int64_t words) {
  for (int64_t k = 0; k < words; k++) {
    const T *row = (const T *)(s.from + k * s.stride_bytes);
    for (int64_t p = 0; p < panels; p++) {
      float *to = (float *)panel + p * gemm_panel_words(width, words) + k * width;
      for (int64_t i = 0; i < width; i += VF) {
        const int64_t at = p * width + i, left = s.rows - at;
        vf_store(to + i, k >= s.k_count ? vf_zero() : left >= VF ? vf_load(row + at) : vf_load_n(row + at, left));
        __builtin_prefetch((const char *)(row + at) + 8 * s.stride_bytes);
      }
    }
  }
}
template <class T>
static void gemm_pack_f32(uint32_t *panel, int width, int64_t panels, const GemmOperand *x, int64_t i0, int64_t k0,
                          int64_t k_count, int64_t words) {
  const GemmSource s = gemm_source(x, i0, k0, k_count);
  if (x->k_contiguous) gemm_pack_rows<T>(panel, width, panels, s, k_count * (int64_t)sizeof(T), words);
  else gemm_pack_columns<T>(panel, width, panels, s, words);
}

#if GEMM_PAIRS
INLINE vi gemm_load16(const bf16 *p, int64_t n) { return vi_of_halves(n >= 16 ? v16_load(p) : v16_load_n(p, n)); }
// i contiguous: words of two rows k, k+1 interleaved.
static void gemm_pack_column_pairs(uint32_t *panel, int width, int64_t panels, GemmSource s, int64_t words) {
  for (int64_t w = 0; w < words; w++) {
    const bf16 *even = (const bf16 *)(s.from + 2 * w * s.stride_bytes);
    const bf16 *odd = (const bf16 *)(s.from + (2 * w + 1) * s.stride_bytes);
    for (int64_t p = 0; p < panels; p++) {
      uint32_t *to = panel + p * gemm_panel_words(width, words) + w * width;
      for (int64_t i = 0; i < width; i += 16) {
        const int64_t at = p * width + i;
        vi x = 2 * w < s.k_count ? gemm_load16(even + at, s.rows - at) : vi_set1(0);
        vi y = 2 * w + 1 < s.k_count ? gemm_load16(odd + at, s.rows - at) : vi_set1(0);
        vi_store(to + i, vi_or(x, vi_shl(y, 16)));
        __builtin_prefetch((const char *)(even + at) + 16 * s.stride_bytes);
        __builtin_prefetch((const char *)(odd + at) + 16 * s.stride_bytes);
      }
    }
  }
}
// k contiguous: a pair already is a word of memory.
static void gemm_pack_pairs(uint32_t *panel, int width, int64_t panels, const GemmOperand *x, int64_t i0, int64_t k0,
                            int64_t k_count, int64_t words) {
  const GemmSource s = gemm_source(x, i0, k0, k_count);
  if (x->k_contiguous) gemm_pack_rows<GemmPair>(panel, width, panels, s, k_count * 2, words);
  else gemm_pack_column_pairs(panel, width, panels, s, words);
}
#endif
