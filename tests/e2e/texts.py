"""Prompts of ours: deterministic, of many lengths, with and without shared prefixes."""

import random

SUBJECTS = ["a lighthouse", "tidal mills", "the number seven", "a broken clock", "winter bread", "railway maps",
            "glass blowing", "a quiet harbour", "moss", "the colour green", "paper boats", "an old violin"]
VERBS = ["describe", "explain", "compare with the sea", "praise", "summarize", "question", "draw in words", "sell"]
FACTS = ["It stood there for years.", "Nobody had asked before.", "The price was 42 crowns.", "Rain fell on Tuesday.",
         "Three people knew: Ada, Bo and Cy.", "Überall lag Schnee.", "The list was short (2 items).", "It hummed quietly.",
         "x = y + 3;", "Later, the river froze.", "An email came at 09:15.", "それは静かだった。"]


def prompts(count, longest_sentences=24, seed=1):
    """Chat messages; some share their beginning with an earlier one."""
    rng = random.Random(seed)
    out = []
    for i in range(count):
        if out and rng.randrange(4) == 0:
            base = rng.choice(out)
            out.append(base + [{"role": "assistant", "content": rng.choice(FACTS)},
                               {"role": "user", "content": f"And {rng.choice(SUBJECTS)}?"}])
            continue
        story = " ".join(rng.choice(FACTS) for _ in range(rng.randrange(longest_sentences)))
        messages = [{"role": "user", "content": f"{story} Please {rng.choice(VERBS)} {rng.choice(SUBJECTS)} ({i})."}]
        if rng.randrange(3) == 0:
            messages.insert(0, {"role": "system", "content": rng.choice(FACTS)})
        out.append(messages)
    return out


def requests(count, max_tokens, longest_sentences=24, seed=1):
    """Half greedy, half seeded."""
    out = []
    for i, messages in enumerate(prompts(count, longest_sentences, seed)):
        body = {"model": "default", "messages": messages, "max_tokens": max_tokens}
        if i % 2 == 0:
            body["temperature"] = 0
        else:
            body.update(temperature=0.9, top_p=0.95, top_k=50 if i % 4 == 1 else 0, seed=i)
        out.append(body)
    return out
