// all_norms.h: the ops of family norms, and their table.
#pragma once
#include "embedding.cuh"
#include "layernorm.cuh"
#include "rope.cuh"
#if PART_CUDA // kernels that are files of their own
#include "embedding_cuda.cuh"
#include "layernorm_cuda.cuh"
#include "rope_cuda.cuh"
#endif
FAMILY_OPS(norms, NormsOps)
