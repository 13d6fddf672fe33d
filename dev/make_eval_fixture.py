#!/usr/bin/env python3
"""Makes dev/fixtures/eval_*: a small GPT-2 with its tokenizer, files of four kinds that --eval reads, and what
lm-evaluation-harness makes of them: every request's log-probability and every task's numbers.

    python3 dev/make_eval_fixture.py          # needs lm_eval 0.4.13, torch, transformers, tokenizers
"""
import argparse
import json
import os
import shutil
import tempfile

import lm_eval
import torch
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks.hellaswag.utils import process_docs
from lm_eval.tasks.wikitext.preprocess_wikitext import process_results, wikitext_detokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

POSITIONS = 40
HELLASWAG = [
    ("Cooking", "A man is seen in a kitchen. He", "THEN cuts an Onion [step] with a knife and", 1,
     ["flies away [title] quickly.", "puts  it into the pan.", "sings.", "is a fish, and swims across the lake."]),
    ("Making a cake", "[header] How to bake [title] Mix flour and milk. [step] Stir.",
     "élan is needed, as ÉCLAIRS are", 2,
     ["best when fresh.", "a kind of dog.", "of iron", "Zürich."]),
    ("Running", "The girl runs", "", 1,
     ["home.", "home", "to the sea and swims.", "and runs and runs until the sun goes down."]),
    ("Sailing", "  Two boats meet at sea.  ", "the captain [of one] waves", 2,
     ["a flag.", "goodbye", "his hand.", " his  oar "]),
    ("Chess", "One player moves the queen", "She", "3", ["laughs.", "loses", "wins the game.", "eats it [title] all."]),
    ("Long", "The wind blew over the hills and the sea and the town and the hills again, and nobody knew why it blew "
     "so long and so cold, until the old man in the tower put out the light and went down to the shore", "there he", 0,
     ["slept.", "saw the ship.", "was a boat.", "sang a song about the wind and the hills and the sea."]),
]
CHOICES = [("What is the colour of the sea?", ["blue", "red", "a green so deep that nobody sees it", "sea"], 0),
           ("Two and two make ", ["four", "five"], 0), ("The capital of the hills", ["tower", "naïve", "日本"], 2),
           ("Who waves?", ["the captain", "the cake", "the onion"], 0), ("Why?", ["because", "no"], 1)]
LAMBADA = ["The captain of the boat waves his hand and sails to the sea",
           "One player moves the queen and wins the game",
           "He cuts an onion with a knife and puts it into the pan", "hello", "She runs home, and home she runs.",
           "The wind blew over the hills and the sea and the town and the hills again, and nobody knew why it blew so "
           "long and so cold, until the old man went down to the shore"]
WIKITEXT = [" = The hills = \n\n The hills ( also : the high hills ) are 3 @,@ 000 m high , and 2 @.@ 5 km long ; "
            "it 's cold there . \" The wind , \" said he , ' blows ' . \n \n = = Wind = = \n\n It blew N times at 5 ° "
            "north @-@ east ! Why ? [ 1 ] { x } \n",
            " The sea . \n", " = A = \n = = B = = \n = = = C = = = \n = = = = D = = = = \n the boats ' sails are white "
            "; the captain 's boat is blue . The captain waves and the boats sail over the sea to the town . \n"]


def tokenizer(directory):
    texts = [" ".join([a, b, c] + e) for a, b, c, _, e in HELLASWAG] + LAMBADA + WIKITEXT + [q for q, _, _ in CHOICES]
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=384, special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    PreTrainedTokenizerFast(tokenizer_object=t, bos_token="<|endoftext|>", eos_token="<|endoftext|>").save_pretrained(
        directory)
    return t.get_vocab_size()


def model(directory, vocab):
    torch.manual_seed(5)
    m = GPT2LMHeadModel(GPT2Config(vocab_size=vocab, n_positions=POSITIONS, n_embd=24, n_layer=2, n_head=3,
                                   bos_token_id=0, eos_token_id=0)).eval()
    with torch.no_grad():
        for p in m.parameters():
            if p.ndim > 1:
                p.copy_(torch.randn_like(p) * 0.25)
    m.save_pretrained(directory)
    os.remove(os.path.join(directory, "generation_config.json"))


def greedy_text(directory):
    """A text whose last word is the model's own."""
    m, t = GPT2LMHeadModel.from_pretrained(directory), PreTrainedTokenizerFast.from_pretrained(directory)
    for words in (text.split(" ") for text in LAMBADA):
        for n in range(1, min(len(words), 20)):
            ids = t.encode(" ".join(words[:n]))
            with torch.no_grad():
                best = int(m(torch.tensor([ids])).logits[0, -1].argmax())
            text = " ".join(words[:n]) + t.decode([best])
            if t.decode([best]).startswith(" ") and text.count(" ") == n and t.encode(text) == ids + [best]:
                return text
    raise SystemExit("no text ends as the model has it")


def rows():
    names = ("activity_label", "ctx_a", "ctx_b", "label", "endings")
    yield "hellaswag", [dict(zip(names, row), ctx=(row[1] + " " + row[2])) for row in HELLASWAG]
    yield "choices", [{"query": q, "choices": c, "gold": g} for q, c, g in CHOICES]
    yield "lambada", [{"text": text} for text in LAMBADA]
    yield "wikitext", [{"page": page} for page in WIKITEXT]


def task(name, path):
    mean = [{"metric": m, "aggregation": "mean", "higher_is_better": True} for m in ("acc", "acc_norm", "acc_bytes")]
    common = dict(task=name, dataset_path="json", dataset_kwargs={"data_files": {"test": path}}, test_split="test")
    own = {
        "hellaswag": dict(output_type="multiple_choice", process_docs=process_docs, doc_to_text="{{query}}",
                          doc_to_target="{{gold}}", doc_to_choice="choices", metric_list=mean),
        "choices": dict(output_type="multiple_choice", doc_to_text="{{query}}", doc_to_target="{{gold}}",
                        doc_to_choice="choices", metric_list=mean),
        "lambada": dict(output_type="loglikelihood", doc_to_text="{{text.split(' ')[:-1]|join(' ')}}",
                        doc_to_target="{{' '+text.split(' ')[-1]}}",
                        metric_list=[{"metric": "perplexity", "aggregation": "perplexity", "higher_is_better": False},
                                     {"metric": "acc", "aggregation": "mean", "higher_is_better": True}]),
        "wikitext": dict(output_type="loglikelihood_rolling", doc_to_text="", doc_to_target=wikitext_detokenizer,
                         process_results=process_results,
                         metric_list=[{"metric": m} for m in ("word_perplexity", "byte_perplexity", "bits_per_byte")]),
    }[name]
    return dict(common, **own)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixtures"))
    out = parser.parse_args().out
    directory = os.path.join(out, "eval_model")
    shutil.rmtree(directory, ignore_errors=True)
    model(directory, tokenizer(directory))
    expected = {}
    LAMBADA.append(greedy_text(directory))
    lm = HFLM(pretrained=directory, dtype="float32", device="cpu", batch_size=2, max_length=POSITIONS)
    for name, lines in rows():
        path = os.path.join(out, f"eval_{name}.jsonl")
        with open(path, "w", encoding="utf-8") as f:
            f.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        with tempfile.TemporaryDirectory() as cache:
            os.environ["HF_DATASETS_CACHE"] = cache
            result = lm_eval.simple_evaluate(model=lm, tasks=[task(name, path)], log_samples=True, bootstrap_iters=0,
                                             random_seed=None, numpy_random_seed=None, torch_random_seed=None)
        numbers = {key.split(",")[0]: x for key, x in result["results"][name].items()
                   if isinstance(x, float) and "stderr" not in key}
        sums = []
        for sample in sorted(result["samples"][name], key=lambda s: s["doc_id"]):
            for answer in sample["filtered_resps"]:
                sums.append(answer if isinstance(answer, float) else float(answer[0]))
        expected[name] = {"numbers": numbers, "sums": sums}
        print(name, numbers, len(sums))
    with open(os.path.join(out, "eval_expected.json"), "w", encoding="utf-8") as f:
        json.dump(expected, f, indent=1)
        f.write("\n")
    print(f"{out}/eval_*: lm_eval {lm_eval.__version__}")


if __name__ == "__main__":
    main()
