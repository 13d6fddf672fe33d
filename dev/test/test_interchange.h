// test_interchange.h: models of other programs are read correctly, damaged ones are rejected by name, and exports equal
// what transformers writes. Fixtures are written by dev/make_hf_fixture.py. Follows test_train.h.
#pragma once

// ---- models on disk ------------------------------------------------------------------------------------------------
static inline const char *ix_path(char to[1024], const char *directory, const char *name) {
  const int n = snprintf(to, 1024, "%s/%s", directory, name);
  if (n < 0 || n >= 1024) die_missing("the path %s is too long", to);
  return to;
}
// A new directory for this test alone.
static inline const char *ix_directory(char to[1024], const char *name) {
  ix_path(to, test_tmp(), name);
  if (mkdir(to, 0777)) die_missing("cannot make %s: %s", to, strerror(errno));
  return to;
}
static inline void ix_copy(const char *from, const char *to, const char *name) {
  char path[1024];
  TokText t = tok_read(from, name);
  if (!t.bytes) die_missing("cannot read %s/%s", from, name);
  tok_write(ix_path(path, to, name), t.bytes, t.count);
  free(t.bytes);
}
Param *ix_params(ModelShape s, int *count) {
  const Model m = model_of_shape(&s, s.n_positions);
  return model_params(&m, count);
}

void ix_load(IxModel *m, const char *path) {
  if (!safetensors_open(&m->file, path)) die_missing("%s", m->file.error);
  m->count = m->file.count;
  for (int i = 0; i < m->count; i++) {
    m->tensor[i] = m->file.tensor[i];
    m->data[i] = m->file.map + m->tensor[i].at;
  }
}
int ix_find(const IxModel *m, const char *name) {
  for (int i = 0; i < m->count; i++) if (!strcmp(m->tensor[i].name, name)) return i;
  die_missing("the fixture has no %s", name);
}
static inline void ix_add(IxModel *m, const char *name, int like) {
  m->tensor[m->count] = m->tensor[like];
  m->tensor[m->count].name = name;
  m->data[m->count++] = m->data[like];
}
static inline void ix_remove(IxModel *m, const char *name) {
  const int i = ix_find(m, name);
  m->tensor[i] = m->tensor[--m->count];
  m->data[i] = m->data[m->count];
}
// Writes the tensors whose dtype the writer knows.
static inline void ix_save(const IxModel *from, const char *path, const char *const *metadata) {
  static IxModel m;
  m = *from;
  for (int i = m.count - 1; i >= 0; i--) if (!m.tensor[i].known_dtype) ix_remove(&m, m.tensor[i].name);
  int64_t header_bytes;
  char *header = safetensors_header(m.tensor, m.count, metadata, &header_bytes);
  FILE *f = fopen(path, "wb");
  if (!f) die_missing("cannot write %s", path);
  fwrite(header, 1, (size_t)header_bytes, f);
  for (int i = 0; i < m.count; i++) fwrite(m.data[i], 1, (size_t)m.tensor[i].bytes, f);
  fclose(f);
  free(header);
}

// ---- values after a map --------------------------------------------------------------------------------------------
// Element (o, i) of a parameter as stored in the file, widened to 32 bits.
static inline uint32_t ix_element(const uint8_t *file, TensorPlace place, const Param *p, int64_t o, int64_t i) {
  const int64_t in = p->ndim == 2 ? p->shape[1] : 1, n = place.transposed ? i * p->shape[0] + o : o * in + i;
  uint32_t bits = 0;
  memcpy(&bits, file + place.at + n * (int64_t)dtype_bytes(place.dtype), dtype_bytes(place.dtype));
  return place.dtype == BF16 ? bits << 16 : bits;
}
// All parameters (out,in), one after the other, as a map finds them in its file; malloc'ed, `numel` of them.
static inline uint32_t *ix_values(const TensorMap *map, const Param *param, int params, int64_t *numel_) {
  TokText file = tok_read(map->path[0][0] == '/' ? "/" : ".", map->path[0]);
  if (!file.bytes || (int64_t)file.count != map->file_bytes[0]) die_missing("%s: %zu bytes", map->path[0], file.count);
  int64_t header = 0;                            // of safetensors; llm.c's magic and version make a larger number
  memcpy(&header, file.bytes, 8);
  const int64_t begin = header > map->file_bytes[0] ? 1024 : 8 + header;
  EXPECT(map->data_at[0] == begin, "%s: tensors start at %lld, not %lld", map->path[0], (long long)begin,
         (long long)map->data_at[0]);
  *numel_ = 0;
  for (int p = 0; p < params; p++) *numel_ += param_numel(&param[p]);
  uint32_t *values = (uint32_t *)malloc(sizeof(uint32_t) * (size_t)*numel_), *to = values;
  for (int p = 0; p < params; p++)
    for (int64_t o = 0; o < param[p].shape[0]; o++)
      for (int64_t i = 0; i < (param[p].ndim == 2 ? param[p].shape[1] : 1); i++)
        *to++ = ix_element(file.bytes, *tensor_place(map, 0, p), &param[p], o, i);
  free(file.bytes);
  return values;
}
// Opens and maps PATH, which must work. Free the params and the map.
static inline Param *ix_import(const char *path, Import **s, TensorMap *map, int *params) {
  Error error = {};
  if (!(*s = import_open(path, NULL, &error))) die_missing("%s", error.text);
  Param *param = ix_params((*s)->is.shape, params);
  if (!import_map(*s, param, *params, map, &error)) die_missing("%s", error.text);
  return param;
}
// PATH must be rejected in one line that is not cut and contains each of up to three words.
static inline void ix_rejected(const char *path, const char *word, const char *word_2, const char *word_3) {
  Error error = {};
  TensorMap map = {};
  int params = 0;
  Import *s = import_open(path, NULL, &error);
  bool ok = s;
  Param *param = ok ? ix_params(s->is.shape, &params) : NULL;
  ok = ok && import_map(s, param, params, &map, &error);
  EXPECT(!ok, "%s is accepted, though %s", path, word);
  for (const char *w : {word, word_2, word_3})
    EXPECT(!w || strstr(error.text, w), "%s: \"%s\" does not say %s", path, error.text, w);
  EXPECT(!strchr(error.text, '\n') && strlen(error.text) < sizeof error - 1, "more than a line: %s", error.text);
  free(param);
  tensor_map_free(&map);
  import_close(s);
}

void ix_write_llmc(const char *path, int version, const ModelShape *s, int padded_vocab, const Param *param, int params,
                   const uint32_t *values) {
  static const char *const order[] = {
      "wte.weight", "wpe.weight", ".ln_1.weight", ".ln_1.bias", ".attn.c_attn.weight", ".attn.c_attn.bias",
      ".attn.c_proj.weight", ".attn.c_proj.bias", ".ln_2.weight", ".ln_2.bias", ".mlp.c_fc.weight", ".mlp.c_fc.bias",
      ".mlp.c_proj.weight", ".mlp.c_proj.bias", "ln_f.weight", "ln_f.bias"};
  const int32_t header[256] = {20240326, version, (int)s->n_positions, (int)s->vocab_size, (int)s->n_layer,
                               (int)s->n_head, (int)s->n_embd, padded_vocab};
  FILE *f = fopen(path, "wb");
  if (!f) die_missing("cannot write %s", path);
  fwrite(header, 4, 256, f);
  for (const char *kind : order) {
    const uint32_t *at = values;
    for (int p = 0; p < params; at += param_numel(&param[p++])) {      // blocks are in order in the parameter table
      const char *end = strstr(param[p].name, kind);
      if (!end || strlen(end) != strlen(kind) || (kind[0] != '.' && end != param[p].name)) continue;
      const bool wte = !strcmp(kind, "wte.weight");
      const int64_t padded = param_numel(&param[p]) + (wte ? (padded_vocab - s->vocab_size) * s->n_embd : 0);
      for (int64_t i = 0; i < padded; i++) {
        const uint32_t bits = i < param_numel(&param[p]) ? at[i] : 7u << 16;
        const uint16_t high = (uint16_t)(bits >> 16);
        fwrite(version == 3 ? (const void *)&bits : &high, version == 3 ? 4 : 2, 1, f);
      }
    }
  }
  fclose(f);
}

// ---- import --------------------------------------------------------------------------------------------------------
TEST(import_reads_shapes, "each fixture's kind, shape, tokenizer and dropout are as saved") {
  const struct { const char *path; ModelShape shape; Dtype dtype; } cases[] = {
      {"dev/fixtures/hf_tiny", model_shape_gpt2(2, 2, 32, 24, 300, true, 0.05), F32},
      {"dev/fixtures/hf_untied", model_shape_gpt2(1, 4, 16, 20, 300, false, 0.05), F32},
      {"dev/fixtures/hf_published", model_shape_gpt2(2, 2, 16, 24, 300, true, 0.1), BF16},
      {"dev/fixtures/hf_published/model.safetensors", model_shape_gpt2(2, 2, 16, 24, 300, true, 0.1), BF16}};
  for (const auto &c : cases) {
    Import *s;
    TensorMap map;
    int params;
    Param *param = ix_import(c.path, &s, &map, &params);
    EXPECT(s->is.kind == IMPORT_HF_DIRECTORY && !s->is.warning[0], "%s: kind %d, warning '%s'", c.path, s->is.kind,
           s->is.warning);
    for (const ImportField &f : import_fields) {
      const int64_t got = *(int64_t *)((char *)&s->is.shape + f.offset);
      const int64_t want = *(int64_t *)((char *)&c.shape + f.offset);
      EXPECT(got == want, "%s: %s %lld, not %lld", c.path, f.name, (long long)got, (long long)want);
    }
    EXPECT(s->is.shape.tied == c.shape.tied && s->is.shape.dropout == c.shape.dropout, "%s: tied %d, dropout %g",
           c.path, s->is.shape.tied, s->is.shape.dropout);
    EXPECT(!strncmp(c.path, s->is.tokenizer, strlen(s->is.tokenizer)) && s->is.tokenizer[0], "%s: tokenizer '%s'",
           c.path, s->is.tokenizer);
    for (int p = 0; p < params; p++) {
      const TensorPlace at = *tensor_place(&map, 0, p), moment = *tensor_place(&map, 1, p);
      const bool turned = param[p].ndim == 2 && param[p].name[0] == 'h';
      EXPECT(at.file == 0 && at.dtype == c.dtype && at.transposed == turned && moment.file < 0, "%s: %s is at %d %s %d",
             c.path, param[p].name, at.file, dtype_name(at.dtype), at.transposed);
    }
    free(param);
    tensor_map_free(&map);
    import_close(s);
  }
}

// Hugging Face's layout with the prefix of names added where it is missing, and removed where it is there.
static inline void ix_save_renamed(const Import *s, const char *path) {
  static IxModel m;
  static char names[80][96];
  ix_load(&m, s->path);
  for (int i = 0; i < m.count; i++) {
    const char *was = m.tensor[i].name, *plain = s->prefixed && strncmp(was, "lm_", 3) ? was + 12 : was;
    snprintf(names[i], sizeof names[i], "%s%s", s->prefixed ? "" : "transformer.", plain);
    m.tensor[i].name = names[i];
  }
  ix_save(&m, path, NULL);
  safetensors_close(&m.file);
}
// Our layout: fp32, in the order of the parameter table, matrices (out,in).
static inline void ix_save_own(const char *path, const char *heads, const Param *param, int params,
                               const uint32_t *values) {
  static IxModel m;
  const char *const metadata[] = {"n_head", heads, NULL};
  m.count = params;
  for (int p = 0; p < params; values += param_numel(&param[p++])) {
    m.tensor[p] = SafetensorsTensor{};
    m.tensor[p].name = param[p].name;
    m.tensor[p].dtype = F32;
    m.tensor[p].known_dtype = true;
    m.tensor[p].ndim = param[p].ndim;
    m.tensor[p].shape[0] = param[p].shape[0];
    m.tensor[p].shape[1] = param[p].shape[1];
    m.tensor[p].bytes = param_numel(&param[p]) * 4;
    m.data[p] = (const uint8_t *)values;
  }
  ix_save(&m, path, metadata);
}
// Writes the model at `from` in every layout that exists and reads each: the values must be the same.
static inline void ix_expect_layouts_agree(const char *from, const char *name, int llmc_version) {
  char dir[1024], path[1024];
  Import *s;
  TensorMap map;
  int params;
  int64_t numel_, again;
  Param *param = ix_import(from, &s, &map, &params);
  uint32_t *values = ix_values(&map, param, params, &numel_);
  ix_directory(dir, name);
  ix_copy(from, dir, "config.json");
  ix_save_renamed(s, ix_path(path, dir, "model.safetensors"));
  ix_save_own(ix_path(path, dir, "own.safetensors"), s->is.shape.n_head == 2 ? "2" : "4", param, params, values);
  if (s->is.shape.tied)
    ix_write_llmc(ix_path(path, dir, "llmc.bin"), llmc_version, &s->is.shape, 320, param, params, values);
  static const struct { const char *name; ImportKind kind; } files[] = {
      {"", IMPORT_HF_DIRECTORY}, {"model.safetensors", IMPORT_HF_DIRECTORY}, {"own.safetensors", IMPORT_SAFETENSORS},
      {"llmc.bin", IMPORT_LLMC}};
  for (const auto &f : files) {
    if (f.kind == IMPORT_LLMC && !s->is.shape.tied) continue;
    Import *b;
    TensorMap b_map;
    int b_params;
    Param *b_param = ix_import(ix_path(path, dir, f.name), &b, &b_map, &b_params);
    uint32_t *b_values = ix_values(&b_map, b_param, b_params, &again);
    EXPECT(b_params == params && again == numel_ && !memcmp(values, b_values, (size_t)numel_ * 4),
           "%s: other values than in %s", path, from);
    EXPECT(b->is.kind == f.kind && b->is.shape.n_head == s->is.shape.n_head && b->is.shape.tied == s->is.shape.tied,
           "%s: kind %d, %lld heads", path, b->is.kind, (long long)b->is.shape.n_head);
    free(b_param);
    free(b_values);
    tensor_map_free(&b_map);
    import_close(b);
  }
  free(param);
  free(values);
  tensor_map_free(&map);
  import_close(s);
}
TEST(import_layouts_agree, "one model in Hugging Face's two layouts, ours and llm.c's gives the same parameters") {
  ix_expect_layouts_agree("dev/fixtures/hf_tiny", "tiny", 3);
  ix_expect_layouts_agree("dev/fixtures/hf_published", "published", 5);
  ix_expect_layouts_agree("dev/fixtures/hf_untied", "untied", 3);
}

// The config.json of hf_tiny with `from` replaced by `to`, in DIR.
static inline void ix_config(const char *dir, const char *from, const char *to) {
  char path[1024];
  TokText t = tok_read("dev/fixtures/hf_tiny", "config.json");
  char *at = t.bytes ? strstr((char *)t.bytes, from) : NULL;
  if (!at) die_missing("hf_tiny/config.json has no %s", from);
  const size_t before = (size_t)(at - (char *)t.bytes), after = t.count - before - strlen(from);
  char *text = (char *)malloc(t.count + strlen(to) + 1);
  memcpy(text, t.bytes, before);
  memcpy(text + before, to, strlen(to));
  memcpy(text + before + strlen(to), at + strlen(from), after);
  tok_write(ix_path(path, dir, "config.json"), text, before + strlen(to) + after);
  free(text);
  free(t.bytes);
}

TEST(import_rejects_other_configs,
     "a config.json that describes another function, or is damaged, is rejected by field") {
  static const struct { const char *from, *to, *word; } cases[] = {
      {"\"gpt2\"", "\"gpt_neo\"", "model_type"},
      {"\"model_type\"", "\"model_typ\"", "model_type is missing"},
      {"\"gelu_new\"", "\"relu\"", "activation_function"},
      {"\"gelu_new\"", "7", "activation_function"},
      {"1e-05", "1e-06", "layer_norm_epsilon is 1e-06"},
      {"1e-05", "1e300", "layer_norm_epsilon"},
      {"\"n_inner\": null", "\"n_inner\": 100", "n_inner is 100"},
      {"\"scale_attn_weights\": true", "\"scale_attn_weights\": false", "scale_attn_weights is false"},
      {"_by_inverse_layer_idx\": false", "_by_inverse_layer_idx\": true", "scale_attn_by_inverse_layer_idx is true"},
      {"\"add_cross_attention\": false", "\"add_cross_attention\": true", "add_cross_attention is true"},
      {"\"add_cross_attention\": false", "\"add_cross_attention\": \"no\"", "add_cross_attention"},
      {"\"use_cache\"", "\"quantization_config\"", "quantization_config"},
      {"\"n_layer\": 2", "\"n_layer\": 0", "n_layer"},
      {"\"n_layer\": 2", "\"n_layer\": -2", "n_layer is -2"},
      {"\"n_layer\": 2", "\"n_layer\": 1.5", "n_layer is 1.5"},
      {"\"n_layer\": 2", "\"n_layer\": 1e9", "n_layer is 1000000000, expected a whole number from 1 to 1000"},
      {"\"n_layer\": 2", "\"n_layer\": 1e999", "n_layer"},
      {"\"n_layer\": 2", "\"n_layer\": \"2\"", "n_layer is not a number"},
      {"\"n_layer\": 2", "\"n_layer\": 2, \"n_layer\": 2", "n_layer appears twice"},
      {"\"n_layer\": 2", "\"n_layers\": 2", "n_layer is missing"},
      {"\"n_head\": 2", "\"n_head\": 3", "n_head 3 does not divide n_embd 32"},
      {"\"n_embd\": 32", "\"n_embd\": 18446744073709551648", "n_embd"},
      {"\"vocab_size\": 300", "\"vocab_size\": 3e8", "vocab_size"},
      {"\"n_positions\": 24", "\"n_positions\": true", "n_positions"},
      {"\"resid_pdrop\": 0.05", "\"resid_pdrop\": 1.5", "resid_pdrop is 1.5"},
      {"\"embd_pdrop\": 0.05", "\"embd_pdrop\": -0.1", "embd_pdrop is -0.1"},
      {"\"tie_word_embeddings\": true", "\"tie_word_embeddings\": \"yes\"", "tie_word_embeddings"},
      {"{", "[", "is not JSON from byte"},
      {"{", "[{", "is not JSON"},
      {"}", "", "is not JSON"},
      {"}", "} x", "is not JSON"}};
  char dir[1024], path[1024];
  ix_directory(dir, "config");
  ix_copy("dev/fixtures/hf_tiny", dir, "model.safetensors");
  for (const auto &c : cases) {
    ix_config(dir, c.from, c.to);
    ix_rejected(dir, c.word, "config.json", NULL);
  }
  static const struct { const char *text; size_t bytes; const char *word; } whole[] = {
      {"", 0, "is not JSON"}, {"[]", 2, "is not a JSON object"}, {"{}", 2, "model_type"}, {"{\0}", 3, "is not JSON"}};
  for (const auto &w : whole) {
    tok_write(ix_path(path, dir, "config.json"), w.text, w.bytes);
    ix_rejected(dir, w.word, "config.json", NULL);
  }
  enum { DEEP = 1 << 20 };
  char *deep = (char *)malloc(DEEP + 1);
  memset(deep, '[', DEEP + 1);
  tok_write(path, deep, DEEP);
  ix_rejected(dir, "is not JSON", "config.json", NULL);
  tok_write(path, deep, DEEP + 1);
  ix_rejected(dir, "bytes", "config.json", NULL);
  free(deep);
  unlink(path);
  if (mkdir(path, 0777)) die_missing("cannot make %s", path);
  ix_rejected(dir, "cannot read it", "config.json", NULL);
}

TEST(import_takes_equal_configs,
     "settings that do not change the function are accepted, and differing dropouts are reported") {
  static const struct { const char *from, *to, *warning; } cases[] = {
      {"\"gelu_new\"", "\"gelu_pytorch_tanh\"", ""},
      {"\"n_inner\": null", "\"n_inner\": 128", ""},
      {"1e-05", "9.999999747378752e-06", ""},
      {"\"tie_word_embeddings\": true", "\"unknown\": {\"a\": [1, 2]}", ""},
      {"\"embd_pdrop\": 0.05", "\"embd_pdrop\": 0.25", "embd_pdrop 0.25 and attn_pdrop 0.05 are not resid_pdrop 0.05"},
      {"\"resid_pdrop\": 0.05,", "", "resid_pdrop 0.1"}};
  char dir[1024];
  Error error = {};
  ix_directory(dir, "config");
  ix_copy("dev/fixtures/hf_tiny", dir, "model.safetensors");
  for (const auto &c : cases) {
    ix_config(dir, c.from, c.to);
    Import *s = import_open(dir, NULL, &error);
    const bool ok = s;
    EXPECT(ok && s->is.shape.tied && s->is.shape.n_layer == 2, "%s: %s", c.to, error.text);
    EXPECT(ok && (*c.warning ? strstr(s->is.warning, c.warning) != NULL : !s->is.warning[0]), "%s: warning '%s'", c.to,
           s->is.warning);
    EXPECT(ok && s->is.tokenizer[0] == 0, "tokenizer '%s' of a directory without one", s->is.tokenizer);
    import_close(s);
  }
}

TEST(import_names_wrong_tensors, "tensors that are missing, extra, misshapen or of another dtype are named") {
  char dir[1024], path[1024];
  static IxModel m;
  ix_directory(dir, "model");
  ix_path(path, dir, "model.safetensors");
  for (int i = 0; i < 13; i++) {
    ix_load(&m, "dev/fixtures/hf_tiny/model.safetensors");
    ix_copy("dev/fixtures/hf_tiny", dir, "config.json");
    const int wte = ix_find(&m, "transformer.wte.weight"), qkv = ix_find(&m, "transformer.h.1.attn.c_attn.weight");
    uint8_t *changed = (uint8_t *)malloc((size_t)m.tensor[wte].bytes);
    memcpy(changed, m.data[wte], (size_t)m.tensor[wte].bytes);
    changed[m.tensor[wte].bytes - 1] ^= 0x80;
    const char *w[3] = {};
    if (i == 0) { ix_remove(&m, "transformer.h.1.mlp.c_fc.bias"); w[0] = "tensor h.1.mlp.c_fc.bias is missing"; }
    if (i == 1) { ix_add(&m, "transformer.h.2.ln_1.bias", 0); w[0] = "\"transformer.h.2.ln_1.bias\" is not one of"; }
    if (i == 2) { ix_add(&m, "score\n.weight", 0); w[0] = "score\\x0a.weight"; }
    if (i == 3) {
      m.tensor[qkv].shape[0] = 96;
      m.tensor[qkv].shape[1] = 32;
      w[0] = "tensor h.1.attn.c_attn.weight is (96,32), expected (32,96)";
    }
    if (i == 4) { m.tensor[qkv].dtype = I32; w[0] = "h.1.attn.c_attn.weight is I32, expected F32, BF16 or F16"; }
    if (i == 5) {
      m.tensor[wte].shape[0] = 150;
      m.tensor[wte].shape[1] = 64;
      w[0] = "wte.weight is (150,64), expected (300,32)";
    }
    if (i == 6) { m.tensor[wte].ndim = 3; m.tensor[wte].shape[2] = 1; w[0] = "wte.weight is (300,32,1)"; }
    if (i == 7 || i == 8) { ix_add(&m, "lm_head.weight", wte); w[0] = "lm_head.weight is not wte.weight"; }
    if (i == 7) m.data[m.count - 1] = changed;
    if (i == 8) m.tensor[m.count - 1].dtype = I32;
    if (i == 9) { ix_add(&m, "wte.weight", wte); w[0] = "\"wte.weight\" is not one of this model's"; }
    if (i == 10) { ix_add(&m, "transformer.lm_head.weight", wte); w[0] = "\"transformer.lm_head.weight\" is not"; }
    if (i == 11) {
      for (const char *name : {"h.0.ln_1.weight", "h.0.ln_1.bias", "h.0.ln_2.bias", "h.1.ln_1.bias", "h.1.ln_2.bias"}) {
        char full[64];
        snprintf(full, sizeof full, "transformer.%s", name);
        ix_remove(&m, full);
      }
      w[0] = "tensor h.0.ln_1.weight is missing; tensor h.0.ln_1.bias is missing; tensor h.0.ln_2.bias is missing";
      w[1] = "; and 2 more";
    }
    if (i == 12) {
      ix_config(dir, "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false");
      w[0] = "lm_head.weight is missing";
    }
    ix_save(&m, path, NULL);
    ix_rejected(dir, w[0], w[1], "model.safetensors");
    free(changed);
    safetensors_close(&m.file);
  }
}

TEST(import_takes_a_tied_head_twice, "a tied head that is stored nevertheless is the embedding, and accepted") {
  char dir[1024], path[1024];
  static IxModel m;
  Import *s;
  TensorMap map;
  int params;
  ix_directory(dir, "model");
  ix_load(&m, "dev/fixtures/hf_tiny/model.safetensors");
  ix_copy("dev/fixtures/hf_tiny", dir, "config.json");
  ix_add(&m, "lm_head.weight", ix_find(&m, "transformer.wte.weight"));
  ix_save(&m, ix_path(path, dir, "model.safetensors"), NULL);
  free(ix_import(dir, &s, &map, &params));
  EXPECT(s->is.shape.tied, "the head is taken for its own");
  tensor_map_free(&map);
  import_close(s);
  safetensors_close(&m.file);
}

TEST(import_says_what_to_name, "files that are no readable model are rejected, with what to do") {
  char dir[1024], path[1024];
  ix_rejected("/nowhere/at/all", "No such file", "nothing is downloaded", NULL);
  ix_rejected(ix_directory(dir, "empty"), "no config.json and no model.safetensors", NULL, NULL);
  mkfifo(ix_path(path, dir, "fifo"), 0666);
  ix_rejected(path, "is a named pipe", "neither a directory nor a file", NULL);
  ix_copy("dev/fixtures/hf_tiny", dir, "config.json");
  ix_rejected(dir, "has config.json but no model.safetensors", NULL, NULL);
  tok_write(ix_path(path, dir, "pytorch_model.bin"), "PK\3\4....", 8);
  ix_rejected(dir, "pytorch_model.bin", "save_pretrained('NEW')", dir);
  ix_rejected(ix_path(path, dir, "pytorch_model.bin"), "PyTorch's own format", "save_pretrained", NULL);
  ix_copy("dev/fixtures/hf_tiny", dir, "model.safetensors");
  TokText whole = tok_read(dir, "model.safetensors");
  tok_write(ix_path(path, dir, "model.safetensors"), whole.bytes, whole.count - 1);
  ix_rejected(dir, "model.safetensors", NULL, NULL);
  free(whole.bytes);
  ix_copy("dev/fixtures/hf_tiny", dir, "model.safetensors");
  for (const char *beside : {"generation_config.json", "tokenizer_config.json"}) {
    tok_write(ix_path(path, dir, beside), "{\"eos_token\": \"<", 16);
    ix_rejected(dir, beside, "is not JSON from byte", NULL);
    unlink(path);
  }
  unlink(ix_path(path, dir, "config.json"));
  ix_rejected(dir, "needs the config.json", "model.safetensors", NULL);
  ix_rejected(ix_path(path, dir, "model.safetensors"), "needs the config.json", NULL, NULL);
}

TEST(import_needs_the_heads, "a file of ours says its heads, or is rejected") {
  char path[1024], dir[1024];
  ix_directory(dir, "own");
  static IxModel m;
  ix_load(&m, "dev/fixtures/hf_published/model.safetensors");
  for (int i = 0; i < m.count; i++) {            // (C,3C) read as (3C,C): the values do not matter here
    SafetensorsTensor *t = &m.tensor[i];
    const int64_t rows = t->shape[0];
    if (t->ndim != 2 || t->name[0] != 'h') continue;
    t->shape[0] = t->shape[1];
    t->shape[1] = rows;
  }
  ix_remove(&m, "h.0.attn.bias");
  ix_remove(&m, "h.1.attn.masked_bias");
  ix_path(path, dir, "model.safetensors");
  static const struct { const char *heads, *word; } cases[] = {
      {"2", NULL}, {"16", NULL}, {NULL, "has no n_head"}, {"", "n_head is 0"}, {"0", "n_head is 0"},
      {"-2", "n_head is -2"}, {"2x", "n_head is 0"}, {"99999999999999999999", "n_head"},
      {"3", "n_head 3 does not divide n_embd 16"}};
  for (const auto &c : cases) {
    const char *const metadata[] = {"format", "pt", c.heads ? "n_head" : "other", c.heads ? c.heads : "2", NULL};
    ix_save(&m, path, metadata);
    if (c.word) { ix_rejected(path, c.word, "model.safetensors", NULL); continue; }
    for (const char *named : {(const char *)path, (const char *)dir}) {
      Import *s;
      TensorMap map;
      int params;
      free(ix_import(named, &s, &map, &params));
      EXPECT(s->is.kind == IMPORT_SAFETENSORS && s->is.shape.n_head == atoi(c.heads) && s->is.shape.n_layer == 2 &&
             s->is.shape.tied, "%s: kind %d, %lld heads", named, s->is.kind, (long long)s->is.shape.n_head);
      EXPECT(!tensor_place(&map, 0, params - 2)->transposed, "a matrix of ours is read transposed");
      tensor_map_free(&map);
      import_close(s);
    }
  }
  const char *const metadata[] = {"n_head", "2", NULL};
  ix_remove(&m, "h.0.mlp.c_fc.bias");
  ix_save(&m, path, metadata);
  ix_rejected(path, "tensor h.0.mlp.c_fc.bias is missing", NULL, NULL);
  ix_remove(&m, "wpe.weight");
  ix_save(&m, path, metadata);
  ix_rejected(path, "wpe.weight is missing", NULL, NULL);
  ix_remove(&m, "wte.weight");
  ix_save(&m, path, metadata);
  ix_rejected(path, "wte.weight is missing", NULL, NULL);
  safetensors_close(&m.file);
}

TEST(import_rejects_damaged_llmc, "an llm.c file of another version, size or absurd shape is rejected with the "
     "reason") {
  char path[1024];
  ix_path(path, test_tmp(), "model.bin");
  ModelShape s = model_shape_gpt2(2, 2, 8, 6, 11, true, 0);
  int params;
  Param *param = ix_params(s, &params);
  int64_t numel_ = 0;
  for (int p = 0; p < params; p++) numel_ += param_numel(&param[p]);
  uint32_t *values = (uint32_t *)calloc((size_t)numel_, 4);
  ix_write_llmc(path, 3, &s, 16, param, params, values);
  TokText whole = tok_read(test_tmp(), "model.bin");
  EXPECT((int64_t)whole.count == 1024 + 4 * (numel_ + 5 * 8), "the file has %zu bytes", whole.count);
  static const struct { int at, value; const char *word; } cases[] = {
      {0, 20240520, "llm.c's tokens"}, {0, 20240327, "llm.c's debug state"}, {0, 20240803, "Llama 3"},
      {1, 4, "version 4"}, {1, 1, "version 1"}, {1, -3, "version -3"}, {1, 5, "its header asks for"},
      {2, 0, "n_positions is 0"}, {2, 7, "its header asks for"}, {3, -1, "vocab_size is -1"},
      {3, 17, "padded vocabulary has 16 tokens, the vocabulary 17"}, {4, -1, "n_layer is -1"},
      {4, 1 << 30, "n_layer is 1073741824, expected 1 to 1000"}, {5, 3, "n_head 3 does not divide n_embd 8"},
      {5, 0, "n_head is 0"}, {6, 1 << 20, "n_embd"}, {6, 16, "its header asks for"}, {7, 0, "padded vocabulary has 0"},
      {7, 15, "its header asks for"}, {7, INT32_MAX, "padded vocabulary"}};
  for (const auto &c : cases) {
    int32_t *header = (int32_t *)whole.bytes, before = header[c.at];
    header[c.at] = c.value;
    tok_write(path, whole.bytes, whole.count);
    ix_rejected(path, c.word, "model.bin", NULL);
    header[c.at] = before;
  }
  for (const size_t n : {(size_t)1024, whole.count - 1, whole.count + 1, (size_t)1023, (size_t)8}) {
    tok_write(path, whole.bytes, n);
    ix_rejected(path, n < 1024 ? "has 1024" : "its header asks for", "model.bin", NULL);
  }
  for (size_t n = 0; n < 8; n++) {
    tok_write(path, whole.bytes, n);
    ix_rejected(path, "model.bin", NULL, NULL);
  }
  free(whole.bytes);
  free(values);
  free(param);
}

TEST(import_other_shape_is_named, "a model requested with other numbers than the file's is rejected by tensor") {
  char bin[1024];
  ModelShape shape = model_shape_gpt2(1, 1, 4, 3, 5, true, 0);
  int count;
  Param *own = ix_params(shape, &count);
  uint32_t *zeros = (uint32_t *)calloc(4096, 4);
  ix_write_llmc(ix_path(bin, test_tmp(), "model.bin"), 3, &shape, 5, own, count, zeros);
  free(own);
  free(zeros);
  for (const char *path : {"dev/fixtures/hf_tiny", "dev/fixtures/hf_untied", (const char *)bin}) {
    TensorMap map;
    Error error = {};
    int params;
    Import *s = import_open(path, NULL, &error);
    REQUIRE(s, "%s", error.text);
    for (int i = 0; i < 2; i++) {
      ModelShape other = s->is.shape;
      if (i) other.tied = !other.tied;
      else other.n_positions--;
      Param *param = ix_params(other, &params);
      EXPECT(!import_map(s, param, params, &map, &error), "%s fits another shape", path);
      EXPECT(strstr(error.text, i ? "lm_head.weight" : "wpe.weight is ("), "%s", error.text);
      EXPECT(!map.place, "the map is not empty");
      free(param);
    }
    import_close(s);
  }
}

TEST(import_survives_any_bytes,
     "single bytes changed in config.json or in llm.c's header result in a shape or in one line") {
  char dir[1024], bin[1024], path[1024];
  Error error = {};
  uint64_t seed = 5;
  ix_directory(dir, "any");
  ix_copy("dev/fixtures/hf_untied", dir, "model.safetensors");
  TokText config = tok_read("dev/fixtures/hf_untied", "config.json");
  ModelShape shape = model_shape_gpt2(1, 1, 4, 3, 5, true, 0);
  int params;
  Param *param = ix_params(shape, &params);
  uint32_t *values = (uint32_t *)calloc(4096, 4);
  ix_write_llmc(ix_path(bin, test_tmp(), "any.bin"), 3, &shape, 5, param, params, values);
  TokText model = tok_read(test_tmp(), "any.bin");
  ix_path(path, dir, "config.json");
  for (int round = 0; round < 600; round++) {
    TokText *t = round % 2 ? &config : &model;
    const size_t at = tok_random(&seed) % (round % 2 ? t->count : 32);
    const uint8_t before = t->bytes[at];
    t->bytes[at] = (uint8_t)tok_random(&seed);
    tok_write(round % 2 ? path : bin, t->bytes, t->count);
    error.text[0] = 0;
    Import *s = import_open(round % 2 ? dir : bin, NULL, &error);
    const bool ok = s;
    EXPECT(ok || (error.text[0] && !strchr(error.text, '\n')), "rejected with '%s'", error.text);
    EXPECT(!ok || (s->is.shape.n_embd >= 1 && s->is.shape.n_embd % s->is.shape.n_head == 0), "accepted with %lld heads",
           (long long)s->is.shape.n_head);
    import_close(s);
    t->bytes[at] = before;
  }
  free(values);
  free(param);
  free(config.bytes);
  free(model.bytes);
}

TEST(import_tokenizers_agree, "the tokenizer of each fixture, in two forms of files, gives transformers' ids") {
  TokText text = tok_fixture("hf_text.txt"), want = tok_fixture("hf_text.i32");
  for (const char *path : {"dev/fixtures/hf_tiny", "dev/fixtures/hf_untied", "dev/fixtures/hf_published"}) {
    Tokenizer t;
    Error error = {};
    int32_t *ids = (int32_t *)malloc((text.count + 1) * sizeof *ids);
    Import *s = import_open(path, NULL, &error);
    REQUIRE(s, "%s", error.text);
    REQUIRE(tokenizer_load_any(&t, s->is.tokenizer, &error), "%s", error.text);
    const int64_t count = tokenizer_encode(&t, text.bytes, text.count, ids);
    EXPECT(count * 4 == (int64_t)want.count && !memcmp(ids, want.bytes, want.count), "%s: %lld ids, or others", path,
           (long long)count);
    EXPECT(t.vocab_size == s->is.shape.vocab_size, "%s: %d tokens", path, t.vocab_size);
    tokenizer_free(&t);
    import_close(s);
    free(ids);
  }
  free(text.bytes);
  free(want.bytes);
}

// ---- export --------------------------------------------------------------------------------------------------------
TEST(export_equals_save_pretrained, "an imported model laid out for export is save_pretrained's file, byte for byte") {
  for (const char *name : {"hf_tiny", "hf_untied"}) {
    char directory[1024], *header;
    Error error = {};
    Import *s;
    TensorMap from, to;
    int params;
    int64_t numel_;
    Param *param = ix_import(ix_path(directory, "dev/fixtures", name), &s, &from, &params);
    TokText want = tok_read(directory, "model.safetensors");
    uint32_t *values = ix_values(&from, param, params, &numel_), *next = values;
    const bool ok = export_map(&to, "some/where", param, params, &s->is.shape, F32, &header, &error);
    REQUIRE(ok, "%s", error.text);
    EXPECT(!strcmp(to.path[0], "some/where/model.safetensors") && to.files == 1, "path %s", to.path[0]);
    REQUIRE(to.file_bytes[0] == (int64_t)want.count && to.data_at[0] > 0, "%s: %lld bytes, not %zu", name,
            (long long)to.file_bytes[0], want.count);
    uint8_t *got = (uint8_t *)calloc(want.count, 1);
    memcpy(got, header, (size_t)to.data_at[0]);
    for (int p = 0; p < params; p++) {
      const TensorPlace at = *tensor_place(&to, 0, p);
      const int64_t out = param[p].shape[0], in = param[p].ndim == 2 ? param[p].shape[1] : 1;
      for (int64_t i = 0; i < out * in; i++)
        memcpy(got + at.at + 4 * (at.transposed ? i % in * out + i / in : i), next++, 4);
    }
    size_t same = 0;
    while (same < want.count && got[same] == want.bytes[same]) same++;
    EXPECT(same == want.count, "%s: byte %zu of %zu differs (the header has %lld)", name, same, want.count,
           (long long)to.data_at[0]);
    free(got);
    free(header);
    free(values);
    free(param);
    free(want.bytes);
    tensor_map_free(&from);
    tensor_map_free(&to);
    import_close(s);
  }
}

TEST(export_config_round_trips, "an exported config.json is imported as the shape it was made from") {
  const ModelShape shapes[] = {model_shape_gpt2(2, 2, 32, 24, 300, true, 0.1),
                               model_shape_gpt2(1, 4, 16, 20, 300, false, 0)};
  static const char *const fixtures[] = {"dev/fixtures/hf_tiny", "dev/fixtures/hf_untied"};
  char dir[1024], path[1024];
  Error error = {};
  for (int i = 0; i < 2; i++) {
    ix_directory(dir, i ? "untied" : "tied");
    ix_copy(fixtures[i], dir, "model.safetensors");
    const TextEnds ends = {i ? 298 : -1, i ? 299 : -1, NULL, NULL, NULL, NULL};
    char *text = export_config_text(shapes[i], &ends, "1.2.3");
    tok_write(ix_path(path, dir, "config.json"), text, strlen(text));
    Import *s = import_open(dir, NULL, &error);
    REQUIRE(s, "%s", error.text);
    for (const ImportField &f : import_fields)
      EXPECT(*(int64_t *)((char *)&s->is.shape + f.offset) == *(int64_t *)((char *)&shapes[i] + f.offset), "%s",
             f.name);
    EXPECT(s->is.shape.tied == shapes[i].tied && s->is.shape.dropout == shapes[i].dropout && !s->is.warning[0],
           "tied %d, '%s'", s->is.shape.tied, s->is.warning);
    import_close(s);
    cJSON *c = cJSON_Parse(text);
    const cJSON *bos = cJSON_GetObjectItem(c, "bos_token_id"), *eos = cJSON_GetObjectItem(c, "eos_token_id");
    EXPECT(i ? bos && eos && bos->valueint == 298 && eos->valueint == 299 : cJSON_IsNull(bos) && cJSON_IsNull(eos),
           "%s", text);
    cJSON_Delete(c);
    free(text);
  }
}

TEST(export_tokenizer_config, "the other exported texts are JSON, and name the special token or none") {
  for (const char *special : {(const char *)NULL, "<|endoftext|>", "a \"quoted\" \\ one\n"}) {
    char begin[] = "<begin>";
    const TextEnds ends = {special ? 6 : -1, special ? 7 : -1, special ? begin : NULL, (char *)special, NULL, NULL};
    char *text = export_tokenizer_config_text(1024, &ends);
    char *generation = export_generation_config_text(&ends);
    cJSON *c = cJSON_Parse(text), *g = cJSON_Parse(generation);
    for (const char *name : {"bos_token", "eos_token", "unk_token"}) {
      const cJSON *x = cJSON_GetObjectItem(c, name);
      const char *want = !strcmp(name, "bos_token") ? begin : special;
      EXPECT(special ? cJSON_IsString(x) && !strcmp(x->valuestring, want) : cJSON_IsNull(x), "%s", text);
    }
    EXPECT(cJSON_IsFalse(cJSON_GetObjectItem(c, "clean_up_tokenization_spaces")) &&
           cJSON_IsFalse(cJSON_GetObjectItem(c, "add_bos_token")), "%s", text);
    const cJSON *eos = cJSON_GetObjectItem(g, "eos_token_id");
    EXPECT(special ? eos && eos->valueint == 7 : cJSON_IsNull(eos), "%s", generation);
    cJSON_Delete(c);
    cJSON_Delete(g);
    free(text);
    free(generation);
  }
}

// ---- import to export -----------------------------------------------------------------------------------------------
struct IxRun { Options o; Start start; Corpus corpus; Trainer trainer; Saver saver; };

// A trainer whose weights come from PATH, as with --init_from. All ranks of comm call it.
static inline void ix_run_open(IxRun *x, const char *path, MPI_Comm comm) {
  char *argv[] = {(char *)"test", (char *)"--init_from", (char *)path, (char *)"--seq_len", (char *)"8",
                  (char *)"--batch_size", (char *)"1"};
  Error error = {};
  int rank, world;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &world);
  memset((void *)x, 0, sizeof *x);
  options_parse(&x->o, &trainer_table, 7, argv, &error);
  if (!rank && !error.text[0]) start_find(&x->start, &x->o, &error);
  agree_no_error(comm, error.text, EXIT_MISSING);
  start_share(&x->start, comm);
  if (!start_options(&x->start, &x->o, &error)) die_missing("%s", error.text);
  if (!options_resolve(&x->o, world, world, &error)) die_missing("%s", error.text);
  test_corpus(&x->corpus, (int)x->o.vocab_size, 4000, 100);
  trainer_open(&x->trainer, &x->o, &x->corpus, comm, device_of(cpu_tables[cpu_best_table()].ops), 1);
  saver_init(&x->saver, &x->trainer.run);
  start_load(&x->start, &x->trainer.run, &x->saver);
}
static inline void ix_run_close(IxRun *x) {
  trainer_close(&x->trainer);
  start_free(&x->start);
  free((void *)x->corpus.split[SPLIT_TRAIN].tokens);
}
// Logits (T,V) of one sequence, as a sample computes the last of them; malloc'ed. All ranks call it.
static inline float *ix_logits(Trainer *t, const int32_t *tokens, int T) {
  Acts *x = &t->acts;
  const int64_t V = t->model.V, Vp = t->model.Vp, rows = 1;
  float *logits = (float *)malloc(sizeof(float) * (size_t)(T * V));
  trainer_carve(t, 1, T, PASS_SAMPLE);
  fsdp_step_begin(t->fsdp, false);
  memcpy(t->host.inputs, tokens, sizeof(int32_t) * (size_t)T);
  for (int i = 0; i < T; i++) t->host.targets[i] = -1, t->host.starts[i] = 0;
  t->fills = 0;
  trainer_load_batch(t, 0, 1, T);
  gpt_forward(t, Microbatch{0, PASS_SAMPLE});
  fsdp_wait(t->fsdp, 0, true);
  for (int64_t at = 0; at < T; at += rows) {
    const int64_t n = min64(rows, T - at);
    Tensor out = tensor_of(x->logits.data, F32, n, Vp);
    matmul_forward(&t->ctx, out, rows_of(rows2d(x->ln_f), at, n), root_weight(t, head_param(t)),
                   MatmulEpilogue{}, fsdp_quant(t->fsdp, root_param(&t->model, head_param(t))));
    for (int64_t i = 0; i < n; i++)
      t->ctx.ops->copy(&t->ctx, logits + (at + i) * V, (const float *)out.data + i * Vp, sizeof(float) * (size_t)V);
    t->ctx.ops->sync(&t->ctx);
  }
  fsdp_release(t->fsdp, 0);
  fsdp_sync(t->fsdp);
  return logits;
}

TEST_MPI(import_logits_equal_transformers, 1,
         "weights of each fixture give the logits of GPT2LMHeadModel, within 1e-5 of the largest") {
  SafetensorsFile expected;
  if (!safetensors_open(&expected, "dev/fixtures/hf_expected.safetensors")) die_missing("%s", expected.error);
  for (const char *name : {"tiny", "untied", "published"}) {
    static IxRun x;
    char path[1024], key[64];
    Tensor tokens, want;
    snprintf(key, sizeof key, "%s.tokens", name);
    REQUIRE(safetensors_find(&expected, key, I32, &tokens), "%s", expected.error);
    snprintf(key, sizeof key, "%s.logits", name);
    REQUIRE(safetensors_find(&expected, key, F32, &want), "%s", expected.error);
    snprintf(path, sizeof path, "dev/fixtures/hf_%s", name);
    ix_run_open(&x, path, MPI_COMM_SELF);
    float *got = ix_logits(&x.trainer, (const int32_t *)tokens.data, (int)tokens.shape[0]);
    double worst = 0, largest = 0;
    for (int64_t i = 0; i < numel(want); i++) {
      const double w = ((const float *)want.data)[i];
      worst = fmax(worst, isnan(got[i]) ? INFINITY : fabs(got[i] - w));
      largest = fmax(largest, fabs(w));
    }
    EXPECT(want.shape[1] == x.trainer.model.V && worst <= 1e-5 * largest, "%s: off by %.3g of the largest, %.3g", name,
           worst / largest, largest);
    free(got);
    ix_run_close(&x);
  }
  safetensors_close(&expected);
}

TEST_MPI(import_export_any_ranks, 3,
         "three ranks that import and export give save_pretrained's file; the weights that they save import as the "
         "same") {
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  for (const char *name : {"hf_tiny", "hf_untied", "hf_published"}) {
    static IxRun x;
    char from[1024], dir[1024];
    ix_path(from, "dev/fixtures", name);
    ix_path(dir, test_tmp(), name);
    ix_run_open(&x, from, MPI_COMM_WORLD);
    Param *param = x.trainer.fsdp->lay.param;
    if (!rank) mkdir(dir, 0777);
    snprintf(x.trainer.opt.out, sizeof x.trainer.opt.out, "%s", test_tmp());
    EXPECT(export_hf(&x.trainer.run, dir) && save_model(&x.trainer.run), "%s is not written", name);
    if (!rank) {
      TokText got = tok_read(dir, "model.safetensors"), want = tok_read(from, "model.safetensors");
      const bool same = got.count == want.count && !memcmp(got.bytes, want.bytes, got.count);
      EXPECT(same || !strcmp(name, "hf_published"), "%s: the exported file is not the fixture's", name);
      free(got.bytes);
      free(want.bytes);
      uint32_t *values[3];
      int64_t numel_[3];
      char own[1024];
      const char *const paths[] = {from, dir, ix_path(own, test_tmp(), "model.safetensors")};
      for (int i = 0; i < 3; i++) {
        Import *s;
        TensorMap map;
        int params;
        free(ix_import(paths[i], &s, &map, &params));
        EXPECT(s->is.shape.n_head == x.trainer.model.H && s->is.shape.tied == x.trainer.model.tied, "%s: %lld heads",
               paths[i], (long long)s->is.shape.n_head);
        values[i] = ix_values(&map, param, params, &numel_[i]);
        EXPECT(numel_[i] == numel_[0] && !memcmp(values[i], values[0], (size_t)numel_[0] * 4), "%s: other values",
               paths[i]);
        tensor_map_free(&map);
        import_close(s);
      }
      for (uint32_t *v : values) free(v);
    }
    ix_run_close(&x);
  }
}

// Writes the tensors of hf_tiny as DIR/model-0000K-of-00002.safetensors, those with odd numbers in the second, and
// `index`, in which %s takes the weight_map, as DIR/model.safetensors.index.json. twice: the second has the first's
// first tensor, too, as torch.compile names it.
static inline void corpora_write_shards(const char *dir, const char *index, bool twice = false) {
  static IxModel whole, part;
  static char twin[200];
  static char map[1 << 15], text[1 << 16];
  char path[1024], name[64];
  size_t n = 0;
  ix_load(&whole, "dev/fixtures/hf_tiny/model.safetensors");
  for (int k = 0; k < 2; k++) {
    part.count = 0;
    snprintf(name, sizeof name, "model-0000%d-of-00002.safetensors", k + 1);
    for (int i = k; i < whole.count; i += 2) {
      part.tensor[part.count] = whole.tensor[i];
      part.data[part.count++] = whole.data[i];
      n += (size_t)snprintf(map + n, sizeof map - n, "%s\"%s\": \"%s\"", n ? ", " : "", whole.tensor[i].name, name);
    }
    if (twice && k) {
      snprintf(twin, sizeof twin, "_orig_mod.%s", whole.tensor[0].name);
      part.tensor[part.count] = whole.tensor[0], part.tensor[part.count].name = twin;
      part.data[part.count++] = whole.data[0];
      n += (size_t)snprintf(map + n, sizeof map - n, ", \"%s\": \"%s\"", twin, name);
    }
    ix_save(&part, ix_path(path, dir, name), NULL);
  }
  safetensors_close(&whole.file);
  const char *at = strstr(index, "%s");
  n = at ? (size_t)snprintf(text, sizeof text, "%.*s%s%s", (int)(at - index), index, map, at + 2)
         : (size_t)snprintf(text, sizeof text, "%s", index);
  tok_write(ix_path(path, dir, set_index_name), text, n);
}
// Elements of a parameter as found by a map of several files, all parameters one after the other.
static inline uint32_t *corpora_values(const TensorMap *map, const Param *param, int params, int64_t *numel_) {
  TokText file[4] = {};
  for (int i = 0; i < map->files; i++) file[i] = tok_read(map->path[i][0] == '/' ? "/" : ".", map->path[i]);
  *numel_ = 0;
  for (int p = 0; p < params; p++) *numel_ += param_numel(&param[p]);
  uint32_t *values = (uint32_t *)malloc(sizeof(uint32_t) * (size_t)*numel_), *to = values;
  for (int p = 0; p < params; p++)
    for (int64_t o = 0; o < param[p].shape[0]; o++)
      for (int64_t i = 0; i < (param[p].ndim == 2 ? param[p].shape[1] : 1); i++) {
        const TensorPlace *at = tensor_place(map, 0, p);
        *to++ = ix_element(file[at->file].bytes, *at, &param[p], o, i);
      }
  for (TokText &f : file) free(f.bytes);
  return values;
}
TEST(corpora_sharded_weights,
     "a checkpoint in two safetensors shards loads bit for bit like the whole, also in a run") {
  char dir[1024], path[1024];
  Import *whole, *split;
  TensorMap a, b;
  int params;
  int64_t n, m;
  ix_directory(dir, "sharded");
  for (const char *name : {"config.json", "vocab.json", "merges.txt"}) ix_copy("dev/fixtures/hf_tiny", dir, name);
  corpora_write_shards(dir, "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {%s}}");
  Param *param = ix_import("dev/fixtures/hf_tiny", &whole, &a, &params), *other = ix_import(dir, &split, &b, &params);
  EXPECT(b.files == 2 && a.files == 1, "%d files", b.files);
  uint32_t *x = corpora_values(&a, param, params, &n), *y = corpora_values(&b, other, params, &m);
  EXPECT(n == m && !memcmp(x, y, sizeof *x * (size_t)n), "other weights");
  free(x), free(y), free(param), free(other);
  tensor_map_free(&a), tensor_map_free(&b);
  import_close(whole), import_close(split);
  CliRun r;
  const char *const from[] = {"dev/fixtures/hf_tiny", dir}, *const to[] = {"whole", "parts"};
  for (int i = 0; i < 2; i++) {
    CLI_RUN(&r, "%s --init_from %s --data %s --seq_len 8 --batch_size 2 --threads 1 --cache= --max_steps 2 "
            "--save_every -1 --sample_tokens 0 --export_hf %s --out %s", cli_ranks(2), from[i], cli_text(60),
            cli_path(to[i]), cli_path(i ? "out1" : "out0"));
    cli_expect_done(&r, from[i]);
    cli_free(&r);
  }
  cli_expect_same_series("whole and in shards", cli_path("out0"), cli_path("out1"), 2);
  cli_expect_same_file("whole and in shards", cli_path("whole/model.safetensors"), cli_path("parts/model.safetensors"));
  corpora_write_shards(dir, "{\"weight_map\": {%s}}", true);
  ix_rejected(dir, " is in ", " too, but for what was put into the names", NULL);
  unlink(ix_path(path, dir, "model-00002-of-00002.safetensors"));
  ix_rejected(dir, "model-00002-of-00002.safetensors: this shard", "No such file", "fetch it");
  tok_write(path, corpora_pointer, strlen(corpora_pointer));
  ix_rejected(dir, "model-00002-of-00002.safetensors", "Git LFS pointer", "git lfs pull");
  mkfifo(ix_path(path, dir, "pipe.safetensors"), 0666);
  ix_rejected(path, "is a named pipe", NULL, NULL);
}

TEST(corpora_hostile_index, "an index that is cut, names other places, tensors twice or wrongly: rejected by name") {
  static const struct { const char *index, *says; } cases[] = {
      {"", "is not JSON"}, {"{\"weight_map\": {%s}", "is not JSON"}, {"[]", "not a JSON object"},
      {"{\"weight_map\": {}}", "has no weight_map"}, {"{\"weight_map\": [1]}", "has no weight_map"},
      {"{}", "has no weight_map"}, {"{\"weight_map\": {%s, \"x\": 3}}", "the name of a file for tensor \"x\""},
      {"{\"weight_map\": {%s, \"x\": \"../../etc/passwd\"}}", "\"../../etc/passwd\", which is not the plain name"},
      {"{\"weight_map\": {%s, \"x\": \"/etc/passwd.safetensors\"}}", "not the plain name"},
      {"{\"weight_map\": {%s, \"x\": \"./model-00001-of-00002.safetensors\"}}", "not the plain name"},
      {"{\"weight_map\": {%s, \"x\": \"\"}}", "not the plain name"},
      {"{\"weight_map\": {%s, \"x\": \"none.safetensors\"}}", "none.safetensors: this shard"},
      {"{\"weight_map\": {%s, \"x\": \"pipe.safetensors\"}}", "is a named pipe"},
      {"{\"weight_map\": {%s, \"x\": \"again.safetensors\"}}", "is in again.safetensors, but weight_map says"},
      {"{\"weight_map\": {%s, \"x\": \"model-00001-of-00002.safetensors\"}}", "which has no such tensor"},
      {"{\"weight_map\": {%s, \"transformer.wpe.weight\": \"model-00001-of-00002.safetensors\"}}",
       "names tensor \"transformer.wpe.weight\" twice"},
      {"{\"weight_map\": {\"transformer.wpe.weight\": \"model-00001-of-00002.safetensors\"}}", "does not name tensor"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer"}};
  char dir[1024], path[1024], again[1024];
  ix_directory(dir, "hostile");
  ix_copy("dev/fixtures/hf_tiny", dir, "config.json");
  mkfifo(ix_path(path, dir, "pipe.safetensors"), 0666);
  if (symlink("model-00001-of-00002.safetensors", ix_path(again, dir, "again.safetensors"))) die_missing("no link");
  for (const auto &c : cases) {
    corpora_write_shards(dir, c.index);
    ix_rejected(dir, c.says, NULL, NULL);
  }
  ix_rejected(ix_path(path, dir, set_index_name), "name the directory", NULL, NULL);
  ix_config(dir, "\"model_type\": \"gpt2\"", "\"model_type\": \"opt\"");
  ix_rejected(dir, "model_type is \"opt\"", "config.json", NULL);            // before any shard is read
}
