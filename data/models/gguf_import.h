// gguf_import.h: a GGUF file of GPT-2, Llama, Qwen 2 or Qwen 3 as what a Hugging Face directory is here: a set of files
// with tensors, a config.json, and what was published beside them. Its tokenizer is data/tokenizer/'s to read.
//
// What would change the function that is computed, and no field of a config.json says, is rejected by its key.
#pragma once
#include "families.h"

// The name of part `part` of a parameter. GPT-2's q, k and v are one tensor, and it has no gate. "": none is like it.
static inline void gguf_tensor_name(char to[64], const Param *p, int part, bool gpt2) {
  static const struct { const char *ours, *theirs[3]; } names[] = {
      {"wte", {"token_embd"}}, {"wpe", {"position_embd"}}, {"ln_f", {"output_norm"}}, {"lm_head", {"output"}},
      {"ln_1", {"attn_norm"}}, {"attn.c_attn", {"attn_q", "attn_k", "attn_v"}}, {"attn.q_norm", {"attn_q_norm"}},
      {"attn.k_norm", {"attn_k_norm"}}, {"attn.c_proj", {"attn_output"}}, {"ln_2", {"ffn_norm"}},
      {"attn.norm", {"post_attention_norm"}}, {"mlp.norm", {"post_ffw_norm"}},
      {"mlp.c_fc", {"ffn_gate", "ffn_up"}}, {"mlp.c_proj", {"ffn_down"}}};
  const char *dot = strrchr(p->name, '.'), *inside = p->stage ? strchr(p->name + 2, '.') + 1 : p->name;
  const size_t n = (size_t)(dot - inside);
  char block[32] = "";
  to[0] = 0;
  if (p->stage) snprintf(block, sizeof block, "blk.%d.", p->stage - 1);
  for (const auto &x : names) {
    if (n != strlen(x.ours) || strncmp(inside, x.ours, n)) continue;
    const char *theirs = !gpt2 || !x.theirs[1] ? x.theirs[part] : x.theirs[2] ? "attn_qkv" : "ffn_up";
    snprintf(to, 64, "%s%s%s", block, theirs, dot);
  }
}
// Whether the rows of both halves of a head alternate.
static inline bool gguf_turns(const Family *f, const Param *p, int part) {
  return f && f->gguf && gguf_turns_pairs(f->gguf) && p->matrices == 3 && part < 2;
}
// Divisors of rope's frequencies, (head_size/2), where Llama 3's scaling is asked for, and their number.
static inline int64_t gguf_rope_factors(float to[ROPE_HEAD_MAX / 2], const ModelShape *s) {
  const RopeScaling *r = &s->block.rope_scaling;
  const double hs = (double)s->head_size;
  for (int64_t i = 0; r->kind == ROPE_LLAMA3 && i < s->head_size / 2; i++) {
    const double waves = (double)r->original / (2 * M_PI * pow(s->block.rope_theta, 2.0 * (double)i / hs));
    const double smooth = (waves - r->low) / (r->high - r->low);
    to[i] = (float)(waves > r->high ? 1 : waves < r->low ? r->factor : 1 / ((1 - smooth) / r->factor + smooth));
  }
  return r->kind == ROPE_LLAMA3 ? s->head_size / 2 : 0;
}

// ================================================================================================ tensors
// The entry of a tensor in the table that a safetensors file has too. False: one line in t->file->error.
static inline bool gguf_take_tensor(SafetensorsText *t, const GgufFile *g, const GgufInfo *info,
                                    SafetensorsTensor *to) {
  const GgmlType *type = info->type == BLOCK_NF4 ? NULL : ggml_type(info->type);         // which no GGUF has
  t->tensor = info->name;
  to->name = info->name;
  to->dtype = type ? type->dtype : F32;
  to->known_dtype = type && type->values == 1;
  to->ggml = type && type->expand ? (int32_t)type->id : 0;
  if (type) snprintf(to->dtype_text, sizeof to->dtype_text, "%s", type->name);
  else snprintf(to->dtype_text, sizeof to->dtype_text, "type %u", info->type % 100000);
  to->ndim = info->dims;
  for (int i = 0; i < info->dims; i++) to->shape[i] = info->shape[info->dims - 1 - i];
  if (info->at < 0 || info->at % g->alignment)
    return safetensors_fail(t, "it is at byte %lld of the data, no multiple of %lld: the file is damaged",
                            (long long)info->at, (long long)g->alignment);
  if (type && type->values && info->shape[0] % type->values)
    return safetensors_fail(t, "its rows of %lld numbers are no whole blocks of %lld (%s)", (long long)info->shape[0],
                            (long long)type->values, type->name);
  int64_t rows = 1;
  for (int i = 1; i < info->dims; i++) rows *= info->shape[i];
  to->bytes = type && type->values ? rows * ggml_row_bytes(type->id, info->shape[0]) : 0;      // rejected when placed
  if (info->at > g->file_bytes - g->data_at - to->bytes)
    return safetensors_fail(t, "it ends at byte %lld of the data, the file has %lld of them: it is cut short; fetch it "
                            "again", (long long)(info->at + to->bytes), (long long)(g->file_bytes - g->data_at));
  to->at = g->data_at + info->at;
  return true;
}
// Adds the file PATH to a set; its keys are g's, until the set is closed. False: one line in `error`.
static inline bool gguf_add(SafetensorsSet *s, const char *path, GgufFile *g, Error *error) {
  if (!gguf_open(g, path, error)) return false;
  SafetensorsShard *x = set_grow(s, path);
  SafetensorsText t = {&x->file, path, NULL, NULL, NULL, NULL};
  s->count++;
  x->file.text = (char *)g->header;
  g->header = NULL;
  x->file.bytes = (size_t)g->file_bytes, x->file.data_at = (size_t)g->data_at;
  x->file.tensor = (SafetensorsTensor *)calloc((size_t)g->infos + 1, sizeof *x->file.tensor);
  if (!x->file.tensor) die_missing("no memory for the %d tensors of %.900s", g->infos, path);
  bool ok = true;
  for (; ok && x->file.count < g->infos; x->file.count++)
    ok = gguf_take_tensor(&t, g, &g->info[x->file.count], &x->file.tensor[x->file.count]);
  t.tensor = NULL;
  REJECT(!ok || !safetensors_check_layout(&t, true), "%s", x->file.error);
  return true;
}
// A number of a model that was split; where nothing says it, `absent`.
static inline int gguf_split(const GgufFile *g, const char *name, int absent) {
  double x = absent;
  gguf_number(g, name, &x);
  return x >= 0 && x <= 1 << 24 ? (int)x : -1;
}
// The further files of a model that was split, beside the first, whose keys g has.
static inline bool gguf_add_others(SafetensorsSet *s, const GgufFile *g, Error *error) {
  char path[MAP_PATH_BYTES], of[40], other[MAP_PATH_BYTES + 40];
  snprintf(path, sizeof path, "%s", s->shard[0].path);
  const int count = gguf_split(g, "split.count", 1), number = gguf_split(g, "split.no", 0);
  const size_t n = strlen(path), end = (size_t)snprintf(of, sizeof of, "-00001-of-%05d.gguf", count);
  if (count <= 1) return true;
  REJECT(number, "%s: is file %d of %d of a model that was split: name the first one, which has %s", path, number + 1,
         count, "-00001-of- in its name");
  REJECT(count > MAP_MAX_FILES, "%s: was split into %d files, more than %d", path, count, (int)MAP_MAX_FILES);
  REJECT(n < end || strcmp(path + n - end, of), "%s: is the first of %d files: its name must end in %s, and theirs in "
         "the like", path, count, of);
  int64_t tensors = s->shard[0].file.count;
  for (int i = 1; i < count; i++) {
    GgufFile next;
    snprintf(other, sizeof other, "%.*s-%05d-of-%05d.gguf", (int)(n - end), path, i + 1, count);
    REJECT(!gguf_is(other), "%s: was split into %d files, and %s is not there or no GGUF", path, count, other);
    bool ok = gguf_add(s, other, &next, error);
    const bool its = ok && gguf_split(&next, "split.no", 0) == i && gguf_split(&next, "split.count", 1) == count;
    if (ok) tensors += s->shard[i].file.count;
    gguf_close(&next);
    if (!ok) return false;
    REJECT(!its, "%s: is not file %d of %d of this model", other, i + 1, count);
    for (int k = 0; k < s->shard[i].file.count; k++) {
      int first = 0;
      const char *name = s->shard[i].file.tensor[k].name;
      set_entry(s, name, &first);
      REJECT(first != i, "%.900s: tensor %s is in %.900s too", other, name, s->shard[first].path);
    }
  }
  const int all = gguf_split(g, "split.tensors.count", (int)tensors);
  REJECT(all != tensors, "%s: its files have %lld tensors, split.tensors.count says %d", path, (long long)tensors, all);
  return true;
}
// Opens PATH, which gguf_is, and the files that belong to it; g: its keys, to be closed before the set. False: one
// line in `error`.
static inline bool gguf_open_set(SafetensorsSet *s, const char *path, GgufFile *g, Error *error) {
  return gguf_add(s, path, g, error) && gguf_add_others(s, g, error);
}

// ================================================================================================ config
// A key of the architecture and the field of a config.json, one for GPT-2 and one for the others; NULL: that has none.
static const struct { const char *key, *gpt2, *other; bool needed; } gguf_fields[] = {
    {"block_count", "n_layer", "num_hidden_layers", true},
    {"attention.head_count", "n_head", "num_attention_heads", true},
    {"embedding_length", "n_embd", "hidden_size", true},
    {"feed_forward_length", "n_inner", "intermediate_size", true},
    {"context_length", "n_positions", "max_position_embeddings", true},
    {"attention.head_count_kv", NULL, "num_key_value_heads", false},
    {"attention.key_length", NULL, "head_dim", false},
    {"attention.layer_norm_rms_epsilon", NULL, "rms_norm_eps", true},
    {"attention.layer_norm_epsilon", "layer_norm_epsilon", NULL, true},
    {"rope.freq_base", NULL, "rope_theta", false},
    {"attention.sliding_window", NULL, "sliding_window", false}};
// Keys with another value than this change what is computed.
static const struct { const char *key; double neutral; } gguf_neutral[] = {
    {"expert_count", 0}, {"attention.causal", 1}, {"attention.max_alibi_bias", 0}, {"attention.clamp_kqv", 0},
    {"attention.scale", 0}, {"rope.scaling.yarn_ext_factor", 1}, {"rope.scaling.yarn_attn_factor", 1},
    {"rope.scaling.alpha", 0}, {"logit_scale", 1}, {"residual_scale", 1}, {"embedding_scale", 1},
    {"final_logit_softcapping", 0}, {"attn_logit_softcapping", 0}};

enum { LAYERS_LISTED = 1001 };                   // one more than a model may have
struct GgufName { char text[96]; };
static inline GgufName gguf_name(const char *architecture, const char *key) {
  GgufName n;
  snprintf(n.text, sizeof n.text, "%.24s.%s", architecture, key);
  return n;
}
// A number of the architecture; where the key is missing, what llama.cpp takes then.
static inline double gguf_of(const GgufFile *g, const char *arch, const char *key, double absent) {
  gguf_number(g, gguf_name(arch, key).text, &absent);
  return absent;
}
// rope_scaling, where the keys have one: linear if none says otherwise, by the older key's factor if there is no other.
// llama.cpp multiplies cosines and sines by what yarn has by default times attn_factor; yarn_log_multiplier is
// transformers' mscale_all_dim where mscale is 1.
static inline bool gguf_config_scaling(const GgufFile *g, const char *path, const char *arch, cJSON *c, Error *error) {
  char *kind = gguf_string(g, gguf_name(arch, "rope.scaling.type").text);
  const GgufName type = gguf_name(arch, "rope.scaling.type");
  const bool yarn = kind && !strcmp(kind, "yarn"), none = kind && !strcmp(kind, "none");
  const bool known = none || yarn || !gguf_find(g, type.text) || (kind && !strcmp(kind, "linear"));
  if (!known)
    fail(error, "%s: %s is %s, only none, linear and yarn are supported", path, type.text, kind ?
         safetensors_quoted(kind).text : "no text");
  free(kind);
  if (!known) return false;
  double factor = gguf_of(g, arch, "rope.scaling.factor", gguf_of(g, arch, "rope.scale_linear", 0));
  const double grown = gguf_of(g, arch, "rope.scaling.attn_factor", 1), growth = strcmp(arch, "mistral3") ? 0 :
               gguf_of(g, arch, "attention.temperature_scale", 0);
  if (none || factor == 0) factor = 1;
  REJECT(!yarn && grown != 1, "%s: %s.rope.scaling.attn_factor is %g, only yarn may have another than 1", path, arch,
         grown);
  REJECT(!yarn && growth != 0, "%s: %s.attention.temperature_scale is %g, only yarn may have another than 0", path,
         arch, growth);
  if (!yarn && factor == 1) return true;
  cJSON *to = cJSON_AddObjectToObject(c, "rope_scaling");
  cJSON_AddStringToObject(to, "rope_type", yarn ? "yarn" : "linear");
  cJSON_AddNumberToObject(to, "factor", factor);
  if (!yarn) return true;
  const double original = gguf_of(g, arch, "rope.scaling.original_context_length", 0);
  const double all = gguf_of(g, arch, "rope.scaling.yarn_log_multiplier", 0);
  const double wider = factor > 1 ? 0.1 * log(factor) : 0;
  const double usual = all != 0 ? (1 + wider) / (1 + wider * all) : 1 + wider;
  char text[32];
  if (original != 0) cJSON_AddNumberToObject(to, "original_max_position_embeddings", original);
  cJSON_AddNumberToObject(to, "beta_fast", gguf_of(g, arch, "rope.scaling.yarn_beta_fast", 32));
  cJSON_AddNumberToObject(to, "beta_slow", gguf_of(g, arch, "rope.scaling.yarn_beta_slow", 1));
  snprintf(text, sizeof text, "%.7g", usual * grown);            // of a factor in fp32
  cJSON_AddNumberToObject(to, "attention_factor", grown == 1 ? usual : strtod(text, NULL));
  if (growth != 0) cJSON_AddNumberToObject(to, "llama_4_scaling_beta", growth);
  return true;
}
// Heads: where keys are missing, the width is shared evenly, and there are as many of k and v. All must be alike.
static inline bool gguf_config_heads(const GgufFile *g, const char *path, const char *arch, cJSON *c, Error *error) {
  const bool gpt2 = !strcmp(arch, "gpt2");
  const double heads = gguf_of(g, arch, "attention.head_count", 1), even =
               heads >= 1 ? floor(gguf_of(g, arch, "embedding_length", 0) / heads) : 0;
  const double size = gpt2 ? even : gguf_of(g, arch, "attention.key_length", even);
  const double of_v = gguf_of(g, arch, "attention.value_length", even);
  const struct { const char *key; double is, want; } same[] = {
      {"attention.key_length", gguf_of(g, arch, "attention.key_length", even), size},
      {"attention.value_length", of_v, size},
      {"rope.dimension_count", gpt2 ? size : gguf_of(g, arch, "rope.dimension_count", size), size},
      {"attention.key_length_swa", gguf_of(g, arch, "attention.key_length_swa", size), size},
      {"attention.value_length_swa", gguf_of(g, arch, "attention.value_length_swa", of_v), size},
      {"rope.dimension_count_swa", gguf_of(g, arch, "rope.dimension_count_swa", size), size},
      {"attention.head_count_kv", gpt2 ? gguf_of(g, arch, "attention.head_count_kv", heads) : heads, heads}};
  for (const auto &x : same) {
    const GgufName key = gguf_name(arch, x.key);
    REJECT(x.is != x.want, "%s: %s is %s%g, only %.10g, all of a head, is supported", path, key.text, gguf_find(g,
           key.text) ? "" : "missing, which means ", x.is, x.want);
  }
  if (gpt2) return true;
  if (!cJSON_HasObjectItem(c, "head_dim")) cJSON_AddNumberToObject(c, "head_dim", even);
  if (!cJSON_HasObjectItem(c, "num_key_value_heads")) cJSON_AddNumberToObject(c, "num_key_value_heads", heads);
  if (!cJSON_HasObjectItem(c, "rope_theta")) cJSON_AddNumberToObject(c, "rope_theta", 1e4);
  return true;
}
static inline bool gguf_config_numbers(const GgufFile *g, const char *path, const char *arch, cJSON *c, Error *error) {
  const bool gpt2 = !strcmp(arch, "gpt2");
  const size_t n = strlen(arch);
  double x = 0;
  for (int i = 0; i < g->keys; i++) {            // those of attention and rope are numbers, but for these
    const char *name = g->key[i].name, *of = name + n;
    if (strncmp(name, arch, n) || (strncmp(of, ".attention.", 11) && strncmp(of, ".rope.", 6))) continue;
    const bool other = !strcmp(of, ".rope.scaling.type") || !strcmp(of, ".attention.sliding_window_pattern");
    REJECT(!other && !gguf_number(g, name, &x), "%s: %s is not one number: layers that differ are not computed here",
           path, name);
  }
  for (const auto &f : gguf_fields) {
    const char *field = gpt2 ? f.gpt2 : f.other;
    const GgufName key = gguf_name(arch, f.key);
    const bool there = gguf_number(g, key.text, &x);
    if (!field || (!there && !f.needed && !gguf_find(g, key.text))) continue;
    REJECT(!there, "%s: %s is %s", path, key.text, gguf_find(g, key.text) ? "not one number: layers that differ are "
           "not computed here" : "missing");
    cJSON_AddNumberToObject(c, field, x);
  }
  for (const auto &f : gguf_neutral) {
    const GgufName key = gguf_name(arch, f.key);
    REJECT(gguf_find(g, key.text) && (!gguf_number(g, key.text, &x) || x != f.neutral), "%s: %s is %g, only %g is "
           "supported", path, key.text, x, f.neutral);
  }
  return gguf_config_heads(g, path, arch, c, error) &&
         (gpt2 || gguf_config_scaling(g, path, arch, c, error));
}
// Llama 3's RoPE scaling has no keys but a tensor of divisors. All published models have low 1, high 4 and a power of
// two as original positions, mostly 8192: the power whose divisors equal the tensor's is taken.
static inline bool gguf_config_rope(const SafetensorsSet *s, cJSON *c, Error *error) {
  int in = 0;
  float want[ROPE_HEAD_MAX / 2], got[ROPE_HEAD_MAX / 2];
  const SafetensorsTensor *t = set_entry(s, "rope_freqs.weight", &in);
  if (!t) return true;
  const char *path = s->shard[in].path;
  ModelShape m = {};
  const double hs = cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(c, "head_dim"));
  REJECT(!(hs >= 2 && hs <= ROPE_HEAD_MAX) || t->ndim != 1 || !t->known_dtype || t->dtype != F32 || t->shape[0] !=
         (int64_t)hs / 2, "%s: tensor rope_freqs.weight is %s %s, expected F32, half a head", path, t->dtype_text,
         import_shape_text(t->ndim, t->shape).text);
  const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  const bool read = fd >= 0 && file_read(fd, want, t->bytes, t->at);
  if (fd >= 0) close(fd);
  REJECT(!read, "%s: cannot read it: %s", path, strerror(errno));
  m.head_size = (int64_t)hs;
  m.block.rope_theta = cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(c, "rope_theta"));
  bool fits = false;
  for (int power = 3; !fits && power <= 20; power++) {
    m.block.rope_scaling = RopeScaling{ROPE_LLAMA3, want[t->shape[0] - 1], 1, 4, 1 << (power == 3 ? 13 : power), 0, 0};
    fits = gguf_rope_factors(got, &m) == t->shape[0];
    for (int64_t i = 0; fits && i < t->shape[0]; i++) fits = fabsf(want[i] - got[i]) <= 1e-5f * got[i];
  }
  REJECT(!fits, "%s: rope_freqs.weight is not Llama 3's with low_freq_factor 1 and high_freq_factor 4, and no other is "
         "known: name the directory that it was made from, with config.json", path);
  const RopeScaling *r = &m.block.rope_scaling;
  char text[200];
  snprintf(text, sizeof text, "{\"rope_type\":\"llama3\",\"factor\":%.9g,\"low_freq_factor\":1,\"high_freq_factor\":4,"
           "\"original_max_position_embeddings\":%lld}", r->factor, (long long)r->original);
  REJECT(cJSON_HasObjectItem(c, "rope_scaling"), "%s: has rope_freqs.weight and keys of rope.scaling: one is supported",
         path);
  cJSON_AddItemToObject(c, "rope_scaling", cJSON_Parse(text));
  return true;
}
// llama.cpp divides Gemma's scores by the root of a head's columns, but those of 62 layers, 27B's, by that of the width
// of one.
static inline double gguf_gemma_scale(const cJSON *c) {
  double x[4];
  static const char *const names[] = {"num_hidden_layers", "hidden_size", "num_attention_heads", "head_dim"};
  for (int i = 0; i < 4; i++) x[i] = cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(c, names[i]));
  return x[0] == 62 ? floor(x[1] / x[2]) : x[3];
}
// Which layers have a window, if the keys say how long it is, and rope's base in them, where the keys say so: else the
// class's default, which is llama.cpp's.
static inline void gguf_config_layers(const GgufFile *g, const char *arch, const Family *f, bool window, cJSON *c) {
  const GgufKey *pattern = gguf_find(g, gguf_name(arch, "attention.sliding_window_pattern").text);
  double x = cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(c, "rope_theta"));
  cJSON_AddBoolToObject(c, "use_sliding_window", window);
  if (window) cJSON_AddNumberToObject(c, "max_window_layers", 0);              // no key says it: Qwen's class has 28
  if (!f || !f->full_every) return;
  if (f->gemma) cJSON_AddNumberToObject(c, "query_pre_attn_scalar", gguf_gemma_scale(c));
  if (!window) return;
  const bool own = gguf_number(g, gguf_name(arch, "rope.freq_base_swa").text, &x);
  if (own || f->window_theta == f->theta) cJSON_AddNumberToObject(c, "rope_local_base_freq", x);
  if (gguf_number(g, gguf_name(arch, "attention.sliding_window_pattern").text, &x))
    cJSON_AddNumberToObject(c, "sliding_window_pattern", x);
  if (!pattern || !pattern->is_array || pattern->type != GGUF_BOOL) return;
  cJSON *types = cJSON_AddArrayToObject(c, "layer_types");
  for (uint64_t i = 0; i < pattern->count && i < LAYERS_LISTED; i++)
    cJSON_AddItemToArray(types, cJSON_CreateString(pattern->at[i] ? "sliding_attention" : "full_attention"));
}
// Writes the fields of a config.json for the model to c. Returns false, with one line in `error`, on failure.
static inline bool gguf_config(const GgufFile *g, const SafetensorsSet *s, cJSON *c, Error *error) {
  const char *path = s->shard[0].path;
  char *arch = gguf_string(g, "general.architecture"), *kind = gguf_string(g, "general.type");
  const SafetensorsTensor *wte = set_entry(s, "token_embd.weight", NULL);
  const GgufName slides = gguf_name(arch ? arch : "", "attention.sliding_window");
  double window = 0;
  gguf_number(g, slides.text, &window);
  const Family *family = arch ? family_of_gguf(arch, window > 0) : NULL;
  const bool gpt2 = arch && !strcmp(arch, "gpt2"), known = gpt2 || (family && family->gguf);
  bool ok = false;
  if (kind && !strcmp(kind, "adapter"))
    fail(error, "%s: is an adapter, no model: name the model that it is for", path);
  else if (!known)
    fail(error, "%s: general.architecture is %s, expected gpt2, llama, qwen2, qwen3, olmo2, gemma3 or mistral3: "
         "another model is not computed here", path, arch ? safetensors_quoted(arch).text : "missing");
  else if (!wte || wte->ndim != 2)
    fail(error, "%s: tensor token_embd.weight is %s", path, wte ? "no matrix" : "missing");
  else ok = gguf_config_numbers(g, path, arch, c, error);
  if (ok) {
    cJSON_AddStringToObject(c, "model_type", gpt2 ? arch : family->model_type);
    cJSON_AddNumberToObject(c, "vocab_size", (double)wte->shape[0]);
    cJSON_AddBoolToObject(c, "tie_word_embeddings", !set_entry(s, "output.weight", NULL));
    cJSON_AddBoolToObject(c, "attention_bias", set_entry(s, "blk.0.attn_q.bias", NULL) != NULL);
    cJSON_AddBoolToObject(c, "mlp_bias", set_entry(s, "blk.0.ffn_up.bias", NULL) != NULL);
    gguf_config_layers(g, arch, family, window > 0, c);
    for (const char *name : gpt2_dropouts) cJSON_AddNumberToObject(c, name, 0);
  }
  free(arch);
  free(kind);
  return ok && (gpt2 || gguf_config_rope(s, c, error));
}
