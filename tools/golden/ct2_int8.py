#!/usr/bin/env python3
"""A CTranslate2 checkpoint (model.bin version 6) with its matrices in int8, half as large: ct2_int8.py FROM TO

Rows are scaled to 127 as CTranslate2 does it, what is no matrix stays as it is, and so do the files beside it.
"""
import pathlib
import shutil
import struct
import sys

import numpy as np

from seeded_whisper import quantise

KINDS = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}
CODES = {np.dtype(kind).name: code for code, kind in KINDS.items()}


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, form):
        values = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return values if len(values) > 1 else values[0]

    def string(self):
        length = self.take("H")
        text = self.data[self.at:self.at + length - 1].decode()
        self.at += length
        return text


def text_of(text):
    return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"


def main():
    origin, to = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    to.mkdir(parents=True, exist_ok=True)
    reader = Reader((origin / "model.bin").read_bytes())
    assert reader.take("I") == 6, "only version 6 is read"
    spec, revision, count = reader.string(), reader.take("I"), reader.take("I")
    variables = {}
    for _ in range(count):
        name, rank = reader.string(), reader.take("B")
        shape = [reader.take("I") for _ in range(rank)]
        kind, size = reader.take("B"), reader.take("I")
        array = np.frombuffer(reader.data, KINDS[kind], size // np.dtype(KINDS[kind]).itemsize, reader.at).reshape(shape)
        reader.at += size
        if name.endswith("/weight") and array.ndim >= 2 and array.dtype != np.int8:
            variables[name], variables[name + "_scale"] = quantise(array)
        else:
            variables[name] = array
    rest = reader.data[reader.at:]  # aliases
    with open(to / "model.bin", "wb") as file:
        file.write(struct.pack("<I", 6) + text_of(spec) + struct.pack("<II", revision, len(variables)))
        for name, array in sorted(variables.items()):
            file.write(text_of(name) + struct.pack("<B%dI" % array.ndim, array.ndim, *array.shape))
            file.write(struct.pack("<BI", CODES[array.dtype.name], array.nbytes) + array.tobytes())
        file.write(rest)
    for file in origin.iterdir():
        if file.name != "model.bin" and not file.name.startswith("."):
            shutil.copy(file, to / file.name)


if __name__ == "__main__":
    main()
