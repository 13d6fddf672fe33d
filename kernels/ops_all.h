// ops_all.h: the ops of all families, for those who need every one.
#pragma once
#include "ops_attention.h"
#include "ops_blocks.h"
#include "ops_loss.h"
#include "ops_matmul.h"
#include "ops_muon.h"
#include "ops_norms.h"
#include "ops_optimizer.h"
#include "ops_pointwise.h"
