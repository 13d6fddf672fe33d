// lora.h: adapters by the names that PEFT and the models' files use, and PEFT's directory of an adapter:
// adapter_config.json and adapter_model.safetensors. Written as PEFT 0.21 reads it.
#pragma once
#include "interchange.h"
#include "kernels/lora.cuh"
#include <ctype.h>

// The matrices of a block that can have adapters, by our modules' names.
static const char *const lora_modules[LORA_MATRICES] = {"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"};

// How many matrices of a file one matrix of this program is. Models of no family have GPT-2's names, with one each.
static inline int lora_parts(const ModelShape *s, int matrix) {
  if (!family_of_shape(s)) return 1;
  return matrix == LORA_QKV ? 3 : matrix == LORA_FC && mlp_is_gated(s->block.mlp) ? 2 : 1;
}
// The name in a file, inside a block, of part `part` of a matrix.
static inline const char *lora_module(const ModelShape *s, int matrix, int part) {
  return family_of_shape(s) ? family_module(lora_modules[matrix], part, s) : lora_modules[matrix];
}
bool lora_targets(Lora *l, const ModelShape *s, const char *list, Error *error, const char *what) {
  char text[1024], known[512] = "", *save = NULL;
  const bool all = !strcmp(list, "all") || !strcmp(list, "all-linear");
  snprintf(text, sizeof text, "%s", all ? "" : list);
  for (int m = 0; m < LORA_MATRICES; m++) {
    l->of[m] = lora_parts(s, m);
    l->parts[m] = all ? (1u << l->of[m]) - 1 : 0;
    for (int i = 0; i < lora_parts(s, m); i++)
      text_add(known, sizeof known, "%s%s", m + i ? ", " : "", lora_module(s, m, i));
  }
  bool some = all;
  for (char *name = strtok_r(text, ", ", &save); name; name = strtok_r(NULL, ", ", &save)) {
    bool found = false;
    for (int m = 0; m < LORA_MATRICES; m++)
      for (int i = 0; i < lora_parts(s, m); i++) {
        const char *module = lora_module(s, m, i);
        const size_t n = strlen(module), k = strlen(name);
        const bool named = k <= n && !strcmp(module + n - k, name) && (k == n || module[n - k - 1] == '.');
        if (named) l->parts[m] |= 1u << i;
        found = found || named;
      }
    REJECT(!found, "%s %s names no matrix of this model's blocks, which are %s", what, name, known);
    some = true;
  }
  REJECT(!some, "%s '%.200s' names nothing; this model's blocks have %s", what, list, known);
  return true;
}
// The index in lora_modules of a block's parameter.
static inline int lora_matrix(const Param *base) {
  const char *module = strchr(base->name + 2, '.') + 1;
  for (int m = 0; m < LORA_MATRICES; m++)
    if (!strncmp(module, lora_modules[m], strlen(lora_modules[m]))) return m;
  return -1;
}

// ================================================================================================ PEFT's directory
// The number of the adapted matrix' part to which the part-th adapter of a factor belongs.
static inline int lora_part(const Param *factor, int part) {
  int of = 0;
  for (;; of++) if (factor->parts >> of & 1 && !part--) return of;
}
// The name in PEFT's file of a factor's part-th matrix: base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight.
static inline void lora_tensor_name(char to[160], const ModelShape *s, const Param *param, int p, int part) {
  const Param *q = &param[p];
  snprintf(to, 160, "base_model.model.%s.%d.%s.lora_%c.weight", family_of_shape(s) ? "model.layers" : "transformer.h",
           q->stage - 1, lora_module(s, lora_matrix(q), lora_part(q, part)), q->name[strlen(q->name) - 8]);
}
// Whether rows of this part of a factor have the halves of heads exchanged in the file, as their matrix's have.
static inline int64_t lora_half_rows(const ModelShape *s, const Param *param, int p, int part) {
  const Param *q = &param[p];
  const bool up = q->init == INIT_ZERO;
  return up && family_turns_back(family_of_shape(s), &param[q->adapts], lora_part(q, part)) ? s->head_size / 2 : 0;
}

// Rejects adapters whose initialisation has changed the base weights (pissa, corda, olora, loftq, lora_ga: PEFT
// subtracts the adapter's initial value from the base), because they do not fit the published weights.
static inline bool lora_init_check(const ImportConfig *c) {
  static const char *const keep[] = {"gaussian", "eva", "orthogonal"};
  const cJSON *x;
  if (!import_config_get(c, "init_lora_weights", &x)) return false;
  bool kept = !x || cJSON_IsBool(x);
  for (const char *name : keep) kept = kept || (cJSON_IsString(x) && !strcmp(x->valuestring, name));
  return kept || import_config_reject(c, "init_lora_weights is %s, which changes the base's weights too: write the "
                                      "adapter for the published ones, in PEFT by save_pretrained(DIR, "
                                      "path_initial_model_for_weight_conversion=...), or merge it there",
                                      cJSON_IsString(x) ? safetensors_quoted(x->valuestring).text : "no text");
}
// Checks that DIR has adapter_model.safetensors. MLX's adapters and PyTorch's own format give an error that names them.
static inline bool lora_files_check(const ImportConfig *c, const char *dir) {
  const bool mlx = cJSON_GetObjectItemCaseSensitive(c->root, "lora_parameters") ||
                   cJSON_GetObjectItemCaseSensitive(c->root, "fine_tune_type");
  const bool peft = import_exists(dir, "adapter_model.safetensors");
  if (mlx || (!peft && import_exists(dir, "adapters.safetensors")))
    return import_config_reject(c, "this is an adapter of MLX, only PEFT's are read: merge it there (mlx_lm.fuse) and "
                                "name the result by --init_from");
  if (!peft && import_exists(dir, "adapter_model.bin"))
    return import_config_reject(c, "its weights are in adapter_model.bin, PyTorch's own format, which is a program to "
                                "run, not data: write them by PEFT's save_pretrained(DIR, safe_serialization=True)");
  return true;
}
// Whether a target names a block: layers.1.mlp.down_proj.
static inline bool lora_is_path(const char *name) {
  for (; (name = strchr(name, '.')); name++) if (isdigit((unsigned char)name[1])) return true;
  return false;
}
// Renames a tensor to PEFT's form: without the adapter's own name after lora_A and similar, with base_model.model.
// before names of blocks.
static inline void lora_rename(char *name, const void *) {
  import_unwrap(name);
  for (const char *of : {".lora_A.", ".lora_B.", ".trainable_tokens_delta."}) {
    char *at = strstr(name, of), *end = at ? strrchr(name, '.') : NULL;
    if (at && of[1] == 't') at[strlen(of) - 1] = 0;
    else if (at && !strcmp(end, ".weight")) memmove(at + strlen(of) - 1, end, strlen(end) + 1);
  }
  for (const char *block : {"model.layers.", "transformer.h."}) {
    char *own = strstr(name, strchr(block, '.') + 1);
    if (!own || (own != name && own[-1] != '.') || !strstr(name, ".lora_")) continue;
    char rest[256];
    snprintf(rest, sizeof rest, "%s", own);
    sprintf(name, "base_model.model.%.15s%s", block, rest + strlen(strchr(block, '.') + 1));
    return;
  }
}
static inline bool lora_open(SafetensorsSet *set, const char *path, Error *error) {
  return set_open(set, path, error) && set_rename(set, 64, lora_rename, NULL, error);
}
// Where target_modules is a pattern or has whole paths: the modules whose factors are in the file, by their names in a
// block.
static inline bool lora_targets_of_file(char *targets, size_t targets_bytes, const char *dir, Error *error) {
  SafetensorsSet set = {};
  char path[MAP_PATH_BYTES];
  snprintf(path, sizeof path, "%.1200s/adapter_model.safetensors", dir);
  const bool open = lora_open(&set, path, error);
  for (int i = 0; open && i < set.shard[0].file.count; i++) {
    char name[160];
    snprintf(name, sizeof name, "%s", set.shard[0].file.tensor[i].name);
    char *end = strstr(name, ".lora_A.weight"), *at = strstr(name, ".layers.");
    at = at ? at + 8 : (at = strstr(name, ".h.")) ? at + 3 : NULL;
    if (!end || !at || at > end) continue;       // lora_import_map names it
    at += strspn(at, "0123456789");
    *end = 0;
    const size_t k = strlen(++at);
    bool known = false;
    for (const char *p = targets; (p = strstr(p, at)); p++)
      known = known || ((p == targets || p[-1] == ',') && (p[k] == ',' || !p[k]));
    if (!known) text_add(targets, targets_bytes, "%s%s", targets[0] ? "," : "", at);
  }
  set_close(&set);
  REJECT(open && !targets[0], "%s: no tensor is a factor of a block's matrix, .layers.N.NAME.lora_A.weight", path);
  return open;
}
bool lora_config_read(Lora *l, char *targets, size_t targets_bytes, const char *dir, Error *error) {
  static const char *const off[] = {"use_dora", "lora_bias", "rank_pattern", "alpha_pattern",
                                    "modules_to_save", "layers_to_transform", "target_parameters", "exclude_modules",
                                    "use_bdlora", "use_qalora", "layer_replication", "alora_invocation_tokens",
                                    "trainable_token_indices", "arrow_config", "kasa_config", "monteclora_config"};
  char path[MAP_PATH_BYTES];
  REJECT(gguf_is(dir), "%.900s: is llama.cpp's, only PEFT's directories of adapters are read", dir);
  REJECT(import_exists(dir, "config.json") && !import_adapter_in(dir), "%.900s: is a model, no adapter: name it by "
         "--init_from", dir);
  snprintf(path, sizeof path, "%.1200s/adapter_config.json", dir);
  cJSON *root = import_read_json(path, 1 << 20, error);
  if (!root) return false;
  const ImportConfig c = {root, path, error};
  const cJSON *x, *type, *bias, *name;
  double rank = 0;
  bool ok = lora_files_check(&c, dir) && import_config_get(&c, "peft_type", &type) &&
            import_config_get(&c, "bias", &bias) && import_config_number(&c, "r", 0, &rank) &&
            import_config_number(&c, "lora_alpha", 8, &l->alpha) &&
            import_config_flag(&c, "use_rslora", false, &l->by_root);
  if (ok && (!cJSON_IsString(type) || strcmp(type->valuestring, "LORA")))
    ok = import_config_reject(&c, "peft_type is not LORA");
  if (ok && bias && (!cJSON_IsString(bias) || strcmp(bias->valuestring, "none")))
    ok = import_config_reject(&c, "bias is not none, the only one that is supported");
  if (ok && !(rank >= 1 && rank <= 1024 && rank == floor(rank) && l->alpha > 0 && l->alpha <= 1e6))
    ok = import_config_reject(&c, "r is %g and lora_alpha %g, expected 1 to 1024 and above 0", rank, l->alpha);
  for (int i = 0; ok && i < (int)(sizeof off / sizeof *off); i++) {
    ok = import_config_get(&c, off[i], &x);
    const bool empty = (cJSON_IsArray(x) || cJSON_IsObject(x)) && !cJSON_GetArraySize(x);
    if (ok && x && !cJSON_IsFalse(x) && !empty)
      ok = import_config_reject(&c, "%s is set: not supported", off[i]);
  }
  l->rank = (int64_t)rank;
  if (ok) ok = lora_init_check(&c) && import_config_get(&c, "target_modules", &x);
  targets[0] = 0;
  bool paths = ok && cJSON_IsString(x);
  if (ok && !cJSON_IsArray(x) && !cJSON_IsString(x))
    ok = import_config_reject(&c, "target_modules is neither a list of names nor a pattern");
  else if (ok && cJSON_IsString(x) && !strcmp(x->valuestring, "all-linear"))
    paths = false, snprintf(targets, targets_bytes, "all");
  else if (ok)
    cJSON_ArrayForEach(name, x) {
      if (!cJSON_IsString(name)) continue;
      paths = paths || lora_is_path(name->valuestring);
      text_add(targets, targets_bytes, "%s%s", targets[0] ? "," : "", name->valuestring);
    }
  if (paths) targets[0] = 0, ok = lora_targets_of_file(targets, targets_bytes, dir, error);
  cJSON_Delete(root);
  return ok;
}
// The name in PEFT's file of the rows of the embedding or the head that train beside adapters.
static inline void lora_rows_name(char to[160], const ModelShape *s, const Param *q) {
  snprintf(to, 160, "base_model.model.%s.token_adapter.trainable_tokens_delta", !strcmp(q->name, "lm_head.weight")
           ? "lm_head" : family_of_shape(s) ? "model.embed_tokens" : "transformer.wte");
}
// A tensor of an adapter's file: part `part` of the factor `param`, or trained rows of the embedding or the head.
struct LoraTensor { char name[160]; int param, part; };
static inline int lora_compare(const void *a, const void *b) {
  return strcmp(((const LoraTensor *)a)->name, ((const LoraTensor *)b)->name);
}
static inline int lora_compare_name(const void *name, const void *tensor) {
  return strcmp((const char *)name, ((const LoraTensor *)tensor)->name);
}
// All such tensors of a model, sorted by name: a malloc'ed array of *count.
static inline LoraTensor *lora_tensors(const ModelShape *s, const Param *param, int params, int *count) {
  LoraTensor *t = (LoraTensor *)calloc((size_t)(params * MAP_PARTS), sizeof *t);
  *count = 0;
  for (int p = 0; p < params; p++) {
    for (int i = 0; param[p].adapter && i < param[p].matrices; i++) {
      t[*count].param = p, t[*count].part = i;
      lora_tensor_name(t[(*count)++].name, s, param, p, i);
    }
    if (!param[p].row_end) continue;
    t[*count].param = p;
    lora_rows_name(t[(*count)++].name, s, &param[p]);
  }
  qsort(t, (size_t)*count, sizeof *t, lora_compare);
  return t;
}
static const char lora_hash_key[] = "train_gpt_fsdp_base_hash";
void lora_export_map(TensorMap *map, const char *dir, const Param *param, int params, const ModelShape *s,
                     uint64_t hash, char **header) {
  char digits[20];
  snprintf(digits, sizeof digits, "%016llx", (unsigned long long)hash);
  const char *const metadata[] = {"format", "pt", lora_hash_key, digits, NULL};
  int count;
  LoraTensor *of = lora_tensors(s, param, params, &count);
  SafetensorsTensor *tensor = (SafetensorsTensor *)calloc((size_t)count, sizeof *tensor);
  for (int i = 0; i < count; i++) {
    tensor[i].name = of[i].name, tensor[i].dtype = F32, tensor[i].ndim = 2;
    const Param *q = &param[of[i].param];
    tensor[i].shape[0] = q->row_end ? q->row_end - q->row_from : q->matrix_rows[of[i].part];
    tensor[i].shape[1] = q->shape[1];
  }
  tensor_map_open(map, params);
  map->files = 1;
  snprintf(map->path[0], sizeof map->path[0], "%.1200s/adapter_model.safetensors", dir);
  *header = safetensors_header(tensor, count, metadata, &map->data_at[0]);
  for (int i = 0; i < count; i++) {
    const Param *q = &param[of[i].param];
    TensorPlace *place = tensor_place(map, 0, of[i].param) + of[i].part;
    if (q->row_from) place++->rows = q->row_from;                // which are not written
    *place = TensorPlace{0, F32, false, tensor[i].at, tensor[i].shape[0],
                         q->row_end ? 0 : lora_half_rows(s, param, of[i].param, of[i].part)};
  }
  map->file_bytes[0] = tensor[count - 1].at + tensor[count - 1].bytes;
  free(of);
  free(tensor);
}
bool lora_import_map(TensorMap *map, const char *dir, const Param *param, int params, const ModelShape *s,
                     uint64_t *hash, Error *error) {
  SafetensorsSet set = {};
  ImportComplaints complaints = {};
  char path[MAP_PATH_BYTES];
  int count;
  snprintf(path, sizeof path, "%.1200s/adapter_model.safetensors", dir);
  if (!lora_open(&set, path, error)) { set_close(&set); return false; }
  const SafetensorsFile *file = &set.shard[0].file;
  const char *digits = safetensors_metadata(file, lora_hash_key);
  *hash = digits ? strtoull(digits, NULL, 16) : 0;
  tensor_map_open(map, params);
  map->files = 1;
  snprintf(map->path[0], sizeof map->path[0], "%s", path);
  map->file_bytes[0] = (int64_t)file->bytes, map->data_at[0] = (int64_t)file->data_at;
  LoraTensor *of = lora_tensors(s, param, params, &count);
  for (int i = 0; i < count; i++) {
    const Param *p = &param[of[i].param];
    const int64_t want[] = {p->matrix_rows[of[i].part], p->shape[1]};
    const SafetensorsTensor *t = safetensors_entry(file, of[i].name);
    if (p->row_end && !t) continue;              // rows start as the weights have them
    if (!t)
      import_missing(&complaints, of[i].name, ": adapters of some blocks alone are not supported");
    else if (t->ndim != 2 || t->shape[0] != want[0] || t->shape[1] != want[1])
      import_complain(&complaints, "tensor %s is %s, expected %s", of[i].name,
                      import_shape_text(t->ndim, t->shape).text, import_shape_text(2, want).text);
    else if (!t->known_dtype || (t->dtype != F32 && t->dtype != BF16 && t->dtype != F16))
      import_complain(&complaints, "tensor %s is %s, expected F32, BF16 or F16", of[i].name, t->dtype_text);
    else
      tensor_place(map, 0, of[i].param)[of[i].part] =
          TensorPlace{0, t->dtype, false, t->at, want[0], lora_half_rows(s, param, of[i].param, of[i].part)};
  }
  for (int i = 0; i < file->count; i++)
    if (!bsearch(file->tensor[i].name, of, (size_t)count, sizeof *of, lora_compare_name))
      import_extra(&complaints, file->tensor[i].name, "these adapters'");
  free(of);
  set_close(&set);
  if (import_settle(&complaints, path, error)) return true;
  tensor_map_free(map);
  return false;
}

// ================================================================================================ merging
int64_t lora_numel(const Fsdp *f, int p) {
  int64_t n = 0;
  for (int i = 0; i < p; i++) n += fsdp_param(f, i)->adapter ? param_numel(fsdp_param(f, i)) : 0;
  return n;
}
void lora_gather(Fsdp *f, float *to) {
  const int64_t all = lora_numel(f, fsdp_params(f)), most = 1 << 28;
  Span run;
  memset(to, 0, sizeof(float) * (size_t)all);
  for (int p = 0; p < fsdp_params(f) && !fsdp_replica(f); p++)
    if (fsdp_param(f, p)->adapter && fsdp_span(f, p, fsdp_shard(f), &run) &&
        run.in_range < param_numel(fsdp_param(f, p)))
      fsdp_get_own(f, STATE_MASTER, p, 0, to + lora_numel(f, p) + run.in_range,
                   min64(run.numel, param_numel(fsdp_param(f, p)) - run.in_range));
  for (int64_t at = 0; at < all; at += most)     // one rank has a value, the others zero: the sum is exact
    MPI_Allreduce(MPI_IN_PLACE, to + at, (int)min64(most, all - at), MPI_FLOAT, MPI_SUM, fsdp_comm(f));
}
void lora_merge(const Fsdp *f, const ModelShape *s, const float *adapters, int p, int64_t first, float *values,
                int64_t n) {
  const Param *base = fsdp_param(f, p);
  if (p + 2 >= fsdp_params(f) || !base[1].adapter || base[1].adapts != p) return;
  const float *a = adapters + lora_numel(f, p + 1), *b = adapters + lora_numel(f, p + 2);
  const LoraParts of = lora_parts_of(s, lora_matrix(base), base);
  const int64_t K = base->shape[1], rank = of.rank;
  for (int64_t k; n > 0; values += k, first += k, n -= k) {      // row by row
    const int64_t col = first % K;
    int64_t row;
    const int adapter = lora_row(&of, first / K, &row);
    k = min64(n, K - col);
    for (int64_t j = 0; j < rank && adapter >= 0; j++) {
      const float x = of.scale * b[row * rank + j], *y = a + (adapter * rank + j) * K + col;
      for (int64_t i = 0; i < k; i++) values[i] += x * y[i];
    }
  }
}
