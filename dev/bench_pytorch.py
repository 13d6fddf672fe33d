#!/usr/bin/env python3
"""The same GPT in PyTorch, for comparison with train_gpt_fsdp in `make bench`.

CPU      python3 dev/bench_pytorch.py --serve --model small --form "bf16 params" --compile
         One process of a variant, controlled by its standard input, so that two programs can take turns. It makes one
         step that is not counted and says ready, makes N steps for each line `N`, and ends at the end of its input.
         Answers are JSON lines: the milliseconds of the steps, and memory in bytes: `idle`, resident before the model
         (torch imported, with --compile also a toy compiled, with ranks the group joined); `state`, of parameters,
         gradients and optimizer; `peak`, the most that was resident in the steps after the first.
         --ranks 2 --rank R --rendezvous FILE for each of two on gloo, --parallel fsdp1, fsdp2 or ddp. Cores are
         divided evenly. Forms: fp32, bf16 autocast, bf16 params (no fp32 copy on one process and DDP; FSDP keeps fp32
         shards, gathers and reduces bf16), bf16 params, fp32 reduce (FSDP). dev/bench_ratios.py lists the variants.
CUDA     python3 dev/bench_pytorch.py --device cuda --model gpt2 --dtype bf16 --compile --seq_len 1024 --global_batch 64
         One JSON line: median tokens/s over the timed steps, on random tokens, of the fastest combination that runs of
         bf16 parameters or autocast (--form) and of whose attention (--attention): cudnn, cuDNN's; flash, PyTorch's own
         FlashAttention-2; fa3, FlashAttention-3 where the package flash_attn_3 is there. The line says which it was.
         The attentions are compared in the first form, then the forms with the fastest of them; each is compiled anew,
         so to name one of each saves minutes. In bf16 no other attention is allowed. No TF32 unless --tf32,
         vocabulary padded to a multiple of 64 as in train_gpt_fsdp, ranks on NCCL, one per GPU, with FSDP2
         (--parallel ddp: DDP). With GATE=FILE in the environment a combination that has compiled and made its first
         steps waits until FILE exists, so that the compiler can work while the GPU is another's.
Quality  python3 dev/bench_pytorch.py --curve --model small --cache tokens-KEY.bin
         300 steps (--steps) of batch 32 (--global_batch): AdamW lr 1e-3 (--lr), betas .9 .95, decay .1 on matrices,
         5 % warm-up, cosine to 10 %, clip 1, on the ids that train_gpt_fsdp made. Samples are the same windows, in a
         random order by --seed.
         One JSON line per step and a last one with the mean validation loss, every validation token predicted once.
AdamW is the fused one, attention scaled_dot_product_attention. Weights start as N(0, 0.02), projections into the
residual stream scaled by 1/sqrt(2 layers), biases 0, norms 1.
"""

import argparse
import gc
import importlib.util
import json
import math
import os
import statistics
import sys
import tempfile
import time
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

# What a model of modern blocks differs in from GPT-2's.
GPT2 = dict(norm="layernorm", norm_weight=True, norm_embedding=False, rope_theta=0, qk_norm="", mlp="gelu", bias=True,
            softcap=0, eps=1e-5, tied=True)
LLAMA = dict(norm="rmsnorm", rope_theta=1e4, mlp="swiglu", bias=False)
MODERN = LLAMA | dict(qk_norm="before", tied=False)
MODELS = {
    "tiny": dict(n_layer=4, n_head=4, n_embd=128, vocab_size=2048, seq_len=128, batch=32),
    "small": dict(n_layer=6, n_head=8, n_embd=512, vocab_size=5000, seq_len=256, batch=32),
    "modern-small": MODERN | dict(n_layer=6, n_head=8, n_embd=512, mlp_width=1376, vocab_size=5000, seq_len=256,
                                  batch=32),
    "gpt2": dict(n_layer=12, n_head=12, n_embd=768, vocab_size=50257, seq_len=256, batch=4),
    "gpt2-medium": dict(n_layer=24, n_head=16, n_embd=1024, vocab_size=50257, seq_len=256, batch=4),
    "gpt2-large": dict(n_layer=36, n_head=20, n_embd=1280, vocab_size=50257, seq_len=256, batch=4),
    "gpt2-xl": dict(n_layer=48, n_head=25, n_embd=1600, vocab_size=50257, seq_len=256, batch=4),
    "smollm2-135m": LLAMA | dict(n_layer=30, n_head=9, n_kv_head=3, n_embd=576, mlp_width=1536, vocab_size=49152,
                                 seq_len=256, batch=4, rope_theta=1e5),
    "qwen3-0.6b": LLAMA | dict(n_layer=28, n_head=16, n_kv_head=8, head_size=128, n_embd=1024, mlp_width=3072,
                               vocab_size=151936, seq_len=256, batch=4, rope_theta=1e6, qk_norm="before", eps=1e-6),
}
CUDA_WARMUP_STEPS = 5                            # not counted: compilation, choice of algorithms
LR, BETAS, DECAY, CLIP, WARMUP, LR_FLOOR = 1e-3, (0.9, 0.95), 0.1, 1.0, 0.05, 0.1


def make_norm(c, size):
    if c["norm"] == "layernorm":
        return nn.LayerNorm(size, eps=c["eps"])
    return nn.RMSNorm(size, eps=c["eps"], elementwise_affine=c["norm_weight"])


def turned(x, turns):
    """RoPE: x (B,heads,T,D) with its halves turned by the angles whose cosine and sine are `turns`, (T,D/2) each."""
    (a, b), (cos, sin) = x.chunk(2, -1), turns
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        C, self.c = c["n_embd"], c
        self.size = c.get("head_size", C // c["n_head"])
        self.heads = [c["n_head"]] + [c.get("n_kv_head", c["n_head"])] * 2
        width, bias = c.get("mlp_width", 4 * C), c["bias"]
        self.ln_1, self.ln_2 = make_norm(c, C), make_norm(c, C)
        self.c_attn = nn.Linear(C, sum(self.heads) * self.size, bias)
        self.attn_proj = nn.Linear(c["n_head"] * self.size, C, bias)
        self.c_fc, self.mlp_proj = nn.Linear(C, (1 + (c["mlp"] == "swiglu")) * width, bias), nn.Linear(width, C, bias)
        if c["qk_norm"]:
            self.ln_q, self.ln_k = make_norm(c, self.size), make_norm(c, self.size)

    def attention(self, x, turns):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, heads, self.size).transpose(1, 2) for t, heads in zip(
            self.c_attn(x).split([heads * self.size for heads in self.heads], dim=2), self.heads))
        if self.c["qk_norm"] == "before":
            q, k = self.ln_q(q), self.ln_k(k)
        if turns:
            q, k = turned(q, turns), turned(k, turns)
        if self.c["qk_norm"] == "after":
            q, k = self.ln_q(q), self.ln_k(k)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads[0] != self.heads[1])
        return self.attn_proj(y.transpose(1, 2).reshape(B, T, -1))

    def forward(self, x, turns):
        x = x + self.attention(self.ln_1(x), turns)
        y = self.c_fc(self.ln_2(x))
        if self.c["mlp"] == "swiglu":
            gate, up = y.chunk(2, -1)
            return x + self.mlp_proj(F.silu(gate) * up)
        return x + self.mlp_proj(F.relu(y).square() if self.c["mlp"] == "relu2" else F.gelu(y, approximate="tanh"))


class GPT(nn.Module):
    """The blocks that train_gpt_fsdp has, chosen by c: GPT-2's, Llama's, Qwen3's, NanoChat's."""
    def __init__(self, c):
        super().__init__()
        self.c = c = GPT2 | c
        C, V, T = c["n_embd"], c["vocab_size"], c["seq_len"]
        self.wte = nn.Embedding(V, C)
        self.h = nn.ModuleList(Block(c) for _ in range(c["n_layer"]))
        self.ln_f = make_norm(c, C)
        if c["norm_embedding"]:
            self.ln_e = make_norm(c, C)
        if c["rope_theta"]:
            half = self.h[0].size // 2
            angles = torch.arange(T)[:, None] * c["rope_theta"] ** (-torch.arange(half) / half)
            self.register_buffer("cos", angles.cos(), False)
            self.register_buffer("sin", angles.sin(), False)
        else:
            self.wpe = nn.Embedding(T, C)
        if not c["tied"]:
            self.lm_head = nn.Linear(C, V, bias=False)
        for name, p in self.named_parameters():
            if p.ndim >= 2:
                nn.init.normal_(p, std=0.02 / (math.sqrt(2 * c["n_layer"]) if "_proj" in name else 1))
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def logits(self, tokens):
        x, turns, T = self.wte(tokens), None, tokens.shape[1]
        if self.c["norm_embedding"]:
            x = self.ln_e(x)
        if self.c["rope_theta"]:
            turns = self.cos[:T].to(x.dtype), self.sin[:T].to(x.dtype)
        else:
            x = x + self.wpe(torch.arange(T, device=tokens.device))
        for block in self.h:
            x = block(x, turns)
        head = self.wte if self.c["tied"] else self.lm_head
        logits, cap = F.linear(self.ln_f(x), head.weight), self.c["softcap"]
        return cap * torch.tanh(logits / cap) if cap else logits

    def forward(self, tokens, targets, reduction="mean"):
        return F.cross_entropy(self.logits(tokens).flatten(0, 1), targets.flatten(), reduction=reduction)


def make_optimizer(model):
    """Decay on matrices only. By name: FSDP1 has them as flat pieces."""
    def decayed(name):
        return name.endswith("weight") and "ln_" not in name
    groups = [{"params": [p for name, p in model.named_parameters() if decayed(name)], "weight_decay": DECAY},
              {"params": [p for name, p in model.named_parameters() if not decayed(name)], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=LR, betas=BETAS, fused=True)


def train_step(model, optimizer, tokens, targets, autocast):
    with torch.autocast(tokens.device.type, torch.bfloat16, enabled=autocast):
        loss = model(tokens, targets)
    loss.backward()
    clip = getattr(model, "clip_grad_norm_", None)       # FSDP1 has its own: its gradients are pieces
    clip(CLIP) if clip else torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def wrap(model, args, form):
    """Shards or replicates the model over the processes of this run."""
    if args.parallel == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    low = {"param_dtype": torch.bfloat16} if form.startswith("bf16 params") else {}
    if low:
        low["reduce_dtype"] = torch.float32 if form.endswith("fp32 reduce") else torch.bfloat16
    if args.parallel == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
        from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
        return FullyShardedDataParallel(
            model, auto_wrap_policy=partial(transformer_auto_wrap_policy, transformer_layer_cls={Block}),
            mixed_precision=MixedPrecision(**low) if low else None, use_orig_params=True,
            device_id=torch.device(args.device))
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    mesh, policy = init_device_mesh(args.device, (args.ranks,)), MixedPrecisionPolicy(**low)
    for block in model.h:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


class Trainer:
    """One variant with its model and optimizer; step() makes one training step and returns its milliseconds."""

    def __init__(self, args, c, form):
        torch.manual_seed(args.seed)
        self.args, self.c, self.form = args, c, form
        with torch.device(args.device):
            model = GPT(c)
        if form.startswith("bf16 params") and (args.ranks == 1 or args.parallel == "ddp"):
            model = model.bfloat16()           # FSDP keeps fp32 shards and gathers in bf16 instead
        self.model = wrap(model, args, form) if args.ranks > 1 else model
        self.optimizer = make_optimizer(self.model)
        self.run = torch.compile(self.model) if args.compile else self.model

    def step(self):
        args, c = self.args, self.c
        tokens = torch.randint(c["vocab_size"], (args.global_batch // args.ranks, c["seq_len"] + 1)).to(args.device)
        if args.device == "cuda":
            torch.cuda.synchronize()
        if args.ranks > 1:
            dist.barrier()
        start = time.perf_counter()
        train_step(self.run, self.optimizer, tokens[:, :-1], tokens[:, 1:], self.form == "bf16 autocast")
        if args.device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - start) * 1e3

    def state_bytes(self):
        """Of this process's parameters, their gradients (which a step frees) and the optimizer's state."""
        def local_bytes(t):
            t = t.to_local() if hasattr(t, "to_local") else t
            return t.numel() * t.element_size()
        parameters = sum(local_bytes(p) for p in self.model.parameters())
        return 2 * parameters + sum(local_bytes(t) for state in self.optimizer.state.values()
                                    for t in state.values() if torch.is_tensor(t))


def cuda_settings(args, rank):
    torch.cuda.set_device(rank)
    torch.set_float32_matmul_precision("high" if args.tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = args.tf32


def attentions_here():
    """Fastest first, as published for Hopper; fa3 last, as it replaces flash for the rest of the process."""
    there = importlib.util.find_spec("flash_attn_3") and hasattr(torch.nn.attention, "activate_flash_attention_impl")
    return ["cudnn", "flash"] + (["fa3"] if there else [])


def only_attention(name):
    """Allows this attention alone: where it cannot run that is an error, not a slower one."""
    if name == "fa3":
        torch.nn.attention.activate_flash_attention_impl("FA3")
    torch.backends.cuda.enable_math_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(name == "cudnn")
    torch.backends.cuda.enable_flash_sdp(name != "cudnn")


def wait_at_gate():
    gate = os.environ.get("GATE")
    if gate:
        torch.cuda.empty_cache()
        print(f"compiled, waits for {gate}", file=sys.stderr, flush=True)
        while not os.path.exists(gate):
            time.sleep(0.1)


def cuda_times(args, c, form, attention):
    """The milliseconds of each timed step, and the peak GiB."""
    gc.collect()                               # it needs the memory of the last one's model
    torch.compiler.reset()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    if attention:
        only_attention(attention)
    trainer = Trainer(args, c, form)
    for step in range(CUDA_WARMUP_STEPS):
        if step == CUDA_WARMUP_STEPS - 2:
            wait_at_gate()
        trainer.step()
    return [trainer.step() for _ in range(args.steps)], torch.cuda.max_memory_allocated() / 2**30


def fastest(args, c):
    """On CUDA: median milliseconds of a step, form, attention and peak GiB of the fastest combination."""
    tried = {}

    def attempt(form, attention):
        try:
            times, peak_gib = cuda_times(args, c, form, attention)
            tried[form, attention] = (slowest(args, statistics.median(times)), form, attention, peak_gib)
            said = f"{tried[form, attention][0]:.2f} ms"
        except Exception as e:
            if args.ranks > 1 or len(forms) * len(attentions) == 1:
                raise
            said = f"cannot run: {type(e).__name__}: {str(e).strip().splitlines()[:1]}"
        print(f"{form}, {attention or 'any'} attention: {said}", file=sys.stderr, flush=True)

    forms = ["fp32"] if args.dtype == "fp32" else [args.form] if args.form else ["bf16 params", "bf16 autocast"]
    attentions = [""] if args.dtype == "fp32" else [args.attention] if args.attention else attentions_here()
    for attention in attentions:
        attempt(forms[0], attention)
    for form in forms[1:]:
        attempt(form, min(tried.values())[2] if tried else attentions[0])
    if not tried:
        raise SystemExit("none of these could run")
    return min(tried.values())


def slowest(args, ms):
    """The same number on every process: the slowest one's."""
    if args.ranks > 1:
        t = torch.tensor([ms], dtype=torch.float64, device=args.device)
        dist.all_reduce(t, dist.ReduceOp.MAX)
        ms = float(t)
    return ms


def join(args, rank, rendezvous):
    if args.ranks > 1:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo" if args.device == "cpu" else "nccl", init_method=f"file://{rendezvous}",
                                rank=rank, world_size=args.ranks)


def cuda_measure(rank, args, rendezvous):
    cuda_settings(args, rank)
    join(args, rank, rendezvous)
    c = MODELS[args.model] | {"seq_len": args.seq_len}
    c["vocab_size"] = -(-c["vocab_size"] // 64) * 64
    ms, best, attention, peak_gib = fastest(args, c)
    if rank == 0:
        kind = "" if args.ranks == 1 else " " + args.parallel
        form = best + kind + (" compiled" if args.compile else "") + (f" {attention} attention" if attention else "")
        tokens_per_s = round(args.global_batch * c["seq_len"] / ms * 1e3, 1)
        result = {"model": args.model, "dtype": args.dtype, "ranks": args.ranks, "form": form, "ms": round(ms, 2),
                  "tokens_per_s": tokens_per_s, "peak_gib": round(peak_gib, 1)}
        print(json.dumps(result), flush=True)
    if args.ranks > 1:
        dist.destroy_process_group()


def memory_bytes(key):
    """VmRSS or VmHWM of this process."""
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith(key + ":"))


def serve(args):
    """On the CPU, one process: runs the steps that the standard input requests."""
    torch.set_num_threads(max(1, (args.threads or len(os.sched_getaffinity(0))) // args.ranks))
    torch.set_float32_matmul_precision(args.matmul_precision)
    join(args, args.rank, args.rendezvous)
    if args.compile:                           # loads the compiler, whose memory is not part of the model's
        torch.compile(nn.Linear(8, 8))(torch.ones(8, 8)).sum().backward()
    idle = memory_bytes("VmRSS")
    trainer = Trainer(args, MODELS[args.model] | {"seq_len": args.seq_len}, args.form or args.dtype)
    first = trainer.step()
    gc.collect()
    with open("/proc/self/clear_refs", "w") as f:
        f.write("5")                           # VmHWM counts from here, without the memory of compiling
    said = {"ready": True, "first_ms": round(first, 1), "isa": torch.backends.cpu.get_cpu_capability(), "idle": idle,
            "state": trainer.state_bytes()}
    print(json.dumps(said), flush=True)
    for line in sys.stdin:
        times = [round(trainer.step(), 2) for _ in range(int(line))]
        print(json.dumps({"ms": times, "peak": memory_bytes("VmHWM")}), flush=True)
    os._exit(0)                                # no goodbye between ranks: the other may be gone


def learning_rate(step, steps, peak):
    """Linear warm-up over the first 5 % of the steps, then a cosine down to 10 %."""
    warmup = max(1, round(WARMUP * steps))
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    return peak * (LR_FLOOR + (1 - LR_FLOOR) * 0.5 * (1 + math.cos(math.pi * progress)))


@torch.no_grad()
def validation_loss(model, ids, T):
    """Mean loss over ids[1:], each predicted once, in windows of T."""
    total, count = 0.0, len(ids) - 1
    full = count // T
    inputs, targets = ids[:full * T].view(full, T), ids[1:full * T + 1].view(full, T)
    for i in range(0, full, 32):
        total += float(model(inputs[i:i + 32], targets[i:i + 32], "sum"))
    if count > full * T:
        total += float(model(ids[None, full * T:count], ids[None, full * T + 1:], "sum"))
    return total / count


def read_cache(path):
    """The train and valid ids of a token cache of train_gpt_fsdp (CacheMark in data/dataloader.h)."""
    with open(path, "rb") as f:
        head = f.read(1024)
        magic = int(np.frombuffer(head[:4], "<i4")[0])
        if magic not in (20240520, 20240801):
            raise SystemExit(f"{path} is no token cache: it starts with {head[:8]!r}")
        train, valid = np.frombuffer(head[80:96], "<i8")         # CacheMark, after key and tokenizer_hash
        ids = np.fromfile(f, "<u2" if magic == 20240520 else "<u4", train + valid).astype(np.int64)
    return torch.from_numpy(ids[:train]), torch.from_numpy(ids[train:])


def curve(args):
    c = MODELS[args.model]
    T, B = c["seq_len"], args.global_batch
    train, val = read_cache(args.cache)
    c = c | {"vocab_size": args.vocab_size or int(max(train.max(), val.max())) + 1}
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads or len(os.sched_getaffinity(0)))
    model = GPT(c).to(args.device)
    train, val = train.to(args.device), val.to(args.device)
    optimizer = make_optimizer(model)
    samples = (len(train) - 1) // T
    order = torch.cat([torch.randperm(samples) for _ in range(-(-args.steps * B // samples))])
    for step in range(args.steps):
        at = (order[step * B:(step + 1) * B, None] * T + torch.arange(T)).to(args.device)
        lr = learning_rate(step, args.steps, args.lr)
        for group in optimizer.param_groups:
            group["lr"] = lr
        start = time.perf_counter()
        loss = train_step(model, optimizer, train[at], train[at + 1], args.dtype == "bf16")
        if args.device == "cuda":
            torch.cuda.synchronize()
        ms = (time.perf_counter() - start) * 1e3
        print(json.dumps({"step": step, "loss": float(loss), "lr": lr, "ms": round(ms, 1)}), flush=True)
    result = {"steps": args.steps, "val_loss": validation_loss(model, val, T), "val_tokens": len(val) - 1}
    print(json.dumps(result), flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", choices=MODELS, default="small")
    p.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    p.add_argument("--form", choices=["fp32", "bf16 autocast", "bf16 params", "bf16 params, fp32 reduce"],
                   help="else the faster of bf16 params and autocast (cuda)")
    p.add_argument("--attention", choices=["cudnn", "flash", "fa3"], help="cuda: else the fastest that is there")
    p.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    p.add_argument("--ranks", type=int, default=1)
    p.add_argument("--rank", type=int, default=0, help="with --serve: which of them this process is")
    p.add_argument("--rendezvous", help="with --serve: a file that does not exist yet, the same for all ranks")
    p.add_argument("--parallel", choices=["fsdp1", "fsdp2", "ddp"], default="fsdp2")
    p.add_argument("--matmul_precision", choices=["highest", "high", "medium"], default="highest", help="with --serve")
    p.add_argument("--global_batch", type=int, help="sequences per step over all ranks")
    p.add_argument("--seq_len", type=int, help="tokens of a sequence")
    p.add_argument("--tf32", action="store_true", help="--device cuda: fp32 products may use TF32")
    p.add_argument("--steps", type=int)
    p.add_argument("--threads", type=int, default=0, help="of all ranks together; 0: every core of this machine")
    p.add_argument("--compile", action="store_true")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--serve", action="store_true", help="on the CPU: measure as the standard input says")
    p.add_argument("--curve", action="store_true")
    p.add_argument("--cache", help="with --curve: the token cache that train_gpt_fsdp left")
    p.add_argument("--lr", type=float, default=LR, help="with --curve")
    p.add_argument("--vocab_size", type=int, help="with --curve; otherwise the largest id decides")
    args = p.parse_args()
    cuda = args.device == "cuda"
    args.global_batch = args.global_batch or MODELS[args.model]["batch"]
    args.seq_len = args.seq_len or MODELS[args.model]["seq_len"]
    args.steps = args.steps or (300 if args.curve else 5)
    if args.global_batch % args.ranks:
        p.error(f"--ranks {args.ranks} does not divide the batch of {args.global_batch}")
    if cuda and torch.cuda.device_count() < args.ranks:
        p.error(f"--device cuda with {args.ranks} ranks: torch sees {torch.cuda.device_count()} GPUs")
    if args.serve and (cuda or args.ranks > 1 and not args.rendezvous):
        p.error("--serve is for the CPU, and with several ranks needs --rendezvous")
    if args.curve:
        if not args.cache:
            p.error("--curve needs --cache")
        curve(args)
    elif args.serve:
        serve(args)
    elif not cuda:
        p.error("on the CPU: --serve or --curve")
    elif args.ranks == 1:
        cuda_measure(0, args, None)
    else:
        with tempfile.TemporaryDirectory() as directory:
            torch.multiprocessing.spawn(cuda_measure, (args, os.path.join(directory, "rendezvous")), nprocs=args.ranks)


if __name__ == "__main__":
    main()
