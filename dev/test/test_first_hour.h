// test_first_hour.h: the first hour of a user: a start that was not intended, a run that resumes where and how it was
// told, the line that says what to type; and no Makefile target and no script breaks unnoticed. Helpers are those of
// cli_helpers.h and test_cli_checkpoint.h.

// ---- how a run starts -----------------------------------------------------------------------------------------------
TEST(first_a_launcher_that_makes_no_ranks_is_rejected,
     "srun without PMIx, another MPI's mpiexec, torchrun: exit code 2, the first process says what to type, the others "
     "nothing, OUT is not made; PMI of srun has a line before MPI_Init; not for ranks that mpirun started, for one "
     "process, --help, or with --rdzv none") {
  static const struct { const char *environment, *line; } table[] = {
      {"SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=0",
       "srun started 4 programs that do not know of each other (SLURM_STEP_NUM_TASKS=4, but MPI has one rank): start "
       "them with srun --mpi=pmix -n 4 ./train_gpt_fsdp ...; --rdzv none starts each alone"},
      {"PMI_SIZE=3 PMI_RANK=0",
       "another MPI's mpiexec (MPICH, Intel MPI) started 3 programs that do not know of each other (PMI_SIZE=3, but "
       "MPI has one rank): start them with Open MPI's mpirun -np 3 ./train_gpt_fsdp ...; --rdzv none starts each "
       "alone"},
      {"WORLD_SIZE=2 RANK=0",
       "torchrun or another launcher of PyTorch started 2 programs that do not know of each other (WORLD_SIZE=2, but "
       "MPI has one rank): start them with mpirun -np 2 ./train_gpt_fsdp ..., or set MASTER_ADDR and MASTER_PORT "
       "too; --rdzv none starts each alone"}};
  CliRun r;
  const char *out = cli_path("out");
  for (const auto &row : table) {
    CLI_RUN(&r, "env %s %s %s --max_steps 1 --out %s", row.environment, cli_ranks(0), cli_small(), out);
    cli_expect_rejection(&r, row.environment, 2, row.line);
    EXPECT(access(out, F_OK), "%s: OUT was made", row.environment);
    cli_free(&r);
    CLI_RUN(&r, "env %s %s --version", row.environment, cli_ranks(0));
    cli_expect_done(&r, "--version");
    cli_free(&r);
  }
  for (const char *other : {"SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=3", "PMI_SIZE=3 PMI_RANK=1", "WORLD_SIZE=2 RANK=1"}) {
    CLI_RUN(&r, "env %s %s %s --max_steps 1 --out %s", other, cli_ranks(0), cli_small(), out);
    EXPECT(r.code == 2 && !r.text[0] && access(out, F_OK), "%s: exit code %d, it printed:\n%.2000s", other, r.code,
           r.text);
    cli_free(&r);
  }
  for (int rank = 0; rank < 2; rank++) {         // srun --mpi=pmi2: MPI_Init may end the program, with words of its own
    CLI_RUN(&r, "env SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=%d PMI_RANK=%d %s %s --max_steps 1 --out %s", rank, rank,
            cli_ranks(0), cli_small(), out);
    const bool said = strstr(r.text, "warning: srun gave its 4 processes PMI") &&
                      strstr(r.text, "start them with srun --mpi=pmix -n 4 ./train_gpt_fsdp");
    EXPECT(r.code == 2 && said == !rank, "PMI of srun, rank %d: exit code %d, it printed:\n%.2000s", rank, r.code,
           r.text);
    cli_free(&r);
  }
  static const struct { const char *environment; int ranks; const char *options; } taken[] = {
      {"SLURM_STEP_NUM_TASKS=1 SLURM_NTASKS=8 PMI_SIZE=1 WORLD_SIZE=4", 0, ""}, {"WORLD_SIZE=2 RANK=0", 2, ""},
      {"WORLD_SIZE=2 RANK=1", 0, "--rdzv none"}, {"PMI_SIZE=3", 0, "--rdzv none"}};
  for (const auto &row : taken) {
    CLI_RUN(&r, "env %s %s %s --max_steps 1 --sample_tokens 0 --out %s %s", row.environment, cli_ranks(row.ranks),
            cli_small(), out, row.options);
    cli_expect_done(&r, row.environment);
    cli_free(&r);
  }
  cli_expect_nothing_left("after the rejections");
}

TEST(first_rdzv_none_in_a_file,
     "--rdzv none in the file of --config starts one program of several alone; a file without it changes nothing") {
  CliRun r;
  const char *files[] = {"rdzv = none\n", "lr = 0.01\n"};
  for (const char *text : files) {
    const char *file = cli_path(text == files[0] ? "none.txt" : "lr.txt");
    cli_write(file, text, strlen(text));
    CLI_RUN(&r, "env PMI_SIZE=3 PMI_RANK=0 %s %s --config %s --max_steps 1 --sample_tokens 0 --out %s", cli_ranks(0),
            cli_small(), file, cli_path("out"));
    if (text == files[0]) cli_expect_done(&r, text);
    else cli_expect_rejection(&r, text, 2, "another MPI's mpiexec (MPICH, Intel MPI) started 3 programs that do not "
                            "know of each other (PMI_SIZE=3, but MPI has one rank): ...");
    cli_free(&r);
  }
}

TEST(first_alone_is_one_process,
     "the program alone, twice at once: Open MPI starts no process beside them and writes nothing where temporary "
     "files go; both train") {
  CliRun r[2];
  mkdir(cli_path("tmp"), 0777);
  setenv("TMPDIR", cli_path("tmp"), 1);
  const char *out[] = {cli_path("one"), cli_path("two")};
  if (!cli_start_endless(&r[0], out[0], 0, "") || !cli_start_endless(&r[1], out[1], 0, "")) return;
  EXPECT(cli_names(cli_path("tmp"), "") == 0, "something is in the directory for temporary files");
  DIR *dir = opendir("/proc");
  for (dirent *e; dir && (e = readdir(dir));) {
    const int pid = atoi(e->d_name);
    const bool known = pid == getpid() || pid == r[0].pid || pid == r[1].pid;
    EXPECT(pid <= 0 || known || !cli_is_ours(pid, -1), "process %d was started beside them", pid);
  }
  if (dir) closedir(dir);
  for (CliRun &one : r) {
    kill(one.pid, SIGUSR1);
    cli_wait(&one, CLI_LIMIT_S);
    EXPECT(one.code == EXIT_SAVED, "exit code %d:\n%.2000s", one.code, one.text);
    cli_free(&one);
  }
  cli_expect_nothing_left("after them");
}

TEST(first_ranks_start_as_installed,
     "1 rank, 2 ranks and 2 hosts, as a user's shell starts them, without what the tests tell Open MPI: the losses "
     "that tests have") {
  CliRun r;
  char told[600], installed[600];
  snprintf(told, sizeof told, "%s", cli_path("told"));
  snprintf(installed, sizeof installed, "%s", cli_path("installed"));
  const char *options = "--max_steps 2 --global_batch 8 --eval_every -1 --save_every -1 --sample_tokens 0";
  CLI_RUN(&r, "%s %s %s --out %s", cli_ranks(2), cli_small(), options, told);
  cli_expect_done(&r, "as tests start ranks");
  cli_free(&r);
  for (const auto &told : test_open_mpi) {
    const char *value = getenv(told.name);
    if (value && !strcmp(value, told.value)) unsetenv(told.name);
  }
  for (const char *ranks : {cli_ranks(0), cli_ranks(2)}) {
    CLI_RUN(&r, "%s %s %s --out %s", ranks, cli_small(), options, installed);
    cli_expect_done(&r, ranks);
    cli_free(&r);
    cli_expect_same_series(ranks, told, installed, 2);
  }
  CLI_RUN(&r, "dev/two_hosts.sh %s %s %s --out %s", cli_program(), cli_small(), options, installed);
  if (r.code == 77) SKIP("%.*s", (int)strcspn(r.text, "\n"), r.text);
  cli_expect_done(&r, "two hosts");
  cli_free(&r);
  cli_expect_same_series("two hosts", told, installed, 2);
}

// ---- how long a run is ----------------------------------------------------------------------------------------------
TEST(first_max_steps_goes_beyond_an_epoch,
     "--max_steps alone trains that many steps, epoch after epoch, with the learning-rate schedule of that many; "
     "--epochs ends it earlier; a checkpoint of a program that had --epochs 1 by default keeps its end") {
  CliRun r;
  char all[600], config[600];
  snprintf(all, sizeof all, "%s", cli_path("all"));
  const char *epoch = "--global_batch 16 --sample_tokens 0 --eval_every -1 --log_every 1";
  CLI_RUN(&r, "%s %s %s --out %s", cli_ranks(0), cli_small(), epoch, cli_path("one"));
  cli_expect_done(&r, "an epoch");
  const int steps = cli_count(r.text, "] step ");
  REQUIRE(steps >= 2 && steps < 20, "an epoch has %d steps", steps);
  cli_free(&r);
  CLI_RUN(&r, "%s %s %s --max_steps %d --out %s", cli_ranks(2), cli_small(), epoch, 2 * steps + 1, all);
  cli_expect_done(&r, "beyond two epochs");
  EXPECT(cli_count(r.text, "] step ") == 2 * steps + 1, "%d steps, must be %d", cli_count(r.text, "] step "),
         2 * steps + 1);
  cli_free(&r);
  CLI_RUN(&r, "%s %s %s --max_steps %d --epochs 3 --out %s", cli_ranks(0), cli_small(), epoch, 2 * steps + 1,
          cli_path("said"));
  cli_expect_done(&r, "with enough epochs");
  cli_free(&r);
  cli_expect_same_series("max_steps alone, and within --epochs", all, cli_path("said"), 2 * steps + 1);
  CLI_RUN(&r, "%s %s %s --max_steps %d --epochs 1 --out %s", cli_ranks(0), cli_small(), epoch, 2 * steps + 1,
          cli_path("ends"));
  cli_expect_done(&r, "--epochs 1");
  EXPECT(cli_count(r.text, "] step ") == steps, "%d steps, an epoch has %d", cli_count(r.text, "] step "), steps);
  cli_free(&r);
  // Its trainer.json has --epochs 1, like that of every older program: also when the run was stopped before.
  CLI_RUN(&r, "%s %s --resume %s --out %s", cli_ranks(0), cli_resumes, cli_path("ends"), cli_path("older"));
  cli_expect_done(&r, "resumed");
  snprintf(config, sizeof config, "the checkpoint is at step %d of %d: nothing is left to train", steps, steps);
  EXPECT(strstr(r.text, config), "not at its end:\n%.3000s", r.text);
  cli_free(&r);
  CLI_RUN(&r, "%s %s --resume %s --max_steps %d --log_every 1 --out %s", cli_ranks(0), cli_resumes, cli_path("one"),
          steps + 2, cli_path("longer"));
  cli_expect_done(&r, "longer");
  EXPECT(cli_count(r.text, "] step ") == 2, "%d more steps, must be 2:\n%.3000s", cli_count(r.text, "] step "), r.text);
  cli_free(&r);
}

// ---- more ranks than microbatches -----------------------------------------------------------------------------------
TEST(first_a_batch_is_split_on_resume,
     "a run whose step is one microbatch, on two ranks: the rejection says --batch_size and --init_from; --batch_size "
     "continues with the same sequences and dropout per step, with one warning, and gives the same bits on 1 and 2 "
     "ranks") {
  test_mpirun_patience(0);
  CliRun r;
  char line[2048], one[600], two[600];
  snprintf(one, sizeof one, "%s", cli_path("one"));
  snprintf(two, sizeof two, "%s", cli_path("two"));
  const char *run = "--batch_size 4 --dropout 0.1 --schedule constant --warmup 0 --lr 1e-20 --weight_decay 0";
  CLI_RUN(&r, "%s %s %s --max_steps 100 --save_every 10 --keep 0 --sample_tokens 0 --out %s", cli_ranks(0), cli_small(),
          run, cli_path("whole"));
  cli_expect_done(&r, "never stopped");
  cli_free(&r);
  const char *from = cli_path("whole/ckpt/step_00000010");
  CLI_RUN(&r, "%s %s --resume %s --out %s", cli_ranks(2), cli_resumes, from, two);
  snprintf(line, sizeof line, "%s was trained with 1 microbatch of 4 sequences per step: 2 ranks cannot share it, any "
           "number that divides 1 can continue; --batch_size 2 continues with the same 4 sequences per step, summed "
           "in another order: last digits change from there on; --init_from %s starts a new run from its weights", from,
           from);
  cli_expect_rejection(&r, "2 ranks", 2, line);
  cli_free(&r);
  for (int ranks : {0, 2}) {
    CLI_RUN(&r, "%s %s --resume %s --batch_size 2 --out %s", cli_ranks(ranks), cli_resumes, from, ranks ? two : one);
    cli_expect_done(&r, "split");
    EXPECT(cli_count(r.text, "warning: ") == 1 &&
           cli_count(r.text, "warning: --batch_size 2 replaces the checkpoint's 4: a step has the same 4 sequences, "
                     "but sums are by microbatch: last digits change from here on") == 1, "not one warning:\n%.3000s",
           r.text);
    EXPECT(strstr(r.text, ", step 10, read in ") && strstr(r.text, " step 100/100 "), "it printed:\n%.3000s", r.text);
    cli_free(&r);
  }
  cli_expect_same_end("split on 1 and 2 ranks", one, two, 90);
  // At such a learning rate no weight moves: a step's loss is a mean over its sequences, under its dropout, and only
  // the order of its sums differs. Other sequences or masks change it by several %.
  CliMetrics a, b;
  cli_metrics(&a, cli_path("whole"));
  cli_metrics(&b, one);
  int same = 0;
  for (int i = 0, j = 0; i < a.lines; i++) {
    const cJSON *step = cJSON_GetObjectItemCaseSensitive(a.line[i], "step");
    if (!cli_is_kind(a.line[i], "step") || step->valueint <= 10) continue;
    while (j < b.lines && !(cli_is_kind(b.line[j], "step") &&
                            cJSON_GetObjectItemCaseSensitive(b.line[j], "step")->valueint == step->valueint)) j++;
    REQUIRE(j < b.lines, "step %d is not there", step->valueint);
    for (const char *key : {"loss", "epoch"}) {
      const double x = cJSON_GetObjectItemCaseSensitive(a.line[i], key)->valuedouble;
      const double y = cJSON_GetObjectItemCaseSensitive(b.line[j], key)->valuedouble;
      EXPECT(fabs(x - y) <= 1e-6 * x, "step %d: %s is %.9g, whole it was %.9g", step->valueint, key, y, x);
    }
    same++;
  }
  EXPECT(same == 90, "%d steps compared", same);
  cli_metrics_free(&a);
  cli_metrics_free(&b);
  CLI_RUN(&r, "%s %s --resume %s --batch_size 3 --out %s", cli_ranks(0), cli_resumes, from, cli_path("three"));
  snprintf(line, sizeof line, "--batch_size 3 does not divide the 4 sequences a step that %s was trained with", from);
  cli_expect_rejection(&r, "--batch_size 3", 2, line);
  cli_free(&r);
  CLI_RUN(&r, "%s %s --resume %s --out %s", cli_ranks(3), cli_resumes, from, two);
  snprintf(line, sizeof line, "%s was trained with 1 microbatch of 4 sequences per step: 3 ranks cannot share it, any "
           "number that divides 1 can continue; --init_from %s starts a new run from its weights", from, from);
  cli_expect_rejection(&r, "3 ranks", 2, line);
  cli_free(&r);
}

// ---- what to resume from --------------------------------------------------------------------------------------------
TEST(first_what_is_not_there_names_what_is,
     "--resume or --init_from of a missing checkpoint: the newest existing one is named; any damaged file of one: "
     "the one before it is named") {
  test_mpirun_patience(0);
  CliRun r;
  char line[2048], newest[600];
  cli_six_steps(cli_path("out"), "--save_every 2 --keep 0 --eval_every -1");
  snprintf(newest, sizeof newest, "%s", cli_path("out/ckpt/step_00000006"));
  for (const char *path : {"out/ckpt/best", "out/best/", "out/ckpt/step_00000005"}) {
    CLI_RUN(&r, "%s %s --resume %s --out %s", cli_ranks(path[4] == 'b' ? 2 : 0), cli_resumes, cli_path(path),
            cli_path("more"));
    snprintf(line, sizeof line, "--resume %s: no checkpoint there (a directory with trainer.json, or one that holds "
             "step_* directories); there is no such directory; the newest one beside it: --resume %s", cli_path(path),
             newest);
    cli_expect_rejection(&r, path, 3, line);
    cli_free(&r);
  }
  CLI_RUN(&r, "%s %s --init_from %s --out %s", cli_ranks(0), cli_resumes, cli_path("out/ckpt/best"), cli_path("more"));
  snprintf(line, sizeof line, "; the newest one beside it: --init_from %s", newest);
  EXPECT(r.code == 3 && cli_count(r.text, line) == 1, "exit code %d:\n%.2000s", r.code, r.text);
  cli_free(&r);
  snprintf(line, sizeof line, "; --resume %s takes the one before", cli_path("out/ckpt/step_00000004"));
  for (const char *name : {"trainer.json", "tokenizer.json", "model.safetensors", "optim.safetensors"}) {
    for (const char *damage : {"printf x | dd bs=1 seek=60 conv=notrunc", "truncate -s 50"}) {
      const bool cut = damage[0] == 't';
      char file[700], kept[700];
      snprintf(file, sizeof file, "%s/%s", newest, name);
      snprintf(kept, sizeof kept, "%s", cli_path("kept"));
      CLI_RUN(&r, "cp %s %s && %s %s%s 2>/dev/null", file, kept, damage, cut ? "" : "of=", file);
      cli_expect_done(&r, damage);
      cli_free(&r);
      CLI_RUN(&r, "%s %s --resume %s --max_steps 8 --out %s", cli_ranks(0), cli_resumes, newest, cli_path("more"));
      EXPECT(r.code == 3 && cli_count(r.text, line) == 1, "%s, %s: exit code %d, no hint:\n%.2000s", name, damage,
             r.code, r.text);
      cli_free(&r);
      CLI_RUN(&r, "cp %s %s", kept, file);
      cli_free(&r);
    }
  }
}

TEST(first_eval_only_needs_the_corpus,
     "--resume --eval_only without the WIKITEXT2_DIR of the run: the generated sentences that then are the corpus are "
     "rejected by name; on other text that --data names it is evaluated, and nothing says that a run continues") {
  CliRun r;
  const char *look = "--eval_only --threads 1 --cache= --resume out --out out";
  CLI_RUN(&r, "[ -e $(dirname %s)/data/wikitext-2 ]", cli_program());
  if (!r.code) SKIP("data/wikitext-2 is beside the program, which takes it for the corpus of a run that names none");
  cli_free(&r);
  CLI_RUN(&r, "cd %s && WIKITEXT2_DIR=%s %s $(echo '%s' | sed 's/--data [^ ]*//') --max_steps 2 --eval_every -1 "
          "--sample_tokens 0 --out out", test_tmp(), cli_path("text"), cli_program(), cli_small());
  cli_expect_done(&r, "WIKITEXT2_DIR");
  cli_free(&r);
  CLI_RUN(&r, "cd %s && env -u WIKITEXT2_DIR %s %s", test_tmp(), cli_program(), look);
  cli_expect_rejection(&r, "no WIKITEXT2_DIR", 2, "the tokens of generated sentences, entropy ...");
  EXPECT(strstr(r.text, "are not those that out/ckpt/step_00000002 was trained on (text in ") &&
             strstr(r.text, " (WIKITEXT2_DIR)): name those with --data"), "it printed:\n%.2000s", r.text);
  cli_free(&r);
  CLI_RUN(&r, "cd %s && env -u WIKITEXT2_DIR %s %s --data text/valid.txt", test_tmp(), cli_program(), look);
  cli_expect_done(&r, "--data");
  EXPECT(cli_count(r.text, "valid: loss") == 1 && !strstr(r.text, "replaces"), "it printed:\n%.2000s", r.text);
  cli_free(&r);
}

// ---- how a run ends -------------------------------------------------------------------------------------------------

TEST(first_sighup_ends_a_sample,
     "SIGHUP, from a terminal that closes, ends a run that makes its sample; where it was ignored, by nohup, it stays "
     "so") {
  for (bool ignored : {false, true}) {
    CliRun r;
    struct stat st;
    char sample[640], out[600];
    snprintf(out, sizeof out, "%s", cli_path(ignored ? "ignored" : "out"));
    snprintf(sample, sizeof sample, "%s/sample.txt", out);
    cli_start(&r, "%s exec %s %s --max_steps 1 --eval_every -1 --sample_tokens 1048576 --out %s",
              ignored ? "trap '' HUP;" : "", cli_ranks(0), cli_small(), out);
    for (double start = now_ms(); stat(sample, &st) && now_ms() - start < CLI_LIMIT_S * 1e3;) usleep(5000);
    EXPECT(cli_has_signal(r.pid, "SigIgn", SIGHUP) == ignored, "SIGHUP is %signored", ignored ? "not " : "");
    kill(r.pid, ignored ? SIGINT : SIGHUP);
    cli_wait(&r, CLI_LIMIT_S);
    EXPECT(r.code == 128 + (ignored ? SIGINT : SIGHUP), "%s: exit code %d:\n%.2000s", out, r.code, r.text);
    cli_free(&r);
  }
}

TEST(first_a_second_ctrl_c_ends_at_once,
     "a rank alone: Ctrl-C requests a checkpoint after the step; a second one does not wait for it") {
  CliRun r;
  cli_start(&r, "exec %s %s --data generated --grad_accum 20000 --save_every -1 --out %s", cli_ranks(0), cli_small(),
            cli_path("out"));                    // a step of seconds
  struct stat st;                                // the first record is written once signals are caught
  const char *metrics = cli_path("out/metrics.jsonl");
  for (double start = now_ms(); (stat(metrics, &st) || !st.st_size) && now_ms() - start < CLI_LIMIT_S * 1e3;)
    usleep(2000);
  REQUIRE(cli_catches(r.pid, SIGINT), "SIGINT is not caught");
  kill(r.pid, SIGINT);
  char path[64], text[256];
  unsigned long long pending = 1ull << (SIGINT - 1);             // of the process: two at once would be one
  snprintf(path, sizeof path, "/proc/%d/status", (int)r.pid);
  for (double start = now_ms(); pending >> (SIGINT - 1) & 1 && now_ms() - start < CLI_LIMIT_S * 1e3;
       usleep(500)) {
    FILE *f = fopen(path, "r");
    while (f && fgets(text, sizeof text, f)) sscanf(text, "ShdPnd: %llx", &pending);
    if (f) fclose(f);
  }
  kill(r.pid, SIGINT);
  cli_wait(&r, CLI_LIMIT_S);
  EXPECT(r.code == 128 + SIGINT, "exit code %d, must be %d:\n%.2000s", r.code, 128 + SIGINT, r.text);
  cli_free(&r);
}

TEST(first_a_disk_that_is_full_at_the_start_is_said,
     "an OUT that takes no byte: one line that names the file, exit code 3 on every rank, no banner of MPI") {
  test_mpirun_patience(0);
  cli_need_mount_namespace();
  CliRun r;
  const char *dir = cli_path("mnt");
  for (int ranks : {0, 2}) for (bool tokens : {false, true}) {   // metrics.jsonl comes first: it tells whose OUT is
    char line[700];
    snprintf(line, sizeof line, "cannot write %s/metrics.jsonl: No space left on device", dir);
    CLI_RUN(&r, "unshare -m sh -c 'mount -t tmpfs -o size=64k tmpfs %s && (cat /dev/zero >%s/filled; exec %s %s %s "
            "--out %s --max_steps 2)'", dir, dir, cli_ranks(ranks), cli_small(), tokens ? "--data random" : "", dir);
    cli_expect_rejection(&r, tokens ? "of tokens" : "of text", 3, line);
    EXPECT(!strstr(r.text, "MPI_ABORT") && !strstr(r.text, "warning: "), "%d ranks: more than a line:\n%.3000s", ranks,
           r.text);
    cli_free(&r);
  }
  cli_expect_nothing_left("after the full disk");
}

TEST(first_not_finite_is_no_overflow, "a gradient that is not finite in fp32: no line says overflow or skipped") {
  CliRun r;
  CLI_RUN(&r, "%s %s --optimizer sgd --lr 1000 --clip 0 --epochs 4 --log_every 1 --out %s", cli_ranks(0), cli_small(),
          cli_path("out"));
  EXPECT(r.code == EXIT_NOT_FINITE && cli_count(r.text, "MiB  not finite") == 1, "exit code %d:\n%.3000s", r.code,
         r.text);
  EXPECT(!strstr(r.text, "overflow") && !strstr(r.text, "skipped"), "fp32 skips nothing:\n%.3000s", r.text);
  cli_free(&r);
}

// ---- what breaks unnoticed ------------------------------------------------------------------------------------------
// Nothing here is listed by hand: targets come from the Makefile's .PHONY, sources and scripts from the directories.
// These tests run in the repository's root, as `make test` does. The environment hides from make that another make runs
// it. What was built before changes no result: recipes are asked for with -B, as if nothing were built, and what names
// other tools has a build directory of its own.
static const char plain_make[] = "env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL -u T make";
static inline void first_need_repository() {
  if (access("Makefile", R_OK) || access("dev/fuzz.cc", R_OK)) SKIP("this is not the root of the repository");
}
// Words on stdout of a command, at most `most`, each once; their memory belongs to the CliRun.
static inline int first_words(CliRun *r, const char *command, char **word, int most) {
  int count = 0;
  char *save = NULL;
  CLI_RUN(r, "%s", command);
  for (char *w = strtok_r(r->text, " \t\n", &save); w && count < most; w = strtok_r(NULL, " \t\n", &save)) {
    bool known = false;
    for (int i = 0; i < count; i++) known = known || !strcmp(word[i], w);
    if (!known) word[count++] = w;
  }
  EXPECT(count > 0 && count < most, "%s: %d words", command, count);
  return count;
}

TEST(first_every_goal_of_make_works,
     "each target of the Makefile: named by make help, its recipe found and expanded; help, clean, setup with nothing "
     "missing, check-style: run") {
  first_need_repository();
  static char goals[2048], line[128];
  char *word[64];
  CliRun r, help;
  CLI_RUN(&help, "%s help", plain_make);
  cli_expect_done(&help, "make help");
  const int count = first_words(&r, "sed -n 's/^[.]PHONY: *//p' Makefile", word, 64);
  for (int i = 0; i < count; i++) {
    if (!strcmp(word[i], "FORCE")) continue;
    snprintf(goals + strlen(goals), sizeof goals - strlen(goals), " %s", word[i]);
    if (!strcmp(word[i], "all") || !strcmp(word[i], "help") || !strcmp(word[i], "check-symbols")) continue;
    snprintf(line, sizeof line, "make %s ", word[i]);
    EXPECT(cli_count(help.text, line) == 1, "make help does not say `make %s`", word[i]);
  }
  cli_free(&r);
  cli_free(&help);
  CLI_RUN(&r, "%s -nB %s", plain_make, goals);
  cli_expect_done(&r, goals);
  for (const char *recipe : {"-o build/bench_ops.o", "-o build/launch.o", "alone/LAUNCH/base/base.h"})
    EXPECT(strstr(r.text, recipe), "no recipe says %s", recipe);
  cli_free(&r);
  CLI_RUN(&r, "mkdir -p %s/build && cd %s && touch train_gpt_fsdp build/object && cp $OLDPWD/Makefile . && %s clean && "
          "[ ! -e build ] && [ ! -e train_gpt_fsdp ] && [ -e Makefile ]", cli_path("clean"), cli_path("clean"),
          plain_make);
  cli_expect_done(&r, "make clean");
  cli_free(&r);
  // No real package manager runs, whatever is missing here.
  CLI_RUN(&r, "mkdir %s && cd %s && for tool in apt-get dnf zypper pacman sudo; do printf '#!/bin/sh\nexit 1\n' "
          ">$tool; chmod +x $tool; done; cd $OLDPWD && PATH=%s:$PATH %s setup", cli_path("no_tools"),
          cli_path("no_tools"), cli_path("no_tools"), plain_make);
  EXPECT(cli_count(r.text, r.code ? "setup: missing: " : "setup: nothing to install: ") == 1,
         "make setup: exit code %d:\n%.2000s", r.code, r.text);
  cli_free(&r);
  CLI_RUN(&r, "git ls-files --error-unmatch Makefile >/dev/null 2>&1 || exit 0; %s check-style", plain_make);
  cli_expect_done(&r, "make check-style");
  cli_free(&r);
}

TEST(first_make_probes_once,
     "make asks the compiler what it finds once, and again when the compiler, mpirun, the environment or a variable "
     "changes; "
     "it asks nothing for a target that builds nothing; without a GPU, make train compiles no CUDA kernels, make "
     "does") {
  first_need_repository();
  CliRun r;
  char make[1024];
  CLI_RUN(&r, "cd %s && printf '#!/bin/sh\necho >>%s\nexec g++ \"$@\"\n' >cxx && chmod +x cxx", test_tmp(),
          cli_path("asked"));
  cli_expect_done(&r, "a compiler");
  cli_free(&r);
  snprintf(make, sizeof make, "%s -n B=%s/b CXX=%s/cxx", plain_make, test_tmp(), test_tmp());
  static const struct { const char *before, *goals; bool asks; } table[] = {
      {"", "CUDA=0 all", true}, {"", "CUDA=0 all", false}, {"", "CUDA=0 check", false}, {"", "help", false},
      {"CPATH=/none", "CUDA=0 all", true}, {"CPATH=/none", "CUDA=0 all", false},
      {"touch -d 2020-01-01 $TEST_TMP/cxx; CPATH=/none", "CUDA=0 HWLOC_HOME=/usr all", true},
      {"echo '#!/bin/sh' >$TEST_TMP/run; chmod +x $TEST_TMP/run;", "CUDA=0 MPIRUN=$TEST_TMP/run all", true},
      {"", "CUDA=0 MPIRUN=$TEST_TMP/run all", false},
      {"echo >>$TEST_TMP/run;", "CUDA=0 MPIRUN=$TEST_TMP/run all", true}};
  for (const auto &k : table) {
    CLI_RUN(&r, "rm -f %s; %s %s %s >/dev/null; wc -l <%s 2>/dev/null || echo 0", cli_path("asked"), k.before, make,
            k.goals, cli_path("asked"));
    EXPECT((atoi(r.text) > 0) == k.asks, "%s make %s: the compiler was asked %.200s times", k.before, k.goals, r.text);
    cli_free(&r);
  }
  CLI_RUN(&r, "ls /dev/nvidia[0-9]* /dev/nvhost-gpu /dev/dxg 2>/dev/null && exit 77; %s all | grep -q 'nvcc ' || "
          "exit 77; ! %s train | grep 'nvcc '", make, make);
  if (r.code == 77) fprintf(stderr, "a GPU is here, or no nvcc: which kernels are compiled was not asked\n");
  else cli_expect_done(&r, "make train without a GPU");
  cli_free(&r);
}

TEST(first_a_gpu_that_is_not_used_is_said,
     "a machine with a GPU's device file on which a run takes the CPU: its start says why, once; a machine without, or "
     "--device cpu, says nothing") {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (driver) SKIP("a driver is here");
  CliRun r;
  static const struct { const char *file; int ranks; const char *ask; bool says; } table[] = {
      {"nvidia3", 0, "", true}, {"nvidia0", 2, "", true}, {"dxg", 0, "", true}, {"nvidiactl", 0, "", false},
      {"nvidia0", 0, "--device cpu", false}};
  for (const auto &k : table) {
    CLI_RUN(&r, "dev=%s/%s.dev; mkdir -p $dev && touch $dev/%s && TRAIN_GPT_FSDP_DEV=$dev %s %s --max_steps 1 "
            "%s --out %s", test_tmp(), k.file, k.file, cli_ranks(k.ranks), cli_small(), k.ask, cli_path("out"));
    cli_expect_done(&r, k.file);
    EXPECT(cli_count(r.text, "warning: --device auto takes the CPU because of rank 0: ") == k.says &&
               cli_count(r.text, &ops_cuda ? "no NVIDIA driver" : "this build has no CUDA kernels (") == k.says,
           "%s %s:\n%.2000s", k.file, k.ask, r.text);
    cli_free(&r);
  }
}

static const char hides_nccl[] =
    "#!/bin/sh\nfor last; do :; done\ntext=$2\nif [ \"$last\" = - ]; then cat >$0.in.cc; text=$0.in.cc; fi\n"
    "case \"$*\" in *py/nvidia/nccl/include*) ;; *) if grep -qs nccl.h $text; then exit 1; fi ;; esac\n"
    "if [ \"$last\" = - ]; then exec g++ -x c++ -fsyntax-only $text; fi\nexec g++ \"$@\"\n";
TEST(first_nccl_of_pip_is_found,
     "make finds nccl.h of pip's nvidia-nccl where no compiler does, and looks again when it is gone; what was missing "
     "goes into the program; dev/setup.sh names it where a GPU is here") {
  first_need_repository();
  CliRun r;
  // A compiler that does not know NCCL, wherever it is here.
  cli_write(cli_path("cxx"), hides_nccl, sizeof hides_nccl - 1);
  CLI_RUN(&r, "cd %s && chmod +x cxx && mkdir -p cu/bin cu/include/nvtx3 cu/lib64 py/nvidia/nccl/include dev && "
          "touch dev/nvidia0 cu/include/cublasLt.h cu/include/nvtx3/nvToolsExt.h py/nvidia/nccl/include/nccl.h && "
          "echo 'extern \"C\" int cudaRuntimeGetVersion(int);' >cu/include/cuda_runtime.h && "
          "echo 'extern \"C\" int cudaRuntimeGetVersion(int) { return 0; }' | g++ -x c++ -c - -o cu/a.o && "
          "ar rc cu/lib64/libcudart_static.a cu/a.o && printf '#!/bin/sh\necho compute_90\n' >cu/bin/nvcc && "
          "chmod +x cu/bin/nvcc", test_tmp());
  cli_expect_done(&r, "a toolkit");
  cli_free(&r);
  char find[1024];
  snprintf(find, sizeof find, "PYTHONPATH=%s/py dev/configure.sh %s/f.mk CXX=%s/cxx MPICC=mpicc MPIRUN=mpirun "
           "CUDA_HOME=%s/cu CUDA_HOME_NAMED=1 PYTHON=python3 && cat %s/f.mk",
           test_tmp(), test_tmp(), test_tmp(), test_tmp(), test_tmp());
  for (const char *step : {"", "rm"}) {
    CLI_RUN(&r, "[ -z '%s' ] || rm %s/py/nvidia/nccl/include/nccl.h; %s", step, test_tmp(), find);
    cli_expect_done(&r, "dev/configure.sh");
    EXPECT(*step ? strstr(r.text, "\nNO_CUDA := nvcc was there, but not nccl.h\n") && strstr(r.text, "\nNCCL_AT := \n")
                 : strstr(r.text, "\nWITH_CUDA := yes\n") && strstr(r.text, "/py/nvidia/nccl\n"), "'%s': %.3000s", step,
           r.text);
    cli_free(&r);
  }
  CLI_RUN(&r, "TRAIN_GPT_FSDP_DEV=%s/dev CUDA_HOME=%s/cu PYTHONPATH=%s/py CXX=%s/cxx dev/setup.sh", test_tmp(),
          test_tmp(), test_tmp(), test_tmp());
  EXPECT(strstr(r.text, "setup: a GPU and nvcc are here, but no nccl.h"), "%.2000s", r.text);
  cli_free(&r);
}

TEST(first_another_machine_is_rejected, "a compiler for RISC-V or macOS: make and dev/setup.sh say so in one line") {
  first_need_repository();
  for (const char *target : {"riscv64-linux-gnu", "arm64-apple-darwin23.0"}) {
    CliRun r;
    char line[256];
    CLI_RUN(&r, "printf '#!/bin/sh\necho %s\n' >%s; chmod +x %s; for goal in all train test; do %s B=%s CXX=%s $goal; "
            "[ $? -eq 2 ] || echo not rejected; done; CXX=%s dev/setup.sh; [ $? -eq 1 ] || echo not rejected", target,
            cli_path("cxx"), cli_path("cxx"), plain_make, cli_path("b"), cli_path("cxx"), cli_path("cxx"));
    snprintf(line, sizeof line, "train_gpt_fsdp needs x86-64 with AVX2 or aarch64, and Linux; this is %s, by %s",
             target, cli_path("cxx"));
    EXPECT(cli_count(r.text, line) == 4 && cli_count(r.text, "") == 4, "not four lines:\n%.3000s", r.text);
    cli_free(&r);
  }
}

TEST(first_an_old_compiler_is_named,
     "dev/setup.sh with a compiler that does not know AMX: one line with its version and what is needed, exit code 1; "
     "nothing is installed in its place") {
  first_need_repository();
  CliRun r;
  char dir[600];
  snprintf(dir, sizeof dir, "%s", cli_path("tools"));
  CLI_RUN(&r, "mkdir %s && cd %s && printf '#!/bin/sh\ncase $1 in -dumpmachine) echo x86_64-linux-gnu ;; --version) "
          "echo \"g++ (Old) 9.4.0\"; echo Copyright ;; *) echo unrecognized option >&2; exit 1 ;; esac\n' >g++ && for "
          "tool in apt-get sudo; do printf '#!/bin/sh\necho $0 was asked\nexit 1\n' >$tool; done; chmod +x *; "
          "cd $OLDPWD; PATH=%s:$PATH CXX= dev/setup.sh", dir, dir, dir);
  EXPECT(r.code == 1 && !strcmp(r.text, "setup: g++ (Old) 9.4.0 does not know AMX: g++ 11 or later is needed, or "
                                "clang++ 12 or later, such as make CXX=clang++-13\n"),
         "exit code %d:\n%.2000s", r.code, r.text);
  cli_free(&r);
}

TEST(first_make_knows_its_goals_where_something_is_missing,
     "without a compiler every target of the Makefile that builds says what is missing; a target that there is not is "
     "told as such") {
  first_need_repository();
  char *word[64], goals[1024] = "";
  int builds = 0;
  CliRun r;
  const int count = first_words(&r, "sed -n 's/^[.]PHONY: *//p' Makefile", word, 64);
  static const char others[] = " train test test-all check help setup dist wheel clean check-style check-modules "
      "FORCE ";
  for (int i = 0; i < count; i++) {
    char name[64];
    snprintf(name, sizeof name, " %s ", word[i]);
    if (strstr(others, name)) continue;
    strcat(strcat(goals, " "), word[i]);
    builds++;
  }
  cli_free(&r);
  CLI_RUN(&r, "printf '#!/bin/sh\n[ $1 = -dumpmachine ] && echo x86_64-linux-gnu\n' >%s; chmod +x %s; %s -k CUDA=0 "
          "B=%s CXX=%s %s build/none", cli_path("cxx"), cli_path("cxx"), plain_make, cli_path("b"), cli_path("cxx"),
          goals);
  EXPECT(r.code == 2 && cli_count(r.text, "not found: a C++17 compiler") == builds + 1 &&
             !strstr(r.text, "No rule"), "%s: exit code %d:\n%.3000s", goals, r.code, r.text);
  cli_free(&r);
  CLI_RUN(&r, "%s CUDA=0 B=%s CXX=%s foo", plain_make, cli_path("b"), cli_path("cxx"));
  EXPECT(r.code == 2 && cli_count(r.text, "No rule to make target") == 1 && !strstr(r.text, "not found"),
         "foo: exit code %d:\n%.2000s", r.code, r.text);
  cli_free(&r);
}

TEST(first_every_script_is_read_by_its_shell,
     "each .sh and .py of data/, dev/ and .ci/: its language parses it; what README names exists; bench.sh, "
     "gpu_day.sh, two_hosts.sh, get_wikitext2.sh reject a wrong argument with exit code 2") {
  first_need_repository();
  CliRun r;
  CLI_RUN(&r, "for f in .ci/run data/*.sh dev/*.sh; do bash -n $f || exit 1; "
          "[ -x $f ] || { echo $f cannot be run; exit 1; }; done");
  cli_expect_done(&r, "bash -n");
  cli_free(&r);
  CLI_RUN(&r, "command -v python3 >/dev/null || exit 0; PYTHONPYCACHEPREFIX=%s python3 -m py_compile dev/*.py",
          cli_path("cache"));
  cli_expect_done(&r, "py_compile");
  cli_free(&r);
  CLI_RUN(&r, "for f in $(grep -hoE '\\b(dev|data|kernels)/[A-Za-z0-9_./-]+[.](sh|py|cc|cu|cuh|h|md)\\b' README.md "
          "Makefile | sort -u); do [ -e $f ] || { echo $f is named and not there; bad=1; }; done; exit ${bad:-0}");
  cli_expect_done(&r, "names of files");
  cli_free(&r);
  const char *const wrong[] = {"dev/bench.sh none", "dev/gpu_day.sh none", "dev/two_hosts.sh", "dev/prove.sh none",
                               "data/get_wikitext2.sh -x"};
  for (const char *command : wrong) {
    CLI_RUN(&r, "%s", command);
    EXPECT(r.code == 2 && cli_count(r.text, "") == 1, "%s: exit code %d:\n%.2000s", command, r.code, r.text);
    cli_free(&r);
  }
}

TEST(first_words_that_left_are_named,
     "dev/check_words.sh: a file with a phrase that left fails with its line and what to say; plain words pass") {
  first_need_repository();
  CliRun r;
  CLI_RUN(&r, "printf 'one\nthe order' >%s && printf ' of sums\n' >>%s && dev/check_words.sh %s", cli_path("left.h"),
          cli_path("left.h"), cli_path("left.h"));
  EXPECT(r.code == 1 && strstr(r.text, "left.h:2:the order of s" "ums: say \"summation order\"\n"),
         "exit code %d:\n%.900s", r.code, r.text);
  cli_free(&r);
  CLI_RUN(&r, "printf 'one\nthe order of the sums\n' >%s && dev/check_words.sh %s", cli_path("left.h"),
          cli_path("left.h"));
  cli_expect_done(&r, "dev/check_words.sh");
  cli_free(&r);
}

TEST(first_every_laboratory_source_compiles,
     "each .cc and .cu of dev/ with the flags that the Makefile compiles it with, except sanitizers; nvcc's files if "
     "there is nvcc") {
  first_need_repository();
  char *word[64];
  CliRun r, files;
  const int count = first_words(&files, "ls dev/*.cc dev/*.cu", word, 64);
  for (int i = 0; i < count; i++) {
    const char *name = strrchr(word[i], '/') + 1;
    const int stem = (int)strcspn(name, ".");
    CLI_RUN(&r, "line=$(%s -nB build/%.*s.o 2>/dev/null | sed -n \"s/.*'; \\(.*\\) -MMD -MP -c \\(.*\\) -o .*/"
            "\\1 -fsyntax-only \\2/p\" | sed 's/^clang++[^ ]*/g++/; s/ -f\\(no-\\)\\?sanitize[^ ]*//g; s/ -O[0-9]//'); "
            "case $line in *%s*) echo \"$line\"; eval \"$line\"; exit ;; esac; command -v nvcc >/dev/null || "
            "{ echo needs nvcc; exit 77; }; grep -q 'nvcc .*%s' %s && exec nvcc -std=c++17 -O0 -arch=sm_80 -I. -ptx "
            "-o /dev/null %s", plain_make, stem, name, word[i], word[i], word[i], word[i]);
    if (r.code == 77) fprintf(stderr, "%s is not compiled: no nvcc here\n", word[i]);
    else cli_expect_done(&r, word[i]);
    cli_free(&r);
  }
  cli_free(&files);
}

TEST(first_launch_files_keep_what_is_secret_and_saved,
     "both Kubernetes files let only the job's pods in and save to a claim that outlives them; no token is on a "
     "command line, or in the environment that srun hands on; no file names a host of packages") {
  first_need_repository();
  static const char check[] =
      "for f in dev/launch/kubernetes_*.yaml; do for kind in NetworkPolicy PersistentVolumeClaim; do "
      "grep -q \"^kind: $kind\" $f || echo $f has no $kind; done; "
      "[ $(grep -c 'matchLabels: {' $f) -ge 2 ] || echo $f selects no pods; "
      "grep -A 1 'name: out$' $f | grep -q 'persistentVolumeClaim: {claimName: train-out}' || "
      "echo $f saves into something else; grep -q -- '--out\\W* \\W*/out\\b' $f || echo $f saves elsewhere; done\n"
      "grep -n -e '--from-literal' -e 'export RDZV_TOKEN' -e 'name: RDZV_TOKEN' -r dev/launch docs README.md\n"
      "grep -q 'rdzv_token' dev/launch/slurm_rdzv.sbatch dev/launch/kubernetes_indexed_job.yaml || echo no token\n"
      "grep -rnE '[a-z]+[.](debian|ubuntu|pypi)[.](org|com)|pythonhosted' dev docs README.md Makefile .github "
      "--exclude-dir=test --exclude-dir=fixtures; true";
  CliRun r;
  CLI_RUN(&r, "%s", check);
  EXPECT(!r.text[0], "%.3000s", r.text);
  cli_free(&r);
}

TEST(first_packages_come_from_a_mirror,
     "dev/dist.sh takes Debian's packages and security updates from MIRROR=, else from the machine's own source of "
     "them; where there is none it asks for MIRROR= in one line, and without the security updates nothing is packed") {
  first_need_repository();
  static const struct { const char *own, *environment, *words, *sources; } table[] = {
      {"Ubuntu http://a.invalid/ubuntu/", "MIRROR=", "name a mirror of it, MIRROR=http://HOST/debian", ""},
      {"Debian http://a.invalid/debian-security/\nDebian http://a.invalid/debian/", "MIRROR=", "be read: MIRROR=",
       "http://a.invalid/debian bullseye main\nhttp://a.invalid/debian-security bullseye-security main\n"},
      {"Debian http://a.invalid/debian/", "MIRROR=http://b.invalid/x/debian/", "cannot be read: MIRROR=",
       "http://b.invalid/x/debian bullseye main\nhttp://b.invalid/x/debian-security bullseye-security main\n"},
      {"", "MIRROR=http://b.invalid/d MIRROR_SECURITY=http://c.invalid/s/", "cannot be read: MIRROR=",
       "http://b.invalid/d bullseye main\nhttp://c.invalid/s bullseye-security main\n"}};
  for (const auto &row : table) {
    if (row.sources[0] && access("/usr/share/keyrings/debian-archive-keyring.gpg", R_OK)) continue;
    CliRun r;
    const char *dir = cli_path("dist");
    CLI_RUN(&r, "rm -rf %s; mkdir -p %s/dev %s/bin %s/run/options; cp dev/dist.sh %s/dev; cp run/options/version.h "
            "%s/run/options; cd %s; for tool in dpkg make patchelf; do ln -s /bin/true bin/$tool; done; printf "
            "'#!/bin/sh\ncase $1 in indextargets) printf \"%s\\n\" ;; *) exit 100 ;; esac\n' >bin/apt-get; "
            "chmod +x bin/apt-get; PATH=$PWD/bin:$PATH %s dev/dist.sh archive; echo code $?; "
            "sed 's/.*gpg\\] //' build/dist/*.apt/etc/sources.list 2>/dev/null", dir, dir, dir, dir, dir, dir, dir,
            row.own, row.environment);
    EXPECT(strstr(r.text, row.words) && strstr(r.text, "code 3\n") && strstr(r.text, row.sources) &&
           cli_count(r.text, "") == (row.sources[0] ? 4 : 2), "%s, %s:\n%.2000s", row.own, row.environment, r.text);
    cli_free(&r);
  }
}

TEST(first_fuzzers_run_all,
     "make fuzz with clang++: built, its seeds are accepted, every target is given 3,000 inputs, the same each time") {
  first_need_repository();
  CliRun r;
  CLI_RUN(&r, "cd %s && echo 'extern \"C\" int LLVMFuzzerTestOneInput(const char *, unsigned long) { return 0; }' "
          ">p.cc && clang++ -fsanitize=fuzzer,address,undefined p.cc -o p", test_tmp());
  if (r.code) SKIP("no clang++ with libFuzzer and its sanitizers");
  cli_free(&r);
  cli_start(&r, "%s fuzz B=%s FUZZ_UNTIL='-runs=3000 -seed=1' FUZZ_SANITIZE=-fsanitize=fuzzer CXXFLAGS= 2>&1",
            plain_make, cli_path("build"));
  cli_wait(&r, 4 * CLI_LIMIT_S);
  cli_expect_done(&r, "make fuzz");
  EXPECT(cli_count(r.text, " edges, nothing found") >= 24, "not every target was run:\n%.3000s", r.text);
  cli_free(&r);
  CLI_RUN(&r, "mkdir %s && cd / && %s/fuzz/fuzz seeds %s", cli_path("seeds"), cli_path("build"), cli_path("seeds"));
  EXPECT(r.code == 1 && strstr(r.text, "has no seeds: run this in the root of the repository"), "in another directory: "
         "exit code %d:\n%.1000s", r.code, r.text);
  cli_free(&r);
}

TEST(first_prove_shows_equal_weights,
     "make prove: killed on 2 ranks and on 3, ended on 1, a run has the bits of one that was never stopped") {
  first_need_repository();
  CliRun r;
  cli_start(&r, "PROVE_STEPS=25 PYTHON=none OUT=%s TRAIN_GPT_FSDP=%s dev/prove.sh", cli_path("prove"), cli_program());
  cli_wait(&r, 4 * CLI_LIMIT_S);                 // four runs: minutes on a busy machine
  cli_expect_done(&r, "dev/prove.sh");
  EXPECT(cli_count(r.text, "  resumed from step_") == 2 && strstr(r.text, "\n  equal\n"), "it printed:\n%.3000s",
         r.text);
  cli_expect_nothing_left("after it");
  cli_free(&r);
}

TEST(first_compare_shows_every_mode,
     "dev/compare.py on 2 ranks: every mode trains and has a row, bytes counted are those planned, losses of modes "
     "with the same microbatches are equal to the last digit; report.html is there; wrong sizes get one line") {
  first_need_repository();
  CliRun r;
  CLI_RUN(&r, "command -v python3");
  const bool there = !r.code;
  cli_free(&r);
  if (!there) SKIP("no python3");
  const char *mpirun = getenv("MPIRUN") && *getenv("MPIRUN") ? getenv("MPIRUN") : "mpirun";
  CLI_RUN(&r, "TRAIN_GPT_FSDP=%s MPIRUN='%s --oversubscribe --bind-to none' python3 dev/compare.py --steps 3 "
          "--rounds 1 --out %s -- --device cpu --n_layer 2 --n_head 2 --n_embd 24 --seq_len 8 --n_positions 16 "
          "--vocab_size 290 --batch_size 4 --threads 1 --cache= --data %s", cli_program(), mpirun,
          cli_path("compare"), cli_text(60));
  cli_expect_done(&r, "dev/compare.py");
  static const char *const rows[] = {"\nno_shard (DDP) ", "\nzero1 ", "\nshard_grad_op (ZeRO-2) ",
                                     "\nfull_shard, one unit ", "\nfull_shard, by block ", "\nby block, recomputed ",
                                     "\nby block, two microbatches ", "\nby block, two, reduced once "};
  for (int i = 0; i < 8; i++) {
    const char *at = strstr(r.text, rows[i]);
    EXPECT(at, "no row of%s:\n%.3000s", rows[i] + 1, r.text);
    if (!at) continue;
    double ms, ratio, planned_mib, mib, planned, counted;
    const int n = sscanf(at + strlen(rows[i]), "%lf %lf %lf %lf %lf %lf", &ms, &ratio, &planned_mib, &mib, &planned,
                         &counted);
    EXPECT(n == 6 && ms > 0 && mib > 0 && planned_mib > 0 && planned > 0 && planned == counted, "%.200s", at + 1);
    const char *equal = strstr(at, "equal to the last digit"), *end = strchr(at + 1, '\n');
    EXPECT(i > 5 || (equal && equal < end), "losses differ: %.200s", at + 1);
  }
  EXPECT(!strstr(r.text, "NOT THE SAME"), "a mode's runs differ:\n%.3000s", r.text);
  EXPECT(!access(cli_path("compare/report.html"), R_OK), "no report.html");
  cli_free(&r);
  CLI_RUN(&r, "python3 dev/compare.py -- --batch_size 3");
  EXPECT(r.code && cli_count(r.text, "compare: --batch_size 3: two of the modes halve it, it must be an even") == 1,
         "exit code %d: %s", r.code, r.text);
  cli_free(&r);
}
