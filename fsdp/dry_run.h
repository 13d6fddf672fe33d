// dry_run.h: the sharding layer in a dry run, and what it takes from the placement that follows (fsdp/placement.h).
// Above open.h. The planning transport, comm_plan, is in fsdp/transport_plan.h.
#pragma once
#include "fsdp.h"
#include "open.h"

void fsdp_dry_layout(Fsdp *dry, const Fsdp *f, Ctx *ctx, FsdpConfig cfg) {
  const size_t bytes = sizeof(Unit) * (size_t)f->lay.units;
  memset(dry, 0, sizeof *dry);
  dry->ctx = ctx;
  dry->cfg = cfg;
  dry->mesh = mesh_alone(&f->mesh);
  dry->lay = f->lay;
  dry->lay.unit = (Unit *)malloc(bytes);         // which say where they begin
  memcpy(dry->lay.unit, f->lay.unit, bytes);
  fsdp_state_open(dry);
}
void fsdp_dry_open(Fsdp *f, MemoryPlan *plan, Record *r) {
  f->plan = plan;
  f->comm = &comm_plan;
  f->record = r;
  // So that the record has the zeroing of gaps.
  f->shared.slot[0] = f->shared.slot[1] = fsdp_shares_slots(f) && f->lay.grad_slot_bytes;
  f->shared.staging = fsdp_shares_slots(f);
  for (int s = 0; s < f->lay.stages; s++)
    f->shared.sums[s] = fsdp_shares_sums(f) && f->lay.stage[s].grads != GRADS_SHARD_IN_WHOLE;
  fsdp_open(f);
}
void fsdp_dry_close(Fsdp *f) {
  fsdp_give_back(f);
  fsdp_state_free(f);
  free(f->lay.unit);
  memset(f, 0, sizeof *f);
}
// Elements of f->shards.grads before those of stage s.
static inline int64_t fsdp_sums_before(const Fsdp *f, int s) {
  int u = 0;
  while (u < f->lay.units && f->lay.unit[u].stage < s) u++;
  return u < f->lay.units ? f->lay.unit[u].sum_base : f->lay.sum_numel;
}
void fsdp_pools(const Fsdp *f, Placement *p) {
  static const char *const names[] = {"gather slot", "gathered outside the blocks", "weights",
                                      "weights outside the blocks", "sum of a round", "staging in",
                                      "updates", "scratch of Newton-Schulz"};
  const size_t slot = f->lay.grad_slot_bytes, sums = (size_t)f->lay.sum_numel * 4, own = f->lay.pool_bytes;
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
    const size_t at = (size_t)fsdp_sums_before(f, s) * 4, end = (size_t)fsdp_sums_before(f, s + 1) * 4;
    placement_fix(p, "gradient shard", s, POOL_SHARDS, at, end - at, (char *)f->shards.grads + at);
  }
}
void fsdp_take_placement(Fsdp *f, const Placement *p, const Pass *train, int microbatches) {
  f->cfg.slots_bytes = p->pool[POOL_SLOTS].bytes;
  f->cfg.pool_bytes = p->pool[POOL_ACTS].bytes;
  f->cfg.workspace_bytes = p->workspace_bytes;
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
