#!/usr/bin/env python3
"""Checks a file of --export_gguf with llama.cpp itself, beside the --export_hf directory of the same weights.

    python3 dev/check_gguf.py model.gguf DIR [adapter.gguf ADAPTER]
                                 needs llama-cpp-python, transformers, tokenizers, torch; for ADAPTER, PEFT's form, peft

The package is built from PyPI's sdist: `pip install --no-binary llama-cpp-python llama-cpp-python` (cmake, a compiler).
llama.cpp opens the file; its ids of hostile texts are those of DIR's tokenizer.json; its logits of 32 tokens are those
of transformers in fp32 within BOUND of the largest, by the file's type; with adapter.gguf those of PEFT with ADAPTER.
Prints a line for each check; exit status 1 if one failed.
"""
import os
import sys
import unicodedata

os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
import numpy as np
import tokenizers
import torch
from gguf import GGUFReader
from llama_cpp import Llama
from transformers import AutoModelForCausalLM

from check_export import TEXTS

# Attention's k and v are told to be fp32; Q8_0 rounds activations to 8 bits, too, bf16 and fp16 to theirs.
BOUND = {0: 1e-4, 1: 4e-3, 32: 2e-2, 7: 3e-2}
# ggml looks GELU up in a table of fp16 by fp16 (GGML_GELU_FP16 in ggml-cpu/vec.h): x and its GELU are each rounded by
# up to 2^-11, together 2^-10 = 9.8e-4, in fp32 files too.
BOUND_GELU = 1e-3
MORE_TEXTS = ["a  \n\n  b\n\n\nc\n    d\n \n e", "x\n", "\n\n", " \n \n = Title = \n \n Text .\n", "12 345 6789",
              "it'S"]


def main():
    path, directory = sys.argv[1:3]
    adapter, peft_directory = sys.argv[3:5] if len(sys.argv) > 3 else (None, None)
    fields = GGUFReader(path).fields
    kind = int(fields["general.file_type"].contents())
    model = AutoModelForCausalLM.from_pretrained(directory).eval()
    llama = Llama(path, n_ctx=64, logits_all=True, verbose=False, n_threads=2, flash_attn=False, lora_path=adapter,
                  type_k=0, type_v=0)
    if adapter:
        from peft import PeftModel
        model = PeftModel.from_pretrained(model, peft_directory).eval()
    failed = 0

    def check(ok, what):
        nonlocal failed
        failed += not ok
        print(("ok      " if ok else "FAILED  ") + what)
    architecture = fields["general.architecture"].contents()
    check(llama.n_vocab() == model.config.vocab_size, f"opens: {architecture}, file type {kind}")
    if os.path.exists(os.path.join(directory, "tokenizer.json")):
        direct = tokenizers.Tokenizer.from_file(os.path.join(directory, "tokenizer.json"))
        texts = TEXTS + MORE_TEXTS
        if direct.normalizer:                    # llama.cpp has none
            texts = [t for t in texts if unicodedata.is_normalized("NFC", t)]
        other = [t for t in texts if llama.tokenize(t.encode(), add_bos=False, special=True) !=
                 direct.encode(t, add_special_tokens=False).ids]
        check(not other, f"ids of {len(texts)} texts" + (f", not of {other}" if other else ""))
    ids = torch.randint(0, model.config.vocab_size, (1, 32), generator=torch.Generator().manual_seed(1))
    llama.reset()
    llama.eval(ids[0].tolist())
    got = np.array(llama.scores[:32])
    want = model(ids).logits[0].detach().numpy()
    error = np.abs(got - want).max() / np.abs(want).max()
    bound = max(BOUND[kind], BOUND_GELU if architecture == "gpt2" else 0)
    check(error <= bound, f"logits off by {error:.1e} of the largest, bound {bound:.0e}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
