// optimizer.cuh: AdamW, SGD with momentum, and the exact sum of squares for gradient clipping. Ranges are flat, and
// every element depends on its own inputs only, so no result depends on where a shard starts.
//
//   adamw_update   Loshchilov & Hutter 2019, in the order of torch.optim.AdamW:
//                    g = grad_scale grad
//                    p -= lr weight_decay p
//                    m += (1 - beta1) (g - m)
//                    v  = beta2 v + (1 - beta2) g^2
//                    p -= (lr / bias_correction1) m / (sqrt(v) / sqrt(bias_correction2) + eps)
//   sgd_update     torch.optim.SGD with dampening 0; decay is added to the gradient (L2), unlike in AdamW:
//                    g = grad_scale grad + weight_decay p
//                    b = momentum b + g        a zero b makes the first step b = g, as torch does
//                    p -= lr b
//   norm_change                    the same of differences, each rounded to fp32
//   norm_accumulate   sqrt(sum of squares) without intermediate rounding (norm.h): same bits for every partition
//
// lr, grad_scale, the bias corrections and skip (which leaves everything unchanged) are read from c->state when the op
// runs. lr is that of the state times lr_scale of the arguments.
//
//   p master (n) fp32; param (n), any floating dtype, is overwritten with p rounded (master.cuh); param.data NULL: the
//                master is the parameter
//     master (n) low16: param, then bf16, and master together hold p
//   m, v, momentum, grad (n) fp32
#pragma once
#include "master.cuh"
#include "norm.h"

// ---- factors of one update, the same code on every device
struct AdamwFactors { float grad_scale, decay, one_minus_beta1, beta2, one_minus_beta2, root2, eps, step; };
HD AdamwFactors adamw_factors(const StepState *s, AdamwArgs a) {
  const double lr = (double)s->in.lr * (double)a.lr_scale;
  AdamwFactors f = {s->grad_scale,
                    (float)(1.0 - lr * (double)a.weight_decay),
                    (float)(1.0 - (double)a.beta1),
                    a.beta2,
                    (float)(1.0 - (double)a.beta2),
                    (float)(1.0 / sqrt((double)s->bias_correction2)),
                    a.eps,
                    (float)(-lr / (double)s->bias_correction1)};
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
  CHECK_DTYPE(m, F32);
  CHECK_DTYPE(v, F32);
  CHECK_DTYPE(grad, F32);
  CALL_OP(c, adamw_update, param, master, m, v, grad, a);
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
  CALL_OP(c, sgd_update, param, master, momentum, grad, a);
}

// Adds the squares of grad (n) fp32 to limbs[NORM_LIMBS], whose carries it leaves (norm_carry).
void norm_accumulate(Ctx *c, int64_t *limbs, Tensor grad) {
  CHECK_DTYPE(grad, F32);
  CALL_OP(c, norm_accumulate, limbs, grad);
}
// Adds the squares of now - before, both (n) fp32, to limbs[NORM_LIMBS].
void norm_change(Ctx *c, int64_t *limbs, Tensor now, Tensor before) {
  CHECK_DTYPE(now, F32);
  CHECK_DTYPE(before, F32);
  CHECK(numel(now) == numel(before), "norm_change: %lld elements now, %lld before", (long long)numel(now),
        (long long)numel(before));
  CALL_OP(c, norm_change, limbs, now, before);
}
#endif

#if PART_CPU
static const int64_t OPTIMIZER_PIECE = 4096;     // elements that a thread takes at a time; a multiple of VF

#if FAMILY(optimizer)                            // muon.cuh needs the rest
// ---- AdamW ---------------------------------------------------------------------------------------------------------
struct AdamwLanes { vf grad_scale, decay, one_minus_beta1, beta2, one_minus_beta2, root2, eps, step; };

template <class T, class M, bool CAST>
INLINE void adamw_lanes(T *param, M *master, float *m, float *v, const float *grad, const AdamwLanes *a, int64_t n) {
  const vf g = vf_mul(vf_load_n(grad, n), a->grad_scale), old_m = vf_load_n(m, n);
  const vf new_m = vf_fma(vf_sub(g, old_m), a->one_minus_beta1, old_m);
  const vf new_v = vf_fma(vf_mul(g, g), a->one_minus_beta2, vf_mul(vf_load_n(v, n), a->beta2));
  const vf denominator = vf_fma(vf_sqrt(new_v), a->root2, a->eps);
  const vf p = vf_fma(vf_div(new_m, denominator), a->step, vf_mul(masters_load(param, master, n), a->decay));
  vf_store_n(m, new_m, n);
  vf_store_n(v, new_v, n);
  masters_store<CAST>(param, master, p, n);
}
template <class T, class M, bool CAST>
static void adamw_range(Ctx *c, T *param, M *master, float *m, float *v, const float *grad, int64_t n,
                        AdamwArgs args) {
  const AdamwFactors k = adamw_factors(c->state, args);
  const AdamwLanes lanes = {vf_set1(k.grad_scale), vf_set1(k.decay), vf_set1(k.one_minus_beta1), vf_set1(k.beta2),
                            vf_set1(k.one_minus_beta2), vf_set1(k.root2), vf_set1(k.eps), vf_set1(k.step)};
  parallel_for(n > 4 * OPTIMIZER_PIECE ? c->threads : 1, 0, n, OPTIMIZER_PIECE, [=](int64_t at) {
    const AdamwLanes a = lanes;
    const int64_t end = at + OPTIMIZER_PIECE < n ? at + OPTIMIZER_PIECE : n;
    int64_t i = at;
    for (; i + VF <= end; i += VF) adamw_lanes<T, M, CAST>(param + i, master + i, m + i, v + i, grad + i, &a, VF);
    if (i < end) adamw_lanes<T, M, CAST>(param + i, master + i, m + i, v + i, grad + i, &a, end - i);
  });
}
void adamw_update_impl(Ctx *c, Tensor param, Tensor master, Tensor m, Tensor v, Tensor grad, AdamwArgs a) {
  if (c->state->skip) return;
  float *p = (float *)master.data, *pm = (float *)m.data, *pv = (float *)v.data, *g = (float *)grad.data;
  const int64_t n = numel(master);
  if (master.dtype == LOW16)
    adamw_range<bf16, low16, true>(c, (bf16 *)param.data, (low16 *)master.data, pm, pv, g, n, a);
  else if (!param.data) adamw_range<float, float, false>(c, p, p, pm, pv, g, n, a);
  else DISPATCH(param.dtype, T, adamw_range<T, float, true>(c, (T *)param.data, p, pm, pv, g, n, a));
}

// ---- SGD -----------------------------------------------------------------------------------------------------------
struct SgdLanes { vf grad_scale, weight_decay, momentum, minus_lr; };

template <class T, class M, bool CAST, bool BUFFER>
INLINE void sgd_lanes(T *param, M *master, float *buffer, const float *grad, const SgdLanes *a, int64_t n) {
  const vf old = masters_load(param, master, n);
  vf g = vf_fma(old, a->weight_decay, vf_mul(vf_load_n(grad, n), a->grad_scale));
  if (BUFFER) {
    g = vf_fma(vf_load_n(buffer, n), a->momentum, g);
    vf_store_n(buffer, g, n);
  }
  masters_store<CAST>(param, master, vf_fma(g, a->minus_lr, old), n);
}
template <class T, class M, bool CAST, bool BUFFER>
static void sgd_range(Ctx *c, T *param, M *master, float *buffer, const float *grad, int64_t n, SgdArgs args) {
  const SgdLanes lanes = {vf_set1(c->state->grad_scale), vf_set1(args.weight_decay), vf_set1(args.momentum),
                          vf_set1(-c->state->in.lr * args.lr_scale)};
  parallel_for(n > 4 * OPTIMIZER_PIECE ? c->threads : 1, 0, n, OPTIMIZER_PIECE, [=](int64_t at) {
    const SgdLanes a = lanes;
    const int64_t end = at + OPTIMIZER_PIECE < n ? at + OPTIMIZER_PIECE : n;
    int64_t i = at;
    for (; i + VF <= end; i += VF) sgd_lanes<T, M, CAST, BUFFER>(param + i, master + i, buffer + i, grad + i, &a, VF);
    if (i < end) sgd_lanes<T, M, CAST, BUFFER>(param + i, master + i, buffer + i, grad + i, &a, end - i);
  });
}
template <class T, class M, bool CAST>
static void sgd_choose(Ctx *c, T *param, Tensor master, Tensor momentum, Tensor grad, SgdArgs a) {
  M *p = (M *)master.data;
  float *g = (float *)grad.data;
  if (momentum.data) sgd_range<T, M, CAST, true>(c, param, p, (float *)momentum.data, g, numel(master), a);
  else sgd_range<T, M, CAST, false>(c, param, p, g, g, numel(master), a);        // g: a dummy, never read as a buffer
}
void sgd_update_impl(Ctx *c, Tensor param, Tensor master, Tensor momentum, Tensor grad, SgdArgs a) {
  if (c->state->skip) return;
  if (master.dtype == LOW16) sgd_choose<bf16, low16, true>(c, (bf16 *)param.data, master, momentum, grad, a);
  else if (!param.data) sgd_choose<float, float, false>(c, (float *)master.data, master, momentum, grad, a);
  else DISPATCH(param.dtype, T, sgd_choose<T, float, true>(c, (T *)param.data, master, momentum, grad, a));
}
#endif

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
// Any value, one at a time, in integers: the definition that the fast form must match.
static void norm_add_one(int64_t *limbs, float g) {
  const uint32_t bits = f32_bits(g) & 0x7fffffffu;
  if (bits >= 0x7f800000u) { limbs[NORM_NONFINITE]++; return; }
  const uint32_t exponent = bits >> 23;
  const uint64_t m = exponent ? (bits & 0x7fffffu) | 0x800000u : bits;
  const int shift = 2 * ((int)(exponent ? exponent : 1) - 150) - NORM_FLOOR_EXPONENT;  // g^2 = m^2 2^(shift - 110)
  uint64_t square = m * m;
  if (shift >= 0) { norm_add_limbs(limbs, (int64_t)square, shift); return; }
  if (shift < -50) return;                       // below half a unit
  const uint64_t half = (uint64_t)1 << (-shift - 1);
  norm_add_limbs(limbs, (int64_t)((square + half) >> -shift), 0);
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
static float norm_largest(const float *g, int64_t n) {                        // NaN counts as larger than Inf
  const vi magnitude = vi_set1(0x7fffffff);
  vi most = vi_set1(0);
  int64_t i = 0;
  for (; i + VF <= n; i += VF) most = vi_max(most, vi_and(vf_bits(vf_load(g + i)), magnitude));
  if (i < n) most = vi_max(most, vi_and(vf_bits(vf_load_n(g + i, n - i)), magnitude));
  int32_t lane[VF], m = 0;
  vi_store(lane, most);
  for (int j = 0; j < VF; j++) if (lane[j] > m) m = lane[j];
  return bits_f32((uint32_t)m);
}
// Gradients of ordinary size need two levels; converged or unused parts of the model need one or none.
static void norm_add_block(int64_t *limbs, const float *g, int64_t n) {
  const float largest = norm_largest(g, n);
  if (largest == 0.0f) return;
  if (largest < 0x1p-30f) norm_block<1>(limbs, g, n);
  else if (largest < 0x1p-4f) norm_block<2>(limbs, g, n);
  else if (largest < 0x1p21f) norm_block<3>(limbs, g, n);
  else for (int64_t i = 0; i < n; i++) norm_add_one(limbs, g[i]);
}
// Adds the squares of x, or with CHANGE of x - less.
template <bool CHANGE> static void norm_range(Ctx *c, int64_t *limbs, const float *x, const float *less, int64_t n) {
  parallel(n > 8 * NORM_BLOCK ? c->threads : 1, [=](int thread, int threads) {
    alignas(64) float change[NORM_BLOCK];
    int64_t mine[NORM_LIMBS] = {};
    const ThreadShare share = thread_share(n, NORM_BLOCK, thread, threads);
    for (int64_t at = share.begin; at < share.end; at += NORM_BLOCK) {
      const int64_t count = n - at < NORM_BLOCK ? n - at : NORM_BLOCK;
      for (int64_t i = 0; CHANGE && i < count; i += VF)
        vf_store(change + i, vf_sub(vf_load_n(x + at + i, count - i), vf_load_n(less + at + i, count - i)));
      norm_add_block(mine, CHANGE ? change : x + at, count);
    }
    norm_carry(mine);
    for (int j = 0; j < NORM_LIMBS; j++) __atomic_fetch_add(&limbs[j], mine[j], __ATOMIC_RELAXED);
  });
}
#if FAMILY(optimizer)
void norm_accumulate_impl(Ctx *c, int64_t *limbs, Tensor grad) {
  norm_range<false>(c, limbs, (const float *)grad.data, NULL, numel(grad));
}
void norm_change_impl(Ctx *c, int64_t *limbs, Tensor now, Tensor before) {
  norm_range<true>(c, limbs, (const float *)now.data, (const float *)before.data, numel(now));
}
#endif
#endif
