// warp.h: what the lanes of a warp do together: shuffles, votes, tensor core multiplies, and copies that land late.
// Fragment layouts are those of the PTX ISA ("Matrix fragments for mma.m16n8k16", "ldmatrix").
#pragma once
#include "fibres.h"
#include <vector>

// ---- shuffles
// source < 0: the lane keeps its own value. A lane outside the mask gives NaN.
struct EmuShuffle { uint64_t in, out; int source; };
EMU(void) emu_shuffle_op(void **operands, uint32_t lanes) {
  for (uint32_t left = lanes; left; left &= left - 1) {
    EmuShuffle *s = (EmuShuffle *)operands[__builtin_ctz(left)];
    if (s->source < 0) s->out = s->in;
    else s->out = lanes >> s->source & 1 ? ((EmuShuffle *)operands[s->source])->in : ~(uint64_t)0;
  }
}
template <class T> static inline T emu_shuffle(uint32_t mask, T x, int source, const char *what) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 2, "shuffles move 2, 4 or 8 bytes");
  EmuShuffle s = {0, 0, source};
  memcpy(&s.in, &x, sizeof x);
  emu_meet(mask, &s, emu_shuffle_op, what);
  memcpy(&x, &s.out, sizeof x);
  return x;
}
static inline int emu_lane() { return (int)(emu_thread->index % 32); }
template <class T> static inline T __shfl_sync(uint32_t mask, T x, int source, int width = 32) {
  return emu_shuffle(mask, x, (emu_lane() & ~(width - 1)) + (source & (width - 1)), "__shfl_sync");
}
template <class T> static inline T __shfl_xor_sync(uint32_t mask, T x, int bits, int width = 32) {
  const int source = emu_lane() ^ bits, end = (emu_lane() & ~(width - 1)) + width;
  return emu_shuffle(mask, x, source < end ? source : -1, "__shfl_xor_sync");
}
template <class T> static inline T __shfl_down_sync(uint32_t mask, T x, unsigned by, int width = 32) {
  const int source = emu_lane() + (int)by, end = (emu_lane() & ~(width - 1)) + width;
  return emu_shuffle(mask, x, source < end ? source : -1, "__shfl_down_sync");
}
template <class T> static inline T __shfl_up_sync(uint32_t mask, T x, unsigned by, int width = 32) {
  const int source = emu_lane() - (int)by;
  return emu_shuffle(mask, x, source >= (emu_lane() & ~(width - 1)) ? source : -1, "__shfl_up_sync");
}

// ---- votes
struct EmuVote { bool yes; uint32_t ballot; };
EMU(void) emu_vote_op(void **operands, uint32_t lanes) {
  uint32_t ballot = 0;
  for (uint32_t left = lanes; left; left &= left - 1)
    if (((EmuVote *)operands[__builtin_ctz(left)])->yes) ballot |= left & -left;
  for (uint32_t left = lanes; left; left &= left - 1) ((EmuVote *)operands[__builtin_ctz(left)])->ballot = ballot;
}
static inline uint32_t emu_vote(uint32_t mask, bool yes, const char *what) {
  EmuVote v = {yes, 0};
  emu_meet(mask, &v, emu_vote_op, what);
  return v.ballot;
}
EMU(unsigned) __ballot_sync(uint32_t mask, int p) { return emu_vote(mask, p, "__ballot_sync"); }
EMU(int) __any_sync(uint32_t mask, int p) { return emu_vote(mask, p, "__any_sync") != 0; }
EMU(int) __all_sync(uint32_t mask, int p) { return emu_vote(mask, !p, "__all_sync") == 0; }
EMU(void) emu_no_op(void **, uint32_t) {}
EMU(void) __syncwarp(uint32_t mask = 0xffffffffu) { emu_meet(mask, NULL, emu_no_op, "__syncwarp"); }

// ---- tensor cores
// Types bf16 and fp16 come from device.h, which is included first.
inline void emu_whole_warp(const char *what) {
  if (emu_warp_of(emu_thread)->live != 0xffffffffu) emu_fail("%s in a warp of less than 32 threads", what);
}
typedef float EmuRow __attribute__((vector_size(32)));             // 8 columns
struct EmuMma { float *d; const uint32_t *a, *b; };
template <class T> static inline float emu_half(uint32_t pair, int high) {
  T x;
  x.bits = (uint16_t)(high ? pair >> 16 : pair);
  return to_f32(x);
}
template <class T> static void emu_mma_op(void **operands, uint32_t) {
  float a[16][16];
  EmuRow b[16], d[16];
  for (int lane = 0; lane < 32; lane++) {
    const EmuMma *m = (const EmuMma *)operands[lane];
    const int group = lane / 4, column = lane % 4 * 2;
    for (int e = 0; e < 2; e++) {
      for (int r = 0; r < 4; r++) a[group + r % 2 * 8][column + e + r / 2 * 8] = emu_half<T>(m->a[r], e);
      for (int r = 0; r < 2; r++) b[column + e + r * 8][group] = emu_half<T>(m->b[r], e);
      for (int r = 0; r < 2; r++) d[group + r * 8][column + e] = m->d[r * 2 + e];
    }
  }
  for (int i = 0; i < 16; i++) {
    EmuRow sum = {};
    for (int k = 0; k < 16; k++) sum += a[i][k] * b[k];
    d[i] += sum;
  }
  for (int lane = 0; lane < 32; lane++)
    for (int r = 0; r < 4; r++) ((EmuMma *)operands[lane])->d[r] = d[lane / 4 + r / 2 * 8][lane % 4 * 2 + r % 2];
}
template <class T> static inline void emu_mma_16816(float d[4], const uint32_t a[4], const uint32_t b[2], const T *) {
  EmuMma m = {d, a, b};
  emu_whole_warp("mma");
  emu_meet(0xffffffffu, &m, emu_mma_op<T>, "mma");
  emu_count.multiplies += 16 * 8 * 16 / 32;
}

struct EmuLdmatrix { uint32_t *r; const void *row; bool trans; };
EMU(void) emu_ldmatrix_op(void **operands, uint32_t) {
  for (int tile = 0; tile < 4; tile++) {
    uint16_t m[8][8];
    for (int i = 0; i < 8; i++) {
      const void *row = ((EmuLdmatrix *)operands[tile * 8 + i])->row;
      if ((uintptr_t)row % 16) emu_fail("ldmatrix: the row of lane %d is not 16-byte aligned", tile * 8 + i);
      if (!emu_is_shared(row)) emu_fail("ldmatrix: the row of lane %d is not in shared memory", tile * 8 + i);
      memcpy(m[i], row, 16);
    }
    for (int lane = 0; lane < 32; lane++) {
      EmuLdmatrix *o = (EmuLdmatrix *)operands[lane];
      const int r = lane / 4, c = lane % 4 * 2;
      o->r[tile] = o->trans ? m[c][r] | (uint32_t)m[c + 1][r] << 16 : m[r][c] | (uint32_t)m[r][c + 1] << 16;
    }
  }
}
EMU(void) emu_ldmatrix_x4(uint32_t *r, const void *row, bool trans) {
  EmuLdmatrix o = {r, row, trans};
  emu_whole_warp("ldmatrix");
  emu_meet(0xffffffffu, &o, emu_ldmatrix_op, trans ? "ldmatrix.trans" : "ldmatrix");
}

// ---- cp.async
// Between issue and wait the destination is undefined: it holds NaN. The data lands at the thread's own wait.
static inline void emu_proxy_landed(const void *piece);           // warpgroup.h: another path to it must be told
struct EmuCopy { void *to; const void *from; int group; };
inline std::vector<EmuCopy> emu_copies[EMU_MAX_THREADS];
inline int emu_copy_group[EMU_MAX_THREADS];

EMU(void) emu_cp_async16(void *to, const void *from, bool ok) {
  if (((uintptr_t)to | (ok ? (uintptr_t)from : 0)) % 16) emu_fail("cp.async: an address is not 16-byte aligned");
  if (!emu_is_shared(to)) emu_fail("cp.async: the destination is not in shared memory");
  memset(to, 0xff, 16);
  emu_count.loads += ok ? 16 : 0;
  emu_copies[emu_thread->index].push_back({to, ok ? from : NULL, emu_copy_group[emu_thread->index]});
}
EMU(void) emu_cp_async_commit() { emu_copy_group[emu_thread->index]++; }
template <int N> static inline void emu_cp_async_wait() {
  std::vector<EmuCopy> &copies = emu_copies[emu_thread->index];
  size_t landed = 0;
  for (; landed < copies.size(); landed++) {
    const EmuCopy &c = copies[landed];
    if (c.group >= emu_copy_group[emu_thread->index] - N) break;
    if (c.from) memcpy(c.to, c.from, 16);
    else memset(c.to, 0, 16);
    emu_proxy_landed(c.to);
  }
  copies.erase(copies.begin(), copies.begin() + (long)landed);
}
EMU(void) emu_cp_async_end() {                   // ends a thread: copies without a wait never land
  emu_copies[emu_thread->index].clear();
  emu_copy_group[emu_thread->index] = 0;
}
