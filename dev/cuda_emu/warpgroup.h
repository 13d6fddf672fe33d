// warpgroup.h: warpgroup multiplies (first version: they run where they are asked for).
#pragma once
#include "warp.h"
struct EmuWgmma { float *d; const uint32_t *a; };
struct EmuWgmmaMeeting { unsigned here; EmuWgmma operand[128]; uint64_t a, b; bool add; };
static EmuWgmmaMeeting emu_wgmma_meeting[EMU_MAX_THREADS / 128];
static inline const char *emu_wgmma_at(uint64_t tile, int row, int column, bool transposed) {
  // element (row, column): K-major rows of 128 bytes; transposed: (k, n)
  const size_t base = (size_t)(tile & 0x3fff) << 4, lbo = (size_t)(tile >> 16 & 0x3fff) << 4, sbo = (size_t)(tile >> 32 & 0x3fff) << 4;
  size_t at;
  if (!transposed) at = base + (size_t)(row / 8) * sbo + (size_t)(row % 8) * 128 + (size_t)column * 2;
  else at = base + (size_t)(row / 8) * sbo + (size_t)(row % 8) * 128 + (size_t)(column / 64) * lbo + (size_t)(column % 64) * 2;
  at ^= (at >> 7 & 7) << 4;
  char *shared = emu_dynamic_end + emu_thread->rank * EMU_SHARED_STRIDE - emu_round(emu_dynamic.bytes, 1024);
  return shared + at;
}
template <class T, int N> static void emu_wgmma(float *d, const uint32_t *a_registers, uint64_t a, uint64_t b, bool add) {
  const unsigned group = emu_thread->index / 128, t = emu_thread->index % 128;
  EmuWgmmaMeeting *m = &emu_wgmma_meeting[group];
  if (!m->here) m->a = a, m->b = b, m->add = add;
  if (m->a != a || m->b != b || m->add != add) emu_fail("wgmma: threads of a warpgroup differ in its operands");
  m->operand[t] = {d, a_registers};
  if (++m->here < 128) { emu_wait("wgmma"); return; }
  m->here = 0;
  static float A[64][16], B[16][N], D[64][N];
  for (int i = 0; i < 64; i++)
    for (int k = 0; k < 16; k++) {
      T x;
      if (a_registers) {
        const uint32_t pair = m->operand[i / 16 * 32 + i % 8 * 4 + k % 8 / 2].a[i % 16 / 8 + k / 8 * 2];
        x.bits = (uint16_t)(k % 2 ? pair >> 16 : pair);
      } else memcpy(&x, emu_wgmma_at(a, i, k, false), 2);
      A[i][k] = to_f32(x);
    }
  for (int n = 0; n < N; n++)
    for (int k = 0; k < 16; k++) {
      T x;
      memcpy(&x, a_registers ? emu_wgmma_at(b, k, n, true) : emu_wgmma_at(b, n, k, false), 2);
      B[k][n] = to_f32(x);
    }
  for (int i = 0; i < 64; i++) {
    float sum[N] = {};
    for (int k = 0; k < 16; k++) for (int n = 0; n < N; n++) sum[n] += A[i][k] * B[k][n];
    for (int n = 0; n < N; n++) {
      float *x = &m->operand[i / 16 * 32 + i % 8 * 4 + n % 8 / 2].d[n / 8 * 4 + i % 16 / 8 * 2 + n % 2];
      *x = add ? *x + sum[n] : sum[n];
    }
  }
  (void)D;
  for (unsigned w = group * 4; w < group * 4 + 4; w++) { emu_warps[w].ready = emu_warps[w].live; emu_ready_warps |= 1u << w; }
}
