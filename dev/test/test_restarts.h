// test_restarts.h: --restarts K: who is watched, what is started again, and from where. Needs cli_helpers.h.
#pragma once

// ---- the watcher alone ----------------------------------------------------------------------------------------------
// What the run does in each of its starts: one letter each. k killed (SIGKILL), a aborted, t SIGTERM, l exit code 4,
// f exit code 1, u exit code 2, 0 done. saves: a letter for each too: y it tells of a checkpoint, r it dies between
// that one's name and telling, o it finds another run's, - none. The file has a line for each start: what --resume was.
static inline int restarts_watched(int64_t restarts, const char *does, const char *saves, const char *resume,
                                   char *said, size_t bytes) {
  const char *path = cli_path("starts");
  remove(path);
  fflush(NULL);
  const pid_t watcher = fork();
  if (!watcher) {
    const RestartsAsk ask = {restarts, resume, "out"};
    const int err = open(cli_path("err"), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    dup2(err, STDERR_FILENO);
    restart_first_pause_s = 0.01;
    if (restarts_supervise(&ask)) resume = "auto";
    FILE *f = fopen(path, "a+");
    int starts = 0;
    for (int c; (c = fgetc(f)) != EOF;) starts += c == '\n';
    fprintf(f, "%s\n", resume[0] ? resume : "-");
    fclose(f);
    restarts_step(10 * (starts + 1));
    char name[1200];
    snprintf(name, sizeof name, "%s/step_%08d", cli_path("ckpt"), 10 * starts + 5);
    if (saves[starts] == 'y') restarts_saved(10 * starts + 5);
    if (saves[starts] == 'r') restarts_ours(cli_path("ckpt"));
    if (saves[starts] == 'r' || saves[starts] == 'o') {
      mkdir(cli_path("ckpt"), 0777), mkdir(name, 0777), strcat(name, "/trainer.json");
      cli_write(name, "", 0);
    }
    const char now = does[starts];
    if (now == 'k') raise(SIGKILL);
    if (now == 'a') { signal(SIGABRT, SIG_DFL); abort(); }
    if (now == 't') { signal(SIGTERM, SIG_DFL); raise(SIGTERM); }
    _exit(now == 'l' ? EXIT_LOST : now == 'f' ? EXIT_FAULT : now == 'u' ? EXIT_USAGE : 0);
  }
  int status = 0;
  waitpid(watcher, &status, 0);
  int64_t n = 0, m = 0;
  char *starts = file_get(path, 1 << 16, &n), *err = file_get(cli_path("err"), 1 << 16, &m);
  snprintf(said, bytes, "%s|%s", starts ? starts : "", err ? err : "");
  free(starts);
  free(err);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
TEST(restarts_what_crashed,
     "the watcher starts a run again that a signal killed, or that ended with exit code 1 or 4, from its own "
     "checkpoint if it has one, told or not; not what was asked to end, or would come again; not more than K times, "
     "nor after three starts in a row without a new checkpoint; it ends with the run's code") {
  struct Case { int64_t restarts; const char *does, *saves, *resume; int code; const char *says; };
  static const Case table[] = {
      {3, "0", "y", "", 0, "-\n|"},
      {3, "k0", "yy", "", 0,
       "-\nauto\n|warning: the run was killed by signal 9 (Killed) after step 10; it starts again (1 of 3) from the "
       "checkpoint of step 5, 5 steps are done again\n"},
      {3, "k0", "--", "", 0,
       "-\n-\n|warning: the run was killed by signal 9 (Killed) after step 10; it starts again in 0 s (1 of 3) from "
       "step 0\n"},
      {3, "k0", "o-", "", 0,
       "-\n-\n|warning: the run was killed by signal 9 (Killed) after step 10; it starts again in 0 s (1 of 3) from "
       "step 0\n"},
      {3, "k0", "r-", "", 0,
       "-\nauto\n|warning: the run was killed by signal 9 (Killed) after step 10; it starts again (1 of 3) from the "
       "checkpoint of step 5, 5 steps are done again\n"},
      {3, "l0", "--", "some/ckpt", 0,
       "some/ckpt\nsome/ckpt\n|warning: the run ended with exit code 4 after step 10; it starts again in 0 s (1 of 3) "
       "from --resume some/ckpt\n"},
      {2, "fakk", "yyyy", "", 128 + SIGKILL, "-\nauto\nauto\n|warning: the run ended with exit code 1 after step 10; "},
      {9, "lllll", "-----", "", EXIT_LOST,
       "-\n-\n-\n|warning: the run ended with exit code 4 after step 10; it starts again in 0 s (1 of 9) from step "
       "0\nwarning: the run ended with exit code 4 after step 20; it starts again in 0 s (2 of 9) from step "
       "0\nwarning: the run ended with exit code 4 after step 30; it is not started again: 3 starts in a row "
       "reached no new checkpoint\n"},
      {9, "ffffffu", "--y--y-", "", EXIT_USAGE, ""},
      {3, "u", "y", "", EXIT_USAGE, "-\n|"},
      {3, "t", "y", "", 128 + SIGTERM, "-\n|"}};
  for (const auto &c : table) {
    char said[8192];
    CliRun r;
    CLI_RUN(&r, "rm -rf %s", cli_path("ckpt"));
    cli_free(&r);
    const int code = restarts_watched(c.restarts, c.does, c.saves, c.resume, said, sizeof said);
    EXPECT(code == c.code, "%s: exit code %d, must be %d: %s", c.does, code, c.code, said);
    const size_t n = strlen(c.says);
    EXPECT(!strncmp(said, c.says, n) && (!n || c.says[n - 1] == ' ' || !said[n]), "%s: it says\n%s\nmust be\n%s",
           c.does, said, c.says);
  }
}

TEST(restarts_count_steps_in_words, "steps that are done again, in words: none, one, several") {
  char a[64], b[64], c[64];
  steps_again(a, sizeof a, 0), steps_again(b, sizeof b, 1), steps_again(c, sizeof c, 16);
  EXPECT(!strcmp(a, "0 steps are done again") && !strcmp(b, "1 step is done again") &&
             !strcmp(c, "16 steps are done again"), "it says %s, %s, %s", a, b, c);
}

static inline void *restarts_crash(void *) {
  raise(SIGSEGV);
  return NULL;
}
TEST(restarts_an_agreed_end_is_no_crash,
     "ranks that leave with an error that was printed have its exit code, even if a thread crashes while MPI is given "
     "back") {
  fflush(NULL);
  const pid_t child = fork();
  if (!child) {
    pthread_t thread;
    leave_even_by_a_crash(EXIT_USAGE);
    pthread_create(&thread, NULL, restarts_crash, NULL);
    for (;;) pause();
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_USAGE, "it ended with status %x", status);
}

TEST(restarts_shared_memory_of_a_lost_job,
     "the number of a job of Open MPI 5 is found in the name of what its ranks have mapped; what Open MPI 4 and 5 "
     "leave of that job in /dev/shm is removed, and nothing else of these names") {
  const unsigned job = 0xe02b0000u | ((unsigned)getpid() & 0xffff), uid = (unsigned)getuid();
  char maps[1024], path[4][200];
  snprintf(maps, sizeof maps, "7f00-7f01 r-xp 0 08:01 5 /usr/lib/libmpi.so\n7f01-7f02 rw-s 0 00:19 9 "
           "/dev/shm/sm_segment.a.b.%u.%x.3\n", uid, job);
  cli_write(cli_path("maps"), maps, strlen(maps));
  const int64_t found = restarts_job(cli_path("maps"));
  EXPECT(found == (int64_t)job, "job %llx, must be %x", (unsigned long long)found, job);
  EXPECT(!restarts_job("/proc/self/status"), "a job where there is none");
  static const struct { const char *kind; unsigned more; bool left; } table[] = {
      {"sm", 0, false}, {"vader", 0, false}, {"sm", 1 << 16, true}, {"test", 0, true}};
  for (int i = 0; i < 4; i++) {
    snprintf(path[i], sizeof path[i], "/dev/shm/%s_segment.a.b.%u.%x.3", table[i].kind, uid, job + table[i].more);
    cli_write(path[i], "", 0);
  }
  rdzv_remove_segments(job);
  for (int i = 0; i < 4; i++) {
    EXPECT(!access(path[i], F_OK) == table[i].left, "%s is %s", path[i], table[i].left ? "removed" : "left");
    unlink(path[i]);
  }
}

// ---- a run ----------------------------------------------------------------------------------------------------------
TEST(restarts_end_with_the_same_bits,
     "a run that is killed twice, each time after a checkpoint, starts again and ends with the weights of one that was "
     "not; SIGUSR1 reaches it; under mpirun it is rejected with the loop to type") {
  CliRun r;
  char small[2048];
  // It prints into a pipe that is read up to a step and no further: it cannot come to its end before it is killed.
  static const char script[] =
      "cd %s && mkfifo pipe && PROGRAM='%s %s --max_steps 2400 --save_every 200 --eval_every -1 --sample_tokens 0 "
      "--save_model'\n"
      "$PROGRAM --out one >/dev/null || exit 9\n"
      "$PROGRAM --restarts 2 --log_every 1 --out two >pipe 2>err & RUN=$!\n"
      "exec 3<pipe\n"
      "until_line() { while read -r line <&3; do case \"$line\" in *\"$1\"*) break;; esac; done; }\n"
      "kill_run() { kill -9 $(cat /proc/$RUN/task/$RUN/children); }\n"
      "until_line 'step 450/'; kill_run\n"
      "until_line 'resumed from'; until_line 'checkpoint: '; kill_run\n"   // the pipe holds lines of the run before
      "cat <&3 >/dev/null; wait $RUN; echo \"code $?\"; cat err\n"
      "cmp one/model.safetensors two/model.safetensors && echo same";
  snprintf(small, sizeof small, "%s", cli_small());
  CLI_RUN(&r, script, test_tmp(), cli_program(), small);
  EXPECT(!r.code && strstr(r.text, "code 0\n") && strstr(r.text, "same\n"), "exit code %d:\n%.3000s", r.code, r.text);
  EXPECT(cli_count(r.text, "warning: the run was killed by signal 9 (Killed) after step ") == 2 &&
         strstr(r.text, "it starts again (2 of 2) from the checkpoint of step "), "it was not started twice:\n%.3000s",
         r.text);
  cli_free(&r);
  cli_start(&r, "exec %s %s --epochs 1000000 --eval_every -1 --restarts 3 --out %s", cli_program(), small,
            cli_path("usr1"));
  char metrics[600];
  struct stat st;
  snprintf(metrics, sizeof metrics, "%s/metrics.jsonl", cli_path("usr1"));
  for (double start = now_ms(); (stat(metrics, &st) || !st.st_size) && now_ms() - start < CLI_LIMIT_S * 1e3;)
    usleep(20000);
  kill(r.pid, SIGUSR1);
  cli_wait(&r, CLI_LIMIT_S);
  EXPECT(r.code == EXIT_SAVED, "exit code %d, must be %d:\n%.2000s", r.code, EXIT_SAVED, r.text);
  cli_free(&r);
  CLI_RUN(&r, "%s %s --restarts 2 --out %s", cli_ranks(2), small, cli_path("out"));
  cli_expect_rejection(&r, "--restarts under mpirun", 2, "--restarts 2: a launcher started these ranks, and it ends "
                     "when one is lost; let the shell start them again: for i in $(seq 3); do mpirun -np 2 "
                     "./train_gpt_fsdp ... --resume auto && break; done");
  cli_free(&r);
  cli_expect_nothing_left("after restarts");
}
