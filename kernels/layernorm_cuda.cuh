// layernorm_cuda.cuh: the CUDA part of layernorm.cuh. A thread keeps its columns of a row in registers from the only
// read to the last write.
//
//   forward    one block per row: mean, then squares around it (two barriers), then out
//   backward   one block per run of neighbouring rows: the column sums of dweight, dbias and dbranch stay in registers
//              for the whole run, and the next row is loaded (as stored, not yet widened) while this one is computed.
//              With up to 1024 columns a warp takes a row, without barriers, and the four warps of a block take the
//              rows of a run alternately; with more columns the block takes a row. Each run stores its sums in the
//              workspace; a second kernel adds the runs in order.
//
// Summation order: along a row, a thread's columns in order, then a butterfly over a warp, then over the block's warps
// if they share a row. Down the columns, a warp's rows of a run in order, then the warps, then the runs in eight parts
// in order. The number of rows in a run depends on the shape alone.
#pragma once
#include "layernorm.cuh"
#include "workspace.h"
#include "kernels/cuda/lane.cuh"

// ---- how columns are divided ----------------------------------------------------------------------------------------
// Thread t of `threads` has the groups of `width` columns t, t + threads, ...: `pieces` groups.
struct LayernormPlan { int width, pieces, threads; };
enum { LAYERNORM_WIDE_THREADS = 512, LAYERNORM_NARROW_THREADS = 1024, LAYERNORM_NARROW_PIECES = 4 };

static inline LayernormPlan layernorm_plan(int64_t C) {
  LayernormPlan p = {C % LANES ? 1 : LANES, C % LANES ? (int)LAYERNORM_NARROW_PIECES : 1, 0};
  const int64_t groups = C / p.width, most = p.width == 1 ? LAYERNORM_NARROW_THREADS : LAYERNORM_WIDE_THREADS;
  while (p.width > 1 && p.pieces < 4 && groups > most * p.pieces) p.pieces *= 2;
  CHECK(C <= (C % LANES ? CUDA_MAX_ODD_COLUMNS : CUDA_MAX_COLUMNS) && groups <= most * p.pieces,
        "layernorm: %lld columns are more than the %lld a block holds", (long long)C,
        (long long)(most * p.pieces * p.width));
  p.threads = (int)((groups + (int64_t)p.pieces * WARP - 1) / ((int64_t)p.pieces * WARP) * WARP);
  return p;
}
// The statement, with W and N constants from the plan.
#define LAYERNORM_BY_PLAN(plan, W, N, ...) \
  do { \
    if ((plan).width == 1) { constexpr int W = 1, N = LAYERNORM_NARROW_PIECES; __VA_ARGS__; } \
    else if ((plan).pieces == 1) { constexpr int W = LANES, N = 1; __VA_ARGS__; } \
    else if ((plan).pieces == 2) { constexpr int W = LANES, N = 2; __VA_ARGS__; } \
    else { constexpr int W = LANES, N = 4; __VA_ARGS__; } \
  } while (0)
#define LAYERNORM_BY_PIECES(plan, N, ...) \
  do { \
    if ((plan).pieces == 1) { constexpr int N = 1; __VA_ARGS__; } \
    else if ((plan).pieces == 2) { constexpr int N = 2; __VA_ARGS__; } \
    else if ((plan).pieces == 3) { constexpr int N = 3; __VA_ARGS__; } \
    else { constexpr int N = 4; __VA_ARGS__; } \
  } while (0)
// At least one block per SM: without this ptxas gives rows beyond 8192 columns only 32 registers.
#define LAYERNORM_BOUNDS(W) __launch_bounds__((W) == 1 ? LAYERNORM_NARROW_THREADS : LAYERNORM_WIDE_THREADS, 1)

// ---- forward -------------------------------------------------------------------------------------------------------
template <class T> struct LayernormForward {     // residual and branch NULL: nothing is added
  T *residual, *out;
  float *mean, *rstd;
  const T *in, *branch, *weight, *bias;
  int64_t C, seq_len;
  float eps;
  DropKey drop;
  const StepState *state;
};

// The columns of this thread, after the residual addition if there is one: as stored, so that backward reads the same
// numbers.
template <class T, int W>
__device__ static inline Lanes<W> layernorm_input(const LayernormForward<T> *p, int64_t r, int64_t i, uint32_t step) {
  Lanes<W> x = lanes_load<W>(p->in + r * p->C + i);
  if (!p->branch) return x;
  Lanes<W> b = lanes_load<W>(p->branch + r * p->C + i);
  if (p->drop.on)
    b = dropped(b, &p->drop, step, p->drop.sample0 + r / p->seq_len, r % p->seq_len * p->C + i, LaneCount<W>());
  UNROLL for (int k = 0; k < W; k++) x.x[k] += b.x[k];
  return lanes_store<W>(p->residual + r * p->C + i, x);
}
// Shared memory: one float per warp for each of the two sums.
template <class T, int W, int N>
__global__ static void LAYERNORM_BOUNDS(W) layernorm_forward_kernel(LayernormForward<T> p) {
  SHARED(float, scratch, 2 * WARP);
  const int64_t r = blockIdx.x, first = (int64_t)threadIdx.x * W, next = (int64_t)blockDim.x * W;
  const uint32_t step = drop_step(&p.drop, p.state);
  LanesRaw<W, T> weight[N] = {}, bias[N] = {};   // on their way while the row is summed
  UNROLL for (int n = 0; n < N; n++) {
    if (first + n * next >= p.C) break;
    if (p.weight) weight[n] = lanes_read<W>(p.weight + first + n * next);
    if (p.bias) bias[n] = lanes_read<W>(p.bias + first + n * next);
  }
  Lanes<W> x[N];
  float sum = 0.0f;
  UNROLL for (int n = 0; n < N; n++) {
    const bool mine = first + n * next < p.C;
    x[n] = mine ? layernorm_input<T, W>(&p, r, first + n * next, step) : lanes_of<W>(0.0f);
    UNROLL for (int k = 0; k < W; k++) sum += x[n].x[k];
  }
  const float mean = p.mean ? block_sum(sum, scratch) / (float)p.C : 0.0f;
  float squares = 0.0f;
  UNROLL for (int n = 0; n < N; n++)
    if (first + n * next < p.C)
      UNROLL for (int k = 0; k < W; k++) squares = fmaf(x[n].x[k] - mean, x[n].x[k] - mean, squares);
  const float rstd = layernorm_rstd(block_sum(squares, scratch + WARP), p.C, p.eps);
  if (threadIdx.x == 0) p.rstd[r] = rstd;
  if (threadIdx.x == 0 && p.mean) p.mean[r] = mean;
  UNROLL for (int n = 0; n < N; n++) {
    const int64_t i = first + n * next;
    if (i >= p.C) break;
    const Lanes<W> w = p.weight ? lanes_unpack<W, T>(weight[n]) : lanes_of<W>(1.0f);
    const Lanes<W> b = p.bias ? lanes_unpack<W, T>(bias[n]) : lanes_of<W>(0.0f);
    UNROLL for (int k = 0; k < W; k++) x[n].x[k] = layernorm_out(x[n].x[k], mean, rstd, w.x[k], b.x[k]);
    lanes_store<W>(p.out + r * p.C + i, x[n]);
  }
}
void residual_layernorm_forward_impl(Ctx *c, Tensor residual, Tensor out, Tensor mean, Tensor rstd, Tensor in,
                                     Tensor branch, Tensor weight, Tensor bias, float eps, Dropout drop) {
  const int64_t rows = numel(rstd), C = in.shape[2];
  const LayernormPlan plan = layernorm_plan(C);
  CHECK(plan.width == 1 || (lanes_aligned(residual.data, out.data, in.data, branch.data) &&
        lanes_aligned(weight.data, bias.data)), "layernorm: a tensor of %lld columns is not on 16 bytes", (long long)C);
  if (rows == 0) return;
  DISPATCH(in.dtype, T, {
    LayernormForward<T> p = {(T *)residual.data, (T *)out.data, (float *)mean.data, (float *)rstd.data,
                             (const T *)in.data, (const T *)branch.data, (const T *)weight.data, (const T *)bias.data,
                             C, in.shape[1], eps, drop_key(drop), c->state};
    LAYERNORM_BY_PLAN(plan, W, N, LAUNCH((layernorm_forward_kernel<T, W, N>), (unsigned)rows, (unsigned)plan.threads, 0,
                                         STREAM(c), p));
  });
}
void layernorm_forward_impl(Ctx *c, Tensor out, Tensor mean, Tensor rstd, Tensor in, Tensor weight,
                            Tensor bias, float eps) {
  const Tensor none = {};
  residual_layernorm_forward_impl(c, none, out, mean, rstd, in, none, weight, bias, eps, Dropout{});
}

// ---- backward ------------------------------------------------------------------------------------------------------
// A run has the threads of `threads`, and `at_once` rows at a time, of `pieces` groups of columns per thread.
struct LayernormRuns { int width, pieces, threads, at_once; int64_t rows; };
static_assert(LANES == 8, "layernorm_at_once has this number");
static inline LayernormRuns layernorm_runs(int64_t rows, int64_t C) {
  const LayernormPlan plan = layernorm_plan(C);
  LayernormRuns r = {plan.width, plan.pieces, plan.threads, (int)layernorm_at_once(C), layernorm_run_rows(rows, C)};
  if (r.at_once > 1) r.pieces = (int)((C + WARP * LANES - 1) / (WARP * LANES)), r.threads = r.at_once * WARP;
  return r;
}

template <class T> struct LayernormBackward {    // dbranch NULL: not needed
  T *dresidual, *dbranch;
  float *partial;
  const T *dout, *residual, *weight;
  const float *mean, *rstd;
  int64_t rows, run_rows, C, seq_len;
  DropKey drop;
  const StepState *state;
  bool dweight, dbias;                           // which column sums are needed
};
// The columns of one thread in a row, as stored. PIECES 0: the row is not kept, but read again at each use.
template <class T, int W, int PIECES> struct LayernormRow {
  LanesRaw<W, T> dout[PIECES ? PIECES : 1], x[PIECES ? PIECES : 1], dresidual[PIECES ? PIECES : 1];
  float mean, rstd;
};
// A thread has the groups of columns that start at first, first + next, ...
struct LayernormColumns { int64_t first, next; };

template <class T, int W, int N>
__device__ static inline void layernorm_read(LayernormRow<T, W, N> *to, const LayernormBackward<T> *p,
                                             LayernormColumns c, int64_t r) {
  to->mean = p->mean ? p->mean[r] : 0.0f;
  to->rstd = p->rstd[r];
  UNROLL for (int n = 0; n < N; n++) {            // where there are no columns, the first ones: no branch, no waiting
    const int64_t i = c.first + n * c.next, at = r * p->C + (i < p->C ? i : 0);
    to->dout[n] = lanes_read<W>(p->dout + at);
    to->x[n] = lanes_read<W>(p->residual + at);
    to->dresidual[n] = lanes_read<W>(p->dresidual + at);
  }
}
// Two sums over the block behind one barrier. scratch: 64 floats.
__device__ static inline void layernorm_two_sums(float *a, float *b, float *scratch) {
  const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP, warps = (int)blockDim.x / WARP;
  *a = warp_sum(*a);
  *b = warp_sum(*b);
  if (lane == 0) scratch[warp] = *a, scratch[WARP + warp] = *b;
  __syncthreads();
  *a = warp_sum(lane < warps ? scratch[lane] : 0.0f);
  *b = warp_sum(lane < warps ? scratch[WARP + lane] : 0.0f);
}
// One group of columns of one row, after its sums are known; adds to the column sums of group n: of dweight, of dbias
// and, with SUMS 3, of dbranch. Those take registers that others need: rows beyond 4096 columns spill with them.
template <class T, int W, int N, int SUMS>
__device__ static inline void layernorm_write(const LayernormBackward<T> *p, Lanes<W> dout, Lanes<W> x, Lanes<W> d,
                                              Lanes<W> weight, Lanes<W> (*sums)[N], int n, float mean, float rstd,
                                              float g_mean, float gx_mean, int64_t r, int64_t i, uint32_t step) {
  UNROLL for (int k = 0; k < W; k++) {
    const float xhat = layernorm_hat(x.x[k], mean, rstd);
    if (p->dweight) sums[0][n].x[k] = fmaf(dout.x[k], xhat, sums[0][n].x[k]);
    if (p->dbias) sums[1][n].x[k] += dout.x[k];
    d.x[k] = layernorm_gradient(d.x[k], dout.x[k], weight.x[k], xhat, rstd, g_mean, gx_mean);
  }
  d = lanes_store<W>(p->dresidual + r * p->C + i, d);
  if (p->drop.on)
    d = dropped(d, &p->drop, step, p->drop.sample0 + r / p->seq_len, r % p->seq_len * p->C + i, LaneCount<W>());
  if (p->dbranch) d = lanes_store<W>(p->dbranch + r * p->C + i, d);
  if constexpr (SUMS > 2) UNROLL for (int k = 0; k < W; k++) sums[2][n].x[k] += d.x[k];
}
// The weights of group n, which starts at column i: kept in `weight`, or read again; 1 if there is no weight.
template <class T, int W, bool KEEP>
__device__ static inline Lanes<W> layernorm_weight(const LayernormBackward<T> *p, const LanesRaw<W, T> *weight, int n,
                                                   int64_t i) {
  if (!p->weight) return lanes_of<W>(1.0f);
  return KEEP ? lanes_unpack<W, T>(weight[n]) : lanes_load<W>(p->weight + i);
}
// A run's rows from `begin` on, every `stride`-th, by a thread's columns. KEEP: a row stays in registers from the only
// read; else registers do not suffice, and it is read again, from the caches. AHEAD: the next row is loaded meanwhile.
// scratch: NULL if a warp has a row; else four floats per warp: two sets of two, because fast warps write the next
// row's sums while slow warps still read this row's.
template <class T, int W, int N, int SUMS, bool KEEP, bool AHEAD>
__device__ static inline void layernorm_run(const LayernormBackward<T> *p, LayernormColumns c, Lanes<W> (*sums)[N],
                                            int64_t begin, int64_t end, int64_t stride, float *scratch) {
  const uint32_t step = drop_step(&p->drop, p->state);
  LanesRaw<W, T> weight[KEEP ? N : 1] = {};
  UNROLL for (int n = 0; n < N && KEEP; n++)
    if (p->weight && c.first + n * c.next < p->C) weight[n] = lanes_read<W>(p->weight + c.first + n * c.next);
  LayernormRow<T, W, KEEP ? N : 0> row, ahead;
  if (AHEAD && begin < end) layernorm_read<T, W, KEEP ? N : 0>(&ahead, p, c, begin);
  int turn = 0;
  for (int64_t r = begin; r < end; r += stride, turn ^= 1) {
    if (AHEAD) row = ahead;
    else layernorm_read<T, W, KEEP ? N : 0>(&row, p, c, r);
    if (AHEAD && r + stride < end) layernorm_read<T, W, KEEP ? N : 0>(&ahead, p, c, r + stride);
    float g_sum = 0.0f, gx_sum = 0.0f;
    UNROLL for (int n = 0; n < N; n++) {
      const int64_t i = c.first + n * c.next;
      if (i >= p->C) continue;
      const Lanes<W> dout = KEEP ? lanes_unpack<W, T>(row.dout[n]) : lanes_load<W>(p->dout + r * p->C + i);
      const Lanes<W> x = KEEP ? lanes_unpack<W, T>(row.x[n]) : lanes_load<W>(p->residual + r * p->C + i);
      const Lanes<W> w = layernorm_weight<T, W, KEEP>(p, weight, n, i);
      UNROLL for (int k = 0; k < W; k++)
        layernorm_add(&g_sum, &gx_sum, dout.x[k], w.x[k], layernorm_hat(x.x[k], row.mean, row.rstd));
    }
    if (scratch) layernorm_two_sums(&g_sum, &gx_sum, scratch + turn * 2 * WARP);
    else g_sum = warp_sum(g_sum), gx_sum = warp_sum(gx_sum);
    UNROLL for (int n = 0; n < N; n++) {
      const int64_t i = c.first + n * c.next, at = r * p->C + i;
      if (i >= p->C) break;                      // not continue: the pieces' reads would be hoisted, and spill
      layernorm_write<T, W, N, SUMS>(p, KEEP ? lanes_unpack<W, T>(row.dout[n]) : lanes_load<W>(p->dout + at),
                                     KEEP ? lanes_unpack<W, T>(row.x[n]) : lanes_load<W>(p->residual + at),
                                     KEEP ? lanes_unpack<W, T>(row.dresidual[n]) : lanes_load<W>(p->dresidual + at),
                                     layernorm_weight<T, W, KEEP>(p, weight, n, i), sums, n, row.mean, row.rstd,
                                     p->mean ? g_sum / (float)p->C : 0.0f, gx_sum / (float)p->C, r, i, step);
    }
  }
}
// A block takes a row at a time.
template <class T, int W, int N, int SUMS>
__global__ static void LAYERNORM_BOUNDS(W) layernorm_backward_kernel(LayernormBackward<T> p) {
  constexpr int REGISTERS = N * W * (int)sizeof(T) / 4;          // that hold a thread's columns of one tensor
  SHARED(float, scratch, 4 * WARP);
  const LayernormColumns c = {(int64_t)threadIdx.x * W, (int64_t)blockDim.x * W};
  const int64_t begin = blockIdx.x * p.run_rows, end = begin + p.run_rows < p.rows ? begin + p.run_rows : p.rows;
  Lanes<W> sums[SUMS][N];
  UNROLL for (int i = 0; i < SUMS * N; i++) sums[i / N][i % N] = lanes_of<W>(0.0f);
  layernorm_run<T, W, N, SUMS, N * W <= 16, REGISTERS <= 8>(&p, c, sums, begin, end, 1, scratch);
  float *partial = p.partial + (int64_t)blockIdx.x * SUMS * p.C;
  UNROLL for (int n = 0; n < N; n++) {
    const int64_t i = c.first + n * c.next;
    if (i >= p.C) break;
    if (p.dweight) lanes_store<W>(partial + i, sums[0][n]);
    if (p.dbias) lanes_store<W>(partial + p.C + i, sums[1][n]);
    if constexpr (SUMS > 2) lanes_store<W>(partial + 2 * p.C + i, sums[2][n]);
  }
}
// A warp takes a row of at most N x 256 columns; the block's warps take turns. Their column sums are added in order.
template <class T, int N, int SUMS>
__global__ static void __launch_bounds__(LAYERNORM_RUN_WARPS *WARP, N * sizeof(T) > 4 ? 2 : 3)
layernorm_backward_warps_kernel(LayernormBackward<T> p) {
  SHARED(float, sums, LAYERNORM_RUN_WARPS * N * WARP * LANES);
  const int warp = (int)threadIdx.x / WARP;
  const LayernormColumns c = {(int64_t)(threadIdx.x % WARP) * LANES, WARP * LANES};
  const int64_t begin = blockIdx.x * p.run_rows, end = begin + p.run_rows < p.rows ? begin + p.run_rows : p.rows;
  Lanes<LANES> column[SUMS][N];
  UNROLL for (int i = 0; i < SUMS * N; i++) column[i / N][i % N] = lanes_of<LANES>(0.0f);
  layernorm_run<T, LANES, N, SUMS, true, N * sizeof(T) <= 12>(&p, c, column, begin + warp, end, LAYERNORM_RUN_WARPS,
                                                              NULL);
  UNROLL for (int which = 0; which < SUMS; which++) {
    if (which < 2 && !(which ? p.dbias : p.dweight)) continue;
    UNROLL for (int n = 0; n < N; n++)
      lanes_store<LANES>(sums + (warp * N * WARP * LANES + c.first + n * c.next), column[which][n]);
    __syncthreads();
    float *partial = p.partial + ((int64_t)blockIdx.x * SUMS + which) * p.C;
    for (int64_t i = threadIdx.x; i < p.C; i += LAYERNORM_RUN_WARPS * WARP) {
      float sum = 0.0f;
      UNROLL for (int w = 0; w < LAYERNORM_RUN_WARPS; w++) sum += sums[w * N * WARP * LANES + i];
      partial[i] = sum;
    }
    __syncthreads();
  }
}

// Columns from .. to of [dweight, dbias, dbranch_sum], of which runs store `sums`: the lanes of a warp are neighbouring
// columns; each of the eight warps adds an eighth of the runs.
enum { LAYERNORM_FOLD_WARPS = 8 };
template <class G>
__global__ static void __launch_bounds__(LAYERNORM_FOLD_WARPS *WARP)
layernorm_fold_kernel(G *dweight, G *dbias, float *dbranch_sum, const float *partial, int64_t runs, int64_t C,
                      int64_t sums, int64_t from, int64_t to, bool add) {
  SHARED(float, part, LAYERNORM_FOLD_WARPS * WARP);
  const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
  const int64_t i = from + (int64_t)blockIdx.x * WARP + lane;
  const int64_t each = (runs + LAYERNORM_FOLD_WARPS - 1) / LAYERNORM_FOLD_WARPS;
  const int64_t end = (warp + 1) * each < runs ? (warp + 1) * each : runs;
  float sum = 0.0f;
  if (i < to) {
    int64_t run = warp * each;
    for (; run + 8 <= end; run += 8) {           // eight loads in flight
      float x[8];
      UNROLL for (int k = 0; k < 8; k++) x[k] = partial[(run + k) * sums * C + i];
      UNROLL for (int k = 0; k < 8; k++) sum += x[k];
    }
    for (; run < end; run++) sum += partial[run * sums * C + i];
  }
  part[threadIdx.x] = sum;
  __syncthreads();
  if (warp || i >= to) return;
  sum = 0.0f;
  for (int w = 0; w < LAYERNORM_FOLD_WARPS; w++) sum += part[w * WARP + lane];
  G *out = i < C ? dweight : i < 2 * C ? dbias : NULL;
  if (i >= 2 * C) dbranch_sum[i - 2 * C] = sum;
  else if (out) round_to(out + i % C, add ? to_f32(out[i % C]) + sum : sum);
}
// Adds the runs of those sums that are present.
static void layernorm_backward_fold(Ctx *c, Tensor dweight, Tensor dbias, Tensor dbranch_sum, int64_t runs, int64_t C,
                                    bool add) {
  const int64_t from = dweight.data ? 0 : dbias.data ? C : 2 * C;
  const int64_t to = dbranch_sum.data ? 3 * C : dbias.data ? C + numel(dbias) : C;           // dbias may be shorter
  if (from >= to) return;
  DISPATCH(dweight.data ? dweight.dtype : dbias.data ? dbias.dtype : F32, G,
           LAUNCH(layernorm_fold_kernel<G>, (unsigned)((to - from + WARP - 1) / WARP), LAYERNORM_FOLD_WARPS * WARP, 0,
                  STREAM(c), (G *)dweight.data, (G *)dbias.data, (float *)dbranch_sum.data, (const float *)c->workspace,
                  runs, C, dbranch_sum.data ? 3 : 2, from, to, add));
}

template <class T, int SUMS>
static void layernorm_backward_runs(Ctx *c, LayernormBackward<T> p, LayernormRuns plan, unsigned runs) {
  if (plan.at_once == 1)
    LAYERNORM_BY_PLAN(plan, W, N, LAUNCH((layernorm_backward_kernel<T, W, N, SUMS>), runs, (unsigned)plan.threads, 0,
                                         STREAM(c), p));
  else
    LAYERNORM_BY_PIECES(plan, N, LAUNCH((layernorm_backward_warps_kernel<T, N, SUMS>), runs, (unsigned)plan.threads, 0,
                                        STREAM(c), p));
}
void layernorm_backward_impl(Ctx *c, Tensor dresidual, Tensor dbranch, Tensor dweight, Tensor dbias, Tensor dout,
                             Tensor residual, Tensor weight, Tensor mean, Tensor rstd, Dropout drop,
                             Accumulate mode, Tensor dbranch_sum) {
  const int64_t rows = numel(rstd), C = dout.shape[2];
  const LayernormRuns plan = layernorm_runs(rows, C);
  const int64_t runs = (rows + plan.rows - 1) / plan.rows;
  void *branch = dbranch.data == dresidual.data ? NULL : dbranch.data;
  const int sums = dbranch_sum.data ? 3 : 2;
  const size_t need = layernorm_partials_bytes(rows, C, sums);
  CHECK(c->workspace_bytes >= need, "layernorm_backward: workspace of %zu bytes, needs %zu", c->workspace_bytes, need);
  CHECK(plan.width == 1 || (lanes_aligned(dresidual.data, branch, dout.data, residual.data, weight.data)),
        "layernorm_backward: a tensor of %lld columns is not on 16 bytes", (long long)C);
  if (runs) DISPATCH(dout.dtype, T, {
    LayernormBackward<T> p = {(T *)dresidual.data, (T *)branch, (float *)c->workspace, (const T *)dout.data,
                              (const T *)residual.data, (const T *)weight.data, (const float *)mean.data,
                              (const float *)rstd.data, rows, plan.rows, C, dout.shape[1], drop_key(drop), c->state,
                              dweight.data != NULL, dbias.data != NULL};
    (sums > 2 ? layernorm_backward_runs<T, 3> : layernorm_backward_runs<T, 2>)(c, p, plan, (unsigned)runs);
  });
  layernorm_backward_fold(c, dweight, dbias, dbranch_sum, runs, C, mode == ADD);
}
