// optimizer_cuda.cuh: the CUDA part of optimizer.cuh's exact norm.
#pragma once
#include "optimizer.cuh"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/lane.cuh"

// ---- exact norm ----------------------------------------------------------------------------------------------------
// A thread adds its squares to 192 bits in registers. Squares of |g| < 2^28 are below bit 166, which leaves room for
// 2^26 of them. Larger ones are added to the limbs one by one: only a diverged model has many. The threads' sums are
// cut into 32-bit digits, which a block adds in shared memory and then to the limbs; integer addition has no order.
//
// Where fp64 is fast (norm_in_fp64) a thread adds as norm_lanes of optimizer.cuh does, in half the instructions:
// multiples of 2^-8, 2^-59 and 2^-110 of squares below 2^42, each at most 2^50, are read off fp64 sums and added as
// integers; then they join the 192 bits. No square is halfway between two units of 2^-110: its lowest bit would be
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
  const NormSquare g2 = norm_square(bits);
  if (g2.shift > 118) { norm_add_large(limbs, g2.square, g2.shift); return; }
  const int within = g2.shift & 63;
  const uint64_t low = g2.square << within, high = g2.square >> 1 >> (63 - within);
  const bool up = g2.shift >= 64;
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
  if (grad.dtype == BF16) norm_launch<bf16>(c, limbs, (const bf16 *)grad.data, NULL, numel(grad));
  else norm_launch<float>(c, limbs, (const float *)grad.data, NULL, numel(grad));
}
void norm_change_impl(Ctx *c, int64_t *limbs, Tensor now, Tensor before) {
  norm_launch<float>(c, limbs, (const float *)now.data, (const float *)before.data, numel(now));
}
#endif
