// test_returns.h: with replicas, the sum of each unit goes back to all replicas beside backward of the blocks before
// it. Shown by the record of a run of two steps (record_replay.h).

// replicas: R of the mesh. streams: on an emulated device. Over NCCL a collective carries a unit's sum; else a message
// to each replica, or a read of the last replica's window.
struct ReturnsMode { int world; bool streams; const char *comm, *extra; int replicas; };
static bool returns_by_nccl(const ReturnsMode *k) { return !strcmp(k->comm, "nccl"); }

// The last entry before `end`, in that pass, that tells that the gradient of stage s is complete; -1: there is none.
static int returns_held(const SchedRun *run, int rank, uint32_t pass, int s, int end) {
  for (int i = end - 1; i >= 0; i--) {
    const RecordEntry *e = &run->entry[rank][i].e;
    if (e->kind == RECORD_HOLD && e->op == HELD_GRADIENT && e->number == s && e->pass == pass) return i;
  }
  return -1;
}
// Whether x comes before y in every run that the record allows. Both are accesses.
static bool returns_before(const SchedRun *run, int rank, const SchedEntry *x, const SchedEntry *y) {
  const int thread = sched_thread(run, rank, x->e.stream);
  const SchedPast *past = sched_check_state.past;
  return past[y->id].clock.t[thread] > past[x->id].clock.t[thread];
}
// The last access of the model before entry `end`.
static const SchedEntry *returns_of_model(const SchedRun *run, int rank, int end) {
  for (int i = end - 1; i >= 0; i--) {
    const SchedEntry *x = &run->entry[rank][i];
    if (sched_is_access(x) && x->e.stream == RECORD_MODEL && x->e.place.what == SCHEDULE_MODEL) return x;
  }
  return NULL;
}
// The sum of stage s goes back: started by entry `at`.
static void returns_beside_backward(const SchedRun *run, const ReturnsMode *k, int rank, int at) {
  const SchedEntry *log = run->entry[rank];
  const uint32_t pass = log[at].e.pass;
  const int s = log[at].e.place.stage, own = returns_held(run, rank, pass, s, run->count[rank]);
  EXPECT(own >= 0 && own < at, "%s %s, rank %d: the sum of stage %d goes back before its last gradient is complete",
         k->comm, k->extra, rank, s);
  for (int before = s - 1; before >= 1 && before >= s - 2; before--) {
    const int end = returns_held(run, rank, pass, before, run->count[rank]);
    EXPECT(at < end, "%s %s, rank %d: the sum of stage %d starts to go back after backward of stage %d", k->comm,
           k->extra, rank, s, before);
    const SchedEntry *last = returns_of_model(run, rank, end);
    for (int i = at; i < run->count[rank] && returns_by_nccl(k) && last; i++) {
      const SchedEntry *x = &log[i];
      if (!sched_is_access(x) || x->e.place.what != SCHEDULE_RETURN) continue;
      if (x->e.pass != pass || x->e.place.stage != s) continue;
      EXPECT(!returns_before(run, rank, x, last), "%s %s, rank %d: the sum of stage %d must be back before backward of "
             "stage %d ends", k->comm, k->extra, rank, s, before);
      EXPECT(!returns_before(run, rank, last, x), "%s %s, rank %d: the sum of stage %d waits for all of backward of "
             "stage %d", k->comm, k->extra, rank, s, before);
    }
  }
}
TEST_MPI(returns_go_beside_backward, 4,
         "the record of runs with replicas, over windows, messages, mirrored windows and NCCL, ordered and native: a "
         "block's sum starts to go back before backward of the block before it ends; on streams neither waits for the "
         "other; one way back a unit and step, each as many collectives, messages or reads as the formula says") {
  enum { STEPS = 2, UNITS = 5 };                 // of schedule_shapes: four blocks, and what is outside of them
  static const ReturnsMode modes[] = {{4, false, "mpi", "--mesh 2x2", 2},
                                      {3, false, "mpi", "--strategy no_shard --shm off", 3},
                                      {4, true, "mpi", "--mesh 2x2", 2},
                                      {4, true, "nccl", "--mesh 2x2", 2},
                                      {4, true, "nccl", "native --mesh 2x2 --graph off", 2}};
  static Corpus corpus;
  static SchedRun run;
  schedule_corpus(&corpus);
  for (const ReturnsMode &k : modes) {
    if (k.streams && !&ops_streams) continue;    // linked without dev/cuda_emu
    const Ops *ops = k.streams ? &ops_streams : cpu_tables[0].ops;
    if (!sched_record(&run, &corpus, ops, k.world, k.comm, k.extra, SchedVariant{STEPS, 384, NULL})) continue;
    const char *error = sched_check(&run);
    EXPECT(!error, "%s %s: %s", k.comm, k.extra, error);
    for (int r = 0; r < k.world && !error; r++) {
      const bool last = r / (k.world / k.replicas) == k.replicas - 1;
      int begun = 0, moved = 0, beside = 0;
      for (int i = 0; i < run.count[r]; i++) {
        const SchedEntry *x = &run.entry[r][i];
        const bool collective = x->e.kind == RECORD_COLLECTIVE, returns = x->e.place.what == SCHEDULE_RETURN;
        if (collective && x->e.op == COLLECTIVE_RETURN) {
          begun++;
          beside += x->e.place.stage > 1;
          if (x->e.place.stage > 1) returns_beside_backward(&run, &k, r, i);
        }
        if (returns_by_nccl(&k)) moved += collective && x->e.number == OVER_REPLICATE;
        else if (x->e.kind == RECORD_SEND || x->e.kind == RECORD_RECEIVE) moved += returns;
        else moved += returns && sched_is_access(x) && x->reads && x->owner != r;
      }
      const int peers = returns_by_nccl(&k) || !last ? 1 : strstr(k.extra, "--shm off") ? k.replicas - 1 : 0;
      EXPECT(begun == STEPS * UNITS && beside == STEPS * (UNITS - 2), "%s %s, rank %d: %d sums start to go back, must "
             "be %d", k.comm, k.extra, r, begun, STEPS * UNITS);
      EXPECT(moved == STEPS * UNITS * peers, "%s %s, rank %d: sums go back by %d collectives, messages or reads, must "
             "be %d", k.comm, k.extra, r, moved, STEPS * UNITS * peers);
    }
    sched_free(&run);
  }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}
