// rope.cuh: rotary positions of q and k (Su et al. 2021, "RoFormer"), and, in models that have it, the norm of each
// head of q and k (Henry et al. 2020, "Query-Key Normalization").
//
//   rotate R   y[i] = x[i] cos_t[i] - x[i+d] sin_t[i],  y[i+d] = x[i+d] cos_t[i] + x[i] sin_t[i],  i < d = hs/2
//   norm       y = x rstd weight,  rstd = 1 / sqrt(sum x^2 / hs + eps) over a head; an absent weight is 1
//              with QK_NORM_ALL one norm over all heads of q, and one over all of k, with weights as long (OLMo 2)
//   forward    q, k <- R(q), R(k); with QK_NORM_BEFORE and _ALL R(norm(q)), R(norm(k)); with QK_NORM_AFTER norm(R(q)),
//              norm(R(k)); v is not changed
//              with a norm: raw <- the inputs q, k, from which backward computes
//   backward   dq, dk <- the gradients of forward's inputs; the norm's backward is layernorm.cuh's without a mean
//              dq_weight, dk_weight = or += sums over rows and heads, rows in order, the heads of a row in order
//
//   qkv, dqkv (B,T,(H+2KV)hs), raw (B,T,(H+KV)hs), weights (hs): one dtype    table (>= T, hs) fp32: row t is position
//   t's cosines, then its sines    dq_weight, dk_weight (hs) of one floating dtype; fp32 for ADD
// The table may be absent: then nothing is rotated (NoPE). One pass over q and k in fp32, rounded once when stored.
// Column sums are added as in layernorm.cuh: over rows in order within blocks of rows, then over the blocks.
#pragma once
#include "layernorm.cuh"
#if PART_LAUNCHERS
// Columns of the weight of q's norm (0), and of k's (1).
static inline int64_t rope_norm_columns(RopeArgs a, int64_t kv, int which) {
  return a.norm == QK_NORM_ALL ? (which ? kv : a.n_head) * a.head_size : a.head_size;
}
static inline void rope_check(const char *op, Tensor qkv, Tensor raw, Tensor table, Tensor q_weight, Tensor k_weight,
                              RopeArgs a) {
  const int64_t B = qkv.shape[0], T = qkv.shape[1], hs = a.head_size, heads = qkv.shape[2] / hs,
                kv = (heads - a.n_head) / 2;
  CHECK(qkv.ndim == 3 && kv > 0 && qkv.shape[2] == (a.n_head + 2 * kv) * hs,
        "%s: %lld columns are not %d heads of %d and as many of k as of v", op, (long long)qkv.shape[2], a.n_head,
        a.head_size);
  if (a.norm != QK_NORM_OFF) CHECK_SHAPE(raw, B, T, (a.n_head + kv) * hs);
  if (a.norm != QK_NORM_OFF) CHECK_DTYPE(raw, qkv.dtype);
  if (table.data) {
    CHECK(hs % 2 == 0, "%s: heads of %d columns have no halves", op, a.head_size);
    CHECK(table.ndim == 2 && table.shape[0] >= T && table.shape[1] == hs, "%s: a table of %lld positions for %lld", op,
          (long long)table.shape[0], (long long)T);
    CHECK_DTYPE(table, F32);
  }
  CHECK(a.norm != QK_NORM_ALL || hs % 2 == 0, "%s: a norm over all heads, of %d columns, which have no halves", op,
        a.head_size);
  const Tensor weights[] = {q_weight, k_weight};
  for (int i = 0; i < 2; i++)
    if (weights[i].data) { CHECK_SHAPE(weights[i], rope_norm_columns(a, kv, i)); CHECK_DTYPE(weights[i], qkv.dtype); }
}
// Changes q and k of qkv in place; overwrites raw, which is absent without a norm. With starts a token's position is
// t - starts[b,t], which the table must have.
void rope_forward(Ctx *c, Tensor qkv, Tensor raw, Tensor table, Tensor q_weight, Tensor k_weight,
                  RopeArgs a, Tensor starts) {
  rope_check("rope_forward", qkv, raw, table, q_weight, k_weight, a);
  starts_check(starts, qkv.shape[0], qkv.shape[1]);
  CALL_OP(c, norms, rope_forward, qkv, raw, table, q_weight, k_weight, a, starts);
}
// Changes dq and dk of dqkv in place; the gradients of weights may be absent.
void rope_backward(Ctx *c, Tensor dqkv, Tensor dq_weight, Tensor dk_weight, Tensor raw, Tensor table,
                   Tensor q_weight, Tensor k_weight, RopeArgs a, Accumulate mode) {
  rope_check("rope_backward", dqkv, raw, table, q_weight, k_weight, a);
  const Tensor gradients[] = {dq_weight, dk_weight};
  const int64_t kv = (dqkv.shape[2] / a.head_size - a.n_head) / 2;
  for (int i = 0; i < 2; i++) {
    if (!gradients[i].data) continue;
    CHECK_SHAPE(gradients[i], rope_norm_columns(a, kv, i));
    if (mode == ADD) CHECK_DTYPE(gradients[i], F32);
  }
  CALL_OP(c, norms, rope_backward, dqkv, dq_weight, dk_weight, raw, table, q_weight, k_weight, a, mode);
}
#endif

#if PART_CPU || PART_CUDA
// hs: head dim; heads: heads of q and k together; row: elements of a row of qkv.
struct RopeShape { int64_t seq_len, hs, n_head, heads, row; };
// Columns of the sums for the gradient of q's weight, which is at least as wide as k's.
static inline int64_t rope_sums(RopeArgs a) { return a.norm == QK_NORM_ALL ? a.n_head * a.head_size : a.head_size; }
static inline RopeShape rope_shape(Tensor qkv, RopeArgs a) {
  const int64_t all = qkv.shape[2] / a.head_size, kv = (all - a.n_head) / 2;
  return RopeShape{qkv.shape[1], a.head_size, a.n_head, a.n_head + kv, qkv.shape[2]};
}
// A pair of elements rotated, or with `back` by the inverse, which is the transpose.
struct RopeTurned { vf a, b; };
INLINE RopeTurned rope_turn(vf a, vf b, vf cos, vf sin, bool back) {
  if (back) sin = vf_sub(vf_set1(0.0f), sin);
  return RopeTurned{vf_sub(vf_mul(a, cos), vf_mul(b, sin)), vf_fma(b, cos, vf_mul(a, sin))};
}
INLINE vf rope_normed(vf x, vf rstd, vf weight) { return vf_mul(vf_mul(x, rstd), weight); }
// The gradient of x: g is that of x's norm times the weight, xhat = x rstd, mean that of g xhat.
INLINE vf rope_gradient(vf g, vf xhat, vf rstd, vf mean) { return vf_mul(rstd, vf_sub(g, vf_mul(xhat, mean))); }
#endif

#if PART_CPU
// Partial sums of the weights' gradients: two rows of C a block of rows, as layernorm_fold takes them.
static size_t rope_workspace_needed(int64_t rows, int64_t C) {
  return (size_t)((rows + LAYERNORM_BLOCK_ROWS - 1) / LAYERNORM_BLOCK_ROWS * 2 * C) * sizeof(float);
}
static size_t rope_workspace_bytes(const Ctx *, WorkspaceQuery q) {
  return rope_workspace_needed(q.batch * q.seq_len, query_q_norm(&q));
}

// y <- R(y), or with `back` its inverse, which is its transpose.
INLINE void rope_rotate(float *y, const float *table, int64_t hs, bool back) {
  const int64_t d = hs / 2;
  for (int64_t i = 0; i < d; i += VF) {
    const int64_t n = d - i < VF ? d - i : VF;
    const vf cos = vf_load_n(table + i, n), sin = vf_load_n(table + d + i, n);
    const RopeTurned to = rope_turn(vf_load_n(y + i, n), vf_load_n(y + d + i, n), cos, sin, back);
    vf_store_n(y + i, to.a, n);
    vf_store_n(y + d + i, to.b, n);
  }
}
// A head from T to fp32, or back.
template <class O, class I> INLINE void rope_copy(O *to, const I *from, int64_t hs) {
  for (int64_t i = 0; i < hs; i += VF) vf_store_n(to + i, vf_load_n(from + i, hs - i), hs - i);
}
template <class T> INLINE vf rope_rstd(const T *y, int64_t hs, float eps) {
  vf squares = vf_zero();
  for (int64_t i = 0; i < hs; i += VF) {
    const vf x = vf_load_n(y + i, hs - i);
    squares = vf_fma(x, x, squares);
  }
  return vf_set1(layernorm_rstd(vf_sum(squares), hs, eps));
}
template <class T> INLINE vf rope_weight(const T *w, int64_t i, int64_t n) {
  return w ? vf_load_n(w + i, n) : vf_set1(1.0f);
}
template <class T> static void rope_norm(float *y, const T *weight, vf rstd, int64_t hs) {
  for (int64_t i = 0; i < hs; i += VF)
    vf_store_n(y + i, rope_normed(vf_load_n(y + i, hs - i), rstd, rope_weight(weight, i, hs - i)), hs - i);
}
// g <- the gradient of x, where g is that of norm(x); adds to dweight.
template <class T>
static void rope_norm_backward(float *g, float *dweight, const float *x, const T *weight, int64_t hs, float eps) {
  const vf rstd = rope_rstd(x, hs, eps);
  vf sum = vf_zero();
  for (int64_t i = 0; i < hs; i += VF) {
    const int64_t n = hs - i;
    const vf d = vf_load_n(g + i, n), xhat = vf_mul(vf_load_n(x + i, n), rstd);
    vf_store_n(dweight + i, vf_fma(d, xhat, vf_load_n(dweight + i, n)), n);
    sum = vf_fma(vf_mul(d, rope_weight(weight, i, n)), xhat, sum);
  }
  const vf mean = vf_set1(vf_sum(sum) / (float)hs);
  for (int64_t i = 0; i < hs; i += VF) {
    const int64_t n = hs - i;
    const vf xhat = vf_mul(vf_load_n(x + i, n), rstd), d = vf_mul(vf_load_n(g + i, n), rope_weight(weight, i, n));
    vf_store_n(g + i, rope_gradient(d, xhat, rstd, mean), n);
  }
}

template <class T> struct RopeCall {             // pointers of one call; raw, table, weights NULL: absent
  T *qkv, *raw;
  const float *table;
  const T *weight[2];                            // of q, of k
  RopeShape s;
  RopeArgs a;
};
// Head h's part of its weight.
template <class T> INLINE const T *rope_weight_of(const RopeCall<T> *p, int64_t h) {
  const bool is_k = h >= p->s.n_head;
  const int64_t at = p->a.norm == QK_NORM_ALL ? (h - is_k * p->s.n_head) * p->s.hs : 0;
  return p->weight[is_k] ? p->weight[is_k] + at : NULL;
}
template <class T>
static RopeCall<T> rope_call(Tensor qkv, Tensor raw, Tensor table, Tensor q_weight, Tensor k_weight, RopeArgs a) {
  CHECK(a.head_size <= ROPE_HEAD_MAX, "rope: heads of %d columns, %d at most", a.head_size, (int)ROPE_HEAD_MAX);
  return RopeCall<T>{(T *)qkv.data, a.norm == QK_NORM_OFF ? NULL : (T *)raw.data, (const float *)table.data,
                     {(const T *)q_weight.data, (const T *)k_weight.data}, rope_shape(qkv, a), a};
}
template <class T> static void rope_forward_rows(Ctx *c, RopeCall<T> p, int64_t rows, const int32_t *starts) {
  parallel_for(c->threads, 0, rows, 1, [=](int64_t r) {
    const int64_t hs = p.s.hs, position = r % p.s.seq_len - (starts ? starts[r] : 0);
    const float *table = p.table ? p.table + position * hs : NULL;
    alignas(64) float y[ROPE_HEAD_MAX];
    vf all = vf_zero();                          // of all heads together
    for (int64_t h = 0; h < p.s.heads; h++) {
      T *x = p.qkv + r * p.s.row + h * hs;
      if (p.a.norm == QK_NORM_ALL && (h == 0 || h == p.s.n_head))
        all = rope_rstd(x, (h ? p.s.heads - h : p.s.n_head) * hs, p.a.eps);
      if (p.raw) memcpy((void *)(p.raw + (r * p.s.heads + h) * hs), x, (size_t)hs * sizeof(T));
      rope_copy(y, x, hs);
      if (p.a.norm == QK_NORM_BEFORE) rope_norm(y, rope_weight_of(&p, h), rope_rstd(y, hs, p.a.eps), hs);
      if (p.a.norm == QK_NORM_ALL) rope_norm(y, rope_weight_of(&p, h), all, hs);
      if (table) rope_rotate(y, table, hs, false);
      if (p.a.norm == QK_NORM_AFTER) rope_norm(y, rope_weight_of(&p, h), rope_rstd(y, hs, p.a.eps), hs);
      rope_copy(x, y, hs);
    }
  });
}
void rope_forward_impl(Ctx *c, Tensor qkv, Tensor raw, Tensor table, Tensor q_weight, Tensor k_weight,
                       RopeArgs a, Tensor starts) {
  DISPATCH(qkv.dtype, T, rope_forward_rows(c, rope_call<T>(qkv, raw, table, q_weight, k_weight, a),
                                           qkv.shape[0] * qkv.shape[1], (const int32_t *)starts.data));
}

// The same as rope_backward_row with QK_NORM_ALL, for the heads [from, to) of q or of k: first the mean of all, which
// each needs, then each once more. dweight: as long as the weight of q or of k.
template <class T>
static void rope_backward_all(const RopeCall<T> *p, float *dweight, int64_t r, int64_t from, int64_t to) {
  const int64_t hs = p->s.hs, n = (to - from) * hs;
  const float *table = p->table ? p->table + r % p->s.seq_len * hs : NULL;
  const T *raw = p->raw + (r * p->s.heads + from) * hs;
  const vf rstd = rope_rstd(raw, n, p->a.eps);
  alignas(64) float g[ROPE_HEAD_MAX];
  vf sum = vf_zero();
  for (int pass = 0; pass < 2; pass++) {
    const vf mean = vf_set1(pass ? vf_sum(sum) / (float)n : 0.0f);
    for (int64_t h = from; h < to; h++) {
      T *d = p->qkv + r * p->s.row + h * hs;
      const T *x = raw + (h - from) * hs, *weight = rope_weight_of(p, h);
      float *const dw = dweight + (h - from) * hs;
      rope_copy(g, d, hs);
      if (table) rope_rotate(g, table, hs, true);
      for (int64_t i = 0; i < hs; i += VF) {
        const vf y = vf_load_n(g + i, hs - i), xhat = vf_mul(vf_load_n(x + i, hs - i), rstd);
        const vf w = vf_mul(y, rope_weight(weight, i, hs - i));
        if (pass) vf_store_n(d + i, rope_gradient(w, xhat, rstd, mean), hs - i);
        else {
          vf_store_n(dw + i, vf_fma(y, xhat, vf_load_n(dw + i, hs - i)), hs - i);
          sum = vf_fma(w, xhat, sum);
        }
      }
    }
  }
}
// A row's heads; sums: of the gradients of q's and k's weights, two of rope_sums.
template <class T> static void rope_backward_row(const RopeCall<T> *p, float *sums, int64_t r) {
  const int64_t hs = p->s.hs;
  const float *table = p->table ? p->table + r % p->s.seq_len * hs : NULL;
  alignas(64) float g[ROPE_HEAD_MAX], x[ROPE_HEAD_MAX];
  if (p->a.norm == QK_NORM_ALL) {
    rope_backward_all(p, sums, r, 0, p->s.n_head);
    rope_backward_all(p, sums + rope_sums(p->a), r, p->s.n_head, p->s.heads);
    return;
  }
  for (int64_t h = 0; h < p->s.heads; h++) {
    T *d = p->qkv + r * p->s.row + h * hs;
    const bool is_k = h >= p->s.n_head, after = p->a.norm == QK_NORM_AFTER;
    rope_copy(g, d, hs);
    if (table && !after) rope_rotate(g, table, hs, true);
    if (p->raw) {
      rope_copy(x, p->raw + (r * p->s.heads + h) * hs, hs);
      if (table && after) rope_rotate(x, table, hs, false);
      rope_norm_backward(g, sums + is_k * hs, x, p->weight[is_k], hs, p->a.eps);
    }
    if (table && after) rope_rotate(g, table, hs, true);
    rope_copy(d, g, hs);
  }
}
void rope_backward_impl(Ctx *c, Tensor dqkv, Tensor dq_weight, Tensor dk_weight, Tensor raw, Tensor table,
                        Tensor q_weight, Tensor k_weight, RopeArgs a, Accumulate mode) {
  const int64_t rows = dqkv.shape[0] * dqkv.shape[1], C = rope_sums(a), each = LAYERNORM_BLOCK_ROWS;
  CHECK(c->workspace_bytes >= rope_workspace_needed(rows, C), "rope_backward: workspace of %zu bytes, needs %zu",
        c->workspace_bytes, rope_workspace_needed(rows, C));
  float *const partials = (float *)c->workspace;
  DISPATCH(dqkv.dtype, T, {
    const RopeCall<T> call = rope_call<T>(dqkv, raw, table, q_weight, k_weight, a);
    parallel_for(c->threads, 0, (rows + each - 1) / each, 1, [=](int64_t b) {
      memset(partials + b * 2 * C, 0, (size_t)(2 * C) * sizeof(float));
      for (int64_t r = b * each; r < rows && r < (b + 1) * each; r++)
        rope_backward_row(&call, partials + b * 2 * C, r);
    });
  });
  if (!dq_weight.data && !dk_weight.data) return;
  DISPATCH(dq_weight.data ? dq_weight.dtype : dk_weight.dtype, T,
           layernorm_backward_fold<T>(c, (T *)dq_weight.data, (T *)dk_weight.data, partials, rows, C, mode == ADD,
                                      dk_weight.shape[0]));
}
#endif
