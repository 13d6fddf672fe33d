// test_parquet.h: tables beside the same rows as .jsonl; conversations and articles as --encode has them. The tables
// are pyarrow's (dev/make_parquet_fixture.py). Follows test_encode.h.

static inline const char *parquet_fixture(const char *name, const char *end = "parquet") {
  static char path[4][128];
  static int turn;
  char *to = path[turn++ % 4];
  snprintf(to, sizeof path[0], "dev/fixtures/parquet/%s.%s", name, end);
  return to;
}
TEST(parquet_encodes_as_jsonl,
     "tables of pyarrow (plain and by dictionary, nulls and none, pages of both versions, Snappy and zstd, several row "
     "groups) have the ids of the same rows in a .jsonl, for training and held out, on 1 and 3 threads") {
  static const struct { const char *name, *rows, *column; } table[] = {
      {"plain", "rows", ""}, {"dictionary", "rows", ""}, {"v2", "rows", "text"}, {"v2_plain", "rows", ""},
      {"required", "required", ""}, {"named", "rows", "body"}};
  char out[600];
  DataError e;
  if (!library_open(LIBRARY_SNAPPY, "", &e)) SKIP("libsnappy.so.1 is not here");
  for (const char *rows : {"rows", "required"}) {
    EncodeOptions o = encode_options(cli_path(rows), parquet_fixture(rows, "jsonl"), 2);
    REQUIRE(encode_run(&o, &e), "%s: %s", rows, e.text);
  }
  for (const auto &row : table) for (int threads = 1; threads < 4; threads += 2) {
    snprintf(out, sizeof out, "%s/%s%d", test_tmp(), row.name, threads);
    EncodeOptions o = encode_options(out, parquet_fixture(row.name), threads);
    o.column = row.column;
    REQUIRE(encode_run(&o, &e), "%s: %s", row.name, e.text);
    for (const char *split : {"train", "val"}) {
      int64_t n;
      int32_t *want = encode_read(cli_path(row.rows), split, &n);
      EXPECT(n > 10, "%s: %lld ids", split, (long long)n);
      encode_expect(row.name, out, split, want, n);
      free(want);
    }
  }
}

// All rows of a table, hashed; how many there were. False: it was refused.
static inline bool parquet_hash(const char *path, uint64_t *hash, int64_t *rows, DataError *e) {
  static uint8_t text[1 << 17];
  TextStream s;
  int64_t n = 0, got = 1;
  *e = {};
  if (!text_stream_open(&s, path, "text", e)) return false;
  while ((got = text_stream_read(&s, text + n, (int64_t)sizeof text - n, e)) > 0) n += got;
  text_stream_close(&s);
  *hash = data_hash(0, text, (size_t)n);
  *rows = 0;
  for (int64_t i = 0; i < n; i++) *rows += !text[i];
  return got == 0;
}
TEST(parquet_damaged_is_refused,
     "a table cut anywhere is refused; with any byte changed it is refused or read to its end, and where pages have "
     "checksums no other text is read; what is not read is refused by name") {
  static uint8_t bytes[1 << 16];
  char out[600];
  DataError e;
  if (!library_open(LIBRARY_SNAPPY, "", &e)) SKIP("libsnappy.so.1 is not here");
  uint64_t whole, hash;
  int64_t rows, n;
  for (const char *name : {"plain", "dictionary", "v2", "v2_plain", "required"}) {
    char *file = file_get(parquet_fixture(name), sizeof bytes, &n);
    REQUIRE(file && parquet_hash(parquet_fixture(name), &whole, &rows, &e) && rows == 230, "%s: %s", name, e.text);
    const char *path = cli_path("x.parquet");
    int32_t footer;                              // it has no checksum
    memcpy(&footer, file + n - 8, 4);
    for (int64_t cut = 0; cut < n; cut += 307) {
      cli_write(path, file, (size_t)cut);
      EXPECT(!parquet_hash(path, &hash, &rows, &e) && strstr(e.text, "x.parquet"), "%s cut at %lld: '%s'", name,
             (long long)cut, e.text);
    }
    int refused = 0, tries = 0;
    for (int64_t at = 0; at < n; at += 1 + (int64_t)data_below(data_random(3, (uint64_t)at), 48), tries++) {
      memcpy(bytes, file, (size_t)n);
      bytes[at] ^= (uint8_t)(1 << at % 8);
      cli_write(path, bytes, (size_t)n);
      const bool ok = parquet_hash(path, &hash, &rows, &e);
      EXPECT(ok || (strstr(e.text, "x.parquet") && !strchr(e.text, '\n')), "%s, byte %lld: '%s'", name, (long long)at,
             e.text);
      const bool summed = !strcmp(name, "dictionary") && at < n - 8 - footer;
      EXPECT(!ok || !summed || hash == whole, "byte %lld of %lld: other text", (long long)at, (long long)n);
      refused += !ok;
    }
    EXPECT(refused > tries / 20, "%s: %d of %d refused", name, refused, tries);
    free(file);
  }
  static const struct { const char *name, *column, *has; } table[] = {
      {"gzip", "", "gzip.parquet is compressed by GZIP; expected: Snappy, Zstandard"},
      {"delta", "", "column text has encoding 6; expected: plain or by dictionary"},
      {"numbers", "", "has no column of strings, and none is text: name the one"},
      {"numbers", "id", "column id is no strings"}, {"numbers", "list", "column list is no strings"},
      {"named", "", "has several columns of strings, and none is text: name the one to read by --text_column; it has: "
       "id, meta, body, language"},
      {"plain", "texts", "has no column texts; it has: id, meta, text, language"},
      {"plain", "meta", "column meta is no strings"},
      {"messages", "", "messages.parquet has records in column messages, such as conversations, which are not read"},
      {"dialog", "", "or name the column of strings to train on by --text_column; it has: dialog, source"}};
  for (const auto &row : table) {
    snprintf(out, sizeof out, "%s/o%d", test_tmp(), (int)(&row - table));
    EncodeOptions o = encode_options(out, parquet_fixture(row.name), 1);
    o.column = row.column;
    EXPECT(!encode_run(&o, &e) && strstr(e.text, row.has), "%s %s: '%s'", row.name, row.column, e.text);
  }
  EncodeOptions o = encode_options(cli_path("by-name"), parquet_fixture("dialog"), 1);
  o.column = "source";
  EXPECT(encode_run(&o, &e), "strings beside records, by their name: '%s'", e.text);
  o = encode_options(cli_path("o"), parquet_fixture("rows", "jsonl"), 1);
  o.column = "text", o.column_given = true;
  EXPECT(!encode_run(&o, &e) && strstr(e.text, "--text_column text belongs to .parquet files"), "'%s'", e.text);
}

TEST(encode_conversations,
     "conversations are encoded with a mask: ids and trained tokens of each line as training in memory has them, for "
     "any threads, and to the same bytes after kills; they train as one stream; texts beside them are refused") {
  static int32_t want[2][1 << 16];
  static const char *const form = "dev/fixtures/chat_qwen2.5";
  char command[2048], out[600], why[512], *end;
  DataError e;
  Tokenizer t;
  int64_t bytes, n = 0;
  REQUIRE(tokenizer_load_any(&t, form, why, sizeof why), "%s", why);
  const ChatOptions how = {"qwen2.5", chat_date, "", false};
  const Chat chat = chat_open(&how, &t);
  char *text = file_get("dev/fixtures/chat.jsonl", 1 << 20, &bytes);
  REQUIRE(text, "no fixture");
  for (char *line = text; *line; line = end + (*end != 0)) {
    ChatTokens k = {};
    end = strchrnul(line, '\n');
    if (end > line) REQUIRE(chat_line(&chat, &k, (const uint8_t *)line, (size_t)(end - line)), "%s", k.fault);
    for (int64_t i = 0; i < k.count; i++, n++) want[0][n] = k.ids[i], want[1][n] = k.trained[i] ? k.ids[i] : -1;
    free(k.ids);
    free(k.trained);
  }
  free(text);
  EncodeOptions o = encode_options(cli_path("whole"), "dev/fixtures/chat.jsonl", 1);
  o.tokenizer = form, o.chat = how, o.shard_numel = 700, o.block_bytes = 900, o.val_data = o.data;
  REQUIRE(encode_run(&o, &e), "%s", e.text);
  for (int targets = 0; targets < 2; targets++)
    encode_expect("chats", o.out, "train", want[targets], n, targets);
  int kills = 0;
  for (int turn = 0; turn < 3; turn++) {
    snprintf(out, sizeof out, "%s/killed%d", test_tmp(), turn);
    o.out = out;
    for (int run = 0, status = 1; status; run++) {
      fflush(NULL);
      const int child = fork();
      if (!child) {
        encode_writes_left = 3 + (int)data_below(data_random((uint64_t)turn + 9, (uint64_t)run), 40);
        file_hook = encode_kill;
        o.threads = 1 + run % 3;
        _exit(encode_run(&o, &e) ? 0 : 7);
      }
      waitpid(child, &status, 0);
      REQUIRE(WIFEXITED(status) && (!status || WEXITSTATUS(status) == 9) && run < 2000, "run %d ended with %x", run,
              status);
      kills += status != 0;
    }
    snprintf(command, sizeof command, "cd %s && diff -r whole killed%d", test_tmp(), turn);
    EXPECT(!system(command), "turn %d: other files", turn);
  }
  EXPECT(kills > 10, "%d kills", kills);
  o.out = cli_path("mixed"), o.data = "dev/fixtures/chat.jsonl,dev/fixtures/tokenizer_gpt2.txt", o.val_data = "";
  EXPECT(!encode_run(&o, &e) && strstr(e.text, "is no conversations, which the first file has"), "%s", e.text);
  o.data = "dev/fixtures/chat.jsonl", o.tokenizer = "", o.out = cli_path("none");
  EXPECT(!encode_run(&o, &e) && strstr(e.text, "are encoded by a model's own tokenizer"), "%s", e.text);
  tokenizer_free(&t);
  CliRun r;
  const char *model = "--n_layer 1 --n_head 2 --n_embd 16 --seq_len 64 --batch_size 1 --global_batch 2 --max_steps 3 "
                      "--sample_tokens 0 --save_every -1 --report off --threads 1 --tokenizer";
  snprintf(command, sizeof command, "for i in $(seq 30); do cat dev/fixtures/chat.jsonl; done | gzip > %s",
           cli_path("chats.jsonl.gz"));
  REQUIRE(!system(command), "no gzip");
  CLI_RUN(&r, "%s %s %s --data %s --cache %s --out %s", cli_ranks(2), model, form, cli_path("chats.jsonl.gz"),
          cli_path("cache"), cli_path("run"));
  cli_expect_done(&r, "conversations, packed");
  EXPECT(strstr(r.text, "are one stream in token files, as --pack stream has them"), "%s", r.text);
  cli_free(&r);
  CLI_RUN(&r, "%s %s %s --data %s --cache %s --out %s --pack whole", cli_program(), model, form,
          cli_path("chats.jsonl.gz"), cli_path("cache"), cli_path("run"));
  cli_expect_refusal(&r, "whole", EXIT_USAGE, "--pack: conversations that are encoded into files are one stream; ...");
  cli_free(&r);
}

TEST(encode_divides_articles,
     "WikiText's articles are documents of --encode where they are of training in memory: the same ids, wherever "
     "blocks of the text end") {
  static char text[1 << 16];
  DataError e;
  Corpus c;
  char out[600];
  size_t n = 0;
  mkdir(cli_path("wiki"), 0777);
  for (int split = 0; split < 2; split++) {
    n = (size_t)snprintf(text, sizeof text, " \n");
    for (int i = 0; i < 40; i++) {
      n += (size_t)snprintf(text + n, sizeof text - n, " = Title %d = \n \n", i);
      n += encode_text(text + n, sizeof text - n, i % 5, (uint64_t)(i + split));
      n += (size_t)snprintf(text + n, sizeof text - n, i % 3 ? " \n = = Part = = \n x = y \n \n" : "\n");
    }
    cli_write(cli_path(split ? "wiki/valid.txt" : "wiki/train.txt"), text, n);
  }
  CorpusOptions co = data_options(cli_path("wiki"));
  REQUIRE(corpus_load(&c, co, &e), "%s", e.text);
  REQUIRE(tokenizer_save(&c.tokenizer, cli_path("tokenizer.json"), out, sizeof out), "%s", out);
  const Split *s = &c.split[SPLIT_TRAIN];
  int32_t *want = (int32_t *)malloc(4 * (size_t)s->tokens_numel);
  int marks = 0;
  split_read(s, 0, s->tokens_numel, want);
  for (int64_t i = 0; i < s->tokens_numel; i++) marks += want[i] == 0;
  EXPECT(marks == 40, "%d articles", marks);
  char train[600], valid[600], tokenizer[600];
  snprintf(train, sizeof train, "%s", cli_path("wiki/train.txt"));
  snprintf(valid, sizeof valid, "%s", cli_path("wiki/valid.txt"));
  snprintf(tokenizer, sizeof tokenizer, "%s", cli_path("tokenizer.json"));
  for (int block = 1500; block < 4000; block += 37) {
    snprintf(out, sizeof out, "%s/out%d", test_tmp(), block);
    EncodeOptions o = encode_options(out, train, 1);
    o.val_data = valid, o.tokenizer = tokenizer, o.block_bytes = block, o.shard_numel = 100000;
    REQUIRE(encode_run(&o, &e), "%s", e.text);
    encode_expect("articles", out, "train", want, s->tokens_numel);
  }
  free(want);
  corpus_free(&c);
}
