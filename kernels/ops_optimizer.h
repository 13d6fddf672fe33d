// ops_optimizer.h: the ops of family optimizer: AdamW, SGD, masters, the exact norm, and what decides a step.
#pragma once
#include "ops.h"

// What every rank sends to every other once per step. This rank's losses follow, one double per microbatch, or with
// pairs PREFERENCE_SUMS.
struct Exchange { int64_t limbs[NORM_LIMBS], stop, untrained; };
HD size_t exchange_bytes(int values) { return sizeof(Exchange) + sizeof(double) * (size_t)values; }

// Rules for step_decide. clip: bound of the global norm, 0: no clipping. dynamic_scale: adapt to overflows (fp16).
// targets: of all microbatches of all ranks, masked ones included; 0 where none can be.
struct StepRule {
  int world, microbatches;
  float beta1, beta2;
  double clip;
  bool dynamic_scale;
  int64_t targets = 0;
  int values = 1;                                // of a microbatch in an exchange record; its loss is the first
};

#define OPS_optimizer(X) \
  X(adamw_update,                (Ctx *c, Tensor param, Tensor master, Tensor m, Tensor v, Tensor grad, AdamwArgs a), \
                                 UPDATES(param) UPDATES(master) UPDATES(m) UPDATES(v) READS(grad) \
                                 READS_VALUE(*c->state, true)) \
  X(sgd_update,                  (Ctx *c, Tensor param, Tensor master, Tensor momentum, Tensor grad, SgdArgs a), \
                                 UPDATES(param) UPDATES(master) UPDATES(momentum) READS(grad) \
                                 READS_VALUE(*c->state, true)) \
  X(param_from_master,           (Ctx *c, Tensor param, Tensor low, Tensor master), \
                                 WRITES(param) WRITES(low) READS(master) IN_PLACE(param, master)) \
  X(master_from_param,           (Ctx *c, Tensor master, Tensor param, Tensor low), \
                                 WRITES(master) READS(param) READS(low)) \
  X(norm_accumulate,             (Ctx *c, int64_t *limbs, Tensor grad), \
                                 UPDATES_BYTES(limbs, NORM_LIMBS * sizeof(int64_t)) READS(grad)) \
  X(norm_change,                 (Ctx *c, int64_t *limbs, Tensor now, Tensor before), \
                                 UPDATES_BYTES(limbs, NORM_LIMBS * sizeof(int64_t)) READS(now) READS(before)) \
  X(loss_mean,                   (Ctx *c, double *to, Tensor losses), WRITES_BYTES(to, sizeof *to) READS(losses)) \
  X(step_decide,                 (Ctx *c, StepState *state, double *losses, const void *exchange, StepRule rule), \
                                 UPDATES_BYTES(state, sizeof *state) \
                                 WRITES_BYTES(losses, sizeof(double) * (size_t)rule.microbatches * (size_t)rule.world) \
                                 READS_BYTES(exchange, exchange_bytes(rule.microbatches * rule.values) * \
                                                       (size_t)rule.world))
#define WORKSPACES_optimizer(X)
OPS_FAMILY(optimizer, OptimizerOps, ISA_OF_VECTORS)
