// program.h: a model's shape from options, and back.
#pragma once
#include "option_values.h"

// The block that resolved options describe.
static inline Architecture architecture_of(const Options *o) {
  Architecture b = {};
  b.norm = o->norm;
  b.norm_place = o->norm_place;
  b.norm_weightless = o->norm_weight == OPT_norm_weight_off;
  b.norm_embedding = o->norm_embedding == OPT_norm_embedding_on;
  b.norm_eps = o->norm_eps;
  b.position = o->position;
  b.rope_theta = o->rope_theta;
  rope_scaling_parse(o->rope_scaling, &b.rope_scaling);
  b.rope_skip = o->rope_skip;
  b.window = o->window, b.window_skip = o->window_skip, b.window_theta = o->window_theta;
  b.qk_norm = o->qk_norm;
  b.mlp = o->mlp;
  b.attention_scale = o->attention_scale;
  b.embedding_scaled = o->embedding_scale == OPT_embedding_scale_on;
  b.bias = o->bias;
  b.logit_softcap = o->logit_softcap;
  return b;
}
ModelShape shape_of(const Options *o) {
  ModelShape s = model_shape_gpt2(o->n_layer, o->n_head, o->n_embd, o->n_positions, o->vocab_size,
                                  o->tie_head == OPT_tie_head_on, o->dropout);
  s.n_kv_head = o->n_kv_head, s.head_size = o->head_size, s.mlp_width = o->mlp_width;
  s.block = architecture_of(o);
  Error unused;                                  // options_resolve has rejected what is wrong
  s.lora.rank = o->lora, s.lora.alpha = o->lora_alpha > 0 ? o->lora_alpha : 2.0 * (double)o->lora;
  s.lora.dropout = o->lora_dropout, s.lora.by_root = o->lora_scale == OPT_lora_scale_root;
  long long from = 0, last = -1;
  sscanf(o->train_rows, "%lld:%lld", &from, &last);              // lora_resolve has checked it
  s.lora.row_from = from, s.lora.row_end = last + 1;
  if (o->lora) lora_targets(&s.lora, &s, o->lora_targets, &unused);
  return s;
}
PreferenceArgs preference_args(const Options *o) {
  return PreferenceArgs{o->loss, o->dpo_beta, o->dpo_smoothing, o->simpo_gamma};
}
void options_of_shape(Options *o, const ModelShape *s) {
  const Architecture *b = &s->block;
  o->n_layer = s->n_layer, o->n_head = s->n_head, o->n_embd = s->n_embd, o->n_positions = s->n_positions;
  o->vocab_size = s->vocab_size, o->n_kv_head = s->n_kv_head, o->head_size = s->head_size, o->mlp_width = s->mlp_width;
  o->tie_head = s->tied ? OPT_tie_head_on : OPT_tie_head_off;
  o->norm_place = b->norm_place;
  o->norm = b->norm, o->norm_eps = b->norm_eps;
  o->norm_weight = b->norm_weightless ? OPT_norm_weight_off : OPT_norm_weight_on;
  o->norm_embedding = b->norm_embedding ? OPT_norm_embedding_on : OPT_norm_embedding_off;
  o->position = b->position, o->rope_theta = b->rope_theta, o->rope_skip = b->rope_skip;
  rope_scaling_print(o->rope_scaling, sizeof o->rope_scaling, &b->rope_scaling);
  o->qk_norm = b->qk_norm, o->mlp = b->mlp, o->bias = b->bias;
  o->logit_softcap = b->logit_softcap;
  o->attention_scale = b->attention_scale;
  o->embedding_scale = b->embedding_scaled ? OPT_embedding_scale_on : OPT_embedding_scale_off;
  o->window = b->window, o->window_skip = b->window_skip, o->window_theta = b->window_theta;
}
