#!/usr/bin/env python3
"""`mstar transcribe --vad` against what faster-whisper says of the same sound (tests/golden/whisper/*_voice.json), and of silence alone.

Usage: voice_test.py PATH_TO_MSTAR [unittest options]. Skipped as golden_test.py is, and without the weights silero-vad.
"""
import array
import json
import os
import pathlib
import random
import subprocess
import tempfile
import unittest
import wave

from golden_test import MSTAR

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden/whisper"
CLIPS = pathlib.Path("/usr/share/pocketsphinx/test/data/librivox")
WEIGHTS = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "mstar/weights"


def read(path):
    with wave.open(str(path)) as file:
        return array.array("h", file.readframes(file.getnframes()))


def write(path, samples):
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(samples.tobytes())


def silence(num_samples):
    return array.array("h", bytes(2 * num_samples))


def mix():
    """As tools/golden/whisper_voice.py mixes it."""
    clips, out = [read(path) for path in sorted(CLIPS.glob("*.wav"))], array.array("h")
    for i, clip in enumerate(clips):
        out += silence((16000, 11200, 3000, 48000, 1600)[i % 5])
        out += array.array("h", [round(x * 0.1) for x in clip]) if i == 1 else clip
    quiet = silence(20 * 16000)
    return quiet + out[:-5000] + quiet + clips[0] + quiet + clips[3] + quiet


class Voice(unittest.TestCase):
    def setUp(self):
        for needed in (CLIPS, WEIGHTS / "silero-vad"):
            if not needed.exists():
                self.skipTest("there is no %s" % needed)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.sound = pathlib.Path(folder.name) / "a.wav"

    def heard(self, model, *options):
        if not (WEIGHTS / model).exists():
            self.skipTest("there are no weights %s" % model)
        command = [MSTAR, "transcribe", "-q", "--model", model, "--weights", "f32", "--format", "json", "--vad", "--language", "en",
                   "--param", "temperature_increment_on_fallback=0", *options, self.sound]
        return json.loads(subprocess.run(command, check=True, capture_output=True, timeout=600).stdout)

    def compare(self, model):
        golden = json.loads((GOLDEN / (model.removeprefix("whisper-") + "_voice.json")).read_text())
        write(self.sound, mix())
        options = {"filter": [], "words": ["--word-timestamps"], "short": ["--param", "vad_min_silence_duration_ms=500", "--param", "vad_speech_pad_ms=100"]}
        for name, expected in golden.items():
            with self.subTest(name):
                ours = self.heard(model, *options[name])
                self.assertEqual([each["text"] for each in ours["segments"]], [each["text"] for each in expected])
                for mine, theirs in zip(ours["segments"], expected):
                    self.assertAlmostEqual(mine["start"], theirs["start"], delta=0.04)
                    self.assertAlmostEqual(mine["end"], theirs["end"], delta=0.04)
                    for word, known in zip(mine.get("words", []), theirs.get("words", [])):
                        self.assertEqual(word["word"], known[0])
                        self.assertAlmostEqual(word["start"], known[1], delta=0.04)
                        self.assertAlmostEqual(word["end"], known[2], delta=0.04)
                self.assertAlmostEqual(ours["duration"], len(mix()) / 16000, delta=0.01)

    def test_english_tiny(self):
        self.compare("whisper-tiny.en")

    def test_base(self):
        self.compare("whisper-base")

    def test_of_silence_and_noise_comes_no_text(self):
        dice = random.Random(3)
        for sound in (silence(90 * 16000), array.array("h", [int(dice.gauss(0, 300)) for _ in range(60 * 16000)])):
            write(self.sound, sound)
            heard = self.heard("whisper-tiny.en")
            self.assertEqual((heard["text"], heard["segments"]), ("", []))
            self.assertEqual(heard["duration"], len(sound) / 16000)


if __name__ == "__main__":
    unittest.main(verbosity=2)
