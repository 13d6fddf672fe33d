// model_shape.h: what a model is: its sizes, and its block as named choices. Options, files of other programs and the
// trainer describe models by it.
#pragma once
#include "checkpoint.h"
#include "kernels/ops.h"

static inline double lora_scale(const Lora *l) {
  return l->alpha / (l->by_root ? sqrt((double)l->rank) : (double)l->rank);
}
ModelShape model_shape_gpt2(int64_t n_layer, int64_t n_head, int64_t n_embd, int64_t n_positions, int64_t vocab_size,
                            bool tied, double dropout) {
  ModelShape s = {};
  s.n_layer = n_layer, s.n_head = s.n_kv_head = n_head, s.n_embd = n_embd;
  s.n_positions = n_positions, s.vocab_size = vocab_size;
  s.tied = tied, s.dropout = dropout;
  s.head_size = n_head ? n_embd / n_head : 0;
  s.mlp_width = 4 * n_embd;
  s.block.norm_eps = 1e-5;
  return s;
}

int64_t model_fc_rows(const ModelShape *s) {
  return s->block.mlp == MLP_SWIGLU ? 2 * s->mlp_width : s->mlp_width;
}
bool block_turns(const Block *b, int l) {
  return b->position == POSITION_ROPE && !(b->rope_skip && (l + 1) % b->rope_skip == 0);
}

bool rope_scaling_parse(const char *text, RopeScaling *s) {
  int end = 0;
  *s = RopeScaling{};
  if (!strcmp(text, "none")) return true;
  long long original = 0;
  const int n = sscanf(text, "llama3:%lf,%lf,%lf,%lld%n", &s->factor, &s->low, &s->high, &original, &end);
  s->original = original;
  return n == 4 && !text[end] && isfinite(s->factor) && isfinite(s->high) && s->factor > 0 && s->low > 0 &&
         s->high > s->low && original > 0 && original <= 1 << 24;
}
void rope_scaling_print(char *to, size_t bytes, const RopeScaling *s) {
  if (s->factor > 0)
    snprintf(to, bytes, "llama3:%.10g,%.10g,%.10g,%lld", s->factor, s->low, s->high, (long long)s->original);
  else snprintf(to, bytes, "none");
}

void rope_table_fill(float *table, const Block *b, int64_t positions, int64_t hs) {
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
