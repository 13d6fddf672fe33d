// shape.h: public header of data/shape/: what a model is: its sizes, its block as named choices, its adapters
// (ModelShape), and by a program's table the list of its parameters.
#pragma once
#include "fsdp.h"
#include "kernels/activation.h"

// ---- model_shape.h --------------------------------------------------------------------------------------------------
// The order of names is that of the options' choices (run/options/option_table.h).
enum Norm : int { NORM_LAYERNORM, NORM_RMSNORM };
enum NormPlace : int { NORM_BEFORE, NORM_BEHIND, NORM_BOTH };          // of attention and the MLP
enum Position : int { POSITION_LEARNED, POSITION_ROPE };
enum Biases : int { BIAS_ALL, BIAS_NONE, BIAS_QKV, BIAS_QKVO };        // all: of LayerNorms and the MLP too
// Changes of rope's frequencies. linear: all turn `factor` times slower. llama3 and yarn (Peng et al. 2023): long waves
// do, short ones turn as before, those between `low` and `high` waves in `original` positions in between; yarn's share
// goes by dimensions, from a whole one to a whole one unless it is yarn_exact, and cosines and sines are multiplied by
// `attention`. growth: q is multiplied by 1 + growth * ln(1 + floor(position / original)), which is 1 before
// `original`, where sequences must end.
enum RopeKind { ROPE_UNSCALED, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN, ROPE_YARN_EXACT, ROPE_KINDS };
struct RopeScaling { RopeKind kind; double factor, low, high; int64_t original; double attention, growth; };
struct Architecture {
  Norm norm;
  NormPlace norm_place;
  bool norm_weightless, norm_embedding;          // norms without a weight; an RMSNorm without one after the embedding
  double norm_eps;
  Position position;
  double rope_theta;
  RopeScaling rope_scaling;
  int64_t rope_skip;                             // every rope_skip-th block is a NoPE layer; 0: none
  int64_t window, window_skip;                   // tokens that one sees, itself among them, in all but every
                                                 // window_skip-th block; 0: all; none but sees so many
  double attention_scale;                        // scores are divided by its root; 0: a head's columns; needs rope
  bool embedding_scaled;                         // the embedding is multiplied by the root of its width
  double window_theta;                           // rope in blocks with a window: its base, unscaled; 0: as in others
  QkNorm qk_norm;
  Mlp mlp;
  Biases bias;
  double logit_softcap;                          // 0: none
};
// Low-rank adapters (Hu et al. 2021) of a block's frozen matrices, which add B A alpha / rank to them; by_root: alpha /
// sqrt(rank), rsLoRA (Kalajdzievski 2023). rank 0: none. parts: of each matrix, a bit for each of the matrices that it
// is in a file; of: how many these are. Rows [row_from, row_end) of embedding and head train beside them; row_end 0:
// none.
enum LoraMatrix { LORA_QKV, LORA_OUT, LORA_FC, LORA_PROJ, LORA_MATRICES };
struct Lora {
  int64_t rank;
  double alpha, dropout;
  unsigned parts[LORA_MATRICES];
  int of[LORA_MATRICES];
  bool by_root;
  int64_t row_from, row_end;
};
// dropout: 0 if a file does not record it. n_positions: learned ones, or those that a file says the model is good for.
struct ModelShape {
  int64_t n_layer, n_head, n_embd, n_positions, vocab_size;
  bool tied;
  double dropout;
  int64_t n_kv_head, head_size, mlp_width;
  Architecture block;
  Lora lora;
};
// GPT-2's block.
ModelShape model_shape_gpt2(int64_t n_layer, int64_t n_head, int64_t n_embd, int64_t n_positions, int64_t vocab_size,
                            bool tied, double dropout);
// Columns of q, k and v together, and rows of the MLP's first matrix: gate and up are one.
static inline int64_t model_qkv_rows(const ModelShape *s) { return (s->n_head + 2 * s->n_kv_head) * s->head_size; }
int64_t model_fc_rows(const ModelShape *s);
// Whether block l turns q and k.
bool layer_rotates(const Architecture *b, int l);
// Tokens that one sees in block l; 0: all before it.
int64_t layer_window(const Architecture *b, int l);
// "none", or a kind and its numbers, as in "llama3:FACTOR,LOW,HIGH,POSITIONS"; yarn has two more, attention (left out:
// 0.1 ln factor + 1) and growth. False: it is none of these.
bool rope_scaling_parse(const char *text, RopeScaling *s);
void rope_scaling_print(char *to, size_t bytes, const RopeScaling *s);
// How a kind is written there.
const char *rope_kind_name(RopeKind kind);
// Fills a table for rope.cuh of `positions` rows: cosines and sines of position times frequency, in fp32 as
// transformers computes them. Frequency i: theta^(-2i/hs), changed as RopeScaling says. window: for blocks with one,
// where window_theta is their base.
void rope_table_fill(float *table, const Architecture *b, int64_t positions, int64_t hs, bool window = false);

// ---- params.h -------------------------------------------------------------------------------------------------------
// A program's table of its model's parameters. C: the width; Q, QKV: heads' columns, and with k and v; FC, F: of the
// MLP; V, P: vocabulary, positions. INPUT, BRANCH: of norms before attention and the MLP, and after them.
enum ParamSize { SIZE_NONE, SIZE_C, SIZE_Q, SIZE_QKV, SIZE_Q_NORM, SIZE_K_NORM, SIZE_FC, SIZE_F, SIZE_V, SIZE_P,
                 PARAM_SIZES };
enum ParamWhen { ALWAYS, NORM_HAS_WEIGHT, NORM_HAS_BIAS, INPUT_HAS_NORM, BRANCH_HAS_NORM, POSITIONS_LEARNED,
                 HEAD_APART, QKV_HAS_BIAS, OUT_HAS_BIAS, MLP_HAS_BIAS, QK_NORM_HAS_WEIGHT };
// %d in a name: the number of the block. residual: its initial values are smaller with more blocks.
struct ParamSpec { const char *name; ParamSize rows, cols; Init init; bool residual, decay; ParamWhen when; };
// root: outside the blocks. lora: of the matrices that can have adapters, which of `block` they are.
struct ParamTable { const ParamSpec *root, *block; int roots, blocks, lora[LORA_MATRICES]; };
// The place of each in its stage, and how many a stage has; -1: this model has none. After those of a block come the
// factors A and B of adapters, matrix by matrix.
enum { ROOT_PARAMS_MAX = 8, BLOCK_PARAMS_MAX = 48, VOCAB_ALIGN = 64 };         // rows in memory of a vocabulary
struct ParamPlaces { int root[ROOT_PARAMS_MAX], block[BLOCK_PARAMS_MAX], roots, blocks; };
ParamPlaces param_places(const ParamTable *t, const ModelShape *s);
// All parameters in order of stages: outside the blocks, then block by block. Returns a malloc'ed array.
Param *params_of_shape(const ParamTable *t, const ModelShape *s, int *count);
// Whether the matrices of a parameter may keep their bytes: all of blocks and outside of them, and of no adapter.
static inline bool param_is_of_base(const Param *p) { return p->ndim == 2 && !p->adapter; }
// What the op needs to know of a matrix's adapters: base, that matrix.
LoraParts lora_parts_of(const ModelShape *s, int matrix, const Param *base);
