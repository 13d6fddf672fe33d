// memory_map.h: where a training step's memory is, as a picture needs it: a member of the first record of
// metrics.jsonl, which report_html.h draws. Time is counted in entries of the dry run's record (fsdp/record.h).
//
//   "memory_map": {"time": entries,
//     "turns":    [[words, entry], ...]                    where forward, backward and update begin
//     "lines":    [[words, use, bytes, pool], ...]         of the memory plan, in its order; pool -1: stays as it is.
//                                                          What shares a pool is one line
//     "buffers":  [[name, block, pool, at, bytes, [[from, to], ...]], ...]       alive from entry to entry; block -1:
//                                                          of none
//     "schedule": [[stage, words, from, to], ...]}         weights whole and in use, gathers, reductions
#pragma once
#include "dry_run.h"

static inline void memory_map_buffer(FILE *f, const Pass *p, const Buffer *b, bool *any) {
  if (!b->intervals) return;
  fprintf(f, "%s[\"%s\",%d,%d,%zu,%zu,[", *any ? "," : "", b->name, b->layer, (int)b->pool, b->at, b->bytes);
  const char *comma = "";
  for (int i = b->intervals - 1; i >= 0;) {      // they are kept latest first, and may overlap or touch
    Interval x = p->interval[b->first + i--];
    for (; i >= 0 && p->interval[b->first + i].from <= x.to + 1; i--) {
      const int to = p->interval[b->first + i].to;
      x.to = to > x.to ? to : x.to;
    }
    fprintf(f, "%s[%d,%d]", comma, x.from, x.to);
    comma = ",";
  }
  fprintf(f, "]]");
  *any = true;
}
// Where the parts of a step begin: a new one where an op of it comes after one of another part.
static inline void memory_map_turns(FILE *f, const Record *r) {
  static const struct { const char *op, *words; } turns[] = {
      {"embedding_forward", "forward"}, {"cross_entropy_forward_backward", "backward"}, {"norm_accumulate", "update"}};
  const char *now = "";
  for (int i = 0; i < r->count; i++)
    for (const auto &turn : turns) {
      if (r->entry[i].kind != RECORD_ACCESS || strcmp(op_word((int)r->entry[i].op), turn.op)) continue;
      if (!strcmp(now, turn.words)) continue;
      fprintf(f, "%s[\"%s\",%d]", now[0] ? "," : "", turn.words, i);
      now = turn.words;
    }
}
// A stage is in a state from entry `from` on; from -1: it is not. last: the last entry that belongs to the state.
struct MapSpan { int from, last; };
static inline void memory_map_span(FILE *f, int stage, const char *words, MapSpan *x, int to, bool *any) {
  if (x->from >= 0) fprintf(f, "%s[%d,\"%s\",%d,%d]", *any ? "," : "", stage, words, x->from, to);
  *any = *any || x->from >= 0;
  *x = MapSpan{-1, -1};
}
static inline void memory_map_schedule(FILE *f, const Record *r, int stages) {
  bool any = false;
  for (int s = 0; s < stages; s++) {
    MapSpan whole = {-1, -1}, gather = {-1, -1}, reduction = {-1, -1};
    for (int i = 0; i < r->count; i++) {
      const RecordEntry *e = &r->entry[i];
      const bool held = (e->kind == RECORD_HOLD || e->kind == RECORD_FREE) && e->number == s;
      if (held && e->op == HELD_WEIGHTS && e->kind == RECORD_HOLD && whole.from < 0) {
        memory_map_span(f, s, "gather", &gather, i, &any);
        whole.from = i;
      }
      if (held && e->op == HELD_WEIGHTS && e->kind == RECORD_FREE) memory_map_span(f, s, "weights", &whole, i, &any);
      if (held && e->op == HELD_GRADIENT && e->kind == RECORD_HOLD) {
        memory_map_span(f, s, "reduction", &reduction, reduction.last, &any);
        reduction = MapSpan{i, i};
      }
      if (e->kind == RECORD_HOLD || e->kind == RECORD_FREE || e->place.stage != s) continue;
      const bool gathers = e->place.what == SCHEDULE_GATHER && e->kind != RECORD_POINT;
      if (gathers && gather.from < 0 && whole.from < 0) gather.from = i;
      if (e->place.what == SCHEDULE_REDUCE && reduction.from >= 0) reduction.last = i;
    }
    memory_map_span(f, s, "weights", &whole, r->count, &any);
    memory_map_span(f, s, "reduction", &reduction, reduction.last, &any);
  }
}
// In which pool a line of the plan is, or -1 (fsdp_declare_pool, fsdp_declare_work).
static inline int memory_map_pool(const Fsdp *fsdp, const MemoryPlan *plan, const Placement *pl, int line) {
  const bool arrives = fsdp->lay.pool[POOL_STAGING_IN] > 0;        // unless it is apart
  switch (line) {
    case MEM_GATHER_SLOTS: case MEM_ROOT_PARAMS: case MEM_EXPANDED: case MEM_OFFLOAD: case MEM_ORTHOGONAL:
    case MEM_WORKSPACE: case MEM_ACTIVATIONS:
      return POOL_ACTS;
    case MEM_STAGING_IN: return arrives ? (int)POOL_ACTS : -1;
    case MEM_STAGING_OUT: case MEM_SLOTS_SHARED: return plan->planned_bytes[MEM_SLOTS_SHARED] ? (int)POOL_SLOTS : -1;
    case MEM_GRADS: return pl->pool[POOL_SHARDS].bytes ? (int)POOL_SHARDS : -1;
    default: return -1;
  }
}
static inline void memory_map_lines(FILE *f, const Fsdp *fsdp, const MemoryPlan *plan, const Placement *pl) {
  bool any = false, told[POOLS] = {};
  for (int i = 0; i < MEM_COUNT; i++) {
    const int pool = memory_map_pool(fsdp, plan, pl, i);
    size_t bytes = 0;
    const char *plus = "";
    int use = i;
    if (!plan->planned_bytes[i] || (pool >= 0 && told[pool])) continue;
    fprintf(f, "%s[\"", any ? "," : "");
    for (int k = i; k < (pool < 0 ? i + 1 : (int)MEM_COUNT); k++) {
      if (!plan->planned_bytes[k] || (k > i && memory_map_pool(fsdp, plan, pl, k) != pool)) continue;
      fprintf(f, "%s%s", plus, memory_words[k]);
      bytes += plan->planned_bytes[k];
      plus = " + ";
      if (k != MEM_WORKSPACE) use = k;           // the last one gives the pool its colour: activations, or slots
    }
    fprintf(f, "\",\"%s\",%zu,%d]", memory_use_words[memory_uses[use]], bytes, pool);
    if (pool >= 0) told[pool] = true;
    any = true;
  }
}
void fsdp_memory_map(FILE *f, const Fsdp *fsdp, Fsdp *dry, const MemoryPlan *plan) {
  const Placement *pl = &fsdp->passes->placement;
  const Record *r = dry->record;
  Pass *p = &dry->passes->pass[PASS_TRAIN];
  bool any = false;
  dry_learn(dry);
  pass_take_places(p, &fsdp->passes->pass[PASS_TRAIN]);
  fprintf(f, "\"memory_map\":{\"time\":%d,\"turns\":[", r->count);
  memory_map_turns(f, r);
  fprintf(f, "],\"lines\":[");
  memory_map_lines(f, fsdp, plan, pl);
  fprintf(f, "],\"buffers\":[");
  for (int i = 0; i < pl->fixed_count; i++) {    // those that share their memory are not alive all the time
    const Buffer *b = &pl->fixed[i].buffer;
    if (pl->fixed[i].shared) memory_map_buffer(f, p, &p->fixed[i], &any);
    if (pl->fixed[i].shared || !b->bytes) continue;
    fprintf(f, "%s[\"%s\",%d,%d,%zu,%zu,[[0,%d]]]", any ? "," : "", b->name, b->layer, (int)b->pool, b->at, b->bytes,
            r->count);
    any = true;
  }
  for (int i = 0; i < p->count; i++) memory_map_buffer(f, p, &p->buffer[i], &any);
  fprintf(f, "],\"schedule\":[");
  memory_map_schedule(f, r, fsdp->lay.stages);
  fprintf(f, "]}");
}
