// tensors.h: the door of data/tensors/: files of tensors, their checksums, and which tensor of the model is which of a
// file (TensorMap).
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
// The bytes before the data of `count` tensors that follow one another in this order: the length, the JSON, and blanks,
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
// at: byte of the file where the tensor's first element is. file < 0: not in any file. rows: of the parameter that this
// part has; 0: all that are left. half_rows: runs of so many rows are in the file in exchanged pairs, or with in_turn a
// row of one and of the other in turn; 0: as they are. ggml: type of the blocks that it is in (ggml_types.h); 0: dtype.
// plus: what the parameter has more than the file.
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
// Where scales of bitsandbytes' NF4 lie (nf4.h): those of `block` numbers each, in fp32, or with a nested_block as
// bytes, which are numbers of `map`, times the second ones, of nested_block each, plus offset.
struct Nf4Place { int file; int64_t at; };
struct Nf4Scales { Nf4Place absmax, second; int32_t block, nested_block; float offset, map[256]; };
// Zeroed, it is empty. Freed by tensor_map_free.
struct TensorMap {
  int files, params;
  char path[MAP_MAX_FILES][MAP_PATH_BYTES];
  int64_t file_bytes[MAP_MAX_FILES];             // of the whole file: another size is refused before it is read
  int64_t data_at[MAP_MAX_FILES];                // where tensors begin: blocks with checksums are counted from here
  TensorPlace *place;                            // [MAP_STATES][params][MAP_PARTS]
  Nf4Scales *scales;                             // (scales_count)
  int scales_count;
};
void tensor_map_free(TensorMap *m);
// The first part's place; the other parts' follow.
TensorPlace *tensor_place(const TensorMap *m, int state, int param);
// Gives every rank rank 0's map. Collective.
void tensor_map_share(TensorMap *m, MPI_Comm comm);
// An empty map of `params` parameters: nothing is in any file.
void tensor_map_open(TensorMap *m, int params);
// The place of element *first of a parameter of `cols` columns, of which *left follow: *first becomes its number in the
// part's own order, *left no more than lie behind it in one run.
const TensorPlace *tensor_part(const TensorPlace *part, int64_t cols, int64_t *first, int64_t *left);

// ---- safetensors_set.h ----------------------------------------------------------------------------------------------
// Files that are one model. The index of several, by which they are found.
static const char set_index_name[] = "model.safetensors.index.json";
struct SafetensorsShard { char path[MAP_PATH_BYTES]; SafetensorsFile file; };
struct SafetensorsSet { int count; SafetensorsShard *shard; };
// Reads a regular file of at most `most` bytes that is one JSON object, which the caller deletes. NULL and one line in
// `error` if it cannot be read.
cJSON *import_read_json(const char *path, int64_t most, Error *error);
// Room for one more file, named PATH, with nothing in it yet; s->count is the caller's to raise.
SafetensorsShard *set_grow(SafetensorsSet *s, const char *path);
// Adds the file PATH, whose header is checked.
bool set_open(SafetensorsSet *s, const char *path, Error *error);
// The tensor `name`, of whatever dtype, and which file has it; NULL: none has.
const SafetensorsTensor *set_entry(const SafetensorsSet *s, const char *name, int *shard);
// Gives each tensor, once, the name that `to` makes of its own, in memory for `more` bytes more. False, and one line in
// `error`: two have the same then.
bool set_rename(SafetensorsSet *s, size_t more, void (*to)(char *name, const void *with), const void *with,
                Error *error);
// Opens all files of DIRECTORY/model.safetensors.index.json.
bool set_open_index(SafetensorsSet *s, const char *directory, Error *error);
void set_close(SafetensorsSet *s);

// ---- nf4.h ----------------------------------------------------------------------------------------------------------
// Of bitsandbytes: what stands behind a matrix' name where its state is.
static const char nf4_state[] = ".quant_state.bitsandbytes__nf4";
// The tensor NAME + end; NULL: there is none.
const SafetensorsTensor *nf4_entry(const SafetensorsSet *s, const char *name, const char *end, int *file);
// Whether a tensor belongs to a matrix that is in NF4, beside its nibbles.
bool nf4_beside(const SafetensorsSet *s, const char *name);
// How many matrices of a set are in NF4.
int nf4_count(const SafetensorsSet *s);
// What the matrix NAME, whose nibbles are t, says of itself: its scales and its shape. False: `why`.
bool nf4_read(const SafetensorsSet *s, const char *name, const SafetensorsTensor *t, Nf4Scales *to, int64_t shape[2],
              char why[200]);
// The numbers of `blocks` blocks of nibbles.
void nf4_expand(float *to, const uint8_t *nibbles, const float *scale, int64_t blocks, int64_t block);
