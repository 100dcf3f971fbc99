"""Writes a GGUF file of TinyLlama-1.1B's or SmolLM2-135M's shape with random weights, for speed only.

    python3 bench/random_model.py --shape tinyllama --format Q4_0 T.Q4_0.gguf

Matrices have the asked format, the output head of a 4-bit model Q6_K where its width allows (as the usual quantizer
does), norms are ones. There is no tokenizer: it says "no_vocab".
"""

import argparse
import random
import struct

SHAPES = {  # layers, hidden, heads, KV heads, ffn, vocabulary, own output head
    "tinyllama": (22, 2048, 32, 4, 5632, 32000, True),
    "smollm2": (30, 576, 9, 3, 1536, 49152, False),
}
# GGUF type, values and bytes of a block, where its f16 scales lie with the value each gets, so that weights spread by 0.02.
FORMATS = {
    "F32": (0, 1, 4, {}),
    "F16": (1, 1, 2, {}),
    "Q4_0": (2, 32, 18, {0: 0.0043}),
    "Q4_1": (3, 32, 20, {0: 0.0043, 2: -0.032}),
    "Q8_0": (8, 32, 34, {0: 0.00027}),
    "Q4_K": (12, 256, 144, {0: 0.00014, 2: 0.001}),
    "Q6_K": (14, 256, 210, {208: 0.00002}),
    "BF16": (30, 1, 2, {}),
}
STRING, UINT32, FLOAT32 = 8, 4, 6


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def fact(key, kind, value):
    body = text(value) if kind == STRING else struct.pack("<I" if kind == UINT32 else "<f", value)
    return text(key) + struct.pack("<I", kind) + body


def random_bytes(generator, name, count):
    _, values, size, scales = FORMATS[name]
    data = bytearray(generator.randbytes(count // values * size))
    for offset, scale in scales.items():
        low, high = struct.pack("<e", scale)
        blocks = len(data) // size
        data[offset::size] = bytes([low]) * blocks
        data[offset + 1 :: size] = bytes([high]) * blocks
    if size == 2:  # signs and low bits of the exponent stay random
        keep, base = (0x87, 0x20) if name == "F16" else (0x81, 0x3C)
        data[1::2] = bytes(data[1::2]).translate(bytes(byte & keep | base for byte in range(256)))
    return data


def tensors_of(shape, name):
    layers, hidden, heads, kv_heads, ffn, vocab, head = SHAPES[shape]
    kv = hidden // heads * kv_heads
    yield "token_embd.weight", (hidden, vocab), name
    for i in range(layers):
        for part, size in (
            ("attn_norm", (hidden,)),
            ("attn_q", (hidden, hidden)),
            ("attn_k", (hidden, kv)),
            ("attn_v", (hidden, kv)),
            ("attn_output", (hidden, hidden)),
            ("ffn_norm", (hidden,)),
            ("ffn_gate", (hidden, ffn)),
            ("ffn_up", (hidden, ffn)),
            ("ffn_down", (ffn, hidden)),
        ):
            yield f"blk.{i}.{part}.weight", size, name if len(size) == 2 else "F32"
    yield "output_norm.weight", (hidden,), "F32"
    if head:
        yield "output.weight", (hidden, vocab), "Q6_K" if name.startswith("Q4") and hidden % 256 == 0 else name


def facts_of(shape):
    layers, hidden, heads, kv_heads, ffn, vocab, _ = SHAPES[shape]
    yield fact("general.architecture", STRING, "llama")
    yield fact("general.name", STRING, f"random {shape}")
    yield fact("tokenizer.ggml.model", STRING, "no_vocab")
    for key, value in (
        ("block_count", layers),
        ("context_length", 32768),
        ("embedding_length", hidden),
        ("feed_forward_length", ffn),
        ("attention.head_count", heads),
        ("attention.head_count_kv", kv_heads),
        ("rope.dimension_count", hidden // heads),
        ("vocab_size", vocab),
    ):
        yield fact(f"llama.{key}", UINT32, value)
    yield fact("llama.attention.layer_norm_rms_epsilon", FLOAT32, 1e-5)
    yield fact("llama.rope.freq_base", FLOAT32, 10000.0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="tinyllama")
    parser.add_argument("--format", choices=[name for name in FORMATS if name not in ("F32", "Q6_K")], default="Q4_0")
    parser.add_argument("path")
    arguments = parser.parse_args()
    generator = random.Random(1)
    tensors = list(tensors_of(arguments.shape, arguments.format))
    facts = list(facts_of(arguments.shape))
    header = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(facts)) + b"".join(facts)
    offset = 0
    sizes = []
    for name, size, kind in tensors:
        code, values, block, _ = FORMATS[kind]
        count = size[0] * (size[1] if len(size) == 2 else 1)
        header += text(name) + struct.pack(f"<I{len(size)}QIQ", len(size), *size, code, offset)
        sizes.append(count)
        offset += (count // values * block + 31) // 32 * 32
    with open(arguments.path, "wb") as file:
        file.write(header + bytes(-len(header) % 32))
        for (_, size, kind), count in zip(tensors, sizes):
            data = struct.pack("<f", 1.0) * count if kind == "F32" else random_bytes(generator, kind, count)
            file.write(data + bytes(-len(data) % 32))


if __name__ == "__main__":
    main()
