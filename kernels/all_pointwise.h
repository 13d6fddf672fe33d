// all_pointwise.h: the ops of family pointwise, and their table.
#pragma once
#include "gelu.cuh"
#include "activation.cuh"
#include "softcap.cuh"
#include "lora.cuh"
#include "elementwise.cuh"
FAMILY_OPS(pointwise, PointwiseOps)
