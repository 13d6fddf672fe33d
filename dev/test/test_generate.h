// test_generate.h: generation (trainer/generate.h): with a cache of k and v the logits of a pass over the whole text;
// draws by their distribution; texts that depend on neither ranks nor neighbours, and where they end.

static const char generate_shape[] =
    "--n_layer 3 --n_embd 48 --seq_len 150 --vocab_size 131 --batch_size 3 --prompts x";
enum { GENERATE_TEXTS = 3, GENERATE_STEPS = 9 };
// One token of each text after another, kept, then passes over whole texts: the same logits.
static inline void generate_compare_trainer(Trainer *t, const char *options, double bound) {
  const int P = (int)t->model.P, V = (int)t->model.V, lengths[GENERATE_TEXTS] = {1, P * 2 / 5, P - GENERATE_STEPS};
  const size_t row = (size_t)V, step_floats = GENERATE_TEXTS * row;
  float *kept = (float *)malloc(sizeof(float) * GENERATE_STEPS * step_floats);
  int32_t *const in = t->host.inputs, *const starts = t->host.starts;
  const auto token = [=](int b, int i) { return (int32_t)((i * 29 + b * 41 + i * i) % V); };
  const auto prompt = [&](int b, int T) {
    trainer_carve(t, 1, T, PASS_SAMPLE);
    for (int i = 0; i < T; i++) in[i] = token(b, i), starts[i] = 0;
    trainer_enqueue_prompt(t, b, T);
    fsdp_sync(t->fsdp);
  };
  fsdp_step_begin(t->fsdp, false);
  trainer_carve(t, 1, P, PASS_SAMPLE);
  trainer_clear_cache(t, P);
  for (int b = 0; b < GENERATE_TEXTS; b++) prompt(b, lengths[b]);
  for (int step = 0; step < GENERATE_STEPS; step++) {
    trainer_carve(t, GENERATE_TEXTS, 1, PASS_SAMPLE);
    for (int b = 0; b < GENERATE_TEXTS; b++) {
      in[b] = token(b, lengths[b] + step), starts[b] = -(lengths[b] + step);
    }
    trainer_enqueue_next(t, GENERATE_TEXTS);
    fsdp_sync(t->fsdp);
    for (int b = 0; b < GENERATE_TEXTS; b++)
      memcpy(kept + step * step_floats + b * row, t->host.logits + b * t->model.Vp, sizeof(float) * row);
  }
  double worst = 0, largest = 0;
  int differ = 0;
  for (int step = 0; step < GENERATE_STEPS; step++)
    for (int b = 0; b < GENERATE_TEXTS; b++) {
      prompt(b, lengths[b] + step + 1);
      const float *want = t->host.logits + b * t->model.Vp, *got = kept + step * step_floats + b * row;
      differ += memcmp(want, got, sizeof(float) * row) != 0;
      for (size_t i = 0; i < row; i++)
        worst = fmax(worst, fabs((double)want[i] - got[i])), largest = fmax(largest, fabs((double)want[i]));
    }
  if (bound == 0) EXPECT(!differ && largest > 0, "%s on %s: %d of %d rows of logits have other bits, off by %.3g of "
                         "%.3g", options, t->ctx.ops->name, differ, GENERATE_STEPS * GENERATE_TEXTS, worst, largest);
  else EXPECT(worst <= bound * largest && largest > 0, "%s on %s: logits are off by %.3g of %.3g", options,
              t->ctx.ops->name, worst, largest);
  free(kept);
}
static inline void generate_compare(const Ops *ops, const char *options, const Corpus *corpus, double bound) {
  static Trainer t;
  Options o;
  test_options(&o, 1, "%s %s", generate_shape, options);
  trainer_open(&t, &o, corpus, MPI_COMM_SELF, device_of(ops), 2);
  generate_compare_trainer(&t, options, bound);
  trainer_close(&t);
}
#define GENERATE_LLAMA "--norm rmsnorm --position rope --mlp swiglu --bias none "
static const char *const generate_families[] = {
    "--n_head 4", "--n_head 4 --n_kv_head 2 " GENERATE_LLAMA, "--n_head 3 --head_size 20 --n_kv_head 1 --bias qkv "
    "--norm rmsnorm --position rope --mlp swiglu --tie_head off", "--n_head 2 --qk_norm before --rope_skip 3 "
    GENERATE_LLAMA, "--n_head 4 --n_kv_head 2 --qk_norm after --norm_weight off --norm_embedding on --logit_softcap 15 "
    "--norm rmsnorm --position rope --mlp relu2 --bias none", "--n_head 4 --n_kv_head 2 --qk_norm all "
    "--norm_place behind --window 5 --window_skip 2 --window_theta 30 " GENERATE_LLAMA};
TEST_MPI(generate_cached_is_uncached, 1,
         "a token at a time over a cache of k and v, three texts of different lengths at once, has the bits of a pass "
         "over each whole text: learned positions and rope, shared heads, qk_norm, in fp32 on every instruction set; "
         "in bf16 and on emulated CUDA the logits to rounding") {
  static Corpus corpus;
  test_corpus(&corpus, 131, 150 * 3 + 1, 50);
  for (const char *family : generate_families) {
    for (int i = 0; i <= cpu_best_table(); i++) generate_compare(cpu_tables[i].ops, family, &corpus, 0);
    for (int i = 0; const Ops *ops = device_table(i); i++) generate_compare(ops, family, &corpus, 1e-5);
    char bf16[512];
    snprintf(bf16, sizeof bf16, "%s --param_dtype bf16", family);
    // Two chains of three blocks, each activation rounded to 2^-9 of itself.
    generate_compare(cpu_tables[cpu_best_table()].ops, bf16, &corpus, 0.05);
  }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}

TEST_MPI(generate_from_blocks, 1,
         "a token at a time over matrices of every type of block, which are multiplied as stored, has the bits of a "
         "pass over each whole text, for which they are expanded, beside adapters too, in fp32 on every instruction "
         "set; in bf16 and on emulated CUDA the logits to rounding") {
  for (int i = 0;; i++) {
    static FamilyRun x;
    Error error = {};
    const int cpus = cpu_best_table() + 1, on_cpu = i <= cpus;
    const Ops *ops = i < cpus ? cpu_tables[i].ops : on_cpu ? cpu_tables[cpus - 1].ops : device_table(i - cpus - 1);
    const char *options = i == cpus ? "--seq_len 64 --batch_size 3 --prompts x --param_dtype bf16" :
                          i % 2 ? "--seq_len 64 --batch_size 3 --prompts x --lora 2"
                                : "--seq_len 64 --batch_size 3 --prompts x --sample_only";
    if (!ops) break;
    REQUIRE(kept_open(&x, kept_file(), MPI_COMM_SELF, ops, options, &error), "%s", error.text);
    generate_compare_trainer(&x.trainer, options, i < cpus ? 0 : on_cpu ? 0.05 : 1e-5);
    // Three tokens after a whole pass: what is expanded is of the blocks no more.
    Fsdp *&f = x.trainer.fsdp;
    trainer_carve(&x.trainer, 3, 1, PASS_SAMPLE);
    trainer_enqueue_next(&x.trainer, 3);
    fsdp_sync(f);
    EXPECT(on_cpu || !f->gather.expanded_matrices, "%s: matrices were expanded for three tokens", ops->name);
    for (int p = 0; p < f->lay.params && on_cpu; p++)
      EXPECT(!param_in_blocks(&f->lay.param[p]) || f->lay.place[p].expand_at < 0, "%s: %s has an expanded copy",
             ops->name, f->lay.param[p].name);
    family_close(&x);
  }
}

TEST_MPI(generate_touches_what_it_reaches, 1,
         "of the cache generation touches the positions that its texts reach, and no others: pages of a long one are "
         "given to the process when they are needed") {
  static Trainer t;
  static Corpus corpus;
  Options o;
  test_corpus(&corpus, 131, 150 * 3 + 1, 50);
  test_options(&o, 1, "%s --n_head 4", generate_shape);
  trainer_open(&t, &o, &corpus, MPI_COMM_SELF, device_of(cpu_tables[0].ops), 2);
  enum { COUNT = 5, MORE = 4 };
  int32_t ids[COUNT + MORE] = {1, 2, 3, 4, 5};
  trainer_carve(&t, 1, (int)t.model.P, PASS_SAMPLE);
  const auto bytes = [](const Tensor &x) { return (size_t)numel(x) * dtype_bytes(x.dtype); };
  for (int l = 0; l < t.model.L; l++) memset(t.acts.block[l].cache.data, 0x5a, bytes(t.acts.block[l].cache));
  EXPECT(trainer_sample(&t, ids, COUNT, MORE, NULL, NULL).made == MORE, "another number of tokens");
  for (int l = 0; l < t.model.L; l++) {
    const Tensor cache = t.acts.block[l].cache;
    const size_t text = bytes(cache) / (size_t)cache.shape[0];
    for (size_t b = 0; b < (size_t)cache.shape[0]; b++) {
      const uint8_t *at = (uint8_t *)cache.data + b * text;
      size_t same = 0;
      while (same < text && at[text - 1 - same] == 0x5a) same++;
      EXPECT(same >= text - (COUNT + MORE) * (text / (size_t)cache.shape[1]),
             "block %d, text %zu: %zu of %zu bytes are as they were", l, b, same, text);
    }
  }
  trainer_close(&t);
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}

// ---- draws
// The probabilities of 6 logits by the definitions, without sorting: what is left has been kept by each rule.
static inline void generate_probabilities(double p[6], const float *logits, const Options *o, const uint8_t *seen) {
  double x[6], weight[6], total = 0, most = -1e300, T = o->sampler == OPT_sampler_llama_cpp ? 1 : o->temperature;
  bool kept[6];
  for (int i = 0; i < 6; i++) {
    x[i] = seen[i] ? logits[i] < 0 ? logits[i] * o->repetition_penalty : logits[i] / o->repetition_penalty : logits[i];
    most = fmax(most, x[i]);
  }
  for (int i = 0; i < 6; i++) {
    int above = 0;
    for (int j = 0; j < 6; j++) above += x[j] > x[i] || (x[j] == x[i] && j < i);
    kept[i] = !o->top_k || above < o->top_k;
    total += weight[i] = kept[i] ? exp((x[i] - most) / T) : 0;
  }
  for (int i = 0; i < 6; i++) {
    double above = 0;
    for (int j = 0; j < 6; j++) above += x[j] > x[i] || (x[j] == x[i] && j < i) ? weight[j] : 0;
    kept[i] = kept[i] && (!above || above < o->top_p * total || o->top_p == 1) && weight[i] >= o->min_p;
  }
  total = 0;
  for (int i = 0; i < 6; i++) total += p[i] = kept[i] ? exp((x[i] - most) / o->temperature) : 0;
  for (int i = 0; i < 6; i++) p[i] /= total;
}
TEST(generate_draws_follow_their_distribution,
     "frequencies over a grid of uniforms are the probabilities of the definition, to a cell of the grid: temperature, "
     "top_k, top_p, min_p, penalty, in transformers' order and llama.cpp's, which differ; temperature 0 is the "
     "most probable") {
  const float logits[6] = {0.5f, 2.0f, -1.0f, 2.0f, 1.0f, -0.25f};
  const uint8_t seen[6] = {0, 1, 1, 0, 0, 0};
  static const char *const cases[] = {
      "--temperature 0.7 --top_k 3", "--temperature 1.5 --top_k 0 --top_p 0.8", "--temperature 2 --top_k 0 --min_p 0.4",
      "--temperature 2 --top_k 5 --top_p 0.9 --min_p 0.1 --repetition_penalty 1.3",
      "--top_k 0 --repetition_penalty 0.6", "--temperature 0.3 --top_k 4 --top_p 0.99",
      "--temperature 1 --top_k 0 --top_p 0"};
  double apart = 0;
  for (const char *options : cases) {
    double p[2][6];
    for (const char *sampler : {"transformers", "llama_cpp"}) {
      Options o;
      test_options(&o, 1, "--model tiny --sampler %s %s", sampler, options);
      double *want = p[o.sampler == OPT_sampler_llama_cpp];
      generate_probabilities(want, logits, &o, seen);
      int count[6] = {};
      const int draws = 20000;
      for (int i = 0; i < draws; i++) count[sample_token(logits, 6, &o, seen, (i + 0.5) / draws)]++;
      for (int i = 0; i < 6; i++)
        EXPECT(fabs(count[i] - draws * want[i]) <= 1 + 1e-6, "%s, %s: token %d drawn %d times of %d, must be %.1f",
               options, sampler, i, count[i], draws, draws * want[i]);
      o.temperature = 0;
      EXPECT(sample_token(logits, 6, &o, NULL, 0.9) == 1, "temperature 0 must take the first of the most probable");
    }
    for (int i = 0; i < 6; i++) apart = fmax(apart, fabs(p[0][i] - p[1][i]));
  }
  EXPECT(apart > 0.05, "the two orders never differ by more than %.3g", apart);
  // Many candidates: taken one by one or sorted, the same.
  enum { MANY = 3000 };
  static float many[MANY];
  uint64_t seed = 3;
  for (float &x : many) x = (float)(int)(op_uniform(&seed) * 40);        // with many equal ones
  Options o;
  test_options(&o, 1, "--model tiny --temperature 3 --top_k 1024");
  Candidate *c = (Candidate *)malloc(sizeof *c * MANY), *sorted = (Candidate *)malloc(sizeof *c * MANY);
  candidates_take(c, 1024, many, MANY, NULL, 1);
  for (int i = 0; i < MANY; i++) sorted[i] = Candidate{many[i], i};
  qsort(sorted, MANY, sizeof *c, candidate_order);
  for (int i = 0; i < 1024; i++)
    EXPECT(c[i].id == sorted[i].id, "candidate %d is %d, not %d", i, c[i].id, sorted[i].id);
  free(c);
  free(sorted);
}

// ---- texts
// The bytes of a file in the test's directory; "" if it is not there.
static inline char *generate_file(const char *dir, const char *name) {
  char path[700];
  int64_t bytes;
  snprintf(path, sizeof path, "%s/%s", dir, name);
  char *text = file_get(path, 1 << 20, &bytes);
  return text ? text : strdup("");
}
TEST(generate_prompts_are_the_same,
     "--prompts: 1 to 4 ranks and any number of texts at once write the same samples.jsonl, whose first text is "
     "--prompt's; a text ends at a stop text, which is left out; it says where the positions end, tokens/s and "
     "the time to the first token; a byte order mark and CR LF are no text; what is no file of prompts is "
     "rejected") {
  char options[2048], *first = NULL;
  static const char lines[] = "{\"prompt\":\"the fox\"}\n{\"prompt\":\"\\\"a\\nb\\\"\"}\n{\"prompt\":\"\"}\n"
                              "{\"prompt\":\"one two three\"}\n{\"prompt\":\"the\"}\n";
  cli_write(cli_path("p.jsonl"), lines, sizeof lines - 1);
  cli_write(cli_path("bad.jsonl"), "{\"prompt\":\"a\"}\n{\"text\":\"a\"}\n", 28);
  CliRun r;
  CLI_RUN(&r, "%s %s --max_steps 20 --global_batch 4 --sample_tokens 0 --save_every -1 --save_model --out %s",
          cli_ranks(0), cli_small(), cli_path("out"));
  cli_expect_done(&r, "training");
  cli_free(&r);
  snprintf(options, sizeof options, "--init_from %s --sample_only --threads 1 --cache= --temperature 0.9 --top_p 0.95 "
           "--sample_tokens 24", cli_path("out/model.safetensors"));
  static const struct { int ranks, texts; } cases[] = {{0, 5}, {0, 2}, {2, 1}, {3, 2}, {4, 1}};
  for (const auto &c : cases) {
    CLI_RUN(&r, "rm -rf %s; %s %s --prompts %s --test_batch_size %d --out %s", cli_path("many"), cli_ranks(c.ranks),
            options, cli_path("p.jsonl"), c.texts, cli_path("many"));
    cli_expect_done(&r, "--prompts");
    EXPECT(strstr(r.text, " s, the first of a text after ") &&
           strstr(r.text, "tokens/s; beyond 16 tokens, its positions,"), "nothing is said:\n%s", r.text);
    char *text = generate_file(cli_path("many"), "samples.jsonl");
    if (!first) first = strdup(text);
    EXPECT(!strcmp(first, text), "%d ranks, %d texts: '%s' is not '%s'", c.ranks, c.texts, text, first);
    free(text);
    cli_free(&r);
  }
  cJSON *line = cJSON_Parse(first);
  const char *made = cJSON_GetStringValue(cJSON_GetObjectItem(line, "text"));
  REQUIRE(made && strlen(made) > 12 && strstr(first, "\"tokens\":24,\"end\":\"length\"}\n"),
          "samples.jsonl starts '%.300s'", first);
  cli_write(cli_path("p.txt"), "\xef\xbb\xbfthe fox\r\n", 12);
  CLI_RUN(&r, "rm -rf %s; %s %s --prompts %s --out %s", cli_path("many"), cli_program(), options, cli_path("p.txt"),
          cli_path("many"));
  cli_free(&r);
  char *windows = generate_file(cli_path("many"), "samples.jsonl");
  EXPECT(!strncmp(windows, first, strlen(windows)), "a line that ends as on Windows gives '%s'", windows);
  free(windows);
  CLI_RUN(&r, "%s %s --prompt 'the fox' --out %s", cli_ranks(2), options, cli_path("one"));
  char *one = generate_file(cli_path("one"), "sample.txt");
  EXPECT(!strncmp(one, "the fox", 7) && !strcmp(one + 7, made), "--prompt made '%s', --prompts '%s'", one, made);
  const char *rate = strstr(r.text, "\n24 tokens, the first after ");
  EXPECT(rate && strstr(rate, " s, then ") && strstr(rate, " tokens/s\n"), "no rate is said:\n%s", r.text);
  cli_free(&r);
  // Stops at the text's own 9th to 11th byte, where they first are; the other stop text never comes.
  CLI_RUN(&r, "%s %s --prompt 'the fox' --stop '~no~|%.3s' --out %s", cli_ranks(0), options, made + 8, cli_path("one"));
  free(one);
  one = generate_file(cli_path("one"), "sample.txt");
  char stop[4] = {made[8], made[9], made[10]};
  const size_t until = (size_t)(strstr(made, stop) - made);
  EXPECT(strlen(one) == 7 + until && !memcmp(one + 7, made, until), "'%s' stopped at '%s' is '%s'", made, stop, one);
  cli_free(&r);
  char bad[3000], says[900];
  snprintf(bad, sizeof bad, "%s --prompts %s", options, cli_path("bad.jsonl"));
  snprintf(says, sizeof says, "--prompts: line 2 of %s is not {\"prompt\": TEXT}", cli_path("bad.jsonl"));
  const CliRejection rejected = {2, bad, 2, says};
  cli_expect_rejections(&rejected, 1);
  cJSON_Delete(line);
  free(one);
  free(first);
}

TEST(generate_draws_tokens_that_have_a_text,
     "a model whose embedding has more rows than its tokenizer has tokens draws only tokens that the tokenizer has") {
  uint16_t ids[400];
  for (int i = 0; i < 400; i++) ids[i] = (uint16_t)(i % 300);
  cli_write(cli_path("t_train.bin"), ids, sizeof ids);
  cli_write(cli_path("t_val.bin"), ids, sizeof ids);
  CliRun r;
  CLI_RUN(&r, "%s --data %s --vocab_size 9000 --tokenizer dev/fixtures/tokenizer_smollm2.json --n_layer 1 --n_embd 8 "
          "--n_head 1 --seq_len 8 --batch_size 1 --max_steps 1 --sample_tokens 20 --temperature 5 --top_k 0 "
          "--save_every -1 --out %s", cli_ranks(2), cli_path("t_train.bin"), cli_path("out"));
  cli_expect_done(&r, "a tokenizer of fewer tokens");
  cli_free(&r);
}
