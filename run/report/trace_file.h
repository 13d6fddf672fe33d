// trace_file.h: writes the events of trace.h as a file in Chrome's "Trace Event Format": complete events (X), flows (s,
// f) and metadata (M). dev/perfetto.py opens the file in Perfetto and checks that every event arrived.
//
// Perfetto has rules that the format does not state (trace_processor's JSON importer):
//   pid, tid   a thread is found by its tid, and tid 0 is taken for none. So a rank's tracks have numbers of their own
//              among all processes and threads: pid is TRACE_PIDS (rank + 1), a track's tid comes after it
//   id         of a flow: hexadecimal digits
//   ts, dur    microseconds, multiplied by 1000 and cut off after the point: a number a little below its nanosecond
//              would make spans overlap that only touch, and the second would be dropped. So a 2 follows three digits
#pragma once
#include "trace.h"

// Every trace starts with this text; a file that does not is not overwritten.
static const char trace_file_head[] = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{\"name\":\"process_name\","
                                      "\"ph\":\"M\",\"pid\":1000,\"args\":{\"name\":\"rank 0 on ";
enum { TRACE_PIDS = 1000 };                      // more than a rank has tracks
#define TRACE_US "%lld.%03lld2"
#define TRACE_US_OF(ns) (long long)(ns) / 1000, (long long)(ns) % 1000
static inline int trace_pid(int rank) { return TRACE_PIDS * (rank + 1); }
static inline int trace_tid(int rank, int track) { return trace_pid(rank) + 1 + track; }

static inline void trace_stage_text(char *to, size_t bytes, int stage) {
  if (stage == STAGE_NONE) to[0] = 0;
  else if (stage) snprintf(to, bytes, "block %d", stage - 1);
  else snprintf(to, bytes, "outside the blocks");
}
static inline const char *trace_name(const TraceEvent *e) {
  switch (e->kind) {
    case TRACE_OP: return op_word(e->number);
    case TRACE_RANGE: return trace_ranges[e->number];
    case TRACE_TOLD: return trace_told_words[e->number];
    case TRACE_GATHER: return "gather";
    case TRACE_REDUCTION: return "reduction";
    case TRACE_RETURN: return "sum back to replicas";
    case TRACE_FETCH: return e->number ? "fetch" : "ask for";
    case TRACE_WAIT: return trace_wait_words[e->number];
    case TRACE_JOIN: return "join reductions";
    case TRACE_EXCHANGE: return "exchange of losses and norm";
    case TRACE_BARRIER: return "barrier";
    case TRACE_MOVE: return "messages";
    default: return "flow";
  }
}
static inline const char *trace_category(const TraceEvent *e) {
  static const char *const of_kind[] = {"compute", "range", "between", "gather", "reduction", "reduction", "gather",
                                        "wait", "wait", "exchange", "exchange", "messages", "flow", "flow"};
  if (e->kind != TRACE_OP) return of_kind[e->kind];
  if (e->part) return e->part == PART_OF_SUMS ? "sums" : "gather";
  static const int optimizer[] = {OP_adamw_update, OP_sgd_update, OP_muon_momentum, OP_newton_schulz, OP_muon_update};
  for (int op : optimizer) if (e->number == op) return "optimizer";
  return "compute";
}
// One end, at `rank`, of a flow from one rank's reduction to another's sum, or from a rank's sum to its own optimizer.
static inline void trace_write_flow(FILE *to, char ph, const TraceEvent *e, int from, int into, int rank, int track,
                                    int64_t ns) {
  const uint64_t id = (uint64_t)from << 50 | (uint64_t)into << 36 | (uint64_t)(e->step & 0xfff) << 24 |
                      (e->round & 0xffffff);
  fprintf(to, ",\n{\"name\":\"reduction\",\"cat\":\"flow\",\"ph\":\"%c\",%s\"id\":\"%llx\",\"ts\":" TRACE_US ","
          "\"pid\":%d,\"tid\":%d}", ph, ph == 'f' ? "\"bp\":\"e\"," : "", (unsigned long long)id, TRACE_US_OF(ns),
          trace_pid(rank), trace_tid(rank, track));
}
// One event of `rank`, from begin to end. shards: of a shard group, whose ranks follow each other.
static inline void trace_write(FILE *to, const Trace *x, const TraceEvent *e, int rank, int shards, int64_t begin,
                               int64_t end) {
  char stage[32];
  const int first = rank / shards * shards;
  trace_stage_text(stage, sizeof stage, e->stage);
  if (e->kind == TRACE_READ) {
    trace_write_flow(to, 'f', e, rank, rank, rank, TRACK_COMPUTES, begin);
    return;
  }
  if (e->kind == TRACE_SUMMED) {
    for (int r = first; r < first + shards; r++)
      if (r != rank) trace_write_flow(to, 'f', e, r, rank, rank, trace_track(x, e), begin);
    if (e->number) trace_write_flow(to, 's', e, rank, rank, rank, trace_track(x, e), begin);
    return;
  }
  fprintf(to, ",\n{\"name\":\"%s%s%s\",\"cat\":\"%s\",\"ph\":\"X\",\"ts\":" TRACE_US ",\"dur\":" TRACE_US ",\"pid\":%d,"
          "\"tid\":%d,\"args\":{\"step\":%d", trace_name(e), stage[0] && e->kind != TRACE_OP ? ", " : "",
          e->kind != TRACE_OP ? stage : "", trace_category(e), TRACE_US_OF(begin), TRACE_US_OF(end - begin),
          trace_pid(rank), trace_tid(rank, trace_track(x, e)), e->step);
  if (e->stage != STAGE_NONE) fprintf(to, ",\"stage\":%d,\"of\":\"%s\"", e->stage, stage);
  fprintf(to, "}}");
  for (int r = first; r < first + shards && e->kind == TRACE_REDUCTION; r++)
    if (r != rank) trace_write_flow(to, 's', e, rank, r, rank, TRACK_REDUCTION, begin);
}
static inline void trace_write_track(FILE *to, int rank, int track, const char *name) {
  fprintf(to, ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}}",
          trace_pid(rank), trace_tid(rank, track), name);
  fprintf(to, ",\n{\"name\":\"thread_sort_index\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"sort_index\":%d}}",
          trace_pid(rank), trace_tid(rank, track), track);
}
// Writes events of a rank, as times since base_ns of rank 0's clock. slots: bits of the all-gather buffers whose tracks
// have a name already.
static inline void trace_write_events(FILE *to, const Trace *x, const TraceEvent *e, int64_t count, int rank,
                                      int64_t base_ns, uint64_t *slots) {
  const TraceClock *a = &x->clock[0][rank], *b = &x->clock[1][rank];
  for (int64_t i = 0; i < count; i++) {
    if (i % 1024 == 0) liveness_progress();      // the other ranks wait
    const int64_t begin = trace_to_rank0(a, b, e[i].begin_ns), end = trace_to_rank0(a, b, e[i].end_ns);
    if (e[i].kind == TRACE_GATHER && !(*slots >> e[i].number & 1)) {
      char name[32];
      *slots |= (uint64_t)1 << e[i].number;
      snprintf(name, sizeof name, "gather slot %d", e[i].number);
      trace_write_track(to, rank, TRACK_SLOTS + e[i].number, name);
    }
    trace_write(to, x, &e[i], rank, fsdp_config(x->f)->mesh.shards, max64(0, begin - base_ns), max64(0, end - base_ns));
  }
}
static inline void trace_write_rank(FILE *to, const Trace *x, int rank, const char *host) {
  fprintf(to, "%s\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"rank %d on %s\"}}",
          rank ? "," : "", trace_pid(rank), rank, host);
  fprintf(to, ",\n{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"sort_index\":%d}}",
          trace_pid(rank), rank);
  trace_write_track(to, rank, TRACK_COMPUTES, "computes");
  trace_write_track(to, rank, TRACK_REDUCTION, "reduction in flight");
  if (x->side[PART_OF_GATHER]) trace_write_track(to, rank, TRACK_GATHER_STREAM, "copies of gathers");
}

// Results of a trace: means over ranks and steps, in milliseconds per step. within_us: how far a clock may be off.
struct TraceFound {
  int64_t first_step, last_step, events, dropped;
  double step_ms, within_us;
  const double *exposed_ms, *common_ms;          // [EXPOSED_PARTS of each stage], [TRACE_COMMONS]
  double total_ms;
};
// Ends the trace: writes the file, and on rank 0 fills in `found`, whose arrays are valid as long as x. False: no step
// was traced, or the trace has ended before. One line in `error` on rank 0 if it cannot be written. All ranks call it.
static inline bool trace_finish(Trace *x, Ctx *c, const Fsdp *f, TraceFound *found, Error *error) {
  if (!x->path[0] || x->done || !x->event) return false;
  x->done = true;
  trace_measure(x, f, 1);
  if (x->graph) c->ops->graph_close(c, x->graph);
  x->graph = NULL;
  double device_within_ns = x->device_within_ns;
  MPI_Allreduce(MPI_IN_PLACE, &device_within_ns, 1, MPI_DOUBLE, MPI_MAX, fsdp_comm(f));
  const int parts = EXPOSED_PARTS * x->stages + TRACE_COMMONS, world = fsdp_world(f);
  const double mean = 1e-6 / ((double)world * x->steps);
  double sums[2] = {x->step_ns, (double)x->dropped};
  MPI_Allreduce(MPI_IN_PLACE, x->exposed_ns, parts, MPI_DOUBLE, MPI_SUM, fsdp_comm(f));
  MPI_Allreduce(MPI_IN_PLACE, sums, 2, MPI_DOUBLE, MPI_SUM, fsdp_comm(f));
  int64_t count = x->count;
  char host[64] = "";
  gethostname(host, sizeof host - 1);
  if (fsdp_rank(f)) {
    MPI_Send(&count, 1, MPI_INT64_T, 0, TRACE_TAG, fsdp_comm(f));
    MPI_Send(host, sizeof host, MPI_CHAR, 0, TRACE_TAG, fsdp_comm(f));
    int64_t most = 0;
    MPI_Recv(&most, 1, MPI_INT64_T, 0, TRACE_TAG, fsdp_comm(f), MPI_STATUS_IGNORE);
    for (int64_t at = 0; at < count; at += most) {
      const int64_t n = min64(most, count - at);
      MPI_Send(x->event + at, fsdp_mpi_count(n * (int64_t)sizeof(TraceEvent)), MPI_BYTE, 0, TRACE_TAG, fsdp_comm(f));
    }
    return true;
  }
  *found = TraceFound{x->from + x->first, x->step, count, (int64_t)sums[1], sums[0] * mean, 0, x->exposed_ns,
                      x->exposed_ns + EXPOSED_PARTS * x->stages, 0};
  for (int i = 0; i < parts; i++) found->total_ms += x->exposed_ns[i] *= mean;
  const bool foreign = file_is_foreign(x->path, trace_file_head, true);         // come there since the start
  FILE *to = foreign ? NULL : file_own(x->path, true);
  if (foreign) fail(error, "%.900s has become another file", x->path);
  else if (!to) fail(error, "cannot write %.900s: %s", x->path, file_own_fault(x->path));
  const int64_t base = (int64_t)x->clock[0][0].at_ns;            // earlier than the first event of any rank
  if (to) fprintf(to, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
  for (int r = 0; r < world; r++) {
    int64_t n = count;
    uint64_t slots = 0;
    if (r) MPI_Recv(&n, 1, MPI_INT64_T, r, TRACE_TAG, fsdp_comm(f), MPI_STATUS_IGNORE);
    if (r) MPI_Recv(host, sizeof host, MPI_CHAR, r, TRACE_TAG, fsdp_comm(f), MPI_STATUS_IGNORE);
    const int64_t most = min64(x->room, (1 << 30) / (int64_t)sizeof(TraceEvent));
    if (r) MPI_Send(&most, 1, MPI_INT64_T, r, TRACE_TAG, fsdp_comm(f));
    if (to) trace_write_rank(to, x, r, host);
    for (int64_t at = 0; at < n; at += most) {   // others' events come to where its own lay, which are written
      const int64_t some = min64(most, n - at);
      if (r)
        MPI_Recv(x->event, fsdp_mpi_count(some * (int64_t)sizeof(TraceEvent)), MPI_BYTE, r, TRACE_TAG, fsdp_comm(f),
                 MPI_STATUS_IGNORE);
      if (to) trace_write_events(to, x, r ? x->event : x->event + at, some, r, base, &slots);
    }
    if (r) found->events += n;
    for (int i = 0; i < 2; i++) found->within_us = fmax(found->within_us, x->clock[i][r].within_ns * 1e-3);
  }
  found->within_us += device_within_ns * 1e-3;
  if (!to) return true;
  fprintf(to, "\n]}\n");
  const bool bad = ferror(to);
  if (fclose(to) || bad) fail(error, "cannot write %.900s: %s", x->path, strerror(errno));
  return true;
}
bool trace_is_ours(const char *path) { return !file_is_foreign(path, trace_file_head, true); }
