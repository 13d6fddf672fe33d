// open.h: the life of a trainer, from options to memory that is taken and given back. A part of train_gpt_fsdp.cu,
// which includes it below the model that it needs.
//
// A dry run of each pass, which computes nothing, records the live range of each buffer (fsdp/record.h); a placement
// gives the buffers their addresses before any memory is taken.
#pragma once
#include "base/newfile/newfile.h"
#include "run/run.h"

// Of a step's microbatches a dry run has at most this many. Later ones repeat the second and the third in turn, which
// start in different gradient slots where a microbatch has an odd number of reductions.
enum { DRY_MICROBATCHES = TIMED_MICROBATCHES - 1 };
// And of the batches of an evaluation, or the tokens of a sample, which all follow each other in one pass: the second
// finds what the one before has left gathered, and so do all later ones.
enum { DRY_BATCHES = 2 };

static void trainer_take_memory(Trainer *t) {
  fsdp_open(t->fsdp);
  store_open(t->run.store);
  trainer_carve_buffers(t);
  trainer_carve(t, (int)t->opt.test_batch_size, (int)t->model.T, PASS_EVAL);   // values are set through its workspace
  uint32_t *const marks = fsdp_device_sends(t->fsdp) ? t->host.marks : NULL;     // else the host takes part
  fsdp_hook(t->fsdp, FsdpHooks{marks, store_background, t->run.store});
  liveness_device(marks);
}
// Steps of the whole run: --max_steps or --epochs, whichever ends first if both are given. Before 0.6 --epochs was 1
// unless given and always counted; checkpoints of these programs record an --epochs of at least 1.
static int64_t trainer_steps_total(const Options *o, int64_t steps_per_epoch) {
  const int64_t by_epochs = steps_per_epoch * max64(1, o->epochs);
  if (!o->max_steps) return by_epochs;
  return o->epochs ? min64(by_epochs, o->max_steps) : o->max_steps;
}
// The figures of the model that reports print.
static ModelFigures trainer_figures(const Trainer *t) {
  const Model *m = &t->model;
  return ModelFigures{m->L, m->H, m->C, m->T, m->P, m->V, m->Vp, model_numel(m), model_flops_per_token(m)};
}
// Sets all of a trainer that follows from the options and the kind of device alone.
static void trainer_configure(Trainer *t, const Options *o, Device device, int threads) {
  memset(t, 0, sizeof *t);
  t->run.opt = &t->opt, t->run.ctx = &t->ctx, t->run.trainer = t;
  t->opt = *o;
  choose_for_device(&t->opt, device.ops);
  t->model = model_of(&t->opt);
  t->run.model = trainer_figures(t);
  if (device.ops->nccl) t->model.head_chunk_bytes = o->gpu_head_chunk_bytes, t->model.dlogits_apart = true;
  t->dtype = option_dtype(o, OPT_buffer_dtype);
  t->run.loss_scale = o->loss_scale > 0 ? (float)o->loss_scale : t->dtype == F16 ? 65536.0f : 1.0f;
  t->run.device = device;
  t->ctx.ops = device.ops;
  t->ctx.threads = threads;
  t->ctx.fast_fp32 = o->matmul_precision == OPT_matmul_precision_high;
  t->ctx.attention_mma = o->attention == OPT_attention_mma;
  t->ctx.sm_margin = device.sm_margin;
}
// The parameters of the model, with --freeze, --no_decay and --lr_scale applied. Returns a malloc'ed array; `error` has
// one line if one of these options is wrong.
static Param *trainer_params(const Trainer *t, int *params, Error *error) {
  Param *param = model_params(&t->model, params);
  param_groups(&t->opt, param, *params, error);
  return param;
}
static void trainer_free(Trainer *t) {
  free(t->acts.block);
}

// Declares the memory of the sharding layer and of the step's buffers.
static void trainer_declare(Trainer *t) {
  const StepBytes step = trainer_carve_buffers(t);
  fsdp_declare(t->fsdp, &t->run.plan);
  memory_declare(&t->run.plan, MEM_STEP, step.device, &t->step_arena);
  memory_declare(&t->run.plan, MEM_DATA, step.host, &t->host_arena);
}

// ---- dry runs
// Opens `dry` with the layout of t, for the same rank, with ops that compute nothing and at most `microbatches`
// microbatches per step. No memory is behind its addresses. watch: NULL, or told what it does.
static void trainer_dry_open(Trainer *dry, const Trainer *t, int64_t microbatches, DryWatch *watch) {
  memset(dry, 0, sizeof *dry);
  flight.dry = true;
  dry->opt = t->opt;
  dry->opt.grad_accum = min64(t->opt.grad_accum, microbatches);
  dry->model = t->model;
  dry->dtype = t->dtype;
  dry->head_rows = t->head_rows;
  dry->rows_max = t->rows_max;
  dry->ctx.workspace_bytes = t->ctx.workspace_bytes;
  dry->fsdp = fsdp_dry_layout(t->fsdp, &dry->ctx, dry->opt.grad_accum, trainer_exchange_bytes(dry), watch);
  trainer_declare(dry);
  fsdp_dry_open(dry->fsdp, &dry->run.plan);
  trainer_carve_buffers(dry);
  dry->acts.block = (BlockActs *)calloc((size_t)t->model.L, sizeof(BlockActs));
}
static void trainer_dry_close(Trainer *dry) {
  fsdp_dry_close(dry->fsdp);
  flight.dry = false;
  free(dry->acts.block);
}
// Runs a pass of `dry`.
static void trainer_dry_pass(Trainer *dry, PassKind kind) {
  const Options *o = &dry->opt;
  const int T = (int)(kind == PASS_SAMPLE ? dry->model.P : dry->model.T);
  const int B = (int)(kind == PASS_TRAIN ? o->batch_size : kind == PASS_EVAL ? o->test_batch_size : 1);
  trainer_declare_pass(dry, B, T, kind);
  if (kind == PASS_TRAIN) { trainer_enqueue_step(dry); return; }
  fsdp_step_begin(dry->fsdp, false);
  if (kind == PASS_SAMPLE) {
    trainer_clear_cache(dry, dry->model.P);
    trainer_enqueue_prompt(dry, 0, T);
    const int texts = (int)sample_sequences(dry);
    trainer_declare_pass(dry, texts, 1, kind, true);
    for (int i = 0; i < DRY_BATCHES; i++) trainer_enqueue_next(dry, texts);
  }
  for (int i = 0; kind == PASS_EVAL && i < DRY_BATCHES; i++) trainer_enqueue_eval(dry, B, T);
}
// Gives every buffer of every pass its memory.
static void trainer_place(Trainer *t) {
  static Trainer dry;
  trainer_dry_open(&dry, t, DRY_MICROBATCHES, NULL);
  for (int k = run_trains(&t->opt) ? PASS_TRAIN : PASS_EVAL; k < PASSES; k++) trainer_dry_pass(&dry, (PassKind)k);
  fsdp_place(t->fsdp, dry.fsdp);
  trainer_dry_close(&dry);
}

// ---- the plan
// Declares every byte this rank will take, from shapes and the placement.
static void trainer_plan(Trainer *t) {
  trainer_declare(t);
  memory_declare(&t->run.plan, MEM_DATA, t->order_bytes + t->corpus_bytes, NULL);
  trace_declare(&t->run, fsdp_placed(t->fsdp).calls);
  t->run.store = store_plan(t->fsdp, &t->run.plan, t->opt.save_async && run_trains(&t->opt), t->opt.merge);
}

// Lays out the parameters of `param` as that rank holds them, and places the buffers; takes no memory. t: configured.
static void trainer_layout(Trainer *t, FsdpRanks ranks, FsdpConfig cfg, Param *param, int params) {
  const Model *m = &t->model;
  cfg.host_ops = t->run.device.host_ops;
  cfg.small_bytes = trainer_exchange_bytes(t);
  cfg.comms_of_one = t->run.device.comms_of_one;
  Error error = {};
  t->fsdp = t->run.fsdp = fsdp_layout(ranks, &t->ctx, cfg, param, params, &error);
  if (ranks.comm != MPI_COMM_NULL) agree_no_error(ranks.comm, error.text, EXIT_USAGE);
  const bool before = m->shape.block.norm_place == NORM_BEFORE;
  const bool sums = attention_makes_sums(t->dtype, m->hs) && m->shape.block.position != POSITION_ROPE;
  for (int l = 0; l < m->L && t->ctx.ops->nccl; l++) {
    const int proj = block_param(m, l, PROJ_B), attn_proj = block_param(m, l, ATTN_PROJ_B);
    const int qkv = block_param(m, l, ATTN_B);
    if (before && ((proj >= 0 && !param[proj].frozen) || (attn_proj >= 0 && !param[attn_proj].frozen)))
      t->model.branch_sums = true;
    if (sums && qkv >= 0 && !param[qkv].frozen) t->model.qkv_sums = true;    // RoPE's backward changes dqkv
  }
  t->head_rows = head_rows(m, (run_trains(&t->opt) ? t->opt.batch_size : t->opt.test_batch_size) * m->T);
  t->acts.block = (BlockActs *)calloc((size_t)m->L, sizeof(BlockActs));
  const int64_t batches[] = {t->opt.batch_size, t->opt.test_batch_size, 1}, lengths[] = {m->T, m->T, m->P};
  for (int i = run_trains(&t->opt) ? PASS_TRAIN : PASS_EVAL; i < PASSES; i++) {
    t->rows_max = max64(t->rows_max, batches[i] * lengths[i]);
    const Dtype gradients = cfg.local ? F32 : cfg.wire_dtype;
    int64_t widest = max64(max64(model_qkv_rows(&m->shape), model_fc_rows(&m->shape)), max64(m->F, m->C));
    for (int k = 0; k < LORA_MATRICES; k++)      // a factor may be wider than a small model
      if (lora_width(m, k) > m->C) widest = max64(widest, (widest * lora_width(m, k) + m->C - 1) / m->C);
    const WorkspaceQuery q = {t->dtype, gradients, batches[i], lengths[i], m->C, m->H, m->Vp, t->head_rows, widest,
                              m->hs, m->KV, m->shape.block.qk_norm == QK_NORM_ALL ? m->H * m->hs : 0,
                              m->branch_sums ? 3 : 2};
    size_t bytes;
    t->ctx.ops->workspace_bytes(&t->ctx, q, &bytes);
    if (bytes > t->ctx.workspace_bytes) t->ctx.workspace_bytes = bytes;
  }
  t->ctx.workspace_bytes = fsdp_most(t->fsdp, t->ctx.workspace_bytes);         // decides where peers' slots are
  trainer_place(t);
}

// ---- what run/ asks of the trainer (TrainerTable in run/options/options.h)
// Plans the memory of rank `rank` of `world` ranks, `per_host` consecutive ranks per host, into t->run.plan, without
// MPI or data; none of these ranks need be running. device: says how much workspace its kernels need, with `threads`
// threads on a CPU. `o` is resolved for `world`; windows are taken to fit into the host's shared memory. Close with
// trainer_plan_close.
static void trainer_plan_as(Trainer *t, const Options *o, Device device, int rank, int world, int per_host,
                            int threads = 1) {
  trainer_configure(t, o, device, threads);
  device.ops->device_open(&t->ctx, device.index);
  int params;
  Error error = {};
  Param *param = trainer_params(t, &params, &error);
  CHECK(!error.text[0], "%s", error.text);                 // options_resolve has rejected wrong options
  const FsdpConfig cfg = sharding_config(o, first_backward_of(&t->model, param, params), comm_kind(o, world));
  trainer_layout(t, FsdpRanks{MPI_COMM_NULL, rank, world, per_host}, cfg, param, params);
  trainer_plan(t);
}
static void trainer_plan_close(Trainer *t) {
  trace_close(&t->run);
  store_close(t->run.store);
  t->ctx.ops->device_close(&t->ctx);
  fsdp_layout_free(t->fsdp);
  trainer_free(t);
  memset(t, 0, sizeof *t);
}
// Whether the plans of all ranks with these options fit: the plans of a host's ranks into its `host_bytes` bytes, those
// of a GPU's ranks into 90 % of its free memory. All ranks of comm call it; node: the ranks of this host.
static bool batch_fits(const Options *o, const Corpus *corpus, Device device, int threads, size_t host_bytes,
                       MPI_Comm comm, MPI_Comm node) {
  static Trainer t;
  const int rank = comm_rank(comm), world = comm_size(comm);
  int per_host, fits;
  MPI_Comm_size(node, &per_host);
  trainer_plan_as(&t, o, device, rank, world, per_host, threads);
  const bool gpu = device.ops->nccl;
  const Split *train = &corpus->split[SPLIT_TRAIN];
  Packing packing = {};
  if (t.model.documents && train->documents)
    packing_make(&packing, train, o->seq_len, o->too_long == OPT_too_long_drop);
  const Packing *packed = packing.split ? &packing : NULL;
  unsigned long long mine = memory_planned_total(&t.run.plan, gpu ? MEMORY_ON_HOST : MEMORY_ALL), host = 0;
  mine += corpus_block_bytes(corpus) + sampler_bytes(train, sampler_options(o), packed) + packing_bytes(&packing);
  packing_free(&packing);
  size_t device_free = 0, total = 0;
  const size_t to_take = gpu ? memory_planned_total(&t.run.plan, MEMORY_TO_TAKE) * (size_t)device.sharing : 0;
  t.ctx.ops->memory_left(&t.ctx, &device_free, &total);
  trainer_plan_close(&t);
  MPI_Allreduce(&mine, &host, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, node);
  fits = host <= host_bytes && to_take + (device.integrated ? host : 0) <= device_free / 10 * 9;
  MPI_Allreduce(MPI_IN_PLACE, &fits, 1, MPI_INT, MPI_MIN, comm);
  return fits;
}
// --batch_size auto: sets the largest batch_size that divides a step's sequences evenly and fits on all ranks, or 1 if
// none fits, and the options that follow from it. `o` is resolved for one sequence. All ranks call it; alike on each.
static void trainer_choose_batch(Options *o, const Corpus *corpus, Device device, int threads, size_t host_bytes,
                                 MPI_Comm comm) {
  int rank, world;
  Error error = {};
  MPI_Comm node;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &world);
  if (!ranks_per_host(comm))
    fail(&error, "--batch_size auto needs equally many ranks on each host: give a number");
  agree_no_error(comm, error.text, EXIT_USAGE);
  MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node);
  const int64_t each = (o->global_batch + world - 1) / world;
  bool more = false;                             // larger batches did not fit
  for (int64_t B = device.ops->nccl ? min64(each, CUDA_MAX_BATCH) : each; B >= 1; B--) {
    if (each % B || o->global_batch % B) continue;
    o->batch_size = B, o->grad_accum = each / B;
    if (!o->given[OPT_test_batch_size]) o->test_batch_size = B;
    if (B == 1 || batch_fits(o, corpus, device, threads, host_bytes, comm, node)) break;
    more = true;
  }
  MPI_Comm_free(&node);
  if (!rank)
    say("warning: --batch_size auto is %lld: a step's %lld sequences are %lld microbatch%s%s\n",
        (long long)o->batch_size, (long long)o->global_batch, (long long)(o->global_batch / o->batch_size),
        o->global_batch > o->batch_size ? "es" : "", more ? "; larger ones do not fit" : "");
}
// If no option says how large a batch is: a step has no more sequences than the data have, equally many per rank and at
// least one. Changes `o`, and in `asked` the options that are saved.
static void trainer_fit_batch(Options *o, Options *asked, const Corpus *corpus, int world) {
  const Split *train = &corpus->split[SPLIT_TRAIN];
  if (!run_trains(o) || train->files || o->fill_step) return;
  for (OptionId k : {OPT_batch_size, OPT_global_batch, OPT_grad_accum}) if (asked->given[k]) return;
  Packing packing = {};
  if (train->documents && o->pack == OPT_pack_whole)
    packing_make(&packing, train, o->seq_len, o->too_long == OPT_too_long_drop);
  const int64_t n = packing.split ? packing.rows : split_targets_numel(train) / o->seq_len;
  const int64_t most = max64(1, n / world) * world;
  packing_free(&packing);
  if (n < 1 || most >= o->global_batch) return;
  o->global_batch = most;
  o->batch_size = o->batch_auto ? 1 : most / world, o->grad_accum = most / world / o->batch_size;
  asked->global_batch = most, asked->batch_size = o->batch_size;
  asked->given[OPT_global_batch] = asked->given[OPT_batch_size] = true;
  const int rank = comm_rank(MPI_COMM_WORLD);
  if (!rank)
    say("warning: a step has %lld sequence%s: the data have %lld\n", (long long)most, most > 1 ? "s" : "",
        (long long)n);
}
static RunView *plan_open(const Options *o, const Device *device, int rank, int world, int per_host, int threads) {
  Trainer *t = (Trainer *)malloc(sizeof(Trainer));
  trainer_plan_as(t, o, *device, rank, world, per_host, threads);
  return &t->run;
}
static void plan_close(RunView *run) {
  Trainer *t = (Trainer *)run->trainer;
  trainer_plan_close(t);
  free(t);
}
static int64_t plan_step(const RunView *run, DryWatch *watch) {
  static Trainer dry;
  trainer_dry_open(&dry, (Trainer *)run->trainer, TIMED_MICROBATCHES, watch);
  trainer_dry_pass(&dry, PASS_TRAIN);
  const int64_t microbatches = dry.opt.grad_accum;
  trainer_dry_close(&dry);
  return microbatches;
}
// Writes where the buffers of a training step are in memory. Only one rank calls it, so its dry run leaves nothing in
// the flight record.
static void memory_map(const RunView *run, FILE *to) {
  static Trainer dry;
  static Flight before;
  before = flight;
  const Trainer *t = (Trainer *)run->trainer;
  trainer_dry_open(&dry, t, DRY_MICROBATCHES, NULL);           // buffers are where they were in trainer_place
  trainer_dry_pass(&dry, PASS_TRAIN);
  fsdp_memory_map(to, t->fsdp, dry.fsdp, &t->run.plan);
  trainer_dry_close(&dry);
  flight = before;
}

static const TrainerTable trainer_table = {&param_table, plan_open, plan_close, plan_step, memory_map};

// Fills the tables of cosines and sines by which RoPE rotates, if the model has RoPE.
static void trainer_fill_rope(Trainer *t) {
  for (const Tensor rope : {t->buffers.rope, t->buffers.rope_window}) {
    if (!rope.data) continue;
    float *table = (float *)malloc(sizeof(float) * (size_t)numel(rope));
    rope_table_fill(table, &t->model.shape.block, rope.shape[0], rope.shape[1],
                    rope.data == t->buffers.rope_window.data);
    t->ctx.ops->copy(&t->ctx, rope.data, table, sizeof(float) * (size_t)numel(rope));
    t->ctx.ops->sync(&t->ctx);
    free(table);
  }
}
// Rejects a split none of whose conversations has a token to train on within --seq_len. If it is a split for validation
// that --val_data does not name, training continues without evaluations instead, with a warning.
static void trainer_check_fits(Trainer *t, const Corpus *corpus, Error *error) {
  const Options *o = &t->opt;
  for (int i = 0; i < SPLIT_COUNT; i++) {
    const Packing *p = &t->run.packing[i];
    const bool held = i != SPLIT_TRAIN && !(i == SPLIT_VALID && o->val_data[0]) && run_trains(o);
    char longer[128];
    if (!p->split || p->trained || held) continue;
    snprintf(longer, sizeof longer, o->seq_len < o->n_positions ? "raise it, to --n_positions %lld at most" :
             "--n_positions %lld lets it be no longer", (long long)o->n_positions);
    fail(error, "%s: no conversation %s has a token to train on within --seq_len %lld: %s%s", i == SPLIT_VALID &&
         o->val_data[0] ? o->val_data : corpus->source, i == SPLIT_TRAIN ? "to train on" : i == SPLIT_VALID ? "for "
         "validation" : "of the test split", (long long)o->seq_len, longer, p->dropped && !p->reference ? ", or "
         "--too_long cut" : "");
    return;
  }
  const bool trains = run_trains(o), valid = trainer_evaluates(t, SPLIT_VALID);
  const int rank = comm_rank(MPI_COMM_WORLD);
  if (valid || o->sample_only || (trains && o->eval_every < 0)) return;
  if (!trains && trainer_evaluates(t, SPLIT_TEST)) return;
  if (!trains)
    fail(error, "%s: nothing is there for validation: name it by --val_data", corpus->source);
  else if (!rank)
    say("warning: nothing is evaluated: %s; --val_data names what is\n", corpus->split[SPLIT_VALID].tokens_numel
        ? "no conversation that is held out for validation has a token to train on within --seq_len"
        : "the data have too few records to hold some out for validation");
  t->opt.eval_every = -1;
}
// Opens t: plans, checks and takes all memory, and initialises the weights. `o` is resolved; the corpus stays the
// caller's. All ranks of comm call it; every failure ends all ranks with one line.
static void trainer_open(Trainer *t, const Options *o, const Corpus *corpus, MPI_Comm comm, Device device,
                         int threads) {
  trainer_configure(t, o, device, threads);
  const Ops *ops = device.ops;
  t->run.corpus = corpus;
  t->model.documents = (corpus->split[SPLIT_TRAIN].documents && o->pack == OPT_pack_whole) || t->model.preference.loss;
  ops->device_open(&t->ctx, device.index);
  const SamplerOptions so = sampler_options(o);
  for (int i = 0; i < SPLIT_COUNT && t->model.documents; i++)
    if (corpus->split[i].documents)
      packing_make(&t->run.packing[i], &corpus->split[i], o->seq_len, o->too_long == OPT_too_long_drop);
  Error error = {};
  trainer_check_fits(t, corpus, &error);
  agree_no_error(comm, error.text, EXIT_USAGE);
  const Packing *packing = t->run.packing[SPLIT_TRAIN].split ? &t->run.packing[SPLIT_TRAIN] : NULL;
  t->order_bytes = !run_trains(o) ? 0 : sampler_bytes(&corpus->split[SPLIT_TRAIN], so, packing);
  t->order = malloc(t->order_bytes + 1);
  Error e;
  if (run_trains(o) && !sampler_init(&t->sampler, &corpus->split[SPLIT_TRAIN], so, t->order, &e, packing))
    agree_no_error(comm, e.text, e.code);
  t->corpus_bytes = corpus_block_bytes(corpus);
  for (const Split &s : corpus->split) t->corpus_bytes += sizeof(TokenFile) * (size_t)s.files;
  for (const Packing &p : t->run.packing) t->order_bytes += packing_bytes(&p);
  t->run.steps_per_epoch = !run_trains(o) ? 0 : t->sampler.steps_per_epoch;
  t->run.steps_total = trainer_steps_total(o, t->run.steps_per_epoch);
  int params, world;
  Param *param = trainer_params(t, &params, &error);
  agree_no_error(comm, error.text, EXIT_USAGE);
  MPI_Comm_size(comm, &world);
  const FsdpConfig cfg = sharding_config(o, first_backward_of(&t->model, param, params), comm_kind(o, world));
  trainer_layout(t, FsdpRanks{comm, 0, 0, 0}, cfg, param, params);
  if (!fsdp_shared_slots_fit(t->fsdp)) trainer_place(t);
  trainer_plan(t);
  size_t opened, total;
  ops->memory_opened(&t->ctx, &opened);
  memory_measure(&t->run.plan, MEM_CUBLASLT, opened, 0);
  agree_on_memory(&t->run);
  ops->memory_left(&t->ctx, &t->run.device_free_bytes, &total);
  t->run.device_free_bytes += opened;
  fsdp_connect(t->fsdp, &t->run.plan);
  if (ops->nccl) agree_on_memory(&t->run);
  trainer_take_memory(t);
  t->run.state = t->host.state, t->run.state_on_device = t->buffers.state;
  *t->host.state = StepState{};
  t->host.state->loss_scale = t->run.loss_scale;
  t->host.state->beta1_power = t->host.state->beta2_power = 1;
  ops->copy(&t->ctx, t->buffers.state, t->host.state, sizeof(StepState));
  trainer_fill_rope(t);
  fsdp_init_params(t->fsdp, (uint64_t)o->seed);
}
static void trainer_close(Trainer *t) {
  Ctx *c = &t->ctx;
  c->ops->sync(c);
  if (t->graph) c->ops->graph_close(c, t->graph);
  trace_close(&t->run);
  liveness_device(NULL);
  free((void *)t->run.algorithms);
  free(t->order);                                // of the training sequences (sampler)
  for (Packing &p : t->run.packing) packing_free(&p);
  store_close(t->run.store);
  fsdp_close(t->fsdp);
  trainer_free(t);
  c->ops->device_close(c);
  memset(t, 0, sizeof *t);
}

// Microbatches whose results are dropped: every matrix multiply of a step has its plan afterwards. All ranks call it.
static void trainer_plan_products(Trainer *t) {
  Ctx *c = &t->ctx;
  const int B = (int)t->opt.batch_size, T = (int)t->model.T;
  trainer_carve(t, B, T, PASS_TRAIN);
  memset(t->host.inputs, 0, sizeof(int32_t) * (size_t)(B * T));
  memset(t->host.targets, 0, sizeof(int32_t) * (size_t)(B * T));
  *t->host.input = StepInput{};
  trainer_step_begin(t);
  trainer_load_batch(t, 0, B, T);
  gpt_forward_backward(t, Microbatch{0, PASS_TRAIN}, 0);
  if (fsdp_config(t->fsdp)->local && t->opt.grad_accum > 1)                // accumulating GEMMs have their own plans
    gpt_forward_backward(t, Microbatch{0, PASS_TRAIN}, (int)t->opt.grad_accum - 1);
  fsdp_reduce_wait(t->fsdp);
  fsdp_returns_wait(t->fsdp);                   // for reduced gradients that the last replica broadcasts (HSDP)
  c->ops->sync(c);
  fsdp_step_end(t->fsdp);
  fsdp_set_traffic(t->fsdp, Traffic{});
}
// The algorithms that --plans or the resumed checkpoint (saved; NULL: none) names, in `text`; "" if neither does. On
// rank 0, the error too.
enum { ALGORITHMS_BYTES = 1 << 18 };
static void trainer_named_algorithms(const Trainer *t, const char *saved, char *text, Error *error) {
  const Options *o = &t->opt;
  int64_t length = 0;
  if (o->given[OPT_tune] && o->tune == OPT_tune_off) saved = NULL;
  if (saved && !t->ctx.ops->nccl)
    fail(error, "the checkpoint's run has GPU algorithms of --tune any, and this run computes on the CPU: "
             "continue with --tune off");
  else if (saved && o->tune == OPT_tune_on)
    fail(error, "the checkpoint's run has algorithms of --tune any: leave out --tune on, or give "
             "--tune off");
  if (saved) snprintf(text, ALGORITHMS_BYTES, "%s", saved);
  if (error->text[0] || !o->plans[0]) return;
  char *file = file_get(o->plans, ALGORITHMS_BYTES - 1, &length);
  if (file && saved && strcmp(file, saved))
    fail(error, "--plans %.300s has other algorithms than the checkpoint, which its run continues with: "
             "leave out --plans", o->plans);
  else if (file) snprintf(text, ALGORITHMS_BYTES, "%s", file);
  else if (!saved && o->tune != OPT_tune_any)
    fail(error, "--plans %.300s cannot be read: %s; with --tune any it is written", o->plans,
             file_get_fault());
  free(file);
}
// Chooses the matrix multiplies' algorithms. Those that --plans or the resumed checkpoint names; with --tune the
// fastest of equal bits, each rank for its own GPU, or the fastest that rank 0 finds. What is named or is rank 0's is
// the run's from then on (RunView.algorithms). All ranks call it.
static void trainer_choose_algorithms(Trainer *t, const char *saved) {
  Ctx *c = &t->ctx;
  const int rank = fsdp_rank(t->fsdp);
  const MPI_Comm comm = fsdp_comm(t->fsdp);
  Error error = {}, why = {};
  char *text = (char *)calloc(1, ALGORITHMS_BYTES);
  CHECK(text, "no memory for %d bytes of algorithms", (int)ALGORITHMS_BYTES);
  if (!rank) trainer_named_algorithms(t, saved, text, &error);
  agree_no_error(comm, error.text, EXIT_MISSING);
  MPI_Bcast(text, ALGORITHMS_BYTES, MPI_CHAR, 0, comm);
  const bool named = text[0];
  if (named) c->ops->plans_use(c, text, &why);
  for (int pass = 0; named && pass < 2; pass++) {
    if (why.text[0])
      fail(&error, "%s: the algorithms do not fit this run: %s", t->opt.plans[0] ? "--plans" :
           "--resume (--tune off continues with others)", why.text);
    agree_no_error(comm, error.text, EXIT_MISSING);
    if (!pass) trainer_plan_products(t), c->ops->plans_use(c, text, &why);
  }
  if (!named && t->opt.tune != OPT_tune_off) {
    const bool any = t->opt.tune == OPT_tune_any;
    trainer_plan_products(t);
    if (!any || !rank) c->ops->plans_tune(c, any, NULL, 0);
    if (any && !rank) c->ops->plans_algorithms(c, text, ALGORITHMS_BYTES);
    MPI_Bcast(text, ALGORITHMS_BYTES, MPI_CHAR, 0, comm);
    if (any && rank) c->ops->plans_use(c, text, &why);
    if (why.text[0]) fail(&error, "--tune any: rank 0's algorithms: %s", why.text);
    FILE *f = any && !rank && t->opt.plans[0] ? file_make_stream(t->opt.plans) : NULL;
    if (any && !rank && t->opt.plans[0] && (!f || fputs(text, f) < 0 || fclose(f)))
      fail(&error, "--plans %.300s cannot be written: %s", t->opt.plans, strerror(errno));
    agree_no_error(comm, error.text, EXIT_MISSING);
  }
  if (text[0]) t->run.algorithms = text;
  else free(text);
}
