// matmul_blocks.cuh: passes of a few tokens over weights that are stored in blocks (blocks.h), read as stored.
//
//   matmul_blocks   out(m, first + n) = sum over k of in(m,k) w(n,k) + bias(first + n), n < N
//   blocks_rows     out(r, :) = scale w(ids[r], :)
//
// w(n,k) is number k of row n of the blocks, in fp32, rounded once to in's dtype: what blocks_expand makes. weight (N,
// bytes of a row): BLOCKS. in (M,K); out (M, any), fp32 or in's dtype; bias (any): in's. The weight is read once for
// every MATMUL_FEW_ROWS rows of in.
//
// On a CPU the summation order is that of gemm.h, so that out has the bits of matmul_forward by the expanded rows; on
// AMX in bf16, where that has tiles' order, they are those of AVX-512 BF16. On CUDA a warp has a row: each lane a chain
// of every 32nd k, then warp_sum. Either is within K + 6 roundings of fp32 of the sum of |in w|, whatever its order.
#pragma once
#include "ops_blocks.h"
#include "matmul.cuh"
#include "master.cuh"

#if PART_LAUNCHERS
static inline void matmul_blocks_check(const char *op, Tensor weight, int type, int64_t K) {
  CHECK_DTYPE(weight, BLOCKS);
  CHECK(block_values(type) > 1 && weight.ndim == 2 && K % block_values(type) == 0 &&
        weight.shape[1] == blocks_bytes(type, K), "%s: rows of %lld bytes, %lld numbers of type %d", op,
        (long long)weight.shape[1], (long long)K, type);
}
// Overwrites columns first .. first + N of out. Those of several matrices come in order: what out had before the first
// of them is not kept.
void matmul_blocks(Ctx *c, Tensor out, Tensor in, Tensor weight, int type, int64_t first, Tensor bias) {
  matmul_blocks_check("matmul_blocks", weight, type, in.shape[1]);
  CHECK_SHAPE(out, in.shape[0], out.shape[1]);
  CHECK(first >= 0 && first + weight.shape[0] <= out.shape[1], "matmul_blocks: %lld columns from %lld on, out has %lld",
        (long long)weight.shape[0], (long long)first, (long long)out.shape[1]);
  if (out.dtype != F32) CHECK_DTYPE(out, in.dtype);
  if (bias.data) { CHECK_SHAPE(bias, out.shape[1]); CHECK_DTYPE(bias, in.dtype); }
  CALL_OP(c, blocks, matmul_blocks, out, in, weight, type, first, bias);
}
// Overwrites out (R,K) by rows of weight; ids: R of them. What is multiplied is rounded once more.
void blocks_rows(Ctx *c, Tensor out, Tensor weight, int type, Tensor ids, float scale) {
  matmul_blocks_check("blocks_rows", weight, type, out.shape[1]);
  CHECK_DTYPE(ids, I32);
  CHECK(numel(ids) == out.shape[0], "blocks_rows: %lld ids, %lld rows", (long long)numel(ids), (long long)out.shape[0]);
  CALL_OP(c, blocks, blocks_rows, out, weight, type, ids, scale);
}
#endif

#if PART_CPU
#include "kernels/cpu/gemm_blocks.h"
void matmul_blocks_impl(Ctx *c, Tensor out, Tensor in, Tensor weight, int type, int64_t first, Tensor bias) {
  const size_t at = (size_t)first, size = dtype_bytes(out.dtype);
  CHECK(c->workspace_bytes >= (size_t)(in.shape[1] + 64) * GEMM_FEW_ROWS * 4, "matmul_blocks: workspace of %zu bytes "
        "for K %lld", c->workspace_bytes, (long long)in.shape[1]);
  for (int64_t r = 0; r < in.shape[0]; r += GEMM_FEW_ROWS) {
    const Tensor a = rows_of(in, r, min64(GEMM_FEW_ROWS, in.shape[0] - r));
    MatmulFinish f = {(char *)rows_of(out, r, 1).data + at * size, out.shape[1], NULL, NULL, NULL, false, NULL, false};
    if (bias.data) f.bias = (char *)bias.data + at * dtype_bytes(bias.dtype);
    GemmJob j = {matmul_rows(a), {weight.data, in.dtype, weight.shape[0], 0, true}, in.shape[1], NULL, NULL, &f};
    DISPATCH(out.dtype, TO, DISPATCH(in.dtype, T, j.finish = matmul_finish<TO, T, MATMUL_STORE>));
    gemm_blocks(c, &j, type);
  }
}
void blocks_rows_impl(Ctx *c, Tensor out, Tensor weight, int type, Tensor ids, float scale) {
  const int64_t K = out.shape[1];
  for (int64_t r = 0; r < out.shape[0]; r++) {
    const int32_t id = ((const int32_t *)ids.data)[r];
    CHECK(id >= 0 && id < weight.shape[0], "blocks_rows: row %d of %lld", id, (long long)weight.shape[0]);
    const Tensor in = tensor_of((char *)weight.data + id * weight.shape[1], BLOCKS, weight.shape[1]);
    const Tensor row = reshaped(rows_of(out, r, 1), K);
    blocks_expand_impl(c, row, in, type);
    DISPATCH(out.dtype, T, {
      T *x = (T *)row.data;
      for (int64_t k = 0; k < K && scale != 1; k++) round_to(x + k, scale * to_f32(x[k]));
    });
  }
}
#endif

#if PART_CUDA
// Number k of a row of any type. The type is the same for a whole grid.
__device__ static inline float blocks_number(int type, const uint8_t *row, int64_t k) {
  const int values = block_values(type), i = (int)(k % values);
  const uint8_t *b = row + k / values * block_bytes(type);
  switch (type) {
#define X(name, id, values, bytes) case id: return block_value<id>(b, i / BLOCK_RUN, i % BLOCK_RUN);
    BLOCK_TYPES(X)
#undef X
  }
  return 0;
}
// 128 threads: four rows of weight, MATMUL_FEW_ROWS of in.
template <class TO, class T>
__global__ static void __launch_bounds__(128)
    matmul_blocks_kernel(TO *out, const T *in, const uint8_t *weight, const T *bias, int type, int64_t rows, int64_t N,
                         int64_t K, int64_t ld, int64_t row_bytes) {
  const int64_t n = (int64_t)blockIdx.x * 4 + threadIdx.x / WARP, first = (int64_t)blockIdx.y * MATMUL_FEW_ROWS;
  const int64_t M = rows - first;
  if (n >= N) return;
  in += first * K, out += first * ld;
  float sum[MATMUL_FEW_ROWS] = {};
  for (int64_t k = threadIdx.x % WARP; k < K; k += WARP) {
    T w;
    round_param(&w, blocks_number(type, weight + n * row_bytes, k));
    UNROLL for (int m = 0; m < MATMUL_FEW_ROWS; m++)
      if (m < M) sum[m] = fmaf(to_f32(in[m * K + k]), to_f32(w), sum[m]);
  }
  UNROLL for (int m = 0; m < MATMUL_FEW_ROWS; m++) {
    const float x = warp_sum(sum[m]);
    if (m < M && threadIdx.x % WARP == 0) round_to(out + m * ld + n, bias ? x + to_f32(bias[n]) : x);
  }
}
void matmul_blocks_impl(Ctx *c, Tensor out, Tensor in, Tensor weight, int type, int64_t first, Tensor bias) {
  const int64_t N = weight.shape[0], K = in.shape[1], ld = out.shape[1];
  const dim3 grid((unsigned)((N + 3) / 4), (unsigned)((in.shape[0] + MATMUL_FEW_ROWS - 1) / MATMUL_FEW_ROWS));
  const uint8_t *w = (const uint8_t *)weight.data;
  DISPATCH(in.dtype, T, {
    const T *x = (const T *)in.data, *b = bias.data ? (const T *)bias.data + first : NULL;
    if (out.dtype == F32) LAUNCH((matmul_blocks_kernel<float, T>), grid, dim3(128), 0, STREAM(c),
                                 (float *)out.data + first, x, w, b, type, in.shape[0], N, K, ld, weight.shape[1]);
    else LAUNCH((matmul_blocks_kernel<T, T>), grid, dim3(128), 0, STREAM(c), (T *)out.data + first, x, w, b, type,
                in.shape[0], N, K, ld, weight.shape[1]);
  });
}
template <class T>
__global__ static void __launch_bounds__(128)
    blocks_rows_kernel(T *out, const uint8_t *weight, const int32_t *ids, int type, int64_t N, int64_t K,
                       int64_t row_bytes, float scale) {
  const int32_t id = ids[blockIdx.x];
  DEVICE_CHECK(id >= 0 && id < N, "blocks_rows: a row outside the table");
  for (int64_t k = threadIdx.x; k < K; k += blockDim.x) {
    T w;
    round_param(&w, blocks_number(type, weight + id * row_bytes, k));
    round_to(out + blockIdx.x * K + k, scale * to_f32(w));
  }
}
void blocks_rows_impl(Ctx *c, Tensor out, Tensor weight, int type, Tensor ids, float scale) {
  DISPATCH(out.dtype, T, LAUNCH((blocks_rows_kernel<T>), dim3((unsigned)out.shape[0]), dim3(128), 0, STREAM(c),
                                (T *)out.data, (const uint8_t *)weight.data, (const int32_t *)ids.data, type,
                                weight.shape[0], out.shape[1], weight.shape[1], scale));
}
#endif
