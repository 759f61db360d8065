#!/usr/bin/env python3
"""The official OpenAI client against a running server.

Usage: openai_client_test.py [BASE_URL [MODEL [AUDIO_FILE]]] [unittest options]
or the variables MSTAR_URL, MSTAR_MODEL and MSTAR_AUDIO. Defaults: http://127.0.0.1:8000, whisper-1, and one second of a tone.
With MSTAR_FAKE=1 the server is server_demo, whose transcript is known. Needs the PyPI package openai.
"""
import io
import math
import os
import re
import struct
import sys
import unittest
import wave

import openai


def tone():
    """One second of 440 Hz, 16 kHz mono, as a WAV file in memory."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(b"".join(struct.pack("<h", int(8000 * math.sin(2 * math.pi * 440 * i / 16000)))
                                  for i in range(16000)))
    return "tone.wav", out.getvalue()


def positional(index, variable, default):
    values = [a for a in sys.argv[1:] if not a.startswith("-")]
    return values[index] if len(values) > index else os.environ.get(variable, default)


URL = positional(0, "MSTAR_URL", "http://127.0.0.1:8000").rstrip("/")
MODEL = positional(1, "MSTAR_MODEL", "whisper-1")
AUDIO = positional(2, "MSTAR_AUDIO", "")
FAKE = os.environ.get("MSTAR_FAKE") == "1"


def audio():
    if not AUDIO:
        return tone()
    with open(AUDIO, "rb") as file:
        return os.path.basename(AUDIO), file.read()


class OpenAiClient(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.client = openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0, timeout=300)
        cls.whole = cls.client.audio.transcriptions.create(file=audio(), model=MODEL, temperature=0)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()

    def transcribe(self, **options):
        options.setdefault("temperature", 0)
        return self.client.audio.transcriptions.create(file=audio(), model=MODEL, **options)

    def test_models(self):
        ids = [model.id for model in self.client.models.list()]
        self.assertIn(MODEL, ids)
        model = self.client.models.retrieve(MODEL)
        self.assertEqual((model.id, model.object), (MODEL, "model"))
        self.assertIsInstance(model.created, int)
        with self.assertRaises(openai.NotFoundError) as caught:
            self.client.models.retrieve("no-such-model")
        self.assertEqual(caught.exception.code, "model_not_found")

    def test_json(self):
        self.assertIsInstance(self.whole.text, str)
        self.assertEqual(self.whole.usage.type, "duration")
        self.assertGreater(self.whole.usage.seconds, 0)
        if FAKE:
            self.assertEqual(self.whole.text, "Hello world. Bye.")

    def test_text(self):
        self.assertEqual(self.transcribe(response_format="text"), self.whole.text + "\n")

    def test_subtitles(self):
        srt = self.transcribe(response_format="srt")
        vtt = self.transcribe(response_format="vtt")
        self.assertTrue(vtt.startswith("WEBVTT\n\n"))
        cues = re.findall(r"(?m)^(\d\d:\d\d:\d\d,\d{3}) --> (\d\d:\d\d:\d\d,\d{3})$", srt)
        self.assertEqual([(a.replace(",", "."), b.replace(",", ".")) for a, b in cues],
                         re.findall(r"(?m)^(\d\d:\d\d:\d\d\.\d{3}) --> (\d\d:\d\d:\d\d\.\d{3})$", vtt))
        if self.whole.text:
            self.assertTrue(cues)

    def test_verbose_json(self):
        verbose = self.transcribe(response_format="verbose_json", timestamp_granularities=["segment"])
        self.assertEqual(verbose.text, self.whole.text)
        self.assertGreater(verbose.duration, 0)
        self.assertRegex(verbose.language, r"^[a-z ]+$")
        self.assertEqual("".join(s.text for s in verbose.segments).lstrip(), verbose.text)
        for segment in verbose.segments:
            self.assertLessEqual(segment.start, segment.end)
            self.assertTrue(all(isinstance(t, int) for t in segment.tokens))
            self.assertIsInstance(segment.avg_logprob, (int, float))
        if FAKE:
            self.assertEqual(verbose.language, "english")

    def test_stream(self):
        with self.transcribe(stream=True) as stream:
            events = list(stream)
        self.assertEqual(events[-1].type, "transcript.text.done")
        deltas = events[:-1]
        self.assertTrue(all(e.type == "transcript.text.delta" for e in deltas))
        self.assertEqual("".join(e.delta for e in deltas), events[-1].text)
        self.assertEqual(events[-1].text, self.whole.text)
        usage = events[-1].usage
        self.assertEqual(usage.total_tokens, usage.input_tokens + usage.output_tokens)

    def test_a_stream_may_be_left(self):
        stream = self.transcribe(stream=True)
        next(iter(stream))
        stream.close()
        self.assertEqual(self.transcribe().text, self.whole.text)

    def test_errors(self):
        with self.assertRaises(openai.NotFoundError) as caught:
            self.client.audio.transcriptions.create(file=audio(), model="no-such-model")
        self.assertEqual((caught.exception.code, caught.exception.param), ("model_not_found", "model"))
        self.assertTrue(caught.exception.request_id)
        for options, param in (({"response_format": "xml"}, "response_format"),
                               ({"temperature": 7}, "temperature"),
                               ({"timestamp_granularities": ["word"]}, "timestamp_granularities"),
                               ({"extra_body": {"seed": "x"}}, "seed")):
            with self.subTest(param), self.assertRaises(openai.BadRequestError) as caught:
                self.transcribe(**options)
            self.assertEqual(caught.exception.param, param)
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.audio.transcriptions.create(file=("empty.wav", b""), model=MODEL)
        self.assertEqual(caught.exception.param, "file")
        with self.assertRaises(openai.NotFoundError):
            self.client.embeddings.create(input="x", model="no-such-route-yet")

    @unittest.skipIf(FAKE, "the fake model takes any bytes")
    def test_bytes_that_are_no_audio(self):
        for name, data in (("a.wav", b"this is text, not audio" * 100), ("b.wav", audio()[1][:30])):
            with self.subTest(name), self.assertRaises(openai.BadRequestError):
                self.client.audio.transcriptions.create(file=(name, data), model=MODEL)

    @unittest.skipUnless(FAKE, "needs a model that fails on demand")
    def test_a_late_error_is_raised(self):
        with self.assertRaises(openai.APIError) as caught:
            list(self.transcribe(stream=True, prompt="fail late"))
        self.assertIn("the fake model failed", str(caught.exception))
        with self.assertRaises(openai.InternalServerError):
            self.transcribe(prompt="fail late")

    def test_translations(self):
        try:
            done = self.client.audio.translations.create(file=audio(), model=MODEL, response_format="verbose_json")
        except openai.NotFoundError as error:
            self.skipTest(f"{MODEL} does not translate: {error}")
        self.assertEqual(done.language, "english")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]] + [a for a in sys.argv[1:] if a.startswith("-")])
