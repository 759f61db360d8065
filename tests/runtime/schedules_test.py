#!/usr/bin/env python3
"""Seeded schedules of kills, stops and stalls of workers' processes under load, over HTTP: every request is answered in time, with the right text or
with 503; requests of the model whose worker is left alone all get the right text; at the end nothing is left and both models answer again.

Usage: schedules_test.py PATH_TO_MSTAR [unittest options]. MSTAR_SCHEDULES=N runs N seeds.
"""
import concurrent.futures
import http.client
import json
import os
import pathlib
import random
import signal
import sys
import tempfile
import threading
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from served import WAIT_S, Served, children, in_use  # noqa: E402

MSTAR = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else "mstar"
LLAMA = ROOT / "tests/golden/decoders/llama"
NUM_SEEDS = int(os.environ.get("MSTAR_SCHEDULES", "2"))
NUM_PROMPTS, NUM_FAULTS, CLIENTS = 6, 4, 3
HANG_S = 3  # busy machines


def ids(count, seed):
    return [2 + (i * 37 + seed * 101 + i * i % 7) % 240 for i in range(count)]


class Schedules(unittest.TestCase):
    """The model "hit" runs on the first rank or ranks, whose processes have the faults, the model "left" on the last one."""

    def serve(self, in_step):
        config = pathlib.Path(self.directory) / "c.yaml"
        groups = {"hit": {"ranks": list(range(in_step)), "tp_size": in_step}, "left": {"ranks": [in_step]}}
        models = [{"model": str(LLAMA), "name": name, "node_groups": [{"components": ["decoder"], **places}]} for name, places in groups.items()]
        timeouts = {"hang_timeout_s": HANG_S, "load_timeout_s": HANG_S}
        config.write_text(json.dumps({"models": models, "device": "cpu", "isolation": "process", **timeouts}))  # JSON is YAML
        server = Served(MSTAR, config, start_new_session=True)
        self.addCleanup(server.process.stderr.close)
        self.addCleanup(server.process.wait)
        self.addCleanup(server.process.kill)
        return server

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name

    def ask(self, server, model, prompt):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)
        try:
            body = {"model": model, "prompt": prompt, "temperature": 0, "max_tokens": 48, "ignore_eos": True}
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def load(self, server, model, expected, stopping, outcomes):
        turn = 0
        while not stopping.is_set():
            turn += 1
            which = turn % NUM_PROMPTS
            status, answer = self.ask(server, model, ids(10 + 7 * which, which))
            text = answer["choices"][0]["text"] if status == 200 else answer["error"]["message"]
            outcomes.append((status, status != 200 or text == expected[which], text))

    def fault(self, server, draw, victim):
        """One fault of the process; what it was."""
        kind = draw.choice(("kill", "stop", "stall"))
        if kind == "kill":
            os.kill(victim, signal.SIGKILL)
        else:
            os.kill(victim, signal.SIGSTOP)
            if kind == "stall":  # shorter than what makes it a hang
                time.sleep(HANG_S * draw.uniform(0.02, 0.1))
                os.kill(victim, signal.SIGCONT)
        return kind

    def wait_new(self, server, kind, victims, other, until_running):
        """Until the processes that were hit, or work in step with one that was, are gone and others there; of a stall there is nothing to wait for."""
        if kind == "stall":
            return victims
        deadline = time.monotonic() + WAIT_S
        while True:
            fresh = [pid for pid in children(server.process.pid) if pid not in (*victims, other)]
            if len(fresh) == len(victims) and (not until_running or self.state(server) == "running"):
                return fresh
            self.assertLess(time.monotonic(), deadline, f"no process came after a {kind}")
            time.sleep(0.02)

    def state(self, server):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)
        try:
            connection.request("GET", "/debug/workers")
            return json.loads(connection.getresponse().read())["workers"][0]["state"]
        finally:
            connection.close()

    def run_schedule(self, seed, in_step):
        draw = random.Random(seed)
        server = self.serve(in_step)
        expected = [self.ask(server, "left", ids(10 + 7 * i, i))[1]["choices"][0]["text"] for i in range(NUM_PROMPTS)]
        *victims, other = children(server.process.pid)
        stopping, outcomes = threading.Event(), {"hit": [], "left": []}
        kinds = []
        with concurrent.futures.ThreadPoolExecutor(2 * CLIENTS) as pool:
            running = [pool.submit(self.load, server, model, expected, stopping, outcomes[model]) for model in outcomes for _ in range(CLIENTS)]
            try:
                for _ in range(NUM_FAULTS):
                    time.sleep(draw.uniform(0.02, 0.3))
                    kinds.append(self.fault(server, draw, draw.choice(victims)))
                    victims = self.wait_new(server, kinds[-1], victims, other, draw.random() < 0.7)
            finally:
                stopping.set()
            for each in running:
                each.result(timeout=WAIT_S)
        self.assertTrue(outcomes["left"])
        for status, right, text in outcomes["left"]:
            self.assertEqual((status, right), (200, True), text)
        for status, right, text in outcomes["hit"]:
            self.assertIn(status, (200, 503), text)
            self.assertTrue(right, text)
            if status == 503:
                self.assertRegex(text, "worker [12]" if in_step > 1 else "worker 1")
        self.assertEqual(in_use(server.wait_for(lambda m: not in_use(m))), {})
        deadline = time.monotonic() + WAIT_S
        while (last := self.ask(server, "hit", ids(10, 0)))[0] != 200:
            self.assertLess(time.monotonic(), deadline, last)
            time.sleep(0.02)
        self.assertEqual(last[1]["choices"][0]["text"], expected[0])
        self.assertEqual(server.stop(), 0)

    def test_every_request_is_answered_and_others_lose_nothing(self):
        for seed in range(NUM_SEEDS):
            for in_step in (1, 2):
                with self.subTest(seed=seed, in_step=in_step):
                    self.run_schedule(seed, in_step)


if __name__ == "__main__":
    unittest.main()
