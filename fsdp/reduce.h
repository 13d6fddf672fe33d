// reduce.h: gradients on their way to their owners. Backward writes the gradient of a stage where fsdp_grad says.
// fsdp_reduce then starts its reduction, which goes in rounds of at most chunk_numel elements of every owner's shard,
// and fsdp_poll, called between ops, advances the rounds. Each round takes the same four steps, whether contributions
// go straight to owners or sums go along hosts:
//
//   send    this rank's contributions are laid out and sent
//   begin   the initial value of the own shard's sum is there: nothing, the shard, or the sum of the replicas before
//   fold    contributions are added to the sum in order of ranks, and so of microbatches: straight, the shard's owner
//           adds those of the whole shard group; along hosts, each host in turn adds those of its ranks (hosts.h)
//   end     the sum is in the own shard, and is passed on to the next replica
#pragma once
#include "transport_plan.h"
#include "kernels/ops_pointwise.h"

// The span of the j-th round of a reduction of stage s: part of one of the stage's units.
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

// ---- the steps of a round, which covers x. Each returns false, and does nothing, if it would have to wait
// Rounds this rank's contributions to reduce_dtype if they are staged, and sends them. Waits for: free staging
// memory.
static inline bool fsdp_round_send(Fsdp *f, uint64_t round, ReduceSpan x) {
  ReduceJob *job = &f->job;
  if (!note_asked(f, NOTE_ROOM, job->stage, f->comm->round_free(f, round))) return false;
  const char *whole = fsdp_work(f, f->lay.unit[x.unit].grads_at);
  EACH_RUN(f, x, run)
    for (int o = 0; o < fsdp_shards(f) && f->lay.stage[job->stage].staged; o++)
      convert(&f->reduce_ctx,
              tensor_of(fsdp_work(f, fsdp_contribution_at(f, o, round, x, run)), f->cfg.wire_dtype, run.numel),
              tensor_of((void *)(whole + (size_t)(run.grad_at + o * run.owner_stride) * 4), F32, run.numel));
  f->comm->round_send(f, round, x);
  job->past[REDUCE_SEND]++;
  return true;
}
// Takes the initial value of this rank's sum; along hosts it is sent to the first host. Waits for: the sum of the
// replica before.
static inline bool fsdp_round_begin(Fsdp *f, uint64_t round, ReduceSpan x) {
  ReduceJob *job = &f->job;
  const bool begins = fsdp_begins(f), takes = fsdp_chains(f) && !begins;
  float *own = fsdp_grad_shard(f, x), *sum = fsdp_round_sum(f, x);
  const size_t bytes = (size_t)x.numel * sizeof(float);
  schedule_enter(f->record, SCHEDULE_CHAIN, job->stage, round);
  if (takes && !note_asked(f, NOTE_ROUND, job->stage, f->comm->chain_arrived(f, round))) return false;
  if (takes) f->comm->chain_take(f, round, x, sum);
  else if (sum != own && begins) f->ctx->ops->zero(&f->reduce_ctx, sum, bytes);        // zero the gaps between pieces
  else if (sum != own) f->ctx->ops->copy(&f->reduce_ctx, sum, own, bytes);
  schedule_enter(f->record, SCHEDULE_REDUCE, job->stage, round);
  if (f->lay.hosts.hosts) f->comm->hosts_begin(f, round, x);
  job->past[REDUCE_BEGIN]++;
  return true;
}
// Adds all contributions to one run of a part's sum, in order of ranks: up to SUMMANDS_MAX of them in one pass over the
// sum, or one by one on a mirrored device, which has space for one. The run is cut into chunks of chunk_numel elements,
// which stay in cache between passes. overwrite: the first contribution overwrites the sum.
static inline void fsdp_add_run(Fsdp *f, float *sum, uint64_t round, int part, ReduceSpan x, PieceRun run,
                                bool overwrite) {
  const HostsLayout *h = &f->lay.hosts;
  const size_t b_r = fsdp_wire_bytes(f);
  // In a dry run all peers' contributions are stored at one place: two of them show all accesses, unless times are
  // asked.
  const int all = f->dry && !f->record->watch ? (int)min64(h->ranks, 2) : h->ranks;
  const int inputs = f->cfg.native_reduce ? 1 : all;
  for (int64_t at = 0; at < run.numel; at += f->lay.chunk_numel) {
    const int64_t n = min64(f->lay.chunk_numel, run.numel - at);
    Summands some = {f->cfg.wire_dtype, 0, {}};
    bool begins = overwrite;
    for (int i = 0; i < inputs; i++) {
      const char *in = f->comm->part_input(f, round, i, part, x, run) + (size_t)at * b_r;
      if (f->lay.mirrored && h->first + i != f->mesh.shard.me) {
        f->ctx->ops->copy(&f->reduce_ctx, f->mem.staging_in, in, (size_t)n * b_r);
        in = f->mem.staging_in;
      }
      some.data[some.count++] = in;
      if (!f->lay.mirrored && i + 1 < inputs && some.count < SUMMANDS_MAX) continue;
      accumulate(&f->reduce_ctx, tensor_of(sum + at, F32, n), some, begins ? OVERWRITE : ADD);
      some.count = 0;
      begins = false;
    }
  }
}
// Along hosts: copies this rank's gradient shard to the sum of its own part, or, with `back`, the sum to the shard.
static inline void fsdp_copy_own_sum(Fsdp *f, uint64_t round, ReduceSpan x, bool back) {
  EACH_RUN(f, x, run) {
    float *own = fsdp_part_sum(f, round, OWN_SHARD, x, run), *sum = fsdp_part_sum(f, round, f->lay.hosts.own, x, run);
    f->ctx->ops->copy(&f->reduce_ctx, back ? own : sum, back ? sum : own, (size_t)run.numel * 4);
  }
}
// Adds the contributions to the round's next part; along hosts passes the part's sum on. After its last part the round
// has taken the step. Waits for: the part's contributions, and along hosts its partial sum.
static inline bool fsdp_round_fold(Fsdp *f, uint64_t round, ReduceSpan x) {
  ReduceJob *job = &f->job;
  const HostsLayout *h = &f->lay.hosts;
  if (!note_asked(f, NOTE_ROUND, job->stage, f->comm->part_arrived(f, round, job->part, x))) return false;
  const bool begins = !h->me && fsdp_begins(f), received = hosts_receives_part(f, job->part);
  schedule_enter(f->record, SCHEDULE_CHAIN, job->stage, round);
  if (h->hosts && !received && !begins) fsdp_copy_own_sum(f, round, x, false);
  schedule_enter(f->record, SCHEDULE_REDUCE, job->stage, round);
  EACH_RUN(f, x, run) {
    fsdp_add_run(f, fsdp_part_sum(f, round, job->part, x, run), round, job->part, x, run, begins);
    f->traffic.reduce_bytes += (h->ranks - 1) * run.numel * (int64_t)fsdp_wire_bytes(f);
    f->traffic.reduce_bytes += received * run.numel * 4;
  }
  if (h->hosts) f->comm->hosts_give(f, round, job->part, x);
  if (++job->part < h->parts) return true;
  job->part = 0;
  job->past[REDUCE_FOLD]++;
  float *own = fsdp_grad_shard(f, x), *sum = fsdp_round_sum(f, x);
  const bool given = fsdp_chains(f) && f->lay.mirrored;          // chain_give copies it
  if (sum != own && !given) f->ctx->ops->copy(&f->reduce_ctx, own, sum, (size_t)x.numel * 4);
  f->comm->round_done(f, round);                 // the contributions have been read
  if (job->past[REDUCE_FOLD] == job->rounds) note(f, NOTE_REDUCTION, POINT_ADDED, job->stage);
  return true;
}
// ---- broadcast of the reduced gradient to all replicas
// The step's last reduction of a stage is over: starts the broadcast of its units' sums to all replicas, while backward
// continues. Called after gradient_added, so that a rank that waits for the gradient's memory does not wait for it.
static inline void fsdp_return(Fsdp *f) {
  const uint64_t end = f->job.round0 + (uint64_t)f->job.rounds;
  const SchedulePlace was = schedule_enter(f->record, SCHEDULE_RETURN, f->job.stage, end - 1);
  EACH_UNIT_OF_STAGE(f, f->job.stage, u) {
    if (!f->lay.unit[u].state_numel) continue;
    SumReturn *r = &f->returns.of[f->returns.begun++];
    *r = SumReturn{u, end - 1};
    f->traffic.returns++;
    f->traffic.replicate_bytes += fsdp_return_bytes(f, &f->lay.unit[u]);
    record_collective(f->record, RECORD_HOST, COLLECTIVE_RETURN, OVER_NONE, 1, 0);
    note(f, NOTE_RETURN, POINT_BEGIN, f->job.stage);
    f->comm->return_start(f, r);
    note(f, NOTE_RETURN, POINT_BEGUN, f->job.stage);
  }
  schedule_return(f->record, was);
}
// Takes the next broadcast sum, if it has arrived. Returns whether it has.
static inline bool fsdp_return_take(Fsdp *f) {
  SumReturns *all = &f->returns;
  if (all->taken == all->begun) return false;
  SumReturn *r = &all->of[all->taken];
  const SchedulePlace was = schedule_enter(f->record, SCHEDULE_RETURN, f->lay.unit[r->unit].stage, r->round);
  const bool came = f->comm->return_arrived(f, r);
  schedule_return(f->record, was);
  if (!came) return false;
  liveness_arrived();
  if (++all->taken == all->begun) all->taken = all->begun = 0;
  return true;
}
// Ends a round: the sum is in this rank's shard. Passes it to the next replica, and after the last round ends the
// reduction. Waits for: along hosts, the result from the last host.
static inline bool fsdp_round_end(Fsdp *f, uint64_t round, ReduceSpan x) {
  ReduceJob *job = &f->job;
  const HostsLayout *h = &f->lay.hosts;
  if (h->hosts && !f->comm->hosts_back(f, round, x)) return false;
  if (h->hosts && h->end == f->mesh.shard.me) fsdp_copy_own_sum(f, round, x, true);
  EACH_RUN(f, x, run) f->traffic.reduce_bytes += h->end != f->mesh.shard.me ? run.numel * 4 : 0;
  schedule_enter(f->record, SCHEDULE_CHAIN, job->stage, round);
  if (fsdp_chains(f)) f->comm->chain_give(f, round, x, fsdp_round_sum(f, x));
  liveness_arrived();
  if (++job->past[REDUCE_END] < job->rounds) return true;
  note_end(f, NOTE_REDUCTION, job->collective);
  f->comm->gradient_added(f);
  job->active = false;
  if (job->last && f->cfg.mesh.replicas > 1) fsdp_return(f);
  return true;
}

// ---- moving on
// How many rounds may have taken a step. Two rounds are in flight at once. Without a chain along hosts the next round
// starts its sum after the last one has ended: an offloaded sum has one place, and over NCCL a round should be passed
// on before the next one is waited for.
static inline int fsdp_rounds_allowed(const Fsdp *f, ReduceStep step) {
  const ReduceJob *job = &f->job;
  const int *past = job->past;
  if (step == REDUCE_SEND) return past[REDUCE_END] + 2 < job->rounds ? past[REDUCE_END] + 2 : job->rounds;
  if (step == REDUCE_BEGIN && !f->lay.hosts.hosts && past[REDUCE_END] < past[REDUCE_SEND]) return past[REDUCE_END] + 1;
  return past[step - 1];
}
// Takes one step of one round, the earliest step that need not wait. Returns whether there was one.
static inline bool fsdp_round_step(Fsdp *f) {
  static bool (*const take[REDUCE_STEPS])(Fsdp *f, uint64_t round, ReduceSpan x) = {
      fsdp_round_send, fsdp_round_begin, fsdp_round_fold, fsdp_round_end};
  ReduceJob *job = &f->job;
  for (int s = 0; s < REDUCE_STEPS && job->active; s++) {
    const uint64_t round = job->round0 + (uint64_t)job->past[s];
    if (job->past[s] >= fsdp_rounds_allowed(f, (ReduceStep)s)) continue;
    schedule_enter(f->record, SCHEDULE_REDUCE, job->stage, round);
    if (!take[s](f, round, fsdp_span_of(f, round))) continue;
    job->moves++;
    return true;
  }
  return false;
}
// Advances messages, and calls the hook for background work.
static inline void fsdp_progress(Fsdp *f) {
  note(f, NOTE_MESSAGES, POINT_BEGIN, STAGE_NONE);
  f->comm->progress(f);
  note(f, NOTE_MESSAGES, POINT_END, STAGE_NONE);
  if (!f->watch.hooks.background) return;
  f->watch.hooks.background(f->watch.hooks.background_to);
  note(f, NOTE_BACKGROUND, POINT_END, STAGE_NONE);
}
void fsdp_poll(Fsdp *f) {
  const SchedulePlace was = schedule_enter(f->record, SCHEDULE_REDUCE, 0, 0);
  fsdp_progress(f);
  while (fsdp_round_step(f)) {}
  while (fsdp_return_take(f)) {}
  schedule_return(f->record, was);
}
void fsdp_reduce_wait(Fsdp *f) {
  if (!f->job.active) return;
  note_wait(f, NOTE_REDUCTION, f->job.collective);
  for (int spins = 0; f->job.active;) {
    const int64_t before = f->job.moves;
    fsdp_poll(f);
    if (f->job.active && f->job.moves == before)
      liveness_pause(&spins, fsdp_chains(f) ? "the reduction along the replicas" : "the reduction", f->job.stage);
  }
  note_arrived();
}

// Number of the gradient buffer of stage s: 0 or 1, the slots, which blocks take alternately; 2 + s if it is whole.
static inline int fsdp_grad_buffer(const Fsdp *f, int s) {
  return f->lay.stage[s].grads == GRADS_IN_SLOT ? (int)(f->reduce.block_reductions & 1) : 2 + s;
}
// Records that a gradient buffer, and its mirror, which peers read, is complete (RECORD_HOLD) or may be written again
// (RECORD_FREE).
static inline void fsdp_hold_gradient(Fsdp *f, RecordKind kind, int s, int buffer) {
  if (!f->record) return;
  const bool block = buffer < 2;                 // else of stage buffer - 2, whole
  const Stage *x = &f->lay.stage[block ? 0 : buffer - 2];
  const size_t bytes = block ? f->lay.grad_slot_bytes : (size_t)x->grad_numel * 4;
  const size_t at = block ? f->lay.part[WORK_SLOTS].at + (size_t)buffer * bytes : f->lay.unit[x->first_unit].grads_at;
  record_held(f->record, kind, HELD_GRADIENT, s, fsdp_work(f, at), bytes);
  if (f->lay.mirrored) record_held(f->record, kind, HELD_GRADIENT, s, f->mem.window + at, bytes);
}
// Waits until the memory of a gradient buffer may be overwritten: until every peer has read the gradient in it.
static inline void fsdp_grad_buffer_wait(Fsdp *f, int buffer) {
  if (f->job.active && f->job.buffer == buffer) fsdp_reduce_wait(f);
  note_wait(f, NOTE_SLOT, f->reduce.buffer_collective[buffer]);
  for (int spins = 0; !note_asked(f, NOTE_SLOT, STAGE_NONE, f->comm->grads_free(f, buffer)); fsdp_poll(f))
    liveness_pause(&spins, "peers that read its gradients", STAGE_NONE);
  note_arrived();
  fsdp_hold_gradient(f, RECORD_FREE, 0, buffer);
  for (int i = 0; i < 2; i++)                    // an earlier reduction was read earlier
    if (i != buffer && f->reduce.buffer_rounds[i] <= f->reduce.buffer_rounds[buffer])
      fsdp_hold_gradient(f, RECORD_FREE, STAGE_NONE, i);
}
// The slots, as bits, that a step waits for at its point number `point`.
static inline int fsdp_waits_at(const Fsdp *f, int point) {
  const int P = f->shared.points;                       // from the second on, every other microbatch is alike
  return !P ? 0 : f->shared.wait[point < P ? point : P + (point - P) % (2 * P)];
}
// A point of the step: here it may wait for gradient slots, if the placement says so.
static inline void fsdp_wait_point(Fsdp *f) {
  record_point(f->record);
  const int waits = f->gather.training ? fsdp_waits_at(f, f->reduce.point++) : 0;
  // The slot with the newer reduction comes first: when it has been read, the older one has been, too.
  const int newer = f->reduce.buffer_rounds[1] > f->reduce.buffer_rounds[0];
  for (int i = 0; i < 2; i++) if (waits >> (i ^ newer) & 1) fsdp_grad_buffer_wait(f, i ^ newer);
}
// Zeroes the gaps between parameters where backward writes the gradient of stage s: in gradient buffer `buffer`, or, if
// its home is GRADS_IN_SHARD, in the gradient shard (then `buffer` is not used).
static inline void fsdp_zero_gaps(Fsdp *f, int s, int buffer) {
  const int64_t b = (int64_t)fsdp_wire_bytes(f);
  EACH_PIECE_OF_STAGE(f, s, u, i) {
    const Piece *c = &f->lay.unit[u].piece[i];
    char *piece = f->lay.stage[s].grads == GRADS_IN_SHARD
                      ? (char *)f->shards.grads + fsdp_sums_bytes(f, f->lay.unit[u].sum_base + c->state_at)
                      : fsdp_work(f, fsdp_unit_grads_at(f, u, buffer) + c->grad_at * b);
    int64_t at = 0;                              // parameters are in a piece in their order
    for (int p = 0; p < f->lay.params && piece_trains(c); p++) {
      const ParamPlace *q = &f->lay.place[p];
      if (q->unit != u || q->piece != i) continue;
      if (q->in_piece > at) f->ctx->ops->zero(f->ctx, piece + at * b, (size_t)((q->in_piece - at) * b));
      at = q->in_piece + param_numel_padded(q->param);
    }
    const int64_t end = round_up(fsdp_shards(f) * c->numel, PARAM_ALIGN_NUMEL);
    if (piece_trains(c) && end > at) f->ctx->ops->zero(f->ctx, piece + at * b, (size_t)((end - at) * b));
  }
}
// Zeroes the padding after each piece in the gradient shards of stage s; reductions write everything else there.
static inline void fsdp_zero_shard_gaps(Fsdp *f, int s) {
  EACH_PIECE_OF_STAGE(f, s, u, i) {
    const Piece *c = &f->lay.unit[u].piece[i];
    float *const end = f->shards.grads + f->lay.unit[u].sum_base + c->state_at + c->numel;
    const int64_t gap = round_up(c->numel, PARAM_ALIGN_NUMEL) - c->numel;
    if (piece_trains(c) && gap) f->ctx->ops->zero(f->ctx, end, (size_t)gap * sizeof(float));
  }
}
// Zeroes padding where other data may have been: in gradient shards whose memory other buffers reuse (shared.sums), and
// in the gradient buffer, unless nobody but blocks of one layout writes to it (blocks_alike, and not shared.slot) or it
// is whole, which has memory of its own.
void fsdp_grads_prepare(Fsdp *f, int s) {
  const int buffer = f->reduce.buffer = fsdp_grad_buffer(f, s);
  const GradHome home = f->lay.stage[s].grads;
  if (home == GRADS_NONE) return;
  if (f->shared.sums[s] && home == GRADS_IN_SHARD) fsdp_zero_gaps(f, s, buffer);
  if (f->shared.sums[s] && home != GRADS_IN_SHARD) fsdp_zero_shard_gaps(f, s);
  if (home == GRADS_IN_SHARD) return;
  fsdp_grad_buffer_wait(f, buffer);
  if (grads_are_whole(home) || (f->lay.blocks_alike && !f->shared.slot[buffer])) return;
  fsdp_zero_gaps(f, s, buffer);
}
// Where backward writes the gradient: see GradHome. All offsets of pieces and parameters are in elements.
Tensor fsdp_grad(Fsdp *f, int p) {
  const ParamPlace *q = &f->lay.place[p];
  const Param *x = q->param;
  const Unit *u = &f->lay.unit[q->unit];
  const GradHome home = f->lay.stage[u->stage].grads;
  const Piece *c = &u->piece[q->piece];
  const Dtype dtype = home == GRADS_IN_SLOT ? f->cfg.wire_dtype : home == GRADS_IN_SHARD ? f->lay.sum_dtype : F32;
  char *data = NULL;
  if (!x->frozen && home == GRADS_IN_SHARD)
    data = (char *)f->shards.grads + fsdp_sums_bytes(f, u->sum_base + c->state_at + q->in_piece);
  else if (!x->frozen) {
    const int buffer = grads_are_whole(home) ? fsdp_grad_buffer(f, u->stage) : f->reduce.buffer;
    data = fsdp_work(f, fsdp_unit_grads_at(f, q->unit, buffer) +
                            (size_t)(c->grad_at + q->in_piece) * dtype_bytes(dtype));
  }
  return tensor_of(data, dtype, x->padded_rows, x->ndim == 2 ? x->shape[1] : -1);
}
// Microbatch a > 0 adds where its gradient stays until the last microbatch: with --accumulate local, and in the shard.
Accumulate fsdp_grad_mode(const Fsdp *f, int s, int a) {
  return a && (f->cfg.local || f->lay.stage[s].grads == GRADS_IN_SHARD) ? ADD : OVERWRITE;
}
void fsdp_reduce(Fsdp *f, int s, int a, int microbatches) {
  const GradHome home = f->lay.stage[s].grads;
  if (home == GRADS_NONE || home == GRADS_IN_SHARD || (f->cfg.local && a < microbatches - 1)) return;
  fsdp_reduce_wait(f);
  const int buffer = fsdp_grad_buffer(f, s);
  ReduceJob *job = &f->job;
  *job = ReduceJob{};
  job->active = true;
  job->first = a == 0 || f->cfg.local;
  job->last = a == microbatches - 1;
  job->stage = s;
  job->buffer = buffer;
  job->collective = note_begin(f, NOTE_REDUCTION, s);
  job->rounds = f->lay.stage[s].rounds;
  job->round0 = f->reduce.rounds_started;
  job->last_round0 = f->reduce.stage_round0[s];
  f->reduce.stage_round0[s] = job->round0;
  f->reduce.rounds_started += (uint64_t)job->rounds;
  f->reduce.buffer_rounds[buffer] = f->reduce.rounds_started;
  f->reduce.buffer_collective[buffer] = job->collective;
  f->reduce.block_reductions += home == GRADS_IN_SLOT;
  EACH_UNIT_OF_STAGE(f, s, u) {
    if (!f->lay.unit[u].state_numel) continue;
    f->traffic.reductions++;
    record_collective(f->record, RECORD_HOST, COLLECTIVE_REDUCE, OVER_NONE, 1, 0);
  }
  f->comm->gradient_ready(f);
  note(f, NOTE_REDUCTION, POINT_BEGUN, s);
  fsdp_hold_gradient(f, RECORD_HOLD, s, buffer);
  fsdp_mark(f, &f->reduce_ctx, MARK_REDUCE, 1 + s);
  fsdp_poll(f);
}
