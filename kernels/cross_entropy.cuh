// cross_entropy.cuh: softmax cross-entropy of rows of logits, with the gradient in the same call.
//
//   losses[r]    = ln(sum over j < vocab of e^(x[r,j] - m)) - (x[r,target] - m),   m = max over j < vocab of x[r,j]
//   correct[r]   = 1 if the first largest logit is the target's, else 0
//   dlogits[r,j] = scale (softmax(x[r,:])[j] - [j == target])                      0 for columns vocab <= j < Vp
//   target -1    = ignore the row: loss 0, correct 0, gradient 0
//
//   logits (R,Vp) fp32   losses (R) fp32   correct, targets (R) int32   dlogits (R,Vp) any dtype
// dlogits may overlap logits: in fp32 at the same address, in 16 bits when it starts at least one of its own rows
// before logits. Row r of dlogits then ends before row (r + 1) / 2 of logits, so once the rows below `at` are done,
// rows at .. 2 at may be done in parallel.
// One pass finds maximum and sum together (Milakov & Gimelshein 2018, "Online normalizer calculation for softmax") in
// pieces that fit in L1; a second pass writes. Order of sums: 16 lanes over the columns in order, then vec.h's tree.
// When a piece of 1024 columns has a larger maximum, the earlier sum is rescaled.
#pragma once
#include "ops.h"

static const float CROSS_ENTROPY_LOG2E = 1.44269504f;

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
  CALL_OP(c, cross_entropy_forward, losses, correct, logits, targets, vocab);
}

// Overwrites losses and dlogits. scale holds the caller's factors: 1/tokens, loss scaling.
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
  const int64_t row_bytes = Vp * (int64_t)dtype_bytes(dlogits.dtype);
  const int64_t before = (int64_t)((intptr_t)logits.data - (intptr_t)dlogits.data);      // bytes
  const bool in_turn = dlogits.dtype != F32 && before < R * row_bytes && -before < 4 * R * Vp;
  CHECK(!in_turn || before >= row_bytes, "cross_entropy_forward_backward: dlogits in %s %lld bytes before logits",
        dtype_name(dlogits.dtype), (long long)before);
  for (int64_t at = 0, n = R; at < R; at += n) {
    n = in_turn && at + 1 < R - at ? at + 1 : R - at;
    CALL_OP(c, cross_entropy_forward_backward, tensor_of((float *)losses.data + at, F32, n), rows_of(dlogits, at, n),
            rows_of(logits, at, n), tensor_of((int32_t *)targets.data + at, I32, n), vocab, scale);
  }
}
#endif

#if PART_CPU
#include "kernels/cpu/vec.h"
static const int64_t CROSS_ENTROPY_PIECE = 1024; // columns whose maximum is taken before they are exponentiated

// A thread keeps a row's exponentials for the second pass, and the maximum that each piece was taken relative to. They
// stay in L2; computing them twice would cost more than half of the op.
static int64_t cross_entropy_pieces(int64_t Vp) { return (Vp + CROSS_ENTROPY_PIECE - 1) / CROSS_ENTROPY_PIECE; }
static int64_t cross_entropy_kept(int64_t Vp) { return (Vp + cross_entropy_pieces(Vp) + VF - 1) / VF * VF; }
static size_t cross_entropy_kept_bytes(const Ctx *c, int64_t Vp) {
  return (size_t)c->threads * (size_t)cross_entropy_kept(Vp) * sizeof(float);
}
static size_t cross_entropy_workspace_bytes(const Ctx *c, WorkspaceQuery q) {
  return cross_entropy_kept_bytes(c, q.vocab_padded);
}

struct CrossEntropyRow { float max, sum; };      // m and sum of e^(x - m)

// 2^((x - m) log2 e): rounding the factor adds |x - m| 2^-24 to a term's relative error, which does not matter because
// the term itself is small then.
INLINE vf cross_entropy_exp(vf x, vf max) { return vf_exp2(vf_mul(vf_sub(x, max), vf_set1(CROSS_ENTROPY_LOG2E))); }

INLINE vf cross_entropy_load(const float *x, int64_t n) {                     // missing lanes are the smallest
  return n >= VF ? vf_load(x) : vf_select(vm_first(n), vf_load_n(x, n), vf_set1(-INFINITY));
}
// The largest of n columns and `max`; NaN is skipped. Four chains, because one would wait for its own latency.
static float cross_entropy_max(const float *x, int64_t n, float max) {
  vf most[4] = {vf_set1(max), vf_set1(max), vf_set1(max), vf_set1(max)};
  int64_t i = 0;
  for (; i + 4 * VF <= n; i += 4 * VF)
    for (int k = 0; k < 4; k++) most[k] = vf_max(vf_load(x + i + k * VF), most[k]);
  for (; i < n; i += VF) most[0] = vf_max(cross_entropy_load(x + i, n - i), most[0]);
  return vf_max_of(vf_max(vf_max(most[0], most[1]), vf_max(most[2], most[3])));
}
// With KEEP, kept[j] = e^(x[j] - m) with m = maxima[j / CROSS_ENTROPY_PIECE], the maximum so far.
// A NaN or an infinite logit makes the sum NaN, so the loss shows it.
template <bool KEEP>
static CrossEntropyRow cross_entropy_row(const float *x, int64_t vocab, float *kept, float *maxima) {
  float max = -INFINITY;
  vf sum = vf_zero();
  for (int64_t at = 0; at < vocab; at += CROSS_ENTROPY_PIECE) {
    const int64_t end = at + CROSS_ENTROPY_PIECE < vocab ? at + CROSS_ENTROPY_PIECE : vocab;
    const float larger = cross_entropy_max(x + at, end - at, max);
    if (larger > max) sum = vf_mul(sum, cross_entropy_exp(vf_set1(max), vf_set1(larger)));
    max = larger;
    if (KEEP) maxima[at / CROSS_ENTROPY_PIECE] = max;
    const vf m = vf_set1(max);
    for (int64_t i = at; i < end; i += VF) {
      const vf e = cross_entropy_exp(cross_entropy_load(x + i, end - i), m);
      _mm_prefetch((const char *)(x + i + CROSS_ENTROPY_PIECE), _MM_HINT_T0); // loads the next piece meanwhile
      if (KEEP) vf_store_n(kept + i, e, end - i);
      sum = vf_add(sum, e);
    }
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
  parallel_for(c->threads, 0, R, 1, [=](int64_t r) {
    const int32_t target = ((const int32_t *)targets.data)[r];
    const float *x = (const float *)logits.data + r * Vp;
    cross_entropy_check(target, r, vocab);
    float loss = 0.0f;
    int32_t first_max = 0;
    if (target >= 0) {
      CrossEntropyRow row = cross_entropy_row<false>(x, vocab, NULL, NULL);
      loss = cross_entropy_loss(row, x[target]);
      first_max = x[target] == row.max;          // only then look for an equal one before it
      for (int64_t j = 0; first_max && j < target; j++) first_max = x[j] < row.max;
    }
    ((float *)losses.data)[r] = loss;
    ((int32_t *)correct.data)[r] = first_max;
  });
}

template <class T>
static void cross_entropy_gradient_row(T *to, const float *kept, const float *maxima, CrossEntropyRow row,
                                       int64_t target, int64_t vocab, int64_t Vp, float scale) {
  float p_target = 0.0f;
  for (int64_t at = 0; at < vocab; at += CROSS_ENTROPY_PIECE) {
    const int64_t end = at + CROSS_ENTROPY_PIECE < vocab ? at + CROSS_ENTROPY_PIECE : vocab;
    const vf earlier = vf_set1(maxima[at / CROSS_ENTROPY_PIECE]);
    const vf to_p = vf_mul(cross_entropy_exp(earlier, vf_set1(row.max)), vf_set1(1.0f / row.sum));
    const vf factor = vf_mul(to_p, vf_set1(scale));
    if (target >= at && target < end) p_target = kept[target] * vf_first_lane(to_p);
    int64_t j = at;
    for (; j + VF <= end; j += VF) vf_store(to + j, vf_mul(vf_load(kept + j), factor));
    if (j < end) vf_store_n(to + j, vf_mul(vf_load_n(kept + j, end - j), factor), end - j);
  }
  memset((void *)(to + vocab), 0, (size_t)(Vp - vocab) * sizeof(T));
  round_to(to + target, (p_target - 1.0f) * scale);
}
// One thread's rows [from, to).
template <class T>
static void cross_entropy_backward_rows(float *losses, T *dlogits, const float *logits, const int32_t *targets,
                                        int64_t vocab, int64_t Vp, float scale, float *kept, int64_t from, int64_t to) {
  for (int64_t r = from; r < to; r++) {
    const float *x = logits + r * Vp;
    cross_entropy_check(targets[r], r, vocab);
    losses[r] = 0.0f;
    if (targets[r] < 0) {
      memset((void *)(dlogits + r * Vp), 0, (size_t)Vp * sizeof(T));
      continue;
    }
    const CrossEntropyRow row = cross_entropy_row<true>(x, vocab, kept, kept + Vp);
    losses[r] = cross_entropy_loss(row, x[targets[r]]);
    cross_entropy_gradient_row(dlogits + r * Vp, kept, kept + Vp, row, targets[r], vocab, Vp, scale);
  }
}
static void cross_entropy_forward_backward_impl(Ctx *c, Tensor losses, Tensor dlogits, Tensor logits, Tensor targets,
                                                int64_t vocab, float scale) {
  const int64_t R = logits.shape[0], Vp = logits.shape[1];
  CHECK(c->workspace_bytes >= cross_entropy_kept_bytes(c, Vp),
        "cross_entropy_forward_backward: workspace of %zu bytes, needs %zu", c->workspace_bytes,
        cross_entropy_kept_bytes(c, Vp));
  scale *= c->state->loss_scale;
  parallel_for(c->threads, 0, c->threads, 1, [=](int64_t thread) {
    float *kept = (float *)c->workspace + thread * cross_entropy_kept(Vp);
    DISPATCH(dlogits.dtype, T,
             cross_entropy_backward_rows<T>((float *)losses.data, (T *)dlogits.data, (const float *)logits.data,
                                            (const int32_t *)targets.data, vocab, Vp, scale, kept,
                                            R * thread / c->threads, R * (thread + 1) / c->threads));
  });
}
#endif

#if PART_CUDA
#include "kernels/cuda/lane.cuh"

static size_t cross_entropy_workspace_bytes(const Ctx *, WorkspaceQuery) { return 0; }

// A block takes a row. Every thread runs through its columns once with its own maximum and sum (two groups of eight in
// flight), and the block joins them. The second pass, which writes, runs backwards: the columns that the first pass
// read last are still in L1 and L2. The number of threads depends on the columns alone, so sums have one order on every
// device.
//
// e^x is 2^(x log2 e) by the hardware's ex2 (PTX ISA: relative error below 2^-22). With the argument rounded twice, a
// term's relative error is 2^-22 + |x - m| 2^-23; where |x - m| is large the term itself is small.
static const int CROSS_ENTROPY_MAX_THREADS = 512;

struct CrossEntropySum { float max, sum; bool beaten; };         // beaten: a logit exceeds the target's, or ties before

static inline int cross_entropy_threads(int64_t columns, int width) {
  const int64_t warps = (columns + 2 * width * WARP - 1) / (2 * width * WARP);
  return (int)(warps * WARP < CROSS_ENTROPY_MAX_THREADS ? warps * WARP : CROSS_ENTROPY_MAX_THREADS);
}
// How many of W columns from `at` on come before `end`, so that later comparisons need 32 bits only.
template <int W> __device__ static inline int cross_entropy_before(int64_t at, int64_t end) {
  return end - at >= W ? W : end > at ? (int)(end - at) : 0;
}
__device__ static inline float cross_entropy_exp(float x, float max) {
  return fast_exp2((x - max) * CROSS_ENTROPY_LOG2E);
}
// Columns from `at` on; those past the vocabulary are ignored. These comparisons treat a NaN before the target as the
// CPU does.
template <int W, bool CORRECT>
__device__ static inline void cross_entropy_add(CrossEntropySum *s, Lanes<W> v, int64_t at, int64_t vocab,
                                                int64_t target, float target_logit) {
  const int valid = cross_entropy_before<W>(at, vocab), before = CORRECT ? cross_entropy_before<W>(at, target) : 0;
  float most = s->max;
  UNROLL for (int i = 0; i < W; i++) {
    if (i >= valid) v.x[i] = -INFINITY;
    most = fmaxf(most, v.x[i]);
    if (CORRECT) s->beaten |= i < before ? !(v.x[i] < target_logit) : v.x[i] > target_logit;
  }
  if (most > s->max) {
    s->sum *= cross_entropy_exp(s->max, most);
    s->max = most;
  }
  UNROLL for (int i = 0; i < W; i++) s->sum += cross_entropy_exp(v.x[i], s->max);
}
// Maximum and sum of a row, the same in every thread. The maximum starts at the lowest finite number, so threads
// without columns and logits of -Inf add 0; NaN and +Inf make the sum NaN.
template <int W, bool CORRECT>
__device__ static CrossEntropySum cross_entropy_row(const float *x, int64_t vocab, int64_t columns, int64_t target,
                                                    float *scratch) {
  CrossEntropySum s = {-3.40282347e38f, 0.0f, false};
  const float target_logit = CORRECT ? x[target] : 0.0f;
  const int64_t step = (int64_t)blockDim.x * W;
  int64_t at = (int64_t)threadIdx.x * W;
  for (; at + step + W <= columns && at + step < vocab; at += 2 * step) {
    const Lanes<W> first = lanes_load<W>(x + at), second = lanes_load<W>(x + at + step);
    cross_entropy_add<W, CORRECT>(&s, first, at, vocab, target, target_logit);
    cross_entropy_add<W, CORRECT>(&s, second, at + step, vocab, target, target_logit);
  }
  if (at < vocab) cross_entropy_add<W, CORRECT>(&s, lanes_load<W>(x + at), at, vocab, target, target_logit);
  const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP, warps = (int)blockDim.x / WARP;
  float most = warp_max(s.max);
  if (lane == 0) scratch[warp] = most;
  __syncthreads();
  most = warp_max(scratch[lane < warps ? lane : 0]);
  s.sum = block_sum(s.sum * cross_entropy_exp(s.max, most), scratch + WARP);
  s.max = most;
  return s;
}
__device__ static inline float cross_entropy_loss(CrossEntropySum s, float target_logit) {
  return s.sum >= 1.0f ? lane_log(s.sum) - (target_logit - s.max) : NAN;
}
__device__ static inline void cross_entropy_check(int32_t target, int64_t vocab) {
  DEVICE_CHECK(target >= -1 && target < vocab, "cross_entropy: a target outside the vocabulary");
}

template <int W>
__global__ static void __launch_bounds__(CROSS_ENTROPY_MAX_THREADS)
cross_entropy_forward_kernel(float *losses, int32_t *correct, const float *logits, const int32_t *targets,
                             int64_t vocab, int64_t columns) {
  SHARED(float, scratch, 2 * WARP);
  SHARED(int32_t, beaten, 1);
  const int64_t r = blockIdx.x, target = targets[r];
  const float *x = logits + r * columns;
  cross_entropy_check((int32_t)target, vocab);
  if (target < 0) {
    if (threadIdx.x == 0) losses[r] = 0.0f, correct[r] = 0;
    return;
  }
  if (threadIdx.x == 0) *beaten = 0;
  __syncthreads();
  const CrossEntropySum s = cross_entropy_row<W, true>(x, vocab, columns, target, scratch);
  if (s.beaten) *beaten = 1;
  __syncthreads();
  if (threadIdx.x) return;
  losses[r] = cross_entropy_loss(s, x[target]);
  correct[r] = !*beaten && x[target] == s.max;
}
static void cross_entropy_forward_impl(Ctx *c, Tensor losses, Tensor correct, Tensor logits, Tensor targets,
                                       int64_t vocab) {
  const int64_t R = logits.shape[0], Vp = logits.shape[1];
  if (R == 0) return;
  float *loss = (float *)losses.data;
  const float *x = (const float *)logits.data;
  const int32_t *t = (const int32_t *)targets.data;
  CHECK(Vp % LANES || lanes_aligned(x), "cross_entropy_forward: logits begin at %p, not on 16 bytes", (const void *)x);
  if (Vp % LANES == 0)
    LAUNCH(cross_entropy_forward_kernel<LANES>, (unsigned)R, cross_entropy_threads(Vp, LANES), 0, STREAM(c), loss,
           (int32_t *)correct.data, x, t, vocab, Vp);
  else
    LAUNCH(cross_entropy_forward_kernel<1>, (unsigned)R, cross_entropy_threads(Vp, 1), 0, STREAM(c), loss,
           (int32_t *)correct.data, x, t, vocab, Vp);
}

// One group of columns of the gradient. In place, a thread overwrites only columns that no other thread reads.
template <class T, int W>
__device__ static inline void cross_entropy_write(T *to, const float *x, CrossEntropySum s, float inverse_sum,
                                                  float scale, int64_t at, int64_t vocab, int64_t target) {
  const int valid = cross_entropy_before<W>(at, vocab), hit = target >= at && target < at + W ? (int)(target - at) : -1;
  Lanes<W> v = lanes_load<W>(x + at);
  UNROLL for (int i = 0; i < W; i++) {
    const float p = cross_entropy_exp(v.x[i], s.max) * inverse_sum;
    v.x[i] = i >= valid ? 0.0f : (i == hit ? p - 1.0f : p) * scale;
  }
  lanes_store<W>(to + at, v);
}
template <class T, int W>
__global__ static void __launch_bounds__(CROSS_ENTROPY_MAX_THREADS)
cross_entropy_backward_kernel(float *losses, T *dlogits, const float *logits, const int32_t *targets, int64_t vocab,
                              int64_t columns, float scale, const StepState *state) {
  SHARED(float, scratch, 2 * WARP);
  const int64_t r = blockIdx.x, target = targets[r], step = (int64_t)blockDim.x * W, first = (int64_t)threadIdx.x * W;
  const float *x = logits + r * columns;
  T *to = dlogits + r * columns;
  cross_entropy_check((int32_t)target, vocab);
  if (target < 0) {
    if (threadIdx.x == 0) losses[r] = 0.0f;
    for (int64_t at = first; at < columns; at += step) lanes_store<W>(to + at, lanes_of<W>(0.0f));
    return;
  }
  const float target_logit = x[target];          // before any thread writes: block_sum's barrier is in between
  const CrossEntropySum s = cross_entropy_row<W, false>(x, vocab, columns, target, scratch);
  if (threadIdx.x == 0) losses[r] = cross_entropy_loss(s, target_logit);
  const float inverse_sum = 1.0f / s.sum, factor = scale * state->loss_scale;
  if (first >= columns) return;
  for (int64_t at = first + (columns - 1 - first) / step * step; at >= 0; at -= step)
    cross_entropy_write<T, W>(to, x, s, inverse_sum, factor, at, vocab, target);
}
static void cross_entropy_forward_backward_impl(Ctx *c, Tensor losses, Tensor dlogits, Tensor logits, Tensor targets,
                                                int64_t vocab, float scale) {
  const int64_t R = logits.shape[0], Vp = logits.shape[1];
  if (R == 0) return;
  float *loss = (float *)losses.data;
  const float *x = (const float *)logits.data;
  const int32_t *t = (const int32_t *)targets.data;
  const bool wide = Vp % LANES == 0;
  CHECK(!wide || lanes_aligned(x, dlogits.data),
        "cross_entropy_forward_backward: logits begin at %p, dlogits at %p, not on 16 bytes", (const void *)x,
        dlogits.data);
  DISPATCH(dlogits.dtype, T, {
    if (wide) LAUNCH((cross_entropy_backward_kernel<T, LANES>), (unsigned)R, cross_entropy_threads(Vp, LANES), 0,
                     STREAM(c), loss, (T *)dlogits.data, x, t, vocab, Vp, scale, c->state);
    else LAUNCH((cross_entropy_backward_kernel<T, 1>), (unsigned)R, cross_entropy_threads(Vp, 1), 0, STREAM(c), loss,
                (T *)dlogits.data, x, t, vocab, Vp, scale, c->state);
  });
}
#endif
