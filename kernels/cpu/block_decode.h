// block_decode.h: values of quantization blocks (kernels/blocks.h) in fp32, and their rounding to the dtype of a
// product. Whoever packs or multiplies blocks gets the functions of their type when it runs: so each type is compiled
// once for an instruction set, and not once for each dtype and each use. CPU sections only.
#pragma once
#include "kernels/blocks.h"
#include "kernels/master.cuh"

// Of a type. Memory is written in whole vectors. bf: of values that are rounded to bf16, no NaN has a lower half, which
// would carry.
struct BlockDecoder {
  int values, bytes;                             // of a block
  // to[i][l] = value 32 part + i of the block at byte `at` of row[l], for 32 values of 16 rows.
  void (*lanes)(float *to, const uint8_t *const *row, int64_t at, int part, bool bf);
  // to[i] = value i of one block, for `runs` runs of 16 from run `first` on.
  void (*block)(float *to, const uint8_t *b, int first, int runs, bool bf);
};
IMPL(block_decoder, ISA_OF_VECTORS, BlockDecoder block_decoder(int type))

// ---- rounding, as that of parameters (master.cuh), of values that a decoder made
INLINE bool block_to_bf16(const void *) { return false; }
INLINE bool block_to_bf16(const bf16 *) { return true; }
INLINE vf block_rounded(vf x, float *) { return x; }
INLINE vf block_rounded(vf x, fp16 *to) { return vf_from_half_bits(vf_to_half_bits(x, to), to); }
INLINE vf block_rounded(vf x, bf16 *) {
  return vi_as_float(vi_and(vi_add(vf_bits(x), vi_set1(0x8000)), vi_set1((int)0xffff0000u)));
}
// Two of bf16, x lower.
INLINE vf block_pair(vf x, vf y) {
  return vi_as_float(vi_or(vi_shr(vi_add(vf_bits(x), vi_set1(0x8000)), 16), vf_bits(block_rounded(y, (bf16 *)NULL))));
}
template <class T> INLINE void block_store(T *to, vf x) { vf_store(to, x); }
INLINE void block_store(bf16 *to, vf x) { v16_store(to, param_lane_bits(vf_bits(x))); }
