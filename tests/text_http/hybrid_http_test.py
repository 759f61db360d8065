#!/usr/bin/env python3
"""A hybrid of attention and a recurrent state behind the real server: a tiny seeded Qwen3.5, whose prefix cache goes on from
snapshots of that state. The same bytes as without a cache, and cached tokens as they are computed here. Needs no weights.

Usage: hybrid_http_test.py PATH_TO_MSTAR [unittest options].
"""
import concurrent.futures
import http.client
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from served import WAIT_S, Served, in_use  # noqa: E402

MSTAR = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else "mstar"
MODEL = pathlib.Path(__file__).resolve().parents[1] / "golden/decoders/qwen35"
PAGE, GRID, TAIL = 16, 32, 8
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def ids(count, seed):
    return [(i * 37 + seed * 101 + i * i % 7) % 250 for i in range(count)]


def tail(length):
    """Where a prompt's own snapshot is."""
    return (length - TAIL) // PAGE * PAGE


class Model:
    """One server with some options of the model."""

    def __init__(self, **options):
        self.directory = tempfile.TemporaryDirectory()
        self.config = pathlib.Path(self.directory.name) / "c.yaml"
        self.config.write_text(json.dumps({"model": str(MODEL), "name": "m", "max_concurrent_requests": 8,
                                           "options": {"context_tokens": 512, **options}}))  # JSON is YAML
        self.server = Served(MSTAR, self.config)

    def post(self, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=WAIT_S)
        try:
            connection.request("POST", path, json.dumps({"model": "m", **body}), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            data = answer.read().decode()
        finally:
            connection.close()
        assert answer.status == 200, data
        return json.loads(data)

    def complete(self, prompt, **fields):
        """The texts, and how many tokens of the prompt were found."""
        body = {"prompt": prompt, "temperature": 0, "max_tokens": 4, "ignore_eos": True, **fields}
        answer = self.post("/v1/completions", body)
        details = answer["usage"].get("prompt_tokens_details", {})
        return [choice["text"] for choice in answer["choices"]], details.get("cached_tokens")

    def metric(self, name, wanted):
        """Of the idle server, once it is as wanted: what a worker tells of itself lags behind its answers."""
        def total(metrics):
            return sum(int(value) for sample, value in metrics.items() if sample.startswith(name))
        return total(self.server.wait_for(lambda m: not in_use(m) and wanted(total(m))))

    def stop(self):
        left = in_use(self.server.wait_for(lambda m: not in_use(m)))
        status = self.server.stop()
        self.directory.cleanup()
        assert (left, status) == ({}, 0), (left, status)


class Hybrid(unittest.TestCase):
    def start(self, **options):
        model = Model(**options)
        self.addCleanup(model.stop)
        return model

    def both(self, **options):
        return self.start(prefix_cache=False), self.start(**{"state_snapshots": 32, "snapshot_tokens": GRID, **options})

    def test_a_prompt_that_comes_again(self):
        bare, model = self.both()
        for number, length in enumerate((20, 24, 60, 150, 300)):
            for fields in ({}, {"temperature": 1, "seed": 5, "max_tokens": 20}):
                prompt = ids(length, number)
                wanted, told = bare.complete(prompt, **fields)
                self.assertIsNone(told)
                salt = f"{length}{fields}"
                self.assertEqual(model.complete(prompt, cache_salt=salt, **fields), (wanted, 0))
                found = tail(length) if length >= 24 else 0
                for _ in range(2):
                    self.assertEqual(model.complete(prompt, cache_salt=salt, **fields), (wanted, found), length)

    def test_a_snapshot_costs_no_step(self):
        model = self.start(state_snapshots=32, snapshot_tokens=GRID)
        for number, length in enumerate((100, 300)):
            prompt = ids(length, 30 + number)
            for turn, found in enumerate((0, tail(length), tail(length))):
                steps = 3 * number + turn + 1
                self.assertEqual(model.complete(prompt, max_tokens=1)[1], found)
                self.assertEqual(model.metric("mstar_steps_total", lambda n: n >= steps), steps)

    def test_a_talk_of_many_turns(self):
        """Each turn's prompt is the last one's, its answer, and more: the answer's own snapshots help too."""
        bare, model = self.both()
        bias = {str(token): 30 for letter in LETTERS for token in bare.post("/tokenize", {"prompt": letter})["tokens"]}
        text = "A talk begins with a question, which is this one, and goes on for some turns: what is it that you see? "
        fed = 0
        for turn in range(5):
            length = len(bare.post("/tokenize", {"prompt": text})["tokens"])
            fields = {"max_tokens": 40, "logit_bias": bias, "temperature": 0.7, "seed": turn}
            wanted, _ = bare.complete(text, **fields)
            got, cached = model.complete(text, **fields)
            self.assertEqual(got, wanted)
            self.assertGreaterEqual(cached, fed // GRID * GRID)  # the grid in the answer, or a prompt's end behind it
            self.assertLess(cached, length)
            text += got[0]
            fed = length + 39
            self.assertEqual(len(bare.post("/tokenize", {"prompt": text})["tokens"]), length + 40, "letters are one token each")
            text += " And then? "
        self.assertGreater(model.metric("mstar_state_snapshots", lambda n: n > 4), 4)

    def test_many_choices_of_one_prompt_are_computed_once(self):
        """But for what lies behind the snapshot: found tokens are counted for each choice."""
        bare, model = self.both()
        total = 0

        def expect_found(tokens):
            nonlocal total
            total += tokens
            self.assertEqual(model.metric("mstar_cached_tokens_total", lambda n: n == total), total)

        for number, length in enumerate((100, 333)):
            prompt = ids(length, 40 + number)
            fields = {"n": 4, "temperature": 1, "seed": 3, "max_tokens": 12}
            wanted, _ = bare.complete(prompt, **fields)
            self.assertGreater(len(set(wanted)), 1)
            self.assertEqual(model.complete(prompt, **fields)[0], wanted)
            expect_found(3 * tail(length))
            self.assertEqual(model.complete(prompt, **fields)[0], wanted)
            expect_found(4 * tail(length))

    def test_requests_that_share_a_beginning(self):
        """Where they part is known once two of them have come: from then on they go on from there."""
        bare, model = self.both()
        prompts = [ids(100, 60) + ids(50, 70 + i) for i in range(6)]
        wanted = [bare.complete(prompt)[0] for prompt in prompts]
        got = [model.complete(prompt) for prompt in prompts]
        self.assertEqual([text for text, _ in got], wanted)
        self.assertEqual([cached for _, cached in got], [0, 0, 96, 96, 96, 96])

    def test_two_snapshots_are_few(self):
        bare, model = self.both(state_snapshots=2)
        prompts = [ids(100, 80 + i) for i in range(3)]
        wanted = [bare.complete(prompt)[0] for prompt in prompts]
        found = tail(100)
        for which, cached in ((0, 0), (1, 0), (2, 0), (1, found), (2, found), (0, 0), (1, 0), (0, found), (1, found)):
            self.assertEqual(model.complete(prompts[which]), (wanted[which], cached))
        self.assertEqual(model.metric("mstar_state_snapshots", lambda n: n == 2), 2)

    def test_bytes_do_not_depend_on_company_or_memory(self):
        """Many at once, in pools that hold few pages and few snapshots."""
        bare, _ = self.both()
        asks = []
        for i in range(24):
            fields = {"max_tokens": 20 + i * 7 % 50, "temperature": i % 2, "seed": i}
            asks.append((ids(40 * (i % 4), i % 3) + ids(30 + i * 5 % 60, i), fields))
        wanted = [bare.complete(prompt, **fields)[0] for prompt, fields in asks]
        for options in ({"state_snapshots": 3}, {"state_snapshots": 24}, {"state_snapshots": 24, "kv_tokens": 520}):
            with self.subTest(**options):
                model = self.start(snapshot_tokens=GRID, **options)
                for _ in range(2):
                    with concurrent.futures.ThreadPoolExecutor(8) as pool:
                        got = list(pool.map(lambda ask: model.complete(ask[0], **ask[1])[0], asks))
                    self.assertEqual(got, wanted)
                self.assertGreater(model.metric("mstar_cached_tokens_total", lambda n: n > 0), 0)
                self.assertLessEqual(model.metric("mstar_state_snapshots", lambda n: n > 0), options["state_snapshots"])

    def test_bytes_do_not_depend_on_pages_that_were_taken_away(self):
        """Answers outgrow the pool: the younger ones are computed again, from a snapshot or from zeros."""
        bare, _ = self.both()
        # In one call, so that they start together. The pool promises two of them a prompt and 256 tokens (36 pages); both
        # fit to their end only if the first is done before the second has 76.
        prompts, fields = [ids(30, i) for i in range(4)], {"max_tokens": 470, "temperature": 1, "seed": 5}
        wanted = bare.complete(prompts, **fields)[0]
        self.assertEqual(len(set(wanted)), 4)
        for snapshots in (0, 2, 24):
            with self.subTest(snapshots=snapshots):
                model = self.start(state_snapshots=snapshots, snapshot_tokens=GRID, kv_tokens=576)
                self.assertEqual(model.complete(prompts, **fields)[0], wanted)
                self.assertGreater(model.metric("mstar_preemptions_total", lambda n: n > 0), 0)

    def test_inspect_shows_what_they_take(self):
        def shown(*flags, **options):
            with tempfile.TemporaryDirectory() as directory:
                config = pathlib.Path(directory) / "c.yaml"
                config.write_text(json.dumps({"model": str(MODEL), "name": "m", "options": options}))
                return subprocess.run([MSTAR, "inspect", config, *flags], capture_output=True, text=True, timeout=WAIT_S,
                                      check=True).stdout

        def resources(**options):
            return {each["name"]: each for each in json.loads(shown("--json", **options))[0]["resources"]}

        text = shown(state_snapshots=8)
        self.assertIn("tokens a request, prefix cache", text)
        self.assertIn("of which 8 snapshots every 256 tokens: ", text)
        text = shown(state_snapshots=0)
        self.assertIn("no prefix cache ('decoder' keeps 'decoder.state' beside it, of which no snapshots are taken)", text)
        self.assertNotIn("snapshots every", text)
        self.assertIn("no prefix cache (it is switched off)", shown(prefix_cache=False))
        none, some = (resources(state_snapshots=n)["decoder.state"] for n in (0, 8))
        self.assertEqual(some["total_bytes"] - none["total_bytes"], 8 * some["snapshot_bytes"])
        self.assertGreater(some["snapshot_bytes"], 0)
        self.assertEqual(none["request_bytes"], some["request_bytes"])


if __name__ == "__main__":
    unittest.main()
