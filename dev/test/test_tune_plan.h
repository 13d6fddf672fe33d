// test_tune_plan.h: --tune plan: what it measures is what predictions ask for; its file is used where it fits this
// machine, and is told where it does not.

// Rates of no machine: each other than all others.
static inline void peaks_made_up(Peaks *p, const char *dir, const char *table, int ranks, int threads) {
  peaks_of_here(p, dir, table, ranks, threads);
  snprintf(p->measured, sizeof p->measured, "2026-11-23 12:00");
  p->latency_s = 2e-6;
  double next = 1e9;
  for (auto &dtype : p->rate) for (auto &kind : dtype) for (auto &row : kind) for (double &rate : row)
    rate = next *= 1.001;
}
TEST(peaks_are_interpolated,
     "a rate measured at a size is given at that size; half way between two sizes it is the geometric mean of theirs; "
     "beyond the last one it stays") {
  static Peaks p;
  peaks_made_up(&p, "x", "t", 1, 1);
  for (int d = 0; d < PEAK_DTYPES; d++) for (int k = 0; k < PEAK_KIND_COUNT; k++) {
    const PeakGrid *g = &peak_grids[peak_axes[k]];
    for (int i = 0; i < g->xs; i++) for (int j = 0; j < g->ys; j++) {
      const double rate = p.rate[d][k][i][j], at = peaks_rate(&p, d, (PeakKind)k, g->x[i], g->y[j]);
      EXPECT(fabs(at / rate - 1) < 1e-9, "%s at %g, %g: %g, measured %g", peak_words[k], g->x[i], g->y[j], at, rate);
      if (i + 1 == g->xs) continue;
      const double next = p.rate[d][k][i + 1][j], x = sqrt(g->x[i] * g->x[i + 1]);
      const double between = peaks_rate(&p, d, (PeakKind)k, x, g->y[j]);
      EXPECT(fabs(between / sqrt(rate * next) - 1) < 1e-9, "%s half way from %g: %g between %g and %g", peak_words[k],
             g->x[i], between, rate, next);
    }
    const double end = p.rate[d][k][g->xs - 1][g->ys - 1], first = p.rate[d][k][0][0];
    EXPECT(fabs(peaks_rate(&p, d, (PeakKind)k, 1e12, 1e12) / end - 1) < 1e-9 &&
           fabs(peaks_rate(&p, d, (PeakKind)k, 1e-3, 1e-3) / first - 1) < 1e-9, "%s beyond its sizes", peak_words[k]);
  }
}
TEST(peaks_are_of_the_calls_predicted,
     "--tune plan calls ops so that a prediction gives each call the rate that is measured with it: the same kind, and "
     "for matrix multiplies and attention the same sizes") {
  static Peaks p;
  TuneMemory m = {};
  m.base = (char *)mmap(NULL, TUNE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  m.tokens = (int32_t *)calloc((size_t)TUNE_TOKENS, sizeof(int32_t));
  m.span = TUNE_BYTES;
  REQUIRE(m.base != MAP_FAILED, "no addresses");
  Ctx c = {};
  c.threads = 1;
  for (int k = 0; k < PEAK_KIND_COUNT; k++) for (Dtype d : {F32, BF16}) {
    const PeakGrid *g = &peak_grids[peak_axes[k]];
    const bool wide = k == PEAK_WIDE_FORWARD || k == PEAK_WIDE_INPUT || k == PEAK_WIDE_WEIGHT;
    for (int i = 0; i < g->xs - wide; i++) for (int j = 0; j < g->ys; j++) {
      const TuneCall t = {(PeakKind)k, g->x[i], g->y[j], d};
      const TuneWork w = tune_work(&c, m, &t);
      EXPECT(w.at.kind == k, "%s is measured as %s", peak_words[k], peak_words[w.at.kind]);
      if (peak_axes[k] != PEAK_BYTES)
        EXPECT(w.at.x == t.x && w.at.y == t.y, "%s at %g, %g is measured at %g, %g", peak_words[k], t.x, t.y, w.at.x,
               w.at.y);
      else EXPECT(w.at.x < 4 * t.x && w.at.x > t.x / 4, "%s of %g bytes has %g", peak_words[k], t.x, w.at.x);
      EXPECT(w.amount > 0 && w.bytes < TUNE_BYTES, "%s: work %g, %g bytes", peak_words[k], w.amount, w.bytes);
    }
  }
  peaks_made_up(&p, "x", "t", 1, 1);
  munmap(m.base, TUNE_BYTES);
  free(m.tokens);
}
TEST(peaks_files_are_used_or_told,
     "--plan --on cpu predicts with the rates of --tune plan's file; a missing, damaged or foreign file gets one line, "
     "and figures are assumed; so they are where --on names some") {
  static Peaks p, back;
  static WorldPlan w;
  static Options o;
  static char text[1 << 16];
  char error[2048] = "", why[1536] = "", base[512];
  const int best = cpu_best_table();
  const char *table = cpu_tables[best].ops->name;
  snprintf(base, sizeof base, "--model tiny --threads 3 --on cpu --cache %s", test_tmp());
  peaks_made_up(&p, test_tmp(), table, 1, 3);
  back = p;
  EXPECT(!peaks_read(&back, why, sizeof why) && strstr(why, "nothing is measured for 1 rank of 3 threads: measure"),
         "no file: %s", why);
  EXPECT(peaks_write(&p, error, sizeof error), "%s", error);
  memset(back.rate, 0, sizeof back.rate);
  REQUIRE(peaks_read(&back, why, sizeof why), "%s", why);
  for (int d = 0; d < PEAK_DTYPES; d++) for (int k = 0; k < PEAK_KIND_COUNT; k++)
    for (int i = 0; i < peak_grids[peak_axes[k]].xs; i++)          // six digits
      EXPECT(fabs(back.rate[d][k][i][0] / p.rate[d][k][i][0] - 1) < 1e-5, "%s came back as %g", peak_words[k],
             back.rate[d][k][i][0]);
  // Every rate the same: FLOPs and bytes over it.
  for (auto &dtype : p.rate) for (auto &kind : dtype) for (auto &row : kind) for (double &rate : row) rate = 1e10;
  EXPECT(peaks_write(&p, error, sizeof error), "%s", error);
  plan_asked(&o, "%s", base);
  REQUIRE(plan_made(&w, &o, true), "no plan");
  const StepTimes *s = &w.rank[0].times;
  EXPECT(w.on.machine.peaks && !w.on.assumed[0], "the file is not used: %s", w.on.assumed);
  EXPECT(fabs(s->at[STEP_PRODUCTS] / (s->at[STEP_PRODUCT_FLOPS] / 1e10) - 1) < 1e-9 &&
         fabs(s->at[STEP_ATTENTION] / (s->at[STEP_ATTENTION_FLOPS] / 1e10) - 1) < 1e-9 && s->at[STEP_LAUNCHES] == 0,
         "matrix multiplies take %g s, attention %g", s->at[STEP_PRODUCTS], s->at[STEP_ATTENTION]);
  world_plan_free(&w);
  plan_asked(&o, "--model tiny --threads 3 --on cpu,memory_gbs=20 --cache %s", test_tmp());
  REQUIRE(plan_made(&w, &o, true), "no plan");
  EXPECT(!w.on.machine.peaks && !strcmp(w.on.assumed, "--on names some"), "figures that --on names: %s", w.on.assumed);
  world_plan_free(&w);
  // Damage, and other machines.
  FILE *f = fopen(p.file, "r");
  REQUIRE(f, "no file");
  const size_t n = fread(text, 1, sizeof text - 1, f);
  fclose(f);
  static const struct { const char *from, *to, *fault; } edits[] = {
      {"\"program\":\"", "\"program\":\"0", "is of another version"},
      {"\"cpu\":\"", "\"cpu\":\"x", "is of another CPU"},
      {"\"threads\":3", "\"threads\":4", "is of other ranks or threads"}, {"1e+10", "-1e+10", "is damaged"},
      {"1e+10,", "", "is damaged"}, {"\"fp32 zero\"", "\"fp32 one\"", "is damaged"}, {"}}", "}", "is damaged"}};
  for (const auto &e : edits) {
    const char *at = strstr(text, e.from);
    REQUIRE(at, "no %s in the file", e.from);
    f = fopen(p.file, "w");
    fprintf(f, "%.*s%s%s", (int)(at - text), text, e.to, at + strlen(e.from));
    fclose(f);
    back = p;
    EXPECT(!peaks_read(&back, why, sizeof why) && strstr(why, e.fault) && strstr(why, "--tune plan"),
           "%s for %s: %s", e.to, e.from, why);
  }
  for (size_t cut = 0; cut < n; cut += n / 97 + 1) {
    f = fopen(p.file, "w");
    fwrite(text, 1, cut, f);
    fclose(f);
    back = p;
    EXPECT(!peaks_read(&back, why, sizeof why) && strstr(why, "is damaged"), "cut at %zu: %s", cut, why);
  }
}
TEST(cli_tune_plan_refuses,
     "--tune plan is refused by name under mpirun, on GPUs and for more ranks than it can start; of --plan's options "
     "only --world belongs to it") {
  static const CliRefusal table[] = {
      {2, "--tune plan", 2, "--tune plan starts its ranks itself: leave mpirun out and give --world N"},
      {0, "--tune plan --device cuda", 2, "--tune plan measures CPUs; a GPU's predictions are from data sheets: use "
       "--plan --on h100, or --on h100,tflops=...,memory_gbs=... with what dev/gpu_peaks.cu measures"},
      {0, "--tune plan --world 2000", 2, "--tune plan: 2000 ranks on this host; at most 256"},
      {0, "--tune plan --on cpu", 2, "--on belongs to --plan: give that too, or leave it out"},
      {0, "--tune plane", 2, "--tune 'plane' is not known: choose one of off|on|plan"}};
  cli_expect_refusals(table, sizeof table / sizeof *table);
}
