// model_shape.h: what a model is: its sizes, and its block as named choices. Options, files of other programs and the
// trainer describe models by it.
#pragma once
#include "kernels/ops.h"
#include <math.h>

// The order of names is that of the options' choices (run/option_table.h).
enum Norm { NORM_LAYERNORM, NORM_RMSNORM };
enum Position { POSITION_LEARNED, POSITION_ROPE };
enum Mlp { MLP_GELU, MLP_RELU2, MLP_SWIGLU };
enum Biases { BIAS_ALL, BIAS_NONE, BIAS_QKV, BIAS_QKVO };        // all: of LayerNorms and the MLP too

// Llama 3's change of rope's frequencies: long waves turn `factor` times slower, short ones as before, those between
// `low` and `high` waves in `original` positions in between. factor 0: none.
struct RopeScaling { double factor, low, high; int64_t original; };

struct Block {
  Norm norm;
  bool norm_weightless, norm_embedding;          // norms without a weight; an RMSNorm without one behind the embedding
  double norm_eps;
  Position position;
  double rope_theta;
  RopeScaling rope_scaling;
  int64_t rope_skip;                             // every rope_skip-th block turns nothing; 0: all turn
  QkNorm qk_norm;
  Mlp mlp;
  Biases bias;
  double logit_softcap;                          // 0: none
};
// Low-rank adapters (Hu et al. 2021) of a block's frozen matrices, which add B A alpha / rank to them; by_root: alpha /
// sqrt(rank), rsLoRA (Kalajdzievski 2023). rank 0: none. parts: of each matrix, a bit for each of the matrices that it
// is in a file (lora.h). Rows [row_from, row_end) of embedding and head train beside them; row_end 0: none.
enum LoraMatrix { LORA_QKV, LORA_OUT, LORA_FC, LORA_PROJ, LORA_MATRICES };
struct Lora {
  int64_t rank;
  double alpha, dropout;
  unsigned parts[LORA_MATRICES];
  bool by_root;
  int64_t row_from, row_end;
};
static inline double lora_scale(const Lora *l) {
  return l->alpha / (l->by_root ? sqrt((double)l->rank) : (double)l->rank);
}
// dropout: 0 if a file does not record it. n_positions: learned ones, or those that a file says the model is good for.
struct ModelShape {
  int64_t n_layer, n_head, n_embd, n_positions, vocab_size;
  bool tied;
  double dropout;
  int64_t n_kv_head, head_size, mlp_width;
  Block block;
  Lora lora;
};
// GPT-2's block.
static inline ModelShape model_shape_gpt2(int64_t n_layer, int64_t n_head, int64_t n_embd, int64_t n_positions,
                                          int64_t vocab_size, bool tied, double dropout) {
  ModelShape s = {};
  s.n_layer = n_layer, s.n_head = s.n_kv_head = n_head, s.n_embd = n_embd;
  s.n_positions = n_positions, s.vocab_size = vocab_size;
  s.tied = tied, s.dropout = dropout;
  s.head_size = n_head ? n_embd / n_head : 0;
  s.mlp_width = 4 * n_embd;
  s.block.norm_eps = 1e-5;
  return s;
}

// Columns of q, k and v together, and rows of the MLP's first matrix: gate and up are one.
static inline int64_t model_qkv_rows(const ModelShape *s) { return (s->n_head + 2 * s->n_kv_head) * s->head_size; }
static inline int64_t model_fc_rows(const ModelShape *s) {
  return s->block.mlp == MLP_SWIGLU ? 2 * s->mlp_width : s->mlp_width;
}
// Whether block l turns q and k.
static inline bool block_turns(const Block *b, int l) {
  return b->position == POSITION_ROPE && !(b->rope_skip && (l + 1) % b->rope_skip == 0);
}

// "none", or "llama3:FACTOR,LOW,HIGH,POSITIONS". False: it is neither.
static inline bool rope_scaling_parse(const char *text, RopeScaling *s) {
  int end = 0;
  *s = RopeScaling{};
  if (!strcmp(text, "none")) return true;
  long long original = 0;
  const int n = sscanf(text, "llama3:%lf,%lf,%lf,%lld%n", &s->factor, &s->low, &s->high, &original, &end);
  s->original = original;
  return n == 4 && !text[end] && isfinite(s->factor) && isfinite(s->high) && s->factor > 0 && s->low > 0 &&
         s->high > s->low && original > 0 && original <= 1 << 24;
}
static inline void rope_scaling_print(char *to, size_t bytes, const RopeScaling *s) {
  if (s->factor > 0)
    snprintf(to, bytes, "llama3:%.10g,%.10g,%.10g,%lld", s->factor, s->low, s->high, (long long)s->original);
  else snprintf(to, bytes, "none");
}

// Fills a table for rope.cuh of `positions` rows: cosines and sines of position times frequency, in fp32 as
// transformers computes them. Frequency i: theta^(-2i/hs), changed as RopeScaling says (Llama 3.1, "rope_type llama3").
static inline void rope_table_fill(float *table, const Block *b, int64_t positions, int64_t hs) {
  for (int64_t i = 0; i < hs / 2; i++) {
    const RopeScaling *s = &b->rope_scaling;
    float frequency = 1.0f / powf((float)b->rope_theta, (float)(2 * i) / (float)hs);
    const double wave = 2 * M_PI / (double)frequency;
    if (s->factor > 0 && wave > (double)s->original / s->low) {
      frequency = (float)((double)frequency / s->factor);
    } else if (s->factor > 0 && wave >= (double)s->original / s->high) {
      const double smooth = ((double)s->original / wave - s->low) / (s->high - s->low);
      frequency = (float)((1 - smooth) * (double)frequency / s->factor + smooth * (double)frequency);
    }
    for (int64_t p = 0; p < positions; p++) {
      const float angle = (float)p * frequency;
      table[p * hs + i] = (float)cos((double)angle);
      table[p * hs + hs / 2 + i] = (float)sin((double)angle);
    }
  }
}
