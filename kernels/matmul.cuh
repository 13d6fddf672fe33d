// matmul.cuh: the linear layer and its two gradients.
//
//   forward          out(M,N)     = in(M,K) weight(N,K)^T + bias(N) on every row;  gelu(M,N) = GELU(out)
//   backward_input   din(M,K)     = dout(M,N) weight(N,K);  times GELU'(pre_gelu(M,K)) where given
//   backward_weight  dweight(N,K) = or += dout(M,N)^T in(M,K);  dbias(N) = or += sum over rows of dout
//
// Weights are (out, in) as in nn.Linear. Activations and weights have one dtype; out may be fp32 beside them (logits).
// dweight and dbias are of the gradients' dtype. GELU is the tanh form (Hendrycks and Gimpel, 2016), of the fp32 sum
// before `out` is rounded; backward sees the rounded one. Sums are fp32 in the order given in gemm.h; row m of a result
// depends on no other row, nor on M. ADD adds the finished fp32 sum once and is for fp32 gradients. What differs on
// CUDA is said in matmul_plans.h (order of sums) and matmul_cuda.cuh (GELU).
#pragma once
#include "ops.h"

#if PART_LAUNCH
// out (M,N) is overwritten, and e.gelu (M,N, dtype of `in`) if given.
static inline void matmul_forward(Ctx *c, Tensor out, Tensor in, Tensor weight, MatmulEpilogue e) {
  CHECK_SHAPE(in, out.shape[0], weight.shape[1]);
  CHECK_SHAPE(out, in.shape[0], weight.shape[0]);
  CHECK_SHAPE(weight, out.shape[1], in.shape[1]);
  CHECK_DTYPE(weight, in.dtype);
  if (out.dtype != F32) CHECK_DTYPE(out, in.dtype);
  if (e.bias.data) { CHECK_SHAPE(e.bias, weight.shape[0]); CHECK_DTYPE(e.bias, in.dtype); }
  if (e.gelu.data) { CHECK_SHAPE(e.gelu, out.shape[0], out.shape[1]); CHECK_DTYPE(e.gelu, in.dtype); }
  c->ops->matmul_forward(c, out, in, weight, e);
}
// din (M,K) is overwritten.
static inline void matmul_backward_input(Ctx *c, Tensor din, Tensor dout, Tensor weight, Tensor pre_gelu) {
  CHECK_SHAPE(dout, din.shape[0], weight.shape[0]);
  CHECK_SHAPE(din, dout.shape[0], weight.shape[1]);
  CHECK_SHAPE(weight, dout.shape[1], din.shape[1]);
  CHECK_DTYPE(weight, dout.dtype);
  CHECK_DTYPE(din, dout.dtype);
  if (pre_gelu.data) { CHECK_SHAPE(pre_gelu, din.shape[0], din.shape[1]); CHECK_DTYPE(pre_gelu, dout.dtype); }
  c->ops->matmul_backward_input(c, din, dout, weight, pre_gelu);
}
// dweight (N,K), and dbias (N) if its data is not NULL, are overwritten or, if fp32, added to.
static inline void matmul_backward_weight(Ctx *c, Tensor dweight, Tensor dbias, Tensor dout, Tensor in,
                                          Accumulate mode) {
  CHECK_SHAPE(dout, in.shape[0], dweight.shape[0]);
  CHECK_SHAPE(in, dout.shape[0], dweight.shape[1]);
  CHECK_SHAPE(dweight, dout.shape[1], in.shape[1]);
  CHECK_DTYPE(in, dout.dtype);
  if (mode == ADD) CHECK_DTYPE(dweight, F32);
  if (dbias.data) { CHECK_SHAPE(dbias, dout.shape[1]); CHECK_DTYPE(dbias, dweight.dtype); }
  c->ops->matmul_backward_weight(c, dweight, dbias, dout, in, mode);
}
#endif

#if PART_CPU
#include "gemm.h"

// What happens to a finished tile. At most one of bias/gelu, pre_gelu and add is in use; NULL and false mean absent.
struct MatmulFinish {
  void *out;               // (M,N) of the product, with row stride N
  int64_t N;
  const void *bias;        // (N)   added
  void *gelu;              // (M,N) receives GELU of the sum
  const void *pre_gelu;    // (M,N) its GELU' multiplies
  bool add;
  void *dbias;             // (M) of the product: sums over k of a
};

// TO: dtype of out. T: of bias, gelu and pre_gelu.
template <class TO, class T>
static void matmul_finish(const GemmJob *j, const float *tile, int64_t row, int64_t col, int64_t rows, int64_t cols) {
  const MatmulFinish *f = (const MatmulFinish *)j->arg;
  for (int64_t r = 0; r < rows; r++, tile += GEMM_NR) {
    for (int64_t v = 0; v < cols; v += VF) {
      const int64_t n = cols - v, at = (row + r) * f->N + col + v;
      vf x = vf_load(tile + v);
      if (f->bias) x = vf_add(x, vf_load_n((const T *)f->bias + col + v, n));
      if (f->pre_gelu) x = vf_mul(x, vf_gelu_grad(vf_load_n((const T *)f->pre_gelu + at, n)));
      TO *out = (TO *)f->out + at;
      __builtin_prefetch(out + GEMM_NR, 1);      // of the next tile, 10 000 cycles ahead
      if (f->gelu) __builtin_prefetch((T *)f->gelu + at + GEMM_NR, 1);
      if (f->pre_gelu) __builtin_prefetch((const T *)f->pre_gelu + at + GEMM_NR);
      if (f->add) x = vf_add(vf_load_n(out, n), x);
      if (n >= VF) vf_store(out, x);
      else vf_store_n(out, x, n);
      if (f->gelu) vf_store_n((T *)f->gelu + at, vf_gelu(x), n);
    }
  }
}
template <class TO> static void matmul_finish_sums(const GemmJob *j, const float *sums, int64_t row, int64_t rows) {
  const MatmulFinish *f = (const MatmulFinish *)j->arg;
  TO *out = (TO *)f->dbias + row;
  for (int64_t i = 0; i < rows; i += VF) {
    vf x = vf_load_n(sums + i, rows - i);
    if (f->add) x = vf_add(vf_load_n(out + i, rows - i), x);
    vf_store_n(out + i, x, rows - i);
  }
}
static void matmul_run(Ctx *c, GemmOperand a, GemmOperand b, int64_t K, MatmulFinish f, Dtype out_dtype) {
  GemmJob j = {a, b, K, NULL, NULL, &f};
  DISPATCH(out_dtype, TO, DISPATCH(a.dtype, T, j.finish = matmul_finish<TO, T>));
  if (f.dbias) DISPATCH(out_dtype, TO, j.finish_sums = matmul_finish_sums<TO>);
  gemm(c, &j);
}

// The rows of a 2-d tensor as an operand's rows (k runs along them), or its columns (k runs down).
static GemmOperand matmul_rows(Tensor t) { return GemmOperand{t.data, t.dtype, t.shape[0], t.shape[1], true}; }
static GemmOperand matmul_columns(Tensor t) { return GemmOperand{t.data, t.dtype, t.shape[1], t.shape[1], false}; }

static void matmul_forward_impl(Ctx *c, Tensor out, Tensor in, Tensor weight, MatmulEpilogue e) {
  MatmulFinish f = {out.data, out.shape[1], e.bias.data, e.gelu.data, NULL, false, NULL};
  matmul_run(c, matmul_rows(in), matmul_rows(weight), in.shape[1], f, out.dtype);
}
static void matmul_backward_input_impl(Ctx *c, Tensor din, Tensor dout, Tensor weight, Tensor pre_gelu) {
  MatmulFinish f = {din.data, din.shape[1], NULL, NULL, pre_gelu.data, false, NULL};
  matmul_run(c, matmul_rows(dout), matmul_columns(weight), dout.shape[1], f, din.dtype);
}
static void matmul_backward_weight_impl(Ctx *c, Tensor dweight, Tensor dbias, Tensor dout, Tensor in, Accumulate mode) {
  MatmulFinish f = {dweight.data, dweight.shape[1], NULL, NULL, NULL, mode == ADD, dbias.data};
  matmul_run(c, matmul_columns(dout), matmul_columns(in), in.shape[0], f, dweight.dtype);
}

// threads x (packed a, packed b, fp32 partial sums of one block): about 1.4 MB a thread whatever the shapes.
static size_t matmul_workspace_bytes(const Ctx *c, WorkspaceQuery) { return gemm_workspace_bytes(c); }
static void matmul_open(Ctx *) { gemm_open(); }
#endif

#if PART_CUDA
#include "matmul_cuda.cuh"
#endif
