// matmul_cuda.cuh: the CUDA section of matmul.cuh; matmul_plans.h plans the GEMMs.
//
//   1 own GEMM   matmul_any_kernel: any shape, dtype and alignment, for cases that cuBLASLt does not support
//   2 dbias      column sums in two phases
//   3 ops
//
// GELU runs after the GEMM, by gelu.cuh's kernel on the stored `out`. cuBLASLt's epilogue applies an undocumented tanh
// to sums that are not stored, so a backward pass could not recompute it: --tune any may choose it where none does.
// GELU' always uses the stored pre-activation. Two-byte dtypes use cuBLASLt's epilogue where it has one; fp32 uses our
// kernel, since cuBLASLt does not state the accuracy of its own. Our kernel runs on the stored din after the GEMM: for
// two-byte dtypes that is one more rounding than an epilogue, for fp32 none.
// The bias gradient is also ours: BGRAD epilogues leave order and dtype of their sums to cuBLASLt, cannot add, and give
// other bits than a frozen weight's bias has. Sums of a dout that layernorm_backward or attention_backward wrote (three
// of GPT-2's four per block) come from there, where dout is at hand. The others have a pass of their own: dout of fc1
// is what cuBLASLt's GELU' epilogue wrote.
#pragma once
#include "ops_loss.h"
#include "matmul.cuh"
#include "gelu.cuh"
#include "kernels/cuda/lane.cuh"
#include "kernels/cuda/matmul_plans.h"

// =================================================================================================== 1 own GEMM
enum { MATMUL_TILE = 64, MATMUL_DEPTH = 16, MATMUL_PITCH = MATMUL_TILE + 4 };

// A tile of MATMUL_TILE rows x MATMUL_DEPTH of an operand, fp32, stored depth by depth; zeros outside. Neighbouring
// threads read along the contiguous index. The pitch keeps rows 16-byte aligned and spreads the column writes over the
// banks.
template <class T>
__device__ static inline void matmul_any_load(float *tile, const T *from, bool rows, int64_t count, int64_t S,
                                              int64_t row0, int64_t s0) {
  const int t = (int)threadIdx.x;
  float x[4];
  UNROLL for (int k = 0; k < 4; k++) {
    const int64_t i = row0 + (rows ? t / MATMUL_DEPTH + 16 * k : t % MATMUL_TILE);
    const int64_t s = s0 + (rows ? t % MATMUL_DEPTH : t / MATMUL_TILE + 4 * k);
    x[k] = i < count && s < S ? to_f32(from[rows ? i * S + s : s * count + i]) : 0.0f;
  }
  UNROLL for (int k = 0; k < 4; k++) {
    const int i = rows ? t / MATMUL_DEPTH + 16 * k : t % MATMUL_TILE,
              s = rows ? t % MATMUL_DEPTH : t / MATMUL_TILE + 4 * k;
    tile[s * MATMUL_PITCH + i] = x[k];
  }
}
template <class TO, class T> __device__ static inline void matmul_any_store(const MatmulProduct &p, float x, int64_t i,
                                                                            int64_t j) {
  const int64_t at = i * p.J + j;
  TO *out = (TO *)p.out.data + at;
  if (p.bias.data) x += to_f32(((const T *)p.bias.data)[j]);
  if (p.pre_gelu.data) x *= vf_gelu_grad(to_f32(((const T *)p.pre_gelu.data)[at]));
  if (p.add) x = to_f32(*out) + x;
  if (p.addend.data) x = matmul_scaled(x, p.scale, to_f32(((const TO *)p.addend.data)[at]), p.add_scale);
  round_to(out, x);
}
// 256 threads compute a 64 x 64 tile, 4 x 4 each. Every element is one chain of fused multiply-adds from zero, s
// ascending; for S up to one block of gemm.h these are the bits of the CPU's fp32 arithmetic. Shared memory: two tiles,
// 8.5 KiB; the reads of 16 neighbouring threads are 256 contiguous bytes (b) or one address (a).
template <class TO, class T> __global__ static void __launch_bounds__(256, 2) matmul_any_kernel(MatmulProduct p) {
  SHARED(float, a, MATMUL_DEPTH * MATMUL_PITCH);
  SHARED(float, b, MATMUL_DEPTH * MATMUL_PITCH);
  const int64_t i0 = (int64_t)blockIdx.y * MATMUL_TILE, j0 = (int64_t)blockIdx.x * MATMUL_TILE;
  const int ti = (int)threadIdx.x / 16 * 4, tj = (int)threadIdx.x % 16 * 4;
  float sum[4][4] = {};
  for (int64_t s0 = 0; s0 < p.S; s0 += MATMUL_DEPTH) {
    matmul_any_load(a, (const T *)p.a.data, p.a_rows, p.I, p.S, i0, s0);
    matmul_any_load(b, (const T *)p.b.data, p.b_rows, p.J, p.S, j0, s0);
    __syncthreads();
    UNROLL for (int s = 0; s < MATMUL_DEPTH; s++) {
      const Pack<float> x = load_pack(a + s * MATMUL_PITCH + ti), y = load_pack(b + s * MATMUL_PITCH + tj);
      UNROLL for (int i = 0; i < 4; i++)
        UNROLL for (int j = 0; j < 4; j++) sum[i][j] = fmaf(x.x[i], y.x[j], sum[i][j]);
    }
    __syncthreads();
  }
  UNROLL for (int i = 0; i < 4; i++)
    UNROLL for (int j = 0; j < 4; j++)
      if (i0 + ti + i < p.I && j0 + tj + j < p.J) matmul_any_store<TO, T>(p, sum[i][j], i0 + ti + i, j0 + tj + j);
}
static void matmul_any(Ctx *c, const MatmulProduct *p) {
  const int64_t tall = (p->I + MATMUL_TILE - 1) / MATMUL_TILE;
  CHECK(tall <= 65535, "a GEMM of %lld rows is too tall for matmul_any_kernel", (long long)p->I);
  const dim3 grid((unsigned)((p->J + MATMUL_TILE - 1) / MATMUL_TILE), (unsigned)tall);
  DISPATCH(p->out.dtype, TO, DISPATCH(p->a.dtype, T, {
    LAUNCH((matmul_any_kernel<TO, T>), grid, dim3(256), 0, STREAM(c), *p);
  }));
}

// ================================================================================================ 2 dbias
// Column sums of x (M,N). Phase 1: block (x,y) sums rows y*rows.. of 32*V columns into partial (y, N). Its 8 warps take
// every 8th row, V elements per lane (8 in 16-byte pieces, or 1 if rows are not aligned), four rows in flight; the
// warps' sums are added in order. Phase 2 adds the partials of 32 columns a block, each of its 8 warps an eighth of
// them. Rows per block depend on M alone.
enum { DBIAS_WARPS = 8, DBIAS_MIN_ROWS = 64, DBIAS_PITCH = WARP + 4 };
template <int V, class T>
__global__ static void __launch_bounds__(256)
    matmul_dbias_partial_kernel(float *partial, const T *x, int64_t M, int64_t N, int64_t rows) {
  SHARED(float, sums, DBIAS_WARPS * V * DBIAS_PITCH);
  const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
  const int64_t col0 = (int64_t)blockIdx.x * WARP * V, col = col0 + lane * V, row0 = (int64_t)blockIdx.y * rows;
  const int64_t end = row0 + rows < M ? row0 + rows : M;
  Lanes<V> sum = lanes_of<V>(0.0f), x4[4];
  if (col < N) {
    int64_t r = row0 + warp;
    for (; r + 3 * DBIAS_WARPS < end; r += 4 * DBIAS_WARPS) {
      UNROLL for (int k = 0; k < 4; k++) x4[k] = lanes_load<V>(x + (r + k * DBIAS_WARPS) * N + col);
      UNROLL for (int k = 0; k < 4; k++)
        UNROLL for (int v = 0; v < V; v++) sum.x[v] += x4[k].x[v];
    }
    for (; r < end; r += DBIAS_WARPS) {
      x4[0] = lanes_load<V>(x + r * N + col);
      UNROLL for (int v = 0; v < V; v++) sum.x[v] += x4[0].x[v];
    }
  }
  // One row per warp and v: lanes write neighbouring banks and, with the pitch, read 4 (i % 8) + i / 8, all distinct.
  UNROLL for (int v = 0; v < V; v++) sums[(warp * V + v) * DBIAS_PITCH + lane] = sum.x[v];
  __syncthreads();
  for (int i = (int)threadIdx.x; i < WARP * V; i += DBIAS_WARPS * WARP) {
    if (col0 + i >= N) continue;
    float s = 0.0f;
    UNROLL for (int w = 0; w < DBIAS_WARPS; w++) s += sums[(w * V + i % V) * DBIAS_PITCH + i / V];
    partial[(int64_t)blockIdx.y * N + col0 + i] = s;
  }
}
template <class TO>
__global__ static void __launch_bounds__(DBIAS_WARPS *WARP)
    matmul_dbias_fold_kernel(TO *out, const float *partial, int64_t N, int64_t runs, bool add) {
  SHARED(float, part, DBIAS_WARPS * WARP);
  const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
  const int64_t n = (int64_t)blockIdx.x * WARP + lane, each = (runs + DBIAS_WARPS - 1) / DBIAS_WARPS;
  const int64_t end = (warp + 1) * each < runs ? (warp + 1) * each : runs;
  float s = 0.0f;
  if (n < N) {
    int64_t r = warp * each;
    for (; r + 8 <= end; r += 8) {
      float x[8];
      UNROLL for (int k = 0; k < 8; k++) x[k] = partial[(r + k) * N + n];
      UNROLL for (int k = 0; k < 8; k++) s += x[k];
    }
    for (; r < end; r++) s += partial[r * N + n];
  }
  part[threadIdx.x] = s;
  __syncthreads();
  if (warp || n >= N) return;
  s = 0.0f;
  UNROLL for (int w = 0; w < DBIAS_WARPS; w++) s += part[w * WARP + lane];
  round_to(out + n, add ? to_f32(out[n]) + s : s);
}
static void matmul_dbias_fold(Ctx *c, Tensor dbias, const void *partial, int64_t runs, bool add) {
  const int64_t N = numel(dbias);
  DISPATCH(dbias.dtype, TO, {
    LAUNCH((matmul_dbias_fold_kernel<TO>), dim3((unsigned)((N + WARP - 1) / WARP)), dim3(DBIAS_WARPS * WARP), 0,
           STREAM(c), (TO *)dbias.data, (const float *)partial, N, runs, add);
  });
}
static void matmul_dbias(Ctx *c, Tensor dbias, Tensor dout, bool add) {
  const int64_t M = dout.shape[0], N = dout.shape[1];
  int64_t rows = (M + DBIAS_BLOCKS - 1) / DBIAS_BLOCKS;
  rows = (rows + DBIAS_WARPS - 1) / DBIAS_WARPS * DBIAS_WARPS;
  if (rows < DBIAS_MIN_ROWS) rows = DBIAS_MIN_ROWS;
  const int64_t blocks = (M + rows - 1) / rows;
  CHECK((size_t)(blocks * N) * 4 <= c->workspace_bytes, "dbias of %lld columns needs %lld bytes of workspace",
        (long long)N, (long long)(blocks * N * 4));
  float *partial = (float *)c->workspace;
  DISPATCH(dout.dtype, T, {
    const T *x = (const T *)dout.data;
    const int V = N % LANES == 0 && lanes_aligned(x) ? (int)LANES : 1;
    const dim3 grid((unsigned)((N + WARP * V - 1) / (WARP * V)), (unsigned)blocks);
    if (V > 1) LAUNCH((matmul_dbias_partial_kernel<LANES, T>), grid, dim3(256), 0, STREAM(c), partial, x, M, N, rows);
    else LAUNCH((matmul_dbias_partial_kernel<1, T>), grid, dim3(256), 0, STREAM(c), partial, x, M, N, rows);
  });
  matmul_dbias_fold(c, dbias, partial, blocks, add);
}

// ================================================================================================ 3 ops
static void matmul_product(Ctx *c, const MatmulProduct *p) {
  MatmulPlan *plan = matmul_plan(c, p);
  if (plan->way != MATMUL_OWN) {
    matmul_library_and_gelu(c, plan, p, &plan->algo, plan->workspace_bytes);
    return;
  }
  matmul_any(c, p);
  if (p->gelu.data) gelu_run<false>(c, p->gelu, p->out);
}
void matmul_forward_impl(Ctx *c, Tensor out, Tensor in, Tensor weight, MatmulEpilogue e, QuantMatrix) {
  const MatmulProduct p = {MATMUL_FORWARD, in.shape[0], weight.shape[0], in.shape[1], out, in, weight,
                           true, true, e.mode == ADD, e.bias, Tensor{}, Tensor{}, Tensor{}, Tensor{}, 1, 0,
                           e.gelu, e.gelu_again};
  matmul_product(c, &p);
}
void matmul_backward_input_impl(Ctx *c, Tensor din, Tensor dout, Tensor weight, Tensor pre_gelu, QuantMatrix) {
  const MatmulProduct p = {MATMUL_BACKWARD_INPUT, dout.shape[0], weight.shape[1], dout.shape[1], din, dout, weight,
                           true, false, false, Tensor{}, pre_gelu, Tensor{}, Tensor{}, Tensor{}, 1, 0};
  matmul_product(c, &p);
}
// The GEMM writes the gradient directly, except for the pairs of matmul_rounds_after when the workspace has room for
// them. Without that room matmul_any_kernel computes those pairs.
static void matmul_dweight(Ctx *c, Tensor dweight, Tensor dout, Tensor in, bool add) {
  const size_t library = matmul_library_bytes(DEVICE(c)->major), bytes = (size_t)numel(dweight) * 4;
  Tensor to = dweight;
  if (matmul_rounds_after(dout.dtype, dweight.dtype) && c->workspace_bytes >= library + bytes)
    to = tensor_of((char *)c->workspace + library, F32, dweight.shape[0], dweight.shape[1]);
  const MatmulProduct p = {MATMUL_BACKWARD_WEIGHT, dout.shape[1], in.shape[1], in.shape[0], to, dout, in,
                           false, false, add, Tensor{}, Tensor{}, Tensor{}, Tensor{}, Tensor{}, 1, 0};
  matmul_product(c, &p);
  if (to.data != dweight.data) convert_impl(c, dweight, to);
}
void matmul_backward_weight_impl(Ctx *c, Tensor dweight, Tensor dbias, Tensor dout, Tensor in, Accumulate mode,
                                 Tensor dout_sum) {
  if (dweight.data) matmul_dweight(c, dweight, dout, in, mode == ADD);
  if (dbias.data && dout_sum.data) matmul_dbias_fold(c, dbias, dout_sum.data, dout_sum.shape[0], mode == ADD);
  else if (dbias.data) matmul_dbias(c, dbias, dout, mode == ADD);
}
// Both operands have k contiguous: the one fp8 layout that tensor cores of every generation take. There is no fallback
// kernel: it would be slower than the bf16 GEMM, and speed is the reason for fp8.
void matmul_forward_fp8_impl(Ctx *c, Tensor out, Tensor in, Tensor in_scale, Tensor weight, Tensor weight_scale,
                             Tensor bias) {
  const MatmulProduct p = {MATMUL_FORWARD, in.shape[0], weight.shape[0], in.shape[1], out, in, weight,
                           true, true, false, bias, Tensor{}, in_scale, weight_scale, Tensor{}, 1, 0};
  CHECK(lanes_aligned(out.data, in.data, weight.data, bias.data),
        "matmul_forward_fp8: out %p, in %p, weight %p and bias %p must be aligned to 16 bytes", out.data, in.data,
        weight.data,
        bias.data);
  matmul_product(c, &p);
}
