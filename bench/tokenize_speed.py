#!/usr/bin/env python3
"""Tokenizing speed beside other libraries: one thread, one run, the same vocabulary, the same text.

  tokenize_speed.py TOOL TEXT [--model GGUF]...

TOOL is build/release/bench_text. A GGUF with byte-level BPE is compared with tiktoken (the same ranks and pattern) and tokenizers, one
with SentencePiece with sentencepiece and tokenizers. Prints MB/s (the best of several passes over the whole text, as one string) and how
many times as fast as each peer ours is. The ids are compared first: a difference is an error.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

import tiktoken
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts" / "reference"))
import gguf_metadata
import token_ids

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# A digit is a piece, and ends what comes before it: the same cuts as \p{N} first and GPT-2's pattern between.
SMOLLM = r"\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?=\p{N})|\s+(?!\S)|\s+"


def byte_of():
    table, extra = {}, 256
    for byte in range(256):
        if 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174:
            table[chr(byte)] = byte
        else:
            table[chr(extra)] = byte
            extra += 1
    return table


def tiktoken_of(spec):
    table = byte_of()
    ranks = {}
    for i, (token, kind) in enumerate(zip(spec["tokens"], spec["types"])):
        if kind == 1:
            ranks[bytes(table[c] for c in token)] = i
    pattern = SMOLLM if spec["pre"] == "smollm" else token_ids.PATTERNS.get(spec["pre"], GPT2)
    encoding = tiktoken.Encoding("x", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    return lambda text: encoding.encode(text, disallowed_special=())


def tokenizers_of_sentencepiece(spec, scores):
    """The conversion that transformers makes of such a vocabulary: characters, merges by score."""
    vocab = {token: i for i, token in enumerate(spec["tokens"])}
    merges = []
    for token, score, kind in zip(spec["tokens"], scores, spec["types"]):
        if kind in (1, 4):
            parts = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in vocab and token[i:] in vocab]
            merges += [(score, part) for part in sorted(parts, key=lambda p: (vocab[p[0]], vocab[p[1]]))]
    merges = [part for _, part in sorted(merges, key=lambda m: -m[0])]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def speed(encode, text):
    best, started, passes = 1e9, time.monotonic(), 0
    while passes < 3 or (time.monotonic() - started < 2 and passes < 100):
        before = time.perf_counter()
        encode(text)
        best = min(best, time.perf_counter() - before)
        passes += 1
    return len(text.encode()) / best / 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool")
    parser.add_argument("text")
    parser.add_argument("--model", action="append", default=[])
    arguments = parser.parse_args()
    text = pathlib.Path(arguments.text).read_text(encoding="utf-8")
    paths = arguments.model or [str(p) for p in sorted((ROOT / "models").glob("*.gguf"))]
    wrong = False
    for path in paths:
        metadata = gguf_metadata.read_metadata(path)
        spec = gguf_metadata.tokenizer_spec(metadata)
        peers = {}
        if metadata["tokenizer.ggml.model"] == "gpt2":
            library, reference = token_ids.gguf_reference(path)
            peers = {"tiktoken": tiktoken_of(spec), "tokenizers": reference}
        else:
            library, reference = "sentencepiece", token_ids.sentencepiece_of(metadata, spec)
            peers = {"sentencepiece": reference, "tokenizers": tokenizers_of_sentencepiece(spec, metadata["tokenizer.ggml.scores"])}
        done = subprocess.run([arguments.tool, "ids", path], input=json.dumps(text) + "\n", capture_output=True, text=True, check=True)
        same = json.loads(done.stdout)["ids"] == list(reference(text))
        wrong |= not same
        ours = json.loads(subprocess.run([arguments.tool, "speed", path, arguments.text], capture_output=True, text=True,
                                         check=True).stdout)
        print(f"{pathlib.Path(path).name}, {ours['bytes'] / 1e6:.2f} MB, {ours['tokens']} tokens, ids "
              f"{'equal to' if same else 'DIFFERENT from'} {library}")
        print(f"  tandem         {ours['megabytes_per_second']:8.2f} MB/s")
        for name, encode in peers.items():
            theirs = speed(encode, text)
            print(f"  {name:14} {theirs:8.2f} MB/s   tandem is {ours['megabytes_per_second'] / theirs:.1f} times as fast", flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
