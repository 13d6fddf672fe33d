// owned.h: Muon under sharding: which matrices there are, which rank computes the update of which, and when. Momenta
// stay in shards, beside the gradients. An update needs a whole matrix, so each matrix has one owner:
//
//   1 every rank of the owner's shard group computes the momenta of its run of the matrix and sends them, in bf16,
//     to the owner
//   2 the owner orthogonalises the matrix: once, in one order, so the result does not depend on the number of ranks
//   3 every rank of every replica takes its run of the result and updates its parameters
//
// Matrices are assigned by cost, most expensive first, each to the rank with the least cost so far (Graham 1969): the
// costs of two ranks differ at most by the largest matrix's. A rank processes one of its matrices per round. Rounds are
// the same on all ranks and use three slots, so that one round's matrices are sent to owners and another's results are
// sent back while a third's are computed (update.h). All of this is decided once, from shapes alone.
//
//   in place    all ranks are on one host and share memory: momenta are written into the owner's window, and updates
//               are read from it. There are no messages
//   else        one exchange per round each way, over all ranks; a slot's stage holds the runs
#pragma once
#include "state.h"
#include "kernels/ops_muon.h"

static inline size_t owned_bytes(int64_t numel) { return (size_t)numel * dtype_bytes(BF16); }
static inline int64_t owned_numel(const OwnedMatrix *x) { return x->rows * x->cols; }
// Cost of a step of Newton-Schulz up to a constant factor, with m the shorter side and n the longer one: X X^T and A A,
// of which half is computed (m m n / 2 + m m m / 2), and B X (m m n), times 2.
static inline double owned_cost(const OwnedMatrix *x) {
  const double m = (double)min64(x->rows, x->cols), n = (double)max64(x->rows, x->cols);
  return m * m * (3 * n + m);
}
// The part of a matrix in the shard of rank `i` of the shard group: in_range counts from the matrix's first element,
// in_piece from the first of that rank's part of the piece. Returns false when there is none.
static inline bool owned_run(const Fsdp *f, const OwnedMatrix *x, int i, Span *run) {
  Span all;
  if (!fsdp_span(f, x->param, i, &all)) return false;
  const int64_t a = max64(all.in_range, x->first), b = min64(all.in_range + all.numel, x->first + owned_numel(x));
  if (a >= b) return false;
  *run = Span{a - x->first, all.in_piece + a - all.in_range, b - a};
  return true;
}
// Whether this rank gives its run of a matrix to the owner: its replica is the owner's.
static inline bool owned_gives(const Fsdp *f, const OwnedMatrix *x) {
  return x->owner / fsdp_shards(f) == f->mesh.rank / fsdp_shards(f);
}

static inline int owned_by_cost(const void *a, const void *b) {
  const OwnedMatrix *x = (const OwnedMatrix *)a, *y = (const OwnedMatrix *)b;
  const double p = owned_cost(x), q = owned_cost(y);
  if (p != q) return p > q ? -1 : 1;
  return x->param != y->param ? x->param - y->param : x->part - y->part;
}
static inline int owned_by_round(const void *a, const void *b) {
  const OwnedMatrix *x = (const OwnedMatrix *)a, *y = (const OwnedMatrix *)b;
  return x->round != y->round ? x->round - y->round : x->owner - y->owner;
}
// Sets the owner and the round of `count` matrices, for `world` ranks, and sorts them by round. With more ranks than
// matrices, owners are spread evenly over the ranks.
static inline void owned_deal(OwnedMatrix *x, int count, int world) {
  const int owners = world < count ? world : count;
  double *load = (double *)calloc((size_t)owners + 1, sizeof(double));
  int *rounds = (int *)calloc((size_t)owners + 1, sizeof(int));
  qsort(x, (size_t)count, sizeof *x, owned_by_cost);
  for (int i = 0; i < count; i++) {
    int least = 0;
    for (int r = 1; r < owners; r++) if (load[r] < load[least]) least = r;
    load[least] += owned_cost(&x[i]);
    x[i].round = rounds[least]++;
    x[i].owner = (int)((int64_t)least * world / owners);
  }
  qsort(x, (size_t)count, sizeof *x, owned_by_round);
  free(load);
  free(rounds);
}
int *fsdp_owned_counts(const Param *param, int params, int world) {
  OwnedMatrix *x = (OwnedMatrix *)calloc(params > 0 ? 3 * (size_t)params : 0, sizeof(OwnedMatrix));
  int *counts = (int *)calloc((size_t)world + 1, sizeof(int)), n = 0;
  for (int p = 0; p < params; p++)
    for (int i = 0; i < param[p].matrices && param[p].linear && !param[p].frozen; i++)
      x[n++] = OwnedMatrix{p, i, param[p].matrix_rows[i], param[p].shape[1], 0, 0, 0, 0};
  owned_deal(x, n, world);
  for (int i = 0; i < n; i++) counts[x[i].owner]++;
  free(x);
  return counts;
}
// Bytes of the runs of rank `i` of the shard group in a round; with `keep` their places are noted.
static inline size_t owned_stage(Fsdp *f, int round, int i, bool keep) {
  OwnedLayout *o = &f->lay.owned;
  size_t at = 0;
  Span run;
  for (int k = o->round_first[round]; k < o->round_first[round + 1]; k++) {
    if (keep) o->matrix[k].stage_at = at;
    at += owned_run(f, &o->matrix[k], i, &run) ? align_bytes(owned_bytes(run.numel)) : 0;
  }
  return at;
}
// Makes f->lay.owned; frees nothing. Sizes are alike on all ranks: where peers find what they read depends on them.
static inline void owned_layout(Fsdp *f) {
  OwnedLayout *o = &f->lay.owned;
  const int N = f->mesh.world, R = f->cfg.mesh.replicas;
  const bool off = fsdp_offloads(f), mpi = f->cfg.comm == COMM_MPI;
  bool near = mpi && !f->lay.mirrored;
  for (int r = 0; r < N; r++) near = near && (r == f->mesh.rank || mesh_shares_memory(&f->mesh, r));
  for (int p = 0; p < f->lay.params; p++) o->matrices += f->lay.place[p].owned ? f->lay.param[p].matrices : 0;
  o->matrix = (OwnedMatrix *)calloc((size_t)o->matrices + 1, sizeof(OwnedMatrix));
  for (int p = 0, k = 0; p < f->lay.params; p++) {
    const Param *q = &f->lay.param[p];
    for (int part = 0; part < q->matrices && f->lay.place[p].owned; part++, k++)
      o->matrix[k] = OwnedMatrix{p, part, q->matrix_rows[part], q->shape[1], param_part_first(q, part), 0, 0, 0};
  }
  owned_deal(o->matrix, o->matrices, N);
  for (int k = 0; k < o->matrices; k++) if (o->matrix[k].round >= o->rounds) o->rounds = o->matrix[k].round + 1;
  o->round_first = (int *)calloc((size_t)o->rounds + 2, sizeof(int));
  for (int k = 0; k < o->matrices; k++) o->round_first[o->matrix[k].round + 1] = k + 1;
  if (!o->matrices) return;
  o->in_place = near;
  o->slots = N > 1 ? UPDATE_SLOTS : 1;
  for (int k = 0; k < o->matrices; k++) {
    const OwnedMatrix *x = &o->matrix[k];
    const size_t matrix = align_bytes(owned_bytes(owned_numel(x)));
    const size_t work = align_bytes(newton_schulz_work_bytes(x->rows, x->cols, BF16));
    if (matrix > o->matrix_bytes) o->matrix_bytes = matrix;
    if (work > o->work_bytes) o->work_bytes = work;
  }
  size_t stage = 0;
  for (int i = 0; i < fsdp_shards(f); i++)
    for (int j = 0; j < o->rounds; j++) {
      const size_t bytes = owned_stage(f, j, i, i == f->mesh.shard.me);
      if (bytes > stage) stage = bytes;
    }
  o->stage_bytes = N > 1 && !(near && R == 1) ? stage : 0;
  o->host_bytes = off || f->lay.mirrored ? stage + (f->lay.mirrored ? o->matrix_bytes : 0) : 0;
}
// Bytes of updates that this rank receives in a step: from ranks of its host, or from others.
static inline int64_t owned_wire_bytes(const Fsdp *f, bool near) {
  const Mesh *m = &f->mesh;
  const int S = fsdp_shards(f), me = m->rank, host = m->peer[me].host;
  int64_t n = 0;
  Span run;
  for (int j = 0; j < f->lay.owned.rounds; j++)
    EACH_OWNED(f, j, x) {
      const bool own = x->owner == me;
      for (int i = 0; i < S && own; i++)
        if (i != m->shard.me && (m->peer[me / S * S + i].host == host) == near && owned_run(f, x, i, &run))
          n += (int64_t)owned_bytes(run.numel);
      if (!own && (m->peer[x->owner].host == host) == near && owned_run(f, x, m->shard.me, &run))
        n += (int64_t)owned_bytes(run.numel);
    }
  return n;
}
static inline size_t owned_slot_bytes(const Fsdp *f) {
  return f->lay.owned.stage_bytes + (f->lay.owned.in_place ? 0 : f->lay.owned.matrix_bytes);
}
static inline size_t owned_pool_bytes(const Fsdp *f) { return (size_t)f->lay.owned.slots * owned_slot_bytes(f); }

// ---- where the matrices and runs of a round are, once memory is taken
static inline int owned_slot(const Fsdp *f, int round) { return round % f->lay.owned.slots; }
// Address of the whole matrix of rank `owner`: of this rank's, or, in place, of any rank's.
static inline char *owned_matrix(const Fsdp *f, int owner, int round) {
  const size_t slot = (size_t)owned_slot(f, round);
  if (!f->lay.owned.in_place) return f->muon.slots + slot * owned_slot_bytes(f) + f->lay.owned.stage_bytes;
  const size_t at = f->lay.part[WORK_UPDATES].at + slot * f->lay.owned.matrix_bytes;
  return owner == f->mesh.rank ? fsdp_work(f, at) : f->mesh.peer[owner].window + at;
}
static inline char *owned_stage_of(const Fsdp *f, const OwnedMatrix *x) {
  return f->muon.slots + (size_t)owned_slot(f, x->round) * owned_slot_bytes(f) + x->stage_at;
}
// The same in host memory, for an offloaded optimizer or for messages of a mirrored device.
static inline char *owned_host_stage(const Fsdp *f, const OwnedMatrix *x) {
  return f->muon.host + (size_t)owned_slot(f, x->round) * f->lay.owned.host_bytes + x->stage_at;
}
static inline char *owned_host_matrix(const Fsdp *f, int round) {
  const OwnedLayout *o = &f->lay.owned;
  return f->muon.host + (size_t)(owned_slot(f, round) + 1) * o->host_bytes - o->matrix_bytes;
}
// Where this rank writes its run's momenta, and where it finds its run's update.
static inline char *owned_to(const Fsdp *f, const OwnedMatrix *x, Span run) {
  const bool there = f->lay.owned.in_place ? owned_gives(f, x) : x->owner == f->mesh.rank;
  if (fsdp_offloads(f)) return owned_host_stage(f, x);
  return there ? owned_matrix(f, x->owner, x->round) + owned_bytes(run.in_range) : owned_stage_of(f, x);
}
static inline char *owned_from(const Fsdp *f, const OwnedMatrix *x, Span run) {
  if (fsdp_offloads(f)) return owned_host_stage(f, x);
  const bool there = f->lay.owned.in_place || x->owner == f->mesh.rank;
  return there ? owned_matrix(f, x->owner, x->round) + owned_bytes(run.in_range) : owned_stage_of(f, x);
}
