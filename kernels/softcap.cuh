// softcap.cuh: logits kept within (-cap, cap):  x <- cap tanh(x / cap)     (Gemma Team 2024, "Gemma 2", section 2)
//
// logits: fp32 or bf16, any shape, overwritten. Absolute error about cap 2^-23 before rounding (vf_tanh). The
// derivative is part of cross_entropy_forward_backward.
#pragma once
#include "ops_pointwise.h"
#include "flat.cuh"
#if PART_LAUNCHERS
void softcap_forward(Ctx *c, Tensor logits, float cap) {
  CHECK_DTYPE(logits, logits.dtype == BF16 ? BF16 : F32);
  CHECK(cap > 0.0f, "softcap_forward: a cap of %g", (double)cap);
  CALL_OP(c, pointwise, softcap_forward, logits, cap);
}
#endif

#if PART_CPU || PART_CUDA
template <class T> struct SoftcapOp {
  T *logits;
  float cap, inverse;
  template <class N> LANES_OF void at(int64_t i, N n) const {
    auto x = vf_load_n(logits + i, n);
    each(n, [this](vf &y) LANES_EACH { y = vf_mul(vf_tanh(vf_mul(y, vf_set1(inverse))), vf_set1(cap)); }, x);
    vf_store_n(logits + i, x, n);
  }
};
template <class T> static void softcap_run(Ctx *c, T *logits, int64_t n, float cap) {
  flat(c, SoftcapOp<T>{logits, cap, 1.0f / cap}, n, logits);
}
void softcap_forward_impl(Ctx *c, Tensor logits, float cap) {
  if (logits.dtype == BF16) softcap_run(c, (bf16 *)logits.data, numel(logits), cap);
  else softcap_run(c, (float *)logits.data, numel(logits), cap);
}
#endif
