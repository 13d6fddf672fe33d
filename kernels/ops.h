// ops.h: the only list of ops and the only list of device calls. Declarations, the table struct and the tables are
// generated from them; an op without an implementation on some device does not link.
//
// Each op has a header kernels/<op>.cuh with its formula, shapes and summation order, and three sections:
//   PART_LAUNCHERS   <op>(c, ...): checks shapes and dtypes, calls c->ops-><op> by CALL_OP  (kernels/kernels.cc)
//   PART_CPU         <op>_impl                                                (kernels/cpu/cpu.cc, per instruction set)
//   PART_CUDA        <op>_impl: kernels and launch                            (kernels/cuda/cuda.cu)
// all.h has them by family: an object has the implementations of one, so that an edit compiles that family alone. They
// are all that it exports, on a CPU under names that end in the instruction set's. Who calls ops defines PART_LAUNCH,
// which has the declarations, and includes this file alone.
//
// Symbols: R rows (= B sequences x T tokens), C width, V vocabulary (padded), H heads of queries and KV of keys and
// values, hs head size, F width of the MLP.
// Floating tensors are fp32, bf16 or fp16; token ids int32. fp8 appears only in the ops of fp8.cuh, with a scale; low16
// only in those of optimizer.cuh and master.cuh, with a bf16 parameter; blocks only in blocks.cuh and
// matmul_blocks.cuh.
#pragma once
#include "device.h"
#include "blocks.h"
#include "base/base.h"

// The gradient of a frozen parameter is absent: its Tensor has data == NULL, and nothing is computed or written for it.
// The bits of the other gradients do not depend on which gradients are absent.

enum Accumulate { OVERWRITE, ADD };              // out = x, or out += x: x is finished first, which adds one rounding
// A bias, a fused GELU: named extras of a GEMM. data == NULL means absent. With ADD both are.
struct MatmulEpilogue {
  Tensor bias;             // (N): added to every row
  Tensor gelu;             // (M,N): receives GELU of out as stored; out keeps the pre-activation for backward
  Accumulate mode = OVERWRITE;
};
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
// What every rank sends to every other once per step. This rank's losses follow, one double per microbatch, or with
// pairs PREFERENCE_SUMS.
enum { NORM_LIMBS = 14 };                        // of the exact norm, optimizer.cuh
struct Exchange { int64_t limbs[NORM_LIMBS], stop, untrained; };
HD size_t exchange_bytes(int values) { return sizeof(Exchange) + sizeof(double) * (size_t)values; }

// Rules for step_decide. clip: bound of the global norm, 0: no clipping. dynamic_scale: adapt to overflows (fp16).
// targets: of all microbatches of all ranks, masked ones included; 0 where none can be.
struct StepRule {
  int world, microbatches;
  float beta1, beta2;
  double clip;
  bool dynamic_scale;
  int64_t targets = 0;
  int values = 1;                                // of a microbatch in an exchange record; its loss is the first
};

// The loss of a pair of answers, preference.cuh.
enum PreferenceLoss : int { PREFERENCE_NONE, PREFERENCE_DPO, PREFERENCE_IPO, PREFERENCE_HINGE, PREFERENCE_SIMPO,
                      PREFERENCE_ORPO };
struct PreferenceArgs { PreferenceLoss loss; double beta, smoothing, gamma; };
enum { PREFERENCE_SUMS = 4 };                    // loss, reward of the chosen answer, of the rejected one, accuracy

// lr, corrections, scale and skip are in c->state. lr_scale: a factor of lr for these parameters.
struct AdamwArgs { float beta1, beta2, eps, weight_decay, lr_scale = 1; };
struct SgdArgs { float momentum, weight_decay, lr_scale = 1; };
struct MuonArgs { float momentum, weight_decay; bool nesterov, match_rms; float lr_scale = 1; };
enum Activation : int;                           // activation.h
enum { MUON_STEPS = 5 };                         // of newton_schulz, in training

// Shapes that determine the largest workspace of any op in a training step. widest: the most rows or columns of a
// block's weight. Members left out are GPT-2's: 4 n_embd, heads that have the width together, as many k and v heads.
struct WorkspaceQuery {
  Dtype dtype, grad_dtype;
  int64_t batch, seq_len, n_embd, n_head, vocab_padded, head_rows;
  int64_t widest = 0, head_size = 0, n_kv_head = 0;
  int64_t q_norm = 0;                            // columns of the norm of q; 0: a head's
};
HD int64_t query_widest(const WorkspaceQuery *q) { return q->widest ? q->widest : 4 * q->n_embd; }
HD int64_t query_head_size(const WorkspaceQuery *q) { return q->head_size ? q->head_size : q->n_embd / q->n_head; }
HD int64_t query_q_norm(const WorkspaceQuery *q) { return q->q_norm ? q->q_norm : query_head_size(q); }
HD int64_t query_kv_heads(const WorkspaceQuery *q) { return q->n_kv_head ? q->n_kv_head : q->n_head; }

// Rounded up to 256 bytes, at which each part of that scratch starts.
static inline size_t muon_whole(size_t bytes) { return (bytes + 255) / 256 * 256; }
// What the scratch of newton_schulz must have for a matrix of this shape and dtype, in bytes.
static inline size_t newton_schulz_work_bytes(int64_t rows, int64_t cols, Dtype dtype) {
  const int64_t m = min64(rows, cols);
  return 256 + muon_whole((size_t)(rows * cols) * dtype_bytes(dtype)) +
         2 * muon_whole((size_t)(m * m) * dtype_bytes(dtype));
}

enum { MATMUL_FEW_ROWS = 4 };                    // by which matmul_blocks reads its weight once
// Rotary positions and the norm of each head's q and k, rope.cuh.
enum { ROPE_HEAD_MAX = 1024 };                  // head dim that they take
// Of each head before or after the rotation; or before it, of all heads of q together, and of all of k.
enum QkNorm : int { QK_NORM_OFF, QK_NORM_BEFORE, QK_NORM_AFTER, QK_NORM_ALL };
struct RopeArgs { int n_head, head_size; QkNorm norm; float eps; };

// starts (B,T) int32, of ops that know positions: where in its sequence the document of each token starts. Absent: a
// sequence is one document, which starts at 0. Token t's learned position is t - starts[t], and it attends to no key
// before starts[t]; a training's rope rotates by t all the same, because only distances count there. Starts do not
// decrease along a sequence, and the first is 0. A sliding
// window is starts of its own (window.cuh). Where tokens are generated one by one, T is 1 and a start is minus the
// token's position, for rope as well (attention_cached.cuh).

// X(op, arguments, what it touches). Of each memory that a call names:
//   READS    is only read            WRITES    is overwritten, whole, and what was there is not read
//   UPDATES  is read and written     SUMS(t, mode)  is written, or read and written, as `mode` says
// _BYTES forms are for memory without a shape, SUMMANDS for the tensors of a Summands, one of which may be the sum
// itself. An argument that is absent is not touched. What one call writes and reads is apart unless
// IN_PLACE(written, read) allows otherwise: the same memory, or, for cross entropy, a gradient that starts before its
// logits. What a call reads and writes of its context is declared, too, for all devices alike:
//   READS_VALUE(x, if_)  a member of c->state, where if_ holds
//   USES_WORKSPACE       writes c->workspace and reads what it wrote; what the call leaves there nobody reads
#define OPS(X) OPS_OF_TILES(X) OPS_OF_VECTORS(X)
// Of the families matmul and attention, whose code is another where there are tiles (AMX).
#define OPS_OF_TILES(X) \
  X(matmul_forward,              (Ctx *c, Tensor out, Tensor in, Tensor weight, MatmulEpilogue e, QuantMatrix q), \
                                 SUMS(out, e.mode) WRITES(e.gelu) READS(in) READS(weight) READS(e.bias) \
                                 READS(q.part[0]) READS(q.part[1]) READS(q.part[2]) USES_WORKSPACE) \
  X(matmul_backward_input,       (Ctx *c, Tensor din, Tensor dout, Tensor weight, Tensor pre_gelu, QuantMatrix q), \
                                 WRITES(din) READS(dout) READS(weight) READS(pre_gelu) READS(q.part[0]) \
                                 READS(q.part[1]) READS(q.part[2]) USES_WORKSPACE) \
  X(matmul_backward_weight,      (Ctx *c, Tensor dweight, Tensor dbias, Tensor dout, Tensor in, Accumulate mode), \
                                 SUMS(dweight, mode) SUMS(dbias, mode) READS(dout) READS(in) USES_WORKSPACE) \
  X(attention_forward,           (Ctx *c, Tensor out, Tensor lse, Tensor qkv, int n_head, Dropout drop, \
                                  Tensor starts), \
                                 WRITES(out) WRITES(lse) READS(qkv) READS(starts) \
                                 READS_VALUE(c->state->in, drop.p > 0) USES_WORKSPACE) \
  X(window_starts,               (Ctx *c, Tensor out, Tensor starts, int64_t window), \
                                 WRITES(out) READS(starts)) \
  X(cache_store,                 (Ctx *c, Tensor cache, Tensor qkv, Tensor starts), \
                                 UPDATES(cache) READS(qkv) READS(starts)) \
  X(attention_cached,            (Ctx *c, Tensor out, Tensor cache, Tensor qkv, int n_head, Tensor starts, \
                                  int64_t window), \
                                 WRITES(out) READS(cache) READS(qkv) READS(starts) USES_WORKSPACE) \
  X(attention_backward,          (Ctx *c, Tensor dqkv, Tensor dout, Tensor qkv, Tensor out, Tensor lse, int n_head, \
                                  Dropout drop, Tensor starts), \
                                 WRITES(dqkv) READS(dout) READS(qkv) READS(out) READS(lse) READS(starts) \
                                 READS_VALUE(c->state->in, drop.p > 0) USES_WORKSPACE) \
  X(muon_momentum,               (Ctx *c, Tensor update, Tensor momentum, Tensor grad, MuonArgs a), \
                                 WRITES(update) UPDATES(momentum) READS(grad) READS_VALUE(*c->state, true)) \
  X(newton_schulz,               (Ctx *c, Tensor out, Tensor in, Tensor scratch, int steps), \
                                 WRITES(out) READS(in) WRITES(scratch) USES_WORKSPACE IN_PLACE(out, in)) \
  X(muon_update,                 (Ctx *c, Tensor param, Tensor master, Tensor update, MuonArgs a, int64_t rows, \
                                  int64_t cols), \
                                 UPDATES(param) UPDATES(master) READS(update) READS_VALUE(*c->state, true))
#define OPS_OF_VECTORS(X) \
  X(embedding_forward,           (Ctx *c, Tensor out, Tensor tokens, Tensor wte, Tensor wpe, Dropout drop, \
                                  Tensor starts, float scale), \
                                 WRITES(out) READS(tokens) READS(wte) READS(wpe) READS(starts) \
                                 READS_VALUE(c->state->in, drop.p > 0)) \
  X(embedding_backward,          (Ctx *c, Tensor dwte, Tensor dwpe, Tensor dout, Tensor tokens, Dropout drop, \
                                  Accumulate mode, Tensor starts, float scale), \
                                 UPDATES(dwte) SUMS(dwpe, mode) READS(dout) READS(tokens) READS(starts) \
                                 READS_VALUE(c->state->in, drop.p > 0) USES_WORKSPACE) \
  X(layernorm_forward,           (Ctx *c, Tensor out, Tensor mean, Tensor rstd, Tensor in, Tensor weight, \
                                  Tensor bias, float eps), \
                                 WRITES(out) WRITES(mean) WRITES(rstd) READS(in) READS(weight) READS(bias) \
                                 USES_WORKSPACE) \
  X(residual_layernorm_forward,  (Ctx *c, Tensor residual, Tensor out, Tensor mean, Tensor rstd, Tensor in, \
                                  Tensor branch, Tensor weight, Tensor bias, float eps, Dropout drop), \
                                 WRITES(residual) WRITES(out) WRITES(mean) WRITES(rstd) READS(in) READS(branch) \
                                 READS(weight) READS(bias) IN_PLACE(residual, branch) IN_PLACE(residual, in) \
                                 READS_VALUE(c->state->in, drop.p > 0) USES_WORKSPACE) \
  X(layernorm_backward,          (Ctx *c, Tensor dresidual, Tensor dbranch, Tensor dweight, Tensor dbias, Tensor dout, \
                                  Tensor residual, Tensor weight, Tensor mean, Tensor rstd, Dropout drop, \
                                  Accumulate mode), \
                                 UPDATES(dresidual) WRITES(dbranch) SUMS(dweight, mode) SUMS(dbias, mode) READS(dout) \
                                 READS(residual) READS(weight) READS(mean) READS(rstd) IN_PLACE(dbranch, dresidual) \
                                 READS_VALUE(c->state->in, drop.p > 0) USES_WORKSPACE) \
  X(gelu_forward,                (Ctx *c, Tensor out, Tensor in), WRITES(out) READS(in) IN_PLACE(out, in)) \
  X(activation_forward,          (Ctx *c, Tensor out, Tensor in, Activation kind), \
                                 WRITES(out) READS(in) IN_PLACE(out, in)) \
  X(activation_backward,         (Ctx *c, Tensor din, Tensor dout, Tensor in, Activation kind), \
                                 WRITES(din) READS(dout) READS(in) IN_PLACE(din, dout)) \
  X(swiglu_forward,              (Ctx *c, Tensor out, Tensor in, Activation kind), WRITES(out) READS(in)) \
  X(swiglu_backward,             (Ctx *c, Tensor din, Tensor dout, Tensor in, Activation kind), \
                                 WRITES(din) READS(dout) READS(in)) \
  X(softcap_forward,             (Ctx *c, Tensor logits, float cap), UPDATES(logits)) \
  X(lora_spread,                 (Ctx *c, Tensor out, Tensor b, LoraParts parts), WRITES(out) READS(b)) \
  X(lora_collect,                (Ctx *c, Tensor db, Tensor dout, LoraParts parts, Accumulate mode), \
                                 SUMS(db, mode) READS(dout)) \
  X(dropout,                     (Ctx *c, Tensor out, Tensor in, Dropout drop, Accumulate mode), \
                                 SUMS(out, mode) READS(in) IN_PLACE(out, in) \
                                 READS_VALUE(c->state->in, drop.p > 0)) \
  X(rope_forward,                (Ctx *c, Tensor qkv, Tensor raw, Tensor table, Tensor q_weight, Tensor k_weight, \
                                  RopeArgs a, Tensor starts), \
                                 UPDATES(qkv) WRITES(raw) READS(table) READS(q_weight) READS(k_weight) \
                                 READS(starts)) \
  X(rope_backward,               (Ctx *c, Tensor dqkv, Tensor dq_weight, Tensor dk_weight, Tensor raw, Tensor table, \
                                  Tensor q_weight, Tensor k_weight, RopeArgs a, Accumulate mode), \
                                 UPDATES(dqkv) SUMS(dq_weight, mode) SUMS(dk_weight, mode) READS(raw) READS(table) \
                                 READS(q_weight) READS(k_weight) USES_WORKSPACE) \
  X(cross_entropy_forward,       (Ctx *c, Tensor losses, Tensor correct, Tensor logits, Tensor targets, \
                                  int64_t vocab), \
                                 WRITES(losses) WRITES(correct) READS(logits) READS(targets)) \
  X(cross_entropy_forward_backward, (Ctx *c, Tensor losses, Tensor dlogits, Tensor logits, Tensor targets, \
                                  int64_t vocab, float scale, float softcap, Tensor weights), \
                                 WRITES(losses) WRITES(dlogits) READS(logits) READS(targets) READS(weights) \
                                 IN_PLACE(dlogits, logits) READS_VALUE(c->state->loss_scale, true) USES_WORKSPACE) \
  X(preference,                  (Ctx *c, double *to, Tensor weights, Tensor losses, Tensor targets, Tensor starts, \
                                  PreferenceArgs a), \
                                 WRITES_BYTES(to, PREFERENCE_SUMS * sizeof *to) UPDATES(weights) READS(losses) \
                                 READS(targets) READS(starts)) \
  X(adamw_update,                (Ctx *c, Tensor param, Tensor master, Tensor m, Tensor v, Tensor grad, AdamwArgs a), \
                                 UPDATES(param) UPDATES(master) UPDATES(m) UPDATES(v) READS(grad) \
                                 READS_VALUE(*c->state, true)) \
  X(sgd_update,                  (Ctx *c, Tensor param, Tensor master, Tensor momentum, Tensor grad, SgdArgs a), \
                                 UPDATES(param) UPDATES(master) UPDATES(momentum) READS(grad) \
                                 READS_VALUE(*c->state, true)) \
  X(param_from_master,           (Ctx *c, Tensor param, Tensor low, Tensor master), \
                                 WRITES(param) WRITES(low) READS(master) IN_PLACE(param, master)) \
  X(master_from_param,           (Ctx *c, Tensor master, Tensor param, Tensor low), \
                                 WRITES(master) READS(param) READS(low)) \
  X(norm_accumulate,             (Ctx *c, int64_t *limbs, Tensor grad), \
                                 UPDATES_BYTES(limbs, NORM_LIMBS * sizeof(int64_t)) READS(grad)) \
  X(norm_change,                 (Ctx *c, int64_t *limbs, Tensor now, Tensor before), \
                                 UPDATES_BYTES(limbs, NORM_LIMBS * sizeof(int64_t)) READS(now) READS(before)) \
  X(loss_mean,                   (Ctx *c, double *to, Tensor losses), WRITES_BYTES(to, sizeof *to) READS(losses)) \
  X(step_decide,                 (Ctx *c, StepState *state, double *losses, const void *exchange, StepRule rule), \
                                 UPDATES_BYTES(state, sizeof *state) \
                                 WRITES_BYTES(losses, sizeof(double) * (size_t)rule.microbatches * (size_t)rule.world) \
                                 READS_BYTES(exchange, exchange_bytes(rule.microbatches * rule.values) * \
                                                       (size_t)rule.world)) \
  X(fill,                        (Ctx *c, Tensor out, float value), WRITES(out)) \
  X(convert,                     (Ctx *c, Tensor out, Tensor in), WRITES(out) READS(in) IN_PLACE(out, in)) \
  X(accumulate,                  (Ctx *c, Tensor sum, Summands in, Accumulate mode), \
                                 SUMS(sum, mode) SUMMANDS(in, sum)) \
  X(normal_fill,                 (Ctx *c, Tensor out, uint64_t seed, uint32_t tensor, int64_t offset, float std), \
                                 WRITES(out)) \
  X(absmax,                      (Ctx *c, Tensor to, Tensor in), UPDATES(to) READS(in)) \
  X(fp8_scales,                  (Ctx *c, Tensor scale, Tensor amax), WRITES(scale) READS(amax)) \
  X(fp8_encode,                  (Ctx *c, Tensor out, Tensor in, Tensor scale), WRITES(out) READS(in) READS(scale)) \
  X(fp8_decode,                  (Ctx *c, Tensor out, Tensor in, Tensor scale), WRITES(out) READS(in) READS(scale)) \
  X(blocks_expand,               (Ctx *c, Tensor out, Tensor in, int type), WRITES(out) READS(in)) \
  X(blocks_rows,                 (Ctx *c, Tensor out, Tensor weight, int type, Tensor ids, float scale), \
                                 WRITES(out) READS(weight) READS(ids)) \
  X(matmul_blocks,               (Ctx *c, Tensor out, Tensor in, Tensor weight, int type, int64_t first, Tensor bias), \
                                 SUMS(out, first ? ADD : OVERWRITE) READS(in) READS(weight) READS(bias) \
                                 USES_WORKSPACE) \
  X(matmul_forward_fp8,          (Ctx *c, Tensor out, Tensor in, Tensor in_scale, Tensor weight, Tensor weight_scale, \
                                  Tensor bias), \
                                 WRITES(out) READS(in) READS(in_scale) READS(weight) READS(weight_scale) READS(bias) \
                                 USES_WORKSPACE)

// Limits of the CUDA kernels, checked at start-up: columns that fit in a block's registers, for odd widths (not a
// multiple of 8) and others; sequences that a grid can number.
enum { CUDA_MAX_COLUMNS = 16384, CUDA_MAX_ODD_COLUMNS = 4096, CUDA_MAX_BATCH = 65535 };
// On every device: weights of one sample's attention, n_head T T, that dropout can number.
static const int64_t DROPOUT_MOST_WEIGHTS = (int64_t)1 << 34;

// ---- what a device offers besides ops
// Device: the device's own memory, zeroed. Pinned: host memory that the device can copy from and to directly.
enum MemoryKind { MEMORY_DEVICE, MEMORY_PINNED };

struct DeviceInfo {
  char name[64], bus_id[32];                     // bus_id: of the GPU; instances of one (MIG) have the same
  char uuid[40];                                 // of what has this memory: a GPU, or an instance of one
  int major, minor, sms;
  bool wgmma;                                    // can run attention_wgmma.cuh in this build
  bool integrated;                               // its memory is the host's
  size_t memory_bytes;
  double peak_flops[3];                          // dense, by Dtype F32, BF16, F16; 0: unknown
  double peak_tf32_flops;
};
enum { MAX_DEVICES = 64 };
struct DeviceProbe {
  int devices;
  DeviceInfo device[MAX_DEVICES];
  int driver, runtime, cublaslt, nccl;           // versions as the libraries report them; 0: not found
  char missing[512];                             // "", or one line: what is missing or too old, and what was found
  char nccl_missing[512];                        // the same for libnccl
};

// memory_opened: device memory that the libraries took for themselves while the device was opened.
// Events order streams, never the host. `side` is a Ctx with its own stream (high priority, no workspace); its name and
// an event's name are for traces. mark: *to, in pinned memory, becomes `value` when the stream reaches it, so that a
// thread that makes no CUDA call sees how far the device is. stamp: *to, in pinned memory, becomes the device's clock
// then, in nanoseconds; its zero is the device's own. On a CPU every call is done when it returns, so streams
// and events do nothing.
#define DEVICE_CALLS(X) \
  X(device_probe,    (Ctx *c, DeviceProbe *p)) \
  X(device_open,     (Ctx *c, int index)) \
  X(device_close,    (Ctx *c)) \
  X(workspace_bytes, (Ctx *c, WorkspaceQuery q, size_t *bytes)) \
  X(memory_alloc,    (Ctx *c, void **p, size_t bytes, MemoryKind kind)) \
  X(memory_free,     (Ctx *c, void *p, size_t bytes, MemoryKind kind)) \
  X(memory_pin,      (Ctx *c, void *p, size_t bytes)) \
  X(memory_unpin,    (Ctx *c, void *p)) \
  X(memory_left,     (Ctx *c, size_t *free_bytes, size_t *total_bytes)) \
  X(memory_opened,   (Ctx *c, size_t *bytes)) \
  X(copy,            (Ctx *c, void *to, const void *from, size_t bytes)) \
  X(zero,            (Ctx *c, void *to, size_t bytes)) \
  X(sync,            (Ctx *c)) \
  X(side_open,       (Ctx *c, Ctx *side, const char *name)) \
  X(side_close,      (Ctx *side)) \
  X(event_open,      (Ctx *c, void **event, const char *name)) \
  X(event_close,     (Ctx *c, void *event)) \
  X(event_record,    (Ctx *c, void *event)) \
  X(event_wait,      (Ctx *c, void *event)) \
  X(event_done,      (Ctx *c, void *event, bool *done)) \
  X(mark,            (Ctx *c, uint32_t *to, uint32_t value)) \
  X(stamp,           (Ctx *c, int64_t *to)) \
  X(graph_begin,     (Ctx *c)) \
  X(graph_end,       (Ctx *c, void **graph)) \
  X(graph_launch,    (Ctx *c, void *graph)) \
  X(graph_close,     (Ctx *c, void *graph)) \
  X(range_begin,     (Ctx *c, const char *name)) \
  X(range_end,       (Ctx *c)) \
  X(plans_tune,      (Ctx *c, bool any, char *list, size_t list_bytes)) \
  X(plans_text,      (Ctx *c, char *to, size_t bytes)) \
  X(plans_algorithms, (Ctx *c, char *to, size_t bytes)) \
  X(plans_use,       (Ctx *c, const char *text, Error *error))

// NCCL, if the device has it. Counts are bytes or elements of one rank; everything runs on c's stream.
enum { NCCL_ID_BYTES = 128 };
#define COLLECTIVES(X) \
  X(id_make,        (Ctx *c, void *id)) \
  X(comm_open,      (Ctx *c, void **comm, const void *id, int rank, int world)) \
  X(comm_split,     (Ctx *c, void **comm, void *parent, int color, int key)) \
  X(comm_close,     (Ctx *c, void *comm)) \
  X(comm_check,     (Ctx *c, void *comm)) \
  X(group_begin,    (Ctx *c)) \
  X(group_end,      (Ctx *c)) \
  X(all_gather,     (Ctx *c, void *comm, void *to, const void *from, size_t bytes)) \
  X(send,           (Ctx *c, void *comm, const void *from, size_t bytes, int to_rank)) \
  X(receive,        (Ctx *c, void *comm, void *to, size_t bytes, int from_rank)) \
  X(reduce_scatter, (Ctx *c, void *comm, Tensor to, const void *from)) \
  X(all_reduce,     (Ctx *c, void *comm, Tensor data)) \
  X(broadcast,      (Ctx *c, void *comm, void *data, size_t bytes, int root))

struct Collectives {
#define X(call, args) void (*call) args;
  COLLECTIVES(X)
#undef X
};

struct Ops {
  const char *name;
  const Collectives *nccl;                       // NULL on CPU
#define X(op, args, touches) void (*op) args;
#define CALL(call, args) void (*call) args;
  OPS(X) DEVICE_CALLS(CALL)
#undef X
#undef CALL
};

// Heads of k and v of an attention: half of what qkv has more than out.
static inline int64_t attention_kv_heads(Tensor out, Tensor qkv, int n_head) {
  const int64_t hs = out.shape[2] / n_head;
  return (qkv.shape[2] - out.shape[2]) / (2 * (hs ? hs : 1));
}

#if PART_LAUNCH
static inline void starts_check(Tensor starts, int64_t B, int64_t T) {
  if (!starts.data) return;
  CHECK_SHAPE(starts, B, T);
  CHECK_DTYPE(starts, I32);
}
#endif

// Strong where defined, weak where used: an address test tells whether a table was linked, without an #ifdef.
#if PART_LAUNCH
#define MAYBE __attribute__((weak))
#else
#define MAYBE
#endif
extern MAYBE const Ops ops_avx2, ops_avx512, ops_avx512_bf16, ops_amx, ops_neon, ops_neon_bf16;
extern MAYBE const Ops ops_cuda, ops_amx_emulated;
extern MAYBE const Ops ops_cuda_emulated, ops_streams;           // tests only: dev/cuda_emu

// FAMILY(name): implementations of that family belong into this object. -DONE_FAMILY -DFAMILY_name=1 names one, else
// all do. Headers that others include for their helpers keep their own implementations to their family.
#ifdef ONE_FAMILY
#define FAMILY(name) FAMILY_##name
#else
#define FAMILY(name) 1
#endif

#if PART_CPU || PART_CUDA
// Declarations of what families share, whose definitions say no `static`: it is private where one object has all.
#ifndef ONE_FAMILY
#define IMPL(name, isa, declaration) static declaration;
#elif PART_CPU                                   // as gelu_forward_impl.avx2: no object gets another set's code
#define IMPL_STRING_(isa) #isa
#define IMPL_STRING(isa) IMPL_STRING_(isa)
#define IMPL(name, isa, declaration) declaration __asm__(#name "." IMPL_STRING(isa));
#else
#define IMPL(name, isa, declaration) declaration;
#endif
#ifndef ISA_OF_VECTORS                           // of a set with tiles: the one that has all else that it has
#define ISA_OF_VECTORS ISA
#endif
#define X(op, args, touches) IMPL(op##_impl, ISA, void op##_impl args)
#define CALL(call, args) IMPL(call##_impl, ISA, void call##_impl args)
OPS_OF_TILES(X) DEVICE_CALLS(CALL)
#undef X
#undef CALL
#define X(op, args, touches) IMPL(op##_impl, ISA_OF_VECTORS, void op##_impl args)
OPS_OF_VECTORS(X)
#undef X
#if PART_CPU
// Bytes of workspace that ops need for such shapes. CUDA's are in workspace.h.
#define WORKSPACES(X) X(layernorm, ISA_OF_VECTORS) X(rope, ISA_OF_VECTORS) X(cross_entropy, ISA_OF_VECTORS) \
  X(matmul, ISA) X(attention, ISA)
#define X(op, isa) IMPL(op##_workspace_bytes, isa, size_t op##_workspace_bytes(const Ctx *c, WorkspaceQuery q))
WORKSPACES(X)
#undef X
#define WORKSPACE_MAX(op, isa) \
  *bytes = op##_workspace_bytes(c, q) > *bytes ? op##_workspace_bytes(c, q) : *bytes;
#endif
#define OP_IMPL(op, args, touches) op##_impl,
#define CALL_IMPL(call, args) call##_impl,
#define OPS_TABLE(label, nccl) { label, nccl, OPS(OP_IMPL) DEVICE_CALLS(CALL_IMPL) }
#else                                            // the launchers: check, then call (kernels.cc)
#define X(op, args, touches) void op args;
OPS(X)
#undef X
// Arguments that may be left out.
void matmul_forward(Ctx *c, Tensor out, Tensor in, Tensor weight, MatmulEpilogue e, QuantMatrix q = {});
void matmul_backward_input(Ctx *c, Tensor din, Tensor dout, Tensor weight, Tensor pre_gelu, QuantMatrix q = {});
void embedding_forward(Ctx *c, Tensor out, Tensor tokens, Tensor wte, Tensor wpe, Dropout drop, Tensor starts = {},
                       float scale = 1);
void embedding_backward(Ctx *c, Tensor dwte, Tensor dwpe, Tensor dout, Tensor tokens, Dropout drop, Accumulate mode,
                        Tensor starts = {}, float scale = 1);
void rope_forward(Ctx *c, Tensor qkv, Tensor raw, Tensor table, Tensor q_weight, Tensor k_weight, RopeArgs a,
                  Tensor starts = {});
void attention_forward(Ctx *c, Tensor out, Tensor lse, Tensor qkv, int n_head, Dropout drop, Tensor starts = {});
void attention_backward(Ctx *c, Tensor dqkv, Tensor dout, Tensor qkv, Tensor out, Tensor lse, int n_head, Dropout drop,
                        Tensor starts = {});
void attention_cached(Ctx *c, Tensor out, Tensor cache, Tensor qkv, int n_head, Tensor starts, int64_t window = 0);
void cross_entropy_forward_backward(Ctx *c, Tensor losses, Tensor dlogits, Tensor logits, Tensor targets, int64_t vocab,
                                    float scale, float softcap, Tensor weights = {});
void blocks_rows(Ctx *c, Tensor out, Tensor weight, int type, Tensor ids, float scale = 1);
// Every op is called so: a report says which one came last.
#define CALL_OP(c, op, ...) (flight_op(#op), (c)->ops->op(c, __VA_ARGS__))
#endif
