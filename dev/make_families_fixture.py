#!/usr/bin/env python3
"""Writes dev/fixtures/family_*: small models of transformers' families as save_pretrained writes them, and results.

Usage: make_families_fixture.py [--out DIR]      needs `pip install transformers==5.24.0 torch`

  family_NAME/                     config.json and model.safetensors, or several with their index; random weights, fp32
  family_expected.safetensors      for each: NAME.inputs, NAME.targets (B,T) I32, NAME.loss (1) F32, and
                                   NAME.grad.TENSOR F32 for every tensor of the file

All parameters are random, so no bias of zero or norm of one can hide an error. Sizes are odd where they may be.
"""
import argparse
import json
import os
import shutil

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import (Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM, Ministral3Config,
                          Ministral3ForCausalLM, MistralConfig, MistralForCausalLM, NanoChatConfig,
                          NanoChatForCausalLM, Olmo2Config, Olmo2ForCausalLM, Olmo3Config, Olmo3ForCausalLM,
                          Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM, SmolLM3Config,
                          SmolLM3ForCausalLM)

VOCAB, B, T = 61, 2, 13
COMMON = dict(vocab_size=VOCAB, max_position_embeddings=64, bos_token_id=0, eos_token_id=1, pad_token_id=None,
              use_cache=False)


def size(hidden, inner, layers, heads, kv, **more):
    return dict(COMMON, hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers,
                num_attention_heads=heads, num_key_value_heads=kv, **more)


ROPE3 = dict(rope_type="llama3", rope_theta=500.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
             original_max_position_embeddings=16)
USUAL_YARN = dict(rope_type="yarn", rope_theta=500.0, factor=4.0, original_max_position_embeddings=16)
YARN = dict(USUAL_YARN, beta_fast=3.0, beta_slow=0.5)
WINDOW, FULL = "sliding_attention", "full_attention"
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
                                                       rope_parameters=USUAL_YARN)),
    "qwen3_yarn": (Qwen3ForCausalLM, Qwen3Config, size(16, 24, 1, 2, 1, head_dim=12, tie_word_embeddings=True,
                                                       rope_parameters=dict(YARN, truncate=False, mscale=1.0,
                                                                            mscale_all_dim=0.5))),
    "olmo2": (Olmo2ForCausalLM, Olmo2Config, size(24, 33, 2, 4, 2, tie_word_embeddings=False)),
    "mistral_window": (MistralForCausalLM, MistralConfig, size(18, 25, 1, 3, 1, head_dim=8, tie_word_embeddings=True,
                                                               sliding_window=5)),
    "qwen2_window": (Qwen2ForCausalLM, Qwen2Config, size(16, 25, 3, 2, 1, tie_word_embeddings=True,
                                                         use_sliding_window=True, sliding_window=4,
                                                         layer_types=[WINDOW, FULL, WINDOW])),
    "olmo3": (Olmo3ForCausalLM, Olmo3Config, size(
        16, 20, 4, 2, 1, tie_word_embeddings=False, sliding_window=5, rope_parameters=dict(
            full_attention=USUAL_YARN, sliding_attention=dict(rope_type="default", rope_theta=500.0)))),
    "gemma3_text": (Gemma3ForCausalLM, Gemma3TextConfig, size(16, 20, 7, 2, 1, head_dim=8, query_pre_attn_scalar=8,
                                                              sliding_window=5)),
    "gemma3_text_scaled": (Gemma3ForCausalLM, Gemma3TextConfig, size(
        20, 28, 2, 2, 2, head_dim=6, query_pre_attn_scalar=9, sliding_window=3, layer_types=[WINDOW, FULL],
        final_logit_softcapping=4.0, rope_parameters=dict(
            full_attention=dict(rope_type="linear", factor=8.0, rope_theta=900.0),
            sliding_attention=dict(rope_type="default", rope_theta=30.0)))),
    "ministral3": (Ministral3ForCausalLM, Ministral3Config, size(
        20, 28, 1, 2, 1, head_dim=12, tie_word_embeddings=False, rope_parameters=dict(
            YARN, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.1))),
}


def make(model_class, config_class, fields, seed):
    torch.manual_seed(seed)
    model = model_class(config_class(attn_implementation="eager", **fields)).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            is_norm = "norm" in name and name.endswith("weight")
            one = 1.0 if is_norm and "Gemma" not in model_class.__name__ else 0.0       # theirs multiply by 1 + weight
            p.copy_(torch.randn_like(p) * (0.3 if p.ndim > 1 else 0.2) + one)
    return model


def wrap(out, name, model_type):
    """The text model inside one with images, as the hub has it: family_NAME_images."""
    source, target = (os.path.join(out, "family_" + name + end) for end in ("", "_images"))
    shutil.rmtree(target, ignore_errors=True)
    os.makedirs(target)
    with open(os.path.join(source, "config.json")) as f:
        text = json.load(f)
    with open(os.path.join(target, "config.json"), "w") as f:
        json.dump(dict(model_type=model_type, tie_word_embeddings=text.pop("tie_word_embeddings"), text_config=text,
                       vision_config=dict(model_type="pixtral")), f, indent=2)
    tensors = {"language_model." + k: t for k, t in load_file(os.path.join(source, "model.safetensors")).items()}
    save_file(tensors | {"vision_tower.ln_pre.weight": torch.ones(3)}, os.path.join(target, "model.safetensors"),
              metadata={"format": "pt"})


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
    wrap(out, "ministral3", "mistral3")
    save_file(expected, os.path.join(out, "family_expected.safetensors"))
    print(f"{out}/family_*: transformers {transformers.__version__}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
