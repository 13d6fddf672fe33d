// ggml_types.h: types of the tensors of a GGUF file. Most are blocks of numbers with scales of their own; each says
// what its numbers are in fp32, product by product in the order that llama.cpp and its gguf package have, and so to
// their bits (gguf 0.19's quants.py; ggml-quants.c's dequantize_row_*).
#pragma once
#include "checkpoint.h"
#include "kernels/device.h"

// values: in a block; bytes: of it; 0: not read here. expand: a block's numbers; NULL: they have a Dtype.
struct GgmlType {
  uint32_t id;
  const char *name;
  Dtype dtype = F32;
  int64_t values = 0, bytes = 0;
  void (*expand)(const uint8_t *block, float *values) = NULL;
};

static inline float ggml_half(const uint8_t *at) {
  fp16 x;
  memcpy(&x, at, sizeof x);
  return to_f32(x);
}
// Number i of 32 in four bits: the first half of them are the low ones; and its fifth bit, of 32 in a row.
static inline int ggml_four(const uint8_t *q, int i) { return i < 16 ? q[i] & 15 : q[i - 16] >> 4; }
static inline int ggml_fifth(const uint8_t *bits, int i) { return (bits[i / 8] >> i % 8 & 1) << 4; }

static inline void ggml_q4_0(const uint8_t *b, float *y) {
  for (int i = 0; i < 32; i++) y[i] = ggml_half(b) * (float)(ggml_four(b + 2, i) - 8);
}
static inline void ggml_q4_1(const uint8_t *b, float *y) {
  for (int i = 0; i < 32; i++) y[i] = ggml_half(b) * (float)ggml_four(b + 4, i) + ggml_half(b + 2);
}
static inline void ggml_q5_0(const uint8_t *b, float *y) {
  for (int i = 0; i < 32; i++) y[i] = ggml_half(b) * (float)((ggml_four(b + 6, i) | ggml_fifth(b + 2, i)) - 16);
}
static inline void ggml_q5_1(const uint8_t *b, float *y) {
  for (int i = 0; i < 32; i++)
    y[i] = ggml_half(b) * (float)(ggml_four(b + 8, i) | ggml_fifth(b + 4, i)) + ggml_half(b + 2);
}
static inline void ggml_q8_0(const uint8_t *b, float *y) {
  for (int i = 0; i < 32; i++) y[i] = ggml_half(b) * (float)(int8_t)b[2 + i];
}
// Eight times 32 numbers; a scale and a least number of six bits for each. high: 32 bytes, a bit a number; NULL: none.
static inline void ggml_q45_k(const uint8_t *b, const uint8_t *high, const uint8_t *q, float *y) {
  const uint8_t *s = b + 4;
  for (int k = 0; k < 8; k++) {
    const int scale = k < 4 ? s[k] & 63 : (s[k + 4] & 15) | s[k - 4] >> 6 << 4;
    const int least = k < 4 ? s[k + 4] & 63 : s[k + 4] >> 4 | s[k] >> 6 << 4;
    const float d = ggml_half(b) * (float)scale, m = ggml_half(b + 2) * (float)least;
    for (int i = 0; i < 32; i++) {
      const int four = q[32 * (k / 2) + i] >> 4 * (k % 2) & 15, fifth = high ? (high[i] >> k & 1) << 4 : 0;
      y[32 * k + i] = d * (float)(four | fifth) - m;
    }
  }
}
static inline void ggml_q4_k(const uint8_t *b, float *y) { ggml_q45_k(b, NULL, b + 16, y); }
static inline void ggml_q5_k(const uint8_t *b, float *y) { ggml_q45_k(b, b + 16, b + 48, y); }
static inline void ggml_q6_k(const uint8_t *b, float *y) {
  const uint8_t *low = b, *high = b + 128, *scale = b + 192;
  for (int i = 0; i < 256; i++) {
    const int half = i / 128, group = i % 128 / 32, l = i % 32;
    const int four = low[64 * half + 32 * (group & 1) + l] >> 4 * (group / 2) & 15;
    const int two = high[32 * half + l] >> 2 * group & 3;
    y[i] = ggml_half(b + 208) * (float)(int8_t)scale[i / 16] * (float)((four | two << 4) - 32);
  }
}
// Twice an E2M1, times 2^(e - 128), of which the two smallest are subnormal.
static inline void ggml_mxfp4(const uint8_t *b, float *y) {
  static const float values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  const float d = bits_f32(b[0] < 2 ? 0x00200000u << b[0] : (uint32_t)(b[0] - 1) << 23);
  for (int i = 0; i < 32; i++) y[i] = d * values[ggml_four(b + 1, i)];
}

static const GgmlType ggml_types[] = {
    {0, "F32", F32, 1, 4, NULL}, {1, "F16", F16, 1, 2, NULL}, {30, "BF16", BF16, 1, 2, NULL},
    {2, "Q4_0", F32, 32, 18, ggml_q4_0}, {3, "Q4_1", F32, 32, 20, ggml_q4_1}, {6, "Q5_0", F32, 32, 22, ggml_q5_0},
    {7, "Q5_1", F32, 32, 24, ggml_q5_1}, {8, "Q8_0", F32, 32, 34, ggml_q8_0}, {12, "Q4_K", F32, 256, 144, ggml_q4_k},
    {13, "Q5_K", F32, 256, 176, ggml_q5_k}, {14, "Q6_K", F32, 256, 210, ggml_q6_k},
    {39, "MXFP4", F32, 32, 17, ggml_mxfp4},
    {9, "Q8_1"}, {10, "Q2_K"}, {11, "Q3_K"}, {15, "Q8_K"}, {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"},
    {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"}, {22, "IQ2_S"}, {23, "IQ4_XS"}, {24, "I8"}, {25, "I16"}, {26, "I32"},
    {27, "I64"}, {28, "F64"}, {29, "IQ1_M"}, {34, "TQ1_0"}, {35, "TQ2_0"}, {40, "NVFP4"}};
static const char ggml_types_read[] = "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K or MXFP4";

// NULL: a number that no type has.
static inline const GgmlType *ggml_type(uint32_t id) {
  for (const GgmlType &t : ggml_types) if (t.id == id) return &t;
  return NULL;
}
// Bytes of a row of such numbers, which must be whole blocks.
static inline int64_t ggml_row_bytes(uint32_t id, int64_t cols) {
  const GgmlType *t = ggml_type(id);
  return cols / t->values * t->bytes;
}
