// test_gguf.h: --export_gguf against files that llama.cpp's own package wrote (dev/make_gguf_fixture.py).

static void gguf_compare(const char *made, const char *wanted) {
  int64_t n = 0, m = 0, first = 0;
  char *a = file_get(made, 1 << 24, &n), *b = file_get(wanted, 1 << 24, &m);
  REQUIRE(a && b, "%s or %s cannot be read", made, wanted);
  while (first < n && first < m && a[first] == b[first]) first++;
  EXPECT(n == m && first == n, "%s has %lld bytes, %s %lld; the first that differs is %lld", made, (long long)n, wanted,
         (long long)m, (long long)first);
  free(a);
  free(b);
}

TEST_MPI(
    gguf_equals_llama_cpp_s_own, 1,
    "--export_gguf of GPT-2 in Q8_0 with its tokenizer, Llama in fp16 with pairs of rows and scaled rope, Qwen 2 in "
    "bf16 and Qwen 3 in fp32: every key, tensor and byte is what llama.cpp's gguf package writes") {
  static const struct { const char *from, *arch, *type; } cases[] = {
      {"hf_tiny", "gpt2", "q8_0"}, {"family_llama", "llama", "f16"}, {"family_qwen2", "qwen2", "bf16"},
      {"family_qwen3", "qwen3", "f32"}};
  for (const auto &k : cases) {
    static FamilyRun x;
    char from[256], options[1200], made[1200], wanted[256], out[1024];
    Error error = {};
    ix_directory(out, k.arch);
    snprintf(from, sizeof from, "dev/fixtures/%s", k.from);
    snprintf(options, sizeof options, "--export_gguf %s --out %s", k.type, out);
    snprintf(made, sizeof made, "%s/model.gguf", out);
    snprintf(wanted, sizeof wanted, "dev/fixtures/gguf_%s.gguf", k.arch);
    family_open(&x, from, cpu_tables[0].ops, options);
    if (!strcmp(k.arch, "gpt2"))
      x.corpus.has_tokenizer = tokenizer_load_any(&x.corpus.tokenizer, from, &error);
    REQUIRE(export_gguf(&x.trainer.run), "%s is not exported", k.from);
    tokenizer_free(&x.corpus.tokenizer);
    family_close(&x);
    gguf_compare(made, wanted);
    snprintf(made, sizeof made, "%s/model.gguf.fp32", out);
    EXPECT(access(made, F_OK), "%s is left behind", made);
  }
}

TEST(gguf_knows_what_llama_cpp_runs, "blocks and tokenizers that llama.cpp does not have are rejected, others named") {
  static const struct { const char *tokenizer, *pre, *eos; } cases[] = {
      {"gpt2", "gpt-2", NULL}, {"llama3", "llama-bpe", "<|end_of_text|>"}, {"qwen2", "qwen2", "<|endoftext|>"},
      {"smollm2", "smollm", "<|endoftext|>"}, {"nanochat", NULL, NULL}};
  for (const auto &k : cases) {
    char path[256];
    Error error = {};
    Tokenizer t = {};
    snprintf(path, sizeof path, "dev/fixtures/tokenizer_%s.json", k.tokenizer);
    if (!tokenizer_load_any(&t, path, &error)) {
      EXPECT(!k.pre, "%s: %s", path, error.text);
      continue;
    }
    const char *pre = gguf_pre_tokenizer(&t);
    EXPECT(k.pre ? pre && !strcmp(pre, k.pre) : !pre, "%s: '%s'", k.tokenizer, pre ? pre : "none");
    const ExportTexts texts = {&t, NULL, NULL, ""};
    TextEnds ends = text_ends(&texts);
    const bool llama = !strcmp(k.tokenizer, "llama3");
    EXPECT(!k.eos || (ends.eos_text && !strcmp(ends.eos_text, k.eos)), "%s ends with %s", k.tokenizer, ends.eos_text);
    EXPECT(ends.bos == (llama ? t.bos_id : ends.eos) && (ends.bos != ends.eos) == llama, "%s starts with %s",
           k.tokenizer, ends.bos_text);
    text_ends_free(&ends);
    t.ignore_merges = false;                     // as OLMo 2's, which has Llama 3's pattern
    EXPECT(!llama || !strcmp(gguf_pre_tokenizer(&t), "dbrx"), "without ignore_merges: %s", gguf_pre_tokenizer(&t));
    tokenizer_free(&t);
  }
  static const struct { const char *from; bool can; } models[] = {
      {"hf_tiny", true}, {"family_llama_bias", true}, {"family_smollm3", false}, {"family_nanochat", false}};
  for (const auto &m : models) {
    char path[256];
    Error error = {};
    snprintf(path, sizeof path, "dev/fixtures/%s", m.from);
    Import *s = import_open(path, NULL, &error);
    REQUIRE(s, "%s", error.text);
    EXPECT(gguf_can(&s->is.shape, &error) == m.can && (m.can || strstr(error.text, "--export_gguf")), "%s: %s",
           m.from, error.text);
    s->is.shape.block.rope_scaling = {ROPE_LLAMA3, 32, 1, 4, 8192, 0, 0};
    EXPECT(gguf_can(&s->is.shape, &error) == !strcmp(m.from, "family_llama_bias"), "%s with scaling", m.from);
    import_close(s);
  }
}
