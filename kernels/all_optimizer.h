// all_optimizer.h: the ops of family optimizer, and their table.
#pragma once
#include "master.cuh"
#include "optimizer.cuh"
#include "step.cuh"
#if PART_CUDA
#include "optimizer_cuda.cuh"
#endif
FAMILY_OPS(optimizer, OptimizerOps)
