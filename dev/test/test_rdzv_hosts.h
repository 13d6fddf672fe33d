// test_rdzv_hosts.h: the rendezvous on several hosts (network namespaces, dev/hosts.sh) that reach each other by no
// ssh: the same training as under mpirun, what is rejected and by which line, and the end of everything when a part is
// killed. Helpers are those of cli_helpers.h.

// ---- running on hosts -----------------------------------------------------------------------------------------------
// Starts `command`, a shell's, on `hosts` hosts at once; environment: of dev/hosts.sh. $P is the program with a small
// model's options, $TCP and $FILE are rendezvous without --nnodes and --node_rank.
static inline void rdzv_start_hosts(CliRun *r, int hosts, const char *environment, const char *command) {
  static char text[8192];
  static int scripts;
  char name[32];
  snprintf(name, sizeof name, "script%d", scripts++);
  const char *token = cli_path("token"), *script = cli_path(name);
  cli_write(token, "a token of thirty-two characters\n", 33);
  chmod(token, 0600);
  mkdir(cli_path("shared"), 0777);
  snprintf(text, sizeof text, "P='%s %s'\nTCP=\"--rdzv tcp://$FIRST:29400 --rdzv_token %s\"\n"
           "[ -z \"$V6\" ] || TCP=\"--rdzv tcp://[$FIRST]:29400 --rdzv_token %s\"\nFILE='--rdzv file://%s'\n%s\n",
           cli_program(), cli_small(), token, token, cli_path("shared"), command);
  cli_write(script, text, strlen(text));
  cli_start(r, "%s dev/hosts.sh %d '. %s'", environment, hosts, script);
}
static inline void rdzv_wait_hosts(CliRun *r) {
  cli_wait(r, 2 * CLI_LIMIT_S);
  if (r->code == 77) SKIP("%.*s", (int)strcspn(r->text, "\n"), r->text);
}
static inline void rdzv_run_hosts(CliRun *r, int hosts, const char *environment, const char *command) {
  rdzv_start_hosts(r, hosts, environment, command);
  rdzv_wait_hosts(r);
}
#define RDZV_SHORT " --max_steps 3 --grad_accum 1 --sample_tokens 0 --eval_every -1 --save_every -1 "

TEST(rdzv_hosts_train_as_one,
     "tcp:// on three hosts with 1, 2 and 1 ranks and an interface too many; env://, chosen automatically, on two "
     "hosts with two processes each; file:// on two hosts with IPv6 only and a stale file: the losses of four ranks "
     "under mpirun, digit by digit, no file and no process left") {
  CliRun r;
  char command[2048], out[4][512];
  for (int i = 0; i < 4; i++) snprintf(out[i], sizeof out[i], "%s/out%d", test_tmp(), i);
  CLI_RUN(&r, "%s %s " RDZV_SHORT " --out %s", cli_ranks(4), cli_small(), out[0]);
  cli_expect_done(&r, "mpirun");
  cli_free(&r);
  snprintf(command, sizeof command, "exec $P" RDZV_SHORT "--out %s $TCP --nnodes 3 --node_rank $HOST --nproc_per_node "
           "$((HOST == 1 ? 2 : 1))", out[1]);
  rdzv_run_hosts(&r, 3, "EXTRA=1", command);
  cli_expect_done(&r, "tcp://");
  EXPECT(cli_count(r.text, "ranks run on this host") == 2 &&
         cli_count(r.text, "1: train_gpt_fsdp: 2 of 4 ranks run on this host; what they print appears on gph") == 1 &&
         cli_count(r.text, "0:   ranks     4 on 3 hosts") == 1,
         "tcp:// printed:\n%.3000s", r.text);
  cli_free(&r);
  cli_expect_same_series("tcp://", out[0], out[1], 3);
  snprintf(command, sizeof command, "export MASTER_ADDR=$FIRST MASTER_PORT=29500 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 "
           "RDZV_TOKEN=0123456789abcdef0\nRANK=$((2*HOST)) LOCAL_RANK=0 $P" RDZV_SHORT "--out %s &\n"
           "RANK=$((2*HOST+1)) LOCAL_RANK=1 $P" RDZV_SHORT "--out %s\na=$?\nwait $! && exit $a", out[2], out[2]);
  rdzv_run_hosts(&r, 2, "", command);
  cli_expect_done(&r, "env://");
  EXPECT(cli_count(r.text, "ranks run on this host") == 1 && cli_count(r.text, "0:   ranks     4 on 2 hosts") == 1,
         "env:// printed:\n%.3000s", r.text);
  cli_free(&r);
  cli_expect_same_series("env://", out[0], out[2], 3);
  const char *file = cli_path("shared/train_gpt_fsdp.rdzv");
  static const char stale[] = "train_gpt_fsdp rendezvous 1\njob 0123456789abcdef0123456789abcdef\n"
                              "token 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\n"
                              "at fd00:79::1 29400\n";
  mkdir(cli_path("shared"), 0777);
  cli_write(file, stale, strlen(stale));
  chmod(file, 0600);
  snprintf(command, sizeof command, "[ $HOST = 1 ] || while [ ! -e %s.0123456789abcdef0123456789abcdef.1 ]; do sleep "
           "0.05; done\nexec $P" RDZV_SHORT "--out %s $FILE --nnodes 2 --node_rank $HOST --nproc_per_node 2", file,
           out[3]);
  rdzv_run_hosts(&r, 2, "V6=1", command);
  cli_expect_done(&r, "file://");
  cli_free(&r);
  cli_expect_same_series("file://", out[0], out[3], 3);
  EXPECT(cli_names(cli_path("shared"), "") == 0, "file:// has left files");
  cli_expect_nothing_left("after the rendezvous");
}

// Rank `rank` of a running job of this test; 0: it is not there. With its CUDA_VISIBLE_DEVICES and cores.
static inline int rdzv_find_rank(int rank, char *gpus, size_t room, cpu_set_t *cores) {
  static char text[1 << 17];
  const int pid = cli_find_process(rank, false);
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/environ", pid);
  FILE *f = pid ? fopen(path, "rb") : NULL;
  const size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
  if (f) fclose(f);
  text[n] = 0;
  gpus[0] = 0;
  for (size_t at = 0; at < n; at += strlen(text + at) + 1)
    if (!strncmp(text + at, "CUDA_VISIBLE_DEVICES=", 21)) snprintf(gpus, room, "%s", text + at + 21);
  return pid && !sched_getaffinity(pid, sizeof *cores, cores) ? pid : 0;
}
TEST(rdzv_ranks_take_the_place_of_processes,
     "env:// on one machine without a token, each process with GPUs, a core and a directory of its own: its rank has "
     "them; SIGUSR1 to one of them saves a checkpoint, and both share exit code 85") {
  CliRun r;
  char command[2048], gpus[64], want[16];
  cpu_set_t all, cores;
  sched_getaffinity(0, sizeof all, &all);
  int core[2] = {-1, -1};
  for (int c = 0; c < CPU_SETSIZE; c++) if (CPU_ISSET(c, &all)) core[0] < 0 ? core[0] = c : core[1] = c;
  if (core[1] < 0) core[1] = core[0];
  for (int i = 0; i < 2; i++) mkdir(cli_path(i ? "here1" : "here0"), 0777);
  snprintf(command, sizeof command, "export MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 WORLD_SIZE=2\n"
           "for r in 0 1; do\n  [ $r = 0 ] && c=%d || c=%d\n  (cd %s/here$r; RANK=$r CUDA_VISIBLE_DEVICES=7$r exec "
           "taskset -c $c $P --epochs 1000000 --eval_every -1 --save_every -1 --out %s) &\n  [ $r = 1 ] || first=$!\n"
           "done\nsecond=$!\nwhile [ ! -e %s ]; do sleep 0.05; done\nkill -USR1 $second\nwait $second; b=$?\n"
           "wait $first; a=$?\necho codes $a $b", core[0], core[1], test_tmp(), cli_path("out"), cli_path("go"));
  rdzv_start_hosts(&r, 1, "", command);
  for (double start = now_ms(); cli_lines(cli_path("out/metrics.jsonl")) <= 3 && now_ms() - start < 100e3;)
    usleep(20000);
  for (int i = 0; i < 2; i++) {
    char path[64], here[512] = "";
    const int pid = rdzv_find_rank(i, gpus, sizeof gpus, &cores);
    snprintf(want, sizeof want, "7%d", i);
    snprintf(path, sizeof path, "/proc/%d/cwd", pid);
    if (readlink(path, here, sizeof here - 1) < 0) here[0] = 0;
    EXPECT(pid && !strcmp(gpus, want), "rank %d (pid %d) has CUDA_VISIBLE_DEVICES=%s, must be %s", i, pid, gpus, want);
    EXPECT(CPU_COUNT(&cores) == 1 && CPU_ISSET(core[i], &cores), "rank %d has %d cores, must have core %d", i,
           CPU_COUNT(&cores), core[i]);
    EXPECT(!strcmp(here, cli_path(i ? "here1" : "here0")), "rank %d is in %s", i, here);
    EXPECT(getsid(pid) > 0 && getsid(pid) != getsid(0), "rank %d is in the session of who started it", i);
  }
  cli_write(cli_path("go"), "", 0);
  rdzv_wait_hosts(&r);
  EXPECT(cli_count(r.text, "0: codes 85 85") == 1 && cli_count(r.text, "0: checkpoint: ") == 1, "it printed:\n%.3000s",
         r.text);
  cli_free(&r);
  cli_expect_nothing_left("after SIGUSR1");
}

// Number of TCP sockets at which a process listens.
static inline int rdzv_listens(int pid) {
  int count = 0;
  for (const char *table : {"tcp", "tcp6"}) {
    char path[64], line[512];
    unsigned state;
    unsigned long inode;
    snprintf(path, sizeof path, "/proc/%d/net/%s", pid, table);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) {
      char want[64], is[64];
      if (sscanf(line, " %*d: %*s %*s %x %*s %*s %*s %*u %*u %lu", &state, &inode) != 2 || state != 10) continue;
      snprintf(want, sizeof want, "socket:[%lu]", inode);
      for (int fd = 0; fd < 1024; fd++) {
        snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
        const ssize_t n = readlink(path, is, sizeof is - 1);
        is[n > 0 ? n : 0] = 0;
        count += !strcmp(is, want);
      }
    }
    if (f) fclose(f);
  }
  return count;
}
TEST(rdzv_one_host_needs_no_port,
     "ranks that are all on one host, under mpirun, by --rdzv or one alone, listen at no TCP port; with TCP asked for "
     "(OMPI_MCA_btl) they do") {
  static const struct { int ranks, rank; const char *environment, *options; bool listens; } table[] = {
      {2, 1, "", "", false}, {0, 1, "", "--rdzv tcp://127.0.0.1:29400 --nproc_per_node 2", false},
      {0, -1, "", "", false}, {2, 1, "OMPI_MCA_btl=self,vader,tcp", "", true}};
  test_mpirun_patience(0);
  for (const auto &row : table) {
    CliRun r;
    char metrics[600];
    struct stat st;
    const int turn = (int)(&row - table);
    snprintf(metrics, sizeof metrics, "%s/out%d/metrics.jsonl", test_tmp(), turn);
    cli_start(&r, "export %s; exec %s %s --epochs 1000000 --eval_every -1 --save_every -1 --out %s/out%d %s",
              row.environment[0] ? row.environment : "NONE=", cli_ranks(row.ranks), cli_small(), test_tmp(), turn,
              row.options);
    for (double start = now_ms(); (stat(metrics, &st) || !st.st_size) && now_ms() - start < CLI_LIMIT_S * 1e3;)
      usleep(20000);
    const int pid = row.rank < 0 ? r.pid : cli_find_process(row.rank, false);
    EXPECT(pid && (rdzv_listens(pid) > 0) == row.listens, "%d ranks %s %s: process %d listens at %d ports", row.ranks,
           row.environment, row.options, pid, pid ? rdzv_listens(pid) : 0);
    kill(r.pid, SIGTERM);
    cli_wait(&r, CLI_LIMIT_S);
    cli_free(&r);
  }
  cli_expect_nothing_left("after SIGTERM");
}

TEST_WAITS(rdzv_mpirun_ends_after_rank_0,
     "an mpirun that ends with exit code 0 before rank 0 has done so is a fault: one line, exit code 1; --restarts "
     "starts it again") {
  CliRun r;
  char script[600], command[1600];
  const char *mpirun = getenv("MPIRUN") && *getenv("MPIRUN") ? getenv("MPIRUN") : "mpirun";
  snprintf(script, sizeof script, "#!/bin/sh\n[ $1 = --version ] && exec %s --version\nexit 0\n", mpirun);
  cli_write(cli_path("mpirun0"), script, (int64_t)strlen(script));
  chmod(cli_path("mpirun0"), 0755);
  snprintf(command, sizeof command, "MPIRUN=%s $P --rdzv tcp://127.0.0.1:29500 --nnodes 1 --restarts 1 --out %s; "
           "echo codes $?", cli_path("mpirun0"), cli_path("out"));
  rdzv_run_hosts(&r, 1, "", command);
  const char *line = "0: train_gpt_fsdp: mpirun has ended with exit code 0, but rank 0 has not";
  EXPECT(cli_count(r.text, line) == 2 && cli_count(r.text, "0: codes 1") == 1 &&
         cli_count(r.text, "it starts again (1 of 1) with 1 rank") == 1, "it printed:\n%.3000s", r.text);
  cli_free(&r);
}

// ---- what is rejected -----------------------------------------------------------------------------------------------
TEST(rdzv_options_are_rejected_by_name,
     "options of a rendezvous that belong to none, contradict each other or its environment: one line, exit code 2; in "
     "the file of --config they count as on the command line") {
  const char *file = cli_path("options.txt");
  char config[600];
  cli_write(file, "rdzv = etcd://x:1\n", 18);
  snprintf(config, sizeof config, "--config %s", file);
  const CliRejection table[] = {
      {0, "--nnodes 2", 2, "--nnodes belongs to --rdzv tcp://HOST:PORT or file:///shared/dir"},
      {0, "--rdzv none --node_rank 1", 2, "--node_rank belongs to --rdzv tcp://HOST:PORT or file:///shared/dir"},
      {0, "--rdzv_token x", 2, "--rdzv_token belongs to --rdzv tcp://HOST:PORT or file:///shared/dir"},
      {0, "--rdzv etcd://x:1", 2,
       "--rdzv 'etcd://x:1' is not auto, none, env://, tcp://HOST:PORT or file:///shared/directory"},
      {0, config, 2, "--rdzv 'etcd://x:1' is not auto, none, env://, tcp://HOST:PORT or file:///shared/directory"},
      {0, "--rdzv env://", 2, "--rdzv env:// needs MASTER_ADDR: MASTER_ADDR and MASTER_PORT of host 0, RANK and "
       "WORLD_SIZE of this process (torchrun --no-python sets them)"},
      {1, "--rdzv tcp://127.0.0.1:5", 2, "--rdzv tcp://127.0.0.1:5 is for processes that no MPI launcher has "
       "started, but mpirun or srun has started this: leave --rdzv out"}};
  cli_expect_rejections(table, sizeof table / sizeof *table);
}

// On two hosts: `codes` they end with, and what is printed: parts of lines, each in one line of host 0 and of host 1.
struct RdzvRejection { const char *environment, *command, *codes, *here, *there; };
TEST_WAITS(rdzv_hosts_are_rejected_by_name,
     "two hosts: another token, other options, another build, another number of nodes, a port in use, a host that does "
     "not come, one that comes twice, HOST that is elsewhere, a directory that is not shared: a line that says so on "
     "the hosts concerned, an exit code, nothing trained, no process left") {
  CliRun r;
  char other[600], private_dir[600];
  snprintf(other, sizeof other, "%s", cli_path("other"));
  CLI_RUN(&r, "id=$(%s --version | sed -n '1s/.*(\\(.*\\))/\\1/p') && sed \"s/$id/000000000000/g\" %s "
          "> %s && chmod +x %s",
          cli_program(), cli_program(), other, other);
  cli_expect_done(&r, "another build");
  cli_free(&r);
  setenv("OTHER", other, 1);
  snprintf(private_dir, sizeof private_dir, "PRIVATE=%s", cli_path("shared"));
  mkdir(cli_path("shared"), 0777);
#define RDZV_TWO "$P --out " "$TEST_TMP/out" " $TCP --nnodes 2 --node_rank $HOST "
  static const RdzvRejection table[] = {
      {"", "RDZV_TOKEN=0123456789abcdef$HOST; export RDZV_TOKEN; exec $P --out $TEST_TMP/out --rdzv tcp://$FIRST:29400 "
       "--nnodes 2 --node_rank $HOST --timeout 10", "3 2",
       "0: train_gpt_fsdp: a process on 10.79.0.2 came with another token",
       "1: train_gpt_fsdp: host 0 at 10.79.0.1 port 29400 knows another token"},
      {"", "exec " RDZV_TWO "--lr 0.0$((HOST+1))", "2 2", "0: train_gpt_fsdp: options differ: '--lr 0.02",
       "1: train_gpt_fsdp: options differ: '--lr 0.02"},
      {"", "[ $HOST = 0 ] || P=\"$OTHER ${P#* }\"; exec " RDZV_TWO, "2 2",
       "0: train_gpt_fsdp: node 1 (gph", " runs build " PROGRAM_VERSION " (000000000000), node 0 (gph"},
      {"", "exec $P --out $TEST_TMP/out $TCP --nnodes $((HOST+2)) --node_rank $HOST", "2 2",
       " has --nnodes 3, node 0 (", "1: train_gpt_fsdp: node 1 (gph"},
      {"", "exec $P --out $TEST_TMP/out $TCP --nnodes 3 --node_rank $HOST --timeout 10", "3 3",
       "0: train_gpt_fsdp: after 10 s (--timeout) at 10.79.0.1 port 29400 there came node 0 (gph",
       "); there did not come 2"},
      {"", "[ $HOST = 0 ] || exec " RDZV_TWO "--timeout 1", "0 3", "",
       "1: train_gpt_fsdp: host 0 did not come to 10.79.0.1 port 29400 within 1 s (--timeout): 10.79.0.1: Connection "
       "refused"},
      {"", "[ $HOST = 1 ] || exec $P --out $TEST_TMP/out --rdzv tcp://10.79.0.2:29400 --rdzv_token $TEST_TMP/token "
       "--nnodes 2 --node_rank 0", "2 0",
       "0: train_gpt_fsdp: 10.79.0.2 (10.79.0.2) is no address that leads to this host, which has 10.79.0.1:", ""},
      {"", "[ $HOST = 1 ] && exit; $P --out $TEST_TMP/out $TCP --nnodes 2 --node_rank 0 & until ss -ltn | grep -q "
       ":29400; do sleep 0.05; done; $P --out $TEST_TMP/out $TCP --nnodes 2 --node_rank 0; a=$?; kill $!; wait; exit "
       "$a", "2 0", "0: train_gpt_fsdp: port 29400 of 10.79.0.1 is in use: choose another one", ""},
      {"", "P=\"$P --out $TEST_TMP/out $TCP --nnodes 3 --timeout 10 --node_rank\"; [ $HOST = 1 ] || exec $P 0; $P 1 & "
       "$P 1; a=$?; wait $!; echo codes $((a * $?))", "3 0", "came twice: node 1 (gph", "1: codes 6"}};
  enum { ROWS = sizeof table / sizeof *table };
  static CliRun run[ROWS];                       // side by side: some wait for ten seconds
  for (int i = 0; i < ROWS; i++) rdzv_start_hosts(&run[i], 2, table[i].environment, table[i].command);
  for (int i = 0; i < ROWS; i++) {
    const RdzvRejection &row = table[i];
    char codes[64];
    rdzv_wait_hosts(&run[i]);
    r = run[i];
    snprintf(codes, sizeof codes, "exit codes: %s\n", row.codes);
    EXPECT(strstr(r.text, codes) && strstr(r.text, row.here) && strstr(r.text, row.there), "%s\n must end with %s and "
           "say\n%s\n%s\n; it printed:\n%.3000s", row.command, codes, row.here, row.there, r.text);
    EXPECT(access(cli_path("out"), F_OK), "%s: OUT was made", row.command);
    cli_free(&r);
  }
  rdzv_run_hosts(&r, 2, private_dir, "exec $P --out $TEST_TMP/out $FILE --nnodes 2 --node_rank $HOST --timeout 1");
  EXPECT(strstr(r.text, "exit codes: 3 3\n") &&
         strstr(r.text, "1: train_gpt_fsdp: host 0 did not come to directory ") &&
         strstr(r.text, "train_gpt_fsdp.rdzv yet (do all hosts see this directory?)"), "a private directory:\n%.3000s",
         r.text);
  cli_free(&r);
  cli_expect_nothing_left("after the rejections");
}

// ---- ends -----------------------------------------------------------------------------------------------------------
// A run on two hosts in which, once it trains, `what` on host `where` gets a signal. codes: how both end, the signalled
// process's shell included.
struct RdzvKill { int where; const char *signal, *what, *codes, *says; };
static inline void rdzv_kill(const RdzvKill *k) {
  CliRun r;
  char command[2048], codes[64];
  const char *out = cli_path("killed");
  snprintf(command, sizeof command, "env --default-signal=INT $P --epochs 1000000 --eval_every -1 --save_every -1 "
           "--out %s $TCP --nnodes 2 --node_rank $HOST &\np=$!\nif [ $HOST = %d ]; then\n"
           "while ! grep -q '\"kind\":\"step\"' %s/metrics.jsonl 2>/dev/null; do sleep 0.05; done\n"
           "kids() { cat /proc/$1/task/*/children; }\nd=$(kids $p)\n"
           "case %s in self) t=$p;; daemon) t=$d;; rank) t=$(kids $((d)));; esac\n"
           "kill -%s $t\nfi\nwait $p", out, k->where, out, k->what, k->signal);
  rdzv_run_hosts(&r, 2, "", command);
  snprintf(codes, sizeof codes, "exit codes: %s\n", k->codes);
  EXPECT(strstr(r.text, codes) && strstr(r.text, k->says),
         "SIG%s to %s on host %d must end with %s, saying '%s':\n%.3000s", k->signal, k->what, k->where, codes, k->says,
         r.text);
  cli_free(&r);
  cli_expect_nothing_left(k->what);
  CLI_RUN(&r, "rm -rf %s", out);
  cli_free(&r);
}
TEST_WAITS(rdzv_nothing_is_left_of_a_killed_part,
     "two hosts train; Ctrl-C to the other host's process, SIGKILL to it, to mpirun: all ends automatically with an "
     "exit code, a line where nobody else says it, and no process left") {
  static const RdzvKill table[] = {
      {1, "INT", "self", "1 1", "stopped by signal after step "},
      {1, "KILL", "self", "4 137", ") has ended or is out of reach: all ranks end\n"},
      {0, "KILL", "daemon", "137 137", ""}};
  for (const RdzvKill &k : table) rdzv_kill(&k);
}
TEST_WAITS(rdzv_nothing_is_left_of_a_killed_part_all,
     "the same for host 0's process, Open MPI's daemon, ranks, and other signals") {
  static const RdzvKill table[] = {
      {0, "INT", "self", "1 1", "stopped by signal after step "}, {0, "TERM", "self", "1 1", "stopped by signal after"},
      {1, "TERM", "self", "1 1", "stopped by signal after step "}, {0, "USR1", "self", "85 85", "checkpoint: "},
      {1, "USR1", "self", "85 85", "checkpoint: "},
      {0, "KILL", "self", "137 4", "1: train_gpt_fsdp: host 0 on gph"},
      {1, "KILL", "daemon", "205 205", "ORTE has lost communication with a remote daemon"},
      {0, "KILL", "rank", "137 137", " has died; all ranks end"},
      {1, "KILL", "rank", "137 137", " has died; all ranks end"}};
  for (const RdzvKill &k : table) rdzv_kill(&k);
}
