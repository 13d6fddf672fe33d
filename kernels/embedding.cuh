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

#if PART_CPU
#include "random.h"

template <class T, bool DROP>
INLINE void embedding_forward_lanes(T *out, const T *wte, const T *wpe, const Dropout *d, int64_t s, int64_t e,
                                    int64_t n, vf scale) {
  vf x = vf_load_n(wte, n);
  x = wpe ? vf_fma(x, scale, vf_load_n(wpe, n)) : vf_mul(x, scale);
  if (DROP) x = vf_mul(x, dropout_scale16(d, s, e));
  vf_store_n(out, x, n);
}

template <class T, bool DROP>
static void embedding_forward_rows(Ctx *c, T *out, const int32_t *tokens, Tensor wte, const T *wpe, int64_t rows,
                                   int64_t seq_len, Dropout drop, const int32_t *starts, float scale) {
  const int64_t C = wte.shape[1], vocab = wte.shape[0];
  parallel_for(c->threads, 0, rows, 1, [=](int64_t r) {
    const int64_t t = r % seq_len, sample = drop.sample0 + r / seq_len, token = tokens[r];
    CHECK(token >= 0 && token < vocab, "embedding: token %lld at position %lld, the table has %lld rows",
          (long long)token, (long long)r, (long long)vocab);
    const Dropout d = drop;                      // a private copy stays in registers
    const T *row = (const T *)wte.data + token * C;
    const T *position = wpe ? wpe + (t - (starts ? starts[r] : 0)) * C : NULL;
    T *to = out + r * C;
    const vf times = vf_set1(scale);
    for (int64_t i = 0; i < C; i += VF)
      embedding_forward_lanes<T, DROP>(to + i, row + i, position ? position + i : NULL, &d, sample, t * C + i,
                                       C - i < VF ? C - i : VF, times);
  });
}
void embedding_forward_impl(Ctx *c, Tensor out, Tensor tokens, Tensor wte, Tensor wpe, Dropout drop,
                            Tensor starts, float scale) {
  if (drop.p > 0.0f) drop.step = c->state->in.step;
  const int64_t rows = numel(tokens), seq_len = tokens.shape[1];
  const int32_t *ids = (const int32_t *)tokens.data, *s = (const int32_t *)starts.data;
  if (drop.p > 0.0f)
    DISPATCH(out.dtype, T,
             embedding_forward_rows<T, true>(c, (T *)out.data, ids, wte, (T *)wpe.data, rows, seq_len, drop, s, scale));
  else
    DISPATCH(out.dtype, T,
             embedding_forward_rows<T, false>(c, (T *)out.data, ids, wte, (T *)wpe.data, rows, seq_len, drop, s,
                                              scale));
}

struct EmbeddingBackward {                       // one call; dwte or dwpe NULL: absent
  float *dwte, *dwpe;
  const int32_t *tokens;
  int64_t B, seq_len, n_positions, C;
  bool add;                                      // to dwpe; dwte is always added to
  Dropout drop;
  const int32_t *starts;                         // NULL: sequences are documents
  float scale;                                   // of dwte
};
// n <= 16 elements of dout after dropout.
template <class T, bool DROP>
INLINE vf embedding_gradient(const T *dout, const Dropout *d, int64_t s, int64_t e, int64_t n) {
  vf g = vf_load_n(dout, n);
  return DROP ? vf_mul(g, dropout_scale16(d, s, e)) : g;
}

template <class T, bool DROP>
INLINE void embedding_add_word(float *word, const T *dout, const Dropout *d, int64_t s, int64_t e, int64_t n,
                               vf scale) {
  vf_store_n(word, vf_fma(embedding_gradient<T, DROP>(dout, d, s, e, n), scale, vf_load_n(word, n)), n);
}
// One thread's columns [from, to) of dwte: all positions in order.
template <class T, bool DROP>
static void embedding_backward_words(EmbeddingBackward p, const T *dout, int64_t from, int64_t to) {
  const vf scale = vf_set1(p.scale);
  for (int64_t b = 0; b < p.B; b++)
    for (int64_t t = 0; t < p.seq_len; t++) {
      const T *g = dout + (b * p.seq_len + t) * p.C;
      float *word = p.dwte + p.tokens[b * p.seq_len + t] * p.C;
      for (int64_t i = from; i < to; i += VF)
        embedding_add_word<T, DROP>(word + i, g + i, &p.drop, p.drop.sample0 + b, t * p.C + i,
                                    to - i < VF ? to - i : VF, scale);
    }
}
// n <= 16 elements of dwpe, e the first of them: the sum is finished in registers before it is added to dwpe.
template <class T, bool DROP>
INLINE void embedding_sum_position(const EmbeddingBackward *p, const T *dout, int64_t e, int64_t n) {
  vf sum = embedding_gradient<T, DROP>(dout + e, &p->drop, p->drop.sample0, e, n);
  for (int64_t b = 1; b < p->B; b++) {
    const T *g = dout + b * p->seq_len * p->C + e;
    sum = vf_add(sum, embedding_gradient<T, DROP>(g, &p->drop, p->drop.sample0 + b, e, n));
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
    int64_t i = from;
    for (; i + VF <= to; i += VF) embedding_sum_position<T, DROP>(&p, dout, t * p.C + i, VF);
    if (i < to) embedding_sum_position<T, DROP>(&p, dout, t * p.C + i, to - i);
  }
  if (!p.add && to > from)
    for (int64_t t = rows; t < p.n_positions; t++)
      memset(p.dwpe + t * p.C + from, 0, (size_t)(to - from) * sizeof(float));
}
// embedding_backward_positions with documents (starts): gradients are added one by one.
template <class T, bool DROP>
static void embedding_backward_documents(EmbeddingBackward p, const T *dout, int64_t from, int64_t to) {
  for (int64_t r = 0; !p.add && to > from && r < p.n_positions; r++)
    memset(p.dwpe + r * p.C + from, 0, (size_t)(to - from) * sizeof(float));
  for (int64_t r = 0; r < p.B * p.seq_len; r++)
    for (int64_t i = from, t = r % p.seq_len; i < to; i += VF)
      embedding_add_word<T, DROP>(p.dwpe + (t - p.starts[r]) * p.C + i, dout + r * p.C + i, &p.drop,
                                  p.drop.sample0 + r / p.seq_len, t * p.C + i, to - i < VF ? to - i : VF,
                                  vf_set1(1.0f));
}
template <class T, bool DROP>
static void embedding_backward_columns(EmbeddingBackward p, const T *dout, int64_t from, int64_t to) {
  if (p.dwte) embedding_backward_words<T, DROP>(p, dout, from, to);
  if (p.dwpe && p.starts) embedding_backward_documents<T, DROP>(p, dout, from, to);
  else if (p.dwpe) embedding_backward_positions<T, DROP>(p, dout, from, to);
}
// Threads divide the columns: a frequent token is then no bottleneck, and every sum keeps its order.
void embedding_backward_impl(Ctx *c, Tensor dwte, Tensor dwpe, Tensor dout, Tensor tokens, Dropout drop,
                             Accumulate mode, Tensor starts, float scale) {
  if (drop.p > 0.0f) drop.step = c->state->in.step;
  const int64_t C = dout.shape[2], vectors = (C + VF - 1) / VF;
  const EmbeddingBackward p = {(float *)dwte.data, (float *)dwpe.data, (const int32_t *)tokens.data, tokens.shape[0],
                               tokens.shape[1], dwpe.shape[0], C, mode == ADD, drop,
                               (const int32_t *)starts.data, scale};
  for (int64_t r = 0; p.dwte && r < p.B * p.seq_len; r++)
    CHECK(p.tokens[r] >= 0 && p.tokens[r] < dwte.shape[0],
          "embedding: token %d at position %lld, the table has %lld rows", p.tokens[r], (long long)r,
          (long long)dwte.shape[0]);
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
