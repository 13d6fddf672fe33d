// softcap.cuh: logits kept within (-cap, cap):  x <- cap tanh(x / cap)     (Gemma Team 2024, "Gemma 2", section 2)
//
// logits: fp32 or bf16, any shape, overwritten. tanh y = (1 - e) / (1 + e) with e = e^-2|y|, and y's sign; absolute
// error about cap 2^-23 before rounding. The derivative is part of cross_entropy_forward_backward.
#pragma once
#include "gelu.cuh"
#if PART_LAUNCHERS
void softcap_forward(Ctx *c, Tensor logits, float cap) {
  CHECK_DTYPE(logits, logits.dtype == BF16 ? BF16 : F32);
  CHECK(cap > 0.0f, "softcap_forward: a cap of %g", (double)cap);
  CALL_OP(c, softcap_forward, logits, cap);
}
#endif

#if PART_CPU
INLINE vf softcap_of(vf x, vf cap, vf inverse_cap) {
  const vf y = vf_mul(x, inverse_cap);
  const vi sign = vi_and(vf_bits(y), vi_set1(INT32_MIN));
  const vf size = vi_as_float(vi_xor(vf_bits(y), sign)), e = vf_exp2(vf_mul(size, vf_set1(-2.88539008f)));
  const vf t = vf_div(vf_sub(vf_set1(1.0f), e), vf_add(vf_set1(1.0f), e));
  return vf_mul(vi_as_float(vi_or(vf_bits(t), sign)), cap);
}
template <class X> static void softcap_range(Ctx *c, X *x, int64_t count, float cap) {
  const float inverse = 1.0f / cap;
  parallel_for(c->threads, 0, count, GELU_PIECE, [=](int64_t at) {
    const int64_t end = at + GELU_PIECE < count ? at + GELU_PIECE : count;
    for (int64_t i = at; i < end; i += VF)
      vf_store_n(x + i, softcap_of(vf_load_n(x + i, end - i), vf_set1(cap), vf_set1(inverse)), end - i);
  });
}
void softcap_forward_impl(Ctx *c, Tensor logits, float cap) {
  if (logits.dtype == BF16) softcap_range(c, (bf16 *)logits.data, numel(logits), cap);
  else softcap_range(c, (float *)logits.data, numel(logits), cap);
}
#endif

#if PART_CUDA
__device__ static inline float softcap_of(float x, float cap, float inverse_cap) {
  const float y = x * inverse_cap, e = gelu_exp2(fabsf(y) * -2.88539008f);
  return copysignf((1.0f - e) / (1.0f + e), y) * cap;
}
template <class X>
__global__ static void __launch_bounds__(FLAT_THREADS) softcap_kernel(X *x, int64_t n, float cap, float inverse) {
  FLAT_WALK(1, n, i, round_to(x + i, softcap_of(to_f32(x[i]), cap, inverse)),
            round_to(x + i, softcap_of(to_f32(x[i]), cap, inverse)));
}
void softcap_forward_impl(Ctx *c, Tensor logits, float cap) {
  const int64_t n = numel(logits);
  if (logits.dtype == BF16)
    LAUNCH(softcap_kernel<bf16>, flat_blocks(n, 1), FLAT_THREADS, 0, STREAM(c), (bf16 *)logits.data, n, cap,
           1.0f / cap);
  else
    LAUNCH(softcap_kernel<float>, flat_blocks(n, 1), FLAT_THREADS, 0, STREAM(c), (float *)logits.data, n, cap,
           1.0f / cap);
}
#endif
