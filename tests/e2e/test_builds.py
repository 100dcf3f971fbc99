"""Two workers that do not fit - another handoff version, model, block size, page layout - refuse each other in words, whoever dials."""

import contextlib
import json
import os
import socket
import struct
import threading

import pytest

from bugs import expect_error
from servers import SECRET, chat, request, wait_until

pytestmark = pytest.mark.quick
SAID = "all is {echo:0} and well"
MESSAGES = [{"role": "user", "content": "remember fact-00001x please " * 8}]
HELLO = 1
HEADER = struct.Struct("<4sHHIQ")  # magic, version, type, bytes, digest


def start(launch, model, role, directory, *options):
    return launch(role, "worker", model, "--role", role, "--port", "0", "--kv-memory", "16M", "--handoff-listen", f"unix:{directory}/{role}.sock",
                  *options, env={"TANDEM_SECRET": SECRET})


def legs(prefill, decode, socket_path):
    """Both legs of one request, as a router that does not mind the difference would send them. Returns decode's answer."""
    ids = request(decode.url, "POST", "/tokenize", {"messages": MESSAGES}, headers={"x-tandem-auth": SECRET})
    assert ids.status == 200, ids.body
    ticket = {"id": "ab" * 16, "attempt": 1, "prefill_address": f"unix:{socket_path}"}

    def send(worker, leg, timeout):
        body = {"model": "default", "messages": MESSAGES, "max_tokens": 30, "temperature": 0,
                "tandem": {"leg": leg, "handoff": ticket, "prompt_token_ids": [ids.json()["tokens"]]}}
        return request(worker.url, "POST", "/v1/chat/completions", body, headers={"x-tandem-auth": SECRET}, timeout=timeout)

    def prefill_leg():
        with contextlib.suppress(OSError):
            send(prefill, "prefill", 1)

    other = threading.Thread(target=prefill_leg)
    if prefill is not None:
        other.start()
    reply = send(decode, "decode", 20)
    if prefill is not None:
        other.join()
    return reply


# What differs: (options of the other worker, its script's fields, what the refusal says).
DIFFERENCES = {"block size": (("--block-tokens", "32"), {}, "blocks of 32"),
               "page groups": ((), {"windows": [64]}, "page groups"),
               "model": (("--kv-lineage", "another"), {}, "different models")}


@pytest.mark.parametrize("other", ["prefill", "decode"])
@pytest.mark.parametrize("what", DIFFERENCES)
def test_workers_that_differ_refuse_each_other_in_words(launch, write_script, tmp_path, what, other):
    options, fields, words = DIFFERENCES[what]
    script = write_script(tmp_path, [{"reply": SAID}])
    # The script's path is a part of what names its model, so both have one path, one after the other.
    (text,) = tmp_path.glob("script-*")
    plain, workers = text.read_text(), {}
    for role in ("prefill", "decode"):
        text.write_text(json.dumps({**json.loads(plain), **(fields if role == other else {})}))
        workers[role] = start(launch, script, role, tmp_path, *(options if role == other else ())).wait_ready()
    prefill, decode = workers["prefill"], workers["decode"]
    error = expect_error(legs(prefill, decode, tmp_path / "prefill.sock"), 502)
    assert "cannot exchange KV" in error["message"] and words in error["message"], error
    wait_until(lambda: decode.pages_used() == 0, 5, "no page is kept")
    router = launch("router", "router", "--prefill", prefill.url, "--decode", decode.url, "--port", "0", env={"TANDEM_SECRET": SECRET}).wait_listening()
    if what == "page groups":  # the router does not know of them: the workers' refusal is the client's answer
        router.wait_ready()
        error = expect_error(chat(router.url, MESSAGES, max_tokens=8), 502)
        assert words in error["message"], error
    else:  # it takes the first and says of the other why not
        wait_until(lambda: "error" in router.log(), 10, lambda: f"the router's log: {router.log()}")
        complaint = router.log().split("error", 1)[1].split("\n")[0]
        assert ("--block-tokens" if what == "block size" else "model") in complaint, complaint


def test_workers_that_agree_hand_over(launch, write_script, tmp_path):
    script = write_script(tmp_path, [{"reply": SAID}])
    prefill, decode = (start(launch, script, role, tmp_path).wait_ready() for role in ("prefill", "decode"))
    reply = legs(prefill, decode, tmp_path / "prefill.sock")
    assert reply.status == 200 and "fact-00001x" in reply.json()["choices"][0]["message"]["content"], reply.body


def read_all(sock):
    data = b""
    with contextlib.suppress(OSError):
        while piece := sock.recv(65536):
            data += piece
    return data


@pytest.mark.parametrize("version", [1, 2, 4, 9999])
def test_a_prefill_worker_of_another_version_is_refused_in_words(launch, write_script, tmp_path, version):
    decode = start(launch, write_script(tmp_path, [{"reply": SAID}]), "decode", tmp_path).wait_ready()
    path = str(tmp_path / "older.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        heard = []

        def peer():
            with listener.accept()[0] as sock:
                heard.append(sock.recv(HEADER.size))
                sock.sendall(HEADER.pack(b"TDHF", version, HELLO, 0, 0))
                heard.append(read_all(sock))

        thread = threading.Thread(target=peer)
        thread.start()
        error = expect_error(legs(None, decode, path), 502)
        thread.join(10)
    magic, ours, kind, _, _ = HEADER.unpack(heard[0])
    assert magic == b"TDHF" and kind == HELLO and ours != version
    assert f"version {version}" in error["message"] and f"speaks {ours}" in error["message"], error
    assert decode.pages_used() == 0 and decode.alive()


@pytest.mark.parametrize("version", [1, 4])
def test_a_decode_worker_of_another_version_is_told_so_and_harms_nothing(launch, write_script, tmp_path, version):
    script = write_script(tmp_path, [{"reply": SAID}])
    prefill, decode = (start(launch, script, role, tmp_path).wait_ready() for role in ("prefill", "decode"))
    path = tmp_path / "prefill.sock"
    files = len(os.listdir(f"/proc/{prefill.pid}/fd"))
    for _ in range(5):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(5)
            sock.connect(str(path))
            sock.sendall(HEADER.pack(b"TDHF", version, HELLO, 0, 0))
            read_all(sock)  # it ends the connection
    wait_until(lambda: len(os.listdir(f"/proc/{prefill.pid}/fd")) <= files, 5, "no connection is kept")
    assert f"version {version}" in prefill.log(), prefill.log()
    reply = legs(prefill, decode, path)
    assert reply.status == 200 and "fact-00001x" in reply.json()["choices"][0]["message"]["content"], reply.body
