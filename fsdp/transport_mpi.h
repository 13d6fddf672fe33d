// transport_mpi.h: ranks of one host read each other's windows: contributions in place, and parameters too where all of
// a shard group is on one host, so that nothing is gathered. Ranks of different hosts exchange nonblocking messages. A
// device whose memory the host cannot access has a mirror of its shared memory in a pinned window, and copies both
// ways. The host waits for these copies, so such a step cannot be captured. Any number of ranks can share a device.
#pragma once
#include "transport_self.h"
#include "windows.h"

enum : size_t { MESSAGE_MOST_BYTES = 1 << 30 };  // MPI's counts are ints, and some networks take less than 2^31
int fsdp_mpi_count(int64_t n) {
  CHECK(n <= INT32_MAX, "message of %lld elements", (long long)n);
  return (int)n;
}
static inline void comm_mpi_open(Fsdp *f) {
  comm_mpi_open_window(f);
  f->mem.work.at = f->mem.window;
  if (f->lay.mirrored) {
    fsdp_open_work(f);
    streams_open(f);
  } else f->gather_ctx = f->reduce_ctx = *f->ctx;
  f->messages.parts = (MessageSet *)calloc(2 * (size_t)(f->lay.hosts.parts + 1), sizeof(MessageSet));
  f->messages.returns = (MessageSet *)calloc((size_t)f->lay.units, sizeof(MessageSet));
}
static inline void comm_mpi_close(Fsdp *f) {
  const Ops *ops = f->ctx->ops;
  Messages *m = &f->messages;
  for (int k = 0; k <= f->cfg.gather_slots; k++) free(f->gather.slot[k].messages.request);
  for (int parity = 0; parity < 2; parity++)
    for (MessageSet *s : {m->sends, m->receives, m->chain_sends, m->chain_receives, m->chain_backs})
      free(s[parity].request);
  for (int i = 0; i < 2 * (f->lay.hosts.parts + 1); i++) free(m->parts[i].request);
  for (int u = 0; u < f->lay.units; u++) free(m->returns[u].request);
  for (MessageSet &s : f->muon.messages) free(s.request);
  free(m->parts);
  free(m->returns);
  if (f->lay.mirrored) {
    fsdp_close_work(f);
    streams_close(f);
  }
  for (int r = 0; r < f->mesh.world && f->lay.mirrored && f->mem.has_win; r++)
    if (mesh_shares_memory(&f->mesh, r)) ops->memory_unpin(f->ctx, f->mesh.peer[r].window);
  if (f->mem.has_win) { MPI_Win_unlock_all(f->mem.win); MPI_Win_free(&f->mem.win); }
  else ops->memory_free(f->ctx, f->mem.window, f->lay.work_bytes, f->lay.mirrored ? MEMORY_PINNED : MEMORY_DEVICE);
}

// Waits for a mirrored device: messages and copies of this pass overwrite memory that earlier passes read.
static inline void comm_mpi_step_begin(Fsdp *f) {
  if (f->lay.mirrored) f->ctx->ops->sync(f->ctx);
}
// The barrier separates the writing of shards from their reading. The reading, in place or by gathers, is separated
// from the next writing by the step's small all-gather, which no rank leaves before all have ended their passes and
// which every update comes after.
// Initialisation and loading write shards, too; they come before all passes and end with this barrier.
static inline void comm_mpi_step_end(Fsdp *f) {
  if (f->lay.mirrored) {
    const size_t at = f->lay.part[WORK_PARAMS].at;
    if (f->mem.params_home.at != f->mem.window)
      f->ctx->ops->copy(f->ctx, f->mem.window + at, fsdp_work(f, at), f->lay.params_bytes);
    f->ctx->ops->sync(f->ctx);
  }
  f->traffic.small++;
  record_collective(f->record, RECORD_HOST, COLLECTIVE_BARRIER, OVER_WORLD, 1, 0);
  const FlightCollective barrier = note_exchange(f, NOTE_BARRIER);
  windows_fence();
  MPI_Barrier(f->mesh.comm);
  windows_fence();
  note_exchanged(f, NOTE_BARRIER, barrier);
}

// The mesh's communicator for a channel.
static inline MPI_Comm channel_comm(const Fsdp *f, Channel c) {
  return c == CHANNEL_GATHER ? f->mesh.gather_comm : c == CHANNEL_REDUCE ? f->mesh.reduce_comm : f->mesh.chain_comm;
}
static inline MPI_Request *message_request(MessageSet *s) {
  if (s->pending == s->room) {
    s->room = s->room ? 2 * s->room : 8;
    s->request = (MPI_Request *)realloc(s->request, sizeof(MPI_Request) * (size_t)s->room);
  }
  return &s->request[s->pending++];
}
static inline void message_send(Fsdp *f, Channel c, MessageSet *s, const void *p, int bytes, int to, int tag) {
  record_message(f->record, RECORD_SEND, RECORD_HOST, c, s, to, p, (size_t)bytes);
  MPI_Isend(p, bytes, MPI_BYTE, to, tag, channel_comm(f, c), message_request(s));
}
static inline void message_receive(Fsdp *f, Channel c, MessageSet *s, void *p, int bytes, int from, int tag) {
  record_message(f->record, RECORD_RECEIVE, RECORD_HOST, c, s, from, p, (size_t)bytes);
  MPI_Irecv(p, bytes, MPI_BYTE, from, tag, channel_comm(f, c), message_request(s));
}
static inline bool messages_done(Fsdp *f, MessageSet *s) {
  if (!s->pending) return true;
  int flag = 0;
  MPI_Testall(s->pending, s->request, &flag, MPI_STATUSES_IGNORE);
  if (flag) s->pending = 0;
  if (flag) record_ended(f->record, RECORD_HOST, s);
  return flag;
}
// OpenMPI moves messages only inside its calls.
static inline void comm_mpi_progress(Fsdp *f) {
  int flag;
  if (f->mesh.hosts > 1 || !f->mesh.windows)
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, f->mesh.reduce_comm, &flag, MPI_STATUS_IGNORE);
}
// Waits until the device has copied the slot's landing memory of the last gather: messages may then arrive in it again.
static inline void comm_mpi_landing_free(Fsdp *f, int s, GatherSlot *slot) {
  bool done = !slot->landing || !slot->arrived.recorded;
  for (int spins = 0; !done; f->meanwhile(f)) {
    f->ctx->ops->event_done(f->ctx, slot->arrived.event, &done);
    if (!done) liveness_pause(&spins, "a copy of the GPU", s);
  }
}
static inline void comm_mpi_gather_start(Fsdp *f, int s, GatherSlot *slot) {
  fsdp_count_gather(f, s, slot);
  comm_mpi_landing_free(f, s, slot);
  const GatherSource g = fsdp_source(f, slot->from_secondary);
  MessageSet *set = &slot->messages;
  char *landing = f->lay.mirrored ? slot->landing : slot->data;
  for (int k = 0; k < g.group->size && f->mesh.remote; k++) {
    const int r = g.group->rank[k];
    if (r == f->mesh.rank || mesh_shares_memory(&f->mesh, r)) continue;
    EACH_PIECE_OF_STAGE(f, s, u, i) {
      const GatherPiece p = fsdp_gather_piece(f, g, u, i);
      for (size_t at = 0; at < p.bytes; at += MESSAGE_MOST_BYTES) {
        const int n = (int)(p.bytes - at < MESSAGE_MOST_BYTES ? p.bytes - at : MESSAGE_MOST_BYTES);
        message_receive(f, CHANNEL_GATHER, set, landing + p.to_at + (size_t)k * p.bytes + at, n, r, s);
        message_send(f, CHANNEL_GATHER, set, f->mem.window + p.from_at + at, n, r, s);
      }
      f->traffic.gather_bytes += (int64_t)p.bytes;
    }
  }
}
// Copies the k-th rank's part of stage s to the slot: from this rank's own memory, from the window of a rank on this
// host, or, of a remote rank, from the slot's landing. Only slots of a mirrored device (whose window is a copy in host
// memory) have a landing; elsewhere messages of remote ranks arrive in the slot itself, and none are copied.
static inline void comm_mpi_fetch(Fsdp *f, int s, GatherSlot *slot, GatherSource g, int k) {
  const int r = g.group->rank[k];
  const bool mine = r == f->mesh.rank, local = mine || mesh_shares_memory(&f->mesh, r);
  const WorkMemory theirs = {f->mesh.peer[r].window, 0};
  const WorkMemory home = !mine ? theirs : g.secondary ? f->mem.work : f->mem.params_home;
  EACH_PIECE_OF_STAGE(f, s, u, i) {
    const GatherPiece p = fsdp_gather_piece(f, g, u, i);
    const size_t to = p.to_at + (size_t)k * p.bytes;
    f->ctx->ops->copy(&f->gather_ctx, slot->data + to, local ? work_at(home, p.from_at) : slot->landing + to, p.bytes);
    if (local && !mine) f->traffic.gather_bytes += (int64_t)p.bytes;
  }
}
// Stores the secondary shards of stage s; a mirrored device copies them to its window. After counter_publish the ranks
// on this host may read them in the window, and messages may be sent from it.
static inline void comm_mpi_store_secondary(Fsdp *f, int s, GatherSlot *slot) {
  const GatherSource g = fsdp_source(f, true);
  fsdp_store_secondary(f, s, slot);
  EACH_PIECE_OF_STAGE(f, s, u, i) {
    const GatherPiece p = fsdp_gather_piece(f, g, u, i);
    if (f->lay.mirrored) f->ctx->ops->copy(&f->gather_ctx, f->mem.window + p.from_at, fsdp_work(f, p.from_at), p.bytes);
  }
  if (f->lay.mirrored) f->ctx->ops->sync(&f->gather_ctx);
  counter_publish(f, &fsdp_control(f, f->mesh.rank)->secondary, f->gather.secondary_count);
}
// Copies the shards of ranks on this host, and waits for messages of the others. Copying is safe: a rank changes its
// shards only between two barriers, and a secondary shard that it has published only in the next step.
static inline void comm_mpi_gather_finish(Fsdp *f, int s, GatherSlot *slot) {
  const GatherSource g = fsdp_source(f, slot->from_secondary);
  step_event_wait(&f->gather_ctx, &slot->released);
  for (int i = 0; i < g.group->size; i++) {
    const int k = (g.group->me + i) % g.group->size, r = g.group->rank[k];     // start with the own shard: ranks do not
    if (r != f->mesh.rank && !mesh_shares_memory(&f->mesh, r)) continue;       // all read one
    const bool asks = g.secondary && r != f->mesh.rank;
    const uint64_t *there = &fsdp_control(f, r)->secondary;
    for (int spins = 0; asks && !counter_reached(f, there, f->gather.secondary_number[s]); f->meanwhile(f))
      liveness_pause(&spins, "the gather", s);
    comm_mpi_fetch(f, s, slot, g, k);
  }
  for (int spins = 0; !messages_done(f, &slot->messages); f->meanwhile(f))
    liveness_pause(&spins, "the gather", s);
  for (int k = 0; k < g.group->size && slot->landing; k++)
    if (!mesh_shares_memory(&f->mesh, g.group->rank[k]) && k != g.group->me) comm_mpi_fetch(f, s, slot, g, k);
  if (fsdp_stores_secondary(f, s, slot)) comm_mpi_store_secondary(f, s, slot);
  step_event_record(&f->gather_ctx, &slot->arrived);
  step_event_wait(f->ctx, &slot->arrived);
}
// A mirrored device copies the complete gradient to the window; a staged gradient is copied round by round instead.
static inline void comm_mpi_gradient_ready(Fsdp *f) {
  streams_gradient_ready(f);
  if (!f->lay.mirrored || fsdp_shards(f) == 1 || f->lay.stage[f->job.stage].staged) return;       // nobody reads it
  EACH_UNIT_OF_STAGE(f, f->job.stage, u) {
    const size_t at = fsdp_unit_grads_at(f, u, f->job.buffer);
    f->ctx->ops->copy(&f->reduce_ctx, f->mem.window + at, fsdp_work(f, at),
                      (size_t)f->lay.unit[u].grad_numel * fsdp_wire_bytes(f));
  }
  step_event_record(&f->reduce_ctx, &f->events.mirror_filled);
}
// Have the peers of this host added up everything before round `rounds`?
static inline bool comm_mpi_peers_done(Fsdp *f, uint64_t rounds) {
  for (int i = 0; i < fsdp_shards(f); i++)
    if (comm_mpi_is_neighbour(f, i) &&
        !counter_reached(f, &fsdp_control(f, f->mesh.shard.rank[i])->done, rounds))
      return false;
  return true;
}
// Two rounds are in flight, so round - 2 used this memory. Only staging is written per round; gradient slots are waited
// for by grads_free.
static inline bool comm_mpi_round_free(Fsdp *f, uint64_t round) {
  const int parity = (int)(round & 1);
  bool filled = true;
  if (!messages_done(f, &f->messages.sends[parity])) return false;
  if (!messages_done(f, &f->messages.chain_sends[parity])) return false;
  if (!messages_done(f, &f->messages.chain_backs[parity])) return false;
  if (f->lay.stage[f->job.stage].staged) return round < 2 || comm_mpi_peers_done(f, round - 1);
  const bool fills = f->lay.mirrored && fsdp_shards(f) > 1;
  if (fills) f->ctx->ops->event_done(f->ctx, f->events.mirror_filled.event, &filled);
  return filled;
}
static inline char *comm_mpi_landing_in(const Fsdp *f, uint64_t round, int remote_peer) {
  const size_t chunk_bytes = (size_t)f->lay.chunk_numel * fsdp_wire_bytes(f);
  char *base = f->lay.mirrored ? f->mem.landing_in : f->mem.staging_in;
  return base + ((round & 1) * (size_t)f->mesh.remote + (size_t)remote_peer) * chunk_bytes;
}

// ---- sums along the replicas
// Posts the messages of a round along the replicas. They arrive in the own shard, or in its mirror, and only after the
// sum there has been read (transport.h, Replicas).
static inline void comm_mpi_chain_post(Fsdp *f, uint64_t round, ReduceSpan x) {
  const int parity = (int)(round & 1), tag = (int)(round & 0x3fff), n = fsdp_mpi_count(x.numel * 4);
  const RankGroup *g = &f->mesh.replicate;
  MessageSet *back = &f->messages.chain_backs[parity], *next = &f->messages.chain_receives[parity];
  char *shard = f->mem.window + chain_at(f, x);
  if (chain_returns(f) && !mesh_shares_memory(&f->mesh, g->rank[0]))
    message_send(f, CHANNEL_CHAIN, back, shard, n, g->rank[0], tag);
  if (!fsdp_begins(f) && !mesh_shares_memory(&f->mesh, chain_before(f)))
    message_receive(f, CHANNEL_CHAIN, next, shard, n, chain_before(f), tag);
}
static inline bool comm_mpi_chain_arrived(Fsdp *f, uint64_t round) {
  const int parity = (int)(round & 1), before = chain_before(f);
  if (!mesh_shares_memory(&f->mesh, before))
    return messages_done(f, &f->messages.chain_receives[parity]);
  const uint64_t wanted = f->mesh.replicate.me ? round : f->job.last_round0 + (round - f->job.round0);
  return counter_reached(f, &fsdp_control(f, before)->partial, wanted + 1);
}
static inline void comm_mpi_chain_take(Fsdp *f, uint64_t, ReduceSpan x, float *sum) {
  const int before = chain_before(f);
  const bool local = mesh_shares_memory(&f->mesh, before);
  const char *from = (local ? f->mesh.peer[before].window : f->mem.window) + chain_at(f, x);
  chain_count(f, x.numel);
  if (from != (const char *)sum) f->ctx->ops->copy(&f->reduce_ctx, sum, from, (size_t)x.numel * 4);
}
static inline void comm_mpi_chain_give(Fsdp *f, uint64_t round, ReduceSpan x, float *sum) {
  const RankGroup *g = &f->mesh.replicate;
  const int parity = (int)(round & 1);
  char *shard = f->mem.window + chain_at(f, x);
  if (shard != (char *)sum) {
    f->ctx->ops->copy(&f->reduce_ctx, shard, sum, (size_t)x.numel * 4);
    f->ctx->ops->sync(&f->reduce_ctx);
  }
  counter_publish(f, &fsdp_control(f, f->mesh.rank)->partial, round + 1);
  if (g->me == g->size - 1 || mesh_shares_memory(&f->mesh, g->rank[g->me + 1])) return;
  message_send(f, CHANNEL_CHAIN, &f->messages.chain_sends[parity], shard,
               fsdp_mpi_count(x.numel * 4), g->rank[g->me + 1], (int)(round & 0x3fff));
}
// ---- back to all replicas
// Offset in working memory of the last replica's sum of a unit; the same in every replica's window.
static inline size_t return_at(const Fsdp *f, const SumReturn *r) {
  return f->lay.part[WORK_SUMS].at + (size_t)f->lay.unit[r->unit].sum_base * sizeof(float);
}
static inline size_t return_bytes(const Fsdp *f, const SumReturn *r) {
  return (size_t)f->lay.unit[r->unit].state_numel * sizeof(float);
}
static inline MessageSet *return_messages(Fsdp *f, const SumReturn *r) {
  return &f->messages.returns[r - f->returns.of];
}
// Starts messages from the last replica to the replicas that do not share memory with it. They arrive in the own shard,
// or in its mirror, and only after the sum there has been read (transport.h, Replicas).
static inline void comm_mpi_return_start(Fsdp *f, SumReturn *r) {
  const RankGroup *g = &f->mesh.replicate;
  const int last = g->rank[g->size - 1], tag = 0x4000;
  const bool gives = g->me == g->size - 1;
  const size_t bytes = return_bytes(f, r);
  MessageSet *set = return_messages(f, r);
  char *sum = f->mem.window + return_at(f, r);
  for (size_t at = 0; at < bytes; at += MESSAGE_MOST_BYTES) {
    const int n = (int)(bytes - at < MESSAGE_MOST_BYTES ? bytes - at : MESSAGE_MOST_BYTES);
    for (int i = 0; i < g->size - 1 && gives; i++)
      if (!mesh_shares_memory(&f->mesh, g->rank[i]))
        message_send(f, CHANNEL_RETURN, set, sum + at, n, g->rank[i], tag);
    if (!gives && !mesh_shares_memory(&f->mesh, last))
      message_receive(f, CHANNEL_RETURN, set, sum + at, n, last, tag);
  }
}
// Whether the broadcast sum is in this rank's shard: its message has arrived, or it was copied from the last replica's
// window, once that replica has added up round r->round.
static inline bool comm_mpi_return_arrived(Fsdp *f, SumReturn *r) {
  const RankGroup *g = &f->mesh.replicate;
  const int last = g->rank[g->size - 1];
  const bool gives = g->me == g->size - 1, local = mesh_shares_memory(&f->mesh, last);
  if (!messages_done(f, return_messages(f, r))) return false;
  if (gives) return true;
  if (local && !counter_reached(f, &fsdp_control(f, last)->partial, r->round + 1)) return false;
  const char *from = (local ? f->mesh.peer[last].window : f->mem.window) + return_at(f, r);
  float *own = f->shards.grads + f->lay.unit[r->unit].sum_base;
  if (from != (const char *)own) f->ctx->ops->copy(&f->reduce_ctx, own, from, return_bytes(f, r));
  return true;
}
// The host of a mirrored device has waited for every round, but not yet for the copies of broadcast sums.
static inline void comm_mpi_returns_wait(Fsdp *f) {
  for (int spins = 0; f->returns.begun; f->meanwhile(f))
    liveness_pause(&spins, "the last replica's sums", f->lay.unit[f->returns.of[f->returns.taken].unit].stage);
  if (!f->lay.mirrored || fsdp_chains(f)) streams_returns_wait(f);
}

// ---- inter-node reduction chain
// The set of receives of a round: of contributions; along hosts of a part's sum, or (OWN_SHARD) of the result.
static inline MessageSet *part_receives(Fsdp *f, uint64_t round, int part) {
  if (!f->lay.hosts.hosts) return &f->messages.receives[round & 1];
  const int parts = f->lay.hosts.parts, first = (int)(round & 1) * (parts + 1);
  return &f->messages.parts[first + (part == OWN_SHARD ? parts : part)];
}
// Sends or receives the sum of a part in a round, or of the own shard (OWN_SHARD), to or from rank `peer` of the shard
// group. c: the channel: a sum's initial value and its result may go between the same two ranks in one round, so they
// need different channels.
static inline void hosts_message(Fsdp *f, uint64_t round, ReduceSpan x, int part, HostsMove move, Channel c,
                                 int peer) {
  const int r = f->mesh.shard.rank[peer], tag = (int)(round & 0x3fff);
  EACH_RUN(f, x, run) {
    float *at = fsdp_part_sum(f, round, part, x, run);
    const int bytes = fsdp_mpi_count(run.numel * 4);
    if (move == HOSTS_SEND) message_send(f, c, &f->messages.sends[round & 1], at, bytes, r, tag);
    else message_receive(f, c, part_receives(f, round, part), at, bytes, r, tag);
  }
}
// Posts the receives of a round's partial sums.
static inline void comm_mpi_hosts_post(Fsdp *f, uint64_t round, ReduceSpan x) {
  const HostsLayout *h = &f->lay.hosts;
  for (int p = 0; p < h->parts; p++)
    if (hosts_receives_part(f, p))
      hosts_message(f, round, x, p, HOSTS_RECEIVE, h->me ? CHANNEL_REDUCE : CHANNEL_CHAIN, h->part[p].before);
}
// Sends the initial value of the own shard's sum to the first host, and posts the receive of the result into the same
// memory: the result depends on the initial value, so it arrives after that was sent. If the shard is part of a whole
// gradient, the result overwrites this rank's own contribution, which has been added before.
static inline void comm_mpi_hosts_begin(Fsdp *f, uint64_t round, ReduceSpan x) {
  const HostsLayout *h = &f->lay.hosts;
  const int me = f->mesh.shard.me;
  const SchedulePlace was = schedule_enter(f->record, SCHEDULE_CHAIN, f->job.stage, round);
  if (h->begin != me && !fsdp_begins(f))
    hosts_message(f, round, x, OWN_SHARD, HOSTS_SEND, CHANNEL_CHAIN, h->begin);
  schedule_return(f->record, was);
  if (h->end != me) hosts_message(f, round, x, OWN_SHARD, HOSTS_RECEIVE, CHANNEL_REDUCE, h->end);
}
static inline bool comm_mpi_part_arrived(Fsdp *f, uint64_t round, int part, ReduceSpan) {
  for (int i = 0; i < fsdp_shards(f); i++)
    if (comm_mpi_is_neighbour(f, i) &&
        !counter_reached(f, &fsdp_control(f, f->mesh.shard.rank[i])->ready, round + 1)) return false;
  return messages_done(f, part_receives(f, round, part));
}
static inline const char *comm_mpi_part_input(const Fsdp *f, uint64_t round, int i, int part, ReduceSpan x,
                                              PieceRun run) {
  const HostsLayout *h = &f->lay.hosts;
  const int r = h->first + i, me = f->mesh.shard.me;
  if (r == me || comm_mpi_is_neighbour(f, r)) {
    const size_t at = fsdp_contribution_at(f, h->part[part].owner, round, x, run);
    return r == me ? fsdp_work(f, at) : f->mesh.peer[f->mesh.shard.rank[r]].window + at;
  }
  int remote_peer = 0;
  for (int q = 0; q < r; q++) remote_peer += comm_mpi_is_remote(f, q);
  return comm_mpi_landing_in(f, round, remote_peer) + (size_t)(run.state_at - x.first) * fsdp_wire_bytes(f);
}
static inline void comm_mpi_hosts_give(Fsdp *f, uint64_t round, int part, ReduceSpan x) {
  const int after = f->lay.hosts.part[part].after;
  if (after != f->mesh.shard.me) hosts_message(f, round, x, part, HOSTS_SEND, CHANNEL_REDUCE, after);
}
static inline bool comm_mpi_hosts_back(Fsdp *f, uint64_t round, ReduceSpan) {
  return messages_done(f, part_receives(f, round, OWN_SHARD));
}

static inline void comm_mpi_round_send(Fsdp *f, uint64_t round, ReduceSpan x) {
  const int tag = (int)(round & 0x3fff), S = fsdp_shards(f);
  const bool staged = f->lay.stage[f->job.stage].staged;
  if (f->lay.mirrored && staged) {
    const size_t half = (size_t)S * (size_t)f->lay.chunk_numel * fsdp_wire_bytes(f);
    const size_t at = f->lay.part[WORK_STAGING].at + (round & 1) * half;
    f->ctx->ops->copy(&f->reduce_ctx, f->mem.window + at, fsdp_work(f, at), half);
    f->ctx->ops->sync(&f->reduce_ctx);
  }
  // A slot is complete before its first round: all of its rounds can be read from then on.
  counter_publish(f, &fsdp_control(f, f->mesh.rank)->ready, staged ? round + 1 : f->reduce.rounds_started);
  const SchedulePlace was = schedule_enter(f->record, SCHEDULE_CHAIN, f->job.stage, round);
  if (fsdp_chains(f)) comm_mpi_chain_post(f, round, x);
  schedule_return(f->record, was);
  if (f->lay.hosts.hosts) {
    comm_mpi_hosts_post(f, round, x);
    return;
  }
  MessageSet *in = part_receives(f, round, 0), *out = &f->messages.sends[round & 1];
  for (int i = 0, k = 0; i < S && f->mesh.remote; i++) {
    if (!comm_mpi_is_remote(f, i)) continue;
    const int r = f->mesh.shard.rank[i];
    char *landing = comm_mpi_landing_in(f, round, k++);
    EACH_RUN(f, x, run) {
      const int bytes = fsdp_mpi_count(run.numel * (int64_t)fsdp_wire_bytes(f));
      message_receive(f, CHANNEL_REDUCE, in, landing + (size_t)(run.state_at - x.first) * fsdp_wire_bytes(f), bytes, r,
                      tag);
      message_send(f, CHANNEL_REDUCE, out, f->mem.window + fsdp_contribution_at(f, i, round, x, run), bytes, r, tag);
    }
  }
}
// Tells peers that this rank has read their contributions to the round; a mirrored device must have copied them first.
static inline void comm_mpi_round_done(Fsdp *f, uint64_t round) {
  if (f->lay.mirrored) f->ctx->ops->sync(&f->reduce_ctx);
  counter_publish(f, &fsdp_control(f, f->mesh.rank)->done, round + 1);
}
static inline bool comm_mpi_grads_free(Fsdp *f, int buffer) {
  return comm_mpi_peers_done(f, f->reduce.buffer_rounds[buffer]) &&
         messages_done(f, &f->messages.sends[0]) && messages_done(f, &f->messages.sends[1]);
}
static inline void comm_mpi_small(Fsdp *f, const void *mine, void *all, size_t bytes) {
  const size_t everything = bytes * (size_t)f->mesh.world;
  const void *from = f->lay.mirrored ? f->mem.small_host : mine;
  void *to = f->lay.mirrored ? f->mem.small_host + bytes : all;
  if (f->lay.mirrored) {
    f->ctx->ops->copy(f->ctx, f->mem.small_host, mine, bytes);
    f->ctx->ops->sync(f->ctx);
  }
  record_exchange(f->record, RECORD_HOST, COLLECTIVE_ALL_GATHER, OVER_WORLD, everything - bytes,
                  Exchanged{from, bytes, to, everything});
  windows_fence();
  MPI_Allgather(from, (int)bytes, MPI_BYTE, to, (int)bytes, MPI_BYTE, f->mesh.comm);
  windows_fence();
  if (f->lay.mirrored) f->ctx->ops->copy(f->ctx, all, to, everything);
}
// ---- Muon's matrices
// Waits until a counter of rank r has reached `value`.
static inline void comm_mpi_updates_wait(Fsdp *f, const uint64_t *counter, uint64_t value) {
  for (int spins = 0; !counter_reached(f, counter, value); f->meanwhile(f))
    liveness_pause(&spins, "the updates of Muon", STAGE_NONE);
  liveness_arrived();
}
// Comm.updates if all ranks share memory: momenta are written into owners' windows, and updates are read from them.
static inline void comm_mpi_updates_in_place(Fsdp *f, UpdateMove move, int round) {
  const uint64_t count = f->muon.rounds + (uint64_t)round + 1;
  const int S = fsdp_shards(f), N = f->mesh.world, slots = f->lay.owned.slots;
  Control *own = fsdp_control(f, f->mesh.rank);
  Span run;
  // The slots of a step's first rounds are free: every rank has passed the step's small all-gather.
  for (int r = 0; r < N && move == UPDATES_FREE && round >= slots; r++)
    if (r != f->mesh.rank) comm_mpi_updates_wait(f, &fsdp_control(f, r)->taken, count - (uint64_t)slots);
  if (N > 1 && move == UPDATES_GIVE) counter_publish(f, &own->momenta, count);
  if (N > 1 && move == UPDATES_BACK) counter_publish(f, &own->updates, count);
  if (N > 1 && move == UPDATES_TAKEN) counter_publish(f, &own->taken, count);
  EACH_OWNED(f, round, x) {
    for (int i = 0; i < S && move == UPDATES_WHOLE && x->owner == f->mesh.rank; i++)
      if (comm_mpi_is_neighbour(f, i) && owned_run(f, x, i, &run))
        comm_mpi_updates_wait(f, &fsdp_control(f, f->mesh.shard.rank[i])->momenta, count);
    if (move == UPDATES_ARRIVED && x->owner != f->mesh.rank && owned_run(f, x, f->mesh.shard.me, &run))
      comm_mpi_updates_wait(f, &fsdp_control(f, x->owner)->updates, count);
  }
}
static inline void comm_mpi_update_message(Fsdp *f, int round, UpdateMessage m) {
  enum { TAG_GIVE = 0x4001, TAG_BACK = 0x4002 };
  const int slot = owned_slot(f, round), bytes = fsdp_mpi_count((int64_t)m.bytes), tag = m.back ? TAG_BACK : TAG_GIVE;
  MessageSet *set = &f->muon.messages[slot];
  if (m.sends) message_send(f, CHANNEL_CHAIN, set, m.at, bytes, m.peer, tag);
  else message_receive(f, CHANNEL_CHAIN, set, m.at, bytes, m.peer, tag);
}
static inline void comm_mpi_updates_finish(Fsdp *f, int round) {
  const int slot = owned_slot(f, round);
  MessageSet *set = &f->muon.messages[slot];
  for (int spins = 0; !messages_done(f, set); f->meanwhile(f))
    liveness_pause(&spins, "the updates of Muon", STAGE_NONE);
  liveness_arrived();
}
// A mirrored device copies to or from the host: its runs of other ranks' matrices; and its own matrix, of which only
// the other ranks' runs come from the host.
static inline void comm_mpi_mirror_runs(Fsdp *f, int round, bool to_host) {
  Span run;
  EACH_OWNED(f, round, x) {
    if (x->owner == f->mesh.rank || (to_host && !owned_gives(f, x))) continue;
    if (!owned_run(f, x, f->mesh.shard.me, &run)) continue;
    char *here = owned_stage_of(f, x), *host = owned_host_stage(f, x);
    f->ctx->ops->copy(&f->reduce_ctx, to_host ? host : here, to_host ? here : host, owned_bytes(run.numel));
  }
}
static inline void comm_mpi_mirror_matrix(Fsdp *f, int round, bool to_host) {
  Span run;
  EACH_OWNED(f, round, x) for (int i = 0; i < fsdp_shards(f) && x->owner == f->mesh.rank; i++) {
    if (!owned_run(f, x, i, &run) || (!to_host && i == f->mesh.shard.me)) continue;
    char *here = owned_matrix(f, x->owner, round) + owned_bytes(run.in_range);
    char *host = owned_host_matrix(f, round) + owned_bytes(run.in_range);
    f->ctx->ops->copy(&f->reduce_ctx, to_host ? host : here, to_host ? here : host, owned_bytes(run.numel));
  }
}
// The host waits for copies to it before it sends.
static inline void comm_mpi_updates_mirrored(Fsdp *f, UpdateMove move, int round) {
  const bool off = fsdp_offloads(f), back = move == UPDATES_BACK;
  const int slot = owned_slot(f, round);
  if (move == UPDATES_GIVE || back) {
    if (!off || back) {
      step_event_record(f->ctx, &f->muon.ready);
      step_event_wait(&f->reduce_ctx, &f->muon.ready);
    }
    if (back) comm_mpi_mirror_matrix(f, round, true);
    else if (!off) comm_mpi_mirror_runs(f, round, true);
    updates_copy(f, round, back);
    f->ctx->ops->sync(&f->reduce_ctx);
    updates_each_message(f, round, back, comm_mpi_update_message);
  }
  if (move != UPDATES_WHOLE && move != UPDATES_ARRIVED) return;
  comm_mpi_updates_finish(f, round);
  if (move == UPDATES_ARRIVED && off) return;
  StepEvent *there = move == UPDATES_WHOLE ? &f->muon.whole[slot] : &f->muon.back[slot];
  if (move == UPDATES_WHOLE) comm_mpi_mirror_matrix(f, round, false);
  else comm_mpi_mirror_runs(f, round, false);
  step_event_record(&f->reduce_ctx, there);
  step_event_wait(f->ctx, there);
}
static inline void comm_mpi_updates(Fsdp *f, UpdateMove move, int round) {
  if (f->lay.owned.in_place) comm_mpi_updates_in_place(f, move, round);
  else if (f->lay.mirrored) comm_mpi_updates_mirrored(f, move, round);
  else if (move == UPDATES_GIVE || move == UPDATES_BACK)
    updates_each_message(f, round, move == UPDATES_BACK, comm_mpi_update_message);
  else if (move == UPDATES_WHOLE || move == UPDATES_ARRIVED) comm_mpi_updates_finish(f, round);
}
static inline Comm comm_mpi_table() {
  Comm c = comm_self_table();
  c.open = comm_mpi_open;
  c.close = comm_mpi_close;
  c.step_begin = comm_mpi_step_begin;
  c.step_end = comm_mpi_step_end;
  c.progress = comm_mpi_progress;
  c.gather_start = comm_mpi_gather_start;
  c.gather_finish = comm_mpi_gather_finish;
  c.gradient_ready = comm_mpi_gradient_ready;
  c.round_free = comm_mpi_round_free;
  c.round_send = comm_mpi_round_send;
  c.chain_arrived = comm_mpi_chain_arrived;
  c.chain_take = comm_mpi_chain_take;
  c.hosts_begin = comm_mpi_hosts_begin;
  c.part_arrived = comm_mpi_part_arrived;
  c.part_input = comm_mpi_part_input;
  c.hosts_give = comm_mpi_hosts_give;
  c.round_done = comm_mpi_round_done;
  c.hosts_back = comm_mpi_hosts_back;
  c.chain_give = comm_mpi_chain_give;
  c.gradient_added = comm_self_nothing;
  c.grads_free = comm_mpi_grads_free;
  c.return_start = comm_mpi_return_start;
  c.return_arrived = comm_mpi_return_arrived;
  c.returns_wait = comm_mpi_returns_wait;
  c.small_all_gather = comm_mpi_small;
  c.updates = comm_mpi_updates;
  return c;
}
static const Comm comm_mpi = comm_mpi_table();
