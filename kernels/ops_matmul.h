// ops_matmul.h: the ops of family matmul: matrix multiplies and Muon.
#pragma once
#include "ops.h"

// A bias, a fused GELU: named extras of a GEMM. data == NULL means absent. With ADD both are.
struct MatmulEpilogue {
  Tensor bias;             // (N): added to every row
  Tensor gelu;             // (M,N): receives GELU of out as stored; out keeps the pre-activation for backward
  Accumulate mode = OVERWRITE;
};

// Rounded up to 256 bytes, at which each part of that scratch starts.
static inline size_t muon_whole(size_t bytes) { return (bytes + 255) / 256 * 256; }
// What the scratch of newton_schulz must have for a matrix of this shape and dtype, in bytes.
static inline size_t newton_schulz_work_bytes(int64_t rows, int64_t cols, Dtype dtype) {
  const int64_t m = min64(rows, cols);
  return 256 + muon_whole((size_t)(rows * cols) * dtype_bytes(dtype)) +
         2 * muon_whole((size_t)(m * m) * dtype_bytes(dtype));
}

#define OPS_matmul(X) \
  X(matmul_forward,              (Ctx *c, Tensor out, Tensor in, Tensor weight, MatmulEpilogue e, QuantMatrix q), \
                                 SUMS(out, e.mode) WRITES(e.gelu) READS(in) READS(weight) READS(e.bias) \
                                 READS(q.part[0]) READS(q.part[1]) READS(q.part[2]) USES_WORKSPACE) \
  X(matmul_backward_input,       (Ctx *c, Tensor din, Tensor dout, Tensor weight, Tensor pre_gelu, QuantMatrix q), \
                                 WRITES(din) READS(dout) READS(weight) READS(pre_gelu) READS(q.part[0]) \
                                 READS(q.part[1]) READS(q.part[2]) USES_WORKSPACE) \
  X(matmul_backward_weight,      (Ctx *c, Tensor dweight, Tensor dbias, Tensor dout, Tensor in, Accumulate mode), \
                                 SUMS(dweight, mode) SUMS(dbias, mode) READS(dout) READS(in) USES_WORKSPACE) \
  X(muon_momentum,               (Ctx *c, Tensor update, Tensor momentum, Tensor grad, MuonArgs a), \
                                 WRITES(update) UPDATES(momentum) READS(grad) READS_VALUE(*c->state, true)) \
  X(newton_schulz,               (Ctx *c, Tensor out, Tensor in, Tensor scratch, int steps), \
                                 WRITES(out) READS(in) WRITES(scratch) USES_WORKSPACE IN_PLACE(out, in)) \
  X(muon_update,                 (Ctx *c, Tensor param, Tensor master, Tensor update, MuonArgs a, int64_t rows, \
                                  int64_t cols), \
                                 UPDATES(param) UPDATES(master) READS(update) READS_VALUE(*c->state, true))
#define WORKSPACES_matmul(X) X(matmul)
OPS_FAMILY(matmul, MatmulOps, ISA)
#if PART_LAUNCH // arguments that may be left out
void matmul_forward(Ctx *c, Tensor out, Tensor in, Tensor weight, MatmulEpilogue e, QuantMatrix q = {});
void matmul_backward_input(Ctx *c, Tensor din, Tensor dout, Tensor weight, Tensor pre_gelu, QuantMatrix q = {});
#endif
