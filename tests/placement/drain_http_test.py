#!/usr/bin/env python3
"""Ranks taken out of service and back while requests run, over HTTP.

Usage: drain_http_test.py PATH_TO_MSTAR [unittest options].
"""
import threading
import time
import unittest

from placement_support import COMPLETIONS, WAIT_S, Case, complete, group, ids, request, steps

ISOLATIONS = ("thread", "process")


class Load:
    """Clients that ask without a pause until it is left; what was no answer stands in `failures`."""

    def __init__(self, server, num_clients=4):
        self.server, self.stopping, self.failures, self.num_answers = server, False, [], 0
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.ask, args=(i,)) for i in range(num_clients)]

    def ask(self, client):
        turn = 0
        while not self.stopping:
            turn += 1
            body = {"model": "m", "prompt": ids(20 + client, turn), "temperature": 0, "max_tokens": 8, "ignore_eos": True}
            try:
                status, answer = request(self.server, "POST", COMPLETIONS, body)
                fault = None if status == 200 and answer["usage"]["completion_tokens"] == 8 else (status, answer)
            except (OSError, KeyError) as error:
                fault = error
            with self.lock:
                self.num_answers += 1
                if fault:
                    self.failures.append(fault)

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stopping = True
        for thread in self.threads:
            thread.join()


class Drain(Case):
    def order(self, server, rank, name, status=200):
        got, answer = request(server, "POST", f"/debug/workers/{rank}/{name}")
        self.assertEqual(got, status, answer)
        return answer

    def worker(self, server, rank):
        status, answer = request(server, "GET", "/debug/workers")
        self.assertEqual(status, 200)
        return answer["workers"][rank]

    def wait_state(self, server, rank, state):
        deadline = time.monotonic() + WAIT_S
        while self.worker(server, rank)["state"] != state:
            self.assertLess(time.monotonic(), deadline, self.worker(server, rank))
            time.sleep(0.01)

    def wait_steps(self, server, rank, beyond):
        self.assertGreater(steps(server.wait_for(lambda m: steps(m, rank) > beyond), rank), beyond)

    def wait_answers(self, load, count):
        deadline, until = time.monotonic() + WAIT_S, load.num_answers + count
        while load.num_answers < until:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)

    def two_replicas(self, isolation):
        return self.serve(node_groups=[group(["decoder"], [0, 1])], isolation=isolation, stay_awake_us=0)

    def test_nothing_fails_while_a_replica_goes_and_comes_back(self):
        for isolation in ISOLATIONS:
            with self.subTest(isolation):
                server = self.two_replicas(isolation)
                self.assertEqual(self.worker(server, 0)["models"], [{"model": "m", "components": ["decoder"]}])
                with Load(server) as load:
                    for name, end in (("drain", "drained"), ("remove", "removed")):
                        self.wait_steps(server, 0, beyond=steps(server.metrics(), 0) if name == "drain" else 0)
                        self.order(server, 0, name)
                        self.wait_state(server, 0, end)
                        self.assertEqual(self.worker(server, 0)["live_requests"], 0)
                        # What a worker tells of its steps comes later than that its last request has left.
                        self.wait_answers(load, 6)
                        mine = lambda m: [m[name] for name in m if name.startswith("mstar_resource_used") and 'worker="1"' in name]  # noqa: E731
                        before = server.wait_for(lambda m: not any(mine(m))).get('mstar_steps_total{worker="1",model="m",component="decoder"}')
                        self.wait_answers(load, 12)
                        metrics = server.metrics()
                        self.assertEqual(metrics.get('mstar_steps_total{worker="1",model="m",component="decoder"}'), before)
                        if end == "removed":
                            freed = server.wait_for(lambda m: m['mstar_weight_bytes{worker="1"}'] == 0)
                            self.assertEqual(freed['mstar_weight_bytes{worker="1"}'], 0)
                            self.assertFalse([name for name in freed if "resource_total" in name and 'worker="1"' in name])
                        self.order(server, 0, "resume")
                        self.wait_state(server, 0, "running")
                        self.wait_steps(server, 0, beyond=0 if end == "removed" else before)
                self.assertEqual(load.failures, [])
                self.assertGreater(load.num_answers, 24)
                self.expect_nothing_left(server)
                self.assertEqual(server.stop(), 0)

    def test_ranks_in_step_let_go_and_load_again_together(self):
        for isolation in ISOLATIONS:
            with self.subTest(isolation):
                server = self.serve(node_groups=[group(["decoder"], [0, 1, 2, 3], tp_size=2)], isolation=isolation, stay_awake_us=0)
                text = complete(server, ids(9, 1))[0]
                held = [server.metrics()[f'mstar_weight_bytes{{worker="{w}"}}'] for w in (1, 2)]
                self.assertTrue(all(held))
                with Load(server, num_clients=2) as load:
                    for _ in range(2):  # a log that begins again may end again
                        self.order(server, 0, "remove")
                        self.wait_state(server, 0, "removed")
                        self.wait_state(server, 1, "removed")
                        freed = server.wait_for(lambda m: not any(m[f'mstar_weight_bytes{{worker="{w}"}}'] for w in (1, 2)))
                        self.assertEqual([freed[f'mstar_weight_bytes{{worker="{w}"}}'] for w in (1, 2)], [0, 0])
                        self.wait_answers(load, 4)
                        self.order(server, 0, "resume")
                        self.wait_state(server, 0, "running")
                self.assertEqual(load.failures, [])
                self.order(server, 2, "drain")
                self.assertEqual(complete(server, ids(9, 1))[0], text)
                loaded = server.wait_for(lambda m: all(m[f'mstar_weight_bytes{{worker="{w}"}}'] for w in (1, 2)))
                self.assertEqual([loaded[f'mstar_weight_bytes{{worker="{w}"}}'] for w in (1, 2)], held)
                self.expect_nothing_left(server)
                self.assertEqual(server.stop(), 0)

    def test_without_a_replica_there_is_503_until_one_is_back(self):
        server = self.two_replicas("thread")
        text = complete(server, ids(9, 1))[0]
        for rank in (0, 1):
            self.order(server, rank, "drain")
            self.wait_state(server, rank, "drained")
        status, answer = request(server, "POST", COMPLETIONS, {"model": "m", "prompt": ids(9, 1)})
        self.assertEqual(status, 503)
        self.assertIn("POST /debug/workers/1/resume", answer["error"]["message"])
        self.assertEqual(request(server, "GET", "/ready")[0], 503)
        self.order(server, 1, "resume")
        self.assertEqual(request(server, "GET", "/ready")[0], 200)
        self.assertEqual(complete(server, ids(9, 1))[0], text)
        self.assertEqual(server.stop(), 0)

    def test_bad_ranks_and_orders(self):
        server = self.two_replicas("thread")
        self.assertIn("there is no rank 7", self.order(server, 7, "drain", 404)["error"]["message"])
        self.assertEqual(self.order(server, "one", "drain", 400)["error"]["param"], "rank")
        self.order(server, 0, "kill", 404)
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main()
