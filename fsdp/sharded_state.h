// sharded_state.h: reading and writing of the shards that a rank owns, the gradient norm, and the making of parameter
// shards from masters.
//
// Masters, moments and gradients are fp32, on the device or, if offloaded, on the host. Parameter shards, which are
// gathered, are made from the masters. An fp32 parameter is its own master. A frozen one has none. A bf16 one is the
// upper half of its master, and the lower half is stored beside it (master.cuh). Moments may be stored in bf16, and
// gradients are where grads_are_lone (layout.h). Files have all masters and moments in fp32.
#pragma once
#include "gather.h"

// The context that the optimizer runs in: the device's, or the host's if it is offloaded.
static inline Ctx *fsdp_state_ctx(Fsdp *f) { return fsdp_offloads(f) ? &f->host_ctx : f->ctx; }

// This rank's moments, STATE_M or STATE_V, of piece i of unit u. data is NULL if it has none.
static inline Tensor fsdp_piece_moment(const Fsdp *f, ShardState state, int u, int i) {
  const Unit *q = &f->lay.unit[u];
  const Piece *c = &q->piece[i];
  char *const at = state == STATE_V ? f->shards.v : f->shards.m;
  const int64_t first = state == STATE_V ? q->second_base + c->second_at : q->state_base + c->state_at;
  const Dtype dtype = f->cfg.moment_dtype;
  const bool has = at && c->moments >= (state == STATE_V ? 2 : 1);
  return tensor_of(has ? at + (size_t)first * dtype_bytes(dtype) : NULL, dtype, c->numel);
}
// This rank's part of the gradient of piece i of unit u. data is NULL if the piece is frozen.
static inline Tensor fsdp_piece_grad(const Fsdp *f, int u, int i) {
  const Unit *q = &f->lay.unit[u];
  const Piece *c = &q->piece[i];
  if (!piece_trains(c)) return Tensor{};
  if (f->lay.stage[q->stage].grads == GRADS_SHARD_IN_WHOLE) return tensor_of(fsdp_own_gradient(f, u, i), F32, c->numel);
  char *const all = (char *)f->shards.grads;
  return tensor_of(all ? all + fsdp_sums_bytes(f, q->sum_base + c->state_at) : NULL, f->lay.sum_dtype, c->numel);
}
// Where this rank's part of piece i of unit u is in an fp32 state. NULL if it is not there: a frozen piece has only
// masters, and those only if it is stored in fp32; a master in two halves is not stored in fp32, nor a moment or a
// gradient in bf16.
static inline float *fsdp_piece_state(const Fsdp *f, ShardState state, int u, int i) {
  const Unit *q = &f->lay.unit[u];
  const Piece *c = &q->piece[i];
  if (state == STATE_MASTER && c->split) return NULL;
  float *const master = f->shards.master;
  if (state == STATE_MASTER && c->has_master) return master ? master + q->master_base + c->master_at : NULL;
  if (state == STATE_MASTER) return c->like->dtype == F32 ? (float *)fsdp_own_piece(f, u, i) : NULL;
  const Tensor grad = state == STATE_GRAD ? fsdp_piece_grad(f, u, i) : Tensor{};
  if (state == STATE_GRAD) return grad.dtype == F32 ? (float *)grad.data : NULL;
  return f->cfg.moment_dtype == F32 ? (float *)fsdp_piece_moment(f, state, u, i).data : NULL;
}
// The lower halves of the masters of this rank's part of a piece. data is NULL if its masters are not split.
static inline Tensor fsdp_piece_low(const Fsdp *f, int u, int i) {
  const Unit *q = &f->lay.unit[u];
  const Piece *c = &q->piece[i];
  return tensor_of(c->split ? f->shards.low + q->low_base + c->master_at : NULL, LOW16, c->numel);
}
// The elements of parameter p that this rank owns, and where they are in an fp32 state (NULL: not there). Returns false
// if it owns none.
static inline bool fsdp_own(const Fsdp *f, ShardState state, int p, Span *run, float **at) {
  const ParamPlace *q = &f->lay.place[p];
  if (!fsdp_span(f, p, f->mesh.shard.me, run)) return false;
  float *piece = fsdp_piece_state(f, state, q->unit, q->piece);
  *at = piece ? piece + run->in_piece : NULL;
  return true;
}
// The elements `run` of parameter p in the parameter shard, as stored.
static inline Tensor fsdp_own_stored(const Fsdp *f, int p, Span run) {
  const ParamPlace *q = &f->lay.place[p];
  if (q->param->keeps) {
    const int i = q->kept[run.part].piece;
    const Piece *c = &f->lay.unit[q->unit].piece[i];
    char *at = fsdp_own_piece(f, q->unit, i) + piece_at(c, run.in_piece);
    return tensor_of(at, BLOCKS, (int64_t)piece_at(c, run.numel));
  }
  return tensor_of(fsdp_own_piece(f, q->unit, q->piece) + (size_t)run.in_piece * dtype_bytes(q->dtype), q->dtype,
                   run.numel);
}
// The elements `run` of parameter p where they are stored in another form than an fp32 state. data is NULL if p does
// not have the moment.
static inline Tensor fsdp_own_state(const Fsdp *f, ShardState state, int p, Span run) {
  const ParamPlace *q = &f->lay.place[p];
  if (state == STATE_MASTER) return fsdp_own_stored(f, p, run);
  const Tensor piece = state == STATE_GRAD ? fsdp_piece_grad(f, q->unit, q->piece)
                                           : fsdp_piece_moment(f, state, q->unit, q->piece);
  if (!piece.data) return Tensor{};
  return tensor_of((char *)piece.data + (size_t)run.in_piece * dtype_bytes(piece.dtype), piece.dtype, run.numel);
}
// How snapshots are copied: past the caches, because a snapshot is not read soon, and lines that are written whole need
// not be read first, which is a third of a copy's traffic. `to` is aligned to a line of 64 bytes; `from` may start
// anywhere, since shards may be cut by rows.
static inline void copy_past_caches(const Ctx *c, float *to, const float *from, int64_t numel) {
  const int64_t piece = 1 << 18, line = 16, ahead = 256;
  parallel_for(c->threads, 0, numel, piece, [=](int64_t at) {
    const int64_t end = min64(numel, at + piece), whole = at + (end - at) / line * line;
    for (int64_t i = at; i < whole; i += line) {
      __builtin_prefetch((const char *)(from + i + ahead), 0, 0);
      for (int64_t k = i; k < i + line; k += 4) processor_stream16(to + k, from + k);
    }
    memcpy(to + whole, from + whole, (size_t)(end - whole) * 4);
    processor_streamed();                                // the thread that writes the file must see them
  });
}
void fsdp_snapshot_own(Fsdp *f, ShardState state, int p, float *to) {
  Span run;
  float *from;
  if (!fsdp_own(f, state, p, &run, &from) || (!from && !fsdp_own_state(f, state, p, run).data)) return;
  if (!from) fsdp_get_own(f, state, p, 0, to, run.numel);
  else if (f->ctx->ops->nccl) f->ctx->ops->copy(f->ctx, to, from, (size_t)run.numel * 4);
  else copy_past_caches(f->ctx, to, from, run.numel);
}
void fsdp_snapshot_wait(Fsdp *f) { f->ctx->ops->sync(f->ctx); }
float *fsdp_own_on_host(const Fsdp *f, ShardState state, int p) {
  Span run;
  float *from;
  return !f->ctx->ops->nccl && fsdp_own(f, state, p, &run, &from) ? from : NULL;
}
bool fsdp_needs_measure(const Fsdp *f) { return f->lay.scales > f->lay.scales_trained; }
int fsdp_stage_of_gradient(const Fsdp *f, const void *p, uint64_t *round) {
  for (int u = 0; u < f->lay.units; u++)
    for (int i = 0; i < f->lay.unit[u].pieces; i++) {
      const Tensor g = fsdp_piece_grad(f, u, i);
      const char *from = (const char *)g.data, *at = (const char *)p;
      if (!from || at < from || at >= from + (size_t)numel(g) * dtype_bytes(g.dtype)) continue;
      *round = f->reduce.stage_round0[f->lay.unit[u].stage];
      return f->lay.unit[u].stage;
    }
  return STAGE_NONE;
}
// The lower halves of the masters of the elements `run` of parameter p. data is NULL if its masters are not split.
static inline Tensor fsdp_own_low(const Fsdp *f, int p, Span run) {
  const ParamPlace *q = &f->lay.place[p];
  low16 *piece = (low16 *)fsdp_piece_low(f, q->unit, q->piece).data;
  return tensor_of(piece ? piece + run.in_piece : NULL, LOW16, run.numel);
}

// Adds the squares of this rank's gradient shards to limbs: of shards with memory of their own, and of shards that are
// part of a whole gradient.
static inline void fsdp_norm_shards(Fsdp *f, Ctx *c, int64_t *limbs) {
  if (f->lay.sum_numel) norm_accumulate(c, limbs, tensor_of(f->shards.grads, f->lay.sum_dtype, f->lay.sum_numel));
  for (int u = 0; u < f->lay.units; u++)
    for (int i = 0; i < f->lay.unit[u].pieces && f->lay.stage[f->lay.unit[u].stage].grads == GRADS_SHARD_IN_WHOLE; i++)
      if (piece_trains(&f->lay.unit[u].piece[i]))
        norm_accumulate(c, limbs, tensor_of(fsdp_own_gradient(f, u, i), F32, f->lay.unit[u].piece[i].numel));
}
void fsdp_returns_wait(Fsdp *f) {
  note(f, NOTE_JOIN, POINT_BEGIN, STAGE_NONE);
  f->comm->returns_wait(f);
  note(f, NOTE_JOIN, POINT_END, STAGE_NONE);
}
void fsdp_norm_accumulate(Fsdp *f, int64_t *limbs) {
  fsdp_reduce_wait(f);
  const SchedulePlace was = schedule_enter(f->record, SCHEDULE_RETURN, STAGE_NONE, 0);
  const bool between = f->mesh.replicate.size > 1;               // sums that are still on their way to all replicas
  const FlightCollective sums = between ? note_exchange(f, NOTE_SUMS) : FlightCollective{};
  fsdp_returns_wait(f);
  note_exchanged(f, NOTE_SUMS, sums);
  schedule_enter(f->record, SCHEDULE_UPDATE, 0, 0);
  const bool counts = f->mesh.replicate.me == f->mesh.replicate.size - 1;
  if (fsdp_offloads(f)) {
    fsdp_sync(f);                                // the host reads what the reductions' stream has copied to it
    f->host_ctx.ops->zero(&f->host_ctx, f->shards.host_limbs, NORM_LIMBS * sizeof(int64_t));
    if (counts) fsdp_norm_shards(f, &f->host_ctx, f->shards.host_limbs);
    f->ctx->ops->copy(f->ctx, limbs, f->shards.host_limbs, NORM_LIMBS * sizeof(int64_t));
  } else if (counts) fsdp_norm_shards(f, f->ctx, limbs);
  schedule_return(f->record, was);
}

void fsdp_small_all_gather(Fsdp *f, const void *mine, void *all, size_t bytes) {
  f->traffic.small++;
  f->traffic.small_bytes += (int64_t)bytes * (f->mesh.world - 1);
  const SchedulePlace was = schedule_enter(f->record, SCHEDULE_SMALL, 0, 0);
  const FlightCollective exchange = note_exchange(f, NOTE_SMALL);
  f->comm->small_all_gather(f, mine, all, bytes);
  note_exchanged(f, NOTE_SMALL, exchange);
  schedule_return(f->record, was);
}

// ---- from masters to parameter shards
// Returns where the parameters of unit u are to be written. With --offload optimizer that is one of two host buffers:
// the host fills one while the other is copied to the device.
static inline char *fsdp_publish_begin(Fsdp *f, int u) {
  if (!f->lay.publish_bytes) return fsdp_home(f, f->lay.unit[u].params_at);
  StepEvent *e = &f->shards.published[u & 1];
  bool done = !e->recorded;
  for (int spins = 0; !done;) {
    f->ctx->ops->event_done(f->ctx, e->event, &done);
    if (!done) liveness_pause(&spins, "a copy of the GPU", STAGE_NONE);
  }
  return f->shards.publish[u & 1];
}
static inline void fsdp_publish_piece(Fsdp *f, int u, int i) {
  if (!f->lay.publish_bytes) return;
  const Piece *c = &f->lay.unit[u].piece[i];
  f->ctx->ops->copy(f->ctx, fsdp_own_piece(f, u, i), f->shards.publish[u & 1] + c->shard_at, piece_bytes(c));
}
static inline void fsdp_publish_end(Fsdp *f, int u) {
  if (f->lay.publish_bytes) step_event_record(f->ctx, &f->shards.published[u & 1]);
}

// Makes unit u's parameter shard from the masters, except E4M3 matrices, and parameters that are their own masters or
// the upper half of them.
static inline void fsdp_publish_unit(Fsdp *f, int u) {
  char *to = fsdp_publish_begin(f, u);
  for (int i = 0; i < f->lay.unit[u].pieces; i++) {
    const Piece *c = &f->lay.unit[u].piece[i];
    float *master = fsdp_piece_state(f, STATE_MASTER, u, i);
    if (!c->has_master || c->like->dtype == F8 || !master) continue;
    param_from_master(fsdp_state_ctx(f), tensor_of(to + c->shard_at, c->like->dtype, c->numel), Tensor{},
                      tensor_of(master, F32, c->numel));
    fsdp_publish_piece(f, u, i);
  }
  fsdp_publish_end(f, u);
}
// Makes E4M3 matrices from the masters: the largest magnitude of a matrix, over all ranks, gives its scale, and every
// rank encodes the elements that it owns. A frozen matrix keeps its scale. All ranks call it.
static inline void fsdp_publish_e4m3(Fsdp *f) {
  if (!f->lay.scales_trained) return;
  const Ops *ops = f->ctx->ops;
  Ctx *c = fsdp_state_ctx(f);
  const bool off = fsdp_offloads(f);
  float *host_amax = (float *)(f->shards.host_limbs + NORM_LIMBS), *host_scale = host_amax + f->lay.scales;
  float *amax = off ? host_amax : f->shards.amax, *scale = off ? host_scale : f->shards.scale, *master;
  Span run;
  const int64_t n = f->lay.scales_trained;
  c->ops->zero(c, amax, (size_t)n * 4);
  for (int p = 0; p < f->lay.params; p++)
    if (f->lay.place[p].dtype == F8 && !f->lay.param[p].frozen && fsdp_own(f, STATE_MASTER, p, &run, &master) && master)
      absmax(c, tensor_of(amax + f->lay.place[p].scale, F32, 1), tensor_of(master, F32, run.numel));
  if (off) ops->copy(f->ctx, f->shards.amax, amax, (size_t)n * 4);
  fsdp_small_all_gather(f, f->shards.amax, f->shards.amax_all, (size_t)n * 4);
  fp8_scales(f->ctx, tensor_of(f->shards.scale, F32, n), tensor_of(f->shards.amax_all, F32, f->mesh.world, n));
  if (off) {
    ops->copy(f->ctx, scale, f->shards.scale, (size_t)f->lay.scales * 4);
    fsdp_sync(f);
  }
  for (int u = 0; u < f->lay.units; u++) {
    char *to = fsdp_publish_begin(f, u);
    for (int p = 0; p < f->lay.params; p++) {
      const ParamPlace *q = &f->lay.place[p];
      if (q->unit != u || q->dtype != F8 || !fsdp_own(f, STATE_MASTER, p, &run, &master) || !master) continue;
      fp8_encode(c, tensor_of(to + f->lay.unit[u].piece[q->piece].shard_at + (size_t)run.in_piece, F8, run.numel),
                 tensor_of(master, F32, run.numel), tensor_of(scale + q->scale, F32, 1));
    }
    for (int i = 0; i < f->lay.unit[u].pieces; i++)
      if (f->lay.unit[u].piece[i].like->dtype == F8 && piece_trains(&f->lay.unit[u].piece[i]))
        fsdp_publish_piece(f, u, i);
    fsdp_publish_end(f, u);
  }
}
void fsdp_publish(Fsdp *f) {
  for (int u = 0; u < f->lay.units; u++) fsdp_publish_unit(f, u);
  fsdp_publish_e4m3(f);
}

void fsdp_step_end(Fsdp *f) {
  fsdp_forget(f);
  const SchedulePlace was = schedule_enter(f->record, SCHEDULE_UPDATE, 0, 0);
  note(f, NOTE_STEP_END, POINT_BEGIN, STAGE_NONE);
  f->comm->step_end(f);
  note(f, NOTE_STEP_END, POINT_END, STAGE_NONE);
  schedule_return(f->record, was);
}

// ---- values from and to the host
// The context that holds parameter p's master: the host's if it is offloaded.
static inline Ctx *fsdp_param_ctx(Fsdp *f, int p) {
  const bool host = f->cfg.offload == OFFLOAD_PARAMS || (fsdp_offloads(f) && !f->lay.param[p].frozen);
  return host ? &f->host_ctx : f->ctx;
}
void fsdp_forget_scales(Fsdp *f) {
  if (f->lay.scales) f->ctx->ops->zero(f->ctx, f->shards.amax, (size_t)f->lay.scales * 4);
  if (fsdp_offloads(f)) memset(f->shards.host_limbs + NORM_LIMBS, 0, (size_t)f->lay.scales * 4);
}
void fsdp_frozen_scales(Fsdp *f) {
  fsdp_small_all_gather(f, f->shards.amax, f->shards.amax_all, (size_t)f->lay.scales * 4);
  fp8_scales(f->ctx, tensor_of(f->shards.scale, F32, f->lay.scales),
             tensor_of(f->shards.amax_all, F32, f->mesh.world, f->lay.scales));
  fsdp_sync(f);
}
// Scratch memory for fp32 values of parameter p; *numel_: how many fit. On the device it is the workspace of the ops,
// which is free between passes.
enum { SCRATCH_NUMEL = 4096 };
static inline float *fsdp_scratch(Fsdp *f, int p, int64_t *numel_) {
  static float on_host[SCRATCH_NUMEL];
  const bool host = fsdp_param_ctx(f, p) == &f->host_ctx;
  *numel_ = host ? (int64_t)SCRATCH_NUMEL : (int64_t)(f->ctx->workspace_bytes / 4);
  CHECK(*numel_ > 0, "%s: no scratch", __func__);
  return host ? on_host : (float *)f->ctx->workspace;
}
// Stores or measures n values in scratch: elements [at, at + n) of those that this rank owns of parameter p, which has
// no fp32 master.
static inline void fsdp_take_values(Fsdp *f, int p, Span run, int64_t at, const float *scratch, int64_t n,
                                    ValuePass pass) {
  Ctx *c = fsdp_param_ctx(f, p);
  const Span part = {run.in_range + at, run.in_piece + at, n};
  Tensor to = fsdp_own_stored(f, p, part);
  const Tensor values = tensor_of((void *)scratch, F32, n);
  float *amax = c == f->ctx ? f->shards.amax : (float *)(f->shards.host_limbs + NORM_LIMBS);
  if (to.dtype != F8) {
    if (pass == PASS_STORE) param_from_master(c, to, fsdp_own_low(f, p, part), values);
    return;
  }
  if (pass == PASS_MEASURE) {
    absmax(c, tensor_of(amax + f->lay.place[p].scale, F32, 1), values);
    if (c != f->ctx) f->ctx->ops->copy(f->ctx, f->shards.amax + f->lay.place[p].scale, amax + f->lay.place[p].scale, 4);
    return;
  }
  float *scale = f->shards.scale + f->lay.place[p].scale, on_host;
  if (c != f->ctx) { f->ctx->ops->copy(f->ctx, &on_host, scale, 4); f->ctx->ops->sync(f->ctx); scale = &on_host; }
  fp8_encode(c, to, values, tensor_of(scale, F32, 1));
}

// ---- parameters whose bytes are kept
// *blocks: the stored quantization blocks that have the elements [at, at + n) of those that this rank owns of parameter
// p, or fewer, up to the end of a piece. *before: elements of the first block before element `at`. Returns how many
// elements of the n the blocks have.
static inline int64_t fsdp_own_blocks(const Fsdp *f, int p, int64_t at, int64_t n, Tensor *blocks, int64_t *before) {
  const Param *q = &f->lay.param[p];
  Span run;
  CHECK(fsdp_span(f, p, f->mesh.shard.me, &run, at), "%s: %s", __func__, q->name);
  const int64_t values = block_values(q->kept[run.part]);
  *before = run.in_piece % values;
  n = min64(n, run.numel);
  *blocks = fsdp_own_stored(f, p, Span{run.in_range - *before, run.in_piece - *before,
                                      round_up(*before + n, values), run.part});
  return n;
}
void fsdp_set_own_blocks(Fsdp *f, int p, int64_t at, const void *from, int64_t n) {
  Tensor blocks;
  int64_t before;
  liveness_progress();
  for (int64_t k; n > 0; at += k, n -= k, from = (const char *)from + numel(blocks)) {
    k = fsdp_own_blocks(f, p, at, n, &blocks, &before);
    f->ctx->ops->copy(f->ctx, blocks.data, from, (size_t)numel(blocks));
    f->ctx->ops->sync(f->ctx);
  }
}
enum { KEPT_NUMEL = 4096 };                      // whole blocks of every type
int fsdp_own_type(const Fsdp *f, int p, int64_t at) {
  Span run;
  return fsdp_span(f, p, f->mesh.shard.me, &run, at) ? f->lay.param[p].kept[run.part] : 0;
}
// fsdp_set_own for a parameter kept quantized: quantizes values to whole blocks.
static inline void fsdp_set_kept(Fsdp *f, int p, int64_t at, const float *host, int64_t n) {
  uint8_t made[KEPT_NUMEL * sizeof(float)];
  Tensor blocks;
  int64_t before;
  for (int64_t k; n > 0; at += k, n -= k, host += k) {
    k = fsdp_own_blocks(f, p, at, min64(n, KEPT_NUMEL), &blocks, &before);
    CHECK(!before && numel(blocks) == blocks_bytes(fsdp_own_type(f, p, at), k), "%s: blocks are cut", __func__);
    blocks_make(fsdp_own_type(f, p, at), made, host, k);
    fsdp_set_own_blocks(f, p, at, made, k);
  }
}
// fsdp_get_own for a parameter kept quantized: the values of its blocks.
static inline void fsdp_get_kept(Fsdp *f, int p, int64_t at, float *host, int64_t n) {
  uint8_t stored[KEPT_NUMEL * sizeof(float)];
  float values[KEPT_NUMEL];
  Tensor blocks;
  int64_t before;
  for (int64_t k; n > 0; at += k, n -= k, host += k) {
    k = fsdp_own_blocks(f, p, at, min64(n, KEPT_NUMEL - BLOCK_VALUES_MAX), &blocks, &before);
    const int type = fsdp_own_type(f, p, at);
    f->ctx->ops->copy(f->ctx, stored, blocks.data, (size_t)numel(blocks));
    f->ctx->ops->sync(f->ctx);
    blocks_read(type, values, stored, numel(blocks) / block_bytes(type));
    memcpy(host, values + before, sizeof(float) * (size_t)k);
  }
}

void fsdp_set_own(Fsdp *f, ShardState state, int p, int64_t at, const float *host, int64_t n, ValuePass pass) {
  Span run;
  float *to;
  liveness_progress();
  if (f->lay.param[p].keeps) {
    if (pass == PASS_STORE) fsdp_set_kept(f, p, at, host, n);
    return;
  }
  CHECK(fsdp_own(f, state, p, &run, &to) && at + n <= run.numel, "%s: %s", __func__, f->lay.param[p].name);
  const Tensor stored = fsdp_own_state(f, state, p, Span{run.in_range + at, run.in_piece + at, n});
  CHECK(to || stored.data, "%s: %s has no such state", __func__, f->lay.param[p].name);
  bf16 half[SCRATCH_NUMEL];
  for (int64_t done = 0, k; !to && state != STATE_MASTER && done < n; done += k) {
    k = min64(n - done, SCRATCH_NUMEL);
    for (int64_t i = 0; i < k; i++) round_to(&half[i], host[done + i]);
    f->ctx->ops->copy(f->ctx, (bf16 *)stored.data + done, half, (size_t)k * 2);
    f->ctx->ops->sync(f->ctx);
  }
  if (!to && state != STATE_MASTER) return;
  if (to) {
    if (pass == PASS_STORE) f->ctx->ops->copy(f->ctx, to + at, host, (size_t)n * 4);
    f->ctx->ops->sync(f->ctx);
    return;
  }
  int64_t room;
  for (float *scratch = fsdp_scratch(f, p, &room); n > 0;) {
    const int64_t k = min64(n, room);
    f->ctx->ops->copy(f->ctx, scratch, host, (size_t)k * 4);
    f->ctx->ops->sync(f->ctx);
    fsdp_take_values(f, p, run, at, scratch, k, pass);
    f->ctx->ops->sync(f->ctx);
    host += k, at += k, n -= k;
  }
}
// fsdp_get_own of masters that are split: joins their halves, directly if the halves are in host memory, else through
// scratch.
static inline void fsdp_get_split(Fsdp *f, int p, Span run, int64_t at, float *host, int64_t n) {
  Ctx *c = fsdp_param_ctx(f, p);
  int64_t room = n;
  float *scratch = c->ops->nccl ? fsdp_scratch(f, p, &room) : NULL;
  for (int64_t k; n > 0; host += k, at += k, n -= k) {
    k = min64(n, room);
    const Span part = {run.in_range + at, run.in_piece + at, k};
    master_from_param(c, tensor_of(scratch ? scratch : host, F32, k), fsdp_own_stored(f, p, part),
                      fsdp_own_low(f, p, part));
    if (scratch) c->ops->copy(c, host, scratch, (size_t)k * 4);
    f->ctx->ops->sync(f->ctx);
  }
}
void fsdp_get_own(Fsdp *f, ShardState state, int p, int64_t at, float *host, int64_t n) {
  Span run;
  float *from;
  liveness_progress();
  if (f->lay.param[p].keeps && state == STATE_MASTER) { fsdp_get_kept(f, p, at, host, n); return; }
  CHECK(fsdp_own(f, state, p, &run, &from) && at + n <= run.numel, "%s: %s", __func__, f->lay.param[p].name);
  const Tensor stored = from ? Tensor{} : fsdp_own_state(f, state, p, Span{run.in_range + at, run.in_piece + at, n});
  if (!from && !stored.data) { memset(host, 0, (size_t)n * 4); return; }
  if (from) {
    f->ctx->ops->copy(f->ctx, host, from + at, (size_t)n * 4);
    f->ctx->ops->sync(f->ctx);
    return;
  }
  const ParamPlace *q = &f->lay.place[p];
  if (state == STATE_MASTER && f->lay.unit[q->unit].piece[q->piece].split) {
    fsdp_get_split(f, p, run, at, host, n);
    return;
  }
  const size_t b = dtype_bytes(stored.dtype);
  char *raw = (char *)host + (size_t)n * (4 - b);                // at the end: widening from the front keeps it
  float scale = 1;
  f->ctx->ops->copy(f->ctx, raw, stored.data, (size_t)n * b);
  if (stored.dtype == F8) f->ctx->ops->copy(f->ctx, &scale, f->shards.scale + f->lay.place[p].scale, 4);
  f->ctx->ops->sync(f->ctx);
  for (int64_t i = 0; i < n; i++) {
    float x;
    if (stored.dtype == F8) { fp8 v; memcpy(&v, raw + i, 1); x = to_f32(v) * scale; }
    else if (stored.dtype == BF16) { bf16 v; memcpy(&v, raw + 2 * i, 2); x = to_f32(v); }
    else { fp16 v; memcpy(&v, raw + 2 * i, 2); x = to_f32(v); }
    memcpy(host + i, &x, 4);
  }
}

// Writes the initial values of elements [in_range, in_range + n) of parameter q to `to`. number: the parameter's stream
// of random numbers.
static inline void fsdp_init_range(Ctx *c, const Param *q, uint32_t number, float *to, uint64_t seed, int64_t in_range,
                                   int64_t n) {
  if (q->init == INIT_NORMAL) normal_fill(c, tensor_of(to, F32, n), seed, number, in_range, q->std);
  else fill(c, tensor_of(to, F32, n), q->init == INIT_ONE ? 1.0f : 0.0f);
}
// A hash of the master values of all parameters but those of param_trains_beside: it identifies the base model that
// adapters belong to. The same for every number of ranks. (hash_mixed is one step of a 64-bit mixing function.)
static inline uint64_t hash_mixed(uint64_t x) {  // Steele, Lea and Flood 2014, "SplitMix"
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ x >> 27) * 0x94d049bb133111ebull;
  return x ^ x >> 31;
}
uint64_t fsdp_weights_hash(Fsdp *f, bool beside) {
  uint64_t sum = 0, all = 0, number = 0;
  uint32_t values[1024];
  Span run;
  for (int p = 0; p < f->lay.params; p++) {
    const Param *q = &f->lay.param[p];
    if (param_trains_beside(q) && !beside) continue;
    number = hash_mixed(number + 1);
    for (int64_t at = 0, k; fsdp_span(f, p, f->mesh.shard.me, &run, at); at += k) {
      k = min64(min64(1024, run.numel), param_numel(q) - run.in_range);        // without padding rows
      if (k <= 0 || f->mesh.replicate.me) break;
      fsdp_get_own(f, STATE_MASTER, p, at, (float *)values, k);
      for (int64_t i = 0; i < k; i++)
        sum += hash_mixed((number + (uint64_t)(run.in_range + i) * 0x9e3779b97f4a7c15ull) ^ values[i]);
    }
  }
  MPI_Allreduce(&sum, &all, 1, MPI_UINT64_T, MPI_SUM, f->mesh.comm);
  return all;
}
bool fsdp_weights_finite(Fsdp *f, int *param, int64_t *element) {
  enum : int64_t { ELEMENTS = 1LL << 40, ALL = INT64_MAX };
  int64_t first = ALL, lowest;
  float values[1024];
  Span run;
  for (int p = 0; p < f->lay.params && first == ALL; p++) {
    const Param *q = &f->lay.param[p];
    for (int64_t at = 0, k; fsdp_span(f, p, f->mesh.shard.me, &run, at); at += k) {
      k = min64(min64(1024, run.numel), param_numel(q) - run.in_range);        // without padding rows
      if (k <= 0 || f->mesh.replicate.me || first != ALL) break;
      fsdp_get_own(f, STATE_MASTER, p, at, values, k);
      float sum = 0;
      for (int64_t i = 0; i < k; i++) sum += values[i] * 0;      // x * 0 is NaN if x is not finite
      for (int64_t i = 0; sum != 0 && i < k && first == ALL; i++)
        if (!isfinite(values[i])) first = p * ELEMENTS + run.in_range + i;
    }
  }
  MPI_Allreduce(&first, &lowest, 1, MPI_INT64_T, MPI_MIN, f->mesh.comm);
  *param = (int)(lowest / ELEMENTS), *element = lowest % ELEMENTS;
  return lowest == ALL;
}

// Adapters have random number streams of their own, so that a model has the same initial weights with and without them.
enum : uint32_t { INIT_ADAPTERS = 1u << 24 };
static inline void fsdp_init_pass(Fsdp *f, uint64_t seed, ValuePass pass) {
  uint32_t weights = 0, adapters = INIT_ADAPTERS;
  for (int p = 0; p < f->lay.params; p++) {
    const Param *q = &f->lay.param[p];
    const uint32_t number = q->adapter ? adapters++ : weights++;
    Span run;
    float *to;
    liveness_arrived();
    if (q->keeps || !fsdp_own(f, STATE_MASTER, p, &run, &to)) continue;        // quantized weights come from a file
    const int64_t n = min64(run.numel, param_numel(q) - run.in_range);         // padding rows stay zero
    if (to && n > 0 && pass == PASS_STORE) fsdp_init_range(fsdp_param_ctx(f, p), q, number, to, seed, run.in_range, n);
    int64_t room;
    for (int64_t at = 0; at < n && !to;) {
      float *scratch = fsdp_scratch(f, p, &room);
      const int64_t k = min64(n - at, room);
      fsdp_init_range(fsdp_param_ctx(f, p), q, number, scratch, seed, run.in_range + at, k);
      fsdp_take_values(f, p, run, at, scratch, k, pass);
      at += k;
    }
  }
}
void fsdp_init_params(Fsdp *f, uint64_t seed) {
  if (fsdp_needs_measure(f)) {
    fsdp_forget_scales(f);
    fsdp_init_pass(f, seed, PASS_MEASURE);
    fsdp_frozen_scales(f);
  }
  fsdp_init_pass(f, seed, PASS_STORE);
  fsdp_publish(f);
  fsdp_step_end(f);
}
