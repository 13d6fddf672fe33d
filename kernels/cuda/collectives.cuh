// collectives.cuh: the COLLECTIVES of ops.h through NCCL. CUDA section only.
//
//   id_make         one rank makes the id of a communicator; the caller sends it to the others (over MPI)
//   comm_open       called by every rank of the communicator at once; world ranks, one GPU each
//   comm_split      every rank of `parent` at once, with no call of it in flight: a communicator of those with the same
//                   color, by key. From NCCL 2.27.3 on the two share buffers and connections, and therefore run one
//                   after the other on the device (NCCL 2.28, src/enqueue.cc: both wait for sharedRes->deviceStream)
//   comm_close      when no graph that holds its calls is left: NCCL waits for those
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
// they mean. Kernels of two communicators may start in different orders on two ranks. That is no deadlock because both
// fit on the GPU at once (nccl_blocks); two are in flight (comm_split).
// NCCL_LAUNCH_ORDER_IMPLICIT would keep them in the order of the calls, but not in graphs: with NCCL 2.28.9 and driver
// 580 a segmentation fault in cudaGraphUpload (dev/results/2026-11-26-H100-80GB-HBM3.md).
//
// Communicators are nonblocking: work that involves other ranks (opening, and the first call of a kind, which connects)
// is done by a thread of NCCL while this thread polls, until --timeout ends the run (heartbeats.h). Every call is
// waited for before the next, because until then NCCL allows neither another NCCL call nor work on the stream, and
// because only then is the order of the calls that of the host. The wait lasts until the call is enqueued, not until it
// has communicated.
// Polling makes no CUDA call, so it may happen inside a capture; the capture is thread-local, so NCCL's thread is free
// to do what it needs.
#pragma once
#include "kernels/ops.h"
#include "cuda_device.h"
#include "cuda_libraries.h"
#include "nvidia.h"
#include <sched.h>

// Whether a call is still in progress. Ends the program on an error that NCCL met in the background (a peer that died,
// a network that failed), since no call returns it.
static bool collectives_in_progress(ncclComm_t comm) {
  ncclResult_t state = ncclSuccess;
  NCCL(ncclCommGetAsyncError(comm, &state));
  if (state == ncclUnhandledCudaError) nccl_failed("in the background", state);
  CHECK(state == ncclSuccess || state == ncclInProgress,
        "NCCL failed in the background: %s: %s; NCCL_DEBUG=INFO shows more", nccl()->ncclGetErrorString(state),
        nccl()->ncclGetLastError(comm));
  return state == ncclInProgress;
}
static void collectives_wait(ncclComm_t comm, const char *what) {
  bool late = false;
  for (int asked = 0; collectives_in_progress(comm); asked++) {
    if (asked < 1000) continue;                  // NCCL's thread needs some ten microseconds: less than a lost core
    late = true;
    liveness_poll(what);
    sched_yield();
  }
  if (late) liveness_poll(NULL);
}
// The communicators of the group that is being collected. One host thread calls NCCL.
enum { COLLECTIVES_IN_A_GROUP = 8 };
static ncclComm_t collectives_group[COLLECTIVES_IN_A_GROUP];
static int collectives_grouped, collectives_depth;
static void collectives_join(ncclComm_t comm) {
  for (int i = 0; i < collectives_grouped; i++) if (collectives_group[i] == comm) return;
  CHECK(collectives_grouped < COLLECTIVES_IN_A_GROUP, "more than %d communicators in a group", COLLECTIVES_IN_A_GROUP);
  collectives_group[collectives_grouped++] = comm;
}
// Makes one call of NCCL and waits until it is enqueued; inside a group, the end of the group waits instead.
#define COLLECTIVE(comm, call) \
  do { \
    NCCL(call); \
    if (collectives_depth) collectives_join((ncclComm_t)(comm)); \
    else collectives_wait((ncclComm_t)(comm), "NCCL to enqueue a collective"); \
  } while (0)

static int collectives_version() {
  int version = 0;
  NCCL(ncclGetVersion(&version));
  return version;
}
// Sets environment variables that NCCL reads when it is first used, unless the user has set them.
static void collectives_environment() {
  if (collectives_version() < NCCL_GRAPH_REGISTERS) setenv("NCCL_GRAPH_REGISTER", "0", 0);
}
// NCCL_MAX_CTAS replaces maxCTAs, where the user has set it (envConfigOverride, src/init.cc).
static ncclConfig_t collectives_config(const Ctx *c) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.maxCTAs = nccl_blocks(c->sm_margin, DEVICE(c)->sms);
  config.splitShare = collectives_version() >= NCCL_SPLIT_SHARES;
  return config;
}
static void id_make_impl(Ctx *, void *id) {
  ncclUniqueId made;
  static_assert(sizeof made == NCCL_ID_BYTES, "the id's size is part of ops.h");
  collectives_environment();
  NCCL(ncclGetUniqueId(&made));
  memcpy(id, &made, sizeof made);
}
static void comm_open_impl(Ctx *c, void **comm, const void *id, int rank, int world) {
  ncclUniqueId given;
  ncclComm_t opened = NULL;
  ncclConfig_t config = collectives_config(c);
  memcpy(&given, id, sizeof given);
  collectives_environment();
  NCCL(ncclCommInitRankConfig(&opened, world, given, rank, &config));
  collectives_wait(opened, "all ranks to open an NCCL communicator");
  *comm = (void *)opened;
}
// The new communicator is there when the parent is ready again.
static void comm_split_impl(Ctx *c, void **comm, void *parent, int color, int key) {
  ncclComm_t opened = NULL;
  ncclConfig_t config = collectives_config(c);
  NCCL(ncclCommSplit((ncclComm_t)parent, color, key, &opened, &config));
  collectives_wait((ncclComm_t)parent, "all ranks to split an NCCL communicator");
  CHECK(opened, "ncclCommSplit made no communicator of color %d", color);
  collectives_wait(opened, "the other ranks of an NCCL communicator");
  *comm = (void *)opened;
}
// Finalizing hears from other ranks; what is left to destroy is this rank's own, and may not be asked about any more.
static void comm_close_impl(Ctx *, void *comm) {
  NCCL(ncclCommFinalize((ncclComm_t)comm));
  collectives_wait((ncclComm_t)comm, "all ranks to close an NCCL communicator");
  NCCL(ncclCommDestroy((ncclComm_t)comm));
}
static void comm_check_impl(Ctx *, void *comm) { collectives_in_progress((ncclComm_t)comm); }
static void group_begin_impl(Ctx *) {
  NCCL(ncclGroupStart());
  collectives_depth++;
}
static void group_end_impl(Ctx *) {
  NCCL(ncclGroupEnd());
  if (--collectives_depth) return;
  for (int i = 0; i < collectives_grouped; i++) collectives_wait(collectives_group[i], "NCCL to enqueue a group");
  collectives_grouped = 0;
}

static void all_gather_impl(Ctx *c, void *comm, void *to, const void *from, size_t bytes) {
  COLLECTIVE(comm, ncclAllGather(from, to, bytes, ncclUint8, (ncclComm_t)comm, STREAM(c)));
}
static void send_impl(Ctx *c, void *comm, const void *from, size_t bytes, int to_rank) {
  COLLECTIVE(comm, ncclSend(from, bytes, ncclUint8, to_rank, (ncclComm_t)comm, STREAM(c)));
}
static void receive_impl(Ctx *c, void *comm, void *to, size_t bytes, int from_rank) {
  COLLECTIVE(comm, ncclRecv(to, bytes, ncclUint8, from_rank, (ncclComm_t)comm, STREAM(c)));
}
static ncclDataType_t collectives_sum_type(const char *call, Dtype t) {
  CHECK(dtype_floats(t), "%s: %s is not summed", call, dtype_name(t));
  return t == F32 ? ncclFloat32 : t == BF16 ? ncclBfloat16 : ncclFloat16;
}
static void reduce_scatter_impl(Ctx *c, void *comm, Tensor to, const void *from) {
  const ncclDataType_t type = collectives_sum_type("reduce_scatter", to.dtype);
  COLLECTIVE(comm, ncclReduceScatter(from, to.data, (size_t)numel(to), type, ncclSum, (ncclComm_t)comm, STREAM(c)));
}
static void all_reduce_impl(Ctx *c, void *comm, Tensor data) {
  const ncclDataType_t type = collectives_sum_type("all_reduce", data.dtype);
  COLLECTIVE(comm, ncclAllReduce(data.data, data.data, (size_t)numel(data), type, ncclSum, (ncclComm_t)comm,
                                 STREAM(c)));
}
static void broadcast_impl(Ctx *c, void *comm, void *data, size_t bytes, int root) {
  COLLECTIVE(comm, ncclBroadcast(data, data, bytes, ncclUint8, root, (ncclComm_t)comm, STREAM(c)));
}

static const Collectives collectives = {
#define X(call, args) call##_impl,
    COLLECTIVES(X)
#undef X
};
