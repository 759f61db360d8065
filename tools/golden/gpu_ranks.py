#!/usr/bin/env python3
"""One rank against several that work in step (tp_size), with the same random weights and greedy requests.

    gpu_ranks.py --mstar ./mstar --model bench/models/qwen3.5-0.8b [--ranks 2] [--devices 0,0] [--tokens 32] [-- SERVE KEYS as JSON]

Ranks on one device are for a trial of the sums on a machine with one GPU; on several the times say something too. Exit 1 unless answers are
alike up to a lead no larger than --tolerance, and the log-probabilities before it are within it.
"""
import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

from gpu_batch import apart
from gpu_tokenizer import write_tokenizer

PORT = 8128


def answers_already():
    try:
        with urllib.request.urlopen("http://127.0.0.1:%d/ready" % PORT, timeout=5):
            return True
    except OSError:
        return False


def serve(args, directory, keys):
    if answers_already():
        sys.exit("something else answers on port %d" % PORT)
    config = directory / "config.yaml"
    config.write_text(json.dumps(keys))
    with open("/tmp/gpu_ranks.log", "w") as log:
        process = subprocess.Popen([args.mstar, "serve", str(config), "--port", str(PORT)], stdout=log, stderr=log,
                                   env=dict(os.environ, CUDA_MODULE_LOADING="EAGER"))
    end = time.time() + 120
    while time.time() < end and process.poll() is None:
        try:
            with urllib.request.urlopen("http://127.0.0.1:%d/ready" % PORT, timeout=5):
                return process
        except OSError:
            time.sleep(0.1)
    process.kill()
    sys.exit("not ready:\n" + pathlib.Path("/tmp/gpu_ranks.log").read_text()[-2000:])


def ask(args, ids):
    body = {"model": "m", "prompt": ids, "max_tokens": args.tokens, "temperature": 0, "ignore_eos": True, "logprobs": 2}
    request = urllib.request.Request("http://127.0.0.1:%d/v1/completions" % PORT, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        choice = json.load(answer)["choices"][0]
    told = choice["logprobs"]
    leads = [max(of.values()) - min(of.values()) for of in told["top_logprobs"]]
    return choice["text"], told["token_logprobs"], list(zip(told["tokens"], leads))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mstar", default="./mstar")
    parser.add_argument("--model", required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--devices", default="0,0", help="of the ranks in turn")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--tolerance", type=float, default=0.12)
    parser.add_argument("keys", nargs="?", default="{}", help="more of the config, as JSON")
    args = parser.parse_args()
    devices = args.devices.split(",")
    chance = random.Random(7)
    prompts = [[chance.randrange(1000, 10000) for _ in range(length)] for length in (1, 5, 40, 130, 300, 640, 900)]
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        model = directory / "seeded"
        model.mkdir()
        shutil.copy(pathlib.Path(args.model) / "config.json", model)
        write_tokenizer(model, json.loads((model / "config.json").read_text())["vocab_size"])
        keys = {"model": str(model), "name": "m", "device": "cuda", "options": {"load_format": "dummy", "context_tokens": 2048}, "max_concurrent_requests": 8}
        keys.update(json.loads(args.keys))
        cut = dict(keys, rank_devices={str(r): "cuda:" + devices[r % len(devices)] for r in range(args.ranks)},
                   node_groups=[{"components": ["decoder"], "ranks": list(range(args.ranks)), "tp_size": args.ranks}])
        answers = []
        for config, ranks in ((keys, 1), (cut, args.ranks)):
            process = serve(args, directory, config)
            try:
                ask(args, prompts[1])
                begun = time.time()
                answers.append([ask(args, ids) for ids in prompts])
                print("%d rank(s): %d answers of %d tokens one by one in %.2f s" % (ranks, len(prompts), args.tokens, time.time() - begun))
                process.send_signal(signal.SIGINT)
                process.wait(30)
            finally:
                process.kill()
    worst, parted, bad = 0.0, [], 0
    for one, other in zip(*answers):
        difference, lead = apart(one, other)
        worst = max(worst, difference)
        parted += [lead] if lead else []
        bad += difference > args.tolerance or lead > args.tolerance
    print("ranks in step against one: log-probabilities within %.4g, %d of %d answers part, after leads of at most %.4g%s"
          % (worst, len(parted), len(prompts), max(parted, default=0), "   WRONG" if bad else ""))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
