// activation.cuh: the activations of MLPs other than GELU alone, which is gelu.cuh's: those of the table in
// activation.h.
//
//   activation   out = f(in)                              forward
//                din = f'(in) dout                        backward
//   swiglu       out = f(gate) up                         forward:  in (R,2F), a row its gate and then up
//                dgate = dout up f'(gate)                 backward, to (R,2F)
//                dup = dout f(gate)
//                f is SiLU, or another of the table (geglu: GELU)
//
// All tensors of a call have one dtype; fp32 arithmetic, rounded once when stored. Element by element: no sums, and
// results depend on the inputs' bits alone, so backward may recompute what forward did not keep. A NaN stays a NaN.
#pragma once
#include "gelu.cuh"
#include "activation.h"
#if PART_LAUNCHERS
static inline void activation_check(const char *op, Tensor out, Tensor in) {
  CHECK(numel(out) == numel(in), "%s: %lld elements to %lld", op, (long long)numel(in), (long long)numel(out));
  CHECK_DTYPE(out, in.dtype);
}
// Overwrites out, which may be the memory of `in`.
void activation_forward(Ctx *c, Tensor out, Tensor in, Activation kind) {
  activation_check("activation_forward", out, in);
  CALL_OP(c, pointwise, activation_forward, out, in, kind);
}
// in: what forward read. Overwrites din, which may be the memory of dout.
void activation_backward(Ctx *c, Tensor din, Tensor dout, Tensor in, Activation kind) {
  activation_check("activation_backward", din, in);
  activation_check("activation_backward", din, dout);
  CALL_OP(c, pointwise, activation_backward, din, dout, in, kind);
}
// in (R,2F), a row its gate and then up; overwrites out (R,F).
void swiglu_forward(Ctx *c, Tensor out, Tensor in, Activation kind) {
  CHECK_SHAPE(in, out.shape[0], 2 * out.shape[1]);
  CHECK_DTYPE(in, out.dtype);
  CALL_OP(c, pointwise, swiglu_forward, out, in, kind);
}
// Overwrites din (R,2F) from dout (R,F) and in, which forward read.
void swiglu_backward(Ctx *c, Tensor din, Tensor dout, Tensor in, Activation kind) {
  CHECK_SHAPE(din, dout.shape[0], 2 * dout.shape[1]);
  CHECK_SHAPE(in, dout.shape[0], 2 * dout.shape[1]);
  CHECK_DTYPE(din, dout.dtype);
  CHECK_DTYPE(in, dout.dtype);
  CALL_OP(c, pointwise, swiglu_backward, din, dout, in, kind);
}
#endif

#if PART_CPU || PART_CUDA
INLINE vf activation_of(Activation kind, vf x) {
  switch (kind) {
#define X(id, word, f, slope) case ACT_##id: return f;
    ACTIVATIONS(X)
#undef X
  }
  return x;
}
INLINE vf activation_slope(Activation kind, vf x) {
  switch (kind) {
#define X(id, word, f, slope) case ACT_##id: return slope;
    ACTIVATIONS(X)
#undef X
  }
  return x;
}

// dout NULL: forward, into `to`.
template <class T> struct ActivationOp {
  T *to;
  const T *dout, *in;
  Activation kind;
  template <class N> LANES_OF void at(int64_t i, N n) const {
    auto x = vf_load_n(in + i, n);
    if (dout) {
      auto d = vf_load_n(dout + i, n);
      each(n, [this](vf &y, vf dy) LANES_EACH { y = vf_mul(dy, activation_slope(kind, y)); }, x, d);
    } else {
      each(n, [this](vf &y) LANES_EACH { y = activation_of(kind, y); }, x);
    }
    vf_store_n(to + i, x, n);
  }
};
static void activation_run(Ctx *c, Tensor to, Tensor dout, Tensor in, Activation kind) {
  DISPATCH(in.dtype, T, {
    const ActivationOp<T> op = {(T *)to.data, (const T *)dout.data, (const T *)in.data, kind};
    flat(c, op, numel(in), op.to, op.dout, op.in);
  });
}
void activation_forward_impl(Ctx *c, Tensor out, Tensor in, Activation kind) {
  activation_run(c, out, Tensor{}, in, kind);
}
void activation_backward_impl(Ctx *c, Tensor din, Tensor dout, Tensor in, Activation kind) {
  activation_run(c, din, dout, in, kind);
}

// dout NULL: forward, into `to` (R,F); else backward, into `to` (R,2F).
template <class T> struct SwigluOp {
  T *to;
  const T *dout, *in;
  int64_t F;
  Activation kind;
  template <class N> LANES_OF void at(int64_t r, int64_t i, N n) const {
    auto gate = vf_load_n(in + r * 2 * F + i, n), up = vf_load_n(in + r * 2 * F + F + i, n);
    if (dout) {
      auto d = vf_load_n(dout + r * F + i, n);
      each(n, [this](vf &g, vf &u, vf dy) LANES_EACH {
        const vf y = activation_of(kind, g);
        g = vf_mul(vf_mul(dy, u), activation_slope(kind, g));
        u = vf_mul(dy, y);
      }, gate, up, d);
      vf_store_n(to + r * 2 * F + i, gate, n);
      vf_store_n(to + r * 2 * F + F + i, up, n);
    } else {
      each(n, [this](vf &g, vf u) LANES_EACH { g = vf_mul(activation_of(kind, g), u); }, gate, up);
      vf_store_n(to + r * F + i, gate, n);
    }
  }
};
static void swiglu_run(Ctx *c, Tensor to, Tensor dout, Tensor in, Activation kind) {
  const int64_t F = in.shape[1] / 2;
  DISPATCH(in.dtype, T, {
    const SwigluOp<T> op = {(T *)to.data, (const T *)dout.data, (const T *)in.data, F, kind};
    flat_rows(c, op, in.shape[0], F, op.to, op.dout, op.in);
  });
}
void swiglu_forward_impl(Ctx *c, Tensor out, Tensor in, Activation kind) { swiglu_run(c, out, Tensor{}, in, kind); }
void swiglu_backward_impl(Ctx *c, Tensor din, Tensor dout, Tensor in, Activation kind) {
  swiglu_run(c, din, dout, in, kind);
}
#endif
