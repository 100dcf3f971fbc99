"""Perplexity of a GGUF by transformers in float32, in the windows that `tandem eval perplexity` uses.

    python perplexity.py MODEL.gguf TOKENS.i32 [--window 512] [--limit N]
"""

import argparse
import math
import os

import numpy as np
import torch
from transformers import AutoModelForCausalLM


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("tokens")
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--limit", type=int)
    arguments = parser.parse_args()
    folder, name = os.path.split(os.path.abspath(arguments.model))
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    model.eval()
    tokens = np.fromfile(arguments.tokens, dtype="<i4")[: arguments.limit].astype(np.int64)
    total, count = 0.0, 0
    with torch.no_grad():
        for begin in range(0, len(tokens) - 1, arguments.window):
            window = torch.from_numpy(tokens[begin : begin + arguments.window])
            if len(window) < 2:
                break
            logits = model(window[None]).logits[0, :-1].double()
            scores = torch.log_softmax(logits, dim=-1).gather(1, window[1:, None])
            total -= scores.sum().item()
            count += len(window) - 1
    print(f"perplexity {math.exp(total / count):.5f} over {count} tokens, window {arguments.window}")


if __name__ == "__main__":
    main()
