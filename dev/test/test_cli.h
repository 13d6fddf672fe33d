// test_cli.h: the program as its users run it, alone and under mpirun: what it rejects and with which line, what it
// writes, how it ends when it is stopped, killed, or out of disk, and that two hosts compute the same as one process.
// Helpers are those of cli_helpers.h.
#include <dlfcn.h>

// ---- bad input ------------------------------------------------------------------------------------------------------

TEST(cli_rejects_bad_options, "each wrong option: one clear line, once for all ranks, exit code 2 or 3, no rank left") {
  static const CliRejection table[] = {
      {0, "--batch_siz 4", 2, "unknown option --batch_siz: did you mean --batch_size? See --help"},
      {2, "--batch_siz 4", 2, "unknown option --batch_siz: did you mean --batch_size? See --help"},
      {0, "--test-batch 4", 2, "unknown option --test_batch: see --test_batch_size"},
      {0, "--quux 4", 2, "unknown option --quux: see --help"},
      {0, "lr 4", 2, "'lr' is not an option: did you mean --lr? See --help"},
      {2, "--lr", 2, "--lr needs a value"},
      {0, "--prompt --lr 1", 2, "--prompt needs a value (one that starts with -- goes after =)"},
      {2, "--lr 1001", 2, "--lr 1001 is out of range: 1e-20 to 1000"},
      {0, "--lr 1e999", 2, "--lr 1e999 is out of range: 1e-20 to 1000"},
      {0, "--batch-size=0", 2, "--batch_size auto, or 0, needs --global_batch, the sequences of a step: it decides "
       "into how many microbatches they are cut"},
      {0, "--seed 9223372036854775808", 2, "--seed 9223372036854775808 is out of range: 0 to 9223372036854775807"},
      {2, "--epochs many", 2, "--epochs needs a whole number, not 'many'"},
      {0, "--epochs 1.5", 2, "--epochs needs a whole number, not '1.5'"},
      {0, "--dropout nan", 2, "--dropout needs a number, not 'nan'"},
      {0, "--lr=", 2, "--lr needs a number, not ''"},
      {2, "--schedule cosin", 2, "--schedule 'cosin' is not known: choose one of cosine|linear|constant|step|wsd"},
      {0, "--save_model=maybe", 2, "--save_model is on or off, not 'maybe'"},
      {2, "--keep -1", 2, "--keep -1 is out of range: 0 to 1048576"},
      {0, "--keep_best=best", 2, "--keep_best is on or off, not 'best'"},
      {0, "--save_every x", 2, "--save_every needs a whole number, not 'x'"},
      {0, "--save_every -2", 2, "--save_every -2 is out of range: -1 or more"},
      {0, "--save_async=maybe", 2, "--save_async is on or off, not 'maybe'"},
      {2, "--out=", 2, "--out needs a path"},
      {2, "--resume=", 2, "--resume is empty, as a shell variable is that was not set: give its "
       "value, or leave the option out"},
      {0, "--wrap min_params:0x10", 2,
       "--wrap 'min_params:0x10' is not block, model or min_params:N with a whole number N of at least 1"},
      {0, "--seq_len 66000 --n_positions 66000 --n_head 4 --n_embd 4 --dropout 0.1", 2,
       "--dropout with --n_head 4 and --seq_len 66000: attention has more weights than random numbers; "
       "shorten the sequences, or leave --dropout out"},
      {0, "--init_from=", 2, "--init_from is empty, ..."},
      {0, "--export_hf=", 2, "--export_hf is empty, ..."},
      {2, "--eval_only", 2, "--eval_only needs weights: --resume CHECKPOINT or --init_from PATH"},
      {0, "--sample_only", 2, "--sample_only needs weights: --resume CHECKPOINT or --init_from PATH"},
      {0, "--n_head 5", 2, "--n_head 5 does not divide --n_embd 24"},
      {2, "--n_head 5", 2, "--n_head 5 does not divide --n_embd 24"},
      {0, "--seq_len 17", 2, "--seq_len 17 is longer than --n_positions 16"},
      {2, "--global_batch 6", 2, "--global_batch 6 is not divisible by batch_size 2 x 2 ranks"},
      {2, "--global_batch 8 --grad_accum 3", 2,
       "--global_batch 8 is not batch_size 2 x 2 ranks x grad_accum 3: leave --grad_accum out"},
      {2, "--gamma 0.5 --schedule cosine", 2, "--gamma belongs to --schedule step, not to cosine"},
      {0, "--keep_best --save_every -1", 2, "--keep_best keeps a checkpoint, and --save_every -1 saves none: ..."},
      {0, "--keep_best --eval_every -1", 2, "--keep_best keeps what validated best, and --eval_every -1 ..."},
      {2, "--no_cuda --device cuda", 2, "--no_cuda and --device cuda exclude each other"},
      {2, "--comm nccl --device cpu", 2, "--comm nccl needs --device cuda"},
      {0, "--graph on --device cpu", 2, "--graph on needs --device cuda: a CPU has nothing to capture"},
      {2, "--graph on --comm mpi", 2,
       "--graph on does not go with --comm mpi: the host waits for copies inside the step, which cannot be captured"},
      {0, "--tune --device cpu", 2, "--tune needs --device cuda"},
      {0, "--plans x --tune on --device cuda", 2,
       "--plans x has algorithms from --tune any: it does not go with --tune on"},
      {2, "--sm_margin 16 --device cpu", 2, "--sm_margin needs --device cuda; this run computes on the CPU"},
      {0, "--attention mma --device cpu", 2, "--attention needs --device cuda; this run computes on the CPU"},
      {0, "--sm_margin 1", 2, "--sm_margin 1: two kernels of NCCL run at once..."},
      {2, "--matmul_precision high --device cpu --isa avx2", 3,
       "--matmul_precision high: on a CPU it needs tiles (AMX); with avx2 the six bf16 multiplies that replace an "
       "fp32 one would take longer than that one; leave it out"},
      {0, "--matmul_precision high --device cpu --param_dtype bf16", 2,
       "--matmul_precision high: on a CPU it applies to fp32 matrix multiplies, and --buffer_dtype bf16 has none"},
      {2, "--reduce native --device cpu", 2, "--reduce native needs --comm nccl"},
      {2, "--comm self", 2, "--comm self is for one rank, there are 2"}};
  cli_expect_rejections(table, (int)(sizeof table / sizeof *table));
  const CliRejection no_cuda[] = {
      {2, "--device cuda", 2,
       "--device cuda: this build has no CUDA kernels (..."},
      {2, "--reduce native", 2, "--reduce native needs --device cuda; this run computes on the CPU: this build..."},
      {2, "--tune", 2, "--tune needs --device cuda; this run computes on the CPU: this build has no CUDA..."},
      {2, "--plans x", 2, "--plans needs --device cuda; this run computes on the CPU: this build has no CUDA..."}};
  const CliRejection no_driver[] = {
      {2, "--device cuda", 3, "--device cuda: no NVIDIA driver..."},
      {2, "--reduce native", 2, "--reduce native needs --device cuda; this run computes on the CPU: no NVIDIA..."},
      {2, "--tune", 2, "--tune needs --device cuda; this run computes on the CPU: no NVIDIA driver..."}};
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (!&ops_cuda) cli_expect_rejections(no_cuda, 3);
  else if (!driver) cli_expect_rejections(no_driver, 3);
  if (driver) dlclose(driver);
  char line[128], options[64];
  const int best = cpu_best_table();
  snprintf(line, sizeof line, "--isa amx: the best this CPU has is %s", cpu_tables[best].name);
  snprintf(options, sizeof options, "--isa amx --device cpu");
  const CliRejection isa = {2, options, 3, line};
  if (best < PROCESSOR_ISAS - 1) cli_expect_rejections(&isa, 1);
  const bool arm = !strcmp(PROCESSOR_NAME, "aarch64");             // the plainest table of the other processor
  snprintf(line, sizeof line, "--isa %s: the best this CPU has is %s", arm ? "avx2" : "neon", cpu_tables[best].name);
  snprintf(options, sizeof options, "--isa %s --device cpu", arm ? "avx2" : "neon");
  cli_expect_rejections(&isa, 1);
}

// ---- modes that cannot work

TEST(cli_rejects_modes,
     "wrong modes, from the program: one line for all ranks, exit code 2; legal ones at the edge run") {
  const CliRejection table[] = {
      {4, "--mesh 0x2", 2, "--mesh '0x2' is not RxS: R replicas of S shards, like 2x4"},
      {2, "--freeze 'zzz, wte'", 2,
       "--freeze zzz matches no parameter; names are like wte.weight, h.0.attn.c_attn.bias, ln_f.weight"},
      {0, "--strategy hybrid-shar", 2, "--strategy 'hybrid-shar' is not known: choose one of full_shard|"
       "shard_grad_op|hybrid_shard|no_shard|zero3|zero2|zero1|ddp"}};
  cli_expect_rejections(table, (int)(sizeof table / sizeof *table));
  const CliRejection on_cpu[] = {{2, "--offload params", 2, "--offload params needs --device cuda; this run computes "
                                "on the CPU: ..."},
                               {0, "--fp8 matmul --param_dtype bf16 --n_embd 32", 2,
                                "--fp8 matmul needs --device cuda; this run computes on the CPU: ..."}};
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (!driver && !getenv("DEVICE")) cli_expect_rejections(on_cpu, 2);
  if (driver) dlclose(driver);
  static const struct { int ranks; const char *options, *says; } legal[] = {
      {0, "--strategy hybrid_shard --wrap min_params:1e9", "units: 1, "},
      {2, "--freeze 'wte, h.0.*' --gather-slots 9", "\n  h.0 "},
      {2, "--strategy zero1 --grad_accum 2", "warning: --strategy zero1 adds a rank's 2 microbatches before"}};
  for (const auto &row : legal) {
    CliRun r;
    CLI_RUN(&r, "%s %s --verbose --max_steps 1 --eval_every -1 --save_every -1 --out %s %s", cli_ranks(row.ranks),
            cli_small(), cli_path("out"), row.options);
    cli_expect_done(&r, row.options);
    EXPECT(strstr(r.text, row.says), "%s: nothing says '%s':\n%.3000s", row.options, row.says, r.text);
    cli_free(&r);
  }
}

TEST(cli_unit_table_is_short, "48 equal blocks are one line of the unit table, differing blocks have separate lines") {
  CliRun r;
  CLI_RUN(&r, "%s %s --verbose --n_layer 48 --freeze 'h.0.*,h.1.*,h.5.mlp.*' --max_steps 1 --eval_every -1 "
          "--save_every -1 --out %s", cli_ranks(0), cli_small(), cli_path("out"));
  cli_expect_done(&r, "48 blocks");
  for (const char *line : {"units: 49, ", "  root  ", "  h.0 .. h.1  ", "  h.2 .. h.4  ", "  h.5  ", "  h.6 .. h.47  "})
    EXPECT(cli_count(r.text, line) == 1, "%d lines say '%s':\n%.3000s", cli_count(r.text, line), line, r.text);
  EXPECT(cli_count(r.text, "  h.") == 4, "other lines of blocks:\n%.3000s", r.text);
  cli_free(&r);
}

// The same for --data TEST_TMP/`name` and more options. Every %s of `line` is TEST_TMP/name.
static inline void cli_expect_bad_data(const char *name, const char *more, int code, const char *line) {
  char options[1024], whole[2048], path[512];
  snprintf(path, sizeof path, "%s", cli_path(name));
  snprintf(options, sizeof options, "--data %s %s", path, more);
  size_t n = 0;
  for (; *line && n < sizeof whole - 1; line++) {
    if (strncmp(line, "%s", 2)) { whole[n++] = *line; continue; }
    n += (size_t)snprintf(whole + n, sizeof whole - n, "%s", path);
    line++;
  }
  whole[n] = 0;
  const CliRejection rejection = {2, options, code, whole};
  cli_expect_rejections(&rejection, 1);
}

TEST(cli_rejects_bad_data, "missing, empty, cut, foreign or short corpora: one clear line, exit code 2 or 3") {
  CliRun r;
  cli_text(60);
  CLI_RUN(&r, "cd %s && cp -r text empty && : > empty/train.txt && cp -r text partial && rm partial/train.txt",
          test_tmp());
  cli_expect_done(&r, "copies of the text");
  cli_free(&r);
  cli_expect_bad_data("none", "", 3,
                      "--data %s: No such file or directory; give a directory with train.txt, valid.txt and test.txt, "
                      "a text file, conversations in a .jsonl, a table .parquet, a token FILE.bin, random, or "
                      "generated");
  cli_expect_bad_data("empty", "", 3, "%s/train.txt is empty: it was cut short or never written; fetch it again");
  cli_expect_bad_data("partial", "", 3, "--data %s has no train.txt (or wiki.train.tokens), but valid.txt: ...");
  cli_token_file(cli_path("x_val.bin"), 500, 290, 0);
  cli_token_file(cli_path("x_train.bin"), 2000, 290, 1024 + 3000);
  cli_expect_bad_data("x_train.bin", "", 3,
                      "%s is cut short: its header counts 2000 GPT-2 tokens of 2 bytes, so the file should have 5024 "
                      "bytes, but it has 4024; copy or write it again");
  cli_token_file(cli_path("x_train.bin"), 2000, 500, 0);
  cli_expect_bad_data("x_train.bin", "", 2,
                      "%s: token 42 is 294, not below --vocab_size 290: the file has another vocabulary; its largest "
                      "token is 499, so --vocab_size must be at least 500 (GPT-2's is 50257)");
  cli_token_file(cli_path("x_train.bin"), 80, 290, 0);
  cli_expect_bad_data("x_train.bin", "--batch_size 5", 2,
                      "the corpus is shorter than one global batch: its 80 training tokens make 9 samples of --seq_len "
                      "8, and a step takes 10 (2 microbatches of --batch_size 5): use a larger corpus, or a smaller "
                      "--seq_len, --batch_size, --global_batch or number of ranks");
  cli_token_file(cli_path("x_train.bin"), 2000, 290, 0);
  cli_expect_bad_data("x_train.bin", "--prompt hello", 2,
                      "--prompt needs text to train a tokenizer on; --data %s holds tokens");
}

TEST(cli_rejects_an_out_it_cannot_write,
     "--out that cannot be made or written: one line, exit code 3, before any training") {
  char line[1024], options[700];
  cli_write(cli_path("file"), "x", 1);
  snprintf(options, sizeof options, "--out %s", cli_path("file"));
  snprintf(line, sizeof line, "--out %s cannot be written: Not a directory", cli_path("file"));
  const CliRejection file = {2, options, 3, line};
  cli_expect_rejections(&file, 1);
  snprintf(options, sizeof options, "--out %s/deeper", cli_path("file"));
  snprintf(line, sizeof line, "--out %s/deeper cannot be made: Not a directory", cli_path("file"));
  const CliRejection below = {2, options, 3, line};
  cli_expect_rejections(&below, 1);
}

TEST(cli_rejects_a_plan_beyond_memory,
     "a memory plan that the host cannot hold: one line, exit code 3, nothing allocated") {
  test_mpirun_patience(0);
  CliRun r;
  CLI_RUN(&r, "%s --model gpt2-xl --batch_size 1024 --data random --out %s", cli_ranks(2), cli_path("out"));
  const bool gpu = strstr(r.text, "this GPU's") != NULL;
  cli_expect_rejection(&r, "gpt2-xl, batch 1024", 3, gpu ? "the memory plan of this GPU's 2 ranks is ..."
                                                       : "the memory plan of this host's 2 ranks is ...");
  EXPECT(strstr(r.text, gpu ? "GiB are free: lower --batch_size or --seq_len, choose --recompute block"
                            : "GiB are available: lower --batch_size or --seq_len, choose --recompute block"),
         "no advice:\n%.2000s", r.text);
  cli_free(&r);
  cli_expect_nothing_left("after the rejection");
}

TEST(cli_rejects_windows_that_cannot_be,
     "windows that OpenMPI is configured not to make, or to make nowhere: one line, exit code 3") {
  CliRun r;
  char line[512];
  snprintf(line, sizeof line, "%s, where shared-memory windows would be: No such file or directory; make it, or ...",
           cli_path("nowhere"));
  setenv("OMPI_MCA_osc_sm_backing_directory", cli_path("nowhere"), 1);
  CLI_RUN(&r, "%s %s --out %s", cli_ranks(2), cli_small(), cli_path("out"));
  unsetenv("OMPI_MCA_osc_sm_backing_directory");
  cli_expect_rejection(&r, "no directory for windows", 3, line);
  cli_free(&r);
  setenv("OMPI_MCA_osc", "^sm", 1);
  CLI_RUN(&r, "%s %s --out %s", cli_ranks(2), cli_small(), cli_path("out"));
  unsetenv("OMPI_MCA_osc");
  EXPECT(r.code == 3 && strstr(r.text, "OpenMPI cannot make this rank's shared-memory window of "),
         "no windows: exit code %d\n%.2000s", r.code, r.text);
  cli_free(&r);
  cli_expect_nothing_left("after the rejections");
}

TEST(cli_cores_under_a_shell, "a shell between mpirun and the program changes neither threads nor warnings") {
  for (int ranks = 1; ranks <= 2; ranks++) {
    CliRun plain, shell;
    const char *mpirun = getenv("MPIRUN") && *getenv("MPIRUN") ? getenv("MPIRUN") : "mpirun";
    CLI_RUN(&plain, "%s --oversubscribe -np %d %s %s --threads 0 --max_steps 1 --out %s", mpirun, ranks, cli_program(),
            cli_small(), cli_path("out"));
    CLI_RUN(&shell, "%s --oversubscribe -np %d sh -c '%s %s --threads 0 --max_steps 1 --out %s; exit $?'", mpirun,
            ranks, cli_program(), cli_small(), cli_path("out2"));
    const char *at[] = {strstr(plain.text, " on 1 host, "), strstr(shell.text, " on 1 host, ")};
    EXPECT(at[0] && at[1] && !strncmp(at[0], at[1], 24), "%d ranks: %.24s, under a shell %.24s", ranks,
           at[0] ? at[0] : "?", at[1] ? at[1] : "?");
    EXPECT(cli_count(plain.text, "outnumber cores") == cli_count(shell.text, "outnumber cores"), "%d ranks: warnings",
           ranks);
    cli_free(&plain);
    cli_free(&shell);
  }
}

TEST(cli_rejects_windows_beyond_dev_shm,
     "shared-memory windows that /dev/shm cannot hold: one line, exit code 3; --shm off, as it advises, then works") {
  test_mpirun_patience(0);
  cli_need_mount_namespace();
  const char *larger = "--n_embd 512 --max_steps 1 --sample_tokens 0 --test_batch_size 16";
  CliRun r;
  CLI_RUN(&r, "unshare -m sh -c 'mount -t tmpfs -o size=12m tmpfs /dev/shm && exec %s %s --out %s %s'", cli_ranks(2),
          cli_small(), cli_path("out"), larger);
  cli_expect_rejection(&r, "/dev/shm of 12 MiB", 3, "shared-memory windows of this host's 2 ranks need ...");
  EXPECT(strstr(r.text, "or run with --shm off"), "no advice:\n%.2000s", r.text);
  cli_free(&r);
  cli_expect_nothing_left("after the rejection");
  CLI_RUN(&r, "unshare -m sh -c 'mount -t tmpfs -o size=12m tmpfs /dev/shm && exec %s %s --out %s %s --shm off'",
          cli_ranks(2), cli_small(), cli_path("out"), larger);
  cli_expect_done(&r, "/dev/shm of 12 MiB, --shm off");
  cli_free(&r);
}

TEST(cli_slots_are_shared_where_windows_hold,
     "a /dev/shm with no room for what shares memory with gradient slots, but for all else: the slots get separate "
     "memory, losses are the same") {
  cli_need_mount_namespace();
  const char *options = "--model tiny --device cpu --data random --vocab_size 3000 --max_steps 3 --sample_tokens 0 "
                        "--eval_every -1 --save_every -1 --log_every 1 --verbose";
  CliRun lent, apart;
  CLI_RUN(&lent, "%s %s --out %s", cli_ranks(2), options, cli_path("out"));
  CLI_RUN(&apart, "unshare -m sh -c 'mount -t tmpfs -o size=16m tmpfs /dev/shm && exec %s %s --out %s'", cli_ranks(2),
          options, cli_path("out2"));
  cli_expect_done(&lent, "/dev/shm as it is");
  cli_expect_done(&apart, "/dev/shm of 16 MiB");
  EXPECT(strstr(lent.text, "gradient slots, or activations, shared") &&
         !strstr(lent.text, "gradient slots, blocks, shared"), "slots are not shared:\n%.3000s", lent.text);
  EXPECT(strstr(apart.text, "gradient slots, blocks, shared") && !strstr(apart.text, "gradient slots, or"),
         "slots are not apart:\n%.3000s", apart.text);
  const char *a = strstr(lent.text, "step 3/3  loss "), *b = strstr(apart.text, "step 3/3  loss ");
  EXPECT(a && b && !strncmp(a, b, 22), "losses differ: %.22s, %.22s", a ? a : "none", b ? b : "none");
  cli_free(&lent);
  cli_free(&apart);
}

TEST(cli_names_the_rank_that_differs,
     "ranks started with different options: the rank and the option are named, once, exit code 2") {
  static const struct { const char *first, *second, *line; } table[] = {
      {"--lr 1", "--lr 2", "rank 1 of 2 on "},
      {"--vocab_size 280", "--vocab_size 290",
       "this rank differs from rank 0: '--vocab_size 290' here, '--vocab_size 280' there"},
      {"--lr 1", "--lr 2", "this rank differs from rank 0: '--lr 2' here, '--lr 1' there"},
      {"", "--save_model", "this rank differs from rank 0: '--save_model on' here, '--save_model off' there"},
      {"", "--lrr 2", "unknown option --lrr: did you mean --lr? See --help"},
      {"", "--config x", "this rank differs from rank 0: '--config x' here, '--config ' there"},
      {"", "--eval_only", "rank 1 of 2 on "},
      {"", "--eval_only", "--eval_only needs weights: --resume CHECKPOINT or --init_from PATH"}};
  test_mpirun_patience(0);
  for (const auto &row : table) {
    CliRun r;
    char options[2600];
    snprintf(options, sizeof options, "%s --out %s", cli_small(), cli_path("out"));
    CLI_RUN(&r, "%s %s %s : -np 1 %s %s %s", cli_ranks(1), options, row.first, cli_program(), options, row.second);
    EXPECT(r.code == 2, "%s : %s: exit code %d, must be 2", row.first, row.second, r.code);
    EXPECT(cli_count(r.text, row.line) == 1, "%s : %s: not exactly one line says\n      %s\n%.2000s", row.first,
           row.second, row.line, r.text);
    EXPECT(cli_count(r.text, "rank 0 of 2") == 0, "%s : %s: rank 0 speaks too:\n%.2000s", row.first, row.second,
           r.text);
    cli_free(&r);
  }
  cli_expect_nothing_left("after the rejections");
}

// ---- ends -----------------------------------------------------------------------------------------------------------

TEST_WAITS(cli_a_dead_rank_ends_the_others,
     "a rank that is killed in a step: the others end within seconds, the rank is named, no process is left") {
  static const struct { int killed; const char *options, *says; } table[] = {
      {1, "", "rank 1"}, {0, "", "rank 0"}, {2, "--shm off", "rank 2"}, {1, "--reduce_dtype bf16", "rank 1"}};
  for (const auto &row : table) {
    CliRun r;
    const char *out = cli_path("out");
    if (!cli_start_endless(&r, out, 3, row.options)) return;
    const int pid = cli_find_process(row.killed, false);
    REQUIRE(pid > 0, "rank %d is not found among the processes", row.killed);
    kill(pid, SIGKILL);
    r.since = test_clock();
    cli_wait(&r, CLI_LIMIT_S);
    EXPECT(cli_in_time(&r.since, 15), "%s: the others took %.1f s to end", row.options, r.ms / 1e3);
    EXPECT(r.code != 0, "%s: exit code 0 though rank %d was killed", row.options, row.killed);
    EXPECT(cli_count(r.text, row.says) >= 1, "%s: nothing names rank %d:\n%.3000s", row.options, row.killed, r.text);
    cli_expect_nothing_left("after a rank was killed");
    cli_free(&r);
  }
}

TEST_WAITS(cli_a_signal_ends_every_rank,
     "Ctrl-C or SIGTERM, to mpirun or the program alone: the step ends, metrics.jsonl is whole and says so; the "
     "program alone saves first") {
  static const struct { int ranks, signal, code; const char *reason; } table[] = {
      {0, SIGINT, EXIT_SAVED, "saved"}, {0, SIGTERM, EXIT_SAVED, "saved"},
      {2, SIGINT, 0, "signal"}, {2, SIGTERM, 0, "signal"}};      // mpirun gives the run a code of its own, never 0
  test_mpirun_patience(10);                      // what it leaves the ranks for the end of their step
  for (const auto &row : table) {
    CliMetrics m;
    CliRun r;
    char what[64];
    const char *out = cli_path("out");
    snprintf(what, sizeof what, "%d ranks, signal %d", row.ranks, row.signal);
    // Once it is told to end, mpirun 4 reads nothing more of its ranks, which then must not print much.
    if (!cli_start_endless(&r, out, row.ranks, row.ranks ? "--save_every 1000000" : "")) return;
    kill(r.pid, row.signal);
    r.since = test_clock();
    cli_wait(&r, CLI_LIMIT_S);
    EXPECT(cli_in_time(&r.since, 20), "%s: it took %.1f s to end", what, r.ms / 1e3);
    EXPECT(row.code ? r.code == row.code : r.code != 0, "%s: exit code %d", what, r.code);
    if (!row.ranks)
      EXPECT(cli_count(r.text, "stopped by signal after step ") == 1, "%s: it printed:\n%.2000s", what, r.text);
    cli_metrics(&m, out);
    EXPECT(m.lines > 3 && cli_is_kind(m.line[m.lines - 1], "end") &&
               !strcmp(cli_string(m.line[m.lines - 1], "reason"), row.reason),
           "%s: metrics.jsonl has %d lines and its last one does not say '%s'", what, m.lines, row.reason);
    cli_metrics_free(&m);
    cli_expect_nothing_left(what);
    cli_free(&r);
  }
}

TEST(cli_a_signal_ends_a_sample, "Ctrl-C while text is sampled, after training, ends the program at once") {
  for (int ranks : {0, 2}) {
    CliRun r;
    cli_start(&r, "exec %s %s --max_steps 1 --sample_tokens 1048576 --out %s", cli_ranks(ranks), cli_small(),
              cli_path("out"));
    char sample[600];
    struct stat st;
    snprintf(sample, sizeof sample, "%s/sample.txt", cli_path("out"));
    for (double start = now_ms(); stat(sample, &st) && now_ms() - start < CLI_LIMIT_S * 1e3;) usleep(20000);
    kill(r.pid, SIGINT);
    r.since = test_clock();
    cli_wait(&r, CLI_LIMIT_S);
    EXPECT(cli_in_time(&r.since, 15) && (ranks ? r.code != 0 : r.code == 128 + SIGINT),
           "%d ranks: %.1f s to end, exit code %d", ranks, r.ms / 1e3, r.code);
    cli_expect_nothing_left("after the signal");
    remove(sample);
    cli_free(&r);
  }
}

TEST(cli_a_loss_that_is_not_finite_ends_the_run,
     "a learning rate far too high: one line with the step, one with the first tensor, exit code 5 from every rank, "
     "metrics.jsonl stays JSON") {
  CliMetrics m;
  CliRun r;
  CLI_RUN(&r, "%s %s --optimizer sgd --lr 1000 --clip 0 --epochs 4 --out %s", cli_ranks(2), cli_small(),
          cli_path("out"));
  EXPECT(r.code == EXIT_NOT_FINITE, "exit code %d, must be %d", r.code, EXIT_NOT_FINITE);
  EXPECT(cli_count(r.text, "  first: ") == 1, "the first tensor is not named:\n%.3000s", r.text);
  EXPECT(cli_count(r.text, "is not finite: lower --lr, or raise --warmup") == 1,
         "not exactly one line says so:\n%.3000s", r.text);
  cli_metrics(&m, cli_path("out"));
  REQUIRE(m.lines >= 3, "%d lines of metrics", m.lines);
  const cJSON *last = m.line[m.lines - 3];        // then what was not finite, and the end
  EXPECT(cli_is_kind(last, "step") && (cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(last, "loss")) ||
                                       cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(last, "grad_norm"))),
         "the last step has neither loss nor norm null");
  EXPECT(!strcmp(cli_string(m.line[m.lines - 1], "reason"), "not finite"),
         "the last record does not say why the run ended");
  cli_metrics_free(&m);
  cli_free(&r);
  cli_expect_nothing_left("after the run");
}

TEST(cli_a_full_disk_is_said,
     "a full disk: a warning, and training continues; weights that cannot be saved: one line, exit code 3, no half "
     "file") {
  cli_need_mount_namespace();
  CliRun r;
  const char *dir = cli_path("mnt");
  static const char warning[] =
      "metrics.jsonl cannot be written any more (No space left on device); training continues without it";
  CLI_RUN(&r, "unshare -m sh -c 'mount -t tmpfs -o size=32k tmpfs %s && %s %s --out %s --epochs 30 --save_model "
          "--save_every -1; code=$?; ls %s; tail -c 1 %s/metrics.jsonl | od -An -tx1; exit $code'", dir, cli_ranks(2),
          cli_small(), dir, dir, dir);
  EXPECT(r.code == 3, "exit code %d, must be 3; it printed:\n%.3000s", r.code, r.text);
  EXPECT(cli_count(r.text, warning) == 1, "not exactly one warning:\n%.3000s", r.text);
  EXPECT(cli_count(r.text, "valid: loss") == 30, "training did not continue to its end:\n%.3000s", r.text);
  EXPECT(cli_count(r.text, "mnt/model.safetensors") == 1 && cli_count(r.text, "cannot write ") == 1,
         "not exactly one line on the weights:\n%.3000s", r.text);
  EXPECT(!strstr(r.text, "\nmodel.safetensors"), "a half file is left:\n%.3000s", r.text);
  EXPECT(strstr(r.text, "\n 0a\n"), "metrics.jsonl does not end with a whole line:\n%.3000s", r.text);
  cli_free(&r);
}

// ---- what a run writes ----------------------------------------------------------------------------------------------

TEST(cli_samples_are_equal, "1 and 2 ranks continue a prompt the same way, on the terminal and in sample.txt") {
  static const char *const options[] = {"--temperature 0", "--temperature 0.9 --top_k 0 --seed 7"};
  static const char prompt[] = "the fox follows";
  for (const char *option : options) {
    static char sample[2][4096];
    for (int ranks : {0, 2}) {
      CliRun r;
      CLI_RUN(&r, "%s %s --max_steps 20 --global_batch 4 --sample_tokens 40 --prompt '%s' %s --out %s",
              cli_ranks(ranks), cli_small(), prompt, option, cli_path("out"));
      cli_expect_done(&r, option);
      char path[600];
      snprintf(path, sizeof path, "%s/sample.txt", cli_path("out"));
      FILE *f = fopen(path, "rb");
      REQUIRE(f, "no sample.txt");
      char *text = sample[ranks > 0];
      text[fread(text, 1, sizeof sample[0] - 1, f)] = 0;
      fclose(f);
      EXPECT(!strncmp(text, prompt, strlen(prompt)) && strlen(text) > strlen(prompt) + 20, "%s: sample.txt holds '%s'",
             option, text);
      EXPECT(strstr(r.text, text), "%s: sample.txt is not what was printed", option);
      cli_free(&r);
    }
    EXPECT(!strcmp(sample[0], sample[1]), "%s: 1 rank wrote '%s', 2 ranks '%s'", option, sample[0], sample[1]);
  }
}

TEST(cli_two_hosts_compute_the_same,
     "2 and 4 ranks on two hosts, fp32 and bf16 on the wire: every loss equals one process's, digit by digit") {
  for (const char *wire : {"fp32", "bf16"}) {
    CliRun r;
    CLI_RUN(&r, "%s %s --max_steps 4 --global_batch 8 --reduce_dtype %s --out %s", cli_ranks(0), cli_small(), wire,
            cli_path("one"));
    cli_expect_done(&r, wire);
    cli_free(&r);
    for (int per : {1, 2}) {
      char what[64];
      snprintf(what, sizeof what, "%d ranks per host, %s wire", per, wire);
      CLI_RUN(&r, "PER=%d dev/two_hosts.sh %s %s --max_steps 4 --global_batch 8 --reduce_dtype %s --out %s", per,
              cli_program(), cli_small(), wire, cli_path("hosts"));
      if (r.code == 77) SKIP("%.*s", (int)strcspn(r.text, "\n"), r.text);
      cli_expect_done(&r, what);
      EXPECT(strstr(r.text, "on 2 hosts"), "%s: the ranks were not on two hosts:\n%.1000s", what, r.text);
      cli_expect_same_series(what, cli_path("one"), cli_path("hosts"), 4);
      cli_free(&r);
    }
  }
  cli_expect_nothing_left("after the two hosts");
}

TEST(cli_notes_groups_across_hosts, "shard groups placed across two hosts: one warning says how many and what to do") {
  CliRun r;
  CLI_RUN(&r, "OMPI_MCA_rmaps_base_mapping_policy=node PER=2 dev/two_hosts.sh %s %s --mesh 2x2 --max_steps 1 "
          "--eval_every -1 --save_every -1 --sample_tokens 0 --out %s", cli_program(), cli_small(), cli_path("out"));
  if (r.code == 77) SKIP("%.*s", (int)strcspn(r.text, "\n"), r.text);
  cli_expect_done(&r, "by node");
  EXPECT(cli_count(r.text, "warning: 2 of 2 shard groups cross hosts although 2 ranks fit on one: their gathers go "
                   "over the network; place ranks host by host") == 1 && cli_count(r.text, " cross hosts ") == 1,
         "not one warning:\n%.3000s", r.text);
  cli_free(&r);
  if (cli_on_gpu()) return;                      // gradients go from each rank to all owners there in any case
  CLI_RUN(&r, "OMPI_MCA_rmaps_base_mapping_policy=node PER=2 dev/two_hosts.sh %s %s --max_steps 1 --eval_every -1 "
          "--save_every -1 --sample_tokens 0 --out %s", cli_program(), cli_small(), cli_path("out"));
  cli_expect_done(&r, "by node");
  EXPECT(cli_count(r.text, "warning: the ranks of a host are not consecutive in 1 of 1 shard groups: each rank sends "
                   "its gradients to all owners on other hosts; place ranks host by host") == 1 &&
         strstr(r.text, "gradients by messages"), "no warning of ranks in turn:\n%.3000s", r.text);
  cli_free(&r);
}
TEST(cli_rejects_sums_along_hosts_that_cannot_be, "--between_hosts chain: one line says why it cannot be") {
  static const struct { const char *options, *why; } table[] = {
      {"", "no shard group spans several hosts"},
      {"--plan on --world 8 --ranks_per_host 4 --device cuda --comm mpi",
       "on GPUs with --comm mpi gradients go straight to their owners"},
      {"--plan on --world 8 --ranks_per_host 2 --device cuda --mesh 2x4",
       "on GPUs with replicas gradients go straight to their owners"},
      {"--plan on --world 8 --ranks_per_host 4 --device cuda --offload optimizer",
       "with --offload gradients go straight to their owners"},
      {"--plan on --world 8 --ranks_per_host 4 --device cpu --shm off", "--shm off sends messages inside a host, too"}};
  for (const auto &row : table) {
    CliRun r;
    char line[256];
    snprintf(line, sizeof line, "--between_hosts chain: %s; leave it out", row.why);
    CLI_RUN(&r, "%s %s --between_hosts chain --max_steps 1 --out %s %s", cli_ranks(row.options[0] ? 0 : 2), cli_small(),
            cli_path("out"), row.options);
    EXPECT(r.code == 2 && cli_count(r.text, line) == 1, "%s: exit %d, not the line '%s':\n%.2000s", row.options, r.code,
           line, r.text);
    cli_free(&r);
  }
}

TEST_WAITS(cli_a_dead_host_ends_the_other, "a rank that is killed on one host ends the run on both") {
  CliRun r;
  char metrics[600];
  snprintf(metrics, sizeof metrics, "%s/metrics.jsonl", cli_path("out"));
  cli_start(&r, "exec dev/two_hosts.sh %s %s --epochs 1000000 --eval_every 1000000000 --out %s", cli_program(),
            cli_small(), cli_path("out"));
  struct stat st;
  double start = now_ms();
  while ((stat(metrics, &st) || st.st_size < 4096) && now_ms() - start < CLI_LIMIT_S * 1e3 && !kill(r.pid, 0)) {
    int status;
    if (waitpid(r.pid, &status, WNOHANG) && WIFEXITED(status) && WEXITSTATUS(status) == 77)
      SKIP("two hosts cannot be made here");
    usleep(20000);
  }
  const int pid = cli_find_process(1, false);
  REQUIRE(pid > 0, "rank 1 is not found among the processes");
  kill(pid, SIGKILL);
  r.since = test_clock();
  cli_wait(&r, CLI_LIMIT_S);
  EXPECT(cli_in_time(&r.since, 15) && r.code != 0, "it took %.1f s to end, exit code %d", r.ms / 1e3, r.code);
  EXPECT(strstr(r.text, "rank 1"), "nothing names rank 1:\n%.3000s", r.text);
  cli_free(&r);
  cli_expect_nothing_left("after a rank was killed");
}

// ---- help and progress ----------------------------------------------------------------------------------------------

TEST(cli_progress_fits_where_it_goes, "in a pipe or file plain lines; on a terminal one line that is overwritten") {
  CliRun r;
  for (int ranks : {0, 2}) {
    CLI_RUN(&r, "%s %s --max_steps 10 --log_every 4 --out %s | cat", cli_ranks(ranks), cli_small(), cli_path("out"));
    cli_expect_done(&r, "in a pipe");
    EXPECT(!strchr(r.text, '\r') && !strchr(r.text, '\033'), "%d ranks: control characters in a pipe:\n%.3000s", ranks,
           r.text);
    EXPECT(cli_count(r.text, "  ETA ") == 4, "%d ranks: %d progress lines, must be those of steps 1, 4, 8 and 10",
           ranks, cli_count(r.text, "  ETA "));
    for (const char *part : {"step 8/10  loss ", "  lr ", "  |g| ", " tok/s", "  ETA ", " MiB", "[####"})
      EXPECT(strstr(r.text, part), "%d ranks: no '%s' in the progress", ranks, part);
    cli_free(&r);
  }
  CLI_RUN(&r, "script -qec true /dev/null");
  if (r.code) SKIP("no `script` (util-linux) here to make a terminal; plain lines were tested");
  cli_free(&r);
  for (int ranks : {0, 2}) {
    CLI_RUN(&r, "script -qec \"%s %s --max_steps 10 --log_every 4 --out %s\" /dev/null", cli_ranks(ranks), cli_small(),
            cli_path("out"));
    cli_expect_done(&r, "on a terminal");
    int rewritten = 0;
    for (const char *at = r.text; (at = strstr(at, "\r[#")); at++) rewritten++;
    EXPECT(rewritten == 10, "%d ranks: %d steps were written over the line, must be 10:\n%.3000s", ranks, rewritten,
           r.text);
    EXPECT(strstr(r.text, "\nvalid: loss"), "%d ranks: the evaluation does not start on a line of its own", ranks);
    cli_free(&r);
  }
}
