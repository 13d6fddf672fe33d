// tensor_map.h: where every tensor of the sharded state lies in files, for saving, loading, exporting and importing. A
// map is made on one rank from shapes or from a file's header; then every rank finds its own byte ranges.
//
// Tensors are named by (TensorState, parameter). Memory holds matrices as (out, in), fp32; a file may hold them
// transposed (in, out), and in bf16 or fp16.
#pragma once
#include "fsdp.h"

enum { MAP_MAX_FILES = 64, MAP_PATH_BYTES = 1280 };
// By ShardState: parameters, first moment (SGD: momentum), second moment.
enum { MAP_STATES = 3 };

// at: byte of the file where the tensor's first element is. file < 0: not in any file.
struct TensorPlace { int32_t file; Dtype dtype; bool transposed; int64_t at; };

// Zeroed, it is empty. Freed by tensor_map_free.
struct TensorMap {
  int files, params;
  char path[MAP_MAX_FILES][MAP_PATH_BYTES];
  int64_t file_bytes[MAP_MAX_FILES];             // of the whole file: another size is refused before it is read
  int64_t data_at[MAP_MAX_FILES];                // where tensors begin: blocks with checksums are counted from here
  TensorPlace *place;                            // [MAP_STATES][params]
};

// An empty map of `params` parameters: nothing is in any file.
static inline void tensor_map_open(TensorMap *m, int params) {
  memset(m, 0, sizeof *m);
  m->params = params;
  m->place = (TensorPlace *)malloc(sizeof(TensorPlace) * (size_t)(MAP_STATES * params));
  for (int i = 0; i < MAP_STATES * params; i++) m->place[i] = TensorPlace{-1, F32, false, 0};
}
static inline void tensor_map_free(TensorMap *m) {
  free(m->place);
  memset(m, 0, sizeof *m);
}
static inline TensorPlace *tensor_place(const TensorMap *m, int state, int param) {
  return &m->place[state * m->params + param];
}
// Gives every rank rank 0's map. Collective.
static inline void tensor_map_share(TensorMap *m, MPI_Comm comm) {
  int rank;
  TensorPlace *mine = m->place;
  MPI_Comm_rank(comm, &rank);
  MPI_Bcast(m, sizeof *m, MPI_BYTE, 0, comm);
  const size_t bytes = sizeof(TensorPlace) * (size_t)(MAP_STATES * m->params);
  m->place = rank ? (TensorPlace *)malloc(bytes) : mine;
  MPI_Bcast(m->place, fsdp_mpi_count((int64_t)bytes), MPI_BYTE, 0, comm);
}
