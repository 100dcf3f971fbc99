"""Deterministic random text for comparisons with reference tokenizers and templates."""

import random

WORDS = ("the of to and in is it you that was for on are with as his they be at one have this from or had by hot "
         "but some what there we can out other were all your when up use word how said an each she which do their "
         "time if will way about many then them would write like so these her long make thing see him two has look "
         "I'm don't we'll they've he'd you're it's THE Can'T rock'n'roll naïve café über señor").split()
SPACES = [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n ", "\u00a0", "\u2003", "\u3000", "\u2028", "\x0b", "\x85"]
MARKS = ["'", "''", "'s", "'S", "'re", "'ll", "'v", "’s", "...", "!?", "--", "#", "@x", "://", "<b>", "{}", "\\", "\"", "_"]
SCRIPTS = [(0x41, 0x5A), (0xC0, 0x24F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x52F), (0x5D0, 0x5EA), (0x620, 0x64A),
           (0x660, 0x669), (0x905, 0x939), (0x966, 0x96F), (0xE01, 0xE3A), (0x1100, 0x11FF), (0x2070, 0x209C),
           (0x2150, 0x218B), (0x2460, 0x24FF), (0x3041, 0x3096), (0x30A1, 0x30FA), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3),
           (0x1D400, 0x1D7FF), (0x1F300, 0x1F64F), (0x1F1E6, 0x1F1FF), (0x20000, 0x2A6DF)]


def _any_code_point(rng):
    while True:
        c = rng.choice([rng.randrange(0x80), rng.randrange(0x800), rng.randrange(0x10000), rng.randrange(0x110000)])
        if not 0xD800 <= c < 0xE000:
            return chr(c)


def _piece(rng):
    kind = rng.randrange(12)
    if kind < 4:
        return rng.choice(["", " "]) + rng.choice(WORDS)
    if kind == 4:
        return "".join(rng.choice("0123456789") for _ in range(rng.randrange(1, 9)))
    if kind == 5:
        return rng.choice(SPACES)
    if kind == 6:
        return rng.choice(MARKS)
    if kind == 7:
        low, high = rng.choice(SCRIPTS)
        return "".join(chr(rng.randint(low, high)) for _ in range(rng.randrange(1, 9)))
    if kind == 8:
        return "".join(_any_code_point(rng) for _ in range(rng.randrange(1, 5)))
    if kind == 9:
        return rng.choice(["a", "Z", " ", "\n", ".", "-", "é", "あ", "9", "\t"]) * rng.randrange(1, 70)
    if kind == 10:
        return rng.choice(["👩‍👩‍👧‍👦", "🇩🇪", "e\u0301", "ﬁ", "한국어", "\u200b", "\ufeff", "½", "Ⅷ", "²"])
    return "".join(rng.choice("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_/.-") for _ in range(rng.randrange(1, 40)))


def random_string(rng, pieces):
    return "".join(_piece(rng) for _ in range(rng.randrange(0, pieces)))


def random_strings(seed, count, pieces=24):
    rng = random.Random(seed)
    return [random_string(rng, pieces) for _ in range(count)]
