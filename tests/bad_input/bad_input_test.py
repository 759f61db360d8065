#!/usr/bin/env python3
"""What bad input gets from the real binary with a small seeded Whisper: a clear answer, and nothing else is disturbed.

Usage: bad_input_test.py PATH_TO_MSTAR [unittest options]. Needs no weights: tests/golden/whisper_tiny_seeded.
"""
import concurrent.futures
import http.client
import json
import math
import os
import pathlib
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from served import WAIT_S, Served, form, in_use, wav  # noqa: E402

MSTAR = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else "mstar"
MODEL = ROOT / "tests/golden/whisper_tiny_seeded/hf"
TRANSCRIBE = "/v1/audio/transcriptions"
BODY_LIMIT = 4 << 20


def tone(seconds):
    return wav(b"".join(struct.pack("<h", int(9000 * math.sin(i / 5) * math.sin(i / 3000))) for i in range(int(16000 * seconds))))


class Case(unittest.TestCase):
    """One server for all tests of a class; after each of them it still gives the answer that it gave at first."""
    limits = ""
    good = tone(1)
    ask_good = {"model": "w", "temperature": "0", "max_tokens": "6", "language": "en"}

    @classmethod
    def setUpClass(cls):
        cls.dir = pathlib.Path(tempfile.mkdtemp(prefix="mstar_bad_"))
        cls.addClassCleanup(shutil.rmtree, cls.dir, ignore_errors=True)
        (cls.dir / "c.yaml").write_text(f"model: {MODEL}\nname: w\naliases: [whisper-1]\nserver:\n  body_limit: {BODY_LIMIT}\n" + cls.limits)
        cls.server = Served(MSTAR, cls.dir / "c.yaml")
        cls.first = cls.server.ask(TRANSCRIBE, cls.ask_good, "a.wav", cls.good)
        assert cls.first[0] == 200, cls.first

    @classmethod
    def tearDownClass(cls):
        status = cls.server.stop()
        assert status == 0, f"the server ended with {status}"

    def tearDown(self):
        answer = self.server.ask(TRANSCRIBE, self.ask_good, "a.wav", self.good)
        self.assertEqual((answer[0], answer[2]), (self.first[0], self.first[2]), "another answer than before")
        self.assertEqual(in_use(self.server.wait_for(lambda m: not in_use(m))), {}, "not everything came back")

    def refused(self, answer, status, *words, param=None):
        self.assertEqual(answer[0], status, answer[2])
        error = json.loads(answer[2])["error"]
        for word in words:
            self.assertIn(word, error["message"])
        if param:
            self.assertEqual(error["param"], param)

    def raw(self, data, pause_s=0.0):
        """Status and body of the answer to raw bytes; status None when the connection was closed without one."""
        with socket.create_connection(("127.0.0.1", self.server.port), WAIT_S) as connection:
            connection.settimeout(WAIT_S)
            try:
                connection.sendall(data)
                time.sleep(pause_s)
            except OSError:  # closed while it was sent: the answer is there all the same
                pass
            answer = http.client.HTTPResponse(connection)
            try:
                answer.begin()
                return answer.status, None, answer.read()
            except (http.client.BadStatusLine, ConnectionResetError):
                return None, None, b""

    def post(self, body, content_type, length=None):
        head = (f"POST {TRANSCRIBE} HTTP/1.1\r\nHost: x\r\nContent-Type: {content_type}\r\n"
                f"Content-Length: {len(body) if length is None else length}\r\nConnection: close\r\n\r\n")
        return head.encode() + body


class Files(Case):
    def test_files_that_are_no_audio(self):
        wav = self.good
        containers = {path.suffix: path.read_bytes() for path in (ROOT / "tests/data/audio").glob("tone500*")}
        cases = {"empty": b"", "text": b"Dear Sir or Madam, " * 50, "a header alone": wav[:20], "no samples": wav[:44],
                 "zeros": bytes(5000), "a WAV of a wrong kind": wav[:20] + b"\x99\x00" + wav[22:],
                 "FLAC and noise": b"fLaC" + bytes(range(256)) * 8, "OGG and noise": b"OggS" + bytes(range(256)) * 8,
                 "M4A cut in its head": containers[".m4a"][:60], "MP4 with a damaged index": containers[".mp4"][:40] + bytes(3000),
                 "WebM cut": containers[".webm"][:50], "HTML": b"<!doctype html><html><body>404</body></html>"}
        for name, data in cases.items():
            with self.subTest(name):
                self.refused(self.server.ask(TRANSCRIBE, self.ask_good, "a.wav", data), 400, param="file")

    def test_a_truncated_file_is_heard_to_its_end_or_refused(self):
        for end in (len(self.good) // 2, len(self.good) - 1):
            status, _, body = self.server.ask(TRANSCRIBE, self.ask_good, "a.wav", self.good[:end])
            self.assertIn(status, (200, 400), body)

    def test_a_clip_of_a_twentieth_second(self):
        for seconds in (0.05, 1 / 16000):
            status, _, body = self.server.ask(TRANSCRIBE, dict(self.ask_good, response_format="verbose_json"), "a.wav", tone(seconds))
            self.assertIn(status, (200, 400), body)
            if status == 200:
                self.assertAlmostEqual(json.loads(body)["duration"], seconds, places=2)

    def test_bad_ones_among_good_ones(self):
        with concurrent.futures.ThreadPoolExecutor(12) as threads:
            good = [threads.submit(self.server.ask, TRANSCRIBE, self.ask_good, "a.wav", self.good) for _ in range(6)]
            bad = [threads.submit(self.server.ask, TRANSCRIBE, self.ask_good, "a.wav", b"no audio") for _ in range(6)]
        self.assertEqual({answer.result()[2] for answer in good}, {self.first[2]})
        self.assertEqual({answer.result()[0] for answer in bad}, {400})


class Fields(Case):
    def ask(self, fields, name="a.wav"):
        return self.server.ask(TRANSCRIBE, fields, name, self.good)

    def test_an_unknown_model(self):
        self.refused(self.ask({"model": "whisper-9"}), 404, "'whisper-9' does not exist", "w", param="model")
        self.refused(self.ask({"model": ""}), 400, param="model")

    def test_an_unknown_language(self):
        for language in ("klingon", "xx", "e", "<|en|>", "\u00e9"):
            self.refused(self.ask({"model": "w", "language": language}), 400, "language", param="language")

    def test_values_out_of_range(self):
        for name, value in (("temperature", "hot"), ("temperature", "-1"), ("max_tokens", "0"), ("max_tokens", "many"),
                            ("response_format", "pdf"), ("stream", "perhaps"), ("seed", "1.5")):
            with self.subTest(name=name, value=value):
                self.refused(self.ask({"model": "w", name: value}), 400, param=name)

    def test_a_name_with_path_parts_is_a_name(self):
        before = sorted(self.dir.rglob("*"))
        for name in ("../../../../etc/passwd", "..\\..\\a.wav", "/dev/full", "a\u0000b.wav", "..", "x" * 3000, "\u202egpj.wav"):
            with self.subTest(name[:30]):
                status, _, body = self.ask(self.ask_good, name)
                self.assertEqual((status, body), (200, self.first[2]))
        self.assertEqual(sorted(self.dir.rglob("*")), before)


class Multipart(Case):
    def setUp(self):
        self.body, self.type = form(self.ask_good, "a.wav", self.good)
        self.boundary = self.type.split("boundary=")[1]

    def test_boundaries(self):
        for content_type in ("multipart/form-data", "multipart/form-data; boundary=", "multipart/form-data; boundary=" + "b" * 71,
                             'multipart/form-data; boundary="b'):
            with self.subTest(content_type[:50]):
                self.refused(self.raw(self.post(self.body, content_type)), 400, "boundary")
        self.refused(self.raw(self.post(self.body, "multipart/form-data; boundary=another")), 400)

    def test_cut_bodies(self):
        for end in (0, 10, len(self.body) // 2, len(self.body) - 2 - len(self.boundary) - 4):
            with self.subTest(end):
                self.refused(self.raw(self.post(self.body[:end], self.type)), 400)

    def test_a_part_without_an_end_of_its_header(self):
        body = f"--{self.boundary}\r\nContent-Disposition: form-data; name=\"file\"; x=".encode() + b"x" * (1 << 20)
        self.refused(self.raw(self.post(body, self.type)), 413, "header")
        self.refused(self.raw(self.post(f"--{self.boundary}\r\n".encode() + b"X: y\r\n" * 100_000, self.type)), 413, "header")

    def test_wrong_lengths(self):
        self.assertIn(self.raw(self.post(self.body, self.type, len(self.body) - 500))[0], (400, None))
        for length in ("-1", "abc", "99999999999999999999999", "1e3", "0x10"):
            with self.subTest(length):
                self.assertIn(self.raw(self.post(self.body, self.type, length))[0], (400, 413))
        twice = self.post(self.body, self.type).replace(b"Connection:", b"Content-Length: 3\r\nConnection:", 1)
        self.assertEqual(self.raw(twice)[0], 400)

    def test_too_many_parts(self):
        body = b"".join(f'--{self.boundary}\r\nContent-Disposition: form-data; name="f{i}"\r\n\r\nv\r\n'.encode() for i in range(20_000))
        self.refused(self.raw(self.post(body + f"--{self.boundary}--\r\n".encode(), self.type)), 413, "parts")

    def test_a_body_over_the_limit(self):
        body, content_type = form(self.ask_good, "a.wav", bytes(BODY_LIMIT + 1))
        self.refused(self.raw(self.post(body, content_type)), 413)
        self.refused(self.raw(self.post(b"", content_type, 1 << 50)), 413)
        # Without a length, in chunks: it is known only when it has come.
        head = f"POST {TRANSCRIBE} HTTP/1.1\r\nHost: x\r\nContent-Type: {content_type}\r\nTransfer-Encoding: chunked\r\n\r\n"
        chunk = f"{1 << 20:x}\r\n".encode() + bytes(1 << 20) + b"\r\n"
        first = f"{len(body[:2000]):x}\r\n".encode() + body[:2000] + b"\r\n"
        self.refused(self.raw(head.encode() + first + 6 * chunk + b"0\r\n\r\n"), 413)

    def test_an_endless_request_header(self):
        self.assertEqual(self.raw(b"GET /health HTTP/1.1\r\n" + b"X: y\r\n" * 100_000)[0], 431)


class Slow(Case):
    limits = "  header_timeout_s: 0.3\n  body_timeout_s: 0.3\n  min_bytes_per_s: 1000000\n"

    def test_slow_clients_do_not_hold_others_up(self):
        body, content_type = form(self.ask_good, "a.wav", self.good)
        request = self.post(body, content_type)
        answers = []
        slow = [threading.Thread(target=lambda data=data: answers.append(self.raw(data, 1.0)[0]))
                for data in (request[:20], request[:200], request[:len(request) // 2], b"") for _ in range(4)]
        for each in slow:
            each.start()
        self.assertEqual(self.server.ask(TRANSCRIBE, self.ask_good, "a.wav", self.good)[2], self.first[2])
        for each in slow:
            each.join()
        self.assertEqual(len(answers), len(slow))
        self.assertLessEqual(set(answers), {408, None})
        self.assertIn(408, answers)


class Weights(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="mstar_bad_"))
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        self.copy = self.dir / "model"
        shutil.copytree(MODEL, self.copy)
        self.file = self.copy / "model.safetensors"
        self.whole = self.file.read_bytes()
        self.head_bytes = struct.unpack("<Q", self.whole[:8])[0]
        self.head = json.loads(self.whole[8:8 + self.head_bytes])
        self.victim = next(name for name in self.head if name.endswith("encoder.layers.0.fc1.weight"))

    def serve(self):
        return subprocess.run([MSTAR, "serve", self.copy, "--port", "0"], capture_output=True, text=True, timeout=WAIT_S)

    def refused(self, *words):
        result = self.serve()
        self.assertEqual(result.returncode, 1, result.stderr)
        for word in ("model.safetensors", *words):
            self.assertIn(word, result.stderr)

    def write(self, head):
        data = json.dumps(head).encode()
        self.file.write_bytes(struct.pack("<Q", len(data)) + data + self.whole[8 + self.head_bytes:])

    def test_a_cut_file_names_a_tensor(self):
        last = max((name for name in self.head if name != "__metadata__"), key=lambda name: self.head[name]["data_offsets"][1])
        self.file.write_bytes(self.whole[:-10])
        self.refused(last)

    def test_wrong_offsets_shape_and_dtype_name_the_tensor(self):
        entry = self.head[self.victim]
        for change in ({"data_offsets": [entry["data_offsets"][0], entry["data_offsets"][1] + 4]}, {"dtype": "Q7"},
                       {"shape": [d + 1 for d in entry["shape"]]}):
            with self.subTest(change):
                self.write({**self.head, self.victim: {**entry, **change}})
                self.refused(self.victim)

    def test_a_missing_tensor_is_named(self):
        self.write({name.replace(self.victim, "model.encoder.other"): entry for name, entry in self.head.items()})
        result = self.serve()
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn(self.victim, result.stderr)

    def test_a_header_that_is_none(self):
        for data in (b"", b"\0" * 4, struct.pack("<Q", 1 << 60) + b"{}", self.whole[:100], b"<html>" * 100):
            with self.subTest(data[:8]):
                self.file.write_bytes(data)
                self.refused()

    def test_a_damaged_ctranslate2_file_names_the_tensor(self):
        shutil.rmtree(self.copy)
        shutil.copytree(ROOT / "tests/golden/whisper_tiny_seeded/ct2_f16", self.copy)
        for name in ("tokenizer.json", "preprocessor_config.json"):
            shutil.copy(MODEL / name, self.copy / name)
        self.assertIn("walk decode", subprocess.run([MSTAR, "inspect", self.copy], capture_output=True, text=True).stdout)
        whole = (self.copy / "model.bin").read_bytes()
        name = b"encoder/layer_0/ffn/linear_0/weight"
        at = whole.index(name + b"\0") + len(name) + 1
        for damaged in (whole[:at + 40], whole[:at] + b"\x09" + whole[at + 1:], whole[:at + 1] + b"\xff" * 8 + whole[at + 9:]):
            (self.copy / "model.bin").write_bytes(damaged)
            result = self.serve()
            self.assertEqual(result.returncode, 1, result.stderr)
            self.assertIn("model.bin", result.stderr)
            self.assertIn(name.decode(), result.stderr)


class Disk(unittest.TestCase):
    """A disk that is full, as a limit on the size of files and as /dev/full."""

    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="mstar_bad_"))
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        for name in ("a", "b"):
            (self.dir / f"{name}.wav").write_bytes(tone(1))

    def transcribe(self, *arguments, **options):
        return subprocess.run([MSTAR, "transcribe", self.dir / "a.wav", self.dir / "b.wav", "--model", MODEL, "--param", "max_tokens=6",
                               *map(str, arguments)], stderr=subprocess.PIPE, text=True, timeout=WAIT_S, **options)

    def test_output_files(self):
        def fill_the_disk():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16))
        result = self.transcribe("--format", "json", "--output", self.dir / "out", preexec_fn=fill_the_disk)
        self.assertEqual(result.returncode, 1, result.stderr)
        for name in ("a", "b"):
            self.assertRegex(result.stderr, rf"cannot write .*{name}\.json: File too large")
        self.assertIn("0 of 2 files; 2 failed", result.stderr)
        self.assertEqual(list((self.dir / "out").iterdir()), [], "half a file was left")

    @unittest.skipUnless(os.path.exists("/dev/full"), "no /dev/full")
    def test_standard_output(self):
        with open("/dev/full", "w") as full:
            result = self.transcribe(stdout=full)
        self.assertEqual(result.returncode, 1)
        self.assertIn("cannot write to standard output: No space left on device", result.stderr)


class End(Case):
    def test_sigterm_lets_what_runs_finish(self):
        server = Served(MSTAR, self.dir / "c.yaml")
        data = tone(60)  # two windows
        fields = dict(self.ask_good, max_tokens="200", ignore_eos="true")
        expected = server.ask(TRANSCRIBE, fields, "a.wav", data)
        with concurrent.futures.ThreadPoolExecutor(4) as threads:
            running = [threads.submit(server.ask, TRANSCRIBE, fields, "a.wav", data) for _ in range(4)]
            server.wait_for(lambda m: m["mstar_requests_running"] + m["mstar_requests_waiting"] == len(running))
            server.process.send_signal(signal.SIGTERM)
            answers = [each.result() for each in running]
        self.assertEqual(server.process.wait(WAIT_S), 0)
        server.process.stderr.close()
        for status, _, body in answers:
            self.assertEqual((status, body), (200, expected[2]))
        with self.assertRaises(OSError):
            socket.create_connection(("127.0.0.1", server.port), 5).close()

    def test_a_port_in_use(self):
        result = subprocess.run([MSTAR, "serve", MODEL, "--port", str(self.server.port)], capture_output=True, text=True, timeout=WAIT_S)
        self.assertEqual(result.returncode, 1)
        self.assertIn(f"{self.server.port} is already in use", result.stderr)

    def test_few_open_files(self):
        """The soft limit is raised; what the hard one refuses is said, and clients over it are turned away."""
        def limit(soft, hard):
            return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for hard, said in ((2000, None), (160, "at most 32 are taken")):
            process = subprocess.Popen([MSTAR, "serve", MODEL, "--port", "0"], stderr=subprocess.PIPE, text=True, preexec_fn=limit(150, hard))
            self.addCleanup(process.stderr.close)
            self.addCleanup(process.kill)
            told = ""
            while not told.splitlines()[-1:] or not told.splitlines()[-1].startswith("ready on"):
                line = process.stderr.readline()
                self.assertTrue(line, told)
                told += line
            self.assertEqual(said is not None and said in told, said is not None, told)
            port = int(told.rsplit(":", 1)[1].split()[0])
            held = [socket.create_connection(("127.0.0.1", port), WAIT_S) for _ in range(100)]
            answers = []
            for each in held:
                each.settimeout(WAIT_S)
                try:
                    each.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
                    answers.append(each.recv(12)[9:12])
                except OSError:  # turned away before it asked
                    answers.append(b"")
            self.assertEqual(answers[:32], [b"200"] * 32)
            self.assertEqual(b"503" in answers, said is not None, answers)
            for each in held:
                each.close()
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(WAIT_S), 0)


if __name__ == "__main__":
    unittest.main()
