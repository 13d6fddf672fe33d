// hosts.h: the inter-node reduction chain: gradients cross hosts as fp32 partial sums. This file decides whether and
// how, and counts the bytes; reduce.h runs the chain, transport_mpi.h and transport_nccl.h send its messages.
//
// If contributions went straight to owners, every rank's contribution to every shard of another host would cross
// between hosts. But the ranks of a host hold consecutive microbatches, so their contributions to a shard are
// consecutive terms of the left fold over all microbatches, and one fp32 partial sum can carry them: ranks of the first
// host add their contributions and pass the sum on, ranks of the next host continue from it, and so on; the last host
// sends the result to the owner. These are the owner's additions in the owner's order, so results are bitwise
// identical.
//
//   owner o --> host 0 --> host 1 --> ... --> host H-1 --> owner o        one element of fp32 a hop, whatever a host's
//          |                                                              number of ranks
//          only where something was added before: an earlier microbatch of the step, or replicas before
//
// On each host one rank adds to the part of owner o: o itself on o's host; on another host the rank whose number on its
// host is o's number on o's host, modulo the host's ranks. It reads its neighbours' contributions in their windows;
// over NCCL the neighbours send them. A rank processes its parts of a round one after the other (one part per host, if
// hosts have equally many ranks), so that all hosts work at once.
//
// e: elements of a shard that are reduced; b: bytes of reduce_dtype; n: ranks of this host; k: parts of this rank. In
// one reduction a rank receives
//   from its host       k (n-1) e b
//   from other hosts    4 k e         on every host but the first
//                       4 (k-1) e     on the first host, unless nothing was added before
//                       4 e           the result, on every host but the last
// Straight to the owner it would receive (S-n) e b from other hosts. A host's n ranks together: 4 S e along hosts on
// equal ones, and n (S-n) e b straight. For two hosts of 8 ranks that is a quarter of fp32's bytes, and half of bf16's.
#pragma once
#include "state.h"

// The hosts of ranks [from, from + size), in their order: first[h] is host h's first rank, and first[hosts] the end.
// Returns how many there are, or 0 if a host's ranks are not consecutive. first: [size + 1], or NULL.
static inline int hosts_in_order(const Mesh *m, int from, int size, int *first) {
  int hosts = 0;
  for (int r = from; r < from + size; r++) {
    if (r > from && m->peer[r].host == m->peer[r - 1].host) continue;
    const bool begins = m->peer[r].host == r;    // a host's number is its first rank: r is the first of a new host
    for (int q = from; q < r && !begins; q++) if (m->peer[q].host == m->peer[r].host) return 0;
    if (first) first[hosts] = r;
    hosts++;
  }
  if (first) first[hosts] = from + size;
  return hosts;
}
// Number of shard groups in which the ranks of some host are not consecutive.
static inline int hosts_out_of_order(const Mesh *m) {
  int groups = 0;
  for (int r = 0; r < m->world; r += m->shape.shards) groups += !hosts_in_order(m, r, m->shape.shards, NULL);
  return groups;
}
// Bytes per element of a shard that cross to or from the busiest host of a shard group in a step: along the hosts, and
// straight to owners. The step has `reductions` reductions, `starts` of which continue from an earlier sum. wire: bytes
// of reduce_dtype.
struct HostsBytes { int64_t along, straight; };
static inline HostsBytes hosts_busiest(const int *first, int hosts, int64_t reductions, int64_t starts, int64_t wire) {
  const int64_t S = first[hosts] - first[0], n0 = first[1] - first[0];
  HostsBytes most = {};
  for (int h = 0; h < hosts; h++) {
    const int64_t n = first[h + 1] - first[h];
    const bool last = h == hosts - 1;
    const int64_t in = reductions * ((h ? S : 0) + (last ? 0 : n)) + starts * (h ? 0 : S - n0);
    const int64_t out = reductions * (last ? S - n : S) + starts * (h ? n : 0);
    most.along = max64(most.along, 4 * max64(in, out));
    most.straight = max64(most.straight, reductions * wire * n * (S - n));
  }
  return most;
}
// Why the reduction chain along hosts is not supported here, as words for an error; NULL: it is.
static inline const char *hosts_why_not(const FsdpConfig *c, const Mesh *m, bool gpu) {
  const int S = m->shape.shards;
  bool spans = false;
  for (int r = 0; r < m->world; r++) spans = spans || m->peer[r].host != m->peer[r / S * S].host;
  if (!spans) return "no shard group spans several hosts";
  if (gpu && c->comm == COMM_MPI) return "on GPUs with --comm mpi gradients go straight to their owners";
  if (c->native_reduce) return "--reduce native is NCCL's own sum";
  if (c->offload != OFFLOAD_NONE) return "with --offload gradients go straight to their owners";
  if (c->comm == COMM_NCCL && m->shape.replicas > 1)
    return "on GPUs with replicas gradients go straight to their owners";
  if (c->comm == COMM_MPI && !m->windows) return "--shm off sends messages inside a host, too";
  if (hosts_out_of_order(m)) return "the ranks of a host are not consecutive (mpirun --map-by slot makes them)";
  return NULL;
}
// Whether every shard group that spans several hosts uses the chain. The same on all ranks. BETWEEN_AUTO: yes if the
// busiest host then sends or receives fewer bytes; on GPUs no, because the chain was not measured there yet.
static inline bool hosts_chosen(const FsdpConfig *c, const Mesh *m, bool gpu) {
  if (c->between == BETWEEN_DIRECT || c->weights_only || hosts_why_not(c, m, gpu)) return false;
  if (c->between == BETWEEN_CHAIN) return true;
  if (c->comm == COMM_NCCL) return false;
  const int64_t reductions = c->local ? 1 : c->microbatches, starts = reductions - (m->shape.replicas == 1);
  const int S = m->shape.shards;
  int *first = (int *)malloc(sizeof(int) * (size_t)(S + 1));
  HostsBytes most = {};
  for (int r = 0; r < m->world; r += S) {
    const int hosts = hosts_in_order(m, r, S, first);
    if (hosts < 2) continue;
    const HostsBytes x = hosts_busiest(first, hosts, reductions, starts, (int64_t)dtype_bytes(c->wire_dtype));
    most.along = max64(most.along, x.along), most.straight = max64(most.straight, x.straight);
  }
  free(first);
  return most.along < most.straight;
}
// Returns false, with one line in `error`, if --between_hosts chain was asked for and is not supported.
static inline bool hosts_check(const FsdpConfig *c, const Mesh *m, bool gpu, Error *error) {
  const char *why = c->between == BETWEEN_CHAIN && !c->weights_only ? hosts_why_not(c, m, gpu) : NULL;
  if (why) fail(error, "--between_hosts chain: %s; leave it out", why);
  return !why;
}
bool fsdp_hosts_chain(const FsdpConfig *c, int world, int per_host, bool gpu, Error *error) {
  Mesh m;
  mesh_pretend(&m, c->mesh, c->windows && c->comm == COMM_MPI, 0, world, per_host);
  const bool chain = hosts_check(c, &m, gpu, error) && hosts_chosen(c, &m, gpu);
  mesh_close(&m);
  return chain;
}
int fsdp_groups_across(const Fsdp *f, int size) {
  const Mesh *m = &f->mesh;
  int across = 0;
  for (int first = 0; first < m->world && size <= m->node_world; first += size) {
    bool one_host = true;
    for (int i = 1; i < size; i++) one_host = one_host && m->peer[first + i].host == m->peer[first].host;
    across += !one_host;
  }
  return across;
}
int fsdp_groups_mixed(const Fsdp *f) {
  const bool could = f->mesh.windows && !f->ctx->ops->nccl && f->cfg.between == BETWEEN_AUTO;
  return could ? hosts_out_of_order(&f->mesh) : 0;
}
// The rank of host `h` that adds to the part of `owner`, which is on host `of`.
static inline int hosts_adder_at(const int *first, int h, int of, int owner) {
  return first[h] + (owner - first[of]) % (first[h + 1] - first[h]);
}
static inline int hosts_adder(const int *first, int hosts, int h, int owner) {
  int of = 0;
  while (of < hosts - 1 && first[of + 1] <= owner) of++;
  return hosts_adder_at(first, h, of, owner);
}
// Which parts this rank adds to, and the ranks before and after it in each part's chain. Free .part and .adder.
static inline HostsLayout hosts_layout(const FsdpConfig *c, const Mesh *m, bool gpu) {
  HostsLayout x = {};
  const int S = m->shape.shards, base = m->shard.rank[0], me = m->shard.me;
  x.part = (HostPart *)calloc((size_t)S, sizeof(HostPart));
  x.part[x.parts++] = HostPart{me, me, me};
  x.ranks = S, x.begin = x.end = me;
  if (!hosts_chosen(c, m, gpu)) return x;
  int *first = (int *)malloc(sizeof(int) * (size_t)(S + 1));
  const int hosts = hosts_in_order(m, base, S, first);
  for (int h = 0; h <= hosts; h++) first[h] -= base;
  if (hosts > 1) {
    x.hosts = hosts;
    while (first[x.me + 1] <= me) x.me++;
    x.first = first[x.me];
    x.ranks = first[x.me + 1] - x.first;
    x.begin = hosts_adder(first, hosts, 0, me);
    x.end = hosts_adder(first, hosts, hosts - 1, me);
    x.parts = 0;
    x.adder = (int *)calloc((size_t)S, sizeof(int));
    for (int o = 0, of = 0; o < S; o++) {
      of += first[of + 1] <= o;
      x.adder[o] = hosts_adder_at(first, x.me, of, o);
      if (x.adder[o] != me) continue;
      const int before = x.me ? hosts_adder_at(first, x.me - 1, of, o) : o;
      const int after = x.me < hosts - 1 ? hosts_adder_at(first, x.me + 1, of, o) : o;
      if (o == me) x.own = x.parts;
      x.part[x.parts++] = HostPart{o, before, after};
    }
  }
  free(first);
  return x;
}
// Bytes that this rank receives in one reduction of e elements per shard (formulas at the top). begins: nothing was
// added before.
static inline HostsTraffic hosts_formula(const HostsLayout *x, int64_t e, int64_t b, bool begins) {
  const int64_t sums = x->me ? x->parts : begins ? 0 : x->parts - 1, result = x->me < x->hosts - 1;
  return HostsTraffic{x->parts * (x->ranks - 1) * e * b, 4 * e * (sums + result)};
}
