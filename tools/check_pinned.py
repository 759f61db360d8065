#!/usr/bin/env python3
"""Fails when docs/contracts/pinned-behaviours.md names a test that does not exist, or gives an item no test.

A row of its tables is `| item | behaviour | tests |`. Tests are `Suite.Name` of GoogleTest or `Class.test_name` of a Python
test, each in backquotes; `.Name` is of the suite before it, `Suite.*` any of a suite. A row without any says "not yet".
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PINNED = ROOT / "docs" / "contracts" / "pinned-behaviours.md"
GOOGLE = re.compile(r"^(?:TEST|TEST_F|TEST_P|TYPED_TEST)\(\s*(\w+),\s*(\w+)\s*\)", re.M)
PYTHON = re.compile(r"^class (\w+)|^    def (test_\w+)", re.M)


def known_tests():
    names = set()
    for top in ("src", "apps", "tests"):
        for path in (ROOT / top).rglob("*.cc"):
            names.update(f"{suite}.{name}" for suite, name in GOOGLE.findall(path.read_text(errors="replace")))
        for path in (ROOT / top).rglob("*_test.py"):
            suite = ""
            for cls, name in PYTHON.findall(path.read_text()):
                suite = cls or suite
                if name:
                    names.add(f"{suite}.{name}")
    return names


def named_tests(cell):
    suite = ""
    for text in re.findall(r"`([^`]+)`", cell):
        match = re.fullmatch(r"(\w*)\.(\w+|\*)", text)
        if not match or match.group(2) in ("cc", "h", "py"):
            continue
        suite = match.group(1) or suite
        yield f"{suite}.{match.group(2)}"


def main():
    known, faults, items = known_tests(), [], set()
    for number, line in enumerate(PINNED.read_text().splitlines(), 1):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|") or len(cells) < 2:
            continue
        where = f"{PINNED.relative_to(ROOT)}:{number}"
        tests = list(named_tests(cells[-1]))
        if cells[0].isdigit():
            where += f": item {cells[0]}"
            if cells[0] in items:
                faults.append(f"{where} is there twice")
            items.add(cells[0])
        if cells[0].isdigit() and not tests and "not yet" not in cells[-1]:
            faults.append(f"{where} names no test")
        for test in tests:
            found = any(each.startswith(test[:-1]) for each in known) if test.endswith("*") else test in known
            if not found:
                faults.append(f"{where}: there is no test {test}")
    print("\n".join(faults) if faults else f"pinned behaviours ok: {len(items)} items")
    return 1 if faults or not items else 0


if __name__ == "__main__":
    sys.exit(main())
