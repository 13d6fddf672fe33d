// dry_run.h: the sharding layer in a dry run, and the use of the placement that follows from it (fsdp/placement.h).
// The planning transport, comm_plan, is in fsdp/transport_plan.h.
#pragma once
#include "open.h"

// Elements of f->shards.grads before those of stage s.
static inline int64_t fsdp_sums_before(const Fsdp *f, int s) {
  int u = 0;
  while (u < f->lay.units && f->lay.unit[u].stage < s) u++;
  return u < f->lay.units ? f->lay.unit[u].sum_base : f->lay.sum_numel;
}
// Sets the placement's pools and the fixed buffers of f in them, with their addresses in the dry run.
static inline void fsdp_pools(const Fsdp *f, Placement *p) {
  static const char *const names[] = {"gather slot", "gathered outside the blocks", "weights",
                                      "weights outside the blocks", "sum of a round", "staging in",
                                      "updates", "scratch of Newton-Schulz"};
  const size_t slot = f->lay.grad_slot_bytes, sums = fsdp_sums_bytes(f, f->lay.sum_numel), own = f->lay.pool_bytes;
  const size_t staging = f->lay.part[WORK_STAGING].bytes;
  const char *const work = fsdp_work(f, f->lay.part[WORK_STAGING].at);
  p->pool[POOL_ACTS] = PoolSpace{own, SIZE_MAX, true};
  if (fsdp_shares_slots(f)) p->pool[POOL_SLOTS] = PoolSpace{staging + 2 * slot, SIZE_MAX, true};
  if (fsdp_shares_sums(f)) p->pool[POOL_SHARDS] = PoolSpace{sums, sums, true};
  if (fsdp_shares_slots(f)) placement_fix(p, "staging out", 0, POOL_SLOTS, 0, staging, work);
  for (int k = 0; k < 2 && slot && fsdp_shares_slots(f); k++) {
    const size_t at = staging + (size_t)k * slot;
    placement_fix(p, "gradient slot", k, POOL_SLOTS, at, slot, work + at);
    p->fixed[p->fixed_count - 1].slot = k;
  }
  const size_t *at = f->lay.pool_at;
  for (int i = 0; i < POOL_PARTS; i++)
    for (int k = 0, parts = pool_buffers(f, i); k < parts; k++, at++)
      placement_fix(p, names[i], k, POOL_ACTS, *at, f->lay.pool[i] / (size_t)parts, f->mem.pool + *at);
  for (int s = 0; s < f->lay.stages && fsdp_shares_sums(f); s++) {
    const size_t at = fsdp_sums_bytes(f, fsdp_sums_before(f, s)), end = fsdp_sums_bytes(f, fsdp_sums_before(f, s + 1));
    placement_fix(p, "gradient shard", s, POOL_SHARDS, at, end - at, (char *)f->shards.grads + at);
  }
}
// Takes over a placement: sizes of pools, which buffers are shared, and the points where a training step waits. train:
// the placed training pass, which must live as long as f; microbatches: of its dry run.
static inline void fsdp_take_placement(Fsdp *f, const Placement *p, const Pass *train, int microbatches) {
  f->shared.slots_bytes = p->pool[POOL_SLOTS].bytes;
  f->shared.pool_bytes = p->pool[POOL_ACTS].bytes;
  f->shared.workspace_bytes = p->workspace_bytes;
  f->shared.slot[0] = f->shared.slot[1] = f->shared.staging = false;
  for (int i = 0; i < p->fixed_count; i++) {
    const FixedBuffer *x = &p->fixed[i];
    if (x->slot >= 0) f->shared.slot[x->slot] = x->shared;
    else if (x->buffer.pool == POOL_SLOTS) f->shared.staging = x->shared;
    else if (x->buffer.pool == POOL_SHARDS) f->shared.sums[x->buffer.layer] = x->shared;
  }
  f->shared.wait = train->wait;
  f->shared.points = train->points / microbatches;
}

// ---- the life of a dry run
Fsdp *fsdp_dry_layout(const Fsdp *f, Ctx *c, int64_t microbatches, size_t small_bytes, DryWatch *watch) {
  const size_t bytes = sizeof(Unit) * (size_t)f->lay.units;
  Fsdp *dry = (Fsdp *)calloc(1, sizeof(Fsdp));
  dry->passes = (Passes *)calloc(1, sizeof(Passes));
  dry->dry = (DryRun *)calloc(1, sizeof(DryRun));
  dry->dry->of = f;
  dry->dry->ops = plan_table(f->ctx->ops->nccl);
  dry->record = &dry->dry->record;
  record_open(dry->record);
  dry->record->watch = watch;
  if (watch) dry->record->sink.take = record_watched;
  c->ops = &dry->dry->ops;
  c->device = dry->record;
  dry->ctx = c;
  dry->cfg = f->cfg;
  dry->cfg.host_ops = &dry->dry->ops;
  dry->cfg.microbatches = microbatches;
  dry->cfg.small_bytes = small_bytes;
  dry->shared.unwanted = f->shared.unwanted;     // not placed yet: the sharding layer's bytes alone
  dry->mesh = mesh_alone(&f->mesh);
  dry->lay = f->lay;
  dry->lay.unit = (Unit *)malloc(bytes);         // a copy, because fsdp_declare writes places
  memcpy(dry->lay.unit, f->lay.unit, bytes);
  fsdp_state_open(dry);
  return dry;
}
void fsdp_dry_open(Fsdp *dry, MemoryPlan *plan) {
  const Passes *placed = dry->dry->of->passes;
  Record *r = dry->record;
  dry->plan = plan;
  dry->comm = &comm_plan;
  // As if slots and staging were shared, so that the record has the zeroing of gaps.
  dry->shared.slot[0] = dry->shared.slot[1] = fsdp_shares_slots(dry) && dry->lay.grad_slot_bytes;
  dry->shared.staging = fsdp_shares_slots(dry);
  for (int s = 0; s < dry->lay.stages; s++)
    dry->shared.sums[s] = fsdp_shares_sums(dry) && dry->lay.stage[s].grads != GRADS_SHARD_IN_WHOLE;
  if (r->watch) touch_of_host = &r->sink;
  fsdp_open(dry);
  if (r->watch) fsdp_take_placement(dry, &placed->placement, &placed->pass[PASS_TRAIN], placed->microbatches);
  else fsdp_pools(dry, &dry->passes->placement);
}
void fsdp_dry_close(Fsdp *dry) {
  if (dry->record->watch) touch_of_host = NULL;
  fsdp_give_back(dry);
  fsdp_state_free(dry);
  record_close(dry->record);
  passes_free(dry->passes);
  free(dry->lay.unit);
  free(dry->dry);
  free(dry);
}

// ---- passes
// Ends the pass that a dry run is in, and computes the lifetimes of its buffers.
static inline void dry_learn(Fsdp *dry) {
  Passes *p = dry->passes;
  Record *r = dry->record;
  if (!p->learning || r->watch) return;
  CHECK(!r->error[0], "dry run: %s", r->error);
  if (p->learning == &p->pass[PASS_TRAIN]) p->calls = r->calls;
  pass_lifetimes(&p->placement, p->learning, r);
  p->learning = NULL;
}
Declare *fsdp_pass(Fsdp *f, PassKind kind, bool again) {
  Passes *p = f->passes;
  Pass *pass = &p->pass[kind];
  char *const base = (char *)RECORD_ADDRESSES;
  char *const slots = f->dry ? NULL : fsdp_work(f, f->lay.part[WORK_STAGING].at);
  p->declare = f->dry ? Declare{pass, NULL, {base, base, base}, 0}
                      : Declare{pass, NULL, {(char *)f->shards.grads, f->mem.pool, slots}, 0};
  if (!f->dry || again) return &p->declare;
  dry_learn(f);
  f->record->count = 0;
  p->declare.record = f->record;
  p->declared[kind] = true;
  p->learning = pass;
  return &p->declare;
}
void fsdp_place(Fsdp *f, Fsdp *dry) {
  Passes *p = dry->passes;
  const int64_t A = dry->cfg.microbatches;
  int first = 0;
  dry_learn(dry);
  while (first < PASSES - 1 && !p->declared[first]) first++;
  placement_place(&p->placement, p->pass + first, PASSES - first);
  p->microbatches = (int)A;
  p->calls *= (f->cfg.microbatches + A - 1) / A;
  passes_free(f->passes);
  f->passes = p;
  dry->passes = (Passes *)calloc(1, sizeof(Passes));
  fsdp_take_placement(f, &p->placement, &p->pass[PASS_TRAIN], p->microbatches);
}
Placed fsdp_placed(const Fsdp *f) {
  const Passes *p = f->passes;
  return Placed{placement_bytes(&p->placement), p->placement.alive_most_bytes, p->calls};
}
