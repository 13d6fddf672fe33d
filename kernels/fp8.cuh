// fp8.cuh: one-byte numbers (device.h: E4M3) and the scales that bring a tensor into their range.
//
//   absmax              to = max(to, largest |in[i]|), NaN and Inf counted as +Inf
//   fp8_scales          scale[j] = 2^-floor(log2(448 / a)), a = max over rows of amax[i,j]
//   fp8_encode          out[i] = in[i] / scale, rounded to nearest even and saturated at +-448; NaN stays NaN
//   fp8_decode          out[i] = in[i] scale, rounded to out's dtype
//   matmul_forward_fp8  out(M,N) = (in_scale in(M,K)) (weight_scale weight(N,K))^T + bias(N) on every row
//
// A scale is the factor for decoding: the value of a stored 1.0. There is one scale per tensor. It is a power of two,
// so encoding rounds once and decoding is exact (in fp32, and in bf16 while in its range). It is the smallest power of
// two that keeps the tensor at or below 448, so between half and all of the range is used. Every rank computes it from
// the maxima of all ranks, one row per rank: equal maxima give equal scales, whatever the order of ranks.
//
// Scales and maxima are fp32 in device memory and are read when the op runs.
#pragma once
#include "ops_loss.h"
#include "flat.cuh"

// The scale of a tensor whose largest magnitude is a = m 2^e, 1 <= m < 2: 448 = 1.75 2^8, hence 448 / a is in
// [2^(8-e), 2^(9-e)) for m <= 1.75, else in [2^(7-e), 2^(8-e)). The scale is at least 2^-126, so that it and 1 / scale
// are normal numbers; for a below 2^-118 part of the range stays unused. It is 1 if there is nothing to scale: a is 0,
// Inf or NaN.
HD float fp8_scale_of(float a) {
  const uint32_t u = f32_bits(a);
  if (u == 0 || u >= 0x7f800000u) return 1.0f;
  const int32_t exponent = (int32_t)(u >> 23) - 8 + ((u & 0x7fffffu) > 0x600000u);
  return bits_f32((uint32_t)(exponent < 1 ? 1 : exponent) << 23);
}
// fp8_scale_of for the maximum of column j of amax (rows, n). Bits of magnitudes sort as their values do, NaN above
// Inf.
HD float fp8_scale_of_column(const float *amax, int64_t rows, int64_t n, int64_t j) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < rows; i++) {
    const uint32_t u = f32_bits(amax[i * n + j]) & 0x7fffffffu;
    if (u > largest) largest = u;
  }
  return fp8_scale_of(bits_f32(largest));
}

#if PART_LAUNCHERS
// Raises `to` (1), fp32 and not negative, to the largest magnitude of `in` (n). Zero it first; several calls may
// collect several tensors. The result does not depend on the order of elements.
void absmax(Ctx *c, Tensor to, Tensor in) {
  CHECK_DTYPE(to, F32);
  CHECK_SHAPE(to, 1);
  CHECK(dtype_floats(in.dtype), "absmax: in is %s", dtype_name(in.dtype));
  CALL_OP(c, loss, absmax, to, in);
}
// Overwrites scale (n) from amax (rows, n), both fp32.
void fp8_scales(Ctx *c, Tensor scale, Tensor amax) {
  CHECK_DTYPE(scale, F32);
  CHECK_DTYPE(amax, F32);
  CHECK_SHAPE(amax, amax.shape[0], numel(scale));
  CHECK_SHAPE(scale, amax.shape[1]);
  CALL_OP(c, loss, fp8_scales, scale, amax);
}
// Overwrites out (n) fp8 from in (n) of a floating dtype. scale (1) is a power of two.
void fp8_encode(Ctx *c, Tensor out, Tensor in, Tensor scale) {
  CHECK(numel(out) == numel(in), "fp8_encode: %lld elements to %lld", (long long)numel(in), (long long)numel(out));
  CHECK(dtype_floats(in.dtype), "fp8_encode: in is %s", dtype_name(in.dtype));
  CHECK_DTYPE(out, F8);
  CHECK_DTYPE(scale, F32);
  CHECK_SHAPE(scale, 1);
  CALL_OP(c, loss, fp8_encode, out, in, scale);
}
// Overwrites out (n) of a floating dtype from in (n) fp8.
void fp8_decode(Ctx *c, Tensor out, Tensor in, Tensor scale) {
  CHECK(numel(out) == numel(in), "fp8_decode: %lld elements to %lld", (long long)numel(in), (long long)numel(out));
  CHECK(dtype_floats(out.dtype), "fp8_decode: out is %s", dtype_name(out.dtype));
  CHECK_DTYPE(in, F8);
  CHECK_DTYPE(scale, F32);
  CHECK_SHAPE(scale, 1);
  CALL_OP(c, loss, fp8_decode, out, in, scale);
}
// Overwrites out (M,N) bf16. bias (N) bf16, or absent. M, N and K must be multiples of 16, as tensor cores require.
void matmul_forward_fp8(Ctx *c, Tensor out, Tensor in, Tensor in_scale, Tensor weight,
                        Tensor weight_scale, Tensor bias) {
  CHECK_SHAPE(in, out.shape[0], weight.shape[1]);
  CHECK_SHAPE(out, in.shape[0], weight.shape[0]);
  CHECK_SHAPE(weight, out.shape[1], in.shape[1]);
  CHECK_DTYPE(out, BF16);
  CHECK_DTYPE(in, F8);
  CHECK_DTYPE(weight, F8);
  CHECK_DTYPE(in_scale, F32);
  CHECK_SHAPE(in_scale, 1);
  CHECK_DTYPE(weight_scale, F32);
  CHECK_SHAPE(weight_scale, 1);
  if (bias.data) { CHECK_SHAPE(bias, weight.shape[0]); CHECK_DTYPE(bias, BF16); }
  CHECK(in.shape[0] % 16 == 0 && weight.shape[0] % 16 == 0 && in.shape[1] % 16 == 0,
        "matmul_forward_fp8: %lldx%lldx%lld, needs multiples of 16", (long long)in.shape[0],
        (long long)weight.shape[0], (long long)in.shape[1]);
  CALL_OP(c, loss, matmul_forward_fp8, out, in, in_scale, weight, weight_scale, bias);
}
#endif

#if PART_CPU || PART_CUDA
struct Fp8Factor { float by; };
// out = in * factor, rounded to out's type; factor is the scale (decode) or its reciprocal (ENCODE), which is exact for
// a power of two. The product is exact, too, except where it is so small that fp8 stores 0.
template <bool ENCODE, class O, class I> struct Fp8Op {
  typedef Fp8Factor Factors;
  O *out;
  const I *in;
  const float *scale;
  LANES_OF Factors factors() const { return Factors{ENCODE ? 1.0f / *scale : *scale}; }
  template <class N> LANES_OF void at(int64_t i, N n, const Factors *f) const {
    auto x = vf_load_n(in + i, n);
    each(n, [f](vf &x) LANES_EACH { x = vf_mul(x, vf_set1(f->by)); }, x);
    vf_store_n(out + i, x, n);
  }
};
template <bool ENCODE, class O, class I> static void fp8_run(Ctx *c, Tensor out, Tensor in, Tensor scale) {
  const Fp8Op<ENCODE, O, I> op = {(O *)out.data, (const I *)in.data, (const float *)scale.data};
  flat_by(c, op, numel(in), op.out, op.in);
}
void fp8_encode_impl(Ctx *c, Tensor out, Tensor in, Tensor scale) {
  DISPATCH(in.dtype, T, (fp8_run<true, fp8, T>(c, out, in, scale)));
}
void fp8_decode_impl(Ctx *c, Tensor out, Tensor in, Tensor scale) {
  DISPATCH(out.dtype, T, (fp8_run<false, T, fp8>(c, out, in, scale)));
}
#endif

#if PART_CPU

template <class T> static int32_t absmax_range(Ctx *c, const T *in, int64_t n) {
  int32_t most = 0, *const of_all = &most;
  parallel(n > 4 * FLAT_PIECE ? c->threads : 1, [=](int thread, int threads) {
    const ThreadShare share = thread_share(n, FLAT_PIECE, thread, threads);
    int32_t mine = 0;
    for (int64_t at = share.begin; at < share.end; at += FLAT_PIECE) {
      const int32_t piece = vf_largest(in + at, at + FLAT_PIECE < n ? FLAT_PIECE : n - at);
      if (piece > mine) mine = piece;
    }
    thread_max(of_all, mine);
  });
  return most;
}
void absmax_impl(Ctx *c, Tensor to, Tensor in) {
  int32_t most = 0;
  DISPATCH(in.dtype, T, most = absmax_range<T>(c, (const T *)in.data, numel(in)));
  if (most > 0x7f800000) most = 0x7f800000;
  if ((uint32_t)most > f32_bits(*(float *)to.data)) *(float *)to.data = bits_f32((uint32_t)most);
}

void fp8_scales_impl(Ctx *, Tensor scale, Tensor amax) {
  for (int64_t j = 0; j < amax.shape[1]; j++)
    ((float *)scale.data)[j] = fp8_scale_of_column((const float *)amax.data, amax.shape[0], amax.shape[1], j);
}

// The definition, for tests and emulated devices: every element is one chain of fused multiply-adds from zero, k
// ascending; then both scales, then the bias. Eight columns at a time are eight independent chains.
struct Fp8Product { const fp8 *in, *weight; const bf16 *bias; bf16 *out; float in_scale, weight_scale; int64_t N, K; };
static void fp8_product_row(const Fp8Product *p, const float *value, int64_t m) {
  enum { COLUMNS = 8 };
  const fp8 *in = p->in + m * p->K;
  for (int64_t n = 0; n < p->N; n += COLUMNS) {
    const fp8 *weight = p->weight + n * p->K;
    float sum[COLUMNS] = {};
    for (int64_t k = 0; k < p->K; k++)
      for (int i = 0; i < COLUMNS; i++)
        sum[i] = fmaf(value[in[k].bits], value[weight[i * p->K + k].bits], sum[i]);
    for (int i = 0; i < COLUMNS; i++) {
      const float x = sum[i] * p->in_scale * p->weight_scale;
      round_to(p->out + m * p->N + n + i, p->bias ? x + to_f32(p->bias[n + i]) : x);
    }
  }
}
void matmul_forward_fp8_impl(Ctx *c, Tensor out, Tensor in, Tensor in_scale, Tensor weight, Tensor weight_scale,
                             Tensor bias) {
  const Fp8Product p = {(const fp8 *)in.data, (const fp8 *)weight.data, (const bf16 *)bias.data, (bf16 *)out.data,
                        *(const float *)in_scale.data, *(const float *)weight_scale.data, weight.shape[0],
                        weight.shape[1]};
  float value[256];
  for (int i = 0; i < 256; i++) value[i] = to_f32(fp8{(uint8_t)i});
  parallel_for(c->threads, 0, out.shape[0], 1, [=](int64_t m) { fp8_product_row(&p, value, m); });
}
#endif

#if PART_CUDA
template <int W, class T> __device__ static inline int32_t absmax_lanes(const T *in, int32_t most) {
  const Lanes<W> x = lanes_load<W>(in);
  UNROLL for (int k = 0; k < W; k++) most = max(most, (int32_t)(f32_bits(x.x[k]) & 0x7fffffffu));
  return most;
}
__device__ static inline int32_t absmax_warp(int32_t most) {
  UNROLL for (int d = WARP / 2; d; d /= 2) most = max(most, __shfl_xor_sync(FULL_WARP, most, d));
  return most;
}
// Non-negative floats sort as the integers of their bits: the largest is an integer maximum, in any order.
template <class T, int W>
__global__ static void __launch_bounds__(FLAT_THREADS) absmax_kernel(float *to, const T *in, int64_t n) {
  SHARED(int32_t, warps, WARP);
  const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
  int32_t most = 0;
  FLAT_WALK(W, n, i, most = absmax_lanes<W>(in + i, most), most = absmax_lanes<1>(in + i, most));
  most = absmax_warp(most);
  if (lane == 0) warps[warp] = most;
  __syncthreads();
  if (warp) return;
  most = absmax_warp(lane < FLAT_THREADS / WARP ? warps[lane] : 0);
  if (lane == 0 && most) atomicMax((int *)to, min(most, 0x7f800000));
}
void absmax_impl(Ctx *c, Tensor to, Tensor in) {
  const int64_t n = numel(in);
  float *t = (float *)to.data;
  DISPATCH(in.dtype, T, {
    const T *x = (const T *)in.data;
    if (lanes_aligned(x)) LAUNCH((absmax_kernel<T, LANES>), flat_blocks(n, LANES), FLAT_THREADS, 0, STREAM(c), t, x, n);
    else LAUNCH((absmax_kernel<T, 1>), flat_blocks(n, 1), FLAT_THREADS, 0, STREAM(c), t, x, n);
  });
}

__global__ static void __launch_bounds__(FLAT_THREADS)
fp8_scales_kernel(float *scale, const float *amax, int64_t rows, int64_t n) {
  int64_t j = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  for (; j < n; j += (int64_t)gridDim.x * blockDim.x) scale[j] = fp8_scale_of_column(amax, rows, n, j);
}
void fp8_scales_impl(Ctx *c, Tensor scale, Tensor amax) {
  const int64_t n = amax.shape[1];
  LAUNCH(fp8_scales_kernel, flat_blocks(n, 1), FLAT_THREADS, 0, STREAM(c), (float *)scale.data,
         (const float *)amax.data, amax.shape[0], n);
}
#endif
