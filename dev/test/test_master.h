// test_master.h: whole runs with bf16 parameters and the low halves of their masters, and their checkpoints, equal
// those of runs that keep fp32 masters. One number, and the optimizers, are in test_master_ops.h.

// ================================================================================================ whole runs
// Hash of masters and moments.
static inline uint64_t master_states_hash(Fsdp *f) {
  uint64_t h = 14695981039346656037ull;
  for (int s = 0; s <= (int)fsdp_moments(f); s++) for (int p = 0; p < f->lay.params; p++) {
    if (f->lay.param[p].frozen) continue;
    float *full = (float *)malloc(sizeof(float) * (size_t)param_numel_padded(&f->lay.param[p]));
    fsdp_read_param(f, (ShardState)s, p, full);
    h = fnv_bytes(h, full, sizeof(float) * (size_t)param_numel_padded(&f->lay.param[p]));
    free(full);
  }
  return h;
}
// Every bf16 parameter of this rank is its master rounded.
static inline void master_expect_rounded(Fsdp *f, const char *what) {
  Span run;
  for (int p = 0; p < f->lay.params; p++) {
    const Param *q = &f->lay.param[p];
    if (f->lay.place[p].dtype != BF16 || q->frozen || !fsdp_span(f, p, f->mesh.shard.me, &run)) continue;
    float *master = (float *)malloc(sizeof(float) * (size_t)run.numel);
    bf16 *param = (bf16 *)malloc(sizeof(bf16) * (size_t)run.numel);
    f->ctx->ops->copy(f->ctx, param, fsdp_own_stored(f, p, run).data, sizeof(bf16) * (size_t)run.numel);
    fsdp_get_own(f, STATE_MASTER, p, 0, master, run.numel);          // waits for the copy too
    int64_t i = 0;
    while (i < run.numel && param[i].bits == master_nearest(f32_bits(master[i]))) i++;
    EXPECT(i == run.numel, "%s: %s element %lld is %04x, its master %08x", what, q->name, (long long)i,
           param[min64(i, run.numel - 1)].bits, f32_bits(master[min64(i, run.numel - 1)]));
    free(master);
    free(param);
  }
}
// Which masters are in memory: bf16 parameters have low halves, E4M3 ones whole masters.
static inline void master_expect_memory(const Trainer *t, const char *what) {
  const Fsdp *f = t->fsdp;
  const size_t *taken = t->run.plan.taken_bytes;
  const bool bf16s = f->cfg.param_dtype == BF16, e4m3 = f->cfg.fp8 != FP8_OFF;
  EXPECT((f->lay.low_numel > 0) == bf16s && (f->lay.master_numel > 0) == e4m3,
         "%s: %lld low halves, %lld fp32 masters", what,
         (long long)f->lay.low_numel, (long long)f->lay.master_numel);
  EXPECT(!bf16s || f->lay.low_numel + f->lay.master_numel == f->lay.state_numel,
         "%s: %lld low halves, %lld fp32 masters of %lld",
         what, (long long)f->lay.low_numel, (long long)f->lay.master_numel, (long long)f->lay.state_numel);
  EXPECT(taken[MEM_MASTER_LOW] == 2 * (size_t)f->lay.low_numel && taken[MEM_MASTER] == 4 * (size_t)f->lay.master_numel,
         "%s: %zu and %zu bytes of masters", what, taken[MEM_MASTER_LOW], taken[MEM_MASTER]);
}
enum { MASTER_STEPS = 4 };
struct MasterTrace { double loss[MASTER_STEPS], norm[MASTER_STEPS]; uint64_t states[MASTER_STEPS]; double eval_loss; };
static inline void master_run(MasterTrace *r, const Corpus *corpus, MPI_Comm comm, const char *dtypes,
                              const char *modes) {
  static Trainer t;
  static Options o;
  char what[512];
  int world;
  MPI_Comm_size(comm, &world);
  memset(r, 0, sizeof *r);
  snprintf(what, sizeof what, "%d ranks %s %s", world, dtypes, modes);
  test_options(&o, world, "%s %s %s", world_shapes, dtypes, modes);
  trainer_open(&t, &o, corpus, comm, device_of(agree_on_ops(&o, comm)), 1);
  master_expect_memory(&t, what);
  const bool lone = world == 1 && t.dtype == BF16 && !strcmp(dtypes, "--param_dtype bf16") && strstr(modes, "size 12");
  EXPECT(t.fsdp->lay.sum_dtype == (lone ? BF16 : F32), "%s: shards of gradients are %s", what,
         dtype_name(t.fsdp->lay.sum_dtype));
  for (int s = 0; s < MASTER_STEPS; s++) {
    const StepResult x = train_step(&t, false);
    r->loss[s] = x.loss;
    r->norm[s] = x.grad_norm;
    r->states[s] = master_states_hash(t.fsdp);
    master_expect_rounded(t.fsdp, what);
  }
  r->eval_loss = trainer_eval(&t, &corpus->split[SPLIT_VALID]).loss;
  trainer_close(&t);
}
// fp32 parameters are fp32 masters; computed in bf16, they are gathered whole and rounded after it.
TEST_MPI(bf16_runs_are_those_of_fp32_masters, 4,
         "--param_dtype bf16 gives step after step the losses, norms, masters and moments of fp32 parameters computed "
         "in bf16, in every mode, and each of its parameters is its master rounded") {
  static Corpus corpus;
  static const struct { int N; const char *modes; } rows[] = {
      {1, ""},
      {1, "--batch_size 12 --reduce_dtype bf16"},          // bf16 parameters leave their blocks' gradients in bf16
      {4, "--mesh 2x2 --shard dim0 --optimizer sgd --reduce_dtype bf16"},
      {3, "--shm copy --tie_head off --gather_slots 1"},
      {3, "--shm off --wrap model --fp8 gather"},
      {2, "--strategy no_shard --accumulate local --freeze wte,h.0.*,*.bias"},
      {4, "--reshard_after_forward 2 --gather_slots 1 --shm copy --shard dim0 --fp8 gather --optimizer sgd"}};
  MPI_Comm comm;
  test_corpus(&corpus, 5003, 12 * 21 * (MASTER_STEPS + 1) + 1, 500);
  for (const auto &row : rows) {
    if (!world_comm(row.N, &comm)) continue;
    MasterTrace halves, whole;
    master_run(&whole, &corpus, comm, "--param_dtype fp32 --buffer_dtype bf16", row.modes);
    master_run(&halves, &corpus, comm, "--param_dtype bf16", row.modes);
    for (int s = 0; s < MASTER_STEPS; s++)
      EXPECT(halves.loss[s] == whole.loss[s] && halves.norm[s] == whole.norm[s] && halves.states[s] == whole.states[s],
             "%d ranks %s: step %d: loss %.17g and norm %.17g, of fp32 masters %.17g and %.17g; states %s", row.N,
             row.modes, s, halves.loss[s], halves.norm[s], whole.loss[s], whole.norm[s],
             halves.states[s] == whole.states[s] ? "equal" : "differ");
    EXPECT(halves.eval_loss == whole.eval_loss && whole.loss[1] != whole.loss[0],
           "%d ranks %s: validation %.17g, of fp32 masters %.17g", row.N, row.modes, halves.eval_loss, whole.eval_loss);
    MPI_Comm_free(&comm);
  }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}

// ================================================================================================ in and out of shards
// Any number but a NaN: element i of parameter p.
static inline float master_drawn(int p, int64_t i) {
  uint64_t seed = (uint64_t)p << 40 | (uint64_t)i;
  uint32_t u = (uint32_t)op_random(&seed);
  if (i % 5 == 0) u = (u & 0xffff0000u) | 0x8000u;                 // a tie
  if ((u & 0x7fffffffu) > 0x7f800000u) u &= 0xff7fffffu;
  return bits_f32(u);
}
// The expected result: all of it, or for a frozen parameter, which has no master, the part that bf16 keeps.
static inline uint32_t master_kept(const Param *q, int p, int64_t i) {
  const uint32_t u = f32_bits(master_drawn(p, i));
  return q->frozen ? (uint32_t)master_nearest(u) << 16 : u;
}
// scratch_bytes: of the device's workspace, so that values are copied in parts. 0: unchanged.
static inline void master_in_and_out(const Corpus *corpus, const Ops *ops, const char *options, size_t scratch_bytes) {
  static Trainer t;
  static Options o;
  test_options(&o, 2, "%s --param_dtype bf16 %s", schedule_shapes, options);
  o.comm = OPT_comm_mpi;
  trainer_open(&t, &o, corpus, MPI_COMM_WORLD, schedule_device(ops), 1);
  Fsdp *&f = t.fsdp;
  const size_t own_scratch = t.ctx.workspace_bytes;
  if (scratch_bytes) t.ctx.workspace_bytes = scratch_bytes;
  for (int p = 0; p < f->lay.params; p++) {
    const int64_t n = param_numel(&f->lay.param[p]);
    float *full = (float *)calloc((size_t)param_numel_padded(&f->lay.param[p]), sizeof(float));
    for (int64_t i = 0; i < n; i++) full[i] = master_drawn(p, i);
    fsdp_write_param(f, STATE_MASTER, p, full);
    free(full);
  }
  fsdp_publish(f);
  fsdp_step_end(f);
  for (int p = 0; p < f->lay.params; p++) {
    const int64_t n = param_numel(&f->lay.param[p]);
    float *full = (float *)calloc((size_t)param_numel_padded(&f->lay.param[p]), sizeof(float)), some[3];
    fsdp_read_param(f, STATE_MASTER, p, full);
    int64_t at = 0;
    while (at < n && f32_bits(full[at]) == master_kept(&f->lay.param[p], p, at)) at++;
    EXPECT(at == n, "%s %s: %s element %lld is %08x, not %08x", ops->name, options, f->lay.param[p].name, (long long)at,
           f32_bits(full[min64(at, n - 1)]), master_kept(&f->lay.param[p], p, min64(at, n - 1)));
    for (at = n; at < param_numel_padded(&f->lay.param[p]); at++)
      EXPECT(f32_bits(full[at]) == 0, "%s %s: padding of %s is not zero", ops->name, options, f->lay.param[p].name);
    Span run;
    if (fsdp_span(f, p, f->mesh.shard.me, &run) && run.numel > 8 &&
        run.in_range + 8 <= n) {
      fsdp_get_own(f, STATE_MASTER, p, 5, some, 3);
      for (int i = 0; i < 3; i++)
        EXPECT(f32_bits(some[i]) == master_kept(&f->lay.param[p], p, run.in_range + 5 + i),
               "%s %s: %s element %lld, read by itself, is %08x", ops->name, options, f->lay.param[p].name,
               (long long)(run.in_range + 5 + i), f32_bits(some[i]));
    }
    free(full);
  }
  master_expect_rounded(f, options);
  t.ctx.workspace_bytes = own_scratch;
  trainer_close(&t);
}
TEST_MPI(master_halves_come_back_from_shards, 2,
         "any fp32 number put into a bf16 parameter's master is read back from it, the parameter is its rounding, "
         "padding stays zero; frozen ones are rounded: on the CPU, on a device, offloaded, in any parts") {
  static Corpus corpus;
  schedule_corpus(&corpus);
  for (const char *options : {"", "--shard dim0 --shm off", "--strategy no_shard", "--fp8 gather",
                              "--freeze wte,h.1.*,*.bias"})
    master_in_and_out(&corpus, cpu_tables[cpu_best_table()].ops, options, 0);
  for (int i = 0; const Ops *ops = device_table(i); i++)
    for (const char *options : {"", "--shard dim0", "--offload optimizer --freeze wte,*.bias", "--offload params",
                                "--freeze wte,h.1.*"})
      for (size_t scratch : {(size_t)0, (size_t)1024}) master_in_and_out(&corpus, ops, options, scratch);
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}

// ================================================================================================ checkpoints
// A checkpoint's tensors do not show how masters are kept, so each run resumes from the other's: a version that kept
// all masters in fp32 wrote the same files.
TEST_MPI(checkpoints_have_whole_masters, 4,
         "bf16 parameters and low halves, saved at once or in the background, on any ranks, give the files of fp32 "
         "masters byte for byte; each resumes from the other's checkpoint to the same losses, norms and states") {
  static Corpus corpus;
  static Trainer t;
  static Saver saver;
  static Log log;
  static const char whole[] = "--param_dtype fp32 --buffer_dtype bf16", halves[] = "--param_dtype bf16";
  static const struct { const char *kept; int N; const char *saving; int M; const char *loading; } rows[] = {
      {"", 4, "--mesh 2x2 --save_async", 3, "--shard dim0"},
      {"--optimizer sgd", 3, "--shard dim0", 1, ""},
      {"--fp8 gather --reduce_dtype bf16", 2, "--save_async --shm off", 4, "--strategy no_shard"}};
  MPI_Comm comm;
  resume_corpus(&corpus);
  for (const auto &row : rows) {
    char kept[256], arguments[1024];
    double loss[2] = {}, norm[2] = {};
    uint64_t states[2] = {};
    for (int i = 0; i < 2; i++) {
      snprintf(kept, sizeof kept, "%s %s", row.kept, i ? halves : whole);
      if (!world_comm(i ? row.N : 1, &comm)) continue;
      ckpt_begin(&t, &saver, &corpus, comm, kept, i ? row.saving : "", i ? "halves" : "whole");
      saver_save(&saver, &log, t.opt.save_async, false);
      if (t.opt.save_async) train_step(&t, false);                 // a snapshot is of the step before
      EXPECT(saver_finish(&saver, &log), "%s: %s", kept, t.run.store->result->error);
      trainer_close(&t);
      MPI_Comm_free(&comm);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    for (const char *name : checkpoint_files)
      if (!ckpt_rank())
        ckpt_expect_same_file(row.kept, ckpt_path("whole/ckpt/latest/%s", name), ckpt_path("halves/ckpt/latest/%s",
                                                                                           name));
    for (int i = 0; i < 2; i++) {                // each resumes from the other's
      if (!world_comm(row.M, &comm)) continue;
      snprintf(arguments, sizeof arguments, "--resume %s --out %s %s %s", ckpt_path(i ? "whole" : "halves"),
               ckpt_path("resumed"), i ? halves : whole, row.loading);
      resume_from(&t, &saver, &corpus, comm, arguments);
      EXPECT((t.fsdp->lay.low_numel > 0) == i, "%s: %lld low halves", arguments, (long long)t.fsdp->lay.low_numel);
      const StepResult r = train_step(&t, false);
      loss[i] = r.loss, norm[i] = r.grad_norm, states[i] = master_states_hash(t.fsdp);
      trainer_close(&t);
      MPI_Comm_free(&comm);
    }
    EXPECT(loss[0] == loss[1] && norm[0] == norm[1] && states[0] == states[1],
           "%s, %d ranks, then %d: loss %.17g and norm %.17g, with fp32 masters %.17g and %.17g; states %s", row.kept,
           row.N, row.M, loss[1], norm[1], loss[0], norm[0], states[0] == states[1] ? "equal" : "differ");
    MPI_Barrier(MPI_COMM_WORLD);
    if (!ckpt_rank()) for (const char *name : {"whole", "halves", "resumed"}) ckpt_remove(ckpt_path("%s", name));
    MPI_Barrier(MPI_COMM_WORLD);
  }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}
