// test_memory_order.h: what threads and ranks tell each other by words in memory (docs/design.md, "Memory order"), in
// every order that ARM's memory model allows. x86 hides a missing release or acquire, and so does qemu on x86.
//
// The words, who orders them how, and what each passes on:
//   counters of a window (Control, fsdp/layout.h)   written release, counter_publish; read acquire, counter_reached:
//                          a round's data to peers, and back that they were read
//   windows across the step's barrier and small all-gather   a fence on both sides, windows_fence:
//                          shards to their readers, and back that they were read
//   ThreadPool.job, .done, .barrier (kernels/cpu/threads.h)   written sequentially, thread_word_set; read acquire,
//                          thread_word_wait: a region's body, its results
//   ThreadPool.running, .waiting   read-modify-write, both: results of every thread to the last one
//   ThreadWord.sleepers beside .value   both sequential: nobody sleeps on a value that has changed
//   ThreadPool.busy        written release; read acquire, by exchange: the pool itself
//   SaveBuffer.state, remote_left, thread_done (data/checkpoint/store.h)   release, acquire: buffers between the thread
//                          that saves and the main thread
//   FlightRing.count (watch/flight.h)   written release, and a release fence before the next entry; read acquire, and
//                          an acquire fence after the entry: entries, and that they were not written again meanwhile
//   WORD_SET, WORD_GET     release, acquire: what a rank says of itself, in the order in which it was set
// Other shared words are counts and marks without data after them (thread_tasks, bytes_done, cancelled): atomic,
// without an order.
//
// The model is that of Armv8 (Pulte et al. 2018, "Simplifying ARM concurrency"): a store is seen by all others at once,
// and a thread does what follows in its program before what precedes it, unless they touch the same word, an acquire or
// a fence comes before, a release or a fence after, or the later one is a store that an earlier load decides about.
// A loop that waits is its last look. A read-modify-write happens at once.
//
// A protocol is the code's own, with its words and orders; the text beside an operation must be in that file, so that a
// changed order shows. Each order and fence that is marked is needed: without it some execution fails.

enum MoKind { MO_STORE, MO_LOAD, MO_WAIT, MO_ADD, MO_FENCE };
enum MoOrder { MO_RELAXED = 0, MO_ACQUIRE = 1, MO_RELEASE = 2, MO_BOTH = 3, MO_SEQ = 7 };
enum { MO_OPS = 12, MO_THREADS = 3, MO_WORDS = 8 };
struct MoIf { int op, value; };                  // only if that operation (1 + its place) of the thread gave this value
// value: stored, waited for or added. needed: its order cannot be left out.
struct MoOp { MoKind kind; int word, value; MoOrder order; bool needed; MoIf when; const char *file, *text; };
struct MoState { int word[MO_WORDS], got[MO_THREADS][MO_OPS]; uint32_t done[MO_THREADS]; };
struct MoProtocol {
  const char *name;
  int start[MO_WORDS];
  MoOp op[MO_THREADS][MO_OPS];
  int ops[MO_THREADS];
  bool (*holds)(const MoState *s);
};

static bool mo_loads(const MoOp *o) { return o->kind == MO_LOAD || o->kind == MO_WAIT || o->kind == MO_ADD; }
static bool mo_stores(const MoOp *o) { return o->kind == MO_STORE || o->kind == MO_ADD; }
// Whether b, which comes later in the program, has to wait for a.
static bool mo_ordered(const MoOp *op, int a, int b) {
  const MoOp *x = &op[a], *y = &op[b];
  if (x->kind == MO_FENCE) return false;         // a fence orders what is around it
  if (x->word == y->word) return true;
  if (mo_loads(x) && (x->order & MO_ACQUIRE)) return true;
  if (mo_stores(y) && (y->order & MO_RELEASE)) return true;
  if (x->order == MO_SEQ && y->order == MO_SEQ) return true;
  if (mo_stores(y) && (x->kind == MO_WAIT || y->when.op == a + 1 || (x->when.op && mo_loads(x)))) return true;
  for (int f = a + 1; f < b; f++) {
    if (op[f].kind != MO_FENCE) continue;
    if ((op[f].order & MO_RELEASE) && mo_stores(y)) return true;
    if ((op[f].order & MO_ACQUIRE) && mo_loads(x)) return true;
    if (op[f].order == MO_SEQ) return true;
  }
  return false;
}
static bool mo_can(const MoProtocol *p, const MoState *s, int t, int b, bool *skipped) {
  const MoOp *op = p->op[t], *o = &op[b];
  *skipped = false;
  if (s->done[t] >> b & 1) return false;
  if (o->kind == MO_FENCE) return true;
  const bool known = !o->when.op || s->done[t] >> (o->when.op - 1) & 1;
  if (o->when.op && known && s->got[t][o->when.op - 1] != o->when.value) return *skipped = true;
  if (!known && (mo_stores(o) || o->kind == MO_WAIT)) return false;
  for (int a = 0; a < b; a++) if (!(s->done[t] >> a & 1) && mo_ordered(op, a, b)) return false;
  return o->kind != MO_WAIT || s->word[o->word] == o->value;
}
struct MoSeen { uint64_t *slot; size_t count; };
enum { MO_SLOTS = 1 << 20 };
static bool mo_new(MoSeen *seen, const MoState *s) {
  uint64_t h = 1469598103934665603ull;
  for (size_t i = 0; i < sizeof *s / 4; i++) h = (h ^ ((const uint32_t *)s)[i]) * 1099511628211ull, h ^= h >> 29;
  size_t i = h % MO_SLOTS;
  for (h |= 1; seen->slot[i]; i = (i + 1) % MO_SLOTS) if (seen->slot[i] == h) return false;
  seen->slot[i] = h;
  CHECK(++seen->count < MO_SLOTS / 2, "more than %d states", MO_SLOTS / 2);
  return true;
}
// Whether every execution from s on ends, and as it should.
static bool mo_explore(const MoProtocol *p, const MoState *s, MoSeen *seen) {
  if (!mo_new(seen, s)) return true;
  bool moved = false;
  for (int t = 0; t < MO_THREADS; t++) for (int b = 0; b < p->ops[t]; b++) {
    bool skipped;
    if (!mo_can(p, s, t, b, &skipped)) continue;
    const MoOp *o = &p->op[t][b];
    MoState next = *s;
    next.done[t] |= 1u << b;
    moved = true;
    if (!skipped && mo_loads(o)) next.got[t][b] = s->word[o->word] + (o->kind == MO_ADD ? o->value : 0);
    if (!skipped && mo_stores(o)) next.word[o->word] = o->kind == MO_ADD ? next.got[t][b] : o->value;
    if (!mo_explore(p, &next, seen)) return false;
  }
  if (moved) return true;
  for (int t = 0; t < MO_THREADS; t++) if (s->done[t] != (1u << p->ops[t]) - 1) return false;      // it hangs
  return p->holds(s);
}
static bool mo_holds(const MoProtocol *p) {
  static MoSeen seen;
  if (!seen.slot) seen.slot = (uint64_t *)malloc(MO_SLOTS * sizeof(uint64_t));
  memset(seen.slot, 0, MO_SLOTS * sizeof(uint64_t));
  seen.count = 0;
  MoState s = {};
  memcpy(s.word, p->start, sizeof s.word);
  return mo_explore(p, &s, &seen);
}

#define MO_THREADS_H "kernels/cpu/threads.h"
#define MO_STORE_H "data/checkpoint/store.h"
static const MoProtocol mo_protocols[] = {
    // words: 0 data, 1 ready, 2 done, 3 what the reader wrote in its turn
    {"counters of a window", {}, {
         {{MO_STORE, 0, 1, MO_RELAXED, false, {}, NULL, NULL},
          {MO_STORE, 1, 1, MO_RELEASE, true, {}, "fsdp/windows.h", "__atomic_store_n(c, value, __ATOMIC_RELEASE)"},
          {MO_WAIT, 2, 1, MO_ACQUIRE, true, {}, "fsdp/windows.h", "return __atomic_load_n(c, __ATOMIC_ACQUIRE)"},
          {MO_LOAD, 3, 0, MO_RELAXED, false, {}, NULL, NULL}, {MO_STORE, 0, 2, MO_RELAXED, false, {}, NULL, NULL}},
         {{MO_WAIT, 1, 1, MO_ACQUIRE, true, {}, NULL, NULL}, {MO_LOAD, 0, 0, MO_RELAXED, false, {}, NULL, NULL},
          {MO_STORE, 3, 1, MO_RELAXED, false, {}, NULL, NULL}, {MO_STORE, 2, 1, MO_RELEASE, true, {}, NULL, NULL}}},
     {5, 4}, [](const MoState *s) { return s->got[1][1] == 1 && s->got[0][3] == 1; }},
    // 0, 1: each rank's shard; 2, 3: a barrier's messages, 4, 5: an all-gather's, in MPI's memory
    {"shards across the barrier and the small all-gather", {}, {
         {{MO_STORE, 0, 1, MO_RELAXED, false, {}, NULL, NULL},
          {MO_FENCE, -1, 0, MO_SEQ, true, {}, "fsdp/transport_mpi.h", "windows_fence();\n  MPI_Barrier(f->mesh.comm);"},
          {MO_STORE, 2, 1, MO_RELAXED, false, {}, NULL, NULL}, {MO_WAIT, 3, 1, MO_RELAXED, false, {}, NULL, NULL},
          {MO_FENCE, -1, 0, MO_SEQ, true, {}, "fsdp/transport_mpi.h", "MPI_Barrier(f->mesh.comm);\n  windows_fence();"},
          {MO_LOAD, 1, 0, MO_RELAXED, false, {}, NULL, NULL},
          {MO_FENCE, -1, 0, MO_SEQ, true, {}, "fsdp/transport_mpi.h", "windows_fence();\n  MPI_Allgather(from"},
          {MO_STORE, 4, 1, MO_RELAXED, false, {}, NULL, NULL}, {MO_WAIT, 5, 1, MO_RELAXED, false, {}, NULL, NULL},
          {MO_FENCE, -1, 0, MO_SEQ, false, {}, "fsdp/windows.h", "__atomic_thread_fence(__ATOMIC_SEQ_CST)"},
          {MO_STORE, 0, 2, MO_RELAXED, false, {}, NULL, NULL}},
         {{MO_STORE, 1, 1, MO_RELAXED, false, {}, NULL, NULL}, {MO_FENCE, -1, 0, MO_SEQ, true, {}, NULL, NULL},
          {MO_STORE, 3, 1, MO_RELAXED, false, {}, NULL, NULL}, {MO_WAIT, 2, 1, MO_RELAXED, false, {}, NULL, NULL},
          {MO_FENCE, -1, 0, MO_SEQ, true, {}, NULL, NULL}, {MO_LOAD, 0, 0, MO_RELAXED, false, {}, NULL, NULL},
          {MO_FENCE, -1, 0, MO_SEQ, true, {}, NULL, NULL}, {MO_STORE, 5, 1, MO_RELAXED, false, {}, NULL, NULL},
          {MO_WAIT, 4, 1, MO_RELAXED, false, {}, NULL, NULL}, {MO_FENCE, -1, 0, MO_SEQ, false, {}, NULL, NULL},
          {MO_STORE, 1, 2, MO_RELAXED, false, {}, NULL, NULL}}},
     {11, 11}, [](const MoState *s) { return s->got[0][5] == 1 && s->got[1][5] == 1; }},
    // 0 body, 1 job, 2 running, 3 done, 4, 5: the threads' results
    {"a region of the pool", {}, {
         {{MO_STORE, 0, 1, MO_RELAXED, false, {}, NULL, NULL}, {MO_STORE, 2, 2, MO_RELAXED, false, {}, NULL, NULL},
          {MO_STORE, 1, 1, MO_SEQ, true, {}, MO_THREADS_H, "__atomic_store_n(&w->value, value, __ATOMIC_SEQ_CST)"},
          {MO_WAIT, 3, 1, MO_ACQUIRE, true, {}, MO_THREADS_H,
           "while (__atomic_load_n(&p->done.value, __ATOMIC_ACQUIRE)"},
          {MO_LOAD, 4, 0, MO_RELAXED, false, {}, NULL, NULL}, {MO_LOAD, 5, 0, MO_RELAXED, false, {}, NULL, NULL}},
         {{MO_WAIT, 1, 1, MO_ACQUIRE, true, {}, MO_THREADS_H,
           "while (__atomic_load_n(&w->value, __ATOMIC_ACQUIRE) == old)"},
          {MO_LOAD, 0, 0, MO_RELAXED, false, {}, NULL, NULL}, {MO_STORE, 4, 1, MO_RELAXED, false, {}, NULL, NULL},
          {MO_ADD, 2, -1, MO_BOTH, true, {}, MO_THREADS_H, "__atomic_sub_fetch(&p->running, 1, __ATOMIC_ACQ_REL)"},
          {MO_STORE, 3, 1, MO_SEQ, false, {4, 0}, NULL, NULL}},
         {{MO_WAIT, 1, 1, MO_ACQUIRE, true, {}, NULL, NULL}, {MO_LOAD, 0, 0, MO_RELAXED, false, {}, NULL, NULL},
          {MO_STORE, 5, 1, MO_RELAXED, false, {}, NULL, NULL}, {MO_ADD, 2, -1, MO_BOTH, true, {}, NULL, NULL},
          {MO_STORE, 3, 1, MO_SEQ, false, {4, 0}, NULL, NULL}}},
     {6, 5, 5},
     [](const MoState *s) { return s->got[1][1] == 1 && s->got[2][1] == 1 && s->got[0][4] == 1 && s->got[0][5] == 1; }},
    // 0, 1: what each has done before; 2 waiting, 3 the barrier's value. The second addition is the next barrier's.
    {"the pool's barrier", {}, {
         {{MO_STORE, 0, 1, MO_RELAXED, false, {}, NULL, NULL},
          {MO_ADD, 2, 1, MO_BOTH, true, {}, MO_THREADS_H, "__atomic_add_fetch(&p->waiting, 1, __ATOMIC_ACQ_REL)"},
          {MO_STORE, 2, 0, MO_RELAXED, false, {2, 2}, MO_THREADS_H, "p->waiting = 0;\n  thread_word_set(&p->barrier"},
          {MO_STORE, 3, 1, MO_SEQ, true, {2, 2}, NULL, NULL}, {MO_WAIT, 3, 1, MO_ACQUIRE, true, {2, 1}, NULL, NULL},
          {MO_LOAD, 1, 0, MO_RELAXED, false, {}, NULL, NULL}, {MO_ADD, 2, 1, MO_BOTH, false, {}, NULL, NULL}},
         {{MO_STORE, 1, 1, MO_RELAXED, false, {}, NULL, NULL}, {MO_ADD, 2, 1, MO_BOTH, true, {}, NULL, NULL},
          {MO_STORE, 2, 0, MO_RELAXED, false, {2, 2}, NULL, NULL}, {MO_STORE, 3, 1, MO_SEQ, true, {2, 2}, NULL, NULL},
          {MO_WAIT, 3, 1, MO_ACQUIRE, true, {2, 1}, NULL, NULL}, {MO_LOAD, 0, 0, MO_RELAXED, false, {}, NULL, NULL},
          {MO_ADD, 2, 1, MO_BOTH, false, {}, NULL, NULL}}},
     {7, 7}, [](const MoState *s) { return s->got[0][5] == 1 && s->got[1][5] == 1 && s->word[2] == 2; }},
    // 0 value, 1 sleepers, 2 the futex's wake. The kernel looks at the value before it lets a thread sleep.
    {"no thread sleeps on a value that has changed", {}, {
         {{MO_STORE, 0, 1, MO_SEQ, true, {}, NULL, NULL},
          {MO_LOAD, 1, 0, MO_SEQ, true, {}, MO_THREADS_H, "if (__atomic_load_n(&w->sleepers, __ATOMIC_SEQ_CST))"},
          {MO_STORE, 2, 1, MO_RELAXED, false, {2, 1}, NULL, NULL}},
         {{MO_ADD, 1, 1, MO_SEQ, true, {}, MO_THREADS_H, "__atomic_fetch_add(&w->sleepers, 1, __ATOMIC_SEQ_CST)"},
          {MO_LOAD, 0, 0, MO_SEQ, false, {}, NULL, NULL}, {MO_WAIT, 2, 1, MO_RELAXED, false, {2, 0}, NULL, NULL}}},
     {3, 3}, [](const MoState *) { return true; }},
    // 0 busy, held at first; 1: read by the holder and written by the next; 2 the reverse
    {"the pool goes to the next host thread", {1}, {
         {{MO_LOAD, 1, 0, MO_RELAXED, false, {}, NULL, NULL}, {MO_STORE, 2, 1, MO_RELAXED, false, {}, NULL, NULL},
          {MO_STORE, 0, 0, MO_RELEASE, true, {}, MO_THREADS_H, "__atomic_store_n(&p->busy, 0, __ATOMIC_RELEASE)"}},
         {{MO_ADD, 0, 1, MO_ACQUIRE, true, {}, MO_THREADS_H, "__atomic_exchange_n(&p->busy, 1, __ATOMIC_ACQUIRE)"},
          {MO_LOAD, 2, 0, MO_RELAXED, false, {1, 1}, NULL, NULL},
          {MO_STORE, 1, 1, MO_RELAXED, false, {1, 1}, NULL, NULL}}},
     {3, 3}, [](const MoState *s) { return s->got[0][0] == 0 && (s->got[1][0] != 1 || s->got[1][1] == 1); }},
    // 0 state: 0 free, 1 full; 1 the buffer; 2 what the thread that saves has written of it
    {"buffers of a save", {}, {
         {{MO_STORE, 1, 1, MO_RELAXED, false, {}, NULL, NULL},
          {MO_STORE, 0, 1, MO_RELEASE, true, {}, MO_STORE_H,
           "__atomic_store_n(&m.state, BUFFER_FULL, __ATOMIC_RELEASE)"},
          {MO_WAIT, 0, 2, MO_ACQUIRE, true, {}, MO_STORE_H, "__atomic_load_n(&m.state, __ATOMIC_ACQUIRE)"},
          {MO_LOAD, 2, 0, MO_RELAXED, false, {}, NULL, NULL}, {MO_STORE, 1, 2, MO_RELAXED, false, {}, NULL, NULL}},
         {{MO_WAIT, 0, 1, MO_ACQUIRE, true, {}, MO_STORE_H,
           "__atomic_load_n(&m.state, __ATOMIC_ACQUIRE) != BUFFER_FULL"},
          {MO_LOAD, 1, 0, MO_RELAXED, false, {}, NULL, NULL}, {MO_STORE, 2, 1, MO_RELAXED, false, {}, NULL, NULL},
          {MO_STORE, 0, 2, MO_RELEASE, true, {}, MO_STORE_H,
           "__atomic_store_n(&m.state, BUFFER_FREE, __ATOMIC_RELEASE)"}}},
     {5, 4}, [](const MoState *s) { return s->got[1][1] == 1 && s->got[0][3] == 1; }},
    // 0 count, 1 at first; 1 and 2 the halves of entry 0, 3 entry 1. A ring of two: entry 2 is written over entry 0.
    {"the flight recorder's ring", {1, 1, 1}, {
         {{MO_STORE, 3, 2, MO_RELAXED, false, {}, NULL, NULL},
          {MO_STORE, 0, 2, MO_RELEASE, true, {}, "watch/flight.h",
           "__atomic_store_n(&r->count, count + 1, __ATOMIC_RELEASE)"},
          {MO_FENCE, -1, 0, MO_RELEASE, true, {}, "watch/flight.h", "__atomic_thread_fence(__ATOMIC_RELEASE)"},
          {MO_STORE, 1, 3, MO_RELAXED, false, {}, NULL, NULL}, {MO_STORE, 2, 3, MO_RELAXED, false, {}, NULL, NULL}},
         {{MO_LOAD, 0, 0, MO_ACQUIRE, true, {}, "watch/flight_file.h",
           "__atomic_load_n(&flight.events.count, __ATOMIC_ACQUIRE)"},
          {MO_LOAD, 1, 0, MO_RELAXED, false, {}, NULL, NULL}, {MO_LOAD, 2, 0, MO_RELAXED, false, {}, NULL, NULL},
          {MO_LOAD, 3, 0, MO_RELAXED, false, {}, NULL, NULL},
          {MO_FENCE, -1, 0, MO_ACQUIRE, true, {}, "watch/flight.h", "__atomic_thread_fence(__ATOMIC_ACQUIRE)"},
          {MO_LOAD, 0, 0, MO_ACQUIRE, false, {}, NULL, NULL}}},
     {5, 6}, [](const MoState *s) {
       const int *got = s->got[1], end = got[0], now = got[5];
       return (now > 1 || (got[1] == 1 && got[2] == 1)) && (end < 2 || now > 2 || got[3] == 2);
     }},
    // 0 where, 1 what
    {"words of a rank about itself", {}, {
         {{MO_STORE, 0, 1, MO_RELEASE, false, {}, NULL, NULL},
          {MO_STORE, 1, 1, MO_RELEASE, true, {}, "base/base.h", "__atomic_store_n(word, value, __ATOMIC_RELEASE)"}},
         {{MO_LOAD, 1, 0, MO_ACQUIRE, true, {}, "base/base.h", "__atomic_load_n(word, __ATOMIC_ACQUIRE)"},
          {MO_LOAD, 0, 0, MO_ACQUIRE, false, {}, NULL, NULL}}},
     {2, 2}, [](const MoState *s) { return s->got[1][0] != 1 || s->got[1][1] == 1; }}};

TEST(memory_order_is_kept,
     "what threads and ranks tell each other arrives in every order that ARM allows; without any of its orders and "
     "fences something is lost; the sources say what was run") {
  for (const MoProtocol &p : mo_protocols) {
    EXPECT(mo_holds(&p), "%s: an execution fails", p.name);
    for (int t = 0; t < MO_THREADS; t++) for (int b = 0; b < p.ops[t]; b++) {
      const MoOp *o = &p.op[t][b];
      MoProtocol without = p;
      without.op[t][b].order = MO_RELAXED;
      EXPECT(!o->needed || !mo_holds(&without), "%s: thread %d needs no order at its operation %d", p.name, t, b);
      if (!o->file || access("Makefile", R_OK)) continue;
      size_t bytes;
      char *text = data_read(o->file, &bytes);
      EXPECT(text && strstr(text, o->text), "%s: %s does not say: %s", p.name, o->file, o->text);
      free(text);
    }
  }
}
