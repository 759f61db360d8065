#!/usr/bin/env python3
"""What gpu.sh writes: the machine, the phases of a server's steps, and the table of a part.

    gpu_report.py machine MSTAR [RUN_AS]   the machine and the binary as JSON; RUN_AS is a script that runs it
    gpu_report.py part NAME DIRECTORY OUT  joins DIRECTORY/*.json and steps.tsv to OUT/NAME.json and prints the table
"""
import argparse
import glob
import hashlib
import importlib.metadata
import json
import pathlib
import subprocess
import sys

COPY_BYTES_PER_US = 4.28e6  # measured on an H200 (bench/notes/gpu_text.md)


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
    """Of a decode step: what it must read and write at the device's copy rate."""
    return sum(floor_parts_us(config, rows, context).values()) / 1e3


def floor_parts_us(config, rows, context):
    """The same by part: weights in bfloat16 once; of each row its keys and values in bfloat16, and the recurrent state in float32 read and
    written. What small kernels and draws move is counted with nobody: it fits in caches."""
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
    parts = {"products": 2 * weights, "delta rule": rows * state_bytes, "attention": rows * kv_bytes}
    return {part: moved / COPY_BYTES_PER_US for part, moved in parts.items()}


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
    parser.add_argument("what", choices=["machine", "part"])
    parser.add_argument("arguments", nargs="*")
    args = parser.parse_args()
    if args.what == "machine":
        print(json.dumps(machine(args.arguments[0], args.arguments[-1])))
    else:
        sys.exit(1 if part(*args.arguments) else 0)


if __name__ == "__main__":
    main()
