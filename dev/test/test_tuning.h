// test_tuning.h: weights that were published are tuned and asked as their users expect. Needs cli_helpers.h,
// test_checkpoint.h, test_chat.h.
#pragma once

// Options of these words for a run that starts from a checkpoint of `saved`, resolved.
static void tuning_options(Options *o, const Options *saved, bool resume, const char *words) {
  Error error = {};
  static Start start;
  options_typed(o, words, &error);
  option_start(&start, saved, resume);
  REQUIRE(start_options(&start, o, &error) && options_resolve(o, 2, 2, &error), "%s: %s", words, error.text);
  start_free(&start);
}
TEST(tuning_has_defaults_of_its_own,
     "--init_from: learning rate 2e-5, of adapters 2e-4, no weight decay, a short warm-up, a microbatch that fits, "
     "sequences as long as the longest conversation and 256 tokens at least; what was given stays, a resumed run keeps "
     "its own, and a training from nothing has the preset's") {
  static Options saved, o;
  static Corpus corpus;
  Error error = {};
  options_typed(&saved, "--model small --vocab_size 500 --lr 0.003 --batch_size 2 --seq_len 192", &error);
  REQUIRE(options_resolve(&saved, 2, 2, &error), "%s", error.text);
  tuning_options(&o, &saved, false, "");
  EXPECT(o.tuning && o.lr == 2e-5 && o.weight_decay == 0 && o.warmup == 0.03 && o.batch_auto && o.global_batch == 16,
         "lr %g, decay %g, warm-up %g, %lld sequences per step", o.lr, o.weight_decay, o.warmup,
         (long long)o.global_batch);
  tuning_options(&o, &saved, false, "--lora 4 --global_batch 6");
  EXPECT(o.lr == 2e-4 && o.weight_decay == 0 && o.batch_auto && o.global_batch == 6, "adapters: lr %g", o.lr);
  tuning_options(&o, &saved, false, "--lr 0.5 --weight_decay 0.25 --warmup 7 --batch_size 3 --seq_len 200");
  EXPECT(o.lr == 0.5 && o.weight_decay == 0.25 && o.warmup == 7 && o.batch_size == 3 && !o.batch_auto &&
             o.global_batch == 6, "given: lr %g, batch %lld", o.lr, (long long)o.batch_size);
  tuning_options(&o, &saved, true, "");
  EXPECT(!o.tuning && o.lr == 0.003 && o.weight_decay == 0.1 && o.batch_size == 2 && o.seq_len == 192,
         "resumed: lr %g, decay %g", o.lr, o.weight_decay);
  options_typed(&o, "", &error);
  REQUIRE(options_resolve(&o, 2, 2, &error), "%s", error.text);
  EXPECT(!o.tuning && o.lr == presets[0].lr && o.weight_decay == 0.1 && o.batch_size == 8, "from nothing: lr %g", o.lr);
  static const struct { int longest; const char *words; int64_t want; } lengths[] = {
      {57, "", 256}, {300, "", 320}, {321, "", 320}, {322, "", 384}, {5000, "", 1024}, {57, "--pack stream", 1024},
      {57, "--seq_len 900", 900}};
  options_typed(&saved, "--model gpt2 --vocab_size 500", &error);
  REQUIRE(options_resolve(&saved, 2, 2, &error), "%s", error.text);
  for (const auto &x : lengths) {
    const int train[] = {9, 30, 8}, valid[] = {5, x.longest};
    corpus = Corpus{};
    corpus.split[SPLIT_TRAIN] = chat_split(train, 3, 500), corpus.split[SPLIT_VALID] = chat_split(valid, 2, 500);
    tuning_options(&o, &saved, false, x.words);
    tuning_fit_length(&o, &corpus);
    EXPECT(o.seq_len == x.want && (o.longest == x.longest) == (x.want < 900), "%d tokens, %s: %lld", x.longest,
           x.words, (long long)o.seq_len);
    for (Split &s : corpus.split) lent_split_free(&s);
  }
}

// A directory with an adapter of Qwen 3 whose configuration has `from` as `to`; weights: its file of them, or NULL.
static const char *tuning_adapter(const char *from, const char *to, const char *weights) {
  static const char source[] = "dev/fixtures/lora_qwen3";
  char path[1024], here[PATH_MAX], text[8192];
  const char *dir = cli_path("adapter");
  int64_t bytes;
  if (system("rm -rf \"$TEST_TMP/adapter\"") || mkdir(dir, 0777)) die_missing("no %s", dir);
  snprintf(path, sizeof path, "%s/adapter_config.json", source);
  char *config = file_get(path, 1 << 16, &bytes), *at = config ? strstr(config, from) : NULL;
  if (!at || !realpath(source, here)) die_missing("%s has no %s", path, from);
  snprintf(text, sizeof text, "%.*s%s%s", (int)(at - config), config, to, at + strlen(from));
  snprintf(path, sizeof path, "%s/adapter_config.json", dir);
  cli_write(path, text, strlen(text));
  strcat(here, "/adapter_model.safetensors");
  snprintf(path, sizeof path, "%s/%s", dir, weights ? weights : "");
  if (weights && symlink(here, path)) die_missing("no %s", path);
  free(config);
  return dir;
}
TEST(tuning_takes_the_adapters_that_are_for_this_base,
     "an adapter whose initialisation changed its base is rejected by the field; targets that are a pattern or whole "
     "paths are taken from the tensors' names; MLX's adapters, and PyTorch's own format, are named") {
  static const char init[] = "\"init_lora_weights\": true", peft[] = "adapter_model.safetensors";
  static const char list[] = "\"target_modules\": [", type[] = "\"peft_type\": \"LORA\"";
  static const struct { const char *from, *to, *weights, *says; } cases[] = {
      {init, "\"init_lora_weights\": \"pissa\"", peft, "init_lora_weights is \"pissa\", which changes the base's"},
      {init, "\"init_lora_weights\": \"pissa_niter_4\"", peft, "init_lora_weights is \"pissa_niter_4\""},
      {init, "\"init_lora_weights\": \"olora\"", peft, "init_lora_weights is \"olora\""},
      {init, "\"init_lora_weights\": \"corda\"", peft, "init_lora_weights is \"corda\""},
      {init, "\"init_lora_weights\": \"loftq\"", peft, "init_lora_weights is \"loftq\""},
      {init, "\"init_lora_weights\": \"lora_ga\"", peft, "init_lora_weights is \"lora_ga\""},
      {init, "\"init_lora_weights\": {}", peft, "init_lora_weights is no text"},
      {init, "\"init_lora_weights\": \"gaussian\"", peft, NULL},
      {init, "\"init_lora_weights\": \"eva\"", peft, NULL},
      {init, "\"init_lora_weights\": false", peft, NULL},
      {list, "\"target_modules\": \".*proj\", \"x\": [", peft, NULL},
      {list, "\"target_modules\": [\"model.layers.0.self_attn.q_proj\", ", peft, NULL},
      {list, "\"target_modules\": 3, \"x\": [", peft, "target_modules is neither a list of names nor a pattern"},
      {type, "\"fine_tune_type\": \"lora\"", "adapters.safetensors", "this is an adapter of MLX"},
      {init, init, "adapters.safetensors", "this is an adapter of MLX"},
      {init, init, "adapter_model.bin", "its weights are in adapter_model.bin"}};
  char targets[1024];
  Error error = {};
  Lora plain = {}, lora = {};
  Import *base = import_open("dev/fixtures/family_qwen3", NULL, &error);
  REQUIRE(base && lora_config_read(&plain, targets, sizeof targets, "dev/fixtures/lora_qwen3", &error) &&
              lora_targets(&plain, &base->is.shape, targets, &error), "%s", error.text);
  for (const auto &k : cases) {
    error.text[0] = 0;
    const char *dir = tuning_adapter(k.from, k.to, k.weights);
    const bool ok = lora_config_read(&lora, targets, sizeof targets, dir, &error) &&
                    lora_targets(&lora, &base->is.shape, targets, &error);
    EXPECT(ok == !k.says && (ok || strstr(error.text, k.says)), "%s: '%s', expected '%s'", k.to, error.text, k.says);
    EXPECT(!ok || !memcmp(lora.parts, plain.parts, sizeof lora.parts), "%s: targets %s", k.to, targets);
  }
  import_close(base);
  Options o;
  options_typed(&o, "--lora_rank 4", &error);
  EXPECT(!error.text[0] && o.lora == 4, "--lora_rank: %s", error.text);
}

TEST(tuning_evaluates_what_is_named,
     "--val_data without --data: an evaluation is of that file alone, with the digits of the file as --data; a run "
     "that would train on generated sentences is rejected") {
  static const char model[] = "--init_from dev/fixtures/eval_model --eval_only --seq_len 40 --threads 1 --cache= "
                              "--report off";
  CliRun r;
  cli_text(60);
  char *numbers[2];
  for (int i = 0; i < 2; i++) {
    CLI_RUN(&r, "%s %s %s --val_data %s/valid.txt --out %s", cli_program(), model,
            cli_expand(i ? "--data @/text/valid.txt" : ""), cli_path("text"), cli_path(i ? "b" : "a"));
    cli_expect_done(&r, "an evaluation");
    EXPECT(i || (strstr(r.text, "text/valid.txt (--val_data)") && !strstr(r.text, "WikiText")), "it says:\n%.2000s",
           r.text);
    numbers[i] = cli_last_evals(cli_path(i ? "b" : "a"));
    cli_free(&r);
  }
  EXPECT(*numbers[0] && !strcmp(numbers[0], numbers[1]), "%s\n  as --data\n%s", numbers[0], numbers[1]);
  for (char *n : numbers) free(n);
  CLI_RUN(&r, "cd / && exec env -u WIKITEXT2_DIR %s --max_steps 1 --cache= --threads 1 --val_data %s/valid.txt --out "
          "%s", cli_program(), cli_path("text"), cli_path("c"));
  EXPECT(r.code == 2 && strstr(r.text, "there is nothing to train on here: name it by --data"), "%d:\n%.2000s", r.code,
         r.text);
  cli_free(&r);
}

// A run's steps as its start names them, "STEPS steps of ROWS x"; "" if it does not.
static const char *tuning_steps(const CliRun *r, char to[64]) {
  const char *at = strstr(r->text, "\n  training  ");
  snprintf(to, 64, "%.*s", at ? (int)strcspn(at + 13, "x") : 0, at ? at + 13 : "");
  return to;
}
TEST(tuning_step_is_of_conversations,
     "a step of a tuning on conversations is of about 8 of them, by their mean number a sequence and never more "
     "sequences than there are, the same on any number of ranks; there are 5 epochs at 1e-5, of adapters 3 at 2e-4; "
     "what was given is not replaced; texts keep 8 sequences per rank, one epoch and 2e-5") {
  static Options saved, o;
  static int length[400];
  Error error = {};
  options_typed(&saved, "--model gpt2 --vocab_size 500", &error);
  REQUIRE(options_resolve(&saved, 2, 2, &error), "%s", error.text);
  static const struct { int documents, tokens, sequences; const char *words; } cases[] = {
      {400, 250, 8, ""}, {400, 120, 4, ""}, {400, 60, 2, ""}, {400, 17, 1, ""}, {3, 250, 2, ""}, {1, 250, 1, ""},
      {400, 60, 2, "--epochs 1"}, {400, 60, 2, "--lora 4"}, {400, 60, 2, "--lr 0.5"},
      {400, 60, 2, "--max_steps 5"}, {400, 60, 6, "--global_batch 6"},
      {400, 60, 6, "--batch_size 3"}, {400, 60, 32, "--grad_accum 2"}, {0, 60, 16, ""}};
  for (const auto &x : cases)
    for (int world = 2; world <= 6; world += 2) {
      static Corpus corpus;
      corpus = Corpus{};
      for (int d = 0; d < x.documents; d++) length[d] = x.tokens;
      if (x.documents) corpus.split[SPLIT_TRAIN] = chat_split(length, x.documents, 500);
      tuning_options(&o, &saved, false, x.words);
      tuning_fit_length(&o, &corpus);
      tuning_fit_step(&o, &corpus, world);
      const bool chosen = x.documents && !strstr(x.words, "batch") && !strstr(x.words, "accum");
      const bool none = !x.documents || strstr(x.words, "steps");
      const int epochs = none ? 0 : strstr(x.words, "epochs") ? 1 : o.lora ? 3 : 5;
      const double rate = strstr(x.words, "lr") ? 0.5 : o.lora ? 2e-4 : x.documents ? 1e-5 : 2e-5;
      EXPECT(o.global_batch == x.sequences && o.fill_step == chosen && (o.conversations > 0) == chosen &&
                 o.epochs == epochs && o.lr == rate,
             "%d of %d tokens, %s, %d ranks: %lld sequences per step, %lld epochs", x.documents, x.tokens, x.words,
             world,
             (long long)o.global_batch, (long long)o.epochs);
      lent_split_free(&corpus.split[SPLIT_TRAIN]);
    }
}
TEST(tuning_of_few_conversations_is_the_same_on_any_ranks,
     "a tuning on conversations has the same steps on 1, 2 and 3 ranks; 1 rank and 5, which compute two empty "
     "sequences in a step, have the same losses, norms and weights, and so do 3 that start and 1 that ends; the "
     "startup log shows how many steps there are and that few teach little; the sample answers the first question for "
     "validation, unless a prompt is given; a plan says what it assumes; --fill_step without a global batch, or with "
     "one that is no multiple, is rejected") {
  CliRun r;
  char base[600], tuned[1200], first[64];
  static const char first_question[] = "<|im_start|>user\nAre you an AI?<|im_end|>\n<|im_start|>assistant\n";
  CLI_RUN(&r, "%s --n_layer 1 --n_head 2 --n_embd 16 --n_positions 256 --seq_len 256 --max_steps 1 --eval_every -1 "
          "--sample_tokens 0 --threads 1 --cache= --report off --save_every -1 --data dev/fixtures/identity_91.jsonl "
          "--tokenizer dev/fixtures/chat_smollm2 --export_hf %s --out %s", cli_program(), cli_path("base"),
          cli_path("out"));
  cli_expect_done(&r, "the base");
  cli_free(&r);
  snprintf(base, sizeof base, "%s", cli_path("base"));
  snprintf(tuned, sizeof tuned, "--init_from %s --data dev/fixtures/identity_91.jsonl --threads 1 --cache= --report "
           "off --eval_every -1 --save_model", base);
  static const char eight[] = "--fill_step --global_batch 8 --batch_size 1 --max_steps 6 --sample_tokens 0 --lr 0.01";
  static const struct { int ranks; const char *out, *options, *says, *lacks; } runs[] = {
      {1, "a", "--sample_tokens 4", ", the first question for validation):\n", "which is few"},
      {2, "b", "--sample_tokens 4 --prompt Hi", "<|im_start|>user\nHi<|im_end|>", first_question},
      {3, "c", "--sample_tokens 4 --prompt_as text", " 5 epochs;", first_question},
      {1, "one", "", "6 steps come of it, which is few: below", " 5 epochs;"},
      {5, "five", "", "moved", "do not fit"},
      {3, "both", "--save_every 3", "saves", "do not fit"},
      {1, "both", "--resume", "resum", "replaces"}};
  for (const auto &x : runs) {
    char steps[64];
    const bool chosen = !x.out[1], resumed = !strcmp(x.options, "--resume");
    if (resumed) {                               // from its third step
      char six[600];
      snprintf(six, sizeof six, "rm -r %s/ckpt/step_00000006", cli_path("both"));
      EXPECT(!system(six), "%s", six);
    }
    CLI_RUN(&r, "%s %s %s %s --out %s", cli_ranks(x.ranks), tuned, chosen ? "" : eight, x.options, cli_path(x.out));
    cli_expect_done(&r, x.out);
    EXPECT(strstr(r.text, x.says) && !strstr(r.text, x.lacks), "%s:\n%.4000s", x.out, r.text);
    tuning_steps(&r, steps);
    if (x.out[0] == 'a') strcpy(first, steps);
    if (x.out[0] == 'a') EXPECT(strstr(r.text, first_question), "it asks:\n%.4000s", r.text);
    EXPECT(!chosen || (strlen(steps) > 9 && !strcmp(steps, first)), "%s: '%s', 1 rank '%s'", x.out, steps, first);
    cli_free(&r);
  }
  for (const char *same : {"five", "both"}) {
    char a[600], b[600];
    snprintf(a, sizeof a, "%s/model.safetensors", cli_path("one"));
    snprintf(b, sizeof b, "%s/model.safetensors", cli_path(same));
    cli_expect_same_file(same, a, b);
    CLI_RUN(&r, "cd %s; for o in one %s; do sed -n 's/,\"tokens_per_s.*//p' $o/metrics.jsonl | sort -u >$o/steps\n"
            "done; [ $(wc -l <one/steps) = 6 ] && diff one/steps %s/steps", test_tmp(), same, same);
    cli_expect_done(&r, same);
    cli_free(&r);
  }
  static const struct { const char *options, *says; bool tuned; } others[] = {
      {"--plan", "of conversations it is about 8 in all", true},
      {"--plan --batch_size 2", "not read: the vocabulary is that of --init_from step ", true},
      {"--data generated --fill_step", "--fill_step needs --global_batch, a multiple of --batch_size 8", false},
      {"--fill_step --batch_size 2 --global_batch 3", "a multiple of --batch_size 2", true}};
  for (const auto &x : others) {
    CLI_RUN(&r, "%s %s %s --out %s | tr '\\n' ' ' | tr -s ' '", cli_ranks(0), x.tuned ? tuned : "", x.options,
            cli_path("no"));
    EXPECT(strstr(r.text, x.says), "%s:\n%.2000s", x.options, r.text);
    cli_free(&r);
  }
}
