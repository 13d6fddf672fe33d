// plan_worlds.h: plans of ranks that are not there, of any number: what they need and move, how long a step would take,
// what would fit. Bytes and collectives are exact, because the program's own dry run makes them; times are
// predictions (predict.h).
//
//   1 options    resolved and rejected as training does; the device that is planned for
//   2 ranks      one dry run per class of equal ranks; bytes by kind, on links inside a host and between hosts
//   3 fits       the largest batch and the longest sequence, by plans of them
//   4 worlds     the same options on another number of ranks
#pragma once
#include "predict.h"
#include "kernels/workspace.h"

// ================================================================================================ 1 options
enum { PLAN_HOST_RANKS = 8 };                    // default of --ranks_per_host on GPUs
// The table of a GPU that is not here. Ctx.device is its compute capability's first number.
static inline Ops plan_cuda_table() {
  Ops t = plan_table(true);
  t.name = "cuda";
  t.device_open = [](Ctx *c, int index) { c->device = (void *)(intptr_t)index; };
  t.device_close = [](Ctx *) {};
  t.workspace_bytes = [](Ctx *c, WorkspaceQuery q, size_t *bytes) {
    *bytes = cuda_workspace_bytes((int)(intptr_t)c->device, q);
  };
  return t;
}

// What the planned ranks compute on. timed: `machine` is known (--on), so times can be predicted. host_bytes: free
// memory of this host.
struct PlanDevice { Device device; Machine machine; bool gpu, timed; size_t host_bytes; };

// Rejects options that a plan cannot have. False with one line in `error`.
static inline bool plan_rejects(const Options *o, Error *error) {
  static const OptionId not_here[] = {OPT_resume, OPT_init_from, OPT_eval_only, OPT_sample_only, OPT_tune,
                                       OPT_eval, OPT_interactive};
  for (OptionId i : not_here) {
    char value[OPTION_TEXT_BYTES];
    option_print(value, sizeof value, o, &option_specs[i]);
    if (i == OPT_init_from && o->tuning) continue;         // its shape is known (shape_of_weights)
    REJECT(value[0] && strcmp(value, "off"), "--plan is of a training that starts, and reads no weights: it does not "
           "go with --%s; shapes and modes come from options, or from --config OUT/options.txt", option_specs[i].name);
  }
  REJECT(!o->batch_size, "--plan says which batches fit: give --batch_size a number in place of auto");
  REJECT(o->tokens && !o->on[0], "--tokens asks how long they take, and that depends on the machine: give --on too");
  return true;
}
// Where the plan's vocabulary size comes from: the generated text is the same everywhere, a tokenizer trained on
// another text may find fewer tokens than --vocab_size. NULL: it is --vocab_size.
static inline const char *plan_data_words(const Options *o) {
  if (o->tuning && o->conversations > 0 && o->given[OPT_data])
    return "not read: the vocabulary is that of --init_from; a step is taken to be 8 sequences of each rank, as of "
           "texts: of conversations it is about 8 in all, in fewer and often shorter sequences";
  if (o->tuning) return "not read: the vocabulary is that of --init_from";
  if (o->tokenizer[0]) return "not read: the vocabulary is that of --tokenizer, if --vocab_size says it";
  if (!strcmp(o->data, "generated")) return "the generated text";
  if (!strcmp(o->data, "random") || strstr(o->data, ".bin")) return NULL;
  return "not read: a text may give a smaller vocabulary, which the model then takes";
}
// The kind of device: --device, or that of --on; a CPU where neither says.
static inline bool plan_choose_device(Options *o, Error *error) {
  const bool cpu = o->no_cuda || o->device == OPT_device_cpu;
  if (!o->on[0]) {
    if (o->device == OPT_device_auto) o->device = OPT_device_cpu;
    return true;
  }
  const bool on_cpu = !strncmp(o->on, "cpu", 3) && (!o->on[3] || o->on[3] == ',');
  REJECT(cpu && !on_cpu, "--on %.200s is a GPU: it does not go with --%s", o->on, o->no_cuda ? "no_cuda" : "device "
         "cpu");
  REJECT(o->device == OPT_device_cuda && on_cpu, "--on cpu does not go with --device cuda");
  o->device = on_cpu ? OPT_device_cpu : OPT_device_cuda;
  return true;
}
// This machine's cores, read once: without --threads a planned host is taken to have the same cores. mask: cores that
// this process may use; bind: whether ranks would be bound to cores; quota: the cgroup's, in cores.
struct PlanHost { bool asked, read, bind; CoreTable table; hwloc_bitmap_t mask; double quota; Error error; };
static inline const PlanHost *plan_host() {
  static PlanHost h;
  if (!h.asked) {
    h.asked = true;
    h.read = cores_read_machine(&h.table, &h.error);
    h.mask = cores_mask(&h.table, &h.bind);
    h.quota = cgroup_cores("");
  }
  return &h;
}
// The threads and cores that rank node_rank of a host's node_ranks ranks would be assigned on this machine; cores is
// less than one where there are not enough. alike: all ranks of the host are assigned as many.
struct PlanThreads { int threads; double cores; bool alike; };
static inline PlanThreads plan_threads(const Options *o, int node_rank, int node_ranks) {
  const PlanHost *h = plan_host();
  hwloc_bitmap_t *mask = (hwloc_bitmap_t *)malloc(sizeof(hwloc_bitmap_t) * (size_t)node_ranks);
  for (int r = 0; r < node_ranks; r++) mask[r] = h->mask;
  const CoreAsk a = {node_rank, node_ranks, (int)o->threads, h->quota, h->bind, mask};
  CoreShare s = cores_deal(&h->table, &a);
  const bool shares = s.outnumbered && !o->threads;
  const PlanThreads t = {s.threads, shares ? (double)s.cores / node_ranks : s.threads, o->threads || s.outnumbered};
  cores_share_free(&s);
  free(mask);
  return t;
}
// Resolves `o` for o->world ranks as training does, and rejects what training rejects. False with one line in `error`.
static inline bool plan_resolve(Options *o, PlanDevice *d, Error *error) {
  static Ops cuda;
  error->text[0] = 0;
  if (!plan_rejects(o, error) || !plan_choose_device(o, error)) return false;
  const int world = (int)o->world;
  d->gpu = !o->no_cuda && o->device == OPT_device_cuda;
  if (!o->ranks_per_host) o->ranks_per_host = d->gpu ? min64(world, PLAN_HOST_RANKS) : world;
  o->ranks_per_host = min64(o->ranks_per_host, world);
  const int per_host = (int)o->ranks_per_host;
  if (!options_resolve(o, world, world % per_host ? 0 : per_host, error)) return false;
  const bool generated = !strcmp(o->data, "generated") && !o->tokenizer[0] && !o->tuning;
  if (generated) o->vocab_size = min64(o->vocab_size, GEN_VOCAB_MAX);
  const Ops *cpu = device_pretend(o, d->gpu, world, error);
  if (!cpu) return false;
  d->timed = o->on[0] != 0;
  static const size_t host_bytes = host_available_bytes();       // one figure for all plans of a search
  d->host_bytes = host_bytes;
  const bool tf32 = o->matmul_precision == OPT_matmul_precision_high;
  REJECT(!d->gpu && !o->threads && !plan_host()->read, "%s", plan_host()->error.text);
  const PlanThreads threads = d->gpu ? PlanThreads{1, 1, true} : plan_threads(o, 0, per_host);
  const double cores = threads.cores;
  if (d->timed && !machine_parse(&d->machine, o->on, cpu, cores, d->host_bytes,
                                 option_dtype(o, OPT_buffer_dtype), tf32, error))
    return false;
  REJECT(d->timed && d->gpu && o->comm == OPT_comm_mpi && world > 1, "--on: what --comm mpi takes on GPUs is not "
         "predicted; leave --on out, or plan --comm nccl");
  const bool has_wgmma = d->machine.attention[ATTENTION_WGMMA].forward > 0;
  REJECT(d->timed && d->gpu && o->attention == OPT_attention_wgmma && !has_wgmma,
         "--attention wgmma needs compute capability 9.0, %s has %d.%d", d->machine.name, d->machine.major,
         d->machine.minor);
  if (o->attention == OPT_attention_mma) d->machine.attention[ATTENTION_WGMMA] = AttentionRate{};
  DeviceInfo info = {};
  snprintf(info.name, sizeof info.name, "%s", d->machine.name);
  info.major = d->machine.major, info.minor = d->machine.minor;
  if (d->gpu && d->timed) check_fp8(o, &info, error);
  if (d->gpu && d->timed)
    d->machine.sm_margin = sm_margin_for(o, info.name, info.major, info.minor, d->machine.sms, error);
  if (error->text[0]) return false;
  cuda = plan_cuda_table();
  FsdpConfig c = sharding_config(o, 0, comm_kind(o, world));
  fsdp_hosts_chain(&c, world, per_host, d->gpu, error);
  if (error->text[0]) return false;
  d->device = device_of(d->gpu ? &cuda : cpu);
  d->device.host_ops = cpu;
  d->device.index = d->timed && d->gpu ? d->machine.major : 9;   // see plan_cuda_table
  d->device.gpus = world;
  d->device.peak_flops = d->timed ? d->machine.peak_flops : 0;
  if (!d->gpu) snprintf(d->device.words, sizeof d->device.words, "cpu (%s)", cpu->name);
  else snprintf(d->device.words, sizeof d->device.words, "cuda%s%s", d->timed ? ", " : "", d->machine.name);
  return true;
}

// ================================================================================================ 2 ranks
// What the plan of a rank can depend on: ranks with the same key differ in nothing that takes memory, moves bytes or
// costs time. host, shards, secondary, replicas: how many ranks this rank's host has, and how many of these are in its
// shard group, its secondary group, its replica group. role: its place in the chain of replicas; before_near,
// last_near: whether the replica before it, and the last one, is on this host. owns: see rank_owns. along, parts: see
// rank_along.
struct RankKey { int host, shards, secondary, replicas, role, before_near, last_near, threads, owns, along, parts; };
enum { ROLE_ONE, ROLE_FIRST, ROLE_BETWEEN, ROLE_LAST };

// How many of `size` ranks, first, first + stride, ..., are among [from, to).
static inline int ranks_within(int first, int stride, int size, int from, int to) {
  const int low = from <= first ? 0 : (from - first + stride - 1) / stride;
  const int high = to <= first ? 0 : (to - first + stride - 1) / stride;
  return (high < size ? high : size) - (low < size ? low : size);
}
// The key of a rank, but for threads, owns, along and parts, which world_plan_classes fills in.
static inline RankKey rank_key(MeshShape s, int rank, int world, int per_host) {
  const int S = s.shards, R = s.replicas, K = s.secondary ? s.secondary : 1, from = rank / per_host * per_host;
  const int to = from + per_host < world ? from + per_host : world, me = rank / S, chain = rank % S;
  const int before = (me + R - 1) % R * S + chain, last = (R - 1) * S + chain;
  RankKey k = {};
  k.host = to - from;
  k.shards = ranks_within(me * S, 1, S, from, to);
  k.secondary = ranks_within(rank / K * K, 1, K, from, to);
  k.replicas = ranks_within(chain, S, R, from, to);
  k.role = R == 1 ? ROLE_ONE : me == 0 ? ROLE_FIRST : me == R - 1 ? ROLE_LAST : ROLE_BETWEEN;
  k.before_near = before >= from && before < to;
  k.last_near = last >= from && last < to;
  return k;
}

// With Muon ranks own different matrices, and so move different bytes: each of up to 256 ranks is a class of its own.
// Of more ranks, those that own equally many matrices are one class, though their spans of others' matrices differ.
// count: how many matrices each rank owns.
enum { OWNERS_APART_MAX = 256 };
struct RankOwners { int *count, world; };
static inline RankOwners rank_owners(const Options *o) {
  RankOwners w = {NULL, (int)o->world};
  if (o->optimizer != OPTIMIZER_MUON || o->eval_only || o->sample_only) return w;
  const ModelShape shape = shape_of(o);
  int params;
  Error error = {};
  Param *param = params_of_shape(o->trainer->params, &shape, &params);
  param_groups(o, param, params, &error);
  w.count = fsdp_owned_counts(param, params, w.world);
  free(param);
  return w;
}
// RankKey.owns: different for each rank (1 + rank), or 1 + the number of matrices it owns; 0 without Muon.
static inline int rank_owns(RankOwners w, int rank) {
  return !w.count ? 0 : w.world <= OWNERS_APART_MAX ? 1 + rank : 1 + w.count[rank];
}

// Whether the planned ranks reduce gradients by an inter-node reduction chain; all ranks do, or none.
static inline bool plan_goes_along(const Options *o) {
  const FsdpConfig c = sharding_config(o, 0, comm_kind(o, (int)o->world));
  Error error = {};                               // plan_resolve has rejected it
  return fsdp_hosts_chain(&c, (int)o->world, (int)o->ranks_per_host, o->device == OPT_device_cuda, &error);
}
// How many of 0, 1, ..., n - 1 are p modulo c.
static inline int numbers_in_turn(int n, int c, int p) { return n > p ? (n - p - 1) / c + 1 : 0; }
// For the inter-node reduction chain of this rank's shard group. along: the role of this rank's host among the group's
// hosts. parts: how many of the group's shards this rank sums up on its host: of each host's ranks, numbered from 0,
// the shards of those whose number, modulo the group's ranks on this host, is this rank's. hosts_layout lists them.
static inline void rank_along(RankKey *k, MeshShape s, int rank, int per_host) {
  const int base = rank / s.shards * s.shards, end = base + s.shards, host = rank / per_host;
  const int first = base / per_host, last = (end - 1) / per_host;
  if (first == last) return;
  const int begin = host == first ? base : host * per_host, until = host == last ? end : (host + 1) * per_host;
  const int here = until - begin, place = rank - begin;
  k->along = host == first ? ROLE_FIRST : host == last ? ROLE_LAST : ROLE_BETWEEN;
  k->parts = numbers_in_turn((first + 1) * per_host - base, here, place) +
             (last - first - 1) * numbers_in_turn(per_host, here, place) +
             numbers_in_turn(end - last * per_host, here, place);
}

static const char *const link_words[] = {"gathers", "reductions", "sums along replicas", "updates of Muon", "small"};
// The ranks with one key: `count` of them, of which rank `first` is planned. placed: bytes of the memory that buffers
// with disjoint live ranges share; alive: the most bytes of it that are live at once.
struct RankClass {
  RankKey key;
  int first, count;
  MemoryPlan memory;
  size_t placed, alive;
  Traffic traffic;
  Links links;
  StepTimes times;
};
enum { RANK_CLASSES_MAX = 512 };
struct WorldPlan {
  Options opt;                                   // resolved
  PlanDevice on;                                 // what the ranks compute on
  RankClass *rank;                               // [classes]
  int classes, most, slowest;                    // the classes whose ranks need most memory; take longest for a step
};
static inline size_t plan_bytes(const WorldPlan *w, const MemoryPlan *m) {
  return memory_planned_total(m, w->on.gpu ? MEMORY_ON_DEVICE : MEMORY_ALL);
}
// Writes the number of threads of each of a host's n ranks, from threads[0] on. alike: all later ranks have as many as
// the last one that was asked for; on a GPU, one.
static inline void plan_host_threads(const WorldPlan *w, int *threads, int n) {
  bool alike = w->on.gpu;
  for (int i = 0, rank_threads = 1; i < n; i++) {
    if (!alike) {
      const PlanThreads t = plan_threads(&w->opt, i, n);
      rank_threads = t.threads, alike = t.alike;
    }
    threads[i] = rank_threads;
  }
}
// Sorts the ranks into classes of equal keys.
static inline void world_plan_classes(WorldPlan *w) {
  const Options *o = &w->opt;
  const int world = (int)o->world, per_host = (int)o->ranks_per_host;
  const MeshShape mesh = sharding_config(o, 0, comm_kind(o, world)).mesh;
  int *threads = (int *)malloc(sizeof(int) * (size_t)(2 * per_host));          // of a full host, of the last one
  const int left = world % per_host;
  const bool along = plan_goes_along(o);
  plan_host_threads(w, threads, per_host);
  plan_host_threads(w, threads + per_host, left);
  const RankOwners owners = rank_owners(o);
  w->rank = (RankClass *)calloc(RANK_CLASSES_MAX, sizeof(RankClass));
  for (int r = 0; r < world; r++) {
    RankKey k = rank_key(mesh, r, world, per_host);
    k.threads = threads[r % per_host + (k.host < per_host ? per_host : 0)];
    k.owns = rank_owns(owners, r);
    if (along) rank_along(&k, mesh, r, per_host);
    int c = 0;
    while (c < w->classes && memcmp(&w->rank[c].key, &k, sizeof k)) c++;
    CHECK(c < RANK_CLASSES_MAX, "more than %d kinds of ranks", (int)RANK_CLASSES_MAX);
    if (c == w->classes) w->rank[w->classes++] = RankClass{k, r, 0, {}, 0, 0, {}, {}, {}};
    w->rank[c].count++;
  }
  free(threads);
  free(owners.count);
}
// Plans one class. timed: its step is predicted, too. Returns the planned rank, for plan_close.
static inline RunView *world_plan_class(const WorldPlan *w, RankClass *c, bool timed) {
  const Options *o = &w->opt;
  RunView *run = o->trainer->plan_open(o, &w->on.device, c->first, (int)o->world, (int)o->ranks_per_host,
                                       c->key.threads);
  c->memory = run->plan;
  c->placed = fsdp_placed(run->fsdp).placed;
  c->alive = fsdp_placed(run->fsdp).alive;
  c->traffic = fsdp_formula(run->fsdp, (int)o->grad_accum);
  c->links = fsdp_links(run->fsdp, (int)o->grad_accum);
  if (timed) c->times = step_predict(run, &w->on.machine);
  return run;
}
// Plans asked->world ranks; `asked` is not resolved. timed: predicts steps, if --on was given. keep: NULL, or receives
// a planned rank of the class that needs most, for plan_close. False with one line in `error`.
static inline bool world_plan(WorldPlan *w, const Options *asked, bool timed, RunView **keep, Error *error) {
  RunView *run = NULL;
  *w = WorldPlan{};
  w->opt = *asked;
  if (!plan_resolve(&w->opt, &w->on, error)) return false;
  world_plan_classes(w);
  for (int c = 0; c < w->classes; c++) {
    if (c) asked->trainer->plan_close(run);
    run = world_plan_class(w, &w->rank[c], timed && w->on.timed);
    if (plan_bytes(w, &w->rank[c].memory) > plan_bytes(w, &w->rank[w->most].memory)) w->most = c;
    if (w->rank[c].times.at[STEP_TOTAL] > w->rank[w->slowest].times.at[STEP_TOTAL]) w->slowest = c;
  }
  const bool kept = keep && w->most == w->classes - 1;
  if (!kept) asked->trainer->plan_close(run);
  if (keep) *keep = kept ? run : world_plan_class(w, &w->rank[w->most], timed && w->on.timed);
  return true;
}
static inline void world_plan_free(WorldPlan *w) {
  free(w->rank);
  *w = WorldPlan{};
}
// Tokens per step; and predicted tokens per second.
static inline double world_plan_tokens(const WorldPlan *w) {
  return (double)w->opt.global_batch * (double)w->opt.seq_len;
}
static inline double world_plan_tokens_s(const WorldPlan *w) {
  return world_plan_tokens(w) / w->rank[w->slowest].times.at[STEP_TOTAL];
}

// ================================================================================================ 3 fits
// Bytes that a GPU, or a host for all its CPU ranks, would have to hold: the plan's, and on a GPU the libraries'.
static inline double world_plan_needs(const WorldPlan *w) {
  if (w->on.gpu) return (double)plan_bytes(w, &w->rank[w->most].memory) + w->on.machine.reserve_bytes;
  return (double)plan_bytes(w, &w->rank[w->most].memory) * (double)w->opt.ranks_per_host;
}
// Bytes that the GPU has, or the host for all its CPU ranks.
static inline double world_plan_room(const WorldPlan *w) { return w->on.machine.memory_bytes; }
// Bytes for events of --trace among world_plan_needs: none on GPUs, whose events are stored on the host.
static inline double world_plan_trace(const WorldPlan *w) {
  const double bytes = (double)w->rank[w->most].memory.planned_bytes[MEM_TRACE];
  return w->on.gpu ? 0 : bytes * (double)w->opt.ranks_per_host;
}
// Whether the plan does not fit, but would without the events of --trace.
static inline bool world_plan_trace_is_too_long(const WorldPlan *w) {
  const double needs = world_plan_needs(w), room = world_plan_room(w);
  return needs > room && needs - world_plan_trace(w) <= room;
}
enum FitOf { FIT_BATCH, FIT_SEQUENCE, FITS };
static const char *const fit_options[] = {"batch_size", "seq_len"};
static const char *const fit_words[] = {"largest batch that fits", "longest sequence that fits"};
// value: the largest value that fits, 0: none does; needs: bytes of its plan; next: bytes of the plan of value + grain,
// 0 if training rejects that value.
struct Fit { int64_t value, grain; double needs, next; };

// Bytes that a plan with `value` needs; 0: training rejects it. The number of microbatches stays: another batch makes
// another global batch.
static inline double fit_needs(const Options *asked, int64_t grad_accum, FitOf of, int64_t value) {
  static WorldPlan w;
  static Options o;
  Error error = {};
  o = *asked;
  if (of == FIT_BATCH) o.batch_size = value;
  else o.seq_len = value;
  if (of == FIT_SEQUENCE && o.n_positions) o.n_positions = max64(o.n_positions, value);
  o.global_batch = 0;
  o.grad_accum = grad_accum;
  if (!world_plan(&w, &o, false, NULL, &error)) return 0;
  const double needs = world_plan_needs(&w);
  world_plan_free(&w);
  return needs;
}
// The smallest number whose multiples, times `other`, are multiples of `of`, a power of two.
static inline int64_t fit_grain(int64_t other, int64_t of) {
  while (of > 1 && other % 2 == 0) other /= 2, of /= 2;
  return of;
}
// The largest value whose plan fits into the device's memory. Memory is nearly linear in the value, so a guess from two
// plans comes close to the result; the plans of the result and of the next value prove it.
static inline Fit fit_search(const WorldPlan *w, const Options *asked, FitOf of) {
  const Options *o = &w->opt;
  const double room = world_plan_room(w);
  const bool by16 = o->fp8 == FP8_MATMUL;   // FP8 matrix multiplies need microbatches of multiples of 16 tokens
  const int64_t grain = !by16 ? 1 : fit_grain(of == FIT_BATCH ? o->seq_len : o->batch_size, 16);
  const int64_t most = of == FIT_BATCH && w->on.gpu ? CUDA_MAX_BATCH : 1 << 20;
  int64_t low = 0, high = most / grain + 1;      // in grains: low fits; high does not, or is above what is tried
  double low_needs = 0, high_needs = 0, slope = 0;
  bool rejected = false;
  for (int turn = 0; high - low > 1; turn++) {
    const double ahead = slope > 0 ? (room - low_needs) / slope : low ? (double)low : 1;
    int64_t next = low + max64(1, (int64_t)fmin(ahead, (double)(high - low)));
    if (rejected || turn % 8 == 7) next = low + (high - low) / 2;
    next = min64(next, high - 1);
    const double needs = fit_needs(asked, o->grad_accum, of, next * grain);
    rejected = needs == 0;
    if (!rejected && low) slope = (needs - low_needs) / (double)(next - low);
    if (!rejected && needs <= room) low = next, low_needs = needs;
    else high = next, high_needs = needs;
  }
  return Fit{low * grain, grain, low_needs, high_needs};
}

// ================================================================================================ 4 worlds
// Options of the same run on another number of ranks. A mesh RxS keeps its S.
static inline Options plan_at_world(const Options *asked, int world, bool *possible) {
  Options o = *asked;
  int R, S;
  o.world = world;
  *possible = true;
  if (o.mesh[0] && mesh_parse(o.mesh, &R, &S)) {
    *possible = world % S == 0;
    snprintf(o.mesh, sizeof o.mesh, "%dx%d", world / S, S);
  }
  return o;
}
