import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/e2e"))

from pair import MODES, VllmPair  # noqa: E402


@pytest.fixture(scope="module", params=list(MODES))
def pair(request, tmp_path_factory):
    """A prefill and a decode server of vLLM and our router in front of them."""
    if not (ROOT / "build/peers/model/config.json").exists():
        pytest.exit("build/peers is missing: run `scripts/peers.sh install`", returncode=3)
    made = VllmPair(ROOT, tmp_path_factory.mktemp(request.param), request.param)
    try:
        made.start()
        yield made
    finally:
        made.stop()
