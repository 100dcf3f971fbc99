#!/usr/bin/env python3
"""Characters about which the reference tokenizers and Debian's utf8proc (Unicode 15.0) disagree, because they are of other versions.

  unicode_patch.py classes > src/text/unicode_patch.inc
  unicode_patch.py lower > src/text/lower_patch.inc
  unicode_patch.py normalization > src/text/normalization_patch.inc

The `tokenizers` library's regular expressions know Unicode 16 and its lower case Unicode 17 (classes, lower: what utf8proc lacks), but
its NFC, NFD, NFKC, NFKD and StripAccents know Unicode 9 (normalization: what they leave as it is). Asks both about every code point.
"""

import ctypes
import sys

import tokenizers
from tokenizers import normalizers, pre_tokenizers

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
CLASSES = [(r"\p{Lu}", "kLetter | kUpper"), (r"\p{Lt}", "kLetter | kUpper"), (r"\p{Ll}", "kLetter | kLower"),
           (r"[\p{Lm}\p{Lo}]", "kLetter"), (r"\p{N}", "kNumber"), (r"\p{M}", "kMark"), (r"[\p{P}\p{S}]", "kPunctuation")]
STABLE, COMPAT, COMPOSE, DECOMPOSE = 2, 4, 8, 16
FORMS = [(normalizers.NFC(), COMPOSE), (normalizers.NFD(), DECOMPOSE), (normalizers.NFKC(), COMPOSE | COMPAT),
         (normalizers.NFKD(), DECOMPOSE | COMPAT)]
# Alone, and where its combining class or a composition shows.
CONTEXTS = ["{}", "a\u0327{}\u0316", "a\u0301{}\u0327", "\u0301{}\u0327\u0316\u0301\u0345", "\u0f71{}\u05b0", "\U00011099{}\u094d\u3099",
            "\U00011935{}"]
UTF8PROC = ctypes.CDLL("libutf8proc.so.2")


def members(pattern):
    split = pre_tokenizers.Split(tokenizers.Regex(pattern), "removed", invert=True)
    found = set()
    for start in range(0, len(CODE_POINTS), 20000):
        for piece, _ in split.pre_tokenize_str("".join(map(chr, CODE_POINTS[start:start + 20000]))):
            found.update(map(ord, piece))
    return found


def utf8proc_normal(text, options):
    data = text.encode()
    result = ctypes.c_void_p()
    size = UTF8PROC.utf8proc_map(data, ctypes.c_ssize_t(len(data)), ctypes.byref(result), STABLE | options)
    normal = ctypes.string_at(result, size).decode()
    ctypes.CDLL(None).free(result)
    return normal


def print_ranges(entries):
    """(code point, what follows it in the row), rows of equal neighbours joined."""
    rows = []
    for c, rest in sorted(entries):
        if rows and rows[-1][1] == c - 1 and rows[-1][2] == rest:
            rows[-1][1] = c
        else:
            rows.append([c, c, rest])
    for first, last, rest in rows:
        print(f"{{0x{first:X}, 0x{last:X}{rest}}},")


def classes(unassigned):
    return [(c, f", {bits}") for pattern, bits in CLASSES for c in members(pattern) & unassigned]


def lower(unassigned):
    step = normalizers.Lowercase()
    small = [(c, step.normalize_str(chr(c))) for c in unassigned]
    return [(c, f", {ord(text) - c}") for c, text in small if text != chr(c)]


def normalization(unassigned):
    strip = normalizers.StripAccents()
    marks = {c for c in CODE_POINTS if UTF8PROC.utf8proc_category(c) in (6, 7, 8)} | members(r"\p{M}")
    stripped = {c for c in CODE_POINTS if strip.normalize_str("a" + chr(c)) == "a"}
    assert stripped - marks == {0x1CF2, 0x1CF3}, "text/normalizer.cc names these two"
    unknown = marks - stripped
    for c in CODE_POINTS:
        if c in unassigned or 0x3400 <= c < 0xA000 or 0xAC00 <= c < 0xD7A4 or 0x20000 <= c < 0x2F800 or c >= 0x30000:
            continue  # nothing was changed about ideographs and Hangul
        texts = [context.format(chr(c)) for context in CONTEXTS]
        if any(step.normalize_str(text) != utf8proc_normal(text, options) for step, options in FORMS for text in texts):
            unknown.add(c)
    return [(c, "") for c in unknown]


def main():
    makers = {maker.__name__: maker for maker in (classes, lower, normalization)}
    if len(sys.argv) != 2 or sys.argv[1] not in makers:
        sys.exit(__doc__)
    unassigned = {c for c in CODE_POINTS if UTF8PROC.utf8proc_category(c) == 0}
    print(f"// Made by scripts/reference/unicode_patch.py {sys.argv[1]}.")
    print_ranges(makers[sys.argv[1]](unassigned))


if __name__ == "__main__":
    main()
