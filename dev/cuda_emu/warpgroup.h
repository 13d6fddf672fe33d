// warpgroup.h: Hopper's WGMMA instructions (PTX ISA, "Asynchronous warpgroup level matrix instructions"), by what the
// manual says of them. 128 threads meet; the last computes for all. Checked, each by a message that names the rule:
//
//   R1  a warpgroup's threads give the same operands; its first thread is a multiple of 128
//   R3  a tile's descriptor: reserved bits, the 128-byte swizzle, a start on a multiple of 1024 but for steps within a
//       row, all that is read inside the block's dynamic shared memory
//   R4  elements are by the canonical layouts: rows of 128 bytes, groups of eight rows, pieces of 16 bytes swizzled
//   R5  what d and the registers of A hold at the multiply, they held at the thread's last wgmma_fence; a d that is
//       being computed needs none
//   R6  until the wait that covers it, d is NaN, and nobody writes it or the registers of A; the sums land at the wait
//   R7  a multiply reads shared memory by another path than stores and cp.async write it: what these wrote it sees only
//       after the writer's proxy_fence and a barrier. What it reads does not change until its wait
//   R8  a wait covers groups that were committed; nothing is in flight when a thread ends
//
// What is not checked: how the tensor cores add (so these bits are not a GPU's), and time.
#pragma once
#include "warp.h"

// ---- the proxy
// What multiplies see of the dynamic shared memory of the one block that runs, by pieces of 16 bytes; and whose
// cp.async wrote a piece last (0: none). A piece that a thread wrote is seen after a barrier before which that thread
// fenced. Stores are not seen one by one: a piece that only they changed is seen after a barrier before which all did.
enum { EMU_PIECES = EMU_SHARED_REGION / 16 };
struct EmuPiece { uint64_t x[2]; };
inline EmuPiece emu_visible[EMU_PIECES];
inline uint16_t emu_piece_by[EMU_PIECES];
inline bool emu_fenced[EMU_MAX_THREADS];
inline uint64_t emu_visible_of;                  // the block whose memory that is

static inline EmuPiece *emu_dynamic_pieces() { return (EmuPiece *)emu_shared_dynamic(); }
static inline unsigned emu_dynamic_piece_count() { return (unsigned)((emu_dynamic.bytes + 15) / 16); }
static inline void emu_proxy_begin() {
  if (emu_visible_of == emu_block_serial) return;
  emu_visible_of = emu_block_serial;
  memset(emu_visible, 0xff, emu_dynamic_piece_count() * sizeof(EmuPiece));
  memset(emu_piece_by, 0, sizeof emu_piece_by);
  memset(emu_fenced, 0, sizeof emu_fenced);
}
static inline void *emu_shared_tiles() {         // what multiplies read must be known from the kernel's start on
  if (emu_capability_now / 10 != 9) emu_fail("wgmma on a device of compute capability %d", emu_capability_now);
  if (emu_cluster > 1) emu_fail("wgmma in a cluster is not emulated");
  emu_proxy_begin();
  return emu_shared_dynamic();
}
static inline void emu_proxy_landed(const void *piece) {         // the running thread's cp.async
  if (emu_visible_of != emu_block_serial) return;
  emu_fenced[emu_thread->index] = false;
  const int64_t i = (const EmuPiece *)piece - emu_dynamic_pieces();
  if (i >= 0 && i < (int64_t)emu_dynamic_piece_count()) emu_piece_by[i] = (uint16_t)(emu_thread->index + 1);
}
EMU(void) emu_proxy_fence() { emu_fenced[emu_thread->index] = true; }
EMU(void) emu_proxy_barrier() {         // all threads of the block have arrived
  if (emu_visible_of != emu_block_serial) return;
  bool all = true;
  for (unsigned i = 0; i < emu_block_threads; i++) all = all && emu_fenced[i];
  const EmuPiece *now = emu_dynamic_pieces();
  for (unsigned i = 0; i < emu_dynamic_piece_count(); i++)
    if (emu_piece_by[i] ? emu_fenced[emu_piece_by[i] - 1] : all) emu_visible[i] = now[i], emu_piece_by[i] = 0;
  if (all) memset(emu_fenced, 0, sizeof emu_fenced);
}

// ---- tiles
// Byte of element (row, column) in dynamic shared memory; transposed: the rows are those of k.
static inline size_t emu_tile_at(uint64_t tile, int row, int column, bool transposed) {
  const size_t start = (size_t)(tile & 0x3fff) << 4, columns = (size_t)(tile >> 16 & 0x3fff) << 4;
  const size_t groups = (size_t)(tile >> 32 & 0x3fff) << 4;
  const size_t at = start + (size_t)(row / 8) * groups + (size_t)(row % 8) * 128 +
                    (transposed ? (size_t)(column / 64) * columns + (size_t)(column % 64) * 2 : (size_t)column * 2);
  return at ^ (at >> 7 & 7) << 4;
}
// Reads a tile of rows x columns elements, and hashes what it read. to == NULL: hashes it again, seen or not.
inline uint64_t emu_tile_read(uint64_t tile, int rows, int columns, bool transposed, uint16_t *to) {
  if (tile & ~(0x3fffull | 0x3fffull << 16 | 0x3fffull << 32 | 3ull << 62))
    emu_fail("wgmma: reserved bits or a base offset in descriptor %016llx", (unsigned long long)tile);
  if (tile >> 62 != 1) emu_fail("wgmma: a tile without the 128-byte swizzle, the only one that is emulated");
  if ((tile & 0x3fff) >> 3 & 7) emu_fail("wgmma: a tile does not start on 1024 bytes");
  const EmuPiece *pieces = emu_dynamic_pieces();
  uint64_t hash = 1469598103934665603ull;
  for (int r = 0; r < rows; r++)
    for (int c = 0; c < columns; c += 8) {
      const size_t piece = emu_tile_at(tile, r, c, transposed) / 16;
      if (piece >= emu_dynamic_piece_count()) emu_fail("wgmma: a tile reaches beyond shared memory");
      if (to && memcmp(&pieces[piece], &emu_visible[piece], 16))
        emu_fail("wgmma: byte %zu of shared memory was written without proxy_fence and a barrier after it",
                 piece * 16);
      if (to) memcpy(to + r * columns + c, &pieces[piece], 16);
      hash = (hash ^ pieces[piece].x[0]) * 1099511628211ull, hash = (hash ^ pieces[piece].x[1]) * 1099511628211ull;
    }
  return hash;
}

// ---- what is in flight
enum { EMU_FLIGHTS = 64, EMU_WGMMA_SUMS = 64 };
// A d of one thread while multiplies into it are in flight: what it will hold.
struct EmuFlight { float *d; int n, group; float sums[EMU_WGMMA_SUMS]; };
// The registers of A of one multiply of a thread, and what a warpgroup's multiply read of shared memory.
struct EmuRead { const uint32_t *a; uint32_t was[4]; int group; uint64_t tile_a, tile_b, hash; int n; };
struct EmuWarpgroupThread {
  uint64_t block;                                // whose thread this is
  int committed, flights, reads;
  EmuFlight flight[4];                           // a thread has few sums
  EmuRead read[EMU_FLIGHTS];
  const char *fence_sp;                          // from here on its stack at the last fence
  size_t fence_bytes;
  char fence[16 << 10];
};
inline EmuWarpgroupThread emu_wgt[EMU_MAX_THREADS];
struct EmuWgmma { float *d; const uint32_t *a; uint64_t tile_a, tile_b; bool add; int n; };
struct EmuWgmmaMeeting { unsigned here; EmuWgmma of[128]; };
inline EmuWgmmaMeeting emu_wgmma_meeting[EMU_MAX_THREADS / 128];

inline EmuWarpgroupThread *emu_wgt_now() {
  EmuWarpgroupThread *t = &emu_wgt[emu_thread->index];
  if (t->block != emu_block_serial) {
    t->block = emu_block_serial;
    t->committed = t->flights = t->reads = 0;
    t->fence_bytes = 0;
  }
  return t;
}
inline EmuFlight *emu_flight(EmuWarpgroupThread *t, const float *d) {
  for (int i = 0; i < t->flights; i++) if (t->flight[i].d == d) return &t->flight[i];
  return NULL;
}
// Registers of a kernel are its arrays on the thread's stack, which a fence remembers whole.
__attribute__((noinline, no_sanitize("address"))) inline void emu_wgmma_fence() {
  EmuWarpgroupThread *t = emu_wgt_now();
  const char *sp = (const char *)__builtin_frame_address(0), *end = emu_thread->stack + EMU_STACK_BYTES;
  emu_whole_warp("wgmma.fence");
  t->fence_sp = sp;
  t->fence_bytes = (size_t)(end - sp) < sizeof t->fence ? (size_t)(end - sp) : sizeof t->fence;
  memcpy(t->fence, sp, t->fence_bytes);
  emu_meet(0xffffffffu, NULL, emu_no_op, "wgmma.fence");
}
inline void emu_check_fenced(const EmuWarpgroupThread *t, const void *registers, size_t bytes, const char *what) {
  const int64_t at = (const char *)registers - t->fence_sp;
  if (!t->fence_bytes) emu_fail("wgmma: no wgmma_fence before the first multiply");
  if (at < 0 || (size_t)at + bytes > t->fence_bytes) return;       // not on this stack
  if (memcmp(t->fence + at, registers, bytes)) emu_fail("wgmma: %s changed since the last wgmma_fence", what);
}
__attribute__((noinline)) inline void emu_wgmma_commit() { emu_wgt_now()->committed++; }
__attribute__((noinline)) inline void emu_wgmma_wait(int pending) {
  EmuWarpgroupThread *t = emu_wgt_now();
  int kept = 0;
  emu_meet(0xffffffffu, NULL, emu_no_op, "wgmma.wait_group");
  for (int i = 0; i < t->reads; i++) {
    const EmuRead r = t->read[i];
    if (r.group >= t->committed - pending) { t->read[kept++] = r; continue; }
    if (r.a && memcmp(r.a, r.was, sizeof r.was)) emu_fail("wgmma: registers of A were written before the wait");
    if (emu_lane()) continue;                    // one lane a warp looks at the tiles
    uint64_t hash = r.a ? 0 : emu_tile_read(r.tile_a, 64, 16, false, NULL);
    hash ^= r.a ? emu_tile_read(r.tile_b, 16, r.n, true, NULL) : emu_tile_read(r.tile_b, r.n, 16, false, NULL);
    if (hash != r.hash) emu_fail("wgmma: shared memory was written while a multiply read it");
  }
  t->reads = kept;
  kept = 0;
  for (int i = 0; i < t->flights; i++) {
    EmuFlight *f = &t->flight[i];
    if (f->group >= t->committed - pending) { if (kept != i) t->flight[kept] = *f; kept++; continue; }
    if (!emu_untouched((const char *)f->d, (size_t)f->n * 4)) emu_fail("wgmma: sums were written before the wait");
    memcpy(f->d, f->sums, (size_t)f->n * 4);
  }
  t->flights = kept;
}
EMU(void) emu_wgmma_end() {                      // a thread ends
  const EmuWarpgroupThread *t = &emu_wgt[emu_thread->index];
  if (t->block == emu_block_serial && (t->flights || t->reads)) emu_fail("wgmma: a thread ends before its last wait");
}

// d (64 x N) = or += A (64 x 16) B. A from shared memory and B's rows are those of the result's columns (a == NULL), or
// A from registers and B's rows are those of k.
template <class T, int N> __attribute__((noinline)) static void emu_wgmma(float *d, const uint32_t *a, uint64_t tile_a,
                                                                        uint64_t tile_b, bool add) {
  static_assert(N % 8 == 0 && N <= 2 * EMU_WGMMA_SUMS, "sums of a thread");
  EmuWarpgroupThread *t = emu_wgt_now();
  const unsigned group = emu_thread->index / 128, first = group * 128;
  auto *meeting = &emu_wgmma_meeting[group];
  if (emu_block_threads % 128) emu_fail("wgmma: a block of %u threads, no multiple of 128", emu_block_threads);
  if (emu_visible_of != emu_block_serial) emu_fail("wgmma: a kernel without SHARED_TILES");
  if (t->reads == EMU_FLIGHTS) emu_fail("wgmma: more than %d multiplies in flight", EMU_FLIGHTS);
  EmuFlight *f = emu_flight(t, d);
  if (!f) {
    emu_check_fenced(t, d, N / 2 * 4, "a sum");
    if (t->flights == 4) emu_fail("wgmma: more than 4 sums in flight");
    f = &t->flight[t->flights++];
    f->d = d, f->n = N / 2;
    memcpy(f->sums, d, N / 2 * 4);
    memset(d, 0xff, N / 2 * 4);
  }
  if (a) emu_check_fenced(t, a, 16, "A in registers");
  f->group = t->committed;
  meeting->of[emu_thread->index - first] = {f->sums, a, tile_a, tile_b, add, N};
  EmuRead *mine = &t->read[t->reads++];
  *mine = {a, {}, t->committed, tile_a, tile_b, 0, N};
  if (a) memcpy(mine->was, a, 16);
  emu_count.multiplies += 64 * N * 16 / 128;
  if (++meeting->here < 128) { emu_wait("wgmma"); return; }
  meeting->here = 0;
  static uint16_t a_bits[64 * 16], b_bits[16 * N];
  static float A[64][16], B[16][N];
  const EmuWgmma *of = meeting->of;
  for (int i = 1; i < 128; i++)
    if (of[i].tile_a != of[0].tile_a || of[i].tile_b != of[0].tile_b || of[i].add != of[0].add || of[i].n != of[0].n ||
        !of[i].a != !of[0].a)
      emu_fail("wgmma: the threads of a warpgroup give different operands");
  uint64_t hash = a ? 0 : emu_tile_read(tile_a, 64, 16, false, a_bits);
  hash ^= a ? emu_tile_read(tile_b, 16, N, true, b_bits) : emu_tile_read(tile_b, N, 16, false, b_bits);
  for (unsigned i = first; i < first + 128; i++) emu_wgt[i].read[emu_wgt[i].reads - 1].hash = hash;
  for (int i = 0; i < 64; i++)
    for (int k = 0; k < 16; k++) {
      T x;
      x.bits = a_bits[i * 16 + k];
      const uint32_t *r = of[i / 16 * 32 + i % 8 * 4 + k % 8 / 2].a;
      if (a) x.bits = (uint16_t)(r[i % 16 / 8 + k / 8 * 2] >> k % 2 * 16);
      A[i][k] = to_f32(x);
    }
  for (int k = 0; k < 16; k++)
    for (int n = 0; n < N; n++) {
      T x;
      x.bits = b_bits[a ? k * N + n : n * 16 + k];
      B[k][n] = to_f32(x);
    }
  for (int i = 0; i < 64; i++) {
    float sum[N] = {};
    for (int k = 0; k < 16; k++) for (int n = 0; n < N; n++) sum[n] += A[i][k] * B[k][n];
    for (int n = 0; n < N; n += 2) {
      float *x = &of[i / 16 * 32 + i % 8 * 4 + n % 8 / 2].d[n / 8 * 4 + i % 16 / 8 * 2];
      for (int e = 0; e < 2; e++) x[e] = add ? x[e] + sum[n + e] : sum[n + e];
    }
  }
  for (unsigned w = first / 32; w < first / 32 + 4; w++) {
    emu_warps[w].ready = emu_warps[w].live;
    emu_ready_warps |= 1u << w;
  }
}
