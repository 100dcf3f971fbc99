#!/usr/bin/env python3
"""Small tokenizers in each style, trained on random text of ours, with token ids by the reference libraries: golden files for text_test.

  tokenizer_styles.py OUT      OUT is src/text/testdata/styles
"""

import json
import pathlib
import random
import sys

import sentencepiece
import tokenizers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import random_text

SPECIALS = ["<unk>", "<s>", "</s>"]
ADDED = [AddedToken("<think>", normalized=False), AddedToken("[left]", normalized=False, lstrip=True),
         AddedToken("[right]", normalized=False, rstrip=True), AddedToken("word", normalized=False, single_word=True),
         AddedToken("Caf\u00e9", normalized=True)]
QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def strings(count, seed):
    rng = random.Random(seed)
    out = []
    for text in random_text.random_strings(seed=seed, count=count, pieces=12):
        for _ in range(rng.randrange(3)):
            extra = rng.choice(["<think>", " [left] ", " [right] x", "word", " word,", "words", "Caf\u00e9", "Cafe\u0301", "</s>", "<s>", "<0x41>",
                                "\u2581", "  ", "<tab>", "'\u017f"])
            at = rng.randrange(len(text) + 1)
            text = text[:at] + extra + text[at:]
        out.append(text)
    return out


def hugging_face(out, corpus):
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]

    def bpe(model, size, **parts):
        more = parts.pop("more", {})
        tokenizer = Tokenizer(model)
        for key, value in parts.items():
            setattr(tokenizer, key, value)
        tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=size, special_tokens=SPECIALS + more.pop("extra", []),
                                                                  show_progress=False, **more))
        return tokenizer

    byte_level = bpe(models.BPE(), 600, normalizer=normalizers.NFC(), decoder=decoders.ByteLevel(), more={"initial_alphabet": alphabet},
                     pre_tokenizer=pre_tokenizers.Sequence([pre_tokenizers.Split(tokenizers.Regex(QWEN), "isolated"),
                                                            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]))
    byte_level.add_tokens(ADDED)
    yield "byte_level", byte_level

    yield "regex", bpe(models.BPE(), 600, more={"initial_alphabet": alphabet}, decoder=decoders.ByteLevel(),
                       pre_tokenizer=pre_tokenizers.Sequence([
                           pre_tokenizers.Split(tokenizers.Regex(r"\p{Lu}\p{Ll}+|\d{2}|[^\w\s]"), "merged_with_next"),
                           pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)]))

    fallback_tokenizer = bpe(models.BPE(unk_token="<unk>"), 700, pre_tokenizer=pre_tokenizers.Metaspace(),
                             more={"limit_alphabet": 120, "extra": fallback})
    document = json.loads(fallback_tokenizer.to_str())
    document["model"].update(byte_fallback=True, fuse_unk=True)
    document["added_tokens"] = document["added_tokens"][:3]
    document["pre_tokenizer"] = None
    document["normalizer"] = {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "\u2581"}, {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}
    document["decoder"] = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    fallback_tokenizer = Tokenizer.from_str(json.dumps(document))
    fallback_tokenizer.add_tokens(ADDED[:4])
    yield "byte_fallback", fallback_tokenizer

    yield "metaspace", bpe(models.BPE(unk_token="<unk>", fuse_unk=True), 500, pre_tokenizer=pre_tokenizers.Metaspace(),
                           decoder=decoders.Metaspace(), more={"limit_alphabet": 150})

    pieces = json.loads(bpe(models.BPE(unk_token="<unk>"), 500, pre_tokenizer=pre_tokenizers.Metaspace(),
                            more={"limit_alphabet": 150}).to_str())["model"]["vocab"]
    unigram = Tokenizer(models.Unigram([(piece, -100.0 if piece in SPECIALS else -2.0 - 0.013 * i)
                                        for piece, i in sorted(pieces.items(), key=lambda item: item[1])], 0, False))
    unigram.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    unigram.decoder = decoders.Metaspace()
    yield "unigram", unigram


def main(out):
    out.mkdir(parents=True, exist_ok=True)
    corpus = random_text.random_strings(seed=1, count=3000)
    texts = strings(100, seed=21)
    for name, tokenizer in hugging_face(out, corpus):
        if name != "byte_level" and name != "byte_fallback" and name != "regex":
            tokenizer.add_special_tokens(SPECIALS)
        path = out / f"{name}.tokenizer.json"
        tokenizer.save(str(path), pretty=False)
        plain = Tokenizer.from_file(str(path))
        plain.encode_special_tokens = True
        with open(out / f"{name}_ids.jsonl", "w", encoding="utf-8") as file:
            for text in texts:
                ids = plain.encode(text, add_special_tokens=False).ids
                row = {"text": text, "ids": ids}
                if "Caf" not in text or name != "byte_level":  # the library takes the bytes of an added token for its alphabet
                    row["decoded"] = plain.decode(ids, skip_special_tokens=False)
                if (special := tokenizer.encode(text, add_special_tokens=False).ids) != ids:
                    row["special_ids"] = special
                file.write(json.dumps(row, separators=(",", ":")) + "\n")
    lines = out / "corpus.txt"
    latin = ["".join(c for c in line if " " <= c < "\u0100") for line in corpus]  # the trainer wants nearly every character
    lines.write_text("\n".join(line for line in latin if line), encoding="utf-8")
    for kind, more in (("unigram", {}), ("bpe", {"byte_fallback": True, "user_defined_symbols": ["<tab>", "\n"]})):
        prefix = out / f"sentencepiece_{kind}"
        sentencepiece.SentencePieceTrainer.train(
            input=str(lines), model_prefix=str(prefix), vocab_size=800, model_type=kind,
            normalization_rule_name="identity", character_coverage=0.99, minloglevel=2, hard_vocab_limit=False,
            remove_extra_whitespaces=kind == "unigram", **more)
        pathlib.Path(f"{prefix}.vocab").unlink()
        processor = sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")
        with open(f"{prefix}_ids.jsonl", "w", encoding="utf-8") as file:
            for text in texts:
                ids = processor.encode(text)
                file.write(json.dumps({"text": text, "ids": ids, "decoded": processor.decode(ids)}, separators=(",", ":")) + "\n")
    lines.unlink()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]))
