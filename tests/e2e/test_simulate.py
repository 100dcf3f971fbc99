"""The KV plane and the router under virtual time, as a person runs them; what they find is tested in src/sim."""
import json
import re
import shutil
import subprocess

import pytest

pytestmark = pytest.mark.quick


def simulate(binary, *arguments):
    return subprocess.run([str(binary), "simulate", "kv", *map(str, arguments)], capture_output=True, text=True, timeout=120)


def test_it_holds_and_says_what_it_tried(binary):
    ended = simulate(binary, "--runs", 300, "--seed", 50001)
    assert ended.returncode == 0, ended.stdout[-3000:]
    assert re.search(r"^300 runs, \d+ events", ended.stdout)
    assert "every request ended" in ended.stdout
    assert simulate(binary, "--runs", 300, "--seed", 50001).stdout.split("events")[0] == ended.stdout.split("events")[0]


@pytest.mark.parametrize("protection", ["I1", "I3", "I5"])
def test_without_a_protection_it_fails_and_shows_how(binary, protection):
    ended = simulate(binary, "--runs", 300, "--break", protection)
    assert ended.returncode == 1
    assert f"switched off: {protection}" in ended.stdout
    assert "VIOLATION" in ended.stdout


def test_the_router_compares_its_policies_on_a_trace(binary, tmp_path):
    """Mooncake's form, plain and compressed: the same table, every policy in it, and what knows the caches hits most."""
    trace = tmp_path / "trace.jsonl"
    with open(trace, "w", encoding="utf-8") as file:
        for i in range(400):
            topic = i * 7919 % 23
            ids = [0, *range(1 + topic * 9, 9 + topic * 9), 10000 + i]
            file.write(json.dumps({"timestamp": i * 60, "input_length": 5100, "output_length": 40, "hash_ids": ids}) + "\n")

    def table(path, *arguments):
        ended = subprocess.run([str(binary), "simulate", "router", str(path), *("" if "--unified" in arguments else "--unified 4").split(), *arguments], capture_output=True, text=True, timeout=60)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    plain = table(trace)
    rows = {line.split()[0]: line.split() for line in plain.splitlines()[2:]}
    assert set(rows) == {"auto", "round_robin", "random", "power_of_two", "affinity", "cache", "cache_aware"}
    assert float(rows["auto"][7]) > float(rows["random"][7])
    if shutil.which("zstd"):
        subprocess.run(["zstd", "-q", str(trace)], check=True, timeout=20)
        assert table(f"{trace}.zst") == plain
    pairs = table(trace, "--unified", "0", "--prefill", "2", "--decode", "2", "--policy", "auto")
    assert "auto" in pairs
    bad = subprocess.run([str(binary), "simulate", "router", __file__], capture_output=True, text=True, timeout=20)
    assert bad.returncode != 0 and "neither Mooncake" in bad.stderr
