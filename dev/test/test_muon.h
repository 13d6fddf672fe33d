// test_muon.h: the ops of Muon. Each matrix multiply of a Newton-Schulz step is compared with fp64; the symmetric ones
// also with whole ones, bit by bit; and all of it with what torch.optim.Muon did (dev/make_muon_fixture.py).
#pragma once

// ---- fp64 matrices, always with rows <= cols ------------------------------------------------------------------------
struct MuonMatrix { int64_t rows, cols; double *x; };
static MuonMatrix muon_zeros(int64_t rows, int64_t cols) { return MuonMatrix{rows, cols, op_zeros(rows * cols)}; }
// A tensor's values; transposed if it is tall.
static MuonMatrix muon_wide(Tensor t) {
  const int64_t R = t.shape[0], C = t.shape[1];
  if (R <= C) return MuonMatrix{R, C, op_fp64(t)};
  MuonMatrix m = muon_zeros(C, R);
  for (int64_t i = 0; i < R; i++) for (int64_t j = 0; j < C; j++) m.x[j * R + i] = op_get(t, i * C + j);
  return m;
}
static MuonMatrix muon_abs(MuonMatrix a) {
  MuonMatrix r = muon_zeros(a.rows, a.cols);
  for (int64_t i = 0; i < a.rows * a.cols; i++) r.x[i] = fabs(a.x[i]);
  return r;
}
// scale (a b, or a b^T) + add_scale addend
static MuonMatrix muon_multiply(double scale, MuonMatrix a, MuonMatrix b, bool transposed, double add_scale,
                                MuonMatrix addend) {
  MuonMatrix r = muon_zeros(a.rows, transposed ? b.rows : b.cols);
  for (int64_t i = 0; i < r.rows; i++) {
    double *const to = r.x + i * r.cols;
    for (int64_t k = 0; k < a.cols; k++) {
      const double x = scale * a.x[i * a.cols + k], *const from = transposed ? b.x + k : b.x + k * b.cols;
      const int64_t stride = transposed ? b.cols : 1;
      for (int64_t j = 0; j < r.cols; j++) to[j] += x * from[j * stride];
    }
    if (addend.x) for (int64_t j = 0; j < r.cols; j++) to[j] += add_scale * addend.x[i * r.cols + j];
  }
  return r;
}
static const MuonMatrix MUON_NONE = {};
static MuonMatrix muon_plus(MuonMatrix a, double scale, MuonMatrix b) {
  MuonMatrix r = muon_zeros(a.rows, a.cols);
  for (int64_t i = 0; i < a.rows * a.cols; i++) r.x[i] = a.x[i] + scale * b.x[i];
  return r;
}
static double muon_frobenius(MuonMatrix a) {
  double sum = 0;
  for (int64_t i = 0; i < a.rows * a.cols; i++) sum += a.x[i] * a.x[i];
  return sqrt(sum);
}
static void muon_expect_within(const char *what, MuonMatrix got, MuonMatrix want, MuonMatrix bound) {
  for (int64_t i = 0; i < want.rows * want.cols; i++) {
    if (fabs(got.x[i] - want.x[i]) <= bound.x[i]) continue;
    EXPECT(false, "%s, %lld x %lld: element %lld is %.9g, in fp64 %.9g: beyond its bound %.3g", what,
           (long long)want.rows, (long long)want.cols, (long long)i, got.x[i], want.x[i], bound.x[i]);
    return;
  }
}

// ---- one step ------------------------------------------------------------------------------------------------------
static const double MUON_A = 3.4445, MUON_B = -4.7750, MUON_C = 2.0315;
// Roundings of an fp32 sum of K products: those of test_matmul.h, or of a sum from six bf16 products (gemm_split.h).
static double muon_gamma(int64_t K) {
  return 0x1p-24 * fmax(2.0 * (double)K + 2.0, 6.2 * (double)((K + 31) / 32) + (double)(K / 192) + 18.0);
}
struct MuonStep { MuonMatrix gram, square, next, gram_bound, square_bound, next_bound; };
// What X becomes in fp64; A and B may be as a device stored them, and bounds are then those of one product each:
//   A: a sum, a rounding to dtype        B: a sum, and three roundings beside b A       X: the same beside a X
// With A and B unknown the bound of X also has what their errors become: |error of B| <= |b| a + c (2 |A| a + a^2) +
// its own, a the bound of A's.
static MuonStep muon_step(MuonMatrix x, MuonMatrix gram, MuonMatrix square, Dtype dtype) {
  const double u = op_unit_roundoff(dtype) * 1.01, tiny = op_smallest(dtype) + 1e-35;
  const MuonMatrix x1 = muon_abs(x);
  MuonStep s;
  s.gram = muon_multiply(1, x, x, true, 0, MUON_NONE);
  s.gram_bound = muon_plus(muon_multiply(muon_gamma(x.cols), x1, x1, true, 0, MUON_NONE), u, muon_abs(s.gram));
  for (int64_t i = 0; i < x.rows * x.rows; i++) s.gram_bound.x[i] += tiny;
  const MuonMatrix a = gram.x ? gram : s.gram, a1 = muon_abs(a);
  s.square = muon_multiply(MUON_C, a, a, true, MUON_B, a);
  s.square_bound = muon_multiply(muon_gamma(x.rows) * MUON_C, a1, a1, true, 3 * 0x1p-24 * -MUON_B, a1);
  if (!gram.x) {
    const MuonMatrix e = s.gram_bound;
    s.square_bound = muon_plus(s.square_bound, 1, muon_multiply(2.01 * MUON_C, a1, e, true, 1.01 * -MUON_B, e));
    s.square_bound = muon_plus(s.square_bound, 1, muon_multiply(1.01 * MUON_C, e, e, true, 0, MUON_NONE));
  }
  s.square_bound = muon_plus(s.square_bound, u, muon_abs(s.square));
  for (int64_t i = 0; i < x.rows * x.rows; i++) s.square_bound.x[i] += tiny;
  const MuonMatrix b = square.x ? square : s.square, b1 = muon_abs(b);
  s.next = muon_multiply(1, b, x, false, MUON_A, x);
  s.next_bound = muon_multiply(muon_gamma(x.rows), b1, x1, false, 3 * 0x1p-24 * MUON_A, x1);
  if (!square.x)
    s.next_bound = muon_plus(s.next_bound, 1.01, muon_multiply(1, s.square_bound, x1, false, 0, MUON_NONE));
  s.next_bound = muon_plus(s.next_bound, u, muon_abs(s.next));
  for (int64_t i = 0; i < x.rows * x.cols; i++) s.next_bound.x[i] += tiny;
  return s;
}
// in / max(|in|, 1e-7): roundings of the divisor, of the division, and to dtype. torch also rounds the norm to bf16.
static void muon_expect_normal(const char *what, Tensor got, Tensor in, double extra) {
  const MuonMatrix m = muon_wide(in);
  const double norm = fmax(muon_frobenius(m), 1e-7), u = op_unit_roundoff(got.dtype);
  MuonMatrix want = muon_zeros(m.rows, m.cols), bound = muon_zeros(m.rows, m.cols);
  for (int64_t i = 0; i < m.rows * m.cols; i++) {
    want.x[i] = m.x[i] / norm;
    bound.x[i] = (u + extra + 3 * 0x1p-24) * 1.01 * fabs(want.x[i]) + op_smallest(got.dtype);
  }
  muon_expect_within(what, muon_wide(got), want, bound);
}

// ---- running -------------------------------------------------------------------------------------------------------
static WorkspaceQuery muon_query(Tensor in) {
  const int64_t width = max64(in.shape[0], in.shape[1]);
  return WorkspaceQuery{in.dtype, F32, 1, 1, width < 512 ? width : 512, 1, width < 512 ? width : 512, 1};
}
// X after `steps` steps, with A and B of the last one, in host memory.
struct MuonRun { Tensor x, gram, square; };
static MuonRun muon_run(Ctx *c, Tensor in, int steps, bool in_place) {
  const int64_t R = in.shape[0], C = in.shape[1], words = (int64_t)newton_schulz_work_bytes(R, C, in.dtype) / 4;
  Tensor from = device_upload(c, in), scratch = device_tensor(c, I32, words);
  Tensor out = in_place ? from : device_tensor(c, in.dtype, R, C);
  newton_schulz(c, out, from, scratch, steps);
  const MuonWork w = muon_work(scratch, R, C, in.dtype);
  return MuonRun{device_download(c, out), device_download(c, w.gram), device_download(c, w.square)};
}
static void muon_expect_steps(const char *what, Ctx *c, Tensor in, bool mirrored) {
  MuonRun last = muon_run(c, in, 0, false);
  muon_expect_normal(what, last.x, in, 0);
  for (int steps = 1; steps <= MUON_STEPS; steps++) {
    const MuonRun now = muon_run(c, in, steps, steps == 2);
    const MuonMatrix gram = muon_wide(now.gram), square = muon_wide(now.square);
    const MuonStep s = muon_step(muon_wide(last.x), gram, square, in.dtype);
    for (int64_t i = 0, m = gram.rows; i < m && mirrored; i++)
      for (int64_t j = 0; j < i; j++)
        EXPECT(gram.x[i * m + j] == gram.x[j * m + i] && square.x[i * m + j] == square.x[j * m + i],
               "%s: element %lld,%lld is not its mirror image", what, (long long)i, (long long)j);
    muon_expect_within(what, gram, s.gram, s.gram_bound);
    muon_expect_within(what, square, s.square, s.square_bound);
    muon_expect_within(what, muon_wide(now.x), s.next, s.next_bound);
    last = now;
  }
}
static const struct { int64_t rows, cols; } muon_shapes[] = {{1, 1},   {1, 37},  {37, 1},  {5, 3},   {16, 16},
                                                             {33, 70}, {70, 33}, {64, 64}, {130, 67}, {50, 400}};
TEST(newton_schulz_fp64, "every matrix multiply of five Newton-Schulz steps equals fp64 within its rounding, in fp32 "
                         "and bf16, on all instruction sets; fp32 has one result on all of them, and on 1 to 4 "
                         "threads") {
  for (Dtype dtype : {F32, BF16})
    for (auto s : muon_shapes) {
      Tensor in = op_random_tensor((uint64_t)(s.rows * 1000 + s.cols), 1e-3, dtype, s.rows, s.cols), first = {};
      for (int i = 0; const Ops *ops = op_table(i); i++) {
        Tensor one = {};
        for (int threads = 1; threads <= 4; threads++) {
          Ctx c = op_ctx(ops, threads, muon_query(in));
          if (threads == 1) muon_expect_steps(ops->name, &c, in, true);
          const Tensor x = muon_run(&c, in, MUON_STEPS, true).x;
          if (threads == 1) one = x;
          op_expect_same_bits(ops->name, x, one);
          device_done(&c);
        }
        if (dtype == F32 && first.data) op_expect_same_bits(ops->name, one, first);
        first = one;
      }
      op_free_all();
    }
}
TEST(newton_schulz_edges, "a zero matrix stays zero, tiny ones are not blown up, a NaN spreads, and a matrix's "
                          "transpose becomes the transpose, to the bit") {
  for (int i = 0; const Ops *ops = op_table(i); i++)
    for (Dtype dtype : {F32, BF16}) {
      Tensor in = op_random_tensor(5, 1.0, dtype, 45, 100), turned = op_tensor(dtype, 100, 45);
      for (int64_t k = 0; k < 4500; k++) op_put(turned, k % 100 * 45 + k / 100, op_get(in, k));
      Ctx c = op_ctx(ops, 2, muon_query(in));
      Tensor a = muon_run(&c, in, MUON_STEPS, false).x, b = muon_run(&c, turned, MUON_STEPS, false).x;
      for (int64_t k = 0; k < 4500; k++) op_put(turned, k % 100 * 45 + k / 100, op_get(a, k));
      op_expect_same_bits(op_where("transposed", OpRun{i, 2, ops}, dtype), b, turned);
      for (int64_t k = 0; k < 4500; k++) op_put(in, k, 0.0);
      a = muon_run(&c, in, MUON_STEPS, false).x;
      op_expect_same_bits(op_where("zero", OpRun{i, 2, ops}, dtype), a, in);
      op_put(in, 77, 0x1p-30);                   // below eps: 2^-30 / 1e-7 after no step
      EXPECT(fabs(op_get(muon_run(&c, in, 0, false).x, 77) - 0x1p-30 / 1e-7) < 0x1p-8 * 0.01, "eps is not 1e-7");
      op_put(in, 77, NAN);
      a = muon_run(&c, in, MUON_STEPS, false).x;
      for (int64_t k = 0; k < 4500; k++) EXPECT(isnan(op_get(a, k)), "element %lld of NaN's matrix", (long long)k);
      device_done(&c);
      op_free_all();
    }
}
// The whole product, by the ops of the linear layer, has the symmetric one's bits on and below the diagonal.
static void muon_check_symmetric(const Ops *ops, Dtype dtype, int64_t R, int64_t C, bool fast) {
  Tensor in = op_random_tensor((uint64_t)(R + C), 1.0, dtype, R, C);
  const int64_t m = min64(R, C);
  char what[160];
  snprintf(what, sizeof what, "%s %s %lld x %lld%s", ops->name, dtype_name(dtype), (long long)R, (long long)C,
           fast ? ", six bf16 products" : "");
  for (int threads = 1; threads <= 3; threads++) {
    Ctx c = op_ctx(ops, threads, muon_query(in));
    c.fast_fp32 = fast;
    if (fast) ops->workspace_bytes(&c, muon_query(in), &c.workspace_bytes), c.workspace = op_alloc(c.workspace_bytes);
    const Tensor x = muon_run(&c, in, 0, false).x, gram = muon_run(&c, in, 1, false).gram;
    Tensor whole = op_tensor(dtype, m, m);
    if (R <= C) matmul_forward(&c, whole, x, x, MatmulEpilogue{});
    else matmul_backward_weight(&c, whole, Tensor{}, x, x, OVERWRITE);
    int64_t wrong = 0;
    for (int64_t i = 0; i < m; i++)
      for (int64_t j = 0; j <= i; j++)
        wrong += op_get(gram, i * m + j) != op_get(whole, i * m + j) ||
                 op_get(gram, j * m + i) != op_get(gram, i * m + j);
    EXPECT(!wrong, "%s, %d threads: %lld elements differ from the whole product, or from their mirror image", what,
           threads, (long long)wrong);
    device_done(&c);
  }
  op_free_all();
}
TEST(newton_schulz_symmetric, "the half that is computed of X X^T has the bits of a whole matrix multiply, and the "
                              "other half is its mirror image: one and several blocks of k, and passes") {
  for (int i = 0; const Ops *ops = op_table(i); i++) {
    const bool amx = strstr(ops->name, "amx") != NULL;
    for (Dtype dtype : {F32, BF16})
      for (auto s : {MuonShape{9, 9}, MuonShape{31, 65}, MuonShape{66, 64}, MuonShape{257, 130}, MuonShape{256, 320},
                     MuonShape{300, 1700},
                     MuonShape{900, 290}, MuonShape{850, 850}})
        if (!amx || s.rows * s.cols < 100000 || dtype == BF16) muon_check_symmetric(ops, dtype, s.rows, s.cols, false);
    if (amx) for (int64_t rows : {31, 150}) muon_check_symmetric(ops, F32, rows, 230, true);
  }
}

// ---- element by element --------------------------------------------------------------------------------------------
static double muon_lerp64(double from, double to, double weight) { return from + weight * (to - from); }
static void muon_check_elements(Dtype dtype, Dtype update_dtype, int64_t n, MuonArgs a) {
  Tensor first[3] = {}, start = op_random_tensor(1, 0.1, F32, n);
  for (OpRun r = op_run_first(); r.ops; r = op_run_next(r)) {
    Ctx c = op_ctx(r.ops, r.threads, {dtype, F32, 1, 1, 1, 1, 1, 1});
    Tensor p = op_copy(start), param = op_tensor(dtype, n), b = op_tensor(F32, n), update = op_tensor(update_dtype, n);
    memset(b.data, 0, (size_t)n * 4);
    double *p64 = op_fp64(start), *b64 = op_zeros(n), *u64 = op_zeros(n);
    for (int step = 0; step < 4; step++) {       // the third is skipped
      ops_state_set(0.01f, 0.7f, 0, 0);
      op_state.skip = step == 2;
      Tensor grad = op_random_tensor((uint64_t)step + 2, 1.0, F32, n);
      muon_momentum(&c, update, b, grad, a);
      const double factor = a.match_rms ? 0.2 * sqrt(96.0) : sqrt(96.0 / 24.0);
      for (int64_t i = 0; i < n && !op_state.skip; i++) {
        const double g = op_get(grad, i) * op_state.grad_scale;
        b64[i] = muon_lerp64(b64[i], g, 1.0 - (double)a.momentum);
        u64[i] = a.nesterov ? muon_lerp64(g, b64[i], a.momentum) : b64[i];
      }
      // |g| < 4, |b| < 4: of a lerp the factor, the difference and the sum are rounded; grad once.
      if (op_run_is_first(r) && step != 2) op_expect_close("muon update", update, u64, 4 * 4 + 4, 8.0);
      if (step == 2) for (int64_t i = 0; i < n; i++) EXPECT(op_get(update, i) == 0.0, "update of a skipped step");
      muon_update(&c, param, p, update, a, 96, 24);
      for (int64_t i = 0; i < n && !op_state.skip; i++)
        p64[i] = p64[i] * (1.0 - (double)op_state.in.lr * (double)a.weight_decay) -
                 (double)op_state.in.lr * factor * op_get(update, i);
    }
    if (op_run_is_first(r)) {
      op_expect_close("muon momentum", b, b64, 4 * 4, 8.0);
      op_expect_close("muon p", p, p64, 3 * 5, ops_largest(p64, n) + 0.25);        // lr factor |update| < 0.08
      op_expect_close("muon param", param, op_fp64(p), 0);
      first[0] = b, first[1] = p, first[2] = param;
    }
    op_expect_same_bits(op_where("muon momentum", r, F32), b, first[0]);
    op_expect_same_bits(op_where("muon p", r, F32), p, first[1]);
    op_expect_same_bits(op_where("muon param", r, dtype), param, first[2]);
  }
  op_free_all();
}
TEST(muon_fp64, "muon_momentum and muon_update equal torch's formulas in fp64, with and without Nesterov, for momentum "
                "below and above 1/2; a skipped step changes nothing and updates by zero") {
  for (int64_t n : {1, 17, 20011}) muon_check_elements(F32, F32, n, MuonArgs{0.95f, 0.1f, true, true});
  for (Dtype dtype : {F32, BF16, F16}) muon_check_elements(dtype, BF16, 1037, MuonArgs{0.95f, 0.1f, true, false});
  for (float momentum : {0.0f, 0.4f, 0.9f}) muon_check_elements(BF16, F32, 100, MuonArgs{momentum, 0, false, true});
  muon_check_elements(BF16, F32, 100, MuonArgs{0.4f, 0.01f, true, true});
}

// ---- torch.optim.Muon ----------------------------------------------------------------------------------------------
// Singular values of a wide matrix: roots of the eigenvalues of X X^T, by Jacobi's rotations.
TEST_HOT static void muon_singular(MuonMatrix x, double *smallest, double *largest) {
  const MuonMatrix a = muon_multiply(1, x, x, true, 0, MUON_NONE);
  const int64_t n = a.rows;
  for (int sweep = 0; sweep < 40; sweep++)
    for (int64_t p = 0; p < n; p++) for (int64_t q = p + 1; q < n; q++) {
      if (a.x[p * n + q] == 0) continue;
      const double theta = (a.x[q * n + q] - a.x[p * n + p]) / (2 * a.x[p * n + q]);
      const double t = copysign(1.0, theta) / (fabs(theta) + sqrt(theta * theta + 1)), c = 1 / sqrt(t * t + 1);
      const double s = t * c;
      for (int64_t k = 0; k < n; k++) {
        const double kp = a.x[k * n + p], kq = a.x[k * n + q];
        a.x[k * n + p] = c * kp - s * kq, a.x[k * n + q] = s * kp + c * kq;
      }
      for (int64_t k = 0; k < n; k++) {
        const double pk = a.x[p * n + k], qk = a.x[q * n + k];
        a.x[p * n + k] = c * pk - s * qk, a.x[q * n + k] = s * pk + c * qk;
      }
    }
  for (int64_t i = 0; i < n; i++) {
    const double value = sqrt(fmax(a.x[i * n + i], 0));
    *smallest = fmin(*smallest, value), *largest = fmax(*largest, value);
  }
}
// How far `steps` exact steps can carry two matrices apart, whose singular values are in [low, high], per unit of their
// distance (Frobenius norm): a step acts on singular values as f(x) = a x + b x^3 + c x^5, an odd function, so the
// factor is the largest difference quotient of f o ... o f on [-high, -low] and [low, high] (Higham, "Functions of
// Matrices", 2008, chapter 3, and Noferini 2017 for generalised matrix functions): the largest derivative, or f(x) / x.
static double muon_growth(int steps, double low, double high) {
  double most = 1;
  if (steps == 0) return most;
  most = 0;
  for (int i = 0; i <= 4000; i++) {
    const double x = fmax(low + (high - low) * i / 4000, 1e-12);
    double y = x, slope = 1;
    for (int k = 0; k < steps; k++) {
      slope *= MUON_A + 3 * MUON_B * y * y + 5 * MUON_C * y * y * y * y;
      y = MUON_A * y + MUON_B * y * y * y + MUON_C * y * y * y * y * y;
    }
    most = fmax(most, fmax(fabs(slope), fabs(y) / x));
  }
  return 1.01 * most;                            // 4000 points of a smooth function
}
static double muon_distance_growth(int steps, MuonMatrix a, MuonMatrix b) {
  double low = INFINITY, high = 0;
  muon_singular(a, &low, &high);
  muon_singular(b, &low, &high);
  return muon_growth(steps, low, high);
}
// A bound of the distance between X_5 and where exact steps lead from X_0: what each step's rounding, which is within
// its bound, becomes in the steps after it.
static double muon_chain_error(const char *what, const MuonMatrix *x, Dtype dtype) {
  double error = 0;
  for (int k = 0; k < MUON_STEPS; k++) {
    const MuonStep s = muon_step(x[k], MUON_NONE, MUON_NONE, dtype);
    muon_expect_within(what, x[k + 1], s.next, s.next_bound);
    error += muon_distance_growth(MUON_STEPS - 1 - k, x[k + 1], s.next) *
             muon_frobenius(muon_plus(x[k + 1], -1, s.next));
  }
  return error;
}
struct MuonTorch { int64_t rows, cols; MuonArgs a; };
static Tensor muon_fixture(IxModel *m, int number, const char *name) {
  char full[32];
  snprintf(full, sizeof full, "%d.%s", number, name);
  const int i = ix_find(m, full);
  const SafetensorsTensor *t = &m->tensor[i];
  Tensor r = op_tensor(t->dtype, t->bytes / (int64_t)dtype_bytes(t->dtype));
  memcpy(r.data, m->data[i], (size_t)t->bytes);
  return r;
}
static Tensor muon_part(Tensor whole, int64_t part, int64_t rows, int64_t cols) {
  char *const at = (char *)whole.data + (size_t)(part * rows * cols) * dtype_bytes(whole.dtype);
  return tensor_of(at, whole.dtype, rows, cols);
}
enum { MUON_TORCH_STEPS = 10 };
static const double MUON_TORCH_LR = 0.02, MUON_TORCH_SCALE = 0x1p-8;
static double muon_torch_factor(MuonTorch x) {
  const double R = (double)x.rows, C = (double)x.cols;
  return x.a.match_rms ? 0.2 * sqrt(fmax(R, C)) : sqrt(fmax(1, R / C));
}
// Steps of torch.optim.Muon with its gradients. In bf16: each of its Newton-Schulz steps within the bound of ours; our
// matrices within what both roundings can amount to; and our update of its parameters by its matrices equal to
// rounding. In fp32: parameters as those of torch's code in fp64.
static void muon_check_torch(IxModel *m, int number, MuonTorch x, const Ops *ops) {
  const int64_t R = x.rows, C = x.cols, n = R * C;
  const Tensor grads = muon_fixture(m, number, "grads"), after = muon_fixture(m, number, "after");
  const Tensor exact = muon_fixture(m, number, "exact"), torch = muon_fixture(m, number, "x");
  Tensor b = op_tensor(F32, n), update = op_tensor(BF16, R, C);
  Tensor b32 = op_tensor(F32, n), update32 = op_tensor(F32, R, C);
  Tensor p = muon_fixture(m, number, "param"), p32 = op_copy(p);
  char what[80];
  snprintf(what, sizeof what, "case %d, %s", number, ops->name);
  memset(b.data, 0, (size_t)n * 4), memset(b32.data, 0, (size_t)n * 4);
  Ctx c = op_ctx(ops, 2, muon_query(update));
  ops_state_set((float)MUON_TORCH_LR, 1.0f, 0, 0);
  double far = 0;
  for (int t = 0; t < MUON_TORCH_STEPS; t++) {
    const Tensor grad = muon_part(grads, t, R, C);
    muon_momentum(&c, update, reshaped(b, R, C), grad, x.a);
    MuonMatrix ours[MUON_STEPS + 1], its[MUON_STEPS + 1];
    for (int k = 0; k <= MUON_STEPS; k++) {
      ours[k] = muon_wide(muon_run(&c, update, k, false).x);
      its[k] = muon_wide(muon_part(torch, t * (MUON_STEPS + 1) + k, R, C));
    }
    muon_expect_normal(what, muon_part(torch, t * (MUON_STEPS + 1), R, C), update, 2.02 * 0x1p-8);   // and 1 bf16 ulp
    const double bound = muon_chain_error(what, ours, BF16) + muon_chain_error(what, its, BF16) +
                         muon_distance_growth(MUON_STEPS, ours[0], its[0]) *
                             muon_frobenius(muon_plus(ours[0], -1, its[0]));
    const double apart = muon_frobenius(muon_plus(ours[MUON_STEPS], -1, its[MUON_STEPS]));
    const double size = muon_frobenius(its[MUON_STEPS]);
    EXPECT(apart <= bound, "%s, step %d: %.3g from torch's matrix of size %.3g, bound %.3g", what, t, apart, size,
           bound);
    EXPECT(bound < size / 2, "%s, step %d: a bound of %.3g says nothing of a matrix of size %.3g", what, t, bound,
           size);
    const Tensor direction = muon_part(torch, t * (MUON_STEPS + 1) + MUON_STEPS, R, C);
    muon_update(&c, Tensor{}, p, reshaped(direction, n), x.a, R, C);
    op_expect_close(what, p, op_fp64(muon_part(after, t, R, C)), 5 * (t + 1), 0.5);
    // fp32, from our own matrices.
    muon_momentum(&c, update32, reshaped(b32, R, C), grad, x.a);
    MuonMatrix chain[MUON_STEPS + 1];
    for (int k = 0; k <= MUON_STEPS; k++) chain[k] = muon_wide(muon_run(&c, update32, k, false).x);
    // X_0: two roundings here; grad and momentum 8 of at most 2^-24 of the largest element's size each.
    far += MUON_TORCH_LR * muon_torch_factor(x) *
           (muon_chain_error(what, chain, F32) +
            muon_distance_growth(MUON_STEPS, chain[0], chain[0]) * 16 * 0x1p-24 * 4);
    muon_update(&c, Tensor{}, p32, reshaped(muon_run(&c, update32, MUON_STEPS, false).x, n), x.a, R, C);
    const double *want = op_fp64(muon_part(exact, t, R, C));
    for (int64_t i = 0; i < n; i++)
      EXPECT(fabs(op_get(p32, i) - want[i]) <= far + 5 * (t + 1) * 0x1p-24 * 0.5,
             "%s, step %d: parameter %lld is %.9g, torch's code in fp64 says %.9g, bound %.3g", what, t, (long long)i,
             op_get(p32, i), want[i], far);
  }
  device_done(&c);
  op_free_all();
}
// |p - target|^2; writes the loss's gradient, if there is room.
static double muon_torch_square(Tensor p, Tensor target, float *grad) {
  double sum = 0;
  for (int64_t i = 0; i < numel(p); i++) {
    const double d = op_get(p, i) - op_get(target, i);
    if (grad) grad[i] = (float)(MUON_TORCH_SCALE * d);
    sum += d * d;
  }
  return sum;
}
// A run of our own beside torch's: gradients of our parameters, our momentum, matrices and updates. The bound of the
// losses' distance follows the distance of both runs through a step (Frobenius norms; ' is torch's; e: 2^-24, u: 2^-8):
//   gradient    |g - g'| <= s |p - p'| + e (|g| + |g'|)                       g = s (p - target), rounded
//   momentum    |b - b'| <= mu |b - b'| + (1 - mu) |g - g'| + roundings       linear; the update also, with Nesterov
//   X_0         |U/|U| - U'/|U'|| <= 2 |U - U'| / (|U| + |U'|)                (Dunkl and Williams 1964), and what is
//               rounded on the way to X_0: 2 u each, and 2.02 u of torch's norm, as for torch's gradients above
//   X_5         what both chains have rounded, and by how much X_0 differ, which must be within its bound, times what
//               five steps can make of that, as above
//   parameters  |p - p'| <= (1 - lr decay) |p - p'| + lr factor |X_5 - X_5'| + 5 e |p|
//   loss        s/2 ||p - target|^2 - |p' - target|^2| <= s |p - p'| (|p' - target| + |p - p'| / 2)
// Everything on the right is known here but |U'|, which is at least |U| - |U - U'|. Losses in the file are fp32.
static void muon_check_losses(IxModel *m, int number, MuonTorch x, const Ops *ops) {
  const int64_t R = x.rows, C = x.cols, n = R * C;
  const Tensor target = muon_fixture(m, number, "target"), torch = muon_fixture(m, number, "x");
  const Tensor after = muon_fixture(m, number, "after"), losses = muon_fixture(m, number, "losses");
  Tensor p = muon_fixture(m, number, "param"), grad = op_tensor(F32, R, C), its_p = op_copy(p);
  Tensor b = op_tensor(F32, R, C), update = op_tensor(BF16, R, C), exact_update = op_tensor(F32, R, C);
  char what[80];
  snprintf(what, sizeof what, "case %d, losses, %s", number, ops->name);
  memset(b.data, 0, (size_t)n * 4);
  Ctx c = op_ctx(ops, 2, muon_query(update));
  ops_state_set((float)MUON_TORCH_LR, 1.0f, 0, 0);
  const double mu = (double)x.a.momentum, s = MUON_TORCH_SCALE, e = 0x1p-24, u = 0x1p-8;
  const double step = MUON_TORCH_LR * muon_torch_factor(x), first = op_get(losses, 0);
  double dp = 0, db = 0, bound = 0;
  for (int t = 0;; t++) {
    const double square = muon_torch_square(p, target, (float *)grad.data), want = op_get(losses, t);
    const double loss = s / 2 * square, its = sqrt(muon_torch_square(its_p, target, NULL));
    bound = s * dp * (its + dp / 2) + 2 * e * want;
    EXPECT(fabs(loss - want) <= bound, "%s, step %d: %.9g, torch says %.9g, bound %.3g", what, t, loss, want, bound);
    if (t == MUON_TORCH_STEPS) break;
    const double dg = s * dp + 2 * e * s * (its + dp);
    Tensor b2 = op_copy(b);
    muon_momentum(&c, exact_update, b2, grad, x.a);
    muon_momentum(&c, update, b, grad, x.a);
    const double size = muon_frobenius(muon_wide(exact_update)), slip = 4 * e * (size + muon_frobenius(muon_wide(b)));
    db = mu * db + (1 - mu) * dg + slip;
    const double du = x.a.nesterov ? (1 - mu) * dg + mu * db + slip : db + slip;
    const double d0 = 2 * du / (2 * size - du) + 4.04 * u + 2.02 * u;
    MuonMatrix ours[MUON_STEPS + 1], theirs[MUON_STEPS + 1];
    for (int k = 0; k <= MUON_STEPS; k++) {
      ours[k] = muon_wide(muon_run(&c, update, k, false).x);
      theirs[k] = muon_wide(muon_part(torch, t * (MUON_STEPS + 1) + k, R, C));
    }
    const double apart = muon_frobenius(muon_plus(ours[0], -1, theirs[0]));
    EXPECT(apart <= d0, "%s, step %d: X_0 is %.3g from torch's, bound %.3g", what, t, apart, d0);
    const double d5 = muon_chain_error(what, ours, BF16) + muon_chain_error(what, theirs, BF16) +
                      muon_distance_growth(MUON_STEPS, ours[0], theirs[0]) * apart;
    its_p = muon_part(after, t, R, C);
    dp = dp + step * d5 + 5 * e * (muon_frobenius(muon_wide(its_p)) + dp);
    muon_update(&c, Tensor{}, p, reshaped(muon_run(&c, update, MUON_STEPS, false).x, n), x.a, R, C);
  }
  const double fell = first - op_get(losses, MUON_TORCH_STEPS);
  EXPECT(bound < fell / 2, "%s: a bound of %.3g says little of a loss that fell by %.3g", what, bound, fell);
  device_done(&c);
  op_free_all();
}
static const MuonTorch muon_torch_cases[] = {{8, 32, {0.95f, 0.1f, true, true}}, {24, 8, {0.95f, 0.1f, true, false}},
                                             {12, 20, {0.4f, 0.1f, true, true}}, {16, 24, {0.9f, 0.1f, false, false}}};
static void muon_each_torch(void (*check)(IxModel *m, int number, MuonTorch x, const Ops *ops)) {
  static IxModel m;
  ix_load(&m, "dev/fixtures/muon.safetensors");
  for (int i = 0; const Ops *ops = op_table(i); i++)
    for (int k = 0; k < 4; k++) check(&m, k, muon_torch_cases[k], ops);
}
TEST(muon_torch, "ten steps of torch.optim.Muon in its bf16: each of its Newton-Schulz steps is ours to rounding, "
                 "its matrices are as far from ours as both roundings allow; in fp32 parameters are those of its code "
                 "in fp64") {
  muon_each_torch(muon_check_torch);
}
TEST(muon_losses, "a run of ten steps, each with the gradient where it came to: its losses are those of torch's run, "
                  "to a bound that follows both runs' roundings through all steps") {
  muon_each_torch(muon_check_losses);
}

// ---- CUDA ----------------------------------------------------------------------------------------------------------
static void muon_check_cuda(const Ops *ops, Dtype dtype, int64_t R, int64_t C) {
  Tensor in = op_random_tensor((uint64_t)(R + C), 1e-3, dtype, R, C);
  Ctx cpu = op_ctx(op_table(0), 1, muon_query(in)), c = device_ctx(ops, muon_query(in));
  op_expect_same_bits(device_where("normalised", &c, dtype), muon_run(&c, in, 0, false).x,
                      muon_run(&cpu, in, 0, false).x);
  muon_expect_steps(device_where("Newton-Schulz", &c, dtype), &c, in, dtype == BF16 && !(R % 8 || C % 8));
  device_done(&cpu);
  device_done(&c);
  op_free_all();
}
static void muon_check_cuda_elements(const Ops *ops, Dtype dtype, CudaMaster kind, Dtype update_dtype, int64_t n,
                                     int64_t shift) {
  CudaOps o = cuda_ops_open(ops, cuda_ops_query(dtype, 1, 1, 1), cuda_ops_state(0));
  const int64_t all = n + shift;
  const bool halves = kind == CUDA_MASTER_HALVES;
  Tensor cpu[4] = {kind == CUDA_MASTER_ITSELF ? Tensor{} : op_tensor(dtype, all), op_random_tensor(1, 0.1, F32, all),
                   op_random_tensor(2, 1e-3, F32, all), op_tensor(update_dtype, all)}, gpu[4];
  const Tensor start = cpu[1];
  if (halves) param_from_master(&o.cpu, cpu[0], cpu[1] = op_tensor(LOW16, all), start);
  for (int i = 0; i < 4; i++) {
    gpu[i] = device_upload(&o.gpu, cpu[i]);
    if (!cpu[i].data) continue;
    cpu[i] = op_shifted(cpu[i], shift), gpu[i] = op_shifted(gpu[i], shift);
  }
  for (int step = 1; step <= 3; step++) {        // the second is skipped
    const MuonArgs a = {step == 3 ? 0.4f : 0.95f, 0.1f, step != 3, step != 3};
    Tensor grad = op_random_tensor((uint64_t)step, 1e-3, F32, all), d_grad = device_upload(&o.gpu, grad);
    ops_state_set(0.01f, 0.7f, 0, 0);
    op_state.skip = step == 2;
    device_set_state(&o.gpu, op_state);
    for (int device = 0; device < 2; device++) {
      Ctx *c = device ? &o.gpu : &o.cpu;
      Tensor *t = device ? gpu : cpu;
      muon_momentum(c, t[3], t[2], op_shifted(device ? d_grad : grad, shift), a);
      muon_update(c, t[0], t[1], t[3], a, 48, 12);
    }
    for (int i = !cpu[0].data; i < 4; i++) device_expect_same_bits("muon", &o.gpu, gpu[i], cpu[i]);
  }
  cuda_ops_close(&o);
}
TEST(cuda_muon, "CUDA: Muon's momentum, update and norm have the CPU's bits; each matrix multiply of Newton-Schulz "
                "equals fp64 within its rounding, by cuBLASLt and by kernels of our own") {
  for (int i = 0; const Ops *ops = device_table(i); i++) {
    for (unsigned without : {0u, (unsigned)EMU_LT_WITHOUT_ALL})
      for (Dtype dtype : {F32, BF16})
        for (auto s : {MuonShape{1, 1}, MuonShape{7, 20}, MuonShape{33, 19}, MuonShape{64, 72}, MuonShape{80, 64},
                       MuonShape{136, 200}, MuonShape{168, 72}})
          if (matmul_set_without(ops, without) && (!without || s.rows < 100))
            muon_check_cuda(ops, dtype, s.rows, s.cols);
    matmul_set_without(ops, 0);
    for (Dtype update : {F32, BF16}) {
      muon_check_cuda_elements(ops, F32, CUDA_MASTER_ITSELF, update, 1021, 0);
      muon_check_cuda_elements(ops, BF16, CUDA_MASTER_HALVES, update, 2055, 0);
      muon_check_cuda_elements(ops, BF16, CUDA_MASTER_HALVES, update, 70, 1);
      muon_check_cuda_elements(ops, F16, CUDA_MASTER_BESIDE, update, 700, 0);
    }
  }
}
