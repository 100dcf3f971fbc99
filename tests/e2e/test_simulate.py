"""The KV plane under virtual time, as a person runs it; what it finds is tested in src/sim."""
import re
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
