#!/usr/bin/env python3
"""Characters that the reference tokenizers' regular expressions classify and Debian's utf8proc (Unicode 15.0) does not know yet.

  unicode_patch.py > src/text/unicode_patch.inc

Asks the `tokenizers` library (Oniguruma, Unicode 16) and libutf8proc about every code point.
"""

import ctypes

import tokenizers
from tokenizers import pre_tokenizers

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
CLASSES = [(r"\p{Lu}", "kLetter | kUpper"), (r"\p{Lt}", "kLetter | kUpper"), (r"\p{Ll}", "kLetter | kLower"),
           (r"[\p{Lm}\p{Lo}]", "kLetter"), (r"\p{N}", "kNumber"), (r"\p{M}", "kMark"), (r"[\p{P}\p{S}]", "kPunctuation")]


def members(pattern):
    split = pre_tokenizers.Split(tokenizers.Regex(pattern), "removed", invert=True)
    found = set()
    for start in range(0, len(CODE_POINTS), 20000):
        for piece, _ in split.pre_tokenize_str("".join(map(chr, CODE_POINTS[start:start + 20000]))):
            found.update(map(ord, piece))
    return found


def main():
    utf8proc = ctypes.CDLL("libutf8proc.so.2")
    unassigned = {c for c in CODE_POINTS if utf8proc.utf8proc_category(c) == 0}
    rows = []
    for pattern, bits in CLASSES:
        for c in sorted(members(pattern) & unassigned):
            if rows and rows[-1][1] == c - 1 and rows[-1][2] == bits:
                rows[-1][1] = c
            else:
                rows.append([c, c, bits])
    print("// Made by scripts/reference/unicode_patch.py.")
    for first, last, bits in sorted(rows):
        print(f"{{0x{first:X}, 0x{last:X}, {bits}}},")


if __name__ == "__main__":
    main()
