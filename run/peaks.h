// peaks.h: what ops reach on this machine's CPU, measured once by --tune plan (tune_plan.h) and kept beside the trained
// tokenizers, for --plan --on cpu (predict.h).
//
//   1 rates      of each kind of op at a few sizes; between them by interpolation
//   2 the file   DIR/peaks-TABLE-RxT.json: of R ranks at once with T threads each, on one instruction set
//
// A rate is work over time: FLOPs of matrix multiplies and attention, bytes read and written of all else, as predict.h
// counts them. The time includes the start of an op on all threads. Memory is as cold as in a step: each call works on
// other tensors, and comes back to the same after about as many as a block and its backward have.
#pragma once
#include "machine.h"
#include "version.h"
#include <cjson/cJSON.h>
#include <errno.h>
#include <sys/stat.h>
#include <time.h>

// ================================================================================================ 1 rates
// Sizes that rates depend on: X (identifier, word, axes).
//   products    the smaller of a weight's two sides, and rows. Wide: its sides differ by more than 8 times, as those of
//               the head do
//   attention   channels of a head, and length of sequences
//   bytes       of a call
enum PeakAxes { PEAK_PRODUCTS, PEAK_ATTENTION, PEAK_BYTES, PEAK_AXES };
#define PEAK_KINDS(X) \
  X(PEAK_FORWARD, "matmul_forward", PEAK_PRODUCTS) X(PEAK_FORWARD_GELU, "matmul_forward with GELU", PEAK_PRODUCTS) \
  X(PEAK_INPUT, "matmul_backward_input", PEAK_PRODUCTS) \
  X(PEAK_INPUT_GELU, "matmul_backward_input with GELU", PEAK_PRODUCTS) \
  X(PEAK_WEIGHT, "matmul_backward_weight", PEAK_PRODUCTS) \
  X(PEAK_WIDE_FORWARD, "matmul_forward, wide", PEAK_PRODUCTS) \
  X(PEAK_WIDE_INPUT, "matmul_backward_input, wide", PEAK_PRODUCTS) \
  X(PEAK_WIDE_WEIGHT, "matmul_backward_weight, wide", PEAK_PRODUCTS) \
  X(PEAK_ATTEND, "attention_forward", PEAK_ATTENTION) \
  X(PEAK_ATTEND_BACKWARD, "attention_backward", PEAK_ATTENTION) \
  X(PEAK_EMBEDDING, "embedding_forward", PEAK_BYTES) \
  X(PEAK_EMBEDDING_BACKWARD, "embedding_backward", PEAK_BYTES) \
  X(PEAK_NORM, "layernorm_forward", PEAK_BYTES) \
  X(PEAK_RESIDUAL_NORM, "residual_layernorm_forward", PEAK_BYTES) \
  X(PEAK_NORM_BACKWARD, "layernorm_backward", PEAK_BYTES) \
  X(PEAK_GELU, "gelu_forward", PEAK_BYTES) \
  X(PEAK_CROSS_ENTROPY, "cross_entropy_forward_backward", PEAK_BYTES) \
  X(PEAK_ADAMW, "adamw_update", PEAK_BYTES) \
  X(PEAK_SGD, "sgd_update", PEAK_BYTES) \
  X(PEAK_NORM_ACCUMULATE, "norm_accumulate", PEAK_BYTES) \
  X(PEAK_CONVERT, "convert", PEAK_BYTES) \
  X(PEAK_ACCUMULATE, "accumulate", PEAK_BYTES) \
  X(PEAK_COPY, "copy", PEAK_BYTES) \
  X(PEAK_ZERO, "zero", PEAK_BYTES)
#define X(id, word, axes) id,
enum PeakKind { PEAK_KINDS(X) PEAK_KIND_COUNT };
#undef X
#define X(id, word, axes) word,
static const char *const peak_words[] = {PEAK_KINDS(X)};
#undef X
#define X(id, word, axes) axes,
static const PeakAxes peak_axes[] = {PEAK_KINDS(X)};
#undef X
enum { PEAK_XS = 6, PEAK_YS = 4 };
struct PeakGrid { int xs, ys; double x[PEAK_XS], y[PEAK_YS]; };
static const PeakGrid peak_grids[PEAK_AXES] = {
    {5, 3, {64, 128, 384, 768, 1536}, {64, 256, 1024}},
    {3, 3, {32, 64, 128}, {64, 256, 1024}},
    {5, 1, {1 << 13, 1 << 17, 1 << 20, 1 << 23, 1 << 26}, {1}}};
enum { PEAK_DTYPES = 2 };                        // F32, BF16
struct Peaks {
  char file[1024], cpu[96], table[24], measured[24];             // measured: date and time, UTC
  int ranks, threads;
  double latency_s;                              // from one rank to another through shared memory
  double rate[PEAK_DTYPES][PEAK_KIND_COUNT][PEAK_XS][PEAK_YS];
};
// Where v lies on an axis: between points i and i + 1, at `part` of the way, by logarithms. At the ends it stays.
struct PeakPlace { int i; double part; };
static inline PeakPlace peak_place(const double *axis, int points, double v) {
  if (points < 2 || v <= axis[0]) return PeakPlace{0, 0};
  int i = 0;
  while (i + 2 < points && v > axis[i + 1]) i++;
  const double part = log(v / axis[i]) / log(axis[i + 1] / axis[i]);
  return PeakPlace{i, part < 1 ? part : 1};
}
// Work per second of a call: the logarithm of the rate is on a line between the nearest measured sizes.
static inline double peaks_rate(const Peaks *p, int dtype, PeakKind kind, double x, double y) {
  const PeakGrid *g = &peak_grids[peak_axes[kind]];
  const PeakPlace a = peak_place(g->x, g->xs, x), b = peak_place(g->y, g->ys, y);
  const auto at = [&](int i, int k) {
    return log(p->rate[dtype][kind][i < g->xs ? i : g->xs - 1][k < g->ys ? k : g->ys - 1]);
  };
  const double low = at(a.i, b.i) * (1 - b.part) + at(a.i, b.i + 1) * b.part;
  const double high = at(a.i + 1, b.i) * (1 - b.part) + at(a.i + 1, b.i + 1) * b.part;
  return exp(low * (1 - a.part) + high * a.part);
}
// The best rate of a kind.
static inline double peaks_best(const Peaks *p, int dtype, PeakKind kind) {
  double best = 0;
  for (const auto &row : p->rate[dtype][kind]) for (double rate : row) best = fmax(best, rate);
  return best;
}

// ================================================================================================ 2 the file
static inline void peaks_cpu_name(char *to, size_t bytes) {
  char line[512];
  FILE *f = fopen("/proc/cpuinfo", "r");
  snprintf(to, bytes, "unknown");
  while (f && fgets(line, sizeof line, f))
    if (!strncmp(line, "model name", 10) && strchr(line, ':')) {
      const char *name = strchr(line, ':') + 1;
      snprintf(to, bytes, "%.*s", (int)strcspn(name + strspn(name, " "), "\n"), name + strspn(name, " "));
      break;
    }
  if (f) fclose(f);
}
// Peaks of this machine's CPU, not measured yet.
static inline void peaks_of_here(Peaks *p, const char *dir, const char *table, int ranks, int threads) {
  memset((void *)p, 0, sizeof *p);
  snprintf(p->file, sizeof p->file, "%.900s/peaks-%s-%dx%d.json", dir, table, ranks, threads);
  snprintf(p->table, sizeof p->table, "%s", table);
  peaks_cpu_name(p->cpu, sizeof p->cpu);
  p->ranks = ranks, p->threads = threads;
}
static inline const char *peak_dtype_word(int dtype) { return dtype ? "bf16" : "fp32"; }
// Writes p->file, by a rename: whoever reads it finds it whole. False with one line in `error`.
static inline bool peaks_write(const Peaks *p, char *error, size_t error_bytes) {
  char part[sizeof p->file + 16];
  snprintf(part, sizeof part, "%s.%d.part", p->file, (int)getpid());
  unlink(part);
  FILE *f = fopen(part, "wx");
  REFUSE(!f, "--tune plan cannot write %s: %s; --cache names another directory", part, strerror(errno));
  fprintf(f, "{\"program\":\"%s\",\"cpu\":\"%s\",\"table\":\"%s\",\"ranks\":%d,\"threads\":%d,\"measured\":\"%s\",\n"
          "\"latency_s\":%.9g,\n\"rates\":{", PROGRAM_VERSION, p->cpu, p->table, p->ranks, p->threads, p->measured,
          p->latency_s);
  for (int d = 0; d < PEAK_DTYPES; d++) for (int k = 0; k < PEAK_KIND_COUNT; k++) {
    const PeakGrid *g = &peak_grids[peak_axes[k]];
    fprintf(f, "%s\"%s %s\":[", d || k ? ",\n" : "\n", peak_dtype_word(d), peak_words[k]);
    for (int i = 0; i < g->xs * g->ys; i++)
      fprintf(f, "%s%.6g", i ? "," : "", p->rate[d][k][i / g->ys][i % g->ys]);
    fprintf(f, "]");
  }
  const bool ok = fprintf(f, "}}\n") > 0 && !ferror(f);
  REFUSE(fclose(f) || !ok || rename(part, p->file), "--tune plan cannot write %s: %s", p->file, strerror(errno));
  return true;
}
static inline bool peaks_same(const cJSON *j, const char *name, const char *want) {
  const cJSON *x = cJSON_GetObjectItemCaseSensitive(j, name);
  return cJSON_IsString(x) && !strcmp(x->valuestring, want);
}
static inline bool peaks_count(const cJSON *j, const char *name, int want) {
  const cJSON *x = cJSON_GetObjectItemCaseSensitive(j, name);
  return cJSON_IsNumber(x) && x->valuedouble == want;
}
static inline bool peaks_take_rates(Peaks *p, const cJSON *rates) {
  for (int d = 0; d < PEAK_DTYPES; d++) for (int k = 0; k < PEAK_KIND_COUNT; k++) {
    char name[96];
    const PeakGrid *g = &peak_grids[peak_axes[k]];
    snprintf(name, sizeof name, "%s %s", peak_dtype_word(d), peak_words[k]);
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(rates, name);
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != g->xs * g->ys) return false;
    for (int i = 0; i < g->xs * g->ys; i++) {
      const cJSON *x = cJSON_GetArrayItem(list, i);
      if (!cJSON_IsNumber(x) || !(x->valuedouble > 0) || !(x->valuedouble < 1e18)) return false;
      p->rate[d][k][i / g->ys][i % g->ys] = x->valuedouble;
    }
  }
  return true;
}
enum { PEAKS_FILE_MOST = 1 << 20 };
// What --plan says of a file that it does not use.
#define PEAKS_AGAIN "measure with ./train_gpt_fsdp --tune plan"
// Reads p->file, of what peaks_of_here has described. False with one line in `why`: it is not there, is damaged, or was
// measured by another version or on another machine.
static inline bool peaks_read(Peaks *p, char *why, size_t why_bytes) {
  char world[32] = "";
  if (p->ranks > 1) snprintf(world, sizeof world, " --world %d", p->ranks);
  FILE *f = fopen(p->file, "r");
  if (!f && errno == ENOENT) {
    snprintf(why, why_bytes, "nothing is measured for %d rank%s of %d thread%s: " PEAKS_AGAIN "%s", p->ranks,
             p->ranks > 1 ? "s" : "", p->threads, p->threads > 1 ? "s" : "", world);
    return false;
  }
  char *text = (char *)calloc(1, PEAKS_FILE_MOST + 1);
  const size_t n = f ? fread(text, 1, PEAKS_FILE_MOST, f) : 0;
  if (f) fclose(f);
  cJSON *j = n && n < PEAKS_FILE_MOST ? cJSON_Parse(text) : NULL;
  const cJSON *latency = cJSON_GetObjectItemCaseSensitive(j, "latency_s");
  const cJSON *measured = cJSON_GetObjectItemCaseSensitive(j, "measured");
  const char *fault = !j ? "is damaged" : !peaks_same(j, "program", PROGRAM_VERSION) ? "is of another version"
                      : !peaks_same(j, "cpu", p->cpu) ? "is of another CPU"
                      : !peaks_same(j, "table", p->table) || !peaks_count(j, "ranks", p->ranks) ||
                                !peaks_count(j, "threads", p->threads) ? "is of other ranks or threads"
                      : !cJSON_IsString(measured) || !cJSON_IsNumber(latency) || !(latency->valuedouble >= 0) ||
                                !(latency->valuedouble < 1) ||
                                !peaks_take_rates(p, cJSON_GetObjectItemCaseSensitive(j, "rates")) ? "is damaged"
                      : NULL;
  if (fault) snprintf(why, why_bytes, "%s %s: " PEAKS_AGAIN "%s", p->file, fault, world);
  else {
    p->latency_s = latency->valuedouble;
    snprintf(p->measured, sizeof p->measured, "%.19s", measured->valuestring);
  }
  cJSON_Delete(j);
  free(text);
  return !fault;
}
