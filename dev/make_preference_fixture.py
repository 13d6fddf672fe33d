#!/usr/bin/env python3
"""Writes dev/fixtures/preference.safetensors: losses of preferences as PyTorch computes them, one answer a sequence.

Usage: make_preference_fixture.py [--out DIR]      needs `pip install transformers==5.24.0 torch`

The model is dev/fixtures/family_llama with the adapter dev/fixtures/lora_llama; the reference is the model without it.

  inputs, targets, starts   (B,T) I32: pairs packed as this program packs them, targets -1 where nothing is trained on
  reference                 (2 PAIRS) F32: log-probabilities of the answers by the reference, in their order
  NAME.loss                 (1) F32, of each loss of LOSSES: the mean over pairs
  NAME.rewards              (3) F32: means of the rewards of chosen and rejected answers, accuracy
  NAME.grad.TENSOR          F32, of every factor
"""
import argparse
import json
import os

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file

B, T, VOCAB = 2, 30, 61
# Of each pair: tokens of the prompt, of the chosen answer, of the rejected one; by rows of the batch.
ROWS = [[(3, 5, 4), (2, 4, 6)], [(4, 7, 3)]]
LOSSES = {"dpo": dict(beta=0.3, smoothing=0.1), "ipo": dict(beta=0.2), "hinge": dict(beta=0.3),
          "simpo": dict(beta=2.0, gamma=1.0), "orpo": dict(beta=0.7)}


def loss_of(name, chosen, rejected, beta, smoothing=0.0, gamma=0.0):
    x = chosen - rejected
    if name == "orpo":  # LLaMA-Factory's odds_ratio_loss
        odds = x - (torch.log1p(-torch.exp(chosen)) - torch.log1p(-torch.exp(rejected)))
        return -chosen - beta * F.logsigmoid(odds)
    if name == "ipo":
        return (x - 1 / (2 * beta)) ** 2
    if name == "hinge":
        return torch.relu(1 - beta * x)
    z = beta * x - gamma
    return -(1 - smoothing) * F.logsigmoid(z) - smoothing * F.logsigmoid(-z)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixtures")
    parser.add_argument("--out", default=here)
    out = parser.parse_args().out
    model = transformers.AutoModelForCausalLM.from_pretrained(
        os.path.join(here, "family_llama"), attn_implementation="eager", dtype=torch.float32).eval()
    config = json.load(open(os.path.join(here, "lora_llama", "adapter_config.json")))
    factors = load_file(os.path.join(here, "lora_llama", "adapter_model.safetensors"))
    for p in factors.values():
        p.requires_grad_()
    weights = dict(model.named_parameters())

    def adapted():
        scale, changed = config["lora_alpha"] / config["r"], {}
        for key in factors:
            if not key.endswith(".lora_A.weight"):
                continue
            name = key.replace("base_model.model.", "").replace(".lora_A.weight", ".weight")
            changed[name] = weights[name].detach() + scale * factors[key.replace("lora_A", "lora_B")] @ factors[key]
        return changed

    def logp(prompt, answer, changed):
        ids = torch.tensor([prompt + answer])
        logits = torch.func.functional_call(model, changed, (ids[:, :-1],)).logits
        at = len(prompt) - 1
        return F.log_softmax(logits[0, at:], -1).gather(1, ids[0, at + 1:, None]).sum()

    random = np.random.default_rng(5)
    packed = {k: np.full((B, T), -1 if k == "targets" else 0, np.int32) for k in ("inputs", "targets", "starts")}
    pairs = []
    for b, row in enumerate(ROWS):
        t = 0
        for prompt_n, *answers in row:
            prompt, pair = random.integers(0, VOCAB, prompt_n).tolist(), []
            for n in answers:
                answer = random.integers(0, VOCAB, n).tolist()
                ids, begin = prompt + answer, t
                for i in range(len(ids) - 1):
                    packed["inputs"][b, t], packed["starts"][b, t] = ids[i], begin
                    packed["targets"][b, t] = ids[i + 1] if i + 1 >= prompt_n else -1
                    t += 1
                pair.append((prompt, answer))
            pairs.append(pair)
        packed["starts"][b, t:] = t
    expected = {k: torch.from_numpy(v) for k, v in packed.items()}
    with torch.no_grad():
        reference = [[logp(*y, {}) for y in pair] for pair in pairs]
    expected["reference"] = torch.stack([r for pair in reference for r in pair])
    for name, fields in LOSSES.items():
        changed, losses, rewards = adapted(), [], []
        for pair, r in zip(pairs, reference):
            means, alone = name in ("ipo", "simpo", "orpo"), name in ("simpo", "orpo")
            s = [(logp(*y, changed) - (0 if alone else q)) / (len(y[1]) if means else 1) for y, q in zip(pair, r)]
            losses.append(loss_of(name, s[0], s[1], **fields))
            won = [float(x.detach()) * (len(y[1]) if name == "ipo" else 1) for x, y in zip(s, pair)]
            rewards.append([fields["beta"] * won[0], fields["beta"] * won[1], float(won[0] > won[1])])
        loss = torch.stack(losses).mean()
        grads = torch.autograd.grad(loss, list(factors.values()))
        expected[name + ".loss"] = loss.detach().reshape(1)
        expected[name + ".rewards"] = torch.tensor(rewards).mean(0)
        for key, g in zip(factors, grads):
            expected[f"{name}.grad.{key}"] = g
        print(f"{name}: loss {float(loss.detach()):.6f}, rewards {np.mean(rewards, 0).round(4).tolist()}")
    save_file({n: t.contiguous() for n, t in expected.items()}, os.path.join(out, "preference.safetensors"))


if __name__ == "__main__":
    main()
