// reduce.h: gradients on their way to their owners. Backward writes the gradient of a stage where fsdp_grad says.
// fsdp_reduce then starts its reduction, which goes in rounds of at most chunk_numel elements of every owner's shard,
// and fsdp_poll, called between ops, moves the rounds on.
//
//   fsdp_grads, fsdp_grad, fsdp_grad_mode    where a gradient is written, or added to
//   fsdp_reduce, fsdp_reduce_finish          starts a reduction; waits for the one in flight
//   fsdp_reduce_prepare                      sends this rank's contributions to one round
//   fsdp_reduce_begin, fsdp_reduce_fold      along hosts: adds this host's contributions to sums that pass by
//   fsdp_reduce_consume                      adds up a round that has arrived, in order of microbatches
//   fsdp_return, fsdp_return_take            with replicas: sums of the step go back to all of them, and come
#pragma once
#include "transport_plan.h"

static inline ReduceSpan fsdp_round_span(const Fsdp *f, int s, int j) {
  int u = f->lay.stage[s].first_unit;
  for (; j >= f->lay.unit[u].rounds; u++) j -= f->lay.unit[u].rounds;
  const int64_t n = f->lay.unit[u].state_numel;
  if (f->lay.unit[u].rounds == 1) return ReduceSpan{u, 0, n};
  return ReduceSpan{u, j * f->lay.chunk_numel, min64(f->lay.chunk_numel, n - j * f->lay.chunk_numel)};
}
static inline ReduceSpan fsdp_span_of(const Fsdp *f, uint64_t round) {
  return fsdp_round_span(f, f->job.stage, (int)(round - f->job.round0));
}

// Prepares round job.prepared, rounding contributions to the wire dtype where needed, and sends it. False: its memory
// is still in use.
static inline bool fsdp_reduce_prepare(Fsdp *f) {
  ReduceJob *job = &f->job;
  const uint64_t round = job->round0 + (uint64_t)job->prepared;
  if (job->prepared == job->rounds || job->prepared >= job->consumed + 2) return false;
  doing(f->record, DOING_REDUCE, job->stage, round);
  if (!f->comm->round_free(f, round)) return false;
  const ReduceSpan x = fsdp_span_of(f, round);
  const Unit *u = &f->lay.unit[x.unit];
  PieceRun run;
  for (int i = 0; i < u->pieces && f->lay.stage[job->stage].staged; i++) {
    if (!piece_run(u, i, x.first, x.numel, &run)) continue;
    for (int o = 0; o < fsdp_shards(f); o++)
      convert(&f->reduce_ctx,
              tensor_of(f->work + fsdp_contribution_at(f, o, round, x, run), f->cfg.wire_dtype, run.numel),
              tensor_of(f->work + u->grads_at + (size_t)(run.grad_at + o * run.owner_stride) * 4, F32, run.numel));
  }
  f->comm->round_send(f, round, x);
  job->prepared++;
  return true;
}

// Adds the contributions of all ranks to a part of the sum, in order of ranks: as many in one pass as accumulate takes,
// or one by one on a mirrored device, which has room for one. If that takes several passes, it goes in parts that stay
// in cache. Along hosts only those of this host's ranks, to the sum of part `part`; else that is ALL_RANKS.
enum { ALL_RANKS = -1 };
static inline void fsdp_add_run(Fsdp *f, float *sum, uint64_t round, int part, ReduceSpan x, PieceRun run,
                                bool overwrite) {
  const size_t b_r = fsdp_wire_bytes(f);
  const int ranks = part == ALL_RANKS ? fsdp_shards(f) : f->lay.hosts.ranks;
  // In a dry run all contributions lie at one place: the own one and another's tell everything.
  const int all = f->comm == &comm_plan ? (int)min64(ranks, 2) : ranks;
  const int inputs = f->cfg.native_reduce ? 1 : all;
  for (int64_t at = 0; at < run.numel; at += f->lay.chunk_numel) {
    const int64_t n = min64(f->lay.chunk_numel, run.numel - at);
    Summands some = {f->cfg.wire_dtype, 0, {}};
    bool begins = overwrite;
    for (int i = 0; i < inputs; i++) {
      const char *in = part == ALL_RANKS ? f->comm->round_input(f, round, i, x, run)
                                         : f->comm->hosts->input(f, round, i, part, x, run);
      in += (size_t)at * b_r;
      if (f->lay.mirrored && i != f->mesh.shard.me) {
        f->ctx->ops->copy(&f->reduce_ctx, f->staging_in, in, (size_t)n * b_r);
        in = f->staging_in;
      }
      some.data[some.count++] = in;
      if (!f->lay.mirrored && i + 1 < inputs && some.count < SUMMANDS_MOST) continue;
      accumulate(&f->reduce_ctx, tensor_of(sum + at, F32, n), some, begins ? OVERWRITE : ADD);
      some.count = 0;
      begins = false;
    }
  }
}
// ---- along hosts (hosts.h)
// Begins the sum of this rank's shard in round job.started, when that of the replicas before is known. Returns whether
// it did.
static inline bool fsdp_reduce_begin(Fsdp *f) {
  ReduceJob *job = &f->job;
  const uint64_t round = job->round0 + (uint64_t)job->started;
  if (job->started >= job->prepared) return false;
  doing(f->record, DOING_CHAIN, job->stage, round);
  if (!f->comm->hosts->known(f, round)) return false;
  const ReduceSpan x = fsdp_span_of(f, round);
  if (fsdp_chains(f) && !fsdp_begins(f)) f->comm->chain_take(f, round, x, fsdp_grads_of(f, x));
  doing(f->record, DOING_REDUCE, job->stage, round);
  f->comm->hosts->begin(f, round, x);
  job->started++;
  return true;
}
// Copies this rank's shard to the sum of its part, or back.
static inline void fsdp_copy_own_sum(Fsdp *f, uint64_t round, ReduceSpan x, bool back) {
  PieceRun run;
  for (int i = 0; i < f->lay.unit[x.unit].pieces; i++) {
    if (!piece_run(&f->lay.unit[x.unit], i, x.first, x.numel, &run)) continue;
    float *own = fsdp_own_sum(f, x, i, run, fsdp_grads_of(f, x));
    float *sum = hosts_sum(f, round, f->lay.hosts.own) + run.state_at - x.first;
    f->ctx->ops->copy(&f->reduce_ctx, back ? own : sum, back ? sum : own, (size_t)run.numel * 4);
  }
}
// If the sum of part job->part of round job.folded has arrived, adds the contributions of this host's ranks to it, in
// their order, and passes it on. Returns whether it did.
static inline bool fsdp_reduce_fold(Fsdp *f) {
  ReduceJob *job = &f->job;
  const HostsLayout *h = &f->lay.hosts;
  const uint64_t round = job->round0 + (uint64_t)job->folded;
  if (job->folded >= job->started) return false;
  doing(f->record, DOING_REDUCE, job->stage, round);
  const ReduceSpan x = fsdp_span_of(f, round);
  if (!f->comm->hosts->arrived(f, round, job->part, x)) return false;
  const bool begins = !h->me && fsdp_begins(f), received = hosts_receives_part(f, job->part);
  PieceRun run;
  doing(f->record, DOING_CHAIN, job->stage, round);
  if (!received && !begins) fsdp_copy_own_sum(f, round, x, false);
  doing(f->record, DOING_REDUCE, job->stage, round);
  for (int i = 0; i < f->lay.unit[x.unit].pieces; i++) {
    if (!piece_run(&f->lay.unit[x.unit], i, x.first, x.numel, &run)) continue;
    fsdp_add_run(f, hosts_sum(f, round, job->part) + run.state_at - x.first, round, job->part, x, run, begins);
    f->traffic.reduce_bytes += (h->ranks - 1) * run.numel * (int64_t)fsdp_wire_bytes(f);
    f->traffic.reduce_bytes += received * run.numel * 4;
  }
  f->comm->hosts->give(f, round, job->part, x);
  if (++job->part < h->parts) return true;
  job->part = 0;
  job->folded++;
  f->comm->round_done(f, round);                 // this host's contributions have been read
  return true;
}
// If the sum of this rank's shard in round job.consumed has come back, takes it. Returns whether it did.
static inline bool fsdp_reduce_take(Fsdp *f) {
  ReduceJob *job = &f->job;
  const uint64_t round = job->round0 + (uint64_t)job->consumed;
  if (job->consumed >= job->folded) return false;
  const ReduceSpan x = fsdp_span_of(f, round);
  if (!f->comm->hosts->back(f, round, x)) return false;
  PieceRun run;
  if (f->lay.hosts.end == f->mesh.shard.me) fsdp_copy_own_sum(f, round, x, true);
  else
    for (int i = 0; i < f->lay.unit[x.unit].pieces; i++)
      if (piece_run(&f->lay.unit[x.unit], i, x.first, x.numel, &run)) f->traffic.reduce_bytes += run.numel * 4;
  doing(f->record, DOING_CHAIN, job->stage, round);
  if (fsdp_chains(f)) f->comm->chain_give(f, round, x, fsdp_grads_of(f, x));
  return true;
}
// ---- straight to the owner
// ---- back to all replicas
// The step's last reduction of a stage is over: its units' sums go to all replicas, while backward goes on. That comes
// after reduce_end: nobody who waits for the gradient's memory waits for them.
static inline void fsdp_return(Fsdp *f) {
  const Stage *s = &f->lay.stage[f->job.stage];
  const uint64_t end = f->job.round0 + (uint64_t)f->job.rounds;
  const Doing was = doing(f->record, DOING_RETURN, f->job.stage, end - 1);
  for (int u = s->first_unit; u < s->first_unit + s->units; u++) {
    if (!f->lay.unit[u].state_numel) continue;
    SumReturn *r = &f->returns.of[f->returns.begun++];
    *r = SumReturn{u, 0, end - 1};
    f->traffic.returns++;
    f->traffic.replicate_bytes += fsdp_return_bytes(f, &f->lay.unit[u]);
    record_collective(f->record, RECORD_HOST, COLLECTIVE_RETURN, OVER_NONE, 1, 0);
    f->comm->return_start(f, r);
  }
  doing_again(f->record, was);
}
// Takes the next sum, if it has come. Returns whether it did.
static inline bool fsdp_return_take(Fsdp *f) {
  SumReturns *all = &f->returns;
  if (all->taken == all->begun) return false;
  SumReturn *r = &all->of[all->taken];
  const Doing was = doing(f->record, DOING_RETURN, f->lay.unit[r->unit].stage, r->round);
  const bool came = f->comm->return_arrived(f, r);
  doing_again(f->record, was);
  if (!came) return false;
  liveness_arrived();
  if (++all->taken == all->begun) all->taken = all->begun = 0;
  return true;
}
// A round is in this rank's shard. Ends the reduction after its last one.
static inline void fsdp_reduce_consumed(Fsdp *f) {
  ReduceJob *job = &f->job;
  liveness_arrived();
  if (++job->consumed < job->rounds) return;
  flight_end(job->collective);
  f->comm->reduce_end(f);
  job->active = false;
  if (job->last && f->cfg.mesh.replicas > 1) fsdp_return(f);
}
// If every contribution to round job.consumed has arrived, adds them to this rank's shard, in order of ranks and so of
// microbatches. With replicas, the sum of the replicas before comes first. Returns whether it did.
static inline bool fsdp_reduce_consume(Fsdp *f) {
  ReduceJob *job = &f->job;
  const uint64_t round = job->round0 + (uint64_t)job->consumed;
  doing(f->record, DOING_REDUCE, job->stage, round);
  if (f->lay.hosts.hosts) {
    const bool took = fsdp_reduce_take(f);
    if (took) fsdp_reduce_consumed(f);
    return took;
  }
  if (job->consumed >= job->prepared || !f->comm->round_arrived(f, round)) return false;
  const ReduceSpan x = fsdp_span_of(f, round);
  const Unit *u = &f->lay.unit[x.unit];
  const bool off = fsdp_offloads(f), chain = fsdp_chains(f);
  const bool begins = fsdp_begins(f);
  float *own = fsdp_grads_of(f, x), *sum = off ? f->sum : own;
  const size_t bytes = (size_t)x.numel * sizeof(float);
  doing(f->record, DOING_CHAIN, job->stage, round);
  if (chain && !begins) f->comm->chain_take(f, round, x, sum);
  else if (off && begins) f->ctx->ops->zero(&f->reduce_ctx, sum, bytes);       // the gaps between pieces
  else if (off) f->ctx->ops->copy(&f->reduce_ctx, sum, own, bytes);
  doing(f->record, DOING_REDUCE, job->stage, round);
  PieceRun run;
  for (int i = 0; i < u->pieces; i++) {
    if (!piece_run(u, i, x.first, x.numel, &run)) continue;
    fsdp_add_run(f, fsdp_own_sum(f, x, i, run, sum), round, ALL_RANKS, x, run, begins);
    f->traffic.reduce_bytes += (fsdp_shards(f) - 1) * run.numel * (int64_t)fsdp_wire_bytes(f);
  }
  const bool given = chain && f->lay.mirrored;   // chain_give copies it
  if (off && !given) f->ctx->ops->copy(&f->reduce_ctx, own, sum, bytes);
  if (chain) f->comm->chain_give(f, round, x, sum);
  f->comm->round_done(f, round);
  fsdp_reduce_consumed(f);
  return true;
}

// Moves the reduction in flight on as far as it can without waiting. Called between ops.
static inline void fsdp_poll(Fsdp *f) {
  const Doing was = doing(f->record, DOING_REDUCE, 0, 0);
  f->comm->progress(f);
  if (f->background) f->background(f->background_to);
  const bool along = f->lay.hosts.hosts;
  while (f->job.active && (fsdp_reduce_prepare(f) || (along && (fsdp_reduce_begin(f) || fsdp_reduce_fold(f))) ||
                           fsdp_reduce_consume(f))) {}
  while (fsdp_return_take(f)) {}
  doing_again(f->record, was);
}
// Grows with whatever a reduction does.
static inline int64_t fsdp_reduce_moves(const Fsdp *f) {
  const ReduceJob *job = &f->job;
  return job->prepared + job->started + job->consumed + job->folded * (int64_t)(f->lay.hosts.parts + 1) + job->part;
}
static inline void fsdp_reduce_finish(Fsdp *f) {
  if (!f->job.active) return;
  flight_in(f->job.collective);
  for (int spins = 0; f->job.active;) {
    const int64_t before = fsdp_reduce_moves(f);
    fsdp_poll(f);
    if (f->job.active && fsdp_reduce_moves(f) == before)
      liveness_pause(&spins, fsdp_chains(f) ? "the reduction along the replicas" : "the reduction", f->job.stage);
  }
  liveness_arrived();
  flight_out();
}

// Numbers of gradient buffers: slots 0 and 1, which blocks take in turn; 2 + s for the whole gradient of stage s.
static inline int fsdp_grad_slot(const Fsdp *f, int s) {
  return f->lay.stage[s].grads == GRADS_IN_SLOT ? (int)(f->block_reductions & 1) : 2 + s;
}
// Tells the record that a gradient buffer is complete, or may be written again; and its mirror, which peers read.
static inline void fsdp_hold_gradient(Fsdp *f, RecordKind kind, int s, int slot) {
  if (!f->record) return;
  const bool block = slot < 2;                   // else of stage slot - 2, whole
  const Stage *x = &f->lay.stage[block ? 0 : slot - 2];
  const size_t bytes = block ? f->lay.grad_slot_bytes : (size_t)x->grad_numel * 4;
  const size_t at = block ? f->lay.part[WORK_SLOTS].at + (size_t)slot * bytes : f->lay.unit[x->first_unit].grads_at;
  record_held(f->record, kind, HELD_GRADIENT, s, f->work + at, bytes);
  if (f->lay.mirrored) record_held(f->record, kind, HELD_GRADIENT, s, f->window + at, bytes);
}
// Waits until the memory of a gradient slot may be overwritten: until every peer has read the gradient in it.
static inline void fsdp_grads_wait(Fsdp *f, int slot) {
  if (f->job.active && f->job.slot == slot) fsdp_reduce_finish(f);
  flight_in(f->slot_collective[slot]);
  for (int spins = 0; !f->comm->grads_free(f, slot); fsdp_poll(f))
    liveness_pause(&spins, "peers that read its gradients", STAGE_NONE);
  liveness_arrived();
  flight_out();
  fsdp_hold_gradient(f, RECORD_FREE, 0, slot);
  for (int i = 0; i < 2; i++)                    // what was reduced before has been read before
    if (i != slot && f->slot_rounds[i] <= f->slot_rounds[slot]) fsdp_hold_gradient(f, RECORD_FREE, STAGE_NONE, i);
}
// The slots, as bits, that a step waits for at its point number `point`.
static inline int fsdp_waits_at(const Fsdp *f, int point) {
  const int P = f->points;                       // from the second on, every other microbatch is alike
  return !P ? 0 : f->wait[point < P ? point : P + (point - P) % (2 * P)];
}
// A point of the step: here it may wait for gradient slots, if the placement says so.
static inline void fsdp_point(Fsdp *f) {
  record_point(f->record);
  const int waits = f->training ? fsdp_waits_at(f, f->point++) : 0;
  const int newer = f->slot_rounds[1] > f->slot_rounds[0];       // first: with it the other one has been read, too
  for (int i = 0; i < 2; i++) if (waits >> (i ^ newer) & 1) fsdp_grads_wait(f, i ^ newer);
}
// Zeroes the gaps between parameters in the gradient of stage s.
static inline void fsdp_zero_gaps(Fsdp *f, int s, int slot) {
  const int64_t b = (int64_t)fsdp_wire_bytes(f);
  EACH_PIECE_OF_STAGE(f, s, u, i) {
    const Piece *c = &f->lay.unit[u].piece[i];
    char *piece = f->lay.stage[s].grads == GRADS_IN_SHARD ? (char *)(f->grads + f->lay.unit[u].sum_base + c->state_at)
                                            : f->work + fsdp_unit_grads_at(f, u, slot) + c->grad_at * b;
    int64_t at = 0;                              // parameters lie in a piece in their order
    for (int p = 0; p < f->lay.params && c->trains; p++) {
      const Param *q = &f->lay.param[p];
      if (q->unit != u || q->piece != i) continue;
      if (q->in_piece > at) f->ctx->ops->zero(f->ctx, piece + at * b, (size_t)((q->in_piece - at) * b));
      at = q->in_piece + q->numel_padded;
    }
    const int64_t end = round_up(fsdp_shards(f) * c->numel, PARAM_ALIGN_NUMEL);
    if (c->trains && end > at) f->ctx->ops->zero(f->ctx, piece + at * b, (size_t)((end - at) * b));
  }
}
// Zeroes the padding between pieces in the shards of stage s; reductions write everything else.
static inline void fsdp_zero_shard_gaps(Fsdp *f, int s) {
  EACH_PIECE_OF_STAGE(f, s, u, i) {
    const Piece *c = &f->lay.unit[u].piece[i];
    float *const end = f->grads + f->lay.unit[u].sum_base + c->state_at + c->numel;
    const int64_t gap = round_up(c->numel, PARAM_ALIGN_NUMEL) - c->numel;
    if (c->trains && gap) f->ctx->ops->zero(f->ctx, end, (size_t)gap * sizeof(float));
  }
}
// Prepares the gradient buffer of stage s for backward: waits until all peers have read the gradient that was there
// before, and zeroes the gaps, which reductions and the norm read too, and where other data may have been.
static inline void fsdp_grads(Fsdp *f, int s) {
  const int slot = f->grad_slot = fsdp_grad_slot(f, s);
  const GradHome home = f->lay.stage[s].grads;
  if (home == GRADS_NONE) return;
  if (f->sums_shared[s] && home == GRADS_IN_SHARD) fsdp_zero_gaps(f, s, slot);
  if (f->sums_shared[s] && home != GRADS_IN_SHARD) fsdp_zero_shard_gaps(f, s);
  if (home == GRADS_IN_SHARD) return;
  fsdp_grads_wait(f, slot);
  if (home == GRADS_WHOLE || (f->lay.blocks_alike && !f->slot_shared[slot])) return;
  fsdp_zero_gaps(f, s, slot);
}
// The whole gradient of parameter p, in the buffer that fsdp_grads has prepared: in the wire dtype, or in fp32 where
// gradients are added up there. data is NULL if p is frozen.
static inline Tensor fsdp_grad(Fsdp *f, int p) {
  const Param *q = &f->lay.param[p];
  const Unit *u = &f->lay.unit[q->unit];
  const GradHome home = f->lay.stage[u->stage].grads;
  const Piece *c = &u->piece[q->piece];
  const Dtype dtype = home == GRADS_IN_SLOT ? f->cfg.wire_dtype : F32;
  char *data = NULL;
  if (!q->frozen && home == GRADS_IN_SHARD) data = (char *)(f->grads + u->sum_base + c->state_at + q->in_piece);
  else if (!q->frozen) {
    const int slot = home == GRADS_WHOLE ? fsdp_grad_slot(f, u->stage) : f->grad_slot;
    data = f->work + fsdp_unit_grads_at(f, q->unit, slot) + (size_t)(c->grad_at + q->in_piece) * dtype_bytes(dtype);
  }
  return tensor_of(data, dtype, q->padded_rows, q->ndim == 2 ? q->shape[1] : -1);
}
// Whether the a-th microbatch's gradients of stage s overwrite their buffer or are added to it.
static inline Accumulate fsdp_grad_mode(const Fsdp *f, int s, int a) {
  return a && (f->cfg.local || f->lay.stage[s].grads == GRADS_IN_SHARD) ? ADD : OVERWRITE;
}
// Starts reducing stage s's gradient into the fp32 shards, if this is due. a: this rank's microbatch of `microbatches`
// in the step. Collective.
static inline void fsdp_reduce(Fsdp *f, int s, int a, int microbatches) {
  const GradHome home = f->lay.stage[s].grads;
  if (home == GRADS_NONE || home == GRADS_IN_SHARD || (f->cfg.local && a < microbatches - 1)) return;
  fsdp_reduce_finish(f);
  const int slot = fsdp_grad_slot(f, s);
  ReduceJob *job = &f->job;
  *job = ReduceJob{};
  job->active = true;
  job->first = a == 0 || f->cfg.local;
  job->last = a == microbatches - 1;
  job->stage = s;
  job->slot = slot;
  job->collective = flight_begin("the reduction", s);
  job->rounds = f->lay.stage[s].rounds;
  job->round0 = f->rounds_started;
  job->last_round0 = f->stage_round0[s];
  f->stage_round0[s] = job->round0;
  f->rounds_started += (uint64_t)job->rounds;
  f->slot_rounds[slot] = f->rounds_started;
  f->slot_collective[slot] = job->collective;
  f->block_reductions += home == GRADS_IN_SLOT;
  for (int u = f->lay.stage[s].first_unit; u < f->lay.stage[s].first_unit + f->lay.stage[s].units; u++) {
    if (!f->lay.unit[u].state_numel) continue;
    f->traffic.reductions++;
    record_collective(f->record, RECORD_HOST, COLLECTIVE_REDUCE, OVER_NONE, 1, 0);
  }
  f->comm->reduce_start(f);
  fsdp_hold_gradient(f, RECORD_HOLD, s, slot);
  fsdp_mark(f, &f->reduce_ctx, MARK_REDUCE, 1 + s);
  fsdp_poll(f);
}
