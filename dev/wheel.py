#!/usr/bin/env python3
"""Packs the directory of dev/dist.sh as a wheel: pip install FILE, then train_gpt_fsdp --help.

    dev/wheel.py DIRECTORY OUT VERSION PLATFORM

Only the entry points are Python; they replace themselves by the program, or by its mpirun.
"""
import base64
import hashlib
import os
import stat
import sys
import zipfile

ENTRY = '''"""The program is in this directory; these replace the process by it."""
import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))


def _run(name):
    path = os.path.join(_here, name)
    os.execv(path, [path] + sys.argv[1:])


def main():
    _run("train_gpt_fsdp")


def mpirun():
    _run("mpirun")
'''
METADATA = '''Metadata-Version: 2.1
Name: train_gpt_fsdp
Version: {version}
Summary: Trains GPT models, fully sharded over MPI ranks, on CPUs and NVIDIA GPUs
License: MIT
Requires-Python: >=3.7
Description-Content-Type: text/markdown

    train_gpt_fsdp --help
    train_gpt_fsdp-mpirun -np 2 train_gpt_fsdp --model tiny --data texts

'''
ENTRY_POINTS = '''[console_scripts]
train_gpt_fsdp = train_gpt_fsdp:main
train_gpt_fsdp-mpirun = train_gpt_fsdp:mpirun
'''


def main():
    tree, out, version, platform = sys.argv[1:]
    tag = f"py3-none-{platform}"
    info = f"train_gpt_fsdp-{version}.dist-info"
    path = os.path.join(out, f"train_gpt_fsdp-{version}-{tag}.whl")
    record = []
    os.makedirs(out, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:

        def add(name, data, mode=0o644):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = (stat.S_IFREG | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}")

        add("train_gpt_fsdp/__init__.py", ENTRY.encode())
        for directory, names, files in os.walk(tree):
            names.sort()
            for file in sorted(files):
                full = os.path.join(directory, file)
                with open(full, "rb") as f:
                    runs = os.stat(full).st_mode & 0o111
                    add("train_gpt_fsdp/" + os.path.relpath(full, tree), f.read(), 0o755 if runs else 0o644)
        add(f"{info}/METADATA", METADATA.format(version=version).encode())
        add(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: wheel.py\nRoot-Is-Purelib: false\nTag: {tag}\n".encode())
        add(f"{info}/entry_points.txt", ENTRY_POINTS.encode())
        record.append(f"{info}/RECORD,,")
        wheel.writestr(f"{info}/RECORD", "\n".join(record) + "\n")
    print(f"dist: {path}, {os.path.getsize(path) >> 20} MB")


main()
