// test_schedule_log.h: proves the order of the schedule for every mode, from the record of a run (record_replay.h).
//
// The record itself is broken on purpose, each entry in turn. Each break must be found, or other entries must already
// have established the order (the broken entry orders nothing new). A read that was moved must find another writer than
// in the order of the program, or be found before.
#include "record_replay.h"

// ---- recording
// change: NULL, or breaks the record of each rank.
struct SchedVariant { int steps; int64_t chunk_numel; void (*change)(Record *r); };
// What the record says has moved: what arrived by messages and in collectives, and what was read of others' windows for
// a purpose.
static Traffic sched_traffic(const Record *r) {
  Traffic t = {};
  for (int i = 0; i < r->count; i++) {
    const RecordEntry *e = &r->entry[i];
    const bool collective = e->kind == RECORD_COLLECTIVE, others = e->rank != r->rank;
    const bool small = e->place.what == SCHEDULE_SMALL || e->op == COLLECTIVE_BARRIER;
    if (collective && e->op == COLLECTIVE_GATHER) t.gathers += (int64_t)e->access.at;
    if (collective && e->op == COLLECTIVE_REDUCE) t.reductions += (int64_t)e->access.at;
    if (collective && e->op == COLLECTIVE_RETURN) t.returns += (int64_t)e->access.at;
    if (collective && e->op == COLLECTIVE_UPDATES) t.updates += (int64_t)e->access.at;
    if (e->kind == RECORD_RECEIVE && e->place.what == SCHEDULE_UPDATE) t.update_bytes += (int64_t)e->access.bytes;
    t.small += collective && small;
    if (!collective && !(e->kind == RECORD_RECEIVE && others) &&
        !(e->kind == RECORD_ACCESS && others && e->access.kind == ACCESS_READ)) continue;
    const int64_t bytes = (int64_t)e->access.bytes;
    if (e->place.what == SCHEDULE_GATHER) t.gather_bytes += bytes;
    if (e->place.what == SCHEDULE_REDUCE) t.reduce_bytes += bytes;
    if (e->place.what == SCHEDULE_CHAIN || e->place.what == SCHEDULE_RETURN) t.replicate_bytes += bytes;
    if (e->place.what == SCHEDULE_SMALL) t.small_bytes += bytes;
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
      strcpy(told->name[e->number], e->place.what == SCHEDULE_UPDATE ? "updates" : e->op == CHANNEL_GATHER ? "gather" :
                                    e->op == CHANNEL_REDUCE ? "reduce" : e->op == CHANNEL_CHAIN ? "chain" :
                                    e->op == CHANNEL_RETURN ? "return" : "nccl");
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
  if (!world_comm(world, &comm)) return false;
  static Trainer t;
  static RecordTable table[RECORD_STREAMS];
  static SchedTold told;
  Record record;
  Options o;
  const bool native = !strncmp(extra, "native", 6);              // as schedule_run takes it
  test_options(&o, world, "%s %s", schedule_shapes, extra + (native ? 6 : 0));
  option_pick(&o, OPT_comm, comm_name);
  if (native) o.reduce = OPT_reduce_native;
  record_open(&record);
  record.paused = true;
  record_tables(table, &record, ops, ops->nccl ? cpu_tables[0].ops : ops);
  Device device = device_of(&table[RECORD_MODEL].watch.ops);
  device.host_ops = &table[RECORD_HOST].watch.ops;
  trainer_open(&t, &o, corpus, comm, device, 1);
  Fsdp *&f = t.fsdp;
  if (v.chunk_numel) fsdp_cut_rounds(f, min64(f->lay.chunk_numel, v.chunk_numel));
  fsdp_record(f, &record);
  // Over mpi, initialisation ends with a barrier. Else parameters were just written, and no one has waited.
  if (f->cfg.comm != COMM_MPI && f->cfg.offload != OFFLOAD_PARAMS)
    record_told(&record, RECORD_ACCESS, RECORD_MODEL, 0,
                Access{ACCESS_WRITE, (uintptr_t)(fsdp_home(f, f->lay.part[WORK_PARAMS].at)),
                       f->lay.params_bytes});
  f->traffic = Traffic{};
  Traffic want = {};
  for (int s = 0; s < v.steps; s++) {
    train_step(&t, 0);
    want = traffic_add(want, fsdp_formula(f, (int)o.grad_accum), 1);
  }
  f->record = NULL;
  record.paused = true;
  // In every microbatch the gradient of each stage starts in a separate buffer; other buffers, at the start of the
  // step and where the placement says, in the slots and in the staging they overwrite.
  int64_t buffers = 0, begun = 0, given = f->shared.slot[0] + f->shared.slot[1];
  for (int i = 0; i < o.grad_accum * f->shared.points; i++) given += __builtin_popcount((unsigned)fsdp_waits_at(f, i));
  for (int s = 0; s < f->lay.stages; s++) buffers += f->lay.stage[s].grads >= GRADS_IN_SLOT;
  for (int s = 0; s < f->lay.stages; s++) given += f->shared.staging && f->lay.stage[s].staged;
  for (int i = 0; i < record.count; i++)
    begun += record.entry[i].kind == RECORD_FREE && record.entry[i].op == HELD_GRADIENT && !record.entry[i].number;
  const int64_t must = v.steps * (o.grad_accum * buffers + given) * (1 + f->lay.mirrored);
  EXPECT(begun == must, "N=%d %s: gradient buffers were started %lld times, must be %lld", world, extra,
         (long long)begun, (long long)must);
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
  if (v.change) v.change(&record);
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
    const size_t bytes = sizeof(RecordEntry) * (size_t)record.count;
    RecordEntry *raw = (RecordEntry *)sched_collect(record.entry, bytes, r, rank, comm);
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
  X(PUBLISH_EARLY, "a counter is published too early") X(PARTIAL_EARLY, "a partial sum is taken before it exists") \
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
  const int m = x->memory, what = x->e.place.what;
  if (!sched_is_access(x) || x->e.block != 0) return false;
  if (!strcmp(sched_counters[counter], "done")) return x->reads && x->owner != rank && what == SCHEDULE_REDUCE;
  if (!strcmp(sched_counters[counter], "taken")) return x->reads && m == WORK_UPDATES && x->e.op == OP_muon_update;
  if (!x->writes) return false;
  if (!strcmp(sched_counters[counter], "momenta")) return m == WORK_UPDATES && x->e.op == OP_muon_momentum;
  if (!strcmp(sched_counters[counter], "updates")) return m == WORK_UPDATES && x->e.op == OP_newton_schulz;
  if (!strcmp(sched_counters[counter], "secondary")) return m == WORK_SECONDARY;
  if (!strcmp(sched_counters[counter], "partial")) return m == WORK_SUMS;
  return (m == WORK_STAGING && what == SCHEDULE_REDUCE) ||
         ((m == WORK_SLOTS || m == WORK_WHOLE) && what == SCHEDULE_MODEL);
}
// Parameter shards that peers read. Before entry i, a peer's read: the last barrier. Before i, an update: the entry
// after the last read of shards.
static int sched_shard_mutant_to(const SchedRun *run, int kind, int rank, int i) {
  const SchedEntry *log = run->entry[rank], *x = &log[i];
  const bool update = kind == MUTANT_UPDATE_EARLY;
  if (!sched_is_access(x) || x->memory != WORK_PARAMS || x->e.block) return -1;
  if (update ? !x->writes || x->e.place.what != SCHEDULE_UPDATE : x->writes || x->owner == rank) return -1;
  if (!update && !run->found[x->id].updated) return -1;
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
  const int what = x->e.place.what;
  if (!sched_is_access(x) || x->writes || x->owner != rank) return -1;
  const SchedFound *f = &run->found[x->id];
  const int first = f->first < 0 ? -1 : f->first - run->base[rank], last = f->last < 0 ? -1 : f->last - run->base[rank];
  if (last < 0) return -1;
  const int by = run->entry[rank][last].e.place.what;
  const bool sums = what == SCHEDULE_REDUCE || what == SCHEDULE_CHAIN || what == SCHEDULE_RETURN;
  const bool gradient = sums || (what == SCHEDULE_UPDATE && by == SCHEDULE_REDUCE);
  return gradient != (kind == MUTANT_REDUCE_EARLY) ? -1 : gradient ? last : first;
}
// The entry before which a mutant of this kind moves entry i; -1: there is none. SCHED_LEAVE_OUT: it is left out.
enum { SCHED_LEAVE_OUT = -2 };
TEST_HOT static int sched_mutant_to(const SchedRun *run, int kind, int rank, int i) {
  static const RecordKind drops[] = {RECORD_WAIT, RECORD_EVENT, RECORD_DONE, RECORD_SYNC, RECORD_OBSERVE, RECORD_ENDED,
                                     RECORD_ENDED, RECORD_FREE};
  const SchedEntry *log = run->entry[rank], *x = &log[i];
  if (kind == MUTANT_DROP_SYNC)
    for (int j = 0; j < i; j++) if (log[j].e.kind == RECORD_SYNC && log[j].e.stream == x->e.stream) return -1;
  if (kind >= MUTANT_DROP_COLLECTIVE && kind <= MUTANT_SWAP_COLLECTIVES && run->world == 1) return -1;
  if (kind == MUTANT_DROP_ARRIVED || kind == MUTANT_DROP_SENT)
    return x->e.kind == RECORD_ENDED && x->arrives == (kind == MUTANT_DROP_ARRIVED) ? SCHED_LEAVE_OUT : -1;
  if (kind == MUTANT_DROP_COLLECTIVE) return sched_compared(x) ? SCHED_LEAVE_OUT : -1;
  if (kind < MUTANT_DROP_COLLECTIVE) return x->e.kind == drops[kind] ? SCHED_LEAVE_OUT : -1;
  int j = i - 1;
  switch (kind) {
    case MUTANT_SWAP_COLLECTIVES:
      while (j >= 0 && !sched_compared(&log[j])) j--;
      return sched_compared(x) && j >= 0 && !sched_same_collective(&log[j].e, &x->e) ? j : -1;
    case MUTANT_PUBLISH_EARLY:
      while (j >= 0 && !(x->e.kind == RECORD_PUBLISH && sched_told_by(&log[j], sched_counter(x), rank))) j--;
      return j;
    case MUTANT_PARTIAL_EARLY:
      if (!sched_is_access(x) || x->writes) return -1;
      if (x->e.place.what != SCHEDULE_CHAIN && x->e.place.what != SCHEDULE_RETURN) return -1;
      if (x->owner == rank) return run->found[x->id].last < 0 ? -1 : run->found[x->id].last - run->base[rank];
      while (j >= 0 && !(log[j].e.kind == RECORD_OBSERVE && sched_counter(&log[j]) == 2)) j--;
      return j;
    case MUTANT_SHARD_EARLY: case MUTANT_UPDATE_EARLY: return sched_shard_mutant_to(run, kind, rank, i);
    case MUTANT_GATHER_EARLY:
      if (!x->writes || x->e.place.what != SCHEDULE_GATHER) return -1;
      for (; j >= 0; j--) {
        if (!log[j].cells || !sched_share_a_cell(&log[j], x)) continue;
        if (log[j].writes && log[j].e.place.what == SCHEDULE_GATHER) return -1;
        if (log[j].e.kind == RECORD_FREE && log[j].e.op == HELD_WEIGHTS) return j;
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
                                              "a message's end is not waited for: return",
                                              "a message's end is not waited for: updates",
                                              "a record is left out: gradient free"};
static bool sched_is_redundant(const char *site) {
  for (const char *r : sched_redundant) if (strstr(site, r)) return true;
  return false;
}
// Whether an event is of Muon's exchange. All rounds wait alike; which of them need to depends on which runs move, and
// where runs of the rounds before lay. Each wait must be caught in some round.
static bool sched_is_of_updates(const SchedRun *run, int rank, const SchedEntry *x) {
  static const char *const events[] = {"updates ready", "matrix whole", "updates back"};
  const bool named = x->e.kind == RECORD_EVENT || x->e.kind == RECORD_WAIT || x->e.kind == RECORD_DONE;
  for (const char *event : events) if (named && !strcmp(run->told[rank]->name[x->e.number], event)) return true;
  return false;
}
// Waits that no entry needs in a mode: for a stream that touches nothing; for the mirror of a gradient without peers;
// for sums whose norm the last replica alone takes, as the update comes after the step's small all-gather.
static bool sched_waits_for_nothing(const SchedRun *run, int rank, const SchedEntry *x) {
  const char *event = run->told[rank]->name[x->e.number];
  if (run->mesh.shards == 1 && !strcmp(event, "mirror filled")) return true;
  if (sched_is_of_updates(run, rank, x)) return true;
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
      const bool open = others || sched_is_of_updates(run, r, &run->entry[r][i]);
      const bool more = open && !site->caught && site->here < SCHED_MOST_TRIES && !sched_is_redundant(site->name);
      if (site->at++ % ((site->count + most - 1) / most) && !more) continue;
      site->here++;
      site->made++;
      if (sched_check_mutant(run, SchedMutant{kind, r, i, to})) { site->caught++; continue; }
      if (stands_in) continue;
      if (streams && sched_waits_for_nothing(run, r, &run->entry[r][i])) continue;
      char line[320];
      sched_line(line, sizeof line, run, r, i, &run->entry[r][i]);
      EXPECT((streams || kind == MUTANT_DROP_RELEASE) && !useful[run->entry[r][i].id],
             "%s: nothing shows that %s: %s", run->name, sched_mutant_words[kind], line);
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
      const SchedVariant v = {2, mode[m].chunk_numel, NULL};
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
      {2, "mpi", "--freeze h.1.attn.*", 0},      // its gaps are where other blocks' gradients were
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
      {4, "mpi", "--reshard_after_forward 2 --shm off", 0},
      {2, "mpi", "--optimizer muon --n_layer 2", 0},
      {3, "mpi", "--optimizer muon --n_layer 3 --shm off", 0},
      {4, "mpi", "--optimizer muon --n_layer 3 --mesh 2x2", 0}};
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
      {4, "nccl", "--reshard_after_forward 2 --freeze wte,wpe,h.0.*", 0},
      {1, "self", "--optimizer muon --n_layer 1 --offload optimizer", 0},
      {2, "nccl", "--optimizer muon --n_layer 2 --graph off", 0},
      {2, "nccl", "--optimizer muon --n_layer 2 --offload optimizer --param_dtype bf16", 0}};
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
      {4, "mpi", "--reshard_after_forward 2 --shm off", 0},
      {2, "mpi", "--optimizer muon --n_layer 2", 0},
      {2, "mpi", "--optimizer muon --n_layer 2 --offload params --shm off", 0}};
  sched_modes_hold(&ops_streams, modes, (int)(sizeof modes / sizeof *modes), SCHED_MUTANTS_A_SITE);
}
