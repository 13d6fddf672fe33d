// cpu_peaks.h: what this machine's cores and memory reach at most, measured here and now: what `make bench` compares
// the ops of a training step with. Each value is the best of several repetitions on `threads` threads at once.
//
//   cpu_peak_fp32        fused multiply-adds, all operands in registers
//   cpu_peak_bf16        products of bf16 pairs with fp32 sums: AMX tiles, vdpbf16ps, or as fp32 where neither is there
//   cpu_peak_memory      a[i] = b[i] + s c[i] over three arrays far beyond the caches: three streams, each counted once
//
// The functions are compiled for one instruction set each by their target attribute and run only where the named table
// runs. Units: GFLOP/s and GB/s.
#pragma once
#include <immintrin.h>
#include <sys/mman.h>

enum { PEAK_ROUNDS = 7, PEAK_TURNS = 200000, PEAK_CHAINS = 12 };

// Twelve independent chains hide the latency of two units of four to five cycles. They are named one by one: an array
// could end up in memory. Their sum is returned, so that nothing is left out.
#define PEAK_EACH(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define PEAK_FMA(name, isa, vector, lanes, set1, fma, add, first, work) \
  __attribute__((target(isa))) static float name(double *flops) { \
    const vector x = set1(0.5f), y = set1(1e-3f); \
    PEAK_EACH(PEAK_SET_##lanes) \
    for (int turn = 0; turn < PEAK_TURNS; turn++) { PEAK_EACH(fma) } \
    vector sum = x; \
    PEAK_EACH(add) \
    *flops = work * lanes * PEAK_CHAINS * PEAK_TURNS; \
    return first(sum); \
  }
#define PEAK_SET_8(i) __m256 s##i = _mm256_set1_ps((float)i);
#define PEAK_SET_16(i) __m512 s##i = _mm512_set1_ps((float)i);
#define PEAK_FMA_8(i) s##i = _mm256_fmadd_ps(s##i, x, y);
#define PEAK_FMA_16(i) s##i = _mm512_fmadd_ps(s##i, x, y);
#define PEAK_DOT_16(i) s##i = _mm512_dpbf16_ps(s##i, (__m512bh)x, (__m512bh)y);
#define PEAK_ADD_8(i) sum = _mm256_add_ps(sum, s##i);
#define PEAK_ADD_16(i) sum = _mm512_add_ps(sum, s##i);
PEAK_FMA(peak_fma_avx2, "avx2,fma", __m256, 8, _mm256_set1_ps, PEAK_FMA_8, PEAK_ADD_8, _mm256_cvtss_f32, 2.0)
PEAK_FMA(peak_fma_avx512, "avx512f", __m512, 16, _mm512_set1_ps, PEAK_FMA_16, PEAK_ADD_16, _mm512_cvtss_f32, 2.0)
PEAK_FMA(peak_dot_avx512, "avx512f,avx512bf16", __m512, 16, _mm512_set1_ps, PEAK_DOT_16, PEAK_ADD_16, _mm512_cvtss_f32,
         4.0)

__attribute__((target("amx-tile,amx-bf16"))) static float peak_dot_amx(double *flops) {
  alignas(64) struct { uint8_t palette, start, zero[14]; uint16_t row_bytes[16]; uint8_t rows[16]; } shape = {};
  alignas(64) static const uint16_t zeros[512] = {};
  shape.palette = 1;
  for (int t = 0; t < 8; t++) { shape.row_bytes[t] = 64; shape.rows[t] = 16; }
  __asm__ volatile("" : : "r"(&shape) : "memory");
  _tile_loadconfig(&shape);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, zeros, 64);
  _tile_loadd(5, zeros, 64);
  _tile_loadd(6, zeros, 64);
  _tile_loadd(7, zeros, 64);
  const int turns = PEAK_TURNS / 4;
  for (int turn = 0; turn < turns; turn++) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
  *flops = 4.0 * 2 * 16 * 16 * 32 * turns;
  return 0;
}

// The best of PEAK_ROUNDS runs of `body` on all threads at once, in GFLOP/s of all together.
static double peak_gflops(float (*body)(double *flops), int threads) {
  double best = 0;
  for (int round = 0; round < PEAK_ROUNDS; round++) {
    double begun = 0, flops = 0, *const start = &begun;
    double *const parts = (double *)calloc((size_t)threads, sizeof *parts);
    parallel(threads, [=](int thread, int) {
      threads_barrier();
      if (!thread) *start = now_ms();
      const float kept = body(&parts[thread]);
      if (kept == 12345.0f) fprintf(stderr, "\n");             // never: the sums are used
    });
    const double ms = now_ms() - begun;
    for (int i = 0; i < threads; i++) flops += parts[i];
    free(parts);
    const double rate = flops / ms * 1e-6;
    if (rate > best) best = rate;
  }
  return best;
}
static double cpu_peak_fp32(const char *table, int threads) {
  return peak_gflops(strcmp(table, "avx2") ? peak_fma_avx512 : peak_fma_avx2, threads);
}
static double cpu_peak_bf16(const char *table, int threads) {
  if (!strcmp(table, "amx")) return peak_gflops(peak_dot_amx, threads);
  return strcmp(table, "avx512_bf16") ? cpu_peak_fp32(table, threads) : peak_gflops(peak_dot_avx512, threads);
}

__attribute__((target("avx2,fma"), noinline)) static void peak_triad(float *a, const float *b, const float *c,
                                                                     int64_t n) {
  const __m256 s = _mm256_set1_ps(0.5f);
  for (int64_t i = 0; i < n; i += 8)
    _mm256_stream_ps(a + i, _mm256_fmadd_ps(s, _mm256_load_ps(c + i), _mm256_load_ps(b + i)));
}
static double cpu_peak_memory(int threads) {
  const int64_t n = (int64_t)32 << 20, part = n / threads / 16 * 16;           // elements: 128 MiB an array
  const size_t bytes = (size_t)n * 3 * sizeof(float);
  float *a = (float *)mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (a == MAP_FAILED) return 0;
  madvise(a, bytes, MADV_HUGEPAGE);
  memset(a, 1, bytes);                           // pages that were never written all are one page of zeros
  double best = 0;
  for (int round = 0; round < PEAK_ROUNDS; round++) {
    const double start = now_ms();
    parallel(threads, [=](int thread, int) {
      float *mine = a + part * thread;
      peak_triad(mine, mine + n, mine + 2 * n, part);
    });
    const double rate = 3.0 * sizeof(float) * (double)part * threads / (now_ms() - start) * 1e-6;
    if (rate > best) best = rate;
  }
  munmap(a, bytes);
  return best;
}
