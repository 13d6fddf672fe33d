#!/usr/bin/env python3
"""Writes dev/fixtures/tokens_expected.safetensors and lora_root: models enlarged by transformers, and PEFT's rows.

Usage: make_tokens_fixture.py [--out DIR]      needs `pip install transformers==5.24.0 peft==0.21.2 torch`

Each model of CASES gets rows by resize_token_embeddings, which start as the mean of the others: the random part of its
mean_resizing is left out. Beside the adapter of dev/fixtures/lora_*, PEFT then trains these rows
(trainable_token_indices), without weight decay.

  NAME.wte, NAME.lm_head         F32, the new rows
  NAME.inputs, NAME.targets      (STEPS,B,T) I32
  NAME.losses                    (STEPS) F32, before each of five steps of AdamW
  NAME.after.wte, .lm_head       F32, the rows after them
  lora_root/                     the adapter lora_qwen3 with use_rslora
  root.loss                      F32, its loss on qwen3's first inputs below the old vocabulary
"""
import argparse
import json
import os
import shutil

import numpy as np
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

B, T, STEPS = 2, 13, 5
ADAMW = dict(lr=0.01, betas=(0.9, 0.95), eps=1e-8)
CASES = {"qwen3": ("family_qwen3", "embed_tokens", 300), "gpt2": ("hf_untied", "wte", 303)}


def without_dropout(model):
    for key in ("attn_pdrop", "embd_pdrop", "resid_pdrop"):
        if hasattr(model.config, key):
            setattr(model.config, key, 0.0)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


def open_base(path):
    return without_dropout(transformers.AutoModelForCausalLM.from_pretrained(
        path, attn_implementation="eager", dtype=torch.float32))


def loss_of(model, inputs, targets):
    logits = model(inputs).logits.float()
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixtures")
    parser.add_argument("--out", default=here)
    out = parser.parse_args().out
    normal = torch.distributions.multivariate_normal.MultivariateNormal
    normal.sample = lambda self, sample_shape=torch.Size(): self.mean.expand(*sample_shape, -1).clone()
    expected = {}
    for seed, (name, (base, embedding, rows)) in enumerate(CASES.items()):
        model = open_base(os.path.join(here, base))
        old, tied = model.config.vocab_size, model.config.tie_word_embeddings
        model.resize_token_embeddings(rows)
        expected[name + ".wte"] = model.get_input_embeddings().weight[old:].detach().clone()
        expected[name + ".lm_head"] = model.get_output_embeddings().weight[old:].detach().clone()
        ids = list(range(old, rows))
        indices = {embedding: ids} if tied else {embedding: ids, "lm_head": ids}
        theirs = os.path.join(here, "lora_" + name)
        config = LoraConfig.from_pretrained(theirs)
        config.inference_mode, config.trainable_token_indices = False, indices
        model = get_peft_model(model, config)
        factors = load_file(os.path.join(theirs, "adapter_model.safetensors"))
        trained = {n.replace(".default", ""): p for n, p in model.named_parameters() if p.requires_grad}
        with torch.no_grad():
            for n, t in factors.items():
                trained[n].copy_(t)
        decayed = [p for n, p in trained.items() if "lora_" in n]
        plain = {n: p for n, p in trained.items() if "lora_" not in n}
        optimizer = torch.optim.AdamW([dict(params=decayed, weight_decay=0.1),
                                       dict(params=list(plain.values()), weight_decay=0.0)], **ADAMW)
        random = np.random.default_rng(seed).integers(0, rows, (STEPS, B, T + 1))
        expected[name + ".inputs"] = torch.from_numpy(random[:, :, :-1].copy()).to(torch.int32)
        expected[name + ".targets"] = torch.from_numpy(random[:, :, 1:].copy()).to(torch.int32)
        losses = []
        for step in range(STEPS):
            loss = loss_of(model, torch.from_numpy(random[step, :, :-1].copy()),
                           torch.from_numpy(random[step, :, 1:].copy()))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        expected[name + ".losses"] = torch.tensor(losses)
        for n, p in plain.items():
            expected[f"{name}.after.{'lm_head' if 'lm_head' in n else 'wte'}"] = p.detach().clone()
        print(f"{name}: {old} rows become {rows}, losses {losses[0]:.4f} to {losses[-1]:.4f}; {sorted(plain)}")
    directory = os.path.join(out, "lora_root")
    shutil.rmtree(directory, ignore_errors=True)
    os.makedirs(directory)
    shutil.copy(os.path.join(here, "lora_qwen3", "adapter_model.safetensors"), directory)
    config = json.load(open(os.path.join(here, "lora_qwen3", "adapter_config.json")))
    config["use_rslora"] = True
    with open(os.path.join(directory, "adapter_config.json"), "w") as f:
        json.dump(config, f, indent=2, sort_keys=True)
        f.write("\n")
    model = PeftModel.from_pretrained(open_base(os.path.join(here, "family_qwen3")), directory)
    tokens = expected["qwen3.inputs"][0].long() % 61, expected["qwen3.targets"][0].long() % 61
    with torch.no_grad():
        expected["root.loss"] = loss_of(model, *tokens).reshape(1)
    save_file({n: t.contiguous() for n, t in expected.items()}, os.path.join(out, "tokens_expected.safetensors"))


if __name__ == "__main__":
    main()
