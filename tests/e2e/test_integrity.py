"""`--kv-integrity` with real processes: planted faults are noticed at the level that can, end only the request they hit, and are told;
`tandem kv` looks into a worker."""

import concurrent.futures
import json
import os
import re
import subprocess

import pytest

from servers import SECRET, chat, request, wait_until

quick = pytest.mark.quick
INCIDENTS = "tandem_kv_integrity_incidents_total"


def facts_script(write_script, tmp_path, **options):
    return write_script(tmp_path, [{"reply": "you said {echo:0} and nothing else at all"}], **options)


def ask(url, i, more="", facts=24):
    """Every block of the prompt holds the fact, so a page of another's shows."""
    return chat(url, f"fact-{i:04d}x " * facts + more, max_tokens=48, temperature=0)


def judge(i, reply):
    if reply.status == 200:
        return "right" if reply.json()["choices"][0]["message"]["content"] == f"you said fact-{i:04d}x and nothing else at all" else "wrong"
    assert reply.status in (500, 502, 503), reply.body
    return reply.json()["error"]["code"]


def storm(url, count=10):
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda i: judge(i, ask(url, i)), range(count)))


def incidents(process):
    return sum(value for name, value in process.metrics().items() if name.startswith(INCIDENTS))


def incident_lines(process):
    found = re.findall(r"\{\"incident\":.*\}", process.log_path.read_text(errors="replace"))
    return [json.loads(line) for line in found]


def start(cluster, script, shape, level, fault, role):
    options = ("--kv-memory", "64M", "--kv-integrity", level, "--prefill-chunk", "64")
    planted = {role: ("--kv-fault", fault)} if fault else {}
    counts = {"prefill": 0, "decode": 0, "unified": 1} if shape == "unified" else {"prefill": 1, "decode": 1}
    return cluster(script, worker_options=options, role_options=planted, **counts)


SHAPES = [("unified", "unified"), ("pair", "prefill"), ("pair", "decode")]


@quick
@pytest.mark.parametrize("shape,role", SHAPES)
@pytest.mark.parametrize("fault", ["swap-pages:1", "free-early:1"])
def test_a_mixed_up_table_ends_its_own_request_only(cluster, write_script, tmp_path, shape, role, fault):
    stack = start(cluster, facts_script(write_script, tmp_path, row_ms=0.3, step_ms=3), shape, "tags", fault, role)
    seen = storm(stack.url)
    assert "wrong" not in seen, seen
    assert set(seen) <= {"right", "kv_integrity"} and seen.count("kv_integrity") <= 2, seen
    worker = stack.roles[role][0]
    assert incidents(worker) >= 1
    line = incident_lines(worker)[0]
    assert line["kind"] in ("mapping", "generation") and line["found_by"] == "step"
    assert line["history"] and line["expected"]["generation"] and line["quarantined"] is True
    assert "fact-" not in worker.log_path.read_text(errors="replace"), "no text of anybody"
    stack.wait_settled()
    assert storm(stack.url, 4) == ["right"] * 4


@quick
def test_without_checks_the_same_fault_shows_in_answers(cluster, write_script, tmp_path):
    stack = start(cluster, facts_script(write_script, tmp_path, row_ms=0.3, step_ms=3), "unified", "off", "swap-pages:1", "unified")
    assert "wrong" in storm(stack.url)


@quick
@pytest.mark.parametrize("level", ["off", "full"])
def test_a_bit_that_flips_in_the_cache(cluster, write_script, tmp_path, level):
    stack = start(cluster, facts_script(write_script, tmp_path), "unified", level, "flip-bit", "unified")
    worker = stack.roles["unified"][0]
    assert judge(1, ask(stack.url, 1)) == "right"
    if level == "full":
        # The scrubber is told of nothing: it finds it.
        wait_until(lambda: incidents(worker) == 1, 20, "the scrubber to find it")
        assert incident_lines(worker)[0]["kind"] == "digest"
    judged = judge(1, ask(stack.url, 1, "and more"))
    assert judged == ("right" if level == "full" else "wrong")


@quick
@pytest.mark.parametrize("fault", ["flip-bit-in-copy:3", "lost-layer-in-copy:3"])
def test_what_breaks_on_the_way_to_decode_never_answers(cluster, write_script, tmp_path, fault):
    script = facts_script(write_script, tmp_path)
    stack = start(cluster, script, "pair", "off", fault, "decode")
    assert "wrong" in [judge(i, ask(stack.url, i)) for i in range(2)]
    stack = start(cluster, script, "pair", "full", fault, "decode")
    seen = [judge(i, ask(stack.url, i)) for i in range(3)]
    assert "wrong" not in seen and seen[-1] == "right", seen
    decode = stack.roles["decode"][0]
    wait_until(lambda: incidents(decode) == 1, 5, "one incident")
    line = incident_lines(decode)[0]
    assert line["found_by"] == "handoff" and line["described"] != line["found"]
    stack.wait_settled()


@quick
def test_a_full_quarantine_ends_the_worker_and_its_supervisor_starts_another(launch, write_script, tmp_path):
    script = facts_script(write_script, tmp_path, context_length=256)
    up = launch("up", "up", script, "--unified", "1", "--port", "0", "--kv-memory", "30K", "--kv-integrity", "full", "--kv-fault", "flip-bit")
    up.wait_ready()
    assert judge(1, ask(up.url, 1, facts=4)) == "right"
    wait_until(lambda: "starting it again" in up.log_path.read_text(errors="replace"), 30, "the restart")
    assert "quarantine is full" in up.log_path.read_text(errors="replace")
    wait_until(lambda: judge(2, ask(up.url, 2, facts=4)) == "right", 30, "an answer of the next process")


def kv(binary, *arguments, status=0, secret=SECRET):
    done = subprocess.run([str(binary), "kv", *map(str, arguments)], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "TANDEM_SECRET": secret})
    assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
    return done.stdout + (done.stderr if status else "")


@quick
def test_tandem_kv_looks_into_a_worker(binary, cluster, write_script, tmp_path):
    stack = start(cluster, facts_script(write_script, tmp_path), "pair", "full", None, "decode")
    assert judge(1, ask(stack.url, 1)) == "right"
    stack.wait_settled()
    url = stack.roles["decode"][0].url
    stat = json.loads(kv(binary, "stat", url, "--json"))
    assert stat["role"] == "decode" and stat["integrity"]["level"] == "full"
    assert stat["pages"]["cached"] == stat["index"]["blocks"] > 4
    assert stat["transfers"]["received"] == 1 and stat["transfers"]["received_bytes"] > 0
    assert re.search(r"cached +%d\n" % stat["pages"]["cached"], kv(binary, "stat", url))

    listed = json.loads(kv(binary, "ls", url, "--json", "--limit", 100000))
    assert len(listed["blocks"]) == stat["index"]["blocks"] and not listed["more"]
    ids = [block["id"] for block in listed["blocks"]]
    assert ids == sorted(ids) and all(block["pages"][0]["state"] == "published" for block in listed["blocks"])
    assert "fact" not in json.dumps(listed)
    few = json.loads(kv(binary, "ls", url, "--json", "--limit", 3))
    assert [block["id"] for block in few["blocks"]] == ids[:3] and few["more"]
    assert ids[4][:16] in kv(binary, "ls", url, "--prefix", ids[4][:12])

    verified = json.loads(kv(binary, "verify", url, "--json"))
    assert verified == {"total": len(ids), "checked": len(ids), "gone": 0, "bad": 0, "done": True}
    assert f"{len(ids)} pages compared" in kv(binary, "verify", url)

    assert json.loads(kv(binary, "drop", url, "--scope", "0" * 16, "--json")) == {"dropped_blocks": 0}
    assert kv(binary, "drop", url, "--all") == f"{len(ids)} blocks dropped\n"
    assert json.loads(kv(binary, "stat", url, "--json"))["pages"]["cached"] == 0
    assert judge(1, ask(stack.url, 1)) == "right"

    assert "TANDEM_SECRET" in kv(binary, "stat", url, status=1, secret="wrong")
    assert "what to drop" in kv(binary, "drop", url, status=2)
    assert "no action" in kv(binary, "look", status=2)
    assert "hexadecimal" in kv(binary, "ls", url, "--prefix", "xyz", status=1)
    kv(binary, "stat", "http://127.0.0.1:9", status=1)
    assert request(url, "GET", "/tandem/v1/kv").status == 401


@quick
def test_verify_says_what_is_damaged(binary, cluster, write_script, tmp_path):
    stack = start(cluster, facts_script(write_script, tmp_path), "unified", "tags", None, "unified")
    url = stack.roles["unified"][0].url
    assert "--kv-integrity full" in kv(binary, "verify", url, status=1)


@quick
def test_tandem_kv_bench(binary):
    rates = json.loads(kv(binary, "bench", "--json", "--size", "8M"))
    assert all(rates[name] > 1e8 for name in rates if name != "bytes")
    assert "GB/s" in kv(binary, "bench", "--size", "8M")
    assert "Actions:" in kv(binary, "--help") and "--json" in kv(binary, "ls", "--help")
