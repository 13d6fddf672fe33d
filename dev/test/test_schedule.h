// test_schedule.h: the trainer's streams, events, graphs and transports on an emulated device. ops_streams runs the
// CPU's own ops, so every run must equal the CPU's one-rank run bit for bit, in any order of its streams; and this must
// fail as soon as any one wait is left out.
#include "dev/cuda_emu/emu.h"

// Small, with everything that a schedule can get wrong: more blocks than slots (backward gathers again), at least two
// microbatches per rank (the root's gradient slot is used twice per step), dropout, odd widths, enough steps for a
// capture and two replays.
static const char schedule_shapes[] = "--n_layer 4 --n_head 2 --n_embd 20 --seq_len 7 --n_positions 9 --vocab_size 101 "
                                      "--batch_size 1 --global_batch 12 --lr 0.01 --warmup 0 --clip 0.5 --dropout 0.1 "
                                      "--isa avx2";
enum { SCHEDULE_STEPS = 4 };

// What a run does beyond its options. chunk_numel: of a reduction's rounds; 0: the trainer's own, which these small
// shapes never fill. eval_each_step: validates after every step, not only after the last. passes: runs two forward
// passes without the host waiting in between. comms_of_one: over NCCL one rank sends everything to itself.
struct ScheduleVariant { int64_t chunk_numel; bool eval_each_step, passes, comms_of_one; int sm_margin; };
static ScheduleVariant schedule_variant;
static int schedule_nccl_blocks;                 // of emulated NCCL at once, in the latest schedule_run

// A device without a choice. The CPU updates offloaded tensors: an emulated device's ops cannot reach the host's
// memory.
static inline Device schedule_device(const Ops *ops) {
  Device d = device_of(ops);
  if (ops->nccl) d.host_ops = cpu_tables[0].ops;
  d.comms_of_one = schedule_variant.comms_of_one;
  d.sm_margin = schedule_variant.sm_margin;
  return d;
}
// Two passes in a row over the same tokens: the second one's gathers must not disturb the first.
static inline void schedule_passes(Trainer *t) {
  const int T = (int)t->model.T;
  const size_t bytes = sizeof(float) * (size_t)t->model.Vp / 2;    // half of the host's buffer each
  char *seen = (char *)t->host.logits;
  trainer_carve(t, (int)t->opt.test_batch_size, T, PASS_EVAL);
  for (int i = 0; i < 2; i++) {
    fsdp_step_begin(t->fsdp, false);
    trainer_load_batch(t, 0, (int)t->opt.test_batch_size, T);
    gpt_forward(t, Microbatch{0, PASS_EVAL});
    fsdp_release(t->fsdp, 0);
    t->ctx.ops->copy(&t->ctx, seen + (size_t)i * bytes, t->acts.ln_f.data, bytes);
  }
  fsdp_sync(t->fsdp);
  EXPECT(!memcmp(seen, seen + bytes, bytes), "one pass disturbs another");
}
// Logits in bf16 where a GPU has them, also of one rank on a CPU, with which it is compared.
static inline void schedule_logits(Options *o) {
  const bool half = o->buffer_dtype == OPT_buffer_dtype_bf16 && o->loss == PREFERENCE_NONE;
  if (o->logits_dtype == OPT_logits_dtype_auto && half) o->logits_dtype = OPT_logits_dtype_bf16;
}
// Trains on `world` of this launch's ranks. False on the others, which only wait.
static inline bool schedule_run(WorldResult *r, const Corpus *corpus, const Ops *ops, int world, const char *comm_name,
                                const char *extra) {
  MPI_Comm comm;
  memset(r, 0, sizeof *r);
  if (!world_comm(world, &comm)) return false;
  static Trainer t;
  Options o;
  // "native": rejected with --comm auto, so it is set like --comm, after the parser.
  const bool native = !strncmp(extra, "native", 6);
  test_options(&o, world, "%s %s", schedule_shapes, extra + (native ? 6 : 0));
  option_pick(&o, OPT_comm, comm_name);
  schedule_logits(&o);
  if (native) o.reduce = OPT_reduce_native;
  trainer_open(&t, &o, corpus, comm, schedule_device(ops), 1);
  schedule_nccl_blocks = &ops_streams ? emu_nccl_blocks() : 0;
  const int64_t chunk = schedule_variant.chunk_numel;
  if (chunk) fsdp_cut_rounds(t.fsdp, min64(t.fsdp->lay.chunk_numel, chunk));
  for (int s = 0; s < SCHEDULE_STEPS; s++) {
    t.fsdp->traffic = Traffic{};
    if (s + 1 == SCHEDULE_STEPS && getenv("SCHEDULE_LOSE") && world > 1) emu_nccl_lose(1000);
    const StepResult x = train_step(&t, false);
    r->loss[s] = x.loss;
    r->norm[s] = x.grad_norm;
    const Traffic want = fsdp_formula(t.fsdp, (int)o.grad_accum);
    const Traffic got = t.fsdp->traffic;
    EXPECT(!memcmp(&want, &got, sizeof want),
           "N=%d %s %s step %d: gathers %lld (formula %lld), reductions %lld (%lld), small %lld (%lld), gathered bytes "
           "%lld (%lld), reduced %lld (%lld), along replicas %lld (%lld), small bytes %lld (%lld)", world, comm_name,
           extra, s, (long long)got.gathers, (long long)want.gathers, (long long)got.reductions,
           (long long)want.reductions, (long long)got.small, (long long)want.small, (long long)got.gather_bytes,
           (long long)want.gather_bytes, (long long)got.reduce_bytes, (long long)want.reduce_bytes,
           (long long)got.replicate_bytes, (long long)want.replicate_bytes, (long long)got.small_bytes,
           (long long)want.small_bytes);
    if (s + 1 < SCHEDULE_STEPS && !schedule_variant.eval_each_step) continue;
    const EvalResult e = trainer_eval(&t, &corpus->split[SPLIT_VALID]);
    r->eval_loss += e.loss;
    r->eval_tokens += e.tokens;
  }
  if (schedule_variant.passes) schedule_passes(&t);
  r->weights = weights_hash(t.fsdp);
  trainer_close(&t);
  MPI_Comm_free(&comm);
  return true;
}
static inline void schedule_expect(const WorldResult *got, const WorldResult *want, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static inline void schedule_expect(const WorldResult *got, const WorldResult *want, const char *fmt, ...) {
  char what[256];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(what, sizeof what, fmt, ap);
  va_end(ap);
  EXPECT(!memcmp(got, want, sizeof *got),
         "%s: losses %.9g %.9g %.9g %.9g (%.9g %.9g %.9g %.9g), norm %.9g (%.9g), eval "
         "%.9g (%.9g), weights %s",
         what, got->loss[0], got->loss[1], got->loss[2], got->loss[3], want->loss[0], want->loss[1], want->loss[2],
         want->loss[3], got->norm[0], want->norm[0], got->eval_loss, want->eval_loss,
         got->weights == want->weights ? "equal" : "differ");
}
static inline WorldResult schedule_reference(const Corpus *corpus, const char *extra) {
  WorldResult one;
  if (!schedule_run(&one, corpus, cpu_tables[0].ops, 1, "self", extra)) memset(&one, 0, sizeof one);
  MPI_Bcast(&one, sizeof one, MPI_BYTE, 0, MPI_COMM_WORLD);
  EXPECT(one.loss[0] > 4 && one.loss[0] < 5.5 && one.loss[0] != one.loss[1], "losses %g %g, ln V is %g", one.loss[0],
         one.loss[1], log(101.0));
  return one;
}
static inline void schedule_corpus(Corpus *c) { test_corpus(c, 101, 12 * 7 * SCHEDULE_STEPS + 1, 60); }

static inline void schedule_orders(const char *comm, const char *extra, int seeds) {
  if (!&ops_streams) SKIP("this test program was linked without dev/cuda_emu");
  static Corpus corpus;
  WorldResult r;
  schedule_corpus(&corpus);
  const WorldResult one = schedule_reference(&corpus, extra);
  for (int seed = 0; seed < seeds; seed++)
    for (int world = 1; world <= (strcmp(comm, "self") ? 3 : 1); world++) {
      emu_set_seed((uint64_t)seed);
      if (schedule_run(&r, &corpus, &ops_streams, world, comm, extra))
        schedule_expect(&r, &one, "--comm %s, N=%d, order %d, %s", comm, world, seed, extra);
    }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}
TEST_MPI(
    schedule_nccl_in_any_order, 3,
    "N = 1, 2, 3 over emulated streams and NCCL, captured as a graph, in 10 orders: the CPU's bits, the traffic of "
    "the formula") {
  schedule_orders("nccl", "", 10);              // 200 in schedule_in_many_orders_all
}
TEST_MPI(schedule_nccl_without_graphs_all, 3, "the same without graphs") { schedule_orders("nccl", "--graph off", 20); }
TEST_MPI(schedule_mpi_in_any_order, 3, "the same over --comm mpi: a mirror in windows, and messages") {
  schedule_orders("mpi", "", 4);
  schedule_orders("mpi", "--shm off", 4);
}
TEST_MPI(schedule_dtypes_in_any_order, 3,
         "half parameters, half wire (staged in rounds), untied head, other slot counts, fp16's loss scale: the CPU's "
         "bits") {
  const char *const extras[] = {"--param_dtype bf16 --reduce_dtype bf16 --tie_head off", "--reduce_dtype bf16",
                                "--param_dtype fp16 --gather_slots 1 --optimizer sgd", "--gather_slots 4"};
  for (const char *extra : extras) {
    schedule_orders("nccl", extra, 2);
    schedule_orders("mpi", extra, 1);
  }
  schedule_orders("mpi", "--param_dtype bf16 --reduce_dtype bf16 --shm off", 2);
}
TEST_MPI(schedule_eval_between_steps_all, 3,
         "validation between steps, eager and captured, reads the weights of its step and changes no step") {
  schedule_variant.eval_each_step = true;
  const char *const extras[] = {"", "--gather_slots 4", "--graph off"};
  for (const char *extra : extras) schedule_orders("nccl", extra, 3);
  schedule_orders("mpi", "", 2);
  schedule_orders("self", "", 1);
  schedule_variant = ScheduleVariant{};
}
TEST_MPI(schedule_rounds_in_any_order, 3,
         "reductions of several rounds, the last one shorter, plain and staged: the CPU's bits") {
  schedule_variant.chunk_numel = 384;
  const char *const extras[] = {"", "--reduce_dtype bf16", "--graph off --reduce_dtype fp16"};
  for (const char *extra : extras) {
    schedule_orders("nccl", extra, 2);
    schedule_orders("mpi", extra, 1);
  }
  schedule_orders("mpi", "--shm off", 1);
  schedule_orders("mpi", "--shm off --reduce_dtype bf16", 2);
  schedule_variant = ScheduleVariant{};
}
TEST_MPI(schedule_in_many_orders_all, 3, "200 orders over NCCL, captured") { schedule_orders("nccl", "", 200); }
TEST_MPI(schedule_in_many_eager_orders_all, 3, "200 orders over NCCL without graphs") {
  schedule_orders("nccl", "--graph off", 200);
}
TEST_MPI(schedule_in_many_other_orders_all, 3,
         "60 orders over mpi, and of a staged half wire over NCCL; 20 of messages in several rounds") {
  schedule_orders("mpi", "", 60);
  schedule_orders("nccl", "--param_dtype bf16 --reduce_dtype bf16", 60);
  schedule_variant.chunk_numel = 384;
  schedule_orders("mpi", "--shm off", 20);
  schedule_variant = ScheduleVariant{};
}

// ---- every mode
// How runs on `worlds` (digits) ranks are sharded, and their arithmetic, which the reference on one CPU rank shares. If
// ranks first add their own gradients, the sum depends on N: then the reference is sharded over as many CPU ranks,
// without replicas. chunk_numel: of a round.
struct ScheduleMode { const char *worlds, *sharding, *arithmetic; int64_t chunk_numel; };

// The reference of an arithmetic, computed once a test: neither chunks nor transports change it.
static inline WorldResult schedule_known_reference(const Corpus *corpus, const char *extra) {
  static struct { char extra[256]; WorldResult one; } known[16];
  static int count;
  static bool evals;
  if (evals != schedule_variant.eval_each_step) count = 0;
  evals = schedule_variant.eval_each_step;
  for (int i = 0; i < count; i++) if (!strcmp(known[i].extra, extra)) return known[i].one;
  if (count == 16) count = 0;
  snprintf(known[count].extra, sizeof known[count].extra, "%s", extra);
  return known[count++].one = schedule_reference(corpus, extra);
}
static inline void schedule_mode(const Corpus *corpus, const char *comm, const ScheduleMode *mode, int seeds) {
  char extra[512];
  const bool local = strstr(mode->sharding, "local") || strstr(mode->sharding, "zero1");
  WorldResult want = {}, got;
  schedule_variant.chunk_numel = mode->chunk_numel;
  if (!local) want = schedule_known_reference(corpus, mode->arithmetic);
  for (const char *w = mode->worlds; *w; w++) {
    const int world = *w - '0';
    snprintf(extra, sizeof extra, "%s --accumulate local", mode->arithmetic);
    if (local) schedule_run(&want, corpus, cpu_tables[0].ops, world, "mpi", extra);
    snprintf(extra, sizeof extra, "%s %s", mode->arithmetic, mode->sharding);
    for (int seed = 0; seed < seeds; seed++) {
      emu_set_seed((uint64_t)seed);
      if (schedule_run(&got, corpus, &ops_streams, world, comm, extra))
        schedule_expect(&got, &want, "--comm %s, N=%d, order %d, %s", comm, world, seed, extra);
    }
  }
  schedule_variant.chunk_numel = 0;
}
// Every mode of the list over each of `comms`: "nccl", "mpi", both with a space between, or "self".
static inline void schedule_modes(const ScheduleMode *modes, int count, const char *comms, int seeds) {
  if (!&ops_streams) SKIP("this test program was linked without dev/cuda_emu");
  static Corpus corpus;
  schedule_corpus(&corpus);
  for (const char *comm : {"self", "nccl", "mpi"})
    for (int i = 0; i < count && strstr(comms, comm); i++)         // over mpi the host waits: fewer orders
      schedule_mode(&corpus, comm, &modes[i], strcmp(comm, "mpi") ? seeds : (seeds + 1) / 2);
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}
#define SCHEDULE_MODES(modes, comms, seeds) schedule_modes(modes, (int)(sizeof(modes) / sizeof *(modes)), comms, seeds)

// Sums of at most 384 elements per round: several rounds per reduction, two of them in flight.
static const ScheduleMode schedule_meshes[] = {
    {"4", "--mesh 2x2", "", 384},
    {"4", "--mesh 2x2 --graph off", "--param_dtype bf16 --reduce_dtype bf16", 384},
    {"24", "--strategy no_shard", "", 0},
    {"3", "--strategy no_shard --graph off", "--reduce_dtype bf16", 384},
    {"6", "--mesh 2x3", "--param_dtype fp16", 0},
    {"6", "--mesh 3x2", "--reduce_dtype fp16", 384}};
TEST_MPI(schedule_of_meshes, 6,
         "replicas of shards, 2x2, 2x3, 3x2 and Nx1, over NCCL and mpi, in any order: the CPU's one-rank bits") {
  SCHEDULE_MODES(schedule_meshes, "nccl mpi", 2);
}
TEST_MPI(schedule_of_meshes_by_messages, 4, "sums pass along replicas by messages as through windows") {
  static const ScheduleMode modes[] = {{"4", "--mesh 2x2 --shm off", "", 384},
                                       {"3", "--strategy no_shard --shm off", "--reduce_dtype bf16", 384},
                                       {"4", "--mesh 2x2 --shm off --offload optimizer", "", 384},
                                       {"4", "--reshard_after_forward 2 --shm off", "--param_dtype bf16", 0}};
  SCHEDULE_MODES(modes, "mpi", 2);
}

static const ScheduleMode schedule_layouts[] = {
    {"4", "--reshard_after_forward 2", "", 0},
    {"4", "--reshard_after_forward 2 --gather_slots 1 --graph off", "--param_dtype bf16", 0},
    {"6", "--reshard_after_forward 3 --shard dim0", "--fp8 gather", 0},
    {"6", "--shard dim0", "", 0},                // n_positions 9: the last rank holds no row of wpe
    {"3", "--shard dim0 --wrap min_params:600", "--param_dtype bf16 --fp8 gather", 384},
    {"6", "", "--global_batch 6", 0},           // gradient shards are reused
    {"3", "--shard dim0", "--global_batch 3 --param_dtype bf16", 384},
    {"2", "--wrap model", "", 0},
    {"4", "--wrap model --mesh 2x2 --shard dim0", "--reduce_dtype bf16", 384},
    {"2", "--accumulate local", "", 0},
    {"3", "--strategy zero1", "--reduce_dtype bf16", 384},
    {"4", "--mesh 2x2 --accumulate local", "--param_dtype bf16", 384}};
TEST_MPI(schedule_of_layouts, 6,
         "blocks kept after forward, dim 0 with empty shards, other wraps, local accumulation: the CPU's bits") {
  SCHEDULE_MODES(schedule_layouts, "nccl mpi", 2);
}
TEST_MPI(schedule_of_kept_blocks_between_evals, 4,
         "a validation between steps neither keeps blocks nor reads those that a step kept, nor the activations in "
         "gradient shards") {
  schedule_variant.eval_each_step = true;
  static const ScheduleMode modes[] = {{"4", "--reshard_after_forward 2", "", 0},
                                       {"4", "", "--global_batch 4", 0},
                                       {"3", "--graph off --shard dim0", "--global_batch 3 --reduce_dtype bf16", 384}};
  SCHEDULE_MODES(modes, "nccl mpi", 2);
  schedule_variant = ScheduleVariant{};
}

// E4M3 GEMMs need a multiple of 16 rows: sequences of 16.
#define SCHEDULE_OF_16 "--n_embd 32 --seq_len 16 --n_positions 17 --epochs 4 "
static const ScheduleMode schedule_precisions[] = {
    {"3", "", "--fp8 gather", 0},
    {"3", "--graph off", "--param_dtype bf16 --reduce_dtype bf16 --fp8 gather --optimizer sgd", 0},
    {"2", "", "--param_dtype bf16 --buffer_dtype fp32", 0},
    {"2", "", "--buffer_dtype bf16 --reduce_dtype fp16", 0},
    {"3", "", SCHEDULE_OF_16 "--param_dtype bf16 --fp8 matmul", 0},
    {"4", "--mesh 2x2", SCHEDULE_OF_16 "--buffer_dtype bf16 --fp8 matmul --recompute block", 0},
    {"3", "", "--recompute gelu", 0},
    {"2", "", SCHEDULE_OF_16 "--param_dtype bf16 --fp8 matmul --recompute norm:1,mlp", 0},
    {"2", "", "--recompute block --param_dtype bf16", 0},
    {"3", "", "--freeze wte,wpe,h.0.*,h.1.attn.*", 0},             // backward ends at block 1, which has another layout
    {"2", "", "--freeze h.*", 0},
    {"4", "--mesh 2x2", "--freeze h.1.attn.*,ln_f,*.bias --param_dtype bf16 --fp8 gather", 0}};
TEST_MPI(schedule_of_precisions_all, 4,
         "E4M3 gathered or multiplied, copies in another dtype, recomputed and frozen: the CPU's bits") {
  SCHEDULE_MODES(schedule_precisions, "nccl mpi", 2);
}

TEST_MPI(schedule_of_offload_alone, 1, "one rank with optimizer or parameters on the host: the bits of one without") {
  static const ScheduleMode modes[] = {
      {"1", "--offload optimizer", "", 384},
      {"1", "--offload optimizer", "--global_batch 1", 384},       // without: shards are reused
      {"1", "--offload optimizer", "--global_batch 1 --shard dim0 --reduce_dtype bf16 --recompute none", 0},
      {"1", "--offload optimizer", "--param_dtype bf16 --reduce_dtype bf16 --fp8 gather", 0},
      {"1", "--offload params", "", 0},
      {"1", "--offload params --gather_slots 1", "--param_dtype fp16 --optimizer sgd", 384},
      {"1", "--offload params --accumulate local", "--param_dtype bf16 --fp8 gather", 0},
      {"1", "--offload params", "--freeze h.1.attn.*,*.bias --param_dtype bf16 --fp8 gather", 0}};
  SCHEDULE_MODES(modes, "self nccl mpi", 3);
}
static const ScheduleMode schedule_offloads[] = {
    {"2", "--offload optimizer", "", 384},
    {"3", "--offload optimizer --shard dim0 --wrap min_params:600", "--param_dtype bf16 --fp8 gather", 0},
    {"4", "--offload optimizer --mesh 2x2", "--param_dtype bf16 --reduce_dtype bf16 --optimizer sgd", 384},
    {"4", "--offload optimizer --reshard_after_forward 2", "--fp8 gather", 0},
    {"2", "--offload params", "--param_dtype fp16", 0},
    {"3", "--offload params --strategy no_shard", "", 384},
    {"4", "--offload params --mesh 2x2 --accumulate local", "--reduce_dtype bf16", 384},
    {"4", "--offload params --reshard_after_forward 2", "--param_dtype bf16 --optimizer sgd", 0},
    {"4", "--offload params --mesh 2x2", "--freeze h.1.*,*.bias --param_dtype bf16 --fp8 gather", 0}};
TEST_MPI(schedule_of_offload, 4,
         "optimizer or parameters on the host, of shards, replicas, kept blocks, local sums: the bits without "
         "offloading") {
  SCHEDULE_MODES(schedule_offloads, "nccl mpi", 2);
}
TEST_MPI(schedule_of_every_mode_all, 6, "the same modes in 12 orders") {
  SCHEDULE_MODES(schedule_meshes, "nccl mpi", 12);
  SCHEDULE_MODES(schedule_layouts, "nccl mpi", 12);
  SCHEDULE_MODES(schedule_precisions, "nccl mpi", 12);
  SCHEDULE_MODES(schedule_offloads, "nccl mpi", 12);
}

// ---- mutants
// SCHEDULE_LOSE: every rank loses its peers in the last step, which is a replay unless graphs are off. SCHEDULE_COMM,
// SCHEDULE_SHARDING, SCHEDULE_ARITHMETIC: what to run. SCHEDULE_SKIP=event|stream: the wait to leave out.
// SCHEDULE_WAITS: a file for the waits of this run.
TEST_MPI(schedule_once, 2, "all ranks in the orders that show a missing wait: the CPU's bits (mutants run this too)") {
  if (!&ops_streams) SKIP("this test program was linked without dev/cuda_emu");
  static Corpus corpus;
  WorldResult r;
  const char *comm = getenv("SCHEDULE_COMM"), *skip = getenv("SCHEDULE_SKIP");
  const char *sharding = getenv("SCHEDULE_SHARDING"), *arithmetic = getenv("SCHEDULE_ARITHMETIC");
  char extra[512];
  int rank, world;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  schedule_corpus(&corpus);
  const WorldResult one = schedule_reference(&corpus, arithmetic ? arithmetic : "");
  snprintf(extra, sizeof extra, "%s %s", arithmetic ? arithmetic : "", sharding ? sharding : "");
  char event[64] = "", stream[64] = "";
  if (skip && sscanf(skip, "%63[^|]|%63[^|]", event, stream) == 2) emu_skip_waits(event, stream);
  schedule_variant.passes = true;
  for (int seed = 0; seed < 6 && !test_failures; seed++) {
    emu_set_seed((uint64_t)seed);
    schedule_run(&r, &corpus, &ops_streams, world, comm ? comm : "nccl", extra);
    schedule_expect(&r, &one, "order %d", seed);
  }
  if (!getenv("SCHEDULE_WAITS") || rank) return;
  EmuWait waits[64];
  const int n = emu_waits(waits, 64);
  FILE *f = fopen(getenv("SCHEDULE_WAITS"), "w");
  for (int i = 0; i < n && f; i++) fprintf(f, "%s|%s\n", waits[i].event, waits[i].stream);
  if (f) fclose(f);
}
struct ScheduleCase { int world; const char *comm, *sharding, *arithmetic; };
// Runs schedule_once under mpirun; returns its exit code.
static inline int schedule_child(ScheduleCase k, const char *skip, const char *waits) {
  char self[512], command[1536];
  const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
  self[n > 0 ? n : 0] = 0;
  snprintf(command, sizeof command,
           "SCHEDULE_COMM='%s' SCHEDULE_SHARDING='%s' SCHEDULE_ARITHMETIC='%s' SCHEDULE_SKIP='%s' %s%s timeout 60 "
           "\"${MPIRUN:-mpirun}\" --oversubscribe --bind-to none -np %d '%s' --run schedule_once >'%s/child' 2>&1",
           k.comm, k.sharding, k.arithmetic, skip, waits ? "SCHEDULE_WAITS=" : "", waits ? waits : "", k.world, self,
           test_tmp());
  const int status = system(command);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}
static inline void schedule_mutants(ScheduleCase k, int at_least) {
  char path[256], line[160], what[256];
  if (!&ops_streams) SKIP("this test program was linked without dev/cuda_emu");
  test_mpirun_patience(0);                       // most mutants end by a failure
  snprintf(what, sizeof what, "N=%d --comm %s %s %s", k.world, k.comm, k.sharding, k.arithmetic);
  snprintf(path, sizeof path, "%s/waits", test_tmp());
  const int code = schedule_child(k, "", path);
  FILE *f = fopen(path, "r");
  REQUIRE(code == 0 && f, "%s: the run without mutants fails (exit %d)", what, code);
  int count = 0;
  while (fgets(line, sizeof line, f)) {
    line[strcspn(line, "\n")] = 0;
    count++;
    const int mutant = schedule_child(k, line, NULL);
    EXPECT(mutant != 0, "%s: nothing shows that the wait %s is missing", what, line);
    EXPECT(mutant != 124, "%s: without the wait %s it hangs", what, line);
  }
  fclose(f);
  EXPECT(count >= at_least, "%s: %d different waits, %d are in the schedule", what, count, at_least);
}
TEST(schedule_a_lost_peer_ends_the_wait, "NCCL fails in the background of a step: one line, no endless wait") {
  test_mpirun_patience(0);
  if (!&ops_streams) SKIP("this test program was linked without dev/cuda_emu");
  for (const char *extra : {"", "--graph off"}) {
    setenv("SCHEDULE_LOSE", "1", 1);
    const int code = schedule_child(ScheduleCase{2, "nccl", extra, ""}, "", NULL);
    unsetenv("SCHEDULE_LOSE");
    char path[256], said[4096] = "";
    snprintf(path, sizeof path, "%s/child", test_tmp());
    FILE *f = fopen(path, "r");
    if (f) said[fread(said, 1, sizeof said - 1, f)] = 0;
    if (f) fclose(f);
    EXPECT(code && code != 124 && strstr(said, "NCCL failed in the background"), "%s: exit %d, it said: %s", extra,
           code, said);
  }
}
TEST(schedule_needs_every_wait_nccl, "NCCL schedule, eager: leave out any one wait and the result is wrong") {
  schedule_mutants(ScheduleCase{2, "nccl", "--graph off", ""}, 9);
}
TEST(schedule_needs_every_wait_graph, "NCCL schedule, captured: leave out any one wait and it is rejected or wrong") {
  schedule_mutants(ScheduleCase{2, "nccl", "", ""}, 9);
}
TEST(schedule_needs_every_wait_mpi, "staged schedule of --comm mpi: leave out any one wait and the result is wrong") {
  schedule_mutants(ScheduleCase{2, "mpi", "", ""}, 3);
  schedule_mutants(ScheduleCase{2, "mpi", "--shm off", ""}, 3);
}
TEST(schedule_needs_every_wait_offload, "the same with optimizer or parameters on the host, and of replicas") {
  schedule_mutants(ScheduleCase{1, "self", "--offload params", ""}, 7);
  schedule_mutants(ScheduleCase{2, "nccl", "--offload optimizer --strategy no_shard", "--param_dtype bf16"}, 6);
  schedule_mutants(ScheduleCase{2, "mpi", "--offload params --strategy no_shard", ""}, 3);
}
TEST(schedule_needs_every_wait_muon, "the same with Muon's matrices on their way to owners and back") {
  schedule_mutants(ScheduleCase{2, "nccl", "--graph off", "--optimizer muon"}, 12);
}
TEST(schedule_needs_every_wait_muon_all,
     "Muon's matrices over messages of a mirrored device, and with masters on the host") {
  schedule_mutants(ScheduleCase{2, "mpi", "--shm off", "--optimizer muon"}, 5);
  schedule_mutants(ScheduleCase{1, "self", "--offload params", "--optimizer muon"}, 9);
}
TEST(schedule_needs_every_wait_modes_all, "the same with kept blocks, meshes, local sums") {
  schedule_mutants(ScheduleCase{4, "nccl", "--reshard_after_forward 2 --graph off", ""}, 9);
  schedule_mutants(ScheduleCase{4, "nccl", "--mesh 2x2", "--fp8 gather"}, 9);
  schedule_mutants(ScheduleCase{4, "nccl", "--mesh 2x2 --offload params", "--param_dtype bf16"}, 9);
  schedule_mutants(ScheduleCase{4, "mpi", "--reshard_after_forward 2", ""}, 3);
  schedule_mutants(ScheduleCase{4, "mpi", "--mesh 2x2 --offload optimizer", ""}, 3);
}
