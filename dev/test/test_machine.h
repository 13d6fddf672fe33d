// test_machine.h: the resources that a rank takes of its host: limits of control groups, read from made-up /proc and
// /sys trees of both versions, and cores that other programs take.
#include <sys/stat.h>

// Writes `text` to `path` below the test's directory, with the directories above it.
static void machine_file(const char *path, const char *text) {
  char at[1024];
  snprintf(at, sizeof at, "%s%s", test_tmp(), path);
  char *name = strrchr(at, '/');
  *name = 0;
  REQUIRE(make_directories(at), "%s cannot be made", at);
  *name = '/';
  FILE *f = fopen(at, "w");
  REQUIRE(f && fputs(text, f) >= 0 && !fclose(f), "%s cannot be written", at);
}
static void machine_proc(const char *groups, const char *mounts) {
  machine_file("/proc/self/cgroup", groups);
  machine_file("/proc/self/mountinfo", mounts);
}
#define MACHINE_MOUNT_V2 "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
#define MACHINE_MOUNTS_V1 \
  "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n" \
  "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n" \
  "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"

TEST(machine_cgroup_v2, "version 2: the smallest quota of the group and its parents; memory without idle page cache") {
  EXPECT(isinf(cgroup_cores(test_tmp())) && cgroup_memory_left(test_tmp()) == SIZE_MAX, "no files, and yet a limit");
  machine_proc("0::/work.slice/run\n", MACHINE_MOUNT_V2);
  EXPECT(isinf(cgroup_cores(test_tmp())), "no controller, and yet a limit");
  machine_file("/sys/fs/cgroup/work.slice/run/cpu.max", "max 100000\n");
  EXPECT(isinf(cgroup_cores(test_tmp())), "`max` limits to %g", cgroup_cores(test_tmp()));
  machine_file("/sys/fs/cgroup/work.slice/cpu.max", "250000 100000\n");
  EXPECT(cgroup_cores(test_tmp()) == 2.5, "%g cores, not the 2.5 of the group above", cgroup_cores(test_tmp()));
  machine_file("/sys/fs/cgroup/work.slice/run/cpu.max", "50000 100000\n");
  EXPECT(cgroup_cores(test_tmp()) == 0.5, "%g cores, not the own 0.5", cgroup_cores(test_tmp()));
  machine_file("/sys/fs/cgroup/work.slice/memory.max", "1000\n");
  machine_file("/sys/fs/cgroup/work.slice/memory.current", "900\n");
  machine_file("/sys/fs/cgroup/work.slice/memory.stat", "anon 600\ninactive_file 250\nactive_file 50\n");
  EXPECT(cgroup_memory_left(test_tmp()) == 350, "%zu bytes left, not 350", cgroup_memory_left(test_tmp()));
  machine_file("/sys/fs/cgroup/work.slice/run/memory.max", "300\n");
  machine_file("/sys/fs/cgroup/work.slice/run/memory.current", "310\n");
  EXPECT(cgroup_memory_left(test_tmp()) == 0, "%zu bytes left of a full group", cgroup_memory_left(test_tmp()));
  machine_file("/sys/fs/cgroup/work.slice/run/memory.max", "max\n");
  EXPECT(cgroup_memory_left(test_tmp()) == 350, "%zu bytes left, not 350", cgroup_memory_left(test_tmp()));
}

TEST(machine_cgroup_v1, "version 1, version 2 mounted beside it: cpu.cfs_quota_us, memory.limit_in_bytes; -1 is none") {
  machine_proc("4:memory:/docker/c1\n3:cpuset:/\n2:cpu,cpuacct:/docker/c1\n0::/\n", MACHINE_MOUNTS_V1);
  machine_file("/sys/fs/cgroup/cpu,cpuacct/docker/c1/cpu.cfs_quota_us", "-1\n");
  machine_file("/sys/fs/cgroup/cpu,cpuacct/docker/c1/cpu.cfs_period_us", "100000\n");
  EXPECT(isinf(cgroup_cores(test_tmp())), "-1 limits to %g cores", cgroup_cores(test_tmp()));
  machine_file("/sys/fs/cgroup/cpu,cpuacct/docker/c1/cpu.cfs_quota_us", "200000\n");
  EXPECT(cgroup_cores(test_tmp()) == 2, "%g cores, not 2", cgroup_cores(test_tmp()));
  machine_file("/sys/fs/cgroup/memory/docker/c1/memory.limit_in_bytes", "5000\n");
  machine_file("/sys/fs/cgroup/memory/docker/c1/memory.usage_in_bytes", "3000\n");
  machine_file("/sys/fs/cgroup/memory/docker/c1/memory.stat", "inactive_file 7\ntotal_inactive_file 500\n");
  machine_file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  machine_file("/sys/fs/cgroup/memory/memory.usage_in_bytes", "9000\n");
  EXPECT(cgroup_memory_left(test_tmp()) == 2500, "%zu bytes left, not 2500", cgroup_memory_left(test_tmp()));
}

TEST(machine_takes_the_fastest_instructions,
     "where pairs of bf16 are slow AVX-512 is taken for AVX-512 BF16, else nothing changes; what is taken is there") {
  for (int best = -1; best < CPU_ISAS; best++)
    for (int slow = 0; slow < 2; slow++)
      EXPECT(isa_fast(best, slow) == (slow && best == ISA_AVX512_BF16 ? ISA_AVX512 : best), "%d of %d, %d",
             isa_fast(best, slow), best, slow);
  EXPECT(cpu_fast_table() <= cpu_best_table() && cpu_fast_table() >= 0, "table %d of %d", cpu_fast_table(),
         cpu_best_table());
}
TEST(machine_cgroup_in_a_container, "a container that sees only its own group, by the host's path or by its own") {
  machine_proc("2:cpu:/docker/c1\n", "32 31 0:29 /docker/c1 /sys/fs/cgroup/cpu ro master:9 - cgroup cgroup rw,cpu\n");
  machine_file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "150000\n");
  machine_file("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT(cgroup_cores(test_tmp()) == 1.5, "%g cores, not 1.5", cgroup_cores(test_tmp()));
  machine_proc("0::/\n", MACHINE_MOUNT_V2);
  machine_file("/sys/fs/cgroup/cpu.max", "300000 100000\n");
  EXPECT(cgroup_cores(test_tmp()) == 3, "%g cores, not 3", cgroup_cores(test_tmp()));
  machine_proc("garbage\n:\n0:\n", "x y z\n - \n1 2 3 / /nowhere - cgroup2 a b\n");
  EXPECT(isinf(cgroup_cores(test_tmp())), "damaged files limit to %g cores", cgroup_cores(test_tmp()));
}

TEST(machine_watch_bears_threads_that_end, "a watch after a thread has ended, whose time is gone, reports nothing") {
  CoreWatch w = {1000, UINT64_MAX / 2, UINT64_MAX / 2};          // as if ended threads had run for years
  EXPECT(core_watch(&w, 1000 + 2 * CORE_WATCH_MS) == -1, "a share of time that went backwards");
  EXPECT(w.ran_ns < UINT64_MAX / 2, "the sums do not start anew");
}

// Leaves one core to the test and to what it starts from here on.
static void machine_keep_one_core() {
  cpu_set_t one;
  sched_getaffinity(0, sizeof one, &one);
  for (int cpu = 0, kept = 0; cpu < CPU_SETSIZE; cpu++)
    if (CPU_ISSET(cpu, &one) && kept++) CPU_CLR(cpu, &one);
  sched_setaffinity(0, sizeof one, &one);
}
// A run that trains beside two busy programs, on the core that is left.
static void machine_train(CliRun *r, const char *threads) {
  cli_start(r, "exec %s --data random --threads %s --max_steps 1000000000 --sample_tokens 0 --eval_every -1 "
            "--save_every -1 --out %s", cli_program(), threads, cli_path(threads));
}
// Waits until the run has printed `text` or `limit_s` are over since it started.
static void machine_wait_for(const CliRun *r, const char *text, double limit_s) {
  for (bool found = false; !found && now_ms() - r->since.ms < limit_s * 1e3; usleep(200000)) {
    CliRun grep;
    CLI_RUN(&grep, "grep -q '%s' %s", text, r->path);
    found = grep.code == 0;
    cli_free(&grep);
  }
}
TEST(machine_busy_cores_are_told,
     "a run whose core others take says so once; one with more threads than cores does not") {
  if (access("/proc/self/schedstat", R_OK)) SKIP("this kernel counts no waiting for cores (/proc/self/schedstat)");
  static const char warning[] = "warning: the cores are busy with other programs";
  CliRun busy[2], one, two;
  machine_keep_one_core();
  for (CliRun &b : busy) cli_start(&b, "while :; do :; done");
  machine_train(&one, "1");
  machine_train(&two, "2");
  machine_wait_for(&one, warning, 2 * CLI_LIMIT_S);              // after some seconds, where other tests leave cores
  machine_wait_for(&two, warning, 7);            // both at once; by then it would have said it
  kill(-one.pid, SIGUSR1);                       // ends a run after its step
  kill(-two.pid, SIGUSR1);
  for (CliRun &b : busy) kill(-b.pid, SIGKILL);
  cli_wait(&one, 4 * CLI_LIMIT_S);
  cli_wait(&two, 4 * CLI_LIMIT_S);
  for (CliRun &b : busy) cli_wait(&b, CLI_LIMIT_S), cli_free(&b);
  EXPECT(cli_count(one.text, warning) == 1, "1 thread on one core: said %d times: %s", cli_count(one.text, warning),
         one.text);
  EXPECT(cli_count(two.text, warning) == 0, "2 threads on one core: said: %s", two.text);
  EXPECT(one.code == EXIT_SAVED && two.code == EXIT_SAVED, "they ended with %d and %d: %s%s", one.code, two.code,
         one.text, two.text);
  cli_free(&one);
  cli_free(&two);
}

// A cpu control group with a quota of half a core, made for this process; "" where that is not allowed.
static void machine_make_group(char *dir, size_t bytes) {
  CgroupPlace p;
  char file[2400];
  dir[0] = 0;
  if (!cgroup_find("", "cpu", &p)) return;
  snprintf(dir, bytes, "%.1500s/test_gpt_fsdp_%d", p.dir, (int)getpid());
  if (mkdir(dir, 0755)) { dir[0] = 0; return; }
  snprintf(file, sizeof file, "%s/%s", dir, p.v2 ? "cpu.max" : "cpu.cfs_quota_us");
  FILE *f = fopen(file, "w");
  const bool wrote = f && fprintf(f, p.v2 ? "50000 100000" : "50000") > 0 && !fflush(f);
  if (f) fclose(f);
  if (!wrote) rmdir(dir), dir[0] = 0;
}
TEST(machine_a_real_quota_counts, "inside a control group with half a core's time the program takes one thread") {
  char dir[2048], join[2200];
  machine_make_group(dir, sizeof dir);
  if (!dir[0]) SKIP("no control group can be made here: this needs root and a writable /sys/fs/cgroup");
  snprintf(join, sizeof join, "echo $$ > %s/cgroup.procs", dir);
  CliRun r;
  cli_start(&r, "%s && %s --data generated --n_layer 1 --n_embd 16 --n_head 1 --seq_len 8 --vocab_size 260 "
            "--max_steps 1 --sample_tokens 0 --eval_every -1 --save_every -1 --out %s", join, cli_program(),
            cli_path("out"));
  cli_wait(&r, CLI_LIMIT_S);
  EXPECT(r.code == 0, "exit %d: %s", r.code, r.text);
  static char metrics[1 << 16];
  FILE *f = fopen(cli_path("out/metrics.jsonl"), "r");
  REQUIRE(f, "no metrics.jsonl");
  metrics[fread(metrics, 1, sizeof metrics - 1, f)] = 0;
  fclose(f);
  EXPECT(strstr(metrics, "\"threads\":1,"), "not one thread: %.300s", metrics);
  for (int tries = 0; rmdir(dir) && tries < 100; tries++) usleep(20000);         // its processes may still be ending
}

TEST(machine_watches_its_cores, "threads that queue for a core are counted; a look too soon reports nothing") {
  CoreWatch w = {};
  EXPECT(core_watch(&w, 1000) == -1, "the first look has nothing to compare with");
  EXPECT(core_watch(&w, 1000 + CORE_WATCH_MS - 1) == -1, "a look too soon");
  if (access("/proc/self/schedstat", R_OK)) SKIP("this kernel counts no waiting for cores (/proc/self/schedstat)");
  cpu_set_t one;
  sched_getaffinity(0, sizeof one, &one);
  for (int cpu = 0, kept = 0; cpu < CPU_SETSIZE; cpu++)
    if (CPU_ISSET(cpu, &one) && kept++) CPU_CLR(cpu, &one);
  sched_setaffinity(0, sizeof one, &one);
  parallel(4, [=](int, int) {                    // four on one core
    for (const double start = now_ms(); now_ms() - start < 400;) {}
  });
  const double share = core_watch(&w, 1000 + 2 * CORE_WATCH_MS);
  EXPECT(share > 0.5 && share < 1, "four busy threads on one core waited %g of their time", share);
}
// The child of the test below: prints while a progress line is on the terminal.
static void say_across_the_line(bool launched) {
  terminal.out = terminal.err = true;
  terminal.launched = launched;
  line_draw("[###...] step 1/9  loss 1", false);
  say_error("warning: one\n");
  line_draw("[####..] step 2/9  loss 2", false);
  say("warning: two %s\n", "\033[31mred");
  line_draw("saving: 50 % of 3 GB", true);
  say_error("warning: three\n");
  line_draw("saving: 70 % of 3 GB and more", true);
  line_draw("saving: 71 %", true);
  line_draw("[#####.] step 3/9  loss 3", false);
  error_hook = say_error_line;
  warn("warning: four");
  line_draw("[######] step 4/9  loss 4", false);
  const struct winsize narrow = {24, 10, 0, 0};
  ioctl(STDOUT_FILENO, TIOCSWINSZ, &narrow);
  line_draw("[######] step 5/9  loss 5", false);
  terminal_last_signal(SIGTERM);
  raise(SIGTERM);
}

TEST(report_nothing_is_written_across_the_line,
     "output to stdout and stderr while the line is on the terminal starts a row; a temporary line leaves nothing; a "
     "signal that ends the process ends the line") {
  static Screen s;
  for (bool launched : {false, true}) {
    char slave[128], text[8192];
    const int master = pty_open(80, slave, sizeof slave);
    const pid_t pid = fork();
    if (!pid) {
      const int fd = open(slave, O_RDWR | O_NOCTTY);
      dup2(fd, 1);
      dup2(fd, 2);
      close(fd);
      say_across_the_line(launched);
      _exit(1);
    }
    // What is still under way to the master when the last slave closes may be lost: this one stays open, and writes a
    // mark after all.
    const int held = open(slave, O_RDWR | O_NOCTTY);
    size_t n = 0;
    int status = 0;
    waitpid(pid, &status, 0);
    REQUIRE(held >= 0 && write(held, "\1", 1) == 1, "cannot write to %s", slave);
    while (n < sizeof text && !memchr(text, 1, n)) {
      const ssize_t got = read(master, text + n, sizeof text - n);
      REQUIRE(got > 0, "cannot read the terminal");
      n += (size_t)got;
    }
    n--;
    close(held);
    close(master);
    EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM, "it did not end by its signal");
    screen_open(&s, 80);
    screen_put(&s, text, n);
    static const char *const rows[] = {"[###...] step 1/9  loss 1", "warning: one", "[####..] step 2/9  loss 2",
                                       "warning: two \\x1b[31mred", "warning: three", "[#####.] step 3/9  loss 3",
                                       "warning: four", "[######] step 4/9  loss 4", "[######] ", ""};
    for (int i = 0; i < (int)(sizeof rows / sizeof *rows); i++)
      EXPECT(!strcmp(s.text[i], rows[i]), "row %d: '%s', must be '%s'", i, s.text[i], rows[i]);
    EXPECT(s.escapes == 0 && s.column == 0, "the cursor is left in column %d, %d escapes", s.column, s.escapes);
  }
}
