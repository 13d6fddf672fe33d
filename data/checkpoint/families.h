// families.h: the decoders of Hugging Face transformers besides GPT-2 that a block of this program can be: what their
// config.json says, and what their tensors are called. One table of families, one of tensors; the formulas differ only
// by choices of struct Block. Read from transformers 5.24's configuration and modelling files.
//
//   family_of_type, family_of_shape     by config.json's model_type; of a model that is to be exported
//   family_config_read, _write          config.json, of transformers 4 and 5 in, of 5 out
//   family_tensor_name                  the tensors that a parameter is in a file: q, k and v, gate and up are apart
//
// NanoChat's rope turns by minus the angle (its rotate_half is (x2, -x1)). With the halves of each head's rows of q and
// k exchanged, turning by plus the angle gives the same scores: family_turns_back.
#pragma once
#include "checkpoint.h"
#include "import_config.h"
#include "model_shape.h"
#include "tensor_map.h"

static const Family families[] = {
    {"llama", "LlamaForCausalLM", false, QK_NORM_OFF, false, false, false, 1e4, 0, 0, "llama", 1e-6, false},
    {"mistral", "MistralForCausalLM", false, QK_NORM_OFF, false, false, false, 1e4, 0, 0, "llama", 1e-6, true},
    {"qwen2", "Qwen2ForCausalLM", true, QK_NORM_OFF, false, false, false, 1e4, 0, 0, "qwen2", 1e-6, false},
    {"qwen3", "Qwen3ForCausalLM", false, QK_NORM_BEFORE, false, false, false, 1e4, 128, 0, "qwen3", 1e-6, false},
    {"smollm3", "SmolLM3ForCausalLM", false, QK_NORM_OFF, false, true, true, 2e6, 0, 0, NULL, 1e-6, false},
    {"nanochat", "NanoChatForCausalLM", false, QK_NORM_AFTER, true, false, false, 1e4, 0, 15, NULL, 1e-6, false},
    {"olmo2", "Olmo2ForCausalLM", false, QK_NORM_ALL, false, false, false, 5e5, 0, 0, "olmo2", 1e-5, false,
     NORM_BEHIND}};
static const char family_types[] = "gpt2, llama, mistral, qwen2, qwen3, smollm3, nanochat or olmo2";

static inline const Family *family_of_type(const char *model_type) {
  for (const Family &f : families) if (!strcmp(f.model_type, model_type)) return &f;
  return NULL;
}
// The first that llama.cpp has under this name.
static inline const Family *family_of_gguf(const char *architecture) {
  for (const Family &f : families) if (f.gguf && !strcmp(f.gguf, architecture)) return &f;
  return NULL;
}
bool shape_is_gpt2(const ModelShape *s) {
  const Block *b = &s->block;
  return b->norm == NORM_LAYERNORM && b->norm_place == NORM_BEFORE && !b->norm_weightless &&
         !b->norm_embedding && b->position == POSITION_LEARNED &&
         b->qk_norm == QK_NORM_OFF && b->mlp == MLP_GELU && b->bias == BIAS_ALL && b->logit_softcap == 0 &&
         s->n_kv_head == s->n_head && s->head_size * s->n_head == s->n_embd && s->mlp_width == 4 * s->n_embd &&
         fabs(b->norm_eps - 1e-5) < 1e-10;
}
static inline bool family_mlp_biased(const Family *f, const Block *b) {
  return b->bias == BIAS_ALL && !f->nanochat && !f->qk_norm && !f->biasless;
}
// Whether the class can be this model.
static inline bool family_fits(const Family *f, const ModelShape *s) {
  const Block *b = &s->block;
  if (b->norm != NORM_RMSNORM || b->position != POSITION_ROPE || b->qk_norm != f->qk_norm) return false;
  if (b->mlp != (f->nanochat ? MLP_RELU2 : MLP_SWIGLU) || b->norm_weightless != f->nanochat) return false;
  if (b->norm_place != f->norm_place) return false;
  if (b->norm_embedding != f->nanochat || (b->logit_softcap > 0 && !f->nanochat)) return false;
  if (b->rope_skip && !f->skips) return false;
  if (f == &families[0] && s->n_embd % s->n_head) return false;  // LlamaConfig refuses that; SmolLM3's does not
  if (f->qkv_biased) return b->bias == BIAS_QKV && s->head_size * s->n_head == s->n_embd;
  return b->bias == BIAS_NONE || (b->bias == BIAS_QKVO && !f->biasless) || family_mlp_biased(f, b);
}
const Family *family_of_shape(const ModelShape *s) {
  for (const Family &f : families) if (family_fits(&f, s)) return &f;
  return NULL;
}
bool export_can(const ModelShape *s, char *error, size_t error_bytes) {
  IMPORT_REFUSE(!shape_is_gpt2(s) && !family_of_shape(s), "--export_hf: no class of transformers that is written here "
                "(%s) has this block: leave --export_hf out, or choose one of their blocks (docs/checkpoints.md)",
                family_types);
  return true;
}

// ================================================================================================ tensors
enum { FAMILY_NAME_BYTES = 96 };
// By our names without "h.N."; theirs without "model.layers.N.". relu2: -1 in either MLP, else of this one. behind: the
// same of norms behind what they are of.
struct FamilyTensor { const char *ours, *theirs[MAP_PARTS]; int relu2, behind = -1; };
static const FamilyTensor family_tensors[] = {
    {"ln_1", {"input_layernorm"}, -1},
    {"attn.c_attn", {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}, -1},
    {"attn.q_norm", {"self_attn.q_norm"}, -1},
    {"attn.k_norm", {"self_attn.k_norm"}, -1},
    {"attn.c_proj", {"self_attn.o_proj"}, -1},
    {"ln_2", {"post_attention_layernorm"}, -1, 0},
    {"ln_2", {"pre_feedforward_layernorm"}, -1, 1},
    {"attn.norm", {"post_attention_layernorm"}, -1},
    {"mlp.norm", {"post_feedforward_layernorm"}, -1},
    {"mlp.c_fc", {"mlp.gate_proj", "mlp.up_proj"}, 0},
    {"mlp.c_proj", {"mlp.down_proj"}, 0},
    {"mlp.c_fc", {"mlp.fc1"}, 1},
    {"mlp.c_proj", {"mlp.fc2"}, 1}};
static const FamilyTensor family_roots[] = {
    {"wte", {"model.embed_tokens"}, -1}, {"ln_f", {"model.norm"}, -1}, {"lm_head", {"lm_head"}, -1}};

static inline bool family_tensor_is_of(const FamilyTensor *t, const ModelShape *s) {
  return t->relu2 != mlp_is_gated(s->block.mlp) && t->behind != (s->block.norm_place == NORM_BEFORE);
}
// What part `part` of a block's module is called in a file; NULL: no module has this name.
static inline const char *family_module(const char *ours, int part, const ModelShape *s) {
  for (const FamilyTensor &t : family_tensors)
    if (!strcmp(t.ours, ours) && family_tensor_is_of(&t, s)) return t.theirs[part];
  return NULL;
}
// The name of part `part` of a parameter in a file: a suffix .weight or .bias is theirs too.
static inline void family_tensor_name(char to[FAMILY_NAME_BYTES], const Param *p, int part, const ModelShape *s) {
  const char *dot = strrchr(p->name, '.'), *inside = p->stage ? strchr(p->name + 2, '.') + 1 : p->name;
  to[0] = 0;
  for (const FamilyTensor &t : family_roots)
    if (!p->stage && (size_t)(dot - inside) == strlen(t.ours) && !strncmp(inside, t.ours, strlen(t.ours)))
      snprintf(to, FAMILY_NAME_BYTES, "%s%s", t.theirs[0], dot);
  for (const FamilyTensor &t : family_tensors) {
    const bool named = (size_t)(dot - inside) == strlen(t.ours) && !strncmp(inside, t.ours, strlen(t.ours));
    if (p->stage && named && family_tensor_is_of(&t, s))
      snprintf(to, FAMILY_NAME_BYTES, "model.layers.%d.%s%s", p->stage - 1, t.theirs[part], dot);
  }
}
// Whether a part's rows have the halves of each head exchanged in the file.
static inline bool family_turns_back(const Family *f, const Param *p, int part) {
  return f && f->nanochat && p->matrices == 3 && part < 2;
}
// Tensors of older files that are no weights: frequencies of rope.
static inline bool family_ignores(const char *name) {
  const size_t n = strlen(name), m = strlen(".rotary_emb.inv_freq");
  return n > m && !strcmp(name + n - m, ".rotary_emb.inv_freq");
}

// ================================================================================================ config.json in
static const ImportField family_fields[] = {
    {"num_hidden_layers", offsetof(ModelShape, n_layer), 1000, true},
    {"num_attention_heads", offsetof(ModelShape, n_head), 1000, true},
    {"hidden_size", offsetof(ModelShape, n_embd), 65536, true},
    {"intermediate_size", offsetof(ModelShape, mlp_width), 1 << 20, true},
    {"vocab_size", offsetof(ModelShape, vocab_size), 1 << 24, true},
    {"max_position_embeddings", offsetof(ModelShape, n_positions), 1 << 20, true},
    {"num_key_value_heads", offsetof(ModelShape, n_kv_head), 1000, false},
    {"head_dim", offsetof(ModelShape, head_size), 1024, false}};

static inline bool family_sizes(const ImportConfig *c, const Family *family, ModelShape *m) {
  for (const ImportField &f : family_fields) if (!import_config_size(c, &f, m)) return false;
  const bool optional = family == &families[0] || family->nanochat;
  if (!m->n_kv_head && !optional && !cJSON_GetObjectItemCaseSensitive(c->root, "num_key_value_heads"))
    return import_config_refuse(c, "num_key_value_heads is missing");
  if (!m->n_kv_head) m->n_kv_head = m->n_head;
  if (!m->head_size) m->head_size = family->head_size;
  if (m->n_head % m->n_kv_head)
    return import_config_refuse(c, "num_key_value_heads %lld does not divide num_attention_heads %lld",
                                (long long)m->n_kv_head, (long long)m->n_head);
  if (!m->head_size && m->n_embd % m->n_head)
    return import_config_refuse(c, "num_attention_heads %lld does not divide hidden_size %lld", (long long)m->n_head,
                                (long long)m->n_embd);
  if (!m->head_size) m->head_size = m->n_embd / m->n_head;
  if (m->head_size % 2) return import_config_refuse(c, "head_dim %lld is odd", (long long)m->head_size);
  return true;
}
// What an object of rope's parameters says of its kind; what it leaves out is transformers' default.
static inline bool family_rope_scaling(const ImportConfig *in, const ModelShape *m, RopeScaling *s) {
  const cJSON *type = NULL;
  if (!import_config_get(in, "rope_type", &type) || (!type && !import_config_get(in, "type", &type))) return false;
  const char *kind = !type ? "default" : cJSON_IsString(type) ? type->valuestring : "";
  if (!strcmp(kind, "default")) return true;
  for (RopeKind k : {ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN}) if (!strcmp(kind, rope_kinds[k].name)) s->kind = k;
  if (!s->kind)
    return import_config_refuse(in, "rope_type is %s, only default, linear, llama3 and yarn are supported",
                                *kind ? safetensors_quoted(kind).text : "not text");
  const bool waves = s->kind != ROPE_LINEAR, yarn = s->kind == ROPE_YARN;
  double original = yarn ? (double)m->n_positions : 0, mscale = 0, mscale_all = 0;
  bool whole = true;
  if (!import_config_number(in, "factor", 0, &s->factor)) return false;
  if (waves && (!import_config_number(in, yarn ? "beta_slow" : "low_freq_factor", yarn, &s->low) ||
                !import_config_number(in, yarn ? "beta_fast" : "high_freq_factor", yarn ? 32 : 0, &s->high) ||
                !import_config_number(in, "original_max_position_embeddings", original, &original))) return false;
  if (yarn && (!import_config_number(in, "mscale", 0, &mscale) || !import_config_flag(in, "truncate", true, &whole) ||
               !import_config_number(in, "mscale_all_dim", 0, &mscale_all))) return false;
  s->original = original >= 1 && original <= 1 << 24 ? (int64_t)original : 0;
  if (!(s->factor > 0 && isfinite(s->factor)) || (waves && !(s->low > 0 && s->high > s->low && s->original)))
    return import_config_refuse(in, "rope_type %s needs factor%s", kind, !waves ? "" : yarn ? ", beta_slow, beta_fast "
                                "above it, and original_max_position_embeddings" : ", low_freq_factor, "
                                "high_freq_factor above it, and original_max_position_embeddings");
  if (!yarn) return true;
  if (!whole) s->kind = ROPE_YARN_EXACT;
  const double wider = s->factor > 1 ? 0.1 * log(s->factor) : 0;
  const double usual = mscale != 0 && mscale_all != 0 ? (1 + wider * mscale) / (1 + wider * mscale_all) : 1 + wider;
  return import_config_number(in, "attention_factor", usual, &s->attention) &&
         ((s->attention > 0 && s->attention <= 1e6) || import_config_refuse(in, "attention_factor is %g",
                                                                             s->attention));
}
// Rope: transformers 5's rope_parameters, or rope_theta and rope_scaling; what neither says is the default.
static inline bool family_rope(const ImportConfig *c, const Family *f, ModelShape *m) {
  Block *b = &m->block;
  const cJSON *parameters, *scaling;
  double theta = f->theta, partial = 1;
  if (!import_config_number(c, "rope_theta", theta, &theta) || !import_config_get(c, "rope_parameters", &parameters) ||
      !import_config_get(c, "rope_scaling", &scaling)) return false;
  const cJSON *from = scaling && scaling->child ? scaling : parameters ? parameters : scaling, *member;
  if (from && !cJSON_IsObject(from)) return import_config_refuse(c, "rope_parameters or rope_scaling is no object");
  cJSON_ArrayForEach(member, from)
    if (cJSON_IsObject(member)) return import_config_refuse(c, "rope_parameters by kind of layer are not supported");
  const ImportConfig in = {from, c->path, c->error, c->error_bytes};
  if (from && !import_config_number(&in, "rope_theta", theta, &theta)) return false;
  if (from && !import_config_number(&in, "partial_rotary_factor", partial, &partial)) return false;
  if (!import_config_number(c, "partial_rotary_factor", partial, &partial)) return false;
  if (partial != 1) return import_config_refuse(c, "partial_rotary_factor is %g, only 1 is supported", partial);
  if (!(theta >= 1 && theta <= 1e12)) return import_config_refuse(c, "rope_theta is %g, expected 1 to 1e12", theta);
  b->rope_theta = theta;
  return !from || family_rope_scaling(&in, m, &b->rope_scaling);
}
// Which layers do not turn: a list with 1 for those that do, or every N-th.
static inline bool family_skips(const ImportConfig *c, const Family *f, ModelShape *m) {
  const cJSON *list;
  double interval = 4;
  if (!f->skips) return true;
  if (!import_config_number(c, "no_rope_layer_interval", interval, &interval)) return false;
  if (!(interval >= 1 && interval <= 1000 && interval == floor(interval)))
    return import_config_refuse(c, "no_rope_layer_interval is %g, expected a whole number from 1 to 1000", interval);
  if (!import_config_get(c, "no_rope_layers", &list)) return false;
  int64_t every = (int64_t)interval, l = 0;
  const cJSON *x;
  if (list) {
    every = 0;
    cJSON_ArrayForEach(x, list) {
      if (!every && cJSON_IsNumber(x) && x->valuedouble == 0) every = l + 1;
      l++;
    }
    if (cJSON_GetArraySize(list) != m->n_layer)
      return import_config_refuse(c, "no_rope_layers has %d entries for %lld layers", cJSON_GetArraySize(list),
                                  (long long)m->n_layer);
    l = 0;
    cJSON_ArrayForEach(x, list) {
      const bool turns = !(every && (l + 1) % every == 0);
      if (!cJSON_IsNumber(x) || (x->valuedouble != 0) != turns)
        return import_config_refuse(c, "no_rope_layers does not leave out every %lld-th layer, as this program can",
                                    (long long)every);
      l++;
    }
  }
  m->block.rope_skip = every;
  return true;
}
// Where layers attend to a window, positions end there, which `notice` says: up to the window nothing is different.
static inline bool family_window(const ImportConfig *c, ModelShape *m, char *notice, size_t notice_bytes) {
  const double usual = 4096;                     // of the classes that have one
  const cJSON *types, *layer;
  bool slides = false;
  double window = 0;
  if (!import_config_flag(c, "use_sliding_window", false, &slides) || !import_config_get(c, "layer_types", &types) ||
      !import_config_number(c, "sliding_window", usual, &window)) return false;
  if (types) slides = false;
  cJSON_ArrayForEach(layer, types) {
    const char *type = cJSON_IsString(layer) ? layer->valuestring : "";
    if (strcmp(type, "full_attention") && strcmp(type, "sliding_attention"))
      return import_config_refuse(c, "layer_types has %s, only full_attention and sliding_attention are supported",
                                  *type ? safetensors_quoted(type).text : "no text");
    slides = slides || type[0] == 's';
  }
  if (!slides || window >= (double)m->n_positions) return true;
  if (!(window >= 1)) return import_config_refuse(c, "sliding_window is %g, expected 1 or more", window);
  m->n_positions = (int64_t)window;
  snprintf(notice, notice_bytes, "positions end at the sliding window of %lld tokens: up to there all attend to all",
           (long long)m->n_positions);
  return true;
}
// What would change the function that is computed, and no choice of the block can say.
static inline bool family_refuses(const ImportConfig *c) {
  static const char *const off[] = {"rope_interleaved", "scale_embedding", "use_mrope"};
  for (const char *name : off) {
    bool value = false;
    if (!import_config_flag(c, name, false, &value)) return false;
    if (value) return import_config_refuse(c, "%s is true, only false is supported", name);
  }
  return import_config_quantized(c, true);
}
static inline bool family_bias(const ImportConfig *c, const Family *f, Block *b) {
  bool attention = false, mlp = false;
  b->bias = BIAS_QKV;
  if (f->qkv_biased || f->biasless) {
    if (f->biasless) b->bias = BIAS_NONE;
    return true;
  }
  if (!import_config_flag(c, "attention_bias", false, &attention) || !import_config_flag(c, "mlp_bias", false, &mlp))
    return false;
  if (mlp && !attention) return import_config_refuse(c, "mlp_bias is true without attention_bias: not supported");
  b->bias = mlp ? BIAS_ALL : attention ? BIAS_QKVO : BIAS_NONE;
  return true;
}
// Fills in the shape from a config.json of this family. False: one line in the error.
static inline bool family_config_read(const ImportConfig *c, const Family *f, ModelShape *m) {
  *m = ModelShape{};
  Block *b = &m->block;
  b->norm = NORM_RMSNORM, b->norm_place = f->norm_place, b->position = POSITION_ROPE, b->qk_norm = f->qk_norm;
  b->mlp = f->nanochat ? MLP_RELU2 : MLP_SWIGLU;
  b->norm_weightless = b->norm_embedding = f->nanochat;
  const cJSON *act;
  const char *want = f->nanochat ? "relu2" : "silu";
  if (!import_config_get(c, "hidden_act", &act)) return false;
  if (act && (!cJSON_IsString(act) || strcmp(act->valuestring, want)))
    return import_config_refuse(c, "hidden_act is %s, only %s is supported",
                                cJSON_IsString(act) ? safetensors_quoted(act->valuestring).text : "not text", want);
  const double cap = cJSON_GetObjectItemCaseSensitive(c->root, "final_logit_softcapping") ? 0 : f->cap;
  if (f->nanochat && !import_config_number(c, "final_logit_softcapping", cap, &b->logit_softcap)) return false;
  if (!(b->logit_softcap >= 0 && b->logit_softcap <= 1e6))
    return import_config_refuse(c, "final_logit_softcapping is %g", b->logit_softcap);
  return import_config_number(c, "rms_norm_eps", f->eps, &b->norm_eps) &&
         ((b->norm_eps >= 1e-12 && b->norm_eps <= 1) || import_config_refuse(c, "rms_norm_eps is %g", b->norm_eps)) &&
         import_config_flag(c, "tie_word_embeddings", f->tied, &m->tied) && family_sizes(c, f, m) &&
         family_bias(c, f, b) && family_rope(c, f, m) && family_skips(c, f, m) && family_refuses(c);
}

// ================================================================================================ config.json out
// A number that Python reads as a float: some classes take no int for one.
static inline void family_float(cJSON *c, const char *name, double x) {
  char text[40];
  for (int digits = 1; digits <= 17; digits++) {                 // the shortest that is x again
    snprintf(text, sizeof text, "%.*g", digits, x);
    if (strtod(text, NULL) == x) break;
  }
  if (!strpbrk(text, ".e")) strcat(text, ".0");
  cJSON_AddRawToObject(c, name, text);
}
static inline void family_rope_write(cJSON *rope, double theta, const RopeScaling *s) {
  const bool yarn = s->kind >= ROPE_YARN;
  cJSON_AddStringToObject(rope, "rope_type", !s->kind ? "default" : rope_kinds[yarn ? ROPE_YARN : s->kind].name);
  family_float(rope, "rope_theta", theta);
  if (s->kind) family_float(rope, "factor", s->factor);
  if (s->kind <= ROPE_LINEAR) return;
  family_float(rope, yarn ? "beta_slow" : "low_freq_factor", s->low);
  family_float(rope, yarn ? "beta_fast" : "high_freq_factor", s->high);
  cJSON_AddNumberToObject(rope, "original_max_position_embeddings", (double)s->original);
  if (yarn) family_float(rope, "attention_factor", s->attention);
  if (s->kind == ROPE_YARN_EXACT) cJSON_AddFalseToObject(rope, "truncate");
}
static inline void family_config_write(cJSON *c, const Family *f, const ModelShape *m) {
  const Block *b = &m->block;
  cJSON_AddStringToObject(c, "model_type", f->model_type);
  for (const ImportField &x : family_fields)
    cJSON_AddNumberToObject(c, x.name, (double)*(const int64_t *)((const char *)m + x.offset));
  cJSON_AddStringToObject(c, "hidden_act", f->nanochat ? "relu2" : "silu");
  family_float(c, "rms_norm_eps", b->norm_eps);
  family_float(c, "initializer_range", 0.02);
  family_float(c, "attention_dropout", 0);
  const bool says = !f->qkv_biased && !f->biasless;
  if (says) cJSON_AddBoolToObject(c, "attention_bias", b->bias != BIAS_NONE);
  if (says && !f->nanochat && !f->qk_norm) cJSON_AddBoolToObject(c, "mlp_bias", b->bias == BIAS_ALL);
  if (f->nanochat && b->logit_softcap > 0) family_float(c, "final_logit_softcapping", b->logit_softcap);
  if (f->nanochat && b->logit_softcap == 0) cJSON_AddNullToObject(c, "final_logit_softcapping");
  cJSON *rope = cJSON_AddObjectToObject(c, "rope_parameters");
  family_rope_write(rope, b->rope_theta, &b->rope_scaling);
  if (f->skips) {
    cJSON *list = cJSON_AddArrayToObject(c, "no_rope_layers");
    for (int l = 0; l < m->n_layer; l++) cJSON_AddItemToArray(list, cJSON_CreateNumber(block_turns(b, l)));
  }
  cJSON_AddBoolToObject(c, "tie_word_embeddings", m->tied);
}
