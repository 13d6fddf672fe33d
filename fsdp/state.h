// state.h: what every part of the sharding layer asks of struct Fsdp (types.h).
#pragma once
#include "fsdp.h"
#include "kernels/ops.h"
#include "memory_plan.h"
#include "mesh.h"
#include "units.h"

Traffic traffic_add(Traffic x, Traffic y, int sign) {
  return Traffic{x.gathers + sign * y.gathers,
                 x.reductions + sign * y.reductions,
                 x.returns + sign * y.returns,
                 x.updates + sign * y.updates,
                 x.small + sign * y.small,
                 x.gather_bytes + sign * y.gather_bytes,
                 x.reduce_bytes + sign * y.reduce_bytes,
                 x.replicate_bytes + sign * y.replicate_bytes,
                 x.update_bytes + sign * y.update_bytes,
                 x.small_bytes + sign * y.small_bytes};
}

// Marks on the stream of c that it has reached `code`.
static inline void fsdp_mark(Fsdp *f, Ctx *c, DeviceMark stream, int code) {
  if (!f->watch.marks) return;
  const uint32_t number = stream == MARK_MODEL ? ++f->watch.passes_marked : (uint32_t)flight.begun;
  c->ops->mark(c, &f->watch.marks[stream], mark_value(number, code));
}
static inline bool fsdp_trains(const Fsdp *f) { return !f->cfg.weights_only; }
// --log_layers: bytes of a rank's sums; elements of a chunk, which fit into a cache.
enum { LAYER_SUMS = 3, LAYER_CHUNK = 1 << 16, LAYER_CHUNK_CUDA = 1 << 21 };
static inline size_t fsdp_layers_bytes(const Fsdp *f) {
  return f->cfg.log_layers && fsdp_trains(f) ? (size_t)f->lay.units * LAYER_SUMS * NORM_LIMBS * sizeof(int64_t) : 0;
}
static inline int64_t layer_chunk_numel(const Fsdp *f) {
  return f->ctx->ops->nccl && !fsdp_offloads(f) ? LAYER_CHUNK_CUDA : LAYER_CHUNK;
}
// What a small all-gather takes from each rank, at most.
static inline size_t fsdp_small_most_bytes(const Fsdp *f) {
  const size_t scales = (size_t)f->lay.scales * sizeof(float), layers = fsdp_layers_bytes(f);
  const size_t most = scales > f->cfg.small_bytes ? scales : f->cfg.small_bytes;
  return layers > most ? layers : most;
}
// Moments of the optimizer, at most; of a parameter, which may have fewer (units.h: Piece).
static inline size_t fsdp_moments(const Fsdp *f) { return f->cfg.optimizer == OPTIMIZER_SGD ? 1 : 2; }
int fsdp_param_moments(const Fsdp *f, const Param *p) {
  return f->lay.unit[p->unit].piece[p->piece].moments;
}
