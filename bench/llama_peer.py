#!/usr/bin/env python3
"""mstar against llama.cpp on the same GGUF with the same number of threads, alternating in one run.

    bench/llama_peer.py --mstar build/release/mstar --llama DIR --model FILE.gguf [--threads 2] [--rounds 5] [--json FILE]

DIR holds llama.cpp's llama-bench and, as far as they are there, llama-server and llama-batched-bench, built with
CMAKE_BUILD_TYPE=Release and GGML_NATIVE=ON (the source archive of llama-cpp-python on PyPI has them in vendor/llama.cpp). Both
servers run all the time and idle while the other one works. In each round, in turn, `mstar bench` asks both for

  prefill    prompts of 512 tokens, one token of answer, one after the other: prompt tokens a second
  decode     one prompt of 16 tokens, 128 tokens of answer: tokens a second from the first to the last
  together   16 prompts of 16 tokens at once, 128 tokens of answer each: tokens of all answers a second

and llama-bench does pp512 and tg128, llama-batched-bench 16 sequences, without a server. Prompts are random token ids, new in every round: no cache helps. Prints medians
and the ratio mstar / llama.cpp, the best of its three programs (above 1: mstar is faster), then one JSON line.
"""
import argparse
import hashlib
import http.client
import json
import os
import pathlib
import socket
import statistics
import subprocess
import tempfile
import time

TOGETHER = 16


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    def __init__(self, name, command, ready_path, log):
        self.name, self.port = name, free_port()
        start = time.monotonic()
        self.process = subprocess.Popen([part.replace("PORT", str(self.port)) for part in command], stdout=log, stderr=log)
        while time.monotonic() - start < 120:
            if self.process.poll() is not None:
                raise SystemExit("%s ended at once with %d" % (name, self.process.returncode))
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
                connection.request("GET", ready_path)
                if connection.getresponse().status == 200:
                    break
            except OSError:
                time.sleep(0.02)
        else:
            raise SystemExit("%s is not ready after 120 s" % name)
        self.start_s = time.monotonic() - start

    def resident_mib(self):
        for line in pathlib.Path("/proc/%d/status" % self.process.pid).read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) / 1024
        return 0

    def stop(self):
        self.process.terminate()
        self.process.wait(60)


def bench(arguments, server, seed, *options):
    """One run of `mstar bench`; its figures. Any failure ends everything."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [arguments.mstar, "bench", "--url", "http://127.0.0.1:%d" % server.port, "--ignore-eos", "--seed", str(seed),
                   "--json", out.name, *options]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode != 0:
            raise SystemExit("%s: %s\n%s%s" % (server.name, " ".join(command), result.stdout, result.stderr))
        figures = json.load(open(out.name))["figures"]
    # Two random prompts may begin with the same token.
    if figures["cached_tokens"] > 0.1 * figures["prompt_tokens"] or figures["short"]:
        raise SystemExit("%s: an answer was short, or a prompt cached: %s" % (server.name, figures))
    return figures


def prefill(arguments, server, seed):
    figures = bench(arguments, server, seed, "--input", "512", "--output", "1", "--requests", "4")
    return 512 / (figures["e2e_ms"]["p50"] / 1000)


def decode(arguments, server, seed):
    figures = bench(arguments, server, seed, "--input", "16", "--output", "128", "--requests", "1")
    return (figures["output_tokens"] - 1) / ((figures["e2e_ms"]["mean"] - figures["ttft_ms"]["mean"]) / 1000)


def together(arguments, server, seed):
    return bench(arguments, server, seed, "--input", "16", "--output", "128", "--requests", str(TOGETHER),
                 "--offline")["output_tokens_per_s"]


def llama_bench(arguments):
    """(pp512, tg128) in tokens a second."""
    command = [os.path.join(arguments.llama, "llama-bench"), "-m", arguments.model, "-t", str(arguments.threads), "-p", "512", "-n",
               "128", "-r", "1", "-o", "json"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = json.loads(result.stdout)
    return [next(row["avg_ts"] for row in rows if row["n_prompt"] == p and row["n_gen"] == n) for p, n in ((512, 0), (0, 128))]


def llama_batched(arguments):
    """Tokens of 16 answers a second, the time for their prompts included as it is for a server."""
    command = [os.path.join(arguments.llama, "llama-batched-bench"), "-m", arguments.model, "-t", str(arguments.threads), "-tb",
               str(arguments.threads), "-c", "4096", "-npp", "16", "-ntg", "128", "-npl", str(TOGETHER), "--output-format", "jsonl"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    row = json.loads(next(line for line in reversed(result.stdout.splitlines()) if line.startswith("{")))
    return TOGETHER * 128 / row["t"]


def has(arguments, program):
    return os.access(os.path.join(arguments.llama, program), os.X_OK)


def sha256(path):
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()[:16]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mstar", required=True)
    parser.add_argument("--llama", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--log", default=os.devnull, help="file for what the servers say")
    parser.add_argument("--json", help="file for the figures")
    arguments = parser.parse_args()
    log = open(arguments.log, "w")
    threads = str(arguments.threads)
    mstar = Server("mstar", [arguments.mstar, "serve", arguments.model, "--port", "PORT", "--threads", threads, "--max-requests",
                             str(TOGETHER)], "/ready", log)
    peers = []
    if has(arguments, "llama-server"):
        peers.append(Server("llama-server", [os.path.join(arguments.llama, "llama-server"), "-m", arguments.model, "--port", "PORT", "-t",
                                            threads, "-tb", threads, "-np", str(TOGETHER), "-c", str(TOGETHER * 1024), "--no-webui"],
                            "/health", log))
    cases = {"prefill": prefill, "decode": decode, "together": together}
    rates = {}
    try:
        for server in (mstar, *peers):  # warm both
            for number, case in enumerate(cases.values()):
                case(arguments, server, 1 + number)
        for round_number in range(arguments.rounds):
            servers = (mstar, *peers) if round_number % 2 == 0 else (*peers, mstar)
            for number, (name, case) in enumerate(cases.items()):
                for server in servers:
                    rates.setdefault((name, server.name), []).append(case(arguments, server, 100 + 10 * round_number + number))
            for name, rate in zip(("prefill", "decode"), llama_bench(arguments)):
                rates.setdefault((name, "llama-bench"), []).append(rate)
            if has(arguments, "llama-batched-bench"):
                rates.setdefault(("together", "llama-bench"), []).append(llama_batched(arguments))
        resident = {server.name: round(server.resident_mib()) for server in (mstar, *peers)}
    finally:
        for server in (mstar, *peers):
            server.stop()
    rows = []
    print("tokens/s, medians of %d rounds, %d threads; peak resident %s MiB" % (arguments.rounds, arguments.threads, resident))
    print("%-10s%12s%14s%14s%8s" % ("", "mstar", "llama-server", "llama-bench", "ratio"))
    for name in cases:
        median = {who: statistics.median(values) for (case, who), values in rates.items() if case == name}
        best = max((value for who, value in median.items() if who != "mstar"), default=float("nan"))
        row = {"case": name, "ratio": round(median["mstar"] / best, 3), **{who: round(value, 1) for who, value in median.items()},
               "all": {who: [round(v, 1) for v in values] for (case, who), values in rates.items() if case == name}}
        rows.append(row)
        cells = ["%.1f" % median[who] if who in median else "" for who in ("mstar", "llama-server", "llama-bench")]
        print("%-10s%12s%14s%14s%8.2f" % (name, *cells, row["ratio"]))
    out = json.dumps({"mstar_sha256": sha256(arguments.mstar), "model": os.path.basename(arguments.model),
                      "model_sha256": sha256(arguments.model), "threads": arguments.threads, "rounds": arguments.rounds,
                      "resident_mib": resident, "start_s": {s.name: round(s.start_s, 2) for s in (mstar, *peers)}, "rows": rows})
    print(out)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(out + "\n")


if __name__ == "__main__":
    main()
