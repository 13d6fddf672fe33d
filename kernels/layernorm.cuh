// layernorm.cuh: layer normalisation over the last dimension, alone or fused with the residual addition before it.
// Without a mean tensor (data NULL) it is RMSNorm: the same formulas with mean = 0 and without mean(g).
//
//   forward            mean = sum x / C,  rstd = 1 / sqrt(sum (x - mean)^2 / C + eps)
//                      out = (x - mean) rstd weight + bias        an absent weight is 1, an absent bias 0
//   residual_forward   residual = in + dropout(branch), rounded when stored; then forward of the stored value
//   backward           xhat = (residual - mean) rstd,  g = dout weight
//                      dresidual += rstd (g - mean(g) - xhat mean(g xhat))      rounded once, when stored
//                      dbranch    = dropout(dresidual as stored)
//                      dweight    = or += sum over rows of dout xhat,  dbias = or += sum over rows of dout
//                      dbranch_sum = sum over rows of dbranch as stored: matmul_backward_weight's dout_sum
//
//   in, out, branch, residual and their gradients (B,T,C), weight, bias (C): one dtype
//   mean, rstd (B,T), dbranch_sum (1,C) fp32   dweight, dbias (C) of one floating dtype; fp32 for ADD
// Dropout: sample drop.sample0 + b, element t C + c.
// Summation order: along a row, 16 lanes over the columns in order and vec.h's tree; down the columns, blocks of 64
// rows in order, then the blocks in order.
// Ba, Kiros, Hinton 2016 (layer normalisation); Zhang and Sennrich 2019 (RMSNorm); Xiong et al. 2020 (its place before
// the branch).
#pragma once
#include "ops_norms.h"

static const float LAYERNORM_EPS = 1e-5f;
static const int64_t LAYERNORM_BLOCK_ROWS = 64;

#if PART_LAUNCHERS
// Checks the shapes that all ops here share: x (B,T,C), rstd, and mean, weight and bias if they are present.
static inline void layernorm_check(Tensor x, Tensor mean, Tensor rstd, Tensor weight, Tensor bias) {
  const int64_t B = x.shape[0], T = x.shape[1], C = x.shape[2];
  CHECK_SHAPE(x, B, T, C);
  CHECK_SHAPE(rstd, B, T);
  CHECK_DTYPE(rstd, F32);
  if (mean.data) { CHECK_SHAPE(mean, B, T); CHECK_DTYPE(mean, F32); }
  if (weight.data) { CHECK_SHAPE(weight, C); CHECK_DTYPE(weight, x.dtype); }
  if (bias.data) { CHECK_SHAPE(bias, C); CHECK_DTYPE(bias, x.dtype); }
}
// Overwrites out, mean, rstd.
void layernorm_forward(Ctx *c, Tensor out, Tensor mean, Tensor rstd, Tensor in, Tensor weight,
                       Tensor bias, float eps) {
  layernorm_check(in, mean, rstd, weight, bias);
  CHECK_SHAPE(out, in.shape[0], in.shape[1], in.shape[2]);
  CHECK_DTYPE(out, in.dtype);
  CALL_OP(c, norms, layernorm_forward, out, mean, rstd, in, weight, bias, eps);
}

// Overwrites residual, out, mean, rstd. residual may be in's memory or branch's.
void residual_layernorm_forward(Ctx *c, Tensor residual, Tensor out, Tensor mean, Tensor rstd, Tensor in,
                                Tensor branch, Tensor weight, Tensor bias, float eps, Dropout drop) {
  int64_t B = in.shape[0], T = in.shape[1], C = in.shape[2];
  layernorm_check(in, mean, rstd, weight, bias);
  CHECK_SHAPE(branch, B, T, C);
  CHECK_SHAPE(residual, B, T, C);
  CHECK_SHAPE(out, B, T, C);
  CHECK_DTYPE(branch, in.dtype);
  CHECK_DTYPE(residual, in.dtype);
  CHECK_DTYPE(out, in.dtype);
  CALL_OP(c, norms, residual_layernorm_forward, residual, out, mean, rstd, in, branch, weight, bias, eps, drop);
}

// Adds to dresidual; overwrites dbranch; overwrites dweight and dbias or, with ADD, adds the finished fp32 sums.
// dweight, dbias or both may be absent (data NULL). Without dropout dbranch may be absent or be dresidual itself: both
// have the same values, and nothing more is written. dbranch_sum: may be absent; a CPU has none, because its
// matmul_backward_weight adds up what it has in its caches.
void layernorm_backward(Ctx *c, Tensor dresidual, Tensor dbranch, Tensor dweight, Tensor dbias,
                        Tensor dout, Tensor residual, Tensor weight, Tensor mean, Tensor rstd,
                        Dropout drop, Accumulate mode, Tensor dbranch_sum) {
  int64_t B = dout.shape[0], T = dout.shape[1], C = dout.shape[2];
  layernorm_check(dout, mean, rstd, weight, Tensor{});
  CHECK_SHAPE(dresidual, B, T, C);
  CHECK_SHAPE(residual, B, T, C);
  CHECK_DTYPE(dresidual, dout.dtype);
  CHECK_DTYPE(residual, dout.dtype);
  if (dweight.data) { CHECK_SHAPE(dweight, C); if (mode == ADD) CHECK_DTYPE(dweight, F32); }
  if (dbias.data) { CHECK_SHAPE(dbias, C); if (mode == ADD) CHECK_DTYPE(dbias, F32); }
  if (dweight.data && dbias.data) CHECK_DTYPE(dbias, dweight.dtype);
  if (dbranch_sum.data) { CHECK_SHAPE(dbranch_sum, 1, C); CHECK_DTYPE(dbranch_sum, F32); }
  CHECK(!dbranch_sum.data || c->ops->nccl, "layernorm_backward: %s makes no dbranch_sum", c->ops->name);
  if (dbranch.data && dbranch.data != dresidual.data) {
    CHECK_SHAPE(dbranch, B, T, C);
    CHECK_DTYPE(dbranch, dout.dtype);
  } else {
    CHECK(drop.p == 0.0f, "layernorm_backward: dropout %g needs a dbranch of its own", (double)drop.p);
  }
  CALL_OP(c, norms, layernorm_backward, dresidual, dbranch, dweight, dbias, dout, residual, weight, mean, rstd, drop,
          mode, dbranch_sum);
}
#endif

#if PART_CPU || PART_CUDA
#include "formulas.cuh"
#include "random.h"

INLINE float layernorm_rstd(float squares, int64_t n, float eps) { return 1.0f / sqrtf(squares / (float)n + eps); }
INLINE vf layernorm_hat(vf x, vf mean, vf rstd) { return vf_mul(vf_sub(x, mean), rstd); }
INLINE vf layernorm_out(vf x, vf mean, vf rstd, vf weight, vf bias) {
  return vf_fma(layernorm_hat(x, mean, rstd), weight, bias);
}
// The sums of g and of g xhat along a row, which divided by C are the means below.
INLINE void layernorm_add(vf *g_sum, vf *gx_sum, vf dout, vf weight, vf xhat) {
  const vf g = vf_mul(dout, weight);
  *g_sum = vf_add(*g_sum, g);
  *gx_sum = vf_fma(g, xhat, *gx_sum);
}
INLINE vf layernorm_gradient(vf dresidual, vf dout, vf weight, vf xhat, vf rstd, vf g_mean, vf gx_mean) {
  const vf g = vf_mul(dout, weight);
  return vf_fma(rstd, vf_sub(vf_sub(g, g_mean), vf_mul(xhat, gx_mean)), dresidual);
}
#endif

#if PART_CPU
// The workspace holds weight and bias in fp32, then two sums per column and block of rows.
static size_t layernorm_workspace_needed(int64_t rows, int64_t C) {
  int64_t blocks = (rows + LAYERNORM_BLOCK_ROWS - 1) / LAYERNORM_BLOCK_ROWS;
  return (size_t)((blocks + 1) * 2 * C) * sizeof(float);
}
static size_t layernorm_workspace_bytes(const Ctx *, WorkspaceQuery q) {
  return layernorm_workspace_needed(q.batch * q.seq_len, q.n_embd);
}
static inline void layernorm_check_workspace(const char *op, const Ctx *c, int64_t rows, int64_t C) {
  CHECK(c->workspace_bytes >= layernorm_workspace_needed(rows, C), "%s: workspace of %zu bytes, needs %zu", op,
        c->workspace_bytes, layernorm_workspace_needed(rows, C));
}
// A vector of C parameters in fp32: every row needs it, so each call converts it once, into `room`. If `from` is NULL
// all its elements are `absent`.
template <class T> static const float *layernorm_widened(float *room, const T *from, int64_t C, float absent) {
  if constexpr (sizeof(T) == sizeof(float)) if (from) return (const float *)from;
  for (int64_t i = 0; i < C; i++) room[i] = from ? to_f32(from[i]) : absent;
  return room;
}

// ---- forward -------------------------------------------------------------------------------------------------------
template <class T> struct LayernormForward {     // pointers of one call
  T *out, *residual;
  float *mean, *rstd;
  const T *in, *branch;
  const float *weight, *bias;
  int64_t C, seq_len;
  float eps;
  DropKey drop;
  uint32_t step;
};

template <class T> INLINE vf layernorm_squares(vf sum, const T *x, vf mean, int64_t n) {
  vf d = vf_sub(vf_load_n(x, n), mean);
  if (n < VF) d = vf_select(vm_first(n), d, vf_zero());
  return vf_fma(d, d, sum);
}
template <class T> INLINE void layernorm_write(const LayernormForward<T> *p, T *out, const T *x, int64_t i, vf mean,
                                               vf rstd, int64_t n) {
  const vf weight = vf_load_n(p->weight + i, n), bias = vf_load_n(p->bias + i, n);
  vf_store_n(out + i, layernorm_out(vf_load_n(x + i, n), mean, rstd, weight, bias), n);
}
// Row r, which is x, and the sum of its elements. The second pass over a row in L1 costs little and avoids the
// cancellation of sum x^2 - mean^2.
template <class T> INLINE void layernorm_finish_row(const LayernormForward<T> *p, int64_t r, const T *x, vf sum) {
  const int64_t C = p->C;
  T *out = p->out + r * C;
  const vf mean = vf_set1(p->mean ? vf_sum(sum) / (float)C : 0.0f);
  if (p->mean) p->mean[r] = vf_first_lane(mean);
  vf squares = vf_zero();
  vf_walk(C, [&](int64_t i, int64_t n) LANES_EACH { squares = layernorm_squares(squares, x + i, mean, n); });
  p->rstd[r] = layernorm_rstd(vf_sum(squares), C, p->eps);
  const vf rstd = vf_set1(p->rstd[r]);
  vf_walk(C, [&](int64_t i, int64_t n) LANES_EACH { layernorm_write(p, out, x, i, mean, rstd, n); });
}
template <class T> static void layernorm_forward_rows(Ctx *c, LayernormForward<T> call, int64_t rows) {
  parallel_for(c->threads, 0, rows, 1, [=](int64_t r) {
    const LayernormForward<T> p = call;          // a private copy stays in registers
    const T *x = p.in + r * p.C;
    vf sum = vf_zero();
    vf_walk(p.mean ? p.C : 0, [&](int64_t i, int64_t n) LANES_EACH { sum = vf_add(sum, vf_load_n(x + i, n)); });
    layernorm_finish_row(&p, r, x, sum);
  });
}
template <class T>
static LayernormForward<T> layernorm_forward_call(Ctx *c, Tensor residual, Tensor out, Tensor mean, Tensor rstd,
                                                  Tensor in, Tensor branch, Tensor weight, Tensor bias, float eps,
                                                  Dropout drop) {
  const int64_t C = in.shape[2];
  float *room = (float *)c->workspace;
  return {(T *)out.data,    (T *)residual.data, (float *)mean.data, (float *)rstd.data,
          (const T *)in.data, (const T *)branch.data, layernorm_widened(room, (const T *)weight.data, C, 1.0f),
          layernorm_widened(room + C, (const T *)bias.data, C, 0.0f), C, in.shape[1], eps, drop_key(drop),
          drop.p > 0.0f ? c->state->in.step : 0};
}
void layernorm_forward_impl(Ctx *c, Tensor out, Tensor mean, Tensor rstd, Tensor in, Tensor weight,
                            Tensor bias, float eps) {
  layernorm_check_workspace("layernorm_forward", c, 0, in.shape[2]);
  const Tensor none = {};
  DISPATCH(in.dtype, T,
           layernorm_forward_rows(
               c, layernorm_forward_call<T>(c, none, out, mean, rstd, in, none, weight, bias, eps, {}), numel(rstd)));
}

template <class T, bool DROP>
INLINE vf layernorm_residual(const LayernormForward<T> *p, vf sum, int64_t at, int64_t sample, int64_t element,
                             int64_t n) {
  vf x = vf_load_n(p->branch + at, n);
  if (DROP) x = dropped(x, &p->drop, p->step, sample, element, n);
  x = vf_add(vf_load_n(p->in + at, n), x);
  return vf_add(sum, vf_keep_n(p->residual + at, x, n));         // as stored, so that backward sees the same numbers
}
template <class T, bool DROP>
static void layernorm_residual_rows(Ctx *c, LayernormForward<T> call, int64_t rows) {
  parallel_for(c->threads, 0, rows, 1, [=](int64_t r) {
    const LayernormForward<T> p = call;
    const int64_t C = p.C, at = r * C, sample = p.drop.sample0 + r / p.seq_len, element = r % p.seq_len * C;
    vf sum = vf_zero();
    vf_walk(C, [&](int64_t i, int64_t n) LANES_EACH {
      sum = layernorm_residual<T, DROP>(&p, sum, at + i, sample, element + i, n);
    });
    layernorm_finish_row(&p, r, p.residual + at, sum);
  });
}
void residual_layernorm_forward_impl(Ctx *c, Tensor residual, Tensor out, Tensor mean, Tensor rstd, Tensor in,
                                     Tensor branch, Tensor weight, Tensor bias, float eps, Dropout drop) {
  layernorm_check_workspace("residual_layernorm_forward", c, 0, in.shape[2]);
  DISPATCH(in.dtype, T, {
    const LayernormForward<T> p =
        layernorm_forward_call<T>(c, residual, out, mean, rstd, in, branch, weight, bias, eps, drop);
    if (drop.p > 0.0f) layernorm_residual_rows<T, true>(c, p, numel(rstd));
    else layernorm_residual_rows<T, false>(c, p, numel(rstd));
  });
}

// ---- backward ------------------------------------------------------------------------------------------------------
template <class T> struct LayernormBackward {    // pointers of one call
  T *dresidual, *dbranch;
  const T *dout, *residual;
  const float *weight, *mean, *rstd;
  int64_t C, seq_len;
  DropKey drop;
  uint32_t step;
};
struct LayernormRow { vf mean, rstd, g_mean, gx_mean; };         // means of g and g xhat: sums, then divided

template <class T>
INLINE void layernorm_backward_sums(const LayernormBackward<T> *p, LayernormRow *s, int64_t at, int64_t i, int64_t n) {
  const vf xhat = layernorm_hat(vf_load_n(p->residual + at + i, n), s->mean, s->rstd);
  const vf weight = vf_load_n(p->weight + i, n);                 // missing lanes are 0
  layernorm_add(&s->g_mean, &s->gx_mean, vf_load_n(p->dout + at + i, n), weight, xhat);
}
// dweight, dbias of this block of rows.
template <class T, bool BRANCH, bool DROP>
INLINE void layernorm_backward_write(const LayernormBackward<T> *p, const LayernormRow *s, float *dweight, float *dbias,
                                     int64_t at, int64_t i, int64_t sample, int64_t element, int64_t n) {
  const int64_t e = at + i;
  const vf dout = vf_load_n(p->dout + e, n), weight = vf_load_n(p->weight + i, n);
  const vf xhat = layernorm_hat(vf_load_n(p->residual + e, n), s->mean, s->rstd);
  vf_store_n(dweight + i, vf_fma(dout, xhat, vf_load_n(dweight + i, n)), n);
  vf_store_n(dbias + i, vf_add(dout, vf_load_n(dbias + i, n)), n);
  const vf dresidual = vf_load_n(p->dresidual + e, n);
  vf stored = vf_keep_n(p->dresidual + e, layernorm_gradient(dresidual, dout, weight, xhat, s->rstd, s->g_mean,
                                                             s->gx_mean), n);
  if (DROP) stored = dropped(stored, &p->drop, p->step, sample, element + i, n);
  if (BRANCH) vf_store_n(p->dbranch + e, stored, n);
}
template <class T, bool BRANCH, bool DROP>
static void layernorm_backward_row(const LayernormBackward<T> *p, float *dweight, float *dbias, int64_t r) {
  const int64_t C = p->C, sample = p->drop.sample0 + r / p->seq_len, element = r % p->seq_len * C;
  LayernormRow s = {vf_set1(p->mean ? p->mean[r] : 0.0f), vf_set1(p->rstd[r]), vf_zero(), vf_zero()};
  vf_walk(C, [&](int64_t i, int64_t n) LANES_EACH { layernorm_backward_sums(p, &s, r * C, i, n); });
  s.g_mean = vf_set1(p->mean ? vf_sum(s.g_mean) / (float)C : 0.0f);
  s.gx_mean = vf_set1(vf_sum(s.gx_mean) / (float)C);
  vf_walk(C, [&](int64_t i, int64_t n) LANES_EACH {
    layernorm_backward_write<T, BRANCH, DROP>(p, &s, dweight, dbias, r * C, i, sample, element, n);
  });
}
template <class T, bool BRANCH, bool DROP>
static void layernorm_backward_blocks(Ctx *c, LayernormBackward<T> call, float *partials, int64_t rows) {
  const int64_t blocks = (rows + LAYERNORM_BLOCK_ROWS - 1) / LAYERNORM_BLOCK_ROWS;
  parallel_for(c->threads, 0, blocks, 1, [=](int64_t b) {
    const LayernormBackward<T> p = call;
    float *dweight = partials + b * 2 * p.C, *dbias = dweight + p.C;
    memset(dweight, 0, (size_t)(2 * p.C) * sizeof(float));
    const int64_t end = (b + 1) * LAYERNORM_BLOCK_ROWS < rows ? (b + 1) * LAYERNORM_BLOCK_ROWS : rows;
    for (int64_t r = b * LAYERNORM_BLOCK_ROWS; r < end; r++)
      layernorm_backward_row<T, BRANCH, DROP>(&p, dweight, dbias, r);
  });
}
// out[i] = or += sum over blocks of partial[block][i], i < n <= 16 columns, the blocks in order.
template <class T>
INLINE void layernorm_fold(T *out, const float *partial, int64_t blocks, int64_t stride, bool add, int64_t n) {
  vf sum = vf_zero();
  for (int64_t b = 0; b < blocks; b++) sum = vf_add(sum, vf_load_n(partial + b * stride, n));
  if (add) sum = vf_add(vf_load_n(out, n), sum);
  vf_store_n(out, sum, n);
}
// bias_columns: of dbias, where these are fewer than dweight's C.
template <class T>
static void layernorm_backward_fold(Ctx *c, T *dweight, T *dbias, const float *partials, int64_t rows, int64_t C,
                                    bool add, int64_t bias_columns) {
  const int64_t blocks = (rows + LAYERNORM_BLOCK_ROWS - 1) / LAYERNORM_BLOCK_ROWS;
  parallel_for(c->threads, 0, C, VF, [=](int64_t i) {
    const int64_t n = C - i < VF ? C - i : VF;
    if (dweight) layernorm_fold(dweight + i, partials + i, blocks, 2 * C, add, n);
    const int64_t left = bias_columns - i < VF ? bias_columns - i : VF;
    if (dbias && left > 0) layernorm_fold(dbias + i, partials + C + i, blocks, 2 * C, add, left);
  });
}
void layernorm_backward_impl(Ctx *c, Tensor dresidual, Tensor dbranch, Tensor dweight, Tensor dbias, Tensor dout,
                             Tensor residual, Tensor weight, Tensor mean, Tensor rstd, Dropout drop,
                             Accumulate mode, Tensor) {
  const int64_t rows = numel(rstd), C = dout.shape[2], seq_len = dout.shape[1];
  float *room = (float *)c->workspace, *partials = room + 2 * C;
  layernorm_check_workspace("layernorm_backward", c, rows, C);
  const bool branch = dbranch.data && dbranch.data != dresidual.data;
  DISPATCH(dout.dtype, T, {
    LayernormBackward<T> p = {(T *)dresidual.data,
                              (T *)dbranch.data,
                              (const T *)dout.data,
                              (const T *)residual.data,
                              layernorm_widened(room, (const T *)weight.data, C, 1.0f),
                              (const float *)mean.data,
                              (const float *)rstd.data,
                              C,
                              seq_len,
                              drop_key(drop),
                              drop.p > 0.0f ? c->state->in.step : 0};
    if (drop.p > 0.0f) layernorm_backward_blocks<T, true, true>(c, p, partials, rows);
    else if (branch) layernorm_backward_blocks<T, true, false>(c, p, partials, rows);
    else layernorm_backward_blocks<T, false, false>(c, p, partials, rows);
  });
  if (!dweight.data && !dbias.data) return;
  DISPATCH(dweight.data ? dweight.dtype : dbias.dtype, T,
           layernorm_backward_fold<T>(c, (T *)dweight.data, (T *)dbias.data, partials, rows, C, mode == ADD, C));
}
#endif
