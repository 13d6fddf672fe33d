#!/usr/bin/env python3
"""Writes dev/fixtures/parquet: tables of one text in the forms that pyarrow writes, and the same rows as rows.jsonl.

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
    chats = [[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]] * 3
    write("messages", pa.table({"text": ["a", "b", "c"], "messages": chats}))
    write("dialog", pa.table({"dialog": chats, "source": ["a", "b", "c"]}))
    write("numbers", pa.table({"id": [1, 2, 3], "list": [["a"], [], ["b"]]}))
    for name, lines in (("rows", texts), ("required", whole)):
        with open(os.path.join(OUT, name + ".jsonl"), "w") as f:
            for t in lines:
                if t is not None:
                    f.write(json.dumps({"text": t}) + "\n")


main()
