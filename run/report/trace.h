// trace.h: --trace FILE: some steps of all ranks as a timeline that Perfetto and chrome://tracing open, and how much of
// a step communication takes while nothing is computed.
//
// In a traced step the table of ops is replaced by one that records when each call starts and ends, around the real op;
// the schedule's notes (note.h) give the other events.
// Events: each op, on the thread that computes; each wait; each all-gather, from its start until it is complete, on the
// track of its slot; each reduction, from a complete gradient until all of it is added up. Calls inside others nest.
//   waits      The sharding layer polls whether something has come. A wait lasts from the first "no" to the "yes", if
//              there were at least two polls before that and no op in between.
//   clocks     Each rank records its own monotonic clock. By how much that is ahead of rank 0's is measured before the
//              first and after the last traced step, by messages there and back: of the quickest exchange the middle
//              (as in NTP, RFC 5905). Between the two measurements it is interpolated. Ranks of one host share a clock.
//   exposed    Of a step: what the computing thread spends in gathers, in waits for reductions and for peers, adding up
//              gradients, in the exchange of losses and the barrier at the end; without what is nested inside. The mean
//              over ranks and traced steps.
// On a GPU the host only enqueues. There the device itself records when it comes to the start and the end of a span, by
// small kernels that write its clock into pinned memory (Ops.stamp). A time in an event is then the number of a stamp,
// which trace_resolve replaces by the time that the device has written, when the step is over.
//   tracks     spans of the model's stream are "computes"; sums and copies of the other streams have tracks of theirs,
//              and are not exposed. A wait is what the model's stream stands still for an event of another one
//   graphs     a traced step is captured on its own, with its stamps; trace_replayed repeats its events for each
//              replay. The graph of other steps has none
//   clocks     how far the device's clock is ahead of the host's is measured around each traced step, by stamps that
//              the host waits for
// What the host decides during a step is not on the device's clock: --offload and --comm mpi are rejected there.
#pragma once
#include "report.h"
#include "kernels/ops_muon.h"
#include "kernels/ops_optimizer.h"
#include <time.h>

// Kinds of events. RANGE: a part of a step; TOLD: an action between steps. SUMMED and READ are not spans but ends of
// flows: the last round of a reduction is added up; an optimizer reads the sum.
enum TraceKind : uint8_t {
  TRACE_OP, TRACE_RANGE, TRACE_TOLD, TRACE_GATHER, TRACE_REDUCTION, TRACE_RETURN, TRACE_FETCH, TRACE_WAIT, TRACE_JOIN,
  TRACE_EXCHANGE, TRACE_BARRIER, TRACE_MOVE, TRACE_SUMMED, TRACE_READ
};
enum TraceWait { WAIT_ROUND, WAIT_ROOM, WAIT_SLOT, TRACE_WAITS };
// stage: STAGE_NONE, 0 outside the blocks, 1 + l block l. number: which op, range, wait or slot; of SUMMED: whether
// this is the stage's last reduction in the step. part: what an op belongs to. round: of a reduction, the number of its
// first round, the same on all ranks.
enum TracePart { PART_OF_MODEL, PART_OF_GATHER, PART_OF_SUMS };  // copies of gathers; adding up gradients
struct TraceEvent {
  int64_t begin_ns, end_ns;
  uint64_t round;
  int32_t step;
  int16_t stage;
  TraceKind kind : 6;
  uint8_t part : 2, number;
};
// At the time at_ns of rank 0's clock, another clock is ahead_ns ahead of it, plus or minus within_ns.
struct TraceClock { double ahead_ns, within_ns, at_ns; };
struct TraceTable { OpWatch watch; Trace *trace; TracePart part; };
struct TraceOpen { int64_t begin_ns, inner_ns; };                // an open span; inner_ns: time of spans nested in it
enum { TRACE_DEPTH = 16 };
struct Trace {
  char path[1024];                               // "": nothing is traced
  int64_t first, last;                           // steps, counted from the first of this process, 1
  int64_t from;                                  // the step before this process's first
  bool done;
  // ---- memory, of one block
  char *memory;
  TraceEvent *event;
  double *exposed_ns;                            // [EXPOSED_PARTS (stages) + TRACE_COMMONS]
  TraceClock *clock[2];                          // [world], on rank 0
  int *reduced;                                  // [stages] reductions of this step
  int64_t calls, room, count, dropped;           // ops of a step; events that fit, that there are, that did not fit
  int stages, world;
  // ---- while a step is traced
  Fsdp *f;
  const Ops *ops;                                // the real table of ops
  TraceTable table[3];                           // by TracePart
  int32_t step;
  int stage;                                     // of the all-gather that is continuing; STAGE_NONE: none
  TraceOpen open[TRACE_DEPTH];
  int depth;
  int64_t range_begin_ns[TRACE_DEPTH];
  uint8_t range[TRACE_DEPTH];
  int ranges, read_stage;
  struct { int64_t since_ns; int times; } ask[TRACE_WAITS];
  int64_t op_begin_ns;                           // of the last op
  int64_t reduction_ns, gather_ns[64], moved_ns; // starts: of the reduction, the gathers by slot, MPI's calls
  int steps;
  double step_ns;                                // of all traced steps
  // ---- on a GPU
  bool on_device, side[3];                       // side: ops of this part run on a stream of their own
  const Ctx *model;                              // of the model's stream
  int64_t *stamp;                                // [stamps_most + 1], of one step; the last one measures the clock
  int64_t stamps, stamps_most, step_count;       // given out in this step; events before this step
  void *graph;                                   // of a traced step; NULL before
  TraceEvent *captured;                          // [captured_count] what a replay does
  int64_t captured_count, captured_at, captured_from, captured_to;     // at: events before; from, to: range of stamps
  TraceClock device_clock[2];                    // the device's, against this rank's, before and after the step
  int64_t host_begin_ns, host_end_ns;            // of the step
  double device_within_ns;
};

static const char *const trace_ranges[] = {"step", "forward", "backward", "update", "other"};
static const char *const trace_told_words[] = {"evaluation", "save", "saving in the background"};
static const char *const trace_wait_words[] = {"wait for contributions", "wait for room to reduce in",
                                               "wait for peers that read gradients"};
// Tracks of a rank. Gather slot k has TRACK_SLOTS + k.
enum TraceTrack { TRACK_COMPUTES, TRACK_REDUCTION, TRACK_SLOTS, TRACK_GATHER_STREAM = 100 };  // the last: on a GPU

// Parts of a step's time in which nothing is computed, of each stage.
enum TraceExposed { EXPOSED_GATHER, EXPOSED_WAIT, EXPOSED_SUMS, EXPOSED_PARTS };
// Such parts of no stage: sums of replicas, the exchange of losses, the barrier, messages that are moved between ops.
enum TraceCommon { COMMON_JOIN, COMMON_EXCHANGE, COMMON_BARRIER, COMMON_MOVE, TRACE_COMMONS };
static const char *const trace_common_words[] = {"sums_of_replicas", "exchange", "barrier", "messages"};

struct TraceEnded { int64_t begin_ns, end_ns, own_ns; };
static Trace *tracing;                           // the one whose tables are in use

// Lays out the trace's memory, if there is some, and returns its bytes. An event for each op, and more for those
// between ops, fit.
static inline size_t trace_lay(Trace *x) {
  const int64_t of_a_step = 4 * x->calls + 16 * x->stages + 256;
  x->room = (x->last - x->first + 1) * of_a_step;
  const size_t clocks = sizeof(TraceClock) * (size_t)x->world;
  const size_t exposed = sizeof(double) * (size_t)(EXPOSED_PARTS * x->stages + TRACE_COMMONS);
  const size_t events = sizeof(TraceEvent) * (size_t)x->room;
  const size_t captured = x->on_device ? sizeof(TraceEvent) * (size_t)of_a_step : 0;
  x->stamps_most = x->on_device ? 2 * of_a_step : 0;
  const size_t stamps = x->on_device ? sizeof(int64_t) * (size_t)(x->stamps_most + 1) : 0;
  if (x->memory) {
    x->event = (TraceEvent *)x->memory;
    x->exposed_ns = (double *)(x->memory + events);
    x->clock[0] = (TraceClock *)(x->memory + events + exposed);
    x->clock[1] = x->clock[0] + x->world;
    x->stamp = (int64_t *)(x->clock[1] + x->world);
    x->captured = (TraceEvent *)((char *)x->stamp + stamps);
    x->reduced = (int *)((char *)x->captured + captured);
  }
  return events + exposed + 2 * clocks + stamps + captured + sizeof(int) * (size_t)x->stages;
}
void trace_declare(RunView *run, int64_t calls) {
  const Options *o = run->opt;
  Trace *x = run->trace = (Trace *)calloc(1, sizeof *x);
  if (!x) die_missing("no memory for a trace");
  x->on_device = run->ctx->ops->nccl != NULL;
  if (!run_trains(o) || !o->trace[0] || !trace_steps_parse(o->trace_steps, &x->first, &x->last)) return;
  snprintf(x->path, sizeof x->path, "%s", o->trace);
  if (o->max_steps) x->last = max64(x->first, min64(x->last, o->max_steps));
  x->calls = calls, x->stages = fsdp_stages(run->fsdp), x->world = fsdp_world(run->fsdp);
  memory_declare(&run->plan, MEM_TRACE, trace_lay(x), &x->memory);
}
void trace_close(RunView *run) {
  if (run->trace && run->trace->graph) run->ctx->ops->graph_close(run->ctx, run->trace->graph);
  free(run->trace);
}
void **trace_graph(void **graph) { return tracing ? &tracing->graph : graph; }

// ---- stamps ---------------------------------------------------------------------------------------------------------
static inline void trace_stamp(Trace *x, const Ctx *c, int64_t number) {
  Ctx real = *c;
  real.ops = x->ops;
  x->ops->stamp(&real, &x->stamp[number]);
}
// The time now, for a span of what c enqueues: the host's clock, or the number of a stamp on c's stream; -1: no stamps
// are left.
static inline int64_t trace_time(Trace *x, const Ctx *c) {
  if (!x->on_device) return now_ns();
  if (x->stamps == x->stamps_most) return -1;
  trace_stamp(x, c, x->stamps);
  return x->stamps++;
}
// By how much the device's clock is ahead of this rank's. c's stream must be idle.
enum { TRACE_STAMP_PINGS = 8 };
static inline TraceClock trace_device_clock(Trace *x, Ctx *c) {
  TraceClock found = {0, INFINITY, 0};
  for (int i = 0; i < TRACE_STAMP_PINGS; i++) {
    const int64_t sent = now_ns();
    trace_stamp(x, c, x->stamps_most);
    x->ops->sync(c);
    const int64_t back = now_ns();
    const double half = (double)(back - sent) / 2;
    if (half < found.within_ns)
      found = TraceClock{(double)(x->stamp[x->stamps_most] - sent) - half, half, (double)sent + half};
  }
  x->device_within_ns = fmax(x->device_within_ns, found.within_ns);
  return found;
}

// ---- noting ---------------------------------------------------------------------------------------------------------
static inline void trace_add(Trace *x, TraceKind kind, int number, int stage, int64_t begin, int64_t end,
                             uint64_t round, TracePart part) {
  if (x->count == x->room || begin < 0 || end < 0) { x->dropped++; return; }
  TraceEvent *e = &x->event[x->count++];
  e->begin_ns = begin, e->end_ns = end, e->round = round;
  e->step = x->step, e->stage = (int16_t)stage, e->kind = kind;
  e->number = (uint8_t)number, e->part = (uint8_t)(part & 3);
}
static inline void trace_expose(Trace *x, TraceExposed part, int stage, int64_t ns) {
  x->exposed_ns[EXPOSED_PARTS * stage + part] += (double)ns;
}
static inline void trace_expose_common(Trace *x, TraceCommon part, int64_t ns) {
  x->exposed_ns[EXPOSED_PARTS * x->stages + part] += (double)ns;
}
static inline void trace_forget_asks(Trace *x) { for (auto &a : x->ask) a.times = 0; }
// Starts a span in which other spans may be nested; trace_leave ends it. own_ns: its time without the nested spans; on
// a GPU this is computed when the step is over (trace_own).
static inline int64_t trace_enter(Trace *x, const Ctx *c) {
  CHECK(x->depth < TRACE_DEPTH, "spans nest deeper than %d", (int)TRACE_DEPTH);
  TraceOpen *open = &x->open[x->depth++];
  open->inner_ns = 0;
  trace_forget_asks(x);
  return open->begin_ns = trace_time(x, c);
}
static inline TraceEnded trace_leave(Trace *x, const Ctx *c) {
  const TraceOpen *open = &x->open[--x->depth];
  const int64_t begin = open->begin_ns, end = trace_time(x, c);
  if (x->on_device) return TraceEnded{begin, end, 0};
  if (x->depth) x->open[x->depth - 1].inner_ns += end - begin;
  trace_forget_asks(x);
  return TraceEnded{begin, end, end - begin - open->inner_ns};
}
// The sharding layer has polled for what it waits for; yes: it has come. A wait ends with a yes.
static inline bool trace_asked(Trace *x, TraceWait what, int stage, bool yes) {
  if (!yes) {
    if (!x->ask[what].times++) x->ask[what].since_ns = now_ns();
    return false;
  }
  if (x->ask[what].times >= 2) {
    const int64_t begin = x->ask[what].since_ns, end = now_ns();
    trace_add(x, TRACE_WAIT, what, stage, begin, end, 0, PART_OF_MODEL);
    trace_expose(x, EXPOSED_WAIT, stage, end - begin);
    if (x->depth) x->open[x->depth - 1].inner_ns += end - begin;
  }
  trace_forget_asks(x);
  return true;
}

enum TraceTold { TOLD_EVALUATION, TOLD_SAVE, TOLD_SAVING };
// Records an action of the trainer since begin_ns, if it is between the first traced step and the last.
static void trace_told(Trace *x, TraceTold what, int64_t begin_ns) {
  if (x && x->event && !x->done) trace_add(x, TRACE_TOLD, what, STAGE_NONE, begin_ns, now_ns(), 0, PART_OF_MODEL);
}

// ---- the table of ops
static inline int trace_stage(const TraceTable *t) {
  if (t->part == PART_OF_SUMS) return fsdp_reduced_last(t->trace->f);
  return t->trace->stage != STAGE_NONE ? t->trace->stage : WORD_GET(&flight.stage);
}
// Records that the last op was the optimizer's: the first such op of a stage reads the sum of the stage's last
// reduction.
static inline void trace_updated(Trace *x, int stage, uint64_t round) {
  if (stage < 0 || !x->reduced[stage] || x->read_stage == stage) return;
  trace_add(x, TRACE_READ, 0, stage, x->op_begin_ns, x->op_begin_ns, round, PART_OF_MODEL);
  x->read_stage = stage;
}
static inline void trace_op_begin(OpWatch *w, Ctx *c, const OpTouch *) {
  Trace *x = ((TraceTable *)w)->trace;
  x->op_begin_ns = trace_enter(x, c);
}
static inline void trace_op_end(OpWatch *w, Ctx *c, const OpTouch *o) {
  const TraceTable *t = (const TraceTable *)w;
  Trace *x = t->trace;
  const bool updates = o->op == OP_adamw_update || o->op == OP_sgd_update || o->op == OP_muon_momentum;
  int stage = trace_stage(t);
  uint64_t round = 0;
  for (int i = 0; i < o->args && (updates || o->op == OP_norm_accumulate); i++)
    if (!strcmp(o->arg[i].name, "grad")) stage = fsdp_stage_of_gradient(x->f, o->arg[i].t.data, &round);
  const TraceEnded e = trace_leave(x, c);
  trace_add(x, TRACE_OP, o->op, stage, e.begin_ns, e.end_ns, 0, t->part);
  if (t->part) trace_expose(x, t->part == PART_OF_SUMS ? EXPOSED_SUMS : EXPOSED_GATHER, stage, e.own_ns);
  if (updates) trace_updated(x, stage, round);
}
static inline void trace_range_begin(Ctx *c, const char *name) {
  Trace *x = ((const TraceTable *)c->ops)->trace;
  uint8_t n = 0;
  while (n < 4 && strcmp(name, trace_ranges[n])) n++;
  CHECK(x->ranges < TRACE_DEPTH, "ranges nest deeper than %d", (int)TRACE_DEPTH);
  trace_forget_asks(x);
  x->range[x->ranges] = n;
  x->ops->range_begin(c, name);
  x->range_begin_ns[x->ranges++] = trace_time(x, c);
}
static inline void trace_range_end(Ctx *c) {
  Trace *x = ((const TraceTable *)c->ops)->trace;
  const int64_t begin = x->range_begin_ns[--x->ranges], end = trace_time(x, c);
  x->ops->range_end(c);
  trace_forget_asks(x);
  trace_add(x, TRACE_RANGE, x->range[x->ranges], STAGE_NONE, begin, end, 0, PART_OF_MODEL);
  if (x->ranges || x->on_device) return;
  x->step_ns += (double)(end - begin);
  x->steps++;
}
static inline void trace_table(TraceTable *t, Trace *x, const Ops *real, TracePart part) {
  watch_table(&t->watch, real);
  watch_copies(&t->watch);
  t->trace = x, t->part = part;
  t->watch.before = trace_op_begin, t->watch.after = trace_op_end;
  t->watch.ops.range_begin = trace_range_begin;
  t->watch.ops.range_end = trace_range_end;
}

// ---- the schedule's notes
// Notes the time that the model's thread spends on an all-gather, and the all-gather in its slot, from its start until
// it is complete. On a GPU both are on the gather stream, and start once that stream has waited for the slot.
static inline void trace_gather(Trace *x, const Note *n) {
  const int k = n->slot & 63, s = n->stage;
  const bool starts = n->point <= POINT_BEGUN, enters = n->point == POINT_BEGIN || n->point == POINT_WAIT;
  x->stage = enters ? s : STAGE_NONE;
  if (x->on_device && starts) {
    const int64_t at = trace_time(x, n->on);
    if (!enters) trace_add(x, TRACE_GATHER, k, s, x->gather_ns[k], at, 0, PART_OF_MODEL);
    x->gather_ns[k] = at;
  } else if (enters) {
    const int64_t begin = trace_enter(x, n->on);
    if (starts) x->gather_ns[k] = begin;
  } else {
    const TraceEnded e = trace_leave(x, n->on);
    trace_expose(x, EXPOSED_GATHER, s, e.own_ns);
    trace_add(x, TRACE_FETCH, !starts, s, e.begin_ns, e.end_ns, 0, PART_OF_MODEL);
    if (!starts && !x->on_device) trace_add(x, TRACE_GATHER, k, s, x->gather_ns[k], e.end_ns, 0, PART_OF_MODEL);
  }
}
// Notes a reduction. On a GPU it starts once its stream has waited for the gradient, and ends before the event for
// which other streams wait.
static inline void trace_reduction(Trace *x, const Note *n) {
  x->reduced[n->stage] += n->point == POINT_BEGIN;
  if (n->point == (x->on_device ? POINT_BEGUN : POINT_BEGIN)) x->reduction_ns = trace_time(x, n->on);
  if (n->point == POINT_ADDED)
    trace_add(x, TRACE_SUMMED, n->last, n->stage, x->op_begin_ns, x->op_begin_ns, n->round, PART_OF_MODEL);
  if (n->point == POINT_END)
    trace_add(x, TRACE_REDUCTION, 0, n->stage, x->reduction_ns, trace_time(x, n->on), n->round, PART_OF_MODEL);
}
// Notes the return of a reduced gradient (HSDP), on a GPU's stream of reductions. Where ranks poll, the copy of a
// gradient that has come is noted as an op instead.
static inline void trace_return(Trace *x, const Note *n) {
  const int64_t at = trace_time(x, n->on);
  if (n->point == POINT_BEGIN) x->reduction_ns = at;
  else trace_add(x, TRACE_RETURN, 0, n->stage, x->reduction_ns, at, n->round, PART_OF_MODEL);
}
static inline void trace_common(Trace *x, NotePoint point, TraceKind kind, TraceCommon part) {
  if (point == POINT_BEGIN) trace_enter(x, x->model);
  if (point != POINT_END) return;
  const TraceEnded e = trace_leave(x, x->model);
  trace_expose_common(x, part, e.own_ns);
  trace_add(x, kind, 0, STAGE_NONE, e.begin_ns, e.end_ns, 0, PART_OF_MODEL);
}
// Notes a wait of the sharding layer. On a GPU only the model's stream waits, for gradient slots.
static inline void trace_wait(Trace *x, NotePoint point, TraceWait what, int stage) {
  if (what == WAIT_SLOT) stage = WORD_GET(&flight.stage) < 0 ? 0 : WORD_GET(&flight.stage);    // it comes next
  if (!x->on_device && point != POINT_WAIT) trace_asked(x, what, stage, point == POINT_ARRIVED);
  if (!x->on_device || what != WAIT_SLOT) return;
  const int64_t at = trace_time(x, x->model);
  if (point == POINT_ARRIVED) trace_add(x, TRACE_WAIT, what, stage, x->ask[what].since_ns, at, 0, PART_OF_MODEL);
  x->ask[what].since_ns = at;
}
// Records the time in Open MPI's calls, inside which messages move, except in a wait or an all-gather, whose events
// include it.
static const int64_t TRACE_MOVE_NS = 20000;
static inline void trace_moved(Trace *x, NotePoint point, bool messages) {
  const int64_t begin = x->moved_ns, end = x->moved_ns = now_ns();
  bool asks = x->depth || point == POINT_BEGIN;
  for (const auto &a : x->ask) asks = asks || a.times;
  if (asks || end - begin < TRACE_MOVE_NS) return;
  if (!messages) trace_told(x, TOLD_SAVING, begin);
  else trace_add(x, TRACE_MOVE, 0, STAGE_NONE, begin, end, 0, PART_OF_MODEL);
  if (messages) trace_expose_common(x, COMMON_MOVE, end - begin);
}
// Takes the schedule's notes of the traced step. On a GPU the host only enqueues, so it does not wait for peers.
static inline void trace_note(const Note *n) {
  Trace *x = tracing;
  const NoteOf of = n->of;
  const NotePoint point = n->point;
  const bool host = !x->on_device;
  if (of == NOTE_GATHER) trace_gather(x, n);
  if (of == NOTE_REDUCTION) trace_reduction(x, n);
  if (of == NOTE_RETURN && !host) trace_return(x, n);
  if (of == NOTE_JOIN) trace_common(x, point, TRACE_JOIN, COMMON_JOIN);
  if (of == NOTE_SMALL) trace_common(x, point, TRACE_EXCHANGE, COMMON_EXCHANGE);
  if (of == NOTE_STEP_END && host) trace_common(x, point, TRACE_BARRIER, COMMON_BARRIER);
  if (of >= NOTE_ROUND && of <= NOTE_SLOT) trace_wait(x, point, (TraceWait)(of - NOTE_ROUND), n->stage);
  if (of >= NOTE_MESSAGES && host) trace_moved(x, point, of == NOTE_MESSAGES);
}

// ---- clocks ---------------------------------------------------------------------------------------------------------
// Measures how far each rank's clock is ahead of rank 0's; rank 0 gets the result, in clock[world]. now: reads this
// rank's clock, in ns. like: NULL, or for each rank the lowest rank that has the same clock. All ranks of comm call it.
enum { TRACE_PINGS = 64, TRACE_TAG = 0x7a3 };
static inline void trace_clocks(MPI_Comm comm, TraceClock *clock, int64_t (*now)(), const int *like) {
  const int rank = comm_rank(comm), world = comm_size(comm);
  if (!rank) clock[0] = TraceClock{0, 0, (double)now()};
  MPI_Barrier(comm);                             // rank 0 has read its clock before any rank notes its first event
  for (int i = 0; i < TRACE_PINGS && rank && (!like || like[rank] == rank); i++) {
    int64_t mine = 0;
    MPI_Recv(&mine, 1, MPI_INT64_T, 0, TRACE_TAG, comm, MPI_STATUS_IGNORE);
    mine = now();
    MPI_Send(&mine, 1, MPI_INT64_T, 0, TRACE_TAG, comm);
  }
  if (rank) return;
  for (int r = 1; r < world; r++) {
    clock[r] = TraceClock{0, INFINITY, 0};
    if (like && like[r] != r) { clock[r] = clock[like[r]]; continue; }
    for (int i = 0; i < TRACE_PINGS; i++) {
      int64_t there = 0;
      const int64_t sent = now();
      MPI_Send(&there, 1, MPI_INT64_T, r, TRACE_TAG, comm);
      MPI_Recv(&there, 1, MPI_INT64_T, r, TRACE_TAG, comm, MPI_STATUS_IGNORE);
      const int64_t back = now();
      const double half = (double)(back - sent) / 2;
      if (half < clock[r].within_ns)
        clock[r] = TraceClock{(double)(there - sent) - half, half, (double)sent + half};
    }
  }
}
// Converts a time of a rank's clock to rank 0's, by the rank's two measurements: interpolated between them.
static inline int64_t trace_to_rank0(const TraceClock *a, const TraceClock *b, int64_t ns) {
  const double span = b->at_ns - a->at_ns, at = (double)ns - a->ahead_ns - a->at_ns;
  const double share = span > 0 ? at / span : 0;
  return ns - llround(a->ahead_ns + (b->ahead_ns - a->ahead_ns) * (share < 0 ? 0 : share > 1 ? 1 : share));
}
// Measurement `which` of all clocks (0, 1). The ranks of a host share a clock, so its first rank stands for all of
// them.
static inline void trace_measure(Trace *x, const Fsdp *f, int which) {
  const int world = fsdp_world(f);
  int *like = (int *)malloc(sizeof(int) * (size_t)world);
  for (int r = 0; r < world; r++) like[r] = fsdp_host_of(f, r);
  trace_clocks(fsdp_comm(f), x->clock[which], now_ns, like);
  free(like);
}

// ---- steps of a GPU -------------------------------------------------------------------------------------------------
static inline int trace_track(const Trace *x, const TraceEvent *e) {
  if (e->kind == TRACE_REDUCTION || e->kind == TRACE_RETURN) return TRACK_REDUCTION;
  if (e->kind == TRACE_GATHER) return TRACK_SLOTS + e->number;
  if (e->kind == TRACE_SUMMED) return x->side[PART_OF_SUMS] ? TRACK_REDUCTION : TRACK_COMPUTES;
  if (e->kind != TRACE_OP || !x->side[e->part]) return TRACK_COMPUTES;
  return e->part == PART_OF_SUMS ? TRACK_REDUCTION : TRACK_GATHER_STREAM;
}
// The time of event i of the model's stream without the spans nested in it, which are before it in the list.
static inline int64_t trace_own(const Trace *x, int64_t i) {
  const TraceEvent *e = &x->event[i];
  int64_t own = e->end_ns - e->begin_ns, limit = e->end_ns;
  for (i--; i >= x->step_count; i--) {
    const TraceEvent *inner = &x->event[i];
    if (trace_track(x, inner) != TRACK_COMPUTES || inner->kind == TRACE_READ) continue;
    if (inner->begin_ns < e->begin_ns) break;
    if (inner->end_ns > limit) continue;         // nested in a nested span
    own -= inner->end_ns - inner->begin_ns;
    limit = inner->begin_ns;
  }
  return own;
}
static inline int64_t trace_resolved(const Trace *x, int64_t number) {
  const int64_t ns = trace_to_rank0(&x->device_clock[0], &x->device_clock[1], x->stamp[number]);
  return ns < x->host_begin_ns ? x->host_begin_ns : ns > x->host_end_ns ? x->host_end_ns : ns;
}
// After a step: gives its events the times that the device has written, converted to this rank's clock, and adds up the
// exposed parts.
static inline void trace_resolve(Trace *x) {
  for (int64_t i = x->step_count; i < x->count; i++) {
    TraceEvent *e = &x->event[i];
    e->begin_ns = trace_resolved(x, e->begin_ns);
    e->end_ns = max64(e->begin_ns, trace_resolved(x, e->end_ns));
    const bool sums = e->kind == TRACE_OP && e->part == PART_OF_SUMS && !x->side[PART_OF_SUMS];
    const bool copies = e->kind == TRACE_OP && e->part == PART_OF_GATHER && !x->side[PART_OF_GATHER];
    if (e->kind == TRACE_FETCH || copies) trace_expose(x, EXPOSED_GATHER, e->stage, trace_own(x, i));
    if (e->kind == TRACE_WAIT) trace_expose(x, EXPOSED_WAIT, e->stage, trace_own(x, i));
    if (sums) trace_expose(x, EXPOSED_SUMS, e->stage, trace_own(x, i));
    if (e->kind == TRACE_JOIN) trace_expose_common(x, COMMON_JOIN, trace_own(x, i));
    if (e->kind == TRACE_EXCHANGE) trace_expose_common(x, COMMON_EXCHANGE, trace_own(x, i));
    if (e->kind != TRACE_RANGE || e->number) continue;           // "step"
    x->step_ns += (double)(e->end_ns - e->begin_ns);
    x->steps++;
  }
}
void trace_capture(bool begins) {
  Trace *x = tracing;
  if (x && begins) x->captured_at = x->count, x->captured_from = x->stamps;
  if (!x || begins) return;
  x->captured_count = min64(x->count - x->captured_at, x->stamps_most / 2);
  memcpy(x->captured, x->event + x->captured_at, sizeof(TraceEvent) * (size_t)x->captured_count);
  x->count = x->captured_at;
  x->captured_to = x->stamps;
  x->stamps = x->captured_from;
}
void trace_replayed() {
  Trace *x = tracing;
  if (!x) return;
  CHECK(x->stamps == x->captured_from, "%lld stamps before a replay, %lld before its capture", (long long)x->stamps,
        (long long)x->captured_from);
  for (int64_t i = 0; i < x->captured_count; i++) {
    if (x->count == x->room) { x->dropped++; continue; }
    x->event[x->count] = x->captured[i];
    x->event[x->count++].step = x->step;
  }
  x->stamps = x->captured_to;
}

// ---- steps ----------------------------------------------------------------------------------------------------------
// Whether the step after `step`, which counts from the start of training, is traced.
static bool trace_wants(const Trace *x, int64_t step) {
  return x->path[0] && !x->done && step + 1 - x->from >= x->first && step + 1 - x->from <= x->last;
}
// Replaces the op tables of c and f, and has f's notes. All ranks call it before the first traced step.
static void trace_step_begin(Trace *x, Ctx *c, Fsdp *f, int64_t step) {
  if (!x->event) {
    trace_lay(x);
    trace_measure(x, f, 0);
  }
  x->f = f;
  x->step = (int32_t)(step + 1);
  x->ops = c->ops;
  x->model = c;
  x->step_count = x->count, x->stamps = 0;
  if (x->on_device) {
    x->ops->sync(c);
    x->device_clock[0] = trace_device_clock(x, c);
    x->host_begin_ns = now_ns();
  }
  x->stage = x->read_stage = STAGE_NONE;
  x->depth = x->ranges = 0;
  trace_forget_asks(x);
  memset(x->reduced, 0, sizeof(int) * (size_t)x->stages);
  for (int part = 0; part < 3; part++) trace_table(&x->table[part], x, x->ops, (TracePart)part);
  tracing = x;
  c->ops = &x->table[PART_OF_MODEL].watch.ops;
  bool own[2];
  fsdp_trace_begin(f, &x->table[PART_OF_GATHER].watch.ops, &x->table[PART_OF_SUMS].watch.ops, trace_note, own);
  x->side[PART_OF_GATHER] = x->on_device && own[0];
  x->side[PART_OF_SUMS] = x->on_device && own[1];
}
static void trace_step_end(Trace *x, Ctx *c, Fsdp *f) {
  c->ops = x->ops;
  fsdp_trace_end(f, x->ops);
  tracing = NULL;
  if (!x->on_device) return;
  x->ops->sync(c);
  x->host_end_ns = now_ns();
  x->device_clock[1] = trace_device_clock(x, c);
  trace_resolve(x);
}
