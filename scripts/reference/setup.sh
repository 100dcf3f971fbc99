#!/usr/bin/env bash
# Makes .venv at the repository's root with the reference implementations. Safe to run again: it does nothing when the
# pinned versions are already there.
set -euo pipefail
cd "$(dirname "$0")/../.."
requirements=scripts/reference/requirements.txt
stamp=.venv/requirements.installed

if [[ -f $stamp ]] && cmp -s "$requirements" "$stamp"; then
  echo "reference environment: .venv is up to date"
  exit 0
fi
if ! python3 -c 'import venv, ensurepip' 2>/dev/null; then
  echo "python3's venv module is missing; install the package python3-venv" >&2
  exit 1
fi
echo "reference environment: installing $requirements into .venv (several GB the first time)"
[[ -x .venv/bin/python ]] || python3 -m venv .venv
.venv/bin/python -m pip install --quiet --requirement "$requirements"
cp "$requirements" "$stamp"
echo "reference environment: ready"
