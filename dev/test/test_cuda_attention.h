// test_cuda_attention.h: attention_forward and attention_backward on a device (kernels/attention_cuda.cuh) against the
// fp64 formula of test_attention.h, which is included before; and their bits, which are the same in every run and every
// batch.
//
// Allowances beyond the roundings that test_attention.h counts:
//   - on tensor cores, the probabilities of a tile (at most about 1) and ds are rounded to the tensors' type before
//     they weight the rows of a sum: u of each term, so u of the sum of absolute terms; an fp16 below 2^-14 has an
//     error of half of 2^-24 instead, times the sum of the rows' absolute values. All dtypes but fp32 get this,
//     whichever kernel runs.
//   - tensor cores truncate, so an addition counts twice (Fasi, Higham, Mikaitis, Pranesh 2021).
//   - ex2.approx: relative error 2^-22, counted as 4 roundings (PTX ISA); it replaces test_attention.h's exponential.

// Every instance of the kernels and the sizes between them, each with ends and odd ends of tiles.
static const AttentionCase cuda_attention_cases[] = {
  {2, 1, 2, 16, 0.0f},  {2, 5, 3, 8, 0.25f},   {1, 63, 2, 24, 0.0f},  {1, 64, 1, 32, 0.1f},   {2, 65, 1, 40, 0.0f},
  {1, 130, 2, 64, 0.1f}, {1, 200, 1, 64, 0.0f}, {1, 130, 1, 80, 0.0f}, {1, 65, 1, 96, 0.2f},   {1, 130, 1, 96, 0.0f},
  {1, 65, 2, 128, 0.1f}, {1, 131, 1, 128, 0.0f}, {1, 63, 1, 136, 0.2f}, {1, 65, 2, 20, 0.1f},  {2, 66, 1, 7, 0.0f},
  {1, 130, 1, 256, 0.1f}, {1, 33, 1, 264, 0.0f}};
static const int cuda_attention_case_count = (int)(sizeof cuda_attention_cases / sizeof cuda_attention_cases[0]);
// The same for Hopper's, which take sequences of at least 128: one and several tiles, with ends of one row and of all
// but one; blocks of which a warpgroup has no row.
static const AttentionCase hopper_attention_cases[] = {
  {2, 128, 1, 64, 0.0f}, {1, 257, 2, 64, 0.2f}, {1, 193, 1, 40, 0.0f}, {1, 130, 2, 48, 0.1f}, {1, 191, 1, 128, 0.0f},
  {1, 260, 1, 128, 0.1f}, {1, 129, 1, 72, 0.0f}};

static Ctx cuda_attention_ctx(const Ops *ops, const AttentionCase *k, Dtype dtype) {
  Ctx c = device_ctx(ops, WorkspaceQuery{dtype, dtype, k->B, k->T, k->H * k->hs, k->H, 64, 16});
  StepState s = device_state(&c);
  s.in.step = attention_test_drop(k).step;
  device_set_state(&c, s);
  return c;
}
// Dropout as the trainer passes it: the caller does not set the step.
static Dropout cuda_attention_drop(const AttentionCase *k) {
  Dropout drop = attention_test_drop(k);
  drop.step = 0xdeadbeefu;
  return drop;
}

// Roundings of 2^-24 that equal rounding P or ds once, each up to `most`, over T terms of rows up to `largest`, in
// units of `scale`.
static double cuda_attention_packing(Dtype dtype, double T, double most, double largest, double scale) {
  if (dtype == F32) return 0.0;
  const double below_normal = dtype == F16 ? 0x1p-25 : 0.0;
  return (op_unit_roundoff(dtype) + below_normal * T * most * largest / scale) * 0x1p24;
}
static double cuda_attention_largest(const double *x, int64_t n) {
  double most = 0.0;
  for (int64_t i = 0; i < n; i++) most = fmax(most, fabs(x[i]));
  return most;
}

static void cuda_attention_expect_forward(Ctx *c, const AttentionReference *r, Tensor out, Tensor lse) {
  char what[128];
  const AttentionCase k = r->k;
  const double e = 2.0 * attention_exponent_roundings(r), T = 2.0 * (double)k.T;
  const double largest = cuda_attention_largest(r->qkv, 3 * k.B * k.T * k.H * k.hs) / (1.0 - (double)k.p);
  const double packing = cuda_attention_packing(out.dtype, (double)k.T, 1.0, largest, r->bound_out);
  snprintf(what, sizeof what, "B %d T %d H %d hs %d p %g: out", (int)k.B, (int)k.T, (int)k.H, (int)k.hs, (double)k.p);
  device_expect_close(what, c, out, r->out, packing + 2.0 * (e + T) + 6.0 * ((double)k.T / 32.0 + 1.0) + 6.0,
                      r->bound_out);
  strcpy(strrchr(what, ':'), ": lse");
  device_expect_close(what, c, lse, r->lse, e + T + 6.0 * ((double)k.T / 32.0 + 1.0) + 4.0, 1.0);
}
static void cuda_attention_expect_backward(Ctx *c, const AttentionReference *r, Tensor device_dqkv) {
  const AttentionCase k = r->k;
  const int64_t C = k.H * k.hs, rows = k.B * k.T;
  const double e = 2.0 * attention_exponent_roundings(r), T = 2.0 * (double)k.T, hs = 2.0 * (double)k.hs;
  const double weight = 1.0 / (1.0 - (double)k.p), scale = 1.0 / sqrt((double)k.hs);
  const double most_dout = cuda_attention_largest(r->dout, rows * C);
  const double most_qkv = cuda_attention_largest(r->qkv, 3 * rows * C);
  static const char *const names[] = {"dq", "dk", "dv"};
  const Tensor dqkv = device_download(c, device_dqkv);
  for (int third = 0; third < 3; third++) {
    Tensor got = op_tensor(dqkv.dtype, rows, C);
    double *want = op_zeros(rows * C);
    for (int64_t i = 0; i < rows * C; i++) {
      op_put(got, i, op_get(dqkv, i / C * 3 * C + third * C + i % C));
      want[i] = r->dqkv[i / C * 3 * C + third * C + i % C];
    }
    char what[160];
    snprintf(what, sizeof what, "%s %s B %d T %d H %d hs %d p %g: %s", c->ops->name, dtype_name(got.dtype), (int)k.B,
             (int)k.T, (int)k.H, (int)k.hs, (double)k.p, names[third]);
    const double bound = third == 2 ? r->bound_dv : r->bound_dqk;
    const double packing = third == 2 ? cuda_attention_packing(got.dtype, (double)k.T, weight, most_dout, bound)
                                      : cuda_attention_packing(got.dtype, (double)k.T, scale, most_qkv, bound);
    op_expect_close(what, got, want, packing + e + T + (third == 2 ? 3.0 : hs + 8.0), bound);
  }
}
// dqkv_sum of these shapes; absent where the kernels make none.
static Tensor cuda_attention_sums(Ctx *c, const AttentionCase *k, Dtype dtype) {
  if (!attention_makes_sums(dtype, k->hs)) return Tensor{};
  return device_tensor(c, F32, attention_sum_runs(k->B, k->T), 3 * k->H * k->hs);
}
// Forward, then backward of the reference's out and lse as stored, so that each is tested alone.
static void cuda_attention_case(const Ops *ops, AttentionCase k, Dtype dtype) {
  AttentionTensors t = attention_tensors(&k, dtype);
  AttentionReference r = attention_reference(k);
  for (int64_t j = 0; j < numel(t.qkv); j++) r.qkv[j] = op_get(t.qkv, j);
  for (int64_t j = 0; j < numel(t.dout); j++) r.dout[j] = op_get(t.dout, j);
  attention_reference_forward(&r);
  Ctx c = cuda_attention_ctx(ops, &k, dtype);
  Tensor qkv = device_upload(&c, t.qkv), dout = device_upload(&c, t.dout);
  Tensor out = device_tensor(&c, dtype, k.B, k.T, k.H * k.hs), lse = device_tensor(&c, F32, k.B, k.H, k.T);
  Tensor dqkv = device_tensor(&c, dtype, k.B, k.T, 3 * k.H * k.hs);
  attention_forward(&c, out, lse, qkv, (int)k.H, cuda_attention_drop(&k));
  cuda_attention_expect_forward(&c, &r, out, lse);
  op_set(t.out, r.out);
  op_set(t.lse, r.lse);
  for (int64_t j = 0; j < numel(t.out); j++) r.out[j] = op_get(t.out, j);
  for (int64_t j = 0; j < numel(t.lse); j++) r.lse[j] = op_get(t.lse, j);
  attention_reference_backward(&r);
  device_write(&c, out, t.out);
  device_write(&c, lse, t.lse);
  Tensor sums = cuda_attention_sums(&c, &k, dtype);
  attention_backward(&c, dqkv, dout, qkv, out, lse, (int)k.H, cuda_attention_drop(&k), Tensor{}, sums);
  cuda_attention_expect_backward(&c, &r, dqkv);
  if (sums.data) attention_expect_sums(device_download(&c, dqkv), device_download(&c, sums));
  device_expect_same_bits("qkv, which is only read", &c, qkv, t.qkv);
  device_done(&c);
  op_free_all();
}

static void cuda_attention_test(Dtype dtype) {
  for (int table = 0; const Ops *ops = device_table(table); table++)
    for (int i = 0; i < cuda_attention_case_count; i++) cuda_attention_case(ops, cuda_attention_cases[i], dtype);
}
TEST(cuda_attention_fp32, "fp32 attention on a device equals the fp64 formula within rounding") {
  cuda_attention_test(F32);
}
TEST(cuda_attention_bf16, "bf16 attention on a device equals the fp64 formula within rounding") {
  cuda_attention_test(BF16);
}
TEST(cuda_attention_fp16, "fp16 attention on a device equals the fp64 formula within rounding") {
  cuda_attention_test(F16);
}
TEST(cuda_attention_tiles,
     "attention where an SM has 164 KiB of shared memory equals the fp64 formula, and so does it where a "
     "block may have 49: head sizes to 80 then leave room for a second block") {
  if (!&ops_cuda_emulated) SKIP("this test program was linked without dev/cuda_emu");
  for (size_t limit : {163 << 10, 49 << 10}) {
    emu_set_shared_limit(limit);
    for (const AttentionCase &k : cuda_attention_cases)
      if (k.hs % 8 == 0 && k.hs >= 40 && k.hs <= (limit > 99 << 10 ? 96 : 80))
        for (Dtype dtype : {BF16, F16}) cuda_attention_case(&ops_cuda_emulated, k, dtype);
  }
  emu_set_shared_limit(99 << 10);
}
TEST(cuda_attention_all, "every head size, length and dtype: attention on a device equals the fp64 formula") {
  for (int table = 0; const Ops *ops = device_table(table); table++)
    for (int64_t hs : {1, 7, 16, 24, 32, 40, 64, 72, 80, 96, 100, 120, 128, 136, 200})
      for (int64_t T : {1, 5, 63, 64, 65, 127, 130, 200, 257})
        for (float p : {0.0f, 0.15f})
          for (Dtype dtype : {F32, BF16, F16})
            cuda_attention_case(ops, AttentionCase{1 + T % 2, T, 1 + hs % 2, hs, p}, dtype);
}

// ---- bits ----------------------------------------------------------------------------------------------------------
struct CudaAttentionRun { Tensor out, lse, dqkv, sums; };              // host tensors
static CudaAttentionRun cuda_attention_run(const Ops *ops, const AttentionCase *k, Tensor qkv_host, Tensor dout_host,
                                           Dropout drop) {
  const Dtype dtype = qkv_host.dtype;
  Ctx c = cuda_attention_ctx(ops, k, dtype);
  Tensor qkv = device_upload(&c, qkv_host), dout = device_upload(&c, dout_host);
  Tensor out = device_tensor(&c, dtype, k->B, k->T, k->H * k->hs), lse = device_tensor(&c, F32, k->B, k->H, k->T);
  Tensor dqkv = device_tensor(&c, dtype, k->B, k->T, 3 * k->H * k->hs);
  attention_forward(&c, out, lse, qkv, (int)k->H, drop);
  Tensor sums = cuda_attention_sums(&c, k, dtype);
  attention_backward(&c, dqkv, dout, qkv, out, lse, (int)k->H, drop, Tensor{}, sums);
  CudaAttentionRun r = {device_download(&c, out), device_download(&c, lse), device_download(&c, dqkv), {}};
  if (sums.data) r.sums = reshaped(device_download(&c, sums), k->B, sums.shape[0] / k->B, sums.shape[1]);
  device_write(&c, out, dout_host);              // a backward pass that kept neither recomputes both
  attention_forward(&c, out, lse, qkv, (int)k->H, drop);
  device_expect_same_bits("out again", &c, out, r.out);
  device_expect_same_bits("lse again", &c, lse, r.lse);
  device_done(&c);
  return r;
}
// Sequence b of a tensor over sequences.
static Tensor cuda_attention_sequence(Tensor t, int64_t b) {
  Tensor r = t;
  r.shape[0] = 1;
  r.data = (char *)t.data + (size_t)(b * numel(r)) * dtype_bytes(t.dtype);
  return r;
}
static void attention_has_bits() {
  const AttentionCase cases[] = {
      {3, 131, 2, 64, 0.0f}, {2, 70, 2, 32, 0.3f}, {2, 67, 2, 80, 0.2f}, {2, 67, 1, 12, 0.2f},
      {2, 150, 1, 128, 0.2f}};
  for (int table = 0; const Ops *ops = device_table(table); table++)
    for (AttentionCase k : cases)
      for (Dtype dtype : {F32, BF16}) {
        const AttentionTensors t = attention_tensors(&k, dtype);
        const CudaAttentionRun all = cuda_attention_run(ops, &k, t.qkv, t.dout, cuda_attention_drop(&k));
        const CudaAttentionRun again = cuda_attention_run(ops, &k, t.qkv, t.dout, cuda_attention_drop(&k));
        op_expect_same_bits("out of a second run", again.out, all.out);
        op_expect_same_bits("lse of a second run", again.lse, all.lse);
        op_expect_same_bits("dqkv of a second run", again.dqkv, all.dqkv);
        for (int64_t b = 0; b < k.B; b++) {
          AttentionCase one = k;
          one.B = 1;
          Dropout drop = cuda_attention_drop(&k);
          drop.sample0 += b;
          const CudaAttentionRun r = cuda_attention_run(ops, &one, cuda_attention_sequence(t.qkv, b),
                                                        cuda_attention_sequence(t.dout, b), drop);
          op_expect_same_bits("out of one sequence", r.out, cuda_attention_sequence(all.out, b));
          op_expect_same_bits("lse of one sequence", r.lse, cuda_attention_sequence(all.lse, b));
          op_expect_same_bits("dqkv of one sequence", r.dqkv, cuda_attention_sequence(all.dqkv, b));
          if (r.sums.data) op_expect_same_bits("sums of one", r.sums, cuda_attention_sequence(all.sums, b));
        }
        op_free_all();
      }
}
TEST(cuda_attention_bits, "attention on a device: the same bits in every run, and for a sequence in every batch") {
  attention_has_bits();
}
// With unit vectors as values, out holds the weights: zero where the mask drops a key.
static void attention_has_mask() {
  const AttentionCase cases[] = {
      {2, 64, 2, 64, 0.3f}, {2, 61, 3, 80, 0.1f}, {1, 128, 2, 128, 0.5f}, {1, 150, 1, 64, 0.3f}};
  for (int table = 0; const Ops *ops = device_table(table); table++)
    for (AttentionCase k : cases)
      for (Dtype dtype : {F32, BF16, F16}) {
        const AttentionTensors t = attention_tensors(&k, dtype);
        const int64_t C = k.H * k.hs;
        for (int64_t i = 0; i < numel(t.qkv); i++)
          op_put(t.qkv, i, i % (3 * C) < 2 * C ? 0.25 * op_get(t.qkv, i) : i % k.hs == i / (3 * C) % k.T);
        Ctx cpu = attention_ctx(op_table(0), 1, &k, dtype);
        attention_forward(&cpu, t.out, t.lse, t.qkv, (int)k.H, attention_test_drop(&k));
        const CudaAttentionRun r = cuda_attention_run(ops, &k, t.qkv, t.dout, cuda_attention_drop(&k));
        int64_t differ = 0, dropped = 0;
        for (int64_t i = 0; i < numel(t.out); i++) {
          differ += (op_get(t.out, i) == 0.0) != (op_get(r.out, i) == 0.0);
          dropped += i % k.hs <= i / C % k.T && op_get(r.out, i) == 0.0;
        }
        EXPECT(differ == 0, "%s T %d hs %d: %lld of the mask's elements differ", dtype_name(dtype), (int)k.T, (int)k.hs,
               (long long)differ);
        EXPECT(dropped > 0, "nothing was dropped");
        op_free_all();
      }
}
TEST(cuda_attention_mask, "attention on a device drops exactly the probabilities that the CPU drops") {
  attention_has_mask();
}
static void attention_is_causal() {
  const AttentionCase k = {1, 150, 1, 64, 0.0f};
  const int64_t C = k.H * k.hs;
  for (int table = 0; const Ops *ops = device_table(table); table++)
    for (Dtype dtype : {F32, BF16, F16}) {
      AttentionTensors t = attention_tensors(&k, dtype);
      const CudaAttentionRun whole = cuda_attention_run(ops, &k, t.qkv, t.dout, cuda_attention_drop(&k));
      for (int64_t i = 0; i < C; i++)
        EXPECT(op_get(whole.out, i) == op_get(t.qkv, 2 * C + i),
               "%s: out of the first position is %.9g, its value %.9g", dtype_name(dtype), op_get(whole.out, i),
               op_get(t.qkv, 2 * C + i));
      for (int64_t cut : {1, 17, 64, 100, 129}) {
        Tensor qkv = op_copy(t.qkv);
        for (int64_t i = cut * 3 * C; i < numel(qkv); i++) op_put(qkv, i, 3.0 * op_get(qkv, i) + 1.0);
        const CudaAttentionRun r = cuda_attention_run(ops, &k, qkv, t.dout, cuda_attention_drop(&k));
        op_expect_same_bits("out before the cut", tensor_of(r.out.data, dtype, cut, C),
                            tensor_of(whole.out.data, dtype, cut, C));
        op_expect_same_bits("lse before the cut", tensor_of(r.lse.data, F32, cut), tensor_of(whole.lse.data, F32, cut));
      }
      op_free_all();
    }
}
TEST(cuda_attention_is_causal, "attention on a device: no later position changes a bit; the first is the first value") {
  attention_is_causal();
}
static void attention_takes_extremes(int64_t head) {
  const AttentionCase k = {1, 150, 1, head, 0.0f};
  const int64_t hs = k.hs, winner = 70, poisoned = 100;
  const double most = 64.0 * 64.0 * sqrt((double)hs);
  for (int table = 0; const Ops *ops = device_table(table); table++)
    for (Dtype dtype : {F32, BF16, F16}) {
      AttentionTensors t = attention_tensors(&k, dtype);
      for (int64_t i = 0; i < k.T * hs; i++) {   // scores of most, -most and 0
        op_put(t.qkv, i / hs * 3 * hs + i % hs, 64.0);
        op_put(t.qkv, i / hs * 3 * hs + hs + i % hs, i / hs == winner ? 64.0 : i / hs < winner ? -64.0 : 0.0);
      }
      CudaAttentionRun r = cuda_attention_run(ops, &k, t.qkv, t.dout, cuda_attention_drop(&k));
      // A score and its lse in base 2, each wrong by a few roundings, determine how far the winner's weight is from 1.
      const double off = most * 1.4427 * 8.0 * 0x1p-24;
      for (int64_t i = winner; i < k.T; i++) {
        EXPECT(fabs(op_get(r.lse, i) - most) <= most * (double)(hs + 6) * 0x1p-23,
               "%s: lse of query %lld is %.9g, not %.9g", dtype_name(dtype), (long long)i, op_get(r.lse, i), most);
        for (int64_t d = 0; d < hs; d++) {
          const double got = op_get(r.out, i * hs + d), value = op_get(t.qkv, winner * 3 * hs + 2 * hs + d);
          EXPECT(fabs(got - value) <= fabs(value) * (off + 2.0 * op_unit_roundoff(dtype)),
                 "%s: out of query %lld is %.9g, not %.9g", dtype_name(dtype), (long long)i, got, value);
        }
      }
      for (int64_t i = 0; i < numel(r.dqkv); i++)
        EXPECT(isfinite(op_get(r.dqkv, i)), "%s: dqkv element %lld is not finite", dtype_name(dtype), (long long)i);
      op_put(t.qkv, poisoned * 3 * hs + 3, NAN); // in one q
      r = cuda_attention_run(ops, &k, t.qkv, t.dout, cuda_attention_drop(&k));
      EXPECT(isnan(op_get(r.out, poisoned * hs)), "%s: NaN in q, but out is %.9g", dtype_name(dtype),
             op_get(r.out, poisoned * hs));
      EXPECT(isfinite(op_get(r.out, (poisoned - 1) * hs)), "%s: a NaN in q reached another query", dtype_name(dtype));
      op_free_all();
    }
}
TEST(cuda_attention_extreme_scores, "attention on a device: scores of thousands do not overflow; a NaN is not lost") {
  attention_takes_extremes(32);
}

// ---- Hopper --------------------------------------------------------------------------------------------------------
TEST(cuda_attention_hopper,
     "attention by WGMMA equals the fp64 formula within rounding: head sizes 40 to 128, ends of "
     "tiles, dropout, bf16 and fp16") {
  device_on_hopper(true);
  for (int table = 0; const Ops *ops = device_table(table); table++)
    for (const AttentionCase &k : hopper_attention_cases)
      for (Dtype dtype : {BF16, F16}) cuda_attention_case(ops, k, dtype);
  device_on_hopper(false);
}
TEST(cuda_attention_hopper_bits,
     "attention by wgmma: the same bits in every run and batch, the CPU's mask, no later position changes a bit, "
     "scores of thousands do not overflow and a NaN is not lost") {
  device_on_hopper(true);
  attention_has_bits();
  attention_has_mask();
  attention_is_causal();
  attention_takes_extremes(64);
  device_on_hopper(false);
}
static Tensor chat_slice(Tensor all, int64_t begin, int64_t n) {       // rows of (1,T,C)
  const size_t row = (size_t)all.shape[2] * dtype_bytes(all.dtype);
  return tensor_of((char *)all.data + (size_t)begin * row, all.dtype, 1, n, all.shape[2]);
}
static Tensor chat_lse(Tensor all, int64_t begin, int64_t n) {         // of (1,H,T)
  Tensor t = op_tensor(F32, 1, all.shape[1], n);
  for (int64_t i = 0; i < numel(t); i++) op_put(t, i, op_get(all, i / n * all.shape[2] + begin + i % n));
  return t;
}
static Tensor chat_starts(const int *documents) {
  Tensor t = op_tensor(I32, 1, CHAT_T);
  for (int at = 0, begin = 0; begin < CHAT_T; begin = at)
    for (const int end = begin + *documents++; at < end; at++) ((int32_t *)t.data)[at] = begin;
  return t;
}
static void chat_attention(const Ops *ops, bool device, int64_t hs, Dtype dtype, int64_t window = 0,
                           const int *documents = chat_documents) {
  const AttentionCase k = {1, CHAT_T, 2, hs, 0.0f};
  AttentionTensors t = attention_tensors(&k, dtype);
  Ctx c = device ? cuda_attention_ctx(ops, &k, dtype) : attention_ctx(ops, 2, &k, dtype);
  const Tensor starts = chat_starts(documents);
  AttentionReference of[sizeof chat_documents / sizeof *chat_documents];
  Tensor out = t.out, lse = t.lse, qkv = t.qkv, dout = t.dout, dqkv = t.dqkv, first = starts;
  if (device) {
    out = device_tensor(&c, dtype, 1, CHAT_T, 2 * hs), lse = device_tensor(&c, F32, 1, 2, CHAT_T);
    qkv = device_upload(&c, t.qkv), dout = device_upload(&c, t.dout), first = device_upload(&c, starts);
    dqkv = device_tensor(&c, dtype, 1, CHAT_T, 6 * hs);
  }
  if (window) {
    const Tensor own = device ? device_tensor(&c, I32, 1, CHAT_T) : op_tensor(I32, 1, CHAT_T);
    window_starts(&c, own, first, window);
    first = own;
  }
  attention_forward(&c, out, lse, qkv, 2, Dropout{}, first);
  if (device) t.out = device_download(&c, out), t.lse = device_download(&c, lse);
  int64_t at = 0;
  for (int d = 0; at < CHAT_T; at += documents[d++]) {
    const AttentionCase one = {1, documents[d], 2, hs, 0.0f, window};
    AttentionReference *r = &(of[d] = attention_reference(one));
    for (int64_t j = 0; j < one.T * 6 * hs; j++) r->qkv[j] = op_get(t.qkv, at * 6 * hs + j);
    for (int64_t j = 0; j < one.T * 2 * hs; j++) r->dout[j] = op_get(t.dout, at * 2 * hs + j);
    attention_reference_forward(r);
    const AttentionTensors got = {{}, chat_slice(t.out, at, one.T), chat_lse(t.lse, at, one.T), {}, {}};
    if (device) cuda_attention_expect_forward(&c, r, device_upload(&c, got.out), device_upload(&c, got.lse));
    else attention_expect_forward(ops, r, got);
  }
  attention_backward(&c, dqkv, dout, qkv, out, lse, 2, Dropout{}, first);
  if (device) t.dqkv = device_download(&c, dqkv);
  at = 0;
  for (int d = 0; at < CHAT_T; at += documents[d++]) {
    AttentionReference *r = &of[d];
    const int64_t n = r->k.T;
    const Tensor own = chat_lse(t.lse, at, n);
    for (int64_t j = 0; j < n * 2 * hs; j++) r->out[j] = op_get(t.out, at * 2 * hs + j);
    for (int64_t j = 0; j < n * 2; j++) r->lse[j] = op_get(own, j);
    attention_reference_backward(r);
    const AttentionTensors got = {{}, {}, {}, {}, chat_slice(t.dqkv, at, n)};
    if (device) cuda_attention_expect_backward(&c, r, device_upload(&c, got.dqkv));
    else attention_expect_backward(ops, r, got);
  }
  if (device) device_done(&c);
  op_free_all();
}

TEST(chat_attention_apart,
     "attention of several documents in one sequence is, forward and backward, that of each alone by the fp64 formula: "
     "each CPU table in fp32, bf16 and fp16, all families of CUDA kernels") {
  for (Dtype dtype : {F32, BF16, F16})
    for (int64_t hs : {12, 40}) for (int table = 0; const Ops *ops = op_table(table); table++)
      chat_attention(ops, false, hs, dtype);
  for (int table = 0; const Ops *ops = device_table(table); table++) {
    for (int64_t hs : {32, 64, 80, 96, 128, 256}) chat_attention(ops, true, hs, BF16);
    for (int64_t hs : {20, 72}) chat_attention(ops, true, hs, F16);
    for (int64_t hs : {20, 80}) chat_attention(ops, true, hs, F32);
  }
  static const int borders[] = {65, 64, 41};     // one key of a tile is of the document before
  for (int hopper = 0; hopper < 2; hopper++) {
    device_on_hopper(hopper);
    for (int table = 0; const Ops *ops = device_table(table); table++) {
      for (int64_t hs : {64, 128}) chat_attention(ops, true, hs, BF16);
      for (int64_t hs : {32, 64, 128, 256}) chat_attention(ops, true, hs, BF16, 0, borders);
      chat_attention(ops, true, 72, F16);
    }
  }
  device_on_hopper(false);
}

TEST(cuda_attention_of_documents_is_cheap,
     "documents of 256 tokens in a sequence of 1024: attention's kernels on tensor cores compute, and load beside each "
     "block's own rows, at most 40 % of what one document takes, forward and backward; shorter documents take less") {
  if (!&ops_cuda_emulated) SKIP("this test program was linked without dev/cuda_emu");
  enum { T = 1024 };
  const struct { bool hopper; int64_t hs; } families[] = {{false, 64}, {false, 256}, {true, 64}, {true, 128}};
  for (const auto &f : families) {
    const AttentionCase k = {1, T, 1, f.hs, 0.0f};
    EmuCounters took[3][2];
    device_on_hopper(f.hopper);
    AttentionTensors t = attention_tensors(&k, BF16);
    Ctx c = cuda_attention_ctx(&ops_cuda_emulated, &k, BF16);
    Tensor out = device_tensor(&c, BF16, 1, T, f.hs), lse = device_tensor(&c, F32, 1, 1, T);
    Tensor starts = op_tensor(I32, 1, T);
    Tensor qkv = device_upload(&c, t.qkv), dout = device_upload(&c, t.dout);
    Tensor dqkv = device_tensor(&c, BF16, 1, T, 3 * f.hs);
    for (int way = 0; way < 3; way++) {          // one document; four; of 1, 2, 3, ... tokens
      for (int i = 0, at = 0, n = 1; i < T; i++) {
        if (way == 2 && i == at + n) at = i, n++;
        ((int32_t *)starts.data)[i] = way == 0 ? 0 : way == 1 ? i / 256 * 256 : at;
      }
      const Tensor first = device_upload(&c, starts);
      for (int pass = 0; pass < 2; pass++) {
        const EmuCounters before = emu_counters();
        if (!pass) attention_forward(&c, out, lse, qkv, 1, Dropout{}, first);
        else attention_backward(&c, dqkv, dout, qkv, out, lse, 1, Dropout{}, first);
        c.ops->sync(&c);
        took[way][pass] = emu_counters();
        took[way][pass].multiplies -= before.multiplies, took[way][pass].loads -= before.loads;
      }
    }
    for (int pass = 0; pass < 2; pass++) {
      const EmuCounters *all = &took[0][pass], *four = &took[1][pass], *many = &took[2][pass];
      const int64_t own = (int64_t)T * f.hs * 2 * (pass ? 4 : 1);  // Q; Q, dout of dq, and K, V of dk and dv, at least
      EXPECT(all->multiplies >= (int64_t)T * T / 2 * f.hs * (pass ? 5 : 2) &&
             10 * four->multiplies <= 4 * all->multiplies && 10 * (four->loads - own) <= 4 * (all->loads - own) &&
             many->multiplies < four->multiplies && many->loads < four->loads,
             "%s, head size %lld, %s: %lld multiplies of %lld, %lld bytes of %lld; of many %lld and %lld",
             f.hopper ? "wgmma" : "mma", (long long)f.hs, pass ? "backward" : "forward", (long long)four->multiplies,
             (long long)all->multiplies, (long long)four->loads, (long long)all->loads, (long long)many->multiplies,
             (long long)many->loads);
    }
    device_done(&c);
    op_free_all();
  }
  device_on_hopper(false);
}
TEST(chat_attention_windows,
     "attention with a sliding window over several documents in one sequence is, forward and backward, that of each "
     "alone with that window by the fp64 formula: each CPU table, all families of CUDA kernels") {
  for (int64_t window : {1, 5, 33, 64}) {
    for (int table = 0; const Ops *ops = op_table(table); table++)
      for (Dtype dtype : {F32, BF16}) chat_attention(ops, false, 12, dtype, window);
    for (int table = 0; const Ops *ops = device_table(table); table++) {
      for (int64_t hs : {64, 256}) chat_attention(ops, true, hs, BF16, window);
      chat_attention(ops, true, 20, F32, window);
    }
    device_on_hopper(true);
    for (int table = 0; const Ops *ops = device_table(table); table++)
      for (int64_t hs : {64, 128}) chat_attention(ops, true, hs, BF16, window);
    device_on_hopper(false);
  }
}

TEST(attention_windows_are_starts,
     "a window's starts: what a plain loop says, with and without documents; attention over 600 keys, bf16's groups of "
     "256 too, has bits that do not depend on keys before the window, and gives them no gradient") {
  enum { T = 600, W = 40, HS = 16 };
  for (int table = 0; const Ops *ops = op_table(table); table++)
    for (Dtype dtype : {F32, BF16}) {
      const AttentionCase k = {1, T, 1, HS, 0.0f};
      AttentionTensors t = attention_tensors(&k, dtype);
      Ctx c = attention_ctx(ops, 2, &k, dtype);
      Tensor starts = op_tensor(I32, 1, T), again = op_tensor(dtype, 1, T, HS), d = op_tensor(dtype, 1, T, 3 * HS);
      window_starts(&c, starts, Tensor{}, W);
      for (int i = 0; i < T; i++)
        EXPECT(((int32_t *)starts.data)[i] == (i < W ? 0 : i - W + 1), "token %d starts at %d", i,
               ((int32_t *)starts.data)[i]);
      attention_forward(&c, t.out, t.lse, t.qkv, 1, Dropout{}, starts);
      Tensor dout = op_copy(t.dout);             // of the last 10 tokens alone
      memset(dout.data, 0, (size_t)(T - 10) * HS * dtype_bytes(dtype));
      attention_backward(&c, d, dout, t.qkv, t.out, t.lse, 1, Dropout{}, starts);
      for (int64_t i = 0; i < (int64_t)T * 3 * HS; i++) {
        const bool seen = i / (3 * HS) > T - 10 - W;
        EXPECT(seen || op_get(d, i) == 0, "%s: element %lld has a gradient", ops->name, (long long)i);
      }
      for (int64_t i = 0; i < (int64_t)(T - 10 - W) * 3 * HS; i++) op_put(t.qkv, i, 3.0);
      attention_forward(&c, again, t.lse, t.qkv, 1, Dropout{}, starts);
      op_expect_same_bits(ops->name, tensor_of((char *)again.data + (T - 10) * HS * dtype_bytes(dtype), dtype, 10, HS),
                          tensor_of((char *)t.out.data + (T - 10) * HS * dtype_bytes(dtype), dtype, 10, HS));
      op_free_all();
    }
}
