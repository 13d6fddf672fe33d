// test_matmul_split.h: fp32 GEMMs from six of bf16 (kernels/cpu/gemm_split.h), on every table with tiles: the emulated
// one, and AMX where this machine has it.

static Ctx split_ctx(const Ops *ops, int threads, bool high) {
  Ctx c = matmul_ctx(ops, threads);
  c.fast_fp32 = high;
  return c;
}
// Blocks of k, and steps of 32 in one block.
static int64_t split_blocks(int64_t K) { return (K + 191) / 192; }
static int64_t split_steps(int64_t K) { return (K + 32 * split_blocks(K) - 1) / (32 * split_blocks(K)); }
// c of |error| <= c u sum |a b| + K 2^-104, as gemm_split.h derives it; and that of multiply-adds in blocks of 384.
static double split_bound(int64_t K) { return 1.02 * (double)(6 * split_steps(K) + split_blocks(K) + 15); }
static double split_chain_bound(int64_t K) {
  const int64_t blocks = (K + 383) / 384;
  return (double)((K + blocks - 1) / blocks + blocks - 1);
}

// ---- the order of its sums -----------------------------------------------------------------------------------------
static float split_part(float x, int part) {
  for (int p = 0;; p++) {
    const float rounded = p == 2 ? x : bits_f32((f32_bits(x) + 0x8000u) & 0xffff0000u);
    if (p == part) return rounded;
    x -= rounded;
  }
}
// One element: the sum over k of a[k step_a] b[k step_b], as gemm_split.h states it.
static float split_plain(const float *a, int64_t step_a, const float *b, int64_t step_b, int64_t K) {
  static const int parts[6][2] = {{0, 2}, {0, 1}, {1, 1}, {1, 0}, {2, 0}, {0, 0}};
  const int64_t block = 32 * split_steps(K);
  float total = 0;
  for (int64_t k0 = 0; k0 < K; k0 += block) {
    const int64_t end = min64(K, k0 + block);
    float sum = 0;
    for (int64_t s = k0; s < end; s += 32)
      for (const int *p : parts) {
        float chain[2] = {0, 0};
        for (int64_t k = s; k < min64(end, s + 32); k++) {
          float *to = &chain[k >= s + 16];
          *to = fmaf(split_part(a[k * step_a], p[0]), split_part(b[k * step_b], p[1]), *to);
        }
        sum += chain[0] + chain[1];
      }
    total = k0 ? total + sum : sum;
  }
  return total;
}
// to(I,J), element by element.
static Tensor split_plain_all(int64_t I, int64_t J, int64_t K, Tensor a, int64_t a_i, int64_t a_k, Tensor b,
                              int64_t b_j, int64_t b_k) {
  Tensor to = op_tensor(F32, I, J);
  for (int64_t i = 0; i < I; i++) for (int64_t j = 0; j < J; j++)
    ((float *)to.data)[i * J + j] = split_plain((float *)a.data + i * a_i, a_k, (float *)b.data + j * b_j, b_k, K);
  return to;
}
// One and several blocks of k and tiles, and edges of both, along every summed index.
static const MatmulShape split_shapes[] = {{1, 1, 1},    {37, 131, 53}, {64, 64, 32},
                                           {5, 801, 40}, {531, 9, 35},  {6, 33, 290}};

TEST(matmul_split_order, "the six products are summed in the stated order, whatever operand is transposed") {
  for (int i = 0; const Ops *ops = split_table(i); i++) for (MatmulShape s : split_shapes) {
    const MatmulCase x = matmul_case(s, F32);
    Ctx c = split_ctx(ops, 2, true);
    Tensor out = op_tensor(F32, s.M, s.N), din = op_tensor(F32, s.M, s.K), dw = op_tensor(F32, s.N, s.K);
    matmul_forward(&c, out, x.in, x.weight, MatmulEpilogue{});
    matmul_backward_input(&c, din, x.dout, x.weight, Tensor{});
    matmul_backward_weight(&c, dw, Tensor{}, x.dout, x.in, OVERWRITE);
    op_expect_same_bits(matmul_label(ops, F32, s, "out"), out,
                        split_plain_all(s.M, s.N, s.K, x.in, s.K, 1, x.weight, s.K, 1));
    op_expect_same_bits(matmul_label(ops, F32, s, "din"), din,
                        split_plain_all(s.M, s.K, s.N, x.dout, s.N, 1, x.weight, 1, s.K));
    op_expect_same_bits(matmul_label(ops, F32, s, "dweight"), dw,
                        split_plain_all(s.N, s.K, s.M, x.dout, 1, s.N, x.in, 1, s.K));
    op_free_all();
  }
}

// ---- its error -----------------------------------------------------------------------------------------------------
enum SplitData { SPLIT_RANDOM, SPLIT_GRADED, SPLIT_CANCELLING, SPLIT_KINDS };
static const char *const split_data_names[] = {"random", "graded", "cancelling"};
// graded: every element has its own magnitude, 2^-8 to 2^8. cancelling: b nearly cancels a's row, whose second half is
// the negative of the first except for a few units in the last place.
static void split_fill(SplitData kind, Tensor a, Tensor b, uint64_t seed) {
  const int64_t K = a.shape[1], half = K / 2;
  float *x = (float *)a.data, *y = (float *)b.data;
  for (int64_t i = 0; i < numel(a); i++) x[i] = (float)op_normal(&seed);
  for (int64_t i = 0; i < numel(b); i++) y[i] = (float)op_normal(&seed);
  if (kind == SPLIT_GRADED) {
    for (int64_t i = 0; i < numel(a); i++) x[i] = ldexpf(x[i], (int)op_below(&seed, 17) - 8);
    for (int64_t i = 0; i < numel(b); i++) y[i] = ldexpf(y[i], (int)op_below(&seed, 17) - 8);
  }
  if (kind != SPLIT_CANCELLING) return;
  for (int64_t i = 0; i < a.shape[0]; i++) for (int64_t k = 0; k < half; k++)
    x[i * K + half + k] = -x[i * K + k] * (1.0f + 0x1p-20f * (float)op_below(&seed, 8));
  for (int64_t j = 0; j < b.shape[0]; j++) for (int64_t k = 0; k < half; k++) y[j * K + half + k] = y[j * K + k];
}
// Largest error as a fraction of bound u sum |a b| + K 2^-104; root of the mean square of error / (u sum |a b|).
struct SplitError { double worst, rms; };
static SplitError split_error(Tensor out, Tensor a, Tensor b, double bound) {
  const int64_t M = a.shape[0], N = b.shape[0], K = a.shape[1];
  const float *x = (const float *)a.data, *y = (const float *)b.data;
  SplitError e = {0, 0};
  for (int64_t i = 0; i < M; i++) for (int64_t j = 0; j < N; j++) {
    double sum = 0, size = 0;                    // a product of two floats is exact in fp64
    for (int64_t k = 0; k < K; k++) {
      const double term = (double)x[i * K + k] * y[j * K + k];
      sum += term;
      size += fabs(term);
    }
    const double error = fabs((double)((const float *)out.data)[i * N + j] - sum), unit = 0x1p-24 * size;
    e.worst = fmax(e.worst, error / (bound * unit + (double)K * 0x1p-104));
    e.rms += error / unit * (error / unit);
  }
  e.rms = sqrt(e.rms / (double)(M * N));
  return e;
}
// fp64's own error is K 2^-53: negligible beside the bound.
TEST(matmul_split_error,
     "on random, graded and cancelling data the error is within the stated bound, which is below that of "
     "multiply-adds, and so is its root mean square") {
  for (int64_t K = 23; K <= 100000; K++)
    EXPECT(split_bound(K) < split_chain_bound(K), "K=%lld: %g, not below %g", (long long)K, split_bound(K),
           split_chain_bound(K));
  for (int i = 0; const Ops *ops = split_table(i); i++) for (int kind = 0; kind < SPLIT_KINDS; kind++)
    for (int64_t K : {2, 16, 31, 32, 100, 256, 384, 512, 1600}) {
      Tensor a = op_tensor(F32, 40, K), b = op_tensor(F32, 50, K), out = op_tensor(F32, 40, 50);
      split_fill((SplitData)kind, a, b, (uint64_t)K);
      Ctx high = split_ctx(ops, 2, true), highest = split_ctx(ops, 2, false);
      matmul_forward(&high, out, a, b, MatmulEpilogue{});
      const SplitError split = split_error(out, a, b, split_bound(K));
      matmul_forward(&highest, out, a, b, MatmulEpilogue{});
      const SplitError chain = split_error(out, a, b, split_chain_bound(K));
      EXPECT(split.worst <= 1 && chain.worst <= 1, "%s, K=%lld: %.3g times the bound (multiply-adds: %.3g)",
             split_data_names[kind], (long long)K, split.worst, chain.worst);
      EXPECT(K < 32 || split.rms < chain.rms, "%s, K=%lld: rms error %.3g u sum |a b|, multiply-adds' %.3g",
             split_data_names[kind], (long long)K, split.rms, chain.rms);
      op_free_all();
    }
}

// ---- what tiles cannot do ------------------------------------------------------------------------------------------
TEST(matmul_tiles_flush, "bf16 tile multiplies read denormals as zero and flush denormal results") {
  for (int i = 0; const Ops *ops = split_table(i); i++) {
    Ctx c = matmul_ctx(ops, 1);
    enum { ROWS = 6 };                           // tiles; one row alone has the same bits by vectors
    Tensor a = op_tensor(BF16, ROWS, 4), b = op_tensor(BF16, 1, 4), out = op_tensor(F32, ROWS, 1);
    const struct { double a[4], b[4], want; } cases[] = {
        {{0x1p-127, 0, 1, 0}, {0x1p100, 0, 3, 0}, 3},            // operand of either side
        {{0x1p100, 2, 0, 0}, {0x1p-130, 1, 0, 0}, 2},
        {{0x1p-70, 0, 0, 0}, {0x1p-70, 0, 0, 0}, 0},             // product
        {{0x1p-63, 0x1p-126, 0, 0}, {0x1p-63, -1.5, 0, 0}, 0},   // sum of an even and an odd k: -2^-127
        {{0x1p-63, 0, 0x1p-64, 0}, {0x1p-63, 0, -0x1p-63, 0}, 0},          // and of a chain
        {{0x1p-63, 0, 0, 0}, {0x1p-63, 0, 0, 0}, 0x1p-126}};
    for (const auto &k : cases) {
      for (int q = 0; q < 4; q++) op_put(b, q, k.b[q]);
      for (int q = 0; q < 4 * ROWS; q++) op_put(a, q, k.a[q % 4]);
      for (int64_t rows : {1, (int)ROWS}) {
        matmul_forward(&c, rows_of(out, 0, rows), rows_of(a, 0, rows), b, MatmulEpilogue{});
        for (int64_t r = 0; r < rows; r++)
          EXPECT(op_get(out, r) == k.want, "%s: %g %g %g %g times %g %g %g %g is %g in row %lld of %lld, must be %g",
                 ops->name, k.a[0], k.a[1], k.a[2], k.a[3], k.b[0], k.b[1], k.b[2], k.b[3], op_get(out, r),
                 (long long)r, (long long)rows, k.want);
      }
    }
    op_free_all();
  }
}

// a b^T by each of the three GEMMs: k along the rows of both, down the columns of b, down those of both.
static Tensor split_product(Ctx *c, int layout, Tensor a, Tensor b) {
  Tensor out = op_tensor(F32, a.shape[0], b.shape[0]);
  Tensor at = op_tensor(F32, a.shape[1], a.shape[0]), bt = op_tensor(F32, b.shape[1], b.shape[0]);
  for (int64_t i = 0; i < numel(a); i++) memcpy((float *)at.data + i % a.shape[1] * a.shape[0] + i / a.shape[1],
                                                (float *)a.data + i, sizeof(float));
  for (int64_t i = 0; i < numel(b); i++) memcpy((float *)bt.data + i % b.shape[1] * b.shape[0] + i / b.shape[1],
                                                (float *)b.data + i, sizeof(float));
  if (layout == 0) matmul_forward(c, out, a, b, MatmulEpilogue{});
  else if (layout == 1) matmul_backward_input(c, out, a, bt, Tensor{});
  else matmul_backward_weight(c, out, Tensor{}, at, bt, OVERWRITE);
  return out;
}
// The elements at the same k of a and of b. a_alone: a's puts its whole row on the plain kernel; b_alone: b's its
// column.
struct SplitSpecial { const char *name; double a, b; bool a_alone, b_alone; };
static const SplitSpecial split_specials[] = {
    {"inf", INFINITY, 1, true, false},           {"inf and -inf", INFINITY, -INFINITY, true, true},
    {"inf and 0", INFINITY, 0, true, false},     {"NaN", NAN, 1, true, false},
    {"NaN below", 1, NAN, false, true},          {"the largest", 3.4e38, 1e-30, true, false},
    {"denormal and large", 1e-40, 1e30, false, false}, {"large and denormal", -1e30, 1e-42, false, false},
    {"tiny and large", 0x1.8p-110, 0x1p20, false, false},  {"the smallest and a huge one", 1e-45, 3e38, false, false},
    {"zero and large", 0, 0x1p21, false, false}};
static bool split_same(Tensor x, Tensor y, int64_t i) {
  const float p = ((const float *)x.data)[i], q = ((const float *)y.data)[i];
  return f32_bits(p) == f32_bits(q) || (p != p && q != q);
}
TEST(matmul_split_special,
     "infinities, NaN, numbers that overflow bf16 and denormals beside large numbers give the plain kernel's bits in "
     "their row or column, or where the two meet; all other elements keep their own") {
  const int64_t M = 75, N = 70, K = 600;         // four blocks of k, three tiles and an edge
  for (int t = 0; const Ops *ops = split_table(t); t++) for (int layout = 0; layout < 3; layout++) {
    Ctx high = split_ctx(ops, 2, true), highest = split_ctx(ops, 2, false);
    Tensor a = op_random_tensor(1, 1.0, F32, M, K), b = op_random_tensor(2, 1.0, F32, N, K);
    const Tensor before = split_product(&high, layout, a, b);
    for (const SplitSpecial &s : split_specials) {
      const int64_t m = layout == 1 ? 74 : 40, n = layout == 2 ? 69 : 31, k = s.a != s.a ? 599 : 3;
      const double a_old = op_get(a, m * K + k), b_old = op_get(b, n * K + k);
      op_put(a, m * K + k, s.a);
      const Tensor a_alone = split_product(&high, layout, a, b);
      op_put(b, n * K + k, s.b);
      const Tensor got = split_product(&high, layout, a, b), plain = split_product(&highest, layout, a, b);
      op_put(a, m * K + k, a_old);
      const Tensor b_alone = split_product(&high, layout, a, b);
      op_put(b, n * K + k, b_old);
      int64_t wrong[2] = {0, 0};
      for (int64_t i = 0; i < M * N; i++) {
        const bool row = i / N == m, col = i % N == n;
        if ((row && s.a_alone) || (col && s.b_alone) || (row && col)) wrong[0] += !split_same(got, plain, i);
        if (!row || !col) wrong[1] += !split_same(got, row ? a_alone : col ? b_alone : before, i);
      }
      EXPECT(!wrong[0] && !wrong[1], "%s, layout %d, %s: %lld elements are not the plain kernel's, %lld changed",
             ops->name, layout, s.name, (long long)wrong[0], (long long)wrong[1]);
      const double met = op_get(got, m * N + n);
      if (s.a == INFINITY && s.b) EXPECT(met == s.a * s.b, "%s: %g", s.name, met);
      if (s.a * s.b != s.a * s.b) EXPECT(met != met, "%s: %g", s.name, met);
    }
    op_free_all();
  }
}
TEST(matmul_split_tiny,
     "rows of denormals and other tiny numbers, as GELU makes them, beside numbers below 2^20 stay within the "
     "absolute term") {
  const int64_t M = 33, N = 35, K = 300;
  for (int t = 0; const Ops *ops = split_table(t); t++) {
    Tensor a = op_random_tensor(1, 1.0, F32, M, K), b = op_random_tensor(2, 1.0, F32, N, K);
    uint64_t seed = 3;
    for (int64_t i = 0; i < M * K; i++)
      if (i % 5 < 3) op_put(a, i, ldexp(op_get(a, i), -100 - (int)op_below(&seed, 50)));
    for (int64_t i = 0; i < N * K; i++) op_put(b, i, op_get(b, i) * 0x1p16);
    for (int64_t k = 0; k < K; k++) op_put(a, k, 0x1p-120 * op_normal(&seed));       // nothing else in row 0
    Ctx high = split_ctx(ops, 2, true);
    const SplitError e = split_error(split_product(&high, 0, a, b), a, b, split_bound(K));
    EXPECT(e.worst <= 1, "%s: %g times the bound", ops->name, e.worst);
    op_free_all();
  }
}

// ---- shared with the plain kernel ----------------------------------------------------------------------------------
TEST(matmul_split_threads_and_rows,
     "the same bits on 1, 2 and 3 threads and for any rows alone; a GEMM's epilogue uses its sums") {
  const MatmulShape s = {561, 290, 67};
  for (int i = 0; const Ops *ops = split_table(i); i++) {
    const MatmulCase x = matmul_case(s, F32);
    op_put(x.in, 130 * s.K + 7, INFINITY);
    const MatmulResults one = matmul_all(split_ctx(ops, 1, true), x);
    for (int threads : {2, 3}) matmul_expect_same("on more threads", one, matmul_all(split_ctx(ops, threads, true), x));
    Ctx c = split_ctx(ops, 2, true);
    for (int64_t first : {0, 13, 130, 541}) {
      Tensor out = op_tensor(F32, 20, s.N), din = op_tensor(F32, 20, s.K);
      matmul_forward(&c, out, rows_of(x.in, first, 20), x.weight, MatmulEpilogue{x.bias, {}});
      matmul_backward_input(&c, din, rows_of(x.dout, first, 20), x.weight, Tensor{});
      op_expect_same_bits("out of some rows", out, rows_of(one.t[0], first, 20));
      op_expect_same_bits("din of some rows", din, rows_of(one.t[3], first, 20));
    }
    Tensor biased = op_copy(one.t[2]), gelu = op_tensor(F32, s.M, s.N);
    for (int64_t e = 0; e < s.M * s.N; e++) ((float *)biased.data)[e] += ((float *)x.bias.data)[e % s.N];
    op_expect_same_bits("out", one.t[0], biased);
    gelu_forward(&c, gelu, one.t[0]);
    op_expect_same_bits("gelu", one.t[1], gelu);
    Tensor old = op_random_tensor(21, 3.0, F32, s.N, s.K), added = op_copy(old), dbias = op_tensor(F32, s.N);
    matmul_backward_weight(&c, added, Tensor{}, x.dout, x.in, ADD);
    op_expect_same_bits("dweight added", added, op_added(old, one.t[5]));
    matmul_backward_weight(&c, Tensor{}, dbias, x.dout, x.in, OVERWRITE);
    op_expect_same_bits("dbias alone", dbias, one.t[6]);
    double *want = op_zeros(s.N), *dout = op_fp64(x.dout);
    for (int64_t e = 0; e < s.M * s.N; e++) want[e % s.N] += dout[e];
    op_expect_close("dbias", dbias, want, (double)s.M, 3.0 * (double)s.M);
    op_free_all();
  }
}
