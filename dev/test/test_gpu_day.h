// test_gpu_day.h: dev/gpu_day.sh without a GPU: a scratch copy of it runs among stand-ins (gpu_stand_in.sh) for make,
// the trainer, the tests, nvidia-smi, ncu and the rest. Where they have a clock of their own, no time passes but what
// they say they take, so that an hour of calls is seconds here, and the same on every machine. Helpers are those of
// cli_helpers.h.

static inline const char *gpu_day_root() { return cli_path("day"); }
// The scratch copy: script, stand-ins in bin/, no clock (time is real); `timed`: with their own clock.
static void gpu_day_set_up(bool timed) {
  CliRun r;
  char path[600];
  first_need_repository();
  CLI_RUN(&r, "set -e; mkdir -p %s; here=$PWD; cd %s; mkdir -p dev/test bin fake; "
          "cp $here/dev/gpu_day.sh $here/dev/bench.sh dev; cp $here/dev/test/test_cuda_*.h dev/test; "
          "printf 'cli_small\\nTEST(cli_%%d, ' $(seq 10 21) >dev/test/test_cli.h; "
          "cp $here/dev/test/gpu_stand_in.sh bin/make; for tool in timeout compute-sanitizer ncu nvcc mpirun python3 "
          "nvidia-smi apt-get dpkg; do ln -s make bin/$tool; done; %s", gpu_day_root(), gpu_day_root(),
          timed ? "echo 1000000 >fake/clock" : "");
  cli_expect_done(&r, "the scratch copy");
  cli_free(&r);
  // Asked for often, so it is short.
  const char *const date = "#!/bin/sh\n"
      "if [ \"$*\" = +%s ] && [ -e \"$FAKE/clock\" ]; then read -r t <\"$FAKE/clock\"; echo \"$t\"\n"
      "else command -p date \"$@\"; fi\n";
  snprintf(path, sizeof path, "%s/bin/date", gpu_day_root());
  cli_write(path, date, strlen(date));
  chmod(path, 0777);
}
// The command that runs it there; `environment`: further variables.
static const char *gpu_day_command(const char *environment, const char *parts) {
  static char text[2][4096];
  static int turn;
  turn = !turn;
  snprintf(text[turn], sizeof text[0],
           "cd %s && exec env -i HOME=/ TEST_TMP=\"$TEST_TMP\" PATH=$PWD/bin:$PATH FAKE=$PWD/fake "
           "CUDA_HOME=$PWD PYTHON=$PWD/bin/python3 OUT=out COMMIT=test MODELS=gpt2 ROUNDS=1 "
           "SANITIZE='cuda_norm cuda_gelu' %s dev/gpu_day.sh %s",
           gpu_day_root(), environment, parts);
  return text[turn];
}
static void gpu_day_run(CliRun *r, int code, const char *environment, const char *parts) {
  CLI_RUN(r, "%s", gpu_day_command(environment, parts));
  EXPECT(r->code == code, "%s dev/gpu_day.sh %s: exit code %d, must be %d; it printed:\n%.6000s", environment, parts,
         r->code, code, r->text);
}
// What a shell command prints in the scratch copy, without the last end of line. In a buffer; four can be in use.
static const char *gpu_day_says(const char *command) {
  static char text[4][1 << 16];
  static int turn;
  CliRun r;
  turn = (turn + 1) % 4;
  CLI_RUN(&r, "cd %s && { %s; }", gpu_day_root(), command);
  snprintf(text[turn], sizeof text[0], "%s", r.text);
  cli_free(&r);
  const size_t n = strlen(text[turn]);
  if (n && text[turn][n - 1] == '\n') text[turn][n - 1] = 0;
  return text[turn];
}
static void gpu_day_expect(const char *what, const char *command, const char *wanted) {
  const char *said = gpu_day_says(command);
  EXPECT(!strcmp(said, wanted), "%s: `%s` says\n%.3000s\n    must be\n%.3000s", what, command, said, wanted);
}
static bool gpu_day_journal_has(const char *part) {
  char path[600];
  int64_t bytes;
  snprintf(path, sizeof path, "%s/out/journal.tsv", gpu_day_root());
  char *text = file_get(path, 1 << 20, &bytes);
  const bool has = text && strstr(text, part);
  free(text);
  return has;
}
// Starts parts and kills all of it (SIGKILL), as when a machine is taken away, when the stand-in for `item` has blocked
// and what ended before is in the journal.
static void gpu_day_kill_at(const char *item, const char *ended, const char *environment, const char *parts) {
  CliRun r;
  char blocked[600], block[600];
  int status;
  snprintf(blocked, sizeof blocked, "%s/fake/blocked", gpu_day_root());
  snprintf(block, sizeof block, "%s/fake/block.%s", gpu_day_root(), item);
  cli_write(block, "", 0);
  cli_start(&r, "%s", gpu_day_command(environment, parts));
  while ((access(blocked, F_OK) || !gpu_day_journal_has(ended)) && now_ms() - r.since.ms < CLI_LIMIT_S * 1e3 &&
         !waitpid(r.pid, &status, WNOHANG)) usleep(5000);
  REQUIRE(!access(blocked, F_OK) && gpu_day_journal_has(ended), "%s: not blocked in %s after %s, or not in %d s", parts,
          item, ended, CLI_LIMIT_S);
  kill(-r.pid, SIGKILL);
  for (double start = now_ms(); cli_find_process(-1, true) && now_ms() - start < 5000;) usleep(5000);
  cli_wait(&r, CLI_LIMIT_S);
  cli_free(&r);
  cli_expect_nothing_left("after the kill");
  unlink(block);
  unlink(blocked);
}

TEST(gpu_day_calls_end_in_time,
     "dev/gpu_day.sh, all parts, a fresh machine for each call of LIMIT=570: every call ends by then, the next "
     "continues from what came back, nothing ends twice, no checkpoint is written, and the last says that all is "
     "done") {
  CliRun r;
  int calls = 0;
  gpu_day_set_up(true);
  for (int code = 4; code == 4 && calls < 12; calls++) {
    gpu_day_says("rm -rf build train_gpt_fsdp from; mkdir -p out; mv out from");
    const int start = atoi(gpu_day_says("cat fake/clock"));
    CLI_RUN(&r, "%s", gpu_day_command("LIMIT=570 FROM=from JOBS=1 ROUNDS=2", ""));
    code = r.code;
    const int took = atoi(gpu_day_says("cat fake/clock")) - start;
    EXPECT(took > 0 && took <= 570 - 10, "call %d took %d s of 570", calls, took);
    EXPECT(code == 0 || code == 4, "call %d: exit code %d:\n%.3000s", calls, code, r.text);
    EXPECT(cli_count(r.text, "Left for another call: ") == 1 &&
           cli_count(r.text, "SKIPPED: gpus needs 2 GPUs; GPUs here: 1") == 1,
           "call %d does not say what is left and what is skipped:\n%.3000s", calls, r.text);
    cli_free(&r);
  }
  EXPECT(calls > 2 && calls < 12, "%d calls", calls);
  gpu_day_expect("items that ended twice",
                 "awk -F '\\t' '$4 != \"try\" { print $3 }' out/journal.tsv | sort | uniq -d", "");
  gpu_day_expect("items", "awk -F '\\t' '$4 == \"ok\" { sub(\"/.*\", \"\", $3); n[$3]++ } "
                 "END { for (p in n) print p, n[p] }' out/journal.tsv | sort | paste -sd ,",
                 "bench 3,cuda 3,device 12,first 4,host 8,modes 20,profile 3,ranks 14,sanitize 4");
  gpu_day_expect("parts in the order of their first items",
                 "awk -F '\\t' '{ part = $3; sub(\"/.*\", \"\", part); if ($3 == \"bench/gpt2-2\") part = \"rounds\" "
                 "} !seen[part]++ { print part }' out/journal.tsv | paste -sd ' '",
                 "first cuda ranks bench profile modes device sanitize rounds host");
  gpu_day_expect("what bench adds on one GPU", "grep -oh 'further options: .*' out/*.md | sort | uniq -c | "
                 "awk '{ $1 = $1; print }'", "2 further options: --tune\n1 further options: none");
  gpu_day_expect("in the report", "grep -c ': equal$' out/*.md", "34");
  gpu_day_expect("in the report", "grep -cE 'a_kernel<|memory_copy 3000|ratio 1.13|ERROR SUMMARY: 0' out/*.md", "9");
  gpu_day_expect("more than 2 GB were written", "sort -n fake/disk | tail -n 1 | awk '$1 > 2000'", "");
  gpu_day_expect("of the logs", "tar -tzf out/gpu_day_logs.tar.gz | grep -c ckpt; "
                 "find out/gpu_day_logs.tar.gz -size +16000000c", "0");
}

TEST(gpu_day_a_killed_part_goes_on,
     "SIGKILL in the middle of a test suite and of training runs: report, journal and OUT have all that had ended; on "
     "a fresh machine the next call runs the rest, and the killed one again") {
  CliRun r;
  gpu_day_set_up(false);
  gpu_day_kill_at("hardware_c", "first/hardware_b\tok", "", "build first");
  gpu_day_expect("the killed suite's journal", "cut -f 3,4 out/journal.tsv",
                 "first/hardware_a\ttry\nfirst/hardware_a\tok\nfirst/hardware_b\tok");
  gpu_day_says("rm -rf build train_gpt_fsdp; mv out from");
  gpu_day_kill_at("ranks-bf16-graph", "ranks/bf16-mpi-4\tok", "FROM=from", "build first ranks");
  gpu_day_expect("the suite", "grep first fake/ran | sort | uniq -c | awk '{ print $1, $NF }' | paste -sd ,",
                 "1 hardware_a,1 hardware_b,2 hardware_c,1 hardware_d");
  gpu_day_expect("the killed part's report", "grep -c ': equal$' out/*.md", "4");
  gpu_day_expect("the killed part's heading", "grep -c '^first: 4 items well' out/*.md", "1");
  gpu_day_says("rm -rf build train_gpt_fsdp from; mv out from");
  gpu_day_run(&r, 0, "FROM=from", "build ranks");
  cli_free(&r);
  gpu_day_expect("the report", "grep -c ': equal$' out/*.md; grep -c '^## Call' out/*.md", "14\n3");
  gpu_day_expect("run again", "grep ranks- fake/ran | sort | uniq -d", "ranks-bf16-graph");
  cli_expect_nothing_left("after the last call");
}

TEST(gpu_day_a_hang_is_ended,
     "a run that hangs, and what it started in a session of its own: ended with the part's time, and the report is "
     "written; hanging in two whole calls it is given up and the rest continues; AGAIN runs it once more") {
  CliRun r;
  gpu_day_set_up(true);
  gpu_day_run(&r, 0, "", "build");
  cli_free(&r);
  gpu_day_says("touch fake/hang.ranks-bf16-self");
  for (int call = 0; call < 2; call++) {
    gpu_day_run(&r, 4, "LIMIT=100", "ranks");
    EXPECT(cli_count(r.text, "CUT after 85 s: no time is left in this call") == 1 &&
           cli_count(r.text, "ranks: 0 items well, 14 left for another call") == 1,
           "a call does not say that it cut a run:\n%.3000s", r.text);
    cli_free(&r);
    cli_expect_nothing_left("after a call");
  }
  gpu_day_run(&r, 1, "", "ranks");
  EXPECT(cli_count(r.text, "ranks/bf16-self: did not end in two calls, given up") == 1 &&
         cli_count(r.text, ": equal") == 7 && cli_count(r.text, ": NO REFERENCE") == 6, "the third call:\n%.5000s",
         r.text);
  cli_free(&r);
  // In real time. On a busy machine a part's time may be over before its first run starts: then once more.
  bool cut = false;
  gpu_day_says("rm fake/clock");
  for (int i = 0; i < 8 && !cut; i++) {
    CLI_RUN(&r, "%s", gpu_day_command("AGAIN=failed", "ranks=2"));
    cut = cli_count(r.text, " no time is left in this call") == 1;
    EXPECT(r.code == 4 && cli_count(r.text, "ranks: 7 items well, 7 left for another call") == 1,
           "in real time: exit code %d:\n%.5000s", r.code, r.text);
    cli_free(&r);
    cli_expect_nothing_left("after a call in real time");
  }
  EXPECT(cut, "nothing was cut");
  gpu_day_says("rm fake/hang.*");
  gpu_day_run(&r, 0, "AGAIN=failed", "ranks");
  EXPECT(cli_count(r.text, ": equal") == 7 && cli_count(r.text, "ranks: 14 items well; ") == 1, "again:\n%.5000s",
         r.text);
  cli_free(&r);
}

TEST(gpu_day_says_what_is_wrong,
     "other losses, a failed test, errors under the sanitizer: exit code 1, the report names each; without mpirun what "
     "needs ranks is named; on two GPUs what needs four is; wrong arguments are rejected") {
  CliRun r;
  gpu_day_set_up(false);
  gpu_day_says("touch fake/differ.ranks-bf16-mpi-2 fake/fail.hardware_b fake/fail.cuda_gelu");
  gpu_day_run(&r, 1, "", "build first short sanitize ranks");
  for (const char *line :
       {"    FAILED  hardware_b (8.0 s, 0.2 s of CPU)", "    what hardware_b said",
        "first: 3 items well, 1 not: first/hardware_b (FAILED);",
        "make test DEVICE=cuda DEVICE_ONLY=1 TEST_JOBS=4 T==cuda_norm =cuda_gelu\n",
        "short: 1 items well, 1 not: cuda/cuda_gelu (FAILED);",
        "sanitize: 2 items well, 2 not: sanitize/memcheck-cuda_gelu (FAILED) sanitize/racecheck-cuda_gelu (FAILED);",
        "ranks: 13 items well, 1 not: ranks/bf16-mpi-2 (DIFFERENT);", "Failed: first short sanitize ranks."})
    EXPECT(strstr(r.text, line), "it does not say '%s':\n%.6000s", line, r.text);
  EXPECT(cli_count(r.text, ": equal") == 13 && cli_count(r.text, ": DIFFERENT") == 1, "it printed:\n%.6000s", r.text);
  cli_free(&r);
  // The commands of this machine but for mpirun's.
  gpu_day_says("rm fake/differ.* fake/fail.* bin/mpirun; mkdir tools; ln -s /usr/bin/* /bin/* tools 2>/dev/null; "
               "rm -f tools/mpi* tools/orte*");
  gpu_day_run(&r, 1, "AGAIN='ranks/bf16-mpi-*' PATH=$PWD/bin:$PWD/tools", "ranks");
  for (const char *line : {"NOT RUN: ranks/bf16-mpi-2: 2 ranks, and mpirun is not here",
                           "NOT RUN: ranks/bf16-mpi-4: 4 ranks, and mpirun is not here",
                           "ranks: FAILED; 12 items well;"})
    EXPECT(cli_count(r.text, line) == 1, "it does not say '%s':\n%.4000s", line, r.text);
  cli_free(&r);
  gpu_day_says("ln -s make bin/mpirun");
  gpu_day_run(&r, 0, "FAKE_GPUS=2", "gpus");
  EXPECT(cli_count(r.text, ": equal") == 7 && cli_count(r.text, "SKIPPED: ") == 8 &&
         cli_count(r.text, "SKIPPED: gpus/mesh-4 needs 4 GPUs; GPUs here: 2") == 1 &&
         cli_count(r.text, "further options: --tune --reduce_dtype bf16") == 1, "two GPUs:\n%.6000s", r.text);
  cli_free(&r);
  gpu_day_run(&r, 0, "FAKE_GPUS=8", "gpus");
  EXPECT(cli_count(r.text, ": equal") == 12 && cli_count(r.text, "SKIPPED: ") == 0 &&
         cli_count(r.text, "fp32-8-graph: ranks 8, ") == 1, "eight GPUs:\n%.6000s", r.text);
  cli_free(&r);
  gpu_day_says("rm -f out/*.md");
  gpu_day_run(&r, 1, "", "quarter");             // no tests of attention, nor of those kinds; gelu failed
  EXPECT(cli_count(r.text, ": equal") == 3 && cli_count(r.text, "a stand-in's op 7.0 us") == 1 &&
         cli_count(r.text, "900, \"peak_gib\"") == 5 && cli_count(r.text, "Failed: attention sanitize chosen.") == 1 &&
         cli_count(r.text, "kernels: 3 items well") == 1 && cli_count(r.text, "a stand-in's attention 7.0 us") == 1 &&
         cli_count(r.text, "a stand-in's algorithm") == 4 && cli_count(r.text, "torch: 5 items well") == 1 &&
         cli_count(r.text, "models: 10 items well") == 1 && cli_count(r.text, "plans: 4 items well") == 1,
         "a quarter of an hour:\n%s", r.text);
  cli_free(&r);
  gpu_day_expect("the table", "grep -cE '^ +(gpt2|gpt2-xl|smollm2-135m|qwen3-0.6b) +[0-9]+ +1[0-9]+ +1[0-9]+ +900 +1' "
                 "out/*.md", "5");
  gpu_day_run(&r, 0, "AGAIN='plans/*'", "plans");
  EXPECT(cli_count(r.text, "a stand-in's algorithm") == 4 && cli_count(r.text, "plans: 4 items well") == 1,
         "a part alone:\n%.3000s", r.text);
  cli_free(&r);
  static const struct { const char *environment, *parts, *line; } wrong[] = {
      {"", "build none", "gpu_day: parts are build first short ranks bench profile gpus modes test sanitize rounds "
       "host, with or without =SECONDS, or carry DIR; not 'none'\n"},
      {"", "ranks=0", "not 'ranks=0'\n"},
      {"LIMIT=ten", "", "gpu_day: LIMIT=ten: seconds, more than 15, or 0\n"},
      {"CARRIED=fake", "ranks", "/day/fake holds no OpenMPI; dev/gpu_day.sh carry DIR makes such a directory\n"}};
  for (const auto &row : wrong) {
    gpu_day_run(&r, 2, row.environment, row.parts);
    EXPECT(cli_count(r.text, "") == 1 && strstr(r.text, row.line), "%s %s: it printed:\n%.2000s", row.environment,
           row.parts, r.text);
    cli_free(&r);
  }
}

TEST(gpu_day_rehearses_models,
     "part models with the real trainer on the emulator, two models: the trainer knows the options, the plans fit an "
     "H100, every rate is read; what the trainer says of a wrong option is in the report") {
  CliRun r;
  char environment[PATH_MAX + 100];
  gpu_day_set_up(false);
  const char *emulated = gpu_day_says("echo $(dirname $(readlink /proc/$PPID/exe))/emulated");
  snprintf(environment, sizeof environment, "%s/train_gpt_fsdp", emulated);
  if (access(environment, X_OK)) SKIP("%s is not built", environment);
  snprintf(environment, sizeof environment, "EMULATED=%s REHEARSED=h100", emulated);
  gpu_day_says("rm bin/mpirun bin/timeout; "
               "sed -i 's/^quarter_models=.*/quarter_models=(\"gpt2-xl 16\" \"qwen3-0.6b 8\")/' dev/gpu_day.sh");
  gpu_day_run(&r, 0, environment, "build models");
  EXPECT(cli_count(r.text, "models: 4 items well") == 1, "it printed:\n%.6000s", r.text);
  cli_free(&r);
  gpu_day_expect("rates",
                 "awk -F '\\t' '$3 ~ /^models/ && $4 == \"ok\" && $7 + 0 > 0' out/journal.tsv | grep -c .", "4");
  strcat(environment, " AGAIN=models/gpt2-xl-16-fp32 MODEL_OPTIONS=--tune=each");
  gpu_day_run(&r, 1, environment, "models");
  EXPECT(cli_count(r.text, ": --tune 'each' is not known") == 1, "it printed:\n%.6000s", r.text);
  cli_free(&r);
}

TEST(gpu_day_carries_openmpi,
     "carry DIR: only OpenMPI, hwloc, cJSON, OpenSSL and what they need, unpacked, without plugins for networks; with "
     "CARRIED=DIR the ranks start by its mpirun, which is told where it is") {
  CliRun r;
  gpu_day_set_up(false);
  gpu_day_run(&r, 0, "", "carry ompi");
  EXPECT(!strncmp(r.text, "carry: 6 packages, ", 19) && cli_count(r.text, "") == 1, "it printed:\n%.2000s", r.text);
  cli_free(&r);
  gpu_day_expect("the tree", "cd ompi && find . ! -type d | sort | paste -sd ' '",
                 "./cjson/include ./cjson/lib ./hwloc/include/hwloc.h ./hwloc/include/hwloc/bitmap.h "
                 "./hwloc/include/hwloc/config.h ./hwloc/lib ./openssl/include/openssl/configuration.h "
                 "./openssl/include/openssl/hmac.h ./openssl/lib/libcrypto.so ./usr/bin/mpicc ./usr/bin/mpirun "
                 "./usr/bin/orterun "
                 "./usr/include/hwloc.h ./usr/include/hwloc/bitmap.h ./usr/include/machine/hwloc/config.h "
                 "./usr/lib/machine/libopen-pal.so.40 ./usr/lib/machine/openmpi/lib/openmpi3/mca_btl_tcp.so");
  gpu_day_expect("links", "readlink -m ompi/cjson/include ompi/cjson/lib ompi/hwloc/lib | sed s,.*/ompi/,,",
                 "usr/include\nusr/lib/machine\nusr/lib/machine");
  gpu_day_run(&r, 2, "", "carry ompi");
  EXPECT(strstr(r.text, " is not empty"), "it printed:\n%.2000s", r.text);
  cli_free(&r);
  gpu_day_says("rm bin/mpirun");
  gpu_day_run(&r, 0, "CARRIED=ompi LD_LIBRARY_PATH=/else", "build ranks");
  cli_free(&r);
  gpu_day_expect("mpirun's environment", "sort fake/environment",
                 "CJSON_HOME=ROOT/ompi/cjson\nHWLOC_HOME=ROOT/ompi/hwloc\n"
                 "LD_LIBRARY_PATH=ROOT/ompi/usr/lib/machine:ROOT/ompi/usr/lib/machine/pmix2/lib:/else\n"
                 "OPAL_PREFIX=ROOT/ompi/usr\nOPENSSL_HOME=ROOT/ompi/openssl\n"
                 "PMIX_PKGLIBDIR=ROOT/ompi/usr/lib/machine/pmix2/lib/pmix");
}

TEST(gpu_day_names_tests_exactly, "build/test_gpt_fsdp =NAME selects the test of that name, NAME all that contain it") {
  CliRun r;
  const char *self = "/proc/$PPID/exe";
  CLI_RUN(&r, "%s --list =cuda_norm; echo; %s --list cuda_norm", self, self);
  const char *both = strstr(r.text, "\n\n");
  EXPECT(r.code == 0 && cli_count(r.text, "cuda_norm ") == 2 && cli_count(r.text, "cuda_norm_all ") == 1 && both &&
         !strstr(both, "=") && both < strstr(r.text, "cuda_norm_all "), "it printed:\n%.3000s", r.text);
  cli_free(&r);
}

TEST(gpu_day_knows_the_runner,
     "dev/gpu_day.sh reads the lines in which build/test_gpt_fsdp says how a test ended, and the tests that it names "
     "and the kinds it chooses are there; T=hardware selects tests of what only a GPU can tell, T=first none of them") {
  CliRun r;
  const char *self = "/proc/$PPID/exe";
  first_need_repository();
  cli_write(cli_path("read.sh"), "", 0);
  CLI_RUN(&r, "sed -n '/^watch_tests()/,/^}/p; /^device_tests()/,/^}/p; /^chosen_kinds=/p; "
          "/^\\(short_tests\\|quarter_sanitize\\)=/,/)$/p' dev/gpu_day.sh >%s && "
          "%s =cuda_known_devices | bash -c 'say() { :; }; record() { echo \"$1 $2\"; }; . %s; "
          "watch_tests cuda; printf \"=%%s\\n\" \"${short_tests[@]}\" \"${quarter_sanitize[@]}\" | sort -u; "
          "for kind in \"${chosen_kinds[@]}\"; do device_tests | grep -q $kind || echo no test of $kind; done' >%s",
          cli_path("read.sh"), self, cli_path("read.sh"), cli_path("said"));
  cli_expect_done(&r, "the script's part");
  cli_free(&r);
  CLI_RUN(&r, "grep -v = %s; %s --list $(grep = %s) | grep -c . ; grep -c = %s; echo; %s --list hardware | grep -c "
          "'^hardware_'; %s --list hardware | grep -c first; %s --list first | grep -c hardware_", cli_path("said"),
          self, cli_path("said"), cli_path("said"), self, self, self);
  const char *want = "cuda/cuda_known_devices ok\n27\n27\n\n11\n0\n0\n";
  EXPECT(!strcmp(r.text, want), "it printed:\n%.2000s    must be:\n%s", r.text, want);
  cli_free(&r);
}
