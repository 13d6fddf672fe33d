// layers.h: --log_layers: norms of each unit's gradient, of what a step changed in its weights, and of the weights,
// over all ranks. Squares are added exactly (kernels/optimizer.cuh), so the norms have the same bits for every number
// of ranks, mesh and layout.
//
// The update goes through shards in chunks that fit into a cache: before a chunk's update its gradient is added up and
// its masters are copied, afterwards the difference and the new masters are added up. No whole copy of the masters is
// needed, and memory is read once. All of that is done where the optimizer is: on the host, if it is offloaded.
#pragma once
#include "sharded_state.h"
#include "kernels/norm.h"

// The sums of squares that are kept for each unit.
enum LayerSum { LAYER_GRADIENT, LAYER_CHANGE, LAYER_WEIGHTS };
static_assert(LAYER_WEIGHTS + 1 == LAYER_SUMS, "limbs of each sum");
static inline int64_t *layer_limbs(int64_t *of_rank, int unit, LayerSum sum) {
  return of_rank + (unit * LAYER_SUMS + sum) * NORM_LIMBS;
}
// Elements of a run of n that are updated at a time: all, if this rank adds up no norms. Only the last replica does.
static inline int64_t layers_chunk(const Fsdp *f, int64_t n) {
  return f->layers.sums && f->mesh.replicate.me == f->mesh.replicate.size - 1 ? min64(n, layer_chunk_numel(f)) : n;
}
static inline bool layers_count(const Fsdp *f) {
  return f->layers.sums && f->mesh.replicate.me == f->mesh.replicate.size - 1;
}
// Elements [at, at + n) of a flat tensor; without data if t has none.
static inline Tensor run_of(Tensor t, int64_t at, int64_t n) {
  return tensor_of(t.data ? (char *)t.data + (size_t)at * dtype_bytes(t.dtype) : NULL, t.dtype, n);
}

static inline int64_t *layers_own(const Fsdp *f) { return fsdp_offloads(f) ? f->layers.offloaded : f->layers.sums; }

// Called before and after the update of a chunk of unit u: they add to its sums.
static inline void layer_before(Fsdp *f, int u, Tensor param, Tensor master, Tensor grad) {
  if (!layers_count(f)) return;
  Ctx *c = fsdp_state_ctx(f);
  const Tensor before = tensor_of(f->layers.scratch, F32, numel(master));
  norm_accumulate(c, layer_limbs(layers_own(f), u, LAYER_GRADIENT), grad);
  if (master.dtype == LOW16) master_from_param(c, before, param, master);
  else convert(c, before, master);
}
static inline void layer_after(Fsdp *f, int u, Tensor param, Tensor master) {
  if (!layers_count(f)) return;
  Ctx *c = fsdp_state_ctx(f);
  const int64_t n = numel(master);
  Tensor now = master;
  if (master.dtype == LOW16) {
    now = tensor_of(f->layers.scratch + layer_chunk_numel(f), F32, n);
    master_from_param(c, now, param, master);
  }
  norm_change(c, layer_limbs(layers_own(f), u, LAYER_CHANGE), now, tensor_of(f->layers.scratch, F32, n));
  norm_accumulate(c, layer_limbs(layers_own(f), u, LAYER_WEIGHTS), now);
}
// Called before and after the updates of a step. All ranks call layers_end; f->layers.host has the sums of all ranks
// once the stream is done.
static inline void layers_begin(Fsdp *f) {
  Ctx *c = fsdp_state_ctx(f);
  if (f->layers.sums) c->ops->zero(c, layers_own(f), fsdp_layers_bytes(f));
}
static inline void layers_end(Fsdp *f) {
  if (!f->layers.sums) return;
  const size_t bytes = fsdp_layers_bytes(f);
  int64_t *all = f->layers.sums + bytes / sizeof(int64_t);
  if (fsdp_offloads(f)) f->ctx->ops->copy(f->ctx, f->layers.sums, f->layers.offloaded, bytes);
  fsdp_small_all_gather(f, f->layers.sums, all, bytes);
  f->ctx->ops->copy(f->ctx, f->layers.host, all, bytes * (size_t)f->mesh.world);
}

bool fsdp_layer_norms(const Fsdp *f, int u, LayerNorms *x) {
  if (!f->layers.host || (u >= 0 && !f->lay.unit[u].state_numel)) return false;
  double norm[LAYER_SUMS];
  for (int sum = 0; sum < LAYER_SUMS; sum++) {
    int64_t limbs[NORM_LIMBS] = {};
    for (int r = 0; r < f->mesh.world; r++)
      for (int k = u < 0 ? 0 : u; k < (u < 0 ? f->lay.units : u + 1); k++)
        norm_add_carried(limbs, layer_limbs(f->layers.host + (size_t)r * (fsdp_layers_bytes(f) / sizeof(int64_t)), k,
                                            (LayerSum)sum));
    norm[sum] = norm_finish(limbs);
  }
  *x = LayerNorms{norm[LAYER_GRADIENT], norm[LAYER_CHANGE], norm[LAYER_WEIGHTS]};
  return true;
}
