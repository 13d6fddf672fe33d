// gelu.cuh: GELU, tanh form (Hendrycks and Gimpel 2016), and its derivative.
//
//   forward   out = x/2 (1 + tanh u) = x / (1 + e^-2u),  u = sqrt(2/pi) (x + 0.044715 x^3),  x = in
//
// in and out: one dtype, any shape, element by element; fp32 arithmetic (vec.h), rounded once when stored. The result
// depends on in's bits alone: matmul_forward stores the same bits in e.gelu beside its `out`, on every device, so a
// backward pass can recompute a GELU that the forward pass did not keep. A NaN stays a NaN.
// The derivative has no separate op: matmul_backward_input multiplies by it.
#pragma once
#include "ops.h"
#if PART_LAUNCHERS
// Overwrites out, which may be in's own memory, but must not overlap it otherwise.
void gelu_forward(Ctx *c, Tensor out, Tensor in) {
  CHECK(numel(out) == numel(in), "gelu_forward: %lld elements to %lld", (long long)numel(in), (long long)numel(out));
  CHECK(in.dtype != I32, "gelu_forward: in is %s", dtype_name(in.dtype));
  CHECK_DTYPE(out, in.dtype);
  CALL_OP(c, gelu_forward, out, in);
}
#endif

#if PART_CPU
#include "kernels/cpu/vec.h"

static const int64_t GELU_PIECE = 2048;          // elements that a thread takes at a time, about 2 us; a multiple of VF

template <class T> static void gelu_range(Ctx *c, T *out, const T *in, int64_t n) {
  parallel_for(n > 4 * GELU_PIECE ? c->threads : 1, 0, n, GELU_PIECE, [=](int64_t at) {
    const int64_t end = at + GELU_PIECE < n ? at + GELU_PIECE : n;
    int64_t i = at;
    for (; i + VF <= end; i += VF) vf_store(out + i, vf_gelu(vf_load(in + i)));
    if (i < end) vf_store_n(out + i, vf_gelu(vf_load_n(in + i, end - i)), end - i);
  });
}
void gelu_forward_impl(Ctx *c, Tensor out, Tensor in) {
  DISPATCH(in.dtype, T, gelu_range<T>(c, (T *)out.data, (const T *)in.data, numel(in)));
}
#endif

#if PART_CUDA
#include "kernels/cuda/lane.cuh"

// The operations of vec.h's vf_exp2, vf_gelu and vf_gelu_grad one by one: the same bits as on the CPU.
__device__ static inline float gelu_exp2(float x) {
  const bool tiny = x < -126.0f;
  x = x > 128.0f ? 128.0f : x;                   // a comparison keeps a NaN; fminf would not
  const float shift = 12582912.0f + 127.0f, t = x + shift, f = x - (t - shift);
  float p = 0.0001535336196f;
  p = fmaf(p, f, 0.001339887385f);
  p = fmaf(p, f, 0.009618436918f);
  p = fmaf(p, f, 0.05550332367f);
  p = fmaf(p, f, 0.2402264774f);
  p = fmaf(p, f, 0.6931471825f);
  p = fmaf(p, f, 1.0f);
  return tiny ? 0.0f : p * bits_f32(f32_bits(t) << 23);
}
__device__ static inline float gelu_divisor(float x, float x2) {
  return 1.0f + gelu_exp2(x * fmaf(x2, -0.10294323958f, -2.30220819814f));
}
__device__ static inline float gelu(float x) { return x / gelu_divisor(x, x * x); }
__device__ static inline float gelu_grad(float x) {
  const float x2 = x * x, s = 1.0f / gelu_divisor(x, x2);
  return fmaf(x * (s * (1.0f - s)), fmaf(x2, 0.2140644488178f, 1.59576912161f), s);
}

// GRAD: y *= GELU'(x), else y = GELU(x). Memory-bound: 8 elements per thread and iteration, in 16-byte pieces.
template <bool GRAD, int W, class T> __device__ static inline void gelu_lanes(T *y, const T *x) {
  Lanes<W> v = lanes_load<W>(x);
  if constexpr (GRAD) {
    const Lanes<W> d = lanes_load<W>((const T *)y);
    UNROLL for (int i = 0; i < W; i++) v.x[i] = d.x[i] * gelu_grad(v.x[i]);
  } else {
    UNROLL for (int i = 0; i < W; i++) v.x[i] = gelu(v.x[i]);
  }
  lanes_store(y, v);
}
template <bool GRAD, int W, class T>
__global__ static void __launch_bounds__(FLAT_THREADS) gelu_kernel(T *y, const T *x, int64_t n) {
  FLAT_WALK(W, n, i, (gelu_lanes<GRAD, W>(y + i, x + i)), (gelu_lanes<GRAD, 1>(y + i, x + i)));
}
// y and x of one dtype; they may be the same memory.
template <bool GRAD> static void gelu_launch(Ctx *c, Tensor y, Tensor x) {
  const int64_t n = numel(y);
  DISPATCH(y.dtype, T, {
    if (lanes_aligned(y.data, x.data))
      LAUNCH((gelu_kernel<GRAD, LANES, T>), dim3(flat_blocks(n, LANES)), dim3(FLAT_THREADS), 0, STREAM(c), (T *)y.data,
             (const T *)x.data, n);
    else
      LAUNCH((gelu_kernel<GRAD, 1, T>), dim3(flat_blocks(n, 1)), dim3(FLAT_THREADS), 0, STREAM(c), (T *)y.data,
             (const T *)x.data, n);
  });
}
#if FAMILY(pointwise)
void gelu_forward_impl(Ctx *c, Tensor out, Tensor in) { gelu_launch<false>(c, out, in); }
#endif
#endif
