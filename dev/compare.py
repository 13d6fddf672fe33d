#!/usr/bin/env python3
"""make compare: one training under every way of sharding it: time, memory and bytes moved, measured beside planned.

Runs ./train_gpt_fsdp on NP ranks under each mode in turn, --rounds times over, so that a busy minute falls on all of
them; prints medians, and writes DIR/report.html with all runs side by side, the memory of a step of each among them.
On a CPU, ranks of a host read each other's shards in place; --shm copy lets them gather as several hosts and GPUs do.

    make compare ARGS="--steps 20 --rounds 3 -- --model small --batch_size 4"
"""
import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import threading
import time

PROGRAM = os.environ.get("TRAIN_GPT_FSDP", "./train_gpt_fsdp")
# Name, options. The last ones are cut into half the sequences per microbatch: `{half}`.
MODES = [
    ("no_shard (DDP)", "--strategy no_shard"),
    ("zero1", "--strategy zero1"),
    ("shard_grad_op (ZeRO-2)", "--strategy shard_grad_op"),
    ("full_shard, one unit", "--strategy full_shard --wrap model"),
    ("full_shard, by block", "--strategy full_shard"),
    ("by block, recomputed", "--strategy full_shard --recompute block"),
    ("by block, two microbatches", "--strategy full_shard --batch_size {half} --grad_accum 2"),
    ("by block, two, reduced once", "--strategy full_shard --batch_size {half} --grad_accum 2 --accumulate local"),
]
GPU_MODES = [
    ("optimizer on the host", "--strategy full_shard --offload optimizer"),
    ("parameters too", "--strategy full_shard --offload params"),
]


def fail(text):
    sys.exit(f"compare: {text}")


def peak_bytes(process, stop):
    """The most bytes that all ranks of a run had at once, shared pages counted once. Asked every 50 ms."""
    most = 0
    while not stop.is_set():
        total = 0
        for pid in descendants(process.pid):
            try:
                with open(f"/proc/{pid}/smaps_rollup") as f:
                    total += sum(int(line.split()[1]) << 10 for line in f if line.startswith("Pss:"))
            except OSError:
                pass
        most = max(most, total)
        stop.wait(0.05)
    return most


def descendants(root):
    """Processes named train_gpt_fsdp below `root`, itself included."""
    parents, names = {}, {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as f:
                text = f.read()
        except OSError:
            continue
        name, rest = text[text.index("(") + 1:text.rindex(")")], text[text.rindex(")") + 2:].split()
        parents[int(pid)], names[int(pid)] = int(rest[1]), name
    found = []
    for pid in parents:
        at = pid
        while at in parents and at != root:
            at = parents[at]
        if at == root and names[pid].startswith("train_gpt_fsdp"):
            found.append(pid)
    return found


def run(args, name, options, out):
    """One run. Returns its first record, its steps, and the most bytes it had."""
    command = [PROGRAM] + options + ["--max_steps", str(args.steps), "--eval_every", "-1"]
    command += ["--save_every", "-1", "--sample_tokens", "0", "--out", out]
    if args.np > 1:
        command = shlex.split(args.mpirun) + ["-np", str(args.np)] + command
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    stop, peak = threading.Event(), []
    watcher = threading.Thread(target=lambda: peak.append(peak_bytes(process, stop)))
    watcher.start()
    text = process.communicate()[0]
    stop.set()
    watcher.join()
    if process.returncode:
        fail(f"{name}: {shlex.join(command)} ended with {process.returncode}:\n{text}")
    with open(f"{out}/metrics.jsonl") as f:
        records = [json.loads(line) for line in f]
    # On a GPU: what rank 0's device gave, libraries included. A host's pages say nothing about that.
    taken = next((r.get("device_bytes") for r in records if r["kind"] == "end"), None)
    return records[0], [r for r in records if r["kind"] == "step"], taken * args.np if taken else peak[0]


def main():
    parser = argparse.ArgumentParser(prog="make compare ARGS=", description=__doc__.split("\n\n")[0],
                                     epilog="What follows -- goes to every run.")
    parser.add_argument("--np", type=int, default=int(os.environ.get("NP", "2")), help="ranks (2)")
    parser.add_argument("--steps", type=int, default=12, help="steps of a run; the first two are not timed (12)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each mode (3)")
    parser.add_argument("--out", default="out-compare", help="directory for runs and report.html (out-compare)")
    parser.add_argument("--mpirun", default=os.environ.get("MPIRUN", "mpirun"), help="and its options")
    parser.add_argument("options", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.steps < 3 or args.rounds < 1 or args.np < 1:
        fail("--steps must be at least 3, --rounds and --np at least 1")
    given = args.options[1:] if args.options[:1] == ["--"] else args.options
    if given and not given[0].startswith("--"):
        fail(f"'{given[0]}' is no option: options of the runs follow --")
    shared = (["--model", "tiny"] if "--model" not in given else []) + given
    if "--batch_size" not in shared:
        shared += ["--batch_size", "8"]
    batch = shared[shared.index("--batch_size") + 1]
    if not batch.isdigit() or int(batch) % 2:
        fail(f"--batch_size {batch}: two of the modes halve it, it must be an even number")
    rest = [o for i, o in enumerate(shared) if o != "--batch_size" and (not i or shared[i - 1] != "--batch_size")]
    if "--device=cuda" in given:
        fail("write --device cuda, in two words")
    if "--device" not in given and os.environ.get("DEVICE"):
        rest += ["--device", os.environ["DEVICE"]]
    gpu = "--device" in rest and rest[rest.index("--device") + 1:][:1] == ["cuda"]
    if not gpu and "--shm" not in given and args.np > 1:
        rest += ["--shm", "copy"]
    modes, results = MODES + (GPU_MODES if gpu else []), {}
    for turn in range(args.rounds):
        for number, (name, text) in enumerate(modes):
            options = text.format(half=int(batch) // 2).split()
            if "--batch_size" not in options:
                options += ["--batch_size", batch]
            first, steps, peak = run(args, name, rest + options, f"{args.out}/{number + 1}")
            timed = [s["ms"] for s in steps[2:]]
            results.setdefault(name, []).append((statistics.median(timed), peak, first, steps))
            if sys.stderr.isatty():
                print(f"round {turn + 1} of {args.rounds}: {name}", end="\033[K\r", file=sys.stderr)
    show(args, modes, results, shlex.join(rest), gpu)
    names = ",".join(f"{args.out}/{n + 1}" for n in range(len(modes)))
    subprocess.run([PROGRAM, "--report", names, "--out", args.out], check=True)


def moved(record):
    """Bytes that rank 0 received in a step."""
    return sum(record.get(k, 0) for k in ("gather_bytes", "reduce_bytes", "replicate_bytes"))


def show(args, modes, results, options, gpu):
    head = results[modes[0][0]][0][2]
    base = results[modes[0][0]][0][3]
    print(f"train_gpt_fsdp {head['version']} ({head['build']}), {time.strftime('%Y-%m-%d')}: {args.np} rank"
          f"{'s' if args.np > 1 else ''}, {head['device']}, {options}")
    print(f"median of {args.rounds} runs in turn, {args.steps - 2} steps each; MiB: memory of a rank; MB: what rank 0 "
          "received in a step")
    print(f"{'':28} {'ms per step':>10} {'ratio':>6} {'planned MiB':>12} {'measured':>9} {'planned MB':>11} "
          f"{'counted':>8}  loss")
    first_ms = None
    for name, _ in modes:
        runs = results[name]
        ms = statistics.median(r[0] for r in runs)
        first_ms = first_ms or ms
        record, steps = runs[0][2], runs[0][3]
        lines = record["memory_plan_bytes"]
        planned = (lines["total"] - (sum(b for k, b in lines.items() if k.startswith("host: ")) if gpu else 0)) / 2**20
        # What is measured has the program, its libraries and MPI's buffers in it, and shared pages once.
        peak = statistics.median(r[1] for r in runs) / 2**20 / args.np
        plan_moved, counted = moved(record.get("step_traffic", {})) / 1e6, moved(steps[-1]) / 1e6
        same = [s["loss"] for s in steps] == [s["loss"] for s in base]
        words = "equal to the last digit" if same else f"{steps[-1]['loss']:.6f}, the first has {base[-1]['loss']:.6f}"
        if any([s["loss"] for s in r[3]] != [s["loss"] for s in steps] for r in runs):
            words += "; NOT THE SAME IN ALL RUNS"
        print(f"{name:28} {ms:10.1f} {ms / first_ms:6.2f} {planned:12.1f} {peak:9.1f} {plan_moved:11.3f} "
              f"{counted:8.3f}  {words}")
    print(f"memory over a step of each, and all else, side by side: {args.out}/report.html")


main()
