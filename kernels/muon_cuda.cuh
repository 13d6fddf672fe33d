// muon_cuda.cuh: the CUDA part of muon.cuh. Element-wise kernels walk flat ranges as in optimizer_cuda.cuh, operation by
// operation as on the CPU: the same bits. The norm is exact, so it has the same bits too.
#pragma once
#include "muon.cuh"
#include "optimizer_cuda.cuh"
#include "matmul_cuda.cuh"

// ---- momentum and update -------------------------------------------------------------------------------------------
__device__ static inline float muon_lerp_one(float from, float to, MuonLerp l) {
  const float near = l.from_is_near ? from : to, far = l.from_is_near ? to : from;
  return fmaf(far - near, l.part, near);
}
template <int W, class U>
__device__ static inline void muon_momentum_lanes(U *update, float *momentum, const float *grad, bool skip,
                                                  const MuonMomentumFactors *f) {
  if (skip) { lanes_store<W>(update, lanes_of<W>(0.0f)); return; }
  Lanes<W> g = lanes_load<W>(grad), b = lanes_load<W>(momentum);
  UNROLL for (int i = 0; i < W; i++) {
    g.x[i] *= f->grad_scale;
    b.x[i] = muon_lerp_one(b.x[i], g.x[i], f->momentum);
    g.x[i] = muon_lerp_one(g.x[i], b.x[i], f->update);
  }
  lanes_store<W>(momentum, b);
  lanes_store<W>(update, g);
}
template <int W, class U>
__global__ static void __launch_bounds__(FLAT_THREADS)
muon_momentum_kernel(U *update, float *momentum, const float *grad, int64_t n, MuonArgs a, const StepState *state) {
  const bool skip = state->skip;
  const MuonMomentumFactors f = muon_momentum_factors(state, a);
  FLAT_WALK(W, n, i, (muon_momentum_lanes<W>(update + i, momentum + i, grad + i, skip, &f)),
            (muon_momentum_lanes<1>(update + i, momentum + i, grad + i, skip, &f)));
}
template <class U> static void muon_momentum_launch(Ctx *c, U *update, float *m, const float *g, int64_t n, MuonArgs a) {
  if (lanes_aligned(update, m, g))
    LAUNCH((muon_momentum_kernel<LANES, U>), flat_blocks(n, LANES), FLAT_THREADS, 0, STREAM(c), update, m, g, n, a,
           c->state);
  else
    LAUNCH((muon_momentum_kernel<1, U>), flat_blocks(n, 1), FLAT_THREADS, 0, STREAM(c), update, m, g, n, a, c->state);
}
static void muon_momentum_impl(Ctx *c, Tensor update, Tensor momentum, Tensor grad, MuonArgs a) {
  MUON_DISPATCH(update.dtype, U, muon_momentum_launch<U>(c, (U *)update.data, (float *)momentum.data,
                                                         (const float *)grad.data, numel(grad), a));
}

template <class T, class M, bool CAST, class U, int W>
__device__ static inline void muon_update_lanes(T *param, M *master, const U *update, MuonUpdateFactors f) {
  Lanes<W> p = masters_load<W>(param, master);
  const Lanes<W> u = lanes_load<W>(update);
  UNROLL for (int i = 0; i < W; i++) p.x[i] = fmaf(u.x[i], f.step, p.x[i] * f.decay);
  masters_store<W, CAST>(param, master, p);
}
// The factors need fp64 divisions and square roots: one thread of a block computes them.
template <class T, class M, bool CAST, class U, int W>
__global__ static void __launch_bounds__(FLAT_THREADS)
muon_update_kernel(T *param, M *master, const U *update, int64_t n, MuonArgs a, int64_t rows, int64_t cols,
                   const StepState *state) {
  SHARED(MuonUpdateFactors, factors, 1);
  if (state->skip) return;
  if (threadIdx.x == 0) *factors = muon_update_factors(state, a, rows, cols);
  __syncthreads();
  const MuonUpdateFactors f = *factors;
  FLAT_WALK(W, n, i, (muon_update_lanes<T, M, CAST, U, W>(param + i, master + i, update + i, f)),
            (muon_update_lanes<T, M, CAST, U, 1>(param + i, master + i, update + i, f)));
}
template <class T, class M, bool CAST, class U>
static void muon_update_launch(Ctx *c, T *param, M *master, const U *update, int64_t n, MuonArgs a, MuonShape s) {
  if (lanes_aligned(param, master, update))
    LAUNCH((muon_update_kernel<T, M, CAST, U, LANES>), flat_blocks(n, LANES), FLAT_THREADS, 0, STREAM(c), param, master,
           update, n, a, s.rows, s.cols, c->state);
  else
    LAUNCH((muon_update_kernel<T, M, CAST, U, 1>), flat_blocks(n, 1), FLAT_THREADS, 0, STREAM(c), param, master, update,
           n, a, s.rows, s.cols, c->state);
}
template <class U>
static void muon_update_choose(Ctx *c, Tensor param, Tensor master, const U *update, MuonArgs a, MuonShape s) {
  const int64_t n = numel(master);
  float *p = (float *)master.data;
  if (master.dtype == LOW16)
    muon_update_launch<bf16, low16, true>(c, (bf16 *)param.data, (low16 *)master.data, update, n, a, s);
  else if (!param.data) muon_update_launch<float, float, false>(c, p, p, update, n, a, s);
  else DISPATCH(param.dtype, T, muon_update_launch<T, float, true>(c, (T *)param.data, p, update, n, a, s));
}
static void muon_update_impl(Ctx *c, Tensor param, Tensor master, Tensor update, MuonArgs a, int64_t rows,
                             int64_t cols) {
  MUON_DISPATCH(update.dtype, U, muon_update_choose(c, param, master, (const U *)update.data, a, MuonShape{rows, cols}));
}

// ---- Newton-Schulz -------------------------------------------------------------------------------------------------
template <int W, class T> __device__ static inline void muon_divide_lanes(T *out, const T *in, float divisor) {
  Lanes<W> x = lanes_load<W>(in);
  UNROLL for (int i = 0; i < W; i++) x.x[i] = x.x[i] / divisor;
  lanes_store<W>(out, x);
}
template <int W, class T>
__global__ static void __launch_bounds__(FLAT_THREADS)
muon_divide_kernel(T *out, const T *in, int64_t n, const int64_t *limbs) {
  SHARED(float, divisor, 1);
  if (threadIdx.x == 0) *divisor = muon_divisor(limbs);
  __syncthreads();
  const float by = *divisor;
  FLAT_WALK(W, n, i, (muon_divide_lanes<W>(out + i, in + i, by)), (muon_divide_lanes<1>(out + i, in + i, by)));
}
template <class T> static void muon_normalise(Ctx *c, T *out, const T *in, int64_t n, int64_t *limbs) {
  zero_impl(c, limbs, NORM_LIMBS * sizeof *limbs);
  if (lanes_aligned(in)) LAUNCH((norm_kernel<LANES, T>), flat_blocks(n, LANES), FLAT_THREADS, 0, STREAM(c), limbs, in, n);
  else LAUNCH((norm_kernel<1, T>), flat_blocks(n, 1), FLAT_THREADS, 0, STREAM(c), limbs, in, n);
  LAUNCH(norm_carry_kernel, 1, 1, 0, STREAM(c), limbs);
  if (lanes_aligned(out, in))
    LAUNCH((muon_divide_kernel<LANES, T>), flat_blocks(n, LANES), FLAT_THREADS, 0, STREAM(c), out, in, n, limbs);
  else LAUNCH((muon_divide_kernel<1, T>), flat_blocks(n, 1), FLAT_THREADS, 0, STREAM(c), out, in, n, limbs);
}
// out = scale (a b) + add_scale addend; data == NULL: without addend and with scale 1.
struct MuonSum { Tensor addend; float scale, add_scale; };
static void muon_product(Ctx *c, MatmulOp op, Tensor out, Tensor a, bool a_rows, Tensor b, bool b_rows, MuonSum x) {
  const MatmulProduct p = {op, out.shape[0], out.shape[1], a.shape[a_rows], out, a, b, a_rows, b_rows, false,
                           Tensor{}, Tensor{}, Tensor{}, Tensor{}, x.addend, x.scale, x.add_scale};
  matmul_product(c, &p);
}
static void newton_schulz_impl(Ctx *c, Tensor out, Tensor in, Tensor scratch, int steps) {
  const int64_t rows = in.shape[0], cols = in.shape[1];
  const bool tall = rows > cols;
  const MuonWork w = muon_work(scratch, rows, cols, in.dtype);
  const MuonSum alone = {Tensor{}, 1.0f, 0.0f}, squared = {w.gram, MUON_SQUARE, MUON_GRAM};
  MUON_DISPATCH(in.dtype, T, muon_normalise<T>(c, (T *)muon_x(&w, out, 0, steps).data, (const T *)in.data, rows * cols,
                                               w.limbs));
  for (int s = 0; s < steps; s++) {
    const Tensor x = muon_x(&w, out, s, steps), next = muon_x(&w, out, s + 1, steps);
    const MuonSum added = {x, 1.0f, MUON_X};
    muon_product(c, tall ? MATMUL_BACKWARD_WEIGHT : MATMUL_FORWARD, w.gram, x, !tall, x, !tall, alone);
    muon_product(c, MATMUL_FORWARD, w.square, w.gram, true, w.gram, true, squared);
    muon_product(c, MATMUL_BACKWARD_INPUT, next, tall ? x : w.square, true, tall ? w.square : x, false, added);
  }
}
