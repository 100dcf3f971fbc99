"""KV of one representation feeding a worker of another: BF16 to FP8 converts, FP8 to FP8 moves as it is, FP8 to BF16 is a choice."""

import subprocess

import pytest

from servers import SECRET, chat, request

QUESTIONS = [f"The password of room {i} is {word}. What is the password of room {i}? Answer with the word only."
             for i, word in enumerate(["maple", "granite", "lantern", "orbit", "velvet", "harbor"])]
MEMORY = ("--kv-memory", "64M")


def info(worker):
    return request(worker.url, "GET", "/tandem/v1/info", headers={"x-tandem-auth": SECRET}).json()


def ask(url, question, tokens=8):
    reply = chat(url, question, temperature=0, max_tokens=tokens, logprobs=True)
    assert reply.status == 200, reply.body
    choice = reply.json()["choices"][0]
    return choice["message"]["content"], choice["logprobs"]["content"]


def pair(cluster, model, prefill, decode, *accept):
    # Long prompts always take the prefill worker: nothing is computed by decode alone.
    return cluster(model, worker_options=MEMORY, router_options=("--local-prefill-tokens", "0"),
                   role_options={"prefill": ("--kv-dtype", prefill),
                                 "decode": ("--kv-dtype", decode, *(("--kv-accept", *accept) if accept else ()))})


@pytest.fixture(scope="module")
def plain(module_launch, model):
    """What one BF16 worker answers."""
    server = module_launch("plain", "up", model, "--unified", "1", "--port", "0").wait_ready()
    answers = [ask(server.url, question) for question in QUESTIONS]
    server.end()
    return answers


def close(answers, plain):
    """The first token is prefill's own; the second, decode's first, is about as likely as with BF16 pages."""
    for (_, mine), (_, theirs) in zip(answers, plain):
        assert mine[0]["token"] == theirs[0]["token"] and mine[0]["logprob"] == theirs[0]["logprob"]
        if mine[1]["token"] == theirs[1]["token"]:
            assert abs(mine[1]["logprob"] - theirs[1]["logprob"]) < 0.7, (mine[1], theirs[1])
    same = sum(mine[0] == theirs[0] for mine, theirs in zip(answers, plain))
    assert same >= len(plain) // 2, ([text for text, _ in answers], [text for text, _ in plain])


@pytest.mark.quick
@pytest.mark.parametrize("dtype", ["fp8", "fp8-inline", "int8"])
def test_bf16_prefill_feeds_a_narrow_decode(cluster, model, plain, dtype):
    made = pair(cluster, model, "bf16", dtype)
    close([ask(made.url, question) for question in QUESTIONS], plain)
    prefill, decode = made.roles["prefill"][0], made.roles["decode"][0]
    wide, narrow = info(prefill), info(decode)
    assert (wide["kv_dtype"], narrow["kv_dtype"]) == ("bf16", dtype)
    if dtype == "fp8":  # no scales in the page: exactly half the bytes, twice the tokens
        assert wide["page_bytes"] == 2 * narrow["page_bytes"]
        assert narrow["token_capacity"] == 2 * wide["token_capacity"]
        assert narrow["pages_total"] == 2 * wide["pages_total"]
    else:  # one float for every 64 values
        assert narrow["page_bytes"] * 2 * 64 == wide["page_bytes"] * (64 + 4)
    moved = [prefill.metrics()["tandem_kv_sent_bytes_total"], decode.metrics()["tandem_kv_received_bytes_total"]]
    assert moved[0] == moved[1] > 0  # over shared memory BF16 travels; the receiver converts
    assert prefill.metrics()["tandem_handoffs_sent_total"] == len(QUESTIONS)
    ratio = decode.metrics()['tandem_kv_bytes_per_token{kv_dtype="' + dtype + '"}'] / \
        prefill.metrics()['tandem_kv_bytes_per_token{kv_dtype="bf16"}']
    assert ratio == pytest.approx(0.5 if dtype == "fp8" else 0.5 * 68 / 64)
    made.wait_settled()


@pytest.mark.quick
def test_over_tcp_prefill_converts_and_half_the_bytes_travel(cluster, model):
    def run(prefill=(), decode=()):
        made = cluster(model, worker_options=MEMORY, router_options=("--local-prefill-tokens", "0"),
                       role_options={"prefill": ("--kv-dtype", "bf16", *prefill), "decode": ("--kv-dtype", "fp8", *decode)})
        answers = [ask(made.url, question) for question in QUESTIONS]
        sender, receiver = made.roles["prefill"][0], made.roles["decode"][0]
        sent = sender.metrics()["tandem_kv_sent_bytes_total"]
        assert sent == receiver.metrics()["tandem_kv_received_bytes_total"] > 0
        made.wait_settled()
        return answers, sent

    # What the digests of --kv-integrity full describe is the sender's form: with them it travels.
    tcp = ("--handoff-listen", "tcp:127.0.0.1:0")
    converted_by_decode, wide = run((*tcp, "--kv-integrity", "full"), ("--kv-integrity", "full"))
    converted_by_prefill, narrow = run(tcp)
    assert converted_by_prefill == converted_by_decode  # the same pages, bit for bit
    assert narrow * 2 == wide


@pytest.mark.quick
def test_pages_of_one_representation_move_unchanged(cluster, launch, model):
    server = launch("alone", "up", model, "--unified", "1", "--port", "0", "--kv-dtype", "fp8").wait_ready()
    alone = [ask(server.url, question, 12)[0] for question in QUESTIONS]
    server.end()
    made = pair(cluster, model, "fp8", "fp8")
    assert [ask(made.url, question, 12)[0] for question in QUESTIONS] == alone
    prefill, decode = made.roles["prefill"][0], made.roles["decode"][0]
    page = info(prefill)["page_bytes"]
    sent = prefill.metrics()["tandem_kv_sent_bytes_total"]
    assert sent == decode.metrics()["tandem_kv_received_bytes_total"] > 0 and sent % page == 0


@pytest.mark.quick
def test_fp8_feeds_bf16_only_by_choice(cluster, model, plain):
    refusing = pair(cluster, model, "fp8", "bf16")
    reply = chat(refusing.url, QUESTIONS[0], temperature=0, max_tokens=4)
    assert reply.status in (502, 503), reply.body
    log = refusing.roles["prefill"][0].log() + reply.body.decode()
    assert "stored as fp8 and would be read as bf16" in log and "--kv-accept coarser" in log
    refusing.wait_settled()
    accepting = pair(cluster, model, "fp8", "bf16", "coarser")
    for question in QUESTIONS:
        text, tokens = ask(accepting.url, question)
        assert len(tokens) > 0 and text
    assert info(accepting.roles["decode"][0])["page_bytes"] == 2 * info(accepting.roles["prefill"][0])["page_bytes"]


@pytest.mark.quick
def test_up_gives_each_role_its_own_dtype(launch, model, plain):
    server = launch("mixed", "up", model, "--port", "0", "--prefill-kv-dtype", "bf16", "--decode-kv-dtype", "fp8",
                    "--local-prefill-tokens", "0", *MEMORY).wait_ready()
    close([ask(server.url, question) for question in QUESTIONS], plain)
    lines = [line.split() for line in server.log().splitlines() if line.startswith(("prefill-0", "decode-0"))]
    kinds = {words[0]: next(word for word in words if word in ("bf16", "fp8")) for words in lines}
    assert kinds == {"prefill-0": "bf16", "decode-0": "fp8"}
    tokens = {words[0]: int(words[-2]) for words in lines}
    assert tokens["decode-0"] == 2 * tokens["prefill-0"]


@pytest.mark.quick
def test_inspect_and_config_files_know_the_dtypes(binary, model, launch, tmp_path):
    shown = subprocess.run([binary, "inspect", model], capture_output=True, text=True, timeout=60, check=True).stdout
    takes = {words[1]: int(words[2]) for words in (line.split() for line in shown.splitlines()) if words[:1] == ["KV,"]}
    assert takes["f32"] == 2 * takes["bf16"] == 4 * takes["fp8"]
    assert takes["fp8-inline"] == takes["int8"] == takes["fp8"] * 68 // 64
    config = tmp_path / "tandem.toml"
    config.write_text('kv-dtype = "fp8-inline"\nkv-accept = ["coarser", "path"]\nkv-memory = "32M"\n')
    worker = launch("worker", "worker", model, "--port", "0", "--config", config, env={"TANDEM_SECRET": SECRET}).wait_ready()
    assert info(worker)["kv_dtype"] == "fp8-inline"
    for options, word in ((("--kv-dtype", "fp4"), "--kv-dtype"), (("--kv-accept", "anything"), "coarser, weights, path")):
        wrong = subprocess.run([binary, "worker", model, "--port", "0", *options], capture_output=True, text=True, timeout=60, check=False)
        assert wrong.returncode == 2 and word in wrong.stderr, wrong.stderr
