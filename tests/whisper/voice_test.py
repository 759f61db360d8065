#!/usr/bin/env python3
"""`mstar transcribe --vad` against what faster-whisper says of the same sound (tests/golden/whisper/*_voice.json), and of silence alone.

Usage: voice_test.py PATH_TO_MSTAR [unittest options]. Skipped as golden_test.py is, and without the weights silero-vad.
"""
import array
import difflib
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

    def test_parts_at_the_same_time(self):
        golden = json.loads((GOLDEN / "base_voice.json").read_text())["filter"]
        write(self.sound, mix())
        heard = [self.heard("whisper-base", "--parallel", "--max-requests", str(n)) for n in (1, 4)]
        self.assertEqual(heard[0], heard[1])
        words = lambda text: "".join(c for c in text.lower() if c.isalnum() or c == " ").split()  # noqa: E731
        expected = words(" ".join(each["text"] for each in golden))
        self.assertGreater(difflib.SequenceMatcher(None, words(heard[0]["text"]), expected).ratio(), 0.93)
        self.assertAlmostEqual(heard[0]["duration"], len(mix()) / 16000, delta=0.01)
        self.assertEqual(heard[0]["language"], "en")
        starts = [each["start"] for each in heard[0]["segments"]]
        self.assertEqual(starts, sorted(starts))
        self.assertEqual([each["id"] for each in heard[0]["segments"]], list(range(len(starts))))
        self.assertGreater(starts[0], 20)
        timed = self.heard("whisper-base", "--parallel", "--word-timestamps")
        times = [time for each in timed["segments"] for word in each["words"] for time in (word["start"], word["end"])]
        self.assertEqual(times, sorted(times))
        self.assertGreater(len(times), 100)

    def test_live_from_a_pipe(self):
        paths = sorted(CLIPS.glob("*.wav"))[:2]
        samples = array.array("h")
        for path in paths:
            samples += read(path) + silence(16000)
        write(self.sound, samples)
        once = self.heard("whisper-tiny.en")["text"]
        for what, flags in ((samples.tobytes(), ["--rate", "16000"]), (self.sound.read_bytes(), [])):
            live = subprocess.run([MSTAR, "transcribe", "-q", "--live", "--model", "whisper-tiny.en", "--weights", "f32", *flags, "-"], input=what,
                                  check=True, capture_output=True, timeout=300).stdout.decode()
            self.assertEqual(len(live.splitlines()), 2, live)  # a line for each turn
            words = lambda text: "".join(c for c in text.lower() if c.isalnum() or c.isspace()).split()  # noqa: E731
            self.assertGreater(difflib.SequenceMatcher(None, words(live), words(once)).ratio(), 0.8, (live, once))
        for what, said in ((b"fLaC" + bytes(100), "raw 16-bit"), (b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\3\0\1\0" + bytes(100), "16-bit samples")):
            bad = subprocess.run([MSTAR, "transcribe", "--live", "--model", "whisper-tiny.en", "-"], input=what, capture_output=True, timeout=300)
            self.assertEqual(bad.returncode, 2)
            self.assertIn(said, bad.stderr.decode())

    def test_of_silence_and_noise_comes_no_text(self):
        dice = random.Random(3)
        for sound in (silence(90 * 16000), array.array("h", [int(dice.gauss(0, 300)) for _ in range(60 * 16000)])):
            write(self.sound, sound)
            for options in ((), ("--parallel",)):
                heard = self.heard("whisper-tiny.en", *options)
                self.assertEqual((heard["text"], heard["segments"]), ("", []))
                self.assertEqual(heard["duration"], len(sound) / 16000)


if __name__ == "__main__":
    unittest.main(verbosity=2)
