// families.h: the decoder classes of Hugging Face transformers, besides GPT-2, whose models this program can compute:
// the fields of their config.json, and the names of their tensors. One table of families (a class each), one of
// tensors; the formulas differ only by choices of struct Architecture. Read from transformers 5.24's configuration and
// modelling files.
//
// NanoChat's RoPE rotates by minus the angle (its rotate_half is (x2, -x1)). With the halves of each head's rows of q
// and k exchanged, a rotation by plus the angle gives the same scores: family_turns_back.
#pragma once
#include "import_config.h"

// A class of transformers: which parts of the architecture it fixes, and its defaults for absent fields of config.json:
// tied, theta, head_size (0: hidden_size / heads), cap. If the number of KV heads is absent, Llama and NanoChat have as
// many as heads.
struct Family {
  const char *model_type, *architecture;
  bool qkv_biased;                               // q, k and v always have biases
  QkNorm qk_norm;
  bool nanochat;                                 // weightless norms, one after the embedding, relu2, soft-capped logits
  bool skips;                                    // may have NoPE layers
  bool tied;
  double theta;
  int64_t head_size;
  double cap;
  const char *gguf;                              // llama.cpp's architecture; NULL: it has none
  double eps;
  bool biasless;                                 // no field of config.json can give it biases
  NormPlace norm_place = NORM_BEFORE;
  bool windows = false;                          // layers may have a sliding window
  int64_t full_every = 0;                        // > 0: all but every full_every-th do, unless config.json lists them
  double window_theta = 0;                       // and RoPE has this base in them, unless config.json has another
  bool gemma = false;                            // GEGLU, a scaled embedding; files store norms' weights minus 1
};
static const Family families[] = {
    {"llama", "LlamaForCausalLM", false, QK_NORM_OFF, false, false, false, 1e4, 0, 0, "llama", 1e-6, false},
    {"mistral", "MistralForCausalLM", false, QK_NORM_OFF, false, false, false, 1e4, 0, 0, "llama", 1e-6, true,
     NORM_BEFORE, true},
    {"ministral3", "Ministral3ForCausalLM", false, QK_NORM_OFF, false, false, false, 1e6, 128, 0, "mistral3", 1e-5,
     true, NORM_BEFORE, true},
    {"qwen2", "Qwen2ForCausalLM", true, QK_NORM_OFF, false, false, false, 1e4, 0, 0, "qwen2", 1e-6, false,
     NORM_BEFORE, true},
    {"qwen3", "Qwen3ForCausalLM", false, QK_NORM_BEFORE, false, false, false, 1e4, 128, 0, "qwen3", 1e-6, false,
     NORM_BEFORE, true},
    {"smollm3", "SmolLM3ForCausalLM", false, QK_NORM_OFF, false, true, true, 2e6, 0, 0, NULL, 1e-6, false},
    {"nanochat", "NanoChatForCausalLM", false, QK_NORM_AFTER, true, false, false, 1e4, 0, 15, NULL, 1e-6, false},
    {"olmo2", "Olmo2ForCausalLM", false, QK_NORM_ALL, false, false, false, 1e4, 0, 0, "olmo2", 1e-5, false,
     NORM_BEHIND},
    {"olmo3", "Olmo3ForCausalLM", false, QK_NORM_ALL, false, false, false, 5e5, 0, 0, "olmo2", 1e-5, false,
     NORM_BEHIND, true, 4, 5e5},
    {"gemma3_text", "Gemma3ForCausalLM", false, QK_NORM_BEFORE, false, false, true, 1e6, 256, 0, "gemma3", 1e-6, false,
     NORM_BOTH, true, 6, 1e4, true}};
static const char family_types[] = "gpt2, llama, mistral, ministral3, qwen2, qwen3, smollm3, nanochat, olmo2, olmo3 or "
                                   "gemma3_text";

static inline const Family *family_of_type(const char *model_type) {
  for (const Family &f : families) if (!strcmp(f.model_type, model_type)) return &f;
  return NULL;
}
// Whether llama.cpp rotates neighbouring elements where transformers rotates the halves of a head.
static inline bool gguf_turns_pairs(const char *architecture) {
  return !strcmp(architecture, "llama") || !strcmp(architecture, "mistral3");
}
// The first family that llama.cpp calls by this name; of OLMo 2 and 3, which share one, the latter if there is a
// window.
static inline const Family *family_of_gguf(const char *architecture, bool window) {
  const Family *found = NULL;
  for (const Family &f : families)
    if (f.gguf && !strcmp(f.gguf, architecture) && (!found || (window && f.full_every))) found = &f;
  return found;
}
bool shape_is_gpt2(const ModelShape *s) {
  const Architecture *b = &s->block;
  return b->norm == NORM_LAYERNORM && b->norm_place == NORM_BEFORE && !b->norm_weightless &&
         !b->norm_embedding && b->position == POSITION_LEARNED &&
         b->qk_norm == QK_NORM_OFF && b->mlp == MLP_GELU && b->bias == BIAS_ALL && b->logit_softcap == 0 &&
         !b->window && !b->embedding_scaled && b->attention_scale == 0 &&
         s->n_kv_head == s->n_head && s->head_size * s->n_head == s->n_embd && s->mlp_width == 4 * s->n_embd &&
         fabs(b->norm_eps - 1e-5) < 1e-10;
}
// Whether q is scaled up with its position (RopeScaling.growth, llama_4_scaling_beta in config.json).
static inline bool family_grows(const Family *f) { return !strcmp(f->model_type, "ministral3"); }
// Whether config.json lists which layers have a window.
static inline bool family_lists_layers(const Family *f) {
  return f->windows && (f->full_every || !strncmp(f->model_type, "qwen", 4));
}
static inline Mlp family_mlp(const Family *f) {
  return f->nanochat ? MLP_RELU2 : f->gemma ? MLP_GEGLU : MLP_SWIGLU;
}
// Whether the family has logit soft-capping.
static inline bool family_caps(const Family *f) { return f->nanochat || f->gemma; }
static inline bool family_mlp_biased(const Family *f, const Architecture *b) {
  return b->bias == BIAS_ALL && !f->nanochat && !f->qk_norm && !f->biasless;
}
// Whether a model of this shape can be exported as this family's class of transformers.
static inline bool family_fits(const Family *f, const ModelShape *s) {
  const Architecture *b = &s->block;
  if (b->norm != NORM_RMSNORM || b->position != POSITION_ROPE || b->qk_norm != f->qk_norm) return false;
  if (b->mlp != family_mlp(f) || b->norm_weightless != f->nanochat) return false;
  if ((b->rope_scaling.growth > 0) != family_grows(f)) return false;
  if (b->embedding_scaled != f->gemma || (b->attention_scale > 0 && !f->gemma)) return false;
  if (b->norm_place != f->norm_place) return false;
  if (b->norm_embedding != f->nanochat || (b->logit_softcap > 0 && !family_caps(f))) return false;
  if (b->rope_skip && !f->skips) return false;
  if (b->window && (!f->windows || (b->window_skip && !family_lists_layers(f)))) return false;
  if (b->window && b->window_theta > 0 && !f->full_every) return false;
  if (f == &families[0] && s->n_embd % s->n_head) return false;  // LlamaConfig rejects it, SmolLM3Config does not
  if (f->qkv_biased) return b->bias == BIAS_QKV && s->head_size * s->n_head == s->n_embd;
  return b->bias == BIAS_NONE || (b->bias == BIAS_QKVO && !f->biasless) || family_mlp_biased(f, b);
}
// The family as which a model of this shape is exported; NULL: the model is GPT-2, or no family fits.
static inline const Family *family_of_shape(const ModelShape *s) {
  for (const Family &f : families) if (family_fits(&f, s)) return &f;
  return NULL;
}
const char *family_name(const ModelShape *s) {
  const Family *f = family_of_shape(s);
  return f ? f->model_type : shape_is_gpt2(s) ? "gpt2" : NULL;
}
bool export_can(const ModelShape *s, Error *error) {
  REJECT(!shape_is_gpt2(s) && !family_of_shape(s), "--export_hf: no class of transformers that is written here (%s) "
         "has this block: leave --export_hf out, or choose one of their blocks (docs/models.md)", family_types);
  return true;
}

// ================================================================================================ tensors
enum { FAMILY_NAME_BYTES = 96 };
// Whether models with a gated MLP, without one, or all models have a tensor.
enum MlpTensors { IN_ANY_MLP, IN_GATED_MLP, IN_PLAIN_MLP };
// ours: a tensor's name in this program, without "h.N."; theirs: its parts' names in transformers, without
// "model.layers.N.". after: 1 if only models with post-norms have it, 0 if only those without do, -1: all do.
struct FamilyTensor { const char *ours, *theirs[MAP_PARTS]; MlpTensors mlp; int behind = -1; };
static const FamilyTensor family_tensors[] = {
    {"ln_1", {"input_layernorm"}, IN_ANY_MLP},
    {"attn.c_attn", {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}, IN_ANY_MLP},
    {"attn.q_norm", {"self_attn.q_norm"}, IN_ANY_MLP},
    {"attn.k_norm", {"self_attn.k_norm"}, IN_ANY_MLP},
    {"attn.c_proj", {"self_attn.o_proj"}, IN_ANY_MLP},
    {"ln_2", {"post_attention_layernorm"}, IN_ANY_MLP, 0},
    {"ln_2", {"pre_feedforward_layernorm"}, IN_ANY_MLP, 1},
    {"attn.norm", {"post_attention_layernorm"}, IN_ANY_MLP},
    {"mlp.norm", {"post_feedforward_layernorm"}, IN_ANY_MLP},
    {"mlp.c_fc", {"mlp.gate_proj", "mlp.up_proj"}, IN_GATED_MLP},
    {"mlp.c_proj", {"mlp.down_proj"}, IN_GATED_MLP},
    {"mlp.c_fc", {"mlp.fc1"}, IN_PLAIN_MLP},
    {"mlp.c_proj", {"mlp.fc2"}, IN_PLAIN_MLP}};
static const FamilyTensor family_roots[] = {
    {"wte", {"model.embed_tokens"}, IN_ANY_MLP},
    {"ln_f", {"model.norm"}, IN_ANY_MLP},
    {"lm_head", {"lm_head"}, IN_ANY_MLP}};

static inline bool family_tensor_is_of(const FamilyTensor *t, const ModelShape *s) {
  const MlpTensors other = mlp_is_gated(s->block.mlp) ? IN_PLAIN_MLP : IN_GATED_MLP;
  return t->mlp != other && t->behind != (s->block.norm_place == NORM_BEFORE);
}
// The name in a file of part `part` of the block's module `ours`; NULL: no module has this name.
static inline const char *family_module(const char *ours, int part, const ModelShape *s) {
  for (const FamilyTensor &t : family_tensors)
    if (!strcmp(t.ours, ours) && family_tensor_is_of(&t, s)) return t.theirs[part];
  return NULL;
}
// The name in a file of part `part` of a parameter; it has the same suffix, .weight or .bias.
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
// What is added to a tensor of a file to get the parameter: Gemma's norms multiply by 1 + weight.
static inline float family_plus(const Family *f, const Param *p) {
  return f && f->gemma && p->ndim == 1 && strstr(p->name, ".weight") ? 1 : 0;
}
// Whether a tensor of a file is no weight: older files store RoPE's frequencies.
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

// Sizes of classes of text models in models with images, in the order of family_fields: transformers leaves out of a
// config.json inside another's what is the class's default.
static const struct { const char *model_type; int64_t size[8]; } family_absent[] = {
    {"gemma3_text", {26, 8, 2304, 9216, 262208, 131072, 4, 256}},
    {"mistral", {32, 32, 4096, 14336, 32000, 131072, 8, 0}},
    {"ministral3", {34, 32, 4096, 14336, 131072, 262144, 8, 128}}};
static inline bool family_sizes(const ImportConfig *c, const Family *family, ModelShape *m) {
  const int64_t *absent = NULL;
  for (const auto &x : family_absent) if (!strcmp(x.model_type, family->model_type)) absent = x.size;
  for (const ImportField &f : family_fields) {
    const bool there = cJSON_GetObjectItemCaseSensitive(c->root, f.name);
    if (absent && !there) *(int64_t *)((char *)m + f.offset) = *absent;
    else if (!import_config_size(c, &f, m)) return false;
    absent += absent != NULL;
  }
  const bool optional = family == &families[0] || family->nanochat;
  if (!m->n_kv_head && !optional && !cJSON_GetObjectItemCaseSensitive(c->root, "num_key_value_heads"))
    return import_config_reject(c, "num_key_value_heads is missing");
  if (!m->n_kv_head) m->n_kv_head = m->n_head;
  if (!m->head_size) m->head_size = family->head_size;
  if (m->n_head % m->n_kv_head)
    return import_config_reject(c, "num_key_value_heads %lld does not divide num_attention_heads %lld",
                                (long long)m->n_kv_head, (long long)m->n_head);
  if (!m->head_size && m->n_embd % m->n_head)
    return import_config_reject(c, "num_attention_heads %lld does not divide hidden_size %lld", (long long)m->n_head,
                                (long long)m->n_embd);
  if (!m->head_size) m->head_size = m->n_embd / m->n_head;
  if (m->head_size % 2) return import_config_reject(c, "head_dim %lld is odd", (long long)m->head_size);
  return true;
}
// Reads the kind of RoPE scaling and its numbers from an object of config.json; keys that it lacks have transformers'
// defaults. original_above: original_max_position_embeddings beside that object, which comes before its own; 0: none.
static inline bool family_rope_scaling(const ImportConfig *in, bool grows, double original_above, const ModelShape *m,
                                       RopeScaling *s) {
  const cJSON *type = NULL;
  if (!import_config_get(in, "rope_type", &type) || (!type && !import_config_get(in, "type", &type))) return false;
  const char *kind = !type ? "default" : cJSON_IsString(type) ? type->valuestring : "";
  if (!strcmp(kind, "default")) return true;
  for (RopeKind k : {ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN}) if (!strcmp(kind, rope_kind_name(k))) s->kind = k;
  if (!s->kind)
    return import_config_reject(in, "rope_type is %s, only default, linear, llama3 and yarn are supported",
                                *kind ? safetensors_quoted(kind).text : "not text");
  const bool waves = s->kind != ROPE_LINEAR, yarn = s->kind == ROPE_YARN;
  double original = (double)m->n_positions, mscale = 0, mscale_all = 0;
  bool whole = true;
  if (!import_config_number(in, "factor", 0, &s->factor)) return false;
  if (waves && (!import_config_number(in, yarn ? "beta_slow" : "low_freq_factor", yarn, &s->low) ||
                !import_config_number(in, yarn ? "beta_fast" : "high_freq_factor", yarn ? 32 : 0, &s->high) ||
                !import_config_number(in, "original_max_position_embeddings", original, &original))) return false;
  if (yarn && (!import_config_number(in, "mscale", 0, &mscale) || !import_config_flag(in, "truncate", true, &whole) ||
               !import_config_number(in, "mscale_all_dim", 0, &mscale_all))) return false;
  if (original_above != 0) original = original_above;
  s->original = original >= 1 && original <= 1 << 24 ? (int64_t)original : 0;
  if (!(s->factor > 0 && isfinite(s->factor)) || (waves && !(s->low > 0 && s->high > s->low && s->original)))
    return import_config_reject(in, "rope_type %s needs factor%s", kind, !waves ? "" : yarn ? ", beta_slow, beta_fast "
                                "above it, and original_max_position_embeddings" : ", low_freq_factor, "
                                "high_freq_factor above it, and original_max_position_embeddings");
  if (!yarn) return true;
  if (!whole) s->kind = ROPE_YARN_EXACT;
  if (grows && !import_config_number(in, "llama_4_scaling_beta", 0, &s->growth)) return false;
  if (!(s->growth >= 0 && s->growth <= 1e6)) return import_config_reject(in, "llama_4_scaling_beta is %g", s->growth);
  const double wider = s->factor > 1 ? 0.1 * log(s->factor) : 0;
  const double usual = mscale != 0 && mscale_all != 0 ? (1 + wider * mscale) / (1 + wider * mscale_all) : 1 + wider;
  return import_config_number(in, "attention_factor", usual, &s->attention) &&
         ((s->attention > 0 && s->attention <= 1e6) || import_config_reject(in, "attention_factor is %g",
                                                                             s->attention));
}
// Reads RoPE's base and scaling for some of the layers from the object `from`. theta: the base if it has none.
static inline bool family_rope_of(const ImportConfig *c, const Family *f, const cJSON *from, double theta,
                                  const ModelShape *m, double *to, RopeScaling *s) {
  double partial = 1, above = 1, original = 0;
  const ImportConfig in = {from, c->path, c->error};
  *to = theta;
  if (from && !cJSON_IsObject(from)) return import_config_reject(c, "rope_parameters or rope_scaling is no object");
  if (from && !import_config_number(&in, "rope_theta", theta, to)) return false;
  if (from && !import_config_number(&in, "partial_rotary_factor", partial, &partial)) return false;
  if (!import_config_number(c, "partial_rotary_factor", above, &above)) return false;
  if (partial == 1) partial = above;
  if (partial != 1) return import_config_reject(c, "partial_rotary_factor is %g, only 1 is supported", partial);
  if (!(*to >= 1 && *to <= 1e12)) return import_config_reject(c, "rope_theta is %g, expected 1 to 1e12", *to);
  if (!f->full_every && !import_config_number(c, "original_max_position_embeddings", 0, &original)) return false;
  return !from || family_rope_scaling(&in, family_grows(f), original, m, s);
}
// Reads RoPE's settings: transformers 5's rope_parameters, which may be by kind of layer, or rope_theta,
// rope_local_base_freq and rope_scaling; else the defaults.
static inline bool family_rope(const ImportConfig *c, const Family *f, ModelShape *m) {
  Architecture *b = &m->block;
  const cJSON *parameters, *scaling, *slides = NULL;
  double theta = f->theta, local = f->window_theta;
  RopeScaling other = {};
  if (!import_config_number(c, "rope_theta", theta, &theta) || !import_config_get(c, "rope_parameters", &parameters) ||
      !import_config_number(c, "rope_local_base_freq", local, &local) ||
      !import_config_get(c, "rope_scaling", &scaling)) return false;
  const cJSON *from = scaling && scaling->child ? scaling : parameters ? parameters : scaling, *member;
  bool kinds = false;
  cJSON_ArrayForEach(member, from) kinds = kinds || cJSON_IsObject(member);
  if (kinds && !f->full_every) return import_config_reject(c, "rope_parameters by kind of layer are not supported");
  if (kinds) slides = cJSON_GetObjectItemCaseSensitive(from, "sliding_attention");
  if (kinds) from = cJSON_GetObjectItemCaseSensitive(from, "full_attention");
  if (!family_rope_of(c, f, cJSON_IsNull(from) ? NULL : from, theta, m, &b->rope_theta, &b->rope_scaling)) return false;
  if (!f->full_every) return true;
  if (!family_rope_of(c, f, cJSON_IsNull(slides) ? NULL : slides, local, m, &b->window_theta, &other)) return false;
  if (b->window_theta == b->rope_theta && !memcmp(&other, &b->rope_scaling, sizeof other)) b->window_theta = 0;
  if (b->window_theta > 0 && other.kind)
    return import_config_reject(c, "rope_parameters scale sliding_attention in another way than full_attention: only "
                                "the same, or none, is supported");
  return true;
}
// Reads which layers have no RoPE (NoPE): a list with 1 for layers with RoPE, or every N-th layer.
static inline bool family_skips(const ImportConfig *c, const Family *f, ModelShape *m) {
  const cJSON *list;
  double interval = 4;
  if (!f->skips) return true;
  if (!import_config_number(c, "no_rope_layer_interval", interval, &interval)) return false;
  if (!(interval >= 1 && interval <= 1000 && interval == floor(interval)))
    return import_config_reject(c, "no_rope_layer_interval is %g, expected a whole number from 1 to 1000", interval);
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
      return import_config_reject(c, "no_rope_layers has %d entries for %lld layers", cJSON_GetArraySize(list),
                                  (long long)m->n_layer);
    l = 0;
    cJSON_ArrayForEach(x, list) {
      const bool turns = !(every && (l + 1) % every == 0);
      if (!cJSON_IsNumber(x) || (x->valuedouble != 0) != turns)
        return import_config_reject(c, "no_rope_layers does not leave out every %lld-th layer, as this program can",
                                    (long long)every);
      l++;
    }
  }
  m->block.rope_skip = every;
  return true;
}
// The kind of layer l in a list; "": not known.
static inline const char *family_layer_type(const cJSON *types, int l) {
  const char *type = cJSON_GetStringValue(cJSON_GetArrayItem(types, l));
  return type ? type : "";
}
// Reads which layers have a sliding window, and its length. If Architecture cannot express that, the model gets no
// window and its positions end at the window's length, up to which a window has no effect; `warning` says so.
static inline bool family_window(const ImportConfig *c, const Family *f, ModelShape *m, char *warning,
                                 size_t warning_bytes) {
  const cJSON *types, *null = cJSON_GetObjectItemCaseSensitive(c->root, "sliding_window");
  bool asked = f->full_every || f->biasless, regular = true;     // Mistral's config has no such flag
  double window = 0, first = family_lists_layers(f) && !f->full_every ? 28 : 0, full = (double)f->full_every;
  int64_t sliding = 0, every = 0;
  if (!import_config_flag(c, "use_sliding_window", asked, &asked) || !import_config_get(c, "layer_types", &types) ||
      !import_config_number(c, "sliding_window", family_grows(f) ? 0 : 4096, &window) ||         // the class's default
      !import_config_number(c, "sliding_window_pattern", full, &full) ||
      !import_config_number(c, "max_window_layers", first, &first)) return false;
  for (int l = 0; types && l < cJSON_GetArraySize(types); l++) {
    const char *type = family_layer_type(types, l);
    if (strcmp(type, "full_attention") && strcmp(type, "sliding_attention"))
      return import_config_reject(c, "layer_types has %s, only full_attention and sliding_attention are supported",
                                  *type ? safetensors_quoted(type).text : "no text");
  }
  if (types && cJSON_GetArraySize(types) != m->n_layer)
    return import_config_reject(c, "layer_types has %d entries for %lld layers", cJSON_GetArraySize(types),
                                (long long)m->n_layer);
  for (int64_t l = 0; l < m->n_layer; l++) {
    const bool listed = family_layer_type(types, (int)l)[0] == 's';
    const bool slides = types && !f->biasless ? listed        // Mistral's class has windows whatever is listed
                        : asked && (f->full_every ? full < 1 || (l + 1) % (int64_t)full != 0 : (double)l >= first);
    regular = regular && (!types || listed == slides);
    sliding += slides;
    if (!slides && !every) every = l + 1;
    if (sliding) regular = regular && slides == !(every && (l + 1) % every == 0);
  }
  regular = regular && (every != 1 || !sliding);
  const bool none = !sliding || cJSON_IsNull(null) || (family_grows(f) && !null);
  if (none || (window >= (double)m->n_positions && !f->full_every)) m->block.window_theta = 0;
  if (none || (window >= (double)m->n_positions && !f->full_every)) return true;
  if (!(window >= 1 && window <= 1 << 24 && window == floor(window)))
    return import_config_reject(c, "sliding_window is %g, expected a whole number from 1 on", window);
  if (f->windows && regular && (!every || family_lists_layers(f))) {
    m->block.window = (int64_t)window, m->block.window_skip = every;
    return true;
  }
  m->block.window_theta = 0;
  if (f->full_every) return import_config_reject(c, "layer_types is not every N-th layer full, as this program can");
  m->n_positions = min64(m->n_positions, (int64_t)window);
  snprintf(warning, warning_bytes, "positions end at the sliding window of %lld tokens: up to there all attend to all",
           (long long)m->n_positions);
  return true;
}
// What would change the function that is computed, and no choice of the block can say.
static inline bool family_rejects(const ImportConfig *c) {
  static const char *const off[] = {"rope_interleaved", "scale_embedding", "use_mrope", "use_bidirectional_attention"};
  for (const char *name : off) {
    bool value = false;
    if (!import_config_flag(c, name, false, &value)) return false;
    if (value) return import_config_reject(c, "%s is true, only false is supported", name);
  }
  bool causal = true;                            // false: an embedding model, each token of which attends to all
  if (!import_config_flag(c, "is_causal", causal, &causal)) return false;
  if (!causal) return import_config_reject(c, "is_causal is false, only true is supported");
  return import_config_quantized(c, true);
}
static inline bool family_bias(const ImportConfig *c, const Family *f, Architecture *b) {
  bool attention = false, mlp = false;
  b->bias = BIAS_QKV;
  if (f->qkv_biased || f->biasless) {
    if (f->biasless) b->bias = BIAS_NONE;
    return true;
  }
  if (!import_config_flag(c, "attention_bias", false, &attention) || !import_config_flag(c, "mlp_bias", false, &mlp))
    return false;
  if (mlp && !attention) return import_config_reject(c, "mlp_bias is true without attention_bias: not supported");
  b->bias = mlp ? BIAS_ALL : attention ? BIAS_QKVO : BIAS_NONE;
  return true;
}
static inline const char *family_act(const Family *f) {
  return f->nanochat ? "relu2" : f->gemma ? "gelu_pytorch_tanh" : "silu";
}
// Reads Gemma's divisor of attention scores. Gemma 2's other settings are an error.
static inline bool family_scores(const ImportConfig *c, const Family *f, ModelShape *m) {
  double scale = 0, cap = 0;
  if (!f->gemma) return true;
  if (!import_config_number(c, "query_pre_attn_scalar", 256, &scale) ||
      !import_config_number(c, "attn_logit_softcapping", 0, &cap)) return false;
  if (cap != 0) return import_config_reject(c, "attn_logit_softcapping is %g, only null is supported", cap);
  if (!(scale > 0 && scale <= 1e6)) return import_config_reject(c, "query_pre_attn_scalar is %g", scale);
  m->block.attention_scale = scale == (double)m->head_size ? 0 : scale;
  return true;
}
// Fills in the shape from a config.json of this family. False: one line in the error.
static inline bool family_config_read(const ImportConfig *c, const Family *f, ModelShape *m) {
  *m = ModelShape{};
  Architecture *b = &m->block;
  b->norm = NORM_RMSNORM, b->norm_place = f->norm_place, b->position = POSITION_ROPE, b->qk_norm = f->qk_norm;
  b->mlp = family_mlp(f), b->embedding_scaled = f->gemma;
  b->norm_weightless = b->norm_embedding = f->nanochat;
  const cJSON *act;
  const char *want = family_act(f), *field = f->gemma ? "hidden_activation" : "hidden_act";
  if (!import_config_get(c, field, &act)) return false;
  if (act && (!cJSON_IsString(act) || strcmp(act->valuestring, want)))
    return import_config_reject(c, "%s is %s, only %s is supported", field,
                                cJSON_IsString(act) ? safetensors_quoted(act->valuestring).text : "not text", want);
  const double cap = cJSON_GetObjectItemCaseSensitive(c->root, "final_logit_softcapping") ? 0 : f->cap;
  if (family_caps(f) && !import_config_number(c, "final_logit_softcapping", cap, &b->logit_softcap)) return false;
  if (!(b->logit_softcap >= 0 && b->logit_softcap <= 1e6))
    return import_config_reject(c, "final_logit_softcapping is %g", b->logit_softcap);
  return import_config_number(c, "rms_norm_eps", f->eps, &b->norm_eps) &&
         ((b->norm_eps >= 1e-12 && b->norm_eps <= 1) || import_config_reject(c, "rms_norm_eps is %g", b->norm_eps)) &&
         import_config_flag(c, "tie_word_embeddings", f->tied, &m->tied) && family_sizes(c, f, m) &&
         family_bias(c, f, b) && family_scores(c, f, m) && family_rope(c, f, m) && family_skips(c, f, m) &&
         family_rejects(c);
}

// ================================================================================================ config.json out
// Adds a number that Python reads as a float: some classes reject an int.
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
  cJSON_AddStringToObject(rope, "rope_type", !s->kind ? "default" : rope_kind_name(yarn ? ROPE_YARN : s->kind));
  family_float(rope, "rope_theta", theta);
  if (s->kind) family_float(rope, "factor", s->factor);
  if (s->kind <= ROPE_LINEAR) return;
  family_float(rope, yarn ? "beta_slow" : "low_freq_factor", s->low);
  family_float(rope, yarn ? "beta_fast" : "high_freq_factor", s->high);
  cJSON_AddNumberToObject(rope, "original_max_position_embeddings", (double)s->original);
  if (yarn) family_float(rope, "attention_factor", s->attention);
  if (s->growth > 0) family_float(rope, "llama_4_scaling_beta", s->growth);
  if (s->kind == ROPE_YARN_EXACT) cJSON_AddFalseToObject(rope, "truncate");
}
// Writes the fields of config.json as transformers 5 does; those of 4 are read, too.
static inline void family_config_write(cJSON *c, const Family *f, const ModelShape *m) {
  const Architecture *b = &m->block;
  cJSON_AddStringToObject(c, "model_type", f->model_type);
  for (const ImportField &x : family_fields)
    cJSON_AddNumberToObject(c, x.name, (double)*(const int64_t *)((const char *)m + x.offset));
  cJSON_AddStringToObject(c, f->gemma ? "hidden_activation" : "hidden_act", family_act(f));
  if (f->gemma)
    family_float(c, "query_pre_attn_scalar", b->attention_scale > 0 ? b->attention_scale : (double)m->head_size);
  family_float(c, "rms_norm_eps", b->norm_eps);
  family_float(c, "initializer_range", 0.02);
  family_float(c, "attention_dropout", 0);
  const bool says = !f->qkv_biased && !f->biasless;
  if (says) cJSON_AddBoolToObject(c, "attention_bias", b->bias != BIAS_NONE);
  if (says && !f->nanochat && !f->qk_norm) cJSON_AddBoolToObject(c, "mlp_bias", b->bias == BIAS_ALL);
  if (family_caps(f) && b->logit_softcap > 0) family_float(c, "final_logit_softcapping", b->logit_softcap);
  if (family_caps(f) && b->logit_softcap == 0) cJSON_AddNullToObject(c, "final_logit_softcapping");
  cJSON *rope = cJSON_AddObjectToObject(c, "rope_parameters");
  const RopeScaling unscaled = {};
  cJSON *full = f->full_every ? cJSON_AddObjectToObject(rope, "full_attention") : rope;
  family_rope_write(full, b->rope_theta, &b->rope_scaling);
  if (f->full_every)
    family_rope_write(cJSON_AddObjectToObject(rope, "sliding_attention"), b->window_theta > 0 ? b->window_theta
                      : b->rope_theta, b->window_theta > 0 ? &unscaled : &b->rope_scaling);
  if (f->windows) {
    if (b->window) cJSON_AddNumberToObject(c, "sliding_window", (double)b->window);
    else cJSON_AddNullToObject(c, "sliding_window");
    if (!f->biasless && !f->full_every) cJSON_AddBoolToObject(c, "use_sliding_window", b->window > 0);
  }
  cJSON *types = family_lists_layers(f) ? cJSON_AddArrayToObject(c, "layer_types") : NULL;
  for (int l = 0; types && l < m->n_layer; l++)
    cJSON_AddItemToArray(types, cJSON_CreateString(layer_window(b, l) ? "sliding_attention" : "full_attention"));
  if (f->skips) {
    cJSON *list = cJSON_AddArrayToObject(c, "no_rope_layers");
    for (int l = 0; l < m->n_layer; l++) cJSON_AddItemToArray(list, cJSON_CreateNumber(layer_rotates(b, l)));
  }
  cJSON_AddBoolToObject(c, "tie_word_embeddings", m->tied);
}
