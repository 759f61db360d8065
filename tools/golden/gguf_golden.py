#!/usr/bin/env python3
"""Stores GGUF files written by the Python package `gguf`, with what it makes of random blocks, under tests/golden/gguf/.

    gguf_golden.py [--out tests/golden/gguf]

blocks.gguf: for each block format NAME a tensor NAME [3, 2 blocks] of random bytes (scales finite, some of them subnormal or zero) and
`NAME.f32`, gguf.quants.dequantize of it; the same for f16 and bf16. Metadata of every type, arrays and arrays of arrays; alignment 64.
"""
import argparse
import pathlib

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

# Offsets of the halves in a block.
HALVES = {Type.Q8_0: [0], Type.Q4_0: [0], Type.Q4_1: [0, 2], Type.Q5_0: [0], Type.Q5_1: [0, 2],
          Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208]}


def random_blocks(rng, kind, rows, blocks):
    size = gguf.GGML_QUANT_SIZES[kind][1]
    out = rng.integers(0, 256, (rows * blocks, size), dtype=np.uint8)
    for at in HALVES[kind]:
        half = rng.normal(0, 0.1, rows * blocks).astype(np.float16)
        half[:3] = [6e-8, -0.0, 60000.0]
        out[:, at:at + 2] = half.view(np.uint8).reshape(-1, 2)
    return out.reshape(rows, blocks * size)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("tests/golden/gguf"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(7)
    writer = gguf.GGUFWriter(out / "blocks.gguf", "llama")
    writer.add_custom_alignment(64)
    writer.add_uint8("t.u8", 200)
    writer.add_int8("t.i8", -3)
    writer.add_uint16("t.u16", 60000)
    writer.add_int16("t.i16", -30000)
    writer.add_uint32("t.u32", 4000000000)
    writer.add_int32("t.i32", -2000000000)
    writer.add_uint64("t.u64", 2**64 - 1)
    writer.add_int64("t.i64", -2**63)
    writer.add_float32("t.f32", 0.5)
    writer.add_float64("t.f64", 0.1)
    writer.add_bool("t.bool", True)
    writer.add_string("t.string", "h\u00e9llo")
    writer.add_array("t.tokens", ["a", "", "\u2581the"])
    writer.add_array("t.types", [1, -2, 3])
    writer.add_array("t.scores", [0.5, -1.5])
    writer.add_array("t.flags", [True, False])
    writer.add_array("t.nested", [[1, 2], [3], [4, 5, 6]])
    for kind in HALVES:
        name = kind.name.lower()
        blocks = random_blocks(rng, kind, 3, 2)
        writer.add_tensor(name, blocks, raw_dtype=kind)
        writer.add_tensor(name + ".f32", gguf.quants.dequantize(blocks, kind))
    half = rng.normal(0, 1, (2, 5)).astype(np.float16)
    writer.add_tensor("f16", half)
    writer.add_tensor("f16.f32", half.astype(np.float32))
    brain = gguf.quants.quantize(rng.normal(0, 1, (2, 5)).astype(np.float32), Type.BF16)
    writer.add_tensor("bf16", brain, raw_dtype=Type.BF16)
    writer.add_tensor("bf16.f32", gguf.quants.dequantize(brain, Type.BF16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
