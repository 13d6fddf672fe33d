// flight_report.h: --flight: reads what ranks did last (OUT/flight-RANK.json, watch/flight_file.h), and prints where
// each rank is and at which collective they first differ.
#pragma once
#include "base/newfile/newfile.h"
#include "report.h"

enum { FLIGHT_FILE_MOST_BYTES = 4 << 20, FLIGHT_ROWS_MAX = 2 * FLIGHT_ENTRIES, FLIGHT_RANKS_MAX = 1 << 20 };
struct FlightRow { double s; FlightKind kind; const char *what; int64_t step; int microbatch, stage, number; };
struct FlightRecord {
  char path[1024];
  const char *version, *run, *host, *cause, *place;                // in json
  int rank, world, pid, microbatch, stage, begun, in, rows;
  int64_t step;
  double time_s;
  FlightRow *row;                                // malloc'ed
  cJSON *json;
};
static inline void flight_close(FlightRecord *r) {
  free(r->row);
  cJSON_Delete(r->json);
  *r = FlightRecord{};
}

// ---- one file -------------------------------------------------------------------------------------------------------
static inline bool flight_number(const cJSON *o, const char *key, double lo, double hi, double *to) {
  const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, key);
  if (!cJSON_IsNumber(v) || !(v->valuedouble >= lo && v->valuedouble <= hi)) return false;
  *to = v->valuedouble;
  return true;
}
static inline bool flight_int(const cJSON *o, const char *key, double lo, double hi, int64_t *to) {
  double x;
  if (!flight_number(o, key, lo, hi, &x) || x != floor(x)) return false;
  *to = (int64_t)x;
  return true;
}
// A string of printable ASCII, at most `most` bytes; null where that is allowed.
static inline bool flight_text(const cJSON *o, const char *key, size_t most, bool may_be_null, const char **to) {
  const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, key);
  *to = cJSON_GetStringValue(v);
  if (!*to) return may_be_null && cJSON_IsNull(v);
  for (const char *c = *to; *c; c++) if (*c < 32 || *c > 126) return false;
  return strlen(*to) <= most;
}
// The name of the first value that is missing or has a wrong type or range; NULL: none.
static inline const char *flight_read_head(FlightRecord *r, const cJSON *json) {
  int64_t rank = 0, world = 0, pid = 0, microbatch = 0, stage = 0, begun = 0, in = 0;
  const char *op;
  if (!flight_text(json, "version", 128, false, &r->version)) return "version";
  if (!flight_text(json, "run", 16, false, &r->run) || strlen(r->run) != 16) return "run";
  if (!flight_int(json, "world", 1, FLIGHT_RANKS_MAX, &world)) return "world";
  if (!flight_int(json, "rank", 0, (double)world - 1, &rank)) return "rank";
  if (!flight_text(json, "host", 255, false, &r->host)) return "host";
  if (!flight_int(json, "pid", 1, INT32_MAX, &pid)) return "pid";
  if (!flight_number(json, "time_s", 0, 1e12, &r->time_s)) return "time_s";
  if (!flight_text(json, "cause", 1024, false, &r->cause)) return "cause";
  if (!flight_text(json, "place", 1024, false, &r->place)) return "place";
  if (!flight_int(json, "step", 0, 0x1p53, &r->step)) return "step";
  if (!flight_int(json, "microbatch", MICROBATCH_NONE, INT16_MAX, &microbatch)) return "microbatch";
  if (!flight_int(json, "stage", STAGE_NONE, INT32_MAX, &stage)) return "stage";
  if (!flight_text(json, "op", 64, true, &op)) return "op";
  if (!flight_int(json, "begun", 0, INT32_MAX, &begun)) return "begun";
  if (!flight_int(json, "in", 0, INT32_MAX, &in)) return "in";
  r->rank = (int)rank, r->world = (int)world, r->pid = (int)pid, r->microbatch = (int)microbatch;
  r->stage = (int)stage, r->begun = (int)begun, r->in = (int)in;
  return NULL;
}
static inline const char *flight_read_row(FlightRow *row, const cJSON *o) {
  const char *kind;
  int64_t microbatch = 0, stage = 0, number = 0;
  int k = 0;
  if (!cJSON_IsObject(o)) return "entries";
  if (!flight_number(o, "s", -1e9, 0, &row->s)) return "s";
  if (!flight_text(o, "kind", 16, false, &kind)) return "kind";
  while (k < FLIGHT_KIND_COUNT && strcmp(flight_kind_words[k], kind)) k++;
  if (k == FLIGHT_KIND_COUNT) return "kind";
  row->kind = (FlightKind)k;
  const bool bare = k == FLIGHT_STEP || k == FLIGHT_STAGE, numbered = k == FLIGHT_BEGIN || k == FLIGHT_END;
  if (!flight_text(o, "what", 64, bare, &row->what)) return "what";
  if (!flight_int(o, "step", 0, 0x1p53, &row->step)) return "step";
  if (!flight_int(o, "microbatch", MICROBATCH_NONE, INT16_MAX, &microbatch)) return "microbatch";
  if (!flight_int(o, "stage", STAGE_NONE, INT32_MAX, &stage)) return "stage";
  if (!flight_int(o, "number", numbered, INT32_MAX, &number)) return "number";
  row->microbatch = (int)microbatch, row->stage = (int)stage, row->number = (int)number;
  return NULL;
}
static inline bool flight_before(const FlightRow *a, const FlightRow *b) {
  return a->step != b->step ? a->step < b->step : a->number < b->number;
}
static inline const char *flight_read_rows(FlightRecord *r, const cJSON *json) {
  const cJSON *list = cJSON_GetObjectItemCaseSensitive(json, "entries"), *o;
  if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) > FLIGHT_ROWS_MAX) return "entries";
  r->row = (FlightRow *)calloc((size_t)cJSON_GetArraySize(list) + 1, sizeof(FlightRow));
  const FlightRow *begun = NULL;
  cJSON_ArrayForEach(o, list) {
    FlightRow *row = &r->row[r->rows];
    if (const char *fault = flight_read_row(row, o)) return fault;
    if (r->rows && row->s < row[-1].s) return "order of its entries";
    if (row->kind == FLIGHT_BEGIN && begun && !flight_before(begun, row)) return "order of its collectives";
    if (row->kind == FLIGHT_BEGIN) begun = row;
    r->rows++;
  }
  return NULL;
}
// Reads PATH. False with one line in `error` if the file is not a flight record, or damaged. Close the record either
// way.
static inline bool flight_read(FlightRecord *r, const char *path, Error *error) {
  *r = FlightRecord{};
  snprintf(r->path, sizeof r->path, "%.1000s", path);
  struct stat st;
  int64_t bytes = 0, format = 0;
  const char *fault = NULL;
  const bool there = !stat(path, &st);
  if (there && !S_ISREG(st.st_mode)) {
    fail(error, "%.800s is %s, not a flight record", path, file_type_words(st.st_mode));
    return false;
  }
  if (there && st.st_size > FLIGHT_FILE_MOST_BYTES) {
    fail(error, "%.800s is no flight record: it has more than %d MiB", path, FLIGHT_FILE_MOST_BYTES >> 20);
    return false;
  }
  char *text = there ? file_get(path, FLIGHT_FILE_MOST_BYTES, &bytes) : NULL;
  if (!text) { fail(error, "cannot read %.800s: %s", path, strerror(errno)); return false; }
  r->json = cJSON_ParseWithLength(text, (size_t)bytes);
  free(text);
  if (!cJSON_IsObject(r->json))
    fail(error, "%.800s is no flight record, or cut short: it is no object of JSON", path);
  else if (!flight_int(r->json, "flight", 1, 1e9, &format))
    fail(error, "%.800s is no flight record: those of a run are OUT/flight-RANK.json", path);
  else if (format != FLIGHT_FORMAT)
    fail(error, "%.800s is a flight record of format %lld; this program reads %d: use the one that wrote it", path,
         (long long)format, (int)FLIGHT_FORMAT);
  else if ((fault = flight_read_head(r, r->json)) || (fault = flight_read_rows(r, r->json)))
    fail(error, "%.800s is a damaged flight record: its %s is not possible", path, fault);
  else return true;
  return false;
}

// ---- several --------------------------------------------------------------------------------------------------------
static inline int flight_by_rank(const void *a, const void *b) {
  const FlightRecord *x = (const FlightRecord *)a, *y = (const FlightRecord *)b;
  return x->rank != y->rank ? x->rank - y->rank : strcmp(x->path, y->path);
}
// Whether the records are of different ranks of one run; sorts them by rank. One line in `error` if not.
static inline bool flight_compare(FlightRecord *r, int count, Error *error) {
  qsort(r, (size_t)count, sizeof *r, flight_by_rank);
  for (int i = 1; i < count; i++) {
    if (strcmp(r[i].run, r[0].run) || r[i].world != r[0].world)
      return fail(error, "%.600s and %.600s are of different runs: name the records of one, or remove the older ones",
                  r[0].path, r[i].path);
    if (r[i].rank == r[i - 1].rank)
      return fail(error, "%.600s and %.600s are both of rank %d", r[i - 1].path, r[i].path, r[i].rank);
  }
  return true;
}
// The names in a list: files with commas between, or one directory for all flight-*.json in it. malloc'ed, each too.
struct FlightNames { char **name; int count; };
static inline void flight_name_add(FlightNames *n, const char *text, size_t bytes) {
  if (!bytes) return;
  n->name = (char **)realloc(n->name, sizeof(char *) * (size_t)(n->count + 1));
  n->name[n->count++] = strndup(text, bytes);
}
// Takes the files that a list of names, or a directory, stands for.
static inline FlightNames flight_list(const char *list) {
  FlightNames n = {NULL, 0};
  struct stat st;
  DIR *dir = !stat(list, &st) && S_ISDIR(st.st_mode) ? opendir(list) : NULL;
  for (const dirent *e; dir && (e = readdir(dir));) {
    const size_t length = strlen(e->d_name);
    char path[1400];
    if (strncmp(e->d_name, "flight-", 7) || length < 12 || strcmp(e->d_name + length - 5, ".json")) continue;
    const int bytes = snprintf(path, sizeof path, "%.1000s/%s", list, e->d_name);
    flight_name_add(&n, path, (size_t)bytes);
  }
  for (const char *at = list; !dir && *at; at += at[strcspn(at, ",")] ? strcspn(at, ",") + 1 : strlen(at))
    flight_name_add(&n, at, strcspn(at, ","));
  if (dir) closedir(dir);
  return n;
}

// ---- the report -----------------------------------------------------------------------------------------------------
// "the gather of block 2"
static inline void flight_words(char *to, size_t bytes, const char *what, int stage) {
  char of[32] = "";
  if (stage > 0) snprintf(of, sizeof of, " of block %d", stage - 1);
  else if (!stage) snprintf(of, sizeof of, " outside the blocks");
  snprintf(to, bytes, "%s%s", what, of);
}
// The last collective that a record has started; NULL: none.
static inline const FlightRow *flight_last(const FlightRecord *r) {
  for (int i = r->rows - 1; i >= 0; i--) if (r->row[i].kind == FLIGHT_BEGIN) return &r->row[i];
  return NULL;
}
// The collective of `key` in a record, or the first one after it; the search starts at row *at, which moves. NULL:
// none.
static inline const FlightRow *flight_from(const FlightRecord *r, const FlightRow *key, int *at) {
  for (; *at < r->rows; ++*at)
    if (r->row[*at].kind == FLIGHT_BEGIN && !flight_before(&r->row[*at], key)) return &r->row[*at];
  return NULL;
}
static inline bool flight_same(const FlightRow *a, const FlightRow *b) {
  return a && b && a->step == b->step && a->number == b->number && a->stage == b->stage && !strcmp(a->what, b->what);
}
// The first collective that not all ranks started in the same way, among those that all records still have: its entry
// in the record of the first rank that has it; NULL: none. *agreed: the last collective that all ranks started; NULL:
// none.
static inline const FlightRow *flight_difference(const FlightRecord *r, int count, const FlightRow **agreed) {
  FlightRow key = {};
  const FlightRow *least = NULL;
  bool alike = true;
  int *at = (int *)calloc((size_t)count, sizeof(int));
  *agreed = NULL;
  for (int i = 0; i < count; i++) {
    const FlightRow first_of_all = {}, *first = flight_from(&r[i], &first_of_all, &at[i]);
    if (first && flight_before(&key, first)) key = *first;
  }
  while (alike) {
    least = NULL;
    for (int i = 0; i < count; i++) {
      const FlightRow *row = flight_from(&r[i], &key, &at[i]);
      if (row && (!least || flight_before(row, least))) least = row;
    }
    if (!least) break;
    for (int i = 0; i < count; i++) alike = alike && flight_same(flight_from(&r[i], &key, &at[i]), least);
    if (!alike) break;
    *agreed = least;
    key = *least;
    key.number++;
  }
  free(at);
  return least;
}
// Writes the ranks whose group is g, as "rank 0, 2-5".
static inline void flight_print_ranks(FILE *f, const FlightRecord *r, int count, const int *group, int g) {
  fprintf(f, "rank ");
  for (int i = 0, first = 1; i < count; i++) {
    if (group[i] != g) continue;
    int end = i;
    while (end + 1 < count && group[end + 1] == g && r[end + 1].rank == r[end].rank + 1) end++;
    fprintf(f, end > i ? "%s%d-%d" : "%s%d", first ? "" : ", ", r[i].rank, r[end].rank);
    first = 0;
    i = end;
  }
}
// Prints what each rank did at the collective of `key`, one line for all ranks that did the same.
static inline void flight_print_at(FILE *f, const FlightRecord *r, int count, const FlightRow *key) {
  int *group = (int *)calloc((size_t)count, sizeof(int));
  for (int i = 0; i < count; i++) group[i] = -1;
  for (int i = 0; i < count; i++) {
    int from = 0;
    const FlightRow *mine = flight_from(&r[i], key, &from), *last = flight_last(&r[i]);
    const bool has = mine && !flight_before(key, mine);
    char words[128];
    if (group[i] >= 0) continue;
    for (int k = i; k < count; k++) {
      int begin = 0;
      const FlightRow *theirs = flight_from(&r[k], key, &begin), *end = flight_last(&r[k]);
      const bool has_too = theirs && !flight_before(key, theirs);
      if (has && has_too && flight_same(mine, theirs)) group[k] = i;
      if (!has && !has_too && (last && end ? flight_same(last, end) : last == end)) group[k] = i;
    }
    fprintf(f, "    ");
    flight_print_ranks(f, r, count, group, i);
    const FlightRow *said = has ? mine : last;
    flight_words(words, sizeof words, said ? said->what : "", said ? said->stage : STAGE_NONE);
    if (has) fprintf(f, ": %s\n", words);
    else if (last)
      fprintf(f, ": not started; the last one is collective %d of step %lld, %s\n", last->number, (long long)last->step,
              words);
    else fprintf(f, ": not started, nor any other\n");
  }
  free(group);
}
// Keeps, of the records in a directory, those of the newest run; prints how many are older.
static inline int flight_newest(FILE *f, FlightRecord *r, int count) {
  int newest = 0, kept = 0;
  for (int i = 1; i < count; i++) if (r[i].time_s > r[newest].time_s) newest = i;
  const FlightRecord of = r[newest];
  for (int i = 0; i < count; i++) {
    if (!strcmp(r[i].run, of.run) || i == newest) r[kept++] = r[i];
    else flight_close(&r[i]);
  }
  for (int i = kept; i < count; i++) r[i] = FlightRecord{};
  if (kept < count) fprintf(f, "%d records of earlier runs are left out\n", count - kept);
  return kept;
}
// Prints the comparison of the records that flight_compare has accepted.
static inline void flight_print(FILE *f, const FlightRecord *r, int count) {
  enum { LINES_MAX = 64 };
  fprintf(f, "%d of %d ranks left a record (version %s): %s\n", count, r->world, r->version, r->cause);
  for (int rank = 0, at = 0, lines = 0; rank < r->world; rank++) {
    const FlightRecord *own = at < count && r[at].rank == rank ? &r[at++] : NULL;
    if (lines++ == LINES_MAX) { fprintf(f, "  ...\n"); break; }
    if (!own) fprintf(f, "  rank %d: none\n", rank);
    else fprintf(f, "  rank %d (pid %d on %s): step %lld, %s\n", rank, own->pid, own->host, (long long)own->step,
                 own->place);
  }
  const FlightRow *agreed, *differs = flight_difference(r, count, &agreed);
  char words[128] = "";
  if (agreed) flight_words(words, sizeof words, agreed->what, agreed->stage);
  if (agreed && count > 1)
    fprintf(f, "  alike to collective %d of step %lld, %s\n", agreed->number, (long long)agreed->step, words);
  if (differs) {
    fprintf(f, "  the first difference is collective %d of step %lld:\n", differs->number, (long long)differs->step);
    flight_print_at(f, r, count, differs);
  } else if (agreed && count > 1) fprintf(f, "  and no rank has started another one\n");
  else if (!agreed)
    fprintf(f, "  no collective is in the records: a step that is replayed as a graph leaves only the marks named "
            "above\n");
}

// Reads and compares all files of `list`. Returns 0, or EXIT_MISSING with one line in `error`.
static inline int flight_main(FILE *f, const char *list, Error *error) {
  FlightNames n = flight_list(list);
  FlightRecord *r = (FlightRecord *)calloc((size_t)n.count + 1, sizeof(FlightRecord));
  bool ok = n.count > 0;
  int opened = 0;
  if (!ok) fail(error, "--flight %.800s: there is no flight-RANK.json", list);
  while (ok && opened < n.count) { ok = flight_read(&r[opened], n.name[opened], error); opened++; }
  struct stat st;
  if (ok && !stat(list, &st) && S_ISDIR(st.st_mode)) opened = flight_newest(f, r, opened);
  ok = ok && flight_compare(r, opened, error);
  if (ok) flight_print(f, r, opened);
  for (int i = 0; i < opened; i++) flight_close(&r[i]);
  for (int i = 0; i < n.count; i++) free(n.name[i]);
  free(n.name);
  free(r);
  return ok ? 0 : EXIT_MISSING;
}

int flight_answer(Call *call) {
  if (!call->o.flight[0] || call->error.text[0]) return -1;
  if (!call->first) return 0;
  const int code = flight_main(stdout, call->o.flight, &call->error);
  text_to_line(call->error.text, "");
  if (code) die_with(code, "train_gpt_fsdp: %s", call->error.text);
  return 0;
}
