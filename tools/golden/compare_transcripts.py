#!/usr/bin/env python3
"""Transcribes a set of make_speech_set.py with faster-whisper and with mstar, and says where they differ.

    compare_transcripts.py --set DIR --weights DIR --mstar "build/dev/apps/mstar transcribe ..." [--no-condition] [--language en]

The mstar command is called once as `COMMAND --format json --output DIR FILES...`; without --mstar only the oracle is recorded. It is
kept as DIR/oracle-NAME.json and used again while the set and the options are the same. Exit code 1 when a text differs whose windows
all have a margin over --margin (a smaller one may turn over with the rounding of another machine; see whisper_oracle.py).
"""
import argparse
import difflib
import json
import pathlib
import shlex
import subprocess
import sys
import time

import whisper_oracle as oracle


def record_oracle(arguments, files):
    """The oracle's entries by file name; cached beside the set."""
    name = "%s-%s-%s%s" % (arguments.weights.name, arguments.language or "auto", arguments.compute_type,
                           "-alone" if arguments.no_condition else "")
    path = arguments.set / ("oracle-%s.json" % name)
    stamp = (arguments.set / "set.json").stat().st_mtime_ns
    if path.exists():
        cached = json.loads(path.read_text())
        if cached["set_mtime_ns"] == stamp:
            return {entry["file"]: entry for entry in cached["files"]}
    whisper = oracle.open_model(arguments.weights, arguments.compute_type, arguments.threads)
    entries, start = [], time.monotonic()
    for file in files:
        pcm = oracle.read_audio(arguments.set / file["file"])
        entries.append({"file": file["file"],
                        **oracle.transcribe(whisper, pcm, arguments.language, not arguments.no_condition)})
        print("oracle %s: %s" % (file["file"], entries[-1]["text"]), file=sys.stderr)
    print("oracle: %.1f s" % (time.monotonic() - start), file=sys.stderr)
    oracle.write_json(path, {"set_mtime_ns": stamp, "files": entries})
    return {entry["file"]: entry for entry in entries}


def run_mstar(arguments, files):
    """Our JSON by file name; None where there is none."""
    out = arguments.set / "mstar"
    out.mkdir(exist_ok=True)
    for old in out.glob("*.json"):
        old.unlink()
    command = shlex.split(arguments.mstar) + ["--format", "json", "--output", str(out)]
    start = time.monotonic()
    code = subprocess.run(command + [str(arguments.set / file["file"]) for file in files]).returncode
    print("mstar: exit %d, %.1f s" % (code, time.monotonic() - start), file=sys.stderr)
    ours = {}
    for file in files:
        name = pathlib.Path(file["file"])
        paths = [path for path in (out / (name.name + ".json"), out / (name.stem + ".json")) if path.exists()]
        ours[file["file"]] = json.loads(paths[0].read_text()) if paths else None
    return ours


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
            print("%s: mstar wrote nothing" % name)
            clear += 1
            continue
        text = actual["text"].strip()
        if text == expected["text"]:
            equal += 1
        else:
            margin = least_margin(expected)
            clear += margin > arguments.margin
            print("%s: margin %.3f, %s" % (name, margin, first_difference(expected["text"], text)))
        segments += same_segments(expected, actual)
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
    parser.add_argument("--mstar", help="the command up to the options named above")
    parser.add_argument("--language")
    parser.add_argument("--no-condition", action="store_true", help="condition_on_previous_text=False")
    parser.add_argument("--compute-type", default="float32", choices=["float32", "int8"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--margin", type=float, default=0.05)
    arguments = parser.parse_args()
    files = json.loads((arguments.set / "set.json").read_text())["files"]
    truth = record_oracle(arguments, files)
    if not arguments.mstar:
        pairs = [words_and_errors(file["reference"], truth[file["file"]]["text"]) for file in files if file["reference"]]
        print("%d files, word errors of the oracle %s" % (len(files), rate(pairs)))
        return 0
    return 1 if report(arguments, files, truth, run_mstar(arguments, files)) else 0


if __name__ == "__main__":
    sys.exit(main())
