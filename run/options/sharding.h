// sharding.h: from the options of the groups "sharding" and "precision" and --freeze to FsdpConfig. Modes have their
// names from PyTorch FSDP and DeepSpeed; what cannot work or would have no effect is rejected by name, before anything
// is allocated. What the device must support is checked in run/agree.h.
#pragma once
#include "param_groups.h"
#include "program.h"
#include "fsdp/plan.h"

static const char *const recompute_names[RECOMPUTE_LEVELS] = {"none", "gelu", "norm", "mlp", "block"};

Dtype option_dtype(const Options *o, OptionId id) {
  const char *word = option_word(o, id);
  return !strcmp(word, "bf16") ? BF16 : !strcmp(word, "fp16") ? F16 : F32;
}

// The strategy by its name in torch.distributed.fsdp.ShardingStrategy, also for DeepSpeed's names (zero2, zero3).
static Choice_strategy strategy_of(const Options *o) {
  switch (o->strategy) {
    case OPT_strategy_zero3: return OPT_strategy_full_shard;
    case OPT_strategy_zero2: return OPT_strategy_shard_grad_op;
    case OPT_strategy_ddp: return OPT_strategy_no_shard;
    default: return o->strategy;
  }
}
const char *strategy_name(const Options *o) {
  return choice_word(&option_specs[OPT_strategy], strategy_of(o));
}

// Reads the decimal digits at *text and moves *text past them. False if there are none, or the number is above `most`.
static bool digits_parse(const char **text, int64_t most, int64_t *n) {
  const char *c = *text;
  for (*n = 0; *c >= '0' && *c <= '9' && *n <= most; c++) *n = 10 * *n + (*c - '0');
  const bool any = c > *text;
  *text = c;
  return any && *n <= most;
}
bool mesh_parse(const char *text, int *replicas, int *shards) {
  int64_t R, S;
  if (!digits_parse(&text, INT32_MAX, &R) || *text++ != 'x' || !digits_parse(&text, INT32_MAX, &S)) return false;
  if (*text || !R || !S) return false;
  *replicas = (int)R, *shards = (int)S;
  return true;
}
// Reads "min_params:N", N as 100000 or 1e5. False: the text has another form.
static bool wrap_parse(const char *text, int64_t *least) {
  static const char name[] = "min_params:";
  if (strncmp(text, name, sizeof name - 1)) return false;
  text += sizeof name - 1;
  char *end;
  if (text[strspn(text, "0123456789.eE+")]) return false;        // strtod takes more: 0x10
  const double n = *text >= '0' && *text <= '9' ? strtod(text, &end) : 0;
  if (n < 1 || n > 1e15 || n != floor(n) || *end) return false;
  *least = (int64_t)n;
  return true;
}
// --reshard_after_forward as a number: 0 off, 1 on, else the ranks that keep a block together; -1: not one of these.
static int reshard_of(const Options *o) {
  const char *text = o->reshard_after_forward;
  int64_t n;
  if (!strcmp(text, "on") || !strcmp(text, "auto")) return 1;
  if (!strcmp(text, "off")) return 0;
  return digits_parse(&text, INT32_MAX, &n) && !*text && n > 1 ? (int)n : -1;
}
void choose_for_device(Options *o, const Ops *ops) {
  o->recompute_auto = !strcmp(o->recompute, "auto");
  if (o->recompute_auto) strcpy(o->recompute, recompute_names[ops->nccl ? RECOMPUTE_NONE : RECOMPUTE_NORM]);
  const bool half = ops->nccl && o->buffer_dtype == OPT_buffer_dtype_bf16 && o->loss == PREFERENCE_NONE;
  if (o->logits_dtype == OPT_logits_dtype_auto) o->logits_dtype = half ? OPT_logits_dtype_bf16 : OPT_logits_dtype_fp32;
}
bool recompute_parse(const Options *o, Recompute *level, Error *error) {
  int64_t at = 0, count;
  for (const char *c = strcmp(o->recompute, "auto") ? o->recompute : recompute_names[RECOMPUTE_NONE], *end; ;
       c = end + 1) {
    const size_t n = strcspn(c, ":,");
    int k = 0;
    while (k < RECOMPUTE_LEVELS && (strlen(recompute_names[k]) != n || strncmp(recompute_names[k], c, n))) k++;
    REJECT(k == RECOMPUTE_LEVELS, "--recompute '%s' is not known: choose one of auto|none|gelu|norm|mlp|block, or from "
           "the first block on LEVEL:COUNT,... like block:5,mlp", o->recompute);
    count = o->n_layer - at;
    end = c + n;
    if (*end == ':') {
      end++;
      REJECT(!digits_parse(&end, LAYERS_MAX, &count) || !count || (*end && *end != ','), "--recompute '%s': '%.*s:' "
             "needs a number of blocks, at least 1", o->recompute, (int)n, c);
    } else REJECT(*end, "--recompute '%s': only the last level may omit its number of blocks, not '%.*s'", o->recompute,
                  (int)n, c);
    REJECT(at + count > o->n_layer, "--recompute '%s' names more blocks than the %lld there are", o->recompute,
           (long long)o->n_layer);
    for (; count; count--) level[at++] = (Recompute)k;
    if (!*end) break;
  }
  for (; at < o->n_layer; at++) level[at] = RECOMPUTE_NONE;
  return true;
}
// Checks the options of the device and the transport (--comm).
static bool sharding_resolve_device(const Options *o, int world, Error *error) {
  REJECT(o->comm == OPT_comm_self && world > 1, "--comm self is for one rank, there are %d", world);
  REJECT(o->comm == OPT_comm_nccl && o->device != OPT_device_cuda, "--comm nccl needs --device cuda");
  REJECT(o->device == OPT_device_cuda && !&ops_cuda && o->plan == OPT_plan_off, "--device cuda: this build has no CUDA "
         "kernels (%s): mend that and make again, or use --device cpu", build_no_cuda);
  const bool cpu = o->device == OPT_device_cpu;
  const bool by_nccl = o->comm == OPT_comm_nccl || (o->comm == OPT_comm_auto && !cpu);
  REJECT(o->reduce == OPT_reduce_native && !by_nccl, "--reduce native needs --comm nccl");
  REJECT(cpu && o->graph == OPT_graph_on, "--graph on needs --device cuda: a CPU has nothing to capture");
  REJECT(o->comm == OPT_comm_mpi && o->graph == OPT_graph_on, "--graph on does not go with --comm mpi: the host waits "
         "for copies inside the step, which cannot be captured");
  return true;
}
// Completes mesh and strategy, one from the other. ranks_per_host: 0 if hosts differ; it only completes hybrid_shard.
static bool sharding_resolve_mesh(Options *o, int world, int ranks_per_host, Error *error) {
  int R = 1, S = world;
  const bool asked = o->mesh[0] || o->given[OPT_mesh];
  REJECT(asked && !mesh_parse(o->mesh, &R, &S), "--mesh '%s' is not RxS: R replicas of S shards, like 2x4", o->mesh);
  REJECT(asked && R * (int64_t)S != world, "--mesh %s has %lld ranks, there %s %d", o->mesh, (long long)R * S, world >
         1 ? "are" : "is", world);
  if (asked && !o->given[OPT_strategy])
    o->strategy = R == 1 ? OPT_strategy_full_shard : S == 1 ? OPT_strategy_no_shard : OPT_strategy_hybrid_shard;
  const Choice_strategy strategy = strategy_of(o);
  const bool hybrid = strategy == OPT_strategy_hybrid_shard, none = strategy == OPT_strategy_no_shard;
  const char *name = option_word(o, OPT_strategy);
  REJECT(asked && none && S != 1, "--strategy %s shards nothing: its mesh is %dx1, not %s", name, world, o->mesh);
  REJECT(asked && !hybrid && !none && R != 1, "--strategy %s has one replica: its mesh is 1x%d, not %s; replicas of "
         "shards need --strategy hybrid_shard%s", name, world, o->mesh, strategy == OPT_strategy_full_shard ? "" : ", "
         "with --reshard_after_forward off to keep parameters whole");
  if (hybrid && !asked) {
    REJECT(!ranks_per_host, "--strategy hybrid_shard: hosts have different numbers of ranks: give --mesh RxS");
    REJECT(ranks_per_host == world && world > 1, "--strategy hybrid_shard shards inside a host and replicates over "
           "hosts; this run has one host: give --mesh RxS, or choose full_shard");
    REJECT(ranks_per_host == 1 && world > 1, "--strategy hybrid_shard shards inside a host; each host here has one "
           "rank: give --mesh RxS, or choose full_shard or no_shard");
    R = world / ranks_per_host, S = ranks_per_host;
  }
  if (none) R = world, S = 1;
  o->replicas = R, o->shards = S;                // --mesh stays as it was given: a checkpoint does not record ranks
  return true;
}
// The number of FSDP units inside blocks. 0: everything is gathered together, before the first block.
static int sharding_block_units(const Options *o) {
  int64_t least = 0;
  if (!strcmp(o->wrap, "block")) return (int)o->n_layer;
  if (!wrap_parse(o->wrap, &least)) return 0;
  const ModelShape shape = shape_of(o);
  int params;
  Param *param = params_of_shape(o->trainer->params, &shape, &params);
  const int inside = fsdp_block_units(param, params, least);
  free(param);
  return inside;
}
// Rejects options about all-gathers if nothing is gathered block by block.
static bool sharding_check_gathers(const Options *o, int world, Error *error) {
  const int S = o->shards;
  const bool none = strategy_of(o) == OPT_strategy_no_shard, reshards = o->given[OPT_reshard_after_forward];
  const char *asked = o->given[OPT_gather_slots] ? "gather_slots" : reshards ? "reshard_after_forward" : NULL;
  const bool in_place = (none || (S == 1 && world > 1)) && o->offload != OFFLOAD_PARAMS;
  REJECT(in_place && asked, "--%s %s keeps every parameter whole on each rank: --%s has no effect", o->given[OPT_mesh]
         && !o->given[OPT_strategy] ? "mesh" : "strategy", o->given[OPT_mesh] && !o->given[OPT_strategy] ? o->mesh :
         option_word(o, OPT_strategy), asked);
  const bool stays = o->given[OPT_gather_slots] || (reshards && reshard_of(o));
  REJECT(stays && !sharding_block_units(o), "--wrap %s leaves no unit inside a block: all is gathered once per step "
         "and stays whole, --%s has no effect", o->wrap, asked);
  return true;
}
// Completes all-gather buffers, resharding and accumulation as the strategy asks, and rejects what contradicts it.
static bool sharding_resolve_slots(Options *o, int world, Error *error) {
  const int S = o->shards;
  int64_t least;
  const bool zero1 = o->strategy == OPT_strategy_zero1, keeps = zero1 || strategy_of(o) == OPT_strategy_shard_grad_op;
  const int reshard = reshard_of(o);
  REJECT(strcmp(o->wrap, "block") && strcmp(o->wrap, "model") && !wrap_parse(o->wrap, &least), "--wrap '%s' is not "
         "block, model or min_params:N with a whole number N of at least 1", o->wrap);
  REJECT(reshard < 0, "--reshard_after_forward '%s' is not on, off or a number of ranks of at least 2",
         o->reshard_after_forward);
  REJECT(keeps && o->given[OPT_reshard_after_forward] && reshard, "--strategy %s keeps parameters whole after forward: "
         "it does not go with --reshard_after_forward %s", option_word(o, OPT_strategy), o->reshard_after_forward);
  if (!sharding_check_gathers(o, world, error)) return false;
  REJECT(reshard > 1 && (S % reshard || reshard == S), "--reshard_after_forward %d: a shard group has %d rank%s; the "
         "number must divide that and be smaller", reshard, S, S > 1 ? "s" : "");
  const bool whole = keeps || !reshard;
  REJECT(whole && o->given[OPT_gather_slots] && o->gather_slots < o->n_layer, "--%s %s keeps all %lld blocks whole: "
         "--gather_slots %lld does not go with it", keeps ? "strategy" : "reshard_after_forward", keeps ? option_word(o,
         OPT_strategy) : "off", (long long)o->n_layer, (long long)o->gather_slots);
  o->gather_slots = whole ? o->n_layer : min64(o->gather_slots, o->n_layer);
  REJECT(reshard > 1 && o->gather_slots == o->n_layer, "--reshard_after_forward %d has no effect: %lld block%s stay%s "
         "whole in as many --gather_slots", reshard, (long long)o->n_layer, o->n_layer > 1 ? "s" : "", o->n_layer > 1 ?
         "" : "s");
  if (!strcmp(o->reshard_after_forward, "auto")) strcpy(o->reshard_after_forward, whole ? "off" : "on");
  REJECT(zero1 && o->given[OPT_accumulate] && o->accumulate != OPT_accumulate_local, "--strategy zero1 adds up whole "
         "gradients and reduces once per step: it does not go with --accumulate %s", option_word(o, OPT_accumulate));
  if (zero1) o->accumulate = OPT_accumulate_local;
  return true;
}
// Checks options that depend on the kind of device, if --device names one, and options that only training has.
static bool sharding_check_device(const Options *o, Error *error) {
  const bool trains = !o->eval_only && !o->sample_only, cpu = o->device == OPT_device_cpu;
  const bool offloads = o->offload != OFFLOAD_NONE, matmul = o->fp8 == FP8_MATMUL;
  REJECT(cpu && offloads, "--offload %s needs --device cuda: on a CPU all parameters are in host memory already",
         option_word(o, OPT_offload));
  REJECT(offloads && !trains, "--offload is for training: it does not go with --%s", o->eval_only ? "eval_only" :
         "sample_only");
  REJECT(offloads && o->graph == OPT_graph_on, "--graph on does not go with --offload: the host's optimizer cannot be "
         "captured");
  REJECT(cpu && matmul, "--fp8 matmul needs --device cuda, compute capability 8.9 or later; --fp8 gather works here");
  REJECT(matmul && o->buffer_dtype != OPT_buffer_dtype_bf16, "--fp8 matmul computes all else in bf16: it needs "
         "--buffer_dtype bf16 (or --param_dtype bf16), not %s", option_word(o, OPT_buffer_dtype));
  REJECT(o->logits_dtype == OPT_logits_dtype_bf16 && o->buffer_dtype != OPT_buffer_dtype_bf16, "--logits_dtype bf16 "
         "needs --buffer_dtype bf16 (or --dtype bf16), not %s: use --logits_dtype fp32", option_word(o,
         OPT_buffer_dtype));
  const int64_t rows[] = {o->batch_size * o->seq_len, o->test_batch_size * o->seq_len};
  for (int64_t r : rows)
    REJECT(matmul && !o->sample_only && r % 16, "--fp8 matmul needs batches of a multiple of 16 tokens, not %lld: "
           "change --seq_len, --batch_size or --test_batch_size", (long long)r);
  REJECT(matmul && o->n_embd % 16, "--fp8 matmul needs an --n_embd divisible by 16, not %lld", (long long)o->n_embd);
  const ModelShape s = shape_of(o);
  const int64_t widths[] = {s.n_head * s.head_size, model_qkv_rows(&s), s.mlp_width};
  for (int64_t w : widths)
    REJECT(matmul && w % 16, "--fp8 matmul needs heads times --head_size, and --mlp_width, divisible by 16, not %lld",
           (long long)w);
  return true;
}
static bool sharding_check_params(Options *o, Error *error) {
  const ModelShape shape = shape_of(o);
  int params;
  Param *param = params_of_shape(o->trainer->params, &shape, &params);
  const bool ok = param_groups_check(o, param, params, error);
  free(param);
  return ok;
}

// Completes and checks what needs neither device nor data. ranks_per_host: 0 where hosts differ. False with one line in
// `error`.
static bool sharding_resolve(Options *o, int world, int ranks_per_host, Error *error) {
  if (!sharding_resolve_device(o, world, error)) return false;
  Recompute level[LAYERS_MAX];
  if (o->buffer_dtype == OPT_buffer_dtype_auto)
    option_put(o, OPT_buffer_dtype, option_word(o, OPT_param_dtype), error);
  return recompute_parse(o, level, error) &&
         sharding_resolve_mesh(o, world, ranks_per_host, error) &&
         sharding_resolve_slots(o, world, error) && sharding_check_device(o, error) &&
         sharding_check_params(o, error);
}

// The mesh of resolved options.
static MeshShape mesh_shape_of(const Options *o) {
  MeshShape m = {};
  const int reshard = reshard_of(o);
  m.replicas = o->replicas, m.shards = o->shards;
  m.secondary = reshard > 1 ? reshard : 0;
  return m;
}

CommKind comm_kind(const Options *o, int world) {
  if (o->comm == OPT_comm_nccl) return COMM_NCCL;
  return o->comm == OPT_comm_self || (o->comm == OPT_comm_auto && world == 1) ? COMM_SELF : COMM_MPI;
}
FsdpConfig sharding_config(const Options *o, int first_backward, CommKind comm) {
  FsdpConfig c = {};
  c.param_dtype = option_dtype(o, OPT_param_dtype);
  c.compute_dtype = option_dtype(o, OPT_buffer_dtype);
  c.wire_dtype = option_dtype(o, OPT_reduce_dtype);
  c.mesh = mesh_shape_of(o);
  c.layout = o->shard;
  c.wrap = !strcmp(o->wrap, "block") ? WRAP_BLOCK : !strcmp(o->wrap, "model") ? WRAP_MODEL : WRAP_MIN_PARAMS;
  if (c.wrap == WRAP_MIN_PARAMS) wrap_parse(o->wrap, &c.wrap_least);
  c.blocks = (int)o->n_layer;
  c.gather_slots = (int)min64(o->gather_slots, o->n_layer);
  c.first_backward = first_backward;
  c.local = o->accumulate == OPT_accumulate_local;
  c.fp8 = o->fp8;
  c.offload = o->offload;
  c.microbatches = o->grad_accum;
  c.optimizer = o->optimizer;
  c.moment_dtype = option_dtype(o, OPT_moment_dtype);
  c.log_layers = o->log_layers;
  c.comm = comm;
  c.windows = o->shm != OPT_shm_off;
  c.copies = o->shm == OPT_shm_copy;
  c.between = o->between_hosts;
  c.native_reduce = o->reduce == OPT_reduce_native;
  c.weights_only = o->eval_only || o->sample_only;
  return c;
}
