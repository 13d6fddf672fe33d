// cross_entropy.cuh: softmax cross-entropy of rows of logits, with the gradient in the same call.
//
//   losses[r]    = ln(sum over j < vocab of e^(x[r,j] - m)) - (x[r,target] - m),   m = max over j < vocab of x[r,j]
//   correct[r]   = 1 if the first largest logit is the target's, else 0
//   dlogits[r,j] = scale (softmax(x[r,:])[j] - [j == target])                      0 for columns vocab <= j < Vp
//   target -1    = ignore the row: loss 0, correct 0, gradient 0
//
//   logits (R,Vp) fp32   losses (R) fp32   correct, targets (R) int32   dlogits (R,Vp) any dtype; may be logits' memory
//   when it is fp32.
// One pass finds maximum and sum together (Milakov & Gimelshein 2018, "Online normalizer calculation for softmax") by
// pieces that fit in L1; a second pass writes. Order of sums: 16 lanes over the columns in order, then vec.h's tree.
#include "ops.h"

#if PART_LAUNCH
// Overwrites losses and correct. 0 < vocab <= Vp.
static inline void cross_entropy_forward(Ctx *c, Tensor losses, Tensor correct, Tensor logits, Tensor targets,
                                         int64_t vocab) {
  int64_t R = logits.shape[0], Vp = logits.shape[1];
  CHECK_SHAPE(logits, R, Vp);
  CHECK_SHAPE(losses, R);
  CHECK_SHAPE(correct, R);
  CHECK_SHAPE(targets, R);
  CHECK_DTYPE(logits, F32);
  CHECK_DTYPE(losses, F32);
  CHECK_DTYPE(correct, I32);
  CHECK_DTYPE(targets, I32);
  CHECK(vocab > 0 && vocab <= Vp, "cross_entropy_forward: vocabulary %lld of %lld columns", (long long)vocab,
        (long long)Vp);
  c->ops->cross_entropy_forward(c, losses, correct, logits, targets, vocab);
}

// Overwrites losses and dlogits. scale is what the caller divides by and multiplies with: 1/tokens, loss scaling.
static inline void cross_entropy_forward_backward(Ctx *c, Tensor losses, Tensor dlogits, Tensor logits, Tensor targets,
                                                  int64_t vocab, float scale) {
  int64_t R = logits.shape[0], Vp = logits.shape[1];
  CHECK_SHAPE(logits, R, Vp);
  CHECK_SHAPE(dlogits, R, Vp);
  CHECK_SHAPE(losses, R);
  CHECK_SHAPE(targets, R);
  CHECK_DTYPE(logits, F32);
  CHECK_DTYPE(losses, F32);
  CHECK_DTYPE(targets, I32);
  CHECK(vocab > 0 && vocab <= Vp, "cross_entropy_forward_backward: vocabulary %lld of %lld columns", (long long)vocab,
        (long long)Vp);
  CHECK(dlogits.data != logits.data || dlogits.dtype == F32, "cross_entropy_forward_backward: dlogits in %s in place",
        dtype_name(dlogits.dtype));
  c->ops->cross_entropy_forward_backward(c, losses, dlogits, logits, targets, vocab, scale);
}
#endif

#if PART_CPU
static size_t cross_entropy_workspace_bytes(const Ctx *, WorkspaceQuery) { return 0; }

static const int64_t CROSS_ENTROPY_PIECE = 1024; // columns whose maximum is known before they are exponentiated

struct CrossEntropyRow { float max, sum; };      // m and sum of e^(x - m)

INLINE vf cross_entropy_load(const float *x, int64_t n) {                     // missing lanes lose against everything
  return n >= VF ? vf_load(x) : vf_select(vm_first(n), vf_load_n(x, n), vf_set1(-INFINITY));
}
// A NaN, or an infinite logit, makes the sum NaN: a loss that is not a number is not hidden.
static CrossEntropyRow cross_entropy_row(const float *x, int64_t vocab) {
  float max = -INFINITY;
  vf sum = vf_zero();
  for (int64_t at = 0; at < vocab; at += CROSS_ENTROPY_PIECE) {
    const int64_t end = at + CROSS_ENTROPY_PIECE < vocab ? at + CROSS_ENTROPY_PIECE : vocab;
    vf piece_max = vf_set1(max);
    int64_t i = at;
    for (; i + VF <= end; i += VF) piece_max = vf_max(vf_load(x + i), piece_max);
    if (i < end) piece_max = vf_max(cross_entropy_load(x + i, end - i), piece_max);
    const float larger = vf_max_of(piece_max);
    if (larger > max) sum = vf_mul(sum, vf_exp(vf_set1(max - larger)));
    max = larger;
    const vf m = vf_set1(max);
    for (i = at; i + VF <= end; i += VF) sum = vf_add(sum, vf_exp(vf_sub(vf_load(x + i), m)));
    if (i < end) sum = vf_add(sum, vf_exp(vf_sub(cross_entropy_load(x + i, end - i), m)));
  }
  CrossEntropyRow row = {max, vf_sum(sum)};
  return row;
}
INLINE float cross_entropy_loss(CrossEntropyRow row, float target_logit) {
  return row.sum >= 1.0f ? scalar_log(row.sum) - (target_logit - row.max) : NAN;
}
INLINE void cross_entropy_check(int32_t target, int64_t row, int64_t vocab) {
  CHECK(target >= -1 && target < vocab, "cross_entropy: target %d in row %lld, the vocabulary has %lld", target,
        (long long)row, (long long)vocab);
}

static void cross_entropy_forward_impl(Ctx *c, Tensor losses, Tensor correct, Tensor logits, Tensor targets,
                                       int64_t vocab) {
  const int64_t R = logits.shape[0], Vp = logits.shape[1];
#pragma omp parallel for schedule(static) num_threads(c->threads)
  for (int64_t r = 0; r < R; r++) {
    const int32_t target = ((const int32_t *)targets.data)[r];
    const float *x = (const float *)logits.data + r * Vp;
    cross_entropy_check(target, r, vocab);
    float loss = 0.0f;
    int32_t first_max = 0;
    if (target >= 0) {
      CrossEntropyRow row = cross_entropy_row(x, vocab);
      loss = cross_entropy_loss(row, x[target]);
      first_max = x[target] == row.max;          // only then is it worth looking for an equal one before it
      for (int64_t j = 0; first_max && j < target; j++) first_max = x[j] < row.max;
    }
    ((float *)losses.data)[r] = loss;
    ((int32_t *)correct.data)[r] = first_max;
  }
}

template <class T> INLINE void cross_entropy_write(T *to, const float *x, vf max, vf inverse_sum, vf scale, int64_t n) {
  vf p = vf_mul(vf_exp(vf_sub(vf_load_n(x, n), max)), inverse_sum);
  vf_store_n(to, vf_mul(p, scale), n);
}
template <class T>
static void cross_entropy_gradient_row(T *to, const float *x, CrossEntropyRow row, int64_t target, int64_t vocab,
                                       int64_t Vp, float scale) {
  const vf max = vf_set1(row.max), inverse_sum = vf_set1(1.0f / row.sum), vscale = vf_set1(scale);
  const float p_target = vf_first_lane(vf_mul(vf_exp(vf_sub(vf_set1(x[target]), max)), inverse_sum));
  int64_t j = 0;
  for (; j + VF <= vocab; j += VF) cross_entropy_write(to + j, x + j, max, inverse_sum, vscale, VF);
  if (j < vocab) cross_entropy_write(to + j, x + j, max, inverse_sum, vscale, vocab - j);
  memset((void *)(to + vocab), 0, (size_t)(Vp - vocab) * sizeof(T));
  round_to(to + target, (p_target - 1.0f) * scale);
}
template <class T>
static void cross_entropy_backward_rows(Ctx *c, Tensor losses, T *dlogits, Tensor logits, const int32_t *targets,
                                        int64_t vocab, float scale) {
  const int64_t R = logits.shape[0], Vp = logits.shape[1];
#pragma omp parallel for schedule(static) num_threads(c->threads)
  for (int64_t r = 0; r < R; r++) {
    const float *x = (const float *)logits.data + r * Vp;
    cross_entropy_check(targets[r], r, vocab);
    float loss = 0.0f;
    if (targets[r] < 0) {
      memset((void *)(dlogits + r * Vp), 0, (size_t)Vp * sizeof(T));
    } else {
      CrossEntropyRow row = cross_entropy_row(x, vocab);
      loss = cross_entropy_loss(row, x[targets[r]]);
      cross_entropy_gradient_row(dlogits + r * Vp, x, row, targets[r], vocab, Vp, scale);
    }
    ((float *)losses.data)[r] = loss;
  }
}
static void cross_entropy_forward_backward_impl(Ctx *c, Tensor losses, Tensor dlogits, Tensor logits, Tensor targets,
                                                int64_t vocab, float scale) {
  const int32_t *t = (const int32_t *)targets.data;
  DISPATCH(dlogits.dtype, T, cross_entropy_backward_rows<T>(c, losses, (T *)dlogits.data, logits, t, vocab, scale));
}
#endif
