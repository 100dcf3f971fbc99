#!/usr/bin/env python3
"""What masks cost beside llguidance and xgrammar, on the same schemas, answers and vocabulary, one thread, in one run.

    bench/grammar.py MODEL... [--schemas 300] [--program build/release/bench_grammar]

Needs the wheels llguidance and xgrammar (xgrammar brings torch); without one of them it is left out. Prints for each
vocabulary and library: the first mask (with compiling) and the masks along the answers, with the token before each, in
microseconds. The other libraries are called from Python, which costs them about a microsecond a call."""
import argparse
import json
import random
import statistics
import subprocess
import sys
import time

WORDS = ("time person year way day thing man world life hand part child eye woman place work week case point government "
         "company number group problem fact Größe naïve 東京 \"quoted\" back\\slash new\nline").split(" ")


class Maker:
    """A random schema together with an instance of it."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def text(self, most=8):
        return " ".join(self.random.choice(WORDS) for _ in range(self.random.randint(1, most)))

    def string(self):
        kind = self.random.randrange(7)
        if kind == 0:
            return {"type": "string", "minLength": 2, "maxLength": 200}, self.text()
        if kind == 1:
            return {"type": "string", "pattern": "^[a-z]{2,8}-[0-9]{3,5}$"}, "abc-1234"
        if kind == 2:
            return {"type": "string", "format": "date-time"}, "2024-05-06T07:08:09Z"
        if kind == 3:
            values = self.random.sample(["red", "green", "blue", "celsius", "fahrenheit", "north-west", "very long value"], 4)
            return {"type": "string", "enum": values}, self.random.choice(values)
        return {"type": "string", "description": self.text()}, self.text(20)

    def number(self):
        kind = self.random.randrange(4)
        if kind == 0:
            return {"type": "integer", "minimum": 0, "maximum": 1000}, self.random.randint(0, 1000)
        if kind == 1:
            return {"type": "number", "minimum": -10.5, "maximum": 99.25}, round(self.random.uniform(-10, 99), 3)
        if kind == 2:
            return {"type": "number"}, round(self.random.uniform(-1e4, 1e4), 2)
        return {"type": "integer"}, self.random.randint(-10**6, 10**6)

    def array(self, depth):
        schema, _ = state = self.value(depth - 1)
        items = [state[1] for _ in range(self.random.randint(1, 4))]
        out = {"type": "array", "items": schema}
        if self.random.random() < 0.4:
            out |= {"minItems": 1, "maxItems": 8}
        return out, items

    def object(self, depth):
        properties, value, required = {}, {}, []
        for _ in range(self.random.randint(1, 6)):
            name = self.random.choice(["id", "name", "city", "unit", "items", "options", "createdAt", "user_id", "max_results"]) + \
                self.random.choice(["", "", "_2", "_x"])
            if name in properties:
                continue
            properties[name], own = self.value(depth - 1)
            if self.random.random() < 0.7:
                required.append(name)
            elif self.random.random() < 0.5:
                continue
            value[name] = own
        out = {"type": "object", "properties": properties, "required": required}
        if self.random.random() < 0.6:
            out["additionalProperties"] = False
        return out, value

    def value(self, depth):
        kind = self.random.random()
        if depth > 0 and kind < 0.3:
            return self.object(depth)
        if depth > 0 and kind < 0.45:
            return self.array(depth)
        if kind < 0.75:
            return self.string()
        if kind < 0.9:
            return self.number()
        if kind < 0.95:
            schema, value = self.string()
            return {"anyOf": [schema, {"type": "null"}]}, value
        return {"type": "boolean"}, True


def longest_match(tokens):
    """Greedy cutting of bytes into tokens."""
    index = {}
    for token, text in enumerate(tokens):
        if text:  # of equal ones the last: the first may be a spelling of a single byte
            index[text] = token
    longest = min(max(map(len, index)), 32)

    def cut(text):
        out, at = [], 0
        while at < len(text):
            for size in range(min(longest, len(text) - at), 0, -1):
                token = index.get(text[at:at + size])
                if token is not None:
                    out.append(token)
                    at += size
                    break
            else:
                return None
        return out

    return cut


def ours(program, model, cases):
    lines = "\n".join(json.dumps({"kind": "json_schema", "text": json.dumps(schema), "ids": ids}) for schema, ids in cases)
    ran = subprocess.run([program, "masks", model], input=lines + "\n", capture_output=True, text=True, check=True)
    results = []  # by case: the first mask and the others; None: not followed
    for line, (_, ids) in zip(ran.stdout.split("\n"), cases):
        answer = json.loads(line)
        if "error" in answer or len(answer["masks"]) < len(ids) - 1:
            results.append(None)
            continue
        results.append((answer["first"], answer["masks"]))
    return results


def with_llguidance(tokens, end, cases):
    import llguidance
    import llguidance.numpy as bits

    class Wrapped:
        eos_token_id, bos_token_id, special_token_ids = end, None, [end]
        tokens = None

        def __call__(self, text):
            return [0]

    Wrapped.tokens = [text or b"\xff[%d]" % i for i, text in enumerate(tokens)]  # how it marks what is no text
    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Wrapped()))
    mask = bits.allocate_token_bitmask(1, tokenizer.vocab_size)
    results = []  # by case: the first mask and the others; None: not followed
    for schema, ids in cases:
        asked = dict(schema)
        asked["x-guidance"] = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
        start = time.perf_counter()
        matcher = llguidance.LLMatcher(tokenizer, llguidance.LLMatcher.grammar_from_json_schema(json.dumps(asked)))
        bits.fill_next_token_bitmask(matcher, mask)
        first, times = (time.perf_counter() - start) * 1e6, []
        for token in ids[:-1]:
            start = time.perf_counter()
            good = matcher.consume_token(token)
            bits.fill_next_token_bitmask(matcher, mask)
            times.append((time.perf_counter() - start) * 1e6)
            if not good:
                break
        if matcher.is_error() or not good:
            results.append(None)
            continue
        results.append((first, times))
    return results


def with_xgrammar(tokens, end, cases):
    import xgrammar
    info = xgrammar.TokenizerInfo([text or f"<unused {i}>".encode() for i, text in enumerate(tokens)],
                                  vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[end])
    compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=True)
    mask = xgrammar.allocate_token_bitmask(1, info.vocab_size)
    results = []  # by case: the first mask and the others; None: not followed
    for schema, ids in cases:
        start = time.perf_counter()
        try:
            matcher = xgrammar.GrammarMatcher(compiler.compile_json_schema(json.dumps(schema), any_whitespace=False,
                                                                           strict_mode=False))
        except RuntimeError:
            results.append(None)
            continue
        matcher.fill_next_token_bitmask(mask)
        first, times, good = (time.perf_counter() - start) * 1e6, [], True
        for token in ids[:-1]:
            start = time.perf_counter()
            good = matcher.accept_token(token)
            if not good:
                break
            matcher.fill_next_token_bitmask(mask)
            times.append((time.perf_counter() - start) * 1e6)
        if not good:
            results.append(None)
            continue
        results.append((first, times))
    return results


def show(name, results):
    followed = [result for result in results if result]
    firsts, masks = [first for first, _ in followed], [one for _, times in followed for one in times]
    if not masks:
        print(f"  {name:11} nothing measured")
        return
    def at(values, share):
        return sorted(values)[min(int(len(values) * share), len(values) - 1)]
    print(f"  {name:11} first mask p50 {at(firsts, .5):9.0f} p90 {at(firsts, .9):9.0f} us | masks {len(masks)}: mean "
          f"{statistics.mean(masks):7.1f} p50 {at(masks, .5):6.1f} p90 {at(masks, .9):7.1f} p99 {at(masks, .99):8.1f} "
          f"p99.9 {at(masks, .999):8.1f} us | {len(results) - len(followed)} of {len(results)} schemas not followed")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="+")
    parser.add_argument("--schemas", type=int, default=300)
    parser.add_argument("--program", default="build/release/bench_grammar")
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    made = [Maker(seed).object(3) for seed in range(args.schemas)]
    for model in args.models:
        known = json.loads(subprocess.run([args.program, "vocabulary", model], capture_output=True, text=True, check=True).stdout)
        tokens = [bytes.fromhex(text) for text in known["tokens"]]
        end = known["end_of_generation"][0]
        cut = longest_match(tokens)
        cases = []
        for schema, value in made:
            ids = cut(json.dumps(value, ensure_ascii=False).encode())
            if ids:
                cases.append((schema, ids))
        print(f"{model}: {len(tokens)} tokens, {len(cases)} schemas, {sum(len(ids) for _, ids in cases)} tokens of answers")
        libraries = {"tandem": lambda: ours(args.program, model, cases),
                     "llguidance": lambda: with_llguidance(tokens, end, cases),
                     "xgrammar": lambda: with_xgrammar(tokens, end, cases)}
        measured = {}
        for name, measure in libraries.items():
            if args.only and name not in args.only:
                continue
            try:
                measured[name] = measure()
                show(name, measured[name])
            except ImportError as missing:
                print(f"  {name}: left out: {missing}")
        both = [all(results) for results in zip(*measured.values())]
        if len(measured) > 1 and not all(both):
            print(f"  the {sum(both)} schemas that all of them follow:")
            for name, results in measured.items():
                show(name, [result for result, good in zip(results, both) if good])
    return 0


if __name__ == "__main__":
    sys.exit(main())
