#!/usr/bin/env python3
"""`mstar transcribe --word-timestamps` against what faster-whisper says of the same clips (tests/golden/whisper/*_words.json).

Usage: words_test.py PATH_TO_MSTAR [unittest options]. Skipped as golden_test.py is. Equal within 20 ms are at least 98 % of the words; all
are in order, and several recordings at once get the bytes that each gets alone.
"""
import json
import pathlib
import subprocess
import tempfile
import unittest

import golden_test
from golden_test import MSTAR, write_sound

OPTIONS = ["--weights", "f32", "--format", "json", "--word-timestamps", "--param", "temperature_increment_on_fallback=0"]


def heard(model, entries, further=()):
    """Our transcripts' bytes, in the entries' order."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [pathlib.Path(folder) / ("%02d.wav" % i) for i in range(len(entries))]
        for path, entry in zip(paths, entries):
            write_sound(path, entry)
        subprocess.run([MSTAR, "transcribe", "-q", "--model", model, *OPTIONS, *further, "--output", folder, *map(str, paths)],
                       check=True, timeout=600)
        return [next(each for each in (path.with_suffix(".wav.json"), path.with_suffix(".json")) if each.exists()).read_bytes()
                for path in paths]


def words_of(entry):
    return [tuple(word) for segment in entry["segments"] for word in segment["words"]]


def our_words(transcript):
    return [(word["word"], word["start"], word["end"], word["probability"])
            for segment in json.loads(transcript)["segments"] for word in segment["words"]]


class Words(unittest.TestCase):
    golden = golden_test.Golden.golden

    def compare(self, name):
        model, entries = self.golden(name)
        num_words = num_close = 0
        for expected, transcript in zip(entries, heard(model, entries)):
            ours, theirs = our_words(transcript), words_of(expected)
            with self.subTest(clip=expected["file"]):
                self.assertEqual([word[0] for word in ours], [word[0] for word in theirs])
                end = 0
                for word, known in zip(ours, theirs):
                    num_words += 1
                    num_close += abs(word[1] - known[1]) <= 0.0205 and abs(word[2] - known[2]) <= 0.0205
                    self.assertAlmostEqual(word[3], known[3], delta=2e-3)
                    self.assertLessEqual(end, word[1])
                    self.assertLessEqual(word[1], word[2])
                    end = word[2]
        print("%s: %d of %d words within 20 ms" % (name, num_close, num_words), flush=True)
        self.assertGreater(num_words, 100)
        self.assertGreaterEqual(num_close, 0.98 * num_words)

    def test_words_of_english_tiny(self):
        self.compare("tiny.en_words.json")

    def test_words_of_base(self):
        self.compare("base_words.json")

    def test_several_at_once_get_what_each_gets_alone(self):
        model, entries = self.golden("tiny.en_words.json")
        entries = entries[:4]
        together = heard(model, entries, ["--max-requests", "4"])
        self.assertEqual(together, heard(model, entries, ["--max-requests", "1"]))


if __name__ == "__main__":
    unittest.main(verbosity=2)
