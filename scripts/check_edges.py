#!/usr/bin/env python3
"""Reads every #include of src/ against src/EDGES: a folder may include itself and what its line names."""
import os
import re
import sys

root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "src")
edges = {}
for line in open(os.path.join(root, "EDGES"), encoding="utf-8"):
    match = re.match(r"([a-z_/]+):([^|]*)", line)
    if match:
        edges[match[1]] = match[2].split()


def folder_of(path):
    """The longest listed folder that holds `path` (relative to src)."""
    best = ""
    for folder in edges:
        if path.startswith(folder + "/") and len(folder) > len(best):
            best = folder
    return best


def reachable(folder):
    """Headers may be included through what a folder links, transitively, only if its own line names them."""
    return set(edges[folder]) | {folder}


bad = 0
order = list(edges)
for folder, named in edges.items():
    for other in named:
        if other not in edges:
            print(f"src/EDGES: {folder} names {other}, which has no line")
            bad += 1
        elif order.index(other) >= order.index(folder):
            print(f"src/EDGES: {folder} comes before {other}, which it may include: the order is bottom up")
            bad += 1
for path, _, files in os.walk(root):
    for name in sorted(files):
        if not name.endswith((".cc", ".h")):
            continue
        full = os.path.join(path, name)
        relative = os.path.relpath(full, root)
        folder = folder_of(relative)
        if not folder:
            print(f"{relative}: its folder has no line in src/EDGES")
            bad += 1
            continue
        for number, line in enumerate(open(full, encoding="utf-8"), 1):
            match = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
            if not match:
                continue
            target = folder_of(match[1])
            if not os.path.exists(os.path.join(root, match[1])):
                print(f"src/{relative}:{number}: {match[1]} does not exist (includes are relative to src)")
                bad += 1
            elif target not in reachable(folder):
                print(f"src/{relative}:{number}: {folder} may not include {target} (src/EDGES)")
                bad += 1
for folder in edges:
    if not os.path.exists(os.path.join(root, folder, "README.md")):
        print(f"src/{folder} has no README.md")
        bad += 1
sys.exit(1 if bad else 0)
