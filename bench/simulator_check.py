#!/usr/bin/env python3
"""The simulator beside the thing itself: timed null models, served by `mstar serve` on CPU replicas and driven by `mstar bench`, and the same deployment
and load simulated from the same table of step costs. Prints measured, simulated, and their ratio.

    simulator_check.py MSTAR SIMULATE [COSTS.json] [--replicas 1 2 4] [--concurrency 8 32 64] [--routing least_loaded random] [--requests 4]
"""
import argparse
import json
import pathlib
import re
import signal
import subprocess
import tempfile
import threading

HERE = pathlib.Path(__file__).resolve().parent


def serve(mstar, keys, directory):
    config = pathlib.Path(directory) / "config.yaml"
    config.write_text(json.dumps(keys))  # JSON is YAML
    process = subprocess.Popen([mstar, "serve", str(config), "--port", "0"], stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if found := re.match(r"ready on (http://127\.0\.0\.1:\d+)", line):
            threading.Thread(target=lambda: [None for _ in process.stderr], daemon=True).start()
            return process, found.group(1)
    raise SystemExit("the server ended before it was ready")


def measure(args, replicas, routing, clients, requests):
    with tempfile.TemporaryDirectory() as directory:
        keys = {"model": "null", "name": "m", "device": "cpu", "routing": routing, "max_concurrent_requests": clients,
                "node_groups": [{"components": ["null"], "ranks": list(range(replicas))}], "options": {"step_costs": args.costs}}
        process, url = serve(args.mstar, keys, directory)
        figures = pathlib.Path(directory) / "figures.json"
        try:
            subprocess.run([args.mstar, "bench", "--url", url, "--concurrency", str(clients), "--requests", str(requests), "--input",
                            f"{args.prompt[0]}-{args.prompt[1]}", "--output", f"{args.reply[0]}-{args.reply[1]}", "--ignore-eos", "--kernel-times",
                            "--json", str(figures)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()
        read = json.loads(figures.read_text())["figures"]
        if read["failed"]:
            raise SystemExit(f"{read['failed']} requests failed")
        return {"tokens/s": read["output_tokens_per_s"], "ttft p50 ms": read["ttft_ms"]["p50"], "itl p50 ms": read["itl_ms"]["p50"],
                "latency mean s": read["e2e_ms"]["mean"] / 1e3, "latency p95 s": read["e2e_ms"]["p95"] / 1e3}


def simulated(args, replicas, routing, clients, requests):
    """Means over a few seeds: one run's draws are not the measured run's."""
    out = subprocess.run([args.simulate, args.costs, "--replicas", str(replicas), "--routing", routing, "--clients", str(clients), "--requests",
                          str(requests), "--prompt", *map(str, args.prompt), "--reply", *map(str, args.reply), "--seeds", "5"],
                         check=True, capture_output=True, text=True).stdout.splitlines()
    row = dict(zip(out[0].split(), out[1].split()))
    return {"tokens/s": float(row["tokens/s"]), "ttft p50 ms": float(row["ttft_p50"]), "itl p50 ms": float(row["gap_p50"]),
            "latency mean s": float(row["mean_s"]), "latency p95 s": float(row["p95_s"])}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mstar")
    parser.add_argument("simulate")
    parser.add_argument("costs", nargs="?", default=str(HERE / "costs" / "cpu_timed.json"))
    parser.add_argument("--replicas", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--concurrency", type=int, nargs="*", default=[8, 32, 64])
    parser.add_argument("--routing", nargs="*", default=["least_loaded", "random"])
    parser.add_argument("--requests", type=int, default=4, help="for each client")
    parser.add_argument("--prompt", type=int, nargs=2, default=[16, 128])
    parser.add_argument("--reply", type=int, nargs=2, default=[16, 128])
    args = parser.parse_args()
    args.costs = str(pathlib.Path(args.costs).resolve())
    print("| replicas | clients | routing | | measured | simulated | ratio |\n| --- | --- | --- | --- | --- | --- | --- |")
    worst = 1.0
    for replicas in args.replicas:
        for clients in args.concurrency:
            for routing in args.routing if replicas > 1 else args.routing[:1]:
                requests = args.requests * clients
                real, model = measure(args, replicas, routing, clients, requests), simulated(args, replicas, routing, clients, requests)
                for name, value in real.items():
                    ratio = model[name] / value
                    if name in ("tokens/s", "latency mean s"):
                        worst = max(worst, ratio, 1 / ratio)
                    print(f"| {replicas} | {clients} | {routing} | {name} | {value:.4g} | {model[name]:.4g} | {ratio:.2f} |", flush=True)
    print(f"\nthroughput and mean latency differ by {100 * (worst - 1):.0f} % at most")


if __name__ == "__main__":
    main()
