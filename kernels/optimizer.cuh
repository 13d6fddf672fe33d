// optimizer.cuh: AdamW, SGD with momentum, and the exact sum of squares for gradient clipping. Ranges are flat, and
// every element depends on its own inputs only, so no result depends on where a shard starts.
//
//   adamw_update   Loshchilov & Hutter 2019, in the order of torch.optim.AdamW:
//                    g = grad_scale grad
//                    p -= lr weight_decay p
//                    m += (1 - beta1) (g - m)
//                    v  = beta2 v + (1 - beta2) g^2
//                    p -= (lr / bias_correction1) m / (sqrt(v) / sqrt(bias_correction2) + eps)
//                  with m and v in fp32; where they are stored in bf16 they are then rounded stochastically, m by the
//                  low 16 bits of the element's random number, v by the others (random.h)
//   sgd_update     torch.optim.SGD with dampening 0; decay is added to the gradient (L2), unlike in AdamW:
//                    g = grad_scale grad + weight_decay p
//                    b = momentum b + g        a zero b makes the first step b = g, as torch does
//                    p -= lr b
//   norm_accumulate   adds squares exactly, without rounding (norm.h), so that the norm, the root of their sum, is
//                     bitwise identical for every partition of the elements
//   norm_change       the same for the squares of differences, each difference rounded to fp32
//
// lr, grad_scale, the bias corrections and skip (which leaves everything unchanged) are read from c->state when the op
// runs. lr is that of the state times lr_scale of the arguments.
//
//   p                      is master (n) fp32; param (n), any floating dtype, is overwritten with p rounded
//                          (master.cuh); param.data NULL: the master is the parameter. Or master (n) is low16: then
//                          param is bf16 and holds the upper half of p, and master the lower half
//   m, v (n)               both fp32 or both bf16
//   momentum, grad (n)     fp32; grad of norm_accumulate, and of adamw_update with a low16 master, also bf16
#pragma once
#include "master.cuh"
#include "norm.h"
#include "random.h"

// ---- factors of one update, the same code on every device
struct AdamwFactors {
  bool skip;
  float grad_scale, decay, one_minus_beta1, beta2, one_minus_beta2, root2, eps, step;
  uint32_t number;                               // of the step
};
HD AdamwFactors adamw_factors(const StepState *s, AdamwArgs a) {
  const double lr = (double)s->in.lr * (double)a.lr_scale;
  AdamwFactors f = {s->skip != SKIP_NOT,
                    s->grad_scale,
                    (float)(1.0 - lr * (double)a.weight_decay),
                    (float)(1.0 - (double)a.beta1),
                    a.beta2,
                    (float)(1.0 - (double)a.beta2),
                    (float)(1.0 / sqrt((double)s->bias_correction2)),
                    a.eps,
                    (float)(-lr / (double)s->bias_correction1),
                    s->in.step};
  return f;
}

#if PART_LAUNCHERS
// Updates master, m, v; overwrites param, and updates it where master is low16.
void adamw_update(Ctx *c, Tensor param, Tensor master, Tensor m, Tensor v, Tensor grad, AdamwArgs a) {
  const int64_t n = numel(master);
  master_check("adamw_update", param, master);
  CHECK(numel(m) == n && numel(v) == n && numel(grad) == n,
        "adamw_update: master has %lld elements, m %lld, v %lld, grad %lld", (long long)n, (long long)numel(m),
        (long long)numel(v), (long long)numel(grad));
  CHECK(m.dtype == v.dtype && (m.dtype == F32 || m.dtype == BF16), "adamw_update: m is %s, v %s", dtype_name(m.dtype),
        dtype_name(v.dtype));
  if (master.dtype != LOW16 || grad.dtype != BF16) CHECK_DTYPE(grad, F32);
  CALL_OP(c, optimizer, adamw_update, param, master, m, v, grad, a);
}

// Updates master and momentum, and param as adamw_update does. momentum.data may be NULL when a.momentum is 0.
void sgd_update(Ctx *c, Tensor param, Tensor master, Tensor momentum, Tensor grad, SgdArgs a) {
  const int64_t n = numel(master);
  master_check("sgd_update", param, master);
  CHECK(numel(grad) == n && (!momentum.data || numel(momentum) == n),
        "sgd_update: master has %lld elements, grad %lld", (long long)n, (long long)numel(grad));
  CHECK(momentum.data || a.momentum == 0.0f, "sgd_update: momentum %g without a buffer", (double)a.momentum);
  CHECK_DTYPE(grad, F32);
  if (momentum.data) CHECK_DTYPE(momentum, F32);
  CALL_OP(c, optimizer, sgd_update, param, master, momentum, grad, a);
}

// Adds the squares of grad (n), fp32 or bf16, to limbs[NORM_LIMBS], whose carries it leaves (norm_carry).
void norm_accumulate(Ctx *c, int64_t *limbs, Tensor grad) {
  if (grad.dtype != BF16) CHECK_DTYPE(grad, F32);
  CALL_OP(c, optimizer, norm_accumulate, limbs, grad);
}
// Adds the squares of now - before, both (n) fp32, to limbs[NORM_LIMBS].
void norm_change(Ctx *c, int64_t *limbs, Tensor now, Tensor before) {
  CHECK_DTYPE(now, F32);
  CHECK_DTYPE(before, F32);
  CHECK(numel(now) == numel(before), "norm_change: %lld elements now, %lld before", (long long)numel(now),
        (long long)numel(before));
  CALL_OP(c, optimizer, norm_change, limbs, now, before);
}
#endif

#if (PART_CPU || PART_CUDA) && FAMILY(optimizer)
// ---- AdamW ---------------------------------------------------------------------------------------------------------
// S: of the moments. G: of the gradient.
template <class T, class M, bool CAST, class S, class G> struct AdamwOp {
  typedef AdamwFactors Factors;
  T *param;
  M *master;
  S *m, *v;
  const G *grad;
  AdamwArgs args;
  const StepState *state;
  LANES_OF Factors factors() const { return adamw_factors(state, args); }
  template <class N> LANES_OF void at(int64_t i, N n, const Factors *f) const {
    if (f->skip) return;
    auto p = masters_load(param + i, master + i, n);
    auto pm = vf_load_n(m + i, n), pv = vf_load_n(v + i, n), g = vf_load_n(grad + i, n);
    each(n, [f](vf &p, vf &m, vf &v, vf g) LANES_EACH {
      g = vf_mul(g, vf_set1(f->grad_scale));
      m = vf_fma(vf_sub(g, m), vf_set1(f->one_minus_beta1), m);
      v = vf_fma(vf_mul(g, g), vf_set1(f->one_minus_beta2), vf_mul(v, vf_set1(f->beta2)));
      const vf divisor = vf_fma(vf_sqrt(v), vf_set1(f->root2), vf_set1(f->eps));
      p = vf_fma(vf_div(m, divisor), vf_set1(f->step), vf_mul(p, vf_set1(f->decay)));
    }, p, pm, pv, g);
    if constexpr (sizeof(S) == 2) {
      auto bits = philox_words(args.seed, Philox{0, args.param, f->number, RANDOM_MOMENTS}, args.element + i, n);
      each(n, [](vf &m, vf &v, vi bits) LANES_EACH {
        m = vf_round_random(m, bits);
        v = vf_round_random(v, vi_shr(bits, 16));
      }, pm, pv, bits);
    }
    vf_store_n(m + i, pm, n);
    vf_store_n(v + i, pv, n);
    masters_store<CAST>(param + i, master + i, p, n);
  }
};
// Five blocks fit into an SM's registers; fewer with masters in halves or beside fp32 parameters, with random numbers
// for moments in bf16, and of these with gradients in bf16, too, as a thread then has eight elements. Without a bound
// ptxas aims at five all the same, and spills.
template <class S, class T, class M, bool CAST, class G = float>
static void adamw_run(Ctx *c, T *param, Tensor master, Tensor m, Tensor v, Tensor grad, AdamwArgs a) {
  const AdamwOp<T, M, CAST, S, G> op = {param, (M *)master.data, (S *)m.data, (S *)v.data, (const G *)grad.data, a,
                                        c->state};
  constexpr int BLOCKS = sizeof(S) == 2 ? (sizeof(G) == 2 ? 3 : 4)
                         : CAST && (sizeof(T) == 4 || sizeof(M) == 2) ? 4 : 5;
  flat_by<BLOCKS>(c, op, numel(master), param, op.master, op.m, op.v, op.grad);
}
template <class S>
static void adamw_of(Ctx *c, Tensor param, Tensor master, Tensor m, Tensor v, Tensor grad, AdamwArgs a) {
  if (grad.dtype == BF16) adamw_run<S, bf16, low16, true, bf16>(c, (bf16 *)param.data, master, m, v, grad, a);
  else if (master.dtype == LOW16) adamw_run<S, bf16, low16, true>(c, (bf16 *)param.data, master, m, v, grad, a);
  else if (!param.data) adamw_run<S, float, float, false>(c, (float *)master.data, master, m, v, grad, a);
  else DISPATCH(param.dtype, T, adamw_run<S, T, float, true>(c, (T *)param.data, master, m, v, grad, a));
}
void adamw_update_impl(Ctx *c, Tensor param, Tensor master, Tensor m, Tensor v, Tensor grad, AdamwArgs a) {
  (m.dtype == BF16 ? adamw_of<bf16> : adamw_of<float>)(c, param, master, m, v, grad, a);
}

// ---- SGD -----------------------------------------------------------------------------------------------------------
struct SgdFactors { bool skip; float grad_scale, minus_lr; };
// BUFFER: there is a momentum, in `buffer`.
template <class T, class M, bool CAST, bool BUFFER> struct SgdOp {
  typedef SgdFactors Factors;
  T *param;
  M *master;
  float *buffer;
  const float *grad;
  SgdArgs args;
  const StepState *state;
  LANES_OF Factors factors() const {
    return Factors{state->skip != SKIP_NOT, state->grad_scale, -state->in.lr * args.lr_scale};
  }
  template <class N> LANES_OF void at(int64_t i, N n, const Factors *f) const {
    if (f->skip) return;
    auto p = masters_load(param + i, master + i, n);
    auto g = vf_load_n(grad + i, n), b = vf_load_n((BUFFER ? buffer : grad) + i, n);
    each(n, [f, this](vf &p, vf &g, vf b) LANES_EACH {
      g = vf_fma(p, vf_set1(args.weight_decay), vf_mul(g, vf_set1(f->grad_scale)));
      if (BUFFER) g = vf_fma(b, vf_set1(args.momentum), g);
      p = vf_fma(g, vf_set1(f->minus_lr), p);
    }, p, g, b);
    if (BUFFER) vf_store_n(buffer + i, g, n);
    masters_store<CAST>(param + i, master + i, p, n);
  }
};
template <class T, class M, bool CAST>
static void sgd_run(Ctx *c, T *param, Tensor master, Tensor momentum, Tensor grad, SgdArgs a) {
  const int64_t n = numel(master);
  M *p = (M *)master.data;
  const float *g = (const float *)grad.data;
  float *b = (float *)momentum.data;
  if (b) flat_by(c, SgdOp<T, M, CAST, true>{param, p, b, g, a, c->state}, n, param, p, b, g);
  else flat_by(c, SgdOp<T, M, CAST, false>{param, p, b, g, a, c->state}, n, param, p, g);
}
void sgd_update_impl(Ctx *c, Tensor param, Tensor master, Tensor momentum, Tensor grad, SgdArgs a) {
  if (master.dtype == LOW16) sgd_run<bf16, low16, true>(c, (bf16 *)param.data, master, momentum, grad, a);
  else if (!param.data) sgd_run<float, float, false>(c, (float *)master.data, master, momentum, grad, a);
  else DISPATCH(param.dtype, T, sgd_run<T, float, true>(c, (T *)param.data, master, momentum, grad, a));
}
#endif

#if PART_CPU
// ---- exact norm ----------------------------------------------------------------------------------------------------
// Adds sum 2^(shift - 110) to limbs, 0 <= shift.
static void norm_add_limbs(int64_t *limbs, int64_t sum, int shift) {
  const int j = shift / 32, bits = shift % 32;
  const uint64_t low = (uint64_t)(uint32_t)sum << bits;
  const int64_t high = (sum >> 32) * ((int64_t)1 << bits);
  limbs[j] += (int64_t)(low & 0xffffffffu);
  limbs[j + 1] += (int64_t)(low >> 32) + (high & 0xffffffff);
  limbs[j + 2] += high >> 32;
}
// Adds the square of any one value, in integer arithmetic: the definition that the fast form must match.
static void norm_add_one(int64_t *limbs, float g) {
  const uint32_t bits = f32_bits(g) & 0x7fffffffu;
  if (bits >= 0x7f800000u) { limbs[NORM_NONFINITE]++; return; }
  const NormSquare g2 = norm_square(bits);
  norm_add_limbs(limbs, (int64_t)g2.square, g2.shift);
}

// Level k rounds to multiples of 2^(51 k - 110): adding M = 1.5 2^(52 + 51 k - 110) rounds off all finer bits. The
// multiple is then in the low bits of the sum, so multiples are added as integers. The part that was rounded off, exact
// in fp64, goes to the level below. (Demmel & Nguyen 2015 bin the same way and add in floating point.)
static const int NORM_LEVEL_BITS = 51;
static const int64_t NORM_BLOCK = 2048;          // 2048 2^51 < 2^63: a block's sum fits
static inline double norm_level_magic(int level) {
  return ldexp(1.5, 52 + NORM_FLOOR_EXPONENT + NORM_LEVEL_BITS * level);
}

// x^2 is exact in fp64, so the fused operations round no differently; they save a multiplication.
template <int LEVELS> INLINE void norm_lanes(vl *sum, vd x, const vd *magic) {
  vd t = vd_square_add(x, magic[LEVELS - 1]), rest;
  sum[LEVELS - 1] = vl_add_bits(sum[LEVELS - 1], t);
  if (LEVELS > 1) rest = vd_square_sub(x, vd_sub(t, magic[LEVELS - 1]));
#pragma GCC unroll 3
  for (int k = LEVELS - 2; k >= 0; k--) {
    t = vd_add(rest, magic[k]);
    sum[k] = vl_add_bits(sum[k], t);
    if (k) rest = vd_sub(rest, vd_sub(t, magic[k]));
  }
}
template <int LEVELS> INLINE void norm_lanes(vl *low, vl *high, vf x, const vd *magic) {
  norm_lanes<LEVELS>(low, vd_of(vf_low_half(x)), magic);
  norm_lanes<LEVELS>(high, vd_of(vf_high_half(x)), magic);
}
// n <= NORM_BLOCK elements whose squares are all below 2^(51 LEVELS - 110).
template <int LEVELS> static void norm_block(int64_t *limbs, const float *g, int64_t n) {
  vl low[LEVELS], high[LEVELS];
  vd magic[LEVELS];
  for (int k = 0; k < LEVELS; k++) low[k] = high[k] = vl_zero(), magic[k] = vd_set1(norm_level_magic(k));
  int64_t i = 0;
  for (; i + VF <= n; i += VF) {                 // loads the next block meanwhile
    __builtin_prefetch((const char *)(g + i) + NORM_BLOCK * sizeof(float));
    norm_lanes<LEVELS>(low, high, vf_load(g + i), magic);
  }
  if (i < n) norm_lanes<LEVELS>(low, high, vf_load_n(g + i, n - i), magic);
  const uint64_t lanes = (uint64_t)((n + VF - 1) / VF * VF);
  for (int k = 0; k < LEVELS; k++) {             // modulo 2^64, to which the bits of M were added once per lane
    const double m = norm_level_magic(k);
    uint64_t bits, part[16], total = 0;
    memcpy(&bits, &m, 8);
    memcpy(part, &low[k], 64);
    memcpy(part + 8, &high[k], 64);
    for (uint64_t p : part) total += p;
    norm_add_limbs(limbs, (int64_t)(total - lanes * bits), NORM_LEVEL_BITS * k);
  }
}
// Gradients of ordinary size need two levels; converged or unused parts of the model need one or none.
static void norm_add_block(int64_t *limbs, const float *g, int64_t n) {
  const float largest = bits_f32((uint32_t)vf_largest(g, n));
  if (largest == 0.0f) return;
  if (largest < 0x1p-30f) norm_block<1>(limbs, g, n);
  else if (largest < 0x1p-4f) norm_block<2>(limbs, g, n);
  else if (largest < 0x1p21f) norm_block<3>(limbs, g, n);
  else for (int64_t i = 0; i < n; i++) norm_add_one(limbs, g[i]);
}
// Adds the squares of x to limbs; with CHANGE the squares of x - less.
template <bool CHANGE, class T> static void norm_range(Ctx *c, int64_t *limbs, const T *x, const T *less, int64_t n) {
  parallel(n > 8 * NORM_BLOCK ? c->threads : 1, [=](int thread, int threads) {
    alignas(64) float change[NORM_BLOCK];
    int64_t mine[NORM_LIMBS] = {};
    const ThreadShare share = thread_share(n, NORM_BLOCK, thread, threads);
    for (int64_t at = share.begin; at < share.end; at += NORM_BLOCK) {
      const int64_t count = n - at < NORM_BLOCK ? n - at : NORM_BLOCK;
      if constexpr (!CHANGE && sizeof(T) == 4) norm_add_block(mine, x + at, count);
      else {
        for (int64_t i = 0; i < count; i += VF) {
          const vf now = vf_load_n(x + at + i, count - i);
          vf_store(change + i, CHANGE ? vf_sub(now, vf_load_n(less + at + i, count - i)) : now);
        }
        norm_add_block(mine, change, count);
      }
    }
    norm_carry(mine);
    for (int j = 0; j < NORM_LIMBS; j++) __atomic_fetch_add(&limbs[j], mine[j], __ATOMIC_RELAXED);
  });
}
#if FAMILY(optimizer)
void norm_accumulate_impl(Ctx *c, int64_t *limbs, Tensor grad) {
  if (grad.dtype == BF16) norm_range<false, bf16>(c, limbs, (const bf16 *)grad.data, NULL, numel(grad));
  else norm_range<false, float>(c, limbs, (const float *)grad.data, NULL, numel(grad));
}
void norm_change_impl(Ctx *c, int64_t *limbs, Tensor now, Tensor before) {
  norm_range<true, float>(c, limbs, (const float *)now.data, (const float *)before.data, numel(now));
}
#endif
#endif
