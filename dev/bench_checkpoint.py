#!/usr/bin/env python3
"""torch.distributed.checkpoint of the same tensors: the comparison for checkpoints in `make bench ARGS=checkpoint`.

    python3 dev/bench_checkpoint.py --directory DIR --ranks 2 --rounds 1

The GPT of bench_pytorch.py with the shapes of --model, sharded by FSDP2 over as many processes on gloo, with AdamW's
exp_avg and exp_avg_sq, all fp32. Its sharded state dict (get_model_state_dict, get_optimizer_state_dict) is saved,
loaded in place and saved by async_save, with FileSystemWriter's defaults, which sync every file. One JSON line per
round: bytes on the disk, ms of the slowest process for each, and for async_save the pause until it returns and the ms
until the future is done. The files are removed after each round; a first save is not counted. --cold drops the page
cache before loading (root).
"""

import argparse
import json
import os
import shutil
import tempfile
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from bench_pytorch import GPT, MODELS, make_optimizer, slowest, wrap
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict


def sharded_state(args):
    """The state dict of this process: DTensors of its own shards, all touched in memory."""
    torch.manual_seed(1)
    model = wrap(GPT(MODELS[args.model] | {"seq_len": args.n_positions}), args, "fp32")
    optimizer = make_optimizer(model)
    for p in model.parameters():
        p.grad = torch.full_like(p, 1e-3)
    optimizer.step()                           # makes the moments
    optimizer.zero_grad(set_to_none=True)
    return {"model": get_model_state_dict(model), "optim": get_optimizer_state_dict(model, optimizer)}


def bytes_below(directory):
    return sum(os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(directory) for name in names)


def settle(rank, directory):
    """Flushes earlier writes, so that no write-back runs while the next operation is timed."""
    if rank == 0:
        shutil.rmtree(directory, ignore_errors=True)
        os.sync()
    dist.barrier()


def drop_caches(rank):
    if rank == 0:
        os.sync()
        with open("/proc/sys/vm/drop_caches", "w") as f:
            f.write("1\n")
    dist.barrier()


def timed(args, work):
    """Milliseconds of work() on the slowest process, and the value that it returned here."""
    dist.barrier()
    start = time.perf_counter()
    result = work()
    return slowest(args, (time.perf_counter() - start) * 1e3), result


def measure(rank, args, rendezvous):
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // args.ranks))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=args.ranks)
    background = dist.new_group()              # its thread's collectives must not mix with those of the main thread
    state = sharded_state(args)
    path = os.path.join(args.directory, "dcp")
    for _ in range(args.rounds):
        result = {}
        settle(rank, path)
        dcp.save(state, checkpoint_id=path)    # so that the page cache has its memory before any timed save
        settle(rank, path)
        result["save_ms"], _ = timed(args, lambda: dcp.save(state, checkpoint_id=path))
        result["bytes"] = bytes_below(path)
        if args.cold:
            drop_caches(rank)
        result["load_ms"], _ = timed(args, lambda: dcp.load(state, checkpoint_id=path))
        settle(rank, path)
        result["pause_ms"], future = timed(
            args, lambda: dcp.async_save(state, checkpoint_id=path, process_group=background))
        ms, _ = timed(args, future.result)
        result["async_ms"] = result["pause_ms"] + ms
        if rank == 0:
            print(json.dumps({k: round(v, 1) for k, v in result.items()}), flush=True)
    if rank == 0:
        shutil.rmtree(path)
    dist.destroy_process_group()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--directory", required=True, help="where to write; it decides which disk is measured")
    p.add_argument("--model", choices=MODELS, default="gpt2")
    p.add_argument("--n_positions", type=int, default=1024)
    p.add_argument("--ranks", type=int, default=1)
    p.add_argument("--rounds", type=int, default=1)
    p.add_argument("--cold", action="store_true", help="drop the page cache before loading")
    args = p.parse_args()
    args.device, args.parallel = "cpu", "fsdp2"
    with tempfile.TemporaryDirectory() as directory:
        torch.multiprocessing.spawn(measure, (args, os.path.join(directory, "rendezvous")), nprocs=args.ranks)


if __name__ == "__main__":
    main()
