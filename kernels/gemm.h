// gemm.h: the CPU's one matrix product, out(M,N) = sum over k of a(m,k) b(n,k). CPU sections only.
//
// Conventions
//   - An operand says where (i,k) lies: i is a's row or b's row, k the summed index; either may be the contiguous one.
//   - Threads share nothing but the list of output blocks: each packs what it needs, so there is no barrier, and the
//     result cannot depend on who did what. Packing the same rows more than once costs 2 to 4 %.
//   - Order of sums: k is cut into equal blocks by K alone (gemm_plan). Inside a block each output element is one chain
//     in ascending k from zero: of fused multiply-adds (fp32 arithmetic), of bf16 pairs (vdpbf16ps) or of groups of 32
//     (AMX). The blocks' sums are then added in ascending order in fp32. Nothing else enters: not M, N, threads or
//     place. fp32 arithmetic is therefore equal to the last bit on all instruction sets.
//   - Panels hold 32-bit words: one fp32, or a pair of bf16 with consecutive k ("VNNI" order). Two-byte operands
//     without hardware for them are converted while packed: packing is the only code that knows storage types.
//   - Edges are padded with zeros in the panels; every tile is whole, only the finish function sees the true extent.
//
// Method: Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (2008), with these loops:
//   block of rows x cols (a task of one thread)
//     k block                     pack b's rows of the block: they stay in L2
//       4 panels of mr rows       pack a's panels
//         panel, columns by nr    one register tile each
//
// Defines: GemmOperand, GemmJob, gemm(), gemm_workspace_bytes(), gemm_open().
#pragma once
#include "vec.h"
#include <omp.h>

// ---- interface -----------------------------------------------------------------------------------------------------
struct GemmOperand {
  const void *data;
  Dtype dtype;                                   // of both operands alike
  int64_t count;                                 // rows i
  int64_t stride;                                // elements from i to i+1 (k_contiguous) or from k to k+1
  bool k_contiguous;
};
struct GemmJob {
  GemmOperand a, b;
  int64_t K;
  // Called once per tile, when its sums are complete: rows x cols of `tile` (row stride GEMM_NR) are out(row.., col..).
  void (*finish)(const GemmJob *j, const float *tile, int64_t row, int64_t col, int64_t rows, int64_t cols);
  // If not NULL: receives the sums over k of a's rows row.. (a must not be k_contiguous).
  void (*finish_sums)(const GemmJob *j, const float *sums, int64_t row, int64_t rows);
  const void *arg;                               // theirs
};

#ifdef __AVX512F__
enum { GEMM_MR = 14, GEMM_NR = 32 };             // 28 of 32 zmm hold sums, 2 a row of b, 1 the broadcast of a
#else
enum { GEMM_MR = 6, GEMM_NR = 16 };              // 12 of 16 ymm
#endif
// K_WORDS: words of k in a block, so that a panel of a (14 x 384 x 4 = 21 KB) fits L1. COLS: b's block (384 x 384 x 4 =
// 576 KB) fits a 1 MB L2. ROWS: what packing b is spread over; above 512, so that widths of 512 and 1024 split well.
// A_PANELS: packed at a time, so that memory is read in runs of some lines even where i is contiguous.
enum { GEMM_K_WORDS = 384, GEMM_COLS = 384, GEMM_ROWS = 544, GEMM_MR_MAX = 32, GEMM_A_PANELS = 4 };

struct GemmScratch { uint32_t *a, *b; float *tiles, *sums; };
// Each panel has a gap of 16 words behind it (GEMM_GAP).
static const size_t GEMM_A_BYTES = (GEMM_MR_MAX * GEMM_K_WORDS + 64) * 4 * GEMM_A_PANELS;
static const size_t GEMM_B_BYTES = (GEMM_NR * GEMM_K_WORDS + 64) * 4 * (GEMM_COLS / GEMM_NR);
static const size_t GEMM_TILE_BYTES = GEMM_ROWS * GEMM_COLS * 4, GEMM_SUM_BYTES = GEMM_ROWS * 4;

// Scratch of all threads; the shapes do not matter.
static size_t gemm_workspace_bytes(const Ctx *c) {
  return (size_t)c->threads * (GEMM_A_BYTES + GEMM_B_BYTES + GEMM_TILE_BYTES + GEMM_SUM_BYTES);
}
static GemmScratch gemm_scratch(const Ctx *c, int thread) {
  char *p = (char *)c->workspace + (size_t)thread * (gemm_workspace_bytes(c) / (size_t)c->threads);
  GemmScratch s = {(uint32_t *)p, (uint32_t *)(p + GEMM_A_BYTES), (float *)(p + GEMM_A_BYTES + GEMM_B_BYTES),
                   (float *)(p + GEMM_A_BYTES + GEMM_B_BYTES + GEMM_TILE_BYTES)};
  return s;
}

INLINE int64_t gemm_min(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t gemm_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
INLINE int64_t gemm_round_up(int64_t a, int64_t to) { return gemm_ceil_div(a, to) * to; }

// ---- packing -------------------------------------------------------------------------------------------------------
// A panel is words x width: word w of row i at panel[w * width + i]. Rows beyond the operand and words beyond k are
// zero. Stores are whole vectors: what hangs over into the next word is overwritten by it, because words ascend, and
// what hangs over the end falls into the gap between panels. Memory is asked for some rows ahead (4 to 10 % faster).
enum { GEMM_GAP = 16 };
INLINE int64_t gemm_panel_words(int width, int64_t words) { return words * width + GEMM_GAP; }
struct GemmPair { bf16 even_k, odd_k; };         // a word that is copied, not converted
INLINE __m256 gemm_load8(const float *p) { return _mm256_loadu_ps(p); }
INLINE __m256 gemm_load8(const GemmPair *p) { return _mm256_loadu_ps((const float *)p); }
INLINE __m256 gemm_load8(const fp16 *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
INLINE __m256 gemm_load8(const bf16 *p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
// The same where only `bytes` are there; zeros follow.
template <class T> INLINE __m256 gemm_load8(const char *p, int64_t bytes) {
  if (bytes >= (int64_t)(8 * sizeof(T))) return gemm_load8((const T *)p);
  T part[8] = {};
  if (bytes > 0) memcpy(part, p, (size_t)bytes);
  return gemm_load8(part);
}

INLINE void gemm_transpose8(__m256 r[8]) {       // 24 shuffles for 64 words
  __m256 t[8], u[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    for (int h = 0; h < 2; h++) {
      u[i + 2 * h] = _mm256_shuffle_ps(t[i + h], t[i + h + 2], 0x44);
      u[i + 2 * h + 1] = _mm256_shuffle_ps(t[i + h], t[i + h + 2], 0xee);
    }
  }
  for (int i = 0; i < 4; i++) {
    r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
    r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
  }
}

// Where a call's rows begin, and how much of them is there.
struct GemmSource { const char *from; int64_t stride_bytes, rows, k_count; };
static GemmSource gemm_source(const GemmOperand *x, int64_t i0, int64_t k0, int64_t k_count) {
  const int64_t size = (int64_t)dtype_bytes(x->dtype), at = x->k_contiguous ? i0 * x->stride + k0 : k0 * x->stride + i0;
  GemmSource s = {(const char *)x->data + at * size, x->stride * size, x->count - i0, k_count};
  return s;
}

// k contiguous: 8 x 8 transposes. Groups of 8 rows go from last to first, so that a group's overhang into the next word
// (width 14 or 6) is overwritten by the first group. T: the word as stored; k_bytes: of a row.
template <class T>
static void gemm_pack_rows(uint32_t *panel, int width, int64_t panels, GemmSource s, int64_t k_bytes, int64_t words) {
  for (int64_t p = 0; p < panels; p++, panel += gemm_panel_words(width, words)) {
    for (int64_t g = (width - 1) / 8 * 8; g >= 0; g -= 8) {
      const int64_t first = p * width + g;
      const char *from = s.from + first * s.stride_bytes;
      for (int64_t w = 0; w < words; w += 8, from += 8 * sizeof(T)) {
        __m256 r[8];
        const int64_t left = k_bytes - w * (int64_t)sizeof(T);
        for (int i = 0; i < 8; i++) {
          r[i] = first + i < s.rows ? gemm_load8<T>(from + i * s.stride_bytes, left) : _mm256_setzero_ps();
          _mm_prefetch(from + (width + i) * s.stride_bytes, _MM_HINT_T0);
        }
        gemm_transpose8(r);
        for (int i = 0; i < 8; i++) _mm256_storeu_ps((float *)panel + (w + i) * width + g, r[i]);
      }
    }
  }
}
// i contiguous: a copy with conversion, k outside, so that memory is read along its rows.
template <class T>
static void gemm_pack_columns(uint32_t *panel, int width, int64_t panels, GemmSource s, int64_t words) {
  for (int64_t k = 0; k < words; k++) {
    const T *row = (const T *)(s.from + k * s.stride_bytes);
    for (int64_t p = 0; p < panels; p++) {
      float *to = (float *)panel + p * gemm_panel_words(width, words) + k * width;
      for (int64_t i = 0; i < width; i += VF) {
        const int64_t at = p * width + i, left = s.rows - at;
        vf_store(to + i, k >= s.k_count ? vf_zero() : left >= VF ? vf_load(row + at) : vf_load_n(row + at, left));
        _mm_prefetch((const char *)(row + at) + 8 * s.stride_bytes, _MM_HINT_T0);
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

#ifdef __AVX512BF16__
INLINE __m512i gemm_load16_bf16(const bf16 *p, int64_t n) {
  if (n >= 16) return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
  return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(vm_first(n), p));
}
// i contiguous: words of two rows k, k+1 interleaved.
static void gemm_pack_column_pairs(uint32_t *panel, int width, int64_t panels, GemmSource s, int64_t words) {
  for (int64_t w = 0; w < words; w++) {
    const bf16 *even = (const bf16 *)(s.from + 2 * w * s.stride_bytes);
    const bf16 *odd = (const bf16 *)(s.from + (2 * w + 1) * s.stride_bytes);
    for (int64_t p = 0; p < panels; p++) {
      uint32_t *to = panel + p * gemm_panel_words(width, words) + w * width;
      for (int64_t i = 0; i < width; i += 16) {
        const int64_t at = p * width + i;
        __m512i x = 2 * w < s.k_count ? gemm_load16_bf16(even + at, s.rows - at) : _mm512_setzero_si512();
        __m512i y = 2 * w + 1 < s.k_count ? gemm_load16_bf16(odd + at, s.rows - at) : _mm512_setzero_si512();
        _mm512_storeu_si512(to + i, _mm512_or_si512(x, _mm512_slli_epi32(y, 16)));
        _mm_prefetch((const char *)(even + at) + 16 * s.stride_bytes, _MM_HINT_T0);
        _mm_prefetch((const char *)(odd + at) + 16 * s.stride_bytes, _MM_HINT_T0);
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

// ---- register tiles ------------------------------------------------------------------------------------------------
// tile(ROWS x 16 VECS) = or += the product of two panels. DOT: a word is a bf16 pair, else an fp32.
template <bool DOT> INLINE vf gemm_step(vf a, vf b, vf sum) {
#ifdef __AVX512BF16__
  if (DOT) return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
#endif
  return vf_fma(a, b, sum);
}
template <int ROWS, int VECS, bool DOT>
static void gemm_tile(const uint32_t *a_panel, const uint32_t *b_panel, int64_t words, float *tile, bool add) {
  const float *a = (const float *)a_panel, *b = (const float *)b_panel;
  vf sum[ROWS][VECS];
  if (add) for (int i = 0; i < ROWS * VECS; i++) _mm_prefetch(tile + i * VF, _MM_HINT_T0);
#pragma GCC unroll 16
  for (int i = 0; i < ROWS; i++) for (int v = 0; v < VECS; v++) sum[i][v] = vf_zero();
#pragma GCC unroll 4
  for (int64_t w = 0; w < words; w++) {
    vf row[VECS];
    for (int v = 0; v < VECS; v++) row[v] = vf_load(b + v * VF);
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; i++) {
      vf x = vf_set1(a[i]);
      for (int v = 0; v < VECS; v++) sum[i][v] = gemm_step<DOT>(x, row[v], sum[i][v]);
    }
    a += ROWS;
    b += VECS * VF;
  }
#pragma GCC unroll 16
  for (int i = 0; i < ROWS; i++) {
    for (int v = 0; v < VECS; v++) {
      float *to = tile + (i * VECS + v) * VF;
      vf_store(to, add ? vf_add(vf_load(to), sum[i][v]) : sum[i][v]);
    }
  }
}

// ---- AMX: 2 x 2 tiles of 16 rows of 64 bytes -----------------------------------------------------------------------
// Intel SDM, TDPBF16PS. a's panel: [k/32][32 rows][32 k]; b's: [k/2][32 columns][2]. What this leaves open: weights
// packed once a step instead of in every product, activations kept in such blocks so that a needs no packing.
#if AMX_EMULATED                                 // the same steps in C: proves the logic on machines without AMX
static thread_local float amx_tiles[8][16][16];
static void amx_zero(int t) { memset(amx_tiles[t], 0, sizeof amx_tiles[t]); }
static void amx_load(int t, const void *from, int64_t stride) {
  for (int i = 0; i < 16; i++) memcpy(amx_tiles[t][i], (const char *)from + i * stride, 64);
}
static void amx_store(int t, void *to, int64_t stride) {
  for (int i = 0; i < 16; i++) memcpy((char *)to + i * stride, amx_tiles[t][i], 64);
}
static void amx_dot(int sum, int a, int b) {
  for (int i = 0; i < 16; i++) {
    vf s = vf_load(amx_tiles[sum][i]);
    for (int k = 0; k < 16; k++) {
      vi x = vf_bits(vf_set1(amx_tiles[a][i][k])), y = vf_bits(vf_load(amx_tiles[b][k])), high = vi_set1(-0x10000);
      s = vf_fma(vi_as_float(vi_shl(x, 16)), vi_as_float(vi_shl(y, 16)), s);
      s = vf_fma(vi_as_float(vi_and(x, high)), vi_as_float(vi_and(y, high)), s);
    }
    vf_store(amx_tiles[sum][i], s);
  }
}
static void gemm_open() {}
static void gemm_thread_begin() {}
static void gemm_thread_end() {}
#elif defined(__AMX_BF16__)
#include <sys/syscall.h>
#include <unistd.h>
#define amx_zero(t) _tile_zero(t)
#define amx_load(t, from, stride) _tile_loadd(t, from, stride)
#define amx_store(t, to, stride) _tile_stored(t, to, stride)
#define amx_dot(sum, a, b) _tile_dpbf16ps(sum, a, b)
static void gemm_open() {                        // Linux gives the 8 KB of tile state only to processes that ask
  const long request_permission = 0x1023, tile_data = 18;
  if (syscall(SYS_arch_prctl, request_permission, tile_data) != 0)
    die_missing("AMX: the system refuses tiles (arch_prctl); needs Linux 5.16 or later, or another instruction set");
}
struct AmxConfig { uint8_t palette, start_row, zero[14]; uint16_t row_bytes[16]; uint8_t rows[16]; };
static void gemm_thread_begin() {                // tile shapes belong to the thread
  AmxConfig config = {};
  config.palette = 1;
  for (int t = 0; t < 8; t++) { config.row_bytes[t] = 64; config.rows[t] = 16; }
  __asm__ volatile("" : : "r"(&config) : "memory");   // gcc 12 does not see that the intrinsic reads it all
  _tile_loadconfig(&config);
}
static void gemm_thread_end() { _tile_release(); }   // tiles in use make every context switch save 8 KB
#else
static void gemm_open() {}
static void gemm_thread_begin() {}
static void gemm_thread_end() {}
#endif

#if defined(__AMX_BF16__) || AMX_EMULATED
enum { AMX_STEP = 512 };                         // words of 32 rows x 32 k
static void gemm_pack_amx_panel(uint32_t *panel, GemmSource s, bool k_contiguous, int64_t words) {
  for (int64_t k = 0; k < 2 * words; k += 32, panel += AMX_STEP) {
    const int64_t left = gemm_min(32, s.k_count - k);
    if (k_contiguous) {
      const __mmask32 there = left >= 32 ? ~0u : (1u << left) - 1;
      for (int64_t i = 0; i < 32; i++) {
        const char *row = s.from + i * s.stride_bytes + 2 * k;
        _mm512_storeu_si512(panel + i * 16, i < s.rows ? _mm512_maskz_loadu_epi16(there, row) : _mm512_setzero_si512());
      }
    } else {                                     // pairs first, then 8 x 8 transposes of them
      alignas(64) uint32_t pairs[AMX_STEP];
      gemm_pack_column_pairs(pairs, 32, 1, GemmSource{s.from + k * s.stride_bytes, s.stride_bytes, s.rows, left}, 16);
      for (int i = 0; i < 32; i += 8) for (int w = 0; w < 16; w += 8) {
        __m256 r[8];
        for (int q = 0; q < 8; q++) r[q] = _mm256_load_ps((const float *)pairs + (w + q) * 32 + i);
        gemm_transpose8(r);
        for (int q = 0; q < 8; q++) _mm256_storeu_ps((float *)panel + (i + q) * 16 + w, r[q]);
      }
    }
  }
}
static void gemm_pack_amx(uint32_t *panel, int width, int64_t panels, const GemmOperand *x, int64_t i0, int64_t k0,
                          int64_t k_count, int64_t words) {
  for (int64_t p = 0; p < panels; p++, panel += gemm_panel_words(width, words))
    gemm_pack_amx_panel(panel, gemm_source(x, i0 + p * width, k0, k_count), x->k_contiguous, words);
}
static void gemm_tile_amx(const uint32_t *a, const uint32_t *b, int64_t words, float *tile, bool add) {
  amx_zero(0); amx_zero(1); amx_zero(2); amx_zero(3);
  for (int64_t w = 0; w < words; w += 16, a += AMX_STEP, b += AMX_STEP) {
    amx_load(4, a, 64);
    amx_load(6, b, 128);
    amx_dot(0, 4, 6);
    amx_load(7, b + 16, 128);
    amx_dot(1, 4, 7);
    amx_load(5, a + 256, 64);
    amx_dot(2, 5, 6);
    amx_dot(3, 5, 7);
  }
  // Sums start at zero and are added afterwards: loading them into the tiles first costs a third at K = 2048.
  alignas(64) float sums[32 * 32];
  float *to = add ? sums : tile;
  amx_store(0, to, 128);
  amx_store(1, to + 16, 128);
  amx_store(2, to + 16 * 32, 128);
  amx_store(3, to + 16 * 32 + 16, 128);
  if (add) for (int i = 0; i < 32 * 32; i += VF) vf_store(tile + i, vf_add(vf_load(tile + i), vf_load(sums + i)));
}
#endif

// ---- one kernel per kind of arithmetic -----------------------------------------------------------------------------
// Packs `panels` panels of rows i0.., k0 .. k0+k_count, padded to `words` words of k.
typedef void GemmPack(uint32_t *panel, int width, int64_t panels, const GemmOperand *x, int64_t i0, int64_t k0,
                      int64_t k_count, int64_t words);
struct GemmKernel {
  int mr, k_per_word, word_multiple;             // panels are padded to word_multiple words
  GemmPack *pack_a, *pack_b;
  void (*tile)(const uint32_t *a_panel, const uint32_t *b_panel, int64_t words, float *tile, bool add);
};
static GemmKernel gemm_kernel(Dtype dtype) {
#if defined(__AMX_BF16__) || AMX_EMULATED
  if (dtype == BF16) return GemmKernel{32, 2, 16, gemm_pack_amx, gemm_pack_pairs, gemm_tile_amx};
#elif defined(__AVX512BF16__)
  if (dtype == BF16)
    return GemmKernel{GEMM_MR, 2, 8, gemm_pack_pairs, gemm_pack_pairs, gemm_tile<GEMM_MR, GEMM_NR / VF, true>};
#endif
  GemmPack *pack = NULL;
  DISPATCH(dtype, T, pack = gemm_pack_f32<T>);
  return GemmKernel{GEMM_MR, 1, 8, pack, pack, gemm_tile<GEMM_MR, GEMM_NR / VF, false>};
}

// ---- blocks --------------------------------------------------------------------------------------------------------
struct GemmPlan { int64_t k, k_blocks, rows, row_blocks, cols, col_blocks; };

static GemmPlan gemm_plan(const GemmJob *j, const GemmKernel *g, int threads) {
  GemmPlan p;
  // By K alone: this is what fixes the order of sums.
  p.k_blocks = gemm_ceil_div(j->K, (int64_t)GEMM_K_WORDS * g->k_per_word);
  p.k = gemm_round_up(gemm_ceil_div(j->K, p.k_blocks), 16 * g->k_per_word);
  p.k_blocks = gemm_ceil_div(j->K, p.k);
  // Free choices: whole panels, about equal blocks, row blocks cut further until the threads have about equal shares.
  const int64_t M = j->a.count, N = j->b.count, max_rows = GEMM_ROWS / g->mr * g->mr, most_blocks = M / (4 * g->mr);
  p.col_blocks = gemm_ceil_div(N, GEMM_COLS);
  p.cols = gemm_round_up(gemm_ceil_div(N, p.col_blocks), GEMM_NR);
  p.col_blocks = gemm_ceil_div(N, p.cols);
  p.row_blocks = gemm_ceil_div(M, max_rows);
  for (int64_t n = p.row_blocks * p.col_blocks; n % threads && n < 4 * threads && p.row_blocks < most_blocks;
       n += p.col_blocks)
    p.row_blocks++;
  p.rows = gemm_round_up(gemm_ceil_div(M, p.row_blocks), g->mr);
  p.row_blocks = gemm_ceil_div(M, p.rows);
  return p;
}

// sums[i] = or += the sum over k0 .. k0+k_count of a(i0+i, k), i < rows: four chains by k mod 4, then (0+1)+(2+3).
// It reads what packing is about to read, so it costs little memory traffic (1 to 3 % of the product).
template <class T>
static void gemm_sum_columns(float *sums, const GemmOperand *a, int64_t i0, int64_t rows, int64_t k0, int64_t k_count,
                             bool add) {
  for (int64_t i = 0; i < rows; i += VF) {
    const T *from = (const T *)a->data + k0 * a->stride + i0 + i;
    const int64_t readable = a->count - i0 - i;
    vf chain[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    for (int64_t k = 0; k < k_count; k += 4) {
      for (int64_t q = 0; q < 4 && k + q < k_count; q++) {
        const T *p = from + (k + q) * a->stride;
        chain[q] = vf_add(chain[q], readable >= VF ? vf_load(p) : vf_load_n(p, readable));
      }
    }
    vf sum = vf_add(vf_add(chain[0], chain[1]), vf_add(chain[2], chain[3]));
    if (add) sum = vf_add(vf_load_n(sums + i, rows - i), sum);
    vf_store_n(sums + i, sum, rows - i);
  }
}

static void gemm_block(const GemmJob *j, const GemmKernel *g, const GemmPlan *p, GemmScratch s, int64_t row0,
                       int64_t col0) {
  const int64_t row_end = gemm_min(row0 + p->rows, j->a.count), col_end = gemm_min(col0 + p->cols, j->b.count);
  const bool want_sums = j->finish_sums && col0 == 0;
  for (int64_t kb = 0; kb < p->k_blocks; kb++) {
    const int64_t k0 = kb * p->k, k_count = gemm_min(p->k, j->K - k0);
    const int64_t words = gemm_round_up(gemm_ceil_div(k_count, g->k_per_word), g->word_multiple);
    g->pack_b(s.b, GEMM_NR, gemm_ceil_div(col_end - col0, GEMM_NR), &j->b, col0, k0, k_count, words);
    for (int64_t row = row0; row < row_end; row += g->mr * GEMM_A_PANELS) {
      const int64_t rows = gemm_min(g->mr * GEMM_A_PANELS, row_end - row);
      if (want_sums)
        DISPATCH(j->a.dtype, T, gemm_sum_columns<T>(s.sums + (row - row0), &j->a, row, rows, k0, k_count, kb > 0));
      g->pack_a(s.a, g->mr, gemm_ceil_div(rows, g->mr), &j->a, row, k0, k_count, words);
      for (int64_t r = 0; r < rows; r += g->mr) {
        const uint32_t *a = s.a + r / g->mr * gemm_panel_words(g->mr, words), *b = s.b;
        for (int64_t col = col0; col < col_end; col += GEMM_NR, b += gemm_panel_words(GEMM_NR, words)) {
          // With one k block every tile can use the same memory, which then stays in L1.
          float *tile = p->k_blocks == 1 ? s.tiles : s.tiles + (row + r - row0) * p->cols + (col - col0) * g->mr;
          g->tile(a, b, words, tile, kb > 0);
          if (kb + 1 < p->k_blocks) continue;
          j->finish(j, tile, row + r, col, gemm_min(g->mr, rows - r), gemm_min(GEMM_NR, col_end - col));
        }
      }
    }
  }
  if (want_sums) j->finish_sums(j, s.sums, row0, row_end - row0);
}

// Computes the job with c->threads threads; needs gemm_workspace_bytes(c) of c->workspace.
static void gemm(Ctx *c, const GemmJob *j) {
  CHECK(c->workspace_bytes >= gemm_workspace_bytes(c), "matmul: needs a workspace of %zu bytes, has %zu",
        gemm_workspace_bytes(c), c->workspace_bytes);
  const GemmKernel g = gemm_kernel(j->a.dtype);
  const GemmPlan p = gemm_plan(j, &g, c->threads);
#pragma omp parallel num_threads(c->threads)
  {
    gemm_thread_begin();
    const GemmScratch s = gemm_scratch(c, omp_get_thread_num());
#pragma omp for schedule(dynamic) nowait
    for (int64_t t = 0; t < p.row_blocks * p.col_blocks; t++)
      gemm_block(j, &g, &p, s, t % p.row_blocks * p.rows, t / p.row_blocks * p.cols);
    gemm_thread_end();
  }
}
