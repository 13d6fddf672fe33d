// test_cuda_runtime.h: what the CUDA device offers besides ops: the probe, memory, streams, events, graphs. All calls
// go through the table, so the same tests run on emulated devices and, with DEVICE=cuda, on real ones.
#include "dev/cuda_emu/emu.h"
#include "kernels/cuda/nvidia.h"
#include <dlfcn.h>

TEST(cuda_probe_emulated, "the emulated device is found, is complete and says so") {
  if (!&ops_cuda_emulated) SKIP("the emulated kernels are not linked");
  static DeviceProbe p;
  Ctx c = {};
  memset(&p, 0xff, sizeof p);                    // the probe must not depend on old contents
  ops_cuda_emulated.device_probe(&c, &p);
  REQUIRE(p.devices >= 1 && p.devices <= MAX_DEVICES, "%d devices", p.devices);
  EXPECT(!p.missing[0] && !p.nccl_missing[0], "missing: %s %s", p.missing, p.nccl_missing);
  EXPECT(p.driver && p.runtime && p.cublaslt && p.nccl, "versions %d %d %d %d", p.driver, p.runtime, p.cublaslt,
         p.nccl);
  for (int i = 0; i < p.devices; i++) {
    const DeviceInfo *d = &p.device[i];
    EXPECT(d->name[0] && d->bus_id[0], "device %d: name \"%s\", bus \"%s\"", i, d->name, d->bus_id);
    EXPECT(d->major >= NEEDED_MAJOR && d->sms > 0 && d->memory_bytes > 0, "device %d: %d.%d, %d, %zu", i,
           d->major, d->minor, d->sms, d->memory_bytes);
  }
}

TEST(cuda_probe_here,
     "the probe of this machine finds a device, or one line names what is missing and what was found") {
  if (!&ops_cuda) SKIP("built without the CUDA kernels");
  static DeviceProbe p;
  Ctx c = {};
  memset(&p, 0xff, sizeof p);
  ops_cuda.device_probe(&c, &p);
  char runtime[32];
  version_text(VERSION_CUDA, p.runtime, runtime, sizeof runtime);
  EXPECT(p.runtime >= 12000, "runtime %d", p.runtime);
  EXPECT(!strchr(p.missing, '\n') && !strchr(p.nccl_missing, '\n'), "more than a line: %s / %s", p.missing,
         p.nccl_missing);
  printf("devices %d, missing: %s\nnccl missing: %s\n", p.devices, p.missing, p.nccl_missing);
  void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (!driver) {
    EXPECT(p.devices == 0 && p.driver == 0, "%d devices without a driver (%d)", p.devices, p.driver);
    EXPECT(strstr(p.missing, "driver") && strstr(p.missing, "libcuda.so.1"), "names no driver: %s", p.missing);
  }
  if (p.missing[0]) EXPECT(strstr(p.missing, runtime), "does not say runtime %s: %s", runtime, p.missing);
  EXPECT(p.cublaslt || strstr(p.missing, "libcublasLt"), "no libcublasLt and no word of it: %s", p.missing);
  EXPECT(p.nccl || strstr(p.nccl_missing, "libnccl"), "no libnccl and no word of it: %s", p.nccl_missing);
  for (int i = 0; i < p.devices; i++)
    EXPECT(p.device[i].name[0] && p.device[i].bus_id[0] && p.device[i].memory_bytes, "device %d is not described", i);
}

TEST(cuda_program_links_no_library, "the program starts where no CUDA library is: it depends on none") {
  char command[600], line[512];
  const char *program = getenv("TRAIN_GPT_FSDP");
  snprintf(command, sizeof command, "ldd '%s'", program ? program : "./train_gpt_fsdp");
  FILE *f = popen(command, "r");
  REQUIRE(f, "cannot run ldd");
  int lines = 0;
  while (fgets(line, sizeof line, f)) {
    lines++;
    for (const char *word : {"libcuda", "libcublas", "libnccl", "libnvidia", "libnvToolsExt"})
      EXPECT(!strstr(line, word), "depends on%s", line);
  }
  pclose(f);
  EXPECT(lines > 2, "ldd shows %d lines", lines);
}

// ---- memory ---------------------------------------------------------------------------------------------------------
static Ctx cuda_runtime_ctx(const Ops *ops) {
  Ctx c = {};
  c.ops = ops;
  c.threads = 1;
  ops->device_open(&c, 0);
  return c;
}
static unsigned char *cuda_runtime_pinned(Ctx *c, size_t bytes) {
  void *p = NULL;
  c->ops->memory_alloc(c, &p, bytes, MEMORY_PINNED);
  CHECK(p, "no %zu bytes of pinned memory", bytes);
  return (unsigned char *)p;
}

TEST(cuda_memory, "device and pinned memory come zeroed, are counted and freed; too much is NULL and no error") {
  const Ops *ops;
  for (int i = 0; (ops = device_table(i)); i++) {
    Ctx c = cuda_runtime_ctx(ops);
    const size_t bytes = (32 << 20) + 12;
    size_t before, during, after, total;
    void *p, *nothing = &c;
    ops->memory_alloc(&c, &nothing, 0, MEMORY_DEVICE);
    EXPECT(!nothing, "%s: no bytes are %p", ops->name, nothing);
    ops->memory_left(&c, &before, &total);
    ops->memory_alloc(&c, &p, bytes, MEMORY_DEVICE);
    REQUIRE(p, "%s: no %zu bytes of %zu", ops->name, bytes, before);
    ops->memory_left(&c, &during, &total);
    EXPECT(before - during >= bytes && during <= total, "%s: %zu left of %zu, then %zu", ops->name, before, total,
           during);
    unsigned char *host = cuda_runtime_pinned(&c, bytes), any = 0;
    for (size_t k = 0; k < bytes; k++) any |= host[k];
    EXPECT(!any, "%s: pinned memory is not zeroed", ops->name);
    memset(host, 1, bytes);
    ops->copy(&c, host, p, bytes);
    ops->sync(&c);
    for (size_t k = 0; k < bytes; k++) any |= host[k];
    EXPECT(!any, "%s: device memory is not zeroed", ops->name);
    void *too_much = &c;
    ops->memory_alloc(&c, &too_much, 2 * total, MEMORY_DEVICE);
    EXPECT(!too_much, "%s: %zu bytes were given where %zu are", ops->name, 2 * total, total);
    fill(&c, tensor_of(p, F32, 100), 1.0f);      // kernels run as if nothing had been requested
    ops->copy(&c, host, p, 400);
    ops->sync(&c);
    EXPECT(((float *)host)[99] == 1.0f, "%s: after a rejection a kernel wrote %g", ops->name, ((float *)host)[99]);
    ops->memory_free(&c, p, bytes, MEMORY_DEVICE);
    ops->memory_free(&c, host, bytes, MEMORY_PINNED);
    ops->memory_free(&c, NULL, 0, MEMORY_DEVICE);
    ops->memory_left(&c, &after, &total);
    EXPECT(after > during, "%s: freed memory does not come back: %zu, %zu", ops->name, during, after);
    ops->device_close(&c);
  }
}

TEST(cuda_memory_of_the_host,
     "a GPU whose memory is the host's: what the page cache holds of it counts as free, on others it does not exist") {
  if (!&ops_cuda_emulated) SKIP("the emulated kernels are not linked");
  const Ops *ops = &ops_cuda_emulated;
  const size_t whole = 256 << 20;
  emu_set_device_bytes(whole);
  for (size_t cached : {(size_t)0, whole - (96 << 20)}) {
    size_t left = 0, total = 0, host = host_available_bytes();
    emu_set_integrated(cached);
    Ctx c = cuda_runtime_ctx(ops);
    ops->memory_left(&c, &left, &total);
    DeviceProbe *p = (DeviceProbe *)calloc(1, sizeof *p);
    ops->device_probe(NULL, p);
    EXPECT(p->device[0].integrated == (cached > 0), "%zu bytes in the page cache: integrated %d", cached,
           p->device[0].integrated);
    // The cache leaves 96 MiB, and cuBLASLt takes some: more must be what the host says it has, where it has more.
    EXPECT(left <= total && total == whole && (!cached || host < 2 * whole || left == whole),
           "%zu bytes in the page cache: %zu free of %zu", cached, left, total);
    ops->device_close(&c);
    free(p);
  }
  emu_set_integrated(0);
  emu_set_device_bytes((size_t)16 << 30);
}
TEST(cuda_memory_limit, "on a device that fills up, requests that fit succeed and others get NULL, again and again") {
  if (!&ops_cuda_emulated) SKIP("the emulated kernels are not linked");
  const Ops *ops = &ops_cuda_emulated;
  const size_t whole = 64 << 20, piece = 20 << 20;
  emu_set_device_bytes(whole);
  Ctx c = cuda_runtime_ctx(ops);
  size_t left, total;
  ops->memory_left(&c, &left, &total);
  EXPECT(total == whole && left <= whole, "%zu left of %zu", left, total);
  for (int round = 0; round < 3; round++) {
    void *p[4] = {};
    for (void *&q : p) ops->memory_alloc(&c, &q, piece, MEMORY_DEVICE);
    EXPECT(p[0] && p[1] && p[2] && !p[3], "round %d: %p %p %p %p", round, p[0], p[1], p[2], p[3]);
    ops->zero(&c, p[2], piece);
    ops->sync(&c);
    for (void *q : p) ops->memory_free(&c, q, piece, MEMORY_DEVICE);
  }
  ops->device_close(&c);
}

TEST(cuda_copies,
     "copies find their direction, in any size, from pinned memory, from memory pinned later and from plain memory") {
  const Ops *ops;
  for (int i = 0; (ops = device_table(i)); i++) {
    Ctx c = cuda_runtime_ctx(ops);
    const size_t bytes = 100003;
    unsigned char *plain = (unsigned char *)malloc(bytes), *later = (unsigned char *)malloc(bytes);
    unsigned char *pinned = cuda_runtime_pinned(&c, bytes);
    void *a, *b;
    ops->memory_alloc(&c, &a, bytes, MEMORY_DEVICE);
    ops->memory_alloc(&c, &b, bytes, MEMORY_DEVICE);
    for (size_t k = 0; k < bytes; k++) plain[k] = (unsigned char)(k * 7 + k / 256);
    memset(later, 0, bytes);
    ops->memory_pin(&c, later, bytes);
    for (size_t n : {(size_t)1, (size_t)17, bytes}) {
      ops->copy(&c, a, plain, n);
      ops->copy(&c, b, a, n);
      ops->copy(&c, pinned, b, n);
      ops->copy(&c, later, pinned, n);
      ops->copy(&c, a, pinned, 0);
      ops->sync(&c);
      EXPECT(!memcmp(later, plain, n) && !memcmp(pinned, plain, n), "%s: %zu bytes differ after their way",
             ops->name, n);
    }
    ops->zero(&c, (char *)b + 5, 11);
    ops->copy(&c, pinned, b, bytes);
    ops->sync(&c);
    memset(plain + 5, 0, 11);
    EXPECT(!memcmp(pinned, plain, bytes), "%s: zero touches more, or less, than its range", ops->name);
    ops->memory_unpin(&c, later);
    ops->memory_free(&c, a, bytes, MEMORY_DEVICE);
    ops->memory_free(&c, b, bytes, MEMORY_DEVICE);
    ops->memory_free(&c, pinned, bytes, MEMORY_PINNED);
    free(plain);
    free(later);
    ops->device_close(&c);
  }
}

// ---- streams and events ---------------------------------------------------------------------------------------------
TEST(cuda_streams, "events order two streams both ways, round after round; an event is done once passed") {
  enum { ROUNDS = 20, BYTES = 4096 };
  const Ops *ops;
  for (int i = 0; (ops = device_table(i)); i++) {
    Ctx c = cuda_runtime_ctx(ops), side = {};
    char scratch[8];
    c.workspace = scratch;
    c.workspace_bytes = sizeof scratch;
    ops->side_open(&c, &side, "side");
    EXPECT(side.stream && side.stream != c.stream && side.device == c.device && side.ops == ops,
           "%s: the side has no stream of its own", ops->name);
    EXPECT(!side.workspace && !side.workspace_bytes, "%s: the side shares the workspace", ops->name);
    void *there, *back, *a, *b;
    ops->event_open(&c, &there, "there");
    ops->event_open(&c, &back, "back");
    bool done = false;
    ops->event_done(&c, there, &done);
    EXPECT(done, "%s: an event never recorded is not done", ops->name);
    ops->memory_alloc(&c, &a, BYTES, MEMORY_DEVICE);
    ops->memory_alloc(&c, &b, BYTES, MEMORY_DEVICE);
    unsigned char *in = cuda_runtime_pinned(&c, ROUNDS * BYTES), *out = cuda_runtime_pinned(&c, ROUNDS * BYTES);
    for (int k = 0; k < ROUNDS * BYTES; k++) in[k] = (unsigned char)(k % 251 + k / BYTES);
    for (int r = 0; r < ROUNDS; r++) {           // a is filled by c, taken by side; b goes the other way
      ops->copy(&c, a, in + r * BYTES, BYTES);
      ops->event_record(&c, there);
      ops->event_wait(&side, there);
      ops->copy(&side, b, a, BYTES);
      ops->event_record(&side, back);
      ops->event_wait(&c, back);
      ops->copy(&c, out + r * BYTES, b, BYTES);
    }
    ops->sync(&c);
    EXPECT(!memcmp(in, out, ROUNDS * BYTES), "%s: a round read before the other stream had written", ops->name);
    ops->event_record(&c, there);
    ops->sync(&c);
    ops->event_done(&c, there, &done);
    EXPECT(done, "%s: a passed event is not done", ops->name);
    ops->side_close(&side);
    ops->event_close(&c, there);
    ops->event_close(&c, back);
    for (void *p : {a, b}) ops->memory_free(&c, p, BYTES, MEMORY_DEVICE);
    for (void *p : {in, out}) ops->memory_free(&c, p, ROUNDS * BYTES, MEMORY_PINNED);
    ops->device_close(&c);
  }
}

TEST(cuda_graphs, "a captured step, side stream included, runs only when launched and reads current memory each time") {
  enum { BYTES = 4096 };
  const Ops *ops;
  for (int i = 0; (ops = device_table(i)); i++) {
    Ctx c = cuda_runtime_ctx(ops), side = {};
    ops->side_open(&c, &side, "side");
    void *fork, *join, *a, *b, *graph = NULL;
    ops->event_open(&c, &fork, "fork");
    ops->event_open(&c, &join, "join");
    ops->memory_alloc(&c, &a, BYTES, MEMORY_DEVICE);
    ops->memory_alloc(&c, &b, BYTES, MEMORY_DEVICE);
    unsigned char *in = cuda_runtime_pinned(&c, BYTES), *out = cuda_runtime_pinned(&c, BYTES);
    memset(in, 1, BYTES);
    memset(out, 99, BYTES);
    ops->graph_begin(&c);
    ops->range_begin(&c, "captured");
    ops->copy(&c, a, in, BYTES);
    ops->event_record(&c, fork);
    ops->event_wait(&side, fork);
    ops->copy(&side, b, a, BYTES);
    ops->event_record(&side, join);
    ops->event_wait(&c, join);
    ops->zero(&c, (char *)b + BYTES / 2, BYTES / 2);
    ops->copy(&c, out, b, BYTES);
    ops->range_end(&c);
    ops->graph_end(&c, &graph);
    ops->sync(&c);
    EXPECT(graph && out[0] == 99, "%s: capturing runs the work", ops->name);
    for (int value = 1; value <= 3; value++) {
      memset(in, value, BYTES);
      ops->graph_launch(&c, graph);
      ops->sync(&c);
      EXPECT(out[0] == value && out[BYTES / 2 - 1] == value && out[BYTES / 2] == 0 && out[BYTES - 1] == 0,
             "%s: launch %d wrote %d .. %d", ops->name, value, out[0], out[BYTES - 1]);
    }
    ops->graph_close(&c, graph);
    ops->side_close(&side);
    ops->event_close(&c, fork);
    ops->event_close(&c, join);
    for (void *p : {a, b}) ops->memory_free(&c, p, BYTES, MEMORY_DEVICE);
    for (void *p : {in, out}) ops->memory_free(&c, p, BYTES, MEMORY_PINNED);
    ops->device_close(&c);
  }
}

// ---- known NVIDIA devices -------------------------------------------------------------------------------------------
TEST(cuda_known_devices, "a device's peak is found by its name, never a neighbour's; versions read as published") {
  static const struct { const char *name; double half; } known[] = {
      {"NVIDIA A100-SXM4-80GB", 312e12},      {"NVIDIA A100 80GB PCIe", 312e12},   {"NVIDIA A10", 125e12},
      {"NVIDIA A30", 165e12},                 {"NVIDIA A40", 149.7e12},            {"NVIDIA RTX A6000", 154.8e12},
      {"NVIDIA H100 80GB HBM3", 989.4e12},    {"NVIDIA H100 PCIe", 756e12},        {"NVIDIA H100 NVL", 835e12},
      {"NVIDIA H200", 989.4e12},              {"NVIDIA GH200 480GB", 989.4e12},    {"NVIDIA B200", 2250e12},
      {"NVIDIA L4", 121e12},                  {"NVIDIA L40", 181e12},              {"NVIDIA L40S", 362e12},
      {"NVIDIA GeForce RTX 3090", 71e12},     {"NVIDIA GeForce RTX 4090", 165.2e12},
      {"NVIDIA GeForce RTX 5090", 209.5e12},  {"NVIDIA RTX 6000 Ada Generation", 364.2e12},
      {"NVIDIA H200 NVL", 835e12},            {"NVIDIA GeForce RTX 3090 Ti", 80e12},
      {"NVIDIA GeForce RTX 4090 D", 147.1e12}, {"NVIDIA GeForce RTX 4090 Laptop GPU", 0},
      {"NVIDIA GeForce RTX 4070", 58.3e12},   {"NVIDIA GeForce RTX 4070 Ti SUPER", 88.2e12},
      {"NVIDIA GeForce RTX 4060", 30.2e12},   {"NVIDIA GeForce RTX 3060", 25.5e12},
      {"NVIDIA GeForce RTX 3080", 59.5e12},   {"NVIDIA GeForce RTX 3080 Ti", 68.2e12},
      {"NVIDIA GeForce RTX 5070", 61.7e12},   {"NVIDIA GeForce RTX 5060", 38.4e12},
      {"NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 503.8e12},
      {"NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 438.9e12},
      {"NVIDIA RTX PRO 6000 Blackwell Server Edition", 480e12},
      {"NVIDIA GB10", 125e12},                {"NVIDIA GeForce RTX 5070 Laptop GPU", 0},
      {"NVIDIA A100-SXM4-40GB MIG 1g.5gb", 0}, {"NVIDIA A10G", 0},                 {"NVIDIA H1000", 0},
      {"Tesla V100-SXM2-16GB", 0},            {"", 0}};
  for (const auto &k : known) {
    const GpuPeak p = gpu_peak(k.name);
    EXPECT(fabs(p.half - k.half) < 1e9, "%s: %g, not %g", k.name, p.half, k.half);
    EXPECT((p.tf32 > 0) == (k.half > 0) && (p.fp32 > 0) == (k.half > 0) && p.tf32 >= p.fp32 && p.half >= p.tf32,
           "%s: %g, %g, %g", k.name, p.half, p.tf32, p.fp32);
  }
  static const struct { VersionOf of; int version; const char *text; } versions[] = {
      {VERSION_CUDA, 13000, "13.0"},          {VERSION_CUDA, 12080, "12.8"},       {VERSION_CUDA, 0, "none"},
      {VERSION_CUBLASLT, 130100, "13.1.0"},   {VERSION_NCCL, 22809, "2.28.9"},     {VERSION_NCCL, 2708, "2.7.8"}};
  for (const auto &v : versions) {
    char text[32];
    version_text(v.of, v.version, text, sizeof text);
    EXPECT(!strcmp(text, v.text), "%d reads %s, not %s", v.version, text, v.text);
  }
}
