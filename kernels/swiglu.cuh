// swiglu.cuh: what MLPs other than GELU's do between their two matrix multiplies.
//
//   relu2     out = max(x, 0)^2                  din = 2 max(x, 0) dout                   (So et al. 2021, "Primer")
//   swiglu    in (R,2F): g | u, gate and up of a row    out (R,F) = silu(g) u      (Shazeer 2020, "GLU variants")
//             silu(g) = g s, s = 1 / (1 + e^-g)         dg = dout u s (1 + g (1 - s)),  du = dout silu(g)
//   geglu     the same with gelu.cuh's GELU, and its slope, in the place of silu's
//
// One dtype each call; fp32 arithmetic by vec.h's operations, the same on every device, rounded once when stored: the
// results depend on the inputs' bits alone, so backward may recompute what forward did not keep. A NaN stays a NaN.
#pragma once
#include "gelu.cuh"
#if PART_LAUNCHERS
static inline void relu2_check(const char *op, Tensor out, Tensor in) {
  CHECK(numel(out) == numel(in), "%s: %lld elements to %lld", op, (long long)numel(in), (long long)numel(out));
  CHECK_DTYPE(out, in.dtype);
}
// Overwrites out, which may be in's own memory.
void relu2_forward(Ctx *c, Tensor out, Tensor in) {
  relu2_check("relu2_forward", out, in);
  CALL_OP(c, relu2_forward, out, in);
}
// in: what forward read. Overwrites din, which may be dout's own memory.
void relu2_backward(Ctx *c, Tensor din, Tensor dout, Tensor in) {
  relu2_check("relu2_backward", din, in);
  relu2_check("relu2_backward", din, dout);
  CALL_OP(c, relu2_backward, din, dout, in);
}
// in (R,2F); overwrites out (R,F). gelu: geglu.
void swiglu_forward(Ctx *c, Tensor out, Tensor in, bool gelu) {
  CHECK_SHAPE(in, out.shape[0], 2 * out.shape[1]);
  CHECK_DTYPE(out, in.dtype);
  CALL_OP(c, swiglu_forward, out, in, gelu);
}
// in (R,2F): what forward read; dout (R,F); overwrites din (R,2F).
void swiglu_backward(Ctx *c, Tensor din, Tensor dout, Tensor in, bool gelu) {
  CHECK_SHAPE(in, dout.shape[0], 2 * dout.shape[1]);
  CHECK_SHAPE(din, in.shape[0], in.shape[1]);
  CHECK_DTYPE(din, in.dtype);
  CHECK_DTYPE(dout, in.dtype);
  CALL_OP(c, swiglu_backward, din, dout, in, gelu);
}
#endif

#if PART_CPU
INLINE vf swiglu_sigmoid(vf x) {
  return vf_div(vf_set1(1.0f), vf_add(vf_set1(1.0f), vf_exp2(vf_mul(x, vf_set1(-1.44269504f)))));
}
INLINE vf relu2(vf x) {                          // in this order a NaN stays one
  const vf y = vf_max(vf_zero(), x);
  return vf_mul(y, y);
}
INLINE vf relu2_grad(vf x) { return vf_mul(vf_set1(2.0f), vf_max(vf_zero(), x)); }

// f(i, n) for each run of n <= 16 elements of `count`.
template <class F> INLINE void swiglu_each(int64_t count, F f) {
  int64_t i = 0;
  for (; i + VF <= count; i += VF) f(i, (int64_t)VF);
  if (i < count) f(i, count - i);
}
template <class F> static void relu2_range(Ctx *c, int64_t count, F f) {
  parallel_for(count > 4 * GELU_PIECE ? c->threads : 1, 0, count, GELU_PIECE, [=](int64_t at) {
    swiglu_each(count - at < GELU_PIECE ? count - at : GELU_PIECE, [=](int64_t i, int64_t n) { f(at + i, n); });
  });
}
void relu2_forward_impl(Ctx *c, Tensor out, Tensor in) {
  DISPATCH(in.dtype, T, {
    T *const y = (T *)out.data;
    const T *const x = (const T *)in.data;
    relu2_range(c, numel(in), [=](int64_t i, int64_t n) { vf_store_n(y + i, relu2(vf_load_n(x + i, n)), n); });
  });
}
void relu2_backward_impl(Ctx *c, Tensor din, Tensor dout, Tensor in) {
  DISPATCH(in.dtype, T, {
    T *const dx = (T *)din.data;
    const T *const dy = (const T *)dout.data, *const x = (const T *)in.data;
    relu2_range(c, numel(in), [=](int64_t i, int64_t n) {
      vf_store_n(dx + i, vf_mul(vf_load_n(dy + i, n), relu2_grad(vf_load_n(x + i, n))), n);
    });
  });
}
void swiglu_forward_impl(Ctx *c, Tensor out, Tensor in, bool gelu) {
  const int64_t F = out.shape[1];
  DISPATCH(in.dtype, T, parallel_for(c->threads, 0, out.shape[0], 1, [=](int64_t r) {
    const T *gate = (const T *)in.data + r * 2 * F, *up = gate + F;
    T *to = (T *)out.data + r * F;
    swiglu_each(F, [=](int64_t i, int64_t n) {
      const vf g = vf_load_n(gate + i, n);
      vf_store_n(to + i, vf_mul(gelu ? vf_gelu(g) : vf_mul(g, swiglu_sigmoid(g)), vf_load_n(up + i, n)), n);
    });
  }));
}
void swiglu_backward_impl(Ctx *c, Tensor din, Tensor dout, Tensor in, bool gelu) {
  const int64_t F = dout.shape[1];
  DISPATCH(in.dtype, T, parallel_for(c->threads, 0, dout.shape[0], 1, [=](int64_t r) {
    const T *gate = (const T *)in.data + r * 2 * F, *up = gate + F, *d = (const T *)dout.data + r * F;
    T *dgate = (T *)din.data + r * 2 * F, *dup = dgate + F;
    swiglu_each(F, [=](int64_t i, int64_t n) {
      const vf g = vf_load_n(gate + i, n), s = swiglu_sigmoid(g), dy = vf_load_n(d + i, n);
      const vf slope = gelu ? vf_gelu_grad(g) : vf_mul(s, vf_fma(g, vf_sub(vf_set1(1.0f), s), vf_set1(1.0f)));
      vf_store_n(dgate + i, vf_mul(vf_mul(dy, vf_load_n(up + i, n)), slope), n);
      vf_store_n(dup + i, vf_mul(dy, gelu ? vf_gelu(g) : vf_mul(g, s)), n);
    });
  }));
}
#endif

#if PART_CUDA
__device__ static inline float swiglu_sigmoid(float x) { return 1.0f / (1.0f + gelu_exp2(x * -1.44269504f)); }
__device__ static inline float relu2_positive(float x) { return x > 0.0f || x != x ? x : 0.0f; }   // keeps a NaN

template <class T, int W> __device__ static inline void relu2_lanes(T *y, const T *dy, const T *x) {
  Lanes<W> v = lanes_load<W>(x);
  if (dy) {
    const Lanes<W> d = lanes_load<W>(dy);
    UNROLL for (int i = 0; i < W; i++) v.x[i] = d.x[i] * (2.0f * relu2_positive(v.x[i]));
  } else {
    UNROLL for (int i = 0; i < W; i++) v.x[i] = relu2_positive(v.x[i]) * relu2_positive(v.x[i]);
  }
  lanes_store(y, v);
}
// dy NULL: forward.
template <class T, int W>
__global__ static void __launch_bounds__(FLAT_THREADS) relu2_kernel(T *y, const T *dy, const T *x, int64_t n) {
  FLAT_WALK(W, n, i, (relu2_lanes<T, W>(y + i, dy ? dy + i : NULL, x + i)),
            (relu2_lanes<T, 1>(y + i, dy ? dy + i : NULL, x + i)));
}
static void relu2_launch(Ctx *c, Tensor y, Tensor dy, Tensor x) {
  const int64_t n = numel(y);
  DISPATCH(y.dtype, T, {
    if (lanes_aligned(y.data, dy.data, x.data))
      LAUNCH((relu2_kernel<T, LANES>), dim3(flat_blocks(n, LANES)), dim3(FLAT_THREADS), 0, STREAM(c), (T *)y.data,
             (const T *)dy.data, (const T *)x.data, n);
    else
      LAUNCH((relu2_kernel<T, 1>), dim3(flat_blocks(n, 1)), dim3(FLAT_THREADS), 0, STREAM(c), (T *)y.data,
             (const T *)dy.data, (const T *)x.data, n);
  });
}
void relu2_forward_impl(Ctx *c, Tensor out, Tensor in) { relu2_launch(c, out, Tensor{}, in); }
void relu2_backward_impl(Ctx *c, Tensor din, Tensor dout, Tensor in) { relu2_launch(c, din, dout, in); }

// W neighbours of a row from element i of (R,F) on; dout NULL: forward, into `to`; else backward, into `to` (R,2F).
template <class T, int W>
__device__ static inline void swiglu_lanes(T *to, const T *dout, const T *in, int64_t i, int64_t F, bool by_gelu) {
  const int64_t at = i / F * 2 * F + i % F;
  Lanes<W> g = lanes_load<W>(in + at), u = lanes_load<W>(in + at + F);
  if (!dout) {
    UNROLL for (int k = 0; k < W; k++)
      g.x[k] = (by_gelu ? gelu(g.x[k]) : g.x[k] * swiglu_sigmoid(g.x[k])) * u.x[k];
    lanes_store(to + i, g);
    return;
  }
  const Lanes<W> d = lanes_load<W>(dout + i);
  UNROLL for (int k = 0; k < W; k++) {
    const float x = g.x[k], s = swiglu_sigmoid(x);
    g.x[k] = d.x[k] * u.x[k] * (by_gelu ? gelu_grad(x) : s * fmaf(x, 1.0f - s, 1.0f));
    u.x[k] = d.x[k] * (by_gelu ? gelu(x) : x * s);
  }
  lanes_store(to + at, g);
  lanes_store(to + at + F, u);
}
template <class T, int W>
__global__ static void __launch_bounds__(FLAT_THREADS)
swiglu_kernel(T *to, const T *dout, const T *in, int64_t n, int64_t F, bool gelu) {
  FLAT_WALK(W, n, i, (swiglu_lanes<T, W>(to, dout, in, i, F, gelu)), (swiglu_lanes<T, 1>(to, dout, in, i, F, gelu)));
}
static void swiglu_launch(Ctx *c, Tensor to, Tensor dout, Tensor in, bool gelu) {
  const int64_t F = in.shape[1] / 2, n = in.shape[0] * F;
  DISPATCH(in.dtype, T, {
    if (F % LANES == 0 && lanes_aligned(to.data, dout.data, in.data))
      LAUNCH((swiglu_kernel<T, LANES>), dim3(flat_blocks(n, LANES)), dim3(FLAT_THREADS), 0, STREAM(c), (T *)to.data,
             (const T *)dout.data, (const T *)in.data, n, F, gelu);
    else
      LAUNCH((swiglu_kernel<T, 1>), dim3(flat_blocks(n, 1)), dim3(FLAT_THREADS), 0, STREAM(c), (T *)to.data,
             (const T *)dout.data, (const T *)in.data, n, F, gelu);
  });
}
void swiglu_forward_impl(Ctx *c, Tensor out, Tensor in, bool gelu) {
  swiglu_launch(c, out, Tensor{}, in, gelu);
}
void swiglu_backward_impl(Ctx *c, Tensor din, Tensor dout, Tensor in, bool gelu) {
  swiglu_launch(c, din, dout, in, gelu);
}
#endif
