// transport_plan.h: the transport of a dry run over the planning table, without peers. It records what a transport
// reads and writes, on the streams and between the events of the NCCL transport: a CPU's calls, which are done when
// they return, are ordered more strictly. Traffic is counted as if peers were there. A dry run's watch is called with
// each DryMove before the accesses that belong to it; predictions compute times from these.
#pragma once
#include "transport_mpi.h"
#include "transport_nccl.h"

static inline void comm_plan_touch(const Ctx *c, AccessKind kind, const void *p, size_t bytes) {
  OpTouch x = {};
  x.op = kind == ACCESS_READ ? OP_GIVE : OP_TAKE;
  touch(&x, kind, p, bytes);
  touch_tell(c, &x);
}
// Reports a DryMove to the watch. If it is a message that other ranks need not have, comm_plan_moved ends it.
static inline void comm_plan_move(const Fsdp *f, RecordStream stream, DryMove x) {
  if (f->dry && f->record->watch) f->record->watch->move(f->record->watch, stream, &x);
}
static inline void comm_plan_moved(const Fsdp *f) {
  if (f->dry && f->record->watch) f->record->watch->move(f->record->watch, RECORD_REDUCE, NULL);
}
static inline void comm_plan_sum_moves(const Fsdp *f, ReduceSpan x, bool near, int hops, bool after_start) {
  DryMove m = {};
  m.kind = MOVE_SUM, m.bytes = (double)x.numel * 4, m.near = near, m.hops = hops, m.after_start = after_start;
  comm_plan_move(f, RECORD_REDUCE, m);
}
// Whether ranks of a host copy what they gather and send from each other, and do not read it in place.
static inline bool comm_plan_copies(const Fsdp *f) { return f->cfg.copies || !f->mesh.windows; }
static inline void comm_plan_open(Fsdp *f) {
  const size_t others = f->lay.in_place ? (size_t)fsdp_shards(f) * f->lay.params_bytes : 0;
  streams_open(f);
  f->mem.work.at = record_addresses(f->record, f->lay.work_bytes + others);
  if (f->lay.mirrored) f->mem.window = record_addresses(f->record, f->lay.work_bytes);
  f->mem.params_home.at = f->lay.part[WORK_PARAMS].on_host ? f->mem.window : f->mem.work.at;
}
static inline void comm_plan_gather_start(Fsdp *f, int s, GatherSlot *slot) {
  const GatherSource g = fsdp_source(f, slot->from_secondary);
  DryMove m = {};
  m.kind = MOVE_GATHER, m.group = group_place(&f->mesh, g.group);
  EACH_PIECE_OF_STAGE(f, s, u, i) m.bytes += (double)fsdp_gather_piece(f, g, u, i).bytes;
  m.copies = comm_plan_copies(f), m.copied = (m.group.here - 1) * m.bytes;
  m.from_host = f->cfg.offload == OFFLOAD_PARAMS && !g.secondary;
  comm_plan_move(f, RECORD_GATHER, m);
  fsdp_count_gather(f, s, slot);
  step_event_wait(&f->gather_ctx, &slot->released);
  EACH_PIECE_OF_STAGE(f, s, u, i) {
    const GatherPiece p = fsdp_gather_piece(f, g, u, i);
    comm_plan_touch(&f->gather_ctx, ACCESS_WRITE, slot->data + p.to_at, (size_t)g.group->size * p.bytes);
    f->traffic.gather_bytes += (g.group->size - 1) * (int64_t)p.bytes;
  }
  if (fsdp_stores_secondary(f, s, slot)) fsdp_store_secondary(f, s, slot);
  step_event_record(&f->gather_ctx, &slot->arrived);
}
static inline void comm_plan_gradient_ready(Fsdp *f) {
  comm_self_table().gradient_ready(f);
  DryMove m = {};
  m.kind = MOVE_START;
  comm_plan_move(f, RECORD_REDUCE, m);
}
// Records the contributions that arrive in a round over NCCL: as an access to all of the staging.
static inline void comm_plan_staging_in(Fsdp *f, AccessKind kind, uint64_t round) {
  const size_t bytes = f->lay.pool[POOL_STAGING_IN];
  if (f->cfg.comm != COMM_NCCL || !bytes) return;
  comm_plan_touch(&f->reduce_ctx, kind, comm_nccl_staging_in(f, round, 0), f->cfg.native_reduce ? bytes : bytes / 2);
}
// Every owner reads its part of this rank's contributions; of a gradient that is not staged, all bytes are recorded
// from the first to the last.
static inline void comm_plan_round_send(Fsdp *f, uint64_t round, ReduceSpan x) {
  const bool staged = f->lay.stage[f->job.stage].staged;
  const int S = fsdp_shards(f);
  const HostsLayout *h = &f->lay.hosts;
  DryMove m = {};
  m.kind = MOVE_CONTRIBUTIONS, m.group = group_place(&f->mesh, &f->mesh.shard);
  EACH_RUN(f, x, run) m.bytes += (double)run.numel * (double)fsdp_wire_bytes(f);
  m.copies = comm_plan_copies(f), m.copied = f->mesh.windows ? 0 : (m.group.here - 1) * m.bytes;
  m.ring = f->cfg.native_reduce && !h->hosts;
  if (h->hosts) m.group = GroupPlace{h->ranks, 1, h->ranks}, m.bytes *= h->parts;
  else if (m.ring) m.bytes *= m.group.size - 1;
  comm_plan_move(f, RECORD_REDUCE, m);
  EACH_RUN(f, x, run) {
    const size_t bytes = (size_t)run.numel * fsdp_wire_bytes(f), at = fsdp_contribution_at(f, 0, round, x, run);
    const size_t last = fsdp_contribution_at(f, S - 1, round, x, run);
    if (!staged) comm_plan_touch(&f->reduce_ctx, ACCESS_READ, fsdp_work(f, at), last - at + bytes);
    for (int i = 0; i < S && staged; i++)
      comm_plan_touch(&f->reduce_ctx, ACCESS_READ, fsdp_work(f, fsdp_contribution_at(f, i, round, x, run)), bytes);
  }
  comm_plan_staging_in(f, ACCESS_WRITE, round);
}
static inline void comm_plan_round_done(Fsdp *f, uint64_t round) { comm_plan_staging_in(f, ACCESS_READ, round); }
static inline void comm_plan_chain_take(Fsdp *f, uint64_t, ReduceSpan x, float *sum) {
  const Mesh *m = &f->mesh;
  comm_plan_sum_moves(f, x, m->peer[chain_before(f)].host == m->peer[m->rank].host, m->replicate.me, true);
  chain_count(f, x.numel);
  comm_plan_touch(&f->reduce_ctx, ACCESS_WRITE, sum, (size_t)x.numel * 4);
}
static inline void comm_plan_chain_give(Fsdp *f, uint64_t, ReduceSpan x, float *sum) {
  comm_plan_touch(&f->reduce_ctx, ACCESS_READ, sum, (size_t)x.numel * 4);
}
static inline void comm_plan_return_start(Fsdp *f, SumReturn *r) {
  const Unit *u = &f->lay.unit[r->unit];
  DryMove m = {};
  m.kind = MOVE_RETURN, m.group = group_place(&f->mesh, &f->mesh.replicate);
  m.bytes = (double)u->state_numel * 4;
  if (f->cfg.native_reduce) m.bytes = 2 * m.bytes * (m.group.size - 1) / m.group.size;
  comm_plan_move(f, RECORD_REDUCE, m);
  comm_plan_touch(&f->reduce_ctx, f->cfg.native_reduce ? ACCESS_UPDATE : ACCESS_WRITE, f->shards.grads + u->sum_base,
                  (size_t)u->state_numel * 4);
  // Offloaded shards are copied through a buffer on the device.
  const size_t sum = f->cfg.comm == COMM_NCCL ? f->lay.pool[POOL_SUM] : 0;
  if (sum) comm_plan_touch(&f->reduce_ctx, ACCESS_WRITE, f->mem.sum, sum);
  if (sum) comm_plan_touch(&f->reduce_ctx, ACCESS_READ, f->mem.sum, sum);
  comm_plan_moved(f);
}
static inline void comm_plan_small(Fsdp *f, const void *mine, void *all, size_t bytes) {
  DryMove m = {};
  m.kind = MOVE_SMALL, m.group = GroupPlace{f->mesh.world, f->mesh.hosts, f->mesh.node_world};
  m.bytes = (double)bytes * (f->mesh.world - 1);
  comm_plan_move(f, RECORD_MODEL, m);
  comm_plan_touch(f->ctx, ACCESS_READ, mine, bytes);
  comm_plan_touch(f->ctx, ACCESS_WRITE, all, bytes * (size_t)f->mesh.world);
}
static inline void comm_plan_update_message(Fsdp *f, int, UpdateMessage m) {
  if (!f->lay.mirrored) comm_plan_touch(&f->reduce_ctx, m.sends ? ACCESS_READ : ACCESS_WRITE, m.at, m.bytes);
}
// A mirrored device's copies to and from the host, as if messages took no time.
static inline void comm_plan_exchange(Fsdp *f, int round, bool back) {
  const bool runs = f->lay.mirrored && !fsdp_offloads(f);
  if (runs && !back) comm_mpi_mirror_runs(f, round, true);
  if (f->lay.mirrored) comm_mpi_mirror_matrix(f, round, back);
  updates_each_message(f, round, back, comm_plan_update_message);
  if (runs && back) comm_mpi_mirror_runs(f, round, false);
}
// A round of Muon's matrices, one way: links carry what is sent and what is received at once.
static inline void comm_plan_updates_move(const Fsdp *f, int round, bool back) {
  const Mesh *m = &f->mesh;
  const int S = fsdp_shards(f), me = m->rank, host = m->peer[me].host;
  double bytes[2][2] = {};                       // sent, received; between hosts, inside
  Span run;
  EACH_OWNED(f, round, x) {
    const bool own = x->owner == me;
    for (int r = back ? 0 : me / S * S; r < (back ? m->world : me / S * S + S) && own; r++)
      if (r != me && owned_run(f, x, r % S, &run))
        bytes[!back][m->peer[r].host == host] += (double)owned_bytes(run.numel);
    if (!own && (back || owned_gives(f, x)) && owned_run(f, x, m->shard.me, &run))
      bytes[back][m->peer[x->owner].host == host] += (double)owned_bytes(run.numel);
  }
  DryMove x = {};
  x.kind = MOVE_UPDATES;
  x.between = fmax(bytes[0][0], bytes[1][0]), x.inside = fmax(bytes[0][1], bytes[1][1]);
  comm_plan_move(f, RECORD_REDUCE, x);
}
static inline void comm_plan_updates(Fsdp *f, UpdateMove move, int round) {
  const bool starts = move == UPDATES_GIVE || move == UPDATES_BACK, back = move == UPDATES_BACK;
  const bool moves = f->mesh.world > 1 || fsdp_offloads(f);
  if (starts && !f->lay.owned.in_place && updates_move(f, round, back)) comm_plan_updates_move(f, round, back);
  if (moves && !f->lay.owned.in_place) updates_by_stream(f, move, round, comm_plan_exchange);
  comm_plan_moved(f);
}
// Along hosts: records the access to the sum of a part, or of the own shard, that a message sends or receives.
static inline void comm_plan_sum(Fsdp *f, AccessKind kind, uint64_t round, int part, ReduceSpan x) {
  EACH_RUN(f, x, run)
    comm_plan_touch(&f->reduce_ctx, kind, fsdp_part_sum(f, round, part, x, run), (size_t)run.numel * 4);
}
static inline void comm_plan_hosts_begin(Fsdp *f, uint64_t round, ReduceSpan x) {
  comm_plan_sum_moves(f, x, false, 0, false);
  if (f->lay.hosts.begin != f->mesh.shard.me && !fsdp_begins(f)) comm_plan_sum(f, ACCESS_READ, round, OWN_SHARD, x);
  comm_plan_moved(f);
}
// The first part of a reduction has passed through all hosts before this one.
static inline bool comm_plan_part_arrived(Fsdp *f, uint64_t round, int part, ReduceSpan x) {
  const bool receives = hosts_receives_part(f, part), first = !f->job.past[REDUCE_FOLD] && !part && receives;
  if (f->lay.hosts.hosts) comm_plan_sum_moves(f, x, false, first ? f->lay.hosts.me : 0, first);
  if (receives) comm_plan_sum(f, ACCESS_WRITE, round, part, x);
  if (f->lay.hosts.hosts) comm_plan_moved(f);
  return true;
}
static inline const char *comm_plan_part_input(const Fsdp *f, uint64_t round, int, int part, ReduceSpan x,
                                               PieceRun run) {
  return fsdp_work(f, fsdp_contribution_at(f, f->lay.hosts.part[part].owner, round, x, run));
}
static inline void comm_plan_hosts_give(Fsdp *f, uint64_t round, int part, ReduceSpan x) {
  const HostsLayout *h = &f->lay.hosts;
  if (!h->me) comm_plan_sum_moves(f, x, false, 0, false);    // links carry both ways at once: others receive
  if (h->me < h->hosts - 1) comm_plan_sum(f, ACCESS_READ, round, part, x);
  comm_plan_moved(f);
}
// The result has passed through all hosts after this one.
static inline bool comm_plan_hosts_back(Fsdp *f, uint64_t round, ReduceSpan x) {
  const HostsLayout *h = &f->lay.hosts;
  comm_plan_sum_moves(f, x, false, h->hosts - 1 - h->me, false);
  for (int p = 0; p < h->parts && h->me == h->hosts - 1; p++)
    if (h->part[p].after != f->mesh.shard.me) comm_plan_sum(f, ACCESS_READ, round, p, x);
  if (h->end != f->mesh.shard.me) comm_plan_sum(f, ACCESS_WRITE, round, OWN_SHARD, x);
  comm_plan_moved(f);
  return true;
}
static inline void comm_plan_step_end(Fsdp *f) { f->traffic.small += f->cfg.comm == COMM_MPI; }
static inline Comm comm_plan_table() {
  Comm c = comm_self_table();
  c.open = comm_plan_open;
  c.close = comm_self_nothing;
  c.step_end = comm_plan_step_end;
  c.gather_start = comm_plan_gather_start;
  c.gradient_ready = comm_plan_gradient_ready;
  c.round_send = comm_plan_round_send;
  c.chain_take = comm_plan_chain_take;
  c.hosts_begin = comm_plan_hosts_begin;
  c.part_arrived = comm_plan_part_arrived;
  c.part_input = comm_plan_part_input;
  c.hosts_give = comm_plan_hosts_give;
  c.round_done = comm_plan_round_done;
  c.hosts_back = comm_plan_hosts_back;
  c.chain_give = comm_plan_chain_give;
  c.return_start = comm_plan_return_start;
  c.small_all_gather = comm_plan_small;
  c.updates = comm_plan_updates;
  return c;
}
static const Comm comm_plan = comm_plan_table();
