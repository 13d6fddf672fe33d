// test_blocks.h: numbers in blocks (kernels/blocks.h) as an op on every table and device, and as weights that are kept
// so (--base_dtype). That blocks are what llama.cpp's package says, test_gguf_import.h asks; what is made of numbers is
// beside that package's and bitsandbytes' (dev/make_quantize_fixture.py).

static const int blocks_tested[] = {
    BLOCK_F16,
#define X(name, id, values, bytes) id,
    BLOCK_TYPES(X)
#undef X
};
// Any bytes, but that some scales are zero, and that most are finite.
static Tensor blocks_random(int type, int64_t blocks, uint64_t seed) {
  Tensor t = op_tensor(BLOCKS, blocks * block_bytes(type));
  for (int64_t i = 0; i < numel(t); i++) ((uint8_t *)t.data)[i] = (uint8_t)op_random(&seed);
  for (int64_t b = 0; b < blocks; b += 5) memset((char *)t.data + b * block_bytes(type), 0, 2);
  return t;
}
static Tensor blocks_expected(int type, Tensor in, Dtype dtype) {
  const int64_t blocks = numel(in) / block_bytes(type), values = block_values(type);
  Tensor out = op_tensor(dtype, blocks * values);
  for (int64_t b = 0; b < blocks; b++) {
    float x[BLOCK_VALUES_MAX];
    blocks_read(type, x, (const uint8_t *)in.data + b * block_bytes(type), 1);
    for (int64_t i = 0; i < values; i++) DISPATCH(dtype, T, round_param((T *)out.data + b * values + i, x[i]));
  }
  return out;
}
// bits: those of NaNs too.
static void blocks_expect(const char *where, Tensor got, Tensor want, bool bits) {
  const size_t b = dtype_bytes(want.dtype);
  int64_t bad = -1;
  for (int64_t j = 0; j < numel(want) && bad < 0; j++) {
    const size_t at = (size_t)j * b;
    if (bits ? memcmp((char *)got.data + at, (char *)want.data + at, b) : !ops_same_number(got, want, j)) bad = j;
  }
  EXPECT(bad < 0, "%s: element %lld is %.9g, expected %.9g", where, (long long)bad, op_get(got, bad < 0 ? 0 : bad),
         op_get(want, bad < 0 ? 0 : bad));
}
TEST(blocks_tables_and_devices,
     "blocks_expand of each type is its formula rounded once as parameters are, bits of NaNs included, on every table "
     "for any threads, and on CUDA") {
  for (int type : blocks_tested)
    for (Dtype dtype : {F32, BF16, F16})
      for (int64_t blocks : {1, 3, 700}) {
        char where[96];
        const WorkspaceQuery q = {dtype, F32, 1, 1, 8, 1, 1, 1};
        Tensor in = blocks_random(type, blocks, (uint64_t)(type + blocks)), want = blocks_expected(type, in, dtype);
        for (int i = 0; const Ops *ops = op_table(i); i++)
          for (int threads : {1, 3}) {
            Ctx c = op_ctx(ops, threads, q);
            Tensor out = op_tensor(dtype, numel(want));
            blocks_expand(&c, out, in, type);
            snprintf(where, sizeof where, "%s, type %d, %s", ops->name, type, dtype_name(dtype));
            // A sum of two NaNs has the bits of either; fp16's own NaNs become quiet or not.
            blocks_expect(where, out, want, block_values(type) > 1 && type != BLOCK_Q4_1 && type != BLOCK_Q5_1);
          }
        for (int i = 0; const Ops *ops = device_table(i); i++) {
          if (blocks > 3) continue;
          Ctx c = device_ctx(ops, q);
          Tensor d_out = device_tensor(&c, dtype, numel(want));
          blocks_expand(&c, d_out, device_upload(&c, in), type);
          blocks_expect(device_where("blocks_expand", &c, dtype), device_download(&c, d_out), want, false);
          device_done(&c);
        }
        op_free_all();
      }
}

// ---- a frozen base that keeps its file's bytes ----------------------------------------------------------------------
// The model of gguf_make, whose matrices have every type; q, k and v, gate and up others.
static const char *kept_file() {
  static char prefix[1024], path[1100];
  int rank = 0, ranks;
  MPI_Initialized(&ranks);
  if (ranks) MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  snprintf(prefix, sizeof prefix, "%s/kept", test_tmp());
  snprintf(path, sizeof path, "%s.gguf", prefix);
  if (!rank && access(path, F_OK)) gguf_make(prefix, 1, NULL, 0, false, true);
  if (ranks) MPI_Barrier(MPI_COMM_WORLD);
  return path;
}
// A trainer with adapters beside the weights of PATH. False: `error` says why the options are rejected. All ranks call
// it.
static bool kept_open(FamilyRun *x, const char *path, MPI_Comm comm, const Ops *ops, const char *extra, Error *error) {
  char text[2048], *argv[48] = {(char *)"test"}, *save = NULL;
  int argc = 1, rank, world;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &world);
  memset((void *)x, 0, sizeof *x);
  error->text[0] = 0;
  snprintf(text, sizeof text, "%s%s --seq_len 8 --batch_size 1 --lr 0.01 --warmup 0 %s", *path ? "--init_from " : "",
           path, extra);
  for (char *word = strtok_r(text, " ", &save); word; word = strtok_r(NULL, " ", &save)) argv[argc++] = word;
  options_parse(&x->o, &trainer_table, argc, argv, error);
  if (!rank && !error->text[0]) start_find(&x->start, &x->o, error);
  MPI_Bcast(error, (int)sizeof *error, MPI_BYTE, 0, comm);
  if (error->text[0]) return false;
  start_share(&x->start, comm);
  if (!start_options(&x->start, &x->o, error)) return false;
  if (!options_resolve(&x->o, world, world, error)) return false;
  test_corpus(&x->corpus, (int)x->o.vocab_size, 4000, 100);
  trainer_open(&x->trainer, &x->o, &x->corpus, comm, device_of(ops), 1);
  saver_init(&x->saver, &x->trainer.run);
  start_load(&x->start, &x->trainer.run, &x->saver);
  return true;
}
// What each matrix is: the numbers of the file's blocks, or those once more in blocks that are made of them.
static void kept_expect_values(FamilyRun *x, const char *path, const char *what) {
  Fsdp *f = x->trainer.fsdp;
  Error error = {};
  Import *s = import_open(path, NULL, &error);
  REQUIRE(s, "%s", error.text);
  int kept = 0;
  for (int p = 0; p < f->lay.params; p++) {
    const Param *q = &f->lay.param[p];
    const int64_t n = param_numel(q);
    if (q->adapter) continue;
    float *got = (float *)malloc(sizeof(float) * (size_t)param_numel_padded(q));
    float *want = (float *)malloc(sizeof(float) * (size_t)n);
    fsdp_read_param(f, STATE_MASTER, p, got);
    if (f->mesh.rank) memcpy(want, got, sizeof(float) * (size_t)n);            // rank 0 looks
    else gguf_made_values(want, s, q);
    uint8_t *made = (uint8_t *)malloc((size_t)n * sizeof(float));
    for (int k = 0; !f->mesh.rank && k < q->keeps && x->o.base_dtype != OPT_base_dtype_file; k++) {
      const int type = q->kept[k];
      const int64_t part = q->matrix_rows[k] * q->shape[1];
      float *at = want + param_part_first(q, k);
      char name[FAMILY_NAME_BYTES];
      gguf_tensor_name(name, q, k, false);
      if (set_entry(&s->set, name, NULL)->ggml == type) continue;   // stays as it is
      blocks_make(type, made, at, part);
      blocks_read(type, at, made, part / block_values(type));
    }
    EXPECT(!memcmp(got, want, sizeof(float) * (size_t)n), "%s: %s differs", what, q->name);
    kept += q->keeps;
    free(made);
    free(got);
    free(want);
  }
  EXPECT(kept, "%s: nothing is kept", what);
  import_close(s);
}
// Bytes of the blocks of all kept matrices outside of stage 0, or in it; of as many shards as there are ranks. What
// shards have more than the file is less than BLOCKS_ALIGN blocks of each type and rank, or with dim0 rows.
static void kept_expect_bytes(const Fsdp *f, const char *what) {
  for (int u = 0; u < f->lay.units; u++) {
    const Unit *q = &f->lay.unit[u];
    int64_t of_file = 0, sent = 0, more = 0;
    for (int p = 0; p < f->lay.params; p++)
      for (int k = 0; k < f->lay.param[p].keeps && f->lay.place[p].unit == u; k++)
        of_file += f->lay.param[p].matrix_rows[k] * blocks_bytes(f->lay.param[p].kept[k],
                                                                 f->lay.param[p].shape[1]);
    for (int i = 0; i < q->pieces; i++) {
      if (!q->piece[i].type) continue;
      sent += (int64_t)piece_bytes(&q->piece[i]) * fsdp_shards(f);
      more += f->cfg.layout == SHARD_DIM0 ? (fsdp_shards(f) - 1) * 1024       // a row, 256 numbers of 4 bytes at most
                                          : (BLOCKS_ALIGN * fsdp_shards(f)) * block_bytes(q->piece[i].type);
    }
    EXPECT(sent >= of_file && sent <= of_file + more, "%s: %s gathers %lld bytes for %lld of the file", what, q->name,
           (long long)sent, (long long)of_file);
  }
}
// Steps, each with the traffic of its formula; the hash of all weights.
static uint64_t kept_steps(FamilyRun *x, int steps, const char *what) {
  Fsdp *f = x->trainer.fsdp;
  mode_expect_frozen(f, what);
  kept_expect_bytes(f, what);
  const uint64_t frozen = params_hash(f, true);
  int64_t bytes = 0;
  for (int u = 0; u < f->lay.units; u++) bytes += unit_wire_numel(&f->lay.unit[u]) * 4;
  for (int s = 0; s < steps; s++) {
    f->traffic = Traffic{};
    const StepResult r = train_step(&x->trainer, false);
    EXPECT(!r.skipped && isfinite(r.loss), "%s: step %d has loss %g", what, s, r.loss);
    expect_traffic(f, (int)x->o.grad_accum, s, what);
    EXPECT(f->traffic.reduce_bytes <= (fsdp_shards(f) - 1) * bytes * x->o.grad_accum, "%s: frozen weights are reduced",
           what);
  }
  EXPECT(params_hash(f, true) == frozen, "%s: a frozen weight has changed", what);
  return weights_hash(f);
}
TEST_MPI(kept_modes, 6,
         "adapters beside a GGUF of every type that stays in its blocks: each number is what its block says, also "
         "where q, k and v differ; 1 to 6 ranks in all modes give the same adapters, memory is the plan's, gathers "
         "move the file's blocks and no gradient of theirs") {
  static const struct { int world; const char *options; } cases[] = {
      {1, ""}, {2, ""}, {2, "--strategy zero2 --shm copy"}, {3, "--shm off --shard dim0"},
      {3, "--strategy shard_grad_op --shm off --wrap min_params:60000"}, {4, "--mesh 2x2 --shm off"},
      {4, "--reshard_after_forward 2 --shm off --gather_slots 1"}, {5, NULL}, {6, "--mesh 6x1 --wrap model"}, {6, ""}};
  const char *path = kept_file();
  uint64_t first = 0, base = 0;
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  for (const auto &k : cases) {
    static FamilyRun x;
    MPI_Comm comm;
    char options[512], what[256];
    Error error = {};
    snprintf(options, sizeof options, "--lora 2 --global_batch %d %s", k.options ? 12 : 5, k.options ? k.options : "");
    snprintf(what, sizeof what, "%d ranks, %s", k.world, k.options ? k.options : "values");
    if (!world_comm(k.world, &comm)) { MPI_Barrier(MPI_COMM_WORLD); continue; }
    REQUIRE(kept_open(&x, path, comm, cpu_tables[0].ops, options, &error), "%s: %s", what, error.text);
    EXPECT(x.o.base_dtype == OPT_base_dtype_file, "%s: --base_dtype %s", what, option_word(&x.o, OPT_base_dtype));
    for (int i = 0; i < MEM_COUNT; i++)
      EXPECT(x.trainer.run.plan.planned_bytes[i] == x.trainer.run.plan.taken_bytes[i], "%s: %s", what, memory_words[i]);
    size_t copies = 0;                           // what one of each matrix of plain numbers among them takes
    for (int p = 0; p < x.trainer.fsdp->lay.params; p++) {
      const Param *q = &x.trainer.fsdp->lay.param[p];
      EXPECT(!param_in_blocks(q) || x.trainer.fsdp->lay.place[p].expand_at < 0,
             "%s: %s is multiplied in blocks and has a copy", what, q->name);
      if (q->keeps && !param_in_blocks(q)) copies += 4 * (size_t)round_up(param_numel_padded(q), PARAM_ALIGN_NUMEL);
    }
    EXPECT(x.trainer.run.plan.planned_bytes[MEM_EXPANDED] <= copies, "%s: copies of %zu bytes, numbers need %zu", what,
           x.trainer.run.plan.planned_bytes[MEM_EXPANDED], copies);
    kept_expect_values(&x, path, what);
    const uint64_t hash = kept_steps(&x, k.options ? 1 : 0, what), of_base = fsdp_weights_hash(x.trainer.fsdp);
    if (!first) first = hash, base = of_base;
    EXPECT(rank || !k.options || hash == first, "%s: other adapters", what);    // rank 0 was in all of them
    EXPECT(rank || of_base == base, "%s: another base", what);
    family_close(&x);
    MPI_Comm_free(&comm);
    MPI_Barrier(MPI_COMM_WORLD);
  }
}
TEST_MPI(kept_is_dequantized, 1,
         "adapters beside blocks that stay have the bits of those beside weights that are dequantized at the start, in "
         "fp32, bf16 and fp16, recomputed too, and on emulated CUDA") {
  static const struct { const char *options; bool cuda; } cases[] = {
      {"--train_rows 3:9", false}, {"", false}, {"--param_dtype bf16 --recompute block", false},
      {"--param_dtype fp16 --loss_scale 8", false},
      {"--param_dtype bf16", true}};
  const char *path = kept_file();
  for (const auto &k : cases) {
    static FamilyRun x;
    uint64_t hash[2], base[2];
    for (int i = 0; i < 2; i++) {
      char options[512];
      Error error = {};
      snprintf(options, sizeof options, "--lora 2 --global_batch %d --base_dtype %s %s", k.cuda ? 1 : 2,
               i ? "file" : "param", k.options);
      const Ops *ops = k.cuda ? &ops_cuda_emulated : cpu_tables[cpu_best_table()].ops;
      REQUIRE(kept_open(&x, path, MPI_COMM_SELF, ops, options, &error), "%s", error.text);
      base[i] = fsdp_weights_hash(x.trainer.fsdp);
      for (int s = 0; s < (k.cuda ? 1 : 2); s++) EXPECT(!train_step(&x.trainer, false).skipped, "%s", options);
      hash[i] = 0;
      for (int p = 0; p < x.trainer.fsdp->lay.params; p++) {
        const Param *q = &x.trainer.fsdp->lay.param[p];
        float *full = (float *)malloc(sizeof(float) * (size_t)param_numel_padded(q));
        fsdp_read_param(x.trainer.fsdp, STATE_MASTER, p, full);
        if (param_trains_beside(q)) hash[i] = fnv_bytes(hash[i], full, sizeof(float) * (size_t)param_numel(q));
        free(full);
      }
      family_close(&x);
    }
    EXPECT(hash[0] == hash[1], "%s: other adapters", k.options);
    EXPECT(*k.options || base[0] == base[1], "%s: adapters of the one are not taken by the other", k.options);
  }
  static const int32_t tokens[] = {3, 1, 4, 1, 5, 9, 2, 6};
  float *logits[2];
  for (int i = 0; i < 2; i++) {
    static FamilyRun x;
    Error error = {};
    const char *options = i ? "--sample_only" : "--sample_only --base_dtype param";
    REQUIRE(kept_open(&x, path, MPI_COMM_SELF, cpu_tables[0].ops, options, &error), "%s", error.text);
    EXPECT((x.o.base_dtype == OPT_base_dtype_file) == i, "a sample's is %s", option_word(&x.o, OPT_base_dtype));
    logits[i] = ix_logits(&x.trainer, tokens, 8);
    family_close(&x);
  }
  EXPECT(!memcmp(logits[0], logits[1], 8 * 62 * sizeof(float)), "other logits");
  free(logits[0]);
  free(logits[1]);
}
TEST_MPI(kept_made, 3,
         "weights quantized as they are read, to Q8_0 and NF4, from a file of every type, on one and three ranks: "
         "those of blocks' matrices are those of the whole matrix, embedding and head stay in --param_dtype") {
  const char *path = kept_file();
  for (const char *type : {"q8_0", "nf4"}) {
    uint64_t hash[2] = {};
    for (int world : {1, 3}) {
      static FamilyRun x;
      MPI_Comm comm;
      char options[512];
      Error error = {};
      if (!world_comm(world, &comm)) { MPI_Barrier(MPI_COMM_WORLD); continue; }
      snprintf(options, sizeof options, "--lora 2 --global_batch 3 --base_dtype %s --shm off", type);
      REQUIRE(kept_open(&x, path, comm, cpu_tables[0].ops, options, &error), "%s", error.text);
      const int wte = root_param(&x.trainer.model, WTE);
      EXPECT(!x.trainer.fsdp->lay.param[wte].keeps, "%s: the embedding is quantized", type);
      kept_expect_values(&x, path, type);
      hash[world > 1] = kept_steps(&x, 1, type);
      family_close(&x);
      MPI_Comm_free(&comm);
      MPI_Barrier(MPI_COMM_WORLD);
    }
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    EXPECT(rank || hash[0] == hash[1], "%s: three ranks give other adapters", type);
  }
}
// All matrices of blocks of a checked directory, in fp32, of a run whose base is kept in `type`. All ranks call it.
static float *kept_values(const char *path, const char *type, MPI_Comm comm, int64_t *n) {
  static FamilyRun x;
  char options[256];
  Error error = {};
  snprintf(options, sizeof options, "--lora 2 --global_batch 3 --base_dtype %s", type);
  const bool opened = kept_open(&x, path, comm, cpu_tables[0].ops, options, &error);
  if (!opened) die_missing("%s", error.text);
  float *all = (float *)malloc(sizeof(float) * (size_t)model_numel(&x.trainer.model)), *at = all;
  for (int p = 0; p < x.trainer.fsdp->lay.params; p++) {
    const Param *q = &x.trainer.fsdp->lay.param[p];
    if (!q->linear || q->adapter) continue;
    fsdp_read_param(x.trainer.fsdp, STATE_MASTER, p, at);
    at += param_numel_padded(q);
  }
  *n = at - all;
  family_close(&x);
  return all;
}
TEST_MPI(kept_made_of_directories, 3,
         "Hugging Face's GPT-2, whose matrices are the other way around, in Q8_0 on three ranks is what is made of its "
         "numbers") {
  int64_t n = 0;
  float *want = kept_values("dev/fixtures/hf_tiny", "param", MPI_COMM_WORLD, &n);
  float *got = kept_values("dev/fixtures/hf_tiny", "q8_0", MPI_COMM_WORLD, &n);
  uint8_t *made = (uint8_t *)malloc((size_t)blocks_bytes(BLOCK_Q8_0, n));
  blocks_make(BLOCK_Q8_0, made, want, n);
  blocks_read(BLOCK_Q8_0, want, made, n / 32);
  EXPECT(n && !memcmp(got, want, sizeof(float) * (size_t)n), "other numbers");
  free(made);
  free(want);
  free(got);
}
TEST(kept_made_equals_others,
     "Q8_0 and NF4 of numbers, blocks of zeros and of one number too, are the bytes of llama.cpp's gguf package and of "
     "bitsandbytes, and NF4's numbers are bitsandbytes'; a block with a number that is not finite has none that is") {
  SafetensorsFile f;
  if (!safetensors_open(&f, "dev/fixtures/quantize.safetensors")) die_missing("%s", f.error);
  const SafetensorsTensor *in = safetensors_entry(&f, "in");
  REQUIRE(in, "the fixture has no numbers");
  const int64_t n = in->bytes / 4;
  float *x = (float *)malloc((size_t)in->bytes), *read = (float *)malloc((size_t)in->bytes);
  uint8_t *made = (uint8_t *)malloc((size_t)in->bytes);
  memcpy(x, f.map + in->at, (size_t)in->bytes);
  for (int type : {(int)BLOCK_Q8_0, (int)BLOCK_NF4}) {
    const SafetensorsTensor *want = safetensors_entry(&f, type == BLOCK_NF4 ? "nf4" : "q8_0");
    const int64_t bytes = blocks_bytes(type, n);
    REQUIRE(want && want->bytes == bytes, "type %d has other bytes in the fixture", type);
    blocks_make(type, made, x, n);
    int64_t first = 0;
    while (first < bytes && made[first] == f.map[want->at + first]) first++;
    EXPECT(first == bytes, "type %d: byte %lld of block %lld differs", type, (long long)first % block_bytes(type),
           (long long)first / block_bytes(type));
  }
  const SafetensorsTensor *values = safetensors_entry(&f, "nf4_values");
  blocks_read(BLOCK_NF4, read, made, n / 64);
  REQUIRE(values && values->bytes == n * 4, "the fixture has no numbers of NF4");
  EXPECT(!memcmp(read, f.map + values->at, (size_t)values->bytes), "numbers of NF4 are not bitsandbytes'");
  for (int type : {(int)BLOCK_Q8_0, (int)BLOCK_NF4})
    for (float none : {NAN, INFINITY, -INFINITY}) {
      x[5] = none;
      blocks_make(type, made, x, 64);
      blocks_read(type, read, made, 1);
      EXPECT(!isfinite(read[0]) && !isfinite(read[31]), "type %d: a block with %g has finite numbers", type, none);
    }
  free(x);
  free(read);
  free(made);
  safetensors_close(&f);
}
TEST_MPI(kept_rejects, 1,
     "--base_dtype where nothing is frozen, with E4M3, of a checkpoint, of rows that are no whole blocks, and "
     "--export_gguf adapter without adapters are rejected by name") {
  static const struct { const char *path, *options, *says; } cases[] = {
      {"@", "--base_dtype file", "--base_dtype file is of weights that stay as they are: give --lora RANK too"},
      {"@", "--base_dtype nf4", "--base_dtype nf4 is of weights that stay as they are"},
      {"@", "--lora 2 --base_dtype file --fp8 gather", "keeps the matrices that --fp8 gather gathers in E4M3"},
      {"@", "--export_gguf adapter", "--export_gguf adapter is of adapters alone"},
      {"@", "--lora 2 --merge --export_gguf adapter", "--export_gguf adapter is of adapters alone"},
      {"", "--base_dtype q8_0", "--base_dtype q8_0 needs weights: name them with --init_from PATH"},
      {"dev/fixtures/family_llama", "--lora 2 --base_dtype nf4", "numbers, no whole blocks of 64"},
      {"dev/test/fixtures/checkpoint-0.5.0/fp32", "--lora 2 --base_dtype file", "and a checkpoint's are fp32"}};
  const char *path = kept_file();
  for (const auto &k : cases) {
    static FamilyRun x;
    Error error = {};
    const char *from = *k.path == '@' ? path : k.path;
    const bool taken = kept_open(&x, from, MPI_COMM_SELF, cpu_tables[0].ops, k.options, &error);
    EXPECT(!taken && strstr(error.text, k.says), "%s %s: '%s'", from, k.options, error.text);
  }
}

static const char kept_small[] = "--data random --batch_size 1 --seq_len 13 --global_batch 2 --eval_every -1 "
                                 "--sample_tokens 0 --report off --max_steps 4";
TEST(kept_resumes_on_its_file,
     "a run beside blocks that stay, resumed on two ranks, ends with the bits of one that was never stopped, and its "
     "adapter is written for llama.cpp; a file with one other byte, and another --base_dtype, are rejected") {
  CliRun r;
  const char *path = kept_file();
  CLI_RUN(&r, "%s %s --init_from %s --lora 2 --save_every 2 --keep 0 --export_gguf adapter --out %s", cli_ranks(0),
          kept_small, path, cli_path("whole"));
  cli_expect_done(&r, "adapters");
  EXPECT(strstr(r.text, "frozen matrices stay in the blocks of") && strstr(r.text, "whole/adapter.gguf"), "it said: %s",
         r.text);
  cli_free(&r);
  CLI_RUN(&r, "%s %s --resume %s/ckpt/step_00000002 --export_gguf adapter --out %s", cli_ranks(2), kept_small,
          cli_path("whole"), cli_path("again"));
  cli_expect_done(&r, "resumed");
  cli_free(&r);
  for (const char *file : {"ckpt/latest/model.safetensors", "ckpt/latest/optim.safetensors", "adapter.gguf"}) {
    char a[700], b[700];
    snprintf(a, sizeof a, "%s/%s", cli_path("whole"), file);
    snprintf(b, sizeof b, "%s/%s", cli_path("again"), file);
    cli_expect_same_file("resumed on two ranks", a, b);
  }
  const struct { const char *options; int code; const char *says; } rejections[] = {
      {"--base_dtype param", 2, "--base_dtype param contradicts "},
      {"", 3, "are for other weights than those of"}};
  for (const auto &k : rejections) {
    Error error = {};
    if (!*k.options) {
      Import *s = import_open(path, NULL, &error);
      REQUIRE(s, "%s", error.text);
      const int64_t at = s->set.shard[0].file.tensor[0].at;
      import_close(s);
      const int fd = open(path, O_RDWR);
      uint8_t byte = 0;
      REQUIRE(fd >= 0 && pread(fd, &byte, 1, at) == 1, "%s cannot be read", path);
      byte ^= 1;
      REQUIRE(pwrite(fd, &byte, 1, at) == 1, "%s cannot be changed", path);
      close(fd);
    }
    CLI_RUN(&r, "%s %s --resume %s/ckpt/latest --max_steps 6 %s --out %s", cli_ranks(0), kept_small, cli_path("whole"),
            k.options, cli_path("refused"));
    EXPECT(r.code == k.code && strstr(r.text, k.says), "'%s': exit code %d, must be %d; it said:\n%s", k.options,
           r.code, k.code, r.text);
    cli_free(&r);
  }
}
// A file with the header of a Llama 3.1 in Q4_K_M, and nothing in its tensors: attn_v and ffn_down of some blocks and
// the head are Q6_K. Returns the bytes of its tensors.
static int64_t kept_header(const char *path, int64_t layers, int64_t heads, int64_t width, int64_t mlp) {
  ModelShape s = gguf_made_shape();
  s.n_layer = layers, s.n_head = heads, s.n_kv_head = 8, s.n_embd = width, s.head_size = 128, s.mlp_width = mlp;
  s.n_positions = 131072, s.vocab_size = 128256, s.block.rope_theta = 500000;
  int params;
  Param *param = params_of_shape(&param_table, &s, &params);
  GgufTensor *t = (GgufTensor *)calloc((size_t)(3 * params), sizeof *t);
  const int count = gguf_tensors(t, param, params, &s, GGUF_F32);
  FILE *f = fopen(path, "wb");
  char *header = NULL;
  size_t bytes = 0;
  GgufKeys keys = {open_memstream(&header, &bytes), 0, "llama"};
  if (!f || !keys.f) die_missing("cannot write %s", path);
  gguf_key_text(&keys, "general.architecture", "llama");
  gguf_shape_keys(&keys, &s);
  fclose(keys.f);
  fwrite("GGUF\3\0\0", 1, 8, f);
  gguf_u64(f, (uint64_t)count);
  gguf_u64(f, keys.count);
  fwrite(header, 1, bytes, f);
  free(header);
  int64_t at = 0;
  for (int i = 0; i < count; i++) {
    const bool vector = t[i].param->ndim == 1;
    const int64_t l = t[i].param->stage - 1;
    const bool more = l >= 0 && (l < layers / 8 || l >= 7 * layers / 8 || (l - layers / 8) % 3 == 2);
    const bool six = !strcmp(t[i].name, "output.weight") || (more && (strstr(t[i].name, "attn_v") ||
                                                                      strstr(t[i].name, "ffn_down")));
    t[i].ggml = vector ? 0 : six ? BLOCK_Q6_K : BLOCK_Q4_K;
    gguf_tensor_info(f, t[i].name, vector ? t[i].rows : t[i].cols, vector ? 0 : t[i].rows, t[i].ggml, at);
    at += round_up(t[i].rows * ggml_row_bytes(t[i].ggml, t[i].cols), GGUF_ALIGNMENT);
  }
  gguf_pad(f, ftello(f));
  fflush(f);
  if (ftruncate(fileno(f), ftello(f) + at)) die_missing("%s cannot be as long", path);
  fclose(f);
  free(t);
  free(param);
  return at;
}
TEST(kept_plans_from_a_header,
     "--plan of a Llama 3.1 8B in Q4_K_M with adapters, from its header alone: parameter shards are the file's bytes "
     "to a thousandth, and all of it fits on a machine of 16 GB; of the 70B's, it says on how many") {
  const struct { const char *name; int64_t layers, heads, width, mlp; int world; } cases[] = {
      {"8B", 32, 32, 4096, 14336, 1}, {"70B", 80, 64, 8192, 28672, 6}};
  for (const auto &k : cases) {
    CliRun r;
    char path[600];
    snprintf(path, sizeof path, "%s.gguf", cli_path(k.name));
    const int64_t tensors = kept_header(path, k.layers, k.heads, k.width, k.mlp);
    CLI_RUN(&r, "%s --plan --json --init_from %s --lora 16 --buffer_dtype bf16 --seq_len 512 --batch_size 1 "
            "--recompute block --gather_slots %d --world %d --ranks_per_host 1", cli_ranks(0), path,
            k.world > 1 ? 1 : 2, k.world);
    // Adapters are in the shards too, 4 bytes each: as many as the gradient's.
    const char *shards = strstr(r.text, "\"parameter shards, shared\":"), *all = strstr(r.text, "\"total_bytes\":");
    const char *gradients = strstr(r.text, "\"gradient shards, fp32, shared\":");
    REQUIRE(!r.code && shards && all && gradients, "%s: %s", k.name, r.text);
    const double stored = atof(strchr(shards, ':') + 1) - atof(strchr(gradients, ':') + 1);
    const double least = (double)tensors / k.world, total = atof(strchr(all, ':') + 1);
    EXPECT(stored >= least * 0.9999 && stored <= least * 1.001, "%s: shards of %.0f bytes, the file has %.0f per rank",
           k.name, stored, least);
    EXPECT(total < 16e9, "%s: %.0f bytes per rank", k.name, total);
    cli_free(&r);
    unlink(path);
  }
}
