#!/usr/bin/env python3
"""Writes dev/fixtures/tokenizer_*: results of Hugging Face tokenizers on hostile text and on WikiText-2.

Usage: make_tokenizer_fixture.py [--wikitext2 DIR] [--out DIR]      needs `pip install tokenizers==0.23.3 numpy`
       make_tokenizer_fixture.py --gguf DIR --out DIR                needs gguf, too

  tokenizer_hostile.txt   hostile text, valid UTF-8, from a fixed seed
  tokenizer_hostile.json  the tokenizer that Hugging Face trains on it, by line
  tokenizer_hostile.i32   the ids that it gives the text, int32 little-endian
  tokenizer_added.*       the same for a loaded tokenizer with added tokens, in the older form of the file, not by line
  tokenizer_gpt2/         vocab.json and merges.txt, in the form of the published GPT-2, of a tokenizer not by line
  tokenizer_gpt2.txt .i32 .json  text with much white space across newlines, its ids, the same tokenizer in one file
  tokenizer_gpt2_lines.i32  the ids of that text when that tokenizer goes by line
  tokenizer_FAMILY.json .i32  tokenizers in the form of Llama 3's, Qwen 2's, SmolLM2's, nanochat's, Tekken's and
                          gpt-oss's tokenizer.json, and the ids that they give tokenizer_families.txt
  tokenizer_cased.txt     words of upper and lower case, of letters that have none, and of marks, side by side
  tokenizer_hashes.txt    `name value` lines: hashes of data too large to keep (WikiText-2 only with --wikitext2)

--gguf DIR: instead, published vocabularies, from the directory vendor/llama.cpp/models that the sdist of the package
llama-cpp-python carries (ggml-vocab-NAME.gguf, with texts and llama.cpp's ids of them in .inp and .out). Each becomes
OUT/NAME.json in its family's form, .txt and .i32, which `TOKENIZER_FIXTURES=OUT make test T=tokenizer_published` reads.

Every text is one sequence to the trainer and to encode. "By line" is the pre-tokenizer: a Split that ends every piece
with its newline, then ByteLevel. Where transformers is installed, its AutoTokenizer must give tokenizer_gpt2.i32 too.
hash(x) folds 64 bits: h = 0xcbf29ce484222325, then h = (h ^ x) * 0x100000001b3 for every x in turn (bytes or ids).
"""
import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time

import numpy as np
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HOSTILE_VOCAB = 2000
ADDED_VOCAB = 320
GPT2_VOCAB = 700
WIKITEXT2_VOCABS = (5000, 40000, 1000000)       # the last: until nothing is left to merge
EVERYTHING = 1000000


def fold(values):
    h = 0xcbf29ce484222325
    for x in values:
        h = (h ^ x) * 0x100000001b3 & 0xffffffffffffffff
    return h


BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
BY_LINE = pre_tokenizers.Sequence([pre_tokenizers.Split("\n", "merged_with_previous"), BYTE_LEVEL])


def train(text, vocab_size, pre_tokenizer=BY_LINE, special=()):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizer
    t.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, min_frequency=0, show_progress=False,
                                  special_tokens=[*special],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    t.train_from_iterator([text], trainer)
    return t


def train_whole(text, vocab_size):
    """Not by line, with a token that stands between documents."""
    return train(text, vocab_size, BYTE_LEVEL, ["<|endoftext|>"])


def encode(t, text):
    return t.encode(text, add_special_tokens=False).ids


def encode_by_line(t, text):
    """The same tokenizer, by line."""
    t = Tokenizer.from_str(t.to_str())
    t.pre_tokenizer = BY_LINE
    return encode(t, text)


def merges_hash(t):
    model = json.loads(t.to_str())["model"]
    vocab = model["vocab"]
    return fold(vocab[token] for a, b in model["merges"] for token in (a, b, a + b))


# ---- hostile text ----------------------------------------------------------------------------------------------------
SPACES = ("\t\x0b\x0c\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029"
          "\u202f\u205f\u3000")
SAMPLES = [
    "👍👍🏽👩‍👩‍👧‍👦 🏳️‍🌈🇩🇪🇯🇵 1️⃣#️⃣ ☺☺️ 👩🏾‍🚒! ♥️♥︎",
    "🧑‍🚀🧑‍🚀🧑‍🚀 e\u0301é ﬁ ß ẞ İıſ ŉ",
    "Z\u0351\u036b\u0343a\u0300\u0301\u0302\u0303\u0304lgo\u0338\u0489 \u0301alone 1\u0301\u20e3",
    "中文字符，没有空格。日本語のテキスト、カタカナ・ひらがな。한국어 텍스트 \u1112\u1161\u11ab",
    "𠀀𠀁𪚥 㐀㐁 々〆〇 ㊀㊁ ①②③ Ⅷⅷ ½⅓ x²₃ ٣٤٥ ५६ 〡〢〣 𝟘𝟙 𝐀𝐁",
    "שָׁלוֹם עולם مرحبا بالعالم\u200e\u200f नमस्ते दुनिया ไทยไม่มีช่องว่าง བོད་ཡིག ភាសាខ្មែរ",
    "𒀀𒀁 𐀀𐀁 𓀀𓀁 𞤀𞤁𞥐 ᚠᚢᚦ ᎣᏏᏲ ꓐꓑ 𖬀𖬁 𑀅𑀆 𐵀𐵁 𖵀𖵁 𑎀𑎁 𞗐𞗑 𐗀𐗁",
    "\ufeffBOM \u200bzero\u200bwidth\u2060 soft\u00adhyphen \U000e0041\U000e007f",
    "\u180e \ue000\uf8ff\U000f0000\U0010fffd",
    "unassigned \u0378\u0379 \U0001fbff \U0002ffff \ufffe\uffff \U0010ffff \ufffd \u05ff\u1c8b\ua7ce \U00011fff",
    "it's IT'S it’s 'tis ''s ' 's 're're'll'lll'd'm've'v 'S x's's don't'll've \"'s\" !'s 1's \t's",
    "s'  t' r'e v'e l'l l'", "'", "''", "'r", "'l ", "'ve",
    "a  b   c    d \t e\t\tf \u3000g\u3000 h\xa0\xa0i \u2028j",
    " lead", "  lead", "\tlead", "trail ", "trail  ", "trail \t", "trail\u3000\u3000", " ", "  ", "\u3000",
    "crlf\r", "crlf\r\r", "  \r", "cr\ralone\r\rtwice", "\r", "\x0b\x0c",
    "nul\0nul\0\0 \0 \0\0a1\0", "\0", "".join(map(chr, range(10))) + "".join(map(chr, range(11, 33))),
    "".join(map(chr, range(127, 192))), "def f(x):\treturn {'a': [1,2.5e-3], \"b\": x**2}  # x != y",
    "http://a.b/c?d=e&f=%20#g 192.168.0.1 1,234.56", "<unk> = = = @-@ @,@ @.@",
    "aaa aa a aaaa aaaaaaa aaaaa", "abababab bababab abcabcabc cbacba", "....!!!!----====....",
    "000 0000 00000 1 11 111 1111",
]


def random_char(r):
    """Plane 0 mostly, with every kind of character; never a surrogate or a newline."""
    while True:
        kind = r.random()
        for below, first, end in ((.3, 0x20, 0x7f), (.5, 0, 0x250), (.75, 0, 0x3100), (.9, 0, 0x10000),
                                  (.98, 0x10000, 0x20000), (2, 0, 0x110000)):
            if kind < below:
                c = r.randrange(first, end)
                break
        if c != 10 and not 0xd800 <= c < 0xe000:
            return chr(c)


def hostile_text():
    r = random.Random(20240910)
    letters = "abcdefghijklmnopqrstuvwxyz"
    out = ["", ""] + SAMPLES + [""] * 5
    out += [a + s + s + b for s in SPACES for a, b in (("x", "y"), ("1", "!"), ("", "z"), ("w", ""))]
    out += [a + s + t + "b" for s in SPACES for t in SPACES for a in "a"]
    out += ["a" * 4097, "ab" * 1500 + "a", "abc" * 700, "é" * 600, "字" * 900, "7" * 1000, "?" * 999, " " * 800 + "x",
            "\t" * 300,
            "".join(r.choice(letters) for _ in range(3000)), "".join(r.choice("ab") for _ in range(3000)),
            "".join(r.choice(["字", "符", "串"]) for _ in range(700)), "x" * 64, "y" * 65, "xy" * 32, "xy" * 33]
    out += ["".join(r.choice("aab") for _ in range(n)) for n in (15, 16, 17, 63, 64, 65)]
    out += [r.choice(letters) * n for n in (15, 16, 17, 63, 64, 65)]
    out += ["".join(random_char(r) for _ in range(r.randrange(1, 60))) for _ in range(250)]
    out += ["".join(r.choice("ab'sltred 1.\t\r\u3000é") for _ in range(r.randrange(1, 40))) for _ in range(300)]
    words = ["".join(r.choice("etaoin shrdlu") for _ in range(r.randrange(1, 9))) for _ in range(150)]
    out += [" ".join(r.choice(words) for _ in range(12)) + r.choice([".", " .", "\r", "", "  "]) for _ in range(200)]
    out += r.sample(SAMPLES, len(SAMPLES))
    return "\n".join(out) + "\n\n no newline at the end 's"


def every_code_point():
    """One line per code point: after a letter, a number and punctuation, and before a space."""
    points = (chr(c) for c in range(0x110000) if not 0xd800 <= c < 0xe000)
    return "".join(f"b{c}1{c}!{c} {c}\n" for c in points)


def added_case(text):
    """A tokenizer with added tokens, some overlapping, two of them in the vocab, merges in the form "a b"."""
    t = train(text, ADDED_VOCAB, BYTE_LEVEL)
    t.add_tokens(["é字"])
    t.add_special_tokens(["<|endoftext|>", "<a b>", "<a", "\n\n\n", "!\n ?", "\t\"q\"\\"])
    t.add_tokens(["plain", "plainer", AddedToken("'s ", normalized=False),
                  AddedToken("n t", normalized=False), "ab"])
    state = json.loads(t.to_str())
    state["model"]["merges"] = [f"{a} {b}" for a, b in state["model"]["merges"]]
    state["post_processor"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
    in_vocab = max(state["model"]["vocab"], key=lambda s: (s.isascii() and s.isalpha()) * len(s))
    state["model"]["vocab"]["é字"] = t.token_to_id("é字")    # stored directly, not in the alphabet of bytes
    state["added_tokens"].insert(0, {"id": state["model"]["vocab"][in_vocab], "content": in_vocab, "normalized": False,
                                     "single_word": False, "lstrip": False, "rstrip": False, "special": True})
    text = ("plain text<|endoftext|>plainer <a b><a  b> it's  it's x<|endoftext|>  <|endoftext|> y\n  <|endoftext|>\n\n"
            f"<|endoftext|<|endoftext|>>\t\"q\"\\ é字é ababab {in_vocab}{in_vocab[:-1]} {in_vocab}x plaiplain<a\n"
            "plain end ab's ab\n\n \n\n\n\n  \n<a\n\n\n\n  x  <a \n \n<|endoftext|>\n \nab!\n ?!\n \n ?\n\nend \n")
    return json.dumps(state, ensure_ascii=True), text


def gpt2_case():
    """A tokenizer not by line, trained and tested on text whose white space runs across newlines."""
    r = random.Random(20190214)
    words = ["".join(r.choice("etaoin shrdlu") for _ in range(r.randrange(1, 7))).strip() for _ in range(60)]
    words += ["x", "12", "'s", "don't", "é", "字符", "(", ");", "...", "{", "}", "\u3000", "\xa0", "👍", "return"]
    spaces = [" "] * 12 + ["\n"] * 5 + ["", "", "  ", "   ", "\r", "\n\n", "\n\n\n", " \n", "  \n ", "\n  ", "\n    "]
    spaces += ["\n\t", "\t\n\n\t\t", "\r\n", "\r\n\r\n", " \r\n ", "\n\r\n\r", "\n \n", " \n \n "]
    spaces += ["\u3000\n", "\n\u3000", "\x85\n", "\n\u2028", "\xa0\n\xa0", "\x0b\n\x0c"]
    text = "\n\n \n" + "".join(r.choice(words) + r.choice(spaces) for _ in range(2500))
    text += "<|endoftext|>\n\n<|endoftext|>  \n  <|endoftext|>x\n<|endoftext|>\n <|endof\n\ntext|>  \n\n  "
    t = train(text, GPT2_VOCAB - 1, BYTE_LEVEL)
    t.add_special_tokens([AddedToken("<|endoftext|>", normalized=False)])
    return t, text


# ---- families --------------------------------------------------------------------------------------------------------
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
NANOCHAT = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|"
            r"\s+(?!\S)|\s+")
CASED = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+END|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*END|"
         r"DIGITS| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
TEKKEN = CASED.replace("END", "").replace("DIGITS", r"\p{N}")
O200K = CASED.replace("END", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?").replace("DIGITS", r"\p{N}{1,3}")
CASED_PATCHES = ["a", "b", "A", "B", "xyz", "XYZ", "Hello", "World", "\u00c9", "\u00e9", "\u01c5", "\u02b0", "\u5b57",
                 "\u05d0", "\u0301", "\u0903", "\u20dd", "\u0531", "\u0561", "\u10a0", "\u1e9e", "\U00010400",
                 "\U00010428", "\U0001d400", "\U0001d41a", "1", "23", "4567", " ", "  ", "\t", "\n", "\r\n", "/", "//",
                 "'s", "'S", "'ll", "'LL", "'", "'re", "!", "_", "(", "-", "\u3000", "\xa0", "\u200d", "\U0001f600"]


def cased_text():
    r = random.Random(20260929)
    return "".join(r.choice(CASED_PATCHES) for _ in range(9000))


def by_pattern(pattern):
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), level])


PRE_TOKENIZERS = {"llama3": by_pattern(LLAMA3), "qwen2": by_pattern(QWEN2), "nanochat": by_pattern(NANOCHAT),
                  "smollm2": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), BYTE_LEVEL]),
                  "tekken": by_pattern(TEKKEN), "o200k": by_pattern(O200K)}
PATCHES = ["it's", "IT'S", "it'\u017f", "I'Ll", "we'RE", "'ve", "'\u212aM", "don't", "'", " ", "  ", "   ", "\n",
           "\n\n", " \n", "\r\n", "\r", "\t", "\t\t", ".", "...", "!\n", " .\n\n", "?\r\n", "()", " (", "a", "B",
           "word", " word", "\u00e9t\u00e9", "1", "12", "123", "1234", " 12345", "\u0663\u0664\u0665\u0666", "\u00bd",
           "\u2167", "\u4e09", "\U00011de0", "\U00016ff4", "\U0001d7d8\U0001d7d9", "\u4e2d\u6587", "\u3000", "\u00a0",
           "\u2028", "\u0085", "e\u0301", "e\u0323\u0301", "e\u0301\u0323", "\u00e9\u0323", "\u212b", "\u0958",
           "\u0915\u093c", "\u0344", "\uac00\u11a8", "\u1100\u1161", "\u1100\u1161\u11a8", "\u11a8", "\u1161",
           "\u0301", "\u0323", "\u0345\u0301", "\U0001d160", "\u1e0b\u0323", "\u09c7\u09be", "\u0f71\u0f72\u0f74",
           "\u0f73", "\uf900", "\u2126", "\u0340", "a\u0315\u0300\u05ae\u0300b", "\U00011935\U00011930",
           "\U00011099\U000110ba", "\u0897\u0301", "\ufb2c", "\u1f82", "\U0001f468\u200d\U0001f469", "<|endoftext|>",
           "<|im_start|>", "<tool_call>", "tool", "<|eot_id|>", "caf\u00e9", "cafe\u0301", "\u200d", "_", "x_y",
           "\u0000", "\x07", "\ue000", "\u0378"]


def families_text():
    """Every patch after every kind of character, and in random company."""
    r = random.Random(20260717)
    text = "".join(p + q for p in PATCHES for q in (" ", "\n", "x", "7", ".", "\u0301", "'"))
    return text + "".join(r.choice(PATCHES) for _ in range(2200))


def some_code_points():
    """Beside every kind of character, those that are not like their neighbours."""
    rest = [*range(0x3400), *range(0xa000, 0xac00), *range(0xac00, 0xd800, 97), *range(0xd7a0, 0xd800),
            *range(0xe000, 0x20000, 3), *range(0xf900, 0xfb60), *range(0x1d100, 0x1d200), *range(0x2f800, 0x2fa20),
            *range(0xe0000, 0xe0200)]
    return "".join(f"b{c}1{c}!{c} {c}\n'{c}e'r{c}\t{c}{c}\u0323\u0301" for c in map(chr, rest))


def with_form(family, t, state):
    """What the family's published tokenizer.json has, around model and pre_tokenizer."""
    model = state["model"]
    special = {"llama3": ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"], "smollm2": [],
               "qwen2": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], "nanochat": ["<|bos|>"],
               "tekken": ["<unk>", "<s>", "</s>", "[INST]"], "o200k": ["<|endoftext|>", "<|start|>"]}[family]
    t = Tokenizer.from_str(json.dumps(state))
    t.add_special_tokens([AddedToken(s, normalized=False) for s in special])
    if family == "qwen2":
        t.normalizer = normalizers.NFC()
        t.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("tool", normalized=True)])
    level = processors.ByteLevel(trim_offsets=False)
    t.post_processor = level
    if family == "llama3":
        bos = (special[0], t.token_to_id(special[0]))
        t.post_processor = processors.Sequence([level, processors.TemplateProcessing(
            single=f"{bos[0]} $A", pair=f"{bos[0]} $A {bos[0]} $B:1", special_tokens=[bos])])
    state = json.loads(t.to_str())
    if family in ("qwen2", "smollm2"):
        state["model"]["merges"] = [f"{a} {b}" for a, b in model["merges"]]
    return state


def family_case(family, text):
    """A small tokenizer of the family. Llama 3's has whole pieces that no merge leads to, and ignore_merges; SmolLM2's
    lacks bytes, and has its special tokens first."""
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = PRE_TOKENIZERS[family]
    t.decoder = decoders.ByteLevel()
    special, alphabet = [], pre_tokenizers.ByteLevel.alphabet()
    if family == "smollm2":
        special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
        text = "".join(c for c in text if c in "\n" or " " <= c < "\u0700" and c != "\x85")
        alphabet = [c for c in alphabet if c.isascii() or c in "\u0120\u010a"]
    if family == "qwen2":
        text = normalizers.NFC().normalize_str(text)
    trainer = trainers.BpeTrainer(vocab_size=600, min_frequency=0, show_progress=False, special_tokens=special,
                                  initial_alphabet=alphabet)
    t.train_from_iterator([text], trainer)
    state = json.loads(t.to_str())
    if family in ("llama3", "tekken"):
        state["model"]["ignore_merges"] = True
        state["model"]["merges"] = [m for i, m in enumerate(state["model"]["merges"]) if i % 3]
    return json.dumps(with_form(family, t, state), ensure_ascii=False)


def write_families(directory, hostile):
    """Writes the files of all families and returns their hashes."""
    text, points, cased, hashes = families_text(), some_code_points(), cased_text(), {}
    write(directory, "tokenizer_families.txt", text.encode())
    write(directory, "tokenizer_cased.txt", cased.encode())
    for family in PRE_TOKENIZERS:
        data = family_case(family, text + cased if family in ("tekken", "o200k") else text)
        t = Tokenizer.from_str(data)
        write(directory, f"tokenizer_{family}.json", data.encode())
        write(directory, f"tokenizer_{family}.i32", np.array(encode(t, text), "<i4").tobytes())
        for name, other in (("hostile", hostile), ("points", points), ("cased", cased)):
            if name == "cased" and family not in ("tekken", "o200k"):
                continue
            ids = encode(t, other)
            hashes.update({f"{family}_{name}_count": len(ids), f"{family}_{name}_ids": fold(ids)})
        if family == "llama3":
            state = json.loads(data)
            state["model"]["ignore_merges"] = False
            assert encode(Tokenizer.from_str(json.dumps(state)), text) != encode(t, text)
            assert t.encode("a").ids == [t.token_to_id("<|begin_of_text|>")] + encode(t, "a")
        if family == "smollm2":
            alone = pre_tokenizers.Digits(individual_digits=True).pre_tokenize_str
            hashes["digits"] = fold(c for c in range(0x110000)
                                    if not 0xd800 <= c < 0xe000 and len(alone("b" + chr(c) + "b")) == 3)
            assert t.decode(encode(t, text)) != text, "no byte is lacking"
    return hashes


# llama.cpp's name of a vocabulary: its family. Those of refact and starcoder have SmolLM2's pre-tokenizer.
PUBLISHED = {"llama-bpe": "llama3", "qwen2": "qwen2", "refact": "smollm2", "starcoder": "smollm2", "gpt-2": None}


def published(models_directory, directory):
    """Published vocabularies in their family's form, and the ids that tokenizers gives. llama.cpp's own of its texts
    must be the same, but for a text that is not NFC: it does not normalise."""
    from gguf import GGUFReader
    for name, family in PUBLISHED.items():
        base = os.path.join(models_directory, f"ggml-vocab-{name}.gguf")
        fields = GGUFReader(base).fields
        tokens = fields["tokenizer.ggml.tokens"].contents()
        kinds = fields["tokenizer.ggml.token_type"].contents()
        added = [i for i, kind in enumerate(kinds) if kind in (3, 4) or (kind != 1 and family == "smollm2")]
        first = len(tokens) if family == "smollm2" else min(added, default=len(tokens))
        t = Tokenizer(models.BPE())
        t.pre_tokenizer = PRE_TOKENIZERS[family] if family else BYTE_LEVEL
        t.decoder = decoders.ByteLevel()
        state = json.loads(t.to_str())
        state["model"].update(vocab={s: i for i, s in enumerate(tokens[:first])}, ignore_merges=family == "llama3",
                              merges=[m.split(" ") for m in fields["tokenizer.ggml.merges"].contents()])
        state["normalizer"] = {"type": "NFC"} if family == "qwen2" else None
        state["added_tokens"] = [dict(id=i, content=tokens[i], single_word=False, lstrip=False, rstrip=False,
                                      normalized=False, special=kinds[i] == 3) for i in added]
        data = json.dumps(state, ensure_ascii=False)
        t = Tokenizer.from_str(data)
        with open(base + ".inp", encoding="utf-8", newline="") as f:
            texts = f.read().split("\n__ggml_vocab_test__\n")[:-1]
        with open(base + ".out") as f:
            theirs = [[int(x) for x in line.split()] for line in f.read().split("\n")]
        same = [encode(t, text) == ids for text, ids in zip(texts, theirs)]
        print(f"{name}: {len(tokens)} tokens; {sum(same)} of {len(texts)} texts have llama.cpp's ids")
        assert all(ok or normalizers.NFC().normalize_str(text) != text for text, ok in zip(texts, same))
        text = "\n".join(texts) + hostile_text() + families_text()
        write(directory, f"{name}.json", data.encode(), most=1 << 30)
        write(directory, f"{name}.txt", text.encode())
        write(directory, f"{name}.i32", np.array(encode(t, text), "<i4").tobytes(), most=1 << 30)


def write_gpt2(directory, t, text):
    pair = os.path.join(directory, "tokenizer_gpt2")
    os.makedirs(pair, exist_ok=True)
    t.model.save(pair)
    path = os.path.join(pair, "vocab.json")
    with open(path, encoding="utf-8") as f:
        vocab = json.load(f)
    vocab["<|endoftext|>"] = len(vocab)
    with open(path, "w", encoding="utf-8") as f:
        json.dump(vocab, f, ensure_ascii=False)
    state = json.loads(t.to_str())
    state["model"]["vocab"] = vocab
    in_one = Tokenizer.from_str(json.dumps(state))
    write(directory, "tokenizer_gpt2.json", in_one.to_str().encode())
    write(directory, "tokenizer_gpt2.txt", text.encode())
    ids, by_line = encode(in_one, text), encode_by_line(in_one, text)
    assert ids != by_line
    write(directory, "tokenizer_gpt2.i32", np.array(ids, "<i4").tobytes())
    write(directory, "tokenizer_gpt2_lines.i32", np.array(by_line, "<i4").tobytes())
    try:
        from transformers import AutoTokenizer
    except ImportError:
        print("transformers is not installed: tokenizer_gpt2.i32 is not compared with AutoTokenizer's ids")
        return
    with tempfile.TemporaryDirectory() as d:
        shutil.copytree(pair, d, dirs_exist_ok=True)
        with open(os.path.join(d, "config.json"), "w") as f:
            json.dump({"model_type": "gpt2"}, f)
        assert AutoTokenizer.from_pretrained(d)(text)["input_ids"] == ids, "AutoTokenizer gives other ids"


# ---- main ------------------------------------------------------------------------------------------------------------
def write(directory, name, data, most=1000000):
    with open(os.path.join(directory, name), "wb") as f:
        f.write(data)
    assert len(data) < most, name


def wikitext2_hashes(directory):
    hashes = {}
    text = {}
    for part in ("train", "valid"):
        with open(os.path.join(directory, part + ".txt"), "rb") as f:
            data = f.read()
        hashes[f"wikitext2_{part}_bytes"] = len(data)
        hashes[f"wikitext2_{part}_hash"] = fold(data)
        text[part] = data.decode()
    for vocab_size in WIKITEXT2_VOCABS:
        start = time.time()
        t = train(text["train"], vocab_size)
        middle = time.time()
        ids = encode(t, text["valid"])
        print(f"WikiText-2, vocabulary {t.get_vocab_size()}: trained in {middle - start:.2f} s, valid.txt encoded at "
              f"{hashes['wikitext2_valid_bytes'] / (time.time() - middle) / 1e6:.1f} MB/s", flush=True)
        name = f"wikitext2_{vocab_size}"
        hashes.update({f"{name}_vocab": t.get_vocab_size(), f"{name}_merges": merges_hash(t),
                       f"{name}_valid_count": len(ids), f"{name}_valid_ids": fold(ids)})
    t = train_whole(text["train"], WIKITEXT2_VOCABS[0])
    ids = encode(t, text["valid"])
    hashes.update(wikitext2_whole_merges=merges_hash(t), wikitext2_whole_valid_count=len(ids),
                  wikitext2_whole_valid_ids=fold(ids))
    return hashes


def main():
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixtures")
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--wikitext2", help="directory of train.txt and valid.txt")
    p.add_argument("--out", default=here)
    p.add_argument("--gguf", help="directory of ggml-vocab-NAME.gguf")
    a = p.parse_args()
    if a.gguf:
        return published(a.gguf, a.out)
    text = hostile_text()
    t = train(text, HOSTILE_VOCAB)
    write(a.out, "tokenizer_hostile.txt", text.encode())
    write(a.out, "tokenizer_hostile.json", t.to_str(pretty=True).encode())
    write(a.out, "tokenizer_hostile.i32", np.array(encode(t, text), "<i4").tobytes())
    added_json, added_text = added_case(text)
    write(a.out, "tokenizer_added.json", added_json.encode())
    write(a.out, "tokenizer_added.txt", added_text.encode())
    added = Tokenizer.from_str(added_json)
    write(a.out, "tokenizer_added.i32", np.array(encode(added, added_text), "<i4").tobytes())
    write_gpt2(a.out, *gpt2_case())
    everything = train(text, EVERYTHING)
    ids = encode(t, every_code_point())
    t.pre_tokenizer = BYTE_LEVEL
    whole = encode(t, text)
    hashes = {"hostile_all_vocab": everything.get_vocab_size(), "hostile_all_merges": merges_hash(everything),
              "code_points_count": len(ids), "code_points_ids": fold(ids), "hostile_whole_count": len(whole),
              "hostile_whole_ids": fold(whole)}
    own = train_whole(text, HOSTILE_VOCAB)
    ids = encode(own, text)
    hashes.update(own_json=fold(own.to_str(pretty=True).encode()), own_count=len(ids), own_ids=fold(ids))
    hashes.update(write_families(a.out, text))
    if a.wikitext2:
        hashes.update(wikitext2_hashes(a.wikitext2))
    header = f"# written by dev/make_tokenizer_fixture.py with tokenizers {tokenizers.__version__}\n"
    write(a.out, "tokenizer_hashes.txt", (header + "".join(f"{k} {v}\n" for k, v in hashes.items())).encode())


if __name__ == "__main__":
    sys.exit(main())
