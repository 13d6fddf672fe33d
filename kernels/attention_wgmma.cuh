// attention_wgmma.cuh: the kernels of attention_cuda.cuh for bf16 and fp16 with Hopper's WGMMA. That file explains the
// algorithm, this one the differences.
//
// A warpgroup (128 threads) has 64 rows of its own. WGMMA reads operands directly from shared memory, so a lane's
// registers hold little but sums, and a warp's 16 rows of sums have the layout of M = 1 in attention_tensorcore.cuh,
// whose masks and dropout are used unchanged. Multiplies run asynchronously while this warpgroup and others compute
// exponentials:
//
//   forward   wait: scores | softmax | out += P V, scores of the next tile
//   dk, dv    P^T, while dk and dP^T run | wait | dv += P^T dout, S^T of the next tile | ds^T meanwhile | wait |
//             dk += ds^T Q, dP^T of the next. Heads of more than 64 columns lack the registers for the next scores
//             beside P^T: there S^T of the next tile follows dk
//   dq        wait: S | P while dP runs | ds | dq += ds K, S and dP of the next
//
// nvcc must see that no instruction touches sums while a multiply computes them, or it inserts a wait after every
// multiply (warnings C7510 to C7515, which `make ptxas` treats as errors). So a loop has one body and one back edge,
// and wgmma_pin keeps the compiler from moving computations across multiplies.
//
// Streamed tiles have three places: one is computed, the next has landed, the one after it is on its way. A tile of 64
// columns has rows of 128 bytes, swizzled (wgmma_tile); a head of more than 64 columns has two such panels, one after
// the other. Rows at or beyond T and columns beyond the head size are zero. Copies land through another path than the
// multiplies read by, hence proxy_fence.
//
// Other targets than sm_90a have empty kernels, which nobody launches there (attention_by_wgmma).
//
// dq runs before dk and dv, and sums D = dout . out of its own rows for both.
#pragma once
#include "attention_tensorcore.cuh"

enum { WARPGROUP = 128, WARPGROUP_ROWS = 64, ATTENTION_PLACES = 3 };

// ---- pieces ---------------------------------------------------------------------------------------------------------
// What a thread copies of every tile: the 16 bytes number `piece` of every STEP-th row from `row` on. none: 0; or, if
// these bytes are beyond the head dim, more than any number of rows, so that nothing is copied.
template <int HS, int THREADS> struct AttentionCopy {
  static constexpr int STEP = THREADS / (HS / 8);
  int row, piece, none;
};
template <int HS, int THREADS>
__device__ static inline AttentionCopy<HS, THREADS> attention_copy(const AttentionShape &s) {
  static_assert(THREADS / (HS / 8) % 8 == 0, "all of a thread's rows are swizzled alike");
  const int row = (int)threadIdx.x / (HS / 8), piece = (int)threadIdx.x % (HS / 8);
  return {row, piece, piece * 8 < s.hs ? 0 : 1 << 30};
}
// Where the thread starts in the rows of a head from `row` on. from: the head's column of the sequence's first row.
template <int HS, int THREADS, class T>
__device__ static inline const T *attention_copy_from(AttentionCopy<HS, THREADS> c, const T *from, int ld, int row) {
  return from + (int64_t)(row + c.row) * ld + c.piece * 8;
}
// Byte of a piece of 16 in a tile whose panels have `rows` rows.
__device__ static inline int attention_piece(int rows, int row, int piece) {
  return piece / 8 * (rows * 128) + row * 128 + ((piece ^ row) % 8) * 16;
}
// Starts the copy of a tile of ROWS rows; `left` rows are there. from: the thread's own part (attention_copy_from).
template <int ROWS, int HS, int THREADS, class T>
__device__ static inline void attention_load_tile(AttentionCopy<HS, THREADS> c, unsigned char *to, const T *from,
                                                  int ld, int left) {
  constexpr int STEP = AttentionCopy<HS, THREADS>::STEP;
  static_assert(ROWS % STEP == 0, "no thread stops earlier than another");
  const uint32_t step_bytes = (uint32_t)(STEP * ld) * (uint32_t)sizeof(T);
  to += attention_piece(ROWS, c.row, c.piece);
  left -= c.row + c.none;
  UNROLL for (int j = 0; j < ROWS / STEP; j++)
    cp_async16(to + j * STEP * 128, (const unsigned char *)from + (uint64_t)step_bytes * (uint64_t)j, j * STEP < left);
}
// Starts the copy of the tile of N keys and values from `key` on, where that is before `end`. k: the thread's part of
// them, which moves on to the next tile; its values are `behind` elements further.
template <int N, int HS, int THREADS, class T>
__device__ static inline void attention_load_keys(AttentionCopy<HS, THREADS> c, unsigned char *to, const T **k,
                                                  int behind, const AttentionShape &s, int key, int end) {
  if (key < end) {
    attention_load_tile<N>(c, to, *k, s.ld, s.len - key);
    attention_load_tile<N>(c, to + N * HS * 2, *k + behind, s.ld, s.len - key);
    *k += (int64_t)N * s.ld;
  }
  cp_async_commit();
}
// Waits until every thread's copies have landed, except those of its PENDING latest groups, and can be read by every
// thread's multiplies.
template <int PENDING> __device__ static inline void attention_arrived() {
  cp_async_wait<PENDING>();
  proxy_fence();
  __syncthreads();
}
// Waits until all copies have landed and all multiplies are complete, except those of the PENDING latest groups; p is
// computed. Nobody reads the place of the previous tile any more.
template <int N, int PENDING> __device__ static inline void attention_arrived_scores(float (*p)[4]) {
  cp_async_wait<0>();
  proxy_fence();
  wgmma_wait<PENDING>();
  wgmma_pin<N>(p[0]);
  __syncthreads();
}
// Starts sums (64 x N) = A B^T: dot products of the warpgroup's rows with a tile's N, over the head ascending. A's
// panels have a_rows rows.
template <class T, int N, int HS>
__device__ static inline void attention_dot_tile(float (*sums)[4], uint64_t a, int a_rows, uint64_t b) {
  UNROLL for (int d = 0; d < HS / 16; d++)
    wgmma_dot<T, N>(sums[0], wgmma_step(a, d / 4 * (a_rows * 128) + d % 4 * 32),
                    wgmma_step(b, d / 4 * (N * 128) + d % 4 * 32), d > 0);
  wgmma_commit();
}
// Starts sums (64 x HS) += P B: a tile's N rows weighted by P, over the rows ascending.
template <class T, int N, int HS>
__device__ static inline void attention_weigh_tile(float (*sums)[4], const uint32_t (*p)[4], uint64_t b) {
  UNROLL for (int k = 0; k < N / 16; k++) wgmma_weigh<T, HS>(sums[0], p[k], wgmma_step(b, k * 2048));
}
// P, rounded, as the A operand of a multiply.
template <class T, int N> __device__ static inline void attention_pack(uint32_t (*to)[4], const float (*p)[4]) {
  UNROLL for (int k = 0; k < N / 16; k++)
    UNROLL for (int i = 0; i < 4; i++)
      to[k][i] = pack2<T>(p[2 * k + i / 2][i % 2 * 2], p[2 * k + i / 2][i % 2 * 2 + 1]);
}
// Multiplies each row of sums by its factor, rounds, and stores up to `rows` of the warp's 16 rows, through their
// places in a tile of ROWS rows of the block's own, which nobody reads any more.
template <int ROWS, int HS, class T>
__device__ static inline void attention_store_tile(T *to, int ld, int rows, int hs, unsigned char *own, int own_row,
                                                   const float (*sums)[4], float factor0, float factor1) {
  const int lane = (int)threadIdx.x % WARP;
  UNROLL for (int n = 0; n < HS / 8; n++)
    UNROLL for (int i = 0; i < 2; i++) {
      const float factor = i ? factor1 : factor0;
      *(uint32_t *)(own + attention_piece(ROWS, own_row + i * 8 + lane / 4, n) + lane % 4 * 4) =
          pack2<T>(sums[n][2 * i] * factor, sums[n][2 * i + 1] * factor);
    }
  __syncwarp();
  UNROLL for (int i = lane; i < 16 * HS / 8; i += WARP) {
    const int row = i / (HS / 8), piece = i % (HS / 8);
    if (row < rows && piece * 8 < hs)
      store_pack(to + (int64_t)row * ld + piece * 8,
                 load_pack((const T *)(own + attention_piece(ROWS, own_row + row, piece))));
  }
}
// attention_sums of rows that attention_store_tile has stored.
template <int ROWS, int HS, class T>
__device__ static inline void attention_sums_of_tile(float *sums, const AttentionShape &s, int first, int column,
                                                     unsigned char *own, int own_row) {
  if (sums)
    attention_column_sums<16, HS, T>(sums, s, first, column, (float *)(own + own_row * 128), 16 * 128 / 4,
                                     [=](int row, int i) {
      return *(const AttentionPair<T> *)(own + attention_piece(ROWS, own_row + row, i / 8) + i % 8 * 2);
    });
}
__device__ static inline int attention_next(int place) { return place + 1 < ATTENTION_PLACES ? place + 1 : 0; }
// The block's warp, as a number that the compiler knows to be the same for all lanes.
__device__ static inline int attention_warp() { return __shfl_sync(FULL_WARP, (int)threadIdx.x / WARP, 0); }

// attention_mask_keys_before with the rows' starts in registers.
template <int N>
__device__ static inline void attention_mask_keys_before(float (*p)[4], const int start[2], int first_key) {
  const int column = first_key + attention_anew((int)threadIdx.x) % 4 * 2;
  UNROLL for (int n = 0; n < N / 8; n++)
    UNROLL for (int e = 0; e < 4; e++)
      if (n * 8 + e % 2 < start[e / 2] - column) p[n][e] = -INFINITY;
}

// ---- forward --------------------------------------------------------------------------------------------------------
// attention_softmax with a maximum that is raised only by scores more than 2^8 above it: probabilities are relative to
// whatever it is, so only their scale changes, and earlier sums are seldom multiplied (Zadouri et al. 2026,
// "FlashAttention-4").
template <int N, int HS>
__device__ static inline void attention_softmax_seldom(AttentionSoftmax<1> *w, float (*p)[4], float (*out)[4],
                                                       float scale2) {
  float shrink[2];
  UNROLL for (int i = 0; i < 2; i++) {
    float top = -INFINITY;
    UNROLL for (int n = 0; n < N / 8; n++) top = fmaxf(top, fmaxf(p[n][2 * i], p[n][2 * i + 1]));
    top = fmaxf(top, __shfl_xor_sync(FULL_WARP, top, 1));        // the four lanes of a row
    top = fmaxf(top, __shfl_xor_sync(FULL_WARP, top, 2));
    top = top * scale2 > w->max[0][i] + 8.0f ? top * scale2 : w->max[0][i];
    shrink[i] = fast_exp2(w->max[0][i] - top);
    w->max[0][i] = top;
  }
  if (__any_sync(FULL_WARP, shrink[0] != 1.0f || shrink[1] != 1.0f))
    UNROLL for (int i = 0; i < 2; i++) {
      w->sum[0][i] *= shrink[i];
      UNROLL for (int n = 0; n < HS / 8; n++)
        UNROLL for (int e = 2 * i; e < 2 * i + 2; e++) out[n][e] *= shrink[i];
    }
  UNROLL for (int i = 0; i < 2; i++)
    UNROLL for (int n = 0; n < N / 8; n++)
      UNROLL for (int e = 2 * i; e < 2 * i + 2; e++) {
        p[n][e] = fast_exp2(fmaf(p[n][e], scale2, -w->max[0][i]));
        w->sum[0][i] += p[n][e];
      }
}
// Tiles of queries run from the last, which is the longest, to the first; grid (tiles, heads, sequences).
template <class T, int HS, int N, int GROUPS, int BLOCKS, bool DROP>
__global__ static void __launch_bounds__(GROUPS *WARPGROUP, BLOCKS)
    attention_forward_wgmma_kernel(AttentionForward<T> a) {
#if HAS_WGMMA
  SHARED_TILES(q);
  constexpr int THREADS = GROUPS * WARPGROUP, ROWS = GROUPS * WARPGROUP_ROWS, TILE = N * HS * 2;
  unsigned char *kv = q + ROWS * HS * 2;         // K, V of each place
  const AttentionShape &s = a.s;
  const AttentionCopy<HS, THREADS> copy = attention_copy<HS, THREADS>(s);
  const int lane = (int)threadIdx.x % WARP, warp = attention_warp(), group = warp / 4;
  const int block = ((int)gridDim.x - 1 - (int)blockIdx.x) * ROWS, first = block + warp * 16;
  const AttentionPlace at = attention_place(s, (int)blockIdx.y);
  const int behind = (s.ld - s.C) / 2;           // elements from k to v
  const int end = attention_min(block + ROWS, s.len);
  const int mine = attention_min(block + (group + 1) * WARPGROUP_ROWS, s.len);
  const uint32_t step = DROP ? attention_step(a.d) : 0;
  const uint64_t own = wgmma_tile(q + group * WARPGROUP_ROWS * 128), place0 = wgmma_tile(kv, N * 128);
  AttentionSoftmax<1> w = {{{-FLT_MAX, -FLT_MAX}}, {{0.0f, 0.0f}}};
  float out[HS / 8][4] = {}, p[1][N / 8][4];
  uint32_t packed[N / 16][4];
  attention_load_tile<ROWS>(copy, q, attention_copy_from(copy, a.qkv + at.q, s.ld, block), s.ld, s.len - block);
  // of the keys that the block's first query attends to
  const int begin = attention_start(a.starts, s, block) / N * N;
  const T *k = attention_copy_from(copy, a.qkv + at.k, s.ld, begin);
  attention_load_keys<N>(copy, kv, &k, behind, s, begin, end);
  attention_load_keys<N>(copy, kv + 2 * TILE, &k, behind, s, begin + N, end);
  const int border = attention_start(a.starts, s, first + 15);     // no document starts later
  int start[2];
  UNROLL for (int i = 0; i < 2; i++) start[i] = attention_start(a.starts, s, first + i * 8 + lane / 4);
  attention_arrived<1>();
  wgmma_pin<HS>(out[0]);
  wgmma_fence();
  attention_dot_tile<T, N, HS>(p[0], own, ROWS, place0);
  int now = 0, next = 1, free = 2, key = begin;  // now, next, free: places
  for (;; key += N) {
    attention_arrived_scores<N, 0>(p[0]);
    wgmma_pin<HS>(out[0]);
    attention_load_keys<N>(copy, kv + free * 2 * TILE, &k, behind, s, key + 2 * N, end);
    if (key + N > first) attention_mask_keys<1, N>(p, first, key);
    if (key < border) attention_mask_keys_before<N>(p[0], start, key);
    attention_softmax_seldom<N, HS>(&w, p[0], out, s.scale2);
    if (DROP) {
      uint32_t keep[1][2][N / 32];
      attention_keep_keys<1, N>(keep, a.d, step, s, first, key);
      UNROLL for (int i = 0; i < N / 2; i++)
        if (!(keep[0][i % 4 / 2][i / 16] >> (i / 4 % 4 * 8 + i % 2) & 1)) p[0][i / 4][i % 4] = 0.0f;
    }
    attention_pack<T, N>(packed, p[0]);
    wgmma_pin<HS>(out[0]);
    wgmma_fence();
    attention_weigh_tile<T, N, HS>(out, packed, wgmma_step(place0, now * 2 * TILE + TILE));
    wgmma_commit();
    if (key + N >= mine) break;
    wgmma_fence();
    attention_dot_tile<T, N, HS>(p[0], own, ROWS, wgmma_step(place0, next * 2 * TILE));
    now = next, next = free, free = attention_next(free);
  }
  wgmma_wait<0>();
  wgmma_pin<HS>(out[0]);
  for (key += N; key < end; key += N) {          // tiles that only later warpgroups attend to
    free = attention_next(free);
    attention_arrived<0>();
    attention_load_keys<N>(copy, kv + free * 2 * TILE, &k, behind, s, key + 2 * N, end);
  }
  float factor[2];
  UNROLL for (int i = 0; i < 2; i++) {
    float sum = w.sum[0][i];
    sum += __shfl_xor_sync(FULL_WARP, sum, 1);
    sum += __shfl_xor_sync(FULL_WARP, sum, 2);
    factor[i] = a.d.factor / sum;
    const int query = first + i * 8 + lane / 4;
    if (lane % 4 == 0 && query < s.len) a.lse[at.stat + query] = vf_log_sum(w.max[0][i], logf(sum));
  }
  __syncthreads();                               // nobody reads Q any more
  attention_store_tile<ROWS, HS>(a.out + at.out + (int64_t)first * s.C, s.C, s.len - first, s.hs, q, warp * 16, out,
                                 factor[0], factor[1]);
#endif
}

// ---- backward -------------------------------------------------------------------------------------------------------
// P^T of the scores S^T. A lane's columns, the queries of lse, come in pairs.
template <int N>
__device__ static inline void attention_transposed_p(float (*p)[4], const float (*scores)[4], const float *lse,
                                                     float scale2) {
  const int lane = attention_anew((int)threadIdx.x) % WARP;
  UNROLL for (int n = 0; n < N / 8; n++) {
    const float2 log_sum = *(const float2 *)(lse + n * 8 + lane % 4 * 2);
    UNROLL for (int e = 0; e < 4; e++)
      p[n][e] = fast_exp2(fmaf(scores[n][e], scale2, -(e % 2 ? log_sum.y : log_sum.x)));
  }
}
// P^T becomes ds^T.
template <int N>
__device__ static inline void attention_transposed_ds(float (*p)[4], const float (*dp)[4], const float *dot) {
  const int lane = attention_anew((int)threadIdx.x) % WARP;
  UNROLL for (int n = 0; n < N / 8; n++) {
    const float2 d = *(const float2 *)(dot + n * 8 + lane % 4 * 2);
    UNROLL for (int e = 0; e < 4; e++) p[n][e] = vf_softmax_grad(p[n][e], dp[n][e], e % 2 ? d.y : d.x);
  }
}
// Dropout of N queries by the warp's 16 keys, in the layout of this lane's sums: bit 4 n + e of sum [n][e].
template <int N>
__device__ static inline void attention_keep_transposed(uint32_t kept[(N + 63) / 64], const AttentionDrop &d,
                                                        uint32_t step, const AttentionShape &s, int head,
                                                        int first_query, int first_key) {
  const int lane = (int)threadIdx.x % WARP;
  uint32_t word[N / 32];
  attention_keep_queries<1, N>(word, d, step, s, head, first_query, first_key);
  UNROLL for (int i = 0; i < (N + 63) / 64; i++) kept[i] = 0;
  UNROLL for (int i = 0; i < N / 4; i++) {       // column i / 2 * 8 + lane % 4 * 2 + i % 2
    const uint32_t keys = __shfl_sync(FULL_WARP, word[i / 8], i / 2 * 8 + lane % 4 * 2 + i % 2) >> lane / 4;
    kept[i / 16] |= ((keys & 1) | (keys >> 8 & 1) << 2) << (i / 2 * 4 + i % 2) % 32;
  }
}
// The next tile of queries to be copied: of which head of those that share k and v, from which query on, and of the one
// before it this thread's lse or D (attention_stat), which goes into shared memory when the tile has landed.
struct AttentionQueries { int turn, tile; float stat; };
template <int N, int HS, int THREADS, class T>
__device__ static inline void attention_ask_queries(AttentionCopy<HS, THREADS> c, unsigned char *to,
                                                    AttentionQueries *n, const AttentionBackward<T> &a,
                                                    AttentionPlace at) {
  const AttentionShape &s = a.s;
  if (n->turn < s.group) {
    const int64_t head = (int64_t)n->turn * s.hs;
    attention_load_tile<N>(c, to, attention_copy_from(c, a.qkv + at.q + head, s.ld, n->tile), s.ld, s.len - n->tile);
    attention_load_tile<N>(c, to + N * HS * 2, attention_copy_from(c, a.dout + at.out + head, s.C, n->tile), s.C,
                           s.len - n->tile);
    n->stat = attention_stat<N>(a, at.stat + (int64_t)n->turn * s.len, n->tile);
  }
  cp_async_commit();
}
template <int N> __device__ static inline void attention_next_queries(AttentionQueries *n, int begin, int end) {
  if ((n->tile += N) >= end) n->tile = begin, n->turn++;
}
template <int N, int HS, int THREADS, class T>
__device__ static inline void attention_load_queries(AttentionCopy<HS, THREADS> c, unsigned char *to,
                                                     AttentionQueries *n, const AttentionBackward<T> &a,
                                                     AttentionPlace at, int begin, int end) {
  attention_ask_queries<N>(c, to, n, a, at);
  attention_next_queries<N>(n, begin, end);
}
template <int N> __device__ static inline void attention_keep_stat(float *stats, float stat) {
  const int thread = (int)threadIdx.x;
  if (thread < 2 * N) stats[thread] = thread < N ? stat * 1.44269504f : stat;
}
// Scores of queries that do not see a row's key become -INFINITY. Rows are keys, which queries from stop on do not see.
template <int N>
__device__ static inline void attention_mask_queries_behind(float (*p)[4], const int stop[2], int first_query) {
  const int column = first_query + attention_anew((int)threadIdx.x) % 4 * 2;
  UNROLL for (int n = 0; n < N / 8; n++)
    UNROLL for (int e = 0; e < 4; e++)
      if (n * 8 + e % 2 >= stop[e / 2] - column) p[n][e] = -INFINITY;
}
// dk and dv of 64 keys per warpgroup. Rows are keys: scores hold S^T, p holds P^T, then dS^T; dp holds dP^T.
template <class T, int HS, int N, int GROUPS, int BLOCKS, bool DROP>
__global__ static void __launch_bounds__(GROUPS *WARPGROUP, BLOCKS)
    attention_dkv_wgmma_kernel(AttentionBackward<T> a, float *sums) {
#if HAS_WGMMA
  SHARED_TILES(k);
  constexpr int THREADS = GROUPS * WARPGROUP, ROWS = GROUPS * WARPGROUP_ROWS, OWN = ROWS * HS * 2, TILE = N * HS * 2;
  constexpr bool AHEAD = HS <= 64;               // there are registers for the next scores beside P^T
  unsigned char *v = k + OWN, *qd = v + OWN;     // Q, dout of each place
  float *stats = (float *)(qd + ATTENTION_PLACES * 2 * TILE);      // lse (base 2), D of each place
  const AttentionShape &s = a.s;
  const AttentionCopy<HS, THREADS> copy = attention_copy<HS, THREADS>(s);
  const int warp = attention_warp(), block = (int)blockIdx.x * ROWS, first = block + warp * 16;
  const AttentionPlace at = attention_place(s, (int)blockIdx.y * s.group);
  const int begin = block / N * N;
  const uint32_t step = DROP ? attention_step(a.d) : 0;
  const uint64_t own_k = wgmma_tile(k + warp / 4 * WARPGROUP_ROWS * 128), own_v = wgmma_step(own_k, OWN);
  const uint64_t place0 = wgmma_tile(qd, N * 128);
  const T *own = attention_copy_from(copy, a.qkv + at.k, s.ld, block);
  AttentionQueries load = {0, begin, 0.0f};
  float dk[HS / 8][4] = {}, dv[HS / 8][4] = {}, scores[1][N / 8][4], dp[N / 8][4];
  float apart[N / 8][4], (*p)[4] = AHEAD ? apart : scores[0];
  uint32_t packed_p[N / 16][4], packed_ds[N / 16][4];
  attention_load_tile<ROWS>(copy, k, own, s.ld, s.len - block);
  attention_load_tile<ROWS>(copy, v, own + (s.ld - s.C) / 2, s.ld, s.len - block);
  attention_ask_queries<N>(copy, qd, &load, a, at);
  // What is searched for in `starts` comes when the first tiles are on their way.
  const int end = attention_queries_end(a.starts, s, begin, block + ROWS - 1, N);
  int stop[2];                                   // of this lane's keys: the first query that does not see it
  UNROLL for (int i = 0; i < 2; i++) {
    const int key = first + i * 8 + (int)threadIdx.x % WARP / 4;
    stop[i] = attention_queries_end(a.starts, s, key, key, 1);
  }
  attention_next_queries<N>(&load, begin, end);
  attention_keep_stat<N>(stats, load.stat);
  attention_load_queries<N>(copy, qd + 2 * TILE, &load, a, at, begin, end);
  attention_arrived<1>();
  wgmma_pin<HS>(dk[0]);
  wgmma_pin<HS>(dv[0]);
  wgmma_fence();
  attention_dot_tile<T, N, HS>(scores[0], own_k, ROWS, place0);
  attention_dot_tile<T, N, HS>(dp, own_v, ROWS, wgmma_step(place0, TILE));
  if (AHEAD) {
    wgmma_wait<1>();
    wgmma_pin<N>(scores[0][0]);
  }
  int turn = 0, tile = begin, now = 0, next = 1, free = 2;
  for (int left = s.group * ((end - begin + N - 1) / N) - 1;; left--) {
    // The last tile computes scores ahead, of itself, that nobody needs: a branch would end the pipeline.
    const uint64_t q = wgmma_step(place0, now * 2 * TILE), ahead = wgmma_step(place0, (left ? next : now) * 2 * TILE);
    const float *lse = stats + now * 2 * N;
    if (!AHEAD) {
      attention_keep_stat<N>(stats + next * 2 * N, load.stat);
      attention_arrived_scores<N, 1>(scores[0]);
      attention_load_queries<N>(copy, qd + free * 2 * TILE, &load, a, at, begin, end);
    }
    if (tile < first + 16) attention_mask_queries<1, N>(scores, first, tile);
    if (a.starts && __any_sync(FULL_WARP, tile + N > stop[0])) attention_mask_queries_behind<N>(scores[0], stop, tile);
    attention_transposed_p<N>(p, scores[0], lse, s.scale2);
    attention_pack<T, N>(packed_p, p);
    uint32_t kept[(N + 63) / 64];
    if (DROP) {
      attention_keep_transposed<N>(kept, a.d, step, s, (int)blockIdx.y * s.group + turn, tile, first);
      UNROLL for (int i = 0; i < N / 4; i++) {
        const uint32_t pair = kept[i / 16] >> i % 16 * 2;
        packed_p[i / 4][i % 4] &= (pair & 1 ? 0xffffu : 0u) | (pair & 2 ? 0xffff0000u : 0u);
      }
    }
    if (AHEAD) {
      attention_keep_stat<N>(stats + next * 2 * N, load.stat);
      attention_arrived_scores<N, 0>(dp);
      attention_load_queries<N>(copy, qd + free * 2 * TILE, &load, a, at, begin, end);
    } else {
      wgmma_wait<0>();
      wgmma_pin<N>(dp[0]);
    }
    wgmma_fence();
    attention_weigh_tile<T, N, HS>(dv, packed_p, wgmma_step(q, TILE));
    if (AHEAD) {
      wgmma_fence();
      attention_dot_tile<T, N, HS>(scores[0], own_k, ROWS, ahead);
    } else {
      wgmma_commit();
    }
    if (DROP)
      UNROLL for (int i = 0; i < N / 2; i++)
        dp[i / 4][i % 4] = kept[i / 32] >> i % 32 & 1 ? dp[i / 4][i % 4] * a.d.factor : 0.0f;
    attention_transposed_ds<N>(p, dp, lse + N);
    if (AHEAD) attention_pack<T, N>(packed_ds, p);
    wgmma_wait<0>();
    wgmma_pin<N>(scores[0][0]);
    if (!AHEAD) attention_pack<T, N>(packed_ds, p);                // takes the registers of packed_p
    wgmma_fence();
    attention_weigh_tile<T, N, HS>(dk, packed_ds, q);
    if (!left) break;
    wgmma_fence();
    if (!AHEAD) {
      wgmma_commit();
      attention_dot_tile<T, N, HS>(scores[0], own_k, ROWS, ahead);
    }
    attention_dot_tile<T, N, HS>(dp, own_v, ROWS, wgmma_step(ahead, TILE));
    if ((tile += N) >= end) tile = begin, turn++;
    now = next, next = free, free = attention_next(free);
  }
  wgmma_commit();
  wgmma_wait<0>();
  wgmma_pin<HS>(dk[0]);
  wgmma_pin<HS>(dv[0]);
  T *to = a.dqkv + at.k + (int64_t)first * s.ld;
  __syncthreads();                               // nobody reads K and V any more
  attention_store_tile<ROWS, HS>(to, s.ld, s.len - first, s.hs, k, warp * 16, dk, s.scale, s.scale);
  attention_store_tile<ROWS, HS>(to + (s.ld - s.C) / 2, s.ld, s.len - first, s.hs, v, warp * 16, dv, a.d.factor,
                                 a.d.factor);
  // Computed again: kept from the start, they would take registers that the loop lacks.
  const int row = attention_anew((int)threadIdx.x) / WARP * 16;
  const int own_first = attention_anew((int)blockIdx.x) * ROWS + row;
  const int column = s.C + attention_anew((int)blockIdx.y) * s.hs;
  attention_sums_of_tile<ROWS, HS, T>(sums, s, own_first, column, k, row);
  attention_sums_of_tile<ROWS, HS, T>(sums, s, own_first, column + (s.ld - s.C) / 2, v, row);
#endif
}

// dq of 64 queries per warpgroup, and D of these queries, which dk and dv need; tiles as in the forward kernel. p holds
// S, then P, then dS; its first dimension is M = 1 of the functions of attention_tensorcore.cuh. attended: out of the
// forward pass. dots (B,H,T): D, overwritten. OWN, TILE: bytes of the block's rows of Q, and of a tile of K.
template <class T, int HS, int N, int GROUPS, int BLOCKS, bool DROP>
__global__ static void __launch_bounds__(GROUPS *WARPGROUP, BLOCKS)
    attention_dq_wgmma_kernel(AttentionBackward<T> a, const T *attended, float *dots, float *sums) {
#if HAS_WGMMA
  SHARED_TILES(q);
  constexpr int THREADS = GROUPS * WARPGROUP, ROWS = GROUPS * WARPGROUP_ROWS, OWN = ROWS * HS * 2, TILE = N * HS * 2;
  unsigned char *d = q + OWN, *kv = d + OWN;     // K, V of each place
  const AttentionShape &s = a.s;
  const AttentionCopy<HS, THREADS> copy = attention_copy<HS, THREADS>(s);
  const int lane = (int)threadIdx.x % WARP, warp = attention_warp(), group = warp / 4;
  const int block = ((int)gridDim.x - 1 - (int)blockIdx.x) * ROWS, first = block + warp * 16;
  const AttentionPlace at = attention_place(s, (int)blockIdx.y);
  const int behind = (s.ld - s.C) / 2;           // elements from k to v
  const int end = attention_min(block + ROWS, s.len);
  const int mine = attention_min(block + (group + 1) * WARPGROUP_ROWS, s.len);
  const uint32_t step = DROP ? attention_step(a.d) : 0;
  const uint64_t own_q = wgmma_tile(q + group * WARPGROUP_ROWS * 128), own_d = wgmma_step(own_q, OWN);
  const uint64_t place0 = wgmma_tile(kv, N * 128);         // descriptors: own rows of Q, of dout; K of the first place
  float dq[HS / 8][4] = {}, p[1][N / 8][4], dp[N / 8][4], lse[2], dot[2];
  uint32_t packed_ds[N / 16][4];
  attention_load_tile<ROWS>(copy, q, attention_copy_from(copy, a.qkv + at.q, s.ld, block), s.ld, s.len - block);
  attention_load_tile<ROWS>(copy, d, attention_copy_from(copy, a.dout + at.out, s.C, block), s.C, s.len - block);
  const int begin = attention_start(a.starts, s, block) / N * N;
  const T *k = attention_copy_from(copy, a.qkv + at.k, s.ld, begin);
  attention_load_keys<N>(copy, kv, &k, behind, s, begin, end);
  attention_load_keys<N>(copy, kv + 2 * TILE, &k, behind, s, begin + N, end);
  const int border = attention_start(a.starts, s, first + 15);
  int start[2];
  UNROLL for (int i = 0; i < 2; i++) start[i] = attention_start(a.starts, s, first + i * 8 + lane / 4);
  // D = sum over a row of dout * out, by four lanes per row: each starts to load its parts of out here, before it
  // waits, and reads its parts of dout from shared memory below.
  Pack<T> parts[2][HS / 32];
  UNROLL for (int i = 0; i < 2; i++) {
    const int query = first + i * 8 + lane / 4;
    lse[i] = query < s.len ? a.lse[at.stat + query] * 1.44269504f : 0.0f;
    UNROLL for (int c = 0; c < HS / 32; c++) {
      const int column = c * 32 + lane % 4 * 8;
      parts[i][c] = Pack<T>{};
      if (query < s.len && column < s.hs) parts[i][c] = load_pack(attended + at.out + (int64_t)query * s.C + column);
    }
  }
  attention_arrived<1>();
  wgmma_pin<HS>(dq[0]);
  wgmma_fence();
  attention_dot_tile<T, N, HS>(p[0], own_q, ROWS, place0);
  attention_dot_tile<T, N, HS>(dp, own_d, ROWS, wgmma_step(place0, TILE));
  UNROLL for (int i = 0; i < 2; i++) {
    const int query = first + i * 8 + lane / 4;
    float sum = 0.0f;
    UNROLL for (int c = 0; c < HS / 32; c++) {
      const Pack<T> x =
          load_pack((const T *)(d + attention_piece(ROWS, warp * 16 + i * 8 + lane / 4, c * 4 + lane % 4)));
      UNROLL for (int e = 0; e < 8; e++) sum = fmaf(to_f32(x.x[e]), to_f32(parts[i][c].x[e]), sum);
    }
    sum += __shfl_xor_sync(FULL_WARP, sum, 1);
    sum += __shfl_xor_sync(FULL_WARP, sum, 2);
    dot[i] = sum;
    if (lane % 4 == 0 && query < s.len) dots[at.stat + query] = sum;
  }
  int now = 0, next = 1, free = 2, key = begin;
  for (;; key += N) {
    attention_arrived_scores<N, 1>(p[0]);
    attention_load_keys<N>(copy, kv + free * 2 * TILE, &k, behind, s, key + 2 * N, end);
    if (key + N > first) attention_mask_keys<1, N>(p, first, key);
    if (key < border) attention_mask_keys_before<N>(p[0], start, key);
    UNROLL for (int i = 0; i < N / 2; i++)
      p[0][i / 4][i % 4] = fast_exp2(fmaf(p[0][i / 4][i % 4], s.scale2, -lse[i % 4 / 2]));
    wgmma_wait<0>();
    wgmma_pin<N>(dp[0]);
    if (DROP) {
      uint32_t keep[1][2][N / 32];
      attention_keep_keys<1, N>(keep, a.d, step, s, first, key);
      UNROLL for (int i = 0; i < N / 2; i++) {
        const bool kept = keep[0][i % 4 / 2][i / 16] >> (i / 4 % 4 * 8 + i % 2) & 1;
        dp[i / 4][i % 4] = kept ? dp[i / 4][i % 4] * a.d.factor : 0.0f;
      }
    }
    UNROLL for (int i = 0; i < N / 2; i++)
      p[0][i / 4][i % 4] = vf_softmax_grad(p[0][i / 4][i % 4], dp[i / 4][i % 4], dot[i % 4 / 2]);
    attention_pack<T, N>(packed_ds, p[0]);
    wgmma_fence();
    attention_weigh_tile<T, N, HS>(dq, packed_ds, wgmma_step(place0, now * 2 * TILE));
    wgmma_commit();
    if (key + N >= mine) break;
    wgmma_fence();
    attention_dot_tile<T, N, HS>(p[0], own_q, ROWS, wgmma_step(place0, next * 2 * TILE));
    attention_dot_tile<T, N, HS>(dp, own_d, ROWS, wgmma_step(place0, next * 2 * TILE + TILE));
    now = next, next = free, free = attention_next(free);
  }
  wgmma_wait<0>();
  wgmma_pin<HS>(dq[0]);
  for (key += N; key < end; key += N) {
    free = attention_next(free);
    attention_arrived<0>();
    attention_load_keys<N>(copy, kv + free * 2 * TILE, &k, behind, s, key + 2 * N, end);
  }
  __syncthreads();                               // nobody reads Q any more
  attention_store_tile<ROWS, HS>(a.dqkv + at.q + (int64_t)first * s.ld, s.ld, s.len - first, s.hs, q, warp * 16, dq,
                                 s.scale, s.scale);
  attention_sums_of_tile<ROWS, HS, T>(sums, s, first, (int)blockIdx.y * s.hs, q, warp * 16);
#endif
}

// ---- launches on Hopper ---------------------------------------------------------------------------------------------
// Head size, then warpgroups of a block and blocks of an SM of forward, of dk and dv, and of dq: the fastest
// on an H100 of those that compile without a wait behind each multiply.
#define ATTENTION_WGMMA(X) X(64, 1, 4, 1, 2, 1, 3) X(128, 1, 2, 2, 1, 2, 1)
enum { ATTENTION_WGMMA_N = 64 };                 // rows of a streamed tile
// The same of dk and dv with more than 64 columns. With 64 they spill 32 bytes, with dropout 312; with 32 none, but
// each multiply then reads K and V from shared memory for half as many queries. Which is faster was not measured:
// NVCCFLAGS=-DATTENTION_WGMMA_QUERIES=32 builds the other (dev/gpu_day.sh, part ops).
#ifndef ATTENTION_WGMMA_QUERIES
#define ATTENTION_WGMMA_QUERIES 64
#endif
// Bytes of `own` rows, and of two operands in each place.
static constexpr size_t attention_wgmma_bytes(int HS, int own) {
  return (size_t)(own + 2 * ATTENTION_PLACES * ATTENTION_WGMMA_N) * (size_t)HS * 2;
}
template <bool DROP, class T> static void attention_forward_wgmma_of(Ctx *c, AttentionForward<T> a, int64_t B) {
#define X(HS, F_GROUPS, F_BLOCKS, ...) \
  if (a.s.hs <= HS) { \
    LAUNCH((attention_forward_wgmma_kernel<T, HS, ATTENTION_WGMMA_N, F_GROUPS, F_BLOCKS, DROP>), \
           attention_grid(a.s, B, a.s.n_head, 64 * F_GROUPS), F_GROUPS * WARPGROUP, \
           attention_wgmma_bytes(HS, 64 * F_GROUPS), STREAM(c), a); \
    return; \
  }
  ATTENTION_WGMMA(X)
#undef X
}
template <bool DROP, class T>
static void attention_backward_wgmma_of(Ctx *c, AttentionBackward<T> a, const T *out, float *dot, float *sums,
                                        int64_t B) {
#define X(HS, F_GROUPS, F_BLOCKS, KV_GROUPS, KV_BLOCKS, Q_GROUPS, Q_BLOCKS) \
  if (a.s.hs <= HS) { \
    LAUNCH((attention_dq_wgmma_kernel<T, HS, ATTENTION_WGMMA_N, Q_GROUPS, Q_BLOCKS, DROP>), \
           attention_grid(a.s, B, a.s.n_head, 64 * Q_GROUPS), Q_GROUPS * WARPGROUP, \
           attention_wgmma_bytes(HS, 128 * Q_GROUPS), STREAM(c), a, out, dot, sums); \
    constexpr int QUERIES = HS > 64 ? ATTENTION_WGMMA_QUERIES : ATTENTION_WGMMA_N; \
    LAUNCH((attention_dkv_wgmma_kernel<T, HS, QUERIES, KV_GROUPS, KV_BLOCKS, DROP>), \
           attention_grid(a.s, B, attention_shared_heads(a.s), 64 * KV_GROUPS), KV_GROUPS * WARPGROUP, \
           attention_wgmma_bytes(HS, 128 * KV_GROUPS) + 2 * ATTENTION_PLACES * ATTENTION_WGMMA_N * sizeof(float), \
           STREAM(c), a, sums); \
    return; \
  }
  ATTENTION_WGMMA(X)
#undef X
}
#define X(T) \
  void attention_forward_wgmma(Ctx *c, AttentionForward<T> a, int64_t B) { \
    (a.d.drop.p > 0.0f ? attention_forward_wgmma_of<true, T> : attention_forward_wgmma_of<false, T>)(c, a, B); \
  } \
  void attention_backward_wgmma(Ctx *c, AttentionBackward<T> a, const T *out, float *dot, float *sums, int64_t B) { \
    (a.d.drop.p > 0.0f ? attention_backward_wgmma_of<true, T> \
                       : attention_backward_wgmma_of<false, T>)(c, a, out, dot, sums, B); \
  }
X(bf16) X(fp16)
#undef X
