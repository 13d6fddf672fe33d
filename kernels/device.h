// device.h: what every part of the program knows about devices: dtypes, Tensor, Ctx. It is the only file whose
// #ifs distinguish compilers:
//   DEVICE_COMPILER 0   plain g++: the trainer, the tests, the CPU tables
//   DEVICE_COMPILER 1   nvcc: kernels/cuda/cuda.cu
//   DEVICE_COMPILER 2   g++ with dev/cuda_emu in front of the include path: kernels/cuda/cuda.cu on emulated threads
// CUDA code takes launches, shared memory, tensor cores and asynchronous copies from kernels/cuda/gpu.h, which has both
// forms.
//
// Conventions
//   - a Tensor carries no strides: it is dense and row-major. Only ops look inside activations, so a device may choose
//     their layout; the model just passes them on.
//   - arithmetic is fp32; a dtype is a storage format.
#pragma once
#include "base/base.h"
#if PART_LAUNCH
#include "watch/watch.h"
#endif
#include <math.h>
#include <string.h>

#if defined(__CUDACC__)
#define DEVICE_COMPILER 1
#define HD __host__ __device__ static inline
#elif defined(CUDA_EMULATED)
#define DEVICE_COMPILER 2
#define HD static inline
#else
#define DEVICE_COMPILER 0
#define HD static inline
#endif

// ---- waiting -------------------------------------------------------------------------------------------------------
// For code that waits by asking again and again: `what`, a string that lives on, is in flight; NULL: no longer. Main
// thread. watch/liveness.h has it; heartbeats.h ends a run whose ranks make no progress.
void liveness_poll(const char *what);

// ---- numbers -------------------------------------------------------------------------------------------------------
static inline int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// ---- dtypes --------------------------------------------------------------------------------------------------------
// The types of two bytes and of one are ours, for storage only; no compiler's type is in an interface or computes.
// fp8 is E4M3 (Micikevicius et al. 2022, arXiv 2209.05433): 1-4-3 bits, bias 7, no infinities, NaN S.1111.111, largest
// 448, subnormals down to 2^-9. An fp8 number has a meaning only with its scale: fp8.cuh has the ops. low16 is the low
// 16 bits of a bf16 parameter's fp32 master and is not a number by itself: master.cuh. blocks are the bytes of numbers
// with scales among them, which a type of blocks.h says.
struct bf16 { uint16_t bits; };
struct fp16 { uint16_t bits; };
struct fp8 { uint8_t bits; };
struct low16 { uint16_t bits; };
enum Dtype { F32, BF16, F16, I32, F8, LOW16, BLOCKS, DTYPE_COUNT };

static inline size_t dtype_bytes(Dtype t) { return t == F32 || t == I32 ? 4 : t == F8 || t == BLOCKS ? 1 : 2; }
static inline bool dtype_floats(Dtype t) { return t == F32 || t == BF16 || t == F16; }      // those with arithmetic
static inline const char *dtype_name(Dtype t) {
  static const char *const names[] = {"fp32", "bf16", "fp16", "int32", "fp8", "low16", "blocks"};
  return (unsigned)t < DTYPE_COUNT ? names[t] : "?";
}

HD uint32_t f32_bits(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }
HD float bits_f32(uint32_t u) { float x; memcpy(&x, &u, 4); return x; }

HD float to_f32(float x) { return x; }
HD float to_f32(bf16 x) { return bits_f32((uint32_t)x.bits << 16); }
HD float to_f32(fp16 x) {                        // exact; subnormals by the exponent trick, Inf and NaN kept
  uint32_t sign = (uint32_t)(x.bits & 0x8000u) << 16, rest = (uint32_t)(x.bits & 0x7fffu) << 13;
  if (rest >= 0x0f800000u) return bits_f32(sign | 0x7f800000u | (rest & 0x007fffffu));
  float magnitude = bits_f32(rest) * 0x1p112f;
  return bits_f32(sign | f32_bits(magnitude));
}
HD float to_f32(fp8 x) {                         // exact; a subnormal is 2^-6 (1 + m/8) - 2^-6
  const uint32_t sign = (uint32_t)(x.bits & 0x80u) << 24, rest = x.bits & 0x7fu;
  if (rest == 0x7fu) return bits_f32(sign | 0x7fc00000u);
  if (rest < 8) return bits_f32(sign | f32_bits(bits_f32(0x3c800000u | rest << 20) - 0x1p-6f));
  return bits_f32(sign | ((rest << 20) + 0x3c000000u));
}
// Round to nearest, ties to even. NaN stays a (quiet) NaN; fp16 overflows to Inf, fp8 saturates at 448.
HD void round_to(float *to, float x) { *to = x; }
HD void round_to(bf16 *to, float x) {
  uint32_t u = f32_bits(x);
  to->bits =
      (u & 0x7fffffffu) > 0x7f800000u ? (uint16_t)((u >> 16) | 64) : (uint16_t)((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
}
HD void round_to(fp16 *to, float x) {
  uint32_t u = f32_bits(x), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
  if (a > 0x7f800000u) { to->bits = (uint16_t)(sign | 0x7e00u | ((a >> 13) & 0x3ffu)); return; }
  if (a >= 0x47800000u) { to->bits = (uint16_t)(sign | 0x7c00u); return; }
  if (a < 0x38800000u) {                         // subnormal or zero: let the fp32 adder round at 2^-24
    float r = bits_f32(a) + 0.5f;
    to->bits = (uint16_t)(sign | (f32_bits(r) - 0x3f000000u));
    return;
  }
  to->bits = (uint16_t)(sign | ((a - 0x38000000u + 0xfffu + ((a >> 13) & 1)) >> 13));
}
// One NaN, 0x7f, as in the conversion of sm_89 and later.
HD void round_to(fp8 *to, float x) {
  const uint32_t u = f32_bits(x), sign = (u >> 24) & 0x80u;
  uint32_t a = u & 0x7fffffffu;
  if (a > 0x7f800000u) { to->bits = 0x7fu; return; }
  if (a > 0x43e00000u) a = 0x43e00000u;          // 448
  if (a < 0x3c800000u)                           // below 2^-6: let the fp32 adder round at 2^-9
    to->bits = (uint8_t)(sign | (f32_bits(bits_f32(a) + 0x1p14f) - 0x46800000u));
  else
    to->bits = (uint8_t)(sign | ((a - 0x3c000000u + 0x7ffffu + ((a >> 20) & 1)) >> 20));
}

// DISPATCH(dtype, T, statement using T): one instantiation per floating dtype.
#define DISPATCH(dtype_, T, ...) \
  do { switch (dtype_) { \
    case F32: { using T = float; __VA_ARGS__; } break; \
    case BF16: { using T = bf16; __VA_ARGS__; } break; \
    case F16: { using T = fp16; __VA_ARGS__; } break; \
    default: CHECK(0, "dtype %s has no arithmetic", dtype_name(dtype_)); } } while (0)

// ---- tensors -------------------------------------------------------------------------------------------------------
struct Tensor { void *data; Dtype dtype; int ndim; int64_t shape[4]; };

HD int64_t numel(Tensor t) { int64_t n = 1; for (int i = 0; i < t.ndim; i++) n *= t.shape[i]; return n; }
static inline Tensor tensor_of(void *data, Dtype dtype, int64_t d0, int64_t d1 = -1, int64_t d2 = -1, int64_t d3 = -1) {
  Tensor t = {data, dtype, 1 + (d1 >= 0) + (d2 >= 0) + (d3 >= 0), {d0, d1, d2, d3}};
  return t;
}
// The same numbers read in another shape (row-major, as many elements).
static inline Tensor reshaped(Tensor t, int64_t d0, int64_t d1 = -1, int64_t d2 = -1, int64_t d3 = -1) {
  Tensor r = tensor_of(t.data, t.dtype, d0, d1, d2, d3);
  CHECK(numel(r) == numel(t), "reshape of %lld elements to %lld", (long long)numel(t), (long long)numel(r));
  return r;
}
static inline Tensor rows_of(Tensor t, int64_t first, int64_t count) {  // rows first .. first+count of a 2-d tensor
  return tensor_of((char *)t.data + (size_t)(first * t.shape[1]) * dtype_bytes(t.dtype), t.dtype, count, t.shape[1]);
}

static inline void check_shape(const char *op, const char *what, Tensor t, int ndim, const int64_t *want) {
  bool ok = t.ndim == ndim;
  for (int i = 0; ok && i < ndim; i++) ok = t.shape[i] == want[i];
  if (ok) return;
  char got[96] = "", expected[96] = "";
  int g = 0, e = 0;
  for (int i = 0; i < t.ndim; i++)
    g += snprintf(got + g, sizeof got - (size_t)g, "%s%lld", i ? "," : "", (long long)t.shape[i]);
  for (int i = 0; i < ndim; i++)
    e += snprintf(expected + e, sizeof expected - (size_t)e, "%s%lld", i ? "," : "", (long long)want[i]);
  CHECK(0, "%s: %s has shape (%s), needs (%s)", op, what, got, expected);
}
#define CHECK_SHAPE(t, ...) \
  do { const int64_t want_[] = {__VA_ARGS__}; check_shape(__func__, #t, t, (int)(sizeof want_ / 8), want_); } while (0)
#define CHECK_DTYPE(t, want) \
  CHECK((t).dtype == (want), "%s: %s is %s, needs %s", __func__, #t, dtype_name((t).dtype), dtype_name(want))

// ---- context -------------------------------------------------------------------------------------------------------
// What an op needs besides its tensors. One per device stream; never shared between host threads.
struct Ops;
struct StepState;
struct Ctx {
  const Ops *ops;          // the table of this device and instruction set
  const StepState *state;  // what changes from step to step, in device memory: ops read it when they run
  void *stream;            // CUDA stream; NULL on CPU
  void *device;            // what the device itself keeps (handles, matmul plans); NULL on CPU
  int threads;             // CPU threads of this rank (threads.h)
  void *workspace;         // scratch of one op at a time, 256-byte aligned; contents undefined between ops
  size_t workspace_bytes;  // >= ops->workspace_bytes(...) of the largest shapes that will be asked
  bool fast_fp32;          // --matmul_precision high: fp32 matrix multiplies in TF32 (CUDA), from bf16 tiles (AMX)
  bool attention_mma;      // --attention mma: the kernels of GPUs before Hopper on Hopper too (CUDA)
  int sm_margin;           // --sm_margin: SMs that matrix multiplies leave to NCCL, and it keeps to (CUDA)
};
