// forms.h: which container a file of data is and which form its records have, from its name and its first bytes. What
// reads a file and what refuses it ask here, so that nothing is trained on as something else.
//
// Defines: DataContainer, DataForm, FileForm, form_keys, form_of, form_is_chat_key, form_refusal.
#pragma once
#include <initializer_list>                      // for (x : {a, b})
#include <stdio.h>
#include <string.h>
#include "base/text.h"

enum DataContainer { CONTAINER_TEXT, CONTAINER_JSON_LINES, CONTAINER_JSON_ARRAY, CONTAINER_JSON_SPREAD, CONTAINER_CSV,
                     CONTAINER_TSV };            // SPREAD: objects over several lines
enum DataForm { FORM_OTHER, FORM_TEXT, FORM_PROMPT, FORM_MESSAGES, FORM_SHAREGPT, FORM_ALPACA, FORM_PREFERENCE };
// keys: those of the first record, with commas, as far as they fit; "": there are none.
struct FileForm { DataContainer container; DataForm form; char keys[160]; };

// A member, or column, that holds a conversation.
static inline bool form_is_chat_key(const char *key) {
  for (const char *name : {"messages", "conversations", "conversation", "chosen", "rejected"})
    if (!strcmp(key, name)) return true;
  return false;
}
static inline bool form_has(const char *keys, const char *key) {
  const size_t n = strlen(key);
  for (const char *at = keys; (at = strstr(at, key)); at++)
    if ((at == keys || at[-1] == ' ') && (!at[n] || at[n] == ',')) return true;
  return false;
}
// The form of a record with these keys. The first one that fits is taken: messages beside a prompt are a conversation.
static inline DataForm form_of_keys(const char *keys) {
  static const struct { DataForm form; const char *key, *too; } table[] = {
      {FORM_MESSAGES, "messages", NULL}, {FORM_SHAREGPT, "conversations", NULL}, {FORM_SHAREGPT, "conversation", NULL},
      {FORM_PREFERENCE, "chosen", "rejected"}, {FORM_PROMPT, "prompt", "completion"},
      {FORM_ALPACA, "instruction", "output"}, {FORM_TEXT, "text", NULL}};
  for (const auto &x : table) if (form_has(keys, x.key) && (!x.too || form_has(keys, x.too))) return x.form;
  return FORM_OTHER;
}
static inline const uint8_t *form_blank_end(const uint8_t *p, const uint8_t *end) {
  while (p < end && (*p == ' ' || *p == '\t' || *p == '\n' || *p == '\r')) p++;
  return p;
}
// The keys of the JSON object that begins at p, of which there may be no more than its beginning. Returns its end;
// NULL: it does not end here. spread: it has a line's end in it.
static inline const uint8_t *form_keys(const uint8_t *p, const uint8_t *end, FileForm *f, bool *spread) {
  int depth = 0;
  size_t n = 0;
  *spread = false;
  for (f->keys[0] = 0; p < end; p++) {
    *spread = *spread || *p == '\n';
    depth += (*p == '{' || *p == '[') - (*p == '}' || *p == ']');
    if (!depth) return p + 1;
    if (*p != '"') continue;
    const uint8_t *q = p + 1;
    while (q < end && *q != '"' && *q != '\n') q += 1 + (*q == '\\');
    if (q >= end) break;
    const uint8_t *colon = form_blank_end(q + 1, end);
    const size_t bytes = (size_t)(q - p) - 1, room = sizeof f->keys - n;
    if (depth == 1 && colon < end && *colon == ':' && bytes + 3 < room)
      n += (size_t)snprintf(f->keys + n, room, "%s%.*s", n ? ", " : "", (int)bytes, (const char *)p + 1);
    p = *q == '"' ? q : q - 1;
  }
  return NULL;
}
// Whether a name ends so, with .gz or .zst behind it or not.
static inline bool form_name_ends(const char *name, const char *end) {
  size_t n = strlen(name), m = strlen(end);
  if (n > 3 && !strcmp(name + n - 3, ".gz")) n -= 3;
  else if (n > 4 && !strcmp(name + n - 4, ".zst")) n -= 4;
  return n > m && !strncmp(name + n - m, end, m);
}
// Whether a name says that what is inside is text, whatever it looks like.
static inline bool form_name_is_text(const char *name) {
  for (const char *end : {".txt", ".text", ".md", ".raw", ".tokens"}) if (form_name_ends(name, end)) return true;
  return false;
}
// What the file is that has this name and begins with the `n` bytes at `p`.
static inline FileForm form_of(const char *name, const uint8_t *p, size_t n) {
  FileForm f = {CONTAINER_TEXT, FORM_OTHER, ""};
  const uint8_t *end = p + n;
  bool spread;
  if (form_name_ends(name, ".csv")) f.container = CONTAINER_CSV;
  if (form_name_ends(name, ".tsv")) f.container = CONTAINER_TSV;
  if (f.container) return f;
  if (n >= 3 && !memcmp(p, "\xef\xbb\xbf", 3)) p += 3;
  p = form_blank_end(p, end);
  const bool json = form_name_ends(name, ".json") || form_name_ends(name, ".jsonl") || form_name_ends(name, ".ndjson");
  const bool array = p < end && *p == '[';
  const uint8_t *object = array ? form_blank_end(p + 1, end) : p, *key = object;
  if (object < end && *object == '{') key = form_blank_end(object + 1, end);
  const bool is_object = key > object && key < end && (*key == '"' || *key == '}');
  if (array && (json || is_object)) f.container = CONTAINER_JSON_ARRAY;
  if (!is_object) return f;
  const uint8_t *rest = form_keys(object, end, &f, &spread);
  f.form = form_of_keys(f.keys);
  if (array) return f;
  while (rest && rest < end && (*rest == ' ' || *rest == '\t' || *rest == '\r')) rest++;
  if (!json && (!f.keys[0] || (rest && rest < end && *rest != '\n'))) return f;          // text with braces
  f.container = spread ? CONTAINER_JSON_SPREAD : CONTAINER_JSON_LINES;
  return f;
}

// What to do with a file that is not read as it is: one line, which begins with its path. NULL: it is read. lines: it
// is asked for as lines of JSON, else as text.
static inline const char *form_refusal(const FileForm *f, const char *path, bool lines, char *to, size_t bytes) {
  static const char *const raw = "; who wants its bytes as text says --data_as text";
  const char *with = f->keys[0] ? " of objects with " : "";
  switch (f->container) {
  case CONTAINER_TEXT: return NULL;
  case CONTAINER_JSON_LINES:
    if (lines) return NULL;
    snprintf(to, bytes, "%s is JSON lines%s%s; its name should end in .jsonl or .json%s", path, with, f->keys, raw);
    return to;
  case CONTAINER_JSON_ARRAY: case CONTAINER_JSON_SPREAD:
    snprintf(to, bytes, "%s is %s%s%s; expected: JSON lines, an object a line: jq -c %s %s > NEW.jsonl%s", path,
             f->container == CONTAINER_JSON_ARRAY ? "a JSON array" : "JSON over several lines", with, f->keys,
             f->container == CONTAINER_JSON_ARRAY ? "'.[]'" : ".", path, raw);
    return to;
  case CONTAINER_CSV: case CONTAINER_TSV:
    snprintf(to, bytes, "%s is a table of values with %s between them, which is not read; expected: JSON lines: "
             "python3 -c \"import pandas; pandas.read_csv('%s'%s).to_json('NEW.jsonl', orient='records', lines=True)"
             "\"%s", path, f->container == CONTAINER_CSV ? "commas" : "tabs", path,
             f->container == CONTAINER_CSV ? "" : ", sep='\\t'", raw);
  }
  return to;
}
