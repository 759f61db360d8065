#!/usr/bin/env python3
"""Transcribes a set of make_speech_set.py with an oracle and with mstar, and says where they differ.

    compare_transcripts.py --set DIR --weights DIR [--oracle faster-whisper|openai-whisper|openai-whisper-f64]
        [--mstar "build/release/mstar transcribe -q --model DIR --weights f32 --param temperature_increment_on_fallback=0"] [--again] [--same-samples] [--label NAME] ...

The mstar command is called once as `COMMAND --format json --output DIR/NAME FILES...`; without --mstar only the oracle is recorded, with
--again the files of an earlier call are compared. The oracle is kept as DIR/oracle-NAME.json and used again while the set and the options
are the same. mstar reads the files themselves; with --same-samples it gets the 16 kHz samples that the oracle's decoder and resampler
made of them, so that only the model is compared. With --shaken the oracle itself takes mstar's place, hearing every sample off by 3e-7 of
itself: how often a text is not determined by the sound and the weights. Files listed with --only are the only ones.

For each text that differs: the first token that does, and how close the oracle's choice was there (logits; openai-whisper's recorder also
tells the gap of the timestamp rule). Exit code 1 when a text differs whose windows all have a margin over --margin (a smaller one may turn
over with the rounding of another machine; see whisper_oracle.py), or when nothing came for a file of a tenth of a second or more.
"""
import argparse
import difflib
import json
import pathlib
import shlex
import subprocess
import sys
import time
import zlib

import whisper_oracle as oracle

SHORTEST_S = 0.1  # mstar refuses sounds below


def oracle_of(arguments):
    """The oracle's transcribe(pcm)."""
    options = {"language": arguments.language, "condition": not arguments.no_condition, "task": arguments.task,
               "prompt": arguments.prompt}
    if arguments.oracle == "faster-whisper":
        whisper = oracle.open_model(arguments.weights, arguments.compute_type, arguments.threads)
        return lambda pcm: oracle.transcribe(whisper, pcm, **options)
    import openai_oracle
    model = openai_oracle.open_model(arguments.weights, arguments.threads, arguments.oracle.endswith("f64"))
    return lambda pcm: openai_oracle.transcribe(model, pcm, **options)


def record_oracle(arguments, files, shaken=False):
    """The oracle's entries by file name; cached beside the set."""
    name = "%s-%s-%s%s" % (arguments.weights.name, arguments.language or "auto", arguments.compute_type,
                           "-alone" if arguments.no_condition else "")
    if arguments.oracle != "faster-whisper":
        name = "%s-%s" % (arguments.oracle, name)
    name += "-translate" if arguments.task == "translate" else ""
    name += "-prompt-%08x" % zlib.crc32(arguments.prompt.encode()) if arguments.prompt else ""
    name += "-shaken" if shaken else ""
    path = arguments.set / ("oracle-%s.json" % name)
    stamp = (arguments.set / "set.json").stat().st_mtime_ns
    entries = {}
    if path.exists():
        cached = json.loads(path.read_text())
        if cached["set_mtime_ns"] == stamp:
            entries = {entry["file"]: entry for entry in cached["files"]}
    missing = [file["file"] for file in files if file["file"] not in entries]
    if missing:
        transcribe, start = oracle_of(arguments), time.monotonic()
        for file in missing:
            pcm = oracle.read_audio(arguments.set / file)
            entries[file] = {"file": file, **transcribe(oracle.shake(pcm, 0) if shaken else pcm)}
            oracle.write_json(path, {"set_mtime_ns": stamp, "files": list(entries.values())})
            print("oracle %s: %s" % (file, entries[file]["text"]), file=sys.stderr)
        print("oracle: %.1f s" % (time.monotonic() - start), file=sys.stderr)
    return entries


def samples_of(arguments, file):
    """The file as the oracle hears it, as 16 kHz WAV: path."""
    import soundfile
    path = arguments.set / "samples" / (file + ".wav")
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        soundfile.write(path, oracle.read_audio(arguments.set / file), 16000, "PCM_16")
    return path


def run_mstar(arguments, files):
    """Our JSON by file name; None where there is none."""
    out = arguments.set / (arguments.label + ("-same-samples" if arguments.same_samples else ""))
    out.mkdir(exist_ok=True)
    if not arguments.again:
        for old in out.glob("*.json"):
            old.unlink()
        command = shlex.split(arguments.mstar) + ["--format", "json", "--output", str(out)]
        paths = [samples_of(arguments, file["file"]) if arguments.same_samples else arguments.set / file["file"] for file in files]
        start = time.monotonic()
        code = subprocess.run(command + [str(path) for path in paths]).returncode
        print("mstar: exit %d, %.1f s" % (code, time.monotonic() - start), file=sys.stderr)
    ours = {}
    for file in files:
        name = pathlib.Path(file["file"])
        paths = [path for path in (out / (name.name + ".json"), out / (name.stem + ".json")) if path.exists()]
        ours[file["file"]] = json.loads(paths[0].read_text()) if paths else None
    return ours


def tokens_by_window(segments, seek):
    """Frame where a window begins → the tokens of its segments."""
    windows = {}
    for segment in segments:
        windows.setdefault(segment[seek], []).extend(segment["tokens"])
    return windows


def first_token(expected, actual):
    """Where the tokens part, and how close the oracle's choice was."""
    left, right = tokens_by_window(expected["segments"], "seek_frames"), tokens_by_window(actual["segments"], "seek")
    for seek in sorted({*left, *right}):
        mine, theirs = left.get(seek, []), right.get(seek, [])
        if mine == theirs:
            continue
        at = next((i for i, (a, b) in enumerate(zip(mine, theirs)) if a != b), min(len(mine), len(theirs)))
        where = "frame %d, token %d: %s / %s" % (seek, at, mine[at:at + 1] or "end", theirs[at:at + 1] or "end")
        window = next((w for w in expected["windows"] if mine and w["tokens"][:len(mine)] == mine), None)
        if not window:
            return "%s; the oracle's windows: no-speech %s" % (
                where, ["%.3f" % each["no_speech_prob"] for each in expected["windows"]])
        if at < len(window.get("steps", [])):
            return "%s; the oracle there: %s" % (where, json.dumps(window["steps"][at]))
        if at < len(window.get("gaps", [])):
            return "%s; gap of the oracle's logits there: %.4f, least of the window: %.4f" % (
                where, window["gaps"][at], window["margin"])
        return "%s; least gap of the oracle's logits in the window: %.4f" % (where, window["margin"])
    return "equal tokens"


def first_difference(expected, actual):
    """The first place where two texts differ, with a few words round it."""
    left, right = expected.split(), actual.split()
    for tag, i, j, k, m in difflib.SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        if tag != "equal":
            start = max(0, i - 2)
            return "word %d: oracle '%s' / mstar '%s'" % (
                i, " ".join(left[start:j + 2]), " ".join(right[max(0, k - 2):m + 2]))
    return "only spaces differ"


def least_margin(entry):
    return min((window["margin"] for window in entry["windows"] if window["margin"] is not None), default=0.0)


def same_segments(expected, actual):
    left, right = expected["segments"], actual.get("segments", [])
    return len(left) == len(right) and all(
        abs(a["start"] - b["start"]) < 0.011 and abs(a["end"] - b["end"]) < 0.011 for a, b in zip(left, right))


def words_and_errors(reference, text):
    import jiwer
    score = jiwer.process_words(oracle.normalise(reference), oracle.normalise(text) or "<empty>")
    return score.hits + score.substitutions + score.deletions, score.substitutions + score.deletions + score.insertions


def rate(pairs):
    total = sum(words for words, _ in pairs)
    return "%.2f %%" % (100.0 * sum(errors for _, errors in pairs) / total) if total else "none"


def report(arguments, files, truth, ours):
    """Prints the comparison; returns the number of differences that rounding does not excuse."""
    equal = segments = languages = clear = 0
    to_reference, of_oracle, to_oracle = [], [], []
    for file in files:
        name = file["file"]
        expected, actual = truth[name], ours[name]
        if actual is None:
            refused = file["seconds"] < SHORTEST_S
            print("%s: mstar wrote nothing%s; oracle '%s'" % (name, ", as it should" if refused else "", expected["text"]))
            clear += not refused
            continue
        text = actual["text"].strip()
        if text == expected["text"]:
            equal += 1
        else:
            margin = least_margin(expected)
            clear += margin > arguments.margin
            print("%s: margin %.3f, %s\n    %s" % (name, margin, first_difference(expected["text"], text),
                                                  first_token(expected, actual)))
        timed = same_segments(expected, actual)
        segments += timed
        if text == expected["text"] and not timed:
            print("%s: the same text, other times; %s" % (name, first_token(expected, actual)))
        languages += actual.get("language") == expected["language"]
        if expected["text"]:
            to_oracle.append(words_and_errors(expected["text"], text))
        if file["reference"]:
            of_oracle.append(words_and_errors(file["reference"], expected["text"]))
            to_reference.append(words_and_errors(file["reference"], text))
    print("equal texts %d of %d, equal segment times %d, equal languages %d" % (equal, len(files), segments, languages))
    print("word errors: oracle %s, mstar %s against what was spoken; mstar against the oracle %s" % (
        rate(of_oracle), rate(to_reference), rate(to_oracle)))
    return clear


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--set", type=pathlib.Path, required=True)
    parser.add_argument("--weights", type=pathlib.Path, required=True)
    parser.add_argument("--oracle", default="faster-whisper", choices=["faster-whisper", "openai-whisper", "openai-whisper-f64"])
    parser.add_argument("--mstar", help="the command up to the options named above")
    parser.add_argument("--again", action="store_true", help="compare what mstar wrote before")
    parser.add_argument("--same-samples", action="store_true", help="mstar hears the oracle's samples")
    parser.add_argument("--shaken", action="store_true", help="the oracle against itself")
    parser.add_argument("--label", default="mstar", help="directory of mstar's files, in the set's")
    parser.add_argument("--only", nargs="+", help="names of files")
    parser.add_argument("--language")
    parser.add_argument("--no-condition", action="store_true", help="condition_on_previous_text=False")
    parser.add_argument("--task", default="transcribe", choices=["transcribe", "translate"])
    parser.add_argument("--prompt", help="the oracle's initial_prompt; mstar's own options belong into --mstar")
    parser.add_argument("--compute-type", default="float32", choices=["float32", "int8"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--margin", type=float, default=0.05)
    arguments = parser.parse_args()
    files = json.loads((arguments.set / "set.json").read_text())["files"]
    files = [file for file in files if not arguments.only or file["file"] in arguments.only]
    truth = record_oracle(arguments, files)
    if arguments.shaken:
        ours = record_oracle(arguments, files, shaken=True)
        for entry in ours.values():
            for segment in entry["segments"]:
                segment["seek"] = segment["seek_frames"]
        report(arguments, files, truth, ours)
        return 0
    if not arguments.mstar and not arguments.again:
        pairs = [words_and_errors(file["reference"], truth[file["file"]]["text"]) for file in files if file["reference"]]
        print("%d files, word errors of the oracle %s" % (len(files), rate(pairs)))
        return 0
    return 1 if report(arguments, files, truth, run_mstar(arguments, files)) else 0


if __name__ == "__main__":
    sys.exit(main())
