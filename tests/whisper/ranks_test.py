#!/usr/bin/env python3
"""A real Whisper cut over ranks hears what one rank hears: whisper-tiny.en, whose six heads go over two ranks and over three,
and whose positions over two.

Usage: ranks_test.py PATH_TO_MSTAR [unittest options]. Skipped without the weights in the user's cache or the clip.
"""
import json
import os
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from served import MODEL, SPEECH, Served, in_use, why_not  # noqa: E402

MSTAR = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else "mstar"
PARTS = ["features", "encoder", "cross", "decoder"]


@unittest.skipIf(why_not(), why_not())
class Ranks(unittest.TestCase):
    def heard(self, **keys):
        """Segments of the clip; at the end no rank holds anything."""
        ranks = list(range(keys.get("tp_size", 1) * keys.get("sp_size", 1)))
        config = {"model": MODEL, "name": "m", "device": "cpu", "options": {"weights": "f32"},
                  "node_groups": [{"components": PARTS, "ranks": ranks, **keys}]}
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "config.yaml"
            path.write_text(json.dumps(config))  # JSON is YAML
            server = Served(MSTAR, path)
            self.addCleanup(server.process.stderr.close)
            self.addCleanup(server.process.wait)
            self.addCleanup(server.process.kill)
            answer = server.ask("/v1/audio/transcriptions", {"model": "m", "temperature": "0", "response_format": "verbose_json"},
                                "a.wav", SPEECH.read_bytes())
            self.assertEqual(answer[0], 200, answer)
            self.assertEqual(in_use(server.wait_for(lambda m: not in_use(m))), {})
            self.assertEqual(server.stop(), 0)
        said = answer[2] if isinstance(answer[2], dict) else json.loads(answer[2])
        return [(each["start"], each["end"], each["text"]) for each in said["segments"]]

    def test_the_same_transcript(self):
        alone = self.heard()
        self.assertGreater(len("".join(text for _, _, text in alone)), 40)
        for mesh in ({"tp_size": 2}, {"tp_size": 3}, {"sp_size": 2}, {"tp_size": 3, "sp_size": 2}):
            with self.subTest(**mesh):
                self.assertEqual(self.heard(**mesh), alone)


if __name__ == "__main__":
    unittest.main()
