// chat_template.h: the chat templates that come with the program, and those of models.
//
// A model's "words" are one JSON object: "chat_template", the template's text; "tool_use", the template for
// conversations with tools, if there is one; and the texts of its special tokens, "bos_token" and others, which are
// variables of a template. They are read from the files beside a tokenizer, or made of a template's text and these
// tokens; a run saves them in its checkpoints.
#pragma once
#include "jinja_render.h"

// ---- templates of ours, data/chat/templates/NAME.jinja
#define CHAT_TEMPLATES(X) \
  X(chatml, "chatml") X(qwen25, "qwen2.5") X(qwen3, "qwen3") X(qwen3_2507, "qwen3-2507") X(qwen3_free, "qwen3-free") \
  X(smollm2, "smollm2") X(smollm3, "smollm3") X(llama3, "llama3") X(llama30, "llama3.0") X(zephyr, "zephyr") \
  X(gemma, "gemma") X(gemma3, "gemma3") X(mistral_v1, "mistral-v1") X(mistral_v3, "mistral-v3") \
  X(mistral_nemo, "mistral-nemo")
#define CHAT_EMBED(id, name) \
  asm(".section .rodata\nchat_text_" #id ":\n" \
      ".incbin \"data/chat/templates/" name ".jinja\"\n.byte 0\n.previous\n"); \
  extern "C" __attribute__((visibility("hidden"))) const char chat_text_##id[];
CHAT_TEMPLATES(CHAT_EMBED)
#define CHAT_NAMED(id, name) {name, chat_text_##id},
static const struct { const char *name, *text; } chat_templates[] = {CHAT_TEMPLATES(CHAT_NAMED)};

const char *chat_template_text(const char *name) {
  for (const auto &t : chat_templates) if (!strcmp(t.name, name)) return t.text;
  return NULL;
}
bool chat_date_read(const char *text, struct tm *day) {
  for (const char *how : {"%d %b %Y", "%Y-%m-%d"}) {
    *day = {};
    const char *end = strptime(text, how, day);
    if (end && !*end) return timegm(day) != -1;
  }
  return false;
}

// ---- what a model brings
// Adds the text of a special token, unless `to` has it. x: the text, or an object with "content".
static void chat_words_token(cJSON *to, const cJSON *x) {
  const char *text = cJSON_GetStringValue(cJSON_IsObject(x) ? cJSON_GetObjectItemCaseSensitive(x, "content") : x);
  const size_t n = x && x->string ? strlen(x->string) : 0;
  if (text && n > 6 && !strcmp(x->string + n - 6, "_token") && !cJSON_HasObjectItem(to, x->string))
    cJSON_AddStringToObject(to, x->string, text);
}
// Adds a template: a text, or a list or object of named templates, of which transformers uses `tool_use` for
// conversations with tools and else `default`.
static void chat_words_template(cJSON *to, const cJSON *x) {
  const cJSON *named;
  if (cJSON_IsString(x)) cJSON_AddStringToObject(to, "chat_template", x->valuestring);
  if (cJSON_IsArray(x) || cJSON_IsObject(x)) cJSON_ArrayForEach(named, x) {
    const bool list = cJSON_IsArray(x);
    const char *name = list ? cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(named, "name")) : named->string;
    const char *text = cJSON_GetStringValue(list ? cJSON_GetObjectItemCaseSensitive(named, "template") : named);
    const char *as = !name || !text ? NULL : !strcmp(name, "default") ? "chat_template" : !strcmp(name, "tool_use")
        ? name : NULL;
    if (as && !cJSON_HasObjectItem(to, as)) cJSON_AddStringToObject(to, as, text);
  }
}
char *chat_words_of(const cJSON *config, const char *text, const char *tool_use) {
  cJSON *to = cJSON_CreateObject();
  const cJSON *x;
  if (text) cJSON_AddStringToObject(to, "chat_template", text);
  if (tool_use) cJSON_AddStringToObject(to, "tool_use", tool_use);
  if (!text) chat_words_template(to, cJSON_GetObjectItemCaseSensitive(config, "chat_template"));
  const cJSON *tools = cJSON_GetObjectItemCaseSensitive(config, "tool_use");
  if (!text && cJSON_IsString(tools) && !cJSON_HasObjectItem(to, "tool_use"))
    cJSON_AddStringToObject(to, "tool_use", tools->valuestring);
  if (!cJSON_HasObjectItem(to, "chat_template")) {
    cJSON_Delete(to);
    return NULL;
  }
  cJSON_ArrayForEach(x, config) chat_words_token(to, x);
  // Default BOS and EOS tokens of transformers' tokenizer classes, for files that name none.
  static const struct { const char *type, *bos, *eos; } classes[] = {
      {"Llama", "<s>", "</s>"}, {"CodeLlama", "<s>", "</s>"}, {"Gemma", "<bos>", "<eos>"},
      {"GPT2", "<|endoftext|>", "<|endoftext|>"}, {"Qwen2", NULL, "<|endoftext|>"}};
  const char *type = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(config, "tokenizer_class"));
  for (const auto &c : classes) {
    const size_t n = strlen(c.type);
    if (!type || strncmp(type, c.type, n) || strncmp(type + n, "Tokenizer", 9)) continue;
    if (c.bos && !cJSON_HasObjectItem(config, "bos_token")) cJSON_AddStringToObject(to, "bos_token", c.bos);
    if (!cJSON_HasObjectItem(config, "eos_token")) cJSON_AddStringToObject(to, "eos_token", c.eos);
  }
  char *printed = cJSON_PrintUnformatted(to), *words = strdup(printed);
  cJSON_free(printed);
  cJSON_Delete(to);
  return words;
}
// The text of a file of a directory, malloc'ed; NULL: there is none. *json: the parsed file. One that is unreadable, or
// no JSON, is a fault in `why` with its code: a model is not taken for one that has no such file.
static char *chat_file(const char *dir, const char *name, cJSON **json, Error *why) {
  char path[DATA_PATH_BYTES + 64];
  int64_t bytes;
  data_format(path, sizeof path, "%s/%s", dir, name);
  char *text = file_get(path, 1 << 24, &bytes);
  if (!text && errno != ENOENT && errno != ENOTDIR)
    fail_with(why, EXIT_MISSING, "%s: cannot read it: %s", path, file_get_fault());
  if (json) *json = text ? cJSON_ParseWithLength(text, (size_t)bytes) : NULL;
  if (json && text && !cJSON_IsObject(*json)) fail_with(why, EXIT_MISSING, "%s: is not a JSON object", path);
  return text;
}
char *chat_words_in(const char *dir, Error *why) {
  cJSON *config, *map, *processor;
  const cJSON *x;
  why->code = 0;
  char *const text = chat_file(dir, "chat_template.jinja", NULL, why);
  char *const tools = chat_file(dir, "additional_chat_templates/tool_use.jinja", NULL, why);
  free(chat_file(dir, "tokenizer_config.json", &config, why));
  free(chat_file(dir, "special_tokens_map.json", &map, why));
  free(chat_file(dir, "chat_template.json", &processor, why));
  if (!config) config = cJSON_CreateObject();
  cJSON_ArrayForEach(x, map)
    if (!cJSON_HasObjectItem(config, x->string)) cJSON_AddItemToObject(config, x->string, cJSON_Duplicate(x, 1));
  cJSON *theirs = cJSON_DetachItemFromObjectCaseSensitive(processor, "chat_template");
  if (theirs && !cJSON_HasObjectItem(config, "chat_template")) cJSON_AddItemToObject(config, "chat_template", theirs);
  else cJSON_Delete(theirs);
  char *words = why->code ? NULL : chat_words_of(config, text, text ? tools : NULL);
  if (!words && !why->code) fail(why, "%s has none (chat_template.jinja, tokenizer_config.json)", dir);
  for (cJSON *each : {config, map, processor}) cJSON_Delete(each);
  free(text);
  free(tools);
  return words;
}

// ---- parsed
// A model's words with its parsed templates: [0] for conversations without tools, [1] with tools (the same, or
// another). Each is made once and kept: a process has a few.
struct ChatForm {
  char *words, *variables, fault[320];
  cJSON *json, *kwargs;
  const char *text[2];
  JinjaTemplate *tree[2];
  ChatForm *next;
};
// The parsed schema of the options' words, or of this program's template that they name; NULL: neither. Main thread
// only.
static ChatForm *chat_form(const ChatOptions *o) {
  static ChatForm *all;
  const char *ours = o->words ? NULL : chat_template_text(o->template_name);
  if (!o->words && !ours) return NULL;
  char *words = o->words ? strdup(o->words) : chat_words_of(NULL, ours, NULL);
  for (ChatForm *f = all; f; f = f->next) {
    if (strcmp(f->words, words) || strcmp(f->variables, o->kwargs)) continue;
    free(words);
    return f;
  }
  ChatForm *f = (ChatForm *)data_alloc(1, sizeof *f);
  *f = ChatForm{words, strdup(o->kwargs), "", json_parse_spelled(words), NULL, {}, {}, all};
  if (*o->kwargs) f->kwargs = json_parse_spelled(f->variables);
  all = f;
  for (int i = 0; i < 2 && !f->fault[0]; i++) {
    JinjaFault fault;
    f->text[i] = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(f->json, i ? "tool_use" : "chat_template"));
    if (!f->text[i]) { f->text[i] = f->text[0], f->tree[i] = f->tree[0]; continue; }
    f->tree[i] = jinja_parse(f->text[i], strlen(f->text[i]), &fault);
    if (!f->tree[i])
      snprintf(f->fault, sizeof f->fault, "that of the %s, line %d: %s", o->words ? "model" : "program", fault.line,
               fault.text);
  }
  return f;
}
bool chat_words_fault(const char *words, Error *why) {
  ChatOptions o = {"", "", "", false};
  o.words = words;
  const ChatForm *f = chat_form(&o);
  return !f->fault[0] || fail(why, "%s", f->fault);
}
const char *chat_kwargs_fault(const char *text) {
  cJSON *x = *text ? cJSON_Parse(text) : NULL;
  const char *fault = !*text || cJSON_IsObject(x) ? NULL : "is no JSON object, such as {\"enable_thinking\": false}";
  for (const cJSON *y = x ? x->child : NULL; y; y = y->next)
    for (const char *name : {"messages", "tools", "documents", "add_generation_prompt"})
      if (y->string && !strcmp(y->string, name)) fault = "names a variable that conversations give themselves";
  cJSON_Delete(x);
  return fault;
}
