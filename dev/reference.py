#!/usr/bin/env python3
"""Fixtures for the tests: a GPT-2 in plain PyTorch, its loss, gradients and optimizer steps, as safetensors files.

    python3 dev/reference.py [DIRECTORY]          writes gpt_{tied,untied,head64}.safetensors (dev/fixtures)

Everything is computed in fp64 from parameters that are exact in fp32, then rounded once to fp32, so a stored number is
the true value. The same is computed in fp32 as well: the error of PyTorch's own fp32 is stored in the metadata as
`fp32_error.*`, as evidence for the tolerances of the tests.

A file holds (L layers, C width, V vocabulary, B batch, T tokens; weights are (out,in) as in nn.Linear)
  param.<name>   parameters; grad.<name>: gradient of the mean loss; names as in Hugging Face's GPT-2
  inputs targets (B,T) I32, logits (B,T,V), loss (1), grad_norm (1): 2-norm over all gradients together
and, for `tied` and `untied`, from the stored fp32 gradients, the same gradient in every step:
  adamw.<name>   parameters after `opt_steps` steps of AdamW (decay on matrices only)
  sgd.<name>     parameters after `opt_steps` steps of SGD with momentum (decay added to the gradient, matrices only)
  clip.<name>    gradients after clipping to a global norm of `clip_norm` (`untied` only, to keep the files small)
  inputs10 targets10 (10,B,T), losses (10): ten AdamW training steps from `param`, gradients clipped to `train_clip`;
  losses_fp32 (10): the same run in fp32
The configuration is in the header's __metadata__.
"""

import json
import math
import os
import struct
import sys

import numpy as np
import torch
import torch.nn.functional as F

LR, BETAS, EPS, DECAY, MOMENTUM, SGD_LR, STEPS, TRAIN_CLIP = 1e-3, (0.9, 0.95), 1e-8, 0.1, 0.9, 1e-2, 3, 1.0

MODELS = {
    "tied": dict(n_layer=2, n_head=3, n_embd=24, n_positions=16, vocab_size=67, seq_len=13, batch=2, tied=True),
    "untied": dict(n_layer=3, n_head=5, n_embd=15, n_positions=9, vocab_size=61, seq_len=7, batch=3, tied=False),
    "head64": dict(n_layer=1, n_head=1, n_embd=64, n_positions=36, vocab_size=71, seq_len=33, batch=1, tied=True),
}
WITH_UPDATES, WITH_CLIP = ("tied", "untied"), ("untied",)


def write_safetensors(path, tensors, metadata):
    """8 bytes little-endian header length, JSON header padded by blanks to 8 bytes, then the data back to back."""
    header, blobs, offset = {"__metadata__": {k: str(v) for k, v in metadata.items()}}, [], 0
    for name, tensor in tensors.items():
        array = tensor.detach().numpy()
        kind, array = ("I32", array.astype("<i4")) if array.dtype.kind == "i" else ("F32", array.astype("<f4"))
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        blobs.append(array.tobytes())
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def make_params(c, generator):
    """Parameters in the order of the model; all random, none so small that its gradient would be noise."""
    C, V, P = c["n_embd"], c["vocab_size"], c["n_positions"]

    def normal(*shape, std, mean=0.0):
        return (mean + std * torch.randn(*shape, generator=generator, dtype=torch.float64)).float()

    p = {"wte.weight": normal(V, C, std=0.2), "wpe.weight": normal(P, C, std=0.1)}
    shapes = {"attn.c_attn": (3 * C, C), "attn.c_proj": (C, C), "mlp.c_fc": (4 * C, C), "mlp.c_proj": (C, 4 * C)}
    for l in range(c["n_layer"]):
        for part in ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"):
            if part in shapes:
                out, inp = shapes[part]
                p[f"h.{l}.{part}.weight"] = normal(out, inp, std=min(0.2, 1 / math.sqrt(inp)))
                p[f"h.{l}.{part}.bias"] = normal(out, std=0.1)
            else:
                p[f"h.{l}.{part}.weight"] = normal(C, std=0.2, mean=1.0)
                p[f"h.{l}.{part}.bias"] = normal(C, std=0.1)
    p["ln_f.weight"], p["ln_f.bias"] = normal(C, std=0.2, mean=1.0), normal(C, std=0.1)
    if not c["tied"]:
        p["lm_head.weight"] = normal(V, C, std=0.2)
    return p


def gpt2_logits(c, p, tokens):
    """tokens (B,T) -> logits (B,T,V): learned positions, pre-LayerNorm, causal attention, tanh GELU."""
    (B, T), C, H = tokens.shape, c["n_embd"], c["n_head"]
    x = p["wte.weight"][tokens] + p["wpe.weight"][:T]
    hidden = torch.ones(T, T, dtype=torch.bool).triu(1)
    for l in range(c["n_layer"]):
        w = {name[len(f"h.{l}."):]: t for name, t in p.items() if name.startswith(f"h.{l}.")}
        y = F.layer_norm(x, (C,), w["ln_1.weight"], w["ln_1.bias"], 1e-5)
        qkv = F.linear(y, w["attn.c_attn.weight"], w["attn.c_attn.bias"])
        q, k, v = (t.view(B, T, H, C // H).transpose(1, 2) for t in qkv.split(C, dim=2))
        scores = (q @ k.transpose(2, 3)) / math.sqrt(C // H)
        y = scores.masked_fill(hidden, -math.inf).softmax(3) @ v
        y = y.transpose(1, 2).reshape(B, T, C)
        x = x + F.linear(y, w["attn.c_proj.weight"], w["attn.c_proj.bias"])
        y = F.layer_norm(x, (C,), w["ln_2.weight"], w["ln_2.bias"], 1e-5)
        y = F.gelu(F.linear(y, w["mlp.c_fc.weight"], w["mlp.c_fc.bias"]), approximate="tanh")
        x = x + F.linear(y, w["mlp.c_proj.weight"], w["mlp.c_proj.bias"])
    x = F.layer_norm(x, (C,), p["ln_f.weight"], p["ln_f.bias"], 1e-5)
    return F.linear(x, p["wte.weight"] if c["tied"] else p["lm_head.weight"])


def mean_loss(c, p, inputs, targets):
    logits = gpt2_logits(c, p, inputs)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten()), logits


def leaves(params, dtype):
    return {name: t.detach().clone().to(dtype).requires_grad_() for name, t in params.items()}


def groups(p, decay):
    matrices = [t for t in p.values() if t.ndim >= 2]
    return [{"params": matrices, "weight_decay": decay},
            {"params": [t for t in p.values() if t.ndim < 2], "weight_decay": 0.0}]


def adamw(p):
    return torch.optim.AdamW(groups(p, DECAY), lr=LR, betas=BETAS, eps=EPS)


def sgd(p):
    return torch.optim.SGD(groups(p, DECAY), lr=SGD_LR, momentum=MOMENTUM)


def stepped(make_optimizer, params, grads, dtype):
    """Parameters after STEPS steps with the same gradients each time."""
    p = leaves(params, dtype)
    optimizer = make_optimizer(p)
    for _ in range(STEPS):
        for name, t in p.items():
            t.grad = grads[name].to(dtype)
        optimizer.step()
    return {name: t.detach() for name, t in p.items()}


def trained(c, params, inputs, targets, dtype):
    """Losses of training steps from `params`, one batch each, before each update."""
    p = leaves(params, dtype)
    optimizer, losses = adamw(p), []
    for x, y in zip(inputs, targets):
        optimizer.zero_grad()
        loss, _ = mean_loss(c, p, x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(p.values(), TRAIN_CLIP)
        optimizer.step()
        losses.append(loss.detach().double())
    return torch.stack(losses)


def relative_error(value, truth):
    """Largest difference of any tensor, relative to that tensor's largest magnitude."""
    return max(float((value[n].double() - t).abs().max() / t.abs().max()) for n, t in truth.items())


def make_fixture(name, c, seed):
    generator = torch.Generator().manual_seed(seed)

    def tokens(*shape):
        return torch.randint(c["vocab_size"], shape, generator=generator)

    params = make_params(c, generator)
    shape = (c["batch"], c["seq_len"])
    inputs, targets = tokens(*shape), tokens(*shape)
    runs = {}
    for dtype in (torch.float64, torch.float32):
        p = leaves(params, dtype)
        loss, logits = mean_loss(c, p, inputs, targets)
        loss.backward()
        runs[dtype] = loss.detach(), logits.detach(), {name: t.grad for name, t in p.items()}
    loss, logits, grads = runs[torch.float64]
    stored = {name: g.float() for name, g in grads.items()}
    norm = torch.sqrt(sum((g.double() ** 2).sum() for g in stored.values()))
    meta = {k: int(v) for k, v in c.items()}
    meta |= {"fp32_error.loss": abs(float(runs[torch.float32][0]) - float(loss)) / float(loss),
             "fp32_error.grad": relative_error(runs[torch.float32][2], grads)}
    out = {f"param.{n}": t for n, t in params.items()} | {"inputs": inputs, "targets": targets}
    out |= {"logits": logits, "loss": loss.reshape(1), "grad_norm": norm.reshape(1)}
    out |= {f"grad.{n}": g for n, g in stored.items()}
    if name not in WITH_UPDATES:
        return out, meta

    meta |= dict(lr=LR, beta1=BETAS[0], beta2=BETAS[1], eps=EPS, weight_decay=DECAY, opt_steps=STEPS, sgd_lr=SGD_LR,
                 momentum=MOMENTUM, train_clip=TRAIN_CLIP)
    for kind, optimizer in (("adamw", adamw), ("sgd", sgd)):
        truth = stepped(optimizer, params, stored, torch.float64)
        meta[f"fp32_error.{kind}"] = relative_error(stepped(optimizer, params, stored, torch.float32), truth)
        out |= {f"{kind}.{n}": t for n, t in truth.items()}
    if name in WITH_CLIP:
        meta["clip_norm"] = 0.5 * round(float(norm), 2)
        p = leaves(params, torch.float64)
        for n, t in p.items():
            t.grad = stored[n].double()
        torch.nn.utils.clip_grad_norm_(p.values(), meta["clip_norm"])
        out |= {f"clip.{n}": t.grad for n, t in p.items()}
    inputs10, targets10 = tokens(10, *shape), tokens(10, *shape)
    losses, losses_fp32 = (trained(c, params, inputs10, targets10, d) for d in (torch.float64, torch.float32))
    meta["fp32_error.losses"] = float(((losses_fp32 - losses) / losses).abs().max())
    out |= {"inputs10": inputs10, "targets10": targets10, "losses": losses, "losses_fp32": losses_fp32}
    return out, meta


def main():
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixtures")
    directory = sys.argv[1] if len(sys.argv) > 1 else beside
    os.makedirs(directory, exist_ok=True)
    for seed, (name, c) in enumerate(MODELS.items(), start=1):
        tensors, meta = make_fixture(name, c, seed)
        path = os.path.join(directory, f"gpt_{name}.safetensors")
        write_safetensors(path, tensors, meta)
        print(f"{path}: {os.path.getsize(path)} bytes, loss {float(tensors['loss'][0]):.6f}, "
              f"norm {float(tensors['grad_norm'][0]):.4f}, {meta}")


if __name__ == "__main__":
    main()
