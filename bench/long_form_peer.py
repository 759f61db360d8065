#!/usr/bin/env python3
"""A long recording on the CPU: `mstar transcribe --parallel` beside faster-whisper's BatchedInferencePipeline, the same weights and sound.

    long_form_peer.py --mstar ./mstar [--model whisper-base] [--minutes 10] [--weights f32] [--threads 2] [--parts 8]

Needs faster-whisper. The sound: the clips of pocketsphinx-testdata with pauses, again and again in a seeded order; what was read is known, so
the word error rate (lower case, letters and digits only) is told for both. Each is run twice and the shorter time counts; loading is in
mstar's time and not in the peer's.
"""
import argparse
import array
import json
import pathlib
import random
import subprocess
import tempfile
import time
import wave

CLIPS = pathlib.Path("/usr/share/pocketsphinx/test/data/librivox")


def words(text):
    return "".join(c for c in text.lower() if c.isalnum() or c.isspace()).split()


def errors(ours, right):
    row = list(range(len(right) + 1))
    for i, word in enumerate(ours, 1):
        last, row[0] = row[0], i
        for j, other in enumerate(right, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (word != other))
    return row[-1]


def recording(path, minutes):
    texts = {}
    for line in (CLIPS / "transcription").read_text().splitlines():
        text, name = line.rsplit("(", 1)
        texts[name.rstrip(")").strip()] = text.replace("<s>", " ").replace("</s>", " ")
    clips, dice = sorted(CLIPS.glob("*.wav")), random.Random(1)
    samples, right = array.array("h"), []
    while len(samples) < minutes * 60 * 16000:
        clip = dice.choice(clips)
        with wave.open(str(clip)) as file:
            samples += array.array("h", file.readframes(file.getnframes())) + array.array("h", bytes(2 * dice.randrange(4000, 60000)))
        right += words(next(text for name, text in texts.items() if name in clip.stem or clip.stem in name))
    with wave.open(str(path), "wb") as out:
        out.setparams((1, 2, 16000, 0, "NONE", ""))
        out.writeframes(samples.tobytes())
    return len(samples) / 16000, right


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mstar", required=True)
    parser.add_argument("--model", default="whisper-base")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--weights", default="f32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--parts", type=int, default=8)
    arguments = parser.parse_args()
    from faster_whisper import BatchedInferencePipeline, WhisperModel
    weights = pathlib.Path.home() / ".cache/mstar/weights" / arguments.model
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "long.wav"
        seconds, right = recording(path, arguments.minutes)
        ours = []
        for _ in range(2):
            begun = time.monotonic()
            found = subprocess.run([arguments.mstar, "transcribe", "-q", "--model", arguments.model, "--weights", arguments.weights, "--language", "en",
                                    "--threads", str(arguments.threads), "--max-requests", str(arguments.parts), "--parallel", "--format", "json", path],
                                   check=True, capture_output=True).stdout
            ours.append((time.monotonic() - begun, json.loads(found)["text"]))
        model = BatchedInferencePipeline(WhisperModel(str(weights), device="cpu", cpu_threads=arguments.threads,
                                                      compute_type={"f32": "float32", "i8": "int8"}[arguments.weights]))
        theirs = []
        for _ in range(2):
            begun = time.monotonic()
            segments, _ = model.transcribe(str(path), language="en", beam_size=1, batch_size=arguments.parts, without_timestamps=False)
            text = "".join(segment.text for segment in segments)  # which is made as it is asked for
            theirs.append((time.monotonic() - begun, text))
    for name, runs in (("mstar", ours), ("faster-whisper", theirs)):
        took, text = min(runs)
        print("%-14s %s %s: %.1f s for %.0f s of sound, %.1f times real time, WER %.2f %%" %
              (name, arguments.model, arguments.weights, took, seconds, seconds / took, 100 * errors(words(text), right) / len(right)))
    print("faster-whisper's time over ours: %.2f" % (min(theirs)[0] / min(ours)[0]))


if __name__ == "__main__":
    main()
