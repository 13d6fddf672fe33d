#!/usr/bin/env python3
"""Writes data/tokenizer/unicode_nfc.h: what normalization form NFC needs to know of every Unicode code point.

Hugging Face tokenizers normalises by tables of an old version of Unicode (tokenizers 0.23: what was assigned by 9.0),
and a later character is left as it is. What Unicode has assigned never normalises otherwise later, so the tables are
those of the PyPI package unicodedata2==16.0.0 for the characters that tokenizers itself reorders, decomposes and
composes; it is asked about each. Then the tables' own NFC must be that of tokenizers for every code point in several
surroundings.

Usage: make_unicode_nfc.py OUTPUT.h          needs `pip install unicodedata2==16.0.0 tokenizers==0.23.3`
"""
import sys
import textwrap

import tokenizers
import unicodedata2
from tokenizers import normalizers

POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
HANGUL = range(0xAC00, 0xD7A4)
nfc, nfd = normalizers.NFC().normalize_str, normalizers.NFD().normalize_str
UNSETTLED = 255                                  # of combining class 0, but NFC may change it or join it to others


def combining_class(c):
    """That of Unicode, 0 where tokenizers moves c neither behind a mark of class 1 nor before one of class 230."""
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


def starts_of(value):
    """The runs of equal values over all code points: where each starts, and its value."""
    runs = [(c, value.get(c, 0)) for c in range(0x110000) if c == 0 or value.get(c, 0) != value.get(c - 1, 0)]
    return [c for c, _ in runs], [v for _, v in runs]


def check(value, decomposition, composition):
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
                sys.exit(f"U+{c:04X} is taken to begin a part of its own, but NFC of {ascii(text)} has it joined")


def rows(values):
    return textwrap.fill(", ".join(map(str, values)), 120, initial_indent="  ", subsequent_indent="  ")


def header(value, decomposition, composition):
    starts, values = starts_of(value)
    codes = sorted(decomposition)
    parts = [x for c in codes for x in (decomposition[c] + (0,))[:2]]
    order = [codes.index(composition[pair]) for pair in sorted(composition)]
    return f"""// unicode_nfc.h: what normalization form NFC needs to know of every code point, as Hugging Face
// tokenizers knows it. Written by dev/make_unicode_nfc.py; to change it, change that. Hangul is left to arithmetic.
// Defines: UNICODE_NFC_UNSETTLED, unicode_nfc_class, unicode_decomposed, unicode_composed.
#pragma once
#include <stddef.h>
#include <stdint.h>

// The class of the code points from each start on: 0 if a character begins a part that NFC changes independently of
// what is before it, and stays as it is if nothing follows that belongs to it; else its combining class, or
// UNICODE_NFC_UNSETTLED where that is 0.
enum {{ UNICODE_NFC_UNSETTLED = {UNSETTLED}, UNICODE_NFC_RUNS = {len(starts)} }};
static const uint32_t unicode_nfc_start[UNICODE_NFC_RUNS] = {{
{rows(starts)}
}};
static const uint8_t unicode_nfc_value[UNICODE_NFC_RUNS] = {{
{rows(values)}
}};

// Code points with a decomposition, and that of each by one step: one or two code points, else the second is 0.
enum {{ UNICODE_DECOMPOSED = {len(codes)}, UNICODE_COMPOSED = {len(order)} }};
static const uint32_t unicode_decomposed_code[UNICODE_DECOMPOSED] = {{
{rows(codes)}
}};
static const uint32_t unicode_decomposed_into[UNICODE_DECOMPOSED][2] = {{
{rows(parts)}
}};
// Those that NFC composes, as places in the lists above, in the order of their two parts.
static const uint16_t unicode_composed_at[UNICODE_COMPOSED] = {{
{rows(order)}
}};

static inline int unicode_nfc_class(uint32_t c) {{
  int low = 0, high = UNICODE_NFC_RUNS;
  while (high - low > 1) {{
    const int middle = (low + high) / 2;
    if (unicode_nfc_start[middle] <= c) low = middle;
    else high = middle;
  }}
  return unicode_nfc_value[low];
}}

// The one or two code points that c decomposes into; NULL: none.
static inline const uint32_t *unicode_decomposed(uint32_t c) {{
  int low = 0, high = UNICODE_DECOMPOSED;
  while (high - low > 1) {{
    const int middle = (low + high) / 2;
    if (unicode_decomposed_code[middle] <= c) low = middle;
    else high = middle;
  }}
  return unicode_decomposed_code[low] == c ? unicode_decomposed_into[low] : NULL;
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
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    decomposition = decompositions()
    composition = {parts: c for c, parts in decomposition.items()
                   if len(parts) == 2 and nfc("".join(map(chr, parts))) == chr(c)}
    value = {c: combining_class(c) for c in POINTS}
    seconds = {b for _, b in composition} | set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))
    for c in POINTS:
        if value[c] == 0 and (c in seconds or nfc(chr(c)) != chr(c)):
            value[c] = UNSETTLED
    check(value, decomposition, composition)
    with open(sys.argv[1], "w", encoding="ascii") as f:
        f.write(header(value, decomposition, composition))


main()
