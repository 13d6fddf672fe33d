// tensor_map.h: the place of every tensor of the sharded state in files, for saving, loading, exporting and importing.
// A map is made on one rank from shapes or from a file's header; then every rank finds its own byte ranges.
//
// Tensors are named by (TensorState, parameter). Memory holds matrices as (out, in), fp32; a file may hold them
// transposed (in, out), and in bf16 or fp16. A parameter may be stored as several tensors of a file, its parts, which
// follow each other along its rows: q, k and v.
#pragma once
#include "tensors.h"

void tensor_map_open(TensorMap *m, int params) {
  memset(m, 0, sizeof *m);
  m->params = params;
  m->place = (TensorPlace *)malloc(sizeof(TensorPlace) * (size_t)(MAP_STATES * params * MAP_PARTS));
  for (int i = 0; i < MAP_STATES * params * MAP_PARTS; i++) m->place[i] = TensorPlace{-1, F32, false, 0, 0, 0};
}
void tensor_map_free(TensorMap *m) {
  free(m->place);
  free(m->scales);
  memset(m, 0, sizeof *m);
}
TensorPlace *tensor_place(const TensorMap *m, int state, int param) {
  return &m->place[(state * m->params + param) * MAP_PARTS];
}
const TensorPlace *tensor_part(const TensorPlace *part, int64_t cols, int64_t *first, int64_t *left) {
  for (; part->rows && *first >= part->rows * cols; part++) *first -= part->rows * cols;
  if (part->rows) *left = min64(*left, part->rows * cols - *first);
  if (part->half_rows) {
    const int64_t half = part->half_rows * cols, in_half = *first % half, which = *first / half;
    *left = min64(*left, half - in_half);
    *first = (which ^ 1) * half + in_half;
    if (part->in_turn)
      *first = ((which / 2 * part->half_rows + in_half / cols) * 2 + which % 2) * cols + in_half % cols;
  }
  return part;
}
void tensor_map_share(TensorMap *m, MPI_Comm comm) {
  int rank;
  TensorPlace *mine = m->place;
  Nf4Scales *scales = m->scales;
  MPI_Comm_rank(comm, &rank);
  MPI_Bcast(m, sizeof *m, MPI_BYTE, 0, comm);
  const size_t bytes = sizeof(TensorPlace) * (size_t)(MAP_STATES * m->params * MAP_PARTS);
  m->place = rank ? (TensorPlace *)malloc(bytes) : mine;
  MPI_Bcast(m->place, fsdp_mpi_count((int64_t)bytes), MPI_BYTE, 0, comm);
  const size_t scale_bytes = sizeof(Nf4Scales) * (size_t)m->scales_count;
  m->scales = rank && scale_bytes ? (Nf4Scales *)malloc(scale_bytes) : rank ? NULL : scales;
  if (scale_bytes) MPI_Bcast(m->scales, fsdp_mpi_count((int64_t)scale_bytes), MPI_BYTE, 0, comm);
}
