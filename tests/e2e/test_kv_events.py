"""KV events: what workers and mocks publish, read by a peer that we did not write."""

import time

import pytest

from kv_events import BLOCK, Listener, complete, engines, fresh_tokens
from servers import free_port, request

pytestmark = pytest.mark.quick


def test_an_independent_subscriber_follows_a_worker(launch, model):
    port = free_port()
    worker = launch("worker", "worker", model, "--port", "0", "--kv-events", f"tcp://127.0.0.1:{port}",
                    "--kv-events-replay", "tcp://127.0.0.1:0")
    worker.wait_ready()
    told = request(worker.url, "GET", "/tandem/v1/info").json()["kv_events"]
    assert told["endpoint"] == f"tcp://127.0.0.1:{port}"
    listener = Listener(told["endpoint"])
    try:
        time.sleep(0.3)
        tokens = list(range(1000, 1000 + 5 * BLOCK))
        complete(worker.url, tokens, "default")
        stored = []
        while len(stored) < 5:
            for event in listener.events("BlockStored"):
                assert event["block_size"] == BLOCK and event["medium"] == "GPU"
                for i, name in enumerate(event["block_hashes"]):
                    parent = event["parent_block_hash"] if i == 0 else event["block_hashes"][i - 1]
                    stored.append((name, parent, event["token_ids"][i * BLOCK:(i + 1) * BLOCK]))
        assert [tokens_of for _, _, tokens_of in stored[:5]] == [tokens[i:i + BLOCK] for i in range(0, 5 * BLOCK, BLOCK)]
        assert all(len(name) == 32 for name, _, _ in stored)
        assert [parent for _, parent, _ in stored] == [None] + [name for name, _, _ in stored[:-1]]
        # From the beginning, for one that comes late; the first message says that nothing is here.
        past = listener.replay(told["replay_endpoint"], 0)
        assert [number for number, _ in past] == list(range(len(past)))
        assert past[0][1][1] == [{"type": "AllBlocksCleared"}]
        assert listener.replay(told["replay_endpoint"], len(past)) == []
        request(worker.url, "POST", "/tandem/v1/kv/drop", {})
        removed = [name for event in listener.events("BlockRemoved") for name in event["block_hashes"]]
        assert set(removed) <= {name for name, _, _ in stored}
    finally:
        listener.close()


@pytest.mark.parametrize("dialect,arrays", [("vllm-nixl", False), ("vllm-nixl", True), ("sglang", False), ("sglang", True)])
def test_an_independent_subscriber_follows_the_mocks(binary, tmp_path, dialect, arrays):
    form = ["--kv-event-arrays"] if arrays else []
    with engines(binary, tmp_path, "--dialect", dialect, "--unified", 1, "--kv-events", "tcp://127.0.0.1:0", *form) as (engine,):
        listener = Listener(engine.events.split(",")[0])
        try:
            time.sleep(0.3)
            tokens = fresh_tokens(3)
            complete(engine.url, tokens)
            seen = []
            while len(seen) < 3 * BLOCK:
                for event in listener.events("BlockStored"):
                    fields = event if isinstance(event, dict) else dict(zip(
                        ("type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"), event))
                    assert isinstance(event, list if arrays else dict)
                    assert all(isinstance(name, int) for name in fields["block_hashes"])
                    seen += fields["token_ids"]
            assert seen == tokens
        finally:
            listener.close()
