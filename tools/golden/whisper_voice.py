#!/usr/bin/env python3
"""What faster-whisper hears of clips between silences when it passes over silence: tests/golden/whisper/*_voice.json.

Needs faster-whisper 1.2.1 and what voice.py needs: its own copy of the voice network has other numbers than the
silero-vad package's, whose are used here. Weights as ./dev weights fetched them.

    tools/golden/whisper_voice.py --weights ~/.cache/mstar/weights/whisper-tiny.en --out tests/golden/whisper/tiny.en_voice.json
"""
import argparse
import json
import pathlib

import faster_whisper.vad
import numpy as np
import torch
from faster_whisper import WhisperModel
from silero_vad import load_silero_vad

from voice import mix, read


class Voice:
    def __init__(self):
        self.model = load_silero_vad(onnx=True)

    def __call__(self, audio):
        self.model.reset_states()
        return self.model.audio_forward(torch.from_numpy(audio), sr=16000)[0].numpy()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--testdata", type=pathlib.Path, default="/usr/share/pocketsphinx/test/data/librivox")
    arguments = parser.parse_args()
    clips = [read(path) for path in sorted(arguments.testdata.glob("*.wav"))]
    quiet = np.zeros(20 * 16000, np.float32)
    sound = np.concatenate([quiet, mix(clips), quiet, clips[0], quiet, clips[3], quiet])  # 4.5 minutes, most of it silence
    voice = Voice()
    faster_whisper.vad.get_vad_model = lambda: voice
    model = WhisperModel(str(arguments.weights), device="cpu", compute_type="float32", cpu_threads=2)
    out = {}
    for name, options in (("filter", {}), ("words", {"word_timestamps": True}), ("short", {"vad_parameters": {"min_silence_duration_ms": 500, "speech_pad_ms": 100}})):
        segments, _ = model.transcribe(sound, language="en", beam_size=1, temperature=0, vad_filter=True, **options)
        out[name] = [{"start": round(s.start, 2), "end": round(s.end, 2), "text": s.text,
                      **({"words": [[w.word, round(w.start, 2), round(w.end, 2)] for w in s.words]} if s.words else {})} for s in segments]
    arguments.out.write_text(json.dumps(out) + "\n")


if __name__ == "__main__":
    main()
