// all_loss.h: the ops of family loss, and their table.
#pragma once
#include "cross_entropy.cuh"
#include "preference.cuh"
#include "fp8.cuh"
FAMILY_OPS(loss, LossOps)
