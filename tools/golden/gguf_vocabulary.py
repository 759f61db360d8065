#!/usr/bin/env python3
"""Compares our tokenizers with llama.cpp's test vectors: ggml-vocab-NAME.gguf with its .inp (texts) and .out (ids).

They are in vendor/llama.cpp/models of the PyPI source package llama_cpp_python; nothing of them is committed.

  cmake --build build/dev --target tokenizer_check
  tools/golden/gguf_vocabulary.py --check build/dev/src/mstar/text/tokenizer_check ggml-vocab-*.gguf
"""
import argparse
import json
import pathlib
import struct
import subprocess
import sys

FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
SEPARATOR = "\n__ggml_vocab_test__\n"


def read_metadata(path):
    data = path.read_bytes()
    at = 0

    def take(fmt):
        nonlocal at
        values = struct.unpack_from("<" + fmt, data, at)
        at += struct.calcsize("<" + fmt)
        return values

    def text():
        nonlocal at
        size = take("Q")[0]
        at += size
        return data[at - size:at].decode("utf-8", "replace")

    def value(kind):
        if kind == 8:
            return text()
        if kind == 9:
            inner, count = take("IQ")
            if inner == 8:
                return [text() for _ in range(count)]
            return list(take(f"{count}{FORMATS[inner]}"))
        return take(FORMATS[kind])[0]

    assert take("4s")[0] == b"GGUF"
    take("I")
    _, num_keys = take("QQ")
    out = {}
    for _ in range(num_keys):
        key = text()
        item = value(take("I")[0])
        if key.startswith("tokenizer.ggml."):
            out[key[len("tokenizer.ggml."):]] = item
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    parser.add_argument("--check", type=pathlib.Path, required=True)
    args = parser.parse_args()
    failed = False
    for path in args.files:
        inputs = pathlib.Path(f"{path}.inp")
        if not inputs.exists():
            continue
        texts = inputs.read_text(encoding="utf-8").split(SEPARATOR)
        ids = [[int(i) for i in line.split()] for line in pathlib.Path(f"{path}.out").read_text().splitlines()]
        requests = [{"gguf": read_metadata(path)}] + [{"text": t} for t in texts[:len(ids)]]
        done = subprocess.run([args.check], input="\n".join(map(json.dumps, requests)) + "\n", capture_output=True, text=True,
                              check=True)
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        if "error" in answers[0]:
            print(f"{path.name}: {answers[0]['error']}")
            continue
        wrong = [(t, e, a.get("ids")) for t, e, a in zip(texts, ids, answers[1:]) if a.get("ids") != e]
        print(f"{path.name}: {len(ids)} texts, {len(wrong)} differ")
        for text, expected, ours in wrong[:3]:
            print(f"  {text!r}\n    theirs {expected}\n    ours   {ours}")
        failed = failed or bool(wrong)
    sys.exit(failed)


if __name__ == "__main__":
    main()
