// test_plan_report.h: --plan. What it says of bytes and collectives is what runs take and count; what it predicts
// follows from the schedule and from the machine's figures.
//
//   1 ranks       ranks of one kind are alike in every byte; bytes on links are those of the peers there
//   2 runs        planned = printed = taken = counted, on 1, 2 and 3 ranks
//   3 output      text and JSON agree; 175 billion parameters on 1024 GPUs; what fits; rejections
//   4 prediction  FLOPs by formula, time within bounds that any schedule has, waits by hand
#include <cjson/cJSON.h>

// The options of a --plan, not resolved.
static inline void plan_asked(Options *o, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static inline void plan_asked(Options *o, const char *fmt, ...) {
  char text[1024], *argv[96] = {(char *)"test", (char *)"--plan"}, *save = NULL;
  Error error = {};
  int argc = 2;
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  for (char *word = strtok_r(text, " ", &save); word; word = strtok_r(NULL, " ", &save)) argv[argc++] = word;
  const bool ok = options_parse(o, &trainer_table, argc, argv, &error);
  if (ok) return;
  test_fail(__FILE__, __LINE__, "options: %s", error.text);
  exit(TEST_EXIT_FAILED);
}
static inline bool plan_made(WorldPlan *w, const Options *asked, bool timed) {
  Error error = {};
  const bool ok = world_plan(w, asked, timed, NULL, &error);
  EXPECT(ok, "%s", error.text);
  return ok;
}

// ================================================================================================ 1 ranks
// The key of a rank, by looking at where every peer is.
static inline RankKey plan_key_by_peers(const Mesh *m) {
  const int host = m->peer[m->rank].host, R = m->shape.replicas;
  const int me = m->replicate.me, role = R == 1 ? ROLE_ONE : !me ? ROLE_FIRST : me == R - 1 ? ROLE_LAST : ROLE_BETWEEN;
  RankKey k = {};
  for (int r = 0; r < m->world; r++) k.host += m->peer[r].host == host;
  for (int i = 0; i < m->shard.size; i++) k.shards += m->peer[m->shard.rank[i]].host == host;
  for (int i = 0; i < m->secondary.size; i++) k.secondary += m->peer[m->secondary.rank[i]].host == host;
  for (int i = 0; i < R; i++) k.replicas += m->peer[m->replicate.rank[i]].host == host;
  k.role = role;
  k.before_near = m->peer[m->replicate.rank[(m->replicate.me + R - 1) % R]].host == host;
  k.last_near = m->peer[m->replicate.rank[R - 1]].host == host;
  return k;
}
TEST(plan_keys_are_what_a_rank_sees,
     "for every rank of meshes of 1 to 48 ranks on hosts of 1 to 9 ranks: the kind it is given is what counting its "
     "peers by host says") {
  int ranks = 0;
  for (int world = 1; world <= 48; world += world < 13 ? 1 : 5) for (int S = 1; S <= world; S++)
    for (int kept = 0; kept <= 4 && world % S == 0; kept += 2) for (int per_host = 1; per_host <= 9; per_host++) {
      if (kept && (S % kept || kept == S)) continue;
      for (int r = 0; r < world; r++, ranks++) {
        Mesh m;
        const MeshShape shape = {world / S, S, kept};
        mesh_pretend(&m, shape, true, r, world, per_host);
        const RankKey want = plan_key_by_peers(&m), got = rank_key(shape, r, world, per_host);
        EXPECT(!memcmp(&want, &got, sizeof want), "rank %d of %d in a %dx%d mesh, kept %d, %d per host: %d %d %d %d %d "
               "%d %d, must be %d %d %d %d %d %d %d", r, world, world / S, S, kept, per_host, got.host, got.shards,
               got.secondary, got.replicas, got.role, got.before_near, got.last_near, want.host, want.shards,
               want.secondary,
               want.replicas, want.role, want.before_near, want.last_near);
        mesh_close(&m);
      }
    }
  printf("%d ranks\n", ranks);
}

// Inter-node reduction chain of a shard group, owner by owner and hop by hop: what comes to this rank from its host
// (what its neighbours contribute), or from others.
static inline int64_t plan_along_bytes(const Fsdp *f, bool near, int A) {
  const Mesh *m = &f->mesh;
  const int S = m->shard.size, me = m->shard.me;
  int host[64], hosts = 0, count[64] = {}, base[64], number[256];
  for (int i = 0; i < S; i++) {
    const int at = m->peer[m->shard.rank[i]].host;
    if (!hosts || host[hosts - 1] != at) host[hosts] = at, base[hosts++] = i;
    number[i] = count[hosts - 1]++;
  }
  int64_t bytes = 0;
  for (int u = 0; u < f->lay.units; u++) {
    const Unit *q = &f->lay.unit[u];
    const int64_t e = unit_wire_numel(q);
    for (int a = 0; a < (f->cfg.local ? 1 : A) && q->state_numel; a++) for (int o = 0; o < S; o++) {
      const bool begins = !a && !m->replicate.me;
      int from = begins ? -1 : o;                // who has the sum so far
      for (int h = 0; h < hosts; h++) {
        const int r = base[h] + number[o] % count[h];
        const int64_t sum = from >= 0 && from != r ? 4 * e : 0;
        if (r == me) bytes += near ? (count[h] - 1) * e * (int64_t)fsdp_wire_bytes(f) : sum;
        from = r;
      }
      if (o == me && !near && from != me) bytes += 4 * e;
    }
  }
  return bytes;
}
// What messages bring to a rank from its host (near) or from others, peer by peer: an independent count of fsdp_links.
// NCCL's rings are not messages; their shares are checked by their sum.
static inline int64_t plan_message_bytes(const Fsdp *f, LinkUse use, bool near, int A) {
  const Mesh *m = &f->mesh;
  const int S = m->shard.size, R = m->replicate.size, host = m->peer[m->rank].host;
  int64_t bytes = 0;
  if (use == LINK_REDUCTIONS && f->lay.hosts.hosts) return plan_along_bytes(f, near, A);
  for (int i = 0; i < S && use != LINK_REPLICAS && use != LINK_SMALL; i++) {
    if (i == m->shard.me || (m->peer[m->shard.rank[i]].host == host) != near) continue;
    for (int u = 0; u < f->lay.units; u++) {
      const Unit *q = &f->lay.unit[u];
      const int64_t reductions = f->cfg.local ? 1 : A;
      if (use == LINK_REDUCTIONS && q->state_numel && f->lay.stage[q->stage].grads != GRADS_IN_SHARD)
        bytes += reductions * unit_wire_numel(q) * (int64_t)fsdp_wire_bytes(f);
      if (use != LINK_GATHERS || f->lay.in_place) continue;
      const int64_t gathers = q->stage ? fsdp_block_gathers(&f->cfg, q->stage - 1, A) : 1;
      bytes += (q->stage && m->shape.secondary ? 1 : gathers) * unit_wire_bytes(q);
    }
  }
  for (int i = 0; i < m->secondary.size && m->shape.secondary && use == LINK_GATHERS && !f->lay.in_place; i++) {
    if (i == m->secondary.me || (m->peer[m->secondary.rank[i]].host == host) != near) continue;
    for (int u = 0; u < f->lay.units; u++)
      if (const int s = f->lay.unit[u].stage)
        bytes += (fsdp_block_gathers(&f->cfg, s - 1, A) - 1) * unit_wire_bytes(&f->lay.unit[u]) *
                 (S / m->shape.secondary);
  }
  if (use == LINK_REPLICAS && R > 1 && !f->cfg.native_reduce) {
    const int before = m->replicate.rank[(m->replicate.me + R - 1) % R], last = m->replicate.rank[R - 1];
    const int64_t times = (f->cfg.local ? 1 : A) - (m->replicate.me == 0);
    if ((m->peer[before].host == host) == near) bytes += times * f->lay.state_numel * 4;
    if (m->rank != last && (m->peer[last].host == host) == near) bytes += f->lay.state_numel * 4;
  }
  for (int r = 0; r < m->world && use == LINK_UPDATES && !f->lay.owned.in_place; r++)
    for (int i = 0; i < f->lay.owned.matrices && r != m->rank && (m->peer[r].host == host) == near; i++) {
      const OwnedMatrix *x = &f->lay.owned.matrix[i];
      Span run;
      if (x->owner == m->rank && r / S == m->rank / S && owned_run(f, x, r % S, &run)) bytes += 2 * run.numel;
      if (x->owner == r && owned_run(f, x, m->rank % S, &run)) bytes += 2 * run.numel;
    }
  for (int r = 0; r < m->world && use == LINK_SMALL; r++)
    if (r != m->rank && (m->peer[r].host == host) == near)
      bytes += (int64_t)f->cfg.small_bytes + 4 * (int64_t)f->lay.scales_trained;
  return bytes;
}
// Every rank of a plan has the bytes of its kind.
static inline void plan_expect_kinds(const char *what, const Options *asked) {
  static WorldPlan w;
  static Trainer t;
  if (!plan_made(&w, asked, false)) return;
  const int world = (int)w.opt.world, per_host = (int)w.opt.ranks_per_host, A = (int)w.opt.grad_accum;
  const RankOwners owners = rank_owners(&w.opt);
  const bool along = plan_goes_along(&w.opt);
  int ranks = 0;
  for (int c = 0; c < w.classes; c++) ranks += w.rank[c].count;
  EXPECT(ranks == world, "%s: kinds of %d ranks, there are %d", what, ranks, world);
  for (int r = 0; r < world; r++) {
    RankKey key = rank_key(mesh_shape_of(&w.opt), r, world, per_host);
    key.threads = w.rank[0].key.threads;         // the test asks for a number
    key.owns = rank_owns(owners, r);
    if (along) rank_along(&key, mesh_shape_of(&w.opt), r, per_host);
    int c = 0;
    while (c < w.classes && memcmp(&w.rank[c].key, &key, sizeof key)) c++;
    REQUIRE(c < w.classes, "%s: rank %d is of no kind", what, r);
    const RankClass *k = &w.rank[c];
    trainer_plan_as(&t, &w.opt, w.on.device, r, world, per_host, key.threads);
    const Traffic traffic = fsdp_formula(t.fsdp, A);
    EXPECT(!memcmp(t.run.plan.planned_bytes, k->memory.planned_bytes, sizeof t.run.plan.planned_bytes) &&
           !memcmp(&traffic, &k->traffic, sizeof traffic), "%s: rank %d takes %zu bytes, rank %d of its kind %zu, or "
           "moves others", what, r, memory_planned_total(&t.run.plan, MEMORY_ALL), k->first,
           memory_planned_total(&k->memory, MEMORY_ALL));
    const int64_t all[LINK_USES] = {traffic.gather_bytes, traffic.reduce_bytes, traffic.replicate_bytes,
                                    traffic.update_bytes, traffic.small_bytes};
    for (int use = 0; use < LINK_USES; use++) {
      const int64_t in = k->links.inside[use], out = k->links.between[use];
      EXPECT(in >= 0 && out >= 0 && in + out == all[use], "%s, rank %d, %s: %lld and %lld bytes, %lld by the formula",
             what, r, link_words[use], (long long)in, (long long)out, (long long)all[use]);
      const int64_t near = plan_message_bytes(t.fsdp, (LinkUse)use, true, A);
      EXPECT(w.on.gpu || in == near, "%s, rank %d, %s: %lld bytes from its host, %lld by peers", what, r,
             link_words[use], (long long)in, (long long)near);
    }
    trainer_plan_close(&t);
  }
  free(owners.count);
  world_plan_free(&w);
}
TEST(plan_ranks_of_a_kind_are_alike,
     "for the covering set of modes on hosts of 1, 2 and 3 ranks, and for larger worlds over NCCL: each rank, planned "
     "by itself, has the bytes of every line and the collectives of its kind; bytes on links add up to the formula's, "
     "and over messages are those of the peers there") {
  static ModeSet s;
  static Options o;
  char text[512];
  plan_modes(&s);
  for (int i = 0; i < s.rows; i++) {
    Error error = {};
    const int world = mode_world(&s.row[i]);
    mode_text(text, sizeof text, &s.row[i]);
    mode_options(&o, &s.row[i], mode_microbatches(&s.row[i]), &error);
    o.plan = OPT_plan_on;
    o.device = OPT_device_cpu;
    o.threads = 1;
    o.world = world;
    o.ranks_per_host = 1 + i % 3;
    plan_expect_kinds(text, &o);
  }
  for (const char *more :
       {"--world 24 --mesh 4x6 --model small --ranks_per_host 8 --device cuda --grad_accum 2",
        "--world 12 --mesh 3x4 --model tiny --ranks_per_host 4 --device cuda --dtype bf16 --reduce native",
        "--world 16 --model tiny --device cuda --reshard_after_forward 4 --gather_slots 1",
        "--world 12 --model tiny --ranks_per_host 4 --device cpu --grad_accum 2 --threads 1",
        "--world 11 --model tiny --ranks_per_host 4 --device cuda --grad_accum 2 --between_hosts chain",
        "--world 11 --model tiny --ranks_per_host 4 --device cpu --dtype bf16 --between_hosts chain --threads 1",
        "--world 8 --mesh 2x4 --model tiny --ranks_per_host 3 --device cpu --between_hosts chain --threads 1",
        "--world 6 --model tiny --device cuda --comm mpi --ranks_per_host 2 --dtype bf16",
        "--world 9 --model tiny --device cuda --offload params --ranks_per_host 4"}) {
    plan_asked(&o, "%s", more);
    plan_expect_kinds(more, &o);
  }
}

// ================================================================================================ 2 runs
static const char *const plan_run_modes[] = {
    "", "--strategy zero2 --dtype bf16", "--grad_accum 2 --shard dim0 --recompute block",
    "--shm copy --gather_slots 1 --param_dtype bf16 --fp8 gather", "--shm off --accumulate local --grad_accum 3",
    "--strategy ddp --optimizer sgd --save_async"};
TEST_MPI(plan_is_what_ranks_take, 3,
         "planned for 1, 2 and 3 ranks of this machine: what each of them then takes, line by line but for the tokens "
         "and their order, and what its transport counts in a step") {
  static const char shapes[] = "--n_layer 3 --n_head 2 --n_embd 20 --seq_len 7 --n_positions 9 --vocab_size 101 "
                               "--batch_size 2 --threads 2 --device cpu";
  static Corpus corpus;
  static Trainer t;
  static WorldPlan w;
  static Options o;
  test_corpus(&corpus, 101, 6 * 2 * 7 * 9 + 1, 60);
  for (int world = 1; world <= 3; world++) for (const char *mode : plan_run_modes) {
    int rank;
    MPI_Comm comm;
    if (!world_comm(world, &comm)) continue;
    MPI_Comm_rank(comm, &rank);
    if (world == 1 && (strstr(mode, "gather_slots") || strstr(mode, "ddp"))) { MPI_Comm_free(&comm); continue; }
    plan_asked(&o, "%s --world %d %s", shapes, world, mode);
    if (!plan_made(&w, &o, false)) return;
    int c = 0;
    const RankKey key = w.rank[0].key;
    for (int i = 0; i < w.classes; i++) if (w.rank[i].first <= rank) c = i;      // one host: kinds in order of ranks
    Options run = o;
    Error error = {};
    run.world = 1;
    run.plan = OPT_plan_off;
    EXPECT(options_resolve(&run, world, world, &error), "%s", error.text);
    trainer_open(&t, &run, &corpus, comm, device_of(agree_on_ops(&run, comm)), key.threads);
    for (int i = 0; i < MEM_COUNT; i++) {
      const size_t tokens = i == MEM_DATA ? t.order_bytes + t.corpus_bytes : 0;
      EXPECT(t.run.plan.taken_bytes[i] == w.rank[c].memory.planned_bytes[i] + tokens, "%d ranks, %s, rank %d: %s: %zu "
             "bytes taken, %zu planned", world, mode, rank, memory_words[i], t.run.plan.taken_bytes[i],
             w.rank[c].memory.planned_bytes[i]);
    }
    train_step(&t, false);
    const Traffic *want = &w.rank[c].traffic, *got = &t.run.step_traffic;
    EXPECT(!memcmp(want, got, sizeof *want), "%d ranks, %s, rank %d: gathers %lld of %lld bytes (planned %lld, %lld), "
           "reductions %lld of %lld (%lld, %lld)", world, mode, rank, (long long)got->gathers,
           (long long)got->gather_bytes, (long long)want->gathers, (long long)want->gather_bytes,
           (long long)got->reductions, (long long)got->reduce_bytes, (long long)want->reductions,
           (long long)want->reduce_bytes);
    trainer_close(&t);
    world_plan_free(&w);
    MPI_Comm_free(&comm);
  }
}

static inline const cJSON *plan_item(const cJSON *o, const char *key) {
  return cJSON_GetObjectItemCaseSensitive(o, key);
}
static inline double plan_number(const cJSON *o, const char *key) {
  const cJSON *v = plan_item(o, key);
  EXPECT(cJSON_IsNumber(v), "there is no number %s", key);
  return cJSON_IsNumber(v) ? v->valuedouble : NAN;
}
// Of a plan's JSON: the kind that rank `rank` is of, if its ranks follow each other.
static inline const cJSON *plan_kind(const cJSON *plan, int rank) {
  const cJSON *found = NULL, *k;
  cJSON_ArrayForEach(k, plan_item(plan, "rank_kinds")) if (plan_number(k, "rank") <= rank) found = k;
  return found;
}
TEST(cli_plan_is_what_runs_print,
     "--plan --json --world N, started alone and without the corpus: on 1, 2 and 3 ranks the first record of "
     "metrics.jsonl has the same bytes, but for tokens and their order, and every step its collectives and bytes") {
  static const struct { int ranks; const char *options; } rows[] = {
      {0, ""}, {0, "--dtype bf16 --recompute mlp"}, {2, "--grad_accum 2 --strategy zero2"},
      {2, "--shm copy --gather_slots 1 --dtype bf16"}, {3, "--strategy zero1"}, {3, "--mesh 3x1 --reduce_dtype bf16"},
      {0, "--threads 0"}, {2, "--threads 0"}, {3, "--threads 0"},
      {2, "--trace t --trace_steps 1:900000 --max_steps 2"}, {0, "--data generated --vocab_size 2048"}};
  CliRun r;
  CliMetrics m;
  char out[600];
  snprintf(out, sizeof out, "%s", cli_path("out"));
  for (const auto &row : rows) {
    const bool generated = strstr(row.options, "generated");
    CLI_RUN(&r, "cd %s; %s %s %s %s --plan --json --device cpu --world %d --out %s", test_tmp(), cli_ranks(0),
            cli_small(), row.options, generated ? "" : "--data /nowhere", row.ranks ? row.ranks : 1,
            cli_path("not_made"));
    cJSON *plan = cJSON_Parse(r.text);
    EXPECT(r.code == 0 && plan && access(cli_path("not_made"), F_OK), "%s: exit %d, it printed:\n%.2000s", row.options,
           r.code, r.text);
    cli_free(&r);
    CLI_RUN(&r, "cd %s; %s %s %s --device cpu --max_steps 2 --eval_every -1 --save_every -1 --out %s", test_tmp(),
            cli_ranks(row.ranks), cli_small(), row.options, out);
    cli_expect_done(&r, row.options);
    cli_free(&r);
    cli_metrics(&m, out);
    const cJSON *kind = plan_kind(plan, 0), *planned = plan_item(kind, "memory_plan_bytes");
    const cJSON *printed = plan_item(m.line[0], "memory_plan_bytes");
    for (int i = 0; i < MEM_COUNT; i++) {
      const double want = plan_number(printed, memory_words[i]), got = plan_number(planned, memory_words[i]);
      EXPECT(i == MEM_DATA ? got > 0 && got < want : got == want, "%s: %s: planned %.0f, printed %.0f", row.options,
             memory_words[i], got, want);
    }
    for (int i = 1; i <= 2; i++) for (const char *key : {"gathers", "reductions", "gather_bytes", "reduce_bytes",
                                                         "replicate_bytes"}) {
      const double want = plan_number(m.line[i], key), got = plan_number(plan_item(kind, "step_traffic"), key);
      EXPECT(got == want, "%s, step %d: %s: planned %.0f, counted %.0f", row.options, i, key, got, want);
    }
    cli_metrics_free(&m);
    cJSON_Delete(plan);
  }
  CLI_RUN(&r, "%s %s --plan --json", cli_ranks(3), cli_small());   // by mpirun: one voice, and its number of ranks
  cJSON *plan = cJSON_Parse(r.text);
  EXPECT(r.code == 0 && cli_count(r.text, "{") == 1 && plan && plan_number(plan, "ranks") == 3, "under mpirun, exit "
         "%d:\n%.2000s", r.code, r.text);
  cJSON_Delete(plan);
  cli_free(&r);
}

// ================================================================================================ 3 output
// The line that starts so has this number.
static inline void plan_expect_said(const char *what, const char *text, const char *begin, double number) {
  char line[96], want[64];
  snprintf(line, sizeof line, "\n%s ", begin);
  const char *at = strstr(text, line);
  const int n = snprintf(want, sizeof want, " %.0f", number);
  bool said = false;
  for (const char *c = at ? at + 1 : ""; *c && *c != '\n' && !said; c++)
    said = !strncmp(c, want, (size_t)n) && !isdigit((uint8_t)c[n]);
  EXPECT(said, "%s: no line '%s' with%s:\n%.4000s", what, begin, want, text);
}
TEST(plan_text_and_json_agree,
     "the JSON of a plan parses; its figures are those of the text, lines add up to totals, parts to the step; tokens, "
     "sequences, FLOPs and days follow from each other; all that is predicted is below that word") {
  static Options o;
  CliRun r[2];
  for (const char *row : {"--model gpt2 --world 16 --on h100 --dtype bf16 --grad_accum 3 --tokens 1e9 "
                          "--sm_margin 8",
                          "--model small --world 6 --ranks_per_host 4 --on cpu,memory_gib=40 --threads 2 --shm copy",
                          "--model tiny --world 8 --mesh 2x4 --device cuda --global_batch 512"}) {
    plan_asked(&o, "%s", row);
    CLI_RUN(&r[0], "%s --plan %s", cli_ranks(0), row);
    CLI_RUN(&r[1], "%s --plan --json %s", cli_ranks(0), row);
    const char *text = r[0].text;
    cJSON *j = cJSON_Parse(r[1].text);
    REQUIRE(!r[0].code && !r[1].code && j, "%s: exit %d, %d; it printed:\n%.2000s", row, r[0].code, r[1].code,
            r[1].text);
    const cJSON *kind = plan_kind(j, (int)plan_number(j, "needs_most")), *lines = plan_item(kind, "memory_plan_bytes");
    double sum = 0, use_sum = 0;
    for (int i = 0; i < MEM_COUNT; i++) {
      const double bytes = plan_number(lines, memory_words[i]);
      char line[80];
      snprintf(line, sizeof line, "  %s", memory_words[i]);
      if (bytes > 0) plan_expect_said(row, text, line, bytes);
      sum += bytes;
    }
    for (const char *use : memory_use_words) use_sum += plan_number(plan_item(kind, "memory_use_bytes"), use);
    EXPECT(sum == plan_number(kind, "total_bytes") && sum == use_sum, "%s: lines add up to %.0f, uses to %.0f", row,
           sum, use_sum);
    plan_expect_said(row, text, "  total", sum);
    const cJSON *shared = plan_item(kind, "shared_memory_bytes");
    const double placed = plan_number(shared, "placed"), alive = plan_number(shared, "alive_most");
    char line[160];
    snprintf(line, sizeof line, "\n  Of it %.0f bytes are shared by buffers of disjoint live ranges; at most %.0f of "
             "them are live\n", placed, alive);
    EXPECT(alive > 0 && alive <= placed && placed < sum && strstr(text, line), "%s: no line is%s", row, line);
    double in = 0, out = 0;
    for (const char *use : link_words) {
      in += plan_number(plan_item(kind, "inside_host_bytes"), use);
      out += plan_number(plan_item(kind, "between_hosts_bytes"), use);
    }
    const char *all = strstr(text, "\n  all ");
    double said[2] = {-1, -1};
    EXPECT(all && sscanf(all, " all %lf %lf", &said[0], &said[1]) == 2 && said[0] == in && said[1] == out, "%s: %.0f "
           "bytes inside a host, %.0f between hosts; the text has %.0f and %.0f", row, in, out, said[0], said[1]);
    const cJSON *step = plan_item(j, "step"), *model = plan_item(j, "model"), *predicted = plan_item(j, "predicted");
    const double tokens = plan_number(step, "tokens"), sequences = plan_number(step, "sequences");
    EXPECT(tokens == sequences * plan_number(plan_item(j, "config"), "seq_len") &&
           sequences == plan_number(step, "microbatches") * (double)(o.batch_size * o.world), "%s: %.0f tokens", row,
           tokens);
    EXPECT(fabs(plan_number(step, "flop") / (tokens * plan_number(model, "flops_per_token")) - 1) < 1e-12, "%s: FLOPs",
           row);
    EXPECT((predicted != NULL) == (o.on[0] != 0) && (strstr(text, "predicted") != NULL) == (o.on[0] != 0), "%s: %s",
           row, predicted ? "predicted" : "not predicted");
    if (predicted) {
      double parts = 0;
      for (const char *part : step_part_words) parts += plan_number(plan_item(predicted, "parts_s"), part);
      const double s = plan_number(predicted, "step_s"), rate = plan_number(predicted, "tokens_per_s");
      EXPECT(fabs(parts / s - 1) < 1e-9 && fabs(rate * s / tokens - 1) < 1e-9, "%s: parts %g, step %g, %g tokens/s",
             row, parts, s, rate);
      EXPECT(fabs(plan_number(predicted, "mfu") * plan_number(predicted, "peak_flops") * (double)o.world * s /
                  plan_number(step, "flop") - 1) < 1e-9, "%s: MFU", row);
      if (o.tokens) EXPECT(fabs(plan_number(predicted, "days") * 86400 * rate / 1e9 - 1) < 1e-9, "%s: days", row);
      for (const char *key : {"largest_batch_size", "largest_seq_len"}) {
        char line[64];
        const cJSON *fit = plan_item(predicted, key);
        snprintf(line, sizeof line, "--%s", key + strlen("largest_"));
        const char *at = strstr(text, line);
        EXPECT(at && atoll(at + strlen(line)) == (long long)plan_number(fit, "value"), "%s: %s", row, key);
      }
      const int margin = (int)plan_number(predicted, "sm_margin");
      EXPECT(margin == atoi(o.sm_margin) && (strstr(text, "have 124 of 132 SMs") != NULL) == (margin == 8),
             "%s: --sm_margin %d", row, margin);
      const char *below = strstr(text, "\npredicted on ");
      for (const char *words : {"tokens/s", "MFU", " GiB: "})
        EXPECT(below && strstr(text, words) > below, "%s: %s stands above 'predicted'", row, words);
    }
    const cJSON *world;
    int rows = 0;
    cJSON_ArrayForEach(world, plan_item(j, "worlds")) {
      char line[32];
      snprintf(line, sizeof line, "%5.0f", plan_number(world, "ranks"));
      if (!cli_string(world, "refused")[0]) plan_expect_said(row, text, line, plan_number(world, "rank_bytes"));
      else EXPECT(strstr(text, cli_string(world, "refused")), "%s: %s", row, cli_string(world, "refused"));
      rows++;
    }
    EXPECT(rows > 3, "%s: %d worlds", row, rows);
    for (const char *c = text; *c; c += strcspn(c, "\n"), c += *c == '\n')
      EXPECT(strcspn(c, "\n") <= 120, "%s: a line has %zu columns: %.130s", row, strcspn(c, "\n"), c);
    cJSON_Delete(j);
    for (CliRun &run : r) cli_free(&run);
  }
}

TEST(plan_of_175_billion_on_1024,
     "GPT-3 175B on 1024 GPUs: a rank's bytes are those counted by hand; all ranks' optimizer states together are "
     "eight bytes per parameter and the gaps of shards") {
  static WorldPlan w;
  static Options o;
  plan_asked(&o, "--world 1024 --n_layer 96 --n_head 96 --n_embd 12288 --seq_len 2048 --vocab_size 50257 --dtype bf16 "
             "--batch_size 1 --device cuda --recompute block");
  if (!plan_made(&w, &o, false)) return;
  const size_t *bytes = w.rank[0].memory.planned_bytes;
  // A block has 12 C^2 in matrices and 13 C outside; the root 50304 C and 2048 C in tables, 2 C outside. A rank has of
  // each a 1024th, rounded up to 128 elements.
  const int64_t C = 12288, matrices = 12 * C * C / 1024, others = 256, tables = (50304 + 2048) * C / 1024, norm = 128;
  static_assert(12 * 12288LL * 12288 % (1024 * 128) == 0 && (50304 + 2048) * 12288LL % (1024 * 128) == 0, "no gaps");
  const int64_t rank = 96 * (matrices + others) + tables + norm, P = 174604259328;
  EXPECT(w.classes == 1 && w.rank[0].count == 1024, "%d kinds", w.classes);
  EXPECT((int64_t)bytes[MEM_OPTIMIZER] == 8 * rank && (int64_t)bytes[MEM_PARAMS] == 2 * rank &&
         (int64_t)bytes[MEM_MASTER_LOW] == 2 * rank &&
         (int64_t)bytes[MEM_GATHER_SLOTS] == 2 * 1024 * 2 * (matrices + others) &&
         (int64_t)bytes[MEM_ROOT_PARAMS] == 1024 * 2 * (tables + norm), "%zu, %zu, %zu, %zu, %zu bytes",
         bytes[MEM_OPTIMIZER], bytes[MEM_PARAMS], bytes[MEM_MASTER_LOW], bytes[MEM_GATHER_SLOTS],
         bytes[MEM_ROOT_PARAMS]);
  const double all = 1024.0 * (double)bytes[MEM_OPTIMIZER], gaps = all / 8 - (double)P;
  EXPECT(gaps > 0 && gaps < 1e-3 * (double)P, "optimizer states of all ranks are %.0f bytes, 8 for each of %lld "
         "parameters are %.0f", all, (long long)P, 8.0 * (double)P);
  const int64_t gathered = 1023 * (2 * (tables + norm) + (2 * 96 - 2) * 2 * (matrices + others));
  const Links *l = &w.rank[0].links;
  EXPECT(w.rank[0].traffic.gather_bytes == gathered, "%lld bytes gathered, must be %lld",
         (long long)w.rank[0].traffic.gather_bytes, (long long)gathered);
  EXPECT(l->between[LINK_REDUCTIONS] == 1016 * 2 * rank && l->inside[LINK_REDUCTIONS] == 7 * 2 * rank, "%lld bytes "
         "reduced between hosts", (long long)l->between[LINK_REDUCTIONS]);
  world_plan_free(&w);
}

TEST(plan_along_is_the_layout_s,
     "for every rank of meshes of up to 40 ranks on hosts of 1 to 9: its host's place in the shard group and the parts "
     "that it adds to, by formula, are those that the layout lists") {
  FsdpConfig c = {};
  c.between = BETWEEN_CHAIN, c.comm = COMM_MPI, c.microbatches = 2, c.wire_dtype = F32;
  int hosts = 0;
  for (int world = 1; world <= 40; world++) for (int S = 1; S <= world; S++) for (int per = 1; per <= 9; per++)
    for (int r = 0; r < world && world % S == 0; r++) {
      Mesh m;
      const MeshShape shape = {world / S, S, 0};
      mesh_pretend(&m, shape, true, r, world, per);
      HostsLayout x = hosts_layout(&c, &m, false);
      RankKey k = {};
      if (hosts_chosen(&c, &m, false)) rank_along(&k, shape, r, per);
      const int role = !x.hosts ? 0 : !x.me ? ROLE_FIRST : x.me == x.hosts - 1 ? ROLE_LAST : ROLE_BETWEEN;
      const int parts = x.hosts ? x.parts : 0;   // else it adds up its own shard alone
      EXPECT(k.along == role && k.parts == parts, "rank %d of %d in %dx%d, %d per host: %d %d, must be %d %d", r, world,
             world / S, S, per, k.along, k.parts, role, parts);
      hosts += x.hosts > 1;
      free(x.part);
      free(x.adder);
      mesh_close(&m);
    }
  EXPECT(hosts > 1000, "only %d ranks of several hosts", hosts);
}
TEST(cli_plan_of_quantized_weights_needs_none,
     "--plan --model tiny --lora 2 --base_dtype nf4 or q8_0, without weights, has the lines of memory, units and "
     "traffic of the plan of such weights") {
  CliRun r, plan[2];
  CLI_RUN(&r, "%s --model tiny --data generated --max_steps 1 --eval_every -1 --sample_tokens 0 --cache= --out %s "
          "--export_hf %s", cli_ranks(0), cli_path("out"), cli_path("hf"));
  cli_expect_done(&r, "an export");
  cli_free(&r);
  for (const char *type : {"nf4", "q8_0"}) {
    for (int i = 0; i < 2; i++) {
      CLI_RUN(&plan[i], "%s --plan %s%s --lora 2 --base_dtype %s --data generated --batch_size 2 --world 2 --cache=",
              cli_ranks(0), i ? "--model tiny" : "--init_from ", i ? "" : cli_path("hf"), type);
      cli_expect_done(&plan[i], type);
    }
    const char *with = strstr(plan[0].text, "memory, bytes of"), *without = strstr(plan[1].text, "memory, bytes of");
    EXPECT(with && without && strstr(with, "moved in a step") && !strcmp(with, without), "%s: with weights\n%.1500s"
           "\nwithout\n%.1500s", type, plan[0].text, plan[1].text);
    for (CliRun &each : plan) cli_free(&each);
  }
}
TEST(cli_plan_of_a_million_ranks, "a plan of a million ranks is made by kinds: within the limit of a command") {
  CliRun r;
  for (const char *options : {"", "--device cuda --mesh 1000x1000"}) {
    CLI_RUN(&r, "%s --plan --world 1000000 %s", cli_ranks(0), options);
    EXPECT(!r.code && strstr(r.text, "1000000 ranks"), "%s: exit code %d:\n%.1000s", options, r.code, r.text);
    cli_free(&r);
  }
}
TEST(cli_plan_of_a_trace,
     "a plan that does not fit because of the events of --trace says so and how to mend it, and nothing of a smaller "
     "batch; so does a run; steps that the run does not have are not counted") {
  CliRun r;
  const char *plan = "--device cpu --plan --on cpu,memory_gib=1 --trace t --trace_steps";
  CLI_RUN(&r, "%s %s %s 1:1000000", cli_ranks(0), cli_small(), plan);
  EXPECT(!r.code && strstr(r.text, "does not fit\n  events of --trace ") &&
             strstr(r.text, "of it: give --trace_steps fewer steps\n") && !strstr(r.text, "largest batch"),
         "exit code %d:\n%.4000s", r.code, r.text);
  cli_free(&r);
  CLI_RUN(&r, "%s %s %s 1:1000000 --max_steps 20", cli_ranks(0), cli_small(), plan);
  EXPECT(!r.code && strstr(r.text, "GiB: fits\n") && strstr(r.text, "largest batch") &&
             !strstr(r.text, "\n  events of --trace "), "exit code %d:\n%.4000s", r.code, r.text);
  cli_free(&r);
  const CliRejection run = {0, "--device cpu --data random --grad_accum 3000 --trace t --trace_steps 1:1000000", 3,
                          "the memory plan of this host's 1 rank is ..."};       // tens of terabytes
  cli_expect_rejections(&run, 1);
}
TEST(plan_says_where_the_vocabulary_is_from,
     "--data generated: the vocabulary that a tokenizer trained on it reaches, unless less is asked for; any other "
     "text may give less, which the plan says; token files and random tokens have what is asked for") {
  static const struct { const char *options; int64_t vocab; const char *says; } rows[] = {
      {"--data generated", GEN_VOCAB_MAX, "the generated text"}, {"--data generated --vocab_size 300", 300, "the gen"},
      {"--data generated --model gpt2 --on h100", GEN_VOCAB_MAX, "the generated text"}, {"--data random", 2048, NULL},
      {"--data t.bin --vocab_size 50257", 50257, NULL}, {"", 2048, "not read: a text may give a smaller vocabulary"},
      {"--data book.txt", 2048, "not read: a text"}, {"--tokenizer x --data generated", 2048, "not read: the vocab"}};
  static Options o;
  static PlanDevice d;
  for (const auto &row : rows) {
    Error error = {};
    plan_asked(&o, "%s", row.options);
    EXPECT(plan_resolve(&o, &d, &error), "%s: %s", row.options, error.text);
    const char *says = plan_data_words(&o);
    EXPECT(o.vocab_size == row.vocab && !says == !row.says && (!says || !strncmp(says, row.says, strlen(row.says))),
           "%s: %lld, %s", row.options, (long long)o.vocab_size, says ? says : "nothing");
  }
}

TEST(plan_states_are_zero_s_formulas,
     "model states of ZeRO-3, 2 and 1 in a plan are the formulas of the ZeRO paper in this program's dtypes: 16 P / N, "
     "2 P + 16 P / N, 6 P + 12 P / N bytes, to the byte; on one rank 16 P, less 2 bytes of each of a block's gradients "
     "where there is one microbatch") {
  static const char *const strategies[] = {"zero3", "zero2", "zero1"};
  static WorldPlan w;
  static Options o;
  const int64_t C = 4096, L = 4;
  for (int64_t N : {1, 4, 16, 64}) for (int stage = 0; stage < 3; stage++) {
    plan_asked(&o, "--world %d --n_layer %d --n_head 32 --n_embd %d --seq_len 1024 --vocab_size 50257 --dtype bf16 "
               "--batch_size 1 --device cuda --strategy %s", (int)N, (int)L, (int)C, strategies[stage]);
    if (!plan_made(&w, &o, false)) return;
    const size_t *bytes = w.rank[0].memory.planned_bytes;
    // A rank's elements, rounded up to 128 of each piece: blocks' matrices and what else they have, tables, last norm.
    const int64_t blocks = L * (12 * C * C / N + round_up(13 * C / N, 128));
    const int64_t n = blocks + (50304 + 1024) * C / N + 2 * C / N, P = n * N, lone = N == 1 && stage < 2 ? blocks : 0;
    const int64_t shards = (int64_t)(bytes[MEM_PARAMS] + bytes[MEM_MASTER_LOW] + bytes[MEM_OPTIMIZER] +
                                     bytes[MEM_GRADS]);
    const int64_t whole = (int64_t)(bytes[MEM_GATHER_SLOTS] + bytes[MEM_ROOT_PARAMS]);
    const int64_t peers = (int64_t)bytes[MEM_PEERS_GRADS];
    EXPECT(shards == 16 * P / N - 2 * lone, "%s, %d ranks: %lld bytes of shards, 16 P / N is %lld", strategies[stage],
           (int)N, (long long)shards, (long long)(16 * P / N));
    if (N > 1 && stage)
      EXPECT(shards + whole == 2 * P + 16 * P / N, "%s, %d ranks: with whole parameters %lld bytes, must be %lld",
             strategies[stage], (int)N, (long long)(shards + whole), (long long)(2 * P + 16 * P / N));
    if (N > 1 && stage == 2)
      EXPECT(shards + whole + peers == 6 * P + 12 * P / N, "%s, %d ranks: with whole gradients %lld, must be %lld",
             strategies[stage], (int)N, (long long)(shards + whole + peers), (long long)(6 * P + 12 * P / N));
    if (N == 1) EXPECT(!whole && !peers, "%s: one rank has %lld bytes twice", strategies[stage],
                       (long long)(whole + peers));
    world_plan_free(&w);
  }
}

TEST(plan_fits_are_exact,
     "the largest batch and the longest sequence that a plan gives fit when planned, and the next ones do not; a plan "
     "that fits nothing says none; steps of --fp8 matmul are multiples of 16 tokens") {
  static const struct { const char *options; FitOf of; int64_t grain; } rows[] = {
      {"--model small --dtype bf16 --world 4 --on h100", FIT_BATCH, 1},
      {"--model small --world 2 --global_batch 64 --on a100", FIT_SEQUENCE, 1},
      {"--model tiny --dtype bf16 --fp8 matmul --seq_len 100 --on h200", FIT_BATCH, 4},
      {"--model tiny --dtype bf16 --fp8 matmul --batch_size 6 --on h100", FIT_SEQUENCE, 8},
      {"--model tiny --world 3 --threads 1 --on cpu", FIT_BATCH, 1}};
  static WorldPlan w;
  static Options o;
  for (const auto &row : rows) for (double gib = 2.6; gib < 4; gib += 0.2) {
    char options[256];
    snprintf(options, sizeof options, "%s,memory_gib=%.1f", row.options, gib);
    plan_asked(&o, "%s", options);
    if (!plan_made(&w, &o, false)) return;
    const double room = world_plan_room(&w);
    const Fit fit = fit_search(&w, &o, row.of);
    const int64_t A = w.opt.grad_accum;
    EXPECT(fit.grain == row.grain && fit.value > 1 && fit.value % fit.grain == 0, "%s: %lld in steps of %lld",
           options, (long long)fit.value, (long long)fit.grain);
    world_plan_free(&w);
    for (int more = 0; more < 2; more++) {
      Options next = o;
      const int64_t value = fit.value + more * fit.grain;
      if (row.of == FIT_BATCH) next.batch_size = value;
      else next.seq_len = value;
      next.global_batch = 0;
      next.grad_accum = A;
      if (!plan_made(&w, &next, false)) return;
      const double needs = world_plan_needs(&w);
      EXPECT((needs <= room) == !more && needs == (more ? fit.next : fit.needs), "%s: %lld needs %.0f bytes, %.0f are "
             "there; the search said %.0f", options, (long long)value, needs, room, more ? fit.next : fit.needs);
      world_plan_free(&w);
    }
  }
  plan_asked(&o, "--model tiny --seq_len 2 --on h100,memory_gib=100000");
  if (!plan_made(&w, &o, false)) return;
  const Fit all = fit_search(&w, &o, FIT_BATCH);
  EXPECT(all.value == CUDA_MAX_BATCH && !all.next, "without an end of memory: batch %lld", (long long)all.value);
  world_plan_free(&w);
  plan_asked(&o, "--model gpt2 --on h100,memory_gib=3");
  if (!plan_made(&w, &o, false)) return;
  const Fit none = fit_search(&w, &o, FIT_BATCH);
  EXPECT(!none.value && none.next > world_plan_room(&w), "gpt2 with 2 GiB of libraries in 3 GiB: batch %lld",
         (long long)none.value);
  world_plan_free(&w);
}

TEST(cli_plan_rejects,
     "--plan rejects by name what makes no sense with it, and what training rejects in its words; its options are "
     "rejected without it, and it is rejected in a file of options") {
  static const CliRejection table[] = {
      {0, "--plan --resume", 2, "--plan is of a training that starts, and reads no weights: it does not go with "
       "--resume; shapes and modes come from options, or from --config OUT/options.txt"},
      {0, "--plan --init_from x", 2, "x: cannot open it: No such file or directory; a model is a directory with ..."},
      {0, "--plan --eval_only", 2, "--plan is of a training that starts, and reads no weights: it does not go with "
       "--eval_only; ..."},
      {0, "--plan --sample_only", 2, "--plan is of a training that starts, and reads no weights: it does not go with "
       "--sample_only; ..."},
      {0, "--plan --device cuda --tune", 2, "--plan is of a training that starts, and reads no weights: it does not go "
       "with --tune; ..."},
      {0, "--world 4", 2, "--world belongs to --plan: give that too, or leave it out"},
      {2, "--on h100", 2, "--on belongs to --plan: give that too, or leave it out"},
      {0, "--ranks_per_host 4 --plan off", 2, "--ranks_per_host belongs to --plan: give that too, or leave it out"},
      {0, "--tokens 1e9", 2, "--tokens belongs to --plan: give that too, or leave it out"},
      {0, "--json", 2, "--json belongs to --plan: give that too, or leave it out"},
      {2, "--plan --batch_siz 4", 2, "unknown option --batch_siz: did you mean --batch_size? See --help"},
      {0, "--plan --on=", 2, "--on is empty, ..."},
      {0, "--plan --tokens 300e9", 2, "--tokens asks how long they take, and that depends on the machine: give --on "
       "too"},
      {0, "--plan --trace t --max_steps 2", 2, "--trace_steps 3:5: this run has 2 steps; choose earlier ones"},
      {0, "--plan --on v100", 2, "--on 'v100' is not known: choose one of h100, h200, b200, a100, 4090, cpu"},
      {0, "--plan --on h100,tflops=0", 2, "--on: 'tflops=0' is not a number above 0"},
      {0, "--plan --on h100,speed=3", 2,
       "--on: 'speed=3' is none of tflops=, memory_gbs=, memory_gib=, reserve_gib=, inside_gbs=, between_gbs="},
      {0, "--plan --on a100 --attention wgmma", 2, "--attention wgmma needs compute capability 9.0, a100 has 8.0"},
      {0, "--plan --on h100 --device cpu", 2, "--on h100 is a GPU: it does not go with --device cpu"},
      {0, "--plan --on cpu --device cuda", 2, "--on cpu does not go with --device cuda"},
      {0, "--plan --on h100 --comm mpi --world 2", 2,
       "--on: what --comm mpi takes on GPUs is not predicted; leave --on out, or plan --comm nccl"},
      {0, "--plan --world 6 --mesh 2x2", 2, "--mesh 2x2 has 4 ranks, there are 6"},
      {0, "--plan --world 3 --global_batch 8", 2, "--global_batch 8 is not divisible by batch_size 2 x 3 ranks"},
      {0, "--plan --on a100 --fp8 matmul --dtype bf16 --n_embd 32", 2,
       "--fp8 matmul needs compute capability 8.9 or later, a100 has 8.0: use --fp8 gather"},
      {0, "--plan --offload optimizer --device cpu", 2,
       "--offload optimizer needs --device cuda: on a CPU all parameters are in host memory already"},
      {0, "--plan --strategy hybrid_shard --world 4", 2,
       "--strategy hybrid_shard shards inside a host and replicates over hosts; this run has one host: give --mesh "
       "RxS, or choose full_shard"},
      {0, "--plan --on h100 --n_embd 17000 --n_head 1", 2,
       "--n_embd 17000: the CUDA kernels take 16384 columns at most"},
      {0, "--plan --matmul_precision high --dtype bf16 --device cpu", 2,
       "--matmul_precision high: on a CPU it applies to fp32 matrix multiplies, and --buffer_dtype bf16 has none"}};
  cli_expect_rejections(table, sizeof table / sizeof *table);
  CliRun r;
  char line[600];
  cli_write(cli_path("o.txt"), "plan = on\n", 10);
  snprintf(line, sizeof line, "--plan is for the command line, and %s has it: take it out", cli_path("o.txt"));
  CLI_RUN(&r, "%s --config %s", cli_ranks(0), cli_path("o.txt"));
  cli_expect_rejection(&r, "plan in a file", 2, line);
  cli_free(&r);
  cli_write(cli_path("o.txt"), "n_layer = 3\nstrategy = zero2\n", 29);
  CLI_RUN(&r, "%s --plan --json --world 2 --config %s", cli_ranks(0), cli_path("o.txt"));
  cJSON *j = cJSON_Parse(r.text);
  const bool taken = j && plan_number(plan_item(j, "model"), "blocks") == 3 &&
                     !strcmp(cli_string(plan_item(j, "config"), "strategy"), "zero2");
  EXPECT(taken, "options of a file:\n%.1000s", r.text);
  cJSON_Delete(j);
  cli_free(&r);
}

// ================================================================================================ 4 prediction
// The times of rank `rank` of a plan, on `m` changed by `with`. launches and latencies are 0 unless `real`.
static inline StepTimes plan_times(const char *options, int rank, void (*with)(Machine *m), bool real) {
  static WorldPlan w;
  static Trainer t;
  static Options o;
  StepTimes s = {};
  plan_asked(&o, "%s", options);
  if (!plan_made(&w, &o, false)) return s;
  Machine m = w.on.machine;
  if (!real) m.launch_s = m.base_s = m.inside_s = m.between_s = 0;
  if (with) with(&m);
  trainer_plan_as(&t, &w.opt, w.on.device, rank, (int)w.opt.world, (int)w.opt.ranks_per_host);
  s = step_predict(&t.run, &m);
  trainer_plan_close(&t);
  world_plan_free(&w);
  return s;
}
static inline double plan_compute(const StepTimes *s) {
  double sum = s->at[STEP_TOTAL];
  for (StepPart k : {STEP_GATHERS_EXPOSED, STEP_REDUCTIONS_EXPOSED, STEP_EXCHANGE}) sum -= s->at[k];
  return sum;
}
static inline void plan_slow_links(Machine *m) { m->inside *= 1e-4, m->between *= 1e-4; }
static inline void plan_fast_links(Machine *m) { m->inside = m->between = 1e300; }

TEST(plan_flops_are_the_formulas,
     "FLOPs of a predicted step: 6 for each weight of a matrix multiply and token, the head's padding included, and 7 "
     "of the causal products of attention; with recomputation those of the blocks' forward again; microbatches beyond "
     "the dry run's count too") {
  static const struct { const char *options; double A; bool again; } rows[] = {
      {"--model gpt2 --batch_size 2 --on h100", 1, false},
      {"--model gpt2 --batch_size 2 --on h100 --dtype bf16 --world 16 --grad_accum 2 --recompute none", 2, false},
      {"--model gpt2 --batch_size 2 --on cpu --recompute block --world 2", 1, true},
      {"--model gpt2 --batch_size 2 --on a100 --world 4 --mesh 2x2 --grad_accum 9 --recompute block", 9, true},
      {"--model gpt2 --batch_size 2 --on h100 --strategy zero1 --world 8 --grad_accum 4", 4, false},
      {"--model gpt2 --batch_size 2 --on h100 --fp8 matmul --dtype bf16", 1, false}};
  for (const auto &row : rows) {
    const StepTimes s = plan_times(row.options, 0, NULL, true);
    const double L = 12, C = 768, T = 1024, B = 2, Vp = 50304, R = row.A * B * T;
    const double products = R * (6 * (12 * L * C * C + Vp * C) + (row.again ? 2 * 8 * L * C * C : 0));
    const double attention = R * T * C * L * (row.again ? 9 : 7);
    EXPECT(fabs(s.at[STEP_PRODUCT_FLOPS] / products - 1) < 1e-12, "%s: %.17g in matrix multiplies, must be %.17g",
           row.options, s.at[STEP_PRODUCT_FLOPS], products);
    EXPECT(fabs(s.at[STEP_ATTENTION_FLOPS] / attention - 1) < 1e-12, "%s: %.17g in attention, must be %.17g",
           row.options, s.at[STEP_ATTENTION_FLOPS], attention);
  }
}
TEST(plan_times_are_those_of_the_bytes,
     "without latencies, links take the time that the formula's bytes need on them: rings the slower of the link "
     "inside and the shared adapters, messages the slower of both kinds, kept groups the link inside; the optimizer "
     "streams 32 bytes per parameter in fp32") {
  static const struct { const char *options; double far_rate; bool near; } rows[] = {
      {"--model small --on h100 --world 8 --grad_accum 2", 360e9, false},
      {"--model small --on h100 --world 16 --dtype bf16 --grad_accum 3", 360e9, false},
      {"--model small --on h100 --world 16 --ranks_per_host 2 --strategy zero1", 90e9, false},
      {"--model small --on h100 --world 16 --reshard_after_forward 4 --gather_slots 1 --grad_accum 2", 360e9, true}};
  static WorldPlan w;
  static Options o;
  for (const auto &row : rows) {
    plan_asked(&o, "%s", row.options);
    if (!plan_made(&w, &o, false)) return;
    const Traffic *t = &w.rank[0].traffic;
    const Links *l = &w.rank[0].links;
    const double far = row.near ? (double)l->between[LINK_GATHERS] * 8 : (double)t->gather_bytes;
    const double gathers = far / row.far_rate + ((double)t->gather_bytes - far) / 360e9;
    const double near = (double)l->inside[LINK_REDUCTIONS] / 360e9, other = (double)l->between[LINK_REDUCTIONS] / 45e9;
    const double reductions = fmax(near, other);
    const StepTimes s = plan_times(row.options, 0, NULL, false);
    EXPECT(gathers > 0 && fabs(s.at[STEP_GATHERS] / gathers - 1) < 1e-6, "%s: gathers take %g s, their bytes %g",
           row.options, s.at[STEP_GATHERS], gathers);
    EXPECT(reductions > 0 && fabs(s.at[STEP_REDUCTIONS] / reductions - 1) < 1e-6, "%s: reductions take %g s, their "
           "bytes %g", row.options, s.at[STEP_REDUCTIONS], reductions);
    world_plan_free(&w);
  }
  const double seconds = plan_times("--model gpt2 --on h100 --batch_size 1", 0, NULL, false).at[STEP_OPTIMIZER];
  const double params = 124439808 + 47 * 768, bytes = 32 * params;             // the padding rows too
  EXPECT(fabs(seconds / (bytes / (MEMORY_REACHED * 3350e9)) - 1) < 1e-3, "gpt2's optimizer takes %g s", seconds);
}
// Of dev/results/2026-11-26-H100-80GB-HBM3.md, steps with the attention of that day; what wgmma's kernels gain is the
// difference of the two in dev/results/2026-11-27-H100-attention.md, of gpt2 12 x (95.9 + 102.9 + 155.7 + 43.4) us. The
// program of that day moved 10 bytes more of each of a block's gradients: it copied them to fp32 (6), which the norm
// and AdamW then read (4).
TEST(plan_times_are_those_of_an_h100,
     "an H100's recorded steps of four models, logits in fp32, took within 4 % of what is predicted with --attention "
     "mma; what wgmma is predicted to gain is within a quarter of what its kernels gained; heads of other sizes take "
     "far longer") {
  const struct { const char *options; double ms, blocks; } steps[] = {
      {"--model gpt2 --batch_size 32", 63.0, 85.1e6}, {"--model gpt2-xl --batch_size 8", 187.3, 1475.6e6},
      {"--model smollm2-135m --batch_size 16", 50.3, 106.2e6}, {"--model qwen3-0.6b --batch_size 8", 88.1, 440.5e6}};
  char text[256];
  for (const auto &k : steps) {
    snprintf(text, sizeof text, "%s --seq_len 1024 --dtype bf16 --logits_dtype fp32 --on h100 --attention mma",
             k.options);
    const double more = 10 * k.blocks / (MEMORY_REACHED * 3350e9);
    const double ms = 1e3 * (plan_times(text, 0, NULL, true).at[STEP_TOTAL] + more);
    EXPECT(fabs(ms / k.ms - 1) < 0.04, "%s: %g ms are predicted, %g were measured", k.options, ms, k.ms);
  }
  double ms[4];
  const char *const ways[] = {"--attention mma", "", "--head_size 60", "--attention wgmma"};
  for (int i = 0; i < 4; i++) {
    snprintf(text, sizeof text, "--model gpt2 --batch_size 32 --dtype bf16 --on h100 %s", ways[i]);
    ms[i] = 1e3 * plan_times(text, 0, NULL, false).at[STEP_ATTENTION];
  }
  EXPECT(fabs((ms[0] - ms[1]) / 4.77 - 1) < 0.25 && ms[3] == ms[1] && ms[2] > 5 * ms[1],
         "attention takes %g ms by mma, %g by wgmma, %g with heads of 60 columns", ms[0], ms[1], ms[2]);
}
TEST(plan_times_are_within_bounds,
     "for modes on CPUs and GPUs, with links of any speed: a step is the sum of its parts; no shorter than what is "
     "computed, nor than what the links move; no longer than both together; links without time are not waited for") {
  static const char *const rows[] = {
      "--model small --on h100 --dtype bf16 --world 16 --batch_size 4",
      "--model small --on h200 --world 8 --grad_accum 2 --reduce_dtype bf16 --gather_slots 4",
      "--model small --on a100 --world 16 --strategy zero2 --shard dim0",
      "--model small --on b200 --world 8 --strategy zero1",
      "--model small --on h100 --world 16 --reshard_after_forward 4 --gather_slots 1",
      "--model small --on 4090 --world 4 --wrap min_params:500000 --dtype fp16 --recompute mlp",
      "--model small --on h100 --world 16 --comm nccl --reduce native --freeze wte,h.0.*",
      "--model small --on h100 --offload params --world 4", "--model small --on cpu --world 4 --threads 1",
      "--model small --on cpu --world 6 --ranks_per_host 2 --threads 1 --dtype bf16",
      "--model small --on cpu --world 4 --shm copy --gather_slots 1 --threads 2"};
  for (const char *row : rows) for (int links = 0; links < 3; links++) {
    const StepTimes s = plan_times(row, 1, links == 1 ? plan_slow_links : links == 2 ? plan_fast_links : NULL, false);
    const double total = s.at[STEP_TOTAL], compute = plan_compute(&s), edge = 1e-9 * total;
    const double moved = s.at[STEP_GATHERS] + s.at[STEP_REDUCTIONS] + s.at[STEP_EXCHANGE];
    double parts = 0;
    for (int k = 0; k < STEP_PARTS; k++) {
      EXPECT(s.at[k] >= 0, "%s: %s takes %g s", row, step_part_words[k], s.at[k]);
      parts += s.at[k];
    }
    EXPECT(fabs(parts - total) <= edge && s.at[STEP_PRODUCTS] > 0 && s.at[STEP_ATTENTION] > 0 &&
           s.at[STEP_OPTIMIZER] > 0, "%s: parts %g s, step %g s", row, parts, total);
    // An offloading device's copies are of neither sum.
    const double side = s.at[STEP_SUMS] + (strstr(row, "offload") ? total : 0);
    EXPECT(total >= compute - edge && total >= moved - edge && total <= compute + moved + side + edge,
           "%s: a step of %g s computes %g and moves %g", row, total, compute, moved);
    EXPECT(links != 2 || strstr(row, "offload") || (moved < edge && s.at[STEP_GATHERS_EXPOSED] <= side &&
           s.at[STEP_REDUCTIONS_EXPOSED] <= side), "%s: links that take no time are waited for, %g and %g s", row,
           s.at[STEP_GATHERS_EXPOSED], s.at[STEP_REDUCTIONS_EXPOSED]);
    EXPECT(links != 1 || moved > 10 * compute || !strncmp(row + 14, "--on cpu --world 4", 18), "%s: slow links move %g "
           "s, %g are computed", row, moved, compute);
  }
}
TEST(plan_waits_follow_the_schedule,
     "with one gather slot every gather but the first ones is waited for, with two none that is shorter than a block; "
     "more microbatches take the time of the second and the third each; a later replica is no sooner") {
  const char *base = "--model gpt2 --on h100 --world 8 --batch_size 8 --dtype bf16 --freeze wte,wpe,h.*";
  char text[512];
  StepTimes s[3];
  for (int k = 1; k <= 2; k++) {
    snprintf(text, sizeof text, "%s --gather_slots %d", base, k);
    s[k] = plan_times(text, 0, NULL, false);
  }
  // Meanwhile the input is copied and embedded: three streams of 8 x 1024 rows of 768.
  const double meanwhile = s[1].at[STEP_COPIES] + 3.0 * 8 * 1024 * 768 * 2 / (MEMORY_REACHED * 3350e9);
  const double gathers = s[1].at[STEP_GATHERS];
  const double one = s[1].at[STEP_GATHERS_EXPOSED], two = s[2].at[STEP_GATHERS_EXPOSED];
  EXPECT(one <= gathers && one >= 0.999 * (gathers - meanwhile), "one slot: %g s of gathers, %g are waited for",
         gathers, one);
  // Of 13 gathers the root's and the first block's; shards' gaps are less than a thousandth.
  const double block = 12 * 768.0 * 768 + 13 * 768, root = (50304 + 1024 + 2) * 768.0;
  const double begin = (root + block) / (root + 12 * block) * s[2].at[STEP_GATHERS];
  EXPECT(two <= 1.001 * begin && two >= 0.999 * begin - meanwhile, "two slots: %g s of gathers, %g are waited for, "
         "must be about %g", s[2].at[STEP_GATHERS], two, begin - meanwhile);
  for (const char *mode : {"--on h100 --world 16", "--on cpu --world 2 --threads 1",
                           "--on h100 --mesh 2x4 --world 8"}) {
    double total[4];
    for (int i = 0; i < 4; i++) {
      snprintf(text, sizeof text, "--model small %s --grad_accum %d", mode, 4 + 2 * i);
      total[i] = plan_times(text, 0, NULL, true).at[STEP_TOTAL];
    }
    EXPECT(total[1] > 1.4 * total[0] && fabs((total[3] - total[2]) / (total[1] - total[0]) - 1) < 1e-9,
           "%s: 4, 6, 8, 10 microbatches take %g, %g, %g, %g s", mode, total[0], total[1], total[2], total[3]);
  }
  const char *chain = "--model small --on h100 --world 32 --mesh 4x8 --batch_size 1"; // two in the middle do the same
  const double low = plan_times(chain, 8, NULL, true).at[STEP_TOTAL];
  const double high = plan_times(chain, 16, NULL, true).at[STEP_TOTAL];
  EXPECT(high > low, "the second replica's step takes %g s, the third one's %g", low, high);
}
TEST(plan_sums_return_once_beside_backward,
     "sums go back to all replicas once per step, however many microbatches it has; of the blocks' time on links most "
     "is not waited for, ordered and native, between hosts and inside one") {
  for (const char *mode : {"--world 16 --mesh 2x8", "--world 16 --mesh 4x4", "--world 4 --mesh 2x2",
                           "--world 16 --mesh 2x8 --comm nccl --reduce native"}) {
    char text[256];
    double reductions[8] = {};
    StepTimes s = {};
    for (int A : {2, 3, 4, 5, 7}) {
      snprintf(text, sizeof text, "--model gpt2-xl --on h100 --dtype bf16 --batch_size 8 %s --grad_accum %d", mode, A);
      s = plan_times(text, 0, NULL, false);
      reductions[A] = s.at[STEP_REDUCTIONS];
      if (A > 2) continue;
      // What goes back: 4 bytes of each of P / S elements; native, each way round the ring (R-1) / R of that.
      static WorldPlan w;
      static Options o;
      plan_asked(&o, "%s", text);
      if (!plan_made(&w, &o, false)) return;
      const double R = (double)mesh_shape_of(&w.opt).replicas, S = (double)w.opt.world / R;
      const double rate = w.opt.world > 8 ? 45e9 * fmax(8 / S, 1) : 360e9;
      const double back = (strstr(mode, "native") ? 2 * (R - 1) / R : 1) * 4 * 1557.6e6 / S / rate;
      EXPECT(s.at[STEP_REDUCTIONS_EXPOSED] < back / 2, "%s: %g s of reductions are waited for, sums need %g to go back",
             text, s.at[STEP_REDUCTIONS_EXPOSED], back);
      world_plan_free(&w);
    }
    const double each = reductions[3] - reductions[2];
    for (int A : {4, 5, 7})
      EXPECT(each > 0 && fabs((reductions[A] - reductions[2]) / ((A - 2) * each) - 1) < 1e-9, "%s: 2, 3 and %d "
             "microbatches reduce for %g, %g and %g s", mode, A, reductions[2], reductions[3], reductions[A]);
  }
}
// A timed step that notes when each stage's gather in backward, and the first round of its reduction, begin.
struct BeginTimes { double gather[LAYERS_MAX + 1], reduce[LAYERS_MAX + 1]; int stage; };
static BeginTimes plan_begins;
static inline void begins_gather_start(Fsdp *f, int s, GatherSlot *slot) {
  comm_plan.gather_start(f, s, slot);
  plan_begins.gather[s] = ((Timeline *)f->record->watch)->launched;     // backward comes after forward and counts
}
static inline void begins_reduce_start(Fsdp *f) {
  comm_plan.gradient_ready(f);
  plan_begins.stage = f->job.stage;
}
static inline void begins_round_send(Fsdp *f, uint64_t round, ReduceSpan x) {
  comm_plan.round_send(f, round, x);
  if (round == f->job.round0) plan_begins.reduce[plan_begins.stage] = ((Timeline *)f->record->watch)->launched;
}
TEST(plan_gathers_begin_before_reductions,
     "where NCCL starts collectives in the order of their launch: the gather for two blocks on starts no later than "
     "the reduction of a block, so that it is beside all of its rounds") {
  static WorldPlan w;
  static Trainer t, dry;
  static Options o;
  for (const char *mode : {"--world 2", "--world 2 --gather_slots 3", "--world 4 --mesh 2x2 --n_layer 12"}) {
    plan_asked(&o, "--model gpt2-xl --on h100 --dtype bf16 %s", mode);
    if (!plan_made(&w, &o, false)) return;
    trainer_plan_as(&t, &w.opt, w.on.device, 0, (int)w.opt.world, (int)w.opt.ranks_per_host);
    Timeline l = {};
    Comm comm = comm_plan;
    comm.gather_start = begins_gather_start;
    comm.gradient_ready = begins_reduce_start;
    comm.round_send = begins_round_send;
    l.watch = DryWatch{timeline_take, timeline_event, timeline_move, timeline_phase};
    l.m = &w.on.machine;
    plan_begins = BeginTimes{};
    trainer_dry_open(&dry, &t, TIMED_MICROBATCHES, &l.watch);
    dry.fsdp->comm = &comm;
    trainer_dry_pass(&dry, PASS_TRAIN);
    trainer_dry_close(&dry);
    free(l.event);
    free(l.event_of);
    const int slots = (int)t.opt.gather_slots;
    EXPECT(t.fsdp->lay.stage[1].rounds > 1, "%s: a block's reduction is one round, which proves nothing", mode);
    for (int s = t.model.L; s > slots; s--)
      EXPECT(plan_begins.gather[s - slots] > 0 && plan_begins.gather[s - slots] <= plan_begins.reduce[s],
             "%s: block %d is gathered from %g s on, the reduction of block %d starts at %g s", mode, s - slots - 1,
             plan_begins.gather[s - slots], s - 1, plan_begins.reduce[s]);
    trainer_plan_close(&t);
    world_plan_free(&w);
  }
}
TEST(plan_collectives_begin_in_order,
     "on a GPU a collective starts no sooner than the one launched before, and moves its bytes when the links are "
     "free; a CPU's messages start when they are sent; times of rings and messages are those counted by hand") {
  Machine m = {};
  m.gpu = true;
  m.inside = 100, m.between = 10;
  m.base_s = 0.5, m.inside_s = 0.25, m.between_s = 1;
  static Timeline l;
  for (int gpu = 0; gpu < 2; gpu++) {
    m.gpu = gpu;
    memset((void *)&l, 0, sizeof l);
    l.m = &m;
    l.now[RECORD_REDUCE] = 10;
    timeline_expect(&l, RECORD_REDUCE, CommTime{1, 5});
    timeline_comm(&l, RECORD_REDUCE);
    EXPECT(l.now[RECORD_REDUCE] == 16 && l.links_free == 16, "a reduction from 10 on ends at %g", l.now[RECORD_REDUCE]);
    timeline_expect(&l, RECORD_GATHER, CommTime{8, 2});            // its bytes: from 18 on, or from 16
    timeline_comm(&l, RECORD_GATHER);
    EXPECT(l.now[RECORD_GATHER] == (gpu ? 20 : 18), "a gather after it ends at %g", l.now[RECORD_GATHER]);
    EXPECT(l.sum.at[STEP_GATHERS] == 10 && l.sum.at[STEP_REDUCTIONS] == 6, "they take %g and %g",
           l.sum.at[STEP_GATHERS], l.sum.at[STEP_REDUCTIONS]);
  }
  m.gpu = true;
  const CommTime near = ring_time(&m, GroupPlace{4, 1, 4}, 300), far = ring_time(&m, GroupPlace{16, 4, 4}, 300);
  EXPECT(near.latency == 0.5 + 3 * 0.25 && near.moving == 3, "a ring of 4: %g and %g s", near.latency, near.moving);
  EXPECT(far.latency == 0.5 + 12 * 0.25 + 3 && far.moving == 7.5, "a ring of 16 on 4 hosts: %g and %g s", far.latency,
         far.moving);
  const CommTime all = messages_time(&m, GroupPlace{16, 4, 4}, 20), one = messages_time(&m, GroupPlace{4, 1, 4}, 20);
  EXPECT(all.latency == 1.5 && all.moving == 24, "messages of 16 ranks: %g and %g s", all.latency, all.moving);
  EXPECT(one.latency == 0.75 && one.moving == 0.6, "messages of 4 ranks: %g and %g s", one.latency, one.moving);
  m.sms = 132;
  const Tensor whole = tensor_of(NULL, BF16, 128 * 132, 256), odd = tensor_of(NULL, BF16, 128 * 132 + 1, 256);
  EXPECT(product_fill(&m, whole) == 1 && product_fill(&m, odd) < 0.95 && product_fill(&m, odd) > 0.5,
         "132 tiles fill a GPU to %g, 133 to %g", product_fill(&m, whole), product_fill(&m, odd));
}

// ---- the map of memory
static inline double map_number(const cJSON *row, int i) { return cJSON_GetNumberValue(cJSON_GetArrayItem(row, i)); }
// Two buffers at the same bytes of a pool at the same time: their names, or NULL.
static inline const char *map_overlap(const cJSON *x, const cJSON *y) {
  static char text[256];
  const cJSON *a, *b;
  if (map_number(x, 2) != map_number(y, 2) || map_number(x, 3) >= map_number(y, 3) + map_number(y, 4) ||
      map_number(y, 3) >= map_number(x, 3) + map_number(x, 4))
    return NULL;
  cJSON_ArrayForEach(a, cJSON_GetArrayItem(x, 5)) cJSON_ArrayForEach(b, cJSON_GetArrayItem(y, 5)) {
    if (map_number(a, 0) > map_number(b, 1) || map_number(b, 0) > map_number(a, 1)) continue;
    snprintf(text, sizeof text, "%.60s %g and %.60s %g, at %g and %g", x->child->valuestring, map_number(x, 1),
             y->child->valuestring, map_number(y, 1), map_number(a, 0), map_number(b, 0));
    return text;
  }
  return NULL;
}
TEST(memory_map_is_whole,
     "the map of memory in report.html has every buffer that shares memory, of the model and of the sharding layer, in "
     "its place; no two are at the same bytes at once; the pools end where the plan says, and lines add up to it") {
  static const char *const rows[] = {
      "--model tiny --world 2", "--model tiny --world 3 --shm copy --gather_slots 3 --grad_accum 2 --dtype bf16",
      "--model tiny --world 4 --ranks_per_host 2 --shm off --reduce_dtype bf16 --recompute block",
      "--model tiny --world 4 --device cuda --dtype bf16 --batch_size 2",
      "--model tiny --world 2 --device cuda --offload params --dtype bf16 --recompute mlp",
      "--model tiny --world 2 --strategy no_shard --accumulate local --grad_accum 3", "--model tiny --dtype bf16"};
  bool slots = false, gathered = false, shards = false;
  for (const char *row : rows) {
    static Options o;
    static WorldPlan w;
    RunView *run = NULL;
    char *text = NULL;
    Error error = {};
    size_t bytes = 0, total = 0;
    plan_asked(&o, "%s", row);
    if (!world_plan(&w, &o, false, &run, &error)) { EXPECT(false, "%s: %s", row, error.text); continue; }
    FILE *f = open_memstream(&text, &bytes);
    fputc('{', f);
    memory_map(run, f);
    fputc('}', f);
    fclose(f);
    cJSON *json = cJSON_Parse(text), *map = cJSON_GetObjectItemCaseSensitive(json, "memory_map"), *x, *y;
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(map, "buffers");
    EXPECT(cJSON_GetArraySize(list) > 30, "%s: %d buffers", row, cJSON_GetArraySize(list));
    double ends[POOLS] = {};
    cJSON_ArrayForEach(x, list) {
      for (y = x->next; y; y = y->next)
        EXPECT(!map_overlap(x, y), "%s: %s are at the same bytes", row, map_overlap(x, y));
      double *end = &ends[(int)map_number(x, 2)];
      *end = fmax(*end, map_number(x, 3) + map_number(x, 4));
    }
    cJSON_ArrayForEach(x, cJSON_GetObjectItemCaseSensitive(map, "lines")) {
      const int pool = (int)map_number(x, 3);
      total += (size_t)map_number(x, 2);
      if (pool < 0) continue;
      EXPECT(pool == POOL_SHARDS ? ends[pool] <= map_number(x, 2) : ends[pool] == map_number(x, 2),
             "%s: buffers end at %.0f of %.0f bytes, %s", row, ends[pool], map_number(x, 2), x->child->valuestring);
      EXPECT(pool == POOL_SHARDS || map_number(x, 2) == (double)run->fsdp->passes->placement.pool[pool].bytes,
             "%s: a pool of %zu bytes has a line of %.0f", row, run->fsdp->passes->placement.pool[pool].bytes,
             map_number(x, 2));
    }
    EXPECT(total == memory_planned_total(&run->plan, MEMORY_ALL), "%s: lines of %zu bytes, a plan of %zu", row, total,
           memory_planned_total(&run->plan, MEMORY_ALL));
    for (int i = 0; i < run->fsdp->passes->placement.fixed_count; i++) {
      const FixedBuffer *b = &run->fsdp->passes->placement.fixed[i];
      bool found = false;
      cJSON_ArrayForEach(x, list)
        found = found || (!strcmp(x->child->valuestring, b->buffer.name) && map_number(x, 1) == b->buffer.layer &&
                          map_number(x, 2) == (double)b->buffer.pool && map_number(x, 3) == (double)b->buffer.at &&
                          map_number(x, 4) == (double)b->buffer.bytes);
      EXPECT(found, "%s: %s %d is missing", row, b->buffer.name, b->buffer.layer);
      slots = slots || (b->shared && b->slot >= 0);
      gathered = gathered || (b->shared && !strncmp(b->buffer.name, "gather", 6));
      shards = shards || (b->shared && b->buffer.pool == POOL_SHARDS);
    }
    cJSON_Delete(json);
    free(text);
    plan_close(run);
    world_plan_free(&w);
  }
  EXPECT(slots && gathered && shards, "gradient slots, gathered weights or gradient shards share no memory anywhere");
}
