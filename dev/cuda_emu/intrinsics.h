// intrinsics.h: the types of CUDA C, and its device functions as C. Rounding follows the CUDA C++ Programming Guide
// ("Mathematical Functions"): functions that round correctly there do so here; approximate ones (__expf, rsqrtf) are
// those of libm.
#pragma once
#include "base.h"
#include <limits.h>
#include <math.h>

#define __host__
#define __device__
#define __global__
#define __forceinline__ inline
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

// ---- types
struct uint3 { unsigned x, y, z; };
struct dim3 {
  unsigned x, y, z;
  dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
#define EMU_VECTORS(T, name, unit) \
  struct alignas(2 * unit) name##2 { T x, y; }; \
  struct alignas(4 * unit > 16 ? 16 : 4 * unit) name##4 { T x, y, z, w; }; \
  EMU(name##2) make_##name##2(T x, T y) { return {x, y}; } \
  EMU(name##4) make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
EMU_VECTORS(float, float, 4)
EMU_VECTORS(int, int, 4)
EMU_VECTORS(unsigned, uint, 4)
EMU_VECTORS(unsigned short, ushort, 2)
EMU_VECTORS(unsigned char, uchar, 1)
struct alignas(16) double2 { double x, y; };
struct alignas(16) longlong2 { long long x, y; };
struct alignas(16) ulonglong2 { unsigned long long x, y; };
EMU(double2) make_double2(double x, double y) { return {x, y}; }
EMU(longlong2) make_longlong2(long long x, long long y) { return {x, y}; }
EMU(ulonglong2) make_ulonglong2(unsigned long long x, unsigned long long y) { return {x, y}; }

// ---- memory: cache hints are ignored
template <class T> static inline T __ldg(const T *p) { return *p; }
template <class T> static inline T __ldcs(const T *p) { return *p; }
template <class T> static inline T __ldcg(const T *p) { return *p; }
template <class T> static inline T __ldca(const T *p) { return *p; }
template <class T> static inline void __stcs(T *p, T x) { *p = x; }
template <class T> static inline void __stcg(T *p, T x) { *p = x; }
template <class T> static inline void __stwt(T *p, T x) { *p = x; }
EMU(void) __threadfence() {}
EMU(void) __threadfence_block() {}

// ---- atomics: threads are never interrupted between two of their waits
template <class T, class U> static inline T emu_exchange(T *p, U x) { T old = *p; *p = (T)x; return old; }
#define EMU_ATOMICS(T) \
  EMU(T) atomicAdd(T *p, T x) { return emu_exchange(p, *p + x); } \
  EMU(T) atomicMax(T *p, T x) { return emu_exchange(p, x > *p ? x : *p); } \
  EMU(T) atomicMin(T *p, T x) { return emu_exchange(p, x < *p ? x : *p); } \
  EMU(T) atomicExch(T *p, T x) { return emu_exchange(p, x); } \
  EMU(T) atomicCAS(T *p, T expected, T x) { return emu_exchange(p, *p == expected ? x : *p); } \
  EMU(T) atomicAnd(T *p, T x) { return emu_exchange(p, *p & x); } \
  EMU(T) atomicOr(T *p, T x) { return emu_exchange(p, *p | x); } \
  EMU(T) atomicXor(T *p, T x) { return emu_exchange(p, *p ^ x); }
EMU_ATOMICS(int)
EMU_ATOMICS(unsigned)
EMU_ATOMICS(unsigned long long)
EMU(float) atomicAdd(float *p, float x) { return emu_exchange(p, *p + x); }
EMU(float) atomicExch(float *p, float x) { return emu_exchange(p, x); }
EMU(double) atomicAdd(double *p, double x) { return emu_exchange(p, *p + x); }
EMU(unsigned) atomicInc(unsigned *p, unsigned last) { return emu_exchange(p, *p >= last ? 0 : *p + 1); }

// ---- bits
template <class To, class From> static inline To emu_bits(From x) {
  static_assert(sizeof(To) == sizeof(From), "as many bits");
  To to;
  memcpy(&to, &x, sizeof to);
  return to;
}
EMU(unsigned) __float_as_uint(float x) { return emu_bits<unsigned>(x); }
EMU(int) __float_as_int(float x) { return emu_bits<int>(x); }
EMU(float) __uint_as_float(unsigned x) { return emu_bits<float>(x); }
EMU(float) __int_as_float(int x) { return emu_bits<float>(x); }
EMU(long long) __double_as_longlong(double x) { return emu_bits<long long>(x); }
EMU(double) __longlong_as_double(long long x) { return emu_bits<double>(x); }
EMU(int) __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
EMU(int) __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
EMU(int) __ffs(int x) { return __builtin_ffs(x); }
EMU(int) __ffsll(long long x) { return __builtin_ffsll(x); }
EMU(int) __popc(unsigned x) { return __builtin_popcount(x); }
EMU(int) __popcll(unsigned long long x) { return __builtin_popcountll(x); }
EMU(unsigned) __brev(unsigned x) {
  unsigned r = 0;
  for (int i = 0; i < 32; i++) r |= (x >> i & 1) << (31 - i);
  return r;
}
EMU(unsigned) __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t bytes = (uint64_t)y << 32 | x;
  unsigned r = 0;
  for (int i = 0; i < 4; i++) {
    const unsigned s = selector >> 4 * i & 15, byte = (unsigned)(bytes >> 8 * (s & 7)) & 255;
    r |= (s & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * i;
  }
  return r;
}
EMU(unsigned) __funnelshift_l(unsigned low, unsigned high, unsigned by) {
  return (unsigned)(((uint64_t)high << 32 | low) << (by & 31) >> 32);
}
EMU(unsigned) __umulhi(unsigned x, unsigned y) { return (unsigned)((uint64_t)x * y >> 32); }
EMU(int) __mulhi(int x, int y) { return (int)((int64_t)x * y >> 32); }
__extension__ typedef unsigned __int128 EmuUint128;
EMU(unsigned long long) __umul64hi(unsigned long long x, unsigned long long y) {
  return (unsigned long long)((EmuUint128)x * y >> 64);
}

// ---- arithmetic
#define EMU_MIN_MAX(T) \
  EMU(T) min(T a, T b) { return b < a ? b : a; } \
  EMU(T) max(T a, T b) { return a < b ? b : a; }
EMU_MIN_MAX(int)
EMU_MIN_MAX(unsigned)
EMU_MIN_MAX(long)
EMU_MIN_MAX(unsigned long)
EMU_MIN_MAX(long long)
EMU_MIN_MAX(unsigned long long)
EMU(float) min(float a, float b) { return fminf(a, b); }
EMU(float) max(float a, float b) { return fmaxf(a, b); }
EMU(double) min(double a, double b) { return fmin(a, b); }
EMU(double) max(double a, double b) { return fmax(a, b); }
EMU(float) __fadd_rn(float x, float y) { return x + y; }
EMU(float) __fsub_rn(float x, float y) { return x - y; }
EMU(float) __fmul_rn(float x, float y) { return x * y; }
EMU(float) __fdiv_rn(float x, float y) { return x / y; }
EMU(float) __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
EMU(float) __fsqrt_rn(float x) { return sqrtf(x); }
EMU(float) __frcp_rn(float x) { return 1.0f / x; }
EMU(double) __dadd_rn(double x, double y) { return x + y; }
EMU(double) __dmul_rn(double x, double y) { return x * y; }
EMU(double) __fma_rn(double x, double y, double z) { return fma(x, y, z); }
EMU(float) rsqrtf(float x) { return 1.0f / sqrtf(x); }
EMU(double) rsqrt(double x) { return 1.0 / sqrt(x); }
EMU(float) __frsqrt_rn(float x) { return (float)(1.0 / sqrt((double)x)); }
#define __expf(x) expf(x)                        // libm itself declares these names
#define __logf(x) logf(x)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
EMU(float) __fdividef(float x, float y) { return x / y; }
EMU(float) __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
EMU(float) cospif(float x) { return (float)cos(3.14159265358979323846 * fmod((double)x, 2.0)); }
EMU(float) sinpif(float x) { return (float)sin(3.14159265358979323846 * fmod((double)x, 2.0)); }
EMU(void) sincospif(float x, float *s, float *c) { *s = sinpif(x); *c = cospif(x); }
EMU(int) __float2int_rn(float x) { return (int)rintf(x); }
EMU(int) __float2int_rz(float x) { return (int)x; }
EMU(int) __float2int_rd(float x) { return (int)floorf(x); }
EMU(unsigned) __float2uint_rn(float x) { return (unsigned)rintf(x); }
EMU(long long) __float2ll_rn(float x) { return (long long)rintf(x); }
EMU(long long) __double2ll_rn(double x) { return (long long)rint(x); }
EMU(float) __int2float_rn(int x) { return (float)x; }
EMU(float) __uint2float_rn(unsigned x) { return (float)x; }
EMU(float) __double2float_rn(double x) { return (float)x; }
