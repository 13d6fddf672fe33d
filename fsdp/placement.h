// placement.h: buffers are declared, and get memory by their lifetimes. What is never alive at once may share.
//
// A pass (a training step, a batch of evaluation, a token of a sample) is run once over the planning table (record.h).
// For each declared buffer the record tells when it is alive: from a write to the last read of what was written. Then
// every buffer gets a place in one of the pools where nothing lies that is alive at the same time, one after the other:
// Pisarchyk and Lee 2020, "Efficient memory management for deep neural net inference". A pool may have fixed buffers
// that lie where somebody else has put them.
//
//   POOL_SHARDS   gradient shards of this rank alone, one fixed buffer a stage. It cannot grow
//   POOL_ACTS     what nobody but the model's stream touches
//   POOL_SLOTS    the two gradient slots, fixed, and beyond. Peers read the slots after they have been written, so what
//                 comes next to lie there waits for them: at a point of the pass that the placement chooses
#pragma once
#include "record.h"

enum Pool { POOL_SHARDS, POOL_ACTS, POOL_SLOTS, POOLS };
// Of time, both ends included. last: the entry that was enqueued last, which may be over later.
struct Interval { int from, to, last; };
struct Buffer {
  const char *name;
  int layer;                                     // of its block; -1: none
  size_t bytes;
  uintptr_t address;                             // in the dry run
  Pool pool;
  size_t at;                                     // in the pool
  int first, intervals;                          // when it is alive, latest first
  int begins, alive;                             // when first, and how long in all
};
// Where a fixed buffer lies, and whether what is declared shares its memory. slot: a gradient slot, which peers read.
struct FixedBuffer { Buffer buffer; bool slot, shared; };
enum { FIXED_MOST = 258 };
// One pass. wait: for each point, bits of the slots that are waited for there; waits: of all points.
struct Pass {
  Buffer *buffer;
  int count, room;
  Interval *interval;
  int intervals, intervals_room;
  uint8_t *wait;
  int points, waits;
};
// Open: buffers may be placed there; `most`: it cannot grow beyond.
struct PoolSpace { size_t bytes, most; bool open; };
struct Placement {
  PoolSpace pool[POOLS];
  FixedBuffer fixed[FIXED_MOST];
  int fixed_count;
  size_t alive_most_bytes;                       // the largest sum of buffers alive at once, of any pass: a lower bound
};

// Adds a fixed buffer, of a stage or a slot, at `at` of its pool, which has at least this many bytes; `address` is
// where the dry run has it. In order of addresses.
static inline void placement_fix(Placement *pl, const char *name, int number, Pool pool, size_t at, size_t bytes,
                                 const void *address) {
  CHECK(pl->fixed_count < FIXED_MOST, "more than %d fixed buffers", (int)FIXED_MOST);
  FixedBuffer *x = &pl->fixed[pl->fixed_count++];
  *x = FixedBuffer{};
  x->buffer.name = name;
  x->buffer.layer = number;
  x->buffer.bytes = bytes;
  x->buffer.address = (uintptr_t)address;
  x->buffer.pool = pool;
  x->buffer.at = at;
  x->slot = pool == POOL_SLOTS;
}

// ---- declaring
// Declares a pass's buffers in a dry run (record), or finds the places that they got (base). The same calls in the same
// order do both.
struct Declare { Pass *pass; Record *record; char *base[POOLS]; int next; };

// A buffer of the pass; nobody but the model's stream touches it. In a dry run it gets an address of its own. Later
// calls may ask for less than the dry run did.
static inline char *declare_bytes(Declare *d, const char *name, int layer, size_t bytes) {
  Pass *p = d->pass;
  if (!d->record) {
    CHECK(d->next < p->count, "%s was not declared in the dry run", name);
    const Buffer *b = &p->buffer[d->next++];
    CHECK(!strcmp(b->name, name) && bytes <= b->bytes, "%s was declared as %s of %zu bytes, now %zu", name, b->name,
          b->bytes, bytes);
    return bytes ? d->base[b->pool] + b->at : NULL;
  }
  if (p->count == p->room) {
    p->room = p->room ? 2 * p->room : 256;
    p->buffer = (Buffer *)realloc(p->buffer, sizeof(Buffer) * (size_t)p->room);
  }
  Buffer *b = &p->buffer[p->count++];
  *b = Buffer{};
  b->name = name;
  b->layer = layer;
  b->bytes = align_bytes(bytes);
  b->address = (uintptr_t)record_addresses(d->record, b->bytes);
  return bytes ? (char *)b->address : NULL;
}
static inline Tensor declare(Declare *d, const char *name, int layer, Dtype dtype, int64_t d0, int64_t d1 = -1,
                             int64_t d2 = -1) {
  Tensor t = tensor_of(NULL, dtype, d0, d1, d2);
  t.data = declare_bytes(d, name, layer, (size_t)numel(t) * dtype_bytes(dtype));
  return t;
}

// ---- lifetimes
// When each entry may have begun and when it is over for certain, as times of the model's stream.
static inline Interval *record_times(const Record *r) {
  Interval *time = (Interval *)malloc(sizeof(Interval) * (size_t)(r->count + 1));
  int *recorded = (int *)malloc(sizeof(int) * (size_t)(r->events + 1));        // entry that recorded the event last
  int *waited = (int *)malloc(sizeof(int) * (size_t)(r->count + 1));           // entry of the model's wait for an event
  int began[RECORD_STREAMS] = {}, first = 0;
  for (int i = 0; i <= r->events; i++) recorded[i] = -1;
  for (int i = 0; i < r->count; i++) {
    const RecordEntry *e = &r->entry[i];
    waited[i] = r->count;
    if (e->kind == RECORD_EVENT) recorded[e->event] = i;
    if (e->kind == RECORD_WAIT && recorded[e->event] >= 0) {
      const int at = recorded[e->event];
      const RecordStream of = r->entry[at].stream;
      const int after = of == RECORD_MODEL ? at : began[of];
      if (e->stream != RECORD_MODEL && after > began[e->stream]) began[e->stream] = after;
      if (e->stream == RECORD_MODEL && i < waited[at]) waited[at] = i;
    }
    // A call reads and writes at once.
    first = e->kind == RECORD_ACCESS && i && r->entry[i - 1].kind == RECORD_ACCESS && r->entry[i - 1].call == e->call
                ? first : i;
    time[i] = Interval{e->stream == RECORD_MODEL ? first : began[e->stream], i, i};
    for (int k = first; k < i && e->stream == RECORD_MODEL; k++) time[k].to = i;
  }
  int over[RECORD_STREAMS];
  for (int &o : over) o = r->count;
  for (int i = r->count - 1; i >= 0; i--) {
    const RecordEntry *e = &r->entry[i];
    if (e->kind == RECORD_EVENT && waited[i] < over[e->stream]) over[e->stream] = waited[i];
    if (e->stream != RECORD_MODEL) time[i].to = over[e->stream];
  }
  free(recorded);
  free(waited);
  return time;
}

// Bytes [from, to) of a buffer that will still be read.
struct LiveRange { size_t from, to; };
enum { LIVE_RANGES_MOST = 4096 };
struct LiveRanges { LiveRange range[LIVE_RANGES_MOST]; int count; };
static inline void live_remove(LiveRanges *l, LiveRange x) {
  for (int i = l->count - 1; i >= 0; i--) {
    const LiveRange old = l->range[i];
    if (old.to <= x.from || old.from >= x.to) continue;
    l->range[i] = l->range[--l->count];
    if (old.from < x.from) l->range[l->count++] = LiveRange{old.from, x.from};
    if (old.to > x.to) l->range[l->count++] = LiveRange{x.to, old.to};
    CHECK(l->count < LIVE_RANGES_MOST - 2, "a buffer is read in more than %d parts", (int)LIVE_RANGES_MOST);
  }
}
// Joins what it touches, so that a buffer read in many parts stays few ranges.
static inline void live_add(LiveRanges *l, LiveRange x) {
  for (int i = l->count - 1; i >= 0; i--) {
    const LiveRange old = l->range[i];
    if (old.to < x.from || old.from > x.to) continue;
    if (old.from < x.from) x.from = old.from;
    if (old.to > x.to) x.to = old.to;
    l->range[i] = l->range[--l->count];
  }
  CHECK(l->count < LIVE_RANGES_MOST - 2, "a buffer is read in more than %d parts", (int)LIVE_RANGES_MOST);
  l->range[l->count++] = x;
}

static inline void pass_interval(Pass *p, Buffer *b, Interval x) {
  if (p->intervals == p->intervals_room) {
    p->intervals_room = p->intervals_room ? 2 * p->intervals_room : 1024;
    p->interval = (Interval *)realloc(p->interval, sizeof(Interval) * (size_t)p->intervals_room);
  }
  if (!b->intervals) b->first = p->intervals;
  b->begins = x.from;
  b->alive += x.to - x.from + 1;
  p->interval[p->intervals++] = x;
  b->intervals++;
}
// Which entries touch b, in order: entry[0 to entries).
struct Touching { const int *entry; int entries; };
// Appends b's lifetimes, latest first: the record is read backwards, and a part of b lives from a write to the last
// read of what was written.
static inline void buffer_lifetimes(Pass *p, Buffer *b, const Record *r, const Interval *time, Touching t) {
  static LiveRanges live;
  live.count = 0;
  Interval now = {};
  for (int k = t.entries - 1; k >= 0; k--) {
    const int i = t.entry[k];
    const Access a = r->entry[i].access;
    const uintptr_t end = b->address + b->bytes;
    const LiveRange x = {a.at > b->address ? a.at - b->address : 0,
                         (a.at + a.bytes < end ? a.at + a.bytes : end) - b->address};
    if (!live.count) now = time[i];
    if (time[i].from < now.from) now.from = time[i].from;
    if (time[i].to > now.to) now.to = time[i].to;
    if (a.kind == ACCESS_WRITE) live_remove(&live, x);
    else live_add(&live, x);
    if (!live.count) pass_interval(p, b, now);
  }
  if (live.count) { now.from = 0; pass_interval(p, b, now); }    // it has something from before the pass
}

// ---- placing
static inline bool buffers_meet(const Pass *p, const Buffer *a, const Buffer *b) {
  for (int i = 0; i < a->intervals; i++) for (int j = 0; j < b->intervals; j++) {
    const Interval x = p->interval[a->first + i], y = p->interval[b->first + j];
    if (x.from <= y.to && y.from <= x.to) return true;
  }
  return false;
}
// Orders to place buffers in; of equal ones the one declared first.
static inline int buffers_in_turn(const Buffer *a, const Buffer *b) { return a < b ? -1 : a > b; }
static inline int buffers_by_size(const void *x, const void *y) {
  const Buffer *a = *(const Buffer *const *)x, *b = *(const Buffer *const *)y;
  return a->bytes != b->bytes ? (a->bytes > b->bytes ? -1 : 1) : buffers_in_turn(a, b);
}
static inline int buffers_by_duration(const void *x, const void *y) {
  const Buffer *a = *(const Buffer *const *)x, *b = *(const Buffer *const *)y;
  return a->alive != b->alive ? (a->alive > b->alive ? -1 : 1) : buffers_by_size(x, y);
}
static inline int buffers_by_area(const void *x, const void *y) {
  const Buffer *a = *(const Buffer *const *)x, *b = *(const Buffer *const *)y;
  const double p = (double)a->alive * (double)a->bytes, q = (double)b->alive * (double)b->bytes;
  return p != q ? (p > q ? -1 : 1) : buffers_by_size(x, y);
}
static inline int buffers_by_first_use(const void *x, const void *y) {
  const Buffer *a = *(const Buffer *const *)x, *b = *(const Buffer *const *)y;
  return a->begins != b->begins ? (a->begins < b->begins ? -1 : 1) : buffers_by_size(x, y);
}
typedef int (*BufferOrder)(const void *x, const void *y);
static const BufferOrder buffer_orders[] = {buffers_by_size, buffers_by_duration, buffers_by_area,
                                            buffers_by_first_use};
enum { BUFFER_ORDERS = sizeof buffer_orders / sizeof buffer_orders[0] };

// The lowest place of `b` in a pool where none of `near` lies, those of the pool that are alive with it, by place.
static inline size_t pool_place(const Buffer *b, Buffer *const *near, int count) {
  size_t at = 0;
  for (int i = 0; i < count; i++) {
    if (near[i]->at >= at + b->bytes) break;
    if (near[i]->at + near[i]->bytes > at) at = near[i]->at + near[i]->bytes;
  }
  return at;
}

// Of a pool: what has got a place, by place.
struct PoolBuffers { Buffer **buffer; int count; };
static inline void pool_insert(PoolBuffers *to, Buffer *b) {
  int at = to->count++;
  for (; at > 0 && to->buffer[at - 1]->at > b->at; at--) to->buffer[at] = to->buffer[at - 1];
  to->buffer[at] = b;
}
// Gives b the place that lets the pools grow least, and of equal ones that in the first pool.
static inline void buffer_place(Placement *pl, const Pass *p, Buffer *b, PoolBuffers *placed, Buffer **near) {
  size_t least = SIZE_MAX;
  b->pool = POOL_ACTS;
  if (!b->intervals) return;                     // nobody touches it in this pass
  for (int k = 0; k < POOLS; k++) {
    const PoolSpace *space = &pl->pool[k];
    int count = 0;
    for (int i = 0; i < placed[k].count && space->open; i++)
      if (buffers_meet(p, b, placed[k].buffer[i])) near[count++] = placed[k].buffer[i];
    const size_t at = pool_place(b, near, count), end = at + b->bytes;
    const size_t grows = end > space->bytes ? end - space->bytes : 0;
    if (!space->open || end > space->most || grows >= least) continue;
    least = grows;
    b->pool = (Pool)k;
    b->at = at;
  }
  PoolSpace *space = &pl->pool[b->pool];
  if (b->at + b->bytes > space->bytes) space->bytes = b->at + b->bytes;
  pool_insert(&placed[b->pool], b);
}
// The largest sum of bytes alive at once.
static inline size_t pass_alive_most(const Pass *p, int times) {
  int64_t *change = (int64_t *)calloc((size_t)times + 2, sizeof(int64_t)), now = 0, most = 0;
  for (int i = 0; i < p->count; i++)
    for (int j = 0; j < p->buffer[i].intervals; j++) {
      const Interval x = p->interval[p->buffer[i].first + j];
      change[x.from] += (int64_t)p->buffer[i].bytes;
      change[x.to + 1] -= (int64_t)p->buffer[i].bytes;
    }
  for (int i = 0; i <= times; i++) if ((now += change[i]) > most) most = now;
  free(change);
  return (size_t)most;
}

// Entries that touch each of `count` buffers, whose addresses rise. Returns count + 1 starts into *entry; free both.
static inline int *record_touches(const Record *r, Buffer *const *buffer, int count, int **entry) {
  int *start = (int *)calloc((size_t)count + 2, sizeof(int));
  *entry = NULL;
  for (int fill = 0; fill < 2; fill++) {
    for (int i = 0; i < r->count; i++) {
      const Access a = r->entry[i].access;
      if (r->entry[i].kind != RECORD_ACCESS || a.at < RECORD_ADDRESSES) continue;
      int low = 0, high = count;                 // the first buffer that ends after a begins
      while (low < high) {
        const int middle = (low + high) / 2;
        if (buffer[middle]->address + buffer[middle]->bytes > a.at) high = middle;
        else low = middle + 1;
      }
      for (int k = low; k < count && buffer[k]->address < a.at + a.bytes; k++) {
        if (fill) (*entry)[start[k + 1]++] = i;
        else start[k + 2]++;
      }
    }
    if (fill) break;
    for (int k = 1; k < count + 1; k++) start[k + 1] += start[k];
    *entry = (int *)malloc(sizeof(int) * (size_t)(start[count + 1] + 1));
  }
  return start;
}

// A slot is given to other buffers no sooner than POINTS_APART points after its reduction began, so that peers have
// most likely read it and the wait is short.
enum { POINTS_APART = 3 };
// Entries of the record's points.
struct Points { int *entry, count; };
static inline Points record_points(const Record *r) {
  Points p = {(int *)malloc(sizeof(int) * (size_t)(r->count + 1)), 0};
  for (int i = 0; i < r->count; i++) if (r->entry[i].kind == RECORD_POINT) p.entry[p.count++] = i;
  return p;
}
// The number of points up to entry i.
static inline int points_until(Points p, int i) {
  int low = 0, high = p.count;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (p.entry[middle] > i) high = middle;
    else low = middle + 1;
  }
  return low;
}
// Shortens the lifetimes of a gradient slot to when it may be given away. Returns what they were.
static inline Interval *slot_give(Pass *p, const Buffer *slot, Points points, int end) {
  Interval *natural = (Interval *)malloc(sizeof(Interval) * (size_t)(slot->intervals + 1));
  for (int j = 0; j < slot->intervals; j++) {
    Interval *own = &p->interval[slot->first + j];
    natural[j] = *own;
    const int at = points_until(points, own->last) + POINTS_APART - 1;
    const int given = at < points.count ? points.entry[at] : end;
    if (given < own->to) own->to = given;
  }
  return natural;
}
// Notes where the pass must wait for slot `number`, because b comes to lie there while peers may still read it.
static inline void pass_wait_for_slot(Pass *p, Points points, const Interval *natural, const Buffer *slot, int number,
                                      const Buffer *b) {
  for (int i = 0; i < b->intervals; i++) for (int j = 0; j < slot->intervals; j++) {
    const int from = p->interval[b->first + i].from;
    if (p->interval[slot->first + j].to >= from || natural[j].to < from) continue;
    const int point = points_until(points, from) - 1;
    CHECK(point >= 0 && points.entry[point] > natural[j].last, "no point between a gradient slot and %s", b->name);
    p->waits += !(p->wait[point] >> number & 1);
    p->wait[point] = (uint8_t)(p->wait[point] | 1 << number);
  }
}

// Places the buffers of a pass that was declared and recorded. Pools grow as it needs.
static inline void pass_place(Placement *pl, Pass *p, const Record *r) {
  const int count = p->count + pl->fixed_count;
  Buffer **all = (Buffer **)malloc(sizeof(Buffer *) * (size_t)(2 * count + 2)), **near = all + count + 1;
  PoolBuffers placed[POOLS];
  for (PoolBuffers &k : placed) k = PoolBuffers{(Buffer **)malloc(sizeof(Buffer *) * (size_t)(count + 1)), 0};
  // Addresses of the sharding layer, which took its memory before the pass was declared, are below those declared.
  for (int i = 0; i < pl->fixed_count; i++) {
    all[i] = &pl->fixed[i].buffer;
    all[i]->intervals = all[i]->alive = 0;
  }
  for (int i = 0; i < p->count; i++) all[pl->fixed_count + i] = &p->buffer[i];
  int *entry, *start = record_touches(r, all, count, &entry);
  Interval *time = record_times(r), *natural[2] = {};
  const Points points = record_points(r);
  for (int i = 0; i < count; i++)
    buffer_lifetimes(p, all[i], r, time, Touching{entry + start[i], start[i + 1] - start[i]});
  pl->alive_most_bytes = (size_t)max64((int64_t)pl->alive_most_bytes, (int64_t)pass_alive_most(p, r->count));
  int slots = 0;
  for (int i = 0; i < pl->fixed_count; i++) {
    FixedBuffer *x = &pl->fixed[i];
    if (x->slot) natural[slots] = slot_give(p, &x->buffer, points, r->count);
    slots += x->slot;
  }
  // No order is best for all: the one after which the pools are smallest, placed once more.
  Buffer **order = all + pl->fixed_count;
  const PoolSpace before[POOLS] = {pl->pool[0], pl->pool[1], pl->pool[2]};
  size_t least = SIZE_MAX;
  for (int k = 0, best = 0; k <= BUFFER_ORDERS; k++) {
    memcpy(pl->pool, before, sizeof before);
    for (PoolBuffers &i : placed) i.count = 0;
    for (int i = 0; i < pl->fixed_count; i++)
      if (pl->fixed[i].buffer.intervals) pool_insert(&placed[pl->fixed[i].buffer.pool], &pl->fixed[i].buffer);
    qsort(order, (size_t)p->count, sizeof *order, buffer_orders[k < BUFFER_ORDERS ? k : best]);
    for (int i = 0; i < p->count; i++) buffer_place(pl, p, order[i], placed, near);
    const size_t total = pl->pool[POOL_ACTS].bytes + pl->pool[POOL_SLOTS].bytes;
    if (total < least) least = total, best = k;
  }
  p->points = points.count;
  p->wait = (uint8_t *)calloc((size_t)p->points + 1, 1);
  slots = 0;
  for (int i = 0; i < pl->fixed_count; i++) {
    FixedBuffer *x = &pl->fixed[i];
    for (int k = 0; k < p->count; k++) {
      const Buffer *b = &p->buffer[k];
      if (!b->intervals || b->pool != x->buffer.pool || b->at >= x->buffer.at + x->buffer.bytes ||
          x->buffer.at >= b->at + b->bytes)
        continue;
      x->shared = true;
      if (x->slot) pass_wait_for_slot(p, points, natural[slots], &x->buffer, slots, b);
    }
    slots += x->slot;
  }
  for (PoolBuffers &k : placed) free(k.buffer);
  for (Interval *n : natural) free(n);
  free(points.entry);
  free(all);
  free(start);
  free(entry);
  free(time);
}
static inline void pass_free(Pass *p) {
  free(p->buffer);
  free(p->interval);
  free(p->wait);
  *p = Pass{};
}
