#!/usr/bin/env python3
"""What the way from a worker's step to a client costs: `mstar serve null`, whose model computes nothing, under `mstar bench`.

    bench/host_path.py --mstar build/release/mstar [--streams 1000] [--tokens 300] [--rounds 3] [--steps-ms 100,50,25]
                       [--io-threads 1] [--no-io-uring] [--kernel-times] [--host ADDRESS] [--netns NAME] [--server-cpus 0]
                       [--client-cpus 1] [--client-nice 19] [--json FILE]

First all streams at once as fast as they go: tokens a second, and microseconds of the server's CPU (user and system, all its
threads) a streamed token; several tokens of a stream then leave in one write. Then with steps of a given length, so that each token
leaves alone: how far the gaps between two tokens of a stream are from their median. A pace is kept when the tokens come at least at
90 % of its rate; at the end comes half of the highest rate that was kept. The client shares the machine; its CPU is not counted.
With --netns it runs in that network namespace and reaches the server under the address of --host, as from another machine.
With --kernel-times tokens arrive when the kernel takes them in (SO_TIMESTAMPNS), so that the client's own delays do not count.
With cores of its own, and a client that yields to the kernel's receiving, the client takes nothing from the server, as on another
machine. "others" is what the rest of the machine worked meanwhile: a round with much of it tells little. Prints each round, medians
and one JSON line. The first steps, in which the requests arrive, are in the figures: let tokens be many.
"""
import argparse
import http.client
import json
import os
import pathlib
import resource
import socket
import statistics
import subprocess
import tempfile
import time


def free_port(host):
    with socket.socket() as s:
        s.bind((host, 0))
        return s.getsockname()[1]


def on_cpus(cpus):
    return ["taskset", "-c", cpus] if cpus else []


def serve(arguments, step_us, directory):
    config = pathlib.Path(directory) / "null.yaml"
    config.write_text("model: 'null'\noptions: {step_us: %d}\nmax_concurrent_requests: %d\nmax_queued_requests: %d\n"
                      "limits: {step_tokens: %d}\nserver: {max_connections: %d, io_threads: %d, io_uring: %s}\n" % (
                          step_us, arguments.streams, arguments.streams, arguments.streams, arguments.streams + 64,
                          arguments.io_threads, "false" if arguments.no_io_uring else "true"))
    port = free_port(arguments.host)
    command = [arguments.mstar, "--log-level", "warn", "serve", str(config), "--host", arguments.host, "--port", str(port)]
    process = subprocess.Popen(on_cpus(arguments.server_cpus) + command, stderr=subprocess.DEVNULL)
    for _ in range(1000):
        if process.poll() is not None:
            raise SystemExit("the server ended at once with %d" % process.returncode)
        try:
            connection = http.client.HTTPConnection(arguments.host, port, timeout=5)
            connection.request("GET", "/ready")
            if connection.getresponse().status == 200:
                return process, port
        except OSError:
            pass
        time.sleep(0.02)
    raise SystemExit("the server is not ready after 20 s")


def busy_s():
    """CPU seconds that the machine has worked since its start."""
    user, nice, system, _, _, irq, softirq = (int(text) for text in open("/proc/stat").readline().split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def used_s(process):
    """CPU seconds of the server, and of the clients that have ended."""
    fields = open("/proc/%d/stat" % process.pid).read().rsplit(")", 1)[1].split()
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") + children.ru_utime + children.ru_stime


def bench(arguments, process, port, tokens):
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [arguments.mstar, "bench", "--url", "http://%s:%d" % (arguments.host, port), "--offline", "--requests", str(arguments.streams),
                   "--input", "16", "--output", str(tokens), "--ignore-eos", "--server-pid", str(process.pid), "--json", out.name]
        command += ["--kernel-times"] if arguments.kernel_times else []
        if arguments.netns:
            command = ["ip", "netns", "exec", arguments.netns] + command
        command = ["nice", "-n", str(arguments.client_nice)] + on_cpus(arguments.client_cpus) + command
        begin_s, busy, used = time.monotonic(), busy_s(), used_s(process)
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode != 0:
            raise SystemExit(result.stdout + result.stderr)
        figures = json.load(open(out.name))["figures"]
        others = (busy_s() - busy) - (used_s(process) - used)
        figures["others"] = max(0.0, others / (time.monotonic() - begin_s))
    wanted = arguments.streams * tokens
    if figures["pieces"] != wanted or figures["usage_tokens"] != wanted:
        raise SystemExit("%d pieces and %d tokens instead of %d" % (figures["pieces"], figures["usage_tokens"], wanted))
    return figures


def row(kind, figures):
    out = {"kind": kind, "tokens_per_s": round(figures["pieces_per_s"]), "cpu_us": round(figures["server_cpu_us_per_piece"], 2),
           "gap_p50_ms": round(figures["itl_ms"]["p50"], 2), "jitter_p99_ms": round(figures["gap_jitter_ms"]["p99"], 2),
           "jitter_max_ms": round(figures["gap_jitter_ms"]["max"], 2), "max_open": figures["max_open"],
           "others_cores": round(figures["others"], 2)}
    print("%-10s%8d tokens/s  %6.2f us of CPU a token  gap p50 %7.2f ms  jitter p99 %7.2f ms  max %7.2f ms  %d streams  "
          "others %.2f cores" % tuple(out.values()), flush=True)
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mstar", required=True)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps-ms", default="100,50,25", help="lengths of paced steps")
    parser.add_argument("--io-threads", type=int, default=1)
    parser.add_argument("--no-io-uring", action="store_true", help="each token is a send() of its own")
    parser.add_argument("--kernel-times", action="store_true", help="the kernel says when a token has arrived")
    parser.add_argument("--host", default="127.0.0.1", help="address that the server listens on")
    parser.add_argument("--netns", help="network namespace of the client")
    parser.add_argument("--server-cpus", help="cores that the server may use, as taskset takes them")
    parser.add_argument("--client-cpus", help="those of the client")
    parser.add_argument("--client-nice", type=int, default=0, help="how much nicer the client is than the server")
    parser.add_argument("--json", help="file for the figures")
    arguments = parser.parse_args()
    rows, medians = [], {}
    steps_ms = [0] + sorted((float(text) for text in arguments.steps_ms.split(",")), reverse=True)
    with tempfile.TemporaryDirectory() as directory:
        while steps_ms:
            step_ms = steps_ms.pop(0)
            kind = "%g ms" % step_ms if step_ms else "fastest"
            process, port = serve(arguments, round(step_ms * 1000), directory)
            try:
                bench(arguments, process, port, 16)  # warm
                for _ in range(arguments.rounds):
                    rows.append(row(kind, bench(arguments, process, port, arguments.tokens)))
            finally:
                process.terminate()
                process.wait(60)
            wanted = 0.9 * arguments.streams / step_ms * 1000 if step_ms else 0
            medians[kind] = {key: statistics.median(r[key] for r in rows if r["kind"] == kind)
                             for key in ("tokens_per_s", "cpu_us", "jitter_p99_ms")}
            medians[kind]["kept"] = medians[kind]["tokens_per_s"] >= wanted
            print("%-10s%s" % (kind, medians[kind]))
            kept_ms = [float(name.split()[0]) for name, each in medians.items() if each["kept"] and name != "fastest"]
            if not steps_ms and kept_ms and "%g ms" % (2 * min(kept_ms)) not in medians:
                steps_ms.append(2 * min(kept_ms))
    out = json.dumps({"streams": arguments.streams, "tokens": arguments.tokens, "cores": os.cpu_count(), "medians": medians,
                      "rows": rows})
    print(out)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(out + "\n")


if __name__ == "__main__":
    main()
