import json
import os
import pathlib
import signal

import pytest

from servers import Cluster, Process

ROOT = pathlib.Path(__file__).resolve().parents[2]
SECONDS = {"quick": 240, "full": 3600, "soak": 1200}


def pytest_addoption(parser):
    parser.addoption("--tandem", default=os.environ.get("TANDEM_BINARY", str(ROOT / "build/release/tandem")), help="the program under test")
    parser.addoption("--model", default=os.environ.get("TANDEM_MODEL", str(ROOT / "models/smollm2-135m-instruct.Q4_1.gguf")), help="a real model")


@pytest.fixture(scope="session")
def binary(request):
    path = pathlib.Path(request.config.getoption("--tandem"))
    if not path.exists():
        pytest.exit(f"{path} is missing: run `make build`", returncode=3)
    return path


@pytest.fixture(scope="session")
def model(request):
    path = pathlib.Path(request.config.getoption("--model"))
    if not path.exists():
        pytest.exit(f"{path} is missing: run `scripts/fetch-model.sh smollm2-135m`", returncode=3)
    return path


@pytest.fixture(autouse=True)
def time_limit(request):
    """No test waits for ever, whatever it waits for."""
    seconds = next((SECONDS[m] for m in ("soak", "full", "quick") if request.node.get_closest_marker(m)), 240)

    def expired(*_):
        raise TimeoutError(f"the test took more than {seconds} s")

    previous = signal.signal(signal.SIGALRM, expired)
    signal.alarm(seconds)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous)


def _launcher(binary, directory):
    started = []

    def launch(name, *arguments, env=None):
        path = directory / f"{name}.log"
        count = 1
        while path.exists():
            count += 1
            path = directory / f"{name}-{count}.log"
        process = Process(binary, arguments, path, env)
        started.append(process)
        return process

    return launch, started


def _end_all(started):
    failures = []
    for process in reversed(started):
        try:
            process.end()
        except AssertionError as failure:
            failures.append(str(failure))
    assert not failures, "\n".join(failures)


@pytest.fixture
def launch(binary, tmp_path):
    """Starts processes that end with the test."""
    launch, started = _launcher(binary, tmp_path)
    yield launch
    _end_all(started)


@pytest.fixture(scope="module")
def module_launch(binary, tmp_path_factory, request):
    launch, started = _launcher(binary, tmp_path_factory.mktemp(request.module.__name__))
    yield launch
    _end_all(started)


@pytest.fixture(scope="module")
def up(module_launch, model):
    """`tandem up` with one prefill and one decode worker of the real model."""
    return module_launch("up", "up", model, "--port", "0").wait_ready()


@pytest.fixture(scope="session")
def write_script(model):
    """Writes a scripted model; returns what names it on the command line."""
    def write(directory, replies, **options):
        path = directory / f"script-{len(list(directory.glob('script-*')))}.json"
        script = {"tokenizer": os.path.relpath(model, directory), "replies": replies, **options}
        path.write_text(json.dumps(script))
        return f"scripted:{path}"

    return write


@pytest.fixture
def cluster(launch):
    def make(model, **options):
        return Cluster(launch, model, **options)

    return make
