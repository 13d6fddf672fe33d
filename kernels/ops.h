// ops.h: the one list of ops and the one list of device calls. Declarations, the table struct and the tables are
// generated from them; an op that lacks an implementation on some device does not compile.
//
// Each op has a header kernels/<op>.cuh with its formula, shapes and order of sums, and three sections:
//   PART_LAUNCH   <op>(c, ...): checks shapes and dtypes, calls c->ops-><op>      (trainer, tests)
//   PART_CPU      <op>_impl                                                       (kernels/cpu.cc, per instruction set)
//   PART_CUDA     <op>_impl: kernels and launch                                   (kernels/cuda.cu)
//
// Symbols: R rows (= B sequences x T tokens), C width, V vocabulary (padded), H heads, hs = C/H head size.
#pragma once
#include "device.h"

// A bias, a fused GELU: named extras of a matrix product. data == NULL means absent.
struct MatmulEpilogue {
  Tensor bias;             // (N): added to every row
  Tensor gelu;             // (M,N): receives gelu(out), out keeps the pre-activation for backward
};
enum Accumulate { OVERWRITE, ADD };              // out = x, or out += x

// Dropout by counter: element j of global sample s in tensor t at step i is kept iff Philox(seed; t, i, s, j) says so.
// p == 0 turns it off. sample0: global index in this step of the batch's first sequence; it depends on no rank.
struct Dropout { float p; uint64_t seed; uint32_t step, tensor; int64_t sample0; };

struct AdamwArgs {
  float lr, beta1, beta2, eps, weight_decay;
  float bias_correction1, bias_correction2;      // 1 - beta^t
  float grad_scale;                              // multiplies the gradient first: unscale and clip in one factor
};
struct SgdArgs { float lr, momentum, weight_decay, grad_scale; };

// Shapes that decide the largest workspace any op of a training step asks for.
struct WorkspaceQuery { Dtype dtype, grad_dtype; int64_t batch, seq_len, n_embd, n_head, vocab_padded, head_rows; };

#define OPS(X) \
  X(embedding_forward,           (Ctx *c, Tensor out, Tensor tokens, Tensor wte, Tensor wpe, Dropout drop)) \
  X(embedding_backward,          (Ctx *c, Tensor dwte, Tensor dwpe, Tensor dout, Tensor tokens, Dropout drop)) \
  X(layernorm_forward,           (Ctx *c, Tensor out, Tensor mean, Tensor rstd, Tensor in, Tensor weight, \
                                  Tensor bias)) \
  X(residual_layernorm_forward,  (Ctx *c, Tensor residual, Tensor out, Tensor mean, Tensor rstd, Tensor in, \
                                  Tensor branch, Tensor weight, Tensor bias, Dropout drop)) \
  X(layernorm_backward,          (Ctx *c, Tensor dresidual, Tensor dbranch, Tensor dweight, Tensor dbias, Tensor dout, \
                                  Tensor residual, Tensor weight, Tensor mean, Tensor rstd, Dropout drop)) \
  X(matmul_forward,              (Ctx *c, Tensor out, Tensor in, Tensor weight, MatmulEpilogue e)) \
  X(matmul_backward_input,       (Ctx *c, Tensor din, Tensor dout, Tensor weight, Tensor pre_gelu)) \
  X(matmul_backward_weight,      (Ctx *c, Tensor dweight, Tensor dbias, Tensor dout, Tensor in, Accumulate mode)) \
  X(attention_forward,           (Ctx *c, Tensor out, Tensor lse, Tensor qkv, int n_head, Dropout drop)) \
  X(attention_backward,          (Ctx *c, Tensor dqkv, Tensor dout, Tensor qkv, Tensor out, Tensor lse, int n_head, \
                                  Dropout drop)) \
  X(cross_entropy_forward,       (Ctx *c, Tensor losses, Tensor correct, Tensor logits, Tensor targets, \
                                  int64_t vocab)) \
  X(cross_entropy_forward_backward, (Ctx *c, Tensor losses, Tensor dlogits, Tensor logits, Tensor targets, \
                                  int64_t vocab, float scale)) \
  X(adamw_update,                (Ctx *c, Tensor param, Tensor master, Tensor m, Tensor v, Tensor grad, AdamwArgs a)) \
  X(sgd_update,                  (Ctx *c, Tensor param, Tensor master, Tensor momentum, Tensor grad, SgdArgs a)) \
  X(norm_accumulate,             (Ctx *c, int64_t *limbs, Tensor grad)) \
  X(convert,                     (Ctx *c, Tensor out, Tensor in)) \
  X(accumulate,                  (Ctx *c, Tensor sum, Tensor in, Accumulate mode)) \
  X(normal_fill,                 (Ctx *c, Tensor out, uint64_t seed, uint32_t tensor, int64_t offset, float std))

// What a device offers besides ops.
#define DEVICE_CALLS(X) \
  X(device_open,     (Ctx *c)) \
  X(workspace_bytes, (Ctx *c, WorkspaceQuery q, size_t *bytes)) \
  X(copy,            (Ctx *c, void *to, const void *from, size_t bytes)) \
  X(zero,            (Ctx *c, void *to, size_t bytes)) \
  X(sync,            (Ctx *c))

struct Ops {
  const char *name;
#define X(op, args) void (*op) args;
  OPS(X) DEVICE_CALLS(X)
#undef X
};

// Strong where defined, weak where asked for: whether a table was linked is an address test, no #ifdef anywhere.
extern const Ops ops_avx2, ops_avx512, ops_avx512_bf16, ops_amx;
#if PART_LAUNCH
#define MAYBE __attribute__((weak))
#else
#define MAYBE
#endif
extern MAYBE const Ops ops_cuda, ops_amx_emulated;

#if PART_CPU || PART_CUDA                        // implementations are private to their object
#define X(op, args) static void op##_impl args;
OPS(X) DEVICE_CALLS(X)
#undef X
#define OP_IMPL(op, args) op##_impl,
#define OPS_TABLE(label) { label, OPS(OP_IMPL) DEVICE_CALLS(OP_IMPL) }
#else                                            // the launchers: check, then dispatch
#define X(op, args) static inline void op args;
OPS(X)
#undef X
#endif
