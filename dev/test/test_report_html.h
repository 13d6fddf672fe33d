// test_report_html.h: OUT/report.html as a file: well formed, whole in itself, with metrics.jsonl's own numbers, and
// without a way for text of a run to become markup; and as a drawing, by dev/check_report.js, which needs node or
// Chromium. dev/screenshots.py opens it in a browser.

// ---- the page as text -----------------------------------------------------------------------------------------------
// Checks that elements are closed in order, attributes are quoted, and script and style end where they should. Returns
// the number of script elements; `data`: what the one with id="data" has, malloc'ed.
static int page_check(const char *what, const char *text, char **data) {
  static const char *const empty[] = {"meta", "!DOCTYPE"};
  char open[32][32];
  int depth = 0, scripts = 0;
  *data = NULL;
  for (const char *p = text; (p = strchr(p, '<'));) {
    const bool closes = p[1] == '/';
    const char *name = p + 1 + closes;
    const size_t n = strspn(name, "!abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789");
    const char *end = name + n;
    char quote = 0, tag[32];
    bool is_empty = false;
    if (!n || n >= sizeof tag) { EXPECT(0, "%s: no element at '%.40s'", what, p); return -1; }
    snprintf(tag, sizeof tag, "%.*s", (int)n, name);
    for (; *end && (quote || *end != '>'); end++) {
      if (!quote && *end == '=') EXPECT(end[1] == '"', "%s: an attribute of %s without quotes", what, tag);
      if (!quote && *end == '<') EXPECT(0, "%s: %s is not ended", what, tag);
      if (*end == '"') quote = quote ? 0 : '"';
    }
    for (const char *e : empty) is_empty = is_empty || !strcmp(tag, e);
    if (closes) {
      EXPECT(depth && !strcmp(open[depth - 1], tag), "%s: </%s> closes %s", what, tag,
             depth ? open[depth - 1] : "nothing");
      depth -= depth > 0;
    } else if (!is_empty) {
      if (depth == 32) { EXPECT(0, "%s: elements nest too deep", what); return -1; }
      strcpy(open[depth++], tag);
    }
    p = end;
    if (closes || (strcmp(tag, "script") && strcmp(tag, "style"))) continue;
    scripts += !strcmp(tag, "script");
    char close[40];
    snprintf(close, sizeof close, "</%s", tag);
    const char *stop = strstr(end, close);
    if (!stop) { EXPECT(0, "%s: %s is not closed", what, tag); return -1; }
    if (memmem(name, (size_t)(end - name), "id=\"data\"", 9)) *data = strndup(end + 1, (size_t)(stop - end - 1));
    p = stop;
  }
  EXPECT(!depth, "%s: %s is not closed", what, depth ? open[depth - 1] : "");
  return scripts;
}
// Whether all bytes are UTF-8 without control characters.
static bool page_is_text(const char *text) {
  const uint8_t *p = (const uint8_t *)text, *end = p + strlen(text);
  for (int n; p < end; p += n) {
    utf8_char(p, end, &n);
    if ((*p >= 128 && n == 1) || (*p < 32 && *p != '\n')) return false;
  }
  return true;
}
// Opens a page, which must be all there is; returns its data, parsed.
static cJSON *page_open(const char *what, const char *path) {
  int64_t bytes = 0;
  char *text = file_get(path, 1 << 26, &bytes), *data = NULL;
  if (!text) { EXPECT(0, "%s: no %s", what, path); return NULL; }
  EXPECT(strlen(text) == (size_t)bytes && page_is_text(text), "%s: %s is not plain UTF-8", what, path);
  EXPECT(page_check(what, text, &data) == 2, "%s: not two scripts", what);
  for (const char *part : {report_page_head, report_page_tail})
    for (const char *out : {"src=", "href=", "@import", "url(", "fetch(", "XMLHttp", "innerHTML", "document.write"})
      EXPECT(strstr(text, part) && !strstr(part, out), "%s: the page has %s", what, out);
  EXPECT(data && !strpbrk(data, "<>&"), "%s: the data has markup", what);
  cJSON *json = cJSON_Parse(data);
  EXPECT(json, "%s: the data is no JSON", what);
  free(data);
  free(text);
  return json;
}
static const cJSON *page_at(const cJSON *of, const char *a, const char *b) {
  const cJSON *x = cJSON_GetObjectItemCaseSensitive(of, a);
  return b ? cJSON_GetObjectItemCaseSensitive(x, b) : x;
}
// Of a step's record: every unit's numbers are in the page. Returns how many.
static int page_expect_units(const char *what, const cJSON *run, const cJSON *line) {
  const cJSON *unit, *shown, *p;
  int numbers = 0;
  cJSON_ArrayForEach(unit, page_at(line, "layers", NULL))
    for (const char *name : report_unit_series) {
      int found = 0;
      cJSON_ArrayForEach(shown, page_at(run, "layers", NULL)) {
        if (strcmp(cli_string(shown, "unit"), cli_string(unit, "unit"))) continue;
        cJSON_ArrayForEach(p, page_at(shown, name, NULL))
          found += p->child->valuedouble == page_at(line, "step", NULL)->valuedouble &&
                   p->child->next->valuedouble == page_at(unit, name, NULL)->valuedouble;
      }
      EXPECT(found == 1, "%s: %s of %s in step %.0f is there %d times", what, name, cli_string(unit, "unit"),
             page_at(line, "step", NULL)->valuedouble, found);
      numbers++;
    }
  return numbers;
}
// The run in the page has what its metrics.jsonl says of each step the last time, digit by digit, and its records.
static void page_expect_metrics(const char *what, const cJSON *run, const char *out) {
  CliMetrics m;
  cli_metrics(&m, out);
  int points = 0, evals = 0, last_run = 0, of_units = 0;
  for (int i = 0; i < m.lines; i++) if (cli_is_kind(m.line[i], "run")) last_run = i;
  const cJSON *first = page_at(m.line[last_run], "first_step", NULL);
  EXPECT(cJSON_Compare(page_at(run, "run", NULL), m.line[last_run], true), "%s: another first record", what);
  EXPECT(cJSON_Compare(page_at(run, "end", NULL), m.line[m.lines - 1], true), "%s: another end", what);
  for (int i = 0; i < m.lines; i++) {
    const cJSON *line = m.line[i], *step = page_at(line, "step", NULL), *p, *e;
    if (!step || (i < last_run && step->valuedouble >= first->valuedouble)) continue;
    of_units += page_expect_units(what, run, line);
    for (const char *name : report_series) {
      if (!cli_is_kind(line, "step")) break;
      int found = 0;
      cJSON_ArrayForEach(p, page_at(run, "series", name))
        found += p->child->valuedouble == step->valuedouble &&
                 p->child->next->valuedouble == page_at(line, name, NULL)->valuedouble;
      EXPECT(found == 1, "%s: %s of step %.0f is there %d times", what, name, step->valuedouble, found);
      points++;
    }
    if (!cli_is_kind(line, "eval")) continue;
    int found = 0;
    cJSON_ArrayForEach(e, page_at(run, "evals", NULL)) {
      bool same = !strcmp(cli_string(e, "split"), cli_string(line, "split"));
      for (const char *key : {"step", "loss", "perplexity", "accuracy"})
        same = same && page_at(e, key, NULL)->valuedouble == page_at(line, key, NULL)->valuedouble;
      found += same;
    }
    EXPECT(found == 1, "%s: the %s of step %.0f is there %d times", what, cli_string(line, "split"), step->valuedouble,
           found);
    evals++;
  }
  int there = 0;
  for (const char *name : report_series) there += cJSON_GetArraySize(page_at(run, "series", name));
  EXPECT(there == points && points >= 32, "%s: %d points, metrics.jsonl has %d", what, there, points);
  const cJSON *unit;
  cJSON_ArrayForEach(unit, page_at(run, "layers", NULL))
    for (const char *name : report_unit_series) of_units -= cJSON_GetArraySize(page_at(unit, name, NULL));
  EXPECT(!of_units && cJSON_GetArraySize(page_at(run, "layers", NULL)) > 1,
         "%s: %d numbers of units more in metrics.jsonl", what, of_units);
  EXPECT(cJSON_GetArraySize(page_at(run, "evals", NULL)) == evals && evals >= 2, "%s: %d evaluations", what, evals);
  cli_metrics_free(&m);
}

TEST(report_page_shows_the_metrics_numbers,
     "OUT/report.html: well formed, nothing from elsewhere, metrics.jsonl's numbers digit by digit, resumed runs too, "
     "the memory map inside the plan; hostile samples, options and names stay text; --report lays runs side by side; "
     "off: no page") {
  CliRun r;
  const char *out = cli_path("x<script><b>&'\"");
  const char *hostile = "'</script><img src=x onerror=alert(1)>&amp;\"\\'";
  char options[3072], path[700];
  snprintf(options, sizeof options, "%s --global_batch 8 --schedule constant --warmup 2 --eval_every 4 --save_every 5 "
           "--keep 0 --log_layers --prompt %s", cli_small(), hostile);
  CLI_RUN(&r, "%s %s --max_steps 8 --out \"$(printf '%%s' '%s/x<script><b>&'; printf \"'\"; printf '\"')\"",
          cli_ranks(2), options, test_tmp());
  cli_expect_done(&r, "eight steps");
  EXPECT(cli_count(r.text, "metrics.jsonl, report.html, options.txt") == 1, "it printed:\n%.3000s", r.text);
  cli_free(&r);
  snprintf(path, sizeof path, "%s/report.html", out);
  cJSON *page = page_open("eight steps", path);
  REQUIRE(page, "no page");
  const cJSON *run = page_at(page, "runs", NULL)->child;
  page_expect_metrics("eight steps", run, out);
  EXPECT(strstr(cli_string(run, "sample"), "</script><img src=x onerror=alert(1)>"), "the sample is '%s'",
         cli_string(run, "sample"));
  EXPECT(!strcmp(cli_string(run, "name"), out), "the name is '%s'", cli_string(run, "name"));
  // Memory: every buffer is in its line of the plan.
  const cJSON *map = page_at(run, "run", "memory_map"), *b, *l;
  size_t total = 0, plan = 0;
  cJSON_ArrayForEach(l, page_at(map, "lines", NULL)) total += (size_t)cJSON_GetArrayItem(l, 2)->valuedouble;
  cJSON_ArrayForEach(l, page_at(run, "run", "memory_use_bytes")) plan += (size_t)l->valuedouble;
  EXPECT(total == plan && cJSON_GetArraySize(page_at(map, "buffers", NULL)) > 30, "%zu of %zu bytes", total, plan);
  cJSON_ArrayForEach(b, page_at(map, "buffers", NULL)) {
    bool inside = false;
    const double pool = cJSON_GetArrayItem(b, 2)->valuedouble;
    const double end = cJSON_GetArrayItem(b, 3)->valuedouble + cJSON_GetArrayItem(b, 4)->valuedouble;
    cJSON_ArrayForEach(l, page_at(map, "lines", NULL))
      inside = inside || (cJSON_GetArrayItem(l, 3)->valuedouble == pool &&
                          end <= cJSON_GetArrayItem(l, 2)->valuedouble);
    EXPECT(inside, "%s is in no line of the plan", b->child->valuestring);
  }
  cJSON_Delete(page);
  // Any bytes in a sample; a resumed run; another one beside it.
  CLI_RUN(&r, "cd %s && mv x* one && rm -r one/ckpt/step_00000008 && %s %s --resume auto --max_steps 12 --out one && "
          "%s %s --max_steps 8 --lr 0.02 --report off --out two && ls two && "
          "printf 'a\\000b\\377\\302</ScRiPt>\\360\\237\\230\\200\\355\\240\\200\\033[1m' >one/sample.txt && "
          "%s --report one,two && mkdir three && %s --report one --out three",
          test_tmp(), cli_ranks(0), options, cli_ranks(2), options, cli_ranks(0), cli_ranks(2));
  cli_expect_done(&r, "resumed, and another");
  // Named at the start and end of the resumed run, and by --report twice; not by the run without a page, nor by ls.
  EXPECT(cli_count(r.text, "report: ") == 2 && cli_count(r.text, "report.html") == 4, "it printed:\n%.3000s", r.text);
  cli_free(&r);
  page = page_open("resumed", cli_path("one/report.html"));
  if (page) page_expect_metrics("resumed", page_at(page, "runs", NULL)->child, cli_path("one"));
  cJSON_Delete(page);
  page = page_open("two runs", cli_path("report.html"));
  REQUIRE(page && cJSON_GetArraySize(page_at(page, "runs", NULL)) == 2, "not two runs");
  run = page_at(page, "runs", NULL)->child;
  page_expect_metrics("one of two", run, cli_path("one"));
  page_expect_metrics("two of two", run->next, cli_path("two"));
  const cJSON *sample = page_at(run, "sample", NULL);
  const char *rest = cJSON_IsString(sample) ? sample->valuestring : "";
  EXPECT(!strncmp(rest, "a", 1), "the sample is '%s'", rest);
  cJSON_Delete(page);
  page = page_open("in three", cli_path("three/report.html"));
  cJSON_Delete(page);
  static const CliRejection table[] = {
      {0, "--report=", 2, "--report is on, off, or directories of runs: A,B"},
      {0, "--report ,", 2, "--report is on, off, or directories of runs: A,B"},
      {0, "--report nowhere", 3, "--report nowhere: cannot read nowhere/metrics.jsonl: No such file or directory; "
       "it takes directories of runs, with commas between them"}};
  cli_expect_rejections(table, 3);
}
TEST(report_text_stays_text, "any bytes become a JSON string that is UTF-8 and has no markup, and means the same") {
  static const struct { const char *bytes; size_t count; const char *means; } table[] = {
      {"plain", 5, "plain"}, {"<&>\"\\", 5, "<&>\"\\"}, {"\x01\x1b\x7f\n", 4, "\x01\x1b\x7f\n"},
      {"\xc3\xa9\xf0\x9f\x98\x80", 6, "\xc3\xa9\xf0\x9f\x98\x80"}, {"a\xff" "b", 3, "a\xef\xbf\xbd" "b"},
      {"\xc0\xaf", 2, "\xef\xbf\xbd\xef\xbf\xbd"}, {"\xed\xa0\x80", 3, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
      {"\xe2\x82", 2, "\xef\xbf\xbd\xef\xbf\xbd"}, {"\xf5\x80\x80\x80", 1, "\xef\xbf\xbd"}};
  for (const auto &row : table) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    json_string(f, row.bytes, row.count, JSON_SCRIPT);
    fclose(f);
    cJSON *v = cJSON_Parse(text);
    EXPECT(cJSON_IsString(v) && !strcmp(v->valuestring, row.means) && !strpbrk(text, "<>&") && page_is_text(text), "%s",
           text);
    cJSON_Delete(v);
    free(text);
  }
}
TEST(report_points_stand_for_all_steps,
     "a series of any length is at most 512 points: none is lost, least and greatest stay; what a resumed run makes "
     "again replaces what was there") {
  static ReportRun r;
  for (int steps : {1, 511, 512, 513, 5000, 100000}) {
    report_run_open(&r, "nowhere");
    double least = INFINITY, most = -INFINITY, sum = 0;
    for (int i = 1; i <= steps; i++) {
      char line[256];
      const double loss = i == 77 ? -3 : 1000.0 / i;
      const int n = snprintf(line, sizeof line, "{\"kind\":\"step\",\"step\":%d,\"loss\":%.17g,\"lr\":null}", i, loss);
      report_take(&r, line, (size_t)n);
      least = fmin(least, loss), most = fmax(most, loss), sum += loss;
    }
    double found_least = INFINITY, found_most = -INFINITY, found_sum = 0;
    int count = 0;
    for (int i = 0; i < r.points; i++) {
      const ReportPoint *p = &r.point[REPORT_LOSS][i];
      EXPECT(p->step == 1 + i * r.stride, "point %d starts at step %lld", i, (long long)p->step);
      found_least = fmin(found_least, p->least), found_most = fmax(found_most, p->most);
      found_sum += p->sum, count += p->count;
      EXPECT(!r.point[REPORT_LR][i].count, "null counts");
    }
    EXPECT(r.points <= REPORT_POINTS && r.points > 0 && count == steps && r.step == steps, "%d steps: %d in %d points",
           steps, count, r.points);
    EXPECT(found_least == least && found_most == most && fabs(found_sum - sum) <= 1e-12 * fabs(sum) * steps,
           "%d steps: another range", steps);
  }
  for (int first : {60001, 2}) {
    char line[128];
    int n = snprintf(line, sizeof line, "{\"kind\":\"run\",\"first_step\":%d,\"memory_map\":{}}", first);
    report_take(&r, line, (size_t)n);
    n = snprintf(line, sizeof line, "{\"kind\":\"step\",\"step\":%d,\"loss\":7}", first);
    report_take(&r, line, (size_t)n);
    const ReportPoint *p = &r.point[REPORT_LOSS][r.points - 1];
    EXPECT(p->step <= first && p->step + r.stride > first && p->most >= 7, "step %d is not last", first);
  }
  report_run_close(&r);
}
TEST(report_units_are_bounded,
     "metrics.jsonl with ever new names of units takes no more memory than the largest model; a name that is too long "
     "is one unit") {
  static ReportRun r;
  report_run_open(&r, "nowhere");
  for (int i = 0; i < 3 * REPORT_UNITS_MAX; i++) {
    char line[512];
    const int n = snprintf(line, sizeof line, "{\"kind\":\"step\",\"step\":%d,\"layers\":[{\"unit\":\"%0100d\"},"
                           "{\"unit\":\"u%d\",\"grad_norm\":1}]}", i + 1, 0, i);
    report_take(&r, line, (size_t)n);
  }
  EXPECT(r.units == REPORT_UNITS_MAX, "%d units", r.units);
  EXPECT(!strcmp(r.unit[1].name, "u0") && !strcmp(r.unit[2].name, "u1"), "units '%s', '%s'", r.unit[1].name,
         r.unit[2].name);
  report_run_close(&r);
}
TEST(report_shows_units_of_any_model,
     "of 49 units 12 are drawn, the first and the last included, each with its own numbers; a unit that comes later "
     "starts at its step") {
  static ReportRun r;
  report_run_open(&r, "nowhere");
  for (int step = 1; step <= 1500; step++) {
    static char line[8192];
    int n = snprintf(line, sizeof line, "{\"kind\":\"step\",\"step\":%d,\"loss\":1,\"layers\":[", step);
    for (int u = 0; u < (step < 700 ? 40 : 49); u++)
      n += snprintf(line + n, sizeof line - (size_t)n, "%s{\"unit\":\"u%d\",\"grad_norm\":%d,\"update_ratio\":null}",
                    u ? "," : "", u, 1000 * u + step);
    n += snprintf(line + n, sizeof line - (size_t)n, "]}");
    report_take(&r, line, (size_t)n);
  }
  char *text = NULL;
  size_t bytes = 0;
  FILE *f = open_memstream(&text, &bytes);
  fputc('{', f);
  report_write_units(f, &r);
  fputc('}', f);
  fclose(f);
  cJSON *v = cJSON_Parse(text);
  const cJSON *layers = page_at(v, "layers", NULL), *p;
  REQUIRE(cJSON_GetArraySize(layers) == 12 && page_at(v, "units", NULL)->valuedouble == 49, "%.200s", text);
  for (int i = 0; i < 12; i++) {
    const cJSON *x = cJSON_GetArrayItem(layers, i);
    const int u = atoi(cli_string(x, "unit") + 1);
    EXPECT(u == i * 48 / 11 && !cJSON_GetArraySize(page_at(x, "update_ratio", NULL)), "unit %d is u%d", i, u);
    int steps = 0;
    cJSON_ArrayForEach(p, page_at(x, "grad_norm", NULL)) {       // four steps a point; a late unit's first has one
      const double step = p->child->valuedouble, mean = p->child->next->valuedouble - 1000 * u - step;
      EXPECT(mean == (u >= 40 && step == 697 ? 3 : 1.5), "u%d, step %g: %g", u, step, mean);
      steps++;
    }
    EXPECT(steps == (u < 40 ? 375 : 201), "u%d has %d points", u, steps);
  }
  cJSON_Delete(v);
  free(text);
  report_run_close(&r);
}
TEST(report_page_survives_a_full_disk,
     "a page that cannot be written leaves the old one whole, and is not tried again") {
  static ReportLive live;
  const char line[] = "{\"kind\":\"run\",\"first_step\":1,\"memory_map\":{},\"ranks\":1}\n";
  cli_write(cli_path("metrics.jsonl"), line, strlen(line));
  report_live_open(&live, test_tmp());
  REQUIRE(report_live_write(&live, true, "1"), "%s", strerror(errno));
  int64_t before = 0, after = 0;
  char *old = file_get(cli_path("report.html"), 1 << 24, &before);
  signal(SIGXFSZ, SIG_IGN);
  const struct rlimit most = {4096, 4096};
  setrlimit(RLIMIT_FSIZE, &most);
  EXPECT(!report_live_write(&live, true, "1") && errno == EFBIG, "written, or errno %d", errno);
  EXPECT(report_live_write(&live, true, "1"), "tried again");
  char *now = file_get(cli_path("report.html"), 1 << 24, &after);
  EXPECT(old && now && before == after && !memcmp(old, now, (size_t)before), "the old page is gone");
  EXPECT(access(cli_path("report.html.part"), F_OK), "a part is left");
  free(old);
  free(now);
  report_live_close(&live);
}

// ---- the page as a drawing ------------------------------------------------------------------------------------------
// TEST_TMP/NAME: what a run of so many steps leaves whose first record is that of `like`. Steps first_bad to last_bad
// are not finite.
static void drawn_run(const char *name, const char *like, int steps, int first_bad, int last_bad) {
  char path[600];
  Error error = {};
  CliMetrics m;
  cli_metrics(&m, cli_path(like));
  REQUIRE(m.lines > 1, "no records of %s", like);
  char *record = cJSON_PrintUnformatted(m.line[0]);
  mkdir(cli_path(name), 0777);
  snprintf(path, sizeof path, "%s/metrics.jsonl", cli_path(name));
  FILE *f = fopen(path, "w");
  fprintf(f, "%s\n", record);
  for (int i = 1; i <= steps; i++) {
    const bool bad = i >= first_bad && i <= last_bad;
    fprintf(f, "{\"kind\":\"step\",\"step\":%d,\"lr\":%.17g,\"tokens_per_s\":%d,\"skipped\":%s,", i,
            0.003 + i % 2 * 0x1p-61, 1000 + i % 7, bad ? "true" : "false");      // equal but for rounding
    if (bad) fprintf(f, "\"loss\":null,\"grad_norm\":null}\n{\"kind\":\"not_finite\",\"step\":%d}\n", i);
    else fprintf(f, "\"loss\":%.17g,\"grad_norm\":%.17g}\n", 3 + 7.0 / i, 1.2e-10 + i % 5 * 1e-12);
  }
  fclose(f);
  snprintf(path, sizeof path, "%s/report.html", cli_path(name));
  EXPECT(report_runs(cli_path(name), path, "1", &error), "%s", error.text);
  cJSON_free(record);
  cli_metrics_free(&m);
}
// How many steps of OUT are left out, and of how many.
static int drawn_left_out(const char *out, int *steps) {
  CliMetrics m;
  int left = 0;
  cli_metrics(&m, out);
  *steps = 0;
  for (int i = 0; i < m.lines; i++) {
    *steps += cli_is_kind(m.line[i], "step");
    left += cJSON_IsTrue(page_at(m.line[i], "skipped", NULL));
  }
  cli_metrics_free(&m);
  return left;
}
// Draws TEST_TMP/NAME/report.html of each of `names` with `tool` into NAME/drawn. False: it is not here, or opens no
// page at all.
static bool drawn_with(const char *tool, const char *names) {
  static const char browser[] = "\"${CHROMIUM:-chromium}\" --headless --no-sandbox --disable-gpu "
                                "--disable-dev-shm-usage --user-data-dir=$p/browser --dump-dom";
  CliRun r;
  if (!strcmp(tool, "node"))
    cli_start(&r, "node --version || exit 9; for n in %s; do p=%s/$n; node dev/check_report.js $p/report.html "
              ">$p/drawn 2>&1; done; true", names, test_tmp());
  else
    cli_start(&r, "p=%s; export HOME=$p check=$PWD/dev/check_report.js; echo '<p>it opens</p>' >$p/try.html; "
              "%s file://$p/try.html 2>&1 | grep -q 'it opens' || exit 9; printf '%%s\\n' %s | xargs -P 2 -I@ "
              "sh -c 'p='$p'/@; { cat $p/report.html; echo \"<script>\"; cat $check; echo \"</script>\"; } "
              ">$p/copy.html; %s file://$p/copy.html >$p/drawn 2>$p/said'", test_tmp(), browser, names, browser);
  cli_wait(&r, 4 * CLI_LIMIT_S);
  const bool is = r.code != 9;
  if (is) cli_expect_done(&r, tool);
  cli_free(&r);
  return is;
}
// Makes the pages. left_out: receives what the page of the run SKIPPED must say.
static void drawn_pages(char *left_out, size_t bytes) {
  CliRun r;
  int steps = 0;
  char printed[160];
  CLI_RUN(&r, "cd %s && run='%s %s --save_every -1 --out' && $run one --max_steps 1 --log_layers --save_every 1 && "
          "$run resumed --max_steps 5 --save_every 3 --keep 0 && rm -r resumed/ckpt/step_00000005 && "
          "$run resumed --max_steps 8 --resume auto && $run evaluated --eval_only --resume one/ckpt/step_00000001 && "
          "$run scaled --param_dtype fp16 --loss_scale 1e9 --max_steps 4 && "
          "$run skipped --optimizer sgd --lr 1000 --warmup 0 --schedule constant --on_nan skip --max_steps 30 "
          "--eval_every 5", test_tmp(), cli_program(), cli_small());
  cli_expect_done(&r, "runs");
  const int left = drawn_left_out(cli_path("skipped"), &steps);
  snprintf(left_out, bytes, "%d of %d steps left out: %d not finite", left, steps, left);
  snprintf(printed, sizeof printed, "warning: %d of 30 steps left out, without an update: %d not finite\nfiles: ", left,
           left);
  EXPECT(left > 0 && steps == 30 && strstr(r.text, printed), "%d of %d left out; it printed:\n%.3000s", left, steps,
         r.text);
  EXPECT(strstr(r.text, "warning: 4 of 4 steps left out, without an update: 4 overflows of fp16, for which the loss "
                "scale fell\nfiles: ") && cli_count(r.text, " steps left out") == 2, "it printed:\n%.3000s", r.text);
  cli_free(&r);
  for (int n : {2, 512, 513, 514, 707, 1000, 1027}) {
    char name[16];
    snprintf(name, sizeof name, "of%d", n);
    drawn_run(name, "one", n, 0, -1);
  }
  drawn_run("bad_end", "one", 1031, 900, 1031);
  drawn_run("bad_middle", "one", 30, 2, 29);
  CLI_RUN(&r, "cd %s && %s --report of513,skipped,bad_middle,of2 --out compared", test_tmp(), cli_program());
  cli_expect_done(&r, "compared");
  cli_free(&r);
}
// What `tool` has drawn of a page: without faults, with `has` and without `has_not` among what is read.
static void drawn_expect(const char *tool, const char *page, const char *has, const char *has_not) {
  char path[600];
  int64_t bytes = 0;
  snprintf(path, sizeof path, "%s/drawn", cli_path(page));
  char *text = file_get(path, 1 << 26, &bytes), *faults = text ? strstr(text, "\nfaults: ") : NULL;
  if (text && !faults) faults = strstr(text, "<pre id=\"faults\">faults: ");
  EXPECT(faults && strstr(faults, "faults: none"), "%s by %s: %.2000s", page, tool, faults ? faults : "nothing drawn");
  char *main = text ? strstr(text, "<main") : NULL, *end = main ? strstr(main, "</main>") : faults;
  if (end) *end = 0;
  if (!main) main = text;
  EXPECT(main && strstr(main, has) && !strstr(main, has_not), "%s by %s: no '%s', or '%s', in:\n%.1000s", page, tool,
         has, has_not, main ? main : "");
  free(text);
}
TEST(report_pages_are_drawn,
     "pages of one step, odd and even numbers of steps, resumed, left-out, evaluated and compared runs, drawn by node "
     "and, where it is installed, by Chromium: no NaN, nothing undefined or cut off, one range of steps, a colour for "
     "each line of a legend; steps left out are counted at the top, and at the end of the output") {
  char left_out[128];
  drawn_pages(left_out, sizeof left_out);
  const struct { const char *page, *has, *has_not; } pages[] = {
      {"one", "ended as it should. ", "left out"}, {"resumed", "ended as it should. ", "left out"},
      {"evaluated", "Evaluations", "Learning rate"}, {"skipped", left_out, "ended as it should"},
      {"of707", "707", "left out"}, {"of1000", "1000", "left out"}, {"compared", left_out, "ended as it should"},
      {"scaled", "4 of 4 steps left out: 4 overflows of fp16", "not finite"}, {"of2", "no end", "left out"},
      {"of512", "512", "left out"}, {"of513", "513", "left out"}, {"of514", "514", "left out"},
      {"of1027", "1027", "left out"}, {"bad_end", "132 of 1031 steps left out: 132 not finite", "ended as it should"},
      {"bad_middle", "28 of 30 steps left out: 28 not finite", "ended as it should"}};
  const struct { const char *name; int pages; } tools[] = {{"node", 15}, {"chromium", 7}};     // a browser takes long
  int here = 0;
  for (const auto &tool : tools) {
    char names[512] = "";
    for (int i = 0; i < tool.pages; i++) strcat(strcat(names, " "), pages[i].page);
    if (!drawn_with(tool.name, names)) continue;
    here++;
    for (int i = 0; i < tool.pages; i++) drawn_expect(tool.name, pages[i].page, pages[i].has, pages[i].has_not);
  }
  if (!here) SKIP("neither node nor Chromium is here to draw a page");
}
