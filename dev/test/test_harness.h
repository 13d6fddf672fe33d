// test_harness.h: the runner of these tests (test_gpt_fsdp.cu): all that a test starts is in a session of its own and
// ends with it, and of late tests one runs once more.

// ---- what the tests below let a runner run --------------------------------------------------------------------------
// HARNESS_DIR: where these tests leave files. Without it they do nothing, and pass.
static bool harness_is_inner() {
  if (!getenv("HARNESS_DIR")) return false;
  alarm(4 * CLI_LIMIT_S);                        // should the outer test be gone
  return true;
}
static const char *harness_pid_path(int part) {
  static char path[600];
  snprintf(path, sizeof path, "%s/pid%d", getenv("HARNESS_DIR"), part);
  return path;
}
// The number of the process that has written it as this part's; 0: none has.
static int harness_pid(int part) {
  FILE *f = fopen(harness_pid_path(part), "r");
  int pid = 0;
  if (f && fscanf(f, "%d\n", &pid) != 1) pid = 0;
  if (f) fclose(f);
  return pid;
}
static void harness_stay(int part) {
  char text[16];
  snprintf(text, sizeof text, "%d\n", getpid());
  cli_write(harness_pid_path(part), text, strlen(text));
  for (;;) pause();
}
enum { HARNESS_RANKS = 2, HARNESS_FORKED = HARNESS_RANKS, HARNESS_APART, HARNESS_PARTS };

TEST_MPI(harness_inner_ranks, 2, "nothing (harness_ends_all_of_a_test runs it, with ranks that stay)") {
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (harness_is_inner()) harness_stay(rank);
}
// A child that has started no program, and a program that has left the session.
TEST(harness_inner_children, "nothing (harness_ends_all_of_a_test runs it, with children that stay)") {
  if (!harness_is_inner()) return;
  CliRun r;
  if (!fork()) harness_stay(HARNESS_FORKED);
  cli_start(&r, "exec setsid sh -c 'echo $$ >%s; exec sleep 1000'", harness_pid_path(HARNESS_APART));
  while (!harness_pid(HARNESS_FORKED) || !harness_pid(HARNESS_APART) || getenv("HARNESS_STAY")) usleep(2000);
}

// Writes its name to HARNESS_DIR/order, and is late in the first HARNESS_LATE times.
static void harness_late(const char *name) {
  if (!harness_is_inner()) return;
  const char *times = getenv("HARNESS_LATE");
  CliRun r;
  CLI_RUN(&r, "cd $HARNESS_DIR; echo %s >>order; exit $(grep -c %s order)", name, name);
  const bool late = times && r.code <= atoi(times);
  cli_free(&r);
  if (!late) return;
  cli_start(&r, "exec sleep 1000");
  cli_wait(&r, 0.01);
}
TEST(harness_inner_first, "nothing (harness_late_tests runs it, late)") { harness_late("first"); }
TEST(harness_inner_second, "nothing (harness_late_tests runs it, late)") { harness_late("second"); }
TEST(harness_inner_hang, "nothing (harness_late_tests runs it, late)") { harness_late("hang"); }
TEST(harness_inner_wrong, "nothing (harness_late_tests runs it, wrong and late)") {
  EXPECT(!harness_is_inner(), "it is wrong before it is late");
  harness_late("wrong");
}

// ---- the runner -----------------------------------------------------------------------------------------------------
TEST(harness_ends_all_of_a_test,
     "each test's processes, ranks included, are a session that is not the runner's nor another test's; Ctrl-C to the "
     "runner, and the end of a test, end all of them, and also those that have left the session") {
  for (bool stays : {true, false}) {
    CliRun r;
    const char *dir = cli_path(stays ? "stays" : "ends");
    mkdir(dir, 0777);
    setenv("HARNESS_DIR", dir, 1);
    cli_start(&r, "exec env TEST_JOBS=2 %s %s =harness_inner_children %s", stays ? "HARNESS_STAY=1" : "",
              liveness_self(), stays ? "=harness_inner_ranks" : "");
    int pid[HARNESS_PARTS] = {};
    const int from = stays ? 0 : HARNESS_RANKS;
    for (int i = from; i < HARNESS_PARTS; i++)
      while (!(pid[i] = harness_pid(i)) && now_ms() - r.since.ms < CLI_LIMIT_S * 1e3) usleep(2000);
    if (stays) {
      const pid_t ranks = getsid(pid[0]), test = getsid(pid[HARNESS_FORKED]);
      EXPECT(ranks > 0 && ranks == getsid(pid[1]) && ranks != test, "sessions of ranks %d and %d, of a test %d", ranks,
             getsid(pid[1]), test);
      EXPECT(test > 0 && test != getsid(0) && ranks != getsid(0), "the runner's session is %d, its tests' %d and %d",
             getsid(0), test, ranks);
      kill(r.pid, SIGINT);
    }
    cli_wait(&r, CLI_LIMIT_S);
    EXPECT(r.code == (stays ? 128 + SIGINT : 0), "exit code %d:\n%.2000s", r.code, r.text);
    for (int i = from; i < HARNESS_PARTS; i++)
      if (!pid[i] || cli_lives(pid[i])) {
        test_fail(__FILE__, __LINE__, "part %d, process %d, %s", i, pid[i], pid[i] ? "is left" : "did not start");
        if (pid[i]) kill(pid[i], SIGKILL);
      }
    cli_free(&r);
  }
}

// Passes once HARNESS_TOGETHER of its kind run at the same time. Fails after HARNESS_LOOKS, and with it those that are
// there or come later: they would count it too.
static void harness_meet(const char *name) {
  const char *together = getenv("HARNESS_TOGETHER");
  CliRun r;
  if (!harness_is_inner() || !together) return;
  CLI_RUN(&r, "cd $HARNESS_DIR; touch met_%s; for i in $(seq $HARNESS_LOOKS); do n=$(ls met_* | wc -l); "
          "[ -e gave_up ] && exit 1; [ $n -ge %s ] && exit; sleep 0.05; done; touch gave_up; exit 1", name, together);
  EXPECT(r.code == 0, "%s is alone", name);
  cli_free(&r);
}
TEST(harness_inner_meet_1, "nothing (harness_idle_cores runs it, beside others)") { harness_meet("1"); }
TEST(harness_inner_meet_2, "nothing (harness_idle_cores runs it, beside others)") { harness_meet("2"); }
TEST(harness_inner_meet_3, "nothing (harness_idle_cores runs it, beside others)") { harness_meet("3"); }
TEST(harness_inner_meet_4, "nothing (harness_idle_cores runs it, beside others)") { harness_meet("4"); }
TEST(harness_idle_cores,
     "while cores are idle twice as many tests run at a time as there are cores, otherwise as many") {
  for (const char *idle : {"1", "0.3"}) {
    CliRun r;
    const bool more = !strcmp(idle, "1");
    mkdir(cli_path(idle), 0777);
    CLI_RUN(&r, "HARNESS_DIR=%s HARNESS_TOGETHER=%s HARNESS_LOOKS=%d TEST_IDLE=%s TEST_JOBS=2 exec %s "
            "harness_inner_meet", cli_path(idle), more ? "4" : "3", more ? 400 : 60, idle, liveness_self());
    EXPECT(cli_count(r.text, more ? "4 passed, 0 failed" : "0 passed, 4 failed") == 1, "%s idle:\n%.3000s", idle,
           r.text);
    cli_free(&r);
  }
}
static const char *test_longest_name(int i);     // in the runner; NULL after the last
TEST(harness_longest_are_there, "the tests that start first are tests, and begin so") {
  CliRun r;
  char *end = NULL;
  for (int i = 0; const char *name = test_longest_name(i); i++) {
    const TestCase *t = test_cases;
    while (t && strcmp(t->name, name)) t = t->next;
    EXPECT(t, "there is no test %s, which shall start first", name);
  }
  CLI_RUN(&r, "%s --list | cut -d ' ' -f 1", liveness_self());
  char *line = strtok_r(r.text, "\n", &end);
  for (int i = 0; i < 2; i++) {
    EXPECT(line && !strcmp(line, test_longest_name(i)), "%s begins, not %s", line ? line : "nothing",
           test_longest_name(i));
    line = strtok_r(NULL, "\n", &end);
  }
  cli_free(&r);
}

static void harness_pressure_says(const char *total) {
  char text[128];
  snprintf(text, sizeof text, "some avg10=1.5 avg60=2.00 avg300=0.00 %s\nfull avg10=0.00\n", total);
  cli_write(cli_path("pressure"), text, strlen(text));
}
TEST(harness_late_tests,
     "a test that took too long while processors were under pressure runs once more, after the others, and the output "
     "says so: one of a run, and none that failed before it was late, nor without pressure, nor one about hangs") {
  static const struct { const char *environment, *tests, *order, *counts; bool pressure, again; } table[] = {
      {"HARNESS_LATE=1", "=harness_inner_first =harness_inner_second", "first second first ", "1 passed, 1 failed",
       true, true},
      {"HARNESS_LATE=2", "=harness_inner_first", "first first ", "0 passed, 1 failed", true, true},
      {"HARNESS_LATE=1", "=harness_inner_first", "first ", "0 passed, 1 failed", false, false},
      {"HARNESS_LATE=1", "=harness_inner_hang", "hang ", "0 passed, 1 failed", true, false},
      {"HARNESS_LATE=1", "=harness_inner_wrong", "wrong ", "0 passed, 1 failed", true, false},
      {"TEST_LIMIT_S=0", "=harness_inner_first", NULL, "0 passed, 1 failed", true, true}};
  CliRun r, pressure;                            // which grows with each look at it
  cli_start(&pressure, "trap '' PIPE; mkfifo %s; cd %s; while :; do echo 'some avg10=0.00 avg60=0.00 avg300=0.00 "
            "total='$((i += 1000000000)) >grows; done", cli_path("grows"), test_tmp());
  while (access(cli_path("grows"), F_OK)) usleep(2000);
  harness_pressure_says("total=7");
  for (const auto &k : table) {
    char dir[512], path[600];
    snprintf(dir, sizeof dir, "%s", cli_path(k.environment));
    mkdir(dir, 0777);
    CLI_RUN(&r, "HARNESS_DIR='%s' TEST_PRESSURE=%s TEST_JOBS=1 %s exec %s %s", dir,
            cli_path(k.pressure ? "grows" : "pressure"), k.environment, liveness_self(), k.tests);
    EXPECT(r.code == 1 && cli_count(r.text, k.counts) == 1, "%s %s: exit code %d, not '%s':\n%.3000s", k.environment,
           k.tests, r.code, k.counts, r.text);
    EXPECT(cli_count(r.text, "late, ran once more: harness_inner_first") == k.again &&
           cli_count(r.text, "late    harness_inner") == k.again, "%s %s, must be %s again:\n%.3000s", k.environment,
           k.tests, k.again ? "run" : "not run", r.text);
    cli_free(&r);
    snprintf(path, sizeof path, "%s/order", dir);
    int64_t bytes = 0;
    char *order = file_get(path, 1 << 16, &bytes);
    for (char *c = order; c && *c; c++) if (*c == '\n') *c = ' ';
    EXPECT(!k.order || (order && !strcmp(order, k.order)), "%s %s: they ran in the order %s, must be %s", k.environment,
           k.tests, order ? order : "", k.order);
    free(order);
    remove(path);
  }
  kill(-pressure.pid, SIGKILL);
  cli_wait(&pressure, 1e9);
  cli_free(&pressure);
}

TEST(harness_knows_every_test, "each test that a file of dev/test/ has is registered, by one object, under this name") {
  first_need_repository();
  glob_t found;
  int registered = 0, written = 0;
  for (const TestCase *t = test_cases; t; t = t->next) registered++;
  REQUIRE(!glob("dev/test/*.h", 0, NULL, &found), "no files");
  for (size_t i = 0; i < found.gl_pathc; i++) {
    int64_t bytes = 0;
    char name[256], *text = file_get(found.gl_pathv[i], 1 << 24, &bytes);
    for (const char *at = text; at; at = strchr(at, '\n')) {
      at += *at == '\n';
      if (sscanf(at, "TEST( %255[a-z0-9_],", name) != 1 && sscanf(at, "TEST_MPI( %255[a-z0-9_],", name) != 1 &&
          sscanf(at, "TEST_WAITS( %255[a-z0-9_],", name) != 1) continue;
      int times = 0;
      for (const TestCase *t = test_cases; t; t = t->next) times += !strcmp(t->name, name);
      EXPECT(times == 1, "%s: %s is registered %d times: which object includes the file, and is it linked?",
             found.gl_pathv[i], name, times);
      written++;
    }
    free(text);
  }
  EXPECT(written == registered, "%d tests are written, %d registered", written, registered);
  globfree(&found);
}

TEST(harness_pressure,
     "an end is in time by its limit; while processors are under pressure by the longer one; where the kernel says "
     "nothing, by its limit") {
  static const struct { const char *before, *after; bool pressed; } table[] = {
      {"total=7", "total=7", false}, {"total=7", "total=1000000000", true}, {"", "total=1000000000", false}};
  setenv("TEST_PRESSURE", cli_path("pressure"), 1);
  for (const auto &k : table) {
    harness_pressure_says(k.before);
    TestClock since = test_clock();
    harness_pressure_says(k.after);
    for (double s : {4.0, 6.0, CLI_LIMIT_S + 1.0}) {             // it started so long ago
      since.ms = now_ms() - s * 1e3;
      const bool in_time = cli_in_time(&since, 5), must = s < 5 || (s < CLI_LIMIT_S && k.pressed);
      EXPECT(in_time == must, "'%s', then '%s': after %g s it is %s", k.before, k.after, s,
             in_time ? "in time" : "late");
    }
  }
}
