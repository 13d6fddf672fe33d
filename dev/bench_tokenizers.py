#!/usr/bin/env python3
"""Hugging Face tokenizers on the same text: python3 dev/bench_tokenizers.py DIR VOCAB ROUNDS
prints the medians: seconds to train a byte-level BPE by line on DIR/train.txt, and MB/s to encode its lines."""

import statistics
import sys
import time

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

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
