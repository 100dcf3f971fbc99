"""Tokenizes a text with the tokenizer inside a GGUF, through transformers, into little-endian int32 ids.

    python tokens.py MODEL.gguf TEXT OUT.i32 [--limit N]
"""

import argparse
import os

import numpy as np
from transformers import AutoTokenizer


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("out")
    parser.add_argument("--limit", type=int)
    arguments = parser.parse_args()
    folder, name = os.path.split(os.path.abspath(arguments.model))
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    with open(arguments.text, encoding="utf-8", newline="") as file:
        ids = tokenizer(file.read(), add_special_tokens=False)["input_ids"]
    if arguments.limit is not None:
        if len(ids) < arguments.limit:
            raise SystemExit(f"{arguments.text} has only {len(ids)} tokens")
        ids = ids[: arguments.limit]
    np.asarray(ids, dtype="<i4").tofile(arguments.out)
    print(f"{arguments.out}: {len(ids)} tokens")


if __name__ == "__main__":
    main()
