// mesh.h: which rank belongs to which group, and which host each rank runs on.
//
// The N = R x S ranks form R replicas of S shards. Rank r S + s holds shard s of replica r. The ranks of a shard group
// are therefore consecutive, as in torch.distributed.init_device_mesh, and mpirun puts them on one host where they fit.
//   shard group       the S ranks of one replica: each holds 1/S of parameters, gradients and optimizer state
//   replicate group   the R ranks that hold the same shard
//   secondary group   K consecutive ranks of a shard group; each has 1/K of a block between its forward and its
//                     backward, a secondary shard as in ZeRO++ (--reshard_after_forward K)
// full_shard is the mesh 1 x N, no_shard (DDP) is N x 1, and all others are hybrid.
#pragma once
#include "types.h"

// Whether this rank reads rank r's memory directly.
static inline bool mesh_shares_memory(const Mesh *m, int r) {
  return m->windows && m->peer[r].host == m->peer[m->rank].host;
}
// Whether in every shard group all ranks are on one host and read each other's memory directly.
static inline bool mesh_shards_share_memory(const Mesh *m) {
  const int S = m->shape.shards;
  bool near = m->windows;
  for (int r = 0; r < m->world; r++) near = near && m->peer[r].host == m->peer[r / S * S].host;
  return near;
}
// The group of the `size` ranks first, first + stride, ..., of which `rank` is one. The caller frees .rank.
static inline RankGroup rank_group(int first, int stride, int size, int rank) {
  RankGroup g = {size, (rank - first) / stride, (int *)malloc(sizeof(int) * (size_t)size)};
  for (int i = 0; i < size; i++) g.rank[i] = first + i * stride;
  return g;
}

// Fills in the groups of a mesh whose rank, world and peer[].host are known. windows: ranks of a host read each other's
// memory.
static inline void mesh_groups(Mesh *m, MeshShape shape, bool windows) {
  m->windows = windows;
  m->shape = shape;
  CHECK(shape.replicas * shape.shards == m->world, "mesh %d x %d of %d ranks", shape.replicas, shape.shards, m->world);
  const int S = shape.shards, K = shape.secondary ? shape.secondary : 1;
  m->shard = rank_group(m->rank / S * S, 1, S, m->rank);
  m->replicate = rank_group(m->rank % S, S, shape.replicas, m->rank);
  m->secondary = rank_group(m->rank / K * K, 1, K, m->rank);
  for (int r = 0; r < m->world; r++) m->hosts += m->peer[r].host == r;
  for (int i = 0; i < S; i++) m->remote += i != m->shard.me && !mesh_shares_memory(m, m->shard.rank[i]);
}
// Tests only: the number of the host that a rank pretends to be on, which divides the ranks of one real host among
// pretended hosts. NULL: hosts are as MPI finds them.
static int (*mesh_pretended_host)(int rank);
// Opens the mesh of the ranks of `comm`, of which there are shape.replicas x shape.shards. All ranks call it.
static inline void mesh_open(Mesh *m, MPI_Comm comm, MeshShape shape, bool windows) {
  memset(m, 0, sizeof *m);
  MPI_Comm *const comms[] = {&m->comm, &m->gather_comm, &m->reduce_comm, &m->chain_comm};
  for (MPI_Comm *c : comms) MPI_Comm_dup(comm, c);
  MPI_Comm_rank(m->comm, &m->rank);
  MPI_Comm_size(m->comm, &m->world);
  MPI_Comm_split_type(m->comm, MPI_COMM_TYPE_SHARED, m->rank, MPI_INFO_NULL, &m->node);
  if (mesh_pretended_host) {
    MPI_Comm whole = m->node;
    MPI_Comm_split(whole, mesh_pretended_host(m->rank), m->rank, &m->node);
    MPI_Comm_free(&whole);
  }
  MPI_Comm_rank(m->node, &m->node_rank);
  MPI_Comm_size(m->node, &m->node_world);
  gethostname(m->host, sizeof m->host - 1);
  int leader = m->rank;                          // a host's number is the rank of its first rank
  MPI_Bcast(&leader, 1, MPI_INT, 0, m->node);
  int *all = (int *)malloc(sizeof(int) * (size_t)m->world);
  MPI_Allgather(&leader, 1, MPI_INT, all, 1, MPI_INT, m->comm);
  m->peer = (Peer *)calloc((size_t)m->world, sizeof(Peer));
  for (int r = 0; r < m->world; r++) m->peer[r].host = all[r];
  free(all);
  mesh_groups(m, shape, windows);
}
// For plans: the mesh that rank `rank` of `world` ranks would have, with `per_host` consecutive ranks on each host. The
// ranks need not be running, and the mesh has no communicators.
static inline void mesh_pretend(Mesh *m, MeshShape shape, bool windows, int rank, int world, int per_host) {
  memset(m, 0, sizeof *m);
  MPI_Comm *const comms[] = {&m->comm, &m->gather_comm, &m->reduce_comm, &m->chain_comm, &m->node};
  for (MPI_Comm *c : comms) *c = MPI_COMM_NULL;
  m->rank = rank;
  m->world = world;
  m->node_rank = rank % per_host;
  m->node_world = (rank / per_host + 1) * per_host > world ? world % per_host : per_host;
  m->peer = (Peer *)calloc((size_t)world, sizeof(Peer));
  for (int r = 0; r < world; r++) m->peer[r].host = r / per_host * per_host;
  mesh_groups(m, shape, windows);
}
// For dry runs: a copy of `from` without communicators. It shares the lists of `from`; do not close it.
static inline Mesh mesh_alone(const Mesh *from) {
  Mesh m = *from;
  m.comm = m.gather_comm = m.reduce_comm = m.chain_comm = m.node = MPI_COMM_NULL;
  return m;
}
static inline GroupPlace group_place(const Mesh *m, const RankGroup *g) {
  GroupPlace p = {g->size, 0, 0};
  for (int i = 0, last = -1; i < g->size; i++) {
    const int host = m->peer[g->rank[i]].host;
    p.hosts += host != last;
    p.here += host == m->peer[m->rank].host;
    last = host;
  }
  return p;
}
// The largest `mine` among all ranks; without communicators this rank's. All ranks call it.
static inline size_t mesh_most(const Mesh *m, size_t mine) {
  unsigned long long most = mine;
  if (m->comm != MPI_COMM_NULL) MPI_Allreduce(MPI_IN_PLACE, &most, 1, MPI_UNSIGNED_LONG_LONG, MPI_MAX, m->comm);
  return (size_t)most;
}
static inline void mesh_close(Mesh *m) {
  RankGroup *const groups[] = {&m->shard, &m->replicate, &m->secondary};
  MPI_Comm *const comms[] = {&m->node, &m->chain_comm, &m->reduce_comm, &m->gather_comm, &m->comm};
  for (RankGroup *g : groups) free(g->rank);
  for (MPI_Comm *c : comms) if (*c != MPI_COMM_NULL) MPI_Comm_free(c);
  free(m->peer);
}
