// gemm_tiles.h: the inside of gemm.h that all its kernels share: memory of a thread, work on the side, tiles of fused
// multiply-adds in registers.
#pragma once
#include "gemm_pack.h"

// ---- workspace -----------------------------------------------------------------------------------------------------
// For one thread: two groups of packed a, tiles not yet added, sums of a task, chains and sums of a's rows.
enum { GEMM_GROUP_ROWS = GEMM_MR_MAX * GEMM_A_PANELS };
static const size_t GEMM_GROUP_WORDS = GEMM_A_PANELS * (GEMM_MR_MAX * GEMM_K_WORDS + GEMM_GAP);
static const size_t GEMM_TILE_FLOATS = GEMM_MR_MAX * GEMM_NR, GEMM_STRIP_FLOATS = GEMM_ROWS_WAIT * GEMM_COLS;
static const size_t GEMM_THREAD_BYTES =
    4 * (2 * GEMM_GROUP_WORDS + 2 * GEMM_TILE_FLOATS + GEMM_STRIP_FLOATS + 4 * GEMM_GROUP_ROWS + GEMM_ROWS_WAIT);
// For all threads: packed b. At least one k block of a task; at most 512 columns of 8192 k, which fit in an L3.
static_assert(GEMM_B_WORDS >= GEMM_COLS * GEMM_K_WORDS, "a k block of a task");
static const size_t GEMM_SHARED_MIN = (GEMM_B_WORDS + GEMM_COLS_MAX / GEMM_NR * GEMM_GAP) * 4;
static const int64_t GEMM_SHARED_ELEMENTS = 512 * 8192;

struct GemmScratch { uint32_t *group[2]; float *tile[2], *strips, *chains, *sums; };
static __attribute__((unused)) GemmScratch gemm_scratch(const Ctx *c, int thread) {
  uint32_t *p = (uint32_t *)((char *)c->workspace + (size_t)thread * GEMM_THREAD_BYTES);
  GemmScratch s;
  for (int i = 0; i < 2; i++, p += GEMM_GROUP_WORDS) s.group[i] = p;
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
struct GemmSide;
// tile(mr x GEMM_NR) = a_panel times b_panel; calls gemm_side_step() every chunk_words words, unless that is 0.
typedef void GemmTile(const uint32_t *a_panel, const uint32_t *b_panel, int64_t words, float *tile, GemmSide *side);
struct GemmKernel {
  int mr, share_mr;                              // rows of a panel; a task has a multiple of share_mr rows
  int step_k, step_words;                        // panels hold whole steps: step_k summed indices in step_words words
  int one_block_words, block_words;              // K is one block up to the first, else blocks of at most the second
  int chunk_words;                               // a is packed in pieces of this many words between steps; 0: before
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
// Sums along k: chains[q] = or += the sum over k = q mod 4 of a(i0+i, k), k0 <= k < k0+k_count, i < rows. It reads what
// is packed next, so it costs little memory traffic (1 to 3 % of the GEMM).
template <class T>
static void gemm_sum_columns(float *chains, const GemmOperand *a, int64_t i0, int64_t rows, int64_t k0, int64_t k_count,
                             bool add) {
  for (int64_t i = 0; i < rows; i += VF) {
    const T *from = (const T *)a->data + k0 * a->stride + i0 + i;
    const int64_t readable = a->count - i0 - i;
    vf chain[4];
    for (int q = 0; q < 4; q++) chain[q] = add ? vf_load(chains + q * GEMM_GROUP_ROWS + i) : vf_zero();
    for (int64_t k = 0; k < k_count; k += 4) {
      for (int64_t q = 0; q < 4 && k + q < k_count; q++) {
        const T *p = from + (k + q) * a->stride;
        chain[q] = vf_add(chain[q], readable >= VF ? vf_load(p) : vf_load_n(p, readable));
      }
    }
    for (int q = 0; q < 4; q++) vf_store(chains + q * GEMM_GROUP_ROWS + i, chain[q]);
  }
}
// The sum of a k block is (0+1)+(2+3) of its chains; blocks are added in ascending order.
static void gemm_add_chains(float *sums, const float *chains, int64_t rows, bool add) {
  for (int64_t i = 0; i < rows; i += VF) {
    vf c[4];
    for (int q = 0; q < 4; q++) c[q] = vf_load(chains + q * GEMM_GROUP_ROWS + i);
    vf sum = vf_add(vf_add(c[0], c[1]), vf_add(c[2], c[3]));
    if (add) sum = vf_add(vf_load_n(sums + i, rows - i), sum);
    vf_store_n(sums + i, sum, rows - i);
  }
}

// A group of a's panels that is packed piece by piece: k in chunks, all panels within each chunk, so that whole rows of
// memory are read if i is contiguous.
struct GemmGroup {
  const GemmJob *j;
  const GemmKernel *g;
  uint32_t *to;
  int64_t row, rows, k0, k_count, words;
  float *chains, *sums;                          // sums NULL: not needed
  bool first_k, last_k;
  int64_t pieces, word, panel;                   // pieces left; where the next one is
};
static void gemm_pack_piece(GemmGroup *p) {
  const GemmKernel *g = p->g;
  const int64_t whole = !g->chunk_words, panels = whole ? gemm_ceil_div(p->rows, g->mr) : 1;
  const int64_t words = whole ? p->words : g->chunk_words, k = gemm_words_k(g, p->word), at = p->panel * g->mr;
  const int64_t k_count = gemm_min(gemm_words_k(g, words), p->k_count - k);
  const int64_t rows = gemm_min(panels * g->mr, p->rows - at);
  if (p->sums) {
    float *chains = p->chains + at;
    DISPATCH(p->j->a.dtype, T,
             gemm_sum_columns<T>(chains, &p->j->a, p->row + at, rows, p->k0 + k, k_count, p->word > 0));
    if (p->word + words >= p->words) gemm_add_chains(p->sums + at, chains, rows, !p->first_k);
  }
  uint32_t *to = p->to + p->panel * gemm_panel_words(g->mr, p->words) + p->word * g->mr;
  g->pack_a(to, g->mr, panels, &p->j->a, p->row + at, p->k0 + k, k_count, words);
  p->panel += panels;
  if (p->panel * g->mr >= p->rows) { p->panel = 0; p->word += words; }
  if (--p->pieces == 0 && p->sums && p->last_k) p->j->finish_sums(p->j, p->sums, p->row, p->rows);
}

// Work that a kernel with idle vector units (AMX) does between its steps; other kernels do it all at once.
struct GemmSide {
  const GemmJob *j;
  const float *strip;                            // complete sums that go to finish, part of a row at a time
  int64_t stride, row, col, rows, cols, r, c, units_a_step;  // r == rows: nothing left
  float *add_to;                                 // a tile that is being added to a strip
  const float *add_from;
  int64_t add_left;                              // floats
  GemmGroup ahead;
  int64_t every, wait;                           // steps from one piece of `ahead` to the next
  const char *fetch;                             // the next k block of b: from L3 into L2
  int64_t fetch_lines, fetch_lines_a_step;
};
INLINE void gemm_side_add(GemmSide *s, int64_t floats) {
  if (s->add_left <= 0) return;
  const int64_t n = gemm_min(floats, s->add_left);
  float *const to = s->add_to;
  const float *const from = s->add_from;         // in registers: kept in *s it costs 10 cycles per vector
  for (int64_t i = 0; i < n; i += VF) vf_store(to + i, vf_add(vf_load(to + i), vf_load(from + i)));
  s->add_to += n;
  s->add_from += n;
  s->add_left -= n;
}
static void gemm_side_finish(GemmSide *s, int64_t units) {
  for (; units > 0 && s->r < s->rows; units--) {
    const float *from = s->strip + s->c / GEMM_NR * s->stride + s->r * GEMM_NR;
    s->j->finish(s->j, from, s->stride, s->row + s->r, s->col + s->c, 1, gemm_min(GEMM_UNIT_COLS, s->cols - s->c));
    s->c += GEMM_UNIT_COLS;
    if (s->c >= s->cols) { s->c = 0; s->r++; }
  }
}
static __attribute__((unused)) void gemm_side_step(GemmSide *s) {
  gemm_side_add(s, 2 * GEMM_NR);
  gemm_side_finish(s, s->units_a_step);
  if (s->ahead.pieces > 0 && --s->wait <= 0) {
    gemm_pack_piece(&s->ahead);
    s->wait = s->every;
  }
  if (s->fetch_lines <= 0) return;
  const int64_t lines = gemm_min(s->fetch_lines_a_step, s->fetch_lines);
  const char *const fetch = s->fetch;
  for (int64_t i = 0; i < lines; i++) __builtin_prefetch(fetch + 64 * i, 0, 2);
  s->fetch += 64 * lines;
  s->fetch_lines -= lines;
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
