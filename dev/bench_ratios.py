#!/usr/bin/env python3
"""train_gpt_fsdp against the fastest PyTorch on this CPU, and against Hugging Face tokenizers: one table of ratios.

    PYTHON=venv/bin/python make bench ARGS=ratios          # every row, and a file dev/results/DATE-ratios.md
    PYTHON=venv/bin/python make bench ARGS="ratios 'small bf16'"   # groups whose names match one of these; no file

A group is a model in a dtype. Its contestants take turns, round by round, because a machine's speed drifts and
neighbours disturb it: the program on one rank and on two, PyTorch in one process and in two. A number is the median
over rounds of the median over a round's steps; the first step of either side (memory touched for the first time,
compilation) is not counted. Both train the same shapes on random tokens, clipping and AdamW included, on all cores.

PyTorch runs in its fastest variant of that dtype. Each stage of a search changes one thing and keeps the faster: the
GEMM library, eager or compiled in each form of bf16 (two processes: FSDP1 and FSDP2 too), the allocator, how threads
wait and where they are bound. Two processes start from the environment that was fastest for one. DDP is reported but
not compared: it shards nothing. A variant that fails is named in the file.

Environment: PYTHON with torch and tokenizers, MPIRUN, ROUNDS (3), STEPS (at most 5 timed per round, fewer if they take
more than 4 s), MODELS ("small gpt2"; also modern-small, smollm2-135m), DTYPES ("fp32 bf16"), MICROBATCH ("small:8
gpt2:4": sequences that the program takes at once, on all ranks together; the rest of the global batch accumulates), OUT
(a directory that keeps logs, compiled code and the choice of variants, which a later run with the same OUT reuses),
LIBIOMP5 (Intel's OpenMP runtime, to be tried in PyTorch), RESULTS (the file to write).
"""

import dataclasses
import datetime
import glob
import json
import os
import re
import select
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = os.path.join(HERE, "..", "train_gpt_fsdp")
PYTHON, MPIRUN = os.environ.get("PYTHON", sys.executable), os.environ.get("MPIRUN", "mpirun")
ROUNDS, STEPS, ROUND_SECONDS = int(os.environ.get("ROUNDS", 3)), int(os.environ.get("STEPS", 5)), 4.0
# Vocabulary, sequences of 256 tokens per step, and whose goals it has.
MODELS = {"small": ("5000", 32, "small"), "gpt2": ("50257", 4, "gpt2"), "modern-small": ("5000", 32, "small"),
          "smollm2-135m": ("49152", 4, "gpt2")}
# By instruction set. PyTorch emulates bf16 GEMMs at 1 GFLOP/s where it must: one step of gpt2 takes minutes on AVX2, so
# only `small` is compared there.
ISA_BATCH = {"fp32": 8, "bf16": 2}
SEARCH_BATCH = 8                     # for the search among variants
GIVE_UP = 1.3                        # a variant this much slower than the best is not measured again
TOKENS = 256
MICROBATCH = dict(pair.split(":") for pair in
                  os.environ.get("MICROBATCH", "small:8 gpt2:4 modern-small:8 smollm2-135m:4").split())
CORES = len(os.sched_getaffinity(0))
FLAGS = set(re.search(r"^flags\s*:(.*)$", open("/proc/cpuinfo").read(), re.M)[1].split())
AMX = "amx_bf16" in FLAGS
LIMIT_S = 600                                                        # for one answer from PyTorch

# The least ratios for this program / PyTorch, on a machine with AMX and on others.
GOALS = {"one": {"small fp32": (1.1, 1.0), "gpt2 fp32": (1.0, 1.0), "small bf16": (2.5, 1.0), "gpt2 bf16": (2.0, 1.0)},
         "two": {"small fp32": (1.1, 1.0), "gpt2 fp32": (1.5, 1.0), "small bf16": (2.2, 1.0), "gpt2 bf16": (3.0, 1.0)},
         "high": {"small fp32": (1.6, 1.6), "gpt2 fp32": (1.4, 1.4)}}
SHARDING_GOAL, BPE_GOAL, ENCODE_GOAL, MEMORY_GOAL, EXTRA_GOAL, START_GOAL_S = 0.9, 1.5, 5.0, 1.0, 1 / 3, 1.0



# Restricts PyTorch to an instruction set: its own and compiled kernels, oneDNN and MKL have one variable each.
def torch_isa(aten, onednn):
    return {"ATEN_CPU_CAPABILITY": aten, "ONEDNN_MAX_CPU_ISA": onednn, "MKL_ENABLE_INSTRUCTIONS": aten.upper()}


TORCH_ISA = {"": {}, "avx2": torch_isa("avx2", "AVX2"), "avx512": torch_isa("avx512", "AVX512_CORE_VNNI"),
             "avx512_bf16": torch_isa("avx512", "AVX512_CORE_BF16")}


def say(text):
    print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)


# ---- PyTorch --------------------------------------------------------------------------------------------------------
@dataclasses.dataclass(frozen=True)
class Variant:
    """How PyTorch is run. The last three change its environment only."""
    form: str
    compiled: bool = False
    parallel: str = ""
    products: str = ""
    allocator: str = ""
    threads: str = ""

    def name(self):
        parts = [self.form, self.parallel, "compiled" if self.compiled else "eager", self.products, self.allocator,
                 self.threads]
        return ", ".join(part for part in parts if part)

    def environment(self, out, isa, rank, ranks):
        env, preload = dict(os.environ) | TORCH_ISA[isa], []
        env["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(out, f"inductor-{isa}")
        if self.products == "oneDNN" and not isa:
            env["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_VNNI" if "avx512f" in FLAGS else "AVX2"
        if self.products == "MKL as on Intel":
            preload.append(intel_dispatch(out))
        if self.allocator:
            library, options = ALLOCATORS[self.allocator]
            preload += [library] if library else []
            env |= options
        if self.threads:
            cpus = sorted(os.sched_getaffinity(0))
            mine = cpus[rank * len(cpus) // ranks:(rank + 1) * len(cpus) // ranks] or cpus
            env["GOMP_CPU_AFFINITY"] = " ".join(map(str, mine))
        if self.threads == "iomp":
            preload.append(LIBIOMP5)
            env["KMP_BLOCKTIME"] = "1"
            env["KMP_AFFINITY"] = f"granularity=fine,proclist=[{','.join(map(str, mine))}],explicit"
            del env["GOMP_CPU_AFFINITY"]
        if preload:
            env["LD_PRELOAD"] = ":".join(preload)
        return env


def find_library(pattern):
    found = [path for directory in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/lib", "/usr/lib")
             for path in sorted(glob.glob(os.path.join(directory, pattern)))]
    return found[0] if found else ""


ALLOCATORS = {"THP malloc": ("", {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"})}
for allocator_name, pattern, options in (
        ("tcmalloc", "libtcmalloc_minimal.so.4", {}), ("jemalloc", "libjemalloc.so.2", {
            "MALLOC_CONF": "thp:always,dirty_decay_ms:-1,muzzy_decay_ms:-1,metadata_thp:auto"})):
    if find_library(pattern):
        ALLOCATORS[allocator_name] = (find_library(pattern), options)
LIBIOMP5 = os.environ.get("LIBIOMP5", "")


def intel_dispatch(out):
    """MKL uses its slow kernels on a CPU that is not Intel's, unless a preloaded function reports an Intel CPU."""
    path = os.path.join(out, "intel_dispatch.so")
    if not os.path.exists(path):
        subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", path], text=True, check=True,
                       input="int mkl_serv_intel_cpu_true(void) { return 1; }\n")
    return path


class Failed(Exception):
    pass


class Torch:
    """PyTorch's processes of one variant, which wait between their turns."""

    def __init__(self, out, model, batch, ranks, variant, isa, precision="highest"):
        self.batch, self.peak, self.log = batch, 0, os.path.join(out, "torch.log")
        self.processes, self.buffers = [], []
        rendezvous = tempfile.mktemp(dir=out, prefix="rendezvous-")
        precision = "medium" if variant.products == "oneDNN" else precision
        command = [PYTHON, os.path.join(HERE, "bench_pytorch.py"), "--serve", "--model", model, "--form", variant.form,
                   "--global_batch", str(batch), "--ranks", str(ranks), "--matmul_precision", precision]
        command += ["--compile"] if variant.compiled else []
        command += ["--parallel", variant.parallel, "--rendezvous", rendezvous] if ranks > 1 else []
        with open(self.log, "w") as log:
            for rank in range(ranks):
                self.processes.append(subprocess.Popen(
                    command + ["--rank", str(rank)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                    env=variant.environment(out, isa, rank, ranks)))
                self.buffers.append(b"")
        ready = self.answers()
        self.idle, self.state, self.first_ms = (max(answer[key] for answer in ready)
                                                for key in ("idle", "state", "first_ms"))

    def answers(self):
        """One JSON line from each process. If one ended or stays silent too long, all are ended."""
        deadline, lines = time.time() + LIMIT_S, [None] * len(self.processes)
        while None in lines:
            waiting = [p.stdout for p, line in zip(self.processes, lines) if line is None]
            readable = select.select(waiting, [], [], max(0, deadline - time.time()))[0]
            if not readable:
                self.fail(f"no answer in {LIMIT_S} s")
            for i, process in enumerate(self.processes):
                if process.stdout not in readable:
                    continue
                more = os.read(process.stdout.fileno(), 65536)
                if not more:
                    self.fail(f"rank {i} ended with {process.wait()}")
                self.buffers[i] += more
                while b"\n" in self.buffers[i]:                      # libraries print there, too
                    line, self.buffers[i] = self.buffers[i].split(b"\n", 1)
                    lines[i] = json.loads(line) if line.startswith(b"{") else lines[i]
        return lines

    def fail(self, why):
        self.close()
        last = [line.strip() for line in open(self.log, errors="replace") if "Error" in line or "error" in line][-1:]
        raise Failed(f"{why}: {''.join(last)[:160]}" if last else why)

    def steps(self, count):
        """Milliseconds of each of `count` steps, of the slowest process."""
        try:
            for process in self.processes:
                process.stdin.write(f"{count}\n".encode())
                process.stdin.flush()
        except BrokenPipeError:
            self.fail("a process ended between its turns")
        answers = self.answers()
        self.peak = max([self.peak] + [answer["peak"] for answer in answers])
        return [max(ms) for ms in zip(*(answer["ms"] for answer in answers))]

    def turn(self):
        times = self.steps(1)
        more = min(STEPS, int(ROUND_SECONDS / (times[0] * 1e-3))) - 1
        times += self.steps(more) if more > 0 else []
        return self.batch * TOKENS / statistics.median(times) * 1e3

    def close(self):
        for process in self.processes:
            process.stdin.close() if not process.stdin.closed else None
            process.kill()
        for process in self.processes:
            process.wait()


def challengers(best, dtype, ranks, isa, stage):
    """The variants of one stage of the search: `best` with one thing changed."""
    def change(**what):
        return dataclasses.replace(best, **what)
    if stage == "products":
        found = [change(products="oneDNN")] if dtype == "fp32" and isa != "avx2" else []
        if "GenuineIntel" not in open("/proc/cpuinfo").read() and (dtype == "fp32" or isa) and shutil.which("cc"):
            found.append(change(products="MKL as on Intel"))
        return found if ranks == 1 else []
    if stage == "form":
        forms = ["fp32"] if dtype == "fp32" else ["bf16 params", "bf16 autocast"]
        parallels = [""] if ranks == 1 else ["fsdp1", "fsdp2"]
        return [change(form=form, compiled=compiled, parallel=parallel) for parallel in parallels for form in forms
                for compiled in (False, True) if ranks == 1 or form != "bf16 autocast" or not compiled]
    if stage == "allocator" and ranks == 1 and not isa:
        return [change(allocator=name) for name in ALLOCATORS]
    if stage == "threads" and not isa:
        return [change(threads="bound")] + ([change(threads="iomp")] if LIBIOMP5 and ranks == 1 else [])
    if stage == "reduce" and ranks > 1 and dtype == "bf16":
        return [change(form="bf16 params, fp32 reduce")]
    return []


def fastest_variant(report, out, model, dtype, batch, ranks, isa, start):
    """Searches stage by stage; the report lists every trial. None if nothing runs."""
    def measure(variant, best_ms=None):
        """Milliseconds per step: the better of two, after the first. One that is far behind gets fewer steps."""
        limit = GIVE_UP * best_ms if best_ms else float("inf")
        try:
            torch = Torch(out, model, batch, ranks, variant, isa)
            ms = torch.first_ms
            if variant.compiled or ms < 1.5 * limit:
                ms = torch.steps(1)[0]
            if ms < limit:
                ms = min([ms] + torch.steps(1))
            torch.close()
            report.append(f"  {variant.name()}: {batch * TOKENS / ms * 1e3:.0f}")
        except Failed as why:
            ms = None
            report.append(f"  {variant.name()}: FAILED, {why}")
        say(report[-1])
        return ms

    best, best_ms, tried = start, measure(start), {start}
    for stage in ("products", "form", "reduce", "allocator", "threads"):
        winner = best
        for variant in challengers(best, dtype, ranks, isa, stage):
            if variant in tried:
                continue
            tried.add(variant)
            ms = measure(variant, best_ms)
            if ms and (not best_ms or ms < best_ms):
                winner, best_ms = variant, ms
        best = winner
    if ranks > 1:
        measure(dataclasses.replace(best, parallel="ddp", form=best.form.split(",")[0]))
    return best if best_ms else None


# ---- this program ---------------------------------------------------------------------------------------------------
QUIET = ["--sample_tokens", "0", "--eval_every", "-1", "--save_every", "-1"]


class Ours:
    """This program with given options: each turn is a whole run."""

    def __init__(self, out, model, dtype, batch, ranks, isa="", options=()):
        microbatch = max(1, min(int(MICROBATCH.get(model, batch)), batch) // ranks)
        self.run, self.batch, self.plan, self.peak, self.step_ms = os.path.join(out, "ours"), batch, {}, 0, None
        self.command = [MPIRUN, "--oversubscribe", "-np", str(ranks)] if ranks > 1 else []
        self.command += [PROGRAM, "--device", "cpu", "--isa", isa or "auto", "--model", model, "--data", "random",
                         "--vocab_size", MODELS[model][0], "--seq_len", str(TOKENS), "--batch_size", str(microbatch),
                         "--global_batch", str(batch), "--param_dtype", dtype, "--optimizer", "adamw",
                         "--out", self.run,
                         *(["--reduce_dtype", dtype] if ranks > 1 else []), *QUIET, *options]

    def turn(self):
        # The first turn shows how long a step takes.
        steps = max(1, min(STEPS, int(ROUND_SECONDS / (self.step_ms * 1e-3)))) if self.step_ms else 1
        shutil.rmtree(self.run, ignore_errors=True)
        with open(self.run + ".log", "w") as log:
            process = subprocess.Popen(self.command + ["--max_steps", str(steps + 1)], stdout=log, stderr=log)
            _, status, usage = os.wait4(process.pid, 0)              # ru_maxrss: maximum over it and its children
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise Failed("".join(open(self.run + ".log").readlines()[-3:]))
        records = [json.loads(line) for line in open(os.path.join(self.run, "metrics.jsonl"))]
        times = [record["ms"] for record in records if record["kind"] == "step"][1:]
        self.plan, self.peak = records[0]["memory_plan_bytes"], max(self.peak, usage.ru_maxrss * 1024)
        self.step_ms = statistics.median(times)
        return self.batch * TOKENS / self.step_ms * 1e3

    def state(self):
        """Bytes of parameters, masters, gradients and optimizer state: the part that training itself needs."""
        return sum(self.plan[key] for key in ("parameter shards, shared", "fp32 master shards",
                                              "low halves of fp32 masters", "optimizer state shards",
                                              "gradient shards, fp32, shared"))


# ---- groups: the contestants -----------------------------------------------------------------------------------------
PROCESSES = {1: "one process", 2: "two processes"}


def goal_of(kind, name):
    model, dtype = name.split()
    return GOALS[kind][f"{MODELS[model][2]} {dtype}"][0 if AMX else 1]


def take_turns(contestants):
    """Median tokens/s of each over the rounds. One that fails has none; the reason is reported."""
    rates = {name: [] for name in contestants}
    for number in range(ROUNDS):
        for name in list(contestants):
            try:
                rates[name].append(contestants[name].turn())
                say(f"  round {number + 1}: {name} {rates[name][-1]:.0f} tokens/s")
            except Failed as why:
                say(f"  {name} failed: {why}")
                del contestants[name]
                rates[name] = []
    return {name: statistics.median(values) for name, values in rates.items() if values}


def memory_rows(table, title, ours, torch):
    """Two rows: the peak of a process, and the part of it that is neither state nor the idle library."""
    mib = 2 ** 20
    extra_ours, extra_torch = ours.plan["total"] - ours.state(), torch.peak - torch.idle - torch.state
    peak = max(ours.peak, ours.plan["total"])
    table.add(f"{title}: peak MiB per process", peak / mib, torch.peak / mib, peak / torch.peak, MEMORY_GOAL,
              f"plan {ours.plan['total'] / mib:.0f}, resident {ours.peak / mib:.0f}; "
              f"PyTorch idle {torch.idle / mib:.0f}", most=True)
    table.add(f"{title}: MiB beyond state", extra_ours / mib, extra_torch / mib, extra_ours / extra_torch, EXTRA_GOAL,
              f"state {ours.state() / mib:.0f}, PyTorch's {torch.state / mib:.0f}", most=True)


def choose(table, choices, out, key, model, dtype, batch, ranks, isa, start):
    """The fastest variant of a kind, found now or by an earlier run with the same OUT."""
    if key not in choices:
        say(f"{key}: which PyTorch is fastest, tokens/s at batch {batch}")
        report = [f"{key}, tokens/s at batch {batch}"]
        best = fastest_variant(report, out, model, dtype, batch, ranks, isa, start)
        choices[key] = {"variant": dataclasses.asdict(best) if best else None, "report": report}
        with open(os.path.join(out, "choices.json"), "w") as f:
            json.dump(choices, f)
    table.reports.append(choices[key]["report"])
    return Variant(**choices[key]["variant"]) if choices[key]["variant"] else None


def group(table, choices, out, model, dtype, isa, with_torch):
    """Every row of one model, dtype and instruction set."""
    name, whole = f"{model} {dtype}", MODELS[model][1]
    batch, kinds = ISA_BATCH[dtype] if isa else whole, (1,) if isa or CORES < 2 else (1, 2)
    title = name + (f" --isa {isa}, batch {batch}" if isa else "")
    contestants, variants = {}, {}
    if with_torch:
        start = Variant("fp32" if dtype == "fp32" else "bf16 params")
        for ranks in kinds:
            variant = choose(table, choices, out, f"{title}, {PROCESSES[ranks]}", model, dtype,
                             min(batch, SEARCH_BATCH), ranks, isa, start)
            if variant:
                variants[f"torch {ranks}"] = variant
                start = dataclasses.replace(variant, parallel="fsdp1")
        for key, variant in variants.items():
            contestants[key] = Torch(out, model, batch, int(key[-1]), variant, isa)
    for ranks in kinds:
        contestants[f"ours {ranks}"] = Ours(out, model, dtype, batch, ranks, isa)
    if AMX and dtype == "fp32" and not isa:
        contestants["ours high"] = Ours(out, model, dtype, batch, 1, options=("--matmul_precision", "high"))
    say(f"{title}: turns")
    everyone = dict(contestants)
    rate = take_turns(contestants)

    def row(what, a, b, goal):
        note = variants[b].name() if b in variants else "this program" if b == "ours 1" else ""
        table.add(what, rate.get(a), rate.get(b), rate.get(a, 0) / rate[b] if rate.get(b) else None, goal, note)
    row(f"{title}, one process, tokens/s", "ours 1", "torch 1", 1.0 if isa else goal_of("one", name))
    if "ours high" in everyone:
        row(f"{title} --matmul_precision high, tokens/s", "ours high", "torch 1", goal_of("high", name))
    if 2 in kinds:
        row(f"{title}, two processes, tokens/s", "ours 2", "torch 2", goal_of("two", name))
        row(f"{title}, {CORES // 2} + {CORES // 2} threads / {CORES} of one", "ours 2", "ours 1", SHARDING_GOAL)
    for ranks in kinds if not isa else ():
        if f"torch {ranks}" in rate and f"ours {ranks}" in rate:
            memory_rows(table, f"{title}, {PROCESSES[ranks]}", everyone[f"ours {ranks}"], everyone[f"torch {ranks}"])
    for contestant in everyone.values():
        contestant.close() if isinstance(contestant, Torch) else None


# ---- tokenizer and start --------------------------------------------------------------------------------------------
def tokenizer(table, out, directory):
    for vocabulary in (5000, 40000):
        rows = {key: [] for key in ("our_s", "our_mb", "their_s", "their_mb")}
        for _ in range(ROUNDS):
            run = os.path.join(out, "tokenizer")
            shutil.rmtree(run, ignore_errors=True)
            subprocess.run([PROGRAM, "--device", "cpu", "--n_layer", "1", "--n_head", "1", "--n_embd", "8", "--seq_len",
                            "8", "--batch_size", "1", "--max_steps", "1", "--data", directory, "--cache=",
                            "--vocab_size", str(vocabulary), "--out", run, *QUIET],
                           stdout=subprocess.DEVNULL, check=True)
            record = json.loads(open(os.path.join(run, "metrics.jsonl")).readline())
            rows["our_s"].append(record["tokenizer_ms"] * 1e-3)
            rows["our_mb"].append(record["text_bytes"] / record["encode_ms"] * 1e-3)
            command = [PYTHON, os.path.join(HERE, "bench_tokenizers.py"), directory, str(vocabulary), "1"]
            theirs = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            if theirs.returncode == 0:
                seconds, speed = map(float, theirs.stdout.split(","))
                rows["their_s"].append(seconds)
                rows["their_mb"].append(speed)
        our_s, our_mb, their_s, their_mb = (statistics.median(values) if values else None for values in rows.values())
        table.add(f"BPE trained to {vocabulary}, s", our_s, their_s, their_s and their_s / our_s, BPE_GOAL,
                  "Hugging Face tokenizers; time, so theirs / ours")
        table.add(f"encoding with {vocabulary}, MB/s", our_mb, their_mb, their_mb and our_mb / their_mb, ENCODE_GOAL,
                  "Hugging Face tokenizers, encode_batch_fast")


def start_up(table, out, directory):
    """From exec to the first step's line of the run that `make train` starts, minus that step. The first run fills the
    cache."""
    ranks = [MPIRUN, "--oversubscribe", "-np", "2"]
    command = ranks + [PROGRAM, "--model", "tiny", "--data", directory, "--cache", os.path.join(out, "cache"),
                       "--max_steps", "1", "--log_every", "1", "--out", os.path.join(out, "start"), *QUIET]
    starts, bare = [], []
    for number in range(ROUNDS + 1):
        shutil.rmtree(os.path.join(out, "start"), ignore_errors=True)
        begin, seen = time.perf_counter(), None
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        for line in process.stdout:
            if seen is None and "step 1/" in line:
                seen = time.perf_counter() - begin
        if process.wait() or seen is None:
            return say("start-up: the program failed")
        step = [json.loads(line) for line in open(os.path.join(out, "start", "metrics.jsonl"))][1]
        begin = time.perf_counter()
        subprocess.run(ranks + ["true"], check=True)
        if number:
            starts.append(seen - step["ms"] * 1e-3)
            bare.append(time.perf_counter() - begin)
    start, bare = statistics.median(starts), statistics.median(bare)
    table.add("start to first step, warm cache, s", start, None, start, START_GOAL_S,
              f"tiny on 2 ranks, the step not counted; mpirun -np 2 true alone takes {bare:.2f}", most=True)


# ---- table ----------------------------------------------------------------------------------------------------------
def number(value):
    return "-" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.3g}"


class Table:
    def __init__(self):
        self.rows, self.reports = [], []

    def add(self, what, ours, theirs, ratio, goal, note, most=False):
        met = "-" if not ratio else "met" if (ratio <= goal if most else ratio >= goal) else "NOT met"
        self.rows.append((what, number(ours), number(theirs), "-" if not ratio else f"{ratio:.2f}",
                          f"{'<=' if most else '>='} {goal:.2g}", met, note))
        say("  " + " | ".join(self.rows[-1]))

    def text(self):
        head = [("", "this program", "the other", "ratio", "goal", "", "the other is"), ("---",) * 7]
        return "\n".join(f"| {' | '.join(row)} |" for row in head + self.rows) + "\n"


def output_of(*command):
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=HERE)
    except OSError:
        return ""
    return done.stdout.strip()


def header(torch, hugging_face):
    cpu = re.search(r"^model name\s*:\s*(.*)$", open("/proc/cpuinfo").read(), re.M)[1]
    flags = [flag for flag in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16") if flag in FLAGS]
    memory = int(re.search(r"MemTotal:\s*(\d+)", open("/proc/meminfo").read())[1]) / 2 ** 20
    settings = [f"{key}={shlex.quote(os.environ[key])}" for key in
                ("ROUNDS", "STEPS", "MODELS", "DTYPES", "MICROBATCH") if key in os.environ]
    return [f"# Ratios, {datetime.date.today()}", "",
            f"- machine: {cpu}, {CORES} cores, {memory:.0f} GiB; {' '.join(flags)}",
            f"- commit: {output_of('git', 'describe', '--always', '--dirty') or 'unknown'}, "
            f"{output_of(PROGRAM, '--version')}",
            f"- beside: PyTorch {torch or 'not found'}, tokenizers {hugging_face or 'not found'}",
            f"- command: `{' '.join(settings + ['PYTHON=python', 'make bench ARGS=ratios'])}`",
            f"- medians of {ROUNDS} rounds; load {open('/proc/loadavg').read().split()[0]} at the end", ""]


EXPLANATION = """
`small`: 6 layers, 8 heads, width 512, vocabulary 5000, batch 32; `gpt2`: 124M, batch 4; sequences of 256 tokens.
bf16 params in one process have no fp32 copy in PyTorch and do here. Peak: the most resident in a process after the
first step (PyTorch), or the plan, or what was resident, whichever is more (this program; ranks share some of it).
Beyond state: PyTorch's peak less the idle library and its parameters, gradients and optimizer state; of this program
the plan less its parameters, fp32 copies, gradients and optimizer state. Ratios of time are theirs / ours, of memory
ours / theirs; the ratio of the start is its seconds over the goal's one.
"""


def main():
    wanted = [re.compile(pattern) for pattern in sys.argv[1:]]
    directory = os.environ.get("WIKITEXT2_DIR", os.path.join(HERE, "..", "data", "wikitext-2"))
    out = os.environ.get("OUT") or tempfile.mkdtemp()
    os.makedirs(out, exist_ok=True)
    version = "import {0}; print({0}.__version__)"
    torch, hugging_face = (output_of(PYTHON, "-c", version.format(module)) for module in ("torch", "tokenizers"))
    choices_path, table = os.path.join(out, "choices.json"), Table()
    choices = json.load(open(choices_path)) if os.path.exists(choices_path) else {}
    models, dtypes = (os.environ.get(*pair).split() for pair in (("MODELS", "small gpt2"), ("DTYPES", "fp32 bf16")))
    isas = [isa for isa, above in (("avx512_bf16", "amx_bf16"), ("avx512", "avx512_bf16"), ("avx2", "avx512f"))
            if above in FLAGS]
    jobs = [(model, dtype, "") for model in models for dtype in dtypes]
    jobs += [(model, dtype, isa) for model in models for isa in isas for dtype in dtypes
             if (isa, dtype) != ("avx512_bf16", "fp32") and (model, isa, dtype) != ("gpt2", "avx2", "bf16")]
    for model, dtype, isa in jobs:
        if not wanted or any(pattern.search(f"{model} {dtype} {isa}".strip()) for pattern in wanted):
            group(table, choices, out, model, dtype, isa, bool(torch))
    for name, function in (("tokenizer", tokenizer), ("start", start_up)):
        if not wanted or any(pattern.search(name) for pattern in wanted):
            if os.path.exists(os.path.join(directory, "train.txt")):
                function(table, out, directory)
            else:
                say(f"{name}: no WikiText-2 (WIKITEXT2_DIR): not measured")
    page = "\n".join(header(torch, hugging_face)) + "\n" + table.text() + EXPLANATION
    print(page)
    if table.reports:
        lines = [line for report in table.reports for line in report]
        page += "\n".join(["", "Variants of PyTorch that were tried:", "", "```", *lines, "```", ""])
    if not wanted or os.environ.get("RESULTS"):
        path = os.environ.get("RESULTS") or os.path.join(HERE, "results", f"{datetime.date.today()}-ratios.md")
        with open(path, "w") as f:
            f.write(page)
        print(f"written to {os.path.relpath(path)}")
    if not os.environ.get("OUT"):
        shutil.rmtree(out)


if __name__ == "__main__":
    main()
