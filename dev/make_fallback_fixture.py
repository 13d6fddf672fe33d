#!/usr/bin/env python3
"""Writes dev/fixtures/fallback*: what Hugging Face tokenizers makes of texts with SentencePiece's kind of BPE.

    python3 dev/make_fallback_fixture.py [DIRECTORY]     needs tokenizers==0.23.3, gguf, numpy

  fallback.txt    hostile text with much white space, special tokens and U+2581
  fallback.json   a small vocabulary with byte_fallback, in the form of Llama 2's tokenizer.json
  fallback_forms.json
                  forms of other models: what of fallback.json is replaced, and for each text the count and the hash
                  (make_tokenizer_fixture.py) of its ids, and the hash of the text that they are decoded to; chats: ids
                  and whether they are trained on, of conversations as their templates render them, encoded whole
  fallback.gguf   the vocabulary with scores, as llama.cpp's own package writes it

The vocabulary is made as SentencePiece makes one: special tokens, 256 bytes, then pieces in the order in which they
were learned, of which the score is the place, and then characters; runs of blanks have one score, as in Mistral's.
Merges are those that transformers' generate_merges makes of scores.
"""
import json
import os
import random
import sys

import gguf
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

OUT = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixtures")
BLANK = "\u2581"
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
PARTS = [" ", " ", " ", "  ", "   ", "\n", "\n\n", "\t", BLANK, "a", "b", "the", " the", "The", "ing", "é", "\u0301",
         "字", "漢字", "👍", "👩‍👩‍👧", "<s>", "</s>", "<unk>", "<0x0A>", "<|user|>", "<|end|>", "<mask>", "[INST]",
         "[/INST]", "1", "12", "0", "!", "'s", "def f(x):\n    return x", "\r\n", "\x7f", "\u3000", "\xa0", "مرحبا",
         " hello", " world", "aaaa", "aaa", "abab", "....", "  \n  ", "\U0010ffff", "𝐀", "Zeile\n", "q" * 70, "ab" * 40]

OWN = ("\n\n", "[INST]", "[/INST]", "<|user|>", "<|end|>", "<mask>")     # tokens that forms below add


def fold(values):
    h = 0xcbf29ce484222325
    for x in values:
        h = (h ^ x) * 0x100000001b3 & 0xffffffffffffffff
    return h


def pieces(text):
    """(text, score, type) of each token."""
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Metaspace(replacement=BLANK, prepend_scheme="always", split=True)
    t.train_from_iterator([text], trainers.BpeTrainer(vocab_size=900, show_progress=False, limit_alphabet=200))
    model = json.loads(t.to_str())["model"]
    learned = [a + b for a, b in model["merges"] if set(a + b) != {BLANK} and a + b not in OWN]
    chars = sorted(x for x in model["vocab"] if len(x) == 1)
    runs = [BLANK * n for n in (2, 4, 8, 3, 5, 6, 7, 16)]
    return ([("<unk>", 0, UNKNOWN), ("<s>", 0, CONTROL), ("</s>", 0, CONTROL)] +
            [(f"<0x{b:02X}>", 0, BYTE) for b in range(256)] + [(x, -1e9, NORMAL) for x in runs] +
            [(x, -i, NORMAL) for i, x in enumerate(learned)] +
            [(x, -len(learned) - i, NORMAL) for i, x in enumerate(chars)])


def merges(of):
    """transformers.tokenization_utils_base.generate_merges."""
    vocab = {text for text, _, _ in of}
    found = [(text[:i], text[i:], score) for text, score, _ in of for i in range(1, len(text))
             if text[:i] in vocab and text[i:] in vocab]
    found.sort(key=lambda x: (x[2], len(x[0]), len(x[1])), reverse=True)
    return [[a, b] for a, b, _ in found]


def added(id, content, special=True, lstrip=False, rstrip=False, normalized=False):
    return {"id": id, "content": content, "single_word": False, "lstrip": lstrip, "rstrip": rstrip,
            "normalized": normalized, "special": special}


REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": BLANK}
DECODES = [{"type": "Replace", "pattern": {"String": BLANK}, "content": " "}, {"type": "ByteFallback"},
           {"type": "Fuse"}]
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def metaspace(scheme):
    return {"type": "Metaspace", "replacement": BLANK, "prepend_scheme": scheme, "split": False}


def forms(count, blanks):
    specials = [added(0, "<unk>"), added(1, "<s>"), added(2, "</s>")]
    phi = [added(0, "<unk>"), added(1, "<s>"), added(2, "</s>", special=False, rstrip=True),
           added(count, "<|user|>", rstrip=True), added(count + 1, "<|end|>", rstrip=True),
           added(count + 2, "<mask>", special=False, lstrip=True)]
    gemma = specials + [added(blanks, BLANK * 2, special=False), added(count, "\n\n", special=False),
                        added(count + 1, "<|user|>", normalized=True)]
    mistral = specials + [added(count, "[INST]"), added(count + 1, "[/INST]")]
    no_strip = {"type": "Sequence", "decoders": DECODES}
    split = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    plain = {"normalizer": None, "added_tokens": mistral}
    return {"llama2": {}, "phi3": {"added_tokens": phi},
            "gemma": {"normalizer": REPLACE, "pre_tokenizer": split, "decoder": no_strip, "added_tokens": gemma},
            "first": {"pre_tokenizer": metaspace("first")} | plain,
            "always": {"pre_tokenizer": metaspace("always")} | plain,
            "never": {"pre_tokenizer": metaspace("never"), "decoder": no_strip} | plain}


def chats(form, tokens, t):
    """A conversation by each template: rendered with marks where an answer starts and where its end token ends."""
    said = [("user", "Hi there"), ("assistant", "字 Hello, you"), ("user", " two  blanks "),
            ("assistant", "It's 12.\nNo")]
    zephyr = "".join(f"<|{r}|>\n" + (f"\0{x}</s>\1\n" if r == "assistant" else f"{x}</s>\n") for r, x in said)
    turns = {"zephyr": zephyr}
    for name, user, answer in (("mistral-v1", "[INST] {} [/INST]", "\0{}</s>\1"),
                               ("mistral-v3", "[INST] {}[/INST]", "\0 {}</s>\1")):
        turns[name] = "<s>" + "".join((answer if r == "assistant" else user).format(x) for r, x in said)
    for name, text in turns.items():
        plain = text.replace("\0", "").replace("\1", "")
        marks, on = [], False
        for c in text:
            if c in "\0\1":
                on = c == "\0"
            else:
                marks.append(on)
        e = t.encode(plain, add_special_tokens=False)
        yield {"form": form, "template": name,
               "line": json.dumps({"messages": [{"role": r, "content": x} for r, x in said]}),
               "ids": e.ids, "trained": [int(marks[max(b, a + 1) - 1]) for a, b in e.offsets]}


def main():
    r = random.Random(20261128)
    text = "".join(r.choice(PARTS) for _ in range(4000))
    with open(os.path.join(OUT, "fallback.txt"), "w", encoding="utf-8", newline="") as f:
        f.write(text)
    with open(os.path.join(OUT, "tokenizer_hostile.txt"), encoding="utf-8", newline="") as f:
        hostile = f.read()
    with open(os.path.join(OUT, "tokenizer_families.txt"), encoding="utf-8", newline="") as f:
        of = pieces(text.replace("<", "") + f.read().replace("\0", ""))
    vocab = {x: i for i, (x, _, _) in enumerate(of)}
    bos = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    base = {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [added(0, "<unk>"), added(1, "<s>"), added(2, "</s>")],
            "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": BLANK}, REPLACE]},
            "pre_tokenizer": None,
            "post_processor": {"type": "TemplateProcessing", "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
                               "pair": [bos, {"Sequence": {"id": "A", "type_id": 0}},
                                        {"Sequence": {"id": "B", "type_id": 1}}],
                               "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
            "decoder": {"type": "Sequence", "decoders": DECODES + [STRIP]},
            "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                      "vocab": vocab, "merges": merges(of)}}
    with open(os.path.join(OUT, "fallback.json"), "w", encoding="utf-8") as f:
        json.dump(base, f, ensure_ascii=False, separators=(",", ":"))
    out, talks = [], []
    for name, change in forms(len(of), vocab[BLANK * 2]).items():
        t = Tokenizer.from_str(json.dumps(base | change))
        made = {"name": name, "change": change}
        for key, x in (("text", text), ("hostile", hostile)):
            ids = t.encode(x, add_special_tokens=False).ids
            decoded = t.decode(ids, skip_special_tokens=False)
            made[key] = {"count": len(ids), "ids": str(fold(ids)), "decoded": str(fold(decoded.encode()))}
        out.append(made)
        talks += chats(name, of, t) if name in ("llama2", "first") else []
    with open(os.path.join(OUT, "fallback_forms.json"), "w", encoding="utf-8") as f:
        json.dump({"forms": out, "chats": talks}, f, ensure_ascii=False, separators=(",", ":"))
    w = gguf.GGUFWriter(os.path.join(OUT, "fallback.gguf"), "llama")
    w.add_tokenizer_model("llama")
    w.add_token_list([x for x, _, _ in of])
    w.add_token_scores([float(s) for _, s, _ in of])
    w.add_token_types([k for _, _, k in of])
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.close()


main()
