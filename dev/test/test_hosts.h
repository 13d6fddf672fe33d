// test_hosts.h: gradients between hosts as an inter-node reduction chain (fsdp/hosts.h). The ranks of one machine are
// taken for those of several hosts, which share no memory.

// Which host a rank is on, in each case: three per host; two; hosts of 4 and 2 ranks, of 1 and 5, of 2, 1 and 3, of one
// each; in turn; two hosts that each have ranks of both groups of three.
enum HostMap { HOSTS_OF_3, HOSTS_OF_2, HOSTS_4_2, HOSTS_1_5, HOSTS_2_1_3, HOSTS_OF_1, HOSTS_IN_TURN, HOSTS_OF_BOTH,
               HOST_MAPS };
static HostMap host_map;
static int host_of_map(int r) {
  static const int table[HOST_MAPS][6] = {{0, 0, 0, 1, 1, 1}, {0, 0, 1, 1, 2, 2}, {0, 0, 0, 0, 1, 1},
                                          {0, 1, 1, 1, 1, 1}, {0, 0, 1, 2, 2, 2}, {0, 1, 2, 3, 4, 5},
                                          {0, 1, 0, 1, 0, 1}, {0, 0, 1, 0, 0, 1}};
  return table[host_map][r];
}
// Takes ranks for those of hosts, until hosts_end.
static inline void hosts_begin(HostMap map) { host_map = map, mesh_pretended_host = host_of_map; }
static inline void hosts_end() { mesh_pretended_host = NULL; }

// hosts: on so many sums travel, 0: gradients go straight to their owners. mesh: options that one rank does not take.
struct HostsCase { int world; HostMap map; const char *options; int hosts; const char *mesh; };
static const Ops *hosts_ops = cpu_tables[0].ops;  // emulated streams: over NCCL
static inline bool hosts_run(WorldResult *r, const Corpus *corpus, const HostsCase *k, int world) {
  memset(r, 0, sizeof *r);
  MPI_Comm comm;
  if (!world_comm(world, &comm)) return false;
  static Trainer t;
  Options o;
  test_options(&o, world, "%s %s %s", schedule_shapes, k->options, world > 1 ? k->mesh : "");
  if (!mesh_pretended_host) o.between_hosts = BETWEEN_AUTO;
  if (hosts_ops->nccl && mesh_pretended_host) o.comm = OPT_comm_nccl;
  schedule_logits(&o);
  trainer_open(&t, &o, corpus, comm, schedule_device(hosts_ops), 1);
  fsdp_cut_rounds(t.fsdp, min64(t.fsdp->lay.chunk_numel, 384));
  EXPECT(!mesh_pretended_host || t.fsdp->lay.hosts.hosts == k->hosts, "%s: sums go along %d hosts, not %d", k->options,
         t.fsdp->lay.hosts.hosts, k->hosts);
  for (int s = 0; s < 2; s++) {
    t.fsdp->traffic = Traffic{};
    const StepResult x = train_step(&t, false);
    r->loss[s] = x.loss, r->norm[s] = x.grad_norm;
    expect_traffic(t.fsdp, (int)o.grad_accum, s, k->options);
  }
  r->weights = weights_hash(t.fsdp);
  trainer_close(&t);
  MPI_Comm_free(&comm);
  return true;
}
static inline void hosts_equal(const HostsCase *k, int cases) {
  static Corpus corpus;
  schedule_corpus(&corpus);
  WorldResult one, r;
  for (int i = 0; i < cases; i++) {
    hosts_end();
    if (!i || strcmp(k[i].options, k[i - 1].options)) {
      // With zero1 a rank adds up its own microbatches first: ranks of one host, straight.
      if (!hosts_run(&one, &corpus, &k[i], strstr(k[i].options, "zero1") ? k[i].world : 1)) memset(&one, 0, sizeof one);
      MPI_Bcast(&one, sizeof one, MPI_BYTE, 0, MPI_COMM_WORLD);
    }
    hosts_begin(k[i].map);
    if (hosts_run(&r, &corpus, &k[i], k[i].world))
      EXPECT(!memcmp(&one, &r, sizeof r), "%s, hosts %d: losses %.17g %.17g (%.17g %.17g), norms %.17g (%.17g), "
             "weights %s", k[i].options, k[i].map, r.loss[0], r.loss[1], one.loss[0], one.loss[1], r.norm[0],
             one.norm[0], r.weights == one.weights ? "equal" : "differ");
  }
  hosts_end();
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}
TEST_MPI(sums_along_hosts_change_no_bit, 6,
         "2 to 6 ranks on pretended hosts, equal, unequal, of one rank, in turn: gradients summed along the hosts give "
         "the bits and the bytes of the formula; several microbatches, wires, layouts, freezing, replicas") {
  static const HostsCase cases[] = {
      {6, HOSTS_OF_3, "--between_hosts auto", 2, ""},
      {6, HOSTS_OF_2, "--between_hosts auto", 0, ""},          // as many bytes straight
      {6, HOSTS_IN_TURN, "--between_hosts auto", 0, ""},
      {6, HOSTS_OF_3, "--between_hosts direct", 0, ""},
      {4, HOSTS_OF_3, "--between_hosts chain", 2, ""},         // 3 and 1
      {6, HOSTS_OF_3, "--between_hosts chain", 2, ""},
      {6, HOSTS_OF_2, "--between_hosts chain", 3, ""},
      {6, HOSTS_4_2, "--between_hosts chain", 2, ""},
      {6, HOSTS_1_5, "--between_hosts chain", 2, ""},
      {6, HOSTS_2_1_3, "--between_hosts chain", 3, ""},
      {6, HOSTS_OF_1, "--between_hosts chain", 6, ""},
      {6, HOSTS_2_1_3, "--between_hosts chain --global_batch 6", 3, ""},
      {6, HOSTS_OF_2, "--between_hosts chain --global_batch 6 --reduce_dtype bf16 --shard dim0", 3, ""},
      {6, HOSTS_4_2, "--between_hosts chain --global_batch 6 --reduce_dtype bf16 --shard dim0", 2, ""},
      {6, HOSTS_OF_3, "--between_hosts chain --reduce_dtype bf16 --param_dtype bf16 --recompute block", 2, ""},
      {6, HOSTS_2_1_3, "--between_hosts chain --reduce_dtype fp16 --freeze wte,h.1.*,*.ln_* --gather_slots 1", 3, ""},
      {4, HOSTS_OF_2, "--between_hosts chain --strategy zero2 --wrap min_params:1000 --fp8 gather", 2, ""},
      {6, HOSTS_OF_2, "--between_hosts chain --strategy zero1 --global_batch 6 --wrap model", 3, ""},
      {6, HOSTS_2_1_3, "--between_hosts chain --strategy zero1 --global_batch 6 --reduce_dtype bf16", 3, ""},
      {6, HOSTS_OF_1, "--between_hosts chain", 3, "--mesh 2x3"},
      {6, HOSTS_OF_BOTH, "--between_hosts chain", 2, "--mesh 2x3"},
      {6, HOSTS_OF_1, "--between_hosts chain --reduce_dtype bf16", 2, "--mesh 3x2 --shm copy"},
      {6, HOSTS_OF_1, "--between_hosts chain --optimizer sgd", 6, "--reshard_after_forward 2"}};
  hosts_equal(cases, (int)(sizeof cases / sizeof *cases));
}
TEST_MPI(sums_along_hosts_change_no_bit_nccl, 6,
         "the same over NCCL on emulated streams") {
  if (!&ops_streams) SKIP("this test program was linked without dev/cuda_emu");
  static const HostsCase cases[] = {
      {4, HOSTS_OF_2, "--between_hosts auto", 0, ""},
      {4, HOSTS_OF_2, "--between_hosts chain", 2, ""},
      {6, HOSTS_OF_2, "--between_hosts chain --graph on", 3, ""},
      {6, HOSTS_2_1_3, "--between_hosts chain --reduce_dtype bf16 --shard dim0", 3, ""},
      {6, HOSTS_4_2, "--between_hosts chain --global_batch 6 --freeze wte,h.1.*,*.ln_*", 2, ""},
      {6, HOSTS_OF_1, "--between_hosts chain --param_dtype bf16 --recompute block --wrap model", 6, ""},
      {4, HOSTS_OF_3, "--between_hosts chain --strategy zero1 --global_batch 4 --reduce_dtype bf16", 2, ""}};
  hosts_ops = &ops_streams;
  hosts_equal(cases, (int)(sizeof cases / sizeof *cases));
  hosts_ops = cpu_tables[0].ops;
}
TEST(sums_along_hosts_carry_these_bytes,
     "bytes of the busiest host for each element of the gradients: those of the table in docs/sharding.md; the part of "
     "an owner is added to once on each host, and what a rank sends its successor receives; ranks in turn are found") {
  static const struct { int hosts, n; double fp32, bf16, along; const char *row; } table[] = {
      {2, 8, 16, 8, 4, "| 2 hosts of 8, fp32; bf16 | 16; 8 | 4 |"},
      {4, 8, 24, 12, 5, "| 4 hosts of 8, fp32; bf16 | 24; 12 | 5 |"},
      {8, 8, 28, 14, 4.5, "| 8 hosts of 8, fp32; bf16 | 28; 14 | 4.5 |"},
      {2, 2, 4, 2, 4, "| 2 hosts of 2, fp32; bf16 | 4; 2 | 4 |"}};
  size_t n = 0;
  char *page = data_read("docs/sharding.md", &n);
  for (const auto &k : table) {
    int first[16];
    for (int h = 0; h <= k.hosts; h++) first[h] = h * k.n;
    const double S = k.hosts * k.n;
    for (int starts = 0; starts <= 1; starts++) {
      const HostsBytes a = hosts_busiest(first, k.hosts, 1, starts, 4), b = hosts_busiest(first, k.hosts, 1, starts, 2);
      EXPECT((double)a.straight == k.fp32 * S && (double)b.straight == k.bf16 * S && (double)a.along == k.along * S &&
             a.along == b.along, "%s: %g and %g straight, %g along", k.row, (double)a.straight / S,
             (double)b.straight / S, (double)a.along / S);
    }
    EXPECT(page && strstr(page, k.row), "docs/sharding.md has no line %s", k.row);
  }
  free(page);
  FsdpConfig c = {};
  c.comm = COMM_MPI, c.between = BETWEEN_CHAIN;
  for (int per = 1; per <= 5; per++) for (int world = per + 1; world <= 13; world++) {
    HostsLayout x[16];
    Mesh m[16];
    int added[16] = {}, hosts = (world + per - 1) / per;
    for (int r = 0; r < world; r++) {
      mesh_pretend(&m[r], MeshShape{1, world, 0}, true, r, world, per);
      x[r] = hosts_layout(&c, &m[r], false);
    }
    for (int r = 0; r < world; r++) for (int p = 0; p < x[r].parts; p++) {
      const HostPart *part = &x[r].part[p];
      added[part->owner]++;
      bool next = x[r].me == hosts - 1 && part->after == part->owner;
      const HostsLayout *y = &x[part->after];
      for (int q = 0; q < y->parts; q++)
        next = next || (y->me == x[r].me + 1 && y->part[q].owner == part->owner && y->part[q].before == r);
      EXPECT(next, "%d ranks, %d per host: rank %d gives the part of %d to %d", world, per, r, part->owner,
             part->after);
    }
    for (int r = 0; r < world; r++) {
      EXPECT(added[r] == hosts && x[r].part[x[r].own].owner == r, "%d ranks, %d per host: the part of %d is added to "
             "by %d ranks", world, per, r, added[r]);
      free(x[r].part);
      free(x[r].adder);
      mesh_close(&m[r]);
    }
  }
  Peer peer[4] = {{0, NULL}, {1, NULL}, {0, NULL}, {1, NULL}};
  Mesh m = {};
  m.world = 4, m.shape = MeshShape{1, 4, 0}, m.peer = peer, m.windows = true;
  EXPECT(hosts_out_of_order(&m) == 1 && hosts_why_not(&c, &m, false), "ranks in turn are taken for consecutive ones");
}
TEST_MPI(schedule_log_is_proven_along_hosts, 6,
         "sums along pretended hosts of two ranks: the record proves their order; every broken record is seen") {
  static const SchedMode modes[] = {{4, "mpi", "--between_hosts chain", 384},
                                    {4, "mpi", "--between_hosts chain --global_batch 4 --reduce_dtype bf16", 384},
                                    {6, "mpi", "--between_hosts chain --gather_slots 1", 384},
                                    {6, "mpi", "--between_hosts chain --global_batch 6 --strategy zero1", 384}};
  static const SchedMode replicas[] = {{6, "mpi", "--between_hosts chain --mesh 2x3 --shm copy", 384}};
  hosts_begin(HOSTS_OF_2);
  sched_modes_hold(cpu_tables[0].ops, modes, (int)(sizeof modes / sizeof *modes), SCHED_MUTANTS_A_SITE);
  hosts_begin(HOSTS_OF_BOTH);
  sched_modes_hold(cpu_tables[0].ops, replicas, 1, SCHED_MUTANTS_A_SITE);
  hosts_end();
}
TEST_MPI(schedule_log_is_proven_along_hosts_nccl, 6, "the same over emulated streams and NCCL") {
  if (!&ops_streams) SKIP("this test program was linked without dev/cuda_emu");
  static const SchedMode modes[] = {{4, "nccl", "--between_hosts chain --graph off", 384},
                                    {4, "nccl", "--between_hosts chain --global_batch 4 --reduce_dtype bf16", 384},
                                    {6, "nccl", "--between_hosts chain --global_batch 6 --strategy zero1", 384}};
  hosts_begin(HOSTS_OF_2);
  sched_modes_hold(&ops_streams, modes, (int)(sizeof modes / sizeof *modes), SCHED_MUTANTS_A_SITE);
  hosts_end();
}

TEST(groups_across_hosts_are_counted, "groups of ranks that span several hosts although one has room, by placement") {
  static const struct { int world, per, stride, size, across; } table[] = {
      {4, 2, 1, 2, 0}, {4, 2, 2, 2, 2}, {4, 2, 2, 1, 0}, {4, 2, 1, 4, 0},
      {6, 3, 1, 2, 1}, {6, 3, 1, 3, 0}, {8, 4, 2, 4, 2}};
  for (const auto &row : table) {
    static Fsdp f;
    Mesh &m = f.mesh;
    Peer peer[8] = {};
    for (int r = 0; r < row.world; r++) peer[r].host = row.stride == 1 ? r / row.per : r % (row.world / row.per);
    m.world = row.world, m.node_world = row.per, m.peer = peer;
    const int across = fsdp_groups_across(&f, row.size);
    EXPECT(across == row.across, "%d ranks, %d per host, stride %d, groups of %d: %d, must be %d", row.world, row.per,
           row.stride, row.size, across, row.across);
  }
}
