#!/usr/bin/env python3
"""Chat templates rendered by jinja2, as golden files for text_test.

  templates.py small OUT         templates of ours; writes OUT/templates.jsonl (committed: src/text/testdata)
  templates.py model GGUF OUT    the model's own template on 200 conversations; writes OUT/conversations.jsonl,
                                 for TANDEM_TEXT_REFERENCE=OUT text_test
"""

import datetime
import functools
import json
import pathlib
import random
import sys

import jinja2
from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import gguf_metadata
import random_text
from template_cases import CASES

NOW = datetime.datetime(2026, 2, 3, 4, 5, 6)


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_same"), [], [], body).set_lineno(line)

    def _same(self, caller):
        return caller()


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=["jinja2.ext.loopcontrols", Generation])

    def raise_exception(message):
        raise TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


@functools.lru_cache(maxsize=1)
def compiled(env, source):
    return env.from_string(source)


def render(env, source, context):
    try:
        return {"output": compiled(env, source).render(**context)}
    except TemplateError as error:
        return {"error": error.message or ""}
    except Exception as error:  # Python's own errors inside the template
        return {"error": str(error)}


def small(out):
    env = environment()
    with open(out / "templates.jsonl", "w", encoding="utf-8") as file:
        file.write(json.dumps({"made_by": "scripts/reference/templates.py", "jinja2": jinja2.__version__}) + "\n")
        for source, context in CASES:
            row = {"template": source, "context": context, **render(env, source, context)}
            file.write(json.dumps(row, ensure_ascii=True, separators=(",", ":")) + "\n")


def conversations(seed, count):
    rng = random.Random(seed)
    for _ in range(count):
        messages = []
        if rng.randrange(2):
            messages.append({"role": "system", "content": random_text.random_string(rng, 10)})
        for _ in range(rng.randrange(1, 6)):
            messages.append({"role": "user", "content": random_text.random_string(rng, 16)})
            messages.append({"role": "assistant", "content": random_text.random_string(rng, 16)})
        if rng.randrange(4):
            messages.pop()
        yield messages, bool(rng.randrange(4))


def model(path, out, count=200):
    out.mkdir(parents=True, exist_ok=True)
    metadata = gguf_metadata.read_metadata(path)
    source = metadata["tokenizer.chat_template"]
    tokens = metadata["tokenizer.ggml.tokens"]
    template = environment().from_string(source)
    with open(out / "conversations.jsonl", "w", encoding="utf-8") as file:
        file.write(json.dumps({"template": source, "jinja2": jinja2.__version__}) + "\n")
        for messages, prompt in conversations(6, count):
            text = template.render(messages=messages, tools=None, documents=None, add_generation_prompt=prompt,
                                   bos_token=tokens[metadata["tokenizer.ggml.bos_token_id"]],
                                   eos_token=tokens[metadata["tokenizer.ggml.eos_token_id"]])
            file.write(json.dumps({"messages": messages, "add_generation_prompt": prompt, "output": text}) + "\n")


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "small":
        small(pathlib.Path(sys.argv[2]))
    elif len(sys.argv) == 4 and sys.argv[1] == "model":
        model(sys.argv[2], pathlib.Path(sys.argv[3]))
    else:
        sys.exit(__doc__)
