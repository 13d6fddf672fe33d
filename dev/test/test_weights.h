// test_weights.h: what is read as weights, through the command line: numbers that are not finite, names that other
// programs put into files, exports that would replace what a run reads.
#pragma once
#include "data/tensors/tensors.h"

// Runs the program with `options`, in which @ is the test's directory, on `ranks` ranks (0: alone), with a tiny model's
// lengths. The text is the caller's.
static inline void weights_run(CliRun *r, int ranks, const char *options) {
  CLI_RUN(r, "%s --seq_len 8 --threads 1 --cache= --report off %s", cli_ranks(ranks), cli_expand(options));
}
static inline void weights_done(const char *options) {
  CliRun r;
  weights_run(&r, 0, options);
  cli_expect_done(&r, options);
  cli_free(&r);
}
static inline void weights_rejected(const char *options, int code, const char *says) {
  CliRun r;
  weights_run(&r, 0, options);
  EXPECT(r.code == code && strstr(r.text, says), "%s: exit code %d, must be %d with '%s':\n%.3000s", options, r.code,
         code, says, r.text);
  cli_free(&r);
}
// A tiny model in TEST_TMP/NAME, a directory of Hugging Face: Llama's block, or GPT-2's.
static inline void weights_make(const char *name, bool llama) {
  char options[600];
  cli_text(20);
  snprintf(options, sizeof options, "%s --n_layer 2 --n_embd 16 --n_head 2 --vocab_size 290 --max_steps 1 --data "
           "@/text --sample_tokens 0 --eval_every -1 --save_every -1 --out @/made --export_hf @/%s",
           llama ? "--norm rmsnorm --position rope --mlp swiglu --bias none" : "", name);
  weights_done(options);
}
// Sets elements [from, from + n) of a tensor of a file.
static inline void weights_set(const char *file, const char *tensor, int64_t from, int64_t n, float value) {
  SafetensorsFile f;
  REQUIRE(safetensors_open(&f, file), "%s", f.error);
  const SafetensorsTensor *t = safetensors_entry(&f, tensor);
  REQUIRE(t && t->dtype == F32, "%s has no %s", file, tensor);
  const int fd = open(file, O_WRONLY);
  for (int64_t i = from; i < from + n; i++) EXPECT(pwrite(fd, &value, 4, t->at + 4 * i) == 4, "cannot write %s", file);
  close(fd);
  safetensors_close(&f);
}
// Copies the directory TEST_TMP/FROM to TEST_TMP/TO and rewrites the header of its FILE: tensors' names, by `rename`.
static inline void weights_rename(const char *from, const char *to, const char *file,
                                  void (*rename)(char to[256], const char *name, const void *how), const void *how) {
  CliRun r;
  CLI_RUN(&r, "rm -rf %s; cp -r %s %s", cli_path(to), cli_path(from), cli_path(to));
  cli_expect_done(&r, "cp");
  cli_free(&r);
  char path[600], name[256];
  int64_t bytes;
  uint64_t n;
  snprintf(path, sizeof path, "%s/%s", cli_path(to), file);
  char *all = file_get(path, 1 << 24, &bytes);
  REQUIRE(all, "no %s", path);
  memcpy(&n, all, 8);
  cJSON *header = cJSON_ParseWithLength(all + 8, n), *changed = cJSON_CreateObject();
  while (header->child) {
    cJSON *x = cJSON_DetachItemViaPointer(header, header->child);
    snprintf(name, sizeof name, "%s", x->string);
    if (strcmp(name, "__metadata__")) rename(name, x->string, how);
    cJSON_AddItemToObject(changed, name, x);
  }
  char *text = cJSON_PrintUnformatted(changed);
  const uint64_t length = strlen(text);
  FILE *f = fopen(path, "wb");
  fwrite(&length, 1, 8, f);
  fwrite(text, 1, length, f);
  fwrite(all + 8 + n, 1, (size_t)bytes - 8 - n, f);
  fclose(f);
  cJSON_free(text);
  cJSON_Delete(header);
  cJSON_Delete(changed);
  free(all);
}

TEST(weights_that_are_not_finite_are_named,
     "a NaN or an infinity in a model, a GGUF or an adapter ends each mode that reads weights, on 1 and 2 ranks, with "
     "a line that names the file's tensor, and without a sample, an export or a record; finite weights whose logits or "
     "losses are not end a sample and an evaluation") {
  static const struct { int ranks; const char *options; } modes[] = {
      {0, "--sample_only --sample_tokens 4"}, {2, "--sample_only --sample_tokens 4"}, {0, "--eval_only --data @/text"},
      {0, "--sample_only --eval @/last.jsonl"}, {0, "--sample_only --interactive"},
      {2, "--sample_only --sample_tokens 0 --export_hf @/e"}, {0, "--sample_only --sample_tokens 0 --export_gguf q8_0"},
      {0, "--max_steps 1 --data @/text --save_model"}, {0, "--lora 2 --max_steps 1 --data @/text --export_hf @/e"}};
  CliRun r;
  char options[600], file[600];
  weights_make("m", true);
  weights_done("--init_from @/m --lora 2 --lora_targets k_proj,v_proj --max_steps 1 --data @/text --out @/made "
               "--sample_tokens 0 --eval_every -1 --export_hf @/a");
  weights_done("--init_from @/m --sample_only --sample_tokens 0 --export_gguf f32 --out @/g");
  cli_write(cli_path("last.jsonl"), "{\"text\": \"the fox sees\"}\n", 25);
  weights_set(cli_path("a/adapter_model.safetensors"),
              "base_model.model.model.layers.0.self_attn.v_proj.lora_A.weight", 5, 1, -INFINITY);
  weights_rejected("--init_from @/m --lora_from @/a --sample_only --out @/o", EXIT_NOT_FINITE, "parameter "
                  "h.0.attn.c_attn.lora_A.weight:");
  snprintf(file, sizeof file, "%s", cli_path("m/model.safetensors"));
  weights_set(file, "model.layers.1.self_attn.k_proj.weight", 37, 1, NAN);
  for (const auto &m : modes) {
    snprintf(options, sizeof options, "--init_from @/m --out @/o %s", m.options);
    weights_run(&r, m.ranks, options);
    EXPECT(r.code == EXIT_NOT_FINITE && cli_count(r.text, "first element 293 of parameter h.1.attn.c_attn.weight "
           "(tensor model.layers.1.self_attn.k_proj.weight):") == 1, "%s: exit code %d:\n%.3000s", m.options, r.code,
           r.text);
    cli_free(&r);
    for (const char *made : {"e/model.safetensors", "e/adapter_model.safetensors", "o/model.gguf", "o/sample.txt",
                             "o/model.safetensors", "o/metrics.jsonl"})
      EXPECT(access(cli_path(made), F_OK), "%s: %s was written", m.options, made);
  }
  int64_t bytes;
  char *gguf = file_get(cli_path("g/model.gguf"), 1 << 24, &bytes);
  REQUIRE(gguf, "no GGUF");
  const float inf = INFINITY;
  memcpy(gguf + bytes - 8, &inf, 4);             // in the last tensor
  cli_write(cli_path("inf.gguf"), gguf, (size_t)bytes);
  free(gguf);
  weights_rejected("--init_from @/inf.gguf --sample_only --out @/o", EXIT_NOT_FINITE, "inf.gguf: these weights "
                  "are not finite, first element ");
  weights_set(file, "model.layers.1.self_attn.k_proj.weight", 37, 1, 0);
  weights_set(file, "model.norm.weight", 0, 16, 3e38f);          // finite, and what is multiplied by it is not
  weights_rejected("--init_from @/m --sample_only --sample_tokens 4 --out @/o", EXIT_NOT_FINITE,
                  "logits of a sample are not finite, though the weights are");
  weights_rejected("--init_from @/m --eval_only --data @/text --out @/o", EXIT_NOT_FINITE, "losses of --eval_only are "
                  "not finite");
  weights_rejected("--init_from @/m --sample_only --eval @/last.jsonl --out @/o", EXIT_NOT_FINITE, "log-probabilities "
                  "of --eval are not finite");
}

// What a wrapper makes of a name: FROM, where it starts so or is inside, becomes TO; of the tensors that have `only`.
struct WeightsNames { const char *base, *from, *to, *only; };
static void weights_wrap(char to[256], const char *name, const void *how) {
  const WeightsNames *w = (const WeightsNames *)how;
  const char *at = strstr(name, w->from);
  if (!at || (w->only && !strstr(name, w->only))) return;
  snprintf(to, 256, "%.*s%s%s", (int)(at - name), name, w->to, at + strlen(w->from));
}
TEST(weights_have_names_of_wrappers,
     "names as torch.compile, DDP, FSDP, checkpointed activations, a model without its head and PEFT's own state give "
     "them are the weights of the usual names; of names that are not all so the line says what the file has; "
     "directories of adapters and of models name --lora_from and --init_from; preferences name --loss dpo") {
  static const WeightsNames names[] = {
      {"m", "", "_orig_mod.", NULL}, {"m", "", "module.", NULL}, {"m", "", "module._orig_mod.", NULL},
      {"m", "model.", "", NULL}, {"m", "model.", "backbone.", NULL}, {"m", "layers.1.", "layers.1._orig_mod.", NULL},
      {"m", "mlp.", "_checkpoint_wrapped_module.mlp.", NULL}, {"g", "", "_orig_mod.", NULL},
      {"g", "transformer.", "", NULL}, {"g", "transformer.", "module.", NULL}};
  static const WeightsNames adapters[] = {
      {"a", ".weight", ".default.weight", NULL}, {"a", ".weight", ".tuned.weight", NULL},
      {"a", "base_model.model.", "", NULL}, {"a", "base_model.", "_orig_mod.base_model.", NULL}};
  char options[600], what[80];
  weights_make("m", true);
  weights_make("g", false);
  weights_done("--init_from @/m --lora 2 --max_steps 1 --data @/text --out @/made --sample_tokens 0 --eval_every -1 "
               "--export_hf @/a");
  weights_done("--init_from @/m --lora_from @/a --sample_only --sample_tokens 0 --merge --export_hf @/ma --out @/o");
  for (const auto &n : names) {
    snprintf(what, sizeof what, "%s: %s", n.from, n.to);
    weights_rename(n.base, "w", "model.safetensors", weights_wrap, &n);
    weights_done("--init_from @/w --sample_only --sample_tokens 0 --export_hf @/again --out @/o");
    snprintf(options, sizeof options, "%s/model.safetensors", cli_path(n.base));
    cli_expect_same_file(what, options, cli_path("again/model.safetensors"));
  }
  for (const auto &n : adapters) {
    snprintf(what, sizeof what, "%s: %s", n.from, n.to);
    weights_rename("a", "wa", "adapter_model.safetensors", weights_wrap, &n);
    weights_done("--init_from @/m --lora_from @/wa --sample_only --sample_tokens 0 --merge --export_hf @/again2 --out "
                 "@/o");
    cli_expect_same_file(what, cli_path("ma/model.safetensors"), cli_path("again2/model.safetensors"));
  }
  const WeightsNames some = {"m", "model.layers", "tower.blocks", NULL}, twice = {"a", ".lora_A.weight",
                             ".lora_B.own.weight", "q_proj"};
  weights_rename("m", "w", "model.safetensors", weights_wrap, &some);
  weights_rejected("--init_from @/w --sample_only --out @/o", EXIT_MISSING, "; the file has instead \"tower.blocks.0.");
  weights_rename("a", "wa", "adapter_model.safetensors", weights_wrap, &twice);
  weights_rejected("--init_from @/m --lora_from @/wa --sample_only --out @/o", EXIT_MISSING, "two tensors are "
                  "\"base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight\"");
  weights_rejected("--init_from @/a --sample_only --out @/o", EXIT_MISSING, "a: is an adapter (adapter_config.json), "
                  "no model: name it by --lora_from");
  weights_rejected("--init_from @/a/adapter_model.safetensors --sample_only --out @/o", EXIT_MISSING, "name its "
                  "directory by --lora_from");
  weights_rejected("--init_from @/m --lora_from @/m --sample_only --out @/o", EXIT_MISSING, "m: is a model, no "
                  "adapter: name it by --init_from");
  CliRun r;
  CLI_RUN(&r, "cp %s/adapter_* %s", cli_path("a"), cli_path("m"));
  cli_free(&r);
  weights_run(&r, 0, "--init_from @/m --sample_only --sample_tokens 1 --out @/o");
  EXPECT(!r.code && cli_count(r.text, "has an adapter too (adapter_config.json), which --lora_from reads") == 1,
         "an adapter beside the weights:\n%.3000s", r.text);
  cli_free(&r);
  static const char pair[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", "
                             "\"content\": \"b\"}], \"chosen\": \"c\", \"rejected\": \"d\"}\n";
  char pairs[3 * sizeof pair] = "";
  for (int i = 0; i < 3; i++) strcat(pairs, pair);
  cli_write(cli_path("pairs.jsonl"), pairs, strlen(pairs));
  weights_rejected("--init_from @/m --data @/pairs.jsonl --max_steps 1 --out @/o", EXIT_MISSING, "is a preference "
                  "(chosen and rejected) beside messages: --loss dpo");
}

TEST(weights_exports_spare_what_is_read,
     "an export that would replace weights or an adapter that the run reads, of Hugging Face or a GGUF, named directly "
     "or through links, of full weights, adapters and merged ones, resumed too, is rejected before anything is "
     "written; so are adapters for a checkpoint that a new run would move aside; other directories are taken") {
  static const struct { const char *options, *says; } cases[] = {
      {"--init_from @/o/model.gguf --lora 2 --merge --export_gguf q8_0 --out @/o", "--export_gguf would replace "},
      {"--init_from @/o/model.gguf --export_gguf f16 --out @/o", "which this run reads: name"},
      {"--init_from @/o/model.gguf --export_gguf f16 --out @/link", "--export_gguf would replace "},
      {"--init_from @/other/model.gguf --export_gguf f16 --out @/o", "--export_gguf would replace "},
      {"--init_from @/o/model.gguf --lora 2 --merge --export_gguf f16 --out @/other", "need: name"},
      {"--init_from @/m --export_hf @/m --out @/p", "has the weights that this run reads: name"},
      {"--init_from @/m --lora 2 --export_hf @/m --out @/p", "which checkpoints of its adapters need"},
      {"--init_from @/mlink --lora 2 --merge --export_hf @/m --out @/p", "which checkpoints of its adapters need"},
      {"--init_from @/m/model.safetensors --export_hf @/mlink --out @/p", "has the weights that this run reads: name"},
      {"--init_from @/m --lora_from @/a --export_hf @/a --out @/p", "would replace the adapter that this run reads"},
      {"--resume @/l --max_steps 2 --merge --export_hf @/m --out @/l", "which checkpoints of its adapters need"},
      {"--init_from @/o/ckpt/latest --lora 2 --out @/o", "aside, which checkpoints of its adapters need"}};
  char options[600];
  CliRun r;
  weights_make("m", true);
  weights_done("--init_from @/m --max_steps 1 --data @/text --sample_tokens 0 --eval_every -1 --export_gguf q8_0 --out "
               "@/o");
  weights_done("--init_from @/m --lora 2 --max_steps 1 --data @/text --sample_tokens 0 --eval_every -1 --export_hf @/a "
               "--out @/l");
  CLI_RUN(&r, "cd %s && ln -s o link && ln -s m mlink && mkdir other && ln -s ../o/model.gguf other/model.gguf && cp "
          "m/model.safetensors o/model.gguf .", test_tmp());
  cli_expect_done(&r, "links");
  cli_free(&r);
  for (const auto &c : cases) {
    snprintf(options, sizeof options, "--data @/text --sample_tokens 0 --eval_every -1 %s %s",
             strstr(c.options, "--max_steps") ? "" : "--max_steps 1", c.options);
    weights_rejected(options, EXIT_USAGE, c.says);
  }
  EXPECT(access(cli_path("p"), F_OK), "a rejected run has made its directory");
  cli_expect_same_file("the base", cli_path("m/model.safetensors"), cli_path("model.safetensors"));
  cli_expect_same_file("the GGUF", cli_path("o/model.gguf"), cli_path("model.gguf"));
  weights_done("--init_from @/o/model.gguf --lora 2 --merge --export_gguf q8_0 --export_hf @/o/hf --max_steps 1 --data "
               "@/text --sample_tokens 0 --eval_every -1 --out @/q");
  weights_done("--resume @/q --max_steps 2 --data @/text --out @/q");
}
