// blocks.h: numbers that are stored in blocks, with scales of their own. What value i of a block is, is said here once,
// for CPU and CUDA, for weights that are expanded, multiplied as they lie, or read from a file.
//
// A block is cut into runs of 16 values: `run` and i < 16 say which one. Products are taken in the order written, in
// fp32, and so have the bits of llama.cpp and of its gguf package (gguf 0.19's quants.py; ggml-quants.c's
// dequantize_row_*). Types have ggml's numbers; NF4, which has none, is that of Dettmers et al. 2023 (QLoRA): 64 values
// in a row as an fp32 scale, their largest magnitude, behind it 32 bytes of two numbers each, the first one high, as
// bitsandbytes has them, whose scales lie in a tensor of their own.
#pragma once
#include "device.h"

enum { BLOCK_RUN = 16, BLOCK_VALUES_MOST = 256, BLOCK_BYTES_MOST = 256 };
// X(identifier, ggml's number or another, values, bytes, function)
#define BLOCK_TYPES(X) \
  X(Q4_0, 2, 32, 18, block_q4_0) X(Q4_1, 3, 32, 20, block_q4_1) X(Q5_0, 6, 32, 22, block_q5_0) \
  X(Q5_1, 7, 32, 24, block_q5_1) X(Q8_0, 8, 32, 34, block_q8_0) X(Q4_K, 12, 256, 144, block_q4_k) \
  X(Q5_K, 13, 256, 176, block_q5_k) X(Q6_K, 14, 256, 210, block_q6_k) X(MXFP4, 39, 32, 17, block_mxfp4) \
  X(NF4, 128, 64, 36, block_nf4)
// Types of one value are stored in that dtype. F32's number is 0 in ggml, which means no type here.
enum BlockType {
  BLOCK_NONE, BLOCK_F16 = 1, BLOCK_BF16 = 30, BLOCK_F32 = 129,
#define X(name, id, values, bytes, value) BLOCK_##name = id,
  BLOCK_TYPES(X)
#undef X
};

HD float block_half(const uint8_t *at) {
  fp16 x;
  x.bits = (uint16_t)(at[0] | at[1] << 8);
  return to_f32(x);
}
// Of 32 numbers in four bits the first half are the low ones; their fifth bits are in a row.
HD int block_four(const uint8_t *q, int run, int i) { return (run ? q[i] >> 4 : q[i]) & 15; }
HD int block_fifth(const uint8_t *bits, int run, int i) { return (bits[2 * run + i / 8] >> i % 8 & 1) << 4; }
HD float block_q4_0(const uint8_t *b, int run, int i) { return block_half(b) * (float)(block_four(b + 2, run, i) - 8); }
HD float block_q4_1(const uint8_t *b, int run, int i) {
  return block_half(b) * (float)block_four(b + 4, run, i) + block_half(b + 2);
}
HD float block_q5_0(const uint8_t *b, int run, int i) {
  return block_half(b) * (float)((block_four(b + 6, run, i) | block_fifth(b + 2, run, i)) - 16);
}
HD float block_q5_1(const uint8_t *b, int run, int i) {
  return block_half(b) * (float)(block_four(b + 8, run, i) | block_fifth(b + 4, run, i)) + block_half(b + 2);
}
HD float block_q8_0(const uint8_t *b, int run, int i) { return block_half(b) * (float)(int8_t)b[2 + 16 * run + i]; }
// Eight times 32 numbers; a scale and a least number of six bits for each. high: 32 bytes, a bit a number; NULL: none.
HD float block_q45_k(const uint8_t *b, const uint8_t *high, const uint8_t *q, int run, int i) {
  const uint8_t *s = b + 4;
  const int k = run / 2, l = 16 * (run % 2) + i;
  const int scale = k < 4 ? s[k] & 63 : (s[k + 4] & 15) | s[k - 4] >> 6 << 4;
  const int least = k < 4 ? s[k + 4] & 63 : s[k + 4] >> 4 | s[k] >> 6 << 4;
  const int four = q[32 * (k / 2) + l] >> 4 * (k % 2) & 15, fifth = high ? (high[l] >> k & 1) << 4 : 0;
  return block_half(b) * (float)scale * (float)(four | fifth) - block_half(b + 2) * (float)least;
}
HD float block_q4_k(const uint8_t *b, int run, int i) { return block_q45_k(b, NULL, b + 16, run, i); }
HD float block_q5_k(const uint8_t *b, int run, int i) { return block_q45_k(b, b + 16, b + 48, run, i); }
HD float block_q6_k(const uint8_t *b, int run, int i) {
  const int half = run / 8, group = run % 8 / 2, l = 16 * (run % 2) + i;
  const int four = b[64 * half + 32 * (group & 1) + l] >> 4 * (group / 2) & 15;
  const int two = b[128 + 32 * half + l] >> 2 * group & 3;
  return block_half(b + 208) * (float)(int8_t)b[192 + run] * (float)((four | two << 4) - 32);
}
// Twice an E2M1, times 2^(e - 128), of which the two smallest are subnormal. Twice: 0, 1, 2, 3, 4, 6, 8, 12.
HD float block_mxfp4(const uint8_t *b, int run, int i) {
  const int four = block_four(b + 1, run, i), size = four & 7, above = size < 4 ? 0 : size / 2 - 1;
  const int twice = size < 2 ? size : (2 | (size & 1)) << above;
  return bits_f32(b[0] < 2 ? 0x00200000u << b[0] : (uint32_t)(b[0] - 1) << 23) * (float)(four & 8 ? -twice : twice);
}
HD float block_nf4_code(int i) {
  const float code[16] = {-1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f,
                          -0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f,
                          0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,
                          0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f};
  return code[i];
}
HD float block_nf4(const uint8_t *b, int run, int i) {
  const uint32_t largest = (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
  return block_nf4_code(b[4 + 8 * run + i / 2] >> (i % 2 ? 0 : 4) & 15) * bits_f32(largest);
}
// Value 16 run + i of a block of a type that is known when it is compiled.
template <int TYPE> HD float block_value(const uint8_t *b, int run, int i) {
#define X(name, id, values, bytes, value) if constexpr (TYPE == id) return value(b, run, i); else
  BLOCK_TYPES(X) return 0;
#undef X
}

// BLOCK_DISPATCH(type, TYPE, statement using TYPE): one instantiation per type.
#define BLOCK_DISPATCH(type_, TYPE_, ...) \
  do { switch (type_) { BLOCK_EACH_CASE(TYPE_, __VA_ARGS__) \
    default: CHECK(0, "no type of blocks has number %d", (int)(type_)); } } while (0)
#define BLOCK_CASE(id, TYPE_, ...) case id: { constexpr int TYPE_ = id; __VA_ARGS__; } break;
#define BLOCK_EACH_CASE(T, ...) \
  BLOCK_CASE(BLOCK_Q4_0, T, __VA_ARGS__) BLOCK_CASE(BLOCK_Q4_1, T, __VA_ARGS__) \
  BLOCK_CASE(BLOCK_Q5_0, T, __VA_ARGS__) BLOCK_CASE(BLOCK_Q5_1, T, __VA_ARGS__) \
  BLOCK_CASE(BLOCK_Q8_0, T, __VA_ARGS__) BLOCK_CASE(BLOCK_Q4_K, T, __VA_ARGS__) \
  BLOCK_CASE(BLOCK_Q5_K, T, __VA_ARGS__) BLOCK_CASE(BLOCK_Q6_K, T, __VA_ARGS__) \
  BLOCK_CASE(BLOCK_MXFP4, T, __VA_ARGS__) BLOCK_CASE(BLOCK_NF4, T, __VA_ARGS__)

// Values and bytes of a block; 0: no type has this number.
HD constexpr int block_values(int type) {
  switch (type) {
#define X(name, id, values, bytes, value) case id: return values;
    BLOCK_TYPES(X)
#undef X
    case BLOCK_F16: case BLOCK_BF16: case BLOCK_F32: return 1;
    default: return 0;
  }
}
HD constexpr int block_bytes(int type) {
  switch (type) {
#define X(name, id, values, bytes, value) case id: return bytes;
    BLOCK_TYPES(X)
#undef X
    case BLOCK_F16: case BLOCK_BF16: return 2;
    default: return type == BLOCK_F32 ? 4 : 0;
  }
}
// The dtype of a type of one value, and the other way round.
static inline Dtype block_dtype(int type) { return type == BLOCK_F16 ? F16 : type == BLOCK_BF16 ? BF16 : F32; }
static inline BlockType block_of_dtype(Dtype d) { return d == F16 ? BLOCK_F16 : d == BF16 ? BLOCK_BF16 : BLOCK_F32; }
// Bytes of n values, which are whole blocks.
static inline int64_t blocks_bytes(int type, int64_t n) { return n / block_values(type) * block_bytes(type); }

// The values of one block, in fp32.
template <int TYPE> static inline void block_expand(const uint8_t *b, float *values) {
  for (int run = 0; run < block_values(TYPE) / BLOCK_RUN; run++)
    for (int i = 0; i < BLOCK_RUN; i++) values[BLOCK_RUN * run + i] = block_value<TYPE>(b, run, i);
}

// ---- quantising -----------------------------------------------------------------------------------------------------
// 32 numbers as a scale in fp16, the largest magnitude / 127, and 32 signed bytes: ggml's quantize_row_q8_0_ref.
static inline void block_make_q8_0(uint8_t *to, const float *x) {
  float most = 0;
  for (int i = 0; i < 32; i++) most = fmaxf(most, fabsf(x[i]));
  const float d = most / 127, inverse = d != 0 ? 1.0f / d : 0;
  fp16 stored;
  round_to(&stored, d);
  memcpy(to, &stored, 2);
  for (int i = 0; i < 32; i++) {
    const float q = roundf(x[i] * inverse);      // a block that is not finite has any bytes: its scale says so
    to[2 + i] = (uint8_t)(int8_t)(q >= -127 && q <= 127 ? q : 0);
  }
}
// 64 numbers by bitsandbytes' thresholds (csrc/kernels.cu, dQuantizeNF4): the number of those that are below.
static inline void block_make_nf4(uint8_t *to, const float *x) {
  static const float thresholds[15] = {
      -0.8480964004993439f, -0.6106329262256622f, -0.4599952697753906f, -0.33967943489551544f, -0.23460740596055984f,
      -0.13791173323988914f, -0.045525018125772476f, 0.03979014977812767f, 0.1202552504837513f, 0.2035212516784668f,
      0.2920137718319893f, 0.3893125355243683f, 0.5016634166240692f, 0.6427869200706482f, 0.8614784181118011f};
  float most = 0;
  for (int i = 0; i < 64; i++) most = fmaxf(most, fabsf(x[i]));
  const float inverse = 1.0f / most;
  memcpy(to, &most, 4);
  for (int i = 0; i < 64; i++) {
    int n = 0;
    for (float t : thresholds) n += x[i] * inverse > t;
    if (i % 2) to[4 + i / 2] |= (uint8_t)n;
    else to[4 + i / 2] = (uint8_t)(n << 4);
  }
}
// n numbers, whole blocks, of a type that is made here: Q8_0, NF4, and those of one value.
static inline void blocks_make(int type, uint8_t *to, const float *x, int64_t n) {
  const int values = block_values(type), bytes = block_bytes(type);
  for (int64_t i = 0; i < n; i += values, to += bytes) {
    if (type == BLOCK_Q8_0) block_make_q8_0(to, x + i);
    else if (type == BLOCK_NF4) block_make_nf4(to, x + i);
    else if (values == 1) DISPATCH(block_dtype(type), T, T y; round_to(&y, x[i]); memcpy(to, &y, sizeof y));
    else CHECK(0, "no blocks of type %d are made here", type);
  }
}
// The values of `blocks` blocks, in fp32.
static inline void blocks_read(int type, float *values, const uint8_t *from, int64_t blocks) {
  const int each = block_values(type), bytes = block_bytes(type);
  for (int64_t b = 0; b < blocks; b++, values += each, from += bytes) {
    if (each == 1) DISPATCH(block_dtype(type), T, T y; memcpy(&y, from, sizeof y); *values = to_f32(y));
    else BLOCK_DISPATCH(type, TYPE, block_expand<TYPE>(from, values));
  }
}
