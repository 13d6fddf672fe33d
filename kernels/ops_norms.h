// ops_norms.h: the ops of family norms: embeddings, layer norms, and rope with the norms of q and k.
#pragma once
#include "ops.h"

struct RopeArgs { int n_head, head_size; QkNorm norm; float eps; };

#define OPS_norms(X) \
  X(embedding_forward,           (Ctx *c, Tensor out, Tensor tokens, Tensor wte, Tensor wpe, Dropout drop, \
                                  Tensor starts, float scale), \
                                 WRITES(out) READS(tokens) READS(wte) READS(wpe) READS(starts) \
                                 READS_VALUE(c->state->in, drop.p > 0)) \
  X(embedding_backward,          (Ctx *c, Tensor dwte, Tensor dwpe, Tensor dout, Tensor tokens, Dropout drop, \
                                  Accumulate mode, Tensor starts, float scale), \
                                 UPDATES(dwte) SUMS(dwpe, mode) READS(dout) READS(tokens) READS(starts) \
                                 READS_VALUE(c->state->in, drop.p > 0) USES_WORKSPACE) \
  X(layernorm_forward,           (Ctx *c, Tensor out, Tensor mean, Tensor rstd, Tensor in, Tensor weight, \
                                  Tensor bias, float eps), \
                                 WRITES(out) WRITES(mean) WRITES(rstd) READS(in) READS(weight) READS(bias) \
                                 USES_WORKSPACE) \
  X(residual_layernorm_forward,  (Ctx *c, Tensor residual, Tensor out, Tensor mean, Tensor rstd, Tensor in, \
                                  Tensor branch, Tensor weight, Tensor bias, float eps, Dropout drop), \
                                 WRITES(residual) WRITES(out) WRITES(mean) WRITES(rstd) READS(in) READS(branch) \
                                 READS(weight) READS(bias) IN_PLACE(residual, branch) IN_PLACE(residual, in) \
                                 READS_VALUE(c->state->in, drop.p > 0) USES_WORKSPACE) \
  X(layernorm_backward,          (Ctx *c, Tensor dresidual, Tensor dbranch, Tensor dweight, Tensor dbias, Tensor dout, \
                                  Tensor residual, Tensor weight, Tensor mean, Tensor rstd, Dropout drop, \
                                  Accumulate mode, Tensor dbranch_sum), \
                                 UPDATES(dresidual) WRITES(dbranch) SUMS(dweight, mode) SUMS(dbias, mode) READS(dout) \
                                 READS(residual) READS(weight) READS(mean) READS(rstd) IN_PLACE(dbranch, dresidual) \
                                 WRITES(dbranch_sum) \
                                 READS_VALUE(c->state->in, drop.p > 0) USES_WORKSPACE) \
  X(rope_forward,                (Ctx *c, Tensor qkv, Tensor raw, Tensor table, Tensor q_weight, Tensor k_weight, \
                                  RopeArgs a, Tensor starts), \
                                 UPDATES(qkv) WRITES(raw) READS(table) READS(q_weight) READS(k_weight) \
                                 READS(starts)) \
  X(rope_backward,               (Ctx *c, Tensor dqkv, Tensor dq_weight, Tensor dk_weight, Tensor raw, Tensor table, \
                                  Tensor q_weight, Tensor k_weight, RopeArgs a, Accumulate mode), \
                                 UPDATES(dqkv) SUMS(dq_weight, mode) SUMS(dk_weight, mode) READS(raw) READS(table) \
                                 READS(q_weight) READS(k_weight) USES_WORKSPACE)
#define WORKSPACES_norms(X) X(layernorm) X(rope)
OPS_FAMILY(norms, NormsOps, ISA_OF_VECTORS)
#if PART_LAUNCH // arguments that may be left out
void layernorm_backward(Ctx *c, Tensor dresidual, Tensor dbranch, Tensor dweight, Tensor dbias, Tensor dout,
                        Tensor residual, Tensor weight, Tensor mean, Tensor rstd, Dropout drop, Accumulate mode,
                        Tensor dbranch_sum = {});
void embedding_forward(Ctx *c, Tensor out, Tensor tokens, Tensor wte, Tensor wpe, Dropout drop, Tensor starts = {},
                       float scale = 1);
void embedding_backward(Ctx *c, Tensor dwte, Tensor dwpe, Tensor dout, Tensor tokens, Dropout drop, Accumulate mode,
                        Tensor starts = {}, float scale = 1);
void rope_forward(Ctx *c, Tensor qkv, Tensor raw, Tensor table, Tensor q_weight, Tensor k_weight, RopeArgs a,
                  Tensor starts = {});
#endif
