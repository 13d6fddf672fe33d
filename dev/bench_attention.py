#!/usr/bin/env python3
"""PyTorch's causal attention alone on GPU 0: cuDNN's kernels and FlashAttention's, forward and backward, called without
autograd between CUDA events; medians of 20 samples of 4 calls. Shapes, and FLOPs of the causal half, are those of
`build/bench_ops gpu` (dev/gpu_ops.h), beside which dev/gpu_day.sh runs it. Grouped heads are repeated before the clock
starts.

    dev/bench_attention.py [--check]      --check: only whether this PyTorch has the calls, without a GPU
"""
import statistics
import sys

import torch

SHAPES = [(32, 1024, 12, 12, 64), (8, 1024, 25, 25, 64), (8, 4096, 12, 12, 64), (16, 1024, 9, 3, 64),
          (8, 1024, 16, 8, 128), (2, 4096, 16, 16, 128)]
SAMPLES, CALLS = 20, 4
aten = torch.ops.aten
FAMILIES = {"cudnn": (aten._scaled_dot_product_cudnn_attention.default,
                      aten._scaled_dot_product_cudnn_attention_backward.default),
            "flash": (aten._scaled_dot_product_flash_attention.default,
                      aten._scaled_dot_product_flash_attention_backward.default)}


def call(op, given):
    """Calls an op by the names of its arguments; those that it does not have are left out."""
    names = [a.name for a in op._schema.arguments if not a.kwarg_only]
    return op(*[given[n] for n in names])


def median_us(what):
    for _ in range(3):
        what()
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(SAMPLES)]
    for begin, end in events:
        begin.record()
        for _ in range(CALLS):
            what()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(b.elapsed_time(e) for b, e in events) * 1e3 / CALLS


def measure(family, B, T, heads, kv, hs):
    forward, backward = FAMILIES[family]
    q, k, v, grad = (torch.randn(B, T, n, hs, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
                     for n in (heads, kv, kv, heads))
    k, v = (x.repeat_interleave(heads // kv, dim=1) for x in (k, v))
    given = dict(query=q, key=k, value=v, attn_bias=None, compute_log_sumexp=True, dropout_p=0.0, is_causal=True,
                 return_debug_mask=False)
    results = call(forward, given)
    given |= {r.name: x for r, x in zip(forward._schema.returns, results)}
    given |= dict(grad_out=grad, out=results[0], logsumexp=results[1])
    if family == "flash":                        # its random state: unused without dropout
        given |= dict(philox_seed=results[6], philox_offset=results[7])
    else:
        given["attn_bias"] = torch.empty(0, device="cuda")
    flops = 2.0 * B * T * T * hs * heads
    for word, op, times in (("forward", forward, 1.0), ("backward", backward, 2.5)):
        us = median_us(lambda: call(op, given))
        print("%-28s %-42s %9.1f us %8.1f TFLOP/s" % (
            "attention %s, %s" % (word, family), "B %d T %d H %d/%d hs %d" % (B, T, heads, kv, hs), us,
            times * flops / us / 1e6), flush=True)


def main(arguments):
    if arguments == ["--check"]:
        for forward, backward in FAMILIES.values():
            known = {"query", "key", "value", "attn_bias", "compute_log_sumexp", "dropout_p", "is_causal",
                     "return_debug_mask", "grad_out", "out", "logsumexp", "philox_seed", "philox_offset"}
            known |= {r.name for r in forward._schema.returns}
            lost = {a.name for op in (forward, backward) for a in op._schema.arguments if not a.kwarg_only} - known
            if lost:
                sys.exit("bench_attention: %s is unknown here" % ", ".join(sorted(lost)))
        return print("the calls are there")
    if arguments:
        sys.exit(__doc__)
    print("# %s, PyTorch %s" % (torch.cuda.get_device_name(0), torch.__version__))
    for family in FAMILIES:
        for shape in SHAPES:
            try:
                measure(family, *shape)
            except RuntimeError as e:
                print("attention, %s, %s: %s" % (family, shape, str(e).splitlines()[0]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
