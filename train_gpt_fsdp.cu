// train_gpt_fsdp: trains a GPT, from GPT-2's block to Llama's and Qwen's, on WikiText-2 or your text or chats, every
// parameter, gradient and optimizer state sharded over the ranks.
//   mpirun -np N ./train_gpt_fsdp [options]     ./train_gpt_fsdp --help
//
//   1 model         shapes, the one table of parameters
//   2 memory        activations; every byte is planned before any is allocated
//   3 forward       embeddings, blocks, head in chunks of rows
//   4 backward      the same, in reverse
//   5 update        microbatches, exact norm, clipping, learning rate, AdamW, SGD or Muon
//   6 eval, sample  every token of a split once; trainer/ has generation, benchmarks (--eval), conversation
//   7 loop          steps, evaluations, saves; a sample and files at the end
//   8 commands      the table of what the program does; the life of a run
//
// Sharding is in fsdp.h, arithmetic in kernels/, text and checkpoints in data/; how a run starts, agrees, reports and
// saves is in run/, and so is the one table of options (run/options/option_table.h). trainer/open.h gives a trainer its
// memory. Nothing here asks which device it runs on.
#define PART_LAUNCH 1
#include "kernels/ops_all.h"
#include "kernels/preference.cuh"
#include "kernels/random.h"
#include "fsdp.h"
#include "fsdp/plan.h"
#include "run/plan/plan.h"

// ================================================================================================ 1 model
// The one table of parameters: name, rows and columns, initialisation, decay, and which architectures have the
// parameter. Units, memory plan, and names in files and tests follow from it.
enum RootParam { WTE, WPE, LN_F_W, LN_F_B, LM_HEAD, ROOT_PARAMS };
enum BlockParam {
  LN_1_W, LN_1_B, ATTN_W, ATTN_B, Q_NORM_W, K_NORM_W, ATTN_PROJ_W, ATTN_PROJ_B, ATTN_NORM_W, LN_2_W, LN_2_B, FC_W, FC_B,
  PROJ_W, PROJ_B, MLP_NORM_W, BLOCK_PARAMS
};
// After these parameters come the factors A and B of the adapters of four of them.
static int lora_a(int matrix) { return BLOCK_PARAMS + 2 * matrix; }
static int lora_b(int matrix) { return BLOCK_PARAMS + 2 * matrix + 1; }
static const ParamSpec root_specs[ROOT_PARAMS] = {
    {"wte.weight", SIZE_V, SIZE_C, INIT_NORMAL, false, true, ALWAYS},
    {"wpe.weight", SIZE_P, SIZE_C, INIT_NORMAL, false, true, POSITIONS_LEARNED},
    {"ln_f.weight", SIZE_C, SIZE_NONE, INIT_ONE, false, false, NORM_HAS_WEIGHT},
    {"ln_f.bias", SIZE_C, SIZE_NONE, INIT_ZERO, false, false, NORM_HAS_BIAS},
    {"lm_head.weight", SIZE_V, SIZE_C, INIT_NORMAL, false, true, HEAD_APART}};
static const ParamSpec block_specs[BLOCK_PARAMS] = {
    {"h.%d.ln_1.weight", SIZE_C, SIZE_NONE, INIT_ONE, false, false, INPUT_HAS_NORM},
    {"h.%d.ln_1.bias", SIZE_C, SIZE_NONE, INIT_ZERO, false, false, NORM_HAS_BIAS},
    {"h.%d.attn.c_attn.weight", SIZE_QKV, SIZE_C, INIT_NORMAL, false, true, ALWAYS},         // q, k, v
    {"h.%d.attn.c_attn.bias", SIZE_QKV, SIZE_NONE, INIT_ZERO, false, false, QKV_HAS_BIAS},
    {"h.%d.attn.q_norm.weight", SIZE_Q_NORM, SIZE_NONE, INIT_ONE, false, false, QK_NORM_HAS_WEIGHT},
    {"h.%d.attn.k_norm.weight", SIZE_K_NORM, SIZE_NONE, INIT_ONE, false, false, QK_NORM_HAS_WEIGHT},
    {"h.%d.attn.c_proj.weight", SIZE_C, SIZE_Q, INIT_NORMAL, true, true, ALWAYS},
    {"h.%d.attn.c_proj.bias", SIZE_C, SIZE_NONE, INIT_ZERO, false, false, OUT_HAS_BIAS},
    {"h.%d.attn.norm.weight", SIZE_C, SIZE_NONE, INIT_ONE, false, false, BRANCH_HAS_NORM},
    {"h.%d.ln_2.weight", SIZE_C, SIZE_NONE, INIT_ONE, false, false, INPUT_HAS_NORM},
    {"h.%d.ln_2.bias", SIZE_C, SIZE_NONE, INIT_ZERO, false, false, NORM_HAS_BIAS},
    {"h.%d.mlp.c_fc.weight", SIZE_FC, SIZE_C, INIT_NORMAL, false, true, ALWAYS},             // gate and up, or one
    {"h.%d.mlp.c_fc.bias", SIZE_FC, SIZE_NONE, INIT_ZERO, false, false, MLP_HAS_BIAS},
    {"h.%d.mlp.c_proj.weight", SIZE_C, SIZE_F, INIT_NORMAL, true, true, ALWAYS},
    {"h.%d.mlp.c_proj.bias", SIZE_C, SIZE_NONE, INIT_ZERO, false, false, MLP_HAS_BIAS},
    {"h.%d.mlp.norm.weight", SIZE_C, SIZE_NONE, INIT_ONE, false, false, BRANCH_HAS_NORM},
};
static const ParamTable param_table = {root_specs, block_specs, ROOT_PARAMS, BLOCK_PARAMS,
                                       {ATTN_W, ATTN_PROJ_W, FC_W, PROJ_W}};

// Shapes of one run. Vp: vocabulary padded so that the head's matrix multiplies are aligned; the padding rows of the
// embedding are zero, get no gradient and reach neither loss nor file.
struct Model {
  int L, H, KV;                                  // blocks; heads of q; heads of k and of v
  int64_t C, hs, F, T, P, V, Vp;                 // F: width of the MLP; P: learned positions, or T
  ModelShape shape;                              // the options of the architecture, from which the numbers above follow
  ParamPlaces at;
  bool tied;
  float dropout;
  int64_t head_chunk_bytes;                      // the most fp32 logits that exist at once
  bool documents;                                // a sequence holds several, which do not attend to each other
  PreferenceArgs preference;                     // a loss of pairs of documents; .loss 0: the loss is of tokens
  bool branch_sums;                              // layernorm_backward makes the sums of projections' biases
  bool qkv_sums;                                 // attention_backward makes those of q's, k's and v's
  bool dlogits_apart;                            // the gradient of logits has memory of its own if its dtype differs
  Dtype logits_dtype;                            // of training; other passes have fp32
  Recompute recompute[LAYERS_MAX];
  bool e4m3_products;                            // the blocks' forward matrix multiplies take E4M3
};
// Bytes of fp32 logits that exist at once on a CPU. A GPU has memory for more (gpu_head_chunk_bytes of the options).
enum { HEAD_CHUNK_BYTES = 64 << 20 };

// A model of this shape on sequences of T tokens.
static Model model_of_shape(const ModelShape *s, int64_t T) {
  Model m = {};
  m.shape = *s;
  m.L = (int)s->n_layer, m.H = (int)s->n_head, m.KV = (int)s->n_kv_head;
  m.C = s->n_embd, m.hs = s->head_size, m.F = s->mlp_width;
  m.T = T, m.P = s->block.position == POSITION_LEARNED ? s->n_positions : T;
  m.V = s->vocab_size, m.Vp = round_up(s->vocab_size, VOCAB_ALIGN);
  m.tied = s->tied;
  m.dropout = (float)s->dropout;
  m.at = param_places(&param_table, s);
  return m;
}
// The index of a parameter; -1: this model does not have it.
static int root_param(const Model *m, RootParam k) { return m->at.root[k]; }
static int block_param(const Model *m, int l, int k) {
  return m->at.block[k] < 0 ? -1 : m->at.roots + l * m->at.blocks + m->at.block[k];
}
static Param *model_params(const Model *m, int *count) { return params_of_shape(&param_table, &m->shape, count); }
static int64_t model_numel(const Model *m) {
  int count;
  Param *p = model_params(m, &count);
  int64_t n = 0;
  for (int i = 0; i < count; i++) n += p[i].shape[0] * (p[i].ndim == 2 ? p[i].shape[1] : 1);
  free(p);
  return n;
}

// The lowest block that backward must reach: the lowest with a parameter that trains, 0 if an embedding trains, L if
// nothing below the final norm does.
static int first_backward_of(const Model *m, const Param *param, int params) {
  int first = m->L;
  for (int i = 0; i < params; i++) {
    const bool embedding = i == root_param(m, WTE) || i == root_param(m, WPE);
    if (param[i].frozen || (!param[i].stage && !embedding)) continue;
    first = (int)min64(first, embedding ? 0 : param[i].stage - 1);
  }
  return first;
}

// Floating-point operations of a training step per token: 6 for each weight of a matrix multiply (two forward, four
// backward; the head counts, embedding look-ups do not), and per block 12 H hs min(T, window) for attention, not halved
// for causality. PaLM (Chowdhery et al. 2022, appendix B) counts in the same way, so figures can be compared.
static double model_flops_per_token(const Model *m) {
  const double C = (double)m->C, Q = (double)m->H * (double)m->hs;
  const double weights = C * (double)(model_qkv_rows(&m->shape) + model_fc_rows(&m->shape) + m->F) + C * Q;
  double seen = 0;                               // sum over blocks of the tokens that a token attends to
  for (int l = 0; l < m->L; l++) {
    const int64_t window = layer_window(&m->shape.block, l);
    seen += (double)(window ? min64(window, m->T) : m->T);
  }
  return 6.0 * (m->L * weights + (double)m->V * C) + 12.0 * Q * seen;
}

static Model model_of(const Options *o) {
  const ModelShape shape = shape_of(o);
  Model m = model_of_shape(&shape, o->seq_len);
  m.head_chunk_bytes = HEAD_CHUNK_BYTES;
  m.logits_dtype = option_dtype(o, OPT_logits_dtype);
  Error unused;                                  // options_resolve has rejected what is wrong
  recompute_parse(o, m.recompute, &unused);
  if (!o->sample_only) m.preference = preference_args(o);
  m.documents = data_is_packed_whole(o) || m.preference.loss;                    // decided anew with the corpus
  m.e4m3_products = o->fp8 == FP8_MATMUL;
  return m;
}

// ================================================================================================ 2 memory
// Each tensor of a pass is declared here once, and gets memory by its live range: tensors with disjoint live ranges may
// share memory (fsdp/placement.h). A tensor that an op changes in place is one buffer: a branch and the residual stream
// that it is added to, ln_f and its gradient, on a CPU logits and their gradient.
//
// Forward activations of one block. R = B T rows. Shapes in comments; F32 where noted, else compute dtype. Backward
// finds a block's tensors kept, or recomputes them (--recompute). The results of an op depend only on stored tensors,
// so recomputed tensors are bitwise identical.
struct BlockActs {
  Tensor residual;         // (B,T,C)  stream entering the block; before that, the branch that is added to it
  Tensor ln_1, qkv, att;   // (B,T,C) (B,T,(H+2KV)hs) (B,T,H hs)
  Tensor qk;               // (B,T,(H+KV)hs) q and k before their norm; only if q and k have a norm
  Tensor residual_2, ln_2; // (B,T,C)  stream after attention; before that, the branch that is added to it
  Tensor branch[2], branch_rstd[2], dnormed;     // (B,T,C), F32 (B,T), (B,T,C): with post-norm the outputs of attention
                                                 // and MLP before that norm, its rstd, the gradient of one output
  Tensor fc, act;          // (B,T,F) before and after the activation; with a gated MLP fc is gate and up, (B,T,2F)
  Tensor mean_1, rstd_1, mean_2, rstd_2;         // F32 (B,T)
  Tensor lse;              // F32 (B,H,T)
  Tensor dfc, dact, dln_2, datt, dqkv, dln_1;    // gradients of fc, act, ln_2, att, qkv, ln_1; training only
  Tensor dqkv_sum;         // F32 (runs,(H+2KV)hs) column sums of dqkv, from attention's backward to the bias
  Tensor low[LORA_MATRICES];                     // (B,T,columns) a matrix's input times its adapters' A
  Tensor cache;                                  // (sequences,P,2KV hs) k and v of earlier tokens; samples only
};
struct Acts {
  int B, T;
  Tensor tokens, targets, starts;                // I32 (B,T), (R), (B,T); starts: of each token's document (ops.h)
  Tensor windows;                                // I32 (B,T) as starts, for blocks with a window shorter than T
  Tensor weights;                                // F32 (R) factors of tokens' gradients, preference.cuh; pairs only
  BlockActs *block;
  Tensor embedded, rstd_e, dembedded;            // the embedding before its norm; only if it has a norm
  Tensor residual_f, ln_f, mean_f, rstd_f;       // ln_f's gradient overwrites it, chunk by chunk
  Tensor dresidual, dbranch;                     // training only
  Tensor dbranch_sum;                            // F32 (1,C): column sums of dbranch, from a norm's backward to a bias
  Tensor losses, correct;                        // F32, I32 (R)
  Tensor in_e4m3, in_amax, in_scale;             // F8 (R, widest input), F32 (1), F32 (1): of a GEMM with --fp8 matmul
  Tensor logits, dlogits;                        // F32 or BF16, compute dtype (head_rows, Vp)
  // For one adapter at a time: factor B, spread to the whole matrix (lora.cuh); the gradient of that (F32); the
  // gradient of `low`; the matrix's input after the adapter's dropout, or the gradient of that (R, columns of the
  // input).
  Tensor spread, dspread, dlow, wide;
};

// Places buffers one after the other in a memory, at multiples of 256 bytes; with base == NULL only counts the size.
struct Arena { char *base; size_t at; };
static char *arena_bytes(Arena *a, int64_t bytes) {
  const size_t at = a->at;
  a->at += (size_t)round_up(bytes, 256);
  return a->base ? a->base + at : NULL;
}

// Rows of the head's logits that exist at once: few enough that the whole (B T, V) never exists, many enough that the
// head's fp32 weight gradient is read and written only a few times. Chunks are about equal, because a chunk of few rows
// would cost much more per row. Depends only on shapes, kind of device and checkpoint, because it fixes a summation
// order.
static int64_t head_rows(const Model *m, int64_t rows) {
  const int64_t most = max64(32, m->head_chunk_bytes / (4 * m->Vp) / 32 * 32), chunks = (rows + most - 1) / most;
  return min64(rows, round_up((rows + chunks - 1) / chunks, 32));
}

// Columns of all adapters of a block's (fused) matrix, side by side: rank times parts with an adapter; 0: none.
static int64_t lora_width(const Model *m, int matrix) {
  return m->shape.lora.rank * __builtin_popcount(m->shape.lora.parts[matrix]);
}
static void block_declare(BlockActs *b, Declare *d, int l, const Model *m, Dtype dt, int B, int T, bool training) {
  const int64_t C = m->C, Q = m->H * m->hs, QKV = model_qkv_rows(&m->shape), FC = model_fc_rows(&m->shape);
  const Architecture *choice = &m->shape.block;
  const bool layernorm = choice->norm == NORM_LAYERNORM;
  b->residual = declare(d, "residual", l, dt, B, T, C);
  const bool before = choice->norm_place != NORM_BEHIND, behind = choice->norm_place != NORM_BEFORE;
  b->ln_1 = before ? declare(d, "ln_1", l, dt, B, T, C) : b->residual;
  if (layernorm) b->mean_1 = declare(d, "mean_1", l, F32, B, T);
  if (before) b->rstd_1 = declare(d, "rstd_1", l, F32, B, T);
  b->qkv = declare(d, "qkv", l, dt, B, T, QKV);
  if (choice->qk_norm != QK_NORM_OFF) b->qk = declare(d, "qk", l, dt, B, T, QKV - m->KV * m->hs);
  b->att = declare(d, "att", l, dt, B, T, Q);
  b->lse = declare(d, "lse", l, F32, B, m->H, T);
  b->residual_2 = declare(d, "residual_2", l, dt, B, T, C);
  b->ln_2 = before ? declare(d, "ln_2", l, dt, B, T, C) : b->residual_2;
  if (layernorm) b->mean_2 = declare(d, "mean_2", l, F32, B, T);
  if (before) b->rstd_2 = declare(d, "rstd_2", l, F32, B, T);
  for (int i = 0; i < 2 && behind; i++) b->branch[i] = declare(d, "branch", l, dt, B, T, C);
  for (int i = 0; i < 2 && behind; i++) b->branch_rstd[i] = declare(d, "branch_rstd", l, F32, B, T);
  for (int i = 0; i < LORA_MATRICES; i++)
    if (lora_width(m, i)) b->low[i] = declare(d, "low", l, dt, B, T, lora_width(m, i));
  b->fc = declare(d, "fc", l, dt, B, T, FC);
  b->act = declare(d, "act", l, dt, B, T, m->F);
  if (!training) return;
  if (behind) b->dnormed = declare(d, "dnormed", l, dt, B, T, C);
  b->dfc = declare(d, "dfc", l, dt, B, T, FC);
  b->dact = mlp_is_gated(choice->mlp) ? declare(d, "dact", l, dt, B, T, m->F) : b->dfc;    // in place where it can be
  b->dln_2 = declare(d, "dln_2", l, dt, B, T, C);
  b->datt = declare(d, "datt", l, dt, B, T, Q);
  b->dqkv = declare(d, "dqkv", l, dt, B, T, QKV);
  if (m->qkv_sums) b->dqkv_sum = declare(d, "dqkv_sum", l, F32, attention_sum_runs(B, T), QKV);
  b->dln_1 = declare(d, "dln_1", l, dt, B, T, C);
}
// Declares the activations of a pass over B x T tokens, with logits of `rows` rows at once. cached: sequences that have
// a KV cache; 0: none.
static void acts_declare(Acts *x, Declare *d, const Model *m, Dtype dt, int B, int T, int64_t rows, bool training,
                         bool documents, int64_t cached) {
  const int64_t R = (int64_t)B * T, C = m->C;
  x->B = B, x->T = T;
  x->tokens = declare(d, "tokens", -1, I32, B, T);
  x->targets = declare(d, "targets", -1, I32, R);
  x->starts = documents || cached ? declare(d, "starts", -1, I32, B, T) : Tensor{};
  const int64_t window = m->shape.block.window;
  x->windows = window && window < m->T ? declare(d, "windows", -1, I32, B, T) : Tensor{};
  x->weights = training && m->preference.loss ? declare(d, "token_weights", -1, F32, R) : Tensor{};
  for (int l = 0; l < m->L; l++) {
    block_declare(&x->block[l], d, l, m, dt, B, T, training);
    x->block[l].cache = cached ? declare(d, "cache", l, dt, cached, m->P, 2 * m->KV * m->hs) : Tensor{};
  }
  if (m->shape.block.norm_embedding) {
    x->embedded = declare(d, "embedded", -1, dt, B, T, C);
    x->rstd_e = declare(d, "rstd_e", -1, F32, B, T);
    if (training) x->dembedded = declare(d, "dembedded", -1, dt, B, T, C);
  }
  x->residual_f = declare(d, "residual_f", -1, dt, B, T, C);
  x->ln_f = declare(d, "ln_f", -1, dt, B, T, C);
  if (m->shape.block.norm == NORM_LAYERNORM) x->mean_f = declare(d, "mean_f", -1, F32, B, T);
  x->rstd_f = declare(d, "rstd_f", -1, F32, B, T);
  x->losses = declare(d, "losses", -1, F32, R);
  x->correct = declare(d, "correct", -1, I32, R);
  if (m->shape.lora.rank) {
    int64_t width = 0;
    for (int i = 0; i < LORA_MATRICES; i++) width = max64(width, lora_width(m, i));
    const int64_t rows = max64(max64(model_qkv_rows(&m->shape), model_fc_rows(&m->shape)), C);
    x->spread = declare(d, "spread", -1, dt, rows, width);
    if (training) {
      x->dspread = declare(d, "dspread", -1, F32, rows, width);
      x->dlow = declare(d, "dlow", -1, dt, R, width);
      x->wide = declare(d, "wide", -1, dt, R, max64(max64(C, m->F), m->H * m->hs));
    }
  }
  if (m->e4m3_products) {
    x->in_e4m3 = declare(d, "in_e4m3", -1, F8, R, max64(max64(C, m->F), m->H * m->hs));
    x->in_amax = declare(d, "in_amax", -1, F32, 1, 1);
    x->in_scale = declare(d, "in_scale", -1, F32, 1);
  }
  // The gradient overwrites the logits. A 16-bit gradient of fp32 logits starts one row of its own before them
  // (cross_entropy.cuh), which takes a call for each power of two of rows; a GPU would be idle in the small calls, so
  // there the gradient has memory of its own (apart).
  const Dtype logits_dtype = training ? m->logits_dtype : F32;
  const bool apart = m->dlogits_apart && training && dt != logits_dtype;
  const int64_t before = dt == logits_dtype || apart ? 0 : 2 * m->Vp;
  const int64_t bytes = rows * m->Vp * (int64_t)dtype_bytes(logits_dtype);
  char *logits = declare_bytes(d, "logits", -1, (size_t)(round_up(before, 256) + bytes));
  x->logits = tensor_of(logits + round_up(before, 256), logits_dtype, rows, m->Vp);
  x->dlogits = apart ? declare(d, "dlogits", -1, dt, rows, m->Vp) : tensor_of(logits, dt, rows, m->Vp);
  if (!training) return;
  x->dresidual = declare(d, "dresidual", -1, dt, B, T, C);
  x->dbranch = m->dropout > 0 ? declare(d, "dbranch", -1, dt, B, T, C) : x->dresidual;     // equal without dropout
  if (m->branch_sums) x->dbranch_sum = declare(d, "dbranch_sum", -1, F32, 1, C);
}

// ---- the trainer's state
// Results of a step for the next step or for the host, in device memory.
struct StepBuffers {
  StepState *state;
  Exchange *exchange;                            // this rank's, followed by its A losses
  char *exchange_all;                            // of all ranks
  double *losses;                                // [M] in order of microbatches
  Tensor rope, rope_window;                      // F32 (T,hs) tables of RoPE's cosines and sines; of blocks with window
};
// Inputs and results of a step on the host, pinned: the device reads and writes them asynchronously, so they must not
// move.
struct HostBuffers {
  StepInput *input;
  StepState *state;
  double *losses;                                // [M]
  int32_t *inputs, *targets, *starts;            // [A][B][T] of a step, or one batch of evaluation
  float *weights;                                // the same shape: reference sums of pairs, preference.cuh; else NULL
  float *row_losses, *logits;                    // evaluation: per token; sampling: (sequences,Vp)
  int32_t *row_correct;
  uint32_t *marks;                               // [MARKS] how far the device is: written by it, read at any time
};
struct Microbatch { int64_t sample0; PassKind pass; };     // sample0: number of its first sequence in the global step
struct Trainer {
  RunView run;                                   // what run/ knows of the trainer
  Options opt;
  Model model;
  Dtype dtype;
  Ctx ctx;
  Fsdp *fsdp;
  Sampler sampler;
  Acts acts;
  Microbatch at;                                 // the microbatch that is computed
  char *step_arena, *host_arena;
  size_t order_bytes, corpus_bytes;
  void *order;                                   // of the epoch's samples
  StepBuffers buffers;
  HostBuffers host;
  PassKind carved;                               // the pass that `acts` is laid out for
  bool bare;                                     // passes run with adapters disabled
  int fills;                                     // the sequence whose KV cache a sample's pass fills from its start;
                                                 // -1: the pass adds one token to each sequence
  int64_t rows_max, head_rows;                   // most tokens of a batch; rows of logits at once in training
  StepState before;                              // the state that the last step started from
  bool has_run;                                  // this process has run a step
  void *graph;                                   // the captured step; NULL before
  Traffic graph_traffic;                         // of one replay
};

// The number of texts that a rank generates at once.
static int64_t sample_sequences(const Trainer *t) {
  return t->opt.prompts[0] ? min64(t->opt.test_batch_size, t->model.P) : 1;
}
// Rows of logits at once in a pass over B x T tokens. Outside training the number changes no result; it is chosen so
// that fp32 logits take no more bytes than those of training, which may be bf16.
static int64_t pass_head_rows(const Trainer *t, PassKind pass, int B, int T) {
  const int64_t wider = pass == PASS_EVAL ? 4 / (int64_t)dtype_bytes(t->model.logits_dtype) : 1;
  return pass == PASS_SAMPLE ? sample_sequences(t) : min64((t->head_rows + wider - 1) / wider, (int64_t)B * T);
}
// Makes the activations of a pass over B x T tokens: where a dry run puts them, or where the placement has.
static void trainer_declare_pass(Trainer *t, int B, int T, PassKind pass, bool again = false) {
  Declare *d = fsdp_pass(t->fsdp, pass, again);
  acts_declare(&t->acts, d, &t->model, t->dtype, B, T, pass_head_rows(t, pass, B, T), pass == PASS_TRAIN,
               t->model.documents && pass != PASS_SAMPLE, pass == PASS_SAMPLE ? sample_sequences(t) : 0);
  t->ctx.workspace = declare_workspace(d, t->ctx.workspace_bytes);
  t->carved = pass;
}
// Lays out the activations of a real pass, unless they are already. The memory itself never moves.
static void trainer_carve(Trainer *t, int B, int T, PassKind pass) {
  if (t->acts.B == B && t->acts.T == T && t->carved == pass) return;
  trainer_declare_pass(t, B, T, pass);
}

// The number of doubles that a rank contributes to the exchange for each of its microbatches.
static int trainer_values(const Trainer *t) { return t->model.preference.loss ? PREFERENCE_SUMS : 1; }
static size_t trainer_exchange_bytes(const Trainer *t) {
  return exchange_bytes((int)t->opt.grad_accum * trainer_values(t));
}
// Lays out StepBuffers on the device and HostBuffers on the host, in their arenas. Returns the bytes of both.
struct StepBytes { size_t device, host; };
static StepBytes trainer_carve_buffers(Trainer *t) {
  const int64_t A = t->opt.grad_accum, N = fsdp_world(t->fsdp), T = t->model.T;
  const int64_t tokens = max64(A * t->opt.batch_size * T, t->rows_max), exchange = (int64_t)trainer_exchange_bytes(t);
  Arena on_device = {t->step_arena, 0}, on_host = {t->host_arena, 0}, *device = &on_device, *host = &on_host;
  t->buffers.state = (StepState *)arena_bytes(device, sizeof(StepState));
  t->buffers.exchange = (Exchange *)arena_bytes(device, exchange);
  t->buffers.exchange_all = arena_bytes(device, exchange * N);
  t->buffers.losses = (double *)arena_bytes(device, 8 * A * N);
  const int64_t turned = t->model.shape.block.position == POSITION_ROPE ? T : 0;
  char *rope = arena_bytes(device, 4 * turned * t->model.hs);
  t->buffers.rope = turned ? tensor_of(rope, F32, turned, t->model.hs) : Tensor{};
  const int64_t other = t->model.shape.block.window && t->model.shape.block.window_theta > 0 ? turned : 0;
  char *rope_window = arena_bytes(device, 4 * other * t->model.hs);
  t->buffers.rope_window = other ? tensor_of(rope_window, F32, other, t->model.hs) : Tensor{};
  t->host.input = (StepInput *)arena_bytes(host, sizeof(StepInput));
  t->host.state = (StepState *)arena_bytes(host, sizeof(StepState));
  t->host.losses = (double *)arena_bytes(host, 8 * A * N);
  t->host.marks = (uint32_t *)arena_bytes(host, MARKS * sizeof(uint32_t));
  t->host.inputs = (int32_t *)arena_bytes(host, 4 * tokens);
  t->host.targets = (int32_t *)arena_bytes(host, 4 * tokens);
  // Without documents only samples have starts, and they have no targets.
  t->host.starts = t->model.documents ? (int32_t *)arena_bytes(host, 4 * tokens) : t->host.targets;
  t->host.weights = t->model.preference.loss ? (float *)arena_bytes(host, 4 * tokens) : NULL;
  t->host.row_losses = (float *)arena_bytes(host, 4 * t->rows_max);
  t->host.row_correct = (int32_t *)arena_bytes(host, 4 * t->rows_max);
  t->host.logits = (float *)arena_bytes(host, 4 * sample_sequences(t) * t->model.Vp);
  t->ctx.state = t->buffers.state;
  return StepBytes{device->at, host->at};
}

// ================================================================================================ 3 forward
// Places of the network that have dropout, each with random numbers of its own: 0 the embeddings, then three per block.
enum DropoutPlace { DROP_EMBEDDING = 0, DROP_ATTENTION = 1, DROP_ATTN_PROJ = 2, DROP_MLP_PROJ = 3 };

static Dropout dropout_at(const Trainer *t, Microbatch b, int layer, DropoutPlace place) {
  Dropout d = {b.pass == PASS_TRAIN ? t->model.dropout : 0.0f, (uint64_t)t->opt.seed, 0,
               (uint32_t)(place == DROP_EMBEDDING ? 0 : 3 * layer + (int)place), b.sample0};
  return d;
}
static Tensor rows2d(Tensor t) { return reshaped(t, t.shape[0] * t.shape[1], t.shape[2]); }
// A weight, or its gradient; without data if the model does not have the parameter (p -1).
static Tensor weight_of(Trainer *t, int p) { return p < 0 ? Tensor{} : fsdp_weight(t->fsdp, p); }
static Tensor grad_of(Trainer *t, int p) { return p < 0 ? Tensor{} : fsdp_grad(t->fsdp, p); }
static Tensor block_weight(Trainer *t, int l, int k) { return weight_of(t, block_param(&t->model, l, k)); }
static QuantMatrix block_quant(Trainer *t, int l, int k) { return fsdp_quant(t->fsdp, block_param(&t->model, l, k)); }
static Tensor root_weight(Trainer *t, RootParam k) { return weight_of(t, root_param(&t->model, k)); }
static Tensor root_grad(Trainer *t, RootParam k) { return grad_of(t, root_param(&t->model, k)); }
static float norm_eps(const Trainer *t) { return (float)t->model.shape.block.norm_eps; }
// The factor of embedded tokens: 1, or sqrt(C) rounded to the compute dtype, as in transformers.
static float embedding_scale(const Trainer *t) {
  const float root = sqrtf((float)t->model.C);
  if (!t->model.shape.block.embedding_scaled) return 1.0f;
  DISPATCH(t->dtype, T, {
    T rounded;
    round_to(&rounded, root);
    return to_f32(rounded);
  });
  return root;
}
// With --train_rows, zeroes the gradients of the other rows of the embedding or head, so that AdamW and SGD leave those
// rows unchanged.
static void zero_other_rows(Trainer *t, RootParam k) {
  const Lora *l = &t->model.shape.lora;
  const Tensor g = root_grad(t, k);
  if (!l->rank || !l->row_end || !g.data) return;
  const size_t row = (size_t)t->model.C * dtype_bytes(g.dtype), rows = (size_t)(numel(g) / t->model.C);
  const size_t from = (size_t)l->row_from, end = (size_t)l->row_end;
  if (from) t->ctx.ops->zero(&t->ctx, g.data, from * row);
  if (end < rows) t->ctx.ops->zero(&t->ctx, (char *)g.data + end * row, (rows - end) * row);
}
// The head's weight: its own, or the token embedding.
static RootParam head_param(const Trainer *t) { return t->model.tied ? WTE : LM_HEAD; }

// Whether the blocks' forward matrix multiplies take E4M3 in this pass: cuBLASLt needs a multiple of 16 rows. Training
// and evaluation have such batches; a sample's growing text is multiplied in the compute dtype, with the same E4M3
// weights.
static bool products_take_e4m3(const Trainer *t) { return t->model.e4m3_products && t->carved != PASS_SAMPLE; }
// Whether quantized matrices are multiplied as they are stored (matmul_blocks.cuh): in a sample's pass with few rows,
// where dequantizing a matrix would cost more.
static bool reads_blocks(const Trainer *t, int64_t rows) { return t->carved == PASS_SAMPLE && rows <= 16; }
// out = in weight^T + bias, by the quantized matrix or matrices of parameter p, whose results are side by side in out.
// False: p is not quantized.
static bool multiply_blocks(Trainer *t, Tensor out, Tensor in, int p, Tensor bias) {
  const Param *q = fsdp_param(t->fsdp, p);
  if (!param_in_blocks(q)) return false;
  for (int k = 0; k < q->keeps; k++)
    matmul_blocks(&t->ctx, out, in, fsdp_stored(t->fsdp, p, k), q->kept[k],
                  param_part_first(q, k) / param_cols(q), bias);
  return true;
}
// ---- adapters
// Dropout of the input of adapter `matrix` of block l. Its places are numbered after those of the network.
static Dropout lora_dropout(const Trainer *t, int l, int matrix) {
  Dropout d = dropout_at(t, t->at, 0, DROP_EMBEDDING);
  d.p = t->at.pass == PASS_TRAIN ? (float)t->model.shape.lora.dropout : 0.0f;
  d.tensor = (uint32_t)(3 * t->model.L + 1 + LORA_MATRICES * l + matrix);
  return d;
}
static LoraParts lora_parts_at(Trainer *t, int l, int matrix) {
  const int base = block_param(&t->model, l, param_table.lora[matrix]);
  return lora_parts_of(&t->model.shape, matrix, fsdp_param(t->fsdp, base));
}
// Factor B of the adapters of a matrix, spread to the rows of the fused matrix (lora.cuh), times alpha / rank.
static Tensor lora_spread_b(Trainer *t, int l, int matrix) {
  const LoraParts parts = lora_parts_at(t, l, matrix);
  int64_t rows = 0;
  for (int64_t n : parts.rows) rows += n;
  Tensor to = tensor_of(t->acts.spread.data, t->dtype, rows, lora_width(&t->model, matrix));
  lora_spread(&t->ctx, to, block_weight(t, l, lora_b(matrix)), parts);
  return to;
}
// The input of the adapters, from the input `in` (R,K) of their matrix: `in` itself, or x->wide after dropout.
static Tensor lora_input(Trainer *t, Tensor in, int l, int matrix) {
  const Acts *x = &t->acts;
  const Dropout drop = lora_dropout(t, l, matrix);
  if (drop.p == 0.0f) return in;
  Tensor wide = tensor_of(x->wide.data, t->dtype, x->B, x->T, in.shape[1]);
  dropout(&t->ctx, wide, tensor_of(in.data, in.dtype, x->B, x->T, in.shape[1]), drop, OVERWRITE);
  return rows2d(wide);
}
// out += alpha / rank in A^T B^T, by the adapters of a matrix of block l; low keeps in A^T.
static void lora_forward(Trainer *t, Tensor out, Tensor in, int l, int matrix) {
  Tensor low = rows2d(t->acts.block[l].low[matrix]);
  matmul_forward(&t->ctx, low, lora_input(t, in, l, matrix), block_weight(t, l, lora_a(matrix)), MatmulEpilogue{});
  matmul_forward(&t->ctx, out, low, lora_spread_b(t, l, matrix), MatmulEpilogue{{}, {}, ADD});
}

// One of block l's four matrix multiplies, with its adapters: out (R, rows of the weight) = in weight^T + bias (if the
// model has it), and, if gelu has data, gelu = GELU(out). With --fp8 matmul the input is scaled by its own largest
// magnitude, converted to E4M3 and multiplied by the gathered E4M3 weight.
static void linear_forward(Trainer *t, Tensor out, Tensor in, int l, BlockParam weight, BlockParam bias, Tensor gelu) {
  Ctx *c = &t->ctx;
  Acts *x = &t->acts;
  int matrix = 0;
  while (matrix < LORA_MATRICES && (param_table.lora[matrix] != weight || !lora_width(&t->model, matrix))) matrix++;
  const bool adapts = matrix < LORA_MATRICES;
  if (!products_take_e4m3(t)) {
    const bool blocks = reads_blocks(t, in.shape[0]) &&
                        multiply_blocks(t, out, in, block_param(&t->model, l, weight), block_weight(t, l, bias));
    const Recompute level = t->model.recompute[l];
    const MatmulEpilogue e = {block_weight(t, l, bias), adapts ? Tensor{} : gelu, OVERWRITE,
                              level == RECOMPUTE_GELU || level == RECOMPUTE_NORM};
    if (!blocks) matmul_forward(c, out, in, block_weight(t, l, weight), e, block_quant(t, l, weight));
    if (adapts && !t->bare) lora_forward(t, out, in, l, matrix);
    if ((adapts || blocks) && gelu.data) gelu_forward(c, gelu, out);
    return;
  }
  const int p = block_param(&t->model, l, weight);
  Tensor in_e4m3 = tensor_of(x->in_e4m3.data, F8, in.shape[0], in.shape[1]);
  c->ops->zero(c, x->in_amax.data, sizeof(float));
  absmax(c, reshaped(x->in_amax, 1), in);
  fp8_scales(c, x->in_scale, x->in_amax);
  fp8_encode(c, in_e4m3, in, x->in_scale);
  matmul_forward_fp8(c, out, in_e4m3, x->in_scale, fsdp_stored(t->fsdp, p), fsdp_scale(t->fsdp, p),
                     block_weight(t, l, bias));
  if (adapts) lora_forward(t, out, in, l, matrix);
  if (gelu.data) gelu_forward(c, gelu, out);
}

// Whether q and k of block l are rotated or normalised before attention; the table of the rotation, absent for a NoPE
// layer.
static bool block_has_rope(const Trainer *t, int l) {
  return layer_rotates(&t->model.shape.block, l) || t->model.shape.block.qk_norm != QK_NORM_OFF;
}
static Tensor block_rope_table(const Trainer *t, int l) {
  const Architecture *b = &t->model.shape.block;
  if (!layer_rotates(b, l)) return Tensor{};
  return layer_window(b, l) && t->buffers.rope_window.data ? t->buffers.rope_window : t->buffers.rope;
}
static RopeArgs rope_args(const Trainer *t) {
  return RopeArgs{t->model.H, (int)t->model.hs, t->model.shape.block.qk_norm, norm_eps(t)};
}
// The MLP's activation: act from fc.
static void mlp_forward(Trainer *t, BlockActs *b) {
  Tensor act = rows2d(b->act), fc = rows2d(b->fc);
  const Mlp mlp = t->model.shape.block.mlp;
  if (mlp == MLP_GELU) gelu_forward(&t->ctx, act, fc);
  else if (mlp_is_gated(mlp)) swiglu_forward(&t->ctx, act, fc, mlp_activation(mlp));
  else activation_forward(&t->ctx, act, fc, mlp_activation(mlp));
}
// fc and act of block l from ln_2; GELU is part of the matrix multiply.
static void block_mlp_up(Trainer *t, int l) {
  BlockActs *b = &t->acts.block[l];
  const bool gelu = t->model.shape.block.mlp == MLP_GELU;
  linear_forward(t, rows2d(b->fc), rows2d(b->ln_2), l, FC_W, FC_B, gelu ? rows2d(b->act) : Tensor{});
  if (!gelu) mlp_forward(t, b);
}

// For each token the first key that it attends to in block l.
static Tensor block_starts(const Trainer *t, int l) {
  return layer_window(&t->model.shape.block, l) && t->acts.windows.data ? t->acts.windows : t->acts.starts;
}
// att of block l from qkv. A sample's pass stores k and v in the KV cache; one that adds a token to each text attends
// to the cache.
static void block_attend(Trainer *t, int l, Microbatch mb) {
  BlockActs *b = &t->acts.block[l];
  const int n_head = t->model.H;
  Tensor starts = t->acts.starts;
  if (b->cache.data) {
    const int64_t P = b->cache.shape[1], columns = b->cache.shape[2], first = t->fills < 0 ? 0 : t->fills;
    char *const from = (char *)b->cache.data + (size_t)(first * P * columns) * dtype_bytes(t->dtype);
    Tensor cache = tensor_of(from, t->dtype, t->acts.B, P, columns);
    cache_store(&t->ctx, cache, b->qkv, starts);
    if (t->fills < 0) {
      attention_cached(&t->ctx, b->att, cache, b->qkv, n_head, starts, layer_window(&t->model.shape.block, l));
      return;
    }
  }
  attention_forward(&t->ctx, b->att, b->lse, b->qkv, n_head, dropout_at(t, mb, l, DROP_ATTENTION), block_starts(t, l));
}
// The pre-norm of attention (i = 0) or the MLP (1) of block l, and the residual stream that it reads.
struct InputNorm { Tensor residual, out, mean, rstd, weight, bias; };
static InputNorm input_norm(Trainer *t, int l, int i) {
  const BlockActs *b = &t->acts.block[l];
  return i ? InputNorm{b->residual_2, b->ln_2, b->mean_2, b->rstd_2, block_weight(t, l, LN_2_W),
                       block_weight(t, l, LN_2_B)}
           : InputNorm{b->residual, b->ln_1, b->mean_1, b->rstd_1, block_weight(t, l, LN_1_W),
                       block_weight(t, l, LN_1_B)};
}
static bool norms_are_before(const Trainer *t) { return t->model.shape.block.norm_place != NORM_BEHIND; }
static bool norms_are_behind(const Trainer *t) { return t->model.shape.block.norm_place != NORM_BEFORE; }
static void input_norm_forward(Trainer *t, int l, int i) {
  const InputNorm n = input_norm(t, l, i);
  if (norms_are_before(t)) layernorm_forward(&t->ctx, n.out, n.mean, n.rstd, n.residual, n.weight, n.bias, norm_eps(t));
}
// n.residual, which holds the branch that the block before has left, becomes branch (after dropout) + `from`: the
// residual stream that attention (i = 0) or the MLP (1) of block l reads. Then its pre-norm, if there is one.
static void block_join(Trainer *t, int l, int i, Tensor from, Dropout drop) {
  const InputNorm n = input_norm(t, l, i);
  if (norms_are_before(t)) {
    residual_layernorm_forward(&t->ctx, n.residual, n.out, n.mean, n.rstd, from, n.residual, n.weight, n.bias,
                               norm_eps(t), drop);
    return;
  }
  if (drop.p > 0.0f) dropout(&t->ctx, n.residual, n.residual, drop, OVERWRITE);
  dropout(&t->ctx, n.residual, from, Dropout{}, ADD);
}
// Where attention (i = 0) or the MLP (1) of block l writes its output: with post-norm into a buffer of its own, which
// branch_norm normalises into `to`; else into `to`.
static Tensor branch_of(Trainer *t, int l, int i, Tensor to) {
  return norms_are_behind(t) ? t->acts.block[l].branch[i] : to;
}
static Tensor branch_norm_weight(Trainer *t, int l, int i) { return block_weight(t, l, i ? MLP_NORM_W : ATTN_NORM_W); }
static void branch_norm(Trainer *t, int l, int i, Tensor to) {
  const BlockActs *b = &t->acts.block[l];
  if (norms_are_behind(t))
    layernorm_forward(&t->ctx, to, Tensor{}, b->branch_rstd[i], b->branch[i], branch_norm_weight(t, l, i), Tensor{},
                      norm_eps(t));
}
// Attention of block l: from ln_1, the output of its first norm, to ln_2, the output of its second.
static void block_attention(Trainer *t, int l, Microbatch mb) {
  Ctx *c = &t->ctx;
  BlockActs *b = &t->acts.block[l];
  linear_forward(t, rows2d(b->qkv), rows2d(b->ln_1), l, ATTN_W, ATTN_B, Tensor{});
  fsdp_poll(t->fsdp);
  if (block_has_rope(t, l))
    rope_forward(c, b->qkv, b->qk, block_rope_table(t, l), block_weight(t, l, Q_NORM_W), block_weight(t, l, K_NORM_W),
                 rope_args(t), mb.pass == PASS_SAMPLE ? t->acts.starts : Tensor{});
  block_attend(t, l, mb);
  fsdp_poll(t->fsdp);
  linear_forward(t, rows2d(branch_of(t, l, 0, b->residual_2)), rows2d(b->att), l, ATTN_PROJ_W, ATTN_PROJ_B, Tensor{});
  branch_norm(t, l, 0, b->residual_2);
  block_join(t, l, 1, b->residual, dropout_at(t, mb, l, DROP_ATTN_PROJ));
  fsdp_poll(t->fsdp);
}

// Block l: its residual becomes the previous block's stream + MLP branch (block 0: the embeddings are there already),
// then attention and MLP. The MLP's branch is added to the stream in the next block's first norm, or in the final norm.
static void block_forward(Trainer *t, int l, Microbatch mb) {
  BlockActs *b = &t->acts.block[l];
  Tensor branch = l + 1 < t->model.L ? b[1].residual : t->acts.residual_f;
  if (l == 0) input_norm_forward(t, l, 0);
  else block_join(t, l, 0, b[-1].residual_2, dropout_at(t, mb, l - 1, DROP_MLP_PROJ));
  block_attention(t, l, mb);
  block_mlp_up(t, l);
  fsdp_poll(t->fsdp);
  linear_forward(t, rows2d(branch_of(t, l, 1, branch)), rows2d(b->act), l, PROJ_W, PROJ_B, Tensor{});
  branch_norm(t, l, 1, branch);
  fsdp_poll(t->fsdp);
}

// Recomputes the activations of block l that were not kept (--recompute) from those that were.
static void block_recompute(Trainer *t, int l, Microbatch mb) {
  BlockActs *b = &t->acts.block[l];
  const Recompute level = t->model.recompute[l];
  if (level >= RECOMPUTE_NORM) input_norm_forward(t, l, 0);
  if (level == RECOMPUTE_BLOCK) block_attention(t, l, mb);
  else if (level >= RECOMPUTE_NORM) input_norm_forward(t, l, 1);
  if (level >= RECOMPUTE_MLP) block_mlp_up(t, l);
  else if (level >= RECOMPUTE_GELU) mlp_forward(t, b);
  fsdp_poll(t->fsdp);
}

// Forward from tokens to ln_f, the normalised residual stream that the head reads. Stage 0 (the root's parameters)
// stays gathered until the caller releases it.
static void gpt_forward(Trainer *t, Microbatch mb) {
  Fsdp *f = t->fsdp;
  Acts *x = &t->acts;
  const int L = t->model.L;
  t->at = mb;
  fsdp_gather(f, 0);
  fsdp_gather(f, 1);
  const bool normed = t->model.shape.block.norm_embedding;
  const int wte = root_param(&t->model, WTE);
  const bool few = reads_blocks(t, x->B * x->T);
  const bool rows = (few || fsdp_quant(f, wte).parts) && root_param(&t->model, WPE) < 0 &&
                    param_in_blocks(fsdp_param(f, wte));
  const Tensor embedded = normed ? x->embedded : x->block[0].residual;
  fsdp_wait(f, 0, !few || !rows);
  if (x->windows.data) window_starts(&t->ctx, x->windows, x->starts, t->model.shape.block.window);
  if (rows) blocks_rows(&t->ctx, rows2d(embedded), fsdp_stored(f, wte, 0), fsdp_param(f, wte)->kept[0], x->tokens,
                        embedding_scale(t));
  else embedding_forward(&t->ctx, embedded, x->tokens, root_weight(t, WTE), root_weight(t, WPE),
                         dropout_at(t, mb, 0, DROP_EMBEDDING), x->starts, embedding_scale(t));
  if (normed)
    layernorm_forward(&t->ctx, x->block[0].residual, Tensor{}, x->rstd_e, x->embedded, Tensor{}, Tensor{}, norm_eps(t));
  for (int l = 0; l < L; l++) {
    fsdp_wait(f, 1 + l, !products_take_e4m3(t) && !few);
    fsdp_prefetch(f, 1 + l, +1, L);
    block_forward(t, l, mb);
    fsdp_release(f, 1 + l);
  }
  WORD_SET(&flight.stage, 0);
  residual_layernorm_forward(&t->ctx, x->residual_f, x->ln_f, x->mean_f, x->rstd_f, x->block[L - 1].residual_2,
                             x->residual_f, root_weight(t, LN_F_W), root_weight(t, LN_F_B), norm_eps(t),
                             dropout_at(t, mb, L - 1, DROP_MLP_PROJ));
}

// ================================================================================================ 4 backward
// The logits of some rows of ln_f.
static void head_logits(Trainer *t, Tensor logits, Tensor ln_f) {
  const float cap = (float)t->model.shape.block.logit_softcap;
  const int head = root_param(&t->model, head_param(t));
  if (!reads_blocks(t, logits.shape[0]) || !multiply_blocks(t, logits, ln_f, head, Tensor{}))
    matmul_forward(&t->ctx, logits, ln_f, weight_of(t, head), MatmulEpilogue{}, fsdp_quant(t->fsdp, head));
  if (cap > 0) softcap_forward(&t->ctx, logits, cap);
}
// din, the gradient of the input of a matrix multiply by a weight of block l. pre_gelu: see matmul_backward_input.
static void linear_backward_input(Trainer *t, Tensor din, Tensor dout, int l, BlockParam weight, Tensor pre_gelu) {
  matmul_backward_input(&t->ctx, din, dout, block_weight(t, l, weight), pre_gelu, block_quant(t, l, weight));
}
// The gradients of a weight and its bias (data NULL: frozen, or not there), from the matrix multiply's input and the
// gradient of its output, and that gradient's column sums if another op has made them.
static void linear_backward_weight(Trainer *t, Tensor dweight, Tensor dbias, Tensor dout, Tensor in, Accumulate mode,
                                   Tensor dout_sum = {}) {
  if (dweight.data || dbias.data) matmul_backward_weight(&t->ctx, dweight, dbias, dout, in, mode, dout_sum);
}

// The gradients of the adapters of a matrix, from its input and the gradient of its output; adds the gradient through
// the adapters to din, the gradient of the input, which has that through the matrix. pre_gelu: see
// matmul_backward_input.
static void lora_backward(Trainer *t, int l, int matrix, Tensor din, Tensor dout, Tensor in, Tensor pre_gelu,
                          Accumulate mode) {
  Ctx *c = &t->ctx;
  Acts *x = &t->acts;
  const int64_t width = lora_width(&t->model, matrix), R = dout.shape[0], K = in.shape[1];
  if (!width) return;
  Tensor a = block_weight(t, l, lora_a(matrix)), none = {}, low = rows2d(x->block[l].low[matrix]);
  Tensor da = grad_of(t, block_param(&t->model, l, lora_a(matrix)));
  Tensor db = grad_of(t, block_param(&t->model, l, lora_b(matrix)));
  if (db.data) {
    Tensor dspread = tensor_of(x->dspread.data, F32, dout.shape[1], width);
    matmul_backward_weight(c, dspread, none, dout, low, OVERWRITE);
    lora_collect(c, db, dspread, lora_parts_at(t, l, matrix), mode);
  }
  Tensor dlow = tensor_of(x->dlow.data, t->dtype, R, width);
  matmul_backward_input(c, dlow, dout, lora_spread_b(t, l, matrix), none);
  if (da.data) matmul_backward_weight(c, da, none, dlow, lora_input(t, in, l, matrix), mode);
  Tensor wide = tensor_of(x->wide.data, t->dtype, x->B, x->T, K);
  matmul_backward_input(c, rows2d(wide), dlow, a, pre_gelu);
  dropout(c, tensor_of(din.data, din.dtype, x->B, x->T, K), wide, lora_dropout(t, l, matrix), ADD);
  fsdp_poll(t->fsdp);
}

// Head and loss, forward, over chunks of rows: x->losses, x->correct.
static void head_forward(Trainer *t) {
  Acts *x = &t->acts;
  const int64_t R = (int64_t)x->B * x->T, step = x->logits.shape[0];
  for (int64_t at = 0; at < R; at += step) {
    const int64_t n = min64(step, R - at);
    Tensor logits = tensor_of(x->logits.data, F32, n, t->model.Vp);
    head_logits(t, logits, rows_of(rows2d(x->ln_f), at, n));
    liveness_progress();
    cross_entropy_forward(&t->ctx, tensor_of((float *)x->losses.data + at, F32, n),
                          tensor_of((int32_t *)x->correct.data + at, I32, n), logits,
                          tensor_of((int32_t *)x->targets.data + at, I32, n), t->model.V);
  }
}
// Head and loss, forward and backward, over chunks of rows: x->losses, the gradient of ln_f in the memory of ln_f, the
// head's weight gradient (the first chunk overwrites or adds as `mode` says, the others add). The full (B T, V) never
// exists.
static void head_forward_backward(Trainer *t, Tensor dhead, Accumulate mode, float scale) {
  Ctx *c = &t->ctx;
  Acts *x = &t->acts;
  Tensor ln_f = rows2d(x->ln_f), weight = root_weight(t, head_param(t)), none = {};
  const QuantMatrix quant = fsdp_quant(t->fsdp, root_param(&t->model, head_param(t)));
  const int64_t R = ln_f.shape[0], step = t->head_rows, Vp = t->model.Vp;
  for (int64_t at = 0; at < R; at += step) {
    const int64_t n = min64(step, R - at);
    Tensor logits = rows_of(x->logits, 0, n), dlogits = tensor_of(x->dlogits.data, t->dtype, n, Vp);
    head_logits(t, logits, rows_of(ln_f, at, n));
    cross_entropy_forward_backward(c, tensor_of((float *)x->losses.data + at, F32, n), dlogits, logits,
                                   tensor_of((int32_t *)x->targets.data + at, I32, n), t->model.V, scale,
                                   (float)t->model.shape.block.logit_softcap, x->weights.data
                                   ? tensor_of((float *)x->weights.data + at, F32, n) : x->weights);
    linear_backward_weight(t, dhead, none, dlogits, rows_of(ln_f, at, n), at ? ADD : mode);
    matmul_backward_input(c, rows_of(ln_f, at, n), dlogits, weight, none, quant);
    liveness_progress();
    fsdp_poll(t->fsdp);
  }
}

// dfc (R, rows of fc's weight) of block l from the gradient of its MLP's output.
static void block_mlp_back(Trainer *t, int l, Tensor dfc, Tensor dbranch, Accumulate mode) {
  BlockActs *b = &t->acts.block[l];
  Tensor fc = rows2d(b->fc), dact = rows2d(b->dact);
  const Mlp mlp = t->model.shape.block.mlp;
  linear_backward_input(t, dact, dbranch, l, PROJ_W, mlp == MLP_GELU ? fc : Tensor{});
  lora_backward(t, l, LORA_PROJ, dact, dbranch, rows2d(b->act), mlp == MLP_GELU ? fc : Tensor{}, mode);
  if (mlp_is_gated(mlp)) swiglu_backward(&t->ctx, dfc, dact, fc, mlp_activation(mlp));
  else if (mlp != MLP_GELU) activation_backward(&t->ctx, dfc, dact, fc, mlp_activation(mlp));
}
// Adds din, the gradient of the input of attention (i = 0) or the MLP (1), through its pre-norm if there is one, to
// x->dresidual, the gradient of the residual stream. dbranch becomes the gradient of the branch that was added to the
// stream there (dropout's backward); it may be absent.
static void input_norm_backward(Trainer *t, int l, int i, Tensor dbranch, Tensor din, const Tensor *dw, Dropout drop,
                                Accumulate mode) {
  Ctx *c = &t->ctx;
  Acts *x = &t->acts;
  const InputNorm n = input_norm(t, l, i);
  if (norms_are_before(t)) {
    layernorm_backward(c, x->dresidual, dbranch, dw[i ? LN_2_W : LN_1_W], dw[i ? LN_2_B : LN_1_B], din, n.residual,
                       n.weight, n.mean, n.rstd, drop, mode, dbranch.data ? x->dbranch_sum : Tensor{});
    return;
  }
  dropout(c, x->dresidual, din, Dropout{}, ADD);
  if (dbranch.data && dbranch.data != x->dresidual.data) dropout(c, dbranch, x->dresidual, drop, OVERWRITE);
}
// The gradient of the output of attention (i = 0) or the MLP (1): x->dbranch, with post-norm through that norm.
static Tensor branch_norm_backward(Trainer *t, int l, int i, const Tensor *dw, Accumulate mode) {
  const BlockActs *b = &t->acts.block[l];
  if (!norms_are_behind(t)) return rows2d(t->acts.dbranch);
  t->ctx.ops->zero(&t->ctx, b->dnormed.data, (size_t)numel(b->dnormed) * dtype_bytes(t->dtype));
  layernorm_backward(&t->ctx, b->dnormed, Tensor{}, dw[i ? MLP_NORM_W : ATTN_NORM_W], Tensor{}, t->acts.dbranch,
                     b->branch[i], branch_norm_weight(t, l, i), Tensor{}, b->branch_rstd[i], Dropout{}, mode);
  return rows2d(b->dnormed);
}
// Backward of block l. On entry x->dresidual is the gradient of the stream after the block, x->dbranch that of this
// block's MLP branch; on return, of the stream before it, and of the previous block's MLP branch. Weight gradients go
// to the stage's gradient buffer, overwritten or added as `mode` says.
static void block_backward(Trainer *t, int l, Microbatch mb, Accumulate mode) {
  Ctx *c = &t->ctx;
  Acts *x = &t->acts;
  BlockActs *b = &x->block[l];
  Fsdp *f = t->fsdp;
  Tensor dw[BLOCK_PARAMS], none = {};
  for (int k = 0; k < BLOCK_PARAMS; k++) dw[k] = grad_of(t, block_param(&t->model, l, k));
  Tensor dln_1 = b->dln_1, dqkv = b->dqkv, datt = b->datt, dln_2 = b->dln_2, dfc = rows2d(b->dfc);
  Tensor dbranch = branch_norm_backward(t, l, 1, dw, mode);

  linear_backward_weight(t, dw[PROJ_W], dw[PROJ_B], dbranch, rows2d(b->act), mode, x->dbranch_sum);
  fsdp_poll(f);
  block_mlp_back(t, l, dfc, dbranch, mode);
  fsdp_poll(f);
  linear_backward_weight(t, dw[FC_W], dw[FC_B], dfc, rows2d(b->ln_2), mode);
  fsdp_poll(f);
  linear_backward_input(t, rows2d(dln_2), dfc, l, FC_W, none);
  lora_backward(t, l, LORA_FC, dln_2, dfc, rows2d(b->ln_2), none, mode);
  fsdp_poll(f);
  input_norm_backward(t, l, 1, x->dbranch, dln_2, dw, dropout_at(t, mb, l, DROP_ATTN_PROJ), mode);
  dbranch = branch_norm_backward(t, l, 0, dw, mode);
  linear_backward_weight(t, dw[ATTN_PROJ_W], dw[ATTN_PROJ_B], dbranch, rows2d(b->att), mode, x->dbranch_sum);
  linear_backward_input(t, rows2d(datt), dbranch, l, ATTN_PROJ_W, none);
  lora_backward(t, l, LORA_OUT, datt, dbranch, rows2d(b->att), none, mode);
  fsdp_poll(f);
  attention_backward(c, dqkv, datt, b->qkv, b->att, b->lse, t->model.H, dropout_at(t, mb, l, DROP_ATTENTION),
                     block_starts(t, l), b->dqkv_sum);
  if (block_has_rope(t, l))
    rope_backward(c, dqkv, dw[Q_NORM_W], dw[K_NORM_W], b->qk, block_rope_table(t, l), block_weight(t, l, Q_NORM_W),
                  block_weight(t, l, K_NORM_W), rope_args(t), mode);
  fsdp_poll(f);
  linear_backward_weight(t, dw[ATTN_W], dw[ATTN_B], rows2d(dqkv), rows2d(b->ln_1), mode, b->dqkv_sum);
  fsdp_poll(f);
  linear_backward_input(t, rows2d(dln_1), rows2d(dqkv), l, ATTN_W, none);
  lora_backward(t, l, LORA_QKV, dln_1, rows2d(dqkv), rows2d(b->ln_1), none, mode);
  Dropout before = l ? dropout_at(t, mb, l - 1, DROP_MLP_PROJ) : Dropout{}; // block 0 follows the embeddings: no branch
  input_norm_backward(t, l, 0, l ? x->dbranch : none, dln_1, dw, before, mode);
}

// The loss of the a-th microbatch, into this rank's exchange record, and the gradients of the head and of ln_f. The
// loss is the mean over tokens. A loss of pairs takes a first pass over the head, for the log-probabilities on which
// the factor of each token's gradient depends.
static void loss_forward_backward(Trainer *t, int a, Accumulate mode) {
  Acts *x = &t->acts;
  double *to = (double *)(t->buffers.exchange + 1) + a * trainer_values(t);
  if (x->weights.data) {
    head_forward(t);
    preference(&t->ctx, to, x->weights, x->losses, x->targets, x->starts, t->model.preference);
  }
  head_forward_backward(t, root_grad(t, head_param(t)), mode, 1.0f / (float)((int64_t)x->B * x->T));
  if (!x->weights.data) loss_mean(&t->ctx, to, x->losses);
}
// Forward and backward of the a-th microbatch of this rank. On return the reductions of its gradients have started
// (with --accumulate local only those of the last microbatch), and its loss is in this rank's exchange record. Backward
// stops at the lowest block with something to train.
static void gpt_forward_backward(Trainer *t, Microbatch mb, int a) {
  Fsdp *f = t->fsdp;
  Acts *x = &t->acts;
  Ctx *c = &t->ctx;
  const int L = t->model.L, A = (int)t->opt.grad_accum, lowest = fsdp_config(f)->first_backward;
  const Accumulate mode = fsdp_grad_mode(f, 0, a);
  fsdp_phase_begin(f, "forward", a, 0);
  gpt_forward(t, mb);
  fsdp_phase_end(f);
  fsdp_phase_begin(f, "backward", a, MARK_BACKWARD);
  fsdp_grads_prepare(f, 0);
  Tensor dwte = root_grad(t, WTE), dwpe = root_grad(t, WPE), dembedded = x->dresidual;
  if (!t->model.tied && dwte.data && mode == OVERWRITE) c->ops->zero(c, dwte.data, (size_t)numel(dwte) * 4);
  loss_forward_backward(t, a, mode);
  c->ops->zero(c, x->dresidual.data, (size_t)numel(x->dresidual) * dtype_bytes(t->dtype));
  layernorm_backward(c, x->dresidual, x->dbranch, root_grad(t, LN_F_W), root_grad(t, LN_F_B), x->ln_f, x->residual_f,
                     root_weight(t, LN_F_W), x->mean_f, x->rstd_f, dropout_at(t, mb, L - 1, DROP_MLP_PROJ), mode,
                     x->dbranch_sum);
  if (!fsdp_blocks_in_root(f)) fsdp_release(f, 0);                // nobody reads it from here on
  for (int l = L - 1; l >= lowest; l--) {
    fsdp_wait(f, 1 + l, true);
    fsdp_prefetch(f, 1 + l, -1, 1 + lowest);
    block_recompute(t, l, mb);
    fsdp_grads_prepare(f, 1 + l);
    block_backward(t, l, mb, fsdp_grad_mode(f, 1 + l, a));
    fsdp_release(f, 1 + l);
    // Prefetch before the reduction: NCCL starts no operation before the one launched before it, and a reduction is
    // many operations.
    if (l > lowest) fsdp_prefetch(f, l, -1, 1 + lowest);
    fsdp_reduce(f, 1 + l, a, A);
  }
  WORD_SET(&flight.stage, 0);
  if (t->model.shape.block.norm_embedding && (dwte.data || dwpe.data)) {
    dembedded = x->dembedded;
    c->ops->zero(c, dembedded.data, (size_t)numel(dembedded) * dtype_bytes(t->dtype));
    layernorm_backward(c, dembedded, Tensor{}, Tensor{}, Tensor{}, x->dresidual, x->embedded, Tensor{}, Tensor{},
                       x->rstd_e, Dropout{}, mode);
  }
  if (dwte.data || dwpe.data)
    embedding_backward(c, dwte, dwpe, dembedded, x->tokens, dropout_at(t, mb, 0, DROP_EMBEDDING), mode, x->starts,
                       embedding_scale(t));
  zero_other_rows(t, WTE);
  if (!t->model.tied) zero_other_rows(t, LM_HEAD);
  if (fsdp_blocks_in_root(f)) fsdp_release(f, 0);
  fsdp_reduce(f, 0, a, A);
  fsdp_phase_end(f);
}

// ================================================================================================ 5 update
// Learning rate of step `step` (from 0) of `total`: linear warm-up to o->lr, then the schedule. Loshchilov & Hutter
// 2017 (cosine), Hu et al. 2024 (wsd: warm-up, stable, decay), torch.optim.lr_scheduler.StepLR (step).
static double learning_rate(const Options *o, int64_t step, int64_t total, int64_t steps_per_epoch) {
  const double warmup = o->warmup < 1 ? floor(o->warmup * (double)total) : o->warmup;
  if ((double)step < warmup) return o->lr * (double)(step + 1) / warmup;
  const double low = o->lr * o->min_lr_ratio;
  const double span = fmax(1.0, (double)total - warmup), done = fmin(1.0, ((double)step - warmup) / span);
  if (o->schedule == OPT_schedule_constant) return o->lr;
  if (o->schedule == OPT_schedule_linear) return o->lr + (low - o->lr) * done;
  if (o->schedule == OPT_schedule_step) return o->lr * pow(o->gamma, (double)(step / steps_per_epoch / o->step_epochs));
  if (o->schedule == OPT_schedule_wsd) {
    const double falls = o->decay_fraction * (double)total, left = (double)(total - step);
    return left >= falls ? o->lr : low + (o->lr - low) * left / falls;
  }
  return low + (o->lr - low) * 0.5 * (1 + cos(M_PI * done));
}

static OptimizerArgs optimizer_args(const Options *o) {
  OptimizerArgs a = {};
  a.kind = o->optimizer;
  a.adamw = AdamwArgs{(float)o->beta1, (float)o->beta2, (float)o->eps, (float)o->weight_decay, 1,
                      (uint64_t)o->seed};
  a.sgd = SgdArgs{(float)o->momentum, (float)o->weight_decay};
  a.muon = MuonArgs{(float)o->muon_momentum, (float)o->weight_decay, o->muon_nesterov == OPT_muon_nesterov_on,
                    o->muon_adjust == OPT_muon_adjust_match_rms_adamw};
  return a;
}

// After all microbatches: norm, losses and stop flags of all ranks, the decision, the update. Everything is enqueued;
// the results are in t->host once the stream is done (the host waits for an offloaded optimizer). All ranks call it.
static void trainer_update(Trainer *t) {
  Fsdp *f = t->fsdp;
  Ctx *c = &t->ctx;
  StepBuffers *b = &t->buffers;
  const int A = (int)t->opt.grad_accum, M = A * fsdp_world(f);
  const bool dynamic_scale = t->dtype == F16 && t->opt.loss_scale == 0;
  fsdp_phase_begin(f, "update", MICROBATCH_NONE, MARK_UPDATE);
  fsdp_norm_accumulate(f, b->exchange->limbs);
  c->ops->copy(c, &b->exchange->stop, &b->state->in.stop, 2 * sizeof b->state->in.stop);      // stop and untrained
  fsdp_small_all_gather(f, b->exchange, b->exchange_all, trainer_exchange_bytes(t));
  step_decide(c, b->state, b->losses, b->exchange_all,
              StepRule{fsdp_world(f), A, (float)t->opt.beta1, (float)t->opt.beta2, t->opt.clip, dynamic_scale,
                       M * t->opt.batch_size * t->model.T, trainer_values(t)});
  c->ops->copy(c, t->host.state, b->state, sizeof(StepState));
  if (fsdp_config(f)->offload != OFFLOAD_NONE) fsdp_sync(f);            // the host's optimizer reads the decision
  fsdp_update(f, optimizer_args(&t->opt), t->host.state);
  c->ops->copy(c, t->host.losses, b->losses, sizeof(double) * (size_t)M);
  fsdp_step_end(f);
  fsdp_phase_end(f);
}

// Copies batch `a` of t->host, (B,T), to the device.
static void trainer_load_batch(Trainer *t, int a, int B, int T) {
  const size_t n = (size_t)B * (size_t)T;
  t->ctx.ops->copy(&t->ctx, t->acts.tokens.data, t->host.inputs + (size_t)a * n, sizeof(int32_t) * n);
  t->ctx.ops->copy(&t->ctx, t->acts.targets.data, t->host.targets + (size_t)a * n, sizeof(int32_t) * n);
  if (t->acts.starts.data)
    t->ctx.ops->copy(&t->ctx, t->acts.starts.data, t->host.starts + (size_t)a * n, sizeof(int32_t) * n);
  if (t->acts.weights.data)
    t->ctx.ops->copy(&t->ctx, t->acts.weights.data, t->host.weights + (size_t)a * n, sizeof(float) * n);
}

// The first part of a step: copies the input of t->host to the device and clears the exchange record.
static void trainer_step_begin(Trainer *t) {
  fsdp_step_begin(t->fsdp, true);
  t->ctx.ops->copy(&t->ctx, &t->buffers.state->in, t->host.input, sizeof(StepInput));
  t->ctx.ops->zero(&t->ctx, t->buffers.exchange, trainer_exchange_bytes(t));
}

// The a-th microbatch of this rank.
static void trainer_microbatch(Trainer *t, int a) {
  const int B = (int)t->opt.batch_size;
  trainer_load_batch(t, a, B, (int)t->model.T);
  gpt_forward_backward(t, Microbatch{(int64_t)(a * fsdp_world(t->fsdp) + fsdp_rank(t->fsdp)) * B, PASS_TRAIN}, a);
}
// The whole step, from t->host to t->host, without waiting for the device. This is what a graph captures.
static void trainer_enqueue_step(Trainer *t) {
  trainer_step_begin(t);
  for (int a = 0; a < (int)t->opt.grad_accum; a++) trainer_microbatch(t, a);
  trainer_update(t);
}

static bool trainer_captures(const Trainer *t) {
  return fsdp_device_sends(t->fsdp) && fsdp_config(t->fsdp)->offload == OFFLOAD_NONE && t->opt.graph != OPT_graph_off;
}
// Runs a step on the device, from the second step on as a graph. The first step creates what must not be created during
// a capture: matmul plans, NCCL's connections, kernel modules.
static void trainer_run_step(Trainer *t) {
  Ctx *c = &t->ctx;
  const bool first = !t->has_run;
  t->has_run = true;
  if (first || !trainer_captures(t)) { trainer_enqueue_step(t); return; }
  void **graph = trace_graph(&t->graph);
  if (!*graph) {
    const Traffic before = fsdp_traffic(t->fsdp);
    trace_capture(true);
    c->ops->graph_begin(c);
    trainer_enqueue_step(t);
    c->ops->graph_end(c, graph);
    trace_capture(false);
    t->graph_traffic = traffic_add(fsdp_traffic(t->fsdp), before, -1);
    fsdp_set_traffic(t->fsdp, before);
  }
  liveness_phase("a replayed step");
  c->ops->graph_launch(c, *graph);
  trace_replayed();
  fsdp_set_traffic(t->fsdp, traffic_add(fsdp_traffic(t->fsdp), t->graph_traffic, 1));
}

// The number of pairs in the first `rows` sequences of t->host: half the number of documents that have targets.
static int64_t trainer_pairs(const Trainer *t, int64_t rows) {
  const int64_t T = t->model.T;
  int64_t documents = 0;
  for (int64_t b = 0; b < rows; b++)
    for (int64_t i = b * T, last = -1; i < (b + 1) * T; i++) {
      if (t->host.targets[i] < 0 || t->host.starts[i] == last) continue;
      documents++;
      last = t->host.starts[i];
    }
  return documents / 2;
}
// One step: the microbatches a N + rank, a < A, of the step's M = A N on this rank, then the update. stop: what a
// signal has asked this rank for (enum Stop). All ranks call it.
static StepResult train_step(Trainer *t, int stop) {
  const int A = (int)t->opt.grad_accum, N = fsdp_world(t->fsdp), B = (int)t->opt.batch_size, T = (int)t->model.T;
  const int64_t epoch = t->run.step / t->run.steps_per_epoch, in_epoch = t->run.step % t->run.steps_per_epoch;
  liveness_step(t->run.step + 1);
  if (t->sampler.epoch != epoch) sampler_set_epoch(&t->sampler, epoch);
  trainer_carve(t, B, T, PASS_TRAIN);
  for (int a = 0; a < A; a++)
    microbatch_fill(&t->sampler, in_epoch, a * N + fsdp_rank(t->fsdp), t->host.inputs + (int64_t)a * B * T,
                    t->host.targets + (int64_t)a * B * T, t->host.starts + (int64_t)a * B * T,
                    t->host.weights ? t->host.weights + (int64_t)a * B * T : NULL);
  for (int a = 0; a < A; a++) microbatch_read_ahead(&t->sampler, in_epoch + 1, a * N + fsdp_rank(t->fsdp));
  const double lr = learning_rate(&t->opt, t->run.step, t->run.steps_total, t->run.steps_per_epoch);
  t->before = *t->host.state;
  for (int i = 0; i < MARKS && fsdp_device_sends(t->fsdp); i++) WORD_SET(&t->host.marks[i], 0u);   // the last step's
  int64_t untrained = 0;
  for (int64_t i = 0; i < (int64_t)A * B * T; i++) untrained += t->host.targets[i] < 0;
  if (t->host.weights) untrained = (int64_t)A * B * T - trainer_pairs(t, A * B);         // the mean is over pairs
  *t->host.input = StepInput{(uint32_t)t->run.step, (float)lr, stop, untrained};
  fsdp_host_touches(t->fsdp, true, t->host.input, sizeof *t->host.input);
  const Traffic before = fsdp_traffic(t->fsdp);
  t->ctx.ops->range_begin(&t->ctx, "step");
  trainer_run_step(t);
  fsdp_sync(t->fsdp);
  t->ctx.ops->range_end(&t->ctx);
  t->run.step++;
  t->run.step_traffic = traffic_add(fsdp_traffic(t->fsdp), before, -1);
  const StepState *s = t->host.state;
  fsdp_host_touches(t->fsdp, false, s, sizeof *s);
  t->run.loss_scale = s->loss_scale;
  const int64_t empty = ((int64_t)A * N * B - t->opt.global_batch) * T;          // targets of --fill_step's sequences
  return StepResult{s->loss, s->grad_norm, lr, s->skip == SKIP_NOT_FINITE, (Stop)s->stop, s->untrained - empty,
                    {s->rewards[0], s->rewards[1], s->rewards[2]}};
}

// ================================================================================================ 6 eval, sample
// The highest stop request of any rank so far. All ranks call it.
static Stop agree_on_stop(MPI_Comm comm) {
  int asked = stop_asked;
  MPI_Allreduce(MPI_IN_PLACE, &asked, 1, MPI_INT, MPI_MAX, comm);
  return (Stop)asked;
}
// Enqueues the evaluation of E windows of T tokens: inputs from t->host, losses and correctness of tokens to t->host.
static void trainer_enqueue_eval(Trainer *t, int E, int T) {
  Acts *x = &t->acts;
  const int64_t R = (int64_t)E * T;
  trainer_load_batch(t, 0, E, T);
  gpt_forward(t, Microbatch{0, PASS_EVAL});
  head_forward(t);
  fsdp_release(t->fsdp, 0);
  t->ctx.ops->copy(&t->ctx, t->host.row_losses, x->losses.data, sizeof(float) * (size_t)R);
  t->ctx.ops->copy(&t->ctx, t->host.row_correct, x->correct.data, sizeof(int32_t) * (size_t)R);
}
// Mean loss and next-token accuracy over every token of a split, or loss and reward accuracy over its pairs. Batches of
// E windows of T tokens go to the ranks in turn; per-window sums are added in order of windows, so the result depends
// on neither N nor E (except with --fp8 matmul, which scales a batch's activations together). A signal to any rank ends
// the evaluation before the next batch. All ranks call it.
static EvalResult trainer_eval(Trainer *t, const Split *split) {
  const double start = now_ms();
  const int N = fsdp_world(t->fsdp), E = (int)t->opt.test_batch_size, T = (int)t->model.T;
  const Packing *packed = NULL;
  for (const Packing &p : t->run.packing) if (p.split == split) packed = &p;
  const int64_t windows = packed ? packed->rows : eval_windows_numel(split, T);
  const int64_t batches = (windows + E - 1) / E, rounds = (batches + N - 1) / N;
  double *mine = (double *)calloc((size_t)(rounds * E * 3), sizeof(double));   // loss, correct, tokens of each window
  double *all = (double *)calloc((size_t)(rounds * E * 3 * N), sizeof(double));
  liveness_phase("evaluation");
  trainer_carve(t, E, T, PASS_EVAL);
  fsdp_step_begin(t->fsdp, false);
  Stop stop = STOP_NOT;
  for (int64_t round = 0; round < rounds && !(stop = agree_on_stop(fsdp_comm(t->fsdp))); round++) {
    const int64_t batch = round * N + fsdp_rank(t->fsdp);
    for (int e = 0; e < E; e++)
      if (packed)
        packing_fill(packed, batch * E + e, t->host.inputs + e * T, t->host.targets + e * T, t->host.starts + e * T,
                     t->host.weights ? t->host.weights + e * T : NULL);
      else eval_window_fill(split, T, batch * E + e, t->host.inputs + e * T, t->host.targets + e * T);
    trainer_enqueue_eval(t, E, T);
    fsdp_sync(t->fsdp);
    for (int e = 0; e < E && t->host.weights; e++) {
      double sum[PREFERENCE_SUMS] = {}, *w = mine + (round * E + e) * 3;
      w[2] = (double)preference_row(t->model.preference, T, t->host.row_losses + e * T, t->host.targets + e * T,
                                    t->host.starts + e * T, t->host.weights + e * T, sum);
      w[0] = sum[0], w[1] = sum[3];
    }
    for (int64_t i = 0; i < (int64_t)E * T && !t->host.weights; i++) {
      double *w = mine + (round * E + i / T) * 3;
      w[0] += t->host.row_losses[i];
      w[1] += t->host.row_correct[i];
      w[2] += t->host.targets[i] >= 0;
    }
  }
  const int count = fsdp_mpi_count(rounds * E * 3);
  MPI_Allgather(mine, count, MPI_DOUBLE, all, count, MPI_DOUBLE, fsdp_comm(t->fsdp));
  double loss = 0, correct = 0, tokens = 0;
  for (int64_t w = 0; w < windows; w++) {
    const int64_t batch = w / E;
    const double *s = all + ((batch % N) * rounds * E + (batch / N) * E + w % E) * 3;
    loss += s[0];
    correct += s[1];
    tokens += s[2];
  }
  free(mine);
  free(all);
  return EvalResult{loss / tokens, correct / tokens, (int64_t)tokens, now_ms() - start, stop};
}
// Ends all ranks with one line if `what`, the results that a run is for, are not finite. The weights are finite, as
// start_check_finite has checked. All ranks call it; `finite` is the same on all ranks.
static void expect_finite(const Trainer *t, bool finite, const char *what) {
  Error error = {};
  if (finite) return;
  fail(&error, "%s are not finite, though the weights are: activations overflow in %s%s", what, dtype_name(t->dtype),
       t->dtype == F16 ? ": --buffer_dtype bf16 or fp32" : "");
  agree_no_error(fsdp_comm(t->fsdp), error.text, EXIT_NOT_FINITE);
}
#include "trainer/generate.h"
#include "trainer/interactive.h"
#include "trainer/evaluate.h"
#include "trainer/preference.h"

// ================================================================================================ 7 loop
// The most steps in a row without an update. A dynamic loss scale settles within 24 halvings; more overflows in a row
// have another cause, and so have as many steps that --on_nan skip leaves out.
enum { MAX_SKIPPED_IN_A_ROW = 50 };

// Whether an action is due after this step that is done every `every` steps (0: every epoch; -1: never) and at the end.
static bool step_is_due(const Trainer *t, int64_t every) {
  if (every < 0) return false;
  return t->run.step == t->run.steps_total || t->run.step % (every ? every : t->run.steps_per_epoch) == 0;
}
// Whether a split has targets to evaluate.
static bool trainer_evaluates(const Trainer *t, int split) {
  const Packing *p = &t->run.packing[split];
  return t->run.corpus->split[split].tokens_numel > 0 && (!p->split || p->trained);
}
static EvalResult evaluate(Trainer *t, Run *run, int split) {
  const int64_t began = now_ns();
  const EvalResult e = trainer_eval(t, &t->run.corpus->split[split]);
  run_evaluation(run, split, &e, began);
  return e;
}
// Evaluates the state after the last step if that is due and not done. Returns what a signal has asked for: then the
// evaluation was ended, is still due, and a resumed run starts with it. All ranks call it.
static Stop trainer_evaluate(Trainer *t, Run *run) {
  if (!step_is_due(t, t->opt.eval_every) || run_is_validated(run)) return STOP_NOT;
  const EvalResult e = evaluate(t, run, SPLIT_VALID);
  if (!e.stop) run_validation(run, e.loss);
  return e.stop;
}
static void trainer_again_begin(void *trainer) { trainer_step_begin((Trainer *)trainer); }
static void trainer_again(void *trainer, int a) { trainer_microbatch((Trainer *)trainer, a); }
// The last step, to be run again.
static NotFiniteStep trainer_last_step(Trainer *t) {
  return NotFiniteStep{&t->run, t->before, t->host.losses, t->host.inputs, t->host.targets,
                       (float *)t->buffers.losses,               // only step_decide writes it, which does not run
                       trainer_again_begin, trainer_again, t};
}
// The training loop. Returns the exit code if the run ends here, -1 if it trained to its end. All ranks call it.
static int trainer_loop(Trainer *t, Run *run) {
  const Options *o = &t->opt;
  int skipped_in_a_row = 0;
  // What was due when the run was saved: a signal ended it, or it was killed while it evaluated.
  Stop stop = t->run.step ? trainer_evaluate(t, run) : STOP_NOT;
  while (t->run.step < t->run.steps_total && !stop) {
    run_step_begin(run);
    const StepResult r = train_step(t, stop_asked);
    run_step(run, &r);
    skipped_in_a_row = r.skipped ? skipped_in_a_row + 1 : 0;
    const bool overflow = t->dtype == F16 && isfinite(r.loss);   // the loss scaler handles it, up to a limit
    const bool goes_on = o->on_nan == OPT_on_nan_skip && skipped_in_a_row < MAX_SKIPPED_IN_A_ROW;
    if ((r.skipped && !overflow) || skipped_in_a_row == MAX_SKIPPED_IN_A_ROW) {
      const NotFiniteStep step = trainer_last_step(t);
      const int code = run_not_finite(run, &step, &r, goes_on);
      if (code >= 0) return code;
    }
    stop = r.stop;
    if (stop) break;
    if (step_is_due(t, o->save_every)) run_save(run);            // before evaluating: a kill then loses no step
    stop = trainer_evaluate(t, run);
  }
  run_steps_end(run);
  if (!stop) stop = agree_on_stop(fsdp_comm(t->fsdp));            // a signal during the last evaluation or save
  return stop ? run_stop(run, stop) : -1;
}

// The whole run: training, files, evaluation, a sample. Returns the exit code. All ranks call it.
static int trainer_run(Trainer *t, Run *run, FILE *answers) {
  const Options *o = &t->opt;
  if (run_trains(o)) {
    const int code = trainer_loop(t, run);
    if (code >= 0) return code;
  }
  const bool saved = run_write(run);             // from here on the run may be interrupted anywhere
  bool written = true;
  const EvalResult e = o->eval_only ? evaluate(t, run, SPLIT_VALID) : EvalResult{};
  expect_finite(t, e.stop || isfinite(e.loss), "losses of --eval_only");
  Stop stop = e.stop;
  const bool tests = !o->sample_only && (o->eval_every >= 0 || o->eval_only);
  if (!stop && tests && trainer_evaluates(t, SPLIT_TEST)) stop = evaluate(t, run, SPLIT_TEST).stop;
  if (!stop && o->eval[0]) stop = trainer_eval_files(t);
  if (o->interactive) written = trainer_talk(t, answers);
  const bool sampled = sample_file(o) && !stop && (o->prompts[0] ? print_samples(t, &stop) : print_sample(t));
  if (stop) return run_stop(run, stop);
  written = written && (sampled || !sample_file(o));
  run_end(run, saved, sampled ? sample_file(o) : NULL);
  return saved && written ? 0 : EXIT_MISSING;
}

// ================================================================================================ 8 commands
#include "trainer/open.h"

static int train(Call *call) {
  static Trainer t;
  RunStart s;
  Options *o = &call->o;
  FILE *const answers = call->first ? talk_answers(o) : NULL;    // before anything is printed
  Run *run = run_begin(call, &s);
  if (!s.rank) generate_check(o, s.corpus, s.chat, s.chat_why, &call->error);
  run_check(run, &call->error);
  if (o->show_chats && !s.rank) report_chats(s.corpus, o->show_chats, answers);
  if (o->show_chats) return run_close(run, 0);
  liveness_phase("start-up");
  trainer_fit_batch(o, s.asked, s.corpus, s.ranks);
  if (o->batch_auto) {
    trainer_choose_batch(o, s.corpus, s.device, s.threads, host_available_bytes() / 10 * 9, MPI_COMM_WORLD);
    s.asked->batch_size = o->batch_size, s.asked->given[OPT_batch_size] = true;
  }
  if (o->fill_step) s.asked->fill_step = s.asked->given[OPT_fill_step] = true;
  restarts_batch(o->global_batch, o->batch_size);
  trainer_open(&t, o, s.corpus, MPI_COMM_WORLD, s.device, s.threads);
  run_trace_check(run, &t.run);
  if (run_trains(o)) trainer_choose_algorithms(&t, run_algorithms(run));
  run_ready(run);
  const bool stopped = trainer_reference(&t, run) != STOP_NOT;          // the reference's log probabilities (DPO)
  const int code = stopped ? run_stop(run, STOP_END) : trainer_run(&t, run, answers);
  line_end();
  liveness_phase("end");
  trainer_close(&t);
  return run_close(run, code);
}

// What must be there before a command runs.
enum CommandNeeds { NEEDS_NOTHING, NEEDS_OPTIONS, NEEDS_MPI };
// run: returns the exit code; -1: this was not asked for.
struct Command { const char *name; CommandNeeds needs; int (*run)(Call *call); };
// What the program can do. It does the first row of this table that the command line asks for.
static const Command commands[] = {
    {"rdzv_rank, rdzv_hand", NEEDS_NOTHING, launch_hidden},      // mpirun starts these for --rdzv, not a user
    {"--help, --version", NEEDS_NOTHING, options_answer},
    {"--report RUN1,RUN2,...", NEEDS_OPTIONS, report_compare},
    {"--encode", NEEDS_OPTIONS, encode_main},
    {"--plan", NEEDS_OPTIONS, plan_main},
    {"--flight", NEEDS_OPTIONS, flight_answer},
    {"--rdzv", NEEDS_OPTIONS, launch_rendezvous},
    {"--preflight", NEEDS_MPI, preflight_main},
    {"train, evaluate, sample", NEEDS_MPI, train}};

// The whole program. main calls it; a test that includes this file has a main of its own.
int program_main(int argc, char **argv) {
  static Call call;
  packed_open();
  const char *rank = getenv("OMPI_COMM_WORLD_RANK");
  call.trainer = &trainer_table;
  call.argc = argc, call.argv = argv;
  call.launched = under_mpirun = rank != NULL;
  call.first = !rank || !strcmp(rank, "0");
  terminal_open();
  int code = -1, ready = NEEDS_NOTHING;
  bool prints = true;                            // the command's purpose is what it prints
  for (const Command *c = commands; code < 0; code = c++->run(&call)) {
    for (; ready < c->needs; ready++) (ready == NEEDS_NOTHING ? call_parse : call_join)(&call);
    prints = c->run != train || !run_trains(&call.o);
  }
  if (code || !prints || !terminal_lost()) return code;
  say_error("train_gpt_fsdp: what was printed could not be written in whole: is the disk full?\n");
  return EXIT_MISSING;
}

#ifndef TRAINER_AS_LIBRARY
int main(int argc, char **argv) { return program_main(argc, argv); }
#endif
