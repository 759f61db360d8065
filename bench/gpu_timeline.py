#!/usr/bin/env python3
"""Where the device's time goes while a model serves: a timeline of every kernel (bench/kernel_trace.cc), cut into steps.

    gpu_timeline.py --mstar ./mstar --model models/whisper-large-v3 --trace ./libkernel_trace.so [--clients 32] [-- SERVE FLAGS]
    gpu_timeline.py --read FILE --model ...         (a trace that is there already)

Serves the model with random weights, sends requests one after the other and then from --clients at once, and prints for the commonest steps each kernel's
number, time and the gap in front of it: of a language model those of answers at 1 and at most rows and those with prompts; of Whisper the encoder's and the
decoder's at 1 and at most rows, and one request's phases with the time in which the device did nothing.
Kernels are told apart a little slower than they run alone: about 1 us each is the tracer's.
"""
import argparse
import collections
import json
import os
import pathlib
import re
import statistics
import sys

import gpu_bench
import gpu_report


def read(path):
    """(begin us, end us, what, name) in order of time."""
    out = []
    for line in open(path, errors="replace"):
        fields = line.rstrip("\n").split(" ", 3)
        if len(fields) < 4 or fields[0] not in ("kernel", "copy", "fill") or not (fields[1] + fields[2]).isdigit():
            continue  # cut off where the server ended, or where two threads wrote at once
        kind, begin, end, rest = fields
        if kind == "kernel":
            if rest.count(" ") < 2:
                continue
            blocks, threads, name = rest.split(" ", 2)
            out.append((int(begin) / 1e3, int(end) / 1e3, kind, short(name) + " [%s x %s]" % (blocks, threads)))
        else:
            out.append((int(begin) / 1e3, int(end) / 1e3, kind, "%s %s" % (kind, rest)))
    out.sort()
    return out


def short(name):
    for noise in ("mstar::", "(anonymous namespace)::", "<unnamed>::", "void ", "cuda::"):
        name = name.replace(noise, "")
    name = re.sub(r"\(.*", "", name)
    return re.sub(r"\s+", " ", name)[:76]




def steps_of(events):
    """[kind, events]: kernels up to the next beginning. A cross step begins with the product in front of its first store, so it is found backwards."""
    steps = []
    for event in events:
        name = event[3].lower()
        kind = None
        if event[2] == "kernel":
            if "embed" in name:
                kind = "decoder"
            elif any(word in name for word in ("gather", "im2col", "unfold")) and (not steps or steps[-1][0] != "encoder" or len(steps[-1][1]) > 60):
                kind = "encoder"
        if kind:
            steps.append((kind, [event]))
        elif steps:
            steps[-1][1].append(event)
    return steps


def is_kernel(event):
    return event[2] == "kernel"


def busy(events):
    total, until = 0.0, -1.0
    for begin, end, *_ in events:
        if end > until:
            total += end - max(begin, until)
            until = end
    return total


def table(title, steps, top=22):
    """Mean of several steps of one kind."""
    if not steps:
        print("== %s: none" % title)
        return
    span = statistics.median(s[-1][1] - s[0][0] for s in steps)
    work = statistics.median(busy(s) for s in steps)
    print("== %s: %d steps, median span %.0f us, device busy %.0f us, %.0f kernels" % (
        title, len(steps), span, work, statistics.median(sum(map(is_kernel, s)) for s in steps)))
    # Kernels come up while the one before them still runs, so the time from begin to end counts their waiting. What a kernel costs is how much later
    # the device has ended with it than with all before it: the gap in front and what it adds itself.
    spent, gaps, adds, count = collections.Counter(), collections.Counter(), collections.Counter(), collections.Counter()
    for step in steps:
        until = step[0][0]
        for begin, end, _, name in step:
            spent[name] += end - begin
            gaps[name] += max(0.0, begin - until)
            adds[name] += max(0.0, end - max(begin, until))
            count[name] += 1
            until = max(until, end)
    n = len(steps)
    for name, value in sorted(adds.items(), key=lambda kv: -(kv[1] + gaps[kv[0]]))[:top]:
        print("%9.1f us + gaps %8.1f  %6.1f x (adds %6.2f + gap %5.2f, begin to end %6.2f)  %s" % (
            value / n, gaps[name] / n, count[name] / n, value / count[name], gaps[name] / count[name], spent[name] / count[name], name))


# The parts that a step of a language model is told by, each with the kernels that it is made of. Others are small ones.
PARTS = (("products", r"stream_weight|linear_rows|finish_rows|fold|gemm|gemv|nvjet|cutlass|splitK|cublas"),
         ("delta rule", r"^mix|^convolve|^gates|^scan<|^follow|^prepare<[^,]*> "),
         ("attention", r"^attend|^append|^store|^rotate|^prepare<"),
         ("draws", r"^draw_rows|^take_largest|^scan_parts|^report|^weigh_tokens|^softmax_rows"))


def part_of(event):
    return next((part for part, names in PARTS if is_kernel(event) and re.search(names, event[3])), "small kernels")


def print_parts(steps, config, rows, context):
    """What each part adds to a step and the gaps between kernels, beside what its bytes take at the device's copy rate."""
    floors = gpu_report.floor_parts_us(config, rows, context)
    spent, gaps = collections.Counter(), 0.0
    for step in steps:
        until = step[0][0]
        for event in step:
            begin, end = event[:2]
            gaps += max(0.0, begin - until)
            spent[part_of(event)] += max(0.0, end - max(begin, until))
            until = max(until, end)
    n = len(steps)
    total = (sum(spent.values()) + gaps) / n
    print("   by part, us (floor): " + "  ".join("%s %.0f (%.0f)" % (part, value / n, floors.get(part, 0)) for part, value in spent.most_common()) +
          "  gaps %.0f  all %.0f (%.0f)" % (gaps / n, total, sum(floors.values())))


def trim(step):
    """Without the copies and idle time behind its last kernel."""
    last = max((i for i, event in enumerate(step) if is_kernel(event)), default=-1)
    return step[:last + 1]


def report(events, marks):
    alone = [e for e in events if marks is None or e[0] < marks]
    steps = [(kind, trim(step)) for kind, step in steps_of(alone)]
    # The last request of those that came one after the other: from its encoder on.
    begins = [i for i, (kind, _) in enumerate(steps) if kind == "encoder"]
    if len(begins) >= 2:
        one = steps[begins[-2]:begins[-1]]
        origin, until = one[0][1][0][0], None
        print("== one request, us from its first kernel: begin, span, idle in front")
        decoders = 0
        for kind, step in one:
            begin, end = step[0][0] - origin, step[-1][1] - origin
            decoders += kind == "decoder"
            if kind == "encoder" or decoders <= 4:
                print("  %-8s at %8.0f  span %7.0f  idle %6.0f  busy %7.0f  %d kernels" % (
                    kind, begin, end - begin, begin - until if until is not None else 0, busy(step), sum(map(is_kernel, step))))
            until = end
        print("  all      %8.0f; %d decoder steps; next request's encoder begins %.0f later" % (until, decoders, steps[begins[-1]][1][0][0] - origin - until))
        table("encoder and cross keys, 1 window", [s for k, s in steps if k == "encoder"][-4:])
        sizes = collections.Counter(sum(map(is_kernel, s)) for k, s in steps if k == "decoder")
        usual = sizes.most_common(1)[0][0]
        decode = [s for k, s in steps if k == "decoder" and sum(map(is_kernel, s)) == usual]
        table("decoder step, 1 row", decode[-20:])
        table("prompt's step, 1 row", [s for k, s in steps if k == "decoder" and sum(map(is_kernel, s)) != usual][-3:], 12)
    if marks is None:
        return
    steps = [(kind, trim(step)) for kind, step in steps_of([e for e in events if e[0] >= marks])]
    by_kind = collections.defaultdict(list)
    for kind, step in steps:
        by_kind[kind].append(step)
    total = steps[-1][1][-1][1] - steps[0][1][0][0]
    print("== %d ms of many clients: device busy %.1f %%, of which encoder and cross keys %.1f %%, decoder %.1f %%" % (
        total / 1000, 100 * busy([e for e in events if e[0] >= marks]) / total, 100 * sum(busy(s) for s in by_kind["encoder"]) / total,
        100 * sum(busy(s) for s in by_kind["decoder"]) / total))
    longest = sorted(by_kind["encoder"], key=lambda s: s[-1][1] - s[0][0])
    table("encoder and cross keys, the largest batches", longest[-3:])
    sizes = collections.Counter(sum(map(is_kernel, s)) for s in by_kind["decoder"])
    usual = sizes.most_common(1)[0][0]
    decode = sorted((s for s in by_kind["decoder"] if sum(map(is_kernel, s)) == usual), key=busy)
    table("decoder step, most rows", decode[-12:])


def report_text(events, config):
    """Steps from one embedding to the next; those with prompts have attention by tiles. Their sizes are told apart by the embedding's grid."""
    steps = []
    for event in events:
        if is_kernel(event) and event[3].startswith("embed"):
            steps.append([event])
        elif steps:
            steps[-1].append(event)
    by_size = {True: collections.defaultdict(list), False: collections.defaultdict(list)}
    for step in map(trim, steps):
        by_size[any(is_kernel(e) and e[3].startswith("attend_tiles") for e in step)][step[0][3]].append(step)
    for has_prompts, title, number in ((False, "step of answers", 2), (True, "step with prompts", 2)):
        for size in sorted(by_size[has_prompts], key=lambda size: -len(by_size[has_prompts][size]))[:number]:
            steps = by_size[has_prompts][size][-40:]
            table("%s, %s" % (title, size), steps)
            if not has_prompts:  # the embedding has a block a row
                print_parts(steps, config, int(re.search(r"\[(\d+) x", size).group(1)), 640 + 128)


def config_of(model):
    return json.loads((pathlib.Path(model) / "config.json").read_text())


def is_whisper(model):
    return config_of(model).get("model_type") == "whisper"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mstar", default="./mstar")
    parser.add_argument("--model", default="models/whisper-large-v3")
    parser.add_argument("--trace", default="./libkernel_trace.so")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--read")
    parser.add_argument("--mark", type=float)
    parser.add_argument("serve", nargs="*")
    args = parser.parse_args()
    if args.read:
        report(read(args.read), args.mark) if is_whisper(args.model) else report_text(read(args.read), config_of(args.model))
        return
    path = "/tmp/kernel_trace.txt"
    os.environ.update(CUDA_INJECTION64_PATH=str(pathlib.Path(args.trace).resolve()), KERNEL_TRACE=path)
    name = pathlib.Path(args.model).name
    server = gpu_bench.Server([args.mstar, "serve", args.model, "--load-format", "dummy", "--port", str(gpu_bench.PORT), "--max-requests",
                               str(args.clients), *args.serve], "/tmp/serve-timeline.log")
    os.environ.pop("CUDA_INJECTION64_PATH")
    if server.wait_ready() is None:
        server.stop()
        sys.exit("did not start: " + pathlib.Path("/tmp/serve-timeline.log").read_text()[-1500:])
    if not is_whisper(args.model):
        for clients, requests in ((1, 2), (args.clients, 3 * args.clients)):
            row = gpu_bench.load(args.mstar, clients, requests, 0, "256", server.process.pid, "/tmp/timeline.json", clients)
            print("%d clients, traced: %.0f tok/s" % (clients, row["output_tokens_per_s"]))
        server.stop()
        events = read(path)
        if not events:
            sys.exit("the trace is empty: " + pathlib.Path("/tmp/serve-timeline.log").read_text()[-600:])
        report_text(events, config_of(args.model))
        return
    bodies = [gpu_bench.form_of(gpu_bench.make_clip(seed), name) for seed in range(8)]
    times, _ = gpu_bench.load_clips(bodies, 1, 8)
    print("alone, traced: latency p50 %.1f ms" % times[len(times) // 2])
    times, rate = gpu_bench.load_clips(bodies, args.clients, 4 * args.clients)
    print("%d clients, traced: %.1f req/s" % (args.clients, rate))
    server.stop()
    events = read(path)
    if not events:
        sys.exit("the trace is empty: " + pathlib.Path("/tmp/serve-timeline.log").read_text()[-600:])
    # The many begin at the ninth encoder.
    encoders = [step[0][0] for kind, step in steps_of(events) if kind == "encoder"]
    report(events, encoders[8] if len(encoders) > 8 else None)


if __name__ == "__main__":
    main()
