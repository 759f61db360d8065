#!/usr/bin/env python3
"""`isolation: process` as a user meets it: over HTTP, from the command line, with signals and deaths.

Usage: processes_test.py PATH_TO_MSTAR [unittest options]. The model is the tiny seeded Whisper of tests/golden.
"""
import array
import json
import math
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import wave

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from served import WAIT_S, Served, children, in_use  # noqa: E402

MSTAR = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else "mstar"
SEEDED = ROOT / "tests/golden/whisper_tiny_seeded/hf"
TRANSCRIBE = "/v1/audio/transcriptions"
ONCE = {"temperature_increment_on_fallback": "0"}  # random weights give no text that is likely enough
LONG_S, SHORT_S = 900, 5


def wait_until(condition):
    deadline = time.monotonic() + WAIT_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = pathlib.Path(tempfile.mkdtemp(prefix="mstar_processes_"))
        cls.addClassCleanup(shutil.rmtree, cls.dir, ignore_errors=True)
        second = array.array("h", (int(8000 * math.sin(i * i / 9e5)) for i in range(16000)))
        for name, seconds in (("long", LONG_S), ("short", SHORT_S)):
            with wave.open(str(cls.dir / f"{name}.wav"), "wb") as file:
                file.setparams((1, 2, 16000, 0, "NONE", ""))
                file.writeframes(second.tobytes() * seconds)
        cls.config = {}
        split = "  - {components: [features, encoder], ranks: [0]}\n  - {components: [cross, decoder], ranks: [1]}\n"
        for isolation in ("thread", "process"):
            cls.config[isolation] = cls.dir / f"{isolation}.yaml"
            cls.config[isolation].write_text(f"model: {SEEDED}\nname: m\nisolation: {isolation}\nnode_groups:\n{split}")

    def serve(self, config):
        server = Served(MSTAR, config, start_new_session=True)
        self.addCleanup(server.process.stderr.close)
        self.addCleanup(server.process.kill)
        return server

    def send(self, server, *call):
        connection = server.send(*call)
        self.addCleanup(connection.close)
        return connection

    def audio(self, name):
        return (self.dir / f"{name}.wav").read_bytes()


class Server(Case):
    def test_a_killed_worker_costs_its_requests_and_comes_back(self):
        config = self.dir / "two.yaml"
        models = "".join(f"- model: {SEEDED}\n  name: {name}\n  node_groups:\n"
                         f"  - {{components: [features, encoder, cross, decoder], ranks: [{rank}]}}\n"
                         for rank, name in enumerate(("hit", "spared")))
        config.write_text(f"isolation: process\nmodels:\n{models}")
        server = self.serve(config)
        expected = server.ask(TRANSCRIBE, {"model": "spared", **ONCE}, "short.wav", self.audio("short"))
        self.assertEqual(expected[0], 200)
        hit = self.send(server, TRANSCRIBE, {"model": "hit", **ONCE}, "long.wav", self.audio("long"))
        spared = self.send(server, TRANSCRIBE, {"model": "spared", **ONCE}, "short.wav", self.audio("short"))
        kv = 'mstar_resource_used{worker="1",model="hit",resource="decoder.kv"}'
        self.assertTrue(server.wait_for(lambda m: m[kv] > 0)[kv])
        workers = children(server.process.pid)
        self.assertEqual(len(workers), 2)
        os.kill(workers[0], signal.SIGKILL)
        answer = hit.getresponse()
        self.assertEqual(answer.status, 503)
        self.assertIn("killed by signal 9", json.loads(answer.read())["error"]["message"])
        answer = spared.getresponse()
        self.assertEqual((answer.status, answer.read()), (200, expected[2]))
        restarts = 'mstar_worker_restarts_total{worker="1"}'
        self.assertEqual(server.wait_for(lambda m: m[restarts] == 1)[restarts], 1)

        def again():
            return server.ask(TRANSCRIBE, {"model": "hit", **ONCE}, "short.wav", self.audio("short"))
        self.assertTrue(wait_until(lambda: again()[0] == 200), again())
        self.assertEqual(again()[2], expected[2])  # the same weights
        self.assertEqual(in_use(server.wait_for(lambda m: not in_use(m))), {})
        self.assertEqual(children(server.process.pid)[0], workers[1])
        self.assertEqual(server.stop(), 0)

    def test_requests_go_to_the_less_loaded_of_two_replicas(self):
        for isolation in ("thread", "process"):
            config = self.dir / f"twice_{isolation}.yaml"
            config.write_text(f"model: {SEEDED}\nname: m\nisolation: {isolation}\nrouting: least_loaded\nnode_groups:\n"
                              "- {components: [features, encoder, cross, decoder], ranks: [0, 1]}\n")
            server = self.serve(config)
            slots = [f'mstar_resource_used{{worker="{w}",model="m",resource="decoder.sampler"}}' for w in (1, 2)]
            calls = []
            for each in ([1, 1], [2, 2]):  # requests on each replica, after two more
                calls += [self.send(server, TRANSCRIBE, {"model": "m", **ONCE}, "long.wav", self.audio("long")) for _ in range(2)]
                metrics = server.wait_for(lambda m: [m[slot] for slot in slots] == each)
                self.assertEqual([metrics[slot] for slot in slots], each)
            for call in calls:
                call.close()  # the client goes: the work is given up
            self.assertEqual(in_use(server.wait_for(lambda m: not in_use(m))), {})
            self.assertEqual(server.stop(), 0)

    def test_sigterm_and_interrupt_for_the_whole_group_finish_what_is_in_flight(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            server = self.serve(self.config["process"])
            call = self.send(server, TRANSCRIBE, {"model": "m", "response_format": "text", **ONCE}, "long.wav", self.audio("long"))
            kv = 'mstar_resource_used{worker="2",model="m",resource="decoder.kv"}'
            self.assertTrue(server.wait_for(lambda m: m[kv] > 0)[kv])
            workers = children(server.process.pid)
            os.killpg(server.process.pid, number)
            answer = call.getresponse()
            self.assertEqual(answer.status, 200)
            self.assertTrue(answer.read())
            self.assertEqual(server.process.wait(WAIT_S), 0)
            self.assertFalse([pid for pid in workers if os.path.exists(f"/proc/{pid}")])

    def test_a_worker_that_cannot_load_says_what_is_wrong(self):
        copy = self.dir / "damaged"
        shutil.copytree(SEEDED, copy)
        file = copy / "model.safetensors"
        file.write_bytes(file.read_bytes().replace(b"model.decoder.layers.0.fc1.weight", b"model.decoder.layers.0.fcX.weight", 1))
        config = self.dir / "damaged.yaml"
        config.write_text(f"model: {copy}\nisolation: process\n")
        result = subprocess.run([MSTAR, "serve", config, "--port", "0"], capture_output=True, text=True, timeout=WAIT_S)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("weight 'model.decoder.layers.0.fcX.weight'", result.stderr)


class CommandLine(Case):
    def run_mstar(self, *arguments):
        result = subprocess.run([MSTAR, *map(str, arguments)], capture_output=True, text=True, timeout=WAIT_S)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def test_transcribe_and_run_print_the_same_as_with_threads(self):
        short = self.dir / "short.wav"
        for call in (lambda config: ["transcribe", short, "--format", "json", "--model", config],
                     lambda config: ["run", config, "--file", short]):
            printed = {self.run_mstar(*call(config)) for config in self.config.values()}
            self.assertEqual(len(printed), 1)
            self.assertIn("tokens", printed.pop())

    def test_an_interrupt_for_the_group_keeps_what_is_done(self):
        out = self.dir / "out"
        process = subprocess.Popen([MSTAR, "transcribe", self.dir / "short.wav", self.dir / "long.wav", "--model",
                                    self.config["process"], "--max-requests", "1", "--output", out], stderr=subprocess.PIPE,
                                   text=True, start_new_session=True)
        self.addCleanup(process.kill)
        self.assertIn("short.txt", process.stderr.readline())  # what comes now is inside the second file
        workers = children(process.pid)
        self.assertEqual(len(workers), 2)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=WAIT_S)
        self.assertEqual(process.returncode, 130, errors)
        self.assertTrue((out / "short.txt").exists())
        self.assertFalse((out / "long.txt").exists())
        self.assertFalse([pid for pid in workers if os.path.exists(f"/proc/{pid}")])


if __name__ == "__main__":
    unittest.main()
