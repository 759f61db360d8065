#!/usr/bin/env python3
"""Hugging Face transformers with random weights at real size, as the peer of gpu_bench.py's rows; the table comes last.

    transformers_peer.py --config models/qwen3.5-0.8b/config.json [--batch 1,32] [--input 640] [--output 256] [--steps 32] [--json FILE]

Language models: prompts of --input ids together as one batch, then greedy decoding in a plain loop without a look at the tokens, which is
less work than model.generate does. Each of --ways is tried for a few steps (dynamic: the cache that models make by default; static:
StaticCache; compiled: static under torch.compile, which takes minutes) and the fastest one measured: the prefill, and the mean of --steps
decode steps right behind it. "tok/s" is extrapolated from these two to --output tokens, as if every later step took as long as these.
Whisper: mel windows of 30 s of noise, 25 tokens after a prompt of four, measured whole. In bfloat16. No network; no weights are read.
"""
import argparse
import json
import os
import pathlib
import statistics
import sys
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers

WHISPER_TOKENS = 25


def synchronize(device):
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def timed(device, call):
    """What the call gives, and its seconds with the device's work."""
    synchronize(device)
    begin = time.perf_counter()
    out = call()
    synchronize(device)
    return out, time.perf_counter() - begin


def make_model(config_file, device):
    wanted = json.loads(config_file.read_text())
    kind = wanted.pop("model_type")
    torch.manual_seed(1)
    if kind == "whisper":
        for name in ("suppress_tokens", "begin_suppress_tokens", "architectures"):
            wanted.pop(name, None)
        make, config = transformers.WhisperForConditionalGeneration, transformers.WhisperConfig(**wanted)
    else:
        make, config = transformers.AutoModelForCausalLM.from_config, transformers.AutoConfig.for_model(kind, **wanted)
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            model = make(config)
    finally:
        torch.set_default_dtype(torch.float32)
    return kind, model.to(torch.bfloat16).eval()


# ---- language models


class Decoding:
    """One batch in one way; a fresh cache each time."""

    def __init__(self, model, way, ids, most_tokens):
        self.model, self.ids = model, ids
        self.step_model = torch.compile(model, mode="reduce-overhead", dynamic=False) if way == "compiled" else model
        self.cache = None
        if way != "dynamic":
            self.cache = transformers.StaticCache(config=model.config, max_cache_len=most_tokens)
        self.position = ids.shape[1]

    def prefill(self):
        extra = {"past_key_values": self.cache} if self.cache is not None else {}
        answer = self.model(self.ids, use_cache=True, logits_to_keep=1, **extra)
        self.cache = answer.past_key_values
        self.last = answer.logits[:, -1].argmax(-1, keepdim=True)

    def steps(self, count):
        for _ in range(count):
            where = torch.full((self.ids.shape[0], 1), self.position, device=self.ids.device)
            answer = self.step_model(self.last, past_key_values=self.cache, position_ids=where, use_cache=True, logits_to_keep=1)
            self.cache = answer.past_key_values
            self.last = answer.logits[:, -1].argmax(-1, keepdim=True)
            self.position += 1


@torch.no_grad()
def try_way(model, way, ids, args):
    """Seconds of a prefill and of a step, or why it cannot be."""
    try:
        for measured in (False, True):  # the first time kernels are loaded
            decoding = Decoding(model, way, ids, args.input + args.output)
            _, prefill_s = timed(args.device, decoding.prefill)
            _, warm_s = timed(args.device, lambda: decoding.steps(args.warm_steps))
        count = max(4, min(args.steps, int(args.limit_s * args.warm_steps / max(warm_s, 1e-9))))
        _, steps_s = timed(args.device, lambda: decoding.steps(count))
        return {"prefill_s": prefill_s, "step_s": steps_s / count, "steps": count}
    except Exception as fault:  # noqa: BLE001 - a way that this model does not go is no way
        return {"fault": "%s: %s" % (type(fault).__name__, str(fault).split("\n")[0][:160])}


def rows_of_text(model, args):
    rows = []
    for batch in args.batch:
        generator = torch.Generator().manual_seed(batch)
        low, high = 0, min(model.config.vocab_size, 100000)
        ids = torch.randint(low, high, (batch, args.input), generator=generator).to(args.device)
        tried = {way: try_way(model, way, ids, args) for way in args.ways}
        went = {way: found for way, found in tried.items() if "fault" not in found}
        if not went:
            rows.append({"batch": batch, "faults": tried})
            continue
        way = min(went, key=lambda each: went[each]["step_s"])
        best = went[way]
        whole_s = best["prefill_s"] + (args.output - 1) * best["step_s"]
        rows.append({"batch": batch, "way": way, "prefill_ms": 1e3 * best["prefill_s"], "step_ms": 1e3 * best["step_s"], "steps_measured": best["steps"],
                     "decode_tokens_per_s": batch / best["step_s"], "extrapolated_tokens_per_s": batch * args.output / whole_s, "ways": tried})
    return rows


def text_line(row, args):
    if "faults" in row:
        return "no way went: %s" % "; ".join("%s: %s" % (way, each["fault"]) for way, each in row["faults"].items())
    return "%.0f tok/s (extrapolated from %d steps to %d tokens)  prefill %.1f ms  step %.2f ms  %s cache" % (
        row["extrapolated_tokens_per_s"], row["steps_measured"], args.output, row["prefill_ms"], row["step_ms"], row["way"])


# ---- Whisper


@torch.no_grad()
def hear(model, features, prompt):
    encoded = model.model.encoder(features)
    cache, ids, out = None, prompt, []
    for _ in range(WHISPER_TOKENS):
        answer = model(encoder_outputs=encoded, decoder_input_ids=ids, past_key_values=cache, use_cache=True)
        cache = answer.past_key_values
        ids = answer.logits[:, -1].argmax(-1, keepdim=True)
        out.append(ids)
    return torch.cat(out, 1).cpu()


def rows_of_whisper(model, args):
    rows = []
    frames = 2 * model.config.max_source_positions
    start = model.config.decoder_start_token_id
    for batch in args.batch:
        features = torch.randn(batch, model.config.num_mel_bins, frames, generator=torch.Generator().manual_seed(batch)).to(args.device, torch.bfloat16)
        prompt = torch.tensor([[start, start, start, start]] * batch, device=args.device)
        hear(model, features, prompt)
        times = [timed(args.device, lambda: hear(model, features, prompt))[1] for _ in range(3)]
        with torch.no_grad():
            encoder = [timed(args.device, lambda: model.model.encoder(features))[1] for _ in range(3)]
        whole_s = statistics.median(times)
        rows.append({"batch": batch, "latency_ms": 1e3 * whole_s, "encoder_ms": 1e3 * statistics.median(encoder), "requests_per_s": batch / whole_s})
    return rows


def whisper_line(row):
    return "%.1f req/s  latency %.1f ms  encoder %.1f ms  (from mel windows, %d tokens, measured whole)" % (
        row["requests_per_s"], row["latency_ms"], row["encoder_ms"], WHISPER_TOKENS)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=pathlib.Path, required=True)
    parser.add_argument("--batch", default="1,32")
    parser.add_argument("--input", type=int, default=640)
    parser.add_argument("--output", type=int, default=256)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--warm-steps", type=int, default=4)
    parser.add_argument("--limit-s", type=float, default=10, help="of a row's measured steps: slow ones are fewer")
    parser.add_argument("--ways", default="dynamic,static")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json")
    args = parser.parse_args()
    args.batch = [int(each) for each in args.batch.split(",")]
    args.ways = args.ways.split(",")
    if unknown := [way for way in args.ways if way not in ("dynamic", "static", "compiled")]:
        sys.exit("--ways: dynamic, static or compiled, not " + unknown[0])
    kind, model = make_model(args.config, args.device)
    rows = rows_of_whisper(model, args) if kind == "whisper" else rows_of_text(model, args)
    for row in rows:
        row["line"] = whisper_line(row) if kind == "whisper" else text_line(row, args)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps({"config": str(args.config), "versions": versions, "rows": rows}, indent=1))
    print("transformers %(transformers)s, torch %(torch)s" % versions)
    for row in rows:
        print("batch %d: %s" % (row["batch"], row["line"]))


if __name__ == "__main__":
    main()
