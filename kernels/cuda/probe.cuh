// probe.cuh: what a test asks of a CUDA device and no op tells. Part of kernels/cuda/cuda.cu.
//
//   cuda_probe(c, what, to, from)   one warp, on c's stream; `to` and `from` in device memory
//     PROBE_MMA_BF16, _FP16     to (16x8) fp32 = A (16x16) B (16x8): from = A, then B, row-major; operands and result
//                               lie in registers as "Matrix Fragments for mma.m16n8k16" of the PTX ISA says
//     PROBE_LDMATRIX, _TRANS    to (32x4): the registers of every lane; from: four 8x8 tiles of 16-bit elements
//   cuda_probe_priorities(c, side, p)   p[2] = the priorities that a captured kernel of either stream has in the graph
#pragma once
#include "kernels/ops.h"
#include "gpu.h"

enum Probe { PROBE_MMA_BF16, PROBE_MMA_FP16, PROBE_LDMATRIX, PROBE_LDMATRIX_TRANS };

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
LIBRARY_EXPORT void cuda_probe(Ctx *c, int what, void *to, const void *from);
LIBRARY_EXPORT void cuda_probe(Ctx *c, int what, void *to, const void *from) {
  const uint16_t *x = (const uint16_t *)from;
  if (what == PROBE_MMA_BF16) LAUNCH(probe_mma_kernel<bf16>, 1, WARP, 0, STREAM(c), (float *)to, x);
  else if (what == PROBE_MMA_FP16) LAUNCH(probe_mma_kernel<fp16>, 1, WARP, 0, STREAM(c), (float *)to, x);
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
