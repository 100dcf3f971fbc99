"""Engines that only pretend (`tandem mock`) and our router in front of them, one kind of backend at a time."""

import contextlib
import dataclasses
import json
import os
import re
import subprocess
import threading

from servers import Process, metrics, request, wait_until

# Sanitizers make everything several times slower.
SLOW = 5 if os.environ.get("TANDEM_SANITIZED") else 1


@dataclasses.dataclass(frozen=True)
class Kind:
    """One way in which a router drives a pair."""
    connector: str
    dialect: str
    together: bool  # both legs are sent at once

    @property
    def pair(self):
        return self.connector != "plain"


KINDS = {kind.connector: kind for kind in (
    Kind("sglang", "sglang", True), Kind("vllm-nixl", "vllm-nixl", False), Kind("vllm-nixl-push", "vllm-nixl-push", True),
    Kind("vllm-mooncake", "vllm-mooncake", True), Kind("trtllm", "trtllm", False), Kind("trtllm-gen-first", "trtllm", True),
    Kind("vllm-moriio", "vllm-moriio", False), Kind("vllm-moriio-write", "vllm-moriio-write", True),
    Kind("plain", "openai", True))}
EVERY_PAIR = [name for name, kind in KINDS.items() if kind.pair]
# MoRI-IO's differ from others of vLLM's in their bodies only: where time counts, these stand for them.
PAIRS = [name for name in EVERY_PAIR if "moriio" not in name]


@dataclasses.dataclass
class Engine:
    role: str
    url: str
    bootstrap: int | None
    events: str = ""  # "ENDPOINT,REPLAY_ENDPOINT" of its KV events

    @property
    def address(self):
        return self.url.split("//")[1]

    def state(self):
        return request(self.url, "GET", "/mock/state").json()

    def faults(self, *faults):
        reply = request(self.url, "POST", "/mock/faults", {"faults": list(faults)})
        assert reply.status == 200, reply.body

    def restart(self):
        return request(self.url, "POST", "/mock/restart", {}).json()

    def requests(self):
        """The last ones as they came (with --record): target, headers by lower-case name, body as text."""
        told = request(self.url, "GET", "/mock/requests").json()["requests"]
        return [{**each, "headers": {name.lower(): value for name, value in each["headers"].items()}} for each in told]


class Mocks:
    """The engines of one process."""

    def __init__(self, binary, log_path, *arguments):
        with open(log_path, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen([str(binary), "mock", *map(str, arguments)], stdout=subprocess.PIPE, stderr=log, text=True)
        self.log_path, self.all = log_path, []
        for line in self.process.stdout:
            if line.strip() == "ready":
                break
            role, url, *rest = line.split()
            told = dict(zip(rest[::2], rest[1::2]))
            self.all.append(Engine(role, url, int(told["bootstrap"]) if "bootstrap" in told else None, told.get("events", "")))
        assert self.all, f"the mocks did not start: {log_path.read_text()}"

    def of(self, *roles):
        return [engine for engine in self.all if engine.role in roles]

    def faults(self, *faults, roles=("prefill", "decode", "unified")):
        for engine in self.of(*roles):
            engine.faults(*faults)

    def leaks(self):
        """What is left of requests in all engines."""
        found = {}
        for engine in self.all:
            state = engine.state()
            counts = {"running": state["running"], "open": state["rooms"]["open"], "waiting": state["rooms"]["waiting"]}
            if any(counts.values()):
                found[engine.address] = counts
        return found

    def total(self, name):
        return sum(engine.state()["rooms"].get(name, 0) for engine in self.all)

    def end(self):
        self.process.terminate()
        try:
            assert self.process.wait(20) in (0, -15)
        finally:
            self.process.kill()
        log = self.log_path.read_text(errors="replace")
        for report in ("Sanitizer", "runtime error:", "Assertion `"):
            assert report not in log, log[-4000:]


class Fleet:
    """Mocks of one kind and the router in front of them. `url` is the router's."""

    def __init__(self, binary, directory, kind, prefill=2, decode=2, mock_options=(), router_options=(), name=None, ranks=1):
        self.kind = KINDS[kind]
        name = name or kind
        ranks = 1 if self.kind.dialect == "trtllm" else ranks  # its servers choose theirs themselves
        if ranks > 1:
            mock_options = (*mock_options, "--dp-size", ranks)
        pools = ["--prefill", prefill, "--decode", decode] if self.kind.pair else ["--unified", prefill + decode]
        self.mocks = Mocks(binary, directory / f"{name}-mocks.log", "--dialect", self.kind.dialect, *pools, *mock_options)
        try:
            arguments = ["router", "--connector", kind, "--port", "0", "--local-prefill-tokens", "0", *router_options]
            if ranks > 1:  # vLLM's engines do not say how many they have
                told = {"dp_size": ranks} if self.kind.dialect.startswith("vllm-nixl") else {}
                listed = [{"url": e.url, "role": e.role, **told, **({"bootstrap_port": e.bootstrap} if e.bootstrap else {})} for e in self.mocks.all]
                (directory / f"{name}-fleet.json").write_text(json.dumps({"workers": listed}))
                arguments += ["--workers-file", directory / f"{name}-fleet.json"]
            for engine in self.mocks.all if ranks == 1 else ():
                arguments += ["--worker" if engine.role == "unified" else f"--{engine.role}", engine.url]
                if kind in ("vllm-mooncake", "vllm-moriio-write") and engine.bootstrap:  # the others say where their side channel is
                    arguments += ["--bootstrap-port", engine.bootstrap]
            self.router = Process(binary, arguments, directory / f"{name}-router.log")
            try:
                self.router.wait_ready()
            except BaseException:
                self.router.end()
                raise
        except BaseException:
            self.mocks.end()
            raise

    @property
    def url(self):
        return self.router.url

    @property
    def prefill(self):
        return self.mocks.of("prefill")

    @property
    def decode(self):
        """Those that answer."""
        return self.mocks.of("decode", "unified")

    def legs_in_flight(self):
        return sum(value for name, value in metrics(self.url).items() if re.match(r"tandem_router_inflight_(legs|tokens)", name))

    def settle(self, seconds=10):
        """Nothing runs anywhere, nothing was left, and the router counts exactly zero."""
        wait_until(lambda: not self.mocks.leaks() and self.legs_in_flight() == 0, seconds * SLOW,
                   lambda: f"{self.kind.connector}: {self.mocks.leaks()}, {self.legs_in_flight()} in flight\n{self.router.log()}")

    def end(self):
        try:
            self.router.end()
        finally:
            self.mocks.end()


@contextlib.contextmanager
def fleets(binary, directory, kinds, **options):
    """{kind: Fleet}, started at once."""
    started, failures = {}, []

    def start(kind):
        try:
            started[kind] = Fleet(binary, directory, kind, **options)
        except BaseException as failure:  # handed on below
            failures.append(failure)

    threads = [threading.Thread(target=start, args=(kind,)) for kind in kinds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        if failures:
            raise failures[0]
        yield started
    finally:
        errors = []
        for fleet in started.values():
            try:
                fleet.end()
            except AssertionError as error:
                errors.append(error)
        assert not errors, errors


class Truth:
    """What every mock of any dialect answers to a prompt, asked of one that nothing goes wrong in."""

    def __init__(self, binary, directory):
        self.mocks = Mocks(binary, directory / "truth.log", "--dialect", "sglang", "--unified", 1, "--step", "0", "--prefill-rate", "0")
        self.url = self.mocks.all[0].url
        self.known = {}

    def reply(self, path, body):
        key = (path, json.dumps(body, sort_keys=True))
        if key not in self.known:
            reply = request(self.url, "POST", path, body)
            assert reply.status == 200, reply.body
            self.known[key] = reply.json()
        return self.known[key]

    def text(self, body):
        return self.reply("/v1/chat/completions", body)["choices"][0]["message"]["content"]

    def end(self):
        self.mocks.end()


def chat_body(prompt, **fields):
    return {"model": "mock-model", "messages": [{"role": "user", "content": prompt}], **fields}
