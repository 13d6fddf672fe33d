#!/usr/bin/env python3
"""The fixture of --base_dtype q8_0 and nf4: numbers, and what llama.cpp's gguf package and bitsandbytes make of them.

    python3 dev/make_quantize_fixture.py [DIRECTORY]     needs gguf, bitsandbytes, torch, safetensors; (dev/fixtures)

NF4's blocks here are this program's: the scale of 64 numbers in fp32, then their 32 bytes, which bitsandbytes has in
two tensors. Numbers are those of 16-bit weights: normal ones in bf16 of several sizes, one that is alone, equal ones,
and the largest. (A block of zeros has bytes in bitsandbytes that depend on the machine.)
"""
import os
import sys

import bitsandbytes.functional as bnb
import gguf
import numpy as np
import torch
from safetensors.numpy import save_file

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixtures")


def main():
    to = sys.argv[1] if len(sys.argv) > 1 else HERE
    torch.manual_seed(3)
    x = torch.randn(48, 64) * torch.logspace(-6, 2, 48)[:, None]
    x[1, 1:], x[2], x[3, 5] = 0, 0.5, 3e38
    x = x.bfloat16().float()
    codes, state = bnb.quantize_4bit(x.reshape(-1), blocksize=64, quant_type="nf4")
    values = bnb.dequantize_4bit(codes, state).reshape(-1)
    scales = state.absmax.float().numpy().reshape(-1, 1).view(np.uint8)
    nf4 = np.concatenate([scales, codes.numpy().reshape(-1, 32)], 1)
    q8_0 = gguf.quants.quantize(x.numpy(), gguf.GGMLQuantizationType.Q8_0)
    save_file({"in": x.numpy().reshape(-1), "nf4": nf4.reshape(-1), "nf4_values": values.float().numpy(),
               "q8_0": q8_0.reshape(-1)}, os.path.join(to, "quantize.safetensors"))


if __name__ == "__main__":
    main()
