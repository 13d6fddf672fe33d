// test_data.h: corpora, token files, the cache, the generated source, the sampler, the validation windows, the
// downloader.
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

// ---- files of a test ------------------------------------------------------------------------------------------------
static const char *data_path(const char *name) {  // eight live at a time
  static char paths[8][1024];
  static int next;
  char *p = paths[next++ % 8];
  data_format(p, 1024, "%s/%s", test_tmp(), name);
  return p;
}
static void data_write(const char *path, const void *bytes, size_t n) {
  FILE *f = fopen(path, "wb");
  CHECK(f && fwrite(bytes, 1, n, f) == n && fclose(f) == 0, "cannot write %s", path);
}
static void data_write_text(const char *dir, const char *name, const char *text) {
  char path[1024];
  mkdir(dir, 0777);
  data_format(path, 1024, "%s/%s", dir, name);
  data_write(path, text, strlen(text));
}
static void data_flip_byte(const char *path, long at) {  // at < 0: from the end
  FILE *f = fopen(path, "r+b");
  CHECK(f != NULL, "cannot open %s", path);
  fseek(f, at, at < 0 ? SEEK_END : SEEK_SET);
  int c = fgetc(f);
  fseek(f, -1, SEEK_CUR);
  fputc(c ^ 0x10, f);
  fclose(f);
}
static CorpusOptions data_options(const char *data) {
  CorpusOptions o = {data, NULL, 300, 2, 7};
  return o;
}
// A load that must fail with this exit code and a single line that contains each of the two texts.
static void data_expect_rejected(CorpusOptions o, int exit_code, const char *has, const char *has_too) {
  Corpus c;
  Error e;
  bool ok = corpus_load(&c, o, &e);
  EXPECT(!ok, "%s: was accepted; expected: %s", o.data ? o.data : "(search)", has);
  if (ok) { corpus_free(&c); return; }
  EXPECT(e.code == exit_code, "exit code %d, expected %d, for: %s", e.code, exit_code, e.text);
  EXPECT(strstr(e.text, has) && strstr(e.text, has_too), "'%s' lacks '%s' or '%s'", e.text, has, has_too);
  EXPECT(!strchr(e.text, '\n') && strlen(e.text) < sizeof e.text - 1, "not one whole line: %s", e.text);
}

// ---- token files ----------------------------------------------------------------------------------------------------
struct DataBin { int32_t header[256]; uint32_t tokens[64]; int numel, token_bytes; bool bare; };

static DataBin data_bin(int32_t magic, int32_t version, int token_bytes, bool bare) {
  DataBin b = {{magic, version, 50}, {}, 50, token_bytes, bare};
  for (int i = 0; i < 50; i++) b.tokens[i] = (uint32_t)(i * 37 % 299);
  return b;
}
static size_t data_bin_bytes(const DataBin *b, uint8_t *out) {
  size_t n = b->bare ? 0 : sizeof b->header;
  memcpy(out, b->header, n);
  for (int i = 0; i < b->numel; i++) {
    uint16_t half = (uint16_t)b->tokens[i];
    memcpy(out + n, b->token_bytes == 2 ? (void *)&half : (void *)&b->tokens[i], (size_t)b->token_bytes);
    n += (size_t)b->token_bytes;
  }
  return n;
}
static void data_write_bin(const char *path, const DataBin *b, long extra_bytes = 0) {
  uint8_t buffer[4096] = {};
  data_write(path, buffer, data_bin_bytes(b, buffer) + (size_t)extra_bytes);
}

TEST(data_token_files_read_back,
     "llm.c (2 and 4 bytes) and bare uint16 token files hold the tokens that were written") {
  const DataBin kinds[] = {data_bin(20240520, 1, 2, false), data_bin(20240801, 7, 4, false), data_bin(0, 0, 2, true)};
  const char *pairs[][2] = {
      {"a_train.bin", "a_val.bin"}, {"b_train_000001.bin", "b_val_000000.bin"}, {"train.bin", "valid.bin"}};
  for (int k = 0; k < 3; k++) {
    data_write_bin(data_path(pairs[k][0]), &kinds[k]);
    DataBin valid = kinds[k];
    valid.tokens[0] = 298;
    data_write_bin(data_path(pairs[k][1]), &valid);
    Corpus c;
    Error e;
    REQUIRE(corpus_load(&c, data_options(data_path(pairs[k][0])), &e), "%s: %s", pairs[k][0], e.text);
    const Split *s = &c.split[SPLIT_TRAIN], *v = &c.split[SPLIT_VALID];
    EXPECT(s->tokens_numel == 50 && s->token_bytes == kinds[k].token_bytes && !s->has_context && !c.has_tokenizer,
           "%lld tokens of %d bytes", (long long)s->tokens_numel, s->token_bytes);
    for (int i = 0; i < 50; i++) EXPECT(split_token(s, i) == (int32_t)kinds[k].tokens[i], "token %d", i);
    EXPECT(v->tokens_numel == 50 && split_token(v, 0) == 298, "the wrong validation file: %s", v->file[0].path);
    EXPECT(c.vocab_size == 300 && c.split[SPLIT_TEST].tokens_numel == 0, "vocabulary %d", c.vocab_size);
    corpus_free(&c);
  }
}

TEST(data_token_file_faults,
     "a token file that is cut short, foreign, empty or of another vocabulary is rejected by name") {
  const char *train = data_path("x_train.bin"), *valid = data_path("x_val.bin");
  const CorpusOptions o = data_options(train);
  const DataBin good = data_bin(20240520, 1, 2, false), bare = data_bin(0, 0, 2, true);
  DataBin b;
  uint8_t buffer[4096];
  data_write_bin(valid, &good);
#define REJECTED(code, has, too) data_expect_rejected(o, code, has, too)
  b = good; b.header[0] = 20770707; data_write_bin(train, &b); REJECTED(3, "unknown magic 20770707", "50 tokens");
  b = good; b.numel = 49; data_write_bin(train, &b); REJECTED(3, "cut short", "1124 bytes, but it has 1122");
  b = good; b.numel = 0; data_write_bin(train, &b); REJECTED(3, "cut short", "it has 1024");
  data_write(train, &good, 500); REJECTED(3, "cut short", "it has 500");
  data_write_bin(train, &good, 2); REJECTED(3, "longer than it says", "it has 1126");
  b = good; b.header[1] = 2; data_write_bin(train, &b); REJECTED(3, "version 2", "version 1");
  b = data_bin(20240801, 1, 4, false); data_write_bin(train, &b); REJECTED(3, "version 1", "version 7");
  b = good; b.header[2] = -5; data_write_bin(train, &b); REJECTED(3, "counts -5 tokens", "at least 2");
  b = good; b.header[2] = b.numel = 1; data_write_bin(train, &b); REJECTED(3, "counts 1 tokens", "at least 2");
  b = good; b.header[0] = 20240522; data_write_bin(train, &b); REJECTED(3, "multiple-choice", "20240520");
  b = good; b.header[0] = 20240326; data_write_bin(train, &b); REJECTED(3, "file of another kind", "20240520");
  b = good;
  b.header[0] = (int32_t)__builtin_bswap32(20240520);
  data_write_bin(train, &b);
  REJECTED(3, "big-endian", train);
  data_write(train, "", 0); REJECTED(3, "is empty", train);
  data_write(train, "\1\0", 2); REJECTED(3, "holds 1 token", train);
  data_write(train, buffer, data_bin_bytes(&bare, buffer) - 1); REJECTED(3, "99 bytes is not a whole number", "uint16");
  data_write(train, "\x93NUMPY\1\0v\0", 10); REJECTED(3, "NumPy", "tofile");
  data_write(train, "PK\3\4aaaa", 8); REJECTED(3, "zip archive", train);
  data_write(train, "\x1f\x8b\x08\0aaaa", 8); REJECTED(3, "gzip", "unpack");
  b = good;
  b.tokens[20] = 400;
  b.tokens[30] = 777;
  data_write_bin(train, &b);
  REJECTED(2, "token 20 is 400", "at least 778");
  b = bare; b.tokens[49] = 300; data_write_bin(train, &b); REJECTED(2, "token 49 is 300", "--vocab_size 300");
  b = data_bin(20240801, 7, 4, false);
  b.tokens[3] = 0xfffffff0u;
  data_write_bin(train, &b);
  REJECTED(2, "token 3 is 4294967280", train);
  data_write_bin(train, &good);
  b = good; b.tokens[5] = 300; data_write_bin(valid, &b); REJECTED(2, "token 5 is 300", valid);
  remove(valid); REJECTED(3, "no validation tokens beside it", "x_val.bin");
  remove(train); REJECTED(3, "No such file", train);
  const char *nameless = data_path("tokens.bin");
  data_write_bin(nameless, &good);
  data_expect_rejected(data_options(nameless), 3, "no `train` in it", "x_val.bin");
  const char *text = data_path("some.txt");
  data_write(text, "text", 4);
  data_expect_rejected(data_options(text), 2, "4 bytes", "train.txt and valid.txt");
#undef REJECTED
}

// ---- text -----------------------------------------------------------------------------------------------------------
TEST(data_text_directory, "text is found under either naming; a missing or empty file is named, never replaced") {
  const char *names[][3] = {{"train.txt", "valid.txt", "test.txt"},
                            {"wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens"},
                            {"train.txt", "validation.txt", "test.txt"}};
  uint64_t hash = 0;
  Corpus c;
  Error e;
  for (int k = 0; k < 3; k++) {
    char dir[1024];
    data_format(dir, 1024, "%s/dir%d", test_tmp(), k);
    const char *texts[] = {" a b c \n\n the end", "one two\nthree\n", "x \t y\r\n"};
    for (int i = 0; i < 3; i++) data_write_text(dir, names[k][i], texts[i]);
    REQUIRE(corpus_load(&c, data_options(dir), &e), "%s", e.text);
    const int64_t words[] = {5, 3, 2}, lines[] = {3, 2, 1};
    for (int i = 0; i < 3; i++)
      EXPECT(c.split[i].words == words[i] && c.split[i].lines == lines[i] && c.split[i].has_context,
             "%s: %lld words, %lld lines", split_names[i], (long long)c.split[i].words, (long long)c.split[i].lines);
    EXPECT(k == 0 || c.hash == hash, "the same text under other names is another corpus");
    EXPECT(!c.warnings.text[0] && !c.generated, "warnings: %s", c.warnings.text);
    hash = c.hash;
    corpus_free(&c);
  }
  const char *dir = data_path("dir0");
  remove(data_path("dir0/test.txt"));
  REQUIRE(corpus_load(&c, data_options(dir), &e), "%s", e.text);
  EXPECT(strstr(c.warnings.text, "no test.txt") && c.split[SPLIT_TEST].tokens_numel == 0, "warnings: %s",
         c.warnings.text);
  corpus_free(&c);
  data_write(data_path("dir0/test.txt"), "", 0);
  data_expect_rejected(data_options(dir), 3, "test.txt is empty", "fetch it again");
  remove(data_path("dir0/test.txt"));
  data_write(data_path("dir0/train.txt"), "", 0);
  data_expect_rejected(data_options(dir), 3, "train.txt is empty", dir);
  remove(data_path("dir0/train.txt"));
  data_expect_rejected(data_options(dir), 3, "has no train.txt (or wiki.train.tokens), but valid.txt", dir);
  remove(data_path("dir0/valid.txt"));
  data_expect_rejected(data_options(dir), 3, "has no train.txt", "wiki.train.tokens");
  remove(data_path("dir1/wiki.valid.tokens"));
  data_expect_rejected(data_options(data_path("dir1")), 2, "too few to hold some out", "dir1");
  setenv("WIKITEXT2_DIR", data_path("dir1"), 1);  // it names WikiText-2, whose splits are known
  data_expect_rejected(data_options(NULL), 3, "has no valid.txt", "validation.txt");
  unsetenv("WIKITEXT2_DIR");
  CorpusOptions small = data_options(data_path("dir2"));
  small.vocab_size = 256;
  data_expect_rejected(small, 2, "--vocab_size 256", "257 tokens");
}

TEST(data_search_order, "--data, then WIKITEXT2_DIR, then data/wikitext-2, then the generated text with a warning") {
  Corpus c;
  Error e;
  char here[PATH_MAX];
  REQUIRE(getcwd(here, sizeof here) && chdir(test_tmp()) == 0, "cannot enter %s", test_tmp());
  mkdir("data", 0777);
  const char *dirs[] = {"asked", "named", "data/wikitext-2"};
  for (int i = 0; i < 3; i++) {
    const char *names[] = {"train.txt", "valid.txt", "test.txt"};
    for (const char *name : names) data_write_text(dirs[i], name, "some words\n");
  }
  setenv("WIKITEXT2_DIR", "named", 1);
  const char *found[] = {"asked", "named", "data/wikitext-2"};
  for (int i = 0; i < 3; i++) {
    if (i == 2) unsetenv("WIKITEXT2_DIR");
    REQUIRE(corpus_load(&c, data_options(i == 0 ? "asked" : NULL), &e), "%s", e.text);
    EXPECT(strstr(c.source, found[i]) && !c.warnings.text[0], "source %s, warnings %s", c.source, c.warnings.text);
    corpus_free(&c);
  }
  remove("data/wikitext-2/valid.txt");           // an unfinished download is not a corpus
  REQUIRE(corpus_load(&c, data_options(""), &e), "%s", e.text);
  EXPECT(c.generated && strstr(c.warnings.text, "generated sentences"), "source %s, warnings '%s'", c.source,
         c.warnings.text);
  corpus_free(&c);
  setenv("WIKITEXT2_DIR", "nowhere", 1);         // a named directory is not replaced
  data_expect_rejected(data_options(NULL), 3, "WIKITEXT2_DIR=nowhere", "not a directory");
  data_expect_rejected(data_options("nowhere"), 3, "--data nowhere", "No such file");
  EXPECT(chdir(here) == 0, "cannot go back to %s", here);
}

TEST(data_wikitext2_counts, "WikiText-2 has its published numbers of words and lines, and its tokens decode to it") {
  const char *dir = getenv("WIKITEXT2_DIR");
  if (!dir || !*dir) SKIP("WIKITEXT2_DIR is not set");
  Corpus c;
  Error e;
  CorpusOptions o = data_options(dir);
  o.vocab_size = 1000;
  REQUIRE(corpus_load(&c, o, &e), "%s", e.text);
  const int64_t published[] = {2088628, 217646, 245569};  // Merity et al. 2016, table 1: words + one <eos> a line
  for (int i = 0; i < SPLIT_COUNT; i++)
    EXPECT(c.split[i].words + c.split[i].lines == published[i], "%s: %lld", split_names[i],
           (long long)(c.split[i].words + c.split[i].lines));
  const Split *s = &c.split[SPLIT_VALID];
  char path[1024];
  size_t bytes = 0, at = 0;
  int articles = 1;                              // before the first stands token 0 of the split
  REQUIRE(text_find(dir, SPLIT_VALID, path, sizeof path), "no valid.txt");
  const uint8_t *text = (const uint8_t *)data_map(path, &bytes, &e);
  for (int64_t i = 1; i < s->tokens_numel; i++) {
    int n;
    const uint8_t *token = tokenizer_token_bytes(&c.tokenizer, split_token(s, i), &n);
    if (!split_token(s, i) && ++articles) continue;
    REQUIRE(at + (size_t)n <= bytes && !memcmp(text + at, token, (size_t)n), "token %lld differs from the text",
            (long long)i);
    at += (size_t)n;
  }
  EXPECT(at == bytes, "the tokens end at byte %zu of %zu", at, bytes);
  EXPECT(articles == 60 && c.split[SPLIT_TRAIN].texts == 600 && s->texts == 60 && c.split[SPLIT_TEST].texts == 60,
         "%d articles, %lld to train on", articles, (long long)c.split[SPLIT_TRAIN].texts);
  corpus_free(&c);
}

TEST(data_encode_in_chunks, "a text longer than a chunk has the ids of encoding it at once, by line or not") {
  GenSource g;
  Tokenizer t;
  gen_source_init(&g, 3);
  Text text = gen_text(&g, 4, 420000);           // 18 MB: two chunks
  REQUIRE(text.numel > (17u << 20), "%zu bytes", text.numel);
  // Of every twelve bytes two stay letters and ten become white space: a cut at most places would change ids.
  for (size_t i = 0; i < text.numel; i++)
    if (i % 12 > 1) ((uint8_t *)text.owned)[i] = (uint8_t)"  \n \n\n"[data_mix(i) % 6];
  const size_t chunk = 16 << 20;                 // a word across its end, made of merges learnt from the start
  for (size_t i = 0; i < text.numel; i++)
    if (i < 65536 || (i >= chunk - 7 && i < chunk + 7)) ((uint8_t *)text.owned)[i] = (uint8_t)"ba"[i % 2];
  tokenizer_train(&t, text.bytes, 1 << 20, 320, 2, true);
  int32_t *ids = (int32_t *)data_alloc(text.numel, 4), newline;
  for (int by_line = 0; by_line < 2; by_line++) {
    Split s = {};
    t.by_line = by_line;
    split_encode(&s, &t, &text, 2);
    int64_t n = tokenizer_encode(&t, text.bytes, text.numel, ids);
    tokenizer_encode(&t, (const uint8_t *)"\n", 1, &newline);
    EXPECT(n == split_targets_numel(&s), "%lld ids, at once %lld", (long long)split_targets_numel(&s), (long long)n);
    EXPECT(split_token(&s, 0) == newline, "the context is token %d", split_token(&s, 0));
    int64_t differ = 0;
    for (int64_t i = 0; i < n && i < split_targets_numel(&s); i++) differ += split_token(&s, i + 1) != ids[i];
    EXPECT(differ == 0, "by line %d: %lld ids differ", by_line, (long long)differ);
    split_free(&s);
  }
  free(ids);
  text_free(&text);
  tokenizer_free(&t);
}

// The tokens of texts by a tokenizer, one after the other, each after token 0.
static void data_expect_documents(const Split *s, const Tokenizer *t, const char *const *texts, int count) {
  int64_t at = 0, differ = 0;
  for (int i = 0; i < count; i++) {
    int32_t *ids = (int32_t *)data_alloc(tokenizer_ids_most(t, strlen(texts[i])) + 1, sizeof *ids);
    differ += at >= s->tokens_numel || split_token(s, at++) != 0;
    const int64_t n = tokenizer_encode(t, (const uint8_t *)texts[i], strlen(texts[i]), ids);
    for (int64_t k = 0; k < n; k++) differ += at >= s->tokens_numel || split_token(s, at++) != ids[k];
    free(ids);
  }
  EXPECT(!differ && at == s->tokens_numel && s->texts == count,
         "%lld tokens differ; %lld of %lld; %lld documents of %d", (long long)differ, (long long)at,
         (long long)s->tokens_numel, (long long)s->texts, count);
}

TEST(data_threads, "a text in memory has the ids of encoding each of its documents at once, on any number of threads, "
     "where a document is longer than what a thread takes, and where it is empty") {
  enum { DOCUMENTS = 3, BYTES = 40000 };
  static char text[DOCUMENTS][BYTES + 64];
  const char *texts[DOCUMENTS];
  char dir[1024];
  uint64_t seed = 5;
  data_format(dir, 1024, "%s/files", test_tmp());
  for (int i = 0; i < DOCUMENTS; i++) {
    char name[16];
    for (size_t n = 0; n < (i == 1 ? 1 : BYTES);) {
      static const char *const words[] = {" to", " be", "or",  " not",     "\n", "  ",
                                          " that", "'s", " 12", "\xc3\xa9", "!"};
      n += (size_t)snprintf(text[i] + n, 16, "%s", words[data_random(++seed, 0) % 11]);
    }
    strcat(text[i], "\n");
    texts[i] = text[i];
    snprintf(name, sizeof name, "%c.txt", 'a' + i);
    data_write_text(dir, name, text[i]);
  }
  char valid[1024];
  data_format(valid, 1024, "%s/valid.txt", test_tmp());
  data_write_text(test_tmp(), "valid.txt", "to be or not\n");
  for (const int threads : {1, 2, 5}) {
    Corpus c;
    Error e;
    CorpusOptions o = data_options(dir);
    o.val_data = valid, o.threads = threads;
    REQUIRE(corpus_load(&c, o, &e), "%s", e.text);
    data_expect_documents(&c.split[SPLIT_TRAIN], &c.tokenizer, texts, DOCUMENTS);
    corpus_free(&c);
  }
}

TEST(data_documents, "<|endoftext|> stands before each file of a directory and each article of WikiText, in the cache "
     "too, and nowhere by a tokenizer of before") {
  const char *const files[] = {"to be\n\n", "or\n = Title = \n\nnot", "to be\n"};
  const char *const joined[] = {files[0], "or\n = Title = \n\nnot\n", files[2]};
  const char *const articles[] = {" \n = One = \n \n Text \n = 1 / s = \n more \n \n = = Part = = \n \n x \n \n",
                                  " = Two = \n \n = = Part = = \n \n y = \n = z \n\n", " = Three = \n\n end"};
  char dir[1024], wiki[1024], one[1024], cache[1024], text[1024] = "";
  data_format(dir, 1024, "%s/files", test_tmp());
  data_format(wiki, 1024, "%s/wiki", test_tmp());
  data_format(one, 1024, "%s/one", test_tmp());
  data_format(cache, 1024, "%s/cache", test_tmp());
  for (int i = 0; i < 3; i++) strcat(text, articles[i]);
  for (const char *name : {"train.txt", "valid.txt"}) data_write_text(wiki, name, text);
  const char *const names[] = {"a.txt", "b.txt", "c.txt"};
  for (int i = 0; i < 3; i++) data_write_text(dir, names[i], files[i]);
  char rest[512] = "", whole[512];               // the last file, of which the end is held out
  for (int i = 0; i < 40; i++) strcat(rest, "that is it\n");
  memcpy(whole, rest, sizeof rest);
  data_write_text(dir, "d.txt", rest);
  Corpus c;
  Error e;
  uint64_t hash = 0;
  CorpusOptions o = data_options(wiki);
  o.cache_dir = cache;
  for (int i = 0; i < 2; i++) {
    REQUIRE(corpus_load(&c, o, &e), "%s", e.text);
    EXPECT(c.cache_used == i && c.tokenizer.divides && !c.tokenizer.by_line, "cached %d", c.cache_used);
    for (int k = 0; k < 2; k++) data_expect_documents(&c.split[k], &c.tokenizer, articles, 3);
    hash = c.hash;
    corpus_free(&c);
  }
  o.data = dir;
  REQUIRE(corpus_load(&c, o, &e), "%s", e.text);
  size_t cut = (size_t)c.split[SPLIT_TRAIN].text_bytes;
  for (const char *file : joined) cut -= strlen(file);
  rest[cut] = 0;
  const char *const all[] = {joined[0], joined[1], joined[2], rest};
  data_expect_documents(&c.split[SPLIT_TRAIN], &c.tokenizer, all, 4);
  EXPECT(c.split[SPLIT_VALID].texts == 1, "held out: %lld documents", (long long)c.split[SPLIT_VALID].texts);
  corpus_free(&c);
  // The same text in one file: one document, and not that of the cache.
  snprintf(text, sizeof text, "%s%s%s%s", joined[0], joined[1], joined[2], whole);
  data_write_text(one, "all.txt", text);
  o.data = one;
  REQUIRE(corpus_load(&c, o, &e), "%s", e.text);
  EXPECT(!c.cache_used && c.split[SPLIT_TRAIN].texts == 1, "cached %d", c.cache_used);
  REQUIRE(tokenizer_save(&c.tokenizer, data_path("own.json"), &e), "%s", e.text);
  corpus_free(&c);
  // As checkpoints of before have it.
  o.data = wiki;
  o.tokenizer = data_path("own.json");
  o.undivided = true;
  REQUIRE(corpus_load(&c, o, &e), "%s", e.text);
  int64_t marks = 0;
  for (int64_t i = 0; i < c.split[0].tokens_numel; i++) marks += !split_token(&c.split[0], i);
  EXPECT(!marks && !c.split[0].texts && split_token(&c.split[0], 0) == c.tokenizer.byte_id['\n'] && c.hash != hash,
         "undivided: %lld marks, starts with %d", (long long)marks, split_token(&c.split[0], 0));
  corpus_free(&c);
}

// ---- a given tokenizer ----------------------------------------------------------------------------------------------
static int data_files_like(const char *pattern) {
  glob_t found = {};
  int n = glob(pattern, 0, NULL, &found) == 0 ? (int)found.gl_pathc : 0;
  globfree(&found);
  return n;
}

TEST(data_given_tokenizer,
     "text encoded with the tokenizer that training would produce is the same corpus, cached too") {
  const char *names[] = {"train.txt", "valid.txt", "test.txt"};
  char dir[1024], json[1024], cache[1024];
  Error error = {};
  data_format(dir, 1024, "%s/text", test_tmp());
  data_format(json, 1024, "%s/tokenizer.json", test_tmp());
  data_format(cache, 1024, "%s/made/for/cache", test_tmp());
  for (const char *name : names) data_write_text(dir, name, "to be or not to be\n\n  that is \n  the question\n");
  Corpus c;
  Error e;
  CorpusOptions o = data_options(dir);
  REQUIRE(corpus_load(&c, o, &e), "%s", e.text);
  const uint64_t hash = c.hash;
  const int vocab_size = c.vocab_size;
  EXPECT(!c.tokenizer.by_line && c.tokenizer.divides, "training makes a tokenizer that goes by line");
  REQUIRE(tokenizer_save(&c.tokenizer, json, &error), "%s", error.text);
  corpus_free(&c);
  o.cache_dir = cache;
  o.vocab_size = 1;                              // ignored
  const char *ways[] = {json, test_tmp(), test_tmp()};
  for (int i = 0; i < 3; i++) {
    o.tokenizer = ways[i];
    REQUIRE(corpus_load(&c, o, &e), "%s", e.text);
    EXPECT(c.hash == hash && c.vocab_size == vocab_size && c.has_tokenizer, "load %d: another corpus", i);
    EXPECT(c.cache_used == (i > 0) && !c.warnings.text[0] && c.tokenizer_ms == 0, "load %d: cache_used %d, warnings "
           "'%s'", i, c.cache_used, c.warnings.text);
    corpus_free(&c);
  }
  const int token_files = data_files_like(data_path("made/for/cache/tokens-*.bin"));
  const int tokenizers = data_files_like(data_path("made/for/cache/tokenizer-*"));
  EXPECT(token_files == 1 && !tokenizers, "in the cache: %d and %d files", token_files, tokenizers);
  // The same vocabulary by line, in the same cache: another corpus, and no warning about the existing one.
  Tokenizer t;
  REQUIRE(tokenizer_load_any(&t, json, &error), "%s", error.text);
  t.by_line = true;
  free(t.file);                                  // or what is saved is what was read
  t.file = NULL;
  REQUIRE(tokenizer_save(&t, json, &error), "%s", error.text);
  REQUIRE(corpus_load(&c, o, &e), "%s", e.text);
  EXPECT(!c.cache_used && !c.warnings.text[0] && c.hash != hash, "by line: cache_used %d, '%s'", c.cache_used,
         c.warnings.text);
  const Split *s = &c.split[SPLIT_VALID];
  const char *text = "to be or not to be\n\n  that is \n  the question\n";
  int32_t ids[64];
  int64_t n = tokenizer_encode(&t, (const uint8_t *)text, strlen(text), ids);
  EXPECT(n == split_targets_numel(s), "%lld ids, not %lld", (long long)split_targets_numel(s), (long long)n);
  for (int64_t i = 0; i < n; i++) EXPECT(split_token(s, i + 1) == ids[i], "id %lld differs", (long long)i);
  tokenizer_free(&t);
  corpus_free(&c);
  // Trained, in the same cache: neither is used for the other.
  o.tokenizer = "";
  o.vocab_size = 300;
  for (int i = 0; i < 2; i++) {
    REQUIRE(corpus_load(&c, o, &e), "%s", e.text);
    EXPECT(c.hash == hash && c.cache_used == (i > 0) && !c.warnings.text[0], "trained, load %d: cache_used %d", i,
           c.cache_used);
    corpus_free(&c);
  }
  o.tokenizer = data_path("nowhere");
  data_expect_rejected(o, 3, "tokenizer", "nowhere: cannot read");
  o.tokenizer = dir;
  data_expect_rejected(o, 3, "/text: has no tokenizer", "merges.txt");
}

TEST(data_tokenizer_beside_ids, "with token files and random tokens a tokenizer changes no id, and may not be larger") {
  const DataBin b = data_bin(20240520, 1, 2, false);
  const char *train = data_path("x_train.bin");
  data_write_bin(train, &b);
  data_write_bin(data_path("x_val.bin"), &b);
  const char *corpora[] = {train, "random"};
  Corpus c;
  Error e;
  for (const char *data : corpora) {
    CorpusOptions o = data_options(data);
    o.vocab_size = 700;
    REQUIRE(corpus_load(&c, o, &e), "%s", e.text);
    const uint64_t hash = c.hash;
    EXPECT(!c.has_tokenizer, "%s: a tokenizer from nowhere", data);
    corpus_free(&c);
    o.tokenizer = "dev/fixtures/tokenizer_gpt2";
    REQUIRE(corpus_load(&c, o, &e), "%s", e.text);
    EXPECT(c.hash == hash && c.has_tokenizer && c.vocab_size == 700 && c.tokenizer.vocab_size < 700,
           "%s: vocabulary %d, tokenizer %d", data, c.vocab_size, c.tokenizer.vocab_size);
    o.vocab_size = c.tokenizer.vocab_size - 1;
    corpus_free(&c);
    data_expect_rejected(o, 2, "dev/fixtures/tokenizer_gpt2 has", "more than --vocab_size");
  }
}

TEST(data_tokenizer_alone,
     "a corpus of a tokenizer alone has no token, travels like others, and knows its vocabulary") {
  Corpus c, d;
  Error e;
  CorpusOptions o = data_options(NULL);
  uint64_t hash[2];
  char by_line[1024];
  Error error = {};
  data_format(by_line, 1024, "%s/by_line.json", test_tmp());
  Tokenizer t;
  REQUIRE(tokenizer_load_any(&t, "dev/fixtures/tokenizer_gpt2", &error), "%s", error.text);
  t.by_line = true;
  REQUIRE(tokenizer_save(&t, by_line, &error), "%s", error.text);
  tokenizer_free(&t);
  const char *tokenizers[] = {"dev/fixtures/tokenizer_gpt2", by_line};
  for (int i = 0; i < 2; i++) {
    o.tokenizer = tokenizers[i];
    o.vocab_size = 0;
    REQUIRE(corpus_load_tokenizer(&c, o, &e), "%s", e.text);
    EXPECT(c.has_tokenizer && c.vocab_size == c.tokenizer.vocab_size, "vocabulary %d", c.vocab_size);
    hash[i] = c.hash;
    const size_t bytes = corpus_block_bytes(&c);
    void *image = data_alloc(bytes, 1);
    corpus_to_block(&c, image);
    REQUIRE(corpus_of_block(&d, image, bytes, &e), "%s", e.text);
    EXPECT(d.hash == c.hash && d.vocab_size == c.vocab_size && !d.has_tokenizer, "another corpus arrived");
    for (const Split &s : d.split)
      EXPECT(!s.tokens && !s.tokens_numel && !split_targets_numel(&s) && !eval_windows_numel(&s, 8), "it has tokens");
    corpus_free(&d);
    corpus_free(&c);
    free(image);
  }
  EXPECT(hash[0] != hash[1], "two tokenizers, one hash");
  o.vocab_size = 100;
  EXPECT(!corpus_load_tokenizer(&c, o, &e) && e.code == 2 && strstr(e.text, "--vocab_size 100"), "%s", e.text);
  o.tokenizer = NULL;
  EXPECT(!corpus_load_tokenizer(&c, o, &e) && strstr(e.text, "no data and no tokenizer"), "%s", e.text);
  o.tokenizer = "dev/nowhere";
  EXPECT(!corpus_load_tokenizer(&c, o, &e) && e.code == 3 && strstr(e.text, "dev/nowhere"), "%s", e.text);
}

TEST(data_families_tokenizers,
     "a corpus of another family's tokenizer starts with its BOS token or a newline, has the ids of encoding it "
     "at once, in a cache too, and the entropy of generated text by its own tokens; bytes without a token are told") {
  const char *names[] = {"train.txt", "valid.txt"};
  const char *text = "It's cafe\xcc\x81 12345.\n\n  I'LL \xe0\xa5\x98\n \x07 end\n";
  char dir[1024], cache[1024], path[1024];
  Error error = {};
  data_format(dir, 1024, "%s/text", test_tmp());
  data_format(cache, 1024, "%s/cache", test_tmp());
  for (const char *name : names) data_write_text(dir, name, text);
  for (const char *family : {"llama3", "qwen2", "nanochat", "smollm2"}) {
    Corpus c;
    Tokenizer t;
    Error e;
    int32_t ids[256];
    data_format(path, 1024, "dev/fixtures/tokenizer_%s.json", family);
    REQUIRE(tokenizer_load_any(&t, path, &error), "%s", error.text);
    ids[0] = t.adds_bos ? t.bos_id : t.byte_id['\n'];
    const int64_t count = 1 + tokenizer_encode(&t, (const uint8_t *)text, strlen(text), ids + 1);
    CorpusOptions o = data_options(dir);
    o.tokenizer = path;
    o.cache_dir = cache;
    for (int i = 0; i < 2; i++) {
      REQUIRE(corpus_load(&c, o, &e), "%s", e.text);
      const Split *s = &c.split[SPLIT_VALID];
      EXPECT(c.cache_used == i && s->tokens_numel == count, "%s: cached %d, %lld tokens of %lld", family, c.cache_used,
             (long long)s->tokens_numel, (long long)count);
      for (int64_t k = 0; k < count && k < s->tokens_numel; k++)
        EXPECT(split_token(s, k) == ids[k], "%s: token %lld is %d", family, (long long)k, split_token(s, k));
      EXPECT(!strcmp(family, "smollm2") == !!strstr(c.warnings.text, "of the 256 bytes"), "%s: warnings '%s'", family,
             c.warnings.text);
      corpus_free(&c);
    }
    GenSource g;
    double nats, tokens;
    gen_source_init(&g, 20160926);
    if (t.ignore_merges) {                       // a vocabulary in which the stop and its newline are one token
      BpeWord w;
      const uint8_t *stop = (const uint8_t *)" .\n";
      const uint64_t hash = bpe_word_key(&w, stop, 3, stop + 3);
      w.value = 5;
      bpe_table_add(&t.whole, bpe_table_slot(&t.whole, &w, hash), &w, hash);
    }
    gen_expectation(&g, &t, &nats, &tokens);
    Text made = gen_text(&g, 9, 4000);
    int32_t *all = (int32_t *)data_alloc(tokenizer_ids_most(&t, made.numel), 4);
    // 4000 sentences: the mean of a sentence's tokens, whose deviation is below 10, is within 6 x 10 / sqrt(4000).
    const double mean = (double)tokenizer_encode(&t, made.bytes, made.numel, all) / 4000;
    EXPECT(fabs(mean - tokens) < 0.95, "%s: %.3f tokens a sentence, expected %.3f", family, mean, tokens);
    free(all);
    text_free(&made);
    tokenizer_free(&t);
  }
}

// ---- cache ----------------------------------------------------------------------------------------------------------
TEST(data_cache, "a second load reads the cache; a damaged, foreign or unwritable cache changes nothing but a "
     "warning") {
  const char *names[] = {"train.txt", "valid.txt", "test.txt"};
  char dir[1024], cache[1024], bin[1024] = "", json[1024] = "";
  data_format(dir, 1024, "%s/text", test_tmp());
  data_format(cache, 1024, "%s/cache", test_tmp());
  for (const char *name : names) data_write_text(dir, name, "to be or not to be\nthat is the question\n");
  CorpusOptions o = data_options(dir);
  o.cache_dir = cache;
  Corpus c;
  Error e;
  REQUIRE(corpus_load(&c, o, &e), "%s", e.text);
  EXPECT(!c.cache_used && !c.warnings.text[0], "first load: cache_used %d, warnings %s", c.cache_used, c.warnings.text);
  const uint64_t hash = c.hash;
  int64_t numel = 0;
  for (const Split &s : c.split) numel += s.tokens_numel;
  corpus_free(&c);
  glob_t found;
  data_format(bin, 1024, "%s/tokens-*.bin", cache);
  REQUIRE(glob(bin, 0, NULL, &found) == 0 && found.gl_pathc == 1, "%zu token files in the cache", found.gl_pathc);
  data_format(bin, 1024, "%s", found.gl_pathv[0]);
  data_format(json, 1024, "%s/tokenizer-%.16s.json", cache, strrchr(bin, '-') + 1);
  globfree(&found);
  TokenFile f = {};
  data_format(f.path, sizeof f.path, "%s", bin);
  REQUIRE(token_file_open(&f, &e), "the cache is no token file: %s", e.text);
  EXPECT(f.tokens_numel == numel && f.token_bytes == 2, "%lld tokens in it, not %lld", (long long)f.tokens_numel,
         (long long)numel);
  close(f.fd);
  // -1: nothing is damaged. 0 .. : that byte of the ids' file. 5000 ..: cut short; tokenizer damaged, absent, foreign;
  // an older version's cache under this name.
  const int size = (int)sizeof(CacheHeader);
  const int damage[] = {-1,  0,   4,    8,    12,       40,   64,   72,   80,   88,
                        104, 200, 1023, size, size + 9, 5000, 5001, 5002, 5003, 5004};
  for (int d : damage) {
    if (d >= 0 && d < 5000) data_flip_byte(bin, d);
    if (d == 5000) CHECK(truncate(bin, size + 7) == 0, "cannot truncate %s", bin);
    if (d == 5001) data_flip_byte(json, -40);
    if (d == 5002) remove(json);
    if (d == 5003) data_write(json, "{}", 2);
    if (d == 5004) data_write(bin, "tokens02\1\2\3\4\5\6\7\10 the ids of some text", 40);
    REQUIRE(corpus_load(&c, o, &e), "%s", e.text);
    EXPECT(c.hash == hash, "damage %d: another corpus came out", d);
    EXPECT(c.cache_used == (d < 0), "damage %d: cache_used %d", d, c.cache_used);
    EXPECT((d < 0) == !strstr(c.warnings.text, "made again"), "damage %d: warnings '%s'", d, c.warnings.text);
    EXPECT(c.split[0].words == 10 && c.split[0].lines == 2 && c.split[0].has_context, "damage %d: %lld words", d,
           (long long)c.split[0].words);
    corpus_free(&c);
  }
  // Another text: neither hit nor warning.
  data_write_text(dir, "valid.txt", "to be or not to be\nthat was the question\n");
  REQUIRE(corpus_load(&c, o, &e), "%s", e.text);
  EXPECT(!c.cache_used && !c.warnings.text[0] && c.hash != hash, "changed text: cache_used %d, '%s'", c.cache_used,
         c.warnings.text);
  corpus_free(&c);
  o.cache_dir = data_path("text/train.txt");     // a file: nothing can be created in it, not even by root
  REQUIRE(corpus_load(&c, o, &e), "%s", e.text);
  EXPECT(strstr(c.warnings.text, "not cached"), "unwritable: warnings '%s'", c.warnings.text);
  corpus_free(&c);
}

// ---- known entropy --------------------------------------------------------------------------------------------------
// The edge of state `at` whose word comes next in the text; -1: none.
static int data_gen_edge_at(const GenSource *g, int at, const uint8_t *p, const uint8_t *end) {
  const GenState *s = &g->state[at];
  for (int k = 0; k < s->edges; k++) {
    const char *word = g->state[s->next[k]].word;
    size_t n = strlen(word);
    if ((size_t)(end - p) < n || memcmp(p, word, n)) continue;
    if (*word == '\n' || (p + n < end && (p[n] == ' ' || p[n] == '\n'))) return k;
  }
  return -1;
}

TEST(data_generated_entropy,
     "the transitions counted in the generated text have the stated probabilities and entropy rate") {
  static GenSource g;
  static int64_t count[GEN_STATES][GEN_MAX_EDGES];
  const int64_t sentences = 100000;
  gen_source_init(&g, 20160926);
  Text text = gen_text(&g, 99, sentences);
  double sentence_nats, sentence_tokens, nats = 0, tokens = 0, residual2 = 0, x = 0, length = 0;
  gen_expectation(&g, NULL, &sentence_nats, &sentence_tokens);
  const double rate = sentence_nats / sentence_tokens;
  int at = GEN_NEWLINE;
  for (const uint8_t *p = text.bytes, *end = p + text.numel; p < end;) {
    int k = data_gen_edge_at(&g, at, p, end);
    REQUIRE(k >= 0, "byte %lld: no successor of '%s' stands here", (long long)(p - text.bytes), g.state[at].word);
    count[at][k]++;
    x -= log((double)g.state[at].weight[k] / g.state[at].total);
    length++;
    at = g.state[at].next[k];
    p += strlen(g.state[at].word);
    if (at != GEN_NEWLINE) continue;
    nats += x; tokens += length; residual2 += (x - rate * length) * (x - rate * length);
    x = length = 0;
  }
  EXPECT(at == GEN_NEWLINE, "the text ends inside a sentence");
  EXPECT(fabs(nats - text.nats) <= 1e-9 * nats, "the generator says %.9g nats, its text %.9g", text.nats, nats);
  // Likelihood-ratio test (Wilks): G = 2 sum n ln(n / (n_s p)) is chi-square with as many degrees of freedom as states
  // have free successors, mean df and variance 2 df. States whose rarest successor is expected less than 5 times are
  // left out.
  double G = 0, df = 0, used = 0, conditional = 0;
  for (int s = 0; s < GEN_STATES; s++) {
    double total = 0, least = 1e9, sum = 0;
    for (int k = 0; k < g.state[s].edges; k++) total += (double)count[s][k];
    for (int k = 0; k < g.state[s].edges; k++) {
      double n = (double)count[s][k], p = (double)g.state[s].weight[k] / g.state[s].total;
      if (total * p < least) least = total * p;
      if (n > 0) { sum += 2 * n * log(n / (total * p)); conditional -= n * log(n / total); }
    }
    if (least >= 5) { G += sum; df += g.state[s].edges - 1; used += total; }
  }
  EXPECT(used > 0.99 * tokens, "only %.0f of %.0f transitions can be tested", used, tokens);
  EXPECT(fabs(G - df) < 6 * sqrt(2 * df), "G = %.1f with %.0f degrees of freedom", G, df);
  // A ratio of means over independent sentences: its standard error from the residuals of each sentence. The counted
  // conditional entropy is lower by half of G, df/2 on average.
  const double sigma = sqrt(residual2) / tokens, counted = (conditional + df / 2) / tokens;
  EXPECT(fabs(nats / tokens - rate) < 5 * sigma, "%.6f nats per token, stated %.6f, sigma %.2g", nats / tokens, rate,
         sigma);
  EXPECT(fabs(counted - rate) < 5 * sigma + 6 * sqrt(2 * df) / 2 / tokens + 0.01 * df / tokens,
         "counted conditional entropy %.6f nats per token, stated %.6f", counted, rate);
  text_free(&text);
}

TEST(data_generated_needs_memory,
     "in the generated text the last token alone does not determine what the source knows") {
  // Entropy of a token given only the one before it, from counts of the text. It must exceed the stated rate by far
  // more than the error of its estimate (pairs / 2 tokens), or attention would have nothing to do.
  Corpus c;
  Error e;
  CorpusOptions o = data_options("generated");
  o.vocab_size = 1000;
  REQUIRE(corpus_load(&c, o, &e), "%s", e.text);
  const Split *s = &c.split[SPLIT_TRAIN];
  const int64_t V = c.vocab_size, n = split_targets_numel(s);
  int64_t *pairs = (int64_t *)calloc((size_t)(V * V), 8), *firsts = (int64_t *)calloc((size_t)V, 8), kinds = 0;
  for (int64_t i = 0; i < n; i++) {
    pairs[split_token(s, i) * V + split_token(s, i + 1)]++;
    firsts[split_token(s, i)]++;
  }
  double nats = 0;
  for (int64_t i = 0; i < V * V; i++)
    if (pairs[i]) { nats -= (double)pairs[i] * log((double)pairs[i] / (double)firsts[i / V]); kinds++; }
  EXPECT(nats / (double)n > c.entropy_nats + 0.1 + (double)kinds / 2 / (double)n,
         "given one token: %.4f nats; the source: %.4f", nats / (double)n, c.entropy_nats);
  static GenSource g;
  gen_source_init(&g, 20160926);
  for (int v = 1; v < GEN_VERBS; v++) {          // under one determiner, each verb has different objects
    const GenState *a = &g.state[GEN_DET2], *b = &g.state[GEN_DET2 + v * GEN_DETS];
    EXPECT(a->edges == b->edges && memcmp(a->next, b->next, sizeof a->next), "verbs 0 and %d have the same objects", v);
  }
  EXPECT(c.vocab_size < 600, "vocabulary %d: the words should become tokens and merging then end", c.vocab_size);
  free(pairs);
  free(firsts);
  corpus_free(&c);
}

TEST(data_generated_corpus,
     "the stated entropy per token follows the vocabulary: nats are those of the text, at any size") {
  double nats_of_valid = 0, rate_by_bytes = 0;
  const int sizes[] = {256, 300, 1000};
  for (int k = 0; k < 3; k++) {
    Corpus c;
    Error e;
    CorpusOptions o = data_options("generated");
    o.vocab_size = sizes[k];
    REQUIRE(corpus_load(&c, o, &e), "%s", e.text);
    const Split *v = &c.split[SPLIT_VALID], *t = &c.split[SPLIT_TRAIN];
    const double nats = v->oracle_nats * (double)split_targets_numel(v);
    if (k == 0) { nats_of_valid = nats; rate_by_bytes = c.entropy_nats * (double)split_targets_numel(t); }
    EXPECT(fabs(nats - nats_of_valid) < 1e-9 * nats, "vocabulary %d: the text costs %.6f nats, not %.6f", c.vocab_size,
           nats, nats_of_valid);
    // Both are the expected nats of the training text, except for the text's random number of tokens, 0.1 % at 160,000
    // sentences.
    EXPECT(fabs(c.entropy_nats * (double)split_targets_numel(t) / rate_by_bytes - 1) < 5e-3, "vocabulary %d: rate %.6f",
           c.vocab_size, c.entropy_nats);
    EXPECT(c.generated && c.has_tokenizer && v->words > 0, "not a text corpus");
    corpus_free(&c);
  }
}

TEST(data_random_tokens, "random tokens are uniform, follow the seed, and state ln V as their entropy") {
  Corpus c, d;
  Error e;
  CorpusOptions o = data_options("random");
  REQUIRE(corpus_load(&c, o, &e) && c.vocab_size == 300, "%s", e.text);
  EXPECT(c.entropy_nats == log(300.0) && !c.generated && !c.has_tokenizer, "entropy %g", c.entropy_nats);
  const Split *s = &c.split[SPLIT_TRAIN];
  double count[300] = {}, pair[64] = {}, expected = (double)s->tokens_numel / 300, chi2 = 0, chi2_pair = 0;
  for (int64_t i = 0; i < s->tokens_numel; i++) count[split_token(s, i)]++;
  for (int64_t i = 0; i + 1 < s->tokens_numel; i += 2)
    pair[split_token(s, i) * 8 / 300 * 8 + split_token(s, i + 1) * 8 / 300]++;
  double bin[8] = {};
  for (int i = 0; i < 300; i++) {
    chi2 += (count[i] - expected) * (count[i] - expected) / expected;
    bin[i * 8 / 300] += 1 / 300.0;
  }
  for (int i = 0; i < 64; i++) {
    double want = (double)(s->tokens_numel / 2) * bin[i / 8] * bin[i % 8];
    chi2_pair += (pair[i] - want) * (pair[i] - want) / want;
  }
  // chi-square: mean df, variance 2 df
  EXPECT(fabs(chi2 - 299) < 6 * sqrt(2 * 299.0), "chi-square %.1f with 299 degrees of freedom", chi2);
  EXPECT(fabs(chi2_pair - 63) < 6 * sqrt(2 * 63.0), "pairs: chi-square %.1f with 63 degrees of freedom", chi2_pair);
  REQUIRE(corpus_load(&d, o, &e), "%s", e.text);
  EXPECT(d.hash == c.hash, "the same seed gives other tokens");
  corpus_free(&d);
  o.seed++;
  REQUIRE(corpus_load(&d, o, &e), "%s", e.text);
  EXPECT(d.hash != c.hash, "another seed gives the same tokens");
  corpus_free(&d);
  corpus_free(&c);
}

// ---- copies of a corpus ---------------------------------------------------------------------------------------------
TEST(data_corpus_block, "a corpus rebuilt from its image has the same tokens; a changed token file is noticed") {
  Corpus c, d;
  Error e;
  const char *train = data_path("i_train.bin");
  DataBin b = data_bin(20240520, 1, 2, false);
  data_write_bin(train, &b);
  data_write_bin(data_path("i_val.bin"), &b);
  const char *corpora[] = {"generated", "random", train};
  for (const char *data : corpora) {
    REQUIRE(corpus_load(&c, data_options(data), &e), "%s", e.text);
    size_t bytes = corpus_block_bytes(&c);
    void *image = data_alloc(bytes, 1);
    corpus_to_block(&c, image);
    EXPECT(data != train || bytes < 65536, "the tokens of a file travel: %zu bytes", bytes);
    REQUIRE(corpus_of_block(&d, image, bytes, &e), "%s", e.text);
    EXPECT(d.hash == c.hash && d.vocab_size == c.vocab_size && !d.has_tokenizer && d.entropy_nats == c.entropy_nats,
           "another corpus arrived");
    for (int i = 0; i < SPLIT_COUNT; i++) {
      const Split *s = &c.split[i], *r = &d.split[i];
      size_t split_bytes = (size_t)s->tokens_numel * (size_t)s->token_bytes;
      EXPECT(s->tokens_numel == r->tokens_numel && s->words == r->words && s->has_context == r->has_context &&
                 s->hash == r->hash &&
                 (!split_bytes || s->files || !memcmp(s->tokens, r->tokens, split_bytes)),
             "%s: another %s split", data, split_names[i]);
    }
    corpus_free(&d);
    if (data == train) {
      b.tokens[7] ^= 1;
      data_write_bin(train, &b);
      EXPECT(!corpus_of_block(&d, image, bytes, &e) && strstr(e.text, "is not the file"), "changed file: %s", e.text);
      remove(train);
      EXPECT(!corpus_of_block(&d, image, bytes, &e) && strstr(e.text, "No such file"), "absent file: %s", e.text);
    }
    corpus_free(&c);
    free(image);
  }
}

// ---- sampler --------------------------------------------------------------------------------------------------------
// A split of `numel` tokens whose token i is i.
static Split data_counting_split(int64_t numel) {
  Split s = {};
  s.token_bytes = 4;
  s.tokens_numel = numel;
  s.tokens = s.owned = data_alloc((size_t)numel, 4);
  for (int64_t i = 0; i < numel; i++) ((uint32_t *)s.owned)[i] = (uint32_t)i;
  return s;
}
static Sampler data_sampler(const Split *split, SamplerOptions o) {
  Sampler s;
  Error e;
  CHECK(sampler_init(&s, split, o, malloc(sampler_bytes(split, o) + 1), &e), "%s", e.text);
  return s;
}

TEST(data_sampler_windows, "a microbatch holds non-overlapping windows of the stream, targets one token ahead") {
  const int64_t T = 7, B = 3, M = 2;
  Split split = data_counting_split(7 * 20 + 5);
  Sampler s = data_sampler(&split, {B, T, M, true, true, 1});
  EXPECT(s.samples_numel == 20 && s.steps_per_epoch == 3, "%lld samples", (long long)s.samples_numel);
  int32_t inputs[21], targets[21], seen[20] = {};
  for (int64_t step = 0; step < 3; step++)
    for (int64_t m = 0; m < M; m++) {
      microbatch_fill(&s, step, m, inputs, targets);
      for (int64_t b = 0; b < B; b++) {
        int64_t sample = inputs[b * T] / T;
        EXPECT(inputs[b * T] % T == 0 && sample == sampler_sample(&s, (step * M + m) * B + b), "starts at %d",
               inputs[b * T]);
        seen[sample]++;
        for (int64_t t = 0; t < T; t++)
          EXPECT(inputs[b * T + t] == sample * T + t && targets[b * T + t] == sample * T + t + 1, "token %lld",
                 (long long)t);
      }
    }
  for (int i = 0; i < 20; i++) EXPECT(seen[i] <= 1, "sample %d was seen %d times", i, seen[i]);
  free(s.order);
  split_free(&split);
}

TEST(data_sampler_epochs, "each epoch is a permutation that (seed, epoch) alone decides, and they differ") {
  Split split = data_counting_split(4 * 500 + 1);
  Sampler s = data_sampler(&split, {5, 4, 10, true, false, 42}),
          other = data_sampler(&split, {2, 4, 3, true, true, 42});
  Sampler seed = data_sampler(&split, {5, 4, 10, true, false, 43}),
          plain = data_sampler(&split, {5, 4, 10, false, false, 42});
  uint32_t first[500];
  for (int64_t epoch = 0; epoch < 4; epoch++) {
    bool seen[500] = {};
    int same = 0, fixed = 0, seeds = 0, pairs = 0;
    sampler_set_epoch(&s, epoch);
    sampler_set_epoch(&other, epoch);
    sampler_set_epoch(&seed, epoch);
    sampler_set_epoch(&plain, epoch);
    if (epoch == 0) memcpy(first, s.order, sizeof first);
    for (int64_t i = 0; i < 500; i++) {
      EXPECT(!seen[s.order[i]], "epoch %lld holds sample %u twice", (long long)epoch, s.order[i]);
      seen[s.order[i]] = true;
      EXPECT(s.order[i] == other.order[i], "the order depends on the batch");
      EXPECT(sampler_sample(&plain, i) == i, "without shuffling position %lld holds another sample", (long long)i);
      same += first[i] == s.order[i];
      seeds += seed.order[i] == s.order[i];
      fixed += s.order[i] == (uint32_t)i;
      pairs += i > 0 && s.order[i] == s.order[i - 1] + 1;
    }
    // Two random permutations agree in Poisson(1) places: more than 10 has probability 1e-8.
    EXPECT(epoch == 0 ? same == 500 : same <= 10, "epochs 0 and %lld agree in %d places", (long long)epoch, same);
    EXPECT(fixed <= 10 && seeds <= 10 && pairs <= 10, "%d in place, %d as the next seed, %d successors", fixed, seeds,
           pairs);
  }
  sampler_set_epoch(&s, 0);
  EXPECT(!memcmp(first, s.order, sizeof first), "going back to epoch 0 gives another order");
  EXPECT(sampler_bytes(&split, s.options) == 500 * 4 && sampler_bytes(&split, plain.options) == 0, "memory: %zu",
         sampler_bytes(&split, s.options));
  free(s.order); free(other.order); free(seed.order);
  split_free(&split);
}

TEST(data_sampler_uniform, "over epochs every permutation of four samples is equally likely") {
  Split split = data_counting_split(5);
  Sampler s = data_sampler(&split, {1, 1, 1, true, true, 5});
  double count[256] = {}, chi2 = 0;
  const int epochs = 24000, kinds = 24;
  for (int e = 0; e < epochs; e++) {
    sampler_set_epoch(&s, e);
    count[s.order[0] * 64 + s.order[1] * 16 + s.order[2] * 4 + s.order[3]]++;
  }
  int seen = 0;
  for (double n : count) if (n > 0) { seen++; chi2 += (n - epochs / kinds) * (n - epochs / kinds) / (epochs / kinds); }
  EXPECT(seen == kinds && fabs(chi2 - 23) < 6 * sqrt(2 * 23.0),
         "%d permutations, chi-square %.1f with 23 degrees of freedom", seen, chi2);
  free(s.order);
  split_free(&split);
}

TEST(data_sampler_order_without_ranks,
     "the samples of a step do not depend on the number of ranks, nor does their order") {
  // 12 microbatches; rank r of N fills a N + r for a = 0 .. 12/N-1, each with a separate sampler.
  const int64_t B = 2, T = 3, M = 12;
  Split split = data_counting_split(T * 100 + 1);
  const SamplerOptions o = {B, T, M, true, false, 11};
  Sampler one = data_sampler(&split, o);
  sampler_set_epoch(&one, 3);
  const int worlds[] = {1, 2, 3, 4, 6, 12};
  for (int N : worlds)
    for (int64_t step = 0; step < one.steps_per_epoch; step++) {
      int32_t whole[72], parts[72], targets[72];
      memset(parts, -1, sizeof parts);
      for (int64_t m = 0; m < M; m++) microbatch_fill(&one, step, m, whole + m * B * T, targets);
      for (int r = 0; r < N; r++) {
        Sampler mine = data_sampler(&split, o);
        sampler_set_epoch(&mine, 3);
        for (int64_t a = 0; a < M / N; a++)
          microbatch_fill(&mine, step, a * N + r, parts + (a * N + r) * B * T, targets);
        free(mine.order);
      }
      EXPECT(!memcmp(whole, parts, sizeof whole), "%d ranks, step %lld: other samples than on one rank", N,
             (long long)step);
    }
  free(one.order);
  split_free(&split);
}

TEST(data_sampler_distributed_rule, "the epoch is cut or wrapped as PyTorch's DistributedSampler does, at every size") {
  // With B = 1 and one microbatch per rank, rank r of M sees indices[r], indices[r+M], ... of the list below.
  for (int64_t n = 1; n <= 40; n++)
    for (int64_t M = 1; M <= 12 && M <= n; M++)
      for (int drop = 0; drop < 2; drop++) {
        Split split = data_counting_split(n + 1);
        Sampler s = data_sampler(&split, {1, 1, M, true, drop == 1, 9});
        sampler_set_epoch(&s, 2);
        int64_t indices[64], total = n;          // DistributedSampler.__iter__, plainly
        for (int64_t i = 0; i < n; i++) indices[i] = s.order[i];
        if (drop) total = n / M * M;
        else while (total % M) { indices[total] = indices[total - n]; total++; }
        EXPECT(s.steps_per_epoch == total / M, "%lld samples, %lld ranks, drop_last %d: %lld steps, not %lld",
               (long long)n, (long long)M, drop, (long long)s.steps_per_epoch, (long long)(total / M));
        for (int64_t r = 0; r < M; r++)
          for (int64_t k = 0, i = r; i < total; i += M, k++) {
            int32_t input, target;
            microbatch_fill(&s, k, r, &input, &target);
            EXPECT(input == indices[i] && target == indices[i] + 1, "rank %lld, step %lld: sample %d, not %lld",
                   (long long)r, (long long)k, input, (long long)indices[i]);
          }
        free(s.order);
        split_free(&split);
      }
}

TEST(data_corpus_too_short, "a corpus that cannot fill one global batch is rejected in one line, in either mode") {
  for (int drop = 0; drop < 2; drop++) {
    Split split = data_counting_split(8 * 11 + 1);
    Sampler s;
    Error e;
    const SamplerOptions enough = {11, 8, 1, false, drop == 1, 1}, more = {3, 8, 4, false, drop == 1, 1};
    EXPECT(sampler_init(&s, &split, enough, NULL, &e) && s.steps_per_epoch == 1,
           "11 samples do not fill a batch of 11");
    EXPECT(!sampler_init(&s, &split, more, NULL, &e), "11 samples fill a batch of 12");
    EXPECT(e.code == 2 && strstr(e.text, "shorter than one global batch") && strstr(e.text, "11 samples") &&
           strstr(e.text, "takes 12"), "exit code %d: %s", e.code, e.text);
    split.tokens_numel = 3;
    EXPECT(!sampler_init(&s, &split, enough, NULL, &e) && strstr(e.text, "0 samples"), "%s", e.text);
    split.tokens_numel = 9;
    EXPECT(!sampler_init(&s, &split, enough, NULL, &e) &&
           strstr(e.text, " 1 sample of --seq_len 8, and a step takes 11 (1 microbatch of "), "%s", e.text);
    split_free(&split);
  }
}

// ---- validation -----------------------------------------------------------------------------------------------------
TEST(data_eval_windows, "validation windows hold every target of a split once, in order, and padding elsewhere") {
  int32_t inputs[16], targets[16];
  for (int64_t numel = 2; numel <= 50; numel++)
    for (int64_t T = 1; T <= 16; T++) {
      Split split = data_counting_split(numel);
      int64_t next = 1, windows = eval_windows_numel(&split, T);
      for (int64_t w = 0; w < windows + 2; w++) {
        int64_t count = eval_window_fill(&split, T, w, inputs, targets);
        EXPECT(w >= windows ? count == 0 : count == T || (w == windows - 1 && count > 0), "window %lld holds %lld",
               (long long)w, (long long)count);
        for (int64_t t = 0; t < T; t++)
          if (t < count) {
            EXPECT(targets[t] == next && inputs[t] == next - 1, "target %d, not %lld", targets[t], (long long)next);
            next++;
          } else EXPECT(targets[t] == -1 && inputs[t] == 0, "padding is (%d, %d)", inputs[t], targets[t]);
      }
      EXPECT(next == numel, "%lld tokens, windows of %lld: %lld targets", (long long)numel, (long long)T,
             (long long)next - 1);
      split_free(&split);
    }
  Split none = {};
  EXPECT(eval_windows_numel(&none, 8) == 0, "an absent split has windows");
}

// ---- the downloader -------------------------------------------------------------------------------------------------
// Serves GET /MODE/NAME of a directory: good whole; corrupt with one byte changed; short cut at half of the announced
// length; silent never answers; anything else 404. One request per connection.
static void data_serve_one(int client, const char *dir) {
  char request[2048] = "", mode[64] = "", name[64] = "", path[1024], head[256];
  size_t n = 0;
  while (n < sizeof request - 1 && !strstr(request, "\r\n\r\n")) {
    ssize_t got = read(client, request + n, sizeof request - 1 - n);
    if (got <= 0) return;
    request[n += (size_t)got] = 0;
  }
  bool parsed = sscanf(request, "GET /%63[a-z]/%63[a-z.] ", mode, name) == 2;
  if (!strcmp(mode, "silent")) { sleep(30); return; }
  data_format(path, 1024, "%s/%s", dir, name);
  char *body = parsed ? data_read(path, &n) : NULL;
  bool known = body && (!strcmp(mode, "good") || !strcmp(mode, "corrupt") || !strcmp(mode, "short"));
  if (!known) n = 0;
  if (known && !strcmp(mode, "corrupt")) body[n / 2] ^= 1;
  int h =
      snprintf(head, sizeof head, "HTTP/1.0 %s\r\nContent-Length: %zu\r\n\r\n", known ? "200 OK" : "404 Not Found", n);
  bool sent = write(client, head, (size_t)h) == h;
  for (size_t at = 0, end = !strcmp(mode, "short") ? n / 2 : n; sent && at < end;) {
    ssize_t wrote = write(client, body + at, end - at);
    if (wrote <= 0) break;
    at += (size_t)wrote;
  }
  free(body);
}
// The server's process; *port receives its port on 127.0.0.1. 0: no socket is available here.
static pid_t data_serve(const char *dir, int *port) {
  int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at = {};
  socklen_t length = sizeof at;
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (s < 0 || bind(s, (sockaddr *)&at, sizeof at) || listen(s, 16) || getsockname(s, (sockaddr *)&at, &length))
    return 0;
  *port = ntohs(at.sin_port);
  pid_t pid = fork();
  if (pid) { close(s); return pid; }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGCHLD, SIG_IGN);
  for (;;) {
    int client = accept(s, NULL, NULL);
    if (client < 0) continue;
    if (fork() == 0) { prctl(PR_SET_PDEATHSIG, SIGKILL); data_serve_one(client, dir); close(client); _exit(0); }
    close(client);
  }
}

// Runs the downloader into `to`; returns its exit status, its output in `said`.
static int data_download(const char *settings, const char *mode, int port, const char *to, char *said,
                         size_t said_bytes) {
  char command[4096], log[1024];
  data_format(log, 1024, "%s/said", test_tmp());
  snprintf(command, sizeof command, "no_proxy=127.0.0.1 WIKITEXT2_URL=http://127.0.0.1:%d/%s WIKITEXT2_TRIES=1 %s "
           "data/get_wikitext2.sh %s >%s 2>&1", port, mode, settings, to, log);
  int status = system(command);
  size_t n = 0;
  char *text = data_read(log, &n);
  snprintf(said, said_bytes, "%s", text ? text : "");
  free(text);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
static int data_files_in(const char *dir) {      // hidden ones too
  char pattern[1024];
  glob_t found;
  data_format(pattern, 1024, "%s/{*,.[!.]*}", dir);
  int n = glob(pattern, GLOB_BRACE, NULL, &found) == 0 ? (int)found.gl_pathc : 0;
  globfree(&found);
  return n;
}

static void data_test_downloader(const char *tool) {
  // Blob ids as `git hash-object` prints them for the three files made here.
  const char *ids = "WIKITEXT2_BLOB_TRAIN=e284cbc57377301a49650e302748fe1c193042b5 "
                    "WIKITEXT2_BLOB_VALID=1cc285433164f24cf41c9cb2149bd94b49a60575 "
                    "WIKITEXT2_BLOB_TEST=445eba1d5de0caae64e565a030266c0387349973";
  char served[1024], to[1024], settings[512], said[4096], name[64], body[65536];
  int port = 0, status;
  REQUIRE(access("data/get_wikitext2.sh", X_OK) == 0, "no data/get_wikitext2.sh: tests run at the repository's root");
  data_format(served, 1024, "%s/served", test_tmp());
  data_format(to, 1024, "%s/fetched", test_tmp());
  snprintf(settings, sizeof settings, "WIKITEXT2_FETCH=%s %s", tool, ids);
  for (const char *split : split_names) {
    int n = 0;
    for (int i = 0; i < 2000; i++) n += snprintf(body + n, sizeof body - (size_t)n, "%s line %d\n", split, i);
    snprintf(name, sizeof name, "%s.txt", split);
    data_write_text(served, name, body);
  }
  pid_t server = data_serve(served, &port);
  if (server <= 0) SKIP("no local server can be started here");
#define DOWNLOAD(mode) status = data_download(settings, mode, port, to, said, sizeof said)
  DOWNLOAD("nothing");
  EXPECT(status == 3 && strstr(said, "is not there") && strstr(said, "WIKITEXT2_DIR") && !data_files_in(to),
         "404: %d, %s", status, said);
  DOWNLOAD("corrupt");
  EXPECT(status == 4 && strstr(said, "other contents") && !data_files_in(to), "corrupt: %d, %s", status, said);
  DOWNLOAD("short");
  EXPECT((status == 3 || status == 4) && strstr(said, "train.txt") && !data_files_in(to), "cut short: %d, %s", status,
         said);
  snprintf(settings, sizeof settings, "WIKITEXT2_TIMEOUT=1 WIKITEXT2_FETCH=%s %s", tool, ids);
  DOWNLOAD("silent");
  EXPECT(status == 3 && strstr(said, "could not fetch") && !data_files_in(to), "silent: %d, %s", status, said);
  DOWNLOAD("good");
  EXPECT(status == 0 && data_files_in(to) == 3, "good: %d, %d files, %s", status, data_files_in(to), said);
  data_flip_byte(data_path("fetched/valid.txt"), 100);
  DOWNLOAD("good");
  EXPECT(status == 0 && strstr(said, "valid.txt is damaged") && strstr(said, "train.txt is there and whole"),
         "mended: %s", said);
  size_t n_served = 0, n_fetched = 0;
  char *a = data_read(data_path("served/valid.txt"), &n_served),
       *b = data_read(data_path("fetched/valid.txt"), &n_fetched);
  EXPECT(a && b && n_served == n_fetched && !memcmp(a, b, n_served), "the mended file is another");
  free(a);
  free(b);
  kill(server, SIGKILL);
  waitpid(server, NULL, 0);
  DOWNLOAD("good");                              // existing files need no server
  EXPECT(status == 0, "all there, no server: %d, %s", status, said);
  remove(data_path("fetched/test.txt"));
  DOWNLOAD("good");
  EXPECT(status == 3 && strstr(said, "could not fetch") && data_files_in(to) == 2, "server stopped: %d, %s", status,
         said);
  const char *lines = strchr(said, '\n');       // two files found, one line of error
  EXPECT(lines && strchr(lines + 1, '\n') && !strchr(strchr(strchr(lines + 1, '\n') + 1, '\n') + 1, '\n'),
         "many words: %s", said);
#undef DOWNLOAD
}
TEST(data_downloader_curl,
     "the fetch script keeps only whole, right files: 404, damage, silence, no server; with curl") {
  if (system("command -v curl >/dev/null 2>&1")) SKIP("curl is not installed");
  data_test_downloader("curl");
}
TEST(data_downloader_wget, "the same with wget") {
  if (system("command -v wget >/dev/null 2>&1")) SKIP("wget is not installed");
  data_test_downloader("wget");
}
