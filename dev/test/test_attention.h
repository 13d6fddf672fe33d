// test_attention.h: attention_forward and attention_backward (kernels/attention.cuh) against the plain formula in fp64,
// whose gradients are themselves checked by finite differences. Bits do not depend on threads, instruction set (in
// fp32) or batch, and bf16 arithmetic has the bits of plain loops.

struct AttentionCase { int64_t B, T, H, hs; float p; int64_t window = 0; };     // window 0: all keys are seen
static const AttentionCase attention_cases[] = {
  {2, 1, 2, 3, 0.0f},   {3, 2, 1, 1, 0.5f},  {1, 16, 2, 16, 0.0f}, {1, 17, 3, 5, 0.2f},  {2, 33, 2, 8, 0.1f},
  {1, 48, 2, 40, 0.0f}, {2, 64, 2, 32, 0.0f}, {1, 65, 2, 80, 0.1f}, {1, 100, 1, 20, 0.0f}, {1, 131, 1, 64, 0.1f},
  {1, 97, 1, 128, 0.0f}, {1, 200, 2, 7, 0.3f}, {1, 290, 1, 33, 0.1f}, {1, 530, 1, 12, 0.0f}};
static const int attention_case_count = (int)(sizeof attention_cases / sizeof attention_cases[0]);

static Dropout attention_test_drop(const AttentionCase *k) { return Dropout{k->p, 77, 5, 3, 11}; }

// ---- reference -----------------------------------------------------------------------------------------------------
// Everything in fp64, one score after the other. bound_* are sums of absolute terms for the tolerances: bound_score the
// largest sum |q k| / sqrt(hs), bound_out the largest sum w p |v|, bound_lse the largest |lse|, bound_dv and bound_dqk
// those of the sums of dv and of dq, dk.
struct AttentionReference {
  AttentionCase k;
  double *qkv, *out, *lse, *dout, *dqkv;
  double bound_score, bound_out, bound_lse, bound_dv, bound_dqk;
};
static AttentionReference attention_reference(AttentionCase k) {
  const int64_t rows = k.B * k.T, C = k.H * k.hs;
  return AttentionReference{k, op_zeros(rows * 3 * C), op_zeros(rows * C), op_zeros(k.B * k.H * k.T),
                            op_zeros(rows * C), op_zeros(rows * 3 * C), 0, 0, 0, 0, 0};
}
TEST_HOT static const double *attention_row(const AttentionReference *r, int64_t b, int64_t t, int64_t h, int third) {
  return r->qkv + (b * r->k.T + t) * 3 * r->k.H * r->k.hs + third * r->k.H * r->k.hs + h * r->k.hs;
}
TEST_HOT static double attention_weight(const AttentionReference *r, int64_t b, int64_t h, int64_t q, int64_t key) {
  if (r->k.p == 0.0f) return 1.0;
  const Dropout drop = attention_test_drop(&r->k);
  return (double)dropout_scale(&drop, drop.sample0 + b, (h * r->k.T + q) * r->k.T + key);
}
TEST_HOT static double attention_dot(const double *a, const double *b, int64_t n, double *absolute) {
  double sum = 0.0, sum_abs = 0.0;
  for (int64_t i = 0; i < n; i++) { sum += a[i] * b[i]; sum_abs += fabs(a[i] * b[i]); }
  if (absolute) *absolute = sum_abs;
  return sum;
}
static int64_t attention_reference_first(AttentionCase k, int64_t q) {
  return k.window ? max64(0, q - k.window + 1) : 0;
}
TEST_HOT static void attention_reference_forward(AttentionReference *r) {
  const AttentionCase k = r->k;
  const double scale = 1.0 / sqrt((double)k.hs);
  double *s = (double *)malloc((size_t)k.T * sizeof(double));
  for (int64_t b = 0; b < k.B; b++) for (int64_t h = 0; h < k.H; h++) for (int64_t q = 0; q < k.T; q++) {
    double most = -1e300, total = 0.0, absolute;
    for (int64_t j = attention_reference_first(k, q); j <= q; j++) {
      s[j] = scale * attention_dot(attention_row(r, b, q, h, 0), attention_row(r, b, j, h, 1), k.hs, &absolute);
      r->bound_score = fmax(r->bound_score, scale * absolute);
      most = fmax(most, s[j]);
    }
    for (int64_t j = attention_reference_first(k, q); j <= q; j++) total += exp(s[j] - most);
    const double lse = most + log(total);
    r->lse[(b * k.H + h) * k.T + q] = lse;
    r->bound_lse = fmax(r->bound_lse, fabs(lse));
    for (int64_t d = 0; d < k.hs; d++) {
      double sum = 0.0, sum_abs = 0.0;
      for (int64_t j = attention_reference_first(k, q); j <= q; j++) {
        const double term = exp(s[j] - lse) * attention_weight(r, b, h, q, j) * attention_row(r, b, j, h, 2)[d];
        sum += term;
        sum_abs += fabs(term);
      }
      r->out[((b * k.T + q) * k.H + h) * k.hs + d] = sum;
      r->bound_out = fmax(r->bound_out, sum_abs);
    }
  }
  free(s);
}
// From qkv, dout, out and lse. absolute has the layout of dqkv and gathers the absolute terms of each element.
TEST_HOT static void attention_reference_backward(AttentionReference *r) {
  const AttentionCase k = r->k;
  const int64_t C = k.H * k.hs, n = k.B * k.T * 3 * C;
  const double scale = 1.0 / sqrt((double)k.hs);
  double *absolute = op_zeros(n);
  memset(r->dqkv, 0, (size_t)n * sizeof(double));
  for (int64_t b = 0; b < k.B; b++) for (int64_t h = 0; h < k.H; h++) for (int64_t q = 0; q < k.T; q++) {
    const double *dout = r->dout + (b * k.T + q) * C + h * k.hs, *query = attention_row(r, b, q, h, 0);
    double D_abs, dp_abs;
    const double D = attention_dot(dout, r->out + (b * k.T + q) * C + h * k.hs, k.hs, &D_abs);
    const int64_t at_q = query - r->qkv;
    for (int64_t j = attention_reference_first(k, q); j <= q; j++) {
      const double *key = attention_row(r, b, j, h, 1), *value = attention_row(r, b, j, h, 2);
      const double p = exp(scale * attention_dot(query, key, k.hs, NULL) - r->lse[(b * k.H + h) * k.T + q]);
      const double w = attention_weight(r, b, h, q, j), dp = attention_dot(dout, value, k.hs, &dp_abs);
      const double ds = p * (w * dp - D) * scale, ds_abs = p * (w * dp_abs + D_abs) * scale;
      const int64_t at_k = key - r->qkv, at_v = value - r->qkv;
      for (int64_t d = 0; d < k.hs; d++) {
        r->dqkv[at_q + d] += ds * key[d];
        r->dqkv[at_k + d] += ds * query[d];
        r->dqkv[at_v + d] += w * p * dout[d];
        absolute[at_q + d] += ds_abs * fabs(key[d]);
        absolute[at_k + d] += ds_abs * fabs(query[d]);
        absolute[at_v + d] += w * p * fabs(dout[d]);
      }
    }
  }
  for (int64_t i = 0; i < n; i++) {
    double *bound = i % (3 * C) >= 2 * C ? &r->bound_dv : &r->bound_dqk;
    *bound = fmax(*bound, absolute[i]);
  }
}

static double attention_reference_loss(void *env) {
  AttentionReference *r = (AttentionReference *)env;
  attention_reference_forward(r);
  return attention_dot(r->out, r->dout, r->k.B * r->k.T * r->k.H * r->k.hs, NULL);
}
TEST(attention_reference_gradient, "attention reference: gradients equal central differences of the forward") {
  const AttentionCase cases[] = {{2, 1, 1, 2, 0.0f}, {1, 6, 2, 3, 0.0f}, {2, 7, 1, 3, 0.4f}};
  for (AttentionCase k : cases) {
    AttentionReference r = attention_reference(k);
    uint64_t seed = 5;
    const int64_t n = k.B * k.T * k.H * k.hs;
    double size = 0.0;
    for (int64_t i = 0; i < 3 * n; i++) r.qkv[i] = op_uniform(&seed) - 0.5;
    for (int64_t i = 0; i < n; i++) size += fabs(r.dout[i] = op_normal(&seed));
    attention_reference_loss(&r);
    attention_reference_backward(&r);
    // |loss| <= size |v| w <= size, and a score moves by at most |k| / sqrt(hs) < 1/2 for a step of one: the third
    // derivative of an average under softmax is a third central moment, below size too.
    op_expect_gradient("dqkv", attention_reference_loss, &r, r.qkv, r.dqkv, 3 * n, 1000, size);
  }
  op_free_all();
}

// Row r of attention_backward's dqkv_sum is the sum over a run's rows of dqkv as stored.
static void attention_expect_sums(Tensor dqkv, Tensor sums) {
  const int64_t B = dqkv.shape[0], T = dqkv.shape[1], C = dqkv.shape[2], runs = sums.shape[0] / B;
  double *want = op_zeros(numel(sums)), *all = op_zeros(numel(sums)), scale = 0.0;
  for (int64_t i = 0; i < numel(dqkv); i++) {
    const int64_t to = (i / C / T * runs + i / C % T / ATTENTION_SUM_ROWS) * C + i % C;
    want[to] += op_get(dqkv, i);
    scale = fmax(scale, all[to] += fabs(op_get(dqkv, i)));
  }
  op_expect_close("sums of dqkv", sums, want, ATTENTION_SUM_ROWS, scale);
}

// ---- the ops against it --------------------------------------------------------------------------------------------
// Inputs and outputs of the ops for one case. qkv and dout are rounded to the dtype, and the reference sees them
// rounded.
struct AttentionTensors { Tensor qkv, out, lse, dout, dqkv; };
static AttentionTensors attention_tensors(const AttentionCase *k, Dtype dtype) {
  const int64_t C = k->H * k->hs;
  const uint64_t seed = (uint64_t)(k->T * 1000 + k->hs);
  return AttentionTensors{op_random_tensor(seed, 1.0, dtype, k->B, k->T, 3 * C), op_tensor(dtype, k->B, k->T, C),
                          op_tensor(F32, k->B, k->H, k->T), op_random_tensor(seed + 1, 1.0, dtype, k->B, k->T, C),
                          op_tensor(dtype, k->B, k->T, 3 * C)};
}
static Ctx attention_ctx(const Ops *ops, int threads, const AttentionCase *k, Dtype dtype) {
  Ctx c = op_ctx(ops, threads, WorkspaceQuery{dtype, dtype, k->B, k->T, k->H * k->hs, k->H, 64, 16});
  op_state.in.step = attention_test_drop(k).step;
  return c;
}

// Roundings (u = 2^-24 each). A score is a chain of hs multiply-adds on a q rounded twice (scaled), then loses a
// maximum or an lse of its own size: an exponent is off by at most ((hs + 4) bound_score + 3 bound_lse) u, and e^x by
// 4 u more.
static double attention_exponent_roundings(const AttentionReference *r) {
  return ((double)r->k.hs + 4.0) * r->bound_score + 3.0 * r->bound_lse + 4.0;
}
// kernels/attention_bf16.cuh: bf16 data on tables with bf16 arithmetic. Products of pairs have as many roundings as
// multiply-adds. e^x has an error of 2.9e-6 = 49 u. p and ds lose half a unit of bf16 (2^-9 = 2^15 u) before they are
// multiplied, and less than 2^-125 of it (negligible here) where a subnormal becomes zero.
static bool attention_in_bf16(const Ops *ops, Dtype dtype) {
  return dtype == BF16 && (ops == &ops_avx512_bf16 || ops == &ops_amx || ops == &ops_amx_emulated);
}
static double attention_e_roundings(const Ops *ops, Dtype t) { return attention_in_bf16(ops, t) ? 49.0 : 0.0; }
static double attention_p_roundings(const Ops *ops, Dtype t) { return attention_in_bf16(ops, t) ? 0x1p15 : 0.0; }
static void attention_expect_forward(const Ops *ops, const AttentionReference *r, AttentionTensors t) {
  char what[128];
  const AttentionCase k = r->k;
  const double e = attention_exponent_roundings(r) + attention_e_roundings(ops, t.out.dtype), T = (double)k.T;
  const double p = attention_p_roundings(ops, t.out.dtype);
  snprintf(what, sizeof what, "%s %s B %d T %d H %d hs %d: out", ops->name, dtype_name(t.out.dtype), (int)k.B, (int)k.T,
           (int)k.H, (int)k.hs);
  // Numerator and denominator each have the error of their exponentials and of T additions, rescaled (one rounding, and
  // one more exponential) once a tile; then the weight, the division, the product.
  op_expect_close(what, t.out, r->out, 2.0 * (e + T) + 6.0 * (T / 64.0 + 1.0) + 4.0 + p, r->bound_out);
  strcpy(strrchr(what, ':'), ": lse");
  op_expect_close(what, t.lse, r->lse, e + T + 6.0 * (T / 64.0 + 1.0) + 4.0, 1.0);
}
static void attention_expect_backward(const Ops *ops, const AttentionReference *r, AttentionTensors t) {
  const AttentionCase k = r->k;
  const int64_t C = k.H * k.hs, rows = k.B * k.T;
  const double e = attention_exponent_roundings(r) + attention_e_roundings(ops, t.dqkv.dtype);
  const double T = (double)k.T, hs = (double)k.hs;
  static const char *const names[] = {"dq", "dk", "dv"};
  for (int third = 0; third < 3; third++) {
    Tensor got = op_tensor(t.dqkv.dtype, rows, C);
    double *want = op_zeros(rows * C);
    for (int64_t i = 0; i < rows * C; i++) {
      op_put(got, i, op_get(t.dqkv, i / C * 3 * C + third * C + i % C));
      want[i] = r->dqkv[i / C * 3 * C + third * C + i % C];
    }
    char what[128];
    snprintf(what, sizeof what, "%s %s B %d T %d H %d hs %d: %s", ops->name, dtype_name(got.dtype), (int)k.B, (int)k.T,
             (int)k.H, (int)k.hs, names[third]);
    // p; hs multiply-adds of dout . v and of D, weight, difference, product with p; T additions; the scale
    const double roundings = e + T + (third == 2 ? 2.0 : hs + 6.0) + attention_p_roundings(ops, t.dqkv.dtype);
    op_expect_close(what, got, want, roundings, third == 2 ? r->bound_dv : r->bound_dqk);
  }
}
TEST(attention_matches_reference, "attention forward and backward equal the fp64 formula within rounding") {
  for (int i = 0; i < attention_case_count; i++)
    for (Dtype dtype : {F32, BF16, F16}) {
      const AttentionCase k = attention_cases[i];
      AttentionTensors t = attention_tensors(&k, dtype);
      AttentionReference r = attention_reference(k);
      for (int64_t j = 0; j < numel(t.qkv); j++) r.qkv[j] = op_get(t.qkv, j);
      for (int64_t j = 0; j < numel(t.dout); j++) r.dout[j] = op_get(t.dout, j);
      attention_reference_forward(&r);
      for (int table = 0; const Ops *ops = op_table(table); table++) {
        Ctx c = attention_ctx(ops, 2, &k, dtype);
        attention_forward(&c, t.out, t.lse, t.qkv, (int)k.H, attention_test_drop(&k));
        attention_expect_forward(ops, &r, t);
      }
      // backward gets the reference's out and lse as they are stored, and so does the reference's backward
      op_set(t.out, r.out);
      op_set(t.lse, r.lse);
      for (int64_t j = 0; j < numel(t.out); j++) r.out[j] = op_get(t.out, j);
      for (int64_t j = 0; j < numel(t.lse); j++) r.lse[j] = op_get(t.lse, j);
      attention_reference_backward(&r);
      for (int table = 0; const Ops *ops = op_table(table); table++) {
        Ctx c = attention_ctx(ops, 2, &k, dtype);
        t.dqkv = op_tensor(dtype, k.B, k.T, 3 * k.H * k.hs);
        attention_backward(&c, t.dqkv, t.dout, t.qkv, t.out, t.lse, (int)k.H, attention_test_drop(&k));
        attention_expect_backward(ops, &r, t);
      }
      op_free_all();
    }
}

// ---- bits ----------------------------------------------------------------------------------------------------------
// Forward, then backward of its results, into fresh tensors.
static AttentionTensors attention_run(const Ops *ops, int threads, const AttentionCase *k, Dtype dtype) {
  AttentionTensors t = attention_tensors(k, dtype);
  Ctx c = attention_ctx(ops, threads, k, dtype);
  attention_forward(&c, t.out, t.lse, t.qkv, (int)k->H, attention_test_drop(k));
  attention_backward(&c, t.dqkv, t.dout, t.qkv, t.out, t.lse, (int)k->H, attention_test_drop(k));
  return t;
}
static void attention_expect_same(AttentionTensors a, AttentionTensors b) {
  op_expect_same_bits("out", a.out, b.out);
  op_expect_same_bits("lse", a.lse, b.lse);
  op_expect_same_bits("dqkv", a.dqkv, b.dqkv);
}
TEST(attention_bits_of_threads, "attention gives the same bits on 1, 2, 3 and 7 threads") {
  for (int table = 0; const Ops *ops = op_table(table); table++)
    for (int i = 0; i < attention_case_count; i++)
      for (Dtype dtype : {F32, BF16}) {
        AttentionTensors one = attention_run(ops, 1, &attention_cases[i], dtype);
        for (int threads : {2, 3, 7})
          attention_expect_same(attention_run(ops, threads, &attention_cases[i], dtype), one);
        op_free_all();
      }
}
// A backward pass that did not keep out and lse recomputes them in memory that by then holds other data.
TEST(attention_again, "attention_forward gives the same bits a second time, dropout included") {
  for (int table = 0; const Ops *ops = op_table(table); table++)
    for (int i = 0; i < attention_case_count; i++)
      for (Dtype dtype : {F32, BF16, F16}) {
        const AttentionCase k = attention_cases[i];
        AttentionTensors t = attention_tensors(&k, dtype);
        Ctx c = attention_ctx(ops, 2, &k, dtype);
        attention_forward(&c, t.out, t.lse, t.qkv, (int)k.H, attention_test_drop(&k));
        Tensor out = op_copy(t.dout), lse = op_copy(t.lse);
        attention_backward(&c, t.dqkv, t.dout, t.qkv, t.out, t.lse, (int)k.H, attention_test_drop(&k));
        memset(lse.data, 0x7f, (size_t)numel(lse) * 4);
        attention_forward(&c, out, lse, t.qkv, (int)k.H, attention_test_drop(&k));
        op_expect_same_bits("out again", out, t.out);
        op_expect_same_bits("lse again", lse, t.lse);
        op_free_all();
      }
}
TEST(attention_bits_of_tables, "fp32 attention gives the same bits with every instruction set") {
  for (int i = 0; i < attention_case_count; i++) {
    AttentionTensors first = attention_run(op_table(0), 2, &attention_cases[i], F32);
    for (int table = 1; const Ops *ops = op_table(table); table++)
      attention_expect_same(attention_run(ops, 2, &attention_cases[i], F32), first);
    op_free_all();
  }
}
TEST(attention_bits_of_batch, "a sequence's attention does not depend on the batch it is in") {
  const AttentionCase k = {3, 37, 2, 12, 0.25f};
  const int64_t C = k.H * k.hs, n = k.T * C;
  for (int table = 0; const Ops *ops = op_table(table); table++) for (Dtype dtype : {F32, BF16}) {
    AttentionTensors all = attention_run(ops, 2, &k, dtype);
    const int64_t size = (int64_t)dtype_bytes(dtype);
    for (int64_t b = 0; b < k.B; b++) {
      Tensor qkv = tensor_of((char *)all.qkv.data + b * 3 * n * size, dtype, 1, k.T, 3 * C);
      Tensor dqkv = op_tensor(dtype, 1, k.T, 3 * C);
      Tensor dout = tensor_of((char *)all.dout.data + b * n * size, dtype, 1, k.T, C);
      Tensor out = op_tensor(dtype, 1, k.T, C), lse = op_tensor(F32, 1, k.H, k.T);
      Dropout drop = attention_test_drop(&k);
      drop.sample0 += b;
      Ctx c = attention_ctx(ops, 2, &k, dtype);
      attention_forward(&c, out, lse, qkv, (int)k.H, drop);
      attention_backward(&c, dqkv, dout, qkv, out, lse, (int)k.H, drop);
      op_expect_same_bits("out", out, tensor_of((char *)all.out.data + b * n * size, dtype, 1, k.T, C));
      op_expect_same_bits("lse", lse, tensor_of((float *)all.lse.data + b * k.H * k.T, F32, 1, k.H, k.T));
      op_expect_same_bits("dqkv", dqkv, tensor_of((char *)all.dqkv.data + b * 3 * n * size, dtype, 1, k.T, 3 * C));
    }
    op_free_all();
  }
}
TEST(attention_is_causal, "no later position changes a bit of an earlier output; the first is the first value") {
  const AttentionCase k = {1, 90, 2, 24, 0.0f};
  const int64_t C = k.H * k.hs;
  for (int table = 0; const Ops *ops = op_table(table); table++) for (Dtype dtype : {F32, BF16}) {
    AttentionTensors t = attention_run(ops, 1, &k, dtype);
    for (int64_t C_at = 0; C_at < C; C_at++)
      EXPECT(op_get(t.out, C_at) == op_get(t.qkv, 2 * C + C_at), "out of the first position is %.9g, its value %.9g",
             op_get(t.out, C_at), op_get(t.qkv, 2 * C + C_at));
    for (int64_t cut : {1, 31, 32, 40, 64, 89}) {
      Tensor qkv = op_copy(t.qkv), out = op_tensor(dtype, 1, k.T, C), lse = op_tensor(F32, 1, k.H, k.T);
      for (int64_t i = cut * 3 * C; i < numel(qkv); i++) op_put(qkv, i, 3.0 * op_get(qkv, i) + 1.0);
      Ctx c = attention_ctx(ops, 1, &k, dtype);
      attention_forward(&c, out, lse, qkv, (int)k.H, attention_test_drop(&k));
      op_expect_same_bits("out before the cut", tensor_of(out.data, dtype, cut, C),
                          tensor_of(t.out.data, dtype, cut, C));
    }
    op_free_all();
  }
}
TEST(attention_extreme_scores, "scores of thousands do not overflow: the largest wins exactly; a NaN is not lost") {
  const AttentionCase k = {1, 150, 1, 16, 0.0f};
  const int64_t hs = k.hs, winner = 70;
  for (int table = 0; const Ops *ops = op_table(table); table++) for (Dtype dtype : {F32, BF16}) {
    AttentionTensors t = attention_tensors(&k, dtype);
    for (int64_t i = 0; i < k.T; i++)
      for (int64_t d = 0; d < hs; d++) {
        op_put(t.qkv, i * 3 * hs + d, 64.0);
        op_put(t.qkv, i * 3 * hs + hs + d, i == winner ? 64.0 : i < winner ? -64.0 : 0.0);  // scores 16384, -16384, 0
      }
    Ctx c = attention_ctx(ops, 2, &k, dtype);
    attention_forward(&c, t.out, t.lse, t.qkv, 1, attention_test_drop(&k));
    attention_backward(&c, t.dqkv, t.dout, t.qkv, t.out, t.lse, 1, attention_test_drop(&k));
    for (int64_t i = winner; i < k.T; i++) {
      const double lse = op_get(t.lse, i);
      const double allowed = 16384.0 * (double)(hs + 6) * 0x1p-24;  // roundings of a score and of its lse
      EXPECT(fabs(lse - 16384.0) <= allowed, "lse of query %lld is %.9g", (long long)i, lse);
      for (int64_t d = 0; d < hs; d++)
        EXPECT(op_get(t.out, i * hs + d) == op_get(t.qkv, winner * 3 * hs + 2 * hs + d),
               "%s: out of query %lld is %.9g, not %.9g", ops->name, (long long)i, op_get(t.out, i * hs + d),
               op_get(t.qkv, winner * 3 * hs + 2 * hs + d));
    }
    for (int64_t i = 0; i < numel(t.dqkv); i++)
      EXPECT(isfinite(op_get(t.dqkv, i)), "dqkv element %lld is not finite", (long long)i);
    op_put(t.qkv, 100 * 3 * hs + 3, NAN);        // in q of query 100
    attention_forward(&c, t.out, t.lse, t.qkv, 1, attention_test_drop(&k));
    EXPECT(isnan(op_get(t.out, 100 * hs)), "%s: NaN in q, but out is %.9g", ops->name, op_get(t.out, 100 * hs));
    op_free_all();
  }
}

// ---- bf16 arithmetic, one number after the other ------------------------------------------------------------------
// The plain version of kernels/attention_bf16.cuh: the same roundings and summation order, with AMX tiles as emulated,
// so it must give the same bits. vdpbf16ps differs only in its products.
static float attention_plain_exp2(float x) {
  const float n = nearbyintf(x), f = x - n;
  float p = fmaf(0.009582852945f, f, 0.05590642616f);
  p = fmaf(fmaf(p, f, 0.2402409911f), f, 0.6931241751f);
  return ldexpf(fmaf(p, f, 1.0f), (int)n);
}
static float attention_plain_bf16(float x) {
  bf16 stored;
  round_to(&stored, x);
  return to_f32(stored);
}
static float attention_plain_tree(float lane[16]) {
  for (int n = 8; n > 0; n /= 2) for (int i = 0; i < n; i++) lane[i] += lane[i + n];
  return lane[0];
}
// A sum of products as a tile computes it: in each group of 32 neighbours the even and the odd ones are one chain each.
struct AttentionPlainSum { float sum, even, odd; };
static float attention_plain_total(AttentionPlainSum s) { return s.sum + (s.even + s.odd); }
static void attention_plain_add(AttentionPlainSum *s, float a, float b, int64_t i) {
  float *chain = i % 2 ? &s->odd : &s->even;
  *chain = fmaf(a, b, *chain);
  if (i % 32 == 31) *s = AttentionPlainSum{attention_plain_total(*s), 0.0f, 0.0f};
}
static float attention_plain_dot(const float *a, const float *b, int64_t n) {
  AttentionPlainSum s = {};
  for (int64_t i = 0; i < n; i++) attention_plain_add(&s, a[i], b[i], i);
  return attention_plain_total(s);
}
// One head. Arrays of its rows in fp32, hs apart; p, ds: (T,T), key after key. Gradients are overwritten, and so is
// out.
struct AttentionPlain {
  int64_t T, hs, b, h;
  const Dropout *drop;
  float *q, *k, *v, *dout, *out, *dq, *dk, *dv, *p, *ds, *lse;
};
static float attention_plain_mask(const AttentionPlain *a, int64_t query, int64_t key) {
  if (a->drop->p == 0.0f) return 1.0f;
  return dropout_scale(a->drop, a->drop->sample0 + a->b, (a->h * a->T + query) * a->T + key);
}
static void attention_plain_forward(const AttentionPlain *a) {
  const float scale = 1.0f / sqrtf((float)a->hs) * 1.44269504f;
  float *s = (float *)op_zeros(a->T);
  for (int64_t q = 0; q < a->T; q++) {
    float most = -INFINITY, lane[32] = {};
    for (int64_t k = 0; k <= q; k++)
      most = fmaxf(most, s[k] = attention_plain_dot(a->q + q * a->hs, a->k + k * a->hs, a->hs));
    for (int64_t k = 0; k <= q; k++) {
      const float e = attention_plain_exp2(fmaf(s[k], scale, -(most * scale)));
      lane[k % 32] += e;
      s[k] = attention_plain_bf16(e * attention_plain_mask(a, q, k));
    }
    for (int i = 0; i < 16; i++) lane[i] += lane[16 + i];
    const float total = attention_plain_tree(lane);
    a->lse[q] = (float)((double)(most * scale) * 0.6931471805599453 + log((double)total));
    for (int64_t d = 0; d < a->hs; d++) {
      AttentionPlainSum sum = {};
      for (int64_t k = 0; k <= q; k++) attention_plain_add(&sum, s[k], a->v[k * a->hs + d], k);
      a->out[q * a->hs + d] = attention_plain_total(sum) * (1.0f / total);
    }
  }
}
// to = factor times the sum over rows first .. end of weight[row * step] x[row][d]: chains of 256 rows, added in order.
static void attention_plain_weigh(float *to, const AttentionPlain *a, const float *weight, int64_t step, const float *x,
                                  int64_t first, int64_t end, float factor) {
  for (int64_t d = 0; d < a->hs; d++) {
    float sum = 0.0f;
    AttentionPlainSum chain = {};
    for (int64_t row = first; row < end; row++) {
      attention_plain_add(&chain, weight[row * step], x[row * a->hs + d], row);
      if ((row + 1) % 256 && row + 1 < end) continue;
      sum = row / 256 == first / 256 ? attention_plain_total(chain) : sum + attention_plain_total(chain);
      chain = AttentionPlainSum{};
    }
    to[d] = sum * factor;
  }
}
static void attention_plain_backward(const AttentionPlain *a) {
  const int64_t T = a->T, hs = a->hs;
  const float scale = 1.0f / sqrtf((float)hs);
  for (int64_t q = 0; q < T; q++) {
    float lane[16] = {};
    for (int64_t d = 0; d < hs; d++) lane[d % 16] = fmaf(a->dout[q * hs + d], a->out[q * hs + d], lane[d % 16]);
    const float D = attention_plain_tree(lane), lse = a->lse[q] * -1.44269504f;
    for (int64_t k = 0; k <= q; k++) {
      const float s = attention_plain_dot(a->q + q * hs, a->k + k * hs, hs), mask = attention_plain_mask(a, q, k);
      const float dp = attention_plain_dot(a->dout + q * hs, a->v + k * hs, hs);
      const float p = attention_plain_exp2(fmaf(s, scale * 1.44269504f, lse));
      a->p[k * T + q] = attention_plain_bf16(p * mask);
      a->ds[k * T + q] = attention_plain_bf16(p * (dp * mask - D));
    }
  }
  for (int64_t i = 0; i < T; i++) {
    attention_plain_weigh(a->dv + i * hs, a, a->p + i * T, 1, a->dout, i, T, 1.0f);
    attention_plain_weigh(a->dk + i * hs, a, a->ds + i * T, 1, a->q, i, T, scale);
    attention_plain_weigh(a->dq + i * hs, a, a->ds + i, T, a->k, 0, i + 1, scale);
  }
}
// Columns `column` .. of a tensor of rows of `ld` elements: read into x, or compared with x once rounded.
static void attention_plain_read(float *x, const AttentionPlain *a, Tensor t, int64_t ld, int64_t column) {
  for (int64_t i = 0; i < a->T * a->hs; i++)
    x[i] = (float)op_get(t, (a->b * a->T + i / a->hs) * ld + column + i % a->hs);
}
static void attention_plain_expect(const char *what, const AttentionPlain *a, const float *x, Tensor t, int64_t ld,
                                   int64_t column) {
  for (int64_t i = 0; i < a->T * a->hs; i++) {
    const double got = op_get(t, (a->b * a->T + i / a->hs) * ld + column + i % a->hs);
    if (got == (double)attention_plain_bf16(x[i])) continue;
    EXPECT(false, "T %d hs %d: %s of row %d column %d is %.9g, plainly %.9g", (int)a->T, (int)a->hs, what,
           (int)(i / a->hs), (int)(i % a->hs), got, (double)attention_plain_bf16(x[i]));
    return;
  }
}
TEST(attention_bf16_is_the_plain_loop, "bf16 attention by tiles has the bits of the plain loops, dropout included") {
  const Ops *ops = NULL;
  for (int table = 0; op_table(table); table++) if (op_table(table) == &ops_amx_emulated) ops = op_table(table);
  for (int i = 0; ops && i < attention_case_count; i++) {
    const AttentionCase k = attention_cases[i];
    const Dropout drop = attention_test_drop(&k);
    const AttentionTensors t = attention_run(ops, 2, &k, BF16);
    for (int64_t at = 0; at < k.B * k.H; at++) {
      const int64_t n = k.T * k.hs, C = k.H * k.hs, column = at % k.H * k.hs;
      AttentionPlain a = {k.T, k.hs, at / k.H, at % k.H, &drop, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
      for (float **x : {&a.q, &a.k, &a.v, &a.dout, &a.out, &a.dq, &a.dk, &a.dv}) *x = (float *)op_zeros(n);
      a.p = (float *)op_zeros(k.T * k.T), a.ds = (float *)op_zeros(k.T * k.T), a.lse = (float *)op_zeros(k.T);
      attention_plain_read(a.q, &a, t.qkv, 3 * C, column);
      attention_plain_read(a.k, &a, t.qkv, 3 * C, C + column);
      attention_plain_read(a.v, &a, t.qkv, 3 * C, 2 * C + column);
      attention_plain_read(a.dout, &a, t.dout, C, column);
      attention_plain_forward(&a);
      attention_plain_expect("out", &a, a.out, t.out, C, column);
      for (int64_t q = 0; q < k.T; q++) {        // a separate logarithm: an ulp or two from each part
        const double lse = op_get(t.lse, at * k.T + q);
        EXPECT(fabs(lse - (double)a.lse[q]) <= (fabs(lse) + 8.0) * 0x1p-22, "lse of query %d is %.9g, plainly %.9g",
               (int)q, lse, (double)a.lse[q]);
        a.lse[q] = (float)lse;
      }
      attention_plain_read(a.out, &a, t.out, C, column);
      attention_plain_backward(&a);
      attention_plain_expect("dq", &a, a.dq, t.dqkv, 3 * C, column);
      attention_plain_expect("dk", &a, a.dk, t.dqkv, 3 * C, C + column);
      attention_plain_expect("dv", &a, a.dv, t.dqkv, 3 * C, 2 * C + column);
    }
    op_free_all();
  }
}
