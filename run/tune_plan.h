// tune_plan.h: --tune plan measures what ops reach on this CPU (peaks.h), once, for predictions about this machine.
//
//   1 ranks     as many processes as --world says, with the threads that ranks would have, measuring at the same time
//   2 calls     of each kind of op at a size, over memory that is as cold as in a step
//   3 measuring tune_plan_main
//
// Every rate is the median over rounds; a round lasts as long as its slowest rank. All is measured twice, the second
// time after the whole first, and the better median counts: what else runs on the machine for some seconds spoils one
// of them.
#pragma once
#include "fork_work.h"
#include "plan_worlds.h"
#include "report.h"
#include "terminal.h"
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>

// ================================================================================================ 1 ranks
enum { TUNE_RANKS_MOST = 256, TUNE_ROUNDS = 3, TUNE_PASSES = 2, TUNE_WAIT_MS = 60000 };
static const double TUNE_ROUND_MS = 4;
static const size_t TUNE_BYTES = (size_t)192 << 20;
// What the ranks share. arrived: at barriers so far, of all. calls: of a round, chosen by rank 0.
struct TuneShared { int64_t arrived, calls; double ms[TUNE_RANKS_MOST]; };
struct TuneRank { TuneShared *shared; int rank, ranks; int64_t barriers; };
// All ranks have come. A rank that has died ends the others after a minute.
static inline void tune_barrier(TuneRank *r) {
  const int64_t until = ++r->barriers * r->ranks;
  __atomic_add_fetch(&r->shared->arrived, 1, __ATOMIC_ACQ_REL);
  const double start = now_ms();
  for (int64_t turn = 1; __atomic_load_n(&r->shared->arrived, __ATOMIC_ACQUIRE) < until; turn++) {
    if (turn % 64) continue;
    sched_yield();                               // ranks may outnumber cores
    CHECK(now_ms() - start < TUNE_WAIT_MS, "--tune plan: rank %d waits for others since a minute: one has ended",
          r->rank);
  }
}

// ================================================================================================ 2 calls
// Memory of a rank, taken round and round: `span` bytes of it until it begins again. tokens: of an embedding, or
// targets.
struct TuneMemory { char *base; size_t at, span; int32_t *tokens; };
static const int64_t TUNE_VOCAB = 8192, TUNE_TOKENS = 1 << 17;
static inline Tensor tune_tensor(TuneMemory *m, Dtype dtype, int64_t a, int64_t b = -1, int64_t c = -1) {
  Tensor t = tensor_of(NULL, dtype, a, b, c);
  const size_t bytes = align_bytes((size_t)numel(t) * dtype_bytes(dtype));
  CHECK(bytes <= TUNE_BYTES, "--tune plan: a tensor of %zu bytes", bytes);
  if (m->at && m->at + bytes > m->span) m->at = 0;
  t.data = m->base + m->at;
  m->at += bytes;
  return t;
}
struct TuneCall { PeakKind kind; double x, y; Dtype dtype; };
// A matrix multiply of a block: of (rows, n) by (n, k) or as wide as a head.
static inline void tune_product(Ctx *c, TuneMemory *m, const TuneCall *t) {
  const int64_t R = (int64_t)t->y, C = (int64_t)t->x, W = 16 * C;
  const Dtype d = t->dtype;
  const auto forward = [&](int64_t N, int64_t K, bool gelu) {
    matmul_forward(c, tune_tensor(m, d, R, N), tune_tensor(m, d, R, K), tune_tensor(m, d, N, K),
                   MatmulEpilogue{tune_tensor(m, d, N), gelu ? tune_tensor(m, d, R, N) : Tensor{}});
  };
  const auto input = [&](int64_t N, int64_t K, bool gelu) {
    matmul_backward_input(c, tune_tensor(m, d, R, K), tune_tensor(m, d, R, N), tune_tensor(m, d, N, K),
                          gelu ? tune_tensor(m, d, R, K) : Tensor{});
  };
  const auto weight = [&](int64_t N, int64_t K) {
    matmul_backward_weight(c, tune_tensor(m, d, N, K), tune_tensor(m, d, N), tune_tensor(m, d, R, N),
                           tune_tensor(m, d, R, K), OVERWRITE);
  };
  switch (t->kind) {
    case PEAK_FORWARD: forward(3 * C, C, false); forward(C, 4 * C, false); break;
    case PEAK_FORWARD_GELU: forward(4 * C, C, true); break;
    case PEAK_INPUT: input(3 * C, C, false); input(4 * C, C, false); break;
    case PEAK_INPUT_GELU: input(C, 4 * C, true); break;
    case PEAK_WEIGHT: weight(3 * C, C); weight(4 * C, C); weight(C, 4 * C); break;
    case PEAK_WIDE_FORWARD:
      matmul_forward(c, tune_tensor(m, F32, R, W), tune_tensor(m, d, R, C), tune_tensor(m, d, W, C), MatmulEpilogue{});
      break;
    case PEAK_WIDE_INPUT: input(W, C, false); break;
    default:
      matmul_backward_weight(c, tune_tensor(m, F32, W, C), Tensor{}, tune_tensor(m, d, R, W), tune_tensor(m, d, R, C),
                             ADD);
  }
}
static inline void tune_attention(Ctx *c, TuneMemory *m, const TuneCall *t) {
  const int64_t T = (int64_t)t->y, hs = (int64_t)t->x, H = 6, C = H * hs, B = max64(1, 1024 / T);
  const Dtype d = t->dtype;
  Tensor out = tune_tensor(m, d, B, T, C), lse = tune_tensor(m, F32, B, H, T), qkv = tune_tensor(m, d, B, T, 3 * C);
  if (t->kind == PEAK_ATTEND) attention_forward(c, out, lse, qkv, (int)H, Dropout{});
  else
    attention_backward(c, tune_tensor(m, d, B, T, 3 * C), tune_tensor(m, d, B, T, C), qkv, out, lse, (int)H, Dropout{});
}
// Rows of 512 channels, as many as make a call of about t->x bytes.
static inline void tune_rows(Ctx *c, TuneMemory *m, const TuneCall *t) {
  const int64_t C = 512;
  const Dtype d = t->dtype;
  const double each = (double)C * (double)dtype_bytes(d);
  const auto rows = [&](double tensors) { return max64(1, (int64_t)(t->x / (each * tensors))); };
  if (t->kind == PEAK_EMBEDDING || t->kind == PEAK_EMBEDDING_BACKWARD) {
    const bool back = t->kind == PEAK_EMBEDDING_BACKWARD;
    const int64_t R = min64(rows(back ? 1 + 8 / (double)dtype_bytes(d) : 3), 8192), T = min64(R, 256), B = R / T;
    Tensor tokens = tensor_of(m->tokens, I32, B, T), wte = tensor_of(m->base, back ? F32 : d, TUNE_VOCAB, C);
    Tensor wpe = tune_tensor(m, back ? F32 : d, T, C), x = tune_tensor(m, d, B, T, C);
    if (!back) embedding_forward(c, x, tokens, wte, wpe, Dropout{});
    else embedding_backward(c, wte, wpe, x, tokens, Dropout{}, OVERWRITE);
    return;
  }
  if (t->kind == PEAK_CROSS_ENTROPY) {
    const int64_t V = 2048, R = max64(1, (int64_t)(t->x / ((double)V * (4 + (double)dtype_bytes(d)))));
    Tensor logits = tune_tensor(m, F32, R + 1, V);
    if (d != F32) logits.data = (char *)logits.data + 2 * V;       // its gradient begins a row before it
    logits = tensor_of(logits.data, F32, R, V);
    Tensor dlogits = tensor_of(d == F32 ? (char *)logits.data : (char *)logits.data - 2 * V, d, R, V);
    cross_entropy_forward_backward(c, tune_tensor(m, F32, R), dlogits, logits, tensor_of(m->tokens, I32, R), V, 1e-3f,
                                   0.0f);
    return;
  }
  const int64_t R = rows(t->kind == PEAK_NORM || t->kind == PEAK_GELU ? 2 : t->kind == PEAK_RESIDUAL_NORM ? 4 : 5);
  const int64_t T = min64(R, 256), B = R / T;
  Tensor w = tune_tensor(m, d, C), b = tune_tensor(m, d, C), mean = tune_tensor(m, F32, B, T);
  Tensor rstd = tune_tensor(m, F32, B, T), x = tune_tensor(m, d, B, T, C), y = tune_tensor(m, d, B, T, C);
  if (t->kind == PEAK_NORM) layernorm_forward(c, y, mean, rstd, x, w, b, LAYERNORM_EPS);
  else if (t->kind == PEAK_GELU) gelu_forward(c, y, x);
  else if (t->kind == PEAK_RESIDUAL_NORM) {
    Tensor branch = tune_tensor(m, d, B, T, C);
    residual_layernorm_forward(c, branch, y, mean, rstd, x, branch, w, b, LAYERNORM_EPS, Dropout{});
  } else {
    Tensor dresidual = tune_tensor(m, d, B, T, C);
    layernorm_backward(c, dresidual, dresidual, w, b, y, x, tune_tensor(m, d, C), mean, rstd, Dropout{}, OVERWRITE);
  }
}
// Ranges of elements, as many as make a call of about t->x bytes.
static inline void tune_range(Ctx *c, TuneMemory *m, const TuneCall *t) {
  const Dtype d = t->dtype;
  const double half = d == F32 ? 0 : 1;
  const auto count = [&](double bytes) { return max64(64, (int64_t)(t->x / bytes) / 64 * 64); };
  const AdamwArgs adamw = {0.9f, 0.95f, 1e-8f, 0.1f};
  const SgdArgs sgd = {0.9f, 0.1f};
  if (t->kind == PEAK_COPY || t->kind == PEAK_ZERO) {
    Tensor to = tune_tensor(m, F32, count(t->kind == PEAK_COPY ? 8 : 4));
    if (t->kind == PEAK_ZERO) c->ops->zero(c, to.data, (size_t)numel(to) * 4);
    else c->ops->copy(c, to.data, tune_tensor(m, F32, numel(to)).data, (size_t)numel(to) * 4);
    return;
  }
  if (t->kind == PEAK_CONVERT) {
    const int64_t n = count(6);
    convert(c, tune_tensor(m, BF16, n), tune_tensor(m, F32, n));
    return;
  }
  if (t->kind == PEAK_ACCUMULATE) {
    const int64_t n = count(8 + 2 * (double)dtype_bytes(d));
    Summands in = {};
    in.dtype = d, in.count = 2;
    in.data[0] = tune_tensor(m, d, n).data, in.data[1] = tune_tensor(m, d, n).data;
    accumulate(c, tune_tensor(m, F32, n), in, ADD);
    return;
  }
  if (t->kind == PEAK_NORM_ACCUMULATE) {
    static int64_t limbs[NORM_LIMBS];
    memset(limbs, 0, sizeof limbs);
    norm_accumulate(c, limbs, tune_tensor(m, F32, count(4)));
    return;
  }
  const bool adam = t->kind == PEAK_ADAMW;
  const int64_t n = count(adam ? 28 : 20);
  Tensor param = half ? tune_tensor(m, BF16, n) : Tensor{}, master = tune_tensor(m, half ? LOW16 : F32, n);
  Tensor first = tune_tensor(m, F32, n), grad = tune_tensor(m, F32, n);
  if (adam) adamw_update(c, param, master, first, tune_tensor(m, F32, n), grad, adamw);
  else sgd_update(c, param, master, first, grad, sgd);
}
static inline void tune_call(Ctx *c, TuneMemory *m, const TuneCall *t) {
  if (peak_axes[t->kind] == PEAK_PRODUCTS) tune_product(c, m, t);
  else if (peak_axes[t->kind] == PEAK_ATTENTION) tune_attention(c, m, t);
  else if (t->kind < PEAK_ADAMW) tune_rows(c, m, t);
  else tune_range(c, m, t);
}

// ================================================================================================ 3 measuring
// The work of a call, as predictions count it, and which rate it would be given: the call is made over the table of
// predictions. bytes: that it touches.
struct TuneWork { double amount, bytes; PeakAt at; };
static TuneWork tune_seen;
static inline void tune_see(const CallWork *w, const OpKind *kind) {
  tune_seen.amount += work_amount(w, kind);
  tune_seen.bytes += w->bytes;
  tune_seen.at = peak_at(w, kind);
}
static inline TuneWork tune_work(const Ctx *c, TuneMemory m, const TuneCall *t) {
  const Ops table = timeline_table(false);
  Ctx counts = *c;
  tune_seen = TuneWork{};
  if (t->kind == PEAK_COPY || t->kind == PEAK_ZERO) {            // no ops
    tune_seen.amount = tune_seen.bytes = floor(t->x / 256) * 256;
    tune_seen.at = PeakAt{t->kind, tune_seen.amount, 1};
    return tune_seen;
  }
  counts.ops = &table;
  work_seen = tune_see;
  tune_call(&counts, &m, t);
  work_seen = NULL;
  return tune_seen;
}
static inline int doubles_in_order(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}
// Work per second of a rank, while all measure.
static inline double tune_rate(TuneRank *r, Ctx *c, TuneMemory *m, const TuneCall *t) {
  const TuneWork w = tune_work(c, *m, t);
  double ms[TUNE_ROUNDS];
  m->span = (size_t)fmin((double)TUNE_BYTES, fmax(32 * w.bytes, 8 << 20));
  m->at = 0;
  tune_call(c, m, t);
  tune_barrier(r);
  const double start = now_ms();
  tune_call(c, m, t);
  if (!r->rank) r->shared->calls = (int64_t)fmin(fmax(1, ceil(TUNE_ROUND_MS / fmax(now_ms() - start, 1e-4))), 4000);
  for (double &x : ms) {
    tune_barrier(r);
    const double begun = now_ms();
    for (int64_t i = 0; i < r->shared->calls; i++) tune_call(c, m, t);
    r->shared->ms[r->rank] = now_ms() - begun;
    tune_barrier(r);
    x = 0;
    for (int k = 0; k < r->ranks; k++) x = fmax(x, r->shared->ms[k]);
  }
  tune_barrier(r);
  qsort(ms, TUNE_ROUNDS, sizeof *ms, doubles_in_order);
  return w.amount * (double)r->shared->calls / ms[TUNE_ROUNDS / 2] * 1e3;
}
static inline double tune_latency(TuneRank *r) {
  enum { TURNS = 2000 };
  const double start = now_ms();
  for (int i = 0; i < TURNS; i++) tune_barrier(r);
  return (now_ms() - start) * 1e-3 / TURNS;
}
// All rates, into p; every rank does the same.
static inline void tune_all(Peaks *p, TuneRank *r, const Ops *ops, bool shown) {
  StepState state = {};
  Ctx c = {};
  c.ops = ops, c.threads = p->threads, c.state = &state;
  ops->device_open(&c, 0);
  state.in.lr = 1e-4f, state.grad_scale = 1, state.bias_correction1 = state.bias_correction2 = 1;
  const WorkspaceQuery q = {F32, F32, 16, 1024, 1536, 24, 16 * 1536, 1024};
  TuneMemory m = {};
  ops->workspace_bytes(&c, q, &c.workspace_bytes);
  ops->memory_alloc(&c, &c.workspace, c.workspace_bytes, MEMORY_DEVICE);
  ops->memory_alloc(&c, (void **)&m.base, TUNE_BYTES, MEMORY_DEVICE);
  m.tokens = (int32_t *)malloc(sizeof(int32_t) * (size_t)TUNE_TOKENS);
  CHECK(c.workspace && m.base && m.tokens, "--tune plan: no memory: it needs %zu MiB a rank",
        (TUNE_BYTES + c.workspace_bytes) >> 20);
  for (int64_t i = 0; i < TUNE_TOKENS; i++) m.tokens[i] = (int32_t)((uint32_t)i * 2654435761u >> 21);      // below 2048
  p->latency_s = tune_latency(r);
  for (int turn = 0; turn < TUNE_PASSES * PEAK_DTYPES * PEAK_KIND_COUNT; turn++) {
    const int d = turn / PEAK_KIND_COUNT % PEAK_DTYPES, k = turn % PEAK_KIND_COUNT;
    const PeakGrid *g = &peak_grids[peak_axes[k]];
    for (size_t b = 0; b < TUNE_BYTES / 2; b++) ((uint16_t *)m.base)[b] = 0x3c00;      // 1/128, in fp32 about that
    const bool wide = k == PEAK_WIDE_FORWARD || k == PEAK_WIDE_INPUT || k == PEAK_WIDE_WEIGHT;
    for (int i = 0; i < g->xs; i++) for (int j = 0; j < g->ys; j++) {
      const double x = wide ? fmin(g->x[i], 768) : g->x[i];      // wider ones are as fast
      const TuneCall call = {(PeakKind)k, x, g->y[j], d ? BF16 : F32};
      const double rate = wide && i && x == g->x[i - 1] ? p->rate[d][k][i - 1][j] : tune_rate(r, &c, &m, &call);
      p->rate[d][k][i][j] = fmax(p->rate[d][k][i][j], rate);
    }
    char line[96];
    snprintf(line, sizeof line, "measuring: %d of %d", turn + 1, TUNE_PASSES * PEAK_DTYPES * PEAK_KIND_COUNT);
    if (shown && terminal.out) line_draw(line, true);
  }
  ops->memory_free(&c, m.base, TUNE_BYTES, MEMORY_DEVICE);
  ops->memory_free(&c, c.workspace, c.workspace_bytes, MEMORY_DEVICE);
  ops->device_close(&c);
  free(m.tokens);
}
static inline void tune_print(const Peaks *p) {
  say("%s, %d rank%s of %d thread%s (%s), each:\n"
      "        matrix multiplies      attention   GB/s: copy  LayerNorm  AdamW\n", p->cpu, p->ranks,
      p->ranks > 1 ? "s" : "", p->threads, p->threads > 1 ? "s" : "", p->table);
  for (int d = 0; d < PEAK_DTYPES; d++) {
    const auto last = [&](PeakKind k) { return p->rate[d][k][peak_grids[PEAK_BYTES].xs - 1][0] * 1e-9; };
    say("  %s  %7.1f GFLOP/s  %7.1f GFLOP/s  %10.1f %10.1f %6.1f\n", peak_dtype_word(d),
        fmax(peaks_best(p, d, PEAK_FORWARD), peaks_best(p, d, PEAK_INPUT)) * 1e-9,
        peaks_best(p, d, PEAK_ATTEND) * 1e-9, last(PEAK_COPY), last(PEAK_RESIDUAL_NORM), last(PEAK_ADAMW));
  }
  say("written to %s, which --plan --on cpu uses%s%.0d\n", p->file, p->ranks > 1 ? " with --world " : "",
      p->ranks > 1 ? p->ranks : 0);
}
// The command --tune plan.
static int tune_plan_main(Call *call) {
  static Peaks p;
  const Options *o = &call->o;
  char *error = call->error;
  const size_t error_bytes = sizeof call->error;
  if (o->tune != OPT_tune_plan) return -1;
  const int ranks = o->world > 1 ? (int)o->world : 1;
  if (!call->first) return 0;
  if (call->launched && atoi(getenv("OMPI_COMM_WORLD_SIZE") ? getenv("OMPI_COMM_WORLD_SIZE") : "1") > 1 && !error[0])
    snprintf(error, error_bytes, "--tune plan starts its ranks itself: leave mpirun out and give --world N");
  if (o->device == OPT_device_cuda && !o->no_cuda && !error[0])
    snprintf(error, error_bytes, "--tune plan measures CPUs; a GPU's predictions are from data sheets: use --plan --on "
             "h100, or --on h100,tflops=...,memory_gbs=... with what dev/gpu_peaks.cu measures");
  if (ranks > TUNE_RANKS_MOST && !error[0])
    snprintf(error, error_bytes, "--tune plan: %d ranks on this host; at most %d", ranks, (int)TUNE_RANKS_MOST);
  const int best = cpu_best_table(), wanted = error[0] ? best : cpu_table_wanted(o, best, error, error_bytes);
  if (!error[0] && !o->threads && !plan_host()->read) snprintf(error, error_bytes, "%s", plan_host()->error);
  if (error[0]) die_user("train_gpt_fsdp: %s", error);
  const Ops *ops = cpu_tables[wanted >= 0 ? wanted : best].ops;
  peaks_of_here(&p, o->cache, ops->name, ranks, plan_threads(o, 0, ranks).threads);
  if (!make_directories(o->cache)) die_missing("train_gpt_fsdp: --cache %s: %s", o->cache, strerror(errno));
  TuneRank r = {(TuneShared *)fork_memory(sizeof(TuneShared)), 0, ranks, 0};
  pid_t child[TUNE_RANKS_MOST];
  for (int k = 1; k < ranks; k++) {
    child[k] = fork();
    CHECK(child[k] >= 0, "--tune plan cannot start %d processes", ranks);
    if (child[k]) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    r.rank = k;
    tune_all(&p, &r, ops, false);
    _exit(0);
  }
  tune_all(&p, &r, ops, true);
  line_end();
  for (int k = 1; k < ranks; k++) waitpid(child[k], NULL, 0);
  const time_t now = time(NULL);
  strftime(p.measured, sizeof p.measured, "%Y-%m-%d %H:%M", gmtime(&now));
  if (!peaks_write(&p, error, error_bytes)) die_missing("train_gpt_fsdp: %s", error);
  tune_print(&p);
  return 0;
}
