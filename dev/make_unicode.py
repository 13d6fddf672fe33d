#!/usr/bin/env python3
"""Writes data/tokenizer/unicode.h: what tokenizers need to know of every Unicode code point, packed.

Classes: the GPT-2 pre-tokenizer uses \\p{L}, \\p{N}, \\s; patterns since o200k also upper case, lower case and marks.
They change with the Unicode version, and a tokenizer with other classes splits words differently. The version is pinned
to the one that Hugging Face tokenizers uses (0.23 has the tables of Unicode 16.0.0); every code point is checked
against it.

NFC: Hugging Face tokenizers normalises by tables of an old version of Unicode (0.23: what was assigned by 9.0), and a
later character is left as it is. What Unicode has assigned never normalises otherwise later, so the tables are those of
unicodedata2 for the characters that tokenizers itself reorders, decomposes and composes; it is asked about each. Then
the tables' own NFC must be that of tokenizers for every code point in several surroundings.

Usage: make_unicode.py OUTPUT.h          needs `pip install unicodedata2==16.0.0 tokenizers==0.23.3`
"""
import sys
import textwrap

import tokenizers
import unicodedata2
from tokenizers import normalizers

VERSION = "16.0.0"
CODE_POINTS = 0x110000
POINTS = [c for c in range(CODE_POINTS) if not 0xD800 <= c < 0xE000]
HANGUL = range(0xAC00, 0xD7A4)
nfc, nfd = normalizers.NFC().normalize_str, normalizers.NFD().normalize_str
UNSETTLED = 255                                  # of combining class 0, but NFC may change it or join it to others
OTHER, LETTER, NUMBER, SPACE, UPPER, LOWER, MARK, TURNS = range(8)
WHITE_SPACE_CONTROLS = (9, 10, 11, 12, 13, 0x85)  # the White_Space property beyond the categories Zs, Zl, Zp


def kind_of(c):
    category = unicodedata2.category(chr(c))
    if category in ("Lu", "Lt"):
        return UPPER
    if category == "Ll":
        return LOWER
    if category[0] in "LNM":
        return {"L": LETTER, "N": NUMBER, "M": MARK}[category[0]]
    return SPACE if category[0] == "Z" or c in WHITE_SPACE_CONTROLS else OTHER


def check_against_tokenizers(classes):
    """A character of c's own class before c forms one piece with it; a space never does, whatever comes before it."""
    split = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True).pre_tokenize_str
    surrogates = range(0xD800, 0xE000)
    for c in range(CODE_POINTS):
        if c in surrogates:
            continue
        found = SPACE
        for front, its_class in (("b", LETTER), ("1", NUMBER), ("!", OTHER)):
            if len(split(front + chr(c))) == 1:
                found = its_class
                break
        if found != classes[c]:
            sys.exit(f"U+{c:04X}: class {classes[c]} in Unicode {VERSION}, {found} in tokenizers "
                     f"{tokenizers.__version__}: it has moved to another Unicode version; pin that one")
    return f"every code point has the class that tokenizers {tokenizers.__version__} gives it"


def combining_class(c):
    """That of Unicode, 0 where tokenizers moves c neither after a mark of class 1 nor before one of class 230."""
    found = unicodedata2.combining(chr(c))
    moved = nfd("q" + chr(c) + "\u0334") != "q" + chr(c) + "\u0334" or nfd("q\u0301" + chr(c)) != "q\u0301" + chr(c)
    return found if moved else 0


def decompositions():
    """{code point: its canonical decomposition by one step}, but for Hangul."""
    found = {}
    for c in POINTS:
        fields = unicodedata2.decomposition(chr(c)).split()
        if fields and not fields[0].startswith("<") and nfd(chr(c)) != chr(c):
            found[c] = tuple(int(x, 16) for x in fields)
    return found


def check_nfc(value, decomposition, composition):
    """NFC by these tables, as data/tokenizer/nfc.h does it, of every code point beside others."""
    def full(c):
        if c in HANGUL:
            return [x for x in (0x1100 + (c - 0xAC00) // 588, 0x1161 + (c - 0xAC00) % 588 // 28,
                                0x11A7 + (c - 0xAC00) % 28) if x != 0x11A7]
        return [x for part in decomposition[c] for x in full(part)] if c in decomposition else [c]

    def pair(a, b):
        if a in range(0x1100, 0x1113) and b in range(0x1161, 0x1176):
            return 0xAC00 + ((a - 0x1100) * 21 + b - 0x1161) * 28
        if a in HANGUL and (a - 0xAC00) % 28 == 0 and b in range(0x11A8, 0x11C3):
            return a + b - 0x11A7
        return composition.get((a, b))

    def ours(text):
        chars = []
        for x in (x for c in text for x in full(ord(c))):
            order = value.get(x, 0) % UNSETTLED
            i = len(chars)
            while order and i and chars[i - 1][1] > order:
                i -= 1
            chars.insert(i, (x, order))
        kept, start = [], None
        for x, order in chars:
            before = -1 if start == len(kept) - 1 else kept[-1][1] if kept else 0
            joined = pair(kept[start][0], x) if start is not None and before < order else None
            if joined:
                kept[start] = (joined, 0)
                continue
            if order == 0:
                start = len(kept)
            kept.append((x, order))
        return "".join(chr(x) for x, _ in kept)

    for c in POINTS:
        x = chr(c)
        stable = value.get(c, 0) == 0
        for text in (x, "e" + x, "\u0323" + x + "\u0301", x + "\u0301\u0323", "\u1100" + x + "\u11a8", "\u00e9" + x,
                     "\u09c7" + x, x + "\u0334\u093c", x + x):
            if ours(text) != nfc(text):
                sys.exit(f"U+{c:04X}: NFC of {ascii(text)} is {ascii(nfc(text))} in tokenizers "
                         f"{tokenizers.__version__}, {ascii(ours(text))} by these tables")
            cut = text.index(x)
            if stable and nfc(text) != nfc(text[:cut]) + nfc(text[cut:]):
                sys.exit(f"U+{c:04X} is taken to start a part of its own, but NFC of {ascii(text)} has it joined")


def number(value):
    """Digits of base 32, lowest first, each but the last with 32 added; characters from 40 on, without a backslash."""
    text = ""
    while True:
        digit = value % 32 + (32 if value >= 32 else 0)
        text += chr(digit + 40 if digit < 52 else digit + 41)
        value //= 32
        if not value:
            return text


def packed_kinds(kinds):
    """length << 3 | kind of each run; of kind TURNS: upper and lower case by turns, upper case first."""
    text, c = "", 0
    while c < CODE_POINTS:
        turns = c
        while turns < CODE_POINTS and kinds[turns] == (UPPER, LOWER)[(turns - c) % 2]:
            turns += 1
        end = c + 1
        while end < CODE_POINTS and kinds[end] == kinds[c]:
            end += 1
        kind, end = (TURNS, turns) if turns - c >= 2 else (kinds[c], end)
        text += number((end - c) << 3 | kind)
        c = end
    return text


def packed_classes(value):
    """Each run of equal classes over all code points: its length, its class."""
    text, start = "", 0
    for c in range(1, CODE_POINTS + 1):
        if c == CODE_POINTS or value.get(c, 0) != value.get(start, 0):
            text += number(c - start) + number(value.get(start, 0))
            start = c
    return text


def packed_pairs(decomposition, composition):
    """Per code point with a decomposition, as steps from the one before: itself and NFC composes it, both parts."""
    def step(value, before):
        return (value - before) << 1 if value >= before else (before - value - 1) << 1 | 1
    text, last, first, second = "", 0, 0, 0
    for c in sorted(decomposition):
        a, b = (decomposition[c] + (0,))[:2]
        composes = composition.get((a, b)) == c
        text += number((c - last) << 1 | composes) + number(step(a, first)) + number(step(b, second))
        last, first, second = c, a, b
    return text


def rows(text):
    return "\n".join(f'  "{text[i:i + 116]}"' for i in range(0, len(text), 116))


def header(kinds, value, decomposition, composition):
    runs = 1 + sum(value.get(c, 0) != value.get(c - 1, 0) for c in range(1, CODE_POINTS))
    return f"""\
// unicode.h: what tokenizers need to know of every code point: its class and case by Unicode {VERSION}, and what
// normalization form NFC needs, as Hugging Face tokenizers knows it. Written by dev/make_unicode.py; to change it,
// change that. The tables are packed in text, and unpacked when the program starts, in less than a millisecond.
// Defines: enum UnicodeClass, enum UnicodeCase, unicode_class, unicode_case; UNICODE_NFC_UNSETTLED, unicode_nfc_class,
// unicode_decomposed, unicode_composed.
#pragma once
#include "tokenizer.h"
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

// As the GPT-2 pre-tokenizer asks: letter (general category L*), number (N*), space (property White_Space), other.
enum UnicodeClass {{ UNICODE_OTHER, UNICODE_LETTER, UNICODE_NUMBER, UNICODE_SPACE }};
// As the patterns of tokenizers since o200k ask: upper case (Lu, Lt), lower case (Ll), marks (M).
enum UnicodeCase {{ CASE_NONE, CASE_UPPER, CASE_LOWER, CASE_MARK }};

// ---- the tables, packed ---------------------------------------------------------------------------------------------
// Numbers have digits of base 32, lowest first, each but the last with 32 added, as characters from 40 on without \\.
// Runs of code points: length << 3 | kind, of unicode_class_of and unicode_case_of; 7: upper and lower case by turns.
static const char unicode_packed_kinds[] =
{rows(packed_kinds(kinds))};
// Runs of code points: length, class for NFC. 0 if a character starts a part that NFC changes independently of what is
// before it, and stays as it is if nothing follows that belongs to it; else its combining class, or
// UNICODE_NFC_UNSETTLED where that is 0.
static const char unicode_packed_classes[] =
{rows(packed_classes(value))};
// Code points with a decomposition, Hangul apart: the step from the one before << 1 | whether NFC composes it; then the
// steps (down: all bits inverted, sign lowest) of its one or two parts from those before.
static const char unicode_packed_pairs[] =
{rows(packed_pairs(decomposition, composition))};

// ---- unpacked -------------------------------------------------------------------------------------------------------
enum {{ UNICODE_POINTS = 0x110000, UNICODE_NFC_UNSETTLED = {UNSETTLED}, UNICODE_NFC_RUNS = {runs},
       UNICODE_DECOMPOSED = {len(decomposition)}, UNICODE_COMPOSED = {len(composition)} }};
static uint8_t unicode_kinds[UNICODE_POINTS / 2];            // four bits each
static uint32_t unicode_nfc_start[UNICODE_NFC_RUNS];
static uint8_t unicode_nfc_value[UNICODE_NFC_RUNS];
static uint32_t unicode_decomposed_code[UNICODE_DECOMPOSED], unicode_decomposed_into[UNICODE_DECOMPOSED][2];
static uint16_t unicode_composed_at[UNICODE_COMPOSED];       // places in these lists, in the order of the two parts

static inline uint32_t unicode_next(const char **p) {{
  uint32_t value = 0, digit = 32;
  for (int shift = 0; digit & 32; shift += 5) {{
    digit = (uint32_t)**p - 40 - (**p > 92);
    value |= (digit & 31) << shift;
    (*p)++;
  }}
  return value;
}}
static inline uint32_t unicode_step(const char **p, uint32_t from) {{
  const uint32_t step = unicode_next(p);
  return from + (step & 1 ? ~(step >> 1) : step >> 1);
}}
static inline int unicode_by_parts(const void *a, const void *b) {{
  const uint32_t *x = unicode_decomposed_into[*(const uint16_t *)a], *y = unicode_decomposed_into[*(const uint16_t *)b];
  return x[0] != y[0] ? (x[0] > y[0]) - (x[0] < y[0]) : (x[1] > y[1]) - (x[1] < y[1]);
}}
__attribute__((constructor)) static void unicode_unpack(void) {{
  uint32_t c = 0;
  for (const char *p = unicode_packed_kinds; *p;) {{
    const uint32_t run = unicode_next(&p), kind = run & 7, first = c;
    if (!kind) {{ c += run >> 3; continue; }}
    for (; c < first + (run >> 3); c++)
      unicode_kinds[c / 2] |= (uint8_t)((kind < 7 ? kind : 4 + (c - first) % 2) << c % 2 * 4);
  }}
  c = 0;
  const char *p = unicode_packed_classes;
  for (int i = 0; i < UNICODE_NFC_RUNS; i++) {{
    unicode_nfc_start[i] = c;
    c += unicode_next(&p);
    unicode_nfc_value[i] = (uint8_t)unicode_next(&p);
  }}
  uint32_t part[2] = {{}};
  int composed = 0;
  c = 0, p = unicode_packed_pairs;
  for (int i = 0; i < UNICODE_DECOMPOSED; i++) {{
    const uint32_t step = unicode_next(&p);
    unicode_decomposed_code[i] = c += step >> 1;
    for (int k = 0; k < 2; k++) unicode_decomposed_into[i][k] = part[k] = unicode_step(&p, part[k]);
    if (step & 1) unicode_composed_at[composed++] = (uint16_t)i;
  }}
  qsort(unicode_composed_at, UNICODE_COMPOSED, sizeof *unicode_composed_at, unicode_by_parts);
}}

// The class and the case of code point c < 0x110000.
static const uint8_t unicode_class_of[8] = {{UNICODE_OTHER, UNICODE_LETTER, UNICODE_NUMBER, UNICODE_SPACE,
                                            UNICODE_LETTER, UNICODE_LETTER, UNICODE_OTHER}};
static const uint8_t unicode_case_of[8] = {{CASE_NONE, CASE_NONE, CASE_NONE, CASE_NONE, CASE_UPPER, CASE_LOWER,
                                           CASE_MARK}};
static inline int unicode_kind(uint32_t c) {{ return unicode_kinds[c / 2] >> c % 2 * 4 & 7; }}
static inline int unicode_class(uint32_t c) {{ return unicode_class_of[unicode_kind(c)]; }}
static inline int unicode_case(uint32_t c) {{ return unicode_case_of[unicode_kind(c)]; }}

// The last of `count` rising numbers that is at most c; the first one is.
static inline int unicode_find(const uint32_t *numbers, int count, uint32_t c) {{
  int low = 0;
  for (int high = count; high - low > 1;) {{
    const int middle = (low + high) / 2;
    if (numbers[middle] <= c) low = middle;
    else high = middle;
  }}
  return low;
}}
static inline int unicode_nfc_class(uint32_t c) {{
  return unicode_nfc_value[unicode_find(unicode_nfc_start, UNICODE_NFC_RUNS, c)];
}}
// The code points that c decomposes into by one step: two, or one and 0; NULL: none. Hangul is left to arithmetic.
static inline const uint32_t *unicode_decomposed(uint32_t c) {{
  const int at = unicode_find(unicode_decomposed_code, UNICODE_DECOMPOSED, c);
  return unicode_decomposed_code[at] == c ? unicode_decomposed_into[at] : NULL;
}}
// The code point that two compose; 0: none.
static inline uint32_t unicode_composed(uint32_t a, uint32_t b) {{
  int low = 0, high = UNICODE_COMPOSED;
  while (low < high) {{
    const int middle = (low + high) / 2;
    const uint32_t *into = unicode_decomposed_into[unicode_composed_at[middle]];
    if (into[0] == a && into[1] == b) return unicode_decomposed_code[unicode_composed_at[middle]];
    if (into[0] < a || (into[0] == a && into[1] < b)) low = middle + 1;
    else high = middle;
  }}
  return 0;
}}
"""


def main():
    if len(sys.argv) != 2 or unicodedata2.unidata_version != VERSION:
        sys.exit(__doc__)
    kinds = [kind_of(c) for c in range(CODE_POINTS)]
    print(check_against_tokenizers([{UPPER: LETTER, LOWER: LETTER, MARK: OTHER}.get(k, k) for k in kinds]))
    decomposition = decompositions()
    composition = {parts: c for c, parts in decomposition.items()
                   if len(parts) == 2 and nfc("".join(map(chr, parts))) == chr(c)}
    value = {c: combining_class(c) for c in POINTS}
    seconds = {b for _, b in composition} | set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))
    for c in POINTS:
        if value[c] == 0 and (c in seconds or nfc(chr(c)) != chr(c)):
            value[c] = UNSETTLED
    check_nfc(value, decomposition, composition)
    with open(sys.argv[1], "w", encoding="ascii") as f:
        f.write(header(kinds, value, decomposition, composition))


main()
