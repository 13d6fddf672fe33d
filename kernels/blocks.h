// blocks.h: numbers that are stored in blocks, with scales of their own. What value i of a block is, is said here once,
// for CPU and CUDA, for weights that are expanded, multiplied as stored, or read from a file.
//
// A block is cut into runs of 16 values: `run` and i < 16 say which one. A value is its run's scale times a number,
// plus or less a least number where the type has one. Arithmetic is fp32's in the order written, and so has the bits of
// llama.cpp and of its gguf package (gguf 0.19's quants.py; ggml-quants.c's dequantize_row_*). Types have ggml's
// numbers; NF4, which has none, is that of Dettmers et al. 2023 (QLoRA): 64 values in a row as an fp32 scale, their
// largest magnitude, after it 32 bytes of two numbers each, the first one high, as bitsandbytes has them, whose scales
// are in a tensor of their own.
#pragma once
#include "device.h"

enum { BLOCK_RUN = 16, BLOCK_VALUES_MAX = 256, BLOCK_BYTES_MAX = 256 };
// X(identifier, ggml's number or another, values, bytes)
#define BLOCK_TYPES(X) \
  X(Q4_0, 2, 32, 18) X(Q4_1, 3, 32, 20) X(Q5_0, 6, 32, 22) X(Q5_1, 7, 32, 24) X(Q8_0, 8, 32, 34) \
  X(Q4_K, 12, 256, 144) X(Q5_K, 13, 256, 176) X(Q6_K, 14, 256, 210) X(MXFP4, 39, 32, 17) X(NF4, 128, 64, 36)
// Types of one value are stored in that dtype. F32's number is 0 in ggml, which means no type here.
enum BlockType {
  BLOCK_NONE, BLOCK_F16 = 1, BLOCK_BF16 = 30, BLOCK_F32 = 129,
#define X(name, id, values, bytes) BLOCK_##name = id,
  BLOCK_TYPES(X)
#undef X
};
// Values and bytes of a block; 0: no type has this number.
HD constexpr int block_values(int type) {
  switch (type) {
#define X(name, id, values, bytes) case id: return values;
    BLOCK_TYPES(X)
#undef X
    case BLOCK_F16: case BLOCK_BF16: case BLOCK_F32: return 1;
    default: return 0;
  }
}
HD constexpr int block_bytes(int type) {
  switch (type) {
#define X(name, id, values, bytes) case id: return bytes;
    BLOCK_TYPES(X)
#undef X
    case BLOCK_F16: case BLOCK_BF16: return 2;
    default: return type == BLOCK_F32 ? 4 : 0;
  }
}
// Types with a fifth bit, with scales of sub-blocks and least numbers that are subtracted, with least numbers, and with
// numbers by a table.
HD constexpr bool block_has_fifth(int type) { return type == BLOCK_Q5_0 || type == BLOCK_Q5_1 || type == BLOCK_Q5_K; }
HD constexpr bool block_is_k45(int type) { return type == BLOCK_Q4_K || type == BLOCK_Q5_K; }
HD constexpr bool block_has_least(int type) { return type == BLOCK_Q4_1 || type == BLOCK_Q5_1 || block_is_k45(type); }
HD constexpr bool block_has_codes(int type) { return type == BLOCK_MXFP4 || type == BLOCK_NF4; }

HD float block_half(const uint8_t *at) {
  fp16 x;
  x.bits = (uint16_t)(at[0] | at[1] << 8);
  return to_f32(x);
}
// Scale k of eight of six bits in Q4_K and Q5_K, and the least number.
HD int block_scale_k45(const uint8_t *s, int k) { return k < 4 ? s[k] & 63 : (s[k + 4] & 15) | s[k - 4] >> 6 << 4; }
HD int block_least_k45(const uint8_t *s, int k) { return k < 4 ? s[k + 4] & 63 : s[k + 4] >> 4 | s[k] >> 6 << 4; }
// The numbers with an exponent in a block: what scales and what least numbers have in common. MXFP4: 2^(e - 128), of
// which the two smallest are subnormal, for twice the numbers of E2M1.
struct BlockHead { float scale, least; };
template <int TYPE> HD BlockHead block_head(const uint8_t *b) {
  if constexpr (TYPE == BLOCK_MXFP4) return {bits_f32(b[0] < 2 ? 0x00200000u << b[0] : (uint32_t)(b[0] - 1) << 23), 0};
  else if constexpr (TYPE == BLOCK_NF4)
    return {bits_f32((uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24), 0};
  else return {block_half(TYPE == BLOCK_Q6_K ? b + 208 : b), block_has_least(TYPE) ? block_half(b + 2) : 0};
}
template <int TYPE> HD float block_scale(BlockHead h, const uint8_t *b, int run) {
  if constexpr (block_is_k45(TYPE)) return h.scale * (float)block_scale_k45(b + 4, run / 2);
  else if constexpr (TYPE == BLOCK_Q6_K) return h.scale * (float)(int8_t)b[192 + run];
  else return h.scale;
}
template <int TYPE> HD float block_least(BlockHead h, const uint8_t *b, int run) {
  if constexpr (block_is_k45(TYPE)) return h.least * (float)block_least_k45(b + 4, run / 2);
  else return h.least;
}
// What four bits stand for. Twice an E2M1: 0, 1, 2, 3, 4, 6, 8, 12, and the same below zero, of which zero is positive.
HD constexpr float block_code(int type, int i) {
  const float code[16] = {-1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f,
                          -0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f,
                          0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,
                          0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f};
  if (type == BLOCK_NF4) return code[i];
  const int size = i & 7, twice = size < 2 ? size : (2 | (size & 1)) << (size < 4 ? 0 : size / 2 - 1);
  return (float)(i & 8 ? -twice : twice);
}
struct BlockCodes { float code[16]; };
HD constexpr BlockCodes block_codes(int type) {
  BlockCodes t = {};
  for (int i = 0; i < 16; i++) t.code[i] = block_code(type, i);
  return t;
}
// Of 32 numbers in four bits the first half are the low ones. Fifth bits of 32 numbers are in a row before them.
template <int TYPE> HD float block_number(const uint8_t *b, int run, int i) {
  const int l = 16 * (run % 2) + i;
  if constexpr (TYPE == BLOCK_Q8_0) return (float)(int8_t)b[2 + l];
  else if constexpr (TYPE == BLOCK_NF4) return block_code(TYPE, b[4 + 8 * run + i / 2] >> (i % 2 ? 0 : 4) & 15);
  else if constexpr (block_is_k45(TYPE)) {       // eight times 32; the fifth bits are bit k of 32 bytes
    const int k = run / 2, four = b[block_bytes(TYPE) - 128 + 32 * (k / 2) + l] >> 4 * (k % 2) & 15;
    return (float)(block_has_fifth(TYPE) ? four | (b[16 + l] >> k & 1) << 4 : four);
  } else if constexpr (TYPE == BLOCK_Q6_K) {
    const int half = run / 8, group = run % 8 / 2, four = b[64 * half + 32 * (group & 1) + l] >> 4 * (group / 2) & 15;
    return (float)((four | (b[128 + 32 * half + l] >> 2 * group & 3) << 4) - 32);
  } else {
    const uint8_t *q = b + block_bytes(TYPE) - 16;
    const int four = q[i] >> 4 * run & 15;
    const int fifth = block_has_fifth(TYPE) ? (q[i / 8 + 2 * run - 4] >> i % 8 & 1) << 4 : 0;
    if constexpr (block_has_codes(TYPE)) return block_code(TYPE, four);
    else return (float)((four | fifth) - (TYPE == BLOCK_Q4_0 ? 8 : TYPE == BLOCK_Q5_0 ? 16 : 0));
  }
}
// Value 16 run + i of a block of a type that is known when it is compiled.
template <int TYPE> HD float block_value(const uint8_t *b, int run, int i) {
  const BlockHead h = block_head<TYPE>(b);
  const float x = block_scale<TYPE>(h, b, run) * block_number<TYPE>(b, run, i);
  if constexpr (block_is_k45(TYPE)) return x - block_least<TYPE>(h, b, run);
  else if constexpr (block_has_least(TYPE)) return x + block_least<TYPE>(h, b, run);
  else return x;
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
// The largest magnitude of n numbers; NaN if one is not finite, which then the scale of their block says.
static inline float block_most(const float *x, int n) {
  float most = 0, none = 0;
  for (int i = 0; i < n; i++) most = fmaxf(most, fabsf(x[i])), none += x[i] * 0;  // x * 0 is NaN if x is not finite
  return most + none;
}
// 32 numbers as a scale in fp16, the largest magnitude / 127, and 32 signed bytes: ggml's quantize_row_q8_0_ref.
static inline void block_make_q8_0(uint8_t *to, const float *x) {
  const float d = block_most(x, 32) / 127, inverse = d != 0 ? 1.0f / d : 0;
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
  const float most = block_most(x, 64), inverse = 1.0f / most;
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
