// matmul.cuh: the linear layer and its two gradients.
//
//   forward          out(M,N)     = in(M,K) weight(N,K)^T + bias(N) on every row;  gelu(M,N) = GELU(out)
//                    or out      += in(M,K) weight(N,K)^T
//   backward_input   din(M,K)     = dout(M,N) weight(N,K);  times GELU'(pre_gelu(M,K)) if given
//   backward_weight  dweight(N,K) = or += dout(M,N)^T in(M,K);  dbias(N) = or += sum over rows of dout
//
// Weights are (out, in) as in nn.Linear. On a CPU a weight may be in quantization blocks instead, q, and has the values
// that blocks_expand makes; rows that q lacks are zeros. Activations and weights have one dtype; out may be fp32 with
// other operands (logits). dweight and dbias have the gradients' dtype. GELU is that of gelu.cuh, applied to the stored
// `out`: gelu_forward makes the same bits of it, so a pass that kept only `out` (gelu_again) can recompute it. Sums are
// fp32 in the order given in gemm.h; row m of a result depends on no other row, nor on M. ADD adds the finished sum
// once, in fp32; gradients that are added to are fp32. dbias has the same bits with and without dweight. For
// differences on CUDA see matmul_plans.h (summation order) and matmul_cuda.cuh (GELU, GELU').
#pragma once
#include "ops.h"
#if FAMILY(matmul)
#include "ops_matmul.h"
#endif
#if PART_LAUNCHERS
// weight (N,K) of dtype, or q: on a CPU, in rows of whole blocks, N of them at most.
static inline void matmul_weight_check(const char *op, Ctx *c, Tensor weight, QuantMatrix q, int64_t N, int64_t K,
                                       Dtype dtype) {
  if (!q.parts) {
    const int64_t want[] = {N, K};
    check_shape(op, "weight", weight, 2, want);
    CHECK(weight.dtype == dtype, "%s: weight is %s, needs %s", op, dtype_name(weight.dtype), dtype_name(dtype));
    return;
  }
  CHECK(!c->ops->nccl, "%s: %s multiplies no quantization blocks", op, c->ops->name);
  for (int k = 0; k < q.parts; k++) {
    N -= q.part[k].shape[0];
    CHECK(N >= 0 && block_values(q.type[k]) > 1 && K % block_values(q.type[k]) == 0 &&
          q.part[k].shape[1] == blocks_bytes(q.type[k], K), "%s: part %d has %lld rows of %lld bytes, for %lld numbers "
          "of type %d", op, k, (long long)q.part[k].shape[0], (long long)q.part[k].shape[1], (long long)K, q.type[k]);
  }
}
// out (M,N) is overwritten or, as e.mode says, added to, and e.gelu (M,N, dtype of `out`) overwritten if given.
void matmul_forward(Ctx *c, Tensor out, Tensor in, Tensor weight, MatmulEpilogue e, QuantMatrix q) {
  CHECK_SHAPE(out, in.shape[0], out.shape[1]);
  matmul_weight_check(__func__, c, weight, q, out.shape[1], in.shape[1], in.dtype);
  if (out.dtype != F32) CHECK_DTYPE(out, in.dtype);
  CHECK(e.mode == OVERWRITE || (!e.bias.data && !e.gelu.data), "%s: a bias or GELU with ADD", __func__);
  if (e.bias.data) { CHECK_SHAPE(e.bias, out.shape[1]); CHECK_DTYPE(e.bias, in.dtype); }
  if (e.gelu.data) { CHECK_SHAPE(e.gelu, out.shape[0], out.shape[1]); CHECK_DTYPE(e.gelu, out.dtype); }
  CALL_OP(c, matmul, matmul_forward, out, in, weight, e, q);
}
// din (M,K) is overwritten.
void matmul_backward_input(Ctx *c, Tensor din, Tensor dout, Tensor weight, Tensor pre_gelu, QuantMatrix q) {
  CHECK_SHAPE(din, dout.shape[0], din.shape[1]);
  matmul_weight_check(__func__, c, weight, q, dout.shape[1], din.shape[1], dout.dtype);
  CHECK_DTYPE(din, dout.dtype);
  if (pre_gelu.data) { CHECK_SHAPE(pre_gelu, din.shape[0], din.shape[1]); CHECK_DTYPE(pre_gelu, dout.dtype); }
  CALL_OP(c, matmul, matmul_backward_input, din, dout, weight, pre_gelu, q);
}
// dweight (N,K) and dbias (N) are overwritten or, if fp32, added to. One of them may be absent (data NULL); without
// dweight there is no matrix multiply, and only the shape of `in` is used. dout_sum (runs,N) fp32: sums over runs of
// rows of dout from the op that wrote it, so that dout is not read again for dbias; a CPU, whose GEMM makes them,
// leaves it unread.
void matmul_backward_weight(Ctx *c, Tensor dweight, Tensor dbias, Tensor dout, Tensor in, Accumulate mode,
                            Tensor dout_sum) {
  const int64_t M = dout.shape[0], N = dout.shape[1], K = in.shape[1];
  CHECK(dweight.data || dbias.data, "%s: neither dweight nor dbias is asked for", __func__);
  CHECK_SHAPE(dout, M, N);
  CHECK_SHAPE(in, M, K);
  CHECK_DTYPE(in, dout.dtype);
  if (dweight.data) { CHECK_SHAPE(dweight, N, K); if (mode == ADD) CHECK_DTYPE(dweight, F32); }
  if (dbias.data) { CHECK_SHAPE(dbias, N); if (mode == ADD) CHECK_DTYPE(dbias, F32); }
  if (dweight.data && dbias.data) CHECK_DTYPE(dbias, dweight.dtype);
  if (dout_sum.data) { CHECK_SHAPE(dout_sum, dout_sum.shape[0], N); CHECK_DTYPE(dout_sum, F32); }
  CALL_OP(c, matmul, matmul_backward_weight, dweight, dbias, dout, in, mode, dout_sum);
}
#endif

#if PART_CPU || PART_CUDA
#include "formulas.cuh"
INLINE vf matmul_scaled(vf sum, float scale, vf addend, float add_scale) {
  return vf_fma(sum, vf_set1(scale), vf_mul(addend, vf_set1(add_scale)));
}
#endif

#if PART_CPU
#include "kernels/cpu/gemm_side.h"

// The rows of a 2-d tensor as an operand's rows (k runs along them), or its columns (k runs down).
INLINE GemmOperand matmul_rows(Tensor t) { return GemmOperand{t.data, t.dtype, t.shape[0], t.shape[1], true}; }
INLINE GemmOperand matmul_columns(Tensor t) { return GemmOperand{t.data, t.dtype, t.shape[1], t.shape[1], false}; }
// A quantized weight as an operand: by its N rows, or by its K columns.
INLINE GemmOperand matmul_blocks_of(const QuantMatrix *q, Dtype dtype, int64_t count, bool rows) {
  return GemmOperand{NULL, dtype, count, 0, rows, q};
}

// How a finished tile is stored. At most one of bias/gelu, pre_gelu and add is in use; NULL and false mean absent.
struct MatmulFinish {
  void *out;               // (M,N) of the GEMM, with row stride N
  int64_t N;
  const void *bias;        // (N)   is added to the sums
  void *gelu;              // (M,N) receives GELU of what out receives
  const void *pre_gelu;    // (M,N) the result is multiplied by its GELU'
  bool add;
  void *dbias;             // (M) of the GEMM: sums over k of a
  bool stream;             // out is read much later: whole lines of it need not be in a cache (AMX)
};

// TO: dtype of out and gelu. T: of bias and pre_gelu. KIND is a template parameter so that GELU's constants stay in
// registers: GELU is one long chain of operations, so as many chains as possible should be in flight.
enum MatmulKind { MATMUL_STORE, MATMUL_GELU, MATMUL_GELU_GRAD, MATMUL_ADD };
template <class TO, class T, MatmulKind KIND>
INLINE void matmul_finish_vector(MatmulFinish f, vf x, int64_t at, int64_t col, int64_t n) {
  TO *out = (TO *)f.out + at;
  if (f.bias) x = vf_add(x, vf_load_n((const T *)f.bias + col, n));
  if (KIND == MATMUL_GELU_GRAD) x = vf_mul(x, vf_gelu_grad(vf_load_n((const T *)f.pre_gelu + at, n)));
  if (KIND == MATMUL_ADD) x = vf_add(vf_load_n(out, n), x);
  if (KIND == MATMUL_GELU) vf_store_n((TO *)f.gelu + at, vf_gelu(vf_keep_n(out, x, n)), n);
  else vf_store_n(out, x, n);
}
// MATMUL_UNIT of a row, several chains in flight. The result must not depend on how many columns there are.
enum { MATMUL_UNIT = 2 * GEMM_NR };
template <int64_t COLS, class TO, class T, MatmulKind KIND>
INLINE void matmul_finish_unit(MatmulFinish f, const float *sums, int64_t stride, int64_t at, int64_t col) {
  if (KIND == MATMUL_GELU_GRAD)                  // prefetch the next row: 6 % of the GEMM; stores gain nothing
    for (int64_t i = 0; i < COLS; i += 64 / (int64_t)sizeof(T))
      __builtin_prefetch((const T *)f.pre_gelu + at + f.N + i);
#pragma GCC unroll 4
  for (int64_t v = 0; v < COLS; v += VF)
    matmul_finish_vector<TO, T, KIND>(f, vf_load(sums + v / GEMM_NR * stride + v % GEMM_NR), at + v, col + v, VF);
}
template <class TO, class T, MatmulKind KIND>
static void matmul_finish(const GemmJob *j, const float *sums, int64_t stride, int64_t row, int64_t col, int64_t rows,
                          int64_t cols) {
  const MatmulFinish f = *(const MatmulFinish *)j->arg;
  for (int64_t r = 0; r < rows; r++, sums += GEMM_NR) {
    const int64_t at = (row + r) * f.N + col;
    int64_t c = 0;
    for (; c + MATMUL_UNIT <= cols; c += MATMUL_UNIT)
      matmul_finish_unit<MATMUL_UNIT, TO, T, KIND>(f, sums + c / GEMM_NR * stride, stride, at + c, col + c);
    for (; c + GEMM_NR <= cols; c += GEMM_NR)
      matmul_finish_unit<GEMM_NR, TO, T, KIND>(f, sums + c / GEMM_NR * stride, stride, at + c, col + c);
    for (; c < cols; c += VF)
      matmul_finish_vector<TO, T, KIND>(f, vf_load(sums + c / GEMM_NR * stride + c % GEMM_NR), at + c, col + c,
                                        gemm_min(VF, cols - c));
  }
}
#if AMX_TILES
// The same for a row of a whole tile, inside gemm_tile_amx. A row of bf16 is one store, and GELU's `out` is streamed
// past the caches: rows 4 KB apart share a set of L1 and wait for each other otherwise (dev/results/2026-11-29-amx.md).
template <class TO, class T, MatmulKind KIND> struct MatmulRow { MatmulFinish f; int64_t at, col; };
template <class TO, class T, MatmulKind KIND>
INLINE void gemm_row_begin(MatmulRow<TO, T, KIND> *r, const GemmJob *j, int64_t row, int64_t col) {
  r->f = *(const MatmulFinish *)j->arg;
  r->at = row * r->f.N + col;
  r->col = col;
}
INLINE void matmul_store_line(float *to, vf x, vf y, bool) { vf_store(to, x); vf_store(to + VF, y); }
template <class H> INLINE void matmul_store_line(H *to, vf x, vf y, bool stream) {
  const __m512i low = _mm512_castsi256_si512((__m256i)vf_to_half_bits(x, to));
  const __m512i line = _mm512_inserti64x4(low, (__m256i)vf_to_half_bits(y, to), 1);
  if (stream) _mm512_stream_si512((__m512i *)to, line);
  else _mm512_storeu_si512(to, line);
}
INLINE vf matmul_stored(vf x, float *) { return x; }
template <class H> INLINE vf matmul_stored(vf x, H *to) { return vf_from_half_bits(vf_to_half_bits(x, to), to); }
template <class TO, class T, MatmulKind KIND>
INLINE void gemm_row(const MatmulRow<TO, T, KIND> *r, int64_t i, vf x, vf y) {
  const MatmulFinish &f = r->f;
  const int64_t at = r->at + i * f.N;
  TO *out = (TO *)f.out + at;
  if (f.bias) {
    const T *bias = (const T *)f.bias + r->col;
    x = vf_add(x, vf_load(bias));
    y = vf_add(y, vf_load(bias + VF));
  }
  if (KIND == MATMUL_GELU_GRAD) {
    const T *pre_gelu = (const T *)f.pre_gelu + at;
    __builtin_prefetch(pre_gelu + GEMM_NR);                    // the next tile's
    x = vf_mul(x, vf_gelu_grad(vf_load(pre_gelu)));
    y = vf_mul(y, vf_gelu_grad(vf_load(pre_gelu + VF)));
  }
  if (KIND == MATMUL_ADD) {
    __builtin_prefetch(out + GEMM_NR);
    if (sizeof(TO) == 4) __builtin_prefetch(out + GEMM_NR + VF);
    x = vf_add(vf_load(out), x);
    y = vf_add(vf_load(out + VF), y);
  }
  matmul_store_line(out, x, y, f.stream);
  if (KIND != MATMUL_GELU) return;
  x = matmul_stored(x, out);
  y = matmul_stored(y, out);
  matmul_store_line((TO *)f.gelu + at, vf_gelu(x), vf_gelu(y), false);
}
// For bf16 operands, which alone go to that kernel.
template <class TO, MatmulKind KIND> static void matmul_inline(GemmJob *j, const bf16 *) {
  j->tile_amx = gemm_tile_amx<MatmulRow<TO, bf16, KIND>>;
}
template <class TO, MatmulKind KIND, class T> static void matmul_inline(GemmJob *, const T *) {}
#endif
template <class TO, class T> static void matmul_choose_finish(GemmJob *j, const MatmulFinish *f) {
  j->finish = f->gelu       ? matmul_finish<TO, T, MATMUL_GELU>
              : f->pre_gelu ? matmul_finish<TO, T, MATMUL_GELU_GRAD>
              : f->add      ? matmul_finish<TO, T, MATMUL_ADD>
                            : matmul_finish<TO, T, MATMUL_STORE>;
#if AMX_TILES
  if (f->gelu) matmul_inline<TO, MATMUL_GELU>(j, (const T *)NULL);
  else if (f->pre_gelu) matmul_inline<TO, MATMUL_GELU_GRAD>(j, (const T *)NULL);
  else if (f->add) matmul_inline<TO, MATMUL_ADD>(j, (const T *)NULL);
  else matmul_inline<TO, MATMUL_STORE>(j, (const T *)NULL);
#endif
}
#if FAMILY(matmul)                               // matmul_blocks.cuh needs the rest
enum { MATMUL_STREAM_BYTES = 1 << 20 };          // of what GELU's input takes half an L2
template <class TO> static void matmul_finish_sums(const GemmJob *j, const float *sums, int64_t row, int64_t rows) {
  const MatmulFinish *f = (const MatmulFinish *)j->arg;
  TO *out = (TO *)f->dbias + row;
  for (int64_t i = 0; i < rows; i += VF) {
    vf x = vf_load_n(sums + i, rows - i);
    if (f->add) x = vf_add(vf_load_n(out + i, rows - i), x);
    vf_store_n(out + i, x, rows - i);
  }
}
static void matmul_run(Ctx *c, GemmOperand a, GemmOperand b, int64_t K, MatmulFinish f, Dtype out_dtype) {
  const int64_t bytes = a.count * f.N * (int64_t)dtype_bytes(out_dtype);
  f.stream = f.gelu && bytes > MATMUL_STREAM_BYTES && f.N % 32 == 0 && (uintptr_t)f.out % 64 == 0;
  GemmJob j = {a, b, K, NULL, NULL, &f};
  DISPATCH(out_dtype, TO, DISPATCH(a.dtype, T, matmul_choose_finish<TO, T>(&j, &f)));
  if (f.dbias) DISPATCH(out_dtype, TO, j.finish_sums = matmul_finish_sums<TO>);
  gemm(c, &j);
}

void matmul_forward_impl(Ctx *c, Tensor out, Tensor in, Tensor weight, MatmulEpilogue e, QuantMatrix q) {
  MatmulFinish f = {out.data, out.shape[1], e.bias.data, e.gelu.data, NULL, e.mode == ADD, NULL, false};
  const GemmOperand b = q.parts ? matmul_blocks_of(&q, in.dtype, out.shape[1], true) : matmul_rows(weight);
  matmul_run(c, matmul_rows(in), b, in.shape[1], f, out.dtype);
}
void matmul_backward_input_impl(Ctx *c, Tensor din, Tensor dout, Tensor weight, Tensor pre_gelu, QuantMatrix q) {
  MatmulFinish f = {din.data, din.shape[1], NULL, NULL, pre_gelu.data, false, NULL, false};
  const GemmOperand b = q.parts ? matmul_blocks_of(&q, dout.dtype, din.shape[1], false) : matmul_columns(weight);
  matmul_run(c, matmul_rows(dout), b, dout.shape[1], f, din.dtype);
}
void matmul_backward_weight_impl(Ctx *c, Tensor dweight, Tensor dbias, Tensor dout, Tensor in, Accumulate mode,
                                 Tensor) {
  MatmulFinish f = {dweight.data, in.shape[1], NULL, NULL, NULL, mode == ADD, dbias.data, false};
  if (dweight.data) {
    matmul_run(c, matmul_columns(dout), matmul_columns(in), in.shape[0], f, dweight.dtype);
    return;
  }
  GemmJob j = {matmul_columns(dout), GemmOperand{}, dout.shape[0], NULL, NULL, &f};
  DISPATCH(dbias.dtype, TO, j.finish_sums = matmul_finish_sums<TO>);
  gemm_sums(c, &j);
}

// Packed b: weights of a block or of the head, activations of a batch. In addition about 1.3 MB per thread.
static size_t matmul_workspace_bytes(const Ctx *c, WorkspaceQuery q) {
  const int64_t widest = query_widest(&q), times = (widest + q.n_embd - 1) / q.n_embd;
  const int64_t rows[] = {widest, q.batch * q.seq_len * times, q.vocab_padded, q.head_rows};
  int64_t largest = 0;
  for (int64_t n : rows) if (n > largest) largest = n;
  return gemm_workspace_bytes(c, q.dtype, largest * q.n_embd);
}
#endif
#endif
