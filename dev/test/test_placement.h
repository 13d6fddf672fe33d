// test_placement.h: what the proof of the schedule says about an op's context: the workspace and the step's state.
// Plans of whole models are in test_plan.h.

// ================================================================================================ 1 an op's context
TEST(placement_needs_a_workspace_for_each_use,
     "a dry run in which an op uses the workspace on a side stream, which has none, is an error that names the op") {
  Record r;
  const Ops table = plan_table(true);
  Ctx c = {}, side = {};
  record_open(&r);
  c.ops = &table;
  c.device = &r;
  c.workspace_bytes = 4096;
  c.workspace = record_addresses(&r, c.workspace_bytes);
  table.side_open(&c, &side, "side");
  const Tensor x = tensor_of(record_addresses(&r, 64), F32, 4, 4), w = tensor_of(record_addresses(&r, 64), F32, 4, 4);
  const Tensor out = tensor_of(record_addresses(&r, 64), F32, 4, 4);
  convert(&side, out, x);
  matmul_forward(&c, out, x, w, MatmulEpilogue{});
  EXPECT(!r.error[0], "%s", r.error);
  matmul_forward(&side, out, x, w, MatmulEpilogue{});
  EXPECT(strstr(r.error, "matmul_forward") && strstr(r.error, "workspace"), "it says '%s'", r.error);
  record_close(&r);
}
// A table over an emulated GPU's: an op has no workspace unless it is said to use it, and no state unless it is said to
// read some of it. test_plan.h, ops_touch_what_they_declare, is the same for a CPU's ops.
static int context_calls;
static inline void context_check(OpWatch *, Ctx *c, const OpTouch *x) {
  const Access state = {ACCESS_READ, (uintptr_t)c->state, sizeof *c->state};
  bool reads = false;
  for (int i = 0; i < x->count; i++) reads = reads || accesses_overlap(x->access[i], state);
  if (!reads) c->state = NULL;
  if (!x->workspace) c->workspace = NULL, c->workspace_bytes = 0;
  context_calls++;
}
TEST_MPI(placement_gives_cuda_ops_what_they_declare, 1,
         "on an emulated GPU, training steps have the same losses when each op has only that of its context which its "
         "line of ops.h names") {
  if (!&ops_cuda_emulated) SKIP("this test program was linked without dev/cuda_emu");
  static Corpus corpus;
  static Trainer t;
  OpWatch checked;
  watch_table(&checked, &ops_cuda_emulated);
  checked.before = context_check;
  test_corpus(&corpus, 64, 2 * 8 * 4 + 1, 20);
  for (const char *mode : {"--dropout 0.2", "--param_dtype bf16 --optimizer sgd --reduce_dtype fp16"}) {
    double loss[2][2];
    for (int with = 0; with < 2; with++) {
      Options o;
      test_options(&o, 1, "--n_layer 1 --n_head 2 --n_embd 16 --seq_len 8 --n_positions 8 --vocab_size 64 "
                   "--batch_size 2 --graph off %s", mode);
      trainer_open(&t, &o, &corpus, MPI_COMM_SELF, device_of(with ? &checked.ops : &ops_cuda_emulated), 1);
      for (double &x : loss[with]) x = train_step(&t, 0).loss;
      trainer_close(&t);
    }
    EXPECT(!memcmp(loss[0], loss[1], sizeof loss[0]) && context_calls > 50, "%s: losses %.9g %.9g, must be %.9g "
           "%.9g; %d calls", mode, loss[1][0], loss[1][1], loss[0][0], loss[0][1], context_calls);
  }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}
TEST_MPI(placement_is_one_of_all_ranks, 3,
         "ranks with different numbers of threads, whose workspaces would differ, agree on the larger one, so that "
         "peers find gradient slots where they are; losses are those of ranks with one thread each") {
  static Corpus corpus;
  static Trainer t;
  double loss[2][2];
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  test_corpus(&corpus, 101, 12 * 7 * 4 + 1, 60);
  for (int differ = 0; differ < 2; differ++) {
    Options o;
    test_options(&o, 3, "--n_layer 3 --n_head 2 --n_embd 20 --seq_len 7 --n_positions 9 --vocab_size 101 "
                 "--batch_size 1 --global_batch 6 --recompute block --isa avx2");
    trainer_open(&t, &o, &corpus, MPI_COMM_WORLD, device_of(cpu_tables[0].ops), differ ? 1 + rank : 1);
    const size_t slots = t.fsdp->passes->placement.pool[POOL_SLOTS].bytes;
    unsigned long long mine[2] = {t.ctx.workspace_bytes, slots}, least[2], most[2];
    MPI_Allreduce(mine, least, 2, MPI_UNSIGNED_LONG_LONG, MPI_MIN, MPI_COMM_WORLD);
    MPI_Allreduce(mine, most, 2, MPI_UNSIGNED_LONG_LONG, MPI_MAX, MPI_COMM_WORLD);
    EXPECT(least[0] == most[0] && least[1] == most[1], "workspaces of %llu to %llu bytes, slots with what shares their "
           "memory of %llu to %llu", least[0], most[0], least[1], most[1]);
    for (double &x : loss[differ]) x = train_step(&t, 0).loss;
    trainer_close(&t);
  }
  EXPECT(!memcmp(loss[0], loss[1], sizeof loss[0]), "losses %.9g %.9g, and %.9g %.9g of one thread each", loss[1][0],
         loss[1][1], loss[0][0], loss[0][1]);
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}

// Ways to break a record, and what the proof must say then.
enum ContextBreak { CONTEXT_WHOLE, CONTEXT_TWO_STREAMS, CONTEXT_EARLY_INPUT, CONTEXT_EARLY_DECISION,
                    CONTEXT_LATE_DECISION, CONTEXT_BREAKS };
static const char *const context_says[] = {NULL, "not ordered after", "input is not there yet", "decided already",
                                           "not decided yet"};
static ContextBreak context_break;
static int context_find(const Record *r, int from, bool (*is)(const RecordEntry *e)) {
  while (from < r->count && !is(&r->entry[from])) from++;
  CHECK(from < r->count, "none of %d entries is such", r->count);
  return from;
}
static bool context_is_workspace(const RecordEntry *e) { return e->context && e->access.kind == ACCESS_WRITE; }
static bool context_is_reduction(const RecordEntry *e) {
  return e->kind == RECORD_ACCESS && e->stream == RECORD_REDUCE;
}
static bool context_is_input(const RecordEntry *e) { return e->context && e->op == OP_embedding_forward; }
static bool context_is_loss(const RecordEntry *e) { return e->context && e->op == OP_cross_entropy_forward_backward; }
static bool context_is_update(const RecordEntry *e) { return e->context && e->op == OP_adamw_update; }
static bool context_is_decision(const RecordEntry *e) { return e->op == OP_step_decide; }
// Moves an entry to an earlier place.
static void context_move(Record *r, int from, int to) {
  const RecordEntry moved = r->entry[from];
  memmove(r->entry + to + 1, r->entry + to, sizeof moved * (size_t)(from - to));
  r->entry[to] = moved;
}
static void context_change(Record *r) {
  const int input = context_find(r, 0, context_is_input), workspace = context_find(r, input, context_is_workspace);
  const int reduction = context_find(r, workspace, context_is_reduction);
  const int loss = context_find(r, 0, context_is_loss), decision = context_find(r, 0, context_is_decision);
  const int update = context_find(r, 0, context_is_update);
  switch (context_break) {
    case CONTEXT_TWO_STREAMS:                    // an op of the reductions' stream uses it, too
      r->entry[reduction].access = r->entry[workspace].access;
      r->entry[reduction].block = r->entry[workspace].block;
      r->entry[reduction].rank = r->entry[workspace].rank;
      break;
    case CONTEXT_EARLY_INPUT: context_move(r, input, 0); break;
    case CONTEXT_EARLY_DECISION: context_move(r, decision, loss); break;
    case CONTEXT_LATE_DECISION: context_move(r, update, decision); break;
    default: break;
  }
}
TEST_MPI(schedule_log_proves_what_ops_read_of_their_context, 2,
         "the proof of a schedule rejects a record in which two streams use the workspace, an op runs before the "
         "step's input is there, a decision comes before the last loss, or an update before the decision") {
  if (!&ops_streams) SKIP("this test program was linked without dev/cuda_emu");
  static Corpus corpus;
  static SchedRun run;
  schedule_corpus(&corpus);
  for (int i = 0; i < CONTEXT_BREAKS; i++) {
    context_break = (ContextBreak)i;
    const SchedVariant v = {1, 0, context_change};
    if (!sched_record(&run, &corpus, &ops_streams, 2, "nccl", "--graph off", v)) continue;
    const char *error = sched_check(&run);
    EXPECT(context_says[i] ? error && strstr(error, context_says[i]) : !error, "break %d: it says '%s', must say '%s'",
           i, error ? error : "", context_says[i] ? context_says[i] : "");
    sched_free(&run);
  }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}
