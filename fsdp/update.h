// update.h: the optimizer's step on the own shards: AdamW and SGD piece by piece; Muon matrix by matrix, each at its
// owner (owned.h). All of it reads the step's decision from ctx->state, so it can be captured.
//
// Muon goes in rounds, three of them in flight: while the matrices of one round are orthogonalised, momenta of the next
// round are sent to the owners and updates of the round before are sent back.
#pragma once
#include "layers.h"

// The optimizer's arguments for a piece: no weight decay if the piece has none; its factor of the learning rate.
static inline OptimizerArgs piece_args(const Piece *c, OptimizerArgs a) {
  if (!c->like->param->decay) a.adamw.weight_decay = a.sgd.weight_decay = a.muon.weight_decay = 0;
  a.adamw.lr_scale = a.sgd.lr_scale = a.muon.lr_scale = c->like->param->lr_scale;
  return a;
}

// ---- Muon
// Computes the momenta of this rank's runs of a round's matrices and gives them to the owners.
static inline void fsdp_update_give(Fsdp *f, int round, MuonArgs a) {
  Span run;
  schedule_enter(f->record, SCHEDULE_UPDATE, 0, (uint64_t)round);
  f->comm->updates(f, UPDATES_FREE, round);
  EACH_OWNED(f, round, x) {
    if (!owned_run(f, x, f->mesh.shard.me, &run)) continue;
    const ParamPlace *p = &f->lay.place[x->param];
    float *m = fsdp_piece_state(f, STATE_M, p->unit, p->piece), *g = fsdp_piece_state(f, STATE_GRAD, p->unit, p->piece);
    muon_momentum(fsdp_state_ctx(f), tensor_of(owned_to(f, x, run), BF16, run.numel),
                  tensor_of(m + run.in_piece, F32, run.numel), tensor_of(g + run.in_piece, F32, run.numel), a);
  }
  f->comm->updates(f, UPDATES_GIVE, round);
}
// Orthogonalises this rank's matrix of the round, if it has one, and gives the runs back.
static inline void fsdp_update_orthogonalise(Fsdp *f, int round) {
  schedule_enter(f->record, SCHEDULE_UPDATE, 0, (uint64_t)round);
  f->comm->updates(f, UPDATES_WHOLE, round);
  EACH_OWNED(f, round, x) {
    if (x->owner != f->mesh.rank) continue;
    const Tensor matrix = tensor_of(owned_matrix(f, x->owner, round), BF16, x->rows, x->cols);
    newton_schulz(f->ctx, matrix, matrix, tensor_of(f->muon.orthogonal, I32, (int64_t)f->lay.owned.work_bytes / 4),
                  MUON_STEPS);
    liveness_progress();
  }
  f->comm->updates(f, UPDATES_BACK, round);
}
// Updates the parameters of this rank's runs. With --offload optimizer it updates masters only; fsdp_update then makes
// the parameters from them, unit by unit.
static inline void fsdp_update_take(Fsdp *f, int round, OptimizerArgs a) {
  Span run;
  schedule_enter(f->record, SCHEDULE_UPDATE, 0, (uint64_t)round);
  f->comm->updates(f, UPDATES_ARRIVED, round);
  EACH_OWNED(f, round, x) {
    if (!owned_run(f, x, f->mesh.shard.me, &run)) continue;
    const ParamPlace *p = &f->lay.place[x->param];
    const Piece *c = &f->lay.unit[p->unit].piece[p->piece];
    float *state = fsdp_piece_state(f, STATE_MASTER, p->unit, p->piece);
    low16 *low = (low16 *)fsdp_piece_low(f, p->unit, p->piece).data;
    char *params = fsdp_own_piece(f, p->unit, p->piece) + (size_t)run.in_piece * dtype_bytes(c->like->dtype);
    const bool copied = c->has_master && c->like->dtype != F8 && !f->lay.publish_bytes;
    const MuonArgs mine = piece_args(c, a).muon;
    const Tensor to = tensor_of(copied ? params : NULL, c->like->dtype, run.numel);
    const Tensor master = c->split ? tensor_of(low + run.in_piece, LOW16, run.numel)
                                   : tensor_of(state + run.in_piece, F32, run.numel);
    const Tensor grad = tensor_of(fsdp_piece_state(f, STATE_GRAD, p->unit, p->piece) + run.in_piece, F32, run.numel);
    const Tensor update = tensor_of(owned_from(f, x, run), BF16, run.numel);
    const int64_t chunk = layers_chunk(f, run.numel);
    for (int64_t at = 0; at < run.numel; at += chunk) {
      const int64_t n = min64(chunk, run.numel - at);
      layer_before(f, p->unit, run_of(to, at, n), run_of(master, at, n), run_of(grad, at, n));
      muon_update(fsdp_state_ctx(f), run_of(to, at, n), run_of(master, at, n), run_of(update, at, n), mine, x->rows,
                  x->cols);
      layer_after(f, p->unit, run_of(to, at, n), run_of(master, at, n));
    }
  }
  f->comm->updates(f, UPDATES_TAKEN, round);
}
static inline void fsdp_update_owned(Fsdp *f, OptimizerArgs a) {
  const int rounds = f->lay.owned.rounds, ahead = f->lay.owned.slots > 1 ? 1 : 0;
  const FlightCollective exchange = note_exchange(f, NOTE_UPDATES);
  for (int k = 0; k < rounds + 2 * ahead; k++) {
    if (k < rounds) fsdp_update_give(f, k, a.muon);
    if (k >= ahead && k - ahead < rounds) fsdp_update_orthogonalise(f, k - ahead);
    if (k >= 2 * ahead) fsdp_update_take(f, k - 2 * ahead, a);
  }
  f->muon.rounds += (uint64_t)rounds;
  note_exchanged(f, NOTE_UPDATES, exchange);
  schedule_enter(f->record, SCHEDULE_UPDATE, 0, 0);
}

// ---- the step
// One optimizer step on this rank's part of piece i of unit u. params: where the unit's new parameters are written; if
// masters are split this is the parameter shard itself, which has the upper halves.
static inline void fsdp_update_piece(Fsdp *f, int u, int i, char *params, OptimizerArgs a) {
  Ctx *c = fsdp_state_ctx(f);
  const Piece *q = &f->lay.unit[u].piece[i];
  const int64_t n = q->numel;
  a = piece_args(q, a);
  Tensor param = tensor_of(q->has_master && q->like->dtype != F8 ? params + q->shard_at : NULL, q->like->dtype, n);
  Tensor master = q->split ? fsdp_piece_low(f, u, i) : tensor_of(fsdp_piece_state(f, STATE_MASTER, u, i), F32, n);
  const Tensor m = fsdp_piece_moment(f, STATE_M, u, i), v = fsdp_piece_moment(f, STATE_V, u, i);
  const Tensor grad = fsdp_piece_grad(f, u, i);
  const int64_t chunk = layers_chunk(f, n);
  // The whole piece at once; parameter by parameter where random numbers are counted by their elements.
  const bool whole = f->cfg.moment_dtype == F32;
  for (int k = 0; k < (whole ? 1 : f->lay.params); k++) {
    const ParamPlace *x = &f->lay.place[k];
    Span run = {0, 0, n};
    if (!whole && (x->unit != u || x->piece != i || !shard_run(&f->lay.unit[u], x, f->mesh.shard.me, &run))) continue;
    a.adamw.param = (uint32_t)k;
    for (int64_t at = run.in_piece, end = at + run.numel; at < end; at += chunk) {
      const int64_t numel_ = min64(chunk, end - at);
      const Tensor to = run_of(param, at, numel_), p = run_of(master, at, numel_), g = run_of(grad, at, numel_);
      layer_before(f, u, to, p, g);
      a.adamw.element = run.in_range + at - run.in_piece;
      if (a.kind == OPTIMIZER_SGD) sgd_update(c, to, p, run_of(m, at, numel_), g, a.sgd);
      else adamw_update(c, to, p, run_of(m, at, numel_), run_of(v, at, numel_), g, a.adamw);
      layer_after(f, u, to, p);
    }
  }
}

void fsdp_update(Fsdp *f, OptimizerArgs a, StepState *host) {
  f->host_ctx.state = host;
  const SchedulePlace was = schedule_enter(f->record, SCHEDULE_UPDATE, 0, 0);
  if (fsdp_offloads(f)) record_host(f->record, ACCESS_READ, f->host_ctx.state, sizeof(StepState));
  layers_begin(f);
  if (f->lay.owned.rounds) fsdp_update_owned(f, a);
  // A skipped step publishes nothing, because the publish buffers still hold other units; --log_layers adds up its
  // norms.
  const bool skipped = fsdp_offloads(f) && f->host_ctx.state->skip;
  for (int u = 0; u < f->lay.units && (!skipped || f->layers.sums); u++) {
    char *params = fsdp_publish_begin(f, u);
    for (int i = 0; i < f->lay.unit[u].pieces; i++) {
      const Piece *c = &f->lay.unit[u].piece[i];
      if (!piece_trains(c)) continue;
      if (!c->like->owned) fsdp_update_piece(f, u, i, params, a);
      else if (f->lay.publish_bytes && c->like->dtype != F8 && !skipped)
        param_from_master(fsdp_state_ctx(f), tensor_of(params + c->shard_at, c->like->dtype, c->numel), Tensor{},
                          tensor_of(fsdp_piece_state(f, STATE_MASTER, u, i), F32, c->numel));
      if (c->like->dtype != F8 && !skipped) fsdp_publish_piece(f, u, i);
    }
    if (!skipped) fsdp_publish_end(f, u);
    liveness_arrived();
  }
  fsdp_publish_e4m3(f);
  layers_end(f);
  schedule_return(f->record, was);
}
