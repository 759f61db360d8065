#!/usr/bin/env python3
"""Workers that come back are warmed before clients' requests reach them, as a user meets it.

Usage: relaunch_http_test.py PATH_TO_MSTAR [unittest options].
"""
import concurrent.futures
import os
import signal
import threading
import time
import unittest

from placement_support import COMPLETIONS, WAIT_S, Case, children, complete, group, ids, request, steps

WARM_TOKENS, TOKENS = 160, 8
WARM = [{"text": "Hello", "model_kwargs": {"max_tokens": WARM_TOKENS, "temperature": 0, "ignore_eos": True}}]


def worker(server, rank):
    return request(server, "GET", "/debug/workers")[1]["workers"][rank]


def ask(server):
    return request(server, "POST", COMPLETIONS, {"model": "m", "prompt": ids(12, 3), "temperature": 0, "max_tokens": TOKENS, "ignore_eos": True})


def wait_until(condition, what):
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


class Relaunch(Case):
    def test_the_only_replica_answers_after_its_warm_up_alone(self):
        server = self.serve(isolation="process", node_groups=[group(["decoder"], [0])], warmup_requests=WARM)
        expected = complete(server, ids(12, 3))[0]
        os.kill(children(server.process.pid)[0], signal.SIGKILL)
        refusals = set()
        deadline = time.monotonic() + WAIT_S
        while (answer := ask(server))[0] != 200:
            self.assertEqual(answer[0], 503, answer)
            refusals.add(answer[1]["error"]["message"])
            self.assertLess(time.monotonic(), deadline, refusals)
        self.assertEqual(answer[1]["choices"][0]["text"], expected)
        # The counters of its process began with it: they have the warm-up's steps, and then those of one request.
        count = steps(server.wait_for(lambda m: steps(m, 0) >= WARM_TOKENS + TOKENS - 2), 0)
        self.assertGreaterEqual(count, WARM_TOKENS + TOKENS - 2)
        self.assertTrue(all("worker 1" in each for each in refusals), refusals)
        self.expect_nothing_left(server)
        self.assertEqual(server.stop(), 0)

    def test_the_other_replica_serves_meanwhile(self):
        server = self.serve(isolation="process", node_groups=[group(["decoder"], [0, 1])], warmup_requests=WARM)
        expected = complete(server, ids(12, 3))[0]
        stopping, others = threading.Event(), []

        def load():
            while not stopping.is_set():
                others.append(ask(server))
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            running = [pool.submit(load) for _ in range(2)]
            try:
                os.kill(children(server.process.pid)[0], signal.SIGKILL)
                restarts = 'mstar_worker_restarts_total{worker="1"}'
                self.assertEqual(server.wait_for(lambda m: m[restarts] == 1)[restarts], 1)
                seen = []
                wait_until(lambda: seen.append(worker(server, 0)) or seen[-1]["state"] == "running", "it did not come back")
            finally:
                stopping.set()
            for each in running:
                each.result(timeout=WAIT_S)
        for each in seen[:-1]:  # one copy of the warm-up at most, and no other's request
            self.assertIn(each["state"], ("failed", "starting", "warming"))
            self.assertLessEqual(each["live_requests"], 1, seen)
        for status, answer in others:  # those that it had when it was killed
            self.assertIn(status, (200, 503), answer)
            text = answer["choices"][0]["text"] if status == 200 else answer["error"]["message"]
            self.assertTrue(text == expected if status == 200 else "worker 1" in text, text)
        self.assertEqual(request(server, "POST", "/debug/workers/1/drain")[0], 200)
        wait_until(lambda: worker(server, 1)["state"] == "drained", "its requests did not end")
        wait_until(lambda: ask(server)[0] == 200, "the one that came back does not serve")
        self.assertEqual(complete(server, ids(12, 3))[0], expected)
        self.assertEqual(server.stop(), 0)

    def test_one_that_was_removed_is_warmed_when_it_is_resumed(self):
        for isolation in ("thread", "process"):
            server = self.serve(isolation=isolation, node_groups=[group(["decoder"], [0, 1])], warmup_requests=WARM)
            self.assertEqual(request(server, "POST", "/debug/workers/0/remove")[0], 200)
            wait_until(lambda: worker(server, 0)["state"] == "removed", "it was not removed")
            before = steps(server.metrics(), 1)
            self.assertEqual(request(server, "POST", "/debug/workers/0/resume")[0], 200)
            wait_until(lambda: worker(server, 0)["state"] == "running", "it did not come back")
            self.assertGreaterEqual(steps(server.wait_for(lambda m: steps(m, 0) >= WARM_TOKENS - 1), 0), WARM_TOKENS - 1)
            self.assertEqual(steps(server.metrics(), 1), before)  # the warm-up was for rank 0 alone
            self.assertEqual(server.stop(), 0)


class Groups(Case):
    """Ranks in step, each in a process of its own."""

    def serve_group(self, ranks, **keys):
        return self.serve(isolation="process", node_groups=[group(["decoder"], ranks, tp_size=2)], **keys)

    def test_they_answer_as_one_rank_and_as_threads(self):
        prompts = [ids(5 + 9 * i, i) for i in range(4)]
        said = {}
        for name, keys in (("one", {"node_groups": [group(["decoder"], [0])]}),
                           ("threads", {"node_groups": [group(["decoder"], [0, 1], tp_size=2)]}),
                           ("split", {"node_groups": [group(["decoder"], [0, 1], sp_size=2)], "isolation": "process"}),
                           ("mesh", {"node_groups": [group(["decoder"], [0, 1, 2, 3], tp_size=2, sp_size=2)], "isolation": "process"}),
                           ("processes", {"node_groups": [group(["decoder"], [0, 1], tp_size=2)], "isolation": "process"})):
            server = self.serve(**keys)
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                said[name] = [text for text, _ in pool.map(lambda p: complete(server, p, max_tokens=24), prompts)]
            if name == "processes":
                self.assertEqual(len(children(server.process.pid)), 2)
                self.assertEqual(len({steps(server.wait_for(lambda m: steps(m, 0) == steps(m, 1)), rank) for rank in (0, 1)}), 1)
            self.expect_nothing_left(server)
            self.assertEqual(server.stop(), 0)
        self.assertEqual(said["processes"], said["threads"])
        self.assertEqual(said["processes"], said["one"])
        self.assertEqual(said["split"], said["one"])
        self.assertEqual(said["mesh"], said["one"])

    def test_a_killed_rank_ends_its_group_which_comes_back_warm(self):
        server = self.serve_group([0, 1], warmup_requests=WARM)
        expected = complete(server, ids(12, 3))[0]
        for turn, rank in enumerate((0, 1, 1, 0)):
            before = children(server.process.pid)
            stream = request  # a long request of the group, cut off
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                cut = pool.submit(stream, server, "POST", COMPLETIONS, {"model": "m", "prompt": ids(12, 3), "max_tokens": 200, "ignore_eos": True})
                os.kill(before[rank], signal.SIGKILL)
                status, answer = cut.result(timeout=WAIT_S)
            if status != 200:  # it was not faster
                self.assertEqual(status, 503, answer)
                self.assertIn("worker", answer["error"]["message"])
            restarts = [f'mstar_worker_restarts_total{{worker="{w}"}}' for w in (1, 2)]
            self.assertEqual([server.wait_for(lambda m: all(m[r] == turn + 1 for r in restarts))[r] for r in restarts], [turn + 1] * 2)
            wait_until(lambda: ask(server)[0] == 200, "it did not come back")
            self.assertEqual(complete(server, ids(12, 3))[0], expected)
            self.assertGreaterEqual(steps(server.wait_for(lambda m: steps(m, 1) >= WARM_TOKENS), 1), WARM_TOKENS)
            self.assertFalse(set(before) & set(children(server.process.pid)))
        self.expect_nothing_left(server)
        self.assertEqual(server.stop(), 0)

    def test_a_mesh_of_both_axes_comes_back(self):
        server = self.serve(isolation="process", node_groups=[group(["decoder"], [0, 1, 2, 3], tp_size=2, sp_size=2)])
        expected = complete(server, ids(12, 3))[0]
        os.kill(children(server.process.pid)[2], signal.SIGKILL)
        restarts = [f'mstar_worker_restarts_total{{worker="{w}"}}' for w in (1, 2, 3, 4)]
        server.wait_for(lambda m: all(m[r] == 1 for r in restarts))
        wait_until(lambda: ask(server)[0] == 200, "it did not come back")
        self.assertEqual(complete(server, ids(12, 3))[0], expected)
        self.expect_nothing_left(server)
        self.assertEqual(server.stop(), 0)

    def test_another_replica_serves_meanwhile(self):
        server = self.serve_group([0, 1, 2, 3])
        expected = complete(server, ids(12, 3))[0]
        os.kill(children(server.process.pid)[1], signal.SIGKILL)
        restarts = 'mstar_worker_restarts_total{worker="1"}'
        self.assertEqual(server.wait_for(lambda m: m[restarts] == 1)[restarts], 1)
        wait_until(lambda: worker(server, 0)["state"] == "running", "it did not come back")
        self.assertEqual(server.metrics()['mstar_worker_restarts_total{worker="3"}'], 0)
        self.assertEqual(request(server, "POST", "/debug/workers/2/drain")[0], 200)
        wait_until(lambda: ask(server)[0] == 200, "the one that came back does not serve")
        self.assertEqual(complete(server, ids(12, 3))[0], expected)
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main()
