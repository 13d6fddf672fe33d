// lane.cuh: the part of a row or a flat range that one CUDA thread holds, as vec.h is the part in one CPU vector.
//
//   Lanes<W>                       W neighbouring values in fp32: 8, read and written in 16-byte pieces, or 4, or 1
//                                  where a row's length or a pointer's alignment allows no more
//   lanes_load, lanes_store        from and to float, bf16, fp16, fp8; lanes_store returns the values as stored, but of
//                                  fp8 none
//   LanesRaw<W, T>                 W values as stored in memory; lanes_read, lanes_unpack: lanes_load in two steps
//   vf, vi, vm; vf_add ...         a number of a lane, and vec.h's operations on it, for kernels/formulas.cuh
//   LaneCount<W>, each             W as an argument, for code that is shared with the CPU's vectors (flat.cuh)
//   flat_blocks                    blocks of a kernel that walks a flat range with a stride of the whole grid
#pragma once
#include "gpu.h"

// In flat ranges with any fp32 tensor a thread takes 4 values at a time, so that a warp's 16-byte pieces of fp32 are
// contiguous. With 8 values a thread has two such pieces, so one access of a warp would touch every other piece: twice
// the cache lines, and half-written sectors.
enum { LANES = 8, LANES_FLAT = 4 };
template <int W> struct Lanes { float x[W]; };
template <int N> struct alignas(4 * N) LaneWords { uint32_t x[N]; };

// Every pointer on 16 bytes (NULL counts as aligned), which access to LANES values at once requires.
static inline bool lanes_aligned(const void *a, const void *b = NULL, const void *c = NULL, const void *d = NULL,
                                 const void *e = NULL) {
  return (((uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d | (uintptr_t)e) & 15) == 0;
}

// lanes_read issues a load, and lanes_unpack, which may come later, waits for it. Meanwhile the load is in flight, and
// 16-bit values take half the registers. The members are 32-bit words, because nvcc would split 16-bit members at once,
// and so wait for the load.
template <int W, class T> struct LanesRaw { Pack<uint32_t> pack[W * sizeof(T) / 16]; };
template <class T> struct LanesRaw<1, T> { T x; };
template <int W, class T> __device__ static inline LanesRaw<W, T> lanes_read(const T *p) {
  LanesRaw<W, T> r;
  if constexpr (W == 1) r.x = *p;
  else UNROLL for (int i = 0; i < W * (int)sizeof(T) / 16; i++) r.pack[i] = load_pack((const uint32_t *)p + 4 * i);
  return r;
}
template <int W, class T> __device__ static inline Lanes<W> lanes_unpack(LanesRaw<W, T> raw) {
  Lanes<W> r;
  if constexpr (W == 1) {
    r.x[0] = to_f32(raw.x);
  } else if constexpr (sizeof(T) == 4) {
    UNROLL for (int i = 0; i < 8; i++) r.x[i] = bits_f32(raw.pack[i / 4].x[i % 4]);
  } else {
    UNROLL for (int i = 0; i < 4; i++) unpack2<T>(raw.pack[0].x[i], &r.x[2 * i], &r.x[2 * i + 1]);
  }
  return r;
}
template <int W, class T> __device__ static inline Lanes<W> lanes_load(const T *p) {
  if constexpr (W != 4) {
    return lanes_unpack<W, T>(lanes_read<W>(p));
  } else {
    const LaneWords<(int)sizeof(T)> words = *(const LaneWords<(int)sizeof(T)> *)p;
    Lanes<W> r;
    if constexpr (sizeof(T) == 4) UNROLL for (int i = 0; i < 4; i++) r.x[i] = bits_f32(words.x[i]);
    else UNROLL for (int i = 0; i < 2; i++) unpack2<T>(words.x[i], &r.x[2 * i], &r.x[2 * i + 1]);
    return r;
  }
}
template <int W, class T> __device__ static inline Lanes<W> lanes_store(T *p, Lanes<W> v) {
  if constexpr (W == 1) {
    T stored;
    round_to(&stored, v.x[0]);
    *p = stored;
    v.x[0] = to_f32(stored);
  } else if constexpr (W == 4) {
    LaneWords<(int)sizeof(T)> words;
    if constexpr (sizeof(T) == 4) {
      UNROLL for (int i = 0; i < 4; i++) words.x[i] = f32_bits(v.x[i]);
    } else {
      UNROLL for (int i = 0; i < 2; i++) {
        words.x[i] = pack2<T>(v.x[2 * i], v.x[2 * i + 1]);
        unpack2<T>(words.x[i], &v.x[2 * i], &v.x[2 * i + 1]);
      }
    }
    *(LaneWords<(int)sizeof(T)> *)p = words;
  } else if constexpr (sizeof(T) == 4) {
    Pack<T> low, high;
    UNROLL for (int i = 0; i < 4; i++) low.x[i] = v.x[i], high.x[i] = v.x[4 + i];
    store_pack(p, low);
    store_pack(p + 4, high);
  } else {
    Pack<T> packed;
    uint32_t pair[4];
    UNROLL for (int i = 0; i < 4; i++) {
      pair[i] = pack2<T>(v.x[2 * i], v.x[2 * i + 1]);
      unpack2<T>(pair[i], &v.x[2 * i], &v.x[2 * i + 1]);
    }
    memcpy(&packed, pair, sizeof pair);
    store_pack(p, packed);
  }
  return v;
}
template <int W> __device__ static inline Lanes<W> lanes_load(const fp8 *p) {
  Lanes<W> r;
  if constexpr (W == 1) {
    r.x[0] = to_f32(*p);
  } else {
    const LaneWords<W / 4> words = *(const LaneWords<W / 4> *)p;
    UNROLL for (int i = 0; i < W / 4; i++) unpack4_fp8(words.x[i], r.x + 4 * i);
  }
  return r;
}
template <int W> __device__ static inline void lanes_store(fp8 *p, Lanes<W> v) {
  if constexpr (W == 1) {
    round_to(p, v.x[0]);
  } else {
    LaneWords<W / 4> words;
    UNROLL for (int i = 0; i < W / 4; i++) words.x[i] = pack4_fp8(v.x + 4 * i);
    *(LaneWords<W / 4> *)p = words;
  }
}
template <int W> __device__ static inline Lanes<W> lanes_of(float x) {
  Lanes<W> r;
  UNROLL for (int i = 0; i < W; i++) r.x[i] = x;
  return r;
}

// ---- vec.h's operations on one number -------------------------------------------------------------------------------
#define INLINE __device__ static inline
typedef float vf;
typedef int32_t vi;
typedef bool vm;
INLINE vf vf_set1(float x) { return x; }
INLINE float vf_first_lane(vf a) { return a; }
INLINE vf vf_add(vf a, vf b) { return a + b; }
INLINE vf vf_sub(vf a, vf b) { return a - b; }
INLINE vf vf_mul(vf a, vf b) { return a * b; }
INLINE vf vf_div(vf a, vf b) { return a / b; }
INLINE vf vf_sqrt(vf a) { return sqrtf(a); }
INLINE vf vf_fma(vf a, vf b, vf c) { return fmaf(a, b, c); }
INLINE vf vf_max(vf a, vf b) { return a > b ? a : b; }
INLINE vf vf_min(vf a, vf b) { return a < b ? a : b; }
INLINE vf vf_round(vf a) { return rintf(a); }
INLINE vm vf_lt(vf a, vf b) { return a < b; }
INLINE vm vi_below(vi a, uint32_t b) { return (uint32_t)a < b; }
INLINE vf vf_select(vm m, vf yes, vf no) { return m ? yes : no; }
INLINE vf vf_zero_where(vm m, vf a) { return m ? 0.0f : a; }
INLINE vi vf_bits(vf a) { return (vi)f32_bits(a); }
INLINE vf vi_as_float(vi a) { return bits_f32((uint32_t)a); }
INLINE vf vi_to_float(vi a) { return (float)a; }
INLINE vi vi_set1(int32_t x) { return x; }
INLINE vi vi_add(vi a, vi b) { return (vi)((uint32_t)a + (uint32_t)b); }
INLINE vi vi_sub(vi a, vi b) { return (vi)((uint32_t)a - (uint32_t)b); }
INLINE vi vi_and(vi a, vi b) { return a & b; }
INLINE vi vi_or(vi a, vi b) { return a | b; }
INLINE vi vi_xor(vi a, vi b) { return a ^ b; }
INLINE vi vi_shl(vi a, int n) { return (vi)((uint32_t)a << n); }
INLINE vi vi_shr(vi a, int n) { return (vi)((uint32_t)a >> n); }

template <int W> struct LaneCount {};
template <int W, class T> INLINE Lanes<W> vf_load_n(const T *p, LaneCount<W>) { return lanes_load<W>(p); }
template <int W, class T> INLINE void vf_store_n(T *p, Lanes<W> x, LaneCount<W>) { lanes_store<W>(p, x); }
template <int W> INLINE Lanes<W> vf_set_n(float x, LaneCount<W>) { return lanes_of<W>(x); }
template <int W> struct LaneBits { vi x[W]; };
#define LANES_OF __device__ inline
#define LANES_EACH
template <int W, class F, class... V> INLINE void each(LaneCount<W>, F f, V &...x) {
  UNROLL for (int k = 0; k < W; k++) f(x.x[k]...);
}

// ---- flat ranges ----------------------------------------------------------------------------------------------------
// At most 2048 blocks: on the largest GPUs two waves of eight blocks per SM. That fills the SMs, and is few enough that
// a block's setup costs little.
static const int FLAT_THREADS = 256, FLAT_BLOCKS = 2048;
static inline unsigned flat_blocks(int64_t n, int width) {
  const int64_t each = (int64_t)FLAT_THREADS * width, blocks = (n + each - 1) / each;
  return (unsigned)(blocks < 1 ? 1 : blocks < FLAT_BLOCKS ? blocks : FLAT_BLOCKS);
}
// FLAT_WALK(W, n, i, group, single): every group of W elements once, then the last n % W elements one by one.
#define FLAT_WALK(W, n, i, group, single) \
  do { \
    const int64_t thread_ = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; \
    const int64_t threads_ = (int64_t)gridDim.x * blockDim.x; \
    for (int64_t i = thread_ * (W); i + (W) <= (n); i += threads_ * (W)) { group; } \
    if ((W) > 1 && thread_ < (n) % (W)) { const int64_t i = (n) / (W) * (W) + thread_; single; } \
  } while (0)
