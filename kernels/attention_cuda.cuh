// attention_cuda.cuh: the CUDA part of attention.cuh, with the same formulas, shapes and names.
//
// Three families of kernels, each with one launch per output:
//   wgmma          attention_wgmma.cuh: bf16 and fp16 on Hopper, sequences of at least 128 tokens, head sizes that are
//                  multiples of 8 from 40 to 128. Instances for 64 and 128.
//   tensor cores   attention_tensorcore.cuh: bf16 and fp16 everywhere else, and by --attention mma; head sizes that are
//                  multiples of 8 up to 256. Instances for 32, 64, 80, 96, 128, 256. In both families a size in between
//                  runs the next larger instance, its missing columns zero in shared memory.
//   plain          attention_plain.cuh: fp32, and the two-byte types at every other head size: tiles of 64 x 64 in
//                  fp32 FMA.
// All are FlashAttention-2 (Dao 2023): a block owns one tile of rows, streams the other operand tile by tile, and
// never writes a (T,T) matrix. Softmax is online (Milakov & Gimelshein 2018) in base 2: exp2(s c - max), c =
// log2(e)/sqrt(hs), one fused multiply-add per element. Future tiles are never visited; a warp skips the tiles that are
// in the future of all its own rows; only tiles on the diagonal are masked. lse is natural.
//
// Backward is three launches: D = dout . out; dk and dv, one block per tile of keys, over the queries from the diagonal
// on; dq, one block per tile of queries, over the keys up to the diagonal. (wgmma: two, dq sums D on its way.) That is
// seven matrix multiplies per tile.
// One kernel with a shared dq needs five, but there dq is a sum over blocks: either by atomic additions, in another
// order each time, or by blocks that wait for each other. Here every sum is computed by one block in one order, tiles
// ascending, and dk, dv and dq stay in registers from the first tile to the last.
//
// Tensor cores: mma.sync.m16n8k16, fp32 sums (PTX ISA, "Matrix Fragments for mma.m16n8k16"). With g = lane / 4 and
// t = lane % 4 a lane holds
//   sums D (16x8)    d[e]   row g + 8 (e / 2), column 2t + e % 2
//   A (16x16)        a[i]   row g + 8 (i % 2), columns 2t, 2t+1 (+ 8 for i >= 2)
//   B (16x8)         b[i]   rows 2t, 2t+1 (+ 8 i), column g
// so the sums of two neighbouring 8-column tiles, rounded and packed, are the A operand of the next multiply without
// any data movement: scores become probabilities and ds in registers. dk and dv use S^T = K Q^T, with keys as rows, for
// the same reason. Only two kinds of multiply are needed, both with A's rows along the warp's own rows:
//   attention_dot_rows     sums += A B^T   A and B row-major over the head, by ldmatrix    (S, dP)
//   attention_weigh_rows   sums += P B     P from registers, B by ldmatrix.trans           (out, dv, dk, dq)
// P and ds are rounded to the tensors' type for the second multiply; sums, softmax, lse and D stay fp32.
//
// Four warps, each with M blocks of 16 rows. With M = 1 an mma needs 256 new bytes of B, two cycles of shared memory:
// as long as the tensor cores of sm_80 take for the mma. M = 2, where registers allow it, uses each fragment of B
// twice. dk and dv of head size 64 have sums of 128 registers then; they take queries 16 at a time, so that S and dP
// need only 32 and K and V stay in registers, all but a piece: 18 ldmatrix for 64 mma, where M = 1 takes 32.
// Shared memory is in rows of HS + 8 elements: HS / 8 + 1 pieces of 16 bytes are an odd number, so that the 8 rows that
// ldmatrix reads at a time start in 8 different groups of 4 banks: no bank conflicts without a swizzle.
//   forward   Q (64 M rows) | K, V (N rows each) of two tiles: one is computed while cp.async loads the next
//   dk, dv    K, V (64 M) | Q, dout (N) of two tiles | lse, D (N) of two tiles
//   dq        Q, dout (64 M) | K, V (N) of two tiles
// Finished tiles are stored through the warp's own rows of shared memory, so that global stores are 16 bytes too. M and
// N of each head size are in ATTENTION_TILES; sizes in KiB (forward | dk, dv | dq) are
//   32: 30 | 30.5 | 40    64: 54 | 54.5 | 54    80: 66 | 66.5 | 66    96: 52 | 52.5 | 78    128: 68 | 68.5 | 68
// below the 99 KiB that a block may use on every GPU since sm_80. Where an SM has 100 KiB (sm_86, sm_89,
// sm_120), only what takes at most 49 leaves room for a second block, which computes while the first one waits.
// ATTENTION_SMALL has tiles for that, of head sizes from 33 to 80, and forward to 96:
//   64: 36 | 36.5 | 36    80: 44 | 44.5 | 44    96: 39 | - | -
// For head size 128 one block takes more than 49 KiB even with the smallest tiles. M = 1 costs nothing on these GPUs:
// by the data sheets' peaks an mma with fp32 sums takes four or eight cycles of an SM, and shared memory delivers 256
// bytes in two.
//
// Dropout: the mask's words follow the keys of a query. Each lane generates 16 or 32 neighbouring elements, one Philox
// call per 4 elements, and shuffles move the bits to the lanes that hold the scores. 1/(1-p) is applied to the finished
// sums (out, dv) or to dout . v (ds).
//
// Documents: with starts (ops.h), forward and dq start at the tile of the first key that a block's first query attends
// to; what is left of documents before a query's is masked. dk and dv of tensor cores and wgmma end with the document
// of a block's last key. What is looked up in starts comes after the first loads; both mask only tiles at the border of
// a document.
//
// Heads of more than 128 columns (instance 256): M = 1 and N = 32 everywhere; a warp's 16 rows of sums take 128
// registers. dk and dv, which would take 256, have a launch each: dv of S^T and dout, dk of S^T, dP^T and Q. Of dk and
// of dq shared memory holds one streamed tile, without a place for the next: the other block of the SM
// computes meanwhile, where there is room for two. All take 99 KiB.
//
// dqkv_sum, for the bias of q, k and v: the stored rows are still in shared memory; a warp adds up its own, then those
// of 64 rows of the sequence are added in order (attention_column_sums).
//
// Padding rows (at or beyond T) are zero in shared memory. As queries they are never stored and add nothing to dk and
// dv; as keys they are in the future of every real query.
#pragma once
#include "attention.cuh"
#include "workspace.h"
#include "kernels/cuda/cuda_device.h"
#include "attention_tensorcore.cuh"
#include "attention_plain.cuh"

// ---- launches -------------------------------------------------------------------------------------------------------
// Head size, then M, N, KEEP and BLOCKS of forward, of dk and dv, and of dq. M and N are the largest that compile
// without spills and fit in shared memory (forward of 80 columns spills 72 bytes; since dqkv_sum dq of 256 columns, and
// in fp16 of 32, 20 at most); KEEP is set where registers are left.
// BLOCKS is the number of blocks that the 65536 registers of an SM hold: two blocks of 128 threads with up
// to 255 each.
//   HS   forward            dk and dv         dq
#define ATTENTION_TILES(X) \
  X(32,  2, 64, true,  2,   2, 32, true,  2,  2, 64, true,  2) \
  X(64,  2, 64, true,  2,   2, 16, true,  2,  2, 32, true,  2) \
  X(80,  2, 64, false, 2,   2, 16, false, 2,  2, 32, false, 2) \
  X(96,  2, 32, false, 2,   1, 32, true,  2,  2, 32, false, 2) \
  X(128, 2, 32, false, 2,   1, 16, true,  2,  1, 32, true,  2) \
  X(256, 1, 32, false, 2,   1, 32, false, 2,  1, 32, false, 2)

// The same for SMs with 100 KiB of shared memory. Head sizes for which no tiles are small enough have ATTENTION_TILES'.
#define ATTENTION_SMALL(X) \
  X(32,  2, 64, true,  2,   2, 32, true,  2,  2, 64, true,  2) \
  X(64,  2, 32, true,  2,   1, 32, true,  2,  1, 32, true,  2) \
  X(80,  2, 32, true,  2,   1, 32, true,  2,  1, 32, true,  2) \
  X(96,  1, 32, true,  2,   1, 32, true,  2,  2, 32, false, 2) \
  X(128, 2, 32, false, 2,   1, 16, true,  2,  1, 32, true,  2) \
  X(256, 1, 32, false, 2,   1, 32, false, 2,  1, 32, false, 2)

static AttentionShape attention_shape(Tensor out, Tensor qkv, int n_head) {
  const int hs = (int)(out.shape[2] / n_head), group = n_head / (int)attention_kv_heads(out, qkv, n_head);
  const float scale = 1.0f / sqrtf((float)hs);
  return AttentionShape{(int)out.shape[1], n_head, hs, (int)out.shape[2], group, (int)qkv.shape[2], scale,
                        scale * 1.44269504f};
}
static AttentionDrop attention_drop(const Ctx *c, Dropout drop) {
  return AttentionDrop{drop, drop.p > 0.0f ? dropout_threshold(drop.p) : 0u, 1.0f / (1.0f - drop.p), c->state};
}
static void attention_check(const char *op, Tensor out, int n_head) {
  CHECK(out.shape[0] < 65536 && n_head < 65536 && out.shape[1] < 1 << 30 && out.shape[2] < 1 << 29,
        "%s: (%lld,%lld,%lld) on %d heads, needs fewer than 65536 sequences and heads, 2^30 tokens, 2^29 columns", op,
        (long long)out.shape[0], (long long)out.shape[1], (long long)out.shape[2], n_head);
}
// If rows of a head are a multiple of 16 bytes they are copied in 16-byte pieces, so tensors must be aligned to 16
// bytes.
static void attention_check_aligned(const char *op, Tensor out, int n_head, const void *qkv, const void *dout = NULL,
                                    const void *dqkv = NULL) {
  const size_t head_bytes = (size_t)(out.shape[2] / n_head) * dtype_bytes(out.dtype);
  CHECK(head_bytes % 16 || lanes_aligned(out.data, qkv, dout, dqkv), "%s: a tensor of heads of %zu bytes is not on 16",
        op, head_bytes);
}
template <class T, int COLUMNS> static void attention_plain_forward(Ctx *c, AttentionForward<T> a, int64_t B) {
  const dim3 grid = attention_grid(a.s, B, a.s.n_head, ATTENTION_EDGE, (a.s.hs + COLUMNS - 1) / COLUMNS);
  LAUNCH((attention_plain_forward_kernel<T, COLUMNS>), grid, ATTENTION_PLAIN_THREADS, 0, STREAM(c), a);
}
template <class T, int COLUMNS> static void attention_plain_backward(Ctx *c, AttentionBackward<T> a, int64_t B) {
  const int runs = (a.s.hs + COLUMNS - 1) / COLUMNS;
  LAUNCH((attention_plain_dkv_kernel<T, COLUMNS>),
         attention_grid(a.s, B, attention_shared_heads(a.s), ATTENTION_EDGE, runs), ATTENTION_PLAIN_THREADS, 0,
         STREAM(c), a);
  LAUNCH((attention_plain_dq_kernel<T, COLUMNS>), attention_grid(a.s, B, a.s.n_head, ATTENTION_EDGE, runs),
         ATTENTION_PLAIN_THREADS, 0, STREAM(c), a);
}

// Bytes of `rows` rows of two-byte elements.
static constexpr size_t attention_row_bytes(int HS, int rows) { return (size_t)rows * (size_t)(HS + 8) * 2; }
enum { ATTENTION_SHARED_MAX = 99 << 10 };
static constexpr size_t attention_forward_bytes(int HS, int M, int N) {
  return attention_row_bytes(HS, 64 * M + 4 * N);
}
static constexpr size_t attention_dkv_bytes(int HS, int M, int N, int places = 2, int own = 2) {
  const size_t stats = HS <= 128 ? (size_t)(2 * places * attention_stage(N)) * sizeof(float) : 0;
  return attention_row_bytes(HS, own * 64 * M + 2 * places * attention_stage(N)) + stats;
}
static constexpr size_t attention_dq_bytes(int HS, int M, int N, int places = 2) {
  return attention_row_bytes(HS, 2 * 64 * M + 2 * places * N);
}
#define X(HS, F_M, F_N, F_KEEP, F_BLOCKS, KV_M, KV_N, KV_KEEP, KV_BLOCKS, Q_M, Q_N, Q_KEEP, Q_BLOCKS) \
  static_assert(HS > 96 || attention_forward_bytes(HS, F_M, F_N) <= 49 << 10, "no room for a second block"); \
  static_assert(HS > 80 || (attention_dkv_bytes(HS, KV_M, KV_N) <= 49 << 10 && \
                            attention_dq_bytes(HS, Q_M, Q_N) <= 49 << 10), "no room for a second block");
ATTENTION_SMALL(X)
#undef X
// Whether an SM's shared memory holds two blocks with the largest tiles: 78 KiB each, plus 1 KiB that CUDA reserves.
static inline bool attention_roomy(const Ctx *c) { return DEVICE(c)->shared_all >= 2 * (78 + 1) << 10; }

// On Hopper (attention_wgmma.cuh).
static bool attention_by_wgmma(const Ctx *c, const AttentionShape &s) {
  return DEVICE(c)->wgmma && !c->attention_mma && s.len >= 128 && s.hs % 8 == 0 && s.hs > 32 && s.hs <= 128 &&
         s.ld < 1 << 23;
}

template <class T> static void attention_forward_typed(Ctx *c, AttentionForward<T> a, int64_t B) {
  if constexpr (sizeof(T) == 4) {
    if (a.s.hs > 64) attention_plain_forward<T, 128>(c, a, B);
    else attention_plain_forward<T, 64>(c, a, B);
  } else {
    if (attention_by_wgmma(c, a.s)) { attention_forward_wgmma(c, a, B); return; }
#define X(HS, M, N, KEEP, BLOCKS, ...) \
    if (a.s.hs % 8 == 0 && a.s.hs <= HS) { \
      constexpr size_t bytes = attention_forward_bytes(HS, M, N); \
      static_assert(bytes <= ATTENTION_SHARED_MAX, "more shared memory than a block may have"); \
      LAUNCH((attention_forward_kernel<T, HS, M, N, KEEP, BLOCKS>), attention_grid(a.s, B, a.s.n_head, 64 * M), \
             ATTENTION_THREADS, bytes, STREAM(c), a); \
      return; \
    }
    if (attention_roomy(c)) { ATTENTION_TILES(X) } else { ATTENTION_SMALL(X) }
#undef X
    attention_plain_forward<T, 64>(c, a, B);
  }
}
void attention_forward_impl(Ctx *c, Tensor out, Tensor lse, Tensor qkv, int n_head, Dropout drop,
                            Tensor starts) {
  attention_check("attention_forward", out, n_head);
  attention_check_aligned("attention_forward", out, n_head, qkv.data);
  if (numel(out) == 0) return;
  const AttentionShape s = attention_shape(out, qkv, n_head);
  const AttentionDrop d = attention_drop(c, drop);
  float *stats = (float *)lse.data;
  DISPATCH(out.dtype, T,
           AttentionForward<T> a = {(T *)out.data, stats, (const T *)qkv.data, (const int32_t *)starts.data, s, d};
           attention_forward_typed(c, a, out.shape[0]));
}

template <class T>
static void attention_dot(Ctx *c, float *dot, const T *dout, const T *out, AttentionShape s, int64_t rows) {
  const int64_t blocks = (rows * ATTENTION_DOT_LANES + ATTENTION_DOT_THREADS - 1) / ATTENTION_DOT_THREADS;
  LAUNCH(attention_dot_kernel<T>, dim3((unsigned)blocks), ATTENTION_DOT_THREADS, 0, STREAM(c), dot, dout, out, s, rows);
}
template <class T, int HS, int M, int N, bool KEEP, int BLOCKS, int PLACES, int GRADIENTS>
static void attention_dkv(Ctx *c, AttentionBackward<T> a, float *sums, int64_t B) {
  constexpr size_t bytes = attention_dkv_bytes(HS, M, N, PLACES, GRADIENTS & ATTENTION_DK ? 2 : 1);
  static_assert(bytes <= ATTENTION_SHARED_MAX, "too much shared memory");
  LAUNCH((attention_dkv_kernel<T, HS, M, N, KEEP, BLOCKS, PLACES, GRADIENTS>),
         attention_grid(a.s, B, attention_shared_heads(a.s), 64 * M), ATTENTION_THREADS, bytes, STREAM(c), a, sums);
}
template <class T>
static void attention_backward_typed(Ctx *c, AttentionBackward<T> a, const T *out, float *dot, float *sums,
                                     int64_t B) {
  if constexpr (sizeof(T) == 2) {
    if (attention_by_wgmma(c, a.s)) { attention_backward_wgmma(c, a, out, dot, sums, B); return; }
  }
  attention_dot(c, dot, a.dout, out, a.s, B * a.s.n_head * a.s.len);
  if constexpr (sizeof(T) == 4) {
    if (a.s.hs > 64) attention_plain_backward<T, 128>(c, a, B);
    else attention_plain_backward<T, 64>(c, a, B);
  } else {
#define X(HS, F_M, F_N, F_KEEP, F_BLOCKS, KV_M, KV_N, KV_KEEP, KV_BLOCKS, Q_M, Q_N, Q_KEEP, Q_BLOCKS) \
  if (a.s.hs % 8 == 0 && a.s.hs <= HS) { \
    constexpr int PLACES = HS > 128 ? 1 : 2, FIRST = HS > 128 ? ATTENTION_DV : ATTENTION_DK | ATTENTION_DV; \
    attention_dkv<T, HS, KV_M, KV_N, KV_KEEP, KV_BLOCKS, 2, FIRST>(c, a, sums, B); \
    if constexpr (HS > 128) \
      attention_dkv<T, HS, KV_M, KV_N, KV_KEEP, KV_BLOCKS, 1, ATTENTION_DK>(c, a, sums, B); \
    constexpr size_t q_bytes = attention_dq_bytes(HS, Q_M, Q_N, PLACES); \
    static_assert(q_bytes <= ATTENTION_SHARED_MAX, "too much shared memory"); \
    LAUNCH((attention_dq_kernel<T, HS, Q_M, Q_N, Q_KEEP, Q_BLOCKS, PLACES>), \
           attention_grid(a.s, B, a.s.n_head, 64 * Q_M), ATTENTION_THREADS, q_bytes, STREAM(c), a, sums); \
    return; \
  }
    if (attention_roomy(c)) { ATTENTION_TILES(X) } else { ATTENTION_SMALL(X) }
#undef X
    attention_plain_backward<T, 64>(c, a, B);
  }
}
void attention_backward_impl(Ctx *c, Tensor dqkv, Tensor dout, Tensor qkv, Tensor out, Tensor lse, int n_head,
                             Dropout drop, Tensor starts, Tensor dqkv_sum) {
  attention_check("attention_backward", out, n_head);
  attention_check_aligned("attention_backward", out, n_head, qkv.data, dout.data, dqkv.data);
  if (numel(out) == 0) return;
  const size_t need = attention_dot_bytes(numel(lse));
  CHECK(c->workspace_bytes >= need, "attention_backward: workspace of %zu bytes, needs %zu", c->workspace_bytes, need);
  const AttentionShape s = attention_shape(out, qkv, n_head);
  const AttentionDrop d = attention_drop(c, drop);
  const float *stats = (const float *)lse.data;
  float *dot = (float *)c->workspace;
  DISPATCH(out.dtype, T,
           AttentionBackward<T> a = {(T *)dqkv.data, (const T *)dout.data, (const T *)qkv.data, stats, dot,
                                     (const int32_t *)starts.data, s, d};
           attention_backward_typed(c, a, (const T *)out.data, dot, (float *)dqkv_sum.data, out.shape[0]));
}
