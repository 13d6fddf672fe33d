// muon_cuda.cuh: the CUDA part of muon.cuh. The norm is exact, so it has the CPU's bits. Newton-Schulz in bf16
// multiplies by a symmetric kernel of our own, and B X by cuBLASLt; where shapes or memory are odd, and in fp32, all
// multiplies are whole ones of cuBLASLt.
#pragma once
#include "muon.cuh"
#include "optimizer_cuda.cuh"
#include "matmul_cuda.cuh"

// ---- Newton-Schulz -------------------------------------------------------------------------------------------------
template <class T> static void muon_normalise(Ctx *c, T *out, const T *in, int64_t n, int64_t *limbs) {
  zero_impl(c, limbs, NORM_LIMBS * sizeof *limbs);
  norm_launch<T>(c, limbs, in, NULL, n);
  flat_by(c, MuonDivideOp<T>{out, in, limbs}, n, out, in);
}
// ---- symmetric products
// out = scale (a a^T) + add_scale addend, (I,I), bf16, on tensor cores: a block of 4 warps computes a tile of 64 x 64
// on or below the diagonal, 32 x 32 a warp, and writes it and its mirror image. COLUMNS: a is stored (S,I), else (I,S).
// I and S are multiples of 8, and all memory is aligned to 16 bytes, so that 16 bytes are copied at a time. Sums are
// fp32, s ascending in steps of 16.
//
// Shared memory, 30 KiB: STAGES stages of 32 s of both operands. A row of them has 16 bytes more than it needs: the
// eight rows of a fragment are then in different banks (20 and 36 words apart). Afterwards the tile, rounded.
enum { MUON_TILE = 64, MUON_DEPTH = 32, MUON_STAGES = 3, MUON_THREADS = 128, MUON_OUT_PITCH = MUON_TILE + 8 };
template <bool COLUMNS> struct MuonPanel {
  enum { ROWS = COLUMNS ? MUON_DEPTH : MUON_TILE, WIDTH = COLUMNS ? MUON_TILE : MUON_DEPTH, PITCH = WIDTH + 8,
         NUMEL = ROWS * PITCH };
};
struct MuonSymmetric { const bf16 *a, *addend; bf16 *out; int64_t I, S; float scale, add_scale; };

// Starts to copy elements i0.. , s0.. of a into a panel; zeros outside.
template <bool COLUMNS>
__device__ static inline void muon_panel_load(bf16 *panel, const MuonSymmetric &p, int64_t i0, int64_t s0) {
  typedef MuonPanel<COLUMNS> Panel;
  enum { PIECES = Panel::WIDTH / 8 };
  for (int k = (int)threadIdx.x; k < Panel::ROWS * PIECES; k += MUON_THREADS) {
    const int row = k / PIECES, col = k % PIECES * 8;
    const int64_t i = i0 + (COLUMNS ? col : row), s = s0 + (COLUMNS ? row : col);
    const bool there = i < p.I && s < p.S;
    cp_async16(panel + row * Panel::PITCH + col, there ? p.a + (COLUMNS ? s * p.I + i : i * p.S + s) : p.a, there);
  }
}
// 16 x 16 elements of a panel as mma_16816 takes them. FIRST: of the operand whose rows are the result's rows; else two
// fragments of the other one.
template <bool COLUMNS, bool FIRST>
__device__ static inline void muon_fragment(uint32_t r[4], const bf16 *panel, int i, int s) {
  const int lane = (int)threadIdx.x % WARP, t = lane / 8;
  const int far_i = FIRST ? t & 1 : t >> 1, far_s = FIRST ? t >> 1 : t & 1;
  const int row = lane % 8 + (COLUMNS ? s + 8 * far_s : i + 8 * far_i), col = COLUMNS ? i + 8 * far_i : s + 8 * far_s;
  const bf16 *at = panel + row * MuonPanel<COLUMNS>::PITCH + col;
  if (COLUMNS) ldmatrix_x4_trans(r, at);
  else ldmatrix_x4(r, at);
}
template <bool COLUMNS>
__device__ static inline void muon_multiply(float sum[2][4][4], const bf16 *a, const bf16 *b, int i, int j) {
  UNROLL for (int s = 0; s < MUON_DEPTH; s += 16) {
    uint32_t x[2][4], y[2][4];
    UNROLL for (int k = 0; k < 2; k++) {
      muon_fragment<COLUMNS, true>(x[k], a, i + 16 * k, s);
      muon_fragment<COLUMNS, false>(y[k], b, j + 16 * k, s);
    }
    UNROLL for (int m = 0; m < 2; m++)
      UNROLL for (int n = 0; n < 4; n++) mma_16816<bf16>(sum[m][n], x[m], y[n / 2] + n % 2 * 2);
  }
}
// A tile's sums, finished and rounded, to shared memory.
__device__ static inline void muon_tile_finish(bf16 *tile, const float sum[2][4][4], const MuonSymmetric &p, int64_t i0,
                                               int64_t j0, int i, int j) {
  const int lane = (int)threadIdx.x % WARP;
  UNROLL for (int m = 0; m < 2; m++)
    UNROLL for (int n = 0; n < 4; n++)
      UNROLL for (int k = 0; k < 4; k++) {
        const int row = i + 16 * m + lane / 4 + k / 2 * 8, col = j + 8 * n + lane % 4 * 2 + k % 2;
        float x = sum[m][n][k];
        if (p.addend && i0 + row < p.I && j0 + col < p.I)
          x = matmul_scaled(x, p.scale, to_f32(p.addend[(i0 + row) * p.I + j0 + col]), p.add_scale);
        round_to(tile + row * MUON_OUT_PITCH + col, x);
      }
}
template <bool COLUMNS>
__global__ static void __launch_bounds__(MUON_THREADS) muon_symmetric_kernel(MuonSymmetric p) {
  typedef MuonPanel<COLUMNS> Panel;
  SHARED(bf16, memory, 2 * MUON_STAGES * Panel::NUMEL);
  int64_t down = (int64_t)((sqrtf(8.0f * (float)blockIdx.x + 1.0f) - 1.0f) * 0.5f);
  while (down * (down + 1) / 2 > blockIdx.x) down--;             // the root is rounded
  while ((down + 1) * (down + 2) / 2 <= blockIdx.x) down++;
  const int64_t i0 = down * MUON_TILE, j0 = (blockIdx.x - down * (down + 1) / 2) * MUON_TILE;
  const int64_t steps = (p.S + MUON_DEPTH - 1) / MUON_DEPTH;
  const int warp = (int)threadIdx.x / WARP, i = warp / 2 * 32, j = warp % 2 * 32;
  float sum[2][4][4] = {};
  for (int64_t k = 0; k < MUON_STAGES - 1 + steps; k++) {        // copies are MUON_STAGES - 1 steps ahead
    if (k >= MUON_STAGES - 1) {
      cp_async_wait<MUON_STAGES - 2>();
      __syncthreads();
    }
    bf16 *const to = memory + k % MUON_STAGES * 2 * Panel::NUMEL;
    if (k < steps) {
      muon_panel_load<COLUMNS>(to, p, i0, k * MUON_DEPTH);
      muon_panel_load<COLUMNS>(to + Panel::NUMEL, p, j0, k * MUON_DEPTH);
    }
    cp_async_commit();
    const bf16 *const from = memory + (k + 1) % MUON_STAGES * 2 * Panel::NUMEL;
    if (k >= MUON_STAGES - 1) muon_multiply<COLUMNS>(sum, from, from + Panel::NUMEL, i, j);
  }
  cp_async_wait<0>();
  __syncthreads();
  muon_tile_finish(memory, sum, p, i0, j0, i, j);
  __syncthreads();
  for (int k = (int)threadIdx.x; k < MUON_TILE * MUON_TILE / 8; k += MUON_THREADS) {
    const int row = k / (MUON_TILE / 8), col = k % (MUON_TILE / 8) * 8;
    Pack<bf16> below, above;
    UNROLL for (int e = 0; e < 8; e++) {
      above.x[e] = memory[(col + e) * MUON_OUT_PITCH + row];
      below.x[e] = i0 == j0 && col + e > row ? above.x[e] : memory[row * MUON_OUT_PITCH + col + e];
    }
    if (i0 + row < p.I && j0 + col < p.I) store_pack(p.out + (i0 + row) * p.I + j0 + col, below);
    if (i0 != j0 && j0 + row < p.I && i0 + col < p.I) store_pack(p.out + (j0 + row) * p.I + i0 + col, above);
  }
}
// Whether the kernel can compute a a^T, as `out` = scale (a a^T) + add_scale addend.
static bool muon_symmetric(Ctx *c, Tensor out, Tensor a, bool columns, Tensor addend, float scale, float add_scale) {
  const int64_t I = out.shape[0], S = a.shape[!columns], tall = (I + MUON_TILE - 1) / MUON_TILE;
  if (a.dtype != BF16 || I % 8 || S % 8 || !lanes_aligned(out.data, a.data, addend.data)) return false;
  const MuonSymmetric p = {(const bf16 *)a.data, (const bf16 *)addend.data, (bf16 *)out.data, I, S, scale, add_scale};
  const unsigned blocks = (unsigned)(tall * (tall + 1) / 2);
  if (columns) LAUNCH((muon_symmetric_kernel<true>), blocks, MUON_THREADS, 0, STREAM(c), p);
  else LAUNCH((muon_symmetric_kernel<false>), blocks, MUON_THREADS, 0, STREAM(c), p);
  return true;
}

// ---- all products
// out = scale (a b) + add_scale addend; data == NULL: without addend and with scale 1.
struct MuonSum { Tensor addend; float scale, add_scale; };
static void muon_product(Ctx *c, MatmulOp op, Tensor out, Tensor a, bool a_rows, Tensor b, bool b_rows, MuonSum x) {
  const MatmulProduct p = {op, out.shape[0], out.shape[1], a.shape[a_rows], out, a, b, a_rows, b_rows, false,
                           Tensor{}, Tensor{}, Tensor{}, Tensor{}, x.addend, x.scale, x.add_scale};
  matmul_product(c, &p);
}
void newton_schulz_impl(Ctx *c, Tensor out, Tensor in, Tensor scratch, int steps) {
  const int64_t rows = in.shape[0], cols = in.shape[1];
  const bool tall = rows > cols;
  const MuonWork w = muon_work(scratch, rows, cols, in.dtype);
  const MuonSum alone = {Tensor{}, 1.0f, 0.0f}, squared = {w.gram, MUON_SQUARE, MUON_GRAM};
  MUON_DISPATCH(in.dtype, T, muon_normalise<T>(c, (T *)muon_x(&w, out, 0, steps).data, (const T *)in.data, rows * cols,
                                               w.limbs));
  for (int s = 0; s < steps; s++) {
    const Tensor x = muon_x(&w, out, s, steps), next = muon_x(&w, out, s + 1, steps);
    const MuonSum added = {x, 1.0f, MUON_X};
    if (!muon_symmetric(c, w.gram, x, tall, Tensor{}, 1, 0))
      muon_product(c, tall ? MATMUL_BACKWARD_WEIGHT : MATMUL_FORWARD, w.gram, x, !tall, x, !tall, alone);
    if (!muon_symmetric(c, w.square, w.gram, false, w.gram, MUON_SQUARE, MUON_GRAM))
      muon_product(c, MATMUL_FORWARD, w.square, w.gram, true, w.gram, true, squared);
    muon_product(c, MATMUL_BACKWARD_INPUT, next, tall ? x : w.square, true, tall ? w.square : x, false, added);
  }
}
