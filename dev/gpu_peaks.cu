// gpu_peaks.cu: the peak rates of this GPU. Kernels' bandwidth and throughput are compared with these, not with a data
// sheet. One line each: name, value, unit. A laboratory program, built and run by dev/gpu_day.sh.
//   nvcc -std=c++17 -O3 -arch=native -I. dev/gpu_peaks.cu -o build/gpu_peaks -ldl && build/gpu_peaks
//
//   memory_copy, memory_read, memory_write      buffers far larger than the L2 cache; a copy counts reads and writes
//   gemm_bf16, gemm_fp16, gemm_tf32, gemm_fp32  cuBLASLt, 8192 cubed, fp32 sums, the fastest of its heuristic's first
//   mma_bf16                                    mma.sync alone, operands in registers: the limit of our own kernels
//
// Operands are random: zeros switch fewer transistors, so the clock would stay higher. Each value is the best of
// several timed repetitions: a peak, not a rate that a long run sustains.
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/cuda_libraries.h"
#include "base/errors.h"


enum { REPEATS = 7, EDGE = 8192 };
static const size_t BUFFER_BYTES = (size_t)2 << 30;

// ---- timing -------------------------------------------------------------------------------------------------------
// Milliseconds per call, over `calls` calls, the best of REPEATS; `body` queues one call on the default stream.
#define TIME_MS(best, calls, body) \
  do { \
    cudaEvent_t start_, end_; \
    CUDA(cudaEventCreate(&start_)); \
    CUDA(cudaEventCreate(&end_)); \
    for (int r_ = 0; r_ < REPEATS; r_++) { \
      float ms_; \
      CUDA(cudaEventRecord(start_)); \
      for (int i_ = 0; i_ < (calls); i_++) { body; } \
      CUDA(cudaEventRecord(end_)); \
      CUDA(cudaEventSynchronize(end_)); \
      CUDA(cudaEventElapsedTime(&ms_, start_, end_)); \
      ms_ /= (float)(calls); \
      if (!r_ || ms_ < (best)) (best) = ms_; \
    } \
    CUDA(cudaEventDestroy(start_)); \
    CUDA(cudaEventDestroy(end_)); \
  } while (0)

static void print_value(const char *name, double value, const char *unit) {
  printf("%-14s %10.1f %s\n", name, value, unit);
  fflush(stdout);
}

// ---- memory -------------------------------------------------------------------------------------------------------
// Numbers in (-1, 1) without any pattern (the finaliser of MurmurHash3), of the dtype that the GEMMs read.
template <class T> __global__ static void peak_fill_kernel(T *to, size_t n) {
  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
    uint32_t h = (uint32_t)i + 0x9e3779b9u;
    h = (h ^ h >> 16) * 0x85ebca6bu;
    h = (h ^ h >> 13) * 0xc2b2ae35u;
    round_to(&to[i], (float)(int32_t)(h ^ h >> 16) * 0x1p-31f);
  }
}

// Four independent 16-byte accesses per thread and iteration. READ alone keeps the loads by a store that never happens.
enum PeakMemory { PEAK_COPY, PEAK_READ, PEAK_WRITE };
template <PeakMemory KIND> __global__ static void __launch_bounds__(512)
peak_memory_kernel(uint4 *to, const uint4 *from, size_t packs) {
  const size_t stride = (size_t)gridDim.x * blockDim.x;
  uint32_t seen = 0;
  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i + 3 * stride < packs; i += 4 * stride) {
    uint4 x[4] = {};
    UNROLL for (int j = 0; j < 4; j++) if (KIND != PEAK_WRITE) x[j] = from[i + (size_t)j * stride];
    UNROLL for (int j = 0; j < 4; j++) {
      if (KIND != PEAK_READ) to[i + (size_t)j * stride] = x[j];
      else seen |= x[j].x & x[j].y & x[j].z & x[j].w;
    }
  }
  if (KIND == PEAK_READ && seen == 0x12345678u) to[0].x = seen;
}

static void peaks_of_memory(void *to, const void *from, int sms) {
  const size_t packs = BUFFER_BYTES / sizeof(uint4);
  const int blocks = 4 * sms;
  const double gb = (double)BUFFER_BYTES / 1e9;
  float ms = 0;
  TIME_MS(ms, 2, LAUNCH(peak_memory_kernel<PEAK_COPY>, blocks, 512, 0, 0, (uint4 *)to, (const uint4 *)from, packs));
  double copy = 2 * gb / ms * 1e3;
  TIME_MS(ms, 2, CUDA(cudaMemcpyAsync(to, from, BUFFER_BYTES, cudaMemcpyDeviceToDevice)));
  if (2 * gb / ms * 1e3 > copy) copy = 2 * gb / ms * 1e3;
  print_value("memory_copy", copy, "GB/s");
  TIME_MS(ms, 2, LAUNCH(peak_memory_kernel<PEAK_READ>, blocks, 512, 0, 0, (uint4 *)to, (const uint4 *)from, packs));
  print_value("memory_read", gb / ms * 1e3, "GB/s");
  TIME_MS(ms, 2, LAUNCH(peak_memory_kernel<PEAK_WRITE>, blocks, 512, 0, 0, (uint4 *)to, (const uint4 *)from, packs));
  print_value("memory_write", gb / ms * 1e3, "GB/s");
}

// ---- matrix multiplies ---------------------------------------------------------------------------------------------
// c (EDGE, EDGE) = a b, rows of a and columns of b contiguous, as activations and weights are.
struct PeakGemm { const char *name; cudaDataType_t type; cublasComputeType_t compute; };

static void peak_of_gemm(PeakGemm g, void *c, const void *a, const void *b, void *workspace, size_t workspace_bytes) {
  enum { WANTED = 8 };
  const float one = 1, zero = 0;
  const cublasOperation_t transposed = CUBLAS_OP_T;
  cublasLtHandle_t lt;
  cublasLtMatmulDesc_t desc;
  cublasLtMatrixLayout_t layout;
  cublasLtMatmulPreference_t preference;
  cublasLtMatmulHeuristicResult_t found[WANTED];
  int count = 0;
  BLAS(cublasLtCreate(&lt));
  BLAS(cublasLtMatmulDescCreate(&desc, g.compute, CUDA_R_32F));
  BLAS(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed));
  BLAS(cublasLtMatrixLayoutCreate(&layout, g.type, EDGE, EDGE, EDGE));
  BLAS(cublasLtMatmulPreferenceCreate(&preference));
  BLAS(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
                                            sizeof workspace_bytes));
  BLAS(cublasLtMatmulAlgoGetHeuristic(lt, desc, layout, layout, layout, layout, preference, WANTED, found, &count));
  CHECK(count, "%s: cuBLASLt has no algorithm", g.name);
  float best = 0;
  for (int i = 0; i < count; i++) {
    float ms = 0;
    TIME_MS(ms, 3, BLAS(cublasLtMatmul(lt, desc, &one, a, layout, b, layout, &zero, c, layout, c, layout,
                                       &found[i].algo, workspace, workspace_bytes, 0)));
    if (!i || ms < best) best = ms;
  }
  print_value(g.name, 2.0 * EDGE * EDGE * EDGE / best / 1e9, "TFLOP/s");
  BLAS(cublasLtMatmulPreferenceDestroy(preference));
  BLAS(cublasLtMatrixLayoutDestroy(layout));
  BLAS(cublasLtMatmulDescDestroy(desc));
  BLAS(cublasLtDestroy(lt));
}

static void peaks_of_gemm(void *c, void *a, void *b) {
  const size_t n = (size_t)EDGE * EDGE, workspace_bytes = (size_t)64 << 20;
  const PeakGemm half[] = {{"gemm_bf16", CUDA_R_16BF, CUBLAS_COMPUTE_32F},
                           {"gemm_fp16", CUDA_R_16F, CUBLAS_COMPUTE_32F}};
  const PeakGemm full[] = {{"gemm_tf32", CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32},
                           {"gemm_fp32", CUDA_R_32F, CUBLAS_COMPUTE_32F}};
  void *workspace;
  CUDA(cudaMalloc(&workspace, workspace_bytes));
  for (const PeakGemm &g : half) for (void *to : {a, b}) {
    if (g.type == CUDA_R_16BF) LAUNCH(peak_fill_kernel<bf16>, 4096, 256, 0, 0, (bf16 *)to, n);
    else LAUNCH(peak_fill_kernel<fp16>, 4096, 256, 0, 0, (fp16 *)to, n);
    if (to == b) peak_of_gemm(g, c, a, b, workspace, workspace_bytes);
  }
  for (void *to : {a, b}) LAUNCH(peak_fill_kernel<float>, 4096, 256, 0, 0, (float *)to, n);
  for (const PeakGemm &g : full) peak_of_gemm(g, c, a, b, workspace, workspace_bytes);
  CUDA(cudaFree(workspace));
}

// ---- mma.sync -----------------------------------------------------------------------------------------------------
// Eight independent sums per warp hide each other's latency; the operands are random and stay in registers.
enum { MMA_SUMS = 8, MMA_TURNS = 4096, MMA_THREADS = 256 };
__global__ static void __launch_bounds__(MMA_THREADS) peak_mma_kernel(float *out, const uint32_t *random) {
  uint32_t a[4], b[MMA_SUMS][2];
  float d[MMA_SUMS][4] = {};
  UNROLL for (int i = 0; i < 4; i++) a[i] = random[threadIdx.x * 4u + (unsigned)i];
  UNROLL for (int i = 0; i < 2 * MMA_SUMS; i++) b[i / 2][i % 2] = random[1024u + threadIdx.x * 16u + (unsigned)i];
  ROLLED for (int turn = 0; turn < MMA_TURNS; turn++) {
    UNROLL for (int i = 0; i < MMA_SUMS; i++) mma_16816<bf16>(d[i], a, b[i]);
  }
  float sum = 0;
  UNROLL for (int i = 0; i < 4 * MMA_SUMS; i++) sum += d[i / 4][i % 4];
  out[blockIdx.x * MMA_THREADS + threadIdx.x] = sum;
}

static void peak_of_mma(float *out, const void *random, int sms) {
  const int blocks = 4 * sms;
  const double flops = 2.0 * 16 * 8 * 16 * MMA_SUMS * MMA_TURNS * (MMA_THREADS / WARP) * blocks;
  float ms = 0;
  TIME_MS(ms, 2, LAUNCH(peak_mma_kernel, blocks, MMA_THREADS, 0, 0, out, (const uint32_t *)random));
  print_value("mma_bf16", flops / ms / 1e9, "TFLOP/s");
}

int main() {
  cudaDeviceProp prop;
  void *buffer[3];
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || !devices) die_missing("no usable GPU: nvidia-smi says why");
  CUDA(cudaGetDeviceProperties(&prop, 0));
  printf("# %s, %d SMs\n", prop.name, prop.multiProcessorCount);
  for (void *&p : buffer) CUDA(cudaMalloc(&p, BUFFER_BYTES));
  LAUNCH(peak_fill_kernel<bf16>, 4096, 256, 0, 0, (bf16 *)buffer[1], BUFFER_BYTES / sizeof(bf16));
  peaks_of_memory(buffer[0], buffer[1], prop.multiProcessorCount);
  peaks_of_gemm(buffer[0], buffer[1], buffer[2]);
  LAUNCH(peak_fill_kernel<bf16>, 4096, 256, 0, 0, (bf16 *)buffer[1], BUFFER_BYTES / sizeof(bf16));
  peak_of_mma((float *)buffer[0], buffer[1], prop.multiProcessorCount);
  CUDA(cudaDeviceSynchronize());
  for (void *p : buffer) CUDA(cudaFree(p));
  return 0;
}
