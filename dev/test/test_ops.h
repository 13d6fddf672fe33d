// test_ops.h: random numbers, embedding, layer normalisation, cross-entropy, optimizers, norm, conversions. Each op
// runs on every table of this machine with 1, 2 and 3 threads. The first run is compared with a plain fp64 reference
// written here; all others must have its bits. References' gradients are checked by central differences. GEMMs and
// attention have separate files.

// Additions for n terms in 16 lanes and their tree, and one rounding for the product in each term.
static double ops_roundings(int64_t n) { return (double)((n + 15) / 16 + 5); }
static double ops_largest(const double *x, int64_t n) {
  double m = 0.0;
  for (int64_t i = 0; i < n; i++) m = fmax(m, fabs(x[i]));
  return m;
}

// ================================================================================================ random numbers
TEST(philox_known_answers, "Philox4x32-10 gives the words its authors published") {
  // random123's kat_vectors, philox4x32 10.
  const struct { uint64_t key; Philox counter, words; } known[] = {
      {0, {0, 0, 0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {UINT64_MAX, {~0u, ~0u, ~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {0x299f31d0a4093822u,
       {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}};
  for (auto &k : known) {
    Philox r = philox4x32(k.key, k.counter);
    EXPECT(r.x == k.words.x && r.y == k.words.y && r.z == k.words.z && r.w == k.words.w,
           "key %016llx: %08x %08x %08x %08x", (unsigned long long)k.key, r.x, r.y, r.z, r.w);
  }
}

// Embedding ones through dropout makes the mask visible: out = dropout_scale.
static Tensor ops_dropout_mask(Ctx *c, int64_t B, int64_t T, int64_t C, Dropout d) {
  Tensor wte = op_tensor(F32, 1, C), wpe = op_tensor(F32, T, C), tokens = op_tensor(I32, B, T),
         out = op_tensor(F32, B, T, C);
  for (int64_t i = 0; i < C; i++) op_put(wte, i, 1.0);
  for (int64_t i = 0; i < T * C; i++) op_put(wpe, i, 0.0);
  for (int64_t i = 0; i < B * T; i++) op_put(tokens, i, 0);
  embedding_forward(c, out, tokens, wte, wpe, d);
  return out;
}
TEST(dropout_vector_equals_scalar, "sixteen lanes of dropout at any alignment are sixteen scalar calls") {
  const Dropout d = {0.3f, 0x123456789abcdef0u, 17, 5, (int64_t)1 << 31};
  for (int64_t C : {1, 7, 16, 18, 33, 64}) {
    for (OpRun r = op_run_first(); r.ops; r = op_run_next(r)) {
      Ctx c = op_ctx(r.ops, r.threads, {F32, F32, 2, 5, C, 1, 1, 1});
      op_state.in.step = d.step;
      Tensor mask = ops_dropout_mask(&c, 2, 5, C, d);
      for (int64_t i = 0; i < numel(mask); i++) {
        float want = dropout_scale(&d, d.sample0 + i / (5 * C), i % (5 * C));
        if (op_get(mask, i) == want) continue;
        EXPECT(false, "%s: width %lld element %lld is %g, scalar %g", r.ops->name, (long long)C, (long long)i,
               op_get(mask, i), (double)want);
        break;
      }
      op_free_all();
    }
  }
}
TEST(dropout_rate, "dropout keeps 1-p of the elements, scales them by 1/(1-p), and depends on all four keys") {
  const int64_t n = 1 << 16;
  for (float p : {0.0f, 0.1f, 0.5f, 0.9f}) {
    Dropout base = {p, 42, 3, 2, 0};
    Dropout others[5] = {base, base, base, base, base};
    others[1].seed += (uint64_t)1 << 32, others[2].step++, others[3].tensor++, others[4].sample0++;
    double same[5] = {}, kept = 0.0;
    for (int64_t e = 0; e < n; e++) {
      float first = dropout_scale(&base, 0, e);
      EXPECT(first == 0.0f || first == 1.0f / (1.0f - p), "factor %g for p %g", (double)first, (double)p);
      kept += first != 0.0f;
      for (int k = 0; k < 5; k++)
        same[k] += (dropout_scale(others + k, others[k].sample0, e) != 0.0f) == (first != 0.0f);
    }
    // A count of n trials with probability q has standard deviation sqrt(n q (1-q)) <= sqrt(n)/2 = 128; five of them.
    EXPECT(fabs(kept - (1.0 - (double)p) * (double)n) <= 5 * 128, "p %g: kept %g of %lld", (double)p, kept,
           (long long)n);
    double agree = ((1.0 - p) * (1.0 - p) + p * p) * (double)n;
    for (int k = 1; k < 5; k++)
      EXPECT(fabs(same[k] - agree) <= 5 * 128, "p %g, key %d: %g of %lld agree", (double)p, k, same[k], (long long)n);
  }
}

// ================================================================================================ embedding
struct OpsEmbedding {
  int64_t B, T, C, V, positions;
  const int32_t *tokens;
  Dropout drop;
  double *wte, *wpe, *out, *dout, *dwte, *dwpe;
};
static double ops_embedding_reference(void *env) {
  OpsEmbedding *e = (OpsEmbedding *)env;
  double loss = 0.0;
  for (int64_t r = 0; r < e->B * e->T; r++)
    for (int64_t i = 0; i < e->C; i++) {
      int64_t t = r % e->T, at = r * e->C + i;
      double keep = e->drop.p > 0.0f ? dropout_scale(&e->drop, e->drop.sample0 + r / e->T, t * e->C + i) : 1.0;
      e->out[at] = keep * (e->wte[e->tokens[r] * e->C + i] + e->wpe[t * e->C + i]);
      loss += e->dout[at] * e->out[at];
    }
  return loss;
}
static void ops_embedding_reference_backward(OpsEmbedding *e) {
  for (int64_t r = 0; r < e->B * e->T; r++)
    for (int64_t i = 0; i < e->C; i++) {
      int64_t t = r % e->T;
      double keep = e->drop.p > 0.0f ? dropout_scale(&e->drop, e->drop.sample0 + r / e->T, t * e->C + i) : 1.0;
      e->dwte[e->tokens[r] * e->C + i] += keep * e->dout[r * e->C + i];
      e->dwpe[t * e->C + i] += keep * e->dout[r * e->C + i];
    }
}
// The old values for ADD: random, with many -0 in the rows that must stay, where adding a 0 would show.
static Tensor ops_old_positions(int64_t positions, int64_t T, int64_t C) {
  Tensor old = op_random_tensor(6, 2.0, F32, positions, C);
  for (int64_t i = T * C; i < positions * C; i += 2) op_put(old, i, -0.0);
  return old;
}
// ADD to dwpe against the result of OVERWRITE, and either gradient absent. e: the reference.
static void ops_check_embedding_modes(Ctx *c, OpRun r, OpsEmbedding *e, Tensor dout, Tensor tokens, Tensor before,
                                      Tensor dwte, Tensor dwpe) {
  const int64_t C = e->C;
  Tensor none = {}, old = ops_old_positions(e->positions, e->T, C), want = op_copy(old);
  Tensor seen = rows_of(old, 0, e->T), sum = op_added(seen, rows_of(dwpe, 0, e->T));
  memcpy(want.data, sum.data, (size_t)numel(sum) * 4);             // rows from T on stay unchanged
  for (Accumulate mode : {OVERWRITE, ADD}) for (int absent = 0; absent < 4; absent++) {
    Tensor word = absent & 1 ? none : op_copy(before), position = absent & 2 ? none : op_copy(old);
    embedding_backward(c, word, position, dout, tokens, e->drop, mode);
    if (word.data) op_expect_same_bits(op_where("embedding_backward dwte, other modes", r, dout.dtype), word, dwte);
    if (position.data)
      op_expect_same_bits(op_where(mode == ADD ? "embedding_backward dwpe added" : "dwpe without dwte", r, dout.dtype),
                          position, mode == ADD ? want : dwpe);
    if (!op_run_is_first(r) || mode == OVERWRITE || !position.data) continue;
    double *reference = op_fp64(old);            // one more rounding than OVERWRITE, of a value below 12 + the sum
    for (int64_t i = 0; i < numel(old); i++) reference[i] += e->dwpe[i];
    op_expect_close(op_where("embedding_backward dwpe added", r, dout.dtype), position, reference, 5,
                    3 * ops_largest(e->dout, numel(dout)) * 2 + 12.0);
  }
}
static void ops_check_embedding(Dtype dtype, int64_t C, float p) {
  OpsEmbedding e = {3, 5, C, 11, 8, NULL, {p, 99, 4, 1, 12}, NULL, NULL, NULL, NULL, NULL, NULL};
  Tensor tokens = op_random_ids(1, e.V, e.B, e.T), wte = op_random_tensor(2, 1.0, dtype, e.V, C);
  Tensor wpe = op_random_tensor(3, 1.0, dtype, e.positions, C), dout = op_random_tensor(4, 1.0, dtype, e.B, e.T, C);
  Tensor before = op_random_tensor(5, 1.0, F32, e.V, C), first_out = {}, first_dwte = {}, first_dwpe = {};
  e.tokens = (int32_t *)tokens.data;
  e.wte = op_fp64(wte), e.wpe = op_fp64(wpe), e.dout = op_fp64(dout), e.out = op_zeros(numel(dout));
  e.dwte = op_zeros(numel(wte)), e.dwpe = op_zeros(numel(wpe));
  ops_embedding_reference(&e);
  ops_embedding_reference_backward(&e);
  double scale = 10.0 * (double)numel(dout);     // |loss| <= sum of |dout| times |out|
  op_expect_gradient("embedding dwte", ops_embedding_reference, &e, e.wte, e.dwte, numel(wte), 20, scale);
  op_expect_gradient("embedding dwpe", ops_embedding_reference, &e, e.wpe, e.dwpe, numel(wpe), 20, scale);
  for (int64_t i = 0; i < numel(wte); i++) e.dwte[i] += op_get(before, i);
  for (OpRun r = op_run_first(); r.ops; r = op_run_next(r)) {
    Ctx c = op_ctx(r.ops, r.threads, {dtype, F32, e.B, e.T, C, 1, e.V, 1});
    op_state.in.step = e.drop.step;
    Tensor out = op_tensor(dtype, e.B, e.T, C), dwte = op_copy(before), dwpe = op_tensor(F32, e.positions, C);
    embedding_forward(&c, out, tokens, wte, wpe, e.drop);
    embedding_backward(&c, dwte, dwpe, dout, tokens, e.drop, OVERWRITE);
    if (op_run_is_first(r)) {
      // forward: a sum and a product; backward: a product and at most B T + 1 additions, 15 |dout| 1/(1-p) in all
      op_expect_close(op_where("embedding_forward", r, dtype), out, e.out, 2);
      op_expect_close(op_where("embedding_backward dwte", r, dtype), dwte, e.dwte, 17,
                      15 * ops_largest(e.dout, numel(dout)) * 2);
      op_expect_close(op_where("embedding_backward dwpe", r, dtype), dwpe, e.dwpe, 4,
                      3 * ops_largest(e.dout, numel(dout)) * 2);
      first_out = out, first_dwte = dwte, first_dwpe = dwpe;
    }
    op_expect_same_bits(op_where("embedding_forward", r, dtype), out, first_out);
    op_expect_same_bits(op_where("embedding_backward dwte", r, dtype), dwte, first_dwte);
    op_expect_same_bits(op_where("embedding_backward dwpe", r, dtype), dwpe, first_dwpe);
    if (r.threads != 2) ops_check_embedding_modes(&c, r, &e, dout, tokens, before, dwte, dwpe);
  }
  op_free_all();
}
TEST(embedding, "embeddings equal fp64, the same bits everywhere; ADD is one addition; absent gradients change none") {
  for (Dtype dtype : {F32, BF16, F16})
    for (int64_t C : {1, 16, 31, 50, 64})
      for (float p : {0.0f, 0.4f}) ops_check_embedding(dtype, C, p);
}

// ================================================================================================ layer normalisation
struct OpsLayernorm {
  int64_t rows, C;
  double *x, *weight, *bias, *out, *mean, *rstd, *dout, *dx, *dweight, *dbias;
};
static double ops_layernorm_reference(void *env) {
  OpsLayernorm *e = (OpsLayernorm *)env;
  double loss = 0.0;
  for (int64_t r = 0; r < e->rows; r++) {
    double *x = e->x + r * e->C, mean = 0.0, var = 0.0;
    for (int64_t i = 0; i < e->C; i++) mean += x[i] / (double)e->C;
    for (int64_t i = 0; i < e->C; i++) var += (x[i] - mean) * (x[i] - mean) / (double)e->C;
    e->mean[r] = mean, e->rstd[r] = 1.0 / sqrt(var + (double)1e-5f);
    for (int64_t i = 0; i < e->C; i++) {
      e->out[r * e->C + i] = (x[i] - mean) * e->rstd[r] * e->weight[i] + e->bias[i];
      loss += e->dout[r * e->C + i] * e->out[r * e->C + i];
    }
  }
  return loss;
}
// With the given mean and rstd, like the op.
static void ops_layernorm_reference_backward(OpsLayernorm *e) {
  for (int64_t i = 0; i < e->C; i++) e->dweight[i] = e->dbias[i] = 0.0;
  for (int64_t r = 0; r < e->rows; r++) {
    double g_mean = 0.0, gx_mean = 0.0;
    for (int64_t i = 0; i < e->C; i++) {
      double dout = e->dout[r * e->C + i], xhat = (e->x[r * e->C + i] - e->mean[r]) * e->rstd[r];
      g_mean += dout * e->weight[i] / (double)e->C, gx_mean += dout * e->weight[i] * xhat / (double)e->C;
      e->dweight[i] += dout * xhat, e->dbias[i] += dout;
    }
    for (int64_t i = 0; i < e->C; i++) {
      double xhat = (e->x[r * e->C + i] - e->mean[r]) * e->rstd[r];
      e->dx[r * e->C + i] = e->rstd[r] * (e->dout[r * e->C + i] * e->weight[i] - g_mean - xhat * gx_mean);
    }
  }
}
static OpsLayernorm ops_layernorm_of(Tensor x, Tensor weight, Tensor bias, Tensor dout) {
  int64_t C = numel(weight), rows = numel(x) / C;
  return {rows, C, op_fp64(x), op_fp64(weight), op_fp64(bias), op_zeros(rows * C), op_zeros(rows), op_zeros(rows),
          op_fp64(dout), op_zeros(rows * C), op_zeros(C), op_zeros(C)};
}
static void ops_expect_layernorm(OpRun r, Dtype dtype, OpsLayernorm *e, Tensor out, Tensor mean, Tensor rstd) {
  const double k = ops_roundings(e->C), x = ops_largest(e->x, e->rows * e->C), s = ops_largest(e->rstd, e->rows);
  op_expect_close(op_where("layernorm mean", r, dtype), mean, e->mean, k, x);
  // The error of the mean leaves the sum of squares alone to first order; rstd has half the relative error of that sum,
  // and a division, an addition, a root and a division of its own.
  op_expect_close(op_where("layernorm rstd", r, dtype), rstd, e->rstd, k + 4, s);
  // out carries the mean's error times rstd weight, and the errors of rstd and of three operations.
  op_expect_close(op_where("layernorm out", r, dtype), out, e->out, k + 8,
                  3.0 * x * s * ops_largest(e->weight, e->C) + ops_largest(e->bias, e->C));
}
static const struct {
  int64_t B, T, C;
} OPS_LAYERNORM_SHAPES[] = {{1, 1, 1}, {2, 3, 16}, {1, 5, 7}, {3, 47, 50}, {2, 9, 129}};

static void ops_check_layernorm_forward(Dtype dtype, int64_t B, int64_t T, int64_t C, float p) {
  Tensor in = op_random_tensor(1, 1.0, dtype, B, T, C), branch = op_random_tensor(2, 1.0, dtype, B, T, C);
  Tensor weight = op_random_tensor(3, 1.0, dtype, C), bias = op_random_tensor(4, 1.0, dtype, C);
  const Dropout drop = {p, 7, 1, 2, 5};
  Tensor first[8] = {};
  for (OpRun r = op_run_first(); r.ops; r = op_run_next(r)) {
    Ctx c = op_ctx(r.ops, r.threads, {dtype, F32, B, T, C, 1, 1, 1});
    op_state.in.step = drop.step;
    Tensor got[7] = {op_tensor(dtype, B, T, C), op_tensor(F32, B, T), op_tensor(F32, B, T), op_tensor(dtype, B, T, C),
                     op_tensor(dtype, B, T, C), op_tensor(F32, B, T), op_tensor(F32, B, T)};
    layernorm_forward(&c, got[0], got[1], got[2], in, weight, bias, LAYERNORM_EPS);
    residual_layernorm_forward(&c, got[3], got[4], got[5], got[6], in, branch, weight, bias, LAYERNORM_EPS, drop);
    if (op_run_is_first(r)) {
      OpsLayernorm e = ops_layernorm_of(in, weight, bias, in);
      ops_layernorm_reference(&e);
      ops_expect_layernorm(r, dtype, &e, got[0], got[1], got[2]);
      double *sum = op_fp64(in);
      for (int64_t i = 0; i < numel(in); i++) {
        double keep = p > 0.0f ? dropout_scale(&drop, drop.sample0 + i / (T * C), i % (T * C)) : 1.0;
        sum[i] += keep * op_get(branch, i);
      }
      // A product and a sum, whose terms are at most 5 + 5/(1-p).
      op_expect_close(op_where("residual", r, dtype), got[3], sum, 2, 20.0);
      e = ops_layernorm_of(got[3], weight, bias, in);
      ops_layernorm_reference(&e);
      ops_expect_layernorm(r, dtype, &e, got[4], got[5], got[6]);
      memcpy(first, got, sizeof got);
    }
    for (int i = 0; i < 7; i++) op_expect_same_bits(op_where("layernorm forward", r, dtype), got[i], first[i]);
  }
  op_free_all();
}
TEST(layernorm_forward_fp64, "layernorm_forward and residual_layernorm_forward equal fp64, same bits everywhere") {
  for (Dtype dtype : {F32, BF16, F16})
    for (auto s : OPS_LAYERNORM_SHAPES)
      for (float p : {0.0f, 0.25f}) ops_check_layernorm_forward(dtype, s.B, s.T, s.C, p);
}

// Backward recomputes from the residual that it kept the same values that forward had.
TEST(layernorm_again, "layernorm_forward of a stored residual has the bits of the fused op that stored it") {
  static const struct { int64_t B, T, C; } shapes[] = {{1, 1, 1}, {1, 5, 7}, {2, 3, 16}, {3, 7, 50}, {2, 2, 769},
                                                       {1, 3, 1600}};
  for (Dtype dtype : {F32, BF16, F16}) for (auto s : shapes) for (float p : {0.0f, 0.25f}) {
    Tensor in = op_random_tensor(1, 1.0, dtype, s.B, s.T, s.C), branch = op_random_tensor(2, 1.0, dtype, s.B, s.T, s.C),
           weight = op_random_tensor(3, 1.0, dtype, s.C), bias = op_random_tensor(4, 1.0, dtype, s.C);
    for (OpRun r = op_run_first(); r.ops; r = op_run_next(r)) {
      Ctx c = op_ctx(r.ops, r.threads, {dtype, F32, s.B, s.T, s.C, 1, 1, 1});
      op_state.in.step = 3;
      Tensor residual = op_tensor(dtype, s.B, s.T, s.C), out = op_tensor(dtype, s.B, s.T, s.C),
             mean = op_tensor(F32, s.B, s.T), rstd = op_tensor(F32, s.B, s.T), out2 = op_copy(in),
             mean2 = op_copy(rstd), rstd2 = op_copy(rstd);
      residual_layernorm_forward(&c, residual, out, mean, rstd, in, branch, weight, bias, LAYERNORM_EPS,
                                 {p, 7, 1, 2, 5});
      layernorm_forward(&c, out2, mean2, rstd2, residual, weight, bias, LAYERNORM_EPS);
      op_expect_same_bits(op_where("layernorm out again", r, dtype), out2, out);
      op_expect_same_bits(op_where("layernorm mean again", r, dtype), mean2, mean);
      op_expect_same_bits(op_where("layernorm rstd again", r, dtype), rstd2, rstd);
      Tensor sum = op_copy(branch);              // and the sum itself, from its operands
      residual_layernorm_forward(&c, sum, out2, mean2, rstd2, in, sum, weight, bias, LAYERNORM_EPS, {p, 7, 1, 2, 5});
      op_expect_same_bits(op_where("residual again", r, dtype), sum, residual);
    }
    op_free_all();
  }
}

// One call's operands, and OVERWRITE's results with all gradients present: dresidual, dbranch, dweight, dbias.
struct OpsLayernormCall { Tensor above, dout, x, weight, mean, rstd, got[4]; Dropout drop; };
// Either gradient absent leaves the others' bits; ADD is the old value plus the fp32 sum.
static void ops_check_layernorm_modes(Ctx *c, OpRun r, const OpsLayernormCall *k) {
  const Dtype dtype = k->dout.dtype;
  const int64_t B = k->dout.shape[0], T = k->dout.shape[1], C = k->dout.shape[2];
  Tensor none = {}, sums[2], old[2], want[2];
  for (int i = 0; i < 2; i++) {
    sums[i] = op_tensor(F32, C);                 // fp32 for any dtype of the gradients in `got`
    old[i] = op_random_tensor(31 + (uint64_t)i, 3.0, F32, C);
  }
  layernorm_backward(c, op_copy(k->above), op_tensor(dtype, B, T, C), sums[0], sums[1], k->dout, k->x, k->weight,
                     k->mean, k->rstd, k->drop, OVERWRITE);
  for (int i = 0; i < 2; i++) want[i] = op_added(old[i], sums[i]);
  for (Accumulate mode : {OVERWRITE, ADD}) for (int absent = 0; absent < 4; absent++) {
    Tensor d[4] = {op_copy(k->above), op_tensor(dtype, B, T, C), none, none};
    op_forget_workspace(c);
    for (int i = 0; i < 2; i++)
      if (!(absent >> i & 1)) d[2 + i] = mode == ADD ? op_copy(old[i]) : op_tensor(k->got[2].dtype, C);
    layernorm_backward(c, d[0], d[1], d[2], d[3], k->dout, k->x, k->weight, k->mean, k->rstd, k->drop, mode);
    for (int i = 0; i < 4; i++)
      if (d[i].data)
        op_expect_same_bits(op_where(mode == ADD ? "layernorm_backward adding" : "with gradients absent", r, dtype),
                            d[i], mode == ADD && i > 1 ? want[i - 2] : k->got[i]);
  }
}
// dweight of dtype grad; reference from the same mean and rstd.
static void ops_check_layernorm_backward(Dtype dtype, Dtype grad, int64_t B, int64_t T, int64_t C, float p) {
  Tensor x = op_random_tensor(1, 1.0, dtype, B, T, C), dout = op_random_tensor(2, 1.0, dtype, B, T, C);
  Tensor weight = op_random_tensor(3, 1.0, dtype, C), above = op_random_tensor(4, 1.0, dtype, B, T, C);
  Tensor mean = op_tensor(F32, B, T), rstd = op_tensor(F32, B, T), first[4] = {};
  const Dropout drop = {p, 7, 1, 2, 5};
  OpsLayernorm e = ops_layernorm_of(x, weight, weight, dout);
  ops_layernorm_reference(&e);
  ops_layernorm_reference_backward(&e);
  // |loss| sums |dout out| < 10; third derivatives grow with rstd^3, so C = 1 with its rstd of 316 is left out.
  const double scale = 1000.0 * (double)numel(x);
  if (C > 1) {
    op_expect_gradient("layernorm dx", ops_layernorm_reference, &e, e.x, e.dx, numel(x), 12, scale);
    op_expect_gradient("layernorm dweight", ops_layernorm_reference, &e, e.weight, e.dweight, C, 12, scale);
    op_expect_gradient("layernorm dbias", ops_layernorm_reference, &e, e.bias, e.dbias, C, 12, scale);
  }
  ops_layernorm_reference(&e);
  op_set(mean, e.mean), op_set(rstd, e.rstd);
  e.mean = op_fp64(mean), e.rstd = op_fp64(rstd);
  ops_layernorm_reference_backward(&e);
  double x_hat = 0.0, dw_scale = 0.0, db_scale = 0.0, dx_scale,
         g = ops_largest(e.dout, numel(x)) * ops_largest(e.weight, C);
  for (int64_t i = 0; i < C; i++) {
    double dw = 0.0, db = 0.0;
    for (int64_t r = 0; r < B * T; r++) {
      double h = fabs(e.x[r * C + i] - e.mean[r]) * e.rstd[r], d = fabs(e.dout[r * C + i]);
      x_hat = fmax(x_hat, h), dw += d * h, db += d;
    }
    dw_scale = fmax(dw_scale, dw), db_scale = fmax(db_scale, db);
  }
  double *total = op_fp64(above), *masked = op_zeros(numel(x));
  for (int64_t i = 0; i < numel(x); i++) total[i] += e.dx[i];
  dx_scale = ops_largest(total, numel(x)) + ops_largest(e.rstd, B * T) * g * (2.0 + x_hat * x_hat);
  for (OpRun r = op_run_first(); r.ops; r = op_run_next(r)) {
    Ctx c = op_ctx(r.ops, r.threads, {dtype, grad, B, T, C, 1, 1, 1});
    op_state.in.step = drop.step;
    Tensor got[4] = {op_copy(above), op_tensor(dtype, B, T, C), op_tensor(grad, C), op_tensor(grad, C)};
    layernorm_backward(&c, got[0], got[1], got[2], got[3], dout, x, weight, mean, rstd, drop, OVERWRITE);
    if (op_run_is_first(r)) {
      // A row's sums, then six operations; a column's sum has min(64, B T) + blocks additions, a term three operations.
      op_expect_close(op_where("layernorm dresidual", r, dtype), got[0], total, ops_roundings(C) + 8, dx_scale);
      double k = fmin(64.0, (double)(B * T)) + (double)(B * T / 64 + 1) + 3;
      op_expect_close(op_where("layernorm dweight", r, grad), got[2], e.dweight, k, dw_scale);
      op_expect_close(op_where("layernorm dbias", r, grad), got[3], e.dbias, k, db_scale);
      for (int64_t i = 0; i < numel(x); i++) {
        double keep = p > 0.0f ? dropout_scale(&drop, drop.sample0 + i / (T * C), i % (T * C)) : 1.0;
        masked[i] = keep * op_get(got[0], i);
      }
      op_expect_close(op_where("layernorm dbranch", r, dtype), got[1], masked, 1);
      memcpy(first, got, sizeof got);
    }
    for (int i = 0; i < 4; i++) op_expect_same_bits(op_where("layernorm_backward", r, dtype), got[i], first[i]);
    const OpsLayernormCall call = {above, dout, x, weight, mean, rstd, {got[0], got[1], got[2], got[3]}, drop};
    if (r.threads != 2) ops_check_layernorm_modes(&c, r, &call);
    if (p > 0.0f) continue;
    for (int same = 0; same < 2; same++) {       // without dropout, no branch or dresidual itself: same values
      Tensor d = op_copy(above), none = {}, dw = op_tensor(grad, C), db = op_tensor(grad, C);
      layernorm_backward(&c, d, same ? d : none, dw, db, dout, x, weight, mean, rstd, drop, OVERWRITE);
      op_expect_same_bits(op_where("layernorm_backward without branch", r, dtype), d, first[0]);
      op_expect_same_bits(op_where("layernorm_backward without branch", r, dtype), dw, first[2]);
    }
  }
  op_free_all();
}
TEST(layernorm_backward_fp64,
     "layernorm_backward equals fp64, same bits everywhere, for ADD and for absent gradients") {
  for (Dtype dtype : {F32, BF16, F16})
    for (auto s : OPS_LAYERNORM_SHAPES)
      for (float p : {0.0f, 0.25f}) ops_check_layernorm_backward(dtype, p > 0.0f ? F32 : dtype, s.B, s.T, s.C, p);
}

// ================================================================================================ cross-entropy
struct OpsCrossEntropy { int64_t vocab; double *x; int64_t target; double *dx; };
static double ops_cross_entropy_reference(void *env) {
  OpsCrossEntropy *e = (OpsCrossEntropy *)env;
  double max = -INFINITY, sum = 0.0;
  for (int64_t j = 0; j < e->vocab; j++) max = fmax(max, e->x[j]);
  for (int64_t j = 0; j < e->vocab; j++) sum += exp(e->x[j] - max);
  for (int64_t j = 0; j < e->vocab; j++) e->dx[j] = exp(e->x[j] - max) / sum - (j == e->target);
  return log(sum) - (e->x[e->target] - max);
}
static void ops_check_cross_entropy(Dtype dtype, int64_t R, int64_t vocab, int64_t Vp, double spread, float scale) {
  Tensor logits = op_random_tensor(1, spread, F32, R, Vp), targets = op_random_ids(2, vocab, R);
  ((int32_t *)targets.data)[R - 1] = -1;
  for (int64_t r = 0; r < R; r++)                // padded columns must not matter
    for (int64_t j = vocab; j < Vp; j++) ((float *)logits.data)[r * Vp + j] = j & 1 ? NAN : 1e38f;
  Tensor half = op_tensor(BF16, R, Vp);
  for (int64_t i = 0; i < R * Vp && dtype == BF16; i++)            // values that logits in bf16 have too
    op_put(half, i, op_get(logits, i)), op_put(logits, i, op_get(half, i));
  double *losses = op_zeros(R), *dx = op_zeros(R * Vp), *x = op_fp64(logits);
  for (int64_t r = 0; r + 1 < R; r++) {
    OpsCrossEntropy e = {vocab, x + r * Vp, ((int32_t *)targets.data)[r], dx + r * Vp};
    losses[r] = ops_cross_entropy_reference(&e);
    if (r == 0 && spread < 10.0) {
      double *d = op_zeros(vocab);
      memcpy(d, e.dx, (size_t)vocab * sizeof(double));
      op_expect_gradient("cross_entropy dlogits", ops_cross_entropy_reference, &e, e.x, d, vocab, 20, 20.0);
    }
    losses[r] = ops_cross_entropy_reference(&e); // the central differences have changed dx
  }
  for (int64_t i = 0; i < R * Vp; i++) dx[i] *= scale;
  // Sum of exponentials: its additions, one rescaling a piece of 1024, 2 ulp of e^x and |x - m| e^-|x - m| < 1 from the
  // rounded argument; the logarithm and two operations. The loss has that as absolute error, p as relative.
  const double k = ops_roundings(vocab) + 3.0 * (double)(vocab / 1024 + 1) + 10;
  Tensor first[3] = {};
  for (OpRun r = op_run_first(); r.ops; r = op_run_next(r)) {
    Ctx c = op_ctx(r.ops, r.threads, {dtype, F32, 1, R, 1, 1, Vp, R});
    Tensor got[3] = {op_tensor(F32, R), dtype == F32 ? op_copy(logits) : op_tensor(dtype, R, Vp), op_tensor(F32, R)};
    Tensor correct = op_tensor(I32, R);
    cross_entropy_forward(&c, got[2], correct, logits, targets, vocab);
    cross_entropy_forward_backward(&c, got[0], got[1], dtype == F32 ? got[1] : logits, targets, vocab, scale, 0.0f);
    if (op_run_is_first(r)) {
      op_expect_close(op_where("cross_entropy loss", r, dtype), got[0], losses, k, 1.0 + ops_largest(losses, R));
      op_expect_close(op_where("cross_entropy dlogits", r, dtype), got[1], dx, k, fabs((double)scale));
      memcpy(first, got, sizeof got);
    }
    op_expect_same_bits(op_where("cross_entropy losses of the two ops", r, dtype), got[2], got[0]);
    for (int i = 0; i < 3; i++) op_expect_same_bits(op_where("cross_entropy", r, dtype), got[i], first[i]);
    if (dtype != F32) {                          // on the logits, from one row before them
      Tensor room = op_tensor(dtype, 2 * R + 1, Vp), on = tensor_of(rows_of(room, 1, 1).data, F32, R, Vp);
      memcpy(on.data, logits.data, sizeof(float) * (size_t)(R * Vp));
      cross_entropy_forward_backward(&c, got[2], rows_of(room, 0, R), on, targets, vocab, scale, 0.0f);
      op_expect_same_bits(op_where("cross_entropy on the logits", r, dtype), got[2], first[0]);
      op_expect_same_bits(op_where("cross_entropy on the logits", r, dtype), rows_of(room, 0, R), first[1]);
    }
    for (int in_place = 0; in_place < 2 && dtype == BF16; in_place++) {
      Tensor from = op_copy(half), to = in_place ? from : op_tensor(BF16, R, Vp);
      cross_entropy_forward_backward(&c, got[2], to, from, targets, vocab, scale, 0.0f);
      op_expect_same_bits(op_where("cross_entropy of bf16 logits: losses", r, dtype), got[2], first[0]);
      op_expect_same_bits(op_where("cross_entropy of bf16 logits: dlogits", r, dtype), to, first[1]);
    }
    for (int64_t row = 0; row < R; row++) {
      int64_t target = ((int32_t *)targets.data)[row], best = 0;
      for (int64_t j = 1; j < vocab; j++) if (x[row * Vp + j] > x[row * Vp + best]) best = j;
      EXPECT(op_get(correct, row) == (best == target), "row %lld: correct is %g", (long long)row, op_get(correct, row));
    }
  }
  op_free_all();
}
TEST(cross_entropy_fp64, "both cross-entropy ops equal fp64; padded columns and ignored rows have gradient 0; logits "
                         "in bf16 give the bits of the same values in fp32") {
  for (Dtype dtype : {F32, BF16, F16}) {
    ops_check_cross_entropy(dtype, 4, 17, 32, 3.0, 1.0f);
    ops_check_cross_entropy(dtype, 3, 1, 16, 1.0, 0.5f);
    ops_check_cross_entropy(dtype, 5, 5003, 5056, 4.0, 0.125f);
    ops_check_cross_entropy(dtype, 37, 300, 320, 4.0, 0.125f);
    ops_check_cross_entropy(dtype, 3, 2048, 2048, 30.0, 64.0f);
  }
}
TEST(cross_entropy_extremes, "huge logits stay finite, the first of equal maxima wins, and a NaN shows in the loss") {
  const float x[5][4] = {{1e30f, -1e30f, 0, 0}, {5, 5, 1, 5}, {5, 5, 1, 5}, {0, NAN, 0, 0}, {0, INFINITY, 0, 0}};
  const int32_t ids[5] = {1, 0, 1, 0, 0};
  for (OpRun r = op_run_first(); r.ops; r = op_run_next(r)) {
    Ctx c = op_ctx(r.ops, r.threads, {F32, F32, 1, 5, 1, 1, 4, 5});
    Tensor logits = op_tensor(F32, 5, 4), targets = op_tensor(I32, 5), losses = op_tensor(F32, 5),
           correct = op_tensor(I32, 5);
    memcpy(logits.data, x, sizeof x), memcpy(targets.data, ids, sizeof ids);
    cross_entropy_forward(&c, losses, correct, logits, targets, 4);
    EXPECT(op_get(losses, 0) == (double)(1e30f + 1e30f), "loss %g of logits +-1e30", op_get(losses, 0));
    EXPECT(op_get(correct, 1) == 1 && op_get(correct, 2) == 0, "correct %g %g of equal maxima", op_get(correct, 1),
           op_get(correct, 2));
    EXPECT(isnan(op_get(losses, 3)) && isnan(op_get(losses, 4)), "losses %g %g of NaN and Inf", op_get(losses, 3),
           op_get(losses, 4));
    cross_entropy_forward_backward(&c, losses, logits, logits, targets, 4, 2.0f, 0.0f);
    EXPECT(op_get(logits, 0) == 2.0 && op_get(logits, 1) == -2.0, "gradient %g %g", op_get(logits, 0),
           op_get(logits, 1));
    EXPECT(isnan(op_get(logits, 12)) && isnan(op_get(logits, 16)), "gradients %g %g of NaN and Inf", op_get(logits, 12),
           op_get(logits, 16));
    op_free_all();
  }
}

// ================================================================================================ optimizers
struct OpsAdam { double *p, *m, *v; };
// torch.optim.AdamW in fp64, with the factors that the op gets.
static void ops_adamw_reference(OpsAdam *s, const double *grad, int64_t n, AdamwArgs a) {
  const double lr = op_state.in.lr;
  for (int64_t i = 0; i < n; i++) {
    double g = grad[i] * op_state.grad_scale;
    s->p[i] *= 1.0 - lr * a.weight_decay;
    s->m[i] = (double)a.beta1 * s->m[i] + (1.0 - (double)a.beta1) * g;
    s->v[i] = (double)a.beta2 * s->v[i] + (1.0 - (double)a.beta2) * g * g;
    s->p[i] -= lr / (double)op_state.bias_correction1 * s->m[i] /
               (sqrt(s->v[i]) / sqrt((double)op_state.bias_correction2) + a.eps);
  }
}
static void ops_check_adamw(Dtype dtype, int64_t n, bool cast) {
  const int steps = 5;
  Tensor first[4] = {}, start = op_random_tensor(1, 0.1, F32, n);
  for (OpRun r = op_run_first(); r.ops; r = op_run_next(r)) {
    Ctx c = op_ctx(r.ops, r.threads, {dtype, F32, 1, 1, 1, 1, 1, 1});
    Tensor none = {}, p = op_copy(start), m = op_tensor(F32, n), v = op_tensor(F32, n);
    Tensor param = cast ? op_tensor(dtype, n) : none;
    memset(m.data, 0, (size_t)n * 4), memset(v.data, 0, (size_t)n * 4);
    OpsAdam s = {op_fp64(start), op_zeros(n), op_zeros(n)};
    for (int step = 1; step <= steps; step++) {
      const AdamwArgs a = {0.9f, 0.95f, 1e-8f, 0.1f};
      ops_state_set(0.01f, 0.7f, (float)(1 - pow(0.9f, step)), (float)(1 - pow(0.95f, step)));
      Tensor grad = op_random_tensor((uint64_t)step, 1e-3, F32, n);
      if (n > 3) op_put(grad, 3, 0.0);
      adamw_update(&c, param, p, m, v, grad, a);
      ops_adamw_reference(&s, op_fp64(grad), n, a);
    }
    if (op_run_is_first(r)) {
      // m and v: four and five operations per step. p: a step has three roundings of size |p|. The terms of its update
      // are below lr 2.6: sum |terms of m| <= 1.17 sqrt(v) by Cauchy and Schwarz, and sqrt(bias_correction2) /
      // bias_correction1 is at most 2.24, at step 1. 20 roundings of m and 6 more are of that size.
      op_expect_close(op_where("adamw m", r, F32), m, s.m, 4 * steps);
      op_expect_close(op_where("adamw v", r, F32), v, s.v, 5 * steps);
      op_expect_close(op_where("adamw p", r, F32), p, s.p, 3 * steps, ops_largest(s.p, n) + 0.25);
      if (cast) op_expect_close(op_where("adamw param", r, dtype), param, op_fp64(p), 0);
      first[0] = p, first[1] = m, first[2] = v, first[3] = param;
    }
    op_expect_same_bits(op_where("adamw p", r, dtype), p, first[0]);
    op_expect_same_bits(op_where("adamw m", r, dtype), m, first[1]);
    op_expect_same_bits(op_where("adamw v", r, dtype), v, first[2]);
    if (cast) op_expect_same_bits(op_where("adamw param", r, dtype), param, first[3]);
  }
  op_free_all();
}
TEST(adamw_fp64, "five steps of adamw_update equal torch's formula in fp64; the parameter is the rounded master") {
  for (int64_t n : {1, 5, 16, 1000, 20011}) ops_check_adamw(F32, n, false);
  for (Dtype dtype : {F32, BF16, F16}) ops_check_adamw(dtype, 1037, true);
}

static void ops_check_sgd(Dtype dtype, int64_t n, float momentum, bool cast) {
  const int steps = 4;
  Tensor first[3] = {}, start = op_random_tensor(1, 0.1, F32, n);
  const SgdArgs a = {momentum, 0.01f};
  for (OpRun r = op_run_first(); r.ops; r = op_run_next(r)) {
    Ctx c = op_ctx(r.ops, r.threads, {dtype, F32, 1, 1, 1, 1, 1, 1});
    ops_state_set(0.05f, 0.7f, 0, 0);
    Tensor none = {}, p = op_copy(start), buffer = momentum > 0.0f ? op_tensor(F32, n) : none;
    Tensor param = cast ? op_tensor(dtype, n) : none;
    if (buffer.data) memset(buffer.data, 0, (size_t)n * 4);
    double *rp = op_fp64(start), *rb = op_zeros(n);
    for (int step = 1; step <= steps; step++) {
      Tensor grad = op_random_tensor((uint64_t)step, 1.0, F32, n);
      sgd_update(&c, param, p, buffer, grad, a);
      for (int64_t i = 0; i < n; i++) {
        double g = op_get(grad, i) * op_state.grad_scale + (double)a.weight_decay * rp[i];
        rb[i] = step == 1 ? g : (double)momentum * rb[i] + g;                 // torch copies the first gradient
        rp[i] -= (double)op_state.in.lr * rb[i];
      }
    }
    if (op_run_is_first(r)) {
      // Four operations per step; |g| < 5, so |b| < 5 / (1 - 0.9) and an update is below 0.05 times that.
      op_expect_close(op_where("sgd p", r, F32), p, rp, 4 * steps, ops_largest(rp, n) + 2.5 * steps);
      if (buffer.data) op_expect_close(op_where("sgd momentum", r, F32), buffer, rb, 4 * steps, 50.0);
      if (cast) op_expect_close(op_where("sgd param", r, dtype), param, op_fp64(p), 0);
      first[0] = p, first[1] = buffer, first[2] = param;
    }
    op_expect_same_bits(op_where("sgd p", r, dtype), p, first[0]);
    if (buffer.data) op_expect_same_bits(op_where("sgd momentum", r, dtype), buffer, first[1]);
    if (cast) op_expect_same_bits(op_where("sgd param", r, dtype), param, first[2]);
  }
  op_free_all();
}
TEST(sgd_fp64, "four steps of sgd_update equal torch's formula in fp64, with and without momentum") {
  for (int64_t n : {1, 17, 20011}) ops_check_sgd(F32, n, 0.9f, false);
  for (Dtype dtype : {F32, BF16, F16})
    for (float momentum : {0.0f, 0.9f}) ops_check_sgd(dtype, 1037, momentum, true);
}
// x rounded to bf16 by the 16 bits that stochastic rounding gives it.
static double ops_rounded_by(float x, uint32_t bits) {
  return (double)bits_f32((f32_bits(x) + (bits & 0xffffu)) & 0xffff0000u);
}
TEST(adamw_moments_in_bf16,
     "moments in bf16 are those of fp32, rounded by Philox's word of seed, parameter, step and element; over 4096 "
     "steps a value's mean is the value, within four deviations") {
  const int64_t n = 1037;
  Tensor grad = op_random_tensor(1, 1e-2, F32, n), first[3] = {};
  for (OpRun r = op_run_first(); r.ops; r = op_run_next(r)) {
    Ctx c = op_ctx(r.ops, r.threads, {F32, F32, 1, 1, 1, 1, 1, 1});
    const AdamwArgs a = {0.9f, 0.95f, 1e-8f, 0.1f, 1, 77, 5, 1000001};
    ops_state_set(0.01f, 0.7f, 0.5f, 0.3f);
    op_state.in.step = 9;
    Tensor p = op_random_tensor(2, 0.1, F32, n), m = op_random_tensor(3, 0.1, BF16, n), v = op_tensor(BF16, n);
    for (int64_t i = 0; i < n; i++) op_put(v, i, fabs(op_get(m, i)));
    Tensor p32 = op_copy(p), m32 = op_tensor(F32, n), v32 = op_tensor(F32, n);
    for (int64_t i = 0; i < n; i++) op_put(m32, i, op_get(m, i)), op_put(v32, i, op_get(v, i));
    adamw_update(&c, Tensor{}, p, m, v, grad, a);
    adamw_update(&c, Tensor{}, p32, m32, v32, grad, a);
    op_expect_same_bits(op_where("p with moments in bf16", r, F32), p, p32);
    for (int64_t i = 0; i < n; i++) {
      const uint64_t e = (uint64_t)(a.element + i);
      const Philox four = philox4x32(77, Philox{(uint32_t)(e / 4), 5, 9, 0xfffffffdu});
      const uint32_t word = e % 4 == 0 ? four.x : e % 4 == 1 ? four.y : e % 4 == 2 ? four.z : four.w;
      const double wm = ops_rounded_by((float)op_get(m32, i), word);
      const double wv = ops_rounded_by((float)op_get(v32, i), word >> 16);
      EXPECT(op_get(m, i) == wm && op_get(v, i) == wv, "element %lld: m %g v %g, must be %g %g", (long long)i,
             op_get(m, i), op_get(v, i), wm, wv);
    }
    if (op_run_is_first(r)) first[0] = p, first[1] = m, first[2] = v;
    op_expect_same_bits(op_where("m in bf16", r, BF16), m, first[1]);
    op_expect_same_bits(op_where("v in bf16", r, BF16), v, first[2]);
  }
  Ctx c = op_ctx(cpu_tables[0].ops, 1, {F32, F32, 1, 1, 1, 1, 1, 1});
  const int steps = 4096, some = 32;
  double sum[2][some] = {};
  Tensor p = op_tensor(F32, some), m = op_tensor(BF16, some), v = op_tensor(BF16, some);
  for (int step = 0; step < steps; step++) {     // beta 0: m is the gradient, v its square
    ops_state_set(0.0f, 1.0f, 1.0f, 1.0f);
    op_state.in.step = (uint32_t)step;
    for (Tensor t : {p, m, v}) memset(t.data, 0, (size_t)some * dtype_bytes(t.dtype));
    adamw_update(&c, Tensor{}, p, m, v, tensor_of(grad.data, F32, some), AdamwArgs{0, 0, 1e-8f, 0, 1, 3});
    for (int i = 0; i < some; i++) sum[0][i] += op_get(m, i), sum[1][i] += op_get(v, i);
  }
  for (int i = 0; i < some; i++) for (int k = 0; k < 2; k++) {
    const float g = (float)op_get(grad, i), x = k ? g * g : g;
    const double gap = ldexp(1.0, ilogb((double)x) - 7), mean = sum[k][i] / steps;   // deviation: at most gap / 2
    EXPECT(fabs(mean - (double)x) < 4 * gap / 2 / sqrt(steps), "the mean of %.9g is %.9g, bf16's distance %g",
           (double)x, mean, gap);
  }
  op_free_all();
}
TEST(optimizer_shards, "an update does not depend on where a shard starts") {
  const int64_t n = 9001;
  for (OpRun r = op_run_first(); r.ops; r = op_run_next(r)) for (Dtype moments : {F32, BF16}) {
    Ctx c = op_ctx(r.ops, r.threads, {BF16, F32, 1, 1, 1, 1, 1, 1});
    AdamwArgs a = {0.9f, 0.95f, 1e-8f, 0.1f};
    ops_state_set(0.01f, 0.7f, 0.5f, 0.3f);
    Tensor grad = op_random_tensor(1, 1e-2, F32, n), whole[4], parts[4];
    for (int i = 0; i < 4; i++) {
      whole[i] = i == 3 ? op_tensor(BF16, n) : op_random_tensor(2 + (uint64_t)i, 0.1, i ? moments : F32, n);
      if (i == 2) for (int64_t j = 0; j < n; j++) op_put(whole[i], j, fabs(op_get(whole[i], j)));
      parts[i] = op_copy(whole[i]);
    }
    adamw_update(&c, whole[3], whole[0], whole[1], whole[2], grad, a);
    for (int64_t at = 0, len; at < n; at += len) {
      len = at % 3 ? 1234 : 2345;
      if (len > n - at) len = n - at;
      Tensor s[5];
      for (int i = 0; i < 5; i++) {
        Tensor t = i < 4 ? parts[i] : grad;
        s[i] = tensor_of((char *)t.data + (size_t)at * dtype_bytes(t.dtype), t.dtype, len);
      }
      a.element = at;
      adamw_update(&c, s[3], s[0], s[1], s[2], s[4], a);
    }
    for (int i = 0; i < 4; i++) op_expect_same_bits(op_where("adamw in parts", r, BF16), parts[i], whole[i]);
    op_free_all();
  }
}

// ================================================================================================ exact norm
__extension__ typedef unsigned __int128 OpsWide;
// Units of 2^-110 in g^2, to the nearest: exact, as the 64-bit mantissa of long double holds the 48 bits of g^2.
static OpsWide ops_norm_units(float g) {
  long double units = ldexpl((long double)g * (long double)g, 110);
  return (OpsWide)(units < 0x1p63L ? nearbyintl(units) : units);
}
static OpsWide ops_norm_low_limbs(const int64_t *limbs) {
  OpsWide total = 0;
  for (int j = 3; j >= 0; j--) total = (total << 32) + (OpsWide)limbs[j];
  return total;
}
static void ops_norm_run(const Ops *ops, int threads, int64_t *limbs, const float *g, int64_t n) {
  Ctx c = {};
  c.ops = ops, c.threads = threads;
  norm_accumulate(&c, limbs, tensor_of((void *)g, F32, n));
  norm_carry(limbs);
}
TEST(norm_exact, "norm_accumulate adds every square exactly, rounded once to 2^-110 (128-bit reference)") {
  const int64_t n = 3 * 4096 + 37;
  const int borders[] = {-30, -4, -29, -56, -55};
  uint64_t seed = 5;
  float *g = (float *)op_alloc((size_t)n * 4);
  // Exponents of g by case: ordinary gradients; tiny ones; everything that 128 bits hold; either side of every border
  // between two ways of adding; zeros and subnormals; just too large for one level; and everything that 128 bits hold
  // beside a large number, whose square is 2^152 or 3.0625 2^152 units, so all in limb 4.
  const struct {
    int low, span;
  } exponents[8] = {{-20, 16}, {-60, 28}, {-75, 75}, {0, 1}, {-75, 75}, {-34, 6}, {-75, 75}, {-75, 75}};
  for (int which = 0; which < 8; which++) {
    OpsWide want = 0;
    int64_t large = 0;
    for (int64_t i = 0; i < n; i++) {
      const int e = exponents[which].low + (int)op_below(&seed, exponents[which].span);
      g[i] = (float)ldexp(1.0 + op_uniform(&seed), e) * (op_random(&seed) & 1 ? -1.0f : 1.0f);
      if (which == 3) g[i] = (float)(ldexp(1.0, borders[i % 5]) * (1.0 + (double)(i % 7 - 3) * 0x1p-24));
      if (which == 4 && i % 3) g[i] = i % 2 ? 0.0f : 1e-42f;
      const bool huge = which >= 6 && i % 1000 == 7;
      if (huge) g[i] = which == 6 ? 0x1p21f : 0x1.cp21f, large += which == 6 ? 16777216 : 51380224;
      else want += ops_norm_units(g[i]);
    }
    for (OpRun r = op_run_first(); r.ops; r = op_run_next(r)) {
      int64_t limbs[NORM_LIMBS] = {};
      ops_norm_run(r.ops, r.threads, limbs, g, n);
      EXPECT(ops_norm_low_limbs(limbs) == want, "%s, %d threads, case %d: the sum is another", r.ops->name, r.threads,
             which);
      for (int j = 4; j < NORM_LIMBS; j++)
        EXPECT(limbs[j] == (j == 4 ? large : 0), "case %d: limb %d is %lld", which, j, (long long)limbs[j]);
      double exact = (double)sqrtl(ldexpl((long double)want, -110) + (long double)large * 0x1p18L),
             got = norm_finish(limbs);
      EXPECT(fabs(got - exact) <= 0x1p-52 * exact, "case %d: norm %.17g, exact %.17g", which, got, exact);
    }
  }
  op_free_all();
}
TEST(norm_partition, "the norm has the same bits however the elements are divided, ordered and added") {
  const int64_t n = 30011;
  float *g = (float *)op_alloc((size_t)n * 4), *mixed = (float *)op_alloc((size_t)n * 4);
  uint64_t seed = 9;
  for (int range = 0; range < 4; range++) {      // up to ordinary, large, FLT_MAX; and each mixed with all below
    long double sum = 0;
    for (int64_t i = 0; i < n; i++) {
      int e = range == 0 ? -12 : range == 1 ? (int)op_below(&seed, 50) - 40 : (int)op_below(&seed, 250) - 125;
      if (range == 3) e = 120 + (int)op_below(&seed, 5);          // |N(0,1)| < 2^3
      g[i] = (float)ldexp(op_normal(&seed), e);
      sum += (long double)g[i] * (long double)g[i];
    }
    int64_t whole[NORM_LIMBS] = {};
    ops_norm_run(op_table(0), 1, whole, g, n);
    const double want = norm_finish(whole);
    // long double adds with an error of 2^-64 per term, for n terms.
    EXPECT(fabsl(want - sqrtl(sum)) <= (0x1p-52L + (long double)n * 0x1p-64L) * want,
           "range %d: norm %.17g, sum %.17Lg", range, want, sqrtl(sum));
    memcpy(mixed, g, (size_t)n * 4);
    for (int64_t i = n - 1; i > 0; i--) {
      int64_t j = op_below(&seed, i + 1);
      float t = mixed[i];
      mixed[i] = mixed[j], mixed[j] = t;
    }
    for (OpRun r = op_run_first(); r.ops; r = op_run_next(r)) {
      int64_t total[NORM_LIMBS] = {};
      for (int64_t at = 0, len; at < n; at += len) {
        len = 1 + op_below(&seed, 9000);
        if (len > n - at) len = n - at;
        int64_t rank[NORM_LIMBS] = {};
        ops_norm_run(r.ops, r.threads, rank, mixed + at, len);
        for (int j = 0; j < NORM_LIMBS; j++) total[j] += rank[j];
      }
      double got = norm_finish(total);
      EXPECT(memcmp(&got, &want, 8) == 0, "%s, %d threads, range %d: %.17g, whole %.17g", r.ops->name, r.threads, range,
             got, want);
    }
  }
  op_free_all();
}
TEST(norm_special, "an infinite or NaN gradient makes the norm NaN; zeros give 0; FLT_MAX does not overflow") {
  for (OpRun r = op_run_first(); r.ops; r = op_run_next(r)) {
    float g[100] = {};
    int64_t limbs[NORM_LIMBS] = {};
    ops_norm_run(r.ops, r.threads, limbs, g, 100);
    EXPECT(norm_finish(limbs) == 0.0, "norm %g of zeros", norm_finish(limbs));
    for (float &x : g) x = 3.40282347e38f;
    ops_norm_run(r.ops, r.threads, limbs, g, 100);
    EXPECT(norm_finish(limbs) == 10.0 * (double)3.40282347e38f, "norm %.17g of a hundred FLT_MAX", norm_finish(limbs));
    for (float bad : {INFINITY, -INFINITY, (float)NAN}) {
      int64_t more[NORM_LIMBS] = {};
      g[57] = bad;
      ops_norm_run(r.ops, r.threads, more, g, 100);
      EXPECT(isnan(norm_finish(more)), "norm %g with %g", norm_finish(more), (double)bad);
      g[57] = 0.0f;
    }
  }
}

// ================================================================================================ conversions
TEST(convert_every_value, "convert equals the scalar rounding for every 16-bit pattern and for fp32 of every kind") {
  const int64_t n = 65536 + 13;
  uint64_t seed = 3;
  for (Dtype from : {F32, BF16, F16})
    for (Dtype to : {F32, BF16, F16}) {
      Tensor in = op_tensor(from, n), want = op_tensor(to, n);
      for (int64_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)op_random(&seed);
        if (i & 1) bits = (bits & 0x8fffffffu) | 0x30000000u; // exponents where fp16 is normal or subnormal
        if (i % 16 == 3) bits = (bits & 0xffff0000u) | 0x8000u;               // ties
        if (i % 16 == 5) bits = (bits & 0xffffe000u) | 0x1000u;
        if (i % 16 == 7) bits &= 0x807fffffu;      // subnormal: alone in its vector, and (rarely) with a NaN
        if (from == F32) ((uint32_t *)in.data)[i] = bits;
        else ((uint16_t *)in.data)[i] = (uint16_t)i;
        op_put(want, i, op_get(in, i));
      }
      for (OpRun r = op_run_first(); r.ops; r = op_run_next(r)) {
        Ctx c = op_ctx(r.ops, r.threads, {from, F32, 1, 1, 1, 1, 1, 1});
        Tensor out = op_tensor(to, n);
        convert(&c, out, in);
        int64_t bad = -1;
        for (int64_t i = 0; i < n && bad < 0; i++) if (!ops_same_number(out, want, i)) bad = i;
        EXPECT(bad < 0, "%s: %.9g becomes %.9g, scalar %.9g", op_where(dtype_name(from), r, to),
               op_get(in, bad < 0 ? 0 : bad), op_get(out, bad < 0 ? 0 : bad), op_get(want, bad < 0 ? 0 : bad));
      }
      op_free_all();
    }
}
TEST(accumulate_in_order, "accumulate of several is accumulate of each in order, however the sum is aligned") {
  for (Dtype dtype : {F32, BF16, F16})
    for (int64_t n : {33, 20011})
      for (int count = 1; count <= SUMMANDS_MAX; count += count < 3 ? 2 : 5)
        for (Accumulate mode : {OVERWRITE, ADD}) {
          Summands in = {dtype, count, {}};
          Tensor before = op_random_tensor(2, 1.0, F32, n), want = op_copy(before);
          float *w = (float *)want.data;
          for (int k = 0; k < count; k++) {
            Tensor x = op_random_tensor(3 + (uint64_t)k, 1.0, dtype, n);
            in.data[k] = x.data;
            for (int64_t i = 0; i < n; i++) w[i] = (k == 0 && mode == OVERWRITE ? 0 : w[i]) + (float)op_get(x, i);
          }
          for (OpRun r = op_run_first(); r.ops; r = op_run_next(r)) for (int64_t shift : {0, 1, 8}) {
            Ctx c = op_ctx(r.ops, r.threads, {dtype, F32, 1, 1, 1, 1, 1, 1});
            Tensor sum = op_shifted(op_tensor(F32, n + shift), shift);
            memcpy(sum.data, before.data, (size_t)n * sizeof(float));
            accumulate(&c, sum, in, mode);
            op_expect_same_bits(op_where(mode == ADD ? "accumulate ADD" : "accumulate OVERWRITE", r, dtype), sum, want);
          }
          op_free_all();
        }
}
TEST(accumulate_every_dtype, "accumulate overwrites or adds, one fp32 rounding an element") {
  for (Dtype dtype : {F32, BF16, F16})
    for (int64_t n : {1, 15, 16, 33, 20011}) {
      Tensor in = op_random_tensor(1, 1.0, dtype, n), before = op_random_tensor(2, 1.0, F32, n),
             want = op_tensor(F32, n);
      for (int64_t i = 0; i < n; i++) op_put(want, i, op_get(before, i) + op_get(in, i));
      for (OpRun r = op_run_first(); r.ops; r = op_run_next(r)) {
        Ctx c = op_ctx(r.ops, r.threads, {dtype, F32, 1, 1, 1, 1, 1, 1});
        Tensor sum = op_copy(before), over = op_tensor(F32, n);
        accumulate(&c, sum, op_summands(in, 1), ADD);
        op_expect_same_bits(op_where("accumulate ADD", r, dtype), sum, want);
        accumulate(&c, over, op_summands(in, 1), OVERWRITE);
        for (int64_t i = 0; i < n; i++)
          if (op_get(over, i) != op_get(in, i)) {
            EXPECT(false, "OVERWRITE at %lld", (long long)i);
            break;
          }
      }
      op_free_all();
    }
}

// ================================================================================================ normal numbers
TEST(normal_fill_split, "normal_fill gives the same numbers however a tensor is divided, on every table") {
  const int64_t n = 40003, start = ((int64_t)1 << 34) - 20000;                // the counter passes 2^32 on the way
  Tensor first = {};
  for (OpRun r = op_run_first(); r.ops; r = op_run_next(r)) {
    Ctx c = op_ctx(r.ops, r.threads, {F32, F32, 1, 1, 1, 1, 1, 1});
    Tensor whole = op_tensor(F32, n), parts = op_tensor(F32, n);
    normal_fill(&c, whole, 77, 3, start, 0.02f);
    for (int64_t at = 0, len = 1; at < n; at += len, len = len * 5 % 4099 + 1) {
      if (len > n - at) len = n - at;
      normal_fill(&c, tensor_of((float *)parts.data + at, F32, len), 77, 3, start + at, 0.02f);
    }
    if (op_run_is_first(r)) first = whole;
    op_expect_same_bits(op_where("normal_fill whole", r, F32), whole, first);
    op_expect_same_bits(op_where("normal_fill in parts", r, F32), parts, first);
  }
  op_free_all();
}
TEST(normal_fill_fp64, "normal_fill is Box and Muller's transform of Philox words") {
  const int64_t n = 20000;
  Tensor z = op_tensor(F32, n);
  double *want = op_zeros(n);
  Ctx c = op_ctx(op_table(0), 1, {F32, F32, 1, 1, 1, 1, 1, 1});
  normal_fill(&c, z, 5, 9, (int64_t)3 << 34, 2.0f);
  for (int64_t i = 0; i < n; i++) {
    Philox w = philox4x32(5, {(uint32_t)(i / 4), 3, 9, UINT32_MAX});
    uint32_t a = i & 2 ? w.z : w.x, b = i & 2 ? w.w : w.y;
    double radius = sqrt(-2.0 * log(((double)(a >> 9) + 0.5) * 0x1p-23)),
           angle = 6.283185307179586 * (double)(b >> 8) * 0x1p-24;
    want[i] = 2.0 * radius * (i & 1 ? sin(angle) : cos(angle));
  }
  // ln, a product, a root; the reduction is exact, 2 pi t and the polynomial 4; two products. |z| <= 2 * 5.77.
  op_expect_close("normal_fill", z, want, 10, 11.6);
  op_free_all();
}
TEST(normal_fill_moments,
     "normal_fill has the moments of N(0, std), and its numbers are independent of other tensors and seeds") {
  const int64_t n = 1 << 18;
  Ctx c = op_ctx(op_table(0), 2, {F32, F32, 1, 1, 1, 1, 1, 1});
  Tensor z = op_tensor(F32, n), other = op_tensor(F32, n);
  normal_fill(&c, z, 1, 1, 0, 1.0f);
  double sum[5] = {}, inside = 0.0;
  for (int64_t i = 0; i < n; i++) {
    double x = op_get(z, i), power = 1.0;
    for (int k = 1; k < 5; k++) sum[k] += power *= x;
    inside += fabs(x) < 1.0;
  }
  // Five standard deviations of each mean: those of x, x^2, x^3, x^4 are 1, sqrt 2, sqrt 15, sqrt 96.
  const double want[5] = {0, 0, 1, 0, 3}, deviation[5] = {0, 1, sqrt(2.0), sqrt(15.0), sqrt(96.0)},
               root = sqrt((double)n);
  for (int k = 1; k < 5; k++)
    EXPECT(fabs(sum[k] / (double)n - want[k]) <= 5 * deviation[k] / root, "moment %d is %g", k, sum[k] / (double)n);
  EXPECT(fabs(inside / (double)n - 0.6826894921) <= 5 * 0.4655 / root, "%g within one", inside / (double)n);
  for (int which = 0; which < 3; which++) {
    normal_fill(&c, other, which == 0 ? 2 : 1, which == 1 ? 2 : 1, which == 2 ? n : 0, 1.0f);
    double product = 0.0;
    for (int64_t i = 0; i < n; i++) product += op_get(z, i) * op_get(other, i);
    EXPECT(fabs(product) <= 5 * root, "other %d: correlation %g", which, product / (double)n);
  }
  op_free_all();
}
