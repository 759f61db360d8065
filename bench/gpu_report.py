#!/usr/bin/env python3
"""What gpu.sh writes: the machine, sums of ncu's kernel times, the phases of a server's steps, and the table of a part.

    gpu_report.py machine MSTAR [RUN_AS]   the machine and the binary as JSON; RUN_AS is a script that runs it
    gpu_report.py kernels CSV [--name N] [--step-only]
                                           of `ncu --csv --metrics gpu__time_duration.sum`: a step's kernels by their share, as JSON
    gpu_report.py part NAME DIRECTORY OUT  joins DIRECTORY/*.json and steps.tsv to OUT/NAME.json and prints the table
"""
import argparse
import collections
import csv
import glob
import hashlib
import importlib.metadata
import json
import pathlib
import re
import subprocess
import sys

MICROSECONDS = {"nsecond": 1e-3, "ns": 1e-3, "usecond": 1, "us": 1, "msecond": 1e3, "ms": 1e3}
COPY_BYTES_PER_US = 4.28e6  # measured on an H200 (bench/notes/gpu_text.md)
LEAST_PERIOD = 40  # kernels of a step


def said_by(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def version_of(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def machine(mstar, run_as):
    gpu = said_by("nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm", "--format=csv,noheader").split("\n")[0]
    libraries = sorted({path.rsplit("/", 1)[1] for pattern in ("libcublasLt.so.*.*", "libcudart.so.*.*")
                        for path in glob.glob("/usr/local/cuda*/**/" + pattern, recursive=True)})
    return {"binary": hashlib.sha256(pathlib.Path(mstar).read_bytes()).hexdigest()[:16], "mstar": said_by(run_as, "--version").split("\n"), "gpu": gpu or None,
            "kernel": said_by("uname", "-r"), "libraries": libraries, "python": {name: version_of(name) for name in ("torch", "transformers", "triton")}}


# ---- the floor


def floor_ms(config, rows, context):
    """Of a decode step: what it must read and write at the device's copy rate. Weights in bfloat16 once; of each row its keys and values
    in bfloat16, and the recurrent state in float32 read and written."""
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    hybrid = "linear_num_value_heads" in config
    num_full = layers // config["full_attention_interval"] if hybrid else layers
    attention = hidden * head_dim * (heads * (2 if hybrid else 1) + 2 * kv_heads) + heads * head_dim * hidden
    weights = num_full * attention + layers * 3 * hidden * config["intermediate_size"] + config["vocab_size"] * hidden
    state_bytes = 0
    if hybrid:
        keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
        values = config["linear_num_value_heads"] * config["linear_value_head_dim"]
        weights += (layers - num_full) * hidden * (2 * keys + 3 * values + 2 * config["linear_num_value_heads"])
        state_bytes = 2 * 4 * (layers - num_full) * values * config["linear_key_head_dim"]
    kv_bytes = 2 * num_full * 2 * kv_heads * head_dim * context
    return (2 * weights + rows * (state_bytes + kv_bytes)) / COPY_BYTES_PER_US / 1e3


# ---- kernels


def short_name(name):
    return re.sub(r"\(.*", "", re.sub(r"\(anonymous namespace\)::|<unnamed>::|mstar::|void ", "", name))[:70]


def read_kernels(lines):
    """[(name, us)] in their order."""
    out = []
    for row in csv.DictReader(line for line in lines if line.startswith('"')):
        if "time_duration" in (row.get("Metric Name") or ""):
            out.append((short_name(row["Kernel Name"]), float(row["Metric Value"].replace(",", "")) * MICROSECONDS[row["Metric Unit"]]))
    return out


def period_of(names):
    """The kernels of one step, where the list begins with a step twice; 0 where it does not."""
    for period in range(LEAST_PERIOD, len(names) // 2 + 1):
        if names[:period] == names[period:2 * period]:
            return period
    return 0


def first_step(kernels):
    """The first step, found by its coming twice, and what stands behind both until a step begins like it again. What came before the
    first one (uploads, fills) is left out. None where nothing repeats."""
    names = [name for name, _ in kernels]
    for begin in range(min(64, len(names))):
        period = period_of(names[begin:])
        if not period:
            continue
        rest = begin + 2 * period
        head = names[begin:begin + 20]
        while names[rest:rest + 20] == head:  # further steps of the same kind
            rest += period
        end = next((i for i in range(rest, len(names)) if names[i:i + 20] == head), len(names))
        return kernels[begin:begin + period], kernels[rest:end]
    return None


def sums(kernels):
    total, count = collections.Counter(), collections.Counter()
    for name, us in kernels:
        total[name] += us
        count[name] += 1
    return {"num_kernels": len(kernels), "us": sum(total.values()),
            "kernels": [{"name": name, "us": us, "count": count[name]} for name, us in total.most_common()]}


def kernels_json(path, name, step_only=False):
    kernels = read_kernels(pathlib.Path(path).read_text(errors="replace").splitlines())
    if not kernels:
        return {name: {"fault": "no kernel was measured"}}
    found = first_step(kernels)
    if not found:
        return {name + ", no step found: all": sums(kernels)}
    step, behind = found
    out = {name + ", a step": sums(step)}
    if behind and not step_only:
        out[name + ", behind the steps (a prompt)"] = sums(behind)
    return out


def print_kernels(report, most=14):
    for name, each in report.items():
        if "fault" in each:
            print("== %s: %s" % (name, each["fault"]))
            continue
        print("== %s: %d kernels, %.1f us" % (name, each["num_kernels"], each["us"]))
        for kernel in each["kernels"][:most]:
            print("%9.1f us %4d x %8.2f  %4.1f %%  %s" % (kernel["us"], kernel["count"], kernel["us"] / kernel["count"], 100 * kernel["us"] / each["us"],
                                                        kernel["name"]))


# ---- phases


def print_phases(name, profile, most=9):
    """Of each kind and size of steps that came often, the largest phases."""
    for worker in profile.get("workers", []):
        steps = worker["steps"]
        often = max((each["num_steps"] for each in steps), default=0)
        for each in steps:
            if each["num_steps"] < 0.05 * often:
                continue
            print("== %s, %s/%s: %s, %s rows (%.1f), %d steps: step p50 %.1f p95 %.1f us, wait %.1f, host %.1f, exposed p50 %.1f p95 %.1f us" % (
                name, each["model"], each["component"], each["kind"], each["rows"], each["mean_rows"], each["num_steps"], each["step_us"]["p50"],
                each["step_us"]["p95"], each["wait_us"]["p50"], each["host_us"]["p50"], each["exposed_us"]["p50"], each["exposed_us"]["p95"]))
            work = sorted(((phase, of) for phase, of in each["phases"].items() if phase not in ("idle", "wait")), key=lambda item: -item[1]["mean_us"])
            print("   " + "  ".join("%s %.1f/%.1f" % (phase, of["p50_us"], of["p95_us"]) for phase, of in work[:most]) + "  (p50/p95 us)")


# ---- a part


def part(name, directory, out):
    directory = pathlib.Path(directory)
    whole = {"part": name, "machine": json.loads((directory / "machine.json").read_text()), "steps": [], "results": {}}
    for line in (directory / "steps.tsv").read_text().splitlines():
        step, status, seconds = line.split("\t")
        whole["steps"].append({"name": step, "status": int(status), "seconds": int(seconds)})
    for path in sorted(directory.glob("*.result.json")):
        try:
            whole["results"][path.name[:-len(".result.json")]] = json.loads(path.read_text())
        except ValueError as fault:
            whole["results"][path.name] = {"fault": str(fault)}
    pathlib.Path(out).mkdir(parents=True, exist_ok=True)
    (pathlib.Path(out) / (name + ".json")).write_text(json.dumps(whole, indent=1))
    for step, result in whole["results"].items():
        for row, each in (result.items() if isinstance(result, dict) else ()):
            if isinstance(each, dict) and isinstance(each.get("phases"), dict):
                print_phases(row, each["phases"])
        if step.startswith("kernels"):
            print_kernels(result)
    about = whole["machine"]
    print("\n%s: binary %s, %s, %s, torch %s, transformers %s" % (name, about["binary"], about["gpu"] or "no GPU", ", ".join(about["libraries"]) or
                                                                "no CUDA libraries found", about["python"]["torch"], about["python"]["transformers"]))
    for step in whole["steps"]:
        state = {0: "ok", 124: "OUT OF TIME"}.get(step["status"], "FAILED (%d)" % step["status"])
        last = (directory / (step["name"] + ".log")).read_text(errors="replace").strip().splitlines()
        print("%-28s %-12s %4d s  %s" % (step["name"], state, step["seconds"], last[-1][:140] if last else ""))
    for result in whole["results"].values():
        for line in (result.get("table", []) if isinstance(result, dict) else ()):
            print(line)
    return any(step["status"] for step in whole["steps"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["machine", "kernels", "part"])
    parser.add_argument("arguments", nargs="*")
    parser.add_argument("--name", default="kernels")
    parser.add_argument("--step-only", action="store_true")
    args = parser.parse_args()
    if args.what == "machine":
        print(json.dumps(machine(args.arguments[0], args.arguments[-1])))
    elif args.what == "kernels":
        print(json.dumps(kernels_json(args.arguments[0], args.name, args.step_only)))
    else:
        sys.exit(1 if part(*args.arguments) else 0)


if __name__ == "__main__":
    main()
