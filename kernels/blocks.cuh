// blocks.cuh: blocks of numbers (blocks.h) into numbers of a dtype that computes.
//
//   blocks_expand   out[i] = value i of the blocks in `in`, in fp32, rounded once to out's dtype, as parameters are
//                   (master.cuh): so it is what would be stored of it
//
// out (n), fp32, bf16 or fp16, on CUDA aligned to 16 bytes; in: the n / values blocks, as bytes, or n numbers of fp16.
#pragma once
#include "ops_blocks.h"
#include "master.cuh"

#if PART_LAUNCHERS
// Overwrites out from blocks of a type of more than one value, or of fp16.
void blocks_expand(Ctx *c, Tensor out, Tensor in, int type) {
  CHECK_DTYPE(in, BLOCKS);
  CHECK(dtype_floats(out.dtype), "blocks_expand: out is %s", dtype_name(out.dtype));
  CHECK((block_values(type) > 1 || type == BLOCK_F16) && numel(out) % block_values(type) == 0 &&
        numel(in) == blocks_bytes(type, numel(out)), "blocks_expand: %lld bytes of type %d to %lld elements",
        (long long)numel(in), type, (long long)numel(out));
  CALL_OP(c, blocks, blocks_expand, out, in, type);
}
#endif

#if PART_CPU
#include "kernels/cpu/block_vec.h"
template <class T> static void blocks_walk(Ctx *c, T *out, const uint8_t *in, int64_t blocks, int type) {
  const BlockDecoder of = block_decoder(type);
  const int piece = 4096 / of.values;
  parallel_for(blocks > 4 * piece ? c->threads : 1, 0, blocks, piece, [=](int64_t at) {
    const int64_t end = at + piece < blocks ? at + piece : blocks;
    alignas(64) float values[BLOCK_VALUES_MAX];
    for (int64_t b = at; b < end; b++) {
      of.block(values, in + b * of.bytes, 0, of.values / BLOCK_RUN, block_to_bf16((T *)NULL));
      for (int i = 0; i < of.values; i += VF) block_store(out + b * of.values + i, vf_load(values + i));
    }
  });
}
#endif

#if PART_CUDA
// A thread makes eight neighbouring values, half of a run.
template <int TYPE, class T>
__global__ static void __launch_bounds__(FLAT_THREADS) blocks_expand_kernel(T *out, const uint8_t *in, int64_t halves) {
  constexpr int values = block_values(TYPE), bytes = block_bytes(TYPE), in_block = values / LANES;
  int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  for (; at < halves; at += (int64_t)gridDim.x * blockDim.x) {
    const uint8_t *b = in + at / in_block * bytes;
    const int half = (int)(at % in_block);
    Lanes<LANES> x;
    UNROLL for (int i = 0; i < LANES; i++) x.x[i] = block_value<TYPE>(b, half / 2, half % 2 * LANES + i);
    param_store(out + at * LANES, x, LaneCount<LANES>());
  }
}
template <class T> static void blocks_walk(Ctx *c, T *out, const uint8_t *in, int64_t blocks, int type) {
  const int64_t halves = blocks * (block_values(type) / LANES);
  CHECK(lanes_aligned(out), "blocks_expand: out, at %p, is not aligned to 16 bytes", (void *)out);
  BLOCK_DISPATCH(type, TYPE, LAUNCH((blocks_expand_kernel<TYPE, T>), flat_blocks(halves, 1), FLAT_THREADS, 0, STREAM(c),
                                    out, in, halves));
}
#endif

#if PART_CPU || PART_CUDA
template <class T> struct HalvesOp {
  T *out;
  const fp16 *in;
  template <class N> LANES_OF void at(int64_t i, N n) const { param_store(out + i, vf_load_n(in + i, n), n); }
};
void blocks_expand_impl(Ctx *c, Tensor out, Tensor in, int type) {
  const int64_t n = numel(out);
  DISPATCH(out.dtype, T, {
    T *to = (T *)out.data;
    if (type == BLOCK_F16) flat(c, HalvesOp<T>{to, (const fp16 *)in.data}, n, to, (const fp16 *)in.data);
    else blocks_walk(c, to, (const uint8_t *)in.data, n / block_values(type), type);
  });
}
#endif
