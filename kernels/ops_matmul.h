// ops_matmul.h: the ops of family matmul: matrix multiplies.
#pragma once
#include "ops.h"

// A bias, a fused GELU: named extras of a GEMM. data == NULL means absent. With ADD both are.
struct MatmulEpilogue {
  Tensor bias;             // (N): added to every row
  Tensor gelu;             // (M,N): receives GELU of out as stored; out keeps the pre-activation for backward
  Accumulate mode = OVERWRITE;
  bool gelu_again = false; // gelu_forward recomputes gelu: it must have that op's bits, with --tune any too
};

#define OPS_matmul(X) \
  X(matmul_forward,              (Ctx *c, Tensor out, Tensor in, Tensor weight, MatmulEpilogue e, QuantMatrix q), \
                                 SUMS(out, e.mode) WRITES(e.gelu) READS(in) READS(weight) READS(e.bias) \
                                 READS(q.part[0]) READS(q.part[1]) READS(q.part[2]) USES_WORKSPACE) \
  X(matmul_backward_input,       (Ctx *c, Tensor din, Tensor dout, Tensor weight, Tensor pre_gelu, QuantMatrix q), \
                                 WRITES(din) READS(dout) READS(weight) READS(pre_gelu) READS(q.part[0]) \
                                 READS(q.part[1]) READS(q.part[2]) USES_WORKSPACE) \
  X(matmul_backward_weight,      (Ctx *c, Tensor dweight, Tensor dbias, Tensor dout, Tensor in, Accumulate mode, \
                                  Tensor dout_sum), \
                                 SUMS(dweight, mode) SUMS(dbias, mode) READS(dout) READS(in) READS(dout_sum) \
                                 USES_WORKSPACE)
#define WORKSPACES_matmul(X) X(matmul)
OPS_FAMILY(matmul, MatmulOps, ISA)
#if PART_LAUNCH // arguments that may be left out
void matmul_forward(Ctx *c, Tensor out, Tensor in, Tensor weight, MatmulEpilogue e, QuantMatrix q = {});
void matmul_backward_input(Ctx *c, Tensor din, Tensor dout, Tensor weight, Tensor pre_gelu, QuantMatrix q = {});
void matmul_backward_weight(Ctx *c, Tensor dweight, Tensor dbias, Tensor dout, Tensor in, Accumulate mode,
                            Tensor dout_sum = {});
#endif
