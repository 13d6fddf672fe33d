// layernorm.cuh: layer normalisation over the last dimension, alone or fused with the residual addition before it.
//
//   forward            mean = sum x / C,  rstd = 1 / sqrt(sum (x - mean)^2 / C + 1e-5)
//                      out = (x - mean) rstd weight + bias
//   residual_forward   residual = in + dropout(branch), rounded when stored; then forward of what was stored
//   backward           xhat = (residual - mean) rstd,  g = dout weight
//                      dresidual += rstd (g - mean(g) - xhat mean(g xhat))      one rounding, when stored
//                      dbranch    = dropout(dresidual as stored)
//                      dweight    = sum over rows of dout xhat,  dbias = sum over rows of dout
//
//   in, out, branch, residual and their gradients (B,T,C), weight, bias (C): one dtype
//   mean, rstd (B,T) fp32   dweight, dbias (C) of any floating dtype
// Dropout: sample drop.sample0 + b, element t C + c.
// Order of sums: along a row, 16 lanes over the columns in order and vec.h's tree; down the columns, blocks of 64 rows
// in order, then the blocks in order.
// Ba, Kiros, Hinton 2016 (layer normalisation); Xiong et al. 2020 (its place before the branch).
#pragma once
#include "ops.h"

static const float LAYERNORM_EPS = 1e-5f;
static const int64_t LAYERNORM_BLOCK_ROWS = 64;

#if PART_LAUNCH
// Overwrites out, mean, rstd.
static inline void layernorm_forward(Ctx *c, Tensor out, Tensor mean, Tensor rstd, Tensor in, Tensor weight,
                                     Tensor bias) {
  int64_t B = in.shape[0], T = in.shape[1], C = in.shape[2];
  CHECK_SHAPE(in, B, T, C);
  CHECK_SHAPE(out, B, T, C);
  CHECK_SHAPE(mean, B, T);
  CHECK_SHAPE(rstd, B, T);
  CHECK_SHAPE(weight, C);
  CHECK_SHAPE(bias, C);
  CHECK_DTYPE(mean, F32);
  CHECK_DTYPE(rstd, F32);
  CHECK_DTYPE(out, in.dtype);
  CHECK_DTYPE(weight, in.dtype);
  CHECK_DTYPE(bias, in.dtype);
  c->ops->layernorm_forward(c, out, mean, rstd, in, weight, bias);
}

// Overwrites residual, out, mean, rstd. residual may be in's memory or branch's.
static inline void residual_layernorm_forward(Ctx *c, Tensor residual, Tensor out, Tensor mean, Tensor rstd, Tensor in,
                                              Tensor branch, Tensor weight, Tensor bias, Dropout drop) {
  int64_t B = in.shape[0], T = in.shape[1], C = in.shape[2];
  CHECK_SHAPE(in, B, T, C);
  CHECK_SHAPE(branch, B, T, C);
  CHECK_SHAPE(residual, B, T, C);
  CHECK_SHAPE(out, B, T, C);
  CHECK_SHAPE(mean, B, T);
  CHECK_SHAPE(rstd, B, T);
  CHECK_SHAPE(weight, C);
  CHECK_SHAPE(bias, C);
  CHECK_DTYPE(mean, F32);
  CHECK_DTYPE(rstd, F32);
  CHECK_DTYPE(branch, in.dtype);
  CHECK_DTYPE(residual, in.dtype);
  CHECK_DTYPE(out, in.dtype);
  CHECK_DTYPE(weight, in.dtype);
  CHECK_DTYPE(bias, in.dtype);
  c->ops->residual_layernorm_forward(c, residual, out, mean, rstd, in, branch, weight, bias, drop);
}

// Adds to dresidual; overwrites dbranch, dweight, dbias. Without dropout dbranch may be absent (data NULL) or dresidual
// itself: both are the same numbers, and nothing more is written.
static inline void layernorm_backward(Ctx *c, Tensor dresidual, Tensor dbranch, Tensor dweight, Tensor dbias,
                                      Tensor dout, Tensor residual, Tensor weight, Tensor mean, Tensor rstd,
                                      Dropout drop) {
  int64_t B = dout.shape[0], T = dout.shape[1], C = dout.shape[2];
  CHECK_SHAPE(dout, B, T, C);
  CHECK_SHAPE(dresidual, B, T, C);
  CHECK_SHAPE(residual, B, T, C);
  CHECK_SHAPE(weight, C);
  CHECK_SHAPE(dweight, C);
  CHECK_SHAPE(dbias, C);
  CHECK_SHAPE(mean, B, T);
  CHECK_SHAPE(rstd, B, T);
  CHECK_DTYPE(mean, F32);
  CHECK_DTYPE(rstd, F32);
  CHECK_DTYPE(dresidual, dout.dtype);
  CHECK_DTYPE(residual, dout.dtype);
  CHECK_DTYPE(weight, dout.dtype);
  CHECK_DTYPE(dbias, dweight.dtype);
  if (dbranch.data && dbranch.data != dresidual.data) {
    CHECK_SHAPE(dbranch, B, T, C);
    CHECK_DTYPE(dbranch, dout.dtype);
  } else {
    CHECK(drop.p == 0.0f, "layernorm_backward: dropout %g needs a dbranch of its own", (double)drop.p);
  }
  c->ops->layernorm_backward(c, dresidual, dbranch, dweight, dbias, dout, residual, weight, mean, rstd, drop);
}
#endif

#if PART_CPU
#include "random.h"

static size_t layernorm_partials_bytes(int64_t rows, int64_t C) {             // two sums a column and block of rows
  int64_t blocks = (rows + LAYERNORM_BLOCK_ROWS - 1) / LAYERNORM_BLOCK_ROWS;
  return (size_t)(blocks * 2 * C) * sizeof(float);
}
static size_t layernorm_workspace_bytes(const Ctx *, WorkspaceQuery q) {
  return layernorm_partials_bytes(q.batch * q.seq_len, q.n_embd);
}

// ---- forward -------------------------------------------------------------------------------------------------------
struct LayernormStats { float mean, rstd; };

template <class T> INLINE vf layernorm_squares(vf sum, const T *x, vf mean, int64_t n) {
  vf d = vf_sub(vf_load_n(x, n), mean);
  if (n < VF) d = vf_select(vm_first(n), d, vf_zero());
  return vf_fma(d, d, sum);
}
// The second pass over a row that is in L1 costs little and has none of the cancellation of sum x^2 - mean^2.
template <class T> static LayernormStats layernorm_stats(const T *x, vf sum, int64_t C) {
  LayernormStats s;
  s.mean = vf_sum(sum) / (float)C;
  const vf mean = vf_set1(s.mean);
  vf squares = vf_zero();
  int64_t i = 0;
  for (; i + VF <= C; i += VF) squares = layernorm_squares(squares, x + i, mean, VF);
  if (i < C) squares = layernorm_squares(squares, x + i, mean, C - i);
  s.rstd = 1.0f / sqrtf(vf_sum(squares) / (float)C + LAYERNORM_EPS);
  return s;
}
template <class T>
INLINE void layernorm_write(T *out, const T *x, const T *weight, const T *bias, vf mean, vf rstd, int64_t n) {
  vf xhat = vf_mul(vf_sub(vf_load_n(x, n), mean), rstd);
  vf_store_n(out, vf_fma(xhat, vf_load_n(weight, n), vf_load_n(bias, n)), n);
}
template <class T>
static void layernorm_finish_row(T *out, float *mean, float *rstd, const T *x, vf sum, const T *weight, const T *bias,
                                 int64_t C) {
  LayernormStats s = layernorm_stats(x, sum, C);
  *mean = s.mean;
  *rstd = s.rstd;
  const vf vmean = vf_set1(s.mean), vrstd = vf_set1(s.rstd);
  int64_t i = 0;
  for (; i + VF <= C; i += VF) layernorm_write(out + i, x + i, weight + i, bias + i, vmean, vrstd, VF);
  if (i < C) layernorm_write(out + i, x + i, weight + i, bias + i, vmean, vrstd, C - i);
}
template <class T>
static void layernorm_forward_rows(Ctx *c, T *out, float *mean, float *rstd, const T *in, const T *weight,
                                   const T *bias, int64_t rows, int64_t C) {
#pragma omp parallel for schedule(static) num_threads(c->threads)
  for (int64_t r = 0; r < rows; r++) {
    const T *x = in + r * C;
    vf sum = vf_zero();
    int64_t i = 0;
    for (; i + VF <= C; i += VF) sum = vf_add(sum, vf_load(x + i));
    if (i < C) sum = vf_add(sum, vf_load_n(x + i, C - i));
    layernorm_finish_row(out + r * C, mean + r, rstd + r, x, sum, weight, bias, C);
  }
}
static void layernorm_forward_impl(Ctx *c, Tensor out, Tensor mean, Tensor rstd, Tensor in, Tensor weight,
                                   Tensor bias) {
  const int64_t rows = numel(mean), C = numel(weight);
  DISPATCH(in.dtype, T,
           layernorm_forward_rows<T>(c, (T *)out.data, (float *)mean.data, (float *)rstd.data, (T *)in.data,
                                     (T *)weight.data, (T *)bias.data, rows, C));
}

template <class T, bool DROP>
INLINE vf layernorm_add(vf sum, T *residual, const T *in, const T *branch, const Dropout *d, int64_t s, int64_t e,
                        int64_t n) {
  vf x = vf_load_n(branch, n);
  if (DROP) x = vf_mul(x, dropout_scale16(d, s, e));
  vf_store_n(residual, vf_add(vf_load_n(in, n), x), n);
  return vf_add(sum, vf_load_n(residual, n));    // what was stored, so that backward sees the same numbers
}
template <class T, bool DROP>
static void layernorm_residual_rows(Ctx *c, T *residual, T *out, float *mean, float *rstd, const T *in, const T *branch,
                                    Tensor weight, Tensor bias, int64_t rows, int64_t seq_len, Dropout drop) {
  const int64_t C = numel(weight);
#pragma omp parallel for schedule(static) num_threads(c->threads)
  for (int64_t r = 0; r < rows; r++) {
    const Dropout d = drop;                      // a private copy stays in registers
    const int64_t at = r * C, sample = d.sample0 + r / seq_len, element = r % seq_len * C;
    vf sum = vf_zero();
    int64_t i = 0;
    for (; i + VF <= C; i += VF)
      sum = layernorm_add<T, DROP>(sum, residual + at + i, in + at + i, branch + at + i, &d, sample, element + i, VF);
    if (i < C)
      sum =
          layernorm_add<T, DROP>(sum, residual + at + i, in + at + i, branch + at + i, &d, sample, element + i, C - i);
    layernorm_finish_row(out + at, mean + r, rstd + r, residual + at, sum, (const T *)weight.data, (const T *)bias.data,
                         C);
  }
}
static void residual_layernorm_forward_impl(Ctx *c, Tensor residual, Tensor out, Tensor mean, Tensor rstd, Tensor in,
                                            Tensor branch, Tensor weight, Tensor bias, Dropout drop) {
  if (drop.p > 0.0f) drop.step = c->state->in.step;
  const int64_t rows = numel(mean), T_ = in.shape[1];
  float *m = (float *)mean.data, *s = (float *)rstd.data;
  if (drop.p > 0.0f)
    DISPATCH(in.dtype, T, layernorm_residual_rows<T, true>(c, (T *)residual.data, (T *)out.data, m, s, (T *)in.data,
                                                           (T *)branch.data, weight, bias, rows, T_, drop));
  else
    DISPATCH(in.dtype, T, layernorm_residual_rows<T, false>(c, (T *)residual.data, (T *)out.data, m, s, (T *)in.data,
                                                            (T *)branch.data, weight, bias, rows, T_, drop));
}

// ---- backward ------------------------------------------------------------------------------------------------------
template <class T> struct LayernormBackward {    // pointers of one call
  T *dresidual, *dbranch;
  const T *dout, *residual, *weight;
  const float *mean, *rstd;
  int64_t C, seq_len;
  Dropout drop;
};

template <class T>
INLINE void layernorm_backward_sums(vf *g_sum, vf *gx_sum, const T *dout, const T *x, const T *weight, vf mean, vf rstd,
                                    int64_t n) {
  vf g = vf_mul(vf_load_n(dout, n), vf_load_n(weight, n));                    // missing lanes are 0
  *g_sum = vf_add(*g_sum, g);
  *gx_sum = vf_fma(g, vf_mul(vf_sub(vf_load_n(x, n), mean), rstd), *gx_sum);
}
template <class T, bool BRANCH, bool DROP>
INLINE void layernorm_backward_write(const LayernormBackward<T> *p, float *dweight, float *dbias, int64_t at, int64_t i,
                                     const vf *stats, int64_t sample, int64_t element, int64_t n) {
  const vf mean = stats[0], rstd = stats[1], g_mean = stats[2], gx_mean = stats[3];
  vf dout = vf_load_n(p->dout + at + i, n), g = vf_mul(dout, vf_load_n(p->weight + i, n));
  vf xhat = vf_mul(vf_sub(vf_load_n(p->residual + at + i, n), mean), rstd);
  vf_store_n(dweight + i, vf_fma(dout, xhat, vf_load_n(dweight + i, n)), n);
  vf_store_n(dbias + i, vf_add(dout, vf_load_n(dbias + i, n)), n);
  vf dx = vf_sub(vf_sub(g, g_mean), vf_mul(xhat, gx_mean));
  vf_store_n(p->dresidual + at + i, vf_fma(rstd, dx, vf_load_n(p->dresidual + at + i, n)), n);
  if (!BRANCH) return;
  vf stored = vf_load_n(p->dresidual + at + i, n);
  if (DROP) stored = vf_mul(stored, dropout_scale16(&p->drop, sample, element + i));
  vf_store_n(p->dbranch + at + i, stored, n);
}
template <class T, bool BRANCH, bool DROP>
static void layernorm_backward_row(const LayernormBackward<T> *p, float *dweight, float *dbias, int64_t r) {
  const int64_t C = p->C, at = r * C, sample = p->drop.sample0 + r / p->seq_len, element = r % p->seq_len * C;
  const vf mean = vf_set1(p->mean[r]), rstd = vf_set1(p->rstd[r]);
  vf g_sum = vf_zero(), gx_sum = vf_zero();
  int64_t i = 0;
  for (; i + VF <= C; i += VF)
    layernorm_backward_sums(&g_sum, &gx_sum, p->dout + at + i, p->residual + at + i, p->weight + i, mean, rstd, VF);
  if (i < C)
    layernorm_backward_sums(&g_sum, &gx_sum, p->dout + at + i, p->residual + at + i, p->weight + i, mean, rstd, C - i);
  const vf stats[4] = {mean, rstd, vf_set1(vf_sum(g_sum) / (float)C), vf_set1(vf_sum(gx_sum) / (float)C)};
  for (i = 0; i + VF <= C; i += VF)
    layernorm_backward_write<T, BRANCH, DROP>(p, dweight, dbias, at, i, stats, sample, element, VF);
  if (i < C) layernorm_backward_write<T, BRANCH, DROP>(p, dweight, dbias, at, i, stats, sample, element, C - i);
}
template <class T, bool BRANCH, bool DROP>
static void layernorm_backward_blocks(Ctx *c, LayernormBackward<T> call, int64_t rows) {
  const int64_t blocks = (rows + LAYERNORM_BLOCK_ROWS - 1) / LAYERNORM_BLOCK_ROWS, C = call.C;
#pragma omp parallel for schedule(static) num_threads(c->threads)
  for (int64_t b = 0; b < blocks; b++) {
    const LayernormBackward<T> p = call;
    float *dweight = (float *)c->workspace + b * 2 * C, *dbias = dweight + C;
    memset(dweight, 0, (size_t)(2 * C) * sizeof(float));
    const int64_t end = (b + 1) * LAYERNORM_BLOCK_ROWS < rows ? (b + 1) * LAYERNORM_BLOCK_ROWS : rows;
    for (int64_t r = b * LAYERNORM_BLOCK_ROWS; r < end; r++)
      layernorm_backward_row<T, BRANCH, DROP>(&p, dweight, dbias, r);
  }
}
// out[i] = sum over blocks of partial[block][i], i < n <= 16 columns, the blocks in order.
template <class T> INLINE void layernorm_fold(T *out, const float *partial, int64_t blocks, int64_t stride, int64_t n) {
  vf sum = vf_zero();
  for (int64_t b = 0; b < blocks; b++) sum = vf_add(sum, vf_load_n(partial + b * stride, n));
  vf_store_n(out, sum, n);
}
template <class T> static void layernorm_backward_fold(Ctx *c, T *dweight, T *dbias, int64_t rows, int64_t C) {
  const int64_t blocks = (rows + LAYERNORM_BLOCK_ROWS - 1) / LAYERNORM_BLOCK_ROWS;
  const float *partial = (const float *)c->workspace;
#pragma omp parallel for schedule(static) num_threads(c->threads)
  for (int64_t i = 0; i < C; i += VF) {
    layernorm_fold(dweight + i, partial + i, blocks, 2 * C, C - i < VF ? C - i : VF);
    layernorm_fold(dbias + i, partial + C + i, blocks, 2 * C, C - i < VF ? C - i : VF);
  }
}
static void layernorm_backward_impl(Ctx *c, Tensor dresidual, Tensor dbranch, Tensor dweight, Tensor dbias, Tensor dout,
                                    Tensor residual, Tensor weight, Tensor mean, Tensor rstd, Dropout drop) {
  const int64_t rows = numel(mean), C = numel(weight), seq_len = dout.shape[1];
  CHECK(c->workspace_bytes >= layernorm_partials_bytes(rows, C),
        "layernorm_backward: workspace of %zu bytes, needs %zu", c->workspace_bytes, layernorm_partials_bytes(rows, C));
  if (drop.p > 0.0f) drop.step = c->state->in.step;
  const bool branch = dbranch.data && dbranch.data != dresidual.data;
  DISPATCH(dout.dtype, T, {
    LayernormBackward<T> p = {(T *)dresidual.data,
                              (T *)dbranch.data,
                              (T *)dout.data,
                              (T *)residual.data,
                              (T *)weight.data,
                              (float *)mean.data,
                              (float *)rstd.data,
                              C,
                              seq_len,
                              drop};
    if (drop.p > 0.0f) layernorm_backward_blocks<T, true, true>(c, p, rows);
    else if (branch) layernorm_backward_blocks<T, true, false>(c, p, rows);
    else layernorm_backward_blocks<T, false, false>(c, p, rows);
  });
  DISPATCH(dweight.dtype, T, layernorm_backward_fold<T>(c, (T *)dweight.data, (T *)dbias.data, rows, C));
}
#endif

#if PART_CUDA
#include "layernorm_cuda.cuh"
#endif
