// selftest.h: small CUDA programs, most of them wrong, that show what the emulation detects. dev/test/test_emulation.h
// runs them by number (emu.h), each in a separate process, because the emulation ends the process where a GPU would
// continue with wrong numbers.
#pragma once
#include "kernels/cuda/gpu.h"
#include "emu.h"

// ---- a device of one or two streams
static const int SELF_N = 256;
struct SelfTest {
  cudaStream_t stream, side;
  float *device, *other, host[SELF_N];
};
static SelfTest self_open() {
  SelfTest t = {};
  CUDA(cudaStreamCreateWithFlags(&t.stream, cudaStreamNonBlocking));
  CUDA(cudaStreamCreateWithPriority(&t.side, cudaStreamNonBlocking, -5));
  DEVICE_NAME_STREAM(t.stream, "compute");
  DEVICE_NAME_STREAM(t.side, "side");
  CUDA(cudaMalloc(&t.device, sizeof t.host));
  CUDA(cudaMalloc(&t.other, sizeof t.host));
  return t;
}
static const float *self_read(SelfTest *t, const float *from) {
  CUDA(cudaMemcpyAsync(t->host, from, sizeof t->host, cudaMemcpyDeviceToHost, t->stream));
  CUDA(cudaStreamSynchronize(t->stream));
  return t->host;
}
static cudaEvent_t self_event(const char *name) {
  cudaEvent_t e;
  CUDA(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
  DEVICE_NAME_EVENT(e, name);
  return e;
}
static bool self_all(SelfTest *t, const float *from, float want) {
  const float *x = self_read(t, from);
  for (int i = 0; i < SELF_N; i++) if (x[i] != want) return false;
  return true;
}

// ---- threads of a block
__global__ static void self_write_kernel(float *out, int64_t at, float value) { out[at + threadIdx.x] = value; }

// Each thread writes one element and reads that of the thread before it, in the block or, with within == WARP, in the
// warp. Only blocks whose lanes run downwards show that a barrier is missing inside a warp; there are enough such
// blocks.
__global__ static void self_neighbour_kernel(float *out, int within, bool barrier) {
  SHARED(float, x, SELF_N);
  const int i = (int)threadIdx.x;
  x[i] = 1.0f;
  if (barrier && within == WARP) __syncwarp();
  if (barrier && within != WARP) __syncthreads();
  const float before = i % within ? x[i - 1] : 1.0f;
  if (!(before == 1.0f)) out[i] = before;
}
static bool self_neighbours(int within, bool barrier) {
  SelfTest t = self_open();
  LAUNCH(self_write_kernel, 1, SELF_N, 0, t.stream, t.device, (int64_t)0, 1.0f);
  LAUNCH(self_neighbour_kernel, 20, SELF_N, 0, t.stream, t.device, within, barrier);
  return self_all(&t, t.device, 1.0f);
}
static bool self_barriers() { return self_neighbours(SELF_N, true) && self_neighbours(WARP, true); }
static bool self_missing_syncthreads() { return !self_neighbours(SELF_N, false); }
static bool self_missing_syncwarp() { return !self_neighbours(WARP, false); }

__global__ static void self_sums_kernel(float *out) {
  SHARED(float, scratch, WARP);
  const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
  const float block = block_sum((float)(threadIdx.x + 1), scratch), most = warp_max((float)(threadIdx.x % WARP));
  const double down = __shfl_down_sync(FULL_WARP, (double)threadIdx.x, 1);
  const unsigned odd = __ballot_sync(FULL_WARP, threadIdx.x & 1);
  int half = (int)threadIdx.x;                   // half warps shuffle separately
  half = threadIdx.x & 16 ? __shfl_sync(0xffff0000u, half, 31) : __shfl_sync(0xffffu, half, 3);
  bool right = block == (float)(blockDim.x * (blockDim.x + 1) / 2) && most == 31.0f && odd == 0xaaaaaaaau;
  right = right && down == (double)(threadIdx.x % WARP == 31 ? threadIdx.x : threadIdx.x + 1);
  right = right && half == (int)(threadIdx.x / WARP * WARP) + (threadIdx.x & 16 ? 31 : 3);
  right = right && __any_sync(FULL_WARP, threadIdx.x % WARP == 7) && !__all_sync(FULL_WARP, threadIdx.x % WARP == 7);
  right = right && __syncthreads_count(threadIdx.x < 5) == 5;
  out[i] = right;
}
static bool self_sums() {
  SelfTest t = self_open();
  LAUNCH(self_sums_kernel, SELF_N / 64, 64, 0, t.stream, t.device);
  return self_all(&t, t.device, 1.0f);
}
__global__ static void self_atomics_kernel(int *count, float *sum, unsigned *most, unsigned long long *bits) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  atomicAdd(count, 1);
  atomicAdd(sum, 0.5f);
  atomicMax(most, i);
  atomicOr(bits, 1ull << i % 64);
}
static bool self_atomics() {
  SelfTest t = self_open();
  struct { unsigned long long bits; int count; float sum; unsigned most; } host = {}, *device;
  CUDA(cudaMalloc(&device, sizeof host));
  CUDA(cudaMemsetAsync(device, 0, sizeof host, t.stream));
  LAUNCH(self_atomics_kernel, 7, 96, 0, t.stream, &device->count, &device->sum, &device->most, &device->bits);
  CUDA(cudaMemcpyAsync(&host, device, sizeof host, cudaMemcpyDefault, t.stream));
  return host.count == 672 && host.sum == 336.0f && host.most == 671 && host.bits == ~0ull;
}
__global__ static void self_barrier_divergence_kernel(float *out) {
  if (threadIdx.x < 40) __syncthreads();
  out[threadIdx.x] = 0.0f;
}
static bool self_barrier_divergence() {
  SelfTest t = self_open();
  LAUNCH(self_barrier_divergence_kernel, 1, 64, 0, t.stream, t.device);
  return self_all(&t, t.device, 0.0f);
}
__global__ static void self_warp_divergence_kernel(float *out) {
  float x = 1.0f;
  if (threadIdx.x < 8) x = __shfl_xor_sync(FULL_WARP, x, 1);
  else __syncwarp();
  out[threadIdx.x] = x;
}
static bool self_warp_divergence() {
  SelfTest t = self_open();
  LAUNCH(self_warp_divergence_kernel, 1, 32, 0, t.stream, t.device);
  return self_all(&t, t.device, 1.0f);
}
__global__ static void self_absent_lane_kernel(float *out) {
  if (threadIdx.x < 16) out[threadIdx.x] = __shfl_sync(0xffffu, 1.0f, 20);
}
static bool self_absent_lane() {
  SelfTest t = self_open();
  LAUNCH(self_absent_lane_kernel, 1, 32, 0, t.stream, t.device);
  return isnan(self_read(&t, t.device)[3]);
}

// ---- tensor cores and asynchronous copies
// One 16x8 multiply from shared memory, as in kernels: a by ldmatrix, b (k by n, row-major) by ldmatrix.trans.
template <class T> __global__ static void self_mma_kernel(float *out, const T *a, const T *b, int shift) {
  SHARED(T, s, 16 * 16 + 16 * 8 + 8);
  const int lane = (int)threadIdx.x;
  uint32_t fa[4], fb[4];
  float d[4] = {1.0f, 1.0f, 1.0f, 1.0f};
  for (int i = lane; i < 16 * 16; i += WARP) s[i] = a[i];
  for (int i = lane; i < 16 * 8; i += WARP) s[16 * 16 + i] = b[i];
  __syncwarp();
  ldmatrix_x4(fa, s + shift + lane % 16 * 16 + lane / 16 * 8);
  ldmatrix_x4_trans(fb, s + 16 * 16 + lane % 16 * 8);              // tiles 2 and 3 repeat 0 and 1
  mma_16816<T>(d, fa, fb);
  for (int r = 0; r < 4; r++) out[(lane / 4 + r / 2 * 8) * 8 + lane % 4 * 2 + r % 2] = d[r];
}
template <class T> static bool self_mma_of(int shift) {
  SelfTest t = self_open();
  T a[16 * 16], b[16 * 8], *da, *db;
  for (int i = 0; i < 16 * 16; i++) round_to(&a[i], (float)(i * 7 % 23 - 11) / 8.0f);
  for (int i = 0; i < 16 * 8; i++) round_to(&b[i], (float)(i * 5 % 19 - 9) / 4.0f);
  CUDA(cudaMalloc(&da, sizeof a));
  CUDA(cudaMalloc(&db, sizeof b));
  CUDA(cudaMemcpyAsync(da, a, sizeof a, cudaMemcpyHostToDevice, t.stream));
  CUDA(cudaMemcpyAsync(db, b, sizeof b, cudaMemcpyHostToDevice, t.stream));
  LAUNCH(self_mma_kernel<T>, 1, WARP, 0, t.stream, t.device, da, db, shift);
  const float *d = self_read(&t, t.device);
  bool right = true;
  for (int i = 0; i < 16; i++)
    for (int j = 0; j < 8; j++) {                // small multiples of 1/32: every order of additions is exact
      float want = 1.0f;
      for (int k = 0; k < 16; k++) want += to_f32(a[i * 16 + k]) * to_f32(b[k * 8 + j]);
      right = right && d[i * 8 + j] == want;
    }
  return right;
}
static bool self_mma() { return self_mma_of<bf16>(0) && self_mma_of<fp16>(0); }
static bool self_misaligned_ldmatrix() { return self_mma_of<bf16>(1); }

// The block's threads copy 16 bytes each; out gets the bytes that another thread's copy loaded.
__global__ static void self_cp_async_kernel(float *out, const float *in, bool wait, bool barrier) {
  SHARED(float, x, SELF_N);
  const int i = (int)threadIdx.x, n = (int)blockDim.x;
  cp_async16(x + 4 * i, in + 4 * i, true);
  cp_async_commit();
  if (wait) cp_async_wait<0>();
  if (barrier) __syncthreads();
  for (int k = 0; k < 4; k++) out[4 * i + k] = x[4 * ((i + n / 2) % n) + k];
}
static bool self_cp_async(bool wait, bool barrier) {
  SelfTest t = self_open();
  for (float &x : t.host) x = 3.0f;
  CUDA(cudaMemcpyAsync(t.other, t.host, sizeof t.host, cudaMemcpyDefault, t.stream));
  LAUNCH(self_cp_async_kernel, 1, SELF_N / 4, 0, t.stream, t.device, t.other, wait, barrier);
  return self_all(&t, t.device, 3.0f);
}
static bool self_cp_async_right() { return self_cp_async(true, true); }
static bool self_cp_async_unawaited() { return !self_cp_async(false, true); }
static bool self_cp_async_no_barrier() { return !self_cp_async(true, false); }

// ---- memory
static bool self_write_at(int64_t at) {
  SelfTest t = self_open();
  float *small;
  CUDA(cudaMalloc(&small, 100));
  LAUNCH(self_write_kernel, 1, 1, 0, t.stream, small, at, 1.0f);
  CUDA(cudaStreamSynchronize(t.stream));
  return false;
}
static bool self_write_behind() { return self_write_at(25); }
static bool self_write_before() { return self_write_at(-1); }
static bool self_write_far() { return self_write_at(1000); }
// One element after whole pages; the stream has opened the allocation before.
__global__ static void self_read_kernel(float *out, int64_t at) { out[0] = out[at]; }
static bool self_read_behind() {
  SelfTest t = self_open();
  CUDA(cudaMemsetAsync(t.device, 0, sizeof t.host, t.stream));
  while (cudaStreamQuery(t.stream) == cudaErrorNotReady) {}
  LAUNCH(self_read_kernel, 1, 1, 0, t.stream, t.device, (int64_t)SELF_N);
  return self_read(&t, t.device) != NULL;
}
static bool self_fresh_memory() {
  SelfTest t = self_open();
  return isnan(self_read(&t, t.device)[0]);
}
static bool self_host_touches() {
  SelfTest t = self_open();
  CUDA(cudaMemsetAsync(t.device, 0, sizeof t.host, t.stream));
  CUDA(cudaStreamSynchronize(t.stream));
  return *(volatile float *)t.device == 0.0f;
}
static bool self_host_polls_and_touches() {
  SelfTest t = self_open();
  for (int i = 0; i < 3; i++) CUDA(cudaMemsetAsync(t.device, 0, sizeof t.host, t.stream));
  while (cudaStreamQuery(t.stream) == cudaErrorNotReady) {}
  return *(volatile float *)t.device == 0.0f;
}
static bool self_use_after_free() {
  SelfTest t = self_open();
  float *kept = t.other;
  CUDA(cudaFree(t.other));
  LAUNCH(self_write_kernel, 1, 1, 0, t.stream, kept, (int64_t)0, 1.0f);
  return false;
}
static bool self_host_pointer() {
  SelfTest t = self_open();
  LAUNCH(self_write_kernel, 1, 1, 0, t.stream, t.host, (int64_t)0, 1.0f);
  return false;
}
__global__ static void self_shared_overrun_kernel(float *out, int at) {
  SHARED(float, x, 30);
  float *p = x;                                  // UBSan knows the size of the array
  p[at] = 1.0f;
  out[threadIdx.x] = p[0];
}
static bool self_shared_overrun() {
  SelfTest t = self_open();
  LAUNCH(self_shared_overrun_kernel, 1, 1, 0, t.stream, t.device, 30);
  CUDA(cudaStreamSynchronize(t.stream));
  return false;
}
__global__ static void self_dynamic_kernel(float *out, int n) {
  SHARED_DYNAMIC(float, x);
  const int i = (int)threadIdx.x;
  x[n - 1 - i] = 1.0f;
  out[i] = x[n - 1 - i];
}
static bool self_dynamic_overrun() {
  SelfTest t = self_open();
  LAUNCH(self_dynamic_kernel, 1, 1, 40 * sizeof(float), t.stream, t.device, 41);
  CUDA(cudaStreamSynchronize(t.stream));
  return false;
}
__global__ static void self_static_limit_kernel(float *out) {
  SHARED(float, x, 8192);
  SHARED(float, y, 8192);
  x[threadIdx.x] = y[threadIdx.x] = out[threadIdx.x] = 0.0f;
}
static bool self_static_limit() {
  SelfTest t = self_open();
  LAUNCH(self_static_limit_kernel, 1, 1, 0, t.stream, t.device);
  CUDA(cudaStreamSynchronize(t.stream));
  return false;
}
// 256 static bytes and, by LAUNCH, as many dynamic ones as is asked: together above 48 KiB, or what a block can have.
__global__ static void self_static_and_dynamic_kernel(float *out, int n) {
  SHARED(float, x, 64);
  SHARED_DYNAMIC(float, y);
  x[threadIdx.x % 64] = 1.0f;
  y[n - 1 - (int)threadIdx.x] = 1.0f;
  out[threadIdx.x] = x[threadIdx.x % 64] * y[n - 1 - (int)threadIdx.x];
}
static bool self_static_and_dynamic(size_t bytes, bool ask) {
  SelfTest t = self_open();
  const int n = (int)(bytes / sizeof(float));
  if (ask) LAUNCH(self_static_and_dynamic_kernel, 1, SELF_N, bytes, t.stream, t.device, n);
  else emu_launch("unasked", 1, SELF_N, 1, bytes, t.stream, self_static_and_dynamic_kernel, t.device, n);
  return self_all(&t, t.device, 1.0f);
}
static bool self_shared_asked() {
  return self_static_and_dynamic((48 << 10) - 256, false) && self_static_and_dynamic(48 << 10, true) &&
         self_static_and_dynamic((99 << 10) - 256, true);
}
static bool self_shared_unasked() { return self_static_and_dynamic(48 << 10, false); }
static bool self_shared_beyond() { return self_static_and_dynamic(99 << 10, true); }
// Clusters of four blocks: each gives a number to all four, and adds up what it got. Every step may be left out.
enum { SELF_BEGUN = 1, SELF_GIVEN = 2 };
__global__ static void self_cluster_kernel(float *out, int steps) {
  SHARED(float2, got, 4);
  const unsigned rank = blockIdx.x % 4;
  if (steps & SELF_BEGUN) cluster_begin(), cluster_wait();
  if (threadIdx.x < 4) cluster_store(&got[rank], threadIdx.x, float2{(float)(blockIdx.x + 1), 0.0f});
  if (steps & SELF_GIVEN) cluster_arrive(), cluster_wait();
  if (threadIdx.x == 0) out[blockIdx.x] = got[0].x + got[1].x + got[2].x + got[3].x;
}
static bool self_cluster(int steps) {
  SelfTest t = self_open();
  float host[8];
  emu_capability_now = 90;
  LAUNCH_CLUSTER(self_cluster_kernel, 4, 8, 64, 0, t.stream, t.device, steps);
  CUDA(cudaMemcpyAsync(host, t.device, sizeof host, cudaMemcpyDeviceToHost, t.stream));
  CUDA(cudaStreamSynchronize(t.stream));
  for (int b = 0; b < 8; b++)
    if (host[b] != (b < 4 ? 10.0f : 26.0f)) return false;
  emu_capability_now = 80;
  emu_launch("cluster", 8, 64, 4, 0, t.stream, self_cluster_kernel, t.device, steps);      // no clusters there
  return cudaGetLastError() == cudaErrorInvalidConfiguration;
}
static bool self_cluster_right() { return self_cluster(SELF_BEGUN | SELF_GIVEN); }
static bool self_cluster_not_begun() { return self_cluster(SELF_GIVEN); }
static bool self_cluster_ends() { return self_cluster(SELF_BEGUN); }
// What a launch and an allocation reject, and that an error is reported once.
static bool self_limits() {
  SelfTest t = self_open();
  const int most = (99 << 10) / 4;
  void *p;
  emu_launch("dynamic", 1, 1, 1, 64 << 10, t.stream, self_dynamic_kernel, t.device, 16 << 10);  // without opt-in
  bool right = cudaGetLastError() == cudaErrorInvalidValue && cudaGetLastError() == cudaSuccess;
  LAUNCH(self_dynamic_kernel, 1, SELF_N, 99 << 10, t.stream, t.device, most);
  right = right && self_all(&t, t.device, 1.0f);
  right = right && cudaFuncSetAttribute(self_dynamic_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 100 << 10) ==
                       cudaErrorInvalidValue;
  emu_launch("write", 1, 1025, 1, 0, t.stream, self_write_kernel, t.device, (int64_t)0, 0.0f);
  right = right && cudaGetLastError() != cudaSuccess;
  emu_set_device_bytes(1 << 20);
  right = right && cudaMalloc(&p, 1 << 20) == cudaErrorMemoryAllocation && !p && cudaMalloc(&p, 1 << 19) == cudaSuccess;
  return right;
}

// ---- streams
// Copies read pinned memory when they run, pageable memory when they are called.
static bool self_late_copy() {
  SelfTest t = self_open();
  float *pinned;
  CUDA(cudaMallocHost((void **)&pinned, sizeof t.host));
  for (int i = 0; i < SELF_N; i++) pinned[i] = t.host[i] = 1.0f;
  CUDA(cudaMemcpyAsync(t.device, pinned, sizeof t.host, cudaMemcpyHostToDevice, t.stream));
  CUDA(cudaMemcpyAsync(t.other, t.host, sizeof t.host, cudaMemcpyHostToDevice, t.stream));
  for (int i = 0; i < SELF_N; i++) pinned[i] = t.host[i] = 2.0f;
  const bool late = self_all(&t, t.device, 2.0f), early = self_all(&t, t.other, 1.0f);
  CUDA(cudaMemcpyAsync(pinned, t.other, sizeof t.host, cudaMemcpyDeviceToHost, t.stream));
  const bool before = pinned[0] == 2.0f;         // nothing has waited yet
  CUDA(cudaStreamSynchronize(t.stream));
  return late && early && before && pinned[0] == 1.0f;
}
// compute writes, side copies, compute overwrites: without the two events "written" and "copied" the result is wrong.
static void self_two_streams(SelfTest *t, cudaEvent_t written, cudaEvent_t copied) {
  LAUNCH(self_write_kernel, 1, SELF_N, 0, t->stream, t->device, (int64_t)0, 1.0f);
  CUDA(cudaEventRecord(written, t->stream));
  CUDA(cudaStreamWaitEvent(t->side, written, 0));
  CUDA(cudaMemcpyAsync(t->other, t->device, sizeof t->host, cudaMemcpyDefault, t->side));
  CUDA(cudaEventRecord(copied, t->side));
  CUDA(cudaStreamWaitEvent(t->stream, copied, 0));
  LAUNCH(self_write_kernel, 1, SELF_N, 0, t->stream, t->device, (int64_t)0, 2.0f);
}
static bool self_two_streams_right() {
  SelfTest t = self_open();
  self_two_streams(&t, self_event("written"), self_event("copied"));
  return self_all(&t, t.device, 2.0f) && self_all(&t, t.other, 1.0f);
}
// Seeds 0 and 1 each miss one of two skipped waits; together they find both.
static bool self_missing_wait() {
  EmuWait pair[8];
  bool right = true;
  for (uint64_t seed = 0; seed < 20; seed++) { emu_set_seed(seed); right = right && self_two_streams_right(); }
  const int pairs = emu_waits(pair, 8);
  right = right && pairs == 2 && !strcmp(pair[0].event, "written") && !strcmp(pair[0].stream, "side");
  right = right && pair[0].count == 20;
  for (int i = 0; i < pairs; i++) {
    int seen = 0;
    emu_skip_waits(pair[i].event, pair[i].stream);
    for (uint64_t seed = 0; seed < 2; seed++) { emu_set_seed(seed); seen += !self_two_streams_right(); }
    right = right && seen >= 1 && emu_counters().waits_skipped == 2 * (i + 1);
  }
  emu_skip_waits(NULL, NULL);
  return right && emu_waits(pair, 8) == 2;
}
static bool self_polling() {
  SelfTest t = self_open();
  cudaEvent_t done = self_event("done");
  int asked = 0;
  for (int i = 0; i < 10; i++) LAUNCH(self_write_kernel, 1, SELF_N, 0, t.stream, t.device, (int64_t)0, (float)i);
  CUDA(cudaEventRecord(done, t.stream));
  while (cudaEventQuery(done) == cudaErrorNotReady && asked < 100) asked++;
  return asked > 0 && asked < 100 && cudaEventQuery(done) == cudaSuccess && cudaGetLastError() == cudaErrorNotReady &&
         self_all(&t, t.device, 9.0f);
}

// ---- capture
// The two streams as a graph, replayed: kernels read device memory as it is at the replay.
static bool self_graph() {
  bool right = true;
  for (uint64_t seed = 0; seed < 20; seed++) {
    emu_set_seed(seed);
    SelfTest t = self_open();
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA(cudaStreamBeginCapture(t.stream, cudaStreamCaptureModeThreadLocal));
    self_two_streams(&t, self_event("written"), self_event("copied"));
    CUDA(cudaStreamEndCapture(t.stream, &graph));
    CUDA(cudaGraphInstantiate(&exec, graph));
    CUDA(cudaGraphDestroy(graph));
    right = right && isnan(self_read(&t, t.device)[0]);            // nothing has run
    for (int launch = 0; launch < 3; launch++) {
      CUDA(cudaMemsetAsync(t.other, 0, sizeof t.host, t.stream));
      CUDA(cudaGraphLaunch(exec, t.stream));
      right = right && self_all(&t, t.device, 2.0f) && self_all(&t, t.other, 1.0f);
    }
    CUDA(cudaGraphExecDestroy(exec));
  }
  return right;
}
// Two branches that no event orders must run in either order.
static bool self_graph_race() {
  int first = 0, second = 0;
  for (uint64_t seed = 0; seed < 2; seed++) {
    emu_set_seed(seed);
    SelfTest t = self_open();
    cudaEvent_t fork = self_event("fork"), join = self_event("join");
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA(cudaStreamBeginCapture(t.stream, cudaStreamCaptureModeThreadLocal));
    CUDA(cudaEventRecord(fork, t.stream));
    CUDA(cudaStreamWaitEvent(t.side, fork, 0));
    LAUNCH(self_write_kernel, 1, SELF_N, 0, t.stream, t.device, (int64_t)0, 1.0f);
    LAUNCH(self_write_kernel, 1, SELF_N, 0, t.side, t.device, (int64_t)0, 2.0f);
    CUDA(cudaEventRecord(join, t.side));
    CUDA(cudaStreamWaitEvent(t.stream, join, 0));
    CUDA(cudaStreamEndCapture(t.stream, &graph));
    CUDA(cudaGraphInstantiateWithFlags(&exec, graph, cudaGraphInstantiateFlagUseNodePriority));
    CUDA(cudaGraphLaunch(exec, t.stream));
    first += self_all(&t, t.device, 1.0f);
    second += self_all(&t, t.device, 2.0f);
  }
  return first == 1 && second == 1;
}
// A broken rule is reported, both where it is broken and when the capture ends.
static bool self_capture_rules() {
  SelfTest t = self_open();
  cudaEvent_t outside = self_event("outside"), inside = self_event("inside");
  cudaGraph_t graph;
  void *p;
  bool right = true;
  for (int rule = 0; rule < 6; rule++) {
    cudaError_t e = cudaSuccess, want = cudaErrorStreamCaptureUnsupported;
    CUDA(cudaEventRecord(outside, t.side));
    CUDA(cudaStreamBeginCapture(t.stream, cudaStreamCaptureModeThreadLocal));
    LAUNCH(self_write_kernel, 1, 1, 0, t.stream, t.device, (int64_t)0, 1.0f);
    CUDA(cudaEventRecord(inside, t.stream));
    if (rule == 0) { e = cudaStreamWaitEvent(t.stream, outside, 0); want = cudaErrorStreamCaptureIsolation; }
    if (rule == 1) e = cudaStreamSynchronize(t.stream);
    if (rule == 2) e = cudaMalloc(&p, 256);
    if (rule == 3) { e = cudaEventQuery(inside); want = cudaErrorCapturedEvent; }
    if (rule == 4) e = cudaMemcpyAsync(t.device, t.host, 4, cudaMemcpyHostToDevice, t.stream);
    if (rule == 5) {
      CUDA(cudaStreamWaitEvent(t.side, inside, 0));
      e = cudaStreamEndCapture(t.side, &graph);
      want = cudaErrorStreamCaptureUnmatched;
    }
    right = right && e == want && cudaStreamEndCapture(t.stream, &graph) == cudaErrorStreamCaptureInvalidated && !graph;
    CUDA(cudaStreamSynchronize(t.side));
    cudaGetLastError();
  }
  CUDA(cudaStreamBeginCapture(t.stream, cudaStreamCaptureModeThreadLocal));
  CUDA(cudaEventRecord(inside, t.stream));
  CUDA(cudaStreamWaitEvent(t.side, inside, 0));
  LAUNCH(self_write_kernel, 1, 1, 0, t.side, t.device, (int64_t)0, 1.0f);
  right = right && cudaStreamEndCapture(t.stream, &graph) == cudaErrorStreamCaptureUnjoined;
  right = right && cudaStreamWaitEvent(t.side, inside, 0) == cudaErrorCapturedEvent;  // the capture is over
  cudaGetLastError();
  return right;
}

// ---- WGMMA instructions
// D (64x64) = A B^T, then D += A C, of tiles of 64 x 64: small integers, so sums are exact. Each mistake breaks a rule
// of warpgroup.h.
enum SelfWgmma { WG_RIGHT, WG_UNFENCED, WG_SUM_CHANGED, WG_A_CHANGED, WG_NO_PROXY, WG_PROXY_LATE, WG_COPY_LATE,
                 WG_ALIGNMENT, WG_BEYOND, WG_RESERVED, WG_OPERANDS, WG_READ_EARLY, WG_UNCOMMITTED, WG_SUM_WRITTEN,
                 WG_A_WRITTEN, WG_TILE_WRITTEN, WG_TILE_COPIED, WG_ENDS, WG_NO_TILES, WG_OLDER };
HD int self_wgmma_value(int tile, int row, int column) { return (row * 7 + column * 3 + tile * 5) % 11 - 5; }
static uint16_t self_wgmma_bits(int tile, int row, int column) {
  bf16 x;
  round_to(&x, (float)self_wgmma_value(tile, row, column));
  return x.bits;
}
__global__ static void self_wgmma_kernel(float *out, const uint16_t *in, SelfWgmma mistake) {
  SHARED_TILES(tiles);
  const int thread = (int)threadIdx.x, warp = thread / WARP, lane = thread % WARP;
  float d[8][4] = {};
  uint32_t a[4][4];
  for (int tile = 0; tile < 3; tile++)
    for (int i = thread; i < 64 * 8; i += 128)
      cp_async16(tiles + tile * 8192 + i / 8 * 128 + ((i ^ i / 8) % 8) * 16, in + tile * 4096 + i * 8, true);
  cp_async_commit();
  for (int k = 0; k < 4; k++)
    for (int i = 0; i < 4; i++) {
      const int row = warp * 16 + lane / 4 + i % 2 * 8, column = k * 16 + lane % 4 * 2 + i / 2 * 8;
      a[k][i] = in[row * 64 + column] | (uint32_t)in[row * 64 + column + 1] << 16;
    }
  if (mistake == WG_COPY_LATE) proxy_fence();    // before the copies have landed
  cp_async_wait<0>();
  if (mistake == WG_PROXY_LATE) __syncthreads();
  if (mistake != WG_NO_PROXY && mistake != WG_COPY_LATE) proxy_fence();
  if (mistake != WG_PROXY_LATE) __syncthreads();
  const uint64_t A = wgmma_tile(tiles + (mistake == WG_ALIGNMENT ? 128 : 0)), C = wgmma_tile(tiles + 16384);
  uint64_t B = wgmma_tile(tiles + (mistake == WG_BEYOND ? 24576 : 8192));
  if (mistake == WG_RESERVED) B |= 1ull << 53;
  if (mistake == WG_OPERANDS && warp == 2) B = C;
  if (mistake != WG_UNFENCED) wgmma_fence();
  if (mistake == WG_SUM_CHANGED) d[3][1] = (float)lane;
  for (int k = 0; k < 4; k++) wgmma_dot<bf16, 64>(d[0], wgmma_step(A, k * 32), wgmma_step(B, k * 32), k > 0);
  if (mistake != WG_UNCOMMITTED) wgmma_commit();
  if (mistake == WG_A_CHANGED) a[2][1]++;
  for (int k = 0; k < 4; k++) wgmma_weigh<bf16, 64>(d[0], a[k], wgmma_step(C, k * 2048));
  if (mistake != WG_UNCOMMITTED) wgmma_commit();
  if (mistake == WG_SUM_WRITTEN) d[1][1] = 0.0f;
  if (mistake == WG_A_WRITTEN) a[0][0] = 0;
  if (mistake == WG_TILE_WRITTEN && !thread) *(uint32_t *)(tiles + 8192) += 1;
  if (mistake == WG_TILE_COPIED && !thread) cp_async16(tiles + 16384 + 1024, in, true);
  if (mistake == WG_ENDS) return;
  if (mistake != WG_READ_EARLY) wgmma_wait<0>();
  for (int n = 0; n < 8; n++)
    for (int e = 0; e < 4; e++)
      out[(warp * 16 + lane / 4 + e / 2 * 8) * 64 + n * 8 + lane % 4 * 2 + e % 2] = d[n][e];
  wgmma_commit();
  wgmma_wait<0>();
}
// The multiply of a kernel that has only SHARED_DYNAMIC.
__global__ static void self_wgmma_no_tiles_kernel(float *out) {
  SHARED_DYNAMIC(unsigned char, tiles);
  float d[8][4] = {};
  wgmma_fence();
  wgmma_dot<bf16, 64>(d[0], wgmma_tile(tiles), wgmma_tile(tiles), false);
  wgmma_commit();
  wgmma_wait<0>();
  out[threadIdx.x] = d[0][0];
}
// Whether out is what it must be.
static bool self_wgmma(SelfWgmma mistake) {
  emu_capability_now = mistake == WG_OLDER ? 80 : 90;
  SelfTest t = self_open();
  static uint16_t in[3 * 4096];
  static float out[4096];
  void *device_in, *device_out;
  for (int i = 0; i < 3 * 4096; i++) in[i] = self_wgmma_bits(i / 4096, i / 64 % 64, i % 64);
  CUDA(cudaMalloc(&device_in, sizeof in));
  CUDA(cudaMalloc(&device_out, sizeof out));
  CUDA(cudaMemcpyAsync(device_in, in, sizeof in, cudaMemcpyHostToDevice, t.stream));
  if (mistake == WG_NO_TILES) LAUNCH(self_wgmma_no_tiles_kernel, 1, 128, 8192, t.stream, (float *)device_out);
  else LAUNCH(self_wgmma_kernel, 1, 128, 24576, t.stream, (float *)device_out, (const uint16_t *)device_in, mistake);
  CUDA(cudaMemcpyAsync(out, device_out, sizeof out, cudaMemcpyDeviceToHost, t.stream));
  CUDA(cudaStreamSynchronize(t.stream));
  for (int row = 0; row < 64; row++)
    for (int column = 0; column < 64; column++) {
      int want = 0;
      for (int k = 0; k < 64; k++)
        want += self_wgmma_value(0, row, k) * (self_wgmma_value(1, column, k) + self_wgmma_value(2, k, column));
      if (out[row * 64 + column] != (float)want) return false;
    }
  return true;
}
template <SelfWgmma mistake> static bool self_wgmma_is() { return self_wgmma(mistake); }
template <SelfWgmma mistake> static bool self_wgmma_is_not() { return !self_wgmma(mistake); }

// ---- the list
struct SelfCase { const char *name, *dies; bool (*run)(); };
static const SelfCase self_cases[] = {
    {"barriers", NULL, self_barriers},
    {"missing __syncthreads", NULL, self_missing_syncthreads},
    {"missing __syncwarp", NULL, self_missing_syncwarp},
    {"shuffles, votes and sums", NULL, self_sums},
    {"atomics", NULL, self_atomics},
    {"threads that miss a barrier", "divergence: no thread of the block can continue", self_barrier_divergence},
    {"lanes in different operations", "divergence: lanes of one warp meet in", self_warp_divergence},
    {"a shuffle from an absent lane", NULL, self_absent_lane},
    {"ldmatrix and mma", NULL, self_mma},
    {"misaligned ldmatrix", "is not 16-byte aligned", self_misaligned_ldmatrix},
    {"cp.async", NULL, self_cp_async_right},
    {"cp.async that nobody waits for", NULL, self_cp_async_unawaited},
    {"cp.async without a barrier", NULL, self_cp_async_no_barrier},
    {"a write right after device memory", "a write beside an allocation of 100 bytes; in self_", self_write_behind},
    {"a write right before device memory", "a write beside an allocation of 100 bytes; in self_", self_write_before},
    {"a write far outside", "an access outside every allocation of device memory", self_write_far},
    {"a read right after", "an access outside every allocation of device memory", self_read_behind},
    {"fresh device memory", NULL, self_fresh_memory},
    {"the host in device memory", "the host touches device memory", self_host_touches},
    {"the host in device memory after polling", "the host touches device memory", self_host_polls_and_touches},
    {"device memory after cudaFree", "an unallocated or freed device pointer", self_use_after_free},
    {"a host pointer for a kernel", "a pageable host pointer", self_host_pointer},
    {"after a shared array", "wrote after a shared array of 120 bytes", self_shared_overrun},
    {"after dynamic shared memory", "wrote after 160 bytes of dynamic shared memory", self_dynamic_overrun},
    {"too much static shared memory", "must be SHARED_DYNAMIC", self_static_limit},
    {"static and dynamic shared memory, asked for", NULL, self_shared_asked},
    {"both above 48 KiB, not asked for", "invalid argument: 256 static and 49152 dynamic bytes", self_shared_unasked},
    {"both above what a block can have", "invalid argument: 256 static and 101376 dynamic", self_shared_beyond},
    {"WGMMA instructions", NULL, self_wgmma_is<WG_RIGHT>},
    {"wgmma without a fence", "no wgmma_fence before the first multiply", self_wgmma_is<WG_UNFENCED>},
    {"wgmma: a sum written after the fence", "a sum changed since the last", self_wgmma_is<WG_SUM_CHANGED>},
    {"wgmma: A written after the fence", "A in registers changed since the last", self_wgmma_is<WG_A_CHANGED>},
    {"wgmma without proxy_fence", "written without proxy_fence and a barrier after it", self_wgmma_is<WG_NO_PROXY>},
    {"wgmma: proxy_fence after the barrier", "written without proxy_fence and a", self_wgmma_is<WG_PROXY_LATE>},
    {"wgmma: proxy_fence before a copy lands", "written without proxy_fence and a", self_wgmma_is<WG_COPY_LATE>},
    {"wgmma: a tile between two groups of rows", "a tile does not start on 1024 bytes", self_wgmma_is<WG_ALIGNMENT>},
    {"wgmma: a tile beyond shared memory", "a tile reaches beyond shared memory", self_wgmma_is<WG_BEYOND>},
    {"wgmma: reserved bits", "reserved bits or a base offset in descriptor", self_wgmma_is<WG_RESERVED>},
    {"wgmma: other operands in one warp", "threads of a warpgroup give different operands", self_wgmma_is<WG_OPERANDS>},
    {"wgmma: sums read before the wait", NULL, self_wgmma_is_not<WG_READ_EARLY>},
    {"wgmma: groups that were not committed", NULL, self_wgmma_is_not<WG_UNCOMMITTED>},
    {"wgmma: sums written before the wait", "sums were written before the wait", self_wgmma_is<WG_SUM_WRITTEN>},
    {"wgmma: A written before the wait", "registers of A were written before the wait", self_wgmma_is<WG_A_WRITTEN>},
    {"wgmma: a store into a tile being read", "was written while a multiply read", self_wgmma_is<WG_TILE_WRITTEN>},
    {"wgmma: a copy into a tile being read", "was written while a multiply read", self_wgmma_is<WG_TILE_COPIED>},
    {"wgmma: no wait before the end", "a thread ends before its last wait", self_wgmma_is<WG_ENDS>},
    {"wgmma before Hopper", "wgmma on a device of compute capability 80", self_wgmma_is<WG_OLDER>},
    {"wgmma without SHARED_TILES", "a kernel without SHARED_TILES", self_wgmma_is<WG_NO_TILES>},
    {"clusters", NULL, self_cluster_right},
    {"a cluster whose blocks may not have begun", "before it is known to have begun", self_cluster_not_begun},
    {"a cluster whose blocks end too soon", "ends while others may write into its shared memory", self_cluster_ends},
    {"limits of launches and memory", NULL, self_limits},
    {"copies from pinned memory are late", NULL, self_late_copy},
    {"two streams", NULL, self_two_streams_right},
    {"a missing event wait", NULL, self_missing_wait},
    {"polling an event", NULL, self_polling},
    {"a graph of two streams", NULL, self_graph},
    {"a graph without the order", NULL, self_graph_race},
    {"rules of stream capture", NULL, self_capture_rules},
};
static const int SELF_CASES = (int)(sizeof self_cases / sizeof *self_cases);

const char *emu_selftest_name(int i) { return i < SELF_CASES ? self_cases[i].name : NULL; }
const char *emu_selftest_dies(int i) { return self_cases[i].dies; }
bool emu_selftest_run(int i) { return self_cases[i].run(); }
