// chat_tools.h: JSON as chat templates write it, for tools and calls: as Python's json.dumps without ensure_ascii, in
// the order of the file, with its numbers as they are spelled there; or as Python's str has an object.
//
// Defines: ChatText, chat_put, json_spell, json_parse_spelled, JsonStyle, json_put, json_put_text.
#pragma once
#include <cjson/cJSON.h>
#include "chat.h"
#include "data/tokenizer/tokenizer.h"

struct ChatText { char *p; size_t n, room; };
static inline void chat_put(ChatText *t, ChatSpan s) {
  if (t->n + s.n > t->room) t->p = (char *)bpe_resize(t->p, t->room = 2 * (t->n + s.n), 1);
  if (s.n) memcpy(t->p + t->n, s.p, s.n);
  t->n += s.n;
}
static inline void chat_put(ChatText *t, const char *text) { chat_put(t, chat_span(text)); }

// Gives each number of `x` and what follows it its spelling, in valuestring, which cJSON leaves NULL, copies and frees.
// *at: the text that it was parsed from, whose numbers come in the same order.
static inline void json_spell(cJSON *x, const char **at) {
  for (; x; x = x->next) {
    json_spell(x->child, at);
    if (!cJSON_IsNumber(x)) continue;
    for (; **at && **at != '-' && (**at < '0' || **at > '9'); ++*at)
      if (**at == '"') for (++*at; **at && **at != '"'; ++*at) *at += **at == '\\';
    const size_t n = strspn(*at, "+-.0123456789Ee");
    cJSON_free(x->valuestring);
    x->valuestring = strndup(*at, n);
    *at += n;
  }
}
// JSON with the spelling of its numbers; NULL: it is none. *end: where it is none.
static inline cJSON *json_parse_spelled(const char *text, const char **end = NULL) {
  const char *stop = NULL, *at = text;
  cJSON *x = cJSON_ParseWithOpts(text, &stop, 1);
  if (end) *end = stop;
  json_spell(x, &at);
  return x;
}

enum JsonStyle { JSON_DUMPS, JSON_INDENTED, JSON_PYTHON };         // json.dumps; with indent=4; str
// Whether Python's repr writes a character as it is. Unassigned ones are.
static inline bool json_printable(uint32_t c) {
  static const uint32_t not_printed[][2] = {
      {0, 0x1f}, {0x7f, 0xa0}, {0xad, 0xad}, {0x600, 0x605}, {0x61c, 0x61c}, {0x6dd, 0x6dd}, {0x70f, 0x70f},
      {0x890, 0x891}, {0x8e2, 0x8e2}, {0x1680, 0x1680}, {0x180e, 0x180e}, {0x2000, 0x200f}, {0x2028, 0x202f},
      {0x205f, 0x206f}, {0x3000, 0x3000}, {0xe000, 0xf8ff}, {0xfeff, 0xfeff}, {0xfff0, 0xfffb}, {0x110bd, 0x110bd},
      {0x110cd, 0x110cd}, {0x13430, 0x1343f}, {0x1bca0, 0x1bca3}, {0x1d173, 0x1d17a}, {0xe0000, 0xe00ff},
      {0xf0000, 0x10ffff}};
  for (const auto &range : not_printed) if (c >= range[0] && c <= range[1]) return false;
  return true;
}
// A text in quotes.
static inline void json_put_text(ChatText *t, const char *text, JsonStyle style) {
  static const char escaped[] = "\b\f\n\r\t", letters[] = "bfnrt";
  const bool python = style == JSON_PYTHON;
  const char quote = python && (!strchr(text, '\'') || strchr(text, '"')) ? '\'' : '"';
  const uint8_t *p = (const uint8_t *)text, *end = p + strlen(text);
  chat_put(t, ChatSpan{&quote, 1});
  for (int n; p < end; p += n) {
    const uint32_t c = utf8_char(p, end, &n);
    const char *letter = c < 32 ? strchr(python ? escaped + 2 : escaped, (int)c) : NULL;
    char to[16];
    if (c == (uint32_t)quote || c == '\\') snprintf(to, sizeof to, "\\%c", (char)c);
    else if (letter) snprintf(to, sizeof to, "\\%c", letters[letter - escaped]);
    else if (python && !json_printable(c))
      snprintf(to, sizeof to, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
    else if (c < 32) snprintf(to, sizeof to, "\\u%04x", c);
    else snprintf(to, sizeof to, "%.*s", n, (const char *)p);
    chat_put(t, to);
  }
  chat_put(t, ChatSpan{&quote, 1});
}
static inline void json_put(ChatText *t, const cJSON *x, JsonStyle style, int depth = 0) {
  const bool list = cJSON_IsArray(x), python = style == JSON_PYTHON;
  if (cJSON_IsString(x)) return json_put_text(t, x->valuestring, style);
  if (cJSON_IsNumber(x)) return chat_put(t, x->valuestring ? x->valuestring : "0");
  if (cJSON_IsNull(x)) return chat_put(t, python ? "None" : "null");
  if (cJSON_IsBool(x)) return chat_put(t, cJSON_IsTrue(x) ? python ? "True" : "true" : python ? "False" : "false");
  auto line = [&](int levels) {
    if (style != JSON_INDENTED || !x->child) return;
    chat_put(t, "\n");
    for (int i = 0; i < levels; i++) chat_put(t, "    ");
  };
  chat_put(t, list ? "[" : "{");
  for (const cJSON *y = x->child; y; y = y->next) {
    if (y != x->child) chat_put(t, style == JSON_INDENTED ? "," : ", ");
    line(depth + 1);
    if (!list) json_put_text(t, y->string, style), chat_put(t, ": ");
    json_put(t, y, style, depth + 1);
  }
  line(depth);
  chat_put(t, list ? "]" : "}");
}
