#!/usr/bin/env python3
"""Prefill on some ranks, decode on others: the same bytes as undivided, and nothing is left anywhere.

Usage: moves_http_test.py PATH_TO_MSTAR [unittest options].
"""
import concurrent.futures
import http.client
import json
import os
import signal
import time
import unittest

from placement_support import COMPLETIONS, HYBRID, LLAMA, WAIT_S, WHISPER, Case, children, complete, group, ids, request, steps

ISOLATIONS = ("thread", "process")
MODELS = {"llama": LLAMA, "hybrid": HYBRID}
# Greedy, and drawn with all that the sampler keeps of a request.
DRAWS = ({}, {"temperature": 0.9, "seed": 11, "top_p": 0.95, "repetition_penalty": 1.2, "presence_penalty": 0.4, "frequency_penalty": 0.3,
              "logit_bias": {"5": 2.0}})
PROMPTS = [ids(1 + 13 * i, i) for i in range(8)]


def split(prefill=(0,), decode=(1,)):
    return [group(["decoder"], list(prefill), walks=["prefill"]), group(["decoder"], list(decode), walks=["decode"])]


def answers(server, clients=6, max_tokens=12):
    """Of every prompt and way to draw, several at once."""
    asked = [(prompt, draw) for prompt in PROMPTS for draw in DRAWS]
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        return list(pool.map(lambda each: complete(server, each[0], max_tokens=max_tokens, **each[1])[0], asked))


def moves(metrics, rank):
    return metrics[f'mstar_state_moves_total{{worker="{rank + 1}"}}']


class Moves(Case):
    def test_the_same_bytes_as_undivided(self):
        for name, model in MODELS.items():
            whole = self.serve(model, limits={"step_tokens": 32})
            expected = answers(whole)
            self.assertEqual(whole.stop(), 0)
            for isolation in ISOLATIONS:
                with self.subTest(name, isolation=isolation):
                    server = self.serve(model, node_groups=split(), isolation=isolation, limits={"step_tokens": 32})
                    self.assertEqual(answers(server), expected)
                    self.expect_nothing_left(server)
                    metrics = server.wait_for(lambda m: moves(m, 1) >= len(expected))
                    self.assertEqual(moves(metrics, 1), len(expected))
                    self.assertEqual(moves(metrics, 0), 0)
                    self.assertGreater(metrics['mstar_state_move_bytes_total{worker="2"}'], 0)
                    self.assertEqual(steps(metrics, 1) > 0 and steps(metrics, 0) > 0, True)
                    self.assertEqual(server.stop(), 0)

    def test_several_of_each(self):
        for name, model in MODELS.items():
            with self.subTest(name):
                whole = self.serve(model)
                expected = answers(whole)
                self.assertEqual(whole.stop(), 0)
                server = self.serve(model, node_groups=split((0, 1), (2, 3, 4)))
                self.assertEqual(answers(server), expected)
                self.expect_nothing_left(server)
                metrics = server.wait_for(lambda m: sum(moves(m, r) for r in (2, 3, 4)) >= len(expected))
                self.assertEqual(sum(moves(metrics, r) for r in range(5)), len(expected))
                self.assertEqual(server.stop(), 0)

    def test_where_pages_are_short_tokens_are_computed_again(self):
        for name, model in MODELS.items():
            with self.subTest(name):
                whole = self.serve(model)
                expected = answers(whole, max_tokens=40)
                self.assertEqual(whole.stop(), 0)
                server = self.serve(model, node_groups=split(), options={"kv_tokens": 192, "context_tokens": 192})
                self.assertEqual(answers(server, max_tokens=40), expected)
                self.expect_nothing_left(server)
                self.assertEqual(server.stop(), 0)

    def test_what_ends_at_its_prompt_does_not_move(self):
        server = self.serve(node_groups=split())
        complete(server, ids(20, 1), max_tokens=1)
        self.assertEqual(moves(server.metrics(), 1), 0)
        self.expect_nothing_left(server)
        self.assertEqual(server.stop(), 0)

    def test_cached_prompts_are_counted_once_and_move_like_others(self):
        server = self.serve(node_groups=split())
        prompt = ids(70, 3)
        first, _ = complete(server, prompt)
        again, usage = complete(server, prompt)
        self.assertEqual(again, first)
        self.assertEqual(usage["prompt_tokens_details"]["cached_tokens"], 64)
        self.assertEqual(server.stop(), 0)

    def begin(self, server, prompt, max_tokens):
        """A streamed answer, whose head may not have come yet."""
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)
        body = {"model": "m", "prompt": prompt, "temperature": 0, "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
        connection.request("POST", COMPLETIONS, json.dumps(body), {"Content-Type": "application/json"})
        return connection

    def test_clients_that_leave_at_any_time_leave_nothing(self):
        for isolation in ISOLATIONS:
            for name, model in MODELS.items():
                with self.subTest(name, isolation=isolation):
                    server = self.serve(model, node_groups=split(), isolation=isolation, limits={"step_tokens": 32})
                    for turn in range(24):
                        connection = self.begin(server, ids(20 + 9 * turn, turn), 200)
                        if turn % 3 == 1:
                            connection.getresponse().read(10)  # its prompt has run, and its state is on its way
                        elif turn % 3 == 2:
                            for _ in range(turn // 3):  # some time later
                                server.metrics()
                        connection.close()
                    self.expect_nothing_left(server)
                    self.assertTrue(complete(server, ids(9, 1))[0])
                    self.assertEqual(server.stop(), 0)

    def test_a_rank_that_dies_takes_its_requests_along_and_comes_back(self):
        whole = self.serve()
        text = complete(whole, ids(30, 2))[0]
        self.assertEqual(whole.stop(), 0)
        for rank in (0, 1):
            with self.subTest(rank=rank):
                server = self.serve(node_groups=split(), isolation="process")
                with concurrent.futures.ThreadPoolExecutor(6) as pool:
                    body = {"model": "m", "temperature": 0, "max_tokens": 1500, "ignore_eos": True}
                    running = [pool.submit(request, server, "POST", COMPLETIONS, {**body, "prompt": ids(200 + i, i)}) for i in range(6)]
                    server.wait_for(lambda m: moves(m, 1) >= 3)
                    os.kill(children(server.process.pid)[rank], signal.SIGKILL)
                    results = [each.result() for each in running]
                for status, answer in results:
                    self.assertIn(status, (200, 503))
                    if status == 503:
                        self.assertIn(f"worker {rank + 1}", answer["error"]["message"])
                self.assertIn(503, [status for status, _ in results])
                self.wait_ready(server)
                self.assertEqual(complete(server, ids(30, 2))[0], text)
                self.expect_nothing_left(server)
                self.assertEqual(server.stop(), 0)

    def wait_ready(self, server):
        deadline = time.monotonic() + WAIT_S
        while request(server, "GET", "/ready")[0] != 200:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)

    def test_what_cannot_move_is_refused(self):
        heads = [group(["features", "encoder", "cross"], [0]), group(["decoder"], [0], walks=["detect", "listen", "prompt", "align"]),
                 group(["decoder"], [1], walks=["decode"])]
        result = self.call("inspect", self.config(WHISPER, node_groups=heads))
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("share 'decoder.cross', of which each rank has its own", result.stderr)


if __name__ == "__main__":
    unittest.main()
