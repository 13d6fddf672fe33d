// ggml_types.h: types of the tensors of a GGUF file. Most are blocks of numbers (kernels/blocks.h says what these are).
//
// NF4 is in this table although no GGUF has it: its block, the scale of 64 numbers and their bytes together, is what
// --base_dtype nf4 makes. Files of bitsandbytes have the scales in tensors of their own (nf4.h).
#pragma once
#include "gguf.h"

static const GgmlType ggml_types[] = {
    {0, "F32", F32, 1, 4, NULL}, {1, "F16", F16, 1, 2, NULL}, {30, "BF16", BF16, 1, 2, NULL},
#define X(name, id, values, bytes) {id, #name, F32, values, bytes, block_expand<id>},
    BLOCK_TYPES(X)
#undef X
    {9, "Q8_1"}, {10, "Q2_K"}, {11, "Q3_K"}, {15, "Q8_K"}, {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"},
    {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"}, {22, "IQ2_S"}, {23, "IQ4_XS"}, {24, "I8"}, {25, "I16"}, {26, "I32"},
    {27, "I64"}, {28, "F64"}, {29, "IQ1_M"}, {34, "TQ1_0"}, {35, "TQ2_0"}, {40, "NVFP4"}};

const GgmlType *ggml_type(uint32_t id) {
  for (const GgmlType &t : ggml_types) if (t.id == id) return &t;
  return NULL;
}
int64_t ggml_row_bytes(uint32_t id, int64_t cols) {
  const GgmlType *t = ggml_type(id);
  return cols / t->values * t->bytes;
}
