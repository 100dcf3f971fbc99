#!/usr/bin/env python3
"""Writes tests/golden/formats.txt: what the gguf package decodes fixed pseudo-random blocks to.

One line per format: NAME BLOCKS SHA256 and the bits of a few values. The blocks' bytes come from a counter-based
generator that src/weights/format_test.cc repeats; the 16-bit scales of the first blocks are set to special values.
The digest is over the float32 values with every NaN made the same, since a NaN's sign and payload are the
processor's choice.

usage: formats.py [OUTPUT]
"""
import hashlib
import sys

import gguf
import numpy as np

BLOCKS = 64
SPECIAL = [0x0000, 0x8000, 0x0001, 0x03FF, 0x8001, 0x0400, 0x3C00, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E01]
# name: offsets of the 16-bit scales in a block
FORMATS = {
    "F16": [0], "BF16": [0], "Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q2_K": [80, 82],
    "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": [],
}
SHOWN = [0, 1, 31]  # values of the last block


def random_bytes(seed, count):
    mask = (1 << 64) - 1
    state = seed * 0x9E3779B97F4A7C15 & mask
    out = bytearray()
    while len(out) < count:
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
        out += (z ^ (z >> 31)).to_bytes(8, "little")
    return out[:count]


def main():
    lines = []
    for name, offsets in FORMATS.items():
        kind = gguf.GGMLQuantizationType[name]
        values, size = gguf.GGML_QUANT_SIZES[kind]
        data = random_bytes(int(kind), BLOCKS * size)
        for index, special in enumerate(SPECIAL):
            for offset in offsets:
                data[index * size + offset:index * size + offset + 2] = special.to_bytes(2, "little")
        if name == "MXFP4":
            for index, exponent in enumerate([0, 1, 2, 127, 254, 255]):
                data[index * size] = exponent
        with np.errstate(all="ignore"):
            decoded = gguf.dequantize(np.frombuffer(bytes(data), dtype=np.uint8), kind).astype(np.float32).reshape(-1)
        bits = decoded.view(np.uint32).copy()
        bits[np.isnan(decoded)] = 0x7FC00000
        last = bits[-values:]
        shown = " ".join(f"{last[i % values]:08x}" for i in SHOWN)
        lines.append(f"{name} {BLOCKS} {hashlib.sha256(bits.tobytes()).hexdigest()} {shown}\n")
    output = sys.argv[1] if len(sys.argv) > 1 else "tests/golden/formats.txt"
    with open(output, "w") as out:
        out.writelines(lines)


if __name__ == "__main__":
    main()
