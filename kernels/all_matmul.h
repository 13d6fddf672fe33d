// all_matmul.h: the ops of family matmul, and their table.
#pragma once
#include "matmul.cuh"
#if PART_CUDA
#include "matmul_cuda.cuh"
#endif
FAMILY_OPS(matmul, MatmulOps)
