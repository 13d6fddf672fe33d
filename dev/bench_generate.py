#!/usr/bin/env python3
"""Tokens/s of text, one at a time, beside transformers.generate on the same weights (random ones, exported).

    dev/bench_generate.py          # MODELS ("gpt2 smollm2-135m"), TOKENS (64), ROUNDS (3), THREADS (all cores)

Both continue one prompt of one token with a key and value cache, greedily. A round times a long and a short text; their
difference is that of the tokens alone. The two programs take turns; printed are medians. A token reads every weight
once: bytes/s are tokens/s times the weights' bytes.
"""
import os
import statistics
import subprocess
import tempfile
import time

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "train_gpt_fsdp")
MODELS = os.environ.get("MODELS", "gpt2 smollm2-135m").split()
TOKENS, ROUNDS = int(os.environ.get("TOKENS", 64)), int(os.environ.get("ROUNDS", 3))
THREADS = int(os.environ.get("THREADS", len(os.sched_getaffinity(0))))


def ours(model, tokens, out):
    command = [PROGRAM, "--init_from", model, "--sample_only", "--temperature", "0", "--seq_len", str(TOKENS + 16),
               "--sample_tokens", str(tokens), "--threads", str(THREADS), "--out", out, "--report", "off"]
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def theirs(model, tokens):
    import torch
    began = time.perf_counter()
    with torch.inference_mode():
        model.generate(torch.tensor([[1]]), max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False,
                       use_cache=True, attention_mask=torch.ones(1, 1), pad_token_id=0)
    return time.perf_counter() - began


def main():
    try:
        import torch
        import transformers
        torch.set_num_threads(THREADS)
    except ImportError:
        transformers = None
    print(f"one text, fp32, {THREADS} threads | tokens/s | GB/s | transformers | ratio")
    for name in MODELS:
        with tempfile.TemporaryDirectory() as directory:
            model = os.path.join(directory, "model")
            subprocess.run([PROGRAM, "--model", name, "--data", "random", "--seq_len", "8", "--batch_size", "1",
                            "--max_steps", "1", "--eval_every", "-1", "--save_every", "-1", "--sample_tokens", "0",
                            "--report", "off", "--out", os.path.join(directory, "made"), "--export_hf", model],
                           check=True, stdout=subprocess.DEVNULL)
            bytes_ = os.path.getsize(os.path.join(model, "model.safetensors"))
            loaded = transformers.AutoModelForCausalLM.from_pretrained(model).eval() if transformers else None
            times = ([], [])
            for _ in range(ROUNDS):
                out = os.path.join(directory, "out")
                times[0].append(TOKENS / (ours(model, TOKENS + 8, out) - ours(model, 8, out)))
                if loaded:
                    times[1].append(TOKENS / (theirs(loaded, TOKENS + 8) - theirs(loaded, 8)))
            own = statistics.median(times[0])
            their = statistics.median(times[1]) if loaded else float("nan")
            print(f"{name} | {own:.1f} | {own * bytes_ / 1e9:.1f} | {their:.1f} | {own / their:.2f}", flush=True)


if __name__ == "__main__":
    main()
