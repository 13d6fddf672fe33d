// attention_parts.cuh: shared parts of CUDA's attention kernels: arguments, offsets, dropout, D = dout . out, grids.
// attention_cuda.cuh explains the kernels.
#pragma once
#include <float.h>
#include "ops_attention.h"
#include "random.h"
#include "formulas.cuh"

// With dropout the kernel reads the step from `state` when it runs, because the host may not know it at launch
// (graphs).
struct AttentionDrop { Dropout drop; uint32_t threshold; float factor; const StepState *state; };
// len: T of the formulas; hs: head dim; C = n_head hs. scale = 1/sqrt(hs), scale2 = scale log2(e). group: query heads
// per KV head; ld: columns of qkv.
struct AttentionShape { int len, n_head, hs, C, group, ld; float scale, scale2; };
// starts: (B,len); NULL: every sequence is one document.
template <class T> struct AttentionForward {
  T *out; float *lse; const T *qkv; const int32_t *starts;
  AttentionShape s; AttentionDrop d;
};
// One pointer more in it, even if unused, makes nvcc 13.0 spill registers of dq: dqkv_sum is a parameter of its own.
template <class T> struct AttentionBackward {
  T *dqkv; const T *dout, *qkv; const float *lse, *dot; const int32_t *starts;
  AttentionShape s; AttentionDrop d;
};

// ---- what both share -----------------------------------------------------------------------------------------------
// Bit i: whether dropout keeps element `element + i` of a sample's mask, for i < count <= 32. Higher bits are
// undefined.
__device__ static inline uint32_t attention_keep(const AttentionDrop &d, uint32_t step, int64_t sample, int64_t element,
                                                 int count) {
  const int skip = (int)(element & 3);
  uint32_t counter = (uint32_t)(element >> 2);
  uint64_t bits = 0;
  ROLLED for (int have = 0; have < skip + count; have += 4) {
    const Philox r = philox4x32(d.drop.seed, Philox{counter++, (uint32_t)sample, step, d.drop.tensor});
    const auto kept = [&](uint32_t word, int bit) { return (uint32_t)!drop_here((vi)word, d.threshold) << bit; };
    bits |= (uint64_t)(kept(r.x, 0) | kept(r.y, 1) | kept(r.z, 2) | kept(r.w, 3)) << have;
  }
  return (uint32_t)(bits >> skip);
}
HD int attention_min(int a, int b) { return a < b ? a : b; }
__device__ static inline uint32_t attention_step(const AttentionDrop &d) {
  return d.drop.p > 0.0f ? d.state->in.step : 0;
}
// The first position of the document of a query of the block's sequence; for a query >= len that of the last query.
__device__ static inline int attention_start(const int32_t *starts, const AttentionShape &s, int query) {
  return starts ? starts[(int64_t)blockIdx.z * s.len + attention_min(query, s.len - 1)] : 0;
}
// One past the last query that attends to a key <= last, rounded up to a whole tile of N queries, counted from `begin`,
// and at most len. (A binary search: starts ascend.)
__device__ static inline int attention_queries_end(const int32_t *starts, const AttentionShape &s, int begin, int last,
                                                   int N) {
  int low = 1, high = (s.len - begin + N - 1) / N;
  while (starts && low < high) {
    const int middle = (low + high) / 2;
    if (attention_start(starts, s, begin + middle * N) > last) high = middle;
    else low = middle + 1;
  }
  return attention_min(begin + high * N, s.len);
}
// Index of (head, query, key) in the mask.
__device__ static inline int64_t attention_element(const AttentionShape &s, int head, int query, int key) {
  return ((int64_t)head * s.len + query) * s.len + key;
}

// Offsets of head `head` of the block's sequence: q, k and v in qkv and dqkv (rows of s.ld elements), out in out and
// dout (rows of C elements), stat in lse and dot.
struct AttentionPlace { int64_t q, k, v, out, stat; };
__device__ static inline AttentionPlace attention_place(const AttentionShape &s, int head) {
  const int64_t row = (int64_t)blockIdx.z * s.len, column = (int64_t)head * s.hs;
  const int64_t k = row * s.ld + s.C + (int64_t)(head / s.group) * s.hs;
  return AttentionPlace{row * s.ld + column, k, k + (s.ld - s.C) / 2, row * s.C + column,
                        ((int64_t)blockIdx.z * s.n_head + head) * s.len};
}

// dot (B,H,T) = dout . out over a head. Eight lanes per row. Neighbouring groups take neighbouring rows of one head, so
// that dot is written in whole sectors. 16-byte loads where the head size allows them.
enum { ATTENTION_DOT_THREADS = 256, ATTENTION_DOT_LANES = 8 };
template <class T>
__global__ static void __launch_bounds__(ATTENTION_DOT_THREADS)
    attention_dot_kernel(float *dot, const T *dout, const T *out, AttentionShape s, int64_t rows) {
  const int lane = (int)threadIdx.x % ATTENTION_DOT_LANES;
  const int64_t row = ((int64_t)blockIdx.x * ATTENTION_DOT_THREADS + threadIdx.x) / ATTENTION_DOT_LANES;
  const int64_t in = row < rows ? row : 0, head = in / s.len % s.n_head, b = in / s.len / s.n_head;
  const int64_t at = (b * s.len + in % s.len) * s.C + head * s.hs;
  const int width = 16 / (int)sizeof(T);
  float sum = 0.0f;
  if (s.hs % width == 0) {
    ROLLED for (int c = lane * width; c < s.hs; c += ATTENTION_DOT_LANES * width) {
      const Pack<T> x = load_pack(dout + at + c), y = load_pack(out + at + c);
      UNROLL for (int i = 0; i < width; i++) sum = fmaf(to_f32(x.x[i]), to_f32(y.x[i]), sum);
    }
  } else {
    for (int c = lane; c < s.hs; c += ATTENTION_DOT_LANES) sum = fmaf(to_f32(dout[at + c]), to_f32(out[at + c]), sum);
  }
  UNROLL for (int x = ATTENTION_DOT_LANES / 2; x; x /= 2) sum += __shfl_xor_sync(FULL_WARP, sum, x);
  if (lane == 0 && row < rows) dot[row] = sum;
}

// ---- launches -------------------------------------------------------------------------------------------------------
// Grid for tiles of `rows` rows of `heads` heads; each tile has `runs` blocks.
static inline dim3 attention_grid(const AttentionShape &s, int64_t B, int heads, int rows, int runs = 1) {
  return dim3((unsigned)((s.len + rows - 1) / rows * runs), (unsigned)heads, (unsigned)B);
}
static inline int attention_shared_heads(const AttentionShape &s) { return s.n_head / s.group; }
// The kernels of attention_wgmma.cuh, an object of their own (all.h): instructions that sm_90a alone has.
#define X(T) \
  IMPL(attention_forward_wgmma_##T, , void attention_forward_wgmma(Ctx *c, AttentionForward<T> a, int64_t B)) \
  IMPL(attention_backward_wgmma_##T, , \
       void attention_backward_wgmma(Ctx *c, AttentionBackward<T> a, const T *out, float *dot, float *sums, \
                                     int64_t B))
X(bf16) X(fp16)
#undef X
