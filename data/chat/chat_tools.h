// chat_tools.h: growing text; JSON whose numbers keep their spelling, so that 1 and 1.0 differ; white space.
#pragma once
#include "chat.h"

struct ChatText { char *p; size_t n, room; };
static inline void chat_put(ChatText *t, ChatSpan s) {
  if (t->n + s.n > t->room) t->p = (char *)bpe_resize(t->p, t->room = 2 * (t->n + s.n), 1);
  if (s.n) memcpy(t->p + t->n, s.p, s.n);
  t->n += s.n;
}
static inline void chat_put(ChatText *t, const char *text) { chat_put(t, chat_span(text)); }

// Stores the spelling of each number of x and of its following siblings in valuestring, which cJSON leaves NULL, copies
// and frees. *at: the place in the text that x was parsed from, whose numbers are in the same order.
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
// Parses JSON and keeps the spelling of numbers; NULL: it is not JSON. *end: where parsing stopped.
static inline cJSON *json_parse_spelled(const char *text, const char **end = NULL) {
  const char *stop = NULL, *at = text;
  cJSON *x = cJSON_ParseWithOpts(text, &stop, 1);
  if (end) *end = stop;
  json_spell(x, &at);
  return x;
}

bool chat_is_space(uint32_t c) {
  return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}
ChatSpan chat_strip(ChatSpan s, bool newlines, bool left, bool right) {
  const uint8_t *p = (const uint8_t *)s.p, *end = p + s.n, *keep = p;
  int n;
  for (; left && p < end; p += n) {
    const uint32_t c = utf8_char(p, end, &n);
    if (newlines ? c != '\n' : !chat_is_space(c)) break;
  }
  keep = right ? p : end;
  for (const uint8_t *at = p; right && at < end; at += n) {
    const uint32_t c = utf8_char(at, end, &n);
    if (newlines ? c != '\n' : !chat_is_space(c)) keep = at + n;
  }
  return ChatSpan{(const char *)p, (size_t)(keep - p)};
}
