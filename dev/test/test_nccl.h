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

// ---- the plan -------------------------------------------------------------------------------------------------------
// NCCL_ROOM: how much memory the device has: "whole": what plan and libraries take; "short": a byte less; "none": what
// the plan takes but for the libraries.
TEST_MPI(nccl_memory_once, 2, "plan and measured libraries are what the device must have: with that much it trains") {
  if (!&ops_streams) SKIP("this test program was linked without dev/cuda_emu");
  static Corpus corpus;
  static Trainer t;
  Options o;
  const char *given = getenv("NCCL_ROOM"), *room = given ? given : "whole";
  schedule_corpus(&corpus);
  test_options(&o, 2, "%s", schedule_shapes);
  o.comm = OPT_comm_nccl;
  trainer_open(&t, &o, &corpus, MPI_COMM_WORLD, schedule_device(&ops_streams), 1);
  const size_t to_take = memory_planned_total(&t.run.plan, MEMORY_TO_TAKE);
  const size_t all = memory_planned_total(&t.run.plan, MEMORY_ON_DEVICE);
  EXPECT(t.run.plan.planned_bytes[MEM_NCCL] && t.run.plan.planned_bytes[MEM_CUBLASLT] &&
         all - to_take == t.run.plan.planned_bytes[MEM_NCCL] + t.run.plan.planned_bytes[MEM_CUBLASLT],
         "the plan has %zu bytes of NCCL, %zu of cuBLASLt; %zu to take of %zu", t.run.plan.planned_bytes[MEM_NCCL],
         t.run.plan.planned_bytes[MEM_CUBLASLT], to_take, all);
  const size_t without = to_take + t.run.plan.planned_bytes[MEM_CUBLASLT];
  trainer_close(&t);
  // 32 x 256: the device's grain, see gpu_memory_is_what_was_planned.
  emu_set_device_bytes(!strcmp(room, "whole") ? all + 32 * 256 : !strcmp(room, "short") ? all - 1 : without);
  trainer_open(&t, &o, &corpus, MPI_COMM_WORLD, schedule_device(&ops_streams), 1);
  for (int s = 0; s < 3; s++) train_step(&t, false);
  trainer_close(&t);
  free((void *)corpus.split[SPLIT_TRAIN].tokens);
}
static int nccl_memory_child(const char *room, char *said, size_t bytes) {
  char self[512], command[1200], path[256];
  const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
  self[n > 0 ? n : 0] = 0;
  snprintf(path, sizeof path, "%s/child", test_tmp());
  snprintf(command, sizeof command, "NCCL_ROOM=%s \"${MPIRUN:-mpirun}\" --oversubscribe --bind-to none -np 2 '%s' "
           "--run nccl_memory_once >'%s' 2>&1", room, self, path);
  const int status = system(command);
  FILE *f = fopen(path, "r");
  said[f ? fread(said, 1, bytes - 1, f) : 0] = 0;
  if (f) fclose(f);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}
TEST(nccl_memory_is_refused_before_a_step,
     "a device that cannot hold plan and NCCL together: one clear line before the first step, exit code 3") {
  if (!&ops_streams) SKIP("this test program was linked without dev/cuda_emu");
  char said[4096];
  int code = nccl_memory_child("short", said, sizeof said);
  EXPECT(code == EXIT_MISSING && strstr(said, "taken by NCCL and cuBLASLt, but"), "exit %d: %s", code,
         said);
  code = nccl_memory_child("none", said, sizeof said);
  EXPECT(code == EXIT_MISSING && strstr(said, "NCCL lacked memory"), "exit %d: %s", code, said);
}

// ---- which GPUs -----------------------------------------------------------------------------------------------------
// What a process sees that was shown one device of the emulated ones.
static const DeviceProbe *nccl_probe_of(int device) {
  static DeviceProbe all, p;
  ops_cuda_emulated.device_probe(NULL, &all);
  p = all;
  p.devices = 1;
  p.device[0] = all.device[device];
  return &p;
}
TEST_MPI(nccl_instances_have_memory_of_their_own, 3,
         "instances (MIG) of a GPU: memory is shared by UUID, NCCL refused by PCI bus id, unless it lets ranks share") {
  if (!&ops_cuda_emulated) SKIP("the emulated kernels are not linked");
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const struct {
    const char *what;
    int instances, device[3], sharing[3], on_gpu[3], gpus;
    bool crowded;
  } cases[] = {{"three instances of a GPU", 3, {0, 1, 2}, {1, 1, 1}, {3, 3, 3}, 3, true},
               {"two ranks on one of two instances", 2, {0, 1, 1}, {1, 2, 2}, {3, 3, 3}, 2, true},
               {"instances of two GPUs", 2, {0, 1, 2}, {1, 1, 1}, {2, 2, 1}, 3, true},
               {"three GPUs", 1, {0, 1, 2}, {1, 1, 1}, {1, 1, 1}, 3, false}};
  for (const auto &k : cases) {
    emu_set_instances(k.instances);
    const DeviceProbe *p = nccl_probe_of(k.device[rank]);
    const GpuChoice g = choose_gpu(p, MPI_COMM_WORLD, MPI_COMM_WORLD);
    EXPECT(!g.error[0] && g.index == 0 && g.sharing == k.sharing[rank] && g.on_gpu == k.on_gpu[rank] &&
           g.gpus == k.gpus && g.crowded == k.crowded,
           "%s, rank %d: %d share its memory, %d its GPU, %d memories in all, crowded %d: %s", k.what, rank, g.sharing,
           g.on_gpu, g.gpus, g.crowded, g.error);
    for (int nccl : {22809, 23000})
      for (const char *enabled : {"", "0", "1"}) {
        setenv("NCCL_MULTI_RANK_GPU_ENABLE", enabled, 1);
        Options o;
        DeviceProbe q = *p;
        char error[512] = "";
        options_default(&o);
        o.comm = OPT_comm_nccl;
        q.nccl = nccl;
        agree_on_comm(&o, &q, &g, 3, error, sizeof error);
        const bool refused = g.on_gpu > 1 && !(nccl == 23000 && !strcmp(enabled, "1"));
        const char *why = g.sharing > 1 ? "ranks share the GPU" : "instances (MIG) of the GPU";
        EXPECT(refused ? strstr(error, why) != NULL : !error[0], "%s, NCCL %d, enabled '%s': '%s'", k.what, nccl,
               enabled, error);
        options_default(&o);
        error[0] = 0;
        agree_on_comm(&o, &q, &g, 3, error, sizeof error);
        EXPECT(!error[0] && o.comm == (k.crowded ? OPT_comm_mpi : OPT_comm_nccl), "%s: auto is %s: %s", k.what,
               option_word(&o, OPT_comm), error);
      }
  }
}
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
