// test_plan.h: plans of memory for worlds that are not running, and the record of a step that nobody computes.
//
//   1 table   bytes planned per rank, as they were before buffers were placed by their lifetimes: no total may grow

// ================================================================================================ 1 table
// Written by `PLANS_TO=FILE build/test_gpt_fsdp =plan_totals_do_not_grow` at the commit that the table's head names.
static const char plan_table_path[] = "dev/results/2026-11-23-plans.tsv";
enum { PLAN_ROWS_MOST = 2048, PLAN_LINE_MOST = 2048 };
struct PlanRow { char name[640]; size_t total; };
struct PlanTable { PlanRow row[PLAN_ROWS_MOST]; int rows; FILE *to; };

static inline Device plan_device(bool cuda) {
  Device d = device_of(cuda ? &ops_cuda_emulated : cpu_tables[0].ops);
  d.host_ops = cpu_tables[0].ops;
  return d;
}
// A row: its name, the total, and every line of the plan that is not 0.
static inline void plan_table_add(PlanTable *table, const char *name, const Options *o, bool cuda, int rank, int world) {
  static Trainer t;
  trainer_plan_as(&t, o, plan_device(cuda), rank, world, world);
  PlanRow *r = &table->row[table->rows++];
  CHECK(table->rows < PLAN_ROWS_MOST, "%d rows", table->rows);
  snprintf(r->name, sizeof r->name, "%s", name);
  r->total = memory_planned_total(&t.plan, MEMORY_ALL);
  if (table->to) {
    fprintf(table->to, "%s\t%zu", r->name, r->total);
    for (int i = 0; i < MEM_COUNT; i++)
      if (t.plan.planned_bytes[i]) fprintf(table->to, "\t%s: %zu", memory_words[i], t.plan.planned_bytes[i]);
    fprintf(table->to, "\n");
  }
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
      if (cuda && world > 1) strcpy(o.comm, "nccl");
      snprintf(name, sizeof name, "%s %s, %d ranks, --recompute %s --grad_accum %d --param_dtype %s --reduce_dtype %s",
               cuda ? "cuda" : "cpu", model, world, level, A, dtype, dtype);
      plan_table_add(table, name, &o, cuda, 0, world);
    }
}
static inline void plan_table_modes(PlanTable *table) {
  static ModeSet s;
  static Options o;
  modes_ask(&s);
  modes_legal_pairs(&s);
  modes_cover(&s);
  for (int i = 0; i < s.rows; i++) {
    char error[512] = "", text[512], name[600];
    const int world = mode_world(&s.row[i]);
    mode_text(text, sizeof text, &s.row[i]);
    mode_options(&o, &s.row[i], mode_microbatches(&s.row[i]), error, sizeof error);
    snprintf(name, sizeof name, "cpu %s", text);
    plan_table_add(table, name, &o, false, world - 1, world);
  }
}
TEST(plan_totals_do_not_grow,
     "for models, ranks, devices, levels of recomputation and the covering set of modes, a rank is planned to take no "
     "more bytes than in the recorded table") {
  if (!&ops_cuda_emulated) SKIP("this test program was linked without dev/cuda_emu");
  static PlanTable now;
  const char *to = getenv("PLANS_TO");
  now.to = to ? fopen(to, "w") : NULL;
  plan_table_models(&now);
  plan_table_modes(&now);
  if (now.to) fclose(now.to);
  FILE *from = fopen(to ? to : plan_table_path, "r");
  REQUIRE(from, "%s cannot be read", plan_table_path);
  static char line[PLAN_LINE_MOST];
  int rows = 0, smaller = 0;
  double most_saved = 0;
  while (fgets(line, sizeof line, from)) {
    if (line[0] == '#') continue;
    REQUIRE(rows < now.rows, "the table has more than %d rows", now.rows);
    const PlanRow *r = &now.row[rows++];
    const size_t n = strlen(r->name), before = strtoull(line + n + 1, NULL, 10);
    EXPECT(!strncmp(line, r->name, n) && line[n] == '\t', "row %d is '%s', must be '%s'", rows, line, r->name);
    EXPECT(r->total <= before, "%s: %zu bytes, %zu in the table", r->name, r->total, before);
    smaller += r->total < before;
    most_saved = fmax(most_saved, 1 - (double)r->total / (double)before);
  }
  fclose(from);
  EXPECT(rows == now.rows && rows > 300, "the table has %d rows, must have %d", rows, now.rows);
  printf("%d of %d rows are smaller, by up to %.1f %%\n", smaller, rows, 100 * most_saved);
}
