// attention_plain.cuh: the kernels of attention_cuda.cuh in fp32 FMA, for fp32 and for head sizes that the tensor-core
// kernels do not support.
#pragma once
#include "attention_parts.cuh"

// ---- plain: pieces --------------------------------------------------------------------------------------------------
// Tiles of 64 x 64 by 16 x 16 threads, each with 4 neighbouring rows and 4 neighbouring columns. Shared memory: 16 KiB
// for two operands over 32 columns of the head (or for 32 rows of one operand), and 16 KiB for each tile that is an
// operand of the next multiply. Any head size: scores walk the head 32 columns at a time. A block computes COLUMNS, 64
// or 128, of the columns of out, dk, dv and dq, and computes the scores itself.
enum { ATTENTION_PLAIN_THREADS = 256, ATTENTION_EDGE = 64, ATTENTION_DEPTH = 32 };

// Index in shared memory of element (row, k) of a tile that is stored by columns. Groups of 4 rows are permuted by k /
// 4, so that neither the stores along k nor the 16-byte loads along rows have bank conflicts.
__device__ static inline int attention_plain_at(int k, int row) {
  return k * ATTENTION_EDGE + ((row / 4 ^ (k / 4 & 7)) * 4) + row % 4;
}
__device__ static inline int attention_plain_row() { return (int)threadIdx.x / 16 * 4; }
__device__ static inline int attention_plain_column() { return (int)threadIdx.x % 16 * 4; }
// Reads four neighbouring elements; those from index `count` on are zero. whole: rows are aligned to 16 bytes.
template <class T> __device__ static inline Pack<float> attention_plain_read(const T *from, int count, bool whole) {
  Pack<float> x;
  if constexpr (sizeof(T) == 4)
    if (whole && count >= 4) return load_pack(from);
  UNROLL for (int i = 0; i < 4; i++) x.x[i] = i < count ? to_f32(from[i]) : 0.0f;
  return x;
}
// Reads 64 rows of one head from row first on, 32 columns from column d on; stores them by columns.
template <class T>
__device__ static inline void attention_plain_load(float *to, const T *from, int ld, int first, int d,
                                                   const AttentionShape &s) {
  const int column = (int)threadIdx.x % 8 * 4;
  UNROLL for (int row = (int)threadIdx.x / 8; row < ATTENTION_EDGE; row += ATTENTION_PLAIN_THREADS / 8) {
    const int count = first + row < s.len ? s.hs - d - column : 0;
    const T *at = count > 0 ? from + (int64_t)(first + row) * ld + d + column : from;
    const Pack<float> x = attention_plain_read(at, count, s.hs % 4 == 0);
    UNROLL for (int i = 0; i < 4; i++) to[attention_plain_at(column + i, row)] = x.x[i];
  }
}
// One operand of the multiply below: the rows of a tile, of one head.
template <class T> struct AttentionOperand { const T *from; int ld, first; };
// sums = a b^T over the whole head, ascending.
template <class T>
__device__ static inline void attention_plain_scores(float sums[4][4], float *shared, AttentionOperand<T> a,
                                                     AttentionOperand<T> b, const AttentionShape &s) {
  float *shared_b = shared + ATTENTION_DEPTH * ATTENTION_EDGE;
  UNROLL for (int i = 0; i < 16; i++) sums[i / 4][i % 4] = 0.0f;
  for (int d = 0; d < s.hs; d += ATTENTION_DEPTH) {
    __syncthreads();
    attention_plain_load(shared, a.from, a.ld, a.first, d, s);
    attention_plain_load(shared_b, b.from, b.ld, b.first, d, s);
    __syncthreads();
    ROLLED for (int eight = 0; eight < ATTENTION_DEPTH; eight += 8) UNROLL for (int k = eight; k < eight + 8; k++) {
      const Pack<float> x = load_pack(shared + attention_plain_at(k, attention_plain_row()));
      const Pack<float> y = load_pack(shared_b + attention_plain_at(k, attention_plain_column()));
      UNROLL for (int i = 0; i < 16; i++) sums[i / 4][i % 4] = fmaf(x.x[i / 4], y.x[i % 4], sums[i / 4][i % 4]);
    }
  }
}
// Writes p to tile by columns; a column of p weights one row of b in the multiply below.
__device__ static inline void attention_plain_put(float *tile, const float p[4][4]) {
  __syncthreads();                               // the previous multiply has read it
  UNROLL for (int j = 0; j < 4; j++) {
    const Pack<float> x = {{p[0][j], p[1][j], p[2][j], p[3][j]}};
    store_pack(tile + attention_plain_at(attention_plain_column() + j, attention_plain_row()), x);
  }
}
// sums (64 x COLUMNS) += p b, over the 64 rows of b ascending; columns of b from `column` on.
template <int COLUMNS, class T>
__device__ static inline void attention_plain_weigh(float sums[4][COLUMNS / 16], float *shared, const float *tile,
                                                    AttentionOperand<T> b, int column, const AttentionShape &s) {
  for (int half = 0; half < ATTENTION_EDGE; half += ATTENTION_DEPTH) {
    __syncthreads();
    UNROLL for (int i = (int)threadIdx.x * 4; i < ATTENTION_DEPTH * COLUMNS; i += ATTENTION_PLAIN_THREADS * 4) {
      const int row = b.first + half + i / COLUMNS, at = column + i % COLUMNS, count = row < s.len ? s.hs - at : 0;
      const T *from = count > 0 ? b.from + (int64_t)row * b.ld + at : b.from;
      store_pack(shared + i, attention_plain_read(from, count, s.hs % 4 == 0));
    }
    __syncthreads();
    ROLLED for (int eight = 0; eight < ATTENTION_DEPTH; eight += 8) UNROLL for (int k = eight; k < eight + 8; k++) {
      const Pack<float> x = load_pack(tile + attention_plain_at(half + k, attention_plain_row()));
      UNROLL for (int j = 0; j < COLUMNS / 16; j += 4) {
        const Pack<float> y = load_pack(shared + k * COLUMNS + j * 16 + attention_plain_column());
        UNROLL for (int i = 0; i < 16; i++) {
          float *sum = &sums[i / 4][j + i % 4];
          *sum = fmaf(x.x[i / 4], y.x[i % 4], *sum);
        }
      }
    }
  }
}
template <int COLUMNS, class T>
__device__ static inline void attention_plain_store(T *to, int ld, int first, int column,
                                                    const float sums[4][COLUMNS / 16], const float factor[4],
                                                    const AttentionShape &s) {
  UNROLL for (int i = 0; i < 4; i++)
    UNROLL for (int j = 0; j < COLUMNS / 16; j += 4) {
      const int row = first + attention_plain_row() + i, at = column + j * 16 + attention_plain_column();
      if (row >= s.len) continue;
      Pack<float> x;
      UNROLL for (int k = 0; k < 4; k++) x.x[k] = sums[i][j + k] * factor[i];
      if constexpr (sizeof(T) == 4)
        if (s.hs % 4 == 0) {
          if (at < s.hs) store_pack(to + (int64_t)row * ld + at, x);
          continue;
        }
      UNROLL for (int k = 0; k < 4; k++)
        if (at + k < s.hs) round_to(&to[(int64_t)row * ld + at + k], x.x[k]);
    }
}
// Which of 4 queries by 4 keys are kept: bit 4 i + j for query i and key j. All of them without dropout.
__device__ static inline uint32_t attention_plain_keep(const AttentionDrop &d, uint32_t step, const AttentionShape &s,
                                                       int head, int query, int key) {
  if (!(d.drop.p > 0.0f)) return 0xffff;
  uint32_t keep = 0;
  ROLLED for (int i = 0; i < 4; i++) {
    const int64_t element = attention_element(s, head, query + i, key);
    keep |= (attention_keep(d, step, d.drop.sample0 + blockIdx.z, element, 4) & 15) << 4 * i;
  }
  return keep;
}
// Sum or maximum over the 16 threads of a row, the same in each.
__device__ static inline float attention_plain_sum(float x) {
  UNROLL for (int d = 8; d; d /= 2) x += __shfl_xor_sync(FULL_WARP, x, d);
  return x;
}
__device__ static inline float attention_plain_max(float x) {
  UNROLL for (int d = 8; d; d /= 2) x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, d));
  return x;
}

// ---- plain: kernels -------------------------------------------------------------------------------------------------
// Grids: (tiles times runs of COLUMNS, heads of what is written, sequences), the tiles in the order of the kernels
// above.
template <class T, int COLUMNS>
__global__ static void __launch_bounds__(ATTENTION_PLAIN_THREADS, COLUMNS == 64 ? 2 : 1)
    attention_plain_forward_kernel(AttentionForward<T> a) {
  SHARED(float, shared, 2 * ATTENTION_DEPTH * ATTENTION_EDGE);
  SHARED(float, tile, ATTENTION_EDGE * ATTENTION_EDGE);
  const AttentionShape &s = a.s;
  const int runs = (s.hs + COLUMNS - 1) / COLUMNS, column = (int)blockIdx.x % runs * COLUMNS;
  const int first = ((int)gridDim.x - 1 - (int)blockIdx.x) / runs * ATTENTION_EDGE;
  const int my_query = first + attention_plain_row(), end = attention_min(first + ATTENTION_EDGE, s.len);
  const AttentionPlace at = attention_place(s, (int)blockIdx.y);
  const uint32_t step = attention_step(a.d);
  float out[4][COLUMNS / 16] = {}, top[4], sum[4];
  UNROLL for (int i = 0; i < 4; i++) {
    top[i] = -FLT_MAX;
    sum[i] = 0.0f;
  }
  const int begin = attention_start(a.starts, s, first) / ATTENTION_EDGE * ATTENTION_EDGE;
  for (int key = begin; key < end; key += ATTENTION_EDGE) {
    float p[4][4];
    const AttentionOperand<T> of_q = {a.qkv + at.q, s.ld, first}, of_k = {a.qkv + at.k, s.ld, key};
    const AttentionOperand<T> of_v = {a.qkv + at.v, s.ld, key};
    attention_plain_scores(p, shared, of_q, of_k, s);
    const int my_key = key + attention_plain_column();
    const uint32_t keep = attention_plain_keep(a.d, step, s, (int)blockIdx.y, my_query, my_key);
    UNROLL for (int i = 0; i < 4; i++) {
      float most = -INFINITY, total = 0.0f;
      const int start = attention_start(a.starts, s, my_query + i);
      UNROLL for (int j = 0; j < 4; j++) {
        p[i][j] = my_key + j > my_query + i || my_key + j < start ? -INFINITY : p[i][j] * s.scale2;
        most = fmaxf(most, p[i][j]);
      }
      most = fmaxf(top[i], attention_plain_max(most));
      const float shrink = fast_exp2(top[i] - most);
      UNROLL for (int j = 0; j < 4; j++) {
        p[i][j] = fast_exp2(p[i][j] - most);
        total += p[i][j];
      }
      top[i] = most;
      sum[i] = fmaf(sum[i], shrink, attention_plain_sum(total));
      UNROLL for (int j = 0; j < COLUMNS / 16; j++) out[i][j] *= shrink;
      UNROLL for (int j = 0; j < 4; j++)
        if (!(keep >> (4 * i + j) & 1)) p[i][j] = 0.0f;
    }
    attention_plain_put(tile, p);
    attention_plain_weigh<COLUMNS>(out, shared, tile, of_v, column, s);
  }
  UNROLL for (int i = 0; i < 4; i++) {
    if (column == 0 && threadIdx.x % 16 == 0 && my_query + i < s.len)
      a.lse[at.stat + my_query + i] = vf_log_sum(top[i], logf(sum[i]));
    sum[i] = a.d.factor / sum[i];
  }
  attention_plain_store<COLUMNS>(a.out + at.out, s.C, first, column, out, sum, s);
}

// Rows are keys, columns are queries. Elements that dropout drops have the sign bit set in p until ds is computed: that
// takes one register less than a mask, with which the kernel would spill.
template <class T, int COLUMNS>
__global__ static void __launch_bounds__(ATTENTION_PLAIN_THREADS, COLUMNS == 64 ? 2 : 1)
    attention_plain_dkv_kernel(AttentionBackward<T> a) {
  SHARED(float, shared, 2 * ATTENTION_DEPTH * ATTENTION_EDGE);
  SHARED(float, tile, ATTENTION_EDGE * ATTENTION_EDGE);
  const AttentionShape &s = a.s;
  const int runs = (s.hs + COLUMNS - 1) / COLUMNS, column = (int)blockIdx.x % runs * COLUMNS;
  const int first = (int)blockIdx.x / runs * ATTENTION_EDGE, my_key = first + attention_plain_row();
  const uint32_t step = attention_step(a.d);
  float dk[4][COLUMNS / 16] = {}, dv[4][COLUMNS / 16] = {};
  for (int turn = 0; turn < s.group; turn++) {   // the heads of q that share k and v
    const int head = (int)blockIdx.y * s.group + turn;
    const AttentionPlace at = attention_place(s, head);
    const T *q = a.qkv + at.q, *dout = a.dout + at.out;
    for (int query = first; query < s.len; query += ATTENTION_EDGE) {
      // nor does a later one attend to these
      if (attention_start(a.starts, s, query) >= first + ATTENTION_EDGE) break;
      float p[4][4], dp[4][4];
      const AttentionOperand<T> of_q = {q, s.ld, query}, of_dout = {dout, s.C, query};
      attention_plain_scores(p, shared, AttentionOperand<T>{a.qkv + at.k, s.ld, first}, of_q, s);
      const uint32_t keep = attention_plain_keep(a.d, step, s, head, query + attention_plain_column(), my_key);
      UNROLL for (int j = 0; j < 4; j++) {
        const int my_query = query + attention_plain_column() + j;
        const float lse = my_query < s.len ? a.lse[at.stat + my_query] * 1.44269504f : 0.0f;
        const int start = attention_start(a.starts, s, my_query);
        UNROLL for (int i = 0; i < 4; i++) {
          const bool unseen = my_key + i > my_query || my_key + i < start;
          const float x = unseen ? 0.0f : fast_exp2(fmaf(p[i][j], s.scale2, -lse));
          p[i][j] = keep >> (4 * j + i) & 1 ? x : -x;
          dp[i][j] = signbit(p[i][j]) ? 0.0f : x;
        }
      }
      attention_plain_put(tile, dp);
      attention_plain_weigh<COLUMNS>(dv, shared, tile, of_dout, column, s);
      attention_plain_scores(dp, shared, AttentionOperand<T>{a.qkv + at.v, s.ld, first}, of_dout, s);
      UNROLL for (int j = 0; j < 4; j++) {
        const int my_query = query + attention_plain_column() + j;
        const float dot = my_query < s.len ? a.dot[at.stat + my_query] : 0.0f;
        UNROLL for (int i = 0; i < 4; i++)
          dp[i][j] = vf_softmax_grad(fabsf(p[i][j]), signbit(p[i][j]) ? 0.0f : dp[i][j] * a.d.factor, dot);
      }
      attention_plain_put(tile, dp);
      attention_plain_weigh<COLUMNS>(dk, shared, tile, of_q, column, s);
    }
  }
  float k_factor[4], v_factor[4];
  UNROLL for (int i = 0; i < 4; i++) {
    k_factor[i] = s.scale;
    v_factor[i] = a.d.factor;
  }
  const AttentionPlace at = attention_place(s, (int)blockIdx.y * s.group);
  attention_plain_store<COLUMNS>(a.dqkv + at.k, s.ld, first, column, dk, k_factor, s);
  attention_plain_store<COLUMNS>(a.dqkv + at.v, s.ld, first, column, dv, v_factor, s);
}

template <class T, int COLUMNS>
__global__ static void __launch_bounds__(ATTENTION_PLAIN_THREADS, COLUMNS == 64 ? 2 : 1)
    attention_plain_dq_kernel(AttentionBackward<T> a) {
  SHARED(float, shared, 2 * ATTENTION_DEPTH * ATTENTION_EDGE);
  SHARED(float, tile, ATTENTION_EDGE * ATTENTION_EDGE);
  const AttentionShape &s = a.s;
  const int runs = (s.hs + COLUMNS - 1) / COLUMNS, column = (int)blockIdx.x % runs * COLUMNS;
  const int first = ((int)gridDim.x - 1 - (int)blockIdx.x) / runs * ATTENTION_EDGE;
  const int my_query = first + attention_plain_row(), end = attention_min(first + ATTENTION_EDGE, s.len);
  const AttentionPlace at = attention_place(s, (int)blockIdx.y);
  const T *q = a.qkv + at.q, *dout = a.dout + at.out;
  const uint32_t step = attention_step(a.d);
  float dq[4][COLUMNS / 16] = {};
  const int begin = attention_start(a.starts, s, first) / ATTENTION_EDGE * ATTENTION_EDGE;
  for (int key = begin; key < end; key += ATTENTION_EDGE) {
    float p[4][4], dp[4][4];
    const AttentionOperand<T> of_k = {a.qkv + at.k, s.ld, key};
    attention_plain_scores(p, shared, AttentionOperand<T>{q, s.ld, first}, of_k, s);
    const AttentionOperand<T> of_v = {a.qkv + at.v, s.ld, key};
    attention_plain_scores(dp, shared, AttentionOperand<T>{dout, s.C, first}, of_v, s);
    const int my_key = key + attention_plain_column();
    const uint32_t keep = attention_plain_keep(a.d, step, s, (int)blockIdx.y, my_query, my_key);
    UNROLL for (int i = 0; i < 4; i++) {
      const float lse = my_query + i < s.len ? a.lse[at.stat + my_query + i] * 1.44269504f : 0.0f;
      const float dot = my_query + i < s.len ? a.dot[at.stat + my_query + i] : 0.0f;
      const int start = attention_start(a.starts, s, my_query + i);
      UNROLL for (int j = 0; j < 4; j++) {
        const bool unseen = my_key + j > my_query + i || my_key + j < start;
        const float x = unseen ? 0.0f : fast_exp2(fmaf(p[i][j], s.scale2, -lse));
        dp[i][j] = vf_softmax_grad(x, keep >> (4 * i + j) & 1 ? dp[i][j] * a.d.factor : 0.0f, dot);
      }
    }
    attention_plain_put(tile, dp);
    attention_plain_weigh<COLUMNS>(dq, shared, tile, of_k, column, s);
  }
  const float factor[4] = {s.scale, s.scale, s.scale, s.scale};
  attention_plain_store<COLUMNS>(a.dqkv + at.q, s.ld, first, column, dq, factor, s);
}
