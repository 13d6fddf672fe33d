// test_train.h: the model and its optimizer against PyTorch's numbers (dev/reference.py makes dev/fixtures/gpt_*), and
// properties that training must have for any numbers: overfit a batch, approach a known entropy, not depend on the
// batch size.

static const Start fresh = {};                   // of runs that start from nothing

// ---- a trainer for tests -------------------------------------------------------------------------------------------
// Options from one string of arguments; ends the test if they are rejected.
static inline void test_options(Options *o, int world, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static inline void test_options(Options *o, int world, const char *fmt, ...) {
  char text[1024], *argv[96] = {(char *)"test"}, *save = NULL;
  Error error = {};
  int argc = 1;
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  for (char *word = strtok_r(text, " ", &save); word; word = strtok_r(NULL, " ", &save)) argv[argc++] = word;
  if (!options_parse(o, &trainer_table, argc, argv, &error) || !options_resolve(o, world, world, &error)) {
    test_fail(__FILE__, __LINE__, "options: %s", error.text);
    exit(TEST_EXIT_FAILED);
  }
}
// A corpus of `numel_` seeded random tokens below `vocab`; its validation split is the last `valid` of them.
static inline void test_corpus(Corpus *c, int vocab, int64_t numel_, int64_t valid) {
  memset(c, 0, sizeof *c);
  int32_t *tokens = (int32_t *)malloc(sizeof(int32_t) * (size_t)numel_);
  uint64_t state = 12345;
  for (int64_t i = 0; i < numel_; i++) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    tokens[i] = (int32_t)((state >> 33) % (uint64_t)vocab);
  }
  c->vocab_size = vocab;
  c->split[SPLIT_TRAIN].tokens = tokens;
  c->split[SPLIT_TRAIN].token_bytes = 4;
  c->split[SPLIT_TRAIN].tokens_numel = numel_;
  c->split[SPLIT_VALID] = c->split[SPLIT_TRAIN];
  c->split[SPLIT_VALID].tokens = tokens + numel_ - valid;
  c->split[SPLIT_VALID].tokens_numel = valid;
  snprintf(c->source, sizeof c->source, "test tokens");
}

struct Fixture { SafetensorsFile file; Corpus corpus; Trainer trainer; };

static inline double fixture_number(Fixture *x, const char *key) {
  const char *v = safetensors_metadata(&x->file, key);
  if (!v) { test_fail(__FILE__, __LINE__, "fixture has no %s", key); exit(TEST_EXIT_FAILED); }
  return atof(v);
}
static inline Tensor fixture_tensor(Fixture *x, const char *kind, const char *name, Dtype dtype) {
  char key[128];
  Tensor t = {};
  snprintf(key, sizeof key, "%s%s", kind, name);
  if (!safetensors_find(&x->file, key, dtype, &t)) {
    test_fail(__FILE__, __LINE__, "fixture: %s", x->file.error);
    exit(TEST_EXIT_FAILED);
  }
  return t;
}
// Opens dev/fixtures/gpt_NAME and a one-rank trainer of its shapes with its parameters, on `ops`.
static inline void fixture_open(Fixture *x, const char *name, const Ops *ops, const char *extra) {
  char path[256];
  snprintf(path, sizeof path, "dev/fixtures/gpt_%s.safetensors", name);
  if (!safetensors_open(&x->file, path)) { test_fail(__FILE__, __LINE__, "%s", x->file.error); exit(TEST_EXIT_FAILED); }
  Options o;
  test_options(&o, 1,
               "--n_layer %.0f --n_head %.0f --n_embd %.0f --n_positions %.0f --seq_len %.0f --vocab_size %.0f "
               "--batch_size %.0f "
               "--tie_head %s --schedule constant --warmup 0 %s",
               fixture_number(x, "n_layer"), fixture_number(x, "n_head"), fixture_number(x, "n_embd"),
               fixture_number(x, "n_positions"), fixture_number(x, "seq_len"), fixture_number(x, "vocab_size"),
               fixture_number(x, "batch"), fixture_number(x, "tied") != 0 ? "on" : "off", extra);
  test_corpus(&x->corpus, (int)o.vocab_size, 4000, 100);
  trainer_open(&x->trainer, &o, &x->corpus, MPI_COMM_SELF, device_of(ops), 2);
  Fsdp *f = x->trainer.fsdp;
  for (int p = 0; p < f->lay.params; p++)
    fsdp_write_param(f, STATE_MASTER, p, (const float *)fixture_tensor(x, "param.", f->lay.param[p].name, F32).data);
  fsdp_publish(f);
  fsdp_step_end(f);
}
static inline void fixture_close(Fixture *x) {
  trainer_close(&x->trainer);
  safetensors_close(&x->file);
  free((void *)x->corpus.split[SPLIT_TRAIN].tokens);
}
static inline double fixture_forward_backward(Fixture *x, const int32_t *inputs, const int32_t *targets) {
  Trainer *t = &x->trainer;
  const int B = (int)t->opt.batch_size, T = (int)t->model.T;
  trainer_carve(t, B, T, PASS_TRAIN);
  memcpy(t->host.inputs, inputs, sizeof(int32_t) * (size_t)(B * T));
  memcpy(t->host.targets, targets, sizeof(int32_t) * (size_t)(B * T));
  trainer_step_begin(t);
  trainer_load_batch(t, 0, B, T);
  gpt_forward_backward(t, Microbatch{0, PASS_TRAIN}, 0);
  fsdp_reduce_wait(t->fsdp);
  fsdp_returns_wait(t->fsdp);
  t->ctx.ops->copy(&t->ctx, t->host.losses, t->buffers.exchange + 1, sizeof(double));
  t->ctx.ops->sync(&t->ctx);
  return t->host.losses[0];
}
// Every parameter's `state` against the fixture's tensors of `kind`, relative to each tensor's largest magnitude.
static inline void fixture_compare(Fixture *x, ShardState state, const char *kind, double scale, double bound) {
  Fsdp *f = x->trainer.fsdp;
  for (int p = 0; p < f->lay.params; p++) {
    Tensor want = fixture_tensor(x, kind, f->lay.param[p].name, F32);
    float *got = (float *)malloc(sizeof(float) * (size_t)param_numel_padded(&f->lay.param[p]));
    fsdp_read_param(f, state, p, got);
    double worst = 0, largest = 0;
    for (int64_t i = 0; i < numel(want); i++) {
      const double w = ((const float *)want.data)[i];
      worst = fmax(worst, fabs(got[i] * scale - w));
      largest = fmax(largest, fabs(w));
      if (got[i] != got[i]) worst = INFINITY;
    }
    EXPECT(worst <= bound * largest, "%s %s%s: off by %.3g of its largest magnitude %.3g, bound %.0e",
           x->trainer.ctx.ops->name, kind, f->lay.param[p].name, worst / largest, largest, bound);
    for (int64_t i = numel(want); i < param_numel_padded(&f->lay.param[p]); i++)
      EXPECT(got[i] == 0, "%s%s: padding element %lld is %g", kind, f->lay.param[p].name, (long long)i, got[i]);
    free(got);
  }
}
static const char *const fixture_names[] = {"tied", "untied", "head64"};

TEST_MPI(gpt_gradients_equal_pytorch, 1,
         "fp32 loss within 1e-6 and every gradient within 1e-5 of PyTorch's, on each instruction set") {
  for (const char *name : fixture_names) for (int i = 0; i <= cpu_best_table(); i++) {
    static Fixture x;
    fixture_open(&x, name, cpu_tables[i].ops, "");
    const double loss = fixture_forward_backward(&x, (const int32_t *)fixture_tensor(&x, "inputs", "", I32).data,
                                                 (const int32_t *)fixture_tensor(&x, "targets", "", I32).data);
    const double want = *(const float *)fixture_tensor(&x, "loss", "", F32).data;
    EXPECT(fabs(loss / want - 1) <= 1e-6, "%s on %s: loss %.9g, PyTorch's %.9g", name, cpu_tables[i].name, loss, want);
    fixture_compare(&x, STATE_GRAD, "grad.", 1, 1e-5);
    fixture_close(&x);
  }
}

TEST_MPI(optimizers_equal_pytorch, 1,
         "AdamW, SGD and clipping on PyTorch's own gradients give its parameters within 1e-5") {
  for (const char *name : {"tied", "untied"}) for (const char *kind : {"adamw", "sgd"}) {
    static Fixture x;
    char extra[200], prefix[16];
    snprintf(extra, sizeof extra, "--optimizer %s", kind);
    fixture_open(&x, name, cpu_tables[cpu_best_table()].ops, extra);
    Fsdp *&f = x.trainer.fsdp;
    Options *o = &x.trainer.opt;
    o->beta1 = fixture_number(&x, "beta1");
    o->beta2 = fixture_number(&x, "beta2");
    o->eps = fixture_number(&x, "eps");
    o->momentum = fixture_number(&x, "momentum");
    o->weight_decay = fixture_number(&x, "weight_decay");
    for (int p = 0; p < f->lay.params; p++)
      fsdp_write_param(f, STATE_GRAD, p, (const float *)fixture_tensor(&x, "grad.", f->lay.param[p].name, F32).data);
    StepState *s = x.trainer.buffers.state;                        // one CPU rank: device memory is the host's
    s->in.lr = (float)fixture_number(&x, strcmp(kind, "sgd") ? "lr" : "sgd_lr");
    s->grad_scale = 1;
    for (int step = 1; step <= (int)fixture_number(&x, "opt_steps"); step++) {
      s->bias_correction1 = (float)(1 - pow((float)o->beta1, step));
      s->bias_correction2 = (float)(1 - pow((float)o->beta2, step));
      fsdp_update(f, optimizer_args(o), NULL);
    }
    snprintf(prefix, sizeof prefix, "%s.", kind);
    fixture_compare(&x, STATE_MASTER, prefix, 1, 1e-5);
    if (safetensors_metadata(&x.file, "clip_norm")) {
      int64_t limbs[NORM_LIMBS] = {};
      fsdp_norm_accumulate(f, limbs);
      // The clipped gradient is step_decide's factor times the gradient.
      Exchange e = {};
      double record[sizeof e / 8 + 1] = {}, losses[1];
      memcpy(e.limbs, limbs, sizeof e.limbs);
      memcpy(record, &e, sizeof e);
      s->loss_scale = 1;
      const StepRule rule = {1, 1, 0.9f, 0.9f, fixture_number(&x, "clip_norm"), false};
      step_decide(&x.trainer.ctx, s, losses, record, rule);
      fixture_compare(&x, STATE_GRAD, "clip.", s->grad_scale, 1e-5);
    }
    fixture_close(&x);
  }
}

// Losses of ten AdamW steps with clipping, and those of PyTorch's fp64 run.
static inline void ten_steps(const char *name, const Ops *ops, const char *extra, double loss[10], double want[10]) {
  static Fixture x;
  fixture_open(&x, name, ops, extra);
  Trainer *t = &x.trainer;
  t->opt.lr = fixture_number(&x, "lr");
  t->opt.beta1 = fixture_number(&x, "beta1");
  t->opt.beta2 = fixture_number(&x, "beta2");
  t->opt.eps = fixture_number(&x, "eps");
  t->opt.weight_decay = fixture_number(&x, "weight_decay");
  t->opt.clip = fixture_number(&x, "train_clip");
  const float *losses = (const float *)fixture_tensor(&x, "losses", "", F32).data;
  const int32_t *inputs = (const int32_t *)fixture_tensor(&x, "inputs10", "", I32).data;
  const int32_t *targets = (const int32_t *)fixture_tensor(&x, "targets10", "", I32).data;
  const int64_t n = t->opt.batch_size * t->model.T;
  for (int step = 0; step < 10; step++) {
    *t->host.input = StepInput{(uint32_t)step, (float)t->opt.lr, 0, 0};
    fixture_forward_backward(&x, inputs + step * n, targets + step * n);
    trainer_update(t);
    loss[step] = t->host.state->loss;
    want[step] = losses[step];
  }
  fixture_close(&x);
}
TEST_MPI(ten_steps_equal_pytorch, 1, "losses of ten AdamW steps with clipping stay within 1e-5 of PyTorch's fp64 run") {
  for (const char *name : {"tied", "untied"}) for (int i = 0; i <= cpu_best_table(); i++) {
    double loss[10], want[10];
    ten_steps(name, cpu_tables[i].ops, "", loss, want);
    for (int step = 0; step < 10; step++)
      EXPECT(fabs(loss[step] / want[step] - 1) <= 1e-5, "%s on %s, step %d: loss %.9g, PyTorch's %.9g", name,
             cpu_tables[i].name, step, loss[step], want[step]);
  }
}

TEST_MPI(update_unscales_and_clips, 1,
         "plain SGD moves each weight by lr x gradient / (microbatches x loss scale) x clip / norm, nothing else") {
  static Corpus corpus;
  static Trainer t;
  test_corpus(&corpus, 97, 2000, 32);
  for (const char *extra : {"--clip 0.01", "--clip 0", "--clip 0.01 --param_dtype fp16 --loss_scale 1024"}) {
    Options o;
    test_options(&o, 1, "--n_layer 1 --n_head 2 --n_embd 24 --seq_len 16 --vocab_size 97 --batch_size 2 --grad_accum 3 "
                 "--optimizer sgd --momentum 0 --weight_decay 0 --lr 0.5 --schedule constant --warmup 0 %s", extra);
    trainer_open(&t, &o, &corpus, MPI_COMM_SELF, device_of(agree_on_ops(&o, MPI_COMM_SELF)), 2);
    Fsdp *&f = t.fsdp;
    const int64_t n = f->lay.state_numel;                              // one rank: its shards are everything
    float *before = (float *)malloc(sizeof(float) * (size_t)n);
    for (int u = 0; u < f->lay.units; u++) for (int i = 0; i < f->lay.unit[u].pieces; i++)
      memcpy(before + f->lay.unit[u].state_base + f->lay.unit[u].piece[i].state_at,
             fsdp_piece_state(f, STATE_MASTER, u, i),
             sizeof(float) * (size_t)f->lay.unit[u].piece[i].numel);
    const double scale = 3 * (double)t.run.loss_scale;
    const StepResult r = train_step(&t, false);
    double squares = 0;
    for (int64_t i = 0; i < n; i++) squares += (double)f->shards.grads[i] * f->shards.grads[i];
    const double norm = sqrt(squares) / scale, factor = (o.clip > 0 ? fmin(1, o.clip / (norm + 1e-6)) : 1) / scale;
    EXPECT(fabs(r.grad_norm / norm - 1) < 1e-12, "%s: the norm is %.17g, must be %.17g", extra, r.grad_norm, norm);
    for (int u = 0; u < f->lay.units; u++) for (int p = 0; p < f->lay.unit[u].pieces; p++)
      for (int64_t i = 0; i < f->lay.unit[u].piece[p].numel; i++) {
        const int64_t at = f->lay.unit[u].state_base + f->lay.unit[u].piece[p].state_at + i;
        const double b = before[at], move = 0.5 * factor * f->shards.grads[at];
        // Roundings: factor to fp32, gradient times factor, and the fused subtraction: 2 of the move, 1 of the result.
        const double bound = 0x1p-24 * (2.1 * fabs(move) + fabs(b) + fabs(move));
        const double got = fsdp_piece_state(f, STATE_MASTER, u, p)[i];
        EXPECT(fabs(got - (b - move)) <= bound, "%s: unit %d element %lld: %.9g, must be %.9g", extra, u, (long long)i,
               got, b - move);
      }
    free(before);
    trainer_close(&t);
  }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}

// The gradients of the first microbatch of a fresh model, all parameters one after the other, unscaled. malloc'ed.
static inline float *first_gradients(const Corpus *corpus, const Ops *ops, const char *dtype) {
  static Trainer t;
  Options o;
  test_options(
      &o, 1,
      "--n_layer 3 --n_head 4 --n_embd 128 --seq_len 64 --vocab_size 500 --batch_size 8 --param_dtype %s --seed 3",
      dtype);
  trainer_open(&t, &o, corpus, MPI_COMM_SELF, device_of(ops), 2);
  trainer_carve(&t, 8, 64, PASS_TRAIN);
  microbatch_fill(&t.sampler, 0, 0, t.host.inputs, t.host.targets);
  trainer_step_begin(&t);
  trainer_load_batch(&t, 0, 8, 64);
  gpt_forward_backward(&t, Microbatch{0, PASS_TRAIN}, 0);
  fsdp_reduce_wait(t.fsdp);
  int64_t total = 0;
  for (int p = 0; p < t.fsdp->lay.params; p++) total += param_numel_padded(&t.fsdp->lay.param[p]);
  float *all = (float *)malloc(sizeof(float) * (size_t)total), *at = all;
  const FsdpLayout *lay = &t.fsdp->lay;
  for (int p = 0; p < lay->params; at += param_numel_padded(&lay->param[p++]))
    fsdp_read_param(t.fsdp, STATE_GRAD, p, at);
  for (int64_t i = 0; i < total; i++) all[i] /= t.run.loss_scale;
  trainer_close(&t);
  return all;
}

TEST_MPI(half_gradients_follow_fp32, 1,
         "bf16 and fp16: every gradient tensor has cosine >= 0.999 with fp32's, norm within 1 %") {
  static Corpus corpus;
  test_corpus(&corpus, 500, 8 * 64 + 1, 100);
  float *want = first_gradients(&corpus, cpu_tables[0].ops, "fp32");
  const ModelShape shape = model_shape_gpt2(3, 4, 128, 128, 500, true, 0);     // positions: the preset's
  const Model m = model_of_shape(&shape, 64);
  int params;
  Param *param = model_params(&m, &params);
  for (const char *dtype : {"bf16", "fp16"}) for (int i = 0; i <= cpu_best_table(); i++) {
    float *got = first_gradients(&corpus, cpu_tables[i].ops, dtype);
    for (int64_t p = 0, at = 0; p < params; p++) {
      const int64_t n = param[p].padded_rows * (param[p].ndim == 2 ? param[p].shape[1] : 1);
      double gw = 0, gg = 0, ww = 0;
      for (int64_t k = at; k < at + n; k++) {
        gw += (double)got[k] * want[k];
        gg += (double)got[k] * got[k];
        ww += (double)want[k] * want[k];
      }
      at += n;
      const double cosine = gw / sqrt(gg * ww), ratio = sqrt(gg / ww);
      EXPECT(cosine >= 0.999 && fabs(ratio - 1) <= 0.01, "%s on %s, %s: cosine %.6f, norm ratio %.4f", dtype,
             cpu_tables[i].name, param[p].name, cosine, ratio);
    }
    free(got);
  }
  free(param);
  free(want);
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}

// ---- properties of training -----------------------------------------------------------------------------------------
TEST_MPI(one_batch_is_overfitted, 1,
         "training on one batch of 64 random tokens drives the loss from ln V to nearly zero") {
  static Corpus corpus;
  static Trainer t;
  Options o;
  for (const char *dtype : {"fp32", "bf16", "fp16"}) {
    test_options(
        &o, 1,
        "--n_layer 2 --n_head 2 --n_embd 48 --seq_len 16 --vocab_size 97 --batch_size 4 --lr 0.01 --weight_decay 0 "
        "--schedule constant --warmup 10 --epochs 250 --param_dtype %s",
        dtype);
    test_corpus(&corpus, 97, 4 * 16 + 1, 32);
    trainer_open(&t, &o, &corpus, MPI_COMM_SELF, device_of(agree_on_ops(&o, MPI_COMM_SELF)), 2);
    double first = 0, last = 0;
    while (t.run.step < t.run.steps_total) { last = train_step(&t, false).loss; if (t.run.step == 1) first = last; }
    EXPECT(fabs(first - log(97.0)) < 0.2, "%s: the first loss is %g, ln V is %g", dtype, first, log(97.0));
    EXPECT(last < 0.02, "%s: the loss after %lld steps is %g", dtype, (long long)t.run.step, last);
    trainer_close(&t);
    free((void *)corpus.split[SPLIT_TRAIN].tokens);
  }
}

TEST_MPI(generated_corpus_reaches_its_entropy, 1,
         "a model trained on the generated corpus comes within 0.05 nats of its entropy, not below") {
  static Corpus corpus;
  static Trainer t;
  Options o;
  test_options(&o, 1,
               "--cache= --data generated --n_layer 2 --n_head 4 --n_embd 32 --seq_len 32 --batch_size 16 --lr 0.008 "
               "--max_steps 1600 --epochs 1000 --weight_decay 0.01");
  load_corpus(&corpus, &o, &fresh, MPI_COMM_SELF, 1);
  trainer_open(&t, &o, &corpus, MPI_COMM_SELF, device_of(agree_on_ops(&o, MPI_COMM_SELF)), 1);
  while (t.run.step < t.run.steps_total) train_step(&t, false);
  const EvalResult e = trainer_eval(&t, &corpus.split[SPLIT_VALID]);
  // The source's own loss on this split; a model is below it only by chance, by about 1 / sqrt(tokens).
  const double oracle = corpus.split[SPLIT_VALID].oracle_nats;
  EXPECT(fabs(oracle - corpus.entropy_nats) < 0.05, "the source pays %.4f here, its entropy is %.4f", oracle,
         corpus.entropy_nats);
  EXPECT(e.loss > oracle - 4 / sqrt((double)e.tokens), "validation loss %.4f is below the source's own %.4f", e.loss,
         oracle);
  EXPECT(e.loss < oracle + 0.05, "validation loss %.4f, the source's own %.4f, after %lld steps", e.loss, oracle,
         (long long)t.run.step);
  trainer_close(&t);
  corpus_free(&corpus);
}

TEST_MPI(random_data_stays_at_uniform, 1,
         "on random tokens the validation loss stays near ln V: nothing leaks from the future") {
  static Corpus corpus;
  static Trainer t;
  Options o;
  test_options(&o, 1,
               "--cache= --data random --vocab_size 50 --n_layer 1 --n_head 2 --n_embd 32 --seq_len 32 --batch_size 16 "
               "--lr 0.003 --max_steps 60");
  load_corpus(&corpus, &o, &fresh, MPI_COMM_SELF, 2);
  trainer_open(&t, &o, &corpus, MPI_COMM_SELF, device_of(agree_on_ops(&o, MPI_COMM_SELF)), 2);
  while (t.run.step < t.run.steps_total) train_step(&t, false);
  const EvalResult e = trainer_eval(&t, &corpus.split[SPLIT_VALID]);
  EXPECT(e.loss > log(50.0) - 0.01 && e.loss < log(50.0) + 0.1, "validation loss %.4f, ln V %.4f", e.loss, log(50.0));
  trainer_close(&t);
  corpus_free(&corpus);
}

TEST(learning_rate_schedules,
     "cosine, linear, constant, step and wsd have their defining values at start, middle and end") {
  Options o;
  Error error = {};
  char *argv[] = {(char *)"test", (char *)"--lr", (char *)"1", (char *)"--warmup", (char *)"10"};
  REQUIRE(options_parse(&o, &trainer_table, 5, argv, &error), "%s", error.text);
  const struct { const char *schedule; int64_t step; double want;
  } cases[] = {{"cosine", 0, 0.1},
               {"cosine", 9, 1.0},
               {"cosine", 10, 1.0},
               {"cosine", 60, 0.55},
               {"cosine", 110, 0.1},
               {"linear", 60, 0.55},
               {"linear", 110, 0.1},
               {"constant", 109, 1.0},
               {"step", 39, 0.7 * 0.7 * 0.7},
               {"step", 40, 0.7 * 0.7 * 0.7 * 0.7},
               {"wsd", 60, 1.0},
               {"wsd", 88, 1.0},
               {"wsd", 99, 0.55},
               {"wsd", 110, 0.1}};
  for (const auto &c : cases) {
    option_pick(&o, OPT_schedule, c.schedule);
    const double got = learning_rate(&o, c.step, 110, 10);
    EXPECT(fabs(got - c.want) < 1e-12, "%s at step %lld: %.15g, must be %.15g", c.schedule, (long long)c.step, got,
           c.want);
  }
}

static inline void count_bytes(void *to, const uint8_t *, int) { (*(int *)to)++; }
TEST_MPI(head_serves_every_pass, 1,
         "logits exist for as many rows as training needs: evaluation and samples of other shapes, longer and "
         "shorter, need no more and give the same numbers") {
  static Corpus corpus;
  static Trainer t;
  static int32_t ids[310];
  test_corpus(&corpus, 50257, 4 * 64 * 2 + 1 + 700, 700);
  EvalResult first = {};
  for (const char *more : {"--test_batch_size 4", "--test_batch_size 5", "--test_batch_size 1", "--eval_only"}) {
    Options o;
    test_options(&o, 1, "--n_layer 1 --n_head 1 --n_embd 16 --seq_len 64 --n_positions 300 --vocab_size 50257 "
                 "--batch_size 4 %s", more);
    trainer_open(&t, &o, &corpus, MPI_COMM_WORLD, device_of(agree_on_ops(&o, MPI_COMM_WORLD)), 1);
    const EvalResult e = trainer_eval(&t, &corpus.split[SPLIT_VALID]);
    if (!first.tokens) first = e;
    EXPECT(e.loss == first.loss && e.tokens == first.tokens, "%s: loss %.17g over %lld, at first %.17g over %lld", more,
           e.loss, (long long)e.tokens, first.loss, (long long)first.tokens);
    int made = 0;
    trainer_sample(&t, ids, 255, 6, count_bytes, &made);         // past 256 rows, a chunk of training's 256
    trainer_sample(&t, ids, 299, 3, count_bytes, &made);
    EXPECT(made == 9, "%s: %d tokens made", more, made);
    trainer_close(&t);
  }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}

// In place of the op `copy`: the first copy of the last evaluation raises a signal on the last rank.
static struct {
  Trainer *t;
  void (*copy)(Ctx *c, void *to, const void *from, size_t bytes);
  int signal;                                    // 0: none, or it was raised
  int copies;                                    // of that evaluation on this rank
} first_eval;
static void first_copy_and_raise(Ctx *c, void *to, const void *from, size_t bytes) {
  const Trainer *t = first_eval.t;
  const bool last_eval = t->carved != PASS_TRAIN && t->run.step == t->run.steps_total;
  const int signal = last_eval && t->fsdp->mesh.rank == t->fsdp->mesh.world - 1 ? first_eval.signal : 0;
  if (signal) { first_eval.signal = 0; raise(signal); }
  first_eval.copies += last_eval;
  first_eval.copy(c, to, from, bytes);
}
TEST_MPI(first_a_signal_in_the_last_validation_ends_the_run, 2,
         "SIGTERM to one rank while the last validation runs ends it within two batches on all ranks: with a "
         "checkpoint where there is time for one, without under mpirun; what is resumed there validates first; "
         "without a signal the run continues to its end") {
  static const struct { int signal; bool under_mpirun; const char *options; int code; const char *reason; } rows[] = {
      {0, false, "", -1, NULL}, {SIGTERM, false, "--save_every -1", EXIT_SAVED, "saved"},
      {SIGTERM, true, "--save_every -1", EXIT_STOPPED, "signal"}};
  int whole = 0;                                 // copies of the evaluation that no signal ends
  for (const auto &row : rows) {
    static Trainer t;
    static Corpus corpus;
    static Saver saver;
    static Log log;
    static Ops table;
    Options o;
    char out[600];
    Error error = {};
    snprintf(out, sizeof out, "%s", cli_path(row.reason ? row.reason : "none"));
    mkdir(out, 0777);
    test_options(&o, 2, "--n_layer 1 --n_head 1 --n_embd 16 --seq_len 8 --n_positions 8 --vocab_size 97 --batch_size 1 "
                 "--max_steps 2 --out %s %s", out, row.options);
    test_corpus(&corpus, 97, 500, 100);
    trainer_open(&t, &o, &corpus, MPI_COMM_WORLD, device_of(agree_on_ops(&o, MPI_COMM_WORLD)), 1);
    saver_init(&saver, &t.run);
    log_begin(&log, &t.run, false, "", &error);
    EXPECT(!error.text[0], "%s", error.text);
    const Ops *ops = t.ctx.ops;
    table = *ops;
    first_eval.t = &t, first_eval.copy = ops->copy, first_eval.signal = row.signal;
    first_eval.copies = 0;
    table.copy = first_copy_and_raise;
    t.ctx.ops = &table;
    stop_asked = STOP_NOT;
    under_mpirun = row.under_mpirun;
    catch_stop_signals(true);
    const int code = trainer_loop(&t, test_run(&t, &saver, &log));
    t.ctx.ops = ops;
    EXPECT(code == row.code, "signal %d: exit code %d, must be %d", row.signal, code, row.code);
    EXPECT(t.run.step == 2 && saver.evaluated_step == (row.signal ? -1 : 2), "signal %d: step %lld, evaluated %lld",
           row.signal, (long long)t.run.step, (long long)saver.evaluated_step);
    if (row.code < 0) whole = first_eval.copies, log_close(&log, &t.run, "done");
    else EXPECT(first_eval.copies && first_eval.copies * 3 <= whole, "signal %d: %d copies of the %d of 6 batches",
                row.signal, first_eval.copies, whole);
    MPI_Barrier(MPI_COMM_WORLD);
    if (!t.fsdp->mesh.rank) cli_expect_end(out, out, row.reason ? row.reason : "done");
    if (row.code == EXIT_SAVED) {
      stop_asked = STOP_NOT;
      EXPECT(trainer_loop(&t, test_run(&t, &saver, &log)) == -1 && saver.evaluated_step == 2, "it does not continue");
      CheckpointState c = {};
      cJSON *json = NULL;
      int64_t bytes;
      char *text = checkpoint_text(cli_path("saved/ckpt/best"), &bytes, &error);
      if (text) json = checkpoint_parse("best", text, (size_t)bytes, &error);
      EXPECT(json && checkpoint_state("best", json, &c, &error) && c.evaluated_step == 2 &&
             c.valid_loss == saver.valid_loss && c.best_loss == c.valid_loss, "noted: evaluated %lld; %s",
             (long long)c.evaluated_step, error.text);
      cJSON_Delete(json);
      free(text);
      MPI_Barrier(MPI_COMM_WORLD);
    }
    EXPECT(!access(cli_path("saved/ckpt/step_00000002/trainer.json"), F_OK) || row.code != EXIT_SAVED, "not saved");
    trainer_close(&t);
    free((void *)corpus.split[SPLIT_TRAIN].tokens);
  }
}
