// ops_muon.h: the ops of family muon: Muon.
#pragma once
#include "ops.h"

// Rounded up to 256 bytes, at which each part of that scratch starts.
static inline size_t muon_whole(size_t bytes) { return (bytes + 255) / 256 * 256; }
// What the scratch of newton_schulz must have for a matrix of this shape and dtype, in bytes.
static inline size_t newton_schulz_work_bytes(int64_t rows, int64_t cols, Dtype dtype) {
  const int64_t m = min64(rows, cols);
  return 256 + muon_whole((size_t)(rows * cols) * dtype_bytes(dtype)) +
         2 * muon_whole((size_t)(m * m) * dtype_bytes(dtype));
}

#define OPS_muon(X) \
  X(muon_momentum,               (Ctx *c, Tensor update, Tensor momentum, Tensor grad, MuonArgs a), \
                                 WRITES(update) UPDATES(momentum) READS(grad) READS_VALUE(*c->state, true)) \
  X(newton_schulz,               (Ctx *c, Tensor out, Tensor in, Tensor scratch, int steps), \
                                 WRITES(out) READS(in) WRITES(scratch) USES_WORKSPACE IN_PLACE(out, in)) \
  X(muon_update,                 (Ctx *c, Tensor param, Tensor master, Tensor update, MuonArgs a, int64_t rows, \
                                  int64_t cols), \
                                 UPDATES(param) UPDATES(master) READS(update) READS_VALUE(*c->state, true))
#define WORKSPACES_muon(X)
OPS_FAMILY(muon, MuonOps, ISA)
