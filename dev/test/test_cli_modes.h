// test_cli_modes.h: modes as a user runs them, on text: E4M3 weights train as well as bf16, and modes that only move
// data elsewhere print exactly the same losses.

// Mean training loss over the last `steps` steps of a run.
static inline double modes_last_losses(const char *out, int steps) {
  CliMetrics m;
  cli_metrics(&m, out);
  double sum = 0;
  int n = 0;
  for (int i = m.lines - 1; i >= 0 && n < steps; i--) {
    if (!cli_is_kind(m.line[i], "step")) continue;
    sum += cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(m.line[i], "loss"));
    n++;
  }
  cli_metrics_free(&m);
  EXPECT(n == steps, "%s: %d steps, %d are needed", out, n, steps);
  return n ? sum / n : NAN;
}

// The last 30 batches are the same in both runs, so their mean shows a difference of 1 % clearly: between seeds it
// varies by a quarter of that.
TEST(fp8_trains_tiny_as_well_as_bf16_all,
     "tiny on WikiText-2, 300 steps: --fp8 gather ends within 1 % of bf16's loss") {
  enum { STEPS = 300, LAST = 30 };
  const char *const modes[] = {"off", "gather"};
  CliRun r[2];
  double loss[2];
  char out[2][600];
  const char *common = "--device cpu --model tiny --param_dtype bf16 --reduce_dtype bf16 --threads 1 --eval_every -1 "
                       "--save_every -1 --sample_tokens 0 --batch_size 4 --global_batch 4";
  CLI_RUN(&r[0], "%s %s --max_steps 1 --cache %s --out %s", cli_ranks(0), common, cli_path("cache"), cli_path("first"));
  EXPECT(r[0].code == 0, "exit %d: %s", r[0].code, r[0].text);
  const bool generated = strstr(r[0].text, "generated sentences") != NULL;
  cli_free(&r[0]);
  if (generated) SKIP("no WikiText-2: WIKITEXT2_DIR names it, data/get_wikitext2.sh fetches it");
  for (int i = 0; i < 2; i++) {
    snprintf(out[i], sizeof out[i], "%s", cli_path(modes[i]));
    cli_start(&r[i], "%s %s --max_steps %d --fp8 %s --cache %s --out %s", cli_ranks(0), common, STEPS, modes[i],
              cli_path("cache"), out[i]);
  }
  for (int i = 0; i < 2; i++) {
    cli_wait(&r[i], 240);
    EXPECT(r[i].code == 0, "--fp8 %s: exit %d: %s", modes[i], r[i].code, r[i].text);
    cli_free(&r[i]);
    loss[i] = modes_last_losses(out[i], LAST);
  }
  EXPECT(loss[0] < 5.7, "bf16 learned nothing: %.4f", loss[0]);
  EXPECT(fabs(loss[1] / loss[0] - 1) <= 0.01, "bf16 %.4f, --fp8 gather %.4f: %+.2f %%", loss[0], loss[1],
         100 * (loss[1] / loss[0] - 1));
  EXPECT(loss[1] != loss[0], "--fp8 gather changed nothing");
}

TEST(modes_print_the_same_losses, "modes that only move data elsewhere change no digit of a run's losses on text") {
  static const struct { int ranks; const char *options; } modes[] = {
      {2, "--strategy zero2"},
      {2, "--strategy ddp --shard dim0"},
      {2, "--strategy zero1 --recompute block"},
      {2, "--wrap min_params:2000 --shm off"},
      {4, "--mesh 2x2 --recompute gelu"},
      {2, "--recompute block:1,mlp"},
      {4, "--reshard-after-forward 2 --gather-slots 1"},
      {4, "--reshard-after-forward 2 --gather-slots 1 --shm copy"}};
  CliRun r;
  char plain[600];
  snprintf(plain, sizeof plain, "%s", cli_path("plain"));
  const char *steps = "--global_batch 8 --max_steps 6 --eval_every 3 --save_every -1";
  CLI_RUN(&r, "%s %s %s --out %s", cli_ranks(0), cli_small(), steps, plain);
  cli_expect_done(&r, "one rank");
  cli_free(&r);
  for (const auto &m : modes) {
    char out[600];
    snprintf(out, sizeof out, "%s", cli_path("mode"));
    // zero1 first adds up the gradients: with one microbatch per rank that is the same sum.
    CLI_RUN(&r, "%s %s %s --verbose %s%s --out %s", cli_ranks(m.ranks), cli_small(), steps, m.options,
            strstr(m.options, "zero1") ? " --batch_size 2 --global_batch 4" : "", out);
    cli_expect_done(&r, m.options);
    EXPECT(strstr(r.text, "units: ") && strstr(r.text, "traffic of a step"), "%s: no unit table, no traffic:\n%s",
           m.options, r.text);
    cli_free(&r);
    if (strstr(m.options, "zero1")) {            // compared with a separate run
      char one[600];
      snprintf(one, sizeof one, "%s", cli_path("one"));
      CLI_RUN(&r, "%s %s %s --batch_size 2 --global_batch 4 --out %s", cli_ranks(0), cli_small(), steps, one);
      cli_free(&r);
      cli_expect_same_series(m.options, one, out, 6);
    } else cli_expect_same_series(m.options, plain, out, 6);
  }
}

TEST(modes_say_what_lies_in_place,
     "shards of one host are read zero-copy, and the run says so: no slots, no gather traffic; an option that then "
     "has no effect is reported; --shm copy and off gather") {
  if (cli_on_gpu()) SKIP("memory of the host");
  static const struct { int ranks; const char *options, *says, *warning; bool gathers; } modes[] = {
      {2, "", "; shards read zero-copy; gradients reduced every microbatch\n", NULL, false},
      {4, "--mesh 2x2 --shard dim0", "2 shards, cut by rows of each parameter; shards read zero-copy\n", NULL, false},
      {2, "--gather_slots 1", "; shards read zero-copy", "--gather_slots has no effect", false},
      {4, "--reshard_after_forward 2 --n_layer 3", "; shards read zero-copy\n",
       "--reshard_after_forward has no effect", false},
      {2, "--gather_slots 1 --shm copy", "1 of 2 blocks whole at once", NULL, true},
      {2, "--gather_slots 1 --shm off", "1 of 2 blocks whole at once", NULL, true},
      {2, "--strategy ddp", "parameters are whole on each rank", NULL, false}};
  CliRun r;
  for (const auto &m : modes) {
    CLI_RUN(&r, "%s %s --verbose --global_batch 8 --max_steps 1 --eval_every -1 --save_every -1 %s --out %s",
            cli_ranks(m.ranks), cli_small(), m.options, cli_path("in_place"));
    cli_expect_done(&r, m.options);
    EXPECT(strstr(r.text, m.says), "%s: it does not say %s:\n%.2000s", m.options, m.says, r.text);
    EXPECT(m.warning ? strstr(r.text, m.warning) != NULL : !strstr(r.text, "has no effect"), "%s:\n%.2000s", m.options,
           r.text);
    EXPECT(!strstr(r.text, "received by rank 0: 0 gathers 0.000 MB") == m.gathers &&
               !strstr(r.text, "gather slots, blocks") == !m.gathers,
           "%s: gathers, or slots for them:\n%.2000s", m.options, r.text);
    cli_free(&r);
  }
}

// ---- two hosts ------------------------------------------------------------------------------------------------------
TEST(two_hosts_print_the_same_losses_in_every_mesh,
     "4 ranks on two hosts: a replica per host, which hybrid_shard chooses automatically, four replicas, blocks kept "
     "by pairs, inter-node reduction chain: every loss equals one rank's") {
  static const struct { const char *options, *mesh; } meshes[] = {
      {"--strategy hybrid_shard", "2 replicas of 2 shards"},
      {"--mesh 4x1", "4 replicas of 1 shard"},
      {"--between_hosts chain", "gradients by an inter-node reduction chain"},
      {"--reshard_after_forward 2 --gather_slots 1", "1 replica of 4 shards"}};
  static const char steps[] = "--global_batch 8 --max_steps 4 --eval_every 2 --save_every -1";
  CliRun r;
  char options[4096];
  CLI_RUN(&r, "%s %s %s --out %s", cli_ranks(0), cli_small(), steps, cli_path("one"));
  cli_expect_done(&r, "one rank");
  cli_free(&r);
  for (const auto &m : meshes) {
    if (cli_on_gpu() && strstr(m.options, "chain")) continue;        // not over --comm mpi
    snprintf(options, sizeof options, "%s %s %s --verbose --out %s", cli_small(), steps, m.options, cli_path("hosts"));
    cli_on_two_hosts(&r, 2, "", options);
    EXPECT(strstr(r.text, m.mesh), "%s: it does not say %s:\n%.2000s", m.options, m.mesh, r.text);
    cli_expect_same_series(m.options, cli_path("one"), cli_path("hosts"), 4);
    cli_free(&r);
  }
  cli_expect_nothing_left("after the two hosts");
}

// With ranks placed host by host, the first replica is on the host that has OUT; placed in turn, half of it is.
TEST(two_hosts_save_and_resume_replicas,
     "replicas on two hosts, OUT on one of them: only the ranks of the first replica that do not see it stream; "
     "checkpoints equal one rank's, and the run resumes from them") {
  static const struct { const char *map, *options; int streaming; } rows[] = {
      {"slot", "--strategy hybrid_shard --save_async", 0}, {"node", "--mesh 2x2", 1}};
  const char *base = cli_reference();
  char dir[512], out[600], options[2600], streams[128];
  CliRun r;
  snprintf(dir, sizeof dir, "%s", cli_path("private"));
  snprintf(out, sizeof out, "%s/out", dir);
  mkdir(dir, 0777);
  for (const auto &row : rows) {
    setenv("OMPI_MCA_rmaps_base_mapping_policy", row.map, 1);
    snprintf(options, sizeof options, "%s %s --out %s", base, row.options, out);
    cli_on_two_hosts(&r, 2, dir, options);
    snprintf(streams, sizeof streams, "warning: %d ranks stream their part of checkpoints to rank 0", row.streaming);
    EXPECT(cli_count(r.text, "stream their part") == (row.streaming > 0) && (!row.streaming || strstr(r.text, streams)),
           "%s, by %s: %d ranks stream:\n%.3000s", row.options, row.map, row.streaming, r.text);
    cli_expect_reference(row.options, out, 3);
    cli_free(&r);
    CLI_RUN(&r, "cd %s/ckpt && rm -r step_00000009 step_00000012", out);
    cli_free(&r);
    snprintf(options, sizeof options, "%s %s --resume auto --out %s", base, row.options, out);
    cli_on_two_hosts(&r, 2, dir, options);
    EXPECT(cli_count(r.text, ", step 6, read in ") == 1, "it was not resumed from step 6:\n%.3000s", r.text);
    cli_expect_reference(row.options, out, 9);
    cli_free(&r);
    CLI_RUN(&r, "rm -r %s", out);
    cli_free(&r);
  }
  unsetenv("OMPI_MCA_rmaps_base_mapping_policy");
  cli_expect_nothing_left("after the two hosts");
}
