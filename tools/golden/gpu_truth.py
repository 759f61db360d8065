#!/usr/bin/env python3
"""A language model of random seeded weights at real size: mstar's log-probabilities and greedy tokens against transformers'.

    gpu_truth.py --mstar ./mstar --config bench/models/qwen3-0.6b/config.json [--device cuda] [--prompts 4] [--length 96] [--every 8]
                 [--greedy 48] [-- SERVE FLAGS]

Makes the model with transformers (bfloat16), saves it, and asks its float32 copy for the logits at every position of seeded prompts; its
own bfloat16 logits are the yardstick. mstar serves the same files: its 20 likeliest next tokens at every --every'th position, and its
greedy continuation. Prints the error of log-probabilities (mean, largest) of both bfloat16 runs against float32, and where the first
greedy token differs with float32's margin there. Exit 1 when mstar's mean error is over 1.5 times transformers' own, or a greedy token
differs at a margin over --margin.
"""
import argparse
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from gpu_tokenizer import ids_of, write_tokenizer

PORT = 8125


def post(path, body):
    request = urllib.request.Request("http://127.0.0.1:%d%s" % (PORT, path), json.dumps({"model": "seeded", **body}).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        sys.exit("%s: %s" % (error, error.read().decode()[:500]))


def make_model(config_file, directory, device):
    text = json.loads(config_file.read_text())
    kind = text.pop("model_type")
    config = AutoConfig.for_model(kind, **text)
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    torch.set_default_dtype(torch.float32)
    with torch.no_grad():  # gains and decays that are all alike would hide faults
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.eval().save_pretrained(directory)
    whole = json.loads((directory / "config.json").read_text())
    whole["tie_word_embeddings"] = text.get("tie_word_embeddings", False)
    (directory / "config.json").write_text(json.dumps(whole))
    write_tokenizer(directory, config.vocab_size)
    return model


@torch.no_grad()
def oracle(model, prompts, num_greedy):
    """Log-probabilities [prompt][position][vocab] of prompt and continuation, and the greedy continuations."""
    wholes, logs = [], []
    for prompt in prompts:
        ids = list(prompt)
        answer = model(torch.tensor([ids], device=model.device), use_cache=True)
        last = [answer.logits[0].float()]
        for _ in range(num_greedy - 1):
            ids.append(int(last[-1][-1].argmax()))
            answer = model(torch.tensor([[ids[-1]]], device=model.device), past_key_values=answer.past_key_values, use_cache=True)
            last.append(answer.logits[0].float())
        ids.append(int(last[-1][-1].argmax()))
        wholes.append(ids)
        logs.append(torch.log_softmax(torch.cat(last), -1).cpu())
    return wholes, logs


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mstar", default="./mstar")
    parser.add_argument("--config", type=pathlib.Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--length", type=int, default=96)
    parser.add_argument("--every", type=int, default=8, help="0: greedy tokens only")
    parser.add_argument("--greedy", type=int, default=48)
    parser.add_argument("--margin", type=float, default=0.05)
    parser.add_argument("serve", nargs="*")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    directory = pathlib.Path(tempfile.mkdtemp()) / "seeded"
    directory.mkdir()
    begun = time.time()
    model = make_model(args.config, directory, args.device)
    vocab = model.config.vocab_size
    generator = torch.Generator().manual_seed(7)
    prompts = [torch.randint(1000, min(vocab, 100000), (args.length + 7 * i,), generator=generator).tolist() for i in range(args.prompts)]
    _, halves = oracle_fixed(model, prompts)
    model = model.float()
    wholes, exact = oracle(model, prompts, args.greedy)
    print("oracle %.0f s" % (time.time() - begun), flush=True)
    own = torch.cat([(h - e[: h.shape[0]]).gather(1, e[: h.shape[0]].topk(20).indices).abs() for h, e in zip(halves, exact)])
    del model
    torch.cuda.empty_cache() if args.device == "cuda" else None
    server = subprocess.Popen([args.mstar, "serve", str(directory), "--port", str(PORT), *args.serve], stdout=subprocess.DEVNULL)
    try:
        for _ in range(2400):
            try:
                urllib.request.urlopen("http://127.0.0.1:%d/ready" % PORT, timeout=5)
                break
            except OSError:
                if server.poll() is not None:
                    sys.exit("the server did not start")
                time.sleep(0.05)
        failed = compare(args, prompts, wholes, exact, own)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)
    sys.exit(1 if failed else 0)


@torch.no_grad()
def oracle_fixed(model, prompts):
    return None, [torch.log_softmax(model(torch.tensor([p], device=model.device)).logits[0].float(), -1).cpu() for p in prompts]


def compare(args, prompts, wholes, exact, own):
    failed = False
    errors, same, num = [], 0, 0
    for prompt, whole, logs in zip(prompts, wholes, exact):
        for end in range(args.every, len(whole), args.every) if args.every else ():
            answer = post("/v1/completions", {"prompt": whole[:end], "max_tokens": 1, "temperature": 0, "logprobs": 20, "ignore_eos": True})
            top = answer["choices"][0]["logprobs"]["top_logprobs"][0]
            for piece, value in top.items():
                for token in ids_of(piece):
                    errors.append(abs(value - float(logs[end - 1][token])))
            ours = max(top, key=top.get)
            same += ids_of(ours) == [int(logs[end - 1].argmax())]
            num += 1
    if errors:
        mean, own_mean = sum(errors) / len(errors), float(own.mean())
        print("log-probabilities against float32: mstar mean %.5f largest %.4f; transformers bf16 mean %.5f largest %.4f; likeliest the same %d of %d" % (
            mean, max(errors), own_mean, float(own.max()), same, num))
        failed |= mean > 1.5 * own_mean + 1e-4
    for i, (prompt, whole, logs) in enumerate(zip(prompts, wholes, exact)):
        answer = post("/v1/completions", {"prompt": prompt, "max_tokens": args.greedy, "temperature": 0, "ignore_eos": True})
        ours, theirs = ids_of(answer["choices"][0]["text"]), whole[len(prompt):]
        first = next((k for k, (a, b) in enumerate(zip(ours, theirs)) if a != b), None)
        if len(ours) != len(theirs):
            print("prompt %d: %d tokens, not %d" % (i, len(ours), len(theirs)))
            failed = True
        if first is None:
            print("prompt %d: all %d greedy tokens equal" % (i, len(theirs)))
            continue
        at = logs[len(prompt) - 1 + first]
        margin = float(at[theirs[first]] - at[ours[first]])
        print("prompt %d: equal up to token %d of %d, float32's margin there %.4f" % (i, first, len(theirs), margin))
        failed |= margin > args.margin
    return failed


if __name__ == "__main__":
    main()
