// record_replay.h: proves the order of a schedule from the records of a run (fsdp/record.h), of all ranks.
//
// Happens-before (Lamport 1978) by vector clocks (Mattern 1989): one component per stream and host of each rank, which
// counts its accesses. The records of all ranks are replayed together; an entry that needs another rank's entry waits
// for it. Memory is cut into cells where any access starts or ends. Two accesses to a cell, one of them a write, must
// be ordered (as race detectors require: Flanagan and Freund 2009, FastTrack). Then every read finds one writer, and
// that must be the right one:
//   no use before its gather              the model reads weights only while their stage is held, and finds what the
//                                         gather of this stage and pass has written there, or what was expanded from
//                                         it; shards are those of the update before
//   no slot reused before its last reader nothing writes there while the stage is held
//   no gradient reduced before its last   a gradient is reduced only while it is held, which it is from its last write
//     writer                              on; what was rounded or received for a round is added in that round
//   no state of another step              what an op reads of the step's input was uploaded in its step; the update
//                                         reads what was decided in its step, and no other op does
//   equal order on every rank             the collectives of all ranks are compared one by one, and again where those
//                                         of one communicator meet
#pragma once
#include "record_run.h"

enum { SCHED_RANKS = 6, SCHED_THREADS = SCHED_RANKS * RECORD_STREAMS, SCHED_NAMES = 128, SCHED_OUT_MAX = 64,
       SCHED_OPEN_MAX = 512 };
struct SchedClock { uint32_t t[SCHED_THREADS]; };
// An entry, and the cells that it touches: [first, first + cells). memory: a part of working memory, or a line of the
// plan after these; mirror: of the window, where working memory is the device's. other: the entry whose PUBLISH it has
// seen, the other end of a message, or the number of a meeting. arrives: a set of messages that had some for this rank.
struct SchedEntry {
  RecordEntry e;
  int id, owner, memory, first, cells, other;
  bool reads, writes, mirror, arrives;
};
// What a read found in the run: which entries of its own rank wrote that first and last (-1: none), and whether an
// update did.
struct SchedFound { uint64_t writers; int first, last; bool updated; };
// What ranks tell rank 0 besides their entries.
struct SchedTold {
  char name[SCHED_NAMES][24];
  WorkPart part[WORK_PARTS];
  size_t on_host;
  int line[MEMORY_BLOCKS_MAX];
};
// A run of all ranks. one_sequence: a call is done when it returns. polled: counters and messages order ranks. scaled:
// updates exchange E4M3 scales.
struct SchedRun {
  const char *name;
  int world, count[SCHED_RANKS], base[SCHED_RANKS], entries, cells, meetings;
  MeshShape mesh;
  bool one_sequence, in_place, mirrored, polled, scaled;
  SchedTold *told[SCHED_RANKS];
  SchedEntry *entry[SCHED_RANKS];
  SchedFound *found;                             // [entries] of the run as it was
  bool known;
};
// What the ranks know of a cell. held: ranks that hold it, and as which stage's what; freed: the entry that ended that,
// plus 1. out: messages that are sent from it.
struct SchedCell {
  int write_thread, writer, held_stage, freed, outs, out[SCHED_OUT_MAX];
  uint32_t write_time, pass, reads[SCHED_THREADS], held;
  SchedulePlace place;
  unsigned held_what;                            // weights, or a gradient
  bool weights, gradient, updated, modelled, stale;
  bool state, input;                             // of the step's state, of its input
};
struct SchedMeeting { int members; const RecordEntry *e; SchedClock all, last; };
// What is known of an entry: its clock; of a message its other end, and when it had left or arrived, on which thread.
// useful: it established a new order.
struct SchedPast { bool done, useful; int other, over_by; uint32_t over_at; SchedClock clock; };
// The state of a replay. open: messages that have not ended. reads: whose shards a rank has read in place.
struct SchedCheck {
  SchedRun *run;
  int at[SCHED_RANKS], opens[SCHED_RANKS], event[SCHED_RANKS][SCHED_NAMES];    // event: the entry, plus 1
  bool waiting[SCHED_RANKS], reads[SCHED_RANKS][SCHED_RANKS];
  SchedClock clock[SCHED_THREADS];
  const SchedEntry *open[SCHED_RANKS][SCHED_OPEN_MAX];
  SchedCell *cell;
  SchedPast *past;                               // [entries]
  SchedMeeting *meeting;
  char error[512];
};
static SchedCheck sched_check_state;

static const char *const sched_streams[] = {"model", "gather", "reduce", "host"};
static const char *const sched_counters[] = {"ready", "done", "partial", "secondary", "momenta", "updates", "taken"};
enum { SCHED_COUNTERS = sizeof sched_counters / sizeof *sched_counters };
static const char *const sched_parts[] = {"control", "sums", "parameter shards", "secondary shards", "matrices",
                                          "staging", "gradient slots", "whole gradients"};
#define X(id, words) words,
static const char *const sched_kinds[] = {RECORD_KINDS(X)}, *const sched_collectives[] = {RECORD_COLLECTIVES(X)},
                         *const sched_comms[] = {RECORD_COMMUNICATORS(X)}, *const sched_doings[] = {RECORD_PARTS(X)};
#undef X
static const char *sched_memory(int m) {
  return m < 0 ? "elsewhere" : m < WORK_PARTS ? sched_parts[m] : memory_words[m - WORK_PARTS];
}
static int sched_counter(const SchedEntry *x) { return (int)(x->e.access.at / 64) & 7; }
TEST_HOT static bool sched_is_access(const SchedEntry *x) { return x->e.kind == RECORD_ACCESS; }
// One line for an entry.
static void sched_line(char *to, size_t bytes, const SchedRun *run, int rank, int at, const SchedEntry *x) {
  const RecordEntry *e = &x->e;
  int n = snprintf(to, bytes, "rank %d %5d pass %u %-6s %-6s of stage %d, round %u: %s ", rank, at, e->pass,
                   sched_streams[e->stream], sched_doings[e->place.what], e->place.stage, e->place.round,
                   sched_kinds[e->kind]);
  to += n, bytes -= (size_t)n;
  switch (e->kind) {
    case RECORD_EVENT: case RECORD_WAIT: case RECORD_DONE: case RECORD_ENDED:
      snprintf(to, bytes, "%d, %s", e->number, run->told[rank]->name[e->number % SCHED_NAMES]);
      break;
    case RECORD_PUBLISH: case RECORD_OBSERVE:
      snprintf(to, bytes, "%s of rank %d: %zu", sched_counters[sched_counter(x)], e->rank, e->access.bytes);
      break;
    case RECORD_COLLECTIVE:
      snprintf(to, bytes, "%s over %s, %zu of them, %zu bytes", sched_collectives[e->op], sched_comms[e->number],
               (size_t)e->access.at, e->access.bytes);
      break;
    case RECORD_SYNC: case RECORD_POINT: break;
    default:
      snprintf(to, bytes, "%s%s %s%s%s %zu + %zu of rank %d, with rank %d, %d cells", x->reads ? "r" : "",
               x->writes ? "w" : "", sched_is_access(x) ? op_word(e->op) : "", x->mirror ? " mirror " : " ",
               sched_memory(x->memory), (size_t)e->access.at, e->access.bytes, x->owner, e->rank, x->cells);
  }
}
static void sched_dump(FILE *to, const SchedRun *run) {
  char line[320];
  for (int r = 0; r < run->world; r++) for (int i = 0; i < run->count[r]; i++) {
    sched_line(line, sizeof line, run, r, i, &run->entry[r][i]);
    fprintf(to, "%s\n", line);
  }
}
static int sched_thread(const SchedRun *run, int rank, int stream) {
  return rank * RECORD_STREAMS + (run->one_sequence ? 0 : stream);
}

// ---- from addresses to cells
// A part of memory that starts at `key`: owner, block and place. threads: that touch it. cell: its number among those
// that matter, or of the next one.
struct SchedPart { uint64_t key; uint32_t threads; bool matters; int cell; };
struct SchedCut { SchedPart *part; int parts; };
static uint64_t sched_key(const SchedEntry *x) {
  return (uint64_t)(x->owner * 128 + x->e.block + 1) << 48 | (uint64_t)x->e.access.at;
}
static bool sched_touches(const SchedEntry *x) {
  return x->reads || x->writes || x->e.kind == RECORD_HOLD || x->e.kind == RECORD_FREE;
}
TEST_HOT static int sched_key_order(const void *x, const void *y) {
  const uint64_t a = ((const SchedPart *)x)->key, b = ((const SchedPart *)y)->key;
  return a < b ? -1 : a > b;
}
static SchedPart *sched_part_at(const SchedCut *c, uint64_t key) {
  const SchedPart wanted = {key, 0, false, 0};
  return (SchedPart *)bsearch(&wanted, c->part, (size_t)c->parts, sizeof wanted, sched_key_order);
}
// What a raw entry touches.
static SchedEntry sched_entry(const SchedRun *run, int rank, const RecordEntry *e) {
  SchedEntry x = {};
  x.e = *e;
  x.owner = e->kind == RECORD_SEND || e->kind == RECORD_RECEIVE ? rank : e->rank;
  x.reads = e->kind == RECORD_SEND || (e->kind == RECORD_ACCESS && e->access.kind != ACCESS_WRITE);
  x.writes = e->kind == RECORD_RECEIVE || (e->kind == RECORD_ACCESS && e->access.kind != ACCESS_READ);
  x.memory = -1;
  if (e->block < 0 || !sched_touches(&x)) return x;
  const SchedTold *t = run->told[x.owner];
  if (e->block >= 2) x.memory = WORK_PARTS + t->line[e->block - 2];
  x.mirror = run->mirrored && e->block == 0;
  for (int i = 0; i < WORK_PARTS && e->block < 2; i++)           // the last one may continue, with its peers'
    if (t->part[i].bytes && e->access.at + (e->block == 1) * t->on_host >= t->part[i].at &&
        (x.memory < 0 || t->part[i].at >= t->part[x.memory].at)) x.memory = i;
  return x;
}
// Whether an entry is of StepState, which comes first in its block.
static bool sched_is_state(const SchedEntry *x) {
  return x->memory == WORK_PARTS + MEM_STEP && x->e.access.at + x->e.access.bytes <= sizeof(StepState);
}
// Cuts memory. Parts matter that several streams or ranks touch, what is gathered, held, reduced or sent, and the
// step's state.
static SchedCut sched_cut(SchedRun *run) {
  size_t most = 1;
  for (int r = 0; r < run->world; r++) most += 2 * (size_t)run->count[r];
  SchedCut c = {(SchedPart *)calloc(most, sizeof(SchedPart)), 0};
  int n = 0;
  for (int pass = 0; pass < 2; pass++) {
    for (int r = 0; r < run->world; r++) for (int i = 0; i < run->count[r]; i++) {
      const SchedEntry *x = &run->entry[r][i];
      if (!sched_touches(x)) continue;
      const uint64_t from = sched_key(x), to = from + x->e.access.bytes;
      const int what = x->e.place.what;
      if (!pass) c.part[c.parts++].key = from, c.part[c.parts++].key = to;
      for (SchedPart *p = pass ? sched_part_at(&c, from) : NULL; p && p->key < to; p++) {
        p->threads |= 1u << sched_thread(run, r, x->e.stream);
        p->matters = p->matters || x->e.kind != RECORD_ACCESS || (what != SCHEDULE_MODEL && what != SCHEDULE_UPDATE) ||
                     (p->threads & (p->threads - 1)) || sched_is_state(x);
      }
    }
    if (!pass) qsort(c.part, (size_t)c.parts, sizeof *c.part, sched_key_order);
    for (int i = 0; i < c.parts && !pass; i++) if (!n || c.part[i].key != c.part[n - 1].key) c.part[n++] = c.part[i];
    c.parts = n;
  }
  for (int i = 0; i < c.parts; i++) c.part[i].cell = run->cells, run->cells += c.part[i].matters;
  return c;
}
static int sched_group(const SchedRun *run, int over, int rank, int *first) {
  const int S = run->mesh.shards, K = run->mesh.secondary ? run->mesh.secondary : 1;
  *first = over == OVER_WORLD ? 0 : over == OVER_SECONDARY ? rank / K * K
           : over == OVER_REPLICATE ? rank % S : rank / S * S;
  return over == OVER_WORLD ? run->world : over == OVER_SECONDARY ? K : over == OVER_REPLICATE ? run->mesh.replicas : S;
}
// The next entry of `rank` from `at` on of that kind with a peer: messages of a channel, or values of a counter.
TEST_HOT static SchedEntry *sched_next(const SchedRun *run, int rank, int *at, RecordKind kind, int peer, int which) {
  for (; *at < run->count[rank]; ++*at) {
    SchedEntry *x = &run->entry[rank][*at];
    const bool same = x->e.kind == kind && x->e.rank == peer;
    if (same && (sched_touches(x) ? (int)x->e.op : sched_counter(x)) == which) return x;
  }
  return NULL;
}
// Finds what each entry needs of another rank. Counters only grow.
static void sched_pair(SchedRun *run) {
  for (int from = 0; from < run->world; from++) for (int to = 0; to < run->world; to++) {
    for (int channel = 0, i = 0, j = 0; channel < CHANNEL_NCCL + COMMUNICATORS; channel++, i = j = 0)
      for (SchedEntry *x, *y; (x = sched_next(run, from, &i, RECORD_SEND, to, channel)) &&
                              (y = sched_next(run, to, &j, RECORD_RECEIVE, from, channel)); i++, j++)
        x->other = y->id, y->other = x->id;
    for (int counter = 0, i = 0; counter < SCHED_COUNTERS; counter++, i = 0)
      for (SchedEntry *x; (x = sched_next(run, to, &i, RECORD_OBSERVE, from, counter)); i++) {
        int j = 0;
        SchedEntry *y = sched_next(run, from, &j, RECORD_PUBLISH, from, counter);
        while (y && y->e.access.bytes < x->e.access.bytes)
          j++, y = sched_next(run, from, &j, RECORD_PUBLISH, from, counter);
        x->other = y && x->e.access.bytes ? y->id : -1;
      }
  }
  int met[SCHED_RANKS][COMMUNICATORS] = {};
  for (int r = 0; r < run->world; r++) for (int i = 0; i < run->count[r]; i++) {
    SchedEntry *x = &run->entry[r][i];
    if (x->e.kind != RECORD_COLLECTIVE) continue;
    int first;
    sched_group(run, x->e.number, r, &first);
    x->other = (met[r][x->e.number]++ * COMMUNICATORS + x->e.number) * SCHED_RANKS + first;
    if (x->other >= run->meetings) run->meetings = x->other + 1;
  }
}
// Numbers the run's entries, and leaves out what touches nothing that matters. NCCL's waits ask an event before the
// host waits for its stream, which orders more.
static void sched_build(SchedRun *run) {
  SchedCut c = sched_cut(run);
  for (int r = 0; r < run->world; r++) {
    SchedEntry *log = run->entry[r];
    bool receives[SCHED_NAMES] = {};
    int n = 0;
    run->base[r] = run->entries;
    for (int i = 0; i < run->count[r]; i++) {
      SchedEntry x = log[i];
      const bool named = x.e.kind == RECORD_EVENT || x.e.kind == RECORD_DONE;
      if (sched_touches(&x)) {
        x.first = sched_part_at(&c, sched_key(&x))->cell;
        x.cells = sched_part_at(&c, sched_key(&x) + x.e.access.bytes)->cell - x.first;
      }
      if (x.e.kind == RECORD_POINT || (named && !strcmp(run->told[r]->name[x.e.number], "drained")) ||
          (x.e.kind == RECORD_ACCESS && !x.cells)) continue;
      if (x.e.kind == RECORD_RECEIVE) receives[x.e.number] = true;
      if (x.e.kind == RECORD_ENDED) x.arrives = receives[x.e.number], receives[x.e.number] = false;
      x.id = run->entries++;
      log[n++] = x;
    }
    run->count[r] = n;
  }
  sched_pair(run);
  run->found = (SchedFound *)calloc((size_t)run->entries + 1, sizeof(SchedFound));
  free(c.part);
}

// ---- clocks
TEST_HOT static bool sched_join(SchedClock *to, const SchedClock *from) {
  bool news = false;
  for (int i = 0; i < SCHED_THREADS; i++)
    if (from->t[i] > to->t[i]) to->t[i] = from->t[i], news = true;
  return news;
}

// ---- violations
__attribute__((format(printf, 4, 5))) static bool sched_wrong(SchedCheck *k, int rank, int at, const char *fmt, ...) {
  char line[320], what[180];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(what, sizeof what, fmt, ap);
  va_end(ap);
  sched_line(line, sizeof line, k->run, rank, at, &k->run->entry[rank][at]);
  snprintf(k->error, sizeof k->error, "%s: %s", line, what);
  return false;
}

// ---- memory
// Whether all messages out of this cell have left or arrived before an event that knows `now`.
static bool sched_messages_over(SchedCheck *k, SchedCell *c, const SchedClock *now) {
  for (int i = 0; i < c->outs; i++) {
    bool over = false;
    for (int end = c->out[i], both = 0; both < 2 && end >= 0; both++, end = k->past[c->out[i]].other)
      over = over || (k->past[end].over_at && now->t[k->past[end].over_by] >= k->past[end].over_at);
    if (!over) return false;
  }
  c->outs = 0;
  return true;
}
// Why what is in the cell is not what entry x may read there; NULL: it is.
static const char *sched_is_wrong_state(const SchedEntry *x, const SchedCell *c) {
  const bool here = c->pass == x->e.pass, decided = x->e.place.what == SCHEDULE_UPDATE || x->e.op == OP_COPY;
  if (c->input) return here ? NULL : "the step's input is not there yet";
  return here == decided ? NULL : decided ? "the step is not decided yet" : "the step is decided already";
}
static const char *sched_is_wrong_writer(const SchedRun *run, int rank, const SchedEntry *x, const SchedCell *c) {
  if (c->state) return sched_is_wrong_state(x, c);
  const SchedulePlace d = x->e.place, w = c->place;
  const bool shards = x->memory == WORK_PARAMS || x->memory == WORK_PARTS + MEM_HOST_PARAMS;
  const bool here = c->pass == x->e.pass && w.stage == d.stage;
  const bool model = d.what == SCHEDULE_MODEL || d.what == SCHEDULE_EXPAND;
  const int stage = d.what == SCHEDULE_MODEL ? c->held_stage : d.stage;
  // Where weights are at other times, the model's own buffers may: it reads there what it has written in this pass.
  if (c->weights && d.what == SCHEDULE_MODEL && w.what == SCHEDULE_MODEL && c->writer && c->pass == x->e.pass &&
      !(c->held >> rank & 1)) return NULL;
  if (shards && c->updated && (model || d.what == SCHEDULE_GATHER) &&
      (x->e.pass == 1 ? w.what == SCHEDULE_UPDATE : w.what != SCHEDULE_UPDATE || c->pass + 1 != x->e.pass))
    return "the shard is not that of the update before";
  if (c->weights && d.what == SCHEDULE_MODEL && !(c->held >> rank & 1)) return "no stage is held there";
  if (c->weights && model && !(run->in_place && shards) &&
      ((w.what != SCHEDULE_GATHER && w.what != SCHEDULE_EXPAND) || w.stage != stage || c->pass != x->e.pass))
    return "the stage is not what is there";
  if (d.what == SCHEDULE_GATHER && !shards && (w.what != SCHEDULE_GATHER || !here)) return "another stage is there";
  if (d.what != SCHEDULE_REDUCE || x->writes) return NULL;
  if (!c->gradient)
    return w.what != SCHEDULE_REDUCE || (here && w.round == d.round) ? NULL : "another round is there";
  // Gaps too, which are zero: from the start, or because sums of gaps are there, or zeroed since the buffer was begun.
  if (c->stale && (c->modelled || (c->writer && w.what != SCHEDULE_REDUCE)))
    return "nothing was written there since the buffer was begun";
  return !c->held || c->held_stage != d.stage ? "no gradient of this stage is complete there" : NULL;
}
static bool sched_read(SchedCheck *k, int rank, int at, int thread) {
  SchedRun *run = k->run;
  const SchedEntry *x = &run->entry[rank][at];
  SchedClock *now = &k->clock[thread];
  SchedFound found = {0, -1, -1, false};
  const uint32_t time = now->t[thread] + 1;
  for (int i = x->first; i < x->first + x->cells; i++) {
    SchedCell *c = &k->cell[i];
    if (c->write_time > now->t[c->write_thread]) return sched_wrong(k, rank, at, "not ordered after the last write");
    const char *why = sched_is_wrong_writer(run, rank, x, c);
    if (why) return sched_wrong(k, rank, at, "%s, but %s of stage %d, round %u of pass %u", why,
                                sched_doings[c->place.what], c->place.stage, c->place.round, c->pass);
    c->reads[thread] = time;
    found.writers = (found.writers ^ (uint64_t)c->writer) * 0x9e3779b97f4a7c15ull;
    if (!c->writer) continue;
    const int w = c->writer - 1, of = c->write_thread / RECORD_STREAMS;
    found.updated = found.updated || c->place.what == SCHEDULE_UPDATE;
    if (of == rank && (found.first < 0 || w < found.first)) found.first = w;
    if (of == rank && w > found.last) found.last = w;
    if (x->memory == WORK_PARAMS && x->e.place.what != SCHEDULE_UPDATE) k->reads[rank][of] = true;
  }
  now->t[thread] = time;
  if (run->known && run->found[x->id].writers != found.writers)
    return sched_wrong(k, rank, at, "it does not find what the program's order has written there");
  run->found[x->id] = found;
  return true;
}
// since: the clock when the memory may first be written, which for a message is before its arrival. by: the entry that
// counts as the writer.
TEST_HOT static bool sched_write(SchedCheck *k, int rank, int at, int thread, const SchedEntry *x,
                                 const SchedClock *since) {
  const SchedRun *run = k->run;
  SchedClock *now = &k->clock[thread];
  const uint32_t time = now->t[thread] + 1;
  for (int i = x->first; i < x->first + x->cells; i++) {
    SchedCell *c = &k->cell[i];
    if (c->write_time > since->t[c->write_thread]) return sched_wrong(k, rank, at, "not ordered after another write");
    for (int t = 0; t < SCHED_THREADS; t++)
      if (c->reads[t] > since->t[t]) sched_wrong(k, rank, at, "not ordered after a read");
    if (!sched_messages_over(k, c, since)) return sched_wrong(k, rank, at, "a message from there may not have left");
    if (c->freed && (c->weights || x->e.place.what == SCHEDULE_MODEL)) k->past[c->freed - 1].useful = true;
    c->freed = 0;
    if (c->held && c->weights) return sched_wrong(k, rank, at, "the model still holds stage %d there", c->held_stage);
    if (c->held && x->e.place.what == SCHEDULE_MODEL)
      return sched_wrong(k, rank, at, "the gradient of stage %d is being reduced there", c->held_stage);
    memset(c->reads, 0, sizeof c->reads);
    c->write_thread = thread, c->write_time = time;
    c->stale = c->stale && x->e.place.what != SCHEDULE_MODEL;
    c->writer = run->entry[rank][at].id + 1, c->pass = x->e.pass, c->place = x->e.place;
  }
  now->t[thread] = time;
  return true;
}
static void sched_hold(SchedCheck *k, int rank, const SchedEntry *x) {
  for (int i = x->first; i < x->first + x->cells; i++) {
    SchedCell *c = &k->cell[i];
    const uint32_t before = c->held;
    if (c->held && x->e.kind == RECORD_FREE && x->e.op != c->held_what) continue;        // something else is there
    if (x->e.kind == RECORD_HOLD)
      c->held |= 1u << rank, c->held_stage = x->e.number, c->held_what = x->e.op, c->freed = 0;
    else c->held &= ~(1u << rank), c->stale = c->gradient;
    if (x->e.kind == RECORD_FREE) c->freed = before != c->held ? x->id + 1 : 0;
  }
}

// ---- ordering between ranks. Each function returns false if it must wait for another rank, or after a violation.
// Takes over what another entry knew.
static void sched_learn(SchedCheck *k, const SchedEntry *x, SchedClock *now, int from) {
  if (sched_join(now, &k->past[from].clock)) k->past[x->id].useful = k->past[from].useful = true;
}
static bool sched_message(SchedCheck *k, int rank, int at, int thread) {
  const SchedEntry *x = &k->run->entry[rank][at];
  if (x->reads && !sched_read(k, rank, at, thread)) return false;
  for (int i = x->first; i < x->first + x->cells; i++) {
    SchedCell *c = &k->cell[i];
    if (x->writes && c->held && c->weights)
      return sched_wrong(k, rank, at, "the model still holds stage %d there", c->held_stage);
    if (c->outs == SCHED_OUT_MAX) return sched_wrong(k, rank, at, "too many messages");
    if (x->reads) c->out[c->outs++] = x->id;
  }
  SchedPast *p = &k->past[x->id];
  p->other = x->other;
  if (x->reads && x->e.op >= CHANNEL_NCCL) {     // it ends in its stream
    p->over_by = thread;
    p->over_at = k->clock[thread].t[thread];
    return true;
  }
  if (k->opens[rank] == SCHED_OPEN_MAX) return sched_wrong(k, rank, at, "too many open messages");
  k->open[rank][k->opens[rank]++] = x;
  return true;
}
// A set of messages: those to this rank arrive, memory of those from it is free again.
static bool sched_ended(SchedCheck *k, int rank, int at, int thread) {
  const SchedEntry *x = &k->run->entry[rank][at];
  SchedClock *now = &k->clock[thread];
  int left = 0;
  for (int i = 0; i < k->opens[rank]; i++) {
    const SchedEntry *m = k->open[rank][i];
    if (m->e.number == x->e.number && m->writes && (m->other < 0 || !k->past[m->other].done)) return false;
  }
  for (int i = 0; i < k->opens[rank]; i++) {
    const SchedEntry *m = k->open[rank][i];
    if (m->e.number != x->e.number) { k->open[rank][left++] = m; continue; }
    SchedClock since = k->past[m->id].clock;
    if (m->writes) {
      sched_join(&since, &k->past[m->other].clock);
      sched_learn(k, x, now, m->other);
      if (!sched_write(k, rank, at, thread, m, &since)) return false;
    } else k->past[x->id].useful = true;
    k->past[m->id].over_by = thread;
    k->past[m->id].over_at = ++now->t[thread];
  }
  k->opens[rank] = left;
  return true;
}
// Chains are messages. Of a broadcast the last rank takes nothing.
static bool sched_same_collective(const RecordEntry *x, const RecordEntry *y) {
  return x->op == y->op && x->number == y->number && x->place.stage == y->place.stage && x->access.at == y->access.at &&
         (x->op == COLLECTIVE_BROADCAST || x->access.bytes == y->access.bytes);
}
static bool sched_meet(SchedCheck *k, int rank, int at, int thread) {
  const SchedEntry *x = &k->run->entry[rank][at];
  const int over = x->e.number;
  if (over == OVER_NONE) return true;
  int first;
  const int size = sched_group(k->run, over, rank, &first);
  const bool last = rank == first + (size - 1) * (over == OVER_REPLICATE ? k->run->mesh.shards : 1);
  SchedMeeting *m = &k->meeting[x->other];
  if (!k->waiting[rank]) {
    if (m->e && !sched_same_collective(m->e, &x->e))
      return sched_wrong(k, rank, at, "another rank is in another collective");
    m->e = &x->e;
    sched_join(&m->all, &k->clock[thread]);
    if (last) m->last = k->clock[thread];
    m->members++;
    k->waiting[rank] = true;
  }
  if (m->members < size) return false;
  k->waiting[rank] = false;
  k->past[x->id].useful = sched_join(&k->clock[thread], x->e.op == COLLECTIVE_BROADCAST ? &m->last : &m->all);
  return true;
}

// Processes the next entry of `rank`. False: it must wait, or k->error says what is wrong.
TEST_HOT static bool sched_step(SchedCheck *k, int rank) {
  const int at = k->at[rank];
  const SchedEntry *x = &k->run->entry[rank][at];
  const int thread = sched_thread(k->run, rank, x->e.stream), host = sched_thread(k->run, rank, RECORD_HOST);
  SchedClock *now = &k->clock[thread];
  sched_join(now, &k->clock[host]);              // the host did this before it enqueued the entry
  k->past[x->id].clock = *now;
  switch (x->e.kind) {
    case RECORD_ACCESS:
      if (x->reads && !sched_read(k, rank, at, thread)) return false;
      if (x->writes && !sched_write(k, rank, at, thread, x, now)) return false;
      break;
    case RECORD_EVENT: k->event[rank][x->e.number] = x->id + 1; break;
    case RECORD_WAIT: case RECORD_DONE: {
      const int recorded = k->event[rank][x->e.number];
      if (!recorded && x->e.kind == RECORD_DONE) break;          // recorded before the record started
      if (!recorded) return sched_wrong(k, rank, at, "nobody has recorded this event");
      sched_learn(k, x, x->e.kind == RECORD_WAIT ? now : &k->clock[host], recorded - 1);
      break;
    }
    case RECORD_SYNC: sched_join(&k->clock[host], now); break;
    case RECORD_OBSERVE:
      if (x->other >= 0 && !k->past[x->other].done) return false;
      if (x->other >= 0) sched_learn(k, x, now, x->other);
      break;
    case RECORD_SEND: case RECORD_RECEIVE: if (!sched_message(k, rank, at, thread)) return false; break;
    case RECORD_ENDED: if (!sched_ended(k, rank, at, thread)) return false; break;
    case RECORD_COLLECTIVE: if (!sched_meet(k, rank, at, thread)) return false; break;
    case RECORD_HOLD: case RECORD_FREE: sched_hold(k, rank, x); break;
    case RECORD_PUBLISH: case RECORD_POINT: break;
  }
  if (x->e.kind == RECORD_SEND) k->past[x->id].clock = *now;     // with its read
  k->past[x->id].done = true;
  k->at[rank]++;
  return true;
}
// Where ranks poll, sums start to go back to the replicas when a rank has come to it.
TEST_HOT static bool sched_compared(const SchedEntry *x) {
  return x->e.kind == RECORD_COLLECTIVE && x->e.op != COLLECTIVE_RETURN;
}
// All ranks begin the same collectives in the same order.
static bool sched_same_order(SchedCheck *k) {
  const SchedRun *run = k->run;
  for (int r = 1; r < run->world; r++)
    for (int a = 0, b = 0;; a++, b++) {
      while (a < run->count[0] && !sched_compared(&run->entry[0][a])) a++;
      while (b < run->count[r] && !sched_compared(&run->entry[r][b])) b++;
      if (a >= run->count[0] && b >= run->count[r]) break;
      if (a >= run->count[0]) return sched_wrong(k, r, b, "rank 0 does not start it");
      if (b >= run->count[r]) return sched_wrong(k, 0, a, "rank %d does not start it", r);
      const RecordEntry *x = &run->entry[0][a].e;
      if (!sched_same_collective(x, &run->entry[r][b].e))
        return sched_wrong(k, r, b, "rank 0 starts %s of stage %d with %zu bytes", sched_collectives[x->op],
                           x->place.stage, x->access.bytes);
    }
  return true;
}
// What is ever held, and which shards are updated.
TEST_HOT static void sched_mark_cells(SchedCheck *k) {
  for (int r = 0; r < k->run->world; r++) for (int i = 0; i < k->run->count[r]; i++) {
    const SchedEntry *x = &k->run->entry[r][i];
    for (int j = x->first; j < x->first + x->cells; j++) {
      SchedCell *c = &k->cell[j];
      if (x->e.kind == RECORD_HOLD) (x->e.op == HELD_WEIGHTS ? c->weights : c->gradient) = true;
      if (sched_is_access(x) && sched_is_state(x)) {
        c->state = true;
        c->input = c->input || x->e.access.at + x->e.access.bytes <= sizeof(StepInput);
      }
      if (!sched_is_access(x) || !x->writes) continue;
      if (x->e.place.what == SCHEDULE_UPDATE) c->updated = true;
      if (x->e.place.what == SCHEDULE_MODEL) c->modelled = true;
    }
  }
}
// Replays the records of all ranks. NULL: everything holds.
static const char *sched_check(SchedRun *run) {
  SchedCheck *k = &sched_check_state;
  free(k->meeting); free(k->cell); free(k->past);
  memset(k, 0, sizeof *k);
  k->run = run;
  k->cell = (SchedCell *)calloc((size_t)run->cells + 1, sizeof(SchedCell));
  k->past = (SchedPast *)calloc((size_t)run->entries + 1, sizeof(SchedPast));
  k->meeting = (SchedMeeting *)calloc((size_t)run->meetings + 1, sizeof(SchedMeeting));
  sched_mark_cells(k);
  if (!sched_same_order(k)) return k->error;
  for (bool moved = true, all = false; !all;) {
    moved = false;
    all = true;
    for (int r = 0; r < run->world; r++) {
      while (k->at[r] < run->count[r] && sched_step(k, r)) moved = true;
      if (k->error[0]) return k->error;
      all = all && k->at[r] == run->count[r];
    }
    if (moved || all) continue;
    for (int r = 0; r < run->world; r++) if (k->at[r] < run->count[r]) sched_wrong(k, r, k->at[r], "waits for ever");
    return k->error;
  }
  for (int r = 0; r < run->world; r++)
    for (int i = 0; i < k->opens[r]; i++)
      if (k->open[r][i]->writes) snprintf(k->error, sizeof k->error, "rank %d never waits for a message", r);
  return k->error[0] ? k->error : NULL;
}
