// test_packed.h: conversations in training: masks, the mean over trained tokens, several in one sequence.
#pragma once

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
  for (int p = 0; p < t->fsdp->lay.params; p++) n += param_numel_padded(&t->fsdp->lay.param[p]);
  float *all = (float *)malloc((size_t)n * sizeof(float));
  for (int p = 0; p < t->fsdp->lay.params; at += param_numel_padded(&t->fsdp->lay.param[p++]))
    fsdp_read_param(t->fsdp, STATE_MASTER, p, all + at);
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
  EXPECT(!r.skipped && r.loss == 0 && r.grad_norm == 0 && s.updates == 0 && s.beta1_power == 1 && t.run.step == 1,
         "loss %g, %lld updates", r.loss, (long long)s.updates);
  trainer_close(&t);
  Options o;
  test_options(&o, 1, "%s", world_shapes);
  trainer_open(&t, &o, &plain, MPI_COMM_SELF, device_of(cpu_tables[0].ops), 1);
  int64_t at = 0;
  for (int p = 0; p < t.fsdp->lay.params; at += param_numel_padded(&t.fsdp->lay.param[p++]))
    fsdp_read_param(t.fsdp, STATE_MASTER, p, first + at);
  EXPECT(!memcmp(first, after, (size_t)n * sizeof(float)), "the weights moved");
  trainer_close(&t);
}
// One step's loss and gradients of sequences in t->host, both times rows.
static double chat_gradients(Trainer *t, const char *options, const Ops *ops, const Split *s, bool packed,
                             float **grads, int64_t *n) {
  static Corpus corpus;
  Options o;
  const int documents = sizeof chat_documents / sizeof *chat_documents;        // the first ones fill the first sequence
  test_options(&o, 1, "--data x.jsonl %s --seq_len %d --batch_size %d --vocab_size 101 --dropout 0", options, CHAT_T,
               packed ? 1 : documents);
  corpus = Corpus{};
  corpus.vocab_size = 101;
  corpus.split[SPLIT_TRAIN] = corpus.split[SPLIT_VALID] = *s;
  trainer_open(t, &o, &corpus, MPI_COMM_SELF, device_of(ops), 2);
  const int64_t T = CHAT_T;
  const int B = (int)o.batch_size;
  const Packing *p = &t->run.packing[SPLIT_TRAIN];
  trainer_carve(t, B, (int)T, PASS_TRAIN);
  if (packed) packing_fill(p, 0, t->host.inputs, t->host.targets, t->host.starts);
  for (int d = 0; d < documents && !packed; d++) {
    const uint32_t next = p->next[d], head = p->head[0];
    p->next[d] = PACKING_NONE, p->head[0] = (uint32_t)d;         // alone
    packing_fill(p, 0, t->host.inputs + d * T, t->host.targets + d * T, t->host.starts + d * T);
    p->next[d] = next, p->head[0] = head;
  }
  *t->host.input = StepInput{};
  trainer_step_begin(t);
  trainer_load_batch(t, 0, B, (int)T);
  gpt_forward_backward(t, Microbatch{0, PASS_TRAIN}, 0);
  fsdp_reduce_wait(t->fsdp);
  fsdp_returns_wait(t->fsdp);
  t->ctx.ops->copy(&t->ctx, t->host.losses, t->buffers.exchange + 1, sizeof(double));
  t->ctx.ops->sync(&t->ctx);
  *n = 0;
  for (int i = 0; i < t->fsdp->lay.params; i++) *n += param_numel_padded(&t->fsdp->lay.param[i]);
  *grads = (float *)malloc((size_t)*n * sizeof(float));
  float *at = *grads;
  for (int i = 0; i < t->fsdp->lay.params; at += param_numel_padded(&t->fsdp->lay.param[i++]))
    fsdp_read_param(t->fsdp, STATE_GRAD, i, at);
  return t->host.losses[0] * (double)B;
}

TEST_MPI(chat_packed_is_separate, 1,
         "conversations packed into one sequence have the loss and gradients of each in a sequence of its own, to "
         "fp32's rounding: learned positions and rope, grouped heads, qk norms, windows, each CPU table, CUDA "
         "emulated") {
  static Trainer t;
  static const char *const models[] = {
      "--n_layer 2 --n_head 3 --n_embd 36 --n_positions 180",
      "--n_layer 2 --n_head 4 --n_kv_head 2 --head_size 10 --n_embd 36 --n_positions 180 --norm rmsnorm "
      "--position rope --mlp swiglu --bias none --qk_norm before --window 9 --window_skip 2 --window_theta 50"};
  int length[36];
  for (int i = 0; i < 36; i++) length[i] = chat_documents[i % 6] + 1;
  Split s = chat_split(length, 36, 101);
  for (const char *model : models)
    for (int i = 0;; i++) {
      const Ops *ops = op_table(i) ? op_table(i) : &ops_cuda_emulated ? &ops_cuda_emulated : NULL;
      const bool last = !op_table(i);
      if (!ops) break;
      float *apart, *packed;
      int64_t n;
      const double want = chat_gradients(&t, model, ops, &s, false, &apart, &n);
      trainer_close(&t);
      const double loss = chat_gradients(&t, model, ops, &s, true, &packed, &n);
      EXPECT(fabs(loss - want) < 1e-5 * want, "%s: loss %.9g, apart %.9g", ops->name, loss, want);
      int64_t at = 0;
      for (int k = 0; k < t.fsdp->lay.params; k++) {
        const Param *q = &t.fsdp->lay.param[k];
        double worst = 0, largest = 0;
        for (int64_t j = at; j < at + param_numel_padded(q); j++) {
          largest = fmax(largest, fabs(6.0 * (double)apart[j]));
          worst = fmax(worst, fabs((double)packed[j] - 6.0 * (double)apart[j]));
        }
        // Both are within 1e-5 of exact gradients, as those of fixtures are of PyTorch's (test_train.h).
        EXPECT(worst <= 2e-5 * largest, "%s %s: off by %.3g of its largest, %.3g", ops->name, q->name, worst / largest,
               largest);
        EXPECT(largest > 0, "%s %s: no gradient", ops->name, q->name);
        at += param_numel_padded(q);
      }
      trainer_close(&t);
      free(apart);
      free(packed);
      if (last) break;
    }
  lent_split_free(&s);
}
