"""Transport modules: real workers, KV read through UCX, and through the Mooncake module over a stand-in for its library."""

import concurrent.futures
import os
import pathlib
import signal

import pytest

from test_faults import ask, echo_script, expect_fact

MODULES = pathlib.Path(__file__).resolve().parents[2] / "build/release/modules"


def module(name):
    path = pathlib.Path(os.environ.get("TANDEM_MODULES", MODULES)) / f"{name}.so"
    if not path.exists():
        pytest.skip(f"{path.name} is not built: CMake found no UCX (Debian: libucx-dev)")
    return path


def settings(name):
    """Of the module; loopback only."""
    if name == "ucx":
        return "bind_host=127.0.0.1\nucx.TLS=tcp"
    library = os.environ.get("TANDEM_MOONCAKE_LIBRARY") or module("stub_transfer_engine")
    return f"bind_host=127.0.0.1\nlibrary={library}"


def pair(cluster, model, name, **options):
    return cluster(model, worker_options=("--kv-memory", "64M", "--kv-transport", name, "--kv-transport-module",
                                          module(f"tandem_transport_{name}"), "--kv-transport-settings", settings(name)), **options)


def received(process):
    return process.metrics()["tandem_kv_received_bytes_total"]


@pytest.mark.quick
@pytest.mark.parametrize("name", ["ucx", "mooncake"])
def test_every_conversation_gets_its_own_fact(cluster, write_script, tmp_path, name):
    made = pair(cluster, echo_script(write_script, tmp_path), name)
    decode = made.roles["decode"][0]
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        replies = list(pool.map(lambda i: ask(made.url, i, 400), range(24)))
    for i, reply in enumerate(replies):
        expect_fact(i, reply)
    assert received(decode) > 0
    assert decode.metrics()["tandem_handoffs_received_total"] == 24
    assert decode.metrics()["tandem_handoffs_failed_total"] == 0
    made.wait_settled()


@pytest.mark.quick
@pytest.mark.parametrize("name", ["ucx", "mooncake"])
def test_a_prefill_worker_killed_is_replaced(cluster, write_script, tmp_path, name):
    made = pair(cluster, echo_script(write_script, tmp_path, row_ms=1), name, prefill=2)
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        answers = [pool.submit(ask, made.url, i, 120) for i in range(6)]
        made.chosen("prefill").signal(signal.SIGKILL)
        replies = [answer.result(60) for answer in answers]
    for i, reply in enumerate(replies):
        if reply.status == 200:
            expect_fact(i, reply)  # its own, or an error
        else:
            assert reply.status in (502, 503, 504), reply.body
    for i in range(100, 103):
        expect_fact(i, ask(made.url, i))
    made.wait_settled()
