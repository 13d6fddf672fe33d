// processor.h: what this program asks of a processor beside arithmetic, on x86-64 and on ARM (aarch64). Only this file
// and kernels/cpu/ know which of them they are compiled for.
//
//   PROCESSOR_NAME       which of the two
//   PROCESSOR_FIRST_ISA, PROCESSOR_ISAS, processor_best_isa      its instruction sets, and the richest of this one
//   processor_fast_isa   the fastest one, which is what runs use unless they ask for another
//   processor_pause      between two looks at a word that another thread will write
//   processor_ticks      a clock of 1 to 4 ticks a nanosecond, read in a few cycles
//   processor_stream16   copies 16 bytes past the caches; processor_streamed() before other threads may read them
//   processor_crc32c, processor_crc32c_byte, processor_has_crc32c    CRC-32C of eight bytes and of one, by instruction
#pragma once
#include <stdint.h>
#include <string.h>

// Every instruction set that CPU kernels are compiled for. Those of a processor follow each other, the plainest first.
enum CpuIsa { ISA_AVX2, ISA_AVX512, ISA_AVX512_BF16, ISA_AMX, ISA_NEON, ISA_NEON_BF16, CPU_ISAS };
// Of one whose richest is `best`. slow_pairs: VDPBF16PS has half the rate of fp32 multiply-adds, so that bf16 is faster
// as fp32 (measured: dev/results/2026-11-26-pairs.md).
static inline int isa_fast(int best, bool slow_pairs) {
  return best == ISA_AVX512_BF16 && slow_pairs ? (int)ISA_AVX512 : best;
}

#if defined(__aarch64__)
#include <sys/auxv.h>
enum { HWCAP_HAS_CRC32 = 1 << 7, HWCAP2_HAS_BF16 = 1 << 14 };      // Linux, arch/arm64/include/uapi/asm/hwcap.h
enum { PROCESSOR_FIRST_ISA = ISA_NEON, PROCESSOR_ISAS = 2 };
#define PROCESSOR_NAME "aarch64"
static const char PROCESSOR_NEEDS[] = "NEON";
// Counted from the first; -1: none, it lacks PROCESSOR_NEEDS.
static inline int processor_best_isa() { return getauxval(AT_HWCAP2) & HWCAP2_HAS_BF16 ? 1 : 0; }
static inline int processor_fast_isa() { return processor_best_isa(); }
// `yield` does nothing on most cores; `isb` waits about as long as x86's pause.
static inline void processor_pause() { __asm__ volatile("isb" : : : "memory"); }
static inline uint64_t processor_ticks() {       // the generic timer, of 24 MHz to 1 GHz, as two ticks a nanosecond
  uint64_t now, hz;
  __asm__ volatile("mrs %0, cntvct_el0" : "=r"(now));
  __asm__("mrs %0, cntfrq_el0" : "=r"(hz));
  return now * ((2000000000 + hz - 1) / hz);
}
static inline void processor_stream16(float *to, const float *from) { memcpy(to, from, 16); }
static inline void processor_streamed() {}
#define PROCESSOR_CRC32C
static inline bool processor_has_crc32c() { return getauxval(AT_HWCAP) & HWCAP_HAS_CRC32; }
static inline uint32_t processor_crc32c(uint32_t crc, uint64_t word) {
  __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(word));
  return crc;
}
static inline uint32_t processor_crc32c_byte(uint32_t crc, uint8_t byte) {
  __asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(crc) : "r"((uint32_t)byte));
  return crc;
}
#else
#include <nmmintrin.h>
// CPUID leaf 7: EDX bit 22 AMX-BF16, bit 24 AMX-TILE; XCR0 bits 17 and 18: the operating system saves tiles.
static inline bool processor_has_amx() {
  uint32_t a, b, c, d, low = 0, high = 0;
  __asm__("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(7), "c"(0));
  if (!(d >> 22 & 1) || !(d >> 24 & 1)) return false;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low >> 17 & 3) == 3;
}
enum { PROCESSOR_FIRST_ISA = ISA_AVX2, PROCESSOR_ISAS = 4 };
#define PROCESSOR_NAME "x86-64"
static const char PROCESSOR_NEEDS[] = "AVX2 and FMA";
// Counted from the first; -1: none, it lacks PROCESSOR_NEEDS. (libgcc's cpu model also asks whether the operating
// system saves AVX registers.)
static inline int processor_best_isa() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return -1;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (!avx512) return ISA_AVX2;
  if (!__builtin_cpu_supports("avx512bf16")) return ISA_AVX512;
  return processor_has_amx() ? ISA_AMX : ISA_AVX512_BF16;
}
// Intel's processors from Sapphire Rapids on, which brought AVX512-FP16 (CPUID leaf 7: EDX bit 23), have slow pairs;
// they have AMX, unless a hypervisor hides it. AMD's have fast ones.
static inline int processor_fast_isa() {
  const int best = processor_best_isa();         // first: it asks for libgcc's cpu model
  uint32_t a, b, c, d;
  __asm__("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(7), "c"(0));
  return isa_fast(best, __builtin_cpu_is("intel") && (d >> 23 & 1));
}
static inline void processor_pause() { __builtin_ia32_pause(); }
static inline uint64_t processor_ticks() { return __builtin_ia32_rdtsc(); }
static inline void processor_stream16(float *to, const float *from) { _mm_stream_ps(to, _mm_loadu_ps(from)); }
static inline void processor_streamed() { _mm_sfence(); }
#define PROCESSOR_CRC32C __attribute__((target("sse4.2")))
static inline bool processor_has_crc32c() { return __builtin_cpu_supports("sse4.2"); }
PROCESSOR_CRC32C static inline uint32_t processor_crc32c(uint32_t crc, uint64_t word) {
  return (uint32_t)_mm_crc32_u64(crc, word);
}
PROCESSOR_CRC32C static inline uint32_t processor_crc32c_byte(uint32_t crc, uint8_t byte) {
  return _mm_crc32_u8(crc, byte);
}
#endif
