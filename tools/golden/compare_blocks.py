#!/usr/bin/env python3
"""A GGUF file computed in its own blocks against the same file dequantised to float32: log-probabilities of next tokens.

    tools/golden/compare_blocks.py MSTAR FILE.gguf [--tokens 24]

Serves the file twice (--weights stored, --weights f32). Each prompt is continued greedily by the float32 server; at every position of
that text both are asked for their 20 likeliest next tokens. Prints, over the tokens that both name: the mean and the largest distance
of log-probabilities, and how often the likeliest token is the same, with the largest float32 margin where it is not. Needs no package.
"""
import argparse
import json
import pathlib
import sys
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests"))
from served import Served  # noqa: E402

PROMPTS = ["The capital of France is", "Once upon a time, there was", "def fibonacci(n):", "Water boils at", "1, 2, 3, 4,",
           "Dear Sir or Madam,", "The three primary colours are", "In 1969, the first"]


def post(server, path, body):
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def likeliest(server, ids):
    answer = post(server, "/v1/completions", {"model": "m", "prompt": ids, "max_tokens": 1, "temperature": 0, "logprobs": 20,
                                              "ignore_eos": True})
    top = answer["choices"][0]["logprobs"]["top_logprobs"][0]
    return dict(sorted(top.items(), key=lambda item: -item[1]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mstar")
    parser.add_argument("file")
    parser.add_argument("--tokens", type=int, default=24)
    arguments = parser.parse_args()
    servers = [Served(arguments.mstar, arguments.file, "--weights", kind, "--alias", "m") for kind in ("stored", "f32")]
    try:
        blocks, exact = servers
        distances, num, same, worst_margin = [], 0, 0, 0.0
        for prompt in PROMPTS:
            ids = post(exact, "/tokenize", {"model": "m", "prompt": prompt})["tokens"]
            text = post(exact, "/v1/completions", {"model": "m", "prompt": ids, "max_tokens": arguments.tokens, "temperature": 0,
                                                   "ignore_eos": True})["choices"][0]["text"]
            whole = ids + post(exact, "/tokenize", {"model": "m", "prompt": text})["tokens"]
            for end in range(len(ids), len(whole)):
                ours, theirs = (likeliest(server, whole[:end]) for server in (blocks, exact))
                distances += [abs(ours[token] - theirs[token]) for token in ours.keys() & theirs.keys()]
                values = list(theirs.values())
                num += 1
                if next(iter(ours)) == next(iter(theirs)):
                    same += 1
                else:
                    worst_margin = max(worst_margin, values[0] - values[1])
        print(f"log-probabilities: mean distance {sum(distances) / len(distances):.4f}, largest {max(distances):.4f}, "
              f"{len(distances)} compared; likeliest token the same {same} of {num} times; largest float32 margin "
              f"where it is not: {worst_margin:.4f}")
    finally:
        for server in servers:
            server.stop()


if __name__ == "__main__":
    main()
