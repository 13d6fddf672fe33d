// test_batch_auto.h: --batch_size auto. Needs cli_helpers.h.
#pragma once

TEST_MPI(batch_size_auto_is_the_largest_that_fits, 2,
         "--batch_size auto is the largest divisor of a rank's part of --global_batch with which every rank's plan, to "
         "the byte what a run then plans, fits; the least over ranks; it changes nothing else") {
  static Corpus corpus;
  static Trainer t;
  static const char shape[] = "--n_layer 2 --n_head 2 --n_embd 48 --seq_len 32 --n_positions 32 --vocab_size 300 "
                              "--recompute none --global_batch 24";
  const int64_t sizes[] = {12, 6, 4, 3, 2, 1};
  Options o;
  size_t need[6];
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  test_corpus(&corpus, 300, 20000, 500);
  const Device device = device_of(cpu_tables[0].ops);
  for (int i = 0; i < 6; i++) {
    test_options(&o, 2, "%s --batch_size %lld", shape, (long long)sizes[i]);
    trainer_open(&t, &o, &corpus, MPI_COMM_WORLD, device, 1);
    unsigned long long all = memory_planned_total(&t.run.plan, MEMORY_ALL);
    MPI_Allreduce(MPI_IN_PLACE, &all, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
    need[i] = all;
    EXPECT(!i || need[i] < need[i - 1], "%lld sequences take %zu bytes, more take %zu", (long long)sizes[i], need[i],
           need[i - 1]);
    trainer_close(&t);
  }
  for (int i = 0; i < 6; i++)
    for (int less = 0; less < 3; less++) {       // 2: on rank 1 alone
      test_options(&o, 2, "%s --batch_size auto", shape);
      EXPECT(o.batch_auto, "auto is forgotten");
      trainer_choose_batch(&o, &corpus, device, 1, need[i] - (less == 1 || (less == 2 && rank == 1)),
                           MPI_COMM_WORLD);
      const int64_t want = less && i < 5 ? sizes[i + 1] : sizes[i];
      EXPECT(o.batch_size == want && o.test_batch_size == want && o.grad_accum == 12 / want && o.global_batch == 24,
             "%zu bytes, %d: %lld sequences, %lld microbatches, not %lld", need[i], less, (long long)o.batch_size,
             (long long)o.grad_accum, (long long)want);
    }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}

TEST_WAITS(cli_batch_size_auto,
     "--batch_size auto has the weights of the number that it takes, which is recorded; a resumed run keeps the "
     "checkpoint's; without --global_batch and where nothing is trained it is rejected") {
  CliRun r;
  static const char shape[] = "--data random --n_layer 1 --n_head 1 --n_embd 16 --seq_len 8 --vocab_size 32 "
                              "--threads 1 --schedule constant --warmup 0 --eval_every -1 --sample_tokens 0 "
                              "--report off --save_model";
  static const struct { const char *out, *options; } runs[] = {
      {"auto", "--batch_size auto --global_batch 12 --max_steps 4"},
      {"six", "--batch_size 6 --global_batch 12 --max_steps 4"},
      {"two", "--batch_size 2 --global_batch 12 --max_steps 2"},
      {"two", "--batch_size auto --global_batch 12 --max_steps 4 --resume"},
      {"whole", "--batch_size 2 --global_batch 12 --max_steps 4"}};
  char *model[5], path[600];
  int64_t n[5];
  for (int i = 0; i < 5; i++) {
    CLI_RUN(&r, "%s %s %s --out %s", cli_ranks(2), shape, runs[i].options, cli_path(runs[i].out));
    cli_expect_done(&r, runs[i].options);
    EXPECT(!strstr(r.text, "--batch_size auto is 6: a step's 12 sequences are 2 microbatches\n") == (i > 0) &&
               !strstr(r.text, "sums are by microbatch"), "%s:\n%.2000s", runs[i].options, r.text);
    cli_free(&r);
    snprintf(path, sizeof path, "%s/model.safetensors", cli_path(runs[i].out));
    model[i] = file_get(path, 1 << 24, &n[i]);
    REQUIRE(model[i], "no %s", path);
  }
  EXPECT(n[0] == n[1] && !memcmp(model[0], model[1], (size_t)n[0]), "auto has other weights than 6");
  EXPECT(n[3] == n[4] && !memcmp(model[3], model[4], (size_t)n[3]), "a resumed run has other weights");
  for (char *m : model) free(m);
  snprintf(path, sizeof path, "%s/options.txt", cli_path("auto"));
  char *options = file_get(path, 1 << 20, n);
  EXPECT(options && strstr(options, "batch_size = 6\n"), "options.txt:\n%s", options);
  free(options);
  static const struct { const char *options, *says; } rejected[] = {
      {"--batch_size auto", "--batch_size auto, or 0, needs --global_batch"},
      {"--batch_size auto --global_batch 12 --grad_accum 2", "leave --grad_accum out"},
      {"--batch_size auto --global_batch 13", "--global_batch 13 is not divisible by 2 ranks"},
      {"--batch_size auto --global_batch 12 --eval_only --resume", "--batch_size auto is of training"},
      {"--batch_size auto --global_batch 12 --plan", "--plan says which batches fit"}};
  for (const auto &x : rejected) {
    CLI_RUN(&r, "%s %s --out %s %s", cli_ranks(2), shape, cli_path(strstr(x.options, "--resume") ? "two" : "no"),
            x.options);
    EXPECT(r.code && strstr(r.text, x.says), "%s: %d\n%.1000s", x.options, r.code, r.text);
    cli_free(&r);
  }
}
