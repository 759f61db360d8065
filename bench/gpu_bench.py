#!/usr/bin/env python3
"""Serves models with random weights at real size on a GPU and loads them through HTTP; the table comes last.

    gpu_bench.py --mstar ./mstar --models models --run qwen3-0.6b:1,32 --run qwen3.5-0.8b:1,32,64 [--seconds 15] [--json FILE]
                 [--output 16-512] [--boots 3] [--peer transformers] [--phases] [--config KEYS] [-- SERVE FLAGS]

Closed loop, 640 tokens in (ids) and 256 out, ignore_eos, each row for about --seconds after a warm-up of as many requests as clients.
A Whisper model (--run whisper-large-v3:1,32) gets clips of 4.7 s at /v1/audio/transcriptions instead, and gives 25 tokens for each.
"ready" is from the start of the process to /ready; "first" the first request's time. "floor" is that of a decode step (gpu_report.floor_ms); the share of it counts all of the row's time.
--boots N starts the server N times for the first row, which then shows the median of N runs and their range, and compares the text of
one greedy request across boots. --peer transformers runs transformers_peer.py on the same device once the server has stopped: its figures
are from whole batches without HTTP, and partly extrapolated, as its head says. --phases keeps /debug/profile in the JSON.
--config has keys of a config.yaml as JSON, for placements: '{"node_groups": [{"components": ["decoder"], "ranks": [0, 1], "tp_size": 2}]}'; the
floor is then that of so many ranks' bandwidth together.
"""
import argparse
import hashlib
import http.client
import io
import json
import pathlib
import random
import signal
import statistics
import struct
import subprocess
import sys
import threading
import time
import urllib.request
import wave

import gpu_report

PORT = 8123
URL = "http://127.0.0.1:%d" % PORT


def ask(path):
    with urllib.request.urlopen(URL + path, timeout=5) as answer:
        return answer.read().decode()


class Server:
    def __init__(self, command, log):
        self.log = open(log, "w")
        self.begun = time.monotonic()
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT)

    def wait_ready(self):
        while self.process.poll() is None and time.monotonic() - self.begun < 240:
            try:
                ask("/ready")
                return time.monotonic() - self.begun
            except OSError:
                time.sleep(0.02)
        return None

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(40)
        except subprocess.TimeoutExpired:
            self.process.kill()


def counters():
    wanted = ("mstar_steps_total", "mstar_step_rows_total", "mstar_graph_replays_total", "mstar_eager_steps_total", "mstar_piecewise_steps_total", "mstar_step_allocations_total",
              "mstar_host_syncs_total", "mstar_rows_ahead_total")
    out = {}
    for line in ask("/metrics").splitlines():
        name = line.split("{")[0].split(" ")[0]
        if name in wanted:
            out[name] = out.get(name, 0) + float(line.rsplit(" ", 1)[1])
    return out


def load(mstar, clients, requests, warmup, lengths, pid, path, seed):
    """Each seed has prompts of its own, which no cache holds from another."""
    command = [mstar, "bench", "--url", URL, "--concurrency", str(clients), "--requests", str(requests), "--warmup", str(warmup), "--input", "640",
               "--output", lengths, "--seed", str(seed), "--ignore-eos", "--server-pid", str(pid), "--json", path]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit("bench failed:\n" + done.stdout)
    return json.loads(pathlib.Path(path).read_text())["figures"]


# ---- Whisper

CLIP_SECONDS, CLIP_TOKENS = 4.7, 25


def make_clip(seed):
    chance = random.Random(seed)
    samples = [int(chance.gauss(0, 1500)) for _ in range(int(CLIP_SECONDS * 16000))]
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(16000)
        out.writeframes(struct.pack("<%dh" % len(samples), *(max(-32768, min(32767, s)) for s in samples)))
    return file.getvalue()


def form_of(clip, model, **fields):
    all_fields = {"model": model, "language": "en", "temperature": "0", "max_tokens": str(CLIP_TOKENS), "ignore_eos": "true", **fields}
    body = b"".join(('--frontier\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % each).encode() for each in all_fields.items())
    return body + (b'--frontier\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n' + clip +
                   b"\r\n--frontier--\r\n")


def transcribe(connection, body):
    connection.request("POST", "/v1/audio/transcriptions", body, {"Content-Type": "multipart/form-data; boundary=frontier"})
    answer = connection.getresponse()
    text = answer.read()
    if answer.status != 200:
        raise RuntimeError("transcription: %d %s" % (answer.status, text[:300]))
    return text


def load_clips(bodies, clients, num_requests):
    """Latencies in ms and requests a second."""
    times, lock, left, faults = [], threading.Lock(), iter(range(num_requests)), []

    def client():
        connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=120)
        while not faults:
            with lock:
                number = next(left, None)
            if number is None:
                return
            begin = time.perf_counter()
            try:
                transcribe(connection, bodies[number % len(bodies)])
            except (OSError, RuntimeError, http.client.HTTPException) as fault:
                faults.append(fault)
                return
            times.append(1000 * (time.perf_counter() - begin))

    threads = [threading.Thread(target=client) for _ in range(clients)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        sys.exit(str(faults[0]))
    return sorted(times), len(times) / (time.perf_counter() - begin)


WORDS = {"response_format": "verbose_json", "timestamp_granularities[]": "word"}


def run_whisper(model, clients, seconds, ready, rows, raw, words):
    clips = [make_clip(seed) for seed in range(8)]
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=120)
    streamed = transcribe(connection, form_of(clips[0], model, stream="true")).decode()
    done = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: ")][-1]
    tokens = done.get("usage", {}).get("output_tokens")
    if tokens != CLIP_TOKENS:
        print("warning: %s tokens a clip, not %d" % (tokens, CLIP_TOKENS))
    bodies = [form_of(clip, model, **(WORDS if words else {})) for clip in clips]
    first, _ = load_clips(bodies, 1, 1)
    for c in clients:
        _, rate = load_clips(bodies, c, 2 * c)  # warm-up
        before = counters()
        times, rate = load_clips(bodies, c, max(4 * c, int(seconds * rate)))
        after = counters()
        delta = {name: after[name] - before.get(name, 0) for name in after}
        at = lambda share: times[min(len(times) - 1, int(share * len(times)))]  # noqa: E731
        raw["%s c=%d" % (model, c)] = {"requests_per_s": rate, "latency_ms": {"p50": at(0.5), "p99": at(0.99), "mean": sum(times) / len(times)},
                                       "requests": len(times), "tokens": tokens, "counters": delta, "ready_s": ready}
        rows.append((model, str(c), ("with words  " if words else "") + "%.1f req/s  latency p50 %.1f p99 %.1f ms  %s tokens each  steps %d eager %d piecewise %d alloc %d syncs %d ahead %d  ready %.2f s first %.1f ms" % (
            rate, at(0.5), at(0.99), tokens, delta.get("mstar_steps_total", -1), delta.get("mstar_eager_steps_total", -1), delta.get("mstar_piecewise_steps_total", -1),
            delta.get("mstar_step_allocations_total", -1), delta.get("mstar_host_syncs_total", -1), delta.get("mstar_rows_ahead_total", -1), ready,
            first[0])))
        print(*rows[-1], flush=True)


def greedy_hash(model):
    """Of the text that the server gives to one seeded prompt."""
    chance = random.Random(11)
    body = {"model": model, "prompt": [chance.randrange(1000, 10000) for _ in range(640)], "max_tokens": 256, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(URL + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        text = json.load(answer)["choices"][0]["text"]
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def tokens_of(output):
    """The mean of what requests answer with: "256", or "16-512"."""
    low, _, high = output.partition("-")
    return (int(low) + int(high or low)) / 2


def more_boots(args, model, command, clients, first_rate, first_hash):
    """The first row again on fresh servers: what all boots gave."""
    rates, hashes, readies = [first_rate], [first_hash], []
    for boot in range(1, args.boots):
        server = Server(command, "/tmp/serve-%s-%d.log" % (model, boot))
        ready = server.wait_ready()
        if ready is None:
            rates.append(0.0)
        else:
            readies.append(ready)
            hashes.append(greedy_hash(model))
            requests = max(2 * clients, int(args.seconds * first_rate / tokens_of(args.output)))
            rates.append(load(args.mstar, clients, requests, clients, args.output, server.process.pid, "/tmp/boot.json", 100 + clients)["output_tokens_per_s"])
        server.stop()
    return {"output_tokens_per_s": rates, "median": statistics.median(rates), "greedy_sha256": hashes, "same_bytes": len(set(hashes)) == 1, "ready_s": readies}


def peer_rows(args, model, clients):
    """[(clients, line)] of transformers, on this device alone."""
    script = pathlib.Path(__file__).resolve().with_name("transformers_peer.py")
    path = "/tmp/peer-%s.json" % model
    command = [sys.executable, str(script), "--config", "%s/%s/config.json" % (args.models, model), "--batch", ",".join(str(c) for c in clients if c <= 32) or "1",
               "--output", "%d" % tokens_of(args.output), "--device", "cpu" if "cpu" in args.serve else "cuda", "--json", path]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=180)
    except subprocess.TimeoutExpired:
        return [("-", "transformers: out of time")], None
    if done.returncode:
        return [("-", "transformers failed: " + done.stdout.strip().split("\n")[-1])], None
    peer = json.loads(pathlib.Path(path).read_text())
    name = "transformers %s, one batch, no HTTP: " % peer["versions"]["transformers"]
    return [(str(row["batch"]), name + row["line"]) for row in peer["rows"]], peer


def after_rows(args, run, server, command, rows, raw):
    """Of one model, once its rows are there: its phases, further boots, its peer. Stops the server."""
    model, clients = run.split(":")
    clients = [int(c) for c in clients.split(",")]
    if args.phases:
        raw["%s, phases" % model] = {"phases": json.loads(ask("/debug/profile"))}
    first = raw.get("%s c=%d" % (model, clients[0]), {}).get("bench", {}).get("output_tokens_per_s")
    own_hash = greedy_hash(model) if args.boots > 1 and first else None
    server.stop()
    if own_hash:
        boots = more_boots(args, model, command, clients[0], first, own_hash)
        raw["%s c=%d, boots" % (model, clients[0])] = boots
        rows.append((model, str(clients[0]), "%d boots: median %.0f tok/s, from %.0f to %.0f; a greedy answer at c=1: %s" % (
            args.boots, boots["median"], min(boots["output_tokens_per_s"]), max(boots["output_tokens_per_s"]),
            "the same bytes" if boots["same_bytes"] else "OTHER BYTES: " + ", ".join(boots["greedy_sha256"]))))
        print(*rows[-1], flush=True)
    if args.peer:
        lines, raw["%s, transformers" % model] = peer_rows(args, model, clients)
        for batch, line in lines:
            rows.append((model, batch, line))
            print(*rows[-1], flush=True)


def serve_command(args, model, most_clients):
    flags = ["--port", str(PORT), *args.serve]
    directory = pathlib.Path(args.models).resolve() / model
    if not args.config:
        return [args.mstar, "serve", str(directory), "--load-format", "dummy", "--max-requests", str(most_clients), *flags]
    keys = {"model": str(directory), "name": model, "options": {"load_format": "dummy"}, "max_concurrent_requests": most_clients}
    path = pathlib.Path("/tmp/gpu_bench-%s.yaml" % model)
    path.write_text(json.dumps({**keys, **json.loads(args.config)}))  # JSON is YAML
    return [args.mstar, "serve", str(path), *flags]


def num_ranks(args):
    groups = json.loads(args.config).get("node_groups", []) if args.config else []
    return len({rank for group in groups for rank in group["ranks"]}) or 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mstar", default="./mstar")
    parser.add_argument("--models", default="models")
    parser.add_argument("--config", help="keys of a config.yaml, as JSON")
    parser.add_argument("--run", action="append", required=True, help="MODEL:CLIENTS,CLIENTS...")
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--output", default="256")
    parser.add_argument("--json")
    parser.add_argument("--binary", help="what is hashed, where --mstar is a script that runs it")
    parser.add_argument("--boots", type=int, default=1)
    parser.add_argument("--peer", choices=["transformers"])
    parser.add_argument("--phases", action="store_true")
    parser.add_argument("--words", action="store_true", help="Whisper tells word times: its steps that align texts are piecewise")
    parser.add_argument("serve", nargs="*")
    args = parser.parse_args()
    binary = hashlib.sha256(pathlib.Path(args.binary or args.mstar).read_bytes()).hexdigest()[:16]
    print("binary", binary)
    rows, raw = [], {"binary": binary, "command": sys.argv}
    if args.phases:
        args.serve = [*args.serve, "--profile", "phases"]
    for run in args.run:
        model, clients = run.split(":")
        clients = [int(c) for c in clients.split(",")]
        log = "/tmp/serve-%s.log" % model
        command = serve_command(args, model, max(clients))
        server = Server(command, log)
        ready = server.wait_ready()
        if ready is None:
            rows.append((model, "-", "did not start: " + pathlib.Path(log).read_text()[-1500:]))
            server.stop()
            continue
        pid = server.process.pid
        config = json.loads((pathlib.Path(args.models) / model / "config.json").read_text())
        if config.get("model_type") == "whisper":
            run_whisper(model, clients, args.seconds, ready, rows, raw, args.words)
            after_rows(args, run, server, command, rows, raw)
            continue
        first = load(args.mstar, 1, 1, 0, args.output, pid, "/tmp/first.json", 1)
        rate = None
        for c in clients:
            probe = load(args.mstar, c, max(c, 2), 0, args.output, pid, "/tmp/probe.json", 10000 + c)
            rate = max(probe["output_tokens_per_s"], 1e-9)
            requests = max(2 * c, int(args.seconds * rate / tokens_of(args.output)))
            before = counters()
            result = load(args.mstar, c, requests, c, args.output, pid, "/tmp/row.json", 100 + c)
            after = counters()
            delta = {name: after[name] - before.get(name, 0) for name in after}
            raw["%s c=%d" % (model, c)] = {"bench": result, "counters": delta, "ready_s": ready, "first": first}
            steps = max(delta.get("mstar_steps_total", 1), 1)
            floor = gpu_report.floor_ms(config, c, 640 + tokens_of(args.output) / 2) / num_ranks(args)
            rows.append((model, str(c), "%.0f tok/s  TTFT p50 %.1f ms  ITL p50 %.3f p99 %.3f ms  steps %d eager %d piecewise %d alloc %d syncs %d ahead %d  ready %.2f s first %.1f ms  floor %.2f ms a step: %.0f %%" % (
                result["output_tokens_per_s"], result["ttft_ms"]["p50"], result["itl_ms"]["p50"], result["itl_ms"]["p99"], steps,
                delta.get("mstar_eager_steps_total", -1), delta.get("mstar_piecewise_steps_total", -1), delta.get("mstar_step_allocations_total", -1), delta.get("mstar_host_syncs_total", -1),
                delta.get("mstar_rows_ahead_total", -1), ready, first["e2e_ms"]["p50"], floor,
                100 * floor * result["output_tokens_per_s"] / (1e3 * c))))
            print(*rows[-1], flush=True)
        after_rows(args, run, server, command, rows, raw)
    raw["table"] = ["  ".join(row) for row in rows]
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(raw, indent=1))
    print("\nmodel  clients  result")
    for row in rows:
        print("  ".join(row))
    # What was not warm, or did not run at all, is no measurement.
    faults = ("mstar_eager_steps_total", "mstar_step_allocations_total") + (() if args.words else ("mstar_piecewise_steps_total",))
    cold = ["%s: %s" % (name, ", ".join("%s %d" % (fault, row["counters"].get(fault, 0)) for fault in faults))
            for name, row in raw.items() if isinstance(row, dict) and any(row.get("counters", {}).get(fault) for fault in faults)]
    failed = [model for model, clients, _ in rows if clients == "-"]
    if "cpu" not in args.serve and cold:
        sys.exit("not valid: " + "; ".join(cold))
    if failed:
        sys.exit("did not run: " + ", ".join(failed))


if __name__ == "__main__":
    main()
