// test_matmul_blocks.h: passes of a few tokens over weights in blocks (kernels/matmul_blocks.cuh).

struct BlocksCase { int type; Dtype dtype; Tensor weight, in, bias; int64_t N, K; };
// Bytes of any kind, so that scales are, too, infinite and NaN among them; from block `small` on small ones.
static Tensor blocks_case_weight(int type, int64_t N, int64_t K, int64_t small, uint64_t *seed) {
  const int64_t bytes = block_bytes(type), blocks = N * K / block_values(type);
  const Tensor w = op_tensor(BLOCKS, N, blocks_bytes(type, K));
  for (int64_t i = 0; i < numel(w); i++) ((uint8_t *)w.data)[i] = (uint8_t)op_random(seed);
  for (int64_t b = small; b < blocks; b++) {
    uint8_t *const at = (uint8_t *)w.data + b * bytes, half[2] = {(uint8_t)b, (uint8_t)(0x20 | b % 8)};
    const float one = 1;
    if (type == BLOCK_NF4) memcpy(at, &one, sizeof one);
    else if (type == BLOCK_MXFP4) at[0] = (uint8_t)(120 + b % 8);
    else for (int64_t to : {type == BLOCK_Q6_K ? bytes - 2 : 0, type == BLOCK_Q6_K ? bytes - 2 : 2})
      if (!to || to == bytes - 2 || block_has_least(type)) memcpy(at + to, half, 2);
  }
  return w;
}
// In the first half of the rows scales are of every kind.
static BlocksCase blocks_case(int type, Dtype dtype, uint64_t seed) {
  // K: several blocks of it in gemm.h's order, one of which ends inside of a block of numbers.
  BlocksCase x = {type, dtype, {}, {}, {}, 37, block_values(type) == 256 ? 2560 : block_values(type) == 64 ? 832 : 800};
  x.weight = blocks_case_weight(type, x.N, x.K, x.N * x.K / block_values(type) / 2, &seed);
  x.in = op_random_tensor(seed, 1, dtype, 6, x.K);
  x.bias = op_random_tensor(seed + 1, 1, dtype, x.N + 5);
  return x;
}
// The rows as numbers of the dtype, by the formula.
static Tensor blocks_case_expanded(const BlocksCase *x) {
  Tensor w = op_tensor(x->dtype, x->N, x->K);
  for (int64_t i = 0; i < numel(w); i++) {
    const int values = block_values(x->type), k = (int)(i % values);
    const uint8_t *b = (const uint8_t *)x->weight.data + i / values * block_bytes(x->type);
    float number = 0;
    BLOCK_DISPATCH(x->type, TYPE, number = block_value<TYPE>(b, k / BLOCK_RUN, k % BLOCK_RUN));
    DISPATCH(x->dtype, T, round_param((T *)w.data + i, number));
  }
  return w;
}
// fp64 sums of the first `rows` rows, columns 3 .. 3 + N of out, and in *scale the largest sum of magnitudes.
static double *blocks_case_sums(const BlocksCase *x, Tensor w, int64_t rows, bool bias, double *scale) {
  double *sum = op_zeros(rows * x->N), *a = op_fp64(x->in), *b = op_fp64(w);
  *scale = 0;
  for (int64_t i = 0; i < rows * x->N; i++) {
    double most = 0;
    for (int64_t k = 0; k < x->K; k++) {
      const double term = a[i / x->N * x->K + k] * b[i % x->N * x->K + k];
      sum[i] += term, most += fabs(term);
    }
    if (bias) sum[i] += op_get(x->bias, 3 + i % x->N), most += fabs(op_get(x->bias, 3 + i % x->N));
    if (i % x->N >= (x->N + 1) / 2 && most > *scale) *scale = most;
  }
  return sum;
}
static bool blocks_same_number(double a, double b) { return a == b || (a != a && b != b); }
// Columns 3 .. 3 + N of got are those of want, or with sums those within the bound: K products and sums, the bias, and
// of what follows six; one rounding to the dtype. What is beside them is as it was.
static void blocks_expect_product(const char *what, Tensor got, Tensor want, const double *sums, double scale) {
  const int64_t N = want.shape[1], n_all = got.shape[1];
  int64_t bad = -1;
  for (int64_t i = 0; i < numel(got) && bad < 0; i++) {
    const int64_t col = i % n_all - 3, at = i / n_all * N + col;
    const double x = op_get(got, i);
    if (col < 0 || col >= N) { if (x == x) bad = i; continue; }
    if (!sums) { if (!blocks_same_number(x, op_get(want, at))) bad = i; continue; }
    if (col < (N + 1) / 2) { if (!isfinite(sums[at]) && isfinite(x)) bad = i; continue; }
    const double u = op_unit_roundoff(got.dtype);
    const double bound = u * fabs(sums[at]) + 2566 * 0x1p-24 * scale * (1 + u) + op_smallest(got.dtype);
    if (!(fabs(x - sums[at]) <= bound)) bad = i;
  }
  EXPECT(bad < 0, "%s: element %lld is %.9g", what, (long long)bad, op_get(got, bad < 0 ? 0 : bad));
}
TEST(matmul_blocks_is_the_expanded_product,
     "matmul_blocks of each type and dtype, with infinite and NaN scales too, has the bits of matmul_forward by the "
     "expanded rows, on every table for any threads and rows, and writes no other column; bf16 on AMX and everything "
     "on CUDA is within the bound of fp64") {
  for (int type : {BLOCK_Q4_0, BLOCK_Q4_1, BLOCK_Q5_0, BLOCK_Q5_1, BLOCK_Q8_0, BLOCK_Q4_K, BLOCK_Q5_K, BLOCK_Q6_K,
                   BLOCK_MXFP4, BLOCK_NF4})
    for (Dtype dtype : {F32, BF16, F16}) for (int64_t rows : {1, 6}) {
      char what[128];
      const BlocksCase x = blocks_case(type, dtype, (uint64_t)(100 * type + 10 * dtype));
      const Tensor w = blocks_case_expanded(&x), in = rows_of(x.in, 0, rows), none = {};
      const WorkspaceQuery q = {dtype, F32, 1, 64, x.K, 1, 64, 64};
      const Dtype to = rows == 1 ? F32 : dtype;  // the head's logits are fp32
      const bool bias = rows > 1;
      double scale;
      const double *sums = blocks_case_sums(&x, w, rows, bias, &scale);
      const Tensor part = bias ? op_shifted(x.bias, 3) : none;
      const Tensor part_n = bias ? tensor_of(part.data, dtype, x.N) : none;
      Tensor want = op_tensor(to, rows, x.N);
      for (int i = 0; const Ops *ops = op_table(i); i++) for (int threads : {1, 3}) {
        Ctx c = op_ctx(ops, threads, q);
        Tensor out = op_tensor(to, rows, x.N + 5);
        const bool other_order = dtype == BF16 && strstr(ops->name, "amx");
        matmul_forward(&c, want, in, w, MatmulEpilogue{part_n, none});
        matmul_blocks(&c, out, in, x.weight, type, 3, bias ? x.bias : none);
        snprintf(what, sizeof what, "%s, type %d, %s, %lld rows, %d threads", ops->name, type, dtype_name(dtype),
                 (long long)rows, threads);
        blocks_expect_product(what, out, want, other_order ? sums : NULL, scale);
      }
      for (int i = 0; const Ops *ops = device_table(i); i++) {
        Ctx c = device_ctx(ops, q);
        Tensor out = device_upload(&c, op_tensor(to, rows, x.N + 5));
        matmul_blocks(&c, out, device_upload(&c, in), device_upload(&c, x.weight), type, 3,
                      bias ? device_upload(&c, x.bias) : none);
        blocks_expect_product(device_where("matmul_blocks", &c, dtype), device_download(&c, out), want, sums, scale);
        device_done(&c);
      }
      op_free_all();
    }
}
// One matrix of three of different types, whose rows start inside of vectors and pairs, and rows of zeros after them.
static QuantMatrix quant_case(const int *types, Dtype dtype, int64_t K, Tensor *expanded, int64_t zeros) {
  static const int64_t rows[3] = {37, 22, 5};
  QuantMatrix q = {};
  *expanded = op_tensor(dtype, 64 + zeros, K);
  memset(expanded->data, 0, (size_t)numel(*expanded) * dtype_bytes(dtype));
  for (int64_t first = 0; q.parts < 3; first += rows[q.parts++]) {
    BlocksCase x = {types[q.parts], dtype, {}, {}, {}, rows[q.parts], K};
    uint64_t seed = (uint64_t)(types[q.parts] + q.parts);
    x.weight = blocks_case_weight(x.type, x.N, K, 2, &seed);
    q.part[q.parts] = x.weight, q.type[q.parts] = x.type;
    const Tensor w = blocks_case_expanded(&x);
    memcpy((char *)expanded->data + (size_t)(first * K) * dtype_bytes(dtype), w.data,
           (size_t)numel(w) * dtype_bytes(dtype));
  }
  return q;
}
static void quant_expect(const char *what, Tensor got, Tensor want) {
  int64_t bad = -1;
  for (int64_t i = 0; i < numel(want) && bad < 0; i++) if (!ops_same_number(got, want, i)) bad = i;
  EXPECT(bad < 0, "%s: element %lld is %.9g, expected %.9g", what, (long long)bad, op_get(got, bad < 0 ? 0 : bad),
         op_get(want, bad < 0 ? 0 : bad));
}
TEST(matmul_packs_blocks,
     "matrix multiplies of many rows by a matrix in blocks, of three parts of any types, and of their input's gradient "
     "have the bits of those by the expanded matrix, on every table, for few rows too, any threads and passes, and as "
     "six bf16 ones") {
  static const int cases[][3] = {{BLOCK_Q4_0, BLOCK_Q6_K, BLOCK_NF4}, {BLOCK_Q4_1, BLOCK_Q5_0, BLOCK_Q4_K},
                                 {BLOCK_Q5_1, BLOCK_Q8_0, BLOCK_MXFP4}, {BLOCK_Q5_K, BLOCK_NF4, BLOCK_Q8_0}};
  for (const auto &types : cases) for (Dtype dtype : {F32, BF16, F16}) for (int64_t K : {256, 1280}) {
    Tensor w, none = {};
    const int64_t zeros = K == 256 ? 0 : 9, N = 64 + zeros, M = K == 256 ? 70 : 3;
    const QuantMatrix q = quant_case(types, dtype, K, &w, zeros);
    const WorkspaceQuery of = {dtype, F32, 1, M, K, 1, N, N};
    const Tensor in = op_random_tensor(7, 1, dtype, M, K), dout = op_random_tensor(8, 1, dtype, M, N);
    const Tensor bias = op_random_tensor(9, 1, dtype, N), gelu = op_random_tensor(10, 1, dtype, M, K);
    for (int i = 0; const Ops *ops = op_table(i); i++) for (int threads : {1, 3}) for (bool fast : {false, true}) {
      if (fast && (dtype != F32 || !strstr(ops->name, "amx"))) continue;
      char what[128];
      Ctx c = op_ctx(ops, threads, of);
      c.fast_fp32 = fast;
      Tensor out[2], din[2];
      for (int blocks = 0; blocks < 2; blocks++) {
        out[blocks] = op_tensor(dtype, M, N), din[blocks] = op_tensor(dtype, M, K);
        matmul_forward(&c, out[blocks], in, blocks ? none : w, MatmulEpilogue{bias, none}, blocks ? q : QuantMatrix{});
        matmul_backward_input(&c, din[blocks], dout, blocks ? none : w, threads == 1 ? gelu : none,
                              blocks ? q : QuantMatrix{});
      }
      snprintf(what, sizeof what, "%s%s, types %d %d %d, %s, %lld rows of %lld, %d threads", ops->name,
               fast ? ", split" : "", types[0], types[1], types[2], dtype_name(dtype), (long long)M, (long long)K,
               threads);
      quant_expect(what, out[1], out[0]);
      quant_expect(what, din[1], din[0]);
    }
    op_free_all();
  }
}
TEST(matmul_blocks_of_every_scale,
     "a row that is one at one place picks the weights there, of few rows and of many: of every MXFP4 scale, the "
     "subnormal ones too, and of 256 rows of any bytes of each type, in fp32 on every table") {
  for (int type : {BLOCK_Q4_0, BLOCK_Q4_1, BLOCK_Q5_0, BLOCK_Q5_1, BLOCK_Q8_0, BLOCK_Q4_K, BLOCK_Q5_K, BLOCK_Q6_K,
                   BLOCK_MXFP4, BLOCK_NF4}) {
    const int64_t N = 256, K = block_values(type), M = 6;
    uint64_t seed = (uint64_t)type;
    BlocksCase x = {type, F32, {}, {}, {}, N, K};
    x.weight = blocks_case_weight(type, N, K, N, &seed);
    for (int64_t n = 0; n < N && type == BLOCK_MXFP4; n++)
      ((uint8_t *)x.weight.data)[n * block_bytes(type)] = (uint8_t)n;
    const Tensor w = blocks_case_expanded(&x), in = op_tensor(F32, M, K), none = {};
    memset(in.data, 0, (size_t)(M * K) * sizeof(float));
    for (int64_t m = 0; m < M; m++) op_put(in, m * K + (m * 7 + 3) % K, 1);
    Tensor want = op_tensor(F32, M, N);
    for (int64_t i = 0; i < M * N; i++) {          // the other weights of a row are multiplied by zero
      double sum = 0;
      for (int64_t k = 0; k < K; k++) sum += op_get(in, i / N * K + k) * op_get(w, i % N * K + k);
      op_put(want, i, sum);
    }
    const QuantMatrix q = {1, {x.weight}, {type}};
    for (int i = 0; const Ops *ops = op_table(i); i++) {
      Ctx c = op_ctx(ops, 1, WorkspaceQuery{F32, F32, 1, M, K, 1, N, N});
      Tensor few = op_tensor(F32, M, N), many = op_tensor(F32, M, N);
      matmul_blocks(&c, few, in, x.weight, type, 0, none);
      matmul_forward(&c, many, in, none, MatmulEpilogue{}, q);
      char what[96];
      snprintf(what, sizeof what, "%s, type %d", ops->name, type);
      quant_expect(what, few, want);
      quant_expect(what, many, want);
    }
    op_free_all();
  }
}
TEST(blocks_rows_are_expanded_rows, "blocks_rows is rows of the blocks' numbers, on every table and on CUDA") {
  for (int type : {BLOCK_Q4_1, BLOCK_Q6_K, BLOCK_NF4}) for (Dtype dtype : {F32, BF16}) {
    const BlocksCase x = blocks_case(type, dtype, (uint64_t)type);
    const Tensor w = blocks_case_expanded(&x);
    const WorkspaceQuery q = {dtype, F32, 1, 1, x.K, 1, 1, 1};
    Tensor ids = op_tensor(I32, 3, 1), want = op_tensor(dtype, 3, x.K);
    const int32_t some[3] = {30, 2, 30};
    memcpy(ids.data, some, sizeof some);
    for (int64_t i = 0; i < numel(want); i++) op_put(want, i, op_get(w, some[i / x.K] * x.K + i % x.K));
    for (int i = 0; i < 16; i++) {
      const Ops *cpu = op_table(i), *ops = cpu ? cpu : device_table(0);
      if (!ops) break;
      Ctx c = cpu ? op_ctx(ops, 2, q) : device_ctx(ops, q);
      Tensor out = cpu ? op_tensor(dtype, 3, x.K) : device_tensor(&c, dtype, 3, x.K);
      blocks_rows(&c, out, cpu ? x.weight : device_upload(&c, x.weight), type, cpu ? ids : device_upload(&c, ids));
      const Tensor got = cpu ? out : device_download(&c, out);
      int64_t bad = -1;
      for (int64_t k = 0; k < numel(want) && bad < 0; k++)
        if (!blocks_same_number(op_get(got, k), op_get(want, k))) bad = k;
      EXPECT(bad < 0, "%s, type %d, %s: element %lld", ops->name, type, dtype_name(dtype), (long long)bad);
      if (!cpu) device_done(&c);
      if (!cpu) break;
    }
    op_free_all();
  }
}
