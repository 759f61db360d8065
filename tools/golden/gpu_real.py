#!/usr/bin/env python3
"""Whether real weights give the CPU's text on a GPU: greedy answers of a language model, transcripts of a Whisper model.

    gpu_real.py --mstar ./mstar [--text SmolLM2-135M-Instruct.Q4_1.gguf] [--whisper whisper-tiny.en --clips DIRECTORY] [--tokens 64]

Each is run with --device cpu and with --device cuda, with --weights f32 and as stored. Exit 1 unless all are the CPU's with --weights f32; how far
the others agree is told (the CPU multiplies in int8 then, a GPU in bf16: they may part at a near-tie).
"""
import argparse
import pathlib
import re
import subprocess
import sys

PROMPTS = [
    "Once upon a time there was a lighthouse keeper who",
    "The capital of France is",
    "The sky is blue because",
    "Three fruits and their colours are",
    "def fibonacci(n):",
    "A library is a place where people",
    "The longest river in Africa flows through",
    "To bake bread one needs",
]


def output(command):
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if ran.returncode:
        sys.exit("%s\n%s" % (" ".join(command), ran.stderr[-2000:]))
    return ran.stdout


def answers(args, *flags):
    return [output([args.mstar, "run", args.text, "--text", prompt, "--param", "max_tokens=%d" % args.tokens, "--param", "temperature=0", "--param", "ignore_eos=true", *flags]).strip() for prompt in PROMPTS]


def transcripts(args, *flags):
    clips = sorted(str(each) for each in pathlib.Path(args.clips).glob("*.wav"))
    return [re.sub(r"\s+", " ", output([args.mstar, "transcribe", "--model", args.whisper, clip, *flags])).strip() for clip in clips]


def compared(name, on_cpu, on_gpu, must):
    same = sum(a == b for a, b in zip(on_cpu, on_gpu))
    shared = sum(len(a) if a == b else next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b))) for a, b in zip(on_cpu, on_gpu))
    wrong = must and (not on_cpu or same < len(on_cpu))
    print("%-44s %d of %d texts are the CPU's, %d of %d characters before the first difference%s" % (
        name, same, len(on_cpu), shared, sum(map(len, on_cpu)), "   WRONG" if wrong else ""), flush=True)
    return wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mstar", default="./mstar")
    parser.add_argument("--text")
    parser.add_argument("--whisper")
    parser.add_argument("--clips")
    parser.add_argument("--tokens", type=int, default=64)
    args = parser.parse_args()
    if not (args.text or args.whisper) or (args.whisper and not args.clips):
        parser.error("give --text, or --whisper with --clips")
    wrong = False
    for name, model, run in (("answers", args.text, answers), ("transcripts", args.whisper, transcripts)):
        if not model:
            continue
        for title, flags, must in (("f32", ["--weights", "f32"], True), ("as stored", [], False)):
            wrong |= compared("%s, %s" % (name, title), run(args, "--device", "cpu", *flags), run(args, "--device", "cuda", *flags), must)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
