// test_shards.h: token streams in several files of all kinds, mixtures, orders without a table, files that change.
// Follows test_corpora.h.

enum ShardKind { SHARD_LLMC, SHARD_LLAMA, SHARD_BARE, SHARD_LLMQ, SHARD_LLMQ_MASKS, SHARD_MEGATRON, SHARD_MEGATRON_INT,
                 SHARD_KINDS };
static inline bool shard_masked(int64_t i) { return data_mix((uint64_t)i) % 3 == 0; }
// TEST_TMP/`name` with n tokens of this kind. at: where in the stream the first one is (masks).
static inline void shard_write(const char *name, ShardKind kind, const uint16_t *ids, int n, int64_t at = 0) {
  static uint8_t file[1 << 16];
  const bool wide = kind != SHARD_LLMC && kind != SHARD_BARE && kind != SHARD_MEGATRON;
  const bool bare = kind == SHARD_BARE || kind >= SHARD_MEGATRON;
  int32_t header[256] = {kind == SHARD_LLAMA ? 20240801 : 20240520, kind == SHARD_LLAMA ? 7 : 1, n};
  if (kind == SHARD_LLMQ || kind == SHARD_LLMQ_MASKS) {
    memcpy(header, "BIN.TOK\n", 8);
    header[2] = 2, header[3] = 4, header[4] = n, header[5] = 300, header[6] = kind == SHARD_LLMQ_MASKS;
  }
  size_t bytes = bare ? 0 : sizeof header;
  memset(file, 0, sizeof file);
  memcpy(file, header, bytes);
  for (int i = 0; i < n; i++, bytes += wide ? 4 : 2) memcpy(file + bytes, &ids[i], 2);
  for (int i = 0; i < n && kind == SHARD_LLMQ_MASKS; i++)
    if (!shard_masked(at + i)) file[bytes + (size_t)i / 8] |= (uint8_t)(1 << i % 8);
  cli_write(cli_path(name), file, bytes + (kind == SHARD_LLMQ_MASKS ? (size_t)(n + 7) / 8 : 0));
  if (kind < SHARD_MEGATRON) return;
  const uint64_t counts[2] = {2, 1}, one = 1;     // two sequences, one document
  const int32_t lengths[2] = {n / 3, n - n / 3};
  const int64_t places[3] = {0, (wide ? 4 : 2) * (n / 3), 2};
  memset(file, 0, 64);
  memcpy(file, "MMIDIDX\0", 9), memcpy(file + 9, &one, 8), file[17] = wide ? 4 : 8, memcpy(file + 18, counts, 16);
  memcpy(file + 34, lengths, 8), memcpy(file + 42, places, 24);
  char idx[1024];
  snprintf(idx, sizeof idx, "%.*s.idx", (int)strlen(name) - 4, name);
  cli_write(cli_path(idx), file, 66);
}
static inline void shard_ids(uint16_t *ids, int n, uint64_t key) {
  for (int i = 0; i < n; i++) ids[i] = (uint16_t)data_below(data_random(key, (uint64_t)i), 289);
}
static inline CorpusOptions shard_options(const char *data) {
  CorpusOptions o = data_options(data);
  o.vocab_size = 290;
  return o;
}
// All that training and evaluation read of a split, in order.
static inline void shard_expect_same(const char *what, const Split *a, const Split *b) {
  enum { B = 2, T = 13 };
  int32_t x[2][B * T], y[2][B * T];
  EXPECT(a->tokens_numel == b->tokens_numel, "%s: %lld tokens, not %lld", what, (long long)b->tokens_numel,
         (long long)a->tokens_numel);
  Sampler s = data_sampler(a, {B, T, 3, true, false, 5}), z = data_sampler(b, {B, T, 3, true, false, 5});
  int differ = 0;
  for (int64_t step = 0; step < s.steps_per_epoch; step++)
    for (int64_t m = 0; m < 3; m++) {
      microbatch_read_ahead(&z, step + 1, m);
      microbatch_fill(&s, step, m, x[0], x[1]), microbatch_fill(&z, step, m, y[0], y[1]);
      differ += memcmp(x, y, sizeof x) != 0;
    }
  for (int64_t w = 0; w <= eval_windows_numel(a, T); w++) {
    eval_window_fill(a, T, w, x[0], x[1]), eval_window_fill(b, T, w, y[0], y[1]);
    differ += memcmp(x[0], y[0], T * 4) || memcmp(x[1], y[1], T * 4);
  }
  EXPECT(!differ, "%s: %d microbatches or windows differ", what, differ);
  free(s.order), free(z.order);
}

TEST(shards_are_one_stream,
     "a stream cut anywhere, into files of any kind, gives the samples, masks and windows of one file, and of files of "
     "one width its hash; here and as passed to other ranks") {
  enum { N = 3001 };
  static uint16_t ids[N];
  shard_ids(ids, N, 1);
  for (int turn = 0; turn < 24; turn++) {
    const bool masks = turn % 3 == 1, mixed = turn % 3 == 2;
    shard_write("one_train.bin", masks ? SHARD_LLMQ_MASKS : SHARD_LLMC, ids, N);
    shard_write("one_val.bin", SHARD_BARE, ids, 100);
    char list[4096] = "";
    int files = 0;
    for (int at = 0; at < N; files++) {
      char name[64];
      int n = 2 + (int)data_below(data_random((uint64_t)turn, (uint64_t)files), files % 2 ? 900 : 40);
      if (N - at - n < 2) n = N - at;
      snprintf(name, sizeof name, "t%d_train_%04d.bin", turn, files);
      shard_write(name, masks ? SHARD_LLMQ_MASKS : mixed ? (ShardKind)(files % SHARD_KINDS == SHARD_LLMQ_MASKS ?
                  SHARD_LLMQ : files % SHARD_KINDS) : files % 2 ? SHARD_BARE : SHARD_LLMC, ids + at, n, at);
      snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", files ? "," : "", cli_path(name));
      at += n;
    }
    char pattern[64], what[64];
    snprintf(pattern, sizeof pattern, "t%d_*.bin", turn);
    snprintf(what, sizeof what, "turn %d, %d files", turn, files);
    Corpus one, many, there;
    Error e;
    REQUIRE(corpus_load(&one, shard_options(cli_path("one_train.bin")), &e), "%s", e.text);
    CorpusOptions o = shard_options(turn % 2 ? cli_path(pattern) : list);
    o.val_data = cli_path("one_val.bin");
    REQUIRE(corpus_load(&many, o, &e), "%s: %s", what, e.text);
    EXPECT(many.split[SPLIT_TRAIN].files == files, "%s: %d are taken", what, many.split[SPLIT_TRAIN].files);
    EXPECT(mixed || many.hash == one.hash, "%s: another hash", what);
    void *image = calloc(1, corpus_block_bytes(&many));
    corpus_to_block(&many, image);
    REQUIRE(corpus_of_block(&there, image, corpus_block_bytes(&many), &e), "%s: %s", what, e.text);
    shard_expect_same(what, &one.split[SPLIT_TRAIN], &many.split[SPLIT_TRAIN]);
    shard_expect_same("there", &one.split[SPLIT_TRAIN], &there.split[SPLIT_TRAIN]);
    free(image);
    corpus_free(&one), corpus_free(&many), corpus_free(&there);
  }
}

TEST(shards_mixture,
     "after any number of samples each source of a mixture has had its share to within one; its samples come once a "
     "pass, whole, across epochs; every rank sees the same") {
  static const struct { const char *list; int sources, weight[4]; } table[] = {
      {"@/a_train.bin:0.7,@/b_train.bin:0.3", 2, {7, 3}}, {"@/a_train.bin:1,@/b_train.bin:0.001", 2, {1000, 1}},
      {"@/a_train.bin:6.5,@/b_train.bin:1,@/c_train_*.bin:2.5,@/d_train.bin:1.00", 4, {13, 2, 5, 2}},
      {"@/a_train.bin:0.333333,@/b_train.bin:0.666667", 2, {333333, 666667}}};
  enum { N = 700, T = 9, B = 2, M = 3, STEPS = 4000 };
  static uint16_t ids[4 * N];
  for (int i = 0; i < 4 * N; i++) ids[i] = (uint16_t)i;          // an id tells its source and place
  const int length[] = {N, N / 2, 2 * N - 5, 47};
  int at[5] = {0, N, N + N / 2, N + N / 2 + 2 * N - 5};
  shard_write("a_train.bin", SHARD_LLMC, ids, length[0]);
  shard_write("b_train.bin", SHARD_LLAMA, ids + at[1], length[1]);
  shard_write("c_train_1.bin", SHARD_BARE, ids + at[2], N);
  shard_write("c_train_2.bin", SHARD_BARE, ids + at[2] + N, length[2] - N);
  shard_write("d_train.bin", SHARD_LLMC, ids + at[3], length[3]);
  for (const char *name : {"a_val.bin", "b_val.bin", "c_val_1.bin", "d_val.bin"})
    shard_write(name, SHARD_LLMC, ids, 50);
  for (const auto &row : table) {
    Corpus c;
    Error e;
    CorpusOptions o = shard_options(cli_expand(row.list));
    o.vocab_size = 65536;
    REQUIRE(corpus_load(&c, o, &e), "%s", e.text);
    const Split *s = &c.split[SPLIT_TRAIN];
    EXPECT(s->sources == row.sources && c.split[SPLIT_VALID].tokens_numel == 50 * row.sources, "%d sources, %lld",
           s->sources, (long long)c.split[SPLIT_VALID].tokens_numel);
    Sampler x = data_sampler(s, {B, T, M, true, true, 3}), y = data_sampler(s, {B, T, M, true, true, 3});
    int64_t had[4] = {}, all = 0, W = 0;
    static int seen[4][4 * N];
    memset(seen, 0, sizeof seen);
    for (int k = 0; k < row.sources; k++) W += row.weight[k];
    int64_t total = 0;
    for (int k = 0; k < row.sources; k++) total += (length[k] - 1) / T;
    EXPECT(x.steps_per_epoch == total / (B * M), "%lld steps an epoch", (long long)x.steps_per_epoch);
    int wrong = 0;
    for (int64_t step = 0; step < STEPS; step++) for (int64_t m = 0; m < M; m++) {
      int32_t in[B * T], out[B * T], in2[B * T], out2[B * T];
      sampler_set_epoch(&x, step / x.steps_per_epoch);
      microbatch_fill(&x, step % x.steps_per_epoch, m, in, out);
      if (step > STEPS - 20) {                   // starts here: a run that continues
        sampler_set_epoch(&y, step / x.steps_per_epoch);
        microbatch_fill(&y, step % x.steps_per_epoch, m, in2, out2);
        wrong += memcmp(in, in2, sizeof in) || memcmp(out, out2, sizeof out);
      }
      for (int b = 0; b < B; b++) {
        int k = row.sources - 1;
        while (in[b * T] < at[k]) k--;
        const int place = in[b * T] - at[k], pass = (int)(had[k] / ((length[k] - 1) / T));
        wrong += place % T || seen[k][place / T]++ != pass;
        for (int t = 0; t < T; t++) wrong += in[b * T + t] != in[b * T] + t || out[b * T + t] != in[b * T] + t + 1;
        had[k]++, all++;
        for (int j = 0; j < row.sources; j++) wrong += llabs(had[j] * W - row.weight[j] * all) >= W;
      }
    }
    EXPECT(!wrong, "%s: %d samples are wrong", row.list, wrong);
    free(x.order), free(y.order);
    corpus_free(&c);
  }
}

TEST(shards_order_without_a_table,
     "the keyed order is a permutation of any number of samples, another one for each key; above 2^24 samples a "
     "sampler takes no memory for it") {
  static uint8_t seen[1 << 21];
  for (uint64_t n : {1, 2, 3, 5, 17, 64, 65, 1000, 4097, 100003}) for (uint64_t key : {1, 2}) {
    memset(seen, 0, sizeof seen);
    uint64_t twice = 0, same = 0;
    for (uint64_t i = 0; i < n; i++) {
      const uint64_t j = data_permute(key, i, n);
      REQUIRE(j < n, "%llu of %llu", (unsigned long long)j, (unsigned long long)n);
      twice += seen[j / 8] >> j % 8 & 1;
      seen[j / 8] |= (uint8_t)(1 << j % 8);
      same += data_permute(key + 2, i, n) == j;
    }
    EXPECT(!twice && (n < 64 || same < n / 8), "%llu: %llu twice, %llu the same", (unsigned long long)n,
           (unsigned long long)twice, (unsigned long long)same);
  }
  Split big = {};
  big.tokens_numel = SAMPLER_TABLE_NUMEL + 1001;
  const SamplerOptions o = {8, 1, 1, true, true, 1};
  Sampler s;
  Error e;
  REQUIRE(!sampler_bytes(&big, o) && sampler_init(&s, &big, o, NULL, &e), "%zu bytes", sampler_bytes(&big, o));
  memset(seen, 0, sizeof seen);
  int64_t above = 0, twice = 0, first = 0;
  for (int64_t epoch = 0; epoch < 2; epoch++) {
    sampler_set_epoch(&s, epoch);
    for (int64_t i = 0; i < 100000; i++) {
      const int64_t j = sampler_sample(&s, i);
      first += epoch && j == i;
      above += j < 0 || j >= s.samples_numel;
      if (epoch || j / 8 >= (int64_t)sizeof seen) continue;
      twice += seen[j / 8] >> j % 8 & 1;
      seen[j / 8] |= (uint8_t)(1 << j % 8);
    }
  }
  EXPECT(!above && !twice && first < 100, "%lld outside, %lld twice", (long long)above, (long long)twice);
  big.tokens_numel = SAMPLER_TABLE_NUMEL + 1;    // the order of before
  EXPECT(sampler_bytes(&big, o) == sizeof(uint32_t) * (size_t)SAMPLER_TABLE_NUMEL, "no table");
}

// Reads token `at` in another process, which must end with this code and one line that has both texts.
static inline void shard_expect_dies(const Split *s, int64_t at, int code, const char *has, const char *has_too) {
  char text[4096] = "";
  int status = 0;
  fflush(NULL);
  const int child = fork();
  if (!child) {
    if (!freopen(cli_path("died.txt"), "w", stderr)) _exit(99);
    error_hook = NULL, die_hook = NULL;
    int32_t id;
    split_read(s, at, 1, &id);
    _exit(0);
  }
  waitpid(child, &status, 0);
  FILE *f = fopen(cli_path("died.txt"), "r");
  const size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
  if (f) fclose(f);
  EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == code && n, "it ended with %x, not code %d: %s", status, code,
         text);
  EXPECT(strstr(text, has) && strstr(text, has_too) && cli_count(text, "") == 1, "'%s' lacks '%s' or '%s'", text, has,
         has_too);
}
TEST(shards_that_change,
     "a file that shrinks is named by the read that comes short, never a signal; one that is removed is read on; an id "
     "out of the vocabulary is named at the start or when it is read; a Megatron index that does not fit is rejected") {
  enum { N = 3000, BIG = 10 << 20 };
  static uint16_t ids[N];
  Corpus c;
  Error e;
  shard_ids(ids, N, 2);
  for (const char *name : {"x_train_1.bin", "x_train_2.bin", "x_val_1.bin"}) shard_write(name, SHARD_LLMC, ids, N);
  REQUIRE(corpus_load(&c, shard_options(cli_path("x_train_*.bin")), &e), "%s", e.text);
  const Split *s = &c.split[SPLIT_TRAIN];
  unlink(cli_path("x_train_1.bin"));
  EXPECT(split_token(s, 5) == ids[5], "a removed file reads %d", split_token(s, 5));
  if (truncate(cli_path("x_train_2.bin"), 1024 + 1000)) die_missing("cannot truncate");
  EXPECT(split_token(s, N + 499) == ids[499], "what is left reads %d", split_token(s, N + 499));
  shard_expect_dies(s, N + 500, EXIT_MISSING, "x_train_2.bin has become shorter", "had 7024 bytes");
  corpus_free(&c);
  // A file in which no block that identifies it has the bad id.
  const int fd = open(cli_path("big_train.bin"), O_CREAT | O_RDWR | O_TRUNC, 0666);
  const int64_t bad = (BIG * 2 - 65536) / 255 / 2 * 3 - 2000;    // after block 2
  const uint16_t id = 290;
  if (ftruncate(fd, BIG * 2) || pwrite(fd, &id, 2, 2 * bad) != 2) die_missing("cannot write");
  close(fd);
  shard_write("big_val.bin", SHARD_BARE, ids, 50);
  REQUIRE(corpus_load(&c, shard_options(cli_path("big_train.bin")), &e), "%s", e.text);
  EXPECT(split_token(&c.split[SPLIT_TRAIN], bad - 1) == 0, "the one before");
  shard_expect_dies(&c.split[SPLIT_TRAIN], bad, EXIT_USAGE, "big_train.bin: token ", " is 290, not below --vocab_size");
  corpus_free(&c);
  char data[1024];
  snprintf(data, sizeof data, "%s", cli_path("m_train.bin"));
  for (ShardKind kind : {SHARD_MEGATRON, SHARD_MEGATRON_INT}) {
    const CorpusOptions o = shard_options(data);
    shard_write("m_val.bin", SHARD_LLMC, ids, 50);
    shard_write("m_train.bin", kind, ids, N);
    data_flip_byte(cli_path("m_train.idx"), 17);
    data_expect_rejected(o, 3, "m_train.idx", "dtype");
    static const struct { int at, bytes; int64_t value; const char *says; } faults[] = {
        {34, 4, -5, "a sequence has a negative length"}, {42, 8, 2, "its first sequence is not at byte 0"},
        {50, 8, 3, "its sequences are not stored one after another"},
        {58, 8, 7, "its documents do not end at sequences in their order"}, {58, 8, -1, "its documents do not end"}};
    for (const auto &x : faults) {
      shard_write("m_train.bin", kind, ids, N);
      FILE *f = fopen(cli_path("m_train.idx"), "r+b");
      fseek(f, x.at, SEEK_SET);
      fwrite(&x.value, 1, (size_t)x.bytes, f);
      fclose(f);
      data_expect_rejected(o, 3, x.says, "m_train.idx is a Megatron index that is damaged");
    }
    shard_write("m_train.bin", kind, ids, N);
    if (truncate(cli_path("m_train.bin"), 800)) die_missing("cannot truncate");
    data_expect_rejected(o, 3, "do not belong together", "m_train.bin has 800 bytes");
    if (truncate(cli_path("m_train.idx"), 60)) die_missing("cannot truncate");
    data_expect_rejected(o, 3, "m_train.idx is a Megatron index that is damaged", "write it again");
  }
  TokenFile wide = {};                           // ids of 2^31 and above, too, which no vocabulary reaches
  Error line = {};
  for (uint32_t x : {(1u << 24) - 1, 1u << 31, UINT32_MAX}) {
    token_file_bad_id(&wide, 3, x, x, 290, &line);
    EXPECT(strstr(line.text, x >> 24 ? "no vocabulary has" : "must be at least 16777216"), "%u: %s", x, line.text);
  }
}

TEST(shards_of_twenty_gigabytes,
     "20 GB of tokens in 20 files are opened, and samples all over them read, within 64 MiB of memory") {
  enum { B = 8, T = 64, STEPS = 200 };
  char name[64];
  uint16_t ids[100] = {};
  for (int i = 0; i < 20; i++) {                 // holes: no disk is needed
    snprintf(name, sizeof name, "g_train_%d.bin", i);
    const int fd = open(cli_path(name), O_CREAT | O_RDWR, 0666);
    if (fd < 0 || ftruncate(fd, 1000000000)) SKIP("no file of 1 GB can be made");
    close(fd);
  }
  shard_write("g_val.bin", SHARD_LLMC, ids, 100);
  char val[1024];
  snprintf(val, sizeof val, "%s", cli_path("g_val.bin"));
  Corpus c;
  Error e;
  CorpusOptions o = shard_options(cli_path("g_train_*.bin"));
  o.val_data = val;
  rusage before, after;
  getrusage(RUSAGE_SELF, &before);
  REQUIRE(corpus_load(&c, o, &e), "%s", e.text);
  const Split *s = &c.split[SPLIT_TRAIN];
  Sampler x = data_sampler(s, {B, T, 1, true, true, 3});
  EXPECT(s->tokens_numel == 10000000000 && x.samples_numel == (s->tokens_numel - 1) / T, "%lld tokens",
         (long long)s->tokens_numel);
  int32_t in[B * T], out[B * T];
  bool files[20] = {};
  for (int64_t step = 0; step < STEPS; step++) {
    microbatch_read_ahead(&x, step + 1, 0);
    microbatch_fill(&x, step, 0, in, out);
    for (int64_t b = 0; b < B; b++) files[split_file_at(s, sampler_first(&x, step * B + b)) - s->file] = true;
  }
  for (bool f : files) EXPECT(f, "a file is not read");
  getrusage(RUSAGE_SELF, &after);
  const long kib = after.ru_maxrss - before.ru_maxrss;
  EXPECT(kib < 65536, "%ld KiB", kib);
  corpus_free(&c);
}

TEST(shards_lists_are_checked, "lists, weights and --val_data: what is wrong is named, in one line") {
  static uint16_t ids[100];
  shard_ids(ids, 100, 3);
  for (const char *name : {"a_train.bin", "a_val.bin", "b.bin", "v.bin"}) shard_write(name, SHARD_LLMC, ids, 100);
  corpora_text("a.txt", 50, "\n");
  corpora_text("v.txt", 50, "\n");
  const struct { const char *data, *val; int code; const char *has, *has_too; } table[] = {
      {"@/a_train.bin:0.5,@/b.bin", "@/v.bin", 2, "expected: FILES,FILES", "weights above 0 after all of them"},
      {"@/a_train.bin:0,@/b.bin:1", "@/v.bin", 2, "expected: FILES,FILES", "above 0"},
      {"@/a_train.bin:1.2.3,@/b.bin:1", "@/v.bin", 2, "expected: FILES,FILES", "above 0"},
      {"@/a_train.bin,,@/b.bin", "@/v.bin", 2, "expected: FILES,FILES", "a_train"},
      {"@/a_train.bin:1000000,@/b.bin:0.000001", "@/v.bin", 2, "repeat only after", "fewer digits"},
      {"@/a_train.bin,@/none.bin", "", 3, "/none.bin: No such file", "--data"},
      {"@/a_train.bin:0.5,@/b.bin:0.5", "", 3, "b.bin has no `train` in it", "--val_data"},
      {"@/a_train.bin,@/a.txt", "", 3, "/a.txt: expected token files", "--data"},
      {"@/a_train.bin", "@/v.bin:0.5", 2, "--val_data", "expected: FILES,FILES"},
      {"@/a_train.bin", "@/v.txt", 3, "--val_data", "expected token files"},
      {"@/a_train.bin", "@/none*.bin", 3, "--val_data", "no file matches"},
      {"@/a.txt", "@/v.bin", 3, "v.bin is not text", "control"},
      {"generated", "@/v.txt", 2, "--val_data goes with files", "generated"}};
  for (const auto &row : table) {
    char val[1024];
    snprintf(val, sizeof val, "%s", cli_expand(row.val));
    CorpusOptions o = shard_options(cli_expand(row.data));
    o.val_data = val;
    data_expect_rejected(o, row.code, row.has, row.has_too);
  }
  Corpus c;
  Error e;
  CorpusOptions o = shard_options(cli_path("a.txt"));
  o.val_data = cli_path("v.txt");
  REQUIRE(corpus_load(&c, o, &e), "%s", e.text);
  EXPECT(c.split[SPLIT_TRAIN].lines == 50 && c.split[SPLIT_VALID].lines == 50 && !c.warnings.text[0], "%s",
         c.warnings.text);
  corpus_free(&c);
}

TEST(shards_train_as_one,
     "one file on 1 rank, its shards on 3 ranks stopped and resumed on 2: the same losses; so with a mixture, whose "
     "shares the startup log shows") {
  enum { N = 1500 };
  static uint16_t ids[N];
  shard_ids(ids, N, 4);
  for (int i = 0; i < N; i++) ids[i] = (uint16_t)(ids[i] % 5 * 7 + i % 11);     // something to learn
  shard_write("one_train.bin", SHARD_LLMC, ids, N);
  for (const char *name : {"one_val.bin", "s_val_000.bin", "b_val.bin"}) shard_write(name, SHARD_LLMC, ids, 77);
  const int cut[] = {0, 401, 403, 1100, N};
  for (int i = 0; i < 4; i++) {
    char name[64];
    snprintf(name, sizeof name, "s_train_%03d.bin", i + 1);
    shard_write(name, i % 2 ? SHARD_BARE : SHARD_LLMC, ids + cut[i], cut[i + 1] - cut[i]);
  }
  shard_write("b_train.bin", SHARD_LLAMA, ids + 600, 300);
  const struct { const char *one, *parts; } table[] = {
      {"@/one_train.bin", "@/s_train_*.bin"},
      {"@/one_train.bin:0.7,@/b_train.bin:0.3", "@/s_train_*.bin:0.7,@/b_train.bin:0.3"}};
  const char *same = "--global_batch 12 --max_steps 26 --eval_every 13 --save_every 13 --sample_tokens 0";
  for (const auto &row : table) {
    CliRun r;
    char one[1024], parts[1024];
    snprintf(one, sizeof one, "%s", cli_expand(row.one));
    snprintf(parts, sizeof parts, "%s", cli_expand(row.parts));
    CLI_RUN(&r, "rm -rf %s %s; %s %s %s --data '%s' --out %s", cli_path("one"), cli_path("many"), cli_program(),
            cli_small(), same, one, cli_path("one"));
    cli_expect_done(&r, "one file");
    EXPECT(!strchr(one, ',') || strstr(r.text, "  mixture   70 % "), "no shares:\n%.3000s", r.text);
    cli_free(&r);
    CLI_RUN(&r, "%s %s %s --data '%s' --out %s", cli_ranks(3), cli_small(), same, parts, cli_path("many"));
    cli_expect_done(&r, "shards, 3 ranks");
    cli_free(&r);
    cli_expect_same_series("shards", cli_path("one"), cli_path("many"), 26);
    CLI_RUN(&r, "rm -rf %s; %s --resume %s/ckpt/step_00000013 --threads 1 --cache= --out %s > /dev/null && cd %s && "
            "for f in one again; do grep '\"kind\":\"step\",\"step\":26,' $f/metrics.jsonl | sed "
            "'s/,\"tokens_per_s.*//' > $f.26; done; test -s one.26 && diff one.26 again.26", cli_path("again"),
            cli_ranks(2), cli_path("many"), cli_path("again"), test_tmp());
    cli_expect_done(&r, "resumed on 2 ranks");
    cli_free(&r);
  }
}
