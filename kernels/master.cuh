// master.cuh: fp32 masters, and the parameters rounded from them.
//
//   param_from_master   param = master rounded to param's dtype: to bf16 with ties away from zero, to any other as
//                       convert does. low, if present, receives the lower half that the parameter lacks
//   master_from_param   master = the fp32 number whose halves are param and low
//
// A bf16 parameter is the rounded upper half of its master. With the lower half beside it no master needs to be stored:
//   param = floor((bits + 2^15) / 2^16)        the master's bits rounded to their upper half, ties away from zero
//   low   = bits mod 2^16                      read as a signed number, -2^15 .. 2^15 - 1
//   bits  = 2^16 param + low   (mod 2^32)      always: bits + 2^15 is 2^16 param plus a remainder, which is low + 2^15
// So every finite master is recovered, including subnormals, zeros of either sign and masters that round to an infinite
// parameter; and infinities, whose low is 0. With ties to even this fails: low = 2^15 would stand for the tie above an
// even parameter and for the tie below it. Hence parameters are rounded this way in every mode, whether masters are
// stored or not; activations and gradients are rounded to even, as everywhere.
// A NaN whose upper half is all ones would carry into the sign and become 0, and one with an empty mantissa in the
// upper half would become infinite. So a NaN first loses its lower half and becomes quiet, as in round_to: it stays a
// NaN in parameter and master, with the upper half of its bits. (A NaN's lower half carries no information, and no run
// continues with a NaN.)
// Zero is zero in both halves: zeroed memory is zeros.
//
// Only bf16 has fp32's exponent. fp16 is infinite or 0 for most masters; E4M3 represents 8 bits of them with a scale
// that changes from step to step. With these dtypes the whole master is stored.
#pragma once
#include "ops.h"
#if FAMILY(optimizer)
#include "ops_optimizer.h"
#endif
#include "flat.cuh"

// ---- one number, the same on every device
HD uint32_t master_bits(float x) {               // without the bits that no NaN keeps
  const uint32_t u = f32_bits(x);
  return (u & 0x7fffffffu) > 0x7f800000u ? (u & 0xffff0000u) | 0x400000u : u;
}
HD void round_param(float *to, float master) { *to = master; }
HD void round_param(fp16 *to, float master) { round_to(to, master); }
HD void round_param(bf16 *to, float master) { to->bits = (uint16_t)((master_bits(master) + 0x8000u) >> 16); }
HD low16 master_low(float master) { return low16{(uint16_t)master_bits(master)}; }
HD float master_join(bf16 param, low16 low) {
  return bits_f32(((uint32_t)param.bits << 16) + (uint32_t)(int32_t)(int16_t)low.bits);
}

#if PART_LAUNCHERS
// Checks the storage of masters beside parameters: whole in fp32, or the lower halves of bf16 parameters.
static inline void master_check(const char *op, Tensor param, Tensor master) {
  const bool low = master.dtype == LOW16;
  CHECK(low || master.dtype == F32, "%s: master is %s", op, dtype_name(master.dtype));
  CHECK(!low || (param.data && param.dtype == BF16), "%s: low halves of masters beside %s parameters, not bf16 ones",
        op, param.data ? dtype_name(param.dtype) : "no");
  CHECK(!param.data || dtype_floats(param.dtype), "%s: param is %s", op, dtype_name(param.dtype));
  CHECK(!param.data || numel(param) == numel(master), "%s: %lld parameters of %lld masters", op,
        (long long)numel(param), (long long)numel(master));
}
// Overwrites param (n), any floating dtype, and low (n) low16 if low.data is not NULL: then param must be bf16. master
// (n) fp32 may be param itself if that is fp32.
void param_from_master(Ctx *c, Tensor param, Tensor low, Tensor master) {
  CHECK_DTYPE(master, F32);
  CHECK(param.data, "%s: no param", __func__);
  master_check("param_from_master", param, master);
  if (low.data) CHECK_DTYPE(low, LOW16);
  if (low.data) master_check("param_from_master", param, low);
  CALL_OP(c, optimizer, param_from_master, param, low, master);
}
// Overwrites master (n) fp32 with the numbers whose halves are param (n) bf16 and low (n) low16.
void master_from_param(Ctx *c, Tensor master, Tensor param, Tensor low) {
  CHECK_DTYPE(master, F32);
  CHECK_DTYPE(low, LOW16);
  CHECK(numel(master) == numel(low), "master_from_param: %lld masters of %lld low halves", (long long)numel(master),
        (long long)numel(low));
  master_check("master_from_param", param, low);
  CALL_OP(c, optimizer, master_from_param, master, param, low);
}
#endif

#if PART_CPU
INLINE vi master_lane_bits(vf x) {
  const vi u = vf_bits(x);
  if (!__builtin_expect(vf_any_nan(x), 0)) return u;
  const vi quiet = vi_or(vi_and(u, vi_set1((int32_t)0xffff0000u)), vi_set1(0x400000));
  return vi_select(vi_gt(vi_and(u, vi_set1(0x7fffffff)), vi_set1(0x7f800000)), quiet, u);
}
INLINE v16 param_lane_bits(vi master) { return vi_upper_halves(vi_add(master, vi_set1(0x8000))); }

// The first n <= 16 lanes of masters, stored whole or as low halves beside bf16 parameters.
template <class T> INLINE vf masters_load(const T *, const float *master, int64_t n) { return vf_load_n(master, n); }
INLINE vf masters_load(const bf16 *param, const low16 *low, int64_t n) {
  v16 lower = v16_zero();
  if (n >= VF) lower = v16_load(low);
  else if (n > 0) memcpy(&lower, low, (size_t)n * 2);
  return vi_as_float(vi_add(vf_bits(vf_load_n(param, n)), vi_of_signed(lower)));
}
INLINE void param_store(float *to, vf master, int64_t n) { vf_store_n(to, master, n); }
INLINE void param_store(fp16 *to, vf master, int64_t n) { vf_store_n(to, master, n); }
INLINE void param_store(bf16 *to, vf master, int64_t n) {
  const v16 bits = param_lane_bits(master_lane_bits(master));
  if (n >= VF) v16_store(to, bits);
  else if (n > 0) memcpy(to, &bits, (size_t)n * 2);
}
// Stores the masters, and with CAST the parameters rounded from them.
template <bool CAST, class T> INLINE void masters_store(T *param, float *to, vf master, int64_t n) {
  vf_store_n(to, master, n);
  if (CAST) param_store(param, master, n);
}
template <bool CAST> INLINE void masters_store(bf16 *param, low16 *low, vf master, int64_t n) {
  const vi u = master_lane_bits(master);
  const v16 upper = param_lane_bits(u), lower = vi_lower_halves(u);
  if (n >= VF) v16_store(param, upper), v16_store(low, lower);
  else if (n > 0) memcpy(param, &upper, (size_t)n * 2), memcpy(low, &lower, (size_t)n * 2);
}

#endif

#if PART_CUDA
// W masters, stored whole or as low halves beside bf16 parameters: two of each per register.
template <int W, class T> INLINE Lanes<W> masters_load(const T *, const float *master, LaneCount<W>) {
  return lanes_load<W>(master);
}
template <int W> INLINE Lanes<W> masters_load(const bf16 *param, const low16 *low, LaneCount<W>) {
  Lanes<W> r;
  if constexpr (W == 1) {
    r.x[0] = master_join(*param, *low);
  } else {
    const LaneWords<W / 2> upper = *(const LaneWords<W / 2> *)param, lower = *(const LaneWords<W / 2> *)low;
    UNROLL for (int i = 0; i < W / 2; i++) {
      const uint32_t u = upper.x[i], l = lower.x[i];
      r.x[2 * i] = bits_f32((u << 16) + (uint32_t)(int32_t)(int16_t)(l & 0xffffu));
      r.x[2 * i + 1] = bits_f32((u & 0xffff0000u) + (uint32_t)((int32_t)l >> 16));
    }
  }
  return r;
}
template <int W> INLINE void param_store(float *to, Lanes<W> master, LaneCount<W>) { lanes_store<W>(to, master); }
template <int W> INLINE void param_store(fp16 *to, Lanes<W> master, LaneCount<W>) { lanes_store<W>(to, master); }
template <int W> INLINE void param_store(bf16 *to, Lanes<W> master, LaneCount<W>) {
  if constexpr (W == 1) {
    round_param(to, master.x[0]);
  } else {
    LaneWords<W / 2> words;
    UNROLL for (int i = 0; i < W / 2; i++)
      words.x[i] = (master_bits(master.x[2 * i]) + 0x8000u) >> 16 |
                   ((master_bits(master.x[2 * i + 1]) + 0x8000u) & 0xffff0000u);
    *(LaneWords<W / 2> *)to = words;
  }
}
// Stores the masters, and with CAST the parameters rounded from them.
template <bool CAST, int W, class T> INLINE void masters_store(T *param, float *to, Lanes<W> master, LaneCount<W> n) {
  lanes_store<W>(to, master);
  if (CAST) param_store(param, master, n);
}
template <bool CAST, int W> INLINE void masters_store(bf16 *param, low16 *low, Lanes<W> master, LaneCount<W> n) {
  param_store(param, master, n);
  if constexpr (W == 1) {
    *low = master_low(master.x[0]);
  } else {
    LaneWords<W / 2> words;
    UNROLL for (int i = 0; i < W / 2; i++)
      words.x[i] = (master_bits(master.x[2 * i]) & 0xffffu) | master_bits(master.x[2 * i + 1]) << 16;
    *(LaneWords<W / 2> *)low = words;
  }
}
#endif

#if PART_CPU || PART_CUDA
// The types say the direction: the const side is read. Without low halves `low` is the masters again.
template <class T, class N> INLINE void master_lanes(T *param, const float *, const float *master, N n) {
  param_store(param, vf_load_n(master, n), n);
}
template <class N> INLINE void master_lanes(bf16 *param, low16 *low, const float *master, N n) {
  masters_store<true>(param, low, vf_load_n(master, n), n);
}
template <class N> INLINE void master_lanes(const bf16 *param, const low16 *low, float *master, N n) {
  vf_store_n(master, masters_load(param, low, n), n);
}
template <class P, class L, class M> struct MasterOp {
  P *param;
  L *low;
  M *master;
  template <class N> LANES_OF void at(int64_t i, N n) const { master_lanes(param + i, low + i, master + i, n); }
};
template <class P, class L, class M> static void master_range(Ctx *c, P *param, L *low, M *master, int64_t n) {
  flat(c, MasterOp<P, L, M>{param, low, master}, n, param, low, master);
}
#endif

#if (PART_CPU || PART_CUDA) && FAMILY(optimizer)
void param_from_master_impl(Ctx *c, Tensor param, Tensor low, Tensor master) {
  const float *from = (const float *)master.data;
  const int64_t n = numel(master);
  if (low.data) master_range(c, (bf16 *)param.data, (low16 *)low.data, from, n);
  else DISPATCH(param.dtype, T, master_range(c, (T *)param.data, from, from, n));
}
void master_from_param_impl(Ctx *c, Tensor master, Tensor param, Tensor low) {
  master_range(c, (const bf16 *)param.data, (const low16 *)low.data, (float *)master.data, numel(master));
}
#endif
