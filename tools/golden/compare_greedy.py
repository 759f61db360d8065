#!/usr/bin/env python3
"""Holds a server's greedy answers against tests/golden/smollm2/greedy.json, up to the first near-tie of each.

    tools/golden/compare_greedy.py --url http://127.0.0.1:8000 [--golden FILE] [--near 0.5] [--together]

Each prompt goes to /v1/completions as token ids, temperature 0. Where an answer leaves the recorded text, the recorded token's lead
over the next one is looked up: under --near it is a near-tie, which two ways of rounding may decide in two ways, else a fault.
--together sends all prompts at once. Exit status 1 when there is a fault. Needs nothing but Python.
"""
import argparse
import concurrent.futures
import json
import pathlib
import urllib.request


def answer(url, model, run):
    body = {"model": model, "prompt": run["prompt_ids"], "max_tokens": 128, "temperature": 0}
    request = urllib.request.Request(url.rstrip("/") + "/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as reply:
        read = json.load(reply)
    return read["choices"][0]["text"], read["usage"], read["choices"][0]["finish_reason"]


def first_difference(a, b):
    for i, (x, y) in enumerate(zip(a, b)):
        if x != y:
            return i
    return min(len(a), len(b))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--golden", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parents[2] / "tests/golden/smollm2/greedy.json")
    parser.add_argument("--near", type=float, default=0.5, help="logits; a smaller lead is a near-tie")
    parser.add_argument("--together", action="store_true")
    arguments = parser.parse_args()
    golden = json.loads(arguments.golden.read_text())
    with urllib.request.urlopen(arguments.url.rstrip("/") + "/v1/models") as reply:
        model = json.load(reply)["data"][0]["id"]
    runs = golden["runs"]
    with concurrent.futures.ThreadPoolExecutor(len(runs) if arguments.together else 1) as pool:
        answers = list(pool.map(lambda run: answer(arguments.url, model, run), runs))
    same = ties = faults = compared = 0
    for number, (run, (text, usage, finish)) in enumerate(zip(runs, answers)):
        if text == run["text"] and usage["completion_tokens"] == len(run["tokens"]) and finish == run["finish"]:
            same += 1
            compared += len(run["tokens"])
            continue
        at = first_difference(text, run["text"])
        ends = run["ends"]  # characters of the text after each token
        token = next((i for i, end in enumerate(ends) if end > at), len(ends) - 1)
        margin = run["margins"][token]
        near = margin < arguments.near
        ties += near
        faults += not near
        compared += token
        print("%2d: token %3d of %d, lead %.3f (%s): %r instead of %r" % (
            number, token, len(run["tokens"]), margin, "near-tie" if near else "FAULT", text[at:at + 24],
            run["text"][at:at + 24]))
    print("%d of %d answers the same, %d end at a near-tie, %d faults; %d tokens agree" % (
        same, len(runs), ties, faults, compared))
    raise SystemExit(1 if faults else 0)


if __name__ == "__main__":
    main()
