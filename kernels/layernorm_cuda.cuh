// layernorm_cuda.cuh: the CUDA part of layernorm.cuh. A block takes a row; a thread keeps its columns in registers from
// the only read to the last write.
//
//   forward    one block per row: mean, then squares around it (two barriers), then out
//   backward   one block per run of neighbouring rows: weight, and the column sums of dweight and dbias, stay in
//              registers for the whole run, and the next row is loaded while this row's two sums are computed. Each run
//              stores its sums in the workspace; a second kernel adds the runs in order.
//
// Order of sums: along a row, a thread's columns in order, then a butterfly over a warp, then over the warps. Down the
// columns, the rows of a run in order, then the runs in eight parts in order. The number of rows in a run depends on
// the shape alone.
#pragma once
#include "layernorm.cuh"
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
// At least one block per multiprocessor: without this ptxas gives rows beyond 8192 columns only 32 registers.
#define LAYERNORM_BOUNDS(W) __launch_bounds__((W) == 1 ? LAYERNORM_NARROW_THREADS : LAYERNORM_WIDE_THREADS, 1)

// ---- forward -------------------------------------------------------------------------------------------------------
template <class T> struct LayernormForward {     // residual and branch NULL: nothing is added
  T *residual, *out;
  float *mean, *rstd;
  const T *in, *branch, *weight, *bias;
  int64_t C, seq_len;
  DropKey drop;
  const StepState *state;
};

// The columns of this thread, after the addition if there is one: as stored, so that backward sees the same numbers.
template <class T, int W>
__device__ static inline Lanes<W> layernorm_input(const LayernormForward<T> *p, int64_t r, int64_t i, uint32_t step) {
  Lanes<W> x = lanes_load<W>(p->in + r * p->C + i);
  if (!p->branch) return x;
  Lanes<W> b = lanes_load<W>(p->branch + r * p->C + i);
  if (p->drop.on) b = lanes_drop<W>(b, &p->drop, step, p->drop.sample0 + r / p->seq_len, r % p->seq_len * p->C + i);
  UNROLL for (int k = 0; k < W; k++) x.x[k] += b.x[k];
  return lanes_store<W>(p->residual + r * p->C + i, x);
}
// Shared memory: one float per warp for each of the two sums.
template <class T, int W, int N>
__global__ static void LAYERNORM_BOUNDS(W) layernorm_forward_kernel(LayernormForward<T> p) {
  SHARED(float, scratch, 2 * WARP);
  const int64_t r = blockIdx.x, first = (int64_t)threadIdx.x * W, next = (int64_t)blockDim.x * W;
  const uint32_t step = drop_step(&p.drop, p.state);
  Lanes<W> x[N];
  float sum = 0.0f;
  UNROLL for (int n = 0; n < N; n++) {
    const bool mine = first + n * next < p.C;
    x[n] = mine ? layernorm_input<T, W>(&p, r, first + n * next, step) : lanes_of<W>(0.0f);
    UNROLL for (int k = 0; k < W; k++) sum += x[n].x[k];
  }
  const float mean = block_sum(sum, scratch) / (float)p.C;
  float squares = 0.0f;
  UNROLL for (int n = 0; n < N; n++)
    if (first + n * next < p.C)
      UNROLL for (int k = 0; k < W; k++) squares = fmaf(x[n].x[k] - mean, x[n].x[k] - mean, squares);
  const float rstd = 1.0f / sqrtf(block_sum(squares, scratch + WARP) / (float)p.C + LAYERNORM_EPS);
  if (threadIdx.x == 0) p.mean[r] = mean, p.rstd[r] = rstd;
  UNROLL for (int n = 0; n < N; n++) {
    const int64_t i = first + n * next;
    if (i >= p.C) break;
    const Lanes<W> w = lanes_load<W>(p.weight + i), b = lanes_load<W>(p.bias + i);
    UNROLL for (int k = 0; k < W; k++) x[n].x[k] = fmaf((x[n].x[k] - mean) * rstd, w.x[k], b.x[k]);
    lanes_store<W>(p.out + r * p.C + i, x[n]);
  }
}
static void residual_layernorm_forward_impl(Ctx *c, Tensor residual, Tensor out, Tensor mean, Tensor rstd, Tensor in,
                                            Tensor branch, Tensor weight, Tensor bias, Dropout drop) {
  const int64_t rows = numel(mean), C = numel(weight);
  const LayernormPlan plan = layernorm_plan(C);
  CHECK(plan.width == 1 || (lanes_aligned(residual.data, out.data, in.data, branch.data) &&
        lanes_aligned(weight.data, bias.data)), "layernorm: a tensor of %lld columns is not on 16 bytes", (long long)C);
  if (rows == 0) return;
  DISPATCH(in.dtype, T, {
    LayernormForward<T> p = {(T *)residual.data, (T *)out.data, (float *)mean.data, (float *)rstd.data,
                             (const T *)in.data, (const T *)branch.data, (const T *)weight.data, (const T *)bias.data,
                             C, in.shape[1], drop_key(drop), c->state};
    LAYERNORM_BY_PLAN(plan, W, N, LAUNCH((layernorm_forward_kernel<T, W, N>), (unsigned)rows, (unsigned)plan.threads, 0,
                                         STREAM(c), p));
  });
}
static void layernorm_forward_impl(Ctx *c, Tensor out, Tensor mean, Tensor rstd, Tensor in, Tensor weight,
                                   Tensor bias) {
  const Tensor none = {};
  residual_layernorm_forward_impl(c, none, out, mean, rstd, in, none, weight, bias, Dropout{});
}

// ---- backward ------------------------------------------------------------------------------------------------------
// Rows in a run: enough runs to keep about 2^17 threads busy, but at least eight rows, so that the stored sums stay
// small beside the rows.
static inline int64_t layernorm_run_rows(int64_t rows, int64_t C) {
  const int64_t runs = (1 << 17) / layernorm_plan(C).threads, each = (rows + runs - 1) / runs;
  return each < 8 ? 8 : each;
}
static inline size_t layernorm_partials_bytes(int64_t rows, int64_t C) {      // two sums per column and run
  const int64_t each = layernorm_run_rows(rows, C);
  return (size_t)((rows + each - 1) / each * 2 * C) * sizeof(float);
}
static size_t layernorm_workspace_bytes(const Ctx *, WorkspaceQuery q) {
  return layernorm_partials_bytes(q.batch * q.seq_len, q.n_embd);
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
template <int W> struct LayernormRow { Lanes<W> dout, x, dresidual; };
template <int W, int N> struct LayernormRows { LayernormRow<W> piece[N]; float mean, rstd; };

template <class T, int W, int N>
__device__ static inline void layernorm_read(LayernormRows<W, N> *to, const LayernormBackward<T> *p, int64_t r) {
  const int64_t first = (int64_t)threadIdx.x * W, next = (int64_t)blockDim.x * W;
  to->mean = p->mean[r];
  to->rstd = p->rstd[r];
  UNROLL for (int n = 0; n < N; n++) {
    const int64_t i = first + n * next, at = r * p->C + i;
    if (i >= p->C) continue;
    to->piece[n].dout = lanes_load<W>(p->dout + at);
    to->piece[n].x = lanes_load<W>(p->residual + at);
    to->piece[n].dresidual = lanes_load<W>(p->dresidual + at);
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
// One group of columns of one row, after its sums are known.
template <class T, int W>
__device__ static inline void layernorm_write(const LayernormBackward<T> *p, const LayernormRow<W> *row,
                                              Lanes<W> weight, Lanes<W> *dweight, Lanes<W> *dbias, float mean,
                                              float rstd, float g_mean, float gx_mean, int64_t r, int64_t i,
                                              uint32_t step) {
  Lanes<W> d = row->dresidual;
  UNROLL for (int k = 0; k < W; k++) {
    const float dout = row->dout.x[k], xhat = (row->x.x[k] - mean) * rstd;
    if (p->dweight) dweight->x[k] = fmaf(dout, xhat, dweight->x[k]);
    if (p->dbias) dbias->x[k] += dout;
    d.x[k] = fmaf(rstd, (dout * weight.x[k] - g_mean) - xhat * gx_mean, d.x[k]);
  }
  d = lanes_store<W>(p->dresidual + r * p->C + i, d);
  if (!p->dbranch) return;
  if (p->drop.on) d = lanes_drop<W>(d, &p->drop, step, p->drop.sample0 + r / p->seq_len, r % p->seq_len * p->C + i);
  lanes_store<W>(p->dbranch + r * p->C + i, d);
}
// Shared memory: two floats per warp, twice: while slow warps read the sums of one row, fast ones write the next row's.
template <class T, int W, int N>
__global__ static void LAYERNORM_BOUNDS(W) layernorm_backward_kernel(LayernormBackward<T> p) {
  constexpr bool AHEAD = N == 1;                 // with more columns per thread no registers are left for a second row
  SHARED(float, scratch, 4 * WARP);
  const int64_t first = (int64_t)threadIdx.x * W, next = (int64_t)blockDim.x * W;
  const int64_t begin = blockIdx.x * p.run_rows, end = begin + p.run_rows < p.rows ? begin + p.run_rows : p.rows;
  const uint32_t step = drop_step(&p.drop, p.state);
  Lanes<W> weight[N], dweight[N], dbias[N];
  UNROLL for (int n = 0; n < N; n++) {
    weight[n] = first + n * next < p.C ? lanes_load<W>(p.weight + first + n * next) : lanes_of<W>(0.0f);
    dweight[n] = dbias[n] = lanes_of<W>(0.0f);
  }
  LayernormRows<W, N> row = {}, ahead = {};
  if (AHEAD) layernorm_read<T, W, N>(&ahead, &p, begin);
  for (int64_t r = begin; r < end; r++) {
    if (AHEAD) row = ahead;
    else layernorm_read<T, W, N>(&row, &p, r);
    if (AHEAD && r + 1 < end) layernorm_read<T, W, N>(&ahead, &p, r + 1);
    float g_sum = 0.0f, gx_sum = 0.0f;
    UNROLL for (int n = 0; n < N; n++) {
      UNROLL for (int k = 0; k < W; k++) {       // missing columns have weight 0
        const float g = row.piece[n].dout.x[k] * weight[n].x[k];
        g_sum += g;
        gx_sum = fmaf(g, (row.piece[n].x.x[k] - row.mean) * row.rstd, gx_sum);
      }
    }
    layernorm_two_sums(&g_sum, &gx_sum, scratch + (r & 1) * 2 * WARP);
    UNROLL for (int n = 0; n < N; n++)
      if (first + n * next < p.C)
        layernorm_write<T, W>(&p, &row.piece[n], weight[n], &dweight[n], &dbias[n], row.mean, row.rstd,
                              g_sum / (float)p.C, gx_sum / (float)p.C, r, first + n * next, step);
  }
  float *partial = p.partial + (int64_t)blockIdx.x * 2 * p.C;
  UNROLL for (int n = 0; n < N; n++) {
    const int64_t i = first + n * next;
    if (i >= p.C) break;
    if (p.dweight) lanes_store<W>(partial + i, dweight[n]);
    if (p.dbias) lanes_store<W>(partial + p.C + i, dbias[n]);
  }
}

// Columns from .. to of [dweight, dbias]: the lanes of a warp are neighbouring columns; each of the eight warps adds an
// eighth of the runs.
enum { LAYERNORM_FOLD_WARPS = 8 };
template <class G>
__global__ static void __launch_bounds__(LAYERNORM_FOLD_WARPS *WARP)
layernorm_fold_kernel(G *dweight, G *dbias, const float *partial, int64_t runs, int64_t C, int64_t from, int64_t to,
                      bool add) {
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
      UNROLL for (int k = 0; k < 8; k++) x[k] = partial[(run + k) * 2 * C + i];
      UNROLL for (int k = 0; k < 8; k++) sum += x[k];
    }
    for (; run < end; run++) sum += partial[run * 2 * C + i];
  }
  part[threadIdx.x] = sum;
  __syncthreads();
  if (warp || i >= to) return;
  sum = 0.0f;
  for (int w = 0; w < LAYERNORM_FOLD_WARPS; w++) sum += part[w * WARP + lane];
  G *out = i < C ? dweight + i : dbias + (i - C);
  round_to(out, add ? to_f32(*out) + sum : sum);
}
// Adds the runs for dweight and dbias, or for the one that is present.
static void layernorm_backward_fold(Ctx *c, Tensor dweight, Tensor dbias, int64_t runs, int64_t C, bool add) {
  const int64_t from = dweight.data ? 0 : C, to = dbias.data ? 2 * C : C;
  if (from >= to) return;
  DISPATCH(dweight.data ? dweight.dtype : dbias.dtype, G,
           LAUNCH(layernorm_fold_kernel<G>, (unsigned)((to - from + WARP - 1) / WARP), LAYERNORM_FOLD_WARPS * WARP, 0,
                  STREAM(c), (G *)dweight.data, (G *)dbias.data, (const float *)c->workspace, runs, C, from, to, add));
}

static void layernorm_backward_impl(Ctx *c, Tensor dresidual, Tensor dbranch, Tensor dweight, Tensor dbias, Tensor dout,
                                    Tensor residual, Tensor weight, Tensor mean, Tensor rstd, Dropout drop,
                                    Accumulate mode) {
  const int64_t rows = numel(mean), C = numel(weight), run_rows = layernorm_run_rows(rows, C);
  const int64_t runs = (rows + run_rows - 1) / run_rows;
  const LayernormPlan plan = layernorm_plan(C);
  void *branch = dbranch.data == dresidual.data ? NULL : dbranch.data;
  CHECK(c->workspace_bytes >= layernorm_partials_bytes(rows, C),
        "layernorm_backward: workspace of %zu bytes, needs %zu", c->workspace_bytes, layernorm_partials_bytes(rows, C));
  CHECK(plan.width == 1 || (lanes_aligned(dresidual.data, branch, dout.data, residual.data, weight.data)),
        "layernorm_backward: a tensor of %lld columns is not on 16 bytes", (long long)C);
  if (runs) DISPATCH(dout.dtype, T, {
    LayernormBackward<T> p = {(T *)dresidual.data, (T *)branch, (float *)c->workspace, (const T *)dout.data,
                              (const T *)residual.data, (const T *)weight.data, (const float *)mean.data,
                              (const float *)rstd.data, rows, run_rows, C, dout.shape[1], drop_key(drop), c->state,
                              dweight.data != NULL, dbias.data != NULL};
    LAYERNORM_BY_PLAN(plan, W, N, LAUNCH((layernorm_backward_kernel<T, W, N>), (unsigned)runs, (unsigned)plan.threads,
                                         0, STREAM(c), p));
  });
  layernorm_backward_fold(c, dweight, dbias, runs, C, mode == ADD);
}
