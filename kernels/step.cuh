// step.cuh: what one optimizer step decides from the measurements of all ranks. It is an op because the norm and the
// losses are in device memory: the host neither waits for them nor copies them.
//
//   loss_mean     to = mean of losses (n) fp32, in fp64: partial k adds elements k, k + 256, ... in order, then the
//                 partials are added in order of k
//   step_decide   reads `exchange`, one record per rank (struct Exchange, then `microbatches` losses, fp64) in rank
//                 order, and decides the same on every rank:
//                   losses[a world + r]   rank r's a-th loss, in the order of the step's microbatches; state->loss is
//                                         their mean, added in that order. For pairs, whose records have `values`
//                                         numbers per microbatch (preference.cuh), rewards are averaged in the same way
//                   untrained             masked targets of all ranks. A microbatch's loss is divided by all its
//                                         targets, so the mean over the step's trained targets is the sum of these
//                                         losses divided by how many microbatches the trained targets would fill. That
//                                         is their number without a mask, and depends on no number of empty ones
//                   grad_norm             of the mean gradient, exact until one final rounding (optimizer.cuh)
//                   grad_scale            1 / (that number x loss_scale), times the factor of
//                                         torch.nn.utils.clip_grad_norm_, clip / (norm + 1e-6), if that is below 1
//                   skip                  the norm or the loss is not finite, or no target of the step is trained on,
//                                         so that there is no mean (loss 0): no update
//                   bias_correction1, 2   1 - beta^t, with t counting the updates that were not skipped
//                   loss_scale            dynamic (Micikevicius et al. 2018): halved by a skip, doubled by 2000 good
//                                         steps in a row; grad_scale still uses the old value
#pragma once
#include "optimizer.cuh"

enum { LOSS_PARTIALS = 256, GOOD_STEPS_TO_DOUBLE = 2000 };

#if PART_LAUNCHERS
// Overwrites *to, in device memory.
void loss_mean(Ctx *c, double *to, Tensor losses) {
  CHECK_DTYPE(losses, F32);
  CALL_OP(c, optimizer, loss_mean, to, losses);
}
// Updates *state (beyond state->in, which it reads) and overwrites losses (microbatches world). exchange: `world`
// records of exchange_bytes(microbatches values). All in device memory.
void step_decide(Ctx *c, StepState *state, double *losses, const void *exchange, StepRule rule) {
  CHECK(rule.world > 0 && rule.microbatches > 0, "step_decide: %d ranks, %d microbatches", rule.world,
        rule.microbatches);
  CALL_OP(c, optimizer, step_decide, state, losses, exchange, rule);
}
#endif

// step_decide's arithmetic, the same code on every device.
HD void step_decide_now(StepState *s, double *losses, const void *exchange, StepRule rule) {
  int64_t limbs[NORM_LIMBS] = {};
  const int M = rule.world * rule.microbatches;
  const size_t bytes = exchange_bytes(rule.microbatches * rule.values);
  s->stop = 0;
  s->untrained = 0;
  for (int r = 0; r < rule.world; r++) {
    const Exchange *e = (const Exchange *)((const char *)exchange + (size_t)r * bytes);
    norm_add_carried(limbs, e->limbs);
    s->stop = e->stop > s->stop ? (int32_t)e->stop : s->stop;
    s->untrained += e->untrained;
    for (int a = 0; a < rule.microbatches; a++)
      losses[a * rule.world + r] = ((const double *)(e + 1))[a * rule.values];
  }
  double loss = 0;
  for (int m = 0; m < M; m++) loss += losses[m];
  const int64_t trained = rule.targets - s->untrained;
  const double filled = s->untrained && trained ? (double)trained / (double)(rule.targets / M) : (double)M;
  s->loss = loss / filled;
  for (int k = 1; k < rule.values; k++) {
    double sum = 0;
    for (int m = 0; m < M; m++)
      sum += ((const double *)((const Exchange *)((const char *)exchange + (size_t)(m % rule.world) * bytes) + 1))
          [m / rule.world * rule.values + k];
    s->rewards[k - 1] = sum / filled;
  }
  const double unscale = 1.0 / (filled * (double)s->loss_scale);
  s->grad_norm = norm_finish(limbs) * unscale;
  const double most = 1.7976931348623157e308;
  s->skip = !(s->grad_norm <= most && s->loss <= most && s->loss >= -most) ? SKIP_NOT_FINITE      // NaN too
            : s->untrained && !trained                                     ? SKIP_NOTHING_TRAINED : SKIP_NOT;
  const double factor = rule.clip > 0 ? rule.clip / (s->grad_norm + 1e-6) : 1.0;
  s->grad_scale = (float)(unscale * (factor < 1.0 ? factor : 1.0));
  if (!s->skip) {
    s->updates++;
    s->beta1_power *= (double)rule.beta1;
    s->beta2_power *= (double)rule.beta2;
    s->bias_correction1 = (float)(1.0 - s->beta1_power);
    s->bias_correction2 = (float)(1.0 - s->beta2_power);
  }
  if (!rule.dynamic_scale || s->skip == SKIP_NOTHING_TRAINED) return;
  if (s->skip) {
    s->loss_scale = s->loss_scale > 2.0f ? s->loss_scale * 0.5f : 1.0f;
    s->good_steps = 0;
  } else if (++s->good_steps == GOOD_STEPS_TO_DOUBLE) {
    s->loss_scale = s->loss_scale < 0x1p23f ? s->loss_scale * 2.0f : 0x1p24f;
    s->good_steps = 0;
  }
}

#if PART_CPU
void loss_mean_impl(Ctx *, double *to, Tensor losses) {
  const float *x = (const float *)losses.data;
  double partial[LOSS_PARTIALS] = {}, sum = 0;
  for (int64_t i = 0; i < numel(losses); i++) partial[i % LOSS_PARTIALS] += (double)x[i];
  for (double p : partial) sum += p;
  *to = sum / (double)numel(losses);
}
void step_decide_impl(Ctx *, StepState *state, double *losses, const void *exchange, StepRule rule) {
  step_decide_now(state, losses, exchange, rule);
}
#endif

#if PART_CUDA
__global__ static void __launch_bounds__(LOSS_PARTIALS) loss_mean_kernel(double *to, const float *x, int64_t n) {
  SHARED(double, partial, LOSS_PARTIALS);
  double sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += LOSS_PARTIALS) sum += (double)x[i];
  partial[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x) return;
  sum = 0;
  for (int k = 0; k < LOSS_PARTIALS; k++) sum += partial[k];
  *to = sum / (double)n;
}
void loss_mean_impl(Ctx *c, double *to, Tensor losses) {
  LAUNCH(loss_mean_kernel, 1, LOSS_PARTIALS, 0, STREAM(c), to, (const float *)losses.data, numel(losses));
}

__global__ static void step_decide_kernel(StepState *state, double *losses, const void *exchange, StepRule rule) {
  step_decide_now(state, losses, exchange, rule);
}
// One thread: about a hundred operations, and every rank must do them in one order.
void step_decide_impl(Ctx *c, StepState *state, double *losses, const void *exchange, StepRule rule) {
  LAUNCH(step_decide_kernel, 1, 1, 0, STREAM(c), state, losses, exchange, rule);
}
#endif
