#!/usr/bin/env python3
"""Writes dev/fixtures/parquet: tables of one text in the forms that pyarrow writes, and the same rows as rows.jsonl;
tables of records beside the same records as nested.jsonl, chats.jsonl and alpaca.jsonl.

    pip install pyarrow==26.0.1; dev/make_parquet_fixture.py
"""
import json
import os
import random

import pyarrow as pa
import pyarrow.parquet as pq

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixtures", "parquet")
WORDS = ["the", "fox", " ", "\n", "\t", "n't", "1984", "\u00e9t\u00e9", "\u65e5\u672c", "!?", "\U0001f98a", '"', "\\"]


def rows():
    r = random.Random(7)
    texts = [" ".join(r.choice(WORDS) for _ in range(r.randrange(40))) for _ in range(230)]
    texts[3] = ""
    texts[11] = "long " * 1500                   # longer than a page
    for i in range(40, 80):
        texts[i] = texts[40 + i % 3]             # for the dictionary
    for i in (0, 5, 6, 7, 81, 229):
        texts[i] = None
    return texts


def table(texts, nullable=True, name="text"):
    n = len(texts)
    columns = [("id", pa.array(range(n), pa.int64())),
               ("meta", pa.array([{"url": f"u{i}", "tags": ["a"] * (i % 3)} for i in range(n)])),
               (name, pa.array(texts, pa.string())), ("language", pa.array(["en", None] * (n // 2), pa.string()))]
    fields = [pa.field(k, v.type, nullable or k != name) for k, v in columns]
    return pa.table([v for _, v in columns], pa.schema(fields))


def nested():
    """Records with nothing in every place where something can be missing."""
    r = random.Random(11)

    def text():
        return r.choice(["", None, 'a"b\\c', "x\ny\t\x01 \u00e9 \u65e5\u672c \U0001f98a", "words " * r.randrange(1, 9)])

    def message():
        return {"role": r.choice(["user", None]), "content": text(), "train": r.choice([True, False, None]),
                "weight": r.choice([0, -7, 1 << 40, None]), "score": r.choice([0.5, 1e300, -0.1, None]),
                "tags": r.choice([None, [], ["a", None, "b"]]),
                "calls": r.choice([None, [], [{"id": "1", "function": {"arguments": [[1, 2], [], None, [3]]}}]])}

    rows = [{"messages": None if i % 17 == 5 else [r.choice([message(), message(), None]) for _ in range(i % 4)],
             "system": text(), "history": r.choice([None, [], [["a", "b"], ["c", None], []]]), "tools": None}
            for i in range(60)]
    for row in rows[30:40]:
        row["tools"] = "[]"
    return rows


def chats(required):
    """Conversations; `required` for a schema where nothing may be missing."""
    rows = []
    for i in range(12):
        messages = [{"role": "user", "content": f"What is {i} + {i}?", "tags": ["q"] * (i % 3)},
                    {"role": "assistant", "content": f"It is {2 * i}.\n", "tags": []}] * (1 + i % 2)
        if not required:
            messages = [dict(m, weight=None if i % 3 else i % 2) for m in messages]
        rows.append({"messages": messages, "system": f"Add. {i}" if i % 2 or required else None})
    return rows


def older(path):
    """Makes lists of two levels, as parquet-avro writes them, of lists whose elements are required."""
    with open(path, "rb") as f:
        b = f.read()
    n = int.from_bytes(b[-8:-4], "little")
    data, footer = b[:-8 - n], b[-8 - n:-8]
    group = b"\x35\x04\x18\x04list\x15\x02\x00"
    footer = footer.replace(group + b"\x35\x00\x18\x07element", b"\x35\x04\x18\x05array", 1)
    footer = footer.replace(group + b"\x15\x0c\x25\x00\x18\x07element", b"\x15\x0c\x25\x04\x18\x07element", 1)
    assert footer[:4] == b"\x15\x04\x19\xac", footer[:4]           # version 2, ten elements: now eight
    footer = footer[:3] + b"\x8c" + footer[4:]
    with open(path, "wb") as f:
        f.write(data + footer + len(footer).to_bytes(4, "little") + b"PAR1")


def write_records(write):
    def lines(name, rows):
        with open(os.path.join(OUT, name + ".jsonl"), "w") as f:
            for row in rows:
                f.write(json.dumps(row) + "\n")

    lines("nested", nested())
    extra = {"id": list(range(60)), "text": ["x"] * 60, "stamp": pa.array([7] * 60, pa.timestamp("ns"))}
    table = pa.table({**{k: v for k, v in extra.items()}, **pa.Table.from_pylist(nested()).to_pydict()})
    write("nested_plain", table, row_group_size=25, data_page_size=300, write_page_checksum=True)
    write("nested_v2", table, data_page_version="2.0", compression="zstd", use_dictionary=True, data_page_size=300)
    write("nested_item", table, compression="snappy", use_dictionary=True, use_compliant_nested_type=False,
          use_deprecated_int96_timestamps=True)
    lines("chats", chats(False))
    write("chats", pa.Table.from_pylist(chats(False)), compression="snappy", use_dictionary=True, row_group_size=1)
    lines("chats_required", chats(True))
    message = pa.struct([pa.field("role", pa.string(), False), pa.field("content", pa.string(), False),
                         pa.field("tags", pa.list_(pa.field("element", pa.string(), False)))])
    schema = pa.schema([pa.field("messages", pa.list_(pa.field("element", message, False))),
                        pa.field("system", pa.string(), False)])
    write("chats_required", pa.Table.from_pylist(chats(True), schema), compression="zstd", data_page_version="2.0")
    write("chats_older", pa.Table.from_pylist(chats(True), schema), compression="snappy", row_group_size=5)
    older(os.path.join(OUT, "chats_older.parquet"))
    alpaca = [{"instruction": f"Say {i}.", "input": "" if i % 2 else "in words", "output": f"It is {i}.",
               "history": [["Hi", "Hello."]] * (i % 3) if i % 4 else None, "text": "rendered"} for i in range(12)]
    lines("alpaca", alpaca)
    write("alpaca", pa.Table.from_pylist(alpaca), compression="zstd", use_dictionary=True)


def main():
    os.makedirs(OUT, exist_ok=True)
    texts = rows()
    whole = [t if t is not None else "x" for t in texts]

    def write(name, data, **options):
        options = {"compression": "none", "use_dictionary": False, "row_group_size": 90, "data_page_size": 900,
                   "write_batch_size": 20, "write_statistics": False, "store_schema": False} | options
        pq.write_table(data, os.path.join(OUT, name + ".parquet"), **options)

    write("plain", table(texts))
    write("dictionary", table(texts), use_dictionary=True, compression="snappy", write_page_checksum=True)
    write("v2", table(texts), data_page_version="2.0", compression="zstd", use_dictionary=True, write_statistics=True)
    write("v2_plain", table(texts), data_page_version="2.0", compression="snappy", row_group_size=1000)
    write("required", table(whole, nullable=False), compression="zstd", data_page_version="2.0")
    write("named", table(texts, name="body"), compression="zstd")
    write("gzip", table(texts), compression="gzip", row_group_size=1000)
    write("delta", table(texts[20:40]), column_encoding={"text": "DELTA_LENGTH_BYTE_ARRAY"})
    chats_of = [[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]] * 3
    write("messages", pa.table({"text": ["a", "b", "c"], "messages": chats_of}))
    write("dialog", pa.table({"dialog": chats_of, "source": ["a", "b", "c"]}))
    write("numbers", pa.table({"id": [1, 2, 3], "list": [["a"], [], ["b"]]}))
    write("two_forms", pa.table({"messages": chats_of, "chosen": chats_of, "rejected": chats_of, "prompt": ["a"] * 3}))
    write("map", pa.table({"messages": pa.array([[{"role": "user", "meta": [("a", 1)]}]], pa.list_(pa.struct([
        ("role", pa.string()), ("meta", pa.map_(pa.string(), pa.int64()))])))}))
    write("unread", pa.table({"Messages": chats_of, "system_prompt": ["a"] * 3, "images": pa.array([[]] * 3, pa.list_(
        pa.struct([("bytes", pa.binary()), ("path", pa.string())])))}))
    write("images", pa.table({"messages": chats_of, "images": [[{"bytes": b"\xff\0", "path": None}]] * 3}))
    write("twice", pa.Table.from_arrays([pa.array(["a"] * 3)] * 3, names=["question", "answer", "answer"]))
    write_records(write)
    for name, lines in (("rows", texts), ("required", whole)):
        with open(os.path.join(OUT, name + ".jsonl"), "w") as f:
            for t in lines:
                if t is not None:
                    f.write(json.dumps({"text": t}) + "\n")


main()
