// test_checkpoint_modes.h: a checkpoint does not depend on the mode. Every mode saves the same bytes as one plain rank,
// and any other mode resumes them like the uninterrupted run, bit for bit: meshes, layouts, wrapping, slots,
// resharding, recomputation, messages, with every storage dtype and with frozen parameters. The first replica writes,
// each byte is written once, and a snapshot takes the bytes of its formula. Exports and imports do not depend on modes
// either.

// kept: arithmetic options, which the checkpoint keeps. Then the ranks and the options of the run that saves, and of
// the run that resumes.
struct ResumeModes {
  const char *kept;
  int N;
  const char *saving;
  int M;
  const char *loading;
  int saved_after;
  ResumePoke poke;
};

static inline void resume_mode(const Corpus *corpus, const ResumeModes *row) {
  const ResumeVariant saving = {row->kept, row->saving, row->saved_after, row->poke};
  const ResumeVariant loading = {row->kept, row->loading, row->saved_after, row->poke};
  char what[512];
  const ResumeTrace want = resume_reference(corpus, &saving);
  snprintf(what, sizeof what, "%s: %d ranks %s, then %d ranks %s", row->kept, row->N, row->saving, row->M,
           row->loading);
  resume_save_at(row->N, corpus, &saving, &want, what);
  MPI_Barrier(MPI_COMM_WORLD);
  resume_load_at(row->M, corpus, &loading, &want, ckpt_path("saved"), what);
  MPI_Barrier(MPI_COMM_WORLD);
  if (!ckpt_rank()) { ckpt_remove(ckpt_path("saved")); ckpt_remove(ckpt_path("resumed")); }
}
static inline void resume_modes(std::initializer_list<ResumeModes> rows) {
  static Corpus corpus;
  resume_corpus(&corpus);
  for (const ResumeModes &row : rows) resume_mode(&corpus, &row);
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}

// A width of 15 over six ranks of dim 0: three rows each, none for the last one.
TEST_MPI(checkpoints_know_no_layout, 6,
         "saved flat and loaded by dim 0 with uneven and empty shards, and back; one unit, a unit a block, units by "
         "size: files equal one rank's, and the run continues to the bit") {
  resume_modes({{"--n_embd 15", 4, "", 6, "--shard dim0", 2, POKE_NONE},
                {"--n_embd 15 --optimizer sgd --tie_head off", 6, "--shard dim0 --save_async", 1, "", 3, POKE_NONE},
                {"", 3, "--wrap model --shard dim0", 4, "--wrap min_params:5000 --save_async", 2, POKE_NONE},
                {"--param_dtype bf16 --reduce_dtype bf16", 2, "--wrap min_params:200 --save_async", 6,
                 "--wrap model --shard dim0", 3, POKE_NONE}});
}
TEST_MPI(checkpoints_know_no_mesh, 6,
         "full_shard, no_shard, hybrid 2 x 2, 2 x 3 and 3 x 2, zero1: saved under one, in the background or at once, "
         "each resumes from another") {
  resume_modes({{"", 6, "", 4, "--strategy no_shard --save_async", 2, POKE_NONE},
                {"", 4, "--mesh 2x2 --save_async", 6, "--mesh 2x3 --shard dim0", 3, POKE_NONE},
                {"--batch_size 2", 6, "--mesh 3x2", 6, "--strategy zero1 --accumulate local", 2, POKE_NONE},
                {"--batch_size 4 --optimizer sgd", 3, "--strategy zero1 --save_async", 3, "--accumulate sharded", 3,
                 POKE_NONE}});
}
TEST_MPI(checkpoints_know_no_schedule, 6,
         "zero2, blocks kept by groups, one slot, GELU, blocks or MLPs recomputed, by messages, around skipped "
         "steps: saved under one, each resumes from another") {
  resume_modes({{"--param_dtype fp16", 6, "--mesh 2x3 --shm off --recompute gelu", 3, "--strategy no_shard", 2,
                 POKE_OVERFLOW},
                {"--param_dtype bf16", 6, "--reshard_after_forward 2 --gather_slots 1 --shm copy", 4,
                 "--reshard_after_forward 2 --shard dim0 --recompute block:1,mlp", 3, POKE_NONE},
                {"--optimizer muon", 3, "--shard dim0 --save_async", 4, "--mesh 2x2 --shm off", 3, POKE_NONE},
                {"--optimizer sgd", 3, "--strategy shard_grad_op --save_async", 6, "--mesh 3x2 --wrap model", 3,
                 POKE_NONE}});
}
TEST_MPI(checkpoints_keep_every_dtype, 6,
         "fp32 computed in bf16 or fp16, bf16 in fp32, matrices gathered in E4M3: masters are saved, whatever dtype "
         "is stored; moments in bf16 are, and are rounded by no rank, layout or start") {
  resume_modes({{"--param_dtype fp32 --buffer_dtype bf16 --logits_dtype bf16", 4, "--mesh 2x2", 3,
                 "--shard dim0 --save_async", 2, POKE_NONE},
                {"--param_dtype fp32 --buffer_dtype fp16 --optimizer sgd", 2, "--save_async", 4, "--mesh 2x2", 3,
                 POKE_DOUBLE},
                {"--param_dtype bf16 --buffer_dtype fp32 --reduce_dtype bf16", 2, "--save_async", 6, "--mesh 2x3", 3,
                 POKE_NONE},
                {"--param_dtype bf16 --reduce_dtype bf16 --fp8 gather", 4, "--mesh 2x2 --save_async", 6,
                 "--shard dim0 --shm off", 2, POKE_NONE},
                {"--fp8 gather --optimizer sgd", 3, "--wrap model", 2, "--strategy no_shard", 3, POKE_NONE},
                {"--moment_dtype bf16 --n_embd 15", 4, "--shard dim0 --save_async", 3, "--wrap min_params:200", 2,
                 POKE_NONE},
                {"--moment_dtype bf16 --param_dtype bf16 --fp8 gather", 6, "--mesh 2x3", 2, "--wrap model --save_async",
                 3, POKE_NONE}});
}
TEST_MPI(checkpoints_keep_what_is_frozen, 6,
         "frozen bf16 and E4M3 without masters, all but biases, all blocks: their values are saved, are loaded again "
         "unchanged, and have no moments") {
  resume_modes({{"--freeze wte,wpe,h.0.* --param_dtype bf16", 3, "--shard dim0", 4, "--mesh 2x2 --save_async", 2,
                 POKE_NONE},
                {"--freeze h.0.*,h.1.attn.* --param_dtype bf16 --fp8 gather", 2, "--save_async", 6,
                 "--mesh 2x3 --shard dim0", 2, POKE_NONE},
                {"--freeze *.weight", 6, "--strategy no_shard --save_async", 3, "--wrap model", 3, POKE_NONE},
                {"--freeze h.* --fp8 gather --optimizer sgd --tie_head off", 4, "--mesh 2x2", 6,
                 "--shard dim0 --save_async --wrap min_params:5000", 3, POKE_NONE}});
}

// ---- bytes ----------------------------------------------------------------------------------------------------------
// A fresh run of any mode on `comm`, below TEST_TMP/NAME, after one step.
static inline void ckpt_begin(Trainer *t, Saver *saver, const Corpus *corpus, MPI_Comm comm, const char *kept,
                              const char *own, const char *name) {
  const ResumeVariant v = {kept, own, 0, POKE_NONE};
  resume_begin(t, saver, corpus, comm, &v, ckpt_path("%s", name));
  train_step(t, false);
}
TEST_MPI(moments_are_rounded_by_seed_and_parameter, 1,
         "after a step each moment in bf16 is what a run in fp32 has, rounded by Philox's word of --seed, the "
         "parameter, the step and the element: no two elements or parameters share a word") {
  static Corpus corpus;
  static Trainer t;
  static Saver saver;
  static float exact[1 << 20];
  resume_corpus(&corpus);
  for (int way = 0; way < 2; way++) {
    int64_t at = 0;
    const ResumeVariant variant = {way ? "--seed 11 --moment_dtype bf16" : "--seed 11", "", 0, POKE_NONE};
    resume_begin(&t, &saver, &corpus, MPI_COMM_SELF, &variant, ckpt_path("out"));
    t.run.step = 5;                              // the first is 0, as a counter without it would be
    train_step(&t, false);
    for (int k = 0; k < t.fsdp->lay.params; k++) {
      const ParamPlace *p = &t.fsdp->lay.place[k];
      const Tensor m = fsdp_piece_moment(t.fsdp, STATE_M, p->unit, p->piece);
      Span run;
      REQUIRE(fsdp_span(t.fsdp, k, t.fsdp->mesh.shard.me, &run) && at + run.numel <= 1 << 20,
              "%s has %lld elements", p->param->name, (long long)run.numel);
      for (int64_t i = 0; i < run.numel; i++, at++) {
        const double got = op_get(m, run.in_piece + i);
        const uint64_t e = (uint64_t)(run.in_range + i);
        if (!way) { exact[at] = (float)got; continue; }
        const Philox four = philox4x32(11, Philox{(uint32_t)(e / 4), (uint32_t)k, 5, 0xfffffffdu});
        const uint32_t word = e % 4 == 0 ? four.x : e % 4 == 1 ? four.y : e % 4 == 2 ? four.z : four.w;
        const double want = (double)bits_f32((f32_bits(exact[at]) + (word & 0xffffu)) & 0xffff0000u);
        EXPECT(got == want, "%s, element %lld: %.9g, must be %.9g", p->param->name, (long long)e, got, want);
      }
    }
    trainer_close(&t);
  }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}
// Flat shards start and end at parameter bounds or at multiples of 128 elements. Together the ranks of a replica
// snapshot each state of each parameter in whole lines of that many elements, and the other replicas nothing.
static inline void ckpt_expect_snapshot(Trainer *t, const char *what) {
  const Fsdp *f = t->fsdp;
  const Store *s = t->run.store;
  int64_t want = 0, last = -1;
  long long own = store_snapshot_bytes(f), all = 0;
  for (int p = 0; p < f->lay.params; p++)
    want += round_up(param_numel_padded(&f->lay.param[p]), 128) * 4 * (1 + moments_of(f, &f->lay.param[p]));
  MPI_Allreduce(&own, &all, 1, MPI_LONG_LONG, MPI_SUM, f->mesh.comm);
  EXPECT(all == want, "%s: the ranks' snapshots have %lld bytes, all states %lld", what, all, (long long)want);
  EXPECT(!own == (f->mesh.replicate.me > 0), "%s: the snapshot of replica %d has %lld bytes", what,
         f->mesh.replicate.me, own);
  for (int i = 0; i < MAP_STATES * f->lay.params && own; i++) {
    EXPECT(s->snapshot_at[i] >= last && s->snapshot_at[i] % 128 == 0 && s->snapshot_at[i] * 4 <= own,
           "%s: run %d of the snapshot is at %lld", what, i, (long long)s->snapshot_at[i]);
    last = s->snapshot_at[i];
  }
  const char *end = s->memory + s->bytes;
  EXPECT(s->snapshot + own <= (char *)s->records && (char *)(s->checksums + s->blocks) <= end &&
             (char *)(s->checksums + s->blocks) > end - 256, "%s: the parts of the store's memory overlap", what);
}
// The tensors of a file are those of the wanted states; a frozen parameter is in the weights file only.
static inline void ckpt_expect_tensors(const Trainer *t, const char *directory, const char *what) {
  const Fsdp *f = t->fsdp;
  for (int file = 0; file < CHECKPOINT_FILES; file++) {
    SafetensorsFile there;
    char path[MAP_PATH_BYTES], name[128];
    int found = 0, want = 0;
    path_join(path, sizeof path, directory, checkpoint_files[file]);
    REQUIRE(safetensors_open(&there, path), "%s: %s", what, there.error);
    static const char *const prefixes[] = {"", "exp_avg.", "exp_avg_sq.", "momentum_buffer."};
    for (int p = 0; p < f->lay.params; p++) for (const char *prefix : prefixes) {
      const int moments = moments_of(f, &f->lay.param[p]);
      const bool mine = file == (prefix[0] != 0), one = !strcmp(prefix, "momentum_buffer.");
      const bool due = mine && (!prefix[0] || (moments && (moments == 1) == one));
      bool has = false;
      snprintf(name, sizeof name, "%s%s", prefix, f->lay.param[p].name);
      for (int i = 0; i < there.count; i++) has = has || !strcmp(there.tensor[i].name, name);
      EXPECT(has == due, "%s: %s %s tensor %s", what, path, has ? "has" : "lacks", name);
      found += has;
      want += due;
    }
    EXPECT(there.count == want && found == want, "%s: %s has %d tensors, not %d", what, path, there.count, want);
    safetensors_close(&there);
  }
}
TEST_MPI(the_first_replica_writes_each_byte_once, 6,
         "every mesh and freezing, in the background: memory is as planned; snapshots are all states in whole lines "
         "and none for other replicas; frozen parameters have no moments in the file") {
  static Corpus corpus;
  static Trainer t;
  static Saver saver;
  static Log log;
  MPI_Comm comm;
  resume_corpus(&corpus);
  const struct { int N; const char *kept, *mesh; } rows[] = {
      {6, "", ""}, {6, "--freeze wte,h.1.mlp.* --param_dtype bf16 --fp8 gather", "--mesh 2x3"},
      {6, "--optimizer sgd --freeze *.bias,h.2.*", "--mesh 3x2"}, {4, "--freeze h.*", "--strategy no_shard"},
      {3, "--optimizer muon --freeze h.1.mlp.*", ""}};
  for (const auto &row : rows) {
    char what[256], own[128];
    snprintf(what, sizeof what, "%d ranks %s %s", row.N, row.kept, row.mesh);
    snprintf(own, sizeof own, "%s --save_async", row.mesh);
    if (world_comm(row.N, &comm)) {
      ckpt_begin(&t, &saver, &corpus, comm, row.kept, own, "out");
      ckpt_expect_snapshot(&t, what);
      EXPECT(saver_save(&saver, &log, true, false) && saver_finish(&saver, &log), "%s: %s", what,
             t.run.store->result->error);
      ckpt_expect_bytes(what, &t, saver_path(&saver));
      EXPECT(!t.fsdp->mesh.replicate.me || !t.run.store->bytes_done, "%s: replica %d wrote %lld bytes", what,
             t.fsdp->mesh.replicate.me, (long long)t.run.store->bytes_done);
      if (!t.fsdp->mesh.rank) ckpt_expect_tensors(&t, saver_path(&saver), what);
      trainer_close(&t);
      MPI_Comm_free(&comm);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (!ckpt_rank()) ckpt_remove(ckpt_path("out"));
    MPI_Barrier(MPI_COMM_WORLD);
  }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}

// ---- weights for other programs, and from them ----------------------------------------------------------------------
// Makes the first element of every parameter far larger than the rest, so that shards of one matrix have different
// maxima. All ranks call it.
static inline void ckpt_plant(Fsdp *f) {
  const float large = 2.0f;
  Span run;
  for (int p = 0; p < f->lay.params; p++)
    if (fsdp_span(f, p, f->mesh.shard.me, &run) && !run.in_range)
      fsdp_set_own(f, STATE_MASTER, p, 0, &large, 1, PASS_STORE);
  fsdp_publish(f);
  fsdp_step_end(f);
}
// One step, then OUT/model.safetensors and the export for others, below TEST_TMP/NAME.
static inline void ckpt_export(const Corpus *corpus, int N, const char *kept, const char *own, const char *name) {
  static Trainer t;
  static Saver saver;
  MPI_Comm comm;
  char directory[MAP_PATH_BYTES];
  if (!world_comm(N, &comm)) return;
  ckpt_begin(&t, &saver, corpus, comm, kept, own, name);
  ckpt_plant(t.fsdp);
  snprintf(directory, sizeof directory, "%s", ckpt_path("%s/hf", name));
  if (!t.fsdp->mesh.rank) make_directories(directory);
  MPI_Barrier(comm);
  EXPECT(save_model(&t.run) && export_hf(&t.run, directory), "%d ranks %s %s: %s", N, kept, own,
         t.run.store->result->error);
  trainer_close(&t);
  MPI_Comm_free(&comm);
}
TEST_MPI(exports_know_no_modes, 6,
         "--save_model and --export_hf of hybrid, replicated, E4M3 and frozen runs equal one plain rank's, byte for "
         "byte") {
  static Corpus corpus;
  resume_corpus(&corpus);
  const struct { const char *kept; int N; const char *own; } rows[] = {
      {"--param_dtype bf16 --fp8 gather --freeze wpe,h.0.*", 6, "--mesh 2x3"},
      {"--fp8 gather --tie_head off", 4, "--strategy no_shard --shard dim0"},
      {"--freeze *.weight --param_dtype bf16 --buffer_dtype fp32", 6, "--mesh 3x2 --shard dim0 --wrap model"}};
  for (const auto &row : rows) {
    ckpt_export(&corpus, 1, row.kept, "", "one");
    ckpt_export(&corpus, row.N, row.kept, row.own, "many");
    MPI_Barrier(MPI_COMM_WORLD);
    if (!ckpt_rank()) {
      for (const char *file : {"model.safetensors", "hf/model.safetensors", "hf/config.json"})
        ckpt_expect_same_file(row.kept, ckpt_path("one/%s", file), ckpt_path("many/%s", file));
      ckpt_remove(ckpt_path("one"));
      ckpt_remove(ckpt_path("many"));
    }
    MPI_Barrier(MPI_COMM_WORLD);
  }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}

// How a run stores n fp32 values of parameter p: masters unchanged, the others rounded, E4M3 with one scale for all.
static inline void ckpt_round_as_stored(const ParamPlace *p, float *x, int64_t n) {
  float most = 0;
  for (int64_t i = 0; i < n; i++) most = fmaxf(most, fabsf(x[i]));
  const float scale = fp8_scale_of(most);
  for (int64_t i = 0; i < n && p->param->frozen; i++) {
    fp8 e4m3;
    bf16 half;
    if (p->dtype == F8) { round_to(&e4m3, x[i] / scale); x[i] = to_f32(e4m3) * scale; }
    if (p->dtype == BF16) { round_param(&half, x[i]); x[i] = to_f32(half); }
  }
}
// A run that takes its weights from `from`, below TEST_TMP. to: NULL, or every parameter's values, malloc'ed. plain:
// NULL, or values that must equal the run's own after rounding as stored. All ranks of comm call it.
static inline void ckpt_read_weights(const Corpus *corpus, MPI_Comm comm, const char *from, const char *own, float **to,
                                     float *const *plain) {
  static Trainer t;
  static Saver saver;
  char arguments[2048];
  snprintf(arguments, sizeof arguments, "--init_from %s --seq_len 21 --batch_size 1 --out %s %s", ckpt_path("%s", from),
           ckpt_path("fresh"), own);
  resume_from(&t, &saver, corpus, comm, arguments);
  for (int p = 0; p < t.fsdp->lay.params; p++) {
    const Param *q = &t.fsdp->lay.param[p];
    const int64_t n = param_numel(q);
    float *x = (float *)malloc(sizeof(float) * (size_t)param_numel_padded(q)), *want = (float *)malloc(4 * (size_t)n);
    fsdp_read_param(t.fsdp, STATE_MASTER, p, x);
    if (plain) {
      memcpy(want, plain[p], 4 * (size_t)n);
      ckpt_round_as_stored(&t.fsdp->lay.place[p], want, n);
      int64_t at = 0;
      while (at < n && f32_bits(x[at]) == f32_bits(want[at])) at++;
      EXPECT(at == n, "%s from %s: %s (%s%s) element %lld is %.9g, %.9g rounded directly is %.9g", own, from, q->name,
             q->frozen ? "frozen " : "", dtype_name(t.fsdp->lay.place[p].dtype), (long long)at, x[at],
             plain[p][at], want[at]);
    }
    free(want);
    if (to) to[p] = x;
    else free(x);
  }
  trainer_close(&t);
}
TEST_MPI(weights_are_rounded_as_they_come, 6,
         "--init_from fp32 weights, ours or transposed ones, into frozen E4M3 and bf16 parameters equals rounding "
         "them directly, in every mode; trained parameters get the full fp32 values") {
  static Corpus corpus;
  static float *plain[256];
  MPI_Comm comm;
  resume_corpus(&corpus);
  const struct { int N; const char *from, *own; } rows[] = {
      {1, "one/hf", "--param_dtype bf16 --fp8 gather --freeze wte,h.*.weight"},
      {6, "one/model.safetensors", "--fp8 gather --freeze h.* --mesh 2x3"},
      {4, "one/hf", "--param_dtype bf16 --fp8 gather --freeze *.weight --shard dim0"},
      {3, "one/model.safetensors", "--param_dtype bf16 --freeze h.0.*,ln_f --strategy no_shard"}};
  ckpt_export(&corpus, 1, "", "", "one");
  MPI_Barrier(MPI_COMM_WORLD);
  ckpt_read_weights(&corpus, MPI_COMM_SELF, "one/model.safetensors", "", plain, NULL);
  for (const auto &row : rows) {
    if (!world_comm(row.N, &comm)) continue;
    ckpt_read_weights(&corpus, comm, row.from, row.own, NULL, plain);
    MPI_Comm_free(&comm);
  }
  for (float *x : plain) free(x);
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}

// A checkpoint is evaluated without gradients and optimizer, by any number of ranks in any mesh. Parameters frozen in
// training are then not frozen, so E4M3 values are encoded again with a new scale. That scale may be half of the first
// one, and then every value of the first is still representable.
TEST_MPI(checkpoints_are_evaluated_in_any_mode, 6,
         "--eval_only of a checkpoint gives the validation loss of the run that saved it, in every mode, with E4M3 and "
         "frozen matrices too; --init_from it starts with the same") {
  static Corpus corpus;
  static Trainer t;
  static Saver saver;
  static Log log;
  MPI_Comm comm;
  resume_corpus(&corpus);
  const struct { const char *kept; int N; const char *saving; int M; const char *evaluating; } rows[] = {
      {"", 4, "--mesh 2x2", 3, "--shard dim0"},
      {"--param_dtype bf16 --fp8 gather --freeze h.1.*", 6, "--mesh 2x3", 2, "--strategy no_shard"},
      {"--param_dtype bf16 --buffer_dtype fp32 --freeze wte,h.0.* --optimizer sgd", 3, "--shard dim0", 6, "--mesh 3x2"},
      {"--fp8 gather --freeze *.bias,h.*.attn.*", 1, "", 4, "--reshard_after_forward 2 --gather_slots 1"}};
  for (const auto &row : rows) {
    double want = 0;
    if (world_comm(row.N, &comm)) {
      ckpt_begin(&t, &saver, &corpus, comm, row.kept, row.saving, "out");
      want = trainer_eval(&t, &corpus.split[SPLIT_VALID]).loss;
      EXPECT(saver_save(&saver, &log, false, false), "%s", t.run.store->result->error);
      trainer_close(&t);
      MPI_Comm_free(&comm);
    }
    MPI_Bcast(&want, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    for (const char *from : {"--eval_only --resume", "--seq_len 21 --batch_size 1 --init_from"}) {
      char arguments[1024];
      const bool again = strstr(from, "init_from");
      if (!world_comm(row.M, &comm)) continue;
      snprintf(arguments, sizeof arguments, "%s %s %s %s --out %s", from, ckpt_path("out"), row.evaluating,
               again ? row.kept : "", ckpt_path("fresh"));
      resume_from(&t, &saver, &corpus, comm, arguments);
      const double loss = trainer_eval(&t, &corpus.split[SPLIT_VALID]).loss;
      EXPECT(loss == want && loss > 7, "%s: %d ranks %s have %.17g, %d ranks %s %s have %.17g", row.kept, row.N,
             row.saving, want, row.M, from, row.evaluating, loss);
      trainer_close(&t);
      MPI_Comm_free(&comm);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (!ckpt_rank()) ckpt_remove(ckpt_path("out"));
    MPI_Barrier(MPI_COMM_WORLD);
  }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}

TEST_MPI(storage_may_change_at_a_resume, 4,
         "--fp8, --param_dtype and --buffer_dtype may change at a resume: masters and moments stay, frozen values "
         "too if the new dtype can represent them, and training continues") {
  static Corpus corpus;
  static Trainer t;
  static Saver saver;
  static Log log;
  resume_corpus(&corpus);
  const struct { const char *kept, *saving, *resumed; } rows[] = {
      {"--param_dtype bf16 --freeze h.0.*", "--mesh 2x2", "--param_dtype fp32 --buffer_dtype bf16 --shard dim0"},
      {"--param_dtype bf16 --fp8 gather --freeze h.0.*,wte", "--shard dim0", "--fp8 off --mesh 2x2"},
      {"--fp8 gather", "", "--fp8 off --buffer_dtype bf16 --strategy no_shard"},
      {"--optimizer sgd", "--strategy no_shard", "--fp8 gather --param_dtype bf16 --wrap model"}};
  for (const auto &row : rows) {
    char arguments[1024];
    ckpt_begin(&t, &saver, &corpus, MPI_COMM_WORLD, row.kept, row.saving, "out");
    const uint64_t saved = states_hash(t.fsdp);
    EXPECT(saver_save(&saver, &log, false, false), "%s", t.run.store->result->error);
    trainer_close(&t);
    snprintf(arguments, sizeof arguments, "--resume auto --out %s %s", ckpt_path("out"), row.resumed);
    resume_from(&t, &saver, &corpus, MPI_COMM_WORLD, arguments);
    EXPECT(t.run.step == 1 && states_hash(t.fsdp) == saved, "%s, then %s: step %lld, or not the tensors that were "
           "saved", row.kept, row.resumed, (long long)t.run.step);
    const StepResult r = train_step(&t, false);
    EXPECT(r.loss > 7 && r.loss < 9 && !r.skipped, "%s, then %s: the next loss is %g", row.kept, row.resumed, r.loss);
    trainer_close(&t);
    MPI_Barrier(MPI_COMM_WORLD);
    if (!ckpt_rank()) ckpt_remove(ckpt_path("out"));
    MPI_Barrier(MPI_COMM_WORLD);
  }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}

// ---- rejections -----------------------------------------------------------------------------------------------------
TEST_MPI(moments_must_be_those_of_what_trains, 1,
         "optim.safetensors of a run that trained fewer parameters, or more, is rejected by the tensor's name") {
  static Corpus corpus;
  static Trainer t;
  static Saver saver;
  static Log log;
  resume_corpus(&corpus);
  const struct { const char *saved, *here, *said; } rows[] = {
      {"", "--freeze h.1.mlp.c_fc", "tensor exp_avg.h.1.mlp.c_fc.weight does not belong to this model, or is frozen"},
      {"--freeze wpe", "", "tensor exp_avg.wpe.weight is missing"},
      {"--freeze wpe", "--freeze wpe", NULL},
      {"--optimizer sgd", "", "tensor exp_avg.wte.weight is missing"}};
  for (const auto &row : rows) {
    char path[MAP_PATH_BYTES], *header[CHECKPOINT_FILES];
    Error error = {};
    TensorMap map;
    ckpt_begin(&t, &saver, &corpus, MPI_COMM_SELF, row.saved, "", "out");
    EXPECT(saver_save(&saver, &log, false, false), "%s", t.run.store->result->error);
    path_join(path, sizeof path, saver_path(&saver), "optim.safetensors");
    trainer_close(&t);
    ckpt_begin(&t, &saver, &corpus, MPI_COMM_SELF, row.here, "", "other");
    checkpoint_map(test_saved(&t), ".", &map, header);
    const bool same = checkpoint_check_header(path, header[CHECKPOINT_OPTIM], map.data_at[CHECKPOINT_OPTIM], &error);
    EXPECT(same == !row.said && (same || strstr(error.text, row.said)), "saved %s, here %s: '%s'", row.saved,
           row.here, error.text);
    for (char *h : header) free(h);
    tensor_map_free(&map);
    trainer_close(&t);
    ckpt_remove(ckpt_path("out"));
  }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}
