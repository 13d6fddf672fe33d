// preference.cuh: the loss of pairs of answers, one chosen and one rejected, from the losses of their tokens; and the
// factor of each token's gradient.
//
// A sequence has whole pairs: its documents (starts, ops.h) are alternately a chosen answer and a rejected one, each
// after its prompt. For an answer y, L(y) is the sum of the log-probabilities of its targets, R(y) the same by the
// reference model, or 0 without one, and |y| the number of its targets. l(y) = s (L(y) - R(y)), with s = 1, or s =
// 1/|y| for losses "of means". With the chosen answer c, the rejected answer r, and x = l(c) - l(r), a pair's loss f
// is:
//
//   dpo     f = (1 - e) softplus(-z) + e softplus(z),  z = beta x      Rafailov et al. 2023; e: label smoothing
//   ipo     f = (x - 1 / (2 beta))^2, of means                         Azar et al. 2023
//   hinge   f = max(0, 1 - z),  z = beta x                             Zhao et al. 2023 (SLiC)
//   simpo   as dpo with z = beta x - gamma, of means, R = 0            Meng et al. 2024
//   orpo    f = -l(c) + beta softplus(-z),  z = x - (log(1 - e^l(c)) - log(1 - e^l(r))), of means, R = 0
//                                                                      Hong et al. 2024, as LLaMA-Factory has it
//
// A pair's loss is f. A token's cross entropy is -log p, so the factor of a token of y is -s df/dl(y). Rewards are
// beta (L - R), as TRL has them, and without a reference beta l.
//
//   weights (R) fp32: on entry, at a document's first position, R(y); on return each token's factor
//   to[4]  sums over pairs in their order, divided by the batch's number of positions as loss_mean does: loss,
//          reward of the chosen answer, reward of the rejected one, and 1 for each pair whose chosen answer has the
//          larger reward
// L(y) is added in fp64 from the first target to the last and rounded to fp32, as R(y) was.
#pragma once
#include "ops.h"
#if PART_LAUNCHERS || PART_CPU || PART_CUDA
#include "ops_loss.h"
#endif

// The document at positions [from, to) of its row: its number of targets, and their log-probability by the model and by
// the reference.
struct PreferenceSide { int64_t from, to, tokens; float logp, reference; };
HD PreferenceSide preference_side(int64_t from, int64_t T, const float *losses, const int32_t *targets,
                                  const int32_t *starts, const float *reference) {
  PreferenceSide s = {from, from, 0, 0.0f, from < T ? reference[from] : 0.0f};
  double sum = 0;
  for (; s.to < T && starts[s.to] == starts[from]; s.to++) {
    sum -= (double)losses[s.to];
    s.tokens += targets[s.to] >= 0;
  }
  s.logp = (float)sum;
  return s;
}
HD double preference_softplus(double z) { return (z > 0 ? z : 0) + log1p(exp(z > 0 ? -z : z)); }
HD double preference_sigmoid(double z) { return 1 / (1 + exp(-z)); }
HD double preference_orpo(double beta, double chosen, double rejected, double slope[2]) {
  const double most = -1e-7, c = chosen < most ? chosen : most, r = rejected < most ? rejected : most;
  const double z = c - r - (log(-expm1(c)) - log(-expm1(r))), pull = beta * preference_sigmoid(-z);
  slope[0] = -1 + pull / expm1(c), slope[1] = -pull / expm1(r);
  return -chosen + beta * preference_softplus(-z);
}
// Returns f; slope: df/dl(c) and df/dl(r).
HD double preference_loss(PreferenceArgs a, double chosen, double rejected, double slope[2]) {
  const double x = chosen - rejected, off = x - 1 / (2 * a.beta);
  const double z = a.beta * x - (a.loss == PREFERENCE_SIMPO ? a.gamma : 0);
  double f = (1 - a.smoothing) * preference_softplus(-z) + a.smoothing * preference_softplus(z);
  slope[0] = a.beta * (a.smoothing * preference_sigmoid(z) - (1 - a.smoothing) * preference_sigmoid(-z));
  if (a.loss == PREFERENCE_IPO) f = off * off, slope[0] = 2 * off;
  if (a.loss == PREFERENCE_HINGE) f = z < 1 ? 1 - z : 0, slope[0] = z < 1 ? -a.beta : 0;
  slope[1] = -slope[0];
  return a.loss == PREFERENCE_ORPO ? preference_orpo(a.beta, chosen, rejected, slope) : f;
}
HD bool preference_compares(PreferenceLoss loss) { return loss <= PREFERENCE_HINGE; }     // with a reference
HD bool preference_of_means(PreferenceLoss loss) { return loss == PREFERENCE_IPO || !preference_compares(loss); }
// One row of T positions: writes its tokens' factors to weights, and adds its pairs to sum. Returns the number of
// pairs.
HD int64_t preference_row(PreferenceArgs a, int64_t T, const float *losses, const int32_t *targets,
                          const int32_t *starts, float *weights, double sum[PREFERENCE_SUMS]) {
  int64_t pairs = 0;
  for (int64_t at = 0; at < T;) {
    const PreferenceSide c = preference_side(at, T, losses, targets, starts, weights);
    const PreferenceSide r = preference_side(c.to, T, losses, targets, starts, weights);
    const bool pair = c.tokens && r.tokens;      // else padding
    const double of_c = preference_of_means(a.loss) && pair ? 1 / (double)c.tokens : 1;
    const double of_r = preference_of_means(a.loss) && pair ? 1 / (double)r.tokens : 1;
    const double won = of_c * (double)(c.logp - c.reference), lost = of_r * (double)(r.logp - r.reference);
    double slope[2] = {};
    pairs += pair;
    if (pair) {
      sum[0] += preference_loss(a, won, lost, slope);
      const bool of_sums = preference_compares(a.loss);
      const double good = a.beta * (of_sums ? won / of_c : won), bad = a.beta * (of_sums ? lost / of_r : lost);
      sum[1] += good;
      sum[2] += bad;
      sum[3] += good > bad;
    }
    for (; at < c.to; at++) weights[at] = (float)(-of_c * slope[0]);
    for (; at < r.to; at++) weights[at] = (float)(-of_r * slope[1]);
  }
  return pairs;
}

#if PART_LAUNCHERS
// weights, losses, targets (R); starts (B,T). Overwrites to[PREFERENCE_SUMS], in device memory, and weights.
void preference(Ctx *c, double *to, Tensor weights, Tensor losses, Tensor targets, Tensor starts,
                PreferenceArgs a) {
  const int64_t B = starts.shape[0], T = starts.shape[1];
  CHECK_SHAPE(weights, B * T);
  CHECK_SHAPE(losses, B * T);
  CHECK_SHAPE(targets, B * T);
  starts_check(starts, B, T);
  CHECK_DTYPE(weights, F32);
  CHECK_DTYPE(losses, F32);
  CHECK_DTYPE(targets, I32);
  CALL_OP(c, loss, preference, to, weights, losses, targets, starts, a);
}
#endif

#if PART_CPU
void preference_impl(Ctx *, double *to, Tensor weights, Tensor losses, Tensor targets, Tensor starts,
                     PreferenceArgs a) {
  const int64_t B = starts.shape[0], T = starts.shape[1];
  double sum[PREFERENCE_SUMS] = {};
  for (int64_t b = 0; b < B; b++) {
    double row[PREFERENCE_SUMS] = {};
    preference_row(a, T, (const float *)losses.data + b * T, (const int32_t *)targets.data + b * T,
                   (const int32_t *)starts.data + b * T, (float *)weights.data + b * T, row);
    for (int k = 0; k < PREFERENCE_SUMS; k++) sum[k] += row[k];
  }
  for (int k = 0; k < PREFERENCE_SUMS; k++) to[k] = sum[k] / (double)(B * T);
}
#endif

#if PART_CUDA
#include "kernels/cuda/cuda_device.h"
// One block, a thread a row; thread 0 adds the rows in their order.
enum { PREFERENCE_THREADS = 128 };
__global__ static void __launch_bounds__(PREFERENCE_THREADS)
preference_kernel(double *to, float *weights, const float *losses, const int32_t *targets, const int32_t *starts,
                  int64_t B, int64_t T, PreferenceArgs a) {
  SHARED(double, rows, PREFERENCE_THREADS * PREFERENCE_SUMS);
  double sum[PREFERENCE_SUMS] = {};
  for (int64_t first = 0; first < B; first += PREFERENCE_THREADS) {
    const int64_t b = first + threadIdx.x;
    double row[PREFERENCE_SUMS] = {};
    if (b < B) preference_row(a, T, losses + b * T, targets + b * T, starts + b * T, weights + b * T, row);
    for (int k = 0; k < PREFERENCE_SUMS; k++) rows[threadIdx.x * PREFERENCE_SUMS + k] = row[k];
    __syncthreads();
    for (int i = 0; threadIdx.x == 0 && i < PREFERENCE_THREADS && first + i < B; i++)
      for (int k = 0; k < PREFERENCE_SUMS; k++) sum[k] += rows[i * PREFERENCE_SUMS + k];
    __syncthreads();
  }
  for (int k = 0; threadIdx.x == 0 && k < PREFERENCE_SUMS; k++) to[k] = sum[k] / (double)(B * T);
}
void preference_impl(Ctx *c, double *to, Tensor weights, Tensor losses, Tensor targets, Tensor starts,
                     PreferenceArgs a) {
  LAUNCH(preference_kernel, 1, PREFERENCE_THREADS, 0, STREAM(c), to, (float *)weights.data,
         (const float *)losses.data, (const int32_t *)targets.data, (const int32_t *)starts.data, starts.shape[0],
         starts.shape[1], a);
}
#endif
