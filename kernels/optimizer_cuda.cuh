// optimizer_cuda.cuh: the CUDA part of optimizer.cuh. All kernels walk flat ranges, four elements per thread and
// iteration if every pointer is aligned to 16 bytes; they read lr, scales and skip from c->state.
#pragma once
#include "optimizer.cuh"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/lane.cuh"

#if FAMILY(optimizer)                            // muon_cuda.cuh needs the rest
// ---- AdamW ---------------------------------------------------------------------------------------------------------
// The operations of adamw_lanes in optimizer.cuh, in the same order: host and device agree to the last bit.
template <class T, class M, bool CAST, int W>
__device__ static inline void adamw_lanes(T *param, M *master, float *m, float *v, const float *grad,
                                          const AdamwFactors *a) {
  const Lanes<W> g0 = lanes_load<W>(grad);
  Lanes<W> p = masters_load<W>(param, master), pm = lanes_load<W>(m), pv = lanes_load<W>(v);
  UNROLL for (int i = 0; i < W; i++) {
    const float g = g0.x[i] * a->grad_scale;
    pm.x[i] = fmaf(g - pm.x[i], a->one_minus_beta1, pm.x[i]);
    pv.x[i] = fmaf(g * g, a->one_minus_beta2, pv.x[i] * a->beta2);
    p.x[i] = fmaf(pm.x[i] / fmaf(sqrtf(pv.x[i]), a->root2, a->eps), a->step, p.x[i] * a->decay);
  }
  lanes_store<W>(m, pm);
  lanes_store<W>(v, pv);
  masters_store<W, CAST>(param, master, p);
}
// The factors need fp64 divisions and a square root: one thread of a block computes them. Five blocks fit into a
// multiprocessor's registers; left to itself ptxas also asks for five of fp32 parameters with masters, which spills.
template <class T, class M, bool CAST, int W>
__global__ static void __launch_bounds__(FLAT_THREADS, CAST && sizeof(T) == 4 ? 4 : 5)
adamw_kernel(T *param, M *master, float *m, float *v, const float *grad, int64_t n, AdamwArgs args,
             const StepState *state) {
  SHARED(AdamwFactors, factors, 1);
  if (state->skip) return;
  if (threadIdx.x == 0) *factors = adamw_factors(state, args);
  __syncthreads();
  const AdamwFactors a = *factors;
  FLAT_WALK(W, n, i, (adamw_lanes<T, M, CAST, W>(param + i, master + i, m + i, v + i, grad + i, &a)),
            (adamw_lanes<T, M, CAST, 1>(param + i, master + i, m + i, v + i, grad + i, &a)));
}
template <class T, class M, bool CAST>
static void adamw_launch(Ctx *c, T *param, Tensor master, Tensor m, Tensor v, Tensor grad, AdamwArgs a) {
  const int64_t n = numel(master);
  M *p = (M *)master.data;
  float *pm = (float *)m.data, *pv = (float *)v.data, *g = (float *)grad.data;
  if (lanes_aligned(param, p, pm, pv, g))
    LAUNCH((adamw_kernel<T, M, CAST, LANES_FLAT>), flat_blocks(n, LANES_FLAT), FLAT_THREADS, 0, STREAM(c), param, p, pm,
           pv, g, n, a, c->state);
  else
    LAUNCH((adamw_kernel<T, M, CAST, 1>), flat_blocks(n, 1), FLAT_THREADS, 0, STREAM(c), param, p, pm, pv, g, n, a,
           c->state);
}
void adamw_update_impl(Ctx *c, Tensor param, Tensor master, Tensor m, Tensor v, Tensor grad, AdamwArgs a) {
  if (master.dtype == LOW16) adamw_launch<bf16, low16, true>(c, (bf16 *)param.data, master, m, v, grad, a);
  else if (!param.data) adamw_launch<float, float, false>(c, (float *)master.data, master, m, v, grad, a);
  else DISPATCH(param.dtype, T, adamw_launch<T, float, true>(c, (T *)param.data, master, m, v, grad, a));
}

// ---- SGD -----------------------------------------------------------------------------------------------------------
template <class T, class M, bool CAST, bool BUFFER, int W>
__device__ static inline void sgd_lanes(T *param, M *master, float *buffer, const float *grad, SgdArgs a,
                                        float grad_scale, float minus_lr) {
  Lanes<W> p = masters_load<W>(param, master), g = lanes_load<W>(grad), b = {};
  if (BUFFER) b = lanes_load<W>(buffer);
  UNROLL for (int i = 0; i < W; i++) {
    g.x[i] = fmaf(p.x[i], a.weight_decay, g.x[i] * grad_scale);
    if (BUFFER) g.x[i] = fmaf(b.x[i], a.momentum, g.x[i]);
    p.x[i] = fmaf(g.x[i], minus_lr, p.x[i]);
  }
  if (BUFFER) lanes_store<W>(buffer, g);
  masters_store<W, CAST>(param, master, p);
}
template <class T, class M, bool CAST, bool BUFFER, int W>
__global__ static void __launch_bounds__(FLAT_THREADS)
sgd_kernel(T *param, M *master, float *buffer, const float *grad, int64_t n, SgdArgs a, const StepState *state) {
  if (state->skip) return;
  const float scale = state->grad_scale, minus_lr = -state->in.lr * a.lr_scale;
  FLAT_WALK(W, n, i,
            (sgd_lanes<T, M, CAST, BUFFER, W>(param + i, master + i, buffer + i, grad + i, a, scale, minus_lr)),
            (sgd_lanes<T, M, CAST, BUFFER, 1>(param + i, master + i, buffer + i, grad + i, a, scale, minus_lr)));
}
template <class T, class M, bool CAST, bool BUFFER>
static void sgd_launch(Ctx *c, T *param, Tensor master, Tensor momentum, Tensor grad, SgdArgs a) {
  const int64_t n = numel(master);
  M *p = (M *)master.data;
  float *g = (float *)grad.data, *b = BUFFER ? (float *)momentum.data : g;     // g: a dummy, never read as a buffer
  if (lanes_aligned(param, p, b, g))
    LAUNCH((sgd_kernel<T, M, CAST, BUFFER, LANES_FLAT>), flat_blocks(n, LANES_FLAT), FLAT_THREADS, 0, STREAM(c), param,
           p, b, g, n, a, c->state);
  else
    LAUNCH((sgd_kernel<T, M, CAST, BUFFER, 1>), flat_blocks(n, 1), FLAT_THREADS, 0, STREAM(c), param, p, b, g, n, a,
           c->state);
}
template <class T, class M, bool CAST>
static void sgd_choose(Ctx *c, T *param, Tensor master, Tensor momentum, Tensor grad, SgdArgs a) {
  if (momentum.data) sgd_launch<T, M, CAST, true>(c, param, master, momentum, grad, a);
  else sgd_launch<T, M, CAST, false>(c, param, master, momentum, grad, a);
}
void sgd_update_impl(Ctx *c, Tensor param, Tensor master, Tensor momentum, Tensor grad, SgdArgs a) {
  if (master.dtype == LOW16) sgd_choose<bf16, low16, true>(c, (bf16 *)param.data, master, momentum, grad, a);
  else if (!param.data) sgd_choose<float, float, false>(c, (float *)master.data, master, momentum, grad, a);
  else DISPATCH(param.dtype, T, sgd_choose<T, float, true>(c, (T *)param.data, master, momentum, grad, a));
}
#endif

// ---- exact norm ----------------------------------------------------------------------------------------------------
// A thread adds its squares to 192 bits in registers. Squares of |g| < 2^28 are below bit 166, which leaves room for
// 2^26 of them. Larger ones are added to the limbs one by one: only a diverged model has many. The threads' sums are
// cut into 32-bit digits, which a block adds in shared memory and then to the limbs; integer addition has no order.
//
// Where fp64 is fast (norm_in_fp64) a thread adds as norm_lanes of optimizer.cuh does, in half the instructions:
// multiples of 2^-8, 2^-59 and 2^-110 of squares below 2^42, each at most 2^50, are read off fp64 sums and added as
// integers; then they join the 192 bits. No square lies halfway between two units of 2^-110: its lowest bit would be
// 2^-111, and that of a square has an even exponent. So both forms round alike, and leave the same limbs.
enum { NORM_DIGITS = 6, NORM_SUMS = NORM_DIGITS + 1 };           // plus the count of elements that are not finite
struct NormThread { uint64_t word[3], nonfinite; int64_t level[3]; };
// Elements of a launch: a thread of FLAT_BLOCKS blocks has about 2^12, and its levels have room for 2^13.
static const int64_t NORM_LAUNCH = (int64_t)1 << 31;
// Half of fp32's rate; all others have 1/64 (CUDA C++ Programming Guide, "Arithmetic Instructions").
static inline bool norm_in_fp64(Ctx *c) { return DEVICE(c)->minor == 0 && DEVICE(c)->major <= 10; }

__device__ static inline void norm_add_limb(int64_t *limbs, int j, uint64_t x) {
  if (x) atomicAdd((unsigned long long *)limbs + j, (unsigned long long)x);
}
// Adds square * 2^(shift - 110) to the limbs, as digits below 2^32: for the few large squares.
__device__ static inline void norm_add_large(int64_t *limbs, uint64_t square, int shift) {
  const int j = shift / 32, bits = shift % 32;
  const uint64_t low = (square & 0xffffffffu) << bits, high = (square >> 32) << bits;
  const uint64_t middle = (low >> 32) + (high & 0xffffffffu);
  norm_add_limb(limbs, j, low & 0xffffffffu);
  norm_add_limb(limbs, j + 1, middle & 0xffffffffu);
  norm_add_limb(limbs, j + 2, (high >> 32) + (middle >> 32));
}
// Adds g^2 to the thread's 192 bits, in units of 2^-110, or, if it is large, to the limbs, which all threads share.
__device__ static inline void norm_add(NormThread *sum, int64_t *limbs, float g) {
  const uint32_t bits = f32_bits(g) & 0x7fffffffu;
  if (bits >= 0x7f800000u) { sum->nonfinite++; return; }
  const uint32_t exponent = bits >> 23, m = exponent ? (bits & 0x7fffffu) | 0x800000u : bits;
  int shift = 2 * ((int)(exponent ? exponent : 1) - 150) - NORM_FLOOR_EXPONENT;        // g^2 = m^2 * 2^(shift - 110)
  uint64_t square = (uint64_t)m * m;
  if (shift < 0) {                               // rounds to the nearest unit of 2^-110
    square = shift < -50 ? 0 : (square + ((uint64_t)1 << (-shift - 1))) >> -shift;
    shift = 0;
  } else if (shift > 118) {
    norm_add_large(limbs, square, shift);
    return;
  }
  const int within = shift & 63;
  const uint64_t low = square << within, high = square >> 1 >> (63 - within);
  const bool up = shift >= 64;
  const uint64_t add[3] = {up ? 0 : low, up ? low : high, up ? high : 0};
  sum->word[0] += add[0];
  const uint64_t carry = sum->word[0] < add[0], one = add[1] + carry;        // beside a large add[1]: 0
  sum->word[1] += one;
  sum->word[2] += add[2] + (sum->word[1] < one);
}
__device__ static inline uint64_t norm_bits(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
// norm_add by fp64: from level 2 down, rounds the square, then what is left of it, and adds the multiples as integers.
__device__ static inline void norm_add_fp64(NormThread *sum, int64_t *limbs, float g) {
  if (!(fabsf(g) < 0x1p21f)) { norm_add(sum, limbs, g); return; }             // so is NaN
  const double x = (double)g, magic[3] = {0x1.8p-58, 0x1.8p-7, 0x1.8p44};     // norm_level_magic(k)
  double rest = 0.0;
  UNROLL for (int k = 2; k >= 0; k--) {
    const double t = k == 2 ? fma(x, x, magic[k]) : rest + magic[k];
    sum->level[k] += (int64_t)(norm_bits(t) - norm_bits(magic[k]));
    rest = k == 2 ? fma(x, x, magic[k] - t) : rest + (magic[k] - t);
  }
}
// word += level[k] * 2^(51 k) for all k, modulo 2^192.
__device__ static inline void norm_join(NormThread *sum) {
  UNROLL for (int k = 0; k < 3; k++) {
    const int64_t x = sum->level[k], sign = x >> 63;
    const uint64_t add[3] = {k == 2 ? 0 : (uint64_t)x << 51 * (k & 1),
                             k == 2 ? (uint64_t)x << 38 : (uint64_t)(k ? x >> 13 : sign),
                             (uint64_t)(k == 2 ? x >> 26 : sign)};
    uint64_t carry = 0;
    UNROLL for (int j = 0; j < 3; j++) {
      const uint64_t with = sum->word[j] + carry;
      carry = with < carry;
      sum->word[j] = with + add[j];
      carry += sum->word[j] < add[j];
    }
  }
}
template <int W, bool FP64, class T>
__device__ static inline void norm_add_lanes(NormThread *sum, int64_t *limbs, const T *grad, const T *less) {
  Lanes<W> g = lanes_load<W>(grad);
  if (less) {
    const Lanes<W> b = lanes_load<W>(less);
    UNROLL for (int i = 0; i < W; i++) g.x[i] -= b.x[i];
  }
  UNROLL for (int i = 0; i < W; i++) FP64 ? norm_add_fp64(sum, limbs, g.x[i]) : norm_add(sum, limbs, g.x[i]);
}
// Shared memory: part[digit][thread], 14 KiB; first every thread writes its own digits, then a warp adds each digit.
template <int W, bool FP64, class T>
__global__ static void __launch_bounds__(FLAT_THREADS)
norm_kernel(int64_t *limbs, const T *grad, const T *less, int64_t n) {
  SHARED(uint64_t, part, NORM_SUMS * FLAT_THREADS);
  NormThread sum = {};
  FLAT_WALK(W, n, i, (norm_add_lanes<W, FP64>(&sum, limbs, grad + i, less ? less + i : less)),
            (norm_add_lanes<1, FP64>(&sum, limbs, grad + i, less ? less + i : less)));
  if (FP64) norm_join(&sum);
  const int t = (int)threadIdx.x, digit = t / WARP, lane = t % WARP;
  UNROLL for (int k = 0; k < NORM_DIGITS; k++)
    part[k * FLAT_THREADS + t] = k & 1 ? sum.word[k / 2] >> 32 : sum.word[k / 2] & 0xffffffffu;
  part[NORM_DIGITS * FLAT_THREADS + t] = sum.nonfinite;
  __syncthreads();
  uint64_t total = 0;
  if (digit < NORM_SUMS)
    for (int k = lane; k < FLAT_THREADS; k += WARP) total += part[digit * FLAT_THREADS + k];
  __syncthreads();
  part[t] = total;
  __syncthreads();
  if (t >= NORM_SUMS) return;
  total = 0;
  for (int k = 0; k < WARP; k++) total += part[t * WARP + k];
  norm_add_limb(limbs, t < NORM_DIGITS ? t : NORM_NONFINITE, total);
}
template <int W, bool FP64, class T>
static void norm_start(Ctx *c, int64_t *limbs, const T *x, const T *less, int64_t n) {
  for (int64_t at = 0; at < n; at += NORM_LAUNCH) {
    const int64_t count = n - at < NORM_LAUNCH ? n - at : NORM_LAUNCH;
    LAUNCH((norm_kernel<W, FP64, T>), flat_blocks(count, W), FLAT_THREADS, 0, STREAM(c), limbs, x + at,
           less ? less + at : less, count);
  }
}
// Adds the squares of x, or, where less is not NULL, of x - less.
template <class T> static void norm_launch(Ctx *c, int64_t *limbs, const T *x, const T *less, int64_t n) {
  const bool wide = lanes_aligned(x, less);
  if (norm_in_fp64(c)) (wide ? norm_start<LANES_FLAT, true, T> : norm_start<1, true, T>)(c, limbs, x, less, n);
  else (wide ? norm_start<LANES_FLAT, false, T> : norm_start<1, false, T>)(c, limbs, x, less, n);
}
#if FAMILY(optimizer)
void norm_accumulate_impl(Ctx *c, int64_t *limbs, Tensor grad) {
  norm_launch<float>(c, limbs, (const float *)grad.data, NULL, numel(grad));
}
void norm_change_impl(Ctx *c, int64_t *limbs, Tensor now, Tensor before) {
  norm_launch<float>(c, limbs, (const float *)now.data, (const float *)before.data, numel(now));
}
#endif
