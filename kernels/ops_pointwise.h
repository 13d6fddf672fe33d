// ops_pointwise.h: the ops of family pointwise: activations, soft-capping, adapters, and what fills, converts and adds.
#pragma once
#include "ops.h"

#define OPS_pointwise(X) \
  X(gelu_forward,                (Ctx *c, Tensor out, Tensor in), WRITES(out) READS(in) IN_PLACE(out, in)) \
  X(activation_forward,          (Ctx *c, Tensor out, Tensor in, Activation kind), \
                                 WRITES(out) READS(in) IN_PLACE(out, in)) \
  X(activation_backward,         (Ctx *c, Tensor din, Tensor dout, Tensor in, Activation kind), \
                                 WRITES(din) READS(dout) READS(in) IN_PLACE(din, dout)) \
  X(swiglu_forward,              (Ctx *c, Tensor out, Tensor in, Activation kind), WRITES(out) READS(in)) \
  X(swiglu_backward,             (Ctx *c, Tensor din, Tensor dout, Tensor in, Activation kind), \
                                 WRITES(din) READS(dout) READS(in)) \
  X(softcap_forward,             (Ctx *c, Tensor logits, float cap), UPDATES(logits)) \
  X(lora_spread,                 (Ctx *c, Tensor out, Tensor b, LoraParts parts), WRITES(out) READS(b)) \
  X(lora_collect,                (Ctx *c, Tensor db, Tensor dout, LoraParts parts, Accumulate mode), \
                                 SUMS(db, mode) READS(dout)) \
  X(dropout,                     (Ctx *c, Tensor out, Tensor in, Dropout drop, Accumulate mode), \
                                 SUMS(out, mode) READS(in) IN_PLACE(out, in) \
                                 READS_VALUE(c->state->in, drop.p > 0)) \
  X(fill,                        (Ctx *c, Tensor out, float value), WRITES(out)) \
  X(convert,                     (Ctx *c, Tensor out, Tensor in), WRITES(out) READS(in) IN_PLACE(out, in)) \
  X(accumulate,                  (Ctx *c, Tensor sum, Summands in, Accumulate mode), \
                                 SUMS(sum, mode) SUMMANDS(in, sum)) \
  X(normal_fill,                 (Ctx *c, Tensor out, uint64_t seed, uint32_t tensor, int64_t offset, float std), \
                                 WRITES(out))
#define WORKSPACES_pointwise(X)
OPS_FAMILY(pointwise, PointwiseOps, ISA_OF_VECTORS)
