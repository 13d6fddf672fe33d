// amx.h: the eight tile registers of AMX, 16 rows of 64 bytes each. CPU sections only.
//
//   amx_zero(t), amx_load(t, from, stride), amx_store(t, to, stride)   stride in bytes from row to row
//   amx_stream_load(t, from, stride)   for data that is read once: leaves L1 to the other operand
//   amx_dot(sum, a, b)     sum[i][j] += sum over k < 16 of the pair a[i][k] with the pair b[k][j] (bf16 pairs; Intel
//                          SDM, TDPBF16PS): one chain for the even elements, one for the odd, both starting at zero
//   amx_store_sums(to)     stores tiles 0 to 3, two by two, as a block of 32 x 32
//   amx_open()             asks Linux for the tile state, once per process; dies if Linux refuses
//   amx_thread_begin(), amx_thread_end()   around a thread's use of tiles
// With AMX_EMULATED the same steps run in C, which tests the logic on machines without AMX. Other builds have only the
// last three functions, and these do nothing.
#pragma once
#include "vec.h"

#if defined(__AMX_BF16__) || AMX_EMULATED
#define AMX_TILES 1
#else
#define AMX_TILES 0
#endif

#if AMX_TILES
// MXCSR with denormal operands zero and denormal results becoming zero, as tiles have it; the barriers keep arithmetic
// on its side of the change.
INLINE unsigned amx_flush_begin() {
  const unsigned mxcsr = _mm_getcsr();
  _mm_setcsr(mxcsr | 0x8040);
  __asm__ volatile("" : : : "memory");
  return mxcsr;
}
INLINE void amx_flush_end(unsigned mxcsr) {
  __asm__ volatile("" : : : "memory");
  _mm_setcsr(mxcsr);
}
#endif
#if AMX_EMULATED
static thread_local float amx_tiles[8][16][16];
static inline void amx_zero(int t) { memset(amx_tiles[t], 0, sizeof amx_tiles[t]); }
static inline void amx_load(int t, const void *from, int64_t stride) {
  for (int i = 0; i < 16; i++) memcpy(amx_tiles[t][i], (const char *)from + i * stride, 64);
}
static inline void amx_stream_load(int t, const void *from, int64_t stride) { amx_load(t, from, stride); }
static inline void amx_store(int t, void *to, int64_t stride) {
  for (int i = 0; i < 16; i++) memcpy((char *)to + i * stride, amx_tiles[t][i], 64);
}
// As in the manual: the even and the odd elements form two chains that start at zero, and their sum is added to the
// tile. Denormals count as zero everywhere.
static inline void amx_dot(int sum, int a, int b) {
  const unsigned mxcsr = amx_flush_begin();
  for (int i = 0; i < 16; i++) {
    vf even = vf_zero(), odd = vf_zero();
    for (int k = 0; k < 16; k++) {
      vi x = vf_bits(vf_set1(amx_tiles[a][i][k])), y = vf_bits(vf_load(amx_tiles[b][k])), high = vi_set1(-0x10000);
      even = vf_fma(vi_as_float(vi_shl(x, 16)), vi_as_float(vi_shl(y, 16)), even);
      odd = vf_fma(vi_as_float(vi_and(x, high)), vi_as_float(vi_and(y, high)), odd);
    }
    vf_store(amx_tiles[sum][i], vf_add(vf_load(amx_tiles[sum][i]), vf_add(even, odd)));
  }
  amx_flush_end(mxcsr);
}
static inline void amx_open() {}
static inline void amx_thread_begin() {}
static inline void amx_thread_end() {}
#elif defined(__AMX_BF16__)
#include <sys/syscall.h>
#include <unistd.h>
#define amx_zero(t) _tile_zero(t)
#define amx_load(t, from, stride) _tile_loadd(t, from, stride)
#define amx_stream_load(t, from, stride) _tile_stream_loadd(t, from, stride)
#define amx_store(t, to, stride) _tile_stored(t, to, stride)
#define amx_dot(sum, a, b) _tile_dpbf16ps(sum, a, b)
static inline void amx_open() {                  // Linux gives the 8 KB of tile state only to processes that ask
  const long request_permission = 0x1023, tile_data = 18;
  if (syscall(SYS_arch_prctl, request_permission, tile_data) != 0)
    die_missing("AMX: the system refuses tiles (arch_prctl); needs Linux 5.16 or later, or another instruction set");
}
struct AmxConfig { uint8_t palette, start_row, zero[14]; uint16_t row_bytes[16]; uint8_t rows[16]; };
static inline void amx_thread_begin() {          // tile shapes belong to the thread
  AmxConfig config = {};
  config.palette = 1;
  for (int t = 0; t < 8; t++) { config.row_bytes[t] = 64; config.rows[t] = 16; }
  __asm__ volatile("" : : "r"(&config) : "memory");   // gcc 12 does not see that the intrinsic reads it all
  _tile_loadconfig(&config);
}
static inline void amx_thread_end() { _tile_release(); }   // tiles in use make every context switch save 8 KB
#else
static inline void amx_open() {}
static inline void amx_thread_begin() {}
static inline void amx_thread_end() {}
#endif
#if AMX_TILES
INLINE void amx_store_sums(float *to) {
  amx_store(0, to, 128);
  amx_store(1, to + 16, 128);
  amx_store(2, to + 16 * 32, 128);
  amx_store(3, to + 16 * 32 + 16, 128);
}
#endif
