// note.h: the schedule's transitions. One call here reports a transition to all watchers: the record, which keeps the
// part, stage and round that an access belongs to (record.h); the flight recorder (watch/flight.h); the report of a
// rank that hangs (heartbeats.h); a device's progress marks; ranges of profilers; --trace.
//
//   note                              a transition for --trace alone; the calls below also call it
//   note_asked                        whether something that is polled for has arrived
//   schedule_enter, schedule_return   the following calls belong to this part of the schedule; back to the part before
//   note_begin, note_end              a collective begins, ends
//   note_wait, note_arrived           the model begins, ends a wait for a collective
//   note_exchange, note_exchanged     note_begin and note_wait; note_arrived and note_end: a call that waits for all
//   ranks fsdp_phase_begin, fsdp_phase_end  forward, backward, update
#pragma once
#include "record.h"

// Notes that the following calls belong to part `what` of the schedule. Returns the place before. r: NULL: no record.
static inline SchedulePlace schedule_enter(Record *r, SchedulePart what, int stage, uint64_t round) {
  if (!r) return SchedulePlace{};
  const SchedulePlace was = r->place;
  r->place = SchedulePlace{(uint16_t)what, (int16_t)stage, (uint32_t)round};
  return was;
}
static inline void schedule_return(Record *r, SchedulePlace was) { if (r) r->place = was; }

static inline void note(Fsdp *f, NoteOf of, NotePoint point, int stage) {
  if (!f->watch.note) return;
  const ReduceJob *job = &f->job;
  Note x = {of, point, stage, 0, job->round0, job->last, f->ctx};
  if (of == NOTE_GATHER) x.slot = fsdp_slot_number(f, stage);
  if (of == NOTE_GATHER && point <= POINT_BEGUN) x.on = &f->gather_ctx;
  if (of == NOTE_REDUCTION || of == NOTE_RETURN) x.on = &f->reduce_ctx;
  if (of == NOTE_RETURN) x.round += (uint64_t)job->rounds - 1;
  f->watch.note(&x);
}
static inline bool note_asked(Fsdp *f, NoteOf of, int stage, bool yes) {
  note(f, of, yes ? POINT_ARRIVED : POINT_ASKED, stage);
  return yes;
}
static inline FlightCollective note_begin(Fsdp *f, NoteOf of, int stage) {
  static const char *const words[] = {"the gather", "the reduction", "the small exchange", "the sums of all replicas",
                                      "the barrier after the update", "the updates of Muon"};
  note(f, of, POINT_BEGIN, stage);
  return flight_begin(words[of], stage);
}
static inline void note_end(Fsdp *f, NoteOf of, FlightCollective c) {
  flight_end(c);
  note(f, of, POINT_END, c.stage);
}
static inline void note_wait(Fsdp *f, NoteOf of, FlightCollective c) {
  flight_in(c);
  note(f, of, POINT_WAIT, c.stage);
}
static inline void note_arrived() {
  liveness_arrived();
  flight_out();
}
static inline FlightCollective note_exchange(Fsdp *f, NoteOf of) {
  const FlightCollective c = note_begin(f, of, STAGE_NONE);
  note_wait(f, of, c);
  return c;
}
static inline void note_exchanged(Fsdp *f, NoteOf of, FlightCollective c) {
  note_arrived();
  note_end(f, of, c);
}
void fsdp_phase_begin(Fsdp *f, const char *phase, int microbatch, int mark) {
  f->ctx->ops->range_begin(f->ctx, phase);
  liveness_microbatch(microbatch);
  liveness_phase(phase);
  fsdp_mark(f, f->ctx, MARK_MODEL, mark);
}
void fsdp_phase_end(Fsdp *f) { f->ctx->ops->range_end(f->ctx); }
void fsdp_host_touches(Fsdp *f, bool writes, const void *p, size_t bytes) {
  record_host(f->record, writes ? ACCESS_WRITE : ACCESS_READ, p, bytes);
}
void fsdp_trace_begin(Fsdp *f, const Ops *gather, const Ops *reduce, void (*note_)(const Note *x), bool own[2]) {
  own[0] = f->gather_ctx.stream != f->ctx->stream;
  own[1] = f->reduce_ctx.stream != f->ctx->stream;
  f->gather_ctx.ops = gather;
  f->reduce_ctx.ops = reduce;
  f->watch.note = note_;
}
void fsdp_trace_end(Fsdp *f, const Ops *ops) {
  f->gather_ctx.ops = f->reduce_ctx.ops = ops;
  f->watch.note = NULL;
}
