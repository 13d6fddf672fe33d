// test_cuda_train.h: the whole trainer on CUDA kernels (emulated, or real ones with DEVICE=cuda): against PyTorch's
// numbers, against the CPU, and N ranks against one.

TEST_MPI(cuda_gradients_equal_pytorch, 1,
         "CUDA kernels in fp32: loss within 1e-6 and every gradient within 1e-5 of PyTorch's") {
  for (const char *name : fixture_names)
    for (int i = 0; const Ops *ops = device_table(i); i++) {
      static Fixture x;
      fixture_open(&x, name, ops, "");
      const double loss = fixture_forward_backward(&x, (const int32_t *)fixture_tensor(&x, "inputs", "", I32).data,
                                                   (const int32_t *)fixture_tensor(&x, "targets", "", I32).data);
      const double want = *(const float *)fixture_tensor(&x, "loss", "", F32).data;
      EXPECT(fabs(loss / want - 1) <= 1e-6, "%s on %s: loss %.9g, PyTorch's %.9g", name, ops->name, loss, want);
      fixture_compare(&x, STATE_GRAD, "grad.", 1, 1e-5);
      fixture_close(&x);
    }
}

// One step's gradients of a fresh model on `ops`, all parameters one after the other, unscaled, and its mean loss.
// The gradients of the last call of cuda_gradients: what they are of, and where they end.
static struct { int pieces; struct { char name[64]; int64_t end; } piece[64]; } cuda_gradient;
static inline void cuda_gradient_piece(const char *of, const char *name, int64_t end) {
  CHECK(cuda_gradient.pieces < 64, "%d gradients", cuda_gradient.pieces + 1);
  auto *to = &cuda_gradient.piece[cuda_gradient.pieces++];
  snprintf(to->name, sizeof to->name, "%s%s", of, name);
  to->end = end;
}
// head_bytes: of logits that exist at once; 0: the device's. plans: receives plans_text's lines, if not NULL.
// malloc'ed.
static inline float *cuda_gradients(const Corpus *corpus, const Ops *ops, const char *extra, int64_t *count,
                                    double *loss, int64_t head_bytes = 0, char *plans = NULL, size_t plans_bytes = 0) {
  static Trainer t;
  Options o;
  test_options(&o, 1,
               "--n_layer 2 --n_head 2 --n_embd 64 --seq_len 33 --n_positions 40 --vocab_size 131 --batch_size 2 "
               "--isa avx2 --seed 3 %s",
               extra);
  trainer_open(&t, &o, corpus, MPI_COMM_SELF, device_of(ops), 2);
  if (head_bytes) {
    t.model.head_chunk_bytes = head_bytes;
    t.head_rows = head_rows(&t.model, 2 * t.model.T);
  }
  *loss = train_step(&t, false).loss;
  if (plans) ops->plans_text(&t.ctx, plans, plans_bytes);
  *count = 0;
  for (int p = 0; p < t.fsdp->lay.params; p++) *count += param_numel_padded(&t.fsdp->lay.param[p]);
  float *all = (float *)malloc(sizeof(float) * (size_t)*count), *at = all;
  const float scale = o.loss_scale > 0 ? (float)o.loss_scale : o.param_dtype == OPT_param_dtype_fp16 ? 65536.0f : 1.0f;
  const FsdpLayout *lay = &t.fsdp->lay;
  cuda_gradient.pieces = 0;
  for (int p = 0; p < lay->params; p++) {
    const Param *param = &lay->param[p];
    fsdp_read_param(t.fsdp, STATE_GRAD, p, at);
    // Of the biases of q, k and v those of q apart: their gradients are far smaller than v's.
    if (strstr(param->name, "c_attn.bias")) cuda_gradient_piece("q of ", param->name, at - all + 64);
    at += param_numel_padded(param);
    cuda_gradient_piece("", param->name, at - all);
  }
  for (int64_t i = 0; i < *count; i++) all[i] /= scale;
  trainer_close(&t);
  return all;
}
TEST_MPI(head_in_chunks_is_the_head, 1,
         "loss and gradients do not depend on how many rows of logits exist at once, except for the order of one sum") {
  static Corpus corpus;
  test_corpus(&corpus, 131, 2 * 33 * 4 + 1, 50);
  const Ops *const tables[] = {cpu_tables[cpu_best_table()].ops, &ops_cuda_emulated};
  for (const Ops *ops : tables)
    for (const char *extra : {"", "--tie_head off --reduce_dtype bf16", "--param_dtype bf16"}) {
      if (!ops) continue;
      int64_t n;
      double loss, whole_loss, off = 0, all = 0;
      float *whole = cuda_gradients(&corpus, ops, extra, &n, &whole_loss);
      float *chunks = cuda_gradients(&corpus, ops, extra, &n, &loss, 4 * 192 * 32); // 66 rows in 32, 32 and 2
      for (int64_t i = 0; i < n; i++) {
        off += ((double)chunks[i] - whole[i]) * ((double)chunks[i] - whole[i]);
        all += (double)whole[i] * whole[i];
      }
      EXPECT(loss == whole_loss, "%s %s: loss %.17g in chunks, %.17g whole", ops->name, extra, loss, whole_loss);
      // The head's gradient is a sum of 66 products in another order: below 66 roundings of 2^-24. A bf16 wire rounds
      // once more, 2^-9, where the two sums round to different numbers.
      EXPECT(sqrt(off / all) <= (strstr(extra, "bf16") ? 1e-3 : 4e-6), "%s %s: gradients are off by %.3g of their norm",
             ops->name, extra, sqrt(off / all));
      free(whole);
      free(chunks);
    }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}

TEST_MPI(
    cuda_step_equals_cpu_step, 1,
    "one step on CUDA kernels and on the CPU: each parameter's fp32 gradient within 1e-5 of its norm, halves within "
    "2 %; with and without dropout, RoPE, E4M3 matrices, frozen parameters, recomputed blocks, gradients added up") {
  static Corpus corpus;
  test_corpus(&corpus, 131, 2 * 33 * 4 + 1, 50);
  // Halves: products of two-byte operands are exact in fp32, but activations are rounded at each op, at a different
  // point if a GEMM and its bias are one kernel; 2^-9 per rounding, about ten of them on the path, of random sign.
  const struct {
    const char *extra;
    double bound;
  } cases[] = {{"", 1e-5},
               {"--dropout 0.2", 1e-5},
               {"--param_dtype bf16 --dropout 0.2", 0.02},
               {"--param_dtype fp16", 0.003},
               {"--param_dtype bf16 --reduce_dtype bf16 --tie_head off", 0.02},
               {"--fp8 gather", 1e-5},
               {"--fp8 gather --param_dtype bf16 --freeze h.1.attn.*,ln_f,*.bias", 0.02},
               {"--freeze wte,wpe,h.0.*,h.1.mlp.c_fc", 1e-5},
               {"--recompute block --dropout 0.2", 1e-5},
               {"--recompute gelu --tie_head off", 1e-5},
               {"--recompute block:1,mlp --dropout 0.2", 1e-5},
               {"--recompute norm --param_dtype bf16", 0.02},
               {"--position rope --param_dtype bf16", 0.02},
               {"--accumulate local --global_batch 6", 1e-5},
               // E4M3 GEMMs: where one bf16 rounding differs, 2^-9, an activation now and then, one in 2^5, is rounded
               // to the neighbouring E4M3 number, 2^-4 away: 2^-4 2^-2.5 of each GEMM's norm, of which there are eight.
               {"--seq_len 32 --fp8 matmul --param_dtype bf16", 0.04}};
  for (const auto &k : cases)
    for (int i = 0; const Ops *ops = device_table(i); i++) {
      int64_t n;
      double loss, want_loss;
      float *want = cuda_gradients(&corpus, cpu_tables[0].ops, k.extra, &n, &want_loss);
      float *got = cuda_gradients(&corpus, ops, k.extra, &n, &loss);
      for (int64_t p = 0, j = 0; p < cuda_gradient.pieces; p++) {
        double off = 0, all = 0;
        for (; j < cuda_gradient.piece[p].end; j++) {
          off += ((double)got[j] - want[j]) * ((double)got[j] - want[j]);
          all += (double)want[j] * want[j];
        }
        EXPECT(sqrt(off) <= k.bound * sqrt(all), "%s on %s: the gradient of %s is off by %.3g of its norm, bound %.0e",
               k.extra, ops->name, cuda_gradient.piece[p].name, sqrt(off / all), k.bound);
      }
      EXPECT(fabs(loss - want_loss) <= k.bound * 0.1 * want_loss, "%s on %s: loss %.9g, the CPU's %.9g", k.extra,
             ops->name, loss, want_loss);
      free(want);
      free(got);
    }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}

TEST_MPI(
    cuda_wire_dtypes_use_the_library, 1,
    "every pair of parameter and wire dtype: GEMMs by cuBLASLt, none by the kernel for odd shapes, gradients near "
    "the CPU's") {
  static Corpus corpus;
  test_corpus(&corpus, 131, 2 * 33 * 4 + 1, 50);
  const char *const dtypes[] = {"fp32", "bf16", "fp16"};
  for (const char *param : dtypes)
    for (const char *wire : dtypes)
      for (int i = 0; const Ops *ops = device_table(i); i++) {
        char extra[80];
        static char plans[1 << 14];
        int64_t n;
        double loss, want_loss, off = 0, all = 0;
        snprintf(extra, sizeof extra, "--param_dtype %s --reduce_dtype %s", param, wire);
        float *want = cuda_gradients(&corpus, cpu_tables[0].ops, extra, &n, &want_loss);
        float *got = cuda_gradients(&corpus, ops, extra, &n, &loss, 0, plans, sizeof plans);
        for (int64_t j = 0; j < n; j++) {
          off += ((double)got[j] - want[j]) * ((double)got[j] - want[j]);
          all += (double)want[j] * want[j];
        }
        // As in cuda_step_equals_cpu_step; a half wire adds one rounding on each side.
        EXPECT(sqrt(off / all) <= 0.02, "%s on %s: gradients are off by %.3g of their norm", extra, ops->name,
               sqrt(off / all));
        EXPECT(plans[0] && !strstr(plans, "own kernel"), "%s on %s:\n%s", extra, ops->name, plans);
        free(want);
        free(got);
      }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}

// N ranks on one device: over --comm mpi, and over NCCL where it lets ranks share one (the emulated one does).
static inline void cuda_worlds_equal(const char *extra) {
  static Corpus corpus;
  schedule_corpus(&corpus);
  for (int i = 0; const Ops *ops = device_table(i); i++) {
    WorldResult one, r;
    if (!schedule_run(&one, &corpus, ops, 1, "self", extra)) memset(&one, 0, sizeof one);
    MPI_Bcast(&one, sizeof one, MPI_BYTE, 0, MPI_COMM_WORLD);
    const char *const comms[] = {"mpi", "nccl"};
    for (const char *comm : comms)
      for (int world = 1; world <= 3; world++) {
        if (!strcmp(comm, "nccl") && ops == &ops_cuda && world > 1) continue;
        if (schedule_run(&r, &corpus, ops, world, comm, extra))
          schedule_expect(&r, &one, "%s, --comm %s, N=%d, %s", ops->name, comm, world, extra);
      }
  }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}
TEST_MPI(cuda_ranks_change_no_bit, 3,
         "N = 1, 2, 3 ranks on CUDA kernels: losses, norms, weights equal to the bit, over mpi and over NCCL") {
  cuda_worlds_equal("");
}
TEST_MPI(cuda_ranks_change_no_bit_half_all, 3, "the same in bf16 with a bf16 wire, and in fp16") {
  cuda_worlds_equal("--param_dtype bf16 --reduce_dtype bf16");
  cuda_worlds_equal("--param_dtype fp16");
}
TEST_MPI(cuda_ranks_on_hopper, 2,
         "1 and 2 ranks whose attention runs by wgmma give equal bits, by --attention auto; --attention mma others") {
  static Corpus corpus;
  test_corpus(&corpus, 101, 2 * 128 * SCHEDULE_STEPS + 1, 200);
  const char *const block = "--n_head 1 --n_embd 64 --n_layer 1 --seq_len 128 --n_positions 128 --batch_size 1 "
                            "--global_batch 2 --param_dtype bf16 --dropout 0.1";
  char with_mma[256];
  snprintf(with_mma, sizeof with_mma, "%s --attention mma", block);
  device_on_hopper(true);
  for (int i = 0; const Ops *ops = device_table(i); i++) {
    WorldResult one = {}, r, older = {};
    static DeviceProbe p;
    ops->device_probe(NULL, &p);
    if (!p.device[0].wgmma) continue;
    schedule_run(&one, &corpus, ops, 1, "self", block);
    schedule_run(&older, &corpus, ops, 1, "self", with_mma);
    MPI_Bcast(&one, sizeof one, MPI_BYTE, 0, MPI_COMM_WORLD);
    MPI_Bcast(&older, sizeof older, MPI_BYTE, 0, MPI_COMM_WORLD);
    if (schedule_run(&r, &corpus, ops, 2, "mpi", block)) schedule_expect(&r, &one, "%s, N=2 on Hopper", ops->name);
    EXPECT(one.weights != older.weights, "%s: --attention mma changes no bit", ops->name);
  }
  device_on_hopper(false);
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}
TEST_MPI(attention_is_agreed, 2,
         "--attention: Hopper's kernels where every rank has them, else those of every GPU; a recorded choice stays "
         "where it can") {
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const struct { int recorded; bool others; int want; } table[] = {
      {OPT_attention_auto, true, OPT_attention_wgmma}, {OPT_attention_auto, false, OPT_attention_mma},
      {OPT_attention_mma, true, OPT_attention_mma},    {OPT_attention_wgmma, false, OPT_attention_mma}};
  for (const auto &row : table) {
    Options o;
    options_default(&o, &trainer_table);
    o.attention = (decltype(o.attention))row.recorded;
    DeviceInfo gpu = {};
    gpu.major = rank && !row.others ? 8 : 9;
    gpu.wgmma = !rank || row.others;
    agree_on_attention(&o, &gpu, MPI_COMM_WORLD);
    EXPECT((int)o.attention == row.want, "recorded %d, rank 1 %s: %d", row.recorded, row.others ? "can" : "cannot",
           (int)o.attention);
  }
}
// Each mode's own ops once, on several ranks: the bits of one plain rank on the same kernels.
TEST_MPI(cuda_modes_change_no_bit, 4,
         "CUDA kernels with E4M3 weights, recomputed blocks, absent gradients, offloaded optimizer, bf16 moments, on "
         "meshes: the bits of one rank that does the same arithmetic") {
  static Corpus corpus;
  schedule_corpus(&corpus);
  const struct { int world; const char *comm, *sharding, *arithmetic; } cases[] = {
      {4, "nccl", "--mesh 2x2 --recompute block", "--fp8 gather"},
      {2, "nccl", "--shard dim0", SCHEDULE_OF_16 "--param_dtype bf16 --fp8 matmul"},
      {2, "mpi", "--offload params --recompute gelu", "--freeze wte,h.0.*,h.1.attn.*,*.bias --param_dtype bf16"},
      {3, "nccl", "--shard dim0", "--optimizer muon --n_layer 1"},
      {3, "nccl", "--shard dim0", "--moment_dtype bf16 --param_dtype bf16"},
      {2, "mpi", "--offload optimizer", "--moment_dtype bf16"},
      {1, "self", "--offload optimizer", "--fp8 gather --param_dtype bf16"}};
  for (int i = 0; const Ops *ops = device_table(i); i++)
    for (const auto &k : cases) {
      char extra[512];
      WorldResult one, r;
      snprintf(extra, sizeof extra, "%s %s", k.arithmetic, k.sharding);
      if (!strcmp(k.comm, "nccl") && ops == &ops_cuda) continue;               // not with one GPU for all
      if (!schedule_run(&one, &corpus, ops, 1, "self", k.arithmetic)) memset(&one, 0, sizeof one);
      MPI_Bcast(&one, sizeof one, MPI_BYTE, 0, MPI_COMM_WORLD);
      // Offloaded tensors are updated by the CPU's ops, whose bits are the same.
      if (schedule_run(&r, &corpus, ops, k.world, k.comm, extra))
        schedule_expect(&r, &one, "%s, --comm %s, N=%d, %s", ops->name, k.comm, k.world, extra);
    }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}
TEST_MPI(cuda_native_reduce_of_meshes_is_close, 4,
         "--reduce native with replicas: NCCL's sums inside and along them, near the ordered ones; exact traffic") {
  static Corpus corpus;
  if (!&ops_streams) SKIP("this test program was linked without dev/cuda_emu");
  schedule_corpus(&corpus);
  const WorldResult one = schedule_reference(&corpus, "");
  for (const char *mesh : {"--mesh 2x2", "--strategy no_shard", "--mesh 2x2 --offload optimizer",
                           "--mesh 2x2 --accumulate local", "--mesh 2x2 --graph off --shard dim0"})
    for (int64_t chunk : {(int64_t)0, (int64_t)384}) {
      WorldResult r;
      char extra[128];
      snprintf(extra, sizeof extra, "native %s", mesh);
      schedule_variant.chunk_numel = chunk;
      emu_set_seed(chunk ? 1 : 0);
      schedule_run(&r, &corpus, &ops_streams, 4, "nccl", extra);
      // As in cuda_native_reduce_is_close: the same 12 gradients, each of their sums rounded 11 times in either order.
      for (int s = 0; s < SCHEDULE_STEPS; s++)
        EXPECT(fabs(r.norm[s] / one.norm[s] - 1) < (s ? 1e-4 : 1e-6) && fabs(r.loss[s] / one.loss[s] - 1) < 1e-4,
               "%s, step %d: norm %.9g (%.9g), loss %.9g (%.9g)", extra, s, r.norm[s], one.norm[s], r.loss[s],
               one.loss[s]);
    }
  schedule_variant = ScheduleVariant{};
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}
TEST_MPI(cuda_native_reduce_is_close, 3,
         "--reduce native: one rank gives the ordered sum's bits, more ranks the same sums in another order; two terms "
         "have one order only: there Muon, too, has the ordered sum's bits") {
  static Corpus corpus;
  if (!&ops_streams) SKIP("this test program was linked without dev/cuda_emu");
  schedule_corpus(&corpus);
  WorldResult one = schedule_reference(&corpus, "");
  for (int world = 1; world <= 3; world++) {
    WorldResult r;
    // --reduce native needs --comm before it: alone it is rejected.
    if (!schedule_run(&r, &corpus, &ops_streams, world, "nccl", "native")) continue;
    if (world == 1) schedule_expect(&r, &one, "N=1, native");
    // Sums of 12 gradients: each of 11 additions rounds once, 2^-24. AdamW's first steps depend on a gradient's sign,
    // which a small relative error does not change; later steps have a relative error of the same size. 1e-4 is far
    // above that, and far below the error of a wrong sum.
    EXPECT(fabs(r.norm[0] / one.norm[0] - 1) < 1e-6 && fabs(r.loss[3] / one.loss[3] - 1) < 1e-4,
           "N=%d, native: norm %.9g (%.9g), loss %.9g (%.9g)", world, r.norm[0], one.norm[0], r.loss[3], one.loss[3]);
  }
  // The root in rounds of a two-byte wire, which all arrive in one place. Each of the N numbers of a sum is rounded
  // once more, 2^-9; a round that overwrites another's sum is wrong in half of the root.
  schedule_variant.chunk_numel = 384;
  one = schedule_reference(&corpus, "--reduce_dtype bf16");
  for (int world = 2; world <= 3; world++) {
    WorldResult r;
    if (!schedule_run(&r, &corpus, &ops_streams, world, "nccl", "native --reduce_dtype bf16")) continue;
    for (int s = 0; s < SCHEDULE_STEPS; s++)
      EXPECT(fabs(r.norm[s] / one.norm[s] - 1) < 0.01 && fabs(r.loss[s] / one.loss[s] - 1) < 1e-3,
             "N=%d, native in bf16, step %d: norm %.9g (%.9g), loss %.9g (%.9g)", world, s, r.norm[s], one.norm[s],
             r.loss[s], one.loss[s]);
  }
  schedule_variant = ScheduleVariant{};
  WorldResult r;
  one = schedule_reference(&corpus, "--optimizer muon --global_batch 2");
  if (schedule_run(&r, &corpus, &ops_streams, 2, "nccl", "native --optimizer muon --global_batch 2"))
    schedule_expect(&r, &one, "N=2, native, one microbatch per rank, Muon");
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}

TEST_MPI(cuda_tune_changes_no_bits, 2,
         "--tune: each rank finds faster algorithms for its GPU; weights, loss and next weights stay the same bits") {
  static Corpus corpus;
  static Trainer t;
  schedule_corpus(&corpus);
  // The second has rows on 16 bytes, which the emulated cuBLASLt's faster algorithm needs.
  for (const char *extra : {"", "--n_embd 32 --n_head 4 --seq_len 8"})
    for (int i = 0; const Ops *ops = device_table(i); i++) {
      Options o;
      static char text[2][1 << 14];
      uint64_t before[2], after[2];
      StepResult r[2];
      for (int tuned = 0; tuned < 2; tuned++) {
        test_options(&o, 2, "%s --param_dtype bf16 %s", schedule_shapes, extra);
        o.comm = OPT_comm_mpi;
        trainer_open(&t, &o, &corpus, MPI_COMM_WORLD, device_of(ops), 1);
        t.opt.tune = tuned ? OPT_tune_on : OPT_tune_off;
        trainer_choose_algorithms(&t, NULL);
        before[tuned] = weights_hash(t.fsdp);
        r[tuned] = train_step(&t, false);
        after[tuned] = weights_hash(t.fsdp);
        t.ctx.ops->plans_text(&t.ctx, text[tuned], sizeof text[tuned]);
        trainer_close(&t);
      }
      EXPECT(before[0] == before[1], "%s: tuning changed weights", ops->name);
      EXPECT(r[0].loss == r[1].loss && r[0].grad_norm == r[1].grad_norm && after[0] == after[1],
             "%s: after tuning loss %.17g and norm %.17g; without %.17g and %.17g", ops->name, r[1].loss,
             r[1].grad_norm, r[0].loss, r[0].grad_norm);
      if (ops == &ops_cuda_emulated && *extra) EXPECT(strcmp(text[0], text[1]), "nothing was tuned:\n%s", text[0]);
    }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}

TEST_MPI(cuda_tune_any_belongs_to_the_run, 2,
         "--tune any: other bits than without; a run on another number of ranks that is given them, by the checkpoint "
         "or by the FILE of --plans that the first wrote, has the same; trainer.json has them") {
  static Corpus corpus;
  static Trainer t;
  if (!&ops_cuda_emulated) SKIP("this test program was linked without dev/cuda_emu");
  schedule_corpus(&corpus);
  char path[512], json[1 << 16] = "";
  static char saved[1 << 16];
  snprintf(path, sizeof path, "%s/plans-%d", test_tmp(), 1);
  MPI_Bcast(path, sizeof path, MPI_CHAR, 0, MPI_COMM_WORLD);
  enum { WITHOUT, ANY, SAVED, FROM_FILE, WAYS };
  StepResult r[WAYS];
  uint64_t after[WAYS];
  for (int way = 0; way < WAYS; way++) {
    Options o;
    const int world = way == SAVED ? 1 : 2;
    test_options(&o, world, "%s --param_dtype bf16 --n_embd 32 --n_head 4 --seq_len 8", schedule_shapes);
    o.comm = world > 1 ? OPT_comm_mpi : OPT_comm_self;
    trainer_open(&t, &o, &corpus, world > 1 ? MPI_COMM_WORLD : MPI_COMM_SELF, device_of(&ops_cuda_emulated), 1);
    if (way == ANY) t.opt.tune = OPT_tune_any;
    if (way == ANY || way == FROM_FILE) snprintf(t.opt.plans, sizeof t.opt.plans, "%s", path);
    trainer_choose_algorithms(&t, way == SAVED ? saved : NULL);
    r[way] = train_step(&t, false);
    after[way] = weights_hash(t.fsdp);
    EXPECT((t.run.algorithms != NULL) == (way != WITHOUT), "run %d keeps algorithms: %d", way,
           t.run.algorithms != NULL);
    if (way == ANY) {
      snprintf(saved, sizeof saved, "%s", t.run.algorithms);
      EXPECT(strstr(saved, "bias, gelu in the product: "), "GELU is not cuBLASLt's: %s", saved);
      FILE *f = fmemopen(json, sizeof json - 1, "w");
      const Saved all = saved_of((RunView *)&t.run);
      checkpoint_write_head(f, &all, 0, CheckpointQuality{});
      fclose(f);
      strcat(json, "\"end\":0}");
      cJSON *parsed = cJSON_Parse(json);
      const char *there = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(parsed, "matmul_algorithms"));
      EXPECT(there && !strcmp(there, saved), "trainer.json has '%.200s'", there ? there : json);
      cJSON_Delete(parsed);
    }
    trainer_close(&t);
  }
  EXPECT(r[ANY].loss != r[WITHOUT].loss || after[ANY] != after[WITHOUT], "--tune any changes nothing: loss %.17g",
         r[ANY].loss);
  Options o;                                     // GELU that backward recomputes stays this program's
  test_options(&o, 2, "%s --param_dtype bf16 --n_embd 32 --n_head 4 --seq_len 8 --recompute gelu", schedule_shapes);
  o.comm = OPT_comm_mpi;
  trainer_open(&t, &o, &corpus, MPI_COMM_WORLD, device_of(&ops_cuda_emulated), 1);
  t.opt.tune = OPT_tune_any;
  trainer_choose_algorithms(&t, NULL);
  EXPECT(!strstr(t.run.algorithms, "gelu in the product: "), "GELU is cuBLASLt's: %s", t.run.algorithms);
  trainer_close(&t);
  for (int way : {SAVED, FROM_FILE})
    EXPECT(r[way].loss == r[ANY].loss && after[way] == after[ANY], "way %d: loss %.17g, not %.17g", way, r[way].loss,
           r[ANY].loss);
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}

TEST_MPI(cuda_algorithms_that_do_not_fit, 1,
         "a checkpoint's algorithms: rejected on a CPU and with --tune on, dropped by --tune off, rejected beside a "
         "FILE of others; a FILE that is not there is for --tune any alone") {
  static Corpus corpus;
  static Trainer t;
  static char text[ALGORITHMS_BYTES];
  char path[512];
  schedule_corpus(&corpus);
  snprintf(path, sizeof path, "%s/algorithms", test_tmp());
  FILE *f = fopen(path, "w");
  fputs("others\n", f);
  fclose(f);
  enum { NOT_GIVEN = -1 };
  const struct { bool gpu; int tune; const char *saved, *plans, *text, *said; } cases[] = {
      {false, NOT_GIVEN, NULL, "", "", ""},
      {false, NOT_GIVEN, "saved\n", "", "saved\n", "and this run computes on the CPU: continue with --tune off"},
      {false, OPT_tune_off, "saved\n", "", "", ""},
      {true, NOT_GIVEN, "saved\n", "", "saved\n", ""},
      {true, OPT_tune_any, "saved\n", "", "saved\n", ""},
      {true, OPT_tune_on, "saved\n", "", "saved\n", "leave out --tune on, or give --tune off"},
      {true, OPT_tune_off, "saved\n", "", "", ""},
      {true, NOT_GIVEN, NULL, path, "others\n", ""},
      {true, NOT_GIVEN, "saved\n", path, "saved\n", "has other algorithms than the checkpoint"},
      {true, NOT_GIVEN, "others\n", path, "others\n", ""},
      {true, NOT_GIVEN, NULL, "/none/there", "", "--plans /none/there cannot be read: No such file or directory; with "
       "--tune any it is written"},
      {true, OPT_tune_any, NULL, "/none/there", "", ""}};
  for (const auto &k : cases) {
    const Ops *ops = k.gpu ? &ops_streams : &ops_avx2;
    Options o;
    Error error = {};
    if (!ops) continue;
    test_options(&o, 1, "%s", schedule_shapes);
    o.given[OPT_tune] = k.tune != NOT_GIVEN;
    if (o.given[OPT_tune]) o.tune = (Choice_tune)k.tune;
    snprintf(o.plans, sizeof o.plans, "%s", k.plans);
    Ctx c = {};
    c.ops = ops;
    t.opt = o, t.ctx = c;
    text[0] = 0;
    trainer_named_algorithms(&t, k.saved, text, &error);
    EXPECT(!strcmp(text, k.text) && strstr(error.text, k.said) && !error.text[0] == !k.said[0],
           "%s, --tune %d, --plans '%s': '%s', '%s'", k.gpu ? "cuda" : "cpu", k.tune, k.plans, text, error.text);
  }
  memset(&t, 0, sizeof t);
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}

// ---- which GPU, which transport -------------------------------------------------------------------------------------
// A probe that sees the GPUs named by the letters of `buses`.
static inline DeviceProbe probe_seeing(const char *buses) {
  static DeviceProbe p;
  memset(&p, 0, sizeof p);
  for (; *buses; buses++, p.devices++) {
    snprintf(p.device[p.devices].bus_id, sizeof p.device[0].bus_id, "0000:0%c:00.0", *buses);
    snprintf(p.device[p.devices].name, sizeof p.device[0].name, "GPU");
  }
  return p;
}
TEST_MPI(
    gpus_are_dealt_by_what_ranks_see, 3,
    "one rank a GPU by bus id: shared lists by rank on the host, single GPUs as shown; sharing is seen, mixed views "
    "are rejected") {
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const struct {
    const char *what, *buses[3];
    int index[3], sharing[3];
    bool crowded, rejected;
    int gpus;
  } cases[] = {{"four GPUs", {"abcd", "abcd", "abcd"}, {0, 1, 2}, {1, 1, 1}, false, false, 3},
               {"three GPUs", {"abc", "abc", "abc"}, {0, 1, 2}, {1, 1, 1}, false, false, 3},
               {"two GPUs", {"ab", "ab", "ab"}, {0, 1, 0}, {2, 1, 2}, true, false, 2},
               {"one GPU", {"a", "a", "a"}, {0, 0, 0}, {3, 3, 3}, true, false, 1},
               {"one each", {"a", "b", "c"}, {0, 0, 0}, {1, 1, 1}, false, false, 3},
               {"one each, twice the same", {"a", "b", "b"}, {0, 0, 0}, {1, 2, 2}, true, false, 2},
               {"mixed", {"ab", "ab", "a"}, {}, {}, false, true, 0}};
  for (const auto &k : cases) {
    const DeviceProbe p = probe_seeing(k.buses[rank]);
    const GpuChoice g = choose_gpu(&p, MPI_COMM_WORLD, MPI_COMM_WORLD);
    EXPECT((g.error[0] != 0) == k.rejected, "%s, rank %d: '%s'", k.what, rank, g.error);
    if (k.rejected) continue;
    EXPECT(g.index == k.index[rank] && g.sharing == k.sharing[rank] && g.crowded == k.crowded,
           "%s, rank %d: GPU %d, %d ranks on it, crowded %d; must be %d, %d, %d", k.what, rank, g.index, g.sharing,
           g.crowded, k.index[rank], k.sharing[rank], k.crowded);
    EXPECT(g.gpus == k.gpus, "%s, rank %d: %d GPUs in all, must be %d", k.what, rank, g.gpus, k.gpus);
  }
}
TEST_MPI(
    gpu_ranks_agree_or_are_named, 3,
    "a rank with another driver, library or GPU says so; --comm auto is decided by GPUs, --comm nccl rejected by "
    "name") {
  int rank;
  Error error = {};
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  DeviceProbe p = probe_seeing("abc");
  int *const versions[] = {&p.driver, &p.runtime, &p.cublaslt, &p.nccl};
  for (int *v : versions) *v = 22809;
  agree_on_versions(&p, rank, true, MPI_COMM_WORLD, &error);
  EXPECT(!error.text[0], "equal versions are rejected: %s", error.text);
  for (int *v : versions) {
    *v += rank == 2;
    error.text[0] = 0;
    agree_on_versions(&p, rank, true, MPI_COMM_WORLD, &error);
    EXPECT((error.text[0] != 0) == (rank == 2), "rank %d: '%s'", rank, error.text);
    error.text[0] = 0;
    agree_on_versions(&p, rank, false, MPI_COMM_WORLD, &error);
    EXPECT((error.text[0] != 0) == (rank == 2 && v != &p.nccl), "rank %d, without NCCL: '%s'", rank, error.text);
    *v = 22809;
  }
  const struct {
    const char *comm, *graph;
    bool crowded, nccl;
    int world;
    const char *want, *said;
  } cases[] = {{"auto", "auto", false, true, 1, "self", ""},
               {"auto", "auto", false, true, 3, "nccl", ""},
               {"auto", "auto", true, true, 3, "mpi", ""},
               {"auto", "on", true, true, 3, "mpi", "--graph on: 3 ranks share a GPU"},
               {"auto", "auto", false, false, 3, "nccl", "--comm nccl: libnccl is not here (or use --comm mpi)"},
               {"nccl", "auto", false, false, 3, "nccl", "--comm nccl: libnccl is not here"},
               {"nccl", "auto", true, true, 3, "nccl", "--comm nccl: 3 ranks share the GPU 0000:0a:00.0"},
               {"mpi", "auto", false, true, 3, "mpi", ""}};
  for (const auto &k : cases) {
    Options o;
    options_default(&o, &trainer_table);
    option_pick(&o, OPT_comm, k.comm);
    option_pick(&o, OPT_graph, k.graph);
    GpuChoice g = {0, k.crowded ? 3 : 1, k.crowded, "", k.crowded ? 1 : 3, k.crowded ? 3 : 1};
    snprintf(p.nccl_missing, sizeof p.nccl_missing, "%s", k.nccl ? "" : "libnccl is not here");
    error.text[0] = 0;
    agree_on_comm(&o, &p, &g, k.world, &error);
    const char *comm = option_word(&o, OPT_comm);
    EXPECT(!strcmp(comm, k.want), "--comm %s, %d ranks, crowded %d: %s, must be %s", k.comm, k.world, k.crowded, comm,
           k.want);
    EXPECT(k.said[0] ? !strncmp(error.text, k.said, strlen(k.said)) : !error.text[0], "--comm %s: it said '%s', must "
           "be '%s'", k.comm, error.text, k.said);
  }
  Options o;
  options_default(&o, &trainer_table);
  GpuChoice own = {0, 1, false, "", 3, 1};
  o.comm = OPT_comm_nccl;
  p.nccl = 22505;
  error.text[0] = 0;
  agree_on_comm(&o, &p, &own, 3, &error);
  EXPECT(strstr(error.text, "NCCL 2.25 is too old"), "it said '%s'", error.text);
  p.nccl = 22809;
  // Rank 0 has a GPU of its own: those that share one say so.
  GpuChoice g = {0, rank ? 2 : 1, true, "", 2, rank ? 2 : 1};
  for (const char *comm : {"nccl", "auto"}) {
    options_default(&o, &trainer_table);
    option_pick(&o, OPT_comm, comm);
    o.graph = OPT_graph_on;
    error.text[0] = 0;
    agree_on_comm(&o, &p, &g, 3, &error);
    EXPECT(rank ? strstr(error.text, ": 2 ranks share") != NULL : !error.text[0], "--comm %s, rank %d: '%s'", comm,
           rank, error.text);
    EXPECT(!strcmp(option_word(&o, OPT_comm), !strcmp(comm, "auto") ? "mpi" : comm), "rank %d: %s", rank,
           option_word(&o, OPT_comm));
  }
  // NCCL's sum needs NCCL, of one rank too, and where ranks share a GPU it says that they do.
  for (int world : {1, 3}) {
    options_default(&o, &trainer_table);
    o.reduce = OPT_reduce_native;
    error.text[0] = 0;
    agree_on_comm(&o, &p, world == 1 ? &own : &g, world, &error);
    EXPECT(o.comm == OPT_comm_nccl && (world > 1 && rank ? strstr(error.text, ": 2 ranks share") != NULL :
           !error.text[0]), "--reduce native, %d ranks: %s, '%s'", world, option_word(&o, OPT_comm), error.text);
  }
}

TEST(gpu_options_are_rejected_by_name,
     "options that only one device supports are rejected on the other, and shapes beyond the kernels' limits too") {
  const struct {
    const char *device, *arguments, *said;
  } cases[] = {
      {"cuda", "", ""},
      {"cuda", "--isa avx2", "--isa needs --device cpu; this run computes on cuda: w"},
      {"cuda", "--n_embd 16392 --n_head 1", "--n_embd 16392: the CUDA kernels take 16384 columns at most"},
      {"cuda", "--n_embd 16384 --n_head 1", ""},
      {"cuda", "--n_embd 4098 --n_head 1",
       "--n_embd 4098: the CUDA kernels take 4096 columns at most, more for multiples of 8"},
      {"cuda", "--batch_size 65536", "--batch_size, --test_batch_size: the CUDA kernels take 65535 sequences at most"},
      {"cpu", "--n_embd 16392 --n_head 1 --isa avx2", ""},
      {"cpu", "--graph on", "--graph on needs --device cuda; this run computes on the CPU: w"},
      {"cpu", "--tune", "--tune needs --device cuda; this run computes on the CPU: w"},
      {"cpu", "--sm_margin 16", "--sm_margin needs --device cuda; this run computes on the CPU: w"},
      {"cpu", "--sm_margin 0", ""},
      {"cuda", "--sm_margin auto", ""},
      {"cpu", "--matmul_precision high", ""}};   // the table decides
  for (const auto &k : cases) {
    Options o;
    Error error = {};
    test_options(&o, 1, "%s", k.arguments);
    option_pick(&o, OPT_device, k.device);
    check_device_options(&o, "w", &error);
    EXPECT(!strcmp(error.text, k.said), "%s %s: it said '%s', must be '%s'", k.device, k.arguments, error.text, k.said);
  }
}

TEST_MPI(gpu_memory_is_what_was_planned, 2,
         "the device gave exactly the plan's bytes (rounded up to its 256-byte grain), and nothing grows in 6 steps") {
  if (!&ops_streams) SKIP("this test program was linked without dev/cuda_emu");
  static Corpus corpus;
  static Trainer t;
  schedule_corpus(&corpus);
  const struct {
    const char *comm, *extra;
  } cases[] = {{"nccl", ""}, {"mpi", ""}, {"mpi", "--shm off"}, {"nccl", "--param_dtype bf16 --reduce_dtype bf16"},
               {"nccl", "--strategy no_shard"}, {"nccl", "--accumulate local --fp8 gather"},
               {"mpi", "--offload optimizer --strategy no_shard --param_dtype bf16"},
               {"nccl", "--offload params --param_dtype bf16"}, {"mpi", "--offload params --shm off"},
               {"nccl", "--offload optimizer --freeze h.1.*,*.bias --fp8 gather"}};
  for (const auto &k : cases) {
    Options o;
    size_t before, after, late, total;
    test_options(&o, 2, "%s %s", schedule_shapes, k.extra);
    option_pick(&o, OPT_comm, k.comm);
    Ctx c = {};
    c.ops = &ops_streams;
    c.ops->device_open(&c, 0);
    c.ops->memory_left(&c, &before, &total);
    trainer_open(&t, &o, &corpus, MPI_COMM_WORLD, schedule_device(&ops_streams), 1);
    c.ops->memory_left(&c, &after, &total);
    for (int s = 0; s < 6; s++) train_step(&t, false);
    c.ops->memory_left(&c, &late, &total);
    const size_t plan = memory_planned_total(&t.run.plan, MEMORY_ON_DEVICE), took = before - after;
    EXPECT(took >= plan && took < plan + 32 * 256, "--comm %s %s: the device gave %zu bytes, planned are %zu", k.comm,
           k.extra, took, plan);
    EXPECT(late == after, "--comm %s %s: 6 steps took %zd more bytes of the device", k.comm, k.extra,
           (ssize_t)(after - late));
    trainer_close(&t);
    c.ops->device_close(&c);
  }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}

// Whole runs: on emulated streams the CPU's ops are as good and much faster.
static const Ops *hardware_train_table(int i) {
  const Ops *ops = device_table(i);
  return ops == &ops_cuda_emulated ? &ops_streams : ops;
}
TEST_MPI(hardware_nccl_trains, 1,
         "one rank that tells itself everything by NCCL, eagerly and captured, ordered and native: one rank's bits") {
  static Corpus corpus;
  schedule_corpus(&corpus);
  for (int i = 0; const Ops *ops = hardware_train_table(i); i++)
    for (const char *extra : {"", "--graph off", "native", "--reduce_dtype bf16 --param_dtype bf16"}) {
      WorldResult one, r;
      schedule_run(&one, &corpus, ops, 1, "self", strcmp(extra, "native") ? extra : "");
      schedule_variant.comms_of_one = true;
      if (schedule_run(&r, &corpus, ops, 1, "nccl", extra))
        schedule_expect(&r, &one, "%s, NCCL of one rank, %s", ops->name, extra);
      schedule_variant.comms_of_one = false;
    }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}

TEST_MPI(hardware_nccl_ranks, 4, "2 and 4 ranks on one GPU over NCCL (2.30 or later): one rank's bits") {
  static Corpus corpus;
  static DeviceProbe p;
  schedule_corpus(&corpus);
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  setenv("NCCL_MAX_CTAS", "2", 0);               // ranks that share a GPU must all find room on it at once
  for (int i = 0; const Ops *ops = hardware_train_table(i); i++) {
    ops->device_probe(NULL, &p);
    if (ops == &ops_cuda && p.nccl < NCCL_SHARES_A_GPU)
      SKIP("NCCL %d.%d lets no two ranks use one GPU; 2.30 and later do", p.nccl / 10000, p.nccl / 100 % 100);
    for (int world : {2, 4})
      for (const char *extra : {"", "--graph off"}) {
        WorldResult one, r;
        if (!schedule_run(&one, &corpus, ops, 1, "self", extra)) memset(&one, 0, sizeof one);
        MPI_Bcast(&one, sizeof one, MPI_BYTE, 0, MPI_COMM_WORLD);
        if (schedule_run(&r, &corpus, ops, world, "nccl", extra))
          schedule_expect(&r, &one, "%s, NCCL, %d ranks, %s", ops->name, world, extra);
      }
  }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}

// NCCL_ROOM: how much memory the device has: "whole": what plan and libraries take; "short": a byte less; "none": what
// the plan takes but for the libraries. joint: its memory is the host's, and has room for the plans of both;
// joint-short: for one and a half of the host's two.
TEST_MPI(nccl_memory_once, 2, "plan and measured libraries are what the device must have: with that much it trains") {
  if (!&ops_streams) SKIP("this test program was linked without dev/cuda_emu");
  static Corpus corpus;
  static Trainer t;
  Options o;
  const char *given = getenv("NCCL_ROOM"), *room = given ? given : "whole";
  schedule_corpus(&corpus);
  test_options(&o, 2, "%s", schedule_shapes);
  o.comm = OPT_comm_nccl;
  trainer_open(&t, &o, &corpus, MPI_COMM_WORLD, schedule_device(&ops_streams), 1);
  const size_t to_take = memory_planned_total(&t.run.plan, MEMORY_TO_TAKE);
  const size_t all = memory_planned_total(&t.run.plan, MEMORY_ON_DEVICE);
  EXPECT(t.run.plan.planned_bytes[MEM_NCCL] && t.run.plan.planned_bytes[MEM_CUBLASLT] &&
         all - to_take == t.run.plan.planned_bytes[MEM_NCCL] + t.run.plan.planned_bytes[MEM_CUBLASLT],
         "the plan has %zu bytes of NCCL, %zu of cuBLASLt; %zu to take of %zu", t.run.plan.planned_bytes[MEM_NCCL],
         t.run.plan.planned_bytes[MEM_CUBLASLT], to_take, all);
  const size_t without = to_take + t.run.plan.planned_bytes[MEM_CUBLASLT];
  const size_t host = memory_planned_total(&t.run.plan, MEMORY_ON_HOST);      // of one rank of two
  trainer_close(&t);
  // 32 x 256: the device's grain, see gpu_memory_is_what_was_planned.
  emu_set_device_bytes(!strcmp(room, "whole") ? all + 32 * 256 : !strcmp(room, "short") ? all - 1
                       : !strcmp(room, "joint") ? all + 32 * 256 + 2 * host
                       : !strcmp(room, "joint-short") ? all + host + host / 2 : without);
  Device device = schedule_device(&ops_streams);
  device.integrated = !strncmp(room, "joint", 5);
  trainer_open(&t, &o, &corpus, MPI_COMM_WORLD, device, 1);
  for (int s = 0; s < 3; s++) train_step(&t, false);
  trainer_close(&t);
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}
static int nccl_memory_child(const char *room, char *said, size_t bytes) {
  char self[512], command[1200], path[256];
  const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
  self[n > 0 ? n : 0] = 0;
  snprintf(path, sizeof path, "%s/child", test_tmp());
  snprintf(command, sizeof command, "NCCL_ROOM=%s \"${MPIRUN:-mpirun}\" --oversubscribe --bind-to none -np 2 '%s' "
           "--run nccl_memory_once >'%s' 2>&1", room, self, path);
  const int status = system(command);
  FILE *f = fopen(path, "r");
  said[f ? fread(said, 1, bytes - 1, f) : 0] = 0;
  if (f) fclose(f);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

TEST(nccl_memory_is_rejected_before_a_step,
     "a device that cannot hold plan and NCCL together, or, where its memory is the host's, the host's plan beside it: "
     "one clear line before the first step, exit code 3") {
  if (!&ops_streams) SKIP("this test program was linked without dev/cuda_emu");
  char said[4096];
  int code = nccl_memory_child("short", said, sizeof said);
  EXPECT(code == EXIT_MISSING && strstr(said, "taken by NCCL and cuBLASLt, but"), "exit %d: %s", code,
         said);
  code = nccl_memory_child("none", said, sizeof said);
  EXPECT(code == EXIT_MISSING && strstr(said, "NCCL lacked memory"), "exit %d: %s", code, said);
  code = nccl_memory_child("joint-short", said, sizeof said);
  EXPECT(code == EXIT_MISSING && strstr(said, "of the GPU besides ") && strstr(said, "which has no memory of its own"),
         "exit %d: %s", code, said);
  code = nccl_memory_child("joint", said, sizeof said);
  EXPECT(!code, "exit %d: %s", code, said);
}
// What a process sees that was shown one device of the emulated ones.
static const DeviceProbe *nccl_probe_of(int device) {
  static DeviceProbe all, p;
  ops_cuda_emulated.device_probe(NULL, &all);
  p = all;
  p.devices = 1;
  p.device[0] = all.device[device];
  return &p;
}

TEST_MPI(nccl_instances_have_memory_of_their_own, 3,
         "MIG instances of a GPU: memory is shared by UUID, NCCL rejected by PCI bus id, unless it lets ranks share") {
  if (!&ops_cuda_emulated) SKIP("the emulated kernels are not linked");
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const struct {
    const char *what;
    int instances, device[3], sharing[3], on_gpu[3], gpus;
    bool crowded;
  } cases[] = {{"three instances of a GPU", 3, {0, 1, 2}, {1, 1, 1}, {3, 3, 3}, 3, true},
               {"two ranks on one of two instances", 2, {0, 1, 1}, {1, 2, 2}, {3, 3, 3}, 2, true},
               {"instances of two GPUs", 2, {0, 1, 2}, {1, 1, 1}, {2, 2, 1}, 3, true},
               {"three GPUs", 1, {0, 1, 2}, {1, 1, 1}, {1, 1, 1}, 3, false}};
  for (const auto &k : cases) {
    emu_set_instances(k.instances);
    const DeviceProbe *p = nccl_probe_of(k.device[rank]);
    const GpuChoice g = choose_gpu(p, MPI_COMM_WORLD, MPI_COMM_WORLD);
    EXPECT(!g.error[0] && g.index == 0 && g.sharing == k.sharing[rank] && g.on_gpu == k.on_gpu[rank] &&
           g.gpus == k.gpus && g.crowded == k.crowded,
           "%s, rank %d: %d share its memory, %d its GPU, %d memories in all, crowded %d: %s", k.what, rank, g.sharing,
           g.on_gpu, g.gpus, g.crowded, g.error);
    for (int nccl : {22809, 23000})
      for (const char *enabled : {"", "0", "1"}) {
        setenv("NCCL_MULTI_RANK_GPU_ENABLE", enabled, 1);
        Options o;
        DeviceProbe q = *p;
        Error error = {};
        options_default(&o, &trainer_table);
        o.comm = OPT_comm_nccl;
        q.nccl = nccl;
        agree_on_comm(&o, &q, &g, 3, &error);
        const bool rejected = g.on_gpu > 1 && !(nccl == 23000 && !strcmp(enabled, "1"));
        const char *why = g.sharing > 1 ? "ranks share the GPU" : "MIG instances of the GPU";
        EXPECT(rejected ? strstr(error.text, why) != NULL : !error.text[0], "%s, NCCL %d, enabled '%s': '%s'", k.what,
               nccl, enabled, error.text);
        options_default(&o, &trainer_table);
        error.text[0] = 0;
        agree_on_comm(&o, &q, &g, 3, &error);
        EXPECT(!error.text[0] && o.comm == (k.crowded ? OPT_comm_mpi : OPT_comm_nccl), "%s: auto is %s: %s", k.what,
               option_word(&o, OPT_comm), error.text);
      }
  }
}
