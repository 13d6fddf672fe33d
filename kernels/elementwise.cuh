// elementwise.cuh: conversions, sums and random numbers over flat ranges. All tensors are (n), any shape of n elements.
//
//   convert       out = in, rounded to out's dtype                        (float, bf16, fp16 in any pair)
//   accumulate    sum = in[0] + in[1] + ... (OVERWRITE) or ((sum + in[0]) + in[1]) + ... (ADD), fp32, rounded at each
//                 addition: the same bits as one call per summand, OVERWRITE first
//   fill          out = value, fp32
//   normal_fill   out[i] = std N(0,1), a function of (seed, tensor, offset + i) alone: any split of a tensor into
//                 ranges gives the same numbers
//
// The normals: Philox (random.h) at counter (offset + i) / 4 gives four words, each pair (w0, w1) two normals by Box &
// Muller 1958: r = sqrt(-2 ln u), u = (w0 / 2^9 + 1/2) 2^-23, and r cos(2 pi t), r sin(2 pi t), t = (w1 / 2^8) 2^-24.
// |z| <= sqrt(48 ln 2) = 5.77. fp32 with our own ln and sin: the same bits on every machine.
#pragma once
#include "ops.h"
#if PART_LAUNCHERS
// Overwrites out. in may be out when the dtypes are equal.
void convert(Ctx *c, Tensor out, Tensor in) {
  CHECK(numel(out) == numel(in), "convert: %lld elements to %lld", (long long)numel(in), (long long)numel(out));
  CHECK(dtype_floats(out.dtype) && dtype_floats(in.dtype), "convert: from %s to %s", dtype_name(in.dtype),
        dtype_name(out.dtype));
  CALL_OP(c, convert, out, in);
}

// sum fp32; mode says whether it is overwritten or added to. Each summand has sum's number of elements; on a CPU a
// summand may be sum itself. On a CPU an overwritten sum does not stay in cache, so the caller should not need it soon.
void accumulate(Ctx *c, Tensor sum, Summands in, Accumulate mode) {
  CHECK(in.count > 0 && in.count <= SUMMANDS_MAX, "accumulate: %d summands", in.count);
  CHECK_DTYPE(sum, F32);
  CHECK(dtype_floats(in.dtype), "accumulate: in is %s", dtype_name(in.dtype));
  CALL_OP(c, accumulate, sum, in, mode);
}

// Overwrites out, fp32.
void fill(Ctx *c, Tensor out, float value) {
  CHECK_DTYPE(out, F32);
  CALL_OP(c, fill, out, value);
}

// Overwrites out (fp32) with elements offset .. offset + n - 1 of random tensor `tensor`.
void normal_fill(Ctx *c, Tensor out, uint64_t seed, uint32_t tensor, int64_t offset, float std) {
  CHECK_DTYPE(out, F32);
  CHECK(offset >= 0, "normal_fill: offset %lld", (long long)offset);
  CALL_OP(c, normal_fill, out, seed, tensor, offset, std);
}
#endif

#if PART_CPU
#include "random.h"

static const int64_t ELEMENTWISE_PIECE = 4096;   // elements that a thread takes at a time; a multiple of VF

template <class O, class I> static void convert_range(Ctx *c, O *out, const I *in, int64_t n) {
  parallel_for(n > 4 * ELEMENTWISE_PIECE ? c->threads : 1, 0, n, ELEMENTWISE_PIECE, [=](int64_t at) {
    const int64_t end = at + ELEMENTWISE_PIECE < n ? at + ELEMENTWISE_PIECE : n;
    int64_t i = at;
    for (; i + VF <= end; i += VF) vf_store(out + i, vf_load(in + i));
    if (i < end) vf_store_n(out + i, vf_load_n(in + i, end - i), end - i);
  });
}
void convert_impl(Ctx *c, Tensor out, Tensor in) {
  const int64_t n = numel(in);
  if (out.dtype == in.dtype) {
    if (out.data != in.data) copy_impl(c, out.data, in.data, (size_t)n * dtype_bytes(in.dtype));
    return;
  }
  DISPATCH(out.dtype, O, DISPATCH(in.dtype, I, convert_range<O, I>(c, (O *)out.data, (const I *)in.data, n)));
}

template <class T, bool ADDS> INLINE vf accumulate_lanes(const float *sum, const Summands *in, int64_t i, int64_t n) {
  vf s = vf_load_n((const T *)in->data[0] + i, n);
  if (ADDS) s = vf_add(vf_load_n(sum + i, n), s);
  for (int k = 1; k < in->count; k++) s = vf_add(s, vf_load_n((const T *)in->data[k] + i, n));
  return s;
}
// A gradient shard is overwritten once and not read before the end of the step, when it has left every cache.
// Non-temporal stores avoid reading it from memory first. On Zen 4 this halves the op's time (0.42-0.54 of its time for
// one summand, 0.47-0.69 for two). If the sum is also a summand, it has been read already.
template <class T, bool ADDS> static void accumulate_range(Ctx *c, float *sum, Summands summands, int64_t n) {
  bool passes = !ADDS && (uintptr_t)sum % 64 == 0;
  for (int k = 0; k < summands.count; k++) passes = passes && summands.data[k] != sum;
  parallel(n > 4 * ELEMENTWISE_PIECE ? c->threads : 1, [=](int thread, int threads) {
    const Summands in = summands;
    const ThreadShare mine = thread_share(n, ELEMENTWISE_PIECE, thread, threads);
    for (int64_t at = mine.begin; at < mine.end; at += ELEMENTWISE_PIECE) {
      const int64_t end = at + ELEMENTWISE_PIECE < n ? at + ELEMENTWISE_PIECE : n;
      int64_t i = at;
      for (; passes && i + VF <= end; i += VF) vf_pass(sum + i, accumulate_lanes<T, ADDS>(sum, &in, i, VF));
      for (; i + VF <= end; i += VF) vf_store(sum + i, accumulate_lanes<T, ADDS>(sum, &in, i, VF));
      if (i < end) vf_store_n(sum + i, accumulate_lanes<T, ADDS>(sum, &in, i, end - i), end - i);
    }
    if (passes) vf_passed();
  });
}
void accumulate_impl(Ctx *c, Tensor sum, Summands in, Accumulate mode) {
  DISPATCH(in.dtype, T, {
    if (mode == ADD) accumulate_range<T, true>(c, (float *)sum.data, in, numel(sum));
    else accumulate_range<T, false>(c, (float *)sum.data, in, numel(sum));
  });
}

void fill_impl(Ctx *, Tensor out, float value) {
  for (int64_t i = 0; i < numel(out); i++) ((float *)out.data)[i] = value;
}

// sin(2 pi t) for 0 <= t < 5/4: t is reduced to a quarter turn around 0 without error; then the Taylor polynomial of
// degree 13 in 2 pi t, whose remainder (pi/2)^15 / 15! = 7e-10 is below fp32 precision.
INLINE vf normal_sin_turns(vf t) {
  t = vf_sub(t, vf_round(t));                                                 // [-1/2, 1/2]
  const vi sign = vi_and(vf_bits(t), vi_set1(INT32_MIN));
  vf size = vi_as_float(vi_xor(vf_bits(t), sign));
  size = vf_min(size, vf_sub(vf_set1(0.5f), size));                           // sin(pi - x) = sin x
  const vf x = vi_as_float(vi_or(vf_bits(vf_mul(size, vf_set1(6.28318531f))), sign)), z = vf_mul(x, x);
  vf p = vf_set1(1.60590438e-10f);
  p = vf_fma(p, z, vf_set1(-2.50521084e-8f));
  p = vf_fma(p, z, vf_set1(2.75573192e-6f));
  p = vf_fma(p, z, vf_set1(-1.98412698e-4f));
  p = vf_fma(p, z, vf_set1(8.33333333e-3f));
  p = vf_fma(p, z, vf_set1(-1.66666667e-1f));
  return vf_fma(vf_mul(p, z), x, x);
}
// Sixteen normals of four neighbouring counters. Even lanes: cosine of a pair, odd lanes: sine.
INLINE vf normal16(uint64_t seed, uint32_t tensor, int64_t counter) {
  Philox first = {(uint32_t)counter, (uint32_t)((uint64_t)counter >> 32), tensor, UINT32_MAX};
  const vi words = philox16(seed, first);
  alignas(64) static const float quarter[VF] = {.25f, 0, .25f, 0, .25f, 0, .25f, 0, .25f, 0, .25f, 0, .25f, 0, .25f, 0};
  const vf half = vf_set1(0.5f);
  vf u = vf_mul(vf_add(vi_to_float(vi_shr(vi_evens(words), 9)), half), vf_set1(0x1p-23f));
  vf t = vf_mul(vi_to_float(vi_shr(vi_odds(words), 8)), vf_set1(0x1p-24f));
  vf r = vf_sqrt(vf_mul(vf_log(u), vf_set1(-2.0f)));
  return vf_mul(r, normal_sin_turns(vf_add(t, vf_load(quarter))));
}
// Groups of sixteen start at multiples of 16 of the tensor, wherever the range starts.
void normal_fill_impl(Ctx *c, Tensor out, uint64_t seed, uint32_t tensor, int64_t offset, float std) {
  float *to = (float *)out.data;
  const int64_t end = offset + numel(out), first = offset / VF, last = (end + VF - 1) / VF;
  parallel_for(last - first > 1024 ? c->threads : 1, first, last, 1, [=](int64_t group) {
    const vf z = vf_mul(normal16(seed, tensor, group * 4), vf_set1(std));
    const int64_t at = group * VF - offset;
    if (at >= 0 && at + VF <= end - offset) { vf_store(to + at, z); return; }
    float part[VF];
    vf_store(part, z);
    for (int i = 0; i < VF; i++) if (at + i >= 0 && at + i < end - offset) to[at + i] = part[i];
  });
}
#endif

#if PART_CUDA
#include "kernels/cuda/lane.cuh"

// Flat ranges: four elements per thread and iteration, one if a pointer is not aligned to 16 bytes.
template <class O, class I, int W>
__global__ static void __launch_bounds__(FLAT_THREADS) convert_kernel(O *out, const I *in, int64_t n) {
  FLAT_WALK(W, n, i, lanes_store<W>(out + i, lanes_load<W>(in + i)), lanes_store<1>(out + i, lanes_load<1>(in + i)));
}
void convert_impl(Ctx *c, Tensor out, Tensor in) {
  const int64_t n = numel(in);
  if (out.dtype == in.dtype) {
    if (out.data != in.data) copy_impl(c, out.data, in.data, (size_t)n * dtype_bytes(in.dtype));
    return;
  }
  const bool aligned = lanes_aligned(out.data, in.data);
  const unsigned blocks = flat_blocks(n, aligned ? LANES_FLAT : 1);
  DISPATCH(out.dtype, O, DISPATCH(in.dtype, I, {
    if (aligned) LAUNCH((convert_kernel<O, I, LANES_FLAT>), blocks, FLAT_THREADS, 0, STREAM(c), (O *)out.data,
                        (const I *)in.data, n);
    else LAUNCH((convert_kernel<O, I, 1>), blocks, FLAT_THREADS, 0, STREAM(c), (O *)out.data, (const I *)in.data, n);
  }));
}

template <int W, class T> __device__ static inline void accumulate_lanes(float *sum, const T *in) {
  Lanes<W> s = lanes_load<W>(sum);
  const Lanes<W> x = lanes_load<W>(in);
  UNROLL for (int k = 0; k < W; k++) s.x[k] += x.x[k];
  lanes_store<W>(sum, s);
}
template <class T, int W>
__global__ static void __launch_bounds__(FLAT_THREADS) accumulate_kernel(float *sum, const T *in, int64_t n) {
  FLAT_WALK(W, n, i, accumulate_lanes<W>(sum + i, in + i), accumulate_lanes<1>(sum + i, in + i));
}
static void accumulate_one(Ctx *c, Tensor sum, Tensor in) {
  const int64_t n = numel(sum);
  const bool aligned = lanes_aligned(sum.data, in.data);
  const unsigned blocks = flat_blocks(n, aligned ? LANES_FLAT : 1);
  float *s = (float *)sum.data;
  DISPATCH(in.dtype, T, {
    const T *x = (const T *)in.data;
    if (aligned) LAUNCH((accumulate_kernel<T, LANES_FLAT>), blocks, FLAT_THREADS, 0, STREAM(c), s, x, n);
    else LAUNCH((accumulate_kernel<T, 1>), blocks, FLAT_THREADS, 0, STREAM(c), s, x, n);
  });
}
void accumulate_impl(Ctx *c, Tensor sum, Summands in, Accumulate mode) {
  for (int k = 0; k < in.count; k++) {
    const Tensor x = tensor_of((void *)in.data[k], in.dtype, numel(sum));
    if (k == 0 && mode == OVERWRITE) convert_impl(c, sum, x);
    else accumulate_one(c, sum, x);
  }
}

template <int W>
__global__ static void __launch_bounds__(FLAT_THREADS) fill_kernel(float *out, float value, int64_t n) {
  FLAT_WALK(W, n, i, lanes_store<W>(out + i, lanes_of<W>(value)), out[i] = value);
}
void fill_impl(Ctx *c, Tensor out, float value) {
  const int64_t n = numel(out);
  float *to = (float *)out.data;
  const bool aligned = lanes_aligned(to);
  const unsigned blocks = flat_blocks(n, aligned ? LANES_FLAT : 1);
  if (aligned) LAUNCH(fill_kernel<LANES_FLAT>, blocks, FLAT_THREADS, 0, STREAM(c), to, value, n);
  else LAUNCH(fill_kernel<1>, blocks, FLAT_THREADS, 0, STREAM(c), to, value, n);
}

// The CPU's normal_sin_turns and normal16 for one lane, operation by operation: the same bits.
__device__ static inline float normal_sin_turns(float t) {
  t -= rintf(t);
  const uint32_t sign = f32_bits(t) & 0x80000000u;
  float size = bits_f32(f32_bits(t) ^ sign);
  size = fminf(size, 0.5f - size);
  const float x = bits_f32(f32_bits(size * 6.28318531f) | sign), z = x * x;
  float p = 1.60590438e-10f;
  p = fmaf(p, z, -2.50521084e-8f);
  p = fmaf(p, z, 2.75573192e-6f);
  p = fmaf(p, z, -1.98412698e-4f);
  p = fmaf(p, z, 8.33333333e-3f);
  p = fmaf(p, z, -1.66666667e-1f);
  return fmaf(p * z, x, x);
}
__device__ static inline void normal_pair(float *to, uint32_t first, uint32_t second, float std) {
  const float u = ((float)(first >> 9) + 0.5f) * 0x1p-23f, t = (float)(second >> 8) * 0x1p-24f;
  const float r = sqrtf(lane_log(u) * -2.0f);
  to[0] = r * normal_sin_turns(t + 0.25f) * std;
  to[1] = r * normal_sin_turns(t) * std;
}
// A thread makes the four normals of a counter; counters begin at multiples of 4 of the tensor, wherever the range
// starts.
__global__ static void __launch_bounds__(FLAT_THREADS)
normal_fill_kernel(float *to, int64_t n, uint64_t seed, uint32_t tensor, int64_t offset, float std) {
  const int64_t first = offset / 4, last = (offset + n + 3) / 4;
  int64_t group = first + (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  for (; group < last; group += (int64_t)gridDim.x * blockDim.x) {
    const Philox w = philox4x32(seed, {(uint32_t)group, (uint32_t)((uint64_t)group >> 32), tensor, UINT32_MAX});
    Pack<float> z;
    normal_pair(z.x, w.x, w.y, std);
    normal_pair(z.x + 2, w.z, w.w, std);
    const int64_t at = group * 4 - offset;
    if (at >= 0 && at + 4 <= n && ((uintptr_t)(to + at) & 15) == 0) { store_pack(to + at, z); continue; }
    UNROLL for (int i = 0; i < 4; i++) if (at + i >= 0 && at + i < n) to[at + i] = z.x[i];
  }
}
void normal_fill_impl(Ctx *c, Tensor out, uint64_t seed, uint32_t tensor, int64_t offset, float std) {
  const int64_t n = numel(out);
  LAUNCH(normal_fill_kernel, flat_blocks(n + 4, 4), FLAT_THREADS, 0, STREAM(c), (float *)out.data, n, seed, tensor,
         offset, std);
}
#endif
