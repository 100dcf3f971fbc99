"""Makes golden logits: runs a GGUF through transformers in float32 and keeps a sample of every position.

    python logits.py MODEL.gguf TOKENS.i32 OUT.golden [--samples N] [--full OUT.f32]

TOKENS.i32 holds little-endian int32 ids. OUT.golden (layout below) is read by src/model/golden_test.cc; OUT.json
beside it says which versions made it and from which bytes. --full also writes every logit, for a complete comparison.

Golden file, little-endian: "TGL1", int32 positions, int32 vocab, int32 samples, int32 tokens[positions], then per
position: float32 largest |logit|, float32 log-sum-exp, samples x (int32 index, float32 logit). The samples are the
eight largest logits (at most half of them) and pseudo-random others.
"""

import argparse
import hashlib
import json
import os
import platform
import struct

import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM

SAMPLES = 20
TOP = 8


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def reference_logits(path, tokens):
    folder, name = os.path.split(os.path.abspath(path))
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32, attn_implementation="eager")
    model.eval()
    with torch.no_grad():
        return model(torch.tensor(tokens, dtype=torch.long)[None]).logits[0].float().numpy()


def write_golden(path, tokens, logits, samples):
    positions, vocab = logits.shape
    random = np.random.Generator(np.random.PCG64(7))
    with open(path, "wb") as out:
        out.write(b"TGL1" + struct.pack("<iii", positions, vocab, samples))
        out.write(np.asarray(tokens, dtype="<i4").tobytes())
        for row in logits:
            top = np.argsort(-row, kind="stable")[:min(TOP, samples // 2)]
            indices = np.concatenate([top, random.integers(0, vocab, samples - len(top))])
            wide = row.astype(np.float64)
            log_sum_exp = wide.max() + np.log(np.exp(wide - wide.max()).sum())
            out.write(struct.pack("<ff", np.abs(row).max(), log_sum_exp))
            for index in indices:
                out.write(struct.pack("<if", index, row[index]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("tokens")
    parser.add_argument("golden")
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--full")
    arguments = parser.parse_args()
    tokens = np.fromfile(arguments.tokens, dtype="<i4").tolist()
    logits = reference_logits(arguments.model, tokens)
    write_golden(arguments.golden, tokens, logits, arguments.samples)
    if arguments.full:
        logits.astype("<f4").tofile(arguments.full)
    facts = {
        "model": os.path.basename(arguments.model),
        "model_sha256": sha256(arguments.model),
        "positions": len(tokens),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }
    with open(os.path.splitext(arguments.golden)[0] + ".json", "w") as out:
        out.write(json.dumps(facts, indent=2) + "\n")
    print(f"{arguments.golden}: {len(tokens)} positions, largest |logit| {np.abs(logits).max():.3f}")


if __name__ == "__main__":
    main()
