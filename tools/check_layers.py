#!/usr/bin/env python3
"""Fails when an include of src/mstar goes up a layer, when CMake DEPS and the real includes disagree, or when a source does not
include its own header first (which shows that the header stands alone)."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SRC = ROOT / "src" / "mstar"
INCLUDE = re.compile(r'^\s*#\s*include\s+"mstar/([a-z_]+)/', re.M)
ANY_INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]([^>"]+)', re.M)


def allowed():
    rules = {}
    for line in (ROOT / "tools" / "layers.txt").read_text().splitlines():
        line = line.split("#")[0].strip()
        if line:
            name, _, deps = line.partition(":")
            rules[name.strip()] = set(deps.split())
    return rules


def cmake_calls(text, function):
    """The argument lists of each call of `function` in a CMake file."""
    for match in re.finditer(re.escape(function) + r"\s*\(", text):
        depth, end = 1, match.end()
        while depth and end < len(text):
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        yield text[match.end():end - 1].split()


def cmake_deps(directory):
    path = directory / "CMakeLists.txt"
    if not path.exists():
        return None
    for words in cmake_calls(path.read_text(), "mstar_module"):
        deps, active = set(), False
        for word in words:
            if word in {"SOURCES", "HEADERS", "DEPS", "LIBS", "CUDA"}:
                active = word == "DEPS"
            elif active:
                deps.add(word)
        return deps
    return None


def own_header_fault(path, text):
    header = path.with_suffix(".h")
    first = ANY_INCLUDE.search(text)
    if path.suffix != ".cc" or not header.exists() or (first and first.group(1) == str(header.relative_to(ROOT / "src"))):
        return []
    return [f"{path.relative_to(ROOT)}: the first include must be its own header {header.name}"]


def main():
    faults, rules = [], allowed()
    order = list(rules)
    for name, deps in rules.items():
        for dep in deps:
            if dep not in rules or order.index(dep) >= order.index(name):
                faults.append(f"tools/layers.txt: {name} lists {dep}, which is not below it")
    for directory in sorted(p for p in SRC.iterdir() if p.is_dir()):
        name = directory.name
        if name not in rules:
            faults.append(f"src/mstar/{name}: no line in tools/layers.txt")
            continue
        used = {}
        for path in sorted(directory.rglob("*")):
            if path.suffix not in {".h", ".cc", ".cu", ".cuh", ".inc"}:
                continue
            is_test = path.stem.endswith(("_test", "_bench", "_fuzz"))
            text = path.read_text(errors="replace")
            faults += own_header_fault(path, text)
            for dep in INCLUDE.findall(text):
                if dep == name:
                    continue
                if dep not in rules[name]:
                    faults.append(f"{path.relative_to(ROOT)}: {name} may not include {dep} (tools/layers.txt)")
                elif not is_test:
                    used.setdefault(dep, path)
        declared = cmake_deps(directory)
        if declared is None:
            continue
        for dep in sorted(set(used) - declared):
            faults.append(f"src/mstar/{name}/CMakeLists.txt: DEPS lacks {dep}, included by {used[dep].relative_to(ROOT)}")
        for dep in sorted(declared - set(used)):
            faults.append(f"src/mstar/{name}/CMakeLists.txt: DEPS names {dep}, which nothing there includes")
    for fault in faults:
        print(fault)
    if not faults:
        print(f"layers ok: {len(rules)} directories")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
