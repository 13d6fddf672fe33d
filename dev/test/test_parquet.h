// test_parquet.h: tables of text and of records beside the same rows as .jsonl; conversations and articles as --encode
// has them. The tables are pyarrow's (dev/make_parquet_fixture.py). Follows test_encode.h.

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
  Error e;
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

// The records of a stream as a list of JSON, read `piece` bytes at a time; NULL: rejected.
static inline cJSON *parquet_records(const char *path, int64_t piece, Error *e) {
  static char text[1 << 17];
  TextStream s;
  int64_t n = 0, got = 1;
  *e = {};
  if (!text_stream_open(&s, path, "", e)) return NULL;
  while ((got = text_stream_read(&s, (uint8_t *)text + n, min64(piece, (int64_t)sizeof text - n), e)) > 0) n += got;
  text_stream_close(&s);
  cJSON *list = got < 0 ? NULL : cJSON_CreateArray();
  for (const char *at = text, *end; list && at < text + n; at = end + 1) {
    end = (const char *)memchr(at, '\n', (size_t)(text + n - at));
    cJSON *record = end ? cJSON_ParseWithLength(at, (size_t)(end - at)) : NULL;
    if (!record) { fail_with(e, 1, "no JSON at byte %lld", (long long)(at - text)); break; }
    cJSON_AddItemToArray(list, record);
  }
  return list;
}
TEST(parquet_records_are_jsonl,
     "the columns of a schema are records as their .jsonl has them: lists of structures and of lists, numbers, true "
     "and false, nulls and empty lists in every place, older spellings of lists, row groups of one row, pages of both "
     "versions; other columns, also of types that are not read, are left out; numbers are spelled as Python does") {
  static const struct { double d; const char *text; } numbers[] = {
      {1, "1.0"}, {0.1, "0.1"}, {-0.0, "-0.0"}, {1e5, "100000.0"}, {123456.75, "123456.75"}, {1e16, "1e+16"},
      {1e15, "1000000000000000.0"}, {1.5e300, "1.5e+300"}, {0.0001, "0.0001"}, {1e-5, "1e-05"},
      {(double)0.1f, "0.10000000149011612"}};
  for (const auto &x : numbers) {
    char text[40];
    parquet_number(text, x.d);
    EXPECT(!strcmp(text, x.text), "%s is %s", x.text, text);
  }
  static const struct { const char *name, *rows; } table[] = {
      {"nested_plain", "nested"}, {"nested_v2", "nested"}, {"nested_item", "nested"}, {"chats", "chats"},
      {"chats_required", "chats_required"}, {"chats_older", "chats_required"}, {"alpaca", "alpaca"}};
  Error e;
  if (!library_open(LIBRARY_SNAPPY, "", &e)) SKIP("libsnappy.so.1 is not here");
  for (const auto &row : table) for (int64_t piece = 7; piece < 10000; piece *= 999) {
    cJSON *want = parquet_records(parquet_fixture(row.rows, "jsonl"), 1 << 16, &e), *member, *x;
    cJSON *got = parquet_records(parquet_fixture(row.name), piece, &e);
    REQUIRE(want && got && !e.text[0], "%s: '%s'", row.name, e.text);
    EXPECT(cJSON_GetArraySize(got) == cJSON_GetArraySize(want) && cJSON_GetArraySize(got) > 11, "%s: %d records",
           row.name, cJSON_GetArraySize(got));
    cJSON_ArrayForEach(x, want) cJSON_DeleteItemFromObject(x, "text");         // beside Alpaca: no key of it
    int i = 0;
    cJSON_ArrayForEach(member, want) {
      char *is = cJSON_PrintUnformatted(cJSON_GetArrayItem(got, i));
      EXPECT(cJSON_Compare(member, cJSON_GetArrayItem(got, i), true), "%s, record %d: %s", row.name, i, is);
      cJSON_free(is);
      i++;
    }
    cJSON_Delete(want);
    cJSON_Delete(got);
  }
}
TEST(parquet_encodes_conversations,
     "tables of conversations and of questions have the ids and masks of their .jsonl, for training and held out, on 1 "
     "and 3 threads; of two schemas --fields takes one; a row that is none is named") {
  static const struct { const char *name, *rows; } table[] = {
      {"chats", "chats"}, {"chats_required", "chats_required"}, {"chats_older", "chats_required"},
      {"alpaca", "alpaca"}};
  char out[600], command[2048];
  Error e;
  if (!library_open(LIBRARY_SNAPPY, "", &e)) SKIP("libsnappy.so.1 is not here");
  for (const auto &row : table) for (int threads = 0; threads < 4; threads += threads ? 2 : 1) {
    snprintf(out, sizeof out, "%s/%s%d", test_tmp(), row.name, threads);
    const char *data = threads ? parquet_fixture(row.name) : parquet_fixture(row.rows, "jsonl");
    EncodeOptions o = encode_options(out, data, threads ? threads : 2);
    o.tokenizer = "dev/fixtures/chat_qwen2.5", o.chat = {"qwen2.5", chat_date, "", false};
    o.block_bytes = 500;
    REQUIRE(encode_run(&o, &e), "%s: %s", data, e.text);
    snprintf(command, sizeof command, "cd %s && for f in train_000001.bin val_000000.bin; do cmp %s0/$f %s/$f || "
             "exit 1; done", test_tmp(), row.name, out);
    EXPECT(!system(command), "%s on %d threads: other ids or masks", row.name, threads);
  }
  EncodeOptions o = encode_options(cli_path("none"), parquet_fixture("nested_plain"), 1);
  o.tokenizer = "dev/fixtures/chat_qwen2.5", o.chat = {"qwen2.5", chat_date, "", false};
  EXPECT(!encode_run(&o, &e) && strstr(e.text, "nested_plain.parquet, row 1: messages is empty"), "'%s'", e.text);
  o.out = cli_path("chosen"), o.data = parquet_fixture("two_forms"), o.chat.fields = "messages=chosen";
  EXPECT(encode_run(&o, &e), "'%s'", e.text);
}

// All rows of a table, hashed; how many there were. False: it was rejected.
static inline bool parquet_hash(const char *path, uint64_t *hash, int64_t *rows, Error *e,
                                const char *column = "text") {
  static uint8_t text[1 << 17];
  TextStream s;
  int64_t n = 0, got = 1;
  *e = {};
  if (!text_stream_open(&s, path, column, e)) return false;
  while ((got = text_stream_read(&s, text + n, (int64_t)sizeof text - n, e)) > 0) n += got;
  text_stream_close(&s);
  *hash = data_hash(0, text, (size_t)n);
  *rows = 0;
  for (int64_t i = 0; i < n; i++) *rows += text[i] == (*column ? 0 : '\n');
  return got == 0;
}
TEST(parquet_damaged_is_rejected,
     "a table cut anywhere is rejected; with any byte changed it is rejected or read to its end, and where pages have "
     "checksums no other text is read; what is not read is rejected by name") {
  static uint8_t bytes[1 << 16];
  char out[600];
  Error e;
  if (!library_open(LIBRARY_SNAPPY, "", &e)) SKIP("libsnappy.so.1 is not here");
  uint64_t whole, hash;
  int64_t rows, n;
  for (const char *name : {"plain", "dictionary", "v2", "v2_plain", "required", "nested_plain", "nested_item",
                           "chats"}) {
    char *file = file_get(parquet_fixture(name), sizeof bytes, &n);
    const bool records = !strncmp(name, "nested", 6) || !strcmp(name, "chats"), sums = !strcmp(name, "nested_plain");
    const char *column = records ? "" : "text";
    REQUIRE(file && parquet_hash(parquet_fixture(name), &whole, &rows, &e, column), "%s: %s", name, e.text);
    EXPECT(rows == (!records ? 230 : !strcmp(name, "chats") ? 12 : 60), "%s: %lld rows", name, (long long)rows);
    const char *path = cli_path("x.parquet");
    int32_t footer;                              // it has no checksum
    memcpy(&footer, file + n - 8, 4);
    for (int64_t cut = 0; cut < n; cut += 307) {
      cli_write(path, file, (size_t)cut);
      EXPECT(!parquet_hash(path, &hash, &rows, &e, column) && strstr(e.text, "x.parquet"), "%s cut at %lld: '%s'", name,
             (long long)cut, e.text);
    }
    int rejected = 0, tries = 0;
    for (int64_t at = 0; at < n; at += 1 + (int64_t)data_below(data_random(3, (uint64_t)at), 48), tries++) {
      memcpy(bytes, file, (size_t)n);
      bytes[at] ^= (uint8_t)(1 << at % 8);
      cli_write(path, bytes, (size_t)n);
      const bool ok = parquet_hash(path, &hash, &rows, &e, column);
      EXPECT(ok || (strstr(e.text, "x.parquet") && !strchr(e.text, '\n')), "%s, byte %lld: '%s'", name, (long long)at,
             e.text);
      const bool summed = (sums || !strcmp(name, "dictionary")) && at < n - 8 - footer;
      EXPECT(!ok || !summed || hash == whole, "byte %lld of %lld: other text", (long long)at, (long long)n);
      rejected += !ok;
    }
    EXPECT(rejected > tries / 20, "%s: %d of %d rejected", name, rejected, tries);
    free(file);
  }
  static const struct { const char *name, *column, *has; } table[] = {
      {"gzip", "", "gzip.parquet is compressed by GZIP; expected: Snappy, Zstandard"},
      {"delta", "", "column text has encoding 6; expected: plain or by dictionary"},
      {"numbers", "", "has no column of strings, and none is text: name the one"},
      {"numbers", "id", "column id is no strings"}, {"numbers", "list", "column list is no strings"},
      {"named", "", "has several columns of strings, and none is text: name the one to read by --text_column, or those "
       "of records by --fields; it has: id, meta, body, language"},
      {"plain", "texts", "has no column texts; it has: id, meta, text, language"},
      {"plain", "meta", "column meta is no strings"},
      {"two_forms", "", "it is a preference (chosen and rejected) beside messages: --loss dpo trains on it"},
      {"map", "", "map.parquet: column messages has values of another kind than text, numbers, true and false"},
      {"messages", "", "messages.parquet, row 1: has messages, but no chat template is known"},
      {"dialog", "", "by --fields messages=dialog, or a column of strings to train on by --text_column; it has: dialog,"
       " source"}};
  for (const auto &row : table) {
    snprintf(out, sizeof out, "%s/o%d", test_tmp(), (int)(&row - table));
    EncodeOptions o = encode_options(out, parquet_fixture(row.name), 1);
    o.column = row.column;
    EXPECT(!encode_run(&o, &e) && strstr(e.text, row.has), "%s %s: '%s'", row.name, row.column, e.text);
  }
  EncodeOptions o = encode_options(cli_path("by-name"), parquet_fixture("dialog"), 1);
  o.column = "source";
  EXPECT(encode_run(&o, &e), "strings beside records, by their name: '%s'", e.text);
  o = encode_options(cli_path("o-text"), parquet_fixture("messages"), 1);
  o.column = "text";
  EXPECT(encode_run(&o, &e), "text beside conversations, by its name: '%s'", e.text);
  o = encode_options(cli_path("o"), parquet_fixture("rows", "jsonl"), 1);
  o.column = "text", o.column_given = true;
  EXPECT(!encode_run(&o, &e) && strstr(e.text, "--text_column text belongs to .parquet files"), "'%s'", e.text);
}

TEST(encode_conversations,
     "conversations are encoded with a mask: ids and trained tokens of each line as training in memory has them, for "
     "any threads, and to the same bytes after kills; they train as one stream; texts beside them are rejected") {
  static int32_t want[2][1 << 16];
  static const char *const form = "dev/fixtures/chat_qwen2.5";
  char command[2048], out[600], *end;
  Error why = {};
  Error e;
  Tokenizer t;
  int64_t bytes, n = 0;
  REQUIRE(tokenizer_load_any(&t, form, &why), "%s", why.text);
  const ChatOptions how = {"qwen2.5", chat_date, "", false};
  const Chat chat = chat_open(&how, &t);
  char *text = file_get("dev/fixtures/chat.jsonl", 1 << 20, &bytes);
  REQUIRE(text, "no fixture");
  for (char *line = text; *line; line = end + (*end != 0)) {
    ChatTokens k = {};
    end = strchrnul(line, '\n');
    if (end > line) REQUIRE(chat_line(&chat, &k, (const uint8_t *)line, (size_t)(end - line)), "%s", k.fault.text);
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
  CLI_RUN(&r, "%s %s %s --data %s --cache %s --out %s --pack stream", cli_ranks(2), model, form,
          cli_path("chats.jsonl.gz"), cli_path("cache"), cli_path("run"));
  cli_expect_done(&r, "conversations, packed");
  EXPECT(strstr(r.text, "are one stream in token files, as --pack stream has them"), "%s", r.text);
  cli_free(&r);
  CLI_RUN(&r, "%s %s %s --data %s --cache %s --out %s --pack stream --too_long drop", cli_program(), model, form,
          cli_path("chats.jsonl.gz"), cli_path("cache"), cli_path("run"));
  cli_expect_rejection(&r, "whole", EXIT_USAGE, "--too_long belongs to --pack whole, not to stream");
  cli_free(&r);
}

TEST(encode_divides_articles,
     "WikiText's articles are documents of --encode where they are of training in memory: the same ids, wherever "
     "blocks of the text end") {
  static char text[1 << 16];
  Error e;
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
  REQUIRE(tokenizer_save(&c.tokenizer, cli_path("tokenizer.json"), &e), "%s", e.text);
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
