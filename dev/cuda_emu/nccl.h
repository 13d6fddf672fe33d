// nccl.h of the emulation: NCCL between the ranks of mpirun, as adversarial as its manual allows.
//
//   - A call, or a whole group, is posted when its stream reaches it and done when all its parts are. Until then the
//     stream waits and the host does not. Sends are synchronous: a message without its receive blocks, as on a GPU.
//   - Every part is a set of messages, each after a header (kind, sequence number of the communicator, bytes, root). If
//     ranks make different calls, the program ends with both sides' headers. In a collective every rank waits for a
//     message from every other, even if no data has to pass: no caller may rely on the first rank being done before the
//     last has arrived.
//   - Data goes through buffers of this process, because other processes cannot read emulated device memory. A receive
//     buffer reads as NaN until the part is done; a send buffer must not change until then. A buffer summed in place is
//     both, and NaN.
//   - Sums are those of a ring: not in rank order, and rounded to the dtype at every hop. All ranks of an ncclAllReduce
//     get the same bits, as in NCCL.
//   - A communicator's ranks find each other by its id: a random number and the world rank that drew it, which must be
//     a member (NCCL does not require that).
//   - Communicators are independent. Within a group the calls of each are one operation on their stream, in the order
//     in which the communicators first appeared; on one stream the second starts when the first is done.
//   - A nonblocking communicator (config.blocking 0) has done nothing when a call returns, whatever that returns:
//     opening, splitting, finalizing and enqueueing happen while the program asks ncclCommGetAsyncError, after some
//     questions that are answered ncclInProgress. Until ncclSuccess the streams belong to NCCL and no other call of
//     NCCL may be made: who does ends the program.
//   - Memory: a communicator takes some when it is opened, and for each kind and size of call some more at the first
//     one (it connects), once for all that share resources (splitShare of the parent). What the device does not have is
//     ncclUnhandledCudaError. Finalizing waits for graphs that hold calls of the communicator: for ever, so it ends the
//     program.
//
// One process is one rank, and in a group a communicator uses one stream, as in this program.
#pragma once
#include "kernels/device.h"
#include <cuda_runtime.h>
#include <functional>
#include <limits.h>
#include <memory>
#include <mpi.h>
#include <string>
#include <time.h>
#include <unistd.h>
#include <vector>

enum { NCCL_MAJOR = 2, NCCL_MINOR = 28, NCCL_PATCH = 9, NCCL_VERSION_CODE = 22809, NCCL_UNIQUE_ID_BYTES = 128 };
typedef enum {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7
} ncclResult_t;
typedef enum { ncclUint8 = 1, ncclFloat16 = 6, ncclFloat32 = 7, ncclBfloat16 = 9 } ncclDataType_t;
typedef enum { ncclSum = 0 } ncclRedOp_t;
typedef struct { char internal[NCCL_UNIQUE_ID_BYTES]; } ncclUniqueId;
enum { NCCL_CONFIG_UNDEF_INT = INT_MIN, NCCL_SPLIT_NOCOLOR = -1, EMU_NCCL_MAGIC = 0x5afebeef };
typedef struct { size_t size; unsigned magic; int blocking, minCTAs, maxCTAs, splitShare; } ncclConfig_t;
#define NCCL_CONFIG_INITIALIZER \
  {sizeof(ncclConfig_t), EMU_NCCL_MAGIC, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, \
   NCCL_CONFIG_UNDEF_INT}
enum { EMU_NCCL_MAXCHANNELS = 64 };

// What continues in the background of a call: `run` says whether it is done. Nothing at all happens before `questions`
// of ncclCommGetAsyncError.
struct EmuNcclJob {
  std::function<bool()> run;
  int questions;
  bool done;
  ncclResult_t result;
  std::vector<EmuStream *> streams;              // that it will enqueue to
};
// Buffers and connections, which split communicators may share. Memory is only counted.
inline int emu_nccl_blocks_now;                  // of all families
struct EmuNcclFamily {
  size_t bytes;
  unsigned connected;                            // kinds of calls, by bit
  int blocks;                                    // of a kernel at most: maxCTAs, the most of its communicators
  ~EmuNcclFamily() { emu_device_bytes_used -= bytes, emu_nccl_blocks_now -= blocks; }
};
struct EmuNcclComm {
  MPI_Comm mpi;                                  // MPI_COMM_NULL for one rank
  int rank, world;
  bool blocking, shares;                         // shares: with communicators split from it
  uint64_t calls;                                // collectives so far: their sequence number
  std::vector<uint32_t> sent, received;          // messages so far, by peer: their tags
  std::shared_ptr<EmuNcclFamily> family;
  std::shared_ptr<EmuNcclJob> job;               // NULL: none is in progress
  std::shared_ptr<int> uses;                     // also held by every call that is queued, and by graphs
  bool finalized;
};
typedef EmuNcclComm *ncclComm_t;

// ---- errors --------------------------------------------------------------------------------------------------------
inline std::string emu_nccl_error = "";
inline int emu_nccl_queries_to_loss;             // the ncclCommGetAsyncError that reports it, counted down; 0: none
EMU(ncclResult_t) emu_nccl_reject(ncclResult_t r, const char *why) {
  emu_nccl_error = why;
  return r;
}
#define EMU_NCCL_NEED(cond, result, why) do { if (!(cond)) return emu_nccl_reject(ncclInvalid##result, why); } while (0)
EMU(const char *) ncclGetErrorString(ncclResult_t r) {
  return r == ncclSuccess              ? "no error"
         : r == ncclUnhandledCudaError ? "unhandled cuda error"
         : r == ncclInvalidArgument    ? "invalid argument"
         : r == ncclInvalidUsage       ? "invalid usage"
         : r == ncclRemoteError        ? "remote process exited or there was a network error"
                                       : "NCCL operation in progress";
}
EMU(const char *) ncclGetLastError(ncclComm_t) { return emu_nccl_error.c_str(); }
inline int emu_nccl_version_now = NCCL_VERSION_CODE;
EMU(ncclResult_t) ncclGetVersion(int *version) {
  *version = emu_nccl_version_now;
  return ncclSuccess;
}

// ---- in the background ---------------------------------------------------------------------------------------------
inline int emu_nccl_jobs;                        // started and not done: then no other call may be made
inline int64_t emu_nccl_begun, emu_nccl_asked;   // jobs of nonblocking communicators; questions answered ncclInProgress

EMU(void) emu_nccl_alone(const char *call) {
  if (emu_nccl_jobs)
    emu_fail("%s: a call of NCCL before ncclCommGetAsyncError has said ncclSuccess of an earlier one", call);
}
// Lets a job continue; whether it is done.
EMU(bool) emu_nccl_advance(EmuNcclJob *job) {
  if (job->done) return true;
  if (job->questions-- > 0) return false;
  for (EmuStream *s : job->streams) s->claimed = false;
  if (!job->run()) {
    for (EmuStream *s : job->streams) s->claimed = true;
    return false;
  }
  job->done = true;
  emu_nccl_jobs--;
  return true;
}
// Starts a job of these communicators. A blocking one waits for it; another has not even begun.
EMU(ncclResult_t)
emu_nccl_begin(const std::vector<ncclComm_t> &comms, std::vector<EmuStream *> streams,
               std::function<bool(EmuNcclJob *)> run) {
  const std::shared_ptr<EmuNcclJob> job = std::make_shared<EmuNcclJob>();
  EmuNcclJob *raw = job.get();
  *raw = {[=] { return run(raw); }, 0, false, ncclSuccess, std::move(streams)};
  emu_nccl_jobs++;
  if (comms[0]->blocking) {
    while (!emu_nccl_advance(raw)) usleep(20);
    return raw->result;
  }
  int rank = 0, up = 0;
  MPI_Initialized(&up);
  if (up) MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  raw->questions = 1 + (int)((emu_nccl_begun++ * 5 + rank * 3) % 4);           // not alike on all ranks
  for (EmuStream *s : raw->streams) s->claimed = true;
  for (ncclComm_t c : comms) c->job = job;
  return emu_nccl_begun % 3 ? ncclInProgress : ncclSuccess;      // NCCL says either where it has but started
}
EMU(ncclResult_t) ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *failed) {
  EMU_NCCL_NEED(comm && failed, Argument, "no communicator");
  if (comm->job && !emu_nccl_advance(comm->job.get())) {
    emu_nccl_asked++;
    *failed = ncclInProgress;
    return ncclSuccess;
  }
  const ncclResult_t result = comm->job ? comm->job->result : ncclSuccess;
  if (result == ncclSuccess) comm->job.reset();
  *failed = result != ncclSuccess ? result
            : emu_nccl_queries_to_loss > 0 && !--emu_nccl_queries_to_loss ? ncclRemoteError : ncclSuccess;
  return ncclSuccess;
}
EMU(bool) emu_nccl_ready(const EmuNcclComm *c) {
  return !c->job || (c->job->done && c->job->result == ncclSuccess);
}

// ---- memory --------------------------------------------------------------------------------------------------------
enum : size_t { EMU_NCCL_COMM_BYTES = 64 << 10, EMU_NCCL_OPEN_BYTES = 1 << 20, EMU_NCCL_CONNECT_BYTES = 512 << 10 };
enum { EMU_NCCL_LARGE = 1024 };                  // bytes from which a call takes another algorithm
EMU(bool) emu_nccl_take(EmuNcclFamily *f, size_t bytes) {
  if (emu_device_bytes_used + bytes > emu_device_bytes_now) {
    emu_nccl_error = "Failed to CUDA calloc " + std::to_string(bytes) + " bytes";
    return false;
  }
  emu_device_bytes_used += bytes;
  f->bytes += bytes;
  return true;
}

// ---- communicators -------------------------------------------------------------------------------------------------
struct EmuNcclId { char magic[8]; uint64_t token; int32_t world_rank, reserved; };
struct EmuNcclHello { uint64_t token; int32_t rank, world, world_rank; };
enum { EMU_NCCL_HELLO = 21001, EMU_NCCL_WELCOME = 21002, EMU_NCCL_MAKE = 21003 };
inline int emu_nccl_depth;                       // of ncclGroupStart
inline std::vector<uint64_t> emu_nccl_drawn;     // tokens of the ids made here
inline std::vector<EmuNcclHello> emu_nccl_early; // ranks that came for one of them while another was being opened

EMU(int) emu_nccl_world_rank() {
  int up = 0, rank = 0;
  MPI_Initialized(&up);
  if (up) MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}
EMU(ncclResult_t) ncclGetUniqueId(ncclUniqueId *id) {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  const uint64_t token = ((uint64_t)now.tv_sec << 32 ^ (uint64_t)now.tv_nsec << 16 ^ (uint64_t)getpid()) +
                         emu_nccl_drawn.size();
  const EmuNcclId made = {"emuNccl", token, emu_nccl_world_rank(), 0};
  emu_nccl_drawn.push_back(token);
  memset(id, 0, sizeof *id);
  memcpy(id, &made, sizeof made);
  return ncclSuccess;
}
// What a rank does until it has found the others: it asks again and again, but not for ever.
struct EmuNcclMeeting {
  EmuNcclId id;
  EmuNcclHello me;
  std::vector<int> ranks;                        // of MPI_COMM_WORLD, by rank of the communicator
  int heard;
  bool waits;
  MPI_Request welcome;
  timespec since;
};
EMU(bool) emu_nccl_not_yet(EmuNcclMeeting *m) {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  if (!m->since.tv_sec) m->since = now;
  if (now.tv_sec - m->since.tv_sec > EMU_PATIENCE_S)
    emu_fail("ncclCommInitRankConfig: waits for %s; the rank that made the id must open the communicator too, and all "
             "ranks must open theirs in one order", m->waits ? "the maker of its id" : "other ranks");
  usleep(20);
  return false;
}
// Whether one more rank that opens the communicator of this token has come. Ranks may open theirs at any pace.
EMU(bool) emu_nccl_hear(uint64_t token, EmuNcclHello *to) {
  for (size_t i = 0; i < emu_nccl_early.size(); i++) {
    if (emu_nccl_early[i].token != token) continue;
    *to = emu_nccl_early[i];
    emu_nccl_early.erase(emu_nccl_early.begin() + (long)i);
    return true;
  }
  for (int here = 1; here;) {
    MPI_Iprobe(MPI_ANY_SOURCE, EMU_NCCL_HELLO, MPI_COMM_WORLD, &here, MPI_STATUS_IGNORE);
    if (!here) return false;
    MPI_Recv(to, sizeof *to, MPI_BYTE, MPI_ANY_SOURCE, EMU_NCCL_HELLO, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (to->token == token) return true;
    if (std::find(emu_nccl_drawn.begin(), emu_nccl_drawn.end(), to->token) == emu_nccl_drawn.end())
      emu_fail("ncclCommInitRankConfig: rank %d of MPI's brings an id that was not made here", to->world_rank);
    emu_nccl_early.push_back(*to);
  }
  return false;
}
// The rank that drew the id hears who the others are and tells all of them.
EMU(bool) emu_nccl_meet(ncclComm_t comm, EmuNcclMeeting *m) {
  if (m->me.world_rank == m->id.world_rank) {
    m->ranks[(size_t)comm->rank] = m->me.world_rank;
    for (EmuNcclHello h; m->heard < comm->world - 1; m->heard++) {
      if (!emu_nccl_hear(m->id.token, &h)) return emu_nccl_not_yet(m);
      if (h.world != comm->world) emu_fail("ncclCommInitRankConfig: ranks disagree on the world");
      if (h.rank < 0 || h.rank >= comm->world || m->ranks[(size_t)h.rank] >= 0)
        emu_fail("ncclCommInitRankConfig: a rank came twice");
      m->ranks[(size_t)h.rank] = h.world_rank;
    }
    for (int r : m->ranks)
      if (r != m->me.world_rank) MPI_Send(m->ranks.data(), comm->world, MPI_INT, r, EMU_NCCL_WELCOME, MPI_COMM_WORLD);
  } else {
    if (!m->waits) {
      MPI_Send(&m->me, sizeof m->me, MPI_BYTE, m->id.world_rank, EMU_NCCL_HELLO, MPI_COMM_WORLD);
      MPI_Irecv(m->ranks.data(), comm->world, MPI_INT, m->id.world_rank, EMU_NCCL_WELCOME, MPI_COMM_WORLD, &m->welcome);
      m->waits = true;
    }
    int here = 0;
    MPI_Test(&m->welcome, &here, MPI_STATUS_IGNORE);
    if (!here) return emu_nccl_not_yet(m);
  }
  MPI_Group world, group;
  MPI_Comm_group(MPI_COMM_WORLD, &world);
  MPI_Group_incl(world, comm->world, m->ranks.data(), &group);
  MPI_Comm_create_group(MPI_COMM_WORLD, group, EMU_NCCL_MAKE, &comm->mpi);
  MPI_Group_free(&group);
  MPI_Group_free(&world);
  return true;
}
EMU(ncclComm_t) emu_nccl_new(int rank, int world, const EmuNcclComm *parent, const ncclConfig_t *config) {
  const ncclConfig_t none = NCCL_CONFIG_INITIALIZER, *g = config ? config : &none;
  const int undefined = NCCL_CONFIG_UNDEF_INT;
  ncclComm_t c = new EmuNcclComm();
  c->mpi = MPI_COMM_NULL;
  c->rank = rank, c->world = world;
  c->blocking = g->blocking != undefined ? g->blocking : parent ? parent->blocking : true;
  c->shares = g->splitShare != undefined ? g->splitShare == 1 : parent && parent->shares;
  c->sent.resize((size_t)world), c->received.resize((size_t)world);
  c->family = parent && parent->shares ? parent->family : std::make_shared<EmuNcclFamily>();
  c->uses = std::make_shared<int>(0);
  const int blocks = g->maxCTAs == undefined || g->maxCTAs > EMU_NCCL_MAXCHANNELS ? EMU_NCCL_MAXCHANNELS : g->maxCTAs;
  const int more = std::max(0, blocks - c->family->blocks);
  c->family->blocks += more, emu_nccl_blocks_now += more;
  return c;
}
// A number of blocks, where it is given, is at least 1, and the least is not above the most (parseCommConfig).
EMU(bool) emu_nccl_config_holds(const ncclConfig_t *c) {
  const int undefined = NCCL_CONFIG_UNDEF_INT;
  return !c || (c->size == sizeof *c && c->magic == EMU_NCCL_MAGIC && (c->minCTAs == undefined || c->minCTAs > 0) &&
                (c->maxCTAs == undefined || (c->maxCTAs > 0 && c->minCTAs <= c->maxCTAs)));
}
EMU(ncclResult_t) emu_nccl_pay(EmuNcclComm *c) {
  const bool first = !c->family->bytes && c->world > 1;
  return emu_nccl_take(c->family.get(), EMU_NCCL_COMM_BYTES + first * EMU_NCCL_OPEN_BYTES)
             ? ncclSuccess : ncclUnhandledCudaError;
}
EMU(ncclResult_t)
ncclCommInitRankConfig(ncclComm_t *to, int world, ncclUniqueId id, int rank, ncclConfig_t *config) {
  emu_nccl_alone("ncclCommInitRankConfig");
  EmuNcclId given;
  memcpy(&given, &id, sizeof given);
  EMU_NCCL_NEED(to && !memcmp(given.magic, "emuNccl", 8), Argument, "an id that ncclGetUniqueId did not make");
  EMU_NCCL_NEED(world > 0 && rank >= 0 && rank < world, Argument, "rank is not within the world");
  EMU_NCCL_NEED(emu_nccl_config_holds(config), Argument, "a configuration without NCCL_CONFIG_INITIALIZER");
  EMU_NCCL_NEED(emu_nccl_depth == 0, Usage, "a communicator is opened within a group");
  int up = 0;
  MPI_Initialized(&up);
  EMU_NCCL_NEED(world == 1 || up, Usage, "more than one rank, but MPI is not up");
  ncclComm_t comm = *to = emu_nccl_new(rank, world, NULL, config);
  const std::shared_ptr<EmuNcclMeeting> m = std::make_shared<EmuNcclMeeting>();
  m->id = given;
  m->me = {given.token, rank, world, emu_nccl_world_rank()};
  m->ranks.assign((size_t)world, -1);
  m->welcome = MPI_REQUEST_NULL;
  return emu_nccl_begin({comm}, {}, [=](EmuNcclJob *job) {
    if (world > 1 && !emu_nccl_meet(comm, m.get())) return false;
    job->result = emu_nccl_pay(comm);
    return true;
  });
}
// Ranks of one color, by key and then by rank. The new communicator is there when the old one is ready again, and then
// has to be asked itself.
struct EmuNcclSplit { int mine[2]; std::vector<int> all; bool asked; MPI_Request request; };
EMU(ncclComm_t) emu_nccl_split_now(ncclComm_t from, const EmuNcclSplit *x, const ncclConfig_t *config) {
  std::vector<int> members;
  for (int r = 0; r < from->world; r++) if (x->all[(size_t)r * 2] == x->mine[0]) members.push_back(r);
  std::stable_sort(members.begin(), members.end(),
                   [=](int a, int b) { return x->all[(size_t)a * 2 + 1] < x->all[(size_t)b * 2 + 1]; });
  const int rank = (int)(std::find(members.begin(), members.end(), from->rank) - members.begin());
  if (x->mine[0] == NCCL_SPLIT_NOCOLOR) return NULL;
  ncclComm_t c = emu_nccl_new(rank, (int)members.size(), from, config);
  if (c->world == 1) return c;
  MPI_Group all, group;
  MPI_Comm_group(from->mpi, &all);
  MPI_Group_incl(all, c->world, members.data(), &group);
  MPI_Comm_create_group(from->mpi, group, EMU_NCCL_MAKE, &c->mpi);
  MPI_Group_free(&group);
  MPI_Group_free(&all);
  return c;
}
EMU(ncclResult_t) ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *to, ncclConfig_t *config) {
  emu_nccl_alone("ncclCommSplit");
  EMU_NCCL_NEED(comm && to && emu_nccl_ready(comm), Argument, "no communicator, or one that is not ready");
  EMU_NCCL_NEED(color >= 0 || color == NCCL_SPLIT_NOCOLOR, Argument, "a color below 0");
  EMU_NCCL_NEED(emu_nccl_config_holds(config), Argument, "a configuration without NCCL_CONFIG_INITIALIZER");
  EMU_NCCL_NEED(emu_nccl_depth == 0, Usage, "a communicator is split within a group");
  if (comm->uses.use_count() > 1) emu_fail("ncclCommSplit: calls of the communicator are outstanding");
  const std::shared_ptr<EmuNcclSplit> x = std::make_shared<EmuNcclSplit>();
  const ncclConfig_t none = NCCL_CONFIG_INITIALIZER, given = config ? *config : none;
  *x = {{color, key}, std::vector<int>((size_t)comm->world * 2), false, MPI_REQUEST_NULL};
  *to = NULL;
  return emu_nccl_begin({comm}, {}, [=](EmuNcclJob *job) {
    int here = 1;
    if (comm->world == 1) x->all = {color, key};
    else if (!x->asked) MPI_Iallgather(x->mine, 2, MPI_INT, x->all.data(), 2, MPI_INT, comm->mpi, &x->request);
    x->asked = true;
    if (comm->world > 1) MPI_Test(&x->request, &here, MPI_STATUS_IGNORE);
    if (!here) return false;
    ncclComm_t made = emu_nccl_split_now(comm, x.get(), &given);
    if (made) job->result = emu_nccl_pay(made);
    if (made && !made->blocking) emu_nccl_begin({made}, {}, [](EmuNcclJob *) { return true; });
    *to = made;
    return true;
  });
}
EMU(ncclResult_t) ncclCommFinalize(ncclComm_t comm) {
  emu_nccl_alone("ncclCommFinalize");
  EMU_NCCL_NEED(comm && emu_nccl_ready(comm) && !comm->finalized, Argument, "no communicator, or finalized before");
  EMU_NCCL_NEED(emu_nccl_depth == 0, Usage, "a communicator is closed within a group");
  comm->finalized = true;
  return emu_nccl_begin({comm}, {}, [=](EmuNcclJob *) {
    if (comm->uses.use_count() == 1) return true;
    if (emu_all_empty()) emu_fail("ncclCommFinalize: a graph still holds calls of the communicator: it waits for ever");
    emu_enter();
    emu_move();
    emu_leave();
    return false;
  });
}
// The rest is done behind the program's back: nothing can be asked any more.
EMU(ncclResult_t) ncclCommDestroy(ncclComm_t comm) {
  emu_nccl_alone("ncclCommDestroy");
  EMU_NCCL_NEED(comm && emu_nccl_ready(comm), Argument, "no communicator, or one that is not ready");
  EMU_NCCL_NEED(emu_nccl_depth == 0, Usage, "a communicator is closed within a group");
  if (!comm->finalized) emu_fail("ncclCommDestroy without ncclCommFinalize: it would wait for other ranks");
  const bool blocking = comm->blocking;
  if (comm->mpi != MPI_COMM_NULL) MPI_Comm_free(&comm->mpi);
  delete comm;
  return blocking || ++emu_nccl_begun % 2 ? ncclSuccess : ncclInProgress;
}

// ---- parts ---------------------------------------------------------------------------------------------------------
enum EmuNcclKind {
  EMU_NCCL_ALL_GATHER, EMU_NCCL_REDUCE_SCATTER, EMU_NCCL_ALL_REDUCE, EMU_NCCL_BROADCAST, EMU_NCCL_SEND,
  EMU_NCCL_RECEIVE
};
struct EmuNcclPart {
  EmuNcclKind kind;
  const char *from;
  char *to;
  size_t bytes;                                  // of one rank
  ncclDataType_t type;
  int peer;                                      // of a message; the root of a broadcast
};
struct EmuNcclHeader { uint64_t kind, sequence, bytes, type, root; };
struct EmuNcclMessage {
  EmuNcclHeader header, other;                   // what this side does, what the peer says it does
  int peer, tag;
  bool sends, data_posted, done;
  MPI_Request request[2];                        // header, data
  std::vector<char> data;
};
struct EmuNcclRun {                              // one call or group, while its stream waits at it
  bool posted;
  std::vector<EmuNcclMessage> messages;
  std::vector<std::vector<char>> sources;        // contents when posted
  std::vector<uint64_t> sequence;                // by part
};

EMU(size_t) emu_nccl_type_bytes(ncclDataType_t t) { return t == ncclUint8 ? 1 : t == ncclFloat32 ? 4 : 2; }
EMU(const char *) emu_nccl_kind_name(uint64_t kind) {
  return kind == EMU_NCCL_ALL_GATHER       ? "ncclAllGather"
         : kind == EMU_NCCL_REDUCE_SCATTER ? "ncclReduceScatter"
         : kind == EMU_NCCL_ALL_REDUCE     ? "ncclAllReduce"
         : kind == EMU_NCCL_BROADCAST      ? "ncclBroadcast"
                                           : "ncclSend/Recv";
}
EMU(bool) emu_nccl_pair(const EmuNcclPart &p) { return p.kind == EMU_NCCL_SEND || p.kind == EMU_NCCL_RECEIVE; }
EMU(bool) emu_nccl_sums(const EmuNcclPart &p) {
  return p.kind == EMU_NCCL_REDUCE_SCATTER || p.kind == EMU_NCCL_ALL_REDUCE;
}
// Bytes that a rank gives to each of the others.
EMU(size_t) emu_nccl_given_bytes(const EmuNcclPart &p, int rank) {
  return p.kind == EMU_NCCL_BROADCAST && rank != p.peer ? 0 : p.bytes;
}
EMU(size_t) emu_nccl_source_bytes(const EmuNcclPart &p, ncclComm_t comm) {
  if (p.kind == EMU_NCCL_RECEIVE) return 0;
  return p.kind == EMU_NCCL_REDUCE_SCATTER ? p.bytes * (size_t)comm->world : emu_nccl_given_bytes(p, comm->rank);
}
EMU(size_t) emu_nccl_result_bytes(const EmuNcclPart &p, ncclComm_t comm) {
  return p.kind == EMU_NCCL_SEND ? 0 : p.kind == EMU_NCCL_ALL_GATHER ? p.bytes * (size_t)comm->world : p.bytes;
}
// `a` without `b`, which is inside it or outside: two ranges, of which either may be empty.
struct EmuNcclRange { const char *data; size_t bytes; };
struct EmuNcclRanges { EmuNcclRange part[2]; };
EMU(EmuNcclRanges) emu_nccl_without(EmuNcclRange a, EmuNcclRange b) {
  if (!b.bytes || b.data < a.data || b.data >= a.data + a.bytes) return {{a, {a.data, 0}}};
  const char *behind = b.data + b.bytes;
  return {{{a.data, (size_t)(b.data - a.data)}, {behind, (size_t)(a.data + a.bytes - behind)}}};
}
// In place, data that is only sent stays in place; data that is summed is overwritten on the way.
EMU(EmuNcclRanges) emu_nccl_overwritten(const EmuNcclPart &p, ncclComm_t comm) {
  return emu_nccl_without({p.to, emu_nccl_result_bytes(p, comm)},
                          {p.from, emu_nccl_sums(p) ? 0 : emu_nccl_source_bytes(p, comm)});
}
EMU(EmuNcclRanges) emu_nccl_kept(const EmuNcclPart &p, ncclComm_t comm) {
  return emu_nccl_without({p.from, emu_nccl_source_bytes(p, comm)},
                          {p.to, emu_nccl_sums(p) ? emu_nccl_result_bytes(p, comm) : 0});
}
EMU(void)
emu_nccl_message(EmuNcclRun *run, ncclComm_t comm, const EmuNcclPart &p, uint64_t sequence, int peer, bool sends,
                 const char *data) {
  uint32_t *count = sends ? &comm->sent[(size_t)peer] : &comm->received[(size_t)peer];
  EmuNcclMessage m = {};
  m.header = {p.kind == EMU_NCCL_RECEIVE ? (uint64_t)EMU_NCCL_SEND : (uint64_t)p.kind, sequence, p.bytes,
              (uint64_t)p.type, p.kind == EMU_NCCL_BROADCAST ? (uint64_t)p.peer : 0};
  m.peer = peer;
  m.tag = (int)(2 * ((*count)++ % (1 << 14)));
  m.sends = sends;
  m.data_posted = sends;
  m.done = false;
  m.request[0] = m.request[1] = MPI_REQUEST_NULL;
  if (sends) m.data.assign(data, data + emu_nccl_given_bytes(p, comm->rank));
  else m.data.resize(emu_nccl_given_bytes(p, peer));
  run->messages.push_back(std::move(m));
}
// Starts one part: lists its messages and fills the memory that it will overwrite with NaN.
EMU(void) emu_nccl_post_part(EmuNcclRun *run, ncclComm_t comm, const EmuNcclPart &p) {
  const size_t source = emu_nccl_source_bytes(p, comm);
  const bool pair = emu_nccl_pair(p);
  const uint64_t sequence = pair ? 0 : comm->calls++;
  run->sequence.push_back(sequence);
  run->sources.push_back(std::vector<char>(p.from, p.from + source));
  for (int peer = 0; peer < comm->world; peer++) {
    if (peer == comm->rank || (pair && peer != p.peer)) continue;
    if (p.kind != EMU_NCCL_RECEIVE)
      emu_nccl_message(run, comm, p, sequence, peer, true,
                       p.from + (p.kind == EMU_NCCL_REDUCE_SCATTER ? (size_t)peer * p.bytes : 0));
    if (p.kind != EMU_NCCL_SEND) emu_nccl_message(run, comm, p, sequence, peer, false, NULL);
  }
  for (EmuNcclRange r : emu_nccl_overwritten(p, comm).part) if (r.bytes) memset((char *)r.data, 0xff, r.bytes);
}
EMU(void) emu_nccl_post(EmuNcclRun *run, ncclComm_t comm, const std::vector<EmuNcclPart> &parts) {
  run->messages.clear();
  run->sources.clear();
  run->sequence.clear();
  for (const EmuNcclPart &p : parts) emu_nccl_post_part(run, comm, p);
  for (EmuNcclMessage &m : run->messages) {      // from here no message moves: MPI keeps their addresses
    if (m.sends) {
      MPI_Issend(&m.header, sizeof m.header, MPI_BYTE, m.peer, m.tag, comm->mpi, &m.request[0]);
      MPI_Issend(m.data.data(), (int)m.data.size(), MPI_BYTE, m.peer, m.tag + 1, comm->mpi, &m.request[1]);
    } else {
      MPI_Irecv(&m.other, sizeof m.other, MPI_BYTE, m.peer, m.tag, comm->mpi, &m.request[0]);
    }
  }
  run->posted = true;
}
EMU(void) emu_nccl_compare(ncclComm_t comm, const EmuNcclMessage &m) {
  if (!memcmp(&m.header, &m.other, sizeof m.header)) return;
  fprintf(stderr,
          "cuda_emu: nccl: rank %d is in %s, call %llu of its communicator, %llu bytes of type %llu, root %llu; rank "
          "%d sent for %s, call %llu, %llu bytes of type %llu, root %llu\n",
          comm->rank, emu_nccl_kind_name(m.header.kind), (unsigned long long)m.header.sequence,
          (unsigned long long)m.header.bytes, (unsigned long long)m.header.type,
          (unsigned long long)m.header.root, m.peer, emu_nccl_kind_name(m.other.kind),
          (unsigned long long)m.other.sequence, (unsigned long long)m.other.bytes, (unsigned long long)m.other.type,
          (unsigned long long)m.other.root);
  emu_fail("nccl: ranks of one communicator do different things");
}
EMU(bool) emu_nccl_done(EmuNcclRun *run, ncclComm_t comm) {
  bool all = true;
  for (EmuNcclMessage &m : run->messages) {
    if (m.done) continue;
    int done = 0;
    if (!m.data_posted) {
      MPI_Test(&m.request[0], &done, MPI_STATUS_IGNORE);
      if (!done) { all = false; continue; }
      emu_nccl_compare(comm, m);
      MPI_Irecv(m.data.data(), (int)m.data.size(), MPI_BYTE, m.peer, m.tag + 1, comm->mpi, &m.request[1]);
      m.data_posted = true;
    }
    MPI_Testall(2, m.request, &done, MPI_STATUSES_IGNORE);
    m.done = done != 0;
    all &= m.done;
  }
  return all;
}

// ---- results -------------------------------------------------------------------------------------------------------
// The sum of a ring's chunk that ends at rank `last`: it starts at the rank before, goes down, and adds its own term at
// the end. A partial sum is rounded to the dtype.
template <class T>
inline void emu_nccl_sum(char *to, const std::vector<const char *> &from, int last, size_t first, size_t end) {
  const int world = (int)from.size();
  for (size_t i = first; i < end; i++) {
    T sum = ((const T *)from[(size_t)((last + world - 1) % world)])[i];
    for (int k = 2; k <= world; k++)
      round_to(&sum, to_f32(sum) + to_f32(((const T *)from[(size_t)((last + world - k) % world)])[i]));
    ((T *)to)[i - first] = sum;
  }
}
EMU(void) emu_nccl_ring(const EmuNcclPart &p, const std::vector<const char *> &from, int last, size_t first,
                        size_t end) {
  char *to = p.to + (p.kind == EMU_NCCL_ALL_REDUCE ? first * emu_nccl_type_bytes(p.type) : 0);
  if (p.type == ncclFloat32) emu_nccl_sum<float>(to, from, last, first, end);
  else if (p.type == ncclBfloat16) emu_nccl_sum<bf16>(to, from, last, first, end);
  else emu_nccl_sum<fp16>(to, from, last, first, end);
}
// Checks that no one else wrote the memory that is being sent or received.
EMU(void) emu_nccl_check_memory(const EmuNcclPart &p, ncclComm_t comm, const std::vector<char> &source) {
  for (EmuNcclRange r : emu_nccl_kept(p, comm).part)
    if (r.bytes && memcmp(r.data, source.data() + (r.data - p.from), r.bytes))
      emu_fail("nccl: what is being sent was changed before the call was done");
  for (EmuNcclRange r : emu_nccl_overwritten(p, comm).part)
    if (r.bytes && !emu_untouched(r.data, r.bytes))
      emu_fail("nccl: what is being received was changed before the call was done");
}
EMU(void) emu_nccl_finish_part(EmuNcclRun *run, ncclComm_t comm, const EmuNcclPart &p, size_t index, size_t *message) {
  const std::vector<char> &source = run->sources[index];
  const size_t n = p.bytes / emu_nccl_type_bytes(p.type), world = (size_t)comm->world, rank = (size_t)comm->rank;
  emu_nccl_check_memory(p, comm, source);
  std::vector<const char *> from(world);
  for (int peer = 0; peer < comm->world; peer++) {
    if (peer == comm->rank || (emu_nccl_pair(p) && peer != p.peer)) continue;
    if (p.kind != EMU_NCCL_RECEIVE) ++*message;
    if (p.kind != EMU_NCCL_SEND) from[(size_t)peer] = run->messages[(*message)++].data.data();
  }
  from[rank] = source.data() + (p.kind == EMU_NCCL_REDUCE_SCATTER ? rank * p.bytes : 0);
  if (!p.bytes) return;
  switch (p.kind) {
    case EMU_NCCL_ALL_GATHER: for (size_t r = 0; r < world; r++) memcpy(p.to + r * p.bytes, from[r], p.bytes); break;
    case EMU_NCCL_REDUCE_SCATTER: emu_nccl_ring(p, from, comm->rank, 0, n); break;
    case EMU_NCCL_ALL_REDUCE:
      for (size_t r = 0; r < world; r++) emu_nccl_ring(p, from, (int)r, n * r / world, n * (r + 1) / world);
      break;
    case EMU_NCCL_BROADCAST: memcpy(p.to, from[(size_t)p.peer], p.bytes); break;
    case EMU_NCCL_RECEIVE: if (p.peer != comm->rank) memcpy(p.to, from[(size_t)p.peer], p.bytes); break;
    case EMU_NCCL_SEND: break;
  }
}
// Messages to the own rank: the n-th send matches the n-th receive.
EMU(void) emu_nccl_finish_self(EmuNcclRun *run, ncclComm_t comm, const std::vector<EmuNcclPart> &parts) {
  std::vector<size_t> sends;
  size_t next = 0;
  for (size_t i = 0; i < parts.size(); i++)
    if (parts[i].kind == EMU_NCCL_SEND && parts[i].peer == comm->rank) sends.push_back(i);
  for (const EmuNcclPart &p : parts) {
    if (p.kind != EMU_NCCL_RECEIVE || p.peer != comm->rank) continue;
    if (next == sends.size() || run->sources[sends[next]].size() != p.bytes)
      emu_fail("nccl: a message to oneself and its receive differ");
    memcpy(p.to, run->sources[sends[next++]].data(), p.bytes);
  }
  if (next != sends.size()) emu_fail("nccl: a message to oneself is not received in its group");
}
EMU(void) emu_nccl_finish(EmuNcclRun *run, ncclComm_t comm, const std::vector<EmuNcclPart> &parts) {
  size_t message = 0;
  for (size_t i = 0; i < parts.size(); i++) emu_nccl_finish_part(run, comm, parts[i], i, &message);
  emu_nccl_finish_self(run, comm, parts);
  run->posted = false;                           // a graph may run this again
}

// ---- calls ---------------------------------------------------------------------------------------------------------
struct EmuNcclGroup { ncclComm_t comm; cudaStream_t stream; std::vector<EmuNcclPart> parts; };
inline std::vector<EmuNcclGroup> emu_nccl_groups;                // of the open group, one per communicator

EMU(void) emu_nccl_enqueue(ncclComm_t comm, cudaStream_t stream, const std::vector<EmuNcclPart> &parts) {
  const std::shared_ptr<EmuNcclRun> run = std::make_shared<EmuNcclRun>();
  const std::shared_ptr<int> use = comm->uses;
  run->posted = false;
  emu_push(stream, "nccl", [run, comm, parts, use] {
    if (!run->posted) emu_nccl_post(run.get(), comm, parts);
    if (emu_nccl_queries_to_loss) return false;
    if (!emu_nccl_done(run.get(), comm)) return false;
    emu_nccl_finish(run.get(), comm, parts);
    return true;
  });
}
// The first call of a kind and size makes connections.
EMU(bool) emu_nccl_connect(ncclComm_t comm, const std::vector<EmuNcclPart> &parts) {
  for (const EmuNcclPart &p : parts) {
    const bool pair = emu_nccl_pair(p), large = !pair && p.bytes >= EMU_NCCL_LARGE;
    const unsigned bit = 1u << (2 * (pair ? (int)EMU_NCCL_SEND : (int)p.kind) + large);
    if (comm->world == 1 || comm->family->connected & bit) continue;
    if (!emu_nccl_take(comm->family.get(), EMU_NCCL_CONNECT_BYTES)) return false;
    comm->family->connected |= bit;
  }
  return true;
}
EMU(ncclResult_t) emu_nccl_add(ncclComm_t comm, cudaStream_t stream, const EmuNcclPart &p) {
  for (EmuNcclGroup &g : emu_nccl_groups) {
    if (g.comm != comm) continue;
    if (g.stream != stream) emu_fail("nccl: a communicator on several streams within a group is not emulated");
    g.parts.push_back(p);
    return ncclSuccess;
  }
  emu_nccl_groups.push_back({comm, stream, {p}});
  return ncclSuccess;
}
// To the streams, in the background where communicators are nonblocking.
EMU(ncclResult_t) emu_nccl_issue(const std::vector<EmuNcclGroup> &groups) {
  std::vector<ncclComm_t> comms;
  std::vector<EmuStream *> streams;
  for (const EmuNcclGroup &g : groups) {
    EMU_NCCL_NEED(g.comm->blocking == groups[0].comm->blocking, Usage, "blocking and nonblocking ones in a group");
    comms.push_back(g.comm);
    streams.push_back(emu_stream(g.stream));
  }
  if (groups.empty()) return ncclSuccess;
  return emu_nccl_begin(comms, streams, [=](EmuNcclJob *job) {
    for (const EmuNcclGroup &g : groups) {
      if (!emu_nccl_connect(g.comm, g.parts)) job->result = ncclUnhandledCudaError;
      else emu_nccl_enqueue(g.comm, g.stream, g.parts);
    }
    return true;
  });
}
EMU(ncclResult_t) emu_nccl_call(ncclComm_t comm, cudaStream_t stream, EmuNcclPart p) {
  if (!emu_nccl_depth) emu_nccl_alone(emu_nccl_kind_name(p.kind));
  EMU_NCCL_NEED(comm && emu_nccl_ready(comm), Argument, "no communicator, or one that is not ready");
  EMU_NCCL_NEED(p.peer >= 0 && p.peer < comm->world, Argument, "the peer is not a rank of the communicator");
  EMU_NCCL_NEED(p.bytes <= INT_MAX / 2, Argument, "more bytes than the emulation sends at once");
  const size_t source = emu_nccl_source_bytes(p, comm), result = emu_nccl_result_bytes(p, comm);
  EMU_NCCL_NEED((!source || p.from) && (!result || p.to), Argument, "a buffer is missing");
  emu_device_pointer(p.from, "nccl");
  emu_device_pointer(p.to, "nccl");
  const char *in_place = p.kind == EMU_NCCL_ALL_GATHER ? p.to + (size_t)comm->rank * p.bytes
                         : p.kind == EMU_NCCL_REDUCE_SCATTER ? p.to - (size_t)comm->rank * p.bytes
                         : emu_nccl_pair(p) ? NULL : p.to;
  if (source && result && p.from != in_place && p.from < p.to + result && p.to < p.from + source)
    emu_fail("nccl: source and result overlap, but not as in place is defined");
  if (emu_nccl_depth) return emu_nccl_add(comm, stream, p);
  EMU_NCCL_NEED(!emu_nccl_pair(p) || p.peer != comm->rank, Usage, "a message to oneself outside of a group");
  return emu_nccl_issue({{comm, stream, {p}}});
}
EMU(ncclResult_t) ncclGroupStart() {
  emu_nccl_alone("ncclGroupStart");
  emu_nccl_depth++;
  return ncclSuccess;
}
EMU(ncclResult_t) ncclGroupEnd() {
  EMU_NCCL_NEED(emu_nccl_depth > 0, Usage, "ncclGroupEnd without ncclGroupStart");
  if (--emu_nccl_depth) return ncclSuccess;
  std::vector<EmuNcclGroup> groups;
  groups.swap(emu_nccl_groups);
  return emu_nccl_issue(groups);
}
EMU(ncclResult_t)
ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  return emu_nccl_call(comm, stream, {EMU_NCCL_ALL_GATHER, (const char *)from, (char *)to,
                                      count * emu_nccl_type_bytes(type), type, 0});
}
EMU(ncclResult_t)
ncclReduceScatter(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                  cudaStream_t stream) {
  EMU_NCCL_NEED(op == ncclSum && type != ncclUint8, Argument, "a reduction that is not emulated");
  return emu_nccl_call(comm, stream, {EMU_NCCL_REDUCE_SCATTER, (const char *)from, (char *)to,
                                      count * emu_nccl_type_bytes(type), type, 0});
}
EMU(ncclResult_t)
ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
              cudaStream_t stream) {
  EMU_NCCL_NEED(op == ncclSum && type != ncclUint8, Argument, "a reduction that is not emulated");
  return emu_nccl_call(comm, stream, {EMU_NCCL_ALL_REDUCE, (const char *)from, (char *)to,
                                      count * emu_nccl_type_bytes(type), type, 0});
}
EMU(ncclResult_t)
ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
              cudaStream_t stream) {             // `from` matters on the root only
  return emu_nccl_call(comm, stream, {EMU_NCCL_BROADCAST, comm && comm->rank == root ? (const char *)from : NULL,
                                      (char *)to, count * emu_nccl_type_bytes(type), type, root});
}
EMU(ncclResult_t)
ncclSend(const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return emu_nccl_call(comm, stream,
                       {EMU_NCCL_SEND, (const char *)from, NULL, count * emu_nccl_type_bytes(type), type, peer});
}
EMU(ncclResult_t)
ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return emu_nccl_call(comm, stream,
                       {EMU_NCCL_RECEIVE, NULL, (char *)to, count * emu_nccl_type_bytes(type), type, peer});
}

// ---- emu.h
#if EMU_ONCE
int emu_nccl_blocks() { return emu_nccl_blocks_now; }
void emu_set_nccl_version(int version) { emu_nccl_version_now = version; }
int64_t emu_nccl_in_progress() { return emu_nccl_asked; }
void emu_nccl_lose(int queries) { emu_nccl_queries_to_loss = queries; }
#endif
