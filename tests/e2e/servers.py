"""Tandem processes for tests: started on ports the kernel picks, watched, logged, and ended by their own ids."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.parse

SECRET = "e2e-secret"
READY_SECONDS = 120


def free_port():
    """For peers that want to be told theirs; ours take 0."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(condition, seconds, what):
    """Polls; returns the first true value, or fails with `what`."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what() if callable(what) else what}")
        time.sleep(0.02)


class Reply:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body)


def connect(url, timeout=60):
    parts = urllib.parse.urlsplit(url)
    return http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)


def request(url, method, path, body=None, headers=None, timeout=60):
    connection = connect(url, timeout)
    try:
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        connection.request(method, path, body, {"Content-Type": "application/json", **(headers or {})})
        reply = connection.getresponse()
        return Reply(reply.status, dict(reply.getheaders()), reply.read())
    finally:
        connection.close()


def chat(url, content, timeout=60, **fields):
    messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
    return request(url, "POST", "/v1/chat/completions", {"model": "default", "messages": messages, **fields}, timeout=timeout)


def events(raw):
    """The `data:` payloads of an SSE body, JSON ones parsed."""
    out = []
    for block in raw.decode().split("\n\n"):
        if block.startswith("data: "):
            payload = block[len("data: "):]
            out.append(payload if payload == "[DONE]" else json.loads(payload))
    return out


class Stream:
    """A streaming request read event by event."""

    def __init__(self, url, body, path="/v1/chat/completions", timeout=60, headers=None):
        self.connection = connect(url, timeout)
        self.connection.request("POST", path, json.dumps({"stream": True, "model": "default", **body}).encode(),
                                {"Content-Type": "application/json", **(headers or {})})
        self.reply = None

    def open(self):
        self.reply = self.connection.getresponse()
        return self.reply.status

    def __iter__(self):
        if self.reply is None:
            self.open()
        for line in self.reply:
            if line.startswith(b"data: "):
                payload = line[len(b"data: "):].strip().decode()
                yield payload if payload == "[DONE]" else json.loads(payload)

    def close(self):
        # shutdown() makes the peer see the end at once even while another object holds the socket.
        with contextlib.suppress(OSError):
            if self.connection.sock:
                self.connection.sock.shutdown(2)
        if self.reply is not None:
            self.reply.close()
        self.connection.close()


def text_of(stream_events):
    out = ""
    for event in stream_events:
        if isinstance(event, dict):
            for choice in event.get("choices", []):
                out += choice.get("delta", {}).get("content") or choice.get("text") or ""
    return out


def metrics(url, headers=None):
    """{name{labels}: value} of the Prometheus text."""
    reply = request(url, "GET", "/metrics", headers=headers, timeout=10)
    assert reply.status == 200, reply.body
    values = {}
    for line in reply.body.decode().splitlines():
        if line and not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            values[name] = float(value)
    return values


class Process:
    """One tandem process. Its standard output is read for the line that names its address."""

    def __init__(self, binary, arguments, log_path, env=None):
        self.arguments, self.env = list(map(str, arguments)), env
        self.log_path = log_path
        self.name = log_path.stem
        self._log = open(log_path, "w", encoding="utf-8")
        self._log.write(f"$ tandem {' '.join(map(str, arguments))}\n")
        self._log.flush()
        self.url = None
        self._listening = threading.Event()
        self.process = subprocess.Popen([str(binary), *map(str, arguments)], stdout=subprocess.PIPE, stderr=self._log,
                                        stdin=subprocess.DEVNULL, start_new_session=True,
                                        env={**os.environ, **(env or {})})
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self):
        return self.process.pid

    def _read(self):
        for raw in self.process.stdout:
            line = raw.decode(errors="replace")
            self._log.write(line)
            self._log.flush()
            found = re.search(r"listening on (https?://[0-9.]+:\d+)", line)
            if found and self.url is None:
                self.url = found.group(1)
                self._listening.set()
        self._listening.set()

    def log(self):
        return self.log_path.read_text(errors="replace")[-4000:]

    def wait_listening(self, seconds=READY_SECONDS):
        if not self._listening.wait(seconds) or self.url is None:
            raise AssertionError(f"{self.name} did not say where it listens:\n{self.log()}")
        return self

    def wait_ready(self, seconds=READY_SECONDS):
        self.wait_listening(seconds)

        def ready():
            assert self.alive(), f"{self.name} ended with {self.process.returncode}:\n{self.log()}"
            try:
                return request(self.url, "GET", "/ready", timeout=5).status == 200
            except OSError:
                return False

        wait_until(ready, seconds, lambda: f"{self.name} ready:\n{self.log()}")
        return self

    def alive(self):
        return self.process.poll() is None

    def signal(self, number):
        os.kill(self.pid, number)

    def kill(self):
        self.signal(signal.SIGKILL)
        self.process.wait(10)

    def end(self):
        """Asks, then insists; only this process and the ones it started. A process that lived must end well."""
        asked = self.alive()
        if asked:
            with contextlib.suppress(ProcessLookupError):
                self.signal(signal.SIGCONT)
                self.signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(60 if os.environ.get("TANDEM_SANITIZED") else 10)
        status = self.process.poll()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait(10)
        self._reader.join(5)
        self._log.close()
        log = self.log_path.read_text(errors="replace")
        for report in ("AddressSanitizer", "LeakSanitizer", "ThreadSanitizer", "runtime error:", "Assertion `"):
            assert report not in log, f"{self.name}:\n{log[log.index(report) - 200:][:6000]}"
        assert not asked or status in (0, None), f"{self.name} ended with {status}:\n{log[-3000:]}"

    def metrics(self):
        return metrics(self.url, {"x-tandem-auth": SECRET})

    def pages_used(self):
        return self.metrics()["tandem_kv_pages_used"]

    def open_files(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def private_bytes(self):
        """Resident memory of its own: not the KV arena, which is shared and fills once, nor the mapped model."""
        with open(f"/proc/{self.pid}/status", encoding="ascii") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith("RssAnon:"))


def children(pid):
    """Processes that `pid` started, with their command lines."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError):
            with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as file:
                parent = int(file.read().rsplit(")", 1)[1].split()[1])
            if parent == pid:
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    found[int(entry)] = file.read().decode(errors="replace").split("\0")
    return found


class Cluster:
    """Workers and a router as separate processes, so that tests can stop and kill each of them."""

    def __init__(self, launch, model, prefill=1, decode=1, unified=0, worker_options=(), router_options=(),
                 role_options=None):
        self._launch = launch
        self.roles = {"prefill": [], "decode": [], "unified": []}
        for role, count in (("prefill", prefill), ("decode", decode), ("unified", unified)):
            for i in range(count):
                process = launch(f"{role}{i}", "worker", model, "--role", role, "--port", "0", *worker_options,
                                 *(role_options or {}).get(role, ()),
                                 env={"TANDEM_SECRET": SECRET})
                self.roles[role].append(process)
        for process in self.workers:
            process.wait_ready()
        addresses = []
        for role, processes in self.roles.items():
            for process in processes:
                addresses += ["--worker" if role == "unified" else f"--{role}", process.url]
        self.router = launch("router", "router", *addresses, "--port", "0", *router_options, env={"TANDEM_SECRET": SECRET})
        self.router.wait_ready()

    @property
    def url(self):
        return self.router.url

    @property
    def workers(self):
        return [process for processes in self.roles.values() for process in processes]

    def restart(self, process):
        """The same command again, at the same address; kills what still lives. Returns the new process."""
        if process.alive():
            process.kill()
        arguments = list(process.arguments)
        arguments[arguments.index("--port") + 1] = str(urllib.parse.urlsplit(process.url).port)
        again = self._launch(process.name.split("-")[0], *arguments, env=process.env).wait_listening()
        if process is self.router:
            self.router = again
        for processes in self.roles.values():
            processes[:] = [again if old is process else old for old in processes]
        return again

    def pages_used(self):
        return {process.name: process.pages_used() for process in self.workers if process.alive()}

    def inflight(self, process):
        return sum(value for name, value in metrics(self.url).items()
                   if name.startswith("tandem_router_inflight_legs{") and process.url.split("//")[1] in name)

    def chosen(self, role, seconds=10):
        """The worker of this role that has a leg in flight."""
        return wait_until(lambda: next((p for p in self.roles[role] if self.inflight(p) > 0), None), seconds,
                          f"a {role} leg in flight")

    def wait_settled(self, before=None, seconds=10):
        """No legs, no pages beyond `before`: everything that a request took has come back."""
        def settled():
            used = self.pages_used()
            legs = sum(self.inflight(process) for process in self.workers)
            return legs == 0 and all(used[name] <= (before or {}).get(name, 0) for name in used)

        wait_until(settled, seconds, lambda: f"settled: pages {self.pages_used()}, before {before}")
