#!/usr/bin/env python3
"""Word times of `mstar transcribe` beside faster-whisper's on seeded mixes of speech, silence, noise and tones.

    compare_words.py --mstar build/release/mstar --weights ~/.cache/mstar/weights/whisper-tiny.en [--seeds 1,2] [--minutes 5]
                     [--options '{"hallucination_silence_threshold": 2}'] [--testdata /usr/share/pocketsphinx/test/data]

--options: fields that both know by one name. Both in float32, greedy, without fallback. Tells how many words are the same, and how many of
those begin and end within 20 ms. Exit 1 below 98 %, or where words go back in time. Needs espeak-ng.
"""
import argparse
import difflib
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import wave

import numpy as np

from whisper_words import words_of

TEXTS = ["The quick brown fox jumps over the lazy dog, and then it sleeps.", "We shall meet again on Tuesday morning at nine o'clock.",
         "Numbers such as twenty five and one hundred are easy to hear.", "She said that nothing could be done before the winter was over."]


def read_wav(path):
    with wave.open(str(path)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32), file.getframerate()


def clips_of(testdata):
    clips = [read_wav(path)[0] for folder in ("librivox", "cards") for path in sorted((testdata / folder).glob("*.wav"))]
    for i, text in enumerate(TEXTS):
        with tempfile.NamedTemporaryFile(suffix=".wav") as file:
            subprocess.run(["espeak-ng", "-w", file.name, "-v", ("en-gb", "en-us")[i % 2], "-s", str(140 + 20 * i), text], check=True)
            sound, rate = read_wav(file.name)
        count = int(len(sound) * 16000 / rate)
        clips.append(0.6 * np.interp(np.arange(count) * rate / 16000, np.arange(len(sound)), sound).astype(np.float32))
    return clips


def make_mix(clips, seed, minutes):
    chance, parts, total = np.random.default_rng(seed), [], 0
    while total < minutes * 60 * 16000:
        kind = chance.random()
        if kind < 0.6:
            part = clips[chance.integers(len(clips))]
        elif kind < 0.8:
            part = np.zeros(int(16000 * chance.uniform(0.5, 9)))
        elif kind < 0.9:
            part = chance.standard_normal(int(16000 * chance.uniform(1, 6))) * chance.choice([30, 300, 1500])
        else:
            t = np.arange(int(16000 * chance.uniform(1, 5))) / 16000
            part = 2000 * np.sin(2 * math.pi * chance.uniform(150, 900) * t) * (1 + np.sin(6 * math.pi * t))
        parts.append(part)
        total += len(part)
    return np.clip(np.concatenate(parts), -32768, 32767).astype("<i2")


def ours(arguments, path, options):
    command = [arguments.mstar, "transcribe", "-q", "--model", str(arguments.weights), "--weights", "f32", "--format", "json", "--word-timestamps",
               "--param", "temperature_increment_on_fallback=0", *sum((["--param", "%s=%s" % (name, json.dumps(value))] for name, value in options.items()), []), str(path)]
    heard = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return [(word["word"], word["start"], word["end"]) for segment in heard["segments"] for word in segment["words"]]


def compare(name, ours, theirs):
    blocks = difflib.SequenceMatcher(None, [each[0] for each in ours], [each[0] for each in theirs], autojunk=False).get_matching_blocks()
    pairs = [(ours[block.a + i], theirs[block.b + i]) for block in blocks for i in range(block.size)]
    close = sum(abs(a[1] - b[1]) <= 0.0205 and abs(a[2] - b[2]) <= 0.0205 for a, b in pairs)
    in_order = all(a[1] <= a[2] for a in ours) and all(a[2] <= b[1] for a, b in zip(ours, ours[1:]))
    print("%s: %d and %d words, %d the same, %d of those within 20 ms%s" % (
        name, len(ours), len(theirs), len(pairs), close, "" if in_order else "; NOT IN ORDER"), flush=True)
    return in_order and close >= 0.98 * max(len(ours), len(theirs))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mstar", default="mstar")
    parser.add_argument("--weights", type=pathlib.Path, required=True)
    parser.add_argument("--seeds", default="1,2")
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--options", type=json.loads, default={})
    parser.add_argument("--testdata", type=pathlib.Path, default=pathlib.Path("/usr/share/pocketsphinx/test/data"))
    arguments = parser.parse_args()
    import faster_whisper
    whisper = faster_whisper.WhisperModel(str(arguments.weights), device="cpu", compute_type="float32", cpu_threads=2)
    clips, good = clips_of(arguments.testdata), True
    for seed in map(int, arguments.seeds.split(",")):
        mix = make_mix(clips, seed, arguments.minutes)
        with tempfile.NamedTemporaryFile(suffix=".wav") as file:
            with wave.open(file.name, "wb") as out:
                out.setparams((1, 2, 16000, 0, "NONE", ""))
                out.writeframes(mix.tobytes())
            mine = ours(arguments, file.name, arguments.options)
        theirs = words_of(whisper, mix.astype(np.float32) / 32768, "en", arguments.options)
        theirs = [tuple(word[:3]) for segment in theirs["segments"] for word in segment["words"]]
        good &= compare("seed %d" % seed, mine, theirs)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
