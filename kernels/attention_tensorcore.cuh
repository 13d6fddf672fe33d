// attention_tensorcore.cuh: the kernels of attention_cuda.cuh for bf16 and fp16 on tensor cores. That file explains
// how they work.
#pragma once
#include "attention_parts.cuh"

// ---- tensor cores: pieces -------------------------------------------------------------------------------------------
enum { ATTENTION_WARPS = 4, ATTENTION_THREADS = ATTENTION_WARPS * WARP };

// Returns x, hidden from the optimizer: values computed from it inside a loop are computed in each iteration, and not
// once before the loop, where they would all take registers.
__device__ static inline int attention_anew(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// Starts the asynchronous copy of rows [first, first + ROWS) of one head into shared memory; rows >= T and columns >=
// hs become zero.
template <int ROWS, int HS, class T>
__device__ static inline void attention_load(T *to, const T *from, int ld, int first, const AttentionShape &s,
                                         int thread = (int)threadIdx.x) {
  constexpr int PIECES = ROWS * HS / 8;
  UNROLL for (int j = 0; j < (PIECES + ATTENTION_THREADS - 1) / ATTENTION_THREADS; j++) {
    const int i = thread + j * ATTENTION_THREADS;
    if (PIECES % ATTENTION_THREADS && i >= PIECES) break;
    const int row = i / (HS / 8), column = i % (HS / 8) * 8;
    const bool ok = first + row < s.len && column < s.hs;
    cp_async16(to + row * (HS + 8) + column, ok ? from + (int64_t)(first + row) * ld + column : from, ok);
  }
}

// Queries of a tile in shared memory, of which dk and dv process N at a time: at least 32, because each lane generates
// the dropout bits of a whole query.
HD constexpr int attention_stage(int N) { return N < WARP ? WARP : N; }

// The A operand of a warp: 16*M rows of a tile. Their first 16*KEPT columns stay in registers for all tiles; the other
// columns are read again for each tile.
template <int M, int KEPT> struct AttentionRows { uint32_t fragment[KEPT ? KEPT : 1][M][4]; };
template <int M, int HS, class T>
__device__ static inline void attention_read_rows(uint32_t a[M][4], const T *rows, int d) {
  const int lane = (int)threadIdx.x % WARP;
  UNROLL for (int m = 0; m < M; m++)
    ldmatrix_x4(a[m], rows + (m * 16 + lane % 16) * (HS + 8) + d * 16 + lane / 16 * 8);
}
template <int M, int HS, int KEPT, class T>
__device__ static inline void attention_keep_rows(AttentionRows<M, KEPT> *a, const T *rows) {
  UNROLL for (int d = 0; d < KEPT; d++) attention_read_rows<M, HS>(a->fragment[d], rows, d);
}
// sums (16*M x N) += A B^T: dot products of the warp's rows with N rows of b; summation over d ascending.
template <int M, int N, int HS, int KEPT, class T>
__device__ static inline void attention_dot_rows(float (*sums)[N / 8][4], AttentionRows<M, KEPT> *kept, const T *a,
                                                 const T *b) {
  const int lane = (int)threadIdx.x % WARP;
  UNROLL for (int d = 0; d < HS / 16; d++) {
    uint32_t again[M][4], (*f)[4] = d < KEPT ? kept->fragment[d] : again;
    if (d >= KEPT) attention_read_rows<M, HS>(f, a, d);
    UNROLL for (int n = 0; n < N / 8; n += 2) {
      uint32_t r[4];                             // B of column tiles n and n + 1
      ldmatrix_x4(r, b + (n * 8 + lane / 16 * 8 + lane % 8) * (HS + 8) + d * 16 + lane / 8 % 2 * 8);
      UNROLL for (int m = 0; m < M; m++) {
        mma_16816<T>(sums[m][n], f[m], r);
        mma_16816<T>(sums[m][n + 1], f[m], r + 2);
      }
    }
  }
}
// sums (16*M x HS) += P B, P (16*M x N); summation over the rows of b ascending.
template <int M, int N, int HS, class T>
__device__ static inline void attention_weigh_rows(float (*sums)[HS / 8][4], const float (*p)[N / 8][4], const T *b) {
  const int lane = (int)threadIdx.x % WARP;
  UNROLL for (int k = 0; k < N / 16; k++) {
    uint32_t a[M][4];
    UNROLL for (int m = 0; m < M; m++)
      UNROLL for (int i = 0; i < 4; i++) {
        const float *pair = &p[m][2 * k + i / 2][i % 2 * 2];
        a[m][i] = pack2<T>(pair[0], pair[1]);
      }
    UNROLL for (int n = 0; n < HS / 8; n += 2) {
      uint32_t r[4];
      ldmatrix_x4_trans(r, b + (k * 16 + lane % 16) * (HS + 8) + n * 8 + lane / 16 * 8);
      UNROLL for (int m = 0; m < M; m++) {
        mma_16816<T>(sums[m][n], a[m], r);
        mma_16816<T>(sums[m][n + 1], a[m], r + 2);
      }
    }
  }
}
// Multiplies each row of sums by its factor, rounds, and stores up to `rows` rows, by way of the warp's own rows of
// shared memory (staged), which no other warp reads.
template <class T> struct alignas(4) AttentionPair { T x[2]; };
template <int M, int HS, class T>
__device__ static inline void attention_store(T *to, int ld, int rows, int hs, T *staged,
                                              const float (*sums)[HS / 8][4], const float (*factor)[2]) {
  const int lane = (int)threadIdx.x % WARP;
  __syncwarp();
  UNROLL for (int m = 0; m < M; m++)
    UNROLL for (int n = 0; n < HS / 8; n++)
      UNROLL for (int i = 0; i < 2; i++) {
        const uint32_t bits = pack2<T>(sums[m][n][2 * i] * factor[m][i], sums[m][n][2 * i + 1] * factor[m][i]);
        AttentionPair<T> pair;
        memcpy(&pair, &bits, 4);
        *(AttentionPair<T> *)(staged + (m * 16 + i * 8 + lane / 4) * (HS + 8) + n * 8 + lane % 4 * 2) = pair;
      }
  __syncwarp();
  UNROLL for (int i = lane; i < 16 * M * HS / 8; i += WARP) {
    const int row = i / (HS / 8), column = i % (HS / 8) * 8;
    if (row < rows && column < hs)
      store_pack(to + (int64_t)row * ld + column, load_pack(staged + row * (HS + 8) + column));
  }
}
// Sums over the rows of each run of ATTENTION_SUM_ROWS of what attention_store has stored: every warp's rows ascending,
// then the run's warps in order. pair(row, column): two neighbouring elements of the warp's ROWS rows, of which `rows`
// are there. part: HS floats of the warp's own, where those rows were; `stride` floats further are the next warp's.
// column: of dqkv. All threads of the block come here.
template <int ROWS, int HS, class T, class Pair>
__device__ static inline void attention_column_sums(float *sums, const AttentionShape &s, int first, int column,
                                                    float *part, int stride, Pair pair) {
  constexpr int WARPS = ATTENTION_SUM_ROWS / ROWS, SOME = ROWS > 16 ? 4 : 16;       // loads at a time
  const int thread = attention_anew((int)threadIdx.x), lane = thread % WARP, warp = thread / WARP % WARPS;
  const int rows = s.len - first;
  float own[(HS + 63) / 64][2] = {};
  __syncwarp();
  UNROLL for (int i = 0; i < (HS + 63) / 64; i++)
    if (i * 64 + lane * 2 < HS)
      ROLLED for (int some = 0; some < ROWS; some += SOME) UNROLL for (int row = some; row < some + SOME; row++) {
        const AttentionPair<T> x = pair(row, i * 64 + lane * 2);
        UNROLL for (int e = 0; e < 2; e++) own[i][e] += row < rows ? to_f32(x.x[e]) : 0.0f;
      }
  __syncwarp();
  UNROLL for (int i = 0; i < (HS + 63) / 64; i++)
    UNROLL for (int e = 0; e < 2; e++)
      if (i * 64 + lane * 2 < HS) part[i * 64 + lane * 2 + e] = own[i][e];
  __syncthreads();
  const int run = first / ATTENTION_SUM_ROWS, runs = (int)attention_sum_runs(1, s.len);
  float *to = sums + ((int64_t)attention_anew((int)blockIdx.z) * runs + run) * s.ld + column;
  for (int i = warp * WARP + lane; i < s.hs && run < runs; i += WARPS * WARP) {
    float sum = 0.0f;
    UNROLL for (int w = 0; w < WARPS; w++) sum += part[(w - warp) * stride + i];
    to[i] = sum;
  }
}
// The same of rows that attention_store staged.
template <int M, int HS, class T>
__device__ static inline void attention_sums(float *sums, const AttentionShape &s, int first, int column, T *staged) {
  if (sums)
    attention_column_sums<16 * M, HS, T>(sums, s, first, column, (float *)staged, 8 * M * (HS + 8),
                                         [=](int row, int i) {
      return *(const AttentionPair<T> *)(staged + row * (HS + 8) + i);
    });
}

// Dropout's kept bits of the warp's 16*M queries (rows) by N keys, in this lane's layout: bit n * 8 % 32 + e of
// keep[m][i][n / 4] belongs to sum [m][n][2 i + e], e < 2.
template <int M, int N>
__device__ static inline void attention_keep_keys(uint32_t keep[M][2][N / 32], const AttentionDrop &d, uint32_t step,
                                                  const AttentionShape &s, int first_query, int first_key) {
  const int lane = (int)threadIdx.x % WARP, head = (int)blockIdx.y;
  uint32_t word[(M * N + 63) / 64];              // word i of 32 keys: query i / (N/32)
  UNROLL for (int j = 0; j < (M * N + 63) / 64; j++) {
    const int i = j * WARP + lane;
    const int64_t element = attention_element(s, head, first_query + i / (N / 32), first_key + i % (N / 32) * 32);
    word[j] = attention_keep(d, step, d.drop.sample0 + blockIdx.z, element, 32);
  }
  UNROLL for (int m = 0; m < M; m++)
    UNROLL for (int i = 0; i < 2; i++)
      UNROLL for (int k = 0; k < N / 32; k++) {
        const int from = (m * 16 + i * 8 + lane / 4) * (N / 32) + k;
        keep[m][i][k] = __shfl_sync(FULL_WARP, word[m * N / 64], from % WARP) >> lane % 4 * 2;
      }
}
// The kept bits of N queries by the warp's 16*M keys (rows): word j of a lane is query j * 32 + lane, its bits are
// keys. That takes N / 32 registers; a lane's own sums need N / 4 words, which attention_transposed_ds gets by
// shuffles.
template <int M, int N>
__device__ static inline void attention_keep_queries(uint32_t word[N / 32], const AttentionDrop &d, uint32_t step,
                                                     const AttentionShape &s, int head, int first_query,
                                                     int first_key) {
  const int lane = attention_anew((int)threadIdx.x) % WARP;
  UNROLL for (int j = 0; j < N / 32; j++) {
    const int64_t element = attention_element(s, head, first_query + j * WARP + lane, first_key);
    word[j] = attention_keep(d, step, d.drop.sample0 + blockIdx.z, element, 16 * M);
  }
}

// ---- tensor cores: forward ------------------------------------------------------------------------------------------
// Running maximum (of scores times scale2) and this lane's part of the sum, for rows m * 16 + i * 8 + lane / 4.
template <int M> struct AttentionSoftmax { float max[M][2], sum[M][2]; };

// Scores become probabilities relative to the new maximum; earlier sums are rescaled to it.
template <int M, int N, int HS>
__device__ static inline void attention_softmax(AttentionSoftmax<M> *w, float (*p)[N / 8][4], float (*out)[HS / 8][4],
                                                float scale2) {
  UNROLL for (int m = 0; m < M; m++)
    UNROLL for (int i = 0; i < 2; i++) {
      float top = -INFINITY;
      UNROLL for (int n = 0; n < N / 8; n++) top = fmaxf(top, fmaxf(p[m][n][2 * i], p[m][n][2 * i + 1]));
      top = fmaxf(top, __shfl_xor_sync(FULL_WARP, top, 1));      // the four lanes of a row
      top = fmaxf(top, __shfl_xor_sync(FULL_WARP, top, 2));
      top = fmaxf(w->max[m][i], top * scale2);
      const float shrink = fast_exp2(w->max[m][i] - top);
      float sum = w->sum[m][i] * shrink;
      UNROLL for (int n = 0; n < N / 8; n++)
        UNROLL for (int e = 2 * i; e < 2 * i + 2; e++) {
          p[m][n][e] = fast_exp2(fmaf(p[m][n][e], scale2, -top));
          sum += p[m][n][e];
        }
      w->max[m][i] = top;
      w->sum[m][i] = sum;
      UNROLL for (int n = 0; n < HS / 8; n++) {
        out[m][n][2 * i] *= shrink;
        out[m][n][2 * i + 1] *= shrink;
      }
    }
}
// Causal mask: scores of keys after the row's query become -INFINITY. Rows are queries.
template <int M, int N>
__device__ static inline void attention_mask_keys(float (*p)[N / 8][4], int first_query, int first_key) {
  const int ahead = first_query - first_key + (int)threadIdx.x % WARP / 4 - (int)threadIdx.x % 4 * 2;
  UNROLL for (int m = 0; m < M; m++)
    UNROLL for (int n = 0; n < N / 8; n++)
      UNROLL for (int e = 0; e < 4; e++)
        if (n * 8 + e % 2 > ahead + m * 16 + e / 2 * 8) p[m][n][e] = -INFINITY;
}

// Scores of keys in documents before the row's become -INFINITY. Rows are queries; of those without such a key in the
// tile no score is looked at.
template <int M, int N>
__device__ static inline void attention_mask_keys_before(float (*p)[N / 8][4], const int32_t *starts,
                                                         const AttentionShape &s, int first_query, int first_key) {
  const int lane = attention_anew((int)threadIdx.x) % WARP;
  UNROLL for (int i = 0; i < 2 * M; i++) {
    const int start = attention_start(starts, s, first_query + i * 8 + lane / 4) - first_key - lane % 4 * 2;
    if (!__any_sync(FULL_WARP, start > 0)) continue;
    UNROLL for (int n = 0; n < N / 8; n++)
      UNROLL for (int e = 0; e < 2; e++)
        if (n * 8 + e < start) p[i / 2][n][i % 2 * 2 + e] = -INFINITY;
  }
}

// Tiles of queries run from the last, which is the longest, to the first; grid (tiles, heads, sequences).
template <class T, int HS, int M, int N, bool KEEP, int BLOCKS>
__global__ static void __launch_bounds__(ATTENTION_THREADS, BLOCKS) attention_forward_kernel(AttentionForward<T> a) {
  SHARED_DYNAMIC(T, q);
  constexpr int KEPT = KEEP ? HS / 16 : 0;
  constexpr int TILE = N * (HS + 8), ROWS = 16 * M;
  T *kv = q + ATTENTION_WARPS * ROWS * (HS + 8); // K, V of the even tiles, K, V of the odd ones
  const AttentionShape &s = a.s;
  const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
  const int block = ((int)gridDim.x - 1 - (int)blockIdx.x) * ATTENTION_WARPS * ROWS, first = block + warp * ROWS;
  const int end = attention_min(block + ATTENTION_WARPS * ROWS, s.len);
  const AttentionPlace at = attention_place(s, (int)blockIdx.y);
  const T *const k_in = a.qkv + at.k;
  const int behind = (s.ld - s.C) / 2;           // elements from k to v: a second pointer would take two registers
  const uint32_t step = attention_step(a.d);
  T *own = q + warp * ROWS * (HS + 8);
  AttentionRows<M, KEPT> rows;
  AttentionSoftmax<M> w;
  float out[M][HS / 8][4] = {};
  UNROLL for (int i = 0; i < 2 * M; i++) {
    w.max[i / 2][i % 2] = -FLT_MAX;
    w.sum[i / 2][i % 2] = 0.0f;
  }
  attention_load<ATTENTION_WARPS * ROWS, HS>(q, a.qkv + at.q, s.ld, block, s);
  // of the keys that the block's first query attends to
  const int begin = attention_start(a.starts, s, block) / N * N;
  attention_load<N, HS>(kv, k_in, s.ld, begin, s);
  attention_load<N, HS>(kv + TILE, k_in + behind, s.ld, begin, s);
  cp_async_commit();
  if (KEEP) {                                    // not within the loop, which would hold `begin` for it
    cp_async_wait<0>();
    __syncthreads();
    attention_keep_rows<M, HS, KEPT>(&rows, own);
  }
  for (int key = begin, odd = 0; key < end; key += N, odd ^= 1) {
    const T *k = kv + odd * 2 * TILE, *v = k + TILE;
    cp_async_wait<0>();
    __syncthreads();                             // every thread sees this tile, and no thread reads the previous one
    if (key + N < end) {
      T *next = kv + (odd ^ 1) * 2 * TILE;
      attention_load<N, HS>(next, k_in, s.ld, key + N, s);
      attention_load<N, HS>(next + TILE, k_in + behind, s.ld, key + N, s);
      cp_async_commit();
    }
    if (key >= first + ROWS) continue;           // in the future of all of this warp's queries
    float p[M][N / 8][4] = {};
    attention_dot_rows<M, N, HS, KEPT>(p, &rows, own, k);
    if (key + N > first) attention_mask_keys<M, N>(p, first, key);
    if (a.starts) attention_mask_keys_before<M, N>(p, a.starts, s, first, key);
    attention_softmax<M, N, HS>(&w, p, out, s.scale2);
    if (a.d.drop.p > 0.0f) {
      uint32_t keep[M][2][N / 32];
      attention_keep_keys<M, N>(keep, a.d, step, s, first, key);
      UNROLL for (int i = 0; i < M * N / 2; i++) {
        const int m = i / (N / 2), n = i / 4 % (N / 8), e = i % 4;
        if (!(keep[m][e / 2][n / 4] >> (n % 4 * 8 + e % 2) & 1)) p[m][n][e] = 0.0f;
      }
    }
    attention_weigh_rows<M, N, HS>(out, p, v);
  }
  float factor[M][2];
  UNROLL for (int i = 0; i < 2 * M; i++) {
    float sum = w.sum[i / 2][i % 2];
    sum += __shfl_xor_sync(FULL_WARP, sum, 1);
    sum += __shfl_xor_sync(FULL_WARP, sum, 2);
    factor[i / 2][i % 2] = a.d.factor / sum;
    const int query = first + i * 8 + lane / 4;
    if (lane % 4 == 0 && query < s.len)
      a.lse[at.stat + query] = vf_log_sum(w.max[i / 2][i % 2], logf(sum));
  }
  attention_store<M, HS>(a.out + at.out + (int64_t)first * s.C, s.C, s.len - first, s.hs, own, out, factor);
}

// ---- tensor cores: backward -----------------------------------------------------------------------------------------
// Scores of queries before a row's key become -INFINITY. Rows are keys.
template <int M, int N>
__device__ static inline void attention_mask_queries(float (*p)[N / 8][4], int first_key, int first_query) {
  const int thread = attention_anew((int)threadIdx.x);
  const int ahead = first_query - first_key + thread % 4 * 2 - thread % WARP / 4;
  UNROLL for (int m = 0; m < M; m++)
    UNROLL for (int n = 0; n < N / 8; n++)
      UNROLL for (int e = 0; e < 4; e++)
        if (m * 16 + e / 2 * 8 > ahead + n * 8 + e % 2) p[m][n][e] = -INFINITY;
}
// Scores of queries whose document starts after a row's key become -INFINITY. Rows are keys.
template <int M, int N>
__device__ static inline void attention_mask_queries_behind(float (*p)[N / 8][4], const int32_t *starts,
                                                            const AttentionShape &s, int first_key, int first_query) {
  const int lane = attention_anew((int)threadIdx.x) % WARP;
  UNROLL for (int n = 0; n < N / 8; n++)
    UNROLL for (int e = 0; e < 2; e++) {
      const int start = attention_start(starts, s, first_query + n * 8 + lane % 4 * 2 + e) - first_key - lane / 4;
      UNROLL for (int i = 0; i < 2 * M; i++)
        if (i * 8 < start) p[i / 2][n][i % 2 * 2 + e] = -INFINITY;
    }
}
// S^T becomes the dropped P^T, dP^T becomes ds^T. A lane's columns, the queries of lse and dot, come in pairs.
template <int M, int N, bool DROP>
__device__ static inline void attention_transposed_ds(float (*p)[N / 8][4], float (*dp)[N / 8][4], const float *lse,
                                                      const float *dot, int stride, float scale2, float factor,
                                                      const uint32_t *word, int first_query) {
  const int lane = attention_anew((int)threadIdx.x) % WARP;
  UNROLL for (int n = 0; n < N / 8; n++)
    UNROLL for (int e = 0; e < 2; e++) {
      const int column = n * 8 + lane % 4 * 2 + e;
      uint32_t keep = 0;                         // bit m * 16 + i * 8 belongs to sum [m][n][2 i + e]
      // first_query is a multiple of 32, and lanes count modulo 32. Without it the N / 4 lanes are the same for every
      // tile, and the compiler gives each a register.
      if (DROP) keep = __shfl_sync(FULL_WARP, word[n / 4], first_query + column) >> lane / 4;
      const float log_sum = lse[column * stride], d = dot[column * stride];
      UNROLL for (int i = 0; i < 2 * M; i++) {
        float *score = &p[i / 2][n][i % 2 * 2 + e], *y = &dp[i / 2][n][i % 2 * 2 + e];
        const bool kept = DROP ? keep >> (i * 8) & 1 : true;
        const float x = fast_exp2(fmaf(*score, scale2, -log_sum));
        *y = vf_softmax_grad(x, DROP ? kept ? *y * factor : 0.0f : *y, d);
        *score = kept ? x : 0.0f;
      }
    }
}

// The value that this thread writes to shared memory for a tile of N queries from `first` on: the natural lse, or D, of
// one query. head: the head's offset in lse and dot.
template <int N, class T>
__device__ static inline float attention_stat(const AttentionBackward<T> &a, int64_t head, int first) {
  const int thread = attention_anew((int)threadIdx.x), query = first + thread % N;
  const float *in = thread < N ? a.lse : a.dot;
  return thread < 2 * N && query < a.s.len ? in[head + query] : 0.0f;
}
// dk and dv of 64*M keys per block. Rows are keys: p holds S^T, then the dropped P^T; dp holds dP^T, then ds^T. Tiles
// of keys run from the first, which all queries attend to, to the last. Queries arrive in tiles of attention_stage(N)
// and are computed N at a time: with N = 16 their sums leave registers for K and V. One of V's pieces of 16 columns is
// then read again for each 16 queries, because with all of them kept a few registers spill.
// PLACES: tiles of queries in shared memory, 2: one is computed while the next one lands. GRADIENTS: heads of more than
// 128 columns lack the registers for the sums of dk and of dv, and have a launch for each. lse (base 2) and D of a tile
// are apart, after all tiles, or of such heads, which take all of shared memory, after each row of Q: in the 16 bytes
// between rows.
enum { ATTENTION_DK = 1, ATTENTION_DV = 2 };
template <class T, int HS, int M, int N, bool KEEP, int BLOCKS, int PLACES = 2,
          int GRADIENTS = ATTENTION_DK | ATTENTION_DV>
__global__ static void __launch_bounds__(ATTENTION_THREADS, BLOCKS) attention_dkv_kernel(AttentionBackward<T> a,
                                                                                          float *sums) {
  SHARED_DYNAMIC(T, k);
  constexpr int KEPT = KEEP ? HS / 16 : 0, KEPT_V = KEEP && N < 32 ? KEPT - 1 : KEPT;
  constexpr int STAGE = attention_stage(N), TILE = STAGE * (HS + 8), ROWS = 16 * M;
  constexpr int OWN = ATTENTION_WARPS * ROWS * (HS + 8);
  constexpr bool DK = GRADIENTS & ATTENTION_DK, DV = GRADIENTS & ATTENTION_DV, APART = HS <= 128;
  constexpr int STRIDE = APART ? 1 : (HS + 8) / 2;               // from one query's lse to the next; T has two bytes
  T *v = k + OWN, *qd = DK ? v + OWN : v;        // Q, dout of each place; dv alone needs no V
  const AttentionShape &s = a.s;
  const int thread = (int)threadIdx.x, warp = thread / WARP;
  const int block = (int)blockIdx.x * ATTENTION_WARPS * ROWS, first = block + warp * ROWS;
  const AttentionPlace at = attention_place(s, (int)blockIdx.y * s.group);
  const T *in = a.qkv + at.q, *dout = a.dout + at.out;
  const uint32_t step = attention_step(a.d);
  T *own_k = k + warp * ROWS * (HS + 8), *own_v = v + warp * ROWS * (HS + 8);
  AttentionRows<M, KEPT> rows_k;
  AttentionRows<M, KEPT_V> rows_v;
  float dk[M][HS / 8][4] = {}, dv[M][HS / 8][4] = {};
  const int begin = block / STAGE * STAGE;
  attention_load<ATTENTION_WARPS * ROWS, HS>(k, a.qkv + at.k, s.ld, block, s);
  if (DK) attention_load<ATTENTION_WARPS * ROWS, HS>(v, a.qkv + at.v, s.ld, block, s);
  cp_async_commit();
  attention_load<STAGE, HS>(qd, in, s.ld, begin, s);
  attention_load<STAGE, HS>(qd + TILE, dout, s.C, begin, s);
  cp_async_commit();
  float stat = attention_stat<STAGE>(a, at.stat, begin);
  const int end = attention_queries_end(a.starts, s, begin, block + ATTENTION_WARPS * ROWS - 1, STAGE);
  cp_async_wait<1>();
  __syncthreads();
  attention_keep_rows<M, HS, KEPT>(&rows_k, own_k);
  if (DK) attention_keep_rows<M, HS, KEPT_V>(&rows_v, own_v);
  int next_tile, next_turn;                      // turn: of the heads of q that share k and v
  for (int turn = 0, tile = begin, odd = 0; turn < s.group; turn = next_turn, tile = next_tile, odd ^= 1) {
    const bool same = tile + STAGE < end;
    next_tile = same ? tile + STAGE : begin;
    next_turn = same ? turn : turn + 1;
    T *const place = qd + (PLACES > 1 ? odd * 2 * TILE : 0);
    const T *q = place, *d = q + TILE;
    if (PLACES == 1 && (turn || tile > begin)) {
      __syncthreads();                           // nobody reads the tile before any more
      attention_load<STAGE, HS>(place, in + turn * s.hs, s.ld, tile, s);
      attention_load<STAGE, HS>(place + TILE, dout + turn * s.hs, s.C, tile, s);
      cp_async_commit();
      stat = attention_stat<STAGE>(a, at.stat + (int64_t)turn * s.len, tile);
    }
    float *const lse = APART ? (float *)(qd + 4 * TILE) + odd * 2 * STAGE : (float *)(place + HS);
    if (thread < 2 * STAGE) {
      float *to = APART ? lse + thread : lse + thread % STAGE * STRIDE + thread / STAGE;
      *to = thread < STAGE ? stat * 1.44269504f : stat;
    }
    cp_async_wait<0>();
    __syncthreads();
    if (PLACES > 1 && next_turn < s.group) {
      T *next = qd + (odd ^ 1) * 2 * TILE;
      const int me = attention_anew(thread);
      attention_load<STAGE, HS>(next, in + next_turn * s.hs, s.ld, next_tile, s, me);
      attention_load<STAGE, HS>(next + TILE, dout + next_turn * s.hs, s.C, next_tile, s, me);
      cp_async_commit();
      stat = attention_stat<STAGE>(a, at.stat + (int64_t)next_turn * s.len, next_tile);
    }
    if (tile + STAGE <= first) continue;         // every query of the tile comes before this warp's keys
    uint32_t word[STAGE / 32];
    if (a.d.drop.p > 0.0f) attention_keep_queries<M, STAGE>(word, a.d, step, s, (int)blockIdx.y * s.group + turn,
                                                              tile, first);
    ROLLED for (int column = 0; column < STAGE; column += N, q += N * (HS + 8), d += N * (HS + 8)) {
      const int query = tile + column;
      if (query + N <= first) continue;
      float p[M][N / 8][4] = {}, dp[M][N / 8][4] = {};
      attention_dot_rows<M, N, HS, KEPT>(p, &rows_k, own_k, q);
      if (DK) attention_dot_rows<M, N, HS, KEPT_V>(dp, &rows_v, own_v, d);
      if (query < first + ROWS) attention_mask_queries<M, N>(p, first, query);
      if (attention_start(a.starts, s, query + N - 1) > first)
        attention_mask_queries_behind<M, N>(p, a.starts, s, first, query);
      const float *l = lse + column * STRIDE, *dot = l + (APART ? STAGE : 1);
      if (a.d.drop.p > 0.0f)
        attention_transposed_ds<M, N, true>(p, dp, l, dot, STRIDE, s.scale2, a.d.factor, word, column);
      else attention_transposed_ds<M, N, false>(p, dp, l, dot, STRIDE, s.scale2, 1.0f, NULL, 0);
      if (DV) attention_weigh_rows<M, N, HS>(dv, p, d);
      if (DK) attention_weigh_rows<M, N, HS>(dk, dp, q);
    }
  }
  float k_factor[M][2], v_factor[M][2];
  UNROLL for (int i = 0; i < 2 * M; i++) {
    k_factor[i / 2][i % 2] = s.scale;
    v_factor[i / 2][i % 2] = a.d.factor;
  }
  const int64_t to = (int64_t)first * s.ld;
  if (DK) attention_store<M, HS>(a.dqkv + at.k + to, s.ld, s.len - first, s.hs, own_k, dk, k_factor);
  if (DV) attention_store<M, HS>(a.dqkv + at.v + to, s.ld, s.len - first, s.hs, DK ? own_v : own_k, dv, v_factor);
  const int column = s.C + (int)blockIdx.y * s.hs;
  if (DK) attention_sums<M, HS>(sums, s, first, column, own_k);
  if (DV) attention_sums<M, HS>(sums, s, first, column + (s.ld - s.C) / 2, DK ? own_v : own_k);
}

// dq of 64*M queries per block; blocks run from the last queries to the first, as in attention_forward_kernel. The loop
// is over tiles of N keys and values, of which shared memory holds this one and the next. p holds S, then dS. KEEP: Q's
// and dout's fragments stay in registers for all tiles.
template <class T, int HS, int M, int N, bool KEEP, int BLOCKS, int PLACES = 2>
__global__ static void __launch_bounds__(ATTENTION_THREADS, BLOCKS) attention_dq_kernel(AttentionBackward<T> a,
                                                                                         float *sums) {
  SHARED_DYNAMIC(T, q);
  constexpr int KEPT = KEEP ? HS / 16 : 0;
  constexpr int TILE = N * (HS + 8), ROWS = 16 * M, OWN = ATTENTION_WARPS * ROWS * (HS + 8);
  T *d = q + OWN, *kv = d + OWN;
  const AttentionShape &s = a.s;
  const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
  const int block = ((int)gridDim.x - 1 - (int)blockIdx.x) * ATTENTION_WARPS * ROWS, first = block + warp * ROWS;
  const int end = attention_min(block + ATTENTION_WARPS * ROWS, s.len);
  const AttentionPlace at = attention_place(s, (int)blockIdx.y);
  const T *const k_in = a.qkv + at.k;
  const int behind = (s.ld - s.C) / 2;           // elements from k to v: a second pointer would take two registers
  const uint32_t step = attention_step(a.d);
  T *own_q = q + warp * ROWS * (HS + 8), *own_d = d + warp * ROWS * (HS + 8);
  AttentionRows<M, KEPT> rows_q, rows_d;
  float dq[M][HS / 8][4] = {}, lse[M][2], dot[M][2], factor[M][2];
  UNROLL for (int i = 0; i < 2 * M; i++) {
    const int query = first + i * 8 + lane / 4;
    lse[i / 2][i % 2] = query < s.len ? a.lse[at.stat + query] * 1.44269504f : 0.0f;
    dot[i / 2][i % 2] = query < s.len ? a.dot[at.stat + query] : 0.0f;
    factor[i / 2][i % 2] = s.scale;
  }
  attention_load<ATTENTION_WARPS * ROWS, HS>(q, a.qkv + at.q, s.ld, block, s);
  attention_load<ATTENTION_WARPS * ROWS, HS>(d, a.dout + at.out, s.C, block, s);
  // of the keys that the block's first query attends to
  const int begin = attention_start(a.starts, s, block) / N * N;
  attention_load<N, HS>(kv, k_in, s.ld, begin, s);
  attention_load<N, HS>(kv + TILE, k_in + behind, s.ld, begin, s);
  cp_async_commit();
  if (KEEP) {                                    // not within the loop, which would hold their reads and a branch
    cp_async_wait<0>();
    __syncthreads();
    attention_keep_rows<M, HS, KEPT>(&rows_q, own_q);
    attention_keep_rows<M, HS, KEPT>(&rows_d, own_d);
  }
  for (int key = begin, odd = 0; key < end; key += N, odd ^= 1) {
    const T *k = kv + (PLACES > 1 ? odd * 2 * TILE : 0), *v = k + TILE;
    if (PLACES == 1 && key > begin) {
      __syncthreads();                           // nobody reads the tile before any more
      attention_load<N, HS>(kv, k_in, s.ld, key, s);
      attention_load<N, HS>(kv + TILE, k_in + behind, s.ld, key, s);
      cp_async_commit();
    }
    cp_async_wait<0>();
    __syncthreads();
    if (PLACES > 1 && key + N < end) {
      T *next = kv + (odd ^ 1) * 2 * TILE;
      attention_load<N, HS>(next, k_in, s.ld, key + N, s);
      attention_load<N, HS>(next + TILE, k_in + behind, s.ld, key + N, s);
      cp_async_commit();
    }
    if (key >= first + ROWS) continue;
    float p[M][N / 8][4] = {}, dp[M][N / 8][4] = {};
    attention_dot_rows<M, N, HS, KEPT>(p, &rows_q, own_q, k);
    attention_dot_rows<M, N, HS, KEPT>(dp, &rows_d, own_d, v);
    if (key + N > first) attention_mask_keys<M, N>(p, first, key);
    if (key < attention_start(a.starts, s, first + ROWS - 1))    // no query's document starts later
      attention_mask_keys_before<M, N>(p, a.starts, s, first, key);
    if (a.d.drop.p > 0.0f) {
      uint32_t keep[M][2][N / 32];
      attention_keep_keys<M, N>(keep, a.d, step, s, first, key);
      UNROLL for (int i = 0; i < M * N / 2; i++) {
        const int m = i / (N / 2), n = i / 4 % (N / 8), e = i % 4;
        const bool kept = keep[m][e / 2][n / 4] >> (n % 4 * 8 + e % 2) & 1;
        dp[m][n][e] = kept ? dp[m][n][e] * a.d.factor : 0.0f;
      }
    }
    UNROLL for (int i = 0; i < M * N / 2; i++) {
      const int m = i / (N / 2), n = i / 4 % (N / 8), e = i % 4;
      const float x = fast_exp2(fmaf(p[m][n][e], s.scale2, -lse[m][e / 2]));
      p[m][n][e] = vf_softmax_grad(x, dp[m][n][e], dot[m][e / 2]);
    }
    attention_weigh_rows<M, N, HS>(dq, p, k);
  }
  attention_store<M, HS>(a.dqkv + at.q + (int64_t)first * s.ld, s.ld, s.len - first, s.hs, own_q, dq, factor);
  attention_sums<M, HS>(sums, s, first, (int)blockIdx.y * s.hs, own_q);
}
