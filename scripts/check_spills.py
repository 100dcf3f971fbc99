#!/usr/bin/env python3
"""Whether the compiler keeps the kernels' sums in registers: scripts/check_spills.py [--objects DIRECTORY] [--list]

Reads the machine code of the kernels (tandem_ops, *_avx2.cc, *_avx512.cc and *_amx.cc) with objdump. In every innermost loop that multiplies, it counts
the vectors that are written to the stack: an accumulator that does not fit the registers is written and read again in every round, which costs
such a loop up to half of its speed. A file may have as many as ALLOWED says; more is an error. Needs the release build; takes seconds."""

import argparse
import pathlib
import platform
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
OBJECTS = ROOT / "build/release/CMakeFiles/tandem_ops.dir/src/ops/cpu"
# Vectors written to the stack inside loops that multiply: with clang 19 these are 61, 4, 166 and 516, most of them where the registers
# hold decoded codes and the sums of a whole tile (calling instead of inlining spills less and is slower on AVX-512, measured). A spilled set of accumulators adds ten and more.
ALLOWED = {"attention_avx2": 70, "linear_i8_amx": 8, "linear_i8_avx2": 174, "linear_i8_avx512": 540}
LEAST_PRODUCTS = 4  # a loop of fewer is no kernel's inner loop

INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\s+(\S+)\s*(.*)$")
PRODUCT = re.compile(r"^v(p?dpbusds?|pdpbusd|dpbf16ps|fn?madd\d+ps|pmaddubsw|pmaddwd)$")
SPILL = re.compile(r"^%[xyz]mm\d+,\s*-?(0x[0-9a-f]+)?\(%r[sb]p\)")
JUMP = re.compile(r"^j[a-z]+$")


def functions(path):
    """Of each function its instructions: (address, mnemonic, operands)."""
    text = subprocess.run(["objdump", "-d", "--no-show-raw-insn", path], capture_output=True, text=True, check=True).stdout
    code = []
    for line in text.splitlines():
        if line.endswith(">:"):
            if code:
                yield code
            code = []
        elif found := INSTRUCTION.match(line):
            code.append((int(found[1], 16), found[2], found[3]))
    if code:
        yield code


def inner_loops(code):
    """Index ranges from a backward jump's target to the jump, those without another such range inside."""
    at = {address: index for index, (address, _, _) in enumerate(code)}
    loops = []
    for index, (_, mnemonic, operands) in enumerate(code):
        if not JUMP.match(mnemonic):
            continue
        try:
            target = at.get(int(operands.split()[0], 16))
        except (ValueError, IndexError):
            continue
        if target is not None and target <= index:
            loops.append((target, index))
    return [loop for loop in loops if not any(other != loop and loop[0] <= other[0] and other[1] <= loop[1] for other in loops)]


def spills(path):
    """Product loops of a file: (address, products, vectors written to the stack) of those that write any; and how many loops there are."""
    found, count = [], 0
    for code in functions(path):
        for first, last in inner_loops(code):
            body = code[first:last + 1]
            products = sum(bool(PRODUCT.match(mnemonic)) for _, mnemonic, _ in body)
            if products < LEAST_PRODUCTS:
                continue
            count += 1
            written = sum(mnemonic.startswith("vmov") and bool(SPILL.match(operands)) for _, mnemonic, operands in body)
            if written:
                found.append((code[first][0], products, written))
    return found, count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=pathlib.Path, default=OBJECTS)
    parser.add_argument("--list", action="store_true", help="every loop that writes")
    options = parser.parse_args()
    if platform.machine() != "x86_64":
        print("this machine has none of the kernels that are looked at")
        return 0
    files = sorted(path for path in options.objects.glob("*.o") if re.search("_(avx|amx)", path.name))
    if not files:
        sys.exit(f"{options.objects} holds no kernels: ninja -C build/release tandem_ops")
    failed = False
    loops = 0
    for path in files:
        found, count = spills(path)
        loops += count
        name = path.name.split(".")[0]
        written = sum(each[2] for each in found)
        if options.list:
            print(f"{name}: {count} loops that multiply, {written} vectors written to the stack in {len(found)} of them")
            for address, products, vectors in found:
                print(f"  at {address:#x}: {products} products, {vectors} written")
        if written > ALLOWED.get(name, 0):
            failed = True
            print(f"{name}: {written} vectors are written to the stack in loops that multiply, {ALLOWED.get(name, 0)} were (--list shows where)")
    if loops < 50:
        sys.exit(f"only {loops} loops that multiply were found: does objdump's output look otherwise here?")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
