// tensors.h: public header of data/tensors/: files of tensors, their checksums, and which tensor of the model is which
// of a file (TensorMap).
//
// set_open reads headers; a TensorMap then says where each parameter's bytes are, which a Store moves.
#pragma once
#include "data/gguf/gguf.h"
#include "fsdp.h"
#include <cjson/cJSON.h>

// ---- safetensors.h --------------------------------------------------------------------------------------------------
enum { SAFETENSORS_MAX_DIMS = 8 };
// `at` counts from the start of the file, not of the data. Dtypes other than ours are legal and their sizes checked.
struct SafetensorsTensor {
  const char *name;
  Dtype dtype;                                   // where known_dtype
  bool known_dtype;                              // F32, BF16, F16, I32; false: only dtype_text is known
  char dtype_text[12];
  int ndim;
  int64_t shape[SAFETENSORS_MAX_DIMS];
  int64_t at, bytes;
  int32_t ggml = 0;                              // of a GGUF: its type of blocks (ggml_types.h); 0: it has none
};
struct SafetensorsPair { const char *key, *value; };
// An open file; zeroed: no file. The tensors are in the order of their bytes.
struct SafetensorsFile {
  const uint8_t *map;                            // the whole file
  size_t bytes, data_at;
  SafetensorsTensor *tensor;
  int count;
  SafetensorsTensor **by_name;                   // (count) sorted
  SafetensorsPair *metadata;                     // (metadata_count) sorted by key
  int metadata_count;
  char *text;                                    // the header; its strings are unescaped in place
  char *names;                                   // other names of the tensors (set_rename); NULL: those in the header
  char error[1400];
};
// A name from a file, fit to print on a terminal: in quotes, bytes outside printable ASCII as \xNN, a long one cut.
struct SafetensorsQuoted { char text[200]; };
SafetensorsQuoted safetensors_quoted(const char *name);
// The state of reading a header. `tensor` is named in errors.
struct SafetensorsText { SafetensorsFile *file; const char *path, *tensor; char *start, *at, *end; };
// The bytes before the data of `count` tensors that follow one another in this order: the length, the JSON, and spaces,
// so that the data starts on a multiple of 8. Reads name, dtype (one of ours), ndim and shape; fills the rest.
// metadata: key, value, ..., NULL, or NULL for none; all text is UTF-8. The same bytes for the same arguments. To be
// freed by the caller.
char *safetensors_header(SafetensorsTensor *tensors, int count, const char *const *metadata, int64_t *header_bytes);
// Leaves one line in the file's `error`; false.
__attribute__((format(printf, 2, 3))) bool safetensors_fail(SafetensorsText *t, const char *fmt, ...);
// Sorts the tensors by place and by name; each byte of the data must belong to exactly one of them, or with gaps to one
// at most.
bool safetensors_check_layout(SafetensorsText *t, bool gaps = false);
// Opens and maps PATH and checks all of its header. No byte of the data is read. On failure only the error remains; on
// success call safetensors_close.
bool safetensors_open(SafetensorsFile *s, const char *path);
void safetensors_close(SafetensorsFile *s);
// The entry of `name`, of whatever dtype; NULL: there is none.
const SafetensorsTensor *safetensors_entry(const SafetensorsFile *s, const char *name);
// The tensor `name` of `dtype`, as a Tensor over the mapped bytes. False: absent, of another dtype, of more than 4
// dimensions, or not aligned in the file (other writers' headers have any length): read such a tensor by its `at`.
bool safetensors_find(SafetensorsFile *s, const char *name, Dtype dtype, Tensor *out);
// A string of the header's __metadata__, or NULL.
const char *safetensors_metadata(const SafetensorsFile *s, const char *key);

// ---- crc32c.h -------------------------------------------------------------------------------------------------------
// The checksum of the bytes that had checksum `crc` (0: of none), followed by these. "123456789" has e3069283.
uint32_t crc32c(uint32_t crc, const void *data, size_t bytes);
// What these bytes contribute to the checksum of a block in which bytes_behind more bytes follow them.
uint32_t crc32c_part(const void *data, size_t bytes, uint64_t bytes_behind);
// The checksum of a block from the XOR of what disjoint parts contribute, which together are all its bytes.
uint32_t crc32c_of_parts(uint32_t xored, uint64_t block_bytes);

// ---- tensor_map.h ---------------------------------------------------------------------------------------------------
enum { MAP_MAX_FILES = 64, MAP_PATH_BYTES = 1280 };
// By ShardState: parameters, first moment (SGD: momentum), second moment.
enum { MAP_STATES = 3, MAP_PARTS = 3 };
// at: byte of the file where the tensor's first element is. file < 0: it is in no file. rows: rows of the parameter
// that this part has; 0: all that are left. half_rows > 0: of each two runs of half_rows rows the file has the second
// run first, or, with in_turn, rows of the two runs alternately. ggml: type of the quantization blocks that the tensor
// is stored in (ggml_types.h); 0: it is stored in dtype. plus: parameter = value in the file + plus.
struct TensorPlace {
  int32_t file;
  Dtype dtype;
  bool transposed;
  int64_t at, rows, half_rows;
  bool in_turn = false;
  int32_t ggml = 0;
  float plus = 0;
  int32_t scales = 0, scale_block = 0;           // of NF4: its scales in the map, from 1; how many numbers share one
};
// The places of the scales of a matrix in bitsandbytes' NF4 (nf4.h). absmax: one scale per `block` elements, in fp32.
// With nested_block absmax has bytes: scale k is map[byte k] * second[k / nested_block] + offset.
struct Nf4Place { int file; int64_t at; };
struct Nf4Scales { Nf4Place absmax, second; int32_t block, nested_block; float offset, map[256]; };
// Zeroed, it is empty. Freed by tensor_map_free.
struct TensorMap {
  int files, params;
  char path[MAP_MAX_FILES][MAP_PATH_BYTES];
  int64_t file_bytes[MAP_MAX_FILES];             // size of the file; a file of another size is not read
  int64_t data_at[MAP_MAX_FILES];                // byte where tensors start: checksums' blocks are counted from it
  TensorPlace *place;                            // [MAP_STATES][params][MAP_PARTS]
  Nf4Scales *scales;                             // (scales_count)
  int scales_count;
};
void tensor_map_free(TensorMap *m);
// The first part's place; the other parts' follow.
TensorPlace *tensor_place(const TensorMap *m, int state, int param);
// Gives every rank rank 0's map. All ranks call it.
void tensor_map_share(TensorMap *m, MPI_Comm comm);
// An empty map of `params` parameters: nothing is in any file.
void tensor_map_open(TensorMap *m, int params);
// The place that has element *first of a parameter with `cols` columns. part: the parameter's first place. *first
// becomes the element's number in that place's tensor; *left is reduced to the elements contiguous with it there.
const TensorPlace *tensor_part(const TensorPlace *part, int64_t cols, int64_t *first, int64_t *left);

// ---- safetensors_set.h ----------------------------------------------------------------------------------------------
// A set: one or several files that are one model. set_index_name: the index file of a model in several files.
static const char set_index_name[] = "model.safetensors.index.json";
struct SafetensorsShard { char path[MAP_PATH_BYTES]; SafetensorsFile file; };
struct SafetensorsSet { int count; SafetensorsShard *shard; };
// Reads a file of at most `most` bytes that is one JSON object, which the caller deletes. NULL and `error` on failure.
cJSON *import_read_json(const char *path, int64_t most, Error *error);
// Grows the set by an empty entry for the file PATH; the caller raises s->count.
SafetensorsShard *set_grow(SafetensorsSet *s, const char *path);
// Adds the file PATH to the set and checks its header.
bool set_open(SafetensorsSet *s, const char *path, Error *error);
// The tensor `name`, of any dtype; *shard: the file that has it. NULL: no file has it.
const SafetensorsTensor *set_entry(const SafetensorsSet *s, const char *name, int *shard);
// Renames every tensor by `to`, which may lengthen a name by up to `more` bytes. Returns false, with one line in
// `error`, if two tensors then have the same name.
bool set_rename(SafetensorsSet *s, size_t more, void (*to)(char *name, const void *with), const void *with,
                Error *error);
// Opens all files of DIRECTORY/model.safetensors.index.json.
bool set_open_index(SafetensorsSet *s, const char *directory, Error *error);
void set_close(SafetensorsSet *s);

// ---- nf4.h ----------------------------------------------------------------------------------------------------------
// bitsandbytes' suffix of the tensor with a matrix' quantization state.
static const char nf4_state[] = ".quant_state.bitsandbytes__nf4";
// The tensor NAME + end; NULL: there is none.
const SafetensorsTensor *nf4_entry(const SafetensorsSet *s, const char *name, const char *end, int *file);
// Whether a tensor has scales or state of a matrix in NF4, and is not the matrix.
bool nf4_beside(const SafetensorsSet *s, const char *name);
// How many matrices of a set are in NF4.
int nf4_count(const SafetensorsSet *s);
// Reads the places of the scales and the shape of the matrix NAME, whose nibbles are the tensor t. False: `why` says
// why.
bool nf4_read(const SafetensorsSet *s, const char *name, const SafetensorsTensor *t, Nf4Scales *to, int64_t shape[2],
              char why[200]);
// Expands `blocks` blocks of nibbles to fp32.
void nf4_expand(float *to, const uint8_t *nibbles, const float *scale, int64_t blocks, int64_t block);
