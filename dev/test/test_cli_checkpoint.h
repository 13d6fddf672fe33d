// test_cli_checkpoint.h: checkpoints as users meet them: runs that are stopped and resumed, full disks, directories
// that are not empty, evaluation and samples from saved weights, hosts that share no directory. Helpers are those of
// cli_helpers.h. A resumed run is compared with one that was never stopped: every digit of every loss, every byte of
// weights and moments.

// ---- what a run left ------------------------------------------------------------------------------------------------
// The names step_* in `directory`, newest first, with a space after each; "!" before incomplete ones.
static inline const char *cli_checkpoints(const char *directory) {
  static char names[2][4096];
  static int turn;
  char damaged[1024];
  int count;
  size_t n = 0;
  turn = !turn;
  names[turn][0] = 0;
  Listed *list = checkpoint_list(directory, &count, damaged, sizeof damaged);
  for (int i = 0; i < count && n < sizeof names[0] - 64; i++)
    n += (size_t)snprintf(names[turn] + n, sizeof names[0] - n, "%s%s ", list[i].serial < 0 ? "!" : "", list[i].name);
  free(list);
  return names[turn];
}
// Two checkpoints have the same weights, moments and tokenizer.
static inline void cli_expect_same_checkpoint(const char *what, const char *a, const char *b) {
  for (const char *name : {"model.safetensors", "optim.safetensors", "tokenizer.json"}) {
    char x[700], y[700];
    snprintf(x, sizeof x, "%.600s/%s", a, name);
    snprintf(y, sizeof y, "%.600s/%s", b, name);
    cli_expect_same_file(what, x, y);
  }
}
// Two runs reached the same end, by the same steps.
static inline void cli_expect_same_end(const char *what, const char *out_a, const char *out_b, int steps) {
  char a[640], b[640];
  snprintf(a, sizeof a, "%s/ckpt/latest", out_a);
  snprintf(b, sizeof b, "%s/ckpt/latest", out_b);
  cli_expect_same_checkpoint(what, a, b);
  cli_expect_same_series(what, out_a, out_b, steps);
}
// A process of this test with this variable in its environment; 0: none.
static inline int cli_find_by(const char *variable) {
  static char text[1 << 17];
  DIR *dir = opendir("/proc");
  int found = 0;
  for (dirent *e; dir && !found && (e = readdir(dir));) {
    char path[64];
    const int pid = atoi(e->d_name);
    if (pid <= 0 || pid == getpid() || !cli_is_ours(pid, -1)) continue;
    snprintf(path, sizeof path, "/proc/%d/environ", pid);
    FILE *f = fopen(path, "rb");
    const size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) fclose(f);
    text[n] = 0;
    for (size_t at = 0; at < n; at += strlen(text + at) + 1) if (!strcmp(text + at, variable)) found = pid;
  }
  if (dir) closedir(dir);
  return found;
}
// Whether a set of process `pid` has the signal: SigCgt of those with a handler, SigIgn of those that are ignored.
static inline bool cli_has_signal(int pid, const char *set, int signal) {
  char path[64], line[256];
  unsigned long long bits = 0;
  snprintf(path, sizeof path, "/proc/%d/status", pid);
  FILE *f = fopen(path, "r");
  while (f && fgets(line, sizeof line, f))
    if (!strncmp(line, set, strlen(set))) sscanf(line + strlen(set), ": %llx", &bits);
  if (f) fclose(f);
  return bits >> (signal - 1) & 1;
}
// Waits until process `pid` has a handler for the signal.
static inline bool cli_catches(int pid, int signal) {
  for (double start = now_ms(); now_ms() - start < CLI_LIMIT_S * 1e3; usleep(200))
    if (cli_has_signal(pid, "SigCgt", signal)) return true;
  return false;
}

// A run that is long enough to be stopped in the middle, and short enough to be finished.
enum { CLI_LONG_STEPS = 1500 };
static inline const char *cli_long() {
  static char text[256];
  snprintf(text, sizeof text, "--max_steps %d --global_batch 8 --dropout 0.1 --save_every 1000000 --epochs 1000000 "
           "--eval_every 1000000000", CLI_LONG_STEPS);
  return text;
}
// Options that a resumed run still needs.
static const char cli_resumes[] = "--threads 1 --cache= --sample_tokens 4";

// ---- stopped and resumed --------------------------------------------------------------------------------------------
TEST(cli_sigusr1_saves_and_another_number_of_ranks_goes_on,
     "SIGUSR1: a checkpoint, exit code 85, last record \"saved\"; --resume auto at another N ends with the bytes of "
     "the run that was never stopped") {
  static const struct { int ranks; const char *options; int next; } table[] = {
      {0, "", 2}, {2, "--save_async --save_every 100", 4}, {4, "--param_dtype fp32", 0}};
  CliRun r;
  CLI_RUN(&r, "%s %s %s --out %s", cli_ranks(0), cli_small(), cli_long(), cli_path("never_stopped"));
  cli_expect_done(&r, "never stopped");
  cli_free(&r);
  for (const auto &row : table) {
    char what[128], options[512];
    const char *out = cli_path("out");
    snprintf(what, sizeof what, "%d ranks %s, then %d", row.ranks, row.options, row.next);
    snprintf(options, sizeof options, "%s %s", cli_long(), row.options);
    if (!cli_start_endless(&r, out, row.ranks, options)) return;
    for (int times = 0; times < 3; times++, usleep(300)) kill(r.pid, SIGUSR1);
    cli_wait(&r, CLI_LIMIT_S);
    EXPECT(r.code == EXIT_SAVED, "%s: exit code %d, must be 85:\n%.3000s", what, r.code, r.text);
    EXPECT(cli_count(r.text, "; --resume auto continues from step ") == 1, "%s: it does not say how to "
           "continue:\n%.3000s", what, r.text);
    EXPECT(cli_count(r.text, "SIGUSR1: the run ends after this step, or this batch of an evaluation, with a "
                     "checkpoint") == 1, "%s: not one rank says that the signal was received:\n%.3000s", what, r.text);
    cli_expect_end(what, out, "saved");
    cli_free(&r);
    CLI_RUN(&r, "%s %s --resume auto --out %s", cli_ranks(row.next), cli_resumes, out);
    cli_expect_done(&r, what);
    EXPECT(cli_count(r.text, "resumed from: ") == 1 && !strstr(r.text, "replaces"), "%s: it printed:\n%.3000s", what,
           r.text);
    cli_free(&r);
    cli_expect_same_end(what, cli_path("never_stopped"), out, CLI_LONG_STEPS);
    CLI_RUN(&r, "rm -r %s", out);
    cli_free(&r);
  }
  cli_expect_nothing_left("after SIGUSR1");
}

TEST(cli_sigusr1_before_the_first_step,
     "SIGUSR1 as soon as the program can catch it, to one rank only: no rank dies, the first step is saved") {
  for (int ranks : {0, 2}) {
    const char *out = cli_path("out");
    bool first = false;                          // a busy machine may let a step pass before we look
    for (int attempt = 0; attempt < 3 && !first; attempt++) {
      CliRun r;
      char directory[600];
      cli_start(&r, "exec %s %s --data generated --grad_accum 2000 --epochs 1000000 --eval_every 1000000000 "
                "--save_every -1 --out %s", cli_ranks(ranks), cli_small(), out);           // a long step
      int pid = ranks ? 0 : r.pid;
      for (double start = now_ms(); !pid && now_ms() - start < CLI_LIMIT_S * 1e3; usleep(500))
        pid = cli_find_process(1, false);
      EXPECT(cli_catches(pid, SIGUSR1), "%d ranks: process %d does not catch SIGUSR1", ranks, pid);
      kill(pid, SIGUSR1);
      cli_wait(&r, CLI_LIMIT_S);
      EXPECT(r.code == EXIT_SAVED, "%d ranks: exit code %d, must be 85:\n%.3000s", ranks, r.code, r.text);
      snprintf(directory, sizeof directory, "%s/ckpt", out);
      first = !strcmp(cli_checkpoints(directory), "step_00000001 ");
      const char *at_once = strstr(r.text, "SIGUSR1: the run ends after this step"), *step = strstr(r.text, "step 1/");
      EXPECT(!first || (at_once && step && at_once < step), "%d ranks: no line says at once that rank 1 was asked to "
             "end:\n%.3000s", ranks, r.text);
      cli_free(&r);
    }
    EXPECT(first, "%d ranks: the first step was not saved", ranks);
  }
  cli_expect_nothing_left("after SIGUSR1");
}

// A run whose evaluation takes minutes, if nothing ends it: 2 steps, then every token of 4 MB is validated, window by
// window. The caller waits for it.
static inline void cli_start_slow_eval(CliRun *r, int ranks, const char *options) {
  cli_start(r, "cd %s && if [ ! -e slow ]; then mkdir slow && cp %s/train.txt slow && "
            "yes \"$(head -c 1000 slow/train.txt)\" | head -c 4000000 >slow/valid.txt; fi; "
            "exec %s %s --data slow --test_batch_size 1 %s", test_tmp(), cli_text(60), cli_ranks(ranks), cli_small(),
            options);
}
TEST(cli_signals_are_served_in_an_evaluation,
     "SIGTERM, SIGINT and SIGUSR1 in an evaluation of minutes end it: the step was saved before, exit code 85; ranks "
     "of mpirun by SIGUSR1; the resumed run evaluates first, and there SIGKILL loses nothing either; --eval_only ends "
     "with exit code 130; a line says at once which signal was received") {
  static const struct { int ranks, signal; const char *options; int code; } rows[] = {
      {0, SIGTERM, "--max_steps 2 --global_batch 4 --eval_every 2", EXIT_SAVED},
      {0, SIGINT, "--resume auto", EXIT_SAVED},
      {2, SIGUSR1, "--resume auto", EXIT_SAVED},
      {0, SIGKILL, "--resume auto", 128 + SIGKILL},
      {0, SIGUSR1, "--resume @/out/ckpt/latest --eval_only", EXIT_STOPPED}};
  CliRun r;
  for (const auto &row : rows) {
    char options[600], directory[600];
    snprintf(options, sizeof options, "%s --out %s", cli_expand(row.options), cli_path("out"));
    snprintf(directory, sizeof directory, "%s", cli_path("out/ckpt"));
    cli_start_slow_eval(&r, row.ranks, options);
    if (!cli_wait_for(&r, &row == rows ? "checkpoint: " : "from: ", 1)) return;
    if (!row.ranks) cli_catches(r.pid, SIGHUP);  // from here on signals are the run's
    kill(r.pid, row.signal);
    cli_wait(&r, CLI_LIMIT_S);
    EXPECT(r.code == row.code, "signal %d, %s: exit code %d, must be %d:\n%.3000s", row.signal, options, r.code,
           row.code, r.text);
    EXPECT(!strstr(r.text, "valid: loss"), "signal %d: the evaluation came to its end:\n%.3000s", row.signal, r.text);
    EXPECT(!strcmp(cli_checkpoints(directory), "step_00000002 "), "signal %d: the step was not saved", row.signal);
    EXPECT(row.signal == SIGKILL || cli_count(r.text, ": the run ends after this step, or this batch") == 1,
           "signal %d: no line says that it was received:\n%.3000s", row.signal, r.text);
    cli_free(&r);
  }
  cli_expect_nothing_left("after signals in evaluations");
}

TEST(cli_sigterm_to_each_rank_saves_where_no_mpirun_counts_the_seconds,
     "ranks that mpirun did not start, as under srun: SIGTERM saves, exit code 85, --resume auto continues") {
  CliRun r;
  char metrics[600], mpirun[PATH_MAX + 256];
  const char *out = cli_path("out");
  snprintf(mpirun, sizeof mpirun, "%s", cli_ranks(2));
  mpirun[strlen(mpirun) - strlen(cli_program())] = 0;
  snprintf(metrics, sizeof metrics, "%s/metrics.jsonl", out);
  cli_start(&r, "exec %s env -u OMPI_COMM_WORLD_RANK OUR_RANKS=2 %s %s %s --out %s", mpirun, cli_program(), cli_small(),
            cli_long(), out);
  struct stat st;
  for (double start = now_ms(); (stat(metrics, &st) || st.st_size < 4096) && now_ms() - start < CLI_LIMIT_S * 1e3;)
    usleep(5000);
  int pids[2] = {cli_find_by("PMIX_RANK=0"), cli_find_by("PMIX_RANK=1")};
  REQUIRE(pids[0] > 0 && pids[1] > 0, "the ranks are not found");
  for (int pid : pids) kill(pid, SIGTERM);
  cli_wait(&r, CLI_LIMIT_S);
  EXPECT(r.code == EXIT_SAVED, "exit code %d, must be 85:\n%.3000s", r.code, r.text);
  cli_expect_end("SIGTERM", out, "saved");
  cli_free(&r);
  CLI_RUN(&r, "%s %s %s --out %s", cli_ranks(0), cli_small(), cli_long(), cli_path("never_stopped"));
  cli_free(&r);
  CLI_RUN(&r, "%s %s --resume auto --out %s", cli_ranks(0), cli_resumes, out);
  cli_expect_done(&r, "resumed");
  cli_free(&r);
  cli_expect_same_end("SIGTERM", cli_path("never_stopped"), out, CLI_LONG_STEPS);
}

TEST_WAITS(cli_sigterm_under_mpirun_leaves_whole_checkpoints,
     "SIGTERM to mpirun while checkpoints are written, at once or in the background: record \"signal\" if training "
     "continues meanwhile, every step_* is whole, the newest can be resumed") {
  test_mpirun_patience(3);
  static const char *const table[] = {"--save_every 1", "--save_every 50 --save_async"};
  for (const char *options : table) {
    CliRun r;
    const char *out = cli_path("out"), *names;
    char directory[600];
    snprintf(directory, sizeof directory, "%s/ckpt", out);
    if (!cli_start_endless(&r, out, 2, options)) return;
    kill(r.pid, SIGTERM);
    cli_wait(&r, CLI_LIMIT_S);
    EXPECT(r.code != 0 && r.code != EXIT_SAVED, "%s: exit code %d", options, r.code);
    if (options != table[0]) cli_expect_end(options, out, "signal");
    names = cli_checkpoints(directory);
    EXPECT(names[0] && !strchr(names, '!'), "%s: not all are whole, or there are none: %s", options, names);
    cli_free(&r);
    CLI_RUN(&r, "%s --max_steps 1 %s --resume auto --out %s", cli_ranks(0), cli_resumes, out);
    cli_expect_done(&r, options);
    EXPECT(cli_count(r.text, "resumed from: ") == 1, "%s: it printed:\n%.2000s", options, r.text);
    cli_free(&r);
  }
  cli_expect_nothing_left("after SIGTERM");
}

// ---- resuming -------------------------------------------------------------------------------------------------------
// Six steps of a run that could be longer: warm-up in steps and no decay, so that its end affects no earlier step.
static inline void cli_six_steps(const char *out, const char *more) {
  CliRun r;
  CLI_RUN(&r, "%s %s --global_batch 8 --schedule constant --warmup 2 --max_steps 6 --out %s %s", cli_ranks(0),
          cli_small(), out, more);
  cli_expect_done(&r, "six steps");
  cli_free(&r);
}

TEST(cli_resume_auto_in_a_job_script,
     "--resume auto: starts and says so if there is no checkpoint; after the end nothing is left to train, exit 0") {
  CliRun r;
  const char *out = cli_path("out");
  char directory[600];
  snprintf(directory, sizeof directory, "%s/ckpt", out);
  for (int time = 0; time < 2; time++) {
    CLI_RUN(&r, "%s %s --max_steps 6 --resume auto --out %s", cli_ranks(2), cli_small(), out);
    cli_expect_done(&r, "--resume auto");
    char warning[700];
    snprintf(warning, sizeof warning, "warning: --resume auto: no checkpoint in %s/ckpt; starting from step 0", out);
    EXPECT(cli_count(r.text, warning) == !time, "run %d: the warning is there %d times:\n%.3000s", time + 1,
           cli_count(r.text, warning), r.text);
    EXPECT(cli_count(r.text, "resumed from: ") == time, "run %d: it printed:\n%.3000s", time + 1, r.text);
    EXPECT(cli_count(r.text, "] step ") == (time ? 0 : 6), "run %d: %d steps", time + 1, cli_count(r.text, "] step "));
    EXPECT(cli_count(r.text, "checkpoint: ") == !time, "run %d: %d checkpoints", time + 1,
           cli_count(r.text, "checkpoint: "));
    EXPECT(!strcmp(cli_checkpoints(directory), "step_00000006 "), "run %d left %s", time + 1,
           cli_checkpoints(directory));
    cli_free(&r);
  }
}

TEST(cli_resume_by_the_same_command,
     "the command of a run, --resume auto and more steps: also when it requests more vocabulary than the text has; "
     "and a run with SGD is evaluated and sampled from") {
  CliRun r;
  char out[600];
  const char *more = "--vocab_size 100000 --optimizer sgd --resume auto";
  snprintf(out, sizeof out, "%s", cli_path("out"));
  for (int steps = 3; steps <= 6; steps += 3) {
    CLI_RUN(&r, "%s %s %s --max_steps %d --out %s", cli_ranks(0), cli_small(), more, steps, out);
    cli_expect_done(&r, more);
    EXPECT(cli_count(r.text, "resumed from: ") == (steps > 3), "%d steps:\n%.3000s", steps, r.text);
    cli_free(&r);
  }
  CLI_RUN(&r, "%s %s --vocab_size 99999 --resume auto --out %s", cli_ranks(0), cli_small(), out);
  EXPECT(r.code == 2 && strstr(r.text, "--vocab_size 99999 contradicts "), "exit code %d:\n%.3000s", r.code, r.text);
  cli_free(&r);
  const struct { const char *from, *what; } looks[] = {
      {"--resume", "--eval_only"}, {"--resume", "--sample_only"}, {"--init_from", "--eval_only"}};
  for (const auto &look : looks) {
    CLI_RUN(&r, "%s %s %s %s --data %s --out %s", cli_ranks(2), look.from, out, look.what, cli_text(60),
            cli_path("look"));
    cli_expect_done(&r, look.what);
    cli_free(&r);
  }
}

TEST(cli_resume_takes_a_path,
     "--resume OUT, OUT/ckpt, OUT/ckpt/latest, OUT/ckpt/step_N: one checkpoint, and six more steps end like twelve") {
  CliRun r;
  cli_six_steps(cli_path("out"), "");
  cli_six_steps(cli_path("twelve"), "--max_steps 12 --save_every 1000");
  for (const char *below : {"", "/ckpt", "/ckpt/latest", "/ckpt/step_00000006"}) {
    CLI_RUN(&r, "%s %s --max_steps 12 --resume %s%s --out %s", cli_ranks(below[0] ? 0 : 2), cli_resumes,
            cli_path("out"), below, cli_path("more"));
    cli_expect_done(&r, below);
    EXPECT(cli_count(r.text, ", step 6, read in ") == 1, "OUT%s: it printed:\n%.3000s", below, r.text);
    EXPECT(cli_count(r.text, "warning: --max_steps 12 replaces the checkpoint's 6: the run continues differently") == 1,
           "OUT%s: not one warning:\n%.3000s", below, r.text);
    char a[600], b[600];
    snprintf(a, sizeof a, "%s/ckpt/latest", cli_path("twelve"));
    snprintf(b, sizeof b, "%s/ckpt/latest", cli_path("more"));
    cli_expect_same_checkpoint(below, a, b);
    cli_free(&r);
  }
}

TEST(cli_resume_rejects_what_is_no_continuation,
     "--resume with no checkpoint there: exit 3; with another model, order, optimizer, data, or ranks that do not "
     "divide: exit 2; another --lr is a warning") {
  static const struct { int ranks; const char *options; int code; const char *line; } table[] = {
      {2, "--resume auto --n_layer 3", 2,
       "--n_layer 3 contradicts @/out/ckpt/step_00000006, which has 2: leave it out, or start a new run from its "
       "weights with --init_from"},
      {0, "--resume auto --batch_size 3", 2,
       "--batch_size 3 does not divide the 8 sequences a step that @/out/ckpt/step_00000006 was trained with"},
      {0, "--resume auto --seed 2", 2, "--seed 2 contradicts @/out/ckpt/step_00000006, which has 1..."},
      {0, "--resume auto --optimizer sgd", 2,
       "--optimizer sgd contradicts @/out/ckpt/step_00000006, which has adamw..."},
      {0, "--resume auto --optimizer muon", 2,
       "--optimizer muon contradicts @/out/ckpt/step_00000006, which has adamw..."},
      {0, "--resume auto --tie_head off", 2, "--tie_head off contradicts @/out/ckpt/step_00000006, which has on..."},
      {0, "--resume auto --shuffle off", 2, "--shuffle off contradicts @/out/ckpt/step_00000006, which has on..."},
      {0, "--resume auto --global_batch 4", 2, "--global_batch 4 contradicts @/out/ckpt/step_00000006, which has 8..."},
      {2, "--resume auto --data @/other", 2,
       "the tokens of text in @/other (--data) are not those that @/out/ckpt/step_00000006 was trained on (text in "
       "@/text (--data)): name those with --data; to train its weights on other data, use --init_from "
       "@/out/ckpt/step_00000006"},
      {2, "--resume auto --val_data @/other/train.txt", 2, "@/out/ckpt/step_00000006 was validated on what is beside "
       "--data, and now @/other/train.txt is to be: ..."},
      {3, "--resume auto", 2, "@/out/ckpt/step_00000006 was trained with 4 microbatches of 2 sequences per step: 3 "
       "ranks cannot share them, any number that divides 4 can continue; --init_from @/out/ckpt/step_00000006 starts a "
       "new run from its weights"},
      {2, "--resume auto --grad_accum 4", 2, "@/out/ckpt/step_00000006 was trained with 4 microbatches per step: with "
       "2 ranks leave --grad_accum 4 out"},
      {2, "--resume @/none", 3,
       "--resume @/none: no checkpoint there (a directory with trainer.json, or one that holds step_* directories); "
       "there is no such directory"},
      {0, "--resume @/text", 3,
       "--resume @/text: no checkpoint there (a directory with trainer.json, or one that holds step_* directories)"},
      {0, "--resume @/out --init_from @/out", 2,
       "--resume continues a run, --init_from starts a new one: give one of them"},
      {0, "--resume auto --eval_only --sample_only", 2, "--eval_only and --sample_only exclude each other"},
      {0, "--resume auto --interactive --sample_tokens 0", 2, "--interactive generates nothing with --sample_tokens 0: "
       "give their number, like --sample_tokens 64"}};
  test_mpirun_patience(0);
  CliRun r;
  cli_six_steps(cli_path("out"), "");
  CLI_RUN(&r, "cp -r %s %s && echo 'the fox sleeps .' >>%s/train.txt", cli_text(60), cli_path("other"),
          cli_path("other"));
  cli_free(&r);
  for (const auto &row : table) {
    CLI_RUN(&r, "%s %s --schedule constant --warmup 2 --max_steps 6 --out %s %s", cli_ranks(row.ranks), cli_small(),
            cli_path("out"), cli_expand(row.options));
    cli_expect_rejection(&r, row.options, row.code, cli_expand(row.line));
    cli_free(&r);
  }
  CLI_RUN(&r, "%s %s --lr 0.02 --warmup 0.1 --max_steps 8 --resume auto --out %s", cli_ranks(0), cli_resumes,
          cli_path("out"));
  cli_expect_done(&r, "another --lr");
  for (const char *line : {"warning: --lr 0.02 replaces the checkpoint's 0.01: the run continues differently from",
                           "warning: --warmup 0.1 replaces the checkpoint's 2: the run continues differently from"})
    EXPECT(cli_count(r.text, line) == 1, "not one line says '%s':\n%.3000s", line, r.text);
  cli_free(&r);
  cli_expect_nothing_left("after the rejections");
}

TEST(cli_metrics_go_on_behind_a_torn_line,
     "metrics.jsonl of a resumed run: the old lines, without a line that was cut short, then the new steps") {
  CliRun r;
  cli_six_steps(cli_path("twelve"), "--max_steps 12 --eval_every 5");
  cli_six_steps(cli_path("out"), "--max_steps 12 --eval_every 5 --save_every 5 --keep 0");
  CLI_RUN(&r, "cd %s/out && rm -r ckpt/step_00000012 && "      // as if killed in the sixth step, after that of step 5
          "sed -i '/\"step\":[6-9]/,$d' metrics.jsonl && rm -r ckpt/step_00000010 && "
          "printf '{\"kind\":\"step\",\"step\":6,\"lo' >>metrics.jsonl", test_tmp());
  cli_expect_done(&r, "the cut");
  cli_free(&r);
  CLI_RUN(&r, "%s %s --resume auto --out %s", cli_ranks(2), cli_resumes, cli_path("out"));
  cli_expect_done(&r, "resumed");
  EXPECT(cli_count(r.text, ", step 5, read in ") == 1, "it printed:\n%.3000s", r.text);
  cli_free(&r);
  cli_expect_same_end("torn line", cli_path("twelve"), cli_path("out"), 12);
  CliMetrics m;
  cli_metrics(&m, cli_path("out"));              // every line whole
  int runs = 0, first = 0;
  for (int i = 0; i < m.lines; i++) {
    if (!cli_is_kind(m.line[i], "run")) continue;
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(m.line[i], "first_step");
    first = v ? v->valueint : 0;
    runs++;
  }
  EXPECT(runs == 2 && first == 6, "%d records of runs, the last from step %d; must be 2, the last from step 6", runs,
         first);
  cli_metrics_free(&m);
}

// ---- which checkpoints there are ------------------------------------------------------------------------------------
TEST(cli_a_fresh_run_moves_older_checkpoints_aside,
     "a new run into an OUT with checkpoints: they are in ckpt.1, ckpt.2, whole, byte by byte; one warning") {
  CliRun r;
  const char *out = cli_path("out");
  char directory[600];
  cli_six_steps(out, "");
  CLI_RUN(&r, "cp -r %s/ckpt %s", out, cli_path("first"));
  cli_free(&r);
  for (int ranks : {2, 0}) {
    CLI_RUN(&r, "%s %s --max_steps 4 --seed 5 --out %s", cli_ranks(ranks), cli_small(), out);
    cli_expect_done(&r, "a fresh run");
    EXPECT(cli_count(r.text, "/ckpt holds checkpoints of an earlier run; they are now in ") == 1,
           "not one warning:\n%.3000s", r.text);
    cli_free(&r);
  }
  CLI_RUN(&r, "diff -r %s %s/ckpt.1", cli_path("first"), out);
  EXPECT(r.code == 0, "the first run's checkpoints have changed: %.1000s", r.text);
  cli_free(&r);
  static const struct { const char *name, *holds; } table[] = {
      {"ckpt", "step_00000004 "}, {"ckpt.1", "step_00000006 "}, {"ckpt.2", "step_00000004 "}};
  for (const auto &row : table) {
    snprintf(directory, sizeof directory, "%s/%s", out, row.name);
    EXPECT(!strcmp(cli_checkpoints(directory), row.holds), "%s holds %s, must hold %s", row.name,
           cli_checkpoints(directory), row.holds);
  }
}

TEST(cli_nothing_of_an_earlier_run_is_lost,
     "a fresh run keeps the earlier one's metrics aside; a ckpt that is a dangling link or a file is rejected before "
     "training; an export never goes among checkpoints") {
  test_mpirun_patience(0);
  CliRun r;
  char out[600];
  snprintf(out, sizeof out, "%s", cli_path("out"));
  cli_six_steps(out, "");
  CLI_RUN(&r, "cp %s/metrics.jsonl %s/before && %s %s --max_steps 2 --save_every -1 --out %s && cmp %s/before "
          "%s/metrics.jsonl.1", out, out, cli_ranks(0), cli_small(), out, out, out);
  EXPECT(r.code == 0 && cli_count(r.text, "is of an earlier run; it is now ") == 1, "exit code %d:\n%.3000s", r.code,
         r.text);
  cli_free(&r);
  for (const char *into : {"ckpt", "ckpt/latest", "ckpt/step_00000006", "ckpt/step_00000099"}) {
    CLI_RUN(&r, "%s --resume %s --sample_only --export_hf %s/%s --out %s", cli_ranks(2), out, out, into, out);
    EXPECT(r.code == 2 && strstr(r.text, "would write among checkpoints"), "into %s: exit code %d:\n%.2000s", into,
           r.code, r.text);
    cli_free(&r);
  }
  CLI_RUN(&r, "cd %s && mv ckpt away && ln -s nowhere ckpt", out);
  cli_free(&r);
  for (const char *resume : {"--resume auto", ""}) {
    CLI_RUN(&r, "%s %s --max_steps 3 %s --out %s", cli_ranks(0), cli_small(), resume, out);
    EXPECT(r.code == 3 && strstr(r.text, "/ckpt") && !strstr(r.text, "] step "), "'%s': exit code %d:\n%.2000s", resume,
           r.code, r.text);
    cli_free(&r);
  }
  CLI_RUN(&r, "cd %s && rm ckpt && mkdir real && mv away/* real && ln -s real ckpt && %s %s --max_steps 2 --out %s && "
          "test -L ckpt && test -d real.1/step_00000006 && test -d real/step_00000002", out, cli_ranks(0), cli_small(),
          out);
  EXPECT(r.code == 0, "a linked ckpt: exit code %d:\n%.3000s", r.code, r.text);
  cli_free(&r);
}

TEST(cli_keeps_what_it_was_told_to,
     "--save_every, --keep: which checkpoints stay, newest last; -1: none; a line and a record report each") {
  static const struct { const char *options, *holds; int saved; } table[] = {
      {"--save_every 4 --keep 2", "step_00000010 step_00000008 ", 3},
      {"--save_every 2 --keep 0", "step_00000010 step_00000008 step_00000006 step_00000004 step_00000002 ", 5},
      {"--save_every 3 --keep 1 --save_async", "step_00000010 ", 4},
      {"--save_every 1 --keep 3 --save_async", "step_00000010 step_00000009 step_00000008 ", 10},
      {"--save_every 100", "step_00000010 ", 1},
      {"", "step_00000010 ", 1},                 // an epoch has 12 steps
      {"--save_every -1", "", 0}};
  for (const auto &row : table) {
    CliRun r;
    const char *out = cli_path("out");
    char directory[600], link[64] = "";
    CLI_RUN(&r, "rm -rf %s; %s %s --global_batch 8 --max_steps 10 --out %s %s", out, cli_ranks(0), cli_small(), out,
            row.options);
    cli_expect_done(&r, row.options);
    snprintf(directory, sizeof directory, "%s/ckpt", out);
    EXPECT(!strcmp(cli_checkpoints(directory), row.holds), "%s: holds %s, must hold %s", row.options,
           cli_checkpoints(directory), row.holds);
    EXPECT(cli_count(r.text, "checkpoint: ") == row.saved, "%s: %d lines of checkpoints, must be %d:\n%.3000s",
           row.options, cli_count(r.text, "checkpoint: "), row.saved, r.text);
    EXPECT(cli_names(directory, ".") == 0, "%s: something temporary is left", row.options);
    snprintf(directory, sizeof directory, "%s/ckpt/latest", out);
    EXPECT(readlink(directory, link, sizeof link - 1) == (row.saved ? 13 : -1) && !strncmp(link, row.holds, 13),
           "%s: latest is %s", row.options, link);
    CliMetrics m;
    int records = 0;
    cli_metrics(&m, out);
    for (int i = 0; i < m.lines; i++)
      records += cli_is_kind(m.line[i], "checkpoint") && cJSON_IsTrue(cJSON_GetObjectItem(m.line[i], "ok"));
    EXPECT(records == row.saved, "%s: %d records of checkpoints, must be %d", row.options, records, row.saved);
    cli_metrics_free(&m);
    cli_free(&r);
  }
}

TEST(cli_keeps_the_best,
     "--keep_best: of a run that learns and then diverges, the checkpoint of the lowest validation loss stays, also "
     "when it is resumed") {
  for (const char *more : {"", "--save_async"}) {
    CliRun r;
    const char *out = cli_path("out");
    char link[700], best[64] = "", holds[128], want[32] = "none";
    // A warm-up of 60 steps to a rate far too high: the loss falls, then rises.
    CLI_RUN(&r, "rm -rf %s; %s %s --global_batch 8 --epochs 9 --max_steps 48 --warmup 60 --lr 8 --clip 0 "
            "--eval_every 4 --save_every 12 --keep 1 --keep_best %s --out %s", out, cli_ranks(2), cli_small(), more,
            out);
    cli_expect_done(&r, "a run that diverges");
    CliMetrics m;
    double lowest = INFINITY, last = 0;
    cli_metrics(&m, out);
    for (int i = 0; i < m.lines; i++) {
      if (!cli_is_kind(m.line[i], "eval") || strcmp(cli_string(m.line[i], "split"), "valid")) continue;
      last = cJSON_GetNumberValue(cJSON_GetObjectItem(m.line[i], "loss"));
      if (!(last < lowest)) continue;
      lowest = last;
      snprintf(want, sizeof want, "step_%08d", cJSON_GetObjectItem(m.line[i], "step")->valueint);
    }
    cli_metrics_free(&m);
    EXPECT(last > lowest + 0.1 && strcmp(want, "step_00000048"), "the run does not diverge: %g, at the end %g", lowest,
           last);
    snprintf(link, sizeof link, "%s/ckpt/best", out);
    EXPECT(readlink(link, best, sizeof best - 1) > 0 && !strcmp(best, want), "%s: best is %s, must be %s", more, best,
           want);
    *strrchr(link, '/') = 0;
    snprintf(holds, sizeof holds, "step_00000048 %s ", want);
    EXPECT(!strcmp(cli_checkpoints(link), holds), "%s: holds %s, must hold %s", more, cli_checkpoints(link), holds);
    EXPECT(cli_count(r.text, " (best), ") >= 1, "%s: no line says that it is the best:\n%.3000s", more, r.text);
    cli_free(&r);
    CLI_RUN(&r, "%s %s --max_steps 56 --keep 1 --keep_best --eval_every 4 --resume auto --out %s", cli_ranks(0),
            cli_resumes, out);
    cli_expect_done(&r, "resumed");
    snprintf(holds, sizeof holds, "step_00000056 %s ", want);
    EXPECT(!strcmp(cli_checkpoints(link), holds), "%s, resumed: holds %s, must hold %s", more, cli_checkpoints(link),
           holds);
    cli_free(&r);
  }
}

// ---- weights without training ---------------------------------------------------------------------------------------

TEST(cli_eval_only_gives_the_same_digits,
     "--eval_only from a checkpoint, an export and model.safetensors, on 1 and 3 ranks: the run's own evaluation, "
     "digit by digit") {
  static const char *const sources[] = {"--resume @/out",
                                        "--init_from @/out/ckpt/latest --data @/text --seq_len 8 --batch_size 2",
                                        "--init_from @/export --data @/text --seq_len 8 --batch_size 2",
                                        "--init_from @/out/model.safetensors --data @/text --seq_len 8 --batch_size 2"};
  CliRun r;
  char export_to[700];
  snprintf(export_to, sizeof export_to, "--eval_every 1000 --save_model --export_hf %s", cli_path("export"));
  cli_six_steps(cli_path("out"), export_to);
  char *own = cli_last_evals(cli_path("out"));
  EXPECT(cli_count(own, "loss") == 2, "the run has other evaluations than valid and test:\n%s", own);
  for (int ranks : {0, 3}) {
    for (const char *source : sources) {
      CLI_RUN(&r, "rm -rf %s; %s --eval_only --threads 1 --cache= %s --out %s", cli_path("eval"), cli_ranks(ranks),
              cli_expand(source), cli_path("eval"));
      cli_expect_done(&r, source);
      char *there = cli_last_evals(cli_path("eval"));
      EXPECT(!strcmp(own, there), "%d ranks, %s:\n%s    must be\n%s", ranks, source, there, own);
      EXPECT(!strstr(r.text, "] step ") && !strstr(r.text, "sample (") && !strstr(r.text, "\n  saves "),
             "%s: it does more than evaluate:\n%.3000s", source, r.text);
      EXPECT(cli_names(cli_path("eval"), "ckpt") == 0, "%s: it saves", source);
      free(there);
      cli_free(&r);
    }
  }
  free(own);
}

TEST(cli_sample_only_needs_no_data,
     "--sample_only from a checkpoint, an export and model.safetensors, without any data directory: the run's own "
     "sample at temperature 0") {
  static const char *const sources[] = {"--resume @/out", "--init_from @/export", "--init_from @/out/ckpt/latest",
                                        "--init_from @/out/model.safetensors"};
  static const char sampling[] = "--prompt 'the fox' --temperature 0 --sample_tokens 30";
  CliRun r;
  char more[1024];
  snprintf(more, sizeof more, "--epochs 9 --max_steps 80 --save_model --export_hf %s %s", cli_path("export"),
           sampling);
  cli_six_steps(cli_path("out"), more);
  CLI_RUN(&r, "mv %s %s", cli_text(60), cli_path("gone"));
  cli_free(&r);
  for (int ranks : {0, 2}) {
    for (const char *source : sources) {
      char a[600], b[600];
      CLI_RUN(&r, "rm -rf %s; cd / && exec env -u WIKITEXT2_DIR %s --sample_only --threads 1 --cache= %s %s --out %s",
              cli_path("sampled"), cli_ranks(ranks), sampling, cli_expand(source), cli_path("sampled"));
      cli_expect_done(&r, source);
      snprintf(a, sizeof a, "%s/sample.txt", cli_path("out"));
      snprintf(b, sizeof b, "%s/sample.txt", cli_path("sampled"));
      cli_expect_same_file(source, a, b);
      EXPECT(!strstr(r.text, "] step ") && !strstr(r.text, "valid:"), "%s: it does more than sample:\n%.3000s", source,
             r.text);
      cli_free(&r);
    }
  }
}

TEST(cli_export_hf_is_whole_or_told,
     "--export_hf into a directory with files: they stay; if none can be made: rejected before training; full: one "
     "line, exit code 3, no model.safetensors; nor a GGUF in fp16 of weights beyond it") {
  CliRun r;
  char options[700], line[900];
  cli_write(cli_path("file"), "x", 1);
  snprintf(options, sizeof options, "--export_hf %s/deeper", cli_path("file"));
  snprintf(line, sizeof line, "--export_hf %s/deeper cannot be made: Not a directory", cli_path("file"));
  const CliRejection below = {2, options, 3, line};
  cli_expect_rejections(&below, 1);
  mkdir(cli_path("export"), 0777);
  cli_write(cli_path("export/README.md"), "mine", 4);
  cli_write(cli_path("export/config.json"), "{}", 2);
  snprintf(options, sizeof options, "--export_hf %s", cli_path("export"));
  snprintf(line, sizeof line, "--export_hf %s has a config.json that this program has not written: name another "
           "directory", cli_path("export"));
  const CliRejection foreign = {0, options, 2, line};
  cli_expect_rejections(&foreign, 1);
  unlink(cli_path("export/config.json"));
  for (int time = 0; time < 2; time++) cli_six_steps(cli_path("out"), options);
  for (const char *name : {"model.safetensors", "config.json", "generation_config.json", "tokenizer.json",
                           "tokenizer_config.json", "README.md"}) {
    struct stat st;
    char path[700];
    snprintf(path, sizeof path, "%s/%s", cli_path("export"), name);
    EXPECT(!stat(path, &st) && st.st_size > 2, "%s is missing or what it was", name);
  }
  const int names = cli_names(cli_path("export"), "");
  EXPECT(names == 6, "%d names in the export, must be 6", names);
  CLI_RUN(&r, "%s %s --max_steps 1 --lr 1000 --lr_scale '*=100' --warmup 0 --eval_every -1 --sample_tokens 0 "
          "--export_gguf f16 --out %s", cli_program(), cli_small(), cli_path("large"));
  EXPECT(r.code == EXIT_MISSING && strstr(r.text, "which fp16 does not hold: --export_gguf f32 or bf16 does") &&
             !cli_names(cli_path("large"), "model.gguf"), "exit code %d:\n%.3000s", r.code, r.text);
  cli_free(&r);
  cli_need_mount_namespace();
  CLI_RUN(&r, "unshare -m sh -c 'mount -t tmpfs -o size=64k tmpfs %s && %s %s --max_steps 2 --out %s --export_hf %s; "
          "code=$?; ls -A %s | sed s/^/left:/; exit $code'", cli_path("mnt"), cli_ranks(2), cli_small(),
          cli_path("full"), cli_path("mnt"), cli_path("mnt"));
  EXPECT(r.code == EXIT_MISSING && cli_count(r.text, "No space left on device") == 1, "exit code %d:\n%.3000s", r.code,
         r.text);
  EXPECT(cli_count(r.text, "left:") == 0, "something is left in the export:\n%.3000s", r.text);
  EXPECT(cli_count(r.text, "exported: ") == 0, "it says that it exported:\n%.3000s", r.text);
  cli_expect_end("a full disk", cli_path("full"), "not saved");
  cli_free(&r);
}

TEST(cli_init_from_takes_a_tokenizer,
     "--init_from: with the weights' own tokenizer or one by --tokenizer; one with more tokens than the model has, and "
     "paths without weights, are rejected in one line") {
  CliRun r;
  char options[1024], path[700];
  snprintf(options, sizeof options, "--export_hf %s", cli_path("export"));
  cli_six_steps(cli_path("out"), options);
  for (const char *vocab : {"280", "300"}) {
    snprintf(options, sizeof options, "--vocab_size %s --save_every -1", vocab);
    cli_six_steps(cli_path(vocab), options);
  }
  snprintf(options, sizeof options, "--threads 1 --cache= --seq_len 8 --batch_size 2 --max_steps 2 --sample_tokens 0");
  for (const char *from : {"export", "280"}) {
    path[0] = 0;
    if (strcmp(from, "export")) snprintf(path, sizeof path, "--tokenizer %s/%s/tokenizer.json", test_tmp(), from);
    CLI_RUN(&r, "%s %s --data %s --init_from %s %s --out %s", cli_ranks(2), options, cli_text(60), cli_path("export"),
            path, cli_path("trained"));
    cli_expect_done(&r, from);
    EXPECT(cli_count(r.text, "weights from: ") == 1, "%s: it printed:\n%.3000s", from, r.text);
    cli_free(&r);
    char a[600], b[600];
    snprintf(a, sizeof a, "%s/tokenizer.json", cli_path(from));
    snprintf(b, sizeof b, "%s/tokenizer.json", cli_path("trained"));
    cli_expect_same_file(from, a, b);
  }
  mkdir(cli_path("empty"), 0777);
  test_mpirun_patience(0);
  const struct { const char *from, *more; int code; const char *line; } table[] = {
      {"export", "--tokenizer @/300", 2, "the tokenizer has 300 tokens, the model of @/export has 290: name the "
       "model's own with --tokenizer; --add_tokens auto gives each its row"},
      {"export", "--n_embd 32", 2, "--n_embd 32 contradicts @/export, which has 24: leave it out"},
      {"none", "", 3, "..."}, {"empty", "", 3, "..."}, {"text/train.txt", "", 3, "..."}};
  for (const auto &row : table) {
    CLI_RUN(&r, "%s %s --data %s --init_from %s %s --out %s", cli_ranks(2), options, cli_text(60), cli_path(row.from),
            cli_expand(row.more), cli_path("refused"));
    if (strcmp(row.line, "...")) cli_expect_rejection(&r, row.from, row.code, cli_expand(row.line));
    else EXPECT(r.code == row.code && cli_count(r.text, cli_path(row.from)) == 1 && !strstr(r.text, "step 1"),
                "%s: exit code %d:\n%.2000s", row.from, r.code, r.text);
    cli_free(&r);
  }
}

TEST(cli_another_familys_tokenizer,
     "a run with Llama 3's form of a tokenizer leaves the file as it was in OUT, checkpoints and export, is resumed to "
     "the same bits, and its export samples what the run did; SentencePiece's tokenizer.model is rejected by name") {
  static const char given[] = "dev/fixtures/tokenizer_llama3.json", sampling[] = "--prompt 'the fox' --temperature 0";
  CliRun r;
  char more[1024], a[700], b[700];
  snprintf(more, sizeof more, "--tokenizer %s --vocab_size 603 --export_hf %s %s", given, cli_path("export"), sampling);
  cli_six_steps(cli_path("out"), more);
  for (const char *copy : {"out/tokenizer.json", "out/ckpt/latest/tokenizer.json", "export/tokenizer.json"})
    cli_expect_same_file(copy, given, cli_path(copy));
  snprintf(more, sizeof more, "--tokenizer %s --vocab_size 603 --max_steps 12 --save_every 1000", given);
  cli_six_steps(cli_path("twelve"), more);
  CLI_RUN(&r, "%s %s --max_steps 12 --resume %s --out %s", cli_ranks(0), cli_resumes, cli_path("out"),
          cli_path("more"));
  cli_expect_done(&r, "resumed");
  cli_free(&r);
  snprintf(a, sizeof a, "%s/ckpt/latest", cli_path("twelve"));
  snprintf(b, sizeof b, "%s/ckpt/latest", cli_path("more"));
  cli_expect_same_checkpoint("resumed", a, b);
  CLI_RUN(&r, "%s --sample_only --threads 1 --cache= --sample_tokens 4 %s --init_from %s --out %s", cli_ranks(0),
          sampling, cli_path("export"), cli_path("sampled"));
  cli_expect_done(&r, "the export");
  cli_free(&r);
  snprintf(a, sizeof a, "%s/sample.txt", cli_path("out"));
  snprintf(b, sizeof b, "%s/sample.txt", cli_path("sampled"));
  cli_expect_same_file("the export's sample", a, b);
  snprintf(a, sizeof a, "%s/tokenizer.json", cli_path("export"));
  snprintf(b, sizeof b, "%s/tokenizer.model", cli_path("export"));
  EXPECT(!rename(a, b), "%s cannot be renamed", a);
  CLI_RUN(&r, "%s --data %s --threads 1 --cache= --seq_len 8 --batch_size 2 --max_steps 1 --init_from %s --out %s",
          cli_ranks(0), cli_text(60), cli_path("export"), cli_path("sampled"));
  EXPECT(r.code == 3 && strstr(r.text, "export/tokenizer.model: is SentencePiece's"), "exit code %d:\n%.3000s", r.code,
         r.text);
  cli_free(&r);
}

// ---- a full disk ----------------------------------------------------------------------------------------------------
// Fills the file system of `directory` with a file in it. Returns at once if it is already full.
static inline void cli_fill(const char *directory) {
  static const char zeros[4096] = "";
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s/ballast", directory);
  const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0666);
  while (fd >= 0 && write(fd, zeros, sizeof zeros) > 0) {}
  if (fd >= 0) close(fd);
}

TEST_WAITS(cli_a_checkpoint_survives_a_full_disk,
     "the disk fills up during a run: one warning per save, the earlier checkpoint stays whole and newest, training "
     "continues; with space again it saves; exit code 85 or 3") {
  static const struct { const char *options; bool freed; } table[] = {
      {"--save_every 100", true}, {"--save_every 100 --save_async", true}, {"--save_every 100 --save_async", false}};
  cli_need_mount_namespace();
  for (const auto &row : table) {
    CliRun r;
    const char *out = cli_path("out");
    char inside[700], ballast[720], says[256];
    int64_t bytes;
    cli_start(&r, "rm -rf %s; mkdir -p %s/ckpt; exec unshare -m sh -c 'mount -t tmpfs -o size=1m tmpfs %s/ckpt && exec "
              "%s %s --epochs 1000000 --eval_every 1000000000 --out %s %s'", out, out, out, cli_ranks(2), cli_small(),
              out, row.options);
    if (!cli_wait_for(&r, "checkpoint: ", 1)) return;
    snprintf(inside, sizeof inside, "/proc/%d/root%s/ckpt", r.pid, out);
    const int fd = open(inside, O_RDONLY | O_DIRECTORY);         // keeps the mount after the run has ended
    REQUIRE(fd >= 0, "%s cannot be opened", inside);
    snprintf(inside, sizeof inside, "/proc/self/fd/%d", fd);
    snprintf(ballast, sizeof ballast, "%s/ballast", inside);
    char *text = NULL;
    for (double start = now_ms(); now_ms() - start < CLI_LIMIT_S * 1e3; usleep(5000)) {
      // a failed save frees some, too
      cli_fill(inside);
      free(text);
      text = file_get(r.path, CLI_TEXT_BYTES, &bytes);
      if (text && cli_count(text, "warning: the checkpoint of step ") >= 4) break;
    }
    const char *newest = cli_checkpoints(inside), *warning = text ? strstr(text, "warning: the checkpoint") : NULL;
    EXPECT(warning, "%s: no warning", row.options);
    EXPECT(newest[0] && newest[0] != '!', "%s: no whole checkpoint: %s", row.options, newest);
    for (const char *last = warning; (last = last ? strstr(last + 1, "warning: the checkpoint") :
                                      NULL);) warning = last;
    snprintf(says, sizeof says, "No space left on device; the last whole one is step %d", atoi(newest + 5));
    EXPECT(warning && cli_count(warning, says) >= 1 && strstr(warning, ": rank ") && strstr(warning, "/ckpt/.saving_"),
           "%s: the warning must name rank and path and say '%s':\n%.600s", row.options, says, warning);
    const int before = text ? cli_count(text, "checkpoint: ") : 0;
    free(text);
    if (row.freed) {
      unlink(ballast);
      if (!cli_wait_for(&r, "checkpoint: ", before + 1)) return;
    }
    kill(r.pid, SIGUSR1);
    cli_wait(&r, CLI_LIMIT_S);
    const int code = row.freed ? EXIT_SAVED : EXIT_MISSING;
    EXPECT(r.code == code, "%s: exit code %d, must be %d:\n%.3000s", row.options, r.code, code, r.text);
    const char *now = cli_checkpoints(inside);
    EXPECT(!strcmp(newest, now) == !row.freed, "%s: there were %s, there are %s", row.options, newest, now);
    EXPECT(!strchr(now, '!') && cli_names(inside, ".") == 0, "%s: half a checkpoint is left: %s", row.options, now);
    cli_expect_end(row.options, out, row.freed ? "saved" : "not saved");
    close(fd);
    cli_free(&r);
  }
  cli_expect_nothing_left("after the full disk");
}

TEST_WAITS(cli_a_last_checkpoint_that_fails_is_an_exit_code,
     "no checkpoint fits: one warning each, training, evaluation and sample finish, exit code 3") {
  cli_need_mount_namespace();
  for (const char *options : {"", "--save_async", "--keep_best"}) {
    CliRun r;
    const char *out = cli_path("out");
    CLI_RUN(&r, "rm -rf %s; mkdir -p %s/ckpt; unshare -m sh -c 'mount -t tmpfs -o size=200k tmpfs %s/ckpt && %s %s "
            "--epochs 2 --out %s %s; code=$?; ls -A %s/ckpt | sed s/^/left:/; exit $code'", out, out, out,
            cli_ranks(2), cli_small(), out, options, out);
    EXPECT(r.code == EXIT_MISSING, "%s: exit code %d, must be 3:\n%.3000s", options, r.code, r.text);
    EXPECT(cli_count(r.text, "No space left on device; there is none yet") == 2, "%s: not two warnings:\n%.3000s",
           options, r.text);
    EXPECT(cli_count(r.text, "left:") == 0 && cli_count(r.text, "sample (") == 1, "%s: it printed:\n%.3000s", options,
           r.text);
    cli_expect_end(options, out, "not saved");
    cli_free(&r);
  }
}

// ---- two hosts ------------------------------------------------------------------------------------------------------
// Runs the program on two hosts, `per` ranks each; hidden: PRIVATE of dev/two_hosts.sh, or "".
static inline void cli_on_two_hosts(CliRun *r, int per, const char *hidden, const char *options) {
  CLI_RUN(r, "PER=%d PRIVATE=%s dev/two_hosts.sh %s %s", per, hidden, cli_program(), options);
  if (r->code == 77) SKIP("%.*s", (int)strcspn(r->text, "\n"), r->text);
  cli_expect_done(r, options);
  EXPECT(strstr(r->text, "on 2 hosts"), "%s: the ranks were not on two hosts:\n%.1000s", options, r->text);
}
// The run on one host, for comparison: TEST_TMP/one, every checkpoint kept, exported to TEST_TMP/export.
static inline const char *cli_reference() {
  static char options[1024];
  snprintf(options, sizeof options, "--max_steps 12 --save_every 3 --keep 0 --export_hf %s", cli_path("export"));
  cli_six_steps(cli_path("one"), options);
  snprintf(options, sizeof options, "%s --global_batch 8 --schedule constant --warmup 2 --max_steps 12 --save_every 3 "
           "--keep 0", cli_small());
  return options;
}
static inline void cli_expect_reference(const char *what, const char *out, int from) {
  for (int step = from; step <= 12; step += 3) {
    char a[600], b[600];
    snprintf(a, sizeof a, "%s/ckpt/step_%08d", cli_path("one"), step);
    snprintf(b, sizeof b, "%s/ckpt/step_%08d", out, step);
    cli_expect_same_checkpoint(what, a, b);
  }
}

TEST(cli_two_hosts_without_a_shared_directory_save,
     "2 and 4 ranks, OUT on one host only: the plan says who streams; checkpoints and export equal one rank's, byte by "
     "byte, saved at once or in the background") {
  static const struct { int per; const char *options; } table[] = {{1, ""}, {2, "--save_async"}};
  const char *base = cli_reference();
  char dir[512], options[2600], streams[128];
  snprintf(dir, sizeof dir, "%s", cli_path("private"));
  mkdir(dir, 0777);
  for (const auto &row : table) {
    CliRun r;
    snprintf(options, sizeof options, "%s %s --export_hf %s/export --out %s/out%d", base, row.options, dir, dir,
             row.per);
    cli_on_two_hosts(&r, row.per, dir, options);
    snprintf(streams, sizeof streams,
             "warning: %d ranks stream their part of checkpoints to rank 0: their hosts do not see ", row.per);
    EXPECT(cli_count(r.text, streams) == 1, "no line says '%s':\n%.3000s", streams, r.text);
    snprintf(options, sizeof options, "%s/out%d", dir, row.per);
    cli_expect_reference(row.options, options, 3);
    cli_free(&r);
    CLI_RUN(&r, "diff -r %s %s/export && rm -r %s/export", cli_path("export"), dir, dir);
    EXPECT(r.code == 0, "%s: the exports differ: %.1000s", row.options, r.text);
    cli_free(&r);
  }
  cli_expect_nothing_left("after the two hosts");
}

TEST(cli_two_hosts_without_a_shared_directory_resume,
     "the second host sees no checkpoint, or an older one of the same name and size: the run continues like one that "
     "was never stopped") {
  static const struct { int per; const char *from, *options; } table[] = {{2, "", "--save_async"}, {1, ":%s", ""}};
  CliRun r;
  const char *base = cli_reference();
  char dir[512], options[2600], hidden[1200];
  snprintf(dir, sizeof dir, "%s", cli_path("private"));
  // stale: the same names from another seed, so that sizes are the same and contents are not
  snprintf(options, sizeof options, "--max_steps 6 --save_every 3 --keep 0 --seed 9");
  cli_six_steps(cli_path("stale/out"), options);
  for (const auto &row : table) {
    CLI_RUN(&r, "rm -rf %s; mkdir -p %s/out/ckpt && cp -r %s/ckpt/step_00000003 %s/ckpt/step_00000006 %s/out/ckpt", dir,
            dir, cli_path("one"), cli_path("one"), dir);
    cli_expect_done(&r, "the copy");
    cli_free(&r);
    size_t n = (size_t)snprintf(hidden, sizeof hidden, "%s", dir);
    if (row.from[0]) snprintf(hidden + n, sizeof hidden - n, ":%s", cli_path("stale"));
    snprintf(options, sizeof options, "%s %s --resume auto --out %s/out", base, row.options, dir);
    cli_on_two_hosts(&r, row.per, hidden, options);
    EXPECT(cli_count(r.text, ", step 6, read in ") == 1, "it was not resumed from step 6:\n%.3000s", r.text);
    snprintf(options, sizeof options, "%s/out", dir);
    cli_expect_reference(row.from[0] ? "stale" : "nothing there", options, 9);
    cli_free(&r);
  }
  cli_expect_nothing_left("after the two hosts");
}

TEST(cli_two_hosts_with_a_shared_directory_save_and_resume,
     "4 ranks on two hosts that share OUT: no rank streams, checkpoints equal one rank's; 2 ranks on two hosts "
     "resume") {
  CliRun r;
  const char *base = cli_reference();
  char options[2048];
  snprintf(options, sizeof options, "%s --out %s", base, cli_path("out"));
  cli_on_two_hosts(&r, 2, "", options);
  EXPECT(cli_count(r.text, "stream their part") == 0, "they share the directory:\n%.3000s", r.text);
  cli_expect_reference("shared", cli_path("out"), 3);
  cli_free(&r);
  CLI_RUN(&r, "cd %s/out/ckpt && rm -r step_00000009 step_00000012", test_tmp());
  cli_free(&r);
  snprintf(options, sizeof options, "%s --save_async --resume auto --out %s", base, cli_path("out"));
  cli_on_two_hosts(&r, 1, "", options);
  EXPECT(cli_count(r.text, ", step 6, read in ") == 1, "it was not resumed from step 6:\n%.3000s", r.text);
  cli_expect_reference("shared, resumed", cli_path("out"), 3);
  cli_free(&r);
  cli_expect_nothing_left("after the two hosts");
}
