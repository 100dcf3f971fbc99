#!/usr/bin/env python3
"""Renders other families' chat templates on a matrix of conversations, here and with jinja2 as transformers configures it.

  family_templates.py TOOL [DIR] [--verbose]

TOOL is build/release/bench_text. DIR holds *.jinja files; without it they come from the source package of llama-cpp-python, which pip
downloads into build/templates (75 MB; nothing of it enters the repository). Prints how many (template, conversation) pairs agree:
the same bytes, or both refuse. Exits with 1 if any differs, with 0 and a sentence when there is nothing to compare.
"""

import argparse
import copy
import json
import pathlib
import subprocess
import sys
import tarfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import templates
from template_cases import MESSAGES, TOOLS

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = "llama-cpp-python==0.3.16"


def fetch():
    target = ROOT / "build" / "templates"
    if not list(target.glob("*.jinja")):
        target.mkdir(parents=True, exist_ok=True)
        done = subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "--dest", target,
                               PACKAGE], capture_output=True, text=True)
        if done.returncode != 0:
            print(f"family_templates: skipped, {PACKAGE} cannot be downloaded: {done.stderr.strip().splitlines()[-1:]}")
            sys.exit(0)
        (archive,) = target.glob("*.tar.gz")
        with tarfile.open(archive) as files:
            for member in files.getmembers():
                if member.name.endswith(".jinja") and "/models/templates/" in member.name:
                    (target / pathlib.Path(member.name).name).write_bytes(files.extractfile(member).read())
        archive.unlink()
    return target


def call(name, arguments, number=0):
    return {"id": f"functions.{name}:{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def conversations():
    system = {"role": "system", "content": "Be brief.\n  Always."}
    user = {"role": "user", "content": "What is 2 + 2, \"Zoë\"? <b>漢字</b> 😀"}
    answer = {"role": "assistant", "content": "It is 4.\n"}
    again = {"role": "user", "content": "  And tomorrow?  "}
    think = {"role": "assistant", "content": "It is 4.", "reasoning_content": "Two and two,\nplainly.", "thinking": "Two and two.",
             "reasoning": "Two and two."}
    inline = {"role": "assistant", "content": "<think>\nTwo and two.\n</think>\n\nIt is 4."}
    one_call = {"role": "assistant", "content": "", "tool_calls": [call("weather", {"city": "Köln", "days": 3, "deep": {"a": [1, 2.5, None, True]}})]}
    null_call = {"role": "assistant", "content": None, "tool_calls": [call("weather", {"city": "Rome"})]}
    bare_call = {"role": "assistant", "tool_calls": [call("time", {})]}
    text_call = {"role": "assistant", "content": "Let me look.", "tool_calls": [call("weather", "{\"city\": \"Rome\"}")]}
    thought_call = {"role": "assistant", "content": "", "reasoning_content": "I need the weather.", "tool_calls": [call("weather", {"city": "Rome"})]}
    two_calls = {"role": "assistant", "content": "", "tool_calls": [call("weather", {"city": "Rome"}), call("time", {}, 1)]}
    result = {"role": "tool", "tool_call_id": "functions.weather:0", "name": "weather", "content": "{\"t\": 21}"}
    second = {"role": "tool", "tool_call_id": "functions.time:1", "name": "time", "content": "12:00"}
    parts = {"role": "user", "content": [{"type": "text", "text": "And"}, {"type": "text", "text": " then?"}]}
    developer = {"role": "developer", "content": "Be kind."}
    plain = {
        "no system": [user],
        "system": [system, user],
        "developer": [developer, user],
        "multi-turn": [user, answer, again],
        "system multi-turn": [system, user, answer, again, answer, user],
        "parts": [system, parts],
        "ends with the assistant": [user, answer],
        "two users": [user, again],
        "starts with the assistant": [answer, user],
        "empty": [],
        "only system": [system],
        "reasoning": [user, think, again],
        "reasoning last": [system, user, think],
        "inline reasoning": [user, inline, again],
    }
    tools = {
        "tools": [user],
        "tools and system": [system, user],
        "tools multi-turn": [system, user, answer, again],
        "call": [user, one_call],
        "result": [user, one_call, result],
        "result, answer, question": [system, user, one_call, result, answer, again],
        "null content": [user, null_call, result],
        "no content": [user, bare_call, second],
        "arguments as text": [user, text_call, result, answer],
        "thought before the call": [user, thought_call, result],
        "thought before the call, later": [user, thought_call, result, answer, again],
        "two calls": [user, two_calls, result, second],
        "two rounds": [user, one_call, result, bare_call, second, answer],
        "orphan result": [user, result],
    }
    for name, messages in plain.items():
        for prompt in (True, False):
            yield name, {"messages": messages, "tools": None, "add_generation_prompt": prompt}
    for name, messages in tools.items():
        yield name, {"messages": messages, "tools": TOOLS, "add_generation_prompt": True}
        yield name + ", no tools listed", {"messages": messages, "tools": None, "add_generation_prompt": False}
    for flags in ({"enable_thinking": False}, {"enable_thinking": True}, {"thinking": True}, {"thinking": False}, {"reasoning_effort": "high"},
                  {"reasoning_effort": "low"}, {"clear_thinking": False}, {"preserve_thinking": True}, {"keep_past_thinking": True},
                  {"date_string": "1 Jan 2026"}, {"custom_tools": TOOLS}, {"builtin_tools": ["browser", "python"]},
                  {"documents": [{"title": "A", "text": "Text."}]}, {"model_identity": "You are T."}):
        for name in ("system multi-turn", "reasoning"):
            yield f"{name}, {flags}", {"messages": plain[name], "tools": None, "add_generation_prompt": True, **flags}
        yield f"result, {flags}", {"messages": tools["thought before the call, later"], "tools": TOOLS, "add_generation_prompt": True, **flags}
    yield "everything", {"messages": MESSAGES, "tools": TOOLS, "add_generation_prompt": True}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool")
    parser.add_argument("directory", nargs="?", type=pathlib.Path)
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    directory = arguments.directory or fetch()
    environment = templates.environment()
    contexts = [(name, {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>", "documents": None, **context})
                for name, context in conversations()]
    lines = "".join(json.dumps(context) + "\n" for _, context in contexts)
    total, agree, same_bytes = 0, 0, 0
    files = sorted(directory.glob("*.jinja"))
    for path in files:
        source = path.read_text(encoding="utf-8")
        done = subprocess.run([arguments.tool, "render", path, str(int(templates.NOW.timestamp()))], input=lines, capture_output=True,
                              text=True, timeout=300)
        rows = [json.loads(line) for line in done.stdout.split("\n")[:-1]]
        assert len(rows) == len(contexts), done.stderr
        bad = []
        for (name, context), ours in zip(contexts, rows):
            theirs = templates.render(environment, source, copy.deepcopy(context))
            total += 1
            same = ours.get("output") == theirs.get("output")
            agree += same
            same_bytes += same and "output" in ours
            if not same:
                bad.append((name, ours, theirs))
        if bad:
            print(f"{path.name}: {len(bad)} of {len(contexts)} differ")
            for name, ours, theirs in bad if arguments.verbose else bad[:1]:
                print(f"  {name}\n    ours:   {json.dumps(ours, ensure_ascii=False)[-700:]}\n"
                      f"    theirs: {json.dumps(theirs, ensure_ascii=False)[-700:]}")
    print(f"family_templates: {agree} of {total} pairs agree ({len(files)} templates, {len(contexts)} conversations): "
          f"{same_bytes} with the same bytes, {agree - same_bytes} refused by both")
    sys.exit(0 if agree == total else 1)


if __name__ == "__main__":
    main()
