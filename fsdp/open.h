// open.h: the sharding layer's life, once fsdp_layout and fsdp_declare have described it: connected, opened (all memory
// of the plan is taken), recorded if a test asks for it, closed. For dry runs see dry_run.h.
#pragma once
#include "update.h"

// Opens or closes all events.
static inline void fsdp_each_event(Fsdp *f, void (*with)(Ctx *c, StepEvent *e, const char *name)) {
  Ctx *c = f->ctx;
  StepEvents *e = &f->events;
  for (int k = 0; k <= f->cfg.gather_slots; k++) {
    with(c, &f->gather.slot[k].arrived, "stage arrived");
    with(c, &f->gather.slot[k].released, "stage released");
  }
  for (int s = 0; s < 2 + f->lay.stages; s++)
    with(c, &e->grads_free[s], s < 2 ? "block slot free" : s == 2 ? "root slot free" : "gradient free");
  with(c, &e->began, "step started");
  with(c, &e->grads_ready, "gradients ready");
  with(c, &e->reduced, "reduced");
  with(c, &e->exchange_ready, "exchange ready");
  with(c, &e->exchanged, "exchanged");
  with(c, &e->mirror_filled, "mirror filled");
  with(c, &e->drained, "drained");
  for (StepEvent &p : f->shards.published) with(c, &p, "parameters published");
  with(c, &f->muon.ready, "updates ready");
  for (StepEvent &w : f->muon.whole) with(c, &w, "matrix whole");
  for (StepEvent &b : f->muon.back) with(c, &b, "updates back");
}

void fsdp_connect(Fsdp *f, MemoryPlan *plan) {
  static const Comm *const comms[] = {&comm_self, &comm_mpi, &comm_nccl};      // by CommKind
  f->plan = plan;
  f->comm = comms[f->cfg.comm];
  f->comm->connect(f);
}
void fsdp_open(Fsdp *f) {
  const int K = f->cfg.gather_slots;
  f->meanwhile = fsdp_poll;
  f->comm->open(f);
  memory_take_all(f->ctx, f->plan);
  if (f->mem.host_params) f->mem.params_home = WorkMemory{f->mem.host_params, f->lay.part[WORK_PARAMS].at};
  fsdp_open_pool(f);
  for (int k = 0; k <= K; k++)
    f->gather.slot[k].landing = k == K ? f->mem.root_landing
                                : f->mem.block_landings ? f->mem.block_landings + (size_t)k * f->lay.block_slot_bytes
                                                        : NULL;
  const WorkPart *sums = &f->lay.part[WORK_SUMS];
  if (sums->bytes) f->shards.grads = (float *)(sums->on_host ? f->mem.window + sums->at : fsdp_work(f, sums->at));
  f->shards.amax = f->shards.scale + f->lay.scales;
  f->shards.amax_all = f->shards.amax + f->lay.scales;
  f->host_ctx.ops = f->cfg.host_ops;
  f->host_ctx.threads = f->ctx->threads;
  fsdp_each_event(f, step_event_open);
  memory_check_taken(f->plan);
}

static inline void passes_free(Passes *p) {
  for (Pass &k : p->pass) pass_free(&k);
  free(p);
}
void fsdp_layout_free(Fsdp *f) {
  const FsdpLayout *l = &f->lay;
  for (int u = 0; u < l->units; u++) free(l->unit[u].piece);
  fsdp_state_free(f);
  void *const owned[] = {l->unit, l->param, l->place, l->stage, l->owned.matrix, l->owned.round_first, l->hosts.part,
                         l->hosts.adder};
  for (void *p : owned) free(p);
  mesh_close(&f->mesh);
  passes_free(f->passes);
  free(f);
}
// Gives back all memory that the plan had.
static inline void fsdp_give_back(Fsdp *f) {
  fsdp_each_event(f, step_event_close);
  f->comm->close(f);
  memory_give_back_all(f->ctx, f->plan);
}
void fsdp_close(Fsdp *f) {
  fsdp_give_back(f);
  fsdp_layout_free(f);
}
