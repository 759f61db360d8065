"""What the tests of placements share: servers over tiny seeded models, made of a dict of YAML keys."""
import http.client
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"
sys.path.insert(0, str(GOLDEN.parent))
from served import WAIT_S, Served, children, in_use, wav  # noqa: E402, F401

MSTAR = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else "mstar"
WHISPER = GOLDEN / "whisper_tiny_seeded/hf"
LLAMA = GOLDEN / "decoders/llama"
HYBRID = GOLDEN / "decoders/qwen35"
COMPLETIONS = "/v1/completions"


def group(components, ranks, **keys):
    return {"components": components, "ranks": ranks, **keys}


def request(server, method, path, body=None, headers=None):
    """Status and the parsed answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json", **(headers or {})})
        answer = connection.getresponse()
        data = answer.read().decode()
    finally:
        connection.close()
    return answer.status, json.loads(data) if data[:1] in ("{", "[") else data


def ids(count, seed):
    return [2 + (i * 37 + seed * 101 + i * i % 7) % 240 for i in range(count)]


def complete(server, prompt, **fields):
    """Text and usage."""
    body = {"model": "m", "prompt": prompt, "temperature": 0, "max_tokens": 8, "ignore_eos": True, **fields}
    status, answer = request(server, "POST", COMPLETIONS, body)
    assert status == 200, answer
    return answer["choices"][0]["text"], answer["usage"]


class Case(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.num_configs = 0

    def config(self, model=LLAMA, **keys):
        self.num_configs += 1
        path = pathlib.Path(self.directory.name) / f"{self.num_configs}.yaml"
        path.write_text(json.dumps({"model": str(model), "name": "m", "device": "cpu", **keys}))  # JSON is YAML
        return path

    def serve(self, model=LLAMA, **keys):
        server = Served(MSTAR, self.config(model, **keys))
        self.addCleanup(server.process.stderr.close)
        self.addCleanup(server.process.wait)
        self.addCleanup(server.process.kill)
        return server

    def call(self, *arguments):
        return subprocess.run([MSTAR, *map(str, arguments)], capture_output=True, text=True, timeout=WAIT_S)

    def expect_nothing_left(self, server):
        self.assertEqual(in_use(server.wait_for(lambda m: not in_use(m))), {})


def steps(metrics, rank, component="decoder"):
    return metrics[f'mstar_steps_total{{worker="{rank + 1}",model="m",component="{component}"}}']
