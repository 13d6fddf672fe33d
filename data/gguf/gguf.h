// gguf.h: public header of data/gguf/: the header of a GGUF, and the types of numbers that its tensors have.
#pragma once
#include "data/files/files.h"
#include "kernels/ops.h"

// ---- gguf_file.h ----------------------------------------------------------------------------------------------------
enum GgufValue {
  GGUF_U8, GGUF_I8, GGUF_U16, GGUF_I16, GGUF_U32, GGUF_I32, GGUF_FLOAT, GGUF_BOOL, GGUF_STRING, GGUF_ARRAY, GGUF_U64,
  GGUF_I64, GGUF_DOUBLE, GGUF_VALUES
};
enum { GGUF_ALIGNMENT = 32, GGUF_DIMS = 4 };
struct GgufText { const char *at; size_t bytes; };
// type: of the value, of an array's items where is_array; count: of these, else 1. at: the first of them.
struct GgufKey { const char *name; uint32_t type; bool is_array; uint64_t count; const uint8_t *at; };
// shape: the fastest first. at: from the start of the data.
struct GgufInfo { const char *name; int dims; int64_t shape[GGUF_DIMS]; uint32_t type; int64_t at; };
// An open header. keys are sorted by name. Zeroed it has none.
struct GgufFile {
  uint8_t *header;                               // its names end in a NUL, put there
  int64_t file_bytes, data_at, alignment;
  GgufKey *key;
  GgufInfo *info;
  int keys, infos;
};
// NULL: there is no such key.
const GgufKey *gguf_find(const GgufFile *g, const char *name);
// A single number, true and false too. False: there is none of this name.
bool gguf_number(const GgufFile *g, const char *name, double *value);
// Text i of an array of texts.
GgufText gguf_text_at(const GgufKey *k, uint64_t i);
// A single text, malloc'ed; NULL: there is none of this name.
char *gguf_string(const GgufFile *g, const char *name);
void gguf_close(GgufFile *g);
// Whether PATH is a file that starts as a GGUF does.
bool gguf_is(const char *path);
// Reads the header of PATH, which gguf_is, a part of the file that grows until it is all there. False: one line in
// `error`, and nothing is left open.
bool gguf_open(GgufFile *g, const char *path, Error *error);
// Item i of numbers; a float becomes the shortest decimal that is this float: 1e-05, not 9.99999974738e-06.
double gguf_item(const GgufKey *k, uint64_t i);
// The next of texts that are one after the other, as in an array.
GgufText gguf_next(const uint8_t **at);

// ---- ggml_types.h ---------------------------------------------------------------------------------------------------
// values: in a block; bytes: of it; 0: not read here. expand: a block's numbers; NULL: they have a Dtype.
struct GgmlType {
  uint32_t id;
  const char *name;
  Dtype dtype = F32;
  int64_t values = 0, bytes = 0;
  void (*expand)(const uint8_t *block, float *values) = NULL;
};
static const char ggml_types_read[] = "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K or MXFP4";
// NULL: a number that no type has.
const GgmlType *ggml_type(uint32_t id);
// Bytes of a row of such numbers, which must be whole blocks.
int64_t ggml_row_bytes(uint32_t id, int64_t cols);
