"""What the tests of public bug reports share (test_bugs_*.py; the row numbers are those of the collection of reports).

After every row: all processes live, the server is well, an ordinary request is answered as always, and no memory is kept.
"""

import http.client
import json
import socket
import urllib.parse

import pytest

from servers import Cluster, chat, request

WINDOW = 512


def start_pair(launch, script, **options):
    return Cluster(launch, script, worker_options=("--kv-memory", "64M"), **options)


def unharmed(pair):
    """An autouse fixture's body: the common assertion after every row."""
    before = pair.pages_used()
    yield
    pair.wait_settled(before)
    for path in ("/health", "/ready"):
        assert request(pair.url, "GET", path).status == 200
    reply = chat(pair.url, "Hello", max_tokens=8)
    assert reply.status == 200 and reply.json()["choices"][0]["message"]["content"].startswith("all is")
    assert all(process.alive() for process in [*pair.workers, pair.router])


def expect_error(reply, status=400, code=None, text=None):
    """An error in OpenAI's shape."""
    assert reply.status == status, (reply.status, reply.body[:300])
    error = reply.json()["error"]
    assert error["message"] and error["type"] and "param" in error and error["code"]
    assert code is None or error["code"] == code, error
    assert text is None or text in error["message"], error
    return error


def tokens_of(url, text):
    reply = request(url, "POST", "/tokenize", {"prompt": text, "add_special_tokens": False})
    assert reply.status == 200, reply.body
    return reply.json()["tokens"]


def count_messages(url, messages):
    return request(url, "POST", "/tokenize", {"messages": messages}).json()["count"]


def words(tokens, url):
    """A text of about so many tokens (never fewer)."""
    count = len(tokens_of(url, " word" * 64))
    return " word" * (tokens * 64 // count + 1)


def complete(url, prompt, timeout=60, **fields):
    return request(url, "POST", "/v1/completions", {"model": "default", "prompt": prompt, **fields}, timeout=timeout)


def send_raw(url, data, timeout=10):
    """The reply to bytes that no HTTP library would send."""
    parts = urllib.parse.urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout=timeout) as sock:
        sock.sendall(data)
        reply = http.client.HTTPResponse(sock)
        reply.begin()
        return reply.status, dict(reply.getheaders()), reply.read()


def nested(depth, opening="[", closing="]"):
    return (opening * depth + closing * depth).encode()


def numbers_in(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from numbers_in(part)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield value


def strict_json(body):
    """Parsed as strict JSON: no NaN, no Infinity."""
    return json.loads(body, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
