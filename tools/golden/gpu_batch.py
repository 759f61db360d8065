#!/usr/bin/env python3
"""Whether answers depend on what else runs: the same seeded prompts one by one, all at once, and all at once after another start.

    gpu_batch.py --mstar ./mstar --model bench/models/qwen3.5-0.8b [--requests 32] [--tokens 48] [-- SERVE FLAGS]

Random weights at the size of config.json (--load-format dummy), served as they are and with --batch-invariant. Greedy answers of --tokens
tokens to prompts of 60 to 700 ids, with the log-probabilities of the two likeliest tokens at each place. Exit 1 unless with --batch-invariant
all three give the same tokens and the same log-probabilities to the last digit that is sent, and without it one request at a time gives the
same after another start, and all at once what one by one gives within --tolerance: log-probabilities up to where two answers part, and there
a lead that is no larger. Rows that tell log-probabilities are drawn another way than others: with --batch-invariant answers without them must
be the same texts.
"""
import argparse
import concurrent.futures
import contextlib
import json
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

from gpu_tokenizer import write_tokenizer

PORT = 8127


@contextlib.contextmanager
def serve(args, *flags):
    command = [args.mstar, "serve", args.model, "--load-format", "dummy", "--port", str(PORT), "--max-requests", str(args.requests), *flags, *args.serve]
    with open("/tmp/gpu_batch.log", "w") as log:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)
    try:
        wait_ready(process)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def wait_ready(process):
    for _ in range(6000):
        if process.poll() is not None:
            sys.exit("the server did not start:\n" + open("/tmp/gpu_batch.log").read()[-2000:])
        try:
            urllib.request.urlopen("http://127.0.0.1:%d/ready" % PORT, timeout=5)
            return
        except OSError:
            time.sleep(0.02)
    sys.exit("the server was not ready in time")


def ask(args, prompt, plain=False):
    body = {"model": args.model.rstrip("/").rsplit("/", 1)[-1], "prompt": prompt, "max_tokens": args.tokens, "temperature": 0, "ignore_eos": True}
    if not plain:
        body["logprobs"] = 2
    request = urllib.request.Request("http://127.0.0.1:%d/v1/completions" % PORT, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        choice = json.load(answer)["choices"][0]
    if plain:
        return choice["text"], [], []
    told = choice["logprobs"]
    leads = [max(of.values()) - min(of.values()) for of in told["top_logprobs"]]
    return choice["text"], told["token_logprobs"], list(zip(told["tokens"], leads))


def one_by_one(args, prompts):
    return [ask(args, each) for each in prompts]


def at_once(args, prompts, plain=False):
    with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(lambda each: ask(args, each, plain), prompts))


def agree(a, b):
    same = sum(x == y for x, y in zip(a, b))
    texts = sum(x[0] == y[0] for x, y in zip(a, b))
    worst = max((abs(p - q) for x, y in zip(a, b) if x[0] == y[0] for p, q in zip(x[1], y[1])), default=float("nan"))
    return same, "%d of %d the same bits, %d the same text, log-probabilities of those within %.3g" % (same, len(a), texts, worst)


def apart(one, other):
    """(largest difference of the log-probabilities of tokens up to where two answers part, the first's lead there or 0)."""
    worst = 0.0
    for p, q, (token, lead), (other_token, _) in zip(one[1], other[1], one[2], other[2]):
        if token != other_token:
            return worst, lead
        worst = max(worst, abs(p - q))
    return worst, 0.0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mstar", default="./mstar")
    parser.add_argument("--model", required=True)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--tolerance", type=float, default=0.12, help="twice what bfloat16 is off float32 at most (gpu_truth.py)")
    parser.add_argument("serve", nargs="*")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        model = pathlib.Path(directory) / "seeded"
        model.mkdir()
        shutil.copy(pathlib.Path(args.model) / "config.json", model)
        write_tokenizer(model, json.loads((model / "config.json").read_text())["vocab_size"])
        args.model = str(model)
        return compare(args)


def compare(args):
    chance = random.Random(5)
    prompts = [[chance.randrange(1000, 10000) for _ in range(chance.randrange(60, 700))] for _ in range(args.requests)]
    bad, lines = 0, []

    def told(name, a, b, must):
        nonlocal bad
        same, text = agree(a, b)
        wrong = must and same != len(a)
        bad += wrong
        lines.append("%-64s %s%s" % (name, text, "   WRONG" if wrong else ""))

    for flags in ([], ["--batch-invariant"]):
        must, name = bool(flags), " ".join(flags) or "as it is"
        with serve(args, *flags):
            alone = one_by_one(args, prompts)
            together = at_once(args, prompts)
            plain = at_once(args, prompts, plain=True)
        with serve(args, *flags):
            alone_again = one_by_one(args, prompts[:4])  # first: a prefix cache has nothing yet
            again = at_once(args, prompts)
        told(name + ": one by one, all at once", alone, together, must)
        told(name + ": all at once, and after another start", together, again, must)
        told(name + ": with log-probabilities, and without", [(text, [], []) for text, *_ in together], plain, must)
        if not must:
            worst, lead = (max(each) for each in zip(*map(apart, alone, together)))
            far = max(worst, lead) > args.tolerance
            bad += far
            lines.append("%-64s within %.3g up to where they part, at leads of %.3g or less; allowed %.3g%s" % (
                name + ": one by one, all at once", worst, lead, args.tolerance, "   WRONG" if far else ""))
            told(name + ": one by one, and after another start", alone[:4], alone_again, True)
    print("\n".join(lines))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
