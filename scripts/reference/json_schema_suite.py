#!/usr/bin/env python3
"""Runs the JSON-Schema-Test-Suite against src/grammar: every schema is refused with a pointer, or takes every valid
instance (written in the one spelling that grammars have, its properties in some order) and no invalid one.

    json_schema_suite.py --program build/release/bench_grammar [--suite DIR] [--fetch DIR] [--table FILE]

The suite comes with the source archive of `jsonschema` on PyPI; --fetch brings it. Nothing of it is kept in git. Without either
the script says so and ends well."""
import argparse
import collections
import glob
import itertools
import json
import os
import subprocess
import sys
import tarfile

# Instances that are valid only because `format` may be a mere annotation: grammars enforce it.
ANNOTATION_ONLY = "annotation"
DRAFTS = {"draft2020-12": "https://json-schema.org/draft/2020-12/schema", "draft7": "http://json-schema.org/draft-07/schema#"}
# Optional parts whose subject is something that grammars do, too.
OPTIONAL = ["optional/ecmascript-regex.json", "optional/non-bmp-regex.json"]
FORMATS = ["date", "date-time", "time", "duration", "email", "hostname", "ipv4", "ipv6", "json-pointer",
           "relative-json-pointer", "uri", "uri-reference", "uuid"]
MOST_ORDERS = 720
# What may be refused; `oneOf` where branches overlap, `$ref` to other documents or to nothing but itself, `$schema` of unknown dialects.
MAY_REFUSE = {"not", "if", "dependencies", "dependentRequired", "dependentSchemas", "contains", "uniqueItems", "$dynamicRef", "$recursiveRef", "$ref", "$schema",
              "oneOf", "pattern"}


def canonical(value):
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e24:
        return int(value)
    if isinstance(value, list):
        return [canonical(item) for item in value]
    if isinstance(value, dict):
        return {key: canonical(item) for key, item in value.items()}
    return value


def orders(value):
    """The value with its objects' members in every order, as they are first."""
    if isinstance(value, list):
        for items in itertools.product(*(list(itertools.islice(orders(item), MOST_ORDERS)) for item in value)):
            yield list(items)
    elif isinstance(value, dict):
        inner = {key: list(itertools.islice(orders(item), 24)) for key, item in value.items()}
        for keys in itertools.permutations(value):
            for items in itertools.product(*(inner[key] for key in keys)):
                yield dict(zip(keys, items))
    else:
        yield value


def spellings(value):
    out = []
    for ordered in itertools.islice(orders(canonical(value)), MOST_ORDERS):
        try:
            text = json.dumps(ordered, ensure_ascii=False, separators=(", ", ": "))
            text.encode()
        except UnicodeEncodeError:  # half of a surrogate pair
            return None
        out.append(text)
    return out


def fetch(folder):
    os.makedirs(folder, exist_ok=True)
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:",
                    "jsonschema==4.26.0", "-d", folder], check=False)
    for archive in glob.glob(os.path.join(folder, "jsonschema-*.tar.gz")):
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")


def find_suite(folder):
    found = glob.glob(os.path.join(folder, "**", "json", "tests"), recursive=True)
    return found[0] if found else None


def cases(suite):
    for draft, dialect in DRAFTS.items():
        files = sorted(glob.glob(os.path.join(suite, draft, "*.json")))
        files += [os.path.join(suite, draft, name) for name in OPTIONAL]
        files += [os.path.join(suite, draft, "optional", "format", name + ".json") for name in FORMATS]
        for path in files:
            if not os.path.exists(path):
                continue
            for group in json.load(open(path, encoding="utf-8")):
                schema = group["schema"]
                if isinstance(schema, dict) and "$schema" not in schema:
                    schema = {"$schema": dialect, **schema}
                yield draft, os.path.relpath(path, os.path.join(suite, draft)), schema, group


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", default="build/release/bench_grammar")
    parser.add_argument("--suite")
    parser.add_argument("--fetch")
    parser.add_argument("--table", help="writes the refused keywords as a table")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    if args.fetch:
        fetch(args.fetch)
    suite = args.suite or (args.fetch and find_suite(args.fetch))
    if not suite or not os.path.isdir(suite):
        print("json_schema_suite: " + ("the suite could not be fetched" if args.fetch else "skipped: the suite was not fetched (--fetch DIR)"))
        return 1 if args.fetch else 0
    lines, asked = [], []
    for draft, file, schema, group in cases(suite):
        tests, texts = [], []
        for test in group["tests"]:
            spelled = spellings(test["data"])
            if spelled is None:
                continue
            tests.append((test, len(texts), len(texts) + len(spelled)))
            texts += spelled
        lines.append(json.dumps({"kind": "json_schema", "text": json.dumps(schema), "strict": True, "texts": texts}))
        asked.append((draft, file, schema, group, tests))
    ran = subprocess.run([args.program, "check", "bytes"], input="\n".join(lines) + "\n", capture_output=True, text=True,
                         timeout=600)
    answers = [json.loads(line) for line in ran.stdout.split("\n") if line]
    if len(answers) != len(lines):
        print(ran.stderr)
        print(f"json_schema_suite: the program answered {len(answers)} of {len(lines)} lines")
        return 1
    count = collections.Counter()
    refused = collections.defaultdict(collections.Counter)
    wrong = []
    for (draft, file, schema, group, tests), answer in zip(asked, answers):
        if "error" in answer:
            if "Nothing satisfies" in answer["error"]:  # a grammar needs at least one text
                bad = [test["description"] for test, _, _ in tests if test["valid"]]
                count["schemas that nothing satisfies"] += 1
                wrong += [(draft, file, group["description"], name, "refused as empty") for name in bad]
                continue
            keyword = answer["pointer"].rsplit("/", 1)[-1]
            refused[draft][keyword] += 1
            count["schemas refused"] += 1
            if keyword not in MAY_REFUSE:
                wrong.append((draft, file, group["description"], "", "may not be refused: " + answer["pointer"]))
            if not answer["pointer"]:
                wrong.append((draft, file, group["description"], "", "refused without a pointer: " + answer["error"]))
            continue
        count["schemas compiled"] += 1
        for test, first, last in tests:
            accepted = any(answer["accepts"][first:last])
            if accepted == test["valid"]:
                count["instances right"] += 1
            elif not accepted and file == "format.json" and ANNOTATION_ONLY in test["description"]:
                count["instances that only annotations allow"] += 1
            else:
                kind = "false accept" if accepted else "false reject"
                count[kind] += 1
                wrong.append((draft, file, group["description"], test["description"], kind))
    for name, number in sorted(count.items()):
        print(f"{number:6} {name}")
    for draft, keywords in refused.items():
        print(draft, "refused:", ", ".join(f"{name} {number}" for name, number in keywords.most_common()))
    for line in wrong if args.verbose else wrong[:40]:
        print("WRONG", *line, sep=" | ")
    if args.table:
        with open(args.table, "w", encoding="utf-8") as out:
            out.write("| keyword | draft 2020-12 | draft 7 |\n| --- | --- | --- |\n")
            for keyword in sorted(set().union(*refused.values())):
                out.write(f"| `{keyword}` | {refused['draft2020-12'][keyword]} | {refused['draft7'][keyword]} |\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
