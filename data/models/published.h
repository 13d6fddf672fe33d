// published.h: what is published beside weights and goes out again with a model that is fine-tuned from them: special
// tokens, chat templates, how to generate.
#pragma once
#include "models.h"

// What a published directory says beside its weights that an export of a model fine-tuned from it says too: of each
// file of `published_files` all, or these keys. NULL: nothing, or one line in `error`: a file is there and cannot be
// read. To be deleted by the caller.
static const struct { const char *name, *members[6]; } published_files[] = {
    {"generation_config", {}},
    {"config", {"bos_token_id", "eos_token_id", "pad_token_id"}},
    {"tokenizer_config", {"bos_token", "eos_token", "pad_token", "unk_token", "chat_template", "tokenizer_class"}}};
static cJSON *import_published(const char *directory, Error *error) {
  cJSON *all = NULL;
  for (const auto &file : published_files) {
    char path[MAP_PATH_BYTES + 32];
    snprintf(path, sizeof path, "%.1200s/%s.json", directory, file.name);
    cJSON *json = access(path, F_OK) ? NULL : import_read_json(path, 1 << 24, error);
    if (!json) continue;
    cJSON *kept = file.members[0] ? cJSON_CreateObject() : cJSON_Duplicate(json, 1);
    for (const char *name : file.members) {
      cJSON *x = name ? cJSON_DetachItemFromObjectCaseSensitive(json, name) : NULL;
      if (x) cJSON_AddItemToObject(kept, name, x);
    }
    cJSON_Delete(json);
    if (!all) all = cJSON_CreateObject();
    cJSON_AddItemToObject(all, file.name, kept);
  }
  char path[MAP_PATH_BYTES + 32];                // comes before the one in tokenizer_config.json
  int64_t bytes;
  snprintf(path, sizeof path, "%.1200s/chat_template.jinja", directory);
  char *text = file_get(path, 1 << 24, &bytes);
  if (!text && errno != ENOENT) fail(error, "%s: cannot read it: %s", path, file_get_fault());
  cJSON *config = cJSON_GetObjectItemCaseSensitive(all, "tokenizer_config");
  if (text && !all) all = cJSON_CreateObject();
  if (text && !config) config = cJSON_AddObjectToObject(all, "tokenizer_config");
  cJSON_DeleteItemFromObjectCaseSensitive(config, "chat_template");
  if (text) cJSON_AddStringToObject(config, "chat_template", text);
  free(text);
  return all;
}
// A key `name` of its `file`.
static inline const cJSON *published_item(const cJSON *published, const char *file, const char *name) {
  return cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(published, file), name);
}
// The text of a special token, NULL where there is none; the id of one, -1.
static inline const char *published_text(const cJSON *published, const char *name) {
  const cJSON *x = published_item(published, "tokenizer_config", name);
  return cJSON_GetStringValue(cJSON_IsObject(x) ? cJSON_GetObjectItemCaseSensitive(x, "content") : x);
}
static inline int32_t published_id(const cJSON *published, const char *name) {
  const cJSON *x = published_item(published, "config", name);
  if (!cJSON_IsNumber(x)) x = published_item(published, "generation_config", name);
  return cJSON_IsNumber(x) && x->valuedouble >= 0 && x->valuedouble < 1 << 24 ? (int32_t)x->valuedouble : -1;
}
// What import_published finds in a directory; NULL: nothing. To be deleted by the caller.
static cJSON *gguf_published(const GgufFile *g) {
  static const struct { const char *key, *id, *text; double of_scores; } tokens[] = {       // llama.cpp's defaults
      {"bos", "bos_token_id", "bos_token", 1}, {"eos", "eos_token_id", "eos_token", 2},
      {"eot", "eos_token_id", NULL, -1}, {"padding", "pad_token_id", "pad_token", -1},
      {"unknown", NULL, "unk_token", 0}};
  const GgufKey *texts = gguf_find(g, "tokenizer.ggml.tokens");
  if (!texts || !texts->is_array || texts->type != GGUF_STRING) return NULL;
  cJSON *all = cJSON_CreateObject(), *config = cJSON_AddObjectToObject(all, "config");
  cJSON *words = cJSON_AddObjectToObject(all, "tokenizer_config");
  char *text = gguf_string(g, "tokenizer.ggml.model");
  const bool scores = text && !strcmp(text, "llama");
  free(text);
  for (const auto &t : tokens) {
    char key[64];
    double id = scores ? t.of_scores : -1;
    snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", t.key);
    gguf_number(g, key, &id);
    if (!(id >= 0 && id < (double)texts->count)) continue;
    if (t.text) {
      const GgufText word = gguf_text_at(texts, (uint64_t)id);
      text = strndup(word.at, word.bytes);
      cJSON_AddStringToObject(words, t.text, text);
      free(text);
    }
    cJSON *before = t.id ? cJSON_DetachItemFromObjectCaseSensitive(config, t.id) : NULL;
    if (before) {
      cJSON *list = cJSON_AddArrayToObject(config, t.id);
      cJSON_AddItemToArray(list, before);
      cJSON_AddItemToArray(list, cJSON_CreateNumber(id));
    } else if (t.id) cJSON_AddNumberToObject(config, t.id, id);
  }
  text = gguf_string(g, "tokenizer.chat_template");
  if (text) cJSON_AddStringToObject(words, "chat_template", text);
  free(text);
  text = gguf_string(g, "tokenizer.chat_template.tool_use");
  if (text) cJSON_AddStringToObject(words, "tool_use", text);
  free(text);
  return all;
}
char *published_chat_words(const char *tokenizer, Error *why) {
  char dir[MAP_PATH_BYTES];
  struct stat st;
  if (gguf_is(tokenizer)) {
    GgufFile g;
    char *words = NULL;
    if (gguf_open(&g, tokenizer, why)) {
      cJSON *published = gguf_published(&g);
      words = chat_words_of(cJSON_GetObjectItemCaseSensitive(published, "tokenizer_config"), NULL);
      cJSON_Delete(published);
      if (!words) fail(why, "%s has none (tokenizer.chat_template)", tokenizer);
    }
    gguf_close(&g);
    return words;
  }
  snprintf(dir, sizeof dir, "%s", tokenizer);
  if (stat(dir, &st) || !S_ISDIR(st.st_mode)) {
    char *slash = strrchr(dir, '/');
    if (slash) *slash = 0;
    else snprintf(dir, sizeof dir, ".");
  }
  return chat_words_in(dir, why);
}
