// workspace.h: what the CUDA kernels need of c->workspace for a call, in bytes. The kernels use these formulas, and so
// do plans of GPUs that are not here. A CPU's depend on its instruction set and are with its ops.
#pragma once
#include "ops.h"

// layernorm_backward: a block stores `sums` (two or three) per column for a run of neighbouring rows: of 16, or 8 for
// each warp where these have rows of their own (at_once), so that the stored sums stay small beside the rows; more
// where there would be more runs than LAYERNORM_RUNS, which are three rounds or more of the blocks that a GPU holds,
// so that the last round, which is not full, costs little.
enum { LAYERNORM_WARP_COLUMNS = 1024, LAYERNORM_RUN_WARPS = 4, LAYERNORM_RUNS = 1024 };
static inline int64_t layernorm_at_once(int64_t C) {
  return C % 8 || C > LAYERNORM_WARP_COLUMNS ? 1 : (int64_t)LAYERNORM_RUN_WARPS;
}
static inline int64_t layernorm_run_rows(int64_t rows, int64_t C) {
  const int64_t at_once = layernorm_at_once(C), least = at_once == 1 ? 16 : 8 * at_once;
  return max64(least, round_up((rows + LAYERNORM_RUNS - 1) / LAYERNORM_RUNS, at_once));
}
static inline size_t layernorm_partials_bytes(int64_t rows, int64_t C, int sums) {
  const int64_t each = layernorm_run_rows(rows, C);
  return (size_t)((rows + each - 1) / each * sums * C) * sizeof(float);
}
// rope_backward: the same for the weights of q's and k's norms.
enum { ROPE_RUNS = 1024, ROPE_RUN_ROWS = 8 };
static inline int64_t rope_run_rows(int64_t rows) { return max64(ROPE_RUN_ROWS, (rows + ROPE_RUNS - 1) / ROPE_RUNS); }
static inline int64_t rope_runs(int64_t rows) { return (rows + rope_run_rows(rows) - 1) / rope_run_rows(rows); }
static inline size_t rope_partials_bytes(int64_t rows, int64_t columns) {
  return (size_t)(rope_runs(rows) * 2 * columns) * sizeof(float);
}
// embedding_backward: positions with their tokens, first sorted within chunks, then all sorted.
static inline size_t embedding_sort_bytes(int64_t positions) { return (size_t)positions * 4 * sizeof(int32_t); }
// attention_backward: D of every query (B,H,T).
static inline size_t attention_dot_bytes(int64_t queries) { return (size_t)queries * sizeof(float); }
// cuBLASLt, as cuBLAS's manual recommends (cublasSetWorkspace): 32 MiB on Hopper and Blackwell data-centre GPUs, 12
// MiB on other Blackwell GPUs, 4 MiB elsewhere. It depends on the GPU model alone (major: of its compute capability),
// because the plans made with it must.
static inline size_t matmul_library_bytes(int major) {
  return (size_t)(major >= 9 && major <= 11 ? 32 : major >= 12 ? 12 : 4) << 20;
}
// cuBLASLt does not support a gradient dtype that is neither fp32 nor the operands' dtype. The GEMM then writes fp32,
// in the workspace after the library's part, and is rounded once.
static inline bool matmul_rounds_after(Dtype operands, Dtype gradient) {
  return gradient != F32 && gradient != operands;
}
enum { DBIAS_BLOCKS = 128 };                     // that each store a partial sum of dbias

// The most that an op of such a training step needs.
static inline size_t cuda_workspace_bytes(int major, WorkspaceQuery q) {
  const int64_t rows = q.batch * q.seq_len, widest = query_widest(&q);
  const bool after = matmul_rounds_after(q.dtype, q.grad_dtype);
  const size_t wanted[] = {matmul_library_bytes(major) + (after ? (size_t)(widest * q.n_embd) * 4 : 0),
                           (size_t)(DBIAS_BLOCKS * widest) * 4,
                           embedding_sort_bytes(rows),
                           layernorm_partials_bytes(rows, q.n_embd, q.norm_sums),
                           attention_dot_bytes(q.batch * q.n_head * q.seq_len),
                           rope_partials_bytes(rows, query_q_norm(&q))};
  size_t bytes = 0;
  for (size_t w : wanted) bytes = w > bytes ? w : bytes;
  return bytes;
}
