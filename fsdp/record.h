// record.h: a list of what a run does. Tests prove the order of a schedule from it, and the placement finds the
// lifetimes of buffers in it. Entries are the memory that each call reads and writes (op_calls.h), and the events,
// waits and collectives that order these accesses. There are records of
//   dry runs     over plan_table, which computes nothing. The model and the sharding layer run over it as over any
//                device; it hands out addresses with no memory behind them (placement.h)
//   real runs    in tests, which watch the calls (dev/test/record_run.h)
// Code that accesses memory without an op (messages, counters, reads and writes by the host, a stage that becomes
// whole) records that itself. Without a record this costs one comparison.
//
// Entries stand in the order in which they were enqueued. Only these entries order two accesses:
//   within a stream                their order; and everything that the host had done before it enqueued them
//   between streams                WAIT after the EVENT; for the host DONE (it asked) or SYNC
//   between ranks of a host        OBSERVE, which has seen the value of a PUBLISH
//   between two ranks              ENDED: the message of a RECEIVE has arrived, the memory of a SEND may be reused
//   between all ranks of a group   COLLECTIVE over a communicator: what one did before it precedes what others do after
// On a CPU a call is done when it returns: all streams and the host are one sequence. In a dry run, time is the number
// of an entry. Work of another stream starts no earlier than the recording of the last event that its stream waited
// for, and has ended when the model's stream has waited for an event recorded after it.
#pragma once
#include <sys/mman.h>
#include "state.h"

// ---- the record
static inline RecordStream record_stream(const Ctx *c) { return (RecordStream)(intptr_t)c->stream; }
static inline Record *record_of(const Ctx *c) { return (Record *)c->device; }
static inline void record_close(Record *r) { free(r->entry); free(r->name); }
// Messages from one rank to another over a channel arrive in order. Channels from CHANNEL_NCCL on are NCCL's
// communicators: CHANNEL_NCCL + Communicator.
enum Channel { CHANNEL_GATHER, CHANNEL_REDUCE, CHANNEL_CHAIN, CHANNEL_RETURN, CHANNEL_NCCL };

enum { RECORD_ALIGN = 4096 };

static inline void record_entry(Record *r, RecordEntry e) {
  if (r->paused) return;
  if (r->count == r->room) {
    r->room = r->room ? 2 * r->room : 4096;
    r->entry = (RecordEntry *)realloc(r->entry, sizeof(RecordEntry) * (size_t)r->room);
  }
  e.pass = r->pass;
  e.place = r->place;
  r->entry[r->count++] = e;
}
static inline RecordEntry record_of_kind(RecordKind kind, RecordStream stream, int number) {
  RecordEntry e = {};
  e.kind = kind, e.stream = stream, e.block = -1, e.number = number;
  return e;
}
// The entry e with the access a, whose address a.at is this process's: as an offset if it is in one of r's blocks.
static inline RecordEntry record_at(const Record *r, RecordEntry e, Access a) {
  e.access = a;
  for (int i = 0; i < r->blocks; i++) {
    const RecordBlock *b = &r->block[i];
    if (a.at < b->at || a.at >= b->at + b->bytes) continue;
    e.access.at -= b->at, e.block = b->number, e.rank = b->rank;
    return e;
  }
  e.rank = r->rank;
  return e;
}
static inline bool accesses_overlap(Access a, Access b) { return a.at < b.at + b.bytes && b.at < a.at + a.bytes; }
// Whether a call may write `w` while it reads `r`.
static inline bool touch_allows(const OpTouch *x, Access w, Access r) {
  for (int i = 0; i < x->pairs; i++)
    if (w.at == x->in_place[i][0] && r.at == x->in_place[i][1] && w.at <= r.at) return true;
  return false;
}
// Adds a call's accesses to the record, and notes in r->error the first call that writes an argument over another one
// without op_calls.h allowing it, or that uses a workspace which its stream does not have.
static inline void record_take(TouchSink *to, const Ctx *c, const OpTouch *x) {
  Record *r = (Record *)to;                      // its first member
  for (int i = 0; i < x->count; i++) for (int j = 0; j < x->count && x->access[i].kind != ACCESS_READ; j++) {
    const Access w = x->access[i], other = x->access[j];
    if (i == j || !accesses_overlap(w, other) || touch_allows(x, w, other) || touch_allows(x, other, w) || r->error[0])
      continue;
    snprintf(r->error, sizeof r->error, "%s, call %d, writes argument %d over argument %d", op_word(x->op),
             r->calls, i, j);
  }
  if (x->workspace && !c->workspace && !r->error[0])
    snprintf(r->error, sizeof r->error, "%s, call %d, uses the workspace, but its stream has none", op_word(x->op),
             r->calls);
  // Reads come before writes, because a call may write what it reads.
  for (int written = 0; written < 2; written++)
    for (int i = 0; i < x->count; i++) {
      if ((x->access[i].kind == ACCESS_WRITE) != (bool)written) continue;
      RecordEntry e = record_of_kind(RECORD_ACCESS, record_stream(c), r->calls);
      e.op = x->op;
      e.context = x->context && i >= x->context;
      record_entry(r, record_at(r, e, x->access[i]));
    }
  r->calls++;
}
// Marks a point where the host may wait, if the placement says so (fsdp_wait_point).
static inline void record_point(Record *r) {
  if (r) record_entry(r, record_of_kind(RECORD_POINT, RECORD_MODEL, 0));
}
// Fresh addresses for `bytes`.
static inline char *record_addresses(Record *r, size_t bytes) {
  const uintptr_t at = r->next_address;
  r->next_address += (bytes + 2 * RECORD_ALIGN - 1) / RECORD_ALIGN * RECORD_ALIGN;
  return (char *)at;
}
// The number of an event or a set of messages of a real run, found by its address `of`, or given to it now.
static inline int record_number(Record *r, const void *of, const char *words) {
  for (int i = 0; i < r->names; i++) if (r->name[i].of == of) return i;
  if (r->names == r->names_room) {
    r->names_room = r->names_room ? 2 * r->names_room : 64;
    r->name = (RecordName *)realloc(r->name, sizeof(RecordName) * (size_t)r->names_room);
  }
  r->name[r->names] = RecordName{of, words};
  return r->names++;
}
// Records that an event is recorded or waited for. event: NULL on a CPU, which has no events.
static inline void record_event(const Ctx *c, RecordKind kind, void *event) {
  Record *r = record_of(c);
  if (event)
    record_entry(r, record_of_kind(kind, record_stream(c), r->names ? record_number(r, event, "event")
                                                                    : (int)(intptr_t)event));
}
static inline void record_open(Record *r) {
  memset(r, 0, sizeof *r);
  r->sink.take = record_take;
  r->next_address = RECORD_ADDRESSES;
}

// Passes a call to the watch of a dry run.
static inline void record_watched(TouchSink *to, const Ctx *c, const OpTouch *x) {
  DryWatch *w = ((Record *)to)->watch;
  w->op(w, c->device ? record_stream(c) : RECORD_HOST, x);
}

// ---- the planning table's device calls
static inline void plan_memory_alloc(Ctx *c, void **p, size_t bytes, MemoryKind kind) {
  *p = NULL;
  if (!bytes) return;
  if (kind == MEMORY_DEVICE) { *p = record_addresses(record_of(c), bytes); return; }
  // The host reads and writes some of this memory. Pages that are never touched take no memory.
  *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (*p == MAP_FAILED) *p = NULL;
}
static inline void plan_memory_free(Ctx *, void *p, size_t bytes, MemoryKind kind) {
  if (p && kind == MEMORY_PINNED) munmap(p, bytes);
}
static inline void plan_side_open(Ctx *c, Ctx *side, const char *) {
  *side = *c;
  side->stream = (void *)(intptr_t)++record_of(c)->sides;
  side->workspace = NULL;
  side->workspace_bytes = 0;
}
static inline void plan_event_open(Ctx *c, void **event, const char *) {
  *event = (void *)(intptr_t)++record_of(c)->events;
}
static inline void plan_event(Ctx *c, void *event, bool waits) {
  DryWatch *w = record_of(c)->watch;
  if (w) w->event(w, record_stream(c), (int)(intptr_t)event, waits);
  else record_event(c, waits ? RECORD_WAIT : RECORD_EVENT, event);
}
static inline void plan_event_record(Ctx *c, void *event) { plan_event(c, event, false); }
static inline void plan_event_wait(Ctx *c, void *event) { plan_event(c, event, true); }
static inline void plan_range_begin(Ctx *c, const char *name) {
  DryWatch *w = record_of(c)->watch;
  if (w) w->phase(w, name);
}
static inline void plan_sync(Ctx *c) {
  if (record_of(c)) record_entry(record_of(c), record_of_kind(RECORD_SYNC, record_stream(c), 0));
}
static inline void plan_event_done(Ctx *, void *, bool *done) { *done = true; }
// The planning table. gpu: of a device whose calls return before they are done. Functions that no step calls are NULL.
Ops plan_table(bool gpu) {
  static const Collectives none = {};
  Ops t = {};
  t.name = "plan";
  t.nccl = gpu ? &none : NULL;
  touch_ops(&t);
  t.memory_alloc = plan_memory_alloc;
  t.memory_free = plan_memory_free;
  t.sync = plan_sync;
  t.side_open = plan_side_open;
  t.side_close = [](Ctx *) {};
  t.event_open = plan_event_open;
  t.event_close = [](Ctx *, void *) {};
  t.event_record = plan_event_record;
  t.event_wait = plan_event_wait;
  t.event_done = plan_event_done;
  t.range_begin = plan_range_begin;
  t.range_end = [](Ctx *) {};
  return t;
}

// ---- what no op does. r is NULL where nothing is recorded
static inline void record_told(Record *r, RecordKind kind, RecordStream stream, int number, Access a) {
  if (r) record_entry(r, record_at(r, record_of_kind(kind, stream, number), a));
}
// The host reads or writes memory that a stream accesses, too.
static inline void record_host(Record *r, AccessKind kind, const void *p, size_t bytes) {
  if (!r) return;
  RecordEntry e = record_of_kind(RECORD_ACCESS, RECORD_HOST, r->calls++);
  e.op = OP_HOST;
  record_entry(r, record_at(r, e, Access{kind, (uintptr_t)p, bytes}));
}
// A message of `set`, which ends as a whole.
static inline void record_message(Record *r, RecordKind kind, RecordStream stream, Channel channel, const void *set,
                                  int peer, const void *p, size_t bytes) {
  if (!r) return;
  RecordEntry e = record_at(r, record_of_kind(kind, stream, record_number(r, set, "messages")),
                            Access{kind == RECORD_SEND ? ACCESS_READ : ACCESS_WRITE, (uintptr_t)p, bytes});
  e.op = channel, e.rank = peer;
  if (channel >= CHANNEL_NCCL && kind == RECORD_RECEIVE) r->group_set = set;
  record_entry(r, e);
}
static inline void record_ended(Record *r, RecordStream stream, const void *set) {
  if (r) record_entry(r, record_of_kind(RECORD_ENDED, stream, record_number(r, set, "messages")));
}
// `count` collectives of a kind, in which `bytes` arrive here.
static inline void record_collective(Record *r, RecordStream stream, CollectiveKind kind, Communicator over, int count,
                                     size_t bytes) {
  if (!r) return;
  RecordEntry e = record_of_kind(RECORD_COLLECTIVE, stream, over);
  e.op = kind, e.rank = r->rank, e.access = Access{ACCESS_READ, (uintptr_t)count, bytes};
  record_entry(r, e);
}
// Records one collective that reads `from` and writes `to`.
struct Exchanged { const void *from; size_t from_bytes; void *to; size_t to_bytes; };
static inline void record_exchange(Record *r, RecordStream stream, CollectiveKind kind, Communicator over, size_t bytes,
                                   Exchanged x) {
  const Access from = {ACCESS_READ, (uintptr_t)x.from, x.from_bytes}, to = {ACCESS_WRITE, (uintptr_t)x.to, x.to_bytes};
  if (x.from_bytes) record_told(r, RECORD_ACCESS, stream, r ? r->calls : 0, from);
  record_collective(r, stream, kind, over, 1, bytes);
  if (x.to_bytes) record_told(r, RECORD_ACCESS, stream, r ? r->calls++ : 0, to);
}
static inline void record_held(Record *r, RecordKind kind, Held what, int stage, const void *p, size_t bytes) {
  if (!r || !bytes) return;
  RecordEntry e = record_at(r, record_of_kind(kind, RECORD_MODEL, stage), Access{ACCESS_READ, (uintptr_t)p, bytes});
  e.op = what;
  record_entry(r, e);
}
