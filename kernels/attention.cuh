// attention.cuh: causal multi-head self-attention that never holds a (T,T) matrix.
//
//   qkv (B,T,(H+2KV)hs): q of H = n_head heads | k | v of KV heads each, of hs columns; out, dout (B,T,C), C = H hs;
//   lse (B,H,T) fp32. With KV < H, query head h reads k and v of KV head h / (H/KV) (Ainslie et al. 2023, "GQA")
//   without copying them; dk and dv of a KV head are the sums over its H/KV query heads, in order
//   s_qk = q . k / sqrt(hs) for k <= q       lse_q = ln sum_k e^(s_qk)       p_qk = e^(s_qk - lse_q)
//   with starts (ops.h) only for k >= starts[q]: documents of one sequence do not attend to each other
//   out_q = sum_k w_qk p_qk v_k              w = 1/(1-p) where dropout keeps the probability, 0 where it drops it
//   dv_k  = sum_q w_qk p_qk dout_q           D_q = dout_q . out_q
//   ds_qk = p_qk (w_qk dout_q . v_k - D_q)   dq_q = sum_k ds_qk k_k / sqrt(hs)     dk_k = sum_q ds_qk q_q / sqrt(hs)
// out, lse and dqkv are overwritten. Tiles, online softmax and the backward recomputation of p from lse are those of
// Dao et al., FlashAttention (2022) and FlashAttention-2 (2023).
//
// The rest describes the CPU's kernels in fp32 arithmetic. (On AVX-512 BF16 and AMX, bf16 tensors use
// attention_bf16.cuh, which has another summation order.)
//
// Lanes are queries: a tile holds S^T, keys down and 32 queries across. The maximum and the sum over the keys of a
// query are then plain vector operations, and the two operands that are broadcast (K, V) need no transposition.
// Scores are kept in base 2: q is scaled by log2(e)/sqrt(hs) when packed.
//
// The summation order is the same for every instruction set and thread count. Each element of a matrix multiply is one
// chain of fused multiply-adds: over d ascending (S^T, dP^T), over keys ascending (out, dq, the softmax sum), over
// queries ascending (dk, dv), head by head of a group. Every instruction set skips the blocks of 16 keys by 16 queries
// above the diagonal. D_q is summed in 16 lanes, then over the lanes in vf_sum's tree. Threads divide the work into
// whole outputs, never into parts of a sum: (sequence, head, run of query tiles) in forward, (sequence, head of k and
// v) in backward.
#pragma once
#include "ops_attention.h"
#if PART_LAUNCHERS
static inline void attention_check_heads(const char *op, Tensor out, Tensor qkv, int n_head) {
  const int64_t C = out.shape[2], kv = n_head > 0 && C % n_head == 0 ? attention_kv_heads(out, qkv, n_head) : 0;
  CHECK(n_head > 0 && C % n_head == 0, "%s: %d heads, which must divide the width %lld", op, n_head, (long long)C);
  CHECK(kv > 0 && n_head % kv == 0, "%s: %d heads of q and %lld of k and v, which must divide them", op, n_head,
        (long long)kv);
  CHECK_SHAPE(qkv, out.shape[0], out.shape[1], C + 2 * kv * (C / n_head));
}
// qkv (B,T,C+2 KV hs), out (B,T,C) of one dtype, lse (B,n_head,T) fp32: out and lse are overwritten. Element (head,
// query, key) of the dropout mask of sample drop.sample0 + b is (head*T + query)*T + key. Dies if n_head does not
// divide C.
void attention_forward(Ctx *c, Tensor out, Tensor lse, Tensor qkv, int n_head, Dropout drop,
                       Tensor starts) {
  CHECK(out.ndim == 3, "attention_forward: out has %d dimensions, needs (B,T,C)", out.ndim);
  const int64_t B = out.shape[0], T = out.shape[1];
  attention_check_heads("attention_forward", out, qkv, n_head);
  CHECK(drop.p >= 0.0f && drop.p < 1.0f, "attention_forward: dropout of %g, needs 0 <= p < 1", (double)drop.p);
  CHECK(drop.p == 0.0f || n_head * T * T <= DROPOUT_MOST_WEIGHTS,
        "attention_forward: dropout on %d heads of %lld tokens, needs n_head * T * T <= 2^34", n_head, (long long)T);
  CHECK_SHAPE(lse, B, n_head, T);
  CHECK_DTYPE(lse, F32);
  CHECK_DTYPE(qkv, out.dtype);
  starts_check(starts, B, T);
  CALL_OP(c, attention, attention_forward, out, lse, qkv, n_head, drop, starts);
}

// dqkv, of qkv's shape, is overwritten; out and lse are attention_forward's results for qkv, the same drop and starts;
// dout (B,T,C). dqkv_sum (attention_sum_runs(B, T), columns of qkv) fp32: overwritten with the sums over runs of rows
// of dqkv as stored, for matmul_backward_weight's dout_sum. It may be absent, and must be where attention_makes_sums
// says no, and on a CPU, whose GEMM makes these sums.
void attention_backward(Ctx *c, Tensor dqkv, Tensor dout, Tensor qkv, Tensor out, Tensor lse, int n_head,
                        Dropout drop, Tensor starts, Tensor dqkv_sum) {
  CHECK(out.ndim == 3, "attention_backward: out has %d dimensions, needs (B,T,C)", out.ndim);
  const int64_t B = out.shape[0], T = out.shape[1], C = out.shape[2];
  attention_check_heads("attention_backward", out, qkv, n_head);
  CHECK(drop.p >= 0.0f && drop.p < 1.0f, "attention_backward: dropout of %g, needs 0 <= p < 1", (double)drop.p);
  CHECK(drop.p == 0.0f || n_head * T * T <= DROPOUT_MOST_WEIGHTS,
        "attention_backward: dropout on %d heads of %lld tokens, needs n_head * T * T <= 2^34", n_head, (long long)T);
  CHECK_SHAPE(dqkv, B, T, qkv.shape[2]);
  CHECK_SHAPE(dout, B, T, C);
  CHECK_SHAPE(lse, B, n_head, T);
  CHECK_DTYPE(lse, F32);
  CHECK_DTYPE(qkv, out.dtype);
  CHECK_DTYPE(dout, out.dtype);
  CHECK_DTYPE(dqkv, out.dtype);
  starts_check(starts, B, T);
  if (dqkv_sum.data) {
    CHECK_SHAPE(dqkv_sum, attention_sum_runs(B, T), qkv.shape[2]);
    CHECK_DTYPE(dqkv_sum, F32);
    CHECK(c->ops->nccl && attention_makes_sums(out.dtype, C / n_head),
          "attention_backward: %s makes no dqkv_sum of %s with heads of %lld columns", c->ops->name,
          dtype_name(out.dtype), (long long)(C / n_head));
  }
  CALL_OP(c, attention, attention_backward, dqkv, dout, qkv, out, lse, n_head, drop, starts, dqkv_sum);
}
#endif

#if PART_CPU
#include "attention_fp32.cuh"
#ifdef __AVX512BF16__
#include "attention_bf16.cuh"
#endif

// ---- entry points for the table -------------------------------------------------------------------------------------
// Scratch of one thread, proportional to seq_len: a few copies of one head, in fp32 or in bf16 with fp32 sums.
static size_t attention_thread_bytes(const AttentionShape *s, Dtype dtype, bool backward) {
#ifdef __AVX512BF16__
  if (dtype == BF16) return backward ? attention_backward16_bytes(s) : attention_forward16_bytes(s);
#endif
  return (void)dtype, backward ? attention_backward_bytes(s) : attention_forward_bytes(s);
}
static void attention_check_workspace(const Ctx *c, Tensor out, Tensor qkv, int n_head, bool backward) {
  const AttentionShape s = attention_shape(out, qkv, n_head);
  const size_t need = attention_thread_bytes(&s, out.dtype, backward) * (size_t)c->threads;
  CHECK(c->workspace_bytes >= need, "attention_%s: workspace of %zu bytes, needs %zu",
        backward ? "backward" : "forward", c->workspace_bytes, need);
}
static size_t attention_workspace_bytes(const Ctx *c, WorkspaceQuery q) {
  const AttentionShape s = attention_shape_of(q.seq_len, query_head_size(&q), q.n_head, query_kv_heads(&q));
  const size_t forward = attention_thread_bytes(&s, q.dtype, false);
  const size_t backward = attention_thread_bytes(&s, q.dtype, true);
  return (size_t)c->threads * (forward > backward ? forward : backward);
}
void attention_forward_impl(Ctx *c, Tensor out, Tensor lse, Tensor qkv, int n_head, Dropout drop,
                            Tensor starts) {
  if (drop.p > 0.0f) drop.step = c->state->in.step;
  attention_check_workspace(c, out, qkv, n_head, false);
#ifdef __AVX512BF16__
  if (out.dtype == BF16) { attention_forward16(c, out, lse, qkv, n_head, &drop, starts); return; }
#endif
  DISPATCH(out.dtype, T, attention_forward_typed<T>(c, out, lse, qkv, n_head, &drop, starts));
}
void attention_backward_impl(Ctx *c, Tensor dqkv, Tensor dout, Tensor qkv, Tensor out, Tensor lse, int n_head,
                             Dropout drop, Tensor starts, Tensor) {
  if (drop.p > 0.0f) drop.step = c->state->in.step;
  attention_check_workspace(c, out, qkv, n_head, true);
#ifdef __AVX512BF16__
  if (out.dtype == BF16) { attention_backward16(c, dqkv, dout, qkv, out, lse, n_head, &drop, starts); return; }
#endif
  DISPATCH(out.dtype, T, attention_backward_typed<T>(c, dqkv, dout, qkv, out, lse, n_head, &drop, starts));
}
#endif
