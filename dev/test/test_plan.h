// test_plan.h: plans of memory for worlds that are not running, and the record of a step that nobody computes.
//
//   1 table       bytes planned per rank, as they were before buffers were placed by their lifetimes: no total may grow
//   2 record      a dry run moves the bytes of the formula and takes the memory of the plan, for any rank of any world
//   3 touches     an op touches what ops.h says and nothing else
//   4 placement   replayed in the places that buffers got, every read finds what was last written to its buffer

// ================================================================================================ 1 table
// Before buffers were placed by their lifetimes, and as they are placed now; the tables' heads name the commits. The
// second one was written by `PLANS_TO=FILE build/test_gpt_fsdp =plan_totals_do_not_grow`.
static const char plan_table_path[] = "dev/results/2026-11-23-plans.tsv";
static const char plan_table_now_path[] = "dev/results/2026-11-23-plans-now.tsv";
// Rows whose total is larger than in the first table, and by how much at most: dev/results/2026-11-23-plans.md lists
// them, and why.
static const int PLAN_LARGER_ROWS = 11;
static const double PLAN_LARGER_MAX = 1.0068;
// The same for rows of CUDA in two bytes, whose gradients of logits have memory of their own, for one launch a chunk.
static const int PLAN_LARGER_APART_ROWS = 77;
static const double PLAN_LARGER_APART_MAX = 1.122;
// Rows of models, and of the covering set, whose places take more than a fiftieth more than what is live at once.
static const int PLAN_OVER_MODELS = 34, PLAN_OVER_MODES = 13;
enum { PLAN_ROWS_MAX = 2048, PLAN_LINE_MAX = 2048 };
struct PlanRow { char name[640]; size_t total, placed, alive; bool mode; };
struct PlanTable { PlanRow row[PLAN_ROWS_MAX]; int rows; };

static inline Device plan_device(bool cuda) {
  Device d = device_of(cuda ? &ops_cuda_emulated : cpu_tables[0].ops);
  d.host_ops = cpu_tables[0].ops;
  return d;
}
static inline void plan_table_add(PlanTable *table, const char *name, const Options *o, bool cuda, int rank,
                                  int world) {
  static Trainer t;
  trainer_plan_as(&t, o, plan_device(cuda), rank, world, world);
  PlanRow *r = &table->row[table->rows++];
  CHECK(table->rows < PLAN_ROWS_MAX, "%d rows", table->rows);
  snprintf(r->name, sizeof r->name, "%s", name);
  r->total = memory_planned_total(&t.run.plan, MEMORY_ALL);
  r->placed = fsdp_placed(t.fsdp).placed;
  r->alive = fsdp_placed(t.fsdp).alive;
  trainer_plan_close(&t);
}
static inline void plan_table_models(PlanTable *table) {
  static const char *const models[] = {"small", "gpt2", "gpt2-xl"}, *const dtypes[] = {"fp32", "bf16"};
  for (const char *model : models) for (int world : {1, 2, 8}) for (int cuda = 0; cuda < 2; cuda++)
    for (const char *level : recompute_names) for (int A : {1, 4}) for (const char *dtype : dtypes) {
      static Options o;
      char name[256];
      test_options(&o, world, "--model %s --recompute %s --grad_accum %d --param_dtype %s --reduce_dtype %s", model,
                   level, A, dtype, dtype);
      if (cuda && world > 1) o.comm = OPT_comm_nccl;
      o.gpu_head_chunk_bytes = GPU_HEAD_CHUNK_BYTES_0_6;         // as when the tables were written
      o.logits_dtype = OPT_logits_dtype_fp32;
      snprintf(name, sizeof name, "%s %s, %d ranks, --recompute %s --grad_accum %d --param_dtype %s --reduce_dtype %s",
               cuda ? "cuda" : "cpu", model, world, level, A, dtype, dtype);
      plan_table_add(table, name, &o, cuda, 0, world);
    }
}
static inline void plan_modes(ModeSet *s) {        // the covering set
  modes_ask(s);
  modes_legal_pairs(s);
  modes_cover(s);
}
// The covering set as it was when the tables were written: before there were Muon, the last optimizer, adapters, the
// last of what is frozen, and other blocks than GPT-2's.
static inline void plan_recorded_modes(ModeSet *s) {
  const int heads = mode_factors[MODE_HEAD].values;
  mode_factors[MODE_OPTIMIZER].values--;
  mode_factors[MODE_FREEZE].values--;
  mode_factors[MODE_HEAD].values = MODE_BLOCKS;
  plan_modes(s);
  mode_factors[MODE_OPTIMIZER].values++;
  mode_factors[MODE_FREEZE].values++;
  mode_factors[MODE_HEAD].values = heads;
}
static inline void plan_table_modes(PlanTable *table) {
  static ModeSet s;
  static Options o;
  plan_recorded_modes(&s);
  for (int i = 0; i < s.rows; i++) {
    char text[512], name[600];
    Error error = {};
    const int world = mode_world(&s.row[i]);
    mode_text(text, sizeof text, &s.row[i]);
    mode_options(&o, &s.row[i], mode_microbatches(&s.row[i]), &error);
    snprintf(name, sizeof name, "cpu %s", text);
    plan_table_add(table, name, &o, false, world - 1, world);
    table->row[table->rows - 1].mode = true;
  }
}
// How many rows may be larger than recorded, and how many times.
struct PlanLarger { double most; int rows; };
static inline bool plan_row_apart(const char *name) { return !strncmp(name, "cuda ", 5) && strstr(name, "bf16"); }
// Compares with a recorded table. apart: for the rows of plan_row_apart.
static inline void plan_compare(const PlanTable *now, const char *path, PlanLarger others, PlanLarger apart) {
  static char line[PLAN_LINE_MAX];
  FILE *from = fopen(path, "r");
  REQUIRE(from, "%s cannot be read", path);
  int rows = 0, smaller = 0, larger[2] = {};
  double most_saved = 0;
  while (fgets(line, sizeof line, from)) {
    if (line[0] == '#') continue;
    REQUIRE(rows < now->rows, "%s has more than %d rows", path, now->rows);
    const PlanRow *r = &now->row[rows++];
    const size_t n = strlen(r->name), before = strtoull(line + n + 1, NULL, 10);
    EXPECT(!strncmp(line, r->name, n) && line[n] == '\t', "row %d is '%s', must be '%s'", rows, line, r->name);
    const bool is_apart = plan_row_apart(r->name);
    EXPECT((double)r->total <= (is_apart ? apart : others).most * (double)before, "%s: %zu bytes, %zu in %s", r->name,
           r->total, before, path);
    smaller += r->total < before;
    larger[is_apart] += r->total > before;
    if (getenv("PLANS_LARGER") && r->total > before)
      printf("NOTE: %.4f %s\n", (double)r->total / (double)before, r->name);
    most_saved = fmax(most_saved, 1 - (double)r->total / (double)before);
  }
  fclose(from);
  EXPECT(rows == now->rows && rows > 300, "%s has %d rows, must have %d", path, rows, now->rows);
  EXPECT(larger[0] <= others.rows && larger[1] <= apart.rows, "%d and %d rows are larger than in %s, %d and %d are "
         "listed", larger[0], larger[1], path, others.rows, apart.rows);
  printf("%s: %d of %d rows are smaller, by up to %.1f %%; %d are larger, and %d of CUDA in two bytes\n", path, smaller,
         rows, 100 * most_saved, larger[0], larger[1]);
}
TEST(plan_totals_do_not_grow,
     "for models, ranks, devices, levels of recomputation and the covering set of modes, a rank is planned to take no "
     "more bytes than recorded, and but for listed rows no more than before buffers were placed by lifetimes; what is "
     "live at once is a lower bound, which most rows reach") {
  if (!&ops_cuda_emulated) SKIP("this test program was linked without dev/cuda_emu");
  static PlanTable now;
  const char *path = getenv("PLANS_TO");
  plan_table_models(&now);
  plan_table_modes(&now);
  FILE *to = path ? fopen(path, "w") : NULL;
  for (int i = 0; i < now.rows && to; i++)
    fprintf(to, "%s\t%zu\t%zu\t%zu\n", now.row[i].name, now.row[i].total, now.row[i].placed, now.row[i].alive);
  if (to) fclose(to);
  plan_compare(&now, plan_table_path, {PLAN_LARGER_MAX, PLAN_LARGER_ROWS},
               {PLAN_LARGER_APART_MAX, PLAN_LARGER_APART_ROWS});
  plan_compare(&now, path ? path : plan_table_now_path, {1, 0}, {1, 0});
  int over[2] = {}, reach = 0;
  double most = 0;
  for (int i = 0; i < now.rows; i++) {
    const PlanRow *r = &now.row[i];
    EXPECT(r->alive && r->alive <= r->placed, "%s: %zu bytes alive of %zu placed", r->name, r->alive, r->placed);
    const double ratio = (double)r->placed / (double)r->alive;
    over[r->mode] += ratio > 1.02;
    reach += r->placed == r->alive;
    most = fmax(most, ratio);
  }
  EXPECT(over[0] <= PLAN_OVER_MODELS && over[1] <= PLAN_OVER_MODES, "%d rows of models and %d of modes take over 2 %% "
         "more than is live at once", over[0], over[1]);
  printf("%d of %d rows take what is live at once; %d of models and %d of modes over 2 %% more, at most %.0f %%\n",
         reach, now.rows, over[0], over[1], 100 * (most - 1));
}

// Calls of cross entropy in a step that is planned, and the chunks of the head's logits, a call of which could be one.
TEST(plan_of_a_gpu_has_one_call_of_cross_entropy_a_chunk,
     "the gradient of a chunk of logits is one call on a GPU in every dtype, and on a CPU in two bytes one for each "
     "power of two of its rows; logits in bf16 are half as large, with no room for their gradient, and one call") {
  if (!&ops_cuda_emulated) SKIP("this test program was linked without dev/cuda_emu");
  static Trainer t, dry;
  static Options o;
  for (int cuda = 0; cuda < 2; cuda++)
    for (const char *dtype : {"fp32", "bf16 --logits_dtype=fp32", "bf16", "fp16", "bf16 --logits_dtype bf16"}) {
      const bool half = strstr(dtype, "dtype bf16") || (cuda && !strcmp(dtype, "bf16"));
      test_options(&o, 1, "--model gpt2 --reduce_dtype bf16 --param_dtype %s", dtype);
      trainer_plan_as(&t, &o, plan_device(cuda), 0, 1, 1);
      trainer_dry_open(&dry, &t, DRY_MICROBATCHES, NULL);
      trainer_dry_pass(&dry, PASS_TRAIN);
      const Record &r = *dry.fsdp->record;
      int calls = 0, expected = 0, last = -1;
      for (int i = 0; i < r.count; i++)
        if (r.entry[i].kind == RECORD_ACCESS && r.entry[i].op == OP_cross_entropy_forward_backward &&
            r.entry[i].call != last)
          last = r.entry[i].call, calls++;
      const int64_t R = o.batch_size * o.seq_len;
      for (int64_t at = 0; at < R; at += t.head_rows) {
        int powers = 0;
        for (int64_t n = min64(t.head_rows, R - at); n; n /= 2) powers++;
        expected += cuda || !strcmp(dtype, "fp32") || half ? 1 : powers;
      }
      const Tensor x = dry.acts.logits, dx = dry.acts.dlogits;
      EXPECT((x.dtype == BF16 && x.data == dx.data) == half, "%s: logits in %s at %p, dlogits at %p",
             dtype, dtype_name(x.dtype), x.data, dx.data);
      EXPECT(calls == expected && calls, "%s in %s: %d calls for chunks of %lld of %lld rows, must be %d",
             cuda ? "cuda" : "cpu", dtype, calls, (long long)t.head_rows, (long long)R, expected);
      trainer_dry_close(&dry);
      trainer_plan_close(&t);
    }
}

// The most bytes live at once in a step of what t plans, with whole gradients or without. *whole: their bytes.
static inline size_t plan_alive_most(const Trainer *t, bool with, size_t *whole) {
  static Trainer dry;
  trainer_dry_open(&dry, t, DRY_MICROBATCHES, NULL);
  const Fsdp *f = dry.fsdp;
  Placement *p = &f->passes->placement;
  *whole = 0;
  for (int s = 0; s < f->lay.stages; s++) {
    const Stage *x = &f->lay.stage[s];
    const size_t bytes = grads_are_whole(x->grads) ? (size_t)x->grad_numel * 4 : 0;
    const char *at = fsdp_work(f, f->lay.unit[x->first_unit].grads_at);
    if (with) placement_fix(p, "whole gradient", s, POOL_ACTS, 0, bytes, at);
    *whole += bytes;
  }
  trainer_dry_pass(&dry, PASS_TRAIN);
  dry_learn(dry.fsdp);
  const size_t most = p->alive_most_bytes;
  trainer_dry_close(&dry);
  return most;
}
TEST(plan_whole_gradients_are_alive_with_the_most,
     "in the recorded modes, whole gradients, which share no memory, are alive when most is: placing them by "
     "their lifetimes could make no plan smaller by more than a quarter of a hundredth, or 67 KiB") {
  static ModeSet s;
  static Options o;
  static Trainer t;
  char text[512];
  Error error = {};
  int rows = 0;
  double most = 0;
  plan_recorded_modes(&s);
  for (int i = 0; i < s.rows; i++) {
    const int world = mode_world(&s.row[i]);
    mode_text(text, sizeof text, &s.row[i]);
    mode_options(&o, &s.row[i], mode_microbatches(&s.row[i]), &error);
    trainer_plan_as(&t, &o, plan_device(false), world - 1, world, world);
    size_t whole;
    const size_t others = plan_alive_most(&t, false, &whole), all = plan_alive_most(&t, true, &whole);
    const double bytes = (double)(others + whole - all);
    const double gain = bytes / (double)memory_planned_total(&t.run.plan, MEMORY_ALL);
    EXPECT(all >= others && (gain <= 0.0025 || bytes <= 67 * 1024), "%s: %zu bytes of whole gradients, %zu more alive",
           text, whole, all - others);
    rows += whole != 0;
    most = fmax(most, gain);
    trainer_plan_close(&t);
  }
  EXPECT(rows > 50, "only %d modes have whole gradients", rows);
  printf("%d modes, at most %.2f %%\n", rows, 100 * most);
}

// ================================================================================================ 2 record
struct PlanCase { Trainer t, dry; Record *record; Pass *pass; };
// A dry run of one pass as rank `rank` of `world`; plan_case_close frees it.
static inline void plan_case_open(PlanCase *x, const Options *o, bool cuda, int rank, int world,
                                  int per_host, PassKind kind) {
  memset(x, 0, sizeof *x);
  trainer_plan_as(&x->t, o, plan_device(cuda), rank, world, per_host);
  trainer_dry_open(&x->dry, &x->t, DRY_MICROBATCHES, NULL);
  trainer_dry_pass(&x->dry, kind);
  x->record = x->dry.fsdp->record;
  x->pass = &x->dry.fsdp->passes->pass[kind];
}
static inline void plan_case_close(PlanCase *x) {
  trainer_dry_close(&x->dry);
  trainer_plan_close(&x->t);
}
// Whether this rank adds to the sums of the shard group's owner o: those with its number on their own host.
static inline bool plan_adds_to(const Fsdp *f, int o) {
  const Mesh *m = &f->mesh;
  const auto number = [m](int i, int *ranks) { // of rank i on its host, and how many there are
    int before = 0;
    *ranks = 0;
    for (int k = 0; k < m->shard.size; k++) {
      if (m->peer[m->shard.rank[k]].host != m->peer[m->shard.rank[i]].host) continue;
      ++*ranks;
      before += k < i;
    }
    return before;
  };
  int here, there;
  const int mine = number(m->shard.me, &here), its = number(o, &there);
  return its % here == mine;
}
// Muon's: bytes of the largest matrix, of the most runs that a rank has in a round, and of newton_schulz's scratch.
struct PlanUpdates { size_t slots, matrix, stage, work; bool in_place; };
static inline PlanUpdates plan_updates(const Fsdp *f) {
  PlanUpdates x = {};
  const Mesh *m = &f->mesh;
  x.in_place = f->cfg.comm == COMM_MPI && !f->lay.mirrored && m->windows;
  for (int r = 0; r < m->world; r++) x.in_place = x.in_place && m->peer[r].host == m->peer[0].host;
  for (int p = 0; p < f->lay.params && f->cfg.optimizer == OPTIMIZER_MUON && !f->cfg.weights_only; p++) {
    const Param *q = &f->lay.param[p];
    if (!q->stage || q->ndim < 2 || q->frozen) continue;
    const int64_t rows = q->matrix_rows[0], cols = q->shape[1];      // the largest part: q, which has most heads
    const size_t matrix = (size_t)round_up(2 * rows * cols, 256);
    const size_t work = (size_t)round_up((int64_t)newton_schulz_work_bytes(rows, cols, BF16), 256);
    if (matrix > x.matrix) x.matrix = matrix;
    if (work > x.work) x.work = work;
    x.slots = m->world > 1 ? 3 : 1;
  }
  for (int i = 0; i < f->cfg.mesh.shards; i++) for (int j = 0; j < f->lay.owned.rounds; j++) {
    size_t bytes = 0;
    for (int k = 0; k < f->lay.owned.matrices; k++) {
      Span run;
      if (f->lay.owned.matrix[k].round == j && owned_run(f, &f->lay.owned.matrix[k], i, &run))
        bytes += (size_t)round_up(2 * run.numel, 256);
    }
    if (bytes > x.stage) x.stage = bytes;
  }
  return x;
}
// The formulas of memory, per rank and line: stated once more, from the configuration and the sizes of units alone.
// slots_bytes: of gradient slots and what shares with them.
static inline void plan_formula(const Fsdp *f, size_t slots_bytes, size_t *line) {
  const FsdpConfig *c = &f->cfg;
  const size_t b_r = dtype_bytes(c->wire_dtype), b_c = dtype_bytes(c->compute_dtype), S = (size_t)c->mesh.shards;
  const size_t chunk = (size_t)f->lay.chunk_numel, world = (size_t)f->mesh.world, remote = (size_t)f->mesh.remote;
  const bool trains = !c->weights_only, off = c->offload != OFFLOAD_NONE, mpi = c->comm == COMM_MPI;
  const bool mirrored = f->lay.mirrored, once = c->local || c->microbatches == 1, replicas = c->mesh.replicas > 1;
  const bool chains = replicas && !c->native_reduce, gpu = f->ctx->ops->nccl;
  const bool alone = world == 1 && !c->comms_of_one && c->wire_dtype == F32 && !off;
  size_t block = 0, gradient = 0, expanded = 0, largest = 0, whole = 0, own = 0, apart = 0, unit_bytes = 0, kept = 0;
  bool staged = false;
  for (int s = 0; s < f->lay.stages; s++) {
    const Stage *x = &f->lay.stage[s];
    const bool in_shard = alone && (once || (s && c->wrap == WRAP_BLOCK && !gpu)), sums = s == 0 || c->local;
    const bool rounds = sums && !in_shard && c->wire_dtype != F32 && x->trains;
    const bool joined = sums && !in_shard && once && !replicas && !off &&
                        (rounds || c->comm == COMM_NCCL || (!mirrored && S <= SUMMANDS_MAX));
    if (s && x->full_bytes > block) block = x->full_bytes;
    if (s && (size_t)x->expand_numel > expanded) expanded = (size_t)x->expand_numel;
    if (!sums && !in_shard && (size_t)x->grad_numel > gradient) gradient = (size_t)x->grad_numel;
    if (sums && !in_shard) whole += 4 * (size_t)x->grad_numel;
    staged = staged || rounds;
    for (int u = x->first_unit; u < x->first_unit + x->units; u++) {
      const Unit *q = &f->lay.unit[u];
      if ((size_t)q->state_numel > largest) largest = (size_t)q->state_numel;
      if (q->shard_bytes > unit_bytes) unit_bytes = q->shard_bytes;
      if (joined) own += 4 * (size_t)unit_wire_numel(q);
      else apart += 4 * (size_t)q->state_numel;
      if (s && c->mesh.secondary && !f->lay.in_place) kept += q->shard_bytes * (S / (size_t)c->mesh.secondary);
    }
  }
  const size_t state = 4 * (size_t)f->lay.state_numel, moment = c->moment_dtype == BF16 ? 2 : 4;
  const size_t master = 4 * (size_t)f->lay.master_numel;
  size_t second = 0;                             // the second moment is AdamW's: not of SGD, nor of Muon's matrices
  for (int u = 0; u < f->lay.units; u++)
    for (int i = 0; i < f->lay.unit[u].pieces; i++) {
      const Piece *q = &f->lay.unit[u].piece[i];
      const bool muons = c->optimizer == OPTIMIZER_MUON && q->like->owned;
      const bool has = piece_trains(q) && c->optimizer != OPTIMIZER_SGD && !muons;
      if (has) second += moment * (size_t)round_up(q->numel, 128);
    }
  const size_t low = 2 * (size_t)f->lay.low_numel, scales = (size_t)f->lay.scales;
  const size_t limbs = NORM_LIMBS * 8;
  const size_t gathers = !f->lay.in_place, slots = gathers * (size_t)c->gather_slots * block;
  const size_t root = gathers * f->lay.stage[0].full_bytes;
  const bool shared = slots_bytes != 0, params_off = c->offload == OFFLOAD_PARAMS, on = trains && !off;
  const size_t small = 4 * scales > c->small_bytes ? 4 * scales : c->small_bytes;
  memset(line, 0, MEM_COUNT * sizeof *line);
  line[MEM_PARAMS] = params_off ? 0 : f->lay.params_bytes;
  line[MEM_HOST_PARAMS] = params_off && !mirrored ? f->lay.params_bytes : 0;
  line[MEM_SECONDARY] = trains ? kept : 0;
  line[MEM_MASTER] = off ? 0 : master;
  line[MEM_MASTER_LOW] = off ? 0 : low;
  line[MEM_OPTIMIZER] = on * (state / 4 * moment + second);
  line[MEM_GRADS] = on * (apart + own);
  line[MEM_HOST_STATE] = !off ? 0 : master + low + state / 4 * moment + second + (chains && mirrored ? 0 : state) +
                         (params_off ? 0 : 2 * unit_bytes) + limbs + 8 * (scales ? scales : 1);
  line[MEM_OFFLOAD] = off * 4 * (c->native_reduce ? largest : chunk);
  line[MEM_GATHER_SLOTS] = slots;
  line[MEM_ROOT_PARAMS] = root;
  line[MEM_EXPANDED] = (expanded + (size_t)f->lay.stage[0].expand_numel) * b_c;
  line[MEM_GRAD_SLOTS] = trains && !shared ? 2 * align_bytes(gradient * b_r) : 0;
  line[own ? MEM_PEERS_GRADS : MEM_ROOT_GRADS] = trains ? whole - own : 0;
  line[MEM_STAGING_OUT] = trains && staged ? 2 * S * chunk * b_r : 0;
  line[MEM_SLOTS_SHARED] = shared ? slots_bytes - line[MEM_STAGING_OUT] : 0;
  size_t in = mirrored && S > 1 ? chunk : 2 * remote * chunk;
  // Along hosts: fp32 sums of as many parts as this rank adds to, twice.
  size_t parts = 0;
  for (int o = 0; o < (int)S && f->lay.hosts.hosts; o++) parts += plan_adds_to(f, o);
  size_t here = 0;
  for (int i = 0; i < (int)S; i++) here += f->mesh.peer[f->mesh.shard.rank[i]].host == f->mesh.peer[f->mesh.rank].host;
  const size_t inputs = c->comm == COMM_NCCL ? align_bytes(parts * (here - 1) * chunk * b_r) : 0;
  if (f->lay.hosts.hosts) in = 2 * (inputs + parts * chunk * 4) / b_r;
  else if (c->comm == COMM_NCCL) in = S == 1 && !c->comms_of_one ? 0 : c->native_reduce ? largest : 2 * S * chunk;
  line[MEM_STAGING_IN] = trains ? in * b_r : 0;
  line[MEM_SCALES] = 4 * scales * (2 + world);
  line[MEM_CONTROL] = mpi ? 8192 : 0;
  const PlanUpdates x = plan_updates(f);
  const size_t matrices = x.slots * x.matrix, stages = x.slots * x.stage;
  line[x.in_place ? MEM_UPDATES : MEM_ORTHOGONAL] += matrices;
  line[MEM_ORTHOGONAL] += x.work + (world > 1 && !(x.in_place && !replicas) ? stages : 0);
  static const MemoryName readable[] = {MEM_PARAMS, MEM_SECONDARY, MEM_GRAD_SLOTS, MEM_STAGING_OUT, MEM_CONTROL};
  for (MemoryName i : readable) line[MEM_MIRROR] += mirrored ? line[i] : 0;
  if (mirrored) line[MEM_MIRROR] += (params_off ? f->lay.params_bytes : 0) + (chains && trains ? state : 0) + whole;
  line[off ? MEM_HOST_STATE : MEM_LANDING] += off || mirrored ? stages + mirrored * matrices : 0;
  if (mirrored) line[MEM_LANDING] += small * (world + 1);
  if (mirrored && remote) line[MEM_LANDING] += slots + root + trains * 2 * remote * chunk * b_r;
}
static inline void plan_expect_formula(PlanCase *x, const char *what, int rank) {
  const Traffic want = fsdp_formula(x->dry.fsdp, (int)x->dry.opt.grad_accum), got = x->dry.fsdp->traffic;
  EXPECT(!memcmp(&want, &got, sizeof want), "%s, rank %d: gathers %lld of %lld bytes (formula: %lld, %lld), reductions "
         "%lld of %lld (%lld, %lld), along replicas %lld (%lld), small %lld of %lld (%lld, %lld)", what, rank,
         (long long)got.gathers, (long long)got.gather_bytes, (long long)want.gathers, (long long)want.gather_bytes,
         (long long)got.reductions, (long long)got.reduce_bytes, (long long)want.reductions,
         (long long)want.reduce_bytes, (long long)got.replicate_bytes, (long long)want.replicate_bytes,
         (long long)got.small, (long long)got.small_bytes, (long long)want.small, (long long)want.small_bytes);
  size_t plan[MEM_COUNT], dry[MEM_COUNT];
  plan_formula(x->t.fsdp, x->t.fsdp->passes->placement.pool[POOL_SLOTS].bytes, plan);
  plan_formula(x->dry.fsdp, 0, dry);
  for (int i = 0; i < MEM_COUNT; i++) {
    const MemoryName line = (MemoryName)i;
    if (line == MEM_DATA || line == MEM_STEP || line == MEM_ACTIVATIONS || line == MEM_WORKSPACE ||
        line == MEM_CHECKPOINT)
      continue;
    const size_t planned = x->t.run.plan.planned_bytes[i], taken = x->dry.run.plan.taken_bytes[i];
    EXPECT(plan[i] == planned && dry[i] == taken, "%s, rank %d: %s: %zu bytes by the formula, %zu are planned; the dry "
           "run took %zu of %zu", what, rank, memory_words[i], plan[i], planned, taken, dry[i]);
  }
}
TEST(plan_dry_runs_are_what_the_formulas_say,
     "the record of a step, for every rank of the covering set of modes and for ranks of worlds of 8 to 1024, counts "
     "the collectives and bytes of fsdp_formula; it and the plan take the memory of the formulas stated here; offsets "
     "are alike in a shard group; no op writes what it reads unless ops.h allows it") {
  if (!&ops_cuda_emulated) SKIP("this test program was linked without dev/cuda_emu");
  static ModeSet s;
  static Options o;
  static PlanCase x;
  char text[512];
  Error error = {};
  plan_modes(&s);
  for (int i = 0; i < s.rows; i++) {
    const int world = mode_world(&s.row[i]);
    mode_text(text, sizeof text, &s.row[i]);
    mode_options(&o, &s.row[i], mode_microbatches(&s.row[i]), &error);
    size_t slots_bytes = 0;                      // of the shard group: its ranks read each other's memory behind them
    for (int rank = 0; rank < world; rank++) for (PassKind kind : {PASS_TRAIN, PASS_EVAL, PASS_SAMPLE}) {
      plan_case_open(&x, &o, false, rank, world, world, kind);
      const size_t bytes = x.t.fsdp->passes->placement.pool[POOL_SLOTS].bytes;
      if (!x.t.fsdp->mesh.shard.me) slots_bytes = bytes;
      EXPECT(bytes == slots_bytes, "%s, rank %d: gradient slots and what shares with them take %zu bytes, %zu on "
             "another rank of the shard group", text, rank, bytes, slots_bytes);
      EXPECT(!x.record->error[0], "%s, rank %d: %s", text, rank, x.record->error);
      if (kind == PASS_TRAIN) plan_expect_formula(&x, text, rank);
      plan_case_close(&x);
    }
  }
  static const struct { const char *options; int world, per_host; const char *comm, *reduce = NULL; } large[] = {
      {"--model gpt2-xl --grad_accum 2 --param_dtype bf16", 1024, 8, "nccl"},
      {"--model gpt2-xl --mesh 16x8 --reduce_dtype bf16", 128, 8, "nccl"},
      {"--model gpt2 --mesh 4x2 --accumulate local --grad_accum 3", 8, 4, "mpi"},
      {"--model small --reshard_after_forward 8 --grad_accum 2", 64, 8, "nccl"},
      {"--model small --param_dtype bf16 --offload optimizer", 16, 8, "nccl"},
      {"--model small --param_dtype bf16 --moment_dtype bf16", 8, 8, "nccl"},
      {"--model small --moment_dtype bf16 --offload params", 8, 8, "nccl"},
      {"--model small --between_hosts chain --grad_accum 2 --reduce_dtype bf16", 22, 8, "nccl"},
      {"--model small --mesh 2x8 --fp8 gather --offload optimizer", 16, 4, "mpi"},
      {"--model small --mesh 8x2 --offload params --grad_accum 2", 16, 4, "mpi"},
      {"--model small --offload params", 8, 8, "nccl", "native"}};
  for (const auto &m : large) for (int rank : {0, m.world / 2 + 1, m.world - 1}) {
    test_options(&o, m.world, "%s", m.options);
    option_pick(&o, OPT_comm, m.comm);
    if (m.reduce) option_pick(&o, OPT_reduce, m.reduce);
    plan_case_open(&x, &o, true, rank, m.world, m.per_host, PASS_TRAIN);
    EXPECT(!x.record->error[0], "%s, rank %d: %s", m.options, rank, x.record->error);
    plan_expect_formula(&x, m.options, rank);
    if (!rank) printf("%s: %d entries, %d buffers\n", m.options, x.record->count, x.pass->count);
    plan_case_close(&x);
  }
  // Gradients along hosts, of 4, 4 and 3 ranks.
  for (const char *options : {"--model tiny --grad_accum 2 --between_hosts chain",
                              "--model tiny --dtype bf16 --strategy zero1 --shard dim0 --between_hosts chain"})
    for (int rank = 0; rank < 11; rank++) {
      test_options(&o, 11, "%s", options);
      plan_case_open(&x, &o, false, rank, 11, 4, PASS_TRAIN);
      EXPECT(x.t.fsdp->lay.hosts.hosts == 3 && !x.record->error[0], "%s, rank %d: %s", options, rank, x.record->error);
      plan_expect_formula(&x, options, rank);
      plan_case_close(&x);
    }
}

// ================================================================================================ 3 touches
// A table over a CPU's: while an op runs, all memory that its declaration does not name is NaN, and so is what it is
// said to overwrite. What it is said to read only must stay, and what it writes elsewhere is taken back. An op that is
// not said to use the workspace has none.
struct TouchBlock { char *at, *saved; size_t bytes; };
static struct TouchCheck {
  OpWatch watch;
  TouchBlock block[64];
  int blocks, calls;
} touch_check;
static inline void touch_check_alloc(Ctx *c, void **p, size_t bytes, MemoryKind kind) {
  touch_check.watch.real->memory_alloc(c, p, bytes, kind);
  CHECK(touch_check.blocks < 64, "%d blocks", touch_check.blocks);
  if (kind == MEMORY_PINNED && bytes > 1 << 20) return;          // of the host alone; half the time of the test
  if (*p) touch_check.block[touch_check.blocks++] = TouchBlock{(char *)*p, (char *)malloc(bytes), bytes};
}
// Copies the part of [at, at + bytes) that is in a block between it and its saved copy.
static inline void touch_check_copy(const TouchBlock *b, uintptr_t at, size_t bytes, bool save) {
  const uintptr_t from = at > (uintptr_t)b->at ? at : (uintptr_t)b->at, end = (uintptr_t)b->at + b->bytes;
  const uintptr_t to = at + bytes < end ? at + bytes : end;
  if (from >= to) return;
  char *memory = (char *)from, *saved = b->saved + (from - (uintptr_t)b->at);
  if (save) memcpy(saved, memory, to - from);
  else memcpy(memory, saved, to - from);
}
static inline void touch_check_before(OpWatch *, Ctx *c, const OpTouch *x) {
  TouchCheck *k = &touch_check;
  for (int i = 0; i < k->blocks; i++) {
    TouchBlock *b = &k->block[i];
    memcpy(b->saved, b->at, b->bytes);
    memset(b->at, 0xff, b->bytes);
    for (int j = 0; j < x->count; j++)
      if (x->access[j].kind != ACCESS_WRITE) touch_check_copy(b, x->access[j].at, x->access[j].bytes, false);
  }
  if (!x->workspace) c->workspace = NULL, c->workspace_bytes = 0;
}
static inline void touch_check_after(OpWatch *, Ctx *, const OpTouch *x) {
  TouchCheck *k = &touch_check;
  k->calls++;
  for (int i = 0; i < k->blocks; i++) {
    TouchBlock *b = &k->block[i];
    for (int j = 0; j < x->count; j++) {
      const Access a = x->access[j];
      bool only_read = a.kind == ACCESS_READ && a.at >= (uintptr_t)b->at && a.at < (uintptr_t)b->at + b->bytes;
      for (int l = 0; l < x->count; l++)
        only_read = only_read && (x->access[l].kind == ACCESS_READ || !accesses_overlap(a, x->access[l]));
      EXPECT(!only_read || !memcmp((char *)a.at, b->saved + (a.at - (uintptr_t)b->at), a.bytes),
             "%s changes argument %d, which it is said to read", op_word(x->op), j);
    }
    for (int j = 0; j < x->count; j++)
      if (x->access[j].kind != ACCESS_READ) touch_check_copy(b, x->access[j].at, x->access[j].bytes, true);
    memcpy(b->at, b->saved, b->bytes);
  }
}
TEST_MPI(ops_touch_what_they_declare, 1,
         "training, evaluation and a sample give the same bits when each op finds NaN in all memory, the step's state "
         "included, that its line of ops.h does not say it reads, loses what it writes elsewhere, and has no workspace "
         "unless it is said to use it") {
  static const char *const modes[] = {"", "--dropout 0.2 --param_dtype bf16 --reduce_dtype bf16 --recompute block",
                                      "--param_dtype fp16 --optimizer sgd --recompute gelu --accumulate local",
                                      "--param_dtype bf16 --fp8 gather --tie_head off --recompute mlp",
                                      "--buffer_dtype bf16 --freeze wte,h.0.*",
                                      "--optimizer muon --param_dtype bf16",
                                      "--param_dtype bf16 --fp8 matmul --n_embd 32 --seq_len 8"};
  static Corpus corpus;
  static Trainer t;
  TouchCheck *k = &touch_check;
  watch_table(&k->watch, cpu_tables[0].ops);
  k->watch.before = touch_check_before, k->watch.after = touch_check_after;
  k->watch.ops.memory_alloc = touch_check_alloc;
  test_corpus(&corpus, 101, 2 * 7 * 12 + 1, 60);
  for (const char *mode : modes) {
    double loss[2][3], norm[2];
    uint64_t weights[2];
    int32_t ids[2][8] = {{5}, {5}};
    for (int with = 0; with < 2; with++) {
      Options o;
      test_options(&o, 1, "--n_layer 3 --n_head 2 --n_embd 20 --seq_len 7 --n_positions 9 --vocab_size 101 "
                   "--batch_size 2 --grad_accum 2 --temperature 0 --loss_scale 128 %s", mode);
      k->blocks = k->calls = 0;
      trainer_open(&t, &o, &corpus, MPI_COMM_SELF, device_of(with ? &k->watch.ops : k->watch.real), 2);
      for (int s = 0; s < 2; s++) {
        const StepResult r = train_step(&t, false);
        loss[with][s] = r.loss;
        norm[with] = r.grad_norm;
      }
      loss[with][2] = trainer_eval(&t, &corpus.split[SPLIT_VALID]).loss;
      trainer_sample(&t, ids[with], 1, 7, NULL, NULL);
      weights[with] = weights_hash(t.fsdp);
      EXPECT(!with || k->calls > 300, "%s: %d calls were checked", mode, k->calls);
      trainer_close(&t);
      for (int i = 0; i < k->blocks; i++) free(k->block[i].saved);
    }
    EXPECT(!memcmp(loss[0], loss[1], sizeof loss[0]) && norm[0] == norm[1] && weights[0] == weights[1] &&
           !memcmp(ids[0], ids[1], sizeof ids[0]), "%s: losses %.9g %.9g %.9g (%.9g %.9g %.9g), norm %.9g (%.9g), "
           "weights %s", mode, loss[1][0], loss[1][1], loss[1][2], loss[0][0], loss[0][1], loss[0][2], norm[1], norm[0],
           weights[0] == weights[1] ? "equal" : "differ");
  }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}

// ================================================================================================ 4 placement
// For each byte of a pool, and of a buffer, the number of the entry that wrote it last. Nobody reads a workspace, and
// all buffers start on multiples of 256: who wrote there last as workspace is noted once for 256 bytes, apart.
struct PlanShadow { int *pool[POOLS], *workspace[POOLS]; };
static inline const Buffer *plan_buffer_at(const Trainer *t, PassKind kind, uintptr_t at) {
  const Pass *p = &t->fsdp->passes->pass[kind];
  for (int i = 0; i < t->fsdp->passes->placement.fixed_count; i++) {
    const Buffer *b = &t->fsdp->passes->placement.fixed[i].buffer;
    if (b->pool == POOL_SHARDS && kind != PASS_TRAIN) continue;
    if (at >= b->address && at < b->address + b->bytes) return b;
  }
  for (int i = 0; i < p->count; i++)
    if (at >= p->buffer[i].address && at < p->buffer[i].address + p->buffer[i].bytes) return &p->buffer[i];
  return NULL;
}
// The first of n bytes whose place, from byte `at` of a pool on, another entry has written than itself; n: none.
TEST_HOT static int64_t plan_foreign(const int *mine, const int *there, const int *workspace, size_t at, int64_t n) {
  int64_t foreign = 0, j = 0;
  for (int64_t k = 0; k < n; k++) foreign += (mine[k] != 0) & (mine[k] != there[k]);
  for (int64_t k = -at & 255; k < n; k += 256) foreign += mine[k] && workspace[(at + (size_t)k) / 256] > mine[k];
  if (!foreign) return n;
  while (j < n && (!mine[j] || (mine[j] == there[j] && (((at + (size_t)j) & 255) ||
                                                        workspace[(at + (size_t)j) / 256] <= mine[j])))) j++;
  return j;
}
TEST_HOT static void plan_mark(int *to, int64_t n, int entry) {
  for (int64_t j = 0; j < n; j++) to[j] = entry;
}
// Replays a pass's record in the places that t's placement gives its buffers. Returns the number of bytes read, or -1
// after the first byte that somebody else has overwritten.
static inline int64_t plan_replay(const PlanCase *x, PassKind kind, Error *error) {
  const Trainer *t = &x->t;
  PlanShadow place = {};
  int64_t bytes = 0, offset = 0;
  const PoolSpace *pool = t->fsdp->passes->placement.pool;
  for (int k = 0; k < POOLS; k++) {
    place.pool[k] = (int *)calloc(pool[k].bytes + 1, sizeof(int));
    place.workspace[k] = (int *)calloc(pool[k].bytes / 256 + 1, sizeof(int));
  }
  const uintptr_t low = RECORD_ADDRESSES;
  int *own = (int *)calloc(x->record->next_address - low, sizeof(int));         // by address
  for (int i = 0; i < x->record->count && !error->text[0]; i++) {
    const RecordEntry *e = &x->record->entry[i];
    for (int k = i + 1; k < x->record->count && e->kind == RECORD_ACCESS && x->record->entry[k].kind == RECORD_ACCESS &&
                        x->record->entry[k].call == e->call; k++) {
      const Access a = e->access, b = x->record->entry[k].access;
      const Buffer *p = plan_buffer_at(t, kind, a.at), *q = plan_buffer_at(t, kind, b.at);
      if (!p || !q || p == q || p->pool != q->pool || (a.kind == ACCESS_READ && b.kind == ACCESS_READ)) continue;
      const size_t at = p->at + (a.at - p->address), to = q->at + (b.at - q->address);
      if (at < to + b.bytes && to < at + a.bytes)
        fail(error, "call %d, %s, writes %s of block %d where %s of block %d is", e->call,
                 op_word(e->op), q->name, q->layer, p->name, p->layer);
    }
    for (offset = 0; e->kind == RECORD_ACCESS && offset < (int64_t)e->access.bytes && !error->text[0];) {
      const uintptr_t at = e->access.at + (uintptr_t)offset;
      const Buffer *b = plan_buffer_at(t, kind, at);
      if (!b) { offset += 256 - (int64_t)(at & 255); continue; }   // buffers start on multiples of 256
      const size_t to = b->at + (at - b->address);
      int *there = place.pool[b->pool] + to, *workspace = place.workspace[b->pool];
      const int64_t n = min64((int64_t)e->access.bytes - offset, (int64_t)(b->address + b->bytes - at));
      int *mine = own + (at - low);
      if (b->workspace) {
        if (e->access.kind != ACCESS_WRITE) fail(error, "entry %d, %s reads its workspace", i, op_word(e->op));
        plan_mark(workspace + (to + 255) / 256, (int64_t)((to + (size_t)n + 255) / 256 - (to + 255) / 256), i + 1);
        bytes += n / 256;
        offset += n;
        continue;
      }
      const int64_t j = e->access.kind == ACCESS_WRITE ? n : plan_foreign(mine, there, workspace, to, n);
      if (j < n) {
        const int by = max64(there[j], workspace[(to + (size_t)j) / 256]);
        fail(error, "entry %d, %s reads %s of block %d, which entry %d wrote and entry %d, %s, overwrote", i,
             op_word(e->op), b->name, b->layer, mine[j], by, op_word(x->record->entry[by - 1].op));
      }
      if (e->access.kind != ACCESS_READ) plan_mark(mine, n, i + 1), plan_mark(there, n, i + 1);
      bytes += n;
      offset += n;
    }
  }
  for (int k = 0; k < POOLS; k++) free(place.pool[k]), free(place.workspace[k]);
  free(own);
  return error->text[0] ? -1 : bytes;
}
TEST(plan_places_what_is_never_alive_at_once,
     "for the covering set of modes, half of it over NCCL, and each pass, replayed in the places that buffers got, "
     "every read of the record finds what was last written to its buffer") {
  static ModeSet s;
  static Options o;
  static PlanCase x;
  char text[512];
  Error error = {};
  int64_t read = 0;
  int waits = 0;
  plan_modes(&s);
  for (int i = 0; i < s.rows; i++) {
    const int world = mode_world(&s.row[i]);
    mode_text(text, sizeof text, &s.row[i]);
    mode_options(&o, &s.row[i], mode_microbatches(&s.row[i]), &error);
    const bool nccl = i & 1 && &ops_cuda_emulated && world > 1;  // half of them over NCCL, with its staging
    if (nccl) o.comm = OPT_comm_nccl;
    for (PassKind kind : {PASS_TRAIN, PASS_EVAL, PASS_SAMPLE}) {
      plan_case_open(&x, &o, nccl, world - 1, world, world, kind);
      // The same calls got the same addresses when the trainer was planned, but for the passes before this one.
      Pass *p = &x.t.fsdp->passes->pass[kind];
      REQUIRE(p->count == x.pass->count, "%s: %d buffers, then %d", text, p->count, x.pass->count);
      for (int k = 0; k < p->count; k++) p->buffer[k].address = x.pass->buffer[k].address;
      error.text[0] = 0;
      const int64_t bytes = plan_replay(&x, kind, &error);
      EXPECT(bytes > 0, "%s, pass %d: %s", text, kind, error.text);
      read += bytes;
      waits += x.t.fsdp->passes->pass[kind].waits;
      plan_case_close(&x);
    }
  }
  printf("%d rows, %lld bytes, %d waits\n", s.rows, (long long)read, waits);
}
