"""A schema that takes long to compile slows nobody else's stream: it is compiled beside the step loop and the event loop."""

import threading
import time

import pytest

from servers import Stream, request, wait_until

pytestmark = pytest.mark.quick
STEP_MS = 10
CHAT = "/v1/chat/completions"


def slow_schema():
    """Tens of thousands of values: about a megabyte, the most that a schema may have."""
    return {"enum": [f"value {number * 7919:024}" for number in range(30_000)]}


def asked(text, **fields):
    return {"model": "default", "messages": [{"role": "user", "content": text}], "temperature": 0, **fields}


def test_streams_keep_their_pace_while_a_schema_is_compiled(launch, write_script, tmp_path):
    script = write_script(tmp_path, [{"when": "long", "reply": "word " * 4000}, {"reply": "?"}], step_ms=STEP_MS, noise=0)
    server = launch("up", "up", script, "--port", "0").wait_ready()
    stream = Stream(server.url, asked("a long one", max_tokens=3000))
    assert stream.open() == 200
    arrivals = []
    stop = threading.Event()

    def read():
        for _ in stream:
            arrivals.append(time.monotonic())
            if stop.is_set():
                break

    reader = threading.Thread(target=read)
    reader.start()
    try:
        wait_until(lambda: len(arrivals) > 20, 30, "the stream begins")
        began = time.monotonic()
        reply = request(server.url, "POST", CHAT, asked("x", max_tokens=40, response_format={
            "type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": slow_schema()}}))
        took = time.monotonic() - began
        assert reply.status == 200, reply.body[:300]
        assert reply.json()["choices"][0]["message"]["content"].startswith('"value 0')
    finally:
        stop.set()
        reader.join()
        stream.close()
    inside = [at for at in arrivals if began <= at <= began + took]
    assert took > 0.2, f"compiled in {took:.3f} s: not slow enough to show anything"
    # A tenth of the pace would do on a machine that has other work; a loop that compiles stands still.
    longest = max(b - a for a, b in zip([began, *inside], [*inside, began + took]))
    assert longest < max(0.5 * took, 0.25), f"silent for {longest:.2f} of {took:.2f} s"
