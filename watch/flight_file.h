// flight_file.h: OUT/flight-RANK.json, what a rank did last, written when a run hangs or loses a rank. `--flight` reads
// it (run/report/flight_report.h).
//
// The heartbeat thread writes the file while the main thread may be blocked anywhere, or still running: only by open,
// write and rename, from memory of its own. Entries that the main thread adds meanwhile are left out. The file appears
// whole or not at all: a launcher may kill the process at any time.
//
//   {"flight":1,"version":..,"run":..,"rank":..,"world":..,"host":..,"pid":..,"time_s":..,"cause":..,"place":..,
//    "step":..,"microbatch":..,"stage":..,"op":..,"begun":..,"in":..,"entries":[{"s":..,"kind":..,"what":..,
//    "step":..,"microbatch":..,"stage":..,"number":..},...]}
//
// run: random, the same on all ranks. time_s: wall-clock time of the file; s: how many seconds before that an entry was
// made, by which entries are ordered. started: number of collectives of the step so far; in: the number of the one that
// the rank waits for, or 0. stage: 0 outside the blocks, 1 + l block l, -1 none. microbatch: -1 none.
#pragma once
#include "base/newfile/newfile.h"
#include "flight.h"

enum { FLIGHT_PATH_BYTES = 1200 };
#include <sys/stat.h>

struct FlightWho {
  const char *version, *host, *cause, *place;
  uint64_t run;
  int rank, world, pid;
};
struct FlightSink { int fd, fault; size_t used; char text[1 << 13]; };

static inline void flight_flush(FlightSink *s) {
  for (size_t at = 0; at < s->used && !s->fault;) {
    const ssize_t n = write(s->fd, s->text + at, s->used - at);
    if (n < 0 && errno != EINTR) s->fault = errno;
    if (n > 0) at += (size_t)n;
  }
  s->used = 0;
}
__attribute__((format(printf, 2, 3))) static inline void flight_put(FlightSink *s, const char *fmt, ...) {
  enum { MOST = 512 };                           // of one call; longer ones are cut
  va_list ap;
  if (s->used + MOST > sizeof s->text) flight_flush(s);
  va_start(ap, fmt);
  const int n = vsnprintf(s->text + s->used, MOST, fmt, ap);
  va_end(ap);
  if (n > 0) s->used += n < MOST ? (size_t)n : MOST - 1;
}
// A string of JSON, or null.
static inline void flight_put_text(FlightSink *s, const char *name, const char *text) {
  flight_put(s, "\"%s\":%s", name, text ? "\"" : "null");
  for (const char *c = text; c && *c; c++) {
    const uint8_t plain = *c < 32 || *c > 126 ? '?' : (uint8_t)*c;
    char json[8];
    json_char(json, &plain, &plain + 1, 0);
    flight_put(s, "%s", json);
  }
  flight_put(s, "%s,", text ? "\"" : "");
}
#define X(id, word) word,
const char *const flight_kind_words[FLIGHT_KIND_COUNT] = {FLIGHT_KINDS(X)};
#undef X
static inline void flight_put_entry(FlightSink *s, const FlightEntry *e, int64_t now_ns, bool first) {
  flight_put(s, "%s\n{\"s\":%.9f,\"kind\":\"%s\",", first ? "" : ",", (double)(e->ns - now_ns) * 1e-9,
             flight_kind_words[e->kind]);
  flight_put_text(s, "what", e->what);
  flight_put(s, "\"step\":%lld,\"microbatch\":%d,\"stage\":%d,\"number\":%d}", (long long)e->step, e->microbatch,
             e->stage, e->number);
}
// Writes both rings as one list, ordered by time. end: the counts of the rings before `now` was taken.
struct FlightEnds { uint64_t of[2]; };
static inline void flight_put_entries(FlightSink *s, FlightEnds ends, int64_t now_ns) {
  static FlightEntry copy[2][FLIGHT_ENTRIES];    // copied before printing, which the main thread may overtake
  const FlightRing *ring[] = {&flight.events, &flight.ops};
  int count[2] = {}, at[2] = {};
  for (int i = 0; i < 2; i++) {
    const uint64_t end = ends.of[i];
    for (uint64_t k = end < FLIGHT_ENTRIES ? 0 : end - FLIGHT_ENTRIES + 1; k < end; k++)
      if (flight_get(ring[i], k, &copy[i][count[i]])) count[i]++;
      else count[i] = 0;                         // overwritten meanwhile, and so are all entries before it
  }
  for (bool first = true; at[0] < count[0] || at[1] < count[1]; first = false) {
    const FlightEntry *e[] = {&copy[0][at[0]], &copy[1][at[1]]};
    const int i = at[1] >= count[1] || (at[0] < count[0] && e[0]->ns <= e[1]->ns) ? 0 : 1;
    flight_put_entry(s, e[i], now_ns, first);
    at[i]++;
  }
}
// Writes the file. Returns 0 or errno. Any thread, one at a time.
static inline int flight_write(const char *path, const FlightWho *who) {
  static FlightSink sink;
  static char temporary[FLIGHT_PATH_BYTES + 8], directory[FLIGHT_PATH_BYTES];
  FlightSink *s = &sink;
  snprintf(temporary, sizeof temporary, "%s.tmp", path);
  snprintf(directory, sizeof directory, "%s", path);
  if (char *slash = strrchr(directory, '/')) {   // on a host that does not share rank 0's
    *slash = 0;
    mkdir(directory, 0777);
  }
  *s = FlightSink{};
  s->fd = file_make_new(temporary, 0666);
  if (s->fd < 0) return errno;
  const FlightEnds ends = {{__atomic_load_n(&flight.events.count, __ATOMIC_ACQUIRE),
                            __atomic_load_n(&flight.ops.count, __ATOMIC_ACQUIRE)}};
  const int64_t now = now_ns(), wall = wall_ns();                // after that: all these entries are older
  flight_put(s, "{\"flight\":%d,", (int)FLIGHT_FORMAT);
  flight_put_text(s, "version", who->version);
  flight_put(s, "\"run\":\"%016llx\",\"rank\":%d,\"world\":%d,", (unsigned long long)who->run, who->rank, who->world);
  flight_put_text(s, "host", who->host);
  flight_put(s, "\"pid\":%d,\"time_s\":%lld.%06ld,", who->pid, (long long)(wall / 1000000000),
             (long)(wall % 1000000000 / 1000));
  flight_put_text(s, "cause", who->cause);
  flight_put_text(s, "place", who->place);
  flight_put(s, "\"step\":%lld,\"microbatch\":%d,\"stage\":%d,", (long long)WORD_GET(&flight.step),
             WORD_GET(&flight.microbatch), WORD_GET(&flight.stage));
  flight_put_text(s, "op", WORD_GET(&flight.op));
  flight_put(s, "\"begun\":%d,\"in\":%d,\"entries\":[", WORD_GET(&flight.begun), WORD_GET(&flight.in.number));
  flight_put_entries(s, ends, now);
  flight_put(s, "\n]}\n");
  flight_flush(s);
  if (close(s->fd) && !s->fault) s->fault = errno;
  if (!s->fault && rename(temporary, path)) s->fault = errno;
  if (s->fault) unlink(temporary);
  return s->fault;
}
