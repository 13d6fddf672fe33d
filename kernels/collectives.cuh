// collectives.cuh: NCCL behind the list COLLECTIVES of ops.h. CUDA section only.
//
//   id_make         one rank makes the name of a communicator and sends it to the others (over MPI)
//   comm_open       every rank of it at once; world ranks, one GPU each
//   comm_check      ends the program if NCCL met an error in the background: what waits on it would wait for ever
//   group_begin/end calls between them start together and finish together: sends and receives that need each other.
//                   Of several communicators each one's calls do so, on one stream a communicator; one communicator
//                   waits for another as it would without the group, so their order must be the same on all ranks
//   all_gather      to (world x bytes) = every rank's `bytes`; in place where from = to + rank * bytes
//   send, receive   `bytes` to or from one rank; a message to oneself needs its receive in the same group
//   reduce_scatter  to = elements rank * n .. of the sum over ranks of from (world x n), in an order of NCCL's choice
//   all_reduce      data (n) = its sum over ranks, in place, in an order of NCCL's choice; all ranks get the same bits
//   broadcast       data = root's `bytes`, in place
//
// Everything is queued on c's stream and may be captured in a graph. Bytes travel as ncclUint8: what they mean is the
// caller's concern. Two communicators in flight can wait for each other when their kernels start in another order on
// another rank; NCCL_LAUNCH_ORDER_IMPLICIT (2.26 and later) makes NCCL keep the order of the calls, the same
// everywhere.
#pragma once
#include "cuda_libraries.h"

static void collectives_environment() { setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0); }

// An error that NCCL met in the background (a peer that died, a network that failed) belongs to no call of ours.
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
