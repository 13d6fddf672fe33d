// interchange.h: imports models of other programs. The names and places of a file's tensors become a TensorMap, with
// which every rank reads its own parts; no converted copy is made.
//
//   1 names      the two layouts of GPT-2 in safetensors, complaints that name tensors
//   2 config     config.json of Hugging Face -> ModelShape: GPT-2's here, others' in families.h
//   3 llm.c      the .bin files of https://github.com/karpathy/llm.c, versions 3 (fp32) and 5 (bf16)
//   4 import     of these, and of GGUF (gguf_import.h): import_open (kind and shape) -> import_map (places of all
//                parameters) -> import_close
//
// Layouts
//   ours           wte.weight, h.0.attn.c_attn.weight, ...; matrices (out,in); n_head in the header's __metadata__
//   Hugging Face   the same names, with the prefix "transformer." except lm_head.weight (the published files: without
//                  it); a block's four matrices (in,out), because they belong to its Conv1D; n_head in config.json
//   families       model.layers.0.self_attn.q_proj.weight, ...: (out,in); q, k, v, gate and up are tensors of their own
//   llm.c          no names: 16 tensors of all blocks together, (out,in); the head is always tied
//
// All of it runs on one rank and reads untrusted files. Every function that can fail returns false and leaves one line
// in `error`: file, tensor or field, what was expected, what was found.
#pragma once
#include "gguf_import.h"
#include "published.h"

struct Import {
  ImportFacts is;
  char path[MAP_PATH_BYTES];                     // of the file that has the weights, or of the index of several
  int64_t file_bytes;                            // of llm.c
  bool prefixed;                                 // GPT-2 of Hugging Face: names start with "transformer."
  const Family *family;                          // of Hugging Face; NULL: GPT-2
  bool with_images;                              // its text model is taken: names start with "language_model."
  SafetensorsSet set;                            // not of llm.c
  Dtype dtype;                                   // of llm.c
  int64_t padded_vocab;                          // of llm.c: rows of wte in the file
};

// ================================================================================================ 1 names
static const char import_hf_prefix[] = "transformer.";
static inline int import_compare(const void *a, const void *b) {
  return strcmp((*(const Param *const *)a)->name, (*(const Param *const *)b)->name);
}
// Parameters by name: an index of `params` pointers, sorted, malloc'ed.
static inline const Param **import_index(const Param *param, int params) {
  const Param **index = (const Param **)malloc(sizeof *index * (size_t)params);
  for (int i = 0; i < params; i++) index[i] = &param[i];
  qsort(index, (size_t)params, sizeof *index, import_compare);
  return index;
}
// The parameter called `name`, or NULL.
static inline const Param *import_find(const Param *const *index, int params, const char *name) {
  for (int low = 0, high = params; low < high;) {
    const int middle = (low + high) / 2, order = strcmp(name, index[middle]->name);
    if (!order) return index[middle];
    if (order < 0) high = middle;
    else low = middle + 1;
  }
  return NULL;
}

// The matrices that are Hugging Face's Conv1D, stored (in,out): all those of blocks.
static inline bool import_is_conv1d(const Param *p) { return p->ndim == 2 && !strncmp(p->name, "h.", 2); }

// The causal masks that older transformers stored beside the weights: h.N.attn.bias and h.N.attn.masked_bias.
static inline bool import_is_mask(const char *name) {
  if (strncmp(name, "h.", 2)) return false;
  const size_t digits = strspn(name + 2, "0123456789");
  const char *rest = name + 2 + digits;
  return digits && (!strcmp(rest, ".attn.bias") || !strcmp(rest, ".attn.masked_bias"));
}

// ================================================================================================ 2 config
// The largest shapes that this program builds; larger numbers in a file are treated as damage.
static const ImportField import_fields[] = {
    {"n_layer", offsetof(ModelShape, n_layer), 1000, true},
    {"n_head", offsetof(ModelShape, n_head), 1000, true},
    {"n_embd", offsetof(ModelShape, n_embd), 65536, true},
    {"n_positions", offsetof(ModelShape, n_positions), 1 << 20, true},
    {"vocab_size", offsetof(ModelShape, vocab_size), 1 << 24, true}};

// Checks the numbers of a shape read from PATH against these limits.
static inline bool import_check_shape(const ModelShape *m, const char *path, Error *error) {
  for (const ImportField &f : import_fields) {
    const int64_t value = *(const int64_t *)((const char *)m + f.offset);
    REJECT(value < 1 || value > f.highest, "%s: %s is %lld, expected 1 to %lld", path, f.name, (long long)value,
           (long long)f.highest);
  }
  REJECT(m->n_embd % m->n_head, "%s: n_head %lld does not divide n_embd %lld", path, (long long)m->n_head,
         (long long)m->n_embd);
  return true;
}

// Checks a text field, which must be `known` or `known_2`; absent: it may be missing.
static inline bool import_config_text(const ImportConfig *c, const char *name, const char *known, const char *known_2,
                                      bool absent) {
  const cJSON *x;
  if (!import_config_get(c, name, &x)) return false;
  if (!x && absent) return true;
  if (cJSON_IsString(x) && (!strcmp(x->valuestring, known) || !strcmp(x->valuestring, known_2))) return true;
  return import_config_reject(c, "%s is %s, expected %s: this is not the GPT-2 that is computed here", name,
                              cJSON_IsString(x) ? safetensors_quoted(x->valuestring).text : x ? "not text" : "missing",
                              known);
}

// Fails if a field would change the function that the model computes. Absent fields have transformers' GPT2Config's
// values.
static inline bool import_config_check(const ImportConfig *c, const ModelShape *m) {
  static const struct { const char *name; bool value; } flags[] = {
      {"scale_attn_weights", true}, {"scale_attn_by_inverse_layer_idx", false}, {"add_cross_attention", false}};
  if (!import_config_text(c, "activation_function", "gelu_new", "gelu_pytorch_tanh", true)) return false;
  for (const auto &f : flags) {
    bool value = f.value;
    if (!import_config_flag(c, f.name, f.value, &value)) return false;
    if (value != f.value)
      return import_config_reject(c, "%s is %s, only %s is supported", f.name, value ? "true" : "false",
                                  f.value ? "true" : "false");
  }
  double epsilon = 0, inner = 0;
  if (!import_config_number(c, "layer_norm_epsilon", 1e-5, &epsilon)) return false;
  if (!(fabs(epsilon - 1e-5) < 1e-10))           // 1e-5 rounded to fp32 passes
    return import_config_reject(c, "layer_norm_epsilon is %g, only 1e-5 is supported", epsilon);
  const double wide = 4.0 * (double)m->n_embd;
  if (!import_config_number(c, "n_inner", wide, &inner)) return false;
  if (inner != wide)
    return import_config_reject(c, "n_inner is %.10g, only null or 4 n_embd = %.10g is supported", inner, wide);
  return import_config_quantized(c, false);
}

// Reads dropout: this program has one rate, the file three; `warning` says so if these differ.
static inline bool import_config_dropout(const ImportConfig *c, double *dropout, char *warning, size_t warning_bytes) {
  double p[3] = {};
  for (int i = 0; i < 3; i++) {
    if (!import_config_number(c, gpt2_dropouts[i], 0.1, &p[i])) return false;
    if (p[i] >= 0 && p[i] <= 0.99) continue;
    return import_config_reject(c, "%s is %g, expected 0 to 0.99", gpt2_dropouts[i], p[i]);
  }
  *dropout = p[2];
  if (p[1] != p[2] || p[0] != p[2])
    snprintf(warning, warning_bytes, "embd_pdrop %g and attn_pdrop %g are not resid_pdrop %g: dropout %g is used in "
             "all three places", p[1], p[0], p[2], p[2]);
  return true;
}

// Modern architectures have dropout in attention only, and hardly any model uses it: `warning` says that it is ignored.
static inline bool import_config_attention_dropout(const ImportConfig *c, char *warning, size_t warning_bytes) {
  double p = 0;
  if (!import_config_number(c, "attention_dropout", 0, &p)) return false;
  if (p != 0)
    snprintf(warning, warning_bytes, "attention_dropout %g is not taken: --dropout (0) is for all three places", p);
  return true;
}

// Fills s->is.shape and s->is.warning from the fields, once the file is known to be an object.
static inline bool import_config_read(const ImportConfig *c, Import *s) {
  ModelShape *m = &s->is.shape;
  const cJSON *type;
  if (!import_config_get(c, "model_type", &type)) return false;
  s->family = cJSON_IsString(type) ? family_of_type(type->valuestring) : NULL;
  if (s->family)
    return family_config_read(c, s->family, m) &&
           import_config_attention_dropout(c, s->is.warning, sizeof s->is.warning) &&
           family_window(c, s->family, m, s->is.warning, sizeof s->is.warning);
  if (!cJSON_IsString(type) || strcmp(type->valuestring, "gpt2"))
    return import_config_reject(c, "model_type is %s, expected %s: another model is not computed here",
                                cJSON_IsString(type) ? safetensors_quoted(type->valuestring).text
                                : type               ? "not text"
                                                     : "missing",
                                family_types);
  for (const ImportField &f : import_fields) if (!import_config_size(c, &f, m)) return false;
  *m = model_shape_gpt2(m->n_layer, m->n_head, m->n_embd, m->n_positions, m->vocab_size, true, 0);
  return import_check_shape(m, c->path, c->error) && import_config_check(c, m) &&
         import_config_flag(c, "tie_word_embeddings", true, &m->tied) &&
         import_config_dropout(c, &m->dropout, s->is.warning, sizeof s->is.warning);
}

// The fields of the text model in those of a model with images too, as Ministral 3's files have it; else all.
static inline const cJSON *import_text_config(cJSON *root) {
  cJSON *text = cJSON_GetObjectItemCaseSensitive(root, "text_config");
  const char *type = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(root, "model_type"));
  if (!cJSON_IsObject(text) || !type || (strcmp(type, "mistral3") && strcmp(type, "gemma3"))) return root;
  for (const char *name : {"tie_word_embeddings", "quantization_config"}) {
    cJSON *x = cJSON_HasObjectItem(text, name) ? NULL : cJSON_DetachItemFromObjectCaseSensitive(root, name);
    if (x) cJSON_AddItemToObject(text, name, x);
  }
  return text;
}
// Reads DIRECTORY/config.json into s->is.shape.
static inline bool import_config(Import *s, const char *directory, Error *error) {
  char path[MAP_PATH_BYTES + 32];
  enum { HIGHEST_BYTES = 1 << 20 };
  snprintf(path, sizeof path, "%s/config.json", directory);
  cJSON *root = import_read_json(path, HIGHEST_BYTES, error);
  const ImportConfig c = {import_text_config(root), path, error};
  const bool ok = root && import_config_read(&c, s);
  s->with_images = c.root != root;
  cJSON_Delete(root);
  return ok;
}

// ================================================================================================ 3 llm.c
// A header of 256 int32: magic, version, maxT, V, L, NH, C, padded V; then the tensors in this order, each of all
// blocks together. Rows and columns in units of C; rows 0: the vocabulary or the positions.
struct LlmcTensor { const char *name; bool block; int rows, cols; };
static const LlmcTensor llmc_tensors[] = {
    {"wte.weight", false, 0, 1},         {"wpe.weight", false, 0, 1},
    {"ln_1.weight", true, 1, 0},         {"ln_1.bias", true, 1, 0},
    {"attn.c_attn.weight", true, 3, 1},  {"attn.c_attn.bias", true, 3, 0},
    {"attn.c_proj.weight", true, 1, 1},  {"attn.c_proj.bias", true, 1, 0},
    {"ln_2.weight", true, 1, 0},         {"ln_2.bias", true, 1, 0},
    {"mlp.c_fc.weight", true, 4, 1},     {"mlp.c_fc.bias", true, 4, 0},
    {"mlp.c_proj.weight", true, 1, 4},   {"mlp.c_proj.bias", true, 1, 0},
    {"ln_f.weight", false, 1, 0},        {"ln_f.bias", false, 1, 0}};
enum { LLMC_MAGIC = 20240326, LLMC_HEADER_BYTES = 1024, LLMC_WTE = 0, LLMC_WPE = 1 };

// Shape of the i-th tensor of one block as a parameter; columns -1: one dimension.
static inline void llmc_shape(const ModelShape *m, int i, int64_t shape[2]) {
  const LlmcTensor *t = &llmc_tensors[i];
  shape[0] = i == LLMC_WTE ? m->vocab_size : i == LLMC_WPE ? m->n_positions : t->rows * m->n_embd;
  shape[1] = t->cols ? t->cols * m->n_embd : -1;
}
// Bytes in the file of the i-th tensor of one block.
static inline int64_t llmc_tensor_bytes(const Import *s, int i) {
  int64_t shape[2];
  llmc_shape(&s->is.shape, i, shape);
  if (i == LLMC_WTE) shape[0] = s->padded_vocab;
  return shape[0] * (shape[1] < 0 ? 1 : shape[1]) * (int64_t)dtype_bytes(s->dtype);
}

// Reads the header of an llm.c model. s->path and s->file_bytes are set.
static inline bool llmc_open(Import *s, const int32_t header[256], Error *error) {
  const int version = header[1];
  REJECT(s->file_bytes < LLMC_HEADER_BYTES, "%s: ends after %lld bytes, the header of an llm.c model has %d", s->path,
         (long long)s->file_bytes, LLMC_HEADER_BYTES);
  REJECT(version != 3 && version != 5, "%s: is an llm.c model of version %d; versions 3 (fp32) and 5 (bf16) are read: "
         "write it again with a current llm.c", s->path, version);
  s->is.kind = IMPORT_LLMC;
  s->dtype = version == 3 ? F32 : BF16;
  s->padded_vocab = header[7];
  s->is.shape = model_shape_gpt2(header[4], header[5], header[6], header[2], header[3], true, 0);
  if (!import_check_shape(&s->is.shape, s->path, error)) return false;
  REJECT(s->padded_vocab < s->is.shape.vocab_size || s->padded_vocab > 2 << 24, "%s: the padded vocabulary has %lld "
         "tokens, the vocabulary %lld", s->path, (long long)s->padded_vocab, (long long)s->is.shape.vocab_size);
  int64_t expected = LLMC_HEADER_BYTES;
  for (int i = 0; i < (int)(sizeof llmc_tensors / sizeof *llmc_tensors); i++)
    expected += llmc_tensor_bytes(s, i) * (llmc_tensors[i].block ? s->is.shape.n_layer : 1);
  REJECT(s->file_bytes != expected, "%s: has %lld bytes, its header asks for %lld; it is cut short or damaged", s->path,
         (long long)s->file_bytes, (long long)expected);
  return true;
}

// Places every tensor of an llm.c file, or complains that no parameter has its name and shape. Only the rows of the
// vocabulary are taken from wte: the padding follows them.
static inline void llmc_map(const Import *s, const Param *param, const Param *const *index, int params, TensorMap *map,
                            ImportComplaints *complaints) {
  int64_t at = LLMC_HEADER_BYTES;
  for (int i = 0; i < (int)(sizeof llmc_tensors / sizeof *llmc_tensors); i++) {
    const LlmcTensor *t = &llmc_tensors[i];
    for (int l = 0; l < (t->block ? (int)s->is.shape.n_layer : 1); l++, at += llmc_tensor_bytes(s, i)) {
      char name[64];
      int64_t shape[2];
      if (t->block) snprintf(name, sizeof name, "h.%d.%s", l, t->name);
      else snprintf(name, sizeof name, "%s", t->name);
      llmc_shape(&s->is.shape, i, shape);
      const Param *p = import_find(index, params, name);
      if (!p) import_complain(complaints, "tensor %s is not in the model asked for", name);
      else if (p->shape[0] != shape[0] || (p->ndim == 2 ? p->shape[1] : -1) != shape[1])
        import_complain(complaints, "tensor %s is %s, expected %s", name,
                        import_shape_text(shape[1] < 0 ? 1 : 2, shape).text, import_shape_text(p->ndim, p->shape).text);
      else *tensor_place(map, 0, (int)(p - param)) = TensorPlace{0, s->dtype, false, at, 0, 0};
    }
  }
}

// ================================================================================================ 4 import
// Whether `directory` has a file `name`.
static inline bool import_exists(const char *directory, const char *name) {
  char path[MAP_PATH_BYTES + 64];
  struct stat st;
  snprintf(path, sizeof path, "%s/%s", directory, name);
  return !stat(path, &st);
}
// Sets s->is.tokenizer to `directory` if it has a tokenizer, even one that will be rejected.
static inline void import_find_tokenizer(Import *s, const char *directory) {
  const bool there = import_exists(directory, "tokenizer.json") || import_exists(directory, "tokenizer.model") ||
                     (import_exists(directory, "vocab.json") && import_exists(directory, "merges.txt"));
  if (there) snprintf(s->is.tokenizer, sizeof s->is.tokenizer, "%s", directory);
}
// What wrappers of PyTorch put into names of tensors: torch.compile, FSDP, activation checkpointing. ImportNames: the
// prefix `cut` of all names, such as DDP's "module.", is removed, and `put` is put before all names but lm_head's.
static const char *const import_wrappers[] = {"_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module."};
struct ImportNames { char cut[128]; const char *put; };
static inline bool import_unwrap(char *name) {
  bool any = false;
  for (const char *w : import_wrappers)
    for (char *at; (at = strstr(name, w)); any = true) memmove(at, at + strlen(w), strlen(at + strlen(w)) + 1);
  return any;
}
static inline void import_rename(char *name, const void *names) {
  const ImportNames *n = (const ImportNames *)names;
  import_unwrap(name);
  const size_t cut = strncmp(name, n->cut, strlen(n->cut)) ? 0 : strlen(n->cut);
  const size_t put = strcmp(name + cut, "lm_head.weight") ? strlen(n->put) : 0;
  memmove(name + put, name + cut, strlen(name + cut) + 1);
  memcpy(name, n->put, put);
}
// The names of a model with images as transformers keeps them in memory, and other programs save them, as published.
static inline void import_rename_images(char *name, const void *) {
  static const char text[] = "model.language_model.", published[] = "language_model.model.";
  const size_t n = sizeof text - 1, put = strlen("language_model.");
  import_unwrap(name);
  if (!strncmp(name, text, n)) memcpy(name, published, n);
  if (strncmp(name, "lm_head.", 8)) return;
  memmove(name + put, name, strlen(name) + 1);
  memcpy(name, published, put);
}
// Whether a name ends in `end`, after a dot or from its start.
static inline bool import_ends(const char *name, size_t n, const char *end) {
  const size_t k = strlen(end);
  return n >= k && !strncmp(name + n - k, end, k) && (n == k || name[n - k - 1] == '.');
}
// Renames tensors as transformers names them. The prefix to remove is what the embedding's name has before its usual
// one; nothing is renamed so unless all tensors have this prefix.
static inline bool import_usual_names(SafetensorsSet *set, bool with_images, Error *error) {
  ImportNames names = {"", ""};
  bool wrapped = false, found = false, shared = true;
  char name[256];
  for (int k = 0; with_images && k < set->count; k++)
    for (int i = 0; i < set->shard[k].file.count; i++) {
      const char *at = strstr(set->shard[k].file.tensor[i].name, "model.language_model.");
      // Behind a wrapper's "model." language_model has a model and a head, as in files.
      if (at && strncmp(at += strlen("model.language_model."), "model.", 6) && strncmp(at, "lm_head.", 8))
        return set_rename(set, strlen("language_model."), import_rename_images, NULL, error);
    }
  for (int pass = 0; pass < 2; pass++)
    for (int k = 0; k < set->count; k++)
      for (int i = 0; i < set->shard[k].file.count; i++) {
        snprintf(name, sizeof name, "%s", set->shard[k].file.tensor[i].name);
        wrapped = import_unwrap(name) || wrapped;
        if (pass && (!names.put[0] || strcmp(name, "lm_head.weight")))
          shared = shared && !strncmp(name, names.cut, strlen(names.cut));
        for (const char *end : {"embed_tokens.weight", "wte.weight"}) {
          size_t n = strlen(name) - strlen(end);
          if (pass || found || !import_ends(name, strlen(name), end) || n >= sizeof names.cut) continue;
          const char *usual = *end == 'w' ? import_hf_prefix : "model.";
          found = true;
          if (import_ends(name, n, "language_model.model.")) usual = "language_model.model.";
          if (import_ends(name, n, usual)) n -= strlen(usual);
          else if (*end == 'e') names.put = usual;
          snprintf(names.cut, sizeof names.cut, "%.*s", (int)n, name);
        }
      }
  if (!shared) names.cut[0] = 0, names.put = "";
  return (!wrapped && !names.cut[0] && !names.put[0]) ||
         set_rename(set, strlen(names.put), import_rename, &names, error);
}
// Maps s->path, or the files of the index in directory `index_in`. s->prefixed: whether names have import_hf_prefix.
static inline bool import_open_safetensors(Import *s, const char *index_in, Error *error) {
  const bool open = index_in ? set_open_index(&s->set, index_in, error)
                             : set_open(&s->set, s->path, error);
  if (!open || !import_usual_names(&s->set, s->with_images, error)) return false;
  const int nf4 = nf4_count(&s->set);
  if (nf4)
    text_add(s->is.warning, sizeof s->is.warning, "%s%d matrices in NF4 (bitsandbytes) are dequantized as they are "
             "read, and kept in --param_dtype", s->is.warning[0] ? "; " : "", nf4);
  for (int k = 0; k < s->set.count; k++)
    for (int i = 0; i < s->set.shard[k].file.count && !s->prefixed; i++)
      s->prefixed = !strncmp(s->set.shard[k].file.tensor[i].name, import_hf_prefix, sizeof import_hf_prefix - 1);
  return true;
}

// Sets s->is.shape to that of the model in a file of this program's layout ("ours"), from the shapes of its tensors and
// n_head in its __metadata__.
static inline bool import_own_shape(Import *s, const SafetensorsTensor *wte, Error *error) {
  const SafetensorsTensor *wpe = set_entry(&s->set, "wpe.weight", NULL);
  const char *heads = safetensors_metadata(&s->set.shard[0].file, "n_head");
  char name[64], *end = NULL;
  REJECT(!heads, "%s: its __metadata__ has no n_head, so the heads are unknown, or its block is not GPT-2's; name the "
         "directory of the checkpoint or export instead of this file", s->path);
  REJECT(!wpe || wpe->ndim != 2, "%s: tensor wpe.weight is %s", s->path, wpe ? "not a matrix" : "missing");
  ModelShape *m = &s->is.shape;
  *m = model_shape_gpt2(0, strtoll(heads, &end, 10), wte->shape[1], wpe->shape[0], wte->shape[0],
                        !set_entry(&s->set, "lm_head.weight", NULL), 0);
  if (end == heads || *end) m->n_head = 0;
  for (; m->n_layer <= import_fields[0].highest; m->n_layer++) {           // the field n_layer
    snprintf(name, sizeof name, "h.%lld.ln_1.weight", (long long)m->n_layer);
    if (!set_entry(&s->set, name, NULL)) break;
  }
  return import_check_shape(m, s->path, error);
}

// Opens the .safetensors file s->path, which is in `directory`: in this program's layout, or in Hugging Face's, which
// needs config.json beside it.
static inline bool import_open_file(Import *s, const char *directory, Error *error) {
  static const char *const names[] = {"wte.weight", "h.0.attn.c_attn.weight"};
  const SafetensorsTensor *t[2];
  if (!import_open_safetensors(s, NULL, error)) return false;
  import_find_tokenizer(s, directory);
  bool matrices = true;
  for (int i = 0; i < 2; i++) {
    t[i] = set_entry(&s->set, names[i], NULL);
    matrices = matrices && t[i] && t[i]->ndim == 2;
  }
  if (!s->prefixed && matrices && t[1]->shape[1] == t[0]->shape[1]) {          // (3C,C) and (V,C); Hugging Face: (C,3C)
    s->is.kind = IMPORT_SAFETENSORS;
    return import_own_shape(s, t[0], error);
  }
  s->is.kind = IMPORT_HF_DIRECTORY;
  const bool has_config = import_exists(directory, "config.json");             // it may name another family
  if (has_config && !import_config(s, directory, error)) return false;
  if (s->family) return true;
  for (int i = 0; i < 2; i++)
    REJECT(!s->prefixed && (!t[i] || t[i]->ndim != 2), "%s: tensor %s is %s: this is not a GPT-2 model", s->path,
           names[i], t[i] ? "not a matrix" : "missing");
  REJECT(!has_config, "%s: has Hugging Face's layout, which needs the config.json it was saved with beside it",
         s->path);
  return true;
}

// Opens a directory that has config.json, which is read first: a model of another kind is rejected by its name.
static inline bool import_open_directory(Import *s, const char *directory, Error *error) {
  static const char *const others[] = {"pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5",
                                       "flax_model.msgpack"};
  s->is.kind = IMPORT_HF_DIRECTORY;
  if (!import_config(s, directory, error)) return false;
  import_find_tokenizer(s, directory);
  if (import_exists(directory, "model.safetensors")) return import_open_safetensors(s, NULL, error);
  if (import_exists(directory, set_index_name)) {
    snprintf(s->path, sizeof s->path, "%s/%s", directory, set_index_name);
    return import_open_safetensors(s, directory, error);
  }
  for (const char *name : others)
    REJECT(import_exists(directory, name), "%.800s: has its weights in %s, only safetensors are read; convert them in "
           "Python: transformers.AutoModelForCausalLM.from_pretrained('%.800s').save_pretrained('NEW')", directory,
           name, directory);
  REJECT(true, "%s: has config.json but no model.safetensors, nor %s with its shards", directory, set_index_name);
}

// Opens the GGUF at s->path. Its keys are read as the fields of a config.json.
static inline bool import_open_gguf(Import *s, Error *error) {
  GgufFile g;
  cJSON *root = cJSON_CreateObject();
  const ImportConfig c = {root, s->path, error};
  s->is.kind = IMPORT_GGUF;
  const bool ok = gguf_open_set(&s->set, s->path, &g, error) &&
                  gguf_config(&g, &s->set, root, error) && import_config_read(&c, s);
  cJSON_Delete(root);
  char *tokenizer = ok ? gguf_string(&g, "tokenizer.ggml.model") : NULL;
  if (tokenizer && strcmp(tokenizer, "none")) snprintf(s->is.tokenizer, sizeof s->is.tokenizer, "%s", s->path);
  free(tokenizer);
  if (ok) s->is.published = gguf_published(&g);
  gguf_close(&g);
  return ok;
}

// Opens a file by its first bytes: as llm.c's, as a GGUF, or else as safetensors; PyTorch's own format is rejected.
static inline bool import_open_by_content(Import *s, Error *error) {
  static const struct { int32_t magic; const char *what; } foreign[] = {
      {20240327, "llm.c's debug state"}, {20240328, "llm.c's tokenizer"}, {20240520, "llm.c's tokens"},
      {20240801, "llm.c's Llama 3 tokens"}, {20240803, "llm.c's Llama 3 model"}};
  int32_t header[256] = {};
  FILE *f = fopen(s->path, "rb");
  const size_t got = f ? fread(header, 1, sizeof header, f) : 0;
  REJECT(!f, "%s: cannot read it: %s", s->path, strerror(errno));
  fclose(f);
  // In a safetensors file these are the high bytes of the header's length, which are zero.
  const bool numbered = got >= 8 && header[1] != 0;
  if (numbered && header[0] == LLMC_MAGIC) return llmc_open(s, header, error);
  for (const auto &x : foreign)
    REJECT(numbered && header[0] == x.magic, "%s: is %s, not a GPT-2 model", s->path, x.what);
  const bool zip = !memcmp(header, "PK\3\4", 4), pickle = !memcmp(header, "\x80\2", 2);
  REJECT(got >= 4 && (zip || pickle), "%s: is PyTorch's own format, which is a program to run, not data; save it as "
         "safetensors (transformers: save_pretrained)", s->path);
  if (got >= 4 && !memcmp(header, "GGUF", 4)) return import_open_gguf(s, error);
  char directory[MAP_PATH_BYTES];
  snprintf(directory, sizeof directory, "%s", s->path);
  char *slash = strrchr(directory, '/');
  if (slash) slash[slash == directory] = 0;
  return import_open_file(s, slash ? directory : ".", error);
}

void import_close(Import *s) {
  if (!s) return;
  set_close(&s->set);
  cJSON_Delete(s->is.published);
  free(s);
}

// A file of the directory that only an adapter has, which is not a whole model; NULL: there is none.
static inline const char *import_adapter_in(const char *directory) {
  for (const char *name : {"adapter_config.json", "adapter_model.safetensors", "adapters.safetensors"})
    if (import_exists(directory, name)) return name;
  return NULL;
}
// The work of import_open; on failure it leaves open what it opened.
static inline bool import_open_any(Import *s, const char *path, Error *error) {
  struct stat st;
  REJECT(strlen(path) + 64 > sizeof s->path, "%.60s...: the path is too long", path);
  REJECT(stat(path, &st), "%s: cannot open it: %s; a model is a directory with config.json and model.safetensors, a "
         ".safetensors file, a .gguf, or llm.c's .bin (nothing is downloaded)", path, strerror(errno));
  snprintf(s->path, sizeof s->path, "%s", path);
  const char *adapter = S_ISDIR(st.st_mode) ? import_adapter_in(path) : NULL;
  REJECT(adapter && !import_exists(path, "model.safetensors") && !import_exists(path, set_index_name), "%s: is an "
         "adapter (%s), no model: name it by --lora_from, and by --init_from the model that it is for", path, adapter);
  REJECT(import_ends(path, strlen(path), "safetensors") && strstr(path_base(path), "adapter"), "%s: is an adapter, no "
         "model: name its directory by --lora_from, and by --init_from the model that it is for", path);
  if (S_ISDIR(st.st_mode)) {
    snprintf(s->path, sizeof s->path, "%s/model.safetensors", path);
    if (import_exists(path, "config.json")) {
      if (!import_open_directory(s, path, error)) return false;
    } else {
      REJECT(!import_exists(path, "model.safetensors"), "%s: has no config.json and no model.safetensors; name a "
             "directory that save_pretrained or --export_hf wrote, a checkpoint, a .safetensors file, a .gguf, or "
             "llm.c's .bin", path);
      if (!import_open_file(s, path, error)) return false;
    }
    if (adapter)
      text_add(s->is.warning, sizeof s->is.warning, "%sits directory has an adapter too (%s), which --lora_from reads",
               s->is.warning[0] ? "; " : "", adapter);
    return true;
  }
  REJECT(!S_ISREG(st.st_mode), "%s: is %s, neither a directory nor a file", path, file_type_words(st.st_mode));
  REJECT(strlen(path) > 11 && !strcmp(path + strlen(path) - 11, ".index.json"), "%s: is the index of a directory of "
         "weights; name the directory", path);
  s->file_bytes = (int64_t)st.st_size;
  return import_open_by_content(s, error);
}

Import *import_open(const char *path, ImportFacts *facts, Error *error) {
  Import *s = (Import *)calloc(1, sizeof *s);
  if (!import_open_any(s, path, error)) { import_close(s); return NULL; }
  char directory[sizeof s->path];
  snprintf(directory, sizeof directory, "%s", s->path);
  char *slash = strrchr(directory, '/');
  if (slash) *slash = 0;
  error->text[0] = 0;
  if (s->is.kind == IMPORT_HF_DIRECTORY) s->is.published = import_published(slash ? directory : ".", error);
  if (error->text[0]) { import_close(s); return NULL; }
  s->is.stored = s->is.kind == IMPORT_LLMC ? (int)s->dtype : -1;
  for (int k = 0; k < s->set.count; k++)
    for (int i = 0; i < s->set.shard[k].file.count; i++) {
      const SafetensorsTensor *t = &s->set.shard[k].file.tensor[i];
      if (t->ndim != 2) continue;
      s->is.stored = t->known_dtype && (s->is.stored == -1 || s->is.stored == (int)t->dtype) ? (int)t->dtype : -2;
    }
  if (facts) *facts = s->is, s->is.published = NULL;
  return s;
}
const char *import_file(const Import *s, int i) {
  if (s->is.kind == IMPORT_LLMC) return i ? NULL : s->path;
  return i < s->set.count ? s->set.shard[i].path : NULL;
}

static inline const char *import_head_name(const Import *s) {
  return s->with_images ? "language_model.lm_head.weight" : "lm_head.weight";
}
// If the file stores a tied head too, it must be bitwise identical to the embedding.
static inline void import_check_head(const Import *s, const SafetensorsTensor *head, int head_file,
                                     ImportComplaints *complaints) {
  int file = 0;
  const SafetensorsTensor *wte = set_entry(&s->set, s->with_images ? "language_model.model.embed_tokens.weight"
                                                    : s->family   ? "model.embed_tokens.weight"
                                                    : s->prefixed ? "transformer.wte.weight"
                                                                  : "wte.weight", &file);
  if (!wte) return;                              // its absence is reported elsewhere
  const bool same = head->dtype == wte->dtype && head->known_dtype && head->ndim == 2 && wte->ndim == 2 &&
                    head->shape[0] == wte->shape[0] && head->bytes == wte->bytes &&
                    !memcmp(s->set.shard[head_file].file.map + head->at, s->set.shard[file].file.map + wte->at,
                            (size_t)wte->bytes);
  if (!same)
    import_complain(complaints, "tensor lm_head.weight is not %s, though tie_word_embeddings says so: if the head is "
                    "separate, set tie_word_embeddings to false in config.json",
                    s->family ? "model.embed_tokens.weight" : "wte.weight");
}

// Our name of a tensor of the file; NULL if no parameter has such a name.
static inline const char *import_local_name(const Import *s, const char *name) {
  const size_t n = sizeof import_hf_prefix - 1;
  if (!s->prefixed || !strcmp(name, "lm_head.weight")) return name;
  return strncmp(name, import_hf_prefix, n) || !strcmp(name + n, "lm_head.weight") ? NULL : name + n;
}

// The place of parameter p, or of `rows` rows of it if that is not 0, if tensor t has its shape (as this layout has it)
// and a dtype that is read.
static inline void import_place(const Import *s, const Param *p, int64_t rows, const SafetensorsTensor *t, int file,
                                TensorPlace *place, ImportComplaints *complaints) {
  const bool transposed = s->is.kind == IMPORT_HF_DIRECTORY && !s->family && import_is_conv1d(p);
  const int64_t all = rows ? rows : p->shape[0];
  const int64_t shape[2] = {transposed ? p->shape[1] : all, p->ndim == 1 ? 1 : transposed ? all : p->shape[1]};
  const char *name = s->family || s->is.kind == IMPORT_GGUF ? t->name : p->name;
  const bool fits = t->ndim == p->ndim && t->shape[0] == shape[0] && (p->ndim == 1 || t->shape[1] == shape[1]);
  const bool readable = t->ggml || (t->known_dtype && (t->dtype == F32 || t->dtype == BF16 || t->dtype == F16));
  if (!fits)
    import_complain(complaints, "tensor %s is %s, expected %s", name, import_shape_text(t->ndim, t->shape).text,
                    import_shape_text(p->ndim, shape).text);
  else if (!readable)
    import_complain(complaints, "tensor %s is %s, expected %s", name, t->dtype_text,
                    s->is.kind == IMPORT_GGUF ? ggml_types_read : "F32, BF16 or F16");
  else *place = TensorPlace{file, t->dtype, transposed, t->at, rows, 0, false, t->ggml};
}

// The same of a matrix in NF4, whose scales the map gets.
static inline void import_place_nf4(const Import *s, const Param *p, int64_t rows, const SafetensorsTensor *t, int file,
                                    TensorMap *map, TensorPlace *place, ImportComplaints *complaints) {
  SafetensorsTensor as = *t;
  char why[200];
  map->scales = (Nf4Scales *)realloc(map->scales, sizeof *map->scales * (size_t)(map->scales_count + 1));
  if (!map->scales) die_missing("no memory for the scales of %d matrices", map->scales_count + 1);
  Nf4Scales *scales = &map->scales[map->scales_count++];
  if (!nf4_read(&s->set, t->name, t, scales, as.shape, why)) {
    import_complain(complaints, "tensor %s: %s", safetensors_quoted(t->name).text, why);
    return;
  }
  as.ndim = 2, as.known_dtype = true, as.dtype = F32;
  import_place(s, p, rows, &as, file, place, complaints);
  place->scales = map->scales_count, place->scale_block = scales->block;
}

static const char import_images_prefix[] = "language_model.";
// What part i of a parameter is called in a family's file, or in a GGUF.
static inline void import_tensor_name(const Import *s, char to[FAMILY_NAME_BYTES], const Param *p, int i) {
  const size_t n = s->with_images ? sizeof import_images_prefix - 1 : 0;
  char name[FAMILY_NAME_BYTES];
  if (s->is.kind == IMPORT_GGUF) { gguf_tensor_name(to, p, i, !s->family); return; }
  family_tensor_name(name, p, i, &s->is.shape);
  snprintf(to, FAMILY_NAME_BYTES, "%.*s%.79s", (int)n, import_images_prefix, name);
}
void import_element_name(char to[128], const Import *s, const Param *p, int64_t element) {
  char name[FAMILY_NAME_BYTES];
  int part = 0;
  for (int64_t row = element / max64(1, p->ndim == 2 ? p->shape[1] : 1); part < p->matrices - 1; part++)
    if ((row -= p->matrix_rows[part]) < 0) break;
  if (s->family || s->is.kind == IMPORT_GGUF) import_tensor_name(s, name, p, s->family ? part : 0);
  snprintf(to, 128, "%s%s", s->family || s->is.kind == IMPORT_GGUF || !s->prefixed || !strcmp(p->name, "lm_head.weight")
           ? "" : import_hf_prefix, s->family || s->is.kind == IMPORT_GGUF ? name : p->name);
}
// How many tensors a parameter is there.
static inline int import_parts(const Import *s, const Param *p) {
  return p->adapter ? 0 : s->family ? p->matrices : 1;
}
// Whether a parameter has a tensor of this name, or a tied head is stored too.
static inline bool import_has_tensor(const Import *s, const char *name, const Param *param, int params) {
  char theirs[FAMILY_NAME_BYTES];
  if (s->is.shape.tied && s->is.kind != IMPORT_GGUF && !strcmp(name, import_head_name(s))) return true;
  for (int p = 0; p < params; p++)
    for (int i = 0; i < import_parts(s, &param[p]); i++) {
      import_tensor_name(s, theirs, &param[p], i);
      if (!strcmp(theirs, name)) return true;
    }
  return false;
}
// Tensors that are no weights, or whose numbers the shape has.
static inline bool import_ignores(const Import *s, const char *name) {
  if (s->with_images && strncmp(name, import_images_prefix, sizeof import_images_prefix - 1)) return true;
  if (s->is.kind == IMPORT_GGUF) return s->family && !strcmp(name, "rope_freqs.weight");
  return family_ignores(name) || nf4_beside(&s->set, name);
}

// Rows of the file of an embedding or a head that has more (--add_tokens); 0: as many.
static inline int64_t import_rows(const Import *s, const Param *p) {
  const bool vocab = !strcmp(p->name, "wte.weight") || !strcmp(p->name, "lm_head.weight");
  return vocab && p->shape[0] > s->is.shape.vocab_size ? s->is.shape.vocab_size : 0;
}
// Places the parameters of a family's file or a GGUF; complains of tensors that do not fit one to one.
static inline void import_map_family(const Import *s, const Param *param, int params, TensorMap *map,
                                     ImportComplaints *complaints) {
  int used = 0;
  for (int p = 0; p < params; p++) {
    const int parts = import_parts(s, &param[p]);
    for (int i = 0; i < parts; i++) {
      char name[FAMILY_NAME_BYTES];
      int file = 0;
      import_tensor_name(s, name, &param[p], i);
      const SafetensorsTensor *t = set_entry(&s->set, name, &file);
      TensorPlace *place = tensor_place(map, 0, p) + i;
      used += t != NULL;
      const int64_t rows = parts > 1 ? param[p].matrix_rows[i] : import_rows(s, &param[p]);
      if (!t) import_missing(complaints, name);
      else if (!nf4_entry(&s->set, name, nf4_state, NULL))
        import_place(s, &param[p], rows, t, file, place, complaints);
      else import_place_nf4(s, &param[p], rows, t, file, map, place, complaints);
      if (s->is.kind != IMPORT_GGUF) place->plus = family_plus(s->family, &param[p]);
      place->in_turn = s->is.kind == IMPORT_GGUF && gguf_turns(s->family, &param[p], i);
      if (place->in_turn || family_turns_back(s->family, &param[p], i)) place->half_rows = s->is.shape.head_size / 2;
    }
  }
  int file = 0;
  const bool twice = s->is.shape.tied && s->is.kind != IMPORT_GGUF;
  const SafetensorsTensor *head = twice ? set_entry(&s->set, import_head_name(s), &file) : NULL;
  if (head) import_check_head(s, head, file, complaints);
  for (int k = 0; k < s->set.count; k++)         // only if there are more than were taken
    for (int i = 0; i < s->set.shard[k].file.count; i++)
      used -= !import_ignores(s, s->set.shard[k].file.tensor[i].name);
  for (int k = 0; k < s->set.count && used + (head != NULL) < 0; k++)
    for (int i = 0; i < s->set.shard[k].file.count; i++) {
      const char *name = s->set.shard[k].file.tensor[i].name;
      if (!import_ignores(s, name) && !import_has_tensor(s, name, param, params))
        import_extra(complaints, name, "this model's");
    }
}

// Places every parameter in a safetensors file; complains of tensors that do not fit one to one.
static inline void import_map_tensors(const Import *s, const Param *param, const Param *const *index, int params,
                                      TensorMap *map, ImportComplaints *complaints) {
  const SafetensorsTensor **found = (const SafetensorsTensor **)calloc((size_t)params, sizeof *found), *head = NULL;
  int *file = (int *)calloc((size_t)params, sizeof *file), head_file = 0;
  const bool foreign = s->is.kind == IMPORT_HF_DIRECTORY;
  int tensors = 1, extras = 0;
  for (int k = 0; k < s->set.count; k++) tensors += s->set.shard[k].file.count;
  const char **extra = (const char **)calloc((size_t)tensors, sizeof *extra);
  for (int k = 0; k < s->set.count; k++)
    for (int i = 0; i < s->set.shard[k].file.count; i++) {
      const SafetensorsTensor *t = &s->set.shard[k].file.tensor[i];
      const char *local = import_local_name(s, t->name);
      const Param *p = local ? import_find(index, params, local) : NULL;
      if (p) { found[p - param] = t; file[p - param] = k; }
      else if (local && foreign && s->is.shape.tied && !strcmp(local, "lm_head.weight")) { head = t; head_file = k; }
      else if (!local || !foreign || !import_is_mask(local))
        extra[extras++] = t->name;
    }
  for (int p = 0; p < params; p++) {
    if (param[p].adapter) continue;
    if (!found[p]) import_missing(complaints, param[p].name);
    else
      import_place(s, &param[p], import_rows(s, &param[p]), found[p], file[p], tensor_place(map, 0, p), complaints);
  }
  for (int i = 0; i < extras; i++) import_extra(complaints, extra[i], "this model's");
  if (head) import_check_head(s, head, head_file, complaints);
  free(extra);
  free(found);
  free(file);
}

bool import_map(Import *s, const Param *param, int params, TensorMap *map, Error *error) {
  ImportComplaints complaints = {};
  const Param **index = import_index(param, params);
  tensor_map_open(map, params);
  map->files = s->is.kind == IMPORT_LLMC ? 1 : s->set.count;
  for (int i = 0; i < map->files; i++) {
    const SafetensorsShard *x = s->is.kind == IMPORT_LLMC ? NULL : &s->set.shard[i];
    map->file_bytes[i] = x ? (int64_t)x->file.bytes : s->file_bytes;
    map->data_at[i] = x ? (int64_t)x->file.data_at : (int64_t)LLMC_HEADER_BYTES;
    snprintf(map->path[i], sizeof map->path[i], "%s", x ? x->path : s->path);
  }
  if (s->is.kind == IMPORT_LLMC) llmc_map(s, param, index, params, map, &complaints);
  else if (s->family || s->is.kind == IMPORT_GGUF) import_map_family(s, param, params, map, &complaints);
  else import_map_tensors(s, param, index, params, map, &complaints);
  for (int p = 0; p < params && s->is.kind == IMPORT_LLMC && !complaints.count; p++)
    if (!param[p].adapter && tensor_place(map, 0, p)->file < 0)
      import_complain(&complaints, "tensor %s is missing", param[p].name);
  free(index);
  if (import_settle(&complaints, s->path, error)) return true;
  tensor_map_free(map);
  return false;
}
bool import_check(Import *s, const ParamTable *table, uint8_t *types, bool *quantized, Error *error) {
  int params;
  Param *param = params_of_shape(table, &s->is.shape, &params);
  TensorMap map = {};
  const bool ok = import_map(s, param, params, &map, error);
  for (int p = 0, n = 0; ok && p < params; p++)
    for (int k = 0; param_is_of_base(&param[p]) && k < param[p].matrices; k++, n++) {
      const TensorPlace *first = tensor_place(&map, 0, p), *place = first->rows ? first + k : first;   // or one of all
      types[n] = (uint8_t)(place->ggml ? place->ggml : (int)block_of_dtype(place->dtype));
      *quantized = *quantized || place->ggml;
    }
  tensor_map_free(&map);
  free(param);
  return ok;
}
