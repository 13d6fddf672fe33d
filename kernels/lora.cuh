// lora.cuh: what low-rank adapters (Hu et al. 2021, "LoRA") need besides matrix multiplies.
//
//   lora_spread    out (N, P*rank): row n, of a part with adapter p, has scale * (its row of b) in columns p*rank to
//                  p*rank + rank - 1, and 0 in all other columns
//   lora_collect   db = or += scale * (the same elements of dout (N, P*rank))
//   dropout        out = or += dropout(in)
//
// One weight matrix (N, K) of this program may be fused from several matrices of a model file, stacked by rows: q, k
// and v. Each such part may have an adapter, which adds scale * B A to it. The A (rank, K) of all P adapters are
// stacked by rows into (P*rank, K); so are their B, into b (rows of all parts with an adapter, rank). Spread, b is one
// matrix (N, P*rank), so that one matrix multiply takes in * A^T (P*rank columns) to the outputs of all adapters.
// Dropout: element (i, t, c) of (B,T,C) has the random bits of element t*C + c of sample drop.sample0 + i. Each element
// is rounded once, and nothing is summed.
#pragma once
#include "random.h"
#if PART_LAUNCHERS || PART_CPU || PART_CUDA
#include "ops_pointwise.h"
#endif
#if PART_LAUNCHERS
static inline int64_t lora_columns(const LoraParts *p) {
  int64_t n = 0;
  for (int i = 0; i < p->parts; i++) n += p->adapter[i] >= 0 ? p->rank : 0;
  return n;
}
static inline void lora_check(const char *op, Tensor spread, Tensor b, const LoraParts *p) {
  int64_t rows = 0, adapted = 0;
  for (int i = 0; i < p->parts; i++) rows += p->rows[i], adapted += p->adapter[i] >= 0 ? p->rows[i] : 0;
  CHECK(rows == spread.shape[0] && lora_columns(p) == spread.shape[1] && adapted == b.shape[0] && p->rank == b.shape[1],
        "%s: %lld x %lld of %lld rows", op, (long long)b.shape[0], (long long)b.shape[1], (long long)spread.shape[0]);
}
void lora_spread(Ctx *c, Tensor out, Tensor b, LoraParts parts) {
  lora_check("lora_spread", out, b, &parts);
  CHECK_DTYPE(out, b.dtype);
  CALL_OP(c, pointwise, lora_spread, out, b, parts);
}
// dout fp32; db of any floating dtype, fp32 for ADD.
void lora_collect(Ctx *c, Tensor db, Tensor dout, LoraParts parts, Accumulate mode) {
  lora_check("lora_collect", dout, db, &parts);
  CHECK_DTYPE(dout, F32);
  if (mode == ADD) CHECK_DTYPE(db, F32);
  CALL_OP(c, pointwise, lora_collect, db, dout, parts, mode);
}
// Both (B,T,C), which may be one tensor. With drop.p 0 nothing is dropped.
void dropout(Ctx *c, Tensor out, Tensor in, Dropout drop, Accumulate mode) {
  CHECK_SHAPE(in, out.shape[0], out.shape[1], out.shape[2]);
  CHECK_DTYPE(in, out.dtype);
  CALL_OP(c, pointwise, dropout, out, in, drop, mode);
}
#endif

// The adapter of the part that row n belongs to; -1: it has none. *row: which row of b is spread to row n.
HD int lora_row(const LoraParts *p, int64_t n, int64_t *row) {
  int part = 0;
  for (*row = 0; n >= p->rows[part]; n -= p->rows[part++]) *row += p->adapter[part] >= 0 ? p->rows[part] : 0;
  *row += n;
  return p->adapter[part];
}
#if PART_CPU || PART_CUDA
#include "flat.cuh"
// Row n of lora_spread and of lora_collect.
template <class T> HD void lora_spread_row(T *out, const T *b, const LoraParts *p, int64_t n, int64_t columns) {
  int64_t row;
  const int64_t first = lora_row(p, n, &row) * p->rank;
  for (int64_t j = 0; j < columns; j++) {
    const bool own = first >= 0 && j >= first && j < first + p->rank;
    round_to(out + n * columns + j, own ? p->scale * to_f32(b[row * p->rank + j - first]) : 0.0f);
  }
}
template <class T> HD void lora_collect_row(T *db, const float *dout, const LoraParts *p, int64_t n, int64_t columns,
                                            bool add) {
  int64_t row;
  const int64_t first = lora_row(p, n, &row) * p->rank;
  for (int64_t j = 0; j < p->rank && first >= 0; j++) {
    const float x = p->scale * dout[n * columns + first + j];
    T *const to = db + row * p->rank + j;
    round_to(to, add ? to_f32(*to) + x : x);
  }
}
template <class T> struct DropoutOp {
  T *out;
  const T *in;
  int64_t seq_len, C;
  bool add;
  DropKey drop;
  const StepState *state;
  template <class N> LANES_OF void at(int64_t r, int64_t i, N n) const {
    auto x = vf_load_n(in + r * C + i, n);
    if (drop.on)
      x = dropped(x, &drop, drop_step(&drop, state), drop.sample0 + r / seq_len, r % seq_len * C + i, n);
    if (add) {
      auto y = vf_load_n(out + r * C + i, n);
      each(n, [](vf &x, vf y) LANES_EACH { x = vf_add(y, x); }, x, y);
    }
    vf_store_n(out + r * C + i, x, n);
  }
};
void dropout_impl(Ctx *c, Tensor out, Tensor in, Dropout drop, Accumulate mode) {
  DISPATCH(in.dtype, T, {
    const DropoutOp<T> op = {(T *)out.data, (const T *)in.data, in.shape[1], in.shape[2], mode == ADD, drop_key(drop),
                             c->state};
    flat_rows(c, op, in.shape[0] * in.shape[1], op.C, op.out, op.in);
  });
}
#endif

#if PART_CPU
void lora_spread_impl(Ctx *c, Tensor out, Tensor b, LoraParts parts) {
  DISPATCH(out.dtype, T, parallel_for(c->threads, 0, out.shape[0], 64, [=](int64_t at) {
    for (int64_t n = at; n < at + 64 && n < out.shape[0]; n++)
      lora_spread_row((T *)out.data, (const T *)b.data, &parts, n, out.shape[1]);
  }));
}
void lora_collect_impl(Ctx *c, Tensor db, Tensor dout, LoraParts parts, Accumulate mode) {
  DISPATCH(db.dtype, T, parallel_for(c->threads, 0, dout.shape[0], 64, [=](int64_t at) {
    for (int64_t n = at; n < at + 64 && n < dout.shape[0]; n++)
      lora_collect_row((T *)db.data, (const float *)dout.data, &parts, n, dout.shape[1], mode == ADD);
  }));
}
#endif

#if PART_CUDA
// A thread computes a row: the matrices are small.
template <class T> __global__ static void __launch_bounds__(FLAT_THREADS)
lora_spread_kernel(T *out, const T *b, LoraParts parts, int64_t rows, int64_t columns) {
  FLAT_WALK(1, rows, n, (lora_spread_row(out, b, &parts, n, columns)), (void)n);
}
template <class T> __global__ static void __launch_bounds__(FLAT_THREADS)
lora_collect_kernel(T *db, const float *dout, LoraParts parts, int64_t rows, int64_t columns, bool add) {
  FLAT_WALK(1, rows, n, (lora_collect_row(db, dout, &parts, n, columns, add)), (void)n);
}
void lora_spread_impl(Ctx *c, Tensor out, Tensor b, LoraParts parts) {
  DISPATCH(out.dtype, T, LAUNCH((lora_spread_kernel<T>), dim3(flat_blocks(out.shape[0], 1)), dim3(FLAT_THREADS), 0,
                                STREAM(c), (T *)out.data, (const T *)b.data, parts, out.shape[0], out.shape[1]));
}
void lora_collect_impl(Ctx *c, Tensor db, Tensor dout, LoraParts parts, Accumulate mode) {
  DISPATCH(db.dtype, T, LAUNCH((lora_collect_kernel<T>), dim3(flat_blocks(dout.shape[0], 1)), dim3(FLAT_THREADS), 0,
                               STREAM(c), (T *)db.data, (const float *)dout.data, parts, dout.shape[0], dout.shape[1],
                               mode == ADD));
}
#endif
