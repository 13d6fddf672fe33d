// ops_blocks.h: the ops of family blocks: weights in quantization blocks.
#pragma once
#include "ops.h"

#define OPS_blocks(X) \
  X(blocks_expand,               (Ctx *c, Tensor out, Tensor in, int type), WRITES(out) READS(in)) \
  X(blocks_rows,                 (Ctx *c, Tensor out, Tensor weight, int type, Tensor ids, float scale), \
                                 WRITES(out) READS(weight) READS(ids)) \
  X(matmul_blocks,               (Ctx *c, Tensor out, Tensor in, Tensor weight, int type, int64_t first, Tensor bias), \
                                 SUMS(out, first ? ADD : OVERWRITE) READS(in) READS(weight) READS(bias) \
                                 USES_WORKSPACE)
#define WORKSPACES_blocks(X)
OPS_FAMILY(blocks, BlocksOps, ISA_OF_VECTORS)
#if PART_LAUNCH // arguments that may be left out
void blocks_rows(Ctx *c, Tensor out, Tensor weight, int type, Tensor ids, float scale = 1);
#endif
