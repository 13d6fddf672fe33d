// collectives.cuh: the COLLECTIVES of ops.h through NCCL. CUDA section only.
//
//   id_make         one rank makes the id of a communicator; the caller sends it to the others (over MPI)
//   comm_open       called by every rank of the communicator at once; world ranks, one GPU each
//   comm_check      ends the program if NCCL met an error in the background: waiting calls would never return
//   group_begin/end calls between them start together and finish together: sends and receives that need each other.
//                   With several communicators this holds for the calls of each, on one stream per communicator. One
//                   communicator still waits for another as without the group: all ranks need the same order of calls
//   all_gather      to (world x bytes) = every rank's `bytes`; in place where from = to + rank * bytes
//   send, receive   `bytes` to or from one rank; a message to the own rank needs its receive in the same group
//   reduce_scatter  to = elements rank * n .. of the sum over ranks of from (world x n); NCCL chooses the order
//   all_reduce      data (n) = its sum over ranks, in place; NCCL chooses the order; all ranks get the same bits
//   broadcast       data = root's `bytes`, in place
//
// Everything is queued on c's stream and may be captured in a graph. Bytes travel as ncclUint8; the caller knows what
// they mean. Two communicators in flight can deadlock if their kernels start in different orders on two ranks.
// NCCL_LAUNCH_ORDER_IMPLICIT (2.26 and later) makes NCCL keep the order of the calls, which is the same on all ranks.
#pragma once
#include "cuda_libraries.h"

static void collectives_environment() { setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0); }

// An error that NCCL met in the background (a dead peer, a failed network) is not reported by the call that met it.
static ncclComm_t collectives_comm(void *comm) {
  ncclResult_t failed = ncclSuccess;
  NCCL(ncclCommGetAsyncError((ncclComm_t)comm, &failed));
  CHECK(failed == ncclSuccess || failed == ncclInProgress,
        "NCCL failed in the background: %s: %s; NCCL_DEBUG=INFO shows more", nccl()->ncclGetErrorString(failed),
        nccl()->ncclGetLastError((ncclComm_t)comm));
  return (ncclComm_t)comm;
}

static void id_make_impl(Ctx *, void *id) {
  ncclUniqueId made;
  static_assert(sizeof made == NCCL_ID_BYTES, "the id's size is part of ops.h");
  collectives_environment();
  NCCL(ncclGetUniqueId(&made));
  memcpy(id, &made, sizeof made);
}
static void comm_open_impl(Ctx *, void **comm, const void *id, int rank, int world) {
  ncclUniqueId given;
  ncclComm_t opened = NULL;
  memcpy(&given, id, sizeof given);
  collectives_environment();
  NCCL(ncclCommInitRank(&opened, world, given, rank));
  *comm = (void *)opened;
}
static void comm_close_impl(Ctx *, void *comm) { NCCL(ncclCommDestroy((ncclComm_t)comm)); }
static void comm_check_impl(Ctx *, void *comm) { collectives_comm(comm); }
static void group_begin_impl(Ctx *) { NCCL(ncclGroupStart()); }
static void group_end_impl(Ctx *) { NCCL(ncclGroupEnd()); }

static void all_gather_impl(Ctx *c, void *comm, void *to, const void *from, size_t bytes) {
  NCCL(ncclAllGather(from, to, bytes, ncclUint8, collectives_comm(comm), STREAM(c)));
}
static void send_impl(Ctx *c, void *comm, const void *from, size_t bytes, int to_rank) {
  NCCL(ncclSend(from, bytes, ncclUint8, to_rank, collectives_comm(comm), STREAM(c)));
}
static void receive_impl(Ctx *c, void *comm, void *to, size_t bytes, int from_rank) {
  NCCL(ncclRecv(to, bytes, ncclUint8, from_rank, collectives_comm(comm), STREAM(c)));
}
static ncclDataType_t collectives_sum_type(const char *call, Dtype t) {
  CHECK(dtype_floats(t), "%s: %s is not summed", call, dtype_name(t));
  return t == F32 ? ncclFloat32 : t == BF16 ? ncclBfloat16 : ncclFloat16;
}
static void reduce_scatter_impl(Ctx *c, void *comm, Tensor to, const void *from) {
  const ncclDataType_t type = collectives_sum_type("reduce_scatter", to.dtype);
  NCCL(ncclReduceScatter(from, to.data, (size_t)numel(to), type, ncclSum, collectives_comm(comm), STREAM(c)));
}
static void all_reduce_impl(Ctx *c, void *comm, Tensor data) {
  const ncclDataType_t type = collectives_sum_type("all_reduce", data.dtype);
  NCCL(ncclAllReduce(data.data, data.data, (size_t)numel(data), type, ncclSum, collectives_comm(comm), STREAM(c)));
}
static void broadcast_impl(Ctx *c, void *comm, void *data, size_t bytes, int root) {
  NCCL(ncclBroadcast(data, data, bytes, ncclUint8, root, collectives_comm(comm), STREAM(c)));
}

static const Collectives collectives = {
#define X(call, args) call##_impl,
    COLLECTIVES(X)
#undef X
};
