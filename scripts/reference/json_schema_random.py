#!/usr/bin/env python3
"""Random schemas written by a model of random weights: every finished text must satisfy its schema (as `jsonschema` sees it)
and none may run on white space.

    json_schema_random.py MODEL [--program build/release/bench_grammar] [--schemas 1000]"""
import argparse
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench"))
import grammar  # noqa: E402


def main():
    import jsonschema
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--program", default="build/release/bench_grammar")
    parser.add_argument("--schemas", type=int, default=1000)
    args = parser.parse_args()
    schemas = [grammar.Maker(10_000 + seed).object(2)[0] for seed in range(args.schemas)]
    lines = "\n".join(json.dumps({"kind": "json_schema", "text": json.dumps(schema)}) for schema in schemas)
    ran = subprocess.run([args.program, "random", args.model, "6000"], input=lines + "\n", capture_output=True, text=True, check=True)
    finished = wrong = 0
    answers = [json.loads(line) for line in ran.stdout.split("\n") if line]
    for schema, answer in zip(schemas, answers):
        if "error" in answer:
            print("ERROR", answer["error"], json.dumps(schema)[:300])
            wrong += 1
            continue
        if "\n" in answer["text"] or "\t" in answer["text"]:
            print("WHITE SPACE", answer["text"][:200])
            wrong += 1
        if not answer["finished"]:
            continue
        finished += 1
        try:
            value = json.loads(answer["text"])
            jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker()).validate(value)
        except (ValueError, jsonschema.ValidationError) as error:
            print("WRONG", str(error)[:200], answer["text"][:200], json.dumps(schema)[:300])
            wrong += 1
    print(f"{len(answers)} schemas, {finished} finished within 6000 tokens, {wrong} wrong")
    return 1 if wrong or len(answers) != len(schemas) or finished * 2 < len(schemas) else 0


if __name__ == "__main__":
    sys.exit(main())
