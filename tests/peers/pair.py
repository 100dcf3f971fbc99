"""A prefill and a decode server of vLLM on the CPU, and our router in front."""

import contextlib
import os
import signal
import subprocess
import uuid

from servers import Process, free_port, metrics, request, wait_until

# mode: (vLLM's connector, ours)
MODES = {"pull": ("NixlPullConnector", "vllm-nixl"), "push": ("NixlPushConnector", "vllm-nixl-push")}
READY_SECONDS = 240


class Vllm:
    """One server. It keeps its ports when it is started again."""

    def __init__(self, root, directory, role, connector, core):
        self.root, self.directory, self.role, self.connector, self.core = root, directory, role, connector, core
        self.port, self.side_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = None
        self.lives = 0

    def start(self):
        self.lives += 1
        venv, log = self.root / "build/peers/venv", self.directory / f"{self.role}-{self.lives}.log"
        config = (f'{{"kv_connector":"{self.connector}","kv_role":"{"kv_producer" if self.role == "prefill" else "kv_consumer"}",'
                  # What a busy machine takes from one leg to the other may be more than the 30 seconds that blocks are kept for by default.
                  '"kv_buffer_device":"cpu","kv_connector_extra_config":{"kv_lease_duration":240}}')
        command = [venv / "bin/vllm", "serve", self.root / "build/peers/model", "--served-model-name", "m", "--host", "127.0.0.1",
                   "--port", self.port, "--dtype", "bfloat16", "--max-model-len", 4096, "--enforce-eager",
                   "--enable-prompt-tokens-details", "--kv-transfer-config", config]
        env = {**os.environ, "PATH": f"{venv / 'bin'}:{os.environ['PATH']}", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1",
               "VLLM_NO_USAGE_STATS": "1", "UCX_TLS": "tcp,shm,self,posix,cma,sysv", "VLLM_CPU_OMP_THREADS_BIND": str(self.core),
               "VLLM_NIXL_SIDE_CHANNEL_PORT": str(self.side_port)}
        with open(log, "w", encoding="utf-8") as file:
            self.process = subprocess.Popen(list(map(str, command)), stdout=file, stderr=file, stdin=subprocess.DEVNULL, env=env,
                                            start_new_session=True)
        self.log = log

    def healthy(self):
        assert self.process.poll() is None, f"vLLM's {self.role} server ended:\n{self.log.read_text(errors='replace')[-4000:]}"
        with contextlib.suppress(OSError):
            return request(self.url, "GET", "/health", timeout=5).status == 200
        return False

    def wait_ready(self):
        wait_until(self.healthy, READY_SECONDS, lambda: self.log.read_text(errors="replace")[-4000:])

    def kill(self):
        """The whole group: its engine is a process of its own."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(20)

    def metric(self, name):
        """The sum over its labels."""
        return sum(value for key, value in metrics(self.url).items() if key.split("{")[0] == name)


class VllmPair:
    def __init__(self, root, directory, mode):
        theirs, self.connector = MODES[mode]
        self.mode, self.root, self.directory = mode, root, directory
        cores = sorted(os.sched_getaffinity(0))
        self.prefill = Vllm(root, directory, "prefill", theirs, cores[0])
        self.decode = Vllm(root, directory, "decode", theirs, cores[-1])
        self.router = None

    @property
    def engines(self):
        return (self.prefill, self.decode)

    @property
    def url(self):
        return self.router.url

    def start(self):
        for engine in self.engines:
            engine.start()
        for engine in self.engines:
            engine.wait_ready()
        binary = os.environ.get("TANDEM_BINARY", self.root / "build/release/tandem")
        self.router = Process(binary, ["router", "--connector", self.connector, "--prefill", self.prefill.url, "--decode", self.decode.url,
                                       "--port", "0"], self.directory / "router.log")
        self.router.wait_ready()

    def stop(self):
        if self.router is not None:
            self.router.end()
        for engine in self.engines:
            if engine.process is not None:
                engine.kill()

    def by_hand(self, path, body):
        """The whole answer of the pair without a router. Both requests have one id: a push finds its decode request by it."""
        headers = {"X-Request-Id": uuid.uuid4().hex}
        asked = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None,
                 "remote_host": None, "remote_port": None}
        first = request(self.prefill.url, "POST", path, {**body, "max_tokens": 1, "stream": False, "kv_transfer_params": asked}, headers, 60)
        assert first.status == 200, first.body
        given = first.json()["kv_transfer_params"]
        second = request(self.decode.url, "POST", path, {**body, "stream": False, "kv_transfer_params": given}, headers, 60)
        assert second.status == 200, second.body
        return second.json()

    def wait_idle(self, seconds=10):
        """Neither server runs or keeps a request waiting, and the router counts nothing in flight."""
        def idle():
            busy = [engine.metric(f"vllm:num_requests_{what}") for engine in self.engines for what in ("running", "waiting")]
            legs = sum(value for name, value in metrics(self.url).items() if name.startswith("tandem_router_inflight_legs"))
            return not any(busy) and legs == 0

        wait_until(idle, seconds, lambda: {engine.role: engine.metric("vllm:num_requests_running") for engine in self.engines})
