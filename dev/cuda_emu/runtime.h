// runtime.h: launches, copies, and what the emulated devices report about themselves.
#pragma once
#include "graph.h"
#include <tuple>
#include <type_traits>
#include <utility>

enum cudaMemcpyKind {
  cudaMemcpyHostToHost = 0, cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3,
  cudaMemcpyDefault = 4
};
enum cudaDataType_t { CUDA_R_32F = 0, CUDA_R_16F = 2, CUDA_R_16BF = 14, CUDA_R_8F_E4M3 = 28 };
typedef cudaDataType_t cudaDataType;

EMU(cudaError_t) cudaGetLastError() { const cudaError_t e = emu_last_error; emu_last_error = cudaSuccess; return e; }
EMU(cudaError_t) cudaPeekAtLastError() { return emu_last_error; }
EMU(const char *) cudaGetErrorString(cudaError_t e) {
  switch (e) {
#define X(name, number, words) case name: return words;
    EMU_ERRORS(X)
#undef X
  }
  return "unrecognized error code";
}
EMU(const char *) cudaGetErrorName(cudaError_t e) {
  switch (e) {
#define X(name, number, words) case name: return #name;
    EMU_ERRORS(X)
#undef X
  }
  return "unrecognized error code";
}

// ---- launches
enum { EMU_MULTIPROCESSORS = 4 };
enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize = 8, cudaFuncAttributePreferredSharedMemoryCarveout = 9
};
inline std::map<void (*)(), size_t> emu_dynamic_allowed;         // by kernel, where asked for
template <class F> static void (*emu_kernel_key(F *kernel))() { return (void (*)())kernel; }

template <class F> static inline cudaError_t cudaFuncSetAttribute(F *kernel, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value < 0 || (size_t)value > emu_shared_limit_now) return emu_error(cudaErrorInvalidValue);
  emu_dynamic_allowed[emu_kernel_key(kernel)] = (size_t)value;
  return cudaSuccess;
}
template <class P> static inline void emu_check_argument(P p, const char *who) {
  if constexpr (std::is_pointer<P>::value) emu_device_pointer((const void *)p, who);
  else (void)p, (void)who;
}
template <class K, class Args> struct EmuCall {
  K kernel;
  Args args;
  static void run(const void *self) { std::apply(((const EmuCall *)self)->kernel, ((const EmuCall *)self)->args); }
};
EMU(bool) emu_launchable(dim3 grid, dim3 block) {
  if (!grid.x || !grid.y || !grid.z || grid.x > INT_MAX || grid.y > 65535 || grid.z > 65535) return false;
  const uint64_t threads = (uint64_t)block.x * block.y * block.z;
  return threads && threads <= EMU_MAX_THREADS && block.z <= 64;
}
// Clusters of this many blocks in x; 1: none. Blocks of whole warps, because the emulated ones share the warps' table.
EMU(bool) emu_clusters(dim3 grid, dim3 block, unsigned cluster) {
  const unsigned threads = block.x * block.y * block.z;
  return cluster == 1 || (emu_capability_now >= 90 && cluster <= EMU_MAX_CLUSTER && grid.x % cluster == 0 &&
                          threads % 32 == 0 && threads * cluster <= EMU_MAX_THREADS);
}
// kernel<<<grid, block, dynamic_bytes, stream>>>(args...); an impossible launch is an error as in CUDA.
template <class... P, class... A>
static inline void emu_launch(const char *name, dim3 grid, dim3 block, unsigned cluster, size_t dynamic_bytes,
                              cudaStream_t stream, void (*kernel)(P...), A... args) {
  static_assert((sizeof(P) + ... + 0) <= 4096, "kernels take 4 KiB of arguments");
  if (!emu_launchable(grid, block) || !emu_clusters(grid, block, cluster)) {
    emu_error(cudaErrorInvalidConfiguration);
    return;
  }
  auto allowed = emu_dynamic_allowed.find(emu_kernel_key(kernel));
  const EmuDynamic dynamic = {dynamic_bytes, allowed == emu_dynamic_allowed.end() ? 0 : allowed->second};
  if (dynamic_bytes > (dynamic.asked ? dynamic.asked : EMU_STATIC_LIMIT)) {    // with static bytes: emu_shared
    emu_error(cudaErrorInvalidValue);
    return;
  }
  (emu_check_argument(args, name), ...);
  typedef std::tuple<P...> Args;
  const EmuCall<void (*)(P...), Args> call = {kernel, Args(args...)};
  emu_push(stream, name, [=] {
    emu_count.kernels++;
    emu_open_arguments(&call.args, sizeof call.args);
    emu_run_grid(grid, block, cluster, dynamic, {call.run, &call});
    return true;
  });
}

// ---- memory
EMU(cudaError_t) cudaMalloc(void **p, size_t bytes) {
  *p = NULL;
  if (emu_capture_forbids()) return emu_error(cudaErrorStreamCaptureUnsupported);
  return emu_error(!bytes || emu_device_alloc(p, bytes) ? cudaSuccess : cudaErrorMemoryAllocation);
}
template <class T> static inline cudaError_t cudaMalloc(T **p, size_t bytes) { return cudaMalloc((void **)p, bytes); }
EMU(cudaError_t) cudaFree(void *p) {             // waits for everything, as in CUDA
  if (emu_capture_forbids()) return emu_error(cudaErrorStreamCaptureUnsupported);
  emu_drain(emu_all_empty);
  return emu_error(!p || emu_device_free(p) ? cudaSuccess : cudaErrorInvalidValue);
}
enum { cudaHostAllocDefault = 0, cudaHostAllocPortable = 1, cudaHostAllocMapped = 2 };
enum { cudaHostRegisterDefault = 0, cudaHostRegisterPortable = 1, cudaHostRegisterMapped = 2 };
EMU(cudaError_t) cudaHostAlloc(void **p, size_t bytes, unsigned) {
  *p = NULL;
  if (emu_capture_forbids()) return emu_error(cudaErrorStreamCaptureUnsupported);
  if (!bytes) return cudaSuccess;
  void *data = mmap(NULL, emu_round(bytes, EMU_PAGE), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return emu_error(cudaErrorMemoryAllocation);
  memset(data, 0xff, bytes);
  emu_pin(data, bytes);
  *p = data;
  return cudaSuccess;
}
EMU(cudaError_t) cudaMallocHost(void **p, size_t bytes) { return cudaHostAlloc(p, bytes, cudaHostAllocDefault); }
EMU(cudaError_t) cudaHostRegister(void *p, size_t bytes, unsigned) {
  if (emu_capture_forbids()) return emu_error(cudaErrorStreamCaptureUnsupported);
  if (!p || !bytes) return emu_error(cudaErrorInvalidValue);
  return emu_error(emu_pin(p, bytes) ? cudaSuccess : cudaErrorHostMemoryAlreadyRegistered);
}
EMU(cudaError_t) cudaHostUnregister(void *p) {
  if (emu_capture_forbids()) return emu_error(cudaErrorStreamCaptureUnsupported);
  emu_drain(emu_all_empty);
  return emu_error(emu_pinned_memory.erase((const char *)p) ? cudaSuccess : cudaErrorHostMemoryNotRegistered);
}
EMU(cudaError_t) cudaFreeHost(void *p) {
  if (emu_capture_forbids()) return emu_error(cudaErrorStreamCaptureUnsupported);
  emu_drain(emu_all_empty);
  auto found = emu_pinned_memory.find((const char *)p);
  if (p && found == emu_pinned_memory.end()) return emu_error(cudaErrorInvalidValue);
  if (p) { munmap(p, emu_round(found->second.bytes, EMU_PAGE)); emu_pinned_memory.erase(found); }
  return cudaSuccess;
}
EMU(cudaError_t) cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
  *total_bytes = emu_device_bytes_now;
  *free_bytes = emu_device_bytes_now - std::min(emu_device_bytes_now, emu_device_bytes_used + emu_cached_bytes);
  return cudaSuccess;
}

// ---- copies
EMU(bool) emu_kind_fits(cudaMemcpyKind kind, EmuPlace to, EmuPlace from) {
  if (kind == cudaMemcpyDefault) return true;
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  return (to == EMU_ON_DEVICE) == to_device && (from == EMU_ON_DEVICE) == from_device;
}
EMU(void) emu_copy(void *to, const void *from, size_t bytes) {
  const void *arguments[] = {to, from};
  emu_count.copies++;
  emu_open_arguments(arguments, sizeof arguments);
  memmove(to, from, bytes);
}
// Pinned memory is read and written when the stream reaches the copy. Pageable memory is read, and written, before the
// call returns ("API synchronization behavior").
EMU(cudaError_t) cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  EmuStream *s = emu_stream(stream);
  if (!bytes) return cudaSuccess;
  const EmuPlace target = emu_place(to, bytes, "cudaMemcpyAsync"), source = emu_place(from, bytes, "cudaMemcpyAsync");
  if (!emu_kind_fits(kind, target, source)) return emu_error(cudaErrorInvalidValue);
  if (s->capture && (target == EMU_PAGEABLE || source == EMU_PAGEABLE))
    return emu_spoil(cudaErrorStreamCaptureUnsupported);
  if (source == EMU_PAGEABLE) {
    auto staged = std::make_shared<std::string>((const char *)from, bytes);
    emu_push(s, "copy", [=] { emu_copy(to, staged->data(), bytes); return true; });
  } else {
    emu_push(s, "copy", [=] { emu_copy(to, from, bytes); return true; });
  }
  return target == EMU_PAGEABLE ? cudaStreamSynchronize(s) : cudaSuccess;
}
EMU(cudaError_t) cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
  if (!bytes) return cudaSuccess;
  if (emu_place(to, bytes, "cudaMemsetAsync") == EMU_PAGEABLE) return emu_error(cudaErrorInvalidValue);
  emu_push(stream, "memset", [=] {
    emu_open(emu_find(emu_device_memory, to));
    memset(to, value, bytes);
    return true;
  });
  return cudaSuccess;
}

// ---- devices
struct cudaUUID_t { char bytes[16]; };
struct cudaDeviceProp {
  char name[256];
  cudaUUID_t uuid;
  size_t totalGlobalMem, sharedMemPerBlock, sharedMemPerBlockOptin, sharedMemPerMultiprocessor;
  int major, minor, multiProcessorCount, warpSize, maxThreadsPerBlock, maxThreadsPerMultiProcessor, regsPerBlock;
  int l2CacheSize, memoryBusWidth, ECCEnabled, integrated, pciBusID, pciDeviceID, pciDomainID;
};
enum cudaDeviceAttr {
  cudaDevAttrMaxThreadsPerBlock = 1, cudaDevAttrWarpSize = 10, cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrL2CacheSize = 38, cudaDevAttrComputeCapabilityMajor = 75, cudaDevAttrComputeCapabilityMinor = 76,
  cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81, cudaDevAttrMaxSharedMemoryPerBlockOptin = 97
};
inline int emu_devices_now = getenv("EMU_DEVICES") ? atoi(getenv("EMU_DEVICES")) : 8;
inline int emu_device_current, emu_instances_now = 1;

EMU(cudaError_t) cudaGetDeviceCount(int *n) {
  if (!emu_devices_now) return emu_error(cudaErrorNoDevice);
  *n = emu_devices_now;
  return cudaSuccess;
}
EMU(bool) emu_is_device(int i) { return i >= 0 && i < emu_devices_now; }
EMU(cudaError_t) cudaSetDevice(int i) {
  if (!emu_is_device(i)) return emu_error(cudaErrorInvalidDevice);
  emu_device_current = i;
  return cudaSuccess;
}
EMU(cudaError_t) cudaGetDevice(int *i) { *i = emu_device_current; return cudaSuccess; }
EMU(cudaError_t) cudaDriverGetVersion(int *version) { *version = 13000; return cudaSuccess; }
EMU(cudaError_t) cudaRuntimeGetVersion(int *version) { *version = 13000; return cudaSuccess; }
EMU(cudaError_t) cudaDeviceGetPCIBusId(char *to, int bytes, int i) {
  if (!emu_is_device(i)) return emu_error(cudaErrorInvalidDevice);
  snprintf(to, (size_t)bytes, "0000:%02x:00.0", i / emu_instances_now + 1);
  return cudaSuccess;
}
EMU(cudaError_t) cudaGetDeviceProperties(cudaDeviceProp *p, int i) {
  if (!emu_is_device(i)) return emu_error(cudaErrorInvalidDevice);
  *p = {};
  snprintf(p->name, sizeof p->name, "emulated");
  p->totalGlobalMem = emu_device_bytes_now;
  p->sharedMemPerBlock = EMU_STATIC_LIMIT;
  p->sharedMemPerBlockOptin = emu_shared_limit_now;
  p->sharedMemPerMultiprocessor = emu_shared_limit_now + 1024;
  p->major = emu_capability_now / 10;
  p->minor = emu_capability_now % 10;
  p->multiProcessorCount = EMU_MULTIPROCESSORS;
  p->integrated = emu_cached_bytes > 0;
  p->warpSize = 32;
  p->maxThreadsPerBlock = EMU_MAX_THREADS;
  p->maxThreadsPerMultiProcessor = 2048;
  p->regsPerBlock = 64 << 10;
  p->l2CacheSize = 4 << 20;
  p->memoryBusWidth = 384;
  p->ECCEnabled = 1;
  p->pciBusID = i / emu_instances_now + 1;
  snprintf(p->uuid.bytes, sizeof p->uuid.bytes, "emulated %d", i % 1000);
  return cudaSuccess;
}
EMU(cudaError_t) cudaDeviceGetAttribute(int *value, cudaDeviceAttr what, int i) {
  cudaDeviceProp p;
  const cudaError_t e = cudaGetDeviceProperties(&p, i);
  if (e != cudaSuccess) return e;
  switch (what) {
    case cudaDevAttrMaxThreadsPerBlock: *value = p.maxThreadsPerBlock; break;
    case cudaDevAttrWarpSize: *value = p.warpSize; break;
    case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
    case cudaDevAttrL2CacheSize: *value = p.l2CacheSize; break;
    case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = p.minor; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = (int)p.sharedMemPerMultiprocessor; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)p.sharedMemPerBlockOptin; break;
  }
  return cudaSuccess;
}
