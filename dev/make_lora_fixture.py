#!/usr/bin/env python3
"""Writes dev/fixtures/lora_*: adapters of PEFT beside the fixtures' models, and what PEFT computes with them.

Usage: make_lora_fixture.py [--out DIR]      needs `pip install transformers==5.24.0 peft==0.21.2 torch`

  lora_NAME/                     adapter_config.json and adapter_model.safetensors, for the model named in CASES
  lora_expected.safetensors      for each: NAME.inputs, NAME.targets (STEPS,B,T) I32; NAME.losses (STEPS) F32, before
                                 each of ten steps of AdamW; NAME.grad.TENSOR F32, of the first; NAME.after.TENSOR F32

All factors are random, B too, so that no zero can hide an error.
"""
import argparse
import json
import os
import shutil

import numpy as np
import torch
import transformers
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

B, T, STEPS = 2, 13, 10
ADAMW = dict(lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
CASES = {
    "gpt2": ("hf_untied", dict(r=4, lora_alpha=6, target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True)),
    "qwen3": ("family_qwen3", dict(r=3, lora_alpha=8, target_modules=["q_proj", "v_proj", "o_proj", "up_proj",
                                                                      "down_proj"])),
    "llama": ("family_llama", dict(r=4, lora_alpha=4, target_modules=["q_proj", "k_proj", "v_proj", "o_proj",
                                                                      "gate_proj", "up_proj", "down_proj"])),
    "nanochat": ("family_nanochat", dict(r=2, lora_alpha=4, target_modules=["k_proj", "v_proj", "fc1"])),
}


def file_name(name):
    return name.replace(".default.", ".")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixtures")
    parser.add_argument("--out", default=here)
    out = parser.parse_args().out
    expected = {}
    for seed, (name, (base, fields)) in enumerate(CASES.items()):
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            os.path.join(here, base), attn_implementation="eager", dtype=torch.float32)
        for key in ("attn_pdrop", "embd_pdrop", "resid_pdrop"):
            if hasattr(model.config, key):
                setattr(model.config, key, 0.0)
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        vocab = model.config.vocab_size
        model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **fields))
        trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        assert all("lora_" in n for n in trained)
        with torch.no_grad():
            for p in trained.values():
                p.copy_(torch.randn_like(p) * 0.3)
        directory = os.path.join(out, "lora_" + name)
        shutil.rmtree(directory, ignore_errors=True)
        model.save_pretrained(directory)
        readme = os.path.join(directory, "README.md")
        if os.path.exists(readme):
            os.remove(readme)
        path = os.path.join(directory, "adapter_config.json")
        config = json.load(open(path))
        config["base_model_name_or_path"] = base
        config["target_modules"] = sorted(config["target_modules"])
        with open(path, "w") as f:
            json.dump(config, f, indent=2, sort_keys=True)
            f.write("\n")
        assert set(load_file(os.path.join(directory, "adapter_model.safetensors"))) == {file_name(n) for n in trained}
        ids = np.random.default_rng(seed).integers(0, vocab, (STEPS, B, T + 1))
        expected[name + ".inputs"] = torch.from_numpy(ids[:, :, :-1].copy()).to(torch.int32)
        expected[name + ".targets"] = torch.from_numpy(ids[:, :, 1:].copy()).to(torch.int32)
        optimizer = torch.optim.AdamW(trained.values(), **ADAMW)
        losses = []
        for step in range(STEPS):
            logits = model(torch.from_numpy(ids[step, :, :-1].copy())).logits.float()
            targets = torch.from_numpy(ids[step, :, 1:].copy())
            loss = torch.nn.functional.cross_entropy(logits.reshape(-1, vocab), targets.reshape(-1))
            optimizer.zero_grad()
            loss.backward()
            if step == 0:
                for n, p in trained.items():
                    expected[f"{name}.grad.{file_name(n)}"] = p.grad.clone()
            optimizer.step()
            losses.append(float(loss.detach()))
        expected[name + ".losses"] = torch.tensor(losses)
        for n, p in trained.items():
            expected[f"{name}.after.{file_name(n)}"] = p.detach().clone()
        print(f"{name}: {sum(p.numel() for p in trained.values())} train, losses {losses[0]:.4f} to {losses[-1]:.4f}")
    save_file({n: t.contiguous() for n, t in expected.items()}, os.path.join(out, "lora_expected.safetensors"))


if __name__ == "__main__":
    main()
