// emu.cc: the test program's CUDA: kernels/cuda/cuda.cu on emulated threads and streams, and its controls. Tables:
//   ops_cuda_emulated   the CUDA kernels, thread by thread: each is compared once with the CPU's op
//   ops_streams         the CPU's plainest ops, queued on emulated streams like kernels, with the emulated device's
//                       memory, streams, events, graphs and collectives: fast, for whole training runs
// Like the kernels it is an object for each family of ops; what the device has once is in family `device`.
#define CUDA_TABLE ops_cuda_emulated
#define CUDA_TABLE_NAME "cuda_emulated"
#define PART_CUDA 1
#include "kernels/ops.h"
#include "kernels/cuda/gpu.h"
#include <tuple>

// ---- ops_streams
#if defined(__aarch64__)
#define ops_plain ops_neon
#else
#define ops_plain ops_avx2
#endif
const char *op_word(int op);                     // kernels/op_calls.h
template <class P> static void queued_check(P p, const char *op) { emu_check_argument(p, op); }
[[maybe_unused]] static void queued_check(Tensor t, const char *op) { emu_device_pointer(t.data, op); }
#if FAMILY(matmul)
#include "kernels/ops_matmul.h"
static void queued_check(MatmulEpilogue e, const char *op) {
  emu_device_pointer(e.bias.data, op);
  emu_device_pointer(e.gelu.data, op);
}
#endif
// The context that the CPU's op sees when the stream runs it. c->state stays device memory, read at that time.
[[maybe_unused]] static Ctx queued_ctx(const Ctx *c) {
  Ctx copy = *c;
  copy.ops = &ops_plain;
  copy.stream = copy.device = NULL;
  return copy;
}
template <int NUMBER, auto InOps, auto Op> struct Queued;
template <int NUMBER, class T, class... P, const T *Ops::*InOps, void (*T::*Op)(Ctx *, P...)>
struct Queued<NUMBER, InOps, Op> {
  static void call(Ctx *c, P... p) {
    const char *name = op_word(NUMBER);
    (queued_check(p, name), ...);
    emu_device_pointer(c->state, name);
    emu_device_pointer(c->workspace, name);
    const std::tuple<Ctx, P...> arguments(queued_ctx(c), p...);
    emu_push(STREAM(c), name, [=] {
      Ctx copy = std::get<0>(arguments);
      emu_count.kernels++;
      emu_open_arguments(&arguments, sizeof arguments);
      (ops_plain.*InOps->*Op)(&copy, p...);
      return true;
    });
  }
};
// The family's tables: of the kernels, and for streams.
#define QUEUED(op, args, touches) Queued<OP_##op, in_ops, &Table::op>::call,
#undef FAMILY_OPS
#define FAMILY_OPS(family, Table_) \
  const Table_ family##_ops = {OPS_##family(OP_IMPL)}; \
  void emu_streams_##family(Ops *t) { \
    typedef Table_ Table; \
    constexpr const Table *Ops::*in_ops = &Ops::family; \
    static const Table table = {OPS_##family(QUEUED)}; \
    t->family = &table; \
  }
#include "kernels/cuda/cuda.cu"

#if FAMILY(device)
#include "selftest.h"
#define X(family, Table, isa) void emu_streams_##family(Ops *t);
OP_FAMILIES(X)
#undef X
static void streams_device_open(Ctx *c, int index) {
  Ctx cpu = queued_ctx(c);
  ops_plain.device_open(&cpu, 0);
  device_open_impl(c, index);
}
static void streams_workspace_bytes(Ctx *c, WorkspaceQuery q, size_t *bytes) {
  Ctx cpu = queued_ctx(c);
  ops_plain.workspace_bytes(&cpu, q, bytes);
}
static Ops streams_table() {
  Ops t = ops_cuda_emulated;
  t.name = "streams";
  t.device_open = streams_device_open;
  t.workspace_bytes = streams_workspace_bytes;
#define X(family, Table, isa) emu_streams_##family(&t);
  OP_FAMILIES(X)
#undef X
  return t;
}
const Ops ops_streams = streams_table();

// ---- emu.h
void emu_set_seed(uint64_t seed) {
  emu_seed_now = seed;
  emu_random_state = seed * 0x9e3779b97f4a7c15u + 1;
  emu_order.clear();
}
int emu_waits(EmuWait *to, int most) {
  const int n = (int)emu_wait_pairs.size();
  for (int i = 0; i < n && i < most; i++) to[i] = emu_wait_pairs[(size_t)i];
  return n;
}
void emu_skip_waits(const char *event, const char *stream) {
  emu_skip_event = event ? event : "";
  emu_skip_stream = stream ? stream : "";
}
void emu_set_device_bytes(size_t bytes) { emu_device_bytes_now = bytes; }
void emu_set_shared_limit(size_t bytes) { emu_shared_limit_now = bytes; }
void emu_set_capability(int capability) { emu_capability_now = capability; }
void emu_set_built_for(int capability) { emu_built_for_now = capability; }
void emu_set_integrated(size_t cached_bytes) { emu_cached_bytes = cached_bytes; }
void emu_set_devices(int count) { emu_devices_now = count; }
void emu_set_instances(int of_a_gpu) { emu_instances_now = of_a_gpu; }
EmuCounters emu_counters() { return emu_count; }
void emu_probe(Ctx *c, int what, void *to, const void *from) { cuda_probe(c, what, to, from); }
#endif
