// test_lora.h: adapters. Loss, gradients and ten steps beside PEFT's (dev/make_lora_fixture.py makes
// dev/fixtures/lora_*); its files in and out; merged weights; bits over ranks, in test_modes.h too; a resumed run; what
// is rejected.

static const struct { const char *name, *base; } lora_cases[] = {
    {"gpt2", "hf_untied"}, {"qwen3", "family_qwen3"}, {"llama", "family_llama"}, {"nanochat", "family_nanochat"}};
enum { LORA_STEPS = 10 };

static inline void lora_open(FamilyRun *x, const char *base, const char *adapter, const Ops *ops, const char *extra) {
  char path[256], more[1024];
  snprintf(path, sizeof path, "dev/fixtures/%s", base);
  snprintf(more, sizeof more, "--lora_from %s --dropout 0 --clip 0 --lr 0.01 --weight_decay 0.1 --optimizer adamw %s",
           adapter, extra);
  family_open(x, path, ops, more);
}
// Step number `step` on the fixture's batch: the loss before its update.
static inline double lora_step(Trainer *t, int step, Tensor inputs, Tensor targets, bool update) {
  const int64_t n = t->opt.batch_size * t->model.T;
  const Tensor in = tensor_of((int32_t *)inputs.data + step * n, I32, n);
  const Tensor out = tensor_of((int32_t *)targets.data + step * n, I32, n);
  *t->host.input = StepInput{};
  t->host.input->step = (uint32_t)step, t->host.input->lr = 0.01f;
  const double loss = family_step(t, &in, &out);
  if (update) trainer_update(t);
  fsdp_sync(t->fsdp);
  return loss;
}
// A state of every factor against the fixture's tensors KIND.*, relative to each one's largest magnitude.
static inline void lora_compare_state(FamilyRun *x, SafetensorsFile *file, const char *prefix, ShardState state,
                                double bound, const char *what) {
  Fsdp *f = x->trainer.fsdp;
  const ModelShape *s = &x->trainer.model.shape;
  for (int p = 0; p < f->lay.params; p++) {
    const Param *q = &f->lay.param[p];
    if (!q->adapter) continue;
    float *got = (float *)malloc(sizeof(float) * (size_t)param_numel_padded(q));
    const float *at = got;
    fsdp_read_param(f, state, p, got);
    for (int part = 0; part < q->matrices; part++) {
      char name[160], key[256];
      lora_tensor_name(name, s, f->lay.param, p, part);
      snprintf(key, sizeof key, "%s%s", prefix, name);
      family_compare_tensor(x, file, key, &at, param_cols(q), lora_half_rows(s, f->lay.param, p, part), bound, what);
    }
    free(got);
  }
}

TEST_MPI(lora_equals_peft, 1,
         "PEFT's adapters of GPT-2, Qwen 3, Llama and NanoChat, of all matrices and of some, beside PEFT: fp32 losses "
         "of ten steps of AdamW within 1e-5, every gradient within 1e-5, the factors after them within 1e-4; each "
         "instruction set, blocks recomputed, emulated CUDA; no frozen weight has a gradient or changes a bit") {
  SafetensorsFile expected;
  if (!safetensors_open(&expected, "dev/fixtures/lora_expected.safetensors")) die_missing("%s", expected.error);
  for (const auto &k : lora_cases) for (int i = 0; i <= cpu_best_table() + 2; i++) {
    static FamilyRun x;
    const bool again = i == cpu_best_table() + 1, cuda = i == cpu_best_table() + 2;
    char adapter[256], key[64], prefix[64];
    Tensor inputs, targets, losses;
    const struct { const char *kind; Dtype dtype; Tensor *to; } tensors[] = {
        {"inputs", I32, &inputs}, {"targets", I32, &targets}, {"losses", F32, &losses}};
    for (const auto &t : tensors) {
      snprintf(key, sizeof key, "%s.%s", k.name, t.kind);
      REQUIRE(safetensors_find(&expected, key, t.dtype, t.to), "%s", expected.error);
    }
    snprintf(adapter, sizeof adapter, "dev/fixtures/lora_%s", k.name);
    lora_open(&x, k.base, adapter, cuda ? &ops_cuda_emulated : cpu_tables[again ? 0 : i].ops,
              again ? "--recompute block" : "");
    Trainer *t = &x.trainer;
    mode_expect_frozen(t->fsdp, k.name);
    const uint64_t frozen = params_hash(t->fsdp, true);
    for (int step = 0; step < (cuda ? 2 : LORA_STEPS); step++) {
      const double got = lora_step(t, step, inputs, targets, step || !cuda), want = ((const float *)losses.data)[step];
      EXPECT(fabs(got / want - 1) <= 1e-5, "%s on %s, step %d: loss %.9g, PEFT's %.9g", k.name, t->ctx.ops->name, step,
             got, want);
      snprintf(prefix, sizeof prefix, "%s.grad.", k.name);
      if (!step) lora_compare_state(&x, &expected, prefix, STATE_GRAD, 1e-5, k.name);
      if (!step && cuda) break;
    }
    snprintf(prefix, sizeof prefix, "%s.after.", k.name);
    if (!cuda) lora_compare_state(&x, &expected, prefix, STATE_MASTER, 1e-4, k.name);
    EXPECT(params_hash(t->fsdp, true) == frozen, "%s: a frozen weight has changed", k.name);
    family_close(&x);
  }
  safetensors_close(&expected);
}

TEST_MPI(lora_files_are_pefts, 1,
         "an exported adapter has the bits of PEFT's file, for llama.cpp every byte that its own package writes, and "
         "merged weights, read as whole ones, the loss of the adapter beside its base to rounding") {
  for (const auto &k : lora_cases) {
    static FamilyRun x, y;
    char adapter[256], dir[1024], merged[1024], path[1200];
    Error error = {};
    int32_t tokens[14];
    for (int i = 0; i < 14; i++) tokens[i] = i * 5 % 61;
    int32_t two[52];
    for (int i = 0; i < 26; i++) two[i] = tokens[i % 13], two[26 + i] = tokens[1 + i % 13];
    const Tensor inputs = tensor_of(two, I32, 26), targets = tensor_of(two + 26, I32, 26);
    snprintf(adapter, sizeof adapter, "dev/fixtures/lora_%s", k.name);
    ix_directory(dir, k.name);
    snprintf(path, sizeof path, "%s-merged", k.name);
    ix_directory(merged, path);
    lora_open(&x, k.base, adapter, cpu_tables[0].ops, "--merge");
    const double loss = lora_step(&x.trainer, 0, inputs, targets, false);
    REQUIRE(export_hf(&x.trainer.run, merged), "%s is not merged", k.name);
    x.trainer.opt.merge = false;
    REQUIRE(export_hf(&x.trainer.run, dir), "%s is not exported", k.name);
    if (strcmp(k.name, "nanochat")) {
      char out[1024], wanted[256];
      snprintf(path, sizeof path, "%s-gguf", k.name);
      ix_directory(out, path);
      snprintf(x.trainer.opt.out, sizeof x.trainer.opt.out, "%s", out);
      x.trainer.opt.export_gguf = OPT_export_gguf_f16;
      REQUIRE(export_gguf(&x.trainer.run), "%s is not exported for llama.cpp", k.name);
      snprintf(path, sizeof path, "%s/adapter.gguf", out);
      snprintf(wanted, sizeof wanted, "dev/fixtures/gguf_lora_%s.gguf", k.name);
      gguf_compare(path, wanted);
    }
    family_close(&x);
    SafetensorsFile theirs, ours;
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", adapter);
    if (!safetensors_open(&theirs, path)) die_missing("%s", theirs.error);
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", dir);
    if (!safetensors_open(&ours, path)) die_missing("%s", ours.error);
    EXPECT(ours.count == theirs.count, "%s: %d tensors, PEFT has %d", k.name, ours.count, theirs.count);
    for (int i = 0; i < theirs.count; i++) {
      const SafetensorsTensor *a = &theirs.tensor[i], *b = safetensors_entry(&ours, a->name);
      EXPECT(b && a->bytes == b->bytes && !memcmp(theirs.map + a->at, ours.map + b->at, (size_t)a->bytes),
             "%s: %s is not PEFT's", k.name, a->name);
    }
    safetensors_close(&theirs);
    safetensors_close(&ours);
    Lora a = {}, b = {};
    char names[2][1024];
    REQUIRE(lora_config_read(&a, names[0], 1024, adapter, &error) &&
            lora_config_read(&b, names[1], 1024, dir, &error), "%s", error.text);
    EXPECT(a.rank == b.rank && a.alpha == b.alpha, "%s: its configuration is another", k.name);
    family_open(&y, merged, cpu_tables[0].ops, "--dropout 0");
    const double whole = lora_step(&y.trainer, 0, inputs, targets, false);
    EXPECT(fabs(whole / loss - 1) <= 2e-6, "%s: loss %.9g of merged weights, %.9g before", k.name, whole, loss);
    family_close(&y);
  }
}

TEST_MPI(lora_reduces_adapters_alone, 3,
         "on three ranks a step with adapters sends the bytes of their gradients and no more, also with bf16 weights, "
         "whose adapters stay fp32; bits are one rank's; its checkpoints' snapshot has no frozen byte") {
  static Corpus corpus;
  static const char *const kinds[] = {"", "--param_dtype bf16 --lora_dropout 0.2", "--fp8 gather --shm off"};
  test_corpus(&corpus, 101, 4000, 100);
  for (const char *kind : kinds) {
    uint64_t hash[2] = {};
    for (int world = 1; world <= 3; world += 2) {
      MPI_Comm comm;
      static Trainer t;
      Options o;
      if (!world_comm(world, &comm)) { MPI_Barrier(MPI_COMM_WORLD); continue; }
      test_options(&o, world, "%s --global_batch 6 --lora 3 --lora_targets attn.c_attn,c_fc %s", mode_shapes, kind);
      trainer_open(&t, &o, &corpus, comm, device_of(agree_on_ops(&o, comm)), 1);
      Fsdp *&f = t.fsdp;
      int64_t bytes = 0, adapters = 0;
      for (int u = 0; u < f->lay.units; u++) bytes += unit_wire_numel(&f->lay.unit[u]) * 4;
      for (int p = 0; p < f->lay.params; p++) {
        const Param *q = &f->lay.param[p];
        adapters += q->adapter ? param_numel_padded(q) * 4 : 0;
        EXPECT(q->adapter == !q->frozen && (!q->adapter || f->lay.place[p].dtype == F32), "%s: %s", kind, q->name);
      }
      EXPECT(bytes * world < adapters + f->lay.units * world * 4 * (PARAM_ALIGN_NUMEL * 5), "%s: %lld bytes of "
             "gradients for %lld of adapters", kind, (long long)bytes * world, (long long)adapters);
      EXPECT(store_snapshot_bytes(f) <= 3 * bytes + f->lay.params * 3 * 4 * PARAM_ALIGN_NUMEL, "%s: a snapshot of %lld "
             "bytes", kind, (long long)store_snapshot_bytes(f));
      for (int s = 0; s < 2; s++) {
        f->traffic = Traffic{};
        EXPECT(!train_step(&t, false).skipped, "%s: step %d was skipped", kind, s);
        expect_traffic(f, (int)o.grad_accum, s, kind);
        EXPECT(f->traffic.reduce_bytes == (world - 1) * bytes * o.grad_accum, "%s: %lld bytes reduced, %lld are due",
               kind, (long long)f->traffic.reduce_bytes, (long long)((world - 1) * bytes * o.grad_accum));
      }
      hash[world > 1] = weights_hash(f) ^ fsdp_weights_hash(f);
      trainer_close(&t);
      if (world == 1) MPI_Barrier(MPI_COMM_WORLD);
      MPI_Comm_free(&comm);
    }
    MPI_Bcast(&hash[0], 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
    EXPECT(hash[0] == hash[1], "%s: other bits on three ranks", kind);
  }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}

TEST(lora_runs_resume_on_their_base,
     "a run with adapters, resumed on two ranks, ends with the bits of one that was never stopped; checkpoints have "
     "adapters alone; another base is rejected, by a checkpoint and by an exported adapter; so is what makes no "
     "sense") {
  const char *small = "--data random --batch_size 1 --seq_len 13 --global_batch 2 --eval_every -1 --sample_tokens 0 "
                      "--report off --max_steps 4";
  CliRun r;
  CLI_RUN(&r, "%s %s --init_from dev/fixtures/family_qwen3 --lora 4 --lora_dropout 0.1 --save_every 2 --keep 0 "
          "--out %s --export_hf %s", cli_ranks(0), small, cli_path("whole"), cli_path("adapter"));
  cli_expect_done(&r, "adapters");
  EXPECT(strstr(r.text, "exported: the adapter in"), "no adapter: %s", r.text);
  cli_free(&r);
  CLI_RUN(&r, "%s %s --resume %s/ckpt/step_00000002 --out %s", cli_ranks(2), small, cli_path("whole"),
          cli_path("again"));
  cli_expect_done(&r, "resumed");
  cli_free(&r);
  for (const char *file : checkpoint_files) {
    char a[700], b[700];
    snprintf(a, sizeof a, "%s/ckpt/latest/%s", cli_path("whole"), file);
    snprintf(b, sizeof b, "%s/ckpt/latest/%s", cli_path("again"), file);
    cli_expect_same_file("resumed on two ranks", a, b);
    SafetensorsFile f;
    if (!safetensors_open(&f, a)) die_missing("%s", f.error);
    for (int i = 0; i < f.count; i++) EXPECT(strstr(f.tensor[i].name, ".lora_"), "%s has %s", a, f.tensor[i].name);
    safetensors_close(&f);
  }
  // The same shape, one weight another.
  char dir[1024], path[MAP_PATH_BYTES];
  family_copy(dir, "qwen3");
  Error error = {};
  Import *s = import_open(dir, NULL, &error);
  REQUIRE(s, "%s", error.text);
  snprintf(path, sizeof path, "%s", s->set.shard[0].path);
  const int64_t at = s->set.shard[0].file.tensor[0].at;
  import_close(s);
  const int fd = open(path, O_WRONLY);
  const float one = 0.125f;
  REQUIRE(fd >= 0 && pwrite(fd, &one, 4, at) == 4, "%s cannot be changed", path);
  close(fd);
  mkdir(cli_path("theirs"), 0777);
  cli_write(cli_path("theirs/adapter_config.json"), "{}", 2);
  const struct { const char *options; int code; const char *says; } rejections[] = {
      {"--init_from %s --resume @/whole/ckpt/latest --max_steps 6", 3, "are for other weights than those of"},
      {"--init_from %s --lora_from @/adapter", 3, "are for other weights than those of"},
      {"--init_from dev/fixtures/family_llama --lora_from @/adapter", 3, "expected"},
      {"--init_from @/whole/ckpt/latest", 3, "this checkpoint has adapters alone"},
      {"--resume @/whole/ckpt/latest --lora_from @/adapter", 2, "--resume continues a run with its own adapters"},
      {"--init_from dev/fixtures/family_qwen3 --lora_from @/adapter --export_hf @/theirs", 2,
       "has an adapter_config.json that this program has not written"},
      {"--lora 4", 2, "--lora needs the weights that adapters are for: --init_from PATH"},
      {"--init_from %s --merge", 2, "--merge belongs to --lora RANK: give that too, or leave it out"},
      {"--init_from %s --lora 4 --lora_targets c_attn", 2, "--lora_targets c_attn names no matrix of this model's "
       "blocks, which are self_attn.q_proj, "},
      {"--init_from %s --lora 2 --lora_from @/adapter", 2, "--lora 2 contradicts "},
      {"--resume @/whole/ckpt/latest --lora 2 --max_steps 6", 2, "--lora 2 contradicts "}};
  for (const auto &k : rejections) {
    char options[4096];
    snprintf(options, sizeof options, k.options, dir);
    CLI_RUN(&r, "%s %s %s --out %s", cli_ranks(0), small, cli_expand(options), cli_path("refused"));
    EXPECT(r.code == k.code && strstr(r.text, k.says), "%s: exit code %d, must be %d; it said:\n%s", options, r.code,
           k.code, r.text);
    cli_free(&r);
  }
}
