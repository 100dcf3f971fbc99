#!/usr/bin/env bash
# Installs the Debian packages that building and testing need, if any is missing, and says so. Needs root (or sudo) only then.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build
packages=(
  clang-19 lld-19 clang-format-19 clang-tidy-19 libclang-rt-19-dev llvm-19  # the compiler, its sanitizers and linters
  cmake ninja-build ccache pkg-config make git
  libboost1.81-dev libhttp-parser-dev libsimdjson-dev libexpected-dev libfmt-dev libspdlog-dev
  libcli11-dev libtomlplusplus-dev libssl-dev libxxhash-dev libutf8proc-dev libpcre2-dev libzstd-dev prometheus-cpp-dev
  libzmq3-dev                                                                # KV events
  libgtest-dev libgmock-dev libbenchmark-dev
  spin                                                                       # the model of the handoff
  python3 python3-venv python3-pip openssl curl                              # tests and fetching models; not needed to serve
)
optional=(libucx-dev ucx-utils)  # the UCX transport module, and what it is measured against
is_installed() { dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q "install ok installed"; }
missing=()
for package in "${packages[@]}"; do is_installed "$package" || missing+=("$package"); done
wanted=()
for package in "${optional[@]}"; do is_installed "$package" || wanted+=("$package"); done
[ $((${#missing[@]} + ${#wanted[@]})) -eq 0 ] && exit 0
echo "setup: installing Debian packages: ${missing[*]} ${wanted[*]}"
sudo=""
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    [ ${#missing[@]} -eq 0 ] && { echo "setup: not root: left out ${wanted[*]}"; exit 0; }
    echo "setup: run as root: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  sudo=sudo
fi
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -qq
if [ ${#missing[@]} -gt 0 ]; then
  $sudo apt-get install -y -qq --no-install-recommends "${missing[@]}" > build/setup.log 2>&1 || { tail -20 build/setup.log >&2; exit 1; }
fi
if [ ${#wanted[@]} -gt 0 ]; then
  $sudo apt-get install -y -qq --no-install-recommends --no-remove "${wanted[@]}" >> build/setup.log 2>&1 ||
    echo "setup: ${wanted[*]} could not be installed: the UCX transport module will not be built"
fi
