#!/usr/bin/env python3
"""Checks a directory that --export_hf wrote, with Hugging Face transformers, offline.

    python3 dev/check_export.py DIR [WEIGHTS]      needs transformers, tokenizers, torch

DIR loads by AutoModelForCausalLM and AutoTokenizer without a warning; its logits are those of the same model in plain
PyTorch (dev/reference.py for GPT-2, dev/bench_pytorch.py for modern blocks without Llama 3's scaling or NoPE
layers; fp64) within 1e-5 of the largest; AutoTokenizer gives the ids of tokenizer.json used directly, and
decodes them to the text; greedy generation runs; save_pretrained writes the same tensors again.
WEIGHTS: the source of the export, a checkpoint directory or a model.safetensors of the trainer. Without it the plain
GPT-2 uses DIR's own tensors, which checks configuration and layout but not that they are the checkpoint's; other
classes need it.
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

from bench_pytorch import GPT
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


def read_weights(path):
    return read_tensors(os.path.join(path, "model.safetensors") if os.path.isdir(path) else path)


def plain_gpt2(directory, config, weights):
    """A function from ids to logits, and its number of positions."""
    if weights:
        p, metadata = read_weights(weights)
        heads = int(metadata.get("n_head", config["n_head"]))
    else:
        tensors, _ = read_tensors(os.path.join(directory, "model.safetensors"))
        tensors = {name.removeprefix("transformer."): t for name, t in tensors.items()}
        p, heads = {name: t.T if name.endswith(CONV1D) else t for name, t in tensors.items()}, config["n_head"]
    c = dict(n_layer=config["n_layer"], n_head=heads, n_embd=config["n_embd"], tied="lm_head.weight" not in p)
    double = {name: t.double() for name, t in p.items()}
    return (lambda tokens: gpt2_logits(c, double, tokens)), p["wpe.weight"].shape[0]


def plain_family(config, weights):
    """As plain_gpt2, for Llama, Qwen2, Qwen3 and NanoChat. A bias that WEIGHTS lacks is 0."""
    rope, kind = config["rope_parameters"], config["model_type"]
    if not weights or rope["rope_type"] != "default" or 0 in config.get("no_rope_layers", []):
        raise SystemExit(f"{kind}: needs WEIGHTS, and checks neither Llama 3's scaling nor NoPE layers")
    p, _ = read_weights(weights)
    nano = kind == "nanochat"
    c = dict(n_layer=config["num_hidden_layers"], n_head=config["num_attention_heads"], n_embd=config["hidden_size"],
             n_kv_head=config["num_key_value_heads"], head_size=config.get("head_dim"), vocab_size=config["vocab_size"],
             mlp_width=config["intermediate_size"], seq_len=config["max_position_embeddings"], norm="rmsnorm",
             norm_weight=not nano, norm_embedding=nano, rope_theta=rope["rope_theta"], bias=True,
             mlp="relu2" if nano else "swiglu", eps=config["rms_norm_eps"], tied=config["tie_word_embeddings"],
             qk_norm="after" if nano else "before" if kind == "qwen3" else "",
             softcap=config.get("final_logit_softcapping") or 0)
    if not c["head_size"]:
        c["head_size"] = c["n_embd"] // c["n_head"]
    torch.set_default_dtype(torch.float64)               # of the angles, too
    model = GPT(c)
    torch.set_default_dtype(torch.float32)
    renamed = {"attn.c_attn": "c_attn", "attn.c_proj": "attn_proj", "attn.q_norm": "ln_q", "attn.k_norm": "ln_k",
               "mlp.c_fc": "c_fc", "mlp.c_proj": "mlp_proj"}
    state = {name: torch.zeros_like(t) for name, t in model.state_dict().items() if name.endswith("bias")}
    for name, t in p.items():
        for ours, plain in renamed.items():
            name = name.replace(ours, plain)
        state[name] = t.double()
    model.load_state_dict(state)
    return model.logits, c["seq_len"]


def check_logits(report, model, plain, positions):
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, model.config.vocab_size, (2, min(positions, 64)), generator=generator)
    with torch.no_grad():
        got, want = model(tokens).logits, plain(tokens)
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
    with open(os.path.join(a.directory, "config.json")) as f:
        config = json.load(f)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = AutoModelForCausalLM.from_pretrained(a.directory).eval()
        tokenizer = AutoTokenizer.from_pretrained(a.directory)
        report.check([type(model).__name__] == config["architectures"] and len(tokenizer) <= model.config.vocab_size,
                     f"loads as {type(model).__name__}, {model.num_parameters():,} parameters, with "
                     f"{type(tokenizer).__name__} of {len(tokenizer)} tokens")
        plain, positions = (plain_gpt2(a.directory, config, a.weights) if config["model_type"] == "gpt2"
                            else plain_family(config, a.weights))
        check_logits(report, model, plain, positions)
        check_ids(report, tokenizer, a.directory)
        prompt = tokenizer("The", return_tensors="pt")
        length = min(12, positions - prompt.input_ids.shape[1])
        made = model.generate(**prompt, max_new_tokens=length, do_sample=False, pad_token_id=0)
        report.check(made.shape[1] <= positions and made.max() < model.config.vocab_size,
                     f"generates {made.shape[1] - prompt.input_ids.shape[1]} tokens")
        check_saved_again(report, model, a.directory)
    said = complaints.lines + [str(w.message) for w in caught]
    report.check(not said, "no warning" if not said else f"{len(said)} warnings: " + " | ".join(said)[:500])
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
