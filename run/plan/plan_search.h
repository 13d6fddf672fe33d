// plan_search.h: --plan search plans every valid combination of the options that decide how a training is sharded, cut
// into microbatches, recomputed and stored, and prints those that fit, fastest first. docs/plan.md is its page.
//
//   1 axes      what may vary: options that were not given
//   2 planning  memory and step time of a combination, if possible estimated from models with fewer blocks
//   3 search    plans all combinations, on all cores; those that are shown once more, with all blocks
//   4 printing; plan_main: --plan, called before MPI starts
//
// Options that were given stay as they are, and so do the sequences of a step, so that all rows train the same, except
// for --dtype, which changes results. Offloading is tried only if nothing fits without: it is never faster.
#pragma once
#include "fork_work.h"
#include "plan_report.h"
#include <malloc.h>

// ================================================================================================ 1 axes
// One value of an axis: options and the values that it sets them to. Without options it sets nothing.
enum { SEARCH_SETTINGS = 4, SEARCH_VALUES_MAX = 512, SEARCH_TEXT_BYTES = 24 };
struct SearchSetting { int option; char text[SEARCH_TEXT_BYTES]; };
struct SearchValue { SearchSetting set[SEARCH_SETTINGS]; int settings; };
struct SearchAxis { SearchValue value[SEARCH_VALUES_MAX]; int values; };
enum SearchAxisName { AXIS_SHARDING, AXIS_BATCH, AXIS_ACCUMULATE, AXIS_RECOMPUTE, AXIS_DTYPE, AXIS_OFFLOAD, AXES };

static inline SearchValue *search_value(SearchAxis *a) {
  CHECK(a->values < SEARCH_VALUES_MAX, "more than %d values of a search", (int)SEARCH_VALUES_MAX);
  a->value[a->values] = SearchValue{};
  return &a->value[a->values++];
}
__attribute__((format(printf, 3, 4))) static inline void search_set(SearchValue *v, int option, const char *fmt, ...) {
  SearchSetting *s = &v->set[v->settings++];
  va_list ap;
  va_start(ap, fmt);
  s->option = option;
  vsnprintf(s->text, sizeof s->text, fmt, ap);
  va_end(ap);
}
// Adds a mesh, with --reshard_after_forward ("": not set) and --gather_slots (0: not set, where it has no effect).
static inline void search_add_sharding(SearchAxis *a, const char *strategy, int R, int S, const char *reshard,
                                       int slots) {
  SearchValue *v = search_value(a);
  search_set(v, OPT_strategy, "%s", strategy);
  if (R > 1 && S > 1) search_set(v, OPT_mesh, "%dx%d", R, S);
  if (reshard[0]) search_set(v, OPT_reshard_after_forward, "%s", reshard);
  if (slots) search_set(v, OPT_gather_slots, "%d", slots);
}
enum { SEARCH_SLOTS_LEAST = 2, SEARCH_SLOTS_MAX = 4 };
// All meshes R x S of the ranks, with the values of --reshard_after_forward and --gather_slots that are worth a plan.
static inline void search_shardings(SearchAxis *a, int world, int per_host) {
  for (int S = world; S >= 1; S--) {
    if (world % S) continue;
    const char *strategy = S == world ? "full_shard" : S == 1 ? "no_shard" : "hybrid_shard";
    const int R = world / S;
    char kept[16] = "";
    if (per_host > 1 && S % per_host == 0 && S > per_host) snprintf(kept, sizeof kept, "%d", per_host);
    if (S == 1) { search_add_sharding(a, strategy, R, S, "", 0); continue; }
    for (int K = SEARCH_SLOTS_LEAST; K <= SEARCH_SLOTS_MAX; K++) {
      search_add_sharding(a, strategy, R, S, "", K);
      if (kept[0]) search_add_sharding(a, strategy, R, S, kept, K);
    }
    search_add_sharding(a, strategy, R, S, "off", 0);
  }
  if (world > 1) search_add_sharding(a, "zero1", 1, world, "", 0);
  SearchValue *v = search_value(a);              // the whole model as one FSDP unit
  search_set(v, OPT_strategy, "full_shard");
  search_set(v, OPT_wrap, "model");
}
// The batch sizes, powers of two and the one asked for, that divide a rank's sequences of a step.
static inline void search_batches(SearchAxis *a, const Options *asked, const Options *resolved) {
  const int64_t sequences = resolved->batch_size * resolved->grad_accum;
  for (int64_t B = 1; B <= sequences; B *= 2) {
    if (sequences % B) break;
    SearchValue *v = search_value(a);
    search_set(v, OPT_batch_size, "%lld", (long long)B);
    if (!asked->given[OPT_global_batch]) search_set(v, OPT_grad_accum, "%lld", (long long)(sequences / B));
  }
  SearchValue *v = search_value(a);              // as it was asked
  search_set(v, OPT_batch_size, "%lld", (long long)resolved->batch_size);
  if (!asked->given[OPT_global_batch]) search_set(v, OPT_grad_accum, "%lld", (long long)resolved->grad_accum);
}
static inline void search_choices(SearchAxis *a, int option) {   // all that the option has but auto and what ... means
  for (const char *c = option_specs[option].choices, *end; *c; c = end + (*end == '|')) {
    end = c + strcspn(c, "|");
    if (strncmp(c, "auto", 4) && *c != '.') search_set(search_value(a), option, "%.*s", (int)(end - c), c);
  }
}
// Fills in all axes. asked: the options as given; resolved: the same completed.
static inline void search_axes(SearchAxis *axis, const Options *asked, const Options *resolved, bool gpu) {
  static const char *const dtypes[][3] = {{"fp32", "fp32", "fp32"}, {"bf16", "bf16", "bf16"}, {"bf16", "fp32", "bf16"}};
  search_shardings(&axis[AXIS_SHARDING], (int)resolved->world, (int)resolved->ranks_per_host);
  search_batches(&axis[AXIS_BATCH], asked, resolved);
  search_choices(&axis[AXIS_ACCUMULATE], OPT_accumulate);
  search_choices(&axis[AXIS_RECOMPUTE], OPT_recompute);
  for (const auto &d : dtypes) {
    SearchValue *v = search_value(&axis[AXIS_DTYPE]);
    search_set(v, OPT_param_dtype, "%s", d[0]);
    search_set(v, OPT_reduce_dtype, "%s", d[1]);
    search_set(v, OPT_buffer_dtype, "%s", d[2]);
  }
  search_choices(&axis[AXIS_OFFLOAD], OPT_offload);
  if (!gpu) axis[AXIS_OFFLOAD].values = 1;
}

// ================================================================================================ 2 planning
// A combination of options: at[a] is the index of its value of axis a. legal: training accepts its options. exact:
// bytes and times are planned with all blocks of the model; whole: at least the bytes are; else both are extrapolated
// from fewer blocks. needs: bytes of a GPU, or of a host for all its CPU ranks. exposed_s: communication of a step
// while nothing is computed. peak_flops: of a rank, in its dtype.
struct SearchRow {
  int16_t at[AXES];
  bool legal, exact, whole, fits;
  double needs, step_s, exposed_s, peak_flops;
};
// Sets `o` to `asked` with a combination's options. False: the combination would change an option that was given, or
// gives one a value that is rejected.
static inline bool search_options(Options *o, const Options *asked, const SearchAxis *axis, const SearchRow *r) {
  *o = *asked;
  for (int a = 0; a < AXES; a++) {
    const SearchValue *v = &axis[a].value[r->at[a]];
    for (int i = 0; i < v->settings; i++) {
      char given[OPTION_TEXT_BYTES];
      Error fault = {};
      option_print(given, sizeof given, asked, &option_specs[v->set[i].option]);
      if (asked->given[v->set[i].option] && strcmp(given, v->set[i].text)) return false;
      if (!option_set(o, v->set[i].option, v->set[i].text, &fault)) return false;
    }
  }
  return true;
}
// A hash (FNV-1a) of the resolved values that the axes set: combinations with the same hash are the same run.
static inline uint64_t search_key(const Options *resolved) {
  static const OptionId told[] = {OPT_gather_slots, OPT_reshard_after_forward, OPT_wrap, OPT_batch_size, OPT_grad_accum,
                                  OPT_accumulate, OPT_recompute, OPT_param_dtype, OPT_reduce_dtype, OPT_buffer_dtype,
                                  OPT_offload};
  char text[OPTION_TEXT_BYTES];
  uint64_t key = 0xcbf29ce484222325u;
  const int mesh[2] = {resolved->replicas, resolved->shards};
  for (size_t i = 0; i < sizeof mesh; i++) key = (key ^ ((const uint8_t *)mesh)[i]) * 0x100000001b3u;
  for (OptionId id : told) {
    option_print(text, sizeof text, resolved, &option_specs[id]);
    for (const char *c = text; ; c++) {
      key = (key ^ (uint8_t)*c) * 0x100000001b3u;
      if (!*c) break;
    }
  }
  return key;
}
// Plans `o`. False: training rejects it.
static inline bool search_plan(SearchRow *r, const Options *o) {
  static WorldPlan w;
  Error error = {};
  if (!world_plan(&w, o, true, NULL, &error)) return false;
  const double *at = w.rank[w.slowest].times.at;
  r->needs = world_plan_needs(&w);
  r->step_s = at[STEP_TOTAL];
  r->exposed_s = at[STEP_GATHERS_EXPOSED] + at[STEP_REDUCTIONS_EXPOSED] + at[STEP_EXCHANGE];
  r->fits = r->needs <= world_plan_room(&w);
  r->peak_flops = w.on.machine.peak_flops;
  world_plan_free(&w);
  return true;
}
// Plans the bytes of `o` alone, with all blocks: how well buffers share memory is not linear in the number of blocks.
static inline bool search_bytes(SearchRow *r, const Options *o) {
  static WorldPlan w;
  Error error = {};
  if (!world_plan(&w, o, false, NULL, &error)) return false;
  r->needs = world_plan_needs(&w);
  world_plan_free(&w);
  return true;
}
// Estimates `o` for a model of `blocks` blocks from three shallow models: their step times and bytes, extrapolated in a
// straight line. The shallowest has SEARCH_FEW blocks, which fill the pipeline of all-gathers and reduce-scatters: from
// then on each further block adds the same time. The others have 2 and 4 blocks more: gradient slots alternate, so a
// line has steps of two blocks. Where the three times are not on a line, all blocks are planned. Where messages take
// longer than blocks, their backlog grows, and further blocks may start to wait: the line's time is then too short, by
// up to a few percent. Bytes are linear to about 1 %, as better places may be found for some numbers of blocks than for
// others. So bytes are planned with all blocks where they decide: where the estimate is within SEARCH_DOUBT of the
// memory there is (`room`), and where --json lists all that fit (`all_bytes`).
enum { SEARCH_FEW = SEARCH_SLOTS_MAX + 2, SEARCH_FEWS = 3, SEARCH_MAX = SEARCH_FEW + 2 * (SEARCH_FEWS - 1) };
static const double SEARCH_DOUBT = 0.1;          // relative error that estimated bytes are taken to have
static inline bool search_estimate(SearchRow *r, const Options *o, int64_t blocks, double room, bool all_bytes) {
  static Options few;
  SearchRow x[SEARCH_FEWS];
  const double n = (double)(blocks - SEARCH_MAX) / 2;
  r->exact = blocks <= SEARCH_MAX || strchr(o->recompute, ':');  // "block:5,mlp": the blocks are not alike
  for (int i = SEARCH_FEWS - 1; i >= 0 && !r->exact; i--) {
    few = *o;
    few.n_layer = SEARCH_FEW + 2 * i;
    if (!search_plan(&x[i], &few)) return false;
    if (i == SEARCH_FEWS - 2) r->needs = x[2].needs + n * (x[2].needs - x[1].needs);
    if (i == SEARCH_FEWS - 2 && r->needs * (1 - SEARCH_DOUBT) > room) return true;     // too large: no time is needed
  }
  const auto bent = [](double a, double b, double c) { return fabs(c - 2 * b + a) > 1e-6 * c; };
  if (!r->exact && bent(x[0].step_s, x[1].step_s, x[2].step_s)) r->exact = true;
  r->whole = r->exact || all_bytes || fabs(r->needs - room) <= SEARCH_DOUBT * room;
  if (r->exact) return search_plan(r, o);
  if (r->whole && !search_bytes(r, o)) return false;
  r->step_s = x[2].step_s + n * (x[2].step_s - x[1].step_s);
  r->exposed_s = x[2].exposed_s + n * (x[2].exposed_s - x[1].exposed_s);
  r->fits = r->needs <= room;
  r->peak_flops = x[0].peak_flops;
  return true;
}

// ================================================================================================ 3 search
enum { SEARCH_ROWS_SHOWN = 20 };
struct Search {
  SearchAxis axis[AXES];
  SearchRow *row;                                // the combinations that fit, fastest first
  int rows;
  bool all_bytes;                                // for --json the bytes of every row are planned with all blocks
  SearchRow shown[SEARCH_ROWS_SHOWN];            // exact; each needs less memory than all faster ones
  int shown_rows;
  int64_t legal;                                 // how many combinations training accepts
  WorldPlan plan;                                // of the options as given, for figures that all rows share
  RunView *run;
};
static inline int search_order(const void *a, const void *b) {
  const SearchRow *x = (const SearchRow *)a, *y = (const SearchRow *)b;
  if (x->step_s != y->step_s) return x->step_s < y->step_s ? -1 : 1;
  if (x->needs != y->needs) return x->needs < y->needs ? -1 : 1;
  return memcmp(x->at, y->at, sizeof x->at);
}
// On a terminal, how many combinations are planned.
static inline void search_progress(int64_t done, int64_t all) {
  static double next_ms;
  char line[96];
  if (!terminal.out || now_ms() < next_ms) return;
  next_ms = now_ms() + 200;
  snprintf(line, sizeof line, "searching: %lld of %lld combinations", (long long)done, (long long)all);
  line_draw(line, true);
}
// The rows that several processes plan, in memory that the processes share.
struct SearchWork { const Search *search; const Options *asked; SearchRow *row; bool exactly; };
static inline void search_piece(void *of, int64_t i) {
  static Options o;
  const SearchWork *w = (const SearchWork *)of;
  SearchRow *r = &w->row[i];
  const double room = world_plan_room(&w->search->plan);
  r->legal = search_options(&o, w->asked, w->search->axis, r);
  if (!r->legal) return;
  if (w->exactly) r->legal = r->exact = r->whole = search_plan(r, &o);
  else r->legal = search_estimate(r, &o, w->search->plan.opt.n_layer, room, w->search->all_bytes);
}
// Plans `rows` rows, on all cores.
static inline void search_rows(const Search *s, const Options *asked, SearchRow *row, int rows, bool exactly) {
  if (!rows) return;
  const size_t bytes = sizeof(SearchRow) * (size_t)rows;
  SearchWork w = {s, asked, (SearchRow *)fork_memory(bytes), exactly};
  memcpy(w.row, row, bytes);
  fork_work(fork_processes(), rows, search_piece, &w, exactly ? NULL : search_progress);
  memcpy(row, w.row, bytes);
  munmap(w.row, bytes);
}
// All different combinations with this value of the last axis (--offload) whose options training accepts; malloc'ed.
static inline SearchRow *search_different(const Search *s, const Options *asked, int offload, int *rows) {
  static Options resolved;
  static PlanDevice on;
  int64_t all = 1;
  for (int a = 0; a < AXIS_OFFLOAD; a++) all *= s->axis[a].values;
  SearchRow *row = (SearchRow *)malloc(sizeof(SearchRow) * (size_t)all);
  uint64_t *seen = (uint64_t *)malloc(sizeof(uint64_t) * (size_t)all);
  SearchRow r = {};
  r.at[AXIS_OFFLOAD] = (int16_t)offload;
  *rows = 0;
  for (int64_t i = 0; i < all; i++) {
    Error error = {};
    bool different = search_options(&resolved, asked, s->axis, &r) && plan_resolve(&resolved, &on, &error);
    const uint64_t key = different ? search_key(&resolved) : 0;
    for (int k = 0; k < *rows && different; k++) different = seen[k] != key;
    if (different) seen[*rows] = key, row[(*rows)++] = r;
    for (int a = 0; a < AXIS_OFFLOAD && ++r.at[a] == s->axis[a].values; a++) r.at[a] = 0;
  }
  free(seen);
  return row;
}
// Plans all combinations with this value of the last axis. Counts the legal ones; those that fit become s->row.
static inline void search_offloaded(Search *s, const Options *asked, int offload) {
  int rows;
  SearchRow *row = search_different(s, asked, offload, &rows);
  search_rows(s, asked, row, rows, false);
  s->rows = 0;
  for (int i = 0; i < rows; i++) {
    s->legal += row[i].legal;
    if (row[i].legal && row[i].fits) row[s->rows++] = row[i];      // too large by estimate: fits is false
  }
  free(s->row);
  s->row = row;
}
// Whether a row may need less than `least` bytes, as far as is known.
static inline bool search_may_need_less(const SearchRow *r, double least) {
  return r->needs * (r->whole ? 1 : 1 - SEARCH_DOUBT) < least;
}
// The row that search_confirm looks at next: of those that `passed` does not mark and that may need less than `least`
// bytes, the fastest by what is known; of equally fast ones an estimated row comes first. -1: there is none.
static inline int search_next(const Search *s, const bool *passed, double least) {
  int next = -1;
  for (int i = 0; i < s->rows; i++) {
    const SearchRow *r = &s->row[i], *x = next < 0 ? NULL : &s->row[next];
    if (passed[i] || !search_may_need_less(r, least)) continue;
    if (!x || r->step_s < x->step_s || (r->step_s == x->step_s && r->exact < x->exact) ||
        (r->step_s == x->step_s && r->exact == x->exact && search_order(r, x) < 0))
      next = i;
  }
  return next;
}
// Plans the next estimated rows with all their blocks, a few at once.
enum { SEARCH_AT_ONCE = 8 };
static inline void search_exactly(Search *s, const Options *asked, const bool *settled, double least) {
  SearchRow row[SEARCH_AT_ONCE];
  int of[SEARCH_AT_ONCE], count = 0, i;
  bool *passed = (bool *)malloc((size_t)s->rows);
  memcpy(passed, settled, (size_t)s->rows);
  while (count < SEARCH_AT_ONCE && (i = search_next(s, passed, least)) >= 0) {
    passed[i] = true;
    if (!s->row[i].exact) of[count] = i, row[count++] = s->row[i];
  }
  search_rows(s, asked, row, count, true);
  for (int k = 0; k < count; k++) s->row[of[k]] = row[k];
  free(passed);
}
// Chooses the rows that are shown, each planned with all its blocks, because an estimated row might not fit. An
// estimated time is never longer than the exact one, as waits may only start with more blocks: so if the next row is
// exact, it is the next fastest.
static inline void search_confirm(Search *s, const Options *asked) {
  bool *settled = (bool *)calloc((size_t)s->rows + 1, 1);
  double least = INFINITY;
  for (int i; s->shown_rows < SEARCH_ROWS_SHOWN && (i = search_next(s, settled, least)) >= 0;) {
    if (!s->row[i].exact) { search_exactly(s, asked, settled, least); continue; }
    settled[i] = true;
    if (!s->row[i].legal || !s->row[i].fits || s->row[i].needs >= least) continue;
    least = s->row[i].needs;
    s->shown[s->shown_rows++] = s->row[i];
  }
  int fit = 0;
  for (int i = 0; i < s->rows; i++) if (s->row[i].fits) s->row[fit++] = s->row[i];
  s->rows = fit;
  qsort(s->row, (size_t)s->rows, sizeof(SearchRow), search_order);
  free(settled);
}
// Searches. asked: the options as given. False with one line in `error`.
static inline bool search_make(Search *s, const Options *asked, Error *error) {
  memset((void *)s, 0, sizeof *s);
  REJECT(!asked->on[0], "--plan search needs --on: what is fastest and what fits depends on the machine");
  if (!world_plan(&s->plan, asked, true, &s->run, error)) return false;
  search_axes(s->axis, asked, &s->plan.opt, s->plan.on.gpu);
  s->all_bytes = asked->json;
  for (int i = 0; i < s->axis[AXIS_OFFLOAD].values && !s->rows; i++) search_offloaded(s, asked, i);
  search_confirm(s, asked);
  line_end();
  return true;
}
static inline void search_free(Search *s) {
  s->plan.opt.trainer->plan_close(s->run);
  world_plan_free(&s->plan);
  free(s->row);
}

// ================================================================================================ 4 printing
// Whether one --dtype stands for all three dtypes of a value of AXIS_DTYPE.
static inline bool search_one_dtype(const Options *asked, const SearchValue *v) {
  for (int i = 0; i < v->settings; i++)
    if (asked->given[v->set[i].option] || strcmp(v->set[i].text, v->set[0].text)) return false;
  return true;
}
// The options of a combination that were not given, as they are typed.
static inline void search_command(FILE *to, const Search *s, const Options *asked, const SearchRow *r) {
  bool first = true;
  for (int a = 0; a < AXES; a++) {
    const SearchValue *v = &s->axis[a].value[r->at[a]];
    for (int i = 0; i < v->settings; i++) {
      const OptionSpec *spec = &option_specs[v->set[i].option];
      char before[OPTION_TEXT_BYTES], resolved[OPTION_TEXT_BYTES];
      option_print(before, sizeof before, asked, spec);
      const bool count = spec->type == OPTION_INT;         // left out if it resolves to this value anyway
      if (count) option_print(resolved, sizeof resolved, &s->plan.opt, spec);
      if (asked->given[v->set[i].option] || !strcmp(count ? resolved : before, v->set[i].text)) continue;
      const bool all = a == AXIS_DTYPE && search_one_dtype(asked, v);
      fprintf(to, "%s--%s %s", first ? "" : " ", all ? "dtype" : spec->name, v->set[i].text);
      first = false;
      if (all) break;
    }
  }
  if (first) fprintf(to, "(as asked)");
}
static inline double search_rate(const Search *s, const SearchRow *r) {
  return world_plan_tokens(&s->plan) / r->step_s;
}
static inline double search_mfu(const Search *s, const SearchRow *r) {
  return s->run->model.flops_per_token * search_rate(s, r) /
         (r->peak_flops * (double)s->plan.opt.world);
}
// Prints the search as a table. Its column "exposed" is exposed_s as a share of the step.
static inline void search_print(const Search *s, const Options *asked) {
  const Options *o = &s->plan.opt;
  const ModelFigures *m = &s->run->model;
  const double room = world_plan_room(&s->plan);           // of a GPU, or of a host for all its CPU ranks
  say("train_gpt_fsdp %s (%s): a search among plans, nothing is started\n", PROGRAM_VERSION, build_id);
  start_line("model", "%s, %s parameters: %d block%s, width %lld", o->model, count_words(m->parameters), m->L,
             m->L > 1 ? "s" : "", (long long)m->C);
  start_line("step", "%s tokens on %d rank%s of %s, %.1f GiB each%s", count_words((int64_t)world_plan_tokens(&s->plan)),
             (int)o->world, o->world > 1 ? "s" : "", o->on, room / 0x1p30, s->plan.on.gpu ? "" : " host");
  start_line("searched", "%lld valid combinations of options; %d fit", (long long)s->legal, s->rows);
  if (!s->rows) {
    say("nothing fits: %schoose a smaller --batch_size or --seq_len, or more ranks\n",
        o->trace[0] && !s->plan.on.gpu ? "leave --trace out, or " : "");
    return;
  }
  say("\nFastest first; each row needs less memory than those above it.\n"
      "predicted   tokens/s    MFU  exposed      GiB  options to add\n");
  for (int i = 0; i < s->shown_rows; i++) {
    const SearchRow *r = &s->shown[i];
    char *options = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&options, &bytes);
    search_command(f, s, asked, r);
    fclose(f);
    say("%9s %10.0f %5.1f%% %7.1f%% %8.2f  %s\n", seconds_words(r->step_s), search_rate(s, r), 100 * search_mfu(s, r),
        100 * r->exposed_s / r->step_s, r->needs / 0x1p30, options);
    free(options);
  }
  say("--json lists all that fit\n");
}
static inline void search_json(FILE *f, const Search *s, const Options *asked) {
  fprintf(f, "{\"program\":\"%s\",\"build\":\"%s\",\"ranks\":%d,\"on\":", PROGRAM_VERSION, build_id,
          (int)s->plan.opt.world);
  json_text(f, s->plan.opt.on);
  fprintf(f, ",\"parameters\":%lld,\"tokens\":%.0f,\"room_bytes\":%.0f,\"combinations\":%lld,\"fit\":%d,\"rows\":[",
          (long long)s->run->model.parameters, world_plan_tokens(&s->plan), world_plan_room(&s->plan),
          (long long)s->legal, s->rows);
  for (int i = 0; i < s->rows; i++) {
    const SearchRow *r = &s->row[i];
    fprintf(f, "%s{\"options\":\"", i ? "," : "");
    search_command(f, s, asked, r);
    fprintf(f, "\",\"planned\":\"%s\",\"needs_bytes\":%.0f", r->exact ? "exactly" : "from fewer blocks", r->needs);
    json_number(f, "predicted_step_s", r->step_s);
    json_number(f, "predicted_exposed_s", r->exposed_s);
    json_number(f, "predicted_tokens_per_s", search_rate(s, r));
    json_number(f, "predicted_mfu", search_mfu(s, r));
    fprintf(f, "}");
  }
  fprintf(f, "]}\n");
}
// --plan search: searches and prints the result. Ends the program with one line if it cannot search.
static inline void search_main(const Options *asked, Error *error) {
  static Search s;
  mallopt(M_MMAP_THRESHOLD, 1 << 30);            // each plan takes and gives back megabytes: keep the pages
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
  if (!search_make(&s, asked, error)) die_user("train_gpt_fsdp: %s", error->text);
  char *json = NULL;
  size_t bytes = 0;
  FILE *f = open_memstream(&json, &bytes);
  if (asked->json) search_json(f, &s, asked);
  fclose(f);
  if (asked->json) say("%s", json);
  else search_print(&s, asked);
  free(json);
  search_free(&s);
}

int plan_main(Call *call) {
  static PlanReport report;
  Options *o = &call->o;
  Error *error = &call->error;
  if (o->plan == OPT_plan_off) return -1;
  if (!call->first) return 0;
  if (!error->text[0]) options_read_config(o, error);
  char name[MAP_PATH_BYTES + 32] = "";
  if (!error->text[0]) shape_of_weights(o, name, sizeof name, error);
  if (error->text[0]) die_user("train_gpt_fsdp: %s", error->text);
  const char *launched = call->launched ? getenv("OMPI_COMM_WORLD_SIZE") : NULL;
  if (launched && !o->given[OPT_world] && atoi(launched) > 0) o->world = atoi(launched);
  if (o->plan == OPT_plan_search) { search_main(o, error); return 0; }
  if (!report_make(&report, o, error)) die_user("train_gpt_fsdp: %s", error->text);
  if (name[0]) report.run->name = name;
  char *json = NULL;
  size_t json_size = 0;
  FILE *f = open_memstream(&json, &json_size);
  if (o->json) report_json(f, &report);
  fclose(f);
  if (o->json) say("%s", json);
  else report_print(&report);
  free(json);
  report_free(&report);
  return 0;
}
