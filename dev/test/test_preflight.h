// test_preflight.h: what --preflight finds (launch/preflight.h) on hosts that are made up, what its messages do when
// they do not arrive (launch/preflight_net.h), and the whole of it on two hosts made of network namespaces.

// ---- findings -------------------------------------------------------------------------------------------------------
// Three hosts of two ranks on which nothing is wrong; hosts are their first ranks 0, 2, 4.
enum { PREFLIGHT_HOSTS = 3, PREFLIGHT_WORLD = 6 };
struct PreflightCase {
  PreflightFacts facts[PREFLIGHT_WORLD];
  PreflightPair pair[3];
  PreflightFound f;
};
static void preflight_fine(PreflightCase *c) {
  memset((void *)c, 0, sizeof *c);
  for (int r = 0; r < PREFLIGHT_WORLD; r++) {
    PreflightFacts *p = &c->facts[r];
    p->rank = r;
    snprintf(p->host, sizeof p->host, "node%c", "abc"[r / 2]);
    snprintf(p->boot, sizeof p->boot, "boot%d", r / 2);
    strcpy(p->build, "1.0 (abc)"), strcpy(p->mpi, "Open MPI v4.1.4"), strcpy(p->cpu, "A CPU"), strcpy(p->isa, "amx");
    strcpy(p->gpu, "A GPU"), strcpy(p->shm_dir, "/dev/shm"), strcpy(p->kernel, "6.1");
    p->gpus = 4, p->driver = 12080, p->runtime = 12060, p->cublaslt = 120600, p->nccl = 22700;
    p->cores = 8, p->cpus = 16, p->memory = p->shm_bytes = p->shm_free = 1LL << 36;
    p->files = 4096, p->memlock = INT64_MAX;
    p->nets = 1;
    p->net[0] = PreflightNet{"eth0", "", "10.0.0.0/24", 24, 9000, 25000};
    snprintf(p->net[0].address, sizeof p->net[0].address, "10.0.0.%d", 1 + r / 2);
  }
  for (int i = 0; i < 3; i++) c->pair[i] = PreflightPair{i / 2, 1 + (i + 1) / 2, PAIR_WORKS, 20, 2e9};
  c->f.facts = c->facts;
  c->f.world = PREFLIGHT_WORLD;
  c->f.pair = c->pair;
  c->f.ends = c->f.pairs = 3;
  c->f.out_free = 1LL << 40;
  strcpy(c->f.out, "/shared/out");
  preflight_group(&c->f);
}
// What is changed, on the host `h` (-1: all), and the one finding that must follow: its kind and parts of its text.
struct PreflightWrong {
  void (*change)(PreflightCase *c, PreflightFacts *p);
  int host;
  PreflightKind kind;
  const char *says[4];
};
#define PREFLIGHT_CHANGE(...) [](PreflightCase *c, PreflightFacts *p) { (void)c, (void)p; __VA_ARGS__; }
#define PREFLIGHT_ADD(...) PREFLIGHT_CHANGE(p->net[p->nets++] = (PreflightNet{__VA_ARGS__}))
static const PreflightWrong preflight_wrongs[] = {
    {PREFLIGHT_CHANGE(strcpy(p->build, "1.0 (def)")), 1, PREFLIGHT_MEND,
     {"build: nodea has 1.0 (abc), nodeb has 1.0 (def): ", "copy the same program"}},
    {PREFLIGHT_CHANGE(strcpy(p->mpi, "Open MPI v5.0.1")), 2, PREFLIGHT_MEND,
     {"MPI: nodea has Open MPI v4.1.4, nodec has Open MPI v5.0.1: ", "LD_LIBRARY_PATH"}},
    {PREFLIGHT_CHANGE(p->driver = 12090), 1, PREFLIGHT_MEND, {"CUDA driver: nodea has 12080, nodeb has 12090: "}},
    {PREFLIGHT_CHANGE(p->runtime = 1), 1, PREFLIGHT_MEND, {"CUDA runtime: nodea has 12060, nodeb has 1: "}},
    {PREFLIGHT_CHANGE(p->cublaslt = 1), 1, PREFLIGHT_MEND, {"cuBLASLt: nodea has 120600, nodeb has 1: "}},
    {PREFLIGHT_CHANGE(p->nccl = 22600), 2, PREFLIGHT_MEND, {"NCCL: nodea has 22700, nodec has 22600: "}},
    {PREFLIGHT_CHANGE(strcpy(p->gpu, "B GPU")), 1, PREFLIGHT_MEND, {"GPU: nodea has A GPU, nodeb has B GPU: "}},
    {PREFLIGHT_CHANGE(p->gpus = 0), 2, PREFLIGHT_MEND, {"nodec cannot compute on a GPU", "--device cpu"}},
    {PREFLIGHT_CHANGE(strcpy(p->gpu_missing, "no driver")), 1, PREFLIGHT_MEND,
     {"nodeb cannot compute on a GPU, others can: no driver;"}},
    {PREFLIGHT_ADD("docker0", "172.17.0.1", "172.17.0.0/16", 16, 1500, 0), -1, PREFLIGHT_MEND,
     {"nodea (docker0) and nodeb (docker0) have the same address, 172.17.0.1", "--mca btl_tcp_if_exclude lo,docker0 ",
      "NCCL_SOCKET_IFNAME=^lo,docker0"}},
    {PREFLIGHT_ADD("eth1", "192.168.7.1", "192.168.7.0/24", 24, 1500, 0), 1, PREFLIGHT_WRONG,
     {"eth1 on nodeb (192.168.7.0/24) leads to none of the other hosts", "--mca btl_tcp_if_include 10.0.0.0/24 ",
      "NCCL_SOCKET_IFNAME=eth0"}},
    {PREFLIGHT_CHANGE(p->net[0].mtu = 1500), 2, PREFLIGHT_MEND,
     {"network 10.0.0.0/24 has packets of 9000 bytes on nodea (eth0) and 1500 on nodec (eth0)",
      "ip link set eth0 mtu 1500", "ping -M do -s 1472"}},
    {PREFLIGHT_CHANGE(p->files = 100), 1, PREFLIGHT_MEND,
     {"nodeb allows a process 100 open files, 6 ranks need 152: ulimit -n 152"}},
    {PREFLIGHT_CHANGE(p->memlock = 8 << 20; p->infiniband = 1), -1, PREFLIGHT_MEND,
     {"has InfiniBand, but a process may lock only 8192 KiB", "ulimit -l unlimited", "NCCL_IB_DISABLE=1"}},
    {PREFLIGHT_CHANGE(c->facts[0].infiniband = c->facts[2].infiniband = 1), 0, PREFLIGHT_WRONG,
     {"nodec has no active InfiniBand port, 2 other hosts have", "NCCL_IB_DISABLE=1"}},
    {PREFLIGHT_CHANGE(p->shm_free = 64 << 20), 1, PREFLIGHT_NOTE,
     {"nodeb has 64 MiB free in /dev/shm", "--shm-size", "--shm off"}},
    {PREFLIGHT_CHANGE(c->f.host[1].clock_s = -7.5), 1, PREFLIGHT_WRONG,
     {"the clock of nodeb is 7.5 s behind that of nodea", "chronyc"}},
    {PREFLIGHT_CHANGE(strcpy(c->f.out_fault, "Permission denied")), 0, PREFLIGHT_MEND,
     {"rank 0 on nodea cannot write to /shared/out: Permission denied", "--out"}},
    {PREFLIGHT_CHANGE(c->f.out_free = 9 << 20), 0, PREFLIGHT_WRONG, {"/shared/out has 9 MiB left on nodea"}},
    {PREFLIGHT_CHANGE(c->f.host[2].sees_out = 0), 0, PREFLIGHT_NOTE, {"1 of 3 hosts do not see /shared/out of nodea"}},
    {PREFLIGHT_CHANGE(strcpy(p->isa, "avx2")), 1, PREFLIGHT_NOTE, {"instruction set: nodea has amx, nodeb has avx2"}},
    {PREFLIGHT_CHANGE(strcpy(p->cpu, "B CPU")), 2, PREFLIGHT_NOTE, {"CPU: nodea has A CPU, nodec has B CPU"}},
    {PREFLIGHT_CHANGE(c->pair[1].bytes_per_s = 0.5e9), 0, PREFLIGHT_NOTE,
     {"nodea and nodec reach 0.5 GB/s, half of the pairs 2 or more"}},
    {PREFLIGHT_CHANGE(c->pair[2].latency_us = 900), 0, PREFLIGHT_NOTE,
     {"messages between nodeb and nodec take 900 us, half of the others 20 or less"}},
    {PREFLIGHT_CHANGE(c->pair[0].fault = PAIR_NO_MESSAGE), 0, PREFLIGHT_MEND,
     {"no message arrives between nodea and nodeb", "--mca btl_tcp_if_include 10.0.0.0/24 "}},
    {PREFLIGHT_CHANGE(c->pair[2].fault = PAIR_NO_LARGE_MESSAGE), 0, PREFLIGHT_MEND,
     {"small messages arrive between nodeb and nodec, large ones do not", "on nodeb: ping -M do -s 1472 nodec"}},
    {PREFLIGHT_CHANGE(c->facts[4] = c->facts[5] = PreflightFacts{}; free(c->f.host); preflight_group(&c->f);
                      c->f.pairs = 0), 0, PREFLIGHT_MEND,
     {"rank 4 sends nothing that rank 0 on nodea receives", "--mca btl_tcp_if_include 10.0.0.0/24 "}},
    {PREFLIGHT_CHANGE(c->facts[2] = c->facts[3] = PreflightFacts{}; strcpy(c->facts[2].host, "nodeb");
                      strcpy(c->facts[3].host, "nodeb"); c->facts[2].lost = c->facts[3].lost = true; free(c->f.host);
                      preflight_group(&c->f); c->f.pairs = 0), 0, PREFLIGHT_MEND,
     {"small messages arrive between nodea and nodeb, large ones do not"}}};

TEST(preflight_finds_what_is_wrong,
     "on hosts where nothing is wrong nothing is found; each thing that can be wrong is found, alone, with the hosts, "
     "what each has, and what to type; none of it twice") {
  PreflightCase *c = (PreflightCase *)malloc(sizeof *c);
  PreflightFindings k = {};
  preflight_fine(c);
  EXPECT(c->f.hosts == PREFLIGHT_HOSTS && c->f.host[2].facts->rank == 4 && c->f.host[1].ranks == 2, "%d hosts",
         c->f.hosts);
  preflight_judge(&c->f, &k);
  EXPECT(!k.count && !preflight_first_to_mend(&k), "nothing is wrong, but: %s", k.finding ? k.finding[0].text : "");
  free(c->f.host);
  free(k.finding);
  for (const PreflightWrong &w : preflight_wrongs) {
    k = PreflightFindings{};
    preflight_fine(c);
    for (int h = 0; h < PREFLIGHT_HOSTS; h++)
      if (w.host < 0 || w.host == h) w.change(c, &c->facts[2 * h]);
    preflight_judge(&c->f, &k);
    int of_kind = 0, with = -1;
    for (int i = 0; i < k.count; i++) {
      of_kind += k.finding[i].kind == w.kind;
      if (with < 0 && strstr(k.finding[i].text, w.says[0])) with = i;
    }
    REQUIRE(with >= 0, "not found: %s; but %d findings, %s", w.says[0], k.count, k.count ? k.finding[0].text : "none");
    const PreflightFinding *found = &k.finding[with];
    EXPECT(found->kind == w.kind && k.count <= (w.host < 0 && strstr(w.says[0], "Infini") ? PREFLIGHT_HOSTS : 1),
           "%s: kind %d, of %d findings", found->text, found->kind, k.count);
    EXPECT(!!preflight_first_to_mend(&k) == (w.kind == PREFLIGHT_MEND), "%s: what to mend", found->text);
    for (const char *part : w.says) EXPECT(!part || strstr(found->text, part), "no '%s' in: %s", part, found->text);
    EXPECT(strlen(found->text) < sizeof found->text - 1, "cut: %s", found->text);
    free(c->f.host);
    free(k.finding);
  }
  free(c);
}

TEST(preflight_does_not_find_what_is_right,
     "networks that mpirun was told of, two networks of all hosts, two hosts of one name, 100 Mb/s everywhere, limits "
     "that are just enough, hosts without GPUs: nothing to mend") {
  static const PreflightWrong fine[] = {
      {PREFLIGHT_ADD("eth1", "192.168.7.1", "192.168.7.0/24", 24, 1500, 0), -2, PREFLIGHT_NOTE, {}},
      {PREFLIGHT_CHANGE(c->f.network_chosen = true;
                        p->net[p->nets++] = (PreflightNet{"docker0", "172.17.0.1", "172.17.0.0/16", 16, 1500, 0})),
       -1, PREFLIGHT_NOTE, {}},
      {PREFLIGHT_CHANGE(c->f.network_chosen = true;
                        p->net[p->nets++] = (PreflightNet{"eth1", "192.168.7.1", "192.168.7.0/24", 24, 1500, 0})),
       1, PREFLIGHT_NOTE, {}},
      {PREFLIGHT_CHANGE(for (int i = 0; i < 3; i++) c->pair[i].bytes_per_s = 12e6), 0, PREFLIGHT_NOTE, {}},
      {PREFLIGHT_CHANGE(p->files = 4 * PREFLIGHT_WORLD + 128), -1, PREFLIGHT_NOTE, {}},
      {PREFLIGHT_CHANGE(p->gpus = 0), -1, PREFLIGHT_NOTE, {}},
      {PREFLIGHT_CHANGE(p->memlock = 0), -1, PREFLIGHT_NOTE, {}},
      {PREFLIGHT_CHANGE(c->f.host[1].clock_s = 3, c->f.host[1].clock_error_s = 2), 0, PREFLIGHT_NOTE, {}},
      {PREFLIGHT_CHANGE(c->f.out[0] = 0, c->f.out_free = 0), 0, PREFLIGHT_NOTE, {}}};
  PreflightCase *c = (PreflightCase *)malloc(sizeof *c);
  for (const PreflightWrong &w : fine) {
    PreflightFindings k = {};
    preflight_fine(c);
    for (int h = 0; h < PREFLIGHT_HOSTS; h++) {
      PreflightFacts *p = &c->facts[2 * h];
      if (w.host < 0 || w.host == h) w.change(c, p);
      if (w.host == -2) snprintf(p->net[1].address, sizeof p->net[1].address, "192.168.7.%d", h + 1);
    }
    preflight_judge(&c->f, &k);
    EXPECT(!k.count, "case %d: %s", (int)(&w - fine), k.finding ? k.finding[0].text : "");
    free(c->f.host);
    free(k.finding);
  }
  preflight_fine(c);
  for (int r = 0; r < PREFLIGHT_WORLD; r++) strcpy(c->facts[r].host, "localhost");
  free(c->f.host);
  preflight_group(&c->f);
  EXPECT(c->f.hosts == PREFLIGHT_HOSTS, "three machines of one name are %d hosts", c->f.hosts);
  free(c->f.host);
  free(c);
}

TEST(preflight_networks_are_named, "an address and its mask give the network, for IPv4 and IPv6") {
  static const struct { const char *address, *mask, *network; } rows[] = {
      {"10.77.3.9", "255.255.255.0", "10.77.3.0/24"}, {"172.31.9.1", "255.240.0.0", "172.16.0.0/12"},
      {"10.0.0.5", "255.255.255.255", "10.0.0.5/32"}, {"fd00:1::7", "ffff:ffff:ffff:ffff::", "fd00:1::/64"}};
  for (const auto &row : rows) {
    PreflightNet n = {};
    NetInterface x = {};
    EXPECT(net_address_of(row.address, 0, &x.at) && net_address_of(row.mask, 0, &x.mask), "no address");
    preflight_network(&n, &x);
    EXPECT(!strcmp(n.network, row.network), "%s with %s: %s, not %s", row.address, row.mask, n.network, row.network);
  }
}

TEST(preflight_counts_infiniband_ports, "the active ports of all devices count, whichever numbers they have") {
  char devices[300];
  const bool failed = chdir(test_tmp()) || system("mkdir -p a/ports/1 a/ports/2 b/ports/2\n"
      "echo '1: DOWN' >a/ports/1/state; for d in a b; do echo '4: ACTIVE' >$d/ports/2/state; done");
  snprintf(devices, sizeof devices, "%.250s/none", test_tmp());
  EXPECT(!failed && preflight_infiniband(test_tmp()) == 2, "%d active ports", preflight_infiniband(test_tmp()));
  EXPECT(!preflight_infiniband(devices), "a port where there is no device");
}

TEST(preflight_pairs_meet_once, "in the rounds of 2 to 64 hosts every two meet exactly once, nobody twice in a round") {
  for (int ends = 2; ends <= 64; ends += 2) {
    static int met[64][64];
    memset(met, 0, sizeof met);
    for (int round = 0; round < ends - 1; round++) for (int end = 0; end < ends; end++) {
      const int other = preflight_partner(end, round, ends);
      REQUIRE(other >= 0 && other < ends && other != end && preflight_partner(other, round, ends) == end,
              "%d hosts, round %d: %d meets %d", ends, round, end, other);
      met[end][other]++;
    }
    for (int a = 0; a < ends; a++) for (int b = 0; b < ends; b++)
      EXPECT(met[a][b] == (a != b), "%d hosts: %d and %d meet %d times", ends, a, b, met[a][b]);
  }
}

// ---- messages -------------------------------------------------------------------------------------------------------
static const double preflight_long = 20e3, preflight_short = 300;              // ms, for what arrives, and what not
TEST_MPI(preflight_hears_who_is_there, 3,
         "rank 0 has the facts of all ranks; one whose facts do not arrive is known by name, a silent one is not") {
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  PreflightFacts mine = {}, facts[3] = {};
  mine.rank = rank;
  snprintf(mine.host, sizeof mine.host, "node%d", rank);
  facts[0] = mine;
  for (int silent = 0; silent < 2; silent++) {
    if (rank && !(silent && rank == 2)) preflight_send(0, TAG_HELLO, mine.host, sizeof mine.host, preflight_long);
    if (rank && !silent) preflight_send(0, TAG_FACTS, &mine, sizeof mine, preflight_long);
    if (silent) MPI_Barrier(MPI_COMM_WORLD);     // what was sent is there: it does not take any time
    if (!rank) {
      const bool all = preflight_hear(facts, 3, silent ? preflight_short : preflight_long);
      EXPECT(all == !silent, "all are %sheard", all ? "" : "not ");
      EXPECT(!strcmp(facts[1].host, "node1") && facts[1].lost == silent, "rank 1: %s, lost %d", facts[1].host,
             facts[1].lost);
      EXPECT(silent ? !facts[2].host[0] : facts[2].rank == 2, "rank 2: %s", facts[2].host);
    }
    MPI_Barrier(MPI_COMM_WORLD);
  }
  // What rank 0 still waits for.
  if (rank == 2) preflight_send(0, TAG_HELLO, mine.host, sizeof mine.host, preflight_long);
  if (rank) preflight_send(0, TAG_FACTS, &mine, sizeof mine, preflight_long);
  MPI_Barrier(MPI_COMM_WORLD);
}

TEST_MPI(preflight_measures_pairs, 2,
         "a pair that works has a latency and a bandwidth; one that gets no message, or only small ones, is told so") {
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  PreflightAnswer a = preflight_measure(!rank, !rank, preflight_long, preflight_long);
  EXPECT(a.fault == PAIR_WORKS && a.latency_us > 0 && a.bytes_per_s > 0, "fault %d, %g us, %g B/s", a.fault,
         a.latency_us, a.bytes_per_s);
  static char large[2 * PREFLIGHT_LARGE_BYTES], small[2 * PREFLIGHT_SMALL_BYTES];
  if (!rank) a = preflight_measure(1, true, preflight_long, preflight_short);
  else
    for (int i = -1; i < PREFLIGHT_PINGS; i++)
      preflight_exchange(0, false, TAG_SMALL, small, PREFLIGHT_SMALL_BYTES, preflight_long);
  EXPECT(rank || a.fault == PAIR_NO_LARGE_MESSAGE, "without large messages: fault %d", a.fault);
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank) preflight_exchange(0, false, TAG_LARGE, large, PREFLIGHT_LARGE_BYTES, preflight_long);
  MPI_Barrier(MPI_COMM_WORLD);
  if (!rank) a = preflight_measure(1, true, preflight_short, preflight_long);
  EXPECT(rank || a.fault == PAIR_NO_MESSAGE, "without any message: fault %d", a.fault);
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank) preflight_exchange(0, false, TAG_SMALL, small, PREFLIGHT_SMALL_BYTES, preflight_long);
  MPI_Barrier(MPI_COMM_WORLD);
}

TEST_MPI(preflight_compares_clocks, 2,
         "one clock is ahead of itself by at most the stated error; one that is set seven seconds ahead by seven") {
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  double ahead = 1e9, within = 0;
  EXPECT(preflight_clock(!rank, !rank, preflight_long, &ahead, &within), "no exchange");
  EXPECT(rank || (fabs(ahead) <= within && within > 0), "%g s ahead of itself, within %g", ahead, within);
  for (int i = 0; i < PREFLIGHT_CLOCKS && rank; i++) {
    double now;
    preflight_receive(0, TAG_SMALL, &now, sizeof now, preflight_long);
    now = preflight_clock_s() + 7;
    preflight_send(0, TAG_SMALL, &now, sizeof now, preflight_long);
  }
  if (rank) return;
  preflight_clock(1, true, preflight_long, &ahead, &within);
  EXPECT(fabs(ahead - 7) <= within, "%g s ahead, not 7 within %g", ahead, within);
}

// ---- the program ----------------------------------------------------------------------------------------------------
TEST(preflight_on_one_host,
     "--preflight alone and on three ranks: exit code 0, the host's table, every pair of ranks, nothing trained or "
     "left; a directory that cannot be written: exit code 3 and the line; in the file of --config it is rejected") {
  for (int ranks : {0, 3}) {
    CliRun r;
    CLI_RUN(&r, "%s --preflight --out %s", cli_ranks(ranks), cli_path("a/b"));
    cli_expect_done(&r, "--preflight");
    for (const char *row : {"preflight: ", "  host      ", "  build     " PROGRAM_VERSION, "  MPI       Open MPI v",
                            "  CPU       ", "  GPU       ", "  shared    ", "  limits    ", "  out       ",
                            "preflight: nothing to mend"})
      EXPECT(strstr(r.text, row), "no '%s' in:\n%.3000s", row, r.text);
    EXPECT(cli_count(r.text, "  between   ") == ranks, "%d pairs:\n%.3000s", cli_count(r.text, "  between   "), r.text);
    EXPECT(!strstr(r.text, "loss") && access(cli_path("a"), F_OK), "something was trained or left:\n%.3000s", r.text);
    cli_free(&r);
  }
  CliRun r;
  CLI_RUN(&r, "ls -A %s | grep preflight", test_tmp());
  EXPECT(!r.text[0], "left: %s", r.text);
  cli_free(&r);
  CLI_RUN(&r, "%s --preflight --out /proc/nowhere", cli_ranks(2));
  EXPECT(r.code == 3 && cli_count(r.text, "* mend    rank 0 on ") == 1 &&
         cli_count(r.text, "cannot write to /proc: ") == 2, "exit code %d:\n%.3000s", r.code, r.text);
  cli_free(&r);
  const char *file = cli_path("options.txt");
  cli_write(file, "preflight = on\n", 15);
  CLI_RUN(&r, "%s --config %s %s", cli_ranks(0), file, cli_small());
  cli_expect_rejection(&r, "a file", 2, "--preflight belongs on the command line, not into the file of --config");
  cli_free(&r);
}

// Runs --preflight or a start on two hosts; skips where they cannot be made.
static void preflight_two_hosts(CliRun *r, int code, const char *environment, const char *program,
                                const char *options) {
  CLI_RUN(r, "%s dev/two_hosts.sh %s %s", environment, program, options);
  if (r->code == 77) SKIP("%.*s", (int)strcspn(r->text, "\n"), r->text);
  EXPECT(r->code == code, "%s: exit code %d, must be %d:\n%.4000s", environment, r->code, code, r->text);
}
TEST_WAITS(preflight_on_two_hosts,
     "two hosts: both, their networks and the pairs between them; an MTU that differs, packets that get lost, a "
     "private directory, another build: the finding, what to mend first, the exit code, and no process left behind") {
  CliRun r;
  char program[PATH_MAX + 700], options[700], other[600];
  snprintf(options, sizeof options, "--preflight --out %s", test_tmp());
  preflight_two_hosts(&r, 0, "PER=2", cli_program(), options);
  EXPECT(cli_count(r.text, "preflight: 4 ranks on 2 hosts") == 1 && cli_count(r.text, " 10.77.0.") == 2 &&
         cli_count(r.text, ": 2 ranks from rank ") == 2 && cli_count(r.text, "  between   ") == 6 &&
         cli_count(r.text, "hosts that see it: 2 of 2") == 1 && cli_count(r.text, ", clock ") == 1,
         "it printed:\n%.4000s", r.text);
  cli_free(&r);
  preflight_two_hosts(&r, 3, "MTU=1400", cli_program(), options);
  EXPECT(cli_count(r.text, "* mend    network 10.77.0.0/24 has packets of 1500 bytes on ") == 1 &&
         cli_count(r.text, "to mend first: network 10.77.0.0/24 has packets of 1500") == 1, "MTU:\n%.4000s", r.text);
  cli_free(&r);
  preflight_two_hosts(&r, 3, "HOLE=1", cli_program(), options);
  EXPECT(cli_count(r.text, "* mend    small messages arrive between ") == 1 &&
         cli_count(r.text, "to mend first: small messages arrive between ") == 1 &&
         cli_count(r.text, "rank 1, of which only short messages arrive") == 1, "a hole:\n%.4000s", r.text);
  cli_free(&r);
  snprintf(other, sizeof other, "%s", cli_path("private"));
  mkdir(other, 0777);
  snprintf(options, sizeof options, "--preflight --out %s", other);
  snprintf(program, sizeof program, "PRIVATE=%s", other);
  preflight_two_hosts(&r, 0, program, cli_program(), options);
  EXPECT(cli_count(r.text, "* out       ") == 1 && cli_count(r.text, "  note      1 of 2 hosts do not see ") == 1,
         "a private directory:\n%.4000s", r.text);
  cli_free(&r);
  // A copy with another build's name in it, for the second host.
  snprintf(other, sizeof other, "%s", cli_path("other"));
  CLI_RUN(&r, "id=$(%s --version | sed -n '1s/.*(\\(.*\\))/\\1/p') && sed \"s/$id/000000000000/g\" %s "
          "> %s && chmod +x %s "
          "&& %s --version | grep -c 000000000000", cli_program(), cli_program(), other, other, other);
  const bool copied = !r.code;
  cli_free(&r);
  EXPECT(copied, "no other build");
  snprintf(program, sizeof program, "sh -c 'case $(hostname) in *a) exec %s \"$@\";; *) exec %s \"$@\";; esac' _",
           cli_program(), other);
  preflight_two_hosts(&r, 3, "", program, "--preflight");
  EXPECT(cli_count(r.text, "* build     ") == 1 && cli_count(r.text, "to mend first: build: ") == 1 &&
         strstr(r.text, "(000000000000): copy the same program"), "another build:\n%.4000s", r.text);
  cli_free(&r);
  cli_expect_nothing_left("after the two hosts");
}

TEST(preflight_speaks_at_the_start,
     "a start of several ranks says what is wrong, a line each, and trains: an MTU that differs between hosts, too few "
     "open files; and nothing where nothing is wrong") {
  CliRun r;
  char options[3000];
  snprintf(options, sizeof options, "%s --max_steps 2 --sample_tokens 0 --eval_every -1 --save_every -1 --out %s",
           cli_small(), cli_path("out"));
  CLI_RUN(&r, "%s %s", cli_ranks(2), options);
  cli_expect_done(&r, "nothing wrong");
  EXPECT(!strstr(r.text, "warning: network ") && !strstr(r.text, "open files"), "it says:\n%.3000s", r.text);
  cli_free(&r);
  CLI_RUN(&r, "ulimit -n 130 && %s %s", cli_ranks(2), options);
  cli_expect_done(&r, "130 open files");
  EXPECT(cli_count(r.text, " allows a process 130 open files, 2 ranks need 136: ulimit -n 136 before mpirun") == 1,
         "it says:\n%.3000s", r.text);
  cli_free(&r);
  for (const char *mtu : {"", "MTU=1400"}) {
    preflight_two_hosts(&r, 0, mtu, cli_program(), options);
    EXPECT(cli_count(r.text, "warning: network 10.77.0.0/24 has packets of 1500 bytes on ") == (mtu[0] != 0) &&
           cli_count(r.text, "] step 2/2 ") == 1, "%s: it says:\n%.3000s", mtu, r.text);
    cli_free(&r);
  }
}
