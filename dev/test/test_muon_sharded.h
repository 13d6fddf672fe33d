// test_muon_sharded.h: Muon under sharding (fsdp/owned.h, fsdp/update.h). Its ops are tested in test_muon.h.
//
//   1 owners     who owns which matrix, and what a rank takes for that
//   2 arithmetic a step on any ranks is the plain step: whole matrices, q, k and v apart, AdamW for the rest
//   3 bits       every mode, device and transport gives the bits of one rank; checkpoints: test_checkpoint_modes.h

// ================================================================================================ 1 owners
// The matrices of `blocks` blocks of width C, in the order of parameters.
static inline int muon_matrices(OwnedMatrix *x, int blocks, int64_t C) {
  int n = 0;
  for (int l = 0; l < blocks; l++) {
    const int64_t shapes[6][2] = {{C, C}, {C, C}, {C, C}, {C, C}, {4 * C, C}, {C, 4 * C}};
    for (int k = 0; k < 6; k++, n++)
      x[n] = OwnedMatrix{12 * l + (k < 3 ? 2 : 2 * k - 2), k < 3 ? k : 0, shapes[k][0], shapes[k][1], 0, 0, 0, 0};
  }
  return n;
}
static inline int muon_by_name(const void *a, const void *b) {
  const OwnedMatrix *x = (const OwnedMatrix *)a, *y = (const OwnedMatrix *)b;
  return x->param != y->param ? x->param - y->param : x->part - y->part;
}
TEST(muon_owners_are_balanced,
     "matrices assigned to 1 to 1024 ranks: every matrix has one owner; no rank has more than the largest matrix's "
     "cost above another; each takes its matrices one per round, from the first; the order they come in decides "
     "nothing") {
  static OwnedMatrix x[512], again[512];
  for (int blocks : {1, 4, 12, 48}) for (int world : {1, 2, 3, 5, 6, 8, 24, 64, 288, 300, 1024}) {
    const int n = muon_matrices(x, blocks, 768);
    double load[1024] = {}, least = 1e300, most = 0, largest = 0;
    int rounds[1024] = {}, seen[1024] = {};
    for (int i = 0; i < n; i++) again[n - 1 - i] = x[i];
    owned_deal(x, n, world);
    owned_deal(again, n, world);
    for (int i = 0; i < n; i++) {
      REQUIRE(x[i].owner >= 0 && x[i].owner < world, "an owner is rank %d of %d", x[i].owner, world);
      const double m = (double)min64(x[i].rows, x[i].cols), k = (double)max64(x[i].rows, x[i].cols);
      const double cost = 3 * m * m * k + m * m * m;
      load[x[i].owner] += cost;
      if (cost > largest) largest = cost;
      rounds[x[i].owner]++;
    }
    for (int i = 0; i < n; i++) {
      EXPECT(x[i].round == seen[x[i].owner]++, "rank %d takes a matrix in round %d", x[i].owner, x[i].round);
      EXPECT(!i || x[i].round > x[i - 1].round || (x[i].round == x[i - 1].round && x[i].owner > x[i - 1].owner),
             "matrix %d is not in the order of rounds", i);
    }
    for (int r = 0; r < world; r++) {
      if (load[r] < least) least = load[r];
      if (load[r] > most) most = load[r];
    }
    EXPECT(most - least <= largest, "%d matrices on %d ranks: costs from %g to %g, the largest matrix's is %g", n,
           world, least, most, largest);
    qsort(x, (size_t)n, sizeof *x, muon_by_name);
    qsort(again, (size_t)n, sizeof *again, muon_by_name);
    for (int i = 0; i < n; i++)
      EXPECT(x[i].owner == again[i].owner && x[i].round == again[i].round, "%d ranks: the order decides", world);
  }
}

static const char owned_shapes[] = "--n_layer 4 --n_head 2 --n_embd 20 --seq_len 7 --n_positions 9 --vocab_size 101 "
                                  "--batch_size 1 --global_batch 12 --lr 0.01 --warmup 0 --clip 0.5 --optimizer muon";
// A rank's plan. Close with trainer_plan_close.
static inline void muon_plan(Trainer *t, int rank, int world, const char *extra) {
  static Options o;
  test_options(&o, world, "%s %s", owned_shapes, extra);
  trainer_plan_as(t, &o, device_of(cpu_tables[0].ops), rank, world, world);
}
TEST(muon_matrices_are_whole_in_runs,
     "flat and by rows, of 1 to 6 shards: the runs of a matrix follow each other in order of ranks and make it whole; "
     "q, k and v are three; what is frozen, or no matrix of a block, is AdamW's") {
  static Trainer t;
  for (const char *extra : {"", "--shard dim0", "--wrap model", "--freeze h.1.attn.*,h.2.mlp.c_fc"})
    for (int world = 1; world <= 6; world++) {
      if (world == 5) continue;                  // does not divide the batch
      muon_plan(&t, 0, world, extra);
      const OwnedLayout *o = &t.fsdp->lay.owned;
      EXPECT(o->matrices == (strstr(extra, "freeze") ? 24 - 4 - 1 : 24), "%s: %d matrices", extra, o->matrices);
      for (int k = 0; k < o->matrices; k++) {
        const OwnedMatrix *x = &o->matrix[k];
        const Param *p = &t.fsdp->lay.param[x->param];
        const bool qkv = strstr(p->name, "c_attn");
        int64_t at = 0;
        Span run, all;
        for (int i = 0; i < world; i++) {
          if (!owned_run(t.fsdp, x, i, &run)) continue;
          EXPECT(run.in_range == at, "%s: rank %d's run starts at %lld, not %lld", p->name, i, (long long)run.in_range,
                 (long long)at);
          REQUIRE(fsdp_span(t.fsdp, x->param, i, &all), "%s", p->name);
          EXPECT(x->first + run.in_range - all.in_range == run.in_piece - all.in_piece, "%s: a run is elsewhere",
                 p->name);
          at += run.numel;
        }
        EXPECT(at == x->rows * x->cols, "%s: runs of %lld elements", p->name, (long long)at);
        EXPECT(x->rows == p->shape[0] / (qkv ? 3 : 1) && x->first == x->part * x->rows * x->cols, "%s: part %d",
               p->name, x->part);
      }
      trainer_plan_close(&t);
    }
}
// C = 20: q, k, v and the projection are 20 x 20, the MLP's 80 x 20 and 20 x 80. As bf16 the largest take 3200 bytes,
// 3328 in steps of 256.
TEST(muon_takes_the_bytes_stated_here,
     "one moment for matrices, two for the rest; three slots of the largest matrix, in place or with a stage; one slot "
     "on one rank; nothing of that for AdamW") {
  static Trainer t, adamw;
  const int64_t work = (int64_t)align_bytes(newton_schulz_work_bytes(80, 20, BF16));
  const struct { int world; const char *extra; int64_t updates; } cases[] = {
      {1, "", 3328 + work}, {2, "", 3 * 3328 + work}, {2, "--shm copy", 3 * 3328 + work},
      // By rows each of two ranks has half of both matrices of a round: 1600 bytes, 1792 in steps of 256.
      {2, "--shm off --shard dim0", 3 * (3328 + 2 * 1792) + work},
      // Two replicas: the stage takes the momenta of matrices that the other replica's rank owns.
      {2, "--strategy no_shard", 3 * 3328 + 3 * 2 * 3328 + work}};
  for (const auto &k : cases) {
    char extra[128];
    muon_plan(&t, 0, k.world, k.extra);
    snprintf(extra, sizeof extra, "%s --optimizer adamw", k.extra);
    muon_plan(&adamw, 0, k.world, extra);
    Fsdp *&f = t.fsdp;
    int64_t matrices = 0;
    for (int u = 0; u < f->lay.units; u++)
      for (int i = 0; i < f->lay.unit[u].pieces; i++) {
        const Piece *c = &f->lay.unit[u].piece[i];
        if (f->lay.unit[u].stage && c->like->param->decay) matrices += round_up(c->numel, 128);
      }
    const size_t updates = t.run.plan.planned_bytes[MEM_UPDATES] + t.run.plan.planned_bytes[MEM_ORTHOGONAL];
    const size_t none = adamw.run.plan.planned_bytes[MEM_UPDATES] + adamw.run.plan.planned_bytes[MEM_ORTHOGONAL];
    EXPECT((int64_t)updates == k.updates, "%s: %zu bytes of matrices, must be %lld", k.extra, updates,
           (long long)k.updates);
    EXPECT(!none, "AdamW has %zu bytes", none);
    const size_t its = t.run.plan.planned_bytes[MEM_OPTIMIZER], adamws = adamw.run.plan.planned_bytes[MEM_OPTIMIZER];
    EXPECT((int64_t)(adamws - its) == 4 * matrices, "%s: moments take %zu bytes, AdamW's %zu", k.extra, its, adamws);
    trainer_plan_close(&adamw);
    trainer_plan_close(&t);
  }
}
TEST(muon_says_which_parameters_it_has,
     "the startup log shows the matrices, those that are frozen left out; options of Muon without it are rejected") {
  static Trainer t;
  const struct { const char *extra, *words; } cases[] = {
      {"", "h.*.attn.c_attn (q, k, v apart), h.*.attn.c_proj, h.*.mlp.c_fc, h.*.mlp.c_proj, 24 matrices, at most 12 "
           "per rank; AdamW for all the rest"},
      {"--freeze h.0.*,h.1.mlp.c_fc,*.attn.c_proj", "h.*.attn.c_attn (q, k, v apart) (of 3 of 4 blocks), "
       "h.*.mlp.c_proj (of 3 of 4 blocks), h.*.mlp.c_fc (of 2 of 4 blocks), 14 matrices, at most 8 per rank; AdamW for "
       "all the rest"},
      {"--freeze h.*", "nothing: all matrices of blocks are frozen; AdamW for all the rest"}};
  for (const auto &k : cases) {
    muon_plan(&t, 0, 2, k.extra);
    char *words = words_of(&t.run, muon_words);
    EXPECT(!strcmp(words, k.words), "%s: '%s', must be '%s'", k.extra, words, k.words);
    free(words);
    trainer_plan_close(&t);
  }
  for (const char *option : {"--muon_momentum 0.9", "--muon_nesterov off", "--muon_adjust original",
                             "--moment_dtype bf16 --optimizer sgd", "--moment_dtype bf16 --optimizer muon"}) {
    Options o;
    char text[128], *argv[8] = {(char *)"test"}, *save = NULL;
    Error error = {};
    int argc = 1;
    snprintf(text, sizeof text, "%s", option);
    for (char *w = strtok_r(text, " ", &save); w; w = strtok_r(NULL, " ", &save)) argv[argc++] = w;
    REQUIRE(options_parse(&o, &trainer_table, argc, argv, &error), "%s", error.text);
    EXPECT(!options_resolve(&o, 1, 1, &error) &&
               strstr(error.text, strstr(option, "dtype") ? "--moment_dtype belongs to --optimizer adamw, not to "
                                  : "belongs to --optimizer muon, not to adamw"), "%s: '%s'", option, error.text);
  }
}

// ================================================================================================ 2 arithmetic
// Values of all parameters in a state, one after the other. All ranks call it.
static inline float *muon_read(Fsdp *f, ShardState state) {
  int64_t n = 0;
  for (int p = 0; p < f->lay.params; p++) n += param_numel_padded(&f->lay.param[p]);
  float *all = (float *)calloc((size_t)n, sizeof(float)), *at = all;
  for (int p = 0; p < f->lay.params; at += param_numel_padded(&f->lay.param[p++])) fsdp_read_param(f, state, p, at);
  return all;
}
// A step of a whole parameter, in place.
static inline void muon_plain_step(Ctx *c, const Param *p, float *x, float *m, float *v, float *g, OptimizerArgs a) {
  const int64_t n = param_numel_padded(p), rows = p->shape[0] / p->matrices, cols = param_cols(p), one = rows * cols;
  const Tensor none = {};
  if (!p->decay) a.adamw.weight_decay = a.muon.weight_decay = 0;
  a.adamw.lr_scale = a.muon.lr_scale = p->lr_scale;
  if (!p->stage || p->ndim == 1) {
    adamw_update(c, none, tensor_of(x, F32, n), tensor_of(m, F32, n), tensor_of(v, F32, n), tensor_of(g, F32, n),
                 a.adamw);
    return;
  }
  const int64_t words = (int64_t)newton_schulz_work_bytes(rows, cols, BF16) / 4 + 64;
  void *work = aligned_alloc(256, (size_t)round_up(words * 4, 256));
  void *update = aligned_alloc(256, (size_t)round_up(one * 2, 256));
  for (int i = 0; i < p->matrices; i++) {
    muon_momentum(c, tensor_of(update, BF16, one), tensor_of(m + i * one, F32, one), tensor_of(g + i * one, F32, one),
                  a.muon);
    newton_schulz(c, tensor_of(update, BF16, rows, cols), tensor_of(update, BF16, rows, cols),
                  tensor_of(work, I32, words), MUON_STEPS);
    muon_update(c, none, tensor_of(x + i * one, F32, one), tensor_of(update, BF16, one), a.muon, rows, cols);
  }
  free(work);
  free(update);
}
TEST_MPI(muon_step_is_the_plain_step, 4,
         "three steps on one rank and on four, flat, by rows, of replicas, in place and by messages: parameters and "
         "moments are those of whole matrices that one plain loop updates; what all ranks receive is what the matrices "
         "must move") {
  static const struct { int world; const char *extra; } cases[] = {
      {1, ""}, {4, ""}, {4, "--shard dim0 --shm off --muon_adjust original"}, {3, "--muon_nesterov off --shm off"},
      {4, "--mesh 2x2 --shm off"}, {4, "--mesh 2x2 --muon_momentum 0.8"}, {4, "--strategy no_shard --shm off"}};
  static Corpus corpus;
  static Trainer t;
  test_corpus(&corpus, 101, 12 * 7 * 3 + 1, 60);
  for (const auto &k : cases) {
    Options o;
    MPI_Comm comm;
    if (!world_comm(k.world, &comm)) continue;
    test_options(&o, k.world, "%s %s", owned_shapes, k.extra);
    trainer_open(&t, &o, &corpus, comm, device_of(agree_on_ops(&o, comm)), 1);
    Fsdp *&f = t.fsdp;
    for (int s = 0; s < 3; s++) {
      float *want[3], *got[3], *g;
      for (int i = 0; i < 3; i++) want[i] = muon_read(f, (ShardState)i);
      f->traffic = Traffic{};
      train_step(&t, 0);
      g = muon_read(f, STATE_GRAD);
      for (int i = 0; i < 3; i++) got[i] = muon_read(f, (ShardState)i);
      Ctx c = t.ctx;
      c.state = t.host.state;
      int64_t at = 0, numel_ = 0, moved = 0;
      for (int p = 0; p < f->lay.params; at += param_numel_padded(&f->lay.param[p++]))
        muon_plain_step(&c, &f->lay.param[p], want[0] + at, want[1] + at, want[2] + at, g + at, optimizer_args(&o));
      static const char *const names[] = {"parameters", "first moments", "second moments"};
      for (int i = 0; i < 3; i++)
        EXPECT(!memcmp(want[i], got[i], sizeof(float) * (size_t)at), "N=%d %s, step %d: %s are others", k.world,
               k.extra, s, names[i]);
      // Every matrix once from all others of its owner's shard group, and once to all other ranks of all replicas.
      long long bytes = f->traffic.update_bytes, all = 0;
      for (int i = 0; i < f->lay.owned.matrices; i++) {
        const OwnedMatrix *x = &f->lay.owned.matrix[i];
        Span run;
        const int64_t n = x->rows * x->cols, own = owned_run(f, x, x->owner % o.shards, &run) ? run.numel : 0;
        numel_ += n;
        moved += 2 * (n - own + o.replicas * n - own);
      }
      MPI_Allreduce(&bytes, &all, 1, MPI_LONG_LONG, MPI_SUM, comm);
      EXPECT(numel_ == 4 * 12 * 20 * 20 && all == (strstr(k.extra, "shm off") ? moved : 0), "N=%d %s: %lld bytes of "
             "updates, must be %lld", k.world, k.extra, all, (long long)moved);
      expect_traffic(f, (int)o.grad_accum, s, k.extra);
      for (int i = 0; i < 3; i++) { free(want[i]); free(got[i]); }
      free(g);
    }
    trainer_close(&t);
    MPI_Comm_free(&comm);
  }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}

// ================================================================================================ 3 bits
// Modes on the CPU, of the given numbers of ranks (digits).
static const ScheduleMode muon_modes[] = {
    {"236", "", "", 0},
    {"4", "--shm off", "", 384},
    {"36", "--shard dim0 --shm copy --gather_slots 1", "--param_dtype bf16 --reduce_dtype bf16", 0},
    {"4", "--mesh 2x2", "--param_dtype fp16 --loss_scale 128", 0},
    {"6", "--mesh 3x2 --shm off --recompute block", "--freeze h.1.attn.*,*.ln_*", 0},
    {"3", "--strategy ddp", "--fp8 gather --tie_head off", 0},
    {"2", "--shard dim0", SCHEDULE_OF_16 "--fp8 matmul --param_dtype bf16", 0},
    {"2", "--strategy zero1 --wrap model --shard dim0", "--muon_adjust original --global_batch 2", 0}};
TEST_MPI(muon_gives_one_rank_s_bits, 6,
         "flat, by rows, meshes, strategies, dtypes, frozen parts, recomputed blocks, windows and messages: losses, "
         "norms and weights of 2 to 6 ranks are those of one, and traffic that of the formula") {
  static Corpus corpus;
  WorldResult got;
  schedule_corpus(&corpus);
  for (const ScheduleMode &k : muon_modes) {
    char extra[512];
    snprintf(extra, sizeof extra, "--optimizer muon %s", k.arithmetic);
    const WorldResult one = schedule_reference(&corpus, extra);
    snprintf(extra, sizeof extra, "--optimizer muon %s %s", k.arithmetic, k.sharding);
    schedule_variant.chunk_numel = k.chunk_numel;
    for (const char *w = k.worlds; *w; w++)
      if (schedule_run(&got, &corpus, cpu_tables[0].ops, *w - '0', "mpi", extra))
        schedule_expect(&got, &one, "N=%c, %s", *w, extra);
    schedule_variant = ScheduleVariant{};
  }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}
TEST_MPI(muon_gives_one_rank_s_bits_over_streams, 4,
         "the same over emulated streams and NCCL, captured and not, over mirrored windows and messages, in several "
         "orders, offloaded too: the CPU's bits") {
  static const ScheduleMode modes[] = {{"23", "", "--optimizer muon", 0},
                                       {"4", "--mesh 2x2 --graph off", "--optimizer muon --param_dtype bf16", 0},
                                       {"3", "--strategy no_shard", "--optimizer muon", 0},
                                       {"2", "--offload optimizer", "--optimizer muon --param_dtype bf16", 0},
                                       {"4", "--offload params --mesh 2x2", "--optimizer muon --fp8 gather", 0}};
  static const ScheduleMode messages[] = {{"3", "--shm off --shard dim0", "--optimizer muon", 0},
                                          {"2", "--shm off --offload optimizer", "--optimizer muon", 0}};
  SCHEDULE_MODES(modes, "nccl mpi", 2);
  SCHEDULE_MODES(messages, "mpi", 2);
}
TEST_MPI(muon_gives_one_rank_s_bits_alone, 1, "the same of one rank over streams, and of one over NCCL") {
  static const ScheduleMode modes[] = {{"1", "", "--optimizer muon", 0},
                                       {"1", "--offload optimizer", "--optimizer muon --param_dtype bf16", 0},
                                       {"1", "--offload params", "--optimizer muon --shard dim0", 0}};
  SCHEDULE_MODES(modes, "self nccl", 2);
}
