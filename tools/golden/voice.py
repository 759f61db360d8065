#!/usr/bin/env python3
"""What silero-vad makes of clips, and of random probabilities: tests/golden/voice/.

Needs silero-vad 6.2.3, torch and onnxruntime, and the clips of Debian's pocketsphinx-testdata.

    tools/golden/voice.py --out tests/golden/voice
"""
import argparse
import json
import pathlib
import random
import wave

import numpy as np
import torch
from silero_vad import get_speech_timestamps, load_silero_vad
from silero_vad.utils_vad import get_speech_timestamps_from_probs


def read(path):
    with wave.open(str(path)) as file:
        assert file.getframerate() == 16000 and file.getnchannels() == 1
        return np.frombuffer(file.readframes(file.getnframes()), dtype="<i2").astype(np.float32) / 32768


def mix(clips):
    """Clips between silences, one of them faint, one cut off."""
    gaps = (16000, 11200, 3000, 48000, 1600)
    parts = []
    for i, clip in enumerate(clips):
        parts += [np.zeros(gaps[i % len(gaps)], np.float32), clip * np.float32(0.1 if i == 1 else 1.0)]
    return np.concatenate(parts)[:-5000]


def rules(count):
    dice = random.Random(5)
    for case in range(count):
        level, probabilities = 0.5, []
        for _ in range(dice.randrange(20, 500)):
            if dice.random() < 0.06:
                level = dice.random()
            probabilities.append(round(min(1.0, max(0.0, level + dice.uniform(-0.2, 0.2))), 3))
        options = {"threshold": dice.choice([0.3, 0.5, 0.7]), "min_speech_duration_ms": dice.choice([0, 100, 250]),
                   "max_speech_duration_s": dice.choice([float("inf"), 2.0, 5.0]), "min_silence_duration_ms": dice.choice([50, 100, 500, 2000]),
                   "speech_pad_ms": dice.choice([0, 30, 200, 400]), "use_max_poss_sil_at_max_speech": dice.random() < 0.5}
        length = len(probabilities) * 512 - dice.randrange(512)
        found = get_speech_timestamps_from_probs(list(probabilities), audio_length_samples=length, **options)
        if options["max_speech_duration_s"] == float("inf"):
            options["max_speech_duration_s"] = 0  # no limit
        yield {"probabilities": probabilities, "options": options, "num_samples": length, "segments": [[s["start"], s["end"]] for s in found]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--testdata", type=pathlib.Path, default="/usr/share/pocketsphinx/test/data/librivox")
    arguments = parser.parse_args()
    paths = sorted(arguments.testdata.glob("*.wav"))
    model = load_silero_vad(onnx=True)
    probabilities = {}
    for path in paths:
        model.reset_states()
        samples = torch.from_numpy(read(path))
        probabilities[path.name] = [round(float(p), 7) for p in model.audio_forward(samples, sr=16000)[0]]
    whole = torch.from_numpy(mix([read(path) for path in paths]))
    segments = {}
    for name, options in (("default", {}), ("filter", dict(min_speech_duration_ms=0, min_silence_duration_ms=2000, speech_pad_ms=400)),
                          ("cut", dict(max_speech_duration_s=3, speech_pad_ms=100))):
        segments[name] = {"options": options, "segments": [[s["start"], s["end"]] for s in get_speech_timestamps(whole, model, **options)]}
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "clips.json").write_text(json.dumps({"probabilities": probabilities, "mix": segments}) + "\n")
    (arguments.out / "rules.json").write_text(json.dumps(list(rules(60))) + "\n")


if __name__ == "__main__":
    main()
