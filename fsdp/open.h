// open.h: the sharding layer's life, once fsdp_layout and fsdp_declare have described it: connected, opened (all memory
// of the plan is taken), recorded if a test asks for it, closed. For dry runs see dry_run.h.
#pragma once
#include "update.h"

static inline void fsdp_open_events(Fsdp *f) {
  Ctx *c = f->ctx;
  for (int k = 0; k <= f->cfg.gather_slots; k++) {
    step_event_open(c, &f->slot[k].arrived, "stage arrived");
    step_event_open(c, &f->slot[k].released, "stage released");
  }
  for (int s = 0; s < 2 + f->lay.stages; s++)
    step_event_open(c, &f->grads_free[s], s < 2 ? "block slot free" : s == 2 ? "root slot free" : "gradient free");
  step_event_open(c, &f->began, "step began");
  step_event_open(c, &f->grads_ready, "gradients ready");
  step_event_open(c, &f->reduced, "reduced");
  step_event_open(c, &f->exchange_ready, "exchange ready");
  step_event_open(c, &f->exchanged, "exchanged");
  step_event_open(c, &f->mirror_filled, "mirror filled");
  step_event_open(c, &f->drained, "drained");
  for (StepEvent &e : f->published) step_event_open(c, &e, "parameters published");
  step_event_open(c, &f->update_ready, "updates ready");
  for (StepEvent &e : f->update_whole) step_event_open(c, &e, "matrix whole");
  for (StepEvent &e : f->update_back) step_event_open(c, &e, "updates back");
}

// Opens what takes memory of its own, and notes in the plan how much. Collective, before fsdp_open.
static inline void fsdp_connect(Fsdp *f, MemoryPlan *plan) {
  static const Comm *const comms[] = {&comm_self, &comm_mpi, &comm_nccl};      // by CommKind
  f->plan = plan;
  f->comm = comms[f->cfg.comm];
  f->comm->connect(f);
}
// Takes all memory that the plan has, the caller's too. Collective.
static inline void fsdp_open(Fsdp *f) {
  const int K = f->cfg.gather_slots;
  f->meanwhile = fsdp_poll;
  f->slot = (GatherSlot *)calloc((size_t)K + 1, sizeof(GatherSlot));
  f->comm->open(f);
  memory_take_all(f->ctx, f->plan);
  if (f->host_params) f->params_home = f->host_params - f->lay.part[WORK_PARAMS].at;
  fsdp_open_pool(f);
  for (int k = 0; k <= K; k++)
    f->slot[k].landing = k == K ? f->root_landing
                         : f->block_landings ? f->block_landings + (size_t)k * f->lay.block_slot_bytes : NULL;
  if (f->lay.part[WORK_SUMS].bytes) f->grads = (float *)((f->lay.part[WORK_SUMS].on_host ? f->window : f->work) +
                                                     f->lay.part[WORK_SUMS].at);
  f->amax = f->scale + f->lay.scales;
  f->amax_all = f->amax + f->lay.scales;
  f->host_ctx.ops = f->cfg.host_ops;
  f->host_ctx.threads = f->ctx->threads;
  fsdp_open_events(f);
}

// Frees what fsdp_layout took.
static inline void fsdp_layout_free(Fsdp *f) {
  for (int u = 0; u < f->lay.units; u++) free(f->lay.unit[u].piece);
  void *const owned[] = {f->slot, f->lay.unit, f->lay.param, f->lay.stage, f->secondary_valid, f->secondary_number,
                         f->stage_round0, f->slot_rounds, f->slot_collective, f->grads_free, f->sums_shared,
                         f->lay.pool_place, f->lay.owned.matrix, f->lay.owned.round_first, f->lay.hosts.part,
                         f->lay.hosts.adder, f->returns.of};
  for (void *p : owned) free(p);
  mesh_close(&f->mesh);
  memset(f, 0, sizeof *f);
}
// Gives back all memory that the plan had.
static inline void fsdp_close(Fsdp *f) {
  Ctx *c = f->ctx;
  for (int k = 0; k <= f->cfg.gather_slots; k++) {
    c->ops->event_close(c, f->slot[k].arrived.event);
    c->ops->event_close(c, f->slot[k].released.event);
  }
  StepEvent *const events[] = {&f->began, &f->grads_ready, &f->reduced, &f->exchange_ready, &f->exchanged,
                               &f->mirror_filled, &f->drained, &f->published[0], &f->published[1], &f->update_ready};
  for (StepEvent *e : events) c->ops->event_close(c, e->event);
  for (int i = 0; i < UPDATE_SLOTS; i++) {
    c->ops->event_close(c, f->update_whole[i].event);
    c->ops->event_close(c, f->update_back[i].event);
  }
  for (int s = 0; s < 2 + f->lay.stages; s++) c->ops->event_close(c, f->grads_free[s].event);
  f->comm->close(f);
  memory_give_back_all(c, f->plan);
  fsdp_layout_free(f);
}

// Begins or goes on recording f's run in r, whose tables f was opened with (record_tables).
static inline void fsdp_record(Fsdp *f, Record *r) {
  void *const comms[COMMUNICATORS] = {NULL, f->nccl_gather, f->nccl_secondary, f->nccl_reduce, f->nccl_replicate,
                                      f->nccl_world};
  f->record = r;
  r->rank = f->mesh.rank;
  r->paused = false;
  r->blocks = 0;
  for (int i = 0; i < f->mesh.world; i++) record_block(r, i, 0, f->mesh.peer[i].window, comm_mpi_window_bytes(f, i));
  if (f->work != f->window)
    record_block(r, r->rank, 1, f->work + f->lay.work_on_host, f->lay.work_bytes - f->lay.work_on_host);
  for (int i = 0; i < f->plan->blocks; i++) {
    const MemoryBlock *b = &f->plan->block[i];
    void *p = NULL;
    if (b->pointer) memcpy(&p, b->pointer, sizeof p);
    record_block(r, r->rank, 2 + i, p, b->bytes + b->besides);
  }
  for (int i = 0; i < COMMUNICATORS; i++) {
    const RankGroup *g = i == OVER_SECONDARY ? &f->mesh.secondary
                         : i == OVER_REPLICATE ? &f->mesh.replicate : &f->mesh.shard;
    r->group[i] = RecordGroup{comms[i], g->size, g->me, g->rank};
    if (i == OVER_WORLD) r->group[i] = RecordGroup{comms[i], f->mesh.world, f->mesh.rank, NULL};
  }
}
