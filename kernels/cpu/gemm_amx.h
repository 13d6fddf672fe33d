// gemm_amx.h: packs a for the bf16 kernel of gemm_side.h.
#pragma once
#include "gemm_tiles.h"

#if AMX_TILES
// Turns 32 k x 8 i, k along memory's rows, into 8 rows of 32 k. Lane q of each vector holds k = 8q .. 8q+7, and three
// rounds of interleaving transpose the lanes' 8 x 8 elements. It takes half the instructions of pairing k and then
// transposing the pairs.
static void amx_transpose_32x8(const char *from, int64_t stride, uint32_t *to) {
  __m512i r[8], s[8];
  for (int k = 0; k < 8; k++) {
    const char *row = from + k * stride;
    r[k] = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)row));
    r[k] = _mm512_mask_broadcast_i32x4(r[k], 0x00f0, _mm_loadu_si128((const __m128i *)(row + 8 * stride)));
    r[k] = _mm512_mask_broadcast_i32x4(r[k], 0x0f00, _mm_loadu_si128((const __m128i *)(row + 16 * stride)));
    r[k] = _mm512_mask_broadcast_i32x4(r[k], 0xf000, _mm_loadu_si128((const __m128i *)(row + 24 * stride)));
  }
  for (int k = 0; k < 8; k += 2) {               // s[k], s[k+1]: words (k, k+1) of i 0..3, 4..7
    s[k] = _mm512_unpacklo_epi16(r[k], r[k + 1]);
    s[k + 1] = _mm512_unpackhi_epi16(r[k], r[k + 1]);
  }
  for (int h = 0; h < 2; h++) for (int k = 0; k < 8; k += 4) {           // r[2h + k ..]: k .. k+3 of i 4h+0..1, 4h+2..3
    r[2 * h + k] = _mm512_unpacklo_epi32(s[k + h], s[k + 2 + h]);
    r[2 * h + k + 1] = _mm512_unpackhi_epi32(s[k + h], s[k + 2 + h]);
  }
  for (int i = 0; i < 4; i++) {
    _mm512_storeu_si512(to + 2 * i * 16, _mm512_unpacklo_epi64(r[i], r[i + 4]));
    _mm512_storeu_si512(to + (2 * i + 1) * 16, _mm512_unpackhi_epi64(r[i], r[i + 4]));
  }
}
// Packs 32 rows x 32 k of an operand whose rows are contiguous; at an edge some are missing. The next 32 k come to L2.
// Lines are copied first: those of rows 4 KB apart share a set of L1, and the transposes read each of them four times.
static void amx_pack_columns(uint32_t *to, GemmSource s) {
  const int64_t left = gemm_min(32, s.k_count);
  if (left == 32 && s.rows >= 32) {
    alignas(64) char block[32 * 64];
    for (int64_t k = 0; k < 32; k++) {
      _mm512_store_si512(block + k * 64, _mm512_loadu_si512(s.from + k * s.stride_bytes));
      __builtin_prefetch(s.from + (k + 32) * s.stride_bytes, 0, 2);
    }
    for (int i = 0; i < 32; i += 8) amx_transpose_32x8(block + 2 * i, 64, to + i * AMX_WORDS);
    return;
  }
  alignas(64) uint32_t pairs[AMX_STEP];          // edges: pairs first, then 8 x 8 transposes of them
  gemm_pack_column_pairs(pairs, 32, 1, GemmSource{s.from, s.stride_bytes, s.rows, left}, AMX_WORDS);
  for (int i = 0; i < 32; i += 8) for (int w = 0; w < AMX_WORDS; w += 8) {
    __m256 r[8];
    for (int q = 0; q < 8; q++) r[q] = _mm256_load_ps((const float *)pairs + (w + q) * 32 + i);
    vh_transpose(r);
    for (int q = 0; q < 8; q++) _mm256_storeu_ps((float *)to + (i + q) * AMX_WORDS + w, r[q]);
  }
}
static void gemm_pack_amx(uint32_t *panel, int width, int64_t panels, const GemmOperand *x, int64_t i0, int64_t k0,
                          int64_t k_count, int64_t words) {
  const int64_t panel_words = gemm_panel_words(width, words);
  for (int64_t k = 0; !x->k_contiguous && k < 2 * words; k += 32)
    for (int64_t p = 0; p < panels; p++)
      amx_pack_columns(panel + p * panel_words + k * 16, gemm_source(x, i0 + p * width, k0 + k, k_count - k));
  if (!x->k_contiguous) return;
  const GemmSource s = gemm_source(x, i0, k0, k_count);
  for (int64_t i = 0; i < panels * width; i++) {
    uint32_t *to = panel + i / width * panel_words + i % width * AMX_WORDS;
    const char *from = s.from + i * s.stride_bytes;
    for (int64_t k = 0; k < 2 * words; k += 32, from += 64, to += AMX_STEP) {
      const __mmask32 there = i >= s.rows || k >= k_count ? 0 : k_count - k >= 32 ? ~0u : (1u << (k_count - k)) - 1;
      _mm512_storeu_si512(to, _mm512_maskz_loadu_epi16(there, from));
      __builtin_prefetch(from + 4 * s.stride_bytes);
    }
  }
}
static GemmTile *gemm_tile_amx_of(int64_t) { return gemm_tile_amx<GemmRowCall>; }
#endif
