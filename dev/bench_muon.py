#!/usr/bin/env python3
"""The step of torch.optim.AdamW, and of torch.optim.Muon with AdamW for all that is no block's matrix, of the models of
dev/bench_pytorch.py: one line of JSON with the median milliseconds of each. `make bench ARGS=muon` runs it.

    python3 dev/bench_muon.py --model small --processes 2 --steps 5

Parameters have gradients before the first step, forward and backward are not run. q, k and v are matrices of their own,
as in train_gpt_fsdp: its arithmetic. Each process has its share of the cores. torch.optim.Muon takes no sharded
parameters and no process group, so with several processes each computes the whole step, as under DDP; the time is the
slowest one's.
"""

import argparse
import json
import os
import statistics
import tempfile
import time

import torch
import torch.distributed as dist

from bench_pytorch import DECAY, GPT, LR, MODELS, BETAS


def parameters(c):
    """The blocks' matrices, and all others."""
    matrices, others = [], []
    for name, p in GPT(c).named_parameters():
        parts = p.chunk(3) if name.startswith("h.") and p.shape[0] == 3 * c["n_embd"] and p.ndim == 2 else [p]
        for part in parts:
            x = torch.nn.Parameter(part.detach().clone())
            x.grad = torch.randn_like(x)
            (matrices if name.startswith("h.") and x.ndim == 2 else others).append(x)
    return matrices, others


def measure(rank, args, rendezvous):
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // args.processes))
    if args.processes > 1:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=args.processes)
    matrices, others = parameters(MODELS[args.model])
    optimizers = {
        "adamw": [torch.optim.AdamW(matrices + others, lr=LR, betas=BETAS, fused=True)],
        "muon": [torch.optim.Muon(matrices, lr=LR, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw"),
                 torch.optim.AdamW(others, lr=LR, betas=BETAS, fused=True)],
    }
    ms = {kind: [] for kind in optimizers}
    for step in range(args.steps + 1):
        for kind, parts in optimizers.items():
            if args.processes > 1:
                dist.barrier()
            begin = time.perf_counter()
            for optimizer in parts:
                optimizer.step()
            took = torch.tensor([(time.perf_counter() - begin) * 1e3], dtype=torch.float64)
            if args.processes > 1:
                dist.all_reduce(took, dist.ReduceOp.MAX)
            if step:                           # the first one makes the state
                ms[kind].append(took.item())
    if not rank:
        print(json.dumps({f"torch_{kind}": round(statistics.median(x), 3) for kind, x in ms.items()}), flush=True)
    if args.processes > 1:
        dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="small")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()
    if args.processes == 1:
        measure(0, args, None)
        return
    with tempfile.TemporaryDirectory() as directory:
        torch.multiprocessing.spawn(measure, (args, os.path.join(directory, "rendezvous")), nprocs=args.processes)


if __name__ == "__main__":
    main()
