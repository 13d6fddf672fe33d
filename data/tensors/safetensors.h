// safetensors.h: the safetensors file format: 8 bytes little-endian header length, a JSON header that gives dtype,
// shape and byte range of every tensor, then the bytes. https://github.com/huggingface/safetensors, "Format".
//
//   1 tensors   SafetensorsTensor: one entry of the header; dtypes; names for messages
//   2 writing   safetensors_header: the bytes before the data of given tensors
//   3 JSON      strings, numbers and punctuation of the header
//   4 header    the grammar: metadata and tensors
//   5 layout    byte ranges fill the file: no overlap, no hole, nothing after them
//   6 files     SafetensorsFile: an open file, mapped, its whole header checked; tensors by name
//
// Conventions
//   - Files are not trusted. Whatever their bytes, reading ends in a table in which every range is inside the
//     file, or in one line that names the file, the tensor and the reason. Memory is a small multiple of the
//     header's bytes, time is O(n log n), and nothing recurses.
//   - A header is UTF-8 JSON of one form: an object whose keys are tensors {"dtype": string, "shape": [whole
//     numbers], "data_offsets": [begin, end]} and "__metadata__": {string: string}. Anything else is rejected: other
//     keys, a name twice, numbers with sign, fraction or exponent.
//   - Every function that can fail returns false and leaves its line in SafetensorsFile.error.
#pragma once
#include "tensors.h"
#include <sys/mman.h>

// The reference implementation's limit.
enum { SAFETENSORS_MAX_HEADER_BYTES = 100000000 };

// ================================================================================================ 1 tensors
struct SafetensorsDtype { const char *text; int bits; Dtype dtype; };
static const SafetensorsDtype safetensors_dtypes[] = {
    {"F32", 32, F32},           {"BF16", 16, BF16},           {"F16", 16, F16},
    {"I32", 32, I32},           {"BOOL", 8, DTYPE_COUNT},     {"U8", 8, DTYPE_COUNT},
    {"I8", 8, DTYPE_COUNT},     {"I16", 16, DTYPE_COUNT},     {"U16", 16, DTYPE_COUNT},
    {"U32", 32, DTYPE_COUNT},   {"I64", 64, DTYPE_COUNT},     {"U64", 64, DTYPE_COUNT},
    {"F64", 64, DTYPE_COUNT},   {"C64", 64, DTYPE_COUNT},     {"F8_E4M3", 8, DTYPE_COUNT},
    {"F8_E5M2", 8, DTYPE_COUNT}, {"F8_E8M0", 8, DTYPE_COUNT}, {"F8_E4M3FNUZ", 8, DTYPE_COUNT},
    {"F4", 4, DTYPE_COUNT},     {"F6_E2M3", 6, DTYPE_COUNT},  {"F6_E3M2", 6, DTYPE_COUNT},
    {"F8_E5M2FNUZ", 8, DTYPE_COUNT}};

// NULL: no such dtype.
static inline const SafetensorsDtype *safetensors_dtype(const char *text) {
  for (const SafetensorsDtype &d : safetensors_dtypes) if (!strcmp(d.text, text)) return &d;
  return NULL;
}
static inline const char *safetensors_dtype_text(Dtype dtype) {
  for (const SafetensorsDtype &d : safetensors_dtypes) if (d.dtype == dtype) return d.text;
  return "?";
}

// Bytes of a tensor of this shape (ndim numbers >= 0); -1: 2^60 or more, or (types below 8 bits) no whole number.
static inline int64_t safetensors_bytes(const SafetensorsDtype *dtype, const int64_t *shape, int ndim) {
  int64_t bits = dtype->bits;
  for (int i = 0; i < ndim; i++) if (__builtin_mul_overflow(bits, shape[i], &bits)) return -1;
  return bits % 8 ? -1 : bits / 8;
}

SafetensorsQuoted safetensors_quoted(const char *name) {
  SafetensorsQuoted q = {{'"'}};
  size_t n = 1;
  for (; *name && n < sizeof q.text - 12; name++) {
    const uint8_t c = (uint8_t)*name;
    if (c < 0x20 || c > 0x7e || c == '"' || c == '\\') n += (size_t)snprintf(q.text + n, 5, "\\x%02x", c);
    else q.text[n++] = *name;
  }
  snprintf(q.text + n, sizeof q.text - n, "%s\"", *name ? "..." : "");
  return q;
}

// ================================================================================================ 2 writing
char *safetensors_header(SafetensorsTensor *tensors, int count, const char *const *metadata,
                         int64_t *header_bytes) {
  int64_t end = 0;
  char *text = NULL;
  size_t bytes = 0;
  FILE *f = open_memstream(&text, &bytes);
  if (!f) die_missing("safetensors: no memory for a header of %d tensors", count);
  fprintf(f, "????????{");
  if (metadata) {
    fprintf(f, "\"__metadata__\":{");
    for (const char *const *m = metadata; *m; m += 2) {
      if (m > metadata) fprintf(f, ",");
      json_text(f, m[0]);
      fprintf(f, ":");
      json_text(f, m[1]);
    }
    fprintf(f, "}%s", count ? "," : "");
  }
  for (int i = 0; i < count; i++) {
    SafetensorsTensor *t = &tensors[i];
    snprintf(t->dtype_text, sizeof t->dtype_text, "%s", safetensors_dtype_text(t->dtype));
    t->known_dtype = true;
    t->at = end;
    t->bytes = safetensors_bytes(safetensors_dtype(t->dtype_text), t->shape, t->ndim);
    CHECK(t->bytes >= 0 && !__builtin_add_overflow(end, t->bytes, &end), "tensor %s is too large", t->name);
    json_text(f, t->name);
    fprintf(f, ":{\"dtype\":\"%s\",\"shape\":[", t->dtype_text);
    for (int d = 0; d < t->ndim; d++) fprintf(f, "%s%lld", d ? "," : "", (long long)t->shape[d]);
    fprintf(f, "],\"data_offsets\":[%lld,%lld]}%s", (long long)t->at, (long long)end,
                      i + 1 < count ? "," : "");
  }
  fprintf(f, "}");
  fflush(f);
  fprintf(f, "%*s", (int)(-bytes % 8), "");
  CHECK(!fclose(f), "no memory for a safetensors header of %d tensors", count);
  const uint64_t length = bytes - 8;
  CHECK(length <= SAFETENSORS_MAX_HEADER_BYTES, "a safetensors header of %zu bytes: readers refuse it", bytes);
  memcpy(text, &length, 8);
  for (int i = 0; i < count; i++) tensors[i].at += (int64_t)bytes;
  *header_bytes = (int64_t)bytes;
  return text;
}

// ================================================================================================ 3 JSON

bool safetensors_fail(SafetensorsText *t, const char *fmt, ...) {
  char *error = t->file->error;
  const size_t room = sizeof t->file->error;
  snprintf(error, room, "%.700s: ", t->path);
  if (t->tensor) text_add(error, room, "tensor %s: ", safetensors_quoted(t->tensor).text);
  va_list ap;
  va_start(ap, fmt);
  text_add_list(error, room, fmt, ap);
  va_end(ap);
  return false;
}
static inline bool safetensors_damaged(SafetensorsText *t, const char *expected) {
  const char found[] = {t->at < t->end ? *t->at : '\0', '\0'};
  return safetensors_fail(t, "its header is damaged at byte %lld of the file: expected %s, found %s; fetch or write it "
                          "again", (long long)(t->at - t->start) + 8, expected,
                          t->at == t->end ? "its end" : *found ? safetensors_quoted(found).text : "NUL");
}
static inline void safetensors_blanks(SafetensorsText *t) {
  while (t->at < t->end && (*t->at == ' ' || *t->at == '\t' || *t->at == '\n' || *t->at == '\r')) t->at++;
}
// Skips white space, and c if it comes next; returns whether it did.
static inline bool safetensors_take(SafetensorsText *t, char c) {
  safetensors_blanks(t);
  if (t->at == t->end || *t->at != c) return false;
  t->at++;
  return true;
}
static inline bool safetensors_expect(SafetensorsText *t, char c) {
  const char expected[] = {'\'', c, '\'', '\0'};
  return safetensors_take(t, c) || safetensors_damaged(t, expected);
}

// Four hexadecimal digits at t->at; -1: something else.
static inline int safetensors_hex(SafetensorsText *t) {
  int value = 0;
  if (t->end - t->at < 4) return -1;
  for (int i = 0; i < 4; i++, t->at++) {
    static const char digits[] = "0123456789abcdefABCDEF";
    const char *at = *t->at ? strchr(digits, *t->at) : NULL;
    if (!at) return -1;
    value = value << 4 | (int)(at - digits < 16 ? at - digits : at - digits - 6);
  }
  return value;
}
// Reads one escape sequence, after its backslash, to *out.
static inline bool safetensors_escape(SafetensorsText *t, char **out) {
  const char *const from = "\"\\/bfnrt", *const to = "\"\\/\b\f\n\r\t";
  const char c = t->at < t->end ? *t->at : 0, *at = c ? strchr(from, c) : NULL;
  if (at) { *(*out)++ = to[at - from]; t->at++; return true; }
  if (c != 'u') return safetensors_damaged(t, "an escape sequence of JSON");
  t->at++;
  uint32_t u = (uint32_t)safetensors_hex(t);
  if (u >= 0xd800 && u < 0xdc00 && t->end - t->at > 6 && t->at[0] == '\\' && t->at[1] == 'u') {
    t->at += 2;
    const uint32_t low = (uint32_t)safetensors_hex(t);
    u = low >= 0xdc00 && low < 0xe000 ? 0x10000 + ((u - 0xd800) << 10) + (low - 0xdc00) : 0;
  }
  if (u == 0 || u > 0x10ffff || (u >= 0xd800 && u < 0xe000))
    return safetensors_damaged(t, "a character other than NUL after \\u");
  *out = (char *)utf8_put((uint8_t *)*out, u);
  return true;
}
// A string, unescaped in place (it never grows) and ended by NUL instead of its quote; NULL: damaged.
static inline char *safetensors_string(SafetensorsText *t, const char *expected) {
  if (!safetensors_take(t, '"')) { safetensors_damaged(t, expected); return NULL; }
  char *const string = t->at, *out = t->at;
  while (t->at < t->end && *t->at != '"') {
    const int n = utf8_bytes((const uint8_t *)t->at, (const uint8_t *)t->end);
    if (*t->at == '\\') {
      t->at++;
      if (!safetensors_escape(t, &out)) return NULL;
    } else if (n <= 0 || (uint8_t)*t->at < 0x20) {
      safetensors_damaged(t, "UTF-8 without control characters");
      return NULL;
    } else for (int i = 0; i < n; i++) *out++ = *t->at++;
  }
  if (t->at == t->end) { safetensors_damaged(t, "the end of a string"); return NULL; }
  t->at++;
  *out = 0;
  return string;
}
// A whole number from 0 to 2^53 - 1; above, other tools' doubles would read another one. `what` names it in errors.
static inline bool safetensors_integer(SafetensorsText *t, const char *what, int64_t *out) {
  safetensors_blanks(t);
  const char *first = t->at;
  int64_t n = 0;
  for (; t->at < t->end && *t->at >= '0' && *t->at <= '9'; t->at++) {
    n = n * 10 + (*t->at - '0');
    if (n >= (int64_t)1 << 53) return safetensors_fail(t, "%s holds a number of 2^53 or more", what);
  }
  const char c = t->at < t->end ? *t->at : 0;
  if (first == t->at && c == '-') return safetensors_fail(t, "%s holds a negative number", what);
  if (first == t->at) return safetensors_fail(t, "%s holds something that is not a number", what);
  if (c == '.' || c == 'e' || c == 'E') return safetensors_fail(t, "%s holds a number that is not whole", what);
  if (*first == '0' && t->at > first + 1) return safetensors_damaged(t, "a number without leading zeros");
  *out = n;
  return true;
}
// [a, b, ...]: at most `most` numbers, their count to *count.
static inline bool safetensors_integers(SafetensorsText *t, const char *what, int most, int64_t *out, int *count) {
  *count = 0;
  if (!safetensors_take(t, '[')) return safetensors_fail(t, "%s is not an array", what);
  if (safetensors_take(t, ']')) return true;
  do {
    if (*count == most) return safetensors_fail(t, "%s has more than %d numbers", what, most);
    if (!safetensors_integer(t, what, &out[(*count)++])) return false;
  } while (safetensors_take(t, ','));
  return safetensors_expect(t, ']');
}

// ================================================================================================ 4 header
// Grows an array that has `count` elements by one; its capacity is the next power of two.
static inline bool safetensors_grow(SafetensorsText *t, void **array, int count, size_t each_bytes) {
  if (count & (count - 1)) return true;          // room is the next power of two
  void *grown = realloc(*array, (count ? 2 * (size_t)count : 1) * each_bytes);
  if (!grown) return safetensors_fail(t, "no memory for a header of more than %d entries", count);
  *array = grown;
  return true;
}

static inline int safetensors_order_pairs(const void *a, const void *b) {
  return strcmp(((const SafetensorsPair *)a)->key, ((const SafetensorsPair *)b)->key);
}
// {"key": "value", ...}
static inline bool safetensors_read_metadata(SafetensorsText *t) {
  SafetensorsFile *s = t->file;
  if (s->metadata) return safetensors_fail(t, "__metadata__ appears twice in the header");
  if (!safetensors_grow(t, (void **)&s->metadata, 0, sizeof *s->metadata)) return false;
  if (!safetensors_take(t, '{')) return safetensors_fail(t, "__metadata__ is not an object");
  if (safetensors_take(t, '}')) return true;
  do {
    if (!safetensors_grow(t, (void **)&s->metadata, s->metadata_count, sizeof *s->metadata)) return false;
    SafetensorsPair *pair = &s->metadata[s->metadata_count];
    if (!(pair->key = safetensors_string(t, "a key of __metadata__")) || !safetensors_expect(t, ':') ||
        !(pair->value = safetensors_string(t, "a string, the only type in __metadata__"))) return false;
    s->metadata_count++;
  } while (safetensors_take(t, ','));
  if (!safetensors_expect(t, '}')) return false;
  qsort(s->metadata, (size_t)s->metadata_count, sizeof *s->metadata, safetensors_order_pairs);
  for (int i = 1; i < s->metadata_count; i++)
    if (!strcmp(s->metadata[i - 1].key, s->metadata[i].key))
      return safetensors_fail(t, "__metadata__ holds %s twice", safetensors_quoted(s->metadata[i].key).text);
  return true;
}

// One key of a tensor's object, after its colon. *begin_end: what data_offsets says.
static inline bool safetensors_read_member(SafetensorsText *t, const char *key, SafetensorsTensor *out,
                                           int64_t *begin_end) {
  int offsets;
  if (!strcmp(key, "shape"))
    return safetensors_integers(t, "its shape", SAFETENSORS_MAX_DIMS, out->shape, &out->ndim);
  if (!strcmp(key, "data_offsets")) {
    if (!safetensors_integers(t, "data_offsets", 2, begin_end, &offsets)) return false;
    return offsets == 2 || safetensors_fail(t, "data_offsets has %d numbers, not 2", offsets);
  }
  const char *text = safetensors_string(t, "the name of a dtype");
  if (!text) return false;
  const SafetensorsDtype *dtype = safetensors_dtype(text);
  if (!dtype) return safetensors_fail(t, "there is no dtype %s", safetensors_quoted(text).text);
  snprintf(out->dtype_text, sizeof out->dtype_text, "%s", dtype->text);
  out->known_dtype = dtype->dtype != DTYPE_COUNT;
  out->dtype = out->known_dtype ? dtype->dtype : F32;
  return true;
}
// The object of the tensor t->tensor.
static inline bool safetensors_read_tensor(SafetensorsText *t, SafetensorsTensor *out) {
  static const char *const members[] = {"dtype", "shape", "data_offsets"};
  int64_t offset[2] = {};
  unsigned seen = 0;
  if (!safetensors_take(t, '{')) return safetensors_fail(t, "its entry in the header is not an object");
  if (!safetensors_take(t, '}')) {
    do {
      const char *key = safetensors_string(t, "\"dtype\", \"shape\" or \"data_offsets\"");
      if (!key || !safetensors_expect(t, ':')) return false;
      int m = 0;
      while (m < 3 && strcmp(key, members[m])) m++;
      if (m == 3) return safetensors_fail(t, "its entry has a key %s, which the format lacks",
                                          safetensors_quoted(key).text);
      if (seen & 1u << m) return safetensors_fail(t, "its entry has %s twice", members[m]);
      seen |= 1u << m;
      if (!safetensors_read_member(t, key, out, offset)) return false;
    } while (safetensors_take(t, ','));
    if (!safetensors_expect(t, '}')) return false;
  }
  for (int m = 0; m < 3; m++) if (!(seen & 1u << m)) return safetensors_fail(t, "its entry lacks %s", members[m]);
  const long long begin = offset[0], end = offset[1], data_bytes = (long long)(t->file->bytes - t->file->data_at);
  if (begin > end) return safetensors_fail(t, "data_offsets end (%lld) before they start (%lld)", end, begin);
  if (end > data_bytes)
    return safetensors_fail(t, "data_offsets end at byte %lld of the data, but the file holds %lld: it is cut short; "
                            "fetch or write it again", end, data_bytes);
  out->bytes = safetensors_bytes(safetensors_dtype(out->dtype_text), out->shape, out->ndim);
  if (out->bytes < 0) return safetensors_fail(t, "its shape asks for no whole number of bytes below 2^60");
  if (out->bytes != end - begin)
    return safetensors_fail(t, "data_offsets span %lld bytes, but its shape and dtype %s need %lld", end - begin,
                            out->dtype_text, (long long)out->bytes);
  out->at = (int64_t)t->file->data_at + begin;
  return true;
}
// Everything between the length and the data.
static inline bool safetensors_read_header(SafetensorsText *t) {
  SafetensorsFile *s = t->file;
  if (t->at == t->end || *t->at != '{') return safetensors_damaged(t, "'{', with which every header starts");
  t->at++;
  if (!safetensors_take(t, '}')) {
    do {
      char *name = safetensors_string(t, "the name of a tensor");
      if (!name || !safetensors_expect(t, ':')) return false;
      if (!strcmp(name, "__metadata__")) {
        if (!safetensors_read_metadata(t)) return false;
        continue;
      }
      t->tensor = name;
      for (const char *c = name; *c; c++)
        if ((uint8_t)*c < 0x20 || *c == 0x7f) return safetensors_fail(t, "its name holds control characters");
      if (!safetensors_grow(t, (void **)&s->tensor, s->count, sizeof *s->tensor)) return false;
      s->tensor[s->count] = SafetensorsTensor{};
      s->tensor[s->count].name = name;
      if (!safetensors_read_tensor(t, &s->tensor[s->count++])) return false;
      t->tensor = NULL;
    } while (safetensors_take(t, ','));
    if (!safetensors_expect(t, '}')) return false;
  }
  safetensors_blanks(t);
  return t->at == t->end || safetensors_damaged(t, "nothing but spaces after the header's last '}'");
}

// ================================================================================================ 5 layout
static inline int safetensors_order_places(const void *a, const void *b) {
  const SafetensorsTensor *x = (const SafetensorsTensor *)a, *y = (const SafetensorsTensor *)b;
  if (x->at != y->at) return x->at < y->at ? -1 : 1;
  if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;         // empty ones come first
  return strcmp(x->name, y->name);
}
static inline int safetensors_order_names(const void *a, const void *b) {
  return strcmp((*(SafetensorsTensor *const *)a)->name, (*(SafetensorsTensor *const *)b)->name);
}
bool safetensors_check_layout(SafetensorsText *t, bool gaps) {
  SafetensorsFile *s = t->file;
  int64_t end = (int64_t)s->data_at;
  s->by_name = (SafetensorsTensor **)malloc(sizeof *s->by_name * (size_t)(s->count + 1));
  if (!s->by_name) return safetensors_fail(t, "no memory for a header of %d entries", s->count);
  if (s->count) qsort(s->tensor, (size_t)s->count, sizeof *s->tensor, safetensors_order_places);
  for (int i = 0; i < s->count; i++) s->by_name[i] = &s->tensor[i];
  qsort(s->by_name, (size_t)s->count, sizeof *s->by_name, safetensors_order_names);
  for (int i = 1; i < s->count; i++) {
    t->tensor = s->by_name[i]->name;
    if (!strcmp(s->by_name[i - 1]->name, t->tensor)) return safetensors_fail(t, "it appears twice in the header");
  }
  for (int i = 0; i < s->count; i++) {
    const SafetensorsTensor *x = &s->tensor[i];
    t->tensor = x->name;
    if (x->at < end)
      return safetensors_fail(t, "its bytes overlap those of %s", safetensors_quoted(s->tensor[i - 1].name).text);
    if (x->at > end && !gaps)
      return safetensors_fail(t, "%lld bytes before its own belong to no tensor", (long long)(x->at - end));
    end = x->at + x->bytes;
  }
  t->tensor = NULL;
  if (end == (int64_t)s->bytes || gaps) return true;
  return safetensors_fail(t, "the last %lld bytes of the file belong to no tensor; fetch or write it again",
                          (long long)((int64_t)s->bytes - end));
}

// ================================================================================================ 6 files
void safetensors_close(SafetensorsFile *s) {
  if (s->map) munmap((void *)s->map, s->bytes);
  free(s->tensor);
  free(s->by_name);
  free(s->metadata);
  free(s->text);
  free(s->names);
  memset(s, 0, sizeof *s);
}

// Reads the header into s->text and maps the file. The header is read, not mapped: if another process cuts the file
// short meanwhile, that is an error and not a signal.
static inline bool safetensors_load(SafetensorsText *t, int fd) {
  SafetensorsFile *s = t->file;
  struct stat st;
  uint64_t length;
  if (fd < 0 || fstat(fd, &st)) return safetensors_fail(t, "cannot open it: %s", strerror(errno));
  if (!S_ISREG(st.st_mode)) return safetensors_fail(t, "it is %s, not a regular file", file_type_words(st.st_mode));
  const uint64_t bytes = (uint64_t)st.st_size;
  char first[FILE_FOREIGN_BYTES];
  const size_t look = bytes < sizeof first ? (size_t)bytes : sizeof first;
  const bool is_other = look > 8 && file_read(fd, first, (int64_t)look, 0) && first[8] != '{';      // no header
  const char *foreign = is_other ? file_foreign(first, look) : NULL;
  if (foreign) return safetensors_fail(t, "not a safetensors file: it is %s", foreign);
  if (bytes < 10)
    return safetensors_fail(t, "not a safetensors file: %llu bytes; fetch or write it again",
                            (unsigned long long)bytes);
  if (!file_read(fd, &length, 8, 0)) return safetensors_fail(t, "cannot read it: %s", strerror(errno));
  if (length > SAFETENSORS_MAX_HEADER_BYTES)
    return safetensors_fail(t, "not a safetensors file: the header length in its first 8 bytes is %llu, above %d",
                            (unsigned long long)length, SAFETENSORS_MAX_HEADER_BYTES);
  if (length > bytes - 8)
    return safetensors_fail(t, "its header has %llu bytes, but the file ends after %llu of them: it is cut short; "
                            "fetch or write it again", (unsigned long long)length, (unsigned long long)bytes - 8);
  s->text = (char *)malloc((size_t)length + !length);
  if (!s->text) return safetensors_fail(t, "no memory for its header of %llu bytes", (unsigned long long)length);
  if (!file_read(fd, s->text, (int64_t)length, 8))
    return safetensors_fail(t, "cannot read it: %s",
                            errno == ENODATA ? "it became shorter meanwhile" : strerror(errno));
  t->start = t->at = s->text;
  t->end = s->text + length;
  s->data_at = 8 + (size_t)length;
  s->bytes = (size_t)bytes;
  void *map = mmap(NULL, s->bytes, PROT_READ, MAP_PRIVATE, fd, 0);
  if (map == MAP_FAILED)
    return safetensors_fail(t, "cannot map its %llu bytes: %s", (unsigned long long)bytes, strerror(errno));
  s->map = (const uint8_t *)map;
  return true;
}
bool safetensors_open(SafetensorsFile *s, const char *path) {
  memset(s, 0, sizeof *s);
  SafetensorsText t = {s, path, NULL, NULL, NULL, NULL};
  const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);        // a FIFO must not block
  bool ok = safetensors_load(&t, fd) && safetensors_read_header(&t) && safetensors_check_layout(&t);
  if (fd >= 0) close(fd);
  if (ok) return true;
  char error[sizeof s->error];
  memcpy(error, s->error, sizeof error);
  safetensors_close(s);
  memcpy(s->error, error, sizeof error);
  return false;
}

const SafetensorsTensor *safetensors_entry(const SafetensorsFile *s, const char *name) {
  SafetensorsTensor key = {}, *want = &key;
  key.name = name;
  void *at = s->count ? bsearch(&want, s->by_name, (size_t)s->count, sizeof want, safetensors_order_names) : NULL;
  return at ? *(SafetensorsTensor **)at : NULL;
}
bool safetensors_find(SafetensorsFile *s, const char *name, Dtype dtype, Tensor *out) {
  const SafetensorsTensor *t = safetensors_entry(s, name);
  const char *want = safetensors_dtype_text(dtype);
  char fault[128] = "";
  if (!t) snprintf(fault, sizeof fault, "it is not in the file");
  else if (!t->known_dtype || t->dtype != dtype)
    snprintf(fault, sizeof fault, "its dtype is %s, expected %s", t->dtype_text, want);
  else if (t->ndim > 4) snprintf(fault, sizeof fault, "it has %d dimensions, at most 4 are read", t->ndim);
  else if (t->at % (int64_t)dtype_bytes(dtype))
    snprintf(fault, sizeof fault, "its first byte, %lld of the file, is not aligned for %s", (long long)t->at, want);
  if (*fault) {
    snprintf(s->error, sizeof s->error, "tensor %s: %s", safetensors_quoted(name).text, fault);
    return false;
  }
  *out = Tensor{(void *)(s->map + t->at), dtype, t->ndim, {}};
  for (int i = 0; i < t->ndim; i++) out->shape[i] = t->shape[i];
  return true;
}
const char *safetensors_metadata(const SafetensorsFile *s, const char *key) {
  const SafetensorsPair want = {key, NULL};
  const size_t count = (size_t)s->metadata_count;
  void *at = count ? bsearch(&want, s->metadata, count, sizeof want, safetensors_order_pairs) : NULL;
  return at ? ((const SafetensorsPair *)at)->value : NULL;
}
