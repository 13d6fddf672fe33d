// ops.h: what ops have in common, and the table of a device. Each op is a line in the header of its family,
// ops_<family>.h. Declarations and tables are generated from these lines; an op without an implementation on some
// device does not link. Whoever calls an op includes the header of its family, so that an edit there compiles that
// family's kernels, their launchers, and those who call it.
//
// Each op has a header kernels/<op>.cuh with its formula, shapes and summation order, and three sections:
//   PART_LAUNCHERS   <op>(c, ...): checks shapes and dtypes, calls c->ops-><family>-><op>          (kernels/kernels.cc)
//   PART_CPU         <op>_impl                                                (kernels/cpu/cpu.cc, per instruction set)
//   PART_CUDA        <op>_impl: kernels and launch                            (kernels/cuda/cuda.cu)
// all.h has them by family: an object has the implementations and the table of one. They are all that it exports, on a
// CPU under names that end in the instruction set's. Who calls ops defines PART_LAUNCH, which has the declarations.
//
// Symbols: R rows (= B sequences x T tokens), C width, V vocabulary (padded), H heads of queries and KV of keys and
// values, hs head size, F width of the MLP.
// Floating tensors are fp32, bf16 or fp16; token ids int32. fp8 appears only in the ops of fp8.cuh, with a scale; low16
// only in those of optimizer.cuh and master.cuh, with a bf16 parameter; blocks only in blocks.cuh and
// matmul_blocks.cuh.
#pragma once
#include "blocks.h"
#include "ops_device.h"

// The gradient of a frozen parameter is absent: its Tensor has data == NULL, and nothing is computed or written for it.
// The bits of the other gradients do not depend on which gradients are absent.

enum Accumulate { OVERWRITE, ADD };              // out = x, or out += x: x is finished first, which adds one rounding
// A matrix in quantization blocks (blocks.h): `parts` others, one below the other, (rows, bytes of a row), each of its
// own type. parts 0: absent.
struct QuantMatrix { int parts; Tensor part[3]; int type[3]; };
// A fused matrix of `parts` others (q, k, v or gate, up), one below the other: the rows of each, and the number of its
// adapter; -1: none.
struct LoraParts { int parts; int64_t rows[3]; int adapter[3]; int64_t rank; float scale; };
// Tensors that are added in one call, from first to last. By value: an op may run after its caller has returned.
enum { SUMMANDS_MAX = 8 };
struct Summands { Dtype dtype; int count; const void *data[SUMMANDS_MAX]; };

// Dropout by counter: element j of global sample s in tensor t at step i is kept iff Philox(seed; t, i, s, j) says so.
// p == 0 turns it off. sample0: global index, within this step, of the batch's first sequence; the same for every
// sharding. The caller does not set step: the op reads it from c->state when it runs.
struct Dropout { float p; uint64_t seed; uint32_t step, tensor; int64_t sample0; };

// Values that change from step to step are in device memory, where ops read them when they run. A step that was
// captured once (a CUDA graph) can then be replayed, and the host need not wait for a norm to know how to update.
struct StepInput {                               // uploaded by the host before each step
  uint32_t step;                                 // keys dropout
  float lr;
  int64_t stop;                                  // this rank's stop request: 0 none; the greatest of all ranks counts
  int64_t untrained;                             // targets of this rank's microbatches that a mask leaves out
};
struct StepState {
  StepInput in;
  float loss_scale;                              // multiplies the loss's gradient; powers of two
  int32_t good_steps;                            // since loss_scale last changed
  int64_t updates;                               // steps not skipped
  double beta1_power, beta2_power;               // beta^updates, of the betas in fp32
  int32_t skip, stop;                            // from here on: set by step_decide, the same on every rank; enum Skip
  float grad_scale;                              // multiplies the gradient first: unscale and clip in one factor
  float bias_correction1, bias_correction2;      // 1 - beta^t of this update
  double grad_norm, loss;
  int64_t untrained;                             // of all ranks
  double rewards[3];                             // of pairs: of what was chosen, of what was rejected, accuracy
};
enum Skip { SKIP_NOT, SKIP_NOT_FINITE, SKIP_NOTHING_TRAINED };
enum { NORM_LIMBS = 14 };                        // of the exact norm, optimizer.cuh

// The loss of a pair of answers, preference.cuh.
enum PreferenceLoss : int { PREFERENCE_NONE, PREFERENCE_DPO, PREFERENCE_IPO, PREFERENCE_HINGE, PREFERENCE_SIMPO,
                      PREFERENCE_ORPO };
struct PreferenceArgs { PreferenceLoss loss; double beta, smoothing, gamma; };
enum { PREFERENCE_SUMS = 4 };                    // loss, reward of the chosen answer, of the rejected one, accuracy

// lr, corrections, scale and skip are in c->state. lr_scale: a factor of lr for these parameters. Moments in bf16 are
// rounded by random numbers of seed, step, parameter and element, of which `element` is the first that is given.
struct AdamwArgs {
  float beta1, beta2, eps, weight_decay, lr_scale = 1;
  uint64_t seed = 0;
  uint32_t param = 0;
  int64_t element = 0;
};
struct SgdArgs { float momentum, weight_decay, lr_scale = 1; };
struct MuonArgs { float momentum, weight_decay; bool nesterov, match_rms; float lr_scale = 1; };
enum { MUON_STEPS = 5 };                         // of newton_schulz, in training
enum Activation : int;                           // activation.h

enum { MATMUL_FEW_ROWS = 4 };                    // by which matmul_blocks reads its weight once
// Rotary positions and the norm of each head's q and k, rope.cuh.
enum { ROPE_HEAD_MAX = 1024 };                  // head dim that they take
// Of each head before or after the rotation; or before it, of all heads of q together, and of all of k.
enum QkNorm : int { QK_NORM_OFF, QK_NORM_BEFORE, QK_NORM_AFTER, QK_NORM_ALL };
// On every device: weights of one sample's attention, n_head T T, that dropout can number.
static const int64_t DROPOUT_MOST_WEIGHTS = (int64_t)1 << 34;

// starts (B,T) int32, of ops that know positions: where in its sequence the document of each token starts. Absent: a
// sequence is one document, which starts at 0. Token t's learned position is t - starts[t], and it attends to no key
// before starts[t]; a training's rope rotates by t all the same, because only distances count there. Starts do not
// decrease along a sequence, and the first is 0. A sliding window is starts of its own (window.cuh). Where tokens are
// generated one by one, T is 1 and a start is minus the token's position, for rope as well (attention_cached.cuh).

#if PART_LAUNCH
static inline void starts_check(Tensor starts, int64_t B, int64_t T) {
  if (!starts.data) return;
  CHECK_SHAPE(starts, B, T);
  CHECK_DTYPE(starts, I32);
}
#endif

// ---- families
// X(family, type of its table, instruction set of its code). On a CPU with tiles (AMX) families that do not use tiles
// are those of the set that has all else that it has.
#define OP_FAMILIES(X) \
  X(norms, NormsOps, ISA_OF_VECTORS) X(pointwise, PointwiseOps, ISA_OF_VECTORS) X(loss, LossOps, ISA_OF_VECTORS) \
  X(matmul, MatmulOps, ISA) X(muon, MuonOps, ISA) X(attention, AttentionOps, ISA) \
  X(optimizer, OptimizerOps, ISA_OF_VECTORS) X(blocks, BlocksOps, ISA_OF_VECTORS)

#define X(family, Table, isa) struct Table;
OP_FAMILIES(X)
#undef X
struct Ops {
  const char *name;
  const Collectives *nccl;                       // NULL on CPU
#define X(call, args) void (*call) args;
  DEVICE_CALLS(X)
#undef X
#define X(family, Table, isa) const Table *family;
  OP_FAMILIES(X)
#undef X
};
#define X(family, Table, isa) FAMILY_NUMBER_##family,
enum FamilyNumber { OP_FAMILIES(X) FAMILY_COUNT };
#undef X
enum { OPS_OF_A_FAMILY = 30 };                   // at most; so no number depends on other families

// Strong where defined, weak where used: an address test tells whether a table was linked, without an #ifdef.
#if PART_LAUNCH
#define MAYBE __attribute__((weak))
#else
#define MAYBE
#endif
extern MAYBE const Ops ops_avx2, ops_avx512, ops_avx512_bf16, ops_amx, ops_neon, ops_neon_bf16;
extern MAYBE const Ops ops_cuda, ops_amx_emulated;
extern MAYBE const Ops ops_cuda_emulated, ops_streams;           // tests only: dev/cuda_emu

// FAMILY(name): implementations of that family belong into this object. -DONE_FAMILY -DFAMILY_name=1 names one; all do
// where a header is compiled alone. Headers that others include for their helpers keep their own implementations to
// their family.
#ifdef ONE_FAMILY
#define FAMILY(name) FAMILY_##name
#else
#define FAMILY(name) 1
#endif

// ---- the lines of a family
// X(op, arguments, what it touches). Of each memory that a call names:
//   READS    is only read            WRITES    is overwritten, whole, and what was there is not read
//   UPDATES  is read and written     SUMS(t, mode)  is written, or read and written, as `mode` says
// _BYTES forms are for memory without a shape, SUMMANDS for the tensors of a Summands, one of which may be the sum
// itself. An argument that is absent is not touched. What one call writes and reads is apart unless
// IN_PLACE(written, read) allows otherwise: the same memory, or, for cross entropy, a gradient that starts before its
// logits. What a call reads and writes of its context is declared, too, for all devices alike:
//   READS_VALUE(x, if_)  a member of c->state, where if_ holds
//   USES_WORKSPACE       writes c->workspace and reads what it wrote; what the call leaves there nobody reads
// These lines are OPS_<family>, in the header of a family, and WORKSPACES_<family> says of which ops a CPU's
// <op>_workspace_bytes has a workspace by shapes (CUDA's are in workspace.h). Then OPS_FAMILY, with the words of
// OP_FAMILIES, declares the table, OP_<op> and, by part, launchers or implementations.
#define OPS_FAMILY(family, Table, isa) \
  struct Table { OPS_##family(OP_MEMBER) }; \
  enum { OP_OF_##family = FAMILY_NUMBER_##family * OPS_OF_A_FAMILY - 1, OPS_##family(OP_NUMBER) OP_END_##family }; \
  static_assert(OP_END_##family - OP_OF_##family <= OPS_OF_A_FAMILY + 1, "OPS_OF_A_FAMILY is too small"); \
  OPS_##family(OP_DECLARE_##isa)
#define OP_MEMBER(op, args, touches) void (*op) args;
#define OP_NUMBER(op, args, touches) OP_##op,

#if PART_CPU || PART_CUDA
// IMPL: a declaration of what objects of families share. Linkers see gelu_forward_impl.avx2: no object gets code of
// another instruction set, or of the emulation.
#if PART_CPU
#define IMPL_STRING_(isa) #isa
#define IMPL_STRING(isa) IMPL_STRING_(isa)
#define IMPL(name, isa, declaration) declaration __asm__(#name "." IMPL_STRING(isa));
#ifndef ISA_OF_VECTORS                           // of a set with tiles: the one that has all else that it has
#define ISA_OF_VECTORS ISA
#endif
#elif DEVICE_COMPILER == 2
#define IMPL(name, isa, declaration) declaration __asm__(#name ".cuda_emulated");
#else
#define IMPL(name, isa, declaration) declaration;
#endif
#define OP_DECLARE_ISA(op, args, touches) IMPL(op##_impl, ISA, void op##_impl args)
#define OP_DECLARE_ISA_OF_VECTORS(op, args, touches) IMPL(op##_impl, ISA_OF_VECTORS, void op##_impl args)
#define X(call, args) IMPL(call##_impl, ISA, void call##_impl args)
DEVICE_CALLS(X)
#undef X
#define X(family, Table, isa) IMPL(family##_ops, isa, extern const Table family##_ops)
OP_FAMILIES(X)
#undef X
// The table of a family, in the object that has the family (all.h), and of a device.
#define OP_IMPL(op, args, touches) op##_impl,
#define CALL_IMPL(call, args) call##_impl,
#define FAMILY_TABLE(family, Table, isa) &family##_ops,
#define OPS_TABLE(label, nccl) {label, nccl, DEVICE_CALLS(CALL_IMPL) OP_FAMILIES(FAMILY_TABLE)}
#if PART_CPU
// Bytes of workspace that a family needs for such shapes.
#define X(family, Table, isa) \
  IMPL(family##_workspace, isa, size_t family##_workspace(const Ctx *c, WorkspaceQuery q))
OP_FAMILIES(X)
#undef X
#define WORKSPACE_MAX(op) if (op##_workspace_bytes(c, q) > bytes) bytes = op##_workspace_bytes(c, q);
#define FAMILY_OPS(family, Table) \
  const Table family##_ops = {OPS_##family(OP_IMPL)}; \
  size_t family##_workspace([[maybe_unused]] const Ctx *c, [[maybe_unused]] WorkspaceQuery q) { \
    size_t bytes = 0; \
    WORKSPACES_##family(WORKSPACE_MAX) \
    return bytes; \
  }
#else
#define FAMILY_OPS(family, Table) const Table family##_ops = {OPS_##family(OP_IMPL)};
#endif
#else                                            // the launchers: check, then call (kernels.cc)
#define OP_DECLARE_ISA(op, args, touches) void op args;
#define OP_DECLARE_ISA_OF_VECTORS(op, args, touches) void op args;
#define FAMILY_OPS(family, Table)
// Every op is called so: a report says which one came last.
#define CALL_OP(c, family, op, ...) (flight_op(#op), (c)->ops->family->op(c, __VA_ARGS__))
#endif
