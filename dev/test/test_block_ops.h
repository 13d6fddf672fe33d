// test_block_ops.h: ops of blocks other than GPT-2's (RMSNorm, rope with the norm of q and k, swiglu, activations,
// soft-capped logits, heads that share k and v) against their formulas in fp64, gradients against central differences
// of these formulas. On every instruction set, with 1 and 3 threads, and on emulated CUDA. CPUs give equal bits in
// fp32.

// A central difference in fp64 with a step of 2^-16 is off by 2^-32 of the third derivative and 2^-36 of the loss: far
// less than one rounding of fp32 of the same scale, 2^-24.
static void block_differences(double (*loss)(void *env), void *env, double *x, double *dx, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    const double kept = x[i], h = 0x1p-16 * fmax(1.0, fabs(kept));
    x[i] = kept + h;
    const double up = loss(env);
    x[i] = kept - h;
    dx[i] = (up - loss(env)) / (2.0 * h);
    x[i] = kept;
  }
}
// The i-th place to compute at: CPU tables with 1 and 3 threads, then devices. False: there are no more.
struct BlockPlace { Ctx c; bool gpu; };
static bool block_place(int i, WorkspaceQuery q, BlockPlace *p) {
  int tables = 0;
  while (op_table(tables)) tables++;
  p->gpu = i >= 2 * tables;
  if (!p->gpu) { p->c = op_ctx(op_table(i / 2), i % 2 ? 3 : 1, q); return true; }
  const Ops *ops = device_table(i - 2 * tables);
  if (ops) p->c = device_ctx(ops, q);
  return ops != NULL;
}
// call(c, t), with the n tensors on the device of the place; what it wrote is in t's memory afterwards.
template <class F> static void block_call(BlockPlace *p, Tensor *t, int n, F call) {
  if (!p->gpu) { call(&p->c, t); return; }
  Tensor d[16];
  CHECK(n <= 16, "%d tensors", n);
  for (int i = 0; i < n; i++) d[i] = device_upload(&p->c, t[i]);
  call(&p->c, d);
  p->c.ops->sync(&p->c);
  for (int i = 0; i < n; i++)
    if (t[i].data) memcpy(t[i].data, device_download(&p->c, d[i]).data, (size_t)numel(t[i]) * dtype_bytes(t[i].dtype));
}
static const char *block_where(const char *what, const BlockPlace *p, Dtype dtype) {
  static char text[160];
  snprintf(text, sizeof text, "%s, %s, %d threads, %s", what, p->c.ops->name, p->c.threads, dtype_name(dtype));
  return text;
}
static void block_done(BlockPlace *p) { if (p->gpu) device_done(&p->c); }

// ================================================================================================ RMSNorm
struct BlockNorm { int64_t rows, C; double eps, *x, *weight, *dout, *out, *rstd; };
TEST_HOT static double block_norm_loss(void *env) {
  BlockNorm *e = (BlockNorm *)env;
  double loss = 0;
  for (int64_t r = 0; r < e->rows; r++) {
    double squares = 0;
    for (int64_t i = 0; i < e->C; i++) squares += e->x[r * e->C + i] * e->x[r * e->C + i];
    e->rstd[r] = 1 / sqrt(squares / (double)e->C + e->eps);
    for (int64_t i = 0; i < e->C; i++) {
      e->out[r * e->C + i] = e->x[r * e->C + i] * e->rstd[r] * e->weight[i];
      loss += e->dout[r * e->C + i] * e->out[r * e->C + i];
    }
  }
  return loss;
}
static void block_check_norm(Dtype dtype, int64_t B, int64_t T, int64_t C, bool weightless) {
  const float eps = 1e-6f;
  const int64_t rows = B * T;
  Tensor x = op_random_tensor(1, 1.0, dtype, B, T, C), dout = op_random_tensor(2, 1.0, dtype, B, T, C), none = {};
  Tensor weight = weightless ? none : op_random_tensor(3, 1.0, dtype, C),
         branch = op_random_tensor(4, 1.0, dtype, B, T, C);
  double *ones = op_zeros(C), *dx = op_zeros(rows * C), *dw = op_zeros(C);
  for (int64_t i = 0; i < C; i++) ones[i] = 1;
  BlockNorm e = {rows, C, (double)eps, op_fp64(x), weightless ? ones : op_fp64(weight), op_fp64(dout),
                 op_zeros(rows * C), op_zeros(rows)};
  block_differences(block_norm_loss, &e, e.x, dx, rows * C);
  block_differences(block_norm_loss, &e, e.weight, dw, C);
  block_norm_loss(&e);
  // |xhat| <= sqrt(C) and its mean square is 1: dx's terms are at most rstd (|g| + |xhat| mean |g xhat|).
  const double g = ops_largest(e.dout, rows * C) * ops_largest(e.weight, C), root = sqrt((double)C);
  const double scale = ops_largest(e.rstd, rows) * g * (1 + root), k = ops_roundings(C) + 12;
  Tensor first[3] = {};
  BlockPlace p;
  for (int i = 0; block_place(i, {dtype, F32, B, T, C, 1, 1, 1}, &p); i++) {
    Tensor t[] = {x, weight, op_tensor(dtype, B, T, C), op_tensor(F32, B, T), dout, op_tensor(dtype, B, T, C),
                  weightless ? none : op_tensor(F32, C), branch, op_tensor(dtype, B, T, C), op_tensor(dtype, B, T, C)};
    memset(t[5].data, 0, (size_t)numel(t[5]) * dtype_bytes(dtype));
    block_call(&p, t, 10, [=](Ctx *c, Tensor *d) {
      layernorm_forward(c, d[2], Tensor{}, d[3], d[0], d[1], Tensor{}, eps);
      layernorm_backward(c, d[5], Tensor{}, d[6], Tensor{}, d[4], d[0], d[1], Tensor{}, d[3], Dropout{}, OVERWRITE);
      residual_layernorm_forward(c, d[8], d[9], Tensor{}, d[3], d[0], d[7], d[1], Tensor{}, eps, Dropout{});
    });
    op_expect_close(block_where("rmsnorm out", &p, dtype), t[2], e.out, k, root * ops_largest(e.weight, C));
    op_expect_close(block_where("rmsnorm dx", &p, dtype), t[5], dx, k, scale);
    if (!weightless)
      op_expect_close(block_where("rmsnorm dweight", &p, dtype), t[6], dw, (double)rows + k,
                      (double)rows * ops_largest(e.dout, rows * C) * root);
    if (!p.gpu && !first[0].data) memcpy(first, t + 2, sizeof first);
    if (!p.gpu) op_expect_same_bits(block_where("rmsnorm out", &p, dtype), t[2], first[0]);
    Tensor sum[] = {t[8], op_tensor(dtype, B, T, C), op_tensor(F32, B, T), weight};          // the stored sum alone
    block_call(&p, sum, 4, [=](Ctx *c, Tensor *d) {
      layernorm_forward(c, d[1], Tensor{}, d[2], d[0], d[3], Tensor{}, eps);
    });
    op_expect_same_bits(block_where("rmsnorm of a residual", &p, dtype), t[9], sum[1]);
    block_done(&p);
  }
  op_free_all();
}
TEST(block_rmsnorm_fp64, "RMSNorm, with and without a weight, alone and after a residual sum: fp64's values, and "
                         "gradients within rounding of central differences; CPUs and emulated CUDA") {
  for (Dtype dtype : {F32, BF16, F16}) {
    block_check_norm(dtype, 2, 3, 50, false);
    block_check_norm(dtype, 1, 5, 64, true);
  }
  block_check_norm(F32, 3, 47, 24, false);       // more rows than a block of column sums
  block_check_norm(BF16, 1, 2, 264, false);
}

// ================================================================================================ rope
struct BlockRope { int64_t rows, T; RopeArgs a; int64_t heads; bool turns; double *x, *weight[2], *table, *dout, *y; };
static double block_rope_rstd(const double *y, int64_t n, double eps) {
  double squares = 0;
  for (int64_t i = 0; i < n; i++) squares += y[i] * y[i];
  return 1 / sqrt(squares / (double)n + eps);
}
static void block_rope_norm(double *y, const double *weight, int64_t hs, double eps) {
  const double rstd = block_rope_rstd(y, hs, eps);
  for (int64_t i = 0; i < hs; i++) y[i] *= rstd * weight[i];
}
TEST_HOT static double block_rope_loss(void *env) {
  BlockRope *e = (BlockRope *)env;
  const int64_t hs = e->a.head_size, d = hs / 2;
  double loss = 0;
  for (int64_t at = 0; at < e->rows * e->heads; at++) {
    double *y = e->y + at * hs;
    const double *table = e->table + at / e->heads % e->T * hs, *weight = e->weight[at % e->heads >= e->a.n_head];
    memcpy(y, e->x + at * hs, sizeof(double) * (size_t)hs);
    if (e->a.norm == QK_NORM_BEFORE) block_rope_norm(y, weight, hs, (double)e->a.eps);
    if (e->a.norm == QK_NORM_ALL) {
      const int64_t h = at % e->heads, first = h < e->a.n_head ? 0 : e->a.n_head, end = first ? e->heads : e->a.n_head;
      const double rstd = block_rope_rstd(e->x + (at - h + first) * hs, (end - first) * hs, (double)e->a.eps);
      for (int64_t i = 0; i < hs; i++) y[i] *= rstd * weight[(h - first) * hs + i];
    }
    for (int64_t i = 0; i < d && e->turns; i++) {
      const double a = y[i], b = y[d + i];
      y[i] = a * table[i] - b * table[d + i];
      y[d + i] = b * table[i] + a * table[d + i];
    }
    if (e->a.norm == QK_NORM_AFTER) block_rope_norm(y, weight, hs, (double)e->a.eps);
    for (int64_t i = 0; i < hs; i++) loss += e->dout[at * hs + i] * y[i];
  }
  return loss;
}
// Rows of heads of q and k out of rows that have v too, or the other way; v is left alone.
static void block_rope_copy(double *heads, const BlockRope *e, Tensor qkv, int64_t row) {
  const int64_t n = e->heads * e->a.head_size;
  for (int64_t i = 0; i < e->rows * n; i++) heads[i] = op_get(qkv, i / n * row + i % n);
}
static void block_expect_rope(const char *what, const BlockPlace *p, const BlockRope *e, Tensor qkv, Tensor before,
                              const double *want, double roundings, double scale) {
  const int64_t n = e->heads * e->a.head_size, row = qkv.shape[2];
  Tensor got = op_tensor(qkv.dtype, e->rows, n);
  for (int64_t i = 0; i < e->rows * n; i++) op_put(got, i, op_get(qkv, i / n * row + i % n));
  op_expect_close(block_where(what, p, qkv.dtype), got, want, roundings, scale);
  for (int64_t i = 0; i < numel(qkv); i++)
    if (i % row >= n) EXPECT(op_get(qkv, i) == op_get(before, i), "%s: v was changed", block_where(what, p, qkv.dtype));
}
struct BlockRopeCase { int H, KV, hs; QkNorm norm; bool turns, weightless; };
static void block_check_rope(Dtype dtype, BlockRopeCase k, int64_t B, int64_t T) {
  const int64_t rows = B * T, heads = k.H + k.KV, hs = k.hs, n = heads * hs, row = n + k.KV * hs;
  const RopeArgs a = {k.H, k.hs, k.norm, 1e-6f};
  const bool normed = k.norm != QK_NORM_OFF, weighted = normed && !k.weightless;
  Tensor none = {}, qkv = op_random_tensor(1, 1.0, dtype, B, T, row), dqkv = op_random_tensor(2, 1.0, dtype, B, T, row);
  Tensor table = k.turns ? op_tensor(F32, T + 1, hs) : none;
  const bool all = k.norm == QK_NORM_ALL;
  const int64_t columns[] = {all ? k.H * hs : hs, all ? k.KV * hs : hs};
  Tensor wq = weighted ? op_random_tensor(3, 1.0, dtype, columns[0]) : none,
         wk = weighted ? op_random_tensor(4, 1.0, dtype, columns[1]) : none;
  Architecture b = {};
  b.rope_theta = 50;
  if (k.turns) rope_table_fill((float *)table.data, &b, T + 1, hs);
  BlockRope e = {rows, T, a, heads, k.turns, op_zeros(rows * n),
                 {op_zeros(columns[0]), op_zeros(columns[1])}, op_zeros((T + 1) * hs),
                 op_zeros(rows * n), op_zeros(rows * n)};
  block_rope_copy(e.x, &e, qkv, row);
  block_rope_copy(e.dout, &e, dqkv, row);
  for (int64_t i = 0; i < columns[0]; i++) e.weight[0][i] = weighted ? op_get(wq, i) : 1;
  for (int64_t i = 0; i < columns[1]; i++) e.weight[1][i] = weighted ? op_get(wk, i) : 1;
  for (int64_t i = 0; i < (T + 1) * hs && k.turns; i++) e.table[i] = op_get(table, i);
  double *dx = op_zeros(rows * n), *dw[2] = {op_zeros(columns[0]), op_zeros(columns[1])};
  block_differences(block_rope_loss, &e, e.x, dx, rows * n);
  for (int i = 0; i < 2 && weighted; i++) block_differences(block_rope_loss, &e, e.weight[i], dw[i], columns[i]);
  block_rope_loss(&e);
  // With a norm |xhat| <= sqrt(hs); rstd of a head is at most 1 / the root of its least mean square.
  double rstd = 1, root = normed ? sqrt((double)columns[0]) : 1;
  for (int64_t at = 0; at < rows * heads && normed; at++) {
    double squares = 0;
    for (int64_t i = 0; i < hs; i++) squares += e.x[at * hs + i] * e.x[at * hs + i];
    rstd = fmax(rstd, 1 / sqrt(squares / (double)hs + 1e-6));
  }
  const double w = fmax(ops_largest(e.weight[0], columns[0]), ops_largest(e.weight[1], columns[1])),
               d = 2 * ops_largest(e.dout, rows * n);
  const double K = ops_roundings(columns[0]) + 16, out_scale = 2 * (normed ? root * w : ops_largest(e.x, rows * n));
  Tensor first[2] = {};
  BlockPlace p;
  WorkspaceQuery q = {dtype, F32, B, T, k.H * hs, k.H, 1, 1};
  q.n_kv_head = k.KV, q.q_norm = columns[0];
  for (int i = 0; block_place(i, q, &p); i++) {
    Tensor grad[2] = {weighted ? op_tensor(F32, columns[0]) : none, weighted ? op_tensor(F32, columns[1]) : none};
    Tensor t[] = {op_copy(qkv), normed ? op_tensor(dtype, B, T, n) : none, table, wq, wk, op_copy(dqkv), grad[0],
                  grad[1]};
    block_call(&p, t, 8, [=](Ctx *c, Tensor *x) {
      rope_forward(c, x[0], x[1], x[2], x[3], x[4], a);
      rope_backward(c, x[5], x[6], x[7], x[1], x[2], x[3], x[4], a, OVERWRITE);
    });
    block_expect_rope("rope", &p, &e, t[0], qkv, e.y, K, out_scale);
    block_expect_rope("rope dx", &p, &e, t[5], dqkv, dx, K, rstd * d * w * (1 + root));
    for (int j = 0; j < 2 && weighted; j++)
      op_expect_close(block_where("rope dweight", &p, F32), t[6 + j], dw[j], (double)(rows * heads) + K,
                      (double)(rows * heads) * d * root);
    if (!p.gpu && !first[0].data) first[0] = t[0], first[1] = t[5];
    if (!p.gpu) op_expect_same_bits(block_where("rope", &p, dtype), t[0], first[0]);
    if (!p.gpu) op_expect_same_bits(block_where("rope dx", &p, dtype), t[5], first[1]);
    if (weighted) {                              // added to what was there, and one of the two alone
      Tensor old = op_random_tensor(9, 3.0, F32, columns[1]), want = op_added(old, t[7]);
      Tensor again[] = {op_copy(dqkv), t[1], table, wq, wk, op_copy(old)};
      block_call(&p, again, 6, [=](Ctx *c, Tensor *x) {
        rope_backward(c, x[0], Tensor{}, x[5], x[1], x[2], x[3], x[4], a, ADD);
      });
      op_expect_same_bits(block_where("rope dweight added", &p, F32), again[5], want);
      op_expect_same_bits(block_where("rope dx again", &p, dtype), again[0], t[5]);
    }
    block_done(&p);
  }
  op_free_all();
}
TEST(block_rope_fp64,
     "rope, with q's and k's norm before it, after it, over all heads or without, with and without weights and "
     "turning: fp64's values, gradients within rounding of central differences, v untouched") {
  static const BlockRopeCase cases[] = {
      {3, 1, 10, QK_NORM_OFF, true, false},    {2, 2, 16, QK_NORM_BEFORE, true, false},
      {4, 2, 6, QK_NORM_AFTER, true, true},    {2, 1, 70, QK_NORM_AFTER, true, false},
      {1, 1, 5, QK_NORM_BEFORE, false, false}, {2, 1, 34, QK_NORM_BEFORE, true, true},
      {2, 1, 48, QK_NORM_BEFORE, true, false}, {2, 1, 32, QK_NORM_OFF, true, false}};
  for (Dtype dtype : {F32, BF16, F16}) for (BlockRopeCase k : cases) block_check_rope(dtype, k, 2, 3);
  for (Dtype dtype : {F32, BF16, F16}) block_check_rope(dtype, {4, 2, 10, QK_NORM_ALL, true, false}, 2, 3);
  block_check_rope(F32, {3, 1, 8, QK_NORM_ALL, false, true}, 1, 3);
  block_check_rope(F32, {2, 1, 8, QK_NORM_ALL, true, false}, 2, 40);
  block_check_rope(F32, {2, 1, 8, QK_NORM_BEFORE, true, false}, 2, 40);        // more rows than a block or a run
  block_check_rope(F32, {6, 1, 80, QK_NORM_AFTER, true, false}, 2, 3);         // more heads than a block's groups
}

// ================================================================================================ MLP, logits
static double block_sigmoid(double x) { return 1 / (1 + exp(-x)); }
struct BlockCurve { double f, slope; };
static BlockCurve block_curve(Activation kind, double x) {
  const double s = block_sigmoid(x), k = 2 * 0.7978845608028654, g = block_sigmoid(k * (x + 0.044715 * x * x * x));
  switch (kind) {
    case ACT_GELU: return {x * g, g + x * g * (1 - g) * k * (1 + 3 * 0.044715 * x * x)};
    case ACT_RELU2: return {x > 0 ? x * x : 0, x > 0 ? 2 * x : 0};
    case ACT_SILU: return {x * s, s * (1 + x * (1 - s))};
  }
  EXPECT(false, "no fp64 of activation %d", (int)kind);
  return {};
}
TEST(block_mlp_fp64,
     "every activation of the table, alone and of a gate, equals fp64 both ways, on all devices with the same bits; a "
     "NaN stays one") {
  static const Activation kinds[] = {
#define X(id, ...) ACT_##id,
      ACTIVATIONS(X)
#undef X
  };
  for (Activation kind : kinds) for (Dtype dtype : {F32, BF16, F16}) for (int64_t F : {1, 16, 37, 72}) {
    const int64_t R = 5, n = R * F;
    Tensor in = op_random_tensor(1, 3.0, dtype, R, 2 * F), dout = op_random_tensor(2, 1.0, dtype, R, F), first[4] = {};
    const double large = kind == ACT_RELU2 ? 30 : 60;            // its cube is finite in fp16
    op_put(in, 0, large), op_put(in, F, -large);
    double *y = op_zeros(n), *din = op_zeros(2 * n), *z = op_zeros(n), *dz = op_zeros(n);
    for (int64_t i = 0; i < n; i++) {
      const int64_t at = i / F * 2 * F + i % F;
      const double u = op_get(in, at + F), d = op_get(dout, i);
      const BlockCurve gate = block_curve(kind, op_get(in, at)), x = block_curve(kind, op_get(in, i));
      y[i] = gate.f * u;
      din[at] = d * u * gate.slope, din[at + F] = d * gate.f;
      z[i] = x.f, dz[i] = x.slope * d;
    }
    BlockPlace p;
    for (int i = 0; block_place(i, {dtype, F32, 1, R, 2 * F, 1, 1, 1}, &p); i++) {
      Tensor flat = tensor_of(in.data, dtype, R, F);             // alone it reads the first half of the memory
      Tensor t[] = {in, dout, op_tensor(dtype, R, F), op_tensor(dtype, R, 2 * F), op_copy(flat), op_copy(dout), flat};
      block_call(&p, t, 7, [=](Ctx *c, Tensor *x) {
        swiglu_forward(c, x[2], x[0], kind);
        swiglu_backward(c, x[3], x[1], x[0], kind);
        activation_forward(c, x[4], x[4], kind); // both in place
        activation_backward(c, x[5], x[5], x[6], kind);
      });
      // A sigmoid has the error of an exponential (2^-23, formulas.cuh), a sum and a quotient, times |x| where it is a
      // slope. GELU's exponent has roundings of its own, but x s (1 - s) falls faster than they grow.
      const int e = kind == ACT_RELU2 ? 2 : kind == ACT_GELU ? 32 : 8, de = kind == ACT_GELU ? 64 : 8 + 4 * 60;
      op_expect_close(block_where("gated", &p, dtype), t[2], y, e, ops_largest(y, n));
      op_expect_close(block_where("gated backward", &p, dtype), t[3], din, de, ops_largest(din, 2 * n));
      op_expect_close(block_where("activation", &p, dtype), t[4], z, e, ops_largest(z, n));
      op_expect_close(block_where("activation backward", &p, dtype), t[5], dz, de, ops_largest(dz, n));
      if (!first[0].data) memcpy(first, t + 2, sizeof first);
      for (int j = 0; j < 4; j++) op_expect_same_bits(block_where("an activation", &p, dtype), t[2 + j], first[j]);
      Tensor bad[] = {op_copy(in), op_tensor(dtype, R, F), op_tensor(dtype, R, 2 * F), dout};
      op_put(bad[0], 0, NAN);
      block_call(&p, bad, 4, [=](Ctx *c, Tensor *x) {
        swiglu_forward(c, x[1], x[0], kind);
        activation_forward(c, x[2], x[0], kind);
      });
      EXPECT(isnan(op_get(bad[1], 0)) && isnan(op_get(bad[2], 0)), "%s: a NaN is lost", block_where("", &p, dtype));
      block_done(&p);
    }
    op_free_all();
  }
}

struct BlockCap { int64_t V; double cap, *z; int64_t target; };
static double block_cap_loss(void *env) {
  const BlockCap *e = (const BlockCap *)env;
  double sum = 0;
  for (int64_t j = 0; j < e->V; j++) sum += exp(e->cap * tanh(e->z[j] / e->cap) - e->cap);
  return log(sum) + e->cap - e->cap * tanh(e->z[e->target] / e->cap);
}
TEST(block_softcap_fp64,
     "soft-capped logits and their cross entropy: losses of fp64, gradients of the uncapped logits within "
     "rounding of central differences, in place and apart, in every form of the CUDA kernel") {
  static const struct { int64_t V, Vp; } shapes[] = {{37, 37}, {60, 64}, {5003, 5056}, {9001, 9024}};
  const float cap = 3.0f;
  for (auto s : shapes) for (Dtype dtype : {F32, BF16}) {
    const int64_t R = s.V > 1000 ? 2 : 4;
    Tensor z = op_random_tensor(1, 3.0, F32, R, s.Vp), targets = op_random_ids(2, s.V, R);
    double *want = op_zeros(R), *dz = op_zeros(R * s.Vp), *capped = op_zeros(R * s.Vp);
    for (int64_t i = 0; i < R * s.Vp; i++) capped[i] = (double)cap * tanh(op_get(z, i) / (double)cap);
    for (int64_t r = 0; r < R; r++) {
      BlockCap e = {s.V, (double)cap, op_fp64(z) + r * s.Vp, ((int32_t *)targets.data)[r]};
      want[r] = block_cap_loss(&e);
      if (s.V < 1000) block_differences(block_cap_loss, &e, e.z, dz + r * s.Vp, s.V);
    }
    BlockPlace p;
    WorkspaceQuery q = {dtype, F32, 1, R, 64, 1, s.Vp, R};
    for (int i = 0; block_place(i, q, &p); i++) {
      Tensor t[] = {op_copy(z),        targets,          op_tensor(F32, R), op_tensor(dtype, R, s.Vp),
                    op_tensor(I32, R), op_tensor(F32, R)};
      const bool in_place = dtype == F32;
      block_call(&p, t, 6, [=](Ctx *c, Tensor *x) {
        softcap_forward(c, x[0], cap);
        cross_entropy_forward(c, x[5], x[4], x[0], x[1], s.V);
        cross_entropy_forward_backward(c, x[2], in_place ? x[0] : x[3], x[0], x[1], s.V, 1.0f, cap);
      });
      // A capped logit is off by cap 2^-21 at most, and so is each term of the sum.
      op_expect_close(block_where("capped losses", &p, F32), t[2], want, 8 * (double)cap + 16 + log2((double)s.V),
                      2 * cap);
      op_expect_close(block_where("capped losses alone", &p, F32), t[5], want, 8 * (double)cap + 16 + log2((double)s.V),
                      2 * cap);
      if (s.V < 1000)
        op_expect_close(block_where("capped gradient", &p, dtype), in_place ? t[0] : t[3], dz, 8 * (double)cap + 64,
                        1.0);
      // Logits in bf16: capped they are those of fp32, rounded; their gradient, over them, is that of the same values.
      Tensor half = op_tensor(BF16, R, s.Vp), wide = op_tensor(F32, R, s.Vp), capped16 = op_tensor(BF16, R, s.Vp);
      for (int64_t i = 0; i < R * s.Vp; i++) op_put(half, i, op_get(z, i)), op_put(wide, i, op_get(half, i));
      Tensor h[] = {half, wide, capped16, targets, op_tensor(F32, R), op_tensor(F32, R)};
      block_call(&p, h, 3, [=](Ctx *c, Tensor *x) { softcap_forward(c, x[0], cap), softcap_forward(c, x[1], cap); });
      for (int64_t i = 0; i < R * s.Vp; i++) op_put(capped16, i, op_get(wide, i)), op_put(wide, i, op_get(capped16, i));
      op_expect_same_bits(block_where("soft-capped logits", &p, BF16), half, capped16);
      block_call(&p, h, 6, [=](Ctx *c, Tensor *x) {
        cross_entropy_forward_backward(c, x[4], x[0], x[0], x[3], s.V, 1.0f, cap);
        cross_entropy_forward_backward(c, x[5], x[1], x[1], x[3], s.V, 1.0f, cap);
      });
      op_expect_close(block_where("capped gradient over bf16 logits", &p, BF16), half, op_fp64(wide), 64, 1.0);
      op_expect_close(block_where("losses of capped bf16 logits", &p, BF16), h[4], op_fp64(h[5]), 64, 2 * cap);
      block_done(&p);
    }
    op_free_all();
  }
}

TEST(block_geglu_fp64,
     "geglu, and a scaled embedding with its gradient, equal fp64, with the same bits on all devices") {
  for (Dtype dtype : {F32, BF16, F16}) for (int64_t F : {16, 37}) {
    const int64_t R = 5, n = R * F, C = F;
    Tensor in = op_random_tensor(1, 2.0, dtype, R, 2 * F), dout = op_random_tensor(2, 1.0, dtype, R, F), first[4] = {};
    Tensor ids = op_random_ids(3, 7, 1, R), wte = op_random_tensor(4, 1.0, dtype, 7, C);
    double *y = op_zeros(n), *din = op_zeros(2 * n), *rows = op_zeros(n), *dwte = op_zeros(7 * C);
    for (int64_t i = 0; i < n; i++) {
      const int64_t at = i / F * 2 * F + i % F, id = ((int32_t *)ids.data)[i / C];
      const double g = op_get(in, at), u = op_get(in, at + F), d = op_get(dout, i), k = 0.7978845608028654;
      const double t = tanh(k * (g + 0.044715 * g * g * g)), act = 0.5 * g * (1 + t);
      y[i] = act * u;
      din[at] = d * u * (0.5 * (1 + t) + 0.5 * g * (1 - t * t) * k * (1 + 3 * 0.044715 * g * g)), din[at + F] = d * act;
      rows[i] = 5.5 * op_get(wte, id * C + i % C), dwte[id * C + i % C] += 5.5 * d;
    }
    BlockPlace p;
    for (int i = 0; block_place(i, {dtype, F32, 1, R, 2 * F, 1, 1, 1}, &p); i++) {
      Tensor t[] = {in, dout, op_tensor(dtype, R, F), op_tensor(dtype, R, 2 * F), ids, wte, op_tensor(dtype, 1, R, C),
                    op_tensor(F32, 7, C), reshaped(op_copy(dout), 1, R, C)};
      memset(t[7].data, 0, (size_t)(7 * C) * sizeof(float));
      block_call(&p, t, 9, [=](Ctx *c, Tensor *x) {
        swiglu_forward(c, x[2], x[0], ACT_GELU);
        swiglu_backward(c, x[3], x[1], x[0], ACT_GELU);
        embedding_forward(c, x[6], x[4], x[5], Tensor{}, Dropout{}, Tensor{}, 5.5f);
        embedding_backward(c, x[7], Tensor{}, x[8], x[4], Dropout{}, OVERWRITE, Tensor{}, 5.5f);
      });
      op_expect_close(block_where("geglu", &p, dtype), t[2], y, 32, ops_largest(y, n) + 1);
      op_expect_close(block_where("geglu dx", &p, dtype), t[3], din, 64, ops_largest(din, 2 * n) + 1);
      op_expect_close(block_where("scaled embedding", &p, dtype), t[6], rows, 4, ops_largest(rows, n));
      op_expect_close(block_where("scaled dwte", &p, F32), t[7], dwte, 16, ops_largest(dwte, 7 * C));
      const Tensor got[] = {t[2], t[3], t[6], t[7]};
      if (!first[0].data) memcpy(first, got, sizeof first);
      for (int j = 0; j < 4; j++) op_expect_same_bits(block_where("geglu, scaled", &p, dtype), got[j], first[j]);
      block_done(&p);
    }
    op_free_all();
  }
}

TEST(block_embedding_without_positions, "an embedding without learned positions has the bits of one with zeros") {
  for (Dtype dtype : {F32, BF16}) for (int64_t C : {16, 21}) {
    const int64_t B = 2, T = 5;
    Tensor tokens = op_random_ids(1, 7, B, T), wte = op_random_tensor(2, 1.0, dtype, 7, C),
           zeros = op_tensor(dtype, T, C);
    memset(zeros.data, 0, (size_t)numel(zeros) * dtype_bytes(dtype));
    BlockPlace p;
    for (int i = 0; block_place(i, {dtype, F32, B, T, C, 1, 1, 1}, &p); i++) {
      Tensor t[] = {tokens, wte, zeros, op_tensor(dtype, B, T, C), op_tensor(dtype, B, T, C)};
      block_call(&p, t, 5, [=](Ctx *c, Tensor *x) {
        embedding_forward(c, x[3], x[0], x[1], x[2], Dropout{});
        embedding_forward(c, x[4], x[0], x[1], Tensor{}, Dropout{});
      });
      op_expect_same_bits(block_where("embedding", &p, dtype), t[4], t[3]);
      block_done(&p);
    }
    op_free_all();
  }
}

// ================================================================================================ attention
// qkv with k and v of each head of q: what heads that share k and v compute, head by head.
static Tensor block_expanded(Tensor qkv, int64_t H, int64_t KV, int64_t hs) {
  const int64_t rows = qkv.shape[0] * qkv.shape[1], ld = (H + 2 * KV) * hs, C = H * hs;
  Tensor all = op_tensor(qkv.dtype, qkv.shape[0], qkv.shape[1], 3 * C);
  for (int64_t i = 0; i < rows * 3 * C; i++) {
    const int64_t c = i % (3 * C), third = c / C, head = c % C / hs, d = c % hs;
    const int64_t from = third ? C + (third - 1) * KV * hs + head / (H / KV) * hs + d : c;
    op_put(all, i, op_get(qkv, i / (3 * C) * ld + from));
  }
  return all;
}
struct BlockHeads { int64_t B, T, H, KV, hs; float p; int64_t window; };
static void block_check_heads(Dtype dtype, BlockHeads k) {
  const int64_t C = k.H * k.hs, ld = C + 2 * k.KV * k.hs, group = k.H / k.KV, rows = k.B * k.T;
  const AttentionCase all = {k.B, k.T, k.H, k.hs, k.p, k.window};
  const Dropout drop = attention_test_drop(&all);
  Tensor qkv = op_random_tensor(7, 1.0, dtype, k.B, k.T, ld), dout = op_random_tensor(8, 1.0, dtype, k.B, k.T, C);
  Tensor expanded = block_expanded(qkv, k.H, k.KV, k.hs), first = {};
  AttentionReference r = attention_reference(all);
  for (int64_t i = 0; i < numel(expanded); i++) r.qkv[i] = op_get(expanded, i);
  for (int64_t i = 0; i < numel(dout); i++) r.dout[i] = op_get(dout, i);
  attention_reference_forward(&r);
  Tensor out = op_tensor(dtype, k.B, k.T, C), lse = op_tensor(F32, k.B, k.H, k.T);
  op_set(out, r.out), op_set(lse, r.lse);        // backward starts from the reference's, as stored
  for (int64_t i = 0; i < numel(out); i++) r.out[i] = op_get(out, i);
  for (int64_t i = 0; i < numel(lse); i++) r.lse[i] = op_get(lse, i);
  attention_reference_backward(&r);
  double *want = op_zeros(rows * 2 * k.KV * k.hs);               // dk, dv: sums over the heads of a group
  for (int64_t i = 0; i < rows * 2 * C; i++) {
    const int64_t c = i % (2 * C), head = c % C / k.hs;
    want[i / (2 * C) * 2 * k.KV * k.hs + c / C * k.KV * k.hs + head / group * k.hs + c % k.hs] +=
        r.dqkv[i / (2 * C) * 3 * C + C + c];
  }
  BlockPlace p;
  WorkspaceQuery q = {dtype, dtype, k.B, k.T, C, k.H, 64, 16};
  q.n_kv_head = k.KV;
  for (int i = 0; block_place(i, q, &p); i++) {
    StepState s = op_state;
    s.in.step = drop.step;
    s.loss_scale = s.grad_scale = s.bias_correction1 = s.bias_correction2 = 1.0f;
    if (p.gpu) device_set_state(&p.c, s);
    else op_state.in.step = drop.step;
    Tensor t[] = {qkv, expanded, dout, out, lse, op_tensor(dtype, k.B, k.T, C), op_tensor(F32, k.B, k.H, k.T),
                  op_tensor(dtype, k.B, k.T, C), op_tensor(F32, k.B, k.H, k.T), op_tensor(dtype, k.B, k.T, ld),
                  op_tensor(dtype, k.B, k.T, 3 * C), op_tensor(I32, k.B, k.T),
                  op_tensor(F32, attention_sum_runs(k.B, k.T), ld)};
    const bool sums = p.gpu && attention_makes_sums(dtype, k.hs);
    for (int64_t j = 0; j < rows; j++) ((int32_t *)t[11].data)[j] = (int32_t)max64(0, j % k.T - k.window + 1);
    const int H = (int)k.H;
    block_call(&p, t, 13, [=](Ctx *c, Tensor *x) {
      const Tensor starts = k.window ? x[11] : Tensor{};
      attention_forward(c, x[5], x[6], x[0], H, drop, starts);
      attention_forward(c, x[7], x[8], x[1], H, drop, starts);
      attention_backward(c, x[9], x[2], x[0], x[3], x[4], H, drop, starts, sums ? x[12] : Tensor{});
      attention_backward(c, x[10], x[2], x[1], x[3], x[4], H, drop, starts);
    });
    if (sums) attention_expect_sums(t[9], t[12]);
    op_expect_same_bits(block_where("attention with shared heads, out", &p, dtype), t[5], t[7]);
    op_expect_same_bits(block_where("attention with shared heads, lse", &p, dtype), t[6], t[8]);
    Tensor dq[2] = {op_tensor(dtype, rows, C), op_tensor(dtype, rows, C)},
           dkv = op_tensor(dtype, rows, 2 * k.KV * k.hs);
    for (int64_t j = 0; j < rows * C; j++) {
      op_put(dq[0], j, op_get(t[9], j / C * ld + j % C));
      op_put(dq[1], j, op_get(t[10], j / C * 3 * C + j % C));
    }
    op_expect_same_bits(block_where("attention with shared heads, dq", &p, dtype), dq[0], dq[1]);
    for (int64_t j = 0; j < numel(dkv); j++)
      op_put(dkv, j, op_get(t[9], j / (2 * k.KV * k.hs) * ld + C + j % (2 * k.KV * k.hs)));
    // As attention_expect_backward, with group T additions of terms whose sum is group times one head's; on tensor
    // cores and in bf16 arithmetic p and ds are rounded to 16 bits first.
    const bool halves = dtype != F32 && (p.gpu || attention_in_bf16(p.c.ops, dtype));
    const double rounding = halves ? (dtype == BF16 ? 0x1p15 : 0x1p12) + 49 : 0;
    op_expect_close(block_where("attention with shared heads, dk and dv", &p, dtype), dkv, want,
                    attention_exponent_roundings(&r) + (double)(group * k.T + k.hs) + 16 + rounding,
                    (double)group * fmax(r.bound_dv, r.bound_dqk));
    if (!p.gpu && dtype == F32 && !first.data) first = t[9];
    if (!p.gpu && dtype == F32) op_expect_same_bits(block_where("dqkv", &p, dtype), t[9], first);
    block_done(&p);
  }
  op_free_all();
}
TEST(block_heads_share_k_and_v,
     "attention with 1, 2, 3 KV heads for several of q, with and without a window: out, lse and dq have the "
     "bits of k and v copied to every head; dk and dv are their sums, within rounding of fp64") {
  static const BlockHeads cases[] = {{2, 37, 4, 2, 8, 0.0f, 0}, {1, 70, 3, 1, 24, 0.2f, 9}, {1, 40, 6, 3, 5, 0.0f, 0},
                                     {1, 300, 2, 1, 64, 0.0f, 0}, {2, 33, 4, 1, 80, 0.1f, 0},
                                     {1, 150, 4, 2, 128, 0.0f, 40}, {1, 70, 4, 2, 256, 0.1f, 40}};
  for (BlockHeads k : cases) for (Dtype dtype : {F32, BF16, F16}) block_check_heads(dtype, k);
  device_on_hopper(true);
  static const BlockHeads hopper[] = {{1, 140, 4, 2, 64, 0.1f, 0}, {1, 130, 3, 1, 128, 0.0f, 0},
                                      {1, 260, 4, 2, 128, 0.0f, 70}, {1, 200, 3, 1, 128, 0.1f, 33}};
  for (BlockHeads k : hopper)
    for (Dtype dtype : {BF16, F16}) block_check_heads(dtype, k);
  device_on_hopper(false);
}

TEST(lora_ops_equal_their_formulas,
     "B spread and collected, and dropout there and back, by element; the same bits on each instruction set, with 1 "
     "and 3 threads, and on emulated CUDA") {
  const LoraParts parts = {3, {5, 4, 7}, {0, -1, 1}, 3, 1.25f};
  const int64_t rows = 16, columns = 6, with = 12;
  for (Dtype dtype : {F32, BF16}) {
    Tensor b = op_random_tensor(1, 1.0, dtype, with, 3), dout = op_random_tensor(2, 1.0, F32, rows, columns);
    Tensor in = op_random_tensor(3, 1.0, dtype, 2, 3, 21), before = op_random_tensor(4, 1.0, F32, with, 3), first[3];
    BlockPlace p;
    for (int i = 0; block_place(i, {dtype, F32, 2, 3, 21, 1, 1, 1}, &p); i++) {
      Tensor t[] = {b, dout, in, op_tensor(dtype, rows, columns), op_tensor(F32, with, 3), op_tensor(dtype, 2, 3, 21)};
      memcpy(t[4].data, before.data, (size_t)numel(before) * 4);
      memset(t[5].data, 0, (size_t)numel(in) * dtype_bytes(dtype));
      const Dropout drop = {0.4f, 7, 0, 9, 11};
      if (p.gpu) device_set_state(&p.c, StepState{});
      block_call(&p, t, 6, [=](Ctx *c, Tensor *d) {
        lora_spread(c, d[3], d[0], parts);
        lora_collect(c, d[4], d[1], parts, ADD);
        dropout(c, d[5], d[2], Dropout{}, OVERWRITE);
        dropout(c, d[5], d[2], drop, ADD);
      });
      for (int64_t n = 0, row = 0; n < rows && !i; n++) {
        const int adapter = n < 5 ? 0 : n < 9 ? -1 : 1;
        for (int64_t j = 0; j < columns; j++) {
          const bool own = adapter >= 0 && j / 3 == adapter;
          const double up = own ? 1.25 * op_get(b, row * 3 + j % 3) : 0;
          EXPECT(fabs(op_get(t[3], n * columns + j) - up) <= 0.01, "spread %lld", (long long)n);
          const double sum = own ? op_get(before, row * 3 + j % 3) + 1.25 * op_get(dout, n * columns + j) : 0;
          EXPECT(!own || fabs(op_get(t[4], row * 3 + j % 3) - sum) <= 1e-6, "collected %lld", (long long)n);
        }
        row += adapter >= 0;
      }
      for (int64_t e = 0; e < numel(in) && !i; e++) {
        const double x = op_get(in, e), scale = (double)dropout_scale(&drop, 11 + e / 63, e % 63);
        EXPECT(fabs(op_get(t[5], e) - x * (1 + scale)) <= 0.03, "dropout of element %lld", (long long)e);
      }
      for (int k = 0; k < 3; k++) {
        if (!i) first[k] = t[3 + k];
        else op_expect_same_bits(block_where("lora", &p, dtype), t[3 + k], first[k]);
      }
      block_done(&p);
    }
    op_free_all();
  }
}
