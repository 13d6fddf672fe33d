// gemm_job.h: what a matrix multiply of gemm.h is asked for, and the sizes of its tiles and blocks.
#pragma once
#include "kernels/ops.h"
#include "amx.h"

struct GemmSide;
// tile(mr x GEMM_NR) = a_panel times b_panel; a kernel that leaves the vector units idle (AMX) does side's work too.
typedef void GemmTile(const uint32_t *a_panel, const uint32_t *b_panel, int64_t words, float *tile, GemmSide *side);

// ---- interface -----------------------------------------------------------------------------------------------------
struct GemmOperand {
  const void *data;
  Dtype dtype;                                   // of both operands
  int64_t count;                                 // rows i
  int64_t stride;                                // elements from i to i+1 (k_contiguous) or from k to k+1
  bool k_contiguous;
  // b in quantization blocks, in place of data and stride: its rows (k_contiguous) or its columns are i. Numbers of
  // dtype, as blocks_expand makes them; rows that it lacks are zeros.
  const QuantMatrix *blocks = NULL;
};
struct GemmJob {
  GemmOperand a, b;
  int64_t K;
  // Called for parts of finished strips, each element once: rows x cols sums of out(row.., col..), col a multiple of
  // GEMM_NR. The first GEMM_NR columns have row stride GEMM_NR; the next GEMM_NR columns start `stride` floats later.
  void (*finish)(const GemmJob *j, const float *sums, int64_t stride, int64_t row, int64_t col, int64_t rows,
                 int64_t cols);
  // If not NULL: receives the sums over k of a's rows row.. (a must not be k_contiguous).
  void (*finish_sums)(const GemmJob *j, const float *sums, int64_t row, int64_t rows);
  const void *arg;                               // for the two functions
  GemmTile *tile_amx = NULL;                     // gemm_tile_amx with what finish does to whole rows of tiles inlined
  // a and b are one operand: only elements on and below the diagonal are wanted. finish also gets some above it.
  bool lower = false;
};
INLINE int64_t gemm_min(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t gemm_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
INLINE int64_t gemm_round_up(int64_t a, int64_t to) { return gemm_ceil_div(a, to) * to; }
// Of gemm.h, an object of their own. gemm: computes the job with c->threads threads, in gemm_workspace_bytes() of
// c->workspace. gemm_sums: the job's finish_sums alone, with the same bits as in gemm(); b and finish are ignored; it
// needs the same workspace. gemm_workspace_bytes: for GEMMs whose packed b has at most largest_b elements of dtype;
// larger ones take more passes.
IMPL(gemm, ISA, void gemm(Ctx *c, const GemmJob *j))
IMPL(gemm_sums, ISA, void gemm_sums(Ctx *c, const GemmJob *j))
IMPL(gemm_workspace_bytes, ISA, size_t gemm_workspace_bytes(const Ctx *c, Dtype dtype, int64_t largest_b))

#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define GEMM_PAIRS 1                             // a multiply-add of bf16 pairs
#else
#define GEMM_PAIRS 0
#endif
#ifdef __AVX512F__
enum { GEMM_MR = 14, GEMM_NR = 32 };             // 28 of 32 zmm hold sums, 2 a row of b, 1 the broadcast a
#else
enum { GEMM_MR = 6, GEMM_NR = 16 };              // 12 of 16 ymm; 24 of 32 NEON registers, 4 a row of b, 2 of a
#endif
// If K has several blocks, a task is at most ROWS x COLS (its sums wait in L2). With one block of k it is as wide as
// B_WORDS of b allow, so that a is packed once per task. On AMX more than half of a 2 MB L2 is for a and the sums.
// Elsewhere b's block may exceed a 1 MB L2: on Zen 5 tiles fed from L3 lose 1 %, while 768 columns instead of 512 gain
// 1 to 8 %.
#if AMX_TILES
enum { GEMM_B_WORDS = 192 << 10, GEMM_COLS = 512, GEMM_ROWS_WAIT = 512 };
#else
enum { GEMM_B_WORDS = 320 << 10, GEMM_COLS = 768, GEMM_ROWS_WAIT = 336 };
#endif
// K_WORDS: words of k in a block, so that a panel of a (14 x 384 x 4 = 21 KB) fits in L1. ROWS_WAIT: rows per thread
// when sums wait from pass to pass; b is packed again for each such run of rows. A_PANELS: panels packed at a time, so
// that memory is read in runs of several lines even if i is contiguous. COLS_OWN: columns of a task whose thread packs
// b itself.
enum { GEMM_K_WORDS = 384, GEMM_ROWS = 256, GEMM_COLS_MAX = 1024, GEMM_COLS_OWN = 512,
       GEMM_MR_MAX = 32, GEMM_A_PANELS = 4 };
