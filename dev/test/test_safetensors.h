// test_safetensors.h: CRC-32C and its algebra; the safetensors reader on whole, hostile and damaged files.
#pragma once
#include <sys/mman.h>

// ================================================================================================ CRC-32C
static inline void crc_bytes(uint8_t *out, size_t bytes, uint32_t seed) {
  for (size_t i = 0; i < bytes; i++) out[i] = (uint8_t)((seed = seed * 1664525u + 1013904223u) >> 24);
}

TEST(crc32c_known_answers, "CRC-32C of the check string and of the blocks of RFC 3720, B.4, has the published values") {
  uint8_t zeros[32] = {}, ones[32], up[32], down[32];
  memset(ones, 0xff, sizeof ones);
  for (int i = 0; i < 32; i++) { up[i] = (uint8_t)i; down[i] = (uint8_t)(31 - i); }
  const struct { const void *data; size_t bytes; uint32_t want; } cases[] = {
      {"123456789", 9, 0xe3069283}, {zeros, 32, 0x8a9136aa}, {ones, 32, 0x62a8ab43}, {up, 32, 0x46dd794e},
      {down, 32, 0x113fdb5c}, {"", 0, 0}};
  for (const auto &c : cases) {
    EXPECT(crc32c(0, c.data, c.bytes) == c.want, "%08x, must be %08x", crc32c(0, c.data, c.bytes), c.want);
    EXPECT(~crc32c_update_table(~0u, c.data, c.bytes) == c.want, "table: must be %08x", c.want);
  }
}

TEST(crc32c_table_is_instruction, "tables and crc32 instruction agree at every length, offset and start value") {
  if (!processor_has_crc32c()) SKIP("this machine has no crc32 instruction");
  enum { BYTES = 7 * CRC32C_STREAM_BYTES + 100 };
  static uint8_t data[BYTES];
  crc_bytes(data, BYTES, 1);
  auto expect_same = [](size_t at, size_t n, uint32_t start) {
    EXPECT(crc32c_update_table(start, data + at, n) == crc32c_update_instruction(start, data + at, n),
           "%zu bytes from %zu on, start %08x: table and instruction differ", n, at, start);
  };
  for (size_t at = 0; at < 9; at++)
    for (size_t n = 0; n < 80; n++) expect_same(at, n, n & 1 ? ~0u : (uint32_t)(n * 77777777));
  for (size_t whole : {3 * CRC32C_STREAM_BYTES, 6 * CRC32C_STREAM_BYTES})
    for (size_t n = whole - 9; n < whole + 9; n++) expect_same(n % 8, n, ~0u);
}

TEST(crc32c_parts, "bytes checked in pieces, chained or XORed in any order, have the checksum of the whole block") {
  enum { BYTES = 2 * 3 * CRC32C_STREAM_BYTES + 1000 };
  static uint8_t data[BYTES];
  crc_bytes(data, BYTES, 2);
  uint64_t random = 3;
  for (size_t n : {(size_t)1, (size_t)2, (size_t)63, (size_t)700, (size_t)BYTES}) {
    const uint32_t want = crc32c(0, data, n);
    for (size_t cut = 0; cut <= n; cut += n > 1000 ? 977 : 1) {
      EXPECT(crc32c(crc32c(0, data, cut), data + cut, n - cut) == want, "chained at %zu of %zu: another value", cut, n);
      const uint32_t sum = crc32c_part(data + cut, n - cut, 0) ^ crc32c_part(data, cut, n - cut);
      EXPECT(crc32c_of_parts(sum, n) == want, "parts cut at %zu of %zu: another value", cut, n);
    }
    for (int trial = 0; trial < 20; trial++) {   // every third byte range first, then the next, then the last
      size_t cut[10] = {0};
      for (int i = 1; i < 9; i++) {
        random = random * 6364136223846793005ull + 1442695040888963407ull;
        cut[i] = cut[i - 1] + (size_t)((random >> 33) % (n - cut[i - 1] + 1));
      }
      cut[9] = n;
      uint32_t sum = 0;
      for (int first = 0; first < 3; first++)
        for (int i = first; i < 9; i += 3) sum ^= crc32c_part(data + cut[i], cut[i + 1] - cut[i], n - cut[i + 1]);
      EXPECT(crc32c_of_parts(sum, n) == want, "nine parts of %zu bytes: another value", n);
    }
  }
  // A part far from the block's end: as many zero bytes after it.
  static uint8_t far[70000];
  memcpy(far, data, 100);
  EXPECT(crc32c_part(data, 100, sizeof far - 100) == crc32c_part(far, sizeof far, 0), "bytes after it do not count");
}

// ================================================================================================ files for the reader
// A file in memory with a path, for the reader.
struct HostileFile { int fd; char path[64]; };

static inline HostileFile hostile_file(const void *bytes, size_t count) {
  HostileFile f;
  f.fd = memfd_create("safetensors", 0);
  snprintf(f.path, sizeof f.path, "/proc/self/fd/%d", f.fd);
  if (f.fd < 0 || pwrite(f.fd, bytes, count, 0) != (ssize_t)count) {
    test_fail(__FILE__, __LINE__, "cannot write a file in memory");
    exit(TEST_EXIT_FAILED);
  }
  return f;
}
// A file with this header, its length (or another) before it and `data` bytes after it. Sets *bytes to its size.
static inline HostileFile hostile_header(const char *json, size_t json_bytes, uint64_t length, int data) {
  char *file = (char *)malloc(8 + json_bytes + (size_t)data);
  memcpy(file, &length, 8);
  memcpy(file + 8, json, json_bytes);
  memset(file + 8 + json_bytes, 0x5a, (size_t)data);
  HostileFile f = hostile_file(file, 8 + json_bytes + (size_t)data);
  free(file);
  return f;
}
// Must be rejected, in one printable line that names the file and contains every one of `reasons` (separated by '|').
static inline void expect_rejected(const HostileFile *f, const char *what, const char *reasons) {
  SafetensorsFile s;
  if (safetensors_open(&s, f->path)) {
    test_fail(__FILE__, __LINE__, "accepted: %.200s", what);
    safetensors_close(&s);
    return;
  }
  EXPECT(!s.map && !s.tensor && !s.text, "%.200s: something is left open", what);
  EXPECT(!strncmp(s.error, f->path, strlen(f->path)), "%.200s: the file is not named: %s", what, s.error);
  for (const char *c = s.error; *c; c++) EXPECT(*c >= 0x20 && *c < 0x7f, "%.200s: the message is not printable", what);
  char text[256], *save = NULL;
  snprintf(text, sizeof text, "%s", reasons);
  for (char *r = strtok_r(text, "|", &save); r; r = strtok_r(NULL, "|", &save))
    EXPECT(strstr(s.error, r), "%.200s: must name `%s`: %s", what, r, s.error);
}
static inline void expect_header_rejected(const char *json, int data, const char *reasons) {
  HostileFile f = hostile_header(json, strlen(json), strlen(json), data);
  expect_rejected(&f, json, reasons);
  close(f.fd);
}

// A small file of three tensors and metadata, as safetensors_header writes it, with data; the caller frees it.
static const int small_tensors = 3;
static inline char *small_file(SafetensorsTensor *t, size_t *bytes, size_t *header_bytes) {
  static const char *const metadata[] = {"format", "pt", "step", "12", NULL};
  int64_t header;
  t[0] = SafetensorsTensor{"h.0.w", F32, false, "", 2, {2, 3}, 0, 0};
  t[1] = SafetensorsTensor{"ln", BF16, false, "", 1, {4}, 0, 0};
  t[2] = SafetensorsTensor{"ids", I32, false, "", 1, {2}, 0, 0};
  char *text = safetensors_header(t, small_tensors, metadata, &header);
  *header_bytes = (size_t)header;
  *bytes = (size_t)(header + 24 + 8 + 8);
  text = (char *)realloc(text, *bytes);
  for (size_t i = *header_bytes; i < *bytes; i++) text[i] = (char)(0x80 + i % 97);
  return text;
}
static inline bool same_entry(const SafetensorsTensor *a, const SafetensorsTensor *b, bool names) {
  bool same = (!names || !strcmp(a->name, b->name)) && a->dtype == b->dtype && a->known_dtype == b->known_dtype &&
              !strcmp(a->dtype_text, b->dtype_text) && a->ndim == b->ndim && a->at == b->at && a->bytes == b->bytes;
  for (int i = 0; same && i < a->ndim; i++) same = a->shape[i] == b->shape[i];
  return same;
}

// ================================================================================================ safetensors
TEST(safetensors_round_trip, "a header that was written reads back as the same table, metadata and data") {
  SafetensorsTensor t[] = {
      {"wte.weight", F32, false, "", 2, {5, 3}, 0, 0},          {"scalar", F32, false, "", 0, {}, 0, 0},
      {"empty", F16, false, "", 2, {0, 7}, 0, 0},               {"quote\" back\\ slash/ \xc3\xa9 \xf0\x9f\x98\x80", F16,
      false, "", 3, {1, 3, 2}, 0, 0},                           {"", I32, false, "", 1, {2}, 0, 0},
      {"eight", BF16, false, "", 8, {1, 2, 1, 1, 2, 1, 1, 1}, 0, 0}};
  const int count = (int)(sizeof t / sizeof *t);
  static const char *const metadata[] = {"z", "line\nbreak\ttab \"q\" \x01", "format", "pt", "a", "", NULL};
  int64_t header, again;
  char *text = safetensors_header(t, count, metadata, &header), *twice = safetensors_header(t, count, metadata, &again);
  REQUIRE(header == again && !memcmp(text, twice, (size_t)header), "the header differs from call to call");
  EXPECT(header % 8 == 0, "the data starts at byte %lld, no multiple of 8", (long long)header);
  const size_t bytes = (size_t)(t[count - 1].at + t[count - 1].bytes);
  text = (char *)realloc(text, bytes);
  for (size_t i = (size_t)header; i < bytes; i++) text[i] = (char)i;
  HostileFile f = hostile_file(text, bytes);
  SafetensorsFile s;
  REQUIRE(safetensors_open(&s, f.path), "%s", s.error);
  REQUIRE(s.count == count && s.data_at == (size_t)header && s.bytes == bytes, "%d tensors at %zu", s.count, s.data_at);
  for (int i = 0; i < count; i++) {
    const SafetensorsTensor *e = safetensors_entry(&s, t[i].name);
    REQUIRE(e && same_entry(e, &t[i], true), "%s reads back as something else", t[i].name);
    Tensor x;
    const bool found = safetensors_find(&s, t[i].name, t[i].dtype, &x), fits = t[i].ndim <= 4;
    EXPECT(found == fits, "%s: %s", t[i].name, s.error);
    if (!found) continue;
    EXPECT(x.ndim == t[i].ndim && !memcmp(x.shape, t[i].shape, sizeof *x.shape * (size_t)x.ndim), "%s: another shape",
           t[i].name);
    EXPECT(!memcmp(x.data, text + t[i].at, (size_t)t[i].bytes), "%s: other bytes", t[i].name);
    EXPECT(!safetensors_find(&s, t[i].name, t[i].dtype == F32 ? BF16 : F32, &x) && strstr(s.error, "dtype"),
           "%s is given as another dtype", t[i].name);
  }
  for (const char *const *m = metadata; *m; m += 2) {
    const char *value = safetensors_metadata(&s, m[0]);
    EXPECT(value && !strcmp(value, m[1]), "metadata %s is %s", m[0], value ? value : "absent");
  }
  EXPECT(!safetensors_metadata(&s, "b") && !safetensors_entry(&s, "wte"), "what is not there is found");
  safetensors_close(&s);
  close(f.fd);
  free(text);
  free(twice);
}

TEST(safetensors_accepts, "every legal form of a header is read: order, spaces, escapes, foreign dtypes, no tensors") {
  const struct { const char *json; int data, count; } cases[] = {
      {"{}", 0, 0},
      {"{\"__metadata__\":{}}  ", 0, 0},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, 1},
      {"{\"\\u00c9\\u00Fa\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, 1},
      {"{\n\t\"a\" :\r{ \"data_offsets\" : [ 0 , 4 ] ,\"shape\":[ ],\"dtype\":\"I32\"} }\n\n", 4, 1},
      {"{\"b\":{\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[4,20]},"
       "\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 20, 2},
      {"{\"a\":{\"dtype\":\"F4\",\"shape\":[3,2],\"data_offsets\":[0,3]},"
       "\"b\":{\"dtype\":\"F6_E2M3\",\"shape\":[4],\"data_offsets\":[3,6]}}", 6, 2},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[0,9007199254740991],\"data_offsets\":[4,4]},"
       "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
       "\"c\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}", 4, 3},
      {"{\"\\u0061\\u00e9\\ud83d\\ude00\\/\":{\"dtype\":\"BOOL\",\"shape\":[1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}",
       1, 1}};
  for (const auto &c : cases) {
    HostileFile f = hostile_header(c.json, strlen(c.json), strlen(c.json), c.data);
    SafetensorsFile s;
    if (!safetensors_open(&s, f.path)) test_fail(__FILE__, __LINE__, "%s: %s", c.json, s.error);
    else EXPECT(s.count == c.count, "%s: %d tensors", c.json, s.count);
    for (int i = 1; i < s.count; i++) EXPECT(s.tensor[i].at >= s.tensor[i - 1].at, "%s: not in order of bytes", c.json);
    if (strstr(c.json, "ud83d"))
      EXPECT(safetensors_entry(&s, "a\xc3\xa9\xf0\x9f\x98\x80/"), "escapes are not those of JSON");
    if (strstr(c.json, "u00Fa")) EXPECT(safetensors_entry(&s, "\xc3\x89\xc3\xba"), "hexadecimal digits are misread");
    Tensor x;
    if (strstr(c.json, "I64"))
      EXPECT(!s.tensor[1].known_dtype && !safetensors_find(&s, "b", F32, &x) && strstr(s.error, "I64"),
             "an I64 is given out");
    if (!strncmp(c.json, "{\"a\":{\"dtype\":\"F32\"", 19))
      EXPECT(s.data_at % 4 && !safetensors_find(&s, "a", F32, &x) && strstr(s.error, "not aligned"),
             "a float that is not aligned is given out");
    safetensors_close(&s);
    close(f.fd);
  }
}

#define ST_TENSOR(name, dtype, shape, offsets) \
  "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define ST_ONE(dtype, shape, offsets) "{" ST_TENSOR("t", dtype, shape, offsets) "}"
TEST(safetensors_hostile_headers, "every kind of wrong header is rejected: one printable line, the tensor, the "
     "reason") {
  static const struct { const char *json; int data; const char *reasons; } cases[] = {
      {"", 8, "byte 8|'{'"}, {" {}", 8, "byte 8|'{'"}, {"[]", 8, "'{'"}, {"\xef\xbb\xbf{}", 8, "'{'"},
      {"null", 8, "'{'"}, {"{", 8, "found its end"}, {"{}}", 0, "nothing but spaces"},
      {"{} x", 0, "nothing but spaces|byte 11"}, {"{}{}", 0, "nothing but spaces"}, {"{,}", 0, "name of a tensor"},
      {"{\"t\"}", 0, "':'"}, {"{t:1}", 0, "name of"}, {"{\"t\":1}", 0, "\"t\"|not an object"},
      {"{\"t\":{}}", 0, "\"t\"|lacks dtype"}, {"{\"t\":[]}", 0, "not an object"},
      {"{\"t\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "\"t\"|lacks data_offsets"},
      {"{\"t\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "\"t\"|lacks shape"},
      {"{\"t\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "\"t\"|lacks dtype"},
      {"{\"t\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "\"t\"|dtype twice"},
      {"{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4, "\"t\"|\"x\""},
      {"{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],}}", 4, "\"t\"|damaged"},
      {"{" ST_TENSOR("t", "F32", "[1]", "[0,4]") ",}", 4, "name of a tensor"},
      {"{" ST_TENSOR("t", "F32", "[1]", "[0,4]") " " ST_TENSOR("u", "F32", "[1]", "[4,8]") "}", 8, "'}'"},
      {ST_ONE("F33", "[1]", "[0,4]"), 4, "\"t\"|no dtype \"F33\""}, {ST_ONE("f32", "[1]", "[0,4]"), 4, "no dtype"},
      {ST_ONE("", "[1]", "[0,4]"), 4, "no dtype"},
      {ST_ONE("F32\\u001b[2J", "[1]", "[0,4]"), 4, "no dtype \"F32\\x1b[2J\""},
      {"{\"t\":{\"dtype\":32,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "\"t\"|name of a dtype"},
      {ST_ONE("F32", "1", "[0,4]"), 4, "\"t\"|shape is not an array"},
      {ST_ONE("F32", "{}", "[0,4]"), 4, "shape is not an"},
      {ST_ONE("F32", "[-1]", "[0,4]"), 4, "\"t\"|shape|negative"},
      {ST_ONE("F32", "[1.5]", "[0,4]"), 4, "shape|not whole"}, {ST_ONE("F32", "[1.0]", "[0,4]"), 4, "not whole"},
      {ST_ONE("F32", "[1e0]", "[0,4]"), 4, "not whole"}, {ST_ONE("F32", "[1e300]", "[0,4]"), 4, "not whole"},
      {ST_ONE("F32", "[NaN]", "[0,4]"), 4, "not a number"}, {ST_ONE("F32", "[Infinity]", "[0,4]"), 4, "not a number"},
      {ST_ONE("F32", "[\"1\"]", "[0,4]"), 4, "not a number"}, {ST_ONE("F32", "[null]", "[0,4]"), 4, "not a number"},
      {ST_ONE("F32", "[[1]]", "[0,4]"), 4, "not a number"}, {ST_ONE("F32", "[1,]", "[0,4]"), 4, "not a number"},
      {ST_ONE("F32", "[01]", "[0,4]"), 4, "leading zeros"}, {ST_ONE("F32", "[+1]", "[0,4]"), 4, "not a number"},
      {ST_ONE("F32", "[1 1]", "[0,4]"), 4, "']'"},
      {ST_ONE("F32", "[9007199254740992]", "[0,4]"), 4, "\"t\"|shape|2^53"},
      {ST_ONE("F32", "[18446744073709551617]", "[0,4]"), 4, "2^53"},
      {ST_ONE("F32", "[4294967296,4294967296]", "[0,0]"), 0, "\"t\"|shape|2^60"},
      {ST_ONE("F32", "[4294967296,4294967297,0]", "[0,0]"), 0, "2^60"},
      {ST_ONE("F4", "[3]", "[0,1]"), 1, "no whole number of bytes"},
      {ST_ONE("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, "\"t\"|shape|more than 8"},
      {ST_ONE("F32", "[1]", "[0]"), 4, "\"t\"|data_offsets has 1"},
      {ST_ONE("F32", "[1]", "[]"), 4, "data_offsets has 0"},
      {ST_ONE("F32", "[1]", "[0,4,4]"), 4, "data_offsets|more than 2"},
      {ST_ONE("F32", "[1]", "4"), 4, "not an array"}, {ST_ONE("F32", "[1]", "[-4,0]"), 4, "data_offsets|negative"},
      {ST_ONE("F32", "[1]", "[0,4.0]"), 4, "not whole"},
      {ST_ONE("F32", "[1]", "[4,0]"), 4, "\"t\"|end (0) before they start (4)"},
      {ST_ONE("F32", "[1]", "[0,1e300]"), 4, "data_offsets|not whole"},
      {ST_ONE("F32", "[1]", "[0,NaN]"), 4, "not a number"},
      {ST_ONE("F32", "[1]", "[0,9007199254740992]"), 4, "data_offsets|2^53"},
      {ST_ONE("F32", "[2]", "[0,8]"), 4, "\"t\"|end at byte 8|holds 4|cut short"},
      {ST_ONE("F32", "[2]", "[0,4]"), 4, "\"t\"|span 4 bytes|F32 need 8"},
      {ST_ONE("BF16", "[2]", "[0,8]"), 8, "\"t\"|span 8 bytes|BF16 need 4"},
      {ST_ONE("F32", "[1]", "[0,4]"), 5, "last 1 bytes|no tensor"}, {"{}", 1, "last 1 bytes"},
      {ST_ONE("F32", "[1]", "[4,8]"), 8, "\"t\"|4 bytes before"},
      {"{" ST_TENSOR("t", "F32", "[1]", "[0,4]") ","
       ST_TENSOR("u", "F32", "[1]", "[8,12]") "}", 12, "\"u\"|4 bytes before"},
      {"{" ST_TENSOR("t", "F32", "[2]", "[0,8]") ","
       ST_TENSOR("u", "F32", "[2]", "[4,12]") "}", 12, "\"u\"|overlap|\"t\""},
      {"{" ST_TENSOR("u", "F32", "[1]", "[0,4]") ","
       ST_TENSOR("t", "F32", "[1]", "[0,4]") "}", 4, "\"u\"|overlap|\"t\""},
      {"{" ST_TENSOR("t", "F32", "[2]", "[0,8]") ","
       ST_TENSOR("u", "F32", "[0]", "[4,4]") "}", 8, "\"u\"|overlap|\"t\""},
      {"{" ST_TENSOR("t", "F32", "[1]", "[0,4]") "," ST_TENSOR("t", "F32", "[1]", "[4,8]") "}", 8, "\"t\"|twice"},
      {"{" ST_TENSOR("t", "F32", "[1]", "[0,4]") ","
       ST_TENSOR("\\u0074", "F32", "[1]", "[4,8]") "}", 8, "\"t\"|twice"},
      {"{" ST_TENSOR("a\\nb", "F32", "[1]", "[0,4]") "}", 4, "\"a\\x0ab\"|control"},
      {"{" ST_TENSOR("a\\u007f", "F32", "[1]", "[0,4]") "}", 4, "\"a\\x7f\"|control"},
      {"{" ST_TENSOR("a\nb", "F32", "[1]", "[0,4]") "}", 4, "control characters|\\x0a"},
      {"{" ST_TENSOR("a\\u0000b", "F32", "[1]", "[0,4]") "}", 4, "other than NUL"},
      {"{" ST_TENSOR("a\\ud800b", "F32", "[1]", "[0,4]") "}", 4, "after \\u"},
      {"{" ST_TENSOR("a\\udc00b", "F32", "[1]", "[0,4]") "}", 4, "after \\u"},
      {"{" ST_TENSOR("\\ud800\\u0061", "F32", "[1]", "[0,4]") "}", 4, "after \\u"},
      {"{" ST_TENSOR("\\u00g0", "F32", "[1]", "[0,4]") "}", 4, "after \\u"},
      {"{" ST_TENSOR("\\u004\x11", "F32", "[1]", "[0,4]") "}", 4, "after \\u"},
      {"{" ST_TENSOR("\\x", "F32", "[1]", "[0,4]") "}", 4, "escape"}, {"{\"\\", 4, "escape"},
      {"{\"\\u00", 4, "after \\u"}, {"{" ST_TENSOR("\x80", "F32", "[1]", "[0,4]") "}", 4, "UTF-8|\\x80"},
      {"{" ST_TENSOR("\xc0\xaf", "F32", "[1]", "[0,4]") "}", 4, "UTF-8"},
      {"{" ST_TENSOR("\xed\xa0\x80", "F32", "[1]", "[0,4]") "}", 4, "UTF-8"},
      {"{" ST_TENSOR("\xf4\x90\x80\x80", "F32", "[1]", "[0,4]") "}", 4, "UTF-8"}, {"{\"\xe2\x82", 4, "UTF-8"},
      {"{\"\xc2\x9b[2J\":1}", 4, "\"\\xc2\\x9b[2J\"|not an object"}, {"{\"abc", 4, "end of a string"},
      {"{\"__metadata__\":1}", 0, "__metadata__ is not an object"}, {"{\"__metadata__\":{\"a\":1}}", 0, "a string"},
      {"{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0, "__metadata__ holds \"a\" twice"},
      {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "__metadata__ appears twice"},
      {"{\"__metadata__\":{\"a\":\"1\",}}", 0, "a key of __metadata__"}, {"{\"__metadata__\":{\"a\"}}", 0, "':'"}};
  for (const auto &c : cases) expect_header_rejected(c.json, c.data, c.reasons);
  const char nul[] = "{}\0\0";                   // zeros are not spaces
  HostileFile f = hostile_header(nul, 4, 4, 0);
  expect_rejected(&f, "zeros after the header", "nothing but spaces|NUL");
  close(f.fd);
}

TEST(safetensors_hostile_lengths, "impossible lengths, a million open brackets and paths of no file are rejected") {
  const char *const json = ST_ONE("F32", "[1]", "[0,4]");
  const uint64_t whole = strlen(json);
  for (uint64_t length : {(uint64_t)0, (uint64_t)1, whole - 1, whole + 1, whole + 4, whole + 5, (uint64_t)99999999,
                          (uint64_t)100000001, (uint64_t)1 << 32, (uint64_t)1 << 63, ~(uint64_t)0, ~(uint64_t)7}) {
    HostileFile f = hostile_header(json, whole, length, 4);
    char what[64];
    snprintf(what, sizeof what, "header length %llu", (unsigned long long)length);
    expect_rejected(&f, what, length > 100000000 ? "header length|above 100000000" :
                   length > whole + 4 ? "header has|cut short" : length > whole ? "cut short" : "header is damaged");
    close(f.fd);
  }
  for (int bytes = 0; bytes < 10; bytes++) {
    HostileFile f = hostile_file("\2\0\0\0\0\0\0\0{}", (size_t)bytes);
    expect_rejected(&f, "a file of a few bytes", "not a safetensors file");
    close(f.fd);
  }
  enum { DEEP = 1 << 20 };
  char *deep = (char *)malloc(DEEP + 64);
  for (const char *head : {"", "{\"t\":", "{\"t\":{\"dtype\":", "{\"t\":{\"shape\":", "{\"__metadata__\":{\"a\":"}) {
    for (const char *unit : {"[", "{\"a\":"}) {
      size_t n = (size_t)sprintf(deep, "%s", head);
      while (n + strlen(unit) <= DEEP) { memcpy(deep + n, unit, strlen(unit)); n += strlen(unit); }
      HostileFile f = hostile_header(deep, n, n, 0);
      expect_rejected(&f, "nested a million deep", "");
      close(f.fd);
    }
  }
  free(deep);
  SafetensorsFile s;
  EXPECT(!safetensors_open(&s, test_tmp()) && strstr(s.error, "not a regular file"), "a directory: %s", s.error);
  EXPECT(!safetensors_open(&s, "/dev/zero") && strstr(s.error, "not a regular file"), "a device: %s", s.error);
  char path[600];
  snprintf(path, sizeof path, "%s/none", test_tmp());
  EXPECT(!safetensors_open(&s, path) && strstr(s.error, "No such file"), "no file: %s", s.error);
  REQUIRE(!mkfifo(path, 0600), "cannot make a FIFO");
  EXPECT(!safetensors_open(&s, path) && strstr(s.error, "not a regular file"), "a FIFO: %s", s.error);
}

TEST(safetensors_truncated, "a file cut at any byte, or longer by one, is rejected") {
  SafetensorsTensor t[small_tensors];
  size_t bytes, header;
  char *file = small_file(t, &bytes, &header);
  HostileFile f = hostile_file(file, bytes);
  SafetensorsFile s;
  REQUIRE(safetensors_open(&s, f.path), "%s", s.error);
  safetensors_close(&s);
  for (size_t n = bytes; n-- > 0;) {
    REQUIRE(!ftruncate(f.fd, (off_t)n), "cannot cut the file");
    char what[64];
    snprintf(what, sizeof what, "the first %zu of %zu bytes", n, bytes);
    expect_rejected(&f, what, n < 10 ? "not a safetensors file" : n < header ? "header|cut short" :
                   "tensor|data_offsets|cut short");
  }
  close(f.fd);
  file = (char *)realloc(file, bytes + 1);
  file[bytes] = 0;
  f = hostile_file(file, bytes + 1);
  expect_rejected(&f, "one byte more", "last 1 bytes");
  close(f.fd);
  free(file);
}

// Whether byte `at` of the small file's header is text that may change: inside a string of the metadata or (unless
// only_metadata) a name.
static inline bool small_free_text(const char *file, size_t header, size_t at, bool only_metadata) {
  for (const char *word : {"format", "pt", "step", "12", "h.0.w", "ln", "ids"}) {
    if (only_metadata && !strcmp(word, "h.0.w")) return false;
    char quoted[16];
    const int n = snprintf(quoted, sizeof quoted, "\"%s\"", word);
    const char *p = (const char *)memmem(file + 8, header - 8, quoted, (size_t)n);
    const size_t from = (size_t)(p - file) + 1;
    if (p && at >= from && at < from + strlen(word)) return true;
  }
  return false;
}
TEST(safetensors_bit_flips, "a flipped bit changes a character of a name or of the metadata, or is rejected") {
  SafetensorsTensor t[small_tensors];
  size_t bytes, header;
  int accepted = 0;
  char *file = small_file(t, &bytes, &header);
  HostileFile f = hostile_file(file, bytes);
  for (size_t at = 0; at < header; at++) {
    for (int bit = 0; bit < 8; bit++) {
      const char flipped = (char)(file[at] ^ 1 << bit);
      const uint8_t c = (uint8_t)flipped;
      const bool harmless = small_free_text(file, header, at, c == 0x7f) && c >= 0x20 && c < 0x80 && !strchr("\"\\", c);
      REQUIRE(pwrite(f.fd, &flipped, 1, (off_t)at) == 1, "cannot write");
      SafetensorsFile s;
      const bool ok = safetensors_open(&s, f.path);
      EXPECT(ok == harmless, "byte %zu, bit %d ('%c' to %02x): %s", at, bit, file[at], c, ok ? "accepted" : s.error);
      accepted += ok;
      if (ok) {
        int names = 0, strings = 0;
        for (int i = 0; i < small_tensors; i++) {
          EXPECT(s.count == small_tensors && same_entry(&s.tensor[i], &t[i], false), "byte %zu, bit %d: %s has changed",
                 at, bit, t[i].name);
          names += !!strcmp(s.tensor[i].name, t[i].name);
          EXPECT(safetensors_entry(&s, s.tensor[i].name) == &s.tensor[i], "%s is not found", s.tensor[i].name);
        }
        const char *format = safetensors_metadata(&s, "format"), *step = safetensors_metadata(&s, "step");
        strings = !format + !step + (format && strcmp(format, "pt")) + (step && strcmp(step, "12"));
        EXPECT(names + strings == 1, "byte %zu, bit %d: %d names and %d strings changed", at, bit, names, strings);
      }
      safetensors_close(&s);
    }
    REQUIRE(pwrite(f.fd, &file[at], 1, (off_t)at) == 1, "cannot write");
  }
  EXPECT(accepted > 60, "only %d flips were harmless: the test does not test", accepted);
  close(f.fd);
  free(file);
}

TEST(safetensors_many_tensors, "30000 shuffled tensors are put in order and found; a name twice is rejected") {
  const int count = 30000;
  char *json = (char *)malloc((size_t)count * 100), *at = json;
  for (int i = 0; i < count; i++) {
    const int k = (int)((int64_t)i * 7919 % count);              // 7919 is prime: every place once
    at += sprintf(at, "%c\"tensor.%d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}", i ? ',' : '{', k, k,
                  k + 1);
  }
  strcpy(at, "}");
  HostileFile f = hostile_header(json, strlen(json), strlen(json), count);
  SafetensorsFile s;
  REQUIRE(safetensors_open(&s, f.path), "%s", s.error);
  REQUIRE(s.count == count, "%d tensors", s.count);
  for (int i = 0; i < count; i += 997) {
    char name[32];
    snprintf(name, sizeof name, "tensor.%d", i);
    EXPECT(safetensors_entry(&s, name) == &s.tensor[i] && !strcmp(s.tensor[i].name, name), "%s is elsewhere", name);
  }
  safetensors_close(&s);
  close(f.fd);
  memcpy(strstr(json, "\"tensor.20000\""), "\"tensor.20001\"", 14);
  expect_header_rejected(json, count, "\"tensor.20001\"|twice");
  free(json);
}
