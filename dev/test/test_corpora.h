// test_corpora.h: corpora and weights as users have them: a single text, a directory of texts, shards of tokens, files
// of other kinds, weights in shards; and a signal while they are read. Follows test_cli_checkpoint.h.

// ---- texts and tokens ----------------------------------------------------------------------------------------------
// TEST_TMP/NAME: `lines` lines of simple sentences with `end` after each.
static inline size_t corpora_text(const char *name, int lines, const char *end) {
  static char text[1 << 16];
  size_t n = 0;
  for (int i = 0; i < lines && n < sizeof text - 64; i++)
    n += (size_t)snprintf(text + n, sizeof text - n, "the fox %d sees one crow by %d .%s", i * 7 % 13, i * i % 11, end);
  cli_write(cli_path(name), text, n);
  return n;
}
// Runs two steps on --data TEST_TMP/`data`. Its text is the caller's.
static inline void corpora_run(CliRun *r, const char *data, const char *more) {
  CLI_RUN(r, "%s %s --max_steps 2 --save_every -1 --sample_tokens 0 --data '%s' %s --out %s", cli_program(),
          cli_small(), cli_path(data), cli_expand(more), cli_path("out"));
}
static inline void corpora_expect(const CliRun *r, const char *what, const char *line) {
  cli_expect_done(r, what);
  EXPECT(cli_count(r->text, cli_expand(line)) == 1, "%s: not one line says '%s':\n%.3000s", what, cli_expand(line),
         r->text);
}
// --data TEST_TMP/`data` must be rejected with this line (see cli_expect_rejection); @ is TEST_TMP.
static inline void corpora_rejected(const char *data, int code, const char *line) {
  CliRun r;
  CLI_RUN(&r, "%s %s --data '%s' --out %s", cli_program(), cli_small(), data[0] == '-' ? data : cli_expand(data),
          cli_path("out"));
  cli_expect_rejection(&r, data, code, cli_expand(line));
  cli_free(&r);
}

TEST(corpora_hold_out,
     "text without validation text: its last twentieth is held out, at a line; every byte is in one part") {
  Corpus c;
  Error e;
  const size_t n = corpora_text("a.txt", 400, "\n");
  REQUIRE(corpus_load(&c, data_options(cli_path("a.txt")), &e), "%s", e.text);
  const int64_t train = c.split[SPLIT_TRAIN].text_bytes, valid = c.split[SPLIT_VALID].text_bytes;
  EXPECT(train + valid == (int64_t)n && c.split[SPLIT_TRAIN].lines + c.split[SPLIT_VALID].lines == 400, "%lld + %lld",
         (long long)train, (long long)valid);
  EXPECT(valid >= (int64_t)n / 20 && valid < (int64_t)n / 20 + 40, "%lld of %zu bytes are held out",
         (long long)valid, n);
  EXPECT(strstr(c.warnings.text, "from the start of a line on, is held out"), "%s", c.warnings.text);
  const uint64_t hash = c.hash;
  corpus_free(&c);
  // The same text as train.txt, as several files, or as any other: the same corpus.
  CliRun r;
  CLI_RUN(&r, "cd %s && mkdir one many three && cp a.txt one/train.txt && head -150 a.txt > many/x.txt && head -250 "
          "a.txt | tail -100 > many/y.txt && tail -150 a.txt | head -c -1 > many/z.txt && mkdir many/not.txt && mkfifo "
          "many/n.bin && touch many/.hidden.txt && cp one/train.txt three/val.txt && cp one/train.txt three/train.txt",
          test_tmp());
  cli_expect_done(&r, "copies");
  cli_free(&r);
  for (const char *dir : {"one", "many"}) {
    REQUIRE(corpus_load(&c, data_options(cli_path(dir)), &e), "%s", e.text);
    EXPECT(dir[0] == 'm' || c.hash == hash, "%s is another corpus", dir);
    EXPECT(dir[0] == 'o' || strstr(c.warnings.text, "its 3 .txt files, in the order of their names"), "%s",
           c.warnings.text);
    EXPECT(c.split[SPLIT_TRAIN].lines + c.split[SPLIT_VALID].lines == 400, "%s: other lines", dir);
    corpus_free(&c);
  }
  REQUIRE(corpus_load(&c, data_options(cli_path("three")), &e), "%s", e.text);
  EXPECT(c.split[SPLIT_TRAIN].text_bytes == (int64_t)n && !strstr(c.warnings.text, "held out"), "val.txt is not taken");
  corpus_free(&c);
}

TEST(corpora_directories_are_of_one_kind,
     "a directory with two kinds that could be trained on is rejected by name; licences and notes are left out of "
     "texts, records and tables, and with links to nothing, pipes, endings in upper case and names that start so are "
     "said in one line with numbers; a weight of 0 is none") {
  static const struct { const char *make, *says; int code; } dirs[] = {
      {"cp ../a.txt ../b.jsonl .", "has text (a.txt) and records (b.jsonl): name those to train on", 2},
      {"cp ../a.txt train.txt; cp ../b.jsonl train.jsonl", "has text (train.txt) and records (train.jsonl)", 2},
      {"cp ../a.txt . && cp ../b.jsonl author_1.jsonl", "has text (a.txt) and records (author_1.jsonl)", 2},
      {"cp ../a.txt . && cp ../c.parquet .", "has text (a.txt) and tables (c.parquet)", 2},
      {"cp ../b.jsonl . && cp ../a.txt x_train.bin", "has records (b.jsonl) and tokens (x_train.bin)", 2},
      {"cp ../c.parquet . && cp ../a.txt x_train.bin", "has tables (c.parquet) and tokens (x_train.bin)", 2},
      {"cp ../b.jsonl train.jsonl && cp ../c.parquet .", "has records (train.jsonl) and tables (c.parquet)", 2},
      {"cp ../b.jsonl train.csv && cp ../c.parquet .", "has records (train.csv) and tables (c.parquet)", 2},
      {"cp ../b.jsonl . && cp ../a.txt LICENSE.txt", "left out: 1 licence or note (LICENSE.txt)\n", 0},
      {"cp ../c.parquet . && cp ../a.txt license-2.txt && cp ../a.txt Readme.txt", "left out: 2 licence or note "
       "(Readme.txt, "
       "...)\n", 0},
      {"cp ../a.txt . && cp ../a.txt NOTICE.txt", "left out: 1 licence or note (NOTICE.txt)\n", 0},
      {"cp ../b.jsonl . && ln -s x d.jsonl && ln -s y c.txt && mkfifo p.jsonl && cp ../b.jsonl B.JSONL && cp "
       "../b.jsonl "
       "testimony.jsonl && cp ../b.jsonl valley.jsonl && mkdir s && touch s.zip", "left out: 2 link to nothing "
       "(c.txt, ...), "
       "1 no regular file (p.jsonl), 1 ending in upper case (B.JSONL), 1 named test... (testimony.jsonl), 1 named "
       "val..., "
       "not trained on (valley.jsonl), 1 directory (s), 1 of another kind (s.zip)\n", 0},
      {"cp ../b.jsonl train.jsonl && cp ../b.jsonl more.jsonl", "left out: 1 not named train, valid or test "
       "(more.jsonl)\n",
       0}};
  CliRun r;
  corpora_text("a.txt", 400, "\n");
  CLI_RUN(&r, "cp dev/fixtures/parquet/unread.parquet %s/c.parquet && for i in 1 2 3; do echo '{\"question\": \"q\", "
          "\"answer\": \"a\"}'; done > %s/b.jsonl", test_tmp(), test_tmp());
  cli_expect_done(&r, "files");
  cli_free(&r);
  for (const auto &d : dirs) {
    Corpus c;
    Error e;
    bool records = false;
    CLI_RUN(&r, "rm -rf %s/d && mkdir %s/d && cd %s/d && %s", test_tmp(), test_tmp(), test_tmp(), d.make);
    cli_expect_done(&r, d.make);
    cli_free(&r);
    CorpusOptions o = chat_corpus_options(cli_path("d"), "qwen2.5", "qwen2.5");
    EncodeOptions asked = {};
    asked.data = o.data, asked.val_data = "", asked.column = "", asked.chat = o.chat;
    REQUIRE(records_are_meant(&asked, &records, &e), "%s: %s", d.make, e.text);
    o.records = records;
    const bool ok = corpus_load(&c, o, &e);
    const char *said = ok ? c.warnings.text : e.text;
    EXPECT(ok == !d.code && (ok || e.code == d.code) && strstr(said, d.says), "%s: %s", d.make, said);
    if (ok) corpus_free(&c);
  }
  for (const char *list : {"b.jsonl:0", "b.jsonl:0.0000001", "b.jsonl:0,a.txt:1"}) {
    char data[700];
    Error e;
    Corpus c;
    snprintf(data, sizeof data, "%s/%s", test_tmp(), list);
    CorpusOptions o = chat_corpus_options(data, "qwen2.5", "qwen2.5");
    EXPECT(!corpus_load(&c, o, &e) && e.code == 2 && strstr(e.text, "with weights above 0 after all of "
         "them"), "%s: %s",
           list, e.text);
  }
}

TEST(corpora_cut_falls_in_the_text,
     "the held-out end is a whole number of characters, whatever the text, and never empty") {
  static char text[5000];
  for (int kind = 0; kind < 4; kind++)
    for (size_t n = TEXT_LEAST_BYTES; n < sizeof text; n += 37) {
      const char *how = NULL;
      for (size_t i = 0; i < n; i++)
        text[i] = kind == 0 ? 'a' : kind == 1 ? (char)(i % 2 ? 0xa9 : 0xc3) : i % 9 ? 'b' : kind == 2 ? ' ' : '\n';
      const size_t cut = text_cut((const uint8_t *)text, n, &how);
      EXPECT(cut >= n / 2 - 1 && cut < n, "kind %d, %zu bytes: cut at %zu", kind, n, cut);
      EXPECT(kind != 1 || cut % 2 == 0, "%zu bytes: cut at %zu, inside a character", n, cut);
      EXPECT(kind < 2 || (text[cut - 1] == (kind == 2 ? ' ' : '\n')), "kind %d, %zu bytes: cut at %zu", kind, n, cut);
      EXPECT(strstr(how, kind == 3 ? "line on" : kind == 2 ? "word on" : "middle"), "kind %d: %s", kind, how);
    }
}

TEST(corpora_of_text_train, "--data FILE.txt and a directory of texts train; ranks and --resume see the same corpus") {
  CliRun r;
  corpora_text("a.txt", 300, "\n");
  corpora_text("words.txt", 300, " ");
  corpora_run(&r, "a.txt", "--vocab_size 2000");
  corpora_expect(&r, "a file", "warning: --data @/a.txt: there is no validation text: the last 5.");
  corpora_expect(&r, "a file", "warning: --vocab_size 2000: the training text gives a vocabulary of only ");
  corpora_expect(&r, "a file", "valid: loss");
  EXPECT(cli_count(r.text, "word perplexity") == 1, "no word perplexity:\n%.2000s", r.text);
  cli_free(&r);
  CLI_RUN(&r, "tr -d ' \\n' < %s > %s", cli_path("a.txt"), cli_path("solid.txt"));
  cli_free(&r);
  corpora_run(&r, "solid.txt", "");
  corpora_expect(&r, "no spaces", "from the middle of a line on");
  EXPECT(!strstr(r.text, "word perplexity"), "a word perplexity of a text without words");
  cli_free(&r);
  corpora_run(&r, "words.txt", "");
  corpora_expect(&r, "one line", "from the start of a word on");
  cli_free(&r);
  const char *same = "--epochs 1 --save_every 2 --sample_tokens 0 --max_steps";
  CLI_RUN(&r, "%s %s --data %s %s 4 --out %s", cli_ranks(2), cli_small(), cli_path("a.txt"), same, cli_path("two"));
  cli_expect_done(&r, "2 ranks");
  cli_free(&r);
  CLI_RUN(&r, "%s %s --data %s %s 4 --global_batch 4 --out %s", cli_program(), cli_small(), cli_path("a.txt"), same,
          cli_path("one"));
  cli_expect_done(&r, "1 rank");
  cli_free(&r);
  cli_expect_same_series("1 and 2 ranks", cli_path("one"), cli_path("two"), 4);
  CLI_RUN(&r, "%s --resume %s --max_steps 6 --cache= --out %s && cd %s && echo more >> a.txt && %s --resume one "
          "--max_steps 8 --cache= --out two", cli_program(), cli_path("one"), cli_path("one"), test_tmp(),
          cli_program());
  cli_expect_rejection(&r, "a text that has changed", EXIT_USAGE, cli_expand("text in @/a.txt (--data): its files have "
                     "changed since ..."));
  EXPECT(strstr(r.text, "resumed from"), "it did not continue:\n%.2000s", r.text);
  cli_free(&r);
}

TEST(corpora_json_lines_are_counted,
     "a directory of many .txt files of JSON lines: one warning with their number and the first, and the warning of "
     "what is held out beside it") {
  enum { FILES = 60 };
  Corpus c;
  Error e;
  char dir[600], path[800], want[2048];
  snprintf(dir, sizeof dir, "%s", cli_path("json"));
  mkdir(dir, 0777);
  for (int i = 0; i < FILES; i++) {
    char text[1024];
    size_t n = 0;
    for (int k = 0; k < 8; k++) n += (size_t)snprintf(text + n, sizeof text - n, "{\"text\": \"a fox %d\"}\n", k);
    snprintf(path, sizeof path, "%s/a_name_that_is_not_short_%03d.txt", dir, i);
    cli_write(path, i < 2 ? "the fox\n" : text, i < 2 ? 8 : n);
  }
  REQUIRE(corpus_load(&c, data_options(dir), &e), "%s", e.text);
  snprintf(want, sizeof want, "%d of %d .txt files in %s are JSON, such as a_name_that_is_not_short_002.txt: "
           "braces and keys are trained on like text\n", FILES - 2, FILES, dir);
  EXPECT(cli_count(c.warnings.text, "") == 2 && strstr(c.warnings.text, want) &&
             cli_count(c.warnings.text, "is held out for it and not trained on") == 1, "%s", c.warnings.text);
  corpus_free(&c);
}

TEST(corpora_shards,
     "a directory or pattern trains on all its shards and is evaluated on those of `val`; of a set of which one is "
     "named a warning says how to take all") {
  CliRun r;
  mkdir(cli_path("set"), 0777);
  for (const char *name : {"set/f_train_000001.bin", "set/f_train_000002.bin", "set/f_train_000003.bin",
                           "set/f_val_000000.bin", "set/f_val_000001.bin"})
    cli_token_file(cli_path(name), 600, 290, 0);
  cli_write(cli_path("set/f_train_notes.md"), "x", 1);
  for (const char *data : {"set/f_train_000001.bin", "set", "set/f_train_*.bin", "set/f_*.bin"}) {
    const bool one = strstr(data, "000001");
    corpora_run(&r, data, "");
    cli_expect_done(&r, data);
    EXPECT(cli_count(r.text, one ? "tokens in @" : "  data      tokens in 3 files, ") == !one &&
               strstr(r.text, one ? " 600" : " 1800"), "%s: it printed:\n"
           "%.3000s", data, r.text);
    EXPECT(cli_count(r.text, "holds 3 shards of tokens, and only f_train_000001.bin is trained on: --data '") == one,
           "%s: it printed:\n%.3000s", data, r.text);
    EXPECT(strstr(r.text, one ? " over 599 tokens" : " over 1199 tokens"), "%s: evaluated:\n%.3000s", data, r.text);
    cli_free(&r);
  }
  corpora_rejected("@/set/g_*.bin", 3, "--data @/set/g_*.bin: no file matches");
  cli_token_file(cli_path("set/g_train.bin"), 600, 290, 0);
  corpora_rejected("@/set", 3, "--data @/set: there are token files of several sets (f_train_000001.bin, g_train.bin): "
                  "name those to train on, by a pattern or a list");
  corpora_text("set/a.txt", 20, "\n");
  corpora_rejected("@/set", 3, "--data @/set: there is text (a.txt) and there are token files (f_train_000001.bin): "
                  "name one of them, or give a directory with train.txt and valid.txt");
  mkdir(cli_path("none"), 0777);
  cli_write(cli_path("none/x.arrow"), "x", 1);
  corpora_rejected("@/none", 3, "--data @/none has no train.txt (or wiki.train.tokens), no other .txt file and no "
                  "token file x_train.bin (but x.arrow): ...");
}

// ---- files that are no corpus ---------------------------------------------------------------------------------------
static const char corpora_is_pointer[] = "a Git LFS pointer, which stands for a file that was not fetched; run git lfs "
                                         "pull in its repository";

TEST(corpora_reject_what_is_no_text,
     "pipes, devices, packed files, pointers, other encodings, noise: named, in one line") {
  char text[1024], line[1024];
  mkfifo(cli_path("pipe"), 0666);
  const char *types = "; expected: a directory with train.txt and valid.txt, a text file, or a token FILE.bin";
  snprintf(line, sizeof line, "--data @/pipe is a named pipe%s", types);
  corpora_rejected("@/pipe", 3, line);
  corpora_rejected("-", 2, "--data -: text is not read from standard input, ...");
  mkdir(cli_path("d"), 0777);
  mkfifo(cli_path("d/train.txt"), 0666);
  corpora_rejected("@/d", 3, "@/d/train.txt is a named pipe, not a regular file");
  cli_write(cli_path("lfs.txt"), corpora_pointer, strlen(corpora_pointer));
  snprintf(line, sizeof line, "@/lfs.txt is %s; expected: text", corpora_is_pointer);
  corpora_rejected("@/lfs.txt", 3, line);
  CorpusOptions o = data_options(NULL);
  const struct { const char *bytes; size_t count; const char *says; } kinds[] = {
      {"\x1f\x8b\x08", 3, "gzip"}, {"PK\3\4", 4, "zip archive"}, {"\x28\xb5\x2f\xfd", 4, "zstd"},
      {"PAR1\x15", 5, "Parquet"}, {"BZh91AY&SY", 10, "bzip2"}, {"\n <!DOCTYPE HTML>", 17, "HTML page"},
      {"\xff\xfe" "a", 3, "iconv -f UTF-16 "}, {"\0\0\xfe\xff", 4, "iconv -f UTF-32 "}, {"%PDF-1.4", 8, "PDF"}};
  for (const auto &k : kinds) {
    memset(text, 'a', sizeof text);
    memcpy(text, k.bytes, k.count);
    cli_write(cli_path("kind.txt"), text, sizeof text);
    o.data = cli_path("kind.txt");
    data_expect_rejected(o, 3, k.says, "kind.txt");
  }
  for (int i = 0; i < 1024; i++) text[i] = i % 2 ? 0 : (char)('a' + i % 26);
  cli_write(o.data, text, sizeof text);
  data_expect_rejected(o, 3, "iconv -f UTF-16LE -t UTF-8", "kind.txt");
  for (int width : {2, 4}) for (bool big : {false, true}) {      // "a b c ..." in each, without a mark in front
    for (int i = 0; i < 1024; i++) text[i] = i % width != (big ? width - 1 : 0) ? 0 : (char)("a \n"[i / width % 3]);
    cli_write(o.data, text, 300);
    snprintf(line, sizeof line, "iconv -f UTF-%d%s -t UTF-8", 8 * width, big ? "BE" : "LE");
    data_expect_rejected(o, 3, line, "kind.txt");
  }
  for (int width : {2, 4, 16}) {                 // a small binary is mostly zeros too: small numbers, a header
    for (int i = 0; i < 300; i++) text[i] = i % width ? 0 : (char)(i / width % 100);
    cli_write(o.data, text, 300);
    data_expect_rejected(o, 3, "is not text", "control characters");
  }
  for (int i = 0; i < 1024; i++) text[i] = (char)data_random(7, (uint64_t)i);
  cli_write(o.data, text, sizeof text);
  data_expect_rejected(o, 3, "is not text", "control characters");
  char *model = (char *)calloc(1, 1 << 18);      // like weights: text at the start, then bytes
  memset(model, 'a', 1 << 17);
  for (int i = 1 << 17; i < 1 << 18; i++) model[i] = (char)data_random(7, (uint64_t)i);
  cli_write(o.data, model, 1 << 18);
  free(model);
  data_expect_rejected(o, 3, "is not text", "control characters");
  size_t n = 0;
  while (n < sizeof text - 40) n += (size_t)snprintf(text + n, sizeof text - n, "{\"text\": \"a %zu\"}\n", n);
  cli_write(o.data = cli_path("kind.jsonl"), text, n);
  data_expect_rejected(o, 2, "conversations are encoded by a model's own tokenizer", "--init_from");
  Corpus c;
  Error e;
  for (int every : {50, 500}) {                  // Latin-1
    for (int i = 0; i < 1000; i++) text[i] = i % 20 == 19 ? '\n' : i % every == 4 ? (char)0xe9 : 'a';
    cli_write(o.data = cli_path("kind.txt"), text, 1000);
    o.as_text = every == 50;
    REQUIRE(corpus_load(&c, o, &e), "bytes that are no UTF-8: %s", e.text);
    snprintf(line, sizeof line, "kind.txt: %d of 1000 bytes are no UTF-8, the first is 0xe9 at byte 5; if it is text "
             "in Windows-1252 or Latin-1: iconv -f WINDOWS-1252 -t UTF-8 ", 1000 / every);
    EXPECT(strstr(c.warnings.text, line), "'%s' lacks '%s'", c.warnings.text, line);
    corpus_free(&c);
    o.as_text = false;
    if (every == 50) data_expect_rejected(o, 3, "20 of 1000 bytes are no UTF-8", "--data_as text");
  }
  cli_write(o.data = cli_path("text_train.bin"), corpora_pointer, strlen(corpora_pointer));
  data_expect_rejected(o, 3, "Git LFS pointer", "git lfs pull");
  memset(text, 'a', sizeof text);
  cli_write(o.data, text, sizeof text);
  data_expect_rejected(o, 3, "is plain text", ".txt");
}

// ---- weights -------------------------------------------------------------------------------------------------------

TEST(corpora_targets_never_block, "a pipe or a pointer as --resume, --init_from or --tokenizer: named at once") {
  CliRun r;
  mkfifo(cli_path("pipe"), 0666);
  cli_write(cli_path("p.json"), corpora_pointer, strlen(corpora_pointer));
  const struct { const char *options, *line; } table[] = {
      {"--resume @/pipe", "@/pipe is a named pipe: a checkpoint is a directory, weights are a directory or a file"},
      {"--init_from @/pipe", "@/pipe is a named pipe: a checkpoint is a directory, weights are a directory or a file"},
      {"--init_from /dev/null",
       "/dev/null is a device: a checkpoint is a directory, weights are a directory or a file"},
      {"--tokenizer @/pipe", "tokenizer @/pipe: is a named pipe; give the path of a tokenizer.json"},
      {"--tokenizer @/p.json", "tokenizer @/p.json: is a Git LFS pointer, ..."},
      {"--init_from @/p.json", "@/p.json: not a safetensors file: it is a Git LFS pointer, ..."}};
  for (const auto &row : table) {
    CLI_RUN(&r, "%s %s %s --out %s", cli_program(), cli_small(), cli_expand(row.options), cli_path("out"));
    cli_expect_rejection(&r, row.options, EXIT_MISSING, cli_expand(row.line));
    cli_free(&r);
  }
}

// ---- the cache, signals --------------------------------------------------------------------------------------------
TEST(corpora_cache_that_cannot_be,
     "a cache that cannot be made or written: one warning with the reason, training continues") {
  CliRun r;
  corpora_text("a.txt", 300, "\n");
  corpora_run(&r, "a.txt", "--cache @/a.txt/cache");
  corpora_expect(&r, "below a file", "warning: tokenizer and tokens are not cached: --cache @/a.txt/cache cannot be "
                 "made: Not a directory");
  cli_free(&r);
  corpora_run(&r, "a.txt", "--cache /proc/nowhere/cache");
  corpora_expect(&r, "in /proc", "warning: tokenizer and tokens are not cached: --cache /proc/nowhere/cache cannot be "
                 "made: No such file or directory");           // the error of /proc itself
  cli_free(&r);
  cli_need_mount_namespace();
  char command[8192];
  const char *const mounts[] = {"mount -t tmpfs -o ro tmpfs", "mount -t tmpfs -o size=4k tmpfs"};
  const char *const says[] = {"Read-only file system", "No space left on device"};
  for (int i = 0; i < 2; i++) {
    mkdir(cli_path("mnt"), 0777);
    snprintf(command, sizeof command, "%s %s --max_steps 2 --save_every -1 --sample_tokens 0 --data %s --cache %s%s "
             "--out %s", cli_program(), cli_small(), cli_path("a.txt"), cli_path("mnt"), i ? "" : "/cache",
             cli_path("out"));
    CLI_RUN(&r, "unshare -m sh -c '%s %s && %s && find %s -name \"*tmp*\" | sed s/^/left:/'", mounts[i],
            cli_path("mnt"), command, cli_path("mnt"));
    cli_expect_done(&r, says[i]);
    EXPECT(cli_count(r.text, "warning: tokenizer and tokens are not cached: ") == 1 && cli_count(r.text, says[i]) == 1,
           "no warning of %s:\n%.3000s", says[i], r.text);
    EXPECT(!strstr(r.text, "left:"), "%s: half a file is left:\n%.3000s", says[i], r.text);
    cli_free(&r);
  }
}

// Whether process `pid` has mapped a file: the corpus is being read.
static inline bool corpora_has_mapped(int pid, const char *path) {
  char name[64], line[1024];
  bool found = false;
  snprintf(name, sizeof name, "/proc/%d/maps", pid);
  FILE *f = fopen(name, "r");
  while (f && fgets(line, sizeof line, f)) found = found || strstr(line, path);
  if (f) fclose(f);
  return found;
}

TEST(corpora_text_that_shrinks,
     "a text that becomes shorter while it is read ends the run with its name, also after others; an address of no "
     "text is a SIGBUS as before") {
  enum { BYTES = 3 << 16 };
  char *text = (char *)malloc(BYTES), said[2048];
  Error e;
  DataWarnings warnings = {};
  memset(text, 'a', BYTES);
  for (const char *name : {"one.txt", "two.txt"}) cli_write(cli_path(name), text, BYTES);
  cli_write(cli_path("said"), "", 0);
  for (int turn = 0; turn < 2; turn++) {
    int status;
    const int child = fork();
    if (!child) {
      Text one = {}, two = {}, again = {};
      if (!freopen(cli_path("said"), "w", stderr)) _exit(99);
      lent_catch_loading_signals();
      bool ok = text_open(&one, cli_path("one.txt"), &warnings, &e) &&
                text_open(&two, cli_path("two.txt"), &warnings, &e);
      if (turn) text_free(&two);                 // what is mapped without a name
      const int fd = open(cli_path("two.txt"), O_RDWR);
      const void *p = turn ? mmap(NULL, BYTES, PROT_READ, MAP_PRIVATE, fd, 0) : two.mapped;
      ok = ok && !ftruncate(fd, 100) && text_open(&again, cli_path("one.txt"), &warnings, &e);
      _exit(ok ? ((const volatile char *)p)[BYTES - 1] : 98);
    }
    waitpid(child, &status, 0);
    FILE *f = fopen(cli_path("said"), "r");
    said[f ? fread(said, 1, sizeof said - 1, f) : 0] = 0;
    if (f) fclose(f);
    EXPECT(turn ? WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS : WIFEXITED(status) && WEXITSTATUS(status) == 3,
           "turn %d: it ended with %x: %s", turn, status, said);
    EXPECT(turn || (strstr(said, "two.txt has become shorter while it was read") && cli_count(said, "") == 1), "'%s'",
           said);
    cli_write(cli_path("two.txt"), text, BYTES);
  }
  free(text);
}
TEST(corpora_a_signal_while_reading,
     "SIGTERM or Ctrl-C while the tokenizer is trained: one line, exit code, nothing left") {
  enum { BYTES = 24 << 20 };                     // takes seconds; the signal comes as soon as it is mapped
  char *text = (char *)malloc(BYTES);
  for (size_t i = 0; i < BYTES; i++) {
    const uint64_t x = data_random(3, i);
    text[i] = x % 8 == 0 ? ' ' : x % 61 == 0 ? '\n' : (char)('a' + (x >> 32) % 26);
  }
  cli_write(cli_path("long.txt"), text, BYTES);
  free(text);
  static const struct { int ranks, signal; bool to_mpirun; } table[] = {
      {0, SIGTERM, false}, {0, SIGINT, false}, {2, SIGTERM, false}, {2, SIGTERM, true}};
  for (const auto &row : table) {
    CliRun r;
    char line[128], what[64];
    int pid = 0;
    snprintf(what, sizeof what, "%d ranks, signal %d%s", row.ranks, row.signal, row.to_mpirun ? " to mpirun" : "");
    cli_start(&r, "exec %s %s --data %s --vocab_size 60000 --cache %s --out %s", cli_ranks(row.ranks), cli_small(),
              cli_path("long.txt"), cli_path("cache"), cli_path("out"));
    for (double start = now_ms(); now_ms() - start < CLI_LIMIT_S * 1e3; usleep(2000)) {
      pid = row.ranks ? cli_find_process(0, false) : r.pid;
      if (pid > 0 && corpora_has_mapped(pid, "long.txt")) break;
    }
    kill(row.to_mpirun ? r.pid : pid, row.signal);
    r.since = test_clock();
    cli_wait(&r, CLI_LIMIT_S);
    EXPECT(cli_in_time(&r.since, 20) && (row.ranks ? r.code != 0 : r.code == EXIT_STOPPED),
           "%s: %.1f s to end, exit code %d", what, r.ms / 1e3, r.code);
    snprintf(line, sizeof line, "stopped by %s while the corpus was read; nothing was trained",
             row.signal == SIGINT ? "SIGINT" : "SIGTERM");
    EXPECT(row.to_mpirun || cli_count(r.text, line) == 1, "%s: it printed:\n%.2000s", what, r.text);
    DIR *dir = opendir(cli_path("cache"));
    for (dirent *e; dir && (e = readdir(dir));) EXPECT(e->d_name[0] == '.', "%s: %s is left", what, e->d_name);
    if (dir) closedir(dir);
    cli_expect_nothing_left(what);
    cli_free(&r);
  }
}
