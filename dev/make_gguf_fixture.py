#!/usr/bin/env python3
"""Fixtures of --export_gguf: GGUF files by llama.cpp's own package from Hugging Face directories of dev/fixtures.
And of --init_from FILE.gguf: blocks of each type, what that package says they are, and these numbers rounded.

    python3 dev/make_gguf_fixture.py [DIRECTORY]      needs gguf, safetensors, numpy; writes gguf_* (dev/fixtures)

Names, rows of q and k of architecture llama, types of tensors and keys are those of llama.cpp's conversion/ (read in
llama-cpp-python 0.3.36, vendor/llama.cpp); bytes of Q8_0 are gguf.quants'. Order of keys and tensors is the exporter's,
so that the test may compare whole files.
"""
import json
import os
import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from safetensors.numpy import load_file, save_file

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixtures")
FILES = {"hf_tiny": ("gpt2", "q8_0"), "family_llama": ("llama", "f16"), "family_qwen2": ("qwen2", "bf16"),
         "family_qwen3": ("qwen3", "f32")}
TYPES = {"f32": (Type.F32, 0), "f16": (Type.F16, 1), "q8_0": (Type.Q8_0, 7), "bf16": (Type.BF16, 32)}


def load(directory):
    tensors = {}
    for name in sorted(os.listdir(directory)):
        if name.endswith(".safetensors"):
            tensors |= load_file(os.path.join(directory, name))
    return {name: t.astype(np.float32) for name, t in tensors.items()}


def pairs(w, heads):
    """Rows of a head: halves become pairs."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def gpt2_tensors(c, t):
    yield "token_embd.weight", t["transformer.wte.weight"]
    yield "position_embd.weight", t["transformer.wpe.weight"]
    yield "output_norm.weight", t["transformer.ln_f.weight"]
    yield "output_norm.bias", t["transformer.ln_f.bias"]
    for i in range(c["n_layer"]):
        for theirs, ours in (("ln_1", "attn_norm"), ("attn.c_attn", "attn_qkv"), ("attn.c_proj", "attn_output"),
                             ("ln_2", "ffn_norm"), ("mlp.c_fc", "ffn_up"), ("mlp.c_proj", "ffn_down")):
            for kind in ("weight", "bias"):
                x = t[f"transformer.h.{i}.{theirs}.{kind}"]
                yield f"blk.{i}.{ours}.{kind}", np.ascontiguousarray(x.T) if x.ndim == 2 else x


def family_tensors(c, t, arch):
    yield "token_embd.weight", t["model.embed_tokens.weight"]
    yield "output_norm.weight", t["model.norm.weight"]
    if not c["tie_word_embeddings"]:
        yield "output.weight", t["lm_head.weight"]
    for i in range(c["num_hidden_layers"]):
        def of(theirs, ours, kind="weight"):
            x = t.get(f"model.layers.{i}.{theirs}.{kind}")
            heads = {"attn_q": c["num_attention_heads"], "attn_k": c["num_key_value_heads"]}.get(ours)
            if x is not None:
                yield f"blk.{i}.{ours}.{kind}", pairs(x, heads) if arch == "llama" and heads else x
        yield from of("input_layernorm", "attn_norm")
        for kind in ("weight", "bias"):
            for part in "qkv":
                yield from of(f"self_attn.{part}_proj", f"attn_{part}", kind)
        yield from of("self_attn.q_norm", "attn_q_norm")
        yield from of("self_attn.k_norm", "attn_k_norm")
        yield from of("self_attn.o_proj", "attn_output")
        yield from of("post_attention_layernorm", "ffn_norm")
        yield from of("mlp.gate_proj", "ffn_gate")
        yield from of("mlp.up_proj", "ffn_up")
        yield from of("mlp.down_proj", "ffn_down")


def rope_factors(c):
    """By the formula of transformers' rope_type llama3; a divisor of each frequency."""
    rope, size = c.get("rope_parameters", {}), c.get("head_dim")
    if rope.get("rope_type") != "llama3":
        return None
    low, high, factor, original = (rope[k] for k in ("low_freq_factor", "high_freq_factor", "factor",
                                                     "original_max_position_embeddings"))
    out = []
    for i in range(size // 2):
        wave = 2 * np.pi * rope["rope_theta"] ** (2 * i / size)
        smooth = (original / wave - low) / (high - low)
        out.append(1 if wave < original / high else factor if wave > original / low else
                   1 / ((1 - smooth) / factor + smooth))
    return np.array(out, np.float32)


def keys(w, c, arch, file_type, directory):
    gpt2 = arch == "gpt2"
    w.add_type("model")
    w.add_file_type(file_type)
    w.add_quantization_version(2)
    w.add_vocab_size(c["vocab_size"])
    w.add_block_count(c["n_layer" if gpt2 else "num_hidden_layers"])
    w.add_context_length(c["n_positions" if gpt2 else "max_position_embeddings"])
    w.add_embedding_length(c["n_embd" if gpt2 else "hidden_size"])
    w.add_feed_forward_length(4 * c["n_embd"] if gpt2 else c["intermediate_size"])
    w.add_head_count(c["n_head" if gpt2 else "num_attention_heads"])
    if gpt2:
        w.add_layer_norm_eps(c["layer_norm_epsilon"])
        vocab = json.load(open(os.path.join(directory, "vocab.json")))
        merges = open(os.path.join(directory, "merges.txt")).read().split("\n")
        end = vocab["<|endoftext|>"]
        w.add_tokenizer_model("gpt2")
        w.add_tokenizer_pre("gpt-2")
        w.add_token_list(sorted(vocab, key=vocab.get))
        w.add_token_types([3 if i == end else 1 for i in range(len(vocab))])
        w.add_token_merges([m for m in merges if m and not m.startswith("#version")])
        w.add_bos_token_id(end)
        w.add_eos_token_id(end)
        w.add_add_bos_token(False)
        return
    size = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_key_length(size)
    w.add_value_length(size)
    w.add_rope_freq_base(c["rope_parameters"]["rope_theta"])
    if arch == "llama":
        w.add_rope_dimension_count(size)
    w.add_tokenizer_model("none")


MODULES = [("q_proj", "attn_q"), ("k_proj", "attn_k"), ("v_proj", "attn_v"), ("o_proj", "attn_output"),
           ("gate_proj", "ffn_gate"), ("up_proj", "ffn_up"), ("down_proj", "ffn_down"), ("attn.c_attn", "attn_qkv"),
           ("attn.c_proj", "attn_output"), ("mlp.c_fc", "ffn_up"), ("mlp.c_proj", "ffn_down")]
TOGETHER = ["attn_q attn_k attn_v attn_qkv", "attn_output", "ffn_gate ffn_up", "ffn_down"]   # A of all, then B of all


def adapter(w, c, t, arch, alpha):
    """PEFT's tensors by llama.cpp's names (its convert_lora_to_gguf.py)."""
    w.add_type("adapter")
    w.add_file_type(1)
    w.add_quantization_version(2)
    w.add_string("adapter.type", "lora")
    w.add_float32("adapter.lora.alpha", alpha)
    heads = {"attn_q": c.get("num_attention_heads"), "attn_k": c.get("num_key_value_heads")}
    for i in range(c.get("num_hidden_layers") or c["n_layer"]):
        for group in TOGETHER:
            for factor in "AB":
                for theirs, ours in MODULES:
                    found = [x for n, x in t.items() if f".{i}." in n and f"{theirs}.lora_{factor}.weight" in n]
                    if ours not in group.split() or not found:
                        continue
                    x = found[0]
                    if arch == "llama" and factor == "B" and ours in heads:
                        x = pairs(x, heads[ours])
                    w.add_tensor(f"blk.{i}.{ours}.weight.lora_{factor.lower()}", x.astype(np.float16))


HOSTILE = [0x7c00, 0xfc00, 0x7e00, 0x0001, 0x8001, 0x03ff, 0x7bff, 0x0000, 0x8000]    # fp16: infinite, NaN, tiny, large
# Of a block: its type, how many, and the bytes where a scale or a least value in fp16 starts.
BLOCKS = [(Type.Q4_0, 24, [0]), (Type.Q4_1, 24, [0, 2]), (Type.Q5_0, 24, [0]), (Type.Q5_1, 24, [0, 2]),
          (Type.Q8_0, 24, [0]), (Type.Q4_K, 12, [0, 2]), (Type.Q5_K, 12, [0, 2]), (Type.Q6_K, 12, [208]),
          (Type.MXFP4, 24, [])]


def blocks(to):
    """NAME.blocks of random bytes, the last ones with hostile scales; NAME.values; these as bits of bf16 and fp16."""
    rng, tensors = np.random.default_rng(5), {}
    for kind, count, scales in BLOCKS:
        x = rng.integers(0, 256, (count, gguf.constants.GGML_QUANT_SIZES[kind][1]), np.uint8)
        for at in scales:
            x[:, at:at + 2] = rng.normal(0, 0.02, count).astype(np.float16).view(np.uint8).reshape(count, 2)
            hostile = np.array(HOSTILE, np.uint16).view(np.uint8).reshape(-1, 2)
            x[count - len(hostile):, at:at + 2] = np.roll(hostile, at, 0)
        if kind == Type.MXFP4:
            x[:, 0] = [0, 1, 2, 3, 254, 255] + list(range(110, 110 + count - 6))
        with np.errstate(all="ignore"):
            y = gguf.quants.dequantize(x, kind).astype(np.float32).reshape(-1)
            tensors |= {f"{kind.name}.blocks": x.reshape(-1), f"{kind.name}.values": y,
                        f"{kind.name}.f16": y.astype(np.float16).view(np.uint16),
                        f"{kind.name}.bf16": gguf.quants.quantize(y, Type.BF16).view(np.uint16)}
    save_file(tensors, os.path.join(to, "gguf_blocks.safetensors"))


def close(w):
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main():
    to = sys.argv[1] if len(sys.argv) > 1 else HERE
    blocks(to)
    for name, (arch, kind) in FILES.items():
        directory = os.path.join(HERE, name)
        c, t, (dtype, file_type) = json.load(open(os.path.join(directory, "config.json"))), load(directory), TYPES[kind]
        w = gguf.GGUFWriter(os.path.join(to, f"gguf_{arch}.gguf"), arch)
        keys(w, c, arch, file_type, directory)
        factors = rope_factors(c)
        if factors is not None:
            w.add_tensor("rope_freqs.weight", factors)
        for tensor, x in gpt2_tensors(c, t) if arch == "gpt2" else family_tensors(c, t, arch):
            whole = x.ndim == 1 or tensor == "position_embd.weight"
            own = Type.F32 if whole else Type.F16 if dtype == Type.Q8_0 and x.shape[1] % 32 else dtype
            w.add_tensor(tensor, gguf.quants.quantize(x, own), raw_dtype=own)
        close(w)
        lora = os.path.join(HERE, "lora_" + arch)
        if os.path.isdir(lora):
            w = gguf.GGUFWriter(os.path.join(to, f"gguf_lora_{arch}.gguf"), arch)
            base = c if arch != "gpt2" else json.load(open(os.path.join(HERE, "hf_untied", "config.json")))
            adapter(w, base, load(lora), arch, json.load(open(os.path.join(lora, "adapter_config.json")))["lora_alpha"])
            close(w)


if __name__ == "__main__":
    main()
