// gguf_file.h: the header of a GGUF file, llama.cpp's form of a model: keys with values, and what tensors there are.
// https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
//
// All numbers are little endian: "GGUF", u32 version, u64 tensors, u64 keys; keys (text, u32 type, value); tensors
// (text, u32 dimensions, u64 of each with the fastest first, u32 type, u64 place from the data on); data, at a multiple
// of general.alignment. A text is a u64 length and its bytes; an array a u32 type, a u64 count and its items.
//
// Files are not trusted: reading ends in a table in which every value is inside the header, or in one line. Memory is
// a small multiple of the header's bytes, time is O(n log n).
#pragma once
#include "gguf.h"

enum { GGUF_FIRST_READ = 1 << 12, GGUF_HEADER_MAX = 1 << 28 };
struct GgufReader {
  GgufFile *g;
  const char *path;
  uint8_t *at, *end;
  bool ended;                                    // what was read of the file is not all of the header
  Error *error;
};

#define gguf_fail(r, ...) fail_at((r)->error, (r)->path, __VA_ARGS__)
// Steps over `each` x `count` bytes, which must be there.
static inline bool gguf_step(GgufReader *r, uint64_t count, uint64_t each) {
  r->ended = count > (uint64_t)(r->end - r->at) / each;
  if (r->ended) return gguf_fail(r, "its header is not all there: the file is cut short or damaged; fetch it again");
  r->at += count * each;
  return true;
}
static inline bool gguf_take(GgufReader *r, void *to, size_t bytes) {
  const uint8_t *from = r->at;
  if (!gguf_step(r, 1, bytes)) return false;
  memcpy(to, from, bytes);
  return true;
}
static inline bool gguf_take_text(GgufReader *r, GgufText *t) {
  uint64_t bytes;
  if (!gguf_take(r, &bytes, 8)) return false;
  *t = GgufText{(const char *)r->at, (size_t)bytes};
  return gguf_step(r, bytes, 1);
}
// A name and the number after it, over which the name's NUL is put.
static inline bool gguf_take_name(GgufReader *r, const char **name, uint32_t *behind) {
  enum { MOST_BYTES = 200 };
  GgufText t;
  if (!gguf_take_text(r, &t) || !gguf_take(r, behind, 4)) return false;
  bool plain = t.bytes > 0 && t.bytes <= MOST_BYTES;
  for (size_t i = 0; plain && i < t.bytes; i++) plain = t.at[i] > ' ' && t.at[i] <= '~';
  if (!plain) return gguf_fail(r, "a name in its header is no text of 1 to %d letters: it is damaged", MOST_BYTES);
  ((char *)t.at)[t.bytes] = 0;
  *name = t.at;
  return true;
}
// Puts one more after `count` in an array whose room doubles.
template <class T> static inline void gguf_put(T **array, int *count, T x) {
  const size_t n = (size_t)(*count)++;
  if (!(n & (n - 1)) && !(*array = (T *)realloc(*array, (n ? 2 * n : 1) * sizeof x)))
    die_missing("no memory for a GGUF header of more than %zu entries", n);
  (*array)[n] = x;
}

static inline uint64_t gguf_value_bytes(uint32_t type) {
  static const uint8_t bytes[GGUF_VALUES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return type < GGUF_VALUES ? bytes[type] : 0;
}
static inline bool gguf_take_key(GgufReader *r) {
  GgufKey k = {};
  k.count = 1;
  if (!gguf_take_name(r, &k.name, &k.type)) return false;
  k.is_array = k.type == GGUF_ARRAY;
  if (k.is_array && !(gguf_take(r, &k.type, 4) && gguf_take(r, &k.count, 8))) return false;
  k.at = r->at;
  const uint64_t each = gguf_value_bytes(k.type);
  GgufText unused;
  if (!each && k.type != GGUF_STRING) return gguf_fail(r, "%s has values of type %u: not read", k.name, k.type);
  for (uint64_t i = 0; !each && i < k.count; i++) if (!gguf_take_text(r, &unused)) return false;
  if (each && !gguf_step(r, k.count, each)) return false;
  gguf_put(&r->g->key, &r->g->keys, k);
  return true;
}
static inline bool gguf_take_info(GgufReader *r) {
  GgufInfo t = {};
  uint32_t dims;
  if (!gguf_take_name(r, &t.name, &dims)) return false;
  if (!dims || dims > GGUF_DIMS) return gguf_fail(r, "tensor %s has %u dimensions, expected 1 to 4", t.name, dims);
  t.dims = (int)dims;
  int64_t numel = 1;
  for (int i = 0; i < t.dims; i++) {
    if (!gguf_take(r, &t.shape[i], 8)) return false;
    if (t.shape[i] < 1 || __builtin_mul_overflow(numel, t.shape[i], &numel) || numel >> 56)
      return gguf_fail(r, "tensor %s has a dimension of %lld: it is damaged", t.name, (long long)t.shape[i]);
  }
  if (!gguf_take(r, &t.type, 4) || !gguf_take(r, &t.at, 8)) return false;
  gguf_put(&r->g->info, &r->g->infos, t);
  return true;
}

// ---- values ---------------------------------------------------------------------------------------------------------
static inline int gguf_order(const void *a, const void *b) {
  return strcmp(((const GgufKey *)a)->name, ((const GgufKey *)b)->name);
}
const GgufKey *gguf_find(const GgufFile *g, const char *name) {
  GgufKey want = {};
  want.name = name;
  return g->keys ? (const GgufKey *)bsearch(&want, g->key, (size_t)g->keys, sizeof want, gguf_order) : NULL;
}
double gguf_item(const GgufKey *k, uint64_t i) {
  const uint8_t *at = k->at + i * gguf_value_bytes(k->type);
  const auto as = [at](auto x) { memcpy(&x, at, sizeof x); return (double)x; };
  switch (k->type) {
    case GGUF_U8: case GGUF_BOOL: return as(uint8_t());
    case GGUF_I8: return as(int8_t());
    case GGUF_U16: return as(uint16_t());
    case GGUF_I16: return as(int16_t());
    case GGUF_U32: return as(uint32_t());
    case GGUF_I32: return as(int32_t());
    case GGUF_U64: return as(uint64_t());
    case GGUF_I64: return as(int64_t());
    case GGUF_DOUBLE: return as(double());
  }
  char text[40];
  const double x = as(float());
  for (int digits = 1; digits <= 9; digits++) {
    snprintf(text, sizeof text, "%.*g", digits, x);
    if ((double)strtof(text, NULL) == x) return strtod(text, NULL);
  }
  return x;                                      // NaN
}
bool gguf_number(const GgufFile *g, const char *name, double *value) {
  const GgufKey *k = gguf_find(g, name);
  if (!k || k->is_array || k->type == GGUF_STRING) return false;
  *value = gguf_item(k, 0);
  return true;
}
GgufText gguf_next(const uint8_t **at) {
  uint64_t bytes;
  memcpy(&bytes, *at, 8);
  const GgufText t = {(const char *)*at + 8, (size_t)bytes};
  *at += 8 + bytes;
  return t;
}
GgufText gguf_text_at(const GgufKey *k, uint64_t i) {
  const uint8_t *at = k->at;
  while (i--) gguf_next(&at);
  return gguf_next(&at);
}
char *gguf_string(const GgufFile *g, const char *name) {
  const GgufKey *k = gguf_find(g, name);
  if (!k || k->is_array || k->type != GGUF_STRING) return NULL;
  const GgufText t = gguf_text_at(k, 0);
  char *text = strndup(t.at, t.bytes);
  if (!text) die_missing("no memory for %s of a GGUF file", name);
  return text;
}

// ---- files ----------------------------------------------------------------------------------------------------------
void gguf_close(GgufFile *g) {
  free(g->header);
  free(g->key);
  free(g->info);
  *g = {};
}
bool gguf_is(const char *path) {
  char magic[4] = "";
  const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  const bool is = fd >= 0 && file_read(fd, magic, 4, 0) && !memcmp(magic, "GGUF", 4);
  if (fd >= 0) close(fd);
  return is;
}
static inline bool gguf_read_header(GgufReader *r) {
  GgufFile *g = r->g;
  uint32_t version;
  uint64_t infos, keys;
  if (!gguf_take(r, &version, 4) || !gguf_take(r, &infos, 8) || !gguf_take(r, &keys, 8)) return false;
  if (version && !(version & 0xffff)) return gguf_fail(r, "is a GGUF of big endian, only little endian is read");
  if (version != 2 && version != 3)
    return gguf_fail(r, "is a GGUF of version %u; versions 2 and 3 are read", version);
  for (uint64_t i = 0; i < keys; i++) if (!gguf_take_key(r)) return false;
  for (uint64_t i = 0; i < infos; i++) if (!gguf_take_info(r)) return false;
  if (g->keys) qsort(g->key, (size_t)g->keys, sizeof *g->key, gguf_order);
  for (int i = 1; i < g->keys; i++)
    if (!gguf_order(&g->key[i - 1], &g->key[i])) return gguf_fail(r, "%s is there twice", g->key[i].name);
  double alignment = GGUF_ALIGNMENT;
  gguf_number(g, "general.alignment", &alignment);
  g->alignment = alignment >= 1 && alignment <= 1 << 20 ? (int64_t)alignment : 0;
  if (!g->alignment || (g->alignment & (g->alignment - 1)))
    return gguf_fail(r, "general.alignment is %g, expected a power of two", alignment);
  g->data_at = (r->at - g->header + g->alignment - 1) / g->alignment * g->alignment;
  return true;
}
bool gguf_open(GgufFile *g, const char *path, Error *error) {
  GgufReader r = {g, path, NULL, NULL, false, error};
  struct stat st = {};
  *g = {};
  const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  bool ok = fd >= 0 && !fstat(fd, &st), done = !ok;
  if (!ok) gguf_fail(&r, "cannot open it: %s", strerror(errno));
  const int64_t most = min64(st.st_size, GGUF_HEADER_MAX);
  for (int64_t n = GGUF_FIRST_READ; !done; n *= 4) {
    const int64_t bytes = min64(n, most);
    gguf_close(g);
    g->file_bytes = st.st_size;
    g->header = (uint8_t *)malloc((size_t)bytes + 1);
    if (!g->header) die_missing("no memory for the header of %.900s", path);
    r.ended = false, r.at = g->header, r.end = g->header + bytes;
    ok = file_read(fd, g->header, bytes, 0);
    if (!ok) gguf_fail(&r, "cannot read it: %s", strerror(errno));
    ok = ok && gguf_step(&r, 4, 1) && gguf_read_header(&r);
    done = ok || !r.ended || bytes == most;
  }
  if (fd >= 0) close(fd);
  if (ok) error->text[0] = 0;                          // of a part that was too short
  else gguf_close(g);
  return ok;
}
