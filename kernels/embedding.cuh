// embedding.cuh: token plus position embedding, with dropout.
//
//   forward    out[b,t,:] = dropout(wte[tokens[b,t],:] + wpe[t,:])            one rounding, when out is stored
//   backward   dwte[tokens[b,t],:] += dropout(dout[b,t,:])                    fp32, added in the order of (b,t)
//              dwpe[t,:] = sum over b of dropout(dout[b,t,:])    fp32, in the order of b; 0 for rows t >= T
//
//   out, dout (B,T,C)   tokens (B,T) int32   wte, dwte (Vp,C)   wpe, dwpe (n_positions,C), n_positions >= T
// Dropout: sample drop.sample0 + b, element t C + c. out, wte, wpe share one dtype; dwte and dwpe are fp32.
// Radford et al. 2019 (GPT-2); Srivastava et al. 2014 (dropout).
#pragma once
#include "ops.h"

#if PART_LAUNCH
// Overwrites out. A token outside [0, Vp) ends the program.
static inline void embedding_forward(Ctx *c, Tensor out, Tensor tokens, Tensor wte, Tensor wpe, Dropout drop) {
  int64_t B = tokens.shape[0], T = tokens.shape[1], C = wte.shape[1];
  CHECK_SHAPE(tokens, B, T);
  CHECK_SHAPE(out, B, T, C);
  CHECK_SHAPE(wte, wte.shape[0], C);
  CHECK_SHAPE(wpe, wpe.shape[0], C);
  CHECK(wpe.shape[0] >= T, "embedding_forward: %lld tokens a sequence, wpe has %lld positions", (long long)T,
        (long long)wpe.shape[0]);
  CHECK_DTYPE(tokens, I32);
  CHECK_DTYPE(wte, out.dtype);
  CHECK_DTYPE(wpe, out.dtype);
  c->ops->embedding_forward(c, out, tokens, wte, wpe, drop);
}

// Adds to dwte, overwrites dwpe.
static inline void embedding_backward(Ctx *c, Tensor dwte, Tensor dwpe, Tensor dout, Tensor tokens, Dropout drop) {
  int64_t B = tokens.shape[0], T = tokens.shape[1], C = dwte.shape[1];
  CHECK_SHAPE(tokens, B, T);
  CHECK_SHAPE(dout, B, T, C);
  CHECK_SHAPE(dwte, dwte.shape[0], C);
  CHECK_SHAPE(dwpe, dwpe.shape[0], C);
  CHECK(dwpe.shape[0] >= T, "embedding_backward: %lld tokens a sequence, dwpe has %lld positions", (long long)T,
        (long long)dwpe.shape[0]);
  CHECK_DTYPE(tokens, I32);
  CHECK_DTYPE(dwte, F32);
  CHECK_DTYPE(dwpe, F32);
  c->ops->embedding_backward(c, dwte, dwpe, dout, tokens, drop);
}
#endif

#if PART_CPU
#include "random.h"

static size_t embedding_workspace_bytes(const Ctx *, WorkspaceQuery) { return 0; }

template <class T, bool DROP>
INLINE void embedding_forward_lanes(T *out, const T *wte, const T *wpe, const Dropout *d, int64_t s, int64_t e,
                                    int64_t n) {
  vf x = vf_add(vf_load_n(wte, n), vf_load_n(wpe, n));
  if (DROP) x = vf_mul(x, dropout_scale16(d, s, e));
  vf_store_n(out, x, n);
}

template <class T, bool DROP>
static void embedding_forward_rows(Ctx *c, T *out, const int32_t *tokens, Tensor wte, const T *wpe, int64_t rows,
                                   int64_t seq_len, Dropout drop) {
  const int64_t C = wte.shape[1], vocab = wte.shape[0];
#pragma omp parallel for schedule(static) num_threads(c->threads)
  for (int64_t r = 0; r < rows; r++) {
    const int64_t t = r % seq_len, sample = drop.sample0 + r / seq_len, token = tokens[r];
    CHECK(token >= 0 && token < vocab, "embedding: token %lld at position %lld, the table has %lld rows",
          (long long)token, (long long)r, (long long)vocab);
    const Dropout d = drop;                      // a private copy stays in registers
    const T *row = (const T *)wte.data + token * C, *position = wpe + t * C;
    T *to = out + r * C;
    int64_t i = 0;
    for (; i + VF <= C; i += VF)
      embedding_forward_lanes<T, DROP>(to + i, row + i, position + i, &d, sample, t * C + i, VF);
    if (i < C) embedding_forward_lanes<T, DROP>(to + i, row + i, position + i, &d, sample, t * C + i, C - i);
  }
}
static void embedding_forward_impl(Ctx *c, Tensor out, Tensor tokens, Tensor wte, Tensor wpe, Dropout drop) {
  if (drop.p > 0.0f) drop.step = c->state->in.step;
  const int64_t rows = numel(tokens), seq_len = tokens.shape[1];
  const int32_t *ids = (const int32_t *)tokens.data;
  if (drop.p > 0.0f)
    DISPATCH(out.dtype, T,
             embedding_forward_rows<T, true>(c, (T *)out.data, ids, wte, (T *)wpe.data, rows, seq_len, drop));
  else
    DISPATCH(out.dtype, T,
             embedding_forward_rows<T, false>(c, (T *)out.data, ids, wte, (T *)wpe.data, rows, seq_len, drop));
}

template <class T, bool DROP>
INLINE void embedding_backward_lanes(float *dwte, float *dwpe, const T *dout, const Dropout *d, int64_t s, int64_t e,
                                     bool first, int64_t n) {
  vf g = vf_load_n(dout, n);
  if (DROP) g = vf_mul(g, dropout_scale16(d, s, e));
  vf_store_n(dwte, vf_add(vf_load_n(dwte, n), g), n);
  vf_store_n(dwpe, first ? g : vf_add(vf_load_n(dwpe, n), g), n);
}

// One thread's columns [from, to) of both gradients, walking all positions in order.
template <class T, bool DROP>
static void embedding_backward_columns(float *dwte, float *dwpe, const T *dout, const int32_t *tokens, int64_t B,
                                       int64_t seq_len, int64_t C, int64_t from, int64_t to, Dropout drop) {
  for (int64_t b = 0; b < B; b++)
    for (int64_t t = 0; t < seq_len; t++) {
      const Dropout d = drop;
      const T *g = dout + (b * seq_len + t) * C;
      float *word = dwte + tokens[b * seq_len + t] * C, *position = dwpe + t * C;
      int64_t i = from;
      for (; i + VF <= to; i += VF)
        embedding_backward_lanes<T, DROP>(word + i, position + i, g + i, &d, d.sample0 + b, t * C + i, b == 0, VF);
      if (i < to)
        embedding_backward_lanes<T, DROP>(word + i, position + i, g + i, &d, d.sample0 + b, t * C + i, b == 0, to - i);
    }
}
// Columns are what threads divide: a token that occurs often is then no bottleneck, and every sum keeps its order.
static void embedding_backward_impl(Ctx *c, Tensor dwte, Tensor dwpe, Tensor dout, Tensor tokens, Dropout drop) {
  if (drop.p > 0.0f) drop.step = c->state->in.step;
  const int64_t B = tokens.shape[0], seq_len = tokens.shape[1], C = dwte.shape[1], vectors = (C + VF - 1) / VF;
  const int32_t *ids = (const int32_t *)tokens.data;
  float *word = (float *)dwte.data, *position = (float *)dwpe.data;
  for (int64_t r = 0; r < B * seq_len; r++)
    CHECK(ids[r] >= 0 && ids[r] < dwte.shape[0], "embedding: token %d at position %lld, the table has %lld rows",
          ids[r], (long long)r, (long long)dwte.shape[0]);
#pragma omp parallel for schedule(static) num_threads(c->threads)
  for (int thread = 0; thread < c->threads; thread++) {
    int64_t from = vectors * thread / c->threads * VF, to = vectors * (thread + 1) / c->threads * VF;
    if (to > C) to = C;
    if (drop.p > 0.0f)
      DISPATCH(dout.dtype, T,
               embedding_backward_columns<T, true>(word, position, (T *)dout.data, ids, B, seq_len, C, from, to, drop));
    else
      DISPATCH(
          dout.dtype, T,
          embedding_backward_columns<T, false>(word, position, (T *)dout.data, ids, B, seq_len, C, from, to, drop));
    for (int64_t t = B ? seq_len : 0; t < dwpe.shape[0]; t++)
      if (to > from) memset(position + t * C + from, 0, (size_t)(to - from) * sizeof(float));
  }
}
#endif

#if PART_CUDA
#include "embedding_cuda.cuh"
#endif
