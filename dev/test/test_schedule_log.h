// test_schedule_log.h: proves the order of the schedule from its record (kernels/schedule_log.h), for every mode.
//
// Happens-before (Lamport 1978) by vector clocks (Mattern 1989): one component per stream and host of each rank, which
// counts its accesses to shared memory. The logs of all ranks are replayed together; an entry that needs another rank's
// entry waits for it. Two accesses to the same memory, one of them a write, must be ordered (as race detectors require:
// Flanagan and Freund 2009, FastTrack), and every read must find the content that it names:
//   no use before its gather              a read finds another stage, or nothing, or is not ordered after the write
//   no slot reused before its last reader a write is not ordered after a read, or the model still holds the slot
//   no gradient reduced before its last   a buffer is written again, with the same number, after it was read
//     writer
//   equal order on every rank             the collectives of all ranks are compared one by one, and again where those
//                                         of one communicator meet
// The record itself is broken on purpose, each entry in turn. Each break must be found, or other entries must already
// have established the order (the broken entry orders nothing new).

enum { SCHED_RANKS = 6, SCHED_THREADS = SCHED_RANKS * STREAM_COUNT, SCHED_CELLS = 4096, SCHED_EVENTS = 64 };
struct SchedClock { uint32_t t[SCHED_THREADS]; };
// A run's logs, of all ranks. one_sequence: a call is done when it returns.
struct SchedRun {
  const char *name;
  int world, count[SCHED_RANKS];
  MeshShape mesh;
  bool one_sequence, in_place, fresh;            // parameters were just written, and no one has waited
  bool polled;                                   // counters and messages order ranks
  const char *event[SCHED_EVENTS];               // names
  LogEntry *entry[SCHED_RANKS];
};
// Memory: its content, who wrote and read it last, messages that are being sent from it.
struct SchedCell {
  uint64_t key, content;
  bool written, read, held;                      // held: the model reads this content and has not released it
  int release_rank, release_at;
  SchedClock writes, reads, before;              // before: writes of earlier contents
  int messages[16], message_count, coming;       // messages out of it; into it, that have not arrived
};
struct SchedMessage { int from, to, sent_by, sent_at, arrived_by, arrived_at; uint64_t number; SchedClock clock; };
struct SchedPost { int from, to; uint64_t number; SchedClock clock; };
struct SchedTold { int at; uint64_t value; SchedClock clock; };
struct SchedMeeting { int comm, first, number, members; LogEntry entry; SchedClock all, last; };
// The state of a replay. useful: entries that established a new order.
struct SchedCheck {
  const SchedRun *run;
  int at[SCHED_RANKS], entered[SCHED_RANKS], met[SCHED_RANKS][LOG_COMM_WORLD + 1];
  bool waiting[SCHED_RANKS];
  SchedClock clock[SCHED_THREADS], event[SCHED_RANKS][SCHED_EVENTS];
  int event_at[SCHED_RANKS][SCHED_EVENTS];       // the entry that recorded it, plus 1
  SchedCell cell[SCHED_CELLS];
  SchedMessage *message;
  SchedPost *post;
  SchedTold *told[SCHED_RANKS][4];
  SchedMeeting *meeting;
  int messages, posts, unsent[SCHED_RANKS], tolds[SCHED_RANKS][4], meetings, rooms[4];
  uint8_t *useful[SCHED_RANKS];
  char error[512];
};
static SchedCheck sched_check_state;

static const char *sched_words(int of, int i) {
#define X(id, words) words,
  static const char *const ops[] = {LOG_OPS(X)}, *const memories[] = {LOG_MEMORIES(X)},
                           *const counters[] = {LOG_COUNTERS(X)}, *const kinds[] = {LOG_COLLECTIVES(X)},
                           *const comms[] = {LOG_COMMUNICATORS(X)};
#undef X
  static const char *const *const all[] = {ops, memories, counters, kinds, comms};
  return all[of][i];
}
// One line for an entry.
static void sched_line(char *to, size_t bytes, int rank, int at, const LogEntry *e) {
  static const char *const streams[] = {"host", "model", "gather", "reduce"};
  int n = snprintf(to, bytes, "rank %d %5d %-6s %-10s ", rank, at, streams[e->stream], sched_words(0, e->op));
  to += n, bytes -= (size_t)n;
  switch (e->op) {
    case LOG_RECORD: case LOG_WAIT: case LOG_DONE: snprintf(to, bytes, "event %d", e->slot); break;
    case LOG_SYNC: snprintf(to, bytes, "by the host"); break;
    case LOG_PUBLISH: case LOG_OBSERVE:
      snprintf(to, bytes, "%s of rank %d: %llu", sched_words(2, e->what), e->rank, (unsigned long long)e->value);
      break;
    case LOG_COLLECTIVE:
      snprintf(to, bytes, "%s of stage %d over %s, %llu bytes", sched_words(3, e->what), e->stage,
               sched_words(4, e->slot), (unsigned long long)e->value);
      break;
    default:
      snprintf(to, bytes, "%s %d:%d of/with rank %d, content %llu:%llu, message %llu", sched_words(1, e->what),
               e->slot >> 16, e->slot & 0xffff, e->rank, (unsigned long long)(e->value / LOG_STAGES),
               (unsigned long long)(e->value % LOG_STAGES), (unsigned long long)(e->number & 0xffffffff));
  }
}
static void sched_dump(FILE *to, const SchedRun *run) {
  char line[256];
  for (int r = 0; r < run->world; r++) for (int i = 0; i < run->count[r]; i++) {
    sched_line(line, sizeof line, r, i, &run->entry[r][i]);
    fprintf(to, "%s\n", line);
  }
}

// ---- clocks
static bool sched_join(SchedClock *to, const SchedClock *from) {
  bool news = false;
  for (int i = 0; i < SCHED_THREADS; i++)
    if (from->t[i] > to->t[i]) to->t[i] = from->t[i], news = true;
  return news;
}
// The first component of x that c does not include; -1: c is after all of x.
static int sched_unordered(const SchedClock *x, const SchedClock *c) {
  for (int i = 0; i < SCHED_THREADS; i++) if (x->t[i] > c->t[i]) return i;
  return -1;
}
static int sched_thread(const SchedRun *run, int rank, int stream) {
  return rank * STREAM_COUNT + (run->one_sequence ? 0 : stream);
}
// Room for one more of `count` elements.
static void *sched_room(void *array, int count, int *room, size_t bytes) {
  if (count < *room) return array;
  *room = *room ? 2 * *room : 256;
  return realloc(array, bytes * (size_t)*room);
}

// ---- violations
__attribute__((format(printf, 4, 5))) static bool sched_wrong(SchedCheck *k, int rank, int at, const char *fmt, ...) {
  char line[256], what[200];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(what, sizeof what, fmt, ap);
  va_end(ap);
  sched_line(line, sizeof line, rank, at, &k->run->entry[rank][at]);
  snprintf(k->error, sizeof k->error, "%s: %s", line, what);
  return false;
}

// ---- memory
static SchedCell *sched_cell(SchedCheck *k, int owner, int memory, int slot) {
  const uint64_t key = ((uint64_t)owner << 48 | (uint64_t)memory << 40 | (uint32_t)slot) + 1;
  unsigned i = (unsigned)((key * 0x9e3779b97f4a7c15ull) >> 52);
  for (; k->cell[i].key && k->cell[i].key != key; i = (i + 1) % SCHED_CELLS) {}
  SchedCell *c = &k->cell[i];
  if (c->key) return c;
  c->key = key;
  c->written = memory == LOG_PARAMS || memory == LOG_PARAMS_WINDOW;
  if (c->written && k->run->fresh) c->writes.t[sched_thread(k->run, owner, STREAM_MODEL)] = 1;
  return c;
}
// Whether all messages out of this memory have left or arrived before an event that knows `now`.
static bool sched_messages_over(SchedCheck *k, SchedCell *c, const SchedClock *now) {
  for (int i = 0; i < c->message_count; i++) {
    const SchedMessage *m = &k->message[c->messages[i]];
    const bool sent = m->sent_at && now->t[m->sent_by] >= (uint32_t)m->sent_at;
    if (!sent && !(m->arrived_at && now->t[m->arrived_by] >= (uint32_t)m->arrived_at)) return false;
  }
  c->message_count = 0;
  return true;
}
static bool sched_read(SchedCheck *k, int rank, int at, int thread, int owner) {
  const LogEntry *e = &k->run->entry[rank][at];
  SchedCell *c = sched_cell(k, owner, e->what, e->slot);
  SchedClock *now = &k->clock[thread];
  if (!c->written) return sched_wrong(k, rank, at, "nothing was written there");
  if (c->coming && (e->what == LOG_SLOT || e->what == LOG_LANDING))            // other memory is written whole
    return sched_wrong(k, rank, at, "a part has not arrived");
  if (sched_unordered(&c->writes, now) >= 0) return sched_wrong(k, rank, at, "not ordered after the last write");
  if (c->content != e->value)
    return sched_wrong(k, rank, at, "%llu:%llu lies there", (unsigned long long)(c->content / LOG_STAGES),
                       (unsigned long long)(c->content % LOG_STAGES));
  c->reads.t[thread] = ++now->t[thread];
  c->read = true;
  if (e->what == LOG_SLOT && e->stream == STREAM_MODEL) c->held = true;
  return true;
}
// since: the clock when the memory may first be written, which for a message is before its arrival.
static bool sched_write(SchedCheck *k, int rank, int at, int thread, const SchedClock *since) {
  const LogEntry *e = &k->run->entry[rank][at];
  SchedCell *c = sched_cell(k, e->op == LOG_ARRIVED ? rank : e->rank, e->what, e->slot);
  SchedClock *now = &k->clock[thread];
  const bool same = c->written && c->content == e->value;
  if (sched_unordered(same ? &c->before : &c->writes, since) >= 0)             // parts of one content may be concurrent
    return sched_wrong(k, rank, at, "not ordered after another write");
  if (sched_unordered(&c->reads, since) >= 0) return sched_wrong(k, rank, at, "not ordered after a read");
  if (!sched_messages_over(k, c, since)) return sched_wrong(k, rank, at, "a message from there may not have left");
  if (same && c->read && e->what != LOG_PUBLISHED) return sched_wrong(k, rank, at, "it was already read as complete");
  if (!same && c->held) return sched_wrong(k, rank, at, "the model still holds what lies there");
  if (!same && c->release_at) k->useful[c->release_rank][c->release_at - 1] = 1;
  if (!same) c->read = false, c->release_at = 0, c->before = c->writes;
  c->written = true;
  c->content = e->value;
  c->writes.t[thread] = ++now->t[thread];
  return true;
}

// ---- ordering between ranks. Each function returns false if it must wait for another rank, or after a violation.
static bool sched_observe(SchedCheck *k, int rank, int at, SchedClock *now) {
  const LogEntry *e = &k->run->entry[rank][at];
  if (!e->value) return true;
  for (int i = 0; i < k->tolds[e->rank][e->what]; i++) {
    SchedTold *t = &k->told[e->rank][e->what][i];
    if (t->value < e->value) continue;
    if (sched_join(now, &t->clock)) k->useful[rank][at] = k->useful[e->rank][t->at] = 1;
    return true;
  }
  return false;
}
static void sched_publish(SchedCheck *k, int rank, int at, const SchedClock *now) {
  const LogEntry *e = &k->run->entry[rank][at];
  int *n = &k->tolds[rank][e->what];
  if (!(*n & (*n - 1)))
    k->told[rank][e->what] =
        (SchedTold *)realloc(k->told[rank][e->what], sizeof(SchedTold) * (size_t)(*n ? 2 * *n : 1));
  k->told[rank][e->what][(*n)++] = SchedTold{at, e->value, *now};
}
static bool sched_send(SchedCheck *k, int rank, int at, int thread) {
  const LogEntry *e = &k->run->entry[rank][at];
  if (!sched_read(k, rank, at, thread, rank)) return false;
  SchedCell *c = sched_cell(k, rank, e->what, e->slot);
  k->message = (SchedMessage *)sched_room(k->message, k->messages, &k->rooms[0], sizeof(SchedMessage));
  SchedMessage *m = &k->message[k->messages];
  memset(m, 0, sizeof *m);
  m->from = rank, m->to = e->rank, m->number = e->number, m->clock = k->clock[thread];
  if (e->stream != STREAM_HOST) m->sent_by = thread, m->sent_at = (int)k->clock[thread].t[thread];
  if (c->message_count == 16) return sched_wrong(k, rank, at, "too many messages");
  c->messages[c->message_count++] = k->messages++;
  return true;
}
static void sched_sent(SchedCheck *k, int rank, int at, int thread) {
  const LogEntry *e = &k->run->entry[rank][at];
  const uint64_t number = e->number & ~0ull >> 4;
  const bool one = e->number >> 60 == MESSAGE_GATHER || e->number >> 60 == MESSAGE_REPLICATE;
  int *first = &k->unsent[rank];
  while (*first < k->messages && (k->message[*first].from != rank || k->message[*first].sent_at)) ++*first;
  for (int i = *first; i < k->messages; i++) {
    SchedMessage *m = &k->message[i];
    const uint64_t n = m->number & ~0ull >> 4;
    if (m->from != rank || m->number >> 60 != e->number >> 60 || m->sent_at) continue;
    if (one ? n != number || m->to != e->rank : n > number || (e->slot >= 0 && (int)(n & 1) != e->slot)) continue;
    m->sent_by = thread;
    m->sent_at = (int)++k->clock[thread].t[thread];
    k->useful[rank][at] = 1;
  }
}
static bool sched_arrived(SchedCheck *k, int rank, int at, int thread) {
  const LogEntry *e = &k->run->entry[rank][at];
  SchedClock *now = &k->clock[thread], since = *now;
  SchedMessage *m = NULL;
  for (int i = k->messages - 1; i >= 0 && !m; i--)
    if (k->message[i].from == e->rank && k->message[i].to == rank && k->message[i].number == e->number)
      m = &k->message[i];
  if (!m) return false;
  if (m->arrived_at && e->number >> 60 != MESSAGE_REPLICATE) return true;
  for (int i = k->posts - 1; i >= 0; i--) {
    if (k->post[i].from != e->rank || k->post[i].to != rank || k->post[i].number != e->number) continue;
    since = k->post[i].clock;
    break;
  }
  sched_join(&since, &m->clock);
  k->useful[rank][at] = sched_join(now, &m->clock);
  if (!sched_write(k, rank, at, thread, &since)) return false;
  sched_cell(k, rank, e->what, e->slot)->coming--;
  m->arrived_by = thread, m->arrived_at = (int)now->t[thread];
  for (int i = k->messages - 1; i >= 0 && e->number >> 60 == MESSAGE_REPLICATE; i--)
    if (k->message[i].from == e->rank && k->message[i].to == rank && k->message[i].number == e->number)
      k->message[i].arrived_by = thread, k->message[i].arrived_at = (int)now->t[thread];
  return true;
}
static int sched_group(const SchedRun *run, int comm, int rank, int *first) {
  const int S = run->mesh.shards, kept = run->mesh.kept;
  *first = comm == LOG_COMM_WORLD ? 0 : comm == LOG_COMM_KEPT ? rank / kept * kept
           : comm == LOG_COMM_REPLICATE ? rank % S : rank / S * S;
  return comm == LOG_COMM_WORLD ? run->world : comm == LOG_COMM_KEPT ? kept
         : comm == LOG_COMM_REPLICATE ? run->mesh.replicas : S;
}
static bool sched_meet(SchedCheck *k, int rank, int at, int thread) {
  const LogEntry *e = &k->run->entry[rank][at];
  if (e->slot == LOG_COMM_NONE) return true;
  int first, i = 0;
  const int size = sched_group(k->run, e->slot, rank, &first), number = k->met[rank][e->slot];
  const bool last = rank == first + (size - 1) * (e->slot == LOG_COMM_REPLICATE ? k->run->mesh.shards : 1);
  while (i < k->meetings &&
         (k->meeting[i].comm != e->slot || k->meeting[i].first != first || k->meeting[i].number != number)) i++;
  if (i == k->meetings) {
    k->meeting = (SchedMeeting *)sched_room(k->meeting, k->meetings, &k->rooms[2], sizeof(SchedMeeting));
    memset(&k->meeting[k->meetings++], 0, sizeof(SchedMeeting));
    k->meeting[i].comm = e->slot, k->meeting[i].first = first, k->meeting[i].number = number, k->meeting[i].entry = *e;
  }
  SchedMeeting *m = &k->meeting[i];
  if (!k->waiting[rank]) {
    if (m->entry.what != e->what || m->entry.stage != e->stage || m->entry.value != e->value)
      return sched_wrong(k, rank, at, "another rank is in another collective");
    sched_join(&m->all, &k->clock[thread]);
    if (last) m->last = k->clock[thread];
    m->members++;
    k->waiting[rank] = true;
  }
  if (m->members < size) return false;
  k->waiting[rank] = false;
  k->met[rank][e->slot]++;
  k->useful[rank][at] = sched_join(&k->clock[thread], e->what == COLLECTIVE_BROADCAST ? &m->last : &m->all);
  return true;
}

// Processes the next entry of `rank`. False: it must wait, or k->error says what is wrong.
static bool sched_step(SchedCheck *k, int rank) {
  const int at = k->at[rank];
  const LogEntry *e = &k->run->entry[rank][at];
  const int thread = sched_thread(k->run, rank, e->stream), host = sched_thread(k->run, rank, STREAM_HOST);
  SchedClock *now = &k->clock[thread];
  sched_join(now, &k->clock[host]);              // the host did this before it enqueued the entry
  switch (e->op) {
    case LOG_READ: if (!sched_read(k, rank, at, thread, e->rank)) return false; break;
    case LOG_WRITE: if (!sched_write(k, rank, at, thread, now)) return false; break;
    case LOG_RELEASE: {
      SchedCell *c = sched_cell(k, rank, e->what, e->slot);
      c->held = false, c->release_rank = rank, c->release_at = at + 1;
      break;
    }
    case LOG_RECORD:
      k->event[rank][e->slot] = *now;
      k->event_at[rank][e->slot] = at + 1;
      break;
    case LOG_WAIT: case LOG_DONE: {
      SchedClock *who = e->op == LOG_WAIT ? now : &k->clock[host];
      if (!k->event_at[rank][e->slot] && e->op == LOG_DONE) break;             // recorded before the log began
      if (!k->event_at[rank][e->slot]) return sched_wrong(k, rank, at, "nobody has recorded this event");
      if (sched_join(who, &k->event[rank][e->slot]))
        k->useful[rank][at] = k->useful[rank][k->event_at[rank][e->slot] - 1] = 1;
      break;
    }
    case LOG_SYNC: k->useful[rank][at] = sched_join(&k->clock[host], now); break;
    case LOG_PUBLISH: sched_publish(k, rank, at, now); break;
    case LOG_OBSERVE: if (!sched_observe(k, rank, at, now)) return false; break;
    case LOG_SEND: if (!sched_send(k, rank, at, thread)) return false; break;
    case LOG_SENT: sched_sent(k, rank, at, thread); break;
    case LOG_RECEIVE:
      k->post = (SchedPost *)sched_room(k->post, k->posts, &k->rooms[1], sizeof(SchedPost));
      k->post[k->posts++] = SchedPost{e->rank, rank, e->number, *now};
      sched_cell(k, rank, e->what, e->slot)->coming++;
      break;
    case LOG_ARRIVED: if (!sched_arrived(k, rank, at, thread)) return false; break;
    case LOG_COLLECTIVE: if (!sched_meet(k, rank, at, thread)) return false; break;
  }
  k->at[rank]++;
  return true;
}
// Chains and their ends differ from replica to replica; messages and broadcasts match them.
static bool sched_compared(const LogEntry *e) {
  return e->op == LOG_COLLECTIVE && e->what != COLLECTIVE_CHAIN && e->what != COLLECTIVE_REPLICATE;
}
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
      const LogEntry *x = &run->entry[0][a], *y = &run->entry[r][b];
      if (x->what != y->what || x->stage != y->stage || x->slot != y->slot || x->value != y->value)
        return sched_wrong(k, r, b, "rank 0 begins %s of stage %d with %llu bytes", sched_words(3, x->what), x->stage,
                           (unsigned long long)x->value);
    }
  return true;
}
// Replays the logs of all ranks. NULL: everything holds.
static const char *sched_check(const SchedRun *run) {
  SchedCheck *k = &sched_check_state;
  free(k->message); free(k->post); free(k->meeting);
  for (int r = 0; r < SCHED_RANKS; r++) {
    for (SchedTold *&t : k->told[r]) free(t);
    free(k->useful[r]);
  }
  memset(k, 0, sizeof *k);
  k->run = run;
  for (int r = 0; r < run->world && run->fresh; r++) {           // the model's streams did so before the log began
    const int model = sched_thread(run, r, STREAM_MODEL);
    k->clock[model].t[model] = 1;
  }
  for (int r = 0; r < run->world; r++) k->useful[r] = (uint8_t *)calloc((size_t)run->count[r] + 1, 1);
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
  return NULL;
}

// ---- recording
static void sched_name_events(SchedRun *run, const Fsdp *f) {
  const StepEvent *const one[] = {&f->began, &f->grads_ready, &f->reduced, &f->exchange_ready, &f->exchanged,
                                  &f->mirror_filled, &f->drained, &f->published[0], &f->published[1]};
  static const char *const names[] = {"step began", "gradients ready", "reduced", "exchange ready", "exchanged",
                                      "mirror filled", "drained", "parameters published", "parameters published"};
  for (int i = 0; i < 9; i++) run->event[one[i]->number] = names[i];
  for (int k = 0; k <= f->cfg.gather_slots; k++)
    run->event[f->slot[k].arrived.number] = "stage arrived", run->event[f->slot[k].released.number] = "stage released";
  for (int i = 0; i < 2 + f->lay.stages; i++)
    run->event[f->grads_free[i].number] = i < 2 ? "block slot free" : i == 2 ? "root slot free" : "gradient free";
}
struct SchedVariant { int steps; int64_t chunk_numel; };
// Trains some steps with a log; the logs of all ranks are sent to rank 0, which returns true.
static bool sched_record(SchedRun *run, const Corpus *corpus, const Ops *ops, int world, const char *comm_name,
                         const char *extra, SchedVariant v) {
  int rank;
  MPI_Comm comm;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_split(MPI_COMM_WORLD, rank < world ? 0 : MPI_UNDEFINED, rank, &comm);
  if (comm == MPI_COMM_NULL) return false;
  static Trainer t;
  static ScheduleLog log;
  Options o;
  memset(&log, 0, sizeof log);
  test_options(&o, world, "%s %s", schedule_shapes, extra);
  snprintf(o.comm, sizeof o.comm, "%s", comm_name);
  Device device = device_of(ops);
  if (ops->nccl) device.host_ops = cpu_tables[0].ops;
  trainer_open(&t, &o, corpus, comm, device, 1);
  Fsdp *f = &t.fsdp;
  if (v.chunk_numel) fsdp_cut_rounds(f, min64(f->lay.chunk_numel, v.chunk_numel));
  f->log = &log;
  f->traffic = Traffic{};
  Traffic want = {}, told = {};
  for (int s = 0; s < v.steps; s++) {
    train_step(&t, 0);
    want = traffic_add(want, fsdp_formula(f, (int)o.grad_accum), 1);
  }
  f->log = NULL;
  // In every microbatch the gradient of each stage begins in a separate buffer; other buffers, at the beginning of the
  // step and where the placement says, in the slots they overwrite.
  int64_t buffers = 0, given = f->slot_shared[0] + f->slot_shared[1];
  for (int i = 0; i < o.grad_accum * f->points; i++) given += __builtin_popcount((unsigned)fsdp_waits_at(f, i));
  for (int s = 0; s < f->lay.stages; s++) buffers += f->lay.stage[s].grads >= GRADS_IN_SLOT;
  const int64_t begun = v.steps * (o.grad_accum * buffers + given);
  EXPECT((int64_t)log.begun == begun, "N=%d %s: gradient buffers were begun %lld times, must be %lld", world, extra,
         (long long)log.begun, (long long)begun);
  for (int i = 0; i < log.count; i++) {
    const LogEntry *e = &log.entry[i];
    if (e->op != LOG_COLLECTIVE) continue;
    const int64_t bytes = (int64_t)e->value;
    if (e->what == COLLECTIVE_GATHER) told.gathers++, told.gather_bytes += bytes;
    if (e->what == COLLECTIVE_REDUCE) told.reductions++, told.reduce_bytes += bytes;
    if (e->what == COLLECTIVE_SMALL || e->what == COLLECTIVE_BARRIER) told.small++, told.small_bytes += bytes;
    if (e->what == COLLECTIVE_CHAIN || e->what == COLLECTIVE_REPLICATE) told.replicate_bytes += bytes;
  }
  EXPECT(!memcmp(&told, &f->traffic, sizeof told), "N=%d %s: the log tells of other traffic than was counted", world,
         extra);
  EXPECT(!memcmp(&want, &f->traffic, sizeof want), "N=%d %s: the formula gives other traffic than was counted", world,
         extra);
  memset(run, 0, sizeof *run);
  sched_name_events(run, f);
  run->name = extra;
  run->world = world;
  run->mesh = f->cfg.mesh;
  run->fresh = f->cfg.comm != COMM_MPI && f->cfg.offload != OFFLOAD_PARAMS;    // over mpi, a barrier ends it
  run->in_place = f->lay.in_place;
  run->polled = f->cfg.comm == COMM_MPI;
  run->one_sequence = !ops->nccl || (f->cfg.comm == COMM_SELF && !fsdp_offloads(f));
  MPI_Gather(&log.count, 1, MPI_INT, run->count, 1, MPI_INT, 0, comm);
  for (int r = 0; r < world; r++) {
    const int bytes = (int)sizeof(LogEntry);
    if (rank == 0) run->entry[r] = (LogEntry *)malloc(sizeof(LogEntry) * (size_t)(run->count[r] + 1));
    if (rank == 0 && r == 0) memcpy(run->entry[0], log.entry, sizeof(LogEntry) * (size_t)log.count);
    else if (rank == 0) MPI_Recv(run->entry[r], run->count[r] * bytes, MPI_BYTE, r, 0, comm, MPI_STATUS_IGNORE);
    else if (rank == r) MPI_Send(log.entry, log.count * bytes, MPI_BYTE, 0, 0, comm);
  }
  free(log.entry);
  trainer_close(&t);
  MPI_Comm_free(&comm);
  return rank == 0;
}
static void sched_free(SchedRun *run) { for (int r = 0; r < run->world; r++) free(run->entry[r]); }

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

static bool sched_is_gradient(int memory) { return memory >= LOG_GRADS && memory <= LOG_STAGED_WINDOW; }
static bool sched_is_sum(int memory) { return memory == LOG_SUM || memory == LOG_SUM_WINDOW; }
static bool sched_same_cell(const LogEntry *x, const LogEntry *y) { return x->what == y->what && x->slot == y->slot; }
static bool sched_writes(const LogEntry *e) { return e->op == LOG_WRITE || e->op == LOG_ARRIVED; }
// Whether `counter` reports the end of entry e.
static bool sched_told_by(const LogEntry *e, int counter, int rank) {
  if (counter == COUNTER_DONE) return e->op == LOG_READ && e->rank != rank && sched_is_gradient(e->what);
  if (!sched_writes(e)) return false;
  if (counter == COUNTER_KEPT) return e->what == LOG_KEPT || e->what == LOG_KEPT_WINDOW;
  return counter == COUNTER_PARTIAL ? sched_is_sum(e->what) : sched_is_gradient(e->what);
}
// Parameter shards that peers read. Before entry i, a peer's read: the last barrier. Before i, an update: the entry
// after the last read of that stage's shards of peers. Shards that are never updated have content 0.
static int sched_shard_mutant_to(const LogEntry *log, int kind, int rank, int i) {
  const LogEntry *e = &log[i];
  if ((e->what != LOG_PARAMS && e->what != LOG_PARAMS_WINDOW) || !e->value) return -1;
  const bool update = kind == MUTANT_UPDATE_EARLY;
  if (update ? e->op != LOG_WRITE : e->op != LOG_READ || e->rank == rank) return -1;
  for (i--; i >= 0; i--) {
    if (update && log[i].op == LOG_READ && log[i].rank != rank && sched_same_cell(&log[i], e)) return i + 1;
    if (!update && log[i].op == LOG_COLLECTIVE && log[i].what == COLLECTIVE_BARRIER) return i;
  }
  return -1;
}
// The entry before which a mutant of this kind moves entry i; -1: there is none. SCHED_LEAVE_OUT: it is left out.
enum { SCHED_LEAVE_OUT = -2 };
static int sched_mutant_to(const SchedRun *run, int kind, int rank, int i) {
  static const int drops[] = {LOG_WAIT, LOG_RECORD, LOG_DONE, LOG_SYNC, LOG_OBSERVE, LOG_ARRIVED, LOG_SENT, LOG_RELEASE,
                              LOG_COLLECTIVE};
  const LogEntry *log = run->entry[rank], *e = &log[i];
  if (kind == MUTANT_DROP_SYNC)
    for (int j = 0; j < i; j++) if (log[j].op == LOG_SYNC && log[j].stream == e->stream) return -1;
  if (kind >= MUTANT_DROP_COLLECTIVE && kind <= MUTANT_SWAP_COLLECTIVES && run->world == 1) return -1;
  if (kind <= MUTANT_DROP_COLLECTIVE)
    return e->op != drops[kind] || (e->op == LOG_COLLECTIVE && !sched_compared(e)) ? -1 : SCHED_LEAVE_OUT;
  if (kind == MUTANT_SWAP_COLLECTIVES) {
    int j = i - 1;
    while (j >= 0 && !sched_compared(&log[j])) j--;
    const bool differ = j >= 0 && (log[j].what != e->what || log[j].stage != e->stage || log[j].value != e->value);
    return sched_compared(e) && differ ? j : -1;
  }
  if (kind == MUTANT_PUBLISH_EARLY) {
    int j = i - 1;
    while (j >= 0 && !(e->op == LOG_PUBLISH && sched_told_by(&log[j], e->what, rank))) j--;
    return j;
  }
  if (kind == MUTANT_PARTIAL_EARLY) {
    if (e->op != LOG_READ || !sched_is_sum(e->what) || e->stream != STREAM_REDUCE) return -1;
    int j = i - 1;
    while (j >= 0 && !(e->rank == rank ? sched_writes(&log[j]) && sched_same_cell(&log[j], e)
                                       : log[j].op == LOG_OBSERVE && log[j].what == COUNTER_PARTIAL)) j--;
    return j;
  }
  if (kind == MUTANT_SHARD_EARLY || kind == MUTANT_UPDATE_EARLY) return sched_shard_mutant_to(log, kind, rank, i);
  if (kind == MUTANT_GATHER_EARLY) {
    if (!sched_writes(e) || e->what != LOG_SLOT) return -1;
    int j = i - 1;
    for (; j >= 0; j--) {
      if (!sched_same_cell(&log[j], e)) continue;
      if (sched_writes(&log[j]) && log[j].value == e->value) return -1;        // the first part is already there
      if (log[j].op == LOG_RELEASE) break;
    }
    return j;
  }
  const bool gradient = sched_is_gradient(e->what) || sched_is_sum(e->what);
  if (e->op != LOG_READ || e->rank != rank || gradient != (kind == MUTANT_REDUCE_EARLY)) return -1;
  int to = -1;
  for (int j = i - 1; j >= 0; j--) {
    if (!sched_writes(&log[j]) || !sched_same_cell(&log[j], e) || log[j].value != e->value) continue;
    to = j;
    if (gradient) break;
  }
  return to;
}
// Runs the check with the mutant in place, and restores the record.
static const char *sched_check_mutant(SchedRun *run, SchedMutant m) {
  LogEntry *own = run->entry[m.rank];
  const int n = run->count[m.rank];
  LogEntry *log = (LogEntry *)malloc(sizeof(LogEntry) * (size_t)n);
  memcpy(log, own, sizeof(LogEntry) * (size_t)n);
  if (m.kind == MUTANT_SWAP_COLLECTIVES) log[m.at] = own[m.to], log[m.to] = own[m.at];
  else if (m.kind == MUTANT_DROP_SYNC) {
    run->count[m.rank] = 0;
    for (int i = 0; i < n; i++)
      if (own[i].op != LOG_SYNC || own[i].stream != own[m.at].stream) log[run->count[m.rank]++] = own[i];
  } else if (m.to < 0) {
    memmove(log + m.at, own + m.at + 1, sizeof(LogEntry) * (size_t)(n - m.at - 1));
    run->count[m.rank]--;
  } else {
    memcpy(log + m.to + 1, own + m.to, sizeof(LogEntry) * (size_t)(m.at - m.to));
    log[m.to] = own[m.at];
  }
  run->entry[m.rank] = log;
  const char *error = sched_check(run);
  run->entry[m.rank] = own;
  run->count[m.rank] = n;
  free(log);
  return error;
}
// The site of entry e: its name tells it from others of its kind.
static SchedSite *sched_site(SchedTally *tally, const SchedRun *run, int kind, const LogEntry *e) {
  static const char *const streams[] = {"host", "model", "gather", "reduce"};
  static const char *const messages[] = {"gather", "reduce", "chain", "replicate"};
  char name[96];
  const char *what = sched_words(1, e->what);
  if (kind == MUTANT_DROP_OBSERVE || kind == MUTANT_PUBLISH_EARLY) what = sched_words(2, e->what);
  if (kind == MUTANT_DROP_ARRIVED || kind == MUTANT_DROP_SENT) what = messages[e->number >> 60];
  if (kind <= MUTANT_DROP_DONE) what = run->event[e->slot];
  if (kind == MUTANT_DROP_COLLECTIVE || kind == MUTANT_SWAP_COLLECTIVES) what = sched_words(3, e->what);
  snprintf(name, sizeof name, "%s: %s, %s", sched_mutant_words[kind], what, streams[e->stream]);
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
// Waits that no entry needs in a mode: for a stream that touches nothing; for the mirror of a gradient without peers.
static bool sched_waits_for_nothing(const SchedRun *run, int rank, const LogEntry *e) {
  if (run->mesh.shards == 1 && !strcmp(run->event[e->slot], "mirror filled")) return true;
  if (e->op != LOG_WAIT) return false;
  for (int i = 0; i < run->count[rank]; i++) {
    const LogEntry *x = &run->entry[rank][i];
    if ((x->op == LOG_READ || x->op == LOG_WRITE) && x->stream == e->stream) return false;
  }
  return true;
}
// Whether another entry may order what the mutant breaks. The host mostly waits again later for the same thing. If
// counters and messages order ranks, it also depends on when the host polled and on the progress of its peers. So only
// the order within one rank must be caught every time.
static bool sched_may_stand_in(const SchedRun *run, int kind) {
  const bool host = (kind >= MUTANT_DROP_SYNC && kind <= MUTANT_DROP_SENT) || kind == MUTANT_PUBLISH_EARLY;
  const bool peers = kind <= MUTANT_DROP_DONE || kind == MUTANT_PARTIAL_EARLY || kind == MUTANT_UPDATE_EARLY;
  return host || (run->polled && peers);
}
// Makes at most `most` mutants of a kind at every site, evenly spread over the record of all ranks. If other entries
// may replace the broken one, more mutants are made until one is caught. If none may, a mutant that is not caught must
// have ordered nothing: only waits of streams and releases, and of these only ones that were in order already (`useful`
// of the run without mutants).
static void sched_mutate(SchedRun *run, int kind, int most, uint8_t *const *useful, SchedTally *tally) {
  const bool streams = kind <= MUTANT_DROP_DONE;
  const bool stands_in = sched_may_stand_in(run, kind), others = stands_in || kind == MUTANT_DROP_DONE;
  if (run->one_sequence && kind <= MUTANT_DROP_SYNC) return;                   // there are none
  for (int i = 0; i < tally->sites; i++) tally->site[i].count = tally->site[i].at = tally->site[i].here = 0;
  for (int r = 0; r < run->world; r++)
    for (int i = 0; i < run->count[r]; i++)
      if (sched_mutant_to(run, kind, r, i) != -1) sched_site(tally, run, kind, &run->entry[r][i])->count++;
  for (int r = 0; r < run->world; r++)
    for (int i = 0; i < run->count[r]; i++) {
      const int to = sched_mutant_to(run, kind, r, i);
      if (to == -1) continue;
      SchedSite *site = sched_site(tally, run, kind, &run->entry[r][i]);
      const bool more = others && !site->caught && site->here < SCHED_MOST_TRIES && !sched_is_redundant(site->name);
      if (site->at++ % ((site->count + most - 1) / most) && !more) continue;
      site->here++;
      site->made++;
      if (sched_check_mutant(run, SchedMutant{kind, r, i, to})) { site->caught++; continue; }
      if (stands_in) continue;
      if (streams && sched_waits_for_nothing(run, r, &run->entry[r][i])) continue;
      char line[256];
      sched_line(line, sizeof line, r, i, &run->entry[r][i]);
      EXPECT((streams || kind == MUTANT_DROP_RELEASE) && !useful[r][i], "%s: nothing shows that %s: %s", run->name,
             sched_mutant_words[kind], line);
    }
}
static void sched_mutants(SchedRun *run, int most, SchedTally *tally) {
  uint8_t *useful[SCHED_RANKS] = {};
  sched_check(run);
  for (int r = 0; r < run->world; r++) {
    useful[r] = (uint8_t *)malloc((size_t)run->count[r] + 1);
    memcpy(useful[r], sched_check_state.useful[r], (size_t)run->count[r] + 1);
  }
  for (int kind = 0; kind < SCHED_MUTANT_KINDS; kind++) sched_mutate(run, kind, most, useful, tally);
  for (uint8_t *u : useful) free(u);
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
  for (int r = 0; r < run->world && run->in_place; r++) {
    bool read[SCHED_RANKS] = {};
    for (int i = 0; i < run->count[r]; i++) {
      const LogEntry *e = &run->entry[r][i];
      if (e->op == LOG_READ && e->what == LOG_PARAMS && e->stream == STREAM_MODEL) read[e->rank] = true;
    }
    int first;
    const int size = sched_group(run, LOG_COMM_SHARD_GATHER, r, &first);
    for (int k = first; k < first + size; k++)
      EXPECT(read[k], "%s: rank %d reads no shard of rank %d in place", run->name, r, k);
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
      sched_expect_in_place(&run);
      if (!error) sched_mutants(&run, most, &tally);
      if (getenv("SCHEDULE_TALLY"))
        fprintf(stderr, "%s %s: %.0f ms, %d entries\n", mode[m].comm, mode[m].extra, now_ms() - start, run.count[0]);
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
