// transport_nccl.h: one communicator for each group on each stream. Stream of reductions: all ranks (the small
// all-gather), and split from that the shard group and the replicate group. Stream of gathers: the shard group, and
// split from that the secondary group. Split communicators share NCCL's buffers and run one after the other, as their
// stream makes them do anyway. Gathers and reductions share no buffers, so that they overlap; only events order them.
// All ranks enqueue the same calls in the same order, and each call reaches the device before the next one
// (collectives.cuh): that order keeps several communicators from deadlock.
#pragma once
#include "transport_self.h"

// Whether a group needs a communicator: it has several ranks, or a test wants communicators of one (comms_of_one).
static inline bool comm_nccl_meets(const Fsdp *f, const RankGroup *g) { return g->size > 1 || f->cfg.comms_of_one; }
// Opens a communicator of all ranks of a group by the id that its first rank makes. All ranks of the program come here.
static inline void *comm_nccl_group(Fsdp *f, const RankGroup *g) {
  const Collectives *nccl = f->ctx->ops->nccl;
  void *comm = NULL;
  char id[NCCL_ID_BYTES] = {}, *ids = (char *)malloc((size_t)f->mesh.world * NCCL_ID_BYTES);
  if (g->me == 0 && comm_nccl_meets(f, g)) nccl->id_make(f->ctx, id);
  MPI_Allgather(id, NCCL_ID_BYTES, MPI_BYTE, ids, NCCL_ID_BYTES, MPI_BYTE, f->mesh.comm);
  if (comm_nccl_meets(f, g))
    nccl->comm_open(f->ctx, &comm, ids + (size_t)g->rank[0] * NCCL_ID_BYTES, g->me, g->size);
  free(ids);
  return comm;
}
// Splits the group's communicator from `parent`. All ranks of parent call it.
static inline void *comm_nccl_part(Fsdp *f, void *parent, const RankGroup *g) {
  void *comm = NULL;
  if (parent && comm_nccl_meets(f, g)) f->ctx->ops->nccl->comm_split(f->ctx, &comm, parent, g->rank[0], g->me);
  return comm;
}
static inline void comm_nccl_warm(Fsdp *f);
// Opens communicators. NCCL connects, and allocates memory, at the first call of a kind, so each kind of call of a step
// is made once here, before NCCL's memory is measured. A captured step then never connects.
static inline void comm_nccl_connect(Fsdp *f) {
  size_t before, after, total;
  RankGroup all = rank_group(0, 1, f->mesh.world, f->mesh.rank);
  f->ctx->ops->memory_left(f->ctx, &before, &total);
  streams_open(f);
  liveness_phase("opening NCCL's communicators");
  f->nccl.world = comm_nccl_group(f, &all);
  f->nccl.reduce = comm_nccl_part(f, f->nccl.world, &f->mesh.shard);
  if (f->cfg.mesh.replicas > 1) f->nccl.replicate = comm_nccl_part(f, f->nccl.world, &f->mesh.replicate);
  f->nccl.gather = comm_nccl_group(f, &f->mesh.shard);
  if (f->lay.part[WORK_SECONDARY].bytes) f->nccl.secondary = comm_nccl_part(f, f->nccl.gather, &f->mesh.secondary);
  comm_nccl_warm(f);
  f->ctx->ops->memory_left(f->ctx, &after, &total);
  liveness_phase("start-up");
  memory_measure(f->plan, MEM_NCCL, before, after);
  free(all.rank);
}
// Closes split communicators before the one that they were split from.
static inline void comm_nccl_close(Fsdp *f) {
  void *const comms[] = {f->nccl.secondary, f->nccl.gather, f->nccl.replicate, f->nccl.reduce, f->nccl.world};
  for (void *comm : comms) if (comm) f->ctx->ops->nccl->comm_close(f->ctx, comm);
  streams_close(f);
  fsdp_close_work(f);
}
// An offloaded shard is copied to its place in the slot first, and gathered from there.
static inline void comm_nccl_gather_start(Fsdp *f, int s, GatherSlot *slot) {
  const Collectives *nccl = f->ctx->ops->nccl;
  const GatherSource g = fsdp_source(f, slot->from_secondary);
  const bool from_host = f->cfg.offload == OFFLOAD_PARAMS && !g.secondary;
  fsdp_count_gather(f, s, slot);
  step_event_wait(&f->gather_ctx, &slot->released);
  fsdp_mark(f, &f->gather_ctx, MARK_GATHER, 1 + s);
  EACH_PIECE_OF_STAGE(f, s, u, i) {
    const GatherPiece p = fsdp_gather_piece(f, g, u, i);
    if (from_host)
      f->ctx->ops->copy(&f->gather_ctx, slot->data + p.to_at + (size_t)g.group->me * p.bytes,
                        fsdp_home(f, p.from_at), p.bytes);
  }
  const bool meets = comm_nccl_meets(f, g.group);
  if (meets) nccl->group_begin(&f->gather_ctx);
  EACH_PIECE_OF_STAGE(f, s, u, i) {
    if (!meets) continue;
    const GatherPiece p = fsdp_gather_piece(f, g, u, i);
    char *to = slot->data + p.to_at;
    nccl->all_gather(&f->gather_ctx, g.secondary ? f->nccl.secondary : f->nccl.gather, to,
                     from_host ? to + (size_t)g.group->me * p.bytes : fsdp_work(f, p.from_at), p.bytes);
    f->traffic.gather_bytes += (g.group->size - 1) * (int64_t)p.bytes;
  }
  if (meets) nccl->group_end(&f->gather_ctx);
  if (fsdp_stores_secondary(f, s, slot)) fsdp_store_secondary(f, s, slot);
  step_event_record(&f->gather_ctx, &slot->arrived);
}
// --reduce native: NCCL's sum arrives in one buffer, so the round before must have ended.
static inline bool comm_nccl_round_free(Fsdp *f, uint64_t) {
  return !f->cfg.native_reduce || f->job.past[REDUCE_SEND] == f->job.past[REDUCE_END];
}
static inline char *comm_nccl_staging_in(const Fsdp *f, uint64_t round, int i) {
  if (f->cfg.native_reduce) return f->mem.staging_in;
  if (f->lay.hosts.hosts) return f->mem.staging_in + (round & 1) * hosts_round_bytes(f);
  const size_t chunk_bytes = (size_t)f->lay.chunk_numel * fsdp_wire_bytes(f);
  return f->mem.staging_in + ((round & 1) * (size_t)fsdp_shards(f) + (size_t)i) * chunk_bytes;
}
// ---- inter-node reduction chain
// All ranks of the group enqueue these in one order: what a round's ranks of a host contribute; what owners start with;
// parts along the hosts, in order of owners; results. A part's message waits only for those of owners before it and of
// hosts before, so that no messages wait for each other in a circle. A part continues while the next one comes.
// Where the contribution of this host's i-th rank to a part is received.
static inline char *comm_nccl_part_staging(const Fsdp *f, uint64_t round, int i, int part) {
  const HostsLayout *h = &f->lay.hosts;
  const int other = i - (h->first + i > f->mesh.shard.me);
  return comm_nccl_staging_in(f, round, 0) +
         (size_t)(part * (h->ranks - 1) + other) * (size_t)f->lay.chunk_numel * fsdp_wire_bytes(f);
}
static inline void comm_nccl_hosts_post(Fsdp *f, uint64_t round, ReduceSpan x) {
  const Collectives *nccl = f->ctx->ops->nccl;
  const HostsLayout *h = &f->lay.hosts;
  const size_t b_r = fsdp_wire_bytes(f);
  const int me = f->mesh.shard.me;
  nccl->group_begin(&f->reduce_ctx);
  EACH_RUN(f, x, run) {
    const size_t to = (size_t)(run.state_at - x.first) * b_r, bytes = (size_t)run.numel * b_r;
    for (int o = 0; o < fsdp_shards(f); o++)
      if (h->adder[o] != me)
        nccl->send(&f->reduce_ctx, f->nccl.reduce, fsdp_work(f, fsdp_contribution_at(f, o, round, x, run)), bytes,
                   h->adder[o]);
    for (int p = 0; p < h->parts; p++) for (int i = 0; i < h->ranks; i++)
      if (h->first + i != me)
        nccl->receive(&f->reduce_ctx, f->nccl.reduce, comm_nccl_part_staging(f, round, i, p) + to, bytes, h->first + i);
  }
  nccl->group_end(&f->reduce_ctx);
}
// Sends or receives the sum of a part in a round, or of the own shard, to or from rank `peer` of the shard group.
static inline void comm_nccl_sum(Fsdp *f, uint64_t round, ReduceSpan x, int part, HostsMove move, int peer) {
  const Collectives *nccl = f->ctx->ops->nccl;
  EACH_RUN(f, x, run) {
    float *at = fsdp_part_sum(f, round, part, x, run);
    const size_t bytes = (size_t)run.numel * 4;
    if (move == HOSTS_SEND) nccl->send(&f->reduce_ctx, f->nccl.reduce, at, bytes, peer);
    else nccl->receive(&f->reduce_ctx, f->nccl.reduce, at, bytes, peer);
  }
}
static inline void comm_nccl_hosts_begin(Fsdp *f, uint64_t round, ReduceSpan x) {
  const Collectives *nccl = f->ctx->ops->nccl;
  const HostsLayout *h = &f->lay.hosts;
  if (fsdp_begins(f)) return;
  nccl->group_begin(&f->reduce_ctx);
  for (int p = 0; p < h->parts && !h->me; p++)
    if (hosts_receives_part(f, p)) comm_nccl_sum(f, round, x, p, HOSTS_RECEIVE, h->part[p].before);
  const SchedulePlace was = schedule_enter(f->record, SCHEDULE_CHAIN, f->job.stage, round);
  if (h->begin != f->mesh.shard.me) comm_nccl_sum(f, round, x, OWN_SHARD, HOSTS_SEND, h->begin);
  schedule_return(f->record, was);
  nccl->group_end(&f->reduce_ctx);
}
static inline void comm_nccl_hosts_exchange(Fsdp *f, uint64_t round, int gives, int takes, ReduceSpan x) {
  const Collectives *nccl = f->ctx->ops->nccl;
  const HostsLayout *h = &f->lay.hosts;
  nccl->group_begin(&f->reduce_ctx);
  if (gives >= 0 && h->me < h->hosts - 1)
    comm_nccl_sum(f, round, x, gives, HOSTS_SEND, h->part[gives].after);
  if (takes < h->parts && h->me)
    comm_nccl_sum(f, round, x, takes, HOSTS_RECEIVE, h->part[takes].before);
  nccl->group_end(&f->reduce_ctx);
}
static inline bool comm_nccl_part_arrived(Fsdp *f, uint64_t round, int part, ReduceSpan x) {
  if (f->lay.hosts.hosts && !part) comm_nccl_hosts_exchange(f, round, -1, 0, x);
  return true;
}
static inline void comm_nccl_hosts_give(Fsdp *f, uint64_t round, int part, ReduceSpan x) {
  comm_nccl_hosts_exchange(f, round, part, part + 1, x);
}
// Results of a round are sent after the parts of the next round: hosts before the last work on these meanwhile.
static inline bool comm_nccl_hosts_back(Fsdp *f, uint64_t round, ReduceSpan x) {
  const Collectives *nccl = f->ctx->ops->nccl;
  const HostsLayout *h = &f->lay.hosts;
  nccl->group_begin(&f->reduce_ctx);
  for (int p = 0; p < h->parts && h->me == h->hosts - 1; p++)
    if (h->part[p].after != f->mesh.shard.me)
      comm_nccl_sum(f, round, x, p, HOSTS_SEND, h->part[p].after);
  if (h->end != f->mesh.shard.me) comm_nccl_sum(f, round, x, OWN_SHARD, HOSTS_RECEIVE, h->end);
  nccl->group_end(&f->reduce_ctx);
  return true;
}
// Ordered: all-to-all, each rank's part of the own shard into its own chunk; fsdp.h adds them in order of ranks.
static inline void comm_nccl_round_send(Fsdp *f, uint64_t round, ReduceSpan x) {
  const Collectives *nccl = f->ctx->ops->nccl;
  const size_t b_r = fsdp_wire_bytes(f);
  const int S = fsdp_shards(f);
  if (!comm_nccl_meets(f, &f->mesh.shard)) return;
  if (f->lay.hosts.hosts) {
    comm_nccl_hosts_post(f, round, x);
    return;
  }
  nccl->group_begin(&f->reduce_ctx);
  EACH_RUN(f, x, run) {
    const size_t to = (size_t)(run.state_at - x.first) * b_r, bytes = (size_t)run.numel * b_r;
    if (f->cfg.native_reduce)
      nccl->reduce_scatter(&f->reduce_ctx, f->nccl.reduce,
                           tensor_of(f->mem.staging_in + to, f->cfg.wire_dtype, run.numel),
                           fsdp_work(f, fsdp_contribution_at(f, 0, round, x, run)));
    for (int i = 0; i < S && !f->cfg.native_reduce; i++) {
      nccl->send(&f->reduce_ctx, f->nccl.reduce, fsdp_work(f, fsdp_contribution_at(f, i, round, x, run)), bytes, i);
      nccl->receive(&f->reduce_ctx, f->nccl.reduce, comm_nccl_staging_in(f, round, i) + to, bytes, i);
    }
  }
  nccl->group_end(&f->reduce_ctx);
}
static inline const char *comm_nccl_part_input(const Fsdp *f, uint64_t round, int i, int part, ReduceSpan x,
                                               PieceRun run) {
  const HostsLayout *h = &f->lay.hosts;
  const bool sent = h->hosts ? h->first + i != f->mesh.shard.me : comm_nccl_meets(f, &f->mesh.shard);
  if (!sent) return fsdp_work(f, fsdp_contribution_at(f, h->part[part].owner, round, x, run));
  const char *in = h->hosts ? comm_nccl_part_staging(f, round, i, part) : comm_nccl_staging_in(f, round, i);
  return in + (size_t)(run.state_at - x.first) * fsdp_wire_bytes(f);
}
// Between the last replica and the first one, at the same place of the order that all ranks enqueue in: the sums of the
// reduction before go back, of one round or all of a unit's, from `from` of the last to `to` of the first.
static inline void comm_nccl_chain_back(Fsdp *f, const float *from, float *to, int64_t numel_) {
  const Collectives *nccl = f->ctx->ops->nccl;
  const RankGroup *g = &f->mesh.replicate;
  if (g->me) nccl->send(&f->reduce_ctx, f->nccl.replicate, from, (size_t)numel_ * 4, 0);
  else nccl->receive(&f->reduce_ctx, f->nccl.replicate, to, (size_t)numel_ * 4, g->size - 1);
}
// Receives the partial sum of the replica before into `sum`, where contributions are added to it. The last replica's
// sums of the reduction before go back to the first replica: all of a unit's at once, since each round's sum has its
// own place, so that rounds follow each other along the replicas. Offloaded, all rounds share one buffer on the device,
// and a round passes all replicas before the next one starts.
static inline void comm_nccl_chain_take(Fsdp *f, uint64_t, ReduceSpan x, float *sum) {
  const RankGroup *g = &f->mesh.replicate;
  const Unit *u = &f->lay.unit[x.unit];
  const bool off = fsdp_offloads(f), first = g->me == 0;
  float *own = f->shards.grads + u->sum_base;
  chain_count(f, x.numel);
  if (off && chain_returns(f)) f->ctx->ops->copy(&f->reduce_ctx, sum, own + x.first, (size_t)x.numel * 4);
  if (off && (first || chain_returns(f))) comm_nccl_chain_back(f, sum, sum, x.numel);
  else if (!x.first && (first || chain_returns(f))) comm_nccl_chain_back(f, own, own, u->state_numel);
  if (!first) f->ctx->ops->nccl->receive(&f->reduce_ctx, f->nccl.replicate, sum, (size_t)x.numel * 4, g->me - 1);
}
static inline void comm_nccl_chain_give(Fsdp *f, uint64_t, ReduceSpan x, float *sum) {
  const RankGroup *g = &f->mesh.replicate;
  if (g->me < g->size - 1)
    f->ctx->ops->nccl->send(&f->reduce_ctx, f->nccl.replicate, sum, (size_t)x.numel * 4, g->me + 1);
}
// Broadcasts the last replica's sum of a unit to all replicas; with --reduce native NCCL all-reduces all replicas'
// sums.
static inline void comm_nccl_return_start(Fsdp *f, SumReturn *r) {
  const Collectives *nccl = f->ctx->ops->nccl;
  const Unit *u = &f->lay.unit[r->unit];
  const bool off = fsdp_offloads(f);
  const int64_t n = u->state_numel, chunk = off ? f->lay.chunk_numel : n;
  for (int64_t at = 0; at < n; at += chunk) {
    const int64_t k = min64(chunk, n - at);
    float *own = f->shards.grads + u->sum_base + at, *sum = off ? f->mem.sum : own;
    if (off) f->ctx->ops->copy(&f->reduce_ctx, sum, own, (size_t)k * 4);
    if (f->cfg.native_reduce) nccl->all_reduce(&f->reduce_ctx, f->nccl.replicate, tensor_of(sum, F32, k));
    else nccl->broadcast(&f->reduce_ctx, f->nccl.replicate, sum, (size_t)k * 4, f->mesh.replicate.size - 1);
    if (off) f->ctx->ops->copy(&f->reduce_ctx, own, sum, (size_t)k * 4);
  }
}
// The small all-gather: over the communicator of all ranks, on the stream of reductions.
static inline void comm_nccl_small(Fsdp *f, const void *mine, void *all, size_t bytes) {
  if (!f->nccl.world) { comm_self_small(f, mine, all, bytes); return; }
  step_event_record(f->ctx, &f->events.exchange_ready);
  step_event_wait(&f->reduce_ctx, &f->events.exchange_ready);
  fsdp_mark(f, &f->reduce_ctx, MARK_REDUCE, MARK_EXCHANGE);
  f->ctx->ops->nccl->all_gather(&f->reduce_ctx, f->nccl.world, all, mine, bytes);
  step_event_record(&f->reduce_ctx, &f->events.exchanged);
  step_event_wait(f->ctx, &f->events.exchanged);
}
// Every kind of call that a step makes over a communicator, with as many bytes as the least and the most of its calls
// have: which algorithm NCCL takes, and so what it connects, depends on that. The memory is given back.
struct WarmBytes { size_t least, most; };
static inline WarmBytes warm_with(WarmBytes w, size_t bytes) {
  if (!bytes) return w;
  return WarmBytes{w.most && w.least < bytes ? w.least : bytes, w.most > bytes ? w.most : bytes};
}
static inline WarmBytes comm_nccl_gathers(const Fsdp *f, bool secondary) {
  const GatherSource g = fsdp_source(f, secondary);
  WarmBytes w = {};
  for (int s = secondary ? 1 : 0; s < f->lay.stages; s++)
    EACH_PIECE_OF_STAGE(f, s, u, i) w = warm_with(w, fsdp_gather_piece(f, g, u, i).bytes);
  return w;
}
static inline void comm_nccl_warm_gather(Fsdp *f, Ctx *c, void *comm, const RankGroup *g, char *memory, WarmBytes w) {
  const size_t sizes[] = {w.least, w.most};
  for (size_t bytes : sizes)
    if (comm && bytes) f->ctx->ops->nccl->all_gather(c, comm, memory, memory + (size_t)g->me * bytes, bytes);
}
// Sizes of the broadcasts of reduced gradients to all replicas.
static inline WarmBytes comm_nccl_returns(const Fsdp *f) {
  WarmBytes w = {};
  for (int u = 0; u < f->lay.units; u++) {
    const int64_t n = f->lay.unit[u].state_numel, chunk = fsdp_offloads(f) ? min64(n, f->lay.chunk_numel) : n;
    w = warm_with(w, (size_t)chunk * 4);
    w = warm_with(w, (size_t)(n % max64(chunk, 1)) * 4);
  }
  return w;
}
static inline void comm_nccl_warm_reduce(Fsdp *f, char *memory, WarmBytes chunks) {
  const Collectives *nccl = f->ctx->ops->nccl;
  const RankGroup *g = &f->mesh.shard, *r = &f->mesh.replicate;
  const size_t b_r = fsdp_wire_bytes(f);
  Ctx *c = &f->reduce_ctx;
  const size_t sizes[] = {chunks.least, chunks.most};
  for (size_t bytes : sizes) {
    if (!f->nccl.reduce || !bytes) continue;
    if (f->cfg.native_reduce)
      nccl->reduce_scatter(c, f->nccl.reduce, tensor_of(memory + (size_t)g->me * bytes, f->cfg.wire_dtype,
                                                        (int64_t)(bytes / b_r)), memory);
    nccl->group_begin(c);
    for (int i = 0; i < g->size && !f->cfg.native_reduce; i++) {
      nccl->send(c, f->nccl.reduce, memory, bytes, i);
      nccl->receive(c, f->nccl.reduce, memory + (size_t)(1 + i) * bytes, bytes, i);
    }
    nccl->group_end(c);
  }
  nccl->group_begin(c);                          // Muon's matrices, between any two ranks
  for (int i = 0; i < f->mesh.world && f->lay.owned.rounds; i++) {
    if (i == f->mesh.rank) continue;
    nccl->send(c, f->nccl.world, memory, 256, i);
    nccl->receive(c, f->nccl.world, memory + (size_t)(1 + i) * 256, 256, i);
  }
  nccl->group_end(c);
  if (!f->nccl.replicate) return;
  if (fsdp_chains(f)) {                          // round the ring of replicas: to the next one, and from the one before
    nccl->group_begin(c);
    nccl->send(c, f->nccl.replicate, memory, 4, (r->me + 1) % r->size);
    nccl->receive(c, f->nccl.replicate, memory + 256, 4, (r->me + r->size - 1) % r->size);
    nccl->group_end(c);
  }
  const WarmBytes sums = comm_nccl_returns(f);
  const size_t of_sums[] = {sums.least, sums.most};
  for (size_t bytes : of_sums) {
    if (!bytes) continue;
    if (f->cfg.native_reduce) nccl->all_reduce(c, f->nccl.replicate, tensor_of(memory, F32, (int64_t)(bytes / 4)));
    else nccl->broadcast(c, f->nccl.replicate, memory, bytes, r->size - 1);
  }
}
static inline void comm_nccl_warm(Fsdp *f) {
  if (!f->nccl.world) return;
  const Collectives *nccl = f->ctx->ops->nccl;
  const bool trains = fsdp_trains(f);
  const size_t S = (size_t)fsdp_shards(f), world = (size_t)f->mesh.world, small = fsdp_small_most_bytes(f);
  WarmBytes gathers = comm_nccl_gathers(f, false), secondary = {}, chunks = {};
  if (f->nccl.secondary) secondary = comm_nccl_gathers(f, true);
  if (f->lay.in_place) gathers = WarmBytes{};
  const int64_t most = f->cfg.native_reduce ? fsdp_stage_most(f).state : f->lay.chunk_numel;
  for (int u = 0; u < f->lay.units && trains; u++)
    for (int i = 0; i < f->lay.unit[u].pieces; i++)
      for (size_t b : {fsdp_wire_bytes(f), f->lay.hosts.hosts ? sizeof(float) : 0})     // along hosts: sums, too
        chunks = warm_with(chunks, (size_t)min64(f->lay.unit[u].piece[i].numel, most) * b);
  size_t bytes = world * small;
  const size_t needs[] = {gathers.most * S, secondary.most * (size_t)f->mesh.secondary.size, chunks.most * (S + 1),
                          256 * (world + 1),
                          f->nccl.replicate && trains ? comm_nccl_returns(f).most : 0};
  for (size_t n : needs) if (n > bytes) bytes = n;
  char *memory = fsdp_memory_or_die(f, bytes, MEMORY_DEVICE, "the first calls of NCCL");
  comm_nccl_warm_gather(f, &f->gather_ctx, f->nccl.gather, &f->mesh.shard, memory, gathers);
  comm_nccl_warm_gather(f, &f->gather_ctx, f->nccl.secondary, &f->mesh.secondary, memory, secondary);
  f->ctx->ops->sync(&f->gather_ctx);
  if (trains) comm_nccl_warm_reduce(f, memory, chunks);
  const size_t smalls[] = {f->cfg.small_bytes, small, (size_t)f->lay.scales_trained * 4, fsdp_layers_bytes(f)};
  for (size_t k : smalls)
    if (k) nccl->all_gather(&f->reduce_ctx, f->nccl.world, memory, memory + (size_t)f->mesh.rank * k, k);
  f->ctx->ops->sync(&f->reduce_ctx);
  f->ctx->ops->memory_free(f->ctx, memory, bytes, MEMORY_DEVICE);
}
// Checks communicators for errors: after the loss of a peer or a link our calls still succeed, and kernels wait
// forever.
static inline void comm_nccl_progress(Fsdp *f) {
  void *const comms[] = {f->nccl.gather, f->nccl.reduce, f->nccl.secondary, f->nccl.replicate, f->nccl.world};
  for (void *comm : comms) if (comm) f->ctx->ops->nccl->comm_check(f->ctx, comm);
}
static inline void comm_nccl_update_message(Fsdp *f, int, UpdateMessage m) {
  const Collectives *nccl = f->ctx->ops->nccl;
  if (m.sends) nccl->send(&f->reduce_ctx, f->nccl.world, m.at, m.bytes, m.peer);
  else nccl->receive(&f->reduce_ctx, f->nccl.world, m.at, m.bytes, m.peer);
}
static inline void comm_nccl_exchange(Fsdp *f, int round, bool back) {
  if (f->mesh.world == 1) return;
  f->ctx->ops->nccl->group_begin(&f->reduce_ctx);
  updates_each_message(f, round, back, comm_nccl_update_message);
  f->ctx->ops->nccl->group_end(&f->reduce_ctx);
}
static inline void comm_nccl_updates(Fsdp *f, UpdateMove move, int round) {
  if (f->mesh.world > 1 || fsdp_offloads(f)) updates_by_stream(f, move, round, comm_nccl_exchange);
}
static inline Comm comm_nccl_table() {
  Comm c = comm_self_table();
  c.connect = comm_nccl_connect;
  c.open = fsdp_open_work;
  c.close = comm_nccl_close;
  c.progress = comm_nccl_progress;
  c.gather_start = comm_nccl_gather_start;
  c.round_free = comm_nccl_round_free;
  c.round_send = comm_nccl_round_send;
  c.chain_take = comm_nccl_chain_take;
  c.hosts_begin = comm_nccl_hosts_begin;
  c.part_arrived = comm_nccl_part_arrived;
  c.part_input = comm_nccl_part_input;
  c.hosts_give = comm_nccl_hosts_give;
  c.hosts_back = comm_nccl_hosts_back;
  c.chain_give = comm_nccl_chain_give;
  c.return_start = comm_nccl_return_start;
  c.small_all_gather = comm_nccl_small;
  c.updates = comm_nccl_updates;
  return c;
}
static const Comm comm_nccl = comm_nccl_table();
