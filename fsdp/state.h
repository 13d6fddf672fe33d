// state.h: short functions over struct Fsdp (types.h) that every part of the sharding layer uses.
#pragma once
#include "mesh.h"
#include "units.h"

const FsdpConfig *fsdp_config(const Fsdp *f) { return &f->cfg; }
int fsdp_rank(const Fsdp *f) { return f->mesh.rank; }
int fsdp_world(const Fsdp *f) { return f->mesh.world; }
int fsdp_hosts(const Fsdp *f) { return f->mesh.hosts; }
int fsdp_shard(const Fsdp *f) { return f->mesh.shard.me; }
int fsdp_replica(const Fsdp *f) { return f->mesh.replicate.me; }
MPI_Comm fsdp_comm(const Fsdp *f) { return f->mesh.comm; }
MPI_Comm fsdp_host_comm(const Fsdp *f) { return f->mesh.node; }
int fsdp_host_world(const Fsdp *f) { return f->mesh.node_world; }
int fsdp_host_of(const Fsdp *f, int rank) { return f->mesh.peer[rank].host; }
size_t fsdp_most(const Fsdp *f, size_t mine) { return mesh_most(&f->mesh, mine); }
bool fsdp_in_place(const Fsdp *f) { return f->lay.in_place; }
bool fsdp_along_hosts(const Fsdp *f) { return f->lay.hosts.hosts; }
bool fsdp_needs_messages(const Fsdp *f) { return f->mesh.remote || !f->mesh.windows; }
bool fsdp_device_sends(const Fsdp *f) { return f->ctx->ops->nccl && f->cfg.comm != COMM_MPI; }
bool fsdp_has_adapters(const Fsdp *f) { return f->lay.adapters; }
bool fsdp_blocks_in_root(const Fsdp *f) { return f->lay.blocks_in_root; }
int fsdp_stages(const Fsdp *f) { return f->lay.stages; }
int fsdp_params(const Fsdp *f) { return f->lay.params; }
const Param *fsdp_param(const Fsdp *f, int p) { return &f->lay.param[p]; }
int fsdp_units(const Fsdp *f) { return f->lay.units; }
int fsdp_owned(const Fsdp *f, int *rounds) {
  *rounds = f->lay.owned.rounds;
  return f->lay.owned.matrices;
}
int fsdp_reduced_last(const Fsdp *f) { return f->job.stage; }
Traffic fsdp_traffic(const Fsdp *f) { return f->traffic; }
void fsdp_set_traffic(Fsdp *f, Traffic x) { f->traffic = x; }
void fsdp_hook(Fsdp *f, FsdpHooks h) { f->watch.hooks = h; }
static inline size_t fsdp_wire_bytes(const Fsdp *f) { return dtype_bytes(f->cfg.wire_dtype); }
static inline int fsdp_shards(const Fsdp *f) { return f->cfg.mesh.shards; }
// Whether partial sums are passed from replica to replica.
static inline bool fsdp_chains(const Fsdp *f) { return f->cfg.mesh.replicas > 1 && !f->cfg.native_reduce; }
static inline bool fsdp_offloads(const Fsdp *f) { return f->cfg.offload != OFFLOAD_NONE; }
// fsdp_work: address of an offset in working memory. fsdp_home: of an offset in parameter shards, which may be in other
// memory.
static inline char *fsdp_work(const Fsdp *f, size_t at) { return work_at(f->mem.work, at); }
static inline char *fsdp_home(const Fsdp *f, size_t at) { return work_at(f->mem.params_home, at); }
static inline int fsdp_slot_number(const Fsdp *f, int s) {
  return s == 0 ? f->cfg.gather_slots : (s - 1) % f->cfg.gather_slots;
}
static inline GatherSlot *fsdp_slot(Fsdp *f, int s) { return &f->gather.slot[fsdp_slot_number(f, s)]; }

// The rank of the replica from which this replica's partial sum comes: the replica before; for the first replica the
// last one, whose sum is the reduction's before.
static inline int chain_before(const Fsdp *f) {
  const RankGroup *g = &f->mesh.replicate;
  return g->rank[(g->me + g->size - 1) % g->size];
}

Traffic traffic_add(Traffic x, Traffic y, int sign) {
  int64_t a[sizeof x / 8], b[sizeof x / 8];      // all its counters are alike
  memcpy(a, &x, sizeof x), memcpy(b, &y, sizeof y);
  for (size_t i = 0; i < sizeof x / 8; i++) a[i] += sign * b[i];
  memcpy(&x, a, sizeof x);
  return x;
}

// Marks on the stream of c that it has reached `code`.
static inline void fsdp_mark(Fsdp *f, Ctx *c, DeviceMark stream, int code) {
  if (!f->watch.hooks.marks) return;
  const uint32_t number = stream == MARK_MODEL ? ++f->watch.passes_marked : (uint32_t)flight.begun;
  c->ops->mark(c, &f->watch.hooks.marks[stream], mark_value(number, code));
}
static inline bool fsdp_trains(const Fsdp *f) { return !f->cfg.weights_only; }
// --log_layers: bytes of a rank's sums; elements of a chunk: 2^16 (256 KiB in fp32) fit into a core's cache, 2^21 (8
// MiB) into a GPU's.
enum { LAYER_SUMS = 3, LAYER_CHUNK = 1 << 16, LAYER_CHUNK_CUDA = 1 << 21 };
static inline size_t fsdp_layers_bytes(const Fsdp *f) {
  return f->cfg.log_layers && fsdp_trains(f) ? (size_t)f->lay.units * LAYER_SUMS * NORM_LIMBS * sizeof(int64_t) : 0;
}
static inline int64_t layer_chunk_numel(const Fsdp *f) {
  return f->ctx->ops->nccl && !fsdp_offloads(f) ? LAYER_CHUNK_CUDA : LAYER_CHUNK;
}
// The most bytes that a small all-gather takes from each rank.
static inline size_t fsdp_small_most_bytes(const Fsdp *f) {
  const size_t scales = (size_t)f->lay.scales * sizeof(float), layers = fsdp_layers_bytes(f);
  const size_t most = scales > f->cfg.small_bytes ? scales : f->cfg.small_bytes;
  return layers > most ? layers : most;
}
// The most moments that the optimizer has of a parameter: at most two, STATE_M and STATE_V; a third would be a state of
// ShardState (fsdp.h), a buffer in layout.h and one more of MAP_STATES.
static inline size_t fsdp_moments(const Fsdp *f) { return f->cfg.optimizer == OPTIMIZER_SGD ? 1 : 2; }
ParamState fsdp_param_state(const Fsdp *f, int p) {
  const ParamPlace *q = &f->lay.place[p];
  return ParamState{q->dtype, f->lay.unit[q->unit].piece[q->piece].moments, q->owned};
}
