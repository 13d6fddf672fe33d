// record_run.h: a real run's record (fsdp/record.h): its calls are watched and noted as a dry run's are.

// Of one stream: side_open gives the next streams theirs.
struct RecordTable { OpWatch watch; Record *record; RecordStream stream; Collectives nccl; };
static inline RecordTable *record_table_of(const Ctx *c) { return (RecordTable *)c->ops; }
static inline Ctx recorded_teller(const RecordTable *t, const Ctx *c) {
  Ctx teller = *c;
  teller.device = t->record;
  teller.stream = (void *)(intptr_t)t->stream;
  return teller;
}
static inline void recorded_before(OpWatch *w, Ctx *c, const OpTouch *x) {
  const RecordTable *t = (const RecordTable *)w;
  const Ctx teller = recorded_teller(t, c);
  if (!t->record->paused) record_take(&t->record->sink, &teller, x);
}
// A call of the device: noted as the planning table does, and passed on.
template <auto Op> struct Recorded;
template <class... P, void (*Ops::*Op)(Ctx *, P...)> struct Recorded<Op> {
  static void call(Ctx *c, P... p) {
    static const Ops plan = plan_table(false);
    const RecordTable *t = record_table_of(c);
    Ctx teller = recorded_teller(t, c), real = *c;
    real.ops = t->watch.real;
    if (!t->record->paused) (plan.*Op)(&teller, p...);
    (t->watch.real->*Op)(&real, p...);
  }
};
static inline void recorded_side_open(Ctx *c, Ctx *side, const char *name) {
  RecordTable *t = record_table_of(c);
  t->watch.real->side_open(c, side, name);
  side->ops = &t[++t->record->sides].watch.ops;
}
static inline void recorded_event_open(Ctx *c, void **event, const char *name) {
  const RecordTable *t = record_table_of(c);
  t->watch.real->event_open(c, event, name);
  if (*event) record_number(t->record, *event, name);
}
static inline void recorded_event_done(Ctx *c, void *event, bool *done) {
  const RecordTable *t = record_table_of(c);
  t->watch.real->event_done(c, event, done);
  if (*done && event)
    record_told(t->record, RECORD_DONE, t->stream, record_number(t->record, event, "event"), Access{});
}
// The rank of a group's i-th member; the group of all has no list.
static inline int record_member(const RecordGroup *g, int i) { return g->rank ? g->rank[i] : i; }
// NCCL. Which group a communicator is of, and the real table for a call.
struct NcclCall { Record *record; RecordStream stream; Communicator over; const RecordGroup *group; Ctx real; };
static inline NcclCall nccl_call(Ctx *c, const void *comm) {
  const RecordTable *t = record_table_of(c);
  NcclCall x = {t->record, t->stream, OVER_NONE, NULL, *c};
  x.real.ops = t->watch.real;
  for (int i = 0; i < COMMUNICATORS; i++) if (comm && t->record->group[i].comm == comm) x.over = (Communicator)i;
  x.group = &t->record->group[x.over];
  return x;
}
static inline void recorded_all_gather(Ctx *c, void *comm, void *to, const void *from, size_t bytes) {
  NcclCall x = nccl_call(c, comm);
  const size_t n = (size_t)x.group->size;
  record_exchange(x.record, x.stream, COLLECTIVE_ALL_GATHER, x.over, (n - 1) * bytes,
                  Exchanged{from, bytes, to, n * bytes});
  x.real.ops->nccl->all_gather(&x.real, comm, to, from, bytes);
}
static inline void recorded_reduce_scatter(Ctx *c, void *comm, Tensor to, const void *from) {
  NcclCall x = nccl_call(c, comm);
  const size_t n = (size_t)x.group->size, bytes = (size_t)numel(to) * dtype_bytes(to.dtype);
  record_exchange(x.record, x.stream, COLLECTIVE_REDUCE_SCATTER, x.over, (n - 1) * bytes,
                  Exchanged{from, n * bytes, to.data, bytes});
  x.real.ops->nccl->reduce_scatter(&x.real, comm, to, from);
}
static inline void recorded_all_reduce(Ctx *c, void *comm, Tensor data) {
  NcclCall x = nccl_call(c, comm);
  const size_t n = (size_t)x.group->size, bytes = (size_t)numel(data) * dtype_bytes(data.dtype);
  record_exchange(x.record, x.stream, COLLECTIVE_ALL_REDUCE, x.over, n ? bytes * 2 * (n - 1) / n : 0,
                  Exchanged{data.data, bytes, data.data, bytes});
  x.real.ops->nccl->all_reduce(&x.real, comm, data);
}
static inline void recorded_broadcast(Ctx *c, void *comm, void *data, size_t bytes, int root) {
  NcclCall x = nccl_call(c, comm);
  const size_t given = x.group->me == root ? bytes : 0, taken = bytes - given;
  record_exchange(x.record, x.stream, COLLECTIVE_BROADCAST, x.over, taken, Exchanged{data, given, data, taken});
  x.real.ops->nccl->broadcast(&x.real, comm, data, bytes, root);
}
static inline void recorded_send(Ctx *c, void *comm, const void *from, size_t bytes, int to_rank) {
  NcclCall x = nccl_call(c, comm);
  const bool on = x.group->size;
  if (on) record_message(x.record, RECORD_SEND, x.stream, (Channel)(CHANNEL_NCCL + x.over), comm,
                         record_member(x.group, to_rank), from, bytes);
  x.real.ops->nccl->send(&x.real, comm, from, bytes, to_rank);
}
static inline void recorded_receive(Ctx *c, void *comm, void *to, size_t bytes, int from_rank) {
  NcclCall x = nccl_call(c, comm);
  const bool on = x.group->size;
  if (on) record_message(x.record, RECORD_RECEIVE, x.stream, (Channel)(CHANNEL_NCCL + x.over), comm,
                         record_member(x.group, from_rank), to, bytes);
  if (on && !x.record->grouped) record_ended(x.record, x.stream, comm);
  x.real.ops->nccl->receive(&x.real, comm, to, bytes, from_rank);
}
static inline void recorded_group_begin(Ctx *c) {
  NcclCall x = nccl_call(c, NULL);
  x.record->grouped = true;
  x.record->group_set = NULL;
  x.real.ops->nccl->group_begin(&x.real);
}
static inline void recorded_group_end(Ctx *c) {
  NcclCall x = nccl_call(c, NULL);
  if (x.record->group_set) record_ended(x.record, x.stream, x.record->group_set);
  x.record->grouped = false;
  x.real.ops->nccl->group_end(&x.real);
}
// Tables that note in r what is asked of `real`, on its streams; t: [RECORD_STREAMS]. A device opened with the first
// one is recorded from then on, unless r is paused; the last one is for an optimizer on the host.
static inline void record_tables(RecordTable *t, Record *r, const Ops *real, const Ops *host) {
  for (int i = 0; i < RECORD_STREAMS; i++) {
    watch_table(&t[i].watch, i == RECORD_HOST ? host : real);
    watch_copies(&t[i].watch);
    t[i].watch.before = recorded_before;
    t[i].record = r, t[i].stream = (RecordStream)i;
    Ops *o = &t[i].watch.ops;
    o->sync = Recorded<&Ops::sync>::call;
    o->event_record = Recorded<&Ops::event_record>::call;
    o->event_wait = Recorded<&Ops::event_wait>::call;
    o->event_open = recorded_event_open;
    o->event_done = recorded_event_done;
    o->side_open = recorded_side_open;
    if (!o->nccl) continue;
    t[i].nccl = *o->nccl;
    t[i].nccl.all_gather = recorded_all_gather;
    t[i].nccl.reduce_scatter = recorded_reduce_scatter;
    t[i].nccl.all_reduce = recorded_all_reduce;
    t[i].nccl.broadcast = recorded_broadcast;
    t[i].nccl.send = recorded_send;
    t[i].nccl.receive = recorded_receive;
    t[i].nccl.group_begin = recorded_group_begin;
    t[i].nccl.group_end = recorded_group_end;
    o->nccl = &t[i].nccl;
  }
}
static inline void record_block(Record *r, int rank, int number, const void *at, size_t bytes) {
  CHECK(r->blocks < (int)(sizeof r->block / sizeof *r->block), "more than %d blocks", r->blocks);
  if (at && bytes) r->block[r->blocks++] = RecordBlock{(uintptr_t)at, bytes, rank, number};
}
// Starts or continues recording f's run in r, whose tables f was opened with (record_tables).
static inline void fsdp_record(Fsdp *f, Record *r) {
  void *const comms[COMMUNICATORS] = {NULL, f->nccl.gather, f->nccl.secondary, f->nccl.reduce, f->nccl.replicate,
                                      f->nccl.world};
  f->record = r;
  r->rank = f->mesh.rank;
  r->paused = false;
  r->blocks = 0;
  for (int i = 0; i < f->mesh.world; i++) record_block(r, i, 0, f->mesh.peer[i].window, comm_mpi_window_bytes(f, i));
  if (f->mem.work.at != f->mem.window)
    record_block(r, r->rank, 1, f->mem.work.at, f->lay.work_bytes - f->mem.work.from);
  for (int i = 0; i < f->plan->blocks; i++) {
    const MemoryBlock *b = &f->plan->block[i];
    void *p = NULL;
    if (b->pointer) memcpy(&p, b->pointer, sizeof p);
    record_block(r, r->rank, 2 + i, p, b->bytes + b->besides);
  }
  for (int i = 0; i < COMMUNICATORS; i++) {
    const RankGroup *g = i == OVER_SECONDARY ? &f->mesh.secondary
                         : i == OVER_REPLICATE ? &f->mesh.replicate : &f->mesh.shard;
    r->group[i] = RecordGroup{comms[i], g->size, g->me, g->rank};
    if (i == OVER_WORLD) r->group[i] = RecordGroup{comms[i], f->mesh.world, f->mesh.rank, NULL};
  }
}
