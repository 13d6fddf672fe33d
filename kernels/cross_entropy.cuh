// cross_entropy.cuh: softmax cross-entropy of rows of logits, with the gradient in the same call.
//
//   losses[r]    = ln(sum over j < vocab of e^(x[r,j] - m)) - (x[r,target] - m),   m = max over j < vocab of x[r,j]
//   correct[r]   = 1 if the first largest logit is the target's, else 0
//   dlogits[r,j] = scale (softmax(x[r,:])[j] - [j == target])                      0 for columns vocab <= j < Vp
//   target -1    = ignore the row: loss 0, correct 0, gradient 0
//   weights[r]   a factor of the row's gradient, not of its loss; absent: 1
//   softcap      cap > 0: logits are x = cap tanh(z / cap) (softcap.cuh), and dlogits is the gradient of z, which is
//                (1 - (x/cap)^2) times the gradient of x
//
//   logits (R,Vp) fp32, or with dlogits bf16   losses, weights (R) fp32   correct, targets (R) int32
//   dlogits (R,Vp) any dtype
// dlogits may overlap logits: in their dtype at the same address, in 16 bits under fp32 when it starts at least one of
// its own rows before logits. Row r of dlogits then ends before row (r + 1) / 2 of logits, so once the rows below `at`
// are done, rows at .. 2 at may be done in parallel: 12 calls for 4095 rows. On a GPU, which 1 or 2 rows do not fill,
// dlogits has memory of its own (train_gpt_fsdp.cu).
// One pass finds maximum and sum together (Milakov & Gimelshein 2018, "Online normalizer calculation for softmax") in
// pieces that fit in L1; a second pass writes. Order of sums: 16 lanes over the columns in order, then vec.h's tree.
// When a piece of 1024 columns has a larger maximum, the earlier sum is rescaled.
#pragma once
#include "ops_loss.h"
#include "formulas.cuh"

#if PART_LAUNCHERS
// Overwrites losses and correct. 0 < vocab <= Vp.
void cross_entropy_forward(Ctx *c, Tensor losses, Tensor correct, Tensor logits, Tensor targets,
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
  CALL_OP(c, loss, cross_entropy_forward, losses, correct, logits, targets, vocab);
}

// Overwrites losses and dlogits. scale holds the caller's factors: 1/tokens, loss scaling.
void cross_entropy_forward_backward(Ctx *c, Tensor losses, Tensor dlogits, Tensor logits, Tensor targets,
                                    int64_t vocab, float scale, float softcap, Tensor weights) {
  int64_t R = logits.shape[0], Vp = logits.shape[1];
  if (weights.data) CHECK_SHAPE(weights, R);
  CHECK_SHAPE(logits, R, Vp);
  CHECK_SHAPE(dlogits, R, Vp);
  CHECK_SHAPE(losses, R);
  CHECK_SHAPE(targets, R);
  CHECK_DTYPE(logits, dlogits.dtype == BF16 && logits.dtype == BF16 ? BF16 : F32);
  CHECK_DTYPE(losses, F32);
  CHECK_DTYPE(targets, I32);
  CHECK(vocab > 0 && vocab <= Vp, "cross_entropy_forward_backward: vocabulary %lld of %lld columns", (long long)vocab,
        (long long)Vp);
  const int64_t row_bytes = Vp * (int64_t)dtype_bytes(dlogits.dtype);
  const int64_t before = (int64_t)((intptr_t)logits.data - (intptr_t)dlogits.data);      // bytes
  const bool in_turn = dlogits.dtype != logits.dtype && before < R * row_bytes && -before < 4 * R * Vp;
  CHECK(!in_turn || before >= row_bytes, "cross_entropy_forward_backward: dlogits in %s %lld bytes before logits",
        dtype_name(dlogits.dtype), (long long)before);
  for (int64_t at = 0, n = R; at < R; at += n) {
    n = in_turn && at + 1 < R - at ? at + 1 : R - at;
    CALL_OP(c, loss, cross_entropy_forward_backward, tensor_of((float *)losses.data + at, F32, n),
            rows_of(dlogits, at, n), rows_of(logits, at, n),
            tensor_of((int32_t *)targets.data + at, I32, n), vocab, scale, softcap,
            weights.data ? tensor_of((float *)weights.data + at, F32, n) : weights);
  }
}
#endif

#if PART_CPU || PART_CUDA
// e^(x - m) as 2^((x - m) log2 e). Rounding log2 e adds |x - m| 2^-24 to a term's relative error, which does not
// matter, because the term itself is small if |x - m| is large.
INLINE vf cross_entropy_exp(vf x, vf max) { return fast_exp2(vf_mul(vf_sub(x, max), vf_set1(1.44269504f))); }
// From a row's m and its sum of e^(x - m). A NaN or an infinite logit makes the sum NaN, so the loss shows it.
INLINE float cross_entropy_loss(float max, float sum, float target_logit) {
  return sum >= 1.0f ? vf_first_lane(vf_log(vf_set1(sum))) - (target_logit - max) : NAN;
}
// The factor 1 - (x/cap)^2 by which soft-capping multiplies gradients; x: the capped logit. inverse_cap 0: factor 1.
INLINE vf cross_entropy_uncap(vf x, float inverse_cap) {
  const vf y = vf_mul(x, vf_set1(inverse_cap));
  return inverse_cap > 0.0f ? vf_sub(vf_set1(1.0f), vf_mul(y, y)) : vf_set1(1.0f);
}
// The gradient of the target's logit x, whose softmax is p.
INLINE float cross_entropy_target(float p, float x, float scale, float inverse_cap) {
  return (p - 1.0f) * scale * vf_first_lane(cross_entropy_uncap(vf_set1(x), inverse_cap));
}
#endif

#if PART_CPU
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

template <class X> INLINE vf cross_entropy_load(const X *x, int64_t n) {       // missing lanes are the smallest
  return n >= VF ? vf_load(x) : vf_select(vm_first(n), vf_load_n(x, n), vf_set1(-INFINITY));
}
// The largest of n columns and `max`; NaN is skipped. Four chains, because one would wait for its own latency.
template <class X> static float cross_entropy_max(const X *x, int64_t n, float max) {
  vf most[4] = {vf_set1(max), vf_set1(max), vf_set1(max), vf_set1(max)};
  int64_t i = 0;
  for (; i + 4 * VF <= n; i += 4 * VF)
    for (int k = 0; k < 4; k++) most[k] = vf_max(vf_load(x + i + k * VF), most[k]);
  for (; i < n; i += VF) most[0] = vf_max(cross_entropy_load(x + i, n - i), most[0]);
  return vf_max_of(vf_max(vf_max(most[0], most[1]), vf_max(most[2], most[3])));
}
// With KEEP, kept[j] = e^(x[j] - m) with m = maxima[j / CROSS_ENTROPY_PIECE], the maximum so far.
template <bool KEEP, class X>
static CrossEntropyRow cross_entropy_row(const X *x, int64_t vocab, float *kept, float *maxima) {
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
      __builtin_prefetch((const char *)(x + i + CROSS_ENTROPY_PIECE)); // loads the next piece meanwhile
      if (KEEP) vf_store_n(kept + i, e, end - i);
      sum = vf_add(sum, e);
    }
  }
  CrossEntropyRow row = {max, vf_sum(sum)};
  return row;
}
INLINE void cross_entropy_check(int32_t target, int64_t row, int64_t vocab) {
  CHECK(target >= -1 && target < vocab, "cross_entropy: target %d in row %lld, the vocabulary has %lld", target,
        (long long)row, (long long)vocab);
}

void cross_entropy_forward_impl(Ctx *c, Tensor losses, Tensor correct, Tensor logits, Tensor targets,
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
      loss = cross_entropy_loss(row.max, row.sum, x[target]);
      first_max = x[target] == row.max;          // only then look for an equal one before it
      for (int64_t j = 0; first_max && j < target; j++) first_max = x[j] < row.max;
    }
    ((float *)losses.data)[r] = loss;
    ((int32_t *)correct.data)[r] = first_max;
  });
}

// x: the row's logits, which `to` may overwrite.
template <class T, class X>
static void cross_entropy_gradient_row(T *to, const X *x, const float *kept, const float *maxima, CrossEntropyRow row,
                                       int64_t target, int64_t vocab, int64_t Vp, float scale, float softcap) {
  const float inverse_cap = softcap > 0.0f ? 1.0f / softcap : 0.0f, target_logit = to_f32(x[target]);
  float p_target = 0.0f;
  for (int64_t at = 0; at < vocab; at += CROSS_ENTROPY_PIECE) {
    const int64_t end = at + CROSS_ENTROPY_PIECE < vocab ? at + CROSS_ENTROPY_PIECE : vocab;
    const vf earlier = vf_set1(maxima[at / CROSS_ENTROPY_PIECE]);
    const vf to_p = vf_mul(cross_entropy_exp(earlier, vf_set1(row.max)), vf_set1(1.0f / row.sum));
    const vf factor = vf_mul(to_p, vf_set1(scale));
    if (target >= at && target < end) p_target = kept[target] * vf_first_lane(to_p);
    int64_t j = at;
    for (; j + VF <= end && softcap == 0.0f; j += VF) vf_store(to + j, vf_mul(vf_load(kept + j), factor));
    for (; j < end; j += VF) {                   // the rest, or all if there is a cap
      const int64_t n = end - j < VF ? end - j : VF;
      const vf uncap = cross_entropy_uncap(vf_load_n(x + j, n), inverse_cap);
      vf_store_n(to + j, vf_mul(vf_mul(vf_load_n(kept + j, n), factor), uncap), n);
    }
  }
  memset((void *)(to + vocab), 0, (size_t)(Vp - vocab) * sizeof(T));
  round_to(to + target, cross_entropy_target(p_target, target_logit, scale, inverse_cap));
}
// One thread's rows [from, to).
template <class T, class X>
static void cross_entropy_backward_rows(float *losses, T *dlogits, const X *logits, const int32_t *targets,
                                        const float *weights, int64_t vocab, int64_t Vp, float scale, float softcap,
                                        float *kept, int64_t from, int64_t to) {
  for (int64_t r = from; r < to; r++) {
    const X *x = logits + r * Vp;
    cross_entropy_check(targets[r], r, vocab);
    losses[r] = 0.0f;
    if (targets[r] < 0) {
      memset((void *)(dlogits + r * Vp), 0, (size_t)Vp * sizeof(T));
      continue;
    }
    const CrossEntropyRow row = cross_entropy_row<true>(x, vocab, kept, kept + Vp);
    losses[r] = cross_entropy_loss(row.max, row.sum, to_f32(x[targets[r]]));
    cross_entropy_gradient_row(dlogits + r * Vp, x, kept, kept + Vp, row, targets[r], vocab, Vp,
                               weights ? scale * weights[r] : scale, softcap);
  }
}
void cross_entropy_forward_backward_impl(Ctx *c, Tensor losses, Tensor dlogits, Tensor logits, Tensor targets,
                                         int64_t vocab, float scale, float softcap, Tensor weights) {
  const int64_t R = logits.shape[0], Vp = logits.shape[1];
  CHECK(c->workspace_bytes >= cross_entropy_kept_bytes(c, Vp),
        "cross_entropy_forward_backward: workspace of %zu bytes, needs %zu", c->workspace_bytes,
        cross_entropy_kept_bytes(c, Vp));
  scale *= c->state->loss_scale;
  parallel_for(c->threads, 0, c->threads, 1, [=](int64_t thread) {
    float *kept = (float *)c->workspace + thread * cross_entropy_kept(Vp), *const loss = (float *)losses.data;
    const int64_t from = R * thread / c->threads, to = R * (thread + 1) / c->threads;
    const int32_t *t = (const int32_t *)targets.data;
    const float *w = (const float *)weights.data;
    if (logits.dtype == BF16)
      cross_entropy_backward_rows(loss, (bf16 *)dlogits.data, (const bf16 *)logits.data, t, w, vocab, Vp, scale,
                                  softcap, kept, from, to);
    else
      DISPATCH(dlogits.dtype, T,
               cross_entropy_backward_rows(loss, (T *)dlogits.data, (const float *)logits.data, t, w, vocab, Vp, scale,
                                           softcap, kept, from, to));
  });
}
#endif

#if PART_CUDA
#include "kernels/cuda/cuda_device.h"

// A row is cut into parts; how depends only on its number of columns: four parts, each a quarter of the row for 256
// threads, or one part for a short row. Every thread takes groups of W columns, those of a warp side by side, and goes
// through them with its own maximum and sum, 16 columns at a time. These are joined over each warp, and then over the
// row's warps, in order. So the summation order depends on the number of columns alone. Which blocks compute the parts
// depends on the device, and the results are bitwise identical:
//   CLUSTER  sm_90 and later, four parts: a cluster of four blocks, each with its quarter of the row in shared memory
//   KEPT     one block that holds the whole row in shared memory
//   TWICE    one block that reads the row again to write the gradient, backwards: the columns that were read last are
//            still in L1 and L2
// A row in shared memory comes by cp.async, all of it in flight at once. A thread reads only what it copied itself.
//
// e^x is 2^(x log2 e) by the hardware's ex2 (PTX ISA: relative error below 2^-22). With the argument rounded twice, a
// term's relative error is 2^-22 + |x - m| 2^-23; where |x - m| is large the term itself is small.
enum CrossEntropyForm { CROSS_ENTROPY_TWICE, CROSS_ENTROPY_KEPT, CROSS_ENTROPY_CLUSTER };
enum { CROSS_ENTROPY_THREADS = 512, CROSS_ENTROPY_PART_THREADS = 256, CROSS_ENTROPY_PARTS = 4,
       CROSS_ENTROPY_BATCH = 16 };               // columns at once
// Columns of a group of logits X where rows allow it: 16 bytes.
template <class X> static constexpr int CROSS_ENTROPY_WIDE = 16 / (int)sizeof(X);

// How a row is cut: `parts` parts of `each` columns (the last part has the rest), with `threads` threads per part;
// warps: of all parts. A block that takes a whole row has `block` threads, which take block / threads parts at a time.
struct CrossEntropyParts { int columns, each, parts, threads, warps, block; };
static inline CrossEntropyParts cross_entropy_parts(int64_t columns) {
  CHECK(columns < 1 << 30, "cross_entropy: %lld columns, needs fewer than 2^30", (long long)columns);
  const int n = (int)columns;
  if (n > CROSS_ENTROPY_THREADS * CROSS_ENTROPY_BATCH)
    return {n, (int)round_up((n + CROSS_ENTROPY_PARTS - 1) / CROSS_ENTROPY_PARTS, 8), CROSS_ENTROPY_PARTS,
            CROSS_ENTROPY_PART_THREADS, CROSS_ENTROPY_PARTS * CROSS_ENTROPY_PART_THREADS / WARP, CROSS_ENTROPY_THREADS};
  const int threads = (int)round_up((n + CROSS_ENTROPY_BATCH - 1) / CROSS_ENTROPY_BATCH, WARP);
  return {n, n, 1, threads, threads / WARP, threads};
}
template <class X> static inline CrossEntropyForm cross_entropy_form(const CudaDevice *d, CrossEntropyParts p) {
  const size_t own = 2048;                       // more than the kernel's other shared memory and the system's 1 KiB
  if (p.columns % CROSS_ENTROPY_WIDE<X>) return CROSS_ENTROPY_TWICE;
  if (d->clusters && p.parts == CROSS_ENTROPY_PARTS && own + sizeof(X) * (size_t)p.each <= d->shared_most)
    return CROSS_ENTROPY_CLUSTER;
  return own + sizeof(X) * (size_t)p.columns <= d->shared_most ? CROSS_ENTROPY_KEPT : CROSS_ENTROPY_TWICE;
}

struct CrossEntropySum { float max, sum; bool beaten; };         // beaten: a logit exceeds the target's, or ties before
// A thread's columns of one part: groups of W columns at first, first + step, ... below end, counted from the part's
// first column, which is column `from` of the row.
struct CrossEntropyRange { int from, first, end, step; };

HD CrossEntropyRange cross_entropy_range(CrossEntropyParts p, int part, int thread, int W) {
  const int from = part * p.each, rest = p.columns - from;
  return {from, thread * W, p.each < rest ? p.each : rest, p.threads * W};
}
// Adds the columns of a range to a thread's maximum and sum; columns >= vocab are ignored. x: the part's first column,
// from which vocab and target are counted, too. The comparisons with the target's logit treat a NaN in a column before
// the target as the CPU does.
template <int W, bool CORRECT, class X>
__device__ static inline void cross_entropy_add(CrossEntropySum *s, const X *x, CrossEntropyRange r, int vocab,
                                                int target, float target_logit) {
  constexpr int GROUPS = CROSS_ENTROPY_BATCH / W;
  const int end = vocab < r.end ? vocab : r.end;
  ROLLED for (int at = r.first; at < end; at += GROUPS * r.step) {
    Lanes<W> v[GROUPS];
    UNROLL for (int g = 0; g < GROUPS; g++) {    // all of them in flight before one is looked at
      const int i = at + g * r.step;
      v[g] = lanes_load<W>(x + (i < end ? i : at));
    }
    float most = s->max;
    UNROLL for (int g = 0; g < GROUPS; g++)
      UNROLL for (int k = 0; k < W; k++) {
        const int i = at + g * r.step + k;
        if (i >= end) v[g].x[k] = -INFINITY;
        most = fmaxf(most, v[g].x[k]);
        if (CORRECT) s->beaten |= i < target ? !(v[g].x[k] < target_logit) : v[g].x[k] > target_logit;
      }
    if (most > s->max) {
      s->sum *= cross_entropy_exp(s->max, most);
      s->max = most;
    }
    UNROLL for (int g = 0; g < GROUPS; g++)
      UNROLL for (int k = 0; k < W; k++) s->sum += cross_entropy_exp(v[g].x[k], s->max);
  }
}
// The maximum starts at the lowest finite number, so threads without columns and logits of -Inf add 0; NaN and +Inf
// make the sum NaN.
__device__ static inline CrossEntropySum cross_entropy_nothing() { return {-3.40282347e38f, 0.0f, false}; }
// A warp's maximum and sum, of one part.
__device__ static inline float2 cross_entropy_warp(CrossEntropySum s) {
  const float most = warp_max(s.max);
  return float2{most, warp_sum(s.sum * cross_entropy_exp(s.max, most))};
}
// A row's maximum and sum, from those of its warps; the same in every thread.
__device__ static inline CrossEntropySum cross_entropy_join(const float2 *found, int warps) {
  const int lane = (int)threadIdx.x % WARP;
  const float2 mine = lane < warps ? found[lane] : float2{-3.40282347e38f, 0.0f};
  const float most = warp_max(mine.x);
  return {most, warp_sum(mine.y * cross_entropy_exp(mine.x, most)), false};
}
__device__ static inline void cross_entropy_check(int32_t target, int64_t vocab) {
  DEVICE_CHECK(target >= -1 && target < vocab, "cross_entropy: a target outside the vocabulary");
}

template <int W>
__global__ static void __launch_bounds__(CROSS_ENTROPY_THREADS, 2)
cross_entropy_forward_kernel(float *losses, int32_t *correct, const float *logits, const int32_t *targets,
                             int64_t vocab, CrossEntropyParts p) {
  SHARED(float2, found, WARP);
  SHARED(int32_t, beaten, 1);
  const int64_t r = blockIdx.x, target = targets[r];
  const float *x = logits + r * p.columns;
  cross_entropy_check((int32_t)target, vocab);
  if (target < 0) {
    if (threadIdx.x == 0) losses[r] = 0.0f, correct[r] = 0;
    return;
  }
  if (threadIdx.x == 0) *beaten = 0;
  __syncthreads();
  const float target_logit = x[target];
  const int thread = (int)threadIdx.x % p.threads, groups = (int)blockDim.x / p.threads;
  for (int part = (int)threadIdx.x / p.threads; part < p.parts; part += groups) {
    const CrossEntropyRange range = cross_entropy_range(p, part, thread, W);
    CrossEntropySum s = cross_entropy_nothing();
    cross_entropy_add<W, true>(&s, x + range.from, range, (int)vocab - range.from, (int)target - range.from,
                               target_logit);
    const float2 warp = cross_entropy_warp(s);
    if (threadIdx.x % WARP == 0) found[part * (p.threads / WARP) + thread / WARP] = warp;
    if (s.beaten) *beaten = 1;
  }
  __syncthreads();
  const CrossEntropySum s = cross_entropy_join(found, p.warps);
  if (threadIdx.x) return;
  losses[r] = cross_entropy_loss(s.max, s.sum, target_logit);
  correct[r] = !*beaten && target_logit == s.max;
}
void cross_entropy_forward_impl(Ctx *c, Tensor losses, Tensor correct, Tensor logits, Tensor targets,
                                int64_t vocab) {
  const int64_t R = logits.shape[0], Vp = logits.shape[1];
  if (R == 0) return;
  float *loss = (float *)losses.data;
  const float *x = (const float *)logits.data;
  const int32_t *t = (const int32_t *)targets.data;
  const bool wide = Vp % CROSS_ENTROPY_WIDE<float> == 0;
  const CrossEntropyParts p = cross_entropy_parts(Vp);
  CHECK(!wide || lanes_aligned(x), "cross_entropy_forward: logits start at %p, not on 16 bytes", (const void *)x);
  if (wide)
    LAUNCH(cross_entropy_forward_kernel<CROSS_ENTROPY_WIDE<float>>, (unsigned)R, p.block, 0, STREAM(c), loss,
           (int32_t *)correct.data, x, t, vocab, p);
  else
    LAUNCH(cross_entropy_forward_kernel<1>, (unsigned)R, p.block, 0, STREAM(c), loss, (int32_t *)correct.data, x, t,
           vocab, p);
}

// Writes a range's gradient, the last columns first. x, to and vocab: as for cross_entropy_add. In place, a thread
// overwrites only columns that no other thread reads.
template <class T, class X, int W>
__device__ static inline void cross_entropy_write(T *to, const X *x, CrossEntropyRange r, CrossEntropySum s,
                                                  float factor, float inverse_cap, int vocab) {
  constexpr int GROUPS = CROSS_ENTROPY_BATCH / W;
  const int batch = GROUPS * r.step;
  if (r.first >= r.end) return;
  ROLLED for (int at = r.first + (r.end - 1 - r.first) / batch * batch; at >= 0; at -= batch) {
    Lanes<W> v[GROUPS];
    UNROLL for (int g = 0; g < GROUPS; g++) {
      const int i = at + g * r.step;
      v[g] = lanes_load<W>(x + (i < r.end ? i : at));
    }
    UNROLL for (int g = 0; g < GROUPS; g++) {
      const int i = at + g * r.step;
      UNROLL for (int k = 0; k < W; k++) {
        const float uncap = cross_entropy_uncap(v[g].x[k], inverse_cap);
        v[g].x[k] = i + k < vocab ? cross_entropy_exp(v[g].x[k], s.max) * factor * uncap : 0.0f;
      }
      if (i < r.end) lanes_store<W>(to + i, v[g]);
    }
  }
}
template <class T, class X, int W, CrossEntropyForm FORM>
__global__ static void __launch_bounds__(FORM == CROSS_ENTROPY_CLUSTER ? CROSS_ENTROPY_PART_THREADS
                                                                       : CROSS_ENTROPY_THREADS,
                                         FORM == CROSS_ENTROPY_CLUSTER ? 4 : W == 1 ? 1 : 2)
cross_entropy_backward_kernel(float *losses, T *dlogits, const X *logits, const int32_t *targets, const float *weights,
                              int64_t vocab, CrossEntropyParts p, float scale, float inverse_cap,
                              const StepState *state) {
  constexpr bool CLUSTER = FORM == CROSS_ENTROPY_CLUSTER;
  SHARED(float2, found, WARP);
  SHARED_DYNAMIC(X, row);                        // the whole row, or with CLUSTER this block's part of it
  const int blocks = CLUSTER ? CROSS_ENTROPY_PARTS : 1, rank = CLUSTER ? (int)blockIdx.x % CROSS_ENTROPY_PARTS : 0;
  const int64_t r = blockIdx.x / (unsigned)blocks;
  const int target = targets[r], lane = (int)threadIdx.x % WARP, thread = (int)threadIdx.x % p.threads;
  // This thread has parts first, first + groups, ...
  const int groups = CLUSTER ? blocks : (int)blockDim.x / p.threads;
  const int first = CLUSTER ? rank : (int)threadIdx.x / p.threads;
  const X *x = logits + r * p.columns;
  T *to = dlogits + r * p.columns;
  cross_entropy_check(target, vocab);
  if (target < 0) {                              // all blocks of a cluster have the same target
    if (threadIdx.x == 0 && rank == 0) losses[r] = 0.0f;
    for (int at = (rank * (int)blockDim.x + (int)threadIdx.x) * W; at < p.columns; at += blocks * (int)blockDim.x * W)
      lanes_store<W>(to + at, lanes_of<W>(0.0f));
    return;
  }
  if constexpr (CLUSTER) cluster_begin();
  if constexpr (FORM != CROSS_ENTROPY_TWICE) {
    for (int part = first; part < p.parts; part += groups) {
      const CrossEntropyRange range = cross_entropy_range(p, part, thread, W);
      X *kept = CLUSTER ? row : row + range.from;
      for (int at = range.first; at < range.end; at += range.step) cp_async16(kept + at, x + range.from + at, true);
    }
    cp_async_commit();
  }
  const float target_logit = to_f32(x[target]);  // before any thread writes: a barrier is in between
  if constexpr (FORM != CROSS_ENTROPY_TWICE) cp_async_wait<0>();
  float2 warp[2];                                // a block has half of the parts' threads, or all
  UNROLL for (int k = 0; k < 2; k++) {
    const int part = first + k * groups;
    if (part >= p.parts) break;
    const CrossEntropyRange range = cross_entropy_range(p, part, thread, W);
    const X *from = FORM == CROSS_ENTROPY_TWICE ? x + range.from : CLUSTER ? row : row + range.from;
    CrossEntropySum s = cross_entropy_nothing();
    cross_entropy_add<W, false>(&s, from, range, (int)vocab - range.from, 0, 0.0f);
    warp[k] = cross_entropy_warp(s);
    const int number = part * (p.threads / WARP) + thread / WARP;
    if constexpr (CLUSTER) {
      cluster_wait();                            // the other blocks have started
      if (lane < blocks) cluster_store(&found[number], (unsigned)lane, warp[k]);
      __syncwarp();                              // the barrier takes whole warps
    } else if (lane == 0) {
      found[number] = warp[k];
    }
  }
  if constexpr (CLUSTER) {
    cluster_arrive();
    cluster_wait();
  } else {
    __syncthreads();
  }
  const CrossEntropySum s = cross_entropy_join(found, p.warps);
  if (threadIdx.x == 0 && rank == 0) losses[r] = cross_entropy_loss(s.max, s.sum, target_logit);
  const float inverse_sum = 1.0f / s.sum;
  scale *= state->loss_scale;
  if (weights) scale *= weights[r];
  for (int part = first + (p.parts - 1 - first) / groups * groups; part >= 0; part -= groups) {
    const CrossEntropyRange range = cross_entropy_range(p, part, thread, W);
    const X *from = FORM == CROSS_ENTROPY_TWICE ? x + range.from : CLUSTER ? row : row + range.from;
    cross_entropy_write<T, X, W>(to + range.from, from, range, s, inverse_sum * scale, inverse_cap,
                              (int)vocab - range.from);
    const int hit = target - range.from;         // the thread that wrote this column writes it again
    if (hit >= 0 && hit < range.end && hit / W % p.threads == thread)
      round_to(to + target, cross_entropy_target(cross_entropy_exp(target_logit, s.max) * inverse_sum, target_logit,
                                                 scale, inverse_cap));
  }
}

template <class T, class X, int W>
static void cross_entropy_backward(Ctx *c, float *losses, T *dlogits, const X *logits, const int32_t *targets,
                                   const float *weights, int64_t rows, int64_t vocab, CrossEntropyParts p, float scale,
                                   float inverse_cap) {
  const CrossEntropyForm form = cross_entropy_form<X>(DEVICE(c), p);
  const unsigned R = (unsigned)rows;
  if (form == CROSS_ENTROPY_TWICE) {
    LAUNCH((cross_entropy_backward_kernel<T, X, W, CROSS_ENTROPY_TWICE>), R, p.block, 0, STREAM(c), losses, dlogits,
           logits, targets, weights, vocab, p, scale, inverse_cap, c->state);
    return;
  }
  if constexpr (W > 1) {       // the forms with shared memory copy 16 bytes at a time
    if (form == CROSS_ENTROPY_CLUSTER)
      LAUNCH_CLUSTER((cross_entropy_backward_kernel<T, X, W, CROSS_ENTROPY_CLUSTER>), CROSS_ENTROPY_PARTS,
                     R * CROSS_ENTROPY_PARTS, CROSS_ENTROPY_PART_THREADS, sizeof(X) * (size_t)p.each, STREAM(c),
                     losses, dlogits, logits, targets, weights, vocab, p, scale, inverse_cap, c->state);
    else
      LAUNCH((cross_entropy_backward_kernel<T, X, W, CROSS_ENTROPY_KEPT>), R, p.block, sizeof(X) * (size_t)p.columns,
             STREAM(c), losses, dlogits, logits, targets, weights, vocab, p, scale, inverse_cap, c->state);
  }
}
template <class T, class X>
static void cross_entropy_backward_rows(Ctx *c, Tensor losses, Tensor dlogits, Tensor logits, Tensor targets,
                                        int64_t vocab, float scale, float softcap, Tensor weights) {
  const int64_t R = logits.shape[0], Vp = logits.shape[1];
  const float inverse_cap = softcap > 0.0f ? 1.0f / softcap : 0.0f;
  const int32_t *t = (const int32_t *)targets.data;
  const X *x = (const X *)logits.data;
  T *const to = (T *)dlogits.data;
  float *loss = (float *)losses.data;
  const float *w = (const float *)weights.data;
  const bool wide = Vp % CROSS_ENTROPY_WIDE<X> == 0;
  const CrossEntropyParts p = cross_entropy_parts(Vp);
  CHECK(!wide || lanes_aligned(x, to),
        "cross_entropy_forward_backward: logits start at %p, dlogits at %p, not on 16 bytes", (const void *)x,
        (const void *)to);
  if (wide)
    cross_entropy_backward<T, X, CROSS_ENTROPY_WIDE<X>>(c, loss, to, x, t, w, R, vocab, p, scale, inverse_cap);
  else cross_entropy_backward<T, X, 1>(c, loss, to, x, t, w, R, vocab, p, scale, inverse_cap);
}
void cross_entropy_forward_backward_impl(Ctx *c, Tensor losses, Tensor dlogits, Tensor logits, Tensor targets,
                                         int64_t vocab, float scale, float softcap, Tensor weights) {
  if (logits.shape[0] == 0) return;
  if (logits.dtype == BF16)
    cross_entropy_backward_rows<bf16, bf16>(c, losses, dlogits, logits, targets, vocab, scale, softcap, weights);
  else
    DISPATCH(dlogits.dtype, T, cross_entropy_backward_rows<T, float>(c, losses, dlogits, logits, targets, vocab, scale,
                                                                     softcap, weights));
}
#endif
