// cuda.cu: the CUDA device: its calls (probe, memory, streams, events, graphs), the CUDA part of every op, and the
// table of both. nvcc compiles it for real GPUs, family by family (all.h; what is here is family `device`), g++ with
// dev/cuda_emu for emulated ones, whole.
//
// Conventions
//   - everything is queued on the stream of the Ctx and nothing here waits, except sync, memory_alloc and the calls
//     that open or close something.
//   - a failed call ends the program with one line. Kernel errors appear at a later call: the message of sync says how
//     to find the kernel.
#define PART_CUDA 1
#include "kernels/ops.h"
#include "kernels/all.h"

#if FAMILY(device)
#include "nvidia.h"
#include "cuda_libraries.h"
#include "cuda_device.h"
#include "kernels/workspace.h"
#include "collectives.cuh"
#include "probe.cuh"

#ifndef CUDA_TABLE
#define CUDA_TABLE ops_cuda
#define CUDA_TABLE_NAME "cuda"
#endif

// ---- probe ----------------------------------------------------------------------------------------------------------
__attribute__((format(printf, 3, 4))) static void probe_note(char *line, size_t bytes, const char *fmt, ...) {
  const size_t used = strlen(line);
  va_list ap;
  va_start(ap, fmt);
  if (used + 3 < bytes) {
    if (used) strcat(line, "; ");
    vsnprintf(line + strlen(line), bytes - strlen(line), fmt, ap);
  }
  va_end(ap);
}

static void probe_device(DeviceInfo *d, int index) {
  cudaDeviceProp prop;
  memset(&prop, 0, sizeof prop);
  CUDA(cudaGetDeviceProperties(&prop, index));
  snprintf(d->name, sizeof d->name, "%.*s", (int)sizeof d->name - 1, prop.name);
  CUDA(cudaDeviceGetPCIBusId(d->bus_id, (int)sizeof d->bus_id, index));
  d->major = prop.major;
  d->minor = prop.minor;
  d->wgmma = gpu_has_wgmma(&prop);
  d->integrated = prop.integrated;
  gpu_uuid(d->uuid, sizeof d->uuid, index, &prop);
  d->sms = prop.multiProcessorCount;
  d->memory_bytes = prop.totalGlobalMem;
  const GpuPeak peak = gpu_peak(prop.name);
  d->peak_flops[F32] = peak.fp32;
  d->peak_flops[BF16] = d->peak_flops[F16] = peak.half;
  d->peak_tf32_flops = peak.tf32;
}

// Fills p->device, or says in p->missing why no device can be used.
static void probe_devices(DeviceProbe *p) {
  char found[32], built[32];
  const size_t room = sizeof p->missing;
  int count = 0;                                 // cudaGetDeviceCount does not set it when it fails
  const cudaError_t e = cudaGetDeviceCount(&count);
  cudaGetLastError();
  version_text(VERSION_CUDA, p->driver, found, sizeof found);
  version_text(VERSION_CUDA, p->runtime, built, sizeof built);
  if (!p->driver) {
    probe_note(p->missing, room, "no NVIDIA driver (libcuda.so.1 was not found; nvidia-smi should list a GPU)");
  } else if (e == cudaErrorInsufficientDriver) {
    probe_note(p->missing, room, "the NVIDIA driver is too old: it serves CUDA %s, this program was built with %s",
               found, built);
  } else if (e == cudaErrorNoDevice || (e == cudaSuccess && !count)) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    probe_note(p->missing, room, "no GPU (the driver, for CUDA %s, shows none%s%.64s%s)", found,
               visible ? "; CUDA_VISIBLE_DEVICES=\"" : "", visible ? visible : "", visible ? "\"" : "");
  } else if (e != cudaSuccess) {
    probe_note(p->missing, room, "no usable GPU (driver for CUDA %s: %s, %s)", found, cudaGetErrorName(e),
               cudaGetErrorString(e));
  }
  if (p->missing[0]) return;
  int fit = 0;
  p->devices = count < MAX_DEVICES ? count : MAX_DEVICES;
  for (int i = 0; i < p->devices; i++) {
    probe_device(&p->device[i], i);
    fit += p->device[i].major >= NEEDED_MAJOR;
  }
  const DeviceInfo *d = &p->device[0];
  if (!fit)
    probe_note(p->missing, room, "no GPU of compute capability %d.0 or later (%s has %d.%d)", NEEDED_MAJOR,
               d->name, d->major, d->minor);
}

void device_probe_impl(Ctx *, DeviceProbe *p) {
  char text[4][32];
  Error why = {};
  memset(p, 0, sizeof *p);
  if (cudaDriverGetVersion(&p->driver) != cudaSuccess) p->driver = 0;
  if (cudaRuntimeGetVersion(&p->runtime) != cudaSuccess) p->runtime = 0;
  probe_devices(p);
  if (const CublasLt *lt = cublaslt_open(&why)) p->cublaslt = (int)lt->cublasLtGetVersion();
  else probe_note(p->missing, sizeof p->missing, "libcublasLt: %s", why.text);
  if (const Nccl *nc = nccl_open(&why)) nc->ncclGetVersion(&p->nccl);
  else probe_note(p->nccl_missing, sizeof p->nccl_missing, "libnccl: %s", why.text);
  version_text(VERSION_CUDA, p->driver, text[0], sizeof text[0]);
  version_text(VERSION_CUDA, p->runtime, text[1], sizeof text[1]);
  version_text(VERSION_CUBLASLT, p->cublaslt, text[2], sizeof text[2]);
  version_text(VERSION_NCCL, p->nccl, text[3], sizeof text[3]);
  for (char *line : {p->missing, p->nccl_missing})
    if (line[0])
      probe_note(line, sizeof p->missing, "versions: driver %s, runtime %s, cublasLt %s, NCCL %s", text[0], text[1],
                 text[2], text[3]);
}

// ---- the device and its memory --------------------------------------------------------------------------------------
__global__ static void nothing_kernel() {}

void device_open_impl(Ctx *c, int index) {
  cudaDeviceProp prop;
  memset(&prop, 0, sizeof prop);
  CUDA(cudaGetDeviceProperties(&prop, index));
  if (prop.major < NEEDED_MAJOR)
    die_missing("GPU %d, %s, has compute capability %d.%d; %d.0 or later is needed", index, prop.name, prop.major,
                prop.minor, NEEDED_MAJOR);
  cudaError_t e = cudaSetDevice(index);
  if (e != cudaSuccess)
    die_missing("GPU %d, %s, cannot be opened: %s, %s (in exclusive use by another process?)", index, prop.name,
                cudaGetErrorName(e), cudaGetErrorString(e));
  int built_for = 0;
  e = kernel_loads(nothing_kernel, &built_for);
  if (e != cudaSuccess)
    die_missing("GPU %d, %s: %s, %s: this program was built for other GPUs; build it on this machine, or with "
                "make ARCHS=\"-gencode arch=compute_%d%d%s,code=sm_%d%d%s\"", index, prop.name, cudaGetErrorName(e),
                cudaGetErrorString(e), prop.major, prop.minor, prop.major == 9 ? "a" : "", prop.major, prop.minor,
                prop.major == 9 ? "a" : "");
  CudaDevice *d = (CudaDevice *)calloc(1, sizeof(CudaDevice));
  CHECK(d, "no memory for the handles of GPU %d", index);
  d->index = index;
  d->major = prop.major;
  d->minor = prop.minor;
  d->sms = prop.multiProcessorCount;
  d->clusters = prop.major >= 9 && built_for >= 90;
  d->integrated = prop.integrated;
  d->wgmma = gpu_has_wgmma(&prop);
  d->shared_most = prop.sharedMemPerBlockOptin;
  d->shared_all = prop.sharedMemPerMultiprocessor;
  c->device = d;
  size_t before, after, total;                   // the context is there, and in nobody's account but the driver's
  CUDA(cudaMemGetInfo(&before, &total));
  cudaStream_t stream;
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  c->stream = (void *)stream;
  DEVICE_NAME_STREAM(stream, "compute");
  matmul_open(c);
  CUDA(cudaMemGetInfo(&after, &total));
  d->opened_bytes = before > after ? before - after : 0;
}
void device_close_impl(Ctx *c) {
  CUDA(cudaStreamSynchronize(STREAM(c)));
  matmul_close(c);
  CUDA(cudaStreamDestroy(STREAM(c)));
  free(c->device);
  c->stream = c->device = NULL;
}

void workspace_bytes_impl(Ctx *c, WorkspaceQuery q, size_t *bytes) {
  *bytes = cuda_workspace_bytes(DEVICE(c)->major, q);
}

// *p is NULL if there is not enough memory. The host waits for the zeroing, so that other streams may use the memory at
// once.
void memory_alloc_impl(Ctx *c, void **p, size_t bytes, MemoryKind kind) {
  *p = NULL;
  if (!bytes) return;
  const cudaError_t e = kind == MEMORY_PINNED ? cudaMallocHost(p, bytes) : cudaMalloc(p, bytes);
  if (e == cudaErrorMemoryAllocation) {
    cudaGetLastError();                          // or the next launch would report it
    *p = NULL;
    return;
  }
  CHECK(e == cudaSuccess, "%zu bytes of %s memory: %s, %s", bytes, kind == MEMORY_PINNED ? "pinned" : "device",
        cudaGetErrorName(e), cudaGetErrorString(e));
  if (kind == MEMORY_PINNED) {
    memset(*p, 0, bytes);
  } else {
    CUDA(cudaMemsetAsync(*p, 0, bytes, STREAM(c)));
    CUDA(cudaStreamSynchronize(STREAM(c)));
  }
}
void memory_free_impl(Ctx *, void *p, size_t, MemoryKind kind) {
  if (!p) return;
  if (kind == MEMORY_PINNED) CUDA(cudaFreeHost(p));
  else CUDA(cudaFree(p));
}
void memory_pin_impl(Ctx *, void *p, size_t bytes) {
  const cudaError_t e = cudaHostRegister(p, bytes, cudaHostRegisterPortable);
  if (e != cudaSuccess)
    die_missing("%zu bytes of host memory cannot be pinned: %s, %s (see ulimit -l, and the container's memory limit)",
                bytes, cudaGetErrorName(e), cudaGetErrorString(e));
}
void memory_unpin_impl(Ctx *, void *p) { CUDA(cudaHostUnregister(p)); }
static size_t host_memory_available() {
  FILE *f = fopen("/proc/meminfo", "r");
  char line[128];
  size_t kb = 0;
  while (f && !kb && fgets(line, sizeof line, f)) sscanf(line, "MemAvailable: %zu", &kb);
  if (f) fclose(f);
  return kb * 1024;
}
// Where the GPU's memory is the host's, the driver's number leaves out what the kernel's page cache holds and gives
// back when it is asked for (GB10: "Known Issues" of the DGX Spark's user guide).
void memory_left_impl(Ctx *c, size_t *free_bytes, size_t *total_bytes) {
  CUDA(cudaMemGetInfo(free_bytes, total_bytes));
  if (!DEVICE(c)->integrated) return;
  const size_t host = host_memory_available();
  if (host > *free_bytes) *free_bytes = host < *total_bytes ? host : *total_bytes;
}
void memory_opened_impl(Ctx *c, size_t *bytes) { *bytes = DEVICE(c)->opened_bytes; }

// The pointer's address tells which side it is on. Host memory that is not pinned is copied through a buffer of the
// driver: correct, but the host waits.
void copy_impl(Ctx *c, void *to, const void *from, size_t bytes) {
  if (bytes) CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, STREAM(c)));
}
void zero_impl(Ctx *c, void *to, size_t bytes) {
  if (bytes) CUDA(cudaMemsetAsync(to, 0, bytes, STREAM(c)));
}

// ---- streams and events ---------------------------------------------------------------------------------------------
void sync_impl(Ctx *c) {
  const cudaError_t e = cudaStreamSynchronize(STREAM(c));
  CHECK(e == cudaSuccess, "the GPU reports %s, %s, for work queued earlier. CUDA_LAUNCH_BLOCKING=1 reports it at the "
        "kernel's launch, compute-sanitizer at the access", cudaGetErrorName(e), cudaGetErrorString(e));
}

// The highest priority: its copies and collectives are short and others wait for them, so they must not queue behind
// the blocks of a long GEMM.
void side_open_impl(Ctx *c, Ctx *side, const char *name) {
  int lowest = 0, highest = 0;
  cudaStream_t stream;
  CUDA(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  CUDA(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, highest));
  DEVICE_NAME_STREAM(stream, name);
  *side = *c;
  side->stream = (void *)stream;
  side->workspace = NULL;
  side->workspace_bytes = 0;
}
void side_close_impl(Ctx *side) {
  CUDA(cudaStreamSynchronize(STREAM(side)));
  CUDA(cudaStreamDestroy(STREAM(side)));
  side->stream = NULL;
}

void event_open_impl(Ctx *, void **event, const char *name) {
  cudaEvent_t e;
  CUDA(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
  DEVICE_NAME_EVENT(e, name);
  *event = (void *)e;
}
void event_close_impl(Ctx *, void *event) { CUDA(cudaEventDestroy((cudaEvent_t)event)); }
void event_record_impl(Ctx *c, void *event) { CUDA(cudaEventRecord((cudaEvent_t)event, STREAM(c))); }
void event_wait_impl(Ctx *c, void *event) { CUDA(cudaStreamWaitEvent(STREAM(c), (cudaEvent_t)event, 0)); }
void event_done_impl(Ctx *, void *event, bool *done) {
  const cudaError_t e = cudaEventQuery((cudaEvent_t)event);
  if (e == cudaErrorNotReady) cudaGetLastError();                // no error, but the next launch would report it
  else CHECK(e == cudaSuccess, "the GPU reports %s, %s, for work queued earlier", cudaGetErrorName(e),
             cudaGetErrorString(e));
  *done = e == cudaSuccess;
}

__global__ static void mark_kernel(uint32_t *to, uint32_t value) { *(volatile uint32_t *)to = value; }
void mark_impl(Ctx *c, uint32_t *to, uint32_t value) { LAUNCH(mark_kernel, 1, 1, 0, STREAM(c), to, value); }

// A kernel that reads %globaltimer works alike eagerly and in a replayed graph, on every stream, and one clock serves
// all streams. Events that cudaEventRecordExternal captures would tell the same by cudaEventElapsedTime, but only
// differences to an event that was recorded outside, and each would be created, kept and asked for by the host.
__global__ static void stamp_kernel(int64_t *to) { *(volatile int64_t *)to = device_clock_ns(); }
void stamp_impl(Ctx *c, int64_t *to) { LAUNCH(stamp_kernel, 1, 1, 0, STREAM(c), to); }

// ---- graphs ---------------------------------------------------------------------------------------------------------
// Thread-local capture: calls that cannot be captured are errors on this thread, where they would be our bug. They
// remain allowed on the threads of NCCL and MPI, which allocate and query events at any time.
void graph_begin_impl(Ctx *c) { CUDA(cudaStreamBeginCapture(STREAM(c), cudaStreamCaptureModeThreadLocal)); }
// Node priorities: without the flag every node would get the priority of the stream that the graph is launched into,
// and the collectives of side streams would lose theirs.
void graph_end_impl(Ctx *c, void **to) {
  cudaGraph_t graph = NULL;
  cudaGraphExec_t graph_exec = NULL;
  const cudaError_t e = cudaStreamEndCapture(STREAM(c), &graph);
  CHECK(e == cudaSuccess, "the step cannot be captured as a graph: %s, %s; --graph off runs it without",
        cudaGetErrorName(e), cudaGetErrorString(e));
  CUDA(cudaGraphInstantiateWithFlags(&graph_exec, graph, cudaGraphInstantiateFlagUseNodePriority));
  CUDA(cudaGraphDestroy(graph));
  CUDA(cudaGraphUpload(graph_exec, STREAM(c)));
  *to = (void *)graph_exec;
}
void graph_launch_impl(Ctx *c, void *graph) { CUDA(cudaGraphLaunch((cudaGraphExec_t)graph, STREAM(c))); }
void graph_close_impl(Ctx *, void *graph) { CUDA(cudaGraphExecDestroy((cudaGraphExec_t)graph)); }

void range_begin_impl(Ctx *, const char *name) { RANGE_BEGIN(name); }
void range_end_impl(Ctx *) { RANGE_END(); }

const Ops CUDA_TABLE = OPS_TABLE(CUDA_TABLE_NAME, &collectives);
#endif
