// test_schedule_log.h: proves the order of the schedule from the record of a run (kernels/record.h), for every mode.
//
// Happens-before (Lamport 1978) by vector clocks (Mattern 1989): one component per stream and host of each rank, which
// counts its accesses. The records of all ranks are replayed together; an entry that needs another rank's entry waits
// for it. Memory is cut where any access begins or ends, and parts that the same entries touch are one cell. Two accesses
// to a cell, one of them a write, must be ordered (as race detectors require: Flanagan and Freund 2009, FastTrack). Then
// every read finds one writer, and that must be the right one:
//   no use before its gather              the model reads weights only while their stage is held, and finds what the
//                                         gather of this stage and pass has written there, or has been expanded from it;
//                                         shards are those of the update before
//   no slot reused before its last reader nothing writes there while the stage is held
//   no gradient reduced before its last   a gradient is reduced only while it is held, which it is from its last write
//     writer                              on; what was rounded or received for a round is added in that round
//   equal order on every rank             the collectives of all ranks are compared one by one, and again where those
//                                         of one communicator meet
// The record itself is broken on purpose, each entry in turn. Each break must be found, or other entries must already
// have established the order (the broken entry orders nothing new). A read that was moved must find another writer than
// in the order of the program, or be found before.

enum { SCHED_RANKS = 6, SCHED_THREADS = SCHED_RANKS * RECORD_STREAMS, SCHED_NAMES = 128, SCHED_OUT_MOST = 64,
       SCHED_OPEN_MOST = 512 };
struct SchedClock { uint32_t t[SCHED_THREADS]; };
// An entry, and the cells that it touches: [first, first + cells). memory: a part of working memory, or a line of the
// plan behind these; mirror: of the window, where working memory is the device's. other: the entry whose PUBLISH it has
// seen, the other end of a message, or the number of a meeting. arrives: a set of messages that had some for this rank.
struct SchedEntry {
  RecordEntry e;
  int id, owner, memory, first, cells, other;
  bool reads, writes, mirror, arrives;
};
// What a read found in the run: which entries of its own rank wrote that first and last (-1: none), whether in an update.
struct SchedFound { uint64_t writers; int first, last; bool updated; };
// What ranks tell rank 0 besides their entries.
struct SchedTold { char name[SCHED_NAMES][24]; WorkPart part[WORK_PARTS]; size_t on_host; int line[MEMORY_BLOCKS_MOST]; };
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
  int write_thread, writer, held_stage, freed, outs, out[SCHED_OUT_MOST];
  uint32_t write_time, pass, reads[SCHED_THREADS], held;
  Doing doing;
  bool weights, gradient, updated, modelled, stale;
};
struct SchedMeeting { int members; const RecordEntry *e; SchedClock all, last; };
// What is known of an entry: its clock. other: the other end of a message; over: when its message had left or arrived, on which thread. useful: it
// established a new order.
struct SchedPast { bool done, useful; int other, over_by; uint32_t over_at; SchedClock clock; };
// The state of a replay. open: messages that have not ended. reads: whose shards a rank has read in place.
struct SchedCheck {
  SchedRun *run;
  int at[SCHED_RANKS], opens[SCHED_RANKS], event[SCHED_RANKS][SCHED_NAMES];    // event: the entry, plus 1
  bool waiting[SCHED_RANKS], reads[SCHED_RANKS][SCHED_RANKS];
  SchedClock clock[SCHED_THREADS];
  const SchedEntry *open[SCHED_RANKS][SCHED_OPEN_MOST];
  SchedCell *cell;
  SchedPast *past;                               // [entries]
  SchedMeeting *meeting;
  char error[512];
};
static SchedCheck sched_check_state;

static const char *const sched_streams[] = {"model", "gather", "reduce", "host"};
static const char *const sched_counters[] = {"ready", "done", "partial", "kept"};
static const char *const sched_parts[] = {"control", "sums", "parameter shards", "kept shards", "gradient slots",
                                          "whole gradients", "staging"};
#define X(id, words) words,
static const char *const sched_kinds[] = {RECORD_KINDS(X)}, *const sched_collectives[] = {RECORD_COLLECTIVES(X)},
                         *const sched_comms[] = {RECORD_COMMUNICATORS(X)}, *const sched_doings[] = {RECORD_PARTS(X)};
#undef X
static const char *sched_memory(int m) {
  return m < 0 ? "elsewhere" : m < WORK_PARTS ? sched_parts[m] : memory_words[m - WORK_PARTS];
}
static int sched_counter(const SchedEntry *x) { return (int)(x->e.access.at / 64) & 3; }
static bool sched_is_access(const SchedEntry *x) { return x->e.kind == RECORD_ACCESS; }
// One line for an entry.
static void sched_line(char *to, size_t bytes, const SchedRun *run, int rank, int at, const SchedEntry *x) {
  const RecordEntry *e = &x->e;
  int n = snprintf(to, bytes, "rank %d %5d pass %u %-6s %-6s of stage %d, round %u: %s ", rank, at, e->pass,
                   sched_streams[e->stream], sched_doings[e->doing.what], e->doing.stage, e->doing.round,
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
               x->writes ? "w" : "", sched_is_access(x) ? op_words[e->op] : "", x->mirror ? " mirror " : " ",
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
// A part of memory that begins at `key`: owner, block and place. threads: that touch it. cell: its number among those that
// matter, or of the next one.
struct SchedPart { uint64_t key; uint32_t threads; bool matters; int cell; };
struct SchedCut { SchedPart *part; int parts; };
static uint64_t sched_key(const SchedEntry *x) {
  return (uint64_t)(x->owner * 128 + x->e.block + 1) << 48 | (uint64_t)x->e.access.at;
}
static bool sched_touches(const SchedEntry *x) {
  return x->reads || x->writes || x->e.kind == RECORD_HOLD || x->e.kind == RECORD_FREE;
}
static int sched_key_order(const void *x, const void *y) {
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
  for (int i = 0; i < WORK_PARTS && e->block < 2; i++)           // the last one may go on, with its peers'
    if (t->part[i].bytes && e->access.at + (e->block == 1) * t->on_host >= t->part[i].at &&
        (x.memory < 0 || t->part[i].at >= t->part[x.memory].at)) x.memory = i;
  return x;
}
// Cuts memory. Parts matter that several streams or ranks touch, and what is gathered, held, reduced or sent.
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
      const int what = x->e.doing.what;
      if (!pass) c.part[c.parts++].key = from, c.part[c.parts++].key = to;
      for (SchedPart *p = pass ? sched_part_at(&c, from) : NULL; p && p->key < to; p++) {
        p->threads |= 1u << sched_thread(run, r, x->e.stream);
        if (x->e.kind != RECORD_ACCESS || (what != DOING_MODEL && what != DOING_UPDATE) || (p->threads & (p->threads - 1)))
          p->matters = true;
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
  const int S = run->mesh.shards, kept = run->mesh.kept ? run->mesh.kept : 1;
  *first = over == OVER_WORLD ? 0 : over == OVER_KEPT ? rank / kept * kept
           : over == OVER_REPLICATE ? rank % S : rank / S * S;
  return over == OVER_WORLD ? run->world : over == OVER_KEPT ? kept : over == OVER_REPLICATE ? run->mesh.replicas : S;
}
// The next entry of `rank` from `at` on of that kind with a peer: messages of a channel, or values of a counter.
static SchedEntry *sched_next(const SchedRun *run, int rank, int *at, RecordKind kind, int peer, int which) {
  for (; *at < run->count[rank]; ++*at) {
    SchedEntry *x = &run->entry[rank][*at];
    if (x->e.kind == kind && x->e.rank == peer && (sched_touches(x) ? (int)x->e.op : sched_counter(x)) == which) return x;
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
    for (int counter = 0, i = 0; counter < 4; counter++, i = 0)
      for (SchedEntry *x; (x = sched_next(run, to, &i, RECORD_OBSERVE, from, counter)); i++) {
        int j = 0;
        SchedEntry *y = sched_next(run, from, &j, RECORD_PUBLISH, from, counter);
        while (y && y->e.access.bytes < x->e.access.bytes) j++, y = sched_next(run, from, &j, RECORD_PUBLISH, from, counter);
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
// Numbers the run's entries, and leaves out what touches nothing that matters. NCCL's waits ask an event before the host
// waits for its stream, which orders more.
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
static bool sched_join(SchedClock *to, const SchedClock *from) {
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
// Why what lies in the cell is not what entry x may read there; NULL: it is.
static const char *sched_is_wrong_writer(const SchedRun *run, int rank, const SchedEntry *x, const SchedCell *c) {
  const Doing d = x->e.doing, w = c->doing;
  const bool shards = x->memory == WORK_PARAMS, here = c->pass == x->e.pass && w.stage == d.stage;
  const bool model = d.what == DOING_MODEL || d.what == DOING_EXPAND;
  const int stage = d.what == DOING_MODEL ? c->held_stage : d.stage;
  if (shards && c->updated && (model || d.what == DOING_GATHER) &&
      (x->e.pass == 1 ? w.what == DOING_UPDATE : w.what != DOING_UPDATE || c->pass + 1 != x->e.pass))
    return "the shard is not that of the update before";
  if (c->weights && d.what == DOING_MODEL && !(c->held >> rank & 1)) return "no stage is held there";
  if (c->weights && model && !(run->in_place && shards) &&
      ((w.what != DOING_GATHER && w.what != DOING_EXPAND) || w.stage != stage || c->pass != x->e.pass))
    return "the stage is not what lies there";
  if (d.what == DOING_GATHER && w.what == DOING_GATHER && !here) return "another stage lies there";
  if (d.what != DOING_REDUCE || x->writes) return NULL;
  if (!c->gradient) return w.what != DOING_REDUCE || (here && w.round == d.round) ? NULL : "another round lies there";
  if (c->modelled && c->stale) return "nothing was written there since the buffer was begun";
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
                                sched_doings[c->doing.what], c->doing.stage, c->doing.round, c->pass);
    c->reads[thread] = time;
    found.writers = (found.writers ^ (uint64_t)c->writer) * 0x9e3779b97f4a7c15ull;
    if (!c->writer) continue;
    const int w = c->writer - 1, of = c->write_thread / RECORD_STREAMS;
    found.updated = found.updated || c->doing.what == DOING_UPDATE;
    if (of == rank && (found.first < 0 || w < found.first)) found.first = w;
    if (of == rank && w > found.last) found.last = w;
    if (x->memory == WORK_PARAMS && x->e.doing.what != DOING_UPDATE) k->reads[rank][of] = true;
  }
  now->t[thread] = time;
  if (run->known && run->found[x->id].writers != found.writers)
    return sched_wrong(k, rank, at, "it does not find what the program's order has written there");
  run->found[x->id] = found;
  return true;
}
// since: the clock when the memory may first be written, which for a message is before its arrival. by: the entry that
// counts as the writer.
static bool sched_write(SchedCheck *k, int rank, int at, int thread, const SchedEntry *x, const SchedClock *since) {
  const SchedRun *run = k->run;
  SchedClock *now = &k->clock[thread];
  const uint32_t time = now->t[thread] + 1;
  for (int i = x->first; i < x->first + x->cells; i++) {
    SchedCell *c = &k->cell[i];
    if (c->write_time > since->t[c->write_thread]) return sched_wrong(k, rank, at, "not ordered after another write");
    for (int t = 0; t < SCHED_THREADS; t++)
      if (c->reads[t] > since->t[t]) sched_wrong(k, rank, at, "not ordered after a read");
    if (!sched_messages_over(k, c, since)) return sched_wrong(k, rank, at, "a message from there may not have left");
    if (c->freed && (c->weights || x->e.doing.what == DOING_MODEL)) k->past[c->freed - 1].useful = true;
    c->freed = 0;
    if (c->held && c->weights) return sched_wrong(k, rank, at, "the model still holds stage %d there", c->held_stage);
    if (c->held && x->e.doing.what == DOING_MODEL)
      return sched_wrong(k, rank, at, "the gradient of stage %d is being reduced there", c->held_stage);
    memset(c->reads, 0, sizeof c->reads);
    c->write_thread = thread, c->write_time = time;
    c->stale = c->stale && x->e.doing.what != DOING_MODEL;
    c->writer = run->entry[rank][at].id + 1, c->pass = x->e.pass, c->doing = x->e.doing;
  }
  now->t[thread] = time;
  return true;
}
static void sched_hold(SchedCheck *k, int rank, const SchedEntry *x) {
  for (int i = x->first; i < x->first + x->cells; i++) {
    SchedCell *c = &k->cell[i];
    const uint32_t before = c->held;
    if (x->e.kind == RECORD_HOLD) c->held |= 1u << rank, c->held_stage = x->e.number, c->freed = 0;
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
    if (c->outs == SCHED_OUT_MOST) return sched_wrong(k, rank, at, "too many messages");
    if (x->reads) c->out[c->outs++] = x->id;
  }
  SchedPast *p = &k->past[x->id];
  p->other = x->other;
  if (x->reads && x->e.op >= CHANNEL_NCCL) p->over_by = thread, p->over_at = k->clock[thread].t[thread];       // in its stream
  else if (k->opens[rank] == SCHED_OPEN_MOST) return sched_wrong(k, rank, at, "too many open messages");
  else k->open[rank][k->opens[rank]++] = x;
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
  return x->op == y->op && x->number == y->number && x->doing.stage == y->doing.stage && x->access.at == y->access.at &&
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
    if (m->e && !sched_same_collective(m->e, &x->e)) return sched_wrong(k, rank, at, "another rank is in another collective");
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
static bool sched_step(SchedCheck *k, int rank) {
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
      if (!recorded && x->e.kind == RECORD_DONE) break;          // recorded before the record began
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
static bool sched_compared(const SchedEntry *x) { return x->e.kind == RECORD_COLLECTIVE; }
// All ranks begin the same collectives in the same order.
static bool sched_same_order(SchedCheck *k) {
  const SchedRun *run = k->run;
  for (int r = 1; r < run->world; r++)
    for (int a = 0, b = 0;; a++, b++) {
      while (a < run->count[0] && !sched_compared(&run->entry[0][a])) a++;
      while (b < run->count[r] && !sched_compared(&run->entry[r][b])) b++;
      if (a >= run->count[0] && b >= run->count[r]) break;
      if (a >= run->count[0]) return sched_wrong(k, r, b, "rank 0 does not begin it");
      if (b >= run->count[r]) return sched_wrong(k, 0, a, "rank %d does not begin it", r);
      const RecordEntry *x = &run->entry[0][a].e;
      if (!sched_same_collective(x, &run->entry[r][b].e))
        return sched_wrong(k, r, b, "rank 0 begins %s of stage %d with %zu bytes", sched_collectives[x->op],
                           x->doing.stage, x->access.bytes);
    }
  return true;
}
// What is ever held, and which shards are updated.
static void sched_mark_cells(SchedCheck *k) {
  for (int r = 0; r < k->run->world; r++) for (int i = 0; i < k->run->count[r]; i++) {
    const SchedEntry *x = &k->run->entry[r][i];
    for (int j = x->first; j < x->first + x->cells; j++) {
      SchedCell *c = &k->cell[j];
      if (x->e.kind == RECORD_HOLD) (x->e.op == HELD_WEIGHTS ? c->weights : c->gradient) = true;
      if (!sched_is_access(x) || !x->writes) continue;
      if (x->e.doing.what == DOING_UPDATE) c->updated = true;
      if (x->e.doing.what == DOING_MODEL) c->modelled = true;
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

// ---- recording
struct SchedVariant { int steps; int64_t chunk_numel; };
// What the record says has moved: what arrived by messages and in collectives, and what was read of others' windows for
// a purpose.
static Traffic sched_traffic(const Record *r) {
  Traffic t = {};
  for (int i = 0; i < r->count; i++) {
    const RecordEntry *e = &r->entry[i];
    const bool collective = e->kind == RECORD_COLLECTIVE, others = e->rank != r->rank;
    const bool small = e->doing.what == DOING_SMALL || e->op == COLLECTIVE_BARRIER;
    if (collective && e->op == COLLECTIVE_GATHER) t.gathers += (int64_t)e->access.at;
    if (collective && e->op == COLLECTIVE_REDUCE) t.reductions += (int64_t)e->access.at;
    t.small += collective && small;
    if (!collective && !(e->kind == RECORD_RECEIVE && others) &&
        !(e->kind == RECORD_ACCESS && others && e->access.kind == ACCESS_READ)) continue;
    const int64_t bytes = (int64_t)e->access.bytes;
    if (e->doing.what == DOING_GATHER) t.gather_bytes += bytes;
    if (e->doing.what == DOING_REDUCE) t.reduce_bytes += bytes;
    if (e->doing.what == DOING_CHAIN) t.replicate_bytes += bytes;
    if (e->doing.what == DOING_SMALL) t.small_bytes += bytes;
  }
  return t;
}
// Sends `bytes` of this rank to rank 0, which gets a copy of each rank's.
static void *sched_collect(const void *mine, size_t bytes, int from, int rank, MPI_Comm comm) {
  unsigned long long n = bytes;
  MPI_Bcast(&n, 1, MPI_UNSIGNED_LONG_LONG, from, comm);
  void *all = rank ? NULL : malloc(n + 1);
  if (!rank && !from) memcpy(all, mine, n);
  else if (!rank) MPI_Recv(all, (int)n, MPI_BYTE, from, 0, comm, MPI_STATUS_IGNORE);
  else if (rank == from) MPI_Send(mine, (int)n, MPI_BYTE, 0, 0, comm);
  return all;
}
static void sched_tell(SchedTold *told, const Record *r, const Fsdp *f) {
  CHECK(r->names <= SCHED_NAMES, "%d events and sets of messages", r->names);
  memset(told, 0, sizeof *told);
  for (int i = 0; i < r->names; i++) snprintf(told->name[i], sizeof told->name[i], "%s", r->name[i].words);
  for (int i = 0; i < r->count; i++) {
    const RecordEntry *e = &r->entry[i];
    if (e->kind == RECORD_SEND || e->kind == RECORD_RECEIVE)
      strcpy(told->name[e->number], e->op == CHANNEL_GATHER ? "gather" : e->op == CHANNEL_REDUCE ? "reduce" :
                                    e->op == CHANNEL_CHAIN ? "chain" : "nccl");
  }
  memcpy(told->part, f->lay.part, sizeof told->part);
  told->on_host = f->lay.work_on_host;
  for (int i = 0; i < f->plan->blocks; i++) told->line[i] = f->plan->block[i].line;
}
// Trains some steps with a record; those of all ranks are sent to rank 0, which returns true.
static bool sched_record(SchedRun *run, const Corpus *corpus, const Ops *ops, int world, const char *comm_name,
                         const char *extra, SchedVariant v) {
  int rank;
  MPI_Comm comm;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_split(MPI_COMM_WORLD, rank < world ? 0 : MPI_UNDEFINED, rank, &comm);
  if (comm == MPI_COMM_NULL) return false;
  static Trainer t;
  static RecordTable table[RECORD_STREAMS];
  static SchedTold told;
  Record record;
  Options o;
  test_options(&o, world, "%s %s", schedule_shapes, extra);
  snprintf(o.comm, sizeof o.comm, "%s", comm_name);
  record_open(&record);
  record.paused = true;
  record_tables(table, &record, ops, ops->nccl ? cpu_tables[0].ops : ops);
  Device device = device_of(&table[RECORD_MODEL].ops);
  device.host_ops = &table[RECORD_HOST].ops;
  trainer_open(&t, &o, corpus, comm, device, 1);
  Fsdp *f = &t.fsdp;
  if (v.chunk_numel) fsdp_cut_rounds(f, min64(f->lay.chunk_numel, v.chunk_numel));
  fsdp_record(f, &record);
  // Over mpi, initialisation ends with a barrier. Else parameters were just written, and no one has waited.
  if (f->cfg.comm != COMM_MPI && f->cfg.offload != OFFLOAD_PARAMS)
    record_told(&record, RECORD_ACCESS, RECORD_MODEL, 0,
                Access{ACCESS_WRITE, (uintptr_t)(f->params_home + f->lay.part[WORK_PARAMS].at), f->lay.params_bytes});
  f->traffic = Traffic{};
  Traffic want = {};
  for (int s = 0; s < v.steps; s++) {
    train_step(&t, 0);
    want = traffic_add(want, fsdp_formula(f, (int)o.grad_accum), 1);
  }
  f->record = NULL;
  record.paused = true;
  // In every microbatch the gradient of each stage begins in a separate buffer; other buffers, at the beginning of the
  // step and where the placement says, in the slots they overwrite.
  int64_t buffers = 0, begun = 0, given = f->slot_shared[0] + f->slot_shared[1];
  for (int i = 0; i < o.grad_accum * f->points; i++) given += __builtin_popcount((unsigned)fsdp_waits_at(f, i));
  for (int s = 0; s < f->lay.stages; s++) buffers += f->lay.stage[s].grads >= GRADS_IN_SLOT;
  for (int i = 0; i < record.count; i++)
    begun += record.entry[i].kind == RECORD_FREE && record.entry[i].op == HELD_GRADIENT && !record.entry[i].number;
  const int64_t must = v.steps * (o.grad_accum * buffers + given) * (1 + f->lay.mirrored);
  EXPECT(begun == must, "N=%d %s: gradient buffers were begun %lld times, must be %lld", world, extra, (long long)begun,
         (long long)must);
  const Traffic moved = sched_traffic(&record);
  EXPECT(!memcmp(&moved, &f->traffic, sizeof moved), "N=%d %s: the record tells of other traffic than was counted: "
         "gathers %lld (%lld) of %lld bytes (%lld), reductions %lld (%lld) of %lld (%lld), replicas %lld (%lld), small "
         "%lld (%lld) of %lld (%lld)", world, extra, (long long)moved.gathers, (long long)f->traffic.gathers,
         (long long)moved.gather_bytes, (long long)f->traffic.gather_bytes, (long long)moved.reductions,
         (long long)f->traffic.reductions, (long long)moved.reduce_bytes, (long long)f->traffic.reduce_bytes,
         (long long)moved.replicate_bytes, (long long)f->traffic.replicate_bytes, (long long)moved.small,
         (long long)f->traffic.small, (long long)moved.small_bytes, (long long)f->traffic.small_bytes);
  EXPECT(!memcmp(&want, &f->traffic, sizeof want), "N=%d %s: the formula gives other traffic than was counted", world,
         extra);
  memset(run, 0, sizeof *run);
  run->name = extra;
  run->world = world;
  run->mesh = f->cfg.mesh;
  run->in_place = f->lay.in_place;
  run->scaled = f->lay.scales_trained;
  run->mirrored = f->lay.mirrored;
  run->polled = f->cfg.comm == COMM_MPI;
  run->one_sequence = !ops->nccl;
  sched_tell(&told, &record, f);
  MPI_Gather(&record.count, 1, MPI_INT, run->count, 1, MPI_INT, 0, comm);
  for (int r = 0; r < world; r++) run->told[r] = (SchedTold *)sched_collect(&told, sizeof told, r, rank, comm);
  for (int r = 0; r < world; r++) {
    RecordEntry *raw = (RecordEntry *)sched_collect(record.entry, sizeof(RecordEntry) * (size_t)record.count, r, rank, comm);
    run->entry[r] = rank ? NULL : (SchedEntry *)malloc(sizeof(SchedEntry) * (size_t)(run->count[r] + 1));
    for (int i = 0; i < run->count[r] && !rank; i++) run->entry[r][i] = sched_entry(run, r, &raw[i]);
    free(raw);
  }
  if (rank == 0) sched_build(run);
  trainer_close(&t);
  record_close(&record);
  MPI_Comm_free(&comm);
  return rank == 0;
}
static void sched_free(SchedRun *run) {
  for (int r = 0; r < run->world; r++) { free(run->entry[r]); free(run->told[r]); }
  free(run->found);
}

// ---- mutants of the record
// X(identifier, the change to the record, the entries changed)
#define SCHED_MUTANTS(X) \
  X(DROP_WAIT, "a wait is left out") X(DROP_RECORD, "a record is left out") X(DROP_DONE, "the host does not ask") \
  X(DROP_SYNC, "the host never waits for a stream") X(DROP_OBSERVE, "a counter is not read") \
  X(DROP_ARRIVED, "a message is not waited for") X(DROP_SENT, "a message's end is not waited for") \
  X(DROP_RELEASE, "a release is left out") X(DROP_COLLECTIVE, "a collective is left out") \
  X(SWAP_COLLECTIVES, "two collectives are swapped") X(READ_EARLY, "something is read before it is written") \
  X(REDUCE_EARLY, "a gradient is read before its last write") \
  X(GATHER_EARLY, "a slot is written before its last reader's release") \
  X(PUBLISH_EARLY, "a counter is told too early") X(PARTIAL_EARLY, "a partial sum is taken before it exists") \
  X(SHARD_EARLY, "a peer's shard is read before the barrier that ends its update") \
  X(UPDATE_EARLY, "a shard is updated when only its owner is known not to read it again")
#define X(id, words) MUTANT_##id,
enum SchedMutantKind { SCHED_MUTANTS(X) SCHED_MUTANT_KINDS };
#undef X
#define X(id, words) words,
static const char *const sched_mutant_words[] = {SCHED_MUTANTS(X)};
#undef X
// Entry `at` of `rank` is left out (to < 0), moved before entry `to`, or swapped with it. All waits of the host for one
// stream are left out together: it waits after each of several rounds, and peers may need only the last wait.
struct SchedMutant { int kind, rank, at, to; };
// The broken entry's kind and place in the program: mutants made of it, and caught. count, at, here: of the current
// run.
struct SchedSite { char name[96]; int made, caught, count, at, here; };
enum { SCHED_MOST_TRIES = 12 };
struct SchedTally { SchedSite site[160]; int sites; };

static bool sched_share_a_cell(const SchedEntry *x, const SchedEntry *y) {
  return x->first < y->first + y->cells && y->first < x->first + x->cells;
}
// Whether a counter reports the end of x.
static bool sched_told_by(const SchedEntry *x, int counter, int rank) {
  const int m = x->memory, what = x->e.doing.what;
  if (!sched_is_access(x) || x->e.block != 0) return false;
  if (!strcmp(sched_counters[counter], "done")) return x->reads && x->owner != rank && what == DOING_REDUCE;
  if (!x->writes) return false;
  if (!strcmp(sched_counters[counter], "kept")) return m == WORK_KEPT;
  if (!strcmp(sched_counters[counter], "partial")) return m == WORK_SUMS;
  return m == WORK_STAGING || ((m == WORK_SLOTS || m == WORK_WHOLE) && what == DOING_MODEL);
}
// Parameter shards that peers read. Before entry i, a peer's read: the last barrier. Before i, an update: the entry
// after the last read of shards.
static int sched_shard_mutant_to(const SchedRun *run, int kind, int rank, int i) {
  const SchedEntry *log = run->entry[rank], *x = &log[i];
  const bool update = kind == MUTANT_UPDATE_EARLY;
  if (!sched_is_access(x) || x->memory != WORK_PARAMS) return -1;
  if (update ? !x->writes || x->e.doing.what != DOING_UPDATE : x->owner == rank || !run->found[x->id].updated) return -1;
  for (i--; i >= 0; i--) {
    if (update && sched_is_access(&log[i]) && log[i].memory == WORK_PARAMS && !log[i].writes && log[i].owner != rank &&
        log[i].e.pass == x->e.pass) return i + 1;
    if (!update && log[i].e.kind == RECORD_COLLECTIVE && log[i].e.op == COLLECTIVE_BARRIER) return i;
  }
  return -1;
}
// Before the entry of its own rank that wrote first, or last, what entry i reads.
static int sched_read_mutant_to(const SchedRun *run, int kind, int rank, int i) {
  const SchedEntry *x = &run->entry[rank][i];
  const int what = x->e.doing.what;
  if (!sched_is_access(x) || x->writes || x->owner != rank) return -1;
  const SchedFound *f = &run->found[x->id];
  const int first = f->first < 0 ? -1 : f->first - run->base[rank], last = f->last < 0 ? -1 : f->last - run->base[rank];
  if (last < 0) return -1;
  const int by = run->entry[rank][last].e.doing.what;
  const bool gradient = what == DOING_REDUCE || what == DOING_CHAIN || (what == DOING_UPDATE && by == DOING_REDUCE);
  return gradient != (kind == MUTANT_REDUCE_EARLY) ? -1 : gradient ? last : first;
}
// The entry before which a mutant of this kind moves entry i; -1: there is none. SCHED_LEAVE_OUT: it is left out.
enum { SCHED_LEAVE_OUT = -2 };
static int sched_mutant_to(const SchedRun *run, int kind, int rank, int i) {
  static const RecordKind drops[] = {RECORD_WAIT, RECORD_EVENT, RECORD_DONE, RECORD_SYNC, RECORD_OBSERVE, RECORD_ENDED,
                                     RECORD_ENDED, RECORD_FREE, RECORD_COLLECTIVE};
  const SchedEntry *log = run->entry[rank], *x = &log[i];
  if (kind == MUTANT_DROP_SYNC)
    for (int j = 0; j < i; j++) if (log[j].e.kind == RECORD_SYNC && log[j].e.stream == x->e.stream) return -1;
  if (kind >= MUTANT_DROP_COLLECTIVE && kind <= MUTANT_SWAP_COLLECTIVES && run->world == 1) return -1;
  if (kind == MUTANT_DROP_ARRIVED || kind == MUTANT_DROP_SENT)
    return x->e.kind == RECORD_ENDED && x->arrives == (kind == MUTANT_DROP_ARRIVED) ? SCHED_LEAVE_OUT : -1;
  if (kind <= MUTANT_DROP_COLLECTIVE) return x->e.kind == drops[kind] ? SCHED_LEAVE_OUT : -1;
  int j = i - 1;
  switch (kind) {
    case MUTANT_SWAP_COLLECTIVES:
      while (j >= 0 && !sched_compared(&log[j])) j--;
      return sched_compared(x) && j >= 0 && !sched_same_collective(&log[j].e, &x->e) ? j : -1;
    case MUTANT_PUBLISH_EARLY:
      while (j >= 0 && !(x->e.kind == RECORD_PUBLISH && sched_told_by(&log[j], sched_counter(x), rank))) j--;
      return j;
    case MUTANT_PARTIAL_EARLY:
      if (!sched_is_access(x) || x->writes || x->e.doing.what != DOING_CHAIN || x->e.doing.stage < 0) return -1;
      if (x->owner == rank) return run->found[x->id].last < 0 ? -1 : run->found[x->id].last - run->base[rank];
      while (j >= 0 && !(log[j].e.kind == RECORD_OBSERVE && sched_counter(&log[j]) == 2)) j--;
      return j;
    case MUTANT_SHARD_EARLY: case MUTANT_UPDATE_EARLY: return sched_shard_mutant_to(run, kind, rank, i);
    case MUTANT_GATHER_EARLY:
      if (!x->writes || x->e.doing.what != DOING_GATHER) return -1;
      for (; j >= 0; j--) {
        if (!log[j].cells || !sched_share_a_cell(&log[j], x)) continue;
        if (log[j].writes && log[j].e.doing.what == DOING_GATHER) return -1;
        if (log[j].e.kind == RECORD_FREE) return j;
      }
      return -1;
  }
  return sched_read_mutant_to(run, kind, rank, i);
}
// Runs the check with the mutant in place, and restores the record.
static const char *sched_check_mutant(SchedRun *run, SchedMutant m) {
  SchedEntry *own = run->entry[m.rank];
  const int n = run->count[m.rank];
  SchedEntry *log = (SchedEntry *)malloc(sizeof(SchedEntry) * (size_t)n);
  memcpy(log, own, sizeof(SchedEntry) * (size_t)n);
  if (m.kind == MUTANT_SWAP_COLLECTIVES) log[m.at] = own[m.to], log[m.to] = own[m.at];
  else if (m.kind == MUTANT_DROP_SYNC) {
    run->count[m.rank] = 0;
    for (int i = 0; i < n; i++)
      if (own[i].e.kind != RECORD_SYNC || own[i].e.stream != own[m.at].e.stream) log[run->count[m.rank]++] = own[i];
  } else if (m.to < 0) {
    memmove(log + m.at, own + m.at + 1, sizeof(SchedEntry) * (size_t)(n - m.at - 1));
    run->count[m.rank]--;
  } else {
    memcpy(log + m.to + 1, own + m.to, sizeof(SchedEntry) * (size_t)(m.at - m.to));
    log[m.to] = own[m.at];
  }
  run->entry[m.rank] = log;
  run->known = true;
  const char *error = sched_check(run);
  run->entry[m.rank] = own;
  run->count[m.rank] = n;
  free(log);
  return error;
}
// The site of entry e: its name tells it from others of its kind.
static SchedSite *sched_site(SchedTally *tally, const SchedRun *run, int kind, int rank, const SchedEntry *x) {
  char name[96];
  const char *what = sched_memory(x->memory);
  if (x->e.kind == RECORD_PUBLISH || x->e.kind == RECORD_OBSERVE) what = sched_counters[sched_counter(x)];
  if (x->e.kind == RECORD_EVENT || x->e.kind == RECORD_WAIT || x->e.kind == RECORD_DONE || x->e.kind == RECORD_ENDED)
    what = run->told[rank]->name[x->e.number];
  if (x->e.kind == RECORD_COLLECTIVE) what = sched_collectives[x->e.op];
  if (x->e.kind == RECORD_SYNC) what = "sync";
  snprintf(name, sizeof name, "%s: %s%s, %s", sched_mutant_words[kind], x->mirror ? "mirror of " : "", what,
           sched_streams[x->e.stream]);
  for (int i = 0; i < tally->sites; i++) if (!strcmp(tally->site[i].name, name)) return &tally->site[i];
  SchedSite *site = &tally->site[tally->sites++];
  memset(site, 0, sizeof *site);
  strcpy(site->name, name);
  return site;
}
// Entries that alone order nothing, and the reason for them. MPI completes a request only when it is polled. Parameter
// shards are written after the step's small all-gather, and sums of replicas from data that their reader has passed on.
// A whole gradient that adds up over the step is written again in the next one.
static const char *const sched_redundant[] = {"a message's end is not waited for: gather",
                                              "a message's end is not waited for: chain",
                                              "a message's end is not waited for: replicate",
                                              "a record is left out: gradient free"};
static bool sched_is_redundant(const char *site) {
  for (const char *r : sched_redundant) if (strstr(site, r)) return true;
  return false;
}
// Waits that no entry needs in a mode: for a stream that touches nothing; for the mirror of a gradient without peers;
// for sums whose norm the last replica alone takes, as the update comes after the step's small all-gather.
static bool sched_waits_for_nothing(const SchedRun *run, int rank, const SchedEntry *x) {
  const char *event = run->told[rank]->name[x->e.number];
  if (run->mesh.shards == 1 && !strcmp(event, "mirror filled")) return true;
  if (rank / run->mesh.shards < run->mesh.replicas - 1 && !strcmp(event, "reduced")) return true;
  if (x->e.kind != RECORD_WAIT) return false;
  for (int i = 0; i < run->count[rank]; i++)
    if (run->entry[rank][i].cells && run->entry[rank][i].e.stream == x->e.stream) return false;
  return true;
}
// Whether another entry may order what the mutant breaks. The host mostly waits again later for the same thing. If
// counters and messages order ranks, it also depends on when the host polled and on the progress of its peers. So only
// the order within one rank must be caught every time. Where updates exchange scales, that orders some shards, too.
static bool sched_may_stand_in(const SchedRun *run, int kind) {
  const bool host = (kind >= MUTANT_DROP_SYNC && kind <= MUTANT_DROP_SENT) || kind == MUTANT_PUBLISH_EARLY;
  const bool peers = kind <= MUTANT_DROP_DONE || kind == MUTANT_PARTIAL_EARLY || kind == MUTANT_UPDATE_EARLY;
  return host || (run->polled && peers) || (run->scaled && kind == MUTANT_SHARD_EARLY);
}
// Makes at most `most` mutants of a kind at every site, evenly spread over the record of all ranks. If other entries
// may replace the broken one, more mutants are made until one is caught. If none may, a mutant that is not caught must
// have ordered nothing: only waits of streams and releases, and of these only ones that were in order already (`useful`
// of the run without mutants).
static void sched_mutate(SchedRun *run, int kind, int most, const bool *useful, SchedTally *tally) {
  const bool streams = kind <= MUTANT_DROP_DONE;
  const bool stands_in = sched_may_stand_in(run, kind), others = stands_in || kind == MUTANT_DROP_DONE;
  if (run->one_sequence && kind <= MUTANT_DROP_SYNC) return;                   // there are none
  for (int i = 0; i < tally->sites; i++) tally->site[i].count = tally->site[i].at = tally->site[i].here = 0;
  for (int r = 0; r < run->world; r++)
    for (int i = 0; i < run->count[r]; i++)
      if (sched_mutant_to(run, kind, r, i) != -1 && (kind != MUTANT_DROP_RELEASE || useful[run->entry[r][i].id]))
        sched_site(tally, run, kind, r, &run->entry[r][i])->count++;
  for (int r = 0; r < run->world; r++)
    for (int i = 0; i < run->count[r]; i++) {
      const int to = sched_mutant_to(run, kind, r, i);
      if (to == -1 || (kind == MUTANT_DROP_RELEASE && !useful[run->entry[r][i].id])) continue;
      SchedSite *site = sched_site(tally, run, kind, r, &run->entry[r][i]);
      const bool more = others && !site->caught && site->here < SCHED_MOST_TRIES && !sched_is_redundant(site->name);
      if (site->at++ % ((site->count + most - 1) / most) && !more) continue;
      site->here++;
      site->made++;
      if (sched_check_mutant(run, SchedMutant{kind, r, i, to})) { site->caught++; continue; }
      if (stands_in) continue;
      if (streams && sched_waits_for_nothing(run, r, &run->entry[r][i])) continue;
      char line[320];
      sched_line(line, sizeof line, run, r, i, &run->entry[r][i]);
      EXPECT((streams || kind == MUTANT_DROP_RELEASE) && !useful[run->entry[r][i].id], "%s: nothing shows that %s: %s", run->name,
             sched_mutant_words[kind], line);
    }
}
static void sched_mutants(SchedRun *run, int most, SchedTally *tally) {
  bool *useful = (bool *)malloc((size_t)run->entries + 1);
  for (int i = 0; i < run->entries; i++) useful[i] = sched_check_state.past[i].useful;
  for (int kind = 0; kind < SCHED_MUTANT_KINDS; kind++) sched_mutate(run, kind, most, useful, tally);
  free(useful);
}

// ---- tests
struct SchedMode { int world; const char *comm, *extra; int64_t chunk_numel; };

static bool sched_site_is_shown(const SchedSite *s) { return s->caught || !s->made || sched_is_redundant(s->name); }
static bool sched_all_shown(const SchedTally *tally) {
  for (int i = 0; i < tally->sites; i++) if (!sched_site_is_shown(&tally->site[i])) return false;
  return true;
}
// Every rank reads every shard of the group in place: the record must show it.
static void sched_expect_in_place(const SchedRun *run) {
  for (int r = 0; r < run->world && run->in_place && run->world > 1; r++) {
    int first;
    const int size = sched_group(run, OVER_SHARD_GATHER, r, &first);
    for (int k = first; k < first + size; k++)
      EXPECT(sched_check_state.reads[r][k], "%s: rank %d reads no shard of rank %d in place", run->name, r, k);
  }
}
// Proves the record of every mode, and breaks it. Every site must be caught somewhere, except those of sched_redundant.
// Whether a counter alone orders anything depends on how the ranks ran: in about one run of six no mirrored window's
// `done` did. So the modes run again until all sites are caught, at most SCHED_ROUNDS times.
enum { SCHED_ROUNDS = 12 };
static void sched_modes_hold(const Ops *ops, const SchedMode *mode, int modes, int most) {
  static Corpus corpus;
  static SchedTally tally;
  static SchedRun run;
  schedule_corpus(&corpus);
  for (int round = 0, open = 1; round < SCHED_ROUNDS && open; round++) {
    for (int m = 0; m < modes; m++) {
      const SchedVariant v = {2, mode[m].chunk_numel};
      if (!sched_record(&run, &corpus, ops, mode[m].world, mode[m].comm, mode[m].extra, v)) continue;
      const double start = now_ms();
      const char *error = sched_check(&run);
      EXPECT(!error, "N=%d --comm %s %s: %s", mode[m].world, mode[m].comm, mode[m].extra, error);
      if (error && getenv("SCHEDULE_DUMP")) sched_dump(stderr, &run);
      if (!error) sched_expect_in_place(&run);
      if (!error) sched_mutants(&run, most, &tally);
      if (getenv("SCHEDULE_TALLY"))
        fprintf(stderr, "%s %s: %.0f ms, %d entries, %d cells\n", mode[m].comm, mode[m].extra, now_ms() - start,
                run.entries, run.cells);
      sched_free(&run);
    }
    open = !sched_all_shown(&tally);
    MPI_Allreduce(MPI_IN_PLACE, &open, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  }
  for (int i = 0; i < tally.sites; i++) {
    const SchedSite *s = &tally.site[i];
    EXPECT(sched_site_is_shown(s), "%s: none of %d mutants was caught in any mode", s->name, s->made);
    if (getenv("SCHEDULE_TALLY") && s->made)
      fprintf(stderr, "%-80s %5d made %5d caught\n", s->name, s->made, s->caught);
  }
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}
enum { SCHED_MUTANTS_A_SITE = 2 };
TEST_MPI(schedule_log_is_proven_cpu, 6,
         "every mode on the CPU, over windows and messages: the record proves its order; every broken record is seen") {
  static const SchedMode modes[] = {
      {1, "self", "", 0},
      {2, "mpi", "", 0},
      {2, "mpi", "--shm copy", 0},
      {2, "mpi", "--shm off", 384},
      {2, "mpi", "--global_batch 2", 0},
      {3, "mpi", "--global_batch 3 --shm off", 384},
      {2, "mpi", "--global_batch 2 --reduce_dtype bf16 --shard dim0", 384},
      {2, "mpi", "--recompute none", 0},         // so few activations that logits have room for slots
      {2, "mpi", "--recompute none --freeze wte,wpe,ln_f --dropout 0", 0},     // backward ends with a block
      {3, "mpi", "--recompute none --freeze wte,wpe,ln_f --reduce_dtype bf16 --shm off", 384},
      {3, "mpi", "--gather_slots 1 --reduce_dtype bf16", 384},
      {3, "mpi", "--gather_slots 1 --reduce_dtype bf16 --shm copy", 384},
      {3, "mpi", "--gather_slots 3 --reduce_dtype bf16 --param_dtype bf16 --buffer_dtype fp32 --shm off", 384},
      {2, "mpi", "--strategy zero2 --recompute block --shm copy", 0},
      {2, "mpi", "--strategy zero1 --reduce_dtype bf16", 384},
      {2, "mpi", "--strategy zero1 --reduce_dtype bf16 --shm off", 384},
      {3, "mpi", "--accumulate local --shard dim0", 0},
      {2, "mpi", "--wrap model --tie_head off", 0},
      {3, "mpi", "--wrap min_params:1000 --shard dim0 --fp8 gather --shm copy", 0},
      {2, "mpi", "--fp8 gather --param_dtype bf16", 0},
      {2, "mpi", "--fp8 gather --param_dtype bf16 --shm off", 0},
      {2, "mpi", "--freeze wte,wpe,h.0.*,h.1.*", 0},
      {4, "mpi", "--mesh 2x2", 384},
      {4, "mpi", "--mesh 2x2 --shm off --reduce_dtype bf16", 384},
      {4, "mpi", "--mesh 2x2 --strategy hybrid_shard --accumulate local --shm copy", 0},
      {6, "mpi", "--mesh 3x2 --gather_slots 4 --shm copy", 0},
      {6, "mpi", "--mesh 2x3", 0},
      {6, "mpi", "--mesh 2x3 --shm off", 0},
      {3, "mpi", "--strategy no_shard", 384},
      {3, "mpi", "--strategy ddp --accumulate local --shm off", 0},
      {4, "mpi", "--reshard_after_forward 2 --gather_slots 1 --freeze h.*", 0},
      {4, "mpi", "--reshard_after_forward 2 --gather_slots 1 --freeze h.* --shm copy", 0},
      {4, "mpi", "--reshard_after_forward 2 --shm off", 0}};
  sched_modes_hold(cpu_tables[0].ops, modes, (int)(sizeof modes / sizeof *modes), SCHED_MUTANTS_A_SITE);
}
TEST_MPI(schedule_log_is_proven_nccl, 4,
         "every mode over emulated streams and NCCL: the record proves its order; every broken record is seen") {
  if (!&ops_streams) SKIP("this test program was linked without dev/cuda_emu");
  static const SchedMode modes[] = {
      {1, "self", "--offload optimizer --param_dtype bf16", 0},
      {1, "self", "--offload params", 0},
      {2, "nccl", "--graph off", 0},
      {3, "nccl", "--global_batch 3", 384},
      {2, "nccl", "--freeze wte,wpe,ln_f --graph off", 0},
      {2, "nccl", "--global_batch 2 --reduce_dtype bf16", 384},
      {2, "nccl", "--graph on --reduce_dtype bf16 --gather_slots 1", 384},
      {3, "nccl", "--gather_slots 4 --fp8 gather --param_dtype bf16", 0},
      {2, "nccl", "--strategy zero1 --reduce_dtype bf16", 384},
      {2, "nccl", "--wrap model --accumulate local", 0},
      {2, "nccl", "--offload params", 384},
      {2, "nccl", "--offload optimizer --param_dtype bf16", 0},
      {3, "nccl", "--strategy no_shard", 384},
      {4, "nccl", "--mesh 2x2", 384},
      {4, "nccl", "--reshard_after_forward 2 --freeze wte,wpe,h.0.*", 0}};
  sched_modes_hold(&ops_streams, modes, (int)(sizeof modes / sizeof *modes), SCHED_MUTANTS_A_SITE);
}
TEST_MPI(schedule_log_is_proven_mpi, 4,
         "every mode over emulated streams and mirrored windows, and messages: the record proves its order; every "
         "broken record is seen") {
  if (!&ops_streams) SKIP("this test program was linked without dev/cuda_emu");
  static const SchedMode modes[] = {
      {2, "mpi", "", 0},
      {2, "mpi", "--shm off --gather_slots 1", 384},
      {3, "mpi", "--reduce_dtype bf16 --param_dtype bf16 --buffer_dtype fp32", 384},
      {3, "mpi", "--reduce_dtype bf16 --shm off --fp8 gather", 384},
      {2, "mpi", "--strategy zero1 --reduce_dtype bf16 --shm off", 384},
      {2, "mpi", "--global_batch 2", 0},
      {2, "mpi", "--offload optimizer", 0},
      {2, "mpi", "--offload params --shm off", 0},
      {4, "mpi", "--mesh 2x2", 384},
      {4, "mpi", "--mesh 2x2 --shm off", 384},
      {3, "mpi", "--strategy no_shard", 0},
      {4, "mpi", "--reshard_after_forward 2 --gather_slots 1 --freeze h.*", 0},
      {4, "mpi", "--reshard_after_forward 2 --shm off", 0}};
  sched_modes_hold(&ops_streams, modes, (int)(sizeof modes / sizeof *modes), SCHED_MUTANTS_A_SITE);
}
