// record.h: a step that nobody computes. A planning table of ops, made from ops.h like every other, notes which memory
// each call reads and writes, and hands out addresses with nothing behind them; the model and the sharding layer run
// over it as over any device. The record says when each buffer is alive (placement.h).
//
// Time is the number of an entry, in the order in which calls are enqueued. What another stream does has begun at the
// earliest when the last event that it waited for was recorded, and is over when the model's stream has waited for an
// event recorded after it.
#pragma once

enum AccessKind { ACCESS_READ, ACCESS_WRITE, ACCESS_UPDATE };
struct Access { AccessKind kind; uintptr_t at; size_t bytes; };
// What one call of an op touches. in_place: pairs of what is written and what is read that may be the same memory.
enum { ACCESSES_MOST = 24, IN_PLACE_MOST = SUMMANDS_MOST };
struct OpTouch {
  const char *op;
  int count, pairs;
  Access access[ACCESSES_MOST];
  uintptr_t in_place[IN_PLACE_MOST][2];
};
// Who is told what a call touches: Ctx.device of a planning table's context points to one.
struct TouchSink { void (*take)(TouchSink *to, const Ctx *c, const OpTouch *x); };

static inline void touch(OpTouch *x, AccessKind kind, const void *p, size_t bytes) {
  if (!p || !bytes) return;
  CHECK(x->count < ACCESSES_MOST, "%s touches more than %d tensors", x->op, (int)ACCESSES_MOST);
  x->access[x->count++] = Access{kind, (uintptr_t)p, bytes};
}
static inline void touch_tensor(OpTouch *x, AccessKind kind, Tensor t) {
  if (t.data) touch(x, kind, t.data, (size_t)numel(t) * dtype_bytes(t.dtype));
}
static inline void touch_in_place(OpTouch *x, const void *written, const void *read) {
  x->in_place[x->pairs][0] = (uintptr_t)written;
  x->in_place[x->pairs++][1] = (uintptr_t)read;
}
static inline void touch_tell(const Ctx *c, const OpTouch *x) {
  TouchSink *to = (TouchSink *)c->device;
  if (to) to->take(to, c, x);                    // NULL: of the host, whose memory has a plan of its own
}
#define READS(t) touch_tensor(&touched, ACCESS_READ, t);
#define WRITES(t) touch_tensor(&touched, ACCESS_WRITE, t);
#define UPDATES(t) touch_tensor(&touched, ACCESS_UPDATE, t);
#define SUMS(t, mode_) touch_tensor(&touched, (mode_) == ADD ? ACCESS_UPDATE : ACCESS_WRITE, t);
#define SUMMANDS(s, sum_) \
  for (int i = 0; i < (s).count; i++) { \
    touch(&touched, ACCESS_READ, (s).data[i], (size_t)numel(sum_) * dtype_bytes((s).dtype)); \
    touch_in_place(&touched, (sum_).data, (s).data[i]); \
  }
#define READS_BYTES(p, n) touch(&touched, ACCESS_READ, p, n);
#define WRITES_BYTES(p, n) touch(&touched, ACCESS_WRITE, p, n);
#define UPDATES_BYTES(p, n) touch(&touched, ACCESS_UPDATE, p, n);
#define IN_PLACE(written, read) touch_in_place(&touched, (written).data, (read).data);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#define X(op_, args, touches) \
  static inline void op_##_touches args { \
    OpTouch touched = {}; \
    touched.op = #op_; \
    touches \
    touch_tell(c, &touched); \
  }
OPS(X)
#undef X
#pragma GCC diagnostic pop

// ---- the record
enum RecordKind { RECORD_ACCESS, RECORD_EVENT, RECORD_WAIT, RECORD_POINT };
enum RecordStream { RECORD_MODEL, RECORD_GATHER, RECORD_REDUCE, RECORD_STREAMS };
// access: with the number of its call. event: recorded or waited for.
struct RecordEntry { RecordKind kind; RecordStream stream; const char *op; int call, event; Access access; };
struct Record {
  TouchSink sink;
  RecordEntry *entry;
  int count, room, calls, events, sides;
  uintptr_t next_address;
  char error[256];                               // "" or the first call that writes what it reads without being allowed
};
// Addresses that no allocator gives: nothing may be read or written there.
static const uintptr_t RECORD_ADDRESSES = (uintptr_t)1 << 56;
enum { RECORD_ALIGN = 4096 };

static inline void record_entry(Record *r, RecordEntry e) {
  if (r->count == r->room) {
    r->room = r->room ? 2 * r->room : 4096;
    r->entry = (RecordEntry *)realloc(r->entry, sizeof(RecordEntry) * (size_t)r->room);
  }
  r->entry[r->count++] = e;
}
static inline RecordStream record_stream(const Ctx *c) { return (RecordStream)(intptr_t)c->stream; }
static inline bool accesses_overlap(Access a, Access b) { return a.at < b.at + b.bytes && b.at < a.at + a.bytes; }
// Whether a call may write `w` while it reads `r`.
static inline bool touch_allows(const OpTouch *x, Access w, Access r) {
  for (int i = 0; i < x->pairs; i++)
    if (w.at == x->in_place[i][0] && r.at == x->in_place[i][1] && w.at <= r.at) return true;
  return false;
}
static inline void record_take(TouchSink *to, const Ctx *c, const OpTouch *x) {
  Record *r = (Record *)to;                      // its first member
  for (int i = 0; i < x->count; i++) for (int j = 0; j < x->count; j++) {
    const Access w = x->access[i], other = x->access[j];
    if (i == j || w.kind == ACCESS_READ || !accesses_overlap(w, other) || touch_allows(x, w, other) ||
        touch_allows(x, other, w) || r->error[0])
      continue;
    snprintf(r->error, sizeof r->error, "%s, call %d, writes argument %d over argument %d", x->op, r->calls, i, j);
  }
  // What is read first: a call may write it.
  for (int written = 0; written < 2; written++)
    for (int i = 0; i < x->count; i++)
      if ((x->access[i].kind == ACCESS_WRITE) == (bool)written)
        record_entry(r, RecordEntry{RECORD_ACCESS, record_stream(c), x->op, r->calls, 0, x->access[i]});
  r->calls++;
}
// Marks a place where the host may wait for what the plan says (fsdp_point).
static inline void record_point(Record *r) {
  if (r) record_entry(r, RecordEntry{RECORD_POINT, RECORD_MODEL, "point", 0, 0, Access{}});
}
// Fresh addresses for `bytes`.
static inline char *record_addresses(Record *r, size_t bytes) {
  const uintptr_t at = r->next_address;
  r->next_address += (bytes + 2 * RECORD_ALIGN - 1) / RECORD_ALIGN * RECORD_ALIGN;
  return (char *)at;
}
static inline Record *record_of(const Ctx *c) { return (Record *)c->device; }
static inline void record_event(const Ctx *c, RecordKind kind, void *event) {
  record_entry(record_of(c), RecordEntry{kind, record_stream(c), "event", 0, (int)(intptr_t)event, Access{}});
}
static inline void record_open(Record *r) {
  memset(r, 0, sizeof *r);
  r->sink.take = record_take;
  r->next_address = RECORD_ADDRESSES;
}
static inline void record_close(Record *r) { free(r->entry); }

// ---- the planning table's device calls
static inline void plan_memory_alloc(Ctx *c, void **p, size_t bytes, MemoryKind kind) {
  *p = NULL;
  if (!bytes) return;
  if (kind == MEMORY_DEVICE) { *p = record_addresses(record_of(c), bytes); return; }
  // The host reads and writes some of it: pages that are never touched take nothing.
  *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (*p == MAP_FAILED) *p = NULL;
}
static inline void plan_memory_free(Ctx *, void *p, size_t bytes, MemoryKind kind) {
  if (p && kind == MEMORY_PINNED) munmap(p, bytes);
}
static inline void plan_copy(Ctx *c, void *to, const void *from, size_t bytes) {
  OpTouch x = {};
  x.op = "copy";
  touch(&x, ACCESS_READ, from, bytes);
  touch(&x, ACCESS_WRITE, to, bytes);
  touch_tell(c, &x);
}
static inline void plan_zero(Ctx *c, void *to, size_t bytes) {
  OpTouch x = {};
  x.op = "zero";
  touch(&x, ACCESS_WRITE, to, bytes);
  touch_tell(c, &x);
}
static inline void plan_side_open(Ctx *c, Ctx *side, const char *) {
  *side = *c;
  side->stream = (void *)(intptr_t)++record_of(c)->sides;
}
static inline void plan_event_open(Ctx *c, void **event, const char *) {
  *event = (void *)(intptr_t)++record_of(c)->events;
}
static inline void plan_event_record(Ctx *c, void *event) { record_event(c, RECORD_EVENT, event); }
static inline void plan_event_wait(Ctx *c, void *event) { record_event(c, RECORD_WAIT, event); }
static inline void plan_event_done(Ctx *, void *, bool *done) { *done = true; }
// The planning table; `gpu`: of a device whose calls return before they are done. What a step does not call is absent.
static inline Ops plan_table(bool gpu) {
  static const Collectives none = {};
  Ops t = {};
  t.name = "plan";
  t.nccl = gpu ? &none : NULL;
#define X(op, args, touches) t.op = op##_touches;
  OPS(X)
#undef X
  t.memory_alloc = plan_memory_alloc;
  t.memory_free = plan_memory_free;
  t.copy = plan_copy;
  t.zero = plan_zero;
  t.sync = [](Ctx *) {};
  t.side_open = plan_side_open;
  t.side_close = [](Ctx *) {};
  t.event_open = plan_event_open;
  t.event_close = [](Ctx *, void *) {};
  t.event_record = plan_event_record;
  t.event_wait = plan_event_wait;
  t.event_done = plan_event_done;
  t.range_begin = [](Ctx *, const char *) {};
  t.range_end = [](Ctx *) {};
  return t;
}
