// test_plan_search.h: --plan search. A row is what --plan says of its options; nothing that could be asked is faster;
// what was given stays.

// The options of a --plan with those of a row after them, as a user would type them.
static inline void search_typed(Options *o, const Search *s, const char *base, const Options *asked,
                                const SearchRow *r) {
  char *text = NULL;
  size_t bytes = 0;
  FILE *f = open_memstream(&text, &bytes);
  search_command(f, s, asked, r);
  fclose(f);
  plan_asked(o, "%s %s", base, strncmp(text, "--", 2) ? "" : text);
  free(text);
}
static inline bool search_made(Search *s, const Options *asked) {
  Error error = {};
  const bool ok = search_make(s, asked, &error);
  EXPECT(ok, "%s", error.text);
  return ok;
}
TEST(search_rows_are_plans,
     "rows of --plan search: typed as they are printed, --plan gives the same bytes and the same time; that holds for "
     "all of them where models have few blocks, else for those that are shown; estimated times are never longer than "
     "exact ones, and within 1 in 20") {
  static const char *const bases[] = {"--model tiny --world 2 --on cpu --dtype fp32 --threads 1",
                                      "--model tiny --world 4 --on h100 --batch_size 4",
                                      "--model gpt2 --world 16 --on a100 --batch_size 2 --dtype bf16 --mesh 2x8",
                                      "--model gpt2 --n_layer 21 --world 4 --on h100 --grad_accum 9 --batch_size 1"};
  for (const char *base : bases) {
    static Options asked, typed;
    static Search s;
    int64_t compared = 0;
    double worst = 0, above = 0;
    plan_asked(&asked, "%s --json", base);
    if (!search_made(&s, &asked)) return;
    EXPECT(s.rows >= 20 && s.legal >= s.rows && s.shown_rows, "%s: %d rows of %lld, %d shown", base, s.rows,
           (long long)s.legal, s.shown_rows);
    for (int i = 0; i < s.rows + s.shown_rows; i += i < s.rows ? 1 + s.rows / 20 : 1) {
      const SearchRow *r = i < s.rows ? &s.row[i] : &s.shown[i - s.rows];
      SearchRow plan = *r;
      search_typed(&typed, &s, base, &asked, r);
      EXPECT(search_plan(&plan, &typed), "%s: row %d is rejected", base, i);
      if (r->exact)
        EXPECT(plan.needs == r->needs && plan.step_s == r->step_s && plan.exposed_s == r->exposed_s,
               "%s, row %d: %.0f bytes and %g s, its plan has %.0f and %g", base, i, r->needs, r->step_s, plan.needs,
               plan.step_s);
      worst = fmax(worst, fmax(fabs(r->needs / plan.needs - 1), 1 - r->step_s / plan.step_s));
      above = fmax(above, r->step_s / plan.step_s - 1);
      compared++;
    }
    for (int i = 0; i < s.shown_rows; i++) EXPECT(s.shown[i].exact, "%s: row %d that is shown is an estimate", base, i);
    EXPECT(worst < 0.05 && above < 1e-9, "%s: estimates are up to %g below what is exact and %g above", base, worst,
           above);
    printf("%s: %lld plans, the worst estimate is %.2e off\n", base, (long long)compared, worst);
    search_free(&s);
  }
}
// What of `all`, whose bytes are exact, fits into `room`, is what a search with that room finds.
static inline void search_within(const char *base, double room, const Search *all) {
  static Options asked;
  static Search s;
  int fit = 0;
  for (int i = 0; i < all->rows; i++) fit += all->row[i].needs <= room;
  plan_asked(&asked, "%s,memory_gib=%.9f", base, room / 0x1p30);
  if (!search_made(&s, &asked)) return;
  EXPECT(s.rows == fit && s.legal == all->legal, "%s within %.0f bytes: %d fit, not %d", base, room, s.rows, fit);
  for (int i = 0; i < s.shown_rows; i++)
    EXPECT(s.shown[i].needs <= room, "%s within %.0f bytes shows a row of %.0f", base, room, s.shown[i].needs);
  search_free(&s);
}
TEST(search_of_few_blocks_all,
     "--plan search shows the same rows, counts the same combinations and the same that fit, whether it plans bytes of "
     "all blocks where they decide or everywhere, as for --json; with rooms between an estimate and what is exact; "
     "estimates are within half of what it allows for") {
  static const char *const bases[] = {
      "--model gpt2-large --n_layer 20 --world 8 --global_batch 64 --recompute block --dtype bf16 --on h100"};
  for (const char *base : bases) {
    static Options asked;
    static Search few, all;
    const SearchRow *most = NULL, *exact = NULL;
    int told = 0;
    plan_asked(&asked, "%s", base);
    if (!search_made(&few, &asked)) return;
    asked.json = true;
    if (!search_made(&all, &asked)) return;
    EXPECT(few.legal == all.legal && few.rows == all.rows && few.shown_rows == all.shown_rows,
           "%s: %lld combinations, %d fit, %d shown; of all blocks %lld, %d, %d", base, (long long)few.legal, few.rows,
           few.shown_rows, (long long)all.legal, all.rows, all.shown_rows);
    for (int i = 0; i < few.shown_rows && i < all.shown_rows; i++) {
      const SearchRow *x = &few.shown[i], *y = &all.shown[i];
      EXPECT(!memcmp(x->at, y->at, sizeof x->at) && x->needs == y->needs && x->step_s == y->step_s,
             "%s: row %d needs %.0f bytes and takes %g s, of all blocks %.0f and %g", base, i, x->needs, x->step_s,
             y->needs, y->step_s);
    }
    for (int i = 0; i < few.rows; i++) for (int k = 0; k < all.rows; k++) {
      const SearchRow *x = &few.row[i], *y = &all.row[k];
      if (memcmp(x->at, y->at, sizeof x->at) || x->whole) continue;
      EXPECT(y->whole, "%s: a row of --json has no bytes of all blocks", base);
      if (!most || fabs(x->needs - y->needs) > fabs(most->needs - exact->needs)) most = x, exact = y;
      told++;
    }
    if (!most) { EXPECT(most, "%s: no bytes are estimated", base); return; }
    const double worst = fabs(most->needs / exact->needs - 1), middle = (most->needs + exact->needs) / 2;
    EXPECT(worst > 0 && worst < SEARCH_DOUBT / 2, "%s: the worst of %d estimates is %g off", base, told, worst);
    printf("%s: %lld combinations, %d by estimates, the worst %.2e off\n", base, (long long)few.legal, told, worst);
    search_within(base, middle, &all);
    search_within(base, exact->needs * 1.02, &all);
    search_free(&few);
    search_free(&all);
  }
}

// ---- the processes of a search
struct ForkTest { int64_t *times, count; int code, dies; pid_t parent; };
static void fork_test_count(void *of, int64_t i) {
  __atomic_add_fetch(&((ForkTest *)of)->times[i], 1, __ATOMIC_RELAXED);
}
// Two pieces that two processes do, each waiting for the other to be started; the child's ends it.
static void fork_test_dies(void *of, int64_t i) {
  ForkTest *t = (ForkTest *)of;
  __atomic_store_n(&t->times[i], 1, __ATOMIC_RELEASE);
  for (int k = 0; k < 6000 && !__atomic_load_n(&t->times[!i], __ATOMIC_ACQUIRE); k++) usleep(10000);
  if (getpid() == t->parent) return;
  if (t->code) _exit(t->code);
  raise(SIGKILL);
}
TEST(fork_work_is_divided,
     "any number of processes does each piece of a work once, and its results come back; where one of them ends with "
     "an exit code, all do, and one that is killed is told") {
  static ForkTest t;
  for (int processes : {1, 2, 5}) for (int64_t count : {1, 3, 400}) {
    t.times = (int64_t *)fork_memory(sizeof(int64_t) * (size_t)count);
    fork_work(processes, count, fork_test_count, &t, NULL);
    for (int64_t i = 0; i < count; i++)
      EXPECT(t.times[i] == 1, "%d processes do piece %lld of %lld %lld times", processes, (long long)i,
             (long long)count, (long long)t.times[i]);
    munmap(t.times, sizeof(int64_t) * (size_t)count);
  }
  for (int code : {0, 7}) {
    t.times = (int64_t *)fork_memory(2 * sizeof(int64_t));
    t.code = code;
    const pid_t all = fork();
    if (!all) {
      t.parent = getpid();
      fork_work(2, 2, fork_test_dies, &t, NULL);
      _exit(0);
    }
    int status = 0;
    EXPECT(waitpid(all, &status, 0) == all && WIFEXITED(status) && WEXITSTATUS(status) == (code ? code : EXIT_FAULT),
           "the exit code of a process that ended is %d, not %d", WEXITSTATUS(status), code ? code : EXIT_FAULT);
    munmap(t.times, 2 * sizeof(int64_t));
  }
}
TEST(search_finds_the_fastest,
     "no combination, tried one by one through options as typed, is faster than the first row, or as fast as a row and "
     "smaller; each is found once") {
  static const char base[] = "--model tiny --world 4 --on h100 --batch_size 2 --dtype bf16";
  static const char *const sharding[] = {
      "", "--strategy shard_grad_op", "--strategy zero1", "--strategy no_shard", "--gather_slots 3",
      "--reshard_after_forward off", "--wrap model", "--mesh 2x2", "--mesh 2x2 --reshard_after_forward off",
      "--mesh 2x2 --gather_slots 3", "--mesh 4x1"};
  static const char *const levels[] = {"none", "gelu", "norm", "mlp", "block"};
  static Options asked, o;
  static Search s;
  plan_asked(&asked, "%s", base);
  if (!search_made(&s, &asked)) return;
  for (const char *mesh : sharding) for (const char *level : levels) {
    SearchRow plan = {};
    plan_asked(&o, "%s %s --recompute %s", base, mesh, level);
    EXPECT(search_plan(&plan, &o), "%s %s is rejected", mesh, level);
    int same = 0;
    for (int i = 0; i < s.rows; i++) same += s.row[i].needs == plan.needs && s.row[i].step_s == plan.step_s;
    EXPECT(same, "%s --recompute %s (%.0f bytes, %g s) is in no row", mesh, level, plan.needs, plan.step_s);
    EXPECT(plan.step_s >= s.shown[0].step_s, "%s --recompute %s takes %g s, the first row %g", mesh, level, plan.step_s,
           s.shown[0].step_s);
  }
  for (int i = 0; i < s.rows; i++) {
    bool covered = false;
    for (int k = 0; k < s.shown_rows; k++)
      covered = covered || (s.shown[k].step_s <= s.row[i].step_s && s.shown[k].needs <= s.row[i].needs);
    EXPECT(covered || s.shown_rows == SEARCH_ROWS_SHOWN, "row %d (%g s, %.0f bytes) beats all that is shown", i,
           s.row[i].step_s, s.row[i].needs);
    for (int k = 0; k < i; k++)
      EXPECT(memcmp(s.row[i].at, s.row[k].at, sizeof s.row[i].at), "rows %d and %d are the same combination", k, i);
  }
  search_free(&s);
}
TEST(search_keeps_what_was_given,
     "options that were given keep their values in every row, and the sequences of a step are as many; offloading is "
     "looked at only where nothing else fits; where that does not fit either there are no rows") {
  static const struct { const char *base; OptionId given[4]; int givens; bool offloads, none; } rows[] = {
      {"--model tiny --world 4 --on h100 --mesh 2x2 --recompute mlp --grad_accum 3",
       {OPT_mesh, OPT_recompute, OPT_grad_accum}, 3, false, false},
      {"--model tiny --world 2 --on h100 --batch_size 3 --reduce_dtype bf16 --gather_slots 3",
       {OPT_batch_size, OPT_reduce_dtype, OPT_gather_slots}, 3, false, false},
      {"--model gpt2 --world 2 --on h100,memory_gib=1.2,reserve_gib=0.1 --dtype fp32 --batch_size 1 --seq_len 64 "
       "--recompute block --wrap block", {OPT_param_dtype}, 1, true, false},
      {"--model gpt2 --world 2 --on h100,memory_gib=0.1,reserve_gib=0.01 --dtype bf16 --wrap model",
       {OPT_wrap}, 1, false, true}};
  for (const auto &row : rows) {
    static Options asked, typed;
    static Search s;
    plan_asked(&asked, "%s", row.base);
    if (!search_made(&s, &asked)) return;
    EXPECT(row.none ? !s.rows && !s.shown_rows : s.rows > 0 && s.shown_rows > 0, "%s: %d rows", row.base, s.rows);
    for (int i = 0; i < s.rows; i++) {
      search_typed(&typed, &s, row.base, &asked, &s.row[i]);
      for (int k = 0; k < row.givens; k++) {
        char want[OPTION_TEXT_BYTES], got[OPTION_TEXT_BYTES];
        option_print(want, sizeof want, &asked, &option_specs[row.given[k]]);
        option_print(got, sizeof got, &typed, &option_specs[row.given[k]]);
        EXPECT(!strcmp(want, got), "%s, row %d: --%s %s", row.base, i, option_specs[row.given[k]].name, got);
      }
      const int64_t sequences = typed.batch_size * max64(1, typed.grad_accum);
      EXPECT(sequences == asked.batch_size * max64(1, asked.grad_accum), "%s, row %d: %lld sequences", row.base, i,
             (long long)sequences);
      EXPECT(typed.offload != OFFLOAD_NONE ? row.offloads : !row.offloads, "%s, row %d: --offload %s", row.base, i,
             option_word(&typed, OPT_offload));
    }
    search_free(&s);
  }
}
TEST(cli_plan_search,
     "--plan search prints rows, and with --json all that fit, as JSON; without --on it is rejected; a machine that is "
     "too small gets one line that says what to do") {
  static const CliRejection table[] = {
      {0, "--plan search --model tiny", 2,
       "--plan search needs --on: what is fastest and what fits depends on the machine"},
      {0, "--plan searching", 2, "--plan 'searching' is not known: choose one of off|on|search"},
      {0, "--plan search --on h100 --tune", 2, "--plan is of a training that starts, and reads no weights: it does not "
       "go with --tune; ..."}};
  CliRun r;
  cli_expect_rejections(table, sizeof table / sizeof *table);
  CLI_RUN(&r, "%s --plan search --model tiny --world 2 --on h100 --dtype bf16 --json", cli_ranks(0));
  cJSON *json = cJSON_Parse(r.text), *list = cJSON_GetObjectItemCaseSensitive(json, "rows"), *row;
  int rows = 0;
  double before = 0;
  cJSON_ArrayForEach(row, list) {
    const double s = cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(row, "predicted_step_s"));
    EXPECT(s >= before && cJSON_IsString(cJSON_GetObjectItemCaseSensitive(row, "options")), "row %d: %g s after %g",
           rows, s, before);
    before = s;
    rows++;
  }
  EXPECT(r.code == 0 && rows && rows == cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(json, "fit")),
         "exit code %d, %d rows:\n%.1000s", r.code, rows, r.text);
  cJSON_Delete(json);
  cli_free(&r);
  CLI_RUN(&r, "%s --plan search --model tiny --world 2 --on h100 --dtype bf16", cli_ranks(0));
  EXPECT(r.code == 0 && strstr(r.text, "Fastest first") && strstr(r.text, "--recompute none"), "exit code %d:\n%s",
         r.code, r.text);
  cli_free(&r);
  CLI_RUN(&r, "%s --plan search --model gpt2 --world 2 --on h100,memory_gib=0.1,reserve_gib=0.01 --dtype bf16 "
          "--wrap model", cli_ranks(0));
  EXPECT(r.code == 0 && strstr(r.text, "nothing fits: choose a smaller --batch_size"), "exit code %d:\n%s", r.code,
         r.text);
  cli_free(&r);
}
