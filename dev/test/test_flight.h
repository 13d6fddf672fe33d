// test_flight.h: the flight recorder tells what was done: its rings against the record of a run (fsdp/record.h), its
// file against its rings, and --flight against records that were made up. Needs test_schedule.h, test_schedule_log.h
// and cli_helpers.h. What ranks leave behind when one falls out is in test_liveness.h.
#pragma once

// ---- the rings against a record -------------------------------------------------------------------------------------
static inline const FlightEntry *flight_at(const FlightRing *r, uint64_t i) { return &r->entry[i % FLIGHT_ENTRIES]; }
// Steps that are recorded both ways. Calls of ops and collectives must be the same, one by one.
static inline void flight_expect_record(const Record *r, const char *what, uint64_t ops_from, uint64_t events_from) {
  static const struct { CollectiveKind kind; const char *words; } kinds[] = {
      {COLLECTIVE_GATHER, "the gather"}, {COLLECTIVE_REDUCE, "the reduction"},
      {COLLECTIVE_ALL_GATHER, "the small exchange"}, {COLLECTIVE_BARRIER, "the barrier after the update"}};
  uint64_t op = ops_from, event = events_from;
  int call = -1, collectives = 0, calls = 0, open = 0;
  for (int i = 0; i < r->count; i++) {
    const RecordEntry *e = &r->entry[i];
    if (e->kind == RECORD_ACCESS && e->op < OP_COPY && e->call != call && e->stream != RECORD_HOST) {
      const FlightEntry *f = flight_at(&flight.ops, op++);
      call = e->call;
      calls++;
      EXPECT(op <= flight.ops.count && !strcmp(f->what, op_word(e->op)), "%s, call %d: %s, but the ring has %s", what,
             call, op_word(e->op), f->what);
    }
    if (e->kind != RECORD_COLLECTIVE) continue;
    const char *words = NULL;
    for (const auto &k : kinds) if (k.kind == (CollectiveKind)e->op) words = k.words;
    while (event < flight.events.count && flight_at(&flight.events, event)->kind != FLIGHT_BEGIN) event++;
    const FlightEntry *f = flight_at(&flight.events, event++);
    collectives++;
    EXPECT(event <= flight.events.count && words && !strcmp(f->what, words),
           "%s, collective %d: %s, but the ring has %s", what, collectives, words, f->what);
    EXPECT(e->op != COLLECTIVE_GATHER || f->stage == e->place.stage, "%s, collective %d: of stage %d, not %d", what,
           collectives, f->stage, e->place.stage);
  }
  int begins = 0, number = 0;
  int64_t step = -1;
  for (uint64_t i = events_from; i < flight.events.count; i++) {
    const FlightEntry *f = flight_at(&flight.events, i);
    EXPECT(i == events_from || f->ns >= flight_at(&flight.events, i - 1)->ns, "%s: time goes back", what);
    if (f->kind == FLIGHT_STEP) number = 0, step = f->step;
    if (f->kind == FLIGHT_BEGIN) begins++, open++;
    if (f->kind == FLIGHT_END) open--;
    if (f->kind == FLIGHT_BEGIN)
      EXPECT(f->number == ++number && f->step == step, "%s: collective %d of step %lld has number %d of %lld", what,
             number, (long long)step, f->number, (long long)f->step);
  }
  EXPECT(begins == collectives && calls > 100, "%s: %d collectives and %d calls, the ring has %d", what, collectives,
         calls, begins);
  EXPECT(flight.ops.count == op, "%s: the ring has %llu calls more", what, (unsigned long long)(flight.ops.count - op));
  EXPECT(!open, "%s: %d collectives have no end", what, open);
  EXPECT(!flight.in.number, "%s: the main thread still stands in a collective", what);
}
TEST_MPI(flight_tells_what_the_record_tells, 3,
         "the flight recorder has the calls and collectives that the record of the same step has, in its order, with "
         "ascending numbers, on 1, 2 and 3 ranks") {
  static const struct { int world; const char *comm, *extra; } modes[] = {
      {1, "self", "--global_batch 4"}, {2, "mpi", "--global_batch 4"}, {2, "mpi", "--shm copy --global_batch 2"},
      {3, "mpi", "--shm off --global_batch 3"},
      {3, "mpi", "--shm off --gather_slots 1 --reduce_dtype bf16 --global_batch 3"}};
  static Corpus corpus;
  static Trainer t;
  static RecordTable table[RECORD_STREAMS];
  schedule_corpus(&corpus);
  for (const auto &m : modes) {
    Record record;
    Options o;
    MPI_Comm comm;
    if (!world_comm(m.world, &comm)) continue;
    test_options(&o, m.world, "%s %s", schedule_shapes, m.extra);
    option_pick(&o, OPT_comm, m.comm);
    record_open(&record);
    record.paused = true;
    record_tables(table, &record, cpu_tables[0].ops, cpu_tables[0].ops);
    Device device = device_of(&table[RECORD_MODEL].watch.ops);
    device.host_ops = &table[RECORD_HOST].watch.ops;
    trainer_open(&t, &o, &corpus, comm, device, 1);
    train_step(&t, 0);
    fsdp_record(t.fsdp, &record);
    const uint64_t ops = flight.ops.count, events = flight.events.count;
    train_step(&t, 0);
    flight_expect_record(&record, m.extra, ops, events);
    t.fsdp->record = NULL;
    trainer_close(&t);
    record_close(&record);
    MPI_Comm_free(&comm);
  }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}

// ---- the file -------------------------------------------------------------------------------------------------------
static inline const char *flight_test_path(const char *name) { return cli_path(name); }
static const FlightWho flight_test_who = {"1.2.3 (abc)", "host-a", "nothing was heard of \"rank 1\"",
                                          "backward of block 2", 0x1234abcdull, 1, 3, 77};
// One step of a rank that comes as far as collective `last`; the first of it is the gather of stage `stage`.
static inline void flight_made_up(int rank, int last, int stage) {
  FlightWho who = flight_test_who;
  char name[32];
  who.rank = rank;
  flight.events.count = flight.ops.count = 0;
  flight_step(16);
  flight_microbatch(0);
  for (int i = 1; i <= last; i++) {
    const FlightCollective c = flight_begin(i == 1 ? "the gather" : "the reduction", i == 1 ? stage : 7 - i);
    flight_op("matmul_forward");
    if (i < last) flight_end(c);
  }
  snprintf(name, sizeof name, "flight-%d.json", rank);
  EXPECT(!flight_write(flight_test_path(name), &who), "%s: %s", name, strerror(errno));
}
static inline char *flight_said(const char *list, int *code, Error *error) {
  char *text = NULL;
  size_t bytes = 0;
  FILE *f = open_memstream(&text, &bytes);
  error->text[0] = 0;
  *code = flight_main(f, list, error);
  fclose(f);
  return text;
}
TEST(flight_file_is_the_rings,
     "a flight record read back has every entry of both rings, in order of time; of full rings the newest ones, also "
     "while another thread continues writing") {
  Error error = {};
  FlightRecord r;
  const int most = FLIGHT_ENTRIES;
  for (int turns : {0, 1, 100, most - 1, most, 3 * most + 5}) {
    flight.events.count = flight.ops.count = 0;
    flight_step(3);
    flight_microbatch(2);
    flight.stage = 4;
    for (int i = 0; i < turns; i++) { flight_op(i & 1 ? "gelu_forward" : "fill"); flight_begin("the gather", i); }
    REQUIRE(!flight_write(flight_test_path("f.json"), &flight_test_who), "%s", strerror(errno));
    REQUIRE(flight_read(&r, flight_test_path("f.json"), &error), "%d: %s", turns, error.text);
    const int kept = turns < FLIGHT_ENTRIES ? turns : FLIGHT_ENTRIES - 1;
    const int events = turns + 1 < FLIGHT_ENTRIES ? turns + 1 : FLIGHT_ENTRIES - 1;
    EXPECT(r.rows == kept + events, "%d entries of %d turns", r.rows, turns);
    int op = turns - kept, begun = turns + 1 - events;
    for (int i = 0; i < r.rows; i++) {
      const FlightRow *row = &r.row[i];
      EXPECT(row->step == 3 && row->s <= 0, "entry %d: step %lld, %g s", i, (long long)row->step, row->s);
      if (row->kind == FLIGHT_STEP) begun++;
      if (row->kind == FLIGHT_OP)
        EXPECT(!strcmp(row->what, op++ & 1 ? "gelu_forward" : "fill") && row->stage == 4 && row->microbatch == 2,
               "entry %d is %s", i, row->what);
      if (row->kind == FLIGHT_BEGIN) {
        EXPECT(row->number == begun && row->stage == begun - 1, "entry %d: number %d, must be %d", i, row->number,
               begun);
        begun++;
      }
    }
    EXPECT(op == turns && begun == turns + 1, "%d turns: it ends with call %d and collective %d", turns, op, begun - 1);
    EXPECT(r.rank == 1 && r.world == 3 && r.pid == 77 && r.step == 3 && r.begun == turns && r.microbatch == 2 &&
           !strcmp(r.cause, flight_test_who.cause) && !strcmp(r.run, "000000001234abcd"),
           "the head is not what was given");
    flight_close(&r);
  }
  static int stop;
  pthread_t writer;
  flight_step(4);
  pthread_create(&writer, NULL, [](void *) -> void * {
    while (!WORD_GET(&stop)) { flight_op("fill"); flight_end(flight_begin("the gather", 1)); }
    return NULL;
  }, NULL);
  for (int i = 0; i < 20; i++) {
    EXPECT(!flight_write(flight_test_path("f.json"), &flight_test_who), "%s", strerror(errno));
    EXPECT(flight_read(&r, flight_test_path("f.json"), &error), "while it is written: %s", error.text);
    for (int k = 0, at = 0; k < r.rows; k++) {
      if (r.row[k].kind == FLIGHT_STEP) at = 0;  // before it are those of the part above, until the ring is full
      if (r.row[k].kind != FLIGHT_BEGIN) continue;
      EXPECT(!at || r.row[k].number == at + 1, "collective %d follows %d", r.row[k].number, at);
      at = r.row[k].number;
    }
    flight_close(&r);
  }
  WORD_SET(&stop, 1);
  pthread_join(writer, NULL);
}
TEST(flight_report_finds_the_first_difference,
     "--flight of made-up records: the collective that a rank has not started, one that differs, a missing rank, no "
     "difference; it reads a directory, and of several runs the newest") {
  static const struct { int last[3], stage[3]; const char *says[4]; } table[] = {
      {{5, 3, 5}, {1, 1, 1},
       {"alike to collective 3 of step 16, the reduction of block 3",
        "the first difference is collective 4 of step 16:\n    rank 0, 2: the reduction of block 2\n",
        "    rank 1: not started; the last one is collective 3 of step 16, the reduction of block 3\n"}},
      {{4, 4, 4}, {1, 1, 2}, {"the first difference is collective 1 of step 16:\n    rank 0-1: the gather of block 0\n"
                              "    rank 2: the gather of block 1\n"}},
      {{4, 0, 4}, {1, 1, 1}, {"3 of 3 ranks left a record", "    rank 1: not started, nor any other\n"}},
      {{4, 4, 4}, {0, 0, 0}, {"alike to collective 4 of step 16, the reduction of block 2",
                              "and no rank has started another one"}},
      {{4, 4, -1}, {0, 0, 0}, {"2 of 3 ranks left a record (version 1.2.3 (abc)): nothing was heard of \"rank 1\"",
                               "  rank 2: none\n", "  rank 1 (pid 77 on host-a): step 16, backward of block 2\n"}},
      {{0, 0, 0}, {0, 0, 0}, {"no collective is in the records"}}};
  Error error = {};
  int code;
  for (const auto &c : table) {
    for (int r = 0; r < 3; r++) {
      char name[32];
      snprintf(name, sizeof name, "flight-%d.json", r);
      unlink(flight_test_path(name));
      if (c.last[r] >= 0) flight_made_up(r, c.last[r], c.stage[r]);
    }
    char *text = flight_said(test_tmp(), &code, &error);
    EXPECT(code == 0, "exit code %d: %s", code, error.text);
    for (const char *say : c.says) if (say) EXPECT(strstr(text, say), "no '%s' in:\n%s", say, text);
    free(text);
  }
  flight_made_up(0, 1, 0);
  flight_made_up(1, 1, 0);
  FlightWho older = flight_test_who;
  older.run = 9, older.rank = 2;
  EXPECT(!flight_write(flight_test_path("flight-2.json"), &older), "%s", strerror(errno));
  flight_made_up(1, 1, 0);                       // the newest
  char *text = flight_said(test_tmp(), &code, &error), list[700];
  EXPECT(!code && strstr(text, "1 records of earlier runs are left out") && strstr(text, "rank 2: none"), "%s%s", text,
         error.text);
  free(text);
  snprintf(list, sizeof list, "%s/flight-0.json,%s/flight-2.json", test_tmp(), test_tmp());
  text = flight_said(list, &code, &error);
  EXPECT(code == EXIT_MISSING && strstr(error.text, "are of different runs"), "%s", error.text);
  free(text);
}
TEST(flight_ranks_that_came_are_told,
     "the report names the first collective that ranks wait for, counts who came to it, and says how far the others "
     "were heard to have come") {
  static LivenessPeer peer[4];
  static Liveness l;
  static const struct { int64_t step; int begun, in; bool lost; } at[] = {
      {16, 12, 12, false}, {15, 20, 0, true}, {16, 11, 0, false}, {17, 3, 3, false}};
  char text[REPORT_BYTES] = "";
  l.world = 4;
  l.peer = peer;
  for (int r = 0; r < 4; r++) {
    peer[r] = LivenessPeer{};
    peer[r].state = at[r].lost ? PEER_DIED : PEER_HERE;
    peer[r].pid = 100 + r;
    snprintf(peer[r].host_name, sizeof peer[r].host_name, "h%d", r);
    peer[r].last.step = at[r].step, peer[r].last.begun = at[r].begun, peer[r].last.in = at[r].in;
    snprintf(peer[r].last.collective, sizeof peer[r].last.collective, "the gather of block %d", r);
  }
  liveness_report_collective(&l, text);
  EXPECT(!strcmp(text, "  collective 12 of step 16, the gather of block 0: 2 of 4 ranks came to it\n"
                       "    not rank 1 (pid 101 on h1), which when last heard had come to collective 20 of step 15\n"
                       "    not rank 2 (pid 102 on h2), which had come to collective 11 of step 16\n"), "it says:\n%s",
         text);
  for (LivenessPeer &p : peer) p.last.in = 0;
  text[0] = 0;
  liveness_report_collective(&l, text);
  EXPECT(!text[0], "nobody waits for one, but it says:\n%s", text);
}
TEST(flight_damage_is_rejected,
     "a flight record cut anywhere, with a value out of range, of another format, or that is another file, is rejected "
     "with one line that names it; two of one rank too") {
  static const struct { const char *from, *to; } damage[] = {
      {"\"flight\":1", "\"flight\":2"}, {"\"flight\":1", "\"fright\":1"}, {"\"rank\":1", "\"rank\":3"},
      {"\"rank\":1", "\"rank\":-1"}, {"\"world\":3", "\"world\":0"}, {"\"world\":3", "\"world\":1.5"},
      {"\"pid\":77", "\"pid\":\"77\""}, {"\"run\":\"0", "\"run\":\""}, {"host-a", "host\\u0001"},
      {"\"kind\":\"begin\"", "\"kind\":\"being\""}, {"\"number\":1}", "\"number\":0}"},
      {"\"stage\":5,\"number\":2}", "\"stage\":5,\"number\":1}"},
      {"\"stage\":1", "\"stage\":-2"}, {"\"s\":-", "\"s\":"}, {"\"entries\":[", "\"entries\":[7,"},
      {"\"step\":16,\"microbatch\":0,\"stage\"", "\"step\":1e99,\"microbatch\":0,\"stage\""},
      {"\"in\":0", "\"inn\":0"}};
  Error error = {};
  int64_t bytes;
  FlightRecord r;
  flight_made_up(1, 4, 1);
  const char *path = flight_test_path("flight-1.json"), *bad = flight_test_path("bad.json");
  char *text = file_get(path, 1 << 20, &bytes);
  REQUIRE(text && flight_read(&r, path, &error), "%s", error.text);
  flight_close(&r);
  for (int64_t n = 0; n + 2 < bytes; n += 1 + n / 8) {
    cli_write(bad, text, (size_t)n);
    EXPECT(!flight_read(&r, bad, &error) && strstr(error.text, bad) && !strchr(error.text, '\n'),
           "cut at %lld: '%s'", (long long)n, error.text);
    flight_close(&r);
  }
  for (const auto &d : damage) {
    const char *at = strstr(text, d.from);
    char *other = NULL;
    REQUIRE(at, "no %s in the record", d.from);
    EXPECT(asprintf(&other, "%.*s%s%s", (int)(at - text), text, d.to, at + strlen(d.from)) > 0, "no memory");
    cli_write(bad, other, strlen(other));
    EXPECT(!flight_read(&r, bad, &error) && strstr(error.text, bad), "%s is taken: %s", d.to, error.text);
    flight_close(&r);
    free(other);
  }
  free(text);
  cli_write(bad, "0123", 4);
  int code;
  char list[1500];
  snprintf(list, sizeof list, "%s,%s", path, path);
  const struct { const char *list, *says; } lists[] = {
      {bad, "is no flight record"}, {"/dev/null", "/dev/null is a device, not a flight record"},
      {list, "are both of rank 1"},
      {"/nowhere/x.json", "cannot read /nowhere/x.json"}, {"dev", "there is no flight-RANK.json"}};
  for (const auto &l : lists) {
    text = flight_said(l.list, &code, &error);
    EXPECT(code == EXIT_MISSING && strstr(error.text, l.says) && !text[0], "%s: '%s', exit code %d", l.list, error.text,
           code);
    free(text);
  }
}
