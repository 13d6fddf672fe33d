// test_cuda_matmul.h: kernels/matmul_cuda.cuh on every device table: cuBLASLt's GEMMs and our own kernels against fp64
// and against the CPU, plans, tuning, the rules of the emulated cuBLASLt; and NCCL through COLLECTIVES, which training
// tests on real devices. Included after test_matmul.h (references, shapes) and cuda_helpers.h.
#include "dev/cuda_emu/emu.h"
#include <sys/wait.h>

static Ctx matmul_device_ctx(const Ops *ops) { return device_ctx(ops, {F32, F32, 4, 512, 64, 2, 512, 512}); }
// Dimensions that are not multiples of 8, some that are, tails of the 64 x 64 tile, more than one tile.
static const MatmulShape matmul_device_shapes[] = {{1, 1, 1},    {7, 13, 5},   {37, 131, 53}, {65, 33, 97},
                                                   {64, 96, 72}, {200, 40, 24}, {24, 136, 64}, {72, 64, 130}};
enum { MATMUL_DEVICE_SHAPES = sizeof matmul_device_shapes / sizeof *matmul_device_shapes };

// Features that the emulated cuBLASLt rejects, so that the fallbacks run too. On a real device only the first row
// applies.
struct MatmulWithout { unsigned what; const char *words; };
static const MatmulWithout matmul_without[] = {{0, "all of cuBLASLt"},
                                               {EMU_LT_WITHOUT_FUSED, "no fused GELU'"},
                                               {EMU_LT_WITHOUT_UNALIGNED, "aligned products only"},
                                               {EMU_LT_WITHOUT_ALL, "own kernels only"}};
static bool matmul_set_without(const Ops *ops, unsigned what) {
  if (ops == &ops_cuda_emulated) emu_lt_without(what);
  return ops == &ops_cuda_emulated || what == 0;
}

// ---- faults ---------------------------------------------------------------------------------------------------------
// Runs f in a separate process, which must die and print `words`.
static void matmul_expect_death(const char *words, void (*f)()) {
  char said[4096] = "";
  FILE *log = tmpfile();
  CHECK(log, "tmpfile: %s", strerror(errno));
  fflush(NULL);
  const pid_t child = fork();
  if (!child) {
    die_hook = NULL;                             // under --run this process is an MPI rank, which its child is not
    dup2(fileno(log), STDERR_FILENO);
    f();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  const ssize_t n = pread(fileno(log), said, sizeof said - 1, 0);
  said[n > 0 ? n : 0] = 0;
  fclose(log);
  EXPECT(status != 0 && strstr(said, words), "status %d, said \"%s\", not \"%s\"", status, said, words);
}

// ---- against the reference -----------------------------------------------------------------------------------------
struct MatmulDeviceCase { MatmulCase host; Tensor in, weight, bias, dout, pre; };
static MatmulDeviceCase matmul_device_case(Ctx *c, MatmulCase x) {
  return {x, device_upload(c, x.in), device_upload(c, x.weight), device_upload(c, x.bias), device_upload(c, x.dout),
          device_upload(c, x.pre)};
}
// The GEMM times GELU'(pre). A stored result is rounded before it is multiplied by the derivative, which is at most
// 1.13. A fused one may use tanh.approx, whose error is 2^-10.98 of tanh (PTX ISA); fp32 does not. With t = tanh(u)
// GELU' is (1 + t)/2 + x/2 (1 - t^2) u', so an error of t changes it by (1/2 + |x t u'|) of that error.
static void matmul_expect_gelu_grad(const char *what, Ctx *c, Tensor got, const double *product, const double *pre,
                                    const double *want, int64_t S, double scale) {
  const double u = op_unit_roundoff(got.dtype);
  double *bound = op_zeros(numel(got));
  for (int64_t i = 0; i < numel(got); i++) {
    const double x = fabs(pre[i]), slope = 0.7978845608028654 * (1.0 + 3.0 * 0.044715 * x * x);
    const double t = tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)), dt = 0x1p-11 * 1.02 * t;
    bound[i] = u * fabs(want[i]) * 1.01 + op_smallest(got.dtype) + matmul_gelu_roundings(S) * 0x1p-24 * scale;
    if (got.dtype != F32)
      bound[i] += (1.13 * u + dt * (0.5 + x * t * slope)) * fabs(product[i]) + op_smallest(got.dtype);
  }
  device_expect_within(what, c, got, want, bound);
}

// gelu has the CPU's bits of GELU of the stored `out`, and gelu_forward recomputes them.
static void matmul_device_expect_gelu(const char *what, Ctx *c, Tensor gelu, Tensor out) {
  Ctx cpu = matmul_ctx(op_table(0), 1);
  Tensor host = device_download(c, out), again = device_tensor(c, out.dtype, out.shape[0], out.shape[1]);
  gelu_forward(c, again, out);
  device_expect_same_bits(what, c, out, host);
  gelu_forward(&cpu, host, host);
  device_expect_same_bits(what, c, gelu, host);
  device_expect_same_bits(what, c, again, host);
}
static void matmul_device_forward(Ctx *c, const MatmulDeviceCase *x, const char *words) {
  const MatmulShape s = x->host.s;
  const Dtype t = x->in.dtype;
  double *in = op_fp64(x->host.in), *weight = op_fp64(x->host.weight), *bias = op_fp64(x->host.bias);
  double *want = op_zeros(s.M * s.N), scale = matmul_ref(want, s.M, s.N, s.K, in, s.K, 1, weight, s.K, 1);
  char what[150];
  snprintf(what, sizeof what, "%s, %s", matmul_label(c->ops, t, s, "forward"), words);
  Tensor logits = device_tensor(c, F32, s.M, s.N), out = device_tensor(c, t, s.M, s.N),
         act = device_tensor(c, t, s.M, s.N);
  matmul_forward(c, logits, x->in, x->weight, MatmulEpilogue{});
  device_expect_close(what, c, logits, want, matmul_roundings(s.K), scale);
  matmul_forward(c, out, x->in, x->weight, MatmulEpilogue{{}, act});
  device_expect_close(what, c, out, want, matmul_roundings(s.K), scale);
  matmul_device_expect_gelu(what, c, act, out);
  for (int64_t i = 0; i < s.M * s.N; i++) want[i] += bias[i % s.N];
  scale += 5.0;                                  // no bias is larger
  matmul_forward(c, out, x->in, x->weight, MatmulEpilogue{x->bias, {}});
  device_expect_close(what, c, out, want, matmul_roundings(s.K), scale);
  matmul_forward(c, out, x->in, x->weight, MatmulEpilogue{x->bias, act});
  device_expect_close(what, c, out, want, matmul_roundings(s.K), scale);
  matmul_device_expect_gelu(what, c, act, out);
}
static void matmul_device_backward_input(Ctx *c, const MatmulDeviceCase *x, const char *words) {
  const MatmulShape s = x->host.s;
  double *weight = op_fp64(x->host.weight), *dout = op_fp64(x->host.dout), *pre = op_fp64(x->host.pre);
  double *product = op_zeros(s.M * s.K), *want = op_zeros(s.M * s.K);
  const double scale = matmul_ref(product, s.M, s.K, s.N, dout, s.N, 1, weight, 1, s.K);
  char what[150];
  snprintf(what, sizeof what, "%s, %s", matmul_label(c->ops, x->in.dtype, s, "backward_input"), words);
  Tensor din = device_tensor(c, x->in.dtype, s.M, s.K);
  matmul_backward_input(c, din, x->dout, x->weight, Tensor{});
  device_expect_close(what, c, din, product, matmul_roundings(s.N), scale);
  for (int64_t i = 0; i < s.M * s.K; i++) want[i] = product[i] * matmul_ref_gelu_grad(pre[i]);
  matmul_backward_input(c, din, x->dout, x->weight, x->pre);
  matmul_expect_gelu_grad(what, c, din, product, pre, want, s.N, scale);
}
static void matmul_device_backward_weight(Ctx *c, const MatmulDeviceCase *x, const char *words) {
  const MatmulShape s = x->host.s;
  double *in = op_fp64(x->host.in), *dout = op_fp64(x->host.dout);
  double *dweight = op_zeros(s.N * s.K), *dbias = op_zeros(s.N);
  const double scale = matmul_ref(dweight, s.N, s.K, s.M, dout, 1, s.N, in, 1, s.K);
  for (int64_t i = 0; i < s.M * s.N; i++) dbias[i % s.N] += dout[i];
  char what[256];
  snprintf(what, sizeof what, "%s, %s", matmul_label(c->ops, x->in.dtype, s, "backward_weight"), words);
  Tensor dw_sum = {}, db_sum = {};
  for (Dtype g : matmul_dtypes) {                // gradients of any dtype with activations of any other
    Tensor dw = device_tensor(c, g, s.N, s.K), db = device_tensor(c, g, s.N);
    matmul_backward_weight(c, dw, db, x->dout, x->in, OVERWRITE);
    device_expect_close(what, c, dw, dweight, matmul_roundings(s.M), scale);
    device_expect_close(what, c, db, dbias, (double)s.M, 3.0 * (double)s.M);
    Tensor db_alone = device_tensor(c, g, s.N);  // only the shape of `in` is used
    matmul_backward_weight(c, Tensor{}, db_alone, x->dout, tensor_of(NULL, x->in.dtype, s.M, s.K), OVERWRITE);
    device_expect_same_bits("dbias alone", c, db_alone, device_download(c, db));
    if (g == F32) dw_sum = device_download(c, dw), db_sum = device_download(c, db);
  }
  Tensor dw0 = op_random_tensor(21, 3.0, F32, s.N, s.K), db0 = op_random_tensor(22, 3.0, F32, s.N);
  for (int64_t i = 0; i < s.N * s.K; i++) dweight[i] += op_get(dw0, i);
  for (int64_t i = 0; i < s.N; i++) dbias[i] += op_get(db0, i);
  Tensor dw = device_upload(c, dw0), db = device_upload(c, db0), db_alone = device_upload(c, db0);
  matmul_backward_weight(c, dw, db, x->dout, x->in, ADD);
  matmul_backward_weight(c, Tensor{}, db_alone, x->dout, x->in, ADD);
  device_expect_same_bits("dbias added", c, db, op_added(db0, db_sum));
  device_expect_same_bits("dbias alone, added", c, db_alone, op_added(db0, db_sum));
  if (c->ops == &ops_cuda_emulated)              // the real library may order the sum of ADD differently
    device_expect_same_bits("dweight added", c, dw, op_added(dw0, dw_sum));
  device_expect_close(what, c, dw, dweight, matmul_roundings(s.M) + 1.0, scale + 15.0);
  device_expect_close(what, c, db, dbias, (double)s.M + 1.0, 3.0 * (double)s.M + 15.0);
}

TEST(cuda_matmul_reference,
     "matmul on CUDA is the fp64 reference within rounding: dtypes, shapes, epilogues, fallbacks") {
  for (int i = 0; const Ops *ops = device_table(i); i++) for (const MatmulWithout &w : matmul_without) {
    if (!matmul_set_without(ops, w.what)) continue;
    for (Dtype t : matmul_dtypes) for (int k = 0; k < MATMUL_DEVICE_SHAPES; k++) {
      if (w.what && k % 3 != 1) continue;        // an odd shape, an even one, one of several tiles
      const MatmulShape s = matmul_device_shapes[k];
      Ctx c = matmul_device_ctx(ops);
      const MatmulDeviceCase x = matmul_device_case(&c, matmul_case(s, t));
      matmul_device_forward(&c, &x, w.words);
      matmul_device_backward_input(&c, &x, w.words);
      matmul_device_backward_weight(&c, &x, w.words);
      if (k % 3 == 1) {                          // the same plans with operands at other addresses
        const MatmulDeviceCase y = matmul_device_case(&c, x.host);
        device_write(&c, x.bias, op_tensor(t, s.N));
        device_write(&c, x.pre, op_tensor(t, s.M, s.K));
        matmul_device_forward(&c, &y, w.words);
        matmul_device_backward_input(&c, &y, w.words);
      }
      device_done(&c);
      op_free_all();
    }
  }
}

// Tensors that start one element into their memory: they are aligned to 2 or 4 bytes only.
static Tensor matmul_shifted(Ctx *c, Tensor host) {
  const int64_t n = numel(host);
  Tensor all = device_tensor(c, host.dtype, n + 1), t = host;
  t.data = (char *)all.data + dtype_bytes(host.dtype);
  if (host.data) device_write(c, t, host);
  return t;
}
TEST(cuda_matmul_unaligned, "operands of a matmul on CUDA may have any alignment") {
  const MatmulShape s = {24, 40, 72};
  for (int i = 0; const Ops *ops = device_table(i); i++) for (const MatmulWithout &w : matmul_without) {
    if (!matmul_set_without(ops, w.what)) continue;
    for (Dtype t : matmul_dtypes) {
      Ctx c = matmul_device_ctx(ops);
      MatmulCase h = matmul_case(s, t);
      MatmulDeviceCase x = {h, matmul_shifted(&c, h.in), matmul_shifted(&c, h.weight), matmul_shifted(&c, h.bias),
                            matmul_shifted(&c, h.dout), matmul_shifted(&c, h.pre)};
      matmul_device_forward(&c, &x, w.words);
      matmul_device_backward_input(&c, &x, w.words);
      matmul_device_backward_weight(&c, &x, w.words);
      double *want = op_zeros(s.M * s.N), *in = op_fp64(h.in), *weight = op_fp64(h.weight);
      const double scale = matmul_ref(want, s.M, s.N, s.K, in, s.K, 1, weight, s.K, 1);
      Tensor out = matmul_shifted(&c, tensor_of(NULL, t, s.M, s.N)),
             act = matmul_shifted(&c, tensor_of(NULL, t, s.M, s.N));
      matmul_forward(&c, out, x.in, x.weight, MatmulEpilogue{{}, act});
      device_expect_close(matmul_label(ops, t, s, "shifted out"), &c, out, want, matmul_roundings(s.K), scale);
      device_done(&c);
      op_free_all();
    }
  }
}

// ---- equal bits ----------------------------------------------------------------------------------------------------
// S stays below one block of gemm.h (384), so the CPU's order is one chain too. avx2 computes two-byte dtypes in fp32.
TEST(cuda_matmul_own_bits, "our matmul kernel gives the bits of the CPU's fp32 arithmetic, epilogues included") {
  if (!&ops_cuda_emulated) SKIP("the emulated kernels are not linked");
  const MatmulShape shapes[] = {{7, 13, 5}, {67, 130, 70}, {129, 33, 97}};
  emu_lt_without(EMU_LT_WITHOUT_ALL);
  for (Dtype t : matmul_dtypes) for (MatmulShape s : shapes) {
    const MatmulCase x = matmul_case(s, t);
    const MatmulResults want = matmul_all(cpu_tables[0].ops, 1, x);
    Ctx c = matmul_device_ctx(&ops_cuda_emulated);
    const MatmulDeviceCase d = matmul_device_case(&c, x);
    Tensor r[MATMUL_RESULTS];
    for (int i = 0; i < MATMUL_RESULTS; i++) r[i] = device_tensor(&c, want.t[i].dtype, numel(want.t[i]));
    for (int i = 0; i < MATMUL_RESULTS; i++)
      r[i].ndim = want.t[i].ndim, memcpy(r[i].shape, want.t[i].shape, sizeof r[i].shape);
    matmul_forward(&c, r[0], d.in, d.weight, MatmulEpilogue{d.bias, r[1]});
    matmul_forward(&c, r[2], d.in, d.weight, MatmulEpilogue{});
    matmul_backward_input(&c, r[3], d.dout, d.weight, Tensor{});
    matmul_backward_input(&c, r[4], d.dout, d.weight, d.pre);
    matmul_backward_weight(&c, r[5], r[6], d.dout, d.in, OVERWRITE);
    for (int i = 0; i < MATMUL_RESULTS - 1; i++)   // dbias has another order
      device_expect_same_bits(matmul_label(c.ops, t, s, matmul_result_names[i]), &c, r[i], want.t[i]);
    Tensor sum = device_upload(&c, op_random_tensor(21, 3.0, F32, s.N, s.K)), before = device_download(&c, sum);
    matmul_backward_weight(&c, sum, Tensor{}, d.dout, d.in, ADD);
    for (int64_t i = 0; i < s.N * s.K; i++) ((float *)before.data)[i] += ((float *)want.t[5].data)[i];
    device_expect_same_bits(matmul_label(c.ops, t, s, "added"), &c, sum, before);
    device_done(&c);
    op_free_all();
  }
}
// Products with 1.0 only, so that GELU gets every value unchanged.
TEST(cuda_matmul_gelu_bits, "GELU and its derivative on CUDA give the CPU's bits in fp32, over the whole range") {
  const int64_t n = 6000;
  for (int i = 0; const Ops *ops = device_table(i); i++) {
    Ctx c = matmul_device_ctx(ops), cpu = matmul_ctx(cpu_tables[0].ops, 1);
    matmul_set_without(ops, 0);
    Tensor x = op_tensor(F32, n, 1), ones = op_tensor(F32, n, 1), one = op_tensor(F32, 1, 1),
           out = op_tensor(F32, n, 1);
    Tensor gelu = op_tensor(F32, n, 1), grad = op_tensor(F32, n, 1);
    const float special[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1e-40f, -1e-40f, 3e38f, -3e38f, -5.5f, -60.0f};
    const int64_t specials = (int64_t)(sizeof special / sizeof *special);
    for (int64_t k = 0; k < n; k++) {
      op_put(x, k, k < specials ? special[k] : 12.0 * (2.0 * (double)k / (double)n - 1.0));
      op_put(ones, k, 1.0);
    }
    op_put(one, 0, 1.0);
    Tensor dx = device_upload(&c, x), dones = device_upload(&c, ones), done = device_upload(&c, one);
    Tensor dout = device_tensor(&c, F32, n, 1), dgelu = device_tensor(&c, F32, n, 1),
           dgrad = device_tensor(&c, F32, n, 1);
    matmul_forward(&cpu, out, x, one, MatmulEpilogue{{}, gelu});
    matmul_backward_input(&cpu, grad, ones, one, x);
    matmul_forward(&c, dout, dx, done, MatmulEpilogue{{}, dgelu});
    matmul_backward_input(&c, dgrad, dones, done, dx);
    device_download(&c, dout);
    Tensor got[] = {device_download(&c, dgelu), device_download(&c, dgrad)}, want[] = {gelu, grad};
    for (int g = 0; g < 2; g++) for (int64_t k = 0; k < n; k++) {                // the bits of a NaN do not matter
      const double a = op_get(got[g], k), b = op_get(want[g], k);
      EXPECT(a != a ? b != b : !memcmp((float *)got[g].data + k, (float *)want[g].data + k, 4),
             "%s: GELU%s(%.9g) is %.9g, on CPU %.9g", ops->name, g ? "'" : "", op_get(x, k), a, b);
    }
    device_done(&c);
    op_free_all();
  }
}
TEST(cuda_gelu, "gelu_forward on CUDA gives the CPU's bits for every value, aligned or not, in place or not") {
  const int64_t n = 65536 + 13;
  for (int i = 0; const Ops *ops = device_table(i); i++) for (Dtype t : matmul_dtypes) {
    Ctx c = matmul_device_ctx(ops), cpu = matmul_ctx(op_table(0), 1);
    Tensor x = matmul_gelu_values(t, n), want = op_tensor(t, n, 1);
    gelu_forward(&cpu, want, x);
    Tensor aligned = device_upload(&c, x), shifted = matmul_shifted(&c, x), out = device_tensor(&c, t, n, 1);
    gelu_forward(&c, out, shifted);
    Tensor first = device_download(&c, out);
    gelu_forward(&c, out, aligned);
    device_expect_same_bits("gelu of aligned memory", &c, out, first);
    gelu_forward(&c, aligned, aligned);
    gelu_forward(&c, shifted, shifted);
    device_expect_same_bits("gelu in place", &c, aligned, first);
    device_expect_same_bits("gelu in place, not aligned", &c, shifted, first);
    for (int64_t k = 0; k < n; k++) {            // the bits of a NaN do not matter
      const double a = op_get(first, k), b = op_get(want, k);
      if (a != a && b != b) continue;
      const size_t w = dtype_bytes(t), at = (size_t)k * w;
      EXPECT(!memcmp((char *)first.data + at, (char *)want.data + at, w), "%s %s: GELU(%.9g) is %.9g, on CPU %.9g",
             ops->name, dtype_name(t), op_get(x, k), a, b);
    }
    device_done(&c);
    op_free_all();
  }
}
TEST(cuda_matmul_not_a_number, "a NaN in one row of the input reaches that row's results on CUDA and no other row's") {
  const MatmulShape s = {70, 24, 40};
  for (int i = 0; const Ops *ops = device_table(i); i++) for (const MatmulWithout &w : matmul_without)
    for (Dtype t : matmul_dtypes) {
      if (!matmul_set_without(ops, w.what)) continue;
      Ctx c = matmul_device_ctx(ops);
      MatmulCase x = matmul_case(s, t);
      op_put(x.in, 65 * s.K + 23, NAN);
      const MatmulDeviceCase d = matmul_device_case(&c, x);
      Tensor out = device_tensor(&c, t, s.M, s.N), gelu = device_tensor(&c, t, s.M, s.N);
      matmul_forward(&c, out, d.in, d.weight, MatmulEpilogue{d.bias, gelu});
      for (Tensor got : {device_download(&c, out), device_download(&c, gelu)}) {
        int64_t wrong = 0;
        for (int64_t k = 0; k < s.M * s.N; k++) wrong += (op_get(got, k) != op_get(got, k)) != (k / s.N == 65);
        EXPECT(wrong == 0, "%s, %s: %lld elements", matmul_label(ops, t, s, "NaN"), w.words, (long long)wrong);
      }
      device_done(&c);
      op_free_all();
    }
}
// Integers whose sums are exact in fp32: a row that is left out or counted twice shows. ADD is the old value plus that
// sum.
TEST(cuda_matmul_dbias_exact,
     "the bias gradient on CUDA adds every row once, whatever the shape, and adds in mode ADD") {
  const int64_t shapes[][2] = {{1, 1},     {3, 7},     {63, 8},   {64, 40},  {65, 264},
                               {1000, 24}, {8500, 16}, {700, 33}, {129, 600}};
  for (int i = 0; const Ops *ops = device_table(i); i++) for (Dtype t : matmul_dtypes) {
    Ctx c = matmul_device_ctx(ops);
    matmul_set_without(ops, 0);
    for (auto shape : shapes) {
      const int64_t M = shape[0], N = shape[1];
      Tensor dout = op_tensor(t, M, N), in = op_tensor(t, M, 1), old = op_tensor(F32, N), want = op_tensor(F32, N);
      for (int64_t k = 0; k < M; k++) op_put(in, k, 0.0);
      for (int64_t n = 0; n < N; n++) { op_put(old, n, 0.25 * (double)n); op_put(want, n, 0.0); }
      for (int64_t k = 0; k < M * N; k++) {
        const int v = (int)((k * 7919 + 13) % 15) - 7;
        op_put(dout, k, v);
        ((float *)want.data)[k % N] += (float)v;
      }
      Tensor x = device_upload(&c, dout), none = device_upload(&c, in), dw = device_tensor(&c, F32, N, 1);
      Tensor set = device_tensor(&c, F32, N), add = device_upload(&c, old);
      matmul_backward_weight(&c, dw, set, x, none, OVERWRITE);
      device_expect_same_bits("dbias", &c, set, want);
      device_write(&c, dw, op_random_tensor(1, 0.0, F32, N, 1));
      matmul_backward_weight(&c, dw, add, x, none, ADD);
      for (int64_t n = 0; n < N; n++) ((float *)want.data)[n] += ((float *)old.data)[n];
      device_expect_same_bits("dbias added", &c, add, want);
    }
    device_done(&c);
    op_free_all();
  }
}
// TF32 rounds operands to 11 significant bits: the error of each product is at most 2 * 2^-11 (1 + 2^-12) of its size.
TEST(cuda_matmul_tf32, "fp32 matmuls use TF32 only on request, and then stay within its rounding") {
  const MatmulShape s = {48, 64, 40};
  for (int i = 0; const Ops *ops = device_table(i); i++) {
    Ctx c = matmul_device_ctx(ops);
    matmul_set_without(ops, 0);
    const MatmulCase x = matmul_case(s, F32);
    const MatmulDeviceCase d = matmul_device_case(&c, x);
    double *want = op_zeros(s.M * s.N), *bound = op_zeros(s.M * s.N), *in = op_fp64(x.in), *weight = op_fp64(x.weight);
    const double scale = matmul_ref(want, s.M, s.N, s.K, in, s.K, 1, weight, s.K, 1);
    for (int64_t k = 0; k < s.M * s.N; k++) bound[k] = scale * (0x1p-10 * 1.001 + matmul_roundings(s.K) * 0x1p-24);
    Tensor exact = device_tensor(&c, F32, s.M, s.N), fast = device_tensor(&c, F32, s.M, s.N);
    matmul_forward(&c, exact, d.in, d.weight, MatmulEpilogue{});
    c.fast_fp32 = true;
    matmul_forward(&c, fast, d.in, d.weight, MatmulEpilogue{});
    device_expect_close("without tf32", &c, exact, want, matmul_roundings(s.K), scale);
    device_expect_within("with tf32", &c, fast, want, bound);
    EXPECT(op_first_difference(device_download(&c, exact), device_download(&c, fast)) >= 0, "%s: tf32 changed nothing",
           ops->name);
    device_done(&c);
    op_free_all();
  }
}

// ---- plans ---------------------------------------------------------------------------------------------------------
static int matmul_lines(Ctx *c, char *text, size_t bytes) {
  int n = 0;
  c->ops->plans_text(c, text, bytes);
  for (const char *p = text; *p; p++) n += *p == '\n';
  return n;
}
static Tensor matmul_run_once(Ctx *c, const MatmulDeviceCase *d) {
  Tensor out = device_tensor(c, d->in.dtype, d->host.s.M, d->host.s.N);
  matmul_forward(c, out, d->in, d->weight, MatmulEpilogue{d->bias, {}});
  return device_download(c, out);
}
TEST(cuda_matmul_plans, "a shape is planned once") {
  static char text[4096];
  for (int i = 0; const Ops *ops = device_table(i); i++) {
    matmul_set_without(ops, 0);
    Ctx c = matmul_device_ctx(ops);
    const MatmulDeviceCase d = matmul_device_case(&c, matmul_case({64, 96, 72}, F32));
    Tensor first = matmul_run_once(&c, &d);
    op_expect_same_bits("the same product again", first, matmul_run_once(&c, &d));
    EXPECT(matmul_lines(&c, text, sizeof text) == 1, "plans of one shape:\n%s", text);
    EXPECT(strstr(text, "matmul_forward 64x72x96 fp32 to fp32, bias: algorithm "), "%s", text);
    device_done(&c);
    op_free_all();
  }
}
// The GEMMs of a layer, and what then is in their memory.
struct MatmulTuned { Tensor out, din, dweight, host[6]; };
static void matmul_tuned_run(Ctx *c, const MatmulDeviceCase *d, MatmulTuned *x) {
  const Tensor all[] = {x->out, x->din, x->dweight, d->in, d->weight, d->pre};
  device_write(c, x->dweight, op_random_tensor(77, 1.0, x->dweight.dtype, d->host.s.N, d->host.s.K));
  matmul_forward(c, x->out, d->in, d->weight, MatmulEpilogue{d->bias, {}});
  matmul_backward_input(c, x->din, d->dout, d->weight, d->pre);
  matmul_backward_weight(c, x->dweight, Tensor{}, d->dout, d->in, ADD);
  for (int k = 0; k < 6; k++) x->host[k] = device_download(c, all[k]);
}
// The emulated cuBLASLt offers the heuristic's first algorithm; faster ones of other bits; one with its bits that is
// faster; and the fastest, with its bits too, but of another split of S.
TEST(cuda_matmul_tuned_bits,
     "tuning takes a faster algorithm only of equal bits and of the same split, and leaves every operand as it was") {
  static char before[4096], text[4096];
  for (int i = 0; const Ops *ops = device_table(i); i++)
    for (MatmulShape s : {MatmulShape{64, 96, 80}, MatmulShape{64, 96, 72}}) for (Dtype t : {F32, BF16, F16}) {
      const bool emulated = ops == &ops_cuda_emulated, split = s.N == 72;       // of the heuristic's first, emulated
      matmul_set_without(ops, 0);
      Ctx c = matmul_device_ctx(ops);
      const MatmulDeviceCase d = matmul_device_case(&c, matmul_case(s, t));
      MatmulTuned x = {device_tensor(&c, t, s.M, s.N), device_tensor(&c, t, s.M, s.K), device_tensor(&c, F32, s.N, s.K),
                       {}}, y = x;
      matmul_tuned_run(&c, &d, &x);
      EXPECT(matmul_lines(&c, before, sizeof before) == 3, "plans:\n%s", before);
      ops->plans_tune(&c, false, NULL, 0);
      const Tensor kept[] = {x.out, x.din, x.dweight, d.in, d.weight, d.pre};
      for (int k = 0; k < 6; k++) device_expect_same_bits("operands after tuning", &c, kept[k], x.host[k]);
      device_expect_same_bits("a bias after tuning", &c, d.bias, d.host.bias);
      device_expect_same_bits("dout after tuning", &c, d.dout, d.host.dout);
      EXPECT(matmul_lines(&c, text, sizeof text) == 3, "plans after tuning:\n%s", text);
      matmul_tuned_run(&c, &d, &y);
      for (int k = 0; k < 6; k++) op_expect_same_bits("tuned", y.host[k], x.host[k]);
      if (emulated && !split)
        EXPECT(strstr(before, "bias: algorithm 6 tile 20 ") && strstr(text, "bias: algorithm 6 tile 24 ") &&
                   !strstr(text, "tile 20 ") && !strstr(text, "algorithm 33 "), "%s became\n%s", before, text);
      if (emulated && split)
        EXPECT(strstr(before, "bias: algorithm 31 ") && strstr(text, "bias: algorithm 31 "), "%s became\n%s", before,
               text);
      device_done(&c);
      op_free_all();
    }
}
TEST(cuda_matmul_tuned_to_any,
     "tuning to any bits takes the fastest of all; its list has every candidate, with equal hashes exactly where bits "
     "are equal; the algorithms as text, given to another device, give the tuned bits; those of another GPU, or that "
     "lack a multiply, are rejected") {
  static char list[1 << 15], text[4096], again[4096], algorithms[1 << 14], other[1 << 14];
  if (!&ops_cuda_emulated) SKIP("this test program was linked without dev/cuda_emu");
  const Ops *ops = &ops_cuda_emulated;
  matmul_set_without(ops, 0);
  for (Dtype t : {F32, BF16}) {
    MatmulTuned x[3];
    Error error = {};
    for (int run = 0; run < 3; run++) {          // tuned; given its algorithms before it multiplies, and afterwards
      Ctx c = matmul_device_ctx(ops);
      const MatmulDeviceCase d = matmul_device_case(&c, matmul_case(MatmulShape{64, 96, 80}, t));
      x[run] = {device_tensor(&c, t, 64, 80), device_tensor(&c, t, 64, 96), device_tensor(&c, F32, 80, 96), {}};
      if (run == 1) ops->plans_use(&c, algorithms, &error);
      if (run != 1) matmul_tuned_run(&c, &d, &x[run]);
      if (run == 2) ops->plans_use(&c, algorithms, &error);
      if (!run) ops->plans_tune(&c, true, list, sizeof list);
      matmul_tuned_run(&c, &d, &x[run]);
      ops->plans_algorithms(&c, run ? other : algorithms, sizeof algorithms);
      matmul_lines(&c, run ? again : text, sizeof text);
      EXPECT(!error.text[0] && (!run || (!strcmp(text, again) && !strcmp(algorithms, other))), "%s became\n%s: %s",
             text, again, error.text);
      if (run == 2) {
        snprintf(other, sizeof other, "%s", algorithms);
        memcpy(strstr(other, "emulated"), "imitated", 8);
        ops->plans_use(&c, other, &error);
        EXPECT(strstr(error.text, "they are of 'cuBLASLt ") &&
               strstr(error.text, ", imitated, 4 SMs, 0 of them"), "another GPU's: '%s'", error.text);
        error.text[0] = 0, *strstr(algorithms, "\n") = 0;
        strcat(algorithms, "\n");
        Ctx fresh = matmul_device_ctx(ops);
        const MatmulDeviceCase e = matmul_device_case(&fresh, matmul_case(MatmulShape{64, 96, 80}, t));
        matmul_run_once(&fresh, &e);
        ops->plans_use(&fresh, algorithms, &error);
        EXPECT(strstr(error.text, "they lack matmul_forward 64x80x96 "), "without lines: '%s'", error.text);
        device_done(&fresh);
      }
      device_done(&c);
    }
    for (int k = 0; k < 6; k++)
      for (int run = 1; run < 3; run++) op_expect_same_bits("given", x[run].host[k], x[0].host[k]);
    EXPECT(strstr(text, "bias: algorithm 2 tile 5 "), "not the fastest, of one step:\n%s", text);
    int lines = 0, equal = 0, others = 0;
    unsigned long long own = 0, bits;
    char word[16], *save = NULL;
    for (char *line = strtok_r(list, "\n", &save); line; line = strtok_r(NULL, "\n", &save), lines++) {
      float ms;
      REQUIRE(sscanf(line, "%f ms bits %llx %15s", &ms, &bits, word) == 3 && strstr(line, ": algorithm "), "'%s'",
              line);
      if (!strcmp(word, "heuristic")) own = bits;
      else if (!strcmp(word, "equal")) equal += bits == own ? 1 : 1000;
      else others += bits != own || strstr(line, "split-k 2");
    }
    const int all = 3 * EMU_LT_CANDIDATES - (t == BF16 ? 3 : 0);   // three of them have no GELU'
    EXPECT(lines == all && equal == 3 && others == lines - 6, "%d lines, not %d, %d equal, %d others", lines, all,
           equal, others);
    op_free_all();
  }
}
// GELU by cuBLASLt's epilogue: values of the pre-activation that is stored, but not gelu_forward's bits.
static char matmul_gelu_plans[1 << 14];
static Tensor matmul_gelu_once(Ctx *c, Tensor out, bool again, const MatmulDeviceCase *d) {
  Tensor gelu = device_tensor(c, d->in.dtype, d->host.s.M, d->host.s.N);
  matmul_forward(c, out, d->in, d->weight, MatmulEpilogue{d->bias, gelu, OVERWRITE, again});
  return gelu;
}
static void matmul_gelu_given_again() {
  Ctx c = matmul_device_ctx(&ops_cuda_emulated);
  Error error = {};
  const MatmulDeviceCase d = matmul_device_case(&c, matmul_case(MatmulShape{64, 96, 80}, BF16));
  c.ops->plans_use(&c, matmul_gelu_plans, &error);
  matmul_gelu_once(&c, device_tensor(&c, BF16, 64, 80), true, &d);
}
TEST(cuda_matmul_tuned_gelu,
     "tuning to any bits takes cuBLASLt's GELU where it has one and is faster, but not where a backward pass recomputes"
     " it; another device that is given the choice has its bits, and one that must recompute it ends by name") {
  static char text[4096];
  if (!&ops_cuda_emulated) SKIP("this test program was linked without dev/cuda_emu");
  const Ops *ops = &ops_cuda_emulated;
  enum { OFFERED, EQUAL_BITS, LACKING, AGAIN, KINDS };
  for (int kind = 0; kind < KINDS; kind++) for (Dtype t : {BF16, F32}) {
    const bool fused = kind == OFFERED && t == BF16;
    matmul_set_without(ops, kind == LACKING ? EMU_LT_WITHOUT_FUSED : 0);
    Ctx c = matmul_device_ctx(ops);
    const MatmulDeviceCase d = matmul_device_case(&c, matmul_case(MatmulShape{64, 96, 80}, t));
    Tensor out = device_tensor(&c, t, 64, 80), gelu = matmul_gelu_once(&c, out, kind == AGAIN, &d);
    matmul_device_expect_gelu("before tuning", &c, gelu, out);
    const Tensor kept = device_download(&c, gelu);
    ops->plans_tune(&c, kind != EQUAL_BITS, NULL, 0);
    device_expect_same_bits("GELU after tuning", &c, gelu, kept);
    gelu = matmul_gelu_once(&c, out, kind == AGAIN, &d);
    matmul_lines(&c, text, sizeof text);
    EXPECT((strstr(text, "bf16 to bf16, bias, gelu in the product: algorithm ") != NULL) == fused, "kind %d, %s:\n%s",
           kind, dtype_name(t), text);
    if (!fused) matmul_device_expect_gelu("without cuBLASLt's GELU", &c, gelu, out);
    else {
      const Tensor pre = device_download(&c, out), first = device_download(&c, gelu);
      const double u = op_unit_roundoff(t);
      double *want = op_zeros(64 * 80), *bound = op_zeros(64 * 80);
      int64_t others = 0;
      for (int64_t i = 0; i < 64 * 80; i++) {    // a slope is at most 1.13; fp32's tanh
        want[i] = matmul_ref_gelu(op_get(pre, i));
        bound[i] = 1.01 * u * (1.13 * fabs(op_get(pre, i)) + fabs(want[i])) + 0x1p-20 * fabs(op_get(pre, i));
      }
      device_expect_within("cuBLASLt's GELU", &c, gelu, want, bound);
      gelu_forward(&c, gelu, out);
      const Tensor ours = device_download(&c, gelu);
      for (int64_t i = 0; i < 64 * 80; i++) others += op_get(ours, i) != op_get(first, i);
      EXPECT(others > 0, "the emulated epilogue has gelu_forward's bits");
      ops->plans_algorithms(&c, matmul_gelu_plans, sizeof matmul_gelu_plans);
      Ctx other = matmul_device_ctx(ops);
      Error error = {};
      const MatmulDeviceCase e = matmul_device_case(&other, matmul_case(MatmulShape{64, 96, 80}, t));
      Tensor again = device_tensor(&other, t, 64, 80);
      ops->plans_use(&other, matmul_gelu_plans, &error);
      device_expect_same_bits("given", &other, matmul_gelu_once(&other, again, false, &e), first);
      device_expect_same_bits("given, before GELU", &other, again, pre);
      EXPECT(!error.text[0], "%s", error.text);
      device_done(&other);
      matmul_expect_death("--recompute gelu or norm would recompute it", matmul_gelu_given_again);
    }
    device_done(&c);
    op_free_all();
  }
  matmul_set_without(ops, 0);
}
// X X^T, whose operands are one; a GEMM that adds another matrix, which is an operand too.
TEST(cuda_matmul_tuned_bits_of_every_element,
     "tuning rejects an algorithm that differs in the last bit of one element, whichever it is: the first, one in the "
     "middle, the last") {
  static char before[4096], text[4096];
  if (!&ops_cuda_emulated) SKIP("this test program was linked without dev/cuda_emu");
  const MatmulShape s = {64, 96, 80};
  matmul_set_without(&ops_cuda_emulated, 0);
  for (Dtype t : {F32, BF16})
    for (int64_t differs : {(int64_t)0, (int64_t)1, s.M * s.N / 2 + 77, s.M * s.N - 1, (int64_t)-1}) {
      Ctx c = matmul_device_ctx(&ops_cuda_emulated);
      const MatmulDeviceCase d = matmul_device_case(&c, matmul_case(s, t));
      matmul_run_once(&c, &d);
      matmul_lines(&c, before, sizeof before);
      emu_lt_differ(differs);
      c.ops->plans_tune(&c, false, NULL, 0);
      emu_lt_differ(-1);
      matmul_lines(&c, text, sizeof text);
      EXPECT(!strcmp(text, before) == (differs >= 0), "%s, element %lld: %s became\n%s", dtype_name(t),
             (long long)differs, before, text);
      device_done(&c);
      op_free_all();
    }
}
TEST(cuda_matmul_tuned_bits_of_one_operand, "tuning changes no bit where operands share their memory") {
  static char text[4096];
  for (int i = 0; const Ops *ops = device_table(i); i++) for (Dtype t : {F32, BF16}) {
    matmul_set_without(ops, 0);
    Ctx c = matmul_device_ctx(ops);
    const Tensor x = op_random_tensor(5, 1.0, t, 64, 96), in = device_upload(&c, x);
    Tensor gram = device_tensor(&c, t, 64, 64), out = device_tensor(&c, t, 64, 96), host[2][2];
    Tensor scratch = device_tensor(&c, I32, (int64_t)newton_schulz_work_bytes(64, 96, t) / 4);
    for (int tuned = 0; tuned < 2; tuned++) {
      if (tuned) ops->plans_tune(&c, false, NULL, 0);
      matmul_forward(&c, gram, in, in, MatmulEpilogue{});
      newton_schulz(&c, out, in, scratch, 5);
      host[tuned][0] = device_download(&c, gram), host[tuned][1] = device_download(&c, out);
    }
    for (int k = 0; k < 2; k++) op_expect_same_bits("tuned", host[1][k], host[0][k]);
    device_expect_same_bits("the operand", &c, in, x);
    matmul_lines(&c, text, sizeof text);
    if (ops == &ops_cuda_emulated)
      EXPECT(strstr(text, "tile 24 ") && !strstr(text, "tile 20 ") && !strstr(text, "algorithm 2 "),
             "not all were tuned, or not to the same bits:\n%s", text);
    device_done(&c);
    op_free_all();
  }
}
TEST(cuda_matmul_plan_text,
     "the list of plans names what is fused, what runs after the GEMM and what our own kernel computes") {
  if (!&ops_cuda_emulated) SKIP("the emulated kernels are not linked");
  static char text[4096];
  Ctx c = matmul_device_ctx(&ops_cuda_emulated);
  emu_lt_without(0);
  for (Dtype t : {BF16, F32}) {
    const MatmulDeviceCase d = matmul_device_case(&c, matmul_case({16, 24, 40}, t));
    Tensor out = device_tensor(&c, t, 16, 40), gelu = device_tensor(&c, t, 16, 40), din = device_tensor(&c, t, 16, 24);
    matmul_forward(&c, out, d.in, d.weight, MatmulEpilogue{d.bias, {}});
    matmul_forward(&c, out, d.in, d.weight, MatmulEpilogue{d.bias, gelu});    // the same plan
    matmul_backward_input(&c, din, d.dout, d.weight, d.pre);
  }
  const MatmulDeviceCase d = matmul_device_case(&c, matmul_case({16, 24, 40}, F32));
  Tensor dw = device_tensor(&c, BF16, 40, 24);
  matmul_backward_weight(&c, dw, Tensor{}, d.dout, d.in, OVERWRITE);
  EXPECT(matmul_lines(&c, text, sizeof text) == 5, "%s", text);
  EXPECT(strstr(text, "bf16 to bf16, bias: algorithm"), "%s", text);
  EXPECT(strstr(text, "bf16 to bf16, gelu' in the product: algorithm"), "%s", text);
  EXPECT(strstr(text, "fp32 to fp32, gelu' after the product: algorithm"), "%s", text);
  EXPECT(strstr(text, "matmul_backward_weight 40x24x16 fp32 to bf16, own kernel\n"), "%s", text);
  device_done(&c);
  op_free_all();
}
TEST(cuda_matmul_graph, "a matmul captured in a graph computes from the operands' current contents at each launch") {
  const MatmulShape s = {24, 40, 16};
  for (int i = 0; const Ops *ops = device_table(i); i++) {
    matmul_set_without(ops, 0);
    Ctx c = matmul_device_ctx(ops);
    MatmulCase x = matmul_case(s, BF16);
    MatmulDeviceCase d = matmul_device_case(&c, x);
    Tensor out = device_tensor(&c, BF16, s.M, s.N), gelu = device_tensor(&c, BF16, s.M, s.N),
           db = device_tensor(&c, F32, s.N);
    Tensor dw = device_tensor(&c, F32, s.N, s.K), want[4], *all[] = {&out, &gelu, &dw, &db};
    void *graph;
    for (int launch = -1; launch < 2; launch++) {
      if (launch == 0) ops->graph_begin(&c);
      if (launch < 1) {
        matmul_forward(&c, out, d.in, d.weight, MatmulEpilogue{d.bias, gelu});
        matmul_backward_weight(&c, dw, db, d.dout, d.in, OVERWRITE);
      }
      if (launch == 0) ops->graph_end(&c, &graph);
      if (launch == -1) for (int k = 0; k < 4; k++) want[k] = device_download(&c, *all[k]);
      if (launch >= 0) {                         // first with other operands, then with those of the direct call
        device_write(&c, d.in, launch ? x.in : op_random_tensor(31, 1.0, BF16, s.M, s.K));
        ops->graph_launch(&c, graph);
        for (int k = 0; k < 3; k++)
          EXPECT((op_first_difference(device_download(&c, *all[k]), want[k]) < 0) == (launch == 1),
                 "%s: result %d of launch %d", ops->name, k, launch);
      }
    }
    ops->graph_close(&c, graph);
    device_done(&c);
    op_free_all();
  }
}

// ---- fp8 -----------------------------------------------------------------------------------------------------------
struct MatmulFp8 { Tensor in, weight, bias, in_scale, weight_scale; };
static MatmulFp8 matmul_fp8_upload(Ctx *c, const Fp8Case *x) {
  return {device_upload(c, x->in), device_upload(c, x->weight), device_upload(c, x->bias),
          device_upload(c, x->in_scale), device_upload(c, x->weight_scale)};
}
static Tensor matmul_fp8_run(Ctx *c, const MatmulFp8 *d, bool bias = true) {
  Tensor out = device_tensor(c, BF16, d->in.shape[0], d->weight.shape[0]), none = {};
  matmul_forward_fp8(c, out, d->in, d->in_scale, d->weight, d->weight_scale, bias ? d->bias : none);
  return out;
}
// The emulated cuBLASLt adds in fp32. Tensor cores of real devices align 32 products and their sum to the largest of
// them and keep 13 bits after its leading bit (measured on Hopper: DeepSeek-V3, arXiv 2412.19437, 3.3.2), which loses
// up to 33 2^-13 of the terms' sum per step; at most four steps pass before such a sum is added in fp32.
static double matmul_fp8_roundings(const Ops *ops, int64_t S) {
  return matmul_roundings(S) + (ops == &ops_cuda_emulated ? 0.0 : 4 * 33 * 0x1p-13 * 0x1p24);
}
TEST(cuda_matmul_fp8, "matmul_forward_fp8 on CUDA equals the fp64 result within rounding, with and without a bias") {
  for (int i = 0; const Ops *ops = device_table(i); i++) for (const MatmulWithout &w : matmul_without) {
    if (!matmul_set_without(ops, w.what) || w.what == EMU_LT_WITHOUT_ALL) continue;
    for (MatmulShape s : fp8_shapes) for (bool bias : {false, true}) {
      Ctx c = matmul_device_ctx(ops);
      const Fp8Case x = fp8_case(s);
      const MatmulFp8 d = matmul_fp8_upload(&c, &x), elsewhere = matmul_fp8_upload(&c, &x);
      double *want, scale = fp8_reference(&x, bias, &want);
      for (const MatmulFp8 *at : {&d, &elsewhere})
        device_expect_close(matmul_label(ops, F8, s, "forward"), &c, matmul_fp8_run(&c, at, bias), want,
                            matmul_fp8_roundings(ops, s.K), scale);
      device_done(&c);
      op_free_all();
    }
  }
}
// Small integers, whose sums are exact in any order and in 13 bits: only the rounding of `out` remains.
TEST(cuda_matmul_fp8_exact, "where no sum rounds, matmul_forward_fp8 on CUDA has the CPU's bits, scales and bias too") {
  for (int i = 0; const Ops *ops = device_table(i); i++) for (MatmulShape s : fp8_shapes) {
    Ctx c = matmul_device_ctx(ops), cpu = matmul_ctx(cpu_tables[0].ops, 1);
    matmul_set_without(ops, 0);
    Fp8Case x = fp8_case(s);
    for (Tensor t : {x.in, x.weight})
      for (int64_t k = 0; k < numel(t); k++) op_put(t, k, (double)((k * 7919 + 13) % 7) - 3.0);
    const MatmulFp8 d = matmul_fp8_upload(&c, &x);
    Tensor want = op_tensor(BF16, s.M, s.N);
    matmul_forward_fp8(&cpu, want, x.in, x.in_scale, x.weight, x.weight_scale, x.bias);
    device_expect_same_bits("matmul_forward_fp8", &c, matmul_fp8_run(&c, &d), want);
    device_done(&c);
    op_free_all();
  }
}
TEST(cuda_matmul_fp8_plans,
     "fp8 GEMMs are planned once a shape, beside bf16's; tuning finds a faster algorithm of the same bits") {
  static char text[4096], again[4096];
  for (int i = 0; const Ops *ops = device_table(i); i++) {
    matmul_set_without(ops, 0);
    Ctx c = matmul_device_ctx(ops);
    const MatmulShape s = {64, 96, 80};
    const Fp8Case x = fp8_case(s);
    const MatmulFp8 d = matmul_fp8_upload(&c, &x);
    const MatmulDeviceCase half = matmul_device_case(&c, matmul_case(s, BF16));
    matmul_run_once(&c, &half);
    Tensor first = device_download(&c, matmul_fp8_run(&c, &d));
    device_expect_same_bits("the same product again", &c, matmul_fp8_run(&c, &d), first);
    EXPECT(matmul_lines(&c, text, sizeof text) == 2, "plans of one shape and two dtypes:\n%s", text);
    EXPECT(strstr(text, "matmul_forward 64x80x96 fp8 to bf16, bias: algorithm "), "%s", text);
    ops->plans_tune(&c, false, NULL, 0);
    matmul_lines(&c, again, sizeof again);
    if (ops == &ops_cuda_emulated) EXPECT(strcmp(strstr(text, " fp8 "), strstr(again, " fp8 ")), "not tuned: %s", text);
    device_expect_same_bits("tuned", &c, matmul_fp8_run(&c, &d), first);
    device_done(&c);
    op_free_all();
  }
}
TEST(cuda_matmul_fp8_scales, "an fp8 GEMM reads its scales when it runs, in a captured graph too") {
  for (int i = 0; const Ops *ops = device_table(i); i++) {
    matmul_set_without(ops, 0);
    Ctx c = matmul_device_ctx(ops);
    const Fp8Case x = fp8_case({32, 48, 64});
    const MatmulFp8 d = matmul_fp8_upload(&c, &x);
    Tensor out = matmul_fp8_run(&c, &d, false), none = {}, host = device_download(&c, out);
    void *graph;
    ops->graph_begin(&c);
    matmul_forward_fp8(&c, out, d.in, d.in_scale, d.weight, d.weight_scale, none);
    ops->graph_end(&c, &graph);
    for (int turn = 0; turn < 3; turn++) {       // different scales, then each doubled
      device_write(&c, turn == 2 ? d.weight_scale : d.in_scale,
                   fp8_scale_tensor((turn ? 2.0 : 1.0) * op_get(turn == 2 ? x.weight_scale : x.in_scale, 0)));
      ops->graph_launch(&c, graph);
      Tensor got = device_download(&c, out), want = op_copy(host);
      for (int64_t k = 0; k < numel(want); k++) op_put(want, k, (double)(1 << turn) * op_get(host, k));
      op_expect_same_bits("scaled", got, want);
    }
    ops->graph_close(&c, graph);
    device_done(&c);
    op_free_all();
  }
}

// A shape whose first algorithm splits the sum, so that it uses the workspace.
static void matmul_bad(int fault) {
  Ctx c = matmul_device_ctx(&ops_cuda_emulated);
  const MatmulDeviceCase d = matmul_device_case(&c, matmul_case({64, 96, 72}, BF16));
  Tensor out = device_tensor(&c, BF16, 64, 72), in = d.in;
  if (fault == 0) c.workspace = (char *)c.workspace + 16;
  if (fault == 1) in = d.host.in;
  if (fault == 2) out.data = d.in.data;
  if (fault == 3) c.workspace_bytes = 64;
  matmul_forward(&c, out, in, d.weight, MatmulEpilogue{d.bias, {}});
  c.ops->sync(&c);
}
TEST(cuda_cublaslt_rules,
     "the emulated cuBLASLt ends a program that breaks one of the rules it checks, and says which") {
  if (!&ops_cuda_emulated) SKIP("the emulated kernels are not linked");
  emu_lt_without(0);
  matmul_expect_death("the workspace is not 256-byte aligned", [] { matmul_bad(0); });
  matmul_expect_death("host pointer", [] { matmul_bad(1); });
  matmul_expect_death("overlaps", [] { matmul_bad(2); });
  matmul_expect_death("bytes of workspace", [] { matmul_bad(3); });
  for (int i = 0; const char *name = emu_lt_rule_name(i); i++) EXPECT(emu_lt_rule_holds(i), "not rejected: %s", name);
}

// fault 0: M is 24; 1: `in` starts at its second byte; 2: cuBLASLt has nothing; 3: a scale in host memory.
static void matmul_bad_fp8(int fault) {
  Ctx c = matmul_device_ctx(&ops_cuda_emulated);
  emu_lt_without(fault == 2 ? EMU_LT_WITHOUT_ALL : 0);
  const Fp8Case x = fp8_case({fault == 0 ? 24 : 16, 32, 48});
  MatmulFp8 d = matmul_fp8_upload(&c, &x);
  if (fault == 1) d.in = device_tensor(&c, F8, 16 * 32 + 1), d.in = reshaped(op_shifted(d.in, 1), 16, 32);
  if (fault == 3) d.in_scale = x.in_scale;
  matmul_fp8_run(&c, &d);
  c.ops->sync(&c);
}
TEST(cuda_matmul_fp8_rejects, "an fp8 GEMM that tensor cores cannot do ends the program with the requirement") {
  if (!&ops_cuda_emulated) SKIP("the emulated kernels are not linked");
  matmul_expect_death("24x48x32, needs multiples of 16", [] { matmul_bad_fp8(0); });
  matmul_expect_death("must be aligned to 16 bytes", [] { matmul_bad_fp8(1); });
  matmul_expect_death("8.9 or later is needed", [] { matmul_bad_fp8(2); });
  matmul_expect_death("host pointer", [] { matmul_bad_fp8(3); });
  matmul_expect_death("convert: from fp8 to fp32", [] {
    Ctx c = matmul_ctx(cpu_tables[0].ops, 1);
    convert(&c, op_tensor(F32, 4), op_tensor(F8, 4));
  });
}

extern "C" __attribute__((weak)) int cuda_libraries_bind(Error *error);
TEST(cuda_libraries, "every call of the installed libcublasLt and libnccl that the program makes can be bound") {
  if (!&cuda_libraries_bind) SKIP("built without nvcc's object");
  Error why = {};
  const int missing = cuda_libraries_bind(&why);
  if (missing && !strstr(why.text, " has no ")) SKIP("%s", why.text);
  EXPECT(missing == 0, "%s", why.text);
}

// ---- NCCL ----------------------------------------------------------------------------------------------------------
// A communicator of `world` MPI ranks: those of this rank's color, in order of rank.
struct MatmulComm { Ctx c; MPI_Comm mpi; void *comm; int rank, world; char id[NCCL_ID_BYTES]; };
static void matmul_comm_name(MatmulComm *m, int color) {         // all but the communicator, which waits for the others
  MPI_Comm_split(MPI_COMM_WORLD, color, 0, &m->mpi);
  MPI_Comm_rank(m->mpi, &m->rank);
  MPI_Comm_size(m->mpi, &m->world);
  if (!m->rank) m->c.ops->nccl->id_make(&m->c, m->id);
  MPI_Bcast(m->id, NCCL_ID_BYTES, MPI_BYTE, 0, m->mpi);
}
static MatmulComm matmul_comm(int color) {
  MatmulComm m = {};
  m.c = matmul_device_ctx(&ops_cuda_emulated);
  matmul_comm_name(&m, color);
  m.c.ops->nccl->comm_open(&m.c, &m.comm, m.id, m.rank, m.world);
  return m;
}
static void matmul_comm_done(MatmulComm *m) {
  m->c.ops->nccl->comm_close(&m->c, m->comm);
  MPI_Comm_free(&m->mpi);
  device_done(&m->c);
  op_free_all();
}
// The value of rank r at i: small integers, whose sums are exact in every dtype.
static double matmul_term(int rank, int64_t i) { return (double)((rank * 5 + i * 3) % 7 - 3); }
static Tensor matmul_terms(Dtype t, int rank, int64_t n) {
  Tensor x = op_tensor(t, n);
  for (int64_t i = 0; i < n; i++) op_put(x, i, matmul_term(rank, i));
  return x;
}

static void matmul_check_collectives(MatmulComm *m, Dtype t) {
  const Collectives *nccl = m->c.ops->nccl;
  const int64_t n = 37;
  const size_t bytes = (size_t)n * dtype_bytes(t);
  Ctx *c = &m->c;
  Tensor mine = device_upload(c, matmul_terms(t, m->rank, n)), all = device_tensor(c, t, n * m->world);
  Tensor in_place = device_tensor(c, t, n * m->world), sum = device_tensor(c, t, n);
  Tensor wide = device_upload(c, matmul_terms(t, m->rank, n * m->world)), swapped = device_tensor(c, t, n * m->world);
  c->ops->copy(c, (char *)in_place.data + (size_t)m->rank * bytes, mine.data, bytes);
  nccl->all_gather(c, m->comm, all.data, mine.data, bytes);
  nccl->all_gather(c, m->comm, in_place.data, (char *)in_place.data + (size_t)m->rank * bytes, bytes);
  nccl->reduce_scatter(c, m->comm, sum, wide.data);
  nccl->group_begin(c);                          // all to all, to oneself included
  for (int r = 0; r < m->world; r++) {
    nccl->send(c, m->comm, (char *)wide.data + (size_t)r * bytes, bytes, r);
    nccl->receive(c, m->comm, (char *)swapped.data + (size_t)r * bytes, bytes, r);
  }
  nccl->group_end(c);
  Tensor gathered = device_download(c, all), again = device_download(c, in_place), summed = device_download(c, sum);
  Tensor got = device_download(c, swapped);
  for (int64_t i = 0; i < n * m->world; i++) {
    const int r = (int)(i / n);
    EXPECT(op_get(gathered, i) == matmul_term(r, i % n) && op_get(again, i) == op_get(gathered, i), "gathered %s %lld",
           dtype_name(t), (long long)i);
    EXPECT(op_get(got, i) == matmul_term(r, m->rank * n + i % n), "swapped %s %lld", dtype_name(t), (long long)i);
  }
  for (int64_t i = 0; i < n; i++) {
    double want = 0.0;
    for (int r = 0; r < m->world; r++) want += matmul_term(r, m->rank * n + i);
    EXPECT(op_get(summed, i) == want, "summed %s %lld: %g, not %g", dtype_name(t), (long long)i, op_get(summed, i),
           want);
  }
}
// The calls that exist only in place: every rank's sum, and every rank as root. Lengths need not be divisible by ranks.
static void matmul_check_in_place(MatmulComm *m, Dtype t) {
  Ctx *c = &m->c;
  for (int64_t n : {1, 2, 37}) {
    Tensor sum = device_upload(c, matmul_terms(t, m->rank, n));
    c->ops->nccl->all_reduce(c, m->comm, sum);
    Tensor summed = device_download(c, sum);
    for (int64_t i = 0; i < n; i++) {
      double want = 0.0;
      for (int r = 0; r < m->world; r++) want += matmul_term(r, i);
      EXPECT(op_get(summed, i) == want, "all_reduce %s %lld of %lld: %g, not %g", dtype_name(t), (long long)i,
             (long long)n, op_get(summed, i), want);
    }
    for (int root = 0; root < m->world; root++) {
      Tensor data = device_upload(c, matmul_terms(t, m->rank, n));
      c->ops->nccl->broadcast(c, m->comm, data.data, (size_t)n * dtype_bytes(t), root);
      Tensor got = device_download(c, data);
      for (int64_t i = 0; i < n; i++)
        EXPECT(op_get(got, i) == matmul_term(root, i), "broadcast by %d, %s %lld of %lld: %g", root, dtype_name(t),
               (long long)i, (long long)n, op_get(got, i));
    }
  }
}
TEST_MPI(cuda_collectives, 3, "NCCL's calls move and add what they should: every dtype, in place, in groups") {
  if (!&ops_cuda_emulated) return;
  MatmulComm m = matmul_comm(0);
  for (Dtype t : matmul_dtypes) {
    matmul_check_collectives(&m, t);
    matmul_check_in_place(&m, t);
  }
  matmul_comm_done(&m);
}
TEST_MPI(cuda_collectives_split, 5,
         "communicators of some of MPI's ranks find their members, several at a time, of one rank too") {
  if (!&ops_cuda_emulated) return;
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MatmulComm m = matmul_comm(rank == 4 ? 2 : rank % 2);
  for (Dtype t : matmul_dtypes) {
    matmul_check_collectives(&m, t);
    matmul_check_in_place(&m, t);
  }
  matmul_comm_done(&m);
}
TEST_MPI(cuda_all_reduce_order, 3,
         "all_reduce gives all ranks the same bits, of a sum in an unspecified order") {
  if (!&ops_cuda_emulated) return;
  MatmulComm m = matmul_comm(0);
  Ctx *c = &m.c;
  const int64_t n = 1000;
  for (Dtype t : matmul_dtypes) {
    Tensor term[3];
    for (int r = 0; r < 3; r++) term[r] = op_random_tensor(40 + (uint32_t)r, 1.0, t, n);
    Tensor sum = device_upload(c, term[m.rank]), folded = op_tensor(t, n);
    c->ops->nccl->all_reduce(c, m.comm, sum);
    Tensor got = device_download(c, sum), first = op_tensor(t, n);
    memcpy(first.data, got.data, (size_t)n * dtype_bytes(t));
    MPI_Bcast(first.data, (int)(n * (int64_t)dtype_bytes(t)), MPI_BYTE, 0, m.mpi);
    op_expect_same_bits("all_reduce here and on rank 0", got, first);
    int64_t others = 0;
    // Two additions, each rounded to fp32 and then to t: an error of at most ((1 + u)^2 (1 + 2^-24)^2 - 1) sum |term|.
    const double error = 2.02 * (op_unit_roundoff(t) + 0x1p-24);
    for (int64_t i = 0; i < n; i++) {
      const double a = op_get(term[0], i), b = op_get(term[1], i), d = op_get(term[2], i);
      const double bound = error * (fabs(a) + fabs(b) + fabs(d));
      EXPECT(fabs(op_get(got, i) - (a + b + d)) <= bound, "%s %lld: %.9g, not %.9g", dtype_name(t), (long long)i,
             op_get(got, i), a + b + d);
      op_put(folded, i, a + b);
      op_put(folded, i, op_get(folded, i) + d);
      others += op_get(folded, i) != op_get(got, i);
    }
    EXPECT(others > n / 20, "%s: %lld of %lld sums differ from those in order of ranks", dtype_name(t),
           (long long)others, (long long)n);
  }
  matmul_comm_done(&m);
}

// A 2 x 2 mesh as in sharding with replicas: rows {0,1} and {2,3} hold a copy each, columns {0,2} and {1,3} the same
// shard. Each communicator has a stream; all three are in flight together.
struct MatmulMesh { MatmulComm row, column, all; Ctx gather, reduce; Tensor whole, sum, told; };
static MatmulMesh matmul_mesh() {
  MatmulMesh g = {};
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  g.row.c = g.column.c = g.all.c = matmul_device_ctx(&ops_cuda_emulated);
  Ctx *c = &g.all.c;
  MatmulComm *const comms[] = {&g.row, &g.column, &g.all};
  const int color[] = {rank / 2, rank % 2, 0};
  for (int k = 0; k < 3; k++) matmul_comm_name(comms[k], color[k]);
  if (rank == 1) usleep(100000);                 // rank 2 is done with its row and comes to rank 0 for the column
  for (MatmulComm *m : comms) c->ops->nccl->comm_open(c, &m->comm, m->id, m->rank, m->world);
  c->ops->side_open(c, &g.gather, "gather");
  c->ops->side_open(c, &g.reduce, "reduce");
  g.whole = device_tensor(c, F32, 2 * 19);
  g.sum = device_tensor(c, BF16, 23);
  g.told = device_tensor(c, F32, 5);
  return g;
}
static void matmul_mesh_done(MatmulMesh *g) {
  Ctx *c = &g->all.c;
  for (MatmulComm *m : {&g->row, &g->column}) {
    c->ops->nccl->comm_close(c, m->comm);
    MPI_Comm_free(&m->mpi);
  }
  c->ops->side_close(&g->gather);
  c->ops->side_close(&g->reduce);
  matmul_comm_done(&g->all);
}
// A gather in place along the row, a sum down the column, a broadcast from the last rank. `one` stream: all on it.
static void matmul_mesh_calls(MatmulMesh *g, bool one) {
  const Collectives *nccl = g->all.c.ops->nccl;
  Ctx *c = &g->all.c;
  nccl->all_gather(one ? c : &g->gather, g->row.comm, g->whole.data, (float *)g->whole.data + g->row.rank * 19, 76);
  nccl->all_reduce(one ? c : &g->reduce, g->column.comm, g->sum);
  nccl->broadcast(c, g->all.comm, g->told.data, 20, 3);
}
static void matmul_mesh_write(MatmulMesh *g, int round) {
  Ctx *c = &g->all.c;
  const int rank = g->all.rank + 4 * round;
  Tensor whole = op_tensor(F32, 2 * 19), mine = matmul_terms(F32, rank, 19);
  memcpy((float *)whole.data + g->row.rank * 19, mine.data, 76);
  device_write(c, g->whole, whole);
  device_write(c, g->sum, matmul_terms(BF16, rank, 23));
  device_write(c, g->told, matmul_terms(F32, rank, 5));
}
static void matmul_mesh_expect(MatmulMesh *g, int round, const char *how) {
  Ctx *c = &g->all.c;
  const int rank0 = 4 * round, row0 = rank0 + g->all.rank / 2 * 2, column0 = rank0 + g->all.rank % 2;
  c->ops->sync(&g->gather);
  c->ops->sync(&g->reduce);
  Tensor whole = device_download(c, g->whole), sum = device_download(c, g->sum), told = device_download(c, g->told);
  for (int64_t i = 0; i < 2 * 19; i++)
    EXPECT(op_get(whole, i) == matmul_term(row0 + (int)(i / 19), i % 19), "%s, round %d: gathered %lld: %g", how, round,
           (long long)i, op_get(whole, i));
  for (int64_t i = 0; i < 23; i++)
    EXPECT(op_get(sum, i) == matmul_term(column0, i) + matmul_term(column0 + 2, i), "%s, round %d: summed %lld: %g",
           how, round, (long long)i, op_get(sum, i));
  for (int64_t i = 0; i < 5; i++)
    EXPECT(op_get(told, i) == matmul_term(rank0 + 3, i), "%s, round %d: told %lld: %g", how, round, (long long)i,
           op_get(told, i));
}
TEST_MPI(cuda_collectives_mesh, 4,
         "communicators of rows, columns and all ranks of a mesh are in flight together, alone or in a group") {
  if (!&ops_cuda_emulated) return;
  MatmulMesh g = matmul_mesh();
  const Collectives *nccl = g.all.c.ops->nccl;
  for (int round = 0; round < 4; round++) {
    emu_set_seed((uint64_t)(round + g.all.rank));                  // streams run in another order on every rank
    matmul_mesh_write(&g, round);
    matmul_mesh_calls(&g, false);
    matmul_mesh_expect(&g, round, "by themselves");
    for (bool one : {false, true}) {
      matmul_mesh_write(&g, round);
      nccl->group_begin(&g.all.c);
      matmul_mesh_calls(&g, one);
      nccl->group_end(&g.all.c);
      matmul_mesh_expect(&g, round, one ? "in a group on one stream" : "in a group");
    }
  }
  matmul_mesh_done(&g);
}
TEST_MPI(cuda_collectives_graph, 2, "collectives captured in a graph read current memory at each launch") {
  if (!&ops_cuda_emulated) return;
  MatmulComm m = matmul_comm(0);
  Ctx *c = &m.c;
  void *graph;
  Tensor mine = device_tensor(c, F32, 8), all = device_tensor(c, F32, 16), next = device_tensor(c, F32, 16);
  Tensor sum = device_tensor(c, F32, 8), told = device_tensor(c, F32, 8);
  c->ops->graph_begin(c);
  c->ops->copy(c, sum.data, mine.data, 32);
  c->ops->nccl->all_reduce(c, m.comm, sum);
  c->ops->copy(c, told.data, mine.data, 32);
  c->ops->nccl->broadcast(c, m.comm, told.data, 32, 1);
  c->ops->nccl->all_gather(c, m.comm, all.data, mine.data, 32);
  c->ops->nccl->reduce_scatter(c, m.comm, mine, all.data);         // mine = 2 * this rank's own part of the gather
  c->ops->copy(c, next.data, all.data, 64);
  c->ops->graph_end(c, &graph);
  Tensor host = matmul_terms(F32, m.rank, 8);
  device_write(c, mine, host);
  for (double factor = 1.0; factor < 9.0; factor *= 2.0) {
    c->ops->graph_launch(c, graph);
    Tensor got = device_download(c, next);
    for (int64_t i = 0; i < 16; i++)
      EXPECT(op_get(got, i) == factor * matmul_term((int)(i / 8), i % 8), "factor %g, element %lld: %g", factor,
             (long long)i, op_get(got, i));
    Tensor summed = device_download(c, sum), heard = device_download(c, told);
    for (int64_t i = 0; i < 8; i++)
      EXPECT(op_get(summed, i) == factor * (matmul_term(0, i) + matmul_term(1, i)) &&
             op_get(heard, i) == factor * matmul_term(1, i), "factor %g, element %lld: sum %g, told %g", factor,
             (long long)i, op_get(summed, i), op_get(heard, i));
  }
  c->ops->graph_close(c, graph);
  matmul_comm_done(&m);
}

// Run again under mpirun with MATMUL_FAULT, each must end with the line that names it.
static bool matmul_fault(const char *name) {
  const char *fault = getenv("MATMUL_FAULT");
  return fault && !strcmp(fault, name);
}
// Zeroes x, unordered with the call just queued, before rank 1 has reached that call.
static void matmul_write_during(MatmulComm *m, Tensor x) {
  Ctx *c = &m->c, side = *c;
  c->ops->side_open(c, &side, "side");
  c->ops->zero(&side, x.data, 256);
  if (m->rank) MPI_Barrier(m->mpi);
  c->ops->sync(&side);
  if (!m->rank) MPI_Barrier(m->mpi);
}
TEST_MPI(cuda_collectives_faulty, 2,
         "calls that match on all ranks pass; cuda_collectives_rules breaks them on purpose") {
  if (!&ops_cuda_emulated) return;
  MatmulComm m = matmul_comm(0);
  Ctx *c = &m.c;
  const Collectives *nccl = c->ops->nccl;
  const int other = m.rank;                      // rank 1 makes a different call
  Tensor x = device_upload(c, matmul_terms(F32, m.rank, 64)), y = device_tensor(c, F32, 64),
         z = device_tensor(c, F32, 64);
  for (int k = 0; k < 2; k++) {
    if (k == (matmul_fault("order") && other))
      nccl->all_gather(c, m.comm, y.data, x.data, matmul_fault("count") && other ? 64 : 128);
    else nccl->reduce_scatter(c, m.comm, tensor_of(z.data, F32, 32), x.data);
  }
  if (matmul_fault("dtype") && other) nccl->all_reduce(c, m.comm, tensor_of(z.data, BF16, 64));
  else nccl->all_reduce(c, m.comm, tensor_of(z.data, F32, matmul_fault("numel") && other ? 16 : 32));
  nccl->broadcast(c, m.comm, y.data, matmul_fault("bytes") && other ? 64 : 128, matmul_fault("root") && other);
  c->ops->sync(c);
  if (matmul_fault("sent")) {
    nccl->all_gather(c, m.comm, y.data, x.data, 128);
    matmul_write_during(&m, x);
  }
  if (matmul_fault("summed")) {
    nccl->all_reduce(c, m.comm, z);
    matmul_write_during(&m, z);
  }
  c->ops->sync(c);
  matmul_comm_done(&m);
}
TEST(cuda_collectives_rules,
     "ranks whose NCCL calls differ, or that write a buffer in use, end with a line that says so") {
  if (!&ops_cuda_emulated) SKIP("the emulated kernels are not linked");
  enum { FAULTS = 8 };
  const struct { const char *fault, *words; } faults[FAULTS] = {
      {"count", "do different things"}, {"order", "do different things"}, {"numel", "do different things"},
      {"dtype", "do different things"}, {"bytes", "do different things"}, {"root", "do different things"},
      {"sent", "being sent was changed before the call was done"},
      {"summed", "being received was changed before the call was done"}};
  char self[512];
  const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
  REQUIRE(n > 0, "readlink: %s", strerror(errno));
  self[n] = 0;
  FILE *p[FAULTS];                               // all at once: mpirun takes a second to end the remaining ranks
  for (int i = 0; i < FAULTS; i++) {
    char command[1024];
    snprintf(command, sizeof command,
             "EMU_SEED=0 MATMUL_FAULT=%s mpirun --oversubscribe --bind-to none -np 2 '%s' --run "
             "cuda_collectives_faulty 2>&1",
             faults[i].fault, self);
    p[i] = popen(command, "r");
    REQUIRE(p[i], "popen: %s", strerror(errno));
  }
  for (int i = 0; i < FAULTS; i++) {
    char said[8192] = "", rest[4096];
    const size_t used = fread(said, 1, sizeof said - 1, p[i]);
    said[used] = 0;
    while (fread(rest, 1, sizeof rest, p[i])) {}
    const int status = pclose(p[i]);
    EXPECT(status != 0 && strstr(said, faults[i].words), "%s: status %d, said:\n%s", faults[i].fault, status, said);
  }
}

// Every GEMM of a layer, tuned too.
TEST(sm_margin_reaches_cublaslt, "cuBLASLt plans for the SMs that --sm_margin leaves, when tuning too") {
  if (!&ops_cuda_emulated) SKIP("the emulated kernels are not linked");
  static char text[4096];
  for (int margin : {0, 2}) for (int tuned = 0; tuned < 2; tuned++) {
    Ctx c = matmul_device_ctx(&ops_cuda_emulated);
    emu_lt_without(0);
    c.sm_margin = margin;
    const MatmulDeviceCase d = matmul_device_case(&c, matmul_case({16, 24, 40}, BF16));
    Tensor out = device_tensor(&c, BF16, 16, 40), din = device_tensor(&c, BF16, 16, 24);
    Tensor dweight = device_tensor(&c, F32, 40, 24);
    const int want = margin ? 4 - margin : 0;    // the emulated GPU has 4
    matmul_forward(&c, out, d.in, d.weight, MatmulEpilogue{d.bias, {}});
    EXPECT(emu_lt_sms() == want, "margin %d: forward for %d", margin, emu_lt_sms());
    matmul_backward_input(&c, din, d.dout, d.weight, d.pre);
    EXPECT(emu_lt_sms() == want, "margin %d: backward_input for %d", margin, emu_lt_sms());
    matmul_backward_weight(&c, dweight, Tensor{}, d.dout, d.in, OVERWRITE);
    EXPECT(emu_lt_sms() == want, "margin %d: backward_weight for %d", margin, emu_lt_sms());
    if (tuned) c.ops->plans_tune(&c, false, NULL, 0);
    EXPECT(emu_lt_sms() == want, "margin %d: tuning for %d", margin, emu_lt_sms());
    EXPECT(matmul_lines(&c, text, sizeof text) == 3, "%s", text);
    device_done(&c);
    op_free_all();
  }
}
