"""Reads the metadata of a GGUF file (the header's key-value pairs; not the tensors)."""

import struct

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class _Reader:
    def __init__(self, data):
        self.data = data
        self.at = 8  # behind magic and version

    def scalar(self, code):
        value = struct.unpack_from("<" + code, self.data, self.at)[0]
        self.at += struct.calcsize(code)
        return value

    def string(self):
        size = self.scalar("Q")
        value = self.data[self.at:self.at + size]
        self.at += size
        return value.decode("utf-8")

    def value(self, kind):
        if kind == 8:
            return self.string()
        if kind == 9:
            element, count = self.scalar("I"), self.scalar("Q")
            return [self.value(element) for _ in range(count)]
        return self.scalar(SCALARS[kind])


def read_metadata(path, header_bytes=64 << 20):
    with open(path, "rb") as file:
        reader = _Reader(file.read(header_bytes))
    assert reader.data[:4] == b"GGUF", "not a GGUF file"
    reader.scalar("Q")  # tensors
    pairs = reader.scalar("Q")
    metadata = {}
    for _ in range(pairs):
        key = reader.string()
        metadata[key] = reader.value(reader.scalar("I"))
    return metadata


def tokenizer_spec(metadata):
    """The same object that src/text/tokenizer_spec.cc reads."""
    get = lambda key, default=None: metadata.get("tokenizer.ggml." + key, default)
    ends = {get("eos_token_id", -1)}
    for key in ("eot_token_id", "eom_token_id"):
        ends.add(get(key, -1))
    return {
        "kind": {"gpt2": "bpe"}.get(get("model"), get("model")),
        "pre": get("pre", "default"),
        "tokens": get("tokens"),
        "types": get("token_type", []),
        "merges": get("merges", []),
        "bos": get("bos_token_id", -1),
        "eos": get("eos_token_id", -1),
        "unknown": get("unknown_token_id", -1),
        "pad": get("padding_token_id", -1),
        "end_of_generation": sorted(e for e in ends if e >= 0),
        "add_bos": bool(get("add_bos_token", False)),
        "add_eos": bool(get("add_eos_token", False)),
        "chat_template": metadata.get("tokenizer.chat_template", ""),
    }
