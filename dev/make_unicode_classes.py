#!/usr/bin/env python3
"""Writes data/tokenizer/unicode_classes.h: the class (letter, number, space, other) of every Unicode code point.

The GPT-2 pre-tokenizer uses three classes of characters: \\p{L}, \\p{N}, \\s. They change with the Unicode version, and
a tokenizer with other classes splits words differently. The version is pinned here to the one that Hugging Face
tokenizers uses (tokenizers 0.23 has the tables of Unicode 16.0.0).

Usage: make_unicode_classes.py OUTPUT.h [--ucd DerivedGeneralCategory.txt]
Source of the categories: the given file of the Unicode Character Database (its first line must name the version),
else the PyPI package unicodedata2==16.0.0. If Hugging Face tokenizers can be imported, every code point is checked
against it.
"""
import sys
import textwrap

VERSION = "16.0.0"
CODE_POINTS = 0x110000
BLOCK = 256                                     # code points per block; two bits per code point
OTHER, LETTER, NUMBER, SPACE = range(4)
WHITE_SPACE_CONTROLS = (9, 10, 11, 12, 13, 0x85)  # the White_Space property beyond the categories Zs, Zl, Zp


def categories_from_file(path):
    categories = ["Cn"] * CODE_POINTS
    with open(path, encoding="utf-8") as f:
        first = f.readline()
        if VERSION not in first:
            sys.exit(f"{path}: its first line names another version ({first.strip()}), needs {VERSION}")
        for line in f:
            fields = line.split("#")[0].split(";")
            if len(fields) != 2:
                continue
            ends = fields[0].strip().split("..")
            for c in range(int(ends[0], 16), int(ends[-1], 16) + 1):
                categories[c] = fields[1].strip()
    return categories


def categories_from_package():
    try:
        import unicodedata2
    except ImportError:
        sys.exit(f"needs `pip install unicodedata2=={VERSION}`, or --ucd DerivedGeneralCategory.txt of {VERSION}")
    if unicodedata2.unidata_version != VERSION:
        sys.exit(f"unicodedata2 carries Unicode {unicodedata2.unidata_version}, needs {VERSION}")
    return [unicodedata2.category(chr(c)) for c in range(CODE_POINTS)]


def class_of(c, category):
    if category[0] == "L":
        return LETTER
    if category[0] == "N":
        return NUMBER
    return SPACE if category[0] == "Z" or c in WHITE_SPACE_CONTROLS else OTHER


def check_against_tokenizers(classes):
    """A character of c's own class before c forms one piece with it; a space never does, whatever comes before it."""
    try:
        import tokenizers
    except ImportError:
        return "tokenizers is not installed: not checked against it"
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


def rows(values):
    return textwrap.fill(", ".join(map(str, values)), 120, initial_indent="  ", subsequent_indent="  ")


def header(classes):
    blocks, number_of, index = [], {}, []
    for start in range(0, CODE_POINTS, BLOCK):
        packed = tuple(sum(classes[start + 4 * i + j] << (2 * j) for j in range(4)) for i in range(BLOCK // 4))
        if packed not in number_of:
            number_of[packed] = len(blocks)
            blocks.append(packed)
        index.append(number_of[packed])
    assert len(blocks) <= 256
    return f"""// unicode_classes.h: the class of every code point of Unicode {VERSION}, as the GPT-2 pre-tokenizer
// asks for it: letter (general category L*), number (N*), space (property White_Space), other.
// Written by dev/make_unicode_classes.py; to change it, change that. Two bits a code point, equal blocks shared.
// Defines: UNICODE_CLASSES_VERSION, enum UnicodeClass, unicode_class(code_point).
#pragma once
#include <stdint.h>

#define UNICODE_CLASSES_VERSION "{VERSION}"

enum UnicodeClass {{ UNICODE_OTHER, UNICODE_LETTER, UNICODE_NUMBER, UNICODE_SPACE }};

static const uint8_t unicode_block_of[{len(index)}] = {{
{rows(index)}
}};

static const uint8_t unicode_blocks[{len(blocks)} * {BLOCK // 4}] = {{
{rows([b for block in blocks for b in block])}
}};

// The class of code point c, which must be below 0x110000.
static inline int unicode_class(uint32_t c) {{
  return unicode_blocks[unicode_block_of[c / {BLOCK}] * {BLOCK // 4} + c % {BLOCK} / 4] >> (c % 4 * 2) & 3;
}}
"""


def main():
    if len(sys.argv) not in (2, 4) or (len(sys.argv) == 4 and sys.argv[2] != "--ucd"):
        sys.exit(__doc__)
    categories = categories_from_file(sys.argv[3]) if len(sys.argv) == 4 else categories_from_package()
    classes = [class_of(c, category) for c, category in enumerate(categories)]
    print(check_against_tokenizers(classes))
    with open(sys.argv[1], "w", encoding="ascii") as f:
        f.write(header(classes))


main()
