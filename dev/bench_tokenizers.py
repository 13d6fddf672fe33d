#!/usr/bin/env python3
"""Hugging Face tokenizers on the same text: python3 dev/bench_tokenizers.py DIR VOCAB ROUNDS
prints the medians: seconds to train a byte-level BPE by line on DIR/train.txt, and MB/s to encode its lines.

python3 dev/bench_tokenizers.py --given TOKENIZER.json FILE ROUNDS
prints MB/s of one thread to encode FILE, article by article, by tokenizers and by tiktoken, whose ids must be equal."""

import json
import os
import re
import statistics
import sys
import time

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers



def given(path, text_path, rounds):
    os.environ["RAYON_NUM_THREADS"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import tiktoken

    theirs = Tokenizer.from_file(path)
    with open(path, encoding="utf-8") as f:
        vocab = json.load(f)["model"]["vocab"]
    alphabet = {chr(b): b for b in [*range(33, 127), *range(161, 173), *range(174, 256)]}
    for b in sorted(set(range(256)) - set(alphabet.values())):   # GPT-2's bytes_to_unicode
        alphabet[chr(256 + len(alphabet) - 188)] = b
    ranks = {bytes(alphabet[c] for c in t): i for t, i in vocab.items() if t != "<|endoftext|>"}
    pattern = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"    # GPT-2's
    other = tiktoken.Encoding("given", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    with open(text_path, encoding="utf-8", newline="") as f:
        articles = re.split(r"(?m)^(?= = [^=].* = $)", f.read())
    bytes_all = sum(len(a.encode()) for a in articles)
    ways = {"tokenizers": lambda a: [e.ids for e in theirs.encode_batch_fast(a, add_special_tokens=False)],
            "tiktoken": lambda a: [other.encode_ordinary(x) for x in a]}
    ids = {}
    for name, way in ways.items():
        speeds = []
        for _ in range(rounds):
            start = time.perf_counter()
            ids[name] = way(articles)
            speeds.append(bytes_all / 1e6 / (time.perf_counter() - start))
        print(f"encoding, MB/s, one thread, {name}: {statistics.median(speeds):.1f}")
    assert ids["tokenizers"] == ids["tiktoken"]


if sys.argv[1] == "--given":
    given(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    sys.exit()
directory, vocab, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
text = open(f"{directory}/train.txt", encoding="utf-8", newline="").read()
lines = text.splitlines(keepends=True)
train_s, encode_mb_s = [], []
for _ in range(rounds):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split("\n", "merged_with_previous"),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False)])
    t.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab, show_progress=False, initial_alphabet=alphabet)
    start = time.perf_counter()
    t.train_from_iterator(lines, trainer)
    train_s.append(time.perf_counter() - start)
    start = time.perf_counter()
    t.encode_batch_fast(lines)
    encode_mb_s.append(len(text.encode()) / 1e6 / (time.perf_counter() - start))
print(f"{statistics.median(train_s):.2f}, {statistics.median(encode_mb_s):.1f}")
