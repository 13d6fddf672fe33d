// report_html.h: OUT/report.html, one file that shows a run, or several side by side, in any browser, without network
// or library. It is made from files that the runs have written: metrics.jsonl, options.txt, sample.txt.
//
// The page's data is JSON in a script element, read as data. Text of runs may be any bytes: it is made UTF-8, and <, >
// and & are written as \u003c and so on, so that nothing in it can end the element.
#pragma once
#include "base/newfile/newfile.h"
#include "report_page.h"
#include <fcntl.h>
#include <time.h>

enum { REPORT_POINTS = 512, REPORT_UNITS = 12, REPORT_EVALS = 512, REPORT_RUNS_MAX = 16, REPORT_PATH_BYTES = 1024,
       REPORT_TEXT_MAX = 1 << 16, REPORT_UNITS_MAX = 2048 };
enum ReportSeries { REPORT_LOSS, REPORT_LR, REPORT_NORM, REPORT_RATE, REPORT_SERIES };
enum { REPORT_UNIT_SERIES = 2 };                 // of each unit, with --log_layers
// A point of a series: `count` finite values of consecutive steps, from `step` on: their sum, least and most. count 0:
// no value is finite.
struct ReportPoint { int64_t step; int count; double sum, least, most; };
struct ReportUnit { char name[64]; ReportPoint point[REPORT_UNIT_SERIES][REPORT_POINTS]; };
struct ReportSteps { int64_t *step; int count; };   // ascending, malloc'ed
struct ReportEval { int64_t step; double loss, perplexity, accuracy; char split[16]; };
struct ReportRun {
  char directory[REPORT_PATH_BYTES];
  int64_t offset;                                // bytes of metrics.jsonl that have been read
  ReportPoint point[REPORT_SERIES][REPORT_POINTS];
  ReportUnit *unit;                              // malloc'ed
  int units;
  int points;                                    // of every series
  int64_t stride, first, step;                   // steps of a point; first step of the first point; last step so far
  ReportEval eval[REPORT_EVALS];
  int evals;
  ReportSteps skipped, not_finite;               // steps without an update; of those, the ones a cause was named for
  char *run, *end, *trace;                       // the last record of a kind, malloc'ed; NULL: none
};
// The page is rewritten so rarely that writing takes at most a thousandth of the run's time.
struct ReportLive { bool on; char path[REPORT_PATH_BYTES]; double next_ms; ReportRun run; };

static const char *const report_series[] = {"loss", "lr", "grad_norm", "tokens_per_s"};
static const char *const report_unit_series[] = {"grad_norm", "update_ratio"};

// ---- text -----------------------------------------------------------------------------------------------------------
// Opens a file of a run's directory to read it; a named pipe there is not waited for. NULL with errno.
static inline FILE *report_open(const char *path) {
  const int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  return fd < 0 ? NULL : fdopen(fd, "rb");
}
// Writes the first REPORT_TEXT_MAX bytes of a file in a run's directory as a JSON string; null if there is no file.
static inline void report_file(FILE *to, const ReportRun *r, const char *name) {
  char path[REPORT_PATH_BYTES + 64], *text = (char *)malloc(REPORT_TEXT_MAX);
  snprintf(path, sizeof path, "%.1000s/%s", r->directory, name);
  FILE *f = report_open(path);
  if (f) json_string(to, text, fread(text, 1, REPORT_TEXT_MAX, f), JSON_SCRIPT);
  else fputs("null", to);
  if (f) fclose(f);
  free(text);
}

// ---- reading a run --------------------------------------------------------------------------------------------------
// The number of a key; NaN: there is none.
static inline double report_number(const cJSON *of, const char *key) {
  const cJSON *v = cJSON_GetObjectItemCaseSensitive(of, key);
  return cJSON_IsNumber(v) ? v->valuedouble : NAN;
}
// The number of series: the run's, then those of its units. report_points: the points of series s.
static inline int report_all_series(const ReportRun *r) { return REPORT_SERIES + r->units * REPORT_UNIT_SERIES; }
static inline ReportPoint *report_points(ReportRun *r, int s) {
  const int u = s - REPORT_SERIES;
  return u < 0 ? r->point[s] : r->unit[u / REPORT_UNIT_SERIES].point[u % REPORT_UNIT_SERIES];
}
// Merges pairs of points, as often as needed to have a point for `step`.
static inline void report_make_room(ReportRun *r, int64_t step) {
  while (step >= r->first + r->stride * REPORT_POINTS) {
    for (int s = 0; s < report_all_series(r); s++)
      for (int i = 0; i < REPORT_POINTS / 2; i++) {
        const ReportPoint a = report_points(r, s)[2 * i], b = report_points(r, s)[2 * i + 1];
        ReportPoint *x = &report_points(r, s)[i];
        *x = a.count ? a : b;
        x->step = r->first + 2 * i * r->stride;
        if (!a.count || !b.count) continue;
        x->count += b.count, x->sum += b.sum;
        x->least = fmin(a.least, b.least), x->most = fmax(a.most, b.most);
      }
    r->points = (r->points + 1) / 2;
    r->stride *= 2;
    for (int s = 0; s < report_all_series(r); s++)
      memset(&report_points(r, s)[r->points], 0, sizeof(ReportPoint) * (size_t)(REPORT_POINTS - r->points));
  }
}
// The index of the unit of this name (compared by as many bytes as are stored). Adds the unit if it is new; -1: there
// are too many.
static inline int report_unit(ReportRun *r, const char *name) {
  int u = 0;
  while (u < r->units && strncmp(r->unit[u].name, name, sizeof r->unit[u].name - 1)) u++;
  if (u < r->units) return u;
  if (u == REPORT_UNITS_MAX) return -1;
  r->unit = (ReportUnit *)realloc(r->unit, sizeof(ReportUnit) * (size_t)(u + 1));
  memset(&r->unit[u], 0, sizeof(ReportUnit));
  snprintf(r->unit[u].name, sizeof r->unit[u].name, "%s", name);
  r->units++;
  return u;
}
// Adds x to point i of series s.
static inline void report_add(ReportRun *r, int s, int i, double x) {
  ReportPoint *p = report_points(r, s) + i;
  p->step = r->first + i * r->stride;
  if (!isfinite(x)) return;
  p->least = p->count ? fmin(p->least, x) : x, p->most = p->count ? fmax(p->most, x) : x;
  p->sum += x, p->count++;
}
static inline void report_steps_add(ReportSteps *x, int64_t step) {
  x->step = (int64_t *)realloc(x->step, sizeof(int64_t) * (size_t)(x->count + 1));
  x->step[x->count++] = step;
}
static inline void report_take_step(ReportRun *r, const cJSON *line) {
  const double number = report_number(line, "step");
  if (!(number >= 1 && number < 0x1p53)) return;
  const int64_t step = (int64_t)number;
  if (!r->points) r->first = step, r->stride = 1;
  if (step < r->first) return;
  report_make_room(r, step);
  const int i = (int)((step - r->first) / r->stride);
  for (int s = 0; s < REPORT_SERIES; s++) report_add(r, s, i, report_number(line, report_series[s]));
  const cJSON *unit;
  cJSON_ArrayForEach(unit, cJSON_GetObjectItemCaseSensitive(line, "layers")) {
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(unit, "unit");
    const int u = cJSON_IsString(name) ? report_unit(r, name->valuestring) : -1;
    for (int s = 0; s < REPORT_UNIT_SERIES && u >= 0; s++)
      report_add(r, REPORT_SERIES + u * REPORT_UNIT_SERIES + s, i, report_number(unit, report_unit_series[s]));
  }
  if (i >= r->points) r->points = i + 1;
  if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(line, "skipped"))) report_steps_add(&r->skipped, step);
  r->step = step;
}
static inline void report_take_not_finite(ReportRun *r, const cJSON *line) {
  if (r->points && report_number(line, "step") == (double)r->step) report_steps_add(&r->not_finite, r->step);
}
static inline void report_take_eval(ReportRun *r, const cJSON *line) {
  const cJSON *split = cJSON_GetObjectItemCaseSensitive(line, "split");
  const double step = report_number(line, "step");
  if (!cJSON_IsString(split) || !(step >= 0)) return;
  if (r->evals == REPORT_EVALS)                  // every other one goes
    for (r->evals = 0; r->evals < REPORT_EVALS / 2; r->evals++) r->eval[r->evals] = r->eval[2 * r->evals + 1];
  ReportEval *e = &r->eval[r->evals++];
  *e = ReportEval{(int64_t)step, report_number(line, "loss"), report_number(line, "perplexity"),
                  report_number(line, "accuracy"), ""};
  snprintf(e->split, sizeof e->split, "%s", split->valuestring);
}
// Drops points from a step on: a run that resumed from an older checkpoint makes these steps again.
static inline void report_take_start(ReportRun *r, const cJSON *line) {
  const double first = report_number(line, "first_step");
  if (!cJSON_HasObjectItem(line, "memory_map")) return;          // it only evaluates
  while (r->points && (double)(r->first + (r->points - 1) * r->stride) >= first) {
    r->points--;
    for (int s = 0; s < report_all_series(r); s++) report_points(r, s)[r->points] = ReportPoint{};
  }
  int kept = 0;
  for (int i = 0; i < r->evals; i++) if ((double)r->eval[i].step < first) r->eval[kept++] = r->eval[i];
  r->evals = kept;
  ReportSteps *const both[] = {&r->skipped, &r->not_finite};
  for (ReportSteps *x : both)
    while (x->count && (double)x->step[x->count - 1] >= first) x->count--;
  if ((double)r->step >= first) r->step = (int64_t)fmax(0, first - 1);
}
static inline void report_keep(char **to, const char *line, size_t bytes) {
  free(*to);
  *to = (char *)malloc(bytes + 1);
  memcpy(*to, line, bytes);
  (*to)[bytes] = 0;
}
static inline void report_take(ReportRun *r, const char *text, size_t bytes) {
  cJSON *line = cJSON_ParseWithLength(text, bytes);
  const cJSON *kind = cJSON_GetObjectItemCaseSensitive(line, "kind");
  const char *is = cJSON_IsString(kind) ? kind->valuestring : "";
  if (!strcmp(is, "step")) report_take_step(r, line);
  if (!strcmp(is, "not_finite")) report_take_not_finite(r, line);
  if (!strcmp(is, "eval")) report_take_eval(r, line);
  if (!strcmp(is, "end")) report_keep(&r->end, text, bytes);
  if (!strcmp(is, "trace")) report_keep(&r->trace, text, bytes);
  if (!strcmp(is, "run")) {
    report_take_start(r, line);
    if (!r->run || cJSON_HasObjectItem(line, "memory_map")) report_keep(&r->run, text, bytes);
    free(r->end);                                // the end of an earlier part of the run
    r->end = NULL;
  }
  cJSON_Delete(line);
}
// Starts to read the run in `directory`.
static inline void report_run_open(ReportRun *r, const char *directory) {
  memset(r, 0, sizeof *r);
  r->stride = 1;
  snprintf(r->directory, sizeof r->directory, "%.1000s", directory);
}
static inline void report_run_close(ReportRun *r) {
  free(r->run), free(r->end), free(r->trace), free(r->unit), free(r->skipped.step), free(r->not_finite.step);
  r->skipped = r->not_finite = ReportSteps{};
  r->run = r->end = r->trace = NULL;
  r->unit = NULL;
  r->units = 0;
}
// Reads the complete lines that were added to metrics.jsonl since the last call. False with errno.
static inline bool report_run_read(ReportRun *r) {
  char path[REPORT_PATH_BYTES + 32], *text = NULL;
  size_t room = 0;
  snprintf(path, sizeof path, "%.1000s/metrics.jsonl", r->directory);
  FILE *f = report_open(path);
  if (!f) return false;
  if (!fseeko(f, r->offset, SEEK_SET))
    for (ssize_t n; (n = getline(&text, &room, f)) > 0 && text[n - 1] == '\n'; r->offset += n)
      report_take(r, text, (size_t)n - 1);
  free(text);
  fclose(f);
  return true;
}

// ---- writing the page -----------------------------------------------------------------------------------------------
static inline void report_value(FILE *to, double x) {
  if (isfinite(x)) fprintf(to, "%.17g", x);
  else fputs("null", to);
}
// Writes a series as "name":[[step,mean,least,most],...]; least and most only with `range`, and only of points with
// several values.
static inline void report_write_points(FILE *to, const char *name, const ReportPoint *p, int points, bool range) {
  const char *comma = "";
  fprintf(to, "\"%s\":[", name);
  for (int i = 0; i < points; i++, p++) {
    if (!p->count) continue;
    fprintf(to, "%s[%lld,", comma, (long long)p->step);
    report_value(to, p->sum / p->count);
    if (p->count > 1 && range) fprintf(to, ",%.9g,%.9g", p->least, p->most);
    fputc(']', to);
    comma = ",";
  }
  fputc(']', to);
}
static inline void report_write_series(FILE *to, const ReportRun *r) {
  for (int s = 0; s < REPORT_SERIES; s++) {
    if (s) fputc(',', to);
    report_write_points(to, report_series[s], r->point[s], r->points, true);
  }
}
// Writes the series of all units, or of REPORT_UNITS evenly spaced ones, including the first and the last.
static inline void report_write_units(FILE *to, const ReportRun *r) {
  const int shown = r->units < REPORT_UNITS ? r->units : REPORT_UNITS;
  fprintf(to, "\"units\":%d,\"layers\":[", r->units);
  for (int i = 0; i < shown; i++) {
    const ReportUnit *u = &r->unit[shown > 1 ? i * (r->units - 1) / (shown - 1) : 0];
    fprintf(to, "%s{\"unit\":", i ? ",\n" : "");
    json_string(to, u->name, strlen(u->name), JSON_SCRIPT);
    for (int s = 0; s < REPORT_UNIT_SERIES; s++) {
      fputc(',', to);
      report_write_points(to, report_unit_series[s], u->point[s], r->points, false);
    }
    fputc('}', to);
  }
  fputc(']', to);
}
// Writes the command that repeats the run, as a JSON string.
static inline void report_write_repeat(FILE *to, const ReportRun *r) {
  cJSON *run = cJSON_Parse(r->run);
  const int ranks = (int)fmax(1, report_number(run, "ranks"));
  char *text = NULL, options[REPORT_PATH_BYTES + 32];
  size_t bytes = 0;
  FILE *f = open_memstream(&text, &bytes);
  snprintf(options, sizeof options, "%.1000s/options.txt", r->directory);
  if (ranks > 1) fprintf(f, "mpirun -np %d ", ranks);
  fprintf(f, "./train_gpt_fsdp --config");
  shell_word(f, options);
  fprintf(f, " --out again");
  fclose(f);
  json_string(to, text, bytes, JSON_SCRIPT);
  free(text);
  cJSON_Delete(run);
}
static inline void report_write_run(FILE *to, const ReportRun *r) {
  fprintf(to, "{\"name\":");
  json_string(to, r->directory, strlen(r->directory), JSON_SCRIPT);
  fprintf(to, ",\"first\":%lld,\"step\":%lld,\"stride\":%lld,\"skipped\":%d,\"not_finite\":%d,\"run\":",
          (long long)r->first, (long long)r->step, (long long)r->stride, r->skipped.count, r->not_finite.count);
  json_chars(to, r->run, strlen(r->run), JSON_SCRIPT | JSON_WHOLE);
  const struct { const char *name, *line; } records[] = {{"end", r->end}, {"trace", r->trace}};
  for (const auto &x : records) {
    fprintf(to, ",\"%s\":", x.name);
    if (x.line) json_chars(to, x.line, strlen(x.line), JSON_SCRIPT | JSON_WHOLE);
    else fputs("null", to);
  }
  fprintf(to, ",\n\"series\":{");
  report_write_series(to, r);
  fprintf(to, "},\n");
  report_write_units(to, r);
  fprintf(to, ",\n\"evals\":[");
  for (int i = 0; i < r->evals; i++) {
    const ReportEval *e = &r->eval[i];
    fprintf(to, "%s{\"split\":", i ? "," : "");
    json_string(to, e->split, strlen(e->split), JSON_SCRIPT);
    fprintf(to, ",\"step\":%lld,\"loss\":", (long long)e->step);
    report_value(to, e->loss);
    fprintf(to, ",\"perplexity\":");
    report_value(to, e->perplexity);
    fprintf(to, ",\"accuracy\":");
    report_value(to, e->accuracy);
    fputc('}', to);
  }
  fprintf(to, "],\n\"sample\":");
  report_file(to, r, "sample.txt");
  fprintf(to, ",\"options\":");
  report_file(to, r, "options.txt");
  fprintf(to, ",\"repeat\":");
  report_write_repeat(to, r);
  fputc('}', to);
}
// Writes the page of `count` runs, which have been read, to `path`, through PATH.part: readers find the old page or the
// new one. False with errno. Runs without a first record are left out.
static inline bool report_write(const char *path, const ReportRun *const *run, int count, const char *version) {
  char part[REPORT_PATH_BYTES + 64];
  snprintf(part, sizeof part, "%.1020s.part", path);
  unlink(part);                                  // a leftover of a run that was killed
  FILE *to = file_make_stream(part);
  if (!to) return false;
  const char *comma = "";
  fputs(report_page_head, to);
  fprintf(to, "{\"version\":\"%s\",\"written\":%lld,\"runs\":[", version, (long long)time(NULL));
  for (int i = 0; i < count; i++) {
    if (!run[i]->run) continue;
    fputs(comma, to);
    report_write_run(to, run[i]);
    comma = ",\n";
  }
  fprintf(to, "]}");
  fputs(report_page_tail, to);
  const bool whole = !fflush(to) && !ferror(to);
  const int fault = errno;
  if (!fclose(to) && whole && !rename(part, path)) return true;
  const int later = whole ? errno : fault;
  unlink(part);
  errno = later;
  return false;
}

// ---- while a run continues ------------------------------------------------------------------------------------------
static inline void report_live_open(ReportLive *x, const char *directory) {
  x->on = true;
  snprintf(x->path, sizeof x->path, "%.1000s/report.html", directory);
  report_run_open(&x->run, directory);
}
// Writes the page anew: now, or if that is due. False with errno if it cannot be written; do not call this again then.
static inline bool report_live_write(ReportLive *x, bool now, const char *version) {
  const double begin = now_ms();
  if (!x->on || (!now && begin < x->next_ms)) return true;
  const ReportRun *run = &x->run;
  x->on = report_run_read(&x->run) && report_write(x->path, &run, 1, version);
  x->next_ms = begin + fmax(5000, 1000 * (now_ms() - begin));
  return x->on;
}
static inline void report_live_close(ReportLive *x) {
  report_run_close(&x->run);
  x->on = false;
}

// ---- several runs ---------------------------------------------------------------------------------------------------
// Writes the page of the runs in `list`, directories separated by commas, to `path`. False with one line in `error`.
static inline bool report_runs(const char *list, const char *path, const char *version, Error *error) {
  static ReportRun run[REPORT_RUNS_MAX];
  const ReportRun *all[REPORT_RUNS_MAX] = {};
  char names[REPORT_PATH_BYTES], *save = NULL;
  int count = 0;
  error->text[0] = 0;
  snprintf(names, sizeof names, "%s", list);
  for (char *name = strtok_r(names, ",", &save); name && !error->text[0]; name = strtok_r(NULL, ",", &save)) {
    if (count == REPORT_RUNS_MAX) {
      fail(error, "--report takes at most %d runs", (int)REPORT_RUNS_MAX);
      break;
    }
    ReportRun *r = &run[count];
    report_run_open(r, name);
    all[count++] = r;
    if (!report_run_read(r))
      fail(error, "--report %.300s: cannot read %.300s/metrics.jsonl: %s; it takes directories of runs, with commas "
           "between them", list, name, strerror(errno));
    else if (!r->run) fail(error, "--report: %.300s/metrics.jsonl has no record of a run", name);
  }
  if (!error->text[0] && !report_write(path, all, count, version))
    fail(error, "--report: cannot write %.300s: %s", path, strerror(errno));
  for (int i = 0; i < count; i++) report_run_close(&run[i]);
  return !error->text[0];
}
