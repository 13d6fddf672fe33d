// gelu.cuh: GELU, tanh form (Hendrycks and Gimpel 2016), and its derivative (formulas.cuh).
//
//   forward   out = x/2 (1 + tanh u) = x / (1 + e^-2u),  u = sqrt(2/pi) (x + 0.044715 x^3),  x = in
//
// in and out: one dtype, any shape, element by element; fp32 arithmetic, rounded once when stored. The result
// depends on in's bits alone: matmul_forward stores the same bits in e.gelu beside its `out`, so a backward pass can
// recompute a GELU that the forward pass did not keep. Only where none will (e.gelu_again false) may `--tune any` on
// CUDA choose cuBLASLt's, with other bits. A NaN stays a NaN.
// The derivative has no separate op: matmul_backward_input multiplies by it.
#pragma once
#include "ops_pointwise.h"
#include "flat.cuh"
#if PART_LAUNCHERS
// Overwrites out, which may be in's own memory, but must not overlap it otherwise.
void gelu_forward(Ctx *c, Tensor out, Tensor in) {
  CHECK(numel(out) == numel(in), "gelu_forward: %lld elements to %lld", (long long)numel(in), (long long)numel(out));
  CHECK(in.dtype != I32, "gelu_forward: in is %s", dtype_name(in.dtype));
  CHECK_DTYPE(out, in.dtype);
  CALL_OP(c, pointwise, gelu_forward, out, in);
}
#endif

#if PART_CPU || PART_CUDA
// GRAD: y *= GELU'(x), else y = GELU(x). y may be x.
template <bool GRAD, class T> struct GeluOp {
  T *y;
  const T *x;
  template <class N> LANES_OF void at(int64_t i, N n) const {
    auto v = vf_load_n(x + i, n);
    if constexpr (GRAD) {
      auto d = vf_load_n((const T *)y + i, n);
      each(n, [](vf &z, vf dz) LANES_EACH { z = vf_mul(dz, vf_gelu_grad(z)); }, v, d);
    } else {
      each(n, [](vf &z) LANES_EACH { z = vf_gelu(z); }, v);
    }
    vf_store_n(y + i, v, n);
  }
};
// y and x of one dtype.
template <bool GRAD> static void gelu_run(Ctx *c, Tensor y, Tensor x) {
  DISPATCH(y.dtype, T, {
    const GeluOp<GRAD, T> op = {(T *)y.data, (const T *)x.data};
    flat(c, op, numel(y), op.y, op.x);
  });
}
#if FAMILY(pointwise)
void gelu_forward_impl(Ctx *c, Tensor out, Tensor in) { gelu_run<false>(c, out, in); }
#endif
#endif
