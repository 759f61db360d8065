#!/usr/bin/env python3
"""Routing of requests among replicas, side by side: random, least_loaded and prefix, each on a server of its own with the same seeded requests.

    routing_ab.py MSTAR MODEL [--ranks 2] [--device cpu] [--requests 128] [--concurrency 32 64] [--long-concurrency 2 4] [--seed 0]

Two loads: "chat", replies of 16-512 tokens to prompts of --chats conversations that grow with each turn (prefixes are found again), at each
--concurrency; and "long", replies of 512 tokens to prompts that share nothing, few at a time (--long-concurrency), where one wrong choice leaves a rank
idle; with timed null models (--options '{"step_costs": "bench/costs/long_job.json", "max_rows": 1}' --component null) such a request is a long job of
many steps of one row. --simulate bench/simulate puts beside each row what the simulator says of the same deployment and load, with its own draws.
Printed for each: tokens a second, the mean and 95 % of the time to an answer's end, prompt tokens that caches held, and how the requests'
tokens were shared among the ranks. Only http is spoken; replies come whole.
"""
import argparse
import concurrent.futures
import http.client
import json
import pathlib
import random
import re
import signal
import statistics
import subprocess
import tempfile
import threading
import time

ROUTINGS = ("random", "least_loaded", "prefix")


class Server:
    def __init__(self, args, routing):
        self.directory = tempfile.TemporaryDirectory()
        config = pathlib.Path(self.directory.name) / "config.yaml"
        keys = {"model": str(pathlib.Path(args.model).resolve()) if pathlib.Path(args.model).exists() else args.model, "name": "m",
                "device": args.device, "routing": routing, "max_concurrent_requests": max(args.concurrency + args.long_concurrency),
                "node_groups": [{"components": [args.component], "ranks": list(range(args.ranks))}], "options": json.loads(args.options)}
        config.write_text(json.dumps(keys))  # JSON is YAML
        self.process = subprocess.Popen([args.mstar, "serve", str(config), "--port", "0"], stderr=subprocess.PIPE, text=True)
        self.port = None
        for line in self.process.stderr:
            if found := re.match(r"ready on http://127\.0\.0\.1:(\d+)", line):
                self.port = int(found.group(1))
                break
        if self.port is None:
            raise SystemExit("the server ended before it was ready")
        threading.Thread(target=lambda: [None for _ in self.process.stderr], daemon=True).start()

    def ask(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=3600)
        try:
            connection.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            data = answer.read().decode()
        finally:
            connection.close()
        if answer.status != 200:
            raise SystemExit(f"{path}: {answer.status} {data}")
        return data

    def rank_tokens(self, ranks):
        """Tokens that each rank's components computed, as rows of their steps."""
        text = self.ask("GET", "/metrics")
        found = re.findall(r'^mstar_step_rows_total\{worker="(\d+)".*\} (\d+)', text, re.M)
        return [sum(int(count) for worker, count in found if int(worker) == rank + 1) for rank in range(ranks)]

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def chat_load(args, seed):
    """(prompt, tokens to answer with): turns of conversations, in the order in which they are sent."""
    draw = random.Random(seed)
    chats = [[draw.randrange(2, args.vocab) for _ in range(draw.randrange(64, 257))] for _ in range(args.chats)]
    out = []
    for _ in range(args.requests):
        chat = draw.choice(chats)
        if len(chat) > args.longest_prompt:
            del chat[64:]
        chat.extend(draw.randrange(2, args.vocab) for _ in range(draw.randrange(8, 65)))
        out.append((list(chat), draw.randrange(args.reply[0], args.reply[1] + 1)))
    return out


def num_long(args):
    return max(8, args.requests // 8)


def long_load(args, seed):
    draw = random.Random(seed)
    return [([draw.randrange(2, args.vocab) for _ in range(64)], args.reply[1]) for _ in range(num_long(args))]


def run(server, load, concurrency, ranks):
    def one(request):
        prompt, tokens = request
        begun = time.monotonic()
        answer = json.loads(server.ask("POST", "/v1/completions", {"model": "m", "prompt": prompt, "max_tokens": tokens, "temperature": 0,
                                                                    "ignore_eos": True}))
        usage = answer["usage"]
        return time.monotonic() - begun, usage["completion_tokens"], usage["prompt_tokens"], usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)

    before = server.rank_tokens(ranks)
    begun = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(concurrency) as pool:
        results = list(pool.map(one, load))
    elapsed = time.monotonic() - begun
    shares = [b - a for a, b in zip(before, server.rank_tokens(ranks))]
    times = sorted(each[0] for each in results)
    return {"tokens_per_s": sum(each[1] for each in results) / elapsed, "mean_s": statistics.mean(times),
            "p95_s": times[min(len(times) - 1, int(0.95 * len(times)))], "cached": sum(each[3] for each in results) / sum(each[2] for each in results),
            "shares": [round(100 * each / max(1, sum(shares))) for each in shares]}


def simulated(args, name, concurrency, routing):
    """Tokens a second and mean seconds, means over ten seeds."""
    options = json.loads(args.options)
    command = [args.simulate, options["step_costs"], "--replicas", str(args.ranks), "--routing", routing, "--clients", str(concurrency), "--seeds", "10"]
    if "max_rows" in options:
        command += ["--max-rows", str(options["max_rows"])]
    if name == "chat":
        command += ["--requests", str(args.requests), "--chats", str(args.chats), "--prompt", "64", str(args.longest_prompt), "--reply", *map(str, args.reply)]
    else:
        command += ["--requests", str(num_long(args)), "--prompt", "64", "64", "--reply", str(args.reply[1]), str(args.reply[1])]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    row = dict(zip(lines[0].split(), lines[1].split()))
    return f"  | simulated: {float(row['tokens/s']):.0f} tokens/s, mean {row['mean_s']} s, p95 {row['p95_s']} s, cached {row['cached%']}%"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mstar")
    parser.add_argument("model")
    parser.add_argument("--component", default="decoder")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--options", default="{}", help="of the model, as JSON")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--chats", type=int, default=24)
    parser.add_argument("--longest-prompt", type=int, default=1024)
    parser.add_argument("--reply", type=int, nargs=2, default=[16, 512])
    parser.add_argument("--vocab", type=int, default=250, help="ids of prompts are below it")
    parser.add_argument("--concurrency", type=int, nargs="*", default=[32, 64])
    parser.add_argument("--long-concurrency", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--routing", nargs="*", default=ROUTINGS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--simulate", help="bench/simulate, for models with the option step_costs")
    args = parser.parse_args()
    loads = [("chat", c, chat_load) for c in args.concurrency] + [("long", c, long_load) for c in args.long_concurrency]
    print(f"{'load':5} {'clients':>7} {'routing':13} {'tokens/s':>9} {'mean s':>8} {'p95 s':>8} {'cached':>7}  share of each rank, %")
    for name, concurrency, make in loads:
        for routing in args.routing:
            server = Server(args, routing)  # a fresh one: its caches are empty
            result = run(server, make(args, args.seed), concurrency, args.ranks)
            server.stop()
            print(f"{name:5} {concurrency:7} {routing:13} {result['tokens_per_s']:9.0f} {result['mean_s']:8.3f} {result['p95_s']:8.3f} "
                  f"{100 * result['cached']:6.1f}%  {' / '.join(map(str, result['shares']))}"
                  + (simulated(args, name, concurrency, routing) if args.simulate else ""), flush=True)


if __name__ == "__main__":
    main()
