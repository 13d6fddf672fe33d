#!/usr/bin/env python3
"""Checks a directory that --export_hf wrote, with Hugging Face transformers, offline.

    python3 dev/check_export.py DIR [WEIGHTS]      needs transformers, tokenizers, torch

DIR loads by AutoModelForCausalLM and AutoTokenizer without a warning; its logits are those of a GPT-2 in plain PyTorch
(dev/reference.py, fp64) within 1e-5 of the largest; AutoTokenizer gives the ids of tokenizer.json used directly, and
decodes them to the text; greedy generation runs; save_pretrained writes the same tensors again.
WEIGHTS: the source of the export, a checkpoint directory or a model.safetensors of the trainer. Without it the plain
model uses DIR's own tensors, which checks configuration and layout but not that they are the checkpoint's.
Prints a line for each check; exit status 1 if one failed.
"""
import argparse
import json
import logging
import os
import sys
import tempfile
import warnings

os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
import tokenizers
import torch
import transformers
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from reference import gpt2_logits

BOUND = 1e-5
CONV1D = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
TEXTS = ["The old harbour , rebuilt in 1987 , isn 't open .\n", " = A heading = \n \n Two lines\n", "", " ", "\n\n\n",
         "tabs\tand  spaces   and\u00a0others\r\n", "Za\u017c\u00f3\u0142\u0107 \u6771\u4eac \U0001f950 e\u0301",
         "don't DON'T we'll '''s 3.14 -2e10", "x" * 300, "".join(chr(c) for c in range(1, 256))]


class Report:
    def __init__(self):
        self.failed = 0

    def check(self, ok, what):
        self.failed += not ok
        print(("ok      " if ok else "FAILED  ") + what)


class Complaints(logging.Handler):
    """Everything that transformers logs at level warning or above."""
    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage().strip())


def read_tensors(path):
    with safe_open(path, framework="pt") as f:
        return {name: f.get_tensor(name) for name in f.keys()}, f.metadata() or {}


def plain_weights(directory, weights):
    """Parameters under the trainer's names, (out,in), and the number of heads, from WEIGHTS or from the export."""
    with open(os.path.join(directory, "config.json")) as f:
        heads = json.load(f)["n_head"]
    if weights:
        path = os.path.join(weights, "model.safetensors") if os.path.isdir(weights) else weights
        tensors, metadata = read_tensors(path)
        return tensors, int(metadata.get("n_head", heads))
    tensors, _ = read_tensors(os.path.join(directory, "model.safetensors"))
    tensors = {name.removeprefix("transformer."): t for name, t in tensors.items()}
    return {name: t.T if name.endswith(CONV1D) else t for name, t in tensors.items()}, heads


def check_logits(report, model, p, heads):
    C, V, P = p["wte.weight"].shape[1], p["wte.weight"].shape[0], p["wpe.weight"].shape[0]
    layers = len([name for name in p if name.endswith(".ln_1.weight")])
    config = dict(n_layer=layers, n_head=heads, n_embd=C, tied="lm_head.weight" not in p)
    tokens = torch.randint(0, V, (2, min(P, 64)), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        got = model(tokens).logits
        want = gpt2_logits(config, {name: t.double() for name, t in p.items()}, tokens)
    error = ((got - want).abs().max() / want.abs().max()).item()
    report.check(got.dtype == torch.float32 and got.shape == want.shape and error <= BOUND,
                 f"logits {tuple(got.shape)} {got.dtype}: off by {error:.1e} of the largest, bound {BOUND:.0e}")


def check_ids(report, tokenizer, directory):
    direct = tokenizers.Tokenizer.from_file(os.path.join(directory, "tokenizer.json"))
    texts = TEXTS + ["".join(TEXTS)]
    other = [i for i, text in enumerate(texts) if tokenizer(text, verbose=False).input_ids != direct.encode(text).ids]
    report.check(not other, f"ids of {len(texts)} texts are tokenizer.json's" + (f", not {other}" if other else ""))
    lossy = [i for i, text in enumerate(texts) if tokenizer.decode(direct.encode(text).ids) != text]
    report.check(not lossy, "the texts come back from their ids" + (f", not {lossy}" if lossy else ""))


def check_saved_again(report, model, directory):
    before, metadata = read_tensors(os.path.join(directory, "model.safetensors"))
    with tempfile.TemporaryDirectory() as again:
        model.save_pretrained(again)
        after, _ = read_tensors(os.path.join(again, "model.safetensors"))
        with open(os.path.join(directory, "model.safetensors"), "rb") as a, \
             open(os.path.join(again, "model.safetensors"), "rb") as b:
            same_bytes = a.read() == b.read()
    same = before.keys() == after.keys() and all(torch.equal(before[n], after[n]) for n in before)
    report.check(same and metadata.get("format") == "pt",
                 f"save_pretrained writes the same {len(before)} tensors" + (", the same file" if same_bytes else ""))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", metavar="DIR")
    parser.add_argument("weights", metavar="WEIGHTS", nargs="?")
    a = parser.parse_args()
    report, complaints = Report(), Complaints()
    transformers.utils.logging.disable_progress_bar()
    logging.getLogger("transformers").addHandler(complaints)
    print(f"{a.directory}: transformers {transformers.__version__}, tokenizers {tokenizers.__version__}, "
          f"torch {torch.__version__}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = AutoModelForCausalLM.from_pretrained(a.directory).eval()
        tokenizer = AutoTokenizer.from_pretrained(a.directory)
        report.check(type(model).__name__ == "GPT2LMHeadModel" and len(tokenizer) <= model.config.vocab_size,
                     f"loads as {type(model).__name__}, {model.num_parameters():,} parameters, with "
                     f"{type(tokenizer).__name__} of {len(tokenizer)} tokens")
        p, heads = plain_weights(a.directory, a.weights)
        check_logits(report, model, p, heads)
        check_ids(report, tokenizer, a.directory)
        prompt = tokenizer("The", return_tensors="pt")
        length = min(12, model.config.n_positions - prompt.input_ids.shape[1])
        made = model.generate(**prompt, max_new_tokens=length, do_sample=False, pad_token_id=0)
        report.check(made.shape[1] <= model.config.n_positions and made.max() < model.config.vocab_size,
                     f"generates {made.shape[1] - prompt.input_ids.shape[1]} tokens")
        check_saved_again(report, model, a.directory)
    said = complaints.lines + [str(w.message) for w in caught]
    report.check(not said, "no warning" if not said else f"{len(said)} warnings: " + " | ".join(said)[:500])
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
