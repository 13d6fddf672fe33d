// params.h: which parameters a model has: a program's table of them (ParamTable) and a shape give their list.
#pragma once
#include "model_shape.h"

static const float INIT_STD = 0.02f;             // Radford et al. 2019; residual projections scaled by 1/sqrt(2L)

static bool shape_has(const ModelShape *s, ParamWhen when) {
  const Architecture *b = &s->block;
  switch (when) {
    case NORM_HAS_WEIGHT: return !b->norm_weightless;
    case INPUT_HAS_NORM: return !b->norm_weightless && b->norm_place != NORM_BEHIND;
    case BRANCH_HAS_NORM: return !b->norm_weightless && b->norm_place != NORM_BEFORE;
    case NORM_HAS_BIAS: return b->norm == NORM_LAYERNORM && b->bias == BIAS_ALL;
    case POSITIONS_LEARNED: return b->position == POSITION_LEARNED;
    case HEAD_APART: return !s->tied;
    case QKV_HAS_BIAS: return b->bias != BIAS_NONE;
    case OUT_HAS_BIAS: return b->bias == BIAS_ALL || b->bias == BIAS_QKVO;
    case MLP_HAS_BIAS: return b->bias == BIAS_ALL;
    case QK_NORM_HAS_WEIGHT: return b->qk_norm != QK_NORM_OFF && !b->norm_weightless;
    default: return true;
  }
}
static int64_t shape_size(const ModelShape *s, ParamSize size) {
  const bool all = s->block.qk_norm == QK_NORM_ALL;
  const int64_t of[PARAM_SIZES] = {-1, s->n_embd, s->n_head * s->head_size, model_qkv_rows(s),
                                   (all ? s->n_head : 1) * s->head_size, (all ? s->n_kv_head : 1) * s->head_size,
                                   model_fc_rows(s), s->mlp_width, s->vocab_size, s->n_positions};
  return of[size];
}

LoraParts lora_parts_of(const ModelShape *s, int matrix, const Param *base) {
  const Lora *l = &s->lora;
  LoraParts p = {l->of[matrix], {}, {}, l->rank, (float)lora_scale(l)};
  for (int i = 0, n = 0; i < p.parts; i++) {
    p.rows[i] = p.parts == 1 ? base->shape[0] : base->matrix_rows[i];
    p.adapter[i] = l->parts[matrix] >> i & 1 ? n++ : -1;
  }
  return p;
}
// The factor A, or B with `up`, of the adapters of parameter number `number`, base.
static Param lora_param(const ModelShape *s, int matrix, const Param *base, int number, bool up) {
  const LoraParts of = lora_parts_of(s, matrix, base);
  Param p = *base;
  snprintf(p.name, sizeof p.name, "%.*s.lora_%c.weight", (int)strlen(base->name) - 7, base->name, up ? 'B' : 'A');
  p.adapter = true, p.adapts = number, p.parts = s->lora.parts[matrix];
  p.frozen = false;
  p.matrices = 0, p.shape[0] = 0;
  for (int i = 0; i < of.parts; i++) {
    if (of.adapter[i] < 0) continue;
    p.matrix_rows[p.matrices] = up ? of.rows[i] : of.rank;
    p.shape[0] += p.matrix_rows[p.matrices++];
  }
  if (up) p.shape[1] = of.rank;
  p.padded_rows = p.shape[0];
  // A as far from zero as PEFT's uniform numbers up to 1 / sqrt(columns); B zero, so that nothing changes at first.
  p.init = up ? INIT_ZERO : INIT_NORMAL;
  p.std = 1 / sqrtf(3.0f * (float)p.shape[1]);
  return p;
}

ParamPlaces param_places(const ParamTable *t, const ModelShape *s) {
  ParamPlaces at = {};
  CHECK(t->roots <= ROOT_PARAMS_MAX && t->blocks + 2 * LORA_MATRICES <= BLOCK_PARAMS_MAX, "a block of %d",
        t->blocks);
  for (int k = 0; k < t->roots; k++) at.root[k] = shape_has(s, t->root[k].when) ? at.roots++ : -1;
  for (int &place : at.block) place = -1;
  for (int k = 0; k < t->blocks; k++) {          // adapters follow their matrix, so that modules stay together
    if (shape_has(s, t->block[k].when)) at.block[k] = at.blocks++;
    for (int i = 0; i < LORA_MATRICES; i++)
      if (s->lora.parts[i] && t->lora[i] == k)
        at.block[t->blocks + 2 * i] = at.blocks++, at.block[t->blocks + 2 * i + 1] = at.blocks++;
  }
  return at;
}

static Param param_make(const ModelShape *s, const ParamSpec *spec, int stage) {
  Param p = {};
  char name[sizeof p.name];
  snprintf(name, sizeof name, "%s", spec->name);
  char *layer = strstr(name, "%d");
  if (layer) *layer = 0;
  snprintf(p.name, sizeof p.name, layer ? "%s%d%s" : "%s", name, stage - 1, layer ? layer + 2 : "");
  p.ndim = spec->cols == SIZE_NONE ? 1 : 2;
  p.shape[0] = shape_size(s, spec->rows);
  p.shape[1] = shape_size(s, spec->cols);
  p.padded_rows = spec->rows == SIZE_V ? round_up(p.shape[0], VOCAB_ALIGN) : p.shape[0];
  p.init = spec->init;
  p.std = spec->residual ? INIT_STD / sqrtf(2.0f * (float)s->n_layer) : INIT_STD;
  p.decay = spec->decay;
  p.lr_scale = 1;
  p.frozen = s->lora.rank;
  p.linear = p.read_in_blocks = stage && p.ndim == 2;
  p.matrices = spec->rows == SIZE_QKV ? 3 : spec->rows == SIZE_FC && mlp_is_gated(s->block.mlp) ? 2 : 1;
  const int64_t first = spec->rows == SIZE_QKV ? s->n_head * s->head_size : p.shape[0] / p.matrices;
  for (int i = 0; i < p.matrices; i++)
    p.matrix_rows[i] = i == 0 || p.matrices == 1 ? first : (p.shape[0] - first) / (p.matrices - 1);
  p.stage = stage;
  if (spec->rows != SIZE_V) return p;
  // Of the embedding blocks_rows looks up rows, which knows neither positions nor dropout.
  p.read_in_blocks = spec->when == HEAD_APART || (!shape_has(s, POSITIONS_LEARNED) && (float)s->dropout == 0);
  if (!s->lora.rank || !s->lora.row_end) return p;
  p.frozen = p.decay = false;                    // decay would change the other rows
  p.row_from = s->lora.row_from, p.row_end = s->lora.row_end;
  return p;
}
Param *params_of_shape(const ParamTable *t, const ModelShape *s, int *count) {
  const ParamPlaces at = param_places(t, s);
  const int L = (int)s->n_layer;
  *count = at.roots + L * at.blocks;
  Param *p = (Param *)calloc((size_t)*count, sizeof(Param));
  for (int k = 0; k < t->roots; k++) if (at.root[k] >= 0) p[at.root[k]] = param_make(s, &t->root[k], 0);
  for (int l = 0; l < L; l++) {
    const int stage = at.roots + l * at.blocks;
    for (int k = 0; k < t->blocks; k++)
      if (at.block[k] >= 0) p[stage + at.block[k]] = param_make(s, &t->block[k], 1 + l);
    for (int i = 0; i < LORA_MATRICES; i++) {
      const int base = stage + at.block[t->lora[i]];
      for (int up = 0; up < 2 && s->lora.parts[i]; up++)
        p[stage + at.block[t->blocks + 2 * i + up]] = lora_param(s, i, &p[base], base, up);
    }
  }
  return p;
}
