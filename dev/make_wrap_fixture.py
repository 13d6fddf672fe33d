#!/usr/bin/env python3
"""Units of torch.distributed.fsdp.wrap.size_based_auto_wrap_policy for GPT-2's module tree.

Prints the rows of wrap_cases in dev/test/test_modes.h: shapes, tied or not, the minimum number of parameters, and the
modules that PyTorch would wrap, children first. Needs torch; nothing is trained and no memory is allocated.

    python dev/make_wrap_fixture.py
"""
import functools

import torch
from torch import nn
from torch.distributed.fsdp.wrap import _recursive_wrap, size_based_auto_wrap_policy

# layers, width, vocabulary, positions, tied, and the minimum sizes to try: on both sides of the modules' sums.
CASES = [
    (2, 20, 101, 9, True, [1, 41, 180, 181, 420, 421, 1260, 1261, 1680, 1681, 2020, 3300, 3301, 5060, 5061]),
    (2, 20, 101, 9, False, [1000, 2021, 5060]),
    (3, 60, 5003, 32, True, [40000, 44000, 300180, 300181]),
    (2, 768, 50257, 1024, True, [700000, 2362368, 2362369, 7087872, 7087873, 100000000]),
    (2, 768, 50257, 1024, False, [7087872, 38597377]),
]


class Affine(nn.Module):
    """Weight and bias of a linear layer or a LayerNorm."""

    def __init__(self, *shape):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(*shape))
        self.bias = nn.Parameter(torch.empty(shape[0]))


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.c_attn, self.c_proj = Affine(3 * width, width), Affine(width, width)


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.c_fc, self.c_proj = Affine(4 * width, width), Affine(width, 4 * width)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.ln_1, self.attn, self.ln_2, self.mlp = Affine(width), Attention(width), Affine(width), Mlp(width)


class Gpt(nn.Module):
    def __init__(self, layers, width, vocabulary, positions, tied):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
        self.h = nn.ModuleList(Block(width) for _ in range(layers))
        self.ln_f = Affine(width)
        if not tied:
            self.lm_head = nn.Linear(width, vocabulary, bias=False)


class Wrapped(nn.Module):
    """Marks a wrapped module."""

    order = []

    def __init__(self, module):
        super().__init__()
        self.module = module
        Wrapped.order.append(module)


def units(shape, least):
    with torch.device("meta"):
        model = Gpt(*shape)
    name_of = {id(module): name for name, module in model.named_modules()}
    Wrapped.order = []
    policy = functools.partial(size_based_auto_wrap_policy, min_num_params=least)
    _recursive_wrap(model, auto_wrap_policy=policy, wrapper_cls=Wrapped, ignored_modules=set(), ignored_params=set(),
                    only_wrap_children=True)
    return [name_of[id(module)] for module in Wrapped.order]


def main():
    for *shape, sizes in CASES:
        for least in sizes:
            layers, width, vocabulary, positions, tied = shape
            text = " ".join(units(shape, least))
            lines = []
            while len(text) > 96:
                cut = text.rindex(" ", 0, 96) + 1
                lines.append(text[:cut])
                text = text[cut:]
            lines.append(text)
            literal = "\n     ".join('"%s"' % line for line in lines)
            print("    {%d, %d, %d, %d, %s, %d,\n     %s}," % (layers, width, vocabulary, positions,
                                                               "true" if tied else "false", least, literal))


if __name__ == "__main__":
    main()
