// test_preference.h: --loss dpo and its kin. Losses, rewards and gradients beside PyTorch's
// (dev/make_preference_fixture.py makes dev/fixtures/preference.safetensors); records of preferences, and how they are
// packed; bits over ranks, after a kill; what is rejected.

// The fixture's batch in t->host, with the reference's sums where answers begin.
static inline void preference_batch(Trainer *t, const Tensor batch[3], const float *reference) {
  const int64_t R = numel(batch[0]);
  memcpy(t->host.inputs, batch[0].data, (size_t)R * 4);
  memcpy(t->host.targets, batch[1].data, (size_t)R * 4);
  memcpy(t->host.starts, batch[2].data, (size_t)R * 4);
  memset(t->host.weights, 0, (size_t)R * 4);
  const int32_t *starts = t->host.starts, T = (int32_t)t->model.T;
  for (int i = 0; i < R; i++) {
    bool trained = false;                        // else padding
    for (int k = i; k < R && k / T == i / T && starts[k] == starts[i]; k++)
      trained = trained || t->host.targets[k] >= 0;
    if (starts[i] == i % T && trained) t->host.weights[i] = *reference++;
  }
}
// Sums of the answers of t->host by a pass without adapters, beside the fixture's.
static inline void preference_reference(Trainer *t, const Tensor batch[3], const float *want, float *sums) {
  const int64_t B = batch[0].shape[0], T = batch[0].shape[1];
  float none[16] = {};
  int n = 0;
  trainer_carve(t, (int)B, (int)T, PASS_EVAL);
  preference_batch(t, batch, none);
  fsdp_step_begin(t->fsdp, false);
  t->bare = true;
  trainer_enqueue_eval(t, (int)B, (int)T);
  t->bare = false;
  fsdp_sync(t->fsdp);
  fsdp_step_end(t->fsdp);
  for (int64_t b = 0; b < B; b++)
    for (int64_t at = 0; at < T;) {
      const PreferenceSide s = preference_side(at, T, t->host.row_losses + b * T, t->host.targets + b * T,
                                               t->host.starts + b * T, t->host.weights + b * T);
      at = s.to;
      if (!s.tokens) continue;
      EXPECT(fabs((double)s.logp / (double)want[n] - 1) < 1e-5, "%s: answer %d: %.9g by the reference, PyTorch's %.9g",
             t->ctx.ops->name, n, (double)s.logp, (double)want[n]);
      sums[n++] = s.logp;
    }
}

TEST_MPI(preference_equals_pytorch, 1,
         "dpo with label smoothing, ipo, hinge, simpo and orpo of pairs that are packed side by side, beside PyTorch "
         "with "
         "one "
         "answer a sequence: the reference's sums, loss and rewards within 1e-5, every gradient within 1e-5 of its "
         "largest; each instruction set, emulated CUDA") {
  static const char *const losses[] = {"dpo --dpo_beta 0.3 --dpo_smoothing 0.1", "ipo --dpo_beta 0.2",
                                       "hinge --dpo_beta 0.3", "simpo --dpo_beta 2 --simpo_gamma 1", "orpo --dpo_beta "
                                              "0.7"};
  SafetensorsFile expected;
  if (!safetensors_open(&expected, "dev/fixtures/preference.safetensors")) die_missing("%s", expected.error);
  Tensor batch[3], reference, loss, rewards;
  REQUIRE(safetensors_find(&expected, "inputs", I32, &batch[0]) &&
          safetensors_find(&expected, "targets", I32, &batch[1]) &&
          safetensors_find(&expected, "starts", I32, &batch[2]) &&
          safetensors_find(&expected, "reference", F32, &reference), "%s", expected.error);
  const double R = (double)numel(batch[0]), pairs = (double)numel(reference) / 2;
  for (const char *words : losses) for (int i = 0; i <= cpu_best_table() + 1; i++) {
    static FamilyRun x;
    char extra[512], name[16], key[64], prefix[64];
    float sums[16] = {};
    snprintf(extra, sizeof extra, "--lora_from dev/fixtures/lora_llama --dropout 0 --clip 0 --loss %s", words);
    snprintf(name, sizeof name, "%.*s", (int)strcspn(words, " "), words);
    family_open(&x, "dev/fixtures/family_llama", i > cpu_best_table() ? &ops_cuda_emulated : cpu_tables[i].ops, extra,
                (int)batch[0].shape[1]);
    Trainer *t = &x.trainer;
    preference_reference(t, batch, (const float *)reference.data, sums);
    if (!preference_compares(t->model.preference.loss)) memset(sums, 0, sizeof sums);
    trainer_carve(t, 2, (int)t->model.T, PASS_TRAIN);
    preference_batch(t, batch, sums);
    EXPECT(trainer_pairs(t, 2) == (int64_t)pairs, "%lld pairs", (long long)trainer_pairs(t, 2));
    *t->host.input = StepInput{};
    trainer_step_begin(t);
    trainer_load_batch(t, 0, 2, (int)t->model.T);
    gpt_forward_backward(t, Microbatch{0, PASS_TRAIN}, 0);
    fsdp_reduce_wait(t->fsdp);
    fsdp_returns_wait(t->fsdp);
    double got[PREFERENCE_SUMS];
    t->ctx.ops->copy(&t->ctx, got, t->buffers.exchange + 1, sizeof got);
    t->ctx.ops->sync(&t->ctx);
    snprintf(key, sizeof key, "%s.loss", name);
    REQUIRE(safetensors_find(&expected, key, F32, &loss), "%s", expected.error);
    snprintf(key, sizeof key, "%s.rewards", name);
    REQUIRE(safetensors_find(&expected, key, F32, &rewards), "%s", expected.error);
    for (int k = 0; k < PREFERENCE_SUMS; k++) {
      const double want = k ? ((const float *)rewards.data)[k - 1] : *(const float *)loss.data;
      EXPECT(fabs(got[k] * R / pairs - want) <= 1e-5 * fmax(1, fabs(want)), "%s on %s: number %d is %.9g, PyTorch's "
             "%.9g",
             name, t->ctx.ops->name, k, got[k] * R / pairs, want);
    }
    snprintf(prefix, sizeof prefix, "%s.grad.", name);
    for (int p = 0; p < t->fsdp->lay.params; p++) {
      const Param *q = &t->fsdp->lay.param[p];
      if (!q->adapter) continue;
      float *grad = (float *)malloc(sizeof(float) * (size_t)param_numel_padded(q));
      const float *at = grad;
      fsdp_read_param(t->fsdp, STATE_GRAD, p, grad);
      for (int64_t k = 0; k < param_numel_padded(q); k++) grad[k] *= (float)(R / pairs);
      for (int part = 0; part < q->matrices; part++) {
        char tensor[160], full[256];
        lora_tensor_name(tensor, &t->model.shape, t->fsdp->lay.param, p, part);
        snprintf(full, sizeof full, "%s%s", prefix, tensor);
        family_compare_tensor(&x, &expected, full, &at, param_cols(q),
                              lora_half_rows(&t->model.shape, t->fsdp->lay.param, p, part), 1e-5, name);
      }
      free(grad);
    }
    family_close(&x);
  }
  safetensors_close(&expected);
}

// A file of preferences: 24 short questions with answers.
static inline const char *preference_file() {
  char *text = NULL;
  size_t bytes;
  const char *path = cli_path("pairs.jsonl");
  FILE *f = open_memstream(&text, &bytes);
  for (int i = 0; i < 24; i++)
    fprintf(f, "{\"prompt\": [{\"role\": \"user\", \"content\": \"%d and %d?\"}], \"chosen\": [{\"role\": "
               "\"assistant\", "
            "\"content\": \"That is %d.\"}], \"rejected\": [{\"role\": \"assistant\", \"content\": \"%s\"}]}\n", i,
            i % 7,
            i + i % 7, i % 3 ? "I do not know that." : "No.");
  fclose(f);
  cli_write(path, text, bytes);
  free(text);
  return path;
}
static inline void preference_expect_first(const char *out, const char *what) {
  CliMetrics m;
  cli_metrics(&m, out);
  const cJSON *step = NULL;
  for (int i = 0; i < m.lines && !step; i++) if (cli_is_kind(m.line[i], "step")) step = m.line[i];
  REQUIRE(step, "%s: no step", what);
  const char *const zero[] = {"rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies"};
  EXPECT((float)cJSON_GetNumberValue(cJSON_GetObjectItem(step, "loss")) == (float)M_LN2, "%s: the first loss is %.17g, "
         "not ln 2", what, cJSON_GetNumberValue(cJSON_GetObjectItem(step, "loss")));
  for (const char *key : zero)
    EXPECT(cJSON_GetNumberValue(cJSON_GetObjectItem(step, key)) == 0, "%s: %s is not 0", what, key);
  EXPECT(cJSON_GetNumberValue(cJSON_GetObjectItem(step, "pairs")) > 0, "%s: no pairs", what);
  cli_metrics_free(&m);
}
TEST(cli_preferences,
     "--loss dpo says what it compares with and what the first loss must be, and it is ln 2 to fp32's last digit, with "
     "adapters and of full weights; a full fine-tuning run that was killed on 2 ranks and continues with 3 ends with "
     "the bits of one rank's, and so do 6, and adapters on 3 that read packed pairs; without its reference's sums it "
     "is rejected, and so is what does not go with pairs") {
  CliRun r;
  char shape[2048], path[600], data[600];
  snprintf(data, sizeof data, "%s", preference_file());
  snprintf(shape, sizeof shape, "--n_layer 2 --n_head 2 --n_embd 24 --n_positions 256 --seq_len 256 --threads 1 "
           "--batch_size 1 --global_batch 6 --test_batch_size 3 --sample_tokens 0 --cache= --save_model --report off "
           "--data %s --val_data %s --lr 0.01 --loss dpo", data, data);
  const char *from = "--tokenizer dev/fixtures/chat_qwen2.5";
  CLI_RUN(&r, "%s %s %s --max_steps 6 --export_hf %s --out %s", cli_program(), shape, from, cli_path("model"),
          cli_path("whole"));
  cli_expect_done(&r, "one rank");
  for (const char *says : {"and the answer that was rejected:", "the reference is these weights as they start:",
                           "the first step's loss is 0.6931", " over 24 pairs, accuracy ",
                           "reference: log-probabilities of 96 answers by the first weights"})
    EXPECT(strstr(r.text, says), "'%s' is not in\n%.4000s", says, r.text);
  cli_free(&r);
  preference_expect_first(cli_path("whole"), "full weights");
  cli_start(&r, "%s %s %s --max_steps 6 --save_every 2 --out %s", cli_ranks(2), shape, from, cli_path("killed"));
  snprintf(path, sizeof path, "%s/ckpt/step_00000002/trainer.json", cli_path("killed"));
  const TestClock since = test_clock();
  while (access(path, F_OK) && cli_in_time(&since, CLI_LIMIT_S)) usleep(2000);
  cli_find_process(1, true);
  cli_wait(&r, CLI_LIMIT_S);
  cli_free(&r);
  CLI_RUN(&r, "sh -c 'mkdir %s/aside && mv %s/reference-* %s/aside; %s %s --max_steps 6 --resume --out %s; code=$?; mv "
          "%s/aside/* %s; exit $code'", cli_path("killed"), cli_path("killed"), cli_path("killed"), cli_program(),
          shape,
          cli_path("killed"), cli_path("killed"), cli_path("killed"));
  EXPECT(r.code && strstr(r.text, "was trained beside a reference whose sums are not there"), "without sums:\n%.2000s",
         r.text);
  cli_free(&r);
  CLI_RUN(&r, "%s %s --max_steps 6 --resume --out %s", cli_ranks(3), shape, cli_path("killed"));
  cli_expect_done(&r, "resumed");
  EXPECT(strstr(r.text, "answers of the run before"), "it continues:\n%.3000s", r.text);
  cli_free(&r);
  CLI_RUN(&r, "%s %s %s --max_steps 6 --save_every -1 --out %s", cli_ranks(6), shape, from, cli_path("six"));
  cli_expect_done(&r, "six ranks");
  cli_free(&r);
  char *model[3];
  int64_t n[3];
  const char *const outs[] = {"whole", "killed", "six"};
  for (int i = 0; i < 3; i++) {
    snprintf(path, sizeof path, "%s/model.safetensors", cli_path(outs[i]));
    REQUIRE(model[i] = file_get(path, 1 << 24, &n[i]), "no %s", path);
    EXPECT(n[i] == n[0] && !memcmp(model[0], model[i], (size_t)n[0]), "%s: the weights differ", outs[i]);
  }
  for (char *m : model) free(m);
  snprintf(shape, sizeof shape, "--init_from %s --lora 2 --loss dpo --seq_len 256 --threads 1 --batch_size 3 "
           "--global_batch 3 --sample_tokens 0 --cache= --report off --data %s --save_every -1",
           cli_path("model"), data);
  CLI_RUN(&r, "%s %s --max_steps 2 --test_batch_size 2 --out %s", cli_program(), shape, cli_path("lora"));
  cli_expect_done(&r, "adapters");
  for (const char *says : {"the reference is these weights without", "first step's loss is 0.6931", "rate 1e-05",
                           "by the weights without adapters"})
    EXPECT(strstr(r.text, says), "'%s' is not in\n%.4000s", says, r.text);
  cli_free(&r);
  preference_expect_first(cli_path("lora"), "adapters");
  CLI_RUN(&r, "%s %s --max_steps 1 --train_rows 0:2 --save_every 1 --out %s", cli_program(), shape, cli_path("rows"));
  cli_expect_done(&r, "rows beside adapters");
  cli_free(&r);
  CLI_RUN(&r, "sh -c 'rm %s/reference-*; %s %s --max_steps 2 --resume --out %s'", cli_path("rows"), cli_program(),
          shape, cli_path("rows"));
  EXPECT(r.code && strstr(r.text, "was trained beside a reference whose sums are not there"),
         "rows of the reference have changed:\n%.2000s", r.text);
  cli_free(&r);
  CLI_RUN(&r, "gzip -c %s >%s", data, cli_path("pairs.jsonl.gz"));
  cli_expect_done(&r, "gzip");
  cli_free(&r);
  for (int ranks = 1; ranks <= 3; ranks += 2) {
    CLI_RUN(&r, "%s %s --batch_size 1 --max_steps 2 --data %s --export_hf %s --out %s", cli_ranks(ranks), shape,
            ranks == 1 ? data : cli_path("pairs.jsonl.gz"), cli_path(ranks == 1 ? "adapter1" : "adapter3"),
            cli_path("lora"));
    cli_expect_done(&r, "adapters");
    cli_free(&r);
  }
  CLI_RUN(&r, "cmp %s/adapter_model.safetensors %s/adapter_model.safetensors", cli_path("adapter1"),
          cli_path("adapter3"));
  EXPECT(!r.code, "adapters of one rank and of 3, which read packed pairs: %s", r.text);
  cli_free(&r);
  static const struct { const char *options, *says; } bad[] = {
      {"--pack stream", "--loss dpo packs both answers of a pair whole"}, {"--too_long cut", "leave --too_long cut "
             "out"},
      {"--train_on all", "leave --train_on all out"}, {"--simpo_gamma 1", "--simpo_gamma belongs to --loss simpo"},
      {"--param_dtype bf16 --logits_dtype bf16", "--loss dpo adds log-probabilities of fp32 logits"},
      {"--data generated", "--loss dpo needs preferences, records with chosen"}};
  for (const auto &x : bad) {
    CLI_RUN(&r, "%s %s --out %s %s", cli_program(), shape, cli_path("bad"), x.options);
    EXPECT(r.code && cli_count(r.text, x.says) == 1, "%s: exit code %d:\n%.2000s", x.options, r.code, r.text);
    cli_free(&r);
  }
}

TEST(cli_reference,
     "dpo on an adapter of --lora_from compares with that adapter: the first loss is ln 2 to fp32's last digit, on 1 "
     "and 3 ranks with the same bits, also after a stop; without its sums such a run is rejected; --reference base "
     "compares with the weights without it, and can do so again; without a reference or a base it is rejected") {
  CliRun r;
  char shape[2048], data[600], sft[600];
  snprintf(data, sizeof data, "%s", preference_file());
  snprintf(sft, sizeof sft, "%s", cli_path("sft.jsonl"));
  CLI_RUN(&r, "sed 's/\"chosen\"/\"completion\"/; s/, \"rejected.*/}/' %s >%s", data, sft);
  cli_free(&r);
  snprintf(shape, sizeof shape, "--seq_len 256 --threads 1 --batch_size 1 --global_batch 3 --sample_tokens 0 --cache= "
           "--report off --test_batch_size 3 --data %s --val_data %s", data, data);
  CLI_RUN(&r, "%s --n_layer 2 --n_head 2 --n_embd 24 --n_positions 256 %s --tokenizer dev/fixtures/chat_qwen2.5 "
          "--loss dpo --max_steps 1 --export_hf %s --out %s && %s %s --init_from %s --data %s --val_data %s --lora 2 "
          "--lr 0.02 --max_steps 12 --eval_every -1 --export_hf %s --out %s", cli_program(), shape, cli_path("model"),
          cli_path("made"), cli_program(), shape, cli_path("model"), sft, sft, cli_path("adapter"), cli_path("sft"));
  cli_expect_done(&r, "an adapter");
  cli_free(&r);
  text_add(shape, sizeof shape, " --loss dpo --lr 0.01 --init_from %s", cli_path("model"));
  for (int ranks : {1, 3}) {
    char out[600];
    snprintf(out, sizeof out, "%s", cli_path(ranks == 1 ? "one" : "three"));
    CLI_RUN(&r, "%s %s --lora_from %s --max_steps 4 --save_every 2 --export_hf %s.hf --out %s", cli_ranks(ranks), shape,
            cli_path("adapter"), out, out);
    cli_expect_done(&r, "from the adapter");
    for (const char *says : {"the reference is these weights with the", "step's loss is 0.6931",
                             "answers by the first weights"})
      EXPECT(strstr(r.text, says), "'%s' is not in\n%.4000s", says, r.text);
    cli_free(&r);
    preference_expect_first(out, "from the adapter");
  }
  const char *const step_2 = cli_expand("--resume @/one/ckpt/step_00000002 --max_steps 4");
  CLI_RUN(&r, "%s %s %s --export_hf %s --out %s", cli_ranks(3), shape, step_2, cli_path("again.hf"), cli_path("again"));
  cli_expect_done(&r, "resumed");
  EXPECT(strstr(r.text, "answers of the run before"), "it continues:\n%.3000s", r.text);
  cli_free(&r);
  for (const char *other : {"three.hf", "again.hf"}) {
    char path[600];
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", cli_path(other));
    cli_expect_same_file(other, cli_path("one.hf/adapter_model.safetensors"), path);
  }
  CLI_RUN(&r, "rm %s/reference-*; %s %s %s --out %s", cli_path("one"), cli_program(), shape, step_2, cli_path("none"));
  EXPECT(r.code && strstr(r.text, "was trained beside a reference whose sums are not there"), "without sums:\n%.2000s",
         r.text);
  cli_free(&r);
  // By the base, whose sums may be lost.
  CLI_RUN(&r, "%s %s --lora_from %s --reference base --max_steps 2 --save_every 1 --export_hf %s --out %s && rm "
          "%s/reference-*", cli_program(), shape, cli_path("adapter"), cli_path("base.hf"), cli_path("base"),
          cli_path("base"));
  cli_expect_done(&r, "the base");
  EXPECT(strstr(r.text, "the reference is these weights without") &&
         strstr(r.text, "by the weights without adapters") && !strstr(r.text, "first step's loss is"),
         "the base:\n%.4000s", r.text);
  cli_free(&r);
  CliMetrics m;
  cli_metrics(&m, cli_path("base"));
  double first = 0;
  for (int i = m.lines - 1; i >= 0; i--)
    if (cli_is_kind(m.line[i], "step")) first = cJSON_GetNumberValue(cJSON_GetObjectItem(m.line[i], "loss"));
  EXPECT(fabs(first - M_LN2) > 0.01, "the first loss is %.9g", first);
  cli_metrics_free(&m);
  CLI_RUN(&r, "%s %s --resume %s/ckpt/step_00000001 --max_steps 2 --export_hf %s --out %s", cli_program(), shape,
          cli_path("base"), cli_path("base2.hf"), cli_path("base2"));
  cli_expect_done(&r, "the base again");
  cli_free(&r);
  cli_expect_same_file("the base again", cli_path("base.hf/adapter_model.safetensors"),
                       cli_path("base2.hf/adapter_model.safetensors"));
  static const struct { const char *options, *says; } bad[] = {
      {"--reference base", "--reference base is the weights without adapters"},
      {"--loss orpo --reference base --lora 2", "--loss orpo has no reference"},
      {"--loss tokens --reference start", "--reference belongs to --loss dpo and its kin"}};
  for (const auto &x : bad) {
    CLI_RUN(&r, "%s %s --out %s %s", cli_program(), shape, cli_path("bad"), x.options);
    EXPECT(r.code == EXIT_USAGE && cli_count(r.text, x.says) == 1, "%s: exit code %d:\n%.2000s", x.options, r.code,
           r.text);
    cli_free(&r);
  }
}
