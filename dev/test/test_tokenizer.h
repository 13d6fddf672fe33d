// test_tokenizer.h: the tokenizer gives the ids and merges of Hugging Face tokenizers, round-trips any bytes, does not
// depend on where it may be cut, and survives every file. Fixtures are written by dev/make_tokenizer_fixture.py.
#pragma once
#include <signal.h>
#include <sys/resource.h>
#include <time.h>

static inline uint64_t tok_fold_merges(const Tokenizer *t) {
  uint64_t h = TOK_FOLD_START;
  for (int i = 0; i < t->merge_count; i++) {
    h = tok_fold(h, (uint32_t)t->merges[i].left);
    h = tok_fold(h, (uint32_t)t->merges[i].right);
    h = tok_fold(h, (uint32_t)t->merges[i].result);
  }
  return h;
}

// A value of tokenizer_hashes.txt; false if there is none of that name.
static inline bool tok_hash(const char *name, uint64_t *value) {
  TokText t = tok_fixture("tokenizer_hashes.txt");
  char needle[128];
  snprintf(needle, sizeof needle, "\n%s ", name);
  const char *at = strstr((const char *)t.bytes, needle);
  if (at) *value = strtoull(at + strlen(needle), NULL, 10);
  free(t.bytes);
  return at != NULL;
}

static inline void tok_expect_hash(const char *name, uint64_t found) {
  uint64_t expected = 0;
  EXPECT(tok_hash(name, &expected), "tokenizer_hashes.txt has no %s", name);
  EXPECT(found == expected, "%s: %llu, Hugging Face has %llu", name, (unsigned long long)found,
         (unsigned long long)expected);
}

// Decodes ids and compares with the text they came from: with its NFC where the tokenizer normalises, without bytes
// that have no token.
static inline bool tok_round_trips(const Tokenizer *t, TokText text, const int32_t *ids, int64_t count) {
  size_t at = 0, kept = 0, n_want = text.count;
  uint8_t *want = (uint8_t *)malloc(NFC_MOST_GROWTH * text.count + 1);
  NfcWork w = {};
  if (t->nfc) n_want = (size_t)(nfc_write(&w, want, text.bytes, text.bytes + text.count) - want);
  else memcpy(want, text.bytes, text.count);
  nfc_work_free(&w);
  for (size_t i = 0; i < n_want; i++)
    if (t->byte_id[want[i]] >= 0) want[kept++] = want[i];
  bool same = true;
  for (int64_t i = 0; same && i < count; i++) {
    int n;
    const uint8_t *p = tokenizer_token_bytes(t, ids[i], &n);
    same = n <= (int64_t)(kept - at) && memcmp(p, want + at, (size_t)n) == 0;
    at += (size_t)n;
  }
  free(want);
  return same && at == kept;
}

// The ids of `text` are those of the fixture `ids_name`.
static inline void tok_expect_ids(const Tokenizer *t, const char *text_name, const char *ids_name) {
  TokText text = tok_fixture(text_name), expected = tok_fixture(ids_name);
  int32_t *ids = (int32_t *)malloc((tokenizer_ids_most(t, text.count) + 1) * sizeof *ids);
  const int32_t *want = (int32_t *)expected.bytes;
  int64_t count = tokenizer_encode(t, text.bytes, text.count, ids), same = 0;
  while (same < count && same < (int64_t)(expected.count / 4) && ids[same] == want[same]) same++;
  EXPECT(count == (int64_t)(expected.count / 4) && same == count,
         "%s: %lld ids of %zu, the first that differs is %lld", text_name, (long long)count, expected.count / 4,
         (long long)same);
  EXPECT(tok_round_trips(t, text, ids, count), "%s does not round-trip", text_name);
  free(ids);
  free(text.bytes);
  free(expected.bytes);
}

TEST(tokenizer_hostile_ids, "ids of hostile text equal Hugging Face's with the same tokenizer.json") {
  Tokenizer t;
  tok_load_fixture(&t, "tokenizer_hostile.json");
  EXPECT(t.by_line, "what training makes does not go by line");
  tok_expect_ids(&t, "tokenizer_hostile.txt", "tokenizer_hostile.i32");
  t.by_line = false;
  TokText text = tok_fixture("tokenizer_hostile.txt");
  int32_t *ids = (int32_t *)malloc(text.count * sizeof *ids);
  int64_t count = tokenizer_encode(&t, text.bytes, text.count, ids);
  tok_expect_hash("hostile_whole_count", (uint64_t)count);
  tok_expect_hash("hostile_whole_ids", tok_fold_ids(ids, count));
  free(ids);
  free(text.bytes);
  tokenizer_free(&t);
}

// ---- other families -------------------------------------------------------------------------------------------------

// The ids of `text` have the count and hash of the fixture `key`.
static inline void tok_expect_hashed_ids(const Tokenizer *t, TokText text, const char *key) {
  char count_key[96], ids_key[96];
  snprintf(count_key, sizeof count_key, "%.64s_count", key);
  snprintf(ids_key, sizeof ids_key, "%.64s_ids", key);
  int32_t *ids = (int32_t *)malloc((tokenizer_ids_most(t, text.count) + 1) * sizeof *ids);
  const int64_t count = tokenizer_encode(t, text.bytes, text.count, ids);
  tok_expect_hash(count_key, (uint64_t)count);
  tok_expect_hash(ids_key, tok_fold_ids(ids, count));
  free(ids);
}

TEST(tokenizer_families,
     "Llama 3's, Qwen 2's, nanochat's, SmolLM2's, Tekken's and gpt-oss's tokenizer.json give Hugging Face's ids, "
     "of hostile text and beside every kind of character, and are written back as they were read") {
  char name[64], key[64], path[4096];
  Error error = {};
  TokText hostile = tok_fixture("tokenizer_hostile.txt"), points = tok_some_points();
  TokText cased = tok_fixture("tokenizer_cased.txt");
  for (const auto &f : tok_families) {
    Tokenizer t, again;
    snprintf(name, sizeof name, "tokenizer_%s.json", f.name);
    tok_load_fixture(&t, name);
    EXPECT(t.digits_together == f.digits && t.digits_alone == f.alone && t.nfc == f.nfc && !t.by_line &&
           t.ignore_merges == f.ignore_merges && t.adds_bos == f.bos && t.cased == f.cased, "%s: read as another",
           name);
    TokText file = tok_fixture(name);
    size_t bytes;
    char *text = tokenizer_text(&t, &bytes);
    EXPECT(bytes == file.count && !memcmp(text, file.bytes, bytes), "%s: written as another file", name);
    free(text);
    free(file.bytes);
    snprintf(path, sizeof path, "%s/again.json", test_tmp());
    REQUIRE(tokenizer_save(&t, path, &error), "%s", error.text);
    REQUIRE(tokenizer_load(&again, path, &error), "%s", error.text);
    EXPECT(tokenizer_hash(&t) == tokenizer_hash(&again), "%s: saved and loaded, it is another", name);
    const uint64_t hash = tokenizer_hash(&t);
    bool *const decides[] = {&again.nfc, &again.ignore_merges, &again.adds_bos, &again.digits_alone, &again.by_line};
    for (bool *one : decides) {
      *one = !*one;
      EXPECT(tokenizer_hash(&again) != hash, "%s: what decides ids is not in its hash", name);
      *one = !*one;
    }
    again.digits_together++;
    EXPECT(tokenizer_hash(&again) != hash, "%s: its pattern is not in its hash", name);
    tokenizer_free(&again);
    snprintf(name, sizeof name, "tokenizer_%s.i32", f.name);
    tok_expect_ids(&t, "tokenizer_families.txt", name);
    snprintf(key, sizeof key, "%s_hostile", f.name);
    tok_expect_hashed_ids(&t, hostile, key);
    snprintf(key, sizeof key, "%s_points", f.name);
    tok_expect_hashed_ids(&t, points, key);
    snprintf(key, sizeof key, "%s_cased", f.name);
    if (f.cased) tok_expect_hashed_ids(&t, cased, key);
    int32_t ids[8];
    const int64_t count = tokenizer_begin(&t, (const uint8_t *)"a", 1, ids);
    const int64_t none = tokenizer_begin(&t, (const uint8_t *)"", 0, ids + 4);
    EXPECT(count == 1 + f.bos && ids[count - 1] == t.byte_id['a'] && none == 1 &&
           ids[4] == (f.bos ? t.bos_id : t.byte_id['\n']), "%s: a text starts with %d or %d", name, ids[0], ids[4]);
    if (f.bos) EXPECT(!memcmp(t.bytes + t.byte_start[ids[0]], "<|begin_of_text|>", 17), "it starts with %d", ids[0]);
    tokenizer_free(&t);
  }
  free(hostile.bytes);
  free(points.bytes);
  free(cased.bytes);
}

TEST(tokenizer_digits, "the digits that SmolLM2's pre-tokenizer cuts out are those of Hugging Face's Digits") {
  uint64_t h = TOK_FOLD_START;
  for (uint32_t c = 0; c < UTF8_BYTE; c++) {
    uint8_t utf8[4], *end = utf8_put(utf8, c);
    int n;
    if (bpe_first_digit(utf8, end, &n) < end && n == end - utf8) h = tok_fold(h, c);
  }
  tok_expect_hash("digits", h);
}

TEST(tokenizer_published, "published vocabularies give Hugging Face's ids (TOKENIZER_FIXTURES: a directory of them)") {
  const char *directory = getenv("TOKENIZER_FIXTURES");
  if (!directory || !*directory) SKIP("TOKENIZER_FIXTURES is not set: dev/make_tokenizer_fixture.py --gguf makes them");
  tok_fixtures = directory;
  for (const char *name : {"llama-bpe", "qwen2", "refact", "starcoder", "gpt-2"}) {
    char json[64], text[64], ids[64];
    snprintf(json, sizeof json, "%s.json", name);
    snprintf(text, sizeof text, "%s.txt", name);
    snprintf(ids, sizeof ids, "%s.i32", name);
    Tokenizer t;
    tok_load_fixture(&t, json);
    tok_expect_ids(&t, text, ids);
    tokenizer_free(&t);
  }
}

TEST(tokenizer_white_space, "white space across newlines gets Hugging Face's ids, by line and not") {
  Tokenizer t;
  tok_load_fixture(&t, "tokenizer_gpt2.json");
  EXPECT(!t.by_line, "a plain ByteLevel file is taken to go by line");
  tok_expect_ids(&t, "tokenizer_gpt2.txt", "tokenizer_gpt2.i32");
  t.by_line = true;
  tok_expect_ids(&t, "tokenizer_gpt2.txt", "tokenizer_gpt2_lines.i32");
  tokenizer_free(&t);
}

// Text of few characters in many combinations: spaces of one and more bytes, newlines, added tokens, damaged UTF-8.
static inline TokText tok_patchwork(uint64_t *seed, size_t pieces) {
  static const char *const patches[] = {
      " ", " ", "\n", "\n", "\n\n", "\n\n\n", "\r\n", "\t", "a", "b", "'s", "'", "1", "!", "x y", "!\n ?",
      "\xe3\x80\x80", "\xc2\xa0", "\xe2\x80\xa8", "\xe5\xad\x97", "\xe3\x80", "\xe3", "\x80", "\xc2", "\xa0", "<a",
      "<a b>", "<|endoftext|>", "plain", "\r", ".", "12", "'S", "e\xcc\x81", "\xcc\xa3", "\xe0\xa5\x98",
      "\xe1\x84\x80\xe1\x85\xa1", "\xe1\x86\xa8", "\xe2\x80\x80", "\xf0\x9d\x85\xa0", "tool", "<tool_call>"};
  TokText text = {(uint8_t *)malloc(pieces * 16 + 1), 0};
  for (size_t i = 0; i < pieces; i++) {
    const char *patch = patches[tok_random(seed) % (sizeof patches / sizeof *patches)];
    memcpy(text.bytes + text.count, patch, strlen(patch));
    text.count += strlen(patch);
  }
  return text;
}

TEST(tokenizer_cuts,
     "cut wherever tokenizer_cut allows, the ids of both parts are those of the whole") {
  static const char *const names[] = {"tokenizer_gpt2.json", "tokenizer_added.json", "tokenizer_hostile.json",
                                      "tokenizer_llama3.json", "tokenizer_qwen2.json", "tokenizer_nanochat.json",
                                      "tokenizer_smollm2.json", "tokenizer_tekken.json", "tokenizer_o200k.json"};
  uint64_t seed = 11;
  int64_t cuts = 0;
  for (int round = 0; round < 140; round++) {
    Tokenizer t;
    if (round % 40 == 0) seed++;
    tok_load_fixture(&t, names[round % 7]);
    if (round % 7 < 3) t.by_line = round / 7 % 2;
    TokText text = tok_patchwork(&seed, 150);
    const size_t most = tokenizer_ids_most(&t, text.count) + 1;
    int32_t *ids = (int32_t *)malloc(most * sizeof *ids), *parts = (int32_t *)malloc(most * sizeof *parts);
    int64_t count = tokenizer_encode(&t, text.bytes, text.count, ids);
    for (size_t at = 1; (at = tokenizer_cut(&t, text.bytes, text.count, at)) < text.count; at++, cuts++) {
      int64_t front = tokenizer_encode(&t, text.bytes, at, parts);
      int64_t all = front + tokenizer_encode(&t, text.bytes + at, text.count - at, parts + front);
      EXPECT(all == count && !memcmp(ids, parts, (size_t)count * 4), "round %d: cut at byte %zu, ids differ", round,
             at);
    }
    EXPECT(tok_round_trips(&t, text, ids, count), "round %d does not round-trip", round);
    free(ids);
    free(parts);
    free(text.bytes);
    tokenizer_free(&t);
  }
  EXPECT(cuts > 140 * 8, "only %lld cuts", (long long)cuts);
}

TEST(tokenizer_added_tokens,
     "added tokens of a loaded file are matched as Hugging Face matches them, and saved again") {
  Tokenizer t, again;
  tok_load_fixture(&t, "tokenizer_added.json");
  tok_expect_ids(&t, "tokenizer_added.txt", "tokenizer_added.i32");
  char path[4096];
  Error error = {};
  snprintf(path, sizeof path, "%s/added.json", test_tmp());
  REQUIRE(tokenizer_save(&t, path, &error), "%s", error.text);
  REQUIRE(tokenizer_load(&again, path, &error), "%s", error.text);
  EXPECT(tokenizer_hash(&t) == tokenizer_hash(&again), "saved and loaded, it is another tokenizer");
  tokenizer_free(&t);
  tokenizer_free(&again);
}

TEST(tokenizer_code_points, "every Unicode code point is classed as Hugging Face classes it") {
  Tokenizer t;
  tok_load_fixture(&t, "tokenizer_hostile.json");
  size_t capacity = (size_t)0x110000 * 24, n = 0;
  uint8_t *text = (uint8_t *)malloc(capacity);
  for (uint32_t c = 0; c < 0x110000; c++) {
    if (c >= 0xd800 && c < 0xe000) continue;
    uint8_t utf8[4];
    size_t length = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = length, rest = c; i-- > 0; rest >>= 6) utf8[i] = (uint8_t)(i ? 0x80 | (rest & 0x3f) : rest);
    if (length > 1) utf8[0] |= (uint8_t)(0xf00 >> length);
    for (const char *front = "b1! "; *front; front++) {
      text[n++] = (uint8_t)*front;
      memcpy(text + n, utf8, length);
      n += length;
    }
    text[n - length - 1] = ' ';
    text[n++] = '\n';
  }
  int32_t *ids = (int32_t *)malloc(n * sizeof *ids);
  int64_t count = tokenizer_encode(&t, text, n, ids);
  tok_expect_hash("code_points_count", (uint64_t)count);
  tok_expect_hash("code_points_ids", tok_fold_ids(ids, count));
  free(ids);
  free(text);
  tokenizer_free(&t);
}

TEST(tokenizer_hostile_training, "training on hostile text gives Hugging Face's file byte for byte, any threads") {
  TokText text = tok_fixture("tokenizer_hostile.txt"), expected = tok_fixture("tokenizer_hostile.json");
  char path[4096];
  Error error = {};
  snprintf(path, sizeof path, "%s/tokenizer.json", test_tmp());
  for (int threads = 1; threads <= 7; threads += 3) {
    Tokenizer t;
    tokenizer_train(&t, text.bytes, text.count, 2000, threads, true);
    REQUIRE(tokenizer_save(&t, path, &error), "%s", error.text);
    TokText saved = tok_read(test_tmp(), "tokenizer.json");
    bool same = saved.count == expected.count && memcmp(saved.bytes, expected.bytes, saved.count) == 0;
    EXPECT(same, "%d threads: the file differs", threads);
    free(saved.bytes);
    tokenizer_free(&t);
  }
  Tokenizer all;
  tokenizer_train(&all, text.bytes, text.count, 1000000, 2, true);
  tok_expect_hash("hostile_all_vocab", (uint64_t)all.vocab_size);
  tok_expect_hash("hostile_all_merges", tok_fold_merges(&all));
  tokenizer_free(&all);
  free(text.bytes);
  free(expected.bytes);
}

TEST(tokenizer_whole_training, "training not by line gives Hugging Face's file, with <|endoftext|>, and its ids") {
  TokText text = tok_fixture("tokenizer_hostile.txt");
  int32_t *ids = (int32_t *)malloc(text.count * sizeof *ids);
  for (int threads = 1; threads <= 4; threads++) {
    Tokenizer t;
    tokenizer_train(&t, text.bytes, text.count, 2000, threads);
    TokText file = {};
    file.bytes = (uint8_t *)tokenizer_text(&t, &file.count);
    tok_expect_hash("own_json", tok_fold_bytes(file));
    const int64_t count = tokenizer_encode(&t, text.bytes, text.count, ids);
    tok_expect_hash("own_count", (uint64_t)count);
    tok_expect_hash("own_ids", tok_fold_ids(ids, count));
    EXPECT(t.divides && tok_round_trips(&t, text, ids, count), "divides %d, or does not round-trip", t.divides);
    free(file.bytes);
    tokenizer_free(&t);
  }
  free(ids);
  free(text.bytes);
}

static inline TokText tok_wikitext2(const char *part) {
  const char *directory = getenv("WIKITEXT2_DIR");
  if (!directory || !*directory) SKIP("WIKITEXT2_DIR is not set");
  char name[64], key[64];
  snprintf(name, sizeof name, "%s.txt", part);
  TokText t = tok_read(directory, name);
  if (!t.bytes) SKIP("%s/%s is not there", directory, name);
  snprintf(key, sizeof key, "wikitext2_%s_hash", part);
  uint64_t expected = 0;
  if (!tok_hash(key, &expected) || tok_fold_bytes(t) != expected)
    SKIP("%s/%s is not the file that the fixture was made of", directory, name);
  return t;
}

TEST(tokenizer_wikitext2, "WikiText-2's merges and ids equal Hugging Face's at 5000, 40000 and all tokens") {
  TokText train = tok_wikitext2("train"), valid = tok_wikitext2("valid");
  int32_t *ids = (int32_t *)malloc(valid.count * sizeof *ids);
  static const int vocab_sizes[] = {5000, 40000, 1000000};
  for (int vocab_size : vocab_sizes) {
    Tokenizer t;
    tokenizer_train(&t, train.bytes, train.count, vocab_size, 2, true);
    int64_t count = tokenizer_encode(&t, valid.bytes, valid.count, ids);
    char name[64];
    snprintf(name, sizeof name, "wikitext2_%d_vocab", vocab_size);
    tok_expect_hash(name, (uint64_t)t.vocab_size);
    snprintf(name, sizeof name, "wikitext2_%d_merges", vocab_size);
    tok_expect_hash(name, tok_fold_merges(&t));
    snprintf(name, sizeof name, "wikitext2_%d_valid_count", vocab_size);
    tok_expect_hash(name, (uint64_t)count);
    snprintf(name, sizeof name, "wikitext2_%d_valid_ids", vocab_size);
    tok_expect_hash(name, tok_fold_ids(ids, count));
    EXPECT(tok_round_trips(&t, valid, ids, count), "vocabulary %d does not round-trip", vocab_size);
    tokenizer_free(&t);
  }
  Tokenizer whole;
  tokenizer_train(&whole, train.bytes, train.count, vocab_sizes[0], 2);
  const int64_t count = tokenizer_encode(&whole, valid.bytes, valid.count, ids);
  tok_expect_hash("wikitext2_whole_merges", tok_fold_merges(&whole));
  tok_expect_hash("wikitext2_whole_valid_count", (uint64_t)count);
  tok_expect_hash("wikitext2_whole_valid_ids", tok_fold_ids(ids, count));
  tokenizer_free(&whole);
  free(ids);
  free(train.bytes);
  free(valid.bytes);
}

static inline double tok_cpu_seconds() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// A tenth of what it takes alone on a core of 2020, because other tests take caches and clock: what is quadratic takes
// hours. `make bench ARGS=tokenizer` measures.
TEST(tokenizer_speed, "on one core, WikiText-2 trains to 5000 in under 30 s and is encoded at 2 MB/s or more") {
  TokText train = tok_wikitext2("train");
  int32_t *ids = (int32_t *)malloc(train.count * sizeof *ids);
  Tokenizer t;
  double start = tok_cpu_seconds();
  tokenizer_train(&t, train.bytes, train.count, 5000, 1);
  double trained = tok_cpu_seconds();
  tokenizer_encode(&t, train.bytes, train.count, ids);
  double encoded = tok_cpu_seconds();
  EXPECT(trained - start < 30, "training took %.2f s of processor time", trained - start);
  double rate = (double)train.count / 1e6 / (encoded - trained);
  EXPECT(rate >= 2, "encoding ran at %.1f MB/s of processor time", rate);
  free(ids);
  free(train.bytes);
  tokenizer_free(&t);
}

// Bytes of many kinds: uniform; UTF-8 with single bytes damaged; lead bytes and continuations at random; few letters.
static inline void tok_random_bytes(uint8_t *p, size_t n, uint64_t *seed, int kind, TokText hostile) {
  for (size_t i = 0; i < n; i++) {
    uint64_t r = tok_random(seed);
    static const uint8_t edges[] = {0xc0, 0xc1, 0xc2, 0xdf, 0xe0, 0xed, 0xef, 0xf0, 0xf4, 0xf5, 0xff, 0x80, 0x8f,
                                    0x90, 0x9f, 0xa0, 0xbf, ' ', 'a', '1', '\'', 's', '\n', '\r', 0, 0x85};
    if (kind == 0) p[i] = (uint8_t)r;
    if (kind == 1) p[i] = r % 8 ? hostile.bytes[i % hostile.count] : (uint8_t)(r >> 8);
    if (kind == 2) p[i] = edges[r % sizeof edges];
    if (kind == 3) p[i] = (uint8_t)("ab"[r % 2]);
  }
}

TEST(tokenizer_any_bytes,
     "any bytes, invalid UTF-8 included, train the same with any threads, and round-trip") {
  TokText hostile = tok_fixture("tokenizer_hostile.txt");
  Tokenizer fixed;
  tok_load_fixture(&fixed, "tokenizer_hostile.json");
  uint64_t seed = 1;
  for (int round = 0; round < 200; round++) {
    size_t n = (size_t)(tok_random(&seed) % (round % 10 == 0 ? 40000 : 300));
    TokText text = {(uint8_t *)malloc(n + 1), n};
    tok_random_bytes(text.bytes, n, &seed, round % 4, hostile);
    Tokenizer own, own3;
    tokenizer_train(&own, text.bytes, n, 257 + round, 1, round % 3 == 0);
    tokenizer_train(&own3, text.bytes, n, 257 + round, 3, round % 3 == 0);
    EXPECT(tokenizer_hash(&own) == tokenizer_hash(&own3), "round %d: 3 threads train another tokenizer", round);
    int32_t *ids = (int32_t *)malloc((n + 1) * sizeof *ids);
    const Tokenizer *both[] = {&fixed, &own};
    for (const Tokenizer *t : both) {
      int64_t count = tokenizer_encode(t, text.bytes, n, ids);
      EXPECT(tok_round_trips(t, text, ids, count), "round %d: %zu bytes do not round-trip", round, n);
    }
    free(ids);
    free(text.bytes);
    tokenizer_free(&own);
    tokenizer_free(&own3);
  }
  tokenizer_free(&fixed);
  free(hostile.bytes);
}

TEST(tokenizer_invalid_utf8,
     "a byte outside any well-formed sequence is a separate character, classed with punctuation") {
  Tokenizer t;
  tok_load_fixture(&t, "tokenizer_hostile.json");
  // Each is read as the pieces on its right: overlong, surrogate, past U+10FFFF, cut short, stray continuation.
  static const struct { const char *text; int piece_bytes[5];
  } cases[] = {
      {"a\xc0\xafz", {1, 2, 1, 0, 0}},         {"a\xed\xa0\x80z", {1, 3, 1, 0, 0}},
      {"a\xf4\x90\x80\x80z", {1, 4, 1, 0, 0}}, {"a \xe4\xb8z", {1, 3, 1, 0, 0}},
      {"\x80\xe4\xb8\xad!", {1, 3, 1, 0, 0}},  {"\xff\xfe!\xc3\xa9", {3, 2, 0, 0, 0}},
      {"1\xc3\n\xa9", {1, 1, 1, 1, 0}},        {"\xe2\x80\x82\xe2\x80", {3, 2, 0, 0, 0}},
      {"\xe0\x9f\xbf", {3, 0, 0, 0, 0}},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const uint8_t *p = (const uint8_t *)cases[i].text, *end = p + strlen(cases[i].text);
    for (int piece = 0; p < end; piece++) {
      const uint8_t *q = bpe_piece_end(p, end, true);
      EXPECT(q - p == cases[i].piece_bytes[piece], "case %zu, piece %d: %td bytes", i, piece, q - p);
      p = q;
    }
  }
  tokenizer_free(&t);
}

TEST(tokenizer_long_words,
     "a pre-token too long to try every neighbour is merged as a short one would be, by place and by rank; in n log n "
     "steps, of one letter and of many") {
  Tokenizer t;
  tok_load_fixture(&t, "tokenizer_hostile.json");
  EXPECT(t.in_order, "merges of a trained tokenizer");
  uint64_t seed = 7;
  for (int round = 0; round < 2000; round++) {
    int32_t a[BPE_SHORT_BYTES], b[BPE_SHORT_BYTES], c[BPE_SHORT_BYTES];
    int n = 1 + (int)(tok_random(&seed) % BPE_SHORT_BYTES);
    unsigned letters = 2 + (unsigned)round % 7;
    for (int i = 0; i < n; i++) a[i] = b[i] = c[i] = t.byte_id[(uint8_t)"aaabcx7?"[tok_random(&seed) % letters]];
    int left_a = bpe_merge_short(&t, a, n), left_b = (int)bpe_merge_long(&t, b, (size_t)n);
    EXPECT(left_a == left_b && memcmp(a, b, (size_t)left_a * sizeof *a) == 0, "round %d: %d bytes differ", round, n);
    int left_c = (int)bpe_merge_by_rank(&t, c, (size_t)n);
    EXPECT(left_a == left_c && memcmp(a, c, (size_t)left_a * sizeof *a) == 0, "round %d: %d bytes, by rank", round, n);
  }
  tokenizer_free(&t);
  enum { MOST = 1 << 18 };                       // a letter that merges with itself to the end, and words of 26
  static uint8_t text[MOST];
  static int32_t ids[2][MOST];
  for (int letters : {1, 2, 26}) {
    for (uint8_t &x : text) x = (uint8_t)('a' + tok_random(&seed) % (unsigned)letters);
    tokenizer_train(&t, text, letters == 1 ? MOST : MOST / 16, 400, 1);
    for (int n = 1 << 8; n <= MOST; n *= 4) {
      int64_t steps[2], bits = 0, left[2];
      while (1 << bits < n) bits++;
      for (int k = 0; k < 2; k++) {
        for (int i = 0; i < n; i++) ids[k][i] = t.byte_id[text[i]];
        left[k] = (int64_t)(k ? bpe_merge_by_rank : bpe_merge_long)(&t, ids[k], (size_t)n, &steps[k]);
        // At most n - 1 pairs at first and two with each merge, each pushed and popped at a heap's depth or sorted.
        EXPECT(steps[k] <= 3 * n * (2 * bits + 4), "%d letters, %d bytes, %s: %lld steps", letters, n,
               k ? "by rank" : "by place", (long long)steps[k]);
      }
      EXPECT(left[0] == left[1] && !memcmp(ids[0], ids[1], sizeof(int32_t) * (size_t)left[0]), "%d letters, %d bytes",
             letters, n);
      if (letters == 1) EXPECT(steps[1] <= 8 * n, "one letter, %d bytes: %lld steps", n, (long long)steps[1]);
    }
    tokenizer_free(&t);
  }
}

TEST(tokenizer_cache, "more distinct words than the encoder caches get the same ids") {
  Tokenizer t;
  tok_load_fixture(&t, "tokenizer_hostile.json");
  size_t words = (size_t)3 << (BPE_CACHE_MAX_BITS - 1), n = 0;
  TokText text = {(uint8_t *)malloc(words * 12 + 1), 0};
  uint64_t seed = 3;
  for (size_t i = 0; i < words; i++) {
    if (i % 1000 == 0) seed = i / 1000 % 200;  // 200000 words, then the first of them again
    uint64_t r = tok_random(&seed);
    text.bytes[n++] = i % 16 ? ' ' : '\n';
    for (size_t length = 3 + r % 8; length > 0; length--, r >>= 5) text.bytes[n++] = (uint8_t)('a' + (r >> 8) % 26);
  }
  text.count = n;
  int32_t *ids = (int32_t *)malloc(n * sizeof *ids), *line_ids = (int32_t *)malloc(n * sizeof *ids);
  int64_t count = tokenizer_encode(&t, text.bytes, n, ids), at = 0;
  EXPECT(tok_round_trips(&t, text, ids, count), "does not round-trip");
  for (size_t from = 0, to; from < n; from = to) {  // line by line: each starts with an empty cache
    const uint8_t *newline = (const uint8_t *)memchr(text.bytes + from, '\n', n - from);
    to = newline ? (size_t)(newline - text.bytes) + 1 : n;
    int64_t line = tokenizer_encode(&t, text.bytes + from, to - from, line_ids);
    if (at + line > count || memcmp(ids + at, line_ids, (size_t)line * sizeof *ids) != 0) { at = -1; break; }
    at += line;
  }
  EXPECT(at == count, "the ids of the lines are not those of the text");
  free(ids);
  free(line_ids);
  free(text.bytes);
  tokenizer_free(&t);
}

// Loading `bytes` must fail with one line that names the file; the tokenizer is then empty.
static inline bool tok_is_rejected(const void *bytes, size_t n, Error *error) {
  char path[4096];
  snprintf(path, sizeof path, "%s/rejected.json", test_tmp());
  tok_write(path, bytes, n);
  Tokenizer t;
  *error = {};
  bool ok = tokenizer_load(&t, path, error);
  if (ok) tokenizer_free(&t);
  return !ok && t.vocab_size == 0 && !t.bytes && strstr(error->text, "rejected.json: ") && !strchr(error->text, '\n');
}

TEST(tokenizer_damaged_json, "a tokenizer.json cut short is rejected in one line, a damaged one never crashes") {
  TokText json = tok_fixture("tokenizer_added.json");
  char path[4096];
  Error error = {};
  for (size_t n = 0; n < json.count; n += n < 700 || n + 200 > json.count ? 1 : 61)
    EXPECT(tok_is_rejected(json.bytes, n, &error), "%zu bytes of %zu: '%s'", n, json.count, error.text);
  json.bytes[json.count] = '}';
  EXPECT(tok_is_rejected(json.bytes, json.count + 1, &error), "one bracket too many: '%s'", error.text);
  json.bytes[json.count] = 0;
  snprintf(path, sizeof path, "%s/damaged.json", test_tmp());
  uint64_t seed = 5;
  uint8_t *damaged = (uint8_t *)malloc(json.count);
  for (int round = 0; round < 1500; round++) {
    memcpy(damaged, json.bytes, json.count);
    static const char likely[] = "\"\\{}[],:0 a-e9\n\xff";
    for (uint64_t k = 0, edits = 1 + tok_random(&seed) % 3; k < edits; k++) {
      uint64_t r = tok_random(&seed);
      damaged[(r >> 16) % json.count] = r % 3 ? (uint8_t)likely[(r >> 8) % sizeof likely] : (uint8_t)(r >> 8);
    }
    tok_write(path, damaged, json.count);
    Tokenizer t;
    error = {};
    if (tokenizer_load(&t, path, &error)) {
      TokText text = tok_fixture("tokenizer_added.txt");
      int32_t *ids = (int32_t *)malloc(text.count * sizeof *ids);
      int64_t count = tokenizer_encode(&t, text.bytes, text.count, ids);
      EXPECT(tok_round_trips(&t, text, ids, count), "round %d: loaded, but it does not round-trip", round);
      free(ids);
      free(text.bytes);
    } else {
      EXPECT(strstr(error.text, "damaged.json: ") && !strchr(error.text, '\n'), "round %d: '%s'", round, error.text);
    }
    tokenizer_free(&t);
  }
  free(damaged);
  free(json.bytes);
}

// The fixture with the first `from` replaced by `to`, which must be rejected with `words` in the error.
static inline void tok_expect_rejected(const char *from, const char *to, const char *words) {
  TokText json = tok_fixture("tokenizer_added.json");
  const char *at = strstr((const char *)json.bytes, from);
  REQUIRE(at, "the fixture has no %s", from);
  size_t before = (size_t)(at - (const char *)json.bytes), n = json.count - strlen(from) + strlen(to);
  char *changed = (char *)malloc(n);
  Error error;
  memcpy(changed, json.bytes, before);
  memcpy(changed + before, to, strlen(to));
  memcpy(changed + before + strlen(to), at + strlen(from), json.count - before - strlen(from));
  EXPECT(tok_is_rejected(changed, n, &error) && strstr(error.text, words), "%s -> %s: '%s'", from, to, error.text);
  free(changed);
  free(json.bytes);
}

TEST(tokenizer_truncation_and_padding_are_ignored,
     "a tokenizer.json with truncation and padding, as transformers leaves them there, gives the ids of one without, "
     "is named so, and is saved as it was; a Sequence of no normalizers is none") {
  static const struct { const char *truncation, *padding, *ignored, *normalizer = "null"; } cases[] = {
      {"null", "null", NULL}, {"{}", "null", "truncation", "{\"type\":\"Sequence\",\"normalizers\":[]}"},
      {"null", "{\"strategy\":\"BatchLongest\"}", "padding"},
      {"{\"direction\":\"Right\",\"max_length\":4}", "{\"strategy\":{\"Fixed\":9}}", "truncation and padding"}};
  char path[1100];
  Error error = {};
  const TokText text = tok_fixture("tokenizer_hostile.txt");
  int32_t *ids[2];
  int64_t n[2];
  for (const auto &k : cases) {
    Tokenizer t;
    TokText json = tok_fixture("tokenizer_added.json");
    const char *const parts[] = {"\"truncation\": ", k.truncation, "\"padding\": ", k.padding, "\"normalizer\": ",
                                 k.normalizer};
    snprintf(path, sizeof path, "%s/ignored.json", test_tmp());
    FILE *f = fopen(path, "wb");
    const char *at = (const char *)json.bytes;
    for (int i = 0; i < 6; i += 2) {
      const char *next = (const char *)memmem(at, json.count - (size_t)(at - (const char *)json.bytes), parts[i],
                                              strlen(parts[i]));
      REQUIRE(next && !strncmp(next + strlen(parts[i]), "null", 4), "the fixture has no %s", parts[i]);
      fwrite(at, 1, (size_t)(next - at), f);
      fprintf(f, "%s%s", parts[i], parts[i + 1]);
      at = next + strlen(parts[i]) + 4;
    }
    fwrite(at, 1, json.count - (size_t)(at - (const char *)json.bytes), f);
    fclose(f);
    free(json.bytes);
    REQUIRE(tokenizer_load_any(&t, path, &error), "%s", error.text);
    EXPECT(!t.ignored == !k.ignored && (!k.ignored || !strcmp(t.ignored, k.ignored)), "%s is named for %s", t.ignored,
           k.ignored);
    const int i = k.ignored != NULL;
    ids[i] = (int32_t *)malloc((tokenizer_ids_most(&t, text.count) + 1) * sizeof(int32_t));
    n[i] = tokenizer_encode(&t, text.bytes, text.count, ids[i]);
    if (i) {
      EXPECT(n[0] == n[1] && !memcmp(ids[0], ids[1], (size_t)n[0] * sizeof(int32_t)), "%s: other ids", k.ignored);
      free(ids[1]);
    }
    tokenizer_free(&t);
  }
  free(ids[0]);
  free(text.bytes);
}
TEST(tokenizer_config_adds_tokens,
     "tokens that tokenizer_config.json names and tokenizer.json does not add are special tokens, as transformers has "
     "them: by their ids in its list, or of the vocabulary; another id in the list is named, and so is a damaged "
     "file") {
  char dir[1000], path[1100], config[200];
  Error error = {};
  Tokenizer t;
  snprintf(dir, sizeof dir, "%s/named", test_tmp());
  mkdir(dir, 0700);
  TokText json = tok_fixture("tokenizer_gpt2.json");
  cJSON *root = cJSON_ParseWithLength((const char *)json.bytes, json.count);
  const int next = cJSON_GetArraySize(bpe_field(bpe_field(root, "model"), "vocab"));
  cJSON_DeleteItemFromObject(root, "added_tokens");
  char *text = cJSON_PrintUnformatted(root);
  snprintf(path, sizeof path, "%s/tokenizer.json", dir);
  tok_write(path, text, strlen(text));
  snprintf(path, sizeof path, "%s/tokenizer_config.json", dir);
  for (int wrong = 0; wrong < 2; wrong++) {
    snprintf(config, sizeof config, "{\"eos_token\":\"<|endoftext|>\",\"pad_token\":\"[PAD]\","
             "\"added_tokens_decoder\":{\"%d\":{\"content\":\"<new>\",\"special\":true}}}", next + wrong);
    tok_write(path, config, strlen(config));
    const bool ok = tokenizer_load_any(&t, dir, &error);
    EXPECT(ok == !wrong && (ok || strstr(error.text, "gives '<new>' id")), "%s", error.text);
    if (!ok) break;
    int32_t ids[8];
    EXPECT(tokenizer_encode(&t, (const uint8_t *)"<new>a<new>", 11, ids) == 3 && ids[0] == next && ids[2] == next,
           "<new> is %d, not %d", ids[0], next);
    tok_expect_ids(&t, "tokenizer_gpt2.txt", "tokenizer_gpt2.i32");          // with <|endoftext|>
    tokenizer_free(&t);
  }
  static const char list[] = "{\"added_tokens_decoder\":[{\"content\":\"<new>\"}],\"eos_token\":[1]}", strips[] =
      "{\"added_tokens_decoder\":{\"0\":{\"content\":\"<|endoftext|>\",\"rstrip\":true}}}";
  tok_write(path, list, sizeof list - 1);
  EXPECT(tokenizer_load_any(&t, dir, &error) && t.vocab_size == next, "a list has no ids: %s", error.text);
  tokenizer_free(&t);
  tok_write(path, list, sizeof list - 9);        // cut
  EXPECT(!tokenizer_load_any(&t, dir, &error) && strstr(error.text, "tokenizer_config.json: is not a JSON object"),
         "%s", error.text);
  tok_write(path, strips, sizeof strips - 1);
  snprintf(path, sizeof path, "%s/tokenizer.json", dir);
  tok_write(path, json.bytes, json.count);       // which adds the token, without white space
  EXPECT(!tokenizer_load_any(&t, dir, &error) && strstr(error.text, "'<|endoftext|>': rstrip must be false"), "%s",
         error.text);
  cJSON_free(text);
  cJSON_Delete(root);
  free(json.bytes);
}

TEST(tokenizer_rejections, "requirements of a tokenizer.json beyond byte-level BPE are rejected by name") {
  tok_expect_rejected("\"normalizer\": null", "\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": "
                     "\"Prepend\", \"prepend\": \"_\"}]}", "normalizer is {\"type\":\"Sequence\",\"normalizers\":[{");
  tok_expect_rejected("\"normalizer\": null", "\"normalizer\": {\"type\": \"NFKC\"}",
                     "normalizer is {\"type\":\"NFKC\"}");
  tok_expect_rejected("\"byte_fallback\": false", "\"byte_fallback\": true", "where byte_fallback is true");
  tok_expect_rejected("\"decoder\": {\"type\": \"ByteLevel\"", "\"decoder\": {\"type\": \"Fuse\"", "decoder is {");
  tok_expect_rejected("\"version\": \"1.0\"", "\"version\": \"2.0\"", "version");
  tok_expect_rejected("\"add_prefix_space\": false", "\"add_prefix_space\": true", "add_prefix_space");
  tok_expect_rejected("\"use_regex\": true", "\"use_regex\": false", "use_regex");
  tok_expect_rejected("\"pre_tokenizer\": {", "\"pre_tokenizer\": null, \"other\": {", "pre_tokenizer is none");
  const char *level = "\"post_processor\": {\"type\": \"ByteLevel\"";
  tok_expect_rejected(level, "\"post_processor\": {\"type\": \"BertProcessing\"", "post_processor");
  tok_expect_rejected(level, "\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": "
                     "{\"id\": \"a\"}}, {\"Sequence\": {\"id\": \"A\"}}]", "may add tokens");
#define TOK_TEMPLATE(single, ids) "\"post_processor\": {\"special_tokens\": {\"a\": {\"ids\": [" ids "]}}, " \
    "\"single\": [" single "], \"type\": \"TemplateProcessing\""
#define TOK_BOS "{\"SpecialToken\": {\"id\": \"a\"}}"
#define TOK_TEXT "{\"Sequence\": {\"id\": \"A\"}}"
  tok_expect_rejected(level, TOK_TEMPLATE(TOK_TEXT ", " TOK_BOS, "1"), "may add tokens");
  tok_expect_rejected(level, TOK_TEMPLATE(TOK_BOS ", " TOK_BOS ", " TOK_TEXT, "1"), "may add tokens");
  tok_expect_rejected(level, TOK_TEMPLATE(TOK_BOS ", " TOK_TEXT, "1, 2"), "may add tokens");
  tok_expect_rejected(level, TOK_TEMPLATE(TOK_BOS ", " TOK_TEXT, "9999"), "post_processor adds token 9999 of ");
  tok_expect_rejected("\"type\": \"BPE\"", "\"type\": \"Unigram\"", "model.type");
  tok_expect_rejected("\"dropout\": null", "\"dropout\": 0.1", "dropout");
  tok_expect_rejected("\"end_of_word_suffix\": null", "\"end_of_word_suffix\": \"</w>\"", "end_of_word_suffix");
  tok_expect_rejected("\"ignore_merges\": false", "\"ignore_merges\": 1", "model.ignore_merges is 1");
  tok_expect_rejected("\"<|endoftext|>\"", "\"\xed\xa0\x80\"", "UTF-8");
  tok_expect_rejected("\"<|endoftext|>\"", "\"\"", "content");
  tok_expect_rejected("\"lstrip\": false", "\"lstrip\": true", "lstrip");
  tok_expect_rejected("\"id\": 321", "\"id\": 331", "the next id after model.vocab is 321");
  tok_expect_rejected("\"vocab\": {", "\"vocab\": [], \"other\": {", "model.vocab");
  tok_expect_rejected("\"merges\": [", "\"merges\": {}, \"other\": [", "model.merges");
  tok_expect_rejected("\"!\": 0", "\"\\u0000!\": 0", "NUL");
  tok_expect_rejected("\"!\": 0", "\"!\": -1", "id");
  tok_expect_rejected("\"!\": 0", "\"!\": 1e300", "id");
  tok_expect_rejected("\"!\": 0", "\"!\": 0.5", "id");
  tok_expect_rejected("\"!\": 0", "\"!\": 5000", "id");
  tok_expect_rejected("\"!\": 0", "\"!\": 1", "same id");
  tok_expect_rejected("\"!\": 0", "\"#\": 0", "twice");
  tok_expect_rejected("\"!\": 0", "\"!!\": 0", "byte 0x21");
  tok_expect_rejected("\"merges\": [\"", "\"merges\": [\"! never\", \"", "never");
  tok_expect_rejected("\"merges\": [\"", "\"merges\": [\"a b c\", \"", "model.merges[0]");
  tok_expect_rejected("\"merges\": [\"", "\"merges\": [[\"a\"], \"", "model.merges[0]");
  Error error = {};
  char *deep = (char *)malloc(1 << 20);
  memset(deep, '[', 1 << 20);
  EXPECT(tok_is_rejected(deep, 1 << 20, &error), "a million brackets: '%s'", error.text);
  EXPECT(tok_is_rejected("{}", 2, &error) && tok_is_rejected("[]", 2, &error) && tok_is_rejected("", 0, &error), "'%s'",
         error.text);
  free(deep);
  Tokenizer t;
  EXPECT(!tokenizer_load(&t, test_tmp(), &error) && strstr(error.text, "is a directory"), "a directory: '%s'",
         error.text);
  EXPECT(!tokenizer_load(&t, "/nowhere/t.json", &error) && strstr(error.text, "/nowhere/t.json"), "'%s'", error.text);
}

// The fixture tokenizer_added.json with another pre_tokenizer; true if it loads.
static inline bool tok_loads_with(const char *pre_tokenizer, Tokenizer *t, Error *error) {
  TokText json = tok_fixture("tokenizer_added.json");
  char path[4096], *at = strstr((char *)json.bytes, "{\"type\": \"ByteLevel\""), *end = at ? strchr(at, '}') : NULL;
  CHECK(end != NULL, "%s", "the fixture has no ByteLevel");
  size_t before = (size_t)(at - (char *)json.bytes), n = strlen(pre_tokenizer), rest = strlen(end + 1);
  char *changed = (char *)malloc(before + n + rest);
  memcpy(changed, json.bytes, before);
  memcpy(changed + before, pre_tokenizer, n);
  memcpy(changed + before + n, end + 1, rest);
  snprintf(path, sizeof path, "%s/changed.json", test_tmp());
  tok_write(path, changed, before + n + rest);
  free(changed);
  free(json.bytes);
  return tokenizer_load(t, path, error);
}

TEST(tokenizer_by_line,
     "by line and not are distinguished by the pre_tokenizer, kept when saved, and part of the hash") {
#define TOK_LEVEL "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": true}"
#define TOK_SPLIT(pattern, behavior, invert) "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", " \
    "\"pattern\": {" pattern "}, \"behavior\": \"" behavior "\", \"invert\": " invert "}, " TOK_LEVEL "]}"
  static const struct { const char *json; int by_line; } cases[] = {
      {TOK_LEVEL, 0},
      {TOK_SPLIT("\"String\": \"\\n\"", "MergedWithPrevious", "false"), 1},
      {TOK_SPLIT("\"Regex\": \"\\\\n\"", "MergedWithPrevious", "false"), 1},
      {TOK_SPLIT("\"Regex\": \"\\n\"", "MergedWithPrevious", "false"), 1},
      {TOK_SPLIT("\"String\": \"\\\\n\"", "MergedWithPrevious", "false"), -1},  // a backslash and an n
      {TOK_SPLIT("\"Regex\": \"\\\\n+\"", "MergedWithPrevious", "false"), -1},
      {TOK_SPLIT("\"String\": \"\\n\"", "Isolated", "false"), -1},
      {TOK_SPLIT("\"String\": \"\\n\"", "MergedWithPrevious", "true"), -1},
      {TOK_SPLIT("", "MergedWithPrevious", "false"), -1},
      {"{\"type\": \"Sequence\", \"pretokenizers\": [" TOK_LEVEL "]}", -1},
      {"{\"type\": \"Sequence\", \"pretokenizers\": [" TOK_LEVEL ", " TOK_LEVEL "]}", -1},
      {"{\"type\": \"Metaspace\", \"add_prefix_space\": false}", -1},
      {TOK_SPLIT("\"Regex\": \"\\\\p{N}\"", "Isolated", "false"), -1},
      {"{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Digits\", \"individual_digits\": false}, " TOK_LEVEL
       "]}", -1},
      {"{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Digits\", \"individual_digits\": true}, " TOK_LEVEL
       ", " TOK_LEVEL "]}", -1},
      {"{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"String\": \"\\n\"}, "
       "\"behavior\": "
       "\"MergedWithPrevious\", \"invert\": false}, " TOK_LEVEL ", " TOK_LEVEL "]}", -1},
      {"{\"type\": \"Sequence\", \"pretokenizers\": []}", -1},
      {"{\"type\": \"Sequence\", \"pretokenizers\": 7}", -1},
      {"{\"type\": \"Sequence\"}", -1},
  };
  char path[4096];
  Error error = {};
  uint64_t hash[2] = {};
  snprintf(path, sizeof path, "%s/again.json", test_tmp());
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Tokenizer t, again;
    error = {};
    bool ok = tok_loads_with(cases[i].json, &t, &error);
    EXPECT(ok == (cases[i].by_line >= 0), "case %zu: loaded %d, '%s'", i, ok, error.text);
    if (!ok) EXPECT(strstr(error.text, "pre_tokenizer") && !t.by_line, "case %zu: '%s'", i, error.text);
    if (!ok) continue;
    EXPECT(t.by_line == cases[i].by_line, "case %zu: by line %d", i, t.by_line);
    REQUIRE(tokenizer_save(&t, path, &error) && tokenizer_load(&again, path, &error), "%s", error.text);
    EXPECT(tokenizer_hash(&t) == tokenizer_hash(&again) && t.by_line == again.by_line, "case %zu: saved, another", i);
    hash[t.by_line] = tokenizer_hash(&t);
    tokenizer_free(&t);
    tokenizer_free(&again);
  }
  EXPECT(hash[0] != hash[1], "the hash does not tell by line from not");
#undef TOK_LEVEL
#undef TOK_SPLIT
  Tokenizer t;
  tok_load_fixture(&t, "tokenizer_hostile.json");
  TokText expected = tok_fixture("tokenizer_hostile.json");
  size_t n = 0;
  char *text = tokenizer_text(&t, &n);
  EXPECT(n == expected.count && !memcmp(text, expected.bytes, n) && !text[n], "loaded, its text is not its file");
  free(text);
  free(expected.bytes);
  tokenizer_free(&t);
}

// A directory of this test alone with these texts as vocab.json and merges.txt; NULL: without that file.
static inline const char *tok_pair(const char *vocab, const char *merges) {
  static char dir[4096];
  char path[4200];
  snprintf(dir, sizeof dir, "%s/pair", test_tmp());
  mkdir(dir, 0777);
  const char *names[] = {"vocab.json", "merges.txt"}, *texts[] = {vocab, merges};
  for (int i = 0; i < 2; i++) {
    snprintf(path, sizeof path, "%s/%s", dir, names[i]);
    if (texts[i]) tok_write(path, texts[i], strlen(texts[i]));
    else remove(path);
  }
  return dir;
}

TEST(tokenizer_pair, "vocab.json with merges.txt gives the same tokenizer as tokenizer.json, which takes precedence") {
  Tokenizer one, pair;
  char path[4096];
  Error error = {};
  tok_load_fixture(&one, "tokenizer_gpt2.json");
  snprintf(path, sizeof path, "%s/tokenizer_gpt2", tok_fixtures);
  REQUIRE(tokenizer_load_any(&pair, path, &error), "%s", error.text);
  EXPECT(tokenizer_hash(&pair) == tokenizer_hash(&one) && !pair.by_line, "the pair is another tokenizer");
  tok_expect_ids(&pair, "tokenizer_gpt2.txt", "tokenizer_gpt2.i32");
  tokenizer_free(&pair);
  // The same without the version line, with carriage returns, without a last newline.
  TokText vocab = tok_read(path, "vocab.json"), merges = tok_read(path, "merges.txt");
  REQUIRE(vocab.bytes && merges.bytes && !strncmp((char *)merges.bytes, "#version", 8), "%s: not what was made", path);
  char *dos = (char *)calloc(2, merges.count), *to = dos;
  for (const uint8_t *p = (uint8_t *)strchr((char *)merges.bytes, '\n') + 1; *p; p++) {
    if (*p == '\n') *to++ = '\r';
    *to++ = (char)*p;
  }
  to[-2] = 0;
  const char *dir = tok_pair((char *)vocab.bytes, dos);
  REQUIRE(tokenizer_load_any(&pair, dir, &error), "%s", error.text);
  EXPECT(tokenizer_hash(&pair) == tokenizer_hash(&one), "in another dress it is another tokenizer");
  tokenizer_free(&pair);
  snprintf(path, sizeof path, "%s/tokenizer.json", dir);  // beside the pair: takes precedence
  Tokenizer added;
  tok_load_fixture(&added, "tokenizer_added.json");
  REQUIRE(tokenizer_save(&added, path, &error), "%s", error.text);
  const char *ways[] = {dir, path};
  for (const char *way : ways) {
    REQUIRE(tokenizer_load_any(&pair, way, &error), "%s", error.text);
    EXPECT(tokenizer_hash(&pair) == tokenizer_hash(&added), "%s is another tokenizer", way);
    tokenizer_free(&pair);
  }
  tokenizer_free(&added);
  tokenizer_free(&one);
  free(dos);
  free(vocab.bytes);
  free(merges.bytes);
}

// Loading the directory must fail with one line that contains both texts; the tokenizer is then empty.
static inline void tok_expect_pair_rejected(const char *dir, const char *has, const char *has_too) {
  Tokenizer t;
  Error error = {};
  bool ok = tokenizer_load_any(&t, dir, &error);
  EXPECT(!ok && strstr(error.text, has) && strstr(error.text, has_too) && !strchr(error.text, '\n'), "'%s' lacks '%s' "
         "or '%s'", error.text, has, has_too);
  EXPECT(t.vocab_size == 0 && !t.bytes && !t.merges, "rejected, but not empty");
  if (ok) tokenizer_free(&t);
}

// `text` with the first `from` replaced by `to`, in memory that the caller frees.
static inline char *tok_replaced(const char *text, const char *from, const char *to) {
  const char *at = strstr(text, from);
  CHECK(at != NULL, "there is no %s", from);
  char *changed = (char *)malloc(strlen(text) + strlen(to) + 1);
  sprintf(changed, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
  return changed;
}

TEST(tokenizer_families_rejected,
     "a family's tokenizer.json that differs in what decides ids is rejected by field and value") {
  static const struct { const char *name, *from, *to, *says; } cases[] = {
      {"llama3", "{1,3}", "{1,4}", "pre_tokenizer.pretokenizers[0] is {\"type\":\"Split\""},
      {"qwen2", "\\\\p{L}+|", "[\\\\p{L}\\\\p{M}]+|", "pre_tokenizer.pretokenizers[0] is {\"type\":\"Split\""},
      {"qwen2", "\"Isolated\"", "\"Removed\"", "pre_tokenizer.pretokenizers[0] is {\"type\":\"Split\""},
      {"qwen2", "\"use_regex\": false", "\"use_regex\": true", "use_regex must be false after a Split"},
      {"qwen2", "\"use_regex\": false", "\"x\": false", "use_regex must be false after a Split"},
      {"qwen2", "\"content\": \"tool\"", "\"content\": \"to ol\"", "added token 'to ol': normalized must be false"},
      {"qwen2", "\"content\": \"tool\"", "\"content\": \"e\\u0301\"", "normalized must be false"},
      {"smollm2", "\"individual_digits\": true", "\"individual_digits\": 1", "pretokenizers[0] is {\"type\":\"Digits"},
      {"smollm2", "\"use_regex\": true", "\"use_regex\": false", "use_regex must be true"},
      {"smollm2", "\"unk_token\": null", "\"unk_token\": \"<|im_end|>\"", "has no token for byte"}};
  for (const auto &c : cases) {
    char name[64];
    Error error;
    snprintf(name, sizeof name, "tokenizer_%s.json", c.name);
    TokText json = tok_fixture(name);
    char *changed = tok_replaced((const char *)json.bytes, c.from, c.to);
    EXPECT(tok_is_rejected(changed, strlen(changed), &error) && strstr(error.text, c.says), "%s -> %s: '%s'", c.from,
           c.to, error.text);
    free(changed);
    free(json.bytes);
  }
}

TEST(tokenizer_pair_rejections, "a vocab.json or merges.txt that is missing, damaged or inconsistent is named") {
  char path[4096], file[4200];
  snprintf(path, sizeof path, "%s/tokenizer_gpt2", tok_fixtures);
  TokText v = tok_read(path, "vocab.json"), m = tok_read(path, "merges.txt");
  REQUIRE(v.bytes && m.bytes, "%s is not there", path);
  const char *vocab = (const char *)v.bytes, *merges = (const char *)m.bytes;
  tok_expect_pair_rejected(tok_pair(NULL, NULL), "looked for tokenizer.json", "vocab.json with merges.txt");
  tok_expect_pair_rejected(tok_pair(vocab, NULL), "merges.txt, which is missing", "/pair: ");
  tok_expect_pair_rejected(tok_pair(NULL, merges), "vocab.json is missing", "/pair: ");
  static const struct { const char *from, *to, *says; } vocab_cases[] = {
      {"\"!\": 0", "\"!\": 1", "same id"},          {"\"!\": 0", "\"!\": -1", "has no id"},
      {"\"!\": 0", "\"!\": 0.5", "has no id"},      {"\"!\": 0", "\"!\": 100000", "ids must be"},
      {"\"!\": 0", "\"!\": \"0\"", "has no id"},    {"\"!\": 0", "\"#\": 0", "appears twice"},
      {"\"!\": 0", "\"!!\": 0", "byte 0x21"},       {"\"!\": 0", "\"\": 0", "has no id"},
      {"\"!\": 0", "\"\\u0000\": 0", "NUL"},        {"{", "[", "is not JSON"},
      {"{", "[{", "is not JSON"},                   {"\"!\": 0", "\"! !\": 0", "byte 0x21"},
      {"\"<|endoftext|>\"", "\"<|end of text|>\"", "byte-level alphabet"},
  };
  for (auto &c : vocab_cases) {
    char *changed = tok_replaced(vocab, c.from, c.to);
    tok_expect_pair_rejected(tok_pair(changed, merges), "vocab.json: ", c.says);
    free(changed);
  }
  static const struct { const char *from, *to, *says; } merge_cases[] = {
      {"\n", "\nnever here\n", "line 2: 'never"}, {"\n", "\na\n", "line 2 is not a pair"},
      {"\n", "\n\n", "line 2 is not a pair"},     {"\n", "\na b c\n", "line 2 is not a pair"},
      {"\n", "\na \n", "line 2: "},               {"\n", "\n a\n", "line 2: "},
      {"\n", "\n#version\n", "line 2 is not a"},  {"\n", "\n! never\n", "'never' is not in vocab.json"},
      {"\n", "\n! \"\n", "their union"},          {"\n", "\n\xff \xfe\n", "line 2: "},
  };
  for (auto &c : merge_cases) {
    char *changed = tok_replaced(merges, c.from, c.to);
    tok_expect_pair_rejected(tok_pair(vocab, changed), "merges.txt: ", c.says);
    free(changed);
  }
  const char *dir = tok_pair(vocab, merges);
  snprintf(file, sizeof file, "%s/merges.txt", dir);
  tok_write(file, "! \"\0\n", 5);
  tok_expect_pair_rejected(dir, "merges.txt: ", "NUL");
  free(v.bytes);
  free(m.bytes);
}

TEST(tokenizer_pair_beside,
     "special tokens added by files beside vocab.json are rejected by name, GPT-2's own are not") {
  char path[4096], file[4200];
  snprintf(path, sizeof path, "%s/tokenizer_gpt2", tok_fixtures);
  TokText v = tok_read(path, "vocab.json"), m = tok_read(path, "merges.txt");
  REQUIRE(v.bytes && m.bytes, "%s is not there", path);
  const char *dir = tok_pair((char *)v.bytes, (char *)m.bytes);
  static const struct { const char *name, *text, *says; } beside[] = {
      {"added_tokens.json", "{\"<|pad|>\": 700}", "AutoTokenizer"},
      {"special_tokens_map.json", "{\"pad_token\": \"<|pad|>\"}", "pad_token"},
      {"special_tokens_map.json", "{\"mask_token\": {\"content\": \"<mask>\"}}", "mask_token"},
      {"special_tokens_map.json", "{\"additional_special_tokens\": [\"<x>\"]}", "additional_special_tokens"},
      {"tokenizer_config.json", "{\"added_tokens_decoder\": {\"5\": {\"content\": \"<x>\"}}}", "added_tokens_decoder"},
      {"tokenizer_config.json", "{\"add_prefix_space\": true}", "add_prefix_space"},
      {"tokenizer_config.json", "{\"tokenizer_class\": \"Qwen2Tokenizer\"}", "tokenizer_class is Qwen2Tokenizer"},
      {"tokenizer_config.json", "{\"add_bos", "is not JSON"},
  };
  for (auto &b : beside) {
    snprintf(file, sizeof file, "%s/%s", dir, b.name);
    tok_write(file, b.text, strlen(b.text));
    tok_expect_pair_rejected(dir, b.name, b.says);
    remove(file);
  }
  snprintf(file, sizeof file, "%s/tokenizer_config.json", dir);  // as transformers writes it for GPT-2
  const char *plain = "{\"add_prefix_space\": false, \"eos_token\": \"<|endoftext|>\", \"unk_token\": {\"content\": "
                      "\"<|endoftext|>\"}, \"pad_token\": null, \"model_max_length\": 1024}";
  tok_write(file, plain, strlen(plain));
  Tokenizer t;
  Error error = {};
  EXPECT(tokenizer_load_any(&t, dir, &error), "%s", error.text);
  tokenizer_free(&t);
  free(v.bytes);
  free(m.bytes);
}

TEST(tokenizer_pair_damage, "a vocab.json or merges.txt cut short or damaged anywhere loads whole or is named") {
  char path[4096], file[4200];
  Error error = {};
  snprintf(path, sizeof path, "%s/tokenizer_gpt2", tok_fixtures);
  TokText whole[] = {tok_read(path, "vocab.json"), tok_read(path, "merges.txt")};
  TokText text = tok_fixture("tokenizer_gpt2.txt");
  REQUIRE(whole[0].bytes && whole[1].bytes, "%s is not there", path);
  int32_t *ids = (int32_t *)malloc(text.count * sizeof *ids);
  uint64_t seed = 17;
  for (int round = 0; round < 1200; round++) {
    const char *dir = tok_pair((char *)whole[0].bytes, (char *)whole[1].bytes), *names[] = {"vocab.json", "merges.txt"};
    TokText w = whole[round % 2];
    uint8_t *damaged = (uint8_t *)malloc(w.count);
    memcpy(damaged, w.bytes, w.count);
    size_t n = round % 4 < 2 ? (size_t)(tok_random(&seed) % w.count) : w.count;
    for (int k = 0; k < 3 && round % 4 >= 2; k++) {
      uint64_t r = tok_random(&seed);
      damaged[(r >> 16) % n] = (uint8_t)(r % 3 ? "\"\\{}:, 0\n\r\xff!"[(r >> 8) % 12] : (char)(r >> 8));
    }
    snprintf(file, sizeof file, "%s/%s", dir, names[round % 2]);
    tok_write(file, damaged, n);
    Tokenizer t;
    error = {};
    if (tokenizer_load_any(&t, dir, &error)) {
      int64_t count = tokenizer_encode(&t, text.bytes, text.count, ids);
      EXPECT(tok_round_trips(&t, text, ids, count), "round %d: loaded, but it does not round-trip", round);
    } else {
      EXPECT((strstr(error.text, "vocab.json: ") || strstr(error.text, "merges.txt: ")) && !strchr(error.text, '\n'),
             "'%s'", error.text);
    }
    tokenizer_free(&t);
    free(damaged);
  }
  free(ids);
  for (TokText &w : whole) free(w.bytes);
  free(text.bytes);
}

TEST(tokenizer_save_fails, "a tokenizer that cannot be written is reported, and the existing file stays whole") {
  Tokenizer t, kept;
  tok_load_fixture(&t, "tokenizer_added.json");
  char path[4096];
  Error error = {};
  EXPECT(!tokenizer_save(&t, "/nowhere/t.json", &error) && strstr(error.text, "/nowhere/t.json"), "'%s'", error.text);
  snprintf(path, sizeof path, "%s/kept.json", test_tmp());
  REQUIRE(tokenizer_save(&t, path, &error), "%s", error.text);
  Tokenizer big;
  tok_load_fixture(&big, "tokenizer_hostile.json");
  signal(SIGXFSZ, SIG_IGN);
  struct rlimit limit = {20000, RLIM_INFINITY}, old;  // the disk is full at 20000 bytes
  getrlimit(RLIMIT_FSIZE, &old);
  limit.rlim_max = old.rlim_max;
  setrlimit(RLIMIT_FSIZE, &limit);
  bool ok = tokenizer_save(&big, path, &error);
  setrlimit(RLIMIT_FSIZE, &old);
  EXPECT(!ok && strstr(error.text, "kept.json: cannot write"), "a full disk: '%s'", error.text);
  REQUIRE(tokenizer_load(&kept, path, &error), "%s", error.text);
  EXPECT(tokenizer_hash(&kept) == tokenizer_hash(&t), "the file that was there changed");
  char leftover[4200];
  snprintf(leftover, sizeof leftover, "%s.%ld.tmp", path, (long)getpid());
  EXPECT(access(leftover, F_OK) != 0, "the temporary file %s was left behind", leftover);
  tokenizer_free(&t);
  tokenizer_free(&kept);
  tokenizer_free(&big);
}

TEST(tokenizer_small_texts, "no text, one byte, one line and repeated bytes train and encode") {
  static const char *const texts[] = {"", "a", "\n", "aa", "aaa", "aaaa\naaaaa", "a b", "no newline", " \n \n\n"};
  for (int i = 0; i < 2 * (int)(sizeof texts / sizeof *texts); i++) {
    Tokenizer t;
    const char *s = texts[i / 2];
    TokText text = {(uint8_t *)s, strlen(s)};
    tokenizer_train(&t, text.bytes, text.count, 300, 2, i % 2);
    int32_t ids[32];
    int64_t count = tokenizer_encode(&t, text.bytes, text.count, ids);
    EXPECT(tok_round_trips(&t, text, ids, count), "'%s' does not round-trip", s);
    EXPECT(t.vocab_size == 257 - i % 2 + t.merge_count && t.vocab_size < 300, "'%s': vocabulary %d", s, t.vocab_size);
    tokenizer_free(&t);
  }
}
