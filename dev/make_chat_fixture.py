#!/usr/bin/env python3
"""Writes dev/fixtures/chat_*: a hundred conversations and what transformers' apply_chat_template makes of them.

Usage: make_chat_fixture.py [--out DIR] [--published DIR]      needs `pip install transformers==5.24.0`

  chat.jsonl          the conversations: {"messages": [...]}, from a fixed seed
  chat_NAME/          tokenizer.json (a small one of that family, from make_tokenizer_fixture.py, with the template's
                      tokens) and tokenizer_config.json with a chat template
  chat_NAME.u16       for each conversation its length, then its ids; bit 15: trained on, by transformers' mask of what
                      stands in a generation block, which is put around what the assistant says and its end token

  tools.jsonl         a hundred with tools, calls and answers of tools, in the shapes that data/chat/records.h reads
  tools.u64           for each name and case of MORE and each conversation a hash of the ids and masks, 0 where the
                      template leaves something out or raises an error

A chat template in tokenizer_config.json is one of data/chat/templates as it was before version 0.12; the
templates here are those without what tools need, of which masks are taken. --published names a directory of published
ones, as llama.cpp's sources (models/templates) and TRL's package (trl/chat_templates) have them, those that are there:
they must render the same. SmolLM3's says (tool | string), which is Python's spelling of an object.
"""
import argparse
import json
import os
import random
import re
import struct

from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

DATE = "07 Mar 2031"
LONG_DATE = "07 March 2031"
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
# name: tokenizer, its new tokens, template, what of it is split into header, what is said, what stands after
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
PUBLISHED = {"qwen2.5": ["Qwen-Qwen2.5-7B-Instruct", "qwen2_5"], "qwen3": ["Qwen-Qwen3-0.6B", "qwen3"],
             "qwen3-2507": ["qwen3_instruct_2507"], "qwen3-free": ["qwen3-free"], "smollm3": ["smollm3"],
             "llama3": ["meta-llama-Llama-3.2-3B-Instruct", "llama3_1", "llama3_2"], "llama3.0": ["llama3"],
             "zephyr": ["zephyr"], "gemma": ["gemma"], "gemma3": ["gemma3"], "mistral-v1": ["mistral-v1"],
             "mistral-v3": ["mistral-v3"], "mistral-nemo": ["mistralai-Mistral-Nemo-Instruct-2407"]}
# name: the tokenizer's
MORE = {"tools": {"qwen2.5": "qwen2.5", "qwen3": "qwen3", "qwen3-2507": "qwen2.5", "smollm3": "qwen3",
                  "llama3": "llama3"},
        "chat": {"qwen3-2507": "qwen2.5", "qwen3-free": "qwen3", "smollm3": "qwen3", "llama3.0": "llama3",
                 "zephyr": "others", "gemma": "others", "gemma3": "others", "mistral-v1": "others",
                 "mistral-v3": "others", "mistral-nemo": "others"}}
OTHERS = ["<|endoftext|>", "<s>", "</s>", "[INST]", "[/INST]", "<bos>", "<start_of_turn>", "<end_of_turn>"]


def texts():
    """The templates that come with the program, data/chat/templates."""
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "chat", "templates")
    return {x[:-6]: open(os.path.join(root, x), encoding="utf-8").read() for x in sorted(os.listdir(root))}


def published_texts(directory, name):
    paths = [os.path.join(directory or "", x + ".jinja") for x in PUBLISHED.get(name, []) if directory]
    return [open(x, encoding="utf-8").read() for x in paths if os.path.exists(x)]


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
    cut = turn.index("\\n'") + 3                 # after the header
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


def value(rng, depth=0):
    kind = rng.randrange(9 if depth < 2 else 6)
    if kind == 0:
        return rng.choice([0, 1, -7, 42, 2031, 1.0, 0.5, -3.25, 123456789012345678, 1e-07, 1.5e+300])
    if kind == 1:
        return rng.choice([True, False, None])
    if kind < 6:
        return rng.choice(["", "\u00a0x", "it's", "\"q\"", "it's \"q\"", "a\\b\n\tc\u0007\u001f",
                           "\u4e2d\u6587 <b>&", "\u200b\u3000\U0001f600\u2028", "na\u00efve /",
                           "\x7f"]) + rng.choice(["", "", " miller"])
    if kind == 6:
        return [value(rng, depth + 1) for _ in range(rng.randrange(3))]
    return {rng.choice(["z", "a", "type", "it's", "\u00e9"]) + str(i): value(rng, depth + 1)
            for i in range(rng.randrange(3))}


def arguments(rng):
    return {rng.choice(["x", "unit", "b", "\u00fc"]) + str(i): value(rng) for i in range(rng.randrange(4))}


def tool(rng, number):
    return {"name": f"get_{number}", "description": text(rng, 4).replace("<|", "< |"),
            "parameters": {"type": "object", "properties": {"unit": {"type": "string", "enum": [value(rng)]}},
                           "required": ["unit"][:rng.randrange(2)], "default": value(rng)}}


def tools_conversation(rng, number):
    """What a file has, and the messages and tools that it stands for."""
    said = lambda most: text(rng, most).replace("<|", "< |")
    shape = ["messages", "ShareGPT", "functions"][number % 3 if number % 4 else 0]
    single, calls = number % 2 == 0, number % 5 != 0
    tools = [tool(rng, i) for i in range(rng.randrange(1, 4))] if number % 10 else []
    messages = []
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": rng.choice(["", "/no_think", "x /think", ""]) + said(5)})
    for _ in range(rng.randrange(1, 3)):
        messages.append({"role": "user", "content": said(6)})
        for _ in range(rng.randrange(0, 3)):
            m = {"role": "assistant", "content": "" if single or shape != "messages" else rng.choice(["", said(4)])}
            if calls:
                m["tool_calls"] = [{"id": "c", "type": "function", "function": {"name": f"get_{i}",
                                                                               "arguments": arguments(rng)}}
                                   for i in range(1 if single or shape != "messages" else rng.randrange(1, 3))]
            else:
                m["content"] = '<tool_call>\n{"name": "get_0", "arguments": {}}\n</tool_call>'
            if not single and shape == "messages" and rng.random() < 0.3:
                m["content"] = "<think>\nhm " + said(2) + "\n</think>\n\n" + m["content"]
            messages.append(m)
            for _ in range(len(m.get("tool_calls", [1]))):
                messages.append({"role": "tool", "content": rng.choice([json.dumps(value(rng)), said(3)])})
        messages.append({"role": "assistant", "content": said(5)})
    if number % 7 == 3:
        messages.append({"role": "user", "content": "<tool_response>" + said(3) + "</tool_response>"})
        messages.append({"role": "assistant", "content": said(3)})
    wrapped = [{"type": "function", "function": x} for x in tools]
    dump = lambda x: json.dumps(x, ensure_ascii=number % 2 == 0)
    if shape == "ShareGPT":
        names = {"user": "human", "assistant": "gpt", "tool": "observation"}
        turns = [{"from": "function_call", "value": dump(m["tool_calls"][0]["function"])} if "tool_calls" in m else
                 {"from": names.get(m["role"], m["role"]), "value": m["content"]} for m in messages]
        return {"conversations": turns, "tools": dump(tools)}, messages, wrapped
    theirs = [dict(m) for m in messages]
    for m in theirs:
        if "tool_calls" in m and shape == "functions":
            call = m.pop("tool_calls")[0]["function"]
            m.update(content=None, function_call={"name": call["name"], "arguments": dump(call["arguments"])})
            for mine in messages:
                for c in mine.get("tool_calls", []):
                    if c["function"] is call:
                        call["text"] = dump(call["arguments"])
        elif "tool_calls" in m:
            calls = []
            for c in m["tool_calls"]:
                f = dict(c["function"])
                if number % 4 == 1:
                    c["function"]["text"] = f["arguments"] = dump(f["arguments"])
                calls.append({**c, "function": f} if number % 8 else f)
            m["tool_calls"] = calls
            if not m["content"]:
                m.pop("content")
        elif m["role"] == "user" and number % 6 == 0:
            m["content"] = [{"type": "text", "text": m["content"]}]
        elif m["role"] == "tool" and shape == "functions":
            m["role"] = "function"
    if shape == "functions":
        return {"messages": theirs, "functions": tools}, messages, wrapped
    return {"messages": theirs, "tools": wrapped if number % 4 else dump(wrapped)}, messages, wrapped


def rendered(hf, name, template, messages, tools):
    """What a template makes of a conversation; None: it leaves something out."""
    calls = [m for m in messages if m.get("tool_calls")]
    if name == "smollm3" and (calls or any(m["role"] == "system" for m in messages[1:])):
        return None
    if tools and name == "smollm3" and "/system_override" in messages[0]["content"]:
        return None
    if name == "llama3" and any(len(m["tool_calls"]) > 1 or m["content"] for m in calls):
        return None
    roles = [m["role"] for m in messages][messages[0]["role"] == "system" and name == "gemma3":]
    turns = (["user", "assistant"] * len(roles))[:len(roles)]
    if name.startswith(("gemma", "mistral")) and roles != turns:
        return None
    messages = json.loads(json.dumps(messages))
    for m in messages:
        for c in m.get("tool_calls", []):
            as_it_is = c["function"].pop("text", None)
            if as_it_is and name in ("qwen3", "qwen3-2507"):
                c["function"]["arguments"] = as_it_is
    template = template.replace('strftime_now("%d %B %Y")', f'"{LONG_DATE}"')
    return hf.apply_chat_template(messages, chat_template=template, tokenize=False, tools=tools or None,
                                  xml_tools=tools or None, date_string=DATE, eos_token="</s>",
                                  bos_token="<bos>" if name.startswith("gemma") else
                                  "<s>" if name.startswith("mistral") else "<|begin_of_text|>")


def hashed(hf, text, masked):
    """FNV-1a of ids of two bytes; bit 15: trained on."""
    if text is None:
        return 0
    x = hf(text, add_special_tokens=False, return_offsets_mapping=True)
    pattern = r"<\|im_start\|>assistant\n(.*?<\|im_end\|>)"
    if "<|eot_id|>" in text:
        pattern = r"<\|start_header_id\|>assistant<\|end_header_id\|>\n\n(.*?<\|eot_id\|>)"
    elif "Reasoning Mode: /no_think" in text:
        pattern = r"<\|im_start\|>assistant\n<think>\n\n</think>\n(.*?<\|im_end\|>)"
    spans = [m.span(1) for m in re.finditer(pattern, text, re.S)] if masked else []
    out = 14695981039346656037
    for i, (begin, end) in zip(x["input_ids"], x["offset_mapping"]):
        word = i | any(end > a and begin < b for a, b in spans) << 15
        for byte in (word & 255, word >> 8):
            out = (out ^ byte) * 1099511628211 % (1 << 64)
    return out


def write_more(args, here, own, chats, tokenizers):
    rng = random.Random(53)
    t = Tokenizer.from_file(os.path.join(here, "tokenizer_qwen2.json"))
    t.add_special_tokens([AddedToken(x, special=True, normalized=False) for x in OTHERS])
    os.makedirs(os.path.join(args.out, "chat_others"), exist_ok=True)
    t.save(os.path.join(args.out, "chat_others", "tokenizer.json"))
    tokenizers["others"] = PreTrainedTokenizerFast(tokenizer_object=t)
    cases = {"tools": [tools_conversation(rng, i) for i in range(100)], "chat": [(None, m, []) for m in chats]}
    with open(os.path.join(args.out, "tools.jsonl"), "w", encoding="utf-8", newline="\n") as f:
        for i, (line, _, _) in enumerate(cases["tools"]):
            f.write(json.dumps(line, ensure_ascii=i % 2 == 0) + "\n")
    with open(os.path.join(args.out, "tools.u64"), "wb") as f:
        for case, names in MORE.items():
            for name, tokenizer in names.items():
                published = published_texts(args.published, name)
                some = 0
                for _, messages, tools in cases[case]:
                    text = rendered(tokenizers[tokenizer], name, own[name], messages, tools)
                    some += text is not None
                    for theirs in published:
                        got = rendered(tokenizers[tokenizer], name, theirs, messages, tools)
                        assert got == text, (name, messages, got, text)
                    f.write(struct.pack("<Q", hashed(tokenizers[tokenizer], text, case == "tools" and name != "qwen3")))
                    if args.dump and text is not None:
                        with open(f"{args.dump}/{case}_{name}.txt", "a") as d:
                            ids = tokenizers[tokenizer](text, add_special_tokens=False)["input_ids"]
                            d.write(json.dumps(ids) + "\n")
                print(f"{case} by {name}: {some} of 100 rendered, {len(published)} published templates equal")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixtures")
    parser.add_argument("--out", default=here)
    parser.add_argument("--published")
    parser.add_argument("--dump", help="directory for ids of tools.u64")
    args = parser.parse_args()
    rng = random.Random(39)
    chats = [conversation(rng, i) for i in range(100)]
    with open(os.path.join(args.out, "chat.jsonl"), "w", encoding="utf-8", newline="\n") as f:
        for i, m in enumerate(chats):
            f.write(json.dumps({"id": i, "messages": m}, ensure_ascii=i % 2 == 0) + "\n")
    own, tokenizers = texts(), {}
    for name, (family, added, template, turn) in CASES.items():
        directory = os.path.join(args.out, "chat_" + name)
        os.makedirs(directory, exist_ok=True)
        t = Tokenizer.from_file(os.path.join(here, f"tokenizer_{family}.json"))
        for x in added:
            plain = "think>" in x                # those of Qwen 3 are added, but not special
            (t.add_tokens if plain else t.add_special_tokens)([AddedToken(x, special=not plain, normalized=False)])
        t.save(os.path.join(directory, "tokenizer.json"))
        with open(os.path.join(directory, "tokenizer_config.json"), "w", encoding="utf-8", newline="\n") as f:
            published = template.replace("\\n", "\n") if name in ("smollm2", "chatml") else own[name]
            json.dump({"chat_template": published, "tokenizer_class": "PreTrainedTokenizerFast"}, f, indent=1)
        hf = PreTrainedTokenizerFast(tokenizer_file=os.path.join(directory, "tokenizer.json"))
        tokenizers[name] = hf
        blocks = marked(template, turn)
        others = [blocks, published] + published_texts(args.published, name)
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
    write_more(args, here, own, chats, tokenizers)


if __name__ == "__main__":
    main()
