// embedding_cuda.cuh: embedding_backward on CUDA.
//
// The positions are sorted by token (ties in order of position), so that the positions of one token are neighbours.
// Then a block adds the gradients of one token to its row of dwte in order of position, as the CPU does, with bitwise
// identical results, however many positions a token has. A second kernel sums dwpe. If dwte is absent nothing is
// sorted.
//
// The sort: chunks of 1024 positions are ranked by counting, each within a block. The place of a position among all is
// its rank in its own chunk plus, for every other chunk, the result of a binary search there. Two launches, no atomics,
// and every intermediate value is deterministic: 65536 positions need 64 searches of ten steps each.
#pragma once
#include "embedding.cuh"
#include "workspace.h"
#include "kernels/cuda/lane.cuh"

// ---- backward: the sort --------------------------------------------------------------------------------------------
enum { EMBEDDING_CHUNK = 1024, EMBEDDING_PLACES = 8 };
// Arrays of `positions` elements in the workspace: tokens and their positions, sorted within chunks, and sorted as a
// whole.
struct EmbeddingSort { int32_t *chunk_token, *chunk_position, *token, *position; };
static inline EmbeddingSort embedding_sort_in(void *workspace, int64_t positions) {
  int32_t *p = (int32_t *)workspace;
  EmbeddingSort s = {p, p + positions, p + 2 * positions, p + 3 * positions};
  return s;
}
// Every thread ranks two positions of the chunk: how many tokens are smaller, or equal and earlier. One read of shared
// memory gives four tokens, at the same address for the whole warp.
__global__ static void __launch_bounds__(EMBEDDING_CHUNK / 2)
embedding_chunk_kernel(EmbeddingSort s, const int32_t *tokens, int64_t positions, int64_t vocab) {
  SHARED(int32_t, chunk, EMBEDDING_CHUNK);
  const int64_t base = (int64_t)blockIdx.x * EMBEDDING_CHUNK;
  const int here = positions - base < EMBEDDING_CHUNK ? (int)(positions - base) : (int)EMBEDDING_CHUNK;
  const int a = (int)threadIdx.x, b = a + EMBEDDING_CHUNK / 2;
  for (int i = a; i < EMBEDDING_CHUNK; i += EMBEDDING_CHUNK / 2) {            // missing tokens are larger than all
    chunk[i] = i < here ? tokens[base + i] : INT32_MAX;
    DEVICE_CHECK(i >= here || (chunk[i] >= 0 && chunk[i] < vocab), "embedding: a token outside the table");
  }
  __syncthreads();
  const int32_t token_a = chunk[a], token_b = chunk[b];
  int rank_a = 0, rank_b = 0;
  for (int i = 0; i < here; i += 4) {
    const Pack<int32_t> x = load_pack(chunk + i);
    UNROLL for (int k = 0; k < 4; k++) {
      rank_a += x.x[k] < token_a || (x.x[k] == token_a && i + k < a);
      rank_b += x.x[k] < token_b || (x.x[k] == token_b && i + k < b);
    }
  }
  if (a < here) s.chunk_token[base + rank_a] = token_a, s.chunk_position[base + rank_a] = (int32_t)(base + a);
  if (b < here) s.chunk_token[base + rank_b] = token_b, s.chunk_position[base + rank_b] = (int32_t)(base + b);
}
// Elements of sorted x[0..n) below `key`.
__device__ static inline int embedding_below(const int32_t *x, int n, int64_t key) {
  int low = 0;
  while (n > 0) {
    const int half = n / 2;
    const bool right = x[low + half] < key;
    low = right ? low + half + 1 : low;
    n = right ? n - half - 1 : half;
  }
  return low;
}
__global__ static void __launch_bounds__(FLAT_THREADS) embedding_merge_kernel(EmbeddingSort s, int64_t positions) {
  const int64_t i = (int64_t)blockIdx.x * FLAT_THREADS + threadIdx.x, own = i / EMBEDDING_CHUNK * EMBEDDING_CHUNK;
  if (i >= positions) return;
  const int64_t token = s.chunk_token[i];
  int64_t place = i - own;
  for (int64_t base = 0; base < positions; base += EMBEDDING_CHUNK) {         // equal tokens count in earlier chunks
    const int here = positions - base < EMBEDDING_CHUNK ? (int)(positions - base) : (int)EMBEDDING_CHUNK;
    if (base != own) place += embedding_below(s.chunk_token + base, here, base < own ? token + 1 : token);
  }
  s.token[place] = (int32_t)token;
  s.position[place] = s.chunk_position[i];
}

// ---- backward: the sums --------------------------------------------------------------------------------------------
template <class T> struct EmbeddingBackward {    // dwte or dwpe NULL: absent; add: to dwpe; dwte is always added to
  float *dwte, *dwpe;
  const T *dout;
  int64_t batch, seq_len, positions, C;
  bool add;
  DropKey drop;
  const StepState *state;
  const int32_t *starts;                         // NULL: sequences are documents
  float scale;                                   // of dwte
};
template <class T, int W>
__device__ static inline Lanes<W> embedding_gradient(const EmbeddingBackward<T> *p, Lanes<W> g, int32_t r, int64_t i,
                                                     uint32_t step) {
  if (!p->drop.on) return g;
  const uint32_t sample = (uint32_t)r / (uint32_t)p->seq_len, t = (uint32_t)r % (uint32_t)p->seq_len;
  return dropped(g, &p->drop, step, p->drop.sample0 + sample, t * p->C + i, LaneCount<W>());
}
// Adds the gradients from `place` of the sorted order on, as long as they belong to one token, to columns
// i .. i + W - 1 of its row. Several rows are in flight at a time; they are added in order.
template <class T, int W>
__device__ static inline void embedding_add_token(const EmbeddingBackward<T> *p, const EmbeddingSort *s, int32_t token,
                                                  int64_t place, int64_t i, uint32_t step) {
  constexpr int AHEAD = sizeof(T) == 4 ? 4 : 6;  // fits in 80 registers: three blocks per SM
  Lanes<W> sum = lanes_load<W>(p->dwte + token * p->C + i);
  for (int count = AHEAD; count == AHEAD; place += AHEAD) {
    int32_t r[AHEAD], of[AHEAD];
    LanesRaw<W, T> g[AHEAD];
    UNROLL for (int k = 0; k < AHEAD; k++) {     // all at once: one wait for memory, whatever the tokens are
      const int64_t at = place + k < p->positions ? place + k : p->positions - 1;
      of[k] = s->token[at], r[k] = s->position[at];
    }
    count = 0;
    UNROLL for (int k = 0; k < AHEAD; k++)       // sorted: after another token none is ours
      if (place + k < p->positions && of[k] == token) count = k + 1;
    UNROLL for (int k = 0; k < AHEAD; k++) if (k < count) g[k] = lanes_read<W>(p->dout + r[k] * p->C + i);
    UNROLL for (int k = 0; k < AHEAD; k++) {
      if (k >= count) continue;
      const Lanes<W> x = embedding_gradient<T, W>(p, lanes_unpack<W, T>(g[k]), r[k], i, step);
      UNROLL for (int j = 0; j < W; j++) sum.x[j] = fmaf(x.x[j], p->scale, sum.x[j]);
    }
  }
  lanes_store<W>(p->dwte + token * p->C + i, sum);
}
// Block (x, y) handles the tokens whose first position is among eight places of the sorted order, and the y-th part of
// the columns. Most places are not a token's first; one wait for memory finds that out for all eight.
template <class T, int W>
__global__ static void __launch_bounds__(FLAT_THREADS, 3)
embedding_wte_kernel(EmbeddingBackward<T> p, EmbeddingSort s) {
  const int64_t base = (int64_t)blockIdx.x * EMBEDDING_PLACES, i = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * W;
  if (i >= p.C) return;
  const uint32_t step = drop_step(&p.drop, p.state);
  int32_t token[EMBEDDING_PLACES + 1];           // of the place before, and of the eight
  UNROLL for (int k = 0; k <= EMBEDDING_PLACES; k++) {
    const int64_t at = base + k - 1 < p.positions ? base + k - 1 : p.positions - 1;
    token[k] = s.token[at < 0 ? 0 : at];
  }
  unsigned begins = base == 0;
  UNROLL for (int k = 0; k < EMBEDDING_PLACES; k++) begins |= (unsigned)(token[k + 1] != token[k]) << k;
  for (int k = 0; begins; k++, begins >>= 1)
    if (begins & 1) embedding_add_token<T, W>(&p, &s, s.token[base + k], base + k, i, step);
}
// Block (x, y): row x of dwpe, the y-th part of the columns; four rows in flight at a time.
template <class T, int W>
__global__ static void __launch_bounds__(FLAT_THREADS) embedding_wpe_kernel(EmbeddingBackward<T> p) {
  const int64_t t = blockIdx.x, i = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * W;
  if (i >= p.C) return;
  const uint32_t step = drop_step(&p.drop, p.state);
  Lanes<W> sum = lanes_of<W>(0.0f);
  if (t < p.seq_len)
    for (int64_t b = 0; b < p.batch; b += 4) {
      Lanes<W> g[4] = {};
      UNROLL for (int k = 0; k < 4; k++)
        if (b + k < p.batch) g[k] = lanes_load<W>(p.dout + ((b + k) * p.seq_len + t) * p.C + i);
      UNROLL for (int k = 0; k < 4; k++) {
        if (b + k >= p.batch) continue;
        const Lanes<W> x = embedding_gradient<T, W>(&p, g[k], (int32_t)((b + k) * p.seq_len + t), i, step);
        UNROLL for (int j = 0; j < W; j++) sum.x[j] = b + k ? sum.x[j] + x.x[j] : x.x[j];
      }
    }
  if (p.add) {
    const Lanes<W> old = lanes_load<W>(p.dwpe + t * p.C + i);
    UNROLL for (int j = 0; j < W; j++) sum.x[j] = old.x[j] + sum.x[j];
  }
  lanes_store<W>(p.dwpe + t * p.C + i, sum);
}
// embedding_wpe_kernel with documents: for row t of dwpe, the gradients of all tokens at position t of their document
// are added one by one, in the order of (b, token).
template <class T, int W>
__global__ static void __launch_bounds__(FLAT_THREADS) embedding_wpe_documents_kernel(EmbeddingBackward<T> p) {
  const int64_t t = blockIdx.x, i = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * W;
  if (i >= p.C) return;
  const uint32_t step = drop_step(&p.drop, p.state);
  Lanes<W> sum = p.add ? lanes_load<W>(p.dwpe + t * p.C + i) : lanes_of<W>(0.0f);
  for (int64_t b = 0; b < p.batch; b++)
    for (int64_t r = b * p.seq_len + t; r < (b + 1) * p.seq_len; r++) {
      if (r - b * p.seq_len - p.starts[r] != t) continue;
      const Lanes<W> g = embedding_gradient<T, W>(&p, lanes_load<W>(p.dout + r * p.C + i), (int32_t)r, i, step);
      UNROLL for (int k = 0; k < W; k++) sum.x[k] += g.x[k];
    }
  lanes_store<W>(p.dwpe + t * p.C + i, sum);
}
// Threads for a row of C columns taken W at a time.
static inline unsigned embedding_threads(int64_t C, int W) {
  const int64_t warps = (C + (int64_t)W * WARP - 1) / ((int64_t)W * WARP);
  return (unsigned)(warps * WARP < FLAT_THREADS ? warps * WARP : FLAT_THREADS);
}
// rows: number of rows of dwpe that are written.
template <class T, int W>
static void embedding_backward_sums(Ctx *c, EmbeddingBackward<T> p, EmbeddingSort s, int64_t rows) {
  const unsigned threads = embedding_threads(p.C, W);
  const unsigned parts = (unsigned)((p.C + (int64_t)threads * W - 1) / ((int64_t)threads * W));
  const unsigned eights = (unsigned)((p.positions + EMBEDDING_PLACES - 1) / EMBEDDING_PLACES);
  if (p.dwte && eights) LAUNCH((embedding_wte_kernel<T, W>), dim3(eights, parts), threads, 0, STREAM(c), p, s);
  if (!p.dwpe || !rows) return;
  if (p.starts) LAUNCH((embedding_wpe_documents_kernel<T, W>), dim3((unsigned)rows, parts), threads, 0, STREAM(c), p);
  else LAUNCH((embedding_wpe_kernel<T, W>), dim3((unsigned)rows, parts), threads, 0, STREAM(c), p);
}
// The positions sorted by token, in the workspace.
static EmbeddingSort embedding_sort(Ctx *c, const int32_t *tokens, int64_t n, int64_t vocab) {
  CHECK(c->workspace_bytes >= embedding_sort_bytes(n), "embedding_backward: workspace of %zu bytes, needs %zu",
        c->workspace_bytes, embedding_sort_bytes(n));
  const EmbeddingSort s = embedding_sort_in(c->workspace, n);
  if (n == 0) return s;
  LAUNCH(embedding_chunk_kernel, (unsigned)((n + EMBEDDING_CHUNK - 1) / EMBEDDING_CHUNK), EMBEDDING_CHUNK / 2, 0,
         STREAM(c), s, tokens, n, vocab);
  LAUNCH(embedding_merge_kernel, (unsigned)((n + FLAT_THREADS - 1) / FLAT_THREADS), FLAT_THREADS, 0, STREAM(c), s, n);
  return s;
}
void embedding_backward_impl(Ctx *c, Tensor dwte, Tensor dwpe, Tensor dout, Tensor tokens, Dropout drop,
                             Accumulate mode, Tensor starts, float scale) {
  const int64_t n = numel(tokens), C = dout.shape[2], B = tokens.shape[0], seq_len = tokens.shape[1];
  const int64_t rows = mode == OVERWRITE ? dwpe.shape[0] : B ? seq_len : 0;
  CHECK(n < INT32_MAX, "embedding_backward: %lld positions", (long long)n);
  EmbeddingSort s = {};
  if (dwte.data) s = embedding_sort(c, (const int32_t *)tokens.data, n, dwte.shape[0]);
  const bool wide = C % LANES == 0 && lanes_aligned(dout.data, dwte.data, dwpe.data);
  DISPATCH(dout.dtype, T, {
    const EmbeddingBackward<T> p = {(float *)dwte.data, (float *)dwpe.data, (const T *)dout.data, B, seq_len, n, C,
                                    mode == ADD, drop_key(drop), c->state, (const int32_t *)starts.data, scale};
    if (wide) embedding_backward_sums<T, LANES>(c, p, s, rows);
    else embedding_backward_sums<T, 1>(c, p, s, rows);
  });
}
