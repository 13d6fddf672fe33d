// window.cuh: sliding-window attention, by the first key of each token (Child et al. 2019; Beltagy et al. 2020).
//
//   out[b,t] = max(starts[b,t], t - window + 1)      a token attends to at most `window` tokens of its document, itself
//                                                    included
//
// out, starts (B,T) int32; starts as in ops.h, absent: 0. The values do not decrease along a sequence, so the
// attention ops take `out` as their starts, and compute no tile of keys before a window.
#pragma once
#include "ops_attention.h"
#if PART_LAUNCHERS
// Overwrites out.
void window_starts(Ctx *c, Tensor out, Tensor starts, int64_t window) {
  CHECK(window > 0, "window_starts: a window of %lld", (long long)window);
  CHECK_SHAPE(out, out.shape[0], out.shape[1]);
  CHECK_DTYPE(out, I32);
  starts_check(starts, out.shape[0], out.shape[1]);
  CALL_OP(c, attention, window_starts, out, starts, window);
}
#endif

HD int32_t window_start(const int32_t *starts, int64_t row, int64_t T, int64_t window) {
  const int64_t start = starts ? starts[row] : 0, first = row % T - window + 1;
  return (int32_t)(first > start ? first : start);
}
#if PART_CPU
void window_starts_impl(Ctx *, Tensor out, Tensor starts, int64_t window) {
  for (int64_t i = 0; i < numel(out); i++)
    ((int32_t *)out.data)[i] = window_start((const int32_t *)starts.data, i, out.shape[1], window);
}
#endif

#if PART_CUDA
#include "kernels/cuda/lane.cuh"

__global__ static void __launch_bounds__(FLAT_THREADS)
window_starts_kernel(int32_t *out, const int32_t *starts, int64_t n, int64_t T, int64_t window) {
  FLAT_WALK(1, n, i, (out[i] = window_start(starts, i, T, window)), (void)i);
}
void window_starts_impl(Ctx *c, Tensor out, Tensor starts, int64_t window) {
  LAUNCH(window_starts_kernel, dim3(flat_blocks(numel(out), 1)), dim3(FLAT_THREADS), 0, STREAM(c), (int32_t *)out.data,
         (const int32_t *)starts.data, numel(out), out.shape[1], window);
}
#endif
