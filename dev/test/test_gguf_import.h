// test_gguf_import.h: --init_from FILE.gguf against llama.cpp's own package (dev/make_gguf_fixture.py), against what
// --export_gguf wrote, and against damage. Follows test_gguf.h.

TEST(gguf_blocks_equal_the_package,
     "blocks of each type, hostile scales too, are the numbers of llama.cpp's gguf package, bit for bit, and round to "
     "its bf16 and to numpy's fp16") {
  SafetensorsFile f;
  if (!safetensors_open(&f, "dev/fixtures/gguf_blocks.safetensors")) die_missing("%s", f.error);
  int types = 0;
  for (const GgmlType &t : ggml_types) {
    const SafetensorsTensor *of[4];
    static const char *const parts[] = {"blocks", "values", "bf16", "f16"};
    if (!t.expand || t.id == BLOCK_NF4) continue;
    for (int i = 0; i < 4; i++) {
      char name[64];
      snprintf(name, sizeof name, "%s.%s", t.name, parts[i]);
      REQUIRE((of[i] = safetensors_entry(&f, name)), "the fixture has no %s", name);
    }
    const int64_t count = of[0]->bytes / t.bytes;
    REQUIRE(of[1]->bytes == count * t.values * 4, "%s: blocks of another size", t.name);
    int wrong = 0;
    for (int64_t b = 0; b < count; b++) {
      float got[256], want[256];
      t.expand(f.map + of[0]->at + b * t.bytes, got);
      memcpy(want, f.map + of[1]->at + b * t.values * 4, (size_t)t.values * 4);
      for (int64_t i = 0; i < t.values; i++) {
        bf16 low, low_want;
        fp16 half, half_want;
        memcpy(&low_want, f.map + of[2]->at + (b * t.values + i) * 2, 2);
        memcpy(&half_want, f.map + of[3]->at + (b * t.values + i) * 2, 2);
        round_to(&low, got[i]);
        round_to(&half, got[i]);
        const bool same = f32_bits(got[i]) == f32_bits(want[i]) && low.bits == low_want.bits &&
                          half.bits == half_want.bits;
        const bool nan = isnan(want[i]) && isnan(got[i]) && isnan(to_f32(low)) && isnan(to_f32(half));
        wrong += !same && !nan;
      }
    }
    EXPECT(!wrong && count >= 12, "%s: %d numbers of %lld blocks differ", t.name, wrong, (long long)count);
    types++;
  }
  EXPECT(types == 9, "%d types of blocks", types);
  safetensors_close(&f);
}

TEST_MPI(gguf_import_and_export_are_inverse, 1,
         "files of llama.cpp's gguf package, imported and exported again, are the same bytes: GPT-2 in Q8_0 with its "
         "tokenizer, Llama in fp16 with turned rows and scaled rope, Qwen 2 in bf16, Qwen 3 in fp32; models exported "
         "in fp32 come back with their shape, weights and logits") {
  static const struct { const char *from, *arch, *type; } cases[] = {
      {"hf_tiny", "gpt2", "q8_0"}, {"family_llama", "llama", "f16"}, {"family_qwen2", "qwen2", "bf16"},
      {"family_qwen3", "qwen3", "f32"}, {"family_llama_bias", NULL, NULL}};
  for (const auto &k : cases) {
    static FamilyRun x;
    char from[256], options[1200], made[1200], out[1024];
    Error error = {};
    ix_directory(out, k.from);
    snprintf(made, sizeof made, "%s/model.gguf", out);
    if (k.arch) {
      snprintf(from, sizeof from, "dev/fixtures/gguf_%s.gguf", k.arch);
      snprintf(options, sizeof options, "--export_gguf %s --out %s", k.type, out);
      family_open(&x, from, cpu_tables[0].ops, options);
      EXPECT(!strcmp(x.start.tokenizer, strcmp(k.arch, "gpt2") ? "" : from), "%s: its tokenizer is '%s'", from,
             x.start.tokenizer);
      x.trainer.run.published = start_published(&x.start);
      if (x.start.tokenizer[0])
        x.corpus.has_tokenizer = tokenizer_load_any(&x.corpus.tokenizer, from, &error);
      REQUIRE(export_gguf(&x.trainer.run), "%s is not exported", from);
      tokenizer_free(&x.corpus.tokenizer);
      family_close(&x);
      gguf_compare(made, from);
    }
    static const int32_t tokens[] = {3, 1, 4, 1, 5, 9, 2, 6};
    snprintf(from, sizeof from, "dev/fixtures/%s", k.from);
    snprintf(options, sizeof options, "--export_gguf f32 --out %s", out);
    float *logits[2];
    uint64_t hash[2];
    ModelShape shape[2];
    for (int i = 0; i < 2; i++) {
      family_open(&x, i ? made : from, cpu_tables[cpu_best_table()].ops, options, 8);
      logits[i] = ix_logits(&x.trainer, tokens, 8);
      hash[i] = params_hash(x.trainer.fsdp, false);
      shape[i] = x.trainer.model.shape;
      if (!i) REQUIRE(export_gguf(&x.trainer.run), "%s is not exported", from);
      family_close(&x);
    }
    shape[0].dropout = shape[1].dropout;         // which a GGUF does not have
    EXPECT(hash[0] == hash[1] && !memcmp(logits[0], logits[1], 8 * (size_t)shape[0].vocab_size * sizeof(float)),
           "%s: other weights or logits come back", from);
    EXPECT(!memcmp(&shape[0], &shape[1], sizeof shape[0]), "%s: another shape comes back", from);
    free(logits[0]);
    free(logits[1]);
  }
}

// ---- a file with tensors of all types -------------------------------------------------------------------------------
static inline ModelShape gguf_made_shape() {
  ModelShape s = {};
  s.n_layer = 2, s.n_head = s.n_kv_head = 8, s.n_embd = 256, s.head_size = 64, s.mlp_width = 256;
  s.n_positions = 64, s.vocab_size = 62;
  s.block.norm = NORM_RMSNORM, s.block.position = POSITION_ROPE, s.block.mlp = MLP_SWIGLU, s.block.bias = BIAS_NONE;
  s.block.norm_eps = 1e-5, s.block.rope_theta = 1e4;
  return s;
}
// The type of matrix i, of those that are read: shards of 5 ranks start inside blocks of 256.
static inline const GgmlType *gguf_made_type(int i) {
  enum { READ = 12, FIRST = 8 };
  return &ggml_types[(i + FIRST) % READ];
}
// Scales of a block of any bytes, so that its numbers are finite and below 1; of a vector's numbers, so that they are
// near 1. high: of a half.
static inline void gguf_tame(uint8_t *b, uint32_t type, bool vector) {
  static const struct { uint32_t type; int at, high; } scales[] = {
      {2, 0, 0x20}, {3, 0, 0x20}, {3, 2, 0x20}, {6, 0, 0x20}, {7, 0, 0x20}, {7, 2, 0x20}, {8, 0, 0x14}, {12, 0, 0x04},
      {12, 2, 0x04}, {13, 0, 0x04}, {13, 2, 0x04}, {14, 208, 0x04}, {1, 0, 0x28}, {30, 0, 0x3c}};
  if (type == 39) b[0] = 122;
  if (!type) b[2] = vector ? 0x80 : b[2], b[3] = vector ? 0x3f : (uint8_t)(0x3c | (b[3] & 0x80));
  for (const auto &x : scales) if (x.type == type) b[x.at + 1] = (uint8_t)(x.high | (b[x.at + 1] & 0x80));
}
// Writes PREFIX.gguf, or PREFIX-00001-of-0000N.gguf and its like: a Llama whose matrices have every type, of any bytes.
// key, value: one more key, a number; NULL: none. tame: what they say is no larger than weights are.
static inline void gguf_make(const char *prefix, int files, const char *key, double value, bool text = false,
                             bool tame = false) {
  const ModelShape s = gguf_made_shape();
  int params;
  Param *param = ix_params(s, &params);
  static GgufTensor t[64];
  int count = gguf_tensors(t, param, params, &s, GGUF_F32);
  uint64_t seed = 7;
  for (int i = 0, matrices = 0; i < count; i++) {
    if (t[i].param->ndim == 2) t[i].ggml = gguf_made_type(matrices++)->id;
    t[i].bytes = t[i].param->ndim == 1 ? 4 * t[i].rows : t[i].rows * ggml_row_bytes(t[i].ggml, t[i].cols);
  }
  for (int k = 0, at_tensor = 0; k < files; k++) {
    char path[1200], *header = NULL;
    size_t bytes = 0;
    if (files > 1) snprintf(path, sizeof path, "%s-%05d-of-%05d.gguf", prefix, k + 1, files);
    else snprintf(path, sizeof path, "%s.gguf", prefix);
    FILE *f = fopen(path, "wb");
    GgufKeys keys = {open_memstream(&header, &bytes), 0, "llama"};
    if (!f || !keys.f) die_missing("cannot write %s", path);
    if (!k) {
      gguf_key_text(&keys, "general.architecture", "llama");
      gguf_shape_keys(&keys, &s);
      if (key && text) gguf_key_text(&keys, key, "longrope");
      else if (key) gguf_key_float(&keys, key, value);
    }
    if (files > 1) {
      gguf_key_u32(&keys, "split.no", k);
      gguf_key_u32(&keys, "split.count", files);
      gguf_key_u32(&keys, "split.tensors.count", count);
    }
    fclose(keys.f);
    const int end = k == files - 1 ? count : count * (k + 1) / files;
    fwrite("GGUF\3\0\0", 1, 8, f);
    gguf_u64(f, (uint64_t)(end - at_tensor));
    gguf_u64(f, keys.count);
    fwrite(header, 1, bytes, f);
    free(header);
    int64_t at = 0;
    for (int i = at_tensor; i < end; i++) {
      const bool vector = t[i].param->ndim == 1;
      gguf_tensor_info(f, t[i].name, vector ? t[i].rows : t[i].cols, vector ? 0 : t[i].rows, t[i].ggml, at);
      at += (t[i].bytes + GGUF_ALIGNMENT - 1) / GGUF_ALIGNMENT * GGUF_ALIGNMENT;
    }
    gguf_pad(f, ftello(f));
    for (; at_tensor < end; at_tensor++) {
      const GgmlType *type = ggml_type(t[at_tensor].ggml);
      uint8_t block[BLOCK_BYTES_MAX];
      for (int64_t i = 0; i < t[at_tensor].bytes; i += type->bytes) {
        for (int64_t k = 0; k < type->bytes; k++) block[k] = (uint8_t)tok_random(&seed);
        if (tame) gguf_tame(block, type->id, t[at_tensor].param->ndim == 1);
        fwrite(block, 1, (size_t)type->bytes, f);
      }
      gguf_pad(f, t[at_tensor].bytes);
    }
    fclose(f);
  }
  free(param);
}
// What the file of gguf_make says of a parameter, tensor by tensor and row by row.
static TEST_HOT void gguf_made_values(float *to, const Import *s, const Param *p) {
  for (int part = 0; part < p->matrices; part++) {
    char name[FAMILY_NAME_BYTES];
    int in = 0;
    gguf_tensor_name(name, p, part, false);
    const SafetensorsTensor *t = set_entry(&s->set, name, &in);
    const GgmlType *type = NULL;
    for (const GgmlType &x : ggml_types) if (!strcmp(x.name, t->dtype_text)) type = &x;
    TokText file = tok_read("/", s->set.shard[in].path);
    const int64_t cols = param_cols(p), rows = p->matrices > 1 ? p->matrix_rows[part] : p->shape[0], hs = 64;
    for (int64_t r = 0; r < rows; r++, to += cols) {
      const int64_t half = r % hs / (hs / 2), pair = r - r % hs + 2 * (r % (hs / 2)) + half;
      const int64_t row = p->matrices == 3 && part < 2 ? pair : r;
      const uint8_t *from = file.bytes + t->at + row * cols / type->values * type->bytes;
      for (int64_t c = 0; c < cols; c += type->values, from += type->bytes) {
        if (type->expand) type->expand(from, to + c);
        else if (type->dtype == F32) memcpy(to + c, from, 4);
        else if (type->dtype == F16) to[c] = block_half(from);
        else to[c] = bits_f32((uint32_t)(from[0] | from[1] << 8) << 16);
      }
    }
    free(file.bytes);
  }
}

// Every number of a model of gguf_make, in one file and in three, on all ranks of the test.
static inline void gguf_expect_values() {
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  char prefix[1024], path[1100];
  Error error = {};
  ix_path(prefix, test_tmp(), "all");
  if (!rank) gguf_make(prefix, 1, NULL, 0), gguf_make(prefix, 3, NULL, 0);
  MPI_Barrier(MPI_COMM_WORLD);
  for (const char *end : {".gguf", "-00001-of-00003.gguf"}) {
    static IxRun x;
    snprintf(path, sizeof path, "%s%s", prefix, end);
    ix_run_open(&x, path, MPI_COMM_WORLD);
    Import *s = import_open(path, NULL, &error);
    REQUIRE(s, "%s", error.text);
    for (int p = 0; p < x.trainer.fsdp->lay.params; p++) {
      const Param *q = &x.trainer.fsdp->lay.param[p];
      float *got = (float *)malloc(sizeof(float) * (size_t)param_numel_padded(q));
      float *want = (float *)malloc(sizeof(float) * (size_t)param_numel_padded(q));
      fsdp_read_param(x.trainer.fsdp, STATE_MASTER, p, got);
      gguf_made_values(want, s, q);
      EXPECT(!memcmp(got, want, sizeof(float) * (size_t)param_numel(q)), "%s: %s differs", end, q->name);
      free(got);
      free(want);
    }
    Fsdp *&f = x.trainer.fsdp;
    TensorMap map;
    ChunkCursor cursor = {};
    Chunk k;
    int inside[2] = {}, world;
    REQUIRE(import_map(s, f->lay.param, f->lay.params, &map, &error), "%s", error.text);
    while (chunk_next(f, &map, 1u << STATE_MASTER, &cursor, &k)) {
      inside[0] += k.place.ggml && k.first % ggml_type((uint32_t)k.place.ggml)->values;
      inside[1] += k.place.in_turn && k.first % param_cols(fsdp_param(f, k.param));
    }
    MPI_Allreduce(MPI_IN_PLACE, inside, 2, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    EXPECT(world < 5 || (inside[0] && inside[1]), "%d shards start inside a block, %d inside a row that alternates",
           inside[0], inside[1]);
    tensor_map_free(&map);
    import_close(s);
    ix_run_close(&x);
  }
}
TEST_MPI(gguf_ranks_1, 1,
         "a Llama whose matrices are of all types, of any bytes, in one file and in three: each number is what its "
         "block says") {
  gguf_expect_values();
}
TEST_MPI(gguf_ranks_2, 2, "and so on two ranks") { gguf_expect_values(); }
TEST_MPI(gguf_ranks_3, 3, "and so on three ranks") { gguf_expect_values(); }
TEST_MPI(gguf_ranks_5, 5, "and so on five ranks, whose shards start inside blocks and inside rows that alternate") {
  gguf_expect_values();
}

void gguf_write_tokenizer(const Tokenizer *t, int unused, const char *name, char *path, size_t path_bytes) {
  char *text = NULL;
  size_t bytes = 0;
  GgufKeys keys = {open_memstream(&text, &bytes), 0, "llama"};
  const ExportTexts texts = {t, NULL, NULL, ""};
  TextEnds ends = text_ends(&texts);
  gguf_tokenizer_keys(&keys, t, t->vocab_size + unused, &ends);
  fclose(keys.f);
  snprintf(path, path_bytes, "%s/%s.gguf", test_tmp(), name);
  FILE *f = fopen(path, "wb");
  fwrite("GGUF\3\0\0\0\0\0\0\0\0\0\0", 1, 16, f);
  gguf_u64(f, keys.count);
  fwrite(text, 1, bytes, f);
  fclose(f);
  free(text);
  text_ends_free(&ends);
}

TEST(gguf_tokenizers_come_back,
     "the tokenizers of Llama 3, Qwen 2 and SmolLM2, written into a GGUF and read from it, give the ids of before, of "
     "hostile text too, with their begin and their special tokens; as tokenizer.json they are the same again") {
  char name[64], path[1100], json[1100];
  Error error = {};
  const TokText texts[] = {tok_fixture("tokenizer_hostile.txt"), tok_fixture("tokenizer_families.txt"),
                           tok_some_points()};
  for (const auto &x : tok_families) {
    Tokenizer t, again;
    if (!strcmp(x.name, "nanochat")) continue;
    snprintf(name, sizeof name, "tokenizer_%s.json", x.name);
    tok_load_fixture(&t, name);
    for (int i = 0; i < t.added_count; i++) t.added[i].normalized = false;     // which a GGUF does not say
    snprintf(json, sizeof json, "%s/%s.json", test_tmp(), x.name);
    gguf_write_tokenizer(&t, 5, x.name, path, sizeof path);
    for (int i = 0; i < 2; i++) {
      REQUIRE(tokenizer_load_any(&again, i ? json : path, &error), "%s", error.text);
      EXPECT(again.vocab_size == t.vocab_size && again.adds_bos == t.adds_bos && again.added_count == t.added_count &&
             (!t.adds_bos || again.bos_id == t.bos_id) && again.nfc == t.nfc && again.divides == t.divides &&
             again.ignore_merges == t.ignore_merges, "%s comes back as another", x.name);
      for (const TokText &text : texts) {
        const size_t most = tokenizer_ids_most(&t, text.count) + 1;
        int32_t *ids = (int32_t *)malloc(2 * most * sizeof *ids), *others = ids + most;
        const int64_t n = tokenizer_encode(&t, text.bytes, text.count, ids);
        const int64_t m = tokenizer_encode(&again, text.bytes, text.count, others);
        EXPECT(n == m && !memcmp(ids, others, (size_t)n * sizeof *ids), "%s: other ids come back", x.name);
        free(ids);
      }
      if (!i) REQUIRE(tokenizer_save(&again, json, &error), "%s", error.text);
      tokenizer_free(&again);
    }
    tokenizer_free(&t);
  }
  for (const TokText &text : texts) free(text.bytes);
}

// ---- rejections -----------------------------------------------------------------------------------------------------
TEST(gguf_rejects_by_key,
     "keys that ask for another function, adapters, and files of a split model that are missing, another's or not the "
     "first are rejected by name") {
  static const struct { const char *key; double value; bool text; const char *says; } cases[] = {
      {".expert_count", 8, false, "llama.expert_count is 8, only 0"}, {".attention.causal", 0, false, "causal is 0"},
      {".rope.scaling.type", 0, true, "rope.scaling.type is \"longrope\""},
      {".rope.scale_linear", -2, false, "rope_type linear needs factor"},
      {".attention.sliding_window", 32, false, NULL}, {".expert_used_count", 2, false, NULL},
      {"general.type", 0, true, NULL}, {"general.alignment", 48, false, "general.alignment is 48, expected a power"},
      {".attention.head_count", 4, false, "llama.attention.head_count is there twice"}};
  char prefix[1024], path[1100];
  Error error = {};
  ix_path(prefix, test_tmp(), "one");
  snprintf(path, sizeof path, "%s.gguf", prefix);
  for (const auto &k : cases) {
    gguf_make(prefix, 1, k.key, k.value, k.text);
    if (k.says) { ix_rejected(path, k.says, path, NULL); continue; }
    Import *s = import_open(path, NULL, &error);
    REQUIRE(s, "%s: %s", k.key, error.text);
    EXPECT((strstr(s->is.warning, "sliding window") != NULL) == (k.value == 32), "warning '%s'", s->is.warning);
    EXPECT((s->is.shape.n_positions == 32) == (k.value == 32), "%s: %lld positions", k.key,
           (long long)s->is.shape.n_positions);
    import_close(s);
  }
  ix_rejected("dev/fixtures/gguf_lora_llama.gguf", "is an adapter", NULL, NULL);
  gguf_make(prefix, 3, NULL, 0);
  char other[1100];
  snprintf(other, sizeof other, "%s-00002-of-00003.gguf", prefix);
  snprintf(path, sizeof path, "%s-00001-of-00003.gguf", prefix);
  ix_rejected(other, "is file 2 of 3", "name the first one", NULL);
  rename(other, prefix);
  ix_rejected(path, "was split into 3 files", other, "is not there");
  TokText third = tok_read(test_tmp(), "one-00003-of-00003.gguf");
  tok_write(other, third.bytes, third.count);
  ix_rejected(path, other, "is not file 2 of 3", NULL);
  free(third.bytes);
}

// A GGUF of 2 blocks, 4 heads and a width of 32 with no more keys than llama.cpp needs, and those of `keys`,
// "NAME:VALUE NAME:VALUE ...": floats, texts where the value starts with a letter. It has one tensor, the embedding.
static inline void gguf_make_keys(const char *path, const char *arch, const char *keys) {
  static const struct { const char *key; int64_t value; } needed[] = {
      {".block_count", 2}, {".attention.head_count", 4}, {".embedding_length", 32}, {".feed_forward_length", 128},
      {".context_length", 512}};
  char *header = NULL, list[512], *rest = list;
  size_t bytes = 0;
  GgufKeys k = {open_memstream(&header, &bytes), 0, arch};
  gguf_key_text(&k, "general.architecture", arch);
  for (const auto &x : needed) gguf_key_u32(&k, x.key, x.value);
  const bool gpt2 = !strcmp(arch, "gpt2");
  gguf_key_float(&k, gpt2 ? ".attention.layer_norm_epsilon" : ".attention.layer_norm_rms_epsilon", 1e-5);
  snprintf(list, sizeof list, "%s", keys);
  for (char *word; (word = strtok_r(rest, " ", &rest));) {
    char *value = strchr(word, ':');
    *value++ = 0;
    if (isalpha((unsigned char)*value) || !*value) gguf_key_text(&k, word, value);
    else gguf_key_float(&k, word, strtod(value, NULL));
  }
  fclose(k.f);
  FILE *f = fopen(path, "wb");
  if (!f) die_missing("cannot write %s", path);
  fwrite("GGUF\3\0\0", 1, 8, f);
  gguf_u64(f, 1);
  gguf_u64(f, k.count);
  fwrite(header, 1, bytes, f);
  gguf_tensor_info(f, "token_embd.weight", 32, 61, 0, 0);
  gguf_pad(f, ftello(f));
  for (int i = 0; i < 32 * 61; i++) fwrite("\0\0\0", 1, 4, f);
  fclose(f);
  free(header);
}
TEST(gguf_absent_keys_mean_what_llama_cpp_takes,
     "keys that a GGUF leaves out mean what llama.cpp takes for them, in each architecture: linear rope, base 10000, "
     "as many KV heads, even heads, no window; keys that would then be passed over are rejected by name") {
  static const struct { const char *arch, *keys, *is; } cases[] = {      // kv, columns, base, scaling, window, its base
      {"llama", "", "4 8 10000 none 0 0"}, {"qwen2", "", "4 8 10000 none 0 0"}, {"qwen3", "", "4 8 10000 none 0 0"},
      {"olmo2", "", "4 8 10000 none 0 0"}, {"gemma3", "", "4 8 10000 none 0 0"},
      {"mistral3", "", "4 8 10000 none 0 0"}, {"gpt2", "", "4 8 0 none 0 0"},
      {"gemma3", ".attention.sliding_window:16 .rope.freq_base:1e6", "4 8 1e+06 none 16 10000"},
      {"gemma3", ".attention.sliding_window:16", "4 8 10000 none 16 0"},
      {"gemma3", ".rope.freq_base:1e6 .rope.freq_base_swa:5e3", "4 8 1e+06 none 0 0"},
      {"olmo2", ".attention.sliding_window:16", "4 8 10000 none 16 0"},
      {"qwen2", ".attention.sliding_window:16", "4 8 10000 none 16 0"},
      {"olmo2", ".attention.sliding_window:16 .rope.freq_base:5e5", "4 8 500000 none 16 0"},
      {"llama", ".rope.scaling.factor:4", "4 8 10000 linear:4 0 0"},
      {"qwen3", ".rope.scaling.factor:4", "4 8 10000 linear:4 0 0"},
      {"llama", ".rope.scale_linear:2", "4 8 10000 linear:2 0 0"},
      {"llama", ".rope.scale_linear:2 .rope.scaling.factor:4", "4 8 10000 linear:4 0 0"},
      {"llama", ".rope.scaling.type:none .rope.scaling.factor:4", "4 8 10000 none 0 0"},
      {"llama", ".rope.scaling.type:none .rope.scale_linear:4", "4 8 10000 none 0 0"},
      {"llama", ".rope.scaling.type:linear", "4 8 10000 none 0 0"},
      {"llama", ".rope.scaling.type:linear .rope.scaling.factor:0", "4 8 10000 none 0 0"},
      {"llama", ".rope.scaling.type:yarn .rope.scaling.factor:4", "4 8 10000 yarn:4,1,32,512,1.138629436 0 0"},
      {"llama", ".rope.scaling.type:yarn .rope.scale_linear:4", "4 8 10000 yarn:4,1,32,512,1.138629436 0 0"},
      {"qwen3", ".attention.key_length:16 .attention.value_length:16", "4 16 10000 none 0 0"},
      {"llama", ".rope.scaling.type:", "llama.rope.scaling.type is \"\", only none"},
      {"llama", ".rope.scaling.type:4", "llama.rope.scaling.type is no text"},
      {"llama", ".rope.scaling.factor:four", "llama.rope.scaling.factor is not one number"},
      {"llama", ".rope.scaling.attn_factor:1.2", "llama.rope.scaling.attn_factor is 1.2, only yarn"},
      {"mistral3", ".attention.temperature_scale:0.1", "mistral3.attention.temperature_scale is 0.1, only yarn"},
      {"qwen3", ".attention.key_length:16", "qwen3.attention.value_length is missing, which means 8, only 16"},
      {"qwen3", ".rope.dimension_count:4", "qwen3.rope.dimension_count is 4, only 8"},
      {"gemma3", ".attention.key_length_swa:4", "gemma3.attention.key_length_swa is 4, only 8"},
      {"gpt2", ".attention.head_count_kv:2", "gpt2.attention.head_count_kv is 2, only 4"},
      {"gpt2", ".attention.key_length:16", "gpt2.attention.key_length is 16, only 8"},
      {"llama", ".rope.scaling.alpha:1000", "llama.rope.scaling.alpha is 1000, only 0"}};
  char path[1100], scaling[160], got[256];
  Error error = {};
  ix_path(path, test_tmp(), "keys.gguf");
  for (const auto &k : cases) {
    gguf_make_keys(path, k.arch, k.keys);
    if (isalpha((unsigned char)*k.is)) { ix_rejected(path, k.is, path, NULL); continue; }
    Import *s = import_open(path, NULL, &error);
    const bool open = s;
    EXPECT(open, "%s %s: %s", k.arch, k.keys, error.text);
    if (!open) continue;
    const Architecture *b = &s->is.shape.block;
    rope_scaling_print(scaling, sizeof scaling, &b->rope_scaling);
    snprintf(got, sizeof got, "%lld %lld %g %s %lld %g", (long long)s->is.shape.n_kv_head,
             (long long)s->is.shape.head_size, b->rope_theta, scaling, (long long)b->window, b->window_theta);
    EXPECT(!strcmp(got, k.is), "%s %s is %s, not %s", k.arch, k.keys, got, k.is);
    import_close(s);
  }
}

// The file of a tokenizer without one of its keys, where it has that.
static inline void gguf_drop_key(const TokText *file, const char *key, const char *path) {
  TokText copy = {(uint8_t *)malloc(file->count), file->count};
  memcpy(copy.bytes, file->bytes, file->count);
  uint8_t *at = (uint8_t *)memmem(copy.bytes, copy.count, key, strlen(key));
  if (at) at[strlen(key) - 1] = 'X';
  tok_write(path, copy.bytes, copy.count);
  free(copy.bytes);
}
TEST(gguf_absent_tokens_mean_what_llama_cpp_takes,
     "a SentencePiece tokenizer of a GGUF without ids of begin, end and unknown tokens has 1, 2 and 0; Llama 3's "
     "without a BOS token, which it puts before each text, is rejected by the key") {
  char path[1100], dropped[1100];
  Error error = {};
  GgufFile g;
  TokText file = tok_fixture("fallback.gguf");
  ix_path(dropped, test_tmp(), "dropped.gguf");
  static const struct { const char *key, *text; int id; } cases[] = {
      {"tokenizer.ggml.bos_token_id", "bos_token", 1}, {"tokenizer.ggml.eos_token_id", "eos_token", 2},
      {"tokenizer.ggml.unknown_token_id", "unk_token", 0}};
  for (const auto &k : cases) {
    gguf_drop_key(&file, k.key, dropped);
    REQUIRE(gguf_open(&g, dropped, &error), "%s", error.text);
    cJSON *published = gguf_published(&g);
    const GgufText want = gguf_text_at(gguf_find(&g, "tokenizer.ggml.tokens"), (uint64_t)k.id);
    const char *text = published_text(published, k.text);
    EXPECT(text && strlen(text) == want.bytes && !memcmp(text, want.at, want.bytes), "%s is %s", k.text,
           text ? text : "absent");
    EXPECT(!k.id || published_id(published, k.id == 1 ? "bos_token_id" : "eos_token_id") == k.id, "%s", k.key);
    cJSON_Delete(published);
    gguf_close(&g);
  }
  free(file.bytes);
  Tokenizer t;
  tok_load_fixture(&t, "tokenizer_llama3.json");
  gguf_write_tokenizer(&t, 0, "begin", path, sizeof path);
  tokenizer_free(&t);
  file = tok_read("/", path);
  gguf_drop_key(&file, "tokenizer.ggml.bos_token_id", dropped);
  free(file.bytes);
  EXPECT(!tokenizer_load_any(&t, dropped, &error) && strstr(error.text, "bos_token_id is missing"), "'%s'", error.text);
}

TEST(gguf_rejects_damage,
     "a GGUF that is cut short, or lies in counts, lengths, types, places or names, is rejected in one line that says "
     "what and where") {
  static const struct { const char *name; int at; uint64_t value; int bytes; const char *says; } cases[] = {
      {"", 4, 1, 4, "is a GGUF of version 1"}, {"", 4, 0x3000000, 4, "big endian"},
      {"", 8, 1ull << 60, 8, "a name in its header"}, {"", 16, 1ull << 60, 8, "its header is not all there"},
      {"", 24, 1ull << 62, 8, "its header is not all there"}, {"", 24, 0, 8, "a name in its header is no text"},
      {"general.architecture", 0, 77, 4, "has values of type 77"},
      {"general.architecture", 12, 0x6d6d6567, 4, "general.architecture is \"gemm3\", expected gpt2, llama"},
      {"qwen3.block_count", 0, 9, 4, "its header is not all there"},
      {"qwen3.block_count", 4, 0, 4, "num_hidden_layers is missing or 0"},
      {"qwen3.attention.key_length", 4, 8, 4, "qwen3.attention.value_length is 10, only 8"},
      {"blk.1.ffn_up.weight", 0, 9, 4, "blk.1.ffn_up.weight has 9 dimensions"},
      {"blk.1.ffn_up.weight", 4, 0, 8, "blk.1.ffn_up.weight has a dimension of 0"},
      {"blk.1.ffn_up.weight", 4, 1ull << 55, 8, "has a dimension of"},
      {"blk.1.ffn_up.weight", 20, 23, 4, "tensor blk.1.ffn_up.weight is IQ4_XS, expected F32, F16, BF16, Q8_0"},
      {"blk.1.ffn_up.weight", 20, 10, 4, "tensor blk.1.ffn_up.weight is Q2_K, expected"},
      {"blk.1.ffn_up.weight", 20, 99, 4, "tensor blk.1.ffn_up.weight is type 99, expected"},
      {"blk.1.ffn_up.weight", 20, 12, 4, "are no whole blocks of 256 (Q4_K)"},
      {"blk.1.ffn_up.weight", 24, 4, 8, "is at byte 4 of the data, no multiple of 32"},
      {"blk.1.ffn_up.weight", 24, 1ull << 40, 8, "it is cut short"},
      {"blk.1.ffn_up.weight", 24, 1ull << 63, 8, "is at"},
      {"blk.1.ffn_up.weight", 24, 0, 8, "bytes overlap those of"},
      {"blk.1.ffn_up.weight", -15, '0', 1, "tensor \"blk.0.ffn_up.weight\": it appears twice"},
      {"blk.1.ffn_up.weight", -2, 'x', 1, "tensor blk.1.ffn_up.weight is missing"},
      {"output_norm.weight", -1, '\n', 1, "a name in its header is no text"}};
  char path[1100];
  TokText file = tok_fixture("gguf_qwen3.gguf");
  ix_path(path, test_tmp(), "damaged.gguf");
  for (const auto &k : cases) {
    TokText copy = {(uint8_t *)malloc(file.count), file.count};
    memcpy(copy.bytes, file.bytes, file.count);
    uint8_t *at = *k.name ? (uint8_t *)memmem(copy.bytes, copy.count, k.name, strlen(k.name)) + strlen(k.name)
                          : copy.bytes;
    memcpy(at + k.at, &k.value, (size_t)k.bytes);
    tok_write(path, copy.bytes, copy.count);
    ix_rejected(path, k.says, path, NULL);
    free(copy.bytes);
  }
  for (size_t n : {size_t(3), size_t(4), size_t(20), size_t(500), size_t(2000), file.count - 64}) {
    tok_write(path, file.bytes, n);
    ix_rejected(path, n < 4 ? "safetensors" : n > 2000 ? "it is cut short" : "its header is not all there", path, NULL);
  }
  free(file.bytes);
}

TEST(gguf_survives_any_bytes, "single bytes changed in a header with a tokenizer result in a model or in one line") {
  char path[1100];
  Error error = {};
  uint64_t seed = 9;
  TokText file = tok_fixture("gguf_gpt2.gguf");
  ix_path(path, test_tmp(), "any.gguf");
  for (int round = 0; round < 400; round++) {
    uint8_t *at = &file.bytes[tok_random(&seed) % (round % 2 ? 12000 : 1200)];
    const uint8_t before = *at;
    *at = (uint8_t)tok_random(&seed);
    tok_write(path, file.bytes, file.count);
    Tokenizer t;
    error.text[0] = 0;
    Import *s = import_open(path, NULL, &error);
    const bool ok = s;
    EXPECT(ok || (error.text[0] && !strchr(error.text, '\n')), "rejected with '%s'", error.text);
    error.text[0] = 0;
    const bool has = ok && tokenizer_load_any(&t, path, &error);
    EXPECT(!ok || has || (error.text[0] && !strchr(error.text, '\n')), "rejected with '%s'", error.text);
    if (has) tokenizer_free(&t);
    import_close(s);
    *at = before;
  }
  free(file.bytes);
}
