// test_restarts_hosts.h: --restarts K for ranks that rendezvous by --rdzv, on hosts that are network namespaces: ranks,
// daemons, mpirun and whole hosts are killed, and what continues has the bits of one rank that was never disturbed.
// Needs test_rdzv_hosts.h and test_restarts.h.
#pragma once

// ---- decisions ------------------------------------------------------------------------------------------------------
TEST(restarts_decide,
     "which exit codes are started again, on how many of the ranks that are left, and with which arguments; the rank "
     "that rank 0 names as dead is believed before the one that others do") {
  for (int code : {0, 2, 3, 5, 85, 129, 130, 131, 143})
    EXPECT(!restart_is_worth(code), "exit code %d is started again", code);
  for (int code : {1, 4, 134, 135, 137, 139, 205, 213, 255}) EXPECT(restart_is_worth(code), "%d is not", code);
  for (int code : {4, 134, 137, 139}) EXPECT(restart_blames_rank(code), "no rank's death ends with %d", code);
  for (int code : {1, 128, 205, 213}) EXPECT(!restart_blames_rank(code), "a rank's death ends with %d", code);
  static const struct { int64_t microbatches, left, ranks; } table[] = {
      {4, 4, 4}, {4, 3, 2}, {4, 1, 1}, {4, 9, 4}, {6, 5, 3}, {7, 6, 1}, {1024, 1023, 512}, {1, 8, 1}};
  for (const auto &t : table)
    EXPECT(restart_ranks(t.microbatches, t.left) == t.ranks, "%lld microbatches, %lld ranks left: %lld run",
           (long long)t.microbatches, (long long)t.left, (long long)restart_ranks(t.microbatches, t.left));
  char program[] = "p", option[] = "--grad_accum=1", *argv[] = {program, option}, *words[10], numbers[2][24];
  RdzvPlan q = {};
  EXPECT(restart_words(words, numbers, 2, argv, &q) == 2 && !words[2], "the first start has other arguments");
  q.resume = 1, q.sequences = 24, q.accum = 3;
  REQUIRE(restart_words(words, numbers, 2, argv, &q) == 8 && !words[8], "not eight words");
  static const char *const want[] = {"p", "--grad_accum=1", "--resume", "auto", "--global_batch", "24", "--grad_accum",
                                     "3"};
  for (int i = 0; i < 8; i++) EXPECT(!strcmp(words[i], want[i]), "word %d is %s", i, words[i]);
  static const struct { int said[3]; int64_t died; } deaths[] = {
      {{-1, -1, -1}, 0}, {{0, -1, -1}, 1}, {{0, 2, 0}, 3}, {{2, 0, 0}, 3}, {{0, 0, 0}, 1}, {{2, 3, 0}, 3}};
  for (const auto &d : deaths) {
    int64_t died = 0;
    for (int rank : d.said) rdzv_hear_died(&died, rank);
    EXPECT(died == d.died, "ranks %d, %d, %d: %lld", d.said[0], d.said[1], d.said[2], (long long)died);
  }
}

// A start of host 0 that is over: what its rank 0 has told is in `heard`. Returns whether there is another.
static inline bool restarts_host_goes_on(RestartState *a, RdzvHeard heard) {
  static RdzvWhere w;
  static RdzvInfo me;
  RdzvAsk ask = {};
  RdzvHost *h = (RdzvHost *)calloc(1, sizeof(RdzvHost));
  ask.out = cli_path("out");
  w.members = 1, w.ranks = 1;
  rdzv_host_open(h, &ask, &w, &me, NULL, 0);
  h->restart = a, h->planned = true, h->seats.heard = heard;
  rdzv_host_end(h, 1, "%s", "");
  const bool goes_on = rdzv_host_goes_on(h);
  rdzv_host_close(h);
  rdzv_host_remember(h);
  a->start++;
  free(h);
  return goes_on;
}
TEST(restarts_of_hosts_give_up,
     "host 0 ends a run after three starts in a row that reached no new checkpoint, and each waits longer than the one "
     "before; a checkpoint that has its name counts though rank 0 died before it told of it, but not another run's") {
  RestartState a = {};
  RdzvPlace place = {};
  RdzvHeard nothing = {}, ours = {};
  ours.ours = true;
  a.most = 100, a.place = &place;
  CliRun r;
  CLI_RUN(&r, "mkdir -p %s/ckpt/step_00000030 && touch %s/ckpt/step_00000030/trainer.json", cli_path("out"),
          cli_path("out"));
  cli_free(&r);
  EXPECT(restarts_host_goes_on(&a, nothing) && !a.heard.saved && a.fruitless == 1, "another run's: saved %lld",
         (long long)a.heard.saved);
  EXPECT(restarts_host_goes_on(&a, ours) && a.heard.saved == 31 && !a.fruitless, "one that was not told: saved %lld",
         (long long)a.heard.saved);
  for (int i = 1; i <= 3; i++)
    EXPECT(restarts_host_goes_on(&a, i == 2 ? nothing : ours) == (i < 3) && a.fruitless == i && a.heard.saved == 31,
           "start %d without a new checkpoint: %lld", i, (long long)a.fruitless);
  EXPECT(!restart_pause_s(0) && restart_pause_s(1) > 0 && restart_pause_s(2) > restart_pause_s(1),
         "they wait %g and %g s", restart_pause_s(1), restart_pause_s(2));
  static RdzvWhere w;
  static RdzvInfo me;
  static RdzvHost h;
  RdzvAsk ask = {};
  restart_first_pause_s = 0.2;
  w.members = w.ranks = 1;
  rdzv_host_open(&h, &ask, &w, &me, NULL, 0);
  a.fruitless = 1, h.restart = &a;
  const double begun = now_ms();
  EXPECT(rdzv_host_gather(&h) && now_ms() - begun >= 200, "host 0 does not wait before a start");
  rdzv_host_close(&h);
}

// ---- on hosts -------------------------------------------------------------------------------------------------------
// Runs have no end but the one that the test gives them, so nothing can be over before it is disturbed; learning rates
// do not depend on how many steps there are.
#define RESTARTS_RUN " --schedule constant --warmup 10 --sample_tokens 0 --eval_every -1 --save_every 50 --keep 0 "
// What the scripts of hosts use: $p the process, its child mpirun or Open MPI's daemon (5's has another one below it),
// the ranks below that, rank the first of them; saved STEP, starts NUMBER: wait until that checkpoint is there, or that
// start trains. The shell lets Ctrl-C through.
static inline const char *restarts_script(const char *out, const char *rdzv, const char *does) {
  static char text[4096];
  snprintf(text, sizeof text,
           "out=%s\nrun() { env --default-signal=INT $P" RESTARTS_RUN "--max_steps 1000000 --out $out %s & p=$!; }\n"
           "kids() { cat /proc/$1/task/*/children; }\n"
           "rank() { d=$(kids $p); while r=$(kids $d); r=${r%%%% *}; [ \"$(cat /proc/$r/comm)\" = prted ]; do d=$r; "
           "done; echo $r; }\n"
           "ended() { grep -q State:.Z /proc/$p/status; }\n"
           "wait_for() { while ! eval \"$1\" 2>/dev/null && ! ended; do sleep 0.05; done; }\n"
           "saved() { wait_for \"[ -e $out/ckpt/step_0000$1 ]\"; }\n"
           "starts() { wait_for \"[ \\$(grep -c '\\\"kind\\\":\\\"run\\\"' $out/metrics.jsonl) -ge $1 ]\"; }\n%s", out,
           rdzv, does);
  return text;
}
// Checkpoint `step` of the run in `out`, and the last loss that it has written of each step before, are one rank's.
static inline void restarts_expect_same(const char *what, const char *out, int step) {
  CliRun r;
  char *one = cli_series(cli_path("one")), *many = cli_series(out);
  int compared = 0;
  for (char *line = one, *end; (end = strchr(line, '\n')); line = end + 1) {
    char key[64];
    int at = 0;
    *end = 0;
    if (sscanf(line, "\"step\":%d", &at) != 1 || at > step) continue;
    snprintf(key, sizeof key, "\"step\":%d ", at);
    const char *last = NULL;
    for (const char *p = many; (p = strstr(p, key)); p++) if (p == many || p[-1] == '\n') last = p;
    REQUIRE(last && !strncmp(last, line, strlen(line)), "%s: one rank has\n%s\n, it has\n%.*s", what, line,
            last ? (int)strcspn(last, "\n") : 0, last ? last : "");
    compared++;
  }
  EXPECT(compared == step, "%s: %d losses were compared, must be %d", what, compared, step);
  free(one);
  free(many);
  CLI_RUN(&r, "for f in model.safetensors optim.safetensors; do cmp %s/ckpt/step_%08d/$f %s/ckpt/step_%08d/$f || "
          "exit 1; done", cli_path("one"), step, out, step);
  EXPECT(!r.code, "%s: checkpoint %d differs:\n%s", what, step, r.text);
  cli_free(&r);
}
static inline void restarts_reference(int steps) {
  CliRun r;
  CLI_RUN(&r, "%s %s --grad_accum 4" RESTARTS_RUN "--max_steps %d --out %s", cli_program(), cli_small(), steps,
          cli_path("one"));
  cli_expect_done(&r, "one rank");
  cli_free(&r);
}
static inline void restarts_expect_said(const CliRun *r, const char *what, std::initializer_list<const char *> parts) {
  for (const char *part : parts)
    REQUIRE(cli_count(r->text, part) == 1, "%s: not exactly one line says\n      %s\n; all it printed:\n%.9000s", what,
            part, r->text);
}

TEST_WAITS(restarts_with_the_ranks_left,
     "four ranks on two hosts, --restarts 2: one is killed, and two continue, since three do not divide four "
     "microbatches; mpirun is killed, and two continue again; once more, and all ends; losses and checkpoints are "
     "those of one rank; the flight records of the first loss are kept") {
  CliRun r;
  char out[512], lost[600];
  snprintf(out, sizeof out, "%s", cli_path("out"));
  restarts_reference(400);
  test_mpirun_patience(5);                       // rank 0 has time to say who died
  rdzv_run_hosts(&r, 2, "LEFT=1", restarts_script(out,
      "$TCP --nnodes 2 --node_rank $HOST --nproc_per_node 2 --restarts 2",
      "run\n[ $HOST = 0 ] && { starts 2; saved 0200; kill -9 $(kids $p); starts 3; saved 0400; kill -9 $(kids $p); }\n"
      "[ $HOST = 1 ] && { saved 0050; kill -9 $(rank); }\nwait $p"));
  EXPECT(strstr(r.text, "exit codes: 137 137\n") && !strstr(r.text, "left: "), "it ended otherwise:\n%.6000s", r.text);
  restarts_expect_said(&r, "killed", {
      "train_gpt_fsdp: rank 2 of node 1 (", ") died: its place is left out", "0:   ranks     4 on 2 hosts",
      "0: train_gpt_fsdp: the run ended with exit code 137 after step ",
      "it starts again (1 of 2) with 2 ranks (before 4) from the checkpoint of step ",
      "1: train_gpt_fsdp: the run ended with exit code 137; it starts again (1 of 2)",
      "0: train_gpt_fsdp: mpirun was killed by signal 9 after step ",
      "it starts again (2 of 2) with 2 ranks (before 2) from the checkpoint of step ",
      "0: train_gpt_fsdp: mpirun was killed by signal 9; it is not started again: --restarts 2"});
  EXPECT(cli_count(r.text, "0:   ranks     2 on 1 host,") == 2, "it did not continue with two ranks:\n%.6000s", r.text);
  cli_free(&r);
  restarts_expect_same("killed", out, 400);
  for (int rank = 0; rank < 4; rank++) {
    snprintf(lost, sizeof lost, "%.500s/lost-1/flight-%d.json", out, rank);
    EXPECT(!access(lost, F_OK) == (rank != 2), "%s is %sthere", lost, rank != 2 ? "not " : "");
  }
  cli_expect_nothing_left("after restarts");
}

TEST_WAITS(restarts_without_a_host,
     "a host's process is killed: the other host continues alone after --restart_wait, and one started in its place "
     "waits for the next start, which has all ranks again; file://, Open MPI's daemon killed: all come again, and "
     "Ctrl-C to any process ends all; host 0's process is killed: the other one ends with one line; a wrong option is "
     "not started again") {
  CliRun r;
  char out[3][512];
  for (int i = 0; i < 3; i++) snprintf(out[i], sizeof out[i], "%s/out%d", test_tmp(), i);
  restarts_reference(150);
  rdzv_run_hosts(&r, 2, "", restarts_script(out[0],
      "$TCP --nnodes 2 --node_rank $HOST --nproc_per_node 2 --restarts 2 --restart_wait 25",
      "run\n[ $HOST = 1 ] && { saved 0050; kill -9 $p; starts 2; run 2>$out.err; }\n"
      "[ $HOST = 0 ] && { starts 2; wait_for 'grep -q waits $out.err'; kill -9 $(kids $p); starts 3; saved 0150\n"
      "kill -INT $p; }\n"
      "wait $p"));
  EXPECT(strstr(r.text, "exit codes: 1 1\n"), "a lost host: it ended otherwise:\n%.6000s", r.text);
  restarts_expect_said(&r, "a lost host", {
      ") has ended or is out of reach: all ranks end",
      ") did not come again within 25 s (--restart_wait): it is left out",
      "it starts again (1 of 2) with 2 ranks (before 4) from the checkpoint of step ",
      ") came while the run continues: it waits for the next start",
      "it starts again (2 of 2) with 4 ranks (before 2) from the checkpoint of step "});
  cli_free(&r);
  restarts_expect_same("a lost host", out[0], 150);
  rdzv_run_hosts(&r, 2, "", restarts_script(out[1],
      "$FILE --nnodes 2 --node_rank $HOST --nproc_per_node 2 --restarts 3",
      "run\n[ $HOST = 1 ] && { saved 0050; kill -9 $(kids $p); starts 2; saved 0150; kill -INT $p; }\nwait $p"));
  EXPECT(strstr(r.text, "exit codes: 1 1\n"), "a lost daemon: it ended otherwise:\n%.6000s", r.text);
  restarts_expect_said(&r, "a lost daemon", {
      "it starts again (1 of 3) with 4 ranks (before 4) from the checkpoint of step "});
  EXPECT(cli_count(r.text, "0:   ranks     4 on 2 hosts") == 2 && cli_names(cli_path("shared"), "") == 0,
         "a lost daemon: it did not continue with four ranks, or has left files:\n%.6000s", r.text);
  cli_free(&r);
  restarts_expect_same("a lost daemon", out[1], 150);
  rdzv_run_hosts(&r, 2, "", restarts_script(out[2],
      "$TCP --nnodes 2 --node_rank $HOST --restarts 3", "run\n[ $HOST = 0 ] && { saved 0050; kill -9 $p; }\nwait $p"));
  EXPECT(strstr(r.text, "exit codes: 137 4\n") && cli_count(r.text, "1: train_gpt_fsdp: ") == 2 &&
         cli_count(r.text, "1: train_gpt_fsdp: host 0 on gph") == 1, "a lost host 0:\n%.6000s", r.text);
  cli_free(&r);
  CLI_RUN(&r, "%s %s --rdzv tcp://127.0.0.1:29400 --nproc_per_node 2 --restarts 3 --n_embd 25 --out %s", cli_program(),
          cli_small(), cli_path("wrong"));
  cli_expect_rejection(&r, "a wrong option", 2, "--n_head 2 does not divide --n_embd 25");
  cli_free(&r);
  CLI_RUN(&r, "%s %s --rdzv tcp://127.0.0.1:29400 --restart_wait 5 --out %s", cli_program(), cli_small(),
          cli_path("wrong"));
  cli_expect_rejection(&r, "--restart_wait alone", 2, "--restart_wait belongs to --restarts, on the command line");
  cli_free(&r);
  cli_expect_nothing_left("after restarts");
}

TEST_WAITS(restarts_by_env,
           "env:// with torchrun's variables, two processes on one machine, --restarts 1: a rank is killed, and the "
           "other one continues with the losses and checkpoints of one rank; both processes share its end") {
  CliRun r;
  char out[512];
  snprintf(out, sizeof out, "%s", cli_path("out"));
  restarts_reference(150);
  rdzv_run_hosts(&r, 1, "", restarts_script(out, "--grad_accum 2 --restarts 1",
      "export MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 RANK=1 LOCAL_RANK=1\nrun; q=$p\n"
      "export RANK=0 LOCAL_RANK=0\nrun\nsaved 0050; kill -9 $(kids $(kids $p) | cut -d ' ' -f 2); starts 2\n"
      "saved 0150; kill -INT $p; wait $p; a=$?; wait $q; echo codes $a $?"));
  restarts_expect_said(&r, "env://", {
      "0: codes 1 1\n", ") died: its place is left out",
      "it starts again (1 of 1) with 1 rank (before 2) from the checkpoint of step "});
  cli_free(&r);
  restarts_expect_same("env://", out, 150);
  cli_expect_nothing_left("after restarts by env://");
}
