"""A pair whose workers share nothing but TCP, as on two hosts: plain, with TLS, and with workers that do not fit."""

import os
import signal
import subprocess

import pytest

from servers import chat, wait_until

MEMORY = ("--kv-memory", "64M")
QUESTIONS = [f"The password of room {i} is {word}. What is the password of room {i}? Answer with the word only."
             for i, word in enumerate(["maple", "granite", "lantern"])]


def ask(url, question):
    reply = chat(url, question, temperature=0, max_tokens=12)
    assert reply.status == 200, reply.body
    return reply.json()["choices"][0]["message"]["content"]


def pair(cluster, model, prefill, decode=()):
    return cluster(model, worker_options=MEMORY, router_options=("--local-prefill-tokens", "0"),
                   role_options={"prefill": prefill, "decode": decode})


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    files = folder / "worker.pem", folder / "worker.key"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1",
                    "-subj", "/CN=worker", "-addext", "subjectAltName=IP:127.0.0.1", "-out", files[0], "-keyout", files[1]],
                   check=True, capture_output=True)
    return "--handoff-tls-cert", str(files[0]), "--handoff-tls-key", str(files[1]), "--handoff-tls-ca", str(files[0])


@pytest.mark.quick
def test_a_pair_over_tcp_and_tls_answers_as_over_shared_memory(cluster, model, certificate):
    shared = pair(cluster, model, ())
    answers = [ask(shared.url, question) for question in QUESTIONS]
    for options, both in (("tcp:127.0.0.1:0", ()), ("tls:127.0.0.1:0", certificate)):
        made = pair(cluster, model, ("--handoff-listen", options, *both), both)
        assert [ask(made.url, question) for question in QUESTIONS] == answers
        metrics = made.roles["prefill"][0].metrics()
        assert metrics["tandem_handoffs_sent_total"] == len(QUESTIONS)
        assert metrics["tandem_kv_sent_bytes_total"] > 0
        made.wait_settled()


@pytest.mark.quick
def test_a_prefill_worker_that_dies_over_tcp_is_noticed_at_once(cluster, model):
    made = pair(cluster, model, ("--handoff-listen", "tcp:127.0.0.1:0"))
    assert ask(made.url, QUESTIONS[0])
    prefill, decode = made.roles["prefill"][0], made.roles["decode"][0]
    os.kill(prefill.pid, signal.SIGKILL)
    reply = chat(made.url, QUESTIONS[1], temperature=0, max_tokens=4)
    assert reply.status in (200, 502, 503), reply.body
    wait_until(lambda: decode.pages_used() == 0, 10, "decode's pages to come back")


@pytest.mark.quick
def test_workers_without_a_common_transport_say_so(cluster, model):
    made = pair(cluster, model, ("--kv-transport", "tcp"), ("--kv-transport", "shm"))
    reply = chat(made.url, QUESTIONS[0], temperature=0, max_tokens=4)
    assert reply.status in (502, 503), reply.body
    assert "no transport for KV in common" in made.roles["prefill"][0].log_path.read_text()
