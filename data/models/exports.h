// exports.h: exports models for other programs: the places of tensors in a file, and the texts that save_pretrained and
// PEFT write beside it.
#pragma once
#include "lora.h"

// One tensor of an exported file, before it is placed.
struct ExportTensor { char name[FAMILY_NAME_BYTES]; int param, part; };
// Compares names byte by byte: the order of the safetensors library for tensors of one dtype.
static inline int export_compare(const void *a, const void *b) {
  return strcmp(((const ExportTensor *)a)->name, ((const ExportTensor *)b)->name);
}

bool export_map(TensorMap *map, const char *dir, const Param *param, int params, const ModelShape *shape, Dtype dtype,
                char **header, Error *error) {
  static const char *const metadata[] = {"format", "pt", NULL};
  REJECT(strlen(dir) + 64 > MAP_PATH_BYTES, "%.60s...: the path is too long", dir);
  const Family *family = family_of_shape(shape);
  ExportTensor *order = (ExportTensor *)calloc((size_t)(params * MAP_PARTS), sizeof *order);
  SafetensorsTensor *tensor = (SafetensorsTensor *)calloc((size_t)(params * MAP_PARTS), sizeof *tensor);
  int count = 0;
  for (int p = 0; p < params; p++) {
    if (param[p].adapter) continue;
    const bool head = !strcmp(param[p].name, "lm_head.weight");
    for (int i = 0; i < (family ? param[p].matrices : 1); i++, count++) {
      order[count].param = p;
      order[count].part = i;
      if (family) family_tensor_name(order[count].name, &param[p], i, shape);
      else snprintf(order[count].name, sizeof order->name, "%s%s", head ? "" : import_hf_prefix, param[p].name);
    }
  }
  qsort(order, (size_t)count, sizeof *order, export_compare);
  for (int i = 0; i < count; i++) {
    const Param *p = &param[order[i].param];
    const bool transposed = !family && import_is_conv1d(p);
    tensor[i].name = order[i].name;
    tensor[i].dtype = dtype;
    tensor[i].ndim = p->ndim;
    tensor[i].shape[0] = p->shape[transposed ? 1 : 0];
    tensor[i].shape[1] = p->shape[transposed ? 0 : 1];
    if (family && p->matrices > 1) tensor[i].shape[0] = p->matrix_rows[order[i].part];
  }
  tensor_map_open(map, params);
  *header = safetensors_header(tensor, count, metadata, &map->data_at[0]);
  map->files = 1;
  snprintf(map->path[0], sizeof map->path[0], "%s/model.safetensors", dir);
  map->file_bytes[0] = map->data_at[0];
  for (int i = 0; i < count; i++) {
    const Param *p = &param[order[i].param];
    const int part = order[i].part;
    tensor_place(map, 0, order[i].param)[part] =
        TensorPlace{0, dtype, !family && import_is_conv1d(p), tensor[i].at,
                    family && p->matrices > 1 ? p->matrix_rows[part] : 0,
                    family_turns_back(family, p, part) ? shape->head_size / 2 : 0, false, 0, family_plus(family, p)};
    map->file_bytes[0] = tensor[i].at + tensor[i].bytes;
  }
  free(order);
  free(tensor);
  return true;
}

// ---- BOS and EOS tokens ---------------------------------------------------------------------------------------------
// BOS and EOS of an exported model: -1 and NULL if there is none, which files must state, because transformers' default
// for GPT-2 is 50256. other: further EOS tokens. chat, chat_tools: texts of the chat templates for conversations
// without and with tools; or NULL.
enum { ENDS_MAX = 16 };
struct TextEnds {
  int32_t bos, eos;
  char *bos_text, *eos_text, *chat, *chat_tools;
  const cJSON *published = NULL;
  int32_t other[ENDS_MAX] = {};
  int others = 0;
};
// Adds a further EOS token, unless it is there already.
static void text_ends_add(TextEnds *e, int32_t id) {
  bool known = id < 0 || id == e->eos || e->others == ENDS_MAX;
  for (int i = 0; i < e->others; i++) known = known || e->other[i] == id;
  if (known) return;
  if (e->eos < 0) e->eos = id;
  else e->other[e->others++] = id;
}
static char *token_text(const Tokenizer *k, int32_t id) {
  int bytes;
  const uint8_t *text = id < 0 ? NULL : tokenizer_token_bytes(k, id, &bytes);
  return text ? strndup((const char *)text, (size_t)bytes) : NULL;
}
// EOS is the token with a known name (chat_end), or the only special token; for a model that was fine-tuned on
// conversations, the token that ends an answer. Further EOS tokens are the published ones and the one that ends a text.
// BOS is the token that the tokenizer puts before each text; else the published model's; without a published model the
// token that ends a text. Free the result by text_ends_free.
static TextEnds text_ends(const ExportTexts *x) {
  const Tokenizer *k = x->tokenizer;
  const cJSON *published = x->published;
  int32_t only = -1;
  int specials = 0;
  for (int i = 0; k && i < k->added_count; i++) {
    if (!k->added[i].special) continue;
    only = k->added[i].id;
    specials++;
  }
  const int32_t known = k ? chat_end(k) : -1;
  const int32_t end = known >= 0 ? known : specials == 1 ? only : -1;
  const Chat c = k && x->chat ? chat_open(x->chat, k) : Chat{};
  const int32_t stop = c.form ? c.stop_id : -1, eos = stop >= 0 ? stop : end;
  const char *begin = published_text(published, "bos_token");
  int32_t bos = k && k->adds_bos ? k->bos_id : end;
  if (published && !(k && k->adds_bos)) bos = k && begin ? chat_token(k, begin) : -1;
  TextEnds e = {bos, eos, token_text(k, bos), token_text(k, eos), NULL, NULL, published};
  cJSON *words = c.form ? cJSON_Parse(x->chat->words) : NULL;
  const char *texts[] = {cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(words, "chat_template")),
                         cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(words, "tool_use"))};
  if (texts[0]) e.chat = strdup(texts[0]);
  if (texts[1]) e.chat_tools = strdup(texts[1]);
  cJSON_Delete(words);
  if (bos < 0) e.bos = published_id(published, "bos_token_id");  // an id that no token of tokenizer_config.json is
  for (const char *file : {"generation_config", "config"}) {
    const cJSON *ids = published_item(published, file, "eos_token_id"), *id = cJSON_IsArray(ids) ? ids->child : ids;
    for (; id; id = cJSON_IsArray(ids) ? id->next : NULL)
      if (cJSON_IsNumber(id) && id->valuedouble >= 0 && (!k || id->valuedouble < k->vocab_size))
        text_ends_add(&e, (int32_t)id->valuedouble);
  }
  const char *eos_text = published_text(published, "eos_token");
  if (k && eos_text) text_ends_add(&e, chat_token(k, eos_text));
  text_ends_add(&e, end);
  return e;
}
static void text_ends_free(TextEnds *e) {
  free(e->bos_text);
  free(e->eos_text);
  free(e->chat);
  free(e->chat_tools);
}
int export_ends(const ExportTexts *x, int32_t *ids, int most) {
  TextEnds e = text_ends(x);
  int n = 0;
  if (e.eos >= 0 && n < most) ids[n++] = e.eos;
  for (int i = 0; i < e.others && n < most; i++) ids[n++] = e.other[i];
  text_ends_free(&e);
  return n;
}

// ---- texts ----------------------------------------------------------------------------------------------------------
// JSON text of an object, malloc'ed; the object is deleted.
static inline char *export_text(cJSON *object) {
  char *printed = cJSON_Print(object);
  const size_t bytes = strlen(printed);
  char *text = (char *)malloc(bytes + 2);
  memcpy(text, printed, bytes);
  memcpy(text + bytes, "\n", 2);
  cJSON_free(printed);
  cJSON_Delete(object);
  return text;
}
// Adds a token's id; null for -1.
static inline void export_token(cJSON *object, const char *name, int32_t id) {
  if (id < 0) cJSON_AddNullToObject(object, name);
  else cJSON_AddNumberToObject(object, name, id);
}
static inline void export_ends(cJSON *object, const TextEnds *e) {
  const int32_t pad = published_id(e->published, "pad_token_id");
  for (const char *name : {"bos_token_id", "eos_token_id", "pad_token_id"})
    cJSON_DeleteItemFromObjectCaseSensitive(object, name);
  export_token(object, "bos_token_id", e->bos);
  if (!e->others) export_token(object, "eos_token_id", e->eos);
  else {
    cJSON *list = cJSON_AddArrayToObject(object, "eos_token_id");
    cJSON_AddItemToArray(list, cJSON_CreateNumber(e->eos));
    for (int i = 0; i < e->others; i++) cJSON_AddItemToArray(list, cJSON_CreateNumber(e->other[i]));
  }
  if (pad >= 0) cJSON_AddNumberToObject(object, "pad_token_id", pad);
}

// The text of config.json; the caller frees it, like the texts below. version: of this program.
static char *export_config_text(ModelShape shape, const TextEnds *ends, const char *version, Dtype dtype = F32) {
  char program[64];
  snprintf(program, sizeof program, "train_gpt_fsdp %s", version);
  cJSON *c = cJSON_CreateObject(), *architectures = cJSON_AddArrayToObject(c, "architectures");
  if (const Family *family = family_of_shape(&shape)) {
    cJSON_AddItemToArray(architectures, cJSON_CreateString(family->architecture));
    family_config_write(c, family, &shape);
    export_ends(c, ends);
    if (!cJSON_HasObjectItem(c, "pad_token_id")) cJSON_AddNullToObject(c, "pad_token_id");     // or some take their own
  } else {
    cJSON_AddItemToArray(architectures, cJSON_CreateString("GPT2LMHeadModel"));
    cJSON_AddStringToObject(c, "model_type", "gpt2");
    cJSON_AddStringToObject(c, "activation_function", "gelu_new");
    for (const ImportField &f : import_fields)
      cJSON_AddNumberToObject(c, f.name, (double)*(const int64_t *)((const char *)&shape + f.offset));
    cJSON_AddNumberToObject(c, "n_ctx", (double)shape.n_positions);
    cJSON_AddNullToObject(c, "n_inner");
    cJSON_AddNumberToObject(c, "layer_norm_epsilon", 1e-5);
    cJSON_AddNumberToObject(c, "initializer_range", 0.02);
    for (const char *name : gpt2_dropouts) cJSON_AddNumberToObject(c, name, shape.dropout);
    cJSON_AddTrueToObject(c, "scale_attn_weights");
    cJSON_AddFalseToObject(c, "scale_attn_by_inverse_layer_idx");
    cJSON_AddFalseToObject(c, "reorder_and_upcast_attn");
    cJSON_AddBoolToObject(c, "tie_word_embeddings", shape.tied);
    export_ends(c, ends);
  }
  cJSON_AddTrueToObject(c, "use_cache");
  cJSON_AddStringToObject(c, "dtype", dtype == BF16 ? "bfloat16" : "float32");
  cJSON_AddStringToObject(c, "written_by", program);
  return export_text(c);
}

// generation_config.json, what generate() starts from: the published one, if there is one, with these ends.
static char *export_generation_config_text(const TextEnds *ends) {
  cJSON *c = cJSON_Duplicate(cJSON_GetObjectItemCaseSensitive(ends->published, "generation_config"), 1);
  if (!c) c = cJSON_CreateObject();
  export_ends(c, ends);
  if (!cJSON_HasObjectItem(c, "use_cache")) cJSON_AddTrueToObject(c, "use_cache");
  return export_text(c);
}

// tokenizer_config.json, for the tokenizer.json beside it. Whether a token is added to a text automatically,
// tokenizer.json says.
static char *export_tokenizer_config_text(int64_t n_positions, const TextEnds *ends) {
  const char *unk = ends->published ? published_text(ends->published, "unk_token") : ends->eos_text;
  const char *pad = published_text(ends->published, "pad_token");
  const struct { const char *name, *text; } uses[] = {
      {"bos_token", ends->bos_text}, {"eos_token", ends->eos_text}, {"unk_token", unk}};
  cJSON *c = cJSON_CreateObject();
  cJSON_AddStringToObject(c, "tokenizer_class", "PreTrainedTokenizerFast");
  cJSON_AddNumberToObject(c, "model_max_length", (double)n_positions);
  cJSON_AddFalseToObject(c, "add_prefix_space");
  cJSON_AddFalseToObject(c, "add_bos_token");
  cJSON_AddFalseToObject(c, "clean_up_tokenization_spaces");
  for (const auto &use : uses) {
    if (use.text) cJSON_AddStringToObject(c, use.name, use.text);
    else cJSON_AddNullToObject(c, use.name);
  }
  if (pad) cJSON_AddStringToObject(c, "pad_token", pad);
  if (ends->chat && !ends->chat_tools) cJSON_AddStringToObject(c, "chat_template", ends->chat);
  cJSON *named = ends->chat_tools ? cJSON_AddArrayToObject(c, "chat_template") : NULL;
  for (int i = 0; named && i < 2; i++) {
    cJSON *each = cJSON_CreateObject();
    cJSON_AddStringToObject(each, "name", i ? "tool_use" : "default");
    cJSON_AddStringToObject(each, "template", i ? ends->chat_tools : ends->chat);
    cJSON_AddItemToArray(named, each);
  }
  return export_text(c);
}
// adapter_config.json. base: name or path of the weights that the adapter is for. To be freed by the caller.
static char *lora_config_text(const ModelShape *s, const char *base) {
  cJSON *c = cJSON_CreateObject();
  cJSON_AddStringToObject(c, "base_model_name_or_path", base);
  cJSON_AddStringToObject(c, "bias", "none");
  cJSON_AddBoolToObject(c, "fan_in_fan_out", !family_of_shape(s));             // GPT-2's matrices are Conv1D
  cJSON_AddTrueToObject(c, "inference_mode");
  cJSON_AddNumberToObject(c, "lora_alpha", s->lora.alpha);
  cJSON_AddNumberToObject(c, "lora_dropout", s->lora.dropout);
  cJSON_AddStringToObject(c, "peft_type", "LORA");
  cJSON_AddNumberToObject(c, "r", (double)s->lora.rank);
  cJSON *names = cJSON_AddArrayToObject(c, "target_modules");
  for (int m = 0; m < LORA_MATRICES; m++)
    for (int i = 0; i < lora_parts(s, m); i++)
      if (s->lora.parts[m] >> i & 1) cJSON_AddItemToArray(names, cJSON_CreateString(lora_module(s, m, i)));
  cJSON_AddStringToObject(c, "task_type", "CAUSAL_LM");
  if (s->lora.by_root) cJSON_AddTrueToObject(c, "use_rslora");
  if (s->lora.row_end) {
    cJSON *rows = cJSON_AddObjectToObject(c, "trainable_token_indices");
    for (int head = 0; head <= !s->tied; head++) {
      cJSON *ids = cJSON_AddArrayToObject(rows, head ? "lm_head" : family_of_shape(s) ? "embed_tokens" : "wte");
      for (int64_t id = s->lora.row_from; id < s->lora.row_end; id++)
        cJSON_AddItemToArray(ids, cJSON_CreateNumber((double)id));
    }
  }
  return export_text(c);
}
bool export_texts(const char *dir, const ModelShape *s, Dtype dtype, const ExportTexts *x, const char *base,
                  Error *error) {
  TextEnds ends = base && !s->lora.row_end ? TextEnds{} : text_ends(x);
  size_t tokenizer_bytes = 0;
  const bool has_tokenizer = x->tokenizer && (!base || s->lora.row_end);
  const struct { const char *name; char *text; } files[] = {
      {"adapter_config.json", base ? lora_config_text(s, base) : NULL},
      {"config.json", base ? NULL : export_config_text(*s, &ends, x->program, dtype)},
      {"generation_config.json", base ? NULL : export_generation_config_text(&ends)},
      {"tokenizer.json", has_tokenizer ? tokenizer_text(x->tokenizer, &tokenizer_bytes) : NULL},
      {"tokenizer_config.json", has_tokenizer ? export_tokenizer_config_text(s->n_positions, &ends) : NULL}};
  error->text[0] = 0;
  for (const auto &f : files) {
    char path[MAP_PATH_BYTES];
    path_join(path, sizeof path, dir, f.name);
    const size_t bytes = !strcmp(f.name, "tokenizer.json") ? tokenizer_bytes : f.text ? strlen(f.text) : 0;
    if (f.text && !error->text[0] && !file_put(path, dir, f.text, (int64_t)bytes))
      fail(error, "cannot write %.900s: %s", path, strerror(errno));
    free(f.text);
  }
  text_ends_free(&ends);
  return !error->text[0];
}
