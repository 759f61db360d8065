#!/usr/bin/env python3
"""Random templates and variables, rendered by jinja2 and by ours: the same text, or an error of both. What ours refuses
by name is counted apart; any other difference fails.

  pip install jinja2==3.1.6
  cmake --build build/dev --target jinja_check
  tools/golden/jinja_fuzz.py --check build/dev/src/mstar/text/jinja_check --seed 1 --count 5000

--write N stores the first N cases of --seed as tests/golden/jinja/fuzz_cases.json instead.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys

import jinja2

import jinja_oracle
from jinja_maker import make_case

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "jinja"

# Where ours stops by name what jinja2 may render.
REFUSALS = ("beyond 64 bits", "is not supported", "are not supported", "too wide", "out of range", "too many steps", "too much text",
            "unhashable type: 'object'", "unhashable type: 'generator'")
# jinja2 writes constants into the code that it makes of a template, and forgets that these are no words of Python.
THEIR_FAULTS = ("name 'nan' is not defined", "name 'inf' is not defined")
# What prints an address: never a case to store.
ADDRESS = re.compile(r"<[a-zA-Z_. ]*(object|method|function|generator|Macro|dict_|built-in|bound|iterator|Namespace|class)|"
                     r"LoopContext|0x[0-9a-f]{6}", re.IGNORECASE)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--write", type=int)
    parser.add_argument("--show", type=int, default=10)
    args = parser.parse_args()
    env = jinja_oracle.environment()
    if args.write:
        cases = []
        seed = args.seed
        while len(cases) < args.write:
            case = make_case(seed)
            seed += 1
            answer = jinja_oracle.render(env, case["template"], case["variables"])
            if "error" in answer and len(cases) % 4 != 0:
                continue  # three of four cases are texts
            if not ADDRESS.search(answer.get("text", "")):
                cases.append({**case, "text": answer.get("text")})
        path = OUT / "fuzz_cases.json"
        path.write_text(json.dumps({"made_with": f"jinja2 {jinja2.__version__}", "cases": cases}, separators=(",", ":")) + "\n")
        print(f"{path.name}: {path.stat().st_size} bytes")
        return
    cases = [make_case(args.seed * 1_000_000 + i) for i in range(args.count)]
    done = subprocess.run([args.check], input="".join(json.dumps(c) + "\n" for c in cases), capture_output=True, text=True,
                          check=False)
    lines = done.stdout.split("\n")
    counts = {"texts": 0, "errors": 0, "refused": 0, "their fault": 0, "differ": 0}
    for index, case in enumerate(cases):
        if index >= len(lines) or not lines[index]:
            print("ours ended early:", done.returncode, done.stderr[-500:], "\n", case["template"])
            sys.exit(1)
        ours = json.loads(lines[index])
        theirs = jinja_oracle.render(env, case["template"], case["variables"])
        if "text" in theirs and theirs["text"] == ours.get("text"):
            counts["texts"] += 1
        elif "error" in theirs and "error" in ours:
            counts["errors"] += 1
        elif any(s in theirs.get("error", "") for s in THEIR_FAULTS):
            counts["their fault"] += 1
        elif any(s in ours.get("error", "") for s in REFUSALS):
            counts["refused"] += 1
        else:
            counts["differ"] += 1
            if counts["differ"] <= args.show:
                print(f"--- {args.seed * 1_000_000 + index}\n{case['template']}\n  jinja2: {theirs}\n  ours:   {ours}")
    print(counts)
    sys.exit(counts["differ"] != 0)


if __name__ == "__main__":
    main()
