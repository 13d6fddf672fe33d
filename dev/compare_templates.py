#!/usr/bin/env python3
"""Compares the interpreter of chat templates with jinja2 as transformers sets it up, over generated conversations.

Usage: compare_templates.py DIR|FILE.jinja ... [-n COUNT] [--times N]
       needs `pip install transformers==5.24.0 jinja2`, g++ and the MPI headers

For each template: whether text, {% generation %} blocks and rejections are the same for all conversations, with and
without system messages, tools, calls, thoughts, Unicode, empty texts, contents that are lists, and orders that
templates reject. With --times also the speed of both: a rendering here, with the conversion of its JSON, beside
jinja2's of a template that is compiled already.
"""
import argparse
import glob
import json
import os
import random
import subprocess
import tempfile
import time

import transformers.utils.chat_template_utils as utils

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
WORDS = ("the a of miller river why how 12 it's don't \"quoted\" e\u0301tude na\u00efve \ud55c\uad6d\uc5b4 "
         "\u4e2d\u6587 \U0001f600 <b> ## * - ... ?! a\\b <|im_start|> <|im_end|> <think> </think> {{ x }} {% y %} "
         "& < > '").split(" ")


def text(r, most=8):
    return (r.choice(["", "", "", " ", "\n", "\u3000"]) +
            "".join(r.choice([" ", " ", "\n", "  ", "\n\n"]) + r.choice(WORDS) for _ in range(r.randrange(most))) +
            r.choice(["", "", "\n", " ", "\u00a0"]))


def value(r, depth=0):
    kind = r.randrange(8 if depth < 2 else 5)
    if kind == 0:
        return r.choice([0, 1, -3, 12345678901234567890123, 2.5, 1e22, 1e-7, 0.1, 3.0, 1e16, 123456.789, 1e15])
    if kind == 1:
        return r.choice([True, False, None])
    if kind <= 4:
        return text(r, 3)
    if kind <= 6:
        return {r.choice("abcdefgh") + str(i): value(r, depth + 1) for i in range(r.randrange(3))}
    return [value(r, depth + 1) for i in range(r.randrange(3))]


def tool(r, i):
    def prop():
        return {"type": r.choice(["string", "integer", ["string", "null"]]), "description": text(r, 3),
                **({"enum": ["a", "b"]} if r.random() < .3 else {}),
                **({"default": value(r)} if r.random() < .2 else {})}
    return {"type": "function", "function": {
        "name": f"f{i}", "description": text(r, 4),
        "parameters": {"type": "object", "properties": {n: prop() for n in "xyz"[:r.randrange(4)]}, "required": ["x"]},
        **({"return": {"type": "string", "description": "d"}} if r.random() < .3 else {})}}


def calls(r, with_id):
    def arguments():
        whole = {k: value(r) for k in "xyz"[:r.randrange(4)]}
        return whole if r.random() < .8 else json.dumps({"x": text(r, 3)})
    return [{"type": "function", "function": {"name": f"f{i}", "arguments": arguments()},
             **({"id": f"call{i}abcd"[:9]} if with_id else {})} for i in range(r.choice([1, 1, 2, 3]))]


def conversation(r):
    mode, messages = r.randrange(12), []

    def content():
        lists = mode == 1 and r.random() < .7
        return [{"type": "text", "text": text(r)} for _ in range(r.randrange(1, 3))] if lists else text(r)
    if r.random() < .45:
        messages.append({"role": r.choice(["system", "system", "system", "developer"]), "content": content()})
    tools = [tool(r, i) for i in range(r.randrange(1, 3))] if r.random() < .4 else None
    for _ in range(r.randrange(1, 4)):
        messages.append({"role": "user", "content": content()})
        if tools and r.random() < .6:
            asks = {"role": "assistant", "content": r.choice(["", None, text(r)]),
                    "tool_calls": calls(r, r.random() < .7)}
            if r.random() < .3:
                asks["reasoning_content"] = text(r)
            if r.random() < .1:
                del asks["content"]
            messages.append(asks)
            for x in asks["tool_calls"]:
                messages.append({"role": "tool", "content": r.choice([text(r), json.dumps({"r": 1})]),
                                 **({"name": x["function"]["name"]} if r.random() < .8 else {}),
                                 **({"tool_call_id": x["id"]} if "id" in x else {})})
        says = {"role": "assistant", "content": content()}
        if r.random() < .2:
            says["reasoning_content"] = text(r)
        if r.random() < .1:
            says["thinking"] = text(r)
        if r.random() < .15 and isinstance(says["content"], str):
            says["content"] = "<think>\n" + text(r) + "\n</think>\n\n" + says["content"]
        messages.append(says)
    if r.random() < .3:
        messages.pop()
    if mode == 2:
        r.shuffle(messages)
    if mode == 3:
        messages = messages[1:]
    if mode == 4 and r.random() < .3:
        messages = []
    x = {"messages": messages, "tools": tools, "add_generation_prompt": r.random() < .5, "documents": None}
    if r.random() < .7:
        x.update(bos_token="<s>", eos_token="</s>")
    if r.random() < .3:
        x["enable_thinking"] = r.random() < .5
    if r.random() < .1:
        x["reasoning_effort"] = r.choice(["low", "high"])
    return x


class Today(utils.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26)


def rendered(template, variables):
    """Text and spans in characters, or the error."""
    blocks, spans = [], []
    tracker = [x for x in template.environment.extensions.values() if hasattr(x, "activate_tracker")][0]
    try:
        with tracker.activate_tracker(blocks, spans):
            for part in template.generate(**variables):
                blocks.append(part)
        return "".join(blocks), [at for span in spans for at in span]
    except Exception as error:
        return None, f"{type(error).__name__}: {str(error)[:200]}"


def compare(program, path, lines, variables, times):
    source = open(path, encoding="utf-8").read()
    try:
        template, fault = utils._compile_jinja_template(source), None
    except Exception as error:
        template, fault = None, error
    run = subprocess.run([program, path, lines, str(times)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    got = [json.loads(x) for x in run.stdout.decode("utf-8", "replace").split("\n")[:-1]]
    if fault or (got and "parse" in got[0]):
        same = bool(fault) and "parse" in got[0]
        here = got[0] if got else run.stderr[-300:]
        return same, f"rejected by both: {fault}" if same else f"jinja2: {fault}; here: {here}", None
    began = time.time()
    want = [rendered(template, x) for x in variables]
    theirs, other = (time.time() - began) / len(variables) * 1e6, None
    errors = sum(x[0] is None for x in want)
    for i, (w, g) in enumerate(zip(want, got)):
        ok = "error" in g if w[0] is None else g.get("text") == w[0]
        if ok and w[0] is not None:
            data = g["text"].encode()
            ok = [len(data[:k].decode("utf-8", "ignore")) for k in g["spans"]] == w[1]
        if not ok and other is None:
            other = f"conversation {i}: jinja2 {str(w)[:300]}; here {str(g)[:300]}"
    if len(got) != len(want):
        other = f"{len(got)} answers for {len(want)} conversations: {run.stderr.decode()[-500:]}"
    ours = float(run.stderr.split()[-1])
    return other is None, other or f"{len(want)} equal, {errors} of them rejected by both", theirs / ours


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+")
    parser.add_argument("-n", type=int, default=200)
    parser.add_argument("--times", type=int, default=1)
    args = parser.parse_args()
    utils.datetime = Today
    r = random.Random(7)
    variables = [conversation(r) for _ in range(args.n)]
    paths = [p for a in args.paths for p in (sorted(glob.glob(a + "/*.jinja")) if os.path.isdir(a) else [a])]
    bad, ratios = 0, []
    with tempfile.TemporaryDirectory() as at:
        flags = subprocess.run(["mpicxx", "--showme:compile"], stdout=subprocess.PIPE, text=True).stdout.split()
        base = glob.glob(os.path.join(ROOT, "base", "*.cc"))
        subprocess.run(["g++", "-std=c++17", "-O2", "-w", "-DOMPI_SKIP_MPICXX", "-I" + ROOT, *flags,
                        os.path.join(ROOT, "dev", "render_template.cc"), *base, "-o", at + "/render", "-lcjson"],
                       check=True, cwd=ROOT)
        with open(at + "/lines", "w", encoding="utf-8") as f:
            f.writelines(json.dumps(x, ensure_ascii=False) + "\n" for x in variables)
        for path in paths:
            same, words, ratio = compare(at + "/render", path, at + "/lines", variables, args.times)
            bad += not same
            ratios += [ratio] if ratio else []
            print(f"{'equal ' if same else 'DIFFER'} {os.path.basename(path)}: {words}" +
                  (f", {ratio:.0f} times as fast" if ratio and args.times > 1 else ""))
    ratios.sort()
    middle = ratios[len(ratios) // 2] if ratios else 0
    speed = f"; {ratios[0]:.0f} to {ratios[-1]:.0f} times as fast, median {middle:.0f}" if ratios else ""
    print(f"{len(paths)} templates, {bad} differ" + (speed if args.times > 1 else ""))
    return bad > 0


if __name__ == "__main__":
    raise SystemExit(main())
