#!/usr/bin/env python3
"""Token ids by the `tokenizers` library, as golden files for text_test.

  tokenizer.py small OUT          trains a small vocabulary on random text of ours; writes OUT/small_bpe.json
                                  and OUT/small_bpe_ids.jsonl (committed: src/text/testdata)
  tokenizer.py model GGUF OUT     writes OUT/spec.json and OUT/ids.jsonl for 10,000 random strings, for
                                  TANDEM_TEXT_REFERENCE=OUT text_test
"""

import json
import pathlib
import random
import sys

import tokenizers
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import gguf_metadata
import random_text

CONTROL, USER_DEFINED = 3, 4
PRE_TOKENIZERS = {
    "smollm": lambda: pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]),
    "gpt-2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
}


def build(spec):
    """The reference tokenizer of a spec, without special tokens."""
    vocab = {token: i for i, token in enumerate(spec["tokens"])}
    merges = [tuple(merge.split(" ", 1)) for merge in spec["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[spec["pre"]]()
    return tokenizer


def add_tokens(tokenizer, spec, kinds):
    """User-defined tokens are always matched in text, control tokens when asked for."""
    for token, kind in zip(spec["tokens"], spec["types"]):
        if kind in kinds:
            tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])


def write_ids(spec, strings, path):
    plain = build(spec)
    add_tokens(plain, spec, (USER_DEFINED,))
    special = build(spec)
    add_tokens(special, spec, (CONTROL, USER_DEFINED))
    with open(path, "w", encoding="utf-8") as file:
        meta = {"made_by": "scripts/reference/tokenizer.py", "tokenizers": tokenizers.__version__, "pre": spec["pre"]}
        file.write(json.dumps(meta) + "\n")
        for text in strings:
            row = {"text": text, "ids": plain.encode(text, add_special_tokens=False).ids}
            with_specials = special.encode(text, add_special_tokens=False).ids
            if with_specials != row["ids"]:
                row["special_ids"] = with_specials
            file.write(json.dumps(row, ensure_ascii=True, separators=(",", ":")) + "\n")


def with_specials(strings, specials, seed):
    """Some of the strings get spellings of special tokens, whole and broken."""
    rng = random.Random(seed)
    out = []
    for text in strings:
        if rng.randrange(4) == 0:
            spelling = rng.choice(specials)
            if rng.randrange(3) == 0:
                spelling = spelling[:rng.randrange(1, len(spelling) + 1)]
            at = rng.randrange(len(text) + 1)
            text = text[:at] + spelling + text[at:]
        out.append(text)
    return out


def small(out):
    specials = ["<|end|>", "<|turn|>", "<|turn|>>", "<think>"]
    corpus = random_text.random_strings(seed=1, count=3000)
    for pre in ("smollm", "gpt-2"):
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = PRE_TOKENIZERS[pre]()
        trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=specials, show_progress=False,
                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
        tokenizer.train_from_iterator(corpus, trainer)
        model = json.loads(tokenizer.to_str())["model"]
        tokens = [t for t, _ in sorted(model["vocab"].items(), key=lambda item: item[1])]
        spec = {
            "kind": "bpe", "pre": pre, "tokens": tokens,
            "types": [USER_DEFINED if t == "<think>" else CONTROL if t in specials else 1 for t in tokens],
            "merges": [m if isinstance(m, str) else " ".join(m) for m in model["merges"]],
            "bos": 1, "eos": 0, "unknown": -1, "pad": 0, "end_of_generation": [0],
            "add_bos": False, "add_eos": False, "chat_template": "",
        }
        name = "small_bpe_" + pre.replace("-", "")
        (out / (name + ".json")).write_text(json.dumps(spec, ensure_ascii=True, separators=(",", ":")) + "\n")
        strings = with_specials(random_text.random_strings(seed=2, count=150, pieces=12), specials, seed=3)
        write_ids(spec, strings, out / (name + "_ids.jsonl"))


def model(path, out, count=10_000):
    out.mkdir(parents=True, exist_ok=True)
    spec = gguf_metadata.tokenizer_spec(gguf_metadata.read_metadata(path))
    (out / "spec.json").write_text(json.dumps(spec, ensure_ascii=False))
    specials = [t for t, kind in zip(spec["tokens"], spec["types"]) if kind == CONTROL]
    write_ids(spec, with_specials(random_text.random_strings(seed=4, count=count), specials, seed=5), out / "ids.jsonl")


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "small":
        small(pathlib.Path(sys.argv[2]))
    elif len(sys.argv) == 4 and sys.argv[1] == "model":
        model(sys.argv[2], pathlib.Path(sys.argv[3]))
    else:
        sys.exit(__doc__)
