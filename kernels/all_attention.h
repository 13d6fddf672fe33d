// all_attention.h: the ops of family attention, and their table.
#pragma once
#include "attention.cuh"
#include "attention_cached.cuh"
#include "window.cuh"
#if PART_CUDA
#include "attention_cuda.cuh"
#endif
FAMILY_OPS(attention, AttentionOps)
