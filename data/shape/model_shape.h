// model_shape.h: what a model is: its sizes, and its block as named choices. Options, files of other programs and the
// trainer describe models by it.
#pragma once
#include "shape.h"

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
  return mlp_is_gated(s->block.mlp) ? 2 * s->mlp_width : s->mlp_width;
}
bool layer_rotates(const Architecture *b, int l) {
  return b->position == POSITION_ROPE && !(b->rope_skip && (l + 1) % b->rope_skip == 0);
}

int64_t layer_window(const Architecture *b, int l) {
  return b->window_skip && (l + 1) % b->window_skip == 0 ? 0 : b->window;
}

// How a kind is written, and how many numbers it has: at least, at most.
static const struct { const char *name; int least, most; } rope_kinds[ROPE_KINDS] = {
    {"none", 0, 0}, {"linear", 1, 1}, {"llama3", 4, 4}, {"yarn", 4, 6}, {"yarn_exact", 4, 6}};
const char *rope_kind_name(RopeKind kind) { return rope_kinds[kind].name; }
bool rope_scaling_parse(const char *text, RopeScaling *s) {
  const size_t n = strcspn(text, ":");
  int kind = 0, count = 0;
  double x[6] = {};
  *s = RopeScaling{};
  while (kind < ROPE_KINDS && (strlen(rope_kinds[kind].name) != n || strncmp(rope_kinds[kind].name, text, n))) kind++;
  if (kind == ROPE_KINDS) return false;
  const char *at = text + n;
  for (char *end; *at && count < rope_kinds[kind].most; at = end) {
    x[count++] = strtod(at + 1, &end);
    if (end == at + 1 || *at != (count == 1 ? ':' : ',')) return false;
  }
  if (*at || count < rope_kinds[kind].least) return false;
  for (double y : x) if (!isfinite(y)) return false;
  if (!kind) return true;
  const bool waves = kind != ROPE_LINEAR, yarn = kind >= ROPE_YARN;
  if (yarn && count == 4) x[4] = x[0] > 1 ? 0.1 * log(x[0]) + 1 : 1;
  *s = RopeScaling{(RopeKind)kind, x[0], x[1], x[2], x[3] >= 1 && x[3] <= 1 << 24 ? (int64_t)x[3] : 0, x[4], x[5]};
  return x[0] > 0 && (!waves || (x[1] > 0 && x[2] > x[1] && s->original && (double)s->original == x[3])) &&
         (!yarn || (x[4] > 0 && x[5] >= 0));
}
void rope_scaling_print(char *to, size_t bytes, const RopeScaling *s) {
  int n = snprintf(to, bytes, "%s", rope_kinds[s->kind].name);
  if (s->kind) n += snprintf(to + n, bytes - (size_t)n, ":%.10g", s->factor);
  if (s->kind > ROPE_LINEAR)
    n += snprintf(to + n, bytes - (size_t)n, ",%.10g,%.10g,%lld", s->low, s->high, (long long)s->original);
  if (s->kind >= ROPE_YARN) n += snprintf(to + n, bytes - (size_t)n, ",%.10g", s->attention);
  if (s->growth > 0) snprintf(to + n, bytes - (size_t)n, ",%.10g", s->growth);
}

// The dimension, of hs, whose wave turns `waves` times in the original positions.
static inline double rope_yarn_dimension(const RopeScaling *s, double theta, int64_t hs, double waves) {
  return (double)hs * log((double)s->original / (waves * 2 * M_PI)) / (2 * log(theta));
}
// Frequency i of hs/2, as s changes it.
static inline float rope_scaled(const RopeScaling *s, double theta, int64_t hs, int64_t i, float frequency) {
  const double wave = 2 * M_PI / (double)frequency, slower = (double)frequency / s->factor;
  if (s->kind == ROPE_LINEAR) return (float)slower;
  if (s->kind == ROPE_LLAMA3) {
    if (wave > (double)s->original / s->low) return (float)slower;
    if (wave < (double)s->original / s->high) return frequency;
    const double smooth = ((double)s->original / wave - s->low) / (s->high - s->low);
    return (float)((1 - smooth) * (double)frequency / s->factor + smooth * (double)frequency);
  }
  if (!s->kind) return frequency;
  double from = rope_yarn_dimension(s, theta, hs, s->high), to = rope_yarn_dimension(s, theta, hs, s->low);
  if (s->kind == ROPE_YARN) from = floor(from), to = ceil(to);
  from = fmax(from, 0), to = fmin(to, (double)hs - 1);
  if (from == to) to += 0.001;
  const double ramp = fmin(fmax(((double)i - from) / (to - from), 0), 1);
  return (float)(slower * ramp + (double)frequency * (1 - ramp));
}
void rope_table_fill(float *table, const Architecture *b, int64_t positions, int64_t hs, bool window) {
  const RopeScaling unscaled = {}, *s = window ? &unscaled : &b->rope_scaling;
  const double theta = window ? b->window_theta : b->rope_theta;
  double times = s->kind >= ROPE_YARN ? s->attention : 1;
  if (b->attention_scale > 0) times *= pow((double)hs / b->attention_scale, 0.25);       // of q and of k
  for (int64_t i = 0; i < hs / 2; i++) {
    const float plain = 1.0f / powf((float)theta, (float)(2 * i) / (float)hs);
    const float frequency = rope_scaled(s, theta, hs, i, plain);
    for (int64_t p = 0; p < positions; p++) {
      const float angle = (float)p * frequency;
      table[p * hs + i] = (float)(cos((double)angle) * times);
      table[p * hs + hs / 2 + i] = (float)(sin((double)angle) * times);
    }
  }
}
