// attention_cached.cuh: attention of one new token per sequence over a KV cache, for generation.
//
//   cache_store         cache[b][position] <- k | v of qkv's row (b,t), at position t - starts[b,t]; other rows stay
//                       as they are
//   attention_cached    out[b] = attention of the q in the only row of qkv[b] over keys 0 .. position of cache[b], or
//                       with a window over the last `window` of these keys
//
//   cache (B,P,2KV hs): rows as the columns of k and v in qkv    qkv (B,T,(H+2KV)hs), T = 1 for attention_cached
//   out (B,1,H hs)    starts (B,T) int32 as in ops.h, here 0 or below: a negative start is a position; absent: all 0
//
// On the CPU the summation order is that of a row of attention_forward in fp32 arithmetic (attention.cuh): tiles of 64
// keys, inside them chains over d, then over keys. So in fp32 a token's result is bitwise identical to that of
// attention_forward over its whole sequence. For bf16 on AVX-512 BF16 and AMX, and on CUDA, the orders differ.
#pragma once
#include "attention.cuh"
#if PART_LAUNCHERS
static inline void cache_check(Tensor cache, Tensor qkv, int64_t kv_columns, Tensor starts) {
  CHECK_SHAPE(cache, qkv.shape[0], cache.shape[1], kv_columns);
  CHECK(qkv.ndim == 3 && qkv.shape[1] <= cache.shape[1], "a cache of %lld positions for %lld tokens",
        (long long)cache.shape[1], (long long)qkv.shape[1]);
  CHECK_DTYPE(cache, qkv.dtype);
  starts_check(starts, qkv.shape[0], qkv.shape[1]);
}
// Overwrites the rows of `cache` of the tokens of qkv. Their positions must be below P.
void cache_store(Ctx *c, Tensor cache, Tensor qkv, Tensor starts) {
  cache_check(cache, qkv, cache.shape[2], starts);
  CALL_OP(c, attention, cache_store, cache, qkv, starts);
}
// Overwrites out. The tokens' own k and v must be in the cache already. window 0: tokens attend to all keys.
void attention_cached(Ctx *c, Tensor out, Tensor cache, Tensor qkv, int n_head, Tensor starts,
                      int64_t window) {
  attention_check_heads("attention_cached", out, qkv, n_head);
  cache_check(cache, qkv, qkv.shape[2] - out.shape[2], starts);
  CHECK_SHAPE(out, qkv.shape[0], 1, out.shape[2]);
  CHECK_DTYPE(out, qkv.dtype);
  CALL_OP(c, attention, attention_cached, out, cache, qkv, n_head, starts, window);
}
#endif

#if PART_CPU || PART_CUDA
// ld: elements of a row of qkv; columns: of these the last ones, k and v, which the cache keeps.
struct CacheShape { int64_t B, T, P, ld, columns; };
static inline CacheShape cache_shape(Tensor cache, Tensor qkv) {
  return CacheShape{qkv.shape[0], qkv.shape[1], cache.shape[1], qkv.shape[2], cache.shape[2]};
}
#endif
HD int64_t cache_position(const int32_t *starts, int64_t row, int64_t T) {
  return row % T - (starts ? starts[row] : 0);
}

// The first of `keys` keys to which the last one's query attends.
HD int64_t cache_first(int64_t keys, int64_t window) { return window && keys > window ? keys - window : 0; }

#if PART_CPU
void cache_store_impl(Ctx *c, Tensor cache, Tensor qkv, Tensor starts) {
  const CacheShape s = cache_shape(cache, qkv);
  const int64_t bytes = (int64_t)dtype_bytes(qkv.dtype);
  parallel_for(c->threads, 0, s.B * s.T, 1, [=](int64_t r) {
    const int64_t at = cache_position((const int32_t *)starts.data, r, s.T);
    memcpy((char *)cache.data + (r / s.T * s.P + at) * s.columns * bytes,
           (const char *)qkv.data + (r * s.ld + s.ld - s.columns) * bytes, (size_t)(s.columns * bytes));
  });
}

// Scores of 16 keys in base 2 (q is already scaled by log2(e)/sqrt(hs)). Scores from index `keys` on are 0.
template <class T>
INLINE vf attention_cached_scores(const float *q, const T *k, int64_t ld, int64_t keys, int64_t hs) {
  vf sum = vf_zero();
  for (int64_t j = 0; j < hs; j += VF) {
    vf r[VF];
    for (int l = 0; l < VF; l++) r[l] = l < keys ? vf_load_n(k + l * ld + j, hs - j) : vf_zero();
    vf_transpose(r);
    for (int d = 0; d < VF && j + d < hs; d++) sum = vf_fma(r[d], vf_set1(q[j + d]), sum);
  }
  return sum;
}
// One tile of the online softmax: p becomes probabilities relative to *most, which grows. Returns their sum.
INLINE float attention_cached_softmax(float *p, int64_t keys, float *most) {
  for (int64_t i = 0; i < keys; i++) *most = *most > p[i] ? *most : p[i];
  for (int64_t i = 0; i < keys; i += VF) vf_store(p + i, attention_exp2(vf_sub(vf_load(p + i), vf_set1(*most))));
  float total = 0.0f;
  for (int64_t i = 0; i < keys; i++) total += p[i];
  return total;
}
template <class T>
static void attention_cached_head(T *out, const T *query, const T *k, const T *v, int64_t ld, int64_t hs,
                                  int64_t first, int64_t keys, float scale, float *memory) {
  float *const q = memory, *const sum = q + (hs + VF - 1) / VF * VF, *const p = sum + (hs + VF - 1) / VF * VF;
  float most = -FLT_MAX, total = 0.0f;
  for (int64_t j = 0; j < hs; j += VF) vf_store(q + j, vf_mul(vf_load_n(query + j, hs - j), vf_set1(scale)));
  for (int64_t j = 0; j < hs; j += VF) vf_store(sum + j, vf_zero());
  const int64_t begin = first / ATTENTION_KEYS * ATTENTION_KEYS;               // tiles are those of attention_forward
  k += begin * ld, v += begin * ld;
  for (int64_t key = begin; key < keys; key += ATTENTION_KEYS, k += ATTENTION_KEYS * ld, v += ATTENTION_KEYS * ld) {
    const int64_t n = attention_min(ATTENTION_KEYS, keys - key);
    for (int64_t i = 0; i < n; i += VF) vf_store(p + i, attention_cached_scores(q, k + i * ld, ld, n - i, hs));
    for (int64_t i = 0; i < first - key; i++) p[i] = -FLT_MAX;
    const float before = most, of_tile = attention_cached_softmax(p, n, &most);
    const vf correction = attention_exp2(vf_sub(vf_set1(before), vf_set1(most)));
    total = vf_first_lane(vf_fma(vf_set1(total), correction, vf_set1(of_tile)));
    for (int64_t j = 0; j < hs; j += VF) {
      vf acc = vf_mul(vf_load(sum + j), correction);
      for (int64_t i = 0; i < n; i++) acc = vf_fma(vf_load_n(v + i * ld + j, hs - j), vf_set1(p[i]), acc);
      vf_store(sum + j, acc);
    }
  }
  const vf inverse = vf_div(vf_set1(1.0f), vf_set1(total));
  for (int64_t j = 0; j < hs; j += VF) vf_store_n(out + j, vf_mul(vf_load(sum + j), inverse), hs - j);
}
static size_t attention_cached_thread_bytes(int64_t hs) {
  return (size_t)(2 * ((hs + VF - 1) / VF * VF) + ATTENTION_KEYS) * sizeof(float);
}
void attention_cached_impl(Ctx *c, Tensor out, Tensor cache, Tensor qkv, int n_head, Tensor starts,
                           int64_t window) {
  const AttentionShape a = attention_shape(out, qkv, n_head);
  const CacheShape s = cache_shape(cache, qkv);
  const size_t each = attention_cached_thread_bytes(a.hs);
  CHECK(c->workspace_bytes >= each * (size_t)c->threads, "attention_cached: workspace of %zu bytes, needs %zu",
        c->workspace_bytes, each * (size_t)c->threads);
  DISPATCH(out.dtype, T, parallel_tasks(c->threads, s.B * n_head, 1, [=](int64_t item) {
    const int64_t b = item / n_head, h = item % n_head;
    const T *const k = (const T *)cache.data + b * s.P * s.columns + h / a.group * a.hs;
    const int64_t keys = 1 + cache_position((const int32_t *)starts.data, b, 1);
    attention_cached_head((T *)out.data + item * a.hs, (const T *)qkv.data + b * s.ld + h * a.hs, k, k + s.columns / 2,
                          s.columns, a.hs, cache_first(keys, window), keys, a.scale * 1.44269504f,
                          (float *)attention_thread_memory(c, each));
  }));
}
#endif

#if PART_CUDA
#include <float.h>
#include "kernels/cuda/lane.cuh"

template <class T> __global__ static void __launch_bounds__(FLAT_THREADS)
cache_store_kernel(T *cache, const T *qkv, const int32_t *starts, CacheShape s) {
  FLAT_WALK(1, s.B * s.T * s.columns, i, {
    const int64_t r = i / s.columns;
    const int64_t to = r / s.T * s.P + cache_position(starts, r, s.T);
    cache[to * s.columns + i % s.columns] = qkv[r * s.ld + s.ld - s.columns + i % s.columns];
  }, (void)i);
}
void cache_store_impl(Ctx *c, Tensor cache, Tensor qkv, Tensor starts) {
  const CacheShape s = cache_shape(cache, qkv);
  DISPATCH(qkv.dtype, T, LAUNCH((cache_store_kernel<T>), dim3(flat_blocks(s.B * s.T * s.columns, 1)),
                                dim3(FLAT_THREADS), 0, STREAM(c), (T *)cache.data, (const T *)qkv.data,
                                (const int32_t *)starts.data, s));
}

// A block computes CACHED_THREADS columns of one head's output of one sequence, over tiles of CACHED_THREADS keys: for
// the scores a thread has a key, for the output a column. Each key and value is read once from memory, which bounds the
// time.
enum { CACHED_THREADS = 128 };
template <class T> __global__ static void __launch_bounds__(CACHED_THREADS)
attention_cached_kernel(T *out, const T *cache, const T *qkv, const int32_t *starts, CacheShape s, int n_head, int hs,
                        int group, float scale, int64_t window) {
  SHARED(float, p, CACHED_THREADS);
  SHARED(float, scores, CACHED_THREADS);
  const int me = (int)threadIdx.x, h = (int)blockIdx.y, column = (int)blockIdx.x * CACHED_THREADS + me;
  const int64_t b = blockIdx.z, keys = 1 + cache_position(starts, b, 1);
  const T *const q = qkv + b * s.ld + (int64_t)h * hs;
  const T *const k = cache + b * s.P * s.columns + (int64_t)(h / group) * hs, *const v = k + s.columns / 2;
  float most = -FLT_MAX, total = 0.0f, sum = 0.0f;
  for (int64_t key = cache_first(keys, window); key < keys; key += CACHED_THREADS) {
    const int n = keys - key < CACHED_THREADS ? (int)(keys - key) : CACHED_THREADS;
    float score = 0.0f;
    if (me < n)
      for (int d = 0; d < hs; d++) score = fmaf(to_f32(q[d]), to_f32(k[(key + me) * s.columns + d]), score);
    __syncthreads();
    scores[me] = score * scale;
    __syncthreads();
    const float before = most;
    for (int i = 0; i < n; i++) most = fmaxf(most, scores[i]);
    p[me] = me < n ? fast_exp2(scores[me] - most) : 0.0f;
    __syncthreads();
    const float correction = fast_exp2(before - most);
    float of_tile = 0.0f;
    sum *= correction;
    for (int i = 0; i < n; i++) {
      of_tile += p[i];
      if (column < hs) sum = fmaf(p[i], to_f32(v[(key + i) * s.columns + column]), sum);
    }
    total = fmaf(total, correction, of_tile);
  }
  if (column < hs) round_to(out + (b * n_head + h) * hs + column, sum / total);
}
void attention_cached_impl(Ctx *c, Tensor out, Tensor cache, Tensor qkv, int n_head, Tensor starts,
                           int64_t window) {
  const CacheShape s = cache_shape(cache, qkv);
  const int hs = (int)(out.shape[2] / n_head), group = n_head / (int)(s.columns / 2 / hs);
  const dim3 grid((unsigned)((hs + CACHED_THREADS - 1) / CACHED_THREADS), (unsigned)n_head, (unsigned)s.B);
  DISPATCH(out.dtype, T, LAUNCH((attention_cached_kernel<T>), grid, dim3(CACHED_THREADS), 0, STREAM(c), (T *)out.data,
                                (const T *)cache.data, (const T *)qkv.data, (const int32_t *)starts.data, s, n_head, hs,
                                group, 1.44269504f / sqrtf((float)hs), window));
}
#endif
