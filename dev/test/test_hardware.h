// test_hardware.h: what one GPU can tell and no emulation: how its tensor cores lay out fragments, which numbers they
// keep, what NCCL does eagerly and captured, and what libraries take of the memory. `make test DEVICE=cuda T=hardware`
// runs them in less than a minute; each failure says what to change. Without a GPU they run on the emulated device, but
// for what only hardware can tell, so that they work when the first GPU comes.
#include "dev/cuda_emu/emu.h"

enum { PROBE_MMA_BF16, PROBE_MMA_FP16, PROBE_LDMATRIX, PROBE_LDMATRIX_TRANS, PROBE_WGMMA_DOT,
       PROBE_WGMMA_WEIGH = PROBE_WGMMA_DOT + 4 };         // as in kernels/cuda/probe.cuh
extern "C" {
__attribute__((weak)) void cuda_probe(Ctx *c, int what, void *to, const void *from);
__attribute__((weak)) void cuda_probe_priorities(Ctx *c, Ctx *side, int *p);
}
static Ctx hardware_ctx(const Ops *ops) { return device_ctx(ops, {F32, F32, 1, 64, 64, 2, 64, 64}); }
static void hardware_probe(Ctx *c, int what, Tensor to, Tensor from) {
  (c->ops == &ops_cuda_emulated ? emu_probe : cuda_probe)(c, what, to.data, from.data);
}

// ---- tensor cores ---------------------------------------------------------------------------------------------------
TEST(hardware_mma, "mma.m16n8k16 of bf16 and fp16: operands and sums are in registers as the PTX ISA says") {
  for (int i = 0; const Ops *ops = device_table(i); i++)
    for (Dtype t : {BF16, F16}) {
      Ctx c = hardware_ctx(ops);
      Tensor from = op_tensor(t, 16 * 16 + 16 * 8), to = device_tensor(&c, F32, 16, 8);
      // Small integers, different in every place: products and sums are exact, and no two layouts give the same.
      for (int64_t k = 0; k < numel(from); k++) op_put(from, k, (double)((k * 37 + k / 16 * 11) % 61 - 30));
      hardware_probe(&c, t == BF16 ? PROBE_MMA_BF16 : PROBE_MMA_FP16, to, device_upload(&c, from));
      Tensor got = device_download(&c, to);
      for (int row = 0; row < 16; row++)
        for (int column = 0; column < 8; column++) {
          double want = 0;
          for (int k = 0; k < 16; k++) want += op_get(from, row * 16 + k) * op_get(from, 256 + k * 8 + column);
          EXPECT(op_get(got, row * 8 + column) == want, "%s, %s: D(%d,%d) is %g, must be %g: fragments are not where "
                 "mma_16816 of kernels/cuda/gpu.h and attention_tensorcore.cuh put them", ops->name, dtype_name(t), row,
                 column, op_get(got, row * 8 + column), want);
        }
      device_done(&c);
      op_free_all();
    }
}
TEST(hardware_ldmatrix, "ldmatrix.x4, plain and transposed: tile i comes in register i, two elements a lane") {
  for (int i = 0; const Ops *ops = device_table(i); i++)
    for (bool trans : {false, true}) {
      Ctx c = hardware_ctx(ops);
      Tensor from = op_tensor(F16, 4 * 64), to = device_tensor(&c, I32, 32, 4);
      for (int k = 0; k < 4 * 64; k++) ((uint16_t *)from.data)[k] = (uint16_t)(k * 257 + 1);
      hardware_probe(&c, trans ? PROBE_LDMATRIX_TRANS : PROBE_LDMATRIX, to, device_upload(&c, from));
      Tensor got = device_download(&c, to);
      for (int lane = 0; lane < 32; lane++)
        for (int tile = 0; tile < 4; tile++)
          for (int e = 0; e < 2; e++) {
            const int a = lane / 4, b = lane % 4 * 2 + e, row = trans ? b : a, column = trans ? a : b;
            const uint16_t want = (uint16_t)((tile * 64 + row * 8 + column) * 257 + 1);
            const uint32_t pair = ((uint32_t *)got.data)[lane * 4 + tile];
            EXPECT((uint16_t)(pair >> 16 * e) == want, "%s%s: lane %d, register %d, half %d is %04x, must be %04x: see "
                   "ldmatrix_x4 of kernels/cuda/gpu.h", ops->name, trans ? ", transposed" : "", lane, tile, e,
                   (unsigned)(uint16_t)(pair >> 16 * e), (unsigned)want);
          }
      device_done(&c);
      op_free_all();
    }
}

TEST(hardware_wgmma, "WGMMA instructions read swizzled tiles, both ways and over two panels, and lay out sums and A "
     "as the PTX ISA says") {
  device_on_hopper(true);
  for (int i = 0; const Ops *ops = device_table(i); i++)
    for (int form = 0; form < 8; form++) {
      Ctx c = hardware_ctx(ops);
      static DeviceProbe p;
      ops->device_probe(NULL, &p);
      if (!p.device[0].wgmma) { device_done(&c); continue; }
      const Dtype t = form & 2 ? F16 : BF16;
      const int64_t N = form & 1 ? 128 : 64;
      const bool weigh = form & 4;
      Tensor from = op_tensor(t, 64 * 64 + 64 * N), to = device_tensor(&c, F32, 64, N);
      for (int64_t k = 0; k < numel(from); k++) op_put(from, k, (double)((k * 37 + k / 64 * 11) % 61 - 30));
      hardware_probe(&c, PROBE_WGMMA_DOT + form, to, device_upload(&c, from));
      Tensor got = device_download(&c, to);
      int64_t wrong = 0, first = -1;
      for (int64_t at = 0; at < 64 * N; at++) {
        double want = 0;
        for (int64_t k = 0; k < 64; k++)
          want += op_get(from, at / N * 64 + k) * op_get(from, 4096 + (weigh ? k * N + at % N : at % N * 64 + k));
        if (op_get(got, at) != want && !wrong++) first = at;
      }
      EXPECT(!wrong, "%s, %s, N %d, %s: %lld sums are wrong, the first D(%d,%d): wgmma_tile or the layouts of "
             "kernels/cuda/gpu.h; --attention mma does without", ops->name, dtype_name(t), (int)N,
             weigh ? "A from registers" : "A from shared memory", (long long)wrong, (int)(first / N), (int)(first % N));
      device_done(&c);
      op_free_all();
    }
  device_on_hopper(false);
}

// ---- numbers --------------------------------------------------------------------------------------------------------
TEST(hardware_e4m3, "E4M3: 0x7f and 0xff decode to NaN, NaN encodes to 0x7f, 448 and what is beyond to 0x7e") {
  static const uint8_t codes[] = {0x7f, 0xff, 0x7e, 0xfe, 0x01, 0x81, 0x00, 0x38};
  static const float values[] = {NAN, -NAN, 448.0f, -448.0f, 0x1p-9f, -0x1p-9f, 0.0f, 1.0f};
  for (int i = 0; const Ops *ops = device_table(i); i++) {
    Ctx c = hardware_ctx(ops);
    Tensor code = op_tensor(F8, 8), one = op_tensor(F32, 1), x = op_tensor(F32, 8);
    memcpy(code.data, codes, 8);
    memcpy(x.data, values, sizeof values);
    ((float *)x.data)[7] = INFINITY;
    *(float *)one.data = 1.0f;
    Tensor scale = device_upload(&c, one), decoded = device_tensor(&c, F32, 8), encoded = device_tensor(&c, F8, 8);
    fp8_decode(&c, decoded, device_upload(&c, code), scale);
    fp8_encode(&c, encoded, device_upload(&c, x), scale);
    const float *got = (const float *)device_download(&c, decoded).data;
    const uint8_t *bits = (const uint8_t *)device_download(&c, encoded).data;
    for (int k = 0; k < 8; k++) {
      EXPECT(k < 2 ? isnan(got[k]) : got[k] == values[k], "%s: %02x decodes to %g, must be %g: unpack4_fp8 of "
             "kernels/cuda/gpu.h should go by unpack4_fp8_plain", ops->name, codes[k], got[k], values[k]);
      const unsigned want = k < 2 ? 0x7f : k == 7 ? 0x7e : codes[k];
      EXPECT(bits[k] == want, "%s: %g encodes to %02x, must be %02x: pack4_fp8 of kernels/cuda/gpu.h should go by "
             "pack4_fp8_plain", ops->name, ((float *)x.data)[k], bits[k], want);
    }
    device_done(&c);
    op_free_all();
  }
}
// x times the identity.
static Tensor hardware_times_one(Ctx *c, Dtype t, const double *x, int64_t rows) {
  const int64_t n = 16;
  Tensor in = op_tensor(t, rows, n), weight = op_tensor(t, n, n), out = device_tensor(c, F32, rows, n);
  for (int64_t k = 0; k < rows * n; k++) op_put(in, k, k % n == k / n % n ? x[k / n] : 0.0);
  for (int64_t k = 0; k < n * n; k++) op_put(weight, k, k % n == k / n ? 1.0 : 0.0);
  matmul_forward(c, out, device_upload(c, in), device_upload(c, weight), MatmulEpilogue{});
  return device_download(c, out);
}
TEST(hardware_denormals, "cuBLASLt keeps denormal numbers, fp32's and bf16's: 1e-40 times 1 is 1e-40") {
  const double x[16] = {1e-40, -1e-40, 0x1p-149, 0x1p-133, 1e-39, 0x1p-126, -0x1p-140, 1.0};
  for (int i = 0; const Ops *ops = device_table(i); i++)
    for (Dtype t : {F32, BF16}) {
      Ctx c = hardware_ctx(ops);
      Tensor got = hardware_times_one(&c, t, x, 16), stored = op_tensor(t, 1);
      for (int64_t k = 0; k < 8; k++) {
        op_put(stored, 0, x[k]);
        EXPECT(op_get(got, k * 16 + k) == op_get(stored, 0), "%s, %s: %g times 1 is %g: cuBLASLt flushes denormals; "
               "docs/gpus.md must say so, and test_cuda_matmul.h allow 2^-126 beside its bounds", ops->name,
               dtype_name(t), op_get(stored, 0), op_get(got, k * 16 + k));
      }
      device_done(&c);
      op_free_all();
    }
}
TEST(hardware_tf32_rounds, "TF32 operands are rounded to nearest: the bound of --matmul_precision high is of that") {
  const double x[16] = {1 + 0x1.8p-11, 1 + 0x1p-12, -(1 + 0x1.8p-11), 1 + 0x1.fp-11, 1 + 0x1.8p-10};
  const double want[16] = {1 + 0x1p-10, 1, -(1 + 0x1p-10), 1 + 0x1p-10, 0};
  for (int i = 0; const Ops *ops = device_table(i); i++) {
    Ctx c = hardware_ctx(ops);
    c.fast_fp32 = true;
    Tensor got = hardware_times_one(&c, F32, x, 16);
    for (int64_t k = 0; k < 4; k++) {
      const double y = op_get(got, k * 16 + k);
      EXPECT(y == want[k] || y == x[k], "%s: %.9g goes in as %.9g, rounded it is %.9g: TF32 operands are truncated; "
             "the bound of cuda_matmul_tf32 (test_cuda_matmul.h) must be twice as wide, and docs/gpus.md say so",
             ops->name, x[k], y, want[k]);
    }
    device_done(&c);
    op_free_all();
  }
}

// ---- NCCL of one rank -----------------------------------------------------------------------------------------------
enum { FIRST_GPU_N = 48 };
struct FirstGpuCalls { Tensor x, gathered, scattered, received, sum, told; };
static FirstGpuCalls hardware_tensors(Ctx *c) {
  const int64_t n = FIRST_GPU_N;
  return {device_tensor(c, F32, n), device_tensor(c, F32, n), device_tensor(c, F32, n), device_tensor(c, F32, n),
          device_tensor(c, F32, n), device_tensor(c, F32, n)};
}
// Every call of the table once; of one rank each gives what it is given.
static void hardware_calls(Ctx *c, void *comm, FirstGpuCalls t) {
  const Collectives *nccl = c->ops->nccl;
  const size_t bytes = FIRST_GPU_N * 4;
  c->ops->copy(c, t.sum.data, t.x.data, bytes);
  c->ops->copy(c, t.told.data, t.x.data, bytes);
  nccl->all_gather(c, comm, t.gathered.data, t.x.data, bytes);
  nccl->reduce_scatter(c, comm, t.scattered, t.x.data);
  nccl->group_begin(c);
  nccl->send(c, comm, t.x.data, bytes, 0);
  nccl->receive(c, comm, t.received.data, bytes, 0);
  nccl->group_end(c);
  nccl->all_reduce(c, comm, t.sum);
  nccl->broadcast(c, comm, t.told.data, bytes, 0);
}
static void hardware_expect(Ctx *c, FirstGpuCalls t, float value, const char *how) {
  const struct { const char *call; Tensor got; } results[] = {
      {"all_gather", t.gathered}, {"reduce_scatter", t.scattered}, {"send and receive", t.received},
      {"all_reduce", t.sum},      {"broadcast", t.told}};
  for (const auto &r : results) {
    const float *got = (const float *)device_download(c, r.got).data;
    for (int k = 0; k < FIRST_GPU_N; k++)
      EXPECT(got[k] == value + (float)k, "%s, %s: %s of one rank gives %g at %d, was given %g", c->ops->name, how,
             r.call, got[k], k, value + (float)k);
  }
}
static void hardware_write(Ctx *c, Tensor x, float value) {
  Tensor host = op_tensor(F32, FIRST_GPU_N);
  for (int k = 0; k < FIRST_GPU_N; k++) ((float *)host.data)[k] = value + (float)k;
  device_write(c, x, host);
}
TEST(hardware_nccl_calls, "NCCL of one rank, opened and split: every call eagerly, and captured, on two streams") {
  for (int i = 0; const Ops *ops = device_table(i); i++) {
    Ctx c = hardware_ctx(ops), side;
    char id[NCCL_ID_BYTES];
    void *comm[2], *graph, *fork, *join;
    ops->side_open(&c, &side, "side");
    ops->event_open(&c, &fork, "fork");
    ops->event_open(&c, &join, "join");
    ops->nccl->id_make(&c, id);
    ops->nccl->comm_open(&c, &comm[0], id, 0, 1);
    ops->nccl->comm_split(&c, &comm[1], comm[0], 0, 0);
    FirstGpuCalls t[2] = {hardware_tensors(&c), hardware_tensors(&c)};
    for (int k = 0; k < 2; k++) {
      hardware_write(&c, t[k].x, 1.0f + (float)k);
      hardware_calls(&c, comm[k], t[k]);
      hardware_expect(&c, t[k], 1.0f + (float)k, k ? "split, eager" : "eager");
    }
    ops->graph_begin(&c);
    ops->event_record(&c, fork);
    ops->event_wait(&side, fork);
    hardware_calls(&c, comm[0], t[0]);
    hardware_calls(&side, comm[1], t[1]);
    ops->event_record(&side, join);
    ops->event_wait(&c, join);
    ops->graph_end(&c, &graph);
    for (float value = 10.0f; value < 40.0f; value += 10.0f) {
      for (int k = 0; k < 2; k++) hardware_write(&c, t[k].x, value + (float)k);
      ops->graph_launch(&c, graph);
      ops->sync(&c);
      for (int k = 0; k < 2; k++) hardware_expect(&c, t[k], value + (float)k, "captured");
    }
    ops->graph_close(&c, graph);                 // first: NCCL waits for graphs that hold its calls
    ops->nccl->comm_close(&c, comm[1]);
    ops->nccl->comm_close(&c, comm[0]);
    ops->event_close(&c, fork);
    ops->event_close(&c, join);
    ops->side_close(&side);
    device_done(&c);
    op_free_all();
  }
}

// ---- what only hardware has -----------------------------------------------------------------------------------------
TEST(hardware_priorities, "kernels that a side stream captures keep its priority in the graph") {
  for (int i = 0; const Ops *ops = device_table(i); i++) {
    if (ops == &ops_cuda_emulated) continue;    // the emulated device has no scheduler that would look at them
    Ctx c = hardware_ctx(ops), side;
    int p[2] = {99, 99};
    ops->side_open(&c, &side, "side");
    cuda_probe_priorities(&c, &side, p);
    printf("NOTE: priorities of captured kernels: %d on the model's stream, %d on a side stream\n", p[0], p[1]);
    EXPECT(p[1] < p[0], "captured kernels have priority %d and, of a side stream, %d: see side_open_impl of "
           "cuda.cu, or set cudaLaunchAttributePriority on the nodes before the graph is instantiated", p[0],
           p[1]);
    ops->side_close(&side);
    device_done(&c);
  }
}
TEST(hardware_memory, "what CUDA, cuBLASLt and NCCL take for themselves is told, and comes back") {
  for (int i = 0; const Ops *ops = device_table(i); i++) {
    Ctx c = {};
    c.ops = ops;
    ops->device_open(&c, 0);
    size_t opened, total, before, with, after;
    char id[NCCL_ID_BYTES];
    void *comm;
    ops->memory_opened(&c, &opened);
    ops->memory_left(&c, &before, &total);
    ops->nccl->id_make(&c, id);
    ops->nccl->comm_open(&c, &comm, id, 0, 1);
    ops->memory_left(&c, &with, &total);
    ops->nccl->comm_close(&c, comm);
    ops->memory_left(&c, &after, &total);
    const double mib = 0x1p20, nccl = before > with ? (double)(before - with) : 0;
    printf("NOTE: %s: of %.1f MiB CUDA's contexts and other processes have %.1f, opening took %.1f (cuBLASLt, "
           "streams), NCCL of one rank %.1f, and %.1f stay taken\n", ops->name, (double)total / mib,
           (double)(total - before - opened) / mib, (double)opened / mib, nccl / mib,
           before > after ? (double)(before - after) / mib : 0.0);
    EXPECT(opened < total / 4 && before <= total, "%s: opening took %zu bytes of %zu: memory_opened of cuda.cu "
           "counts what others take", ops->name, opened, total);
    ops->device_close(&c);
  }
}
