// test_families.h: blocks of today's models. transformers' families (dev/make_families_fixture.py makes
// dev/fixtures/family_*): loss and every gradient beside theirs, files in and out; the published sizes; what is
// rejected.

static const char *const family_names[] = {"llama", "llama_bias", "qwen2", "qwen3", "smollm3", "nanochat",
                                           "mistral", "llama_yarn", "qwen3_yarn", "olmo2",
                                           "mistral_window", "qwen2_window", "olmo3", "gemma3_text",
                                           "gemma3_text_scaled", "ministral3"};

struct FamilyRun { Options o; Start start; Corpus corpus; Trainer trainer; Saver saver; };
// A trainer whose weights come from PATH, as with --init_from, for the fixture's batch.
static inline void family_open(FamilyRun *x, const char *path, const Ops *ops, const char *extra, int seq_len = 13) {
  char text[1024], *argv[32] = {(char *)"test"}, *save = NULL;
  Error error = {};
  int argc = 1;
  memset((void *)x, 0, sizeof *x);
  snprintf(text, sizeof text, "--init_from %s --seq_len %d --batch_size 2 %s", path, seq_len, extra);
  for (char *word = strtok_r(text, " ", &save); word; word = strtok_r(NULL, " ", &save)) argv[argc++] = word;
  options_parse(&x->o, &trainer_table, argc, argv, &error);
  if (!error.text[0]) start_find(&x->start, &x->o, &error);
  agree_no_error(MPI_COMM_SELF, error.text, EXIT_MISSING);
  start_share(&x->start, MPI_COMM_SELF);
  if (!start_options(&x->start, &x->o, &error)) die_missing("%s", error.text);
  if (!options_resolve(&x->o, 1, 1, &error)) die_missing("%s", error.text);
  test_corpus(&x->corpus, (int)x->o.vocab_size, 4000, 100);
  trainer_open(&x->trainer, &x->o, &x->corpus, MPI_COMM_SELF, device_of(ops), 2);
  saver_init(&x->saver, &x->trainer.run);
  start_load(&x->start, &x->trainer.run, &x->saver);
}
static inline void family_close(FamilyRun *x) {
  trainer_close(&x->trainer);
  start_free(&x->start);
  free((void *)x->corpus.split[SPLIT_TRAIN].tokens);
}
// Forward and backward of the fixture's batch; the mean loss.
static inline double family_step(Trainer *t, const Tensor *inputs, const Tensor *targets) {
  const int B = (int)t->opt.batch_size, T = (int)t->model.T;
  trainer_carve(t, B, T, PASS_TRAIN);
  memcpy(t->host.inputs, inputs->data, sizeof(int32_t) * (size_t)(B * T));
  memcpy(t->host.targets, targets->data, sizeof(int32_t) * (size_t)(B * T));
  trainer_step_begin(t);
  trainer_load_batch(t, 0, B, T);
  gpt_forward_backward(t, Microbatch{0, PASS_TRAIN}, 0);
  fsdp_reduce_wait(t->fsdp);
  fsdp_returns_wait(t->fsdp);
  t->ctx.ops->copy(&t->ctx, t->host.losses, t->buffers.exchange + 1, sizeof(double));
  t->ctx.ops->sync(&t->ctx);
  return t->host.losses[0];
}
// One tensor's `got` (cols wide) beside the fixture's of that key; `got` moves past it. half > 0: the fixture's
// rows have the halves of 2 x half rows the other way around. The bound is relative to the largest magnitude.
static inline void family_compare_tensor(FamilyRun *x, SafetensorsFile *expected, const char *key, const float **got,
                                         int64_t cols, int64_t half, double bound, const char *what) {
  Tensor want;
  REQUIRE(safetensors_find(expected, key, F32, &want), "%s", expected->error);
  double worst = 0, largest = 0;
  for (int64_t i = 0; i < numel(want); i++) {
    const int64_t row = i / cols, theirs = half ? (row / half ^ 1) * half + row % half : row;
    const double w = ((const float *)want.data)[theirs * cols + i % cols], g = (*got)[i];
    worst = fmax(worst, isnan(g) ? INFINITY : fabs(g - w));
    largest = fmax(largest, fabs(w));
  }
  EXPECT(worst <= bound * largest, "%s on %s: %s: off by %.3g of its largest magnitude %.3g, bound %.0e", what,
         x->trainer.ctx.ops->name, key, worst / largest, largest, bound);
  *got += numel(want);
}
// Every gradient against the fixture's.
static inline void family_compare(FamilyRun *x, SafetensorsFile *expected, const char *name, double bound) {
  Fsdp *f = x->trainer.fsdp;
  const ModelShape *s = &x->trainer.model.shape;
  for (int p = 0; p < f->lay.params; p++) {
    const Param *q = &f->lay.param[p];
    float *got = (float *)malloc(sizeof(float) * (size_t)param_numel_padded(q));
    const float *at = got;
    fsdp_read_param(f, STATE_GRAD, p, got);
    for (int part = 0; part < q->matrices; part++) {
      char tensor[FAMILY_NAME_BYTES], key[160];
      family_tensor_name(tensor, q, part, s);
      snprintf(key, sizeof key, "%s.grad.%s", name, tensor);
      const int64_t half = family_turns_back(family_of_shape(s), q, part) ? s->head_size / 2 : 0;
      family_compare_tensor(x, expected, key, &at, param_cols(q), half, bound, name);
    }
    free(got);
  }
}

TEST_MPI(
    families_gradients_equal_transformers, 1,
    "Llama, Mistral, Ministral 3, Qwen 2 and 3, SmolLM3, NanoChat, OLMo 2 and 3 and Gemma 3 of transformers, 1, 2, 3 "
    "and all KV heads, rope scaled in each way, windows shorter than the sequences: fp32 loss within 1e-6 and "
    "every gradient within 1e-5 of its, on each instruction set, with blocks recomputed too") {
  SafetensorsFile expected;
  if (!safetensors_open(&expected, "dev/fixtures/family_expected.safetensors")) die_missing("%s", expected.error);
  for (const char *name : family_names) for (int i = 0; i <= cpu_best_table() + 1; i++) {
    static FamilyRun x;
    const bool again = i > cpu_best_table();
    char path[256], key[64];
    Tensor inputs, targets, loss;
    const struct { const char *kind; Dtype dtype; Tensor *to; } tensors[] = {
        {"inputs", I32, &inputs}, {"targets", I32, &targets}, {"loss", F32, &loss}};
    for (const auto &t : tensors) {
      snprintf(key, sizeof key, "%s.%s", name, t.kind);
      REQUIRE(safetensors_find(&expected, key, t.dtype, t.to), "%s", expected.error);
    }
    snprintf(path, sizeof path, "dev/fixtures/family_%s", name);
    family_open(&x, path, cpu_tables[again ? 0 : i].ops, again ? "--recompute block" : "");
    const double got = family_step(&x.trainer, &inputs, &targets), want = *(const float *)loss.data;
    EXPECT(fabs(got / want - 1) <= 1e-6, "%s on %s: loss %.9g, transformers' %.9g", name, x.trainer.ctx.ops->name, got,
           want);
    family_compare(&x, &expected, name, 1e-5);
    family_close(&x);
  }
  safetensors_close(&expected);
}

TEST(families_have_published_sizes, "presets of published models have their numbers of parameters") {
  static const struct { const char *model; int64_t parameters; } published[] = {
      {"smollm2-135m", 134515008}, {"smollm2-360m", 361821120}, {"llama-3.2-1b", 1235814400},
      {"qwen2.5-0.5b", 494032768}, {"qwen3-0.6b", 596049920}};
  for (const auto &m : published) {
    Options o;
    test_options(&o, 1, "--model %s", m.model);
    const Model model = model_of(&o);
    EXPECT(model_numel(&model) == m.parameters, "%s: %lld parameters, published are %lld", m.model,
           (long long)model_numel(&model), (long long)m.parameters);
  }
}

TEST(families_modern_presets,
     "modern, in each size: Qwen 3's block with an untied LM head and Muon at its rate; AdamW and SGD have a quarter "
     "of it; what is given overrides; GPT-2's presets have AdamW and a tied head") {
  static const struct { const char *options; double lr; OptimizerKind optimizer; bool tied; } cases[] = {
      {"--model modern-tiny", 4e-3, OPTIMIZER_MUON, false},
      {"--model modern-small", 4e-3, OPTIMIZER_MUON, false},
      {"--model modern", 2.4e-3, OPTIMIZER_MUON, false},
      {"--model modern-small --optimizer adamw", 1e-3, OPTIMIZER_ADAMW, false},
      {"--model modern-small --optimizer sgd --lr 5", 5, OPTIMIZER_SGD, false},
      {"--model modern-small --optimizer muon --tie_head on", 4e-3, OPTIMIZER_MUON, true},
      {"--model small", 1e-3, OPTIMIZER_ADAMW, true},
      {"--model small --optimizer muon", 1e-3, OPTIMIZER_MUON, true}};
  for (const auto &c : cases) {
    Options o;
    test_options(&o, 1, "%s", c.options);
    const ModelShape s = shape_of(&o);
    const Family *f = family_of_shape(&s);
    EXPECT(o.lr == c.lr && o.optimizer == c.optimizer && s.tied == c.tied, "%s: --lr %g --optimizer %s --tie_head %s",
           c.options, o.lr, option_word(&o, OPT_optimizer), option_word(&o, OPT_tie_head));
    const bool modern = strstr(c.options, "modern") != NULL;
    EXPECT(modern ? f && !strcmp(f->model_type, "qwen3") : shape_is_gpt2(&s), "%s is another class", c.options);
  }
}

// A directory's config.json and weights, copied to where the test may change them.
static inline void family_copy(char dir[1024], const char *name) {
  static int copies;
  char from[256], path[1200], own[64];
  snprintf(own, sizeof own, "%s-%d", name, copies++);
  ix_directory(dir, own);
  snprintf(from, sizeof from, "dev/fixtures/family_%s", name);
  ix_copy(from, dir, "config.json");
  snprintf(path, sizeof path, "%s/model.safetensors", from);
  if (!access(path, F_OK)) { ix_copy(from, dir, "model.safetensors"); return; }
  ix_copy(from, dir, "model.safetensors.index.json");
  for (int i = 1; i <= 9; i++)
    for (int k = i; k <= 9; k++) {
      char shard[64];
      snprintf(shard, sizeof shard, "model-%05d-of-%05d.safetensors", i, k);
      snprintf(path, sizeof path, "%s/%s", from, shard);
      if (!access(path, F_OK)) ix_copy(from, dir, shard);
    }
}

// That what came back is what was written: the weights' bits, sizes and the block's choices; as the same class.
static inline void family_came_back(FamilyRun *y, const char *path, const Options *o, uint64_t hash, const char *name) {
  family_open(y, path, cpu_tables[0].ops, "");
  EXPECT(params_hash(y->trainer.fsdp, false) == hash, "%s: other weights come back from %s", name, path);
  for (int i = GROUP_MODEL; i < GROUP_TRAINING; i++) {
    char before[OPTION_TEXT_BYTES], after[OPTION_TEXT_BYTES];
    option_print(before, sizeof before, o, &option_specs[i]);
    option_print(after, sizeof after, &y->o, &option_specs[i]);
    EXPECT(!strcmp(before, after), "%s: --%s was %s, and %s comes back from %s", name, option_specs[i].name, before,
           after, path);
  }
  family_close(y);
}
TEST_MPI(
    families_round_trip, 1,
    "an export of each family is read back as the same shape and the same bits, NanoChat's turned heads and weights in "
    "several files included; its class is transformers'; and so from a GGUF, where llama.cpp has the family") {
  for (const char *name : family_names) {
    static FamilyRun x, y;
    char path[256], dir[1024], options[1200], gguf[1200];
    Error unused;
    snprintf(path, sizeof path, "dev/fixtures/family_%s", name);
    ix_directory(dir, name);
    snprintf(options, sizeof options, "--export_gguf f32 --out %s", dir);
    snprintf(gguf, sizeof gguf, "%s/model.gguf", dir);
    family_open(&x, path, cpu_tables[0].ops, options);
    const uint64_t before = params_hash(x.trainer.fsdp, false);
    REQUIRE(export_hf(&x.trainer.run, dir), "%s is not exported", name);
    EXPECT(x.o.optimizer == OPTIMIZER_ADAMW, "%s is tuned with %s", name, option_word(&x.o, OPT_optimizer));
    const ModelShape shape = x.trainer.model.shape;
    const Family *family = family_of_shape(&shape);
    const bool written = gguf_can(&shape, &unused);
    REQUIRE(!written || export_gguf(&x.trainer.run), "%s is not exported for llama.cpp", name);
    EXPECT(family && !strncmp(name, family->model_type, strlen(family->model_type)), "%s: exported as another class",
           name);
    const bool is_llama_cpp = family->gguf && strcmp(name, "qwen3_yarn") && strcmp(name, "gemma3_text_scaled") &&
                              !strstr(name, "window");
    EXPECT(written == is_llama_cpp, "%s for llama.cpp: %s", name, unused.text);
    const Options o = x.o;
    family_close(&x);
    family_came_back(&y, dir, &o, before, name);
    if (written) family_came_back(&y, gguf, &o, before, name);
  }
}

TEST_MPI(families_text_models_in_others, 1,
         "a model with images too is taken as its text model alone, with the same bits, also by the names that it has "
         "in memory; Ministral 3's q grows after its original positions, so that longer sequences are rejected") {
  static FamilyRun x, y;
  char dir[1024], path[1200];
  int64_t bytes;
  family_open(&x, "dev/fixtures/family_ministral3", cpu_tables[0].ops, "");
  family_open(&y, "dev/fixtures/family_ministral3_images", cpu_tables[0].ops, "");
  EXPECT(params_hash(x.trainer.fsdp, false) == params_hash(y.trainer.fsdp, false), "other weights are read");
  family_close(&y);
  family_copy(dir, "ministral3_images");
  snprintf(path, sizeof path, "%s/model.safetensors", dir);
  char *file = file_get(path, 1 << 24, &bytes);
  REQUIRE(file, "%s cannot be read", path);
  static const char *const names[][2] = {{"language_model.model.", "model.language_model."},
                                         {"\"language_model.lm_head.weight\"", "\"lm_head.weight\"               "}};
  for (const auto &n : names)
    for (void *at; (at = memmem(file, (size_t)bytes, n[0], strlen(n[0])));) memcpy(at, n[1], strlen(n[1]));
  tok_write(path, file, (size_t)bytes);
  free(file);
  family_open(&y, dir, cpu_tables[0].ops, "");
  EXPECT(params_hash(x.trainer.fsdp, false) == params_hash(y.trainer.fsdp, false), "other weights by other names");
  Options o = x.o;
  Error error = {};
  o.seq_len = 17;
  EXPECT(!options_resolve(&o, 1, 1, &error) && strstr(error.text, "after 16 tokens this model's q grows"),
         "%s", error.text);
  family_close(&x);
  family_close(&y);
}

TEST(families_rope_scaling_is_spelled_once,
     "--rope_scaling: each kind is read with its numbers and printed as it is read; what has others is not taken") {
  static const struct { const char *text, *printed; } cases[] = {
      {"none", "none"}, {"linear:8", "linear:8"}, {"llama3:32,1,4,8192", "llama3:32,1,4,8192"},
      {"yarn:1,1,32,64", "yarn:1,1,32,64,1"}, {"yarn:4,1,32,32768", "yarn:4,1,32,32768,1.138629436"},
      {"yarn_exact:32,1,32,4096,1.5", "yarn_exact:32,1,32,4096,1.5"}, {"", NULL}, {"none:1", NULL}, {"linear", NULL},
      {"linear:0", NULL}, {"linear:2,3", NULL}, {"linear:inf", NULL}, {"llama3:32,4,4,8192", NULL},
      {"yarn:4,1,32", NULL},
      {"llama3:32,1,4,8192,1", NULL}, {"yarn:4,1,32,1.5", NULL}, {"yarn:4,1,32,64,0", NULL}, {"yarn:4;1,32,64", NULL}};
  for (const auto &k : cases) {
    RopeScaling s;
    char text[200] = "";
    const bool taken = rope_scaling_parse(k.text, &s);
    if (taken) rope_scaling_print(text, sizeof text, &s);
    EXPECT(taken == (k.printed != NULL) && (!taken || !strcmp(text, k.printed)), "'%s' is '%s'", k.text, text);
  }
}

TEST(families_reject_what_they_are_not,
     "a config.json that asks for another function is rejected by field and value, and one "
     "of transformers 4 is read") {
  static const struct { const char *name, *from, *to, *says, *warning = NULL;
    int64_t window = -1, original = -1;          // as read; -1: not looked at
  } cases[] = {
      {"llama", "\"hidden_act\": \"silu\"", "\"hidden_act\": \"gelu\"", "hidden_act is \"gelu\", only silu"},
      {"llama", "\"rope_type\": \"llama3\"", "\"rope_type\": \"longrope\"",
       "rope_type is \"longrope\", only default, linear"},
      {"mistral", "\"factor\": 2.5", "\"factor\": 0", "rope_type linear needs factor"},
      {"ministral3", "\"beta_slow\": 0.5", "\"beta_slow\": 3", "rope_type yarn needs factor, beta_slow, beta_fast"},
      {"llama_yarn", "\"factor\": 4.0", "\"factor\": 4.0, \"attention_factor\": -1", "attention_factor is -1"},
      {"llama", "\"model_type\": \"llama\"", "\"model_type\": \"gemma3\"",
       "model_type is \"gemma3\", expected gpt2, llama"},
      {"llama", "\"vocab_size\": 61", "\"vocab_size\": 61, \"quantization_config\": {}", "quantization_config"},
      {"llama", "\"num_key_value_heads\": 2", "\"num_key_value_heads\": 4", "num_key_value_heads 4 does not divide"},
      {"llama", "\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3",
       "model.layers.0.self_attn.k_proj.weight is"},
      {"llama", "\"vocab_size\": 61", "\"vocab_size\": 61, \"partial_rotary_factor\": 0.5",
       "partial_rotary_factor is 0.5"},
      {"llama", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3",
       "model.layers.2.input_layernorm.weight is missing"},
      {"llama", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1", "is not one of this model's"},
      {"qwen2", "\"full_attention\"", "\"chunked_attention\"", "layer_types has \"chunked_attention\""},
      {"qwen2", "\"full_attention\"", "\"sliding_attention\"", NULL},       // of 4096 tokens, beyond all positions
      {"qwen2", "\"use_sliding_window\": false", "\"use_sliding_window\": true", NULL},
      {"llama", "\"vocab_size\": 61", "\"vocab_size\": 61, \"use_sliding_window\": true, \"sliding_window\": 32", NULL,
       "positions end at the sliding window of 32 tokens"},
      {"mistral_window", "\"sliding_window\": 5", "\"sliding_window\": 0.5", "sliding_window is 0.5"},
      {"mistral_window", "\"sliding_window\": 5", "\"sliding_window\": null", NULL},
      {"olmo3", "\"full_attention\"\n", "\"sliding_attention\"\n", NULL},
      {"olmo3", "\"sliding_attention\",\n", "\"full_attention\",\n", "layer_types is not every N-th layer full"},
      {"olmo3", "\"num_hidden_layers\": 4", "\"num_hidden_layers\": 3", "layer_types has 4 entries for 3 layers"},
      {"gemma3_text", "\"attn_logit_softcapping\": null", "\"attn_logit_softcapping\": 50.0",
       "attn_logit_softcapping is 50, only null"},
      {"gemma3_text", "\"use_bidirectional_attention\": false", "\"use_bidirectional_attention\": true",
       "use_bidirectional_attention is true"},
      {"gemma3_text", "\"hidden_activation\": \"gelu_pytorch_tanh\"", "\"hidden_activation\": \"gelu\"",
       "hidden_activation is \"gelu\", only gelu_pytorch_tanh"},
      {"gemma3_text", "\"model_type\": \"gemma3_text\"", "\"model_type\": \"gemma2\"",
       "model_type is \"gemma2\", expected gpt2"},
      {"gemma3_text", "\"model_type\": \"gemma3_text\"", "\"model_type\": \"gemma3n_text\"",
       "model_type is \"gemma3n_text\", expected gpt2"},
      {"gemma3_text", "\"model_type\": \"gemma3_text\"", "\"model_type\": \"gemma4_text\"",
       "model_type is \"gemma4_text\", expected gpt2"},
      {"gemma3_text", "\"num_attention_heads\": 2,", "", "q_proj.weight is (16,16), expected (64,16)"},    // 8 heads
      {"ministral3", "\"num_hidden_layers\": 1,", "", "model.layers.1.input_layernorm.weight is missing"},     // of 34
      {"qwen3", "\"head_dim\": 10", "\"head_dim\": 9", "head_dim 9 is odd"},
      {"smollm3", "    0,", "    1,", NULL},
      {"llama", "\"attention_dropout\": 0.0", "\"attention_dropout\": 0.1", NULL, "attention_dropout 0.1 is not taken"},
      {"llama", "\"vocab_size\": 61", "\"vocab_size\": 61, \"is_causal\": false", "is_causal is false"},
      {"llama", "\"rope_parameters\": {", "\"partial_rotary_factor\": 1.0, \"rope_parameters\": {"
       "\"partial_rotary_factor\": 0.5, ", "partial_rotary_factor is 0.5"},
      {"llama_yarn", "\"mlp_bias\"", "\"original_max_position_embeddings\": 32, \"mlp_bias\"", NULL, NULL, 0, 32},
      {"mistral_window", "\"sliding_window\": 5", "\"sliding_window\": 5, \"layer_types\": [\"full_attention\"]", NULL,
       "positions end at the sliding window of 5 tokens", 0},
      {"qwen2_window", "\"layer_types\": [\n    \"sliding_attention\",\n    \"full_attention\",\n"
       "    \"sliding_attention\"\n  ],\n  \"max_position_embeddings\": 64,\n  \"max_window_layers\": 28,",
       "\"max_position_embeddings\": 64,", NULL, NULL, 0},      // windows start at layer 28
      {"llama", "\"rope_parameters\"", "\"rope_scaling\"", NULL}};
  for (const auto &k : cases) {
    char dir[1024], path[1200], text[8192] = "", changed[8300];
    Error error = {};
    family_copy(dir, k.name);
    snprintf(path, sizeof path, "%s/config.json", dir);
    FILE *f = fopen(path, "r");
    REQUIRE(f, "%s cannot be read", path);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    char *at = strstr(text, k.from);
    REQUIRE(at, "%s has no %s", path, k.from);
    snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, k.to, at + strlen(k.from));
    tok_write(path, changed, strlen(changed));
    Import *s = import_open(dir, NULL, &error);
    bool ok = s;
    if (ok) {
      EXPECT(k.warning ? strstr(s->is.warning, k.warning) != NULL : !s->is.warning[0],
             "%s with %s: warning '%s'", k.name, k.to, s->is.warning);
      const Architecture *b = &s->is.shape.block;
      EXPECT((k.window < 0 || b->window == k.window) && (k.original < 0 || b->rope_scaling.original == k.original),
             "%s with %s: a window of %lld, rope scaled from %lld", k.name, k.to, (long long)b->window,
             (long long)b->rope_scaling.original);
      int params;
      TensorMap map = {};
      Param *param = params_of_shape(&param_table, &s->is.shape, &params);
      ok = import_map(s, param, params, &map, &error);
      tensor_map_free(&map);
      free(param);
      import_close(s);
    }
    EXPECT(ok == !k.says && (ok || strstr(error.text, k.says)), "%s with %s: '%s', expected '%s'", k.name, k.to,
           error.text, k.says ? k.says : "");
  }
}
