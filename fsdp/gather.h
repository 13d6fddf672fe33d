// gather.h: parameters on their way to the model. A stage is gathered into a slot before it is needed, then waited for,
// read and released. Where shards are read zero-copy, the same calls move nothing.
#pragma once
#include "reduce.h"
#include "kernels/ops_blocks.h"
#include "kernels/ops_loss.h"
#include "kernels/ops_optimizer.h"

void fsdp_gather(Fsdp *f, int s) {
  GatherSlot *slot = fsdp_slot(f, s);
  if (slot->stage == s && slot->state != SLOT_EMPTY) return;
  CHECK(!slot->in_use, "stage %d is gathered into a slot that stage %d still uses", s, slot->stage);
  slot->stage = s;
  slot->state = SLOT_PENDING;
  slot->from_secondary = f->gather.secondary_valid[s];
  const SchedulePlace was = schedule_enter(f->record, SCHEDULE_GATHER, s, 0);
  if (!f->lay.in_place && f->lay.stage[s].units) {
    const bool stamps = f->watch.note && f->ctx->ops->nccl;    // --trace: the device's time, after its waits,
    if (stamps) step_event_wait(&f->gather_ctx, &slot->released);
    slot->gather = note_begin(f, NOTE_GATHER, s);
    f->comm->gather_start(f, s, slot);
    note(f, NOTE_GATHER, POINT_BEGUN, s);
    if (stamps) step_event_record(&f->gather_ctx, &slot->arrived);     // and a capture must not end before that
  }
  schedule_return(f->record, was);
}
void fsdp_prefetch(Fsdp *f, int s, int direction, int last) {
  for (int i = 1; i < f->cfg.gather_slots && s != last; i++) fsdp_gather(f, s += direction);
}

// Address of unit u, gathered.
static inline char *fsdp_gathered(const Fsdp *f, int u) {
  const int s = f->lay.unit[u].stage;
  if (f->lay.in_place) return fsdp_home(f, f->lay.unit[u].params_at);
  return f->gather.slot[fsdp_slot_number(f, s)].data + f->lay.unit[u].slot_at;
}
static inline char *fsdp_expanded(const Fsdp *f, int s) { return s ? f->mem.expanded : f->mem.root_expanded; }
Tensor fsdp_stored(const Fsdp *f, int p, int part) {
  const ParamPlace *q = &f->lay.place[p];
  if (q->param->keeps) {
    const KeptPlace k = q->kept[part];
    const Piece *c = &f->lay.unit[q->unit].piece[k.piece];
    return tensor_of(fsdp_gathered(f, q->unit) + c->full_at + piece_at(c, k.in_piece), BLOCKS,
                     q->param->matrix_rows[part], (int64_t)piece_at(c, q->param->shape[1]));
  }
  const Piece *c = &f->lay.unit[q->unit].piece[q->piece];
  return tensor_of(fsdp_gathered(f, q->unit) + c->full_at + (size_t)q->in_piece * dtype_bytes(q->dtype), q->dtype,
                   q->param->padded_rows, q->param->ndim == 2 ? q->param->shape[1] : -1);
}
QuantMatrix fsdp_quant(const Fsdp *f, int p) {
  const ParamPlace *q = &f->lay.place[p];
  QuantMatrix m = {};
  for (; q->expand_at < 0 && m.parts < q->param->keeps; m.parts++) {
    m.part[m.parts] = fsdp_stored(f, p, m.parts);
    m.type[m.parts] = q->param->kept[m.parts];
  }
  return m;
}
Tensor fsdp_scale(const Fsdp *f, int p) {
  return tensor_of(f->shards.scale + f->lay.place[p].scale, F32, 1);
}

// Converts `in` to the compute dtype. fp32 numbers are rounded as a parameter stored in that dtype would be.
static inline void fsdp_expand_numbers(Fsdp *f, Tensor out, Tensor in) {
  if (in.dtype == F32) param_from_master(f->ctx, out, Tensor{}, in);
  else convert(f->ctx, out, in);
}
// Expands parameter p, which is kept quantized, to `to`: its matrices stacked by rows, then zeros in its padding rows.
static inline void fsdp_expand_kept(Fsdp *f, int p, char *to) {
  const Param *q = &f->lay.param[p];
  const Dtype dtype = f->cfg.compute_dtype;
  const size_t b = dtype_bytes(dtype), padding = (size_t)((q->padded_rows - q->shape[0]) * param_cols(q)) * b;
  for (int part = 0; part < q->keeps; part++) {
    const Tensor in = fsdp_stored(f, p, part);
    const int type = q->kept[part];
    const int64_t n = q->matrix_rows[part] * param_cols(q);
    const Tensor out = tensor_of(to + (size_t)param_part_first(q, part) * b, dtype, n);
    if (type == BLOCK_F32 || type == BLOCK_BF16) fsdp_expand_numbers(f, out, tensor_of(in.data, block_dtype(type), n));
    else blocks_expand(f->ctx, out, reshaped(in, numel(in)), type);
  }
  if (padding) f->ctx->ops->zero(f->ctx, to + (size_t)param_numel(q) * b, padding);
}
// Converts the parameters of stage s that are stored in another dtype to the compute dtype: E4M3 matrices one by one,
// because each has its scale, and matrices kept quantized; everything else piece by piece. matrices: as in fsdp_wait.
static inline void fsdp_expand(Fsdp *f, int s, bool matrices) {
  const Dtype to = f->cfg.compute_dtype;
  EACH_UNIT_OF_STAGE(f, s, u) {
    char *base = fsdp_expanded(f, s) + (size_t)f->lay.unit[u].expand_slot_at * dtype_bytes(to);
    for (int i = 0; i < f->lay.unit[u].pieces; i++) {
      const Piece *c = &f->lay.unit[u].piece[i];
      if (!c->expands || c->like->dtype == F8 || c->type) continue;
      const int64_t n = c->numel * fsdp_shards(f);
      const Tensor out = tensor_of(base + (size_t)c->expand_at * dtype_bytes(to), to, n);
      const Tensor in = tensor_of(fsdp_gathered(f, u) + c->full_at, c->like->dtype, n);
      fsdp_expand_numbers(f, out, in);
    }
    for (int p = 0; p < f->lay.params; p++) {
      const ParamPlace *q = &f->lay.place[p];
      if (!matrices && (!q->param->keeps || param_in_blocks(q->param))) continue;
      if (q->unit != u || q->expand_at < 0) continue;
      if (q->param->keeps) fsdp_expand_kept(f, p, base + (size_t)q->expand_at * dtype_bytes(to));
      if (q->dtype != F8) continue;
      const Piece *c = &f->lay.unit[u].piece[q->piece];
      const int64_t n = param_numel_padded(q->param);
      fp8_decode(f->ctx, tensor_of(base + (size_t)(c->expand_at + q->in_piece) * dtype_bytes(to), to, n),
                 reshaped(fsdp_stored(f, p), n), fsdp_scale(f, p));
    }
  }
}

// Record that stage s is whole (RECORD_HOLD), or no longer read (RECORD_FREE): the gathered stage; its copy in the
// compute dtype.
static inline void fsdp_hold_gathered(Fsdp *f, RecordKind kind, int s) {
  const Stage *x = &f->lay.stage[s];
  if (f->record && x->units)
    record_held(f->record, kind, HELD_WEIGHTS, s, fsdp_gathered(f, x->first_unit), x->full_bytes);
}
static inline void fsdp_hold_expanded(Fsdp *f, RecordKind kind, int s) {
  record_held(f->record, kind, HELD_WEIGHTS, s, fsdp_expanded(f, s),
              (size_t)f->lay.stage[s].expand_numel * dtype_bytes(f->cfg.compute_dtype));
}
// Whether the model reads the gathered stage s itself, and not only its copy in the compute dtype. Matrix multiplies
// read quantization blocks if the matrix has no copy, and, with few rows of input, in passes that do not train.
static inline bool fsdp_reads_gathered(const Fsdp *f, int s) {
  bool reads = f->cfg.fp8 == FP8_MATMUL;
  EACH_PIECE_OF_STAGE(f, s, u, i) {
    const Piece *c = &f->lay.unit[u].piece[i];
    reads = reads || !c->expands || (c->type && !f->gather.training);
  }
  for (int p = 0; p < f->lay.params; p++) reads |= f->lay.param[p].stage == s && f->lay.place[p].expand_at < 0;
  return reads;
}
void fsdp_wait(Fsdp *f, int s, bool matrices) {
  fsdp_wait_point(f);
  fsdp_gather(f, s);
  GatherSlot *slot = fsdp_slot(f, s);
  slot->in_use = true;
  const SchedulePlace was = schedule_enter(f->record, SCHEDULE_GATHER, s, 0);
  if (slot->state != SLOT_WHOLE && !f->lay.in_place && f->lay.stage[s].units) {
    note_wait(f, NOTE_GATHER, slot->gather);
    f->comm->gather_finish(f, s, slot);
    note_exchanged(f, NOTE_GATHER, slot->gather);
  }
  slot->state = SLOT_WHOLE;
  liveness_stage(s);                             // its weights may be read: its ops follow
  fsdp_hold_gathered(f, RECORD_HOLD, s);
  Gathering *g = &f->gather;
  const bool ready = s ? g->expanded_stage == s && (g->expanded_matrices || !matrices) : g->root_is_expanded;
  schedule_enter(f->record, SCHEDULE_EXPAND, s, 0);
  if (f->lay.stage[s].expand_numel && !ready) {
    fsdp_expand(f, s, matrices);
    if (!s) g->root_is_expanded = matrices;
    else g->expanded_stage = s, g->expanded_matrices = matrices;
  }
  schedule_return(f->record, was);
  fsdp_hold_expanded(f, RECORD_HOLD, s);
  if (!fsdp_reads_gathered(f, s)) fsdp_hold_gathered(f, RECORD_FREE, s);
}

Tensor fsdp_weight(Fsdp *f, int p) {
  const ParamPlace *q = &f->lay.place[p];
  const Unit *u = &f->lay.unit[q->unit];
  const Piece *c = &u->piece[q->piece];
  const GatherSlot *slot = fsdp_slot(f, u->stage);
  CHECK(slot->stage == u->stage && slot->in_use, "%s is read while it is not gathered", q->param->name);
  if (q->expand_at < 0) return Tensor{};
  if (!c->expands) return fsdp_stored(f, p);
  CHECK(!param_in_blocks(q->param) || (u->stage ? f->gather.expanded_matrices : f->gather.root_is_expanded),
        "%s is read while it is not expanded", q->param->name);
  const size_t b = dtype_bytes(f->cfg.compute_dtype);
  const int64_t at = q->param->keeps ? q->expand_at : c->expand_at + q->in_piece;
  return tensor_of(fsdp_expanded(f, u->stage) + (size_t)(u->expand_slot_at + at) * b,
                   f->cfg.compute_dtype, q->param->padded_rows, q->param->ndim == 2 ? q->param->shape[1] : -1);
}

void fsdp_release(Fsdp *f, int s) {
  GatherSlot *slot = fsdp_slot(f, s);
  slot->in_use = false;
  if (fsdp_reads_gathered(f, s)) fsdp_hold_gathered(f, RECORD_FREE, s);
  fsdp_hold_expanded(f, RECORD_FREE, s);
  if (!f->lay.in_place) step_event_record(f->ctx, &slot->released);
}

// Marks all gathered stages as stale.
static inline void fsdp_forget(Fsdp *f) {
  for (int k = 0; k <= f->cfg.gather_slots; k++) { f->gather.slot[k].state = SLOT_EMPTY; f->gather.slot[k].stage = -1; }
  for (int s = 0; s < f->lay.stages; s++) f->gather.secondary_valid[s] = false;
  f->gather.expanded_stage = f->gather.root_is_expanded = 0;
}

void fsdp_step_begin(Fsdp *f, bool training) {
  fsdp_forget(f);
  f->gather.training = training;
  f->watch.passes_marked = 0;
  memset(f->reduce.buffer_collective, 0, sizeof(FlightCollective) * (size_t)(2 + f->lay.stages));
  if (f->record) f->record->pass++;
  for (int k = 0; k <= f->cfg.gather_slots; k++) {
    GatherSlot *slot = &f->gather.slot[k];
    slot->arrived.recorded = slot->released.recorded = false;
  }
  for (int i = 0; i < 2 + f->lay.stages; i++) f->events.grads_free[i].recorded = false;
  f->comm->step_begin(f);
  f->reduce.block_reductions = 0;                       // every pass uses the slots in the order of the record
  f->reduce.point = 0;
  for (int slot = 0; slot < 2; slot++) if (f->shared.slot[slot]) fsdp_grad_buffer_wait(f, slot);
  for (int s = 0; s < f->lay.stages && f->shared.staging; s++)
    if (f->lay.stage[s].staged) fsdp_grad_buffer_wait(f, 2 + s);       // then its staging has been read, too
}

void fsdp_sync(Fsdp *f) {
  const Ops *ops = f->ctx->ops;
  bool done = f->cfg.comm != COMM_NCCL;
  if (!done) ops->event_record(f->ctx, f->events.drained.event);
  for (int spins = 0; !done; fsdp_progress(f)) {
    ops->event_done(f->ctx, f->events.drained.event, &done);
    if (!done) liveness_pause(&spins, "the GPU", STAGE_NONE);
  }
  ops->sync(f->ctx);
  liveness_arrived();
}
