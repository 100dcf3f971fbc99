"""requirements_of.py PACKAGE LEFT_OUT...: what an installed package requires, without extras and without what is left out."""

import importlib.metadata
import re
import sys


def main():
    package, *left_out = sys.argv[1:]
    for line in importlib.metadata.requires(package) or []:
        requirement, _, marker = line.partition(";")
        name = re.match(r"[A-Za-z0-9._-]+", requirement.strip()).group().lower()
        if "extra" not in marker and name not in left_out and not name.startswith("torch"):
            print(requirement.strip() + (f"; {marker.strip()}" if marker else ""))


main()
