// test_liveness.h: no rank waits for ever. In each kind of exchange one rank is stopped, killed, or stays away; every
// other rank must end automatically, with its own exit code, and name it; and every rank that was not killed must leave
// a flight record that tells the truth. Launchers that would end them are told not to.
// Needs test_schedule.h, cli_helpers.h and test_kill.h.

// ---- one world whose rank falls out --------------------------------------------------------------------------------
// device: cpu, or streams (emulated CUDA). at: the exchange, in the second step, before which the victim falls out:
// start (ranks agree on the run), busy (the others continue for ever), gather, reduce, chain, small, replay (while the
// device runs a captured step), save, sync (of its part of a save), commit (of a save's trainer.json); or the op in
// which it does: forward, backward, update, eval.
// how: SIGSTOP, SIGKILL, or 0: it lives and does nothing.
struct LivenessCase { const char *device, *comm, *extra, *at; int victim, how; };
static const LivenessCase liveness_cases[] = {
    {"cpu", "mpi", "", "start", 1, SIGSTOP},
    {"cpu", "mpi", "--shm copy", "gather", 1, SIGSTOP},
    {"cpu", "mpi", "--shm off", "gather", 2, SIGKILL},
    {"cpu", "mpi", "", "reduce", 2, SIGKILL},
    {"cpu", "mpi", "--strategy no_shard", "chain", 1, SIGSTOP},
    {"cpu", "mpi", "", "small", 0, SIGSTOP},
    {"cpu", "mpi", "", "small", 1, 0},
    {"cpu", "mpi", "", "save", 2, SIGSTOP},
    {"cpu", "mpi", "", "busy", 1, SIGSTOP},
    {"cpu", "mpi", "", "busy", 0, SIGSTOP},
    {"cpu", "mpi", "", "forward", 1, SIGSTOP},
    {"cpu", "mpi", "--shm off", "backward", 2, SIGKILL},
    {"cpu", "mpi", "", "backward", 0, SIGSTOP},
    {"cpu", "mpi", "", "update", 2, SIGSTOP},
    {"cpu", "mpi", "--shm copy", "eval", 1, SIGSTOP},
    {"cpu", "mpi", "", "sync", 2, 0},
    {"cpu", "mpi", "--save_async", "sync", 2, 0},
    {"cpu", "mpi", "", "commit", 0, 0},
    {"streams", "mpi", "", "gather", 0, SIGKILL},
    {"streams", "mpi", "--shm off", "reduce", 1, SIGSTOP},
    {"streams", "nccl", "--graph off", "gather", 2, SIGSTOP},
    {"streams", "nccl", "--graph off", "reduce", 1, SIGKILL},
    {"streams", "nccl", "--graph off --strategy no_shard", "chain", 1, SIGSTOP},
    {"streams", "nccl", "--graph off", "small", 0, SIGSTOP},
    {"streams", "nccl", "", "replay", 2, SIGSTOP},
    {"streams", "nccl", "", "replay", 1, SIGKILL}};
enum { LIVENESS_CASES = sizeof liveness_cases / sizeof *liveness_cases, LIVENESS_RANKS = 3, LIVENESS_TIMEOUT_S = 10,
       LIVENESS_LIMIT_S = 200 };

static struct { const LivenessCase *k; const Comm *comm; const Ops *ops; int rank, calls, at_call; } liveness_fall;
// What the victim leaves behind before it falls out.
static inline const char *liveness_sign() {
  char name[32];
  snprintf(name, sizeof name, "fell.%d", (int)(liveness_fall.k - liveness_cases));
  return cli_path(name);
}
// The deadline becomes short only then, and starts then: a machine that is busy before is no hang.
static inline void *liveness_watch(void *) {
  while (access(liveness_sign(), F_OK)) usleep(20000);
  liveness_progress();
  liveness_timeout(LIVENESS_TIMEOUT_S);
  return NULL;
}
static inline void liveness_fall_out() {
  if (liveness_fall.rank != liveness_fall.k->victim) return;
  char pid[16];
  snprintf(pid, sizeof pid, "%d", (int)getpid());
  cli_write(liveness_sign(), pid, strlen(pid));
  if (liveness_fall.k->how) raise(liveness_fall.k->how);
  for (;;) pause();
}
static inline void liveness_fall_at(const char *what) {
  if (!strcmp(liveness_fall.k->at, what) && ++liveness_fall.calls == liveness_fall.at_call) liveness_fall_out();
}
static inline void liveness_gather_start(Fsdp *f, int s, GatherSlot *slot) {
  liveness_fall_at("gather");
  liveness_fall.comm->gather_start(f, s, slot);
}
static inline void liveness_round_send(Fsdp *f, uint64_t round, ReduceSpan x) {
  liveness_fall_at("reduce");
  liveness_fall.comm->round_send(f, round, x);
}
static inline void liveness_chain_give(Fsdp *f, uint64_t round, ReduceSpan x, float *sum) {
  liveness_fall_at("chain");
  liveness_fall.comm->chain_give(f, round, x, sum);
}
static inline void liveness_small(Fsdp *f, const void *mine, void *all, size_t bytes) {
  liveness_fall_at("small");
  liveness_fall.comm->small_all_gather(f, mine, all, bytes);
}
// In the middle of its device's step the victim waits, and so the others' devices do, until their hosts have said that
// they wait for them: a rank that died before that would find them elsewhere.
static inline void liveness_background(void *) {
  char name[48];
  if (strcmp(liveness_fall.k->at, "replay")) return;
  const int number = (int)(liveness_fall.k - liveness_cases), victim = liveness_fall.k->victim;
  snprintf(name, sizeof name, "waits.%d.%d", number, liveness_fall.rank);
  if (WORD_GET(&liveness_words.what) && access(cli_path(name), F_OK)) cli_write(cli_path(name), "", 0);
  if (liveness_fall.rank != victim || ++liveness_fall.calls < liveness_fall.at_call) return;
  for (int r = 0; r < LIVENESS_RANKS; r++) {
    snprintf(name, sizeof name, "waits.%d.%d", number, r);
    while (r != victim && access(cli_path(name), F_OK)) usleep(1000);
  }
  liveness_fall_out();
}
static inline void liveness_attention_forward(Ctx *c, Tensor out, Tensor lse, Tensor qkv, int n_head, Dropout drop,
                                              Tensor starts) {
  if (liveness_fall.comm) liveness_fall_at("forward");
  if (liveness_fall.comm) liveness_fall_at("eval");
  liveness_fall.ops->attention->attention_forward(c, out, lse, qkv, n_head, drop, starts);
}
static inline void liveness_attention_backward(Ctx *c, Tensor dqkv, Tensor dout, Tensor qkv, Tensor out, Tensor lse,
                                               int n_head, Dropout drop, Tensor starts, Tensor dqkv_sum) {
  if (liveness_fall.comm) liveness_fall_at("backward");
  liveness_fall.ops->attention->attention_backward(c, dqkv, dout, qkv, out, lse, n_head, drop, starts, dqkv_sum);
}
static inline void liveness_adamw(Ctx *c, Tensor param, Tensor master, Tensor m, Tensor v, Tensor grad, AdamwArgs a) {
  if (liveness_fall.comm) liveness_fall_at("update");
  liveness_fall.ops->optimizer->adamw_update(c, param, master, m, v, grad, a);
}
// A disk that hangs.
static inline int liveness_file_hook(FileOp op, const char *path) {
  if (op == FILE_SYNC) liveness_fall_at(strcmp(kill_name(path), "trainer.json") ? "sync" : "commit");
  return 0;
}
// Saves, while a line of progress is drawn again and again.
static inline void liveness_saves(const LivenessCase *k) {
  static KillWorld w;
  char out[512];
  snprintf(out, sizeof out, "%s/out.%d", test_tmp(), (int)(k - liveness_cases));
  kill_world_open(&w, MPI_COMM_WORLD, out, kill_shapes, k->extra);
  train_step(&w.t, false);
  liveness_fall_at("save");
  terminal.out = true;
  lent_file_hook(liveness_file_hook);
  kill_save(&w, w.t.opt.save_async, false);
}
// The same ops, but those in which a rank may fall out.
static inline const Ops *liveness_ops(const Ops *ops) {
  static Ops between;
  static AttentionOps attention;
  static OptimizerOps optimizer;
  liveness_fall.ops = ops;
  between = *ops;
  between.attention = &(attention = *ops->attention);
  between.optimizer = &(optimizer = *ops->optimizer);
  attention.attention_forward = liveness_attention_forward;
  attention.attention_backward = liveness_attention_backward;
  optimizer.adamw_update = liveness_adamw;
  return &between;
}
// Puts itself between the world's Fsdp and its transport.
static inline void liveness_arm(Fsdp *f) {
  static Comm between;
  liveness_fall.comm = f->comm;
  between = *f->comm;
  between.gather_start = liveness_gather_start;
  between.round_send = liveness_round_send;
  between.chain_give = liveness_chain_give;
  between.small_all_gather = liveness_small;
  f->comm = &between;
  f->watch.hooks.background = liveness_background;
}
// LIVENESS_CASE: which of the cases.
TEST_MPI(liveness_once, 3, "a world that continues (what liveness_names_who_fell_out runs, with a rank that falls "
         "out)") {
  const char *number = getenv("LIVENESS_CASE");
  static const LivenessCase healthy = {"cpu", "mpi", "", "", 0, 0};
  const LivenessCase *k = liveness_fall.k = number ? &liveness_cases[atoi(number)] : &healthy;
  const Ops *ops = !strcmp(k->device, "cpu") ? cpu_tables[0].ops : &ops_streams;
  Error error = {};
  static Corpus corpus;
  static Trainer t;
  Options o;
  int world;
  if (!ops) SKIP("this test program was linked without dev/cuda_emu");
  MPI_Comm_rank(MPI_COMM_WORLD, &liveness_fall.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  liveness_fall.at_call = 1;
  liveness_flight_s = LIVENESS_LIMIT_S;          // dozens of ranks write theirs at once
  liveness_start(600);
  liveness_open(MPI_COMM_WORLD, &error);
  agree_no_error(MPI_COMM_WORLD, error.text, TEST_EXIT_FAILED);
  char flights[512];
  snprintf(flights, sizeof flights, "%s/flight.%d", test_tmp(), (int)(k - liveness_cases));
  if (number) liveness_flight(flights, "a test");
  pthread_t watch;
  if (number && (liveness_fall.rank != k->victim || !k->how)) pthread_create(&watch, NULL, liveness_watch, NULL);
  liveness_fall_at("start");
  liveness_fall_at("busy");
  for (; !strcmp(k->at, "busy"); usleep(1000)) liveness_progress();
  if (!strcmp(k->at, "save") || !strcmp(k->at, "sync") || !strcmp(k->at, "commit")) {
    liveness_saves(k);
    return;
  }
  schedule_corpus(&corpus);
  test_options(&o, world, "%s %s", schedule_shapes, k->extra);
  option_pick(&o, OPT_comm, k->comm);
  trainer_open(&t, &o, &corpus, MPI_COMM_WORLD, schedule_device(ops->nccl ? ops : liveness_ops(ops)), 1);
  train_step(&t, false);
  const bool replay = !strcmp(k->at, "replay");
  if (replay) train_step(&t, false);
  liveness_fall.at_call = replay ? 40 : 2;       // of some hundred: in the middle of the device's step
  liveness_arm(t.fsdp);
  if (!strcmp(k->at, "eval")) trainer_eval(&t, &corpus.split[SPLIT_VALID]);
  for (int s = 0; s < 2; s++) train_step(&t, false);
  trainer_close(&t);
  liveness_close();
}

// ---- every case at once --------------------------------------------------------------------------------------------
// The exit code that rank r of a case left behind; -1: it has not ended.
static inline int liveness_code(int number, int r) {
  char name[64];
  int code = -1;
  snprintf(name, sizeof name, "code.%d.%d", number, r);
  FILE *f = fopen(cli_path(name), "r");
  if (f && fscanf(f, "%d", &code) != 1) code = -1;
  if (f) fclose(f);
  return code;
}
// Waits until the ranks of all cases have ended, those that fell out or only the others.
static inline void liveness_wait_for(int cases, bool victims, double limit_ms) {
  const double start = now_ms();
  for (bool all = false; !all && now_ms() - start < limit_ms; usleep(50000)) {
    all = true;
    for (int i = 0; i < cases; i++)
      for (int r = 0; r < LIVENESS_RANKS; r++)
        all = all && (liveness_code(i, r) >= 0 || (r == liveness_cases[i].victim && !victims));
  }
}
// Lets the rank that was stopped continue.
static inline void liveness_continue(int number) {
  char name[32];
  int pid = 0;
  snprintf(name, sizeof name, "fell.%d", number);
  FILE *f = fopen(cli_path(name), "r");
  if (f && fscanf(f, "%d", &pid) == 1 && liveness_cases[number].how == SIGSTOP) kill(pid, SIGCONT);
  if (f) fclose(f);
}
// The collective in which a rank falls out, by where it does.
static inline const char *liveness_collective(const LivenessCase *k) {
  static const struct { const char *at, *what; } table[] = {
      {"gather", "the gather"}, {"reduce", "the reduction"}, {"chain", "the reduction"},
      {"small", "the small exchange"}};
  for (const auto &t : table) if (!strcmp(t.at, k->at)) return t.what;
  return NULL;
}
static const struct { const char *at, *place; } liveness_ops_fallen[] = {
    {"forward", "microbatch 0, forward of block 1, in attention_forward"},
    {"backward", "microbatch 0, backward of block 2, in attention_backward"},
    {"update", "update, in adamw_update"}, {"eval", "evaluation of block 1, in attention_forward"}};
// Every rank but a killed one has left a record; each says why the run ended, and the victim's that it has started, and
// not ended, the collective in which it fell out, or called the op. The records belong together.
static inline void liveness_expect_flights(int number, const char *what) {
  const LivenessCase *k = &liveness_cases[number];
  FlightRecord r[LIVENESS_RANKS] = {};
  char path[600], named[32], directory[64];
  Error error = {};
  int count = 0;
  snprintf(named, sizeof named, "rank %d (pid ", k->victim);
  snprintf(directory, sizeof directory, "flight.%d", number);
  for (int rank = 0; rank < LIVENESS_RANKS; rank++) {
    snprintf(path, sizeof path, "%.500s/flight-%d.json", cli_path(directory), rank);
    if (rank == k->victim && k->how == SIGKILL) {
      EXPECT(access(path, F_OK), "%s: the killed rank has left a record", what);
      continue;
    }
    FlightRecord *x = &r[count++];
    EXPECT(flight_read(x, path, &error), "%s: %s", what, error.text);
    if (!x->json) return;
    EXPECT(x->rank == rank && x->world == LIVENESS_RANKS, "%s: %s is of rank %d of %d", what, path, x->rank, x->world);
    EXPECT(!k->how || strstr(x->cause, named), "%s: rank %d's record says '%s'", what, rank, x->cause);
    const FlightRow *last = NULL;
    const char *fell = rank == k->victim ? liveness_collective(k) : NULL;
    for (int i = 0; i < x->rows && fell; i++)
      if ((x->row[i].kind == FLIGHT_BEGIN || x->row[i].kind == FLIGHT_END) && !strcmp(x->row[i].what, fell))
        last = &x->row[i];
    if (rank == k->victim)
      for (const auto &o : liveness_ops_fallen)
        EXPECT(strcmp(o.at, k->at) || strstr(x->place, o.place), "%s: the victim's record says '%s'", what, x->place);
    EXPECT(!fell || (last && last->kind == FLIGHT_BEGIN), "%s: the victim fell out in %s, its record %s", what, fell,
           last ? "has its end" : "has none");
  }
  EXPECT(flight_compare(r, count, &error), "%s: %s", what, error.text);
  const FlightRow *agreed, *differs = flight_difference(r, count, &agreed);
  EXPECT(!liveness_collective(k) || agreed, "%s: the records have no collective in common", what);
  for (int i = 0; i < count && differs; i++) {   // nobody started what others started as something else
    int at = 0;
    const FlightRow *here = flight_from(&r[i], differs, &at);
    EXPECT(!here || flight_same(here, differs), "%s: rank %d started another collective %d", what, r[i].rank,
           here->number);
  }
  for (FlightRecord &x : r) flight_close(&x);
}
static inline void liveness_expect(int number, const CliRun *run) {
  const LivenessCase *k = &liveness_cases[number];
  char what[128], rank[32];
  snprintf(what, sizeof what, "%s, --comm %s %s, rank %d by signal %d at %s", k->device, k->comm, k->extra, k->victim,
           k->how, k->at);
  snprintf(rank, sizeof rank, "rank %d (pid ", k->victim);
  for (int r = 0; r < LIVENESS_RANKS; r++) {
    const int code = liveness_code(number, r), want = r == k->victim && k->how == SIGKILL ? 128 + SIGKILL : EXIT_LOST;
    EXPECT(code == want, "%s: rank %d has exit code %d, must be %d; all said:\n%.2000s", what, r, code, want,
           run->text);
  }
  EXPECT(strstr(run->text, rank), "%s: nobody names it:\n%.2000s", what, run->text);
  if (k->how == SIGKILL) EXPECT(strstr(run->text, " has died; "), "%s: it died, but:\n%.2000s", what, run->text);
  snprintf(rank, sizeof rank, "heard of rank %d (", k->victim);
  if (k->how == SIGSTOP) EXPECT(strstr(run->text, rank), "%s: it is silent, but:\n%.2000s", what, run->text);
  if (!strcmp(k->at, "replay"))
    EXPECT(strstr(run->text, "waits for the GPU (in "), "%s: nobody says where the GPU is:\n%.2000s", what, run->text);
  EXPECT(cli_count(run->text, "; all ranks end") == 1, "%s: not one report:\n%.2000s", what, run->text);
  const char *waiting = k->victim ? strstr(run->text, "  waiting: rank ") : NULL;        // rank 0 reports
  EXPECT(!waiting || !strstr(waiting, "collective ") || strstr(run->text, " of 3 ranks came to it"),
         "%s: it is not said who came to the collective:\n%.2000s", what, run->text);
  liveness_expect_flights(number, what);
}
TEST_WAITS(liveness_names_who_fell_out,
     "a rank stopped, killed or absent at each kind of exchange, on a CPU, over emulated CUDA, NCCL and graphs: every "
     "other rank ends automatically with the code for that, and one report names it; one that was stopped ends when it "
     "continues; all but killed ones leave a true flight record") {
  static CliRun run[LIVENESS_CASES];
  char code[512];
  const char *mpirun = getenv("MPIRUN");
  snprintf(code, sizeof code, "%s", cli_path("code"));
  int cases = 0;                                 // those of a CPU come first
  while (cases < LIVENESS_CASES && (&ops_streams || !strcmp(liveness_cases[cases].device, "cpu"))) cases++;
  for (int i = 0; i < cases; i++)
    cli_start(&run[i], "LIVENESS_CASE=%d exec \"%s\" --enable-recovery --oversubscribe --bind-to none -np %d sh -c "
              "'\"%s\" --run liveness_once; echo $? >%s.%d.$OMPI_COMM_WORLD_RANK'", i,
              mpirun && *mpirun ? mpirun : "mpirun", LIVENESS_RANKS, liveness_self(), code, i);
  const double limit_ms = LIVENESS_LIMIT_S * 1e3 * (TEST_SANITIZED ? 4 : 1);
  liveness_wait_for(cases, false, limit_ms);
  for (int i = 0; i < cases; i++) liveness_continue(i);
  liveness_wait_for(cases, true, limit_ms / 4);
  while (cli_find_process(-1, true)) usleep(20000);              // what has not ended, and mpirun, which waits for it
  for (int i = 0; i < cases; i++) {
    cli_wait(&run[i], 1e9);
    liveness_expect(i, &run[i]);
    cli_free(&run[i]);
  }
}
TEST_WAITS(liveness_across_hosts, "heartbeats go between hosts: a rank stopped or absent on the other host is named") {
  static const struct { int number; const char *says; } table[] = {{0, "heard of rank 1 (pid "},
                                                                   {6, "not there: rank 1 (pid "}};
  CliRun run[2];
  test_mpirun_patience(0);                       // what is stopped does not end before that
  for (int i = 0; i < 2; i++)
    cli_start(&run[i], "LIVENESS_CASE=%d exec dev/two_hosts.sh %s --run liveness_once", table[i].number,
              liveness_self());
  for (int i = 0; i < 2; i++) {
    cli_wait(&run[i], LIVENESS_LIMIT_S);
    if (run[i].code == 77) SKIP("%.*s", (int)strcspn(run[i].text, "\n"), run[i].text);
    EXPECT(run[i].code == EXIT_LOST && strstr(run[i].text, table[i].says),
           "exit code %d, must be %d; no '%s' in:\n%.3000s", run[i].code, EXIT_LOST, table[i].says, run[i].text);
    cli_free(&run[i]);
  }
  cli_expect_nothing_left("after two hosts lost a rank");
}

// ---- how far a device is --------------------------------------------------------------------------------------------
// Marks as the host finds them between two operations of the device: which codes each stream has come to.
static struct { const uint32_t *mark; bool seen[MARKS][1 << MARK_BITS]; } liveness_seen;
static inline void liveness_look(void *) {
  for (int i = 0; i < MARKS; i++) liveness_seen.seen[i][mark_code(WORD_GET(&liveness_seen.mark[i]))] = true;
}
TEST_MPI(liveness_sees_into_graphs, 2,
         "eager and replayed steps over NCCL: at every gather, reduction and exchange, in forward, backward and "
         "update, the device leaves a mark that another thread can read") {
  if (!&ops_streams) SKIP("this test program was linked without dev/cuda_emu");
  static Corpus corpus;
  static Trainer t;
  schedule_corpus(&corpus);
  for (const char *graph : {"off", "on"}) {
    Options o;
    test_options(&o, 2, "%s", schedule_shapes);
    o.comm = OPT_comm_nccl;
    option_pick(&o, OPT_graph, graph);
    emu_set_seed(0);                             // one operation a look
    trainer_open(&t, &o, &corpus, MPI_COMM_WORLD, schedule_device(&ops_streams), 1);
    train_step(&t, false);
    train_step(&t, false);                       // captures
    memset((void *)t.host.marks, 0, MARKS * sizeof(uint32_t));
    memset((void *)&liveness_seen, 0, sizeof liveness_seen);
    liveness_seen.mark = t.host.marks;
    t.fsdp->watch.hooks.background = liveness_look;
    train_step(&t, false);
    for (int s = 0; s < t.fsdp->lay.stages; s++) {
      EXPECT(liveness_seen.seen[MARK_GATHER][1 + s], "--graph %s: no mark at the gather of stage %d", graph, s);
      EXPECT(liveness_seen.seen[MARK_REDUCE][1 + s], "--graph %s: no mark at the reduction of stage %d", graph, s);
    }
    for (int code = 0; code <= MARK_UPDATE; code++)
      EXPECT(liveness_seen.seen[MARK_MODEL][code], "--graph %s: no mark of part %d of a step", graph, code);
    EXPECT(liveness_seen.seen[MARK_REDUCE][MARK_EXCHANGE], "--graph %s: no mark at the exchange", graph);
    EXPECT(WORD_GET(&t.host.marks[MARK_MODEL]) == mark_value(2 * (uint32_t)o.grad_accum + 1, MARK_UPDATE),
           "--graph %s: the last mark is %x", graph, WORD_GET(&t.host.marks[MARK_MODEL]));
    char text[128];
    liveness_device_text(t.host.marks, text, sizeof text);
    EXPECT(strstr(text, "in update; last gather of block ") && strstr(text, "; exchange of losses"), "it says '%s'",
           text);
    trainer_close(&t);
  }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}

// ---- what is no hang -----------------------------------------------------------------------------------------------
// In a child: the main thread of one rank is watched with this deadline, and `lives` is what it does.
static inline pid_t liveness_child(int timeout_s, void (*lives)()) {
  fflush(NULL);
  const pid_t child = fork();
  if (child) return child;
  liveness_start(timeout_s);
  lives();
  exit(0);
}
static inline int liveness_exit_code(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
static inline int64_t liveness_idle() {
  pthread_mutex_lock(&liveness.lock);
  const int64_t idle = liveness.idle;
  pthread_mutex_unlock(&liveness.lock);
  return idle;
}
// Until the thread has counted some ticks.
static inline void liveness_let_it_judge() {
  for (const int64_t idle = liveness_idle(); liveness_idle() < idle + 4;) usleep(10000);
}
static inline void liveness_stops() {
  liveness_let_it_judge();
  raise(SIGSTOP);
  liveness_let_it_judge();
}
static inline void liveness_sleeps() { sleep(60); }
static int liveness_reader[2];                   // a pipe that is full
static inline void liveness_fill(int bytes) {
  char text[4096] = "";
  EXPECT(!pipe(liveness_reader) && fcntl(liveness_reader[1], F_SETPIPE_SZ, bytes) == bytes, "%s", strerror(errno));
  EXPECT(write(liveness_reader[1], text, sizeof text) == (ssize_t)sizeof text, "%s", strerror(errno));
}
static inline void liveness_prints() {
  dup2(liveness_reader[1], STDOUT_FILENO);
  say("a line\n");
}
static inline void liveness_draws() {
  dup2(open("/dev/null", O_WRONLY), STDOUT_FILENO);
  for (int i = 0; i < 6000; i++, usleep(10000)) line_draw("saving: 50 % of 3 GB", true);
}
static inline void liveness_writes_file() {
  watchdog_pause(open(cli_path("text"), O_WRONLY | O_CREAT, 0666));
  sleep(60);
}
static inline void liveness_stands() { for (;;) pause(); }
static inline void liveness_ends_slowly() {
  liveness_flight_s = 1;
  liveness_line_end = liveness_stands;           // the first thing of a report that takes for ever
  sleep(60);
}
TEST_WAITS(liveness_knows_what_is_no_hang,
     "a rank that makes no progress ends with the code for that, whatever it draws, and though its report blocks; one "
     "that was stopped for longer than the deadline and continues, or whose reader takes longer, does not") {
  liveness_fill(4096);
  const pid_t prints = liveness_child(3, liveness_prints), stops = liveness_child(3, liveness_stops);
  static const struct { void (*lives)(); const char *what; } table[] = {
      {liveness_sleeps, "sleeps"}, {liveness_draws, "draws a line again and again"},
      {liveness_writes_file, "writes to a file that hangs"}, {liveness_ends_slowly, "writes a report that blocks"}};
  pid_t hangs[4];
  for (int i = 0; i < 4; i++) hangs[i] = liveness_child(1, table[i].lives);
  int status = 0;
  waitpid(stops, &status, WUNTRACED);
  sleep(7);                                      // longer than the deadline and its margin
  kill(stops, SIGCONT);
  close(liveness_reader[1]);
  char text[256];
  while (read(liveness_reader[0], text, sizeof text) > 0) {}
  for (int i = 0; i < 4; i++) {
    const int code = liveness_exit_code(hangs[i]);
    EXPECT(code == EXIT_LOST, "exit code %d of one that %s", code, table[i].what);
  }
  EXPECT(liveness_exit_code(stops) == 0, "the time in which it was stopped counts");
  EXPECT(liveness_exit_code(prints) == 0, "a slow reader counts");
}
TEST(liveness_reports_in_pieces, "a report that a pipe takes in part does not block") {
  static char text[REPORT_BYTES];
  memset(text, 'x', sizeof text);
  liveness_fill(8192);                           // takes 4096 bytes more
  dup2(liveness_reader[1], STDERR_FILENO);
  alarm(60);
  liveness_write(text, sizeof text);
  alarm(0);
  EXPECT(read(liveness_reader[0], text, 4096) == 4096 && read(liveness_reader[0], text, 8192) == 4096 && *text == 'x',
         "what there was room for is not there");
}
static uint64_t liveness_at_sync[8];             // progress at each call
static int liveness_syncs, liveness_sync_fails;
static inline int liveness_count_syncs(FileOp op, const char *) {
  if (op != FILE_SYNC) return 0;
  liveness_at_sync[liveness_syncs++ % 8] = WORD_GET(&liveness_words.progress);
  return liveness_syncs == liveness_sync_fails ? EIO : 0;
}
TEST(liveness_large_files_in_pieces,
     "a large file is written and synced in pieces of a stated size, each of which is progress; a piece that fails is "
     "told; a small one is one piece") {
  const int64_t piece = FILE_PIECE_BYTES, bytes = 4 * piece + 100;
  char *data = (char *)calloc(1, (size_t)bytes);
  const char *path = cli_path("large");
  const int fd = file_create(path, test_tmp());
  const uint64_t before = WORD_GET(&liveness_words.progress);
  EXPECT(file_write(fd, path, data, bytes, 0), "%s", strerror(errno));
  EXPECT(WORD_GET(&liveness_words.progress) - before >= 5, "it was written in fewer pieces");
  lent_file_hook(liveness_count_syncs);
  EXPECT(file_sync(fd, path), "%s", strerror(errno));
  EXPECT(liveness_syncs == 5, "%d syncs", liveness_syncs);
  for (int i = 1; i < 5; i++) EXPECT(liveness_at_sync[i] > liveness_at_sync[i - 1], "piece %d is no progress", i - 1);
  liveness_sync_fails = liveness_syncs + 3;
  EXPECT(!file_sync(fd, path) && errno == EIO, "a piece failed");
  EXPECT(!ftruncate(fd, piece) && (liveness_syncs = 0, file_sync(fd, path)) && liveness_syncs == 1, "%d syncs of one",
         liveness_syncs);
  lent_file_hook(NULL);
  close(fd);
  free(data);
}

// ---- who is heard ---------------------------------------------------------------------------------------------------
// Listens at a free port of 127.0.0.1.
static inline int liveness_loopback(NetAddress *at) {
  net_address_of("127.0.0.1", 0, at);
  const int fd = net_listen(at, 1024);
  EXPECT(fd >= 0 && !getsockname(fd, (sockaddr *)&at->to, &at->bytes), "no socket: %s", strerror(errno));
  return fd;
}
// This process becomes rank 0 of a world whose other ranks are not there, with room for so many connections; its thread
// listens on the host and by TCP. `tcp`: where the latter is.
static inline void liveness_alone(LivenessHub *hub, int world, int links, NetAddress *tcp) {
  Liveness *l = &liveness;
  l->world = world;
  l->peer = (LivenessPeer *)calloc((size_t)world, sizeof(LivenessPeer));
  l->link = (LivenessLink *)calloc((size_t)links + 1, sizeof(LivenessLink));
  l->links_most = links;
  Error error = {};
  EXPECT(liveness_make_hub(l, hub, false, &error), "%s", error.text);
  l->listener[l->listeners++] = liveness_loopback(tcp);
  liveness_start(0);
}
// A connection; from: an address of this machine that it comes from, NULL: any.
static inline int liveness_stranger(const NetAddress *at, const char *from = NULL) {
  const timeval patience = {60, 0};
  const int fd = socket(at->to.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  NetAddress mine;
  if (from && net_address_of(from, 0, &mine))
    EXPECT(!bind(fd, (const sockaddr *)&mine.to, mine.bytes), "%s: %s", from, strerror(errno));
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  EXPECT(!connect(fd, (const sockaddr *)&at->to, at->bytes), "cannot connect: %s", strerror(errno));
  return fd;
}
static inline void liveness_tell(int fd, const LivenessFrame *f) { send(fd, f, sizeof *f, MSG_NOSIGNAL); }
// The kind of the frame that comes; 0: the connection has ended; -1: neither.
static inline int liveness_told(int fd, LivenessFrame *f) {
  *f = LivenessFrame{};
  const ssize_t n = recv(fd, f, sizeof *f, MSG_WAITALL);
  if (n == 0 || (n < 0 && errno == ECONNRESET)) return 0;
  return n == (ssize_t)sizeof *f ? f->kind : -1;
}
// What rank 0 has made of the last frame of rank 1, once it is of this kind.
static inline LivenessFrame liveness_heard(int kind) {
  for (;; usleep(1000)) {
    pthread_mutex_lock(&liveness.lock);
    const LivenessFrame f = liveness.peer[1].last;
    pthread_mutex_unlock(&liveness.lock);
    if (f.kind == kind) return f;
  }
}
// Connects, says two frames, the first as `rank`, and is turned away. run: the key by which it proves that it is rank
// `proves`; NULL: it says an end, or a second hello.
static inline void liveness_is_rejected(const NetAddress *at, int rank, int first, int second, const ProveKey *run,
                                       int proves = 1) {
  LivenessFrame f = {}, got;
  Prove p;
  const ProveKey none = {}, key = link_key(run ? run : &none, proves);
  const int fd = liveness_stranger(at);
  f.rank = rank;
  f.kind = first;
  memcpy(f.proof, prove_hello(&p, &key).bytes, PROVE_NONCE);
  liveness_tell(fd, &f);
  if (second) {
    EXPECT(liveness_told(fd, &got) == PROVE_CHALLENGE, "it got %d for a hello", got.kind);
    f.kind = second;
    memcpy(f.proof, run ? prove_take(&p, got.kind, got.proof, PROVE_NONCE).bytes : got.proof, PROVE_NONCE);
    liveness_tell(fd, &f);
  }
  const bool rejected = second == PROVE_PROOF;
  EXPECT(!rejected || liveness_told(fd, &got) == PROVE_REJECTED, "it got %d for a wrong proof", got.kind);
  const int kind = liveness_told(fd, &got);
  EXPECT(kind == 0, "rank %d, frames %d, %d: it got %d", rank, first, second, kind);
  close(fd);
}
// Another user of this host, who knows the socket's name, gets no word.
static inline void liveness_other_user(const NetAddress *at) {
  fflush(NULL);
  const pid_t child = fork();
  if (!child) {
    LivenessFrame f = {}, got;
    if (setgid(65534) || setuid(65534)) _exit(2);
    const int fd = liveness_stranger(at);
    f.kind = PROVE_HELLO;
    f.rank = 1;
    liveness_tell(fd, &f);
    const int kind = liveness_told(fd, &got);
    _exit(kind ? 1 : 0);
  }
  const int code = liveness_exit_code(child);
  EXPECT(code == 0, "another user's process %s", code == 1 ? "was answered" : "cannot be made");
}
// Rank 1's end of a connection, at whose other end is a stranger that says `kind`, after a challenge or at once, with
// what `who` proves by the key `run`, for rank `proves`.
static inline void liveness_rejects(bool challenges, int kind, const char *who, const ProveKey *run,
                                    const ProveKey *right, int proves = 1) {
  LivenessLink k = {};
  LivenessFrame f = {};
  k.fd = -1;
  k.claims = 1;
  link_hello(&k, right);
  Prove stranger = k.prove;                      // the nonces are known to it
  stranger.key = link_key(run, proves);
  f.kind = PROVE_CHALLENGE;
  EXPECT(!challenges || link_prove(&k, &f), "it takes no challenge");
  f.kind = kind;
  prove_derive(&stranger, who, f.proof);
  EXPECT(!link_prove(&k, &f) && k.prove.phase == PHASE_BROKEN, "frame %d with the proof of %s is rank 0's", kind, who);
}
TEST(liveness_hears_only_its_ranks,
     "who cannot prove the run's key, on the host and by TCP, ends nothing and is turned away, another user without a "
     "word (where root runs this); the socket's name tells nothing; a rank takes no stranger for rank 0; texts that "
     "come do nothing to a terminal") {
  LivenessHub hub = {};
  NetAddress tcp = {};
  char run[32];
  liveness_alone(&hub, 3, 8, &tcp);
  const ProveKey none = {};
  ProveKey guess = {};
  const double patience_ms = liveness_connect_ms;
  memcpy(guess.bytes, &hub.run, sizeof hub.run);
  for (const NetAddress *at : {&hub.local, &tcp}) {
    for (const int kind : {(int)FRAME_END, (int)PROVE_PROOF, (int)PROVE_WELCOME, (int)FRAME_GOODBYE, 0, 99})
      liveness_is_rejected(at, 1, kind, 0, NULL);
    for (const int rank : {-1, 0, 3}) liveness_is_rejected(at, rank, PROVE_HELLO, 0, NULL);
    for (const int kind : {(int)PROVE_HELLO, (int)FRAME_END, (int)FRAME_BEAT, (int)PROVE_PROOF})
      liveness_is_rejected(at, 1, PROVE_HELLO, kind, NULL);
    liveness_is_rejected(at, 1, PROVE_HELLO, PROVE_PROOF, &hub.key, 2);
    for (const ProveKey *key : {&none, (const ProveKey *)&guess}) {
      liveness_is_rejected(at, 1, PROVE_HELLO, PROVE_PROOF, key);
      liveness_connect_ms = 100;
      EXPECT(liveness_connect(key, at, 1, 1) < 0, "rank 1 takes it for rank 0, whose key is another");
      liveness_connect_ms = patience_ms;
    }
  }
  liveness_rejects(true, PROVE_WELCOME, "server", &guess, &hub.key);
  liveness_rejects(true, PROVE_WELCOME, "client", &hub.key, &hub.key);
  liveness_rejects(true, PROVE_WELCOME, "server", &hub.key, &hub.key, 2);
  for (const int kind : {(int)PROVE_WELCOME, (int)PROVE_HELLO, (int)FRAME_BEAT, (int)PROVE_REJECTED})
    liveness_rejects(kind != PROVE_WELCOME, kind, "server", &hub.key, &hub.key);
  snprintf(run, sizeof run, "%016llx", (unsigned long long)hub.run);
  EXPECT(!strstr(((sockaddr_un *)&hub.local.to)->sun_path + 1, run), "the socket's name is the run's number");
  if (!geteuid()) liveness_other_user(&hub.local);
  for (const NetAddress *at : {&hub.local, &tcp}) {
    LivenessFrame f = {};
    const int fd = liveness_connect(&hub.key, at, 1, 1);
    EXPECT(fd >= 0, "rank 1 is not taken");
    f.rank = 1;
    f.kind = FRAME_BEAT;
    memset(f.collective, 'c', sizeof f.collective);
    snprintf(f.place, sizeof f.place, "\033[2J\r\xc2\x9bx\177");
    liveness_tell(fd, &f);
    const LivenessFrame heard = liveness_heard(FRAME_BEAT);
    EXPECT(!strcmp(heard.place, "?[2J???x?"), "it is heard as '%s'", heard.place);
    EXPECT(strnlen(heard.collective, sizeof heard.collective) == sizeof heard.collective - 1, "a text without an end");
    f.kind = FRAME_GOODBYE;
    liveness_tell(fd, &f);
    liveness_heard(FRAME_GOODBYE);
    close(fd);
  }
}
TEST(liveness_strangers_make_room,
     "strangers that connect and say nothing keep no rank out: the oldest of an address makes room, a rank never; "
     "where as many wait to be let in as the kernel takes, a rank waits too") {
  enum { ROOM = 4, STRANGERS = 7 };
  LivenessHub hub = {};
  NetAddress tcp = {};
  LivenessFrame got, f = {};
  int fd[2][STRANGERS], near[64], waiting = 0, rank = -1;
  liveness_alone(&hub, 2, ROOM, &tcp);
  pthread_mutex_lock(&liveness.lock);            // nobody is let in
  for (int fault = 0; !fault && waiting < 64;) {
    near[waiting] = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    fault = connect(near[waiting++], (const sockaddr *)&hub.local.to, hub.local.bytes);
  }
  EXPECT(errno == EAGAIN, "a stranger cannot connect: %s", strerror(errno));
  fflush(NULL);
  const pid_t waits = fork();
  if (!waits) _exit(liveness_connect(&hub.key, &hub.local, 1, 1) < 0);
  usleep(300000);
  pthread_mutex_unlock(&liveness.lock);
  EXPECT(liveness_exit_code(waits) == 0, "a rank that had to wait is not taken");
  while (waiting) close(near[--waiting]);
  for (int left = 1; left; usleep(1000)) {
    pthread_mutex_lock(&liveness.lock);
    left = liveness.links;
    pthread_mutex_unlock(&liveness.lock);
  }
  for (int turn = 0; turn < 2; turn++) {
    for (int i = 0; i < STRANGERS; i++) fd[turn][i] = liveness_stranger(&tcp);
    for (int i = 0; i < STRANGERS - ROOM; i++) EXPECT(!liveness_told(fd[turn][i], &got), "stranger %d is left", i);
    for (int i = STRANGERS - ROOM + turn; i < STRANGERS; i++)
      EXPECT(recv(fd[turn][i], &got, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN, "stranger %d made room", i);
    if (turn) break;
    rank = liveness_connect(&hub.key, &hub.local, 1, 1);
    REQUIRE(rank >= 0, "rank 1 finds no room");
    f.rank = 1;
    f.kind = FRAME_BEAT;
    liveness_tell(rank, &f);
  }
  f.kind = FRAME_GOODBYE;
  liveness_tell(rank, &f);
  liveness_heard(FRAME_GOODBYE);
}
// One frame of a rank's own, by hand, with what it answers to `got`.
static inline void liveness_say(Prove *p, int fd, const ProveKey *key, const LivenessFrame *got) {
  LivenessFrame f = {};
  const ProveKey mine = link_key(key, 1);
  const ProveMessage says = got ? prove_take(p, got->kind, got->proof, PROVE_NONCE) : prove_hello(p, &mine);
  f.kind = says.kind;
  f.rank = 1;
  memcpy(f.proof, says.bytes, PROVE_NONCE);
  liveness_tell(fd, &f);
}
TEST(liveness_a_flood_closes_its_own,
     "a rank that is in the middle of its proof is let in, though ten times as many strangers as there is room come "
     "from one other address meanwhile: these make room for each other") {
  enum { ROOM = 4, FLOOD = 40 };
  LivenessHub hub = {};
  NetAddress tcp = {};
  LivenessFrame got, first;
  Prove p;
  int fd[FLOOD];
  liveness_alone(&hub, 3, ROOM, &tcp);
  const int rank = liveness_stranger(&tcp, "127.0.0.2");
  liveness_say(&p, rank, &hub.key, NULL);
  REQUIRE(liveness_told(rank, &first) == PROVE_CHALLENGE, "it got %d for a hello", first.kind);
  for (int i = 0; i < FLOOD; i++) fd[i] = liveness_stranger(&tcp, "127.0.0.3");
  for (int i = 0; i < FLOOD - ROOM + 1; i++) EXPECT(!liveness_told(fd[i], &got), "stranger %d is left", i);
  liveness_say(&p, rank, &hub.key, &first);
  EXPECT(liveness_told(rank, &got) == PROVE_WELCOME, "the rank had to go: %d", got.kind);
  got = LivenessFrame{};
  got.kind = FRAME_GOODBYE, got.rank = 1;
  liveness_tell(rank, &got);
  liveness_heard(FRAME_GOODBYE);
}
TEST(liveness_tries_again,
     "a rank whose connection is closed three times before rank 0 has answered, by TCP and on the host, is let in the "
     "fourth time; where a local socket's name is unknown it does not wait") {
  const ProveKey key = {{1, 2, 3}};
  for (int near = 0; near < 2; near++) {
    NetAddress at = net_local("train_gpt_fsdp-test-%d", (int)getpid());
    if (near) EXPECT(liveness_connect(&key, &at, 1, 1) < 0 && errno == ECONNREFUSED, "%s", strerror(errno));
    const int listener = near ? net_listen(&at, 1024) : liveness_loopback(&at);
    fflush(NULL);
    const pid_t child = fork();
    if (!child) {
      liveness.key = key, liveness.world = 3;
      int turn = 0, proved = 0;
      for (pollfd p = {listener, POLLIN, 0}; turn < 4 && poll(&p, 1, 60000) == 1; turn++) {
        LivenessLink k = {};
        LivenessFrame f;
        k.fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC), k.claims = k.rank = -1;
        for (pollfd q = {k.fd, POLLIN, 0}; turn == 3 && k.rank < 0 && poll(&q, 1, 60000) == 1;)
          if (link_read(&k, &f) > 0 && !liveness_admit(&liveness, &k, &f)) break;
        proved += k.rank == 1;
        if (turn < 3) close(k.fd);
        else while (recv(k.fd, &f, sizeof f, 0) > 0) continue;
      }
      _exit(turn == 4 && proved == 1 ? 0 : 1);
    }
    const int fd = liveness_connect(&key, &at, 1, 1);
    EXPECT(fd >= 0, "%s: it gave up", near ? "on the host" : "TCP");
    close(fd);
    EXPECT(liveness_exit_code(child) == 0, "it came another number of times, or proved nothing");
    close(listener);
  }
}
TEST(liveness_listens_where_it_was_told,
     "rank 0 listens for ranks of other hosts at each of its addresses that leads to them, not at all interfaces, and "
     "only at those of Open MPI's ..._if_include, or not of ..._if_exclude, by name or network; a choice that it has "
     "no address of is rejected by the variable's name") {
  static const struct { const char *variable, *list; int chosen[3]; } table[] = {
      {"", "", {1, 1, 1}}, {"btl_tcp_if_include", "eth1", {0, 1, 0}}, {"btl_tcp_if_include", "lo,eth0", {1, 0, 1}},
      {"btl_tcp_if_include", "10.0.0.0/8", {1, 0, 0}}, {"btl_tcp_if_include", "10/8", {1, 0, 0}},
      {"btl_tcp_if_include", "192.168.4.0/22,fd00::/8", {0, 1, 1}}, {"btl_tcp_if_include", "192.168.0.0/22", {0, 0, 0}},
      {"btl_tcp_if_include", "10.0.0.6/32", {0, 0, 0}}, {"btl_tcp_if_include", "10.0.0.0/33", {0, 0, 0}},
      {"btl_tcp_if_exclude", "lo,eth1", {1, 0, 1}}, {"oob_tcp_if_include", "eth0", {1, 0, 1}},
      {"oob_tcp_if_exclude", "10.0.0.0/8", {0, 1, 1}}};
  NetInterface x[3] = {{"eth0", {}, {}, false, true}, {"eth1", {}, {}, false, true}, {"eth0", {}, {}, false, true}};
  for (int i = 0; i < 3; i++) {
    static const char *const at[] = {"10.0.0.5", "192.168.5.1", "fd00:1::2"};
    net_address_of(at[i], 0, &x[i].at);
  }
  for (const char *name : {"btl_tcp_if_include", "btl_tcp_if_exclude", "oob_tcp_if_include", "oob_tcp_if_exclude"}) {
    char variable[64];
    snprintf(variable, sizeof variable, "OMPI_MCA_%s", name);
    unsetenv(variable);
  }
  for (const auto &row : table) {
    char variable[64];
    const char *by;
    snprintf(variable, sizeof variable, "OMPI_MCA_%s", row.variable);
    if (row.variable[0]) setenv(variable, row.list, 1);
    for (int i = 0; i < 3; i++)
      EXPECT(liveness_is_chosen(&x[i], &by) == (row.chosen[i] != 0) && !by == !row.variable[0], "%s=%s: address %d",
             row.variable, row.list, i);
    unsetenv(variable);
  }
  LivenessHub hub = {};
  Error error = {};
  char own[600];
  net_own_addresses(own, sizeof own);
  EXPECT(liveness_make_hub(&liveness, &hub, true, &error) == (own[0] != 0), "at %s: %s", own, error.text);
  EXPECT(liveness.listeners == 1 + hub.far.count, "%d sockets for %d addresses", liveness.listeners, hub.far.count);
  for (int i = 0; i < hub.far.count; i++) {
    char text[INET6_ADDRSTRLEN];
    net_address_text((const sockaddr *)&hub.far.at[i].to, text, sizeof text);
    EXPECT(strstr(own, text) && net_port(&hub.far.at[i]), "it listens at %s", text);
  }
  setenv("OMPI_MCA_btl_tcp_if_include", "none0", 1);
  hub = LivenessHub{};
  liveness.listeners = 0;
  EXPECT(!liveness_make_hub(&liveness, &hub, true, &error) && strstr(error.text,
         "no address of it leads to them by the network of OMPI_MCA_btl_tcp_if_include"), "it says: %s", error.text);
  unsetenv("OMPI_MCA_btl_tcp_if_include");
}
TEST(liveness_goodbye_reaches_all,
     "a goodbye is said to every rank, though one is gone, and to no stranger; while the connections are another "
     "thread's it is not said, and nobody waits for ever") {
  Liveness *l = &liveness;
  LivenessFrame got;
  int pair[3][2];
  l->world = 3;
  l->links_most = 3;
  l->link = (LivenessLink *)calloc(4, sizeof(LivenessLink));
  const NetAddress none = {};
  for (int i = 0; i < 3; i++) {
    EXPECT(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair[i]), "%s", strerror(errno));
    link_add(l, pair[i][0], i < 2 ? i + 1 : -1, &none);
  }
  close(pair[0][1]);
  l->pid = getpid();
  pthread_mutex_lock(&l->lock);
  liveness_leave(true);
  pthread_mutex_unlock(&l->lock);
  EXPECT(recv(pair[1][1], &got, sizeof got, MSG_DONTWAIT) < 0 && errno == EAGAIN, "another thread has the connections");
  liveness_leave(true);
  const ssize_t n = recv(pair[1][1], &got, sizeof got, MSG_DONTWAIT);
  EXPECT(n == (ssize_t)sizeof got && got.kind == FRAME_GOODBYE && got.waits, "rank 2 has heard no goodbye");
  EXPECT(recv(pair[2][1], &got, sizeof got, MSG_DONTWAIT) < 0, "a stranger has heard a goodbye");
  l->pid = 0;
}

TEST(restarts_wait_for_the_heartbeats,
     "this Open MPI, 4 or 5, has the variable by which a rank waits with an abort of Open MPI's own; what the user has "
     "chosen stays, and what the program itself ends is not held up") {
  int *delay = (int *)dlsym(RTLD_DEFAULT, "opal_abort_delay");
  REQUIRE(delay, "there is none");
  *delay = 0;
  mpi_abort_delay(0, MPI_PATIENCE_S);
  EXPECT(*delay == MPI_PATIENCE_S, "it waits %d s", *delay);
  mpi_abort_delay(MPI_PATIENCE_S, 0);
  EXPECT(!*delay, "the program's own end waits %d s", *delay);
  *delay = -1;
  mpi_abort_delay(0, MPI_PATIENCE_S);
  mpi_abort_delay(MPI_PATIENCE_S, 0);
  EXPECT(*delay == -1, "%d, must be the user's -1", *delay);
  *delay = 0;
}
