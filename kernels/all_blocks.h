// all_blocks.h: the ops of family blocks, and their table.
#pragma once
#include "blocks.cuh"
#include "matmul_blocks.cuh"
FAMILY_OPS(blocks, BlocksOps)
