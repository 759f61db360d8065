#!/usr/bin/env python3
"""Puts the entries that linear_tune wrote into a whole table of its kind, in place of those of the same shape and rows:
merge_linear_table.py TABLE NEW > MERGED. Both must be of one version of cuBLASLt."""

import re
import sys

ENTRY = re.compile(r"\s*\{(\d+), (\d+), (DType::\w+), (DType::\w+), (\d+),")
VERSION = re.compile(r"kLinearTableVersion = (\d+);")


def key_of(line):
    entry = ENTRY.match(line)
    return entry and (entry[1], entry[2], entry[3], entry[4], int(entry[5]))


def version_of(text):
    found = VERSION.search(text)
    if not found:
        sys.exit("one of the files is no table of linear_tune's")
    return found[1]


def merge(table, new):
    lines = table.splitlines()
    for line in new.splitlines():
        key = key_of(line)
        if not key:
            continue
        # Its own line, else before the shape's next number of rows, else behind the shape's last, else at the end.
        of_shape = [i for i, old in enumerate(lines) if key_of(old) and key_of(old)[:4] == key[:4]]
        same = [i for i in of_shape if key_of(lines[i])[4] == key[4]]
        if same:
            lines[same[0]] = line
            continue
        behind = [i for i in of_shape if key_of(lines[i])[4] > key[4]]
        end = next(i for i, old in enumerate(lines) if old.strip().startswith(("{}", "};")))
        lines.insert(behind[0] if behind else of_shape[-1] + 1 if of_shape else end, line)
    return "\n".join(lines) + "\n"


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    table, new = (open(path).read() for path in sys.argv[1:])
    if version_of(table) != version_of(new):
        sys.exit("the tables are of different versions of cuBLASLt")
    sys.stdout.write(merge(table, new))


if __name__ == "__main__":
    main()
