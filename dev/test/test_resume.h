// test_resume.h: what a resumed run takes of its checkpoint, what of the command line, and what it rejects: every
// option by its kind. Follows test_checkpoint.h.
#pragma once

// The rule of every option at a resume: K the checkpoint keeps it, D it is the default, O each run sets its own. Three
// letters: for --resume, for --resume with --eval_only, for --init_from.
struct OptionClass { const char *letters, *names; };
static const OptionClass option_classes[] = {
    {"KKK",
     "model n_layer n_head n_embd n_positions vocab_size tie_head n_kv_head head_size mlp_width norm norm_place "
     "norm_weight norm_embedding norm_eps position rope_theta rope_scaling rope_skip window window_skip window_theta "
     "attention_scale embedding_scale qk_norm mlp bias logit_softcap"},
    {"KDO", "seq_len seed shuffle drop_last chat_template chat_date chat_template_kwargs train_on pairs fields pack "
            "too_long loss dpo_beta dpo_smoothing simpo_gamma reference lora lora_alpha lora_targets lora_scale "
            "base_dtype train_rows"},
    {"KOO", "global_batch fill_step optimizer freeze"},
    {"DDO", "dropout data val_data data_as text_column param_dtype reduce_dtype buffer_dtype fp8 loss_scale "
            "matmul_precision sm_margin attention eval_every test_batch_size sample_tokens temperature top_k top_p "
            "min_p repetition_penalty sampler save_every save_async keep keep_best"},
    {"DOO", "batch_size epochs max_steps on_nan lr schedule warmup min_lr_ratio gamma step_epochs decay_fraction "
            "weight_decay no_decay lr_scale beta1 beta2 eps momentum muon_momentum muon_nesterov muon_adjust clip "
            "reduce accumulate lora_dropout logits_dtype moment_dtype"},
    {"OOO", "grad_accum tokenizer encode document_token cache strategy mesh reshard_after_forward gather_slots "
            "shard wrap offload recompute comm between_hosts shm device no_cuda graph tune plans isa rdzv nnodes "
            "node_rank nproc_per_node rdzv_token preflight threads timeout flight restarts restart_wait eval_only "
            "verbose sample_only prompt prompt_as prompts stop interactive eval eval_style "
            "out log_every log_layers report trace trace_steps "
            "add_tokens export_dtype tensorboard save_model export_hf resume init_from config export_gguf merge "
            "lora_from plan world ranks_per_host on tokens json show_chats"}};
// Options about reporting and saving, not about training, and --data, whose tokens are compared: another value needs
// no warning.
static const char option_quiet[] =
    "data val_data data_as text_column eval_every test_batch_size sample_tokens temperature top_k top_p min_p "
    "repetition_penalty sampler save_every save_async keep keep_best";

// Whether a list of words contains this one.
static inline bool words_have(const char *words, const char *word) {
  const size_t n = strlen(word);
  for (const char *at = words; (at = strstr(at, word)); at++)
    if ((at == words || at[-1] == ' ') && (at[n] == ' ' || !at[n])) return true;
  return false;
}
// A value of an option that is not `value`.
static inline void option_other(const OptionSpec *s, const char *value, char *to, size_t bytes) {
  if (s->type == OPTION_INT) snprintf(to, bytes, "%lld", atoll(value) + 2);
  if (s->type == OPTION_NUM) {
    const double x = atof(value), half = x > 0 ? x / 2 : 0.25;
    snprintf(to, bytes, "%.17g", half >= s->lo ? half : 2 * fmax(x, s->lo));
  }
  if (s->type == OPTION_FLAG) snprintf(to, bytes, "%s", strcmp(value, "on") ? "on" : "off");
  if (s->type != OPTION_TEXT && s->type != OPTION_CHOICE) return;
  const char *first = s->choices, *second = first ? strchr(first, '|') + 1 : NULL;
  const int n = first ? (int)strcspn(first, "|") : 0;
  if (!first) snprintf(to, bytes, "%.100s_", value);
  else if ((int)strlen(value) != n || strncmp(value, first, (size_t)n)) snprintf(to, bytes, "%.*s", n, first);
  else snprintf(to, bytes, "%.*s", (int)strcspn(second, "|"), second);
}
// The record that rank 0 would have found: a checkpoint of a run with options `o`.
static inline void option_start(Start *s, const Options *o, bool resume) {
  char *text = NULL;
  size_t bytes = 0;
  FILE *f = open_memstream(&text, &bytes);
  fprintf(f, "{\"step\":3,\"serial\":1,\"state\":{\"updates\":3,\"good_steps\":3,\"loss_scale\":1,\"beta1_power\":0.5,"
          "\"beta2_power\":0.5},\"quality\":{\"loss\":1,\"valid_loss\":null,\"best_valid_loss\":null},"
          "\"corpus\":{\"hash\":\"00000000000000ab\",\"source\":\"old words\"},\"config\":{");
  log_config(f, o);
  fprintf(f, "}}\n");
  fclose(f);
  memset((void *)s, 0, sizeof *s);
  s->kind = START_CHECKPOINT;
  s->resume = resume;
  strcpy(s->path, "some/step_00000003");
  s->json = cJSON_Parse(text);
  EXPECT(s->json, "%s", text);
  free(text);
}

TEST(resume_treats_every_option_as_its_kind,
     "each option, of --resume, with --eval_only, and of --init_from: kept ones are taken and contradictions rejected "
     "by name, defaults are taken and replacements noted, own ones are left alone") {
  Options saved;
  options_default(&saved, &trainer_table);
  char text[OPTION_TEXT_BYTES], other[OPTION_TEXT_BYTES], plain[OPTION_TEXT_BYTES], got[OPTION_TEXT_BYTES];
  Error error = {};
  for (int i = 0; i < OPTION_COUNT; i++) {
    option_print(text, sizeof text, &saved, &option_specs[i]);
    option_other(&option_specs[i], text, other, sizeof other);
    EXPECT(option_set(&saved, i, other, &error), "%s", error.text);
  }
  for (int i = 0; i < OPTION_COUNT; i++) for (int scenario = 0; scenario < 3; scenario++) {
    const OptionSpec *spec = &option_specs[i];
    char letter = 0;
    for (const OptionClass &c : option_classes) {
      if (!words_have(c.names, spec->name)) continue;
      EXPECT(!letter, "--%s is of two classes", spec->name);
      letter = c.letters[scenario];
    }
    EXPECT(letter, "--%s is of no class: which one does a checkpoint have it in?", spec->name);
    option_print(text, sizeof text, &saved, spec);
    option_other(spec, text, other, sizeof other);
    for (const char *given : {(const char *)NULL, (const char *)text, (const char *)other}) {
      Start start;
      Options o;
      option_start(&start, &saved, scenario < 2);
      options_default(&o, &trainer_table);
      option_print(plain, sizeof plain, &o, spec);
      if (scenario == 1) o.eval_only = true;
      if (given) EXPECT(option_set(&o, i, given, &error), "%s", error.text);
      error.text[0] = 0;
      const bool ok = start_options(&start, &o, &error), rejected = letter == 'K' && given == other;
      const char *want = given ? given : letter == 'O' ? plain : text;
      if (scenario == 1 && i == OPT_eval_only && !given) want = "on";
      option_print(got, sizeof got, &o, spec);
      char said[64];
      snprintf(said, sizeof said, "--%s ", spec->name);
      EXPECT(ok == !rejected, "--%s %s, kind %c of scenario %d: %s", spec->name, given ? given : "(not given)", letter,
             scenario, ok ? "not rejected" : error.text);
      EXPECT(ok || (!strncmp(error.text, said, strlen(said)) && strstr(error.text, "contradicts some/step_00000003")),
             "%s", error.text);
      EXPECT(!ok || !strcmp(got, want), "--%s %s, kind %c of scenario %d: it is %s, must be %s", spec->name,
             given ? given : "(not given)", letter, scenario, got, want);
      const bool noted = letter == 'D' && given == other && !words_have(option_quiet, spec->name);
      EXPECT(!ok || noted == (strstr(start.warnings, said) == start.warnings && start.warnings[0]),
             "--%s %s, kind %c of scenario %d: warnings '%s'", spec->name, given ? given : "(not given)", letter,
             scenario, start.warnings);
      EXPECT(o.given[i] == (given != NULL), "--%s counts as %sgiven", spec->name, o.given[i] ? "" : "not ");
      start_free(&start);
    }
  }
}
TEST(resume_options_fit_the_run,
     "ranks that do not divide the global batch and other tokens are rejected in one line; an option unknown to a "
     "checkpoint of an older program keeps its default") {
  Options saved, o;
  Start start;
  Error error = {};
  test_options(&saved, 1, "--batch_size 2 --global_batch 12");
  for (int world = 1; world <= 6; world++) {
    option_start(&start, &saved, true);
    options_default(&o, &trainer_table);
    error.text[0] = 0;
    const bool ok = start_options(&start, &o, &error) &&
                    options_resolve(&o, world, world, &error);
    char want[128];
    snprintf(want, sizeof want, "--global_batch 12 is not divisible by batch_size 2 x %d ranks", world);
    EXPECT(ok == (6 % world == 0) && (ok || !strcmp(error.text, want)), "%d ranks: %s", world, ok ? "taken" :
           error.text);
    EXPECT(!ok || (o.grad_accum == 6 / world && o.lr == saved.lr), "%d ranks: %lld microbatches each", world,
           (long long)o.grad_accum);
    start_free(&start);
  }

  static Corpus corpus;
  snprintf(corpus.source, sizeof corpus.source, "new words");
  for (int scenario = 0; scenario < 3; scenario++) for (uint64_t hash : {0xabull, 0xacull}) {
    option_start(&start, &saved, scenario < 2);
    options_default(&o, &trainer_table);
    o.eval_only = scenario == 1;
    corpus.hash = hash;
    error.text[0] = 0;
    const bool ok = start_check(&start, &o, &corpus, &error);
    EXPECT(ok == (scenario || hash == 0xab), "scenario %d, tokens %llx: %s", scenario, (unsigned long long)hash,
           ok ? "taken" : error.text);
    static const char said[] = "the tokens of new words are not those that some/step_00000003 was trained on (old w";
    EXPECT(ok || !strncmp(error.text, said, sizeof said - 1), "%s", error.text);
    start_free(&start);
  }

  option_start(&start, &saved, true);
  cJSON_DeleteItemFromObjectCaseSensitive(cJSON_GetObjectItemCaseSensitive(start.json, "config"), "clip");
  options_default(&o, &trainer_table);
  EXPECT(start_options(&start, &o, &error) && o.clip == 1.0, "%s; --clip %g", error.text, o.clip);
  start_free(&start);
}
// Rows of logits at once of a training with these options.
static int64_t head_rows_of(const Options *o, const Ops *ops) {
  static Trainer t;
  Device device = {};
  device.ops = ops;
  trainer_configure(&t, o, device, 1);
  return head_rows(&t.model, o->batch_size * o->seq_len);
}
TEST(resume_keeps_the_heads_chunks,
     "gpt2 at batch 64 has its logits on a GPU in 7 chunks of 2 GiB; a run that is resumed has those of its "
     "checkpoint, which up to 0.6.0 means 25 of 512 MiB; weights alone and a CPU's chunks are the same as ever") {
  if (!&ops_streams) SKIP("the emulation is not linked");
  Options saved, o;
  Start start;
  Error error = {};
  test_options(&saved, 1, "--model gpt2 --vocab_size 50257 --seq_len 1024 --batch_size 64");
  const struct { int64_t recorded; bool resume; int64_t bytes, rows; } table[] = {
      {0, true, (int64_t)512 << 20, 2624}, {(int64_t)2 << 30, true, (int64_t)2 << 30, 9376},
      {(int64_t)1 << 30, true, (int64_t)1 << 30, 5056}, {0, false, (int64_t)2 << 30, 9376}};
  for (const auto &row : table) {
    option_start(&start, &saved, row.resume);
    if (row.recorded) cJSON_AddNumberToObject(start.json, "gpu_head_chunk_bytes", (double)row.recorded);
    options_default(&o, &trainer_table);
    if (!row.resume) o = saved;
    EXPECT(start_options(&start, &o, &error) && options_resolve(&o, 1, 1, &error), "%s", error.text);
    EXPECT(o.gpu_head_chunk_bytes == row.bytes && head_rows_of(&o, &ops_streams) == row.rows,
           "recorded %lld: %lld bytes of logits at once, %lld rows", (long long)row.recorded,
           (long long)o.gpu_head_chunk_bytes, (long long)head_rows_of(&o, &ops_streams));
    const int64_t on_cpu = head_rows_of(&o, cpu_tables[0].ops);
    EXPECT(on_cpu == 320, "CPU: %lld rows", (long long)on_cpu);
    start_free(&start);
  }
}
TEST(resume_keeps_the_attention_and_the_logits,
     "a checkpoint of a program without --attention and --logits_dtype means mma and fp32, one with them what it says; "
     "logits that were in bf16 with activations in bf16 follow those to fp32") {
  Options saved, o;
  Start start;
  Error error = {};
  test_options(&saved, 1, "--max_steps 1 --param_dtype bf16 --logits_dtype bf16");
  for (bool old : {false, true}) {
    option_start(&start, &saved, true);
    for (const char *name : {"attention", "logits_dtype"})
      if (old) cJSON_DeleteItemFromObjectCaseSensitive(cJSON_GetObjectItem(start.json, "config"), name);
    options_default(&o, &trainer_table);
    EXPECT(start_options(&start, &o, &error), "%s", error.text);
    EXPECT(o.attention == (old ? OPT_attention_mma : OPT_attention_auto) &&
           o.logits_dtype == (old ? OPT_logits_dtype_fp32 : OPT_logits_dtype_bf16), "%s checkpoint: %s, logits %s",
           old ? "an old" : "a", option_word(&o, OPT_attention), option_word(&o, OPT_logits_dtype));
    start_free(&start);
  }
  for (const char *dtype : {"fp32", "bf16"}) {
    option_start(&start, &saved, true);
    options_default(&o, &trainer_table);
    EXPECT(option_set(&o, OPT_param_dtype, dtype, &error), "%s", error.text);
    EXPECT(start_options(&start, &o, &error) && options_resolve(&o, 1, 1, &error), "%s", error.text);
    choose_for_device(&o, cpu_tables[0].ops);
    EXPECT(!strcmp(option_word(&o, OPT_logits_dtype), dtype), "--param_dtype %s: logits %s", dtype,
           option_word(&o, OPT_logits_dtype));
    start_free(&start);
  }
}
TEST(resume_takes_the_modes_of_any_checkpoint,
     "a checkpoint's mesh and slots do not bind another number of ranks; without modes it has the defaults; dtypes, "
     "zero1, fp8 GEMMs and frozen parameters follow the options, or are reported") {
  Options saved, o;
  Start start;
  Error error = {};
  static const char shapes[] = "--n_layer 4 --n_head 2 --n_embd 32 --seq_len 8 --vocab_size 290 --batch_size 1 "
                               "--global_batch 12";
  test_options(&saved, 4, "%s --mesh 2x2 --reshard_after_forward off --freeze h.0.*,wte --buffer_dtype bf16", shapes);
  for (int world : {1, 2, 3, 6}) {
    option_start(&start, &saved, true);
    options_default(&o, &trainer_table);
    strcpy(o.freeze, "h.0.*, wte");
    o.given[OPT_freeze] = true;
    EXPECT(start_options(&start, &o, &error) && options_resolve(&o, world, world, &error),
           "%d ranks: %s", world, error.text);
    EXPECT(o.replicas == 1 && o.shards == world && o.strategy == OPT_strategy_full_shard && o.gather_slots == 2 &&
               o.buffer_dtype == OPT_buffer_dtype_bf16 && !start.warnings[0],
           "%d ranks: %s, mesh %dx%d, %lld slots, %s; %s", world, option_word(&o, OPT_strategy), o.replicas, o.shards,
           (long long)o.gather_slots, option_word(&o, OPT_buffer_dtype), start.warnings);
    start_free(&start);
  }

  static const char *const modes[] = {"strategy", "mesh", "reshard_after_forward", "gather_slots", "shard", "wrap",
                                      "accumulate", "offload", "recompute", "buffer_dtype", "fp8", "freeze"};
  for (const char *freeze : {"", "wte"}) {
    option_start(&start, &saved, true);
    for (const char *name : modes)
      cJSON_DeleteItemFromObjectCaseSensitive(cJSON_GetObjectItemCaseSensitive(start.json, "config"), name);
    options_default(&o, &trainer_table);
    strcpy(o.freeze, freeze);
    o.given[OPT_freeze] = freeze[0] != 0;
    error.text[0] = 0;
    const bool ok = start_options(&start, &o, &error) && options_resolve(&o, 3, 3, &error);
    const char *want = "--freeze wte contradicts some/step_00000003, which has none: leave it out, or start a new run "
                       "from its weights with --init_from";
    EXPECT(ok == !freeze[0] && (ok ? !o.freeze[0] && o.fp8 == FP8_OFF : !strcmp(error.text, want)), "'%s': %s", freeze,
           error.text);
    start_free(&start);
  }

  struct Asked { OptionId id; const char *value, *buffer_dtype, *fp8, *warning; };
  static const Asked asked[] = {
      {OPT_seed, "1", "bf16", "matmul", ""},
      {OPT_device, "cpu", "bf16", "gather", "--fp8 gather replaces the checkpoint's matmul, which needs a GPU"},
      {OPT_param_dtype, "fp16", "auto", "matmul", "--param_dtype fp16 replaces the checkpoint's bf16"},
      {OPT_strategy, "zero1", "bf16", "matmul", "--strategy zero1 adds gradients up before it reduces them; the "
       "checkpoint's run had --accumulate sharded"},
      {OPT_strategy, "zero2", "bf16", "matmul", ""}};
  test_options(&saved, 1, "%s --param_dtype bf16 --freeze wte", shapes);
  saved.fp8 = FP8_MATMUL;
  for (const Asked &a : asked) {
    option_start(&start, &saved, true);
    options_default(&o, &trainer_table);
    EXPECT(option_set(&o, a.id, a.value, &error) && start_options(&start, &o, &error), "%s", error.text);
    const char *buffer = option_word(&o, OPT_buffer_dtype), *fp8 = option_word(&o, OPT_fp8);
    EXPECT(!strcmp(buffer, a.buffer_dtype) && !strcmp(fp8, a.fp8), "%s: --buffer_dtype %s --fp8 %s", a.value, buffer,
           fp8);
    EXPECT(!strncmp(start.warnings, a.warning, strlen(a.warning)) && (a.warning[0] || !start.warnings[0]),
           "%s: it says '%s', must say '%s'", a.value, start.warnings, a.warning);
    start_free(&start);
  }
}
TEST(weights_decide_the_shapes,
     "imported weights give the shapes of the model; an option that contradicts them is rejected by name, and "
     "evaluating or sampling without weights too") {
  Options o;
  Start start;
  Error error = {};
  const ModelShape shape = model_shape_gpt2(2, 3, 60, 32, 5003, false, 0.25);
  const struct { const char *argument, *said; } cases[] = {
      {"--seed=3", ""}, {"--n_layer=2", ""}, {"--n_layer=3", "--n_layer 3 contradicts imp, which has 2: leave it out"},
      {"--vocab_size=5000", "--vocab_size 5000 contradicts imp, which has 5003: leave it out"},
      {"--tie_head=on", "--tie_head on contradicts imp: leave it out"}, {"--tie_head=off", ""},
      {"--model=tiny", "--model tiny contradicts imp: 2 blocks, 3 heads, width 60; leave it out"}};
  for (const auto &k : cases) {
    char *argv[] = {(char *)"test", (char *)k.argument};
    memset((void *)&start, 0, sizeof start);
    start.kind = START_IMPORT;
    start.weights.shape = shape;
    strcpy(start.path, "imp");
    error.text[0] = 0;
    EXPECT(options_parse(&o, &trainer_table, 2, argv, &error), "%s", error.text);
    const bool ok = start_options(&start, &o, &error);
    EXPECT(ok == !k.said[0] && !strcmp(error.text, k.said), "%s: '%s', must be '%s'", k.argument, error.text, k.said);
    EXPECT(!ok || (o.n_layer == 2 && o.n_head == 3 && o.n_embd == 60 && o.n_positions == 32 && o.vocab_size == 5003 &&
                   o.tie_head == OPT_tie_head_off && o.dropout == 0.25),
           "%s: not the shapes of the weights", k.argument);
  }
  memset((void *)&start, 0, sizeof start);
  options_default(&o, &trainer_table);
  o.eval_only = true;
  EXPECT(!start_options(&start, &o, &error) && strstr(error.text, "--eval_only needs weights"), "%s", error.text);
}
