// test_not_finite.h: --on_nan. A value that is not finite is put into a run: into what an op writes, in one microbatch
// of one step; into a parameter; or into a row of the embedding that only some steps' tokens read, which a replayed
// graph does too. It must be named, and steps that are left out must leave the same bits on any number of ranks. Needs
// test_schedule.h and test_kill.h.
#pragma once

// ---- a value in what an op writes -----------------------------------------------------------------------------------
// at: see the wrappers below. once: only in the step itself, not when it runs again. what, place: of the answer.
struct NotFiniteCase { const char *at, *extra; bool once; int kind; const char *what, *place; };
static struct {
  const NotFiniteCase *k;
  const Ops *ops;
  int world, rank, microbatch, left;
  bool armed;
  float scale;                                   // with which the last pass was computed; of a CPU
} nan_in;
static inline bool nan_is_at(const char *at) {
  const bool here = nan_in.armed && !strcmp(nan_in.k->at, at) && (!nan_in.k->once || nan_in.left > 0) &&
                    flight.microbatch * nan_in.world + nan_in.rank == nan_in.microbatch;
  if (here) nan_in.left--;
  return here;
}
static inline void nan_put(Ctx *c, Tensor t, int64_t element, float value) {
  static float from;                             // read by the device when it comes to it
  static bf16 brain;
  static fp16 half;
  from = value;
  round_to(&brain, value);
  round_to(&half, value);
  const size_t b = dtype_bytes(t.dtype);
  const void *of[] = {&from, &brain, &half};
  nan_in.ops->copy(c, (char *)t.data + (size_t)element * b, of[t.dtype], b);
}
static inline void nan_attention_forward(Ctx *c, Tensor out, Tensor lse, Tensor qkv, int n_head, Dropout drop,
                                         Tensor starts) {
  nan_in.ops->attention->attention_forward(c, out, lse, qkv, n_head, drop, starts);
  if (!nan_in.ops->nccl) nan_in.scale = c->state->loss_scale;
  if (flight.stage == 2 && nan_is_at("attention")) nan_put(c, out, 7, NAN);
}
static inline void nan_matmul_forward(Ctx *c, Tensor out, Tensor in, Tensor weight, MatmulEpilogue e, QuantMatrix q) {
  nan_in.ops->matmul->matmul_forward(c, out, in, weight, e, q);
  if (flight.stage == 3 && e.gelu.data && nan_is_at("fc")) nan_put(c, out, 11, INFINITY);
}
static inline void nan_matmul_backward_weight(Ctx *c, Tensor dweight, Tensor dbias, Tensor dout, Tensor in,
                                              Accumulate mode, Tensor dout_sum) {
  nan_in.ops->matmul->matmul_backward_weight(c, dweight, dbias, dout, in, mode, dout_sum);
  if (flight.stage == 4 && dbias.data && in.shape[1] == 4 * dweight.shape[0] && nan_is_at("gradient"))
    nan_put(c, dweight, 5, -INFINITY);
}
static inline void nan_cross_entropy(Ctx *c, Tensor losses, Tensor dlogits, Tensor logits, Tensor targets,
                                     int64_t vocab, float scale, float softcap, Tensor weights) {
  nan_in.ops->loss->cross_entropy_forward_backward(c, losses, dlogits, logits, targets, vocab, scale, softcap, weights);
  if (nan_is_at("losses")) nan_put(c, losses, 2, INFINITY);
}
static inline void nan_accumulate(Ctx *c, Tensor sum, Summands in, Accumulate mode) {
  nan_in.ops->pointwise->accumulate(c, sum, in, mode);
  if (nan_in.armed && !strcmp(nan_in.k->at, "sum") && flight.microbatch == 0 && !nan_in.rank) nan_put(c, sum, 0, NAN);
}
static inline const Ops *nan_ops(const Ops *ops) {
  static Ops between;
  static AttentionOps attention;
  static MatmulOps matmul;
  static LossOps loss;
  static PointwiseOps pointwise;
  nan_in.ops = ops;
  between = *ops;
  between.attention = &(attention = *ops->attention);
  between.matmul = &(matmul = *ops->matmul);
  between.loss = &(loss = *ops->loss);
  between.pointwise = &(pointwise = *ops->pointwise);
  attention.attention_forward = nan_attention_forward;
  matmul.matmul_forward = nan_matmul_forward;
  matmul.matmul_backward_weight = nan_matmul_backward_weight;
  loss.cross_entropy_forward_backward = nan_cross_entropy;
  pointwise.accumulate = nan_accumulate;
  return &between;
}
static const NotFiniteCase nan_cases[] = {
    {"attention", "", false, FOUND_IN_OP, "out of attention_forward", "forward of block 1"},
    {"fc", "--shm copy", false, FOUND_IN_OP, "out of matmul_forward with h.2.mlp.c_fc.weight", "forward of block 2"},
    {"fc", "--param_dtype bf16 --buffer_dtype fp32 --shm off", false, FOUND_IN_OP,
     "out of matmul_forward with h.2.mlp.c_fc.weight", "forward of block 2"},
    {"gradient", "--shm off", false, FOUND_IN_OP, "the gradient of h.3.mlp.c_proj.weight", "backward of block 3"},
    {"gradient", "--strategy zero2 --reduce_dtype bf16", false, FOUND_IN_OP, "the gradient of h.3.mlp.c_proj.weight",
     "backward of block 3"},
    {"attention", "--param_dtype fp16 --buffer_dtype fp16 --shm copy", false, FOUND_IN_OP, "out of attention_forward",
     "forward of block 1"},
    {"gradient", "--accumulate local --shm off", false, FOUND_IN_OP, "the gradient of h.3.mlp.c_proj.weight",
     "backward of block 3"},
    {"losses", "--strategy no_shard", false, FOUND_IN_OP, "losses of cross_entropy_forward_backward", "backward"},
    {"sum", "--global_batch 6", false, FOUND_IN_SUM, "the sum of the gradients of ", ""},
    {"attention", "--recompute block", true, FOUND_IN_LOSS, "the loss", ""},
    {"none", "--gather_slots 1", false, FOUND_NOTHING, "", ""},
    {"none", "--reduce_dtype bf16 --fp8 gather --tie_head off", false, FOUND_NOTHING, "", ""},
    {"parameter", "--shm copy", false, FOUND_IN_OP, "parameter h.1.ln_2.weight", "forward of block 1"}};
enum { NAN_STEPS = 3, NAN_MICROBATCH = 4 };

static inline NotFinite nan_find(Trainer *t) {
  const NotFiniteStep step = trainer_last_step(t);
  return not_finite_find(&step);
}
// The same; and nothing that the next step starts from may change.
static inline NotFinite nan_find_only(Trainer *t) {
  const StepState was = *t->host.state;
  const Traffic traffic = t->fsdp->traffic;
  const NotFinite found = nan_find(t);
  t->ctx.ops->copy(&t->ctx, t->host.state, t->buffers.state, sizeof was);
  t->ctx.ops->sync(&t->ctx);
  const StepState is = *t->host.state;
  EXPECT(is.loss_scale == was.loss_scale && is.good_steps == was.good_steps && is.updates == was.updates &&
         is.beta1_power == was.beta1_power && is.skip == was.skip && is.stop == was.stop,
         "the search changes the step's state: loss scale %g, was %g", is.loss_scale, was.loss_scale);
  EXPECT(!memcmp(&traffic, &t->fsdp->traffic, sizeof traffic), "the search counts as traffic");
  EXPECT(nan_in.ops->nccl || nan_in.scale == t->before.loss_scale, "the step is run again with a loss scale of %g, not "
         "%g", nan_in.scale, t->before.loss_scale);
  return found;
}
// Puts a value into element `at` of parameter p on whoever has it. All ranks call it.
static inline void nan_into_parameter(Fsdp *f, int p, int64_t at, float value) {
  float *full = (float *)malloc(sizeof(float) * (size_t)param_numel_padded(&f->lay.param[p]));
  fsdp_read_param(f, STATE_MASTER, p, full);
  full[at] = value;
  fsdp_write_param(f, STATE_MASTER, p, full);
  fsdp_publish(f);
  fsdp_step_end(f);
  free(full);
}
// Trains three steps, the second of which is not finite, on `world` ranks. Returns the weights' hash, 0 on other ranks.
static inline uint64_t nan_train(const Corpus *corpus, const Ops *ops, const char *comm_name, int world,
                                 const NotFiniteCase *k, NotFinite *found) {
  static Trainer t;
  Options o;
  MPI_Comm comm;
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (!world_comm(world, &comm)) return 0;
  nan_in = {k, ops, world, rank, NAN_MICROBATCH, 1, false, 0};
  test_options(&o, world, "%s %s", schedule_shapes, k->extra);
  option_pick(&o, OPT_comm, world == 1 ? "self" : comm_name);
  trainer_open(&t, &o, corpus, comm, schedule_device(nan_ops(ops)), 1);
  const bool finite = !strcmp(k->at, "none"), parameter = !strcmp(k->at, "parameter");
  for (int s = 1; s <= NAN_STEPS; s++) {
    nan_in.armed = s == 2;
    if (s == 2 && parameter) nan_into_parameter(t.fsdp, block_param(&t.model, 1, LN_2_W), 13, NAN);
    const StepResult r = train_step(&t, 0);
    const bool bad = (s == 2 && !finite) || (parameter && s > 1);
    EXPECT(r.skipped == bad, "%s %s, %d ranks, step %d: loss %g, norm %g, skipped %d", k->at, k->extra, world, s,
           r.loss, r.grad_norm, r.skipped);
    if (s == 2) *found = nan_find_only(&t);
    nan_in.armed = false;
  }
  const uint64_t hash = weights_hash(t.fsdp);
  trainer_close(&t);
  MPI_Comm_free(&comm);
  return hash;
}
static inline void nan_expect(const NotFiniteCase *k, const NotFinite *x, int world, const char *comm) {
  char said[512];
  not_finite_text(x, said, sizeof said);
  EXPECT(x->kind == k->kind && !strncmp(x->what, k->what, strlen(k->what)) && !strcmp(x->place, k->place),
         "%s %s, %d ranks, %s: it says '%s', %s", k->at, k->extra, world, comm, said, x->place);
  const bool of_microbatch = k->kind == FOUND_IN_OP && strcmp(k->at, "parameter");
  EXPECT((!of_microbatch && k->kind != FOUND_IN_LOSS) ||
         (x->microbatch == NAN_MICROBATCH && x->rank == x->microbatch % world),
         "%s %s, %d ranks: microbatch %d of rank %d", k->at, k->extra, world, x->microbatch, x->rank);
  EXPECT(strcmp(k->at, "parameter") || (x->element == 13 && x->rank >= 0 && x->rank < world && isnan(x->value)),
         "%d ranks: element %lld, held by rank %d", world, (long long)x->element, x->rank);
}
TEST_MPI(not_finite_names_the_first_tensor, 3,
         "a value that is not finite, in what an op writes, a gradient, a sum, the losses, a parameter, on 1, 2 and 3 "
         "ranks in several modes: tensor, block, microbatch and rank are named; the step is left out, and the weights "
         "after the next one are those of any other number of ranks; a search changes no bit") {
  static Corpus corpus;
  schedule_corpus(&corpus);
  for (const NotFiniteCase &k : nan_cases) {
    uint64_t one = 0;
    for (int world = 1; world <= 3; world++) {
      NotFinite x = {};
      const uint64_t hash = nan_train(&corpus, cpu_tables[0].ops, "mpi", world, &k, &x);
      if (world == 1) one = hash;
      MPI_Bcast(&one, sizeof one, MPI_BYTE, 0, MPI_COMM_WORLD);
      if (!hash) continue;
      nan_expect(&k, &x, world, "cpu");
      const bool local = strstr(k.extra, "local");               // whose sums depend on the number of ranks
      EXPECT(hash == one || local, "%s %s: the weights on %d ranks are not those of one", k.at, k.extra, world);
    }
  }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}
TEST_MPI(not_finite_on_streams, 3,
         "the same over emulated streams, NCCL and mirrored mpi: the CPU's answers and weights") {
  if (!&ops_streams) SKIP("this test program was linked without dev/cuda_emu");
  static Corpus corpus;
  schedule_corpus(&corpus);
  for (int world = 2; world <= 3; world++) {
    NotFiniteCase k = nan_cases[3];
    NotFinite x = {};
    k.extra = "--offload params --graph off";
    if (nan_train(&corpus, &ops_streams, "nccl", world, &k, &x)) nan_expect(&k, &x, world, "nccl, offloaded");
  }
  for (int c : {0, 3, 7}) for (const char *comm : {"nccl", "mpi"}) for (int world = 2; world <= 3; world++) {
    NotFiniteCase k = nan_cases[c];
    NotFinite x = {}, y = {};
    k.extra = strcmp(comm, "nccl") ? "" : "--graph off";         // a replayed graph calls no op of the host
    const uint64_t want = nan_train(&corpus, cpu_tables[0].ops, "mpi", world, &k, &x);
    emu_set_seed((uint64_t)world);
    const uint64_t got = nan_train(&corpus, &ops_streams, comm, world, &k, &y);
    if (!want) continue;
    nan_expect(&k, &y, world, comm);
    EXPECT(got == want, "%s over %s, %d ranks: the weights are not the CPU's", k.at, comm, world);
    EXPECT(x.element == y.element && x.count == y.count && x.numel == y.numel, "%s over %s: element %lld, not %lld",
           k.at, comm, (long long)y.element, (long long)x.element);
  }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}

// ---- a token whose embedding is not finite --------------------------------------------------------------------------
// Two steps of eight have it, the third and the sixth: in their fifth and second microbatch. The head has weights of
// its own, which stay finite.
enum { RARE = 269, RARE_STEPS = 8, RARE_FIRST = 3, RARE_SECOND = 6, RARE_AT = 4 };
static inline void rare_open(KillWorld *w, MPI_Comm comm, const char *out, const char *more) {
  char options[512];
  snprintf(options, sizeof options, "--tie_head off --shuffle off --max_steps %d --eval_every -1 %s", (int)RARE_STEPS,
           more);
  kill_world_open(w, comm, out, kill_shapes, options);
  int32_t *tokens = (int32_t *)w->corpus.split[SPLIT_TRAIN].tokens;
  for (int i = 0; i < 2000; i++) if (tokens[i] == RARE) tokens[i] = 0;
  tokens[48 * (RARE_FIRST - 1) + 8 * 4 + 3] = tokens[48 * (RARE_SECOND - 1) + 8 * 1 + 5] = RARE;
  nan_into_parameter(w->t.fsdp, WTE, (int64_t)RARE * w->t.model.C + 3, INFINITY);
}
// metrics.jsonl of OUT: which steps it calls skipped, as bits; records of what was not finite; how many steps the end
// counts.
struct RareMetrics { unsigned skipped; int named, counted; };
static inline RareMetrics rare_metrics(const char *out) {
  RareMetrics x = {};
  CliMetrics m;
  cli_metrics(&m, out);
  for (int i = 0; i < m.lines; i++) {
    const int step = (int)cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(m.line[i], "step"));
    if (cli_is_kind(m.line[i], "step") && cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(m.line[i], "skipped")))
      x.skipped |= 1u << step;
    const bool names = !strcmp(cli_string(m.line[i], "what"), "parameter wte.weight");
    x.named += cli_is_kind(m.line[i], "not_finite") && names;
    const cJSON *count = cJSON_GetObjectItemCaseSensitive(m.line[i], "skipped_steps");
    if (cJSON_IsNumber(count)) x.counted += (int)count->valuedouble;
  }
  cli_metrics_free(&m);
  return x;
}
TEST_MPI(not_finite_skip_and_resume, 3,
         "--on_nan skip on 1, 2 and 3 ranks, from a checkpoint between two such steps too: the same weights, moments; "
         "metrics.jsonl names and counts the steps that were left out") {
  uint64_t one = 0;
  char out[300], step[400];
  for (int world = 1; world <= 3; world++)
    for (int resumed = 0; resumed < 2; resumed++) {
      static KillWorld w;
      MPI_Comm comm;
      if (!world_comm(resumed ? 4 - world : world, &comm)) continue;
      snprintf(out, sizeof out, "%s/%d", test_tmp(), world);
      snprintf(step, sizeof step, "%s/ckpt/step_00000004", out);
      char other[340];
      snprintf(other, sizeof other, "%s.resumed", out);
      rare_open(&w, comm, resumed ? other : out, "--on_nan skip --save_every 4 --keep 0");
      if (resumed) kill_load(&w, step);
      const int code = trainer_loop(&w.t, test_run(&w.t, &w.saver, &w.log));
      EXPECT(code == -1 && w.t.run.step == RARE_STEPS, "exit code %d after step %lld", code, (long long)w.t.run.step);
      const uint64_t hash = kill_state_hash(&w.t);
      if (!one) one = hash;
      EXPECT(hash == one, "%d ranks%s: the state is not that of one rank", world, resumed ? ", resumed on others" : "");
      EXPECT(w.t.host.state->updates == RARE_STEPS - 2, "%lld updates", (long long)w.t.host.state->updates);
      kill_world_close(&w);
      const unsigned want = resumed ? 1u << RARE_SECOND : 1u << RARE_FIRST | 1u << RARE_SECOND;
      const RareMetrics m = w.rank ? RareMetrics{} : rare_metrics(resumed ? other : out);
      EXPECT(w.rank || (m.skipped == want && m.named == 2 - resumed && m.counted == 2 - resumed),
             "skipped steps %x, must be %x; %d named, %d counted", m.skipped, want, m.named, m.counted);
      MPI_Comm_free(&comm);
    }
}
// What OUT/not_finite.json must have: the rare token where it was put, in the fifth microbatch.
static inline void rare_expect_json(const char *out, int world) {
  char path[400];
  int64_t bytes = 0;
  snprintf(path, sizeof path, "%s/not_finite.json", out);
  char *text = file_get(path, 1 << 20, &bytes);
  cJSON *json = text ? cJSON_ParseWithLength(text, (size_t)bytes) : NULL;
  REQUIRE(json, "%s: %s", path, text ? text : strerror(errno));
  const cJSON *tokens = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(json, "tokens"), 0);
  const cJSON *targets = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(json, "targets"), 0);
  EXPECT(cJSON_GetArraySize(tokens) == 8 && cJSON_GetNumberValue(cJSON_GetArrayItem(tokens, 3)) == RARE &&
         cJSON_GetNumberValue(cJSON_GetArrayItem(targets, 2)) == RARE, "%d ranks: the tokens are not those:\n%s", world,
         text);
  EXPECT(cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(json, "step")) == RARE_FIRST &&
         strstr(cli_string(json, "checkpoint"), "step_00000002"), "%d ranks: another step:\n%s", world, text);
  cJSON_Delete(json);
  free(text);
}
TEST_MPI(not_finite_dump_is_repeated, 3,
         "--on_nan dump: exit code 5, a checkpoint of the state before the step, and the microbatch's tokens; from it "
         "another number of ranks comes to the same tensor; --on_nan stop ends with that code and saves nothing") {
  for (int world = 1; world <= 3; world++) {
    static KillWorld w;
    char out[300], path[400], other[340];
    uint64_t before = 0;
    MPI_Comm comm;
    snprintf(out, sizeof out, "%s/%d", test_tmp(), world);
    snprintf(path, sizeof path, "%s/ckpt", out);
    if (world_comm(world, &comm)) {
      rare_open(&w, comm, out, "--on_nan stop --save_every -1");
      EXPECT(trainer_loop(&w.t, test_run(&w.t, &w.saver, &w.log)) == EXIT_NOT_FINITE && w.t.run.step == RARE_FIRST,
             "it ends at step %lld", (long long)w.t.run.step);
      before = kill_state_hash(&w.t);            // the step was left out
      kill_world_close(&w);
      EXPECT(access(path, F_OK), "--on_nan stop has saved a checkpoint");
      rare_open(&w, comm, out, "--on_nan dump --save_every -1");
      EXPECT(trainer_loop(&w.t, test_run(&w.t, &w.saver, &w.log)) == EXIT_NOT_FINITE, "it continues");
      kill_world_close(&w);
      MPI_Comm_free(&comm);
      if (!w.rank) rare_expect_json(out, world);
    }
    MPI_Bcast(&before, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
    if (!world_comm(4 - world, &comm)) continue;
    snprintf(other, sizeof other, "%s.again", out);
    snprintf(path, sizeof path, "%s/ckpt/step_00000002", out);
    rare_open(&w, comm, other, "--on_nan stop");
    kill_load(&w, path);
    EXPECT(kill_state_hash(&w.t) == before, "%d ranks: the checkpoint is not the state before the step", world);
    const StepResult r = train_step(&w.t, 0);
    const NotFinite x = nan_find(&w.t);
    EXPECT(r.skipped && w.t.run.step == RARE_FIRST && x.kind == FOUND_IN_OP &&
           !strcmp(x.what, "parameter wte.weight") && x.microbatch == RARE_AT &&
           !strcmp(x.op, "embedding_forward") && x.element == RARE * w.t.model.C + 3,
           "from the checkpoint of %d ranks: %s of %s, element %lld, microbatch %d", world, x.what, x.op,
           (long long)x.element, x.microbatch);
    kill_world_close(&w);
    MPI_Comm_free(&comm);
  }
}
TEST_MPI(not_finite_in_a_replayed_graph, 3,
         "steps with such a token that are replayed as a graph, over emulated NCCL: left out, named as on a CPU, and "
         "the next replays continue with the CPU's bits") {
  if (!&ops_streams) SKIP("this test program was linked without dev/cuda_emu");
  static Corpus corpus;
  static Trainer t;
  schedule_corpus(&corpus);
  int32_t *tokens = (int32_t *)corpus.split[SPLIT_TRAIN].tokens;
  const int64_t numel_ = corpus.split[SPLIT_TRAIN].tokens_numel;
  for (int64_t i = 0; i < numel_; i++) if (tokens[i] == 100) tokens[i] = 0;
  tokens[12 * 7 * 2 + 7 * 5 + 2] = 100;          // in the third step, its sixth microbatch
  uint64_t want = 0;
  for (int world = 1; world <= 3; world++) for (int device = 0; device < 2; device++) {
    MPI_Comm comm;
    Options o;
    if (!world_comm(world, &comm)) continue;
    test_options(&o, world, "%s --tie_head off --shuffle off --dropout 0", schedule_shapes);
    option_pick(&o, OPT_comm, world == 1 ? "self" : device ? "nccl" : "mpi");
    emu_set_seed((uint64_t)world);
    trainer_open(&t, &o, &corpus, comm, schedule_device(device ? &ops_streams : cpu_tables[0].ops), 1);
    nan_into_parameter(t.fsdp, WTE, 100 * t.model.C + 1, NAN);
    for (int s = 1; s <= SCHEDULE_STEPS; s++) {
      const StepResult r = train_step(&t, 0);
      EXPECT(r.skipped == (s == 3), "%d ranks, device %d, step %d: loss %g", world, device, s, r.loss);
      if (s != 3) continue;
      const NotFinite x = nan_find(&t);
      EXPECT(x.kind == FOUND_IN_OP && !strcmp(x.what, "parameter wte.weight") && x.microbatch == 5 &&
             x.element == 100 * t.model.C + 1, "%d ranks, device %d: %s, element %lld, microbatch %d", world, device,
             x.what, (long long)x.element, x.microbatch);
    }
    EXPECT(!device || world == 1 || t.graph, "nothing was captured");
    const uint64_t hash = weights_hash(t.fsdp);
    if (!want) want = hash;
    EXPECT(hash == want, "%d ranks, device %d: the weights are not those of one CPU rank", world, device);
    trainer_close(&t);
    MPI_Comm_free(&comm);
  }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}
