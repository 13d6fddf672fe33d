// forms.h: finds the file format of a data file from its name and its first bytes. Code that reads a file and code that
// rejects it both use this, so that no file is trained on as another format. records.h finds the schema of its records.
#pragma once
#include "files.h"

bool form_is_chat_key(const char *key) {
  for (const char *name : {"messages", "conversations", "conversation", "chosen", "rejected"})
    if (!strcmp(key, name)) return true;
  return false;
}
static inline const uint8_t *form_blank_end(const uint8_t *p, const uint8_t *end) {
  while (p < end && (*p == ' ' || *p == '\t' || *p == '\n' || *p == '\r')) p++;
  return p;
}
// Writes the keys of the JSON object that starts at p to f->keys; memory may have only the object's start. Returns the
// object's end, or NULL if it does not end before `end`. *spread: there is a newline in it.
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
bool form_name_ends(const char *name, const char *end) {
  size_t n = strlen(name), m = strlen(end);
  if (n > 3 && !strcmp(name + n - 3, ".gz")) n -= 3;
  else if (n > 4 && !strcmp(name + n - 4, ".zst")) n -= 4;
  return n > m && !strncmp(name + n - m, end, m);
}
bool form_name_is_text(const char *name) {
  for (const char *end : {".txt", ".text", ".md", ".raw", ".tokens"}) if (form_name_ends(name, end)) return true;
  return false;
}
FileForm form_of(const char *name, const uint8_t *p, size_t n) {
  FileForm f = {CONTAINER_TEXT, ""};
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
  if (array) return f;
  while (rest && rest < end && (*rest == ' ' || *rest == '\t' || *rest == '\r')) rest++;
  if (!json && (!f.keys[0] || (rest && rest < end && *rest != '\n'))) return f;          // text with braces
  const bool beside = rest && rest < end && *rest == '{';        // the next one, on the same line
  f.container = spread || beside ? CONTAINER_JSON_SPREAD : CONTAINER_JSON_LINES;
  return f;
}

ContainerWords container_words(DataContainer container) {
#define X(identifier, what, ends, in) {what, ends, in},
  static const ContainerWords words[] = {DATA_CONTAINERS(X)};
#undef X
  return words[container];
}
bool form_check(const FileForm *f, const char *path, Error *e) {
  const ContainerWords is = container_words(f->container);
  return f->container == CONTAINER_TEXT ||
         fail_with(e, EXIT_MISSING, "%s is %s%s%s; its name should end in %s; --data_as text trains on its bytes as "
                   "they are", path, is.what, f->keys[0] ? " of objects with " : "", f->keys, is.ends);
}
