// test_cuda_ops.h: every CUDA kernel but GEMMs and attention, on every device table, against the CPU's op on the same
// inputs: bit for bit where both do the same operations in the same order (embeddings, optimizers, norm, conversions,
// random numbers, the residual sum), else against fp64 with a bound. Each op runs twice and must give the same bits
// twice. More combinations of dtypes and shapes are in the tests named *_all.

// A CPU and a device context with one workspace query and one state.
struct CudaOps { Ctx cpu, gpu; };
static CudaOps cuda_ops_open(const Ops *ops, WorkspaceQuery q, StepState s) {
  CudaOps o = {op_ctx(op_table(0), 1, q), device_ctx(ops, q)};
  op_state = s;
  device_set_state(&o.gpu, s);
  return o;
}
static StepState cuda_ops_state(uint32_t step) {
  op_state_reset();
  op_state.in.step = step;
  return op_state;
}
static void cuda_ops_close(CudaOps *o) {
  device_done(&o->gpu);
  op_free_all();
}
static WorkspaceQuery cuda_ops_query(Dtype dtype, int64_t B, int64_t T, int64_t C) {
  return {dtype, F32, B, T, C, 1, 1, 1};
}

// ================================================================================================ embedding
struct CudaEmbedding { int64_t B, T, positions, C, vocab; };
static void cuda_check_embedding(const Ops *ops, Dtype dtype, CudaEmbedding s, float p) {
  const Dropout drop = {p, 7, 0, 2, 5};
  CudaOps o = cuda_ops_open(ops, cuda_ops_query(dtype, s.B, s.T, s.C), cuda_ops_state(3));
  Tensor tokens = op_random_ids(1, s.vocab, s.B, s.T), wte = op_random_tensor(2, 1.0, dtype, s.vocab, s.C),
         wpe = op_random_tensor(3, 1.0, dtype, s.positions, s.C), out = op_tensor(dtype, s.B, s.T, s.C),
         dout = op_random_tensor(4, 1.0, dtype, s.B, s.T, s.C), before = op_random_tensor(5, 1.0, F32, s.vocab, s.C),
         dwte = op_copy(before), dwpe = op_tensor(F32, s.positions, s.C);
  embedding_forward(&o.cpu, out, tokens, wte, wpe, drop);
  embedding_backward(&o.cpu, dwte, dwpe, dout, tokens, drop, OVERWRITE);
  Tensor d_tokens = device_upload(&o.gpu, tokens), d_dout = device_upload(&o.gpu, dout),
         d_wte = device_upload(&o.gpu, wte), d_wpe = device_upload(&o.gpu, wpe);
  for (int twice = 0; twice < 2; twice++) {
    Tensor d_out = device_tensor(&o.gpu, dtype, s.B, s.T, s.C), d_dwte = device_upload(&o.gpu, before),
           d_dwpe = device_tensor(&o.gpu, F32, s.positions, s.C);
    embedding_forward(&o.gpu, d_out, d_tokens, d_wte, d_wpe, drop);
    embedding_backward(&o.gpu, d_dwte, d_dwpe, d_dout, d_tokens, drop, OVERWRITE);
    device_expect_same_bits("embedding_forward", &o.gpu, d_out, out);
    device_expect_same_bits("embedding_backward dwte", &o.gpu, d_dwte, dwte);
    device_expect_same_bits("embedding_backward dwpe", &o.gpu, d_dwpe, dwpe);
  }
  Tensor none = {}, old = ops_old_positions(s.positions, s.T, s.C), added = op_copy(old);
  embedding_backward(&o.cpu, none, added, dout, tokens, drop, ADD);
  for (Accumulate mode : {OVERWRITE, ADD}) for (int absent = 0; absent < 3; absent++) {
    Tensor d_dwte = absent & 1 ? none : device_upload(&o.gpu, before),
           d_dwpe = absent & 2 ? none : device_upload(&o.gpu, old);
    embedding_backward(&o.gpu, d_dwte, d_dwpe, d_dout, d_tokens, drop, mode);
    if (d_dwte.data) device_expect_same_bits("embedding_backward dwte, other modes", &o.gpu, d_dwte, dwte);
    if (d_dwpe.data)
      device_expect_same_bits(mode == ADD ? "embedding_backward dwpe added" : "embedding_backward dwpe alone", &o.gpu,
                              d_dwpe, mode == ADD ? added : dwpe);
  }
  cuda_ops_close(&o);
}
TEST(cuda_embedding, "CUDA embeddings have the CPU's bits: any number of a token, overwritten, added to or absent") {
  const CudaEmbedding shapes[] = {{1, 1, 1, 1, 3}, {2, 5, 7, 7, 4}, {3, 41, 43, 64, 11}, {1, 3, 4, 768, 5}};
  for (int i = 0; const Ops *ops = device_table(i); i++) {
    for (Dtype dtype : {F32, BF16, F16})
      for (auto s : shapes) cuda_check_embedding(ops, dtype, s, 0.25f);
    cuda_check_embedding(ops, BF16, {5, 40, 40, 100, 3}, 0.0f);
    cuda_check_embedding(ops, BF16, {1, 1400, 1400, 8, 90}, 0.0f);            // the sort joins two chunks
    cuda_check_embedding(ops, F32, {2, 1030, 1031, 1, 1}, 0.25f);             // one token everywhere; three chunks
  }
}
TEST(cuda_embedding_all, "CUDA embeddings have the CPU's bits: more shapes, with and without dropout") {
  for (int i = 0; const Ops *ops = device_table(i); i++)
    for (Dtype dtype : {F32, BF16, F16})
      for (CudaEmbedding s : {CudaEmbedding{2, 3, 3, 1600, 4}, {4, 1024, 1024, 16, 5000}, {9, 300, 301, 33, 2},
                              {3, 1024, 1025, 8, 50257}, {2, 6, 6, 2056, 3}, {2, 6, 6, 259, 3}})
        for (float p : {0.0f, 0.1f}) cuda_check_embedding(ops, dtype, s, p);
}

// ================================================================================================ layer normalisation
// Additions on the longest path of a row's sum: at most 32 columns per thread, two butterflies of five; and the
// product.
static const double CUDA_ROW_ROUNDINGS = 32 + 10 + 1;

static void cuda_expect_layernorm(Ctx *gpu, OpsLayernorm *e, Tensor out, Tensor mean, Tensor rstd) {
  ops_layernorm_reference(e);
  const double k = CUDA_ROW_ROUNDINGS, x = ops_largest(e->x, e->rows * e->C), s = ops_largest(e->rstd, e->rows);
  device_expect_close("layernorm mean", gpu, mean, e->mean, k, x);
  // As ops_expect_layernorm: rstd has half the relative error of the squares' sum and four operations of its own.
  device_expect_close("layernorm rstd", gpu, rstd, e->rstd, k + 4, s);
  device_expect_close("layernorm out", gpu, out, e->out, k + 8,
                      3.0 * x * s * ops_largest(e->weight, e->C) + ops_largest(e->bias, e->C));
}
static void cuda_check_layernorm_forward(const Ops *ops, Dtype dtype, int64_t B, int64_t T, int64_t C, float p) {
  const Dropout drop = {p, 7, 0, 2, 5};
  CudaOps o = cuda_ops_open(ops, cuda_ops_query(dtype, B, T, C), cuda_ops_state(3));
  Tensor in = op_random_tensor(1, 1.0, dtype, B, T, C), branch = op_random_tensor(2, 1.0, dtype, B, T, C),
         weight = op_random_tensor(3, 1.0, dtype, C), bias = op_random_tensor(4, 1.0, dtype, C),
         want = op_tensor(dtype, B, T, C), unused = op_tensor(dtype, B, T, C), stat = op_tensor(F32, B, T);
  residual_layernorm_forward(&o.cpu, want, unused, stat, op_copy(stat), in, branch, weight, bias, LAYERNORM_EPS, drop);
  Tensor d_in = device_upload(&o.gpu, in), d_branch = device_upload(&o.gpu, branch),
         d_weight = device_upload(&o.gpu, weight), d_bias = device_upload(&o.gpu, bias), first[7] = {};
  for (int turn = 0; turn < 3; turn++) {         // residual in separate memory, then in in's, then in branch's
    Tensor got[7];
    for (int i = 0; i < 7; i++)
      got[i] = i == 1 || i == 2 || i > 4 ? device_tensor(&o.gpu, F32, B, T) : device_tensor(&o.gpu, dtype, B, T, C);
    layernorm_forward(&o.gpu, got[0], got[1], got[2], d_in, d_weight, d_bias, LAYERNORM_EPS);
    if (turn) got[3] = turn == 1 ? device_upload(&o.gpu, in) : device_upload(&o.gpu, branch);
    residual_layernorm_forward(&o.gpu, got[3], got[4], got[5], got[6], turn == 1 ? got[3] : d_in,
                               turn == 2 ? got[3] : d_branch, d_weight, d_bias, LAYERNORM_EPS, drop);
    for (int i = 0; i < 7; i++) {
      Tensor host = device_download(&o.gpu, got[i]);
      if (turn == 0) first[i] = host;
      op_expect_same_bits(device_where("layernorm again", &o.gpu, dtype), host, first[i]);
    }
    if (turn) continue;
    OpsLayernorm e = ops_layernorm_of(in, weight, bias, in);
    cuda_expect_layernorm(&o.gpu, &e, got[0], got[1], got[2]);
    device_expect_same_bits("residual", &o.gpu, got[3], want);
    Tensor again[3] = {device_upload(&o.gpu, in), device_upload(&o.gpu, stat), device_upload(&o.gpu, stat)};
    layernorm_forward(&o.gpu, again[0], again[1], again[2], got[3], d_weight, d_bias,
                      LAYERNORM_EPS); // from what was stored
    for (int i = 0; i < 3; i++)
      device_expect_same_bits("layernorm of what was stored", &o.gpu, again[i], device_download(&o.gpu, got[4 + i]));
    e = ops_layernorm_of(want, weight, bias, in);
    cuda_expect_layernorm(&o.gpu, &e, got[4], got[5], got[6]);
  }
  cuda_ops_close(&o);
}
// Like ops_check_layernorm_modes, on the device; k's tensors are there, `got` holds host copies of OVERWRITE's results.
static void cuda_check_layernorm_modes(Ctx *c, const OpsLayernormCall *k) {
  const Dtype dtype = k->dout.dtype;
  const int64_t B = k->dout.shape[0], T = k->dout.shape[1], C = k->dout.shape[2];
  Tensor none = {}, sums[2], old[2], want[2];
  for (int i = 0; i < 2; i++) {
    sums[i] = device_tensor(c, F32, C);
    old[i] = op_random_tensor(31 + (uint64_t)i, 3.0, F32, C);
  }
  layernorm_backward(c, device_upload(c, k->above), device_tensor(c, dtype, B, T, C), sums[0], sums[1], k->dout, k->x,
                     k->weight, k->mean, k->rstd, k->drop, OVERWRITE);
  for (int i = 0; i < 2; i++) want[i] = op_added(old[i], device_download(c, sums[i]));
  for (Accumulate mode : {OVERWRITE, ADD}) for (int absent = mode == ADD ? 0 : 1; absent < 4; absent++) {
    Tensor d[4] = {device_upload(c, k->above), device_tensor(c, dtype, B, T, C), none, none};
    for (int i = 0; i < 2; i++)
      if (!(absent >> i & 1))
        d[2 + i] = mode == ADD ? device_upload(c, old[i]) : device_tensor(c, k->got[2].dtype, C);
    op_forget_workspace(c);
    layernorm_backward(c, d[0], d[1], d[2], d[3], k->dout, k->x, k->weight, k->mean, k->rstd, k->drop, mode);
    for (int i = 0; i < 4; i++)
      if (d[i].data)
        device_expect_same_bits(mode == ADD ? "layernorm_backward adding" : "with gradients absent", c, d[i],
                                mode == ADD && i > 1 ? want[i - 2] : k->got[i]);
  }
}
// The sums of dbranch's columns: within rounding, and through matmul_backward_weight as its own are, added or not.
static void cuda_expect_branch_sum(CudaOps *o, Tensor dbranch, Tensor sum) {
  const int64_t C = numel(sum), rows = numel(dbranch) / C;
  double *want = op_zeros(C), scale = 0.0;
  for (int64_t i = 0; i < C; i++) {
    double all = 0.0;
    for (int64_t r = 0; r < rows; r++) want[i] += op_get(dbranch, r * C + i), all += fabs(op_get(dbranch, r * C + i));
    scale = fmax(scale, all);
  }
  device_expect_close("sums of dbranch", &o->gpu, sum, want, (double)rows + (double)(rows / 8 + 13), scale);
  const Tensor old = op_random_tensor(33, 3.0, F32, C), made = device_download(&o->gpu, sum), none = {};
  const Tensor dout = device_upload(&o->gpu, reshaped(dbranch, rows, C)), in = tensor_of(NULL, dbranch.dtype, rows, 8);
  for (Accumulate mode : {OVERWRITE, ADD}) {
    Tensor dbias = device_upload(&o->gpu, old);
    matmul_backward_weight(&o->gpu, none, dbias, dout, in, mode, sum);
    device_expect_same_bits("dbias of sums", &o->gpu, dbias, mode == ADD ? op_added(old, made) : made);
  }
}
static void cuda_check_layernorm_backward(const Ops *ops, Dtype dtype, Dtype grad, int64_t B, int64_t T, int64_t C,
                                          float p) {
  const Dropout drop = {p, 7, 0, 2, 5};
  WorkspaceQuery q = cuda_ops_query(dtype, B, T, C);
  q.norm_sums = 3;
  CudaOps o = cuda_ops_open(ops, q, cuda_ops_state(3));
  const int64_t rows = B * T;
  Tensor x = op_random_tensor(1, 1.0, dtype, B, T, C), dout = op_random_tensor(2, 1.0, dtype, B, T, C),
         weight = op_random_tensor(3, 1.0, dtype, C), above = op_random_tensor(4, 1.0, dtype, B, T, C),
         mean = op_tensor(F32, B, T), rstd = op_tensor(F32, B, T), unused = op_tensor(dtype, B, T, C);
  layernorm_forward(&o.cpu, unused, mean, rstd, x, weight, weight, LAYERNORM_EPS);
  OpsLayernorm e = ops_layernorm_of(x, weight, weight, dout);
  e.mean = op_fp64(mean), e.rstd = op_fp64(rstd);
  ops_layernorm_reference_backward(&e);
  double x_hat = 0.0, *total = op_fp64(above), dw_scale = 0.0, db_scale = 0.0;
  for (int64_t i = 0; i < C; i++) {
    double dw = 0.0, db = 0.0;
    for (int64_t r = 0; r < rows; r++) {
      double h = fabs(e.x[r * C + i] - e.mean[r]) * e.rstd[r], d = fabs(e.dout[r * C + i]);
      x_hat = fmax(x_hat, h), dw += d * h, db += d;
    }
    dw_scale = fmax(dw_scale, dw), db_scale = fmax(db_scale, db);
  }
  for (int64_t i = 0; i < rows * C; i++) total[i] += e.dx[i];
  const double g = ops_largest(e.dout, rows * C) * ops_largest(e.weight, C),
               dx_scale = ops_largest(total, rows * C) + ops_largest(e.rstd, rows) * g * (2.0 + x_hat * x_hat);
  Tensor in[5] = {device_upload(&o.gpu, dout), device_upload(&o.gpu, x), device_upload(&o.gpu, weight),
                  device_upload(&o.gpu, mean), device_upload(&o.gpu, rstd)};
  Tensor first[4] = {};
  for (int turn = 0; turn < (p > 0.0f ? 2 : 4); turn++) {        // twice; dbranch absent; dbranch in dresidual's memory
    Tensor none = {}, d[4] = {device_upload(&o.gpu, above), device_tensor(&o.gpu, dtype, B, T, C),
                              device_tensor(&o.gpu, grad, C), device_tensor(&o.gpu, grad, C)};
    Tensor sum = turn ? device_tensor(&o.gpu, F32, 1, C) : none;      // no other result changes with it
    layernorm_backward(&o.gpu, d[0], turn < 2 ? d[1] : turn == 2 ? none : d[0], d[2], d[3], in[0], in[1], in[2], in[3],
                       in[4], drop, OVERWRITE, sum);
    if (turn) cuda_expect_branch_sum(&o, first[1], sum);
    for (int i = 0; i < 4; i++) {
      if (turn > 1 && i == 1) continue;
      Tensor host = device_download(&o.gpu, d[i]);
      if (turn == 0) first[i] = host;
      op_expect_same_bits(device_where("layernorm_backward again", &o.gpu, dtype), host, first[i]);
    }
    if (turn) continue;
    device_expect_close("layernorm dresidual", &o.gpu, d[0], total, CUDA_ROW_ROUNDINGS + 8, dx_scale);
    // A column's sum adds every row once and then four warps, runs and parts, fewer than rows / 8 + 13; a term has
    // three operations.
    const double k = (double)rows + (double)(rows / 8 + 13) + 3;
    device_expect_close("layernorm dweight", &o.gpu, d[2], e.dweight, k, dw_scale);
    device_expect_close("layernorm dbias", &o.gpu, d[3], e.dbias, k, db_scale);
    Tensor masked = op_tensor(dtype, B, T, C);   // exact products in fp64, rounded to fp32 like the op's
    for (int64_t i = 0; i < rows * C; i++) {
      double keep = 1.0;
      Dropout now = drop;
      now.step = 3;
      if (p > 0.0f) keep = (double)dropout_scale(&now, drop.sample0 + i / (T * C), i % (T * C));
      op_put(masked, i, keep * op_get(first[0], i));
    }
    device_expect_same_bits("layernorm dbranch", &o.gpu, d[1], masked);
  }
  const OpsLayernormCall call = {above, in[0], in[1], in[2], in[3], in[4], {first[0], first[1], first[2], first[3]},
                                 drop};
  cuda_check_layernorm_modes(&o.gpu, &call);
  cuda_ops_close(&o);
}
static const struct { int64_t B, T, C; } CUDA_LAYERNORM_SHAPES[] = {{1, 1, 1}, {2, 3, 7}, {3, 11, 64}, {2, 3, 100},
                                                                     {1, 3, 768}, {1, 2, 1600}, {1, 5, 408},
                                                                     {1, 9, 1000}};
static const struct { int64_t B, T, C; } CUDA_LAYERNORM_WIDE[] = {{1, 9, 4104}, {1, 2, 8200}, {2, 2, 1025},
                                                                  {1, 2, 4091}, {5, 33, 40}, {3, 700, 8}};
TEST(cuda_layernorm_forward, "CUDA layer normalisation equals fp64; the residual sum before it has the CPU's bits") {
  for (int i = 0; const Ops *ops = device_table(i); i++)
    for (auto s : CUDA_LAYERNORM_SHAPES) {
      cuda_check_layernorm_forward(ops, BF16, s.B, s.T, s.C, 0.25f);
      cuda_check_layernorm_forward(ops, F32, s.B, s.T, s.C, s.C & 1 ? 0.0f : 0.25f);
      cuda_check_layernorm_forward(ops, F16, s.B, s.T, s.C, 0.0f);
    }
}
TEST(cuda_layernorm_backward,
     "CUDA layernorm_backward equals fp64; dbranch is exact; ADD is one addition; absent gradients change none") {
  for (int i = 0; const Ops *ops = device_table(i); i++) {
    for (auto s : CUDA_LAYERNORM_SHAPES) {
      cuda_check_layernorm_backward(ops, BF16, F32, s.B, s.T, s.C, 0.25f);
      cuda_check_layernorm_backward(ops, F32, F32, s.B, s.T, s.C, s.C & 1 ? 0.25f : 0.0f);
      cuda_check_layernorm_backward(ops, F16, F16, s.B, s.T, s.C, 0.0f);
    }
    cuda_check_layernorm_backward(ops, BF16, BF16, 1, 531, 8, 0.0f);          // more runs than warps that add them
    cuda_check_layernorm_backward(ops, F32, F32, 1, 9, 4104, 0.25f);          // two groups of columns per thread
  }
}
TEST(cuda_layernorm_all, "CUDA layer normalisation: every dtype, wide and odd rows, with and without dropout") {
  for (int i = 0; const Ops *ops = device_table(i); i++)
    for (Dtype dtype : {F32, BF16, F16})
      for (float p : {0.0f, 0.25f})
        for (auto s : CUDA_LAYERNORM_WIDE) {
          cuda_check_layernorm_forward(ops, dtype, s.B, s.T, s.C, p);
          for (Dtype grad : {F32, BF16, F16}) cuda_check_layernorm_backward(ops, dtype, grad, s.B, s.T, s.C, p);
        }
}

// ================================================================================================ cross-entropy
struct CudaCrossEntropy { int64_t R, vocab, columns; double spread; float scale; };
static void cuda_check_cross_entropy(const Ops *ops, Dtype dtype, CudaCrossEntropy s) {
  const int64_t R = s.R, V = s.vocab, Vp = s.columns;
  StepState state = cuda_ops_state(0);
  state.loss_scale = 1024.0f;
  CudaOps o = cuda_ops_open(ops, cuda_ops_query(dtype, 1, R, 1), state);
  Tensor logits = op_random_tensor(1, s.spread, F32, R, Vp), targets = op_random_ids(2, V, R),
         correct = op_tensor(I32, R), unused = op_tensor(F32, R);
  ((int32_t *)targets.data)[R - 1] = -1;
  float *x = (float *)logits.data;
  for (int64_t r = 0; r < R; r++)
    for (int64_t j = V; j < Vp; j++) x[r * Vp + j] = j & 1 ? NAN : 1e38f;     // padded columns must not matter
  Tensor half = op_tensor(BF16, R, Vp);
  for (int64_t i = 0; i < R * Vp && dtype == BF16; i++)            // values that logits in bf16 have too
    op_put(half, i, op_get(logits, i)), op_put(logits, i, op_get(half, i));
  if (R > 2) x[((int32_t *)targets.data)[0]] = 1e3f, x[Vp + ((int32_t *)targets.data)[1]] = x[Vp + V - 1] = 1e3f;
  double *losses = op_zeros(R), *dx = op_zeros(R * Vp), *logits64 = op_fp64(logits);
  for (int64_t r = 0; r + 1 < R; r++) {
    OpsCrossEntropy e = {V, logits64 + r * Vp, ((int32_t *)targets.data)[r], dx + r * Vp};
    losses[r] = ops_cross_entropy_reference(&e);
  }
  for (int64_t i = 0; i < R * Vp; i++) dx[i] *= (double)s.scale * 1024.0;
  cross_entropy_forward(&o.cpu, unused, correct, logits, targets, V);
  // A thread has at most 16 columns, or Vp / 512 and one more group; every group may rescale (an exponential and a
  // multiplication), ten additions in the block. e^x: 4 roundings for the hardware's 2^-22, and twice |x - m| e^-|x -
  // m| < 1/e for the argument. The logarithm and two operations; three of dlogits.
  const double columns = fmax(16.0, (double)(Vp / 512 + 8)), k = columns + columns / 8 * 7 + 10 + 6 + 6;
  Tensor d_logits = device_upload(&o.gpu, logits), d_targets = device_upload(&o.gpu, targets), first[4] = {};
  for (int turn = 0; turn < 3; turn++) {         // third: dlogits on the logits, in place or a row or more before
    Tensor got[4] = {device_tensor(&o.gpu, F32, R), device_tensor(&o.gpu, F32, R), device_tensor(&o.gpu, dtype, R, Vp),
                     device_tensor(&o.gpu, I32, R)};
    cross_entropy_forward(&o.gpu, got[0], got[3], d_logits, d_targets, V);
    Tensor on = d_logits;
    if (turn == 2) {
      const int64_t before = dtype == F32 ? 0 : round_up(2 * Vp, 16);
      got[2] = tensor_of(device_tensor(&o.gpu, F32, before / 4 + R * Vp).data, dtype, R, Vp);
      on = tensor_of((char *)got[2].data + before, F32, R, Vp);
      o.gpu.ops->copy(&o.gpu, on.data, d_logits.data, sizeof(float) * (size_t)(R * Vp));
    }
    cross_entropy_forward_backward(&o.gpu, got[1], got[2], on, d_targets, V, s.scale, 0.0f);
    device_expect_same_bits("cross_entropy correct", &o.gpu, got[3], correct);
    for (int i = 0; i < 4; i++) {
      Tensor host = device_download(&o.gpu, got[i]);
      if (turn == 0) first[i] = host;
      op_expect_same_bits(device_where("cross_entropy again", &o.gpu, dtype), host, first[i]);
    }
    op_expect_same_bits(device_where("cross_entropy losses of the two ops", &o.gpu, dtype), first[0], first[1]);
    // Logits in bf16, with their gradient over them, are read in wider groups, so their sums are others.
    if (turn == 2 && dtype == BF16) {
      for (int64_t i = 0; i < R * Vp; i++) op_put(half, i, op_get(logits, i));
      got[0] = got[1], got[2] = device_upload(&o.gpu, half);
      cross_entropy_forward_backward(&o.gpu, got[0], got[2], got[2], d_targets, V, s.scale, 0.0f);
    } else if (turn) {
      continue;
    }
    device_expect_close("cross_entropy loss", &o.gpu, got[0], losses, k, 1.0 + ops_largest(losses, R));
    device_expect_close("cross_entropy dlogits", &o.gpu, got[2], dx, k, fabs((double)s.scale) * 1024.0);
  }
  cuda_ops_close(&o);
}
TEST(cuda_cross_entropy, "both CUDA cross-entropy ops equal fp64; correct is the CPU's; ignored rows have gradient 0") {
  for (int i = 0; const Ops *ops = device_table(i); i++) {
    for (Dtype dtype : {F32, BF16, F16})
      for (CudaCrossEntropy s : {CudaCrossEntropy{4, 17, 32, 3.0, 1.0f}, {3, 1, 16, 1.0, 0.5f}, {5, 7, 7, 2.0, 1.0f},
                                 {3, 1000, 1003, 4.0, 0.125f}, {3, 2048, 2048, 30.0, 0.25f},
                                 {21, 60, 64, 4.0, 0.125f}})
        cuda_check_cross_entropy(ops, dtype, s);
    cuda_check_cross_entropy(ops, BF16, {2, 50257, 50304, 4.0, 0.125f});
    for (int64_t V : {12288, 48897, 49152})      // 48 KiB of dynamic shared memory and less, where rows are kept in it
      cuda_check_cross_entropy(ops, BF16, {1, V, (V + 63) / 64 * 64, 4.0, 0.125f});
  }
}
// One training call on an emulated device with so much shared memory a block and that compute capability.
struct CudaCrossEntropyDevice { const char *form; size_t shared; int capability, built_for; };
static void cuda_cross_entropy_on(CudaCrossEntropyDevice d, Tensor losses, Tensor dlogits, Tensor logits,
                                  Tensor targets, int64_t vocab) {
  emu_set_shared_limit(d.shared);
  emu_set_capability(d.capability);
  emu_set_built_for(d.built_for);
  Ctx c = device_ctx(&ops_cuda_emulated, cuda_ops_query(dlogits.dtype, 1, logits.shape[0], 1));
  Tensor x = device_upload(&c, logits), t = device_upload(&c, targets), l = device_tensor(&c, F32, logits.shape[0]);
  Tensor to = dlogits.dtype == logits.dtype ? x : device_tensor(&c, dlogits.dtype, logits.shape[0], logits.shape[1]);
  const int64_t before = emu_counters().kernels;
  cross_entropy_forward_backward(&c, l, to, x, t, vocab, 0.125f, 0.0f);
  c.ops->sync(&c);
  EXPECT(emu_counters().kernels - before == 1, "%lld launches for logits apart from their gradient",
         (long long)(emu_counters().kernels - before));
  memcpy(losses.data, device_download(&c, l).data, sizeof(float) * (size_t)numel(l));
  memcpy(dlogits.data, device_download(&c, to).data, (size_t)numel(to) * dtype_bytes(to.dtype));
  device_done(&c);
  emu_set_shared_limit(99 << 10);
  emu_set_capability(80);
  emu_set_built_for(0);
}
struct DtypePair { Dtype from, dtype; };         // of logits, of their gradient
TEST(cuda_cross_entropy_forms,
     "CUDA cross-entropy in one launch: a row read twice, kept in shared memory, or kept by a cluster of four blocks "
     "gives the same bits, whatever the order of threads; code for 8.0 has no clusters on a later GPU either") {
  if (!&ops_cuda_emulated) SKIP("this test program was linked without dev/cuda_emu");
  const CudaCrossEntropyDevice devices[] = {{"twice", 3 << 10, 80, 0}, {"kept", 227 << 10, 80, 0},
                                            {"PTX for 8.0", 227 << 10, 90, 80}, {"cluster", 227 << 10, 90, 0},
                                            {"cluster, 99 KiB", 99 << 10, 120, 0}};
  const struct { int64_t rows, vocab, columns; } shapes[] = {
      // 48 KiB of shared memory, and up to 48 KiB of its dynamic part alone, in a block and in a cluster of four.
      // First: what a kernel was allowed once stays allowed.
      {2, 12224, 12224}, {2, 12288, 12288}, {1, 48896, 48896}, {1, 48897, 48960}, {1, 49152, 49152},
      {3, 8190, 8192}, {3, 8193, 8196}, {3, 6300, 8256}, {2, 12345, 12352}, {2, 50257, 50304}, {65, 700, 704}};
  for (uint64_t seed = 0; seed < 3; seed++)
    for (auto s : shapes)
      for (auto [from, dtype] : {DtypePair{F32, F32}, {F32, BF16}, {BF16, BF16}}) {
        if ((s.columns > 20000 && (dtype == F32 || seed)) || (from == BF16 && seed)) continue;
        Tensor logits = op_random_tensor(1, 6.0, from, s.rows, s.columns), targets = op_random_ids(2, s.vocab, s.rows);
        int32_t *t = (int32_t *)targets.data;
        for (int64_t r = 0; r < s.rows; r++)
          for (int64_t j = s.vocab; j < s.columns; j++) op_put(logits, r * s.columns + j, j & 1 ? NAN : 1e38);
        t[0] = (int32_t)s.vocab - 1;
        if (s.rows > 2) t[1] = -1, op_put(logits, 2 * s.columns + s.vocab - 1, 50.0);    // the largest in the last part
        Tensor first[2] = {};
        emu_set_seed(seed);
        for (const CudaCrossEntropyDevice &d : devices) {
          Tensor got[2] = {op_tensor(F32, s.rows), op_tensor(dtype, s.rows, s.columns)};
          cuda_cross_entropy_on(d, got[0], got[1], logits, targets, s.vocab);
          char where[80];
          snprintf(where, sizeof where, "%s, %lld columns, %s of %s", d.form, (long long)s.columns, dtype_name(dtype),
                   dtype_name(from));
          for (int i = 0; i < 2; i++) {
            if (!first[i].data) first[i] = got[i];
            op_expect_same_bits(where, got[i], first[i]);
          }
        }
        op_free_all();
      }
  emu_set_seed(1);
}
TEST(cuda_cross_entropy_all, "both CUDA cross-entropy ops equal fp64 over vocabularies of any size") {
  for (int i = 0; const Ops *ops = device_table(i); i++)
    for (Dtype dtype : {F32, BF16, F16})
      for (int64_t V : {2, 8, 9, 255, 256, 257, 513, 4097, 8192, 8193, 50257})
        for (int64_t pad : {1, 8, 64})
          cuda_check_cross_entropy(ops, dtype, {4, V, (V + pad - 1) / pad * pad, 5.0, 0.5f});
}
TEST(cuda_cross_entropy_extremes, "CUDA: huge logits stay finite, the first of equal maxima wins, NaN and Inf show") {
  const float x[7][4] = {{1e30f, -1e30f, 0, 0}, {5, 5, 1, 5}, {5, 5, 1, 5}, {0, NAN, 0, 0}, {0, INFINITY, 0, 0},
                         {-INFINITY, 2, 2, -INFINITY}, {NAN, 1, 0, 0}};
  const int32_t ids[7] = {1, 0, 1, 0, 0, 1, 1};
  for (int i = 0; const Ops *ops = device_table(i); i++) {
    CudaOps o = cuda_ops_open(ops, cuda_ops_query(F32, 1, 7, 1), cuda_ops_state(0));
    Tensor logits = op_tensor(F32, 7, 4), targets = op_tensor(I32, 7), correct = op_tensor(I32, 7),
           unused = op_tensor(F32, 7);
    memcpy(logits.data, x, sizeof x), memcpy(targets.data, ids, sizeof ids);
    cross_entropy_forward(&o.cpu, unused, correct, logits, targets, 4);
    Tensor d_logits = device_upload(&o.gpu, logits), d_targets = device_upload(&o.gpu, targets),
           d_losses = device_tensor(&o.gpu, F32, 7), d_correct = device_tensor(&o.gpu, I32, 7);
    cross_entropy_forward(&o.gpu, d_losses, d_correct, d_logits, d_targets, 4);
    Tensor losses = device_download(&o.gpu, d_losses);
    device_expect_same_bits("correct", &o.gpu, d_correct, correct);
    EXPECT(op_get(losses, 0) == (double)(1e30f + 1e30f), "loss %g of logits +-1e30", op_get(losses, 0));
    EXPECT(isnan(op_get(losses, 3)) && isnan(op_get(losses, 4)) && isnan(op_get(losses, 6)),
           "losses %g %g %g of NaN and Inf", op_get(losses, 3), op_get(losses, 4), op_get(losses, 6));
    EXPECT(fabs(op_get(losses, 5) - log(2.0)) < 1e-6, "loss %g beside -Inf", op_get(losses, 5));
    cross_entropy_forward_backward(&o.gpu, d_losses, d_logits, d_logits, d_targets, 4, 2.0f, 0.0f);
    Tensor dx = device_download(&o.gpu, d_logits);
    EXPECT(op_get(dx, 0) == 2.0 && op_get(dx, 1) == -2.0, "gradient %g %g", op_get(dx, 0), op_get(dx, 1));
    EXPECT(isnan(op_get(dx, 12)) && isnan(op_get(dx, 16)), "gradients %g %g of NaN and Inf", op_get(dx, 12),
           op_get(dx, 16));
    cuda_ops_close(&o);
  }
}

// ================================================================================================ optimizers
// kind 0: AdamW; 1: SGD; 2: SGD with momentum; 3: AdamW with moments in bf16; 4, 5: as 0 and 3, gradients in bf16. The
// master is the parameter, or separate, or in halves with a bf16 one.
enum CudaMaster { CUDA_MASTER_ITSELF, CUDA_MASTER_BESIDE, CUDA_MASTER_HALVES };
static void cuda_check_optimizer(const Ops *ops, int kind, Dtype dtype, CudaMaster master, int64_t n, int64_t shift) {
  const bool cast = master != CUDA_MASTER_ITSELF, halves = master == CUDA_MASTER_HALVES;
  StepState state = cuda_ops_state(0);
  CudaOps o = cuda_ops_open(ops, cuda_ops_query(dtype, 1, 1, 1), state);
  const Tensor none = {};
  const int64_t all = n + shift;
  Tensor cpu[4] = {cast ? op_tensor(dtype, all) : none, op_random_tensor(1, 0.1, F32, all),
                   op_tensor(kind % 2 && kind > 1 ? BF16 : F32, all),
                   op_tensor(kind % 2 && kind > 1 ? BF16 : F32, all)}, gpu[4];
  for (int i = 2; i < 4; i++) memset(cpu[i].data, 0, (size_t)all * dtype_bytes(cpu[i].dtype));
  const Tensor start = cpu[1];
  if (halves) param_from_master(&o.cpu, cpu[0], cpu[1] = op_tensor(LOW16, all), start);
  for (int i = 0; i < 4; i++) {
    gpu[i] = device_upload(&o.gpu, cpu[i]);
    if (i == 0 && !cast) continue;
    cpu[i] = op_shifted(cpu[i], shift), gpu[i] = op_shifted(gpu[i], shift);
  }
  for (int step = 1; step <= 4; step++) {        // the third is skipped
    Tensor grad = op_random_tensor((uint64_t)step, 1e-3, kind < 4 ? F32 : BF16, all);
    Tensor d_grad = device_upload(&o.gpu, grad);
    grad = op_shifted(grad, shift), d_grad = op_shifted(d_grad, shift);
    ops_state_set(0.01f / (float)step, 0.7f, (float)(1 - pow(0.9f, step)), (float)(1 - pow(0.95f, step)));
    op_state.skip = step == 3;
    device_set_state(&o.gpu, op_state);
    for (int device = 0; device < 2; device++) {
      Ctx *c = device ? &o.gpu : &o.cpu;
      Tensor *t = device ? gpu : cpu, g = device ? d_grad : grad;
      AdamwArgs a = {0.9f, 0.95f, 1e-8f, 0.1f};
      if (kind % 2) a = {0.9f, 0.95f, 1e-8f, 0.1f, 1, 7, 2, n};
      if (kind == 0 || kind > 2) adamw_update(c, t[0], t[1], t[2], t[3], g, a);
      else if (kind == 1) sgd_update(c, t[0], t[1], none, g, {0.0f, 0.01f});
      else sgd_update(c, t[0], t[1], t[2], g, {0.9f, 0.01f});
    }
    for (int i = !cast; i < 4; i++) device_expect_same_bits("optimizer", &o.gpu, gpu[i], cpu[i]);
  }
  cuda_ops_close(&o);
}
TEST(cuda_optimizers, "CUDA AdamW and SGD have the CPU's bits, aligned or not; a skipped step changes nothing") {
  for (int i = 0; const Ops *ops = device_table(i); i++)
    for (int kind = 0; kind < 4; kind++) {
      for (Dtype dtype : {F32, BF16, F16}) cuda_check_optimizer(ops, kind, dtype, CUDA_MASTER_BESIDE, 2055, 0);
      cuda_check_optimizer(ops, kind, F32, CUDA_MASTER_ITSELF, 1, 0);
      cuda_check_optimizer(ops, kind, F32, CUDA_MASTER_ITSELF, 4099, 0);
      cuda_check_optimizer(ops, kind, BF16, CUDA_MASTER_BESIDE, 700, 1);
      cuda_check_optimizer(ops, kind, F32, CUDA_MASTER_ITSELF, 700, 3);
    }
  for (int i = 0; const Ops *ops = device_table(i); i++)
    for (int kind = 0; kind < 6; kind++) {
      for (int64_t n : {1, 2055}) cuda_check_optimizer(ops, kind, BF16, CUDA_MASTER_HALVES, n, 0);
      cuda_check_optimizer(ops, kind, BF16, CUDA_MASTER_HALVES, 700, 1);
    }
}
TEST(cuda_optimizers_all, "CUDA AdamW and SGD have the CPU's bits over more elements than one round of the grid") {
  for (int i = 0; const Ops *ops = device_table(i); i++)
    for (int kind = 0; kind < 4; kind++)
      for (int64_t shift : {0, 1})
        for (CudaMaster master : {CUDA_MASTER_BESIDE, CUDA_MASTER_HALVES})
          cuda_check_optimizer(ops, kind, BF16, master, (shift ? 1 : 8) * 2048 * 256 + 2077, shift);
}

// ================================================================================================ exact norm
// Values rounded to bf16 have the limbs of the same values in fp32, on the CPU and on the device.
static void cuda_check_norm_of_bf16(Ctx *gpu, const char *what, Tensor g, int64_t *limbs) {
  const int64_t n = numel(g);
  Tensor half = op_tensor(BF16, n), whole = op_tensor(F32, n);
  for (int64_t i = 0; i < n; i++) op_put(half, i, op_get(g, i)), op_put(whole, i, op_get(half, i));
  int64_t want[NORM_LIMBS] = {}, got[2][NORM_LIMBS] = {};
  ops_norm_run(op_table(0), 1, want, (const float *)whole.data, n);
  Ctx c = {};
  c.ops = op_table(0), c.threads = 1;
  norm_accumulate(&c, got[0], half);
  gpu->ops->copy(gpu, limbs, got[1], sizeof got[1]);
  norm_accumulate(gpu, limbs, device_upload(gpu, half));
  gpu->ops->copy(gpu, got[1], limbs, sizeof got[1]);
  gpu->ops->sync(gpu);
  for (int i = 0; i < 2; i++) {
    norm_carry(got[i]);
    EXPECT(!memcmp(got[i], want, sizeof want), "%s in bf16, %s: other limbs than those of fp32", what,
           i ? gpu->ops->name : c.ops->name);
  }
}
static void cuda_check_norm(const Ops *ops, const char *what, const float *g, int64_t n, int64_t shift) {
  Ctx gpu = device_ctx(ops, cuda_ops_query(F32, 1, 1, 1));
  Tensor host = op_tensor(F32, n);
  memcpy(host.data, g, (size_t)n * 4);
  Tensor device = op_shifted(device_upload(&gpu, host), shift);
  int64_t want[NORM_LIMBS] = {}, got[NORM_LIMBS] = {}, *limbs = (int64_t *)device_block(&gpu, sizeof want);
  gpu.ops->copy(&gpu, limbs, got, sizeof got);
  for (int twice = 0; twice < 2; twice++) {
    ops_norm_run(op_table(0), 1, want, g + shift, n - shift);
    const int64_t before = &emu_counters ? emu_counters().kernels : 0;
    norm_accumulate(&gpu, limbs, device);
    gpu.ops->copy(&gpu, got, limbs, sizeof got);
    gpu.ops->sync(&gpu);
    EXPECT(ops != &ops_cuda_emulated || emu_counters().kernels == before + 1, "%lld launches, not one",
           (long long)(emu_counters().kernels - before));
    norm_carry(got);
    for (int j = 0; j < NORM_LIMBS; j++)
      EXPECT(got[j] == want[j], "%s, %s, %lld elements: limb %d is %lld, the CPU's %lld", what, ops->name, (long long)n,
             j, (long long)got[j], (long long)want[j]);
  }
  cuda_check_norm_of_bf16(&gpu, what, tensor_of((float *)host.data + shift, F32, n - shift), limbs);
  device_done(&gpu);
}
// Exponents from low to low + span - 1; every 1000th element 2^big when big is not 0.
static float *cuda_norm_numbers(int64_t n, int low, int span, int big) {
  float *g = (float *)op_alloc((size_t)n * 4);
  uint64_t seed = (uint64_t)(low * 1000 + span);
  for (int64_t i = 0; i < n; i++) {
    const int e = big && i % 1000 == 7 ? big : low + (int)op_below(&seed, span);
    g[i] = (float)ldexp(1.0 + op_uniform(&seed), e) * (op_random(&seed) & 1 ? -1.0f : 1.0f);
  }
  return g;
}
static void cuda_check_norms(const Ops *ops) {
  const int64_t n = 3001;
  cuda_check_norm(ops, "ordinary", cuda_norm_numbers(n, -20, 16, 0), n, 0);
  cuda_check_norm(ops, "ordinary, not aligned", cuda_norm_numbers(n, -20, 16, 0), n, 1);
  cuda_check_norm(ops, "tiny", cuda_norm_numbers(n, -64, 34, 0), n, 0);
  cuda_check_norm(ops, "every fp32", cuda_norm_numbers(n, -126, 254, 0), n, 3);
  cuda_check_norm(ops, "around 2^21", cuda_norm_numbers(n, 19, 4, 0), n, 0);
  cuda_check_norm(ops, "around 2^28", cuda_norm_numbers(n, 25, 6, 0), n, 0);
  cuda_check_norm(ops, "ordinary and huge", cuda_norm_numbers(n, -20, 16, 127), n, 0);
  float *g = cuda_norm_numbers(n, -149, 24, 0);
  cuda_check_norm(ops, "subnormal", g, n, 0);
  for (int64_t j = 0; j < n; j++) g[j] = j % 3 ? 0.0f : 3.40282347e38f;
  cuda_check_norm(ops, "FLT_MAX", g, n, 0);
  for (int64_t j = 0; j < n; j++) g[j] = j % 3 == 0 ? 1.0f : j % 3 == 1 ? NAN : -INFINITY;
  cuda_check_norm(ops, "not finite", g, n, 0);
  cuda_check_norm(ops, "one", g, 1, 0);
  g[0] = 0x1p21f;
  for (int64_t j = 1; j < n; j++) g[j] = nextafterf(j % 11 ? g[j - 1] : g[j - 1] / 8, 0.0f);
  cuda_check_norm(ops, "below 2^21 and its eighths, bit by bit", g, n, 0);
  op_free_all();
}
TEST(cuda_norm, "CUDA norm_accumulate leaves the CPU's limbs: every exponent, subnormals, Inf and NaN, any alignment, "
                "in integers and, where fp64 is fast, in fp64") {
  for (int i = 0; const Ops *ops = device_table(i); i++) {
    cuda_check_norms(ops);
    if (ops != &ops_cuda_emulated) continue;
    emu_set_capability(86);
    cuda_check_norms(ops);
    emu_set_capability(80);
  }
}
TEST(cuda_norm_all, "CUDA norm_accumulate leaves the CPU's limbs over more elements than one round of the grid") {
  for (int i = 0; const Ops *ops = device_table(i); i++) {
    const int64_t n = 8 * 2048 * 256 + 2077;
    cuda_check_norm(ops, "scaled by 65536", cuda_norm_numbers(n, -12, 24, 0), n, 0);
    op_free_all();
  }
}

// ================================================================================================ one step's decision
TEST(cuda_loss_mean, "CUDA loss_mean has the CPU's bits for any number of losses") {
  for (int i = 0; const Ops *ops = device_table(i); i++)
    for (int64_t n : {1, 255, 256, 257, 5000}) {
      CudaOps o = cuda_ops_open(ops, cuda_ops_query(F32, 1, 1, 1), cuda_ops_state(0));
      Tensor losses = op_random_tensor((uint64_t)n, 3.0, F32, n), d_losses = device_upload(&o.gpu, losses);
      double want = 0, got = 0, *to = (double *)device_block(&o.gpu, sizeof(double));
      loss_mean(&o.cpu, &want, losses);
      loss_mean(&o.gpu, to, d_losses);
      o.gpu.ops->copy(&o.gpu, &got, to, sizeof got);
      o.gpu.ops->sync(&o.gpu);
      EXPECT(memcmp(&got, &want, sizeof got) == 0, "%s: mean of %lld losses %.17g, CPU %.17g", ops->name, (long long)n,
             got, want);
      cuda_ops_close(&o);
    }
}
// Four steps, the second of which overflows.
static void cuda_check_step_decide(const Ops *ops, StepRule rule) {
  StepState state = cuda_ops_state(0);
  state.loss_scale = 65536.0f;
  CudaOps o = cuda_ops_open(ops, cuda_ops_query(F32, 1, 1, 1), state);
  const size_t record = exchange_bytes(rule.microbatches), bytes = record * (size_t)rule.world,
               losses_bytes = sizeof(double) * (size_t)(rule.world * rule.microbatches);
  char *exchange = (char *)op_alloc(bytes), *d_exchange = (char *)device_block(&o.gpu, bytes);
  double *want = (double *)op_alloc(losses_bytes), *got = (double *)op_alloc(losses_bytes),
         *d_losses = (double *)device_block(&o.gpu, losses_bytes);
  uint64_t seed = 1;
  for (int step = 0; step < 4; step++) {
    for (int r = 0; r < rule.world; r++) {
      Exchange *e = (Exchange *)(exchange + (size_t)r * record);
      memset((void *)e, 0, sizeof *e);
      for (int j = 0; j < 5; j++) e->limbs[j] = (int64_t)(op_random(&seed) >> (step ? 2 : 32));
      e->limbs[NORM_NONFINITE] = step == 1;
      e->stop = step == 3 && r == rule.world - 1;
      for (int a = 0; a < rule.microbatches; a++) ((double *)(e + 1))[a] = 10.0 * op_uniform(&seed);
    }
    o.gpu.ops->copy(&o.gpu, d_exchange, exchange, bytes);
    for (int r = 0; r < rule.world; r++) norm_carry(((Exchange *)(exchange + (size_t)r * record))->limbs);
    step_decide(&o.cpu, &op_state, want, exchange, rule);
    step_decide(&o.gpu, (StepState *)o.gpu.state, d_losses, d_exchange, rule);
    o.gpu.ops->copy(&o.gpu, got, d_losses, losses_bytes);
    const StepState s = device_state(&o.gpu);
    EXPECT(memcmp(&s, &op_state, sizeof s) == 0,
           "%s, step %d: norm %.17g, CPU %.17g, loss %.17g, CPU %.17g, grad_scale %.9g, CPU %.9g, skip %d, CPU %d",
           ops->name, step, s.grad_norm, op_state.grad_norm, s.loss, op_state.loss, (double)s.grad_scale,
           (double)op_state.grad_scale, s.skip, op_state.skip);
    EXPECT(memcmp(got, want, losses_bytes) == 0, "%s, step %d: losses in another order", ops->name, step);
  }
  cuda_ops_close(&o);
}
TEST(cuda_step_decide,
     "CUDA step_decide writes the CPU's state, bit for bit, through an overflow; carries that ranks left in their "
     "limbs, whose sum would overflow, change nothing") {
  for (int i = 0; const Ops *ops = device_table(i); i++) {
    cuda_check_step_decide(ops, {1, 1, 0.9f, 0.95f, 0.0, false});
    cuda_check_step_decide(ops, {3, 2, 0.9f, 0.999f, 1.0, true});
  }
}

// ================================================================================================ conversions
TEST(cuda_convert, "CUDA convert and accumulate equal the CPU's for every 16-bit pattern and fp32 of every kind") {
  const int64_t n = 65536 + 13;
  for (int i = 0; const Ops *ops = device_table(i); i++)
    for (Dtype from : {F32, BF16, F16}) {
      CudaOps o = cuda_ops_open(ops, cuda_ops_query(from, 1, 1, 1), cuda_ops_state(0));
      Tensor in = op_tensor(from, n);
      uint64_t seed = 3;
      for (int64_t j = 0; j < n; j++) {
        uint32_t bits = (uint32_t)op_random(&seed);
        if (j & 1) bits = (bits & 0x8fffffffu) | 0x30000000u;                 // where fp16 is normal or subnormal
        if (j % 16 == 3) bits = (bits & 0xffff0000u) | 0x8000u;               // ties
        if (j % 16 == 5) bits = (bits & 0xffffe000u) | 0x1000u;
        if (from == F32) ((uint32_t *)in.data)[j] = bits;
        else ((uint16_t *)in.data)[j] = (uint16_t)j;
      }
      Tensor d_in = device_upload(&o.gpu, in), before = op_random_tensor(5, 1.0, F32, n);
      for (int shift = 0; shift < 2; shift++) {
        for (Dtype to : {F32, BF16, F16}) {
          Tensor want = op_tensor(to, n), d_out = device_tensor(&o.gpu, to, n);
          convert(&o.cpu, op_shifted(want, shift), op_shifted(in, shift));
          convert(&o.gpu, op_shifted(d_out, shift), op_shifted(d_in, shift));
          Tensor got = device_download(&o.gpu, d_out);
          int64_t bad = -1;
          for (int64_t j = shift; j < n && bad < 0; j++) if (!ops_same_number(got, want, j)) bad = j;
          EXPECT(bad < 0, "%s to %s: element %lld is %.9g, CPU %.9g", dtype_name(from), dtype_name(to), (long long)bad,
                 op_get(got, bad < 0 ? 0 : bad), op_get(want, bad < 0 ? 0 : bad));
        }
        for (Accumulate mode : {OVERWRITE, ADD}) {
          Tensor want = op_copy(before), d_sum = device_upload(&o.gpu, before);
          for (int count : {1, 3}) {
            accumulate(&o.cpu, op_shifted(want, shift), op_summands(op_shifted(in, shift), count), mode);
            accumulate(&o.gpu, op_shifted(d_sum, shift), op_summands(op_shifted(d_in, shift), count), mode);
          }
          Tensor got = device_download(&o.gpu, d_sum);
          int64_t bad = -1;
          for (int64_t j = 0; j < n && bad < 0; j++) if (!ops_same_number(got, want, j)) bad = j;
          EXPECT(bad < 0, "accumulate %s: element %lld is %.9g, CPU %.9g", dtype_name(from), (long long)bad,
                 op_get(got, bad < 0 ? 0 : bad), op_get(want, bad < 0 ? 0 : bad));
        }
      }
      cuda_ops_close(&o);
    }
}
TEST(cuda_fill, "CUDA fill and normal_fill have the CPU's bits at any offset and alignment, past 2^34 elements") {
  for (int i = 0; const Ops *ops = device_table(i); i++)
    for (int64_t n : {1, 6, 1027, 5000})
      for (int64_t shift = 0; shift < 4; shift++) {
        CudaOps o = cuda_ops_open(ops, cuda_ops_query(F32, 1, 1, 1), cuda_ops_state(0));
        const int64_t offset = ((int64_t)1 << 34) - 600 + 3 * shift;          // the counter passes 2^32 on the way
        Tensor want = op_tensor(F32, n + shift), got = device_tensor(&o.gpu, F32, n + shift);
        normal_fill(&o.cpu, op_shifted(want, shift), 77, 3, offset, 0.02f);
        normal_fill(&o.gpu, op_shifted(got, shift), 77, 3, offset, 0.02f);
        device_expect_same_bits("normal_fill", &o.gpu, op_shifted(got, shift), op_shifted(want, shift));
        fill(&o.cpu, op_shifted(want, shift), 1.5f);
        fill(&o.gpu, op_shifted(got, shift), 1.5f);
        device_expect_same_bits("fill", &o.gpu, op_shifted(got, shift), op_shifted(want, shift));
        cuda_ops_close(&o);
      }
}

// ================================================================================================ fp8
static void cuda_check_fp8(const Ops *ops, Dtype dtype, int64_t n, int64_t shift) {
  CudaOps o = cuda_ops_open(ops, cuda_ops_query(dtype, 1, 1, 1), cuda_ops_state(0));
  Tensor in = fp8_numbers(dtype, n, 8.0), factor = fp8_scale_tensor(8.0), want = op_tensor(F8, n);
  Tensor bytes = op_tensor(F8, n), back = op_tensor(dtype, n);
  for (int64_t i = 0; i < n; i++) ((fp8 *)bytes.data)[i].bits = (uint8_t)(i * 37 + 11);
  Tensor d_in = device_upload(&o.gpu, in), d_bytes = device_upload(&o.gpu, bytes),
         d_factor = device_tensor(&o.gpu, F32, 1), d_out = device_tensor(&o.gpu, F8, n),
         d_back = device_tensor(&o.gpu, dtype, n);
  device_write(&o.gpu, d_factor, factor);
  fp8_encode(&o.cpu, op_shifted(want, shift), op_shifted(in, shift), factor);
  fp8_encode(&o.gpu, op_shifted(d_out, shift), op_shifted(d_in, shift), d_factor);
  device_expect_same_bits("fp8_encode", &o.gpu, op_shifted(d_out, shift), op_shifted(want, shift));
  fp8_decode(&o.cpu, op_shifted(back, shift), op_shifted(bytes, shift), factor);
  fp8_decode(&o.gpu, op_shifted(d_back, shift), op_shifted(d_bytes, shift), d_factor);
  Tensor got = device_download(&o.gpu, d_back);
  int64_t bad = -1;                              // the bits of a NaN do not matter
  for (int64_t j = shift; j < n && bad < 0; j++) if (!ops_same_number(got, back, j)) bad = j;
  EXPECT(bad < 0, "%s: element %lld is %.9g, CPU %.9g", device_where("fp8_decode", &o.gpu, dtype), (long long)bad,
         op_get(got, bad < 0 ? 0 : bad), op_get(back, bad < 0 ? 0 : bad));
  cuda_ops_close(&o);
}
TEST(cuda_fp8, "CUDA fp8_encode and fp8_decode have the CPU's bits at any length and start") {
  for (int i = 0; const Ops *ops = device_table(i); i++)
    for (Dtype dtype : {F32, BF16, F16})
      for (int64_t n : {1, 15, 16, 33, 5003})
        for (int64_t shift : {0, 1}) if (n > shift) cuda_check_fp8(ops, dtype, n, shift);
}
TEST(cuda_fp8_every_number, "CUDA fp8_encode of every 16-bit number, and of fp32 around every midpoint, is the CPU's") {
  for (int i = 0; const Ops *ops = device_table(i); i++)
    for (Dtype dtype : {F32, BF16, F16}) {
      CudaOps o = cuda_ops_open(ops, cuda_ops_query(dtype, 1, 1, 1), cuda_ops_state(0));
      const int64_t n = 65536;
      Tensor in = op_tensor(dtype, n), want = op_tensor(F8, n), one = fp8_scale_tensor(1.0);
      for (int64_t j = 0; j < n; j++) {          // fp32: the top 16 bits are j's, the rest is below, at or above a tie
        if (dtype == F32) ((uint32_t *)in.data)[j] = (uint32_t)j << 16 | (j % 3 ? j % 3 == 1 ? 1u : 0u : 0xffffu);
        else ((uint16_t *)in.data)[j] = (uint16_t)j;
      }
      Tensor d_out = device_tensor(&o.gpu, F8, n);
      fp8_encode(&o.cpu, want, in, one);
      fp8_encode(&o.gpu, d_out, device_upload(&o.gpu, in), device_upload(&o.gpu, one));
      device_expect_same_bits("fp8_encode", &o.gpu, d_out, want);
      cuda_ops_close(&o);
    }
}
static void cuda_check_absmax(const Ops *ops, Dtype dtype, int64_t n, int64_t shift, double peak) {
  CudaOps o = cuda_ops_open(ops, cuda_ops_query(dtype, 1, 1, 1), cuda_ops_state(0));
  Tensor in = op_random_tensor((uint64_t)n, 1.0, dtype, n), zero = fp8_scale_tensor(0.0), want = fp8_scale_tensor(0.0);
  if (peak != 0.0) op_put(in, shift + (n - shift) * 2 / 3, peak);
  Tensor d_in = device_upload(&o.gpu, in), d_to = device_upload(&o.gpu, zero);
  absmax(&o.cpu, want, op_shifted(in, shift));
  for (int twice = 0; twice < 2; twice++) {
    absmax(&o.gpu, d_to, op_shifted(d_in, shift));
    device_expect_same_bits("absmax", &o.gpu, d_to, want);
  }
  device_write(&o.gpu, d_to, fp8_scale_tensor(1e30));
  absmax(&o.gpu, d_to, op_shifted(d_in, shift));
  EXPECT(op_get(device_download(&o.gpu, d_to), 0) == fmax(op_get(want, 0), (double)1e30f), "%s: absmax lost 1e30",
         ops->name);
  cuda_ops_close(&o);
}
TEST(cuda_absmax, "CUDA absmax has the CPU's bits at any length and start, NaN and Inf are Inf, and it collects") {
  for (int i = 0; const Ops *ops = device_table(i); i++)
    for (Dtype dtype : {F32, BF16, F16})
      for (int64_t n : {2, 9, 255, 5003})
        for (double peak : {0.0, -100.0, (double)NAN, (double)-INFINITY})
          cuda_check_absmax(ops, dtype, n, n % 3 == 0, peak);
}
TEST(cuda_fp8_all, "CUDA absmax and fp8 codes are the CPU's over more elements than one round of the grid") {
  for (int i = 0; const Ops *ops = device_table(i); i++)
    for (int64_t shift : {0, 1}) {
      cuda_check_absmax(ops, BF16, (shift ? 1 : 8) * 2048 * 256 + 2077, shift, -100.0);
      cuda_check_fp8(ops, BF16, (shift ? 1 : 16) * 2048 * 256 + 2077, shift);
    }
}
TEST(cuda_fp8_scales, "CUDA fp8_scales has the CPU's bits for every exponent, any number of ranks and columns") {
  for (int i = 0; const Ops *ops = device_table(i); i++)
    for (int64_t rows : {1, 3}) {
      CudaOps o = cuda_ops_open(ops, cuda_ops_query(F32, 1, 1, 1), cuda_ops_state(0));
      const int64_t n = 3 * 256;
      Tensor amax = op_tensor(F32, rows, n), want = op_tensor(F32, n), got = device_tensor(&o.gpu, F32, n);
      for (int64_t j = 0; j < rows * n; j++)     // 1.75, and one unit on both sides of it
        ((uint32_t *)amax.data)[j] = ((uint32_t)(j % 256) << 23) + 0x5fffffu + (uint32_t)(j / 256 % 3);
      fp8_scales(&o.cpu, want, amax);
      fp8_scales(&o.gpu, got, device_upload(&o.gpu, amax));
      device_expect_same_bits("fp8_scales", &o.gpu, got, want);
      cuda_ops_close(&o);
    }
}
static void layers_check_change(const Ops *ops, bool device, int threads, const float *now, const float *before,
                                int64_t n, const int64_t *want) {
  Ctx c = device ? device_ctx(ops, cuda_ops_query(F32, 1, 1, 1)) : op_ctx(ops, threads, {F32, F32, 1, 1, 1, 1, 1, 1});
  Tensor a = op_tensor(F32, n), b = op_tensor(F32, n), limbs = op_tensor(I32, 2 * NORM_LIMBS);
  memcpy(a.data, now, (size_t)n * 4), memcpy(b.data, before, (size_t)n * 4);
  memset(limbs.data, 0, sizeof(int64_t) * NORM_LIMBS);
  Tensor to = device_upload(&c, limbs);
  norm_change(&c, (int64_t *)to.data, device_upload(&c, a), device_upload(&c, b));
  int64_t *got = (int64_t *)device_download(&c, to).data;
  norm_carry(got);
  EXPECT(!memcmp(got, want, sizeof(int64_t) * NORM_LIMBS),
         "%s, %d threads, %lld elements: not the norm of the differences", ops->name, threads, (long long)n);
  device_done(&c);
}

TEST(norm_change_is_of_differences,
     "norm_change adds the squares of now - before, rounded to fp32, exactly: the limbs of norm_accumulate of these, "
     "on all instruction sets, threads and CUDA") {
  for (int64_t n : {1, 17, 2048, 40003}) {
    Tensor now = op_random_tensor(1, 1.0, F32, n), before = op_random_tensor(2, 0.9, F32, n), less = op_tensor(F32, n);
    for (int64_t i = 0; i < n; i++) ((float *)less.data)[i] = ((float *)now.data)[i] - ((float *)before.data)[i];
    int64_t want[NORM_LIMBS] = {};
    const float *x = (const float *)now.data, *y = (const float *)before.data;
    ops_norm_run(op_table(0), 1, want, (const float *)less.data, n);
    for (OpRun r = op_run_first(); r.ops; r = op_run_next(r))
      layers_check_change(r.ops, false, r.threads, x, y, n, want);
    for (int i = 0; const Ops *ops = device_table(i); i++) layers_check_change(ops, true, 1, x, y, n, want);
    op_free_all();
  }
}

TEST(preference_on_cuda, "the CUDA op of pairs has the CPU's bits for more rows than it has threads, and rows of "
                         "padding") {
  const int64_t B = 131, T = 12;
  uint64_t seed = 9;
  for (int i = 0; const Ops *ops = device_table(i); i++) {
    CudaOps o = cuda_ops_open(ops, cuda_ops_query(F32, 1, 1, 1), cuda_ops_state(0));
    Tensor losses = op_tensor(F32, B * T), weights = op_random_tensor(4, 3.0, F32, B * T);
    Tensor targets = op_tensor(I32, B * T), starts = op_tensor(I32, B, T);
    for (int64_t k = 0; k < B * T; k++) {
      const int32_t t = (int32_t)(k % T), begin = t < 3 ? 0 : t < 7 ? 3 : t < 9 ? 7 : 9;      // the last is padding, or
      const bool trained = k / T % 5 && t % 3 && (begin < 7 || k / T % 2);                    // half a pair more
      ((int32_t *)starts.data)[k] = begin;
      ((int32_t *)targets.data)[k] = trained ? 1 : -1;
      ((float *)losses.data)[k] = trained ? (float)op_uniform(&seed) : 0;
    }
    for (PreferenceLoss loss : {PREFERENCE_DPO, PREFERENCE_IPO, PREFERENCE_HINGE, PREFERENCE_SIMPO, PREFERENCE_ORPO}) {
      double want[PREFERENCE_SUMS], got[PREFERENCE_SUMS];
      double *to = (double *)device_block(&o.gpu, sizeof got);
      Tensor d_weights = device_upload(&o.gpu, weights), cpu = op_tensor(F32, B * T);
      memcpy(cpu.data, weights.data, (size_t)(B * T) * 4);
      const PreferenceArgs a = {loss, 0.7, 0.1, 0.5};
      preference(&o.cpu, want, cpu, losses, targets, starts, a);
      preference(&o.gpu, to, d_weights, device_upload(&o.gpu, losses), device_upload(&o.gpu, targets),
                 device_upload(&o.gpu, starts), a);
      o.gpu.ops->copy(&o.gpu, got, to, sizeof got);
      o.gpu.ops->sync(&o.gpu);
      device_expect_same_bits("preference weights", &o.gpu, d_weights, cpu);
      EXPECT(!memcmp(got, want, sizeof got), "%s: loss %.17g, CPU %.17g", ops->name, got[0], want[0]);
    }
    cuda_ops_close(&o);
  }
}

// ---- the bench ------------------------------------------------------------------------------------------------------
TEST(cuda_bench_ops_gpu, "`build/bench_ops gpu` calls every op as it must be called, a Hopper's attention too") {
  device_on_hopper(true);
  for (int i = 0; const Ops *ops = device_table(i); i++) bench_gpu_ops(ops, true);
  device_on_hopper(false);
}
