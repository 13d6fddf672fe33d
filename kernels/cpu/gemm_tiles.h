// gemm_tiles.h: the inside of gemm.h that all its kernels share: memory of a thread, work on the side, tiles of fused
// multiply-adds in registers.
#pragma once
#include "gemm_pack.h"
#include "gemm_side.h"

// ---- workspace -----------------------------------------------------------------------------------------------------
// For one thread: a group of packed a, two tiles not yet finished, sums of a task, chains and sums of a's rows.
enum { GEMM_GROUP_ROWS = GEMM_MR_MAX * GEMM_A_PANELS };
static const size_t GEMM_GROUP_WORDS = GEMM_A_PANELS * (GEMM_MR_MAX * GEMM_K_WORDS + GEMM_GAP);
static const size_t GEMM_TILE_FLOATS = GEMM_MR_MAX * GEMM_NR, GEMM_STRIP_FLOATS = GEMM_ROWS_WAIT * GEMM_COLS;
static const size_t GEMM_THREAD_BYTES =
    4 * (GEMM_GROUP_WORDS + 2 * GEMM_TILE_FLOATS + GEMM_STRIP_FLOATS + 4 * GEMM_GROUP_ROWS + GEMM_ROWS_WAIT);
// For all threads: packed b. At least one k block of a task; at most 512 columns of 8192 k, which fit in an L3.
static_assert(GEMM_B_WORDS >= GEMM_COLS * GEMM_K_WORDS, "a k block of a task");
static const size_t GEMM_SHARED_MIN = (GEMM_B_WORDS + GEMM_COLS_MAX / GEMM_NR * GEMM_GAP) * 4;
static const int64_t GEMM_SHARED_ELEMENTS = 512 * 8192;

struct GemmScratch { uint32_t *group; float *tile[2], *strips, *chains, *sums; };
static __attribute__((unused)) GemmScratch gemm_scratch(const Ctx *c, int thread) {
  uint32_t *p = (uint32_t *)((char *)c->workspace + (size_t)thread * GEMM_THREAD_BYTES);
  GemmScratch s;
  s.group = p;
  p += GEMM_GROUP_WORDS;
  for (int i = 0; i < 2; i++, p += GEMM_TILE_FLOATS) s.tile[i] = (float *)p;
  s.strips = (float *)p;
  s.chains = s.strips + GEMM_STRIP_FLOATS;
  s.sums = s.chains + 4 * GEMM_GROUP_ROWS;
  return s;
}

// ---- one kernel per kind of arithmetic -----------------------------------------------------------------------------
// Packs `panels` panels of rows i0.., k0 .. k0+k_count, padded to `words` words of k.
typedef void GemmPack(uint32_t *panel, int width, int64_t panels, const GemmOperand *x, int64_t i0, int64_t k0,
                      int64_t k_count, int64_t words);
struct GemmKernel {
  int mr, share_mr;                              // rows of a panel; a task has a multiple of share_mr rows
  int step_k, step_words;                        // panels hold whole steps: step_k summed indices in step_words words
  int one_block_words, block_words;              // K is one block up to the first, else blocks of at most the second
  int side_words;                                // of a step of a tile that works on the side (AMX); else 0
  GemmPack *pack_a, *pack_b;
  GemmTile *(*tile_of)(int64_t rows);            // for panels that have only this many of the mr rows
  // If not NULL: receives each tile of a strip whose sums are complete.
  void (*mend)(const GemmJob *j, float *tile, int64_t row, int64_t col, int64_t rows, int64_t cols);
};
INLINE int64_t gemm_words(const GemmKernel *g, int64_t k_count) {
  return gemm_ceil_div(k_count, g->step_k) * g->step_words;
}
INLINE int64_t gemm_words_k(const GemmKernel *g, int64_t words) { return words / g->step_words * g->step_k; }

// ---- work between the multiply steps --------------------------------------------------------------------------------
// Sums along k: chains[q] = the sum over k = q mod 4 of a(i0+i, k), k0 <= k < k0+k_count, i < rows. It reads what
// is packed next, so it costs little memory traffic (1 to 3 % of the GEMM).
template <class T>
static void gemm_sum_columns(float *chains, const GemmOperand *a, int64_t i0, int64_t rows, int64_t k0,
                             int64_t k_count) {
  enum { AT_ONCE = 2 };                          // vectors: a line of bf16
  for (int64_t i = 0; i < rows; i += AT_ONCE * VF) {
    const T *from = (const T *)a->data + k0 * a->stride + i0 + i;
    const int64_t readable = a->count - i0 - i;
    vf chain[4][AT_ONCE];
    for (auto &q : chain) for (vf &c : q) c = vf_zero();
    for (int64_t k = 0; k < k_count; k += 4) {
      for (int64_t q = 0; q < 4 && k + q < k_count; q++) {
        const T *p = from + (k + q) * a->stride;
        __builtin_prefetch(p + 8 * a->stride);
        for (int64_t v = 0; v < AT_ONCE; v++)
          chain[q][v] = vf_add(chain[q][v], readable >= (v + 1) * VF ? vf_load(p + v * VF) :
                                            vf_load_n(p + v * VF, readable - v * VF));
      }
    }
    for (int q = 0; q < 4; q++)
      for (int64_t v = 0; v < AT_ONCE; v++)
        if (i + v * VF < rows) vf_store(chains + q * GEMM_GROUP_ROWS + i + v * VF, chain[q][v]);
  }
}
// The sum of a k block is (0+1)+(2+3) of its chains; blocks are added in ascending order.
static __attribute__((unused)) void gemm_add_chains(float *sums, const float *chains, int64_t rows, bool add) {
  for (int64_t i = 0; i < rows; i += VF) {
    vf c[4];
    for (int q = 0; q < 4; q++) c[q] = vf_load(chains + q * GEMM_GROUP_ROWS + i);
    vf sum = vf_add(vf_add(c[0], c[1]), vf_add(c[2], c[3]));
    if (add) sum = vf_add(vf_load_n(sums + i, rows - i), sum);
    vf_store_n(sums + i, sum, rows - i);
  }
}

// ---- register tiles ------------------------------------------------------------------------------------------------
// DOT: a word is a bf16 pair, else an fp32.
#ifdef __aarch64__
// A lane of a register multiplies four others: 6 words of a are 2 loads, not 6 of a word to all lanes. What the second
// reads beyond them is the next step's, or the gap's.
template <bool DOT, int LANE> INLINE vf gemm_lane(float32x4_t a, vf b, vf sum) {
  for (int q = 0; q < 4; q++) {
#if GEMM_PAIRS
    if (DOT) {
      const bfloat16x8_t x = vreinterpretq_bf16_f32(b.q[q]), y = vreinterpretq_bf16_f32(a);
      sum.q[q] = vbfdotq_laneq_f32(sum.q[q], x, y, LANE);
      continue;
    }
#endif
    sum.q[q] = vfmaq_laneq_f32(sum.q[q], b.q[q], a, LANE);
  }
  return sum;
}
template <bool DOT> INLINE vf gemm_step(const float *a, int i, vf b, vf sum) {
  const float32x4_t four = vld1q_f32(a + i / 4 * 4);
  switch (i % 4) {
    case 0: return gemm_lane<DOT, 0>(four, b, sum);
    case 1: return gemm_lane<DOT, 1>(four, b, sum);
    case 2: return gemm_lane<DOT, 2>(four, b, sum);
    default: return gemm_lane<DOT, 3>(four, b, sum);
  }
}
#else
template <bool DOT> INLINE vf gemm_step(const float *a, int i, vf b, vf sum) {
#if GEMM_PAIRS
  if (DOT) return _mm512_dpbf16_ps(sum, (__m512bh)vf_set1(a[i]), (__m512bh)b);
#endif
  return vf_fma(vf_set1(a[i]), b, sum);
}
#endif
template <int ROWS, int MR, int VECS, bool DOT>
static void gemm_tile(const uint32_t *a_panel, const uint32_t *b_panel, int64_t words, float *tile, GemmSide *) {
  const float *a = (const float *)a_panel, *b = (const float *)b_panel;
  vf sum[ROWS][VECS];
#pragma GCC unroll 16
  for (int i = 0; i < ROWS; i++) for (int v = 0; v < VECS; v++) sum[i][v] = vf_zero();
#pragma GCC unroll 4
  for (int64_t w = 0; w < words; w++) {
    vf row[VECS];
    for (int v = 0; v < VECS; v++) row[v] = vf_load(b + v * VF);
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; i++)
      for (int v = 0; v < VECS; v++) sum[i][v] = gemm_step<DOT>(a, i, row[v], sum[i][v]);
    a += MR;
    b += VECS * VF;
  }
#pragma GCC unroll 16
  for (int i = 0; i < ROWS; i++) for (int v = 0; v < VECS; v++) vf_store(tile + (i * VECS + v) * VF, sum[i][v]);
}

// If a panel has fewer rows, fewer are computed; a chain is the same in any tile. A partial panel then costs only its
// own rows, and rows are divided evenly: 1024 rows are 73 panels and 2 rows, the 128 of a thread in the head 9 and 2.
template <bool DOT> static GemmTile *gemm_tile_of(int64_t rows) {
  enum { VECS = GEMM_NR / VF };
  if (rows <= 2) return gemm_tile<2, GEMM_MR, VECS, DOT>;
  if (rows <= 4) return gemm_tile<4, GEMM_MR, VECS, DOT>;
#ifdef __AVX512F__
  if (rows <= 6) return gemm_tile<6, GEMM_MR, VECS, DOT>;
  if (rows <= 8) return gemm_tile<8, GEMM_MR, VECS, DOT>;
  if (rows <= 10) return gemm_tile<10, GEMM_MR, VECS, DOT>;
  if (rows <= 12) return gemm_tile<12, GEMM_MR, VECS, DOT>;
#endif
  return gemm_tile<GEMM_MR, GEMM_MR, VECS, DOT>;
}

// Fused multiply-adds in fp32; T is converted first.
template <class T> static GemmKernel gemm_kernel_fma() {
  return GemmKernel{GEMM_MR, 2, 16, 16, GEMM_K_WORDS, GEMM_K_WORDS, 0, gemm_pack_f32<T>, gemm_pack_f32<T>,
                    gemm_tile_of<false>, NULL};
}
// Summed indices in a block. They depend on K and the kernel alone, because they fix the summation order.
static int64_t gemm_block_k(int64_t K, const GemmKernel *g) {
  const int64_t one = gemm_words_k(g, g->one_block_words), most = gemm_words_k(g, g->block_words);
  return gemm_round_up(gemm_ceil_div(K, K <= one ? 1 : gemm_ceil_div(K, most)), g->step_k);
}
