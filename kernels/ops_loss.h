// ops_loss.h: the ops of family loss: cross entropy, losses of pairs, and fp8.
#pragma once
#include "ops.h"

#define OPS_loss(X) \
  X(cross_entropy_forward,       (Ctx *c, Tensor losses, Tensor correct, Tensor logits, Tensor targets, \
                                  int64_t vocab), \
                                 WRITES(losses) WRITES(correct) READS(logits) READS(targets)) \
  X(cross_entropy_forward_backward, (Ctx *c, Tensor losses, Tensor dlogits, Tensor logits, Tensor targets, \
                                  int64_t vocab, float scale, float softcap, Tensor weights), \
                                 WRITES(losses) WRITES(dlogits) READS(logits) READS(targets) READS(weights) \
                                 IN_PLACE(dlogits, logits) READS_VALUE(c->state->loss_scale, true) USES_WORKSPACE) \
  X(preference,                  (Ctx *c, double *to, Tensor weights, Tensor losses, Tensor targets, Tensor starts, \
                                  PreferenceArgs a), \
                                 WRITES_BYTES(to, PREFERENCE_SUMS * sizeof *to) UPDATES(weights) READS(losses) \
                                 READS(targets) READS(starts)) \
  X(absmax,                      (Ctx *c, Tensor to, Tensor in), UPDATES(to) READS(in)) \
  X(fp8_scales,                  (Ctx *c, Tensor scale, Tensor amax), WRITES(scale) READS(amax)) \
  X(fp8_encode,                  (Ctx *c, Tensor out, Tensor in, Tensor scale), WRITES(out) READS(in) READS(scale)) \
  X(fp8_decode,                  (Ctx *c, Tensor out, Tensor in, Tensor scale), WRITES(out) READS(in) READS(scale)) \
  X(matmul_forward_fp8,          (Ctx *c, Tensor out, Tensor in, Tensor in_scale, Tensor weight, Tensor weight_scale, \
                                  Tensor bias), \
                                 WRITES(out) READS(in) READS(in_scale) READS(weight) READS(weight_scale) READS(bias) \
                                 USES_WORKSPACE)
#define WORKSPACES_loss(X) X(cross_entropy)
OPS_FAMILY(loss, LossOps, ISA_OF_VECTORS)
#if PART_LAUNCH // arguments that may be left out
void cross_entropy_forward_backward(Ctx *c, Tensor losses, Tensor dlogits, Tensor logits, Tensor targets, int64_t vocab,
                                    float scale, float softcap, Tensor weights = {});
#endif
