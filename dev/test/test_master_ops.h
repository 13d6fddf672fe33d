// test_master_ops.h: bf16 parameters and the low halves of their masters together are fp32 masters. The pair gives back
// its fp32 number, for every pattern; optimizers have the same results on it as a plain loop on fp32 masters, on the
// CPU and emulated CUDA. Whole runs are in test_master.h.
#pragma once

static inline uint32_t master_bits_of(Tensor fp32, int64_t i) { return ((uint32_t *)fp32.data)[i]; }
// Whether got is the expected result for u: u itself, or for a NaN the quiet NaN with its upper half.
static inline bool master_comes_back(uint32_t u, uint32_t got) {
  const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
  return got == (nan ? (u & 0xffff0000u) | 0x400000u : u);
}
// Every upper half with lower halves on both sides of every border, and four random ones.
enum { MASTER_LOWS = 16, MASTER_PATTERNS = 65536 * MASTER_LOWS };
static inline Tensor master_patterns() {
  static const uint16_t lows[] = {0, 1, 2, 0x3fff, 0x7ffe, 0x7fff, 0x8000, 0x8001, 0x8002, 0xc000, 0xfffe, 0xffff};
  Tensor all = op_tensor(F32, MASTER_PATTERNS);
  uint64_t seed = 11;
  for (uint32_t i = 0; i < MASTER_PATTERNS; i++) {
    const uint32_t k = i % MASTER_LOWS, low = k < 12 ? lows[k] : (uint16_t)op_random(&seed);
    ((uint32_t *)all.data)[i] = i / MASTER_LOWS << 16 | low;
  }
  return all;
}

TEST(master_halves_are_the_master,
     "the nearest bf16, ties away from zero, and the lower 16 bits make every fp32 again: every upper half, "
     "subnormals, both zeros, numbers that round to infinity; a NaN stays one; zeros are zero bytes; on every table, "
     "at any length") {
  Tensor all = master_patterns();
  for (int64_t i = 0; i < MASTER_PATTERNS; i++) {
    const uint32_t u = master_bits_of(all, i);
    const float x = bits_f32(u);
    bf16 param;
    round_param(&param, x);
    const low16 low = master_low(x);
    EXPECT(param.bits == master_nearest(u), "%08x is rounded to %04x, not to %04x", u, param.bits, master_nearest(u));
    EXPECT(master_comes_back(u, f32_bits(master_join(param, low))), "%08x comes back as %08x", u,
           f32_bits(master_join(param, low)));
    if (x == 0) EXPECT(!low.bits && !(param.bits & 0x7fff), "a zero is %04x and %04x", param.bits, low.bits);
  }
  for (OpRun r = op_run_first(); r.ops; r = op_run_next(r)) {
    Ctx c = op_ctx(r.ops, r.threads, {BF16, F32, 1, 1, 1, 1, 1, 1});
    Tensor param = op_tensor(BF16, MASTER_PATTERNS), low = op_tensor(LOW16, MASTER_PATTERNS), none = {};
    Tensor alone = op_tensor(BF16, MASTER_PATTERNS), back = op_tensor(F32, MASTER_PATTERNS);
    uint64_t seed = 12;
    for (int64_t at = 0, n; at < MASTER_PATTERNS; at += n) {       // short ranges anywhere, then long ones
      n = min64(at < 4096 ? 1 + op_below(&seed, 40) : 100001, MASTER_PATTERNS - at);
      const Tensor in = tensor_of((float *)all.data + at, F32, n), p = tensor_of((bf16 *)param.data + at, BF16, n);
      const Tensor l = tensor_of((low16 *)low.data + at, LOW16, n);
      param_from_master(&c, p, l, in);
      param_from_master(&c, tensor_of((bf16 *)alone.data + at, BF16, n), none, in);
      master_from_param(&c, tensor_of((float *)back.data + at, F32, n), p, l);
    }
    int64_t bad = -1;
    for (int64_t i = 0; i < MASTER_PATTERNS && bad < 0; i++) {
      const uint32_t u = master_bits_of(all, i);
      if (((bf16 *)param.data)[i].bits != master_nearest(u) || !master_comes_back(u, master_bits_of(back, i))) bad = i;
    }
    EXPECT(bad < 0, "%s: %08x becomes %04x and comes back as %08x", op_where("halves", r, BF16),
           master_bits_of(all, max64(bad, 0)), ((bf16 *)param.data)[max64(bad, 0)].bits,
           master_bits_of(back, max64(bad, 0)));
    op_expect_same_bits(op_where("without low halves", r, BF16), alone, param);
    for (Dtype dtype : {F32, F16}) {             // ties matter only if the other half is kept
      Tensor want = op_tensor(dtype, 65536), got = op_tensor(dtype, 65536);
      const Tensor in = tensor_of((float *)all.data + MASTER_PATTERNS / 4, F32, 65536);
      convert(&c, want, in);
      param_from_master(&c, got, none, in);
      op_expect_same_bits(op_where("as convert", r, dtype), got, want);
    }
    op_check_guards();
  }
  op_free_all();
}

TEST(master_pairs_that_cannot_be, "low halves beside a parameter that is not bf16, or beside none, end the program") {
  static Tensor t[3];
  static const AdamwArgs a = {};
  static Ctx c = op_ctx(op_table(0), 1, {BF16, F32, 1, 1, 1, 1, 1, 1});
  t[0] = op_tensor(LOW16, 4), t[1] = op_tensor(F16, 4), t[2] = op_tensor(F32, 4);
  matmul_expect_death("low halves of masters beside fp16 parameters", [] {
    adamw_update(&c, t[1], t[0], t[2], t[2], t[2], a);
  });
  matmul_expect_death("low halves of masters beside no parameters", [] {
    sgd_update(&c, Tensor{}, t[0], Tensor{}, t[2], SgdArgs{});
  });
  matmul_expect_death("master is fp16", [] { adamw_update(&c, Tensor{}, t[1], t[2], t[2], t[2], a); });
  matmul_expect_death("beside fp32 parameters", [] { param_from_master(&c, t[2], t[0], t[2]); });
  matmul_expect_death("needs low16", [] { param_from_master(&c, op_tensor(BF16, 4), t[2], t[2]); });
  matmul_expect_death("4 parameters of 3 masters", [] {
    adamw_update(&c, op_tensor(BF16, 4), op_tensor(LOW16, 3), t[2], t[2], t[2], a);
  });
  op_free_all();
}
// kind 0: AdamW; 1: SGD; 2: SGD with momentum. The ops' formulas in a plain loop over fp32 masters.
static const AdamwArgs master_adamw = {0.9f, 0.95f, 1e-8f, 0.1f};
static inline void master_plain(int kind, float *p, float *m, float *v, const float *grad, int64_t n) {
  const AdamwFactors k = adamw_factors(&op_state, master_adamw);
  for (int64_t i = 0; i < n && kind % 3 == 0; i++) {
    const float g = grad[i] * k.grad_scale;
    m[i] = fmaf(g - m[i], k.one_minus_beta1, m[i]);
    v[i] = fmaf(g * g, k.one_minus_beta2, v[i] * k.beta2);
    p[i] = fmaf(m[i] / fmaf(sqrtf(v[i]), k.root2, k.eps), k.step, p[i] * k.decay);
  }
  for (int64_t i = 0; i < n && kind % 3; i++) {
    float g = fmaf(p[i], 0.01f, grad[i] * op_state.grad_scale);
    if (kind == 2) m[i] = g = fmaf(m[i], 0.9f, g);
    p[i] = fmaf(g, -op_state.in.lr, p[i]);
  }
}
static inline void master_update(Ctx *c, int kind, Tensor param, Tensor low, Tensor m, Tensor v, Tensor grad) {
  if (kind % 3 == 0) adamw_update(c, param, low, m, v, grad, master_adamw);
  else sgd_update(c, param, low, kind == 2 ? m : Tensor{}, grad, SgdArgs{kind == 2 ? 0.9f : 0.0f, 0.01f});
}
// Ordinary weights, and among them numbers that rounding could get wrong.
static inline Tensor master_weights(int64_t n) {
  static const uint32_t odd[] = {0x80000000u, 0x3f808000u, 0xbf818000u, 0x00008000u, 0x80017fffu, 0x7f7fffffu,
                                 0xff7f8000u, 0x7f800000u, 0x7fffffffu, 0xffc00001u, 0x00000001u, 0x3f807fffu};
  Tensor t = op_random_tensor(1, 0.1, F32, n);
  for (int64_t i = 7; i < n; i += 29) ((uint32_t *)t.data)[i] = odd[i / 29 % 12];
  return t;
}
// The same numbers; NaNs may differ in their lower halves.
static inline void master_expect_same(const char *what, Tensor a, Tensor b) {
  int64_t i = 0, n = numel(a);
  while (i < n && ops_same_number(a, b, i)) i++;
  EXPECT(i == n, "%s: element %lld differs: %.9g and %.9g", what, (long long)i, op_get(a, min64(i, n - 1)),
         op_get(b, min64(i, n - 1)));
}
static inline void master_check_optimizer(OpRun r, int kind, int64_t n) {
  Ctx c = op_ctx(r.ops, r.threads, {BF16, F32, 1, 1, 1, 1, 1, 1});
  Tensor plain = master_weights(n), whole = op_copy(plain), param = op_tensor(BF16, n), low = op_tensor(LOW16, n);
  Tensor back = op_tensor(F32, n), rounded = op_tensor(BF16, n), m[3], v[3];
  for (Tensor *t : {m, v}) for (int i = 0; i < 3; i++) memset((t[i] = op_tensor(F32, n)).data, 0, (size_t)n * 4);
  param_from_master(&c, param, low, plain);
  for (int step = 1; step <= 5; step++) {        // the third is skipped
    Tensor grad = op_random_tensor((uint64_t)step, 1e-3, F32, n);
    ops_state_set(0.01f / (float)step, 0.7f, (float)(1 - pow(0.9f, step)), (float)(1 - pow(0.95f, step)));
    op_state.skip = step == 3;
    float *w = (float *)plain.data, *g = (float *)grad.data;
    Tensor given = kind == 3 ? op_tensor(BF16, n) : grad;        // to the halves; kind 3: AdamW, gradients in bf16
    for (int64_t i = 0; i < n && kind == 3; i++) op_put(given, i, g[i]), g[i] = (float)op_get(given, i);
    if (!op_state.skip) master_plain(kind, w, (float *)m[0].data, (float *)v[0].data, g, n);
    master_update(&c, kind, rounded, whole, m[1], v[1], grad);
    for (int64_t at = 0, k; at < n; at += k) {   // in parts that start anywhere
      k = min64(at % 2 ? 4111 : 1237, n - at);
      const Tensor part[] = {param, low, m[2], v[2], given};
      Tensor s[5];
      for (int i = 0; i < 5; i++)
        s[i] = tensor_of((char *)part[i].data + (size_t)at * dtype_bytes(part[i].dtype), part[i].dtype, k);
      master_update(&c, kind, s[0], s[1], s[2], s[3], s[4]);
    }
    master_from_param(&c, back, param, low);
    int64_t bad = -1;
    for (int64_t i = 0; i < n && bad < 0; i++) {
      const uint32_t u = master_bits_of(plain, i), nearest = master_nearest(u);
      const bool same = master_comes_back(u, master_bits_of(back, i)) && ((bf16 *)param.data)[i].bits == nearest;
      if (!same || (step != 3 && ((bf16 *)rounded.data)[i].bits != nearest)) bad = i;
    }
    EXPECT(bad < 0, "%s, kind %d, step %d: master %lld of %lld is %08x and its parameter %04x, the plain loop's %08x",
           op_where("halves", r, BF16), kind, step, (long long)bad, (long long)n, master_bits_of(back, max64(bad, 0)),
           ((bf16 *)param.data)[max64(bad, 0)].bits, master_bits_of(plain, max64(bad, 0)));
    for (int i = 1; i < 3; i++) {
      master_expect_same(op_where("m", r, BF16), m[i], m[0]);
      master_expect_same(op_where("v", r, BF16), v[i], v[0]);
    }
  }
  op_free_all();
}

TEST(master_halves_are_updated_as_masters,
     "AdamW and SGD on bf16 parameters and low halves: after each step the masters, parameters and moments of a plain "
     "loop over fp32, and the parameters that fp32 masters get, on every table, wherever a range starts; AdamW's "
     "gradients in bf16, too") {
  for (OpRun r = op_run_first(); r.ops; r = op_run_next(r))
    for (int kind = 0; kind < 4; kind++)
      for (int64_t n : {1, 15, 1000, 20011}) master_check_optimizer(r, kind, n);
}
static inline void master_check_device(const Ops *ops, int64_t first, int64_t n, int shift) {
  CudaOps o = cuda_ops_open(ops, cuda_ops_query(BF16, 1, 1, 1), cuda_ops_state(0));
  const Tensor all = master_patterns(), in = op_copy(tensor_of((float *)all.data + first, F32, n)), none = {};
  Tensor param = op_tensor(BF16, n), low = op_tensor(LOW16, n), back = op_tensor(F32, n);
  Tensor d_in = device_upload(&o.gpu, in), d_param = device_upload(&o.gpu, param), d_low = device_upload(&o.gpu, low);
  Tensor d_alone = device_upload(&o.gpu, param), d_back = device_upload(&o.gpu, back);
  for (int device = 0; device < 2; device++) {
    Ctx *c = device ? &o.gpu : &o.cpu;
    const Tensor p = op_shifted(device ? d_param : param, shift), l = op_shifted(device ? d_low : low, shift);
    param_from_master(c, p, l, op_shifted(device ? d_in : in, shift));
    if (device) param_from_master(c, op_shifted(d_alone, shift), none, op_shifted(d_in, shift));
    master_from_param(c, op_shifted(device ? d_back : back, shift), p, l);
  }
  device_expect_same_bits("param_from_master", &o.gpu, d_param, param);
  device_expect_same_bits("param_from_master, low halves", &o.gpu, d_low, low);
  device_expect_same_bits("param_from_master without low halves", &o.gpu, d_alone, param);
  device_expect_same_bits("master_from_param", &o.gpu, d_back, back);
  for (Dtype dtype : {F32, F16}) {
    Tensor want = op_tensor(dtype, n), d_got = device_upload(&o.gpu, want);
    param_from_master(&o.cpu, op_shifted(want, shift), none, op_shifted(in, shift));
    param_from_master(&o.gpu, op_shifted(d_got, shift), none, op_shifted(d_in, shift));
    Tensor got = device_download(&o.gpu, d_got);
    int64_t bad = -1;
    for (int64_t i = shift; i < n && bad < 0; i++) if (!ops_same_number(got, want, i)) bad = i;
    EXPECT(bad < 0, "%s: %s parameter %lld is %.9g, the CPU's %.9g", ops->name, dtype_name(dtype), (long long)bad,
           op_get(got, max64(bad, 0)), op_get(want, max64(bad, 0)));
  }
  cuda_ops_close(&o);
}

TEST(cuda_master_halves, "CUDA param_from_master and master_from_param have the CPU's bits, aligned or not") {
  // About zero and subnormals; about one; about infinity and NaN; the same below zero.
  for (int i = 0; const Ops *ops = device_table(i); i++)
    for (int64_t upper : {0x0000, 0x3f00, 0x7f00, 0x8000, 0xff00})
      for (int shift = 0; shift < 2; shift++)
        master_check_device(ops, upper * MASTER_LOWS, 256 * MASTER_LOWS - 3 * shift, shift);
}
