#!/usr/bin/env python3
"""Tuning of a published shape, by adapters and whole, beside PyTorch with transformers and PEFT: ARGS=lora.

Usage: bench_lora.py [ROW...]       needs torch, transformers, peft; rows: lora-fp32 lora-bf16 full-fp32 full-bf16, and
                                    with bitsandbytes nf4-fp32 nf4-bf16: adapters beside matrices in 4 bits

Random weights of the shape are written once; both programs read them, train on random tokens, BATCH sequences of 256
per step, AdamW and clipping included, adapters of rank 16 beside all of a block's matrices, and take turns, ROUNDS
times. Printed are the median over rounds of tokens/s (of the median step) and the least peak of memory, all of the
process's; torch's own without a model is said apart. PyTorch is the faster of eager and compiled, attention
scaled_dot_product_attention, AdamW fused. In bf16 its weights are bf16, as PEFT and transformers load them: adapters
are fp32, and in full tuning there is no fp32 copy, while this program keeps one. NF4 is bitsandbytes', blocks of 64
with scales in fp32, computed with in the row's dtype; in both programs the embedding, which is the head, stays in that
dtype.

Environment: ROUNDS (3), STEPS (5), BATCH (4), SHAPE (smollm2-135m; qwen2.5-0.5b, llama-3.2-1b), LAYERS (the shape's),
FORMS ("eager compiled"), OUT (a directory to keep everything in), TRAIN_GPT_FSDP (the program).
"""
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SHAPES = {"smollm2-135m": ("Llama", 49152, 576, 1536, 30, 9, 3),
          "qwen2.5-0.5b": ("Qwen2", 151936, 896, 4864, 24, 14, 2),
          "llama-3.2-1b": ("Llama", 128256, 2048, 8192, 16, 32, 8)}
SHAPE = os.environ.get("SHAPE", "smollm2-135m")
FAMILY, VOCAB, WIDTH, MLP, _, HEADS, KV_HEADS = SHAPES[SHAPE]
ROUNDS, STEPS, BATCH, LAYERS = (int(os.environ.get(*x)) for x in (("ROUNDS", 3), ("STEPS", 5), ("BATCH", 4),
                                                                   ("LAYERS", SHAPES[SHAPE][4])))
FORMS = os.environ.get("FORMS", "eager compiled").split()
PROGRAM = os.environ.get("TRAIN_GPT_FSDP", os.path.join(HERE, "..", "train_gpt_fsdp"))
T, RANK, UNCOUNTED = 256, 16, 2
ROWS = ["lora-fp32", "lora-bf16", "full-fp32", "full-bf16"]
ROWS_4BIT = ["nf4-fp32", "nf4-bf16"]


def write_weights(directory):
    import torch
    import transformers
    torch.manual_seed(1)
    config = getattr(transformers, FAMILY + "Config")(
        vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=MLP, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, max_position_embeddings=8192, rms_norm_eps=1e-5,
        initializer_range=1 / 24, tie_word_embeddings=True, bos_token_id=0, eos_token_id=0,
        rope_parameters={"rope_theta": 1e5, "rope_type": "default"})
    getattr(transformers, FAMILY + "ForCausalLM")(config).save_pretrained(directory)


def torch_worker(directory, row, form):
    """Prints the milliseconds of each step, and what was resident without a model."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    idle = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    dtype = torch.bfloat16 if row.endswith("bf16") else torch.float32
    four = {}
    if row.startswith("nf4"):
        from transformers import BitsAndBytesConfig
        four = {"device_map": "cpu", "quantization_config": BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)}
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, attn_implementation="sdpa", **four)
    model.config.use_cache = False
    if not row.startswith("full"):
        model = get_peft_model(model, LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules="all-linear",
                                                 task_type="CAUSAL_LM"))
    weights = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=1e-4, betas=(0.9, 0.95), fused=True)
    call = torch.compile(model) if form == "compiled" else model
    ms = []
    for _ in range(UNCOUNTED + STEPS):
        ids = torch.randint(0, VOCAB, (BATCH, T + 1))
        start = time.perf_counter()
        logits = call(input_ids=ids[:, :-1]).logits
        torch.nn.functional.cross_entropy(logits.float().view(-1, logits.shape[-1]), ids[:, 1:].reshape(-1)).backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        ms.append((time.perf_counter() - start) * 1e3)
    print(json.dumps({"ms": ms[UNCOUNTED:], "idle": idle}))


def peak_of(command, log):
    """Runs a command; its peak of resident memory in bytes."""
    with open(log, "w") as f:
        child = subprocess.Popen(command, stdout=f, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(child.pid, 0)
    if status:
        sys.exit(f"bench: {' '.join(command)} failed:\n{open(log).read()[-2000:]}")
    return used.ru_maxrss * 1024


def ours(out, row):
    run = os.path.join(out, "ours")
    adapters = [] if row.startswith("full") else ["--lora", str(RANK)]
    if row.startswith("nf4"):
        adapters += ["--base_dtype", "nf4"]
    peak = peak_of([PROGRAM, "--device", "cpu", "--init_from", os.path.join(out, "weights"), "--data", "random",
                    "--seq_len", str(T), "--batch_size", str(BATCH), "--max_steps", str(UNCOUNTED + STEPS), "--lr",
                    "1e-4", "--param_dtype", row[-4:], "--sample_tokens", "0", "--eval_every", "-1", "--save_every",
                    "-1", "--report", "off", "--out", run] + adapters, run + ".log")
    steps = [json.loads(line) for line in open(os.path.join(run, "metrics.jsonl")) if '"kind":"step"' in line]
    return statistics.median(s["tokens_per_s"] for s in steps[-STEPS:]), peak, 0


def theirs(out, row, form):
    log = os.path.join(out, "torch.log")
    peak = peak_of([sys.executable, os.path.abspath(__file__), "--worker", os.path.join(out, "weights"), row, form],
                   log)
    said = json.loads(open(log).read().strip().split("\n")[-1])
    return BATCH * T / statistics.median(said["ms"]) * 1e3, peak, said["idle"]


def main(rows):
    with tempfile.TemporaryDirectory() as scratch:
        out = os.environ.get("OUT") or scratch
        os.makedirs(out, exist_ok=True)
        if not os.path.exists(os.path.join(out, "weights", "config.json")):
            # Not here: a child's peak counts what was resident in this process when it was forked.
            subprocess.run([sys.executable, os.path.abspath(__file__), "--weights", os.path.join(out, "weights")],
                           check=True, stderr=subprocess.DEVNULL)
        print(f"{SHAPE}'s shape, {LAYERS} blocks, {BATCH} x {T} tokens per step, adapters of rank {RANK}, 1 process")
        print(f"{'':10} {'tokens/s':>9} {'PyTorch':>9} {'':>8} {'ratio':>6} {'MiB':>7} {'PyTorch':>8} {'ratio':>6} "
              f"{'torch alone':>12}")
        for row in rows:
            found = {}
            for _ in range(ROUNDS):
                for name in ["ours", *FORMS]:
                    got = ours(out, row) if name == "ours" else theirs(out, row, name)
                    found.setdefault(name, []).append(got)
            rate = {name: statistics.median(x[0] for x in got) for name, got in found.items()}
            peak = {name: min(x[1] for x in got) / 2**20 for name, got in found.items()}
            best = max(FORMS, key=rate.get)
            print(f"{row:10} {rate['ours']:9.0f} {rate[best]:9.0f} {best:>8} {rate['ours'] / rate[best]:6.2f} "
                  f"{peak['ours']:7.0f} {peak[best]:8.0f} {peak['ours'] / peak[best]:6.2f} "
                  f"{found[best][0][2] / 2**20:12.0f}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        torch_worker(*sys.argv[2:5])
    elif sys.argv[1:2] == ["--weights"]:
        write_weights(sys.argv[2])
    else:
        unknown = [x for x in sys.argv[1:] if x not in ROWS + ROWS_4BIT]
        if unknown:
            sys.exit(f"bench: rows: {', '.join(ROWS + ROWS_4BIT)}; not {', '.join(unknown)}")
        main(sys.argv[1:] or ROWS)
