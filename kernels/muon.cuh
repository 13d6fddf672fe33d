// muon.cuh: Muon (Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks"): momentum whose matrix
// is orthogonalised before it becomes the update. The operations of torch.optim.Muon, in its order.
//
//   muon_momentum   g = grad_scale grad
//                   b = b + (1 - mu) (g - b)                       torch's lerp
//                   update = nesterov ? g + mu (b - g) : b
//   newton_schulz   X = in / max(|in|, 1e-7)                       Frobenius norm
//                   steps times, X with rows <= columns:
//                     A = X X^T,  B = b A + c A A,  X = a X + B X  a, b, c = 3.4445, -4.7750, 2.0315
//                   out = X: singular values of about 0.7 to 1.2, singular vectors as before
//   muon_update     p -= lr weight_decay p
//                   p -= lr factor update      factor = sqrt(max(1, rows / cols)), or with match_rms
//                                              0.2 sqrt(max(rows, cols)) (Liu et al. 2025, "Muon is scalable for LLM
//                                              training"): the size of AdamW's updates, so that one lr serves both
//
// lerp, as torch does it: the smaller of the two factors multiplies the difference, which is added to the other end.
//
// Two of the three matrix multiplies of a step are symmetric. Their elements on and below the diagonal are computed and
// then mirrored, in about half of the FLOPs. Where rows > columns X is multiplied as it is stored, with A = X^T X and
// X B: on a CPU the result has the bits of the transposed matrix's, transposed.
//
// Precision: X, A and B are stored in the dtype of in and out, each rounded once; sums are fp32, in the order of
// gemm.h, fixed by the shape and the instruction set. bf16 is what torch takes. The norm is exact (optimizer.cuh),
// rounded to fp32, so it has the same bits on every device; torch rounds it to bf16.
//
//   update (n) fp32 or bf16; momentum, grad (n) fp32
//   in, out (rows, cols): fp32, or bf16; scratch: int32 words, newton_schulz_work_bytes()
//   master, param (n): as for adamw_update, optimizer.cuh. rows, cols: of the matrix that n elements are a run of
#pragma once
#include "ops_muon.h"
#include "matmul.cuh"
#include "optimizer.cuh"

// ---- work memory of newton_schulz
// gram: A, square: B, both (m, m) with m = min(rows, cols); x (rows, cols): the X of every other step; limbs: the norm.
struct MuonWork { Tensor x, gram, square; int64_t *limbs; };
static inline MuonWork muon_work(Tensor scratch, int64_t rows, int64_t cols, Dtype dtype) {
  const int64_t m = min64(rows, cols);
  const size_t x_bytes = muon_whole((size_t)(rows * cols) * dtype_bytes(dtype));
  const size_t gram_bytes = muon_whole((size_t)(m * m) * dtype_bytes(dtype));
  char *const at = (char *)scratch.data + 256;
  MuonWork w = {tensor_of(at, dtype, rows, cols), tensor_of(at + x_bytes, dtype, m, m),
                tensor_of(at + x_bytes + gram_bytes, dtype, m, m), (int64_t *)scratch.data};
  return w;
}
static_assert(NORM_LIMBS * sizeof(int64_t) <= 256, "the limbs of the norm");

struct MuonShape { int64_t rows, cols; };

// ---- factors, the same code on every device
static const float MUON_X = 3.4445f, MUON_GRAM = -4.7750f, MUON_SQUARE = 2.0315f;        // a, b, c
static const double MUON_EPS = 1e-7;

// near + (far - near) part is lerp(from, to, weight) in torch's way: `from` is the near end while weight < 1/2.
struct MuonLerp { bool from_is_near; float part; };
HD MuonLerp muon_lerp(double weight) {
  MuonLerp l = {weight < 0.5, (float)(weight < 0.5 ? weight : 1.0 - weight)};
  return l;
}
struct MuonMomentumFactors { bool skip; float grad_scale; MuonLerp momentum, update; };
HD MuonMomentumFactors muon_momentum_factors(const StepState *s, MuonArgs a) {
  const double mu = (double)a.momentum;
  MuonMomentumFactors f = {s->skip != SKIP_NOT, s->grad_scale, muon_lerp(1.0 - mu), muon_lerp(a.nesterov ? mu : 1.0)};
  return f;
}
struct MuonUpdateFactors { bool skip; float decay, step; };
HD MuonUpdateFactors muon_update_factors(const StepState *s, MuonArgs a, int64_t rows, int64_t cols) {
  const double lr = (double)s->in.lr * (double)a.lr_scale, m = (double)rows, n = (double)cols;
  const double factor = a.match_rms ? 0.2 * sqrt(m > n ? m : n) : sqrt(m > n ? m / n : 1.0);
  MuonUpdateFactors f = {s->skip != SKIP_NOT, (float)(1.0 - lr * (double)a.weight_decay), (float)(-lr * factor)};
  return f;
}
// What in is divided by. A NaN stays one.
HD float muon_divisor(const int64_t *limbs) {
  const double norm = norm_finish(limbs);
  return (float)(norm < MUON_EPS ? MUON_EPS : norm);
}

#if PART_LAUNCHERS
// Updates momentum (n) fp32, overwrites update (n) fp32 or bf16. A skipped step leaves momentum, and update is 0.
void muon_momentum(Ctx *c, Tensor update, Tensor momentum, Tensor grad, MuonArgs a) {
  const int64_t n = numel(grad);
  CHECK(numel(update) == n && numel(momentum) == n, "muon_momentum: grad has %lld elements, momentum %lld, update %lld",
        (long long)n, (long long)numel(momentum), (long long)numel(update));
  CHECK(update.dtype == F32 || update.dtype == BF16, "muon_momentum: update is %s", dtype_name(update.dtype));
  CHECK_DTYPE(momentum, F32);
  CHECK_DTYPE(grad, F32);
  CALL_OP(c, muon, muon_momentum, update, momentum, grad, a);
}
// Overwrites out (rows, cols), which may be in, with in orthogonalised in `steps` steps (training: MUON_STEPS; 0: only
// divided by its norm), and scratch, which then holds A and B of the last step (muon_work). A zero matrix stays zero.
void newton_schulz(Ctx *c, Tensor out, Tensor in, Tensor scratch, int steps) {
  CHECK(in.ndim == 2 && in.shape[0] > 0 && in.shape[1] > 0, "newton_schulz: in has %d dimensions, or none of some",
        in.ndim);
  CHECK_SHAPE(out, in.shape[0], in.shape[1]);
  CHECK(in.dtype == F32 || in.dtype == BF16, "newton_schulz: in is %s", dtype_name(in.dtype));
  CHECK_DTYPE(out, in.dtype);
  CHECK_DTYPE(scratch, I32);
  const size_t need = newton_schulz_work_bytes(in.shape[0], in.shape[1], in.dtype);
  CHECK((size_t)numel(scratch) * 4 >= need && (uintptr_t)scratch.data % 256 == 0,
        "newton_schulz: scratch has %zu bytes at %p, needs %zu on 256", (size_t)numel(scratch) * 4, scratch.data, need);
  CALL_OP(c, muon, newton_schulz, out, in, scratch, steps);
}
// Updates master (n), and param as adamw_update does. update (n) fp32 or bf16. Nothing changes in a skipped step.
void muon_update(Ctx *c, Tensor param, Tensor master, Tensor update, MuonArgs a, int64_t rows,
                 int64_t cols) {
  master_check("muon_update", param, master);
  CHECK(numel(update) == numel(master), "muon_update: master has %lld elements, update %lld",
        (long long)numel(master), (long long)numel(update));
  CHECK(update.dtype == F32 || update.dtype == BF16, "muon_update: update is %s", dtype_name(update.dtype));
  CHECK(rows > 0 && cols > 0, "muon_update: a matrix of %lld x %lld", (long long)rows, (long long)cols);
  CALL_OP(c, muon, muon_update, param, master, update, a, rows, cols);
}
#endif

#if PART_CPU || PART_CUDA
// F32 or BF16, which is what an update is.
#define MUON_DISPATCH(dtype_, T, ...) \
  do { if ((dtype_) == F32) { using T = float; __VA_ARGS__; } else { using T = bf16; __VA_ARGS__; } } while (0)
// X_s, for s = 0 .. steps, is in `out` or in scratch, by turns, and the last one in `out`.
static inline Tensor muon_x(const MuonWork *w, Tensor out, int s, int steps) { return (steps - s) % 2 ? w->x : out; }

// ---- momentum and update -------------------------------------------------------------------------------------------
INLINE vf muon_lerp_of(vf from, vf to, MuonLerp l) {
  const vf near = l.from_is_near ? from : to, far = l.from_is_near ? to : from;
  return vf_fma(vf_sub(far, near), vf_set1(l.part), near);
}
template <class U> struct MuonMomentumOp {
  typedef MuonMomentumFactors Factors;
  U *update;
  float *momentum;
  const float *grad;
  MuonArgs args;
  const StepState *state;
  LANES_OF Factors factors() const { return muon_momentum_factors(state, args); }
  template <class N> LANES_OF void at(int64_t i, N n, const Factors *f) const {
    auto g = vf_load_n(grad + i, n), b = vf_load_n(momentum + i, n);
    each(n, [f](vf &g, vf &b) LANES_EACH {
      g = vf_mul(g, vf_set1(f->grad_scale));
      if (!f->skip) b = muon_lerp_of(b, g, f->momentum);
      g = f->skip ? vf_set1(0.0f) : muon_lerp_of(g, b, f->update);
    }, g, b);
    if (!f->skip) vf_store_n(momentum + i, b, n);
    vf_store_n(update + i, g, n);
  }
};
void muon_momentum_impl(Ctx *c, Tensor update, Tensor momentum, Tensor grad, MuonArgs a) {
  MUON_DISPATCH(update.dtype, U, {
    const MuonMomentumOp<U> op = {(U *)update.data, (float *)momentum.data, (const float *)grad.data, a, c->state};
    flat_by(c, op, numel(grad), op.update, op.momentum, op.grad);
  });
}

template <class T, class M, bool CAST, class U> struct MuonUpdateOp {
  typedef MuonUpdateFactors Factors;
  T *param;
  M *master;
  const U *update;
  MuonArgs args;
  MuonShape shape;
  const StepState *state;
  LANES_OF Factors factors() const { return muon_update_factors(state, args, shape.rows, shape.cols); }
  template <class N> LANES_OF void at(int64_t i, N n, const Factors *f) const {
    if (f->skip) return;
    auto p = masters_load(param + i, master + i, n);
    auto u = vf_load_n(update + i, n);
    each(n, [f](vf &p, vf u) LANES_EACH {
      p = vf_fma(u, vf_set1(f->step), vf_mul(p, vf_set1(f->decay)));
    }, p, u);
    masters_store<CAST>(param + i, master + i, p, n);
  }
};
template <class T, class M, bool CAST, class U>
static void muon_update_run(Ctx *c, T *param, Tensor master, const U *update, MuonArgs a, MuonShape s) {
  M *p = (M *)master.data;
  flat_by(c, MuonUpdateOp<T, M, CAST, U>{param, p, update, a, s, c->state}, numel(master), param, p, update);
}
void muon_update_impl(Ctx *c, Tensor param, Tensor master, Tensor update, MuonArgs a, int64_t rows,
                      int64_t cols) {
  const MuonShape s = {rows, cols};
  MUON_DISPATCH(update.dtype, U, {
    const U *u = (const U *)update.data;
    if (master.dtype == LOW16) muon_update_run<bf16, low16, true>(c, (bf16 *)param.data, master, u, a, s);
    else if (!param.data) muon_update_run<float, float, false>(c, (float *)master.data, master, u, a, s);
    else DISPATCH(param.dtype, T, muon_update_run<T, float, true>(c, (T *)param.data, master, u, a, s));
  });
}
struct MuonDivisor { float by; };
// out = in / the norm whose limbs these are.
template <class T> struct MuonDivideOp {
  typedef MuonDivisor Factors;
  T *out;
  const T *in;
  const int64_t *limbs;
  LANES_OF Factors factors() const { return Factors{muon_divisor(limbs)}; }
  template <class N> LANES_OF void at(int64_t i, N n, const Factors *f) const {
    auto x = vf_load_n(in + i, n);
    each(n, [f](vf &x) LANES_EACH { x = vf_div(x, vf_set1(f->by)); }, x);
    vf_store_n(out + i, x, n);
  }
};
#endif

#if PART_CPU
// ---- Newton-Schulz -------------------------------------------------------------------------------------------------
INLINE void muon_norm_block(int64_t *limbs, const float *x, int64_t n) { norm_add_block(limbs, x, n); }
INLINE void muon_norm_block(int64_t *limbs, const bf16 *x, int64_t n) {
  alignas(64) float wide[NORM_BLOCK];
  for (int64_t i = 0; i < n; i += VF) vf_store(wide + i, vf_load_n(x + i, n - i));
  norm_add_block(limbs, wide, n);
}
template <class T> static void muon_norm(Ctx *c, int64_t *limbs, const T *x, int64_t n) {
  memset(limbs, 0, NORM_LIMBS * sizeof *limbs);
  parallel(n > 8 * NORM_BLOCK ? c->threads : 1, [=](int thread, int threads) {
    int64_t mine[NORM_LIMBS] = {};
    const ThreadShare share = thread_share(n, NORM_BLOCK, thread, threads);
    for (int64_t at = share.begin; at < share.end; at += NORM_BLOCK)
      muon_norm_block(mine, x + at, n - at < NORM_BLOCK ? n - at : NORM_BLOCK);
    norm_carry(mine);
    for (int j = 0; j < NORM_LIMBS; j++) __atomic_fetch_add(&limbs[j], mine[j], __ATOMIC_RELAXED);
  });
}
// out = scale sum + add_scale addend, all (rows, N) of the GEMM. addend NULL: out = sum.
struct MuonFinish { void *out; const void *addend; int64_t N; float scale, add_scale; };
template <class T, bool ADDS> static void muon_finish(const GemmJob *j, const float *sums, int64_t stride, int64_t row,
                                                      int64_t col, int64_t rows, int64_t cols) {
  const MuonFinish f = *(const MuonFinish *)j->arg;
  for (int64_t r = 0; r < rows; r++, sums += GEMM_NR) {
    T *const out = (T *)f.out + (row + r) * f.N + col;
    const T *const addend = (const T *)f.addend + (row + r) * f.N + col;
    for (int64_t i = 0; i < cols; i += VF) {
      const int64_t n = gemm_min(VF, cols - i);
      vf x = vf_load(sums + i / GEMM_NR * stride + i % GEMM_NR);
      if (ADDS) x = matmul_scaled(x, f.scale, vf_load_n(addend + i, n), f.add_scale);
      vf_store_n(out + i, x, n);
    }
  }
}
template <class T> static void muon_multiply(Ctx *c, GemmOperand a, GemmOperand b, int64_t K, bool lower,
                                             MuonFinish f) {
  GemmJob j = {a, b, K, f.addend ? muon_finish<T, true> : muon_finish<T, false>, NULL, &f};
  j.lower = lower;
  gemm(c, &j);
}

INLINE void muon_transpose8(bf16 *to, const bf16 *from, int64_t N) { v8_transpose(to, from, N); }
INLINE void muon_transpose8(float *to, const float *from, int64_t N) {
  vh r[8];
  for (int i = 0; i < 8; i++) r[i] = vh_load(from + i * N);
  vh_transpose(r);
  for (int i = 0; i < 8; i++) vh_store(to + i * N, r[i]);
}
// Copies what is below the diagonal of x (N,N) above it. A task is 64 rows above: whole lines are written.
template <class T> static void muon_mirror(Ctx *c, T *x, int64_t N) {
  enum { SIDE = 64 };
  parallel_tasks(N > 2 * SIDE ? c->threads : 1, gemm_ceil_div(N, SIDE), 1, [=](int64_t task) {
    const int64_t first = task * SIDE, end = gemm_min(first + SIDE, N);
    for (int64_t col = first; col < N; col += 8) for (int64_t row = first; row < gemm_min(end, col + 8); row += 8) {
      if (row < col && row + 8 <= N && col + 8 <= N) {
        muon_transpose8(x + row * N + col, x + col * N + row, N);
        continue;
      }
      for (int64_t i = row; i < gemm_min(row + 8, N); i++)
        for (int64_t j = max64(col, i + 1); j < gemm_min(col + 8, N); j++) x[i * N + j] = x[j * N + i];
    }
  });
}

template <class T> static void newton_schulz_run(Ctx *c, Tensor out, Tensor in, Tensor scratch, int steps) {
  const int64_t rows = in.shape[0], cols = in.shape[1], m = min64(rows, cols);
  const bool tall = rows > cols;
  const MuonWork w = muon_work(scratch, rows, cols, in.dtype);
  muon_norm(c, w.limbs, (const T *)in.data, rows * cols);
  const MuonDivideOp<T> divide = {(T *)muon_x(&w, out, 0, steps).data, (const T *)in.data, w.limbs};
  flat_by(c, divide, rows * cols);
  for (int s = 0; s < steps; s++) {
    const Tensor x = muon_x(&w, out, s, steps), next = muon_x(&w, out, s + 1, steps);
    const GemmOperand sides = tall ? matmul_columns(x) : matmul_rows(x), gram = matmul_rows(w.gram);
    muon_multiply<T>(c, sides, sides, tall ? rows : cols, true, MuonFinish{w.gram.data, NULL, m, 1.0f, 0.0f});
    muon_mirror(c, (T *)w.gram.data, m);
    muon_multiply<T>(c, gram, gram, m, true, MuonFinish{w.square.data, w.gram.data, m, MUON_SQUARE, MUON_GRAM});
    muon_mirror(c, (T *)w.square.data, m);
    const GemmOperand square = matmul_rows(w.square);
    const MuonFinish f = {next.data, x.data, cols, 1.0f, MUON_X};
    if (tall) muon_multiply<T>(c, matmul_rows(x), square, m, false, f);
    else muon_multiply<T>(c, square, matmul_columns(x), m, false, f);
  }
}
void newton_schulz_impl(Ctx *c, Tensor out, Tensor in, Tensor scratch, int steps) {
  MUON_DISPATCH(in.dtype, T, newton_schulz_run<T>(c, out, in, scratch, steps));
}
#endif
