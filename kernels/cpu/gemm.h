// gemm.h: the CPU's only matrix multiply, out(M,N) = sum over k of a(m,k) b(n,k). CPU sections only.
//
// Conventions
//   - An operand says where (i,k) is stored: i is a's row or b's row, k the summed index; either may be contiguous.
//   - b is packed once into memory shared by the threads, in passes that fill that memory; a barrier; then the threads
//     take tasks (rows x columns), and each packs its rows of a. If there are few rows, one task uses what is packed of
//     b: then each thread packs b for its own tasks. No result depends on which thread does what.
//   - Order of sums: k is cut into equal blocks that depend on K and the kernel alone (gemm_block_k). Inside a block
//     each output element is one chain in ascending k from zero: of fused multiply-adds (fp32 arithmetic), of bf16
//     pairs (vdpbf16ps, BFDOT) or of groups of 32 (AMX). The blocks' sums are then added in ascending order in fp32.
//     Nothing else matters: not M, N, threads or addresses. fp32 arithmetic therefore gives the same bits on all
//     instruction sets. --matmul_precision high on AMX builds fp32 GEMMs from bf16 ones, with another order:
//     gemm_split.h.
//   - Panels hold 32-bit words: one fp32, or a pair of bf16 with consecutive k ("VNNI" order). Two-byte operands
//     without hardware support are converted while packed: packing is the only code that knows storage types.
//   - A multiply of a few rows packs nothing: gemm_few.h.
//   - Edges are padded with zeros in the panels; every tile is whole; only the finish function sees the true extent.
//
// Method: Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (2008), with these loops:
//   pass: columns, rows, k blocks       all threads pack their share of b; it stays in L3
//     task: rows x columns              one thread; b's k block of its columns stays in L2
//       k block
//         group of GEMM_A_PANELS        packed, then multiplied
//           panel of mr rows            in L1 (fp32, AMX)
//             columns by GEMM_NR        one register tile each
// A strip (the sums of a panel's rows and a task's columns) is finished row by row when it is complete: memory is then
// written in runs of a kilobyte or more, not 64 bytes of each row. Measured on Zen 4 against packing b again for every
// 544 rows and finishing tile by tile: forward and dgrad 2 to 10 % faster, wgrad -3 to 5 %, with GELU 8 %.
// A kernel that leaves the vector units idle (AMX) finishes tile by tile, between the steps of the next one (GemmSide).
#pragma once
#include "gemm_amx.h"
#include "gemm_few.h"
#include "gemm_split.h"

size_t gemm_workspace_bytes(const Ctx *c, Dtype dtype, int64_t largest_b) {
  const size_t bytes = dtype == BF16 ? 2 : c->fast_fp32 ? 6 : 4;               // per element; 6: split in three
  size_t shared = (size_t)gemm_min(largest_b, GEMM_SHARED_ELEMENTS) * bytes;
  shared = (shared + shared / 16 + 255) / 256 * 256;         // gaps and padding
  if (shared < GEMM_SHARED_MIN) shared = GEMM_SHARED_MIN;
  return shared + (size_t)c->threads * GEMM_THREAD_BYTES;
}
static GemmKernel gemm_kernel(const Ctx *c, Dtype dtype) {
  const bool split = c->fast_fp32 && dtype == F32;
#if AMX_TILES
  if (split) return gemm_kernel_split();
  if (dtype == BF16)
    return GemmKernel{32, 32, 32, AMX_WORDS, GEMM_K_WORDS, 256, AMX_WORDS, gemm_pack_amx, gemm_pack_pairs,
                      gemm_tile_amx_of, NULL};
#elif GEMM_PAIRS
  if (dtype == BF16)
    return GemmKernel{GEMM_MR, 2, 32, 16, GEMM_K_WORDS, GEMM_K_WORDS, 0, gemm_pack_pairs, gemm_pack_pairs,
                      gemm_tile_of<true>, NULL};
#endif
  CHECK(!split, "matmul: %s has no tiles to split fp32 products into", c->ops->name);
  DISPATCH(dtype, T, return gemm_kernel_fma<T>());
  return GemmKernel{};
}

// ---- plan ----------------------------------------------------------------------------------------------------------
struct GemmPlan {
  int64_t k, k_blocks, words;                    // of a block of k: summed indices, packed words (the last has fewer)
  int64_t rows, cols;                            // of a task
  int64_t pass_rows, pass_cols, pass_k_blocks;   // of a pass
  bool own;                                      // each thread packs b for its own tasks, a block of k at a time
};

// A thread's share of what all have for packed b: whole lines.
INLINE int64_t gemm_own_words(size_t shared_bytes, int threads) { return (int64_t)shared_bytes / threads / 64 * 16; }
// Free choices: whole panels, blocks of about equal size, tasks small enough that threads have about equal shares.
static GemmPlan gemm_plan(const GemmJob *j, const GemmKernel *g, int threads, size_t shared_bytes) {
  GemmPlan p = {};
  const int64_t M = j->a.count, N = j->b.count;
  p.k = gemm_block_k(j->K, g);
  p.k_blocks = gemm_ceil_div(j->K, p.k);
  p.words = gemm_words(g, gemm_min(p.k, j->K));
  int64_t most_cols = p.k_blocks > 1 ? (int64_t)GEMM_COLS : gemm_min(GEMM_COLS_MAX, GEMM_B_WORDS / p.words);
  most_cols = most_cols / GEMM_NR * GEMM_NR;
  p.cols = gemm_round_up(gemm_ceil_div(N, gemm_ceil_div(N, most_cols)), GEMM_NR);
  // Few rows: one task uses what is packed of b, so its thread packs it, and it is still in that L2 (so fewer columns).
  // There must be enough columns for all threads.
  const int64_t own_tasks = gemm_round_up(gemm_ceil_div(N, gemm_min(most_cols, GEMM_COLS_OWN)), threads);
  const int64_t cols = gemm_round_up(gemm_ceil_div(N, own_tasks), GEMM_NR);
  if (M <= GEMM_ROWS && N >= 4 * GEMM_NR * threads &&
      gemm_own_words(shared_bytes, threads) >= cols / GEMM_NR * gemm_panel_words(GEMM_NR, p.words)) {
    p.cols = cols;
    p.rows = p.pass_rows = gemm_round_up(M, g->share_mr);
    p.pass_cols = gemm_round_up(N, GEMM_NR);
    p.pass_k_blocks = p.k_blocks;
    p.own = true;
    return p;
  }
  // How much of b fits: all of k of some tasks' columns, or some k blocks of one task's columns.
  const int64_t fit = (int64_t)shared_bytes / 4 / gemm_panel_words(GEMM_NR, p.words) / (p.cols / GEMM_NR);
  p.pass_k_blocks = fit >= p.k_blocks ? p.k_blocks : fit;
  p.pass_cols = p.cols * (fit >= p.k_blocks ? fit / p.k_blocks : 1);
  const int64_t most_rows = GEMM_ROWS / g->mr * g->mr, col_tasks = gemm_ceil_div(gemm_min(N, p.pass_cols), p.cols);
  int64_t row_tasks = gemm_ceil_div(M, most_rows);
  const int64_t most_row_tasks = gemm_ceil_div(M, 4 * g->mr);
  while (row_tasks < most_row_tasks && row_tasks * col_tasks % threads && row_tasks * col_tasks < 8 * threads)
    row_tasks++;
  // Below a diagonal tasks differ in size: several for each thread, so that all end at about the same time.
  if (j->lower && threads > 1) row_tasks = gemm_min(most_row_tasks, row_tasks > 4 * threads ? row_tasks : 4 * threads);
  p.rows = gemm_round_up(gemm_ceil_div(M, row_tasks), g->share_mr);
  p.pass_rows = M;
  if (p.pass_k_blocks < p.k_blocks) {            // sums wait in the threads' scratch from pass to pass: one task each
    p.rows = gemm_min(GEMM_ROWS_WAIT / g->mr * g->mr, gemm_round_up(gemm_ceil_div(M, threads), g->share_mr));
    p.pass_rows = p.rows * threads;
  }
  return p;
}

// ---- tasks ---------------------------------------------------------------------------------------------------------
struct GemmPass { int64_t row, row_end, col, col_end, k_block, k_block_end, tasks, row_tasks; };
// What a thread works on: a group of a's panels times the task's columns.
struct GemmPlace { int64_t task, k_block, row, rows, col, cols; };
struct GemmShared { int64_t next_task, next_pack; };         // of a pass
struct GemmWork {
  const GemmJob *j;
  const GemmKernel *g;
  const GemmPlan *p;
  GemmPass pass;
  uint32_t *b;                                   // packed: from (b_k_block, b_col) on, b_panels panels a k block
  int64_t b_k_block, b_col, b_panels;
  GemmShared *shared;
  GemmScratch s;
  GemmSide side;
  int64_t strips;                                // or tiles (AMX), started so far
};

INLINE int64_t gemm_k_count(const GemmWork *w, int64_t k_block) {
  return gemm_min(w->p->k, w->j->K - k_block * w->p->k);
}
INLINE int64_t gemm_words(const GemmWork *w, int64_t k_block) { return gemm_words(w->g, gemm_k_count(w, k_block)); }
static int64_t gemm_take_task(GemmWork *w, bool first) {
  if (w->p->pass_k_blocks < w->p->k_blocks) return first ? thread_number : w->pass.tasks;
  return __atomic_fetch_add(&w->shared->next_task, 1, __ATOMIC_RELAXED);
}
// Below a diagonal the last rows have the most work: their tasks come first.
INLINE int64_t gemm_task_row(const GemmWork *w, GemmPlace at) {
  const int64_t n = at.task % w->pass.row_tasks;
  return w->pass.row + (w->j->lower ? w->pass.row_tasks - 1 - n : n) * w->p->rows;
}
INLINE int64_t gemm_task_row_end(const GemmWork *w, GemmPlace at) {
  return gemm_min(gemm_task_row(w, at) + w->p->rows, w->pass.row_end);
}
// The first row of a task's first group, of those that reach below the diagonal.
static int64_t gemm_first_row(const GemmWork *w, GemmPlace at) {
  const int64_t row = gemm_task_row(w, at), group = w->g->mr * GEMM_A_PANELS;
  return w->j->lower && at.col > row ? row + (at.col - row) / group * group : row;
}
static GemmPlace gemm_task_begin(GemmWork *w, bool first) {
  const GemmPass *s = &w->pass;
  GemmPlace at = {0, s->k_block, 0, 0, 0, 0};
  do {
    at.task = gemm_take_task(w, first);
    first = false;
    if (at.task >= s->tasks) return at;
    at.col = s->col + at.task / s->row_tasks * w->p->cols;
  } while (w->j->lower && gemm_task_row_end(w, at) <= at.col);
  at.row = gemm_first_row(w, at);
  at.cols = gemm_min(w->p->cols, s->col_end - at.col);
  return at;
}
// How many of the place's columns a panel of rows computes.
INLINE int64_t gemm_panel_cols(const GemmWork *w, GemmPlace at, int64_t row) {
  if (!w->j->lower) return at.cols;
  const int64_t below = gemm_min(row + w->g->mr, at.row + at.rows) - at.col;
  return below <= 0 ? 0 : gemm_min(at.cols, gemm_round_up(below, GEMM_NR));
}
INLINE int64_t gemm_group_rows(const GemmWork *w, GemmPlace at) {
  return gemm_min(w->g->mr * GEMM_A_PANELS, gemm_task_row_end(w, at) - at.row);
}
static GemmPlace gemm_next_place(GemmWork *w, GemmPlace at) {
  at.row += at.rows;
  if (at.row < gemm_task_row_end(w, at)) return at;
  at.row = gemm_first_row(w, at);
  return ++at.k_block < w->pass.k_block_end ? at : gemm_task_begin(w, false);
}
// Packs a group of a, and adds up what finish_sums wants of it.
static void gemm_pack_group(const GemmWork *w, GemmPlace at) {
  const GemmJob *j = w->j;
  const GemmKernel *g = w->g;
  const int64_t k0 = at.k_block * w->p->k, k_count = gemm_k_count(w, at.k_block);
  if (j->finish_sums && at.col == 0) {
    float *const sums = w->s.sums + (at.row - gemm_task_row(w, at));
    DISPATCH(j->a.dtype, T, gemm_sum_columns<T>(w->s.chains, &j->a, at.row, at.rows, k0, k_count));
    gemm_add_chains(sums, w->s.chains, at.rows, at.k_block > 0);
    if (at.k_block + 1 == w->p->k_blocks) j->finish_sums(j, sums, at.row, at.rows);
  }
  g->pack_a(w->s.group, g->mr, gemm_ceil_div(at.rows, g->mr), &j->a, at.row, k0, k_count, gemm_words(w, at.k_block));
}
// Address of b's panels for a k block and columns col.. .
INLINE uint32_t *gemm_b_panels(const GemmWork *w, int64_t k_block, int64_t col) {
  return w->b + (k_block - w->b_k_block) * w->b_panels * gemm_panel_words(GEMM_NR, w->p->words) +
         (col - w->b_col) / GEMM_NR * gemm_panel_words(GEMM_NR, gemm_words(w, k_block));
}
// Packs `panels` of them.
static void gemm_pack_b(const GemmWork *w, int64_t k_block, int64_t col, int64_t panels) {
  w->g->pack_b(gemm_b_panels(w, k_block, col), GEMM_NR, panels, &w->j->b, col, k_block * w->p->k,
               gemm_k_count(w, k_block), gemm_words(w, k_block));
}
#if AMX_TILES
// A panel of a kernel that works on the side: a tile waits in one of two buffers until the next one is multiplied.
static void gemm_multiply_panel_amx(GemmWork *w, GemmPlace at, const uint32_t *a, int64_t row, int64_t words) {
  const bool first = at.k_block == 0, last = at.k_block + 1 == w->p->k_blocks;
  const int64_t mr = w->g->mr, tile_floats = mr * GEMM_NR, rows = gemm_min(mr, at.row + at.rows - row);
  float *strip = w->s.strips + (row - gemm_task_row(w, at)) / mr * w->p->cols * mr;
  const uint32_t *b = gemm_b_panels(w, at.k_block, at.col);
  GemmTile *const multiply = w->j->tile_amx ? w->j->tile_amx : w->g->tile_of(rows);
  GemmSide *s = &w->side;
  for (int64_t col = 0; col < at.cols; col += GEMM_NR, b += gemm_panel_words(GEMM_NR, words), strip += tile_floats) {
    float *const sums = first && !last ? strip : w->s.tile[w->strips++ % 2];
    multiply(a, b, words, sums, s);
    if (first && !last) continue;
    s->tile = sums;
    s->strip = first ? NULL : strip;
    s->last = last;
    s->row = row;
    s->col = at.col + col;
    s->rows = rows;
    const int64_t cols = gemm_min(GEMM_NR, at.cols - col);
    if (!last || (!w->g->mend && cols == GEMM_NR)) continue;
    for (int64_t i = 0; s->strip && i < tile_floats; i += VF)
      vf_store(sums + i, vf_add(vf_load(strip + i), vf_load(sums + i)));
    s->strip = NULL;
    if (w->g->mend) w->g->mend(w->j, sums, row, s->col, rows, cols);
    if (cols == GEMM_NR) continue;
    w->j->finish(w->j, sums, tile_floats, row, s->col, rows, cols);
    s->tile = NULL;
  }
}
#endif
static void gemm_multiply_panel(GemmWork *w, GemmPlace at, const uint32_t *a, int64_t row, int64_t words) {
  const GemmPlan *p = w->p;
  const int64_t mr = w->g->mr, tile_floats = mr * GEMM_NR, rows = at.row + at.rows - row;
  // One block of k: two strips take turns. More: each panel's strip waits for the next block.
  const int64_t n = p->k_blocks == 1 ? w->strips++ % 2 : (row - gemm_task_row(w, at)) / mr;
  float *const strip = w->s.strips + n * p->cols * mr, *to = strip;
  const uint32_t *b = gemm_b_panels(w, at.k_block, at.col);
  GemmTile *const multiply = w->g->tile_of(rows);
  for (int64_t col = 0; col < at.cols; col += GEMM_NR, b += gemm_panel_words(GEMM_NR, words), to += tile_floats) {
    const bool add = at.k_block > 0;
    float *tile = add ? w->s.tile[0] : to;
    for (int64_t i = 0; add && i < tile_floats; i += VF) __builtin_prefetch(to + i);     // needed in 10 000 cycles
    multiply(a, b, words, tile, NULL);
    for (int64_t i = 0; add && i < tile_floats; i += VF) vf_store(to + i, vf_add(vf_load(to + i), vf_load(tile + i)));
  }
  if (at.k_block + 1 == p->k_blocks)
    w->j->finish(w->j, strip, tile_floats, row, at.col, gemm_min(mr, rows), at.cols);
}
static void gemm_multiply_group(GemmWork *w, GemmPlace of, const uint32_t *a) {
  GemmPlace at = of;                             // of a panel at a time
  const int64_t mr = w->g->mr, words = gemm_words(w, at.k_block);
  for (int64_t row = at.row; row < at.row + at.rows; row += mr, a += gemm_panel_words(mr, words)) {
    at.cols = gemm_panel_cols(w, of, row);
    if (at.cols == 0) continue;
#if AMX_TILES
    if (w->g->side_words) gemm_multiply_panel_amx(w, at, a, row, words);
    else
#endif
    gemm_multiply_panel(w, at, a, row, words);
  }
}
// All tasks that a thread gets in a pass.
static void gemm_pass(GemmWork *w) {
  for (GemmPlace at = gemm_task_begin(w, true); at.task < w->pass.tasks; at = gemm_next_place(w, at)) {
    at.rows = gemm_group_rows(w, at);
    if (w->p->own && at.row == gemm_first_row(w, at)) {
      w->b_k_block = at.k_block;
      w->b_col = at.col;
      gemm_pack_b(w, at.k_block, at.col, gemm_ceil_div(at.cols, GEMM_NR));
    }
    gemm_pack_group(w, at);
    gemm_multiply_group(w, at, w->s.group);
  }
#if AMX_TILES
  gemm_side_flush(&w->side);
#endif
}
// Packs b's part of a pass with all threads; returns when all of it is packed.
static void gemm_pack_pass(GemmWork *w, int threads) {
  const GemmPass *s = &w->pass;
  const int64_t panels = gemm_ceil_div(s->col_end - s->col, GEMM_NR), k_blocks = s->k_block_end - s->k_block;
  int64_t unit = gemm_ceil_div(panels * k_blocks, 4 * threads);          // panels; runs of several lines
  unit = unit > 8 ? 8 : unit;
  const int64_t units = gemm_ceil_div(panels, unit);
  w->b_k_block = s->k_block;
  w->b_col = s->col;
  w->b_panels = panels;
  thread_tasks(&w->shared->next_pack, units * k_blocks, 1, [=](int64_t t) {
    const int64_t first = t % units * unit;
    gemm_pack_b(w, s->k_block + t / units, s->col + first * GEMM_NR, gemm_min(unit, panels - first));
  });
  threads_barrier();
  if (!thread_number) w->shared->next_pack = 0;  // for the next pass, which follows another barrier
}

void gemm(Ctx *c, const GemmJob *j) {
  const size_t need = gemm_workspace_bytes(c, F32, 0), own = (size_t)c->threads * GEMM_THREAD_BYTES;
  CHECK(c->workspace_bytes >= need, "matmul: needs a workspace of %zu bytes, has %zu", need, c->workspace_bytes);
  CHECK(j->a.count > 0 && j->b.count > 0 && j->K > 0, "matmul: %lld x %lld of %lld, needs one of each at least",
        (long long)j->a.count, (long long)j->b.count, (long long)j->K);
  const GemmKernel g = gemm_kernel(c, j->a.dtype);
  if (gemm_is_few(j, &g)) { gemm_few(c, j, &g); return; }
  const size_t shared = c->workspace_bytes - own;
  uint32_t *b = (uint32_t *)((char *)c->workspace + own);
  GemmShared counters = {}, *const all = &counters;
  parallel(c->threads, [=](int thread, int threads) {
    const GemmPlan p = gemm_plan(j, &g, threads, shared);
    GemmWork w = {j, &g, &p, {}, b, 0, 0, 0, all, gemm_scratch(c, thread), {}, 0};
    if (p.own) w.b += thread * gemm_own_words(shared, threads);
    GemmPass *s = &w.pass;
    w.side.j = j;
    amx_thread_begin();
    for (s->col = 0; s->col < j->b.count; s->col = s->col_end) {
      s->col_end = gemm_min(s->col + p.pass_cols, j->b.count);
      for (s->row = 0; s->row < j->a.count; s->row = s->row_end) {
        s->row_end = gemm_min(s->row + p.pass_rows, j->a.count);
        s->row_tasks = gemm_ceil_div(s->row_end - s->row, p.rows);
        s->tasks = s->row_tasks * gemm_ceil_div(s->col_end - s->col, p.cols);
        for (s->k_block = 0; s->k_block < p.k_blocks; s->k_block = s->k_block_end) {
          s->k_block_end = gemm_min(s->k_block + p.pass_k_blocks, p.k_blocks);
          const bool again = s->col || s->row || s->k_block;
          if (again) threads_barrier();
          if (again && !thread) all->next_task = 0;
          if (!p.own) gemm_pack_pass(&w, threads);
          gemm_pass(&w);
        }
      }
    }
#if AMX_TILES
    vf_passed();                                 // stores past the caches (matmul_store_line)
#endif
    amx_thread_end();
  });
}
void gemm_sums(Ctx *c, const GemmJob *j) {
  const size_t need = gemm_workspace_bytes(c, F32, 0);
  CHECK(c->workspace_bytes >= need, "matmul: needs a workspace of %zu bytes, has %zu", need, c->workspace_bytes);
  const GemmKernel g = gemm_kernel(c, j->a.dtype);
  const int64_t M = j->a.count, k = gemm_block_k(j->K, &g);
  const int64_t rows = gemm_min(GEMM_GROUP_ROWS, gemm_round_up(gemm_ceil_div(M, c->threads), VF));
  parallel_tasks(c->threads, gemm_ceil_div(M, rows), 1, [=](int64_t task) {
    const GemmScratch s = gemm_scratch(c, thread_number);
    const int64_t row = task * rows, n = gemm_min(rows, M - row);
    for (int64_t k0 = 0; k0 < j->K; k0 += k) {
      DISPATCH(j->a.dtype, T, gemm_sum_columns<T>(s.chains, &j->a, row, n, k0, gemm_min(k, j->K - k0)));
      gemm_add_chains(s.sums, s.chains, n, k0 > 0);
    }
    j->finish_sums(j, s.sums, row, n);
  });
}
