#!/usr/bin/env bash
# lint.sh all | changed | format: the edge table, formatting, and clang-tidy over all or only the changed files.
set -euo pipefail
cd "$(dirname "$0")/.."
mode=${1:-all}
mapfile -t sources < <(git ls-files --cached --others --exclude-standard 'src/*.cc' 'src/*.h' 'bench/*.cc' 'modules/*.cc' 'modules/*.h' | while read -r f; do [ -e "$f" ] && echo "$f"; done)
if [ "$mode" = format ]; then
  clang-format-19 -i "${sources[@]}"
  exit 0
fi
python3 scripts/check_edges.py
clang-format-19 --dry-run -Werror "${sources[@]}"
[ -e build/release/compile_commands.json ] || cmake --preset release > /dev/null
if [ "$mode" = changed ]; then
  # What differs from the main line's last commit, and what that commit changed.
  mapfile -t changed < <({ git diff --name-only HEAD; git diff --name-only HEAD~1 HEAD 2>/dev/null || true; git ls-files --others --exclude-standard; } | sort -u | grep -E '^(src|modules)/.*\.cc$' || true)
else
  mapfile -t changed < <(printf '%s\n' "${sources[@]}" | grep -E '^(src|modules)/.*\.cc$')
fi
tidy=()
for file in "${changed[@]:-}"; do [ -n "$file" ] && [ -e "$file" ] && [[ $file != *_fuzz.cc ]] && tidy+=("$file"); done
limit=${TANDEM_TIDY_FILES:-${#tidy[@]}}
if [ "${#tidy[@]}" -gt 0 ] && [ "$limit" -gt 0 ]; then
  printf '%s\n' "${tidy[@]:0:$limit}" | xargs -P 2 -n 4 clang-tidy-19 -p build/release --quiet --warnings-as-errors='*' 2> build/tidy.log ||
    { echo "lint: clang-tidy found the above"; exit 1; }
fi
echo "lint: edges, format of ${#sources[@]} files, clang-tidy of $limit files: clean"
