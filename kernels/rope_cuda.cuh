// rope_cuda.cuh: the CUDA part of rope.cuh. A warp has a head of a row: each lane pairs of elements half a head apart,
// in registers from the only read to the only write. A block has a run of neighbouring rows, and its warps take the
// heads of these rows in turn; in backward each lane adds up its columns of the weights' gradients over the run, the
// warps' sums are added in order, and layernorm_fold_kernel adds those of the runs. The rows of a run depend on the
// shape alone.
#pragma once
#include "layernorm_cuda.cuh"
#include "rope.cuh"

enum { ROPE_WARPS = 8, ROPE_RUNS = 1024, ROPE_RUN_ROWS = 8 };
static inline int64_t rope_run_rows(int64_t rows) {
  const int64_t each = (rows + ROPE_RUNS - 1) / ROPE_RUNS;
  return each < ROPE_RUN_ROWS ? (int64_t)ROPE_RUN_ROWS : each;
}
static inline int64_t rope_runs(int64_t rows) { return (rows + rope_run_rows(rows) - 1) / rope_run_rows(rows); }
static size_t rope_workspace_bytes(const Ctx *, WorkspaceQuery q) {
  return (size_t)(rope_runs(q.batch * q.seq_len) * 2 * query_head_size(&q)) * sizeof(float);
}

template <class T> struct RopeCall {             // raw, table, weights, partial NULL: absent
  T *qkv, *raw;
  const float *table;
  const T *weight[2];                            // of q, of k
  float *partial;                                // (runs, 2, hs)
  RopeShape s;
  RopeArgs a;
  int64_t rows, run_rows;
  const int32_t *starts;
};
// A lane's elements of a head: the pairs i and i + hs/2, i = lane, lane + 32, ... A head that has no halves, because
// nothing turns, has its last element as the second of a pair without a first.
template <int PAIRS> struct RopeHead { float a[PAIRS], b[PAIRS]; };
struct RopePair { int a, b; bool has_a, has_b; };
__device__ static inline RopePair rope_pair(int n, int hs) {
  const int i = n * WARP + (int)threadIdx.x % WARP, d = hs / 2;
  return RopePair{i, d + i, i < d, d + i < hs};
}
template <int PAIRS, class T> __device__ static inline RopeHead<PAIRS> rope_read(const T *x, int hs) {
  RopeHead<PAIRS> y;
  UNROLL for (int n = 0; n < PAIRS; n++) {
    const RopePair p = rope_pair(n, hs);
    y.a[n] = p.has_a ? to_f32(x[p.a]) : 0.0f;
    y.b[n] = p.has_b ? to_f32(x[p.b]) : 0.0f;
  }
  return y;
}
template <int PAIRS, class T> __device__ static inline void rope_write(T *x, RopeHead<PAIRS> y, int hs) {
  UNROLL for (int n = 0; n < PAIRS; n++) {
    const RopePair p = rope_pair(n, hs);
    if (p.has_a) round_to(&x[p.a], y.a[n]);
    if (p.has_b) round_to(&x[p.b], y.b[n]);
  }
}
template <int PAIRS>
__device__ static inline RopeHead<PAIRS> rope_rotate(RopeHead<PAIRS> y, const float *table, int hs, bool back) {
  UNROLL for (int n = 0; n < PAIRS; n++) {
    const RopePair p = rope_pair(n, hs);
    if (!p.has_a) continue;
    const float cos = table[p.a], sin = back ? 0.0f - table[p.b] : table[p.b], a = y.a[n], b = y.b[n];
    y.a[n] = a * cos - b * sin;
    y.b[n] = fmaf(b, cos, a * sin);
  }
  return y;
}
template <int PAIRS> __device__ static inline float rope_rstd(RopeHead<PAIRS> y, int hs, float eps) {
  float squares = 0.0f;
  UNROLL for (int n = 0; n < PAIRS; n++) squares = fmaf(y.b[n], y.b[n], fmaf(y.a[n], y.a[n], squares));
  return 1.0f / sqrtf(warp_sum(squares) / (float)hs + eps);
}
// The weights of a head, 1 where there are none.
template <int PAIRS, class T> __device__ static inline RopeHead<PAIRS> rope_weight(const T *weight, int hs) {
  if (weight) return rope_read<PAIRS>(weight, hs);
  RopeHead<PAIRS> ones;
  UNROLL for (int n = 0; n < PAIRS; n++) ones.a[n] = ones.b[n] = 1.0f;
  return ones;
}
template <int PAIRS, class T>
__device__ static inline RopeHead<PAIRS> rope_norm(RopeHead<PAIRS> y, const T *weight, int hs, float eps) {
  const float rstd = rope_rstd(y, hs, eps);
  const RopeHead<PAIRS> w = rope_weight<PAIRS>(weight, hs);
  UNROLL for (int n = 0; n < PAIRS; n++) y.a[n] = y.a[n] * rstd * w.a[n], y.b[n] = y.b[n] * rstd * w.b[n];
  return y;
}
// The gradient of x, where g is that of norm(x); adds to dweight.
template <int PAIRS, class T>
__device__ static inline RopeHead<PAIRS> rope_norm_backward(RopeHead<PAIRS> g, RopeHead<PAIRS> *dweight,
                                                            RopeHead<PAIRS> x, const T *weight, int hs, float eps) {
  const float rstd = rope_rstd(x, hs, eps);
  const RopeHead<PAIRS> w = rope_weight<PAIRS>(weight, hs);
  float sum = 0.0f;
  UNROLL for (int n = 0; n < PAIRS; n++) {
    x.a[n] *= rstd, x.b[n] *= rstd;
    dweight->a[n] = fmaf(g.a[n], x.a[n], dweight->a[n]), dweight->b[n] = fmaf(g.b[n], x.b[n], dweight->b[n]);
    g.a[n] *= w.a[n], g.b[n] *= w.b[n];
    sum = fmaf(g.b[n], x.b[n], fmaf(g.a[n], x.a[n], sum));
  }
  const float mean = warp_sum(sum) / (float)hs;
  UNROLL for (int n = 0; n < PAIRS; n++) {
    g.a[n] = rstd * (g.a[n] - x.a[n] * mean);
    g.b[n] = rstd * (g.b[n] - x.b[n] * mean);
  }
  return g;
}

template <class T, int PAIRS>
__global__ static void __launch_bounds__(ROPE_WARPS *WARP) rope_forward_kernel(RopeCall<T> p) {
  const int hs = (int)p.s.hs, warp = (int)threadIdx.x / WARP;
  const int64_t begin = blockIdx.x * p.run_rows, rows = begin + p.run_rows < p.rows ? p.run_rows : p.rows - begin;
  for (int64_t i = warp; i < rows * p.s.heads; i += ROPE_WARPS) {
    const int64_t r = begin + i / p.s.heads, h = i % p.s.heads;
    const float *table = p.table ? p.table + (r % p.s.seq_len - (p.starts ? p.starts[r] : 0)) * hs : NULL;
    const T *weight = p.weight[h >= p.s.n_head];
    T *x = p.qkv + r * p.s.row + h * hs;
    RopeHead<PAIRS> y = rope_read<PAIRS>(x, hs);
    if (p.raw) rope_write(p.raw + (r * p.s.heads + h) * hs, y, hs);
    if (p.a.norm == QK_NORM_BEFORE) y = rope_norm(y, weight, hs, p.a.eps);
    if (table) y = rope_rotate(y, table, hs, false);
    if (p.a.norm == QK_NORM_AFTER) y = rope_norm(y, weight, hs, p.a.eps);
    rope_write(x, y, hs);
  }
}
// Shared memory: the warps' sums for q's and k's weights.
template <class T, int PAIRS>
__global__ static void __launch_bounds__(ROPE_WARPS *WARP) rope_backward_kernel(RopeCall<T> p) {
  SHARED(float, sums, ROPE_WARPS * 2 * PAIRS * WARP);
  const int hs = (int)p.s.hs, warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
  const bool after = p.a.norm == QK_NORM_AFTER;
  const int64_t begin = blockIdx.x * p.run_rows, rows = begin + p.run_rows < p.rows ? p.run_rows : p.rows - begin;
  RopeHead<PAIRS> dq = {}, dk = {};
  for (int64_t i = warp; i < rows * p.s.heads; i += ROPE_WARPS) {
    const int64_t r = begin + i / p.s.heads, h = i % p.s.heads;
    const float *table = p.table ? p.table + r % p.s.seq_len * hs : NULL;
    const bool is_k = h >= p.s.n_head;
    T *d = p.qkv + r * p.s.row + h * hs;
    RopeHead<PAIRS> g = rope_read<PAIRS>(d, hs);
    if (table && !after) g = rope_rotate(g, table, hs, true);
    if (p.raw) {
      RopeHead<PAIRS> x = rope_read<PAIRS>(p.raw + (r * p.s.heads + h) * hs, hs);
      if (table && after) x = rope_rotate(x, table, hs, false);
      g = is_k ? rope_norm_backward(g, &dk, x, p.weight[1], hs, p.a.eps)
               : rope_norm_backward(g, &dq, x, p.weight[0], hs, p.a.eps);
    }
    if (table && after) g = rope_rotate(g, table, hs, true);
    rope_write(d, g, hs);
  }
  if (!p.partial) return;
  UNROLL for (int which = 0; which < 2; which++) {
    UNROLL for (int n = 0; n < PAIRS; n++) {
      sums[(warp * 2 * PAIRS + n) * WARP + lane] = which ? dk.a[n] : dq.a[n];
      sums[(warp * 2 * PAIRS + PAIRS + n) * WARP + lane] = which ? dk.b[n] : dq.b[n];
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < hs; i += ROPE_WARPS * WARP) {
      const int at = i < hs / 2 ? i : PAIRS * WARP + i - hs / 2;
      float sum = 0.0f;
      UNROLL for (int w = 0; w < ROPE_WARPS; w++) sum += sums[w * 2 * PAIRS * WARP + at];
      p.partial[((int64_t)blockIdx.x * 2 + which) * hs + i] = sum;
    }
    __syncthreads();
  }
}
template <class T> static void rope_launch(Ctx *c, RopeCall<T> p, bool back) {
  const unsigned runs = (unsigned)rope_runs(p.rows), threads = ROPE_WARPS * WARP;
  CHECK(p.s.hs <= ROPE_HEAD_MOST, "rope: heads of %lld columns, %d at most", (long long)p.s.hs, (int)ROPE_HEAD_MOST);
  if (!p.rows) return;
#define ROPE_PAIRS(N) \
  if (p.s.hs <= 2 * WARP * N) { \
    if (back) LAUNCH((rope_backward_kernel<T, N>), runs, threads, 0, STREAM(c), p); \
    else LAUNCH((rope_forward_kernel<T, N>), runs, threads, 0, STREAM(c), p); \
    return; \
  }
  ROPE_PAIRS(1) ROPE_PAIRS(2) ROPE_PAIRS(4) ROPE_PAIRS(16)
#undef ROPE_PAIRS
}
template <class T>
static RopeCall<T> rope_call(Tensor qkv, Tensor raw, Tensor table, Tensor q_weight, Tensor k_weight, float *partial,
                             RopeArgs a, const int32_t *starts = NULL) {
  const int64_t rows = qkv.shape[0] * qkv.shape[1];
  return RopeCall<T>{(T *)qkv.data, a.norm == QK_NORM_OFF ? NULL : (T *)raw.data, (const float *)table.data,
                     {(const T *)q_weight.data, (const T *)k_weight.data}, partial, rope_shape(qkv, a), a, rows,
                     rope_run_rows(rows), starts};
}
static void rope_forward_impl(Ctx *c, Tensor qkv, Tensor raw, Tensor table, Tensor q_weight, Tensor k_weight,
                              RopeArgs a, Tensor starts) {
  DISPATCH(qkv.dtype, T, rope_launch(c, rope_call<T>(qkv, raw, table, q_weight, k_weight, NULL, a,
                                                     (const int32_t *)starts.data), false));
}
static void rope_backward_impl(Ctx *c, Tensor dqkv, Tensor dq_weight, Tensor dk_weight, Tensor raw, Tensor table,
                               Tensor q_weight, Tensor k_weight, RopeArgs a, Accumulate mode) {
  const bool sums = dq_weight.data || dk_weight.data;
  const int64_t runs = rope_runs(dqkv.shape[0] * dqkv.shape[1]);
  const size_t need = (size_t)(runs * 2 * a.head_size) * sizeof(float);
  CHECK(c->workspace_bytes >= need, "rope_backward: workspace of %zu bytes, needs %zu", c->workspace_bytes, need);
  DISPATCH(dqkv.dtype, T, rope_launch(c, rope_call<T>(dqkv, raw, table, q_weight, k_weight,
                                                      sums ? (float *)c->workspace : NULL, a), true));
  layernorm_backward_fold(c, dq_weight, dk_weight, runs, a.head_size, mode == ADD);
}
