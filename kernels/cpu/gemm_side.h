// gemm_side.h: the bf16 kernel of gemm.h on AMX, 2 x 2 tiles of 16 rows of 64 bytes, and what it does beside them. A
// header of its own, because who asks for a product compiles the kernel with the code that finishes rows.
#pragma once
#include "gemm_job.h"

// Tiles of AMX leave the vector units idle: a tile's rows are finished between the multiply steps of the next one. A
// step takes 64 cycles and a core looks 512 instructions ahead: with calls, or counters in memory, the next step's
// tiles begin late. So what is due is in registers, and rows are finished by code that is compiled into the kernel:
// forwards took 0.75 to 0.85 of the time of a call for every 64 columns (dev/results/2026-11-29-amx.md). Packing gains
// nothing by being spread: between steps it took as long as before them.
struct GemmSide {
  const GemmJob *j;
  const float *tile;                             // the tile before: its sums, rows x GEMM_NR at (row, col); NULL: none
  float *strip;                                  // the sums of the blocks of k before; NULL: none
  bool last;                                     // no block of k follows: tile + strip is finished, else kept in strip
  int64_t row, col, rows;
};

#if AMX_TILES
enum { AMX_STEP = 512, AMX_WORDS = 16 };         // words of 32 rows x 32 k, and of k in it
// Rows of whole tiles by the job's finish function. Another R comes with its own two functions.
struct GemmRowCall { const GemmJob *j; int64_t row, col; };
INLINE void gemm_row_begin(GemmRowCall *r, const GemmJob *j, int64_t row, int64_t col) { *r = {j, row, col}; }
INLINE void gemm_row(const GemmRowCall *r, int64_t i, vf x, vf y) {
  alignas(64) float sums[GEMM_NR];
  vf_store(sums, x);
  vf_store(sums + VF, y);
  r->j->finish(r->j, sums, GEMM_NR, r->row + i, r->col, 1, GEMM_NR);
}
// What is due while a tile is multiplied.
template <class R> struct GemmDue {
  R finish;
  const float *tile;
  float *strip;
  int64_t i, rows, rows_a_step;
  bool last;
};
template <class R> INLINE GemmDue<R> gemm_due(GemmSide *s, int64_t steps) {
  GemmDue<R> d;
  d.tile = s->tile;
  d.strip = s->strip;
  d.i = 0;
  d.rows = s->tile ? s->rows : 0;
  d.rows_a_step = (d.rows + steps - 1) / steps;
  d.last = s->last;
  if (d.rows && d.last) gemm_row_begin(&d.finish, s->j, s->row, s->col);
  s->tile = NULL;
  return d;
}
template <class R> INLINE void gemm_due_rows(GemmDue<R> *d, int64_t n) {
  for (; n > 0 && d->i < d->rows; n--, d->i++) {
    const float *from = d->tile + d->i * GEMM_NR;
    vf x = vf_load(from), y = vf_load(from + VF);
    if (d->strip) {
      float *sums = d->strip + d->i * GEMM_NR;
      x = vf_add(vf_load(sums), x);
      y = vf_add(vf_load(sums + VF), y);
      if (!d->last) { vf_store(sums, x); vf_store(sums + VF, y); }
    }
    if (d->last) gemm_row(&d->finish, d->i, x, y);
  }
}
// All that is left.
static __attribute__((unused)) void gemm_side_flush(GemmSide *s) {
  GemmDue<GemmRowCall> d = gemm_due<GemmRowCall>(s, 1);
  gemm_due_rows(&d, d.rows);
}
// Intel SDM, TDPBF16PS. a's panel: [k/32][32 rows][32 k]; b's: [k/2][32 columns][2].
// Tiles of a stay in L1 from one column panel to the next if tiles of b, which are used once, bypass it (stream load: a
// quarter faster). All rows of the tile before are done when the sums are stored: they may go to the same strip.
template <class R>
static void gemm_tile_amx(const uint32_t *a, const uint32_t *b, int64_t words, float *tile, GemmSide *side) {
  GemmDue<R> due = gemm_due<R>(side, words / AMX_WORDS);
  amx_zero(0); amx_zero(1); amx_zero(2); amx_zero(3);
  for (int64_t w = 0; w < words; w += AMX_WORDS, a += AMX_STEP, b += AMX_STEP) {
    amx_load(4, a, 64);
    amx_stream_load(6, b, 128);
    amx_dot(0, 4, 6);
    amx_stream_load(7, b + 16, 128);
    amx_dot(1, 4, 7);
    gemm_due_rows(&due, due.rows_a_step);
    amx_load(5, a + 256, 64);
    amx_dot(2, 5, 6);
    amx_dot(3, 5, 7);
  }
  amx_store_sums(tile);
}
#endif
