// layout.h: what is decided once, before any memory is allocated: units and their places, where each stage's gradient
// is and in how many rounds it is reduced, and every buffer of the sharding layer.
//
// fsdp_declare is the only description of the sharding layer's memory. The plan, the places in working memory, what is
// allocated and what is freed follow from it. To add a buffer, add a line there and a pointer to FsdpMemory. At run
// time no code asks again why a buffer is where it is.
#pragma once
#include <sys/statvfs.h>
#include "hosts.h"
#include "owned.h"
#include "placement.h"

// ---- traffic
// How often a step of A microbatches gathers block l: see fsdp.h.
static inline int64_t fsdp_block_gathers(const FsdpConfig *c, int l, int A) {
  const int64_t L = c->blocks, K = c->gather_slots, low = min64(c->first_backward, L - K);
  return 1 + (l >= low && l < L - K ? A : 0) + (l >= low && l < K ? 0 : A - 1);
}
// Bytes that this rank receives in a reduction of unit u. first: the step's first. `between` is filled in only with a
// reduction chain along hosts; without one all bytes are counted as `inside`.
static inline HostsTraffic fsdp_hosts_traffic(const Fsdp *f, const Unit *u, bool first) {
  const int64_t e = unit_wire_numel(u), b = (int64_t)fsdp_wire_bytes(f);
  const bool begins = first && (!fsdp_chains(f) || f->mesh.replicate.me == 0);
  if (f->lay.hosts.hosts) return hosts_formula(&f->lay.hosts, e, b, begins);
  return HostsTraffic{(fsdp_shards(f) - 1) * e * b, 0};
}
// Bytes that this rank receives when a unit's reduced gradient goes to all replicas: the last replica's sum, or, with
// --reduce native, its part of a ring's all-reduce.
static inline int64_t fsdp_return_bytes(const Fsdp *f, const Unit *u) {
  const int64_t R = f->cfg.mesh.replicas, bytes = u->state_numel * 4;
  if (f->cfg.native_reduce) return bytes * 2 * (R - 1) / R;
  return f->mesh.replicate.me < R - 1 ? bytes : 0;
}
Traffic fsdp_formula(const Fsdp *f, int A) {
  const int64_t S = fsdp_shards(f), R = f->cfg.mesh.replicas, r = f->mesh.replicate.me, N = f->mesh.world;
  const int64_t G = f->cfg.mesh.secondary, reductions = f->cfg.local ? 1 : A;
  Traffic t = {};
  for (int i = 0; i < f->lay.units; i++) {
    const Unit *u = &f->lay.unit[i];
    const int64_t n = u->stage ? fsdp_block_gathers(&f->cfg, u->stage - 1, A) : 1, bytes = unit_wire_bytes(u);
    const int64_t far = u->stage && G ? 1 : n;   // gathers that ask the whole shard group
    if (S > 1 && !f->lay.in_place) {
      t.gathers += n;
      t.gather_bytes += far * (S - 1) * bytes + (n - far) * (G - 1) * (G ? S / G : 0) * bytes;
    }
    if (!u->state_numel || f->lay.stage[u->stage].grads == GRADS_IN_SHARD) continue;
    t.reductions += reductions;
    for (int64_t a = 0; a < reductions; a++) {
      const HostsTraffic x = fsdp_hosts_traffic(f, u, a == 0);
      t.reduce_bytes += x.inside + x.between;
    }
    if (fsdp_chains(f)) t.replicate_bytes += (reductions - (r == 0)) * u->state_numel * 4;
    t.returns += R > 1;
    t.replicate_bytes += fsdp_return_bytes(f, u);
  }
  if (N > 1 && !f->lay.owned.in_place) t.updates = 2 * f->lay.owned.rounds;
  if (N > 1 && !f->lay.owned.in_place) t.update_bytes = owned_wire_bytes(f, true) + owned_wire_bytes(f, false);
  const int64_t layers = (int64_t)fsdp_layers_bytes(f);
  t.small = (f->cfg.comm == COMM_MPI ? 2 : 1) + (f->lay.scales_trained ? 1 : 0) + (layers ? 1 : 0);
  t.small_bytes = (N - 1) * ((int64_t)f->cfg.small_bytes + 4 * f->lay.scales_trained + layers);
  return t;
}

// Adds `all` bytes of a use, `between` of which come from other hosts.
static inline void links_split(Links *l, LinkUse use, int64_t between, int64_t all) {
  l->between[use] += between;
  l->inside[use] += all - between;
}
// Adds `all` bytes that this rank receives round a ring of a group's ranks.
static inline void links_ring(Links *l, LinkUse use, int64_t all, GroupPlace g) {
  links_split(l, use, g.size > g.here ? all / g.here : 0, all);
}
// Adds `all` bytes that this rank receives, equally from each other rank of a group.
static inline void links_messages(Links *l, LinkUse use, int64_t all, GroupPlace g) {
  links_split(l, use, g.size > 1 ? all / (g.size - 1) * (g.size - g.here) : 0, all);
}
// Adds `all` bytes along the replicas: partial sums come from the replica before; the chain's result comes from the
// last replica, or, over NCCL, from the replica before, too.
static inline void links_replicas(Links *l, const Fsdp *f, int64_t all) {
  const Mesh *m = &f->mesh;
  const int last = m->replicate.rank[m->replicate.size - 1];
  const int64_t result = fsdp_chains(f) && m->replicate.me < m->replicate.size - 1 ? f->lay.state_numel * 4 : 0;
  const bool near = m->peer[chain_before(f)].host == m->peer[m->rank].host;
  const bool near_result = f->cfg.comm == COMM_NCCL ? near : m->peer[last].host == m->peer[m->rank].host;
  if (f->cfg.native_reduce) links_ring(l, LINK_REPLICAS, all, group_place(m, &m->replicate));
  if (f->cfg.native_reduce) return;
  links_split(l, LINK_REPLICAS, near ? 0 : all - result, all - result);
  links_split(l, LINK_REPLICAS, near_result ? 0 : result, result);
}
Links fsdp_links(const Fsdp *f, int A) {
  const Traffic t = fsdp_formula(f, A);
  const Mesh *m = &f->mesh;
  const GroupPlace shards = group_place(m, &m->shard);
  const int S = f->cfg.mesh.shards, G = f->cfg.mesh.secondary;
  const int due = f->cfg.local ? 1 : A;          // reductions of a unit in a step
  int64_t near = 0, along = 0;                   // gathers from the secondary group; inter-node reduction chain
  for (int i = 0; i < f->lay.units; i++) {
    const Unit *u = &f->lay.unit[i];
    if (G && u->stage && !f->lay.in_place)
      near += (fsdp_block_gathers(&f->cfg, u->stage - 1, A) - 1) * (G - 1) * (S / G) * unit_wire_bytes(u);
    for (int a = 0; a < due && f->lay.hosts.hosts; a++) along += fsdp_hosts_traffic(f, u, a == 0).between;
  }
  const auto group = f->cfg.comm == COMM_NCCL ? links_ring : links_messages;
  Links l = {};
  group(&l, LINK_GATHERS, t.gather_bytes - near, shards);
  if (near) group(&l, LINK_GATHERS, near, group_place(m, &m->secondary));
  if (f->cfg.native_reduce) links_ring(&l, LINK_REDUCTIONS, t.reduce_bytes, shards);
  else if (f->lay.hosts.hosts) links_split(&l, LINK_REDUCTIONS, along, t.reduce_bytes);
  else links_messages(&l, LINK_REDUCTIONS, t.reduce_bytes, shards);
  links_replicas(&l, f, t.replicate_bytes);
  if (t.update_bytes) links_split(&l, LINK_UPDATES, owned_wire_bytes(f, false), t.update_bytes);
  group(&l, LINK_SMALL, t.small_bytes, GroupPlace{m->world, m->hosts, m->node_world});
  return l;
}

// ---- decisions
// Whether a stage's gradient shard is stored in the owner's part of the whole gradient, which has the same elements,
// and has no memory of its own. That works where a step reduces the gradient once and every element of the own
// contribution has been read before its sum is written: contributions that are rounded for communication, or sent by
// NCCL, are read in an earlier round; else accumulate reads those of all ranks at once. No other rank reads the owner's
// part. It does not work with replicas, whose partial sums come to the shard before the own contribution is added, nor
// on a mirrored device, which adds one rank's contribution after the other, nor where shards are in host memory.
static inline bool stage_shard_lies_in_whole(const Fsdp *f) {
  const FsdpConfig *c = &f->cfg;
  const bool once = c->local || c->microbatches == 1, apart = c->mesh.replicas > 1 || c->offload != OFFLOAD_NONE;
  const bool read_before = c->wire_dtype != F32 || c->comm == COMM_NCCL;
  return once && !apart && (read_before || (!f->lay.mirrored && c->mesh.shards <= SUMMANDS_MAX));
}
// With one rank and one microbatch the sum of a block's gradients is one contribution, rounded to the wire's dtype: it
// is stored as that, in bf16, where backward writes it, and no op copies it. AdamW on masters in two halves reads bf16.
static inline bool grads_are_lone(const Fsdp *f) {
  const FsdpConfig *c = &f->cfg;
  return f->mesh.world == 1 && !c->comms_of_one && c->microbatches == 1 && !c->local && c->wire_dtype == BF16 &&
         c->param_dtype == BF16 && c->fp8 == FP8_OFF && c->offload == OFFLOAD_NONE &&
         c->optimizer == OPTIMIZER_ADAMW && !f->lay.adapters;
}
// With one rank the sum is the rank's own gradient. If reduce_dtype is fp32, backward writes gradients directly
// into the gradient shard and adds those of later microbatches there. Two kinds of gradients must be complete before
// they are added: those that one microbatch already adds up (stage 0, over the head's chunks), and those of a device
// whose rounding differs between overwriting and adding.
static inline GradHome stage_grad_home(const Fsdp *f, int s) {
  const FsdpConfig *c = &f->cfg;
  const bool one = f->mesh.world == 1 && !c->comms_of_one && c->wire_dtype == F32 && c->offload == OFFLOAD_NONE;
  const bool once = c->local || c->microbatches == 1, adds = s && c->wrap == WRAP_BLOCK && !f->ctx->ops->nccl;
  if (!f->lay.stage[s].trains || !fsdp_trains(f)) return GRADS_NONE;
  if ((one && (once || adds)) || (s && grads_are_lone(f))) return GRADS_IN_SHARD;
  if (s && !c->local) return GRADS_IN_SLOT;
  return stage_shard_lies_in_whole(f) ? GRADS_SHARD_IN_WHOLE : GRADS_WHOLE;
}
// Elements of one owner's shard in a round: 2^18 on a CPU (1 MiB in fp32), where a chunk should stay in cache; over
// NCCL 2^20, so that messages are long, or fewer, so that S chunks have at most 2^23 elements (up to S = 128 shards).
enum { STAGE_NUMEL = 1 << 18, STAGE_NUMEL_NCCL_MAX = 1 << 20, STAGE_NUMEL_NCCL_LEAST = 1 << 16 };
static inline int64_t fsdp_stage_numel(CommKind comm, int shards) {
  if (comm != COMM_NCCL) return STAGE_NUMEL;
  return max64(STAGE_NUMEL_NCCL_LEAST, min64(STAGE_NUMEL_NCCL_MAX, (1 << 23) / shards / 128 * 128));
}
// In how many rounds a unit of stage s with n elements of each shard is reduced.
static inline int unit_rounds(const Fsdp *f, int s, int64_t n) {
  const bool ordered_nccl = f->cfg.comm == COMM_NCCL && !f->cfg.native_reduce &&
                            (fsdp_shards(f) > 1 || f->cfg.comms_of_one);
  const bool chunked = f->mesh.remote || f->lay.stage[s].staged || ordered_nccl || fsdp_chains(f) ||
                       (fsdp_offloads(f) && !f->cfg.native_reduce);
  return !n ? 0 : chunked ? (int)((n + f->lay.chunk_numel - 1) / f->lay.chunk_numel) : 1;
}

// ---- layout
static inline void fsdp_layout_stages(Fsdp *f) {
  f->lay.stages = 1 + f->cfg.blocks;
  f->lay.stage = (Stage *)calloc((size_t)f->lay.stages, sizeof(Stage));
  for (int i = f->lay.units - 1; i >= 0; i--) f->lay.stage[f->lay.unit[i].stage].first_unit = i;
  for (int i = 0; i < f->lay.units; i++) {
    Unit *u = &f->lay.unit[i];
    Stage *s = &f->lay.stage[u->stage];
    u->slot_at = s->full_bytes;
    u->grad_slot_at = s->grad_numel;
    u->expand_slot_at = s->expand_numel;
    u->state_base = f->lay.state_numel;
    u->second_base = f->lay.second_numel;
    u->master_base = f->lay.master_numel;
    u->low_base = f->lay.low_numel;
    s->units++;
    s->full_bytes += u->full_bytes;
    s->grad_numel += u->grad_numel;
    s->expand_numel += u->expand_numel;
    s->trains = s->trains || u->state_numel;
    f->lay.state_numel += u->state_numel;
    f->lay.second_numel += u->second_numel;
    f->lay.master_numel += u->master_numel;
    f->lay.low_numel += u->low_numel;
    f->lay.params_bytes += u->shard_bytes;
  }
}
// Cuts reductions into rounds of at most `chunk` elements of a shard.
static inline void fsdp_cut_rounds(Fsdp *f, int64_t chunk) {
  f->lay.chunk_numel = chunk;
  for (int s = 0; s < f->lay.stages; s++) f->lay.stage[s].rounds = 0;
  for (int i = 0; i < f->lay.units; i++) {
    Unit *u = &f->lay.unit[i];
    u->rounds = unit_rounds(f, u->stage, u->state_numel);
    f->lay.stage[u->stage].rounds += u->rounds;
  }
}
// Bytes of elements of separate gradient shards.
static inline size_t fsdp_sums_bytes(const Fsdp *f, int64_t elements) {
  return (size_t)elements * dtype_bytes(f->lay.sum_dtype);
}
// Decides for every stage where its gradient is, whether it is staged, and where its units' gradient shards start.
static inline void fsdp_layout_reductions(Fsdp *f) {
  f->lay.sum_dtype = grads_are_lone(f) ? BF16 : F32;
  for (int i = 0; i < f->lay.stages; i++) {
    Stage *s = &f->lay.stage[i];
    s->grads = stage_grad_home(f, i);
    s->staged = grads_are_whole(s->grads) && f->cfg.wire_dtype != F32;
    if (s->grads == GRADS_IN_SLOT && (size_t)s->grad_numel * fsdp_wire_bytes(f) > f->lay.grad_slot_bytes)
      f->lay.grad_slot_bytes = align_bytes((size_t)s->grad_numel * fsdp_wire_bytes(f));
  }
  for (int i = 0; i < f->lay.units; i++) {
    Unit *u = &f->lay.unit[i];
    u->sum_base = f->lay.sum_numel;
    f->lay.sum_numel += f->lay.stage[u->stage].grads == GRADS_SHARD_IN_WHOLE ? 0 : u->state_numel;
  }
}
// Whether parameter p's gradient is at the same place of its block as parameter q's of another one.
static inline bool fsdp_same_gradient(const Fsdp *f, int p, int q) {
  const ParamPlace *const pair[2] = {&f->lay.place[p], &f->lay.place[q]};
  int64_t at[2];
  for (int i = 0; i < 2; i++) {
    const Unit *u = &f->lay.unit[pair[i]->unit];
    at[i] = pair[i]->param->frozen ? -1 : u->grad_slot_at + u->piece[pair[i]->piece].grad_at + pair[i]->in_piece;
  }
  return at[0] == at[1] && param_numel_padded(pair[0]->param) == param_numel_padded(pair[1]->param);
}
// Whether the gradients of all blocks have the first block's layout. Then the gaps between parameters of a gradient
// slot, which reductions read too, stay zero.
static inline bool fsdp_blocks_are_alike(const Fsdp *f) {
  for (int s = 2, p, q; s < f->lay.stages; s++)
    for (p = q = 0;; p++, q++) {
      while (p < f->lay.params && f->lay.unit[f->lay.place[p].unit].stage != 1) p++;
      while (q < f->lay.params && f->lay.unit[f->lay.place[q].unit].stage != s) q++;
      if ((p == f->lay.params) != (q == f->lay.params)) return false;
      if (p == f->lay.params) break;
      if (!fsdp_same_gradient(f, p, q)) return false;
    }
  return true;
}
// Whether Muon updates a parameter: its moment and its update are matrices.
static inline bool param_is_owned(const Param *p, const FsdpConfig *cfg) {
  return cfg->optimizer == OPTIMIZER_MUON && p->linear && !p->frozen && !cfg->weights_only;
}
static inline bool param_is_e4m3(const Param *p, const FsdpConfig *cfg) {
  return p->linear && !p->adapter && !p->keeps && cfg->fp8 != FP8_OFF;
}
// Sets each parameter's dtype and the number of its E4M3 scale; scales of parameters that train come first.
static inline void fsdp_layout_dtypes(Fsdp *f) {
  for (int frozen = 0; frozen <= 1; frozen++) {
    for (int i = 0; i < f->lay.params; i++) {
      const Param *p = &f->lay.param[i];
      if (p->frozen != (bool)frozen) continue;
      const bool e4m3 = param_is_e4m3(p, &f->cfg);
      f->lay.place[i].dtype = p->keeps ? BLOCKS : e4m3 ? F8 : p->adapter ? F32 : f->cfg.param_dtype;
      f->lay.place[i].scale = e4m3 ? f->lay.scales++ : -1;
    }
    if (!frozen) f->lay.scales_trained = f->lay.scales;
  }
}

// Allocates the run-time state that is kept per stage, unit or slot, and the places in the pool.
static inline void fsdp_state_open(Fsdp *f) {
  const size_t stages = (size_t)f->lay.stages, buffers = 2 + stages, slots = (size_t)f->cfg.gather_slots;
  f->lay.pool_at = (size_t *)calloc(slots + POOL_PARTS, sizeof(size_t));
  f->shared.sums = (bool *)calloc(stages, sizeof(bool));
  f->gather.slot = (GatherSlot *)calloc(slots + 1, sizeof(GatherSlot));
  f->gather.secondary_valid = (bool *)calloc(stages, sizeof(bool));
  f->gather.secondary_number = (uint64_t *)calloc(stages, sizeof(uint64_t));
  f->reduce.stage_round0 = (uint64_t *)calloc(stages, sizeof(uint64_t));
  f->reduce.buffer_rounds = (uint64_t *)calloc(buffers, sizeof(uint64_t));
  f->reduce.buffer_collective = (FlightCollective *)calloc(buffers, sizeof(FlightCollective));
  f->returns.of = (SumReturn *)calloc((size_t)f->lay.units, sizeof(SumReturn));
  f->events.grads_free = (StepEvent *)calloc(buffers, sizeof(StepEvent));
}
static inline void fsdp_state_free(Fsdp *f) {
  void *const owned[] = {f->lay.pool_at, f->shared.sums, f->gather.slot, f->gather.secondary_valid,
                         f->gather.secondary_number, f->reduce.stage_round0, f->reduce.buffer_rounds,
                         f->reduce.buffer_collective, f->returns.of, f->events.grads_free};
  for (void *p : owned) free(p);
}
static inline void fsdp_lay_out(Fsdp *f, Ctx *ctx, FsdpConfig cfg, Param *param, int params) {
  f->ctx = ctx;
  f->cfg = cfg;
  f->lay.param = param;
  f->lay.params = params;
  f->lay.place = param_places(param, params);
  f->lay.mirrored = cfg.comm == COMM_MPI && ctx->ops->nccl;
  if (cfg.comm != COMM_MPI) f->mesh.remote = 0;
  f->lay.in_place = cfg.comms_of_one ? false
                : cfg.mesh.shards == 1 ? cfg.offload != OFFLOAD_PARAMS
                                       : !cfg.copies && !f->lay.mirrored && mesh_shards_share_memory(&f->mesh);
  fsdp_layout_dtypes(f);
  for (int p = 0; p < params; p++) {
    f->lay.place[p].owned = param_is_owned(&param[p], &cfg);
    f->lay.adapters = f->lay.adapters || param[p].adapter;
  }
  f->lay.unit = units_wrap(f->lay.place, params, cfg.wrap, cfg.wrap_least, &f->lay.units);
  const LayoutConfig k = {cfg.layout, cfg.compute_dtype, cfg.offload == OFFLOAD_OPTIMIZER, f->lay.in_place,
                          f->mesh.shard.me, (int)fsdp_moments(f), !ctx->ops->nccl};
  int64_t largest = 0;
  for (int u = 0; u < f->lay.units; u++) {
    unit_layout(&f->lay.unit[u], u, f->lay.place, params, k, cfg.mesh.shards);
    largest = max64(largest, f->lay.unit[u].state_numel);
  }
  fsdp_layout_stages(f);
  f->lay.blocks_alike = fsdp_blocks_are_alike(f);
  for (int p = 0; p < params; p++)
    f->lay.blocks_in_root = f->lay.blocks_in_root || f->lay.unit[f->lay.place[p].unit].stage != param[p].stage;
  owned_layout(f);
  f->lay.hosts = hosts_layout(&f->cfg, &f->mesh, f->lay.mirrored);
  fsdp_layout_reductions(f);
  fsdp_cut_rounds(f, min64(fsdp_stage_numel(cfg.comm, cfg.mesh.shards), largest));
  fsdp_state_open(f);
}
Fsdp *fsdp_layout(FsdpRanks ranks, Ctx *ctx, FsdpConfig cfg, Param *param, int params, Error *error) {
  Fsdp *f = (Fsdp *)calloc(1, sizeof(Fsdp));
  const bool windows = cfg.windows && cfg.comm == COMM_MPI, pretends = ranks.comm == MPI_COMM_NULL;
  f->passes = (Passes *)calloc(1, sizeof(Passes));
  if (pretends) mesh_pretend(&f->mesh, cfg.mesh, windows, ranks.rank, ranks.world, ranks.per_host);
  else mesh_open(&f->mesh, ranks.comm, cfg.mesh, windows);
  if (pretends || hosts_check(&cfg, &f->mesh, ctx->ops->nccl, error))
    fsdp_lay_out(f, ctx, cfg, param, params);
  return f;
}

// ---- memory
// Counters by which the ranks of one host wait for each other, at the start of each window. They only grow.
struct Control {
  alignas(64) uint64_t ready;                    // reduction rounds whose data this rank has laid out
  alignas(64) uint64_t done;                     // reduction rounds this rank has added up
  alignas(64) uint64_t partial;                  // reduction rounds whose sum, so far, is in this rank's shard
  alignas(64) uint64_t secondary;                // blocks whose secondary shards are there, since the start
  alignas(64) uint64_t momenta;                  // rounds of Muon whose momenta this rank has written to their owners
  alignas(64) uint64_t updates;                  // rounds whose update, if this rank owns one, can be read
  alignas(64) uint64_t taken;                    // rounds whose updates this rank has read
};
// Counters take 4 KiB, and a window has 4 KiB more, because OpenMPI may start it anywhere in a page and it is aligned
// to 4 KiB. That divides page sizes of 4, 16 and 64 KiB, so every process maps an aligned window with the same shift.
enum { CONTROL_PAGE_BYTES = 4096, CONTROL_BYTES = 2 * CONTROL_PAGE_BYTES };

// Maxima. Over blocks: bytes of a gathered stage, elements of a copy in the compute dtype. Over units: elements of a
// gradient shard. staged: any stage is.
struct StageMost { size_t slot_bytes; int64_t expanded, state; bool staged; };
static inline StageMost fsdp_stage_most(const Fsdp *f) {
  StageMost m = {};
  for (int s = 0; s < f->lay.stages; s++) {
    const Stage *x = &f->lay.stage[s];
    if (s && x->full_bytes > m.slot_bytes) m.slot_bytes = x->full_bytes;
    if (s) m.expanded = max64(m.expanded, x->expand_numel);
    m.staged = m.staged || x->staged;
  }
  for (int u = 0; u < f->lay.units; u++) m.state = max64(m.state, f->lay.unit[u].state_numel);
  return m;
}
// Elements of staging for contributions that have arrived and are not added yet. largest: elements of the largest
// unit's gradient shard.
static inline size_t fsdp_staging_in_numel(const Fsdp *f, int64_t largest) {
  const size_t chunk = (size_t)f->lay.chunk_numel, S = (size_t)fsdp_shards(f);
  if (!fsdp_trains(f)) return 0;
  if (f->cfg.comm != COMM_NCCL) return f->lay.mirrored && S > 1 ? chunk : 2 * (size_t)f->mesh.remote * chunk;
  if (S == 1 && !f->cfg.comms_of_one) return 0;
  return f->cfg.native_reduce ? (size_t)largest : 2 * S * chunk;
}
// Staging of a round in the reduction chain along hosts, in bytes: over NCCL the contributions of this host's other
// ranks to this rank's parts (hosts_inputs_bytes); after these the parts' sums.
static inline size_t hosts_inputs_bytes(const Fsdp *f) {
  const HostsLayout *h = &f->lay.hosts;
  if (f->cfg.comm != COMM_NCCL) return 0;
  return align_bytes((size_t)h->parts * (size_t)(h->ranks - 1) * (size_t)f->lay.chunk_numel * fsdp_wire_bytes(f));
}
static inline size_t hosts_round_bytes(const Fsdp *f) {
  return hosts_inputs_bytes(f) + (size_t)f->lay.hosts.parts * (size_t)f->lay.chunk_numel * sizeof(float);
}
// Bytes of staging for contributions that arrive. Along hosts: for two rounds in flight.
static inline size_t fsdp_staging_in_bytes(const Fsdp *f, int64_t largest) {
  if (f->lay.hosts.hosts) return 2 * hosts_round_bytes(f);
  return fsdp_staging_in_numel(f, largest) * fsdp_wire_bytes(f);
}
static inline size_t fsdp_staging_out_bytes(const Fsdp *f) {
  return fsdp_stage_most(f).staged * 2 * (size_t)fsdp_shards(f) * (size_t)f->lay.chunk_numel * fsdp_wire_bytes(f);
}
// Whether the model's buffers may use the memory of gradient slots and of outgoing staging while these are not in use.
// Not on a mirrored device: the model's buffers would be mirrored, too.
static inline bool fsdp_shares_slots(const Fsdp *f) {
  return !f->shared.unwanted && (f->lay.grad_slot_bytes || fsdp_stage_most(f).staged) && !f->lay.mirrored;
}
// Whether the model's buffers may use the memory of gradient shards: if no other rank reads the shards and they are on
// the device.
static inline bool fsdp_shares_sums(const Fsdp *f) {
  return fsdp_trains(f) && f->lay.sum_numel && !fsdp_offloads(f) && !fsdp_chains(f);
}
// Adds a part to working memory.
static inline void work_part(Fsdp *f, WorkName name, size_t bytes, bool on_host) {
  f->lay.part[name] = WorkPart{f->lay.work_bytes, bytes, on_host};
  f->lay.work_bytes += bytes;
  f->lay.work_on_host += on_host ? bytes : 0;
}
// Sets the places of parameter shards: this rank's, or, if units are read zero-copy, whole units, of whose memory this
// rank takes its share.
static inline void work_params(Fsdp *f) {
  size_t at = f->lay.work_bytes;
  work_part(f, WORK_PARAMS, f->lay.params_bytes, f->cfg.offload == OFFLOAD_PARAMS);
  for (int u = 0; u < f->lay.units; u++) {
    f->lay.unit[u].params_at = at;
    at += f->lay.in_place ? f->lay.unit[u].full_bytes : f->lay.unit[u].shard_bytes;
  }
}
// Declares working memory. Its order: parts that exist only in the host mirror come first, and parameter shards read
// zero-copy last, because a shard group's are all stored in its first rank's window.
static inline void fsdp_declare_work(Fsdp *f, MemoryPlan *m) {
  const bool mpi = f->cfg.comm == COMM_MPI, params_on_host = f->cfg.offload == OFFLOAD_PARAMS;
  const size_t state = (size_t)f->lay.state_numel * 4, K = f->lay.in_place ? 0 : (size_t)f->cfg.mesh.secondary;
  const size_t each_secondary = K && fsdp_trains(f) ? (size_t)fsdp_shards(f) / K : 0;
  f->lay.work_bytes = f->lay.work_on_host = 0;
  work_part(f, WORK_CONTROL, mpi ? CONTROL_PAGE_BYTES : 0, false);
  work_part(f, WORK_SUMS, mpi && fsdp_chains(f) && fsdp_trains(f) ? state : 0, fsdp_offloads(f));
  if (!f->lay.in_place) work_params(f);
  size_t at = f->lay.work_bytes;
  for (int u = 0; u < f->lay.units; u++) {
    f->lay.unit[u].secondary_at = at;
    at += f->lay.unit[u].stage ? f->lay.unit[u].shard_bytes * each_secondary : 0;
  }
  work_part(f, WORK_SECONDARY, at - f->lay.work_bytes, false);
  work_part(f, WORK_UPDATES, f->lay.owned.in_place ? (size_t)f->lay.owned.slots * f->lay.owned.matrix_bytes : 0, false);
  // Staging, then gradient slots and the buffers that share their memory: together one pool (fsdp_pools).
  const bool shares = fsdp_shares_slots(f) && f->shared.slots_bytes;
  const size_t staging = fsdp_staging_out_bytes(f);
  work_part(f, WORK_STAGING, staging, false);
  work_part(f, WORK_SLOTS, shares ? f->shared.slots_bytes - staging : 2 * f->lay.grad_slot_bytes, false);
  size_t own = 0;
  at = f->lay.work_bytes;
  for (int u = 0; u < f->lay.units; u++) {
    const Stage *s = &f->lay.stage[f->lay.unit[u].stage];
    f->lay.unit[u].grads_at = at;
    at += grads_are_whole(s->grads) ? (size_t)f->lay.unit[u].grad_numel * 4 : 0;
    own += s->grads == GRADS_SHARD_IN_WHOLE ? (size_t)unit_wire_numel(&f->lay.unit[u]) * 4 : 0;
  }
  work_part(f, WORK_WHOLE, at - f->lay.work_bytes, false);
  if (f->lay.in_place) work_params(f);
  f->lay.work_bytes += mpi ? CONTROL_BYTES - CONTROL_PAGE_BYTES : 0;
  memory_declare(m, MEM_CONTROL, mpi ? CONTROL_BYTES : 0, NULL);
  memory_declare(m, MEM_GRADS, f->lay.part[WORK_SUMS].on_host ? 0 : f->lay.part[WORK_SUMS].bytes, NULL);
  memory_declare(m, MEM_PARAMS, params_on_host ? 0 : f->lay.params_bytes, NULL);
  memory_declare(m, MEM_SECONDARY, f->lay.part[WORK_SECONDARY].bytes, NULL);
  memory_declare(m, shares ? MEM_SLOTS_SHARED : MEM_GRAD_SLOTS, f->lay.part[WORK_SLOTS].bytes, NULL);
  memory_declare(m, MEM_GRADS, own, NULL);
  memory_declare(m, own ? MEM_PEERS_GRADS : MEM_ROOT_GRADS, f->lay.part[WORK_WHOLE].bytes - own, NULL);
  memory_declare(m, MEM_UPDATES, f->lay.part[WORK_UPDATES].bytes, NULL);
  memory_declare(m, MEM_STAGING_OUT, f->lay.part[WORK_STAGING].bytes, NULL);
  memory_declare(m, MEM_MIRROR, f->lay.mirrored ? f->lay.work_bytes : 0, NULL);
  memory_declare(m, MEM_HOST_PARAMS, params_on_host && !f->lay.mirrored ? f->lay.params_bytes : 0, &f->mem.host_params);
}
// Number of buffers in a part of the pool: one, but K all-gather buffers for blocks, and none if the part is empty.
static inline int pool_buffers(const Fsdp *f, int part) {
  return !f->lay.pool[part] ? 0 : part == POOL_BLOCK_SLOTS ? f->cfg.gather_slots : 1;
}
// Declares the pool of this rank's own buffers: gathered parameters and arriving contributions. No peer touches them,
// except by messages. They share the pool with the model's buffers; without a placement they are stored in order. On a
// CPU, staging for arriving messages is declared apart, because its size depends on the rank, and peers must find what
// they read at the same places on all ranks.
static inline void fsdp_declare_pool(Fsdp *f, MemoryPlan *m) {
  static const MemoryName line[POOL_PARTS] = {MEM_GATHER_SLOTS, MEM_ROOT_PARAMS, MEM_EXPANDED,
                                              MEM_EXPANDED,     MEM_OFFLOAD,     MEM_STAGING_IN,
                                              MEM_ORTHOGONAL,   MEM_ORTHOGONAL};
  const StageMost most = fsdp_stage_most(f);
  const size_t b_c = dtype_bytes(f->cfg.compute_dtype), slots = !f->lay.in_place, chunk = (size_t)f->lay.chunk_numel;
  const size_t in = fsdp_staging_in_bytes(f, most.state);
  const bool apart = f->cfg.comm == COMM_MPI && !f->lay.mirrored;
  f->lay.block_slot_bytes = slots * most.slot_bytes;
  const size_t bytes[POOL_PARTS] = {(size_t)f->cfg.gather_slots * f->lay.block_slot_bytes,
                                    slots * f->lay.stage[0].full_bytes, (size_t)most.expanded * b_c,
                                    (size_t)f->lay.stage[0].expand_numel * b_c,
                                    fsdp_offloads(f) * 4 * (f->cfg.native_reduce ? (size_t)most.state : chunk),
                                    apart ? 0 : in,
                                    owned_pool_bytes(f), f->lay.owned.work_bytes};
  size_t *place = f->lay.pool_at, at = 0;
  for (int i = 0; i < POOL_PARTS; i++) {
    f->lay.pool[i] = bytes[i];
    memory_declare(m, line[i], bytes[i], NULL);
    for (int k = pool_buffers(f, i); k > 0; k--)
      *place++ = at + bytes[i] - (size_t)k * (bytes[i] / (size_t)pool_buffers(f, i));
    at += bytes[i];
  }
  f->lay.pool_bytes = at;
  const size_t more = f->shared.pool_bytes ? f->shared.pool_bytes - at : 0;
  const size_t workspace = more < f->shared.workspace_bytes ? more : f->shared.workspace_bytes;
  memory_declare(m, MEM_WORKSPACE, workspace, NULL);
  memory_declare(m, MEM_ACTIVATIONS, more - workspace, &f->mem.pool, at + workspace);
  memory_declare(m, MEM_STAGING_IN, apart ? in : 0, &f->mem.staging_in);
}
// Sets the pointers to the pool's parts.
static inline void fsdp_open_pool(Fsdp *f) {
  const size_t *at = f->lay.pool_at;
  char **const to[POOL_PARTS] = {NULL, &f->gather.slot[f->cfg.gather_slots].data, &f->mem.expanded,
                                 &f->mem.root_expanded, (char **)&f->mem.sum, &f->mem.staging_in, &f->muon.slots,
                                 &f->muon.orthogonal};
  for (int i = 0; i < POOL_PARTS; i++)
    for (int k = 0; k < pool_buffers(f, i); k++, at++)
      *(i == POOL_BLOCK_SLOTS ? &f->gather.slot[k].data : to[i]) = f->mem.pool + *at;
}
void fsdp_declare(Fsdp *f, MemoryPlan *m) {
  const size_t b_r = fsdp_wire_bytes(f), chunk = (size_t)f->lay.chunk_numel;
  const size_t moment = fsdp_trains(f) * dtype_bytes(f->cfg.moment_dtype), scales = (size_t)f->lay.scales * 4;
  const size_t others = f->lay.mirrored ? fsdp_small_most_bytes(f) * (size_t)(f->mesh.world + 1) : 0;
  const bool off = fsdp_offloads(f), lands = f->lay.mirrored && f->mesh.remote;
  fsdp_declare_work(f, m);
  // The optimizer's state, on the device or, offloaded, in host memory.
  memory_declare(m, off ? MEM_HOST_STATE : MEM_MASTER, (size_t)f->lay.master_numel * 4, &f->shards.master);
  memory_declare(m, off ? MEM_HOST_STATE : MEM_MASTER_LOW, (size_t)f->lay.low_numel * 2, &f->shards.low);
  memory_declare(m, off ? MEM_HOST_STATE : MEM_OPTIMIZER, (size_t)f->lay.state_numel * moment, &f->shards.m);
  memory_declare(m, off ? MEM_HOST_STATE : MEM_OPTIMIZER, (size_t)f->lay.second_numel * moment, &f->shards.v);
  memory_declare(m, off ? MEM_HOST_STATE : MEM_LANDING, (size_t)f->lay.owned.slots * f->lay.owned.host_bytes,
                 &f->muon.host);
  const size_t sums = f->lay.part[WORK_SUMS].bytes ? 0 : fsdp_trains(f) * fsdp_sums_bytes(f, f->lay.sum_numel);
  memory_declare(m, off ? MEM_HOST_STATE : MEM_GRADS, sums, &f->shards.grads);
  // An offloaded optimizer also needs host memory for two units' parameters that are copied to the device, for the
  // norm's limbs, and for largest magnitudes and scales of E4M3. A round's sum on the device is in the pool.
  f->lay.publish_bytes = 0;
  for (int u = 0; u < f->lay.units && f->cfg.offload == OFFLOAD_OPTIMIZER; u++)
    if (f->lay.unit[u].shard_bytes > f->lay.publish_bytes) f->lay.publish_bytes = f->lay.unit[u].shard_bytes;
  for (char *&to : f->shards.publish) memory_declare(m, MEM_HOST_STATE, f->lay.publish_bytes, &to);
  const size_t limbs = NORM_LIMBS * sizeof(int64_t) + 2 * (size_t)max64(f->lay.scales, 1) * sizeof(float);
  memory_declare(m, MEM_HOST_STATE, off ? limbs : 0, &f->shards.host_limbs);
  fsdp_declare_pool(f, m);
  const size_t layers = fsdp_layers_bytes(f), world = (size_t)f->mesh.world;
  memory_declare(m, MEM_STEP, layers * (1 + world), &f->layers.sums);
  memory_declare(m, MEM_HOST_STATE, off ? layers : 0, &f->layers.offloaded);
  memory_declare(m, off ? MEM_HOST_STATE : MEM_STEP, layers ? 2 * (size_t)layer_chunk_numel(f) * sizeof(float) : 0,
                 &f->layers.scratch);
  memory_declare(m, MEM_DATA, layers * world, &f->layers.host);
  memory_declare(m, MEM_SCALES, scales * (size_t)(2 + f->mesh.world), &f->shards.scale);
  memory_declare(m, MEM_LANDING, lands * f->lay.pool[POOL_BLOCK_SLOTS], &f->mem.block_landings);
  memory_declare(m, MEM_LANDING, lands * f->lay.pool[POOL_ROOT_SLOT], &f->mem.root_landing);
  memory_declare(m, MEM_LANDING, lands * fsdp_trains(f) * 2 * (size_t)f->mesh.remote * chunk * b_r, &f->mem.landing_in);
  memory_declare(m, MEM_LANDING, others, &f->mem.small_host);
}

// *dir: the directory in which OpenMPI puts shared-memory windows. Returns the free bytes there; 0 and errno on
// failure.
static inline size_t windows_room(const char **dir) {
  *dir = getenv("OMPI_MCA_osc_sm_backing_directory");
  if (!*dir) *dir = "/dev/shm";
  struct statvfs s;
  return statvfs(*dir, &s) ? 0 : (size_t)s.f_bavail * s.f_frsize;
}
static inline size_t windows_need(size_t bytes) { return bytes + bytes / 20; } // OpenMPI asks for 5 % more
bool fsdp_shared_slots_fit(Fsdp *f) {
  if (!fsdp_shares_slots(f) || f->cfg.comm != COMM_MPI) return true;
  MemoryPlan plan = {};
  fsdp_declare_work(f, &plan);
  unsigned long long mine = f->lay.work_bytes, host = 0;
  MPI_Allreduce(&mine, &host, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, f->mesh.node);
  const char *dir;
  int here = !f->mesh.windows || f->mesh.node_world == 1 || windows_need((size_t)host) <= windows_room(&dir), all = 0;
  MPI_Allreduce(&here, &all, 1, MPI_INT, MPI_MIN, f->mesh.comm);
  f->shared.unwanted = !all;
  return all;
}
