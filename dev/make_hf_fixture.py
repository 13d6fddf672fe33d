#!/usr/bin/env python3
"""Writes dev/fixtures/hf_*: GPT-2 directories as Hugging Face transformers saves them, and its results with them.

Usage: make_hf_fixture.py [--out DIR]      needs `pip install transformers==5.23.0 tokenizers==0.23.3 torch`

  hf_tiny/         GPT2LMHeadModel.save_pretrained, tied head, fp32, with vocab.json and merges.txt
  hf_untied/       the same with an untied head, other shapes, with tokenizer.json and tokenizer_config.json
  hf_published/    as the published GPT-2 files: names without "transformer.", causal masks stored with the weights,
                   a config.json without tie_word_embeddings; the weights in bf16
  hf_expected.safetensors   for each: NAME.tokens (T) I32, NAME.logits (T,V) F32 of GPT2LMHeadModel in fp32
  hf_text.txt, hf_text.i32  a text, and its ids from the tokenizer (the same in all three)

Random weights from a fixed seed, all parameters random, so no bias of zero or norm of one can hide an error.
"""
import argparse
import json
import os
import shutil

import numpy as np
import tokenizers
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel

VOCAB = 300
END = "<|endoftext|>"
CORPUS = ("The queue at the bakery moved slowly. Nobody minded: the bread was worth it, and the baker's jokes weren't "
          "bad either.\nIn 1987 she'd counted 23 loaves; by 2004 there were 310 a day, and they're still sold out at "
          "nine.\n\n\tRain, rain and more rain fell on the harbour   while the ferries waited for the tide.\n")
TEXT = (CORPUS + "Zoë paid 4,50 € for two \u6771\u4eac rolls \U0001f950!\n" + END +
        "\nThe tide 's turning...  wasn't it?\n")

SHAPES = {"tiny": dict(n_layer=2, n_head=2, n_embd=32, n_positions=24),
          "untied": dict(n_layer=1, n_head=4, n_embd=16, n_positions=20),
          "published": dict(n_layer=2, n_head=2, n_embd=16, n_positions=24)}


def make_tokenizer():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.post_processor = None
    trainer = trainers.BpeTrainer(vocab_size=VOCAB - 1, min_frequency=0, show_progress=False, special_tokens=[],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    t.train_from_iterator([CORPUS], trainer)
    t.add_special_tokens([AddedToken(END, normalized=False, special=True)])
    assert t.get_vocab_size() == VOCAB and t.token_to_id(END) == VOCAB - 1
    return t


def save_pair(t, directory):
    """vocab.json and merges.txt, with the special token in the vocabulary, as in the published ones."""
    t.model.save(directory)
    path = os.path.join(directory, "vocab.json")
    with open(path) as f:
        vocab = json.load(f)
    vocab[END] = VOCAB - 1
    with open(path, "w") as f:
        json.dump(vocab, f, ensure_ascii=True, separators=(",", ":"))


def make_model(shape, tied, seed):
    torch.manual_seed(seed)
    config = GPT2Config(vocab_size=VOCAB, tie_word_embeddings=tied, bos_token_id=VOCAB - 1, eos_token_id=VOCAB - 1,
                        resid_pdrop=0.05, embd_pdrop=0.05, attn_pdrop=0.05, **shape)
    model = GPT2LMHeadModel(config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            is_norm = ".ln_" in name and name.endswith("weight")
            p.copy_(torch.randn_like(p) * (0.4 if p.ndim > 1 else 0.2) + (1.0 if is_norm else 0.0))
    return model.eval()


def tokens_of(shape, seed):
    return torch.from_numpy(np.random.default_rng(seed).integers(0, VOCAB, shape["n_positions"] // 2).astype(np.int32))


def save_published(model, directory):
    """bf16 weights under the published names, with the masks that old versions kept: fp32, and later boolean."""
    c = model.config
    tensors = {}
    for name, p in model.transformer.named_parameters():
        p.data = p.data.bfloat16().float()
        tensors[name] = p.data.bfloat16()
    mask = torch.ones(c.n_positions, c.n_positions).tril()[None, None]
    tensors["h.0.attn.bias"], tensors["h.1.attn.bias"] = mask, mask.bool()
    tensors["h.1.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(tensors, os.path.join(directory, "model.safetensors"), metadata={"format": "pt"})
    config = dict(activation_function="gelu_new", architectures=["GPT2LMHeadModel"], attn_pdrop=0.1,
                  bos_token_id=VOCAB - 1, embd_pdrop=0.1, eos_token_id=VOCAB - 1, initializer_range=0.02,
                  layer_norm_epsilon=1e-05, model_type="gpt2", n_ctx=c.n_positions, n_embd=c.n_embd, n_head=c.n_head,
                  n_layer=c.n_layer, n_positions=c.n_positions, resid_pdrop=0.1, summary_activation=None,
                  summary_first_dropout=0.1, summary_proj_to_labels=True, summary_type="cls_index",
                  summary_use_proj=True, vocab_size=VOCAB,
                  task_specific_params={"text-generation": {"do_sample": True, "max_length": 50}})
    with open(os.path.join(directory, "config.json"), "w") as f:
        json.dump(config, f, indent=2)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixtures"))
    out = parser.parse_args().out
    tokenizer, expected = make_tokenizer(), {}
    for seed, (name, shape) in enumerate(SHAPES.items()):
        directory = os.path.join(out, "hf_" + name)
        shutil.rmtree(directory, ignore_errors=True)
        os.makedirs(directory)
        model = make_model(shape, name != "untied", seed)
        if name == "published":
            save_published(model, directory)
            save_pair(tokenizer, directory)
        else:
            model.save_pretrained(directory)
        if name == "tiny":
            save_pair(tokenizer, directory)
        if name == "untied":
            tokenizer.save(os.path.join(directory, "tokenizer.json"))
            with open(os.path.join(directory, "tokenizer_config.json"), "w") as f:
                json.dump(dict(tokenizer_class="GPT2Tokenizer", bos_token=END, eos_token=END, unk_token=END,
                               add_prefix_space=False, model_max_length=shape["n_positions"]), f, indent=2)
        tokens = tokens_of(shape, seed)
        with torch.no_grad():
            logits = model(tokens[None].long()).logits[0]
        assert 1 < logits.std() < 100, logits.std()
        expected[name + ".tokens"], expected[name + ".logits"] = tokens, logits.float().contiguous()
    save_file(expected, os.path.join(out, "hf_expected.safetensors"))
    with open(os.path.join(out, "hf_text.txt"), "w", encoding="utf-8") as f:
        f.write(TEXT)
    np.array(tokenizer.encode(TEXT).ids, dtype="<i4").tofile(os.path.join(out, "hf_text.i32"))
    print(f"{out}/hf_*: tokenizers {tokenizers.__version__}, {len(expected) // 2} models")


if __name__ == "__main__":
    main()
