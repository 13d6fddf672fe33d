#!/usr/bin/env python3
"""Writes dev/fixtures/nf4_*: a small Llama in bitsandbytes' NF4, as save_pretrained writes it, and what it says.

    python3 dev/make_nf4_fixture.py [DIRECTORY]      needs bitsandbytes==0.50.2, torch, safetensors, numpy

  nf4_plain, nf4_nested     config.json and model.safetensors; scales in fp32, or quantized themselves
  nf4_expected.json         for each tensor the hash (make_tokenizer_fixture.py) of the bits, in fp32, of what
                            bitsandbytes' dequantize_4bit makes of it; of others of their numbers in fp32

Rows of 300 numbers are no whole blocks of 64, so shards and rows start inside blocks; the largest matrices have more
blocks than share a second scale.
"""
import json
import os
import sys

import bitsandbytes.functional as F
import numpy as np
import torch
from safetensors.torch import save_file

OUT = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixtures")
C, INNER, HEADS, KV, VOCAB = 64, 300, 2, 1, 40
SIZES = {"self_attn.q_proj": (C, C), "self_attn.k_proj": (C // 2, C), "self_attn.v_proj": (C // 2, C),
         "self_attn.o_proj": (C, C), "mlp.gate_proj": (INNER, C), "mlp.up_proj": (INNER, C),
         "mlp.down_proj": (C, INNER)}


def fold(values):
    h = 0xcbf29ce484222325
    for x in values:
        h = (h ^ int(x)) * 0x100000001b3 & 0xffffffffffffffff
    return str(h)


def bits(t):
    return fold(t.detach().float().contiguous().numpy().view(np.uint32).ravel())


def main():
    expected = {}
    for name, nested in (("nf4_plain", False), ("nf4_nested", True)):
        torch.manual_seed(5)
        t = {"model.embed_tokens.weight": torch.randn(VOCAB, C).bfloat16(),
             "model.norm.weight": torch.randn(C).bfloat16(),
             "model.layers.0.input_layernorm.weight": torch.randn(C).bfloat16(),
             "model.layers.0.post_attention_layernorm.weight": torch.randn(C).bfloat16()}
        want = {key: bits(x) for key, x in t.items()}
        for key, size in SIZES.items():
            key = f"model.layers.0.{key}.weight"
            w = torch.randn(size) * torch.rand(size[0], 1)
            w[0, :3] = torch.tensor([0.0, -1e-30, 4.0])
            q, state = F.quantize_4bit(w, blocksize=64, compress_statistics=nested, quant_type="nf4")
            want[key] = bits(F.dequantize_4bit(q, state))
            t[key] = q
            for end, x in state.as_dict(packed=True).items():
                t[f"{key}.{end}"] = x
        os.makedirs(os.path.join(OUT, name), exist_ok=True)
        save_file(t, os.path.join(OUT, name, "model.safetensors"), {"format": "pt"})
        config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCAB, "hidden_size": C,
                  "intermediate_size": INNER, "num_hidden_layers": 1, "num_attention_heads": HEADS,
                  "num_key_value_heads": KV, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
                  "tie_word_embeddings": True, "torch_dtype": "bfloat16",
                  "quantization_config": {"load_in_4bit": True, "load_in_8bit": False, "quant_method": "bitsandbytes",
                                          "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": nested,
                                          "bnb_4bit_compute_dtype": "bfloat16", "bnb_4bit_quant_storage": "uint8",
                                          "llm_int8_skip_modules": None}}
        with open(os.path.join(OUT, name, "config.json"), "w", encoding="utf-8") as f:
            json.dump(config, f, indent=2)
        expected[name] = want
    with open(os.path.join(OUT, "nf4_expected.json"), "w", encoding="utf-8") as f:
        json.dump(expected, f, indent=1)


main()
