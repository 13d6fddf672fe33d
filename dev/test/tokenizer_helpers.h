// tokenizer_helpers.h: texts, fixtures and hashes that tests of tokenizers share.
#pragma once

struct TokText { uint8_t *bytes; size_t count; };
// A file's bytes with a NUL after them; bytes is NULL if it cannot be read.
static inline TokText tok_read(const char *directory, const char *name) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", directory, name);
  FILE *f = fopen(path, "rb");
  if (!f) return {NULL, 0};
  fseek(f, 0, SEEK_END);
  size_t n = (size_t)ftell(f);
  rewind(f);
  TokText t = {(uint8_t *)malloc(n + 1), n};
  if (fread(t.bytes, 1, n, f) != n) t = {NULL, 0};
  else t.bytes[n] = 0;
  fclose(f);
  return t;
}
static const char *tok_fixtures = "dev/fixtures";
static inline TokText tok_fixture(const char *name) {
  TokText t = tok_read(tok_fixtures, name);
  if (!t.bytes) die_missing("fixture %s/%s is not there; run from the repository root", tok_fixtures, name);
  return t;
}
static inline void tok_write(const char *path, const void *bytes, size_t n) {
  FILE *f = fopen(path, "wb");
  if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0) die_missing("cannot write %s", path);
}
// The fold of make_tokenizer_fixture.py, over bytes or ids.
static const uint64_t TOK_FOLD_START = 0xcbf29ce484222325u;
static inline uint64_t tok_fold(uint64_t h, uint64_t x) { return (h ^ x) * 0x100000001b3u; }
static inline uint64_t tok_fold_bytes(TokText t) {
  uint64_t h = TOK_FOLD_START;
  for (size_t i = 0; i < t.count; i++) h = tok_fold(h, t.bytes[i]);
  return h;
}
static inline uint64_t tok_fold_ids(const int32_t *ids, int64_t count) {
  uint64_t h = TOK_FOLD_START;
  for (int64_t i = 0; i < count; i++) h = tok_fold(h, (uint32_t)ids[i]);
  return h;
}
// make_tokenizer_fixture.py's some_code_points().
static inline TokText tok_some_points() {
  static const uint32_t ranges[][3] = {
      {0, 0x3400, 1},           {0xa000, 0xac00, 1},      {0xac00, 0xd800, 97},    {0xd7a0, 0xd800, 1},
      {0xe000, 0x20000, 3},     {0xf900, 0xfb60, 1},      {0x1d100, 0x1d200, 1},   {0x2f800, 0x2fa20, 1},
      {0xe0000, 0xe0200, 1}};
  TokText text = {(uint8_t *)malloc(64u << 16), 0};
  uint8_t *out = text.bytes;
  for (const auto &r : ranges)
    for (uint32_t c = r[0]; c < r[1]; c += r[2])
      for (const char *p = "b@1@!@ @\n'@e'r@\t@@\xcc\xa3\xcc\x81"; *p; p++) {
        if (*p == '@') out = utf8_put(out, c);
        else *out++ = (uint8_t)*p;
      }
  text.count = (size_t)(out - text.bytes);
  return text;
}
static inline uint64_t tok_random(uint64_t *state) {  // splitmix64
  uint64_t z = *state += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}
static inline void tok_load_fixture(Tokenizer *t, const char *name) {
  char path[4096];
  Error error = {};
  snprintf(path, sizeof path, "%s/%s", tok_fixtures, name);
  if (!tokenizer_load_any(t, path, &error)) die_missing("%s", error.text);
}
static const struct {
  const char *name;
  int digits;
  bool alone, nfc, ignore_merges, bos;
  BpeCased cased = CASED_NOT;
} tok_families[] = {
    {"tekken", 1, false, false, true, false, CASED_PLAIN},
    {"o200k", 3, false, false, false, false, CASED_ENDINGS},
    {"llama3", 3, false, false, true, true},
    {"qwen2", 1, false, true, false, false},
    {"nanochat", 2, false, false, false, false},
    {"smollm2", 0, true, false, false, false}};
static uint64_t fallback_hash(const cJSON *x, const char *name) {
  return strtoull(cJSON_GetStringValue(cJSON_GetObjectItem(x, name)), NULL, 10);
}
