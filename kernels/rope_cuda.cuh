// rope_cuda.cuh: the CUDA part of rope.cuh. A group of lanes has a head of a row: each lane pairs of elements half a
// head apart, in registers from the only read to the only write. Where a half is of 16-byte pieces, a lane has eight
// neighbouring pairs, and a group as few lanes as that takes, a power of two; otherwise the group is a warp. A lane
// adds its squares in order, then the lanes their sums pairwise: the order depends on the head's size alone.
// A block has a run of neighbouring rows, and its groups take the heads of these rows in turn; in backward, first those
// of q, then those of k. There each lane adds up its columns of the weights' gradients over the run, the groups' sums
// are added in order, and layernorm_fold_kernel adds those of the runs. The rows of a run depend on the shape alone.
#pragma once
#include "layernorm_cuda.cuh"
#include "rope.cuh"

enum { ROPE_THREADS = 256 };

template <class T> struct RopeCall {             // raw, table, weights, partial NULL: absent
  T *qkv, *raw;
  const float *table;
  const T *weight[2];                            // of q, of k
  float *partial;                                // (runs, 2, hs)
  RopeShape s;
  RopeArgs a;
  int64_t rows, run_rows;
  const int32_t *starts;
  int lanes;                                     // of a group
  bool back;
};
// A lane's N pairs i and i + hs/2 of a head: eight neighbours if N is LANES, otherwise i = lane, lane + 32, ... A head
// that has no halves, because nothing rotates, has its last element as the second of a pair without a first.
template <int N> struct RopeHead { float a[N], b[N]; };
struct RopePair { int a, b; bool has_a, has_b; };
// Of the head that the group is at, if it is at one: where, and the lane's part of it.
struct RopeAt { int64_t row; int head, hs, lane; const float *table; bool on; };

template <int N> __device__ static inline RopePair rope_pair(int n, RopeAt at) {
  const int i = N == LANES ? LANES * at.lane + n : n * WARP + at.lane, d = at.hs / 2;
  return RopePair{i, d + i, at.on && i < d, at.on && d + i < at.hs};
}
template <int N, class T> __device__ static inline RopeHead<N> rope_read(const T *x, RopeAt at) {
  RopeHead<N> y = {};
  if constexpr (N == LANES) {
    const RopePair p = rope_pair<N>(0, at);
    if (!p.has_a) return y;
    const LanesRaw<N, T> a = lanes_read<N>(x + p.a), b = lanes_read<N>(x + p.b);
    const Lanes<N> first = lanes_unpack<N>(a), second = lanes_unpack<N>(b);
    UNROLL for (int n = 0; n < N; n++) y.a[n] = first.x[n], y.b[n] = second.x[n];
  } else UNROLL for (int n = 0; n < N; n++) {
    const RopePair p = rope_pair<N>(n, at);
    y.a[n] = p.has_a ? to_f32(x[p.a]) : 0.0f;
    y.b[n] = p.has_b ? to_f32(x[p.b]) : 0.0f;
  }
  return y;
}
template <int N, class T> __device__ static inline void rope_write(T *x, RopeHead<N> y, RopeAt at) {
  if constexpr (N == LANES) {
    const RopePair p = rope_pair<N>(0, at);
    if (!p.has_a) return;
    Lanes<N> first, second;
    UNROLL for (int n = 0; n < N; n++) first.x[n] = y.a[n], second.x[n] = y.b[n];
    lanes_store<N>(x + p.a, first);
    lanes_store<N>(x + p.b, second);
  } else UNROLL for (int n = 0; n < N; n++) {
    const RopePair p = rope_pair<N>(n, at);
    if (p.has_a) round_to(&x[p.a], y.a[n]);
    if (p.has_b) round_to(&x[p.b], y.b[n]);
  }
}
template <int N> __device__ static inline RopeHead<N> rope_rotate(RopeHead<N> y, RopeAt at, bool back) {
  const RopeHead<N> turn = rope_read<N>(at.table, at);           // cosines, sines
  UNROLL for (int n = 0; n < N; n++) {
    if (!rope_pair<N>(n, at).has_a) continue;
    const RopeTurned to = rope_turn(y.a[n], y.b[n], turn.a[n], turn.b[n], back);
    y.a[n] = to.a, y.b[n] = to.b;
  }
  return y;
}
__device__ static inline float rope_sum(float x, int lanes) {
  for (int d = lanes / 2; d; d /= 2) x += __shfl_xor_sync(FULL_WARP, x, d);
  return x;
}
template <int N> __device__ static inline float rope_rstd(RopeHead<N> y, int lanes, int hs, float eps) {
  float squares = 0.0f;
  UNROLL for (int n = 0; n < N; n++) squares = fmaf(y.b[n], y.b[n], fmaf(y.a[n], y.a[n], squares));
  return layernorm_rstd(rope_sum(squares, lanes), hs, eps);
}
// The weights of a head, 1 where there are none.
template <int N, class T> __device__ static inline RopeHead<N> rope_weight(const RopeCall<T> *p, RopeAt at) {
  const T *weight = p->weight[at.head >= p->s.n_head];
  if (weight) return rope_read<N>(weight, at);
  RopeHead<N> ones;
  UNROLL for (int n = 0; n < N; n++) ones.a[n] = ones.b[n] = 1.0f;
  return ones;
}
template <int N, class T>
__device__ static inline RopeHead<N> rope_norm(RopeHead<N> y, const RopeCall<T> *p, RopeAt at) {
  const float rstd = rope_rstd(y, p->lanes, at.hs, p->a.eps);
  const RopeHead<N> w = rope_weight<N>(p, at);
  UNROLL for (int n = 0; n < N; n++)
    y.a[n] = rope_normed(y.a[n], rstd, w.a[n]), y.b[n] = rope_normed(y.b[n], rstd, w.b[n]);
  return y;
}
// The gradient of x, where g is that of norm(x); adds to dweight.
template <int N, class T>
__device__ static inline RopeHead<N> rope_norm_backward(RopeHead<N> g, RopeHead<N> *dweight, RopeHead<N> x,
                                                        const RopeCall<T> *p, RopeAt at) {
  const float rstd = rope_rstd(x, p->lanes, at.hs, p->a.eps);
  const RopeHead<N> w = rope_weight<N>(p, at);
  float sum = 0.0f;
  UNROLL for (int n = 0; n < N; n++) {
    x.a[n] *= rstd, x.b[n] *= rstd;
    if (at.on) {                                 // without a head rstd may be infinite
      dweight->a[n] = fmaf(g.a[n], x.a[n], dweight->a[n]), dweight->b[n] = fmaf(g.b[n], x.b[n], dweight->b[n]);
    }
    g.a[n] *= w.a[n], g.b[n] *= w.b[n];
    sum = fmaf(g.b[n], x.b[n], fmaf(g.a[n], x.a[n], sum));
  }
  const float mean = rope_sum(sum, p->lanes) / (float)at.hs;
  UNROLL for (int n = 0; n < N; n++) {
    g.a[n] = rope_gradient(g.a[n], x.a[n], rstd, mean);
    g.b[n] = rope_gradient(g.b[n], x.b[n], rstd, mean);
  }
  return g;
}

// The rows of this block: the first, its position in its sequence, and how many. A turn gives every group a head of
// those from `first` on, `heads` a row; all lanes of a warp make as many turns, because they add across lanes.
struct RopeRun { int64_t begin; uint32_t position, rows; };
template <class T> __device__ static inline RopeRun rope_run(const RopeCall<T> *p) {
  const int64_t begin = blockIdx.x * p->run_rows, left = p->rows - begin;
  return RopeRun{begin, (uint32_t)(begin % p->s.seq_len), (uint32_t)(left < p->run_rows ? left : p->run_rows)};
}
template <class T>
__device__ static inline RopeAt rope_at(const RopeCall<T> *p, RopeRun run, uint32_t turn, uint32_t first,
                                        uint32_t heads) {
  const uint32_t i = turn + threadIdx.x / (uint32_t)p->lanes, row = i / heads;
  RopeAt at = {run.begin + row, (int)(first + i - row * heads), (int)p->s.hs, (int)threadIdx.x & (p->lanes - 1), NULL,
               row < run.rows};
  const uint32_t position = (run.position + row) % (uint32_t)p->s.seq_len;
  if (p->table && at.on) at.table = p->table + ((int64_t)position - (p->starts ? p->starts[at.row] : 0)) * p->s.hs;
  return at;
}
// Backward too where nothing but the rotation is undone: half the registers, so twice the reads in flight.
template <class T, int N>
__global__ static void __launch_bounds__(ROPE_THREADS) rope_forward_kernel(RopeCall<T> p) {
  const RopeRun run = rope_run(&p);
  const uint32_t heads = (uint32_t)p.s.heads, groups = ROPE_THREADS / (uint32_t)p.lanes;
  for (uint32_t turn = 0; turn < run.rows * heads; turn += groups) {
    const RopeAt at = rope_at(&p, run, turn, 0, heads);
    T *x = p.qkv + at.row * p.s.row + at.head * at.hs;
    RopeHead<N> y = rope_read<N>(x, at);
    if (p.raw) rope_write(p.raw + (at.row * p.s.heads + at.head) * at.hs, y, at);
    if (p.a.norm == QK_NORM_BEFORE) y = rope_norm(y, &p, at);
    if (at.table) y = rope_rotate(y, at, p.back);
    if (p.a.norm == QK_NORM_AFTER) y = rope_norm(y, &p, at);
    rope_write(x, y, at);
  }
}
// Shared memory: the threads' sums for q's weights, then for k's.
template <class T, int N>
__global__ static void __launch_bounds__(ROPE_THREADS) rope_backward_kernel(RopeCall<T> p) {
  SHARED(float, sums, 2 * N * ROPE_THREADS);
  const RopeRun run = rope_run(&p);
  const uint32_t groups = ROPE_THREADS / (uint32_t)p.lanes, all = (uint32_t)p.s.heads, q = (uint32_t)p.s.n_head;
  const bool after = p.a.norm == QK_NORM_AFTER;
  const int hs = (int)p.s.hs, d = hs / 2;
  for (int which = 0; which < 2; which++) {      // without sums all heads are one set
    const uint32_t heads = !p.partial ? all : which ? all - q : q;
    RopeHead<N> dweight = {};
    for (uint32_t turn = 0; turn < run.rows * heads; turn += groups) {
      const RopeAt at = rope_at(&p, run, turn, which ? q : 0, heads);
      T *to = p.qkv + at.row * p.s.row + at.head * at.hs;
      RopeHead<N> g = rope_read<N>(to, at), x = {};
      if (p.raw) x = rope_read<N>(p.raw + (at.row * p.s.heads + at.head) * at.hs, at);
      if (at.table && !after) g = rope_rotate(g, at, true);
      if (at.table && after) x = rope_rotate(x, at, false);
      if (p.raw) g = rope_norm_backward(g, &dweight, x, &p, at);
      if (at.table && after) g = rope_rotate(g, at, true);
      rope_write(to, g, at);
    }
    if (!p.partial) return;
    UNROLL for (int n = 0; n < N; n++) {
      sums[n * ROPE_THREADS + (int)threadIdx.x] = dweight.a[n];
      sums[(N + n) * ROPE_THREADS + (int)threadIdx.x] = dweight.b[n];
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < hs; i += ROPE_THREADS) {
      const int pair = i < d ? i : i - d, n = N == LANES ? pair % LANES : pair / WARP;
      const int lane = N == LANES ? pair / LANES : pair % WARP;
      float sum = 0.0f;
      for (int t = lane; t < ROPE_THREADS; t += p.lanes) sum += sums[(i < d ? n : N + n) * ROPE_THREADS + t];
      p.partial[((int64_t)blockIdx.x * 2 + which) * hs + i] = sum;
    }
    __syncthreads();
  }
}
// ---- QK_NORM_ALL: a block has a row, or in backward a run of rows; its threads take q's pairs in turn, then k's. The
// summation order depends on the columns alone. Not tuned: each pass over a row reads it again.
struct RopeColumns { int64_t first, count; };
template <class T> __device__ static inline RopeColumns rope_columns(const RopeCall<T> *p, int which) {
  const int64_t q = p->s.n_head * p->s.hs;
  return which ? RopeColumns{q, p->s.heads * p->s.hs - q} : RopeColumns{0, q};
}
// Of a block, the same in all threads; warps: one for each of its warps.
__device__ static inline float rope_block_sum(float x, float *warps) {
  x = rope_sum(x, WARP);
  __syncthreads();
  if (threadIdx.x % WARP == 0) warps[threadIdx.x / WARP] = x;
  __syncthreads();
  float sum = 0.0f;
  for (int w = 0; w < ROPE_THREADS / WARP; w++) sum += warps[w];
  return sum;
}
template <class T> __device__ static inline float rope_all_rstd(const T *x, int64_t n, float eps, float *warps) {
  float squares = 0.0f;
  for (int64_t i = threadIdx.x; i < n; i += ROPE_THREADS) squares = fmaf(to_f32(x[i]), to_f32(x[i]), squares);
  return layernorm_rstd(rope_block_sum(squares, warps), n, eps);
}
// Pair i of columns, rotated or rotated back.
__device__ static inline RopeTurned rope_turned(int64_t i, int64_t d, float x, float y, const float *table, bool back) {
  const int64_t in = i % d;
  if (!table) return RopeTurned{x, y};
  return rope_turn(x, y, table[in], table[d + in], back);
}
template <class T> __device__ static inline float rope_weight_at(const T *w, int64_t i) { return w ? to_f32(w[i]) : 1; }
template <class T> __global__ static void __launch_bounds__(ROPE_THREADS) rope_all_forward_kernel(RopeCall<T> p) {
  SHARED(float, warps, ROPE_THREADS / WARP);
  const int64_t r = blockIdx.x, d = p.s.hs / 2;
  const float *table = p.table ? p.table + (r % p.s.seq_len - (p.starts ? p.starts[r] : 0)) * p.s.hs : NULL;
  for (int which = 0; which < 2; which++) {
    const RopeColumns of = rope_columns(&p, which);
    T *x = p.qkv + r * p.s.row + of.first, *raw = p.raw + r * p.s.heads * p.s.hs + of.first;
    const T *w = p.weight[which];
    const float rstd = rope_all_rstd(x, of.count, p.a.eps, warps);
    for (int64_t i = threadIdx.x; i < of.count / 2; i += ROPE_THREADS) {
      const int64_t a = i / d * 2 * d + i % d, b = a + d;
      raw[a] = x[a], raw[b] = x[b];
      const RopeTurned y = rope_turned(i, d, rope_normed(to_f32(x[a]), rstd, rope_weight_at(w, a)),
                                       rope_normed(to_f32(x[b]), rstd, rope_weight_at(w, b)), table, false);
      round_to(&x[a], y.a);
      round_to(&x[b], y.b);
    }
  }
}
template <class T> __global__ static void __launch_bounds__(ROPE_THREADS) rope_all_backward_kernel(RopeCall<T> p) {
  SHARED(float, warps, ROPE_THREADS / WARP);
  const RopeRun run = rope_run(&p);
  const int64_t d = p.s.hs / 2, C = p.s.n_head * p.s.hs;
  for (int which = 0; which < 2; which++)
    for (int64_t r = run.begin; r < run.begin + run.rows; r++) {
      const RopeColumns of = rope_columns(&p, which);
      const float *table = p.table ? p.table + r % p.s.seq_len * p.s.hs : NULL;
      T *g = p.qkv + r * p.s.row + of.first;
      const T *raw = p.raw + r * p.s.heads * p.s.hs + of.first, *w = p.weight[which];
      float *dw = p.partial ? p.partial + ((int64_t)blockIdx.x * 2 + which) * C : NULL;
      const float rstd = rope_all_rstd(raw, of.count, p.a.eps, warps);
      float sum = 0.0f, mean = 0.0f;
      for (int pass = 0; pass < 2; pass++) {
        for (int64_t i = threadIdx.x; i < of.count / 2; i += ROPE_THREADS) {
          const int64_t a = i / d * 2 * d + i % d, b = a + d;
          const RopeTurned y = rope_turned(i, d, to_f32(g[a]), to_f32(g[b]), table, true);
          const float xa = to_f32(raw[a]) * rstd, xb = to_f32(raw[b]) * rstd;
          const float ga = y.a * rope_weight_at(w, a), gb = y.b * rope_weight_at(w, b);
          if (pass) {
            round_to(&g[a], rope_gradient(ga, xa, rstd, mean));
            round_to(&g[b], rope_gradient(gb, xb, rstd, mean));
            continue;
          }
          sum = fmaf(gb, xb, fmaf(ga, xa, sum));
          if (dw) dw[a] = fmaf(y.a, xa, r > run.begin ? dw[a] : 0.0f), dw[b] = fmaf(y.b, xb, r > run.begin ? dw[b] : 0);
        }
        if (!pass) mean = rope_block_sum(sum, warps) / (float)of.count;
      }
    }
}
template <class T> static void rope_launch(Ctx *c, RopeCall<T> p, bool back) {
  const unsigned runs = (unsigned)rope_runs(p.rows);
  CHECK(p.s.hs <= ROPE_HEAD_MAX, "rope: heads of %lld columns, %d at most", (long long)p.s.hs, (int)ROPE_HEAD_MAX);
  if (!p.rows) return;
  if (p.a.norm == QK_NORM_ALL) {
    if (back) LAUNCH((rope_all_backward_kernel<T>), runs, ROPE_THREADS, 0, STREAM(c), p);
    else LAUNCH((rope_all_forward_kernel<T>), (unsigned)p.rows, ROPE_THREADS, 0, STREAM(c), p);
    return;
  }
  const bool wide = p.s.hs % (2 * LANES) == 0 && p.s.hs <= 2 * LANES * WARP;
  CHECK(!wide || lanes_aligned(p.qkv, p.raw, p.table, p.weight[0], p.weight[1]),
        "rope: a tensor of heads of %lld columns is not on 16 bytes", (long long)p.s.hs);
  p.lanes = WARP, p.back = back;
  while (wide && p.lanes > 1 && p.s.hs <= LANES * p.lanes) p.lanes /= 2;
  // The first kernel that fits, by N, a lane's pairs of elements of a head: LANES neighbours (wide), or 1, 2, 4 or 16
  // pairs that are WARP apart, with which a warp covers a head of at most 2 WARP N elements.
#define ROPE_FORM(N, fits) \
  if (fits) { \
    if (back && (p.raw || p.partial)) LAUNCH((rope_backward_kernel<T, N>), runs, ROPE_THREADS, 0, STREAM(c), p); \
    else LAUNCH((rope_forward_kernel<T, N>), runs, ROPE_THREADS, 0, STREAM(c), p); \
    return; \
  }
#define ROPE_PAIRS(N) ROPE_FORM(N, p.s.hs <= 2 * WARP * N)
  ROPE_FORM(LANES, wide) ROPE_PAIRS(1) ROPE_PAIRS(2) ROPE_PAIRS(4) ROPE_PAIRS(16)
#undef ROPE_PAIRS
#undef ROPE_FORM
}
// The arguments of a launch; rope_launch sets the last two, lanes and back.
template <class T>
static RopeCall<T> rope_call(Tensor qkv, Tensor raw, Tensor table, Tensor q_weight, Tensor k_weight, float *partial,
                             RopeArgs a, const int32_t *starts = NULL) {
  const int64_t rows = qkv.shape[0] * qkv.shape[1];
  return RopeCall<T>{(T *)qkv.data, a.norm == QK_NORM_OFF ? NULL : (T *)raw.data, (const float *)table.data,
                     {(const T *)q_weight.data, (const T *)k_weight.data}, partial, rope_shape(qkv, a), a, rows,
                     rope_run_rows(rows), starts, 0, false};
}
void rope_forward_impl(Ctx *c, Tensor qkv, Tensor raw, Tensor table, Tensor q_weight, Tensor k_weight,
                       RopeArgs a, Tensor starts) {
  DISPATCH(qkv.dtype, T, rope_launch(c, rope_call<T>(qkv, raw, table, q_weight, k_weight, NULL, a,
                                                     (const int32_t *)starts.data), false));
}
void rope_backward_impl(Ctx *c, Tensor dqkv, Tensor dq_weight, Tensor dk_weight, Tensor raw, Tensor table,
                        Tensor q_weight, Tensor k_weight, RopeArgs a, Accumulate mode) {
  const bool sums = dq_weight.data || dk_weight.data;            // else there is nothing to add up, nor to fold
  const int64_t runs = rope_runs(dqkv.shape[0] * dqkv.shape[1]);
  const size_t need = rope_partials_bytes(dqkv.shape[0] * dqkv.shape[1], rope_sums(a));
  CHECK(c->workspace_bytes >= need, "rope_backward: workspace of %zu bytes, needs %zu", c->workspace_bytes, need);
  DISPATCH(dqkv.dtype, T, rope_launch(c, rope_call<T>(dqkv, raw, table, q_weight, k_weight,
                                                      sums ? (float *)c->workspace : NULL, a), true));
  layernorm_backward_fold(c, dq_weight, dk_weight, Tensor{}, runs, rope_sums(a), mode == ADD);
}
