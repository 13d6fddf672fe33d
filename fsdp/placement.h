// placement.h: buffers are declared, and get memory by their lifetimes. Buffers that are never live at the same time
// may share memory.
//
// A pass (a training step, a batch of evaluation, a token of a sample) is run once over the planning table (record.h).
// The record shows when each declared buffer is live: from a write to the last read of what was written. Then the
// buffers are placed one by one, each in one of the pools, where no placed buffer is live at the same time:
// Pisarchyk and Lee 2020, "Efficient memory management for deep neural net inference". A pool may have fixed buffers,
// which the sharding layer has placed; other buffers may use their memory while they are not live. The ops' workspace
// is a buffer, too. Nearly every op writes it, so it seldom fits into a gap: one placement puts it last, into the gaps
// that the other buffers leave, another one places it together with them, and the smaller of the two is taken.
//
//   POOL_SHARDS   gradient shards of this rank alone, one fixed buffer a stage. It cannot grow
//   POOL_ACTS     what no peer touches. Fixed: all-gather buffers, copies of weights, what arrives from others
//   POOL_SLOTS    fixed: what peers read, staging and the two gradient slots. Before their memory is reused the step
//                 waits for peers: for staging at its start, for a slot at a point that the placement chooses
#pragma once
#include "record.h"

// Adds a fixed buffer of `bytes` at offset `at` of its pool. number: its stage or slot. address: where the dry run has
// it. Nothing is added for 0 bytes.
static inline void placement_fix(Placement *pl, const char *name, int number, Pool pool, size_t at, size_t bytes,
                                 const void *address) {
  if (!bytes) return;
  CHECK(pl->fixed_count < FIXED_MAX, "more than %d fixed buffers", (int)FIXED_MAX);
  FixedBuffer *x = &pl->fixed[pl->fixed_count++];
  *x = FixedBuffer{};
  x->buffer.name = name;
  x->buffer.layer = number;
  x->buffer.bytes = bytes;
  x->buffer.address = (uintptr_t)address;
  x->buffer.pool = pool;
  x->buffer.at = at;
  x->slot = -1;
}
static inline size_t placement_bytes(const Placement *pl) {
  return pl->pool[POOL_SHARDS].bytes + pl->pool[POOL_ACTS].bytes + pl->pool[POOL_SLOTS].bytes;
}

// ---- declaring
char *declare_bytes(Declare *d, const char *name, int layer, size_t bytes) {
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
  b->at = (size_t)(b->address - RECORD_ADDRESSES);           // until it has its place: a dry run may declare it again
  return bytes ? (char *)b->address : NULL;
}
char *declare_workspace(Declare *d, size_t bytes) {
  char *p = declare_bytes(d, "workspace", -1, bytes);
  if (!d->record) return p;
  d->pass->buffer[d->pass->count - 1].workspace = true;
  d->pass->buffer[d->pass->count - 1].bytes = bytes;
  return p;
}
Tensor declare(Declare *d, const char *name, int layer, Dtype dtype, int64_t d0, int64_t d1, int64_t d2) {
  Tensor t = tensor_of(NULL, dtype, d0, d1, d2);
  t.data = declare_bytes(d, name, layer, (size_t)numel(t) * dtype_bytes(dtype));
  return t;
}

// ---- lifetimes
// For each entry: when it may have started and when it is certainly over, as numbers of the record's entries. Work of
// another stream starts no earlier than the event that its stream waited for (see record.h). Free the result.
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

// Bytes [from, to) of a buffer that will still be read. LiveRanges: disjoint, in rising order.
struct LiveRange { size_t from, to; };
struct LiveRanges { LiveRange *range; int count, room; };
// Index of the first range whose end is >= at.
static inline int live_find(const LiveRanges *l, size_t at) {
  int low = 0, high = l->count;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (l->range[middle].to >= at) high = middle;
    else low = middle + 1;
  }
  return low;
}
// Replaces ranges [i, j) by `count` others.
static inline void live_replace(LiveRanges *l, int i, int j, const LiveRange *by, int count) {
  const int left = l->count + count - (j - i);
  if (left > l->room) {
    l->room = left + l->count + 64;
    l->range = (LiveRange *)realloc(l->range, sizeof(LiveRange) * (size_t)l->room);
  }
  memmove(l->range + i + count, l->range + j, sizeof(LiveRange) * (size_t)(l->count - j));
  for (int k = 0; k < count; k++) l->range[i + k] = by[k];
  l->count = left;
}
static inline void live_remove(LiveRanges *l, LiveRange x) {
  const int i = live_find(l, x.from + 1);
  int j = i, left = 0;
  LiveRange by[2];
  while (j < l->count && l->range[j].from < x.to) j++;
  if (i < j && l->range[i].from < x.from) by[left++] = LiveRange{l->range[i].from, x.from};
  if (i < j && l->range[j - 1].to > x.to) by[left++] = LiveRange{x.to, l->range[j - 1].to};
  live_replace(l, i, j, by, left);
}
// Adds x and joins it with the ranges that it touches, so that a buffer read in many parts stays few ranges.
static inline void live_add(LiveRanges *l, LiveRange x) {
  const int i = live_find(l, x.from);
  int j = i;
  while (j < l->count && l->range[j].from <= x.to) j++;
  if (i < j && l->range[i].from < x.from) x.from = l->range[i].from;
  if (i < j && l->range[j - 1].to > x.to) x.to = l->range[j - 1].to;
  live_replace(l, i, j, &x, 1);
}

// Appends the interval x to b's. turn: for each entry, how many entries up to it belong to no op's context; lengths of
// intervals are counted in these.
static inline void pass_interval(Pass *p, Buffer *b, Interval x, const int *turn) {
  if (p->intervals == p->intervals_room) {
    p->intervals_room = p->intervals_room ? 2 * p->intervals_room : 1024;
    p->interval = (Interval *)realloc(p->interval, sizeof(Interval) * (size_t)p->intervals_room);
  }
  if (!b->intervals) b->first = p->intervals;
  b->begins = x.from;
  b->alive += turn[x.to] - turn[x.from] + 1;
  p->interval[p->intervals++] = x;
  b->intervals++;
}
// Which entries touch b, in order: entry[0 to entries).
struct Touching { const int *entry; int entries; };
// Appends b's lifetimes, latest first: the record is read backwards, and a part of b lives from a write to the last
// read of what was written. Weights may be read until they are released.
static inline void buffer_lifetimes(Pass *p, Buffer *b, const Record *r, const Interval *time, const int *turn,
                                    Touching t) {
  static LiveRanges live;
  live.count = 0;
  Interval now = {};
  int released = 0;
  for (int k = t.entries - 1; k >= 0; k--) {
    const int i = t.entry[k];
    const Access a = r->entry[i].access;
    const uintptr_t end = b->address + b->bytes;
    if (r->entry[i].kind == RECORD_FREE) { released = i > released ? i : released; continue; }
    const LiveRange x = {a.at > b->address ? a.at - b->address : 0,
                         (a.at + a.bytes < end ? a.at + a.bytes : end) - b->address};
    if (!live.count) {
      now = time[i];
      if (released > now.to) now.to = released;
      released = 0;
    }
    if (time[i].from < now.from) now.from = time[i].from;
    if (time[i].to > now.to) now.to = time[i].to;
    if (a.kind == ACCESS_WRITE) live_remove(&live, x);
    else live_add(&live, x);
    if (!live.count) pass_interval(p, b, now, turn);
  }
  if (live.count) { now.from = 0; pass_interval(p, b, now, turn); }    // read, but written before the pass
}

// ---- placing
static inline void buffers_join(Meets *m, int a, int b) {
  m->bit[(size_t)a * (size_t)m->words + (size_t)b / 64] |= (uint64_t)1 << (b & 63);
  m->bit[(size_t)b * (size_t)m->words + (size_t)a / 64] |= (uint64_t)1 << (a & 63);
}
// Fills in m: which of `count` buffers are live at the same time in the pass, of `times` entries. Returns the largest
// sum of bytes live at once. Free m->bit.
static inline size_t pass_meets(const Pass *p, Buffer *const *buffer, int count, int times, Meets *m) {
  const int words = (count + 63) / 64;
  int *begins = (int *)malloc(sizeof(int) * 2 * (size_t)(times + 2)), *ends = begins + times + 2;
  int *next = (int *)malloc(sizeof(int) * 3 * (size_t)(p->intervals + 1)), *next_end = next + p->intervals + 1;
  int *of = next_end + p->intervals + 1, *alive = (int *)calloc((size_t)count + 1, sizeof(int));
  uint64_t *now = (uint64_t *)calloc((size_t)words + 1, sizeof(uint64_t));
  size_t sum = 0, most = 0;
  *m = Meets{(uint64_t *)calloc((size_t)words * (size_t)count + 1, sizeof(uint64_t)), words};
  for (int i = 0; i < 2 * (times + 2); i++) begins[i] = -1;
  for (int i = 0; i < count; i++)
    for (int k = buffer[i]->first; k < buffer[i]->first + buffer[i]->intervals; k++) {
      const Interval x = p->interval[k];
      of[k] = i, next[k] = begins[x.from], begins[x.from] = k, next_end[k] = ends[x.to], ends[x.to] = k;
    }
  for (int t = 0; t <= times; t++) {
    for (int k = begins[t]; k >= 0; k = next[k]) {
      const int i = of[k];
      for (int w = 0; w < words; w++) m->bit[(size_t)i * (size_t)words + (size_t)w] |= now[w];
      now[i / 64] |= (uint64_t)1 << (i & 63);
      sum += alive[i]++ ? 0 : buffer[i]->bytes;
    }
    if (sum > most) most = sum;
    for (int k = ends[t]; k >= 0; k = next_end[k]) {
      const int i = of[k];
      if (--alive[i]) continue;
      now[i / 64] &= ~((uint64_t)1 << (i & 63));
      sum -= buffer[i]->bytes;
    }
  }
  for (int i = 0; i < count; i++)                // each buffer knows those alive when it started: now these know it
    for (int w = 0; w < words; w++)
      for (uint64_t bits = m->bit[(size_t)i * (size_t)words + (size_t)w]; bits; bits &= bits - 1)
        buffers_join(m, i, w * 64 + __builtin_ctzll(bits));
  free(now);
  free(begins);
  free(next);
  free(alive);
  return most;
}
// Orders in which buffers are placed; of equal ones the one with the lower number comes first.
static inline int buffers_in_turn(const Buffer *a, const Buffer *b) { return a->number - b->number; }
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
// Of equal size the one that is live first.
static inline int buffers_by_size_and_use(const void *x, const void *y) {
  const Buffer *a = *(const Buffer *const *)x, *b = *(const Buffer *const *)y;
  return a->bytes != b->bytes ? buffers_by_size(x, y) : buffers_by_first_use(x, y);
}
typedef int (*BufferOrder)(const void *x, const void *y);
static const BufferOrder buffer_orders[] = {buffers_by_size, buffers_by_duration, buffers_by_area,
                                            buffers_by_first_use, buffers_by_size_and_use};
enum { BUFFER_ORDERS = sizeof buffer_orders / sizeof buffer_orders[0] };

// The buffers placed in a pool, sorted by offset.
struct PoolBuffer { size_t at, end; int number; };
struct PoolBuffers { PoolBuffer *buffer; int count; };
static inline void pool_insert(PoolBuffers *to, const Buffer *b) {
  int low = 0, high = to->count;
  while (low < high) {                           // after those that start no later
    const int middle = (low + high) / 2;
    if (to->buffer[middle].at > b->at) high = middle;
    else low = middle + 1;
  }
  memmove(&to->buffer[low + 1], &to->buffer[low], sizeof(PoolBuffer) * (size_t)(to->count++ - low));
  to->buffer[low] = PoolBuffer{b->at, b->at + align_bytes(b->bytes), b->number};
}
// The lowest offset for b at which it overlaps no placed buffer that is live at the same time.
static inline size_t pool_place(const Meets *m, const Buffer *b, PoolBuffers placed) {
  size_t at = 0;
  const uint64_t *const meets = m->bit + (size_t)b->number * (size_t)m->words;
  const PoolBuffer *const end = placed.buffer + placed.count;
  for (const PoolBuffer *x = placed.buffer; x < end && x->at < at + b->bytes; x++)
    if (x->end > at && (meets[x->number / 64] >> (x->number & 63) & 1)) at = x->end;
  return at;
}
// How often the best order is tried again; each time the buffers that end at the top of a pool are placed sooner.
enum { PLACE_AGAIN = 12 };
// Working memory of a placement: the buffers placed in each pool so far, and the order to place the others in.
struct PlaceRoom { PoolBuffers placed[POOLS]; Buffer **order; };
// Gives b the place that makes the pools grow least; of equally good places, that in the first pool from `first` on.
// The workspace is never put into POOL_SLOTS, which peers read.
static inline void buffer_place(Placement *pl, const Meets *m, Buffer *b, PlaceRoom *room, int first) {
  size_t least = SIZE_MAX;
  b->pool = POOL_ACTS;
  for (int k = first; k < POOLS; k++) {
    const PoolSpace *space = &pl->pool[k];
    if (!space->open || (b->workspace && k == POOL_SLOTS)) continue;
    const size_t at = pool_place(m, b, room->placed[k]), end = at + b->bytes;
    const size_t grows = end > space->bytes ? end - space->bytes : 0;
    if (end > space->most || grows >= least) continue;
    least = grows;
    b->pool = (Pool)k;
    b->at = at;
  }
  PoolSpace *space = &pl->pool[b->pool];
  if (b->at + b->bytes > space->bytes) space->bytes = b->at + b->bytes;
  pool_insert(&room->placed[b->pool], b);
}
// order: index in buffer_orders. workspace: the workspace is placed, too. limit: give up at this total of pool bytes.
struct PlaceTry { int order; bool workspace; size_t limit; };
// Places the buffers of a pass, until pools reach the limit. Only the first pass, the training step, may use the memory
// of gradient shards: after other passes it would have to be zeroed. A buffer that nothing touches in the pass gets no
// place, unless it is fixed.
static inline void pass_put(Placement *pl, Pass *p, PlaceRoom *room, PlaceTry x, bool first) {
  int count = 0;
  for (PoolBuffers &k : room->placed) k.count = 0;
  for (int i = 0; i < pl->fixed_count; i++) {
    Buffer *b = &p->fixed[i];
    if (b->intervals) pool_insert(&room->placed[b->pool], b);
  }
  for (int i = 0; i < p->count; i++)
    if (p->buffer[i].intervals && (x.workspace || !p->buffer[i].workspace)) room->order[count++] = &p->buffer[i];
  qsort(room->order, (size_t)count, sizeof *room->order, buffer_orders[x.order]);
  for (int i = 0; i < count; i++) {              // few are urgent
    Buffer *b = room->order[i];
    int at = i;
    for (; at > 0 && b->urgent > room->order[at - 1]->urgent; at--) room->order[at] = room->order[at - 1];
    room->order[at] = b;
  }
  for (int i = 0; i < count && placement_bytes(pl) < x.limit; i++)
    buffer_place(pl, &p->meets, room->order[i], room, first ? POOL_SHARDS : POOL_ACTS);
}
// A placement: where each declared buffer of a pass is, and how large pools are.
struct Places { PoolSpace pool[POOLS]; Pool *in[PASSES]; size_t *at[PASSES], total; };
static inline Buffer *pass_buffer(const Placement *pl, const Pass *p, int i) {
  return i < pl->fixed_count ? &p->fixed[i] : &p->buffer[i - pl->fixed_count];
}
static inline void places_note(Places *to, const Placement *pl, const Pass *pass, int passes) {
  memcpy(to->pool, pl->pool, sizeof pl->pool);
  to->total = placement_bytes(pl);
  for (int k = 0; k < passes; k++)
    for (int i = 0; i < pass[k].count; i++) to->in[k][i] = pass[k].buffer[i].pool, to->at[k][i] = pass[k].buffer[i].at;
}
static inline void places_restore(const Places *from, Placement *pl, Pass *pass, int passes) {
  memcpy(pl->pool, from->pool, sizeof pl->pool);
  for (int k = 0; k < passes; k++)
    for (int i = 0; i < pass[k].count; i++)
      pass[k].buffer[i].pool = from->in[k][i], pass[k].buffer[i].at = from->at[k][i];
}
static inline Places places_open(const Placement *pl, const Pass *pass, int passes) {
  Places x = {};
  for (int k = 0; k < passes; k++) {
    const size_t count = (size_t)pass[k].count + 1;
    x.in[k] = (Pool *)malloc(sizeof(Pool) * count);
    x.at[k] = (size_t *)malloc(sizeof(size_t) * count);
  }
  places_note(&x, pl, pass, passes);
  return x;
}
static inline void places_free(Places *x) { for (int k = 0; k < PASSES; k++) { free(x->in[k]); free(x->at[k]); } }
// Places the passes: the first in order x.order, each other one in the order that makes the pools grow least.
static inline void passes_put(Placement *pl, Pass *pass, int passes, PlaceRoom *room, PlaceTry x) {
  pass_put(pl, pass, room, x, true);
  for (int k = 1; k < passes && placement_bytes(pl) < x.limit; k++) {
    PoolSpace before[POOLS];
    memcpy(before, pl->pool, sizeof before);
    const size_t bytes = placement_bytes(pl);
    size_t least = x.limit;
    for (int i = 0, best = 0; i <= BUFFER_ORDERS && least > bytes; i++) {
      const size_t limit = i < BUFFER_ORDERS ? least : SIZE_MAX;
      memcpy(pl->pool, before, sizeof before);
      pass_put(pl, &pass[k], room, PlaceTry{i < BUFFER_ORDERS ? i : best, x.workspace, limit}, false);
      if (placement_bytes(pl) < least) least = placement_bytes(pl), best = i;
    }
  }
}
// Places the workspace of each pass in a gap between the placed buffers, or after them.
static inline void passes_put_workspace(Placement *pl, Pass *pass, int passes, PlaceRoom *room) {
  for (int k = 0; k < passes; k++) {
    Buffer *workspace = NULL;
    for (PoolBuffers &x : room->placed) x.count = 0;
    for (int i = 0; i < pl->fixed_count + pass[k].count; i++) {
      Buffer *b = pass_buffer(pl, &pass[k], i);
      if (b->workspace) workspace = b;
      else if (b->intervals) pool_insert(&room->placed[b->pool], b);
    }
    if (workspace && workspace->intervals)
      buffer_place(pl, &pass[k].meets, workspace, room, k ? POOL_ACTS : POOL_SHARDS);
  }
}
// Places the passes, whose lifetimes are known. No order is best for all models: the order with the smallest total is
// taken, and the search ends early at a total that no order can beat.
static inline void passes_try(Placement *pl, Pass *pass, int passes) {
  int most = 0;
  for (int k = 0; k < passes; k++) most = pass[k].count > most ? pass[k].count : most;
  const size_t room_bytes = sizeof(Buffer *) * (size_t)(most + pl->fixed_count + 1);
  PlaceRoom room = {{}, (Buffer **)malloc(room_bytes)};
  for (PoolBuffers &k : room.placed)
    k.buffer = (PoolBuffer *)malloc(sizeof(PoolBuffer) * (size_t)(most + pl->fixed_count + 1));
  Places start = places_open(pl, pass, passes), best = places_open(pl, pass, passes);
  size_t workspace = 0;
  for (int i = 0; i < pass->count; i++) if (pass->buffer[i].workspace) workspace = pass->buffer[i].bytes;
  const size_t alive = pl->alive_most_bytes - workspace;         // lower bound without the workspace
  const size_t bound = alive > start.total ? alive : start.total;
  best.total = SIZE_MAX;
  int taken = 0;
  for (int k = 0; k < BUFFER_ORDERS && best.total > bound; k++) {
    places_restore(&start, pl, pass, passes);
    passes_put(pl, pass, passes, &room, PlaceTry{k, false, best.total});
    if (placement_bytes(pl) < best.total) places_note(&best, pl, pass, passes), taken = k;
  }
  for (int i = 1; i <= PLACE_AGAIN && best.total > bound; i++) {
    for (int k = 0; k < pl->fixed_count + pass->count; k++) {
      Buffer *b = pass_buffer(pl, pass, k);
      if (b->intervals && pl->pool[b->pool].bytes > start.pool[b->pool].bytes &&
          b->at + b->bytes == pl->pool[b->pool].bytes) b->urgent = i;
    }
    places_restore(&start, pl, pass, passes);
    passes_put(pl, pass, passes, &room, PlaceTry{taken, false, best.total});
    if (placement_bytes(pl) < best.total) places_note(&best, pl, pass, passes);
  }
  places_restore(&best, pl, pass, passes);
  const size_t without = best.total;
  passes_put_workspace(pl, pass, passes, &room);
  places_note(&best, pl, pass, passes);
  for (int k = 0; k < BUFFER_ORDERS && best.total > pl->alive_most_bytes; k++) {
    places_restore(&start, pl, pass, passes);
    passes_put(pl, pass, passes, &room, PlaceTry{k, true, best.total});
    if (placement_bytes(pl) < best.total) places_note(&best, pl, pass, passes);
  }
  places_restore(&best, pl, pass, passes);
  pl->workspace_bytes = best.total > without ? best.total - without : 0;
  for (PoolBuffers &k : room.placed) free(k.buffer);
  free(room.order);
  places_free(&start);
  places_free(&best);
}

// Entries that touch, or release, each of `count` buffers, whose addresses rise. Returns count + 1 starts into *entry;
// free both.
static inline int *record_touches(const Record *r, Buffer *const *buffer, int count, int **entry) {
  int *start = (int *)calloc((size_t)count + 2, sizeof(int));
  int *from = (int *)malloc(sizeof(int) * (size_t)(r->count + 1));             // [entries] first buffer it touches
  *entry = NULL;
  for (int fill = 0; fill < 2; fill++) {
    for (int i = 0; i < r->count; i++) {
      const Access a = r->entry[i].access;
      const bool releases = r->entry[i].kind == RECORD_FREE && r->entry[i].op == HELD_WEIGHTS;
      if ((r->entry[i].kind != RECORD_ACCESS && !releases) || a.at < RECORD_ADDRESSES) continue;
      int low = fill ? from[i] : 0, high = fill ? low : count;
      while (low < high) {
        const int middle = (low + high) / 2;
        if (buffer[middle]->address + buffer[middle]->bytes > a.at) high = middle;
        else low = middle + 1;
      }
      from[i] = low;
      for (int k = low; k < count && buffer[k]->address < a.at + a.bytes; k++) {
        if (fill) (*entry)[start[k + 1]++] = i;
        else start[k + 2]++;
      }
    }
    if (fill) break;
    for (int k = 1; k < count + 1; k++) start[k + 1] += start[k];
    *entry = (int *)malloc(sizeof(int) * (size_t)(start[count + 1] + 1));
  }
  free(from);
  return start;
}

// A gradient slot may be reused by other buffers no sooner than POINTS_APART points after its reduction started, so
// that peers have most likely read it and the wait is short.
enum { POINTS_APART = 3 };
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
// Shortens the lifetimes of a gradient slot to end where other buffers may reuse it. Returns the original lifetimes;
// free them.
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
// Notes at which points the pass must wait for slot `number`, because b reuses its memory while peers may still read
// it.
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

static inline int buffers_by_address(const void *x, const void *y) {
  const uintptr_t a = (*(const Buffer *const *)x)->address, b = (*(const Buffer *const *)y)->address;
  return a < b ? -1 : a > b;
}
// Finds the lifetimes of a pass's buffers from the record of its dry run.
static inline void pass_lifetimes(Placement *pl, Pass *p, const Record *r) {
  const int count = p->count + pl->fixed_count;
  Buffer **all = (Buffer **)malloc(sizeof(Buffer *) * (size_t)(count + 1));
  p->fixed = (Buffer *)malloc(sizeof(Buffer) * (size_t)(pl->fixed_count + 1));
  for (int i = 0; i < pl->fixed_count; i++) p->fixed[i] = pl->fixed[i].buffer;
  for (int i = 0; i < count; i++) all[i] = pass_buffer(pl, p, i);
  qsort(all, (size_t)count, sizeof *all, buffers_by_address);
  int *entry, *start = record_touches(r, all, count, &entry);
  Interval *time = record_times(r);
  int *turn = (int *)malloc(sizeof(int) * (size_t)(r->count + 1));
  for (int i = 0, n = 0; i <= r->count; i++) turn[i] = n += i == r->count || !r->entry[i].context;
  p->at = record_points(r);
  for (int i = 0; i < count; i++) {
    all[i]->number = i;
    buffer_lifetimes(p, all[i], r, time, turn, Touching{entry + start[i], start[i + 1] - start[i]});
  }
  for (int i = 0; i < pl->fixed_count; i++)
    if (pl->fixed[i].slot >= 0) p->natural[pl->fixed[i].slot] = slot_give(p, &p->fixed[i], p->at, r->count);
  const size_t alive_most = pass_meets(p, all, count, r->count, &p->meets);
  if (alive_most > pl->alive_most_bytes) pl->alive_most_bytes = alive_most;
  free(all);
  free(start);
  free(entry);
  free(turn);
  free(time);
}
// Notes which fixed buffers share their memory with others, and at which points the pass waits because of that.
static inline void pass_share(Placement *pl, Pass *p) {
  p->points = p->at.count;
  p->wait = (uint8_t *)calloc((size_t)p->points + 1, 1);
  for (int i = 0; i < pl->fixed_count; i++) for (int k = 0; k < pl->fixed_count + p->count; k++) {
    FixedBuffer *x = &pl->fixed[i];
    const Buffer *b = pass_buffer(pl, p, k), *f = &p->fixed[i];
    const bool apart = b->pool != f->pool || b->at >= f->at + f->bytes || f->at >= b->at + b->bytes;
    if (i == k || !b->intervals || apart) continue;
    x->shared = true;
    if (x->slot >= 0) pass_wait_for_slot(p, p->at, p->natural[x->slot], f, x->slot, b);
  }
}
// Frees what is only needed until a pass's buffers are placed.
static inline void pass_forget(Pass *p) {
  for (Interval *&n : p->natural) { free(n); n = NULL; }
  free(p->meets.bit);
  free(p->at.entry);
  free(p->fixed);
  p->meets = Meets{};
  p->at = Points{};
  p->fixed = NULL;
}
// Places the buffers of all passes, whose lifetimes are known.
static inline void placement_place(Placement *pl, Pass *pass, int passes) {
  passes_try(pl, pass, passes);
  for (int k = 0; k < passes; k++) pass_share(pl, &pass[k]);
  for (int k = 0; k < passes; k++) pass_forget(&pass[k]);
}
// Copies the places of the buffers from `placed`, another dry run of the same pass, to p.
static inline void pass_take_places(Pass *p, const Pass *placed) {
  CHECK(p->count == placed->count, "a pass has %d buffers, then %d", placed->count, p->count);
  for (int i = 0; i < p->count; i++) p->buffer[i].pool = placed->buffer[i].pool, p->buffer[i].at = placed->buffer[i].at;
}
static inline void pass_free(Pass *p) {
  free(p->buffer);
  free(p->interval);
  free(p->wait);
  pass_forget(p);
  *p = Pass{};
}
