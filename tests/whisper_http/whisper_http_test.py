#!/usr/bin/env python3
"""Whisper's real weights behind the real server: counts, batches, boots, queues and clients that go.

Usage: whisper_http_test.py PATH_TO_MSTAR [unittest options]. Needs whisper-tiny.en of the user's cache, or the directory that
MSTAR_TEST_MODEL names, and the speech of pocketsphinx-testdata; skipped without.
"""
import concurrent.futures
import json
import os
import pathlib
import socket
import struct
import sys
import tempfile
import unittest
import wave

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from served import CLIPS, MODEL, SPEECH, Served, in_use, wav, why_not  # noqa: E402

MSTAR = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else "mstar"
SAID = "He might even have been made amiable himself."
TRANSCRIBE, GENERATE = "/v1/audio/transcriptions", "/generate"
CAP, QUEUE = 1, 2  # of the small server


def speech(times):
    with wave.open(str(SPEECH)) as file:
        return wav(file.readframes(file.getnframes()) * times)


def events(body):
    """The events of a text/event-stream."""
    return [json.loads(line[6:]) for line in body.decode().split("\n") if line.startswith("data: ")]


def text_of(path, streamed, body):
    if path == TRANSCRIBE:
        return events(body)[-1]["text"] if streamed else json.loads(body)["text"]
    return body


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if reason := why_not():
            raise unittest.SkipTest(reason)
        cls.clip = SPEECH.read_bytes()
        cls.server = cls.start()

    @classmethod
    def tearDownClass(cls):
        status = cls.server.stop()
        assert status == 0, f"the server ended with {status}"

    def tearDown(self):
        self.assertEqual(in_use(self.server.wait_for(lambda m: not in_use(m))), {}, "not everything came back")

    def ask(self, path, fields, data=None, server=None):
        return (server or self.server).ask(path, fields, "clip.wav", self.clip if data is None else data)

    def counted(self):
        """Tokens of the requests that ended, once all did."""
        return int(self.server.wait_for(lambda m: not in_use(m))["mstar_generated_tokens_total"])


class Large(Case):
    """A server with room for all."""

    @classmethod
    def start(cls):
        return Served(MSTAR, MODEL, "--alias", "whisper-1", "--max-requests", "16")

    def test_counts_are_exact(self):
        whole = json.loads(self.ask(GENERATE, {"streaming": "false"})[2])
        natural = whole["usage"]["completion_tokens"]
        self.assertTrue(4 < natural < 16, natural)
        texts = {}
        for path in (GENERATE, TRANSCRIBE):
            for max_tokens in (1, 2, 4, 16):
                for ignore_eos in (False, True):
                    for streamed in (False, True):
                        with self.subTest(path=path, max_tokens=max_tokens, ignore_eos=ignore_eos, streamed=streamed):
                            wanted = max_tokens if ignore_eos else min(max_tokens, natural)
                            before = self.counted()
                            fields = {"max_tokens": max_tokens, "ignore_eos": str(ignore_eos).lower(),
                                      "streaming" if path == GENERATE else "stream": str(streamed).lower(),
                                      "request_id" if path == GENERATE else "model": "whisper-1"}
                            status, _, body = self.ask(path, fields)
                            self.assertEqual(status, 200, body)
                            self.assertEqual(self.counted() - before, wanted)
                            if path == GENERATE and not streamed:
                                self.assertEqual(json.loads(body)["usage"]["completion_tokens"], wanted)
                            if path == TRANSCRIBE and streamed:
                                self.assertEqual(events(body)[-1]["usage"]["output_tokens"], wanted)
                            if path == TRANSCRIBE:
                                text = text_of(path, streamed, body)
                                self.assertEqual(texts.setdefault((max_tokens, ignore_eos), text), text)
        self.assertEqual(texts[16, False], SAID)
        self.assertEqual(texts[4, False], texts[4, True])

    def mixed(self):
        clips = [path.read_bytes() for path in sorted(CLIPS.glob("*.wav"))]
        self.assertGreaterEqual(len(clips), 3)
        return [(TRANSCRIBE, {"model": "whisper-1"}, self.clip),
                (TRANSCRIBE, {"model": "whisper-1", "response_format": "verbose_json"}, clips[0]),
                (TRANSCRIBE, {"model": "whisper-1", "stream": "true"}, clips[1]),
                (TRANSCRIBE, {"model": "whisper-1", "temperature": "0.8", "seed": "7", "response_format": "verbose_json"}, clips[2]),
                (TRANSCRIBE, {"model": "whisper-1", "max_tokens": "3", "response_format": "text"}, clips[0]),
                (GENERATE, {"request_id": "mixed", "streaming": "false", "max_tokens": "40", "ignore_eos": "true"}, self.clip),
                (TRANSCRIBE, {"model": "whisper-1", "response_format": "srt", "prompt": "A novel."}, speech(10)),  # two windows
                (TRANSCRIBE, {"model": "whisper-1", "response_format": "verbose_json", "timestamp_granularities[]": "word"}, clips[1]),
                (TRANSCRIBE, {"model": "whisper-1", "response_format": "verbose_json", "timestamp_granularities[]": "word"}, speech(10)),
                (GENERATE, {"request_id": "mixed-2", "streaming": "true"}, clips[-1])]

    def test_eight_together_are_as_one_by_one_and_as_another_boot(self):
        requests = self.mixed()
        alone = [self.ask(*request) for request in requests]
        with concurrent.futures.ThreadPoolExecutor(len(requests)) as threads:
            together = list(threads.map(lambda request: self.ask(*request), requests))
        other = Served(MSTAR, MODEL, "--alias", "whisper-1")
        try:
            again = [self.ask(*request, server=other) for request in requests]
        finally:
            self.assertEqual(other.stop(), 0)
        for request, first, second, third in zip(requests, alone, together, again):
            with self.subTest(request[:2]):
                self.assertEqual(first[0], 200, first[2])
                self.assertEqual(first[2], second[2], "together")
                self.assertEqual(first[2], third[2], "another boot")

    def segments(self, data=None, **fields):
        status, _, body = self.ask(TRANSCRIBE, {"model": "whisper-1", "response_format": "verbose_json", **fields}, data)
        self.assertEqual(status, 200, body)
        return json.loads(body)["segments"]

    def test_a_doubtful_window_is_drawn_again_hotter(self):
        plain = self.segments()
        self.assertEqual({each["temperature"] for each in plain}, {0})
        # Nothing is as likely as that: all temperatures are tried, and the likeliest text of them is taken.
        hot = {"log_prob_threshold": "1", "seed": "3"}
        last = self.segments(**hot)
        self.assertEqual({each["temperature"] for each in last}, {1})
        self.assertGreaterEqual(last[0]["avg_logprob"], plain[0]["avg_logprob"])
        self.assertEqual(last, self.segments(**hot), "the same seed, the same text")
        two = self.segments(temperature_increment_on_fallback="0.4", log_prob_threshold="1")
        self.assertEqual({round(each["temperature"], 6) for each in two}, {0.8})
        self.assertEqual(self.segments(temperature_increment_on_fallback="0", log_prob_threshold="1"), plain)

    def test_words_have_times(self):
        fields = {"model": "whisper-1", "response_format": "verbose_json", "timestamp_granularities[]": "word"}
        status, _, body = self.ask(TRANSCRIBE, fields, speech(10))
        self.assertEqual(status, 200, body)
        answer = json.loads(body)
        self.assertNotIn("segments", answer)
        self.assertEqual(" ".join(word["word"] for word in answer["words"]).split(), answer["text"].split())
        end = 0
        for word in answer["words"]:
            self.assertLessEqual(end, word["start"], word)
            self.assertLessEqual(word["start"], word["end"], word)
            self.assertTrue(0 < word["probability"] <= 1, word)
            end = word["end"]
        self.assertGreater(end, 20)
        plain = self.segments()
        both = self.segments(word_timestamps="true", hallucination_silence_threshold="2")
        self.assertEqual([each["tokens"] for each in both], [each["tokens"] for each in plain])
        for field, value in (("hallucination_silence_threshold", "2"), ("word_timestamps", "perhaps"),
                             ("append_punctuations", "." * 2000)):
            status, _, body = self.ask(TRANSCRIBE, {"model": "whisper-1", field: value})
            self.assertEqual((status, json.loads(body)["error"]["param"]), (400, field), body)

    def test_clips_and_hotwords(self):
        long = speech(10)
        whole = self.segments(long)
        self.assertGreater(whole[-1]["end"], 20)
        first, second = 4.0, 9.5
        parts = self.segments(long, clip_timestamps="%g,%g,12,15" % (first, second))
        for each in parts:
            self.assertTrue(first <= each["start"] < second or 12 <= each["start"] < 15, each)
        self.assertEqual({each["seek"] for each in parts} & {400, 1200}, {400, 1200})
        self.assertEqual(self.segments(clip_timestamps="500"), [])  # behind its end
        self.assertIn("amiable", " ".join(each["text"] for each in self.segments(hotwords="amiable, sir")))
        for field, value in (("clip_timestamps", "3,2"), ("clip_timestamps", "x"), ("temperature_increment_on_fallback", "-1"),
                             ("no_speech_threshold", "high")):
            status, _, body = self.ask(TRANSCRIBE, {"model": "whisper-1", field: value})
            self.assertEqual((status, json.loads(body)["error"]["param"]), (400, field), body)

    def test_64_streams_finish_with_one_end_each(self):
        before = self.server.wait_for(lambda m: not in_use(m))
        fields = {"model": "whisper-1", "stream": "true", "max_tokens": "8"}
        with concurrent.futures.ThreadPoolExecutor(64) as threads:
            answers = list(threads.map(lambda _: self.ask(TRANSCRIBE, fields), range(64)))
        after = self.server.wait_for(lambda m: not in_use(m))
        for status, headers, body in answers:
            self.assertEqual((status, headers["content-type"].split(";")[0]), (200, "text/event-stream"))
            kinds = [event["type"] for event in events(body)]
            self.assertEqual((kinds.count("transcript.text.done"), kinds[-1]), (1, "transcript.text.done"))
            self.assertEqual(events(body), events(answers[0][2]))
        grown = {name: after[name] - before.get(name, 0) for name in after if name.startswith("mstar_requests_total")}
        self.assertEqual(grown, {'mstar_requests_total{outcome="finished"}': 64, 'mstar_requests_total{outcome="failed"}': 0,
                                 'mstar_requests_total{outcome="cancelled"}': 0})
        self.assertEqual(after["mstar_generated_tokens_total"] - before["mstar_generated_tokens_total"], 64 * 8)

    def test_bad_files_fail_alone(self):
        bad = [b"", b"this is text, not audio " * 100, self.clip[:30], b"RIFF\xff\xff\xff\xffWAVEfmt " + bytes(60), b"\x00" * 4096,
               b"fLaC" + os.urandom(2000), b"OggS" + bytes(500)]
        with concurrent.futures.ThreadPoolExecutor(16) as threads:
            good = [threads.submit(self.ask, TRANSCRIBE, {"model": "whisper-1"}) for _ in range(2)]
            refused = [threads.submit(self.ask, TRANSCRIBE, {"model": "whisper-1"}, data) for data in bad]
        for answer in good:
            self.assertEqual(json.loads(answer.result()[2])["text"], SAID)
        for data, answer in zip(bad, refused):
            status, _, body = answer.result()
            with self.subTest(data[:12]):
                self.assertEqual((status, json.loads(body)["error"]["param"]), (400, "file"), body)

    def test_very_short_audio(self):
        for frames in (0, 1, 800, 1599):  # 0.05 s; less than 0.1 s
            status, _, body = self.ask(TRANSCRIBE, {"model": "whisper-1"}, wav(bytes(2 * frames)))
            self.assertEqual((status, json.loads(body)["error"]["param"]), (400, "file"), body)
        self.assertEqual(self.ask(TRANSCRIBE, {"model": "whisper-1", "max_tokens": "4"}, wav(bytes(3200)))[0], 200)


class Small(Case):
    """A server that works on one request and lets two more wait."""

    @classmethod
    def start(cls):
        cls.dir = tempfile.TemporaryDirectory(prefix="mstar_http_")
        cls.addClassCleanup(cls.dir.cleanup)
        config = pathlib.Path(cls.dir.name) / "c.yaml"
        config.write_text(f"model: {MODEL}\nname: whisper\nmax_concurrent_requests: {CAP}\nmax_queued_requests: {QUEUE}\n")
        return Served(MSTAR, config)

    def long_stream(self):
        """A streamed request that would take long, once its first text is there."""
        fields = {"model": "whisper", "stream": "true"}
        connection, answer = self.server.begin(TRANSCRIBE, fields, "long.wav", self.long)
        self.assertEqual(answer.status, 200)
        while not answer.readline().startswith(b"data: "):
            pass
        return connection, answer

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.long = speech(400)  # 22 minutes

    @staticmethod
    def leave(connection, answer, reset=True):
        if reset:  # RST instead of FIN
            answer.fp.raw._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        answer.close()
        connection.close()

    def test_more_than_the_cap_wait_and_the_rest_are_sent_away(self):
        running = self.long_stream()
        fields = {"model": "whisper", "max_tokens": "4"}
        with concurrent.futures.ThreadPoolExecutor(QUEUE) as threads:
            waiting = [threads.submit(self.ask, TRANSCRIBE, fields) for _ in range(QUEUE)]
            full = self.server.wait_for(lambda m: m["mstar_requests_waiting"] == QUEUE)
            self.assertEqual((full["mstar_requests_running"], full["mstar_requests_waiting"]), (CAP, QUEUE))
            for path, more in ((TRANSCRIBE, fields), (TRANSCRIBE, dict(fields, stream="true")), (GENERATE, {})):
                status, headers, body = self.ask(path, more)
                self.assertEqual((status, json.loads(body)["error"]["code"]), (429, "rate_limit_exceeded"))
                self.assertGreaterEqual(int(headers["retry-after"]), 1)
            self.leave(*running)
            for answer in waiting:
                status, _, body = answer.result()
                self.assertEqual(status, 200, body)

    def test_a_client_that_goes_ends_its_work(self):
        for reset in (True, False):
            with self.subTest(reset=reset):
                before = self.server.wait_for(lambda m: not in_use(m))
                running = self.long_stream()
                busy = self.server.metrics()
                self.assertGreater(sum(v for name, v in busy.items() if name.startswith("mstar_resource_used")), 0)
                self.leave(*running, reset=reset)
                after = self.server.wait_for(lambda m: not in_use(m))
                self.assertEqual(in_use(after), {})
                for name in ('mstar_requests_total{outcome="cancelled"}', 'mstar_http_aborted_total{reason="client_gone"}'):
                    self.assertEqual(after[name] - before.get(name, 0), 1, name)
                steps = [sum(v for name, v in m.items() if name.startswith("mstar_steps_total"))
                         for m in (self.server.metrics(), self.server.metrics())]
                self.assertEqual(*steps, "it still works for nobody")

    def test_a_client_that_goes_while_it_waits(self):
        running = self.long_stream()
        leaver = self.server.send(TRANSCRIBE, {"model": "whisper"}, "clip.wav", self.clip)
        self.assertEqual(self.server.wait_for(lambda m: m["mstar_requests_waiting"] == 1)["mstar_requests_waiting"], 1)
        leaver.close()
        self.assertEqual(self.server.wait_for(lambda m: m["mstar_requests_waiting"] == 0)["mstar_requests_waiting"], 0)
        self.leave(*running)


if __name__ == "__main__":
    unittest.main()
