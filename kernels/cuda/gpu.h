// gpu.h: the names that CUDA code may use, in two forms: for nvcc, and for dev/cuda_emu (g++, DEVICE_COMPILER 2).
// Kernels use these names and plain CUDA C; no other file distinguishes the two compilers.
//
//   CUDA, LAUNCH, STREAM        checked calls and launches
//   LAUNCH_CLUSTER              clusters of so many neighbouring blocks (sm_90 and later): they run at the same time
//   cluster_begin, cluster_arrive, cluster_wait, cluster_store      a barrier of all threads of a cluster; into another
//                               block's memory
//   SHARED, SHARED_DYNAMIC      shared memory of a block, 16-byte aligned; LAUNCH asks for what is above 48 KiB
//   SHARED_TILES                SHARED_DYNAMIC in bytes, from a multiple of 1024 on
//   UNROLL, ROLLED              before a loop that should be unrolled, or must not be
//   mma_16816, ldmatrix_x4, ldmatrix_x4_trans       tensor cores, sm_80 and later (PTX ISA, "Matrix fragments")
//   cp_async16, cp_async_commit, cp_async_wait      16 bytes global -> shared, asynchronously
//   wgmma_dot, wgmma_weigh, wgmma_tile, wgmma_step, wgmma_fence, wgmma_commit, wgmma_wait, wgmma_pin, proxy_fence
//                               WGMMA: 128 threads multiply matrices in shared memory on Hopper's tensor cores (sm_90a
//                               only); gpu_has_wgmma: whether the device has it and this build has code for it
//   Pack<T>, load_pack, store_pack                  16 bytes of T at once
//   pack2, unpack2, pack4_fp8, unpack4_fp8          a register of two or four numbers, from and to fp32
//   warp_sum, warp_max, block_sum                   fixed order of additions
//   gpu_uuid                    identifies the memory of a device: each MIG instance of a GPU has its own
//   RANGE_BEGIN, RANGE_END, DEVICE_NAME_STREAM, DEVICE_NAME_EVENT                names for traces
#pragma once
#include "kernels/device.h"
#include <assert.h>
#include <cuda_runtime.h>

#define CUDA(call) \
  do { cudaError_t e_ = (call); CHECK(e_ == cudaSuccess, "%s: %s", #call, cudaGetErrorString(e_)); } while (0)
#define STREAM(c) ((cudaStream_t)(c)->stream)
enum : uint32_t { FULL_WARP = 0xffffffffu };
enum { WARP = 32 };

// A block with more than 48 KiB of shared memory, static and dynamic together, must be allowed it, kernel by kernel.
// How much of it is static only the compiler knows, so every dynamic size is asked for, which costs nothing.
static inline bool has_dynamic(size_t bytes) { return bytes > 0; }
#define ALLOW_SHARED(kernel, dynamic_bytes) \
  do { \
    if (has_dynamic(dynamic_bytes)) \
      CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(dynamic_bytes))); \
  } while (0)

HD uint32_t pack4_fp8_plain(const float x[4]) {
  uint32_t word = 0;
  for (int i = 0; i < 4; i++) {
    fp8 byte;
    round_to(&byte, x[i]);
    word |= (uint32_t)byte.bits << 8 * i;
  }
  return word;
}
HD void unpack4_fp8_plain(uint32_t word, float x[4]) {
  for (int i = 0; i < 4; i++) x[i] = to_f32(fp8{(uint8_t)(word >> 8 * i)});
}

#if DEVICE_COMPILER == 1
#define UNROLL _Pragma("unroll")
#define ROLLED _Pragma("unroll 1")
// NVTX is headers only: a profiler provides the library; without one a call returns at once.
#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtCudaRt.h>
#define RANGE_BEGIN(name) nvtxRangePushA(name)
#define RANGE_END() nvtxRangePop()
#define DEVICE_NAME_STREAM(stream, name) nvtxNameCudaStreamA(stream, name)
#define DEVICE_NAME_EVENT(event, name) nvtxNameCudaEventA(event, name)
// cuDeviceGetUuid knows of MIG instances since driver interface 11.4 (before, it names the GPU); cudaDeviceProp.uuid
// does not say which of the two it is.
static inline void gpu_uuid_bytes(char to[16], int index, const cudaDeviceProp *p) {
  void *entry = NULL;
  cudaDriverEntryPointQueryResult found;
  memcpy(to, p->uuid.bytes, 16);
#if CUDART_VERSION >= 12050
  const cudaError_t e = cudaGetDriverEntryPointByVersion("cuDeviceGetUuid", &entry, 11040, cudaEnableDefault, &found);
#else
  const cudaError_t e = cudaGetDriverEntryPoint("cuDeviceGetUuid_v2", &entry, cudaEnableDefault, &found);
#endif
  char uuid[16];
  if (e != cudaSuccess || found != cudaDriverEntryPointSuccess || !entry) cudaGetLastError();
  else if (((int (*)(char *, int))entry)(uuid, index) == 0) memcpy(to, uuid, 16);
}
// Whether this build has code for the current device.
// built_for: the architecture of the PTX that the kernel's code was made from, as 90; what __CUDA_ARCH__ was there.
static inline cudaError_t kernel_loads(void (*kernel)(), int *built_for) {
  cudaFuncAttributes a = {};
  const cudaError_t e = cudaFuncGetAttributes(&a, kernel);
  *built_for = a.ptxVersion;
  return e;
}
#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
  do { \
    ALLOW_SHARED(kernel, shared_bytes); \
    kernel<<<grid, block, shared_bytes, stream>>>(__VA_ARGS__); \
    CUDA(cudaGetLastError()); \
  } while (0)
// cluster: blocks of a cluster, neighbours in x. Only where CudaDevice.clusters says so.
#define LAUNCH_CLUSTER(kernel, cluster, grid, block, shared_bytes, in, ...) \
  do { \
    ALLOW_SHARED(kernel, shared_bytes); \
    cudaLaunchAttribute attribute_ = {}; \
    attribute_.id = cudaLaunchAttributeClusterDimension; \
    attribute_.val.clusterDim.x = (cluster), attribute_.val.clusterDim.y = attribute_.val.clusterDim.z = 1; \
    cudaLaunchConfig_t config_ = {}; \
    config_.gridDim = (grid), config_.blockDim = (block), config_.dynamicSmemBytes = (shared_bytes); \
    config_.stream = (in), config_.attrs = &attribute_, config_.numAttrs = 1; \
    CUDA(cudaLaunchKernelEx(&config_, kernel, __VA_ARGS__)); \
  } while (0)
#define SHARED(T, name, n) __shared__ __align__(16) T name[n]
// One untyped array: a template's second T would declare the same extern with another type.
#define SHARED_DYNAMIC(T, name) \
  extern __shared__ __align__(16) unsigned char dynamic_shared_[]; \
  T *name = (T *)dynamic_shared_
#define SHARED_TILES(name) extern __shared__ __align__(1024) unsigned char name[]

#define MMA_16816(types) \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." types ".f32 " \
               "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
// d (16x8) += a (16x16, row-major) b (16x8, column-major): two-byte operands of type T, fp32 sums.
template <class T> __device__ static inline void mma_16816(float d[4], const uint32_t a[4], const uint32_t b[2]);
template <> __device__ inline void mma_16816<bf16>(float d[4], const uint32_t a[4], const uint32_t b[2]) {
  MMA_16816("bf16.bf16");
}
template <> __device__ inline void mma_16816<fp16>(float d[4], const uint32_t a[4], const uint32_t b[2]) {
  MMA_16816("f16.f16");
}
// Four 8x8 tiles of two-byte elements; lane l gives the address of row l % 8 of tile l / 8.
__device__ static inline void ldmatrix_x4(uint32_t r[4], const void *row) {
  uint32_t p = (uint32_t)__cvta_generic_to_shared(row);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(p) : "memory");
}
__device__ static inline void ldmatrix_x4_trans(uint32_t r[4], const void *row) {
  uint32_t p = (uint32_t)__cvta_generic_to_shared(row);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(p) : "memory");
}
// With ok == false zeros are written and nothing is read.
__device__ static inline void cp_async16(void *to, const void *from, bool ok) {
  uint32_t p = (uint32_t)__cvta_generic_to_shared(to);
  int bytes = ok ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(p), "l"(from), "r"(bytes) : "memory");
}
__device__ static inline void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until all but the N latest groups of this thread have landed.
template <int N> __device__ static inline void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
// WGMMA (PTX ISA, "Asynchronous warpgroup level matrix instructions"): 128 threads, the first a multiple of 128, all
// with the same operands except d and the registers of A. Warp w of the four holds rows 16*w to 16*w + 15 of d, in the
// layout of mma_16816's sums: d[4 n + e] is sum e of the 8 columns from 8 n on. The multiplies are asynchronous:
// between a multiply and a wgmma_wait that covers its group no thread may touch d, A in registers, or the tiles'
// memory. Only code for sm_90a has them: elsewhere a kernel that uses one traps.
// HAS_WGMMA: what is compiled now is code for sm_90a, or emulated.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HAS_WGMMA 1
#define WGMMA_ASM(...) asm volatile(__VA_ARGS__)
#else
#define HAS_WGMMA 0
#define WGMMA_ASM(...) __trap()
#endif
#ifndef BUILT_FOR_SM90A                          // make defines it as 1 if ARCHS has sm_90a
#define BUILT_FOR_SM90A 0
#endif
static inline bool gpu_has_wgmma(const cudaDeviceProp *p) { return BUILT_FOR_SM90A && p->major == 9; }
// Must come before a thread's first multiply, and before a multiply whose d or A this thread has written since the
// last.
__device__ static inline void wgmma_fence() { WGMMA_ASM("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ static inline void wgmma_commit() { WGMMA_ASM("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until all but the N latest groups are done.
template <int N> __device__ static inline void wgmma_wait() {
  WGMMA_ASM("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
// Makes this thread's writes to shared memory (also by completed cp.async) visible to multiplies that start after the
// next barrier. Multiplies read shared memory through another path (the async proxy) than loads.
__device__ static inline void proxy_fence() { WGMMA_ASM("fence.proxy.async.shared::cta;" ::: "memory"); }
// Keeps the compiler from moving what reads or writes d across the wait or the fence beside it.
template <int N> __device__ static inline void wgmma_pin(float *d) {
  UNROLL for (int i = 0; i < N / 2; i++) asm volatile("" : "+f"(d[i])::"memory");
}
// Where a tile is: rows of 128 bytes in groups of eight, of which piece c of 16 bytes of row r is at piece c ^ r % 8
// (the 128-byte swizzle). Groups follow each other (1024 bytes). next_columns: bytes to the tile that has the next 64
// columns, of wgmma_weigh's b with N = 128.
__device__ static inline uint64_t wgmma_tile(const void *p, int next_columns = 16) {
  const uint32_t at = (uint32_t)__cvta_generic_to_shared(p);
  return (uint64_t)((at & 0x3ffff) >> 4) | (uint64_t)(next_columns >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 |
         (uint64_t)1 << 62;
}
#define WGMMA_SUMS_32(how) \
  how(d[0]), how(d[1]), how(d[2]), how(d[3]), how(d[4]), how(d[5]), how(d[6]), how(d[7]), \
  how(d[8]), how(d[9]), how(d[10]), how(d[11]), how(d[12]), how(d[13]), how(d[14]), how(d[15])
#define WGMMA_LIST_32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define WGMMA_SUMS_64(how) \
  how(d[0]), how(d[1]), how(d[2]), how(d[3]), how(d[4]), how(d[5]), how(d[6]), how(d[7]), \
  how(d[8]), how(d[9]), how(d[10]), how(d[11]), how(d[12]), how(d[13]), how(d[14]), how(d[15]), \
  how(d[16]), how(d[17]), how(d[18]), how(d[19]), how(d[20]), how(d[21]), how(d[22]), how(d[23]), \
  how(d[24]), how(d[25]), how(d[26]), how(d[27]), how(d[28]), how(d[29]), how(d[30]), how(d[31])
#define WGMMA_LIST_64 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_SUMS_128(how) \
  how(d[0]), how(d[1]), how(d[2]), how(d[3]), how(d[4]), how(d[5]), how(d[6]), how(d[7]), \
  how(d[8]), how(d[9]), how(d[10]), how(d[11]), how(d[12]), how(d[13]), how(d[14]), how(d[15]), \
  how(d[16]), how(d[17]), how(d[18]), how(d[19]), how(d[20]), how(d[21]), how(d[22]), how(d[23]), \
  how(d[24]), how(d[25]), how(d[26]), how(d[27]), how(d[28]), how(d[29]), how(d[30]), how(d[31]), \
  how(d[32]), how(d[33]), how(d[34]), how(d[35]), how(d[36]), how(d[37]), how(d[38]), how(d[39]), \
  how(d[40]), how(d[41]), how(d[42]), how(d[43]), how(d[44]), how(d[45]), how(d[46]), how(d[47]), \
  how(d[48]), how(d[49]), how(d[50]), how(d[51]), how(d[52]), how(d[53]), how(d[54]), how(d[55]), \
  how(d[56]), how(d[57]), how(d[58]), how(d[59]), how(d[60]), how(d[61]), how(d[62]), how(d[63])
#define WGMMA_LIST_128 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_DOT(N, types, A, B, ADD, how) \
  WGMMA_ASM("{.reg .pred p; setp.ne.b32 p, " ADD ", 0;\n" \
            "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." types " {" WGMMA_LIST_##N "}, %" A ", %" B ", " \
            "p, 1, 1, 0, 0;}" \
            : WGMMA_SUMS_##N(how) : "l"(a), "l"(b))
#define WGMMA_DOT_OR_ADD(N, types, A, B) \
  do { \
    if (add) WGMMA_DOT(N, types, A, B, "1", "+f"); \
    else WGMMA_DOT(N, types, A, B, "0", "=f"); \
  } while (0)
#define WGMMA_WEIGH(N, types, A0, A1, A2, A3, B) \
  WGMMA_ASM("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." types " {" WGMMA_LIST_##N "}, " \
            "{%" A0 ", %" A1 ", %" A2 ", %" A3 "}, %" B ", 1, 1, 1, 1;" \
            : WGMMA_SUMS_##N("+f") : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
// d (64 x N) = A B^T, or += where `add`: A (64 x 16) and B (N x 16) are 16 columns of tiles, row-major.
template <class T, int N> __device__ static inline void wgmma_dot(float *d, uint64_t a, uint64_t b, bool add) {
  static_assert(N == 32 || N == 64 || N == 128, "instances");
  constexpr bool B16 = __is_same(T, bf16);
  if constexpr (N == 32 && B16) WGMMA_DOT_OR_ADD(32, "bf16.bf16", "16", "17");
  else if constexpr (N == 32) WGMMA_DOT_OR_ADD(32, "f16.f16", "16", "17");
  else if constexpr (N == 64 && B16) WGMMA_DOT_OR_ADD(64, "bf16.bf16", "32", "33");
  else if constexpr (N == 64) WGMMA_DOT_OR_ADD(64, "f16.f16", "32", "33");
  else if constexpr (B16) WGMMA_DOT_OR_ADD(128, "bf16.bf16", "64", "65");
  else WGMMA_DOT_OR_ADD(128, "f16.f16", "64", "65");
}
// d (64 x N) += A B: A (64 x 16) from registers, as mma_16816 has it; B is 16 rows of a tile of N columns.
template <class T, int N> __device__ static inline void wgmma_weigh(float *d, const uint32_t a[4], uint64_t b) {
  static_assert(N == 64 || N == 128, "instances");
  constexpr bool B16 = __is_same(T, bf16);
  if constexpr (N == 64 && B16) WGMMA_WEIGH(64, "bf16.bf16", "32", "33", "34", "35", "36");
  else if constexpr (N == 64) WGMMA_WEIGH(64, "f16.f16", "32", "33", "34", "35", "36");
  else if constexpr (B16) WGMMA_WEIGH(128, "bf16.bf16", "64", "65", "66", "67", "68");
  else WGMMA_WEIGH(128, "f16.f16", "64", "65", "66", "67", "68");
}
// A barrier of all threads of a cluster, in two steps: what a thread wrote before it arrived is seen by all that have
// waited. A block may be written into when it has arrived once, for which it needs no fence: cluster_begin. It must not
// end before nobody writes into it any more. Whole warps call these. Code for targets before sm_90 has no clusters,
// also where a later GPU runs it (PTX): there a kernel that asks for one ends in a trap.
__device__ static inline void cluster_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#else
  __trap();
#endif
}
__device__ static inline void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
__device__ static inline void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
// Writes x to the shared memory of block `rank` of the cluster, at the offset of `to` in this block's (8-byte aligned).
__device__ static inline void cluster_store(float2 *to, unsigned rank, float2 x) {
#if __CUDA_ARCH__ >= 900
  uint32_t p = (uint32_t)__cvta_generic_to_shared(to), there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(p), "r"(rank));
  asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(there), "f"(x.x), "f"(x.y) : "memory");
#else
  (void)to, (void)rank, (void)x;
#endif
}
// Two floats rounded to T and packed, with `low` in the low half.
template <class T> __device__ static inline uint32_t pack2(float low, float high);
template <> __device__ inline uint32_t pack2<bf16>(float low, float high) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
template <> __device__ inline uint32_t pack2<fp16>(float low, float high) {
  uint32_t r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
// The inverse, exact.
template <class T> __device__ static inline void unpack2(uint32_t pair, float *low, float *high);
template <> __device__ inline void unpack2<bf16>(uint32_t pair, float *low, float *high) {
  *low = bits_f32(pair << 16);
  *high = bits_f32(pair & 0xffff0000u);
}
template <> __device__ inline void unpack2<fp16>(uint32_t pair, float *low, float *high) {
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
      : "=f"(*low), "=f"(*high) : "r"(pair));
}
// Four floats rounded to fp8 and packed, the first in the lowest byte, as round_to does; and the inverse, exact. sm_89
// and later have instructions for a pair; unpacking goes through fp16, which holds every fp8.
__device__ static inline uint32_t pack4_fp8(const float x[4]) {
#if __CUDA_ARCH__ >= 890
  uint16_t low, high;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(x[1]), "f"(x[0]));
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(x[3]), "f"(x[2]));
  return (uint32_t)low | (uint32_t)high << 16;
#else
  return pack4_fp8_plain(x);
#endif
}
__device__ static inline void unpack4_fp8(uint32_t word, float x[4]) {
#if __CUDA_ARCH__ >= 890
  UNROLL for (int i = 0; i < 4; i += 2) {
    uint32_t pair;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"((uint16_t)(word >> 8 * i)));
    unpack2<fp16>(pair, &x[i], &x[i + 1]);
  }
#else
  unpack4_fp8_plain(word, x);
#endif
}
// Of the GPU, the same for all its SMs; it ticks every 32 ns to 1 us (PTX ISA, %globaltimer).
__device__ static inline int64_t device_clock_ns() {
  int64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns) : : "memory");
  return ns;
}
// A check that the host would do, if the value were not in device memory.
#define DEVICE_CHECK(cond, what) assert((cond) && what)
__device__ static inline float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Libraries that are loaded at run time (cuda_libraries.h); the emulation binds its stand-ins at compile time.
#define LIBRARY_OPEN(file) dlopen(file, RTLD_NOW | RTLD_LOCAL)
#define LIBRARY_BIND(library, f) (decltype(&f))dlsym(library, #f)
#define LIBRARY_EXPORT extern "C"
#else
#define UNROLL                                   // would only make g++ six times slower
#define ROLLED _Pragma("GCC unroll 1")
#define RANGE_BEGIN(name) (void)(name)
#define RANGE_END() (void)0
#define DEVICE_NAME_STREAM(stream, name) emu_name_stream((void *)(stream), name)
#define DEVICE_NAME_EVENT(event, name) emu_name_event((void *)(event), name)
static inline cudaError_t kernel_loads(void (*)(), int *built_for) {
  *built_for = emu_built_for();
  return cudaSuccess;
}
static inline int64_t device_clock_ns() {        // ahead of the host's clock by a day, as real ones have their own zero
  return now_ns() + (int64_t)86400 * 1000000000;
}
static inline void gpu_uuid_bytes(char to[16], int, const cudaDeviceProp *p) { memcpy(to, p->uuid.bytes, 16); }
#define LAUNCH_CLUSTER(kernel, cluster, grid, block, shared_bytes, stream, ...) \
  do { \
    ALLOW_SHARED(kernel, shared_bytes); \
    emu_launch(#kernel, grid, block, cluster, shared_bytes, stream, kernel, __VA_ARGS__); \
    CUDA(cudaGetLastError()); \
  } while (0)
#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
  LAUNCH_CLUSTER(kernel, 1, grid, block, shared_bytes, stream, __VA_ARGS__)
// One array per place in the source, as with nvcc, whichever thread reaches it first.
#define SHARED(T, name, n) \
  static EmuShared name##_place_; \
  T(&name)[n] = *(T(*)[n])emu_shared(&name##_place_, sizeof(T) * (n))
#define SHARED_DYNAMIC(T, name) T *name = (T *)emu_shared_dynamic()
#define SHARED_TILES(name) unsigned char *name = (unsigned char *)emu_shared_tiles()
template <class T> static inline void mma_16816(float d[4], const uint32_t a[4], const uint32_t b[2]) {
  emu_mma_16816(d, a, b, (const T *)NULL);
}
static inline void cluster_begin() { emu_cluster_arrive(); }
static inline void cluster_arrive() { emu_cluster_arrive(); }
static inline void cluster_wait() { emu_cluster_wait(); }
static inline void cluster_store(float2 *to, unsigned rank, float2 x) { *(float2 *)emu_cluster_at(to, rank) = x; }
static inline void ldmatrix_x4(uint32_t r[4], const void *row) { emu_ldmatrix_x4(r, row, false); }
static inline void ldmatrix_x4_trans(uint32_t r[4], const void *row) { emu_ldmatrix_x4(r, row, true); }
static inline void cp_async16(void *to, const void *from, bool ok) { emu_cp_async16(to, from, ok); }
static inline void cp_async_commit() { emu_cp_async_commit(); }
#define HAS_WGMMA 1
static inline bool gpu_has_wgmma(const cudaDeviceProp *p) { return p->major == 9; }
static inline void wgmma_fence() { emu_wgmma_fence(); }
static inline void wgmma_commit() { emu_wgmma_commit(); }
template <int N> static inline void wgmma_wait() { emu_wgmma_wait(N); }
template <int N> static inline void wgmma_pin(float *) {}
static inline void proxy_fence() { emu_proxy_fence(); }
static inline uint64_t wgmma_tile(const void *p, int next_columns = 16) {
  const uint64_t at = (uint64_t)((const char *)p - (const char *)emu_shared_dynamic());
  return at >> 4 | (uint64_t)(next_columns >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}
template <class T, int N> static inline void wgmma_dot(float *d, uint64_t a, uint64_t b, bool add) {
  emu_wgmma<T, N>(d, NULL, a, b, add);
}
template <class T, int N> static inline void wgmma_weigh(float *d, const uint32_t a[4], uint64_t b) {
  emu_wgmma<T, N>(d, a, 0, b, true);
}
template <int N> static inline void cp_async_wait() { emu_cp_async_wait<N>(); }
template <class T> static inline uint32_t pack2(float low, float high) {
  T l, h;
  round_to(&l, low);
  round_to(&h, high);
  return (uint32_t)l.bits | (uint32_t)h.bits << 16;
}
template <class T> static inline void unpack2(uint32_t pair, float *low, float *high) {
  const T l = {(uint16_t)pair}, h = {(uint16_t)(pair >> 16)};
  *low = to_f32(l);
  *high = to_f32(h);
}
static inline uint32_t pack4_fp8(const float x[4]) { return pack4_fp8_plain(x); }
static inline void unpack4_fp8(uint32_t word, float x[4]) { unpack4_fp8_plain(word, x); }
#define DEVICE_CHECK(cond, what) CHECK(cond, "%s", what)
static inline float fast_exp2(float x) { return exp2f(x); }

#define LIBRARY_OPEN(file) ((void)(file), (void *)1)
#define LIBRARY_BIND(library, f) (&f)
#define LIBRARY_EXPORT __attribute__((unused)) static
#endif

// ---- both compilers from here on ------------------------------------------------------------------------------------
static inline void gpu_uuid(char *to, size_t bytes, int index, const cudaDeviceProp *p) {
  char uuid[16];
  gpu_uuid_bytes(uuid, index, p);
  for (size_t i = 0; i < 16 && 2 * i + 3 <= bytes; i++)
    snprintf(to + 2 * i, bytes - 2 * i, "%02x", (unsigned)(unsigned char)uuid[i]);
}
// The tile that starts so many bytes after: one addition, where wgmma_tile takes four operations.
__device__ static inline uint64_t wgmma_step(uint64_t tile, int bytes) {
  return (tile & ~(uint64_t)0xffffffff) | (uint32_t)((uint32_t)tile + (uint32_t)(bytes >> 4));
}
template <class T> struct alignas(16) Pack { T x[16 / sizeof(T)]; };
template <class T> __device__ static inline Pack<T> load_pack(const T *p) { return *(const Pack<T> *)p; }
template <class T> __device__ static inline void store_pack(T *p, Pack<T> v) { *(Pack<T> *)p = v; }
template <class T> static inline bool packs(int64_t columns) { return columns % (16 / (int64_t)sizeof(T)) == 0; }

// Butterflies: every lane gets the same sum, added in the same order.
__device__ static inline float warp_sum(float x) {
  UNROLL for (int d = WARP / 2; d; d /= 2) x += __shfl_xor_sync(FULL_WARP, x, d);
  return x;
}
__device__ static inline float warp_max(float x) {
  UNROLL for (int d = WARP / 2; d; d /= 2) x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, d));
  return x;
}
// Sum over all threads of a block of whole warps, the same in every thread. `scratch`: 32 floats of shared memory,
// which may be overwritten after the next __syncthreads.
__device__ static inline float block_sum(float x, float *scratch) {
  const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP, warps = (int)blockDim.x / WARP;
  x = warp_sum(x);
  if (lane == 0) scratch[warp] = x;
  __syncthreads();
  return warp_sum(lane < warps ? scratch[lane] : 0.0f);
}
