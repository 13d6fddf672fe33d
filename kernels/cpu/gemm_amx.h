// gemm_amx.h: the bf16 kernel of gemm.h on AMX: 2 x 2 tiles of 16 rows of 64 bytes.
// Intel SDM, TDPBF16PS. a's panel: [k/32][32 rows][32 k]; b's: [k/2][32 columns][2].
#pragma once
#include "gemm_tiles.h"

#if defined(__AMX_BF16__) || AMX_EMULATED
enum { AMX_STEP = 512, AMX_WORDS = 16 };         // words of 32 rows x 32 k, and of k in it
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
// Packs 32 rows x 32 k of an operand, and prefetches the next 32 k of the rows into L2, because the caller reads them
// some blocks later. If rows are a multiple of 4 KB apart, all of them would map to one set of L1 and evict lines in
// use (weight gradients of 2048 and of 3072 outputs, without their tile multiplies: 0.8 of the time; others 0.95 to
// 1.04).
static void amx_pack_block(uint32_t *to, GemmSource s, bool k_contiguous) {
  const int64_t left = gemm_min(32, s.k_count);
  if (k_contiguous) {
    const __mmask32 there = left >= 32 ? ~0u : (1u << left) - 1;
    for (int64_t i = 0; i < 32; i++) {
      const char *row = s.from + i * s.stride_bytes;
      _mm512_storeu_si512(to + i * 16, i < s.rows ? _mm512_maskz_loadu_epi16(there, row) : _mm512_setzero_si512());
      __builtin_prefetch(row + 64, 0, 2);
    }
  } else if (left == 32 && s.rows >= 32) {
    for (int64_t k = 32; k < 64; k++) __builtin_prefetch(s.from + k * s.stride_bytes, 0, 2);
    for (int i = 0; i < 32; i += 8) amx_transpose_32x8(s.from + 2 * i, s.stride_bytes, to + i * 16);
  } else {                                       // edges: pairs first, then 8 x 8 transposes of them
    alignas(64) uint32_t pairs[AMX_STEP];
    gemm_pack_column_pairs(pairs, 32, 1, GemmSource{s.from, s.stride_bytes, s.rows, left}, AMX_WORDS);
    for (int i = 0; i < 32; i += 8) for (int w = 0; w < AMX_WORDS; w += 8) {
      __m256 r[8];
      for (int q = 0; q < 8; q++) r[q] = _mm256_load_ps((const float *)pairs + (w + q) * 32 + i);
      vh_transpose(r);
      for (int q = 0; q < 8; q++) _mm256_storeu_ps((float *)to + (i + q) * 16 + w, r[q]);
    }
  }
}
static void gemm_pack_amx(uint32_t *panel, int width, int64_t panels, const GemmOperand *x, int64_t i0, int64_t k0,
                          int64_t k_count, int64_t words) {
  for (int64_t p = 0; p < panels; p++, panel += gemm_panel_words(width, words))
    for (int64_t k = 0; k < 2 * words; k += 32)
      amx_pack_block(panel + k * 16, gemm_source(x, i0 + p * width, k0 + k, k_count - k), x->k_contiguous);
}
// Tiles of a stay in L1 from one column panel to the next if tiles of b, which are used once, bypass it (stream load: a
// quarter faster). During the 64 cycles of a step the vector units are free for gemm_side_step().
static void gemm_tile_amx(const uint32_t *a, const uint32_t *b, int64_t words, float *tile, GemmSide *side) {
  amx_zero(0); amx_zero(1); amx_zero(2); amx_zero(3);
  for (int64_t w = 0; w < words; w += AMX_WORDS, a += AMX_STEP, b += AMX_STEP) {
    amx_load(4, a, 64);
    amx_stream_load(6, b, 128);
    amx_dot(0, 4, 6);
    amx_stream_load(7, b + 16, 128);
    amx_dot(1, 4, 7);
    gemm_side_step(side);
    amx_load(5, a + 256, 64);
    amx_dot(2, 5, 6);
    amx_dot(3, 5, 7);
  }
  amx_store_sums(tile);
}
static GemmTile *gemm_tile_amx_of(int64_t) { return gemm_tile_amx; }
#endif
