"""The recorded replies of `canitoolcall` (a test dependency; nothing of it is kept here) for `tandem parse`: which letters of a reply are
tokens of their own, and its pieces under each of the package's ways to cut a stream."""
import collections
import json
import subprocess

from canitoolcall import chunking, results

PARSERS = {"qwen3-hermes": "hermes", "qwen3-xml": "qwen3_xml", "glm": "glm", "gpt-oss": "harmony", "gemma4": "gemma4", "mistral": "mistral"}
SPELLINGS = {
    "hermes": ["<think>", "</think>", "<tool_call>", "</tool_call>"],
    "qwen3_xml": ["<think>", "</think>", "<tool_call>", "</tool_call>"],
    "glm": ["<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
    "harmony": ["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>", "<|return|>"],
    "gemma4": ["<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>"],
    "mistral": ["[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", "[THINK]", "[/THINK]"],
    "kimi_k2": ["<think>", "</think>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
                "<|tool_call_argument_begin|>", "<|tool_call_end|>"],
    "kimi_k3": ["<|open|>", "<|close|>", "<|sep|>"],
    "deepseek_v3": ["<think>", "</think>"] + [f"<\uff5ctool\u2581{part}\uff5c>" for part in
                                             ("calls\u2581begin", "calls\u2581end", "call\u2581begin", "sep", "call\u2581end")],
    "deepseek_v32": ["<think>", "</think>", "\uff5cDSML\uff5c"],
    "llama3_json": ["<|python_tag|>"],
    "llama4_pythonic": ["<|python_start|>", "<|python_end|>"],
}


def parser_of(fixture):
    model = fixture.reference_model
    if fixture.family in PARSERS:
        return PARSERS[fixture.family]
    if fixture.family == "kimi":
        return "kimi_k3" if "K3" in model else "kimi_k2"
    if fixture.family == "deepseek":
        return "deepseek_v3" if model.endswith(("V3-0324", "V3.1")) else "deepseek_v32"
    return "llama4_pythonic" if "Llama-4" in model else "llama3_json"


def occurrences(text, spellings):
    found = []
    for spelling in spellings:
        at = text.find(spelling)
        while at >= 0:
            found.append((at, spelling))
            at = text.find(spelling, at + 1)
    return sorted(found)


# Where a vocabulary keeps its special tokens: below (negative) or from an id on.
SPECIAL = {"google": -106, "mistralai": -256, "Qwen/Qwen3.": 248000, "Qwen/": 151640, "zai-org": 151320, "deepseek-ai": 128790, "moonshotai": 163580,
           "meta-llama/Llama-3": 128000, "meta-llama/Llama-4": 200000, "openai": 199990}


def is_special(model, token):
    bound = next(bound for prefix, bound in SPECIAL.items() if model.startswith(prefix))
    return token < -bound if bound < 0 else token >= bound


def learn_tokens(all_fixtures):
    """Which id stands for which spelling, of each model: from replies that spell as many markers as they have special tokens, by order."""
    votes = collections.defaultdict(collections.Counter)
    for fixture in all_fixtures:
        places = occurrences(fixture.raw_output, SPELLINGS[parser_of(fixture)])
        special = [token for token in fixture.output_token_ids or () if is_special(fixture.reference_model, token)]
        if len(places) == len(special):
            votes[fixture.reference_model].update((spelling, token) for (_, spelling), token in zip(places, special))
    known = collections.defaultdict(dict)
    for model, counts in votes.items():
        for (spelling, token), _ in counts.most_common():
            if spelling not in known[model] and token not in known[model].values():
                known[model][spelling] = token
    return known


def align(fixture, tokens):
    """[(text, token or None, number of tokens)]: the reply in runs of ordinary text and single marked tokens."""
    text, ids = fixture.raw_output, fixture.output_token_ids
    places = occurrences(text, tokens)
    if not ids:
        kept = [(at, spelling) for at, spelling in places]
        counts = None
    else:
        names = {token: spelling for spelling, token in tokens.items()}
        special = [(i, names[token]) for i, token in enumerate(ids) if token in names]
        # Which of the spelled places are tokens: the choice that makes the ordinary tokens between them about four bytes long.
        best = {(-1, -1): (0.0, [])}
        for k, (index, spelling) in enumerate(special):
            step = {}
            for j, (at, other) in enumerate(places):
                if other != spelling:
                    continue
                for (_, before), (cost, chain) in best.items():
                    if before >= j:
                        continue
                    start = places[before][0] + len(places[before][1]) if before >= 0 else 0
                    n = index - (special[k - 1][0] + 1 if k else 0)
                    size = len(text[start:at].encode()) if at >= start else -1
                    if size < n or (n == 0) != (size == 0):
                        continue
                    total = cost + abs(n - size / 4)
                    if (k, j) not in step or step[k, j][0] > total:
                        step[k, j] = (total, chain + [j])
            assert step, (fixture.id, spelling)
            best = step
        def last(item):
            (_, j), (cost, _) = item
            start = places[j][0] + len(places[j][1]) if j >= 0 else 0
            n = len(ids) - (special[-1][0] + 1 if special else 0)
            size = len(text[start:].encode())
            return cost + (abs(n - size / 4) if size >= n and (n == 0) == (size == 0) else 1e9)
        chain = min(best.items(), key=last)[1][1]
        kept = [places[j] for j in chain]
        edges = [-1] + [i for i, _ in special] + [len(ids)]
        counts = [b - a - 1 for a, b in zip(edges, edges[1:])]
    runs, at = [], 0
    for n, (place, spelling) in enumerate(kept):
        if place > at:
            runs.append((text[at:place], None, counts[n] if counts else max(1, (place - at) // 4)))
        runs.append((spelling, tokens[spelling], 1))
        at = place + len(spelling)
    if at < len(text):
        runs.append((text[at:], None, counts[-1] if counts else max(1, (len(text) - at) // 4)))
    return runs


def units_of(runs):
    units = []
    for text, token, count in runs:
        if token is not None:
            units.append((text, token))
            continue
        count = max(1, min(count, len(text)))
        cuts = [len(text) * i // count for i in range(count + 1)]
        units += [(text[a:b], None) for a, b in zip(cuts, cuts[1:])]
    return units


def pieces_of(units, sizes):
    pieces, at = [], 0
    for size in sizes:
        text, marks = "", []
        for part, token in units[at:at + size]:
            if token is not None:
                marks.append([len(text.encode()), token])
            text += part
        pieces.append({"text": text, "marks": marks} if marks else {"text": text})
        at += size
    return pieces


class Parser:
    """`tandem parse`, a line at a time."""

    def __init__(self, binary):
        self.process = subprocess.Popen([str(binary), "parse"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, line):
        self.process.stdin.write(json.dumps(line) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait(10)


def result_of(told):
    return results.ParseResult(told["content"] or None, told["reasoning"] or None,
                               tuple(results.ParsedToolCall(call["name"], call["arguments"]) for call in told["calls"]))


def line_of(fixture, family, tokens, **options):
    reference = family.reference_for(fixture.reference_model)
    prompt_end = fixture.generation_prompt if fixture.generation_prompt is not None else reference.default_generation_prompt
    return {"tool_parser": parser_of(fixture), "tokens": tokens, "tools": [dict(tool) for tool in fixture.tools], "prompt_end": prompt_end or "",
            "cut": fixture.truncated, **options}


def replay(parse, fixture, family, tokens, **options):
    """One whole parse and one for each of the package's default strategies, as the package's checks take them."""
    units = units_of(align(fixture, tokens))
    line = line_of(fixture, family, tokens, **options)
    run = lambda sizes: result_of(parse({**line, "pieces": pieces_of(units, sizes)}))
    streams = {}
    for strategy in chunking.DEFAULT_STRATEGIES:
        sizes = chunking.group_sizes(len(units), strategy, [token is not None for _, token in units])
        streams[strategy.id] = run(sizes)
    return results.Observation(run([len(units)]) if units else run([]), streams), units, line
