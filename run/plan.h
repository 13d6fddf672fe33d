// plan.h: where a trainer's memory comes from: a dry run of its passes, the places that their buffers get, the plan of
// every byte, and whether host and device have room for it. train_gpt_fsdp.cu includes it.
#pragma once
#include "memory_map.h"

// Declares the memory of the sharding layer and of the step's buffers.
static void trainer_declare(Trainer *t) {
  const StepBytes step = trainer_carve_buffers(t);
  fsdp_declare(&t->fsdp, &t->plan);
  memory_declare(&t->plan, MEM_STEP, step.device, &t->step_arena);
  memory_declare(&t->plan, MEM_DATA, step.host, &t->host_arena);
}

// ---- dry runs
// Of a step's microbatches a dry run has at most this many. Later ones repeat the second and the third in turn, which
// begin in different gradient slots where a microbatch has an odd number of reductions.
enum { DRY_MICROBATCHES = 3 };
// A trainer of the same rank over the planning table: all that t has laid out, and nothing behind its addresses.
static void trainer_dry_open(Trainer *dry, const Trainer *t, Record *r, const Ops *table) {
  const Fsdp *f = &t->fsdp;
  memset(dry, 0, sizeof *dry);
  dry->opt = t->opt;
  dry->opt.grad_accum = min64(t->opt.grad_accum, DRY_MICROBATCHES);
  dry->model = t->model;
  dry->dtype = t->dtype;
  dry->head_rows = t->head_rows;
  dry->rows_max = max64(t->model.P, max64(t->opt.batch_size, t->opt.test_batch_size) * t->model.T);
  dry->ctx = Ctx{};
  dry->ctx.ops = table;
  dry->ctx.device = r;
  FsdpConfig cfg = f->cfg;
  cfg.host_ops = table;
  cfg.microbatches = dry->opt.grad_accum;
  cfg.small_bytes = trainer_exchange_bytes(dry);
  cfg.slots_bytes = 0;                           // as many as slots take alone
  Mesh mesh;
  mesh_copy(&mesh, &f->mesh);
  Param *param = (Param *)malloc(sizeof(Param) * (size_t)f->lay.params);
  memcpy(param, f->lay.param, sizeof(Param) * (size_t)f->lay.params);
  fsdp_layout(&dry->fsdp, &dry->ctx, mesh, cfg, param, f->lay.params);
  trainer_declare(dry);
  fsdp_dry_open(&dry->fsdp, &dry->plan, r);
  trainer_carve_buffers(dry);
  dry->acts.block = (BlockActs *)calloc((size_t)t->model.L, sizeof(BlockActs));
}
static void trainer_dry_close(Trainer *dry) {
  fsdp_close(&dry->fsdp);
  free(dry->acts.block);
}
// Runs a pass of `dry` and leaves its record in r: p receives what was declared.
static void trainer_dry_pass(Trainer *dry, Pass *p, Record *r, PassKind kind) {
  const Options *o = &dry->opt;
  const int T = (int)(kind == PASS_SAMPLE ? dry->model.P : dry->model.T);
  const int B = (int)(kind == PASS_TRAIN ? o->batch_size : kind == PASS_EVAL ? o->test_batch_size : 1);
  Declare d = {p, r, {}, 0};
  r->count = 0;
  acts_declare(&dry->acts, &d, &dry->model, dry->dtype, B, T, pass_head_rows(dry, kind, B, T), kind == PASS_TRAIN);
  dry->carved = kind;
  if (kind == PASS_TRAIN) { trainer_enqueue_step(dry); return; }
  fsdp_step_begin(&dry->fsdp, false);
  if (kind == PASS_EVAL) trainer_enqueue_eval(dry, B, T);
  else trainer_enqueue_sample(dry, T);
}
// Gives every buffer of every pass its memory: t->placement, t->pass.
static void trainer_place(Trainer *t) {
  static Trainer dry;
  Record r;
  const Ops table = plan_table(t->ctx.ops->nccl);
  t->placement = Placement{};
  for (Pass &p : t->pass) pass_free(&p);
  record_open(&r);
  trainer_dry_open(&dry, t, &r, &table);
  fsdp_pools(&dry.fsdp, &t->placement);
  for (int k = trainer_trains(&t->opt) ? PASS_TRAIN : PASS_EVAL; k < PASSES; k++) {
    trainer_dry_pass(&dry, &t->pass[k], &r, (PassKind)k);
    CHECK(!r.error[0], "dry run: %s", r.error);
    const int64_t dry_steps = dry.opt.grad_accum;
    if (k == PASS_TRAIN) t->step_calls = (int64_t)r.calls * ((t->opt.grad_accum + dry_steps - 1) / dry_steps);
    pass_place(&t->placement, &t->pass[k], &r);
    t->placement.pool[POOL_SHARDS].open = false; // what the other passes write there would have to be zeroed
  }
  trainer_dry_close(&dry);
  record_close(&r);
  fsdp_take_placement(&t->fsdp, &t->placement, &t->pass[PASS_TRAIN], (int)dry.opt.grad_accum);
}

// The places of a training step's buffers, once more, as a member of a JSON object.
static void trainer_map_write(FILE *f, const Trainer *t) {
  static Trainer dry;
  Record r;
  const Ops table = plan_table(t->ctx.ops->nccl);
  Placement placement = {};
  Pass pass = {};
  record_open(&r);
  trainer_dry_open(&dry, t, &r, &table);
  fsdp_pools(&dry.fsdp, &placement);
  trainer_dry_pass(&dry, &pass, &r, PASS_TRAIN);
  pass_place(&placement, &pass, &r);
  memory_map_write(f, &t->plan, &placement, &pass, &r, t->fsdp.lay.stages);
  pass_free(&pass);
  trainer_dry_close(&dry);
  record_close(&r);
}

// ---- the plan
// Declares every byte this rank will take, from shapes and the placement.
static void trainer_plan(Trainer *t) {
  const Model *m = &t->model;
  const int64_t batches[] = {t->opt.batch_size, t->opt.test_batch_size, 1}, lengths[] = {m->T, m->T, m->P};
  for (int i = trainer_trains(&t->opt) ? PASS_TRAIN : PASS_EVAL; i < PASSES; i++) {
    t->rows_max = max64(t->rows_max, batches[i] * lengths[i]);
    const Dtype gradients = t->fsdp.cfg.local ? F32 : t->fsdp.cfg.wire_dtype;
    WorkspaceQuery q = {t->dtype, gradients, batches[i], lengths[i], m->C, m->H, m->Vp, 0};
    q.head_rows = t->head_rows;
    size_t w;
    t->ctx.ops->workspace_bytes(&t->ctx, q, &w);
    if (w > t->ctx.workspace_bytes) t->ctx.workspace_bytes = w;
  }
  trainer_declare(t);
  memory_declare(&t->plan, MEM_ACTIVATIONS, t->placement.pool[POOL_ACTS].bytes, &t->arena);
  memory_declare(&t->plan, MEM_WORKSPACE, t->ctx.workspace_bytes, &t->ctx.workspace);
  memory_declare(&t->plan, MEM_DATA, t->order_bytes + t->corpus_bytes, NULL);
  trace_declare(&t->trace, trainer_trains(&t->opt) ? t->opt.trace : "", t->opt.trace_steps, &t->plan, t->step_calls,
                t->fsdp.lay.stages, t->fsdp.mesh.world);
  const size_t saving = store_plan_bytes(&t->fsdp, t->opt.save_async && trainer_trains(&t->opt));
  memory_declare(&t->plan, MEM_CHECKPOINT, saving, &t->store.memory);
}

// Lays out what `param` describes as rank mesh.rank has it, and places its buffers; takes no memory. t: configured.
static void trainer_layout(Trainer *t, Mesh mesh, FsdpConfig cfg, Param *param, int params) {
  cfg.host_ops = t->device.host_ops;
  cfg.small_bytes = trainer_exchange_bytes(t);
  cfg.comms_of_one = t->device.comms_of_one;
  cfg.share_slots = true;
  fsdp_layout(&t->fsdp, &t->ctx, mesh, cfg, param, params);
  const int64_t B = trainer_trains(&t->opt) ? t->opt.batch_size : t->opt.test_batch_size;
  t->head_rows = head_rows(&t->model, B * t->model.T);
  t->acts.block = (BlockActs *)calloc((size_t)t->model.L, sizeof(BlockActs));
  trainer_place(t);
}
// Plans the memory of rank `rank` of `world` ranks, `per_host` consecutive ones a host, none of which need be running,
// into t->plan: without MPI or data. `device` tells what workspace its kernels need, with `threads` on a CPU. `o` is
// resolved for `world`; windows are taken to fit into the host's shared memory. Close with trainer_plan_close.
static inline void trainer_plan_as(Trainer *t, const Options *o, Device device, int rank, int world, int per_host,
                                   int threads = 1) {
  trainer_configure(t, o, device, threads);
  device.ops->device_open(&t->ctx, device.index);
  int params;
  char error[1536] = "";
  Param *param = trainer_params(t, &params, error, sizeof error);
  CHECK(!error[0], "%s", error);                 // options_resolve has refused it
  const FsdpConfig cfg = sharding_config(o, &t->model, param, params, comm_kind(o, world));
  Mesh mesh;
  mesh_pretend(&mesh, cfg.mesh, cfg.windows && cfg.comm == COMM_MPI, rank, world, per_host);
  trainer_layout(t, mesh, cfg, param, params);
  trainer_plan(t);
}
static inline void trainer_plan_close(Trainer *t) {
  t->ctx.ops->device_close(&t->ctx);
  fsdp_layout_free(&t->fsdp);
  trainer_free(t);
  memset(t, 0, sizeof *t);
}
#include "plan_report.h"
// Refuses a plan that this host or its devices cannot hold, before anything is allocated: first from the shapes alone,
// and again after libraries have been opened and have allocated what they need. It compares with what is free at that
// time, whoever else uses the device. Collective.
static void trainer_check_memory(Trainer *t) {
  const bool gpu = t->ctx.ops->nccl;
  const int sharing = t->device.sharing;
  unsigned long long mine = memory_planned_total(&t->plan, gpu ? MEMORY_ON_HOST : MEMORY_ALL), host = 0;
  MPI_Allreduce(&mine, &host, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, t->fsdp.mesh.node);
  size_t available = host_available_bytes(), device_free = 0, device_total = 0;
  const size_t libraries = memory_planned_use(&t->plan, MEMORY_LIBRARIES) * (size_t)sharing;
  const size_t to_take = gpu ? memory_planned_total(&t->plan, MEMORY_TO_TAKE) * (size_t)sharing : 0;
  t->ctx.ops->memory_left(&t->ctx, &device_free, &device_total);
  char error[512] = "", took[96] = "";
  if (host > available)
    snprintf(error, sizeof error, "the memory plan of this host's %d rank%s is %.2f GiB, but %.2f GiB are available: "
             "lower --batch_size or --seq_len, choose --recompute block, --strategy full_shard or a smaller --model, "
             "or use more hosts", t->fsdp.mesh.node_world,
             t->fsdp.mesh.node_world > 1 ? "s" : "", (double)host / 0x1p30, (double)available / 0x1p30);
  if (libraries)
    snprintf(took, sizeof took, " besides %.3f GiB taken by %s", (double)libraries / 0x1p30,
             t->plan.planned_bytes[MEM_NCCL] ? "NCCL and cuBLASLt" : "CUDA and cuBLASLt");
  if (to_take > device_free)
    snprintf(error, sizeof error, "the memory plan of this GPU's %d rank%s is %.2f GiB%s, but %.2f of %.2f GiB are "
             "free: lower --batch_size or --seq_len, choose --recompute block, --strategy full_shard, --offload or a "
             "smaller --model, or use more GPUs", sharing,
             sharing > 1 ? "s" : "", (double)to_take / 0x1p30, took, (double)device_free / 0x1p30,
             (double)device_total / 0x1p30);
  agree_no_error(t->fsdp.mesh.comm, error, EXIT_MISSING);
}
