// probe.cuh: what a test asks of a CUDA device and no op tells. Part of kernels/cuda/cuda.cu.
//
//   cuda_probe(c, what, to, from)   one warp, on c's stream; `to` and `from` in device memory
//     PROBE_MMA_BF16, _FP16     to (16x8) fp32 = A (16x16) B (16x8): from = A, then B, row-major; operands and result
//                               are in registers as "Matrix Fragments for mma.m16n8k16" of the PTX ISA says
//     PROBE_WGMMA_DOT + ...     128 threads: to (64xN) fp32 = A (64x64) B^T (B: Nx64), from = A, then B, row-major;
//                               with PROBE_WGMMA_WEIGH A comes from registers, and to = A B (B: 64xN). + 1: N 128, else
//                               64; + 2: fp16, else bf16
//     PROBE_LDMATRIX, _TRANS    to (32x4): the registers of every lane; from: four 8x8 tiles of 16-bit elements
//   cuda_probe_priorities(c, side, p)   p[2] = the priorities that a captured kernel of either stream has in the graph
#pragma once
#include "kernels/ops.h"
#include "gpu.h"

enum Probe { PROBE_MMA_BF16, PROBE_MMA_FP16, PROBE_LDMATRIX, PROBE_LDMATRIX_TRANS, PROBE_WGMMA_DOT,
             PROBE_WGMMA_WEIGH = PROBE_WGMMA_DOT + 4 };

template <class T> __global__ static void probe_mma_kernel(float *to, const uint16_t *from) {
  const int group = (int)threadIdx.x / 4, column = (int)threadIdx.x % 4 * 2;
  const uint16_t *a_from = from, *b_from = from + 16 * 16;
  uint32_t a[4], b[2];
  float d[4] = {};
  for (int r = 0; r < 4; r++) {
    const uint16_t *pair = a_from + (group + r % 2 * 8) * 16 + column + r / 2 * 8;
    a[r] = pair[0] | (uint32_t)pair[1] << 16;
  }
  for (int r = 0; r < 2; r++) {
    const uint16_t *pair = b_from + (column + r * 8) * 8 + group;
    b[r] = pair[0] | (uint32_t)pair[8] << 16;
  }
  mma_16816<T>(d, a, b);
  for (int r = 0; r < 4; r++) to[(group + r / 2 * 8) * 8 + column + r % 2] = d[r];
}
__global__ static void probe_ldmatrix_kernel(uint32_t *to, const uint16_t *from, bool trans) {
  SHARED(uint16_t, tiles, 4 * 8 * 8);
  uint32_t r[4];
  for (int i = 0; i < 8; i++) tiles[threadIdx.x * 8 + i] = from[threadIdx.x * 8 + i];
  __syncthreads();
  if (trans) ldmatrix_x4_trans(r, tiles + threadIdx.x * 8);
  else ldmatrix_x4(r, tiles + threadIdx.x * 8);
  for (int i = 0; i < 4; i++) to[threadIdx.x * 4 + i] = r[i];
}
template <class T, int N, bool WEIGH> __global__ static void probe_wgmma_kernel(float *to, const uint16_t *from) {
  SHARED_TILES(a_tile);
  unsigned char *b_tile = a_tile + 64 * 128;
  const int thread = (int)threadIdx.x, lane = thread % WARP, row = thread / WARP * 16 + lane / 4;
  const uint16_t *b_from = from + 64 * 64;
  float d[N / 8][4] = {};
  uint32_t a[4][4];
  for (int i = thread; i < 64 * 64; i += 128) {
    const int r = i / 64, c = i % 64;
    *(uint16_t *)(a_tile + r * 128 + ((c / 8 ^ r) % 8) * 16 + c % 8 * 2) = from[i];
  }
  for (int i = thread; i < 64 * N; i += 128) {   // WEIGH: panels of 64 columns, one after the other
    const int r = i / (WEIGH ? N : 64), c = i % (WEIGH ? N : 64);
    *(uint16_t *)(b_tile + c / 64 * (64 * 128) + r * 128 + ((c / 8 ^ r) % 8) * 16 + c % 8 * 2) = b_from[i];
  }
  for (int k = 0; k < 4; k++)
    for (int i = 0; i < 4; i++) {
      const uint16_t *pair = from + (row + i % 2 * 8) * 64 + k * 16 + lane % 4 * 2 + i / 2 * 8;
      a[k][i] = pair[0] | (uint32_t)pair[1] << 16;
    }
  proxy_fence();
  __syncthreads();
  const uint64_t tile_a = wgmma_tile(a_tile), tile_b = wgmma_tile(b_tile, 64 * 128);
  wgmma_pin<N>(d[0]);
  wgmma_fence();
  UNROLL for (int k = 0; k < 4; k++) {
    if (WEIGH) wgmma_weigh<T, N>(d[0], a[k], wgmma_step(tile_b, k * 2048));
    else wgmma_dot<T, N>(d[0], wgmma_step(tile_a, k * 32), wgmma_step(tile_b, k * 32), k > 0);
  }
  wgmma_commit();
  wgmma_wait<0>();
  wgmma_pin<N>(d[0]);
  UNROLL for (int n = 0; n < N / 8; n++)
    UNROLL for (int e = 0; e < 4; e++) to[(row + e / 2 * 8) * N + n * 8 + lane % 4 * 2 + e % 2] = d[n][e];
}
LIBRARY_EXPORT void cuda_probe(Ctx *c, int what, void *to, const void *from);
LIBRARY_EXPORT void cuda_probe(Ctx *c, int what, void *to, const void *from) {
  const uint16_t *x = (const uint16_t *)from;
  if (what == PROBE_MMA_BF16) LAUNCH(probe_mma_kernel<bf16>, 1, WARP, 0, STREAM(c), (float *)to, x);
  else if (what == PROBE_MMA_FP16) LAUNCH(probe_mma_kernel<fp16>, 1, WARP, 0, STREAM(c), (float *)to, x);
#define PROBE_WGMMA(T, N, WEIGH, code) \
  else if (what == (code)) \
    LAUNCH((probe_wgmma_kernel<T, N, WEIGH>), 1, 128, (64 + N) * 128, STREAM(c), (float *)to, x);
  PROBE_WGMMA(bf16, 64, false, PROBE_WGMMA_DOT) PROBE_WGMMA(bf16, 128, false, PROBE_WGMMA_DOT + 1)
  PROBE_WGMMA(fp16, 64, false, PROBE_WGMMA_DOT + 2) PROBE_WGMMA(fp16, 128, false, PROBE_WGMMA_DOT + 3)
  PROBE_WGMMA(bf16, 64, true, PROBE_WGMMA_WEIGH) PROBE_WGMMA(bf16, 128, true, PROBE_WGMMA_WEIGH + 1)
  PROBE_WGMMA(fp16, 64, true, PROBE_WGMMA_WEIGH + 2) PROBE_WGMMA(fp16, 128, true, PROBE_WGMMA_WEIGH + 3)
#undef PROBE_WGMMA
  else LAUNCH(probe_ldmatrix_kernel, 1, WARP, 0, STREAM(c), (uint32_t *)to, x, what == PROBE_LDMATRIX_TRANS);
}

#if DEVICE_COMPILER == 1
__global__ static void probe_nothing_kernel(int) {}
LIBRARY_EXPORT void cuda_probe_priorities(Ctx *c, Ctx *side, int *p);
LIBRARY_EXPORT void cuda_probe_priorities(Ctx *c, Ctx *side, int *p) {
  cudaEvent_t fork, join;
  cudaGraph_t graph;
  cudaGraphNode_t nodes[16];
  size_t n = 16;
  CUDA(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
  CUDA(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
  CUDA(cudaStreamBeginCapture(STREAM(c), cudaStreamCaptureModeThreadLocal));
  CUDA(cudaEventRecord(fork, STREAM(c)));
  CUDA(cudaStreamWaitEvent(STREAM(side), fork, 0));
  LAUNCH(probe_nothing_kernel, 1, 1, 0, STREAM(c), 0);
  LAUNCH(probe_nothing_kernel, 1, 2, 0, STREAM(side), 0);         // told apart by its threads
  CUDA(cudaEventRecord(join, STREAM(side)));
  CUDA(cudaStreamWaitEvent(STREAM(c), join, 0));
  CUDA(cudaStreamEndCapture(STREAM(c), &graph));
  CUDA(cudaGraphGetNodes(graph, nodes, &n));
  for (size_t i = 0; i < n; i++) {
    cudaGraphNodeType type;
    cudaKernelNodeParams params;
    cudaLaunchAttributeValue value;
    CUDA(cudaGraphNodeGetType(nodes[i], &type));
    if (type != cudaGraphNodeTypeKernel) continue;
    CUDA(cudaGraphKernelNodeGetParams(nodes[i], &params));
    CUDA(cudaGraphKernelNodeGetAttribute(nodes[i], cudaLaunchAttributePriority, &value));
    p[params.blockDim.x - 1] = value.priority;
  }
  CUDA(cudaGraphDestroy(graph));
  CUDA(cudaEventDestroy(fork));
  CUDA(cudaEventDestroy(join));
}
#endif
