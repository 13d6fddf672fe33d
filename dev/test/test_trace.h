// test_trace.h: the timeline of --trace, read back: spans nest, their number is that of the counters, flows lead from a
// reduction to its readers, and the exposed communication that the program reports is what the spans add up to. Clocks
// are measured within their stated error.

// A complete event; times in ns, exact: the file has three digits of a microsecond.
struct TraceSpan { int64_t begin, end, inner; int pid, tid, stage, step; const char *name, *cat; };
struct TraceFile { cJSON *json; TraceSpan *span; int spans; };
static int64_t trace_file_ns(const cJSON *x, const char *key) {
  const cJSON *v = cJSON_GetObjectItemCaseSensitive(x, key);
  EXPECT(cJSON_IsNumber(v), "an event has no %s", key);
  const double ns = v ? v->valuedouble * 1000 : 0;
  EXPECT((int64_t)ns == llround(ns), "%s is %.17g us: cut off, as Perfetto does, another nanosecond", key, ns * 1e-3);
  return llround(ns);
}
static int trace_file_int(const cJSON *x, const char *key, int otherwise) {
  const cJSON *v = cJSON_GetObjectItemCaseSensitive(x, key);
  return v ? v->valueint : otherwise;
}
static int trace_span_order(const void *a, const void *b) {      // by track and begin, the longest first
  const TraceSpan *x = (const TraceSpan *)a, *y = (const TraceSpan *)b;
  if (x->pid != y->pid || x->tid != y->tid) return x->pid != y->pid ? x->pid - y->pid : x->tid - y->tid;
  if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
  return x->end != y->end ? (x->end > y->end ? -1 : 1) : 0;
}
static int trace_file_rank(const cJSON *e) { return trace_file_int(e, "pid", -1) / TRACE_PIDS - 1; }
static int trace_file_track(const cJSON *e) { return trace_file_int(e, "tid", -1) % TRACE_PIDS - 1; }
static void trace_file_open(TraceFile *t, const char *path) {
  int64_t bytes = 0;
  char *text = file_get(path, 1 << 26, &bytes);
  *t = TraceFile{};
  REQUIRE(text, "cannot read %s", path);
  t->json = cJSON_Parse(text);
  free(text);
  const cJSON *events = cJSON_GetObjectItemCaseSensitive(t->json, "traceEvents"), *e;
  REQUIRE(cJSON_IsArray(events), "%s is no trace", path);
  t->span = (TraceSpan *)calloc((size_t)cJSON_GetArraySize(events), sizeof(TraceSpan));
  cJSON_ArrayForEach(e, events) {
    if (strcmp(cli_string(e, "ph"), "X")) continue;
    const cJSON *args = cJSON_GetObjectItemCaseSensitive(e, "args");
    const int64_t begin = trace_file_ns(e, "ts"), end = begin + trace_file_ns(e, "dur");
    EXPECT(end >= begin && begin >= 0, "%s takes %lld ns from %lld on", cli_string(e, "name"),
           (long long)(end - begin), (long long)begin);
    t->span[t->spans++] = TraceSpan{begin, end, 0, trace_file_rank(e), trace_file_track(e),
                                    trace_file_int(args, "stage", -1), trace_file_int(args, "step", -1),
                                    cli_string(e, "name"), cli_string(e, "cat")};
  }
  qsort(t->span, (size_t)t->spans, sizeof(TraceSpan), trace_span_order);
  // What Perfetto asks for beyond the format: a thread has a number of its own among all, and a flow a hexadecimal one.
  cJSON_ArrayForEach(e, events) {
    const int pid = trace_file_int(e, "pid", 0), tid = trace_file_int(e, "tid", pid + 1);
    const char *id = cli_string(e, "id"), ph = cli_string(e, "ph")[0];
    EXPECT(pid > 0 && tid > pid && (tid - 1) / TRACE_PIDS == pid / TRACE_PIDS, "%s has process %d and thread %d",
           cli_string(e, "name"), pid, tid);
    EXPECT((ph == 's' || ph == 'f') == (id[0] != 0) && strlen(id) <= 16 && strspn(id, "0123456789abcdef") == strlen(id),
           "an event %c has the id '%s'", ph, id);
  }
}
static void trace_file_close(TraceFile *t) {
  cJSON_Delete(t->json);
  free(t->span);
}
// Spans of a track are inside each other or apart. Notes for each what its children take.
static void trace_expect_nested(TraceFile *t) {
  TraceSpan *open[64];
  int depth = 0;
  for (int i = 0; i < t->spans; i++) {
    TraceSpan *x = &t->span[i];
    if (i && (x->pid != x[-1].pid || x->tid != x[-1].tid)) depth = 0;
    while (depth && open[depth - 1]->end <= x->begin) depth--;
    if (depth) {
      EXPECT(x->end <= open[depth - 1]->end, "rank %d: %s, %lld to %lld, overlaps %s, %lld to %lld", x->pid, x->name,
             (long long)x->begin, (long long)x->end, open[depth - 1]->name, (long long)open[depth - 1]->begin,
             (long long)open[depth - 1]->end);
      open[depth - 1]->inner += x->end - x->begin;
    }
    REQUIRE(depth < 64, "spans nest deeper than 64");
    open[depth++] = x;
  }
}
static int trace_count(const TraceFile *t, int pid, int tid, const char *name) {
  int n = 0;
  for (int i = 0; i < t->spans; i++) {
    const size_t length = strcspn(t->span[i].name, ",");         // "reduction, block 1"
    n += t->span[i].pid == pid && t->span[i].tid == tid && strlen(name) == length &&
         !strncmp(t->span[i].name, name, length);
  }
  return n;
}
// Whether a span of the track contains this time.
static bool trace_lies_in_span(const TraceFile *t, int pid, int tid, int64_t at) {
  for (int i = 0; i < t->spans; i++) {
    const TraceSpan *x = &t->span[i];
    if (x->pid == pid && x->tid == tid && x->begin <= at && at <= x->end) return true;
  }
  return false;
}
// Each flow has one begin and one end, which comes later, both in spans. Returns how many start at this rank's
// reductions. within_ns: how much earlier the end may be by errors of clocks.
static int trace_expect_flows(const TraceFile *t, int pid, double within_ns) {
  const cJSON *events = cJSON_GetObjectItemCaseSensitive(t->json, "traceEvents"), *s, *f;
  int from_reductions = 0;
  cJSON_ArrayForEach(s, events) {
    const bool begins = !strcmp(cli_string(s, "ph"), "s"), ends = !strcmp(cli_string(s, "ph"), "f");
    if ((!begins && !ends) || trace_file_rank(s) != pid) continue;
    int others = 0;
    EXPECT(trace_lies_in_span(t, pid, trace_file_track(s), trace_file_ns(s, "ts")),
           "the flow %s of rank %d is in no span", cli_string(s, "id"), pid);
    cJSON_ArrayForEach(f, events) {
      if (strcmp(cli_string(f, "ph"), begins ? "f" : "s") || strcmp(cli_string(f, "id"), cli_string(s, "id"))) continue;
      const int64_t later = trace_file_ns(f, "ts") - trace_file_ns(s, "ts");
      EXPECT((double)(begins ? later : -later) >= -within_ns, "the flow %s ends before it starts", cli_string(s, "id"));
      others++;
    }
    EXPECT(others == 1, "the flow %s of rank %d has %d other ends", cli_string(s, "id"), pid, others);
    from_reductions += begins && trace_file_track(s) == TRACK_REDUCTION;
  }
  return from_reductions;
}
// Adds up, in ms, what the spans of a category take on the computing threads without their children; stage -2: all.
static double trace_own_ms(const TraceFile *t, const char *cat, int stage) {
  double ns = 0;
  for (int i = 0; i < t->spans; i++) {
    const TraceSpan *x = &t->span[i];
    if (x->tid == TRACK_COMPUTES && !strcmp(x->cat, cat) && (stage == -2 || x->stage == stage))
      ns += (double)(x->end - x->begin - x->inner);
  }
  return ns * 1e-6;
}
static void trace_expect_ms(const char *what, const cJSON *of, const char *key, double ms) {
  const cJSON *v = cJSON_GetObjectItemCaseSensitive(of, key);
  EXPECT(v && fabs(v->valuedouble - ms) <= 1e-9 * (1 + ms), "%s: %s is %.9f, the spans add up to %.9f", what, key,
         v ? v->valuedouble : -1, ms);
}
// The last line of this kind in metrics.jsonl, and the sum of a counter over the steps first to last.
static const cJSON *trace_metrics_line(const CliMetrics *m, const char *kind) {
  const cJSON *found = NULL;
  for (int i = 0; i < m->lines; i++) if (cli_is_kind(m->line[i], kind)) found = m->line[i];
  return found;
}
static int trace_metrics_sum(const CliMetrics *m, const char *key, int first, int last) {
  int sum = 0;
  for (int i = 0; i < m->lines; i++) {
    const int step = trace_file_int(m->line[i], "step", 0);
    if (cli_is_kind(m->line[i], "step") && step >= first && step <= last) sum += trace_file_int(m->line[i], key, 0);
  }
  return sum;
}
// A run's trace of steps first to last, with `reads` ranks that read each reduction of another.
struct TraceWant { const char *what; int ranks, first, last, microbatches, shards; };
static void trace_expect(const TraceWant *w, const char *file, const char *out) {
  static TraceFile t;
  CliMetrics m;
  cli_metrics(&m, out);
  trace_file_open(&t, file);
  trace_expect_nested(&t);
  const int steps = w->last - w->first + 1, L = 2, gathers = trace_metrics_sum(&m, "gathers", w->first, w->last);
  const int reductions = trace_metrics_sum(&m, "reductions", w->first, w->last);
  for (int r = 0; r < w->ranks; r++) {
    const struct { const char *name; int tid, count; } want[] = {
        {"step", 0, steps}, {"forward", 0, steps * w->microbatches}, {"backward", 0, steps * w->microbatches},
        {"update", 0, steps}, {"attention_forward", 0, steps * w->microbatches * L},
        {"attention_backward", 0, steps * w->microbatches * L}, {"step_decide", 0, steps},
        {"reduction", TRACK_REDUCTION, reductions}};
    for (const auto &x : want)
      EXPECT(trace_count(&t, r, x.tid, x.name) == x.count, "%s, rank %d: %d spans of %s, must be %d", w->what, r,
             trace_count(&t, r, x.tid, x.name), x.name, x.count);
    int in_slots = 0;
    for (int k = 0; k < L + 1; k++) in_slots += trace_count(&t, r, TRACK_SLOTS + k, "gather");
    EXPECT(in_slots == gathers, "%s, rank %d: %d gathers, the counters say %d", w->what, r, in_slots, gathers);
    const int flows = trace_expect_flows(&t, r, 0);
    EXPECT(flows == reductions * (w->shards - 1), "%s, rank %d: %d flows from %d reductions", w->what, r, flows,
           reductions);
  }
  for (int i = 0; i < t.spans; i++)
    EXPECT(t.span[i].step >= w->first && t.span[i].step <= w->last, "%s: %s of step %d", w->what, t.span[i].name,
           t.span[i].step);
  const cJSON *line = trace_metrics_line(&m, "trace");
  REQUIRE(line, "%s: metrics.jsonl has no trace", w->what);
  const double mean = 1.0 / (w->ranks * steps);
  double all = 0, step = 0;
  for (const char *cat : {"gather", "wait", "sums", "exchange", "messages"}) all += trace_own_ms(&t, cat, -2) * mean;
  for (int i = 0; i < t.spans; i++)
    if (!strcmp(t.span[i].name, "step")) step += (double)(t.span[i].end - t.span[i].begin) * 1e-6 * mean;
  trace_expect_ms(w->what, line, "exposed_ms", all);
  trace_expect_ms(w->what, line, "step_ms", step);
  trace_expect_ms(w->what, line, "exposed_percent", 100 * all / step);
  const cJSON *stages = cJSON_GetObjectItemCaseSensitive(line, "stages"), *s;
  EXPECT(cJSON_GetArraySize(stages) == L + 1, "%s: %d stages", w->what, cJSON_GetArraySize(stages));
  cJSON_ArrayForEach(s, stages) {
    const int stage = trace_file_int(s, "stage", -1);
    trace_expect_ms(w->what, s, "gather_ms", trace_own_ms(&t, "gather", stage) * mean);
    trace_expect_ms(w->what, s, "sums_ms", trace_own_ms(&t, "sums", stage) * mean);
    trace_expect_ms(w->what, s, "wait_ms", trace_own_ms(&t, "wait", stage) * mean);
  }
  EXPECT(trace_file_int(line, "dropped", -1) == 0, "%s: events were dropped", w->what);
  trace_file_close(&t);
  cli_metrics_free(&m);
}

TEST(trace_is_what_the_counters_say,
     "--trace on 1 to 4 ranks, in place, by gathers, by messages, with replicas: valid, spans nest, gathers and "
     "reductions are those counted, flows lead forward in time, exposed communication is what the spans add up to, and "
     "the losses are those without a trace") {
  if (cli_on_gpu()) SKIP("--comm mpi takes no --trace on GPUs");
  static const struct { TraceWant want; const char *options; } table[] = {
      {{"one rank", 1, 2, 3, 4, 1}, "--trace_steps 2:3"},
      {{"in place", 2, 3, 5, 2, 2}, ""},
      {{"gathers", 4, 2, 2, 1, 4}, "--shm copy --trace_steps 2:2 --eval_every 2 --save_every 2"},
      {{"messages", 2, 5, 6, 2, 2}, "--shm off --trace_steps 5:9 --save_async --save_every 5"},
      {{"replicas", 4, 1, 2, 1, 2}, "--mesh 2x2 --shm copy --trace_steps 1:2 --accumulate local"}};
  CliRun r;
  char file[700];
  const char *options = "--batch_size 2 --global_batch 8 --max_steps 6 --eval_every -1 --save_every -1";
  CLI_RUN(&r, "%s %s %s --out %s", cli_ranks(0), cli_small(), options, cli_path("plain"));
  cli_expect_done(&r, "without a trace");
  cli_free(&r);
  for (const auto &row : table) {
    const TraceWant *w = &row.want;
    snprintf(file, sizeof file, "%s", cli_path("t.json"));
    CLI_RUN(&r, "rm -rf %s && %s %s %s --trace %s %s --out %s", cli_path("out"),
            cli_ranks(w->ranks == 1 ? 0 : w->ranks), cli_small(), options, file, row.options, cli_path("out"));
    cli_expect_done(&r, w->what);
    EXPECT(cli_count(r.text, "exposed communication: ") == 1 && cli_count(r.text, "trace: ") == 1,
           "%s: it printed:\n%s", w->what, r.text);
    cli_free(&r);
    trace_expect(w, file, cli_path("out"));
    if (!strstr(row.options, "every")) cli_expect_same_series(w->what, cli_path("plain"), cli_path("out"), 6);
  }
}
TEST(trace_cannot_be_where_it_would_not_be_true,
     "--trace is rejected by name: with --offload, without training, of steps that the run does not have, into no "
     "directory") {
  static const CliRejection table[] = {
      {0, "--trace t --device cuda --offload optimizer", 2, "--trace with --offload optimizer: on a GPU a trace is "
       "what the device did, and the host updates; leave one of them out, or use nsys, whose ranges this program "
       "names"},
      {0, "--trace_steps 2:3", 2, "--trace_steps needs --trace FILE"},
      {0, "--trace=", 2, "--trace is empty, ..."},
      {2, "--trace t --trace_steps 3:2", 2, "--trace_steps '3:2' is not first:last, like 3:5, with 1 <= first <= last "
       "<= 1000000"},
      {0, "--trace t --trace_steps 0:2", 2, "--trace_steps '0:2' is not first:last, like 3:5, with 1 <= first <= last "
       "<= 1000000"},
      {2, "--trace t --max_steps 2", 2, "--trace_steps 3:5: this run has 2 steps; choose earlier ones"},
      {2, "--trace /nowhere/t --max_steps 5", 3, "--trace /nowhere/t cannot be written: No such file or directory"}};
  if (cli_on_gpu()) SKIP("rejections of a CPU");
  cli_expect_rejections(table, sizeof table / sizeof *table);
}

TEST(trace_writes_over_nothing_else,
     "--trace into a file that is no trace of this program, or no file: rejected before anything is taken, and what is "
     "there stays; an empty file is taken, an earlier trace is set aside, and a file that the run itself writes is "
     "rejected; steps that a resumed run no longer has are rejected before weights are read") {
  CliRun r;
  char file[600], options[1400], line[1400], out[600];
  snprintf(file, sizeof file, "%s", cli_path("t.json"));
  snprintf(out, sizeof out, "%s", cli_path("out"));
  cli_write(file, "{\"traceEvents\":[]}", 18);
  mkdir(cli_path("d"), 0777);
  for (const char *name : {"t.json", "d"}) {
    snprintf(options, sizeof options, "--max_steps 6 --trace %s/%s", test_tmp(), name);
    snprintf(line, sizeof line, *name == 't' ? "--trace %s is there, and no trace of this program: name another file"
                                             : "--trace %s is a directory: name a file", cli_path(name));
    const CliRejection rejections[] = {{0, options, 2, line}, {2, options, 2, line}};
    cli_expect_rejections(rejections, *name == 't' ? 2 : 1);
  }
  EXPECT(access(out, F_OK), "a rejected run has made %s", out);
  CLI_RUN(&r, "grep -qx '{\"traceEvents\":\\[\\]}' %s && : >%s && %s %s --global_batch 4 --max_steps 4 --save_every 2 "
          "--trace %s --out %s && cp %s %s.first", file, file, cli_ranks(0), cli_small(), file, out, file, file);
  cli_expect_done(&r, "into an empty file");
  EXPECT(cli_count(r.text, "trace: ") == 1 && !strstr(r.text, "it is now"), "it printed:\n%.3000s", r.text);
  cli_free(&r);
  CLI_RUN(&r, "%s %s --resume --max_steps 6 --trace %s --out %s", cli_ranks(2), cli_small(), file, out);
  cli_expect_rejection(&r, "two steps left", 2, "--trace_steps 3:5: this run has 2 steps; choose earlier ones");
  cli_free(&r);
  CLI_RUN(&r, "%s %s --resume --max_steps 6 --trace_steps 1:9 --trace %s --out %s && cmp %s.first %s.1", cli_ranks(2),
          cli_small(), file, out, file, file);
  cli_expect_done(&r, "a trace is there");
  snprintf(line, sizeof line, "warning: %s is of an earlier run; it is now %s.1", file, file);
  EXPECT(cli_count(r.text, line) == 1 && cli_count(r.text, "trace: ") == 1 &&
             file_has_mark(file, trace_file_head, true), "it printed:\n%.3000s", r.text);
  cli_free(&r);
  CLI_RUN(&r, "%s %s --max_steps 6 --trace %s.new/metrics.jsonl --out %s.new", cli_ranks(0), cli_small(), out, out);
  snprintf(line, sizeof line, "--trace %s.new/metrics.jsonl is where this run writes something else: name another file",
           out);
  cli_expect_rejection(&r, "a trace into metrics.jsonl", 2, line);
  cli_free(&r);
}
TEST(cli_writes_over_nothing_foreign,
     "OUT with a report.html, options.txt, model.safetensors or model.gguf of something else, and no sign of a run: "
     "rejected by name, and they stay; a report of runs is not written over another page") {
  CliRun r;
  char options[700], line[900], out[600];
  snprintf(out, sizeof out, "%s", cli_path("other"));
  mkdir(out, 0777);
  for (const char *name : {"report.html", "options.txt", "model.safetensors", "model.gguf"}) {
    char path[700];
    snprintf(path, sizeof path, "%s/%s", out, name);
    cli_write(path, "mine", 4);
    snprintf(options, sizeof options, "--max_steps 1 --save_model --export_gguf f16 --out %s", out);
    snprintf(line, sizeof line, "--out %s has a %s, and nothing tells that a run of this program has written it: name "
             "another directory", out, name);
    const CliRejection rejections[] = {{0, options, 2, line}};
    cli_expect_rejections(rejections, 1);
    CLI_RUN(&r, "grep -qx mine %s && [ \"$(ls -A %s)\" = %s ] && rm %s", path, out, name, path);
    EXPECT(!r.code, "%s was written, or something beside it: %s", path, r.text);
    cli_free(&r);
  }
  CLI_RUN(&r, "%s %s --max_steps 2 --save_model --out %s && echo mine >%s/report.html && %s %s --max_steps 2 --out %s",
          cli_ranks(0), cli_small(), out, out, cli_ranks(0), cli_small(), out);
  cli_expect_done(&r, "a run's own directory");
  cli_free(&r);
  CLI_RUN(&r, "cd %s && echo mine >report.html && %s --report other; code=$?; grep -qx mine report.html && "
          "rm report.html && %s --report other && %s --report other && [ $code -eq 2 ]", test_tmp(), cli_program(),
          cli_program(), cli_program());
  EXPECT(!r.code && strstr(r.text, "report.html is there, and no report of this program: --out names another"),
         "exit code %d: %s", r.code, r.text);
  cli_free(&r);
}

// ---- on a GPU: the emulated device, whose clock is a day ahead of the host's
struct TraceGpu { TraceFound found; double exposed_ms[64]; double loss[6]; };
static const char *trace_gpu_file() { return cli_path("gpu.json"); }
// Six steps, the third to the fifth traced; options `extra`. x: of rank 0, but for the losses.
static void trace_gpu_run(TraceGpu *x, const Corpus *corpus, int world, const char *comm, const char *extra) {
  static Trainer t;
  Options o;
  Error error = {};
  test_options(&o, world, "%s %s", schedule_shapes, extra);
  option_pick(&o, OPT_comm, comm);
  trainer_open(&t, &o, corpus, MPI_COMM_WORLD, schedule_device(&ops_streams), 1);
  for (int s = 0; s < 6; s++) {
    const bool traced = trace_wants(t.run.trace, t.run.step);
    if (traced) trace_step_begin(t.run.trace, &t.ctx, t.fsdp, t.run.step);
    x->loss[s] = train_step(&t, false).loss;
    if (traced) trace_step_end(t.run.trace, &t.ctx, t.fsdp);
  }
  EXPECT(!o.trace[0] || (o.graph == OPT_graph_off) == !t.run.trace->graph, "%s: %s graph of a traced step", extra,
         t.run.trace->graph ? "a" : "no");
  if (trace_finish(t.run.trace, &t.ctx, t.fsdp, &x->found, &error) && !t.fsdp->mesh.rank) {
    EXPECT(!error.text[0] && !x->found.dropped, "%s: %s, %lld events dropped", extra, error.text,
           (long long)x->found.dropped);
    memcpy(x->exposed_ms, x->found.exposed_ms, sizeof(double) * (size_t)(EXPOSED_PARTS * t.fsdp->lay.stages));
    memcpy(x->exposed_ms + 32, x->found.common_ms, sizeof(double) * TRACE_COMMONS);
  }
  trainer_close(&t);
}
static int trace_same_span(const TraceFile *t, const TraceSpan *x) {
  int n = 0;
  for (int i = 0; i < t->spans; i++) {
    const TraceSpan *y = &t->span[i];
    n += x->pid == y->pid && x->tid == y->tid && x->stage == y->stage && x->step == y->step &&
         !strcmp(x->name, y->name) && !strcmp(x->cat, y->cat);
  }
  return n;
}
static void trace_gpu_expect(const TraceGpu *x, TraceFile *t, int world, int microbatches, const char *what) {
  const int L = 4, steps = 3;
  const double mean = 1.0 / (world * steps), within_ns = 2e3 * x->found.within_us + 2;
  trace_expect_nested(t);
  for (int r = 0; r < world; r++) {
    const int passes = steps * microbatches, reductions = passes * (L + 1);
    const struct { const char *name; int tid, count; } want[] = {
        {"step", 0, steps}, {"forward", 0, passes}, {"backward", 0, passes}, {"update", 0, steps},
        {"attention_forward", 0, passes * L}, {"attention_backward", 0, passes * L}, {"step_decide", 0, steps},
        {"reduction", TRACK_REDUCTION, reductions}, {"exchange of losses and norm", 0, steps}};
    for (const auto &k : want)
      EXPECT(trace_count(t, r, k.tid, k.name) == k.count, "%s, rank %d: %d spans of %s, must be %d", what, r,
             trace_count(t, r, k.tid, k.name), k.name, k.count);
    // Two slots: forward gathers the root and every block, backward all but the last two blocks again.
    int gathers = 0;
    for (int k = 0; k < 3; k++) gathers += trace_count(t, r, TRACK_SLOTS + k, "gather");
    const int all = world > 1 ? steps * (L + 1) + steps * (2 * microbatches - 1) * (L - 2) : 0;
    EXPECT(gathers == all, "%s, rank %d: %d gathers, must be %d", what, r, gathers, all);
    EXPECT(world == 1 || trace_count(t, r, TRACK_REDUCTION, "accumulate") >= reductions, "%s, rank %d: %d sums on the "
           "reductions' stream", what, r, trace_count(t, r, TRACK_REDUCTION, "accumulate"));
    // From each reduction to the other ranks; with a stream of its own also from each step's last sum to its update.
    const int flows = trace_expect_flows(t, r, within_ns), sums = world > 1 ? steps * (L + 1) : 0;
    EXPECT(flows == reductions * (world - 1) + sums, "%s, rank %d: %d flows, must be %d", what, r, flows,
           reductions * (world - 1) + sums);
  }
  double step = 0;
  for (int i = 0; i < t->spans; i++)
    if (!strcmp(t->span[i].name, "step")) step += (double)(t->span[i].end - t->span[i].begin) * 1e-6 * mean;
  EXPECT(fabs(step - x->found.step_ms) <= 1e-9 * step, "%s: a step of %.9f ms, spans %.9f", what, x->found.step_ms,
         step);
  static const char *const cats[EXPOSED_PARTS] = {"gather", "wait", "sums"};
  for (int s = 0; s <= L; s++) for (int i = 0; i < EXPOSED_PARTS; i++) {
    double ms = 0;
    for (int k = 0; k < t->spans; k++) {         // waits of no stage stand with it, too
      const TraceSpan *y = &t->span[k];
      if (y->tid == TRACK_COMPUTES && y->stage == s && !strcmp(y->cat, cats[i]) && strcmp(y->name, "join reductions"))
        ms += (double)(y->end - y->begin - y->inner) * 1e-6 * mean;
    }
    EXPECT(fabs(ms - x->exposed_ms[EXPOSED_PARTS * s + i]) <= 1e-9 * (1 + ms), "%s, stage %d: %s %.9f ms, spans %.9f",
           what, s, cats[i], x->exposed_ms[EXPOSED_PARTS * s + i], ms);
  }
  const double exchange = trace_own_ms(t, "exchange", -2) * mean;
  EXPECT(fabs(exchange - x->exposed_ms[32 + COMMON_EXCHANGE]) <= 1e-9 * (1 + exchange), "%s: exchange %.9f ms, spans "
         "%.9f", what, x->exposed_ms[32 + COMMON_EXCHANGE], exchange);
}
// Eagerly and replayed: the same losses as without a trace, the same spans.
static void trace_gpu_case(int world, const char *comm, const char *extra) {
  static Corpus corpus;
  TraceGpu plain, eager, replayed;
  TraceFile a, b;
  char options[700];
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  test_corpus(&corpus, 101, 12 * 7 * 6 + 1, 60);
  trace_gpu_run(&plain, &corpus, world, comm, extra);
  snprintf(options, sizeof options, "%s --graph off --trace %s", extra, trace_gpu_file());
  trace_gpu_run(&eager, &corpus, world, comm, options);
  if (!rank) trace_file_open(&a, trace_gpu_file());
  MPI_Barrier(MPI_COMM_WORLD);
  snprintf(options, sizeof options, "%s --trace %s", extra, trace_gpu_file());
  trace_gpu_run(&replayed, &corpus, world, comm, options);
  for (int s = 0; s < 6; s++)
    EXPECT(plain.loss[s] == eager.loss[s] && plain.loss[s] == replayed.loss[s], "%s, step %d: losses %.17g, %.17g, "
           "%.17g", extra, s, plain.loss[s], eager.loss[s], replayed.loss[s]);
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
  if (rank) return;
  trace_file_open(&b, trace_gpu_file());
  trace_gpu_expect(&eager, &a, world, 12 / world, "eager");
  trace_gpu_expect(&replayed, &b, world, 12 / world, "replayed");
  EXPECT(a.spans == b.spans && a.spans > 100, "%d spans eager, %d replayed", a.spans, b.spans);
  for (int i = 0; i < a.spans; i++)
    EXPECT(trace_same_span(&a, &a.span[i]) == trace_same_span(&b, &a.span[i]), "step %d, rank %d, track %d: %s, stage "
           "%d: %d times eager, %d replayed", a.span[i].step, a.span[i].pid, a.span[i].tid, a.span[i].name,
           a.span[i].stage, trace_same_span(&a, &a.span[i]), trace_same_span(&b, &a.span[i]));
  trace_file_close(&a);
  trace_file_close(&b);
}
TEST_MPI(trace_of_a_gpu, 1,
         "--trace on an emulated GPU of one rank: stamps of the device become spans that nest and have the counters' "
         "numbers, alike eagerly and replayed, with the losses of a run without a trace") {
  if (!&ops_streams) SKIP("this test program was linked without dev/cuda_emu");
  trace_gpu_case(1, "self", "");
}
TEST_MPI(trace_of_gpus, 2,
         "the same on two ranks over NCCL; exposed communication is what the waits of the model's stream add up to, "
         "and flows lead to the sums; --comm mpi is rejected there") {
  if (!&ops_streams) SKIP("this test program was linked without dev/cuda_emu");
  trace_gpu_case(2, "nccl", "");
  static Corpus corpus;
  static Trainer t;
  Options o;
  Error error = {};
  test_corpus(&corpus, 101, 12 * 7 * 6 + 1, 60);
  test_options(&o, 2, "%s --trace %s", schedule_shapes, trace_gpu_file());
  o.comm = OPT_comm_mpi;
  trainer_open(&t, &o, &corpus, MPI_COMM_WORLD, schedule_device(&ops_streams), 1);
  t.run.steps_total = 6;
  trace_check(&t.run, 0, &error);
  EXPECT(strstr(error.text, "--trace with --comm mpi on GPUs: "), "it says: %s", error.text);
  trainer_close(&t);
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}

static int64_t trace_shift_ns;
static int64_t trace_shifted() { return now_ns() + trace_shift_ns; }
TEST_MPI(trace_clocks_are_measured, 3,
         "clocks that are hours ahead or behind are measured within half of a message's way there and back, and a time "
         "of theirs becomes rank 0's within that") {
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  TraceClock a[3], b[3];
  const int64_t shift[3] = {0, 7200000000123, -3600000000456};
  trace_shift_ns = shift[rank];
  trace_clocks(MPI_COMM_WORLD, a, trace_shifted, NULL);
  trace_clocks(MPI_COMM_WORLD, b, trace_shifted, NULL);
  for (int r = 0; r < 3 && !rank; r++)
    for (const TraceClock *c : {&a[r], &b[r]})
      EXPECT(fabs(c->ahead_ns - (double)shift[r]) <= c->within_ns + 1 && c->within_ns < 1e9,
             "rank %d: %.0f ns ahead within %.0f, is %lld", r, c->ahead_ns, c->within_ns, (long long)shift[r]);
  const int like[3] = {0, 1, 1};                 // the third rank has the second one's clock, and is not asked
  trace_clocks(MPI_COMM_WORLD, a, trace_shifted, like);
  EXPECT(rank || (a[2].ahead_ns == a[1].ahead_ns && fabs(a[2].ahead_ns - (double)shift[1]) <= a[1].within_ns + 1),
         "rank 2 has another clock than rank 1");
  // A clock that runs fast by a thousandth: in the middle between two measurements it is right again.
  const TraceClock early = {1000, 0, 0}, late = {2000, 0, 1e6};
  for (int64_t at : {-500, 0, 250000, 500000, 1000000, 1500000}) {
    const double ahead = 1000 + 1000 * fmin(1, fmax(0, (double)at * 1e-6));
    const int64_t back = trace_to_rank0(&early, &late, at + llround(ahead));
    EXPECT(llabs(back - at) <= 2, "%lld became %lld", (long long)at, (long long)back);
  }
}
TEST(trace_without_room_says_so, "events for which there is no room are counted, and none is written over") {
  static Trace x;
  TraceEvent few[3] = {};
  memset(&x, 0, sizeof x);
  x.event = few, x.room = 2;
  for (int i = 0; i < 5; i++) trace_add(&x, TRACE_OP, i, 0, i, i + 1, 0, PART_OF_MODEL);
  EXPECT(x.count == 2 && x.dropped == 3 && few[1].number == 1 && !few[2].end_ns, "%lld events, %lld dropped",
         (long long)x.count, (long long)x.dropped);
}
TEST_MPI(trace_of_gpus_shows_sums_back_to_replicas, 2,
         "replicas over NCCL: the way back of each unit's sum is a span on the stream of reductions, one a unit and "
         "step") {
  if (!&ops_streams) SKIP("this test program was linked without dev/cuda_emu");
  static Corpus corpus;
  TraceGpu run;
  TraceFile t;
  char options[700];
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  test_corpus(&corpus, 101, 12 * 7 * 6 + 1, 60);
  snprintf(options, sizeof options, "--strategy no_shard --trace %s", trace_gpu_file());
  trace_gpu_run(&run, &corpus, 2, "nccl", options);
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
  if (rank) return;
  trace_file_open(&t, trace_gpu_file());
  trace_expect_nested(&t);
  for (int r = 0; r < 2; r++) {
    const int found = trace_count(&t, r, TRACK_REDUCTION, "sum back to replicas");
    EXPECT(found == 3 * 5, "rank %d: %d spans of sums that go back, must be %d", r, found, 3 * 5);
  }
  trace_file_close(&t);
}
