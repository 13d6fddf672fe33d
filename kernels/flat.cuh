// flat.cuh: ops that compute element by element, one source for both devices. Such an op is a struct of its pointers
// and numbers with
//
//   LANES_OF void at(int64_t i, N n) const                       computes the n elements from i on; N is a template's
//   LANES_OF void at(int64_t i, N n, const Factors *f) const     the same, and numbers that are computed once,
//   LANES_OF Factors factors() const                             here, when the op runs: from memory of the device
//   LANES_OF void at(int64_t r, int64_t i, N n) const            of row r, from column i on
//
// where n is at most 16 elements, one vector of a CPU, or the 8, 4 or 1 that a CUDA thread takes at a time. Inside:
//
//   vf_load_n(p, n), vf_store_n(p, x, n)      from and to memory: n numbers in fp32, rounded when stored
//   each(n, f, x, y, ...)                     f(x, y, ...) of these numbers; f is a lambda LANES_EACH that takes vf or
//                                             vf &, and computes with the functions of vec.h and formulas.cuh
//
// It runs by one of these, over what `p` points to: the op's memory, element i at p + i. CUDA threads take several
// elements at a time where all of it is aligned to 16 bytes; NULL is absent.
//
//   flat(c, op, n, p, ...)         elements 0 .. n - 1
//   flat_by(c, op, n, p, ...)      the same, with factors
//   flat_rows(c, op, R, C, p, ...) R rows of C columns; p + r C + i only says alignment
#pragma once
#include "formulas.cuh"

#if PART_CPU
#define DEVICE_CHECK(cond, what) ((void)0)          // a CPU checks before it runs an op
static const int64_t FLAT_PIECE = 4096;          // elements that a thread takes at a time; a multiple of VF

// f(i, n) for runs of n <= 16 elements.
template <class F> static void flat_walk(Ctx *c, int64_t n, F f) {
  parallel_for(n > 4 * FLAT_PIECE ? c->threads : 1, 0, n, FLAT_PIECE, [=](int64_t at) {
    const F mine = f;                            // a private copy stays in registers
    const int64_t here = n - at < FLAT_PIECE ? n - at : FLAT_PIECE;
    vf_walk(here, [&](int64_t i, int64_t count) LANES_EACH { mine(at + i, count); });
  });
}
template <class Op, class... P> static void flat(Ctx *c, Op op, int64_t n, P *...) {
  flat_walk(c, n, [=](int64_t i, int64_t count) LANES_EACH { op.at(i, count); });
}
template <int = 0, class Op, class... P> static void flat_by(Ctx *c, Op op, int64_t n, P *...) {
  const auto f = op.factors();
  flat_walk(c, n, [=](int64_t i, int64_t count) LANES_EACH { op.at(i, count, &f); });
}
template <class Op, class... P> static void flat_rows(Ctx *c, Op op, int64_t R, int64_t C, P *...) {
  parallel_for(c->threads, 0, R, 1, [=](int64_t r) {
    const Op mine = op;
    vf_walk(C, [&](int64_t i, int64_t count) LANES_EACH { mine.at(r, i, count); });
  });
}
#endif

#if PART_CUDA
// Elements at a time: 16 bytes of the widest type.
template <class... P> static constexpr int FLAT_WIDTH = ((sizeof(P) > 2) || ...) ? (int)LANES_FLAT : (int)LANES;

template <int W, class Op> __global__ static void __launch_bounds__(FLAT_THREADS) flat_kernel(Op op, int64_t n) {
  FLAT_WALK(W, n, i, op.at(i, LaneCount<W>()), op.at(i, LaneCount<1>()));
}
template <class Op, class... P> static void flat(Ctx *c, Op op, int64_t n, P *...p) {
  constexpr int W = FLAT_WIDTH<P...>;
  if (lanes_aligned(p...)) LAUNCH((flat_kernel<W, Op>), flat_blocks(n, W), FLAT_THREADS, 0, STREAM(c), op, n);
  else LAUNCH((flat_kernel<1, Op>), flat_blocks(n, 1), FLAT_THREADS, 0, STREAM(c), op, n);
}
// One thread of a block computes the factors, because they may need fp64. BLOCKS: how many blocks must fit into an SM's
// registers; 0: ptxas decides.
template <int W, int BLOCKS, class Op>
__global__ static void __launch_bounds__(FLAT_THREADS, BLOCKS) flat_by_kernel(Op op, int64_t n) {
  SHARED(typename Op::Factors, factors, 1);
  if (threadIdx.x == 0) *factors = op.factors();
  __syncthreads();
  const typename Op::Factors f = *factors;
  FLAT_WALK(W, n, i, op.at(i, LaneCount<W>(), &f), op.at(i, LaneCount<1>(), &f));
}
template <int BLOCKS = 0, class Op, class... P> static void flat_by(Ctx *c, Op op, int64_t n, P *...p) {
  constexpr int W = FLAT_WIDTH<P...>;
  if (lanes_aligned(p...))
    LAUNCH((flat_by_kernel<W, BLOCKS, Op>), flat_blocks(n, W), FLAT_THREADS, 0, STREAM(c), op, n);
  else LAUNCH((flat_by_kernel<1, BLOCKS, Op>), flat_blocks(n, 1), FLAT_THREADS, 0, STREAM(c), op, n);
}
template <int W, class Op>
__global__ static void __launch_bounds__(FLAT_THREADS) flat_rows_kernel(Op op, int64_t n, int64_t C) {
  FLAT_WALK(W, n, i, op.at(i / C, i % C, LaneCount<W>()), op.at(i / C, i % C, LaneCount<1>()));
}
template <class Op, class... P> static void flat_rows(Ctx *c, Op op, int64_t R, int64_t C, P *...p) {
  constexpr int W = FLAT_WIDTH<P...>;
  const int64_t n = R * C;
  if (C % W == 0 && lanes_aligned(p...))
    LAUNCH((flat_rows_kernel<W, Op>), flat_blocks(n, W), FLAT_THREADS, 0, STREAM(c), op, n, C);
  else LAUNCH((flat_rows_kernel<1, Op>), flat_blocks(n, 1), FLAT_THREADS, 0, STREAM(c), op, n, C);
}
#endif
