// cuda_helpers.h: what a test of a CUDA kernel needs besides op_helpers.h, which is included before it.
//
//   device_table(i)                  the i-th device table to test, NULL after the last: the emulated one if it was
//                                    linked, the real one if the environment has DEVICE=cuda (DEVICE_ONLY=1: only the
//                                    real one, for sanitizers and profilers)
//   device_ctx, device_done          a Ctx on such a table, with the workspace a WorkspaceQuery asks for and a state
//   device_set_state, device_state   writes and reads the StepState, which is in device memory
//   device_tensor, device_upload     tensors in device memory: never written (NaN), or with a host tensor's values
//   device_download                  the same tensor in host memory
//   device_expect_same_bits, device_expect_close, device_expect_within      a device tensor against host values
//
// Usage:
//   for (int i = 0; const Ops *ops = device_table(i); i++) {
//     Ctx c = device_ctx(ops, q);
//     Tensor out = device_tensor(&c, BF16, 5, 33), in = device_upload(&c, host_in);
//     gelu_forward(&c, out, in);
//     device_expect_close("gelu", &c, out, want, 4);
//     device_done(&c);
//   }
// Every block of device memory is between two guards, which device_done checks: a kernel that writes outside its tensor
// fails the test on real devices too.
#pragma once
#include "dev/cuda_emu/emu.h"

static inline const Ops *device_table(int i) {
  const char *device = getenv("DEVICE");
  const Ops *table[2];
  int n = 0;
  if (&ops_cuda_emulated && !getenv("DEVICE_ONLY")) table[n++] = &ops_cuda_emulated;
  if (device && !strcmp(device, "cuda")) {
    if (!&ops_cuda) SKIP("DEVICE=cuda, but this binary was built without the CUDA kernels");
    table[n++] = &ops_cuda;
  }
  if (!n) SKIP("neither emulated nor real CUDA kernels are linked");
  return i < n ? table[i] : NULL;
}

// Contexts that are opened from now on are of a Hopper, with its attention kernels: emulated devices become one, real
// ones run them where they have them. Otherwise all run those of every GPU.
static bool device_hopper;
static inline void device_on_hopper(bool yes) {
  device_hopper = yes;
  if (!&ops_cuda_emulated) return;
  emu_set_capability(yes ? 90 : 80);
  emu_set_shared_limit(yes ? 227 << 10 : 99 << 10);
}

// ---- memory --------------------------------------------------------------------------------------------------------
static const size_t DEVICE_GUARD_BYTES = 256;    // keeps the alignment that cudaMalloc promises
struct DeviceBlock { unsigned char *data; size_t bytes; const Ops *ops; DeviceBlock *next; };
static DeviceBlock *device_blocks;

// Every function here waits until its work is done, for every stream.
static inline size_t device_whole_bytes(size_t bytes) { return (bytes + 255) / 256 * 256 + 2 * DEVICE_GUARD_BYTES; }

// Device memory filled with 0xff: NaN in every floating dtype, -1 as an integer.
static inline void *device_block(Ctx *c, size_t bytes) {
  const size_t whole = device_whole_bytes(bytes);
  void *data = NULL, *fill = malloc(whole);
  DeviceBlock *b = (DeviceBlock *)malloc(sizeof(DeviceBlock));
  CHECK(b && fill, "no memory for %zu bytes", whole);
  c->ops->memory_alloc(c, &data, whole, MEMORY_DEVICE);
  CHECK(data, "no device memory for %zu bytes", whole);
  memset(fill, 0xff, whole);
  c->ops->copy(c, data, fill, whole);
  c->ops->sync(c);
  free(fill);
  *b = {(unsigned char *)data + DEVICE_GUARD_BYTES, bytes, c->ops, device_blocks};
  device_blocks = b;
  return b->data;
}
// Fails the test if anything beside a block was written, then frees it.
static inline void device_block_free(Ctx *c, DeviceBlock *b) {
  const size_t whole = device_whole_bytes(b->bytes), behind = whole - DEVICE_GUARD_BYTES - b->bytes;
  unsigned char guard[3 * DEVICE_GUARD_BYTES], *data = b->data - DEVICE_GUARD_BYTES;
  c->ops->copy(c, guard, data, DEVICE_GUARD_BYTES);
  c->ops->copy(c, guard + DEVICE_GUARD_BYTES, b->data + b->bytes, behind);
  c->ops->sync(c);
  size_t wrong = DEVICE_GUARD_BYTES + behind;
  for (size_t i = wrong; i-- > 0;) if (guard[i] != 0xff) wrong = i;
  if (wrong < DEVICE_GUARD_BYTES)
    EXPECT(false, "%s: %zu bytes before a device block of %zu bytes were written", b->ops->name,
           DEVICE_GUARD_BYTES - wrong, b->bytes);
  else
    EXPECT(wrong == DEVICE_GUARD_BYTES + behind, "%s: byte %zu after a device block of %zu bytes was written",
           b->ops->name, wrong - DEVICE_GUARD_BYTES, b->bytes);
  c->ops->memory_free(c, data, whole, MEMORY_DEVICE);
  free(b);
}

// ---- contexts ------------------------------------------------------------------------------------------------------
static inline void device_set_state(Ctx *c, StepState s) {
  c->ops->copy(c, (void *)c->state, &s, sizeof s);
  c->ops->sync(c);
}
static inline StepState device_state(Ctx *c) {
  StepState s;
  c->ops->copy(c, &s, c->state, sizeof s);
  c->ops->sync(c);
  return s;
}
static inline Ctx device_ctx(const Ops *ops, WorkspaceQuery q) {
  Ctx c = {};
  c.ops = ops;
  c.threads = 1;
  c.attention_mma = !device_hopper;
  ops->device_open(&c, 0);
  ops->workspace_bytes(&c, q, &c.workspace_bytes);
  c.workspace = device_block(&c, c.workspace_bytes);
  c.state = (const StepState *)device_block(&c, sizeof(StepState));
  StepState s = {};
  s.loss_scale = s.grad_scale = s.bias_correction1 = s.bias_correction2 = 1.0f;
  s.beta1_power = s.beta2_power = 1.0;
  device_set_state(&c, s);
  return c;
}
// Checks the guards, frees every block of this device and closes it. One Ctx of a table is open at a time.
static inline void device_done(Ctx *c) {
  for (DeviceBlock **at = &device_blocks; *at;) {
    DeviceBlock *b = *at;
    if (b->ops != c->ops) { at = &b->next; continue; }
    *at = b->next;
    device_block_free(c, b);
  }
  c->ops->device_close(c);
}

// ---- tensors -------------------------------------------------------------------------------------------------------
static inline Tensor device_tensor(Ctx *c, Dtype dtype, int64_t d0, int64_t d1 = -1, int64_t d2 = -1, int64_t d3 = -1) {
  Tensor t = tensor_of(NULL, dtype, d0, d1, d2, d3);
  t.data = device_block(c, (size_t)numel(t) * dtype_bytes(dtype));
  return t;
}
static inline void device_write(Ctx *c, Tensor device, Tensor host) {
  CHECK(numel(device) == numel(host) && device.dtype == host.dtype, "%s written to %s, or sizes differ",
        dtype_name(host.dtype), dtype_name(device.dtype));
  c->ops->copy(c, device.data, host.data, (size_t)numel(host) * dtype_bytes(host.dtype));
  c->ops->sync(c);
}
static inline Tensor device_upload(Ctx *c, Tensor host) {
  Tensor t = host;
  if (!host.data) return t;                      // an optional tensor that is absent
  t.data = device_block(c, (size_t)numel(host) * dtype_bytes(host.dtype));
  device_write(c, t, host);
  return t;
}
static inline Tensor device_download(Ctx *c, Tensor device) {    // host memory of op_helpers.h: op_free_all
  Tensor t = device;
  size_t bytes = (size_t)numel(device) * dtype_bytes(device.dtype);
  t.data = op_alloc(bytes);
  c->ops->copy(c, t.data, device.data, bytes);
  c->ops->sync(c);
  return t;
}

// ---- comparisons ---------------------------------------------------------------------------------------------------
// "what, cuda_emulated, bf16"; valid until the fourth call after it.
static inline const char *device_where(const char *what, const Ctx *c, Dtype dtype) {
  static char text[4][160];
  static int turn;
  char *s = text[turn++ & 3];
  snprintf(s, sizeof text[0], "%.100s, %s, %s", what, c->ops->name, dtype_name(dtype));
  return s;
}
// want: a host tensor, for instance what a CPU table wrote.
static inline void device_expect_same_bits(const char *what, Ctx *c, Tensor device, Tensor want) {
  op_expect_same_bits(device_where(what, c, device.dtype), device_download(c, device), want);
}
// The bound of op_expect_close; want: fp64 values.
static inline void device_expect_close(const char *what, Ctx *c, Tensor device, const double *want, double roundings,
                                       double scale = -1.0) {
  op_expect_close(device_where(what, c, device.dtype), device_download(c, device), want, roundings, scale);
}
// |got - want| <= bound, element by element, with a separate bound for every element.
static inline void device_expect_within(const char *what, Ctx *c, Tensor device, const double *want,
                                        const double *bound) {
  Tensor got = device_download(c, device);
  int64_t worst = -1;
  double worst_ratio = 1.0;
  for (int64_t i = 0, n = numel(got); i < n; i++) {
    const double error = fabs(op_get(got, i) - want[i]);
    if (error <= bound[i] * worst_ratio) continue;
    worst = i;
    if (!(error == error)) break;
    worst_ratio = error / bound[i];
  }
  if (worst < 0) return;
  EXPECT(false, "%s: element %lld is %.9g, reference %.9g: beyond its bound %.3g",
         device_where(what, c, device.dtype), (long long)worst, op_get(got, worst), want[worst], bound[worst]);
}
