#!/usr/bin/env python3
"""Steps of torch.optim.Muon, for dev/test/test_muon.h: writes dev/fixtures/muon.safetensors.

Per case: a parameter that is trained for ten steps towards a target, by the loss SCALE / 2 |parameter - target|^2. Of
torch.optim.Muon as it is, whose matrix multiplies are bf16: `losses` before each step and after the last one, `grads`,
and `after`, the parameter after each step. `exact` is the parameter after each step with the same gradients and the
same code in fp64, with the one dtype in it replaced. And of each step `x`, the matrices that torch's Newton-Schulz
iteration goes through: after 0 to 5 of its steps.

    pip install torch numpy
    python dev/make_muon_fixture.py
"""
import inspect
import json
import struct

import numpy as np
import torch
from torch.optim import _muon

STEPS = 10
# rows, columns, momentum, nesterov, learning rate's adjustment
CASES = [
    (8, 32, 0.95, True, "match_rms_adamw"),
    (24, 8, 0.95, True, "original"),
    (12, 20, 0.4, True, "match_rms_adamw"),
    (16, 24, 0.9, False, "original"),
]
LR, DECAY, SCALE = 0.02, 0.1, 2**-8


def loss_of(p, target):
    return SCALE / 2 * (p.double() - target).square().sum()


def train(param, dtype, case, target=None, grads=None):
    """The parameter after each step, by given gradients or by the loss's, and then also these and the losses."""
    _, _, momentum, nesterov, adjust = case
    p = torch.nn.Parameter(torch.tensor(param, dtype=dtype))
    optimizer = torch.optim.Muon([p], lr=LR, weight_decay=DECAY, momentum=momentum, nesterov=nesterov,
                                 adjust_lr_fn=adjust)
    after, made, losses = [], [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        if grads is None:
            loss = loss_of(p, target)
            loss.backward()
            losses.append(loss.item())
            made.append(p.grad.numpy().copy())
        else:
            p.grad = torch.tensor(grads[step], dtype=dtype)
        optimizer.step()
        after.append(p.detach().to(torch.float32).numpy().copy())
    if grads is None:
        losses.append(loss_of(p, target).item())
    return np.stack(after), made, np.array(losses, np.float32)


def iterates(orthogonalise, update):
    """Of one Newton-Schulz iteration, as the bits of bf16."""
    c = (_muon.DEFAULT_A, _muon.DEFAULT_B, _muon.DEFAULT_C)
    x = [orthogonalise(update, c, steps, _muon.EPS) for steps in range(6)]
    return torch.stack(x).contiguous().view(torch.int16).numpy()


def main():
    torch.set_num_threads(1)
    bf16 = _muon._zeropower_via_newtonschulz
    source = inspect.getsource(bf16)
    assert source.count("torch.bfloat16") == 1
    names = dict(vars(_muon))
    exec(source.replace("torch.bfloat16", "torch.float64"), names)
    random, tensors = np.random.default_rng(7), {}
    for number, case in enumerate(CASES):
        shape = case[:2]
        param = (0.1 * random.standard_normal(shape)).astype(np.float32)
        target = random.standard_normal(shape).astype(np.float32)
        tensors[f"{number}.param"], tensors[f"{number}.target"] = param, target
        x = []
        _muon._zeropower_via_newtonschulz = lambda update, c, steps, eps: (
            x.append(iterates(bf16, update)) or bf16(update, c, steps, eps))
        after, grads, losses = train(param, torch.float32, case, target=torch.from_numpy(target))
        tensors[f"{number}.after"], tensors[f"{number}.grads"] = after, np.stack(grads)
        tensors[f"{number}.losses"], tensors[f"{number}.x"] = losses, np.stack(x)
        _muon._zeropower_via_newtonschulz = names["_zeropower_via_newtonschulz"]
        tensors[f"{number}.exact"] = train(param, torch.float64, case, grads=grads)[0]
        _muon._zeropower_via_newtonschulz = bf16
    header, at = {"__metadata__": {"torch": torch.__version__}}, 0
    for name, x in tensors.items():
        dtype = "F32" if x.dtype == np.float32 else "BF16"
        header[name] = {"dtype": dtype, "shape": list(x.shape), "data_offsets": [at, at + x.nbytes]}
        at += x.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open("dev/fixtures/muon.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for x in tensors.values():
            f.write(x.tobytes())


main()
