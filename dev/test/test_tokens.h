// test_tokens.h: tokens that are added to a model (--add_tokens), their rows beside adapters, rsLoRA and exports in
// bf16, beside transformers and PEFT (dev/make_tokens_fixture.py makes dev/fixtures/tokens_expected.safetensors and
// lora_root).

// The master of a matrix, whole: rows x columns.
static float *tokens_values(Trainer *t, const char *name, int64_t *cols) {
  Fsdp *f = t->fsdp;
  for (int p = 0; p < f->lay.params; p++) {
    const Param *q = &f->lay.param[p];
    if (strcmp(q->name, name)) continue;
    float *got = (float *)malloc(sizeof(float) * (size_t)param_numel_padded(q));
    fsdp_read_param(f, STATE_MASTER, p, got);
    *cols = param_cols(q);
    return got;
  }
  return NULL;
}
TEST_MPI(tokens_rows_equal_peft, 1,
         "a model enlarged by --add_tokens has the rows of one that transformers enlarged, without its random part; "
         "trained beside PEFT's adapters, losses of five steps within 1e-5 and the rows within 1e-3 of PEFT's "
         "trainable_token_indices, tied and not, on a CPU and emulated CUDA; no other row changes a bit") {
  static const struct { const char *name, *base, *more; int64_t old, rows; } cases[] = {
      {"qwen3", "family_qwen3", "--add_tokens auto", 61, 300}, {"gpt2", "hf_untied", "--add_tokens %s", 300, 303}};
  SafetensorsFile expected;
  if (!safetensors_open(&expected, "dev/fixtures/tokens_expected.safetensors")) die_missing("%s", expected.error);
  char tokens[600];
  snprintf(tokens, sizeof tokens, "%s", cli_path("tokens.txt"));
  cli_write(tokens, tokens_lines, strlen(tokens_lines));
  for (const auto &k : cases) for (const Ops *ops : {cpu_tables[0].ops, (const Ops *)&ops_cuda_emulated}) {
    static FamilyRun x;
    char adapter[256], more[1024], key[64];
    Tensor inputs, targets, losses;
    const struct { const char *kind; Dtype dtype; Tensor *to; } tensors[] = {
        {"inputs", I32, &inputs}, {"targets", I32, &targets}, {"losses", F32, &losses}};
    for (const auto &t : tensors) {
      snprintf(key, sizeof key, "%s.%s", k.name, t.kind);
      REQUIRE(safetensors_find(&expected, key, t.dtype, t.to), "%s", expected.error);
    }
    snprintf(adapter, sizeof adapter, "dev/fixtures/lora_%s", k.name);
    snprintf(more, sizeof more, k.more, tokens);
    strcat(more, " --tokenizer dev/fixtures/hf_untied");
    lora_open(&x, k.base, adapter, ops, more);
    Trainer *t = &x.trainer;
    REQUIRE(t->model.V == k.rows, "%lld rows, must be %lld", (long long)t->model.V, (long long)k.rows);
    const char *const names[] = {"wte", "lm_head"};
    float *before[2] = {};
    int64_t cols = 0;
    for (int i = 0; i < (t->model.tied ? 1 : 2); i++) {
      char name[32];
      snprintf(name, sizeof name, "%s.weight", names[i]);
      before[i] = tokens_values(t, name, &cols);
      const float *at = before[i] + k.old * cols;
      snprintf(key, sizeof key, "%s.%s", k.name, names[i]);
      family_compare_tensor(&x, &expected, key, &at, cols, 0, 1e-6, k.name);
    }
    const bool cuda = ops->nccl;
    for (int step = 0; step < (cuda ? 2 : 5); step++) {
      const double got = lora_step(t, step, inputs, targets, true), want = ((const float *)losses.data)[step];
      EXPECT(fabs(got / want - 1) <= 1e-5, "%s on %s, step %d: loss %.9g, PEFT's %.9g", k.name, ops->name, step, got,
             want);
    }
    for (int i = 0; i < 2 && before[i]; i++) {
      char name[32];
      snprintf(name, sizeof name, "%s.weight", names[i]);
      float *after = tokens_values(t, name, &cols);
      const float *at = after + k.old * cols;
      snprintf(key, sizeof key, "%s.after.%s", k.name, names[i]);
      EXPECT(!memcmp(before[i], after, 4 * (size_t)(k.old * cols)), "%s: a row that does not train has changed", key);
      // A token that no target is has a gradient near AdamW's eps, of which it moves by a ratio of small numbers.
      if (!cuda) family_compare_tensor(&x, &expected, key, &at, cols, 0, 1e-3, k.name);
      free(after);
      free(before[i]);
    }
    family_close(&x);
  }
  // rsLoRA: alpha by the square root of the rank.
  static FamilyRun x;
  Tensor inputs, targets, loss;
  REQUIRE(safetensors_find(&expected, "qwen3.inputs", I32, &inputs) &&
          safetensors_find(&expected, "qwen3.targets", I32, &targets) &&
          safetensors_find(&expected, "root.loss", F32, &loss), "%s", expected.error);
  int32_t two[52];
  for (int i = 0; i < 26; i++)
    two[i] = ((int32_t *)inputs.data)[i] % 61, two[26 + i] = ((int32_t *)targets.data)[i] % 61;
  lora_open(&x, "family_qwen3", "dev/fixtures/lora_root", cpu_tables[0].ops, "");
  const double got = lora_step(&x.trainer, 0, tensor_of(two, I32, 26), tensor_of(two + 26, I32, 26), false);
  const double want = *(const float *)loss.data;
  EXPECT(fabs(got / want - 1) <= 1e-5, "rsLoRA: loss %.9g, PEFT's %.9g", got, want);
  char dir[1024], names[1024];
  Error error = {};
  Lora read = {};
  ix_directory(dir, "root");
  REQUIRE(export_hf(&x.trainer.run, dir) && lora_config_read(&read, names, sizeof names, dir, &error),
          "%s", error.text);
  EXPECT(read.by_root && read.rank == 3, "the exported adapter is not scaled by the root");
  family_close(&x);
  safetensors_close(&expected);
}

TEST_MPI(tokens_exports_in_bf16, 1,
         "--export_dtype bf16 writes each tensor of --export_hf rounded, transposed or not, and says so in "
         "config.json") {
  for (const char *name : {"hf_untied", "family_qwen2"}) {
    static FamilyRun x;
    char path[256], dirs[2][1024], file[1100];
    SafetensorsFile f[2];
    snprintf(path, sizeof path, "dev/fixtures/%s", name);
    family_open(&x, path, cpu_tables[0].ops, "");
    for (int i = 0; i < 2; i++) {
      snprintf(file, sizeof file, "%s-%d", name, i);
      ix_directory(dirs[i], file);
      x.trainer.opt.export_dtype = i ? OPT_export_dtype_bf16 : OPT_export_dtype_fp32;
      REQUIRE(export_hf(&x.trainer.run, dirs[i]), "%s is not exported", name);
      snprintf(file, sizeof file, "%s/model.safetensors", dirs[i]);
      if (!safetensors_open(&f[i], file)) die_missing("%s", f[i].error);
    }
    EXPECT(f[0].count == f[1].count, "%s: %d tensors, %d in fp32", name, f[1].count, f[0].count);
    for (int i = 0; i < f[0].count; i++) {
      const SafetensorsTensor *a = &f[0].tensor[i], *b = safetensors_entry(&f[1], a->name);
      REQUIRE(b && b->dtype == BF16 && b->bytes * 2 == a->bytes && b->ndim == a->ndim, "%s: %s", name, a->name);
      int wrong = 0;
      for (int64_t k = 0; k < b->bytes / 2; k++) {
        bf16 want, got;
        float value;
        memcpy(&value, f[0].map + a->at + 4 * k, 4);
        memcpy(&got, f[1].map + b->at + 2 * k, 2);
        round_to(&want, value);
        wrong += want.bits != got.bits;
      }
      EXPECT(!wrong, "%s: %s: %d values are not the rounded ones", name, a->name, wrong);
    }
    snprintf(file, sizeof file, "%s/config.json", dirs[1]);
    int64_t bytes;
    char *config = file_get(file, 1 << 20, &bytes);
    EXPECT(config && strstr(config, "\"bfloat16\""), "%s", config);
    free(config);
    for (SafetensorsFile &g : f) safetensors_close(&g);
    family_close(&x);
  }
}

TEST(cli_tokens_run,
     "a run with --add_tokens and adapters on three ranks, that continues with one, ends with the checkpoint of one "
     "that was never stopped on two; its exports, PEFT's and whole, have the tokens in tokenizer.json; the whole one "
     "is read again, where rows that are there are used first; a tokenizer with more tokens than rows is offered "
     "--add_tokens") {
  CliRun r;
  char text[2048], path[700];
  cli_write(cli_path("tokens.txt"), tokens_lines, strlen(tokens_lines));
  FILE *f = fopen(cli_path("text.txt"), "w");
  for (int i = 0; i < 60; i++) fprintf(f, "the fox <tool> %d </tool> x sees a crow\n", i * 7 % 11);
  fclose(f);
  snprintf(text, sizeof text, "--data %s/text.txt --seq_len 12 --batch_size 1 --global_batch 6 --lora 2 --lora_scale "
           "root --lora_alpha 3 --clip 1 --dropout 0 --eval_every -1 --sample_tokens 0 --report off --cache= --keep 0 "
           "--max_steps 4", test_tmp());
  const char *from = "--init_from dev/fixtures/hf_untied --add_tokens";
  CLI_RUN(&r, "%s %s %s %s --save_every 2 --out %s --export_hf %s", cli_ranks(3), from, cli_path("tokens.txt"), text,
          cli_path("three"), cli_path("peft"));
  cli_expect_done(&r, "three ranks");
  EXPECT(strstr(r.text, "3 tokens, ids 300 to 302: 0 have rows of dev/fixtures/hf_untied, which stay as they are; 3 "
                "new rows start as the mean of the 300 others"), "%.2000s", r.text);
  cli_free(&r);
  CLI_RUN(&r, "%s %s %s %s --save_every 4 --out %s", cli_ranks(2), from, cli_path("tokens.txt"), text,
          cli_path("two"));
  cli_expect_done(&r, "two ranks");
  cli_free(&r);
  CLI_RUN(&r, "%s --resume %s/ckpt/step_00000002 %s --out %s --merge --export_hf %s", cli_program(), cli_path("three"),
          text, cli_path("again"), cli_path("whole"));
  cli_expect_done(&r, "resumed on one rank");
  cli_free(&r);
  for (const char *file : checkpoint_files) {
    char want[700], got[700];
    snprintf(want, sizeof want, "%s/ckpt/latest/%s", cli_path("three"), file);
    snprintf(got, sizeof got, "%s/ckpt/latest/%s", cli_path("two"), file);
    cli_expect_same_file("on two ranks", want, got);
    snprintf(got, sizeof got, "%s/ckpt/latest/%s", cli_path("again"), file);
    cli_expect_same_file("resumed on one rank", want, got);
  }
  for (const char *dir : {"peft", "whole"}) {
    int64_t bytes;
    snprintf(path, sizeof path, "%s/tokenizer.json", cli_path(dir));
    char *json = file_get(path, 1 << 22, &bytes);
    EXPECT(json && strstr(json, "\"</tool> x\""), "%s has no such token", path);
    free(json);
  }
  snprintf(path, sizeof path, "%s/adapter_model.safetensors", cli_path("peft"));
  SafetensorsFile adapter;
  if (!safetensors_open(&adapter, path)) die_missing("%s", adapter.error);
  const SafetensorsTensor *rows =
      safetensors_entry(&adapter, "base_model.model.lm_head.token_adapter.trainable_tokens_delta");
  EXPECT(rows && rows->ndim == 2 && rows->shape[0] == 3 && rows->shape[1] == 16, "no rows of the head");
  safetensors_close(&adapter);
  cli_write(cli_path("two.txt"), "<a>\n<b>\n", 8);
  CLI_RUN(&r, "%s --init_from %s --tokenizer dev/fixtures/hf_untied --add_tokens %s --sample_only --sample_tokens 2 "
          "--prompt '<a>' --threads 1 --out %s", cli_program(), cli_path("whole"), cli_path("two.txt"),
          cli_path("padded"));
  cli_expect_done(&r, "rows that are there");
  EXPECT(strstr(r.text, "2 tokens, ids 300 to 301: 2 have rows of ") && strstr(r.text, "; 0 new rows start"), "%s",
         r.text);
  cli_free(&r);
  const struct { const char *options; int code; const char *says; } rejections[] = {
      {"--init_from dev/fixtures/family_qwen3 --tokenizer dev/fixtures/hf_untied --data @/text.txt", 2,
       "the tokenizer has 300 tokens, the model of dev/fixtures/family_qwen3 has 61: name the model's own with "
       "--tokenizer; --add_tokens auto gives each its row"},
      {"--add_tokens @/two.txt --data @/text.txt", 2, "--add_tokens enlarges weights that are there"},
      {"--init_from @/three/ckpt/latest --add_tokens @/two.txt", 3, "this checkpoint has adapters alone"},
      {"--init_from dev/fixtures/hf_untied --lora 2 --train_rows 5:300 --data @/text.txt", 2,
       "--train_rows '5:300' is not FIRST:LAST, rows below 300"},
      {"--init_from dev/fixtures/hf_untied --add_tokens @/two.txt --lora 2 --export_gguf f16 --data @/text.txt", 2,
       "an adapter of llama.cpp has no place for rows of the embedding"},
      {"--init_from dev/fixtures/hf_untied --data @/text.txt --export_dtype bf16", 2, "--export_dtype is of full "
       "weights"}};
  for (const auto &k : rejections) {
    CLI_RUN(&r, "%s --seq_len 12 %s --out %s", cli_program(), cli_expand(k.options), cli_path("refused"));
    EXPECT(r.code == k.code && strstr(r.text, k.says), "%s: exit code %d, must be %d; it said:\n%s", k.options, r.code,
           k.code, r.text);
    cli_free(&r);
  }
}
