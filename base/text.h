// text.h: text of unknown origin: which bytes are UTF-8, a line that ends where it should, strings of JSON, words of a
// shell.
#pragma once
#include "base.h"

// ---- UTF-8 ----------------------------------------------------------------------------------------------------------
int utf8_bytes(const uint8_t *p, const uint8_t *end) {
  const uint8_t b = *p;
  const int n = b < 0x80 ? 1 : b < 0xc2 ? 0 : b < 0xe0 ? 2 : b < 0xf0 ? 3 : b < 0xf5 ? 4 : 0;
  if (n < 2) return n;
  if (end - p < 2) return -1;
  // The second byte excludes overlong forms, surrogates and what is past U+10FFFF.
  const uint8_t low = b == 0xe0 ? 0xa0 : b == 0xf0 ? 0x90 : 0x80, high = b == 0xed ? 0x9f : b == 0xf4 ? 0x8f : 0xbf;
  if (p[1] < low || p[1] > high) return 0;
  for (int i = 2; i < n; i++) {
    if (p + i == end) return -1;
    if ((p[i] & 0xc0) != 0x80) return 0;
  }
  return n;
}
uint32_t utf8_char(const uint8_t *p, const uint8_t *end, int *char_bytes) {
  *char_bytes = 1;
  if (*p < 0x80) return *p;
  const int n = utf8_bytes(p, end);
  if (n <= 0) return UTF8_BYTE + *p;
  uint32_t c = *p & (0xffu >> (n + 1));
  for (int i = 1; i < n; i++) c = c << 6 | (p[i] & 0x3fu);
  *char_bytes = n;
  return c;
}

uint8_t *utf8_put(uint8_t *out, uint32_t c) {
  const int n = c < 0x80 || c >= UTF8_BYTE ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
  if (n == 1) { *out = (uint8_t)(c < 0x80 ? c : c - UTF8_BYTE); return out + 1; }
  for (int i = n - 1; i > 0; i--, c >>= 6) out[i] = (uint8_t)(0x80 | (c & 0x3f));
  out[0] = (uint8_t)(0xf00 >> n | c);
  return out + n;
}
size_t text_bad_utf8(const uint8_t *p, size_t bytes, size_t at) {
  for (uint64_t word; at < bytes;) {
    if (at + 8 <= bytes && (memcpy(&word, p + at, 8), !(word & 0x8080808080808080u))) { at += 8; continue; }
    const int n = utf8_bytes(p + at, p + bytes);
    if (n <= 0) return at;
    at += (size_t)n;
  }
  return bytes;
}

// ---- text of others that is printed ---------------------------------------------------------------------------------
size_t text_escape(char *to, size_t room, const uint8_t *from, size_t n, bool more, const char *keep) {
  size_t at = 0, out = 0;
  while (at < n) {
    const uint8_t *p = from + at;
    int bytes;
    const uint32_t c = utf8_char(p, from + n, &bytes);
    if (more && c >= UTF8_BYTE && utf8_bytes(p, from + n) < 0) break;
    const bool control = (c < 32 && !(c && strchr(keep, (int)c))) || (c >= 127 && c < 160);
    const bool turns = (c >= 0x202a && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
    const bool escaped = control || turns || c >= UTF8_BYTE;
    if (out + (size_t)bytes * (escaped ? 4 : 1) >= room) break;
    for (int i = 0; i < bytes; i++)
      if (escaped) out += (size_t)snprintf(to + out, 5, "\\x%02x", p[i]);
      else to[out++] = (char)p[i];
    at += (size_t)bytes;
  }
  to[out] = 0;
  return at;
}
void text_escape_line(char *text, size_t room, const char *keep) {
  char from[4096];
  const int n = snprintf(from, sizeof from, "%s", text);
  text_escape(text, room, (const uint8_t *)from, n < (int)sizeof from ? (size_t)n : sizeof from - 1, false, keep);
}

// ---- lines ----------------------------------------------------------------------------------------------------------
static inline bool text_is_control(char c) { return (unsigned char)c < 32 || c == 127; }
void text_to_line(char *text, const char *keep) {
  for (char *c = text; *c; c++) if (text_is_control(*c) && !strchr(keep, *c)) *c = '?';
}

bool text_add_list(char *to, size_t bytes, const char *fmt, va_list ap) {
  const size_t n = strlen(to);
  if (n >= bytes) return false;
  const int more = vsnprintf(to + n, bytes - n, fmt, ap);
  if (more < 0) to[n] = 0;
  return more >= 0 && (size_t)more < bytes - n;
}
bool text_add(char *to, size_t bytes, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  const bool fits = text_add_list(to, bytes, fmt, ap);
  va_end(ap);
  return fits;
}

// ---- JSON that is written, value by value ---------------------------------------------------------------------------
int json_char(char to[8], const uint8_t *p, const uint8_t *end, int how) {
  static const char escaped[] = "\b\f\n\r\t", letters[] = "bfnrt";
  const int n = utf8_bytes(p, end);
  const char *letter = how & JSON_LETTERS && *p ? strchr(escaped, *p) : NULL;
  const bool stays = how & JSON_WHOLE && strchr("\n\"\\", *p) && *p;
  if (n <= 0) strcpy(to, "\\ufffd");
  else if (letter) snprintf(to, 8, "\\%c", letters[letter - escaped]);
  else if (!stays && (*p == '"' || *p == '\\')) snprintf(to, 8, "\\%c", *p);
  else if (!stays && (*p < 32 || (how & JSON_SCRIPT && strchr("<>&\x7f", *p)))) snprintf(to, 8, "\\u%04x", *p);
  else snprintf(to, 8, "%.*s", n, (const char *)p);
  return n > 0 ? n : 1;
}
void json_chars(FILE *f, const char *text, size_t bytes, int how) {
  const uint8_t *p = (const uint8_t *)text, *end = p + bytes;
  for (char c[8]; p < end; fputs(c, f)) p += json_char(c, p, end, how);
}
void json_string(FILE *f, const void *text, size_t bytes, int how) {
  fputc('"', f);
  json_chars(f, (const char *)text, bytes, how);
  fputc('"', f);
}
void json_number(FILE *f, const char *name, double x) {
  if (isfinite(x)) fprintf(f, ",\"%s\":%.17g", name, x);
  else fprintf(f, ",\"%s\":null", name);
}

// ---- shells ---------------------------------------------------------------------------------------------------------
void shell_word(FILE *to, const char *word) {
  const char *before = *word == '-' ? "./" : "";
  const bool plain = *word && strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+,:@%") ==
                                  strlen(word);
  if (plain) { fprintf(to, " %s%s", before, word); return; }
  fprintf(to, " %s'", before);
  for (const char *c = word; *c; c++) *c == '\'' ? (void)fputs("'\\''", to) : (void)fputc(*c, to);
  fputc('\'', to);
}
