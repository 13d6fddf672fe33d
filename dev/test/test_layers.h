// test_layers.h: --log_layers says what a step did to each unit, exactly, and changes nothing.
#pragma once

// Norms of each unit in each of three steps, and the run's weights.
enum { LAYERS_UNITS = 8, LAYERS_STEPS = 3 };
struct LayersResult { LayerNorms norms[LAYERS_STEPS][LAYERS_UNITS]; double norm[LAYERS_STEPS]; uint64_t weights; };
static inline double layers_square(const float *x, const float *less, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; i++) {
    const float d = less ? x[i] - less[i] : x[i];
    sum += (double)d * (double)d;
  }
  return sum;
}
// Of parameter p: its masters, or its gradient.
static inline float *layers_param(Fsdp *f, ShardState state, int p) {
  float *full = (float *)calloc((size_t)param_numel_padded(&f->lay.param[p]), sizeof(float));
  fsdp_read_param(f, state, p, full);
  return full;
}
// What one rank's last step did, from its parameters before and after it. A sum of n squares in fp64 has n roundings,
static inline LayerNorms layers_norms(const Fsdp *f, int u) {
  LayerNorms x = {};
  fsdp_layer_norms(f, u, &x);
  return x;
}
// n < 2^19; the norms have one.
static inline void layers_check(const Fsdp *f, float **before, const char *what) {
  double squares[LAYERS_UNITS][3] = {};
  for (int p = 0; p < f->lay.params; p++) {
    const Param *q = &f->lay.param[p];
    float *now = layers_param((Fsdp *)f, STATE_MASTER, p), *grad = layers_param((Fsdp *)f, STATE_GRAD, p);
    const int unit = f->lay.place[p].unit;
    squares[unit][0] += layers_square(grad, NULL, param_numel(q));
    squares[unit][1] += layers_square(now, before[p], param_numel(q));
    squares[unit][2] += layers_square(now, NULL, param_numel(q));
    free(now);
    free(grad);
  }
  for (int u = 0; u < f->lay.units; u++) {
    const LayerNorms x = layers_norms(f, u);
    const double got[] = {x.gradient, x.change, x.weights};
    for (int i = 0; i < 3; i++)
      EXPECT(fabs(got[i] - sqrt(squares[u][i])) <= 0x1p-33 * got[i] && got[i] > 0,
             "%s, %s: norm %d is %.17g, must be %.17g", what, f->lay.unit[u].name, i, got[i], sqrt(squares[u][i]));
  }
}
// The field of metrics.jsonl says the same, units by name.
static inline void layers_check_json(const Trainer *t, double grad_norm) {
  const Fsdp *f = t->fsdp;
  static RunView run;
  run.fsdp = (Fsdp *)f;
  char *text = NULL;
  size_t bytes = 0;
  FILE *to = open_memstream(&text, &bytes);
  fprintf(to, "{\"kind\":\"step\"");
  log_layers(to, &run, grad_norm);
  fprintf(to, "}");
  fclose(to);
  cJSON *json = cJSON_Parse(text);
  const cJSON *layers = cJSON_GetObjectItemCaseSensitive(json, "layers");
  EXPECT(cJSON_GetArraySize(layers) == f->lay.units, "%s: not of %d units", text, f->lay.units);
  double squares = 0;
  for (int u = 0; u < f->lay.units; u++) {
    const cJSON *x = cJSON_GetArrayItem(layers, u), *name = cJSON_GetObjectItemCaseSensitive(x, "unit");
    const cJSON *norm = cJSON_GetObjectItemCaseSensitive(x, "grad_norm");
    const cJSON *ratio = cJSON_GetObjectItemCaseSensitive(x, "update_ratio");
    const LayerNorms want = layers_norms(f, u);
    if (!cJSON_IsString(name) || !cJSON_IsNumber(norm) || !cJSON_IsNumber(ratio)) { EXPECT(false, "%s", text); break; }
    EXPECT(!strcmp(name->valuestring, f->lay.unit[u].name) && ratio->valuedouble == want.change / want.weights,
           "%s: unit %d is %s, %.17g", text, u, f->lay.unit[u].name, want.change / want.weights);
    squares += norm->valuedouble * norm->valuedouble;
  }
  EXPECT(fabs(sqrt(squares) / grad_norm - 1) < 1e-14, "%s: together %.17g, must be %.17g", text, sqrt(squares),
         grad_norm);
  cJSON_Delete(json);
  free(text);
}
// ops NULL: of the machine; else of an emulated device, over --comm `comm_name`.
static inline bool layers_run(LayersResult *r, const Corpus *corpus, int world, const char *extra, bool logs,
                              const Ops *ops = NULL, const char *comm_name = "auto") {
  memset(r, 0, sizeof *r);
  MPI_Comm comm;
  if (!world_comm(world, &comm)) return false;
  static Trainer t;
  Fsdp *&f = t.fsdp;
  Options o;
  test_options(&o, world, "%s %s %s", world_shapes, extra, logs ? "--log_layers" : "");
  option_pick(&o, OPT_comm, comm_name);
  schedule_logits(&o);
  trainer_open(&t, &o, corpus, comm, ops ? schedule_device(ops) : device_of(agree_on_ops(&o, comm)), 1);
  const bool planned = !memcmp(t.run.plan.taken_bytes, t.run.plan.planned_bytes, sizeof t.run.plan.taken_bytes);
  EXPECT(planned, "%s: taken is not planned", extra);
  for (int s = 0; s < LAYERS_STEPS; s++) {
    float *before[64] = {};
    for (int p = 0; p < f->lay.params && world == 1; p++) before[p] = layers_param(f, STATE_MASTER, p);
    t.fsdp->traffic = Traffic{};
    r->norm[s] = train_step(&t, false).grad_norm;
    expect_traffic(f, (int)o.grad_accum, s, extra);
    for (int u = 0; u < f->lay.units && logs; u++) r->norms[s][u] = layers_norms(f, u);
    if (logs && isfinite(r->norm[s]))
      EXPECT(layers_norms(f, -1).gradient / (double)t.before.loss_scale / 12 == r->norm[s] ||
                         fabs(layers_norms(f, -1).gradient / (double)t.before.loss_scale / 12 / r->norm[s] - 1) < 1e-15,
                     "%s: all units' gradients are %.17g, the step's %.17g", extra, layers_norms(f, -1).gradient,
                     r->norm[s]);
    if (world == 1 && logs && isfinite(r->norm[s])) layers_check(f, before, extra);
    if (world == 1 && logs && isfinite(r->norm[s])) layers_check_json(&t, r->norm[s]);
    for (float *b : before) free(b);
  }
  r->weights = weights_hash(f);
  trainer_close(&t);
  MPI_Comm_free(&comm);
  return true;
}
TEST_MPI(layers_are_what_a_step_did, 4,
         "--log_layers: norms of each unit's gradient, change and weights are those of its parameters before and after "
         "the step, with the same bits on 1 to 4 ranks, meshes and layouts, for each optimizer; planned memory and "
         "traffic are what is taken; no bit of training changes") {
  static const struct { const char *alone, *ranks[4]; } modes[] = {
      {"--param_dtype bf16", {"", "--shard dim0", "--mesh 2x2", "--shm off"}},
      {"--optimizer sgd --wrap min_params:20000", {"", "", "--strategy ddp", NULL}},
      {"--optimizer muon --param_dtype bf16", {"--shm off", "--shard dim0", "--mesh 2x2", NULL}}};
  static Corpus corpus;
  static LayersResult one, r;
  test_corpus(&corpus, 5003, 12 * 21 * 3 + 1, 500);
  for (const auto &m : modes) {
    const bool first = layers_run(&r, &corpus, 1, m.alone, false);
    layers_run(&one, &corpus, 1, m.alone, true);
    if (first)
      EXPECT(one.weights == r.weights && one.norm[2] == r.norm[2], "%s: --log_layers changes training", m.alone);
    MPI_Bcast(&one, sizeof one, MPI_BYTE, 0, MPI_COMM_WORLD);
    for (int i = 0; i < 4 && m.ranks[i]; i++) {
      char extra[200];
      const int world = i == 2 ? 4 : i == 1 ? 3 : 2;
      snprintf(extra, sizeof extra, "%s %s", m.alone, m.ranks[i]);
      if (layers_run(&r, &corpus, world, extra, true))
        EXPECT(!memcmp(&one, &r, sizeof r), "N=%d %s: not the bits of one rank: change of unit 1 %.17g (%.17g)", world,
               extra, r.norms[2][1].change, one.norms[2][1].change);
    }
  }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}
TEST_MPI(layers_of_an_offloaded_optimizer, 4,
         "--log_layers with the optimizer or the parameters on the host: the norms and weights of a run without, for "
         "each optimizer, over emulated streams with NCCL and messages, in steps that are skipped too") {
  if (!&ops_streams) SKIP("this test program was linked without dev/cuda_emu");
  static const struct { const char *alone, *offload[3]; } modes[] = {
      {"--param_dtype bf16",
       {"self --offload optimizer", "nccl --offload params --shard dim0", "mpi --offload params"}},
      {"--optimizer sgd --param_dtype fp16 --loss_scale 1e9", {"self --offload params", "nccl --offload optimizer"}},
      {"--optimizer muon --param_dtype bf16", {"", "nccl --offload optimizer", "mpi --offload params --mesh 2x2"}}};
  static Corpus corpus;
  static LayersResult one, r;
  test_corpus(&corpus, 5003, 12 * 21 * 3 + 1, 500);
  for (const auto &m : modes) {
    char extra[200], alone[200];
    snprintf(alone, sizeof alone, "%s --isa avx2", m.alone);
    if (layers_run(&r, &corpus, 1, alone, true)) one = r;
    MPI_Bcast(&one, sizeof one, MPI_BYTE, 0, MPI_COMM_WORLD);
    for (int i = 0; i < 3; i++) {
      const char *space = m.offload[i] ? strchr(m.offload[i], ' ') : NULL;
      if (!space) continue;
      const int world = i == 2 ? 4 : i + 1;
      char comm[8];
      snprintf(comm, sizeof comm, "%.*s", (int)(space - m.offload[i]), m.offload[i]);
      snprintf(extra, sizeof extra, "%s%s", alone, space);
      if (layers_run(&r, &corpus, world, extra, true, &ops_streams, comm))
        EXPECT(!memcmp(&one, &r, sizeof r) && isfinite(r.norm[0]) != (strstr(alone, "1e9") != NULL),
               "N=%d %s %s: not the bits of one rank: change of unit 1 %.17g "
               "(%.17g), gradient %.17g (%.17g)", world, comm, extra, r.norms[2][1].change, one.norms[2][1].change,
               r.norms[2][1].gradient, one.norms[2][1].gradient);
    }
  }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}
