#!/usr/bin/env bash
# arm64.sh: builds everything for 64-bit ARM, where the reference kernels are the only ones, and runs tests in an emulator: operators,
# text and engine, then a few tokens of a real model. Needs root once (installs mmdebstrap and qemu-user-static), 450 MB of Debian's arm64 packages and about 20 minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
root=build/arm64-root
model=models/smollm2-135m-instruct.Q4_1.gguf
for tool in mmdebstrap qemu-aarch64-static; do
  command -v "$tool" > /dev/null || { apt-get install -y -qq --no-install-recommends mmdebstrap qemu-user-static; break; }
done
if [ ! -e "$root/.complete" ]; then
  rm -rf "$root" && mkdir -p build
  # The libraries of setup.sh, for the other architecture; unpacked, nothing of it runs.
  libraries=$(grep -oE '\b(lib[a-z0-9+.-]+-dev|prometheus-cpp-dev)\b' scripts/setup.sh | grep -vE 'libclang-rt|libucx' | paste -sd,)
  mmdebstrap --quiet --arch=arm64 --variant=extract --include="$libraries,libc6-dev,libstdc++-12-dev,libgcc-12-dev,linux-libc-dev" bookworm "$root"
  # Links that begin at the root would lead out of the folder.
  find "$root/usr/lib/aarch64-linux-gnu" -type l -lname '/*' | while read -r link; do
    ln -sfn "$(realpath -m --relative-to="$(dirname "$link")" "$root$(readlink "$link")")" "$link"
  done
  touch "$root/.complete"
fi
cmake --preset arm64 > build/configure-arm64.log 2>&1 || { cat build/configure-arm64.log; exit 1; }
cmake --build --preset arm64 -j "${JOBS:-2}" --target tandem base_test ops_test text_test engine_test
emulated() { qemu-aarch64-static -L "$root" "$@"; }
for name in base ops text engine; do
  emulated "build/arm64/tests/${name}_test" --gtest_brief=1 --gtest_filter='-*TakesLinearTime*:*TakeLinearTime*'
done
[ ! -e "$model" ] || emulated build/arm64/tandem eval perplexity README.md --model "$model" --window 16 --limit 16
