// test_nccl.h: how NCCL is opened, what it takes of the memory, and which GPUs may share it: by the emulated NCCL and
// by emulated devices that stand in for a driver with instances (MIG). What its calls do is in test_cuda_matmul.h and
// test_hardware.h.
#include "dev/cuda_emu/emu.h"
#include "kernels/cuda/nvidia.h"

TEST_MPI(nccl_opens_in_the_background, 3,
         "communicators are nonblocking: opening, splitting, calls, groups, captures, closing: asked for until done") {
  if (!&ops_cuda_emulated) SKIP("the emulated kernels are not linked");
  MatmulComm m = matmul_comm(0);
  Ctx *c = &m.c;
  const Collectives *nccl = c->ops->nccl;
  void *part, *graph;
  int64_t asked = emu_nccl_in_progress();
  EXPECT(asked > 0, "opening is not asked for");
#define ASKED(what) \
  do { \
    EXPECT(emu_nccl_in_progress() > asked, "%s is not asked for", what); \
    asked = emu_nccl_in_progress(); \
  } while (0)
  if (m.rank == 2) usleep(50000);                // the others wait for it
  nccl->comm_split(c, &part, m.comm, m.rank == 1, -m.rank);
  ASKED("splitting");
  Tensor x = device_upload(c, matmul_terms(F32, m.rank, 16)), all = device_tensor(c, F32, 48);
  Tensor y = device_tensor(c, F32, 16);
  nccl->all_gather(c, m.comm, all.data, x.data, 64);
  ASKED("a call");
  Tensor got = device_download(c, all);
  for (int64_t k = 0; k < 48; k++)
    EXPECT(op_get(got, k) == matmul_term((int)(k / 16), k % 16), "gathered %lld", (long long)k);
  // By key the order is the reverse of the ranks': of ranks 0 and 2, rank 2 is the first, and the one that tells.
  c->ops->copy(c, y.data, x.data, 64);
  nccl->group_begin(c);
  nccl->broadcast(c, part, y.data, 64, 0);
  nccl->group_end(c);
  ASKED("a group");
  got = device_download(c, y);
  for (int64_t k = 0; k < 16; k++)
    EXPECT(op_get(got, k) == matmul_term(m.rank == 1 ? 1 : 2, k), "rank %d was told %g", m.rank, op_get(got, k));
  c->ops->graph_begin(c);
  nccl->all_gather(c, m.comm, all.data, x.data, 64);
  c->ops->graph_end(c, &graph);
  ASKED("a captured call");
  c->ops->graph_launch(c, graph);
  c->ops->sync(c);
  c->ops->graph_close(c, graph);
  nccl->comm_close(c, part);
  ASKED("closing");
  matmul_comm_done(&m);
}
TEST_MPI(nccl_split_shares_memory, 2,
         "a communicator that was split takes little memory, one of its own id as much again; before 2.27.3, where "
         "sharing could corrupt memory, it shares none") {
  if (!&ops_cuda_emulated) SKIP("the emulated kernels are not linked");
  MatmulComm m = matmul_comm(0), other = {};
  Ctx *c = &m.c;
  size_t a, b, total;
  void *part;
  c->ops->memory_left(c, &a, &total);
  c->ops->nccl->comm_split(c, &part, m.comm, 0, m.rank);
  c->ops->memory_left(c, &b, &total);
  const size_t split = a - b;
  other.c = m.c;
  matmul_comm_name(&other, 0);
  c->ops->nccl->comm_open(c, &other.comm, other.id, other.rank, other.world);
  c->ops->memory_left(c, &a, &total);
  EXPECT(split > 0 && b - a > 8 * split, "split %zu bytes, opened %zu", split, b - a);
  const size_t opened_apart = b - a;
  c->ops->nccl->comm_close(c, part);
  c->ops->nccl->comm_close(c, other.comm);
  emu_set_nccl_version(22702);
  MPI_Comm_free(&other.mpi);
  matmul_comm_name(&other, 0);
  c->ops->nccl->comm_open(c, &other.comm, other.id, other.rank, other.world);
  c->ops->memory_left(c, &a, &total);
  c->ops->nccl->comm_split(c, &part, other.comm, 0, m.rank);
  c->ops->memory_left(c, &b, &total);
  EXPECT(a - b == opened_apart, "split %zu bytes with NCCL 2.27.2, opened %zu", a - b, opened_apart);
  c->ops->nccl->comm_close(c, part);
  c->ops->nccl->comm_close(c, other.comm);
  MPI_Comm_free(&other.mpi);
  matmul_comm_done(&m);
  // Nothing is kept when all are closed.
  Ctx again = {};
  again.ops = &ops_cuda_emulated;
  again.ops->device_open(&again, 0);
  again.ops->memory_left(&again, &a, &total);
  size_t opened;
  again.ops->memory_opened(&again, &opened);
  EXPECT(opened && total - a == opened, "%zu bytes are gone, %zu of them cuBLASLt's", total - a, opened);
  again.ops->device_close(&again);
}

// ---- which GPUs -----------------------------------------------------------------------------------------------------
TEST(nccl_registers_nothing_in_graphs,
     "NCCL before 2.33 can hang on buffers that it registers in graphs: NCCL_GRAPH_REGISTER=0, unless it is set") {
  if (!&ops_cuda_emulated) SKIP("this test program was linked without dev/cuda_emu");
  const struct { int version; const char *set, *then; } cases[] = {
      {22809, NULL, "0"}, {23207, NULL, "0"}, {23300, NULL, NULL}, {22809, "1", "1"}, {23300, "0", "0"}};
  for (const auto &k : cases) {
    unsetenv("NCCL_GRAPH_REGISTER");
    if (k.set) setenv("NCCL_GRAPH_REGISTER", k.set, 1);
    emu_set_nccl_version(k.version);
    Ctx c = {};
    char id[NCCL_ID_BYTES];
    ops_cuda_emulated.nccl->id_make(&c, id);
    const char *now = getenv("NCCL_GRAPH_REGISTER");
    EXPECT(now && k.then ? !strcmp(now, k.then) : !now && !k.then, "NCCL %d, %s: %s", k.version,
           k.set ? k.set : "not set", now ? now : "not set");
  }
}
