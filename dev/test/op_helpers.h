// op_helpers.h: what every test of an op needs. Included after kernels/ops.h with PART_LAUNCH, and harness.h.
//
//   op_table(i)                 the i-th CPU table this machine can run, NULL after the last
//   op_ctx                      a Ctx with exactly the workspace that a WorkspaceQuery asks for, guarded
//   op_forget_workspace         a workspace without the sums of earlier calls
//   op_tensor, op_random_tensor tensors of any dtype; fresh memory reads as NaN, so that an unwritten element shows
//   op_fp64, op_set             host copies in fp64, and back
//   op_expect_close             every element within a bound derived from dtype and number of roundings
//   op_expect_same_bits         every byte equal
//   op_added                    the expected result of ADD to an fp32 tensor
//   op_expect_gradient          an fp64 gradient against central differences of an fp64 forward
//
// Memory belongs to the test process and is released by op_free_all (or at its end).
#pragma once

// ---- tables --------------------------------------------------------------------------------------------------------
// The tables this machine can run, and the emulated AMX one where its AVX-512 BF16 code can.
static inline const Ops *op_table(int i) {
  const int best = cpu_best_table();
  if (i <= best) return cpu_tables[i].ops;
  return i == best + 1 && best >= 2 && &ops_amx_emulated ? &ops_amx_emulated : NULL;
}

// ---- memory --------------------------------------------------------------------------------------------------------
#if defined(__SANITIZE_ADDRESS__)
static const size_t OP_GUARD_BYTES = 0;          // the sanitizer sees overruns itself
#else
static const size_t OP_GUARD_BYTES = 256;
#endif
struct OpBlock { unsigned char *data; size_t bytes; OpBlock *next; };
static OpBlock *op_blocks;

// 256-byte aligned memory filled with 0xff: NaN in every floating dtype, -1 as an integer.
static inline void *op_alloc(size_t bytes) {
  OpBlock *b = (OpBlock *)malloc(sizeof(OpBlock));
  void *data = NULL;
  int failed = posix_memalign(&data, 256, bytes + 2 * OP_GUARD_BYTES + (bytes == 0));
  CHECK(b && !failed, "no memory for %zu bytes", bytes);
  memset(data, 0xff, bytes + 2 * OP_GUARD_BYTES);
  *b = {(unsigned char *)data + OP_GUARD_BYTES, bytes, op_blocks};
  op_blocks = b;
  return b->data;
}
// Fails the test if anything beside an allocation was written.
static inline void op_check_guards() {
  for (OpBlock *b = op_blocks; b; b = b->next) {
    bool ok = true;
    const unsigned char *before = b->data - OP_GUARD_BYTES, *after = b->data + b->bytes;
    for (size_t i = 0; i < OP_GUARD_BYTES; i++) ok &= before[i] == 0xff && after[i] == 0xff;
    EXPECT(ok, "memory beside a block of %zu bytes was written", b->bytes);
  }
}
static inline void op_free_all() {
  op_check_guards();
  while (op_blocks) {
    OpBlock *next = op_blocks->next;
    free(op_blocks->data - OP_GUARD_BYTES);
    free(op_blocks);
    op_blocks = next;
  }
}

// ---- contexts ------------------------------------------------------------------------------------------------------
// The state that ops read of a step: a scale of one, step 0. Tests that need other values write here first.
static StepState op_state;
static inline void op_state_reset() {
  op_state = StepState{};
  op_state.loss_scale = op_state.grad_scale = 1.0f;
  op_state.beta1_power = op_state.beta2_power = 1.0;
}
static inline Ctx op_ctx(const Ops *ops, int threads, WorkspaceQuery q) {
  Ctx c = {};
  c.ops = ops;
  c.threads = threads;
  op_state_reset();
  c.state = &op_state;
  ops->device_open(&c, 0);
  ops->workspace_bytes(&c, q, &c.workspace_bytes);
  c.workspace = op_alloc(c.workspace_bytes);
  return c;
}

// Overwrites the sums that earlier ops left in the workspace, so that no op can use them: the first MiB, more than
// small shapes use.
static inline void op_forget_workspace(Ctx *c) {
  c->ops->zero(c, c->workspace, c->workspace_bytes < 1 << 20 ? c->workspace_bytes : 1 << 20);
}

// ---- random numbers and tensors ------------------------------------------------------------------------------------
// splitmix64 (Steele, Lea, Flood 2014): unrelated to the generator under test.
TEST_HOT static inline uint64_t op_random(uint64_t *state) {
  uint64_t z = *state += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}
TEST_HOT static inline double op_uniform(uint64_t *state) { return ((double)(op_random(state) >> 11) + 0.5) * 0x1p-53; }
TEST_HOT static inline double op_normal(uint64_t *state) {
  double r = sqrt(-2.0 * log(op_uniform(state)));
  return r * cos(6.283185307179586 * op_uniform(state));
}
static inline int64_t op_below(uint64_t *state, int64_t n) { return (int64_t)(op_random(state) % (uint64_t)n); }

TEST_HOT static inline double op_get(Tensor t, int64_t i) {
  if (t.dtype == I32) return ((int32_t *)t.data)[i];
  if (t.dtype == F32) return ((float *)t.data)[i];
  if (t.dtype == F8) return to_f32(((fp8 *)t.data)[i]);
  if (t.dtype == LOW16) return ((low16 *)t.data)[i].bits;
  return t.dtype == BF16 ? to_f32(((bf16 *)t.data)[i]) : to_f32(((fp16 *)t.data)[i]);
}
TEST_HOT static inline void op_put(Tensor t, int64_t i, double x) {
  if (t.dtype == I32) ((int32_t *)t.data)[i] = (int32_t)x;
  else if (t.dtype == F32) ((float *)t.data)[i] = (float)x;
  else if (t.dtype == F8) round_to((fp8 *)t.data + i, (float)x);
  else if (t.dtype == BF16) round_to((bf16 *)t.data + i, (float)x);
  else round_to((fp16 *)t.data + i, (float)x);
}
static inline Tensor op_tensor(Dtype dtype, int64_t d0, int64_t d1 = -1, int64_t d2 = -1, int64_t d3 = -1) {
  Tensor t = tensor_of(NULL, dtype, d0, d1, d2, d3);
  t.data = op_alloc((size_t)numel(t) * dtype_bytes(dtype));
  return t;
}
// Every element scale * N(0,1), rounded to the dtype.
TEST_HOT static inline Tensor op_random_tensor(uint64_t seed, double scale, Dtype dtype, int64_t d0, int64_t d1 = -1,
                                               int64_t d2 = -1, int64_t d3 = -1) {
  Tensor t = op_tensor(dtype, d0, d1, d2, d3);
  for (int64_t i = 0, n = numel(t); i < n; i++) op_put(t, i, scale * op_normal(&seed));
  return t;
}
// Integers in [0, below): tokens, targets.
static inline Tensor op_random_ids(uint64_t seed, int64_t below, int64_t d0, int64_t d1 = -1) {
  Tensor t = op_tensor(I32, d0, d1);
  for (int64_t i = 0, n = numel(t); i < n; i++) ((int32_t *)t.data)[i] = (int32_t)op_below(&seed, below);
  return t;
}
static inline Tensor op_copy(Tensor t) {         // fresh memory with the same bytes
  Tensor r = t;
  size_t bytes = (size_t)numel(t) * dtype_bytes(t.dtype);
  r.data = op_alloc(bytes);
  memcpy(r.data, t.data, bytes);
  return r;
}
// All but the first `shift` elements, in place: a tensor that may be unaligned.
static inline Tensor op_shifted(Tensor whole, int64_t shift) {
  return tensor_of((char *)whole.data + (size_t)shift * dtype_bytes(whole.dtype), whole.dtype, numel(whole) - shift);
}
// The same tensor `count` times.
static inline Summands op_summands(Tensor in, int count) {
  Summands s = {in.dtype, count, {}};
  for (int k = 0; k < count; k++) s.data[k] = in.data;
  return s;
}
static inline double *op_zeros(int64_t n) {
  double *x = (double *)op_alloc((size_t)n * sizeof(double));
  for (int64_t i = 0; i < n; i++) x[i] = 0.0;
  return x;
}
TEST_HOT static inline double *op_fp64(Tensor t) {               // the values as stored
  double *x = op_zeros(numel(t));
  for (int64_t i = 0, n = numel(t); i < n; i++) x[i] = op_get(t, i);
  return x;
}
static inline void op_set(Tensor t, const double *x) {
  for (int64_t i = 0, n = numel(t); i < n; i++) op_put(t, i, x[i]);
}

// ---- comparisons ---------------------------------------------------------------------------------------------------
static inline double op_unit_roundoff(Dtype t) { return t == BF16 ? 0x1p-8 : t == F16 ? 0x1p-11 : 0x1p-24; }
static inline double op_smallest(Dtype t) { return t == BF16 ? 0x1p-133 : t == F16 ? 0x1p-24 : 0x1p-149; }

// |got - want| <= u(dtype) |want| + smallest(dtype) + roundings 2^-24 scale, element by element.
//   u, smallest   one rounding when the result is stored, to a normal or a subnormal number
//   roundings     fp32 roundings on the longest path to an element: a sum of n terms has at most n (Higham 2002, ch. 4:
//                 |error| <= n u sum |terms| in any order), plus those of computing a term
//   scale         a bound of sum |terms| of one element; below 0: the largest |want| of the tensor
static inline void op_expect_close(const char *what, Tensor got, const double *want, double roundings,
                                   double scale = -1.0) {
  const double u = op_unit_roundoff(got.dtype), tiny = op_smallest(got.dtype);
  int64_t n = numel(got), worst = -1;
  if (scale < 0.0) { scale = 0.0; for (int64_t i = 0; i < n; i++) scale = fmax(scale, fabs(want[i])); }
  double worst_ratio = 1.0;
  for (int64_t i = 0; i < n; i++) {
    double allowed = u * fabs(want[i]) * (1.0 + roundings * 0x1p-24) + tiny + roundings * 0x1p-24 * scale;
    double ratio = fabs(op_get(got, i) - want[i]) / allowed;
    if (!(ratio <= worst_ratio)) { worst = i; if (!(ratio == ratio)) break; worst_ratio = ratio; }
  }
  if (worst < 0) return;
  EXPECT(false, "%s: element %lld is %.9g, reference %.9g: %.3g times the bound (%g roundings, scale %g, %s)", what,
         (long long)worst, op_get(got, worst), want[worst], worst_ratio, roundings, scale, dtype_name(got.dtype));
}

// Index of the first element whose bytes differ, -1 if none.
static inline int64_t op_first_difference(Tensor a, Tensor b) {
  size_t w = dtype_bytes(a.dtype);
  for (int64_t i = 0, n = numel(a); i < n; i++)
    if (memcmp((char *)a.data + (size_t)i * w, (char *)b.data + (size_t)i * w, w)) return i;
  return -1;
}
static inline void op_expect_same_bits(const char *what, Tensor a, Tensor b) {
  REQUIRE(a.dtype == b.dtype && numel(a) == numel(b), "%s: two kinds of tensors compared", what);
  int64_t i = op_first_difference(a, b);
  if (i < 0) return;
  EXPECT(false, "%s: element %lld differs: %.9g and %.9g", what, (long long)i, op_get(a, i), op_get(b, i));
}

// Fresh memory with old + x, both fp32, every element rounded once: the expected result of ADD onto `old` when
// OVERWRITE gives x.
static inline Tensor op_added(Tensor old, Tensor x) {
  CHECK(old.dtype == F32 && x.dtype == F32 && numel(old) == numel(x), "%s added to %s, or sizes differ",
        dtype_name(x.dtype), dtype_name(old.dtype));
  Tensor r = op_copy(old);
  for (int64_t i = 0; i < numel(r); i++) ((float *)r.data)[i] += ((float *)x.data)[i];
  return r;
}

// ---- finite differences --------------------------------------------------------------------------------------------
// loss(env) reads x, which is changed one element at a time; dx is the gradient under test. Central differences with h
// = 2^-16 max(1, |x|) have an error of h^2 f'''/6 < 2^-34 f''' plus 2^-52 |f| / h = 2^-36 |f| of rounding. `scale`
// bounds |f| and its third derivatives, so 2^-32 scale bounds both. At most `most` elements are tried, evenly spread.
static inline void op_expect_gradient(const char *what, double (*loss)(void *env), void *env, double *x,
                                      const double *dx, int64_t n, int64_t most, double scale) {
  int64_t stride = n > most ? n / most | 1 : 1;
  for (int64_t i = 0; i < n; i += stride) {
    double kept = x[i], h = 0x1p-16 * fmax(1.0, fabs(kept));
    x[i] = kept + h;
    double up = loss(env);
    x[i] = kept - h;
    double slope = (up - loss(env)) / (2.0 * h);
    x[i] = kept;
    EXPECT(fabs(slope - dx[i]) <= 0x1p-32 * scale, "%s: gradient %lld is %.12g, central difference %.12g", what,
           (long long)i, dx[i], slope);
  }
}

// ---- every way to run an op ----------------------------------------------------------------------------------------
// for (OpRun r = op_run_first(); r.ops; r = op_run_next(r)): every table, each with 1, 2 and 3 threads.
struct OpRun { int index, threads; const Ops *ops; };
static inline OpRun op_run_first() { return {0, 1, op_table(0)}; }
static inline OpRun op_run_next(OpRun r) {
  if (r.threads < 3) return {r.index, r.threads + 1, r.ops};
  return {r.index + 1, 1, op_table(r.index + 1)};
}
static inline bool op_run_is_first(OpRun r) { return r.index == 0 && r.threads == 1; }
// "what, avx2, 2 threads, bf16"; valid until the fourth call after it.
static inline const char *op_where(const char *what, OpRun r, Dtype dtype) {
  static char text[4][128];
  static int turn;
  char *s = text[turn++ & 3];
  snprintf(s, sizeof text[0], "%s, %s, %d threads, %s", what, r.ops->name, r.threads, dtype_name(dtype));
  return s;
}

// ---- what some tests of ops share -----------------------------------------------------------------------------------
static inline void ops_state_set(float lr, float grad_scale, float bias_correction1, float bias_correction2) {
  op_state.in.lr = lr;
  op_state.grad_scale = grad_scale;
  op_state.bias_correction1 = bias_correction1;
  op_state.bias_correction2 = bias_correction2;
}
static inline bool ops_same_number(Tensor a, Tensor b, int64_t i) {
  double x = op_get(a, i), y = op_get(b, i);
  return (isnan(x) && isnan(y)) || (x == y && signbit(x) == signbit(y));
}
// The i-th table with tiles: the emulated one, and AMX where this machine has it.
static inline const Ops *split_table(int i) {
  for (int t = 0; const Ops *ops = op_table(t); t++)
    if (!strncmp(ops->name, "amx", 3) && i-- == 0) return ops;
  return NULL;
}
// The nearest bf16 to u's number, ties away from zero, by comparing distances in fp64, where all of this is exact. The
// bf16 after the largest finite one, where infinity begins, counts as 2^128. A NaN keeps its upper half, quiet.
static inline uint16_t master_nearest(uint32_t u) {
  const uint32_t all = u & 0x7fffffffu, below = all & 0xffff0000u, above = below + 0x10000u;
  if (all > 0x7f800000u) return (uint16_t)((u >> 16) | 64);
  if (all == 0x7f800000u) return (uint16_t)(u >> 16);
  const double x = bits_f32(all), low = bits_f32(below), high = above == 0x7f800000u ? 0x1p128 : bits_f32(above);
  return (uint16_t)((u >> 16 & 0x8000u) | (high - x <= x - low ? above : below) >> 16);
}
