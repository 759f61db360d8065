#!/usr/bin/env python3
"""Holds a server's greedy answers against tests/golden/smollm2/greedy.json.

    tools/golden/compare_greedy.py --url http://127.0.0.1:8000 [--golden FILE] [--near 0.5] [--together]

Each prompt goes to /v1/completions as token ids, temperature 0. Where an answer leaves the recorded one, the recorded token's lead
over the next one is looked up: under --near it is a near-tie, which two ways of rounding may decide in two ways, else a fault.
After a near-tie the server is asked again with the recorded tokens up to there, so that every recorded token is compared.
--together sends all prompts at once. Exit status 1 when there is a fault. Needs nothing but Python.
"""
import argparse
import concurrent.futures
import json
import pathlib
import urllib.request

MAX_TOKENS = 128


def answer(url, model, run, done):
    """What follows the prompt and the first `done` recorded tokens: its text, the characters of it after each token, the finish."""
    body = {"model": model, "prompt": run["prompt_ids"] + run["tokens"][:done], "max_tokens": MAX_TOKENS - done, "temperature": 0,
            "logprobs": 0}
    request = urllib.request.Request(url.rstrip("/") + "/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as reply:
        choice = json.load(reply)["choices"][0]
    starts = choice["logprobs"]["text_offset"]
    ends = [start - starts[0] for start in starts[1:]] + [len(choice["text"])]
    return choice["text"], ends, choice["finish_reason"]


def differing_token(text, ends, finish, run, done):
    """The place of the first recorded token that is not the answer's; None: all are. Two tokens may begin alike, so tokens are
    compared and not characters."""
    begin = run["ends"][done - 1] if done else 0
    recorded = run["text"][begin:]
    num_left = len(run["tokens"]) - done
    for i, end in enumerate(run["ends"][done:]):
        is_end = run["finish"] == "stop" and i == num_left - 1
        if is_end and finish == "stop" and text == recorded:
            return None
        if is_end or i >= len(ends) or text[:ends[i]] != recorded[:end - begin]:
            return done + i
    return None


def compare(url, model, run, near):
    """(near-ties as (token, lead), faults as text). Ends at the first fault."""
    ties, done = [], 0
    while done < len(run["tokens"]):
        text, ends, finish = answer(url, model, run, done)
        token = differing_token(text, ends, finish, run, done)
        if token is None:
            break
        lead = run["margins"][token]
        if lead >= near:
            begin = run["ends"][token - 1] if token else 0
            at = begin - (run["ends"][done - 1] if done else 0)
            return ties, ["token %d of %d, lead %.3f: %r instead of %r" % (token, len(run["tokens"]), lead, text[at:at + 24],
                                                                           run["text"][begin:begin + 24])]
        ties.append((token, lead))
        done = token + 1
    return ties, []


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--golden", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parents[2] / "tests/golden/smollm2/greedy.json")
    parser.add_argument("--near", type=float, default=0.5, help="logits; a smaller lead is a near-tie")
    parser.add_argument("--together", action="store_true")
    arguments = parser.parse_args()
    runs = json.loads(arguments.golden.read_text())["runs"]
    with urllib.request.urlopen(arguments.url.rstrip("/") + "/v1/models") as reply:
        model = json.load(reply)["data"][0]["id"]
    with concurrent.futures.ThreadPoolExecutor(len(runs) if arguments.together else 1) as pool:
        found = list(pool.map(lambda run: compare(arguments.url, model, run, arguments.near), runs))
    leads = sorted(lead for ties, _ in found for _, lead in ties)
    for number, (ties, faults) in enumerate(found):
        first = "first near-tie at token %d, lead %.3f" % ties[0] if ties else "no near-tie"
        print("%2d: %3d tokens, %2d near-ties, %s%s" % (number, len(runs[number]["tokens"]), len(ties), first,
                                                        "".join("; FAULT " + fault for fault in faults)))
    num_faults = sum(len(faults) for _, faults in found)
    print("%d tokens, %d near-ties with leads up to %.3f, %d faults" % (
        sum(len(run["tokens"]) for run in runs), len(leads), leads[-1] if leads else 0, num_faults))
    raise SystemExit(1 if num_faults else 0)


if __name__ == "__main__":
    main()
