#!/usr/bin/env python3
"""Writes dev/fixtures/templates.jsonl: templates of our own making, which together use every construct that the
interpreter has, and what jinja2 as transformers sets it up makes of them: a text with the byte ranges of its
{% generation %} blocks, or an error.

Usage: make_template_fixture.py      needs `pip install transformers==5.24.0 jinja2`
"""
import json
import os

import compare_templates as compare

MESSAGES = [{"role": "system", "content": " Be \u00e9xact.\n"}, {"role": "user", "content": "2+2?"},
            {"role": "assistant", "content": "4", "reasoning_content": "hm"}, {"role": "user", "content": "<b>why</b>"},
            {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {
                "x": [1, 2.5, 1e22, -0.0, True, None], "s": "it's \"\u00fc\"\u200b"}}}]},
            {"role": "tool", "content": "\u65e5\u672c"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"b": {}, "a": [], "n": 12345678901234567890}}}]
TEMPLATES = [
    # white space control, comments, raw, escapes
    "a  {%- if true -%}  b\n  {%+ if true %} c {% endif %}\n{# x #}\n d{#- y -#} e\n{% raw %}{{ {% x {%- endraw -%} f\n"
    "{{ 'tab\\t\\x41\\u00e9\\101\\q' \"two\" }}\n{% endif %}\n  {% set q = 1 +%}\n{{ q }}\n\n",
    # numbers and operators
    "{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ -2 ** 2 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }} "
    "{{ 1e3 }} "
    "{{ 0x1f + 0b11 + 0o17 }} {{ 1_000 }} {{ 3 * 'ab' }} {{ [1] * 2 + [3] }} {{ (1, 2) + (3,) }} {{ 1 < 2 < 3 }} "
    "{{ 1 == 1.0 and not 1 != 1 }} {{ 'a' < 'b' }} {{ none or 'x' }} {{ 0 and 1 }} {{ 1 ~ none ~ [true, 'q'] }} "
    "{{ 3 in [1, 3] }} {{ 'b' not in 'abc' }} {{ 'y' if false }}{{ 'y' if false else 'n' }} {{ 1e16 }} {{ 1.5e-7 }} "
    "{{ 100000.0 }}",
    # slices and subscripts
    "{{ 'h\u00e9llo'[1] }}{{ 'h\u00e9llo'[::-1] }}{{ 'hello'[-3:] }}{{ 'hello'[1:-1:2] }} {{ [1, 2, 3][::-2] }} {{ "
    "messages[-1].role }} "
    "{{ messages[1:3] | map(attribute='role') | join(',') }} {{ {'a': {'b': 5}}.a['b'] }} {{ {'items': 1}['items'] }} "
    "{{ [1, 2].0 }} {{ 'x'[5] is undefined }} {{ nothing is defined }} {{ messages[9] is defined }} {{ (1,) }} {{ "
    "{'k': (1, 'a')} }}",
    # loops
    "{% for m in messages if m.role != 'tool' %}{{ loop.index }}/{{ loop.length }}{{ loop.first }}{{ loop.last }}{{ "
    "loop.revindex0 }}"
    "{{ loop.previtem.role if loop.previtem is defined }}>{{ loop.cycle('a', 'b') }}{% if loop.changed(m.role) "
    "%}!{% endif %}"
    "{% if loop.index0 == 3 %}{% break %}{% elif m.role == 'user' %}{% continue %}{% else %};{% endif %}{% endfor %}"
    "{% for x in [] %}{% else %}none{% endfor %}{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }} {% endfor %}"
    "{% for x in [1, [2, [3]]] recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}{{ loop.depth }}{% "
    "endif %}{% endfor %}",
    # scopes, namespace, set blocks, with, filter blocks
    "{% set n = namespace(a=1, b='x') %}{% set x = 1 %}{% for i in range(3) %}{% set x = 2 %}{% set n.a = n.a + i "
    "%}{% endfor %}"
    "{{ x }}{{ n.a }}{{ n.b }}{% set a, b = 1, [2] %}{{ a }}{{ b }}{% set t | upper | replace('B', '-') %}abc{% "
    "endset %}{{ t }}"
    "{% with y = 5, z = x %}{{ y + z }}{% endwith %}{{ y is defined }}{% filter trim | title %} two words {% "
    "endfilter %}"
    "{% if x %}{% set x = 9 %}{% endif %}{{ x }}",
    # macros and call blocks
    "{% macro m(a, b='d', c=a) %}[{{ a }}{{ b }}{{ c }}{% if caller %}{{ caller(1) }}{% endif %}{{ late }}]{% "
    "endmacro %}"
    "{% set late = 'L' %}{{ m(1) }}{{ m(1, c=3) }}{{ m(*[1, 2]) }}{{ m(**{'a': 7}) }}{% call(u) m('q') %}in {{ u "
    "}}{% endcall %}",
    # filters
    "{{ '  x ' | trim }}|{{ 'ab\\ncd' | indent }}|{{ 'ab\\ncd' | indent(2, true) }}|{{ [3, 1, 2] | sort }}{{ ['b', "
    "'A'] | sort(reverse=true) }}"
    "{{ [1, 2] | sum }}{{ [1, 5] | max }}{{ {'b': 1, 'a': 2} | dictsort }}{{ 'ABc' | lower }}{{ 'aBc d' | "
    "capitalize }}{{ '3.7' | float }}"
    "{{ '42' | int + 1 }}{{ 'x' | int(7) }}{{ 2.567 | round(1) }}{{ 2.5 | round }}{{ -3 | abs }}{{ [1, 1, 2] | "
    "unique | list }}{{ 'abc' | reverse }}"
    "{{ [1, 2] | first }}{{ [1, 2] | last }}{{ 'abc' | list }}{{ none | default('d', true) }}{{ u | default('e') "
    "}}{{ 'a' | string | length }}"
    "{{ messages | selectattr('tool_calls', 'defined') | list | length }}{{ [0, 1, ''] | select | list }}{{ [1, 2, "
    "3] | reject('odd') | list }}"
    "{{ messages | rejectattr('role', 'in', ['user', 'tool']) | map(attribute='role') | list }}{{ ['a'] | "
    "map('upper') | join }}"
    "{{ '<' | e }}{{ ('<' | safe) + '<' }}{{ '%s %d' | format('a', 2) }}{{ {'a': 1} | items | list }}{{ [[1, 2]] | "
    "map('last') | list }}",
    # tojson
    "{{ tools | tojson }}\n{{ tools | tojson(indent=2) }}\n{{ tools[0].function.parameters | tojson(sort_keys=true) "
    "}}\n"
    "{{ messages[4].tool_calls[0].function.arguments | tojson(ensure_ascii=true) }}{{ [1] | tojson(separators=(',', "
    "':')) }}\n"
    "{{ messages[4].tool_calls[0].function.arguments }}{{ {} | tojson }}{{ [] | tojson(indent=4) }}",
    # methods of texts, lists, dicts
    "{{ ' a b  c '.split() }}{{ 'a-b-c'.split('-', 1) }}{{ 'a-b-c'.rsplit('-', 1) }}{{ 'x\\ny'.splitlines() }}{{ "
    "'aXbX'.replace('X', '', 1) }}"
    "{{ 'xxaxx'.strip('x') }}{{ ' q '.lstrip() }}{{ ' q'.rstrip() }}{{ 'abc'.startswith('ab') }}{{ "
    "'abc'.endswith(('x', 'c')) }}{{ 'abc'.find('c') }}"
    "{{ 'abca'.rfind('a') }}{{ 'abca'.count('a') }}{{ 'a'.upper() }}{{ 'a b'.title() }}{{ '-'.join(['a', 'b']) }}{{ "
    "'{} {0} {x}'.format(1, x=2) if false }}"
    "{{ '{}-{n}'.format(1, n=2) }}{{ '12'.isdigit() }}{{ 'pre-x'.removeprefix('pre-') }}{{ 'a=b'.partition('=') "
    "}}{{ {'a': 1}.get('b', 'z') }}"
    "{{ {'a': 1}.keys() | list }}{{ [1, 2, 1].count(1) }}{{ [1, 2].index(2) }}{{ 'ab'.islower() }}",
    # tests
    "{{ 1 is odd }}{{ 4 is divisibleby 2 }}{{ 'a' is string }}{{ {} is mapping }}{{ [] is sequence }}{{ 1.0 is "
    "float }}{{ true is integer }}"
    "{{ 1 is number }}{{ none is none }}{{ true is true }}{{ 1 is sameas 1 }}{{ 'a' is in 'abc' }}{{ 3 is gt 2 }}{{ "
    "2 is not eq 2 }}{{ 'x' is lower }}"
    "{{ raise_exception is callable }}{{ 'trim' is filter }}{{ [] is iterable }}{{ u is undefined }}{{ true is "
    "boolean }}",
    # a conversation with what is trained on
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}{{ m.content "
    "or '' }}{% for c in m.tool_calls "
    "or [] %}{{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}\u00e9</s>{% endgeneration %}{% "
    "else %}{{ m.content }}{% endif %}\n"
    "{% endfor %}{{ strftime_now('%d %B %Y, %A') }}{% if add_generation_prompt %}<assistant>{% endif %}",
    # what is rejected
    "{{ raise_exception('no ' ~ messages | length) }}", "{{ nothing.at_all }}", "{{ [].append(1) }}", "{{ 1 + 'a' "
    "}}", "{{ [1] | last.x }}",
    "{{ ''.__class__.__mro__ }}", "{{ none | list }}", "{% for x in 1 %}{% endfor %}", "{{ 'a' < 1 }}", "{{ 1 // 0 "
    "}}", "{% set m.x = 1 %}",
    "{{ x | no_such_filter }}", "{% include 'x' %}", "{{ (1 }}", "{% if 1 %}", "{{ u + 1 }}", "{{ m(1, 2) }}{% "
    "macro m(a) %}{% endmacro %}"]


def main():
    compare.utils.datetime = compare.Today
    variables = {"messages": MESSAGES, "tools": TOOLS, "documents": None, "add_generation_prompt": True,
                 "bos_token": "<s>"}
    path = os.path.join(compare.ROOT, "dev", "fixtures", "templates.jsonl")
    with open(path, "w", encoding="utf-8", newline="\n") as f:
        f.write(json.dumps(variables, ensure_ascii=False) + "\n")
        for template in TEMPLATES:
            try:
                text, spans = compare.rendered(compare.utils._compile_jinja_template(template), variables)
            except Exception as error:
                text, spans = None, str(error)
            x = {"template": template, "text": text}
            if text is not None:
                x["spans"] = [len(text[:at].encode()) for at in spans]
            f.write(json.dumps(x, ensure_ascii=False) + "\n")
            print(f"{text if text is not None else 'rejected: ' + str(spans)}")


if __name__ == "__main__":
    main()
