// test_schedule.h: the trainer's streams, events, graphs and transports on an emulated device. ops_streams runs the
// CPU's own ops, so every run must equal the CPU's one-rank run bit for bit, in whatever order its streams run; and it
// must stop doing so as soon as any one wait is left out.
#include "../cuda_emu/emu.h"

// Small, with everything a schedule can get wrong: more blocks than slots (gathers again in backward), two microbatches
// a rank or more (the root's gradient slot is used twice a step), dropout, odd widths, steps enough for a capture and
// two replays.
static const char schedule_shapes[] = "--n_layer 4 --n_head 2 --n_embd 20 --seq_len 7 --n_positions 9 --vocab_size 101 "
                                      "--batch_size 1 --global_batch 12 --lr 0.01 --warmup 0 --clip 0.5 --dropout 0.1 "
                                      "--isa avx2";
enum { SCHEDULE_STEPS = 4 };

// What a run does beyond its options. chunk_numel: of a reduction's rounds, 0: the trainer's own, which these small
// shapes never fill. eval_each_step: validates after every step, not only after the last.
struct ScheduleVariant { int64_t chunk_numel; bool eval_each_step; };
static ScheduleVariant schedule_variant;

// Trains on `world` of this launch's ranks. False on the others, which only wait.
static inline bool schedule_run(WorldResult *r, const Corpus *corpus, const Ops *ops, int world, const char *comm_name,
                                const char *extra) {
  int rank;
  MPI_Comm comm;
  memset(r, 0, sizeof *r);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_split(MPI_COMM_WORLD, rank < world ? 0 : MPI_UNDEFINED, rank, &comm);
  if (comm == MPI_COMM_NULL) return false;
  static Trainer t;
  Options o;
  // "native": refused beside --comm auto, so it is set like --comm, behind the parser.
  const bool native = !strncmp(extra, "native", 6);
  test_options(&o, world, "%s %s", schedule_shapes, extra + (native ? 6 : 0));
  snprintf(o.comm, sizeof o.comm, "%s", comm_name);
  if (native) strcpy(o.reduce, "native");
  trainer_open(&t, &o, corpus, comm, device_of(ops), 1);
  const int64_t own_chunk = t.fsdp.chunk_numel;
  if (schedule_variant.chunk_numel) t.fsdp.chunk_numel = min64(own_chunk, schedule_variant.chunk_numel);
  for (int s = 0; s < SCHEDULE_STEPS; s++) {
    t.fsdp.traffic = Traffic{};
    if (s + 1 == SCHEDULE_STEPS && getenv("SCHEDULE_LOSE") && world > 1) emu_nccl_lose(1000);
    const StepResult x = train_step(&t, false);
    r->loss[s] = x.loss;
    r->norm[s] = x.grad_norm;
    const Traffic want = fsdp_formula(&t.fsdp, (int)o.grad_accum, (int64_t)trainer_exchange_bytes(&t));
    EXPECT(!memcmp(&want, &t.fsdp.traffic, sizeof want), "N=%d %s %s step %d: traffic is not the formula's", world,
           comm_name, extra, s);
    if (s + 1 < SCHEDULE_STEPS && !schedule_variant.eval_each_step) continue;
    const EvalResult e = trainer_eval(&t, &corpus->split[SPLIT_VALID]);
    r->eval_loss += e.loss;
    r->eval_tokens += e.tokens;
  }
  r->weights = weights_hash(&t.fsdp);
  t.fsdp.chunk_numel = own_chunk;                // memory is given back as it was taken
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
    "N = 1, 2, 3 over emulated streams and NCCL, captured as a graph, in 20 orders: the CPU's bits, the traffic of "
    "the formula") {
  schedule_orders("nccl", "", 20);
}
TEST_MPI(schedule_nccl_without_graphs, 3, "the same without graphs") { schedule_orders("nccl", "--graph off", 20); }
TEST_MPI(schedule_mpi_in_any_order, 3, "the same over --comm mpi: a mirror in windows, and messages") {
  schedule_orders("mpi", "", 6);
  schedule_orders("mpi", "--shm off", 6);
}
TEST_MPI(schedule_dtypes_in_any_order, 3,
         "half parameters, half wire (staged in rounds), untied head, other slot counts, fp16's loss scale: the CPU's "
         "bits") {
  const char *const extras[] = {"--param_dtype bf16 --reduce_dtype bf16 --tie_head off", "--reduce_dtype bf16",
                                "--param_dtype fp16 --gather_slots 1 --optimizer sgd", "--gather_slots 4"};
  for (const char *extra : extras) {
    schedule_orders("nccl", extra, 4);
    schedule_orders("mpi", extra, 2);
  }
  schedule_orders("mpi", "--param_dtype bf16 --reduce_dtype bf16 --shm off", 2);
}
TEST_MPI(schedule_eval_between_steps, 3,
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
    schedule_orders("nccl", extra, 4);
    schedule_orders("mpi", extra, 2);
  }
  schedule_orders("mpi", "--shm off", 2);
  schedule_orders("mpi", "--shm off --reduce_dtype bf16", 2);
  schedule_variant = ScheduleVariant{};
}
TEST_MPI(schedule_in_many_orders_all, 3, "200 orders over NCCL, captured") { schedule_orders("nccl", "", 200); }
TEST_MPI(schedule_in_many_eager_orders_all, 3, "200 orders over NCCL without graphs") {
  schedule_orders("nccl", "--graph off", 200);
}
TEST_MPI(schedule_in_many_other_orders_all, 3, "60 orders over mpi, and of a staged half wire over NCCL") {
  schedule_orders("mpi", "", 60);
  schedule_orders("nccl", "--param_dtype bf16 --reduce_dtype bf16", 60);
}

// ---- mutants
// SCHEDULE_LOSE: every rank loses its peers in the last step, which is a replay unless graphs are off.
// SCHEDULE_COMM, SCHEDULE_EXTRA: what to run; SCHEDULE_SKIP=event|stream: the wait to leave out; SCHEDULE_WAITS: a file
// to write the waits of this run to.
TEST_MPI(schedule_once, 2, "two ranks in the orders that show a missing wait: the CPU's bits (also what mutants run)") {
  if (!&ops_streams) SKIP("this test program was linked without dev/cuda_emu");
  static Corpus corpus;
  WorldResult r;
  const char *comm = getenv("SCHEDULE_COMM"), *extra = getenv("SCHEDULE_EXTRA"), *skip = getenv("SCHEDULE_SKIP");
  schedule_corpus(&corpus);
  const WorldResult one = schedule_reference(&corpus, extra ? extra : "");
  char event[64] = "", stream[64] = "";
  if (skip && sscanf(skip, "%63[^|]|%63[^|]", event, stream) == 2) emu_skip_waits(event, stream);
  for (int seed = 0; seed < 6 && !test_failures; seed++) {
    emu_set_seed((uint64_t)seed);
    schedule_run(&r, &corpus, &ops_streams, 2, comm ? comm : "nccl", extra ? extra : "");
    schedule_expect(&r, &one, "order %d", seed);
  }
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (!getenv("SCHEDULE_WAITS") || rank) return;
  EmuWait waits[64];
  const int n = emu_waits(waits, 64);
  FILE *f = fopen(getenv("SCHEDULE_WAITS"), "w");
  for (int i = 0; i < n && f; i++) fprintf(f, "%s|%s\n", waits[i].event, waits[i].stream);
  if (f) fclose(f);
}
// Runs schedule_once under mpirun; returns its exit code.
static inline int schedule_child(const char *comm, const char *extra, const char *skip, const char *waits) {
  char self[512], command[1536];
  const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
  self[n > 0 ? n : 0] = 0;
  snprintf(
      command, sizeof command,
      "SCHEDULE_COMM='%s' SCHEDULE_EXTRA='%s' SCHEDULE_SKIP='%s' %s%s timeout 60 \"${MPIRUN:-mpirun}\" "
      "--oversubscribe --bind-to none "
      "-np 2 '%s' --run schedule_once >'%s/child' 2>&1",
      comm, extra, skip, waits ? "SCHEDULE_WAITS=" : "", waits ? waits : "", self, test_tmp());
  const int status = system(command);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}
static inline void schedule_mutants(const char *comm, const char *extra, int at_least) {
  char path[256], line[160];
  snprintf(path, sizeof path, "%s/waits", test_tmp());
  const int code = schedule_child(comm, extra, "", path);
  FILE *f = fopen(path, "r");
  REQUIRE(code == 0 && f, "--comm %s %s: the run without mutants fails (exit %d)", comm, extra, code);
  int count = 0;
  while (fgets(line, sizeof line, f)) {
    line[strcspn(line, "\n")] = 0;
    count++;
    const int mutant = schedule_child(comm, extra, line, NULL);
    EXPECT(mutant != 0, "--comm %s %s: nothing shows that the wait %s is missing", comm, extra, line);
    EXPECT(mutant != 124, "--comm %s %s: without the wait %s it hangs", comm, extra, line);
  }
  fclose(f);
  EXPECT(count >= at_least, "--comm %s %s: %d different waits, %d are in the schedule", comm, extra, count, at_least);
}
TEST(schedule_a_lost_peer_ends_the_wait, "NCCL fails in the background of a step: one line, no endless wait") {
  if (!&ops_streams) SKIP("this test program was linked without dev/cuda_emu");
  for (const char *extra : {"", "--graph off"}) {
    setenv("SCHEDULE_LOSE", "1", 1);
    const int code = schedule_child("nccl", extra, "", NULL);
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
  if (!&ops_streams) SKIP("this test program was linked without dev/cuda_emu");
  schedule_mutants("nccl", "--graph off", 9);
}
TEST(schedule_needs_every_wait_graph, "NCCL schedule, captured: leave out any one wait and it is refused or wrong") {
  if (!&ops_streams) SKIP("this test program was linked without dev/cuda_emu");
  schedule_mutants("nccl", "", 9);
}
TEST(schedule_needs_every_wait_mpi, "staged schedule of --comm mpi: leave out any one wait and the result is wrong") {
  if (!&ops_streams) SKIP("this test program was linked without dev/cuda_emu");
  schedule_mutants("mpi", "", 3);
  schedule_mutants("mpi", "--shm off", 3);
}
