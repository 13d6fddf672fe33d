// ops_attention.h: the ops of family attention: attention, also of cached keys.
#pragma once
#include "ops.h"

// Heads of k and v of an attention: half of what qkv has more than out.
static inline int64_t attention_kv_heads(Tensor out, Tensor qkv, int n_head) {
  const int64_t hs = out.shape[2] / n_head;
  return (qkv.shape[2] - out.shape[2]) / (2 * (hs ? hs : 1));
}
// attention_backward's dqkv_sum: a row for each run of neighbouring tokens of a sequence.
enum { ATTENTION_SUM_ROWS = 64 };
HD int64_t attention_sum_runs(int64_t B, int64_t T) {
  return B * ((T + ATTENTION_SUM_ROWS - 1) / ATTENTION_SUM_ROWS);
}
// Whether CUDA's kernels make them: those on tensor cores do.
static inline bool attention_makes_sums(Dtype dtype, int64_t head_size) {
  return dtype_bytes(dtype) == 2 && head_size % 8 == 0 && head_size <= 256;
}

#define OPS_attention(X) \
  X(attention_forward,           (Ctx *c, Tensor out, Tensor lse, Tensor qkv, int n_head, Dropout drop, \
                                  Tensor starts), \
                                 WRITES(out) WRITES(lse) READS(qkv) READS(starts) \
                                 READS_VALUE(c->state->in, drop.p > 0) USES_WORKSPACE) \
  X(attention_backward,          (Ctx *c, Tensor dqkv, Tensor dout, Tensor qkv, Tensor out, Tensor lse, int n_head, \
                                  Dropout drop, Tensor starts, Tensor dqkv_sum), \
                                 WRITES(dqkv) READS(dout) READS(qkv) READS(out) READS(lse) READS(starts) \
                                 WRITES(dqkv_sum) READS_VALUE(c->state->in, drop.p > 0) USES_WORKSPACE) \
  X(attention_cached,            (Ctx *c, Tensor out, Tensor cache, Tensor qkv, int n_head, Tensor starts, \
                                  int64_t window), \
                                 WRITES(out) READS(cache) READS(qkv) READS(starts) USES_WORKSPACE) \
  X(cache_store,                 (Ctx *c, Tensor cache, Tensor qkv, Tensor starts), \
                                 UPDATES(cache) READS(qkv) READS(starts)) \
  X(window_starts,               (Ctx *c, Tensor out, Tensor starts, int64_t window), \
                                 WRITES(out) READS(starts))
#define WORKSPACES_attention(X) X(attention)
OPS_FAMILY(attention, AttentionOps, ISA)
#if PART_LAUNCH // arguments that may be left out
void attention_forward(Ctx *c, Tensor out, Tensor lse, Tensor qkv, int n_head, Dropout drop, Tensor starts = {});
void attention_backward(Ctx *c, Tensor dqkv, Tensor dout, Tensor qkv, Tensor out, Tensor lse, int n_head, Dropout drop,
                        Tensor starts = {}, Tensor dqkv_sum = {});
void attention_cached(Ctx *c, Tensor out, Tensor cache, Tensor qkv, int n_head, Tensor starts, int64_t window = 0);
#endif
