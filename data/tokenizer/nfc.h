// nfc.h: Unicode's normalization form NFC of any bytes.
//
// A byte that belongs to no well-formed UTF-8 sequence counts as a character of its own that normalises to itself.
//
// Source: Unicode Standard Annex 15 (decomposition, canonical order, composition, quick check).
#pragma once

#include "unicode.h"

static inline void nfc_work_free(NfcWork *w) {
  free(w->chars);
  *w = {};
}

enum : uint32_t { HANGUL = 0xac00, HANGUL_COUNT = 11172, HANGUL_L = 0x1100, HANGUL_V = 0x1161, HANGUL_T = 0x11a7,
                  HANGUL_LS = 19, HANGUL_VS = 21, HANGUL_TS = 28 };

static inline int nfc_class(uint32_t c) { return c < 0x300 || c >= UTF8_BYTE ? 0 : unicode_nfc_class(c); }

// Appends the full decomposition of c.
static inline void nfc_decompose(NfcWork *w, uint32_t c) {
  const uint32_t *into = c >= 0xc0 && c < UTF8_BYTE ? unicode_decomposed(c) : NULL;
  if (into) {
    nfc_decompose(w, into[0]);
    if (into[1]) nfc_decompose(w, into[1]);
    return;
  }
  if (c - HANGUL < HANGUL_COUNT) {
    const uint32_t i = c - HANGUL;
    nfc_decompose(w, HANGUL_L + i / (HANGUL_VS * HANGUL_TS));
    nfc_decompose(w, HANGUL_V + i / HANGUL_TS % HANGUL_VS);
    if (i % HANGUL_TS) nfc_decompose(w, HANGUL_T + i % HANGUL_TS);
    return;
  }
  if (w->count == w->capacity) {
    w->capacity = w->capacity ? 2 * w->capacity : 256;
    w->chars = (uint64_t *)realloc(w->chars, w->capacity * sizeof *w->chars);
    if (!w->chars) die_missing("tokenizer: no memory to normalise %zu characters", w->capacity);
  }
  const int its_class = nfc_class(c);
  w->chars[w->count] = (uint64_t)(its_class == UNICODE_NFC_UNSETTLED ? 0 : its_class) << 56 | w->count << 21 | c;
  w->count++;
}

static inline int nfc_order(const void *a, const void *b) {
  const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

// The character that a and b compose; 0: none.
static inline uint32_t nfc_compose(uint32_t a, uint32_t b) {
  if (a - HANGUL_L < HANGUL_LS && b - HANGUL_V < HANGUL_VS)
    return HANGUL + ((a - HANGUL_L) * HANGUL_VS + b - HANGUL_V) * HANGUL_TS;
  if (a - HANGUL < HANGUL_COUNT && (a - HANGUL) % HANGUL_TS == 0 && b - HANGUL_T - 1 < HANGUL_TS - 1)
    return a + b - HANGUL_T;
  return unicode_composed(a, b);
}

// Writes NFC of a part that nothing before or after it can change; returns the end of what it wrote.
static inline uint8_t *nfc_write_part(NfcWork *w, uint8_t *out, const uint8_t *p, const uint8_t *end) {
  const uint64_t code = (1u << 21) - 1;
  w->count = 0;
  for (int n; p < end; p += n) nfc_decompose(w, utf8_char(p, end, &n));
  for (size_t i = 0, first; i < w->count; i++) {           // marks between two characters of class 0, in their order
    for (first = i; i < w->count && w->chars[i] >> 56; i++) {}
    if (i > first + 1) qsort(w->chars + first, i - first, sizeof *w->chars, nfc_order);
  }
  size_t kept = 0, starter = SIZE_MAX;
  for (size_t i = 0; i < w->count; i++) {
    const int its_class = (int)(w->chars[i] >> 56), before = starter + 1 == kept ? -1 : (int)(w->chars[kept - 1] >> 56);
    const uint32_t c = (uint32_t)(w->chars[i] & code);
    const uint32_t both = starter != SIZE_MAX && before < its_class
                              ? nfc_compose((uint32_t)(w->chars[starter] & code), c) : 0;
    if (both) { w->chars[starter] = both; continue; }
    if (its_class == 0) starter = kept;
    w->chars[kept++] = w->chars[i];
  }
  for (size_t i = 0; i < kept; i++) out = utf8_put(out, (uint32_t)(w->chars[i] & code));
  return out;
}

// The first character that NFC may change or join to the one before it; `end` if there is none. *starter: where the
// part that it belongs to starts.
static inline const uint8_t *nfc_first_unsettled(const uint8_t *p, const uint8_t *end, const uint8_t **starter) {
  *starter = p;
  while (p < end) {
    if (*p < 0x80) { *starter = p++; continue; }
    int n;
    if (nfc_class(utf8_char(p, end, &n))) return p;
    *starter = p;
    p += n;
  }
  return end;
}

// Writes NFC of p..end, at most NFC_MOST_GROWTH times as many bytes; returns the end of what it wrote.
static inline uint8_t *nfc_write(NfcWork *w, uint8_t *out, const uint8_t *p, const uint8_t *end) {
  while (p < end) {
    const uint8_t *starter, *q = nfc_first_unsettled(p, end, &starter), *settled = q == end ? end : starter;
    memcpy(out, p, (size_t)(settled - p));
    out += settled - p;
    if (q == end) break;
    for (int n; q < end && nfc_class(utf8_char(q, end, &n)); q += n) {}
    out = nfc_write_part(w, out, starter, q);
    p = q;
  }
  return out;
}
