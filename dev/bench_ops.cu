// bench_ops: the time of a training step, op by op, and how close each op comes to this machine's limits.
//   build/bench_ops --model small --batch_size 32 --data random [any other option of train_gpt_fsdp]
//
// The trainer's own steps run with a table of ops whose entries record the time and call the real ones. Per op and
// shape: calls and milliseconds per step, its share of the step, GFLOP/s (operations that the formula needs: the causal
// half of attention), GB/s (every operand once), and the percentage of the limit: the time that the measured peaks of
// dev/cpu_peaks.h would need for its operations or its bytes, whichever is longer, divided by the time it took.
// Operands that are still in a cache can exceed 100 % of the memory limit. Of --max_steps (8) steps the one with the
// median time is shown; the first one, which touches its memory, is left out. CPU only: on a GPU calls return before
// their work is done.
//
//   build/bench_ops --model tiny --data random --trace /dev/null --max_steps 60
// With --trace: what tracing costs. Every other step is traced; printed are the medians of both and their ratio.
//
//   build/bench_ops muon --model small --data random
// Muon's Newton-Schulz for the model's matrices, beside the matrix multiplies of the same shapes. `limit` is the time
// in which these would do its operations, symmetric products counted half.
//
//   build/bench_ops blocks --model tiny --data random
// One row by a matrix, as generation has it, of SmolLM2-135M's head and of an MLP of Llama 3.2 1B: matmul_forward, and
// matmul_blocks of each type that the rows can have.
//
//   mpirun -np 2 build/bench_ops update --model small --data random --optimizer muon
// The optimizer's step alone, of the slowest rank: the median of --max_steps (8) in a line of JSON.
//
//   mpirun -np 2 build/bench_ops peaks --dtype bf16
// The figures of a rank for --plan --on cpu,...: what it reaches at least while all measure.
//
//   build/bench_ops reading --data 'OUT/train_*.bin' --vocab_size 5000
//   build/bench_ops records FILE...        MB/s of a core from bytes to records of conversations, the best of three
// Reading alone: microbatches of token files in the order of an epoch, without a step between them, once to warm the
// page cache and once timed: tokens/s and GB/s of the files' bytes.
//
//   build/bench_ops candidates --model gpt2 --batch_size 32 --param_dtype bf16 --data random
// Every algorithm that cuBLASLt returns for the matrix multiplies of a step, on GPU 0: milliseconds, a hash of the
// bits of its result, whether these are those of the heuristic's first, tile, split and workspace.
//
//   build/bench_ops gpu [small]
// Attention, rope, norms, cross entropy and optimizer alone on a GPU, in TFLOP/s and GB/s (dev/gpu_ops.h).
#include "dev/program.h"
#include "dev/cpu_peaks.h"
#include "dev/gpu_ops.h"

struct OpRow { char name[64]; int calls; double ms, flops, bytes; bool half; };
enum { MOST_ROWS = 96 };
struct OpTable { OpRow row[MOST_ROWS]; int rows; double ms; };
static OpTable now_table;
static double op_begun;

// The row of a call: of its op and shape, with the terms of a matrix multiply's sums or attention's heads; of ops whose
// pieces differ in size, of all shapes.
static OpRow *op_row(const OpTouch *o, const OpKind *kind) {
  const bool products = kind->part == STEP_PRODUCTS, attends = kind->part == STEP_ATTENTION;
  const bool pieces = kind->part == STEP_OPTIMIZER || o->op >= OP_COPY || o->op == OP_convert ||
                      o->op == OP_accumulate || o->op == OP_param_from_master;
  char name[sizeof(OpRow::name)];
  int n = snprintf(name, sizeof name, "%s", op_word(o->op));
  const Tensor t = o->args ? o->arg[0].t : Tensor{};
  for (int i = 0; i < t.ndim && !pieces; i++)
    n += snprintf(name + n, sizeof name - (size_t)n, "%s%lld", i ? "," : " ", (long long)t.shape[i]);
  double more = products && o->op != OP_newton_schulz ? kind->flops(o) / (2 * (double)numel(t)) : 0;
  for (int i = 0; i < o->args && attends; i++) if (!strcmp(o->arg[i].name, "lse")) more = (double)o->arg[i].t.shape[1];
  if (more > 0) snprintf(name + n, sizeof name - (size_t)n, ",%.0f", more);
  OpTable *table = &now_table;
  int i = 0;
  while (i < table->rows && strcmp(table->row[i].name, name)) i++;
  CHECK(i < MOST_ROWS, "more than %d ops and shapes", (int)MOST_ROWS);
  OpRow *r = &table->row[i];
  if (i == table->rows) { table->rows++; *r = OpRow{}; strcpy(r->name, name); }
  return r;
}
static void op_begins(OpWatch *, Ctx *, const OpTouch *) { op_begun = now_ms(); }
static void op_ends(OpWatch *, Ctx *, const OpTouch *o) {
  const double ms = now_ms() - op_begun;
  const OpKind *kind = op_kind(o->op);
  OpRow *r = op_row(o, kind);
  r->calls++;
  r->ms += ms;
  r->flops += kind->flops ? kind->flops(o) : 0;
  r->bytes += kind->bytes ? kind->bytes(o) : o->bytes;
  for (int i = 0; i < o->count && o->op >= OP_COPY; i++) r->bytes += (double)o->access[i].bytes;
  for (int i = 0; i < o->args; i++) r->half = r->half || dtype_bytes(o->arg[i].t.dtype) == 2;
}

// Three products of a step, the two symmetric ones half.
static double newton_schulz_flops(Tensor x, int steps) {
  const double m = (double)min64(x.shape[0], x.shape[1]), n = (double)max64(x.shape[0], x.shape[1]);
  return steps * m * m * (3 * n + m);
}
static int longer_first(const void *a, const void *b) {
  const double x = ((const OpRow *)a)->ms, y = ((const OpRow *)b)->ms;
  return x < y ? 1 : x > y ? -1 : 0;
}
static void print_table(const OpTable *t, double fp32, double half, double memory, int64_t tokens) {
  OpTable s = *t;
  double ops = 0;
  qsort(s.row, (size_t)s.rows, sizeof *s.row, longer_first);
  printf("%-52s %5s %9s %6s %8s %7s %8s\n", "op and shape", "calls", "ms", "share", "GFLOP/s", "GB/s", "of limit");
  for (int i = 0; i < s.rows; i++) {
    const OpRow *r = &s.row[i];
    const double by_flops = r->flops / (r->half ? half : fp32) * 1e-6, by_bytes = r->bytes / memory * 1e-6;
    ops += r->ms;
    if (r->ms < 1e-3 * s.ms) continue;           // below a thousandth of the step
    printf("%-52s %5d %9.2f %5.1f%% ", r->name, r->calls, r->ms, 100 * r->ms / s.ms);
    if (r->flops > 0) printf("%8.1f ", r->flops / r->ms * 1e-6);
    else printf("%8s ", "-");
    printf("%7.1f %7.0f%%\n", r->bytes / r->ms * 1e-6, 100 * (by_flops > by_bytes ? by_flops : by_bytes) / r->ms);
  }
  printf("%-52s %5s %9.2f %5.1f%%\n", "outside ops", "", s.ms - ops, 100 * (s.ms - ops) / s.ms);
  printf("%-52s %5s %9.2f         %.0f tokens/s of this rank\n", "step", "", s.ms, (double)tokens / s.ms * 1e3);
}

static int slower_last(const void *a, const void *b) {
  const double x = ((const OpTable *)a)->ms, y = ((const OpTable *)b)->ms;
  return x < y ? -1 : x > y ? 1 : 0;
}
// Medians of `steps` steps with and without a trace, in turn.
static int double_order(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}
static void bench_trace(Trainer *t, int steps) {
  static double ms[2][4096];
  int64_t events = 0;
  int n = 0;
  train_step(t, 0);
  for (; n < steps / 2 && n < 4096; n++)
    for (int traced = 0; traced < 2; traced++) {
      MPI_Barrier(MPI_COMM_WORLD);
      if (traced) trace_step_begin(t->run.trace, &t->ctx, t->fsdp, t->run.step);
      const double begin = now_ms();
      train_step(t, 0);
      ms[traced][n] = now_ms() - begin;
      if (traced) trace_step_end(t->run.trace, &t->ctx, t->fsdp);
      if (traced) events = t->run.trace->count, t->run.trace->count = 0;
    }
  if (t->fsdp->mesh.rank) return;
  for (auto &x : ms) qsort(x, (size_t)n, sizeof(double), double_order);
  printf("%s, %d rank%s: %d steps without a trace %.3f ms, with one %.3f ms (%lld events): %+.2f %%\n", t->opt.model,
         t->fsdp->mesh.world, t->fsdp->mesh.world > 1 ? "s" : "", n, ms[0][n / 2], ms[1][n / 2], (long long)events,
         100 * (ms[1][n / 2] / ms[0][n / 2] - 1));
}
// Newton-Schulz beside the matrix multiplies of its shapes, in turn; medians of ROUNDS. One thread's time is what it
// had of its core: what others took does not count.
static double bench_clock(const Ctx *c) {
  timespec t;
  clock_gettime(c->threads > 1 ? CLOCK_MONOTONIC : CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}
static Tensor bench_tensor(Ctx *c, Dtype dtype, int64_t rows, int64_t cols) {
  Tensor t = tensor_of(NULL, dtype, rows, cols);
  c->ops->memory_alloc(c, &t.data, (size_t)(rows * cols) * dtype_bytes(dtype), MEMORY_DEVICE);
  CHECK(t.data, "no memory for %lld x %lld", (long long)rows, (long long)cols);
  if (dtype == F32) normal_fill(c, t, 1, 1, 0, 1.0f);
  if (dtype != BF16) return t;
  const Tensor wide = bench_tensor(c, F32, rows, cols);
  convert(c, t, wide);
  c->ops->memory_free(c, wide.data, (size_t)(rows * cols) * 4, MEMORY_DEVICE);
  return t;
}
static void bench_newton_schulz(Ctx *c, Dtype dtype, int64_t rows, int64_t cols) {
  enum { ROUNDS = 15, KINDS = 4 };
  const int64_t m = min64(rows, cols), n = max64(rows, cols);
  const size_t bytes = newton_schulz_work_bytes(rows, cols, dtype);
  const Tensor x = bench_tensor(c, dtype, rows, cols), out = bench_tensor(c, dtype, rows, cols);
  const Tensor scratch = bench_tensor(c, I32, (int64_t)(bytes + 3) / 4, 1), gram = bench_tensor(c, dtype, m, m);
  const Tensor other = bench_tensor(c, dtype, m, m);
  double ms[KINDS][ROUNDS];
  for (int round = -1; round < ROUNDS; round++)
    for (int kind = 0; kind < KINDS; kind++) {
      const double begin = bench_clock(c);
      if (kind == 0) newton_schulz(c, out, x, scratch, MUON_STEPS);
      else if (kind == 1 && rows <= cols) matmul_forward(c, gram, x, x, MatmulEpilogue{});
      else if (kind == 1) matmul_backward_weight(c, gram, Tensor{}, x, x, OVERWRITE);
      else if (kind == 2) matmul_forward(c, gram, other, other, MatmulEpilogue{});
      else if (rows <= cols) matmul_backward_input(c, out, gram, x, Tensor{});
      else matmul_backward_input(c, out, x, gram, Tensor{});
      if (round >= 0) ms[kind][round] = bench_clock(c) - begin;
    }
  double median[KINDS];
  for (int kind = 0; kind < KINDS; kind++) {
    qsort(ms[kind], ROUNDS, sizeof(double), double_order);
    median[kind] = ms[kind][ROUNDS / 2];
  }
  const double limit = MUON_STEPS * (median[1] / 2 + median[2] / 2 + median[3]), M = (double)m, N = (double)n;
  printf("%5s %5lld x %5lld %10.2f %9.1f %11.1f %9.1f %9.1f %10.2f %+7.1f %%\n", dtype_name(dtype), (long long)rows,
         (long long)cols, median[0], newton_schulz_flops(x, MUON_STEPS) / median[0] * 1e-6,
         2 * M * M * N / median[1] * 1e-6, 2 * M * M * M / median[2] * 1e-6, 2 * M * M * N / median[3] * 1e-6, limit,
         100 * (median[0] / limit - 1));
  for (Tensor t : {x, out, scratch, gram, other})
    c->ops->memory_free(c, t.data, (size_t)numel(t) * dtype_bytes(t.dtype), MEMORY_DEVICE);
}
static void bench_muon(Trainer *t) {
  const int64_t C = t->model.C;
  printf("\nNewton-Schulz, %s, table %s, %d threads: ms, GFLOP/s (symmetric products counted half), and the same of "
         "whole multiplies\n", t->opt.model, t->ctx.ops->name, t->ctx.threads);
  printf("%5s %13s %10s %9s %11s %9s %9s %10s %9s\n", "", "matrix", "ms", "GFLOP/s", "X X^T", "A A", "B X", "limit",
         "over");
  for (Dtype dtype : {BF16, F32})
    for (int64_t k = 0; k < 3; k++) bench_newton_schulz(&t->ctx, dtype, k == 1 ? 4 * C : C, k == 2 ? 4 * C : C);
}
// type: of the matrix's blocks; BLOCK_NONE: numbers of dtype.
static void bench_row(Ctx *c, Dtype dtype, const char *name, int type, int64_t N, int64_t K) {
  enum { ROUNDS = 31 };
  const int64_t row = type ? blocks_bytes(type, K) : K;
  Tensor weight = tensor_of(NULL, type ? BLOCKS : dtype, N, row);
  const Tensor in = bench_tensor(c, dtype, 1, K), out = bench_tensor(c, F32, 1, N);
  const double bytes = (double)numel(weight) * (double)dtype_bytes(weight.dtype);
  double ms[ROUNDS];
  c->ops->memory_alloc(c, &weight.data, (size_t)bytes, MEMORY_DEVICE);
  CHECK(weight.data, "no memory for %lld x %lld", (long long)N, (long long)K);
  memset(weight.data, 0x11, (size_t)bytes);
  for (int round = -1; round < ROUNDS; round++) {
    const double begin = bench_clock(c);
    if (type) matmul_blocks(c, out, in, weight, type, 0, Tensor{});
    else matmul_forward(c, out, in, weight, MatmulEpilogue{});
    if (round >= 0) ms[round] = bench_clock(c) - begin;
  }
  qsort(ms, ROUNDS, sizeof(double), double_order);
  const double median = ms[ROUNDS / 2];
  printf("%5s %6lld x %5lld %6s %9.3f %9.3f %10.2f %8.2f\n", dtype_name(dtype), (long long)N, (long long)K, name,
         median, ms[0], (double)(N * K) / median * 1e-6, bytes / median * 1e-6);
  c->ops->memory_free(c, weight.data, (size_t)bytes, MEMORY_DEVICE);
  for (Tensor t : {in, out}) c->ops->memory_free(c, t.data, (size_t)numel(t) * dtype_bytes(t.dtype), MEMORY_DEVICE);
}
static void bench_blocks(Trainer *t) {
  static const int64_t sizes[2][2] = {{49152, 576}, {2048, 8192}};
  printf("\none row by a matrix, table %s, %d threads: median and best ms, numbers/ns and GB/s of the median\n",
         t->ctx.ops->name, t->ctx.threads);
  for (Dtype dtype : {F32, BF16})
    for (const auto &s : sizes) {
      bench_row(&t->ctx, dtype, dtype_name(dtype), BLOCK_NONE, s[0], s[1]);
#define X(name, id, values, bytes) if (s[1] % values == 0) bench_row(&t->ctx, dtype, #name, id, s[0], s[1]);
      BLOCK_TYPES(X)
#undef X
    }
}
static void bench_candidates(Trainer *t) {
  enum { BYTES = 1 << 22 };
  char *list = (char *)calloc(1, BYTES);
  trainer_plan_products(t);
  t->ctx.ops->plans_tune(&t->ctx, false, list, BYTES);
  fputs(list, stdout);
  free(list);
}
static void bench_update(Trainer *t, int updates) {
  double ms[64], slowest;
  train_step(t, 0);                              // makes the gradients that all updates take
  for (int k = -1; k < updates; k++) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = now_ms();
    fsdp_update(t->fsdp, optimizer_args(&t->opt), t->host.state);
    const double mine = now_ms() - begin;
    MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    if (k >= 0) ms[k] = slowest;
  }
  qsort(ms, (size_t)updates, sizeof *ms, double_order);
  if (!t->fsdp->mesh.rank)
    printf("{\"optimizer\":\"%s\",\"ms\":%.3f,\"threads\":%d}\n", option_word(&t->opt, OPT_optimizer),
           ms[updates / 2], t->ctx.threads);
}
static void bench_peaks(const char *table, const Options *o, int threads, int rank) {
  MPI_Barrier(MPI_COMM_WORLD);
  const bool half = option_dtype(o, OPT_buffer_dtype) == BF16;
  double peak[2] = {half ? cpu_peak_bf16(table, threads) : cpu_peak_fp32(table, threads), 0};
  MPI_Barrier(MPI_COMM_WORLD);
  peak[1] = cpu_peak_memory(threads);
  MPI_Allreduce(MPI_IN_PLACE, peak, 2, MPI_DOUBLE, MPI_MIN, MPI_COMM_WORLD);
  if (!rank) printf("tflops=%.5g,memory_gbs=%.5g\n", peak[0] * 1e-3, peak[1]);
}
// At most 200 million tokens a turn.
static void bench_reading(const Options *o) {
  static Corpus c;
  CorpusOptions co = {o->data, "", (int)o->vocab_size, 1, (uint64_t)o->seed};
  co.val_data = o->val_data;
  const SamplerOptions so = {o->batch_size, o->seq_len, 1, true, true, (uint64_t)o->seed};
  Error e;
  Sampler s;
  const double start = now_ms();
  if (!corpus_load(&c, co, &e)) die_with(e.code, "%s", e.text);
  const double loaded = now_ms();
  const Split *train = &c.split[SPLIT_TRAIN];
  if (!sampler_init(&s, train, so, malloc(sampler_bytes(train, so) + 1), &e)) die_with(e.code, "%s", e.text);
  const int64_t tokens = so.batch * so.seq_len, steps = 400000000 / tokens + 1;
  int32_t *batch = (int32_t *)malloc(sizeof(int32_t) * 2 * (size_t)tokens);
  double ms = 0;
  for (int turn = 0; turn < 2; turn++) {
    const double begun = now_ms();
    for (int64_t k = 0; k < steps; k++) {
      microbatch_read_ahead(&s, (k + 1) % s.steps_per_epoch, 0);
      microbatch_fill(&s, k % s.steps_per_epoch, 0, batch, batch + tokens);
    }
    ms = now_ms() - begun;
  }
  double rate = (double)(steps * tokens) / ms * 1e3;             // of all ranks, which read side by side
  int rank, world;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  MPI_Allreduce(MPI_IN_PLACE, &rate, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  if (rank) return;
  printf("reading: %d ranks, %lld tokens in %d files, opened in %.2f s; %.0f M tokens/s, %.2f GB/s\n", world,
         (long long)train->tokens_numel, train->files, (loaded - start) / 1e3, rate * 1e-6,
         rate * train->token_bytes * 1e-9);
}
// Time of the processors, which neighbours do not slow.
static double bench_cpu_ms() {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}
// Reads a file once. Returns its records; -1: one line was printed.
static int64_t bench_records_read(const char *path) {
  enum { BLOCK_BYTES = 1 << 20 };
  TextStream s;
  Error e = {};
  Error fault = {};
  static uint8_t *block;
  static size_t room;
  size_t n = 0;
  int64_t got = 1, records = 0;
  if (!room) block = (uint8_t *)data_alloc(room = 2 * BLOCK_BYTES, 1);
  if (!text_stream_open(&s, path, "", &e)) { fprintf(stderr, "%s\n", e.text); return -1; }
  while (got > 0 && !fault.text[0]) {
    if (room < n + BLOCK_BYTES) block = (uint8_t *)bpe_resize(block, room *= 2, 1);
    if ((got = text_stream_read(&s, block + n, BLOCK_BYTES, &e)) > 0) n += (size_t)got;
    size_t at = 0;
    for (const uint8_t *end; !fault.text[0] && at < n && (end = (const uint8_t *)memchr(block + at, '\n', n - at));
         at = (size_t)(end - block) + 1) {
      ChatRecord r = {};
      if (end - block - at < 2) continue;
      cJSON *json = record_parse(block + at, (size_t)(end - block) - at, &fault);
      records += json && record_read(&r, json, "", false, false, true, &fault);
      record_free(&r);
      cJSON_Delete(json);
    }
    memmove(block, block + at, n -= at);
  }
  text_stream_close(&s);
  if (got < 0 || fault.text[0]) fprintf(stderr, "%s: %s\n", path, fault.text[0] ? fault.text : e.text);
  return got < 0 || fault.text[0] ? -1 : records;
}
// Files of conversations become records: bytes, file format, lines, JSON, form; without template and tokenizer.
static int bench_records(char **path, int count) {
  for (int i = 0; i < count; i++) {
    struct stat st;
    double best = 1e30;
    int64_t records = 0;
    if (stat(path[i], &st)) { fprintf(stderr, "%s: %s\n", path[i], strerror(errno)); return 3; }
    for (int round = 0; round < 3; round++) {
      const double start = bench_cpu_ms();
      if ((records = bench_records_read(path[i])) < 0) return 3;
      if (bench_cpu_ms() - start < best) best = bench_cpu_ms() - start;
    }
    printf("%-28s %8.1f MB %9lld records %8.1f MB/s\n", path_base(path[i]), (double)st.st_size * 1e-6,
           (long long)records, (double)st.st_size / best * 1e-3);
  }
  return 0;
}

int main(int argc, char **argv) {
  static Options o;
  static Start start;
  static Trainer t;
  static Corpus corpus;
  static OpTable step[64];
  Error error = {};
  int rank, world;
  who_am_i = "bench_ops";
  if (argc > 1 && argc < 4 && !strcmp(argv[1], "gpu") && (argc == 2 || !strcmp(argv[2], "small"))) {
    bench_gpu_ops(&ops_cuda, argc == 3);
    return 0;
  }
  if (argc > 2 && !strcmp(argv[1], "records")) return bench_records(argv + 2, argc - 2);
  die_hook = die_everywhere;
  const bool muon = argc > 1 && !strcmp(argv[1], "muon"), update = argc > 1 && !strcmp(argv[1], "update");
  const bool peaks = argc > 1 && !strcmp(argv[1], "peaks"), blocks = argc > 1 && !strcmp(argv[1], "blocks");
  const bool reading = argc > 1 && !strcmp(argv[1], "reading");
  const bool candidates = argc > 1 && !strcmp(argv[1], "candidates");
  const bool whole = !muon && !update && !peaks && !reading && !blocks && !candidates;       // whole steps
  if (!whole) argv[1] = argv[0], argc--, argv++;
  options_parse(&o, &trainer_table, argc, argv, &error);
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  o.device = candidates ? OPT_device_cuda : OPT_device_cpu;
  const int steps = !o.max_steps ? 8 : o.trace[0] ? (int)o.max_steps : (int)min64(o.max_steps, 64);
  o.max_steps = steps + 1;
  if (!error.text[0]) options_resolve(&o, world, world, &error);
  agree_no_error(MPI_COMM_WORLD, error.text, EXIT_USAGE);
  if (reading) {
    bench_reading(&o);
    MPI_Finalize();
    return 0;
  }
  Device device = agree_on_device(&o, MPI_COMM_WORLD, MPI_COMM_WORLD);
  OpWatch timed;
  watch_table(&timed, device.ops);
  watch_copies(&timed);
  timed.before = op_begins, timed.after = op_ends;
  if (!o.trace[0] && whole) device.ops = &timed.ops;
  static Cores cores;
  cores_take(&cores, (int)o.threads, true, MPI_COMM_WORLD, MPI_COMM_WORLD);
  const int threads = cores.share.threads;
  if (peaks) {
    bench_peaks(timed.ops.name, &o, threads, rank);
    cores_give_back(&cores);
    MPI_Finalize();
    return 0;
  }
  load_corpus(&corpus, &o, &start, MPI_COMM_WORLD, threads);
  trainer_open(&t, &o, &corpus, MPI_COMM_WORLD, device, threads);
  if (o.trace[0] || !whole) {
    if (muon) bench_muon(&t);
    else if (blocks) bench_blocks(&t);
    else if (candidates) bench_candidates(&t);
    else if (update) bench_update(&t, steps);
    else bench_trace(&t, steps);
    MPI_Finalize();
    return 0;
  }
  const double fp32 = cpu_peak_fp32(timed.ops.name, threads), half = cpu_peak_bf16(timed.ops.name, threads);
  const double memory = cpu_peak_memory(threads);
  for (int s = -1; s < steps; s++) {
    now_table = OpTable{};
    const double begin = now_ms();
    train_step(&t, 0);
    now_table.ms = now_ms() - begin;
    if (s >= 0) step[s] = now_table;
  }
  qsort(step, (size_t)steps, sizeof *step, slower_last);
  if (!rank) {
    printf("\n%s, %s, table %s, %d rank%s of %d threads, batch %lld x %lld x %lld\n", o.model,
           option_word(&o, OPT_buffer_dtype), timed.ops.name, world, world > 1 ? "s" : "", threads,
           (long long)o.batch_size, (long long)o.seq_len, (long long)o.grad_accum);
    printf("limits of a rank, measured: fp32 %.0f GFLOP/s, bf16 %.0f GFLOP/s, memory %.1f GB/s\n", fp32, half, memory);
    print_table(&step[steps / 2], fp32, half, memory, o.batch_size * o.seq_len * o.grad_accum);
  }
  trainer_close(&t);
  corpus_free(&corpus);
  cores_give_back(&cores);
  MPI_Finalize();
  return 0;
}
