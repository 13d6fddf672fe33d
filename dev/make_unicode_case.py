#!/usr/bin/env python3
"""Writes data/tokenizer/unicode_case.h: which letters are upper or lower case, and which characters are marks.

Patterns of tokenizers since o200k tell them apart: [\\p{Lu}\\p{Lt}...], [\\p{Ll}...], \\p{M}. The Unicode version is
that of make_unicode_classes.py, for the same reason.

Usage: make_unicode_case.py OUTPUT.h      needs `pip install unicodedata2==16.0.0`
"""
import sys
import textwrap

import unicodedata2

VERSION = "16.0.0"
NONE, UPPER, LOWER, MARK, EVEN_UPPER, ODD_UPPER = range(6)     # the last two: in turns


def case_of(c):
    category = unicodedata2.category(chr(c))
    return UPPER if category in ("Lu", "Lt") else LOWER if category == "Ll" else MARK if category[0] == "M" else NONE


def in_turns(c):
    return {(UPPER, 0): EVEN_UPPER, (LOWER, 1): EVEN_UPPER, (UPPER, 1): ODD_UPPER, (LOWER, 0): ODD_UPPER}.get(
        (case_of(c), c % 2))


def ranges():
    """(first, kind): from there on; letters that take turns for four or more are one."""
    c, out = 0x80, []
    while c < 0x110000:
        turn, end = in_turns(c), c + 1
        while turn is not None and end < 0x110000 and in_turns(end) == turn:
            end += 1
        kind = turn
        if end - c < 4:
            kind, end = case_of(c), c + 1
            while end < 0x110000 and case_of(end) == kind and not all(in_turns(end + i) == in_turns(end) is not None
                                                                      for i in range(4) if end + i < 0x110000):
                end += 1
        if not out or out[-1][1] != kind:
            out.append((c, kind))
        c = end
    return out


def main():
    if len(sys.argv) != 2 or unicodedata2.unidata_version != VERSION:
        sys.exit(__doc__)
    values = [first << 3 | kind for first, kind in ranges()]

    def look(c):
        kind = max((v for v in values if v >> 3 <= c), default=0) & 7
        return (UPPER if c % 2 == kind - EVEN_UPPER else LOWER) if kind >= EVEN_UPPER else kind
    for c in list(range(0x80, 0x3000)) + list(range(0xa000, 0x20000, 7)) + list(range(0x1d400, 0x1d800)):
        assert look(c) == case_of(c), hex(c)
    rows = textwrap.fill(", ".join(map(str, values)), 120, initial_indent="  ", subsequent_indent="  ")
    with open(sys.argv[1], "w", encoding="ascii") as f:
        f.write(f"""\
// unicode_case.h: upper case (Lu, Lt), lower case (Ll) and marks (M) of Unicode {VERSION}, as the patterns of
// tokenizers since o200k ask for them. Written by dev/make_unicode_case.py; to change it, change that.
// Defines: enum UnicodeCase, unicode_case(code_point).
#pragma once
#include "data.h"
#include <stdint.h>

enum UnicodeCase {{ CASE_NONE, CASE_UPPER, CASE_LOWER, CASE_MARK, CASE_EVEN_UPPER, CASE_ODD_UPPER }};

// Where a range begins << 3 | its case; of the last two upper and lower case take turns.
static const uint32_t unicode_cases[{len(values)}] = {{
{rows}
}};

// The case of code point c.
static inline int unicode_case(uint32_t c) {{
  if (c < 0x80) return c - 'A' < 26 ? CASE_UPPER : c - 'a' < 26 ? CASE_LOWER : CASE_NONE;
  int low = 0;
  for (int high = {len(values)}, middle; high - low > 1;) {{
    middle = (low + high) / 2;
    if (unicode_cases[middle] >> 3 <= c) low = middle;
    else high = middle;
  }}
  const int kind = (int)(unicode_cases[low] & 7);
  return kind < CASE_EVEN_UPPER ? kind : (int)(c % 2) == kind - CASE_EVEN_UPPER ? CASE_UPPER : CASE_LOWER;
}}
""")


main()
