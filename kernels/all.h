// all.h: every op. The order matters only for what one op borrows from another (random.h before its users).
#include "random.h"
#include "embedding.cuh"
#include "layernorm.cuh"
#include "matmul.cuh"
#include "attention.cuh"
#include "cross_entropy.cuh"
#include "optimizer.cuh"
#include "elementwise.cuh"
