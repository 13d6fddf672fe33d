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
#include "ops_pointwise.h"
#include "flat.cuh"
#if PART_LAUNCHERS
// Overwrites out. in may be out when the dtypes are equal.
void convert(Ctx *c, Tensor out, Tensor in) {
  CHECK(numel(out) == numel(in), "convert: %lld elements to %lld", (long long)numel(in), (long long)numel(out));
  CHECK(dtype_floats(out.dtype) && dtype_floats(in.dtype), "convert: from %s to %s", dtype_name(in.dtype),
        dtype_name(out.dtype));
  CALL_OP(c, pointwise, convert, out, in);
}

// sum fp32; mode says whether it is overwritten or added to. Each summand has sum's number of elements; on a CPU a
// summand may be sum itself. On a CPU an overwritten sum does not stay in cache, so the caller should not need it soon.
void accumulate(Ctx *c, Tensor sum, Summands in, Accumulate mode) {
  CHECK(in.count > 0 && in.count <= SUMMANDS_MAX, "accumulate: %d summands", in.count);
  CHECK_DTYPE(sum, F32);
  CHECK(dtype_floats(in.dtype), "accumulate: in is %s", dtype_name(in.dtype));
  CALL_OP(c, pointwise, accumulate, sum, in, mode);
}

// Overwrites out, fp32.
void fill(Ctx *c, Tensor out, float value) {
  CHECK_DTYPE(out, F32);
  CALL_OP(c, pointwise, fill, out, value);
}

// Overwrites out (fp32) with elements offset .. offset + n - 1 of random tensor `tensor`.
void normal_fill(Ctx *c, Tensor out, uint64_t seed, uint32_t tensor, int64_t offset, float std) {
  CHECK_DTYPE(out, F32);
  CHECK(offset >= 0, "normal_fill: offset %lld", (long long)offset);
  CALL_OP(c, pointwise, normal_fill, out, seed, tensor, offset, std);
}
#endif

#if PART_CPU || PART_CUDA
#include "random.h"

template <class O, class I> struct ConvertOp {
  O *out;
  const I *in;
  template <class N> LANES_OF void at(int64_t i, N n) const { vf_store_n(out + i, vf_load_n(in + i, n), n); }
};
void convert_impl(Ctx *c, Tensor out, Tensor in) {
  const int64_t n = numel(in);
  if (out.dtype == in.dtype) {
    if (out.data != in.data) copy_impl(c, out.data, in.data, (size_t)n * dtype_bytes(in.dtype));
    return;
  }
  DISPATCH(out.dtype, O, DISPATCH(in.dtype, I, {
    const ConvertOp<O, I> op = {(O *)out.data, (const I *)in.data};
    flat(c, op, n, op.out, op.in);
  }));
}

struct FillOp {
  float *out, value;
  template <class N> LANES_OF void at(int64_t i, N n) const { vf_store_n(out + i, vf_set_n(value, n), n); }
};
void fill_impl(Ctx *c, Tensor out, float value) {
  float *const to = (float *)out.data;
  flat(c, FillOp{to, value}, numel(out), to);
}

// r cos or r sin of the words of a pair: quarter is 1/4 for the cosine, else 0.
INLINE vf normal_of(vi first, vi second, vf quarter) {
  const vf u = vf_mul(vf_add(vi_to_float(vi_shr(first, 9)), vf_set1(0.5f)), vf_set1(0x1p-23f));
  const vf t = vf_mul(vi_to_float(vi_shr(second, 8)), vf_set1(0x1p-24f));
  return vf_mul(vf_sqrt(vf_mul(vf_log(u), vf_set1(-2.0f))), vf_sin_turns(vf_add(t, quarter)));
}
#endif

#if PART_CPU
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
  parallel(n > 4 * FLAT_PIECE ? c->threads : 1, [=](int thread, int threads) {
    const Summands in = summands;
    const ThreadShare mine = thread_share(n, FLAT_PIECE, thread, threads);
    for (int64_t at = mine.begin; at < mine.end; at += FLAT_PIECE) {
      const int64_t end = at + FLAT_PIECE < n ? at + FLAT_PIECE : n;
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

// Sixteen normals of four neighbouring counters. Even lanes: cosine of a pair, odd lanes: sine.
INLINE vf normal16(uint64_t seed, uint32_t tensor, int64_t counter) {
  Philox first = {(uint32_t)counter, (uint32_t)((uint64_t)counter >> 32), tensor, UINT32_MAX};
  const vi words = philox16(seed, first);
  alignas(64) static const float quarter[VF] = {.25f, 0, .25f, 0, .25f, 0, .25f, 0, .25f, 0, .25f, 0, .25f, 0, .25f, 0};
  return normal_of(vi_evens(words), vi_odds(words), vf_load(quarter));
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
template <class T> struct AccumulateOp {
  float *sum;
  const T *in;
  template <class N> LANES_OF void at(int64_t i, N n) const {
    auto s = vf_load_n(sum + i, n), x = vf_load_n(in + i, n);
    each(n, [](vf &s, vf x) LANES_EACH { s = vf_add(s, x); }, s, x);
    vf_store_n(sum + i, s, n);
  }
};
void accumulate_impl(Ctx *c, Tensor sum, Summands in, Accumulate mode) {
  for (int k = 0; k < in.count; k++) {
    const Tensor x = tensor_of((void *)in.data[k], in.dtype, numel(sum));
    if (k == 0 && mode == OVERWRITE) convert_impl(c, sum, x);
    else DISPATCH(in.dtype, T, {
      const AccumulateOp<T> op = {(float *)sum.data, (const T *)x.data};
      flat(c, op, numel(sum), op.sum, op.in);
    });
  }
}

// A thread makes the four normals of a counter; counters start at multiples of 4 of the tensor, wherever the range
// starts.
__global__ static void __launch_bounds__(FLAT_THREADS)
normal_fill_kernel(float *to, int64_t n, uint64_t seed, uint32_t tensor, int64_t offset, float std) {
  const int64_t first = offset / 4, last = (offset + n + 3) / 4;
  int64_t group = first + (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  for (; group < last; group += (int64_t)gridDim.x * blockDim.x) {
    const Philox w = philox4x32(seed, {(uint32_t)group, (uint32_t)((uint64_t)group >> 32), tensor, UINT32_MAX});
    Pack<float> z;
    UNROLL for (int i = 0; i < 4; i++)
      z.x[i] = normal_of((vi)(i < 2 ? w.x : w.z), (vi)(i < 2 ? w.y : w.w), i % 2 ? 0.0f : 0.25f) * std;
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
