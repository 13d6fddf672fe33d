// test_tensorboard.h: the event files of --tensorboard, read back by a strict reader of TFRecord and protobuf that
// shares no code with the writer but CRC-32C, which has tests; dev/check_tensorboard.py asks TensorBoard's own reader.

#include <glob.h>

// One scalar.
struct BoardScalar { int64_t step; float value; char tag[64]; };
struct Board { int scalars, starts, files; BoardScalar scalar[1024]; };

static uint32_t board_crc(const uint8_t *p, size_t n) {          // unmasks what is stored at p + n
  uint32_t masked;
  memcpy(&masked, p + n, 4);
  masked -= 0xa282ead8u;
  return masked >> 17 | masked << 15;
}
// A field of a message: its number, and its value or bytes.
struct BoardField { int number, wire; uint64_t value; const uint8_t *data; size_t bytes; };
// Takes the next field; false at the end, or if the message is malformed (then *at is not at the end).
static bool board_varint(const uint8_t *p, size_t n, size_t *at, uint64_t *value) {
  *value = 0;
  for (int shift = 0; *at < n && shift < 64; shift += 7) {
    const uint8_t byte = p[(*at)++];
    *value |= (uint64_t)(byte & 127) << shift;
    if (!(byte & 128)) return true;
  }
  return false;
}
static bool board_field(const uint8_t *p, size_t n, size_t *at, BoardField *f) {
  uint64_t key;
  *f = {};
  if (*at == n || !board_varint(p, n, at, &key)) return false;
  f->number = (int)(key >> 3);
  f->wire = (int)(key & 7);
  if (f->wire == 0) return board_varint(p, n, at, &f->value);
  if (f->wire == 2 && !board_varint(p, n, at, &f->value)) return false;
  f->bytes = f->wire == 2 ? (size_t)f->value : f->wire == 1 ? 8 : f->wire == 5 ? 4 : SIZE_MAX;
  if (f->bytes > n - *at) return false;
  f->data = p + *at;
  *at += f->bytes;
  return true;
}
static bool board_value(const uint8_t *p, size_t n, BoardScalar *x) {
  BoardField f;
  size_t at = 0;
  int seen = 0;
  while (board_field(p, n, &at, &f)) {
    if (f.number == 1 && f.wire == 2 && f.bytes < sizeof x->tag) seen |= 1, memcpy(x->tag, f.data, f.bytes);
    else if (f.number == 2 && f.wire == 5) seen |= 2, memcpy(&x->value, f.data, 4);
    else return false;
  }
  return at == n && seen == 3;
}
// One Event. first: it must have the version.
static bool board_event(Board *b, const uint8_t *p, size_t n, bool first) {
  BoardField f, v;
  size_t at = 0, in = 0;
  int64_t step = 0;
  double wall = 0;
  bool version = false;
  while (board_field(p, n, &at, &f)) {
    if (f.number == 1 && f.wire == 1) memcpy(&wall, f.data, 8);
    else if (f.number == 2 && f.wire == 0) step = (int64_t)f.value;
    else if (f.number == 3 && f.wire == 2) version = f.bytes == 13 && !memcmp(f.data, "brain.Event:2", 13);
    else if (f.number == 7 && f.wire == 2) {
      if (f.bytes != 2 || f.data[0] != 8 || f.data[1] != 1) return false;
      int kept = 0;                              // what a reader forgets
      for (int i = 0; i < b->scalars; i++) if (b->scalar[i].step < step) b->scalar[kept++] = b->scalar[i];
      b->scalars = kept;
      b->starts++;
    } else if (f.number == 5 && f.wire == 2) {
      for (in = 0; board_field(f.data, f.bytes, &in, &v);) {
        if (v.number != 1 || v.wire != 2 || b->scalars == 1024) return false;
        BoardScalar *x = &b->scalar[b->scalars++];
        *x = {};
        x->step = step;
        if (!board_value(v.data, v.bytes, x)) return false;
      }
      if (in != f.bytes) return false;
    } else return false;
  }
  return at == n && version == first && fabs(wall - (double)time(NULL)) < 86400;
}
static bool board_file(Board *b, const uint8_t *p, size_t n) {
  for (size_t at = 0; at < n;) {
    uint64_t bytes;
    const bool first = !at;
    if (n - at < 16) return false;
    memcpy(&bytes, p + at, 8);
    if (bytes > n - at - 16 || board_crc(p + at, 8) != crc32c(0, p + at, 8)) return false;
    at += 12;
    if (board_crc(p + at, bytes) != crc32c(0, p + at, bytes) || !board_event(b, p + at, bytes, first)) return false;
    at += bytes + 4;
  }
  b->files++;
  return n > 0;
}
// Reads the event files of OUT in the order of their names.
static void board_read(Board *b, const char *out) {
  char pattern[700];
  glob_t found;
  memset(b, 0, sizeof *b);
  snprintf(pattern, sizeof pattern, "%s/tensorboard/events.out.tfevents.*", out);
  if (glob(pattern, 0, NULL, &found)) return;    // sorted
  for (size_t i = 0; i < found.gl_pathc; i++) {
    int64_t bytes = 0;
    char *data = file_get(found.gl_pathv[i], 1 << 24, &bytes);
    EXPECT(data && board_file(b, (const uint8_t *)data, (size_t)bytes), "%s is no event file", found.gl_pathv[i]);
    free(data);
  }
  globfree(&found);
}
// Whether the board has exactly this scalar, once.
static bool board_has(const Board *b, int64_t step, const char *tag, double value) {
  int times = 0;
  for (int i = 0; i < b->scalars; i++)
    times += b->scalar[i].step == step && !strcmp(b->scalar[i].tag, tag) && b->scalar[i].value == (float)value;
  return times == 1;
}
// Every number of metrics.jsonl, of the last time that its step was made, is there, and nothing else.
static void board_expect_metrics(const char *what, const Board *b, const char *out) {
  static const struct { const char *kind, *key, *tag; } series[] = {
      {"step", "loss", "train/loss"},         {"step", "lr", "train/lr"},
      {"step", "grad_norm", "train/grad_norm"}, {"step", "tokens_per_s", "train/tokens_per_s"},
      {"eval", "loss", "/loss"},              {"eval", "accuracy", "/accuracy"}};
  CliMetrics m;
  cli_metrics(&m, out);
  int count = 0;
  for (int i = 0; i < m.lines; i++) {
    const cJSON *line = m.line[i], *first = NULL;
    const cJSON *at = cJSON_GetObjectItemCaseSensitive(line, "step");
    const double step = at ? at->valuedouble : 0;
    bool again = false;                          // a later run of this file makes the step once more
    for (int k = i + 1; k < m.lines; k++)
      if (cli_is_kind(m.line[k], "run") && (first = cJSON_GetObjectItemCaseSensitive(m.line[k], "first_step")))
        again = again || first->valuedouble <= step;
    for (const auto &s : series) {
      const cJSON *v = cJSON_GetObjectItemCaseSensitive(line, s.key);
      if (!cli_is_kind(line, s.kind) || again) continue;
      char tag[96];
      snprintf(tag, sizeof tag, "%s%s", s.tag[0] == '/' ? cli_string(line, "split") : "", s.tag);
      // metrics.jsonl has one decimal of tokens/s
      bool found = v && board_has(b, (int64_t)step, tag, v->valuedouble);
      for (int k = 0; k < b->scalars && !strcmp(s.key, "tokens_per_s"); k++)
        found = found || (b->scalar[k].step == (int64_t)step && !strcmp(b->scalar[k].tag, tag) &&
                          fabs(b->scalar[k].value - v->valuedouble) <= 0.05 + 1e-7 * v->valuedouble);
      EXPECT(found, "%s: %s of step %.0f is not there", what, tag, step);
      count++;
    }
  }
  EXPECT(count == b->scalars && count > 20, "%s: %d scalars, metrics.jsonl has %d", what, b->scalars, count);
  cli_metrics_free(&m);
}

TEST(tensorboard_files_have_the_numbers_of_metrics,
     "--tensorboard: event files with valid checksums and metrics.jsonl's numbers; a resumed run purges what it makes "
     "again; a fresh run moves the directory aside; a flipped bit is found") {
  static Board b;
  CliRun r;
  const char *out = cli_path("out");
  char many[2048];
  snprintf(many, sizeof many, "%s --global_batch 8 --schedule constant --warmup 2 --eval_every 4 --save_every 5 "
           "--keep 0 --tensorboard --out %s", cli_small(), out);
  CLI_RUN(&r, "%s %s --max_steps 8", cli_ranks(2), many);
  cli_expect_done(&r, "eight steps");
  cli_free(&r);
  board_read(&b, out);
  board_expect_metrics("eight steps", &b, out);
  EXPECT(b.files == 1 && !b.starts, "%d files, %d starts", b.files, b.starts);
  // From step 5 on, in the same second as likely as not: three steps are made again.
  CLI_RUN(&r, "rm -r %s/ckpt/step_00000008 && %s %s --resume auto --max_steps 12", out, cli_ranks(0), many);
  cli_expect_done(&r, "resumed");
  EXPECT(cli_count(r.text, ", step 5, read in ") == 1, "it printed:\n%.3000s", r.text);
  cli_free(&r);
  board_read(&b, out);
  board_expect_metrics("resumed", &b, out);
  EXPECT(b.files == 2 && b.starts == 1, "%d files, %d starts", b.files, b.starts);
  CLI_RUN(&r, "%s %s --max_steps 8 && ls %s", cli_ranks(0), many, out);
  cli_expect_done(&r, "a fresh run");
  EXPECT(cli_count(r.text, "/tensorboard is of an earlier run; it is now ") == 1 && strstr(r.text, "\ntensorboard.1\n"),
         "it printed:\n%.3000s", r.text);
  cli_free(&r);
  board_read(&b, out);
  board_expect_metrics("a fresh run", &b, out);
  // The reader above is strict: any flipped bit is found.
  glob_t found;
  char pattern[700];
  snprintf(pattern, sizeof pattern, "%s/tensorboard/events*", out);
  REQUIRE(!glob(pattern, 0, NULL, &found), "no event file");
  int64_t bytes = 0;
  char *data = file_get(found.gl_pathv[0], 1 << 24, &bytes);
  for (int64_t bit = 0; bit < 8 * bytes; bit += 97) {
    data[bit / 8] = (char)(data[bit / 8] ^ 1 << bit % 8);
    b.scalars = 0;
    EXPECT(!board_file(&b, (const uint8_t *)data, (size_t)bytes), "bit %lld flipped, and not found", (long long)bit);
    data[bit / 8] = (char)(data[bit / 8] ^ 1 << bit % 8);
  }
  free(data);
  globfree(&found);
}
TEST(tensorboard_survives_a_full_disk,
     "a disk that fills up ends the event file after whole records, with one warning, and not the run") {
  Tensorboard b;
  char aside[700], path[600];
  static Board read;
  snprintf(path, sizeof path, "%s/tensorboard", cli_path(""));
  REQUIRE(tensorboard_open(&b, path, -1, aside, sizeof aside), "%s", strerror(errno));
  signal(SIGXFSZ, SIG_IGN);
  const struct rlimit most = {200, 200};
  setrlimit(RLIMIT_FSIZE, &most);
  const TensorboardScalar x = {"train/loss", 4.25};
  int wrote = 0;
  while (wrote < 100 && tensorboard_write(&b, wrote + 1, &x, 1) && b.file) wrote++;
  EXPECT(wrote > 0 && wrote < 100 && !b.file && errno == EFBIG, "%d records, errno %d", wrote, errno);
  EXPECT(tensorboard_write(&b, 100, &x, 1), "a closed file is written");
  board_read(&read, test_tmp());
  EXPECT(read.files == 1 && read.scalars == wrote, "%d of %d scalars are whole", read.scalars, wrote);
}
