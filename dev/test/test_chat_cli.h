// test_chat_cli.h: a run on conversations, from the command line. Needs cli_helpers.h.
#pragma once

static const char *chat_cli_model() {
  return "--n_layer 2 --n_head 2 --n_embd 24 --n_positions 256 --seq_len 256 --threads 1 --batch_size 1 "
         "--global_batch 6 --lr 0.01 --sample_tokens 0 --eval_every -1 --cache= --save_model --report off "
         "--data dev/fixtures/chat.jsonl";
}
TEST_WAITS(cli_chat_runs_and_resumes,
     "a run on conversations says what it trains on, with one of them as the model sees it; a run that was killed on 2 "
     "ranks and continues with 3 ends with the weights of one that was not; its choices are the checkpoint's; options "
     "that have no effect, and templates that are not known, are rejected by name") {
  CliRun r;
  const char *tokenizer = "--tokenizer dev/fixtures/chat_qwen2.5 --too_long drop";
  CLI_RUN(&r, "%s %s %s --max_steps 6 --save_every -1 --out %s", cli_program(), chat_cli_model(), tokenizer,
          cli_path("whole"));
  cli_expect_done(&r, "one rank");
  EXPECT(strstr(r.text, "conversations in dev/fixtures/chat.jsonl (--data): lines of") &&
             strstr(r.text, "messages, 78 to train on in") && strstr(r.text, "longer than --seq_len") &&
             strstr(r.text, "left out)") &&
             strstr(r.text, "<|im_start|>user\n") &&
             strstr(r.text, "<|im_start|>assistant\n[[") && strstr(r.text, "<|im_end|>]]\n") &&
             strstr(r.text, "held out for it and not trained on"),
         "the startup log shows:\n%.3000s", r.text);
  cli_free(&r);
  cli_start(&r, "%s %s %s --max_steps 6 --save_every 2 --out %s", cli_ranks(2), chat_cli_model(),
            tokenizer, cli_path("killed"));
  char step[600];
  snprintf(step, sizeof step, "%s/ckpt/step_00000002/trainer.json", cli_path("killed"));
  const TestClock since = test_clock();
  while (access(step, F_OK) && cli_in_time(&since, CLI_LIMIT_S)) usleep(2000);
  cli_find_process(1, true);
  cli_wait(&r, CLI_LIMIT_S);
  cli_free(&r);
  CLI_RUN(&r, "%s --max_steps 6 --save_every -1 --cache= --save_model --resume --out %s", cli_ranks(3),
          cli_path("killed"));
  cli_expect_done(&r, "resumed");
  cli_free(&r);
  int64_t n[2];
  char *model[2], path[600];
  for (int i = 0; i < 2; i++) {
    snprintf(path, sizeof path, "%s/model.safetensors", cli_path(i ? "killed" : "whole"));
    model[i] = file_get(path, 1 << 24, &n[i]);
    REQUIRE(model[i], "no %s", path);
  }
  EXPECT(n[0] == n[1] && !memcmp(model[0], model[1], (size_t)n[0]), "the weights differ");
  static char options[4][1024], wants[4][512];
  snprintf(options[0], 1024, "%s --resume --out %s --train_on all", chat_cli_model(), cli_path("killed"));
  snprintf(wants[0], 512, "--train_on all contradicts ");
  snprintf(options[1], 1024, "--data generated --pack stream");
  snprintf(wants[1], 512, "--pack belongs to conversations, --data FILE.jsonl; this is generated sentences");
  snprintf(options[2], 1024, "%s --tokenizer dev/fixtures/tokenizer_qwen2.json --out %s", chat_cli_model(),
           cli_path("x"));
  snprintf(wants[2], 512, "dev/fixtures/chat.jsonl, line 1: has messages, but no chat template is known: dev/fixtures "
           "has none (chat_template.jinja, tokenizer_config.json); name one by --chat_template");
  snprintf(options[3], 1024, "%s %s --pack stream --out %s", chat_cli_model(), tokenizer, cli_path("x"));
  snprintf(wants[3], 512, "--too_long belongs to --pack whole, not to stream");
  for (int i = 0; i < 4; i++) {
    CLI_RUN(&r, "%s %s", cli_ranks(2), options[i]);
    EXPECT(r.code && cli_count(r.text, wants[i]) == 1, "exit code %d, expected '%s':\n%.2000s", r.code, wants[i],
           r.text);
    cli_free(&r);
  }
}
// A file of a directory as JSON; the caller deletes it.
static cJSON *chat_cli_json(const char *dir, const char *name) {
  char path[700];
  int64_t bytes;
  snprintf(path, sizeof path, "%s/%s", dir, name);
  char *text = file_get(path, 1 << 20, &bytes);
  cJSON *json = text ? cJSON_ParseWithLength(text, (size_t)bytes) : NULL;
  if (!json) die_missing("no %s", path);
  free(text);
  return json;
}
TEST(cli_chat_exports_its_template,
     "a model that was fine-tuned on conversations is exported with their template and the end of a turn as its end, "
     "for transformers and llama.cpp, a published one byte for byte; its prompt is a user's message unless that is "
     "unasked, from the export too") {
  CliRun r;
  static const char asks[] = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
  static const char says[] = ", the prompt as a user's message by the model's own template";
  CLI_RUN(&r, "%s %s --tokenizer dev/fixtures/chat_qwen2.5 --max_steps 1 --save_every -1 --sample_tokens 2 --prompt Hi "
          "--export_gguf f16 --export_hf %s --out %s", cli_program(), chat_cli_model(), cli_path("exported"),
          cli_path("tuned"));
  cli_expect_done(&r, "tuned");
  EXPECT(strstr(r.text, says) && strstr(r.text, asks), "it sampled:\n%.3000s", r.text);
  cli_free(&r);
  char path[600];
  Error why = {};
  int64_t bytes;
  cJSON *of_tokenizer = chat_cli_json("dev/fixtures/chat_qwen2.5", "tokenizer_config.json");
  cJSON *exported = chat_cli_json(cli_path("exported"), "tokenizer_config.json");
  char *text = strdup(cJSON_GetStringValue(cJSON_GetObjectItem(of_tokenizer, "chat_template")));
  EXPECT(!strcmp(text, cJSON_GetStringValue(cJSON_GetObjectItem(exported, "chat_template"))), "exported: another");
  cJSON_Delete(of_tokenizer);
  cJSON_Delete(exported);
  snprintf(path, sizeof path, "%s/tokenizer_config.json", cli_path("exported"));
  char *config = file_get(path, 1 << 20, &bytes);
  EXPECT(config && strstr(config, "\"eos_token\":\t\"<|im_end|>\""), "exported: %s", config);
  snprintf(path, sizeof path, "%s/model.gguf", cli_path("tuned"));
  char *gguf = file_get(path, 1 << 24, &bytes);
  REQUIRE(gguf, "no %s", path);
  const char *key = (const char *)memmem(gguf, (size_t)bytes, "tokenizer.chat_template", 23);
  EXPECT(key && !memcmp(key + 23 + 4 + 8, text, strlen(text)), "%s has no template", path);
  GgufFile g;
  cJSON *of_gguf = gguf_open(&g, path, &why) ? gguf_published(&g) : NULL;
  const char *again = published_text(of_gguf, "chat_template");
  EXPECT(again && !strcmp(again, text), "a model that is tuned from %s has another template: %s", path, again);
  cJSON_Delete(of_gguf);
  gguf_close(&g);
  for (char *p : {config, gguf}) free(p);
  static const struct { const char *options, *has, *lacks; } runs[] = {
      {"--prompt_as user", asks, "(temperature 0.8, top-k 40):"}, {"", asks, "(temperature 0.8, top-k 40):"},
      {"--prompt_as text", "top-k 40):\nHi", says},
      {"--prompt_as user --tokenizer dev/fixtures/tokenizer_qwen2.json", "--prompt_as user: the prompt has messages, "
       "but no chat template is known: dev/fixtures has none", asks}};
  for (const auto &x : runs) {
    CLI_RUN(&r, "%s --init_from %s --sample_only --sample_tokens 2 --prompt Hi --threads 1 --out %s %s", cli_program(),
            cli_path("exported"), cli_path("sampled"), x.options);
    EXPECT(strstr(r.text, x.has) && !strstr(r.text, x.lacks), "%s:\n%.2000s", x.options, r.text);
    cli_free(&r);
  }
  for (const char *what : {"--sample_only --sample_tokens 2 --prompt Hi --threads 1", "--plan"}) {
    CLI_RUN(&r, "%s --init_from %s/model.gguf --out %s %s", cli_program(), cli_path("tuned"), cli_path("of-gguf"),
            what);
    const bool plan = !strcmp(what, "--plan");
    EXPECT(!r.code && strstr(r.text, plan ? "not read: the vocabulary is that of --init_from" : asks) &&
           (plan ? cli_count(r.text, "a plan, nothing is started") == 1 : strstr(r.text, says) != NULL) &&
           strstr(r.text, "tuned/model.gguf, "), "%s of a GGUF:\n%.2000s", what, r.text);
    cli_free(&r);
  }
  CLI_RUN(&r, "%s --init_from %s --eval_only --val_data dev/fixtures/chat.jsonl --seq_len 256 --threads 1 --cache= "
          "--report off --out %s", cli_program(), cli_path("exported"), cli_path("evaluated"));
  EXPECT(!r.code && strstr(r.text, "conversations in dev/fixtures/chat.jsonl (--val_data)") &&
             strstr(r.text, "valid: loss "), "conversations by --val_data alone:\n%.2000s", r.text);
  cli_free(&r);
  char name[700], published[8192];
  snprintf(published, sizeof published, "%s{#- \"its\" \\ own #}\n\n", text);
  free(text);
  snprintf(path, sizeof path, "%s/chat_template.jinja", cli_path("exported"));
  cli_write(path, published, strlen(published));
  CLI_RUN(&r, "%s --init_from %s --data dev/fixtures/chat.jsonl --max_steps 1 --eval_every -1 --save_every -1 --cache= "
          "--sample_tokens 0 --report off --threads 1 --export_gguf f16 --export_hf %s --out %s", cli_program(),
          cli_path("exported"), cli_path("after"), cli_path("again"));
  cli_expect_done(&r, "tuned at defaults");
  cJSON *after = chat_cli_json(cli_path("after"), "tokenizer_config.json");
  const char *theirs = cJSON_GetStringValue(cJSON_GetObjectItem(after, "chat_template"));
  snprintf(path, sizeof path, "%s/model.gguf", cli_path("again"));
  gguf = file_get(path, 1 << 24, &bytes);
  EXPECT(theirs && !strcmp(theirs, published) && gguf && memmem(gguf, (size_t)bytes, published, strlen(published)),
         "its own template, exported: %s", theirs ? theirs : "none");
  free(gguf);
  cJSON_Delete(after);
  snprintf(name, sizeof name, "\n  model     gpt2 of %s, ", cli_path("exported"));
  EXPECT(strstr(r.text, name) && strstr(r.text, "\n  tuning    what no option says is chosen for weights that") &&
             strstr(r.text, " 1e-05 (") && strstr(r.text, "decay 0 (") &&
             strstr(r.text, "--batch_size auto is 8: "), "it says:\n%.3000s", r.text);
  cli_free(&r);
}

static void chat_cli_put(const char *dir, const char *name, cJSON *json) {
  char path[700], *text = cJSON_PrintUnformatted(json);
  snprintf(path, sizeof path, "%s/%s", dir, name);
  cli_write(path, text, strlen(text));
  cJSON_free(text);
  cJSON_Delete(json);
}
TEST(cli_pairs_of_a_published_model,
     "a published model with a chat template that is tuned on pairs is asked for texts, in the run and after it; its "
     "export ends at what was trained on and at all ends that were published, and has the published sampling settings "
     "and tokens, when it was made from a checkpoint too; a template that is not known is named") {
  CliRun r;
  static const char says[] = ", the prompt as a user's message by ", text[] = "top-k 40):\nHi";
  static const char first[] = "--sample_tokens 2 --prompt Hi --threads 1 --cache= --report off";
  CLI_RUN(&r, "%s %s --tokenizer dev/fixtures/chat_qwen2.5 --max_steps 1 --save_every -1 --export_hf %s --out %s",
          cli_program(), chat_cli_model(), cli_path("base"), cli_path("tuned"));
  cli_expect_done(&r, "the base");
  cli_free(&r);
  char base[600];
  snprintf(base, sizeof base, "%s", cli_path("base"));
  cJSON *config = chat_cli_json(base, "tokenizer_config.json");
  cJSON_ReplaceItemInObject(config, "bos_token", cJSON_CreateNull());
  cJSON_ReplaceItemInObject(config, "unk_token", cJSON_CreateNull());
  cJSON_AddItemToObject(config, "pad_token", cJSON_Parse("{\"content\": \"<|im_start|>\"}"));
  chat_cli_put(base, "tokenizer_config.json", config);
  chat_cli_put(base, "generation_config.json", cJSON_Parse("{\"eos_token_id\": [5, 7], \"pad_token_id\": 3, "
                                                           "\"do_sample\": true, \"temperature\": 0.6}"));
  FILE *f = fopen(cli_path("pairs.jsonl"), "w");
  for (int i = 0; i < 60; i++) fprintf(f, "{\"prompt\": \"2+%d=\", \"completion\": \" four\"}\n", i);
  fclose(f);
  CLI_RUN(&r, "%s --init_from %s --data %s --seq_len 32 --batch_size 1 --max_steps 1 --eval_every -1 --save_every 1 %s "
          "--out %s", cli_program(), base, cli_path("pairs.jsonl"), first, cli_path("paired"));
  cli_expect_done(&r, "pairs");
  EXPECT(strstr(r.text, text) && !strstr(r.text, says), "tuned on pairs, asked:\n%.3000s", r.text);
  cli_free(&r);
  CLI_RUN(&r, "%s --resume %s --sample_only %s --export_hf %s --out %s", cli_program(), cli_path("paired"), first,
          cli_path("export"), cli_path("asked"));
  EXPECT(!r.code && strstr(r.text, text) && !strstr(r.text, says), "later:\n%.3000s", r.text);
  cli_free(&r);
  Tokenizer t;
  char path[700], want[64];
  Error error = {};
  snprintf(path, sizeof path, "%s/tokenizer.json", base);
  REQUIRE(tokenizer_load_any(&t, path, &error), "%s", error.text);
  snprintf(want, sizeof want, "[%d,5,7,", chat_token(&t, "<|endoftext|>"));
  tokenizer_free(&t);
  cJSON *generation = chat_cli_json(cli_path("export"), "generation_config.json");
  char *ends = cJSON_PrintUnformatted(cJSON_GetObjectItem(generation, "eos_token_id"));
  EXPECT(!strncmp(ends, want, strlen(want)) &&
             cJSON_GetNumberValue(cJSON_GetObjectItem(generation, "temperature")) == 0.6 &&
             cJSON_GetNumberValue(cJSON_GetObjectItem(generation, "pad_token_id")) == 3 &&
             cJSON_IsTrue(cJSON_GetObjectItem(generation, "do_sample")), "ends %s, expected %s ...", ends, want);
  cJSON_free(ends);
  cJSON_Delete(generation);
  config = chat_cli_json(cli_path("export"), "tokenizer_config.json");
  const char *pad = cJSON_GetStringValue(cJSON_GetObjectItem(config, "pad_token"));
  EXPECT(pad && !strcmp(pad, "<|im_start|>") && cJSON_IsNull(cJSON_GetObjectItem(config, "bos_token")) &&
             cJSON_IsNull(cJSON_GetObjectItem(config, "unk_token")) && !cJSON_HasObjectItem(config, "chat_template"),
         "pad %s", pad);
  cJSON_Delete(config);
  config = chat_cli_json(base, "tokenizer_config.json");
  cJSON_ReplaceItemInObject(config, "chat_template", cJSON_CreateString("{{ messages | something_else }}"));
  chat_cli_put(base, "tokenizer_config.json", config);
  CLI_RUN(&r, "echo Hi | %s --init_from %s --interactive --sample_tokens 2 --threads 1 --out %s", cli_program(), base,
          cli_path("talk"));
  EXPECT(!r.code && strstr(r.text, "warning: no chat template is known: that of ") &&
             strstr(r.text, "line 1: filter 'something_else' is not built in; prompts are texts unless --chat_template "
                    "names one"),
         "an unknown template:\n%.2000s", r.text);
  cli_free(&r);
  CLI_RUN(&r, "echo Hi | %s --init_from %s --interactive --sample_tokens 2 --threads 1 --out %s --tokenizer "
          "dev/fixtures/chat_qwen2.5", cli_program(), base, cli_path("talk"));
  EXPECT(!r.code && strstr(r.text, "a chat by the model's own template;"), "a known one:\n%.2000s", r.text);
  cli_free(&r);
}

TEST(cli_texts_end_at_the_models_own_token,
     "an EOS token whose name this program does not know ends generated texts: by the chat template of the run, and by "
     "the published generation_config.json and tokenizer_config.json alone; completions end with it") {
  CliRun r;
  char dir[600], path[700];
  snprintf(dir, sizeof dir, "%s", cli_path("own"));
  mkdir(dir, 0700);
  for (const char *name : {"tokenizer.json", "tokenizer_config.json"}) {
    int64_t bytes;
    snprintf(path, sizeof path, "dev/fixtures/chat_smollm2/%s", name);
    char *text = file_get(path, 1 << 20, &bytes);
    REQUIRE(text, "%s cannot be read", path);
    for (const char *known : {"<|im_end|>", "<|endoftext|>"})
      for (char *at; (at = strstr(text, known)); memmove(at + 6, at + strlen(known), strlen(at + strlen(known)) + 1))
        memcpy(at, known[2] == 'i' ? "<EOT/>" : "<BOT/>", 6);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    cli_write(path, text, strlen(text));
    free(text);
  }
  static const char chats[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},"
                              "{\"role\":\"assistant\",\"content\":\"b\"}]}\n";
  FILE *f = fopen(cli_path("chats.jsonl"), "w");
  for (int i = 0; i < 20; i++) fputs(chats, f);
  fclose(f);
  CLI_RUN(&r, "%s --tokenizer %s --data %s --position rope --norm rmsnorm --mlp swiglu --bias none --n_layer 1 "
          "--n_embd 16 --n_head 1 --seq_len 256 --batch_size 1 --max_steps 40 --lr 0.03 --eval_every -1 --save_every "
          "-1 --report off --cache= --threads 1 --temperature 0 --sample_tokens 9 --export_hf %s --out %s",
          cli_program(), dir, cli_path("chats.jsonl"), cli_path("model"), cli_path("out"));
  cli_expect_done(&r, "training");
  EXPECT(strstr(r.text, "assistant\nb\n2 tokens, "), "by the template:\n%.3000s", r.text);
  cli_free(&r);
  char model[600];
  snprintf(model, sizeof model, "%s", cli_path("model"));
  static const char pair[] = "{\"prompt\": \"a\", \"completion\": \"b\"}\n";
  cli_write(cli_path("pairs.jsonl"), pair, sizeof pair - 1);
  CLI_RUN(&r, "%s --tokenizer %s --data %s --show_chats 1 --json", cli_program(), model, cli_path("pairs.jsonl"));
  EXPECT(!r.code && strstr(r.text, "\"ab<EOT/>\""), "of a completion:\n%.3000s", r.text);
  cli_free(&r);
  cJSON *config = chat_cli_json(model, "tokenizer_config.json");
  cJSON_DeleteItemFromObject(config, "chat_template");
  chat_cli_put(model, "tokenizer_config.json", config);
  CLI_RUN(&r, "%s --init_from %s --sample_only --prompt '<|im_start|>assistant\nb' --threads 1 --temperature 0 "
          "--sample_tokens 9 --out %s", cli_program(), model, cli_path("asked"));
  EXPECT(!r.code && strstr(r.text, "\n1 token, "), "by what is published:\n%.3000s", r.text);
  cli_free(&r);
}
TEST_WAITS(cli_fine_tuning_says_what_it_is,
     "the start of a run with adapters says rank, targets and how many parameters train, and the model's without them; "
     "the conversation it shows is trained on, cut where it is cut; pairs of twice the same answer are counted, and "
     "answers that are compared; one is no plural; the end says how to use what was written") {
  CliRun r;
  char base[600], words[900];
  snprintf(base, sizeof base, "%s", cli_path("base"));
  char lengthy[1801] = "";
  for (int i = 0; i < 300; i++) strcat(lengthy, "long ");
  static const char turns[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"%s\"},{\"role\":\"assistant\","
                              "\"content\":\"so %s\"}]}\n";
  static const char pair[] = "{\"prompt\":\"a\",\"chosen\":\"%s\",\"rejected\":\"%s\"}\n";
  FILE *c = fopen(cli_path("c.jsonl"), "w"), *v = fopen(cli_path("v.jsonl"), "w"), *p = fopen(cli_path("p.jsonl"), "w");
  fprintf(c, turns, lengthy, "x");
  fprintf(c, turns, "q", lengthy);
  fprintf(v, turns, "q", "x");
  for (const char *chosen : {"b", "c", (const char *)lengthy}) fprintf(p, pair, chosen, "b");
  for (FILE *f : {c, v, p}) fclose(f);
  CLI_RUN(&r, "%s %s --tokenizer dev/fixtures/chat_qwen2.5 --max_steps 1 --save_every -1 --export_hf %s --out %s",
          cli_program(), chat_cli_model(), base, cli_path("first"));
  cli_expect_done(&r, "the base");
  cli_free(&r);
  CLI_RUN(&r, "%s --init_from %s --data %s --val_data %s --seq_len 256 --lora 4 --lora_targets attn.c_attn "
          "--max_steps 1 --global_batch 1 --export_gguf adapter --threads 1 --sample_tokens 0 --cache= --out %s | "
          "tr -s ' \\n' ' '", cli_program(), base, cli_path("c.jsonl"), cli_path("v.jsonl"), cli_path("o"));
  // 2 blocks of width 24: 4 x 24 and 72 x 4 each.
  snprintf(words, sizeof words, "to talk to it: ./train_gpt_fsdp --interactive --resume %s with llama.cpp: llama-cli "
           "-m BASE.gguf --lora %s/adapter.gguf", cli_path("o"), cli_path("o"));
  for (const char *say : {(const char *)"adapters rank 4, alpha 8, of attn.c_attn: 768 of ", " parameters train ",
                          "1 to train on in 1 sequence, ", " 1 step an epoch", "<|im_start|>assistant [[so long long",
                          "]] ... here --seq_len 256 cuts it: ", (const char *)words})
    EXPECT(strstr(r.text, say), "it does not say '%s':\n%.4000s", say, r.text);
  EXPECT(!strstr(r.text, "user long"), "it shows what is left out:\n%.4000s", r.text);
  cli_free(&r);
  CLI_RUN(&r, "%s --init_from %s --data %s --val_data %s --seq_len 64 --loss dpo --max_steps 1 --global_batch 1 "
          "--threads 1 --sample_tokens 0 --cache= --save_every -1 --out %s", cli_program(), base, cli_path("p.jsonl"),
          cli_path("p.jsonl"), cli_path("d"));
  cli_expect_done(&r, "pairs");
  for (const char *say : {"warning: 1 of 2 pairs to train on has the same answer twice: nothing is learned of it\n",
                          "reference: log-probabilities of 8 answers ", " over 2 pairs"})
    EXPECT(strstr(r.text, say), "it does not say '%s':\n%.4000s", say, r.text);
  EXPECT(!strstr(r.text, "to talk to it"), "nothing was written to talk to:\n%.4000s", r.text);
  cli_free(&r);
}
