// gemm_pack.h: packs operands of gemm.h into panels.
//
// A panel is words x width: word w of row i is panel[w * width + i]. Rows beyond the operand and words beyond k are
// zero. Stores are whole vectors. The part that reaches into the next word is overwritten by that word, because words
// ascend; the part beyond the last word goes into the gap between panels. Rows are prefetched a few ahead (4 to 10 %
// faster).
#pragma once
#include "block_decode.h"
#include "gemm_job.h"

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

// Where a call's rows start, and how many rows and k exist.
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
// ---- from quantization blocks: values go from lanes into panels, in the time of packing numbers. PAIRS: a word is two
// of bf16; else an fp32, rounded to T. Of the rows, `from` .. `end` are those of a part, whose own first one is `first`
struct GemmBlocks {
  Tensor part;
  BlockDecoder of;
  int64_t first, from, end, i0, k0, k_count, words, panels;
  int width;
};
// k contiguous: rows are lanes.
template <class T, bool PAIRS> static void gemm_pack_block_rows(uint32_t *panel, GemmBlocks s) {
  for (int64_t r = s.i0 + (s.from - s.i0) / VF * VF; r < s.end; r += VF) {
    const uint8_t *row[VF];
    for (int64_t l = 0; l < VF; l++) {           // lanes of other parts: any row of this one
      const int64_t at = r + l < s.from ? s.from : gemm_min(r + l, s.end - 1);
      row[l] = (const uint8_t *)s.part.data + (at - s.first) * s.part.shape[1];
    }
    const bool whole = r >= s.from && r + VF <= s.end;
    const int64_t at = r - s.i0;
    float *to = (float *)panel + at / s.width * gemm_panel_words(s.width, s.words) + at % s.width;
    alignas(64) float values[32 * VF];
    for (int64_t k = s.k0; k < s.k0 + s.k_count; k += BLOCK_RUN) {
      const int run = (int)(k % 32 / BLOCK_RUN);
      if (k == s.k0 || !run)
        s.of.lanes(values, row, k / s.of.values * s.of.bytes, (int)(k % s.of.values / 32), block_to_bf16((T *)NULL));
      const float *x = values + run * BLOCK_RUN * VF;
      for (int i = 0; i < BLOCK_RUN; i += PAIRS ? 2 : 1, x += (PAIRS ? 2 : 1) * VF, to += s.width) {
        vf w = PAIRS ? block_pair(vf_load(x), vf_load(x + VF)) : block_rounded(vf_load(x), (T *)NULL);
        if (!whole) {
          const vf other = vf_load(to);
          w = vf_select(vm_first(s.from - r), other, vf_select(vm_first(s.end - r), w, other));
        }
        vf_store(to, w);
      }
    }
  }
}
// i contiguous: a row is a k, of a pair the lower half or, after that, the upper one.
template <class T, bool PAIRS> static void gemm_pack_block_columns(uint32_t *panel, GemmBlocks s) {
  const int64_t panel_words = gemm_panel_words(s.width, s.words);
  for (int64_t k = s.from; k < s.end; k++) {
    const uint8_t *const row = (const uint8_t *)s.part.data + (k - s.first) * s.part.shape[1];
    const int64_t word = (k - s.k0) / (1 + PAIRS);
    alignas(64) float values[BLOCK_VALUES_MAX];
    for (int64_t i = 0; i < s.panels * s.width; i += BLOCK_RUN) {
      const int64_t at = s.i0 + i, in = at % s.of.values;
      if (!i || !in)                             // what is needed of the block, which others may share
        s.of.block(values, row + at / s.of.values * s.of.bytes, (int)(in / BLOCK_RUN),
                   (int)(gemm_min(s.of.values - in, s.panels * s.width - i) / BLOCK_RUN), block_to_bf16((T *)NULL));
      float *const to = (float *)panel + i / s.width * panel_words + word * s.width + i % s.width;
      vf x = block_rounded(vf_load(values + in), (T *)NULL);
      if (PAIRS && (k - s.k0) % 2 == 0) x = vi_as_float(vi_shr(vf_bits(x), 16));
      else if (PAIRS) x = vi_as_float(vi_or(vi_load(to), vf_bits(x)));
      vf_store(to, x);
    }
  }
}
template <class T, bool PAIRS>
static void gemm_pack_blocks(uint32_t *panel, int width, int64_t panels, const GemmOperand *x, int64_t i0, int64_t k0,
                             int64_t k_count, int64_t words) {
  const QuantMatrix *q = x->blocks;
  const size_t panel_bytes = 4 * (size_t)gemm_panel_words(width, words);
  const int64_t begin = x->k_contiguous ? i0 : k0, end = x->k_contiguous ? i0 + panels * width : k0 + k_count;
  int64_t rows = 0, first = 0;
  for (int p = 0; p < q->parts; p++) rows += q->part[p].shape[0];
  if (end > rows || k_count < words * (1 + PAIRS)) memset(panel, 0, (size_t)panels * panel_bytes);
  for (int p = 0; p < q->parts; first += q->part[p++].shape[0]) {
    const int64_t from = first > begin ? first : begin, to = gemm_min(first + q->part[p].shape[0], end);
    if (from >= to) continue;
    const BlockDecoder of = block_decoder(q->type[p]);
    const GemmBlocks s = {q->part[p], of, first, from, to, i0, k0, k_count, words, panels, width};
    if (x->k_contiguous) gemm_pack_block_rows<T, PAIRS>(panel, s);
    else gemm_pack_block_columns<T, PAIRS>(panel, s);
  }
}
template <class T>
static void gemm_pack_f32(uint32_t *panel, int width, int64_t panels, const GemmOperand *x, int64_t i0, int64_t k0,
                          int64_t k_count, int64_t words) {
  if (x->blocks) return gemm_pack_blocks<T, false>(panel, width, panels, x, i0, k0, k_count, words);
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
static __attribute__((unused)) void gemm_pack_pairs(uint32_t *panel, int width, int64_t panels, const GemmOperand *x,
                                                    int64_t i0, int64_t k0, int64_t k_count, int64_t words) {
  if (x->blocks) return gemm_pack_blocks<bf16, true>(panel, width, panels, x, i0, k0, k_count, words);
  const GemmSource s = gemm_source(x, i0, k0, k_count);
  if (x->k_contiguous) gemm_pack_rows<GemmPair>(panel, width, panels, s, k_count * 2, words);
  else gemm_pack_column_pairs(panel, width, panels, s, words);
}
#endif
