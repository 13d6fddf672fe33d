// nccl.h of the emulation: NCCL between the ranks of mpirun, as adversarial as its manual allows.
//
//   - A call, or a whole group, is posted when its stream reaches it and done when all its parts are; until then the
//     stream stands still and the host does not. Sends are synchronous: a message without its receive blocks, as on a
//     GPU.
//   - Every part is a set of messages, each behind a header (kind, sequence number of the communicator, bytes). What
//     ranks do not do alike ends the program with both sides' headers.
//   - Data goes through buffers of this process, because emulated device memory is out of reach for other processes.
//     What is being received reads as NaN until the part is done; what is being sent must not change until then.
//   - ncclReduceScatter adds in an order that is not the ranks'.
//   - A communicator's ranks find each other by its id: a random number and the world rank that drew it.
//
// One process is one rank, and a group uses one communicator and one stream: what this program does.
#pragma once
#include <cuda_runtime.h>
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
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7
} ncclResult_t;
typedef enum { ncclUint8 = 1, ncclFloat16 = 6, ncclFloat32 = 7, ncclBfloat16 = 9 } ncclDataType_t;
typedef enum { ncclSum = 0 } ncclRedOp_t;
typedef struct { char internal[NCCL_UNIQUE_ID_BYTES]; } ncclUniqueId;

struct EmuNcclComm {
  MPI_Comm mpi;                                  // MPI_COMM_NULL for one rank
  int rank, world;
  uint64_t calls;                                // collectives so far: their sequence number
  std::vector<uint32_t> sent, received;          // messages so far, by peer: their tags
};
typedef EmuNcclComm *ncclComm_t;

// ---- errors --------------------------------------------------------------------------------------------------------
static std::string emu_nccl_error = "";
static int emu_nccl_queries_to_loss;             // ncclCommGetAsyncError that many times from now reports it; 0: never
EMU(ncclResult_t) emu_nccl_refuse(ncclResult_t r, const char *why) {
  emu_nccl_error = why;
  return r;
}
#define EMU_NCCL_NEED(cond, result, why) do { if (!(cond)) return emu_nccl_refuse(ncclInvalid##result, why); } while (0)
EMU(const char *) ncclGetErrorString(ncclResult_t r) {
  return r == ncclSuccess           ? "no error"
         : r == ncclInvalidArgument ? "invalid argument"
         : r == ncclInvalidUsage    ? "invalid usage"
         : r == ncclRemoteError     ? "remote process exited or there was a network error"
                                    : "NCCL operation in progress";
}
EMU(const char *) ncclGetLastError(ncclComm_t) { return emu_nccl_error.c_str(); }
EMU(ncclResult_t) ncclGetVersion(int *version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
EMU(ncclResult_t) ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *failed) {
  EMU_NCCL_NEED(comm && failed, Argument, "no communicator");
  *failed = emu_nccl_queries_to_loss > 0 && !--emu_nccl_queries_to_loss ? ncclRemoteError : ncclSuccess;
  return ncclSuccess;
}
void emu_nccl_lose(int queries) { emu_nccl_queries_to_loss = queries; }

// ---- communicators -------------------------------------------------------------------------------------------------
struct EmuNcclId { char magic[8]; uint64_t token; int32_t world_rank, reserved; };
struct EmuNcclHello { uint64_t token; int32_t rank, world, world_rank; };
enum { EMU_NCCL_HELLO = 21001, EMU_NCCL_WELCOME = 21002, EMU_NCCL_MAKE = 21003 };
static int emu_nccl_depth;                       // of ncclGroupStart

EMU(int) emu_nccl_world_rank() {
  int up = 0, rank = 0;
  MPI_Initialized(&up);
  if (up) MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}
EMU(ncclResult_t) ncclGetUniqueId(ncclUniqueId *id) {
  static uint64_t drawn;
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  const EmuNcclId made = {"emuNccl",
                          ((uint64_t)now.tv_sec << 32 ^ (uint64_t)now.tv_nsec << 16 ^ (uint64_t)getpid()) + ++drawn,
                          emu_nccl_world_rank(), 0};
  memset(id, 0, sizeof *id);
  memcpy(id, &made, sizeof made);
  return ncclSuccess;
}
// The rank that drew the id hears who the others are and tells all of them.
EMU(void) emu_nccl_meet(ncclComm_t comm, const EmuNcclId *id) {
  const EmuNcclHello me = {id->token, comm->rank, comm->world, emu_nccl_world_rank()};
  std::vector<int> ranks((size_t)comm->world, -1);
  if (me.world_rank == id->world_rank) {
    ranks[(size_t)comm->rank] = me.world_rank;
    for (int i = 1; i < comm->world; i++) {
      EmuNcclHello h;
      MPI_Recv(&h, sizeof h, MPI_BYTE, MPI_ANY_SOURCE, EMU_NCCL_HELLO, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      if (h.token != id->token || h.world != comm->world)
        emu_fail("ncclCommInitRank: ranks disagree on the id or the world");
      if (h.rank < 0 || h.rank >= comm->world || ranks[(size_t)h.rank] >= 0)
        emu_fail("ncclCommInitRank: a rank came twice");
      ranks[(size_t)h.rank] = h.world_rank;
    }
    for (int r : ranks)
      if (r != me.world_rank) MPI_Send(ranks.data(), comm->world, MPI_INT, r, EMU_NCCL_WELCOME, MPI_COMM_WORLD);
  } else {
    MPI_Send(&me, sizeof me, MPI_BYTE, id->world_rank, EMU_NCCL_HELLO, MPI_COMM_WORLD);
    MPI_Recv(ranks.data(), comm->world, MPI_INT, id->world_rank, EMU_NCCL_WELCOME, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  }
  MPI_Group world, group;
  MPI_Comm_group(MPI_COMM_WORLD, &world);
  MPI_Group_incl(world, comm->world, ranks.data(), &group);
  MPI_Comm_create_group(MPI_COMM_WORLD, group, EMU_NCCL_MAKE, &comm->mpi);
  MPI_Group_free(&group);
  MPI_Group_free(&world);
}
EMU(ncclResult_t) ncclCommInitRank(ncclComm_t *to, int world, ncclUniqueId id, int rank) {
  EmuNcclId given;
  memcpy(&given, &id, sizeof given);
  EMU_NCCL_NEED(to && !memcmp(given.magic, "emuNccl", 8), Argument, "an id that ncclGetUniqueId did not make");
  EMU_NCCL_NEED(world > 0 && rank >= 0 && rank < world, Argument, "rank is not within the world");
  EMU_NCCL_NEED(emu_nccl_depth == 0, Usage, "a communicator is opened within a group");
  int up = 0;
  MPI_Initialized(&up);
  EMU_NCCL_NEED(world == 1 || up, Usage, "more than one rank, but MPI is not up");
  *to = new EmuNcclComm{MPI_COMM_NULL, rank, world, 0, std::vector<uint32_t>((size_t)world),
                        std::vector<uint32_t>((size_t)world)};
  if (world > 1) emu_nccl_meet(*to, &given);
  return ncclSuccess;
}
EMU(ncclResult_t) ncclCommDestroy(ncclComm_t comm) {
  EMU_NCCL_NEED(comm, Argument, "no communicator");
  EMU_NCCL_NEED(emu_nccl_depth == 0, Usage, "a communicator is closed within a group");
  if (comm->mpi != MPI_COMM_NULL) MPI_Comm_free(&comm->mpi);
  delete comm;
  return ncclSuccess;
}

// ---- parts ---------------------------------------------------------------------------------------------------------
enum EmuNcclKind { EMU_NCCL_ALL_GATHER, EMU_NCCL_REDUCE_SCATTER, EMU_NCCL_SEND, EMU_NCCL_RECEIVE };
struct EmuNcclPart {
  EmuNcclKind kind;
  const char *from;
  char *to;
  size_t bytes;                                  // of one rank
  ncclDataType_t type;
  int peer;
};
struct EmuNcclHeader { uint64_t kind, sequence, bytes, type; };
struct EmuNcclMessage {
  EmuNcclHeader header, other;                   // what this side is doing, what the peer says it is doing
  int peer, tag;
  bool sends, data_posted, done;
  MPI_Request request[2];                        // header, data
  std::vector<char> data;
};
struct EmuNcclRun {                              // one call or group, while its stream stands at it
  bool posted;
  std::vector<EmuNcclMessage> messages;
  std::vector<std::vector<char>> sources;        // as they were when posted
  std::vector<uint64_t> sequence;                // by part
};

EMU(size_t) emu_nccl_type_bytes(ncclDataType_t t) { return t == ncclUint8 ? 1 : t == ncclFloat32 ? 4 : 2; }
EMU(const char *) emu_nccl_kind_name(uint64_t kind) {
  return kind == EMU_NCCL_ALL_GATHER       ? "ncclAllGather"
         : kind == EMU_NCCL_REDUCE_SCATTER ? "ncclReduceScatter"
                                           : "ncclSend/Recv";
}
EMU(size_t) emu_nccl_source_bytes(const EmuNcclPart &p, int world) {
  return p.kind == EMU_NCCL_RECEIVE ? 0 : p.kind == EMU_NCCL_REDUCE_SCATTER ? p.bytes * (size_t)world : p.bytes;
}
EMU(size_t) emu_nccl_result_bytes(const EmuNcclPart &p, int world) {
  return p.kind == EMU_NCCL_SEND ? 0 : p.kind == EMU_NCCL_ALL_GATHER ? p.bytes * (size_t)world : p.bytes;
}
EMU(void)
emu_nccl_message(EmuNcclRun *run, ncclComm_t comm, const EmuNcclPart &p, uint64_t sequence, int peer, bool sends,
                 const char *data) {
  uint32_t *count = sends ? &comm->sent[(size_t)peer] : &comm->received[(size_t)peer];
  EmuNcclMessage m = {};
  m.header = {p.kind == EMU_NCCL_RECEIVE ? (uint64_t)EMU_NCCL_SEND : (uint64_t)p.kind, sequence, p.bytes,
              (uint64_t)p.type};
  m.peer = peer;
  m.tag = (int)(2 * ((*count)++ % (1 << 14)));
  m.sends = sends;
  m.data_posted = sends;
  m.done = false;
  m.request[0] = m.request[1] = MPI_REQUEST_NULL;
  if (sends) m.data.assign(data, data + p.bytes);
  else m.data.resize(p.bytes);
  run->messages.push_back(std::move(m));
}
// Starts one part: its messages are listed, what it will overwrite turns into NaN.
EMU(void) emu_nccl_post_part(EmuNcclRun *run, ncclComm_t comm, const EmuNcclPart &p) {
  const size_t source = emu_nccl_source_bytes(p, comm->world), result = emu_nccl_result_bytes(p, comm->world);
  const bool pair = p.kind == EMU_NCCL_SEND || p.kind == EMU_NCCL_RECEIVE;
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
  // In place, the part of the result that is also the source stays.
  for (char *x = p.to; x < p.to + result; x++) if (!source || x < p.from || x >= p.from + source) *x = (char)0xff;
}
EMU(void) emu_nccl_post(EmuNcclRun *run, ncclComm_t comm, const std::vector<EmuNcclPart> &parts) {
  run->messages.clear();
  run->sources.clear();
  run->sequence.clear();
  for (const EmuNcclPart &p : parts) emu_nccl_post_part(run, comm, p);
  for (EmuNcclMessage &m : run->messages) {      // no message moves any more: MPI keeps their addresses
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
          "cuda_emu: nccl: rank %d is in %s, call %llu of its communicator, %llu bytes of type %llu; rank %d sent for "
          "%s, call %llu, %llu bytes of type %llu\n",
          comm->rank, emu_nccl_kind_name(m.header.kind), (unsigned long long)m.header.sequence,
          (unsigned long long)m.header.bytes, (unsigned long long)m.header.type, m.peer,
          emu_nccl_kind_name(m.other.kind), (unsigned long long)m.other.sequence, (unsigned long long)m.other.bytes,
          (unsigned long long)m.other.type);
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
// to = from (the peer after this rank), then the others in turn, this rank's own last: an order of nobody's
// expectation.
template <class T> static void emu_nccl_sum(char *to, const std::vector<const char *> &terms, size_t bytes) {
  for (size_t i = 0; i < bytes / sizeof(T); i++) {
    float sum = 0.0f;
    for (const char *term : terms) sum += to_f32(((const T *)term)[i]);
    round_to((T *)to + i, sum);
  }
}
EMU(void) emu_nccl_finish_part(EmuNcclRun *run, ncclComm_t comm, const EmuNcclPart &p, size_t index, size_t *message) {
  const std::vector<char> &source = run->sources[index];
  if (!source.empty() && memcmp(source.data(), p.from, source.size()))
    emu_fail("nccl: what is being sent was changed before the call was done");
  std::vector<const char *> from((size_t)comm->world);
  for (int peer = 0; peer < comm->world; peer++) {
    const bool pair = p.kind == EMU_NCCL_SEND || p.kind == EMU_NCCL_RECEIVE;
    if (peer == comm->rank || (pair && peer != p.peer)) continue;
    if (p.kind != EMU_NCCL_RECEIVE) ++*message;
    if (p.kind != EMU_NCCL_SEND) from[(size_t)peer] = run->messages[(*message)++].data.data();
  }
  if (p.kind == EMU_NCCL_RECEIVE && p.peer != comm->rank) memcpy(p.to, from[(size_t)p.peer], p.bytes);
  if (p.kind == EMU_NCCL_ALL_GATHER) {
    from[(size_t)comm->rank] = source.data();
    for (int r = 0; r < comm->world; r++) memcpy(p.to + (size_t)r * p.bytes, from[(size_t)r], p.bytes);
  }
  if (p.kind != EMU_NCCL_REDUCE_SCATTER) return;
  from[(size_t)comm->rank] = source.data() + (size_t)comm->rank * p.bytes;
  std::vector<const char *> terms;
  for (int i = 1; i <= comm->world; i++) terms.push_back(from[(size_t)((comm->rank + i) % comm->world)]);
  if (p.type == ncclFloat32) emu_nccl_sum<float>(p.to, terms, p.bytes);
  else if (p.type == ncclBfloat16) emu_nccl_sum<bf16>(p.to, terms, p.bytes);
  else emu_nccl_sum<fp16>(p.to, terms, p.bytes);
}
// Messages to oneself: the n-th send meets the n-th receive.
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
  run->posted = false;                           // a graph may come here again
}

// ---- calls ---------------------------------------------------------------------------------------------------------
static std::vector<EmuNcclPart> emu_nccl_group;
static ncclComm_t emu_nccl_group_comm;
static cudaStream_t emu_nccl_group_stream;

EMU(void) emu_nccl_enqueue(ncclComm_t comm, cudaStream_t stream, const std::vector<EmuNcclPart> &parts) {
  const std::shared_ptr<EmuNcclRun> run = std::make_shared<EmuNcclRun>();
  run->posted = false;
  emu_push(stream, "nccl", [run, comm, parts] {
    if (!run->posted) emu_nccl_post(run.get(), comm, parts);
    if (emu_nccl_queries_to_loss) return false;
    if (!emu_nccl_done(run.get(), comm)) return false;
    emu_nccl_finish(run.get(), comm, parts);
    return true;
  });
}
EMU(ncclResult_t) emu_nccl_call(ncclComm_t comm, cudaStream_t stream, EmuNcclPart p) {
  EMU_NCCL_NEED(comm, Argument, "no communicator");
  EMU_NCCL_NEED(p.peer >= 0 && p.peer < comm->world, Argument, "the peer is not a rank of the communicator");
  EMU_NCCL_NEED(p.bytes <= INT_MAX / 2, Argument, "more bytes than the emulation sends at once");
  EMU_NCCL_NEED(p.bytes == 0 || ((p.from || p.kind == EMU_NCCL_RECEIVE) && (p.to || p.kind == EMU_NCCL_SEND)), Argument,
                "a buffer is missing");
  emu_device_pointer(p.from, "nccl");
  emu_device_pointer(p.to, "nccl");
  const size_t source = emu_nccl_source_bytes(p, comm->world), result = emu_nccl_result_bytes(p, comm->world);
  const char *in_place = p.kind == EMU_NCCL_ALL_GATHER ? p.to + (size_t)comm->rank * p.bytes
                         : p.kind == EMU_NCCL_REDUCE_SCATTER ? p.to - (size_t)comm->rank * p.bytes : NULL;
  if (source && result && p.from != in_place && p.from < p.to + result && p.to < p.from + source)
    emu_fail("nccl: source and result overlap, but not as in place is defined");
  if (!emu_nccl_depth) {
    if (p.kind == EMU_NCCL_SEND || p.kind == EMU_NCCL_RECEIVE)
      EMU_NCCL_NEED(p.peer != comm->rank, Usage, "a message to oneself outside of a group");
    emu_nccl_enqueue(comm, stream, {p});
    return ncclSuccess;
  }
  if (!emu_nccl_group.empty() && (comm != emu_nccl_group_comm || stream != emu_nccl_group_stream))
    emu_fail("nccl: a group of several communicators or streams is not emulated");
  emu_nccl_group_comm = comm;
  emu_nccl_group_stream = stream;
  emu_nccl_group.push_back(p);
  return ncclSuccess;
}
EMU(ncclResult_t) ncclGroupStart() {
  emu_nccl_depth++;
  return ncclSuccess;
}
EMU(ncclResult_t) ncclGroupEnd() {
  EMU_NCCL_NEED(emu_nccl_depth > 0, Usage, "ncclGroupEnd without ncclGroupStart");
  if (--emu_nccl_depth || emu_nccl_group.empty()) return ncclSuccess;
  emu_nccl_enqueue(emu_nccl_group_comm, emu_nccl_group_stream, emu_nccl_group);
  emu_nccl_group.clear();
  return ncclSuccess;
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
ncclSend(const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return emu_nccl_call(comm, stream,
                       {EMU_NCCL_SEND, (const char *)from, NULL, count * emu_nccl_type_bytes(type), type, peer});
}
EMU(ncclResult_t)
ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return emu_nccl_call(comm, stream,
                       {EMU_NCCL_RECEIVE, NULL, (char *)to, count * emu_nccl_type_bytes(type), type, peer});
}
