#!/usr/bin/env python3
"""`mstar transcribe` against tests/golden/whisper: the same text, token ids and times as faster-whisper heard in the same clips.

Usage: golden_test.py PATH_TO_MSTAR [unittest options]. Weights are those of the user's cache; a golden whose weights are not there, or
whose clips are not the installed pocketsphinx-testdata's, is skipped. tools/golden/whisper.sh makes the goldens again.

With 8-bit weights rounding makes a large step of a small difference, so a clip may be heard as the golden says or as one of its `shaken`
answers: what the oracle itself hears when its samples are off by 3e-7. Joined clips have none and are left out there.
"""
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import wave

MSTAR = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else "mstar"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "mstar/weights"
GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden/whisper"
CLIPS = pathlib.Path("/usr/share/pocketsphinx/test/data")
WAIT_S = 600  # sanitizers and busy machines are slow; nothing here measures time


def frames_of(name):
    """16 kHz mono s16 samples of a clip."""
    if name.endswith(".raw"):
        raw = (CLIPS / name).read_bytes()
        return raw[:len(raw) // 2 * 2]
    with wave.open(str(CLIPS / name)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (16000, 1, 2), name
        return file.readframes(file.getnframes())


def write_sound(path, entry):
    gap = bytes(2 * entry.get("gap_samples", 0))
    with wave.open(str(path), "wb") as out:
        out.setparams((1, 2, 16000, 0, "NONE", ""))
        out.writeframes(gap.join(frames_of(part) for part in entry.get("parts", [entry["file"]])))


def heard(model, kind, entries):
    """Our transcripts of the entries, in their order."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [pathlib.Path(folder) / ("%02d.wav" % i) for i in range(len(entries))]
        for path, entry in zip(paths, entries):
            write_sound(path, entry)
        subprocess.run([MSTAR, "transcribe", "-q", "--model", model, "--weights", kind, "--format", "json", "--param", "temperature_increment_on_fallback=0", "--output", folder,
                        *map(str, paths)], check=True, timeout=WAIT_S)
        return [json.loads(path.with_suffix(".wav.json").read_text() if path.with_suffix(".wav.json").exists()
                           else path.with_suffix(".json").read_text()) for path in paths]


class Golden(unittest.TestCase):
    maxDiff = None

    def golden(self, name):
        """(model, entries) of a golden file."""
        golden = json.loads((GOLDEN / name).read_text())
        model = CACHE / golden["weights"]
        if not model.is_dir():
            self.skipTest("no weights in the cache: ./dev weights %s" % golden["weights"])
        if not CLIPS.is_dir():
            self.skipTest("the package pocketsphinx-testdata is not installed")
        for entry in golden["files"]:
            if "sha256" in entry and hashlib.sha256((CLIPS / entry["file"]).read_bytes()).hexdigest() != entry["sha256"]:
                self.skipTest("%s is not the clip that was recorded" % entry["file"])
        return model, golden["files"]

    def compare_all(self, name):
        model, entries = self.golden(name)
        for expected, actual in zip(entries, heard(model, "f32", entries)):
            with self.subTest(clip=expected["file"]):
                self.assertEqual(actual["text"].strip(), expected["text"])
                self.assertEqual(actual["language"], expected["language"])
                self.assertEqual([segment["tokens"] for segment in actual["segments"]],
                                 [segment["tokens"] for segment in expected["segments"]])
                self.assertEqual([segment["seek"] for segment in actual["segments"]],
                                 [segment["seek_frames"] for segment in expected["segments"]])
                for ours, theirs in zip(actual["segments"], expected["segments"]):
                    self.assertAlmostEqual(ours["start"], theirs["start"], delta=0.0011)
                    self.assertAlmostEqual(ours["end"], theirs["end"], delta=0.0011)
                    self.assertAlmostEqual(ours["avg_logprob"], theirs["avg_logprob"], delta=1e-3)
                    self.assertAlmostEqual(ours["no_speech_prob"], theirs["no_speech_prob"], delta=1e-3)
                    self.assertAlmostEqual(ours["compression_ratio"], theirs["compression_ratio"], delta=1e-3)

    def test_english_tiny(self):
        self.compare_all("tiny.en_librivox.json")

    def test_multilingual_base(self):
        self.compare_all("base_librivox.json")

    def test_english_tiny_of_8_bits(self):
        model, entries = self.golden("tiny.en_librivox_int8.json")
        entries = [entry for entry in entries if "shaken" in entry]
        self.assertGreater(len(entries), 9)
        for expected, actual in zip(entries, heard(model, "i8", entries)):
            with self.subTest(clip=expected["file"]):
                tokens = [segment["tokens"] for segment in actual["segments"]]
                answers = [{"text": expected["text"], "tokens": [segment["tokens"] for segment in expected["segments"]]}]
                answers += expected["shaken"]
                self.assertIn({"text": actual["text"].strip(), "tokens": tokens}, answers)


if __name__ == "__main__":
    unittest.main(verbosity=2)
