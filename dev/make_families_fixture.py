#!/usr/bin/env python3
"""Writes dev/fixtures/family_*: small models of transformers' families as save_pretrained writes them, and results.

Usage: make_families_fixture.py [--out DIR]      needs `pip install transformers==5.24.0 torch`

  family_NAME/                     config.json and model.safetensors, or several with their index; random weights, fp32
  family_expected.safetensors      for each: NAME.inputs, NAME.targets (B,T) I32, NAME.loss (1) F32, and
                                   NAME.grad.TENSOR F32 for every tensor of the file

All parameters are random, so no bias of zero or norm of one can hide an error. Sizes are odd where they may be.
"""
import argparse
import os
import shutil

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from transformers import (LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, NanoChatConfig,
                          NanoChatForCausalLM, Olmo2Config, Olmo2ForCausalLM, Qwen2Config,
                          Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM, SmolLM3Config, SmolLM3ForCausalLM)

VOCAB, B, T = 61, 2, 13
COMMON = dict(vocab_size=VOCAB, max_position_embeddings=64, bos_token_id=0, eos_token_id=1, pad_token_id=None,
              use_cache=False)


def size(hidden, inner, layers, heads, kv, **more):
    return dict(COMMON, hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers,
                num_attention_heads=heads, num_key_value_heads=kv, **more)


ROPE3 = dict(rope_type="llama3", rope_theta=500.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
             original_max_position_embeddings=16)
YARN = dict(rope_type="yarn", rope_theta=500.0, factor=4.0, beta_fast=3.0, beta_slow=0.5,
            original_max_position_embeddings=16)
CASES = {
    "llama": (LlamaForCausalLM, LlamaConfig, size(36, 50, 2, 6, 2, tie_word_embeddings=True, rms_norm_eps=1e-5,
                                                  rope_parameters=ROPE3)),
    "llama_bias": (LlamaForCausalLM, LlamaConfig, size(24, 40, 1, 3, 3, tie_word_embeddings=False, attention_bias=True,
                                                       mlp_bias=True)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, size(24, 37, 2, 4, 1, tie_word_embeddings=True)),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, size(20, 33, 2, 4, 2, head_dim=10, tie_word_embeddings=True,
                                                  rope_parameters=dict(rope_type="default", rope_theta=1e6))),
    "smollm3": (SmolLM3ForCausalLM, SmolLM3Config, size(24, 40, 3, 6, 3, no_rope_layers=[1, 0, 1],
                                                        tie_word_embeddings=True)),
    "nanochat": (NanoChatForCausalLM, NanoChatConfig, size(32, 48, 2, 4, 2, final_logit_softcapping=3.0)),
    "mistral": (MistralForCausalLM, MistralConfig, size(20, 33, 2, 3, 1, head_dim=12, tie_word_embeddings=False,
                                                        sliding_window=None, rope_parameters=dict(
                                                            rope_type="linear", rope_theta=500.0, factor=2.5))),
    "llama_yarn": (LlamaForCausalLM, LlamaConfig, size(24, 33, 1, 2, 1, tie_word_embeddings=True,
                                                       rope_parameters=YARN)),
    "qwen3_yarn": (Qwen3ForCausalLM, Qwen3Config, size(16, 24, 1, 2, 1, head_dim=12, tie_word_embeddings=True,
                                                       rope_parameters=dict(YARN, truncate=False, mscale=1.0,
                                                                            mscale_all_dim=0.5))),
    "olmo2": (Olmo2ForCausalLM, Olmo2Config, size(24, 33, 2, 4, 2, tie_word_embeddings=False)),
}


def make(model_class, config_class, fields, seed):
    torch.manual_seed(seed)
    model = model_class(config_class(attn_implementation="eager", **fields)).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            is_norm = "norm" in name and name.endswith("weight")
            p.copy_(torch.randn_like(p) * (0.3 if p.ndim > 1 else 0.2) + (1.0 if is_norm else 0.0))
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixtures"))
    out = parser.parse_args().out
    expected = {}
    for seed, (name, (model_class, config_class, fields)) in enumerate(CASES.items()):
        directory = os.path.join(out, "family_" + name)
        shutil.rmtree(directory, ignore_errors=True)
        model = make(model_class, config_class, fields, seed)
        model.save_pretrained(directory, max_shard_size="12KB" if name == "qwen3" else "5GB")
        generation = os.path.join(directory, "generation_config.json")
        if os.path.exists(generation):
            os.remove(generation)
        ids = np.random.default_rng(seed).integers(0, VOCAB, (B, T + 1))
        inputs, targets = torch.from_numpy(ids[:, :-1].copy()), torch.from_numpy(ids[:, 1:].copy())
        logits = model(inputs).logits.float()
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), targets.reshape(-1))
        loss.backward()
        assert 1 < loss < 20 and logits.std() > 0.3, (name, float(loss), float(logits.std()))
        expected[name + ".inputs"] = inputs.to(torch.int32)
        expected[name + ".targets"] = targets.to(torch.int32)
        expected[name + ".loss"] = loss.detach().reshape(1)
        for tensor, p in model.named_parameters():
            expected[name + ".grad." + tensor] = p.grad.contiguous()
        print(f"{name}: {sum(p.numel() for p in model.parameters())} parameters, loss {float(loss):.6f}")
    save_file(expected, os.path.join(out, "family_expected.safetensors"))
    print(f"{out}/family_*: transformers {transformers.__version__}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
