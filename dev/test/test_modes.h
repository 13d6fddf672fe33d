// test_modes.h: every mode of sharding is a set of numbers in one schedule, so none may change a result. A table of
// factors with their values makes rows; a row is a run. Each run must give the bits of the plainest run of the same
// arithmetic, the traffic of its formula on every rank and step, and memory as planned.
//
//   1 factors      the table; a row as options; rejections of options_resolve
//   2 covering     a set of rows in which every legal pair of values of two factors occurs
//   3 runs         the set, by number of ranks; all combinations, as far as time allows, in tests ending in _all
//   4 units        the parameters that --wrap and --freeze choose
//   5 bytes        memory and traffic of the main modes, stated independently
//   6 accumulation the gradients of a step are the stated sums of its microbatches' gradients
//
// The covering set is made here, by a greedy search over candidates in seeded order: it is the same on every machine.

// ================================================================================================ 1 factors
// The factors that may contradict each other come first; those from MODE_SHARD on combine with everything.
enum ModeFactor {
  MODE_MESH, MODE_STRATEGY, MODE_RESHARD, MODE_SLOTS, MODE_WRAP, MODE_ACCUMULATE,
  MODE_SHARD, MODE_PARAM, MODE_BUFFER, MODE_REDUCE, MODE_FP8, MODE_FREEZE, MODE_RECOMPUTE, MODE_SHM, MODE_HEAD,
  MODE_DROPOUT, MODE_OPTIMIZER, MODE_MICROBATCHES, MODE_ROUNDS, MODE_THREADS, MODE_FACTORS
};
// Values of MODE_HEAD from MODE_BLOCKS on are other blocks than GPT-2's, their heads tied and apart in turn.
enum { MODE_BLOCKS = 2 };
enum { MODE_ONE_MICROBATCH = 1, MODE_MANY_ROUNDS = 1, MODE_VALUES_MAX = 14 };

// option: OPTION_COUNT if the value is not one of the program's options. A value "" leaves the option out. The wraps
// cut a block of 5060 parameters into its larger matrices, and into its MLP and the rest.
struct ModeFactorSpec { OptionId option; int values; const char *value[MODE_VALUES_MAX]; };
static ModeFactorSpec mode_factors[MODE_FACTORS] = {
    {OPT_mesh, 14, {"1x1", "1x2", "2x1", "1x3", "3x1", "1x4", "2x2", "4x1", "1x5", "5x1", "1x6", "2x3", "3x2", "6x1"}},
    {OPT_strategy,
     9,
     {"", "full_shard", "shard_grad_op", "hybrid_shard", "no_shard", "zero1", "zero2", "zero3", "ddp"}},
    {OPT_reshard_after_forward, 5, {"", "on", "off", "2", "3"}},
    {OPT_gather_slots, 4, {"", "1", "2", "3"}},
    {OPT_wrap, 4, {"block", "model", "min_params:1000", "min_params:1700"}},
    {OPT_accumulate, 3, {"", "sharded", "local"}},
    {OPT_shard, 2, {"flat", "dim0"}},
    {OPT_param_dtype, 3, {"fp32", "bf16", "fp16"}},
    {OPT_buffer_dtype, 3, {"fp32", "bf16", "fp16"}},
    {OPT_reduce_dtype, 3, {"fp32", "bf16", "fp16"}},
    {OPT_fp8, 2, {"off", "gather"}},
    {OPT_freeze, 6, {"", "wte,h.0.*,*ln_*", "wte,wpe,h.0.*,h.1.*", "*.weight", "h.2.*", "lora=3 lora_dropout=0.2"}},
    {OPT_recompute, 6, {"none", "gelu", "norm", "mlp", "block", "block:1,mlp:2"}},
    {OPT_shm, 3, {"on", "copy", "off"}},
    {OPT_tie_head, 6, {"on", "off",
        "norm=rmsnorm norm_place=behind position=rope qk_norm=all window=3 window_skip=3 window_theta=9 "
        "mlp=geglu embedding_scale=on attention_scale=5 bias=qkv n_kv_head=1",
        "norm=rmsnorm position=rope rope_skip=2 qk_norm=before mlp=relu2 bias=qkv logit_softcap=4 head_size=6",
        "norm=rmsnorm norm_place=both norm_embedding=on qk_norm=after mlp=swiglu mlp_width=33 bias=qkvo",
        "bias=qkvo mlp_width=60 position=rope rope_scaling=llama3:4,1,4,8"}},
    {OPT_dropout, 2, {"0", "0.1"}},
    {OPT_optimizer, 3, {"adamw", "sgd", "muon"}},
    {OPTION_COUNT, 2, {"several microbatches per rank", "one microbatch per rank"}},
    {OPTION_COUNT, 2, {"reductions in one round", "reductions in rounds of 384"}},
    {OPTION_COUNT, 2, {"one thread", "two threads"}}};

struct CoverRow { int8_t value[MODE_FACTORS]; };

// Four blocks, so that 1, 2 and 3 slots are fewer; widths that no number of ranks divides.
static const char mode_shapes[] = "--n_layer 4 --n_head 2 --n_embd 20 --seq_len 7 --n_positions 9 --vocab_size 101 "
                                  "--batch_size 1 --lr 0.01 --warmup 0 --clip 0.5 --epochs 9 --loss_scale 128";
enum { MODE_STEPS = 2, MODE_ROUND_NUMEL = 384 };

static inline const char *mode_value(const CoverRow *r, ModeFactor f) { return mode_factors[f].value[r->value[f]]; }
static inline int mode_world(const CoverRow *r) {
  int replicas = 0, shards = 0;
  mesh_parse(mode_value(r, MODE_MESH), &replicas, &shards);
  return replicas * shards;
}
// Microbatches of a step over all ranks: one or more per rank; 5 does not divide 12.
static inline int mode_microbatches(const CoverRow *r) {
  const int N = mode_world(r);
  return r->value[MODE_MICROBATCHES] == MODE_ONE_MICROBATCH ? N : N == 5 ? 10 : 12;
}
static inline void mode_text(char *to, size_t bytes, const CoverRow *r) {
  to[0] = 0;
  for (int f = 0; f < MODE_FACTORS; f++) {
    const char *value = mode_value(r, (ModeFactor)f);
    const size_t n = strlen(to);
    if (mode_factors[f].option == OPTION_COUNT && r->value[f]) snprintf(to + n, bytes - n, "(%s) ", value);
    const bool many = (f == MODE_HEAD && r->value[f] >= MODE_BLOCKS) || strchr(value, '=');
    if (many) snprintf(to + n, bytes - n, "(%s) ", value);
    else if (mode_factors[f].option != OPTION_COUNT && *value)
      snprintf(to + n, bytes - n, "--%s %s ", option_specs[mode_factors[f].option].name, value);
  }
}

// The row's options with M microbatches per step, resolved. False with the rejection in `error`.
static inline bool mode_options(Options *o, const CoverRow *r, int M, Error *error) {
  static Options base;
  if (!base.n_layer) {
    char text[sizeof mode_shapes], *argv[40] = {(char *)"test"}, *save = NULL;
    int argc = 1;
    memcpy(text, mode_shapes, sizeof text);
    for (char *word = strtok_r(text, " ", &save); word; word = strtok_r(NULL, " ", &save)) argv[argc++] = word;
    if (!options_parse(&base, &trainer_table, argc, argv, error)) return false;
  }
  *o = base;
  const bool block = r->value[MODE_HEAD] >= MODE_BLOCKS;
  for (int f = 0; f < MODE_FACTORS; f++) {
    const char *value = mode_value(r, (ModeFactor)f);
    if (mode_factors[f].option == OPTION_COUNT || !*value) continue;
    if (f == MODE_HEAD && block) preset_fill(o, value), value = r->value[f] % 2 ? "off" : "on";
    if (f == MODE_FREEZE && block && strstr(value, "wpe,")) value = "w*,h.0.*,h.1.*";      // there may be no wpe
    if (f == MODE_FREEZE && !strncmp(value, "lora", 4)) { o->lora = 3, o->lora_dropout = 0.2; continue; }
    if (!option_set(o, mode_factors[f].option, value, error)) return false;
  }
  const bool bf16 = o->buffer_dtype == OPT_buffer_dtype_bf16;      // beside dropout logits are in bf16 too
  if (bf16 && o->dropout > 0) o->logits_dtype = OPT_logits_dtype_bf16;
  o->global_batch = M;
  return options_resolve(o, mode_world(r), mode_world(r), error);
}
// Whether the text names one of the program's options.
static inline bool names_an_option(const char *text) {
  for (const char *at = strstr(text, "--"); at; at = strstr(at + 2, "--"))
    for (const OptionSpec &s : option_specs) {
      const size_t n = strlen(s.name);
      if (!strncmp(at + 2, s.name, n) && !strchr("abcdefghijklmnopqrstuvwxyz_0123456789", at[2 + n])) return true;
    }
  return false;
}

// ================================================================================================ 2 covering
// Every value of every factor has a number; a pair of two factors' values is legal if some legal row has both.
enum { MODE_NUMBERS_MAX = 96, MODE_ROWS_MAX = 512, MODE_CORES_MAX = 1 << 15 };
struct ModePairs { bool has[MODE_NUMBERS_MAX][MODE_NUMBERS_MAX]; };
// cores: the legal rows of the factors before MODE_SHARD, the others at their first value. rejected: number of illegal
// ones; unnamed: number of rejections among these that name no option.
struct ModeSet {
  CoverRow core[MODE_CORES_MAX], row[MODE_ROWS_MAX];
  int cores, rows, rejected, unnamed;
  ModePairs legal;
};

TEST_HOT static inline int mode_number(int f, int value) {
  for (int i = 0; i < f; i++) value += mode_factors[i].values;
  return value;
}
// Random numbers of the search: Knuth's MMIX generator.
static inline int mode_draw(uint64_t *state, int below) {
  *state = *state * 6364136223846793005ull + 1442695040888963407ull;
  return (int)((*state >> 33) % (uint64_t)below);
}

// Fills `cores` by calling options_resolve for all combinations of the factors before MODE_SHARD.
static inline void modes_ask(ModeSet *s) {
  static Options o;
  CoverRow r = {};
  s->cores = s->rejected = s->unnamed = 0;
  for (int f = 0; f < MODE_SHARD;) {
    Error error = {};
    if (mode_options(&o, &r, mode_microbatches(&r), &error)) s->core[s->cores++] = r;
    else {
      s->rejected++;
      s->unnamed += !names_an_option(error.text);
    }
    for (f = 0; f < MODE_SHARD && ++r.value[f] == mode_factors[f].values; f++) r.value[f] = 0;
  }
}
// A legal core with any values of the other factors is a legal row.
static inline void modes_legal_pairs(ModeSet *s) {
  memset(&s->legal, 0, sizeof s->legal);
  for (int i = 0; i < s->cores; i++) for (int f = 0; f < MODE_SHARD; f++)
    for (int g = f + 1; g < MODE_FACTORS; g++) for (int w = 0; w < mode_factors[g].values; w++)
      if (g >= MODE_SHARD || s->core[i].value[g] == w)
        s->legal.has[mode_number(f, s->core[i].value[f])][mode_number(g, w)] = true;
  for (int f = MODE_SHARD; f < MODE_FACTORS; f++) for (int v = 0; v < mode_factors[f].values; v++)
    for (int g = f + 1; g < MODE_FACTORS; g++) for (int w = 0; w < mode_factors[g].values; w++)
      s->legal.has[mode_number(f, v)][mode_number(g, w)] = true;
}
// Number of the row's pairs that are not yet in `covered`; with `add` they are added.
TEST_HOT static inline int modes_row_pairs(const CoverRow *r, ModePairs *covered, bool add) {
  int fresh = 0;
  for (int f = 0; f < MODE_FACTORS; f++) for (int g = f + 1; g < MODE_FACTORS; g++) {
    bool *has = &covered->has[mode_number(f, r->value[f])][mode_number(g, r->value[g])];
    fresh += !*has;
    if (add) *has = true;
  }
  return fresh;
}
// NULL if the rows except number `without` have every legal pair, else the first missing one, as text.
static inline const char *modes_missing(const ModeSet *s, int without) {
  static ModePairs covered;
  static char text[256];
  memset(&covered, 0, sizeof covered);
  for (int i = 0; i < s->rows; i++) if (i != without) modes_row_pairs(&s->row[i], &covered, true);
  for (int f = 0; f < MODE_FACTORS; f++) for (int v = 0; v < mode_factors[f].values; v++)
    for (int g = f + 1; g < MODE_FACTORS; g++) for (int w = 0; w < mode_factors[g].values; w++) {
      const int a = mode_number(f, v), b = mode_number(g, w);
      if (!s->legal.has[a][b] || covered.has[a][b]) continue;
      snprintf(text, sizeof text, "'%s' of factor %d with '%s' of factor %d", mode_factors[f].value[v], f,
               mode_factors[g].value[w], g);
      return text;
    }
  return NULL;
}

// A pair of values that a row must have.
struct ModePair { int f, v, g, w; };
static inline bool mode_fits(const CoverRow *r, ModePair p) {
  return (p.f >= MODE_SHARD || r->value[p.f] == p.v) && (p.g >= MODE_SHARD || r->value[p.g] == p.w);
}
// A row with pair p: a random legal core that has its part of the pair, then for every other factor, in random order,
// the value that adds most pairs with those chosen so far.
static inline CoverRow mode_candidate(const ModeSet *s, const ModePairs *covered, ModePair p, uint64_t *state) {
  int at = mode_draw(state, s->cores), order[MODE_FACTORS], chosen = MODE_SHARD;
  while (!mode_fits(&s->core[at], p)) at = (at + 1) % s->cores;
  CoverRow r = s->core[at];
  for (int f = 0; f < MODE_FACTORS; f++) order[f] = f;
  for (int f = MODE_FACTORS - 1; f > MODE_SHARD; f--) {
    const int k = MODE_SHARD + mode_draw(state, f - MODE_SHARD + 1), swapped = order[f];
    order[f] = order[k], order[k] = swapped;
  }
  for (; chosen < MODE_FACTORS; chosen++) {
    const int f = order[chosen], values = mode_factors[f].values, first = mode_draw(state, values);
    int best = -1;
    for (int i = 0; i < values; i++) {
      const int v = (first + i) % values, number = mode_number(f, v);
      if ((p.f == f && p.v != v) || (p.g == f && p.w != v)) continue;
      int fresh = 0;
      for (int k = 0; k < chosen; k++) {
        const int g = order[k], other = mode_number(g, r.value[g]);
        fresh += !covered->has[f < g ? number : other][f < g ? other : number];
      }
      if (fresh <= best) continue;
      best = fresh;
      r.value[f] = (int8_t)v;
    }
  }
  return r;
}
// Fills `row`: for each legal pair that no row has, the best of 40 candidates. Then removes rows all of whose pairs
// other rows have.
static inline void modes_cover(ModeSet *s) {
  static ModePairs covered;
  uint64_t state = 1;
  memset(&covered, 0, sizeof covered);
  s->rows = 0;
  for (int f = 0; f < MODE_FACTORS; f++) for (int v = 0; v < mode_factors[f].values; v++)
    for (int g = f + 1; g < MODE_FACTORS; g++) for (int w = 0; w < mode_factors[g].values; w++) {
      const int a = mode_number(f, v), b = mode_number(g, w);
      if (!s->legal.has[a][b] || covered.has[a][b] || s->rows == MODE_ROWS_MAX) continue;
      int most = 0;
      for (int i = 0; i < 40; i++) {
        const CoverRow r = mode_candidate(s, &covered, ModePair{f, v, g, w}, &state);
        const int fresh = modes_row_pairs(&r, &covered, false);
        if (fresh > most) most = fresh, s->row[s->rows] = r;
      }
      modes_row_pairs(&s->row[s->rows++], &covered, true);
    }
  for (int i = s->rows - 1; i >= 0; i--)
    if (!modes_missing(s, i)) s->row[i] = s->row[--s->rows];
}

TEST(modes_covering_set_is_complete,
     "every legal pair of two factors' values is in a row of the covering set, and no row can be removed; every "
     "rejection names an option; a legal core combines with all values of the other factors") {
  static ModeSet s;
  static Options o;
  char text[1024];
  Error error = {};
  modes_ask(&s);
  modes_legal_pairs(&s);
  modes_cover(&s);
  const char *missing = modes_missing(&s, -1);
  EXPECT(!missing, "%d rows do not have %s", s.rows, missing);
  for (int i = 0; i < s.rows; i++) {
    EXPECT(modes_missing(&s, i), "nothing is missing without row %d", i);
    mode_text(text, sizeof text, &s.row[i]);
    EXPECT(mode_options(&o, &s.row[i], mode_microbatches(&s.row[i]), &error), "%s is rejected: %s", text, error.text);
  }
  EXPECT(s.cores > 500 && s.rejected > 500, "%d of %d combinations are rejected", s.rejected, s.cores + s.rejected);
  EXPECT(!s.unnamed, "%d of %d rejections name no option", s.unnamed, s.rejected);
  for (int f = 0; f < MODE_SHARD; f++) for (int v = 0; v < mode_factors[f].values; v++) {
    bool occurs = false;
    for (int i = 0; i < s.cores && !occurs; i++) occurs = s.core[i].value[f] == v;
    EXPECT(occurs, "no legal row has '%s'", mode_factors[f].value[v]);
  }
  printf("%d legal cores, %d rejected, %d rows\n", s.cores, s.rejected, s.rows);
}

// ================================================================================================ 3 runs
// The plainest row of the same arithmetic: one rank, unless ranks first add up their own microbatches, because then the
// sums depend on the number of ranks.
static inline CoverRow mode_reference(const CoverRow *r) {
  const int N = mode_world(r);
  const bool local = !strcmp(mode_value(r, MODE_ACCUMULATE), "local") || !strcmp(mode_value(r, MODE_STRATEGY), "zero1");
  const bool own_sums = local && mode_microbatches(r) > N;
  static const ModeFactor plain[] = {MODE_STRATEGY, MODE_RESHARD, MODE_SLOTS, MODE_WRAP, MODE_ACCUMULATE, MODE_SHARD,
                                     MODE_RECOMPUTE, MODE_SHM, MODE_ROUNDS, MODE_THREADS, MODE_MICROBATCHES};
  CoverRow to = *r;
  for (ModeFactor f : plain) to.value[f] = 0;
  char mesh[16];
  snprintf(mesh, sizeof mesh, "1x%d", own_sums ? N : 1);
  for (int i = 0; i < mode_factors[MODE_MESH].values; i++)
    if (!strcmp(mode_factors[MODE_MESH].value[i], mesh)) to.value[MODE_MESH] = (int8_t)i;
  to.value[MODE_STRATEGY] = 1;
  to.value[MODE_ACCUMULATE] = own_sums ? 2 : 0;
  return to;
}

// Frozen parameters have no gradient and no moments, and no master other than themselves.
static inline void mode_expect_frozen(Fsdp *f, const char *what) {
  for (int p = 0; p < f->lay.params; p++) {
    const Param *q = &f->lay.param[p];
    const int unit = f->lay.place[p].unit, piece = f->lay.place[p].piece;
    const Piece *c = &f->lay.unit[unit].piece[piece];
    if (!q->frozen) continue;
    for (ShardState state : {STATE_M, STATE_V, STATE_GRAD})
      EXPECT(!fsdp_piece_state(f, state, unit, piece), "%s: %s is frozen and has state", what, q->name);
    EXPECT(!fsdp_grad(f, p).data && !c->has_master, "%s: %s is frozen and has a gradient or a master", what, q->name);
  }
}
// Runs a row over `comm`, whose size is its number of ranks. All ranks call it.
static inline void mode_run(WorldResult *result, const CoverRow *r, int M, const Corpus *corpus, MPI_Comm comm) {
  static Trainer t;
  static Options o;
  char what[1024];
  Error error = {};
  mode_text(what, sizeof what, r);
  memset(result, 0, sizeof *result);
  REQUIRE(mode_options(&o, r, M, &error), "%s is rejected: %s", what, error.text);
  trainer_open(&t, &o, corpus, comm, device_of(agree_on_ops(&o, comm)), 1 + r->value[MODE_THREADS]);
  for (int i = 0; i < MEM_COUNT; i++)
    EXPECT(t.run.plan.planned_bytes[i] == t.run.plan.taken_bytes[i], "%s: %s: planned %zu, taken %zu bytes", what,
           memory_words[i], t.run.plan.planned_bytes[i], t.run.plan.taken_bytes[i]);
  mode_expect_frozen(t.fsdp, what);
  if (r->value[MODE_ROUNDS] == MODE_MANY_ROUNDS)
    fsdp_cut_rounds(t.fsdp, min64(t.fsdp->lay.chunk_numel, MODE_ROUND_NUMEL));
  const uint64_t frozen = params_hash(t.fsdp, true), before = weights_hash(t.fsdp);
  for (int s = 0; s < MODE_STEPS; s++) {
    t.fsdp->traffic = Traffic{};
    const StepResult x = train_step(&t, false);
    result->loss[s] = x.loss;
    result->norm[s] = x.grad_norm;
    EXPECT(!x.skipped, "%s: step %d was skipped", what, s);
    expect_traffic(t.fsdp, (int)o.grad_accum, s, what);
  }
  const EvalResult e = trainer_eval(&t, &corpus->split[SPLIT_VALID]);
  result->eval_loss = e.loss;
  result->eval_tokens = e.tokens;
  result->weights = weights_hash(t.fsdp);
  EXPECT(result->weights != before, "%s: no weight has changed", what);
  EXPECT(params_hash(t.fsdp, true) == frozen, "%s: a frozen weight has changed", what);
  trainer_close(&t);
}

struct ModeReference { CoverRow row; int M; WorldResult result; };
static inline int mode_reference_of(ModeReference *refs, int *count, const CoverRow *r) {
  const CoverRow plain = mode_reference(r);
  int i = 0;
  while (i < *count && (memcmp(&refs[i].row, &plain, sizeof plain) || refs[i].M != mode_microbatches(r))) i++;
  if (i == *count) refs[(*count)++] = ModeReference{plain, mode_microbatches(r), {}};
  return i;
}
// Fills refs[from, to): those of one rank are divided among the ranks. All ranks call it.
static inline void mode_references(ModeReference *refs, int from, int to, const Corpus *corpus) {
  int rank, N;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &N);
  for (int i = from; i < to; i++)
    if (mode_world(&refs[i].row) == 1 && i % N == rank)
      mode_run(&refs[i].result, &refs[i].row, refs[i].M, corpus, MPI_COMM_SELF);
  for (int i = from; i < to; i++)
    if (mode_world(&refs[i].row) > 1) mode_run(&refs[i].result, &refs[i].row, refs[i].M, corpus, MPI_COMM_WORLD);
  for (int i = from; i < to; i++)
    MPI_Bcast(&refs[i].result, sizeof refs->result, MPI_BYTE, mode_world(&refs[i].row) == 1 ? i % N : 0,
              MPI_COMM_WORLD);
}
static inline void mode_expect(const CoverRow *r, const ModeReference *ref, const Corpus *corpus) {
  WorldResult x;
  char text[1024];
  mode_text(text, sizeof text, r);
  mode_run(&x, r, mode_microbatches(r), corpus, MPI_COMM_WORLD);
  const WorldResult *one = &ref->result;
  EXPECT(one->loss[0] > 4 && one->loss[0] < 5.5 && one->loss[0] != one->loss[1], "%s: losses %g %g, ln V is %g", text,
         one->loss[0], one->loss[1], log(101.0));
  EXPECT(!memcmp(one, &x, sizeof x),
         "%sdiffers from its reference: losses %.17g %.17g (%.17g %.17g), norms %.17g %.17g (%.17g %.17g), eval %.17g "
         "(%.17g), weights %s", text, x.loss[0], x.loss[1], one->loss[0], one->loss[1], x.norm[0], x.norm[1],
         one->norm[0], one->norm[1], x.eval_loss, one->eval_loss, x.weights == one->weights ? "equal" : "differ");
}

// The covering set, made by one rank for all.
static inline void modes_shared_set(ModeSet *s) {
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank == 0) {
    modes_ask(s);
    modes_legal_pairs(s);
    modes_cover(s);
  }
  MPI_Bcast(s, sizeof *s, MPI_BYTE, 0, MPI_COMM_WORLD);
}
static inline void modes_corpus(Corpus *c) { test_corpus(c, 101, 12 * 7 * 3 + 1, 60); }

// Runs the covering set's rows for the number of ranks that were started.
static inline void modes_run_covering() {
  static ModeSet s;
  static ModeReference refs[MODE_ROWS_MAX];
  static Corpus corpus;
  int N, count = 0, ref[MODE_ROWS_MAX];
  MPI_Comm_size(MPI_COMM_WORLD, &N);
  modes_corpus(&corpus);
  modes_shared_set(&s);
  for (int i = 0; i < s.rows; i++) if (mode_world(&s.row[i]) == N) ref[i] = mode_reference_of(refs, &count, &s.row[i]);
  mode_references(refs, 0, count, &corpus);
  for (int i = 0; i < s.rows; i++) if (mode_world(&s.row[i]) == N) mode_expect(&s.row[i], &refs[ref[i]], &corpus);
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}
TEST_MPI(modes_on_1_rank, 1,
         "rows of the covering set on one rank: bits of their reference, traffic and memory as planned") {
  modes_run_covering();
}
TEST_MPI(modes_on_2_ranks, 2, "the same on two ranks") { modes_run_covering(); }
TEST_MPI(modes_on_3_ranks, 3, "the same on three ranks") { modes_run_covering(); }
TEST_MPI(modes_on_4_ranks, 4, "the same on four ranks") { modes_run_covering(); }
TEST_MPI(modes_on_5_ranks, 5, "the same on five ranks") { modes_run_covering(); }
TEST_MPI(modes_on_6_ranks_all, 6, "the same on six ranks") { modes_run_covering(); }

// Models of one and of two blocks: slots are as many as blocks, the block beside the root is both first and last.
TEST_MPI(modes_of_small_models, 6,
         "one block, and two: each strategy and layout on six ranks gives the bits of one rank, and its traffic") {
  static const char *const cases[] = {"", "--gather_slots 1 --shm copy", "--strategy shard_grad_op --shard dim0",
                                      "--strategy hybrid_shard --mesh 2x3 --wrap model", "--strategy no_shard",
                                      "--strategy hybrid_shard --mesh 3x2 --reduce_dtype fp32 --shm off",
                                      "--recompute block --wrap min_params:1000 --shard dim0 --shm copy"};
  static const char *const shapes[] = {"--n_layer 1", "--n_layer 2",
                                       "--n_layer 1 --freeze wte,wpe,h.0.* --tie_head off",
                                       "--n_layer 2 --freeze h.1.*,ln_f --fp8 gather --param_dtype bf16"};
  static Corpus corpus;
  test_corpus(&corpus, 5003, 12 * 21 * 3 + 1, 100);
  for (const char *shape : shapes) {
    WorldResult one, r;
    if (!world_run(&one, &corpus, 1, 1, 2, shape, true)) memset(&one, 0, sizeof one);
    MPI_Bcast(&one, sizeof one, MPI_BYTE, 0, MPI_COMM_WORLD);
    for (const char *k : cases) {
      char extra[256];
      snprintf(extra, sizeof extra, "%s %s", shape, k);
      world_run(&r, &corpus, 6, 1, 2, extra, true);
      EXPECT(!memcmp(&one, &r, sizeof r), "%s on six ranks: losses %.17g %.17g, on one %.17g %.17g", extra, r.loss[0],
             r.loss[1], one.loss[0], one.loss[1]);
    }
  }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}

// There are some 10^9 combinations. A test ending in _all walks through them for four minutes, always in this order:
// run j of N ranks takes the legal core number 7919 j of those of N ranks, arithmetic number 1663 (j / 24), so that 24
// runs share a reference, and number 29 j + j / 144 of the rest, each modulo its count; digits are the factors' values
// in order. These multipliers have no factor in common with the counts.
enum { MODE_WALK_MS = 240000, MODE_WALK_SHARE = 24 };
static inline void mode_digits(CoverRow *r, const ModeFactor *factor, int factors, int64_t number) {
  for (int i = 0; i < factors; i++) {
    const int values = mode_factors[factor[i]].values;
    r->value[factor[i]] = (int8_t)(number % values);
    number /= values;
  }
}
static inline CoverRow mode_walk_row(const ModeSet *s, int64_t j) {
  static const ModeFactor arithmetic[] = {MODE_PARAM, MODE_BUFFER, MODE_REDUCE, MODE_FP8, MODE_FREEZE, MODE_HEAD,
                                          MODE_DROPOUT, MODE_OPTIMIZER, MODE_MICROBATCHES};
  static const ModeFactor others[] = {MODE_SHARD, MODE_RECOMPUTE, MODE_SHM, MODE_ROUNDS, MODE_THREADS};
  CoverRow r = s->core[j * 7919 % s->cores];
  mode_digits(&r, arithmetic, 9, j / MODE_WALK_SHARE * 1663 % 6480);
  mode_digits(&r, others, 5, (29 * j + j / 144) % 144);
  return r;
}
static inline void modes_walk() {
  static ModeSet s;
  static ModeReference refs[MODE_WALK_SHARE];
  static Corpus corpus;
  int N, rank, kept = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &N);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  modes_corpus(&corpus);
  modes_ask(&s);
  for (int i = 0; i < s.cores; i++) if (mode_world(&s.core[i]) == N) s.core[kept++] = s.core[i];
  s.cores = kept;
  int64_t j = 0;
  for (double start = now_ms();; j += MODE_WALK_SHARE) {
    int count = 0, ref[MODE_WALK_SHARE], more = now_ms() - start < MODE_WALK_MS;
    MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
    if (!more) break;
    CoverRow row[MODE_WALK_SHARE];
    for (int i = 0; i < MODE_WALK_SHARE; i++) {
      row[i] = mode_walk_row(&s, j + i);
      ref[i] = mode_reference_of(refs, &count, &row[i]);
    }
    mode_references(refs, 0, count, &corpus);
    for (int i = 0; i < MODE_WALK_SHARE; i++) mode_expect(&row[i], &refs[ref[i]], &corpus);
  }
  if (rank == 0) printf("%lld rows of %d ranks\n", (long long)j, N);
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}
TEST_MPI(modes_walk_on_1_rank_all, 1, "all combinations of all factors, one rank, four minutes of it") { modes_walk(); }
TEST_MPI(modes_walk_on_2_ranks_all, 2, "the same on two ranks") { modes_walk(); }
TEST_MPI(modes_walk_on_3_ranks_all, 3, "the same on three ranks") { modes_walk(); }
TEST_MPI(modes_walk_on_4_ranks_all, 4, "the same on four ranks") { modes_walk(); }
TEST_MPI(modes_walk_on_5_ranks_all, 5, "the same on five ranks") { modes_walk(); }
TEST_MPI(modes_walk_on_6_ranks_all, 6, "the same on six ranks") { modes_walk(); }

// ================================================================================================ 4 units
// The modules that torch.distributed.fsdp->wrap.size_based_auto_wrap_policy wraps, children first:
// dev/make_wrap_fixture.py.
struct WrapCase { int L; int64_t C, V, P; bool tied; int64_t least; const char *units; };
static const WrapCase wrap_cases[] = {
    {2, 20, 101, 9, true, 1,
     "wte wpe h.0.ln_1 h.0.attn.c_attn h.0.attn.c_proj h.0.ln_2 h.0.mlp.c_fc h.0.mlp.c_proj h.1.ln_1 "
     "h.1.attn.c_attn h.1.attn.c_proj h.1.ln_2 h.1.mlp.c_fc h.1.mlp.c_proj ln_f"},
    {2, 20, 101, 9, true, 41,
     "wte wpe h.0.attn.c_attn h.0.attn.c_proj h.0.mlp.c_fc h.0.mlp.c_proj h.0 h.1.attn.c_attn "
     "h.1.attn.c_proj h.1.mlp.c_fc h.1.mlp.c_proj h.1"},
    {2, 20, 101, 9, true, 180,
     "wte wpe h.0.attn.c_attn h.0.attn.c_proj h.0.mlp.c_fc h.0.mlp.c_proj h.1.attn.c_attn "
     "h.1.attn.c_proj h.1.mlp.c_fc h.1.mlp.c_proj"},
    {2, 20, 101, 9, true, 181,
     "wte h.0.attn.c_attn h.0.attn.c_proj h.0.mlp.c_fc h.0.mlp.c_proj h.1.attn.c_attn h.1.attn.c_proj "
     "h.1.mlp.c_fc h.1.mlp.c_proj"},
    {2, 20, 101, 9, true, 420,
     "wte h.0.attn.c_attn h.0.attn.c_proj h.0.mlp.c_fc h.0.mlp.c_proj h.1.attn.c_attn h.1.attn.c_proj "
     "h.1.mlp.c_fc h.1.mlp.c_proj"},
    {2, 20, 101, 9, true, 421,
     "wte h.0.attn.c_attn h.0.mlp.c_fc h.0.mlp.c_proj h.0 h.1.attn.c_attn h.1.mlp.c_fc h.1.mlp.c_proj "
     "h.1"},
    {2, 20, 101, 9, true, 1260,
     "wte h.0.attn.c_attn h.0.mlp.c_fc h.0.mlp.c_proj h.1.attn.c_attn h.1.mlp.c_fc h.1.mlp.c_proj"},
    {2, 20, 101, 9, true, 1261,
     "wte h.0.attn h.0.mlp.c_fc h.0.mlp.c_proj h.1.attn h.1.mlp.c_fc h.1.mlp.c_proj"},
    {2, 20, 101, 9, true, 1680,
     "wte h.0.attn h.0.mlp.c_fc h.0 h.1.attn h.1.mlp.c_fc h.1"},
    {2, 20, 101, 9, true, 1681,
     "wte h.0.mlp h.0 h.1.mlp h.1"},
    {2, 20, 101, 9, true, 2020,
     "wte h.0.mlp h.1.mlp"},
    {2, 20, 101, 9, true, 3300,
     "h.0.mlp h.1.mlp"},
    {2, 20, 101, 9, true, 3301,
     "h.0 h.1"},
    {2, 20, 101, 9, true, 5060,
     "h.0 h.1"},
    {2, 20, 101, 9, true, 5061,
     ""},
    {2, 20, 101, 9, false, 1000,
     "wte h.0.attn.c_attn h.0.mlp.c_fc h.0.mlp.c_proj h.1.attn.c_attn h.1.mlp.c_fc h.1.mlp.c_proj "
     "lm_head"},
    {2, 20, 101, 9, false, 2021,
     "h.0.mlp h.1.mlp"},
    {2, 20, 101, 9, false, 5060,
     "h.0 h.1"},
    {3, 60, 5003, 32, true, 40000,
     "wte h.0 h.1 h.2"},
    {3, 60, 5003, 32, true, 44000,
     "wte"},
    {3, 60, 5003, 32, true, 300180,
     "wte"},
    {3, 60, 5003, 32, true, 300181,
     ""},
    {2, 768, 50257, 1024, true, 700000,
     "wte wpe h.0.attn.c_attn h.0.mlp.c_fc h.0.mlp.c_proj h.1.attn.c_attn h.1.mlp.c_fc h.1.mlp.c_proj"},
    {2, 768, 50257, 1024, true, 2362368,
     "wte h.0.attn h.0.mlp.c_fc h.0 h.1.attn h.1.mlp.c_fc h.1"},
    {2, 768, 50257, 1024, true, 2362369,
     "wte h.0.mlp h.0 h.1.mlp h.1"},
    {2, 768, 50257, 1024, true, 7087872,
     "wte h.0 h.1"},
    {2, 768, 50257, 1024, true, 7087873,
     "wte"},
    {2, 768, 50257, 1024, true, 100000000,
     ""},
    {2, 768, 50257, 1024, false, 7087872,
     "wte h.0 h.1 lm_head"},
    {2, 768, 50257, 1024, false, 38597377,
     ""}};

// The innermost of the listed modules that contains the parameter, or the root.
static inline void wrap_expected(char *to, size_t bytes, const char *units, const char *param) {
  char text[1024], *save = NULL;
  snprintf(to, bytes, "root");
  snprintf(text, sizeof text, "%s", units);
  for (char *name = strtok_r(text, " ", &save); name; name = strtok_r(NULL, " ", &save)) {
    const size_t n = strlen(name);
    const bool inside = !strncmp(param, name, n) && param[n] == '.';
    if (inside && (!strcmp(to, "root") || n > strlen(to))) snprintf(to, bytes, "%s", name);
  }
}
TEST(wrap_min_params_is_torchs,
     "--wrap min_params:N makes the units of PyTorch's size_based_auto_wrap_policy, with N on both sides of every "
     "module's size, tied and untied; each unit has one stage, and units follow their stages") {
  for (const WrapCase &k : wrap_cases) {
    const ModelShape shape = model_shape_gpt2(k.L, 1, k.C, k.P, k.V, k.tied, 0);
    const Model m = model_of_shape(&shape, k.P);
    int params, units, expected = 1;
    for (const char *c = k.units; *c; c++) expected += *c == ' ';
    if (!*k.units) expected = 0;
    Param *param = model_params(&m, &params);
    ParamPlace *place = param_places(param, params);
    Unit *unit = units_wrap(place, params, WRAP_MIN_PARAMS, k.least, &units);
    bool root = false;
    for (int i = 0; i < params; i++) {
      char name[64];
      wrap_expected(name, sizeof name, k.units, param[i].name);
      root = root || !strcmp(name, "root");
      const Unit *u = &unit[place[i].unit];
      EXPECT(!strcmp(u->name, name), "C=%lld min_params:%lld: %s is in unit %s, PyTorch's is %s", (long long)k.C,
             (long long)k.least, param[i].name, u->name, name);
      EXPECT(u->stage == param[i].stage || u->stage == 0, "%s: unit %s is needed in stage %d", param[i].name, u->name,
             u->stage);
    }
    EXPECT(units == expected + root, "C=%lld min_params:%lld: %d units, PyTorch's are %d%s", (long long)k.C,
           (long long)k.least, units, expected, root ? " and the root" : "");
    for (int u = 1; u < units; u++) EXPECT(unit[u].stage >= unit[u - 1].stage, "unit %s comes late", unit[u].name);
    free(unit);
    free(place);
    free(param);
  }
}

TEST(freeze_globs_name_what_is_frozen,
     "--freeze freezes what its globs match, by whole names or by the names of modules; a glob without a match, and "
     "one that leaves nothing to train, are rejected by name") {
  static const struct { const char *globs, *rejection; int frozen; const char *one, *not_one; } cases[] = {
      {"wte,h.0.*,*.ln_*", NULL, 17, "h.1.ln_2.bias", "ln_f.weight"}, {"*.weight", NULL, 15, "wpe.weight", "ln_f.bias"},
      {"ln_f", NULL, 2, "ln_f.bias", "h.0.ln_1.bias"},  {"h.?.attn.c_proj.bias", NULL, 2, "h.1.attn.c_proj.bias",
                                                         "h.1.attn.c_proj.weight"},
      {"h.[1-9].mlp.*", NULL, 4, "h.1.mlp.c_fc.bias", "h.0.mlp.c_fc.bias"},
      {"wte,h.7.*", "--freeze h.7.* matches no parameter", 1, "wte.weight", "wpe.weight"},
      {"*", "--freeze * leaves nothing to train", 28, "wpe.weight", "none"}};
  for (const auto &k : cases) {
    const ModelShape shape = model_shape_gpt2(2, 1, 20, 9, 101, true, 0);
    const Model m = model_of_shape(&shape, 9);
    int params, frozen = 0;
    Error error = {};
    Param *param = model_params(&m, &params);
    static Options o;
    options_default(&o, &trainer_table);
    snprintf(o.freeze, sizeof o.freeze, "%s", k.globs);
    const bool fits = param_groups(&o, param, params, &error);
    EXPECT(fits == !k.rejection && (fits || strstr(error.text, k.rejection)), "--freeze %s: '%s'", k.globs, error.text);
    for (int i = 0; i < params; i++) {
      frozen += param[i].frozen;
      EXPECT(param[i].frozen || strcmp(param[i].name, k.one), "--freeze %s: %s is not frozen", k.globs, k.one);
      EXPECT(!param[i].frozen || strcmp(param[i].name, k.not_one), "--freeze %s: %s is frozen", k.globs, k.not_one);
    }
    EXPECT(frozen == k.frozen, "--freeze %s: %d parameters are frozen, must be %d", k.globs, frozen, k.frozen);
    free(param);
  }
}

// ================================================================================================ 5 bytes
// Memory and traffic a second time, in numbers of this file. Each line of the table states its mode; how parameters are
// cut, how often a block is gathered and the size of each line of memory are computed below from shapes alone.
struct StatedMode { const char *options; int R, S, K, G, lowest; bool local, dim0; };
static const StatedMode stated_modes[] = {
    // options                                                                          R  S  K  G lowest local  dim0
    {"--strategy full_shard",                                                            1, 6, 2, 0, 0, false, false},
    {"--strategy full_shard --shm copy",                                                 1, 6, 2, 0, 0, false, false},
    {"--strategy full_shard --gather_slots 3 --reduce_dtype bf16 --shm off",             1, 6, 3, 0, 0, false, false},
    {"--strategy shard_grad_op --param_dtype bf16 --recompute gelu --shm copy",          1, 6, 4, 0, 0, false, false},
    {"--strategy zero1 --param_dtype bf16 --reduce_dtype bf16 --recompute block",        1, 6, 4, 0, 0, true,  false},
    {"--recompute norm --dropout 0.1",                                                   1, 6, 2, 0, 0, false, false},
    {"--recompute mlp --param_dtype bf16 --shm copy",                                    1, 6, 2, 0, 0, false, false},
    {"--recompute block:1,gelu:1,none:1 --param_dtype fp16 --dropout 0.1",               1, 6, 2, 0, 0, false, false},
    {"--recompute block:2,mlp --shm off",                                                1, 6, 2, 0, 0, false, false},
    {"--strategy no_shard --optimizer sgd",                                              6, 1, 2, 0, 0, false, false},
    {"--strategy hybrid_shard --mesh 2x3",                                               2, 3, 2, 0, 0, false, false},
    {"--strategy hybrid_shard --mesh 3x2 --reduce_dtype fp16 --shm off --dropout 0.1",   3, 2, 2, 0, 0, false, false},
    {"--strategy hybrid_shard --mesh 2x3 --accumulate local --shard dim0 --shm copy",    2, 3, 2, 0, 0, true,  true},
    {"--reshard_after_forward 2 --gather_slots 1 --shm copy",                            1, 6, 1, 2, 0, false, false},
    {"--reshard_after_forward 3 --param_dtype fp16 --buffer_dtype fp32",                 1, 6, 2, 3, 0, false, false},
    {"--accumulate local --reduce_dtype bf16 --tie_head off",                            1, 6, 2, 0, 0, true,  false},
    {"--shard dim0 --gather_slots 1",                                                    1, 6, 1, 0, 0, false, true},
    {"--shard dim0 --param_dtype bf16 --buffer_dtype fp16 --reshard_after_forward 3 --shm copy",
                                                                                         1, 6, 2, 3, 0, false, true},
    {"--fp8 gather --param_dtype bf16 --reduce_dtype bf16 --shm copy",                   1, 6, 2, 0, 0, false, false},
    {"--fp8 gather --shard dim0 --freeze h.0.*,h.2.attn.*",                              1, 6, 2, 0, 0, false, true},
    {"--freeze wte,h.0.*,*.ln_* --param_dtype bf16",                                     1, 6, 2, 0, 0, false, false},
    {"--freeze wte,wpe,h.0.*,h.1.* --gather_slots 1 --tie_head off --shm copy",          1, 6, 1, 0, 2, false, false},
    {"--freeze wte,wpe,h.0.*,h.1.* --accumulate local --mesh 2x3",                       2, 3, 2, 0, 2, true,  false},
    {"--freeze *.weight --shard dim0 --reduce_dtype bf16 --shm copy",                    1, 6, 2, 0, 0, false, true},
    {"--freeze wte,wpe,lm_head,ln_f,h.0.*,h.1.*,h.2.* --tie_head off",                   1, 6, 2, 0, 3, false, false},
    {"--global_batch 12",                                                                1, 6, 2, 0, 0, false, false},
    {"--global_batch 12 --recompute block:1,gelu:1,none:1 --reduce_dtype bf16",          1, 6, 2, 0, 0, false, false},
    {"--global_batch 12 --freeze wte,h.1.*,*.ln_* --param_dtype bf16 --shard dim0",      1, 6, 2, 0, 0, false, true},
    {"--global_batch 12 --accumulate local",                                             1, 6, 2, 0, 0, true,  false},
    {"--global_batch 12 --shard dim0 --shm off",                                         1, 6, 2, 0, 0, false, true},
    {"--global_batch 12 --mesh 2x3 --reduce_dtype bf16",                                 2, 3, 2, 0, 0, false, false},
    {"--global_batch 12 --reduce_dtype bf16 --param_dtype bf16 --tie_head off",          1, 6, 2, 0, 0, false, false}};

static const char stated_shapes[] = "--n_layer 4 --n_head 2 --n_embd 20 --seq_len 7 --n_positions 9 --vocab_size 101 "
                                    "--batch_size 2 --test_batch_size 1 --global_batch 24 --epochs 9";
enum { STATED_L = 4, STATED_H = 2, STATED_C = 20, STATED_P = 9, STATED_VP = 128, STATED_ROWS = 14 };
enum { STATED_N = 6 };

// A stage's share of memory and wire. For a rank's shard: bytes in memory, bytes gathered from it, trained elements as
// sent and as stored, elements of fp32 masters and of low halves. For the whole stage: bytes gathered, elements of
// gradients and of copies in the compute dtype. scales: E4M3 matrices that train.
struct StatedStage {
  int64_t shard_bytes, sent_bytes, sent_trained, trained, masters, lows, whole_bytes, grads, expanded, scales;
};

static inline int64_t stated_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
// A run of parameters cut together: `part` elements per rank.
static inline void stated_cut(StatedStage *s, int64_t part, int S, bool trains, Dtype stored, Dtype computed) {
  const int64_t b = (int64_t)dtype_bytes(stored), lies = stated_up(part, 128), whole = stated_up(S * part, 128);
  s->shard_bytes += stated_up(part * b, 256);
  s->sent_bytes += part * b;
  s->whole_bytes += stated_up(S * part * b, 256);
  s->sent_trained += trains ? part : 0;
  s->trained += trains ? lies : 0;
  s->masters += trains && (stored == F16 || stored == F8) ? lies : 0;
  s->lows += trains && stored == BF16 ? lies : 0;
  s->grads += trains ? whole : 0;
  s->expanded += stored != computed ? whole : 0;
}
// Flat: parameters of the same kind (E4M3 or not, frozen, decayed or not) one after the other, each padded to 256
// bytes. By rows: each parameter separately.
static inline StatedStage stated_stage(const Fsdp *f, const Options *o, const StatedMode *k, int stage) {
  const Dtype param = option_dtype(o, OPT_param_dtype), computed = option_dtype(o, OPT_buffer_dtype);
  StatedStage s = {};
  int64_t together[2][2][2] = {};
  for (int i = 0; i < f->lay.params; i++) {
    const Param *p = &f->lay.param[i];
    if (p->stage != stage) continue;
    const int64_t rows = p->ndim == 2 && p->shape[0] == 101 ? (int64_t)STATED_VP : p->shape[0];
    const int64_t cols = p->ndim == 2 ? p->shape[1] : 1;
    const bool e4m3 = o->fp8 == FP8_GATHER && stage && p->ndim == 2;
    s.scales += e4m3 && !p->frozen;
    if (k->dim0) stated_cut(&s, (rows + k->S - 1) / k->S * cols, k->S, !p->frozen, e4m3 ? F8 : param, computed);
    else together[e4m3][p->frozen][p->ndim == 2 && !p->frozen] += stated_up(rows * cols, e4m3 ? 256 : 128);
  }
  for (int i = 0; i < 8; i++) {
    const bool e4m3 = i & 1, frozen = i & 2, decays = i & 4;
    const int64_t n = together[e4m3][frozen][decays], part = stated_up((n + k->S - 1) / k->S, e4m3 ? 256 : 128);
    if (n) stated_cut(&s, part, k->S, !frozen, e4m3 ? F8 : param, computed);
  }
  return s;
}

// Ranks of one host read shards zero-copy, unless told to copy them or to send messages.
static inline bool stated_in_place(const Options *o) { return o->shm == OPT_shm_on; }

// How often each block is gathered while its slot holds another: forward from 0, backward from the top.
static inline void stated_gathers(const StatedMode *k, int A, int64_t *gathers) {
  int slot[STATED_L];
  for (int &s : slot) s = -1;
  memset(gathers, 0, sizeof(int64_t) * STATED_L);
  for (int a = 0; a < A; a++)
    for (int i = 0; i < 2 * STATED_L - k->lowest; i++) {
      const int l = i < STATED_L ? i : 2 * STATED_L - 1 - i;
      gathers[l] += slot[l % k->K] != l;
      slot[l % k->K] = l;
    }
}
// The traffic of one step of replica r.
static inline Traffic stated_traffic(const StatedMode *k, const StatedStage *stage, const Options *o, int r) {
  const int64_t b_r = (int64_t)dtype_bytes(option_dtype(o, OPT_reduce_dtype)), S = k->S;
  int64_t gathers[STATED_L], scales = 0;
  Traffic t = {};
  const int A = (int)o->grad_accum;
  stated_gathers(k, A, gathers);
  for (int s = 0; s <= STATED_L; s++) {
    scales += stage[s].scales;
    const int64_t n = s ? gathers[s - 1] : 1, reductions = !stage[s].trained ? 0 : k->local ? 1 : A;
    for (int64_t i = 0; i < n && S > 1 && !stated_in_place(o); i++) {
      const bool neighbours = s && k->G && i > 0;
      t.gathers++;
      t.gather_bytes += neighbours ? (k->G - 1) * (S / k->G) * stage[s].sent_bytes : (S - 1) * stage[s].sent_bytes;
    }
    for (int64_t i = 0; i < reductions; i++) {
      t.reductions++;
      t.reduce_bytes += (S - 1) * stage[s].sent_trained * b_r;
      if (k->R > 1 && (r > 0 || i > 0)) t.replicate_bytes += stage[s].trained * 4;     // the sum so far
    }
    if (k->R > 1 && r < k->R - 1) t.replicate_bytes += stage[s].trained * 4;           // the sum
    t.returns += k->R > 1 && stage[s].trained;
  }
  t.small = scales ? 3 : 2;                      // norm and losses, barrier; the matrices' largest magnitudes
  t.small_bytes = (STATED_N - 1) * (4 * scales + (int64_t)exchange_bytes(A));
  return t;
}

// The tensors of a block of R rows, each with the lowest level of --recompute (none 0, gelu, norm, mlp, block 4) that
// recomputes it; they start on 256 bytes.
enum { STATED_TENSORS = 13 };
struct StatedTensor { int64_t bytes; int from; };
static inline void stated_tensors(int64_t R, int64_t b, StatedTensor *t) {
  const int64_t stream = stated_up(R * STATED_C * b, 256), qkv = stated_up(3 * R * STATED_C * b, 256);
  const int64_t wide = stated_up(4 * R * STATED_C * b, 256), row = stated_up(R * 4, 256);
  const StatedTensor all[STATED_TENSORS] = {
      {stream, 5}, {stream, 2}, {stream, 4}, {stream, 4}, {stream, 2}, {qkv, 4}, {wide, 3}, {wide, 1},
      {row, 4},    {row, 4},    {row, 4},    {row, 4},    {stated_up(STATED_H * R * 4, 256), 4}};
  memcpy(t, all, sizeof all);
}
static inline int64_t stated_kept(int64_t R, int64_t b, int level) {
  StatedTensor t[STATED_TENSORS];
  int64_t bytes = 0;
  stated_tensors(R, b, t);
  for (const StatedTensor &x : t) bytes += level < x.from ? x.bytes : 0;
  return bytes;
}
// Of the tensors that blocks keep, and of the last LayerNorm's stream, output and statistics: bytes in reused gradient
// shards. These are written later, and have lent[l] bytes for block l and lent[L] for the last LayerNorm. Tensors are
// placed one after the other; those that would end beyond are placed elsewhere.
static inline int64_t stated_lent(int64_t R, int64_t b, const int *level, const int64_t *lent) {
  StatedTensor t[STATED_TENSORS];
  const int64_t stream = stated_up(R * STATED_C * b, 256), row = stated_up(R * 4, 256);
  const int64_t last[] = {stream, stream, row, row};
  int64_t at = 0;
  stated_tensors(R, b, t);
  for (int l = 0; l < STATED_L; l++)
    for (const StatedTensor &x : t) at += level[l] < x.from && at + x.bytes <= lent[l] ? x.bytes : 0;
  for (int64_t bytes : last) at += at + bytes <= lent[STATED_L] ? bytes : 0;
  return at;
}
// Tokens, targets, losses, correct, and the last LayerNorm: stream, output, two statistics.
static inline int64_t stated_beside(int64_t R, int64_t b) {
  return 6 * stated_up(R * 4, 256) + 2 * stated_up(R * STATED_C * b, 256);
}
// Activations, the head's logits and gradient slots, placed by hand: no placement by lifetimes may take more. The
// recomputed tensors of blocks exist once, for the highest level, in the head's memory, together with the stream's
// gradients; after them come `slots` bytes of gradient slots if logits take more. Evaluation has one block, of the
// longest sample's rows, with everything but its input in the head's memory if that fits. lent: of gradient shards, see
// stated_lent.
static inline int64_t stated_activations(const Options *o, int64_t slots, const int64_t *lent) {
  const int64_t b = (int64_t)dtype_bytes(option_dtype(o, OPT_buffer_dtype)), R = STATED_ROWS, P = STATED_P;
  const struct { const char *recompute; int level[STATED_L], most; } table[] = {
      {"none", {0, 0, 0, 0}, 0},
      {"auto", {2, 2, 2, 2}, 2},
      {"gelu", {1, 1, 1, 1}, 1},
      {"norm", {2, 2, 2, 2}, 2},
      {"mlp", {3, 3, 3, 3}, 3},
      {"block", {4, 4, 4, 4}, 4},
      {"block:1,gelu:1,none:1", {4, 1, 0, 0}, 4},
      {"block:2,mlp", {4, 4, 3, 3}, 4}};
  int64_t kept = 0, again = 0;
  for (const auto &k : table)
    for (int l = 0; l < STATED_L && !strcmp(o->recompute, k.recompute); l++) {
      kept += stated_kept(R, b, k.level[l]) - (l ? 0 : stated_lent(R, b, k.level, lent));
      again = stated_kept(R, b, 0) - stated_kept(R, b, k.most);
    }
  EXPECT(kept, "--recompute %s is not in the table", o->recompute);
  const int64_t logits = (b == 4 ? 0 : STATED_VP * b) + R * STATED_VP * 4;
  const int64_t turns = again + (1 + (o->dropout > 0)) * stated_up(R * STATED_C * b, 256);
  const int64_t eval = stated_kept(P, b, 0), enters = stated_kept(P, b, 4);
  const bool fits = eval - enters <= max64(logits, turns), lends = slots && logits > turns;
  return max64(kept + stated_beside(R, b), (fits ? enters : eval) + stated_beside(P, b)) +
         (lends ? max64(logits, turns + slots) : max64(logits, turns) + slots);
}
static inline void stated_memory(const StatedMode *k, const StatedStage *stage, const Options *o, int scales,
                                 int64_t *bytes) {
  const int64_t b_r = (int64_t)dtype_bytes(option_dtype(o, OPT_reduce_dtype)), S = k->S;
  const int64_t b_c = (int64_t)dtype_bytes(option_dtype(o, OPT_buffer_dtype));
  const int64_t moments = 2 - (o->optimizer == OPTIMIZER_SGD);
  int64_t slot = 0, grads = 0, expanded = 0, chunk = 0, lent[1 + STATED_L] = {};
  const bool gathers = S > 1 && !stated_in_place(o);
  const bool once = k->local || o->grad_accum == 1, in_whole = once && k->R == 1;        // S is 8 at most
  bool staged = false;
  memset(bytes, 0, sizeof(int64_t) * MEM_COUNT);
  for (int s = 0; s <= STATED_L; s++) {
    const StatedStage *x = &stage[s];
    const bool whole = !s || k->local;           // its gradient has a separate buffer
    bytes[MEM_PARAMS] += x->shard_bytes;
    bytes[MEM_SECONDARY] += s && k->G && gathers ? x->shard_bytes * (S / k->G) : 0;
    bytes[MEM_MASTER] += x->masters * 4;
    bytes[MEM_MASTER_LOW] += x->lows * 2;
    bytes[MEM_OPTIMIZER] += x->trained * 4 * moments;
    // The shard of a whole gradient that is reduced once a step is part of it.
    bytes[MEM_GRADS] += (whole && in_whole ? x->sent_trained : x->trained) * 4;
    bytes[in_whole ? MEM_PEERS_GRADS : MEM_ROOT_GRADS] += !whole ? 0 : in_whole ? (x->grads - x->sent_trained) * 4
                                                                                 : x->grads * 4;
    // The shard of a block that is reduced once per step, separate from its whole gradient, is free until then.
    if (s) lent[s] = lent[s - 1] + (!k->local && in_whole ? x->trained * 4 : 0);
    if (s) slot = max64(slot, x->whole_bytes), grads = max64(grads, x->grads), expanded = max64(expanded, x->expanded);
    chunk = max64(chunk, x->trained);
    staged = staged || (whole && x->trained && b_r != 4);
  }
  bytes[MEM_GATHER_SLOTS] = gathers ? k->K * slot : 0;
  bytes[MEM_ROOT_PARAMS] = gathers ? stage[0].whole_bytes : 0;
  bytes[MEM_EXPANDED] = (expanded + stage[0].expanded) * b_c;
  bytes[MEM_STAGING_OUT] = staged ? 2 * S * chunk * b_r : 0;
  bytes[MEM_STAGING_IN] = o->shm == OPT_shm_off ? 2 * (S - 1) * chunk * b_r : 0;
  bytes[MEM_SCALES] = scales * 4 * (2 + STATED_N);
  bytes[MEM_CONTROL] = 8192;
  bytes[MEM_ACTIVATIONS] = stated_activations(o, k->local ? 0 : 2 * stated_up(grads * b_r, 256), lent);
}

// One mode on all ranks: memory after opening, then two steps.
static inline void stated_run(const StatedMode *k, const Corpus *corpus) {
  static Trainer t;
  static Options o;
  test_options(&o, STATED_N, "%s %s", stated_shapes, k->options);
  trainer_open(&t, &o, corpus, MPI_COMM_WORLD, device_of(agree_on_ops(&o, MPI_COMM_WORLD)), 1);
  StatedStage stage[1 + STATED_L];
  int64_t bytes[MEM_COUNT];
  const int scales = o.fp8 != FP8_GATHER ? 0 : 4 * STATED_L;
  for (int s = 0; s <= STATED_L; s++) stage[s] = stated_stage(t.fsdp, &o, k, s);
  stated_memory(k, stage, &o, scales, bytes);
  int64_t placed = 0;
  for (int i = 0; i < MEM_COUNT; i++) {
    if (i == MEM_STEP || i == MEM_DATA || i == MEM_CHECKPOINT) continue;
    if (i == MEM_ACTIVATIONS || i == MEM_SLOTS_SHARED || i == MEM_GRAD_SLOTS || i == MEM_WORKSPACE) {
      placed += (int64_t)t.run.plan.taken_bytes[i];
      continue;
    }
    EXPECT((int64_t)t.run.plan.taken_bytes[i] == bytes[i], "%s: %s: taken %zu bytes, must be %lld", k->options,
           memory_words[i], t.run.plan.taken_bytes[i], (long long)bytes[i]);
  }
  const int64_t by_hand = bytes[MEM_ACTIVATIONS] + (int64_t)t.ctx.workspace_bytes;
  EXPECT(placed > 0 && placed <= by_hand, "%s: activations, logits, slots and workspace take %lld bytes, %lld by hand",
         k->options, (long long)placed, (long long)by_hand);
  const Traffic want = stated_traffic(k, stage, &o, t.fsdp->mesh.rank / k->S);
  for (int step = 0; step < 2; step++) {
    t.fsdp->traffic = Traffic{};
    train_step(&t, false);
    const Traffic x = t.fsdp->traffic;
    EXPECT(!memcmp(&x, &want, sizeof x), "%s: rank %d step %d: gathers %lld of %lld bytes (must be %lld, %lld), "
           "reductions %lld of %lld (%lld, %lld), along the replicas %lld (%lld), small %lld of %lld (%lld, %lld)",
           k->options, t.fsdp->mesh.rank, step, (long long)x.gathers, (long long)x.gather_bytes,
           (long long)want.gathers,
           (long long)want.gather_bytes, (long long)x.reductions, (long long)x.reduce_bytes, (long long)want.reductions,
           (long long)want.reduce_bytes, (long long)x.replicate_bytes, (long long)want.replicate_bytes,
           (long long)x.small, (long long)x.small_bytes, (long long)want.small, (long long)want.small_bytes);
  }
  trainer_close(&t);
}
TEST_MPI(modes_take_the_bytes_stated_here, 6,
         "memory by line and traffic of a step, for each mode on six ranks, equal to what this file computes from "
         "shapes: frozen parameters have no gradient, moment, master or reduction, and backward stops above them") {
  static Corpus corpus;
  modes_corpus(&corpus);
  for (const StatedMode &k : stated_modes) stated_run(&k, &corpus);
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}

// ================================================================================================ 6 accumulation
// Gradients of a step against the gradients of its single microbatches, on one rank. No token is twice in a sequence
// and the head is untied, so that each element gets one finished number from each microbatch.
enum { SUMS_M = 24, SUMS_N = 6, SUMS_A = SUMS_M / SUMS_N };
static const char sums_shapes[] = "--n_layer 4 --n_head 2 --n_embd 20 --seq_len 7 --n_positions 9 --vocab_size 101 "
                                  "--tie_head off --dropout 0.1 --batch_size 1 --global_batch 24 --lr 0.01 --warmup 0 "
                                  "--clip 0";
static inline void sums_corpus(Corpus *c) {
  test_corpus(c, 101, SUMS_M * 7 + 1, 60);
  int32_t *tokens = (int32_t *)c->split[SPLIT_TRAIN].tokens;
  for (int i = 0; i < SUMS_M * 7 + 1; i++) tokens[i] = (37 * i + i / 101 * 5) % 101;
}
// All parameters' gradients one after the other, as read by fsdp_read_param. Returns their number. All ranks call it.
static inline int64_t sums_read(Fsdp *f, float *to) {
  int64_t n = 0;
  for (int p = 0; p < f->lay.params; p++) {
    if (to) fsdp_read_param(f, STATE_GRAD, p, to + n);
    n += param_numel_padded(&f->lay.param[p]);
  }
  return n;
}
// Each microbatch's gradient by itself, on one rank: a malloc'ed array [SUMS_M][numel].
static inline float *sums_of_microbatches(const Corpus *corpus, int64_t *numel_) {
  static Trainer t;
  static Options o;
  test_options(&o, 1, "%s", sums_shapes);
  trainer_open(&t, &o, corpus, MPI_COMM_SELF, device_of(agree_on_ops(&o, MPI_COMM_SELF)), 1);
  *numel_ = sums_read(t.fsdp, NULL);
  float *all = (float *)malloc(sizeof(float) * (size_t)(SUMS_M * *numel_));
  sampler_set_epoch(&t.sampler, 0);
  trainer_carve(&t, 1, (int)t.model.T, PASS_TRAIN);
  for (int m = 0; m < SUMS_M; m++) {
    microbatch_fill(&t.sampler, 0, m, t.host.inputs, t.host.targets);
    *t.host.input = StepInput{0, 0.01f, 0, 0};
    trainer_step_begin(&t);
    trainer_load_batch(&t, 0, 1, (int)t.model.T);
    gpt_forward_backward(&t, Microbatch{m, PASS_TRAIN}, 0);
    fsdp_reduce_wait(t.fsdp);
    sums_read(t.fsdp, all + m * *numel_);
  }
  trainer_close(&t);
  return all;
}
static inline float sums_on_wire(float x, Dtype wire) {
  bf16 b;
  fp16 h;
  if (wire == BF16) { round_to(&b, x); return to_f32(b); }
  if (wire == F16) { round_to(&h, x); return to_f32(h); }
  return x;
}
// The owner's value of element i: summed over ranks in order, or over each rank's own sum if that is made first.
static inline float sums_folded(const float *all, int64_t numel_, int64_t i, bool local, Dtype wire) {
  float sum = 0;
  for (int k = 0; k < (local ? SUMS_N : SUMS_M); k++) {
    float x = all[k * numel_ + i];
    for (int a = 1; a < SUMS_A && local; a++) x += all[(a * SUMS_N + k) * numel_ + i];
    sum = k ? sum + sums_on_wire(x, wire) : sums_on_wire(x, wire);
  }
  return sum;
}
// The error of a sum whose magnitudes add up to s is at most (additions) 2^-24 s, as each addition rounds a partial sum
// of at most s. Values sent in 16 bits are rounded once more, by u s and, in fp16, by half of its smallest magnitude.
static inline double sums_bound(double magnitudes, bool local, Dtype wire) {
  const double additions = local ? SUMS_A - 1 + SUMS_N - 1 : SUMS_M - 1;
  const double u = wire == F32 ? 0 : op_unit_roundoff(wire);
  return (additions * 0x1p-24 * (1 + u) + u) * magnitudes * (1 + 0x1p-18) + (wire == F16 ? SUMS_M * 0x1p-25 : 0);
}
static inline void sums_expect(const char *options, bool local, const Corpus *corpus, const float *all,
                               int64_t numel_) {
  static Trainer t;
  static Options o;
  test_options(&o, SUMS_N, "%s %s", sums_shapes, options);
  const Dtype wire = option_dtype(&o, OPT_reduce_dtype);
  trainer_open(&t, &o, corpus, MPI_COMM_WORLD, device_of(agree_on_ops(&o, MPI_COMM_WORLD)), 1);
  train_step(&t, false);
  float *got = (float *)calloc((size_t)numel_, sizeof(float));
  sums_read(t.fsdp, got);
  int64_t differ = 0, beyond = 0, zero = 0, at = 0;
  for (int64_t i = 0; i < numel_; i++) {
    double exact = 0, magnitudes = 0;
    for (int m = 0; m < SUMS_M; m++) exact += all[m * numel_ + i], magnitudes += fabs(all[m * numel_ + i]);
    const bool other = got[i] != sums_folded(all, numel_, i, local, wire);
    if (other && !differ) at = i;
    differ += other;
    zero += magnitudes == 0;
    beyond += !(fabs(got[i] - exact) <= sums_bound(magnitudes, local, wire));
  }
  EXPECT(!beyond, "%s: %lld of %lld gradients are beyond the bound of their sum's roundings", options,
         (long long)beyond, (long long)numel_);
  EXPECT(!differ, "%s: %lld of %lld gradients are not the fold of their microbatches; element %lld is %.9g, not %.9g",
         options, (long long)differ, (long long)numel_, (long long)at, got[at],
         sums_folded(all, numel_, at, local, wire));
  EXPECT(zero < numel_ / 2, "%lld of %lld gradients are zero", (long long)zero, (long long)numel_);
  free(got);
  trainer_close(&t);
}
TEST_MPI(accumulated_gradients_are_sums_of_microbatches, 6,
         "--accumulate local and sharded, four microbatches on each of six ranks: gradients are the stated left fold "
         "of one-rank gradients of single microbatches, bit for bit, and within its rounding bound of their exact sum")
{
  static const struct { const char *options; bool local; } cases[] = {
      {"--accumulate local", true}, {"--accumulate local --reduce_dtype bf16 --mesh 2x3 --strategy hybrid_shard", true},
      {"--strategy zero1 --shard dim0 --reduce_dtype fp16", true}, {"--accumulate local --strategy no_shard", true},
      {"--accumulate local --wrap min_params:1700 --shm off --mesh 3x2", true}, {"--accumulate sharded", false},
      {"--reduce_dtype bf16 --shard dim0", false}, {"--mesh 3x2 --wrap model", false}};
  static Corpus corpus;
  int64_t numel_ = 0;
  sums_corpus(&corpus);
  float *all = sums_of_microbatches(&corpus, &numel_);
  for (const auto &k : cases) sums_expect(k.options, k.local, &corpus, all, numel_);
  free(all);
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}
// Options as `world` ranks see them, `per_host` on each host (0: unequal numbers). `error` gets the rejection, or "" if
// there is none.
static inline void modes_resolve(Options *o, int world, int per_host, const char *options, Error *error) {
  char text[1024], *argv[64] = {(char *)"test"}, *save = NULL;
  int argc = 1;
  snprintf(text, sizeof text, "--n_layer 4 --n_head 2 --n_embd 32 --seq_len 8 --n_positions 16 --vocab_size 290 "
           "--batch_size 2 --threads 1 %s", options);
  for (char *word = strtok_r(text, " ", &save); word; word = strtok_r(NULL, " ", &save)) argv[argc++] = word;
  error->text[0] = 0;
  if (options_parse(o, &trainer_table, argc, argv, error)) options_resolve(o, world, per_host, error);
}

TEST(modes_that_cannot_work_are_rejected,
     "each wrong or contradictory option of the modes, and each that would have no effect: rejected by name, based on "
     "options and number of ranks alone") {
  static const struct { int world, per_host; const char *options, *line; } table[] = {
      {4, 4, "--strategy full-shar", "--strategy 'full-shar' is not known: choose one of full_shard|shard_grad_op|"
       "hybrid_shard|no_shard|zero3|zero2|zero1|ddp"},
      {4, 4, "--shard rows", "--shard 'rows' is not known: choose one of flat|dim0"},
      {4, 4, "--accumulate once", "--accumulate 'once' is not known: choose one of sharded|local"},
      {4, 4, "--offload disk", "--offload 'disk' is not known: choose one of none|optimizer|params"},
      {4, 4, "--recompute all", "--recompute 'all' is not known: choose one of auto|none|gelu|norm|mlp|block, or "
       "from the first block on LEVEL:COUNT,... like block:5,mlp"},
      {4, 4, "--recompute mlps:2", "--recompute 'mlps:2' is not known: choose one of auto|none|gelu|norm|mlp|block, or "
       "from the first block on LEVEL:COUNT,... like block:5,mlp"},
      {4, 4, "--recompute auto:1,mlp", "--recompute 'auto:1,mlp' is not known: choose one of auto|none|gelu|norm|mlp|"
       "block, or from the first block on LEVEL:COUNT,... like block:5,mlp"},
      {4, 4, "--recompute=", "--recompute '' is not known: choose one of auto|none|gelu|norm|mlp|block, or from the "
       "first block on LEVEL:COUNT,... like block:5,mlp"},
      {4, 4, "--recompute block:2,", "--recompute 'block:2,' is not known: choose one of auto|none|gelu|norm|mlp|block"
       ", or from the first block on LEVEL:COUNT,... like block:5,mlp"},
      {4, 4, "--recompute mlp:0,block", "--recompute 'mlp:0,block': 'mlp:' needs a number of blocks, at least 1"},
      {4, 4, "--recompute block,mlp:", "--recompute 'block,mlp:': only the last level may omit its number of blocks, "
       "not 'block'"},
      {4, 4, "--recompute gelu:1,mlp:", "--recompute 'gelu:1,mlp:': 'mlp:' needs a number of blocks, at least 1"},
      {4, 4, "--recompute mlp:2x", "--recompute 'mlp:2x': 'mlp:' needs a number of blocks, at least 1"},
      {4, 4, "--recompute mlp:-1", "--recompute 'mlp:-1': 'mlp:' needs a number of blocks, at least 1"},
      {4, 4, "--recompute mlp:99999999999999999999", "--recompute 'mlp:99999999999999999999': 'mlp:' needs a number of "
       "blocks, at least 1"},
      {4, 4, "--recompute block:3,mlp:2", "--recompute 'block:3,mlp:2' names more blocks than the 4 there are"},
      {4, 4, "--fp8 on", "--fp8 'on' is not known: choose one of off|gather|matmul"},
      {4, 4, "--buffer_dtype float8", "--buffer_dtype 'float8' is not known: choose one of auto|fp32|bf16|fp16"},
      {4, 4, "--mesh 3x1", "--mesh 3x1 has 3 ranks, there are 4"},
      {1, 1, "--mesh 2x2", "--mesh 2x2 has 4 ranks, there is 1"},
      {4, 4, "--mesh 999999999x999999999", "--mesh 999999999x999999999 has 999999998000000001 ranks, there are 4"},
      {4, 4, "--strategy ddp --mesh 2x2", "--strategy ddp shards nothing: its mesh is 4x1, not 2x2"},
      {4, 4, "--strategy zero3 --mesh 4x1", "--strategy zero3 has one replica: its mesh is 1x4, not 4x1; replicas of "
       "shards need --strategy hybrid_shard"},
      {4, 4, "--strategy zero2 --mesh 2x2", "--strategy zero2 has one replica: its mesh is 1x4, not 2x2; replicas of "
       "shards need --strategy hybrid_shard, with --reshard_after_forward off to keep parameters whole"},
      {4, 0, "--strategy hybrid_shard",
       "--strategy hybrid_shard: hosts have different numbers of ranks: give --mesh RxS"},
      {4, 4, "--strategy hybrid_shard", "--strategy hybrid_shard shards inside a host and replicates over hosts; this "
       "run has one host: give --mesh RxS, or choose full_shard"},
      {4, 1, "--strategy hybrid_shard", "--strategy hybrid_shard shards inside a host; each host here has one rank: "
       "give --mesh RxS, or choose full_shard or no_shard"},
      {4, 4, "--reshard_after_forward 3",
       "--reshard_after_forward 3: a shard group has 4 ranks; the number must divide that and be smaller"},
      {4, 4, "--reshard_after_forward 4",
       "--reshard_after_forward 4: a shard group has 4 ranks; the number must divide that and be smaller"},
      {4, 4, "--mesh 2x2 --reshard_after_forward 2",
       "--reshard_after_forward 2: a shard group has 2 ranks; the number must divide that and be smaller"},
      {1, 1, "--reshard_after_forward 2",
       "--reshard_after_forward 2: a shard group has 1 rank; the number must divide that and be smaller"},
      {4, 4, "--reshard_after_forward 2 --gather_slots 4",
       "--reshard_after_forward 2 has no effect: 4 blocks stay whole in as many --gather_slots"},
      {4, 4, "--reshard_after_forward 2 --n_layer 1",
       "--reshard_after_forward 2 has no effect: 1 block stays whole in as many --gather_slots"},
      {2, 2, "--strategy zero2 --reshard_after_forward on", "--strategy zero2 keeps parameters whole after forward: it "
       "does not go with --reshard_after_forward on"},
      {2, 2, "--strategy zero1 --gather_slots 3",
       "--strategy zero1 keeps all 4 blocks whole: --gather_slots 3 does not go with it"},
      {2, 2, "--reshard_after_forward off --gather_slots 1",
       "--reshard_after_forward off keeps all 4 blocks whole: --gather_slots 1 does not go with it"},
      {2, 2, "--strategy zero1 --accumulate sharded", "--strategy zero1 adds up whole gradients and reduces once per "
       "step: it does not go with --accumulate sharded"},
      {2, 2, "--strategy ddp --gather_slots 2",
       "--strategy ddp keeps every parameter whole on each rank: --gather_slots has no effect"},
      {1, 1, "--strategy no_shard --reshard_after_forward off",
       "--strategy no_shard keeps every parameter whole on each rank: --reshard_after_forward has no effect"},
      {4, 4, "--mesh 4x1 --gather_slots 2",
       "--mesh 4x1 keeps every parameter whole on each rank: --gather_slots has no effect"},
      {2, 2, "--wrap model --gather_slots 2", "--wrap model leaves no unit inside a block: all is gathered once per "
       "step and stays whole, --gather_slots has no effect"},
      {4, 4, "--wrap model --reshard_after_forward 2", "--wrap model leaves no unit inside a block: all is gathered "
       "once per step and stays whole, --reshard_after_forward has no effect"},
      {4, 4, "--wrap min_params:1e9 --reshard_after_forward on", "--wrap min_params:1e9 leaves no unit inside a block: "
       "all is gathered once per step and stays whole, --reshard_after_forward has no effect"},
      {2, 2, "--offload optimizer --device cpu",
       "--offload optimizer needs --device cuda: on a CPU all parameters are in host memory already"},
      {2, 2, "--offload params --graph on",
       "--graph on does not go with --offload: the host's optimizer cannot be captured"},
      {2, 2, "--offload params --eval_only", "--offload is for training: it does not go with --eval_only"},
      {2, 2, "--fp8 matmul --param_dtype bf16 --device cpu",
       "--fp8 matmul needs --device cuda, compute capability 8.9 or later; --fp8 gather works here"},
      {2, 2, "--fp8 matmul", "--fp8 matmul computes all else in bf16: it needs --buffer_dtype bf16 (or --param_dtype "
       "bf16), not fp32"},
      {2, 2, "--logits_dtype bf16 --dtype fp16",
       "--logits_dtype bf16 needs --buffer_dtype bf16 (or --dtype bf16), not fp16: use --logits_dtype fp32"},
      {2, 2, "--fp8 matmul --buffer_dtype bf16 --n_embd 24",
       "--fp8 matmul needs an --n_embd divisible by 16, not 24"},
      {2, 2, "--fp8 matmul --buffer_dtype bf16 --test_batch_size 3", "--fp8 matmul needs batches of a multiple of 16 "
       "tokens, not 24: change --seq_len, --batch_size or --test_batch_size"},
      {2, 2, "--reduce native --comm mpi", "--reduce native needs --comm nccl"},
      {2, 2, "--freeze nothing", "--freeze nothing matches no parameter; names are like wte.weight, "
       "h.0.attn.c_attn.bias, ln_f.weight"},
      {2, 2, "--freeze lm_head,wte", "--freeze lm_head matches no parameter; names are like wte.weight, "
       "h.0.attn.c_attn.bias, ln_f.weight"},
      {2, 2, "--freeze *", "--freeze * leaves nothing to train"},
      {2, 2, "--freeze ,,", "--freeze ',,' names no parameter"},
      {2, 2, "--no_decay h.7.*", "--no_decay h.7.* matches no parameter; names are like wte.weight, "
       "h.0.attn.c_attn.bias, ln_f.weight"},
      {2, 2, "--no_decay ,", "--no_decay ',' names no parameter"},
      {2, 2, "--lr_scale wte=0.5,wtf=2", "--lr_scale wtf matches no parameter; names are like wte.weight, "
       "h.0.attn.c_attn.bias, ln_f.weight"},
      {2, 2, "--lr_scale wte", "--lr_scale 'wte' is not PATTERN=X with X above 0, at most 1e6, like 'wte=0.1' "
       "(--freeze trains nothing)"},
      {2, 2, "--lr_scale wte=0", "--lr_scale 'wte=0' is not PATTERN=X with X above 0, at most 1e6, like 'wte=0.1' "
       "(--freeze trains nothing)"},
      {2, 2, "--lr_scale wte=1x", "--lr_scale 'wte=1x' is not PATTERN=X with X above 0, at most 1e6, like 'wte=0.1' "
       "(--freeze trains nothing)"}};
  Options o;
  char want[256], options[128];
  Error error = {};
  for (const auto &row : table) {
    modes_resolve(&o, row.world, row.per_host, row.options, &error);
    EXPECT(!strcmp(error.text, row.line), "%d ranks, %s:\n      %s\n    must be\n      %s", row.world, row.options,
           error.text, row.line);
  }
  for (const char *mesh : {"x", "4", "2x", "x2", "0x2", "4x0", "2X2", "2x2x1", "-1x4", "+2x2", "2*2",
                           "99999999999x1"}) {
    snprintf(options, sizeof options, "--mesh=%s", mesh);
    snprintf(want, sizeof want, "--mesh '%s' is not RxS: R replicas of S shards, like 2x4", mesh);
    modes_resolve(&o, 4, 4, options, &error);
    EXPECT(!strcmp(error.text, want), "%s: %s, must be %s", options, error.text, want);
  }
  for (const char *wrap : {"", "h", "min_params", "min_params:", "min_params:0", "min_params:-5", "min_params:abc",
                           "min_params:1.5", "min_params:1e16", "min_params:5k", "MODELS"}) {
    snprintf(options, sizeof options, "--wrap=%s", wrap);
    snprintf(want, sizeof want, "--wrap '%s' is not block, model or min_params:N with a whole number N of at least 1",
             wrap);
    modes_resolve(&o, 4, 4, options, &error);
    EXPECT(!strcmp(error.text, want), "%s: %s, must be %s", options, error.text, want);
  }
  for (const char *reshard : {"", "0", "1", "-2", "2.5", "one", "2x", "99999999999"}) {
    snprintf(options, sizeof options, "--reshard_after_forward=%s", reshard);
    snprintf(want, sizeof want, "--reshard_after_forward '%s' is not on, off or a number of ranks of at least 2",
             reshard);
    modes_resolve(&o, 4, 4, options, &error);
    EXPECT(!strcmp(error.text, want), "%s: %s, must be %s", options, error.text, want);
  }
}

TEST(modes_at_the_edge_resolve,
     "legal but rare combinations: the mesh, slots, resharding and accumulation that result") {
  static const struct { int world, per_host; const char *options, *strategy, *mesh; int slots; const char *reshard; }
  table[] = {{1, 1, "", "full_shard", "1x1", 2, "on"},
             {3, 0, "", "full_shard", "1x3", 2, "on"},
             {1, 1, "--strategy hybrid_shard", "hybrid_shard", "1x1", 2, "on"},
             {8, 4, "--strategy hybrid_shard", "hybrid_shard", "2x4", 2, "on"},
             {8, 4, "--strategy hybrid_shard --reshard_after_forward 2", "hybrid_shard", "2x4", 2, "2"},
             {4, 4, "--mesh 2x2", "hybrid_shard", "2x2", 2, "on"},
             {4, 4, "--mesh 4x1", "no_shard", "4x1", 2, "on"},
             {4, 4, "--mesh 1x4", "full_shard", "1x4", 2, "on"},
             {1, 1, "--mesh 1x1", "full_shard", "1x1", 2, "on"},
             {2, 2, "--strategy ddp", "ddp", "2x1", 2, "on"},
             {2, 2, "--strategy ddp --mesh 2x1 --wrap model", "ddp", "2x1", 2, "on"},
             {2, 2, "--strategy ddp --offload params --gather_slots 1", "ddp", "2x1", 1, "on"},
             {2, 2, "--strategy zero2", "zero2", "1x2", 4, "off"},
             {2, 2, "--strategy zero2 --reshard_after_forward off", "zero2", "1x2", 4, "off"},
             {2, 2, "--strategy zero1 --accumulate local --gather_slots 4", "zero1", "1x2", 4, "off"},
             {2, 2, "--reshard_after_forward off", "full_shard", "1x2", 4, "off"},
             {2, 2, "--gather_slots 9", "full_shard", "1x2", 4, "on"},
             {1, 1, "--gather_slots 1", "full_shard", "1x1", 1, "on"},
             {4, 4, "--reshard_after_forward 2 --gather_slots 3", "full_shard", "1x4", 3, "2"},
             {2, 2, "--wrap model", "full_shard", "1x2", 2, "on"},
             {2, 2, "--wrap model --reshard_after_forward off", "full_shard", "1x2", 4, "off"},
             {2, 2, "--wrap min_params:1e9", "full_shard", "1x2", 2, "on"},
             {2, 2, "--wrap min_params:4128 --gather_slots 1", "full_shard", "1x2", 1, "on"},
             {2, 2, "--fp8 gather --freeze *.c_*", "full_shard", "1x2", 2, "on"},
             {2, 2, "--fp8 matmul --param_dtype bf16", "full_shard", "1x2", 2, "on"},
             {2, 2, "--accumulate local", "full_shard", "1x2", 2, "on"},
             {2, 2, "--freeze=", "full_shard", "1x2", 2, "on"}};
  Options o;
  char mesh[32];
  Error error = {};
  for (const auto &row : table) {
    modes_resolve(&o, row.world, row.per_host, row.options, &error);
    EXPECT(!error.text[0], "%d ranks, %s: %s", row.world, row.options, error.text);
    snprintf(mesh, sizeof mesh, "%dx%d", o.replicas, o.shards);
    const char *strategy = option_word(&o, OPT_strategy), *accumulate = option_word(&o, OPT_accumulate);
    EXPECT(!strcmp(strategy, row.strategy) && !strcmp(mesh, row.mesh) && o.gather_slots == row.slots &&
               !strcmp(o.reshard_after_forward, row.reshard),
           "%d ranks, %s: %s, mesh %s, %lld slots, reshard %s; must be %s, %s, %d, %s", row.world, row.options,
           strategy, mesh, (long long)o.gather_slots, o.reshard_after_forward, row.strategy, row.mesh, row.slots,
           row.reshard);
    const bool local = strstr(row.options, "zero1") || strstr(row.options, "local");
    EXPECT(!strcmp(accumulate, local ? "local" : "sharded"), "%s: --accumulate %s", row.options, accumulate);
    EXPECT(option_dtype(&o, OPT_buffer_dtype) == option_dtype(&o, OPT_param_dtype), "%s: --buffer_dtype %s",
           row.options, option_word(&o, OPT_buffer_dtype));
  }
  modes_resolve(&o, 2, 2, "--freeze=wte,h.0.*", &error);
  strcpy(o.freeze, " wte ,\th.0.* ");
  EXPECT(sharding_check_params(&o, &error) && !strcmp(o.freeze, "wte,h.0.*"), "--freeze '%s': %s",
         o.freeze, error.text);
}

TEST(fp8_products_need_their_gpu,
     "--fp8 matmul names the GPU and its compute capability below 8.9; gather has no such requirement") {
  Options o;
  options_default(&o, &trainer_table);
  static const struct { int major, minor; bool ok; } gpus[] = {{8, 0, false}, {8, 6, false}, {8, 9, true}, {9, 0, true},
                                                               {10, 0, true}, {12, 0, true}};
  for (const char *fp8 : {"off", "gather", "matmul"}) for (const auto &g : gpus) {
    DeviceInfo d = {};
    char want[256] = "";
    Error error = {};
    snprintf(d.name, sizeof d.name, "NVIDIA X");
    d.major = g.major, d.minor = g.minor;
    option_pick(&o, OPT_fp8, fp8);
    check_fp8(&o, &d, &error);
    if (!strcmp(fp8, "matmul") && !g.ok)
      snprintf(want, sizeof want, "--fp8 matmul needs compute capability 8.9 or later, NVIDIA X has %d.%d: use --fp8 "
               "gather", g.major, g.minor);
    EXPECT(!strcmp(error.text, want), "--fp8 %s on sm_%d%d: '%s', must be '%s'", fp8, g.major, g.minor, error.text,
           want);
  }
}
