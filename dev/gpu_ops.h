// gpu_ops.h: `build/bench_ops gpu`: ops of a training step alone, on GPU 0.
//
// Each value is the median of GPU_SAMPLES; a sample is GPU_CALLS calls between two readings of the device's clock, that
// add about 1 us to a call. Operands are normal random numbers, mostly far larger than the L2 cache.
// TFLOP/s of attention count what a causal mask leaves, the documents' own squares alone where there are some: per head
// and document of T tokens forward 2 T^2 hs, two products of half a square, and backward five, 5 T^2 hs, however many
// the kernels compute. GB/s count every operand once, read or written.
#pragma once
#include "kernels/ops_all.h"

enum { GPU_SAMPLES = 21, GPU_CALLS = 4, GPU_TENSORS = 24 };
// `gpu small`: short sequences, few rows, every call once: whether the calls are right, for the emulator.
static bool gpu_is_small;
static int64_t gpu_size(int64_t n, int64_t small) { return gpu_is_small ? min64(n, small) : n; }
struct GpuOps { Ctx c; int64_t *clock; struct { void *data; size_t bytes; } taken[GPU_TENSORS]; int count; };

static void *gpu_take(GpuOps *g, size_t bytes) {
  CHECK(g->count < GPU_TENSORS, "%d tensors", g->count);
  void *p;
  g->c.ops->memory_alloc(&g->c, &p, bytes, MEMORY_DEVICE);
  g->taken[g->count].data = p, g->taken[g->count++].bytes = bytes;
  return p;
}
static void gpu_free_to(GpuOps *g, int count) {
  g->c.ops->sync(&g->c);
  while (g->count > count) {
    g->count--;
    g->c.ops->memory_free(&g->c, g->taken[g->count].data, g->taken[g->count].bytes, MEMORY_DEVICE);
  }
}
// Zeros, or with std > 0 normal numbers.
static Tensor gpu_tensor(GpuOps *g, Dtype dtype, float std, int64_t d0, int64_t d1 = -1, int64_t d2 = -1) {
  Tensor t = tensor_of(NULL, dtype, d0, d1, d2);
  t.data = gpu_take(g, (size_t)numel(t) * dtype_bytes(dtype));
  const int before = g->count;
  if (std > 0) {
    const Tensor f = dtype == F32 ? t : tensor_of(gpu_take(g, (size_t)numel(t) * sizeof(float)), F32, d0, d1, d2);
    normal_fill(&g->c, f, 1, (uint32_t)before, 0, std);
    if (dtype != F32) convert(&g->c, t, f);
  }
  gpu_free_to(g, before);
  return t;
}
static Tensor gpu_ints(GpuOps *g, const int32_t *from, int64_t d0, int64_t d1 = -1) {
  const Tensor t = gpu_tensor(g, I32, 0, d0, d1);
  g->c.ops->copy(&g->c, t.data, from, (size_t)numel(t) * sizeof *from);
  g->c.ops->sync(&g->c);
  return t;
}
static int gpu_rising(const void *a, const void *b) {
  const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}
// us = median microseconds of a call of the statement, which queues it on g's stream.
#define GPU_US(us, ...) \
  do { \
    const int samples_ = gpu_is_small ? 1 : GPU_SAMPLES, calls_ = gpu_is_small ? 1 : GPU_CALLS; \
    for (int s_ = gpu_is_small ? 0 : -2; s_ < samples_; s_++) {        /* two to warm up */ \
      g->c.ops->stamp(&g->c, g->clock + 2 * max64(s_, 0)); \
      for (int i_ = 0; i_ < calls_; i_++) { __VA_ARGS__; } \
      g->c.ops->stamp(&g->c, g->clock + 2 * max64(s_, 0) + 1); \
    } \
    g->c.ops->sync(&g->c); \
    int64_t ns_[GPU_SAMPLES]; \
    for (int s_ = 0; s_ < samples_; s_++) ns_[s_] = g->clock[2 * s_ + 1] - g->clock[2 * s_]; \
    qsort(ns_, (size_t)samples_, sizeof *ns_, gpu_rising); \
    (us) = (double)ns_[samples_ / 2] / 1e3 / calls_; \
  } while (0)
static void gpu_say(const char *what, const char *shape, double us, double amount, const char *unit) {
  printf("%-28s %-42s %9.1f us %8.1f %s\n", what, shape, us, amount, unit);
  fflush(stdout);
}
static double gpu_bytes(std::initializer_list<Tensor> operands) {
  double n = 0;
  for (const Tensor &t : operands) if (t.data) n += (double)numel(t) * (double)dtype_bytes(t.dtype);
  return n;
}
#define GPU_SAY_BYTES(what, shape, us, ...) \
  gpu_say(what, shape, us, gpu_bytes({__VA_ARGS__}) / (us) / 1e3, "GB/s")

// The families of kernels that attention has, in the order of their numbers; all are measured that this device can run.
static const char *const gpu_attention_families[] = {"mma", "wgmma"};
static bool gpu_attention_choose(GpuOps *g, int family) {
  static DeviceProbe p;
  g->c.ops->device_probe(NULL, &p);
  g->c.attention_mma = family == 0;
  return family == 0 || p.device[0].wgmma;
}

struct GpuAttention { int64_t B, T; int heads, kv, hs; bool documents; };
static void gpu_attention(GpuOps *g, GpuAttention a) {
  if (gpu_is_small) a.B = 1, a.T = 128, a.heads /= a.kv, a.kv = 1;
  const int64_t C = a.heads * a.hs, columns = (a.heads + 2 * a.kv) * a.hs;
  static const int lengths[] = {64, 448, 128, 384, 256};         // tokens of documents, 256 on average
  double squares = 0;
  int32_t *start = (int32_t *)malloc(sizeof(int32_t) * (size_t)(a.B * a.T));
  for (int64_t b = 0, n = 0; b < a.B; b++)
    for (int64_t at = 0, length; at < a.T; at += length) {
      length = a.documents ? min64(lengths[n++ % 5], a.T - at) : a.T;
      squares += (double)length * (double)length;
      for (int64_t i = 0; i < length; i++) start[b * a.T + at + i] = (int32_t)at;
    }
  WorkspaceQuery q = {BF16, F32, a.B, a.T, C, a.heads, 64, 64};
  q.head_size = a.hs, q.n_kv_head = a.kv;
  g->c.ops->workspace_bytes(&g->c, q, &g->c.workspace_bytes);
  g->c.workspace = gpu_take(g, g->c.workspace_bytes);
  Tensor qkv = gpu_tensor(g, BF16, 1, a.B, a.T, columns), out = gpu_tensor(g, BF16, 0, a.B, a.T, C),
         lse = gpu_tensor(g, F32, 0, a.B, a.heads, a.T), dout = gpu_tensor(g, BF16, 1, a.B, a.T, C),
         dqkv = gpu_tensor(g, BF16, 0, a.B, a.T, columns), starts = {}, sums = {};
  if (a.heads == a.kv && attention_makes_sums(BF16, a.hs))       // GPT-2's kind, which has that bias
    sums = gpu_tensor(g, F32, 0, attention_sum_runs(a.B, a.T), columns);
  if (a.documents) starts = gpu_ints(g, start, a.B, a.T);
  free(start);
  char shape[96], what[64];
  snprintf(shape, sizeof shape, "B %lld T %lld H %d/%d hs %d%s", (long long)a.B, (long long)a.T, a.heads, a.kv, a.hs,
           a.documents ? " documents" : "");
  const Dropout none = {};
  for (int f = 0; f < (int)(sizeof gpu_attention_families / sizeof *gpu_attention_families); f++) {
    if (!gpu_attention_choose(g, f)) continue;
    double us;
    const double flops = 2 * squares * a.hs * a.heads;
    GPU_US(us, attention_forward(&g->c, out, lse, qkv, a.heads, none, starts));
    snprintf(what, sizeof what, "attention forward, %s", gpu_attention_families[f]);
    gpu_say(what, shape, us, flops / us / 1e6, "TFLOP/s");
    GPU_US(us, attention_backward(&g->c, dqkv, dout, qkv, out, lse, a.heads, none, starts));
    snprintf(what, sizeof what, "attention backward, %s", gpu_attention_families[f]);
    gpu_say(what, shape, us, 2.5 * flops / us / 1e6, "TFLOP/s");
    if (!sums.data) continue;
    // With the sums of the bias of q, k and v, which save the pass of a line of dbias.
    GPU_US(us, attention_backward(&g->c, dqkv, dout, qkv, out, lse, a.heads, none, starts, sums));
    snprintf(what, sizeof what, "attention backward and sums, %s", gpu_attention_families[f]);
    gpu_say(what, shape, us, 2.5 * flops / us / 1e6, "TFLOP/s");
  }
  gpu_attention_choose(g, 0);
  gpu_free_to(g, 0);
}
static void gpu_rope(GpuOps *g, const char *shape, int64_t B, int heads, int kv, int hs, QkNorm norm) {
  const int64_t T = gpu_size(1024, 32);
  B = gpu_size(B, 1);
  WorkspaceQuery q = {BF16, F32, B, T, heads * hs, heads, 64, 64};
  q.head_size = hs, q.n_kv_head = kv;
  g->c.ops->workspace_bytes(&g->c, q, &g->c.workspace_bytes);
  g->c.workspace = gpu_take(g, g->c.workspace_bytes);
  Tensor qkv = gpu_tensor(g, BF16, 1, B, T, (heads + 2 * kv) * hs), table = gpu_tensor(g, F32, 0.5f, T, hs),
         turned = tensor_of(qkv.data, BF16, B, T, (heads + kv) * hs), raw = {}, weight = {}, sums[2] = {};
  if (norm != QK_NORM_OFF) {
    raw = gpu_tensor(g, BF16, 1, B, T, (heads + kv) * hs), weight = gpu_tensor(g, BF16, 1, hs);
    for (Tensor &s : sums) s = gpu_tensor(g, F32, 0, hs);
  }
  const RopeArgs a = {heads, hs, norm, 1e-6f};
  double us;
  GPU_US(us, rope_forward(&g->c, qkv, raw, table, weight, weight, a));
  GPU_SAY_BYTES("rope forward", shape, us, turned, turned, raw);
  GPU_US(us, rope_backward(&g->c, qkv, sums[0], sums[1], raw, table, weight, weight, a, OVERWRITE));
  GPU_SAY_BYTES("rope backward", shape, us, turned, turned, raw);
  gpu_free_to(g, 0);
}
// logits of R rows over a vocabulary V
static void gpu_cross_entropy(GpuOps *g, Dtype logits_dtype, int64_t R, int64_t V) {
  char shape[64];
  R = gpu_size(R, 1024), V = gpu_size(V, 128);
  snprintf(shape, sizeof shape, "%lld x %lld, logits %s", (long long)R, (long long)V, dtype_name(logits_dtype));
  g->c.ops->workspace_bytes(&g->c, {BF16, F32, R / 1024, 1024, 768, 12, V, R}, &g->c.workspace_bytes);
  g->c.workspace = gpu_take(g, g->c.workspace_bytes);
  Tensor logits = gpu_tensor(g, logits_dtype, 1, R, V), dlogits = gpu_tensor(g, BF16, 0, R, V),
         losses = gpu_tensor(g, F32, 0, R), correct = gpu_tensor(g, I32, 0, R), targets = gpu_tensor(g, I32, 0, R);
  double us;
  if (logits_dtype == F32) {                     // as an evaluation has them
    GPU_US(us, cross_entropy_forward(&g->c, losses, correct, logits, targets, V - 47));
    GPU_SAY_BYTES("cross entropy", shape, us, logits);
  }
  GPU_US(us, cross_entropy_forward_backward(&g->c, losses, dlogits, logits, targets, V - 47, 1e-4f, 0));
  GPU_SAY_BYTES("cross entropy and gradient", shape, us, logits, dlogits);
  gpu_free_to(g, 0);
}
static void gpu_rows(GpuOps *g, int64_t B, int64_t C) {
  const int64_t T = gpu_size(1024, 32);
  char shape[64];
  B = gpu_size(B, 1);
  snprintf(shape, sizeof shape, "B %lld T %lld C %lld", (long long)B, (long long)T, (long long)C);
  WorkspaceQuery q = {BF16, F32, B, T, C, C / 64, 64, 64};
  q.norm_sums = 3;
  g->c.ops->workspace_bytes(&g->c, q, &g->c.workspace_bytes);
  g->c.workspace = gpu_take(g, g->c.workspace_bytes);
  Tensor x = gpu_tensor(g, BF16, 1, B, T, C), y = gpu_tensor(g, BF16, 0, B, T, C), d = gpu_tensor(g, BF16, 1, B, T, C),
         w = gpu_tensor(g, BF16, 1, C), b = gpu_tensor(g, BF16, 1, C), mean = gpu_tensor(g, F32, 0, B, T),
         rstd = gpu_tensor(g, F32, 0, B, T), dw = gpu_tensor(g, F32, 0, C), db = gpu_tensor(g, F32, 0, C),
         sum = gpu_tensor(g, F32, 0, 1, C);
  double us;
  GPU_US(us, layernorm_forward(&g->c, y, mean, rstd, x, w, b, 1e-5f));
  GPU_SAY_BYTES("layernorm forward", shape, us, x, y);
  GPU_US(us, layernorm_backward(&g->c, y, Tensor{}, dw, db, d, x, w, mean, rstd, Dropout{}, OVERWRITE));
  GPU_SAY_BYTES("layernorm backward", shape, us, d, x, y, y);
  // With the sums of a projection's bias: what this takes more must be less than the line of dbias.
  GPU_US(us, layernorm_backward(&g->c, y, Tensor{}, dw, db, d, x, w, mean, rstd, Dropout{}, OVERWRITE, sum));
  GPU_SAY_BYTES("layernorm backward and sums", shape, us, d, x, y, y);
  GPU_US(us, matmul_backward_weight(&g->c, Tensor{}, db, reshaped(d, B * T, C), reshaped(x, B * T, C), OVERWRITE));
  GPU_SAY_BYTES("dbias", shape, us, d);
  gpu_free_to(g, 0);
}
static void gpu_parameters(GpuOps *g, int64_t n) {
  char shape[64];
  n = gpu_size(n, 4096);
  snprintf(shape, sizeof shape, "%lld parameters", (long long)n);
  g->c.workspace_bytes = 0, g->c.workspace = NULL;
  Tensor grad = gpu_tensor(g, F32, 1e-3f, n), m = gpu_tensor(g, F32, 0, n), v = gpu_tensor(g, F32, 0, n),
         param = gpu_tensor(g, BF16, 0.02f, n), low = gpu_tensor(g, LOW16, 0, n),
         limbs = gpu_tensor(g, F32, 0, 2 * NORM_LIMBS);
  double us;
  GPU_US(us, norm_accumulate(&g->c, (int64_t *)limbs.data, grad));
  GPU_SAY_BYTES("norm of gradients", shape, us, grad);
  GPU_US(us, adamw_update(&g->c, param, low, m, v, grad, AdamwArgs{0.9f, 0.95f, 1e-8f, 0.1f}));
  GPU_SAY_BYTES("adamw", shape, us, param, param, low, low, m, m, v, v, grad);
  m.dtype = v.dtype = BF16;
  GPU_US(us, adamw_update(&g->c, param, low, m, v, grad, AdamwArgs{0.9f, 0.95f, 1e-8f, 0.1f}));
  GPU_SAY_BYTES("adamw, bf16 moments", shape, us, param, param, low, low, m, m, v, v, grad);
  gpu_free_to(g, 0);
}

// The whole table; dies where there is no GPU.
static void bench_gpu_ops(const Ops *ops, bool is_small) {
  static GpuOps g[1];
  static DeviceProbe p;
  *g = {}, gpu_is_small = is_small;
  if (ops) ops->device_probe(NULL, &p);
  if (!p.devices) die_with(1, "gpu: %s", ops ? p.missing : "this build has no CUDA kernels");
  g->c.ops = ops, g->c.threads = 1;
  ops->device_open(&g->c, 0);
  void *clock, *state_memory;
  ops->memory_alloc(&g->c, &clock, sizeof(int64_t) * 2 * GPU_SAMPLES, MEMORY_PINNED);
  ops->memory_alloc(&g->c, &state_memory, sizeof(StepState), MEMORY_DEVICE);
  StepState s = {};
  s.in.lr = 1e-4f, s.loss_scale = s.grad_scale = s.bias_correction1 = s.bias_correction2 = 1;
  ops->copy(&g->c, state_memory, &s, sizeof s);
  ops->sync(&g->c);
  g->clock = (int64_t *)clock, g->c.state = (const StepState *)state_memory;
  if (gpu_is_small) printf("# %s: small shapes, each call once\n", p.device[0].name);
  else printf("# %s: medians of %d samples of %d calls\n", p.device[0].name, GPU_SAMPLES, GPU_CALLS);
  for (GpuAttention a : {GpuAttention{32, 1024, 12, 12, 64, false}, {8, 1024, 25, 25, 64, false},
                         {8, 4096, 12, 12, 64, false}, {16, 1024, 9, 3, 64, false}, {8, 1024, 16, 8, 128, false},
                         {2, 4096, 16, 16, 128, false}, {32, 1024, 12, 12, 64, true}, {8, 4096, 12, 12, 64, true}})
    gpu_attention(g, a);
  gpu_rope(g, "smollm2-135m, B 32 T 1024", 32, 9, 3, 64, QK_NORM_OFF);
  gpu_rope(g, "qwen3-0.6b, B 16 T 1024, norm", 16, 16, 8, 128, QK_NORM_BEFORE);
  for (Dtype dtype : {F32, BF16}) gpu_cross_entropy(g, dtype, 8192, 50304);      // those that logits can have
  gpu_rows(g, 32, 768);
  gpu_rows(g, 16, 1600);
  gpu_parameters(g, (int64_t)1 << 28);
  ops->memory_free(&g->c, clock, sizeof(int64_t) * 2 * GPU_SAMPLES, MEMORY_PINNED);
  ops->memory_free(&g->c, state_memory, sizeof(StepState), MEMORY_DEVICE);
  ops->device_close(&g->c);
}
