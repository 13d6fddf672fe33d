// embedding.cuh: token plus position embedding, with dropout.
//
//   forward    out[b,t,:] = dropout(scale wte[tokens[b,t],:] + wpe[t,:])      rounded once, when out is stored
//   backward   dwte[tokens[b,t],:] += scale dropout(dout[b,t,:])              fp32, added in the order of (b,t)
//              dwpe[t,:] = sum over b of dropout(dout[b,t,:])    fp32, in the order of b; 0 for rows t >= T
//                       or += that sum, computed first           rows t >= T unchanged
//   With starts (ops.h) wpe's row is t - starts[b,t], and its gradients are added to dwpe (after dwpe = 0, without ADD)
//   one by one in the order of (b,t).
//
//   out, dout (B,T,C)   tokens (B,T) int32   wte, dwte (Vp,C)   wpe, dwpe (n_positions,C), n_positions >= T; wpe may be
//   absent (data NULL), as in models with RoPE
// Dropout: sample drop.sample0 + b, element t C + c. out, wte, wpe share one dtype; dwte and dwpe are fp32.
// Radford et al. 2019 (GPT-2); Srivastava et al. 2014 (dropout).
#pragma once
#include "ops_norms.h"
#if PART_LAUNCHERS
// Overwrites out. A token outside [0, Vp) ends the program.
void embedding_forward(Ctx *c, Tensor out, Tensor tokens, Tensor wte, Tensor wpe, Dropout drop,
                       Tensor starts, float scale) {
  int64_t B = tokens.shape[0], T = tokens.shape[1], C = wte.shape[1];
  starts_check(starts, B, T);
  CHECK_SHAPE(tokens, B, T);
  CHECK_SHAPE(out, B, T, C);
  CHECK_SHAPE(wte, wte.shape[0], C);
  if (wpe.data) {
    CHECK_SHAPE(wpe, wpe.shape[0], C);
    CHECK(wpe.shape[0] >= T, "embedding_forward: %lld tokens a sequence, wpe has %lld positions", (long long)T,
          (long long)wpe.shape[0]);
    CHECK_DTYPE(wpe, out.dtype);
  }
  CHECK_DTYPE(tokens, I32);
  CHECK_DTYPE(wte, out.dtype);
  CALL_OP(c, norms, embedding_forward, out, tokens, wte, wpe, drop, starts, scale);
}

// Adds to dwte in both modes; overwrites dwpe or adds to it, as mode says. dwte or dwpe may be absent (data NULL). A
// token outside [0, Vp) ends the program if dwte is present; dwpe does not depend on tokens.
void embedding_backward(Ctx *c, Tensor dwte, Tensor dwpe, Tensor dout, Tensor tokens, Dropout drop,
                        Accumulate mode, Tensor starts, float scale) {
  int64_t B = tokens.shape[0], T = tokens.shape[1], C = dout.shape[2];
  starts_check(starts, B, T);
  CHECK_SHAPE(tokens, B, T);
  CHECK_SHAPE(dout, B, T, C);
  CHECK_DTYPE(tokens, I32);
  if (dwte.data) {
    CHECK_SHAPE(dwte, dwte.shape[0], C);
    CHECK_DTYPE(dwte, F32);
  }
  if (dwpe.data) {
    CHECK_SHAPE(dwpe, dwpe.shape[0], C);
    CHECK_DTYPE(dwpe, F32);
    CHECK(dwpe.shape[0] >= T, "embedding_backward: %lld tokens a sequence, dwpe has %lld positions", (long long)T,
          (long long)dwpe.shape[0]);
  }
  CALL_OP(c, norms, embedding_backward, dwte, dwpe, dout, tokens, drop, mode, starts, scale);
}
#endif

#if PART_CPU || PART_CUDA
#include "flat.cuh"
#include "random.h"

template <class T> struct EmbeddingOp {          // rows of out; wpe, starts NULL: absent
  T *out;
  const T *wte, *wpe;
  const int32_t *tokens, *starts;
  int64_t vocab, seq_len, C;
  float scale;
  DropKey drop;
  const StepState *state;
  template <class N> LANES_OF void at(int64_t r, int64_t i, N n) const {
    const int64_t t = r % seq_len, token = tokens[r];
    DEVICE_CHECK(token >= 0 && token < vocab, "embedding: a token outside the table");
    auto x = vf_load_n(wte + token * C + i, n);
    if (wpe) {
      auto position = vf_load_n(wpe + (t - (starts ? starts[r] : 0)) * C + i, n);
      each(n, [this](vf &x, vf y) LANES_EACH { x = vf_fma(x, vf_set1(scale), y); }, x, position);
    } else {
      each(n, [this](vf &x) LANES_EACH { x = vf_mul(x, vf_set1(scale)); }, x);
    }
    if (drop.on) x = dropped(x, &drop, drop_step(&drop, state), drop.sample0 + r / seq_len, t * C + i, n);
    vf_store_n(out + r * C + i, x, n);
  }
};
#if PART_CPU                                     // CUDA's kernels check
static void embedding_check(Tensor tokens, int64_t vocab) {
  for (int64_t r = 0; r < numel(tokens); r++) {
    const int32_t token = ((const int32_t *)tokens.data)[r];
    CHECK(token >= 0 && token < vocab, "embedding: token %d at position %lld, the table has %lld rows", token,
          (long long)r, (long long)vocab);
  }
}
#endif
void embedding_forward_impl(Ctx *c, Tensor out, Tensor tokens, Tensor wte, Tensor wpe, Dropout drop,
                            Tensor starts, float scale) {
#if PART_CPU
  embedding_check(tokens, wte.shape[0]);
#endif
  DISPATCH(out.dtype, T, {
    const EmbeddingOp<T> op = {(T *)out.data, (const T *)wte.data, (const T *)wpe.data, (const int32_t *)tokens.data,
                               (const int32_t *)starts.data, wte.shape[0], tokens.shape[1], wte.shape[1], scale,
                               drop_key(drop), c->state};
    flat_rows(c, op, numel(tokens), op.C, op.out, op.wte, op.wpe);
  });
}
#endif

#if PART_CPU
struct EmbeddingBackward {                       // one call; dwte or dwpe NULL: absent
  float *dwte, *dwpe;
  const int32_t *tokens;
  int64_t B, seq_len, n_positions, C;
  bool add;                                      // to dwpe; dwte is always added to
  DropKey drop;
  uint32_t step;
  const int32_t *starts;                         // NULL: sequences are documents
  float scale;                                   // of dwte
};
// n <= 16 elements of dout after dropout.
template <class T, bool DROP>
INLINE vf embedding_gradient(const EmbeddingBackward *p, const T *dout, int64_t sample, int64_t e, int64_t n) {
  const vf g = vf_load_n(dout, n);
  return DROP ? dropped(g, &p->drop, p->step, p->drop.sample0 + sample, e, n) : g;
}

// One thread's columns [from, to) of a table to which gradients are added one by one, all positions in order: of dwte,
// or, with documents (starts), of dwpe.
template <class T, bool DROP>
static void embedding_backward_rows(EmbeddingBackward p, bool words, const T *dout, int64_t from, int64_t to) {
  const vf scale = vf_set1(words ? p.scale : 1.0f);
  for (int64_t r = 0; r < p.B * p.seq_len; r++) {
    const int64_t b = r / p.seq_len, t = r % p.seq_len;
    const T *g = dout + r * p.C;
    float *row = words ? p.dwte + p.tokens[r] * p.C : p.dwpe + (t - p.starts[r]) * p.C;
    for (int64_t i = from; i < to; i += VF) {
      const int64_t n = to - i < VF ? to - i : VF;
      const vf x = embedding_gradient<T, DROP>(&p, g + i, b, t * p.C + i, n);
      vf_store_n(row + i, vf_fma(x, scale, vf_load_n(row + i, n)), n);
    }
  }
}
// n <= 16 elements of dwpe, e the first of them: the sum is finished in registers before it is added to dwpe.
template <class T, bool DROP>
INLINE void embedding_sum_position(const EmbeddingBackward *p, const T *dout, int64_t e, int64_t n) {
  vf sum = embedding_gradient<T, DROP>(p, dout + e, 0, e, n);
  for (int64_t b = 1; b < p->B; b++) {
    const T *g = dout + b * p->seq_len * p->C + e;
    sum = vf_add(sum, embedding_gradient<T, DROP>(p, g, b, e, n));
  }
  if (p->add) sum = vf_add(vf_load_n(p->dwpe + e, n), sum);
  vf_store_n(p->dwpe + e, sum, n);
}
// One thread's columns [from, to) of dwpe. A separate pass draws dropout's numbers a second time, but saves reading and
// writing dwpe once per sequence.
template <class T, bool DROP>
static void embedding_backward_positions(EmbeddingBackward p, const T *dout, int64_t from, int64_t to) {
  const int64_t rows = p.B ? p.seq_len : 0;
  for (int64_t t = 0; t < rows; t++) {
    vf_walk(to - from, [&](int64_t i, int64_t n) LANES_EACH {
      embedding_sum_position<T, DROP>(&p, dout, t * p.C + from + i, n);
    });
  }
  if (!p.add && to > from)
    for (int64_t t = rows; t < p.n_positions; t++)
      memset(p.dwpe + t * p.C + from, 0, (size_t)(to - from) * sizeof(float));
}
template <class T, bool DROP>
static void embedding_backward_columns(EmbeddingBackward p, const T *dout, int64_t from, int64_t to) {
  if (p.dwte) embedding_backward_rows<T, DROP>(p, true, dout, from, to);
  if (p.dwpe && !p.starts) embedding_backward_positions<T, DROP>(p, dout, from, to);
  if (!p.dwpe || !p.starts) return;
  for (int64_t r = 0; !p.add && to > from && r < p.n_positions; r++)
    memset(p.dwpe + r * p.C + from, 0, (size_t)(to - from) * sizeof(float));
  embedding_backward_rows<T, DROP>(p, false, dout, from, to);
}
// Threads divide the columns: a frequent token is then no bottleneck, and every sum keeps its order.
void embedding_backward_impl(Ctx *c, Tensor dwte, Tensor dwpe, Tensor dout, Tensor tokens, Dropout drop,
                             Accumulate mode, Tensor starts, float scale) {
  const int64_t C = dout.shape[2], vectors = (C + VF - 1) / VF;
  const EmbeddingBackward p = {(float *)dwte.data, (float *)dwpe.data, (const int32_t *)tokens.data, tokens.shape[0],
                               tokens.shape[1], dwpe.shape[0], C, mode == ADD, drop_key(drop),
                               drop.p > 0.0f ? c->state->in.step : 0, (const int32_t *)starts.data, scale};
  if (p.dwte) embedding_check(tokens, dwte.shape[0]);
  parallel_for(c->threads, 0, c->threads, 1, [=](int64_t thread) {
    int64_t from = vectors * thread / c->threads * VF, to = vectors * (thread + 1) / c->threads * VF;
    if (to > C) to = C;
    DISPATCH(dout.dtype, T, {
      if (drop.p > 0.0f) embedding_backward_columns<T, true>(p, (const T *)dout.data, from, to);
      else embedding_backward_columns<T, false>(p, (const T *)dout.data, from, to);
    });
  });
}
#endif
