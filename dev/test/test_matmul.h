// test_matmul.h: kernels/matmul.cuh and gemm.h on every instruction set this machine has, AMX emulated included.

struct MatmulShape { int64_t M, K, N; };
// One element, primes, edges on either side of a tile, more than one k block (fp32 384, bf16 768 or 512 a block) along
// each of the three summed indices, more than one task of rows (256) and of columns (512 to 1024).
static const MatmulShape matmul_shapes[] = {
    {1, 1, 1},     {7, 13, 5},    {37, 131, 53},  {14, 64, 32},  {65, 33, 97},
    {3, 1601, 40}, {5, 29, 1601}, {1601, 21, 35}, {601, 40, 401},
    {1030, 40, 512}};                            // its GELU streams past the caches on AMX
static const Dtype matmul_dtypes[] = {F32, BF16, F16};

// ---- reference in fp64 ---------------------------------------------------------------------------------------------
static double matmul_ref_gelu(double x) {
  return 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}
static double matmul_ref_gelu_grad(double x) {
  double t = tanh(0.7978845608028654 * (x + 0.044715 * x * x * x));
  return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * 0.7978845608028654 * (1.0 + 3.0 * 0.044715 * x * x);
}
// to(I,J) = sum over s < S of a(i,s) b(j,s); steps give the layouts. Returns the largest sum of |terms|.
TEST_HOT static double matmul_ref(double *to, int64_t I, int64_t J, int64_t S, const double *a, int64_t a_i,
                                  int64_t a_s, const double *b, int64_t b_j, int64_t b_s) {
  double largest = 0.0;
  for (int64_t i = 0; i < I; i++) {
    for (int64_t j = 0; j < J; j++) {
      double sum = 0.0, magnitude = 0.0;
      for (int64_t s = 0; s < S; s++) {
        double term = a[i * a_i + s * a_s] * b[j * b_j + s * b_s];
        sum += term;
        magnitude += fabs(term);
      }
      to[i * J + j] = sum;
      largest = fmax(largest, magnitude);
    }
  }
  return largest;
}

struct MatmulRef {                               // loss = sum of dout * (GELU(pre) weight^T + bias)
  MatmulShape s;
  double *pre, *weight, *bias, *dout;
};
static double matmul_ref_loss(void *env) {
  MatmulRef *r = (MatmulRef *)env;
  double loss = 0.0;
  for (int64_t m = 0; m < r->s.M; m++) for (int64_t n = 0; n < r->s.N; n++) {
    double out = r->bias[n];
    for (int64_t k = 0; k < r->s.K; k++) out += matmul_ref_gelu(r->pre[m * r->s.K + k]) * r->weight[n * r->s.K + k];
    loss += out * r->dout[m * r->s.N + n];
  }
  return loss;
}

TEST(matmul_reference_gradients, "the fp64 reference's gradients are the central differences of its forward") {
  MatmulShape s = {3, 5, 4};
  MatmulRef r = {s, op_fp64(op_random_tensor(1, 1.0, F32, s.M, s.K)), op_fp64(op_random_tensor(2, 1.0, F32, s.N, s.K)),
                 op_fp64(op_random_tensor(3, 1.0, F32, s.N)), op_fp64(op_random_tensor(4, 1.0, F32, s.M, s.N))};
  double *dpre = op_zeros(s.M * s.K), *dweight = op_zeros(s.N * s.K), *dbias = op_zeros(s.N), *in = op_zeros(s.M * s.K);
  matmul_ref(dpre, s.M, s.K, s.N, r.dout, s.N, 1, r.weight, 1, s.K);
  for (int64_t i = 0; i < s.M * s.K; i++) {
    dpre[i] *= matmul_ref_gelu_grad(r.pre[i]);
    in[i] = matmul_ref_gelu(r.pre[i]);
  }
  matmul_ref(dweight, s.N, s.K, s.M, r.dout, 1, s.N, in, 1, s.K);
  for (int64_t i = 0; i < s.M * s.N; i++) dbias[i % s.N] += r.dout[i];
  op_expect_gradient("din", matmul_ref_loss, &r, r.pre, dpre, s.M * s.K, 100, 1000.0);
  op_expect_gradient("dweight", matmul_ref_loss, &r, r.weight, dweight, s.N * s.K, 100, 1000.0);
  op_expect_gradient("dbias", matmul_ref_loss, &r, r.bias, dbias, s.N, 100, 1000.0);
  op_free_all();
}

// ---- operands ------------------------------------------------------------------------------------------------------
struct MatmulCase { MatmulShape s; Tensor in, weight, bias, dout, pre; };
static MatmulCase matmul_case(MatmulShape s, Dtype t) {
  MatmulCase x = {s, op_random_tensor(11, 1.0, t, s.M, s.K), op_random_tensor(12, 0.3, t, s.N, s.K),
                  op_random_tensor(13, 1.0, t, s.N), op_random_tensor(14, 0.5, t, s.M, s.N),
                  op_random_tensor(15, 1.5, t, s.M, s.K)};
  return x;
}
static Ctx matmul_ctx(const Ops *ops, int threads) {
  WorkspaceQuery q = {F32, F32, 4, 512, 64, 2, 512, 512};
  return op_ctx(ops, threads, q);
}
// Every result of one layer: the bit tests compare these.
enum { MATMUL_RESULTS = 7 };
struct MatmulResults { Tensor t[MATMUL_RESULTS]; };
static const char *const matmul_result_names[] = {"out",     "gelu",  "fp32 out", "din", "din through gelu",
                                                  "dweight", "dbias"};
static MatmulResults matmul_all(Ctx c, MatmulCase x) {
  Dtype t = x.in.dtype;
  MatmulResults r = {{op_tensor(t, x.s.M, x.s.N), op_tensor(t, x.s.M, x.s.N), op_tensor(F32, x.s.M, x.s.N),
                      op_tensor(t, x.s.M, x.s.K), op_tensor(t, x.s.M, x.s.K), op_tensor(F32, x.s.N, x.s.K),
                      op_tensor(F32, x.s.N)}};
  matmul_forward(&c, r.t[0], x.in, x.weight, MatmulEpilogue{x.bias, r.t[1]});
  matmul_forward(&c, r.t[2], x.in, x.weight, MatmulEpilogue{});
  matmul_backward_input(&c, r.t[3], x.dout, x.weight, Tensor{});
  matmul_backward_input(&c, r.t[4], x.dout, x.weight, x.pre);
  matmul_backward_weight(&c, r.t[5], r.t[6], x.dout, x.in, OVERWRITE);
  return r;
}
static MatmulResults matmul_all(const Ops *ops, int threads, MatmulCase x) {
  return matmul_all(matmul_ctx(ops, threads), x);
}
static void matmul_expect_same(const char *what, MatmulResults a, MatmulResults b) {
  for (int i = 0; i < MATMUL_RESULTS; i++) {
    char name[256];
    snprintf(name, sizeof name, "%s: %s", what, matmul_result_names[i]);
    op_expect_same_bits(name, a.t[i], b.t[i]);
  }
}
static const char *matmul_label(const Ops *ops, Dtype t, MatmulShape s, const char *what) {
  static char label[160];
  snprintf(label, sizeof label, "%s %s M=%lld K=%lld N=%lld %s", ops->name, dtype_name(t), (long long)s.M,
           (long long)s.K, (long long)s.N, what);
  return label;
}

// ---- against the reference -----------------------------------------------------------------------------------------
// A sum of S products takes at most S roundings of additions (an FMA does not round its product, a bf16 product is
// exact, and a step of vdpbf16ps or AMX rounds at most once per product), one per k block and one for the bias: 2 S + 2
// bounds them. GELU' has a slope of at most 1.13; its polynomial (exp below 2 ulp, a division, ten operations) adds at
// most 24 roundings. So does that of GELU, which is applied to the stored out.
static const double MATMUL_GELU_ROUNDINGS = 24.0;
static double matmul_roundings(int64_t S) { return 2.0 * (double)S + 2.0; }
static double matmul_gelu_roundings(int64_t S) { return 1.13 * matmul_roundings(S) + MATMUL_GELU_ROUNDINGS; }

static void matmul_check_forward(const Ops *ops, MatmulCase x) {
  const MatmulShape s = x.s;
  const Dtype t = x.in.dtype;
  Ctx c = matmul_ctx(ops, 2);
  double *in = op_fp64(x.in), *weight = op_fp64(x.weight), *bias = op_fp64(x.bias);
  double *want = op_zeros(s.M * s.N), *gelu = op_zeros(s.M * s.N);
  double scale = matmul_ref(want, s.M, s.N, s.K, in, s.K, 1, weight, s.K, 1);
  Tensor logits = op_tensor(F32, s.M, s.N), out = op_tensor(t, s.M, s.N), activated = op_tensor(t, s.M, s.N);
  matmul_forward(&c, logits, x.in, x.weight, MatmulEpilogue{});
  op_expect_close(matmul_label(ops, t, s, "fp32 out"), logits, want, matmul_roundings(s.K), scale);
  for (int64_t i = 0; i < s.M * s.N; i++) want[i] += bias[i % s.N];
  scale += 5.0;                                  // no bias is larger
  matmul_forward(&c, out, x.in, x.weight, MatmulEpilogue{x.bias, activated});
  op_expect_close(matmul_label(ops, t, s, "out"), out, want, matmul_roundings(s.K), scale);
  for (int64_t i = 0; i < s.M * s.N; i++) gelu[i] = matmul_ref_gelu(op_get(out, i));
  op_expect_close(matmul_label(ops, t, s, "gelu"), activated, gelu, MATMUL_GELU_ROUNDINGS, scale);
}
static void matmul_check_backward(const Ops *ops, MatmulCase x) {
  const MatmulShape s = x.s;
  const Dtype t = x.in.dtype;
  Ctx c = matmul_ctx(ops, 2);
  double *in = op_fp64(x.in), *weight = op_fp64(x.weight), *dout = op_fp64(x.dout), *pre = op_fp64(x.pre);
  double *want = op_zeros(s.M * s.K), *dweight = op_zeros(s.N * s.K), *dbias = op_zeros(s.N);
  double scale = matmul_ref(want, s.M, s.K, s.N, dout, s.N, 1, weight, 1, s.K);
  Tensor din = op_tensor(t, s.M, s.K);
  matmul_backward_input(&c, din, x.dout, x.weight, Tensor{});
  op_expect_close(matmul_label(ops, t, s, "din"), din, want, matmul_roundings(s.N), scale);
  for (int64_t i = 0; i < s.M * s.K; i++) want[i] *= matmul_ref_gelu_grad(pre[i]);
  matmul_backward_input(&c, din, x.dout, x.weight, x.pre);
  op_expect_close(matmul_label(ops, t, s, "din through gelu"), din, want, matmul_gelu_roundings(s.N), scale);
  scale = matmul_ref(dweight, s.N, s.K, s.M, dout, 1, s.N, in, 1, s.K);
  for (int64_t i = 0; i < s.M * s.N; i++) dbias[i % s.N] += dout[i];
  for (Dtype g : matmul_dtypes) {                // gradients of any dtype with activations of any other
    Tensor dw = op_tensor(g, s.N, s.K), db = op_tensor(g, s.N);
    matmul_backward_weight(&c, dw, db, x.dout, x.in, OVERWRITE);
    op_expect_close(matmul_label(ops, t, s, "dweight"), dw, dweight, matmul_roundings(s.M), scale);
    op_expect_close(matmul_label(ops, t, s, "dbias"), db, dbias, (double)s.M, 3.0 * (double)s.M);
  }
}

TEST(matmul_forward_reference, "matmul_forward is the fp64 reference within rounding: every table, dtype, odd shape") {
  for (int i = 0; const Ops *ops = op_table(i); i++) for (Dtype t : matmul_dtypes) for (MatmulShape s : matmul_shapes) {
    matmul_check_forward(ops, matmul_case(s, t));
    op_free_all();
  }
}
TEST(matmul_backward_reference, "matmul_backward_* are the fp64 reference within rounding: every table, dtype, shape") {
  for (int i = 0; const Ops *ops = op_table(i); i++) for (Dtype t : matmul_dtypes) for (MatmulShape s : matmul_shapes) {
    matmul_check_backward(ops, matmul_case(s, t));
    op_free_all();
  }
}

// ---- equal bits ----------------------------------------------------------------------------------------------------
TEST(matmul_threads, "matmul gives the same bits on 1, 2 and 3 threads") {
  const MatmulShape shapes[] = {{37, 131, 53}, {401, 1601, 97}, {1601, 97, 130}};
  for (int i = 0; const Ops *ops = op_table(i); i++) for (Dtype t : matmul_dtypes) for (MatmulShape s : shapes) {
    MatmulCase x = matmul_case(s, t);
    MatmulResults one = matmul_all(ops, 1, x);
    matmul_expect_same(matmul_label(ops, t, s, "on 1 and 2 threads"), one, matmul_all(ops, 2, x));
    matmul_expect_same(matmul_label(ops, t, s, "on 1 and 3 threads"), one, matmul_all(ops, 3, x));
    op_free_all();
  }
}
// The smallest workspace takes the second operand in passes: some columns, or some blocks of k while the sums wait,
// which also cuts the rows. The largest holds it whole.
static Ctx matmul_ctx_sized(const Ops *ops, int threads, bool large) {
  const int64_t width = large ? 2048 : 1;
  return op_ctx(ops, threads, WorkspaceQuery{F32, F32, 1, 1, width, 1, width, 1});
}
TEST(matmul_passes, "matmul gives the same bits whether its workspace holds a whole operand or forces it into passes") {
  const MatmulShape shapes[] = {{530, 900, 300}, {1100, 40, 1700}};
  for (int i = 0; const Ops *ops = op_table(i); i++) for (Dtype t : {F32, BF16}) for (MatmulShape s : shapes) {
    MatmulCase x = matmul_case(s, t);
    MatmulResults whole = matmul_all(matmul_ctx_sized(ops, 2, true), x);
    for (int threads = 1; threads <= 3; threads += 2)
      matmul_expect_same(matmul_label(ops, t, s, "in passes"), whole,
                         matmul_all(matmul_ctx_sized(ops, threads, false), x));
    op_free_all();
  }
}
// bf16 has its own arithmetic on some instruction sets, so it is compared only where it is converted.
TEST(matmul_instruction_sets, "fp32 arithmetic of matmul gives the same bits on every instruction set") {
  const Ops *first = op_table(0);
  if (!first || !op_table(1)) SKIP("this machine runs only one of the tables");
  for (int i = 1; const Ops *ops = op_table(i); i++) for (Dtype t : matmul_dtypes) for (MatmulShape s : matmul_shapes) {
    if (t == BF16 && ops != &ops_avx512) continue;
    MatmulCase x = matmul_case(s, t);
    matmul_expect_same(matmul_label(ops, t, s, "beside avx2"), matmul_all(first, 1, x), matmul_all(ops, 1, x));
    op_free_all();
  }
}
TEST(matmul_rows, "a row of a matmul's result does not depend on the other rows or on their number") {
  // The second has an even K, so that pairs of bf16 in few rows are whole, and several blocks of it.
  const MatmulShape shapes[] = {{561, 801, 67}, {561, 1806, 70}};
  for (const MatmulShape &s : shapes) for (int i = 0; const Ops *ops = op_table(i); i++) for (Dtype t : matmul_dtypes) {
    MatmulCase x = matmul_case(s, t);
    MatmulResults all = matmul_all(ops, 2, x);
    Ctx c = matmul_ctx(ops, 1);
    // 1 .. 33 rows: every part of a panel, alone and after a whole one
    for (int64_t n = 0; n < 35; n++) {
      const int64_t first = n == 33 ? 13 : n == 34 ? 560 : 500, rows = n < 33 ? n + 1 : 1;
      Tensor out = op_tensor(t, rows, s.N), din = op_tensor(t, rows, s.K);
      matmul_forward(&c, out, rows_of(x.in, first, rows), x.weight, MatmulEpilogue{x.bias, {}});
      matmul_backward_input(&c, din, rows_of(x.dout, first, rows), x.weight, Tensor{});
      op_expect_same_bits(matmul_label(ops, t, s, "out of some rows"), out, rows_of(all.t[0], first, rows));
      op_expect_same_bits(matmul_label(ops, t, s, "din of some rows"), din, rows_of(all.t[3], first, rows));
    }
    op_free_all();
  }
}
TEST(matmul_add, "dweight and dbias with ADD are the old values plus what OVERWRITE stores, to the bit") {
  const MatmulShape s = {901, 450, 70};        // two blocks of columns: only one may add to dbias
  for (int i = 0; const Ops *ops = op_table(i); i++) for (Dtype t : matmul_dtypes) {
    MatmulCase x = matmul_case(s, t);
    Ctx c = matmul_ctx(ops, 2);
    Tensor dw = op_tensor(F32, s.N, s.K), db = op_tensor(F32, s.N);
    Tensor dw_add = op_random_tensor(21, 3.0, F32, s.N, s.K), db_add = op_random_tensor(22, 3.0, F32, s.N);
    Tensor dw_old = op_copy(dw_add), db_old = op_copy(db_add), dw_alone = op_tensor(F32, s.N, s.K);
    matmul_backward_weight(&c, dw, db, x.dout, x.in, OVERWRITE);
    matmul_backward_weight(&c, dw_alone, Tensor{}, x.dout, x.in, OVERWRITE);
    matmul_backward_weight(&c, dw_add, db_add, x.dout, x.in, ADD);
    op_expect_same_bits(matmul_label(ops, t, s, "dweight added"), dw_add, op_added(dw_old, dw));
    op_expect_same_bits(matmul_label(ops, t, s, "dbias added"), db_add, op_added(db_old, db));
    op_expect_same_bits(matmul_label(ops, t, s, "dweight without dbias"), dw_alone, dw);
    op_free_all();
  }
}
TEST(matmul_dbias_alone, "dbias has the same bits where dweight is absent, overwritten or added to") {
  for (int i = 0; const Ops *ops = op_table(i); i++) for (Dtype t : matmul_dtypes) for (MatmulShape s : matmul_shapes) {
    MatmulCase x = matmul_case(s, t);
    Tensor old = op_random_tensor(22, 3.0, F32, s.N), none = {}, shape_of_in = tensor_of(NULL, t, s.M, s.K);
    for (Dtype g : matmul_dtypes) {
      Ctx c = matmul_ctx(ops, 2);
      Tensor dw = op_tensor(g, s.N, s.K), db = op_tensor(g, s.N);
      matmul_backward_weight(&c, dw, db, x.dout, x.in, OVERWRITE);
      for (int threads = 1; threads <= (g == F32 ? 3 : 1); threads += 2) {
        Ctx alone = matmul_ctx(ops, threads);
        Tensor set = op_tensor(g, s.N), add = op_copy(old);
        matmul_backward_weight(&alone, none, set, x.dout, shape_of_in, OVERWRITE);
        op_expect_same_bits(matmul_label(ops, t, s, "dbias alone"), set, db);
        if (g != F32) continue;
        matmul_backward_weight(&alone, none, add, x.dout, shape_of_in, ADD);
        op_expect_same_bits(matmul_label(ops, t, s, "dbias alone, added"), add, op_added(old, db));
      }
    }
    op_free_all();
  }
}
TEST(matmul_not_a_number, "a NaN in one row of the input reaches all of that row's results and no other row's") {
  const MatmulShape s = {31, 37, 41};
  for (int i = 0; const Ops *ops = op_table(i); i++) for (Dtype t : matmul_dtypes) for (int64_t row : {0, 15, 30}) {
    MatmulCase x = matmul_case(s, t);
    op_put(x.in, row * s.K + 36, NAN);
    Tensor out = matmul_all(ops, 1, x).t[0];
    int64_t wrong = 0;
    for (int64_t k = 0; k < s.M * s.N; k++) wrong += (op_get(out, k) != op_get(out, k)) != (k / s.N == row);
    EXPECT(wrong == 0, "%s: %lld elements", matmul_label(ops, t, s, "NaN"), (long long)wrong);
    op_free_all();
  }
}

TEST(matmul_denormals, "fp32 keeps denormals, in one row as in many, on every instruction set") {
  enum { ROWS = 6 };
  const struct { double a, b, want; } cases[] = {{0x1p100, 0x1p-130, 0x1p-30}, {0x1p-70, 0x1p-70, 0x1p-140}};
  for (int i = 0; const Ops *ops = op_table(i); i++) for (const auto &k : cases) for (int64_t rows : {1, (int)ROWS}) {
    Ctx c = matmul_ctx(ops, 1);
    Tensor a = op_tensor(F32, rows, 1), b = op_tensor(F32, 1, 1), out = op_tensor(F32, rows, 1);
    for (int64_t r = 0; r < rows; r++) op_put(a, r, k.a);
    op_put(b, 0, k.b);
    matmul_forward(&c, out, a, b, MatmulEpilogue{});
    for (int64_t r = 0; r < rows; r++)
      EXPECT(op_get(out, r) == k.want, "%s: %g times %g is %g in row %lld of %lld, must be %g", ops->name, k.a, k.b,
             op_get(out, r), (long long)r, (long long)rows, k.want);
    op_free_all();
  }
}

// ---- recomputation --------------------------------------------------------------------------------------------------
// A backward pass that kept only a block's input runs its ops again, into memory that by then holds other data.
TEST(matmul_again,
     "matmul_forward gives the same bits again, and gelu_forward of the stored out gives those of its gelu") {
  for (int i = 0; const Ops *ops = op_table(i); i++) for (Dtype t : matmul_dtypes) for (MatmulShape s : matmul_shapes) {
    const MatmulCase x = matmul_case(s, t);
    Ctx c = matmul_ctx(ops, 2), other = matmul_ctx(op_table(0), 1);
    Tensor out = op_tensor(t, s.M, s.N), gelu = op_tensor(t, s.M, s.N), again = op_tensor(t, s.M, s.N);
    matmul_forward(&c, out, x.in, x.weight, MatmulEpilogue{x.bias, gelu});
    gelu_forward(&c, again, out);
    op_expect_same_bits(matmul_label(ops, t, s, "gelu of the stored out"), again, gelu);
    gelu_forward(&other, again, out);
    op_expect_same_bits(matmul_label(ops, t, s, "avx2's gelu of the stored out"), again, gelu);
    memset(c.workspace, 0x7f, c.workspace_bytes);
    matmul_forward(&c, again, x.in, x.weight, MatmulEpilogue{x.bias, {}});
    op_expect_same_bits(matmul_label(ops, t, s, "out without gelu"), again, out);
    Tensor second = op_copy(out);
    matmul_forward(&c, again, x.in, x.weight, MatmulEpilogue{x.bias, second});
    op_expect_same_bits(matmul_label(ops, t, s, "out again"), again, out);
    op_expect_same_bits(matmul_label(ops, t, s, "gelu again"), second, gelu);
    gelu_forward(&c, second, out);
    gelu_forward(&c, out, out);
    op_expect_same_bits(matmul_label(ops, t, s, "gelu in place"), out, gelu);
    op_free_all();
  }
}
// Every 16-bit pattern; fp32 of every exponent, and the interval where GELU is neither 0 nor x.
static Tensor matmul_gelu_values(Dtype t, int64_t n) {
  Tensor x = op_tensor(t, n, 1);
  uint64_t seed = 3;
  for (int64_t i = 0; i < n; i++) {
    if (t != F32) ((uint16_t *)x.data)[i] = (uint16_t)i;
    else if (i & 1) op_put(x, i, 12.0 * (2.0 * (double)i / (double)n - 1.0));
    else ((uint32_t *)x.data)[i] = (uint32_t)op_random(&seed);
  }
  return x;
}
// Roundings of 2u become |2u| as many in e^-2u, but where |2u| is large GELU is small: |2u| e^-|2u| < 1/e.
TEST(gelu_every_value, "gelu_forward is fp64's GELU of every 16-bit pattern, with the same bits everywhere") {
  const int64_t n = 65536 + 13;
  for (Dtype t : matmul_dtypes) {
    Tensor x = matmul_gelu_values(t, n), first = {};
    for (OpRun r = op_run_first(); r.ops; r = op_run_next(r)) {
      Ctx c = op_ctx(r.ops, r.threads, {t, F32, 1, 1, 1, 1, 1, 1});
      Tensor out = op_tensor(t, n, 1);
      gelu_forward(&c, out, x);
      if (op_run_is_first(r)) first = out;
      op_expect_same_bits(op_where("gelu_forward", r, t), out, first);
      for (int64_t at : {0, 1, 5}) for (int64_t len : {1, 15, 16, 17, 33}) {
        Tensor part = op_tensor(t, len);
        const size_t from = (size_t)(at + 20000) * dtype_bytes(t);
        gelu_forward(&c, part, tensor_of((char *)x.data + from, t, len));
        op_expect_same_bits(op_where("part", r, t), part, tensor_of((char *)first.data + from, t, len));
      }
    }
    for (int64_t i = 0; i < n; i++) {
      const double v = op_get(x, i), got = op_get(first, i), want = matmul_ref_gelu(v);
      if (v != v) { EXPECT(got != got, "GELU(NaN) is %.9g", got); continue; }
      if (fabs(v) > 1e30) continue;              // infinities, and x^3 beyond fp32
      const double bound = op_unit_roundoff(t) * fabs(want) * 1.01 + op_smallest(t) +
                           MATMUL_GELU_ROUNDINGS * 0x1p-24 * fabs(v);
      EXPECT(fabs(got - want) <= bound, "%s: GELU(%.9g) is %.9g, not %.9g", dtype_name(t), v, got, want);
    }
    op_free_all();
  }
}
// Products with 1.0 only, so that the stored out takes (almost) every value that exists.
TEST(gelu_of_every_product, "matmul_forward's gelu is gelu_forward of its out, for any value of out") {
  const int64_t n = 65536;
  for (int i = 0; const Ops *ops = op_table(i); i++) for (Dtype t : matmul_dtypes) {
    Tensor x = matmul_gelu_values(t, n), one = op_tensor(t, 1, 1), out = op_tensor(t, n, 1), gelu = op_tensor(t, n, 1),
           again = op_tensor(t, n, 1);
    op_put(one, 0, 1.0);
    Ctx c = matmul_ctx(ops, 2);
    matmul_forward(&c, out, x, one, MatmulEpilogue{{}, gelu});
    gelu_forward(&c, again, out);
    op_expect_same_bits(matmul_label(ops, t, {n, 1, 1}, "gelu of every value"), again, gelu);
    op_free_all();
  }
}
