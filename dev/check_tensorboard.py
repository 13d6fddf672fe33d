#!/usr/bin/env python3
"""Reads the event files of a run with TensorBoard's own reader and compares them with the run's metrics.jsonl.

    python3 -m venv venv && venv/bin/pip install tensorboard
    ./train_gpt_fsdp --tensorboard --max_steps 40 --eval_every 20 --out out
    venv/bin/python dev/check_tensorboard.py out

The reader is the one behind TensorBoard's scalar pages (EventAccumulator, every point kept). It checks both checksums
of a record and forgets what a resumed run makes again.
"""
import json
import struct
import sys

from tensorboard.backend.event_processing import event_accumulator

out = sys.argv[1]
reader = event_accumulator.EventAccumulator(out + "/tensorboard", size_guidance={event_accumulator.SCALARS: 0})
reader.Reload()
theirs = {}
for tag in reader.Tags()["scalars"]:
    theirs[tag] = {e.step: e.value for e in reader.Scalars(tag)}

ours = {}
for line in open(out + "/metrics.jsonl"):
    x = json.loads(line)
    if x["kind"] == "run" and x["first_step"] > 1:  # it continues: what it makes again counts
        ours = {tag: {s: v for s, v in points.items() if s < x["first_step"]} for tag, points in ours.items()}
    if x["kind"] == "step":
        for key in ("loss", "lr", "grad_norm", "tokens_per_s"):
            ours.setdefault("train/" + key, {})[x["step"]] = x[key]
    if x["kind"] == "eval":
        for key in ("loss", "accuracy"):
            ours.setdefault(x["split"] + "/" + key, {})[x["step"]] = x[key]

fp32 = lambda x: struct.unpack("f", struct.pack("f", x))[0]
bad = []
for tag in sorted(set(ours) | set(theirs)):
    a, b = ours.get(tag, {}), theirs.get(tag, {})
    # metrics.jsonl has one decimal of tokens/s
    near = lambda x, y: abs(x - y) <= 0.06 + 1e-7 * x if tag.endswith("tokens_per_s") else fp32(x) == y
    same = a.keys() == b.keys() and all(near(a[s], b[s]) for s in a)
    steps = f"steps {min(b, default=0)} to {max(b, default=0)}"
    print(f"{tag:24} {len(b):6} points, {steps}: {'equal' if same else 'DIFFER'}")
    if not same:
        bad.append(tag)
sys.exit(1 if bad or not theirs else 0)
