#!/usr/bin/env python3
"""Writes tests/golden/sampling.json: what transformers' logits processors leave of small rows of logits, for sample_test.

usage: sampling.py OUT
"""
import json
import sys

import torch
import transformers
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

CASES = [
    {},
    {"temperature": 0.6},
    {"top_k": 7},
    {"top_p": 0.8},
    {"min_p": 0.1},
    {"typical_p": 0.5},
    {"typical_p": 0.95},
    {"temperature": 1.4, "top_k": 12, "top_p": 0.7},
    {"temperature": 0.8, "top_k": 20, "min_p": 0.2},
    {"temperature": 1.2, "top_p": 0.9, "min_p": 0.15},
    {"top_p": 0.95, "typical_p": 0.7},
    {"temperature": 1.5, "top_k": 25, "top_p": 0.9, "min_p": 0.05, "typical_p": 0.6},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.8, "temperature": 0.7, "top_p": 0.6},
]


def processors(case):
    """In the order in which generate() puts them."""
    chain = LogitsProcessorList()
    if "repetition_penalty" in case:
        chain.append(RepetitionPenaltyLogitsProcessor(case["repetition_penalty"]))
    if "temperature" in case:
        chain.append(TemperatureLogitsWarper(case["temperature"]))
    if "top_k" in case:
        chain.append(TopKLogitsWarper(case["top_k"]))
    if "top_p" in case:
        chain.append(TopPLogitsWarper(case["top_p"]))
    if "min_p" in case:
        chain.append(MinPLogitsWarper(case["min_p"]))
    if "typical_p" in case:
        chain.append(TypicalLogitsWarper(case["typical_p"]))
    return chain


def main():
    generator = torch.Generator().manual_seed(20)
    rows = []
    for size, spread in ((40, 2.0), (40, 0.4), (200, 3.0)):
        logits = torch.randn(size, generator=generator) * spread
        tokens = torch.randint(0, size, (12,), generator=generator)
        raw = torch.log_softmax(logits, -1)
        row = {
            "logits": [float(x) for x in logits],
            "tokens": tokens.tolist(),
            "logprobs": [float(x) for x in raw],
            "cases": [],
        }
        for case in CASES:
            scores = processors(case)(tokens[None], logits.clone()[None])
            left = torch.log_softmax(scores[0], -1)
            kept = [[i, float(left[i])] for i in range(size) if left[i] > float("-inf")]
            row["cases"].append({**case, "kept": kept})
        rows.append(row)
    with open(sys.argv[1], "w") as out:
        json.dump({"transformers": transformers.__version__, "torch": torch.__version__, "rows": rows}, out,
                  separators=(",", ":"))
        out.write("\n")


if __name__ == "__main__":
    main()
