// test_chat.h: tokens with masks, conversations: what is trained on, and that it depends on no number of ranks.
#pragma once

// ---- masks ----------------------------------------------------------------------------------------------------------
// Gives a test corpus a mask: bit i of `trained` where `is` says so.
static void chat_mask(Split *s, bool (*is)(int64_t i)) {
  uint8_t *p = (uint8_t *)calloc(1, (size_t)s->tokens_numel * 4 + (size_t)(s->tokens_numel + 7) / 8);
  memcpy(p, s->tokens, (size_t)s->tokens_numel * 4);
  s->masked = true;
  for (int64_t i = 0; i < s->tokens_numel; i++)
    p[s->tokens_numel * 4 + i / 8] |= (uint8_t)(is(i) << i % 8);
  s->tokens = p;
}
static bool chat_all(int64_t) { return true; }
static bool chat_none(int64_t) { return false; }
static bool chat_some(int64_t i) { return i % 7 < 3 && (i - 1) / 21 % 12 != 5 && (i - 1) / (21 * 12) != 1; }

TEST_MPI(chat_masks_and_ranks, 3,
         "a mask of all tokens has the bits of none; with a masked microbatch and a step of them, losses, norms and "
         "weights are one rank's bits on 2 and 3 ranks, and the step without a trained token changes no weight, moment "
         "or count; the mean is over trained tokens of the step") {
  static const char *const modes[] = {"--shuffle off", "--shuffle off --param_dtype bf16 --strategy zero2",
                                      "--shuffle off --optimizer muon --param_dtype fp16 --batch_size 2"};
  static Corpus plain, all, some;
  test_corpus(&plain, 5003, 12 * 21 * 3 + 1, 500);
  all = some = plain;
  chat_mask(&all.split[SPLIT_TRAIN], chat_all);
  chat_mask(&some.split[SPLIT_TRAIN], chat_some);
  for (const char *mode : modes) {
    WorldResult r, one, masked;
    const bool first = world_run(&one, &plain, 1, 1, 3, mode, true);
    world_run(&masked, &all, 1, 1, 3, mode, true);
    if (first)
      EXPECT(!memcmp(&one, &masked, sizeof one), "%s: a mask of all tokens: losses %.17g and %.17g", mode, one.loss[2],
             masked.loss[2]);
    for (int world = 1; world <= 3; world++) {
      const bool here = world_run(&r, &some, world, 1, 3, mode, true);
      if (world == 1) one = r, MPI_Bcast(&one, sizeof one, MPI_BYTE, 0, MPI_COMM_WORLD);
      else if (here) EXPECT(!memcmp(&one, &r, sizeof one), "N=%d %s: losses %.17g (%.17g), weights %s", world, mode,
                            r.loss[2], one.loss[2], r.weights == one.weights ? "equal" : "differ");
    }
    EXPECT(one.loss[0] > 8 && one.loss[0] < 9 && one.loss[1] == 0 && one.norm[1] == 0,
           "%s: losses %g, %g, norm %g", mode, one.loss[0], one.loss[1], one.norm[1]);
  }
}

// Loss, gradient and state of one step of one rank.
static float *chat_step(Trainer *t, const Corpus *corpus, const char *extra, StepResult *r, int64_t *count) {
  Options o;
  test_options(&o, 1, "%s --shuffle off --dropout 0 --clip 0 %s", world_shapes, extra);
  trainer_open(t, &o, corpus, MPI_COMM_SELF, device_of(cpu_tables[0].ops), 1);
  *r = train_step(t, false);
  int64_t n = 0, at = 0;
  for (int p = 0; p < t->fsdp.lay.params; p++) n += t->fsdp.lay.param[p].numel_padded;
  float *all = (float *)malloc((size_t)n * sizeof(float));
  for (int p = 0; p < t->fsdp.lay.params; at += t->fsdp.lay.param[p++].numel_padded)
    fsdp_read_param(&t->fsdp, STATE_MASTER, p, all + at);
  *count = n;
  return all;
}
TEST_MPI(chat_mean_is_of_trained_tokens, 1,
         "the loss of a masked step is the mean over its trained tokens, summed here from an evaluation of the same "
         "tokens; a step of masked tokens alone leaves weights, moments and AdamW's count as they were") {
  static Trainer t;
  static Corpus plain, some, none;
  StepResult r;
  int64_t n, tokens = 0;
  test_corpus(&plain, 5003, 12 * 21 * 3 + 1, 12 * 21 + 1);
  plain.split[SPLIT_VALID].tokens = plain.split[SPLIT_TRAIN].tokens;
  some = none = plain;
  chat_mask(&some.split[SPLIT_TRAIN], chat_some);
  chat_mask(&none.split[SPLIT_TRAIN], chat_none);
  chat_mask(&some.split[SPLIT_VALID], chat_some);
  for (int64_t i = 1; i <= 12 * 21; i++) tokens += chat_some(i);
  free(chat_step(&t, &some, "--lr 1e-20", &r, &n));
  const EvalResult e = trainer_eval(&t, &some.split[SPLIT_VALID]);
  EXPECT(e.tokens == tokens && r.untrained == 12 * 21 - tokens, "%lld tokens, %lld, of %lld", (long long)e.tokens,
         (long long)r.untrained, (long long)tokens);
  EXPECT(fabs(r.loss - e.loss) < 1e-6 * e.loss, "loss %.9g, evaluated %.9g", r.loss, e.loss);       // fp32 rounding
  trainer_close(&t);
  float *after = chat_step(&t, &none, "", &r, &n), *first = (float *)calloc((size_t)n, sizeof(float));
  const StepState s = *t.host.state;
  EXPECT(!r.skipped && r.loss == 0 && r.grad_norm == 0 && s.updates == 0 && s.beta1_power == 1 && t.step == 1,
         "loss %g, %lld updates", r.loss, (long long)s.updates);
  trainer_close(&t);
  Options o;
  test_options(&o, 1, "%s", world_shapes);
  trainer_open(&t, &o, &plain, MPI_COMM_SELF, device_of(cpu_tables[0].ops), 1);
  int64_t at = 0;
  for (int p = 0; p < t.fsdp.lay.params; at += t.fsdp.lay.param[p++].numel_padded)
    fsdp_read_param(&t.fsdp, STATE_MASTER, p, first + at);
  EXPECT(!memcmp(first, after, (size_t)n * sizeof(float)), "the weights moved");
  trainer_close(&t);
}

// llmq's token file of `count` tokens. version 1: without masks.
static void chat_llmq_file(const char *path, int version, int count, int masks, long extra) {
  uint8_t b[4096] = {};
  int32_t header[7] = {0, 0, version, 4, count, 300, masks};
  memcpy(header, "BIN.TOK\n", 8);
  memcpy(b, header, sizeof header);
  for (int32_t i = 0; i < count; i++) {
    const int32_t id = i * 37 % 299;
    memcpy(b + 1024 + 4 * i, &id, 4);
    if (masks == 1 && chat_some(i)) b[1024 + 4 * count + i / 8] |= (uint8_t)(1 << i % 8);
  }
  data_write(path, b, (size_t)(1024 + 4 * count + (masks == 1 ? (count + 7) / 8 : 0) + extra));
}
TEST(chat_llmq_files,
     "llmq's token files, with and without masks, hold the tokens and masks that were written, here and as passed to "
     "other ranks; damaged ones are refused by name; another mask is another corpus") {
  const char *train = data_path("q_train.bin"), *valid = data_path("q_val.bin");
  uint64_t hash[2];
  for (int masks = 0; masks < 2; masks++) {
    Corpus c, there;
    DataError e;
    chat_llmq_file(train, 1 + masks, 203, masks, 0);
    chat_llmq_file(valid, 2, 99, masks, 0);
    REQUIRE(corpus_load(&c, data_options(train), &e), "%s", e.text);
    void *image = calloc(1, corpus_image_bytes(&c));
    corpus_image(&c, image);
    REQUIRE(corpus_adopt(&there, image, corpus_image_bytes(&c), &e), "%s", e.text);
    hash[masks] = c.hash;
    for (const Split *s : {&c.split[SPLIT_TRAIN], &there.split[SPLIT_TRAIN]}) {
      int32_t inputs[16], targets[16];
      EXPECT(s->tokens_numel == 203 && s->masked == masks, "%lld tokens", (long long)s->tokens_numel);
      for (int i = 0; i < 203; i++)
        EXPECT(split_token(s, i) == i * 37 % 299 && split_trained(s, i) == (!masks || chat_some(i)), "token %d", i);
      eval_window_fill(s, 16, 1, inputs, targets);
      for (int t = 0; t < 16; t++)
        EXPECT(targets[t] == (masks && !chat_some(17 + t) ? -1 : (17 + t) * 37 % 299), "target %d: %d", t, targets[t]);
    }
    corpus_free(&there);
    corpus_free(&c);
  }
  EXPECT(hash[0] != hash[1], "one hash");
  const CorpusOptions o = data_options(train);
  chat_llmq_file(train, 3, 203, 1, 0); data_expect_refused(o, 3, "version 3", "expected: version 1 or 2");
  chat_llmq_file(train, 2, 203, 1, -1); data_expect_refused(o, 3, "and a mask", "1862 bytes, but it has 1861");
  chat_llmq_file(train, 2, 203, 0, 1); data_expect_refused(o, 3, "counts 203 tokens of 4 bytes, ", "it has 1837");
  uint8_t none[1024 + 12 + 1] = {'B', 'I', 'N', '.', 'T', 'O', 'K', '\n', 2, 0, 0, 0, 4, 0, 0, 0, 3};
  none[24] = 1;
  data_write(train, none, sizeof none);
  data_expect_refused(o, 2, "none of its 3 tokens is trained on", "q_train.bin");
}
