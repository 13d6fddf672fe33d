// test_encode.h: --encode beside encoding in memory; killed and continued; what is no text. Follows test_shards.h.

static inline void encode_quiet(const char *line) { (void)line; }
static inline EncodeOptions encode_options(const char *out, const char *data, int threads) {
  EncodeOptions o = {};
  o.out = out, o.data = data, o.val_data = o.column = "", o.tokenizer = "dev/fixtures/tokenizer_gpt2";
  o.vocab_size = 300, o.threads = threads, o.say = encode_quiet;
  o.chat = ChatOptions{"auto", chat_date, "none is beside it", false};
  o.block_bytes = 3000, o.shard_numel = 1111, o.save_bytes = 2000;
  return o;
}
// Some sentences, with much white space and characters of several bytes in between: `lines` of them.
static inline size_t encode_text(char *text, size_t room, int lines, uint64_t key) {
  static const char *const words[] = {" the", " fox", "  ", "\t", "n't", " 1984", "\xc3\xa9", " \xe6\x97\xa5", "\n\n",
                                      "!?", "a"};
  size_t n = 0;
  for (int i = 0; i < lines; i++) {
    for (int k = 0; k < 12; k++)
      n += (size_t)snprintf(text + n, room - n, "%s", words[data_below(data_random(key, (uint64_t)(i * 13 + k)), 11)]);
    n += (size_t)snprintf(text + n, room - n, "\n");
  }
  return n;
}
// A .jsonl line of a text.
static inline void encode_json(FILE *f, const char *text) {
  cJSON *json = cJSON_CreateObject();
  cJSON_AddStringToObject(json, "id", "x");
  cJSON_AddStringToObject(json, "text", text);
  char *line = cJSON_PrintUnformatted(json);
  fprintf(f, "%s\n", line);
  cJSON_free(line);
  cJSON_Delete(json);
}
// All ids of OUT's shards of a split, malloc'ed; targets: -1 where they are not trained on.
static inline int32_t *encode_read(const char *out, const char *name, int64_t *n, bool targets = false) {
  char pattern[1100];
  snprintf(pattern, sizeof pattern, "%s/%s_*.bin", out, name);
  Found f = {};
  Split s = {};
  Error e = {};
  *n = 0;
  f.val_data = "";
  const bool val = !strcmp(name, "val");
  const DataNames *files = &f.tokens[val ? SPLIT_VALID : SPLIT_TRAIN];
  if (!find_token_element(&f, pattern, val, &e)) { found_free(&f); return NULL; }
  s.file = (TokenFile *)calloc((size_t)files->count, sizeof(TokenFile));
  s.files = files->count;
  for (int i = 0; i < s.files; i++) data_format(s.file[i].path, DATA_PATH_BYTES, "%s", files->name[i]);
  EXPECT(split_open_files(&s, 1 << 24, &e), "%s", e.text);
  int32_t *ids = (int32_t *)malloc(4 * (size_t)s.tokens_numel + 4);
  split_read(&s, 0, *n = s.tokens_numel, ids, targets);
  split_free(&s);
  found_free(&f);
  return ids;
}
static inline void encode_expect(const char *what, const char *out, const char *name, const int32_t *want, int64_t n,
                                 bool targets = false) {
  int64_t got;
  int32_t *ids = encode_read(out, name, &got, targets), at = 0;
  while (at < n && at < got && ids[at] == want[at]) at++;
  EXPECT(got == n && at == n, "%s: %s: %lld ids, expected %lld; the first %d are the same", what, name, (long long)got,
         (long long)n, at);
  free(ids);
}

TEST(encode_equals_in_memory,
     "texts and .jsonl, plain, .gz and .zst, as files and as a directory, encoded by blocks on 1 and 3 threads, have "
     "the ids of encoding each document whole, with the document token before or after it; training takes OUT") {
  static char text[1 << 17];
  static int32_t want[1 << 18];
  char command[4096], out[600];
  Error error = {};
  Tokenizer t;
  Error e;
  REQUIRE(tokenizer_load_any(&t, "dev/fixtures/tokenizer_gpt2", &error), "%s", error.text);
  const int32_t mark = chat_token(&t, "<|endoftext|>");
  REQUIRE(mark >= 0, "no document token");
  mkdir(cli_path("in"), 0777);
  int64_t n = 0;
  const size_t one = encode_text(text, sizeof text, 300, 1);
  cli_write(cli_path("in/a.txt"), text, one);
  want[n++] = mark;
  n += tokenizer_encode(&t, (const uint8_t *)text, one, want + n);
  FILE *f = fopen(cli_path("in/b.jsonl"), "w");
  for (int i = 0; i < 150; i++) {
    size_t bytes = encode_text(text, sizeof text, i % 40 == 39 ? 120 : i % 4, (uint64_t)i + 2);
    if (i % 7 == 0) fputs("\n", f);
    text[bytes] = 0;
    encode_json(f, text);
    want[n++] = mark;
    n += tokenizer_encode(&t, (const uint8_t *)text, bytes, want + n);
  }
  fclose(f);
  const bool zstd = !system("command -v zstd > /dev/null");
  snprintf(command, sizeof command, "cd %s && mkdir packed && gzip -c in/a.txt > packed/a.txt.gz && %s in/b.jsonl > "
           "packed/b.jsonl.%s", test_tmp(), zstd ? "zstd -qc" : "gzip -c", zstd ? "zst" : "gz");
  REQUIRE(!system(command), "no packed files");
  snprintf(command, sizeof command, "%s,%s", cli_path("in/a.txt"), cli_path("in/b.jsonl"));
  const char *const data[] = {cli_path("in"), command, cli_path("packed")};
  for (int turn = 0; turn < 6; turn++) {
    snprintf(out, sizeof out, "%s/out%d", test_tmp(), turn);
    EncodeOptions o = encode_options(out, data[turn % 3], turn < 3 ? 1 : 3);
    o.val_data = "dev/fixtures/tokenizer_gpt2.txt";
    REQUIRE(encode_run(&o, &e), "%s: %s", data[turn % 3], e.text);
    encode_expect(data[turn % 3], out, "train", want, n);
    REQUIRE(encode_run(&o, &e), "once more: %s", e.text);        // there is nothing left to do
    encode_expect("once more", out, "train", want, n);
  }
  int64_t m = 0;
  for (int64_t i = 1; i < n; i++) want[m++] = want[i];           // no text of the fixture has the token
  want[m++] = mark;
  snprintf(out, sizeof out, "%s", cli_path("behind"));
  EncodeOptions o = encode_options(out, data[0], 2);
  o.documents = DOCUMENTS_BEHIND, o.val_data = cli_path("in/a.txt");
  REQUIRE(encode_run(&o, &e), "%s", e.text);
  encode_expect("behind", out, "train", want, m);
  Corpus c;
  CorpusOptions co = data_options(out);
  co.tokenizer = out, co.vocab_size = t.vocab_size;
  REQUIRE(corpus_load(&c, co, &e), "%s", e.text);
  EXPECT(c.split[SPLIT_TRAIN].tokens_numel == m && c.split[SPLIT_VALID].tokens_numel > 1000 && c.has_tokenizer,
         "%lld and %lld tokens", (long long)c.split[SPLIT_TRAIN].tokens_numel,
         (long long)c.split[SPLIT_VALID].tokens_numel);
  corpus_free(&c);
  tokenizer_free(&t);
}

TEST(encode_directory_has_splits,
     "of a directory, files named val... are for validation, test... and .md left out; a file that is named is taken") {
  int32_t want[2][64];
  int64_t n[2];
  char one[600];
  Error error = {};
  Tokenizer t;
  Error e;
  REQUIRE(tokenizer_load_any(&t, "dev/fixtures/tokenizer_gpt2", &error), "%s", error.text);
  mkdir(cli_path("in"), 0777);
  static const char *const names[] = {"words.txt", "validation-0.txt", "test-0.txt", "README.md"};
  static const char *const texts[] = {"the fox is here", "the other one", "not this", "nor this"};
  for (int i = 0; i < 4; i++) {
    snprintf(one, sizeof one, "%s/in/%s", test_tmp(), names[i]);
    cli_write(one, texts[i], strlen(texts[i]));
    if (i > 1) continue;
    want[i][0] = chat_token(&t, "<|endoftext|>");
    n[i] = 1 + tokenizer_encode(&t, (const uint8_t *)texts[i], strlen(texts[i]), want[i] + 1);
  }
  EncodeOptions o = encode_options(cli_path("out"), cli_path("in"), 1);
  REQUIRE(encode_run(&o, &e), "%s", e.text);
  encode_expect("directory", o.out, "train", want[0], n[0]);
  encode_expect("directory", o.out, "val", want[1], n[1]);
  snprintf(one, sizeof one, "%s/in/validation-0.txt", test_tmp());
  o.out = cli_path("named"), o.data = one;
  REQUIRE(encode_run(&o, &e), "%s", e.text);
  encode_expect("named", o.out, "train", want[1], n[1]);
  tokenizer_free(&t);
}

static int encode_writes_left;
static inline int encode_kill(FileOp op, const char *path) {
  (void)op, (void)path;
  if (!--encode_writes_left) _exit(9);           // as kill -9 here: nothing is cleaned up
  return 0;
}
TEST(encode_goes_on,
     "ended at random between two writes, as often as it takes, an encoding leaves the bytes of one that was not; "
     "held-out documents are whole and the same; another set of files or options is rejected") {
  static char text[1 << 16];
  char command[2048], out[600];
  Error e;
  FILE *f = fopen(cli_path("a.jsonl"), "w");
  for (int i = 0; i < 401; i++) {                // so that the text after them is held out
    text[encode_text(text, sizeof text, i % 5, (uint64_t)i)] = 0;
    encode_json(f, text);
  }
  fclose(f);
  cli_write(cli_path("b.txt"), text, encode_text(text, sizeof text, 300, 7));
  snprintf(command, sizeof command, "cd %s && gzip -k a.jsonl && mv a.jsonl.gz c.jsonl.gz", test_tmp());
  REQUIRE(!system(command), "no gzip");
  const char *const list = "@/a.jsonl,@/b.txt,@/c.jsonl.gz";
  snprintf(out, sizeof out, "%s", cli_path("whole"));
  char data[1500];
  snprintf(data, sizeof data, "%s", cli_expand(list));
  EncodeOptions o = encode_options(out, data, 2);
  o.tokenizer = "";                              // trained on a sample
  REQUIRE(encode_run(&o, &e), "%s", e.text);
  int kills = 0;
  for (int turn = 0; turn < 4; turn++) {
    snprintf(out, sizeof out, "%s/killed%d", test_tmp(), turn);
    for (int run = 0, status = 1; status; run++) {
      fflush(NULL);
      const int child = fork();
      if (!child) {
        encode_writes_left = 3 + (int)data_below(data_random((uint64_t)turn, (uint64_t)run), 300);
        file_hook = encode_kill;
        o.threads = 1 + run % 3;
        const bool done = encode_run(&o, &e);
        if (!done) fprintf(stderr, "%s\n", e.text);
        _exit(done ? 0 : 7);
      }
      waitpid(child, &status, 0);
      REQUIRE(WIFEXITED(status) && (!status || WEXITSTATUS(status) == 9) && run < 2000, "run %d ended with %x", run,
              status);
      kills += status != 0;
    }
    snprintf(command, sizeof command, "cd %s && diff -r whole killed%d", test_tmp(), turn);
    EXPECT(!system(command), "turn %d: other files", turn);
  }
  EXPECT(kills > 20, "%d kills", kills);
  int64_t n;
  free(encode_read(cli_path("whole"), "val", &n));
  EXPECT(n > 3000, "%lld tokens are held out", (long long)n);
  o.documents = DOCUMENTS_NONE;
  EXPECT(!encode_run(&o, &e) && e.code == EXIT_USAGE && strstr(e.text, "has another encoding"), "%s", e.text);
}

TEST(encode_packed_data_trains,
     "--data x.jsonl.gz trains on what --encode would make of it, on 1 and 2 ranks alike, encoded once; without a "
     "cache it is rejected") {
  static char text[1 << 16];
  CliRun r;
  FILE *f = fopen(cli_path("x.jsonl"), "w");
  for (int i = 0; i < 450; i++) {
    text[encode_text(text, sizeof text, 1 + i % 5, (uint64_t)i)] = 0;
    encode_json(f, text);
  }
  fclose(f);
  const char *same = "--vocab_size 300 --global_batch 4 --max_steps 4 --save_every -1 --sample_tokens 0";
  CLI_RUN(&r, "cd %s && gzip x.jsonl && %s %s %s --data x.jsonl.gz --cache made --out a && %s --encode o --data "
          "x.jsonl.gz --vocab_size 300 && %s %s %s --data o --tokenizer o --out b", test_tmp(), cli_program(),
          cli_small(), same, cli_program(), cli_program(), cli_small(), same);
  cli_expect_done(&r, "packed, and encoded");
  EXPECT(strstr(r.text, "tokens in ") && cli_count(r.text, "tokens to train on, ") >= 2, "%s", r.text);
  cli_free(&r);
  cli_expect_same_series("packed", cli_path("a"), cli_path("b"), 4);
  CLI_RUN(&r, "cd %s && %s %s %s --data x.jsonl.gz --cache made --out c && ls made", test_tmp(), cli_ranks(2),
          cli_small(), same);
  cli_expect_done(&r, "2 ranks");
  EXPECT(cli_count(r.text, "encoded-") >= 1 && !strstr(r.text, "encoded 0"), "%s", r.text);
  cli_free(&r);
  cli_expect_same_series("2 ranks", cli_path("a"), cli_path("c"), 4);
  CLI_RUN(&r, "cd %s && %s %s --data x.jsonl.gz --out d", test_tmp(), cli_program(), cli_small());
  cli_expect_rejection(&r, "no cache", EXIT_USAGE, "--data x.jsonl.gz is encoded into --cache, which is off: ...");
  cli_free(&r);
  CLI_RUN(&r, "cd %s && seq 9 | gzip >one.txt.gz && %s %s --data one.txt.gz --cache made --out d", test_tmp(),
          cli_program(), cli_small());
  cli_expect_rejection(&r, "nothing to hold out", EXIT_MISSING, "--data one.txt.gz is a single document, of which ...");
  cli_free(&r);
}

TEST(encode_names_what_is_wrong,
     "damaged and foreign texts: named by file and line, and nothing is taken for whole; the command line too") {
  Error e;
  char command[2048], out[600];
  const char *good = "{\"text\": \"a b c\"}\n";
  cli_write(cli_path("good.jsonl"), good, strlen(good));
  snprintf(command, sizeof command, "cd %s && seq 100000 > s.txt && gzip -k s.txt && head -c 9000 s.txt.gz > "
           "cut.txt.gz && { zstd -qc s.txt 2>&- || cat s.txt.gz; } | head -c 9000 > cut.txt.zst && head -c 9000 "
           "s.txt.gz > bad.txt.gz && seq 5 >> bad.txt.gz && mkdir empty && "
           "{ cat s.txt.gz; printf x; tail -c +2 s.txt.gz; cat s.txt.gz; } > members.txt.gz", test_tmp());
  REQUIRE(!system(command), "no gzip");
  const struct { const char *name, *text, *has, *has_too; } table[] = {
      {"x.jsonl", "{\"text\": \"a\"}\n\n{\"text\": \"b\"\n", "x.jsonl, line 3: it is not JSON", ""},
      {"x.jsonl", "{\"text\": \"a\"}\n{\"texts\": \"b\"}\n", "line 2: it has no \"text\"", ""},
      {"x.jsonl", "{\"text\": \"a\"}\n{\"messages\": []}", "line 2: it is a conversation", "apart"},
      {"x.jsonl", "{\"text\": \"a\xff\"}", "line 1: byte 12 is not UTF-8", ""},
      {"x.jsonl", "{\"text\": \"a\\u0000\"}", "line 1: it has a NUL", ""},
      {"x.txt", "\x1f\x8b\x08\0\0\0\0\0\0\0\0", "x.txt is gzip-compressed", ""},
      {"x.parquet", "PAR1", "x.parquet is no Parquet table, or cut short", ""},
      {"x.jsonl", "{\"text\": \"a\"}\n{\"text\": \"a\"}{\"text\": \"b\"}",
       "line 2: more stands after its JSON, from byte 14", ""},
      {"x.bin", "PAR1", "x.bin: expected: .txt", ""}, {"cut.txt.gz", NULL, "cut.txt.gz is cut short", ""},
      {"bad.txt.gz", NULL, "bad.txt.gz is ", ""}, {"cut.txt.zst", NULL, "cut.txt.zst is ", ""},
      {"members.txt.gz", NULL, "members.txt.gz is damaged: incorrect header check", ""},
      {"none.txt", NULL, "none.txt: No such file", ""},
      {"empty", NULL, "no text to train on in this directory", ""}};
  for (const auto &row : table) {
    char data[1500];
    if (row.text) cli_write(cli_path(row.name), row.text, row.text[0] == '\x1f' ? 11 : strlen(row.text));
    snprintf(data, sizeof data, "%s,%s", cli_path("good.jsonl"), cli_path(row.name));
    snprintf(out, sizeof out, "%s/o%d", test_tmp(), (int)(&row - table));
    EncodeOptions o = encode_options(out, data, 2);
    EXPECT(!encode_run(&o, &e) && strstr(e.text, row.has) && strstr(e.text, row.has_too) && !strchr(e.text, '\n'),
           "%s: '%s'", row.name, e.text);
    snprintf(command, sizeof command, "ls %s/train_*.bin > /dev/null 2>&1", out);
    EXPECT(system(command), "%s: a shard is taken for whole", row.name);
  }
  const char *none = "{\"text\": \"a\\u0000\"}\n";          // no line is a text to train a tokenizer on
  cli_write(cli_path("x.jsonl"), none, strlen(none));
  snprintf(out, sizeof out, "%s/none", test_tmp());
  EncodeOptions alone = encode_options(out, cli_path("x.jsonl"), 2);
  EXPECT(!encode_run(&alone, &e) && strstr(e.text, "x.jsonl, line 1: it has a NUL"), "%s", e.text);
  CliRun r;
  CLI_RUN(&r, "%s --encode %s", cli_program(), cli_path("o"));
  EXPECT(r.code == EXIT_USAGE && strstr(r.text, "--encode OUT FILE... encodes texts: name files"), "%s", r.text);
  cli_free(&r);
  CLI_RUN(&r, "%s --encode %s --data %s --vocab_size 300 --threads 2", cli_program(), cli_path("o"), cli_path("s.txt"));
  EXPECT(r.code == 0 && strstr(r.text, "tokens to train on, 0 for validation") && strstr(r.text, "--val_data"), "%s",
         r.text);
  cli_free(&r);
}

TEST(encode_takes_what_is_unusual,
     "many members in a .gz; an escaped backslash before u0000; long conversations of the same long words; text "
     "without a place to cut it at; a first line that is no JSON: encoded to the ids of the text, and soon") {
  char command[2048], out[600];
  Error e;
  snprintf(command, sizeof command, "cd %s && seq 9000 > a.txt && cat a.txt a.txt a.txt > b.txt && gzip -k a.txt && "
           "cat a.txt.gz a.txt.gz a.txt.gz > c.txt.gz && yes '' | head -c 3000000 > spaces.txt", test_tmp());
  REQUIRE(!system(command), "no gzip");
  int64_t n;
  for (const char *name : {"b.txt", "c.txt.gz", "spaces.txt"}) {
    snprintf(out, sizeof out, "%s/of-%s", test_tmp(), name);
    EncodeOptions o = encode_options(out, cli_path(name), 2);
    o.block_bytes = 1 << 16, o.shard_numel = 1 << 20, o.save_bytes = 1 << 20;
    EXPECT(encode_run(&o, &e), "%s: %s", name, e.text);
  }
  int32_t *ids = encode_read(cli_path("of-b.txt"), "train", &n);
  encode_expect("three members", cli_path("of-c.txt.gz"), "train", ids, n);
  free(ids);
  const char *escaped = "{\"text\": \"a \\\\u0000 b\"}";
  cli_write(cli_path("u.jsonl"), escaped, strlen(escaped));
  cli_write(cli_path("u.txt"), "a \\u0000 b", 10);
  for (const char *name : {"u.txt", "u.jsonl"}) {
    snprintf(out, sizeof out, "%s/of-%s", test_tmp(), name);
    EncodeOptions o = encode_options(out, cli_path(name), 1);
    EXPECT(encode_run(&o, &e), "%s: %s", name, e.text);
  }
  ids = encode_read(cli_path("of-u.txt"), "train", &n);
  encode_expect("a backslash", cli_path("of-u.jsonl"), "train", ids, n);
  free(ids);
  FILE *f = fopen(cli_path("first.jsonl"), "w");                 // of no use, and 1 MiB long
  fprintf(f, "\"\n%0*d\n", 1 << 20, 0);
  fclose(f);
  EncodeOptions o = encode_options(cli_path("of-first"), cli_path("first.jsonl"), 1);
  o.block_bytes = 1 << 16;
  EXPECT(!encode_run(&o, &e) && strstr(e.text, "first.jsonl, line 1: it is not JSON"), "%s", e.text);
  f = fopen(cli_path("chats.jsonl"), "w");       // what is above 32 MiB is not mapped any more when it is freed
  for (int times : {0, 0, 1600000, 3}) {       // one encoder has the last two
    fprintf(f, "{\"messages\":[{\"role\":\"user\",\"content\":\"go");
    for (int k = 0; k < times; k++) fputs(" electroencephalography", f);
    fputs("\"},{\"role\":\"assistant\",\"content\":\"ok\"}]}\n", f);
  }
  fclose(f);
  EncodeOptions c = encode_options(cli_path("chats"), cli_path("chats.jsonl"), 1);
  c.chat.template_name = "smollm2", c.tokenizer = "dev/fixtures/chat_smollm2";
  c.block_bytes = 64 << 20, c.shard_numel = 1 << 26;
  EXPECT(encode_run(&c, &e), "chats: %s", e.text);
}

TEST(encode_is_done_once,
     "a run that is resumed finds what it has encoded; another vocabulary, a file of another time are another "
     "encoding; two processes do not write into one directory; --text_column of validation, and of tables that are "
     "not there") {
  CliRun r;
  Error e;
  const char *once = "--data x.jsonl.gz --cache cache --max_steps 2 --sample_tokens 0 --eval_every -1 --vocab_size 300";
  FILE *f = fopen(cli_path("x.jsonl"), "w");
  for (int i = 0; i < 300; i++) fprintf(f, "{\"text\": \"line %d of three hundred\"}\n", i);
  fclose(f);
  CLI_RUN(&r, "cd %s && gzip -k x.jsonl && %s %s %s --out run && %s --resume --data x.jsonl.gz --cache cache --out run "
          "--max_steps 4 && %s --resume --data x.jsonl.gz --cache cache --out run --max_steps 6 && "
          "ls cache | grep -c encoded | sed 's/^/directories: /'", test_tmp(),
          cli_program(), cli_small(), once, cli_program(), cli_program());
  cli_expect_done(&r, "resumed twice");
  EXPECT(strstr(r.text, "step 6/6") && strstr(r.text, "directories: 1\n"), "%s", r.text);
  cli_free(&r);
  CLI_RUN(&r, "cd %s && %s --encode o x.jsonl --vocab_size 300 && %s --encode o x.jsonl --vocab_size 400", test_tmp(),
          cli_program(), cli_program());
  EXPECT(r.code == EXIT_USAGE && strstr(r.text, "o has another encoding"), "another vocabulary: %s", r.text);
  cli_free(&r);
  CLI_RUN(&r, "cd %s && %s --encode t x.jsonl --tokenizer o && touch -d 2001-01-01 x.jsonl && %s --encode t x.jsonl "
          "--tokenizer o", test_tmp(), cli_program(), cli_program());
  EXPECT(r.code == EXIT_USAGE && strstr(r.text, "t has another encoding"), "another time: %s", r.text);
  cli_free(&r);
  int lock = file_lock(cli_path("o/.lock"));
  REQUIRE(lock >= 0, "no lock");
  CLI_RUN(&r, "cd %s && %s --encode o x.jsonl --vocab_size 300", test_tmp(), cli_program());
  EXPECT(r.code == EXIT_LOST && strstr(r.text, "o: another process encodes into it"), "locked: %s", r.text);
  cli_free(&r);
  close(lock);
  glob_t of_run;
  REQUIRE(!glob(cli_path("cache/encoded-*/.lock"), 0, NULL, &of_run), "no lock in the cache");
  lock = file_lock(of_run.gl_pathv[0]);
  globfree(&of_run);
  REQUIRE(lock >= 0, "no lock of the cache's");
  cli_start(&r, "cd %s && %s %s %s --out other", test_tmp(), cli_program(), cli_small(), once);
  if (!cli_wait_for(&r, "waiting: another process encodes into cache/encoded-", 1)) return;
  close(lock);
  cli_wait(&r, CLI_LIMIT_S);
  cli_expect_done(&r, "beside another");
  cli_free(&r);
  EncodeOptions o = encode_options(cli_path("tables"), cli_path("x.jsonl"), 1);
  o.val_data = "dev/fixtures/parquet/named.parquet", o.column = "body", o.column_given = true;
  EXPECT(encode_run(&o, &e), "a table for validation: %s", e.text);
  o.out = cli_path("no-tables"), o.val_data = "";
  EXPECT(!encode_run(&o, &e) && strstr(e.text, "--text_column body belongs to .parquet files"), "%s", e.text);
  o.column_given = false;                        // a checkpoint's
  EXPECT(encode_run(&o, &e), "a column that is not needed: %s", e.text);
}

TEST(data_is_what_it_says,
     "JSON of any file format under a name of another kind is named with what to type, in memory and by --encode; JSON "
     "lines called .json are taken as such; --data_as text takes all") {
  static const char lines[] = "{\"text\": \"the fox, a [bird] {and}\"}\n{\"text\": \"one crow \\\" \"}\n";
  static const struct { const char *name, *text, *has, *has_too; } table[] = {
      {"a.json", "[{\"messages\": [1], \"id\": 2}]", NULL, NULL}, {"t.csv", "a,b\n1,2\n", NULL, NULL},
      {"p.jsonl", "{\n \"text\": \"x\"\n}\n{\n \"text\": \"y\"\n}", NULL, NULL},
      {"array", "[{\"messages\": [1], \"id\": 2}]", "array is a JSON array of objects with messages, id; its name "
       "should end in .json", "--data_as text"},
      {"data", lines, "data is JSON lines of objects with text; its name should end in .jsonl", "--data_as text"}};
  static char text[4096];
  char out[600];
  Corpus c;
  Error e;
  for (const auto &x : table) {
    CorpusOptions o = data_options(NULL);
    cli_write(o.data = cli_path(x.name), x.text, strlen(x.text));
    o.tokenizer = "dev/fixtures/chat_chatml";
    if (x.has) data_expect_rejected(o, 3, x.has, x.has_too);
    snprintf(out, sizeof out, "%s/of-%s", test_tmp(), x.name);
    EncodeOptions eo = encode_options(out, o.data, 1);
    if (x.has)
      EXPECT(!encode_run(&eo, &e) && strstr(e.text, ": expected: .txt") && access(out, F_OK), "%s: %s", x.name, e.text);
    eo.as_text = true;
    EXPECT(encode_run(&eo, &e), "%s as text: %s", x.name, e.text);
    size_t n = 0;                                // enough to hold some out
    while (n < 400) n += (size_t)snprintf(text + n, sizeof text - n, "%s\n", x.text);
    cli_write(o.data, text, n);
    o.as_text = true;
    REQUIRE(corpus_load(&c, o, &e), "%s as text: %s", x.name, e.text);
    EXPECT(c.split[0].text_bytes + c.split[1].text_bytes == (int64_t)n && !c.split[0].masked, "%s: %lld bytes", x.name,
           (long long)c.split[0].text_bytes);
    corpus_free(&c);
  }
  uint64_t hash[2];
  for (const char *name : {"l.json", "l.jsonl"}) {
    CorpusOptions o = data_options(NULL);
    cli_write(o.data = cli_path(name), lines, strlen(lines));
    o.tokenizer = "dev/fixtures/chat_chatml";
    REQUIRE(corpus_load(&c, o, &e), "%s: %s", name, e.text);
    EXPECT(c.split[SPLIT_TRAIN].documents == 1 && c.split[SPLIT_TRAIN].masked, "%s is no conversations", name);
    hash[!strcmp(name, "l.json")] = c.hash;
    corpus_free(&c);
    snprintf(out, sizeof out, "%s/of-%s", test_tmp(), name);
    EncodeOptions eo = encode_options(out, o.data, 1);
    EXPECT(encode_run(&eo, &e), "%s: %s", name, e.text);
  }
  EXPECT(hash[0] == hash[1], "l.json is another corpus");
  cli_write(cli_path("x.txt"), lines, strlen(lines));
  cli_write(cli_path("y.txt"), "[{\"text\": 1}]", 13);
  for (const char *name : {"x.txt", "y.txt"}) {  // a name that says text is believed, with a warning
    DataWarnings warnings = {};
    Text t = {};
    REQUIRE(text_open(&t, cli_path(name), &warnings, &e), "%s", e.text);
    EXPECT(strstr(warnings.text, name[0] == 'x' ? "x.txt is JSON lines: braces and keys are trained on like text"
                                               : "y.txt is a JSON array: braces"), "%s", warnings.text);
    text_free(&t);
  }
  data_expect_rejected(data_options(cli_path("none.jsonl")), 3, "none.jsonl: No such", "a .jsonl, a table .parquet");
  CliRun r;
  CLI_RUN(&r, "%s %s --data %s %s --out %s", cli_program(), cli_small(), cli_path("l.json"), cli_path("l.jsonl"),
          cli_path("out"));
  cli_expect_rejection(&r, "a pattern without quotes", EXIT_USAGE, cli_expand("'@/l.jsonl' stands after --data's "
                     "value: of a pattern the shell makes several words; write it in quotes, --data 'DIR/*.jsonl', "
                     "..."));
  cli_free(&r);
}

// Runs an encoding that must fail with this; its OUT is another each time.
static inline void encode_expect_rejected(const char *data, EncodeOptions o, const char *has, const char *has_too) {
  static int turn;
  char out[600];
  Error e;
  snprintf(out, sizeof out, "%s/rejected%d", test_tmp(), turn++);
  o.out = out, o.data = data;
  EXPECT(!encode_run(&o, &e) && strstr(e.text, has) && strstr(e.text, has_too) && !strchr(e.text, '\n'), "%s: '%s'",
         data, e.text);
}
TEST(encode_knows_a_file_by_its_bytes,
     "files of one name, size and time are another encoding where their bytes differ; a file that grows or is written "
     "again under --encode is named") {
  static char text[18 << 16];                    // so large that samples leave bytes out
  char a[600];
  Error e;
  mkdir(cli_path("A"), 0777);
  const size_t n = sizeof text;
  for (size_t i = encode_text(text, 1 << 16, 200, 3); i < n; i++) text[i] = i % 64 ? 'a' : '\n';
  snprintf(a, sizeof a, "%s", cli_path("A/x.txt"));
  cli_write(a, text, n);
  const struct timespec then[2] = {{1, 0}, {1, 0}};
  utimensat(AT_FDCWD, a, then, 0);
  EncodeOptions o = encode_options(NULL, a, 1);
  char first[PATH_MAX], second[PATH_MAX];
  o.block_bytes = o.shard_numel = o.save_bytes = 1 << 20;
  o.cache = cli_path("cache");
  REQUIRE(encode_run(&o, &e, NULL, first), "%s", e.text);
  REQUIRE(encode_run(&o, &e, NULL, second) && !strcmp(first, second), "not found again: %s", e.text);
  text[70000] ^= 1;
  cli_write(a, text, n);
  utimensat(AT_FDCWD, a, then, 0);
  REQUIRE(encode_run(&o, &e, NULL, second) && strcmp(first, second), "other bytes are the same: %s", e.text);
  static const char *which, *how;
  which = a;
  for (const char *change : {"printf more >> %s", "touch %s"}) {
    how = change;
    file_hook = [](FileOp op, const char *path) {
      char line[1024];
      if (op != FILE_CREATE || !strstr(path, "encode.json") || !how) return 0;
      snprintf(line, sizeof line, how, which);
      how = NULL;
      return system(line) ? EIO : 0;
    };
    o.cache = NULL;
    encode_expect_rejected(a, o, "x.txt has changed while it was encoded: it had ", "and encode again");
    file_hook = NULL;
  }
}
TEST(encode_is_bounded,
     "a packed file of zeros is no text before anything is trained or written, nor is one with zeros after text; a "
     "line or word beyond 64 MiB is named; text that is no UTF-8 is rejected, or counted; the state is saved by time, "
     "too") {
  static char text[1 << 16];
  char command[2048];
  Error e;
  snprintf(command, sizeof command, "cd %s && head -c 3000000 /dev/zero | gzip > zeros.txt.gz && { seq 200000; head -c "
           "3000000 /dev/zero; } | gzip > late.txt.gz && head -c 68000000 /dev/zero | tr '\\0' x > word.txt && "
           "{ printf '{\"text\": \"'; cat word.txt; echo '\"}'; } > line.jsonl", test_tmp());
  REQUIRE(!system(command), "no gzip");
  EncodeOptions o = encode_options("", "", 1);
  o.block_bytes = 32 << 20, o.shard_numel = 1 << 26, o.save_bytes = 1 << 28;
  for (const char *tokenizer : {"", "dev/fixtures/tokenizer_gpt2"}) {
    o.tokenizer = tokenizer;
    encode_expect_rejected(cli_path("zeros.txt.gz"), o, "zeros.txt.gz is not text", "control characters");
  }
  encode_expect_rejected(cli_path("late.txt.gz"), o, "late.txt.gz is not text", "control characters");
  encode_expect_rejected(cli_path("word.txt"), o, "word.txt has no space to cut it at in 64 MiB", "after byte 0");
  encode_expect_rejected(cli_path("line.jsonl"), o, "line.jsonl has no newline or end of a row in 64 MiB", "after byte "
                         "0");
  Text t = {};
  DataWarnings warnings = {};
  EXPECT(!text_open(&t, cli_path("word.txt"), &warnings, &e) && strstr(e.text, "no space or newline in 64 MiB"),
         "in memory: '%s'", e.text);
  size_t n = encode_text(text, sizeof text, 300, 3);
  for (size_t i = 0; i < n; i += 200) text[i] = (char)0xe9;
  cli_write(cli_path("some.txt"), text, n);
  static char said[4096];
  said[0] = 0;
  o = encode_options(cli_path("some"), cli_path("some.txt"), 1);
  o.say = [](const char *line) { snprintf(said + strlen(said), sizeof said - strlen(said), "%s\n", line); };
  EXPECT(encode_run(&o, &e), "%s", e.text);
  EXPECT(strstr(said, "bytes are no UTF-8, the first is 0xe9 at byte 1;"), "said: %s", said);
  for (size_t i = 0; i < n; i += 20) text[i] = (char)0xe9;
  cli_write(cli_path("most.txt"), text, n);
  encode_expect_rejected(cli_path("most.txt"), o, "bytes are no UTF-8", "--data_as text");
  static int saves;
  for (double ms : {0.0, 1e12}) {                // a save after each block, and none before the end
    char out[600];
    snprintf(out, sizeof out, "%s/ms%g", test_tmp(), ms);
    saves = 0;
    o.out = out, o.save_bytes = 1 << 28, o.save_ms = ms, o.data = cli_path("some.txt");
    file_hook = [](FileOp op, const char *path) {
      saves += op == FILE_RENAME && strstr(path, "encode.json");
      return 0;
    };
    EXPECT(encode_run(&o, &e), "%s", e.text);
    file_hook = NULL;
    EXPECT(ms ? saves == 2 : saves > 4, "%g ms: the state is saved %d times", ms, saves);
  }
}
TEST(encode_state_is_checked, "an encode.json with numbers that no state has is rejected, and nothing is cut or read") {
  static char text[1 << 16];
  Error e;
  char state[600], changed[4096];
  int64_t bytes;
  size_t n;
  cli_write(cli_path("a.txt"), text, encode_text(text, sizeof text, 300, 3));
  EncodeOptions o = encode_options(cli_path("out"), cli_path("a.txt"), 1);
  REQUIRE(encode_run(&o, &e), "%s", e.text);
  snprintf(state, sizeof state, "%s/encode.json", cli_path("out"));
  char *whole = file_get(state, 1 << 16, &bytes);
  REQUIRE(whole, "no state");
  static const struct { const char *from, *to; } changes[] = {
      {"\"split\":", "\"split\":-7,\"x\":"}, {"\"split\":", "\"split\":3,\"x\":"}, {"\"file\":", "\"file\":9,\"x\":"},
      {"\"at\":", "\"at\":-1,\"x\":"}, {"\"documents\":", "\"documents\":1e99,\"x\":"},
      {"\"train\":[", "\"train\":[-1,"}, {"\"train\":[", "\"train\":[1,9999999,9999999,"}};
  for (const auto &x : changes) {
    const char *at = strstr(whole, x.from);
    REQUIRE(at, "no %s in %s", x.from, whole);
    n = (size_t)snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - whole), whole, x.to, at + strlen(x.from));
    cli_write(state, changed, n);
    EXPECT(!encode_run(&o, &e) && strstr(e.text, "encode.json is damaged: remove "), "%s: '%s'", x.to, e.text);
  }
  free(whole);
}
