// test_tables.h: what a run prints, beside the tables of options and of memory that it prints from.
#pragma once

static inline void cli_expect_run_record(const cJSON *run) {
  EXPECT(cli_is_kind(run, "run") && cli_string(run, "version")[0] && cli_string(run, "build")[0],
         "the first record has no version");
  const cJSON *mesh = cJSON_GetObjectItemCaseSensitive(run, "mesh");
  EXPECT(cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(mesh, "replicas")) == 1 &&
             cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(mesh, "shards")) == 2 &&
             cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(mesh, "kept")) == 0 &&
             cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(run, "units")) == 3,
         "the first record has not the mesh 1x2 and three units");
  const cJSON *config = cJSON_GetObjectItemCaseSensitive(run, "config"),
              *plan = cJSON_GetObjectItemCaseSensitive(run, "memory_plan_bytes");
  for (const OptionSpec &s : option_specs)
    EXPECT(cJSON_GetObjectItemCaseSensitive(config, s.name), "the first record has no option %s", s.name);
  double sum = 0;
  for (const char *words : memory_words) {
    const cJSON *bytes = cJSON_GetObjectItemCaseSensitive(plan, words);
    EXPECT(cJSON_IsNumber(bytes), "the first record has no memory of '%s'", words);
    sum += bytes ? bytes->valuedouble : 0;
  }
  const cJSON *total = cJSON_GetObjectItemCaseSensitive(plan, "total");
  EXPECT(cJSON_IsNumber(total) && total->valuedouble == sum && sum > 0,
         "the memory plan's total is not the sum of its lines, %.0f", sum);
  EXPECT(!strcmp(cli_string(cJSON_GetObjectItemCaseSensitive(run, "config"), "prompt"), "say \"\\\t\xef\xbf\xbd"),
         "the prompt is written as %s", cli_string(config, "prompt"));
}

TEST(cli_metrics_are_whole_and_equal,
     "metrics.jsonl: configuration and plan, then every step; the same digits on 1 and 2 ranks, windows or messages") {
  CliMetrics m;
  CliRun r;
  const char *rows[][3] = {{"one", "", "--global_batch 8"},
                           {"two", "2", "--grad-accum=2"},
                           {"off", "2", "--global-batch 8 --shm off --comm mpi"},
                           {"spelled", "", "--batch-size=2 --global-batch=8"}};
  for (const auto &row : rows) {
    CLI_RUN(&r, "%s %s --max_steps 6 --eval_every 4 --save_every -1 --out %s --prompt "
            "\"$(printf 'say \"\\\\\\t\\377')\" %s",
            cli_ranks(row[1][0] ? 2 : 0), cli_small(), cli_path(row[0]), row[2]);
    cli_expect_done(&r, row[0]);
    cli_free(&r);
  }
  for (const char *other : {"two", "off", "spelled"})
    cli_expect_same_series(other, cli_path("one"), cli_path(other), 6);
  cli_metrics(&m, cli_path("two"));
  int gemms = 0;                                 // of a GPU: the algorithms that were chosen
  for (int i = 0; i < m.lines; i++) gemms += cli_is_kind(m.line[i], "matmul_plans");
  REQUIRE(m.lines == 1 + 6 + 3 + 1 + gemms && gemms <= 1,
          "%d records, must be the run's, 6 steps, 3 evaluations and the end", m.lines);
  cli_expect_run_record(m.line[0]);
  int step = 0;
  for (int i = 1; i < m.lines; i++) {
    if (!cli_is_kind(m.line[i], "step")) continue;
    EXPECT(cJSON_GetObjectItemCaseSensitive(m.line[i], "step")->valueint == ++step, "step %d is not in its place",
           step);
    for (const char *key : {"loss", "lr", "grad_norm", "tokens_per_s", "ms"})
      EXPECT(cJSON_IsNumber(cJSON_GetObjectItemCaseSensitive(m.line[i], key)), "step %d has no %s", step, key);
  }
  EXPECT(step == 6, "%d steps, must be 6", step);
  EXPECT(!strcmp(cli_string(m.line[m.lines - 1], "reason"), "done"),
         "the last record does not say that the run is done");
  cli_metrics_free(&m);
}

TEST(cli_help_is_complete, "--help all lists every option with its group, once for all ranks; --version; exit code 0") {
  for (int ranks : {0, 2}) {
    CliRun r;
    CLI_RUN(&r, "%s --help all", cli_ranks(ranks));
    cli_expect_done(&r, "--help all");
    for (const OptionSpec &s : option_specs) {
      char want[160];
      snprintf(want, sizeof want, "  --%s ", s.name);
      EXPECT(cli_count(r.text, want) == 1, "--help all has %d lines of --%s", cli_count(r.text, want), s.name);
      EXPECT(cli_count(r.text, s.help) == 1, "--help all has %d lines that say: %s", cli_count(r.text, s.help), s.help);
    }
    for (const auto &group : option_groups) {
      char want[160];
      snprintf(want, sizeof want, "\n%s\n", group.title);
      const char *first = strstr(r.text, want);
      EXPECT(first && !strstr(first + 1, want), "--help all does not have group %s once", group.title);
    }
    cli_free(&r);
    CLI_RUN(&r, "%s --version", cli_ranks(ranks));
    EXPECT(r.code == 0 && cli_count(r.text, "train_gpt_fsdp " PROGRAM_VERSION " (") == 1, "--version: exit code %d, %s",
           r.code, r.text);
    cli_free(&r);
  }
}
// The number after `name` at the start of a row of `text`; -1: none.
static double row_number(const char *text, const char *name) {
  char want[128];
  snprintf(want, sizeof want, "\n  %s ", name);
  const char *at = strstr(text, want);
  return at ? atof(at + strlen(want)) : -1;
}

TEST(report_record_has_what_verbose_prints,
     "metrics.jsonl's first record has every figure of --verbose: memory by line and use, units, traffic, sharding, "
     "configuration; the traffic equals what a step then counts") {
  CliRun r;
  CliMetrics m;
  CLI_RUN(
      &r,
      "%s %s --verbose --n_layer 4 --freeze 'h.0.*' --max_steps 2 --eval_every -1 --save_every -1 --shm off --out %s",
      cli_ranks(2), cli_small(), cli_path("out"));
  cli_expect_done(&r, "--verbose");
  cli_metrics(&m, cli_path("out"));
  REQUIRE(m.lines == 4, "%d records", m.lines);
  const cJSON *run = m.line[0], *plan = cJSON_GetObjectItemCaseSensitive(run, "memory_plan_bytes"),
              *uses = cJSON_GetObjectItemCaseSensitive(run, "memory_use_bytes"),
              *traffic = cJSON_GetObjectItemCaseSensitive(run, "step_traffic");
  double sum = 0;
  for (const char *words : memory_words) {
    const double bytes = cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(plan, words));
    EXPECT(bytes == fmax(0, row_number(r.text, words)), "%s: %.0f, printed %.0f", words, bytes,
           row_number(r.text, words));
  }
  for (const char *words : memory_use_words) sum += cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(uses, words));
  const double total = cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(plan, "total"));
  EXPECT(total > 0 && total == row_number(r.text, "total") && total == sum, "total %.0f, printed %.0f, uses %.0f",
         total, row_number(r.text, "total"), sum);
  const cJSON *units = cJSON_GetObjectItemCaseSensitive(run, "unit_table"), *unit;
  int all = 0;
  cJSON_ArrayForEach(unit, units) {
    char row[256], name[128];
    const auto number = [&](const char *key) {
      return (long long)cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(unit, key));
    };
    all += (int)number("alike");
    snprintf(name, sizeof name, number("alike") > 1 ? "%s .. %s" : "%s", cli_string(unit, "first"),
             cli_string(unit, "last"));
    snprintf(row, sizeof row, "\n  %-34s %8lld %12lld %12lld %14lld %14lld%s\n", name, number("tensors"),
             number("parameters"), number("trained"), number("whole_bytes"), number("rank_bytes"),
             number("alike") > 1 ? "  each" : "");
    EXPECT(strstr(r.text, row), "no row is%s:\n%.4000s", row, r.text);
  }
  EXPECT(all == 5 && cJSON_GetArraySize(units) == 3, "%d units in %d rows", all, cJSON_GetArraySize(units));
  char line[512];
  const auto moved = [&](const char *key) {
    return cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(traffic, key));
  };
  snprintf(
      line, sizeof line,
      "traffic of a step, received by rank 0: %.0f gathers %.3f MB, %.0f reductions %.3f MB, %.0f small %.0f bytes\n",
      moved("gathers"), moved("gather_bytes") * 1e-6, moved("reductions"), moved("reduce_bytes") * 1e-6, moved("small"),
      moved("small_bytes"));
  EXPECT(strstr(r.text, line), "no line is %s:\n%.4000s", line, r.text);
  for (const char *key : {"gathers", "reductions", "gather_bytes", "reduce_bytes"})
    EXPECT(moved(key) > 0 && moved(key) == cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(m.line[2], key)),
           "%s: %.0f, not what step 2 counts", key, moved(key));
  const cJSON *shared = cJSON_GetObjectItemCaseSensitive(run, "shared_memory_bytes");
  const double placed = cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(shared, "placed"));
  const double alive = cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(shared, "alive_most"));
  EXPECT(alive > 0 && alive <= placed && placed < total, "%.0f bytes alive of %.0f", alive, placed);
  snprintf(line, sizeof line, "\n  of it %.0f bytes are shared by buffers of disjoint live ranges; at most %.0f of "
           "them are live\n", placed, alive);
  EXPECT(strstr(r.text, line), "no line is%s", line);
  snprintf(line, sizeof line, "\nsharding: %s\n", cli_string(run, "sharding"));
  EXPECT(strstr(r.text, line), "no line is%s", line);
  snprintf(line, sizeof line, "\nmatrix multiply: %s\n", cli_string(run, "products"));
  EXPECT(!cli_string(run, "products")[0] || strstr(r.text, line), "no line is%s", line);
  for (const OptionSpec &o : option_specs) {
    snprintf(line, sizeof line, " --%s=", o.name);
    EXPECT(cli_count(r.text, line) == 1, "--verbose does not print --%s", o.name);
  }
  cli_metrics_free(&m);
  cli_free(&r);
}

TEST(report_line_fits_any_width,
     "the progress line at every width from 1 to 200: never wider than its terminal; from 40 on it has step, loss "
     "and ETA, from the most important field to the least, in their order; anywhere else all of it") {
  Progress p = {1234,
                17240,
                {"bar", "step 1234/17240", "loss 10.4182", "", "lr 3.00e-04", "|g| 0.890", "146152 tok/s",
                 "MFU 41.0 %", "ETA 12:34:56", "1253 MiB", "", "saving 99 %"}};
  char line[1024], before[1024] = "";
  for (int columns = 0; columns <= 200; columns++) {
    progress_line(line, sizeof line, &p, columns);
    const int n = (int)strlen(line);
    EXPECT(columns < 40 || n < columns, "%d columns: %d characters: %s", columns, n, line);
    EXPECT(!strncmp(line, "step 1234", 9) || !strncmp(line, "[##", 3) || !strncmp(line, "[#.", 3), "%d columns: %s",
           columns, line);
    for (const char *part : {"step 1234", "loss 10.4182", "ETA 12:34:56"})
      EXPECT(strstr(line, part), "%d columns: no %s: %s", columns, part, line);
    if (columns > 40)                            // fields that fit one column less also fit now
      for (int f = 1; f < PROGRESS_FIELDS; f++)
        EXPECT(!p.text[f][0] || !strstr(before, p.text[f]) || strstr(line, p.text[f]), "%d columns: %s went", columns,
               p.text[f]);
    int at = -1;
    for (int f = 1; f < PROGRESS_FIELDS; f++) {
      const char *there = p.text[f][0] ? strstr(line, p.text[f]) : NULL;
      EXPECT(!there || there - line > at, "%d columns: %s is not in its place: %s", columns, p.text[f], line);
      if (there) at = (int)(there - line);
      EXPECT(columns && columns < 200 ? true : !p.text[f][0] || there, "%d columns: no %s: %s", columns, p.text[f],
             line);
    }
    if (columns == 80) EXPECT(strstr(line, "146152 tok/s") && !strstr(line, "MiB"), "80 columns: %s", line);
    snprintf(before, sizeof before, "%s", line);
  }
  const struct { int64_t s; const char *text; } times[] = {{0, "0:00"}, {59, "0:59"}, {600, "10:00"}, {3599, "59:59"},
                                                           {3600, "1:00:00"}, {360061, "100:01:01"}};
  for (const auto &t : times) {
    char text[32];
    eta_text(text, sizeof text, t.s);
    EXPECT(!strcmp(text, t.text), "%lld s is %s, must be %s", (long long)t.s, text, t.text);
  }
}
