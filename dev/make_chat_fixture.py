#!/usr/bin/env python3
"""Writes dev/fixtures/chat_*: a hundred conversations and what transformers' apply_chat_template makes of them.

Usage: make_chat_fixture.py [--out DIR] [--published DIR]      needs `pip install transformers==5.24.0`

  chat.jsonl          the conversations: {"messages": [...]}, from a fixed seed
  chat_NAME/          tokenizer.json (a small one of that family, from make_tokenizer_fixture.py, with the template's
                      tokens) and tokenizer_config.json with a chat template
  chat_NAME.u16       for each conversation its length, then its ids; bit 15: trained on, by transformers' mask of what
                      stands in a generation block, which is put around what the assistant says and its end token

The templates here are those of the families without what tools and images need, so that they are short, and those that
the program writes into exports (data/chat_template.h). Of SmolLM2 and plain ChatML they are the published ones, which
have newlines where the others have \\n. --published names a directory of whole ones, as llama.cpp's sources have them
(models/templates): they must render the same.
"""
import argparse
import json
import os
import random
import struct

from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

DATE = "07 Mar 2031"
QWEN = "<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n"
SMOL = "<|im_start|>system\\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\\n"
ITEM = "'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'"
ATTRIBUTE = ITEM.replace("['role']", ".role").replace("['content']", ".content")
ASKS = "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
THINK = r"""{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}{%- set index = (messages|length - 1) - loop.index0 %}
{%- if ns.multi_step_tool and message.role == "user" %}{%- set ns.multi_step_tool = false %}
{%- set ns.last_query_index = index %}{%- endif %}{%- endfor %}
{%- for message in messages %}{%- set content = message.content %}{%- if message.role != "assistant" %}
{{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}{%- else %}
{%- set reasoning_content = '' %}{%- if message.reasoning_content %}
{%- set reasoning_content = message.reasoning_content %}{%- elif '</think>' in content %}
{%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\n') %}{%- endif %}
{%- if loop.index0 > ns.last_query_index and (loop.last or reasoning_content) %}
{{- '<|im_start|>' + message.role +
'\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
{%- else %}{{- '<|im_start|>' + message.role + '\n' + content }}{%- endif %}{{- '<|im_end|>\n' }}{%- endif %}
{%- endfor %}"""
DATED = r"""{%- if not date_string is defined %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{{- "<|begin_of_text|>" }}{%- if messages[0]['role'] == 'system' %}
{%- set system_message = messages[0]['content']|trim %}{%- set messages = messages[1:] %}{%- else %}
{%- set system_message = "" %}{%- endif %}{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{{- "Cutting Knowledge Date: December 2023\n" }}{{- "Today Date: " + date_string + "\n\n" }}
{{- system_message }}{{- "<|eot_id|>" }}{%- for message in messages %}
{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}{%- if add_generation_prompt %}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"""
ML = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
LLAMA = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
# name: tokenizer, its new tokens, template, what of it is split into header, what is said, what stands behind
CASES = {
    "qwen2.5": ("qwen2", ML, "{%- if messages[0]['role'] != 'system' %}{{- '" + QWEN + "' }}{%- endif %}"
                "{%- for message in messages %}{{- " + ATTRIBUTE + " }}{%- endfor %}" + ASKS, ATTRIBUTE),
    "qwen3": ("qwen2", ML + ["<think>", "</think>"], THINK + ASKS, None),
    "smollm2": ("smollm2", ML, "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
                "{{ '" + SMOL + "' }}{% endif %}{{" + ITEM + "}}{% endfor %}" + ASKS, ITEM),
    "llama3": ("llama3", LLAMA, DATED, "'<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ "
               "message['content'] | trim + '<|eot_id|>'"),
    "chatml": ("qwen2", ML, "{% for message in messages %}{{" + ITEM + "}}{% endfor %}" + ASKS, ITEM),
}
PUBLISHED = {"qwen2.5": "Qwen-Qwen2.5-7B-Instruct", "qwen3": "Qwen-Qwen3-0.6B",
             "llama3": "meta-llama-Llama-3.2-3B-Instruct"}


def marked(template, turn):
    """The template with a generation block around what the assistant says and its end token."""
    if turn is None:                             # Qwen 3's: the turn is in pieces
        out = template.replace("message.role +\n'\\n<think>", "message.role + '\\n' }}{% generation %}{{- '<think>")
        out = out.replace("{%- else %}{{- '<|im_start|>' + message.role + '\\n' + content }}{%- endif %}"
                          "{{- '<|im_end|>\\n' }}",
                          "{{- '<|im_end|>' }}{% endgeneration %}{%- else %}"
                          "{{- '<|im_start|>' + message.role + '\\n' }}{% generation %}{{- content + '<|im_end|>' }}"
                          "{% endgeneration %}{%- endif %}{{- '\\n' }}")
        assert out.count("{% generation %}") == 2
        return out
    cut = turn.index("\\n'") + 3                 # behind the header
    header, rest = turn[:cut], turn[cut:].lstrip("+ ")
    stop = "'<|im_end|>'" if "im_end" in rest else "'<|eot_id|>'"
    said, behind = rest[:rest.index(stop) + len(stop)], rest[rest.index(stop) + len(stop):].lstrip("+ ") or "''"
    at = template.index(turn)
    open_, close = template[:at].rindex("{{"), at + len(turn)
    close = template.index("}}", close) + 2
    block = ("{%- if message['role'] == 'assistant' %}{{- " + header + " }}{% generation %}{{- " + said +
             " }}{% endgeneration %}{{- " + behind + " }}{%- else %}{{- " + turn + " }}{%- endif %}")
    return template[:open_] + block + template[close:]


WORDS = ("the a of miller river lantern answer why how many 12 2031 is it's don't I'LL code print(x) = { } \"quoted\" "
         "e\u0301tude \u212bngstrom na\u00efve \ud55c\uad6d\uc5b4 \u4e2d\u6587 "
         "\U0001f600 \u0958 <b> </b> ## * - ... ?! 3.14 a\\b "
         "<|im_start|> <|im_end|> <|eot_id|> <think> assistant user").split(" ")


def text(rng, most):
    out = rng.choice(["", "", "", " ", "\n", "\n\n", "\t", "\u3000", " \n"])
    for i in range(rng.randrange(most)):
        out += (rng.choice([" ", " ", " ", "\n", "  ", "\n\n", ", "]) if i else "") + rng.choice(WORDS)
    return out + rng.choice(["", "", "", "", " ", "\n", ".\n\n", "\u00a0"])


def conversation(rng, number):
    messages = [{"role": "system", "content": text(rng, 6)}] if rng.random() < 0.4 else []
    for _ in range(rng.randrange(1, 4)):
        messages.append({"role": "user", "content": text(rng, 8)})
        if rng.random() < 0.1:
            messages.append({"role": "system", "content": text(rng, 3)})
        said = text(rng, 10)
        if rng.random() < 0.25:
            opened, behind = rng.choice(["<think>\n", "\n<think>", ""]), rng.choice(["\n\n", ""])
            said = opened + text(rng, 5) + "</think>" + behind + said
        messages.append({"role": "assistant", "content": said})
        if rng.random() < 0.1:
            messages.append({"role": "assistant", "content": text(rng, 4)})
    if number % 11 == 5:
        messages.append({"role": "user", "content": text(rng, 5)})
    return messages


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixtures")
    parser.add_argument("--out", default=here)
    parser.add_argument("--published")
    args = parser.parse_args()
    rng = random.Random(39)
    chats = [conversation(rng, i) for i in range(100)]
    with open(os.path.join(args.out, "chat.jsonl"), "w", encoding="utf-8", newline="\n") as f:
        for i, m in enumerate(chats):
            f.write(json.dumps({"id": i, "messages": m}, ensure_ascii=i % 2 == 0) + "\n")
    for name, (family, added, template, turn) in CASES.items():
        directory = os.path.join(args.out, "chat_" + name)
        os.makedirs(directory, exist_ok=True)
        t = Tokenizer.from_file(os.path.join(here, f"tokenizer_{family}.json"))
        for x in added:
            plain = "think>" in x                # those of Qwen 3 are added, but not special
            (t.add_tokens if plain else t.add_special_tokens)([AddedToken(x, special=not plain, normalized=False)])
        t.save(os.path.join(directory, "tokenizer.json"))
        with open(os.path.join(directory, "tokenizer_config.json"), "w", encoding="utf-8", newline="\n") as f:
            published = template.replace("\\n", "\n") if name in ("smollm2", "chatml") else template
            json.dump({"chat_template": published, "tokenizer_class": "PreTrainedTokenizerFast"}, f, indent=1)
        hf = PreTrainedTokenizerFast(tokenizer_file=os.path.join(directory, "tokenizer.json"))
        blocks = marked(template, turn)
        others = [blocks, published]
        if args.published and name in PUBLISHED:
            others.append(open(os.path.join(args.published, PUBLISHED[name] + ".jinja"), encoding="utf-8").read())
        with open(os.path.join(args.out, f"chat_{name}.u16"), "wb") as f:
            for m in chats:
                more = dict(date_string=DATE, bos_token="<|begin_of_text|>")
                whole = hf.apply_chat_template(m, chat_template=template, tokenize=False, **more)
                asked = hf.apply_chat_template(m, chat_template=template, tokenize=False, add_generation_prompt=True,
                                               **more)
                for other in others:
                    assert hf.apply_chat_template(m, chat_template=other, tokenize=False, **more) == whole, (name, m)
                    assert hf.apply_chat_template(m, chat_template=other, tokenize=False, add_generation_prompt=True,
                                                  **more) == asked, (name, m)
                x = hf.apply_chat_template(m, chat_template=blocks, return_dict=True, return_assistant_tokens_mask=True,
                                           **more)
                ids, mask = x["input_ids"], x["assistant_masks"]
                assert ids == hf(whole, add_special_tokens=False)["input_ids"] and max(ids) < 1 << 15
                f.write(struct.pack(f"<{1 + len(ids)}H", len(ids), *(i | k << 15 for i, k in zip(ids, mask))))


if __name__ == "__main__":
    main()
