#!/usr/bin/env python3
"""Node groups, replicas and the warm-up as a user meets them.

Usage: placement_http_test.py PATH_TO_MSTAR [unittest options].
"""
import concurrent.futures
import http.client
import json
import math
import os
import struct
import unittest

from placement_support import COMPLETIONS, HYBRID, LLAMA, MSTAR, WAIT_S, WHISPER, Case, complete, group, ids, steps, wav  # noqa: F401

EARS, MOUTH = ["features", "encoder"], ["cross", "decoder"]


class BadPlacement(Case):
    """One precise line for each."""

    def bad(self, groups, said, model=WHISPER, **keys):
        config = self.config(model, node_groups=groups, **keys)
        for command in ("serve", "inspect"):
            with self.subTest(said, command=command):
                result = self.call(command, config, *(["--port", "0"] if command == "serve" else []))
                self.assertIn(result.returncode, (1, 2), result.stderr)
                self.assertIn(said, result.stderr)
                self.assertEqual(result.stdout, "")

    def test_each_has_its_own_words(self):
        whole = group(EARS + MOUTH, [0])
        self.bad([group(["decodr"], [0])], "there is no component 'decodr'; did you mean 'decoder'?")
        self.bad([group(["audio"], [0])], "'audio' runs on the host and takes no ranks")
        self.bad([group(["decoder", "decoder"], [0])], "'decoder' stands twice in one node group")
        self.bad([whole, group(["encoder"], [1])], "'encoder' is in two node groups")
        self.bad([group([], [0])], "a node group names no component")
        self.bad([{"ranks": [0]}], "a node group needs 'components'")
        self.bad([{"components": ["decoder"]}], "a node group needs 'ranks'")
        self.bad([group(["decoder"], [])], "a node group needs 'ranks'")
        self.bad([group(EARS + MOUTH, [0, 1, 0])], "rank 0 stands twice in the node group of 'features'")
        self.bad([group(["decoder"], [-1])], "'node_groups.ranks' must hold whole numbers from 0 to 63")
        self.bad([group(["decoder"], [64])], "'node_groups.ranks' must hold whole numbers from 0 to 63")
        self.bad([group(["decoder"], ["one"])], "'node_groups.ranks' must hold whole numbers")
        self.bad([group(EARS + MOUTH, [0, 1, 2], tp_size=2)], "must be a multiple of tp_size x sp_size = 2")
        self.bad([group(EARS + MOUTH, [0, 1, 2], sp_size=2)], "must be a multiple of tp_size x sp_size = 2")
        self.bad([group(EARS + MOUTH, [0, 1, 2], sp_size=3)], "'encoder' of 'm' has 2 query heads, which do not divide over sp_size = 3 ranks")
        self.bad([group(["decoder"], [0, 1, 2], tp_size=3)], "'decoder' of 'm' has 4 query heads, which do not divide over tp_size = 3 ranks", model=LLAMA)
        self.bad([group(["decoder"], [0, 1, 2], sp_size=3)], "has 4 query heads, which do not divide over sp_size = 3 ranks", model=LLAMA)
        self.bad([group(["decoder"], list(range(8)), tp_size=2, sp_size=4)], "has 4 query heads, which do not divide over tp_size x sp_size = 8 ranks", model=LLAMA)
        self.bad([group(["decoder"], [0, 1, 2, 3], sp_size=4)], "has 2 key heads of a delta net, which do not divide over sp_size = 4 ranks", model=HYBRID)
        self.bad([group(EARS, [0, 1], sp_size=2), group(MOUTH, [0, 1], tp_size=2)], "give that the same ranks, tp_size and sp_size")
        self.bad([group(EARS, [1]), group(MOUTH, [0, 1], tp_size=2)], "rank 1 works in step with others for 'cross', 'decoder' of 'm'")
        self.bad([group(["decoder"], [0], walks=["decod"])], "there is no walk 'decod'; did you mean 'decode'?")
        self.bad([group(MOUTH, [0], walks=["decode"])], "no node group runs 'cross' in the walk")
        self.bad([group(EARS, [0], walks=["detect", "listen", "decode"])], "the walk 'decode' runs no component of the node group")
        self.bad([group(["decoder"], [1])], "share 'decoder.cross', of which each rank has its own")
        self.bad([group(["decoder"], [0, 1]), group(["cross"], [0, 1])], "share 'decoder.cross'")
        self.bad([group(MOUTH, [0], replicas=2)], "replicas")
        self.bad([group(EARS + MOUTH, [0], weights="i4")], "'i4' is none of stored, f32, f16, bf16, i8")
        self.bad([group(["features"], [0], weights="i8"), group(["encoder"], [1])], "'features' has no weights to be kept as i8")
        self.bad([group(["decoder"], [0], walks=["prefill"], weights="i8"), group(["decoder"], [1], walks=["decode"], weights="f32")],
                 "the weights of 'decoder' are to be kept as i8 and as f32", model=LLAMA)
        self.bad({"components": ["decoder"], "ranks": [0]}, "'node_groups' must be a list")
        self.bad([whole], "the device of rank 0 must be cpu or cuda:N", rank_devices={0: "gpu"})
        self.bad([whole], "'rank_devices' has 'a' as a rank", rank_devices={"a": "cpu"})
        self.bad([whole], "rank_devices names rank 1, and the node groups have rank 0 only", rank_devices={1: "cpu"})
        self.bad([whole], "puts rank 0 on cuda:0, and 'device' says cpu", rank_devices={0: "cuda:0"})
        self.bad([whole], "names cpu and cuda:1", device="auto", rank_devices={0: "cpu", 1: "cuda:1"})

    def test_all_faults_of_a_model_at_once(self):
        result = self.call("inspect", self.config(WHISPER, node_groups=[group(["decodr"], [0]), group(["audio"], [0])]))
        self.assertIn("'decodr'", result.stderr)
        self.assertIn("'audio' runs on the host", result.stderr)

    def test_memory_that_no_rank_has_is_told_with_the_ranks(self):
        result = self.call("serve", self.config(LLAMA, node_groups=[group(["decoder"], [0, 1])], memory="1M", max_concurrent_requests=4))
        self.assertEqual(result.returncode, 1)
        self.assertIn("need more memory than there is", result.stderr)
        self.assertIn("rank 1 together", result.stderr)

    def test_bad_warmup_is_found_first(self):
        for request, said in (({"files": ["/no/such.wav"]}, "warmup_requests[0]"), ({"model": "n"}, "the model 'n', which is not served")):
            result = self.call("serve", self.config(WHISPER, warmup_requests=[request]), "--port", "0")
            self.assertIn(result.returncode, (1, 2))
            self.assertIn(said, result.stderr)


class Inspect(Case):
    def test_it_draws_what_each_rank_runs_and_holds(self):
        config = self.config(WHISPER, node_groups=[group(EARS, [0, 1]), group(MOUTH, [2])])
        said = self.call("inspect", config).stdout
        for line in ("+- host -", "| m: audio, segment ", "+- rank 1 on cpu -", "| m: features, encoder, replica 2 of 2 ",
                     "+- rank 2 on cpu -", "| m: cross, decoder ", "m: ranks 0, 1 -> rank 2: states", "rank 2 together"):
            self.assertIn(line, said)
        model = json.loads(self.call("inspect", config, "--json").stdout)[0]
        self.assertIn([[0], [1]], [each["replica_ranks"] for each in model["placement"]])
        self.assertEqual({each["rank"] for each in model["memory"]}, {0, 1, 2})
        self.assertTrue(all(each["bytes"] > 0 for each in model["memory"]))


class Weights(Case):
    def test_each_group_may_keep_its_own_kind(self):
        def held(kinds):
            config = self.config(WHISPER, node_groups=[group(EARS, [0], weights=kinds[0]), group(MOUTH, [1], weights=kinds[1])])
            memory = json.loads(self.call("inspect", config, "--json").stdout)[0]["memory"]
            return tuple(sum(each["bytes"] for each in memory if each["rank"] == rank and each["kind"] == "weights") for rank in (0, 1))
        mixed, small, large = held(("i8", "f32")), held(("i8", "i8")), held(("f32", "f32"))
        self.assertEqual(mixed, (small[0], large[1]))
        self.assertLess(small[0], large[0])
        self.assertLess(small[1], large[1])
        tone = wav(b"".join(struct.pack("<h", int(9000 * math.sin(i / 5))) for i in range(16000)))
        loaded = set()
        for isolation in ("thread", "process"):
            server = self.serve(WHISPER, node_groups=[group(EARS, [0], weights="i8"), group(MOUTH, [1], weights="f32")], isolation=isolation)
            fields = {"model": "m", "temperature": "0", "max_tokens": "6", "language": "en"}
            self.assertEqual(server.ask("/v1/audio/transcriptions", fields, "a.wav", tone)[0], 200)
            metrics = server.wait_for(lambda m: all(m[f'mstar_weight_bytes{{worker="{w}"}}'] for w in (1, 2)))
            loaded.add(tuple(metrics[f'mstar_weight_bytes{{worker="{w}"}}'] for w in (1, 2)))
            self.assertEqual(server.stop(), 0)
        self.assertEqual(len(loaded), 1)
        alike = self.serve(WHISPER, node_groups=[group(EARS, [0]), group(MOUTH, [1])], options={"weights": "f32"})
        whole = alike.wait_for(lambda m: all(m[f'mstar_weight_bytes{{worker="{w}"}}'] for w in (1, 2)))
        ears, mouth = loaded.pop()
        self.assertLess(ears, whole['mstar_weight_bytes{worker="1"}'])
        self.assertEqual(mouth, whole['mstar_weight_bytes{worker="2"}'])
        self.assertEqual(alike.stop(), 0)


class Replicas(Case):
    def test_two_replicas_answer_as_one(self):
        prompts = [ids(3 + i, i) for i in range(12)]
        one = self.serve(options={"prefix_cache": False})
        alone = [complete(one, p)[0] for p in prompts]
        for isolation in ("thread", "process"):
            for routing in ("least_loaded", "random"):
                server = self.serve(node_groups=[group(["decoder"], [0, 1])], isolation=isolation, routing=routing,
                                    options={"prefix_cache": False})
                with concurrent.futures.ThreadPoolExecutor(6) as pool:
                    together = list(pool.map(lambda p: complete(server, p)[0], prompts))
                self.assertEqual(together, alone)
                self.expect_nothing_left(server)
                if routing == "least_loaded":
                    metrics = server.wait_for(lambda m: min(steps(m, 0), steps(m, 1)) > 0)
                    self.assertTrue(steps(metrics, 0) and steps(metrics, 1))
                self.assertEqual(server.stop(), 0)

    def test_ranks_need_not_be_dense(self):
        server = self.serve(node_groups=[group(["decoder"], [3, 1])])
        self.assertTrue(complete(server, ids(5, 1))[0])
        self.assertEqual(server.stop(), 0)


class InStep(Case):
    """Ranks that work in step: they answer as one, and nothing stays on any of them."""

    def answers(self, server, prompts, **fields):
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            return list(pool.map(lambda p: complete(server, p, **fields)[0], prompts))

    def expect_equal_steps(self, server, *groups):
        for leader, *followers in groups:
            for rank in followers:
                metrics = server.wait_for(lambda m: steps(m, rank) == steps(m, leader))
                self.assertEqual(steps(metrics, rank), steps(metrics, leader))
                self.assertGreater(steps(metrics, rank), 0)

    def test_they_answer_as_one_rank(self):
        prompts = [ids(3 + 5 * i, i) for i in range(12)]
        for model in (LLAMA, HYBRID):
            alone = self.answers(self.serve(model), prompts)
            for ranks, mesh, groups in (([0, 1], {"tp_size": 2}, [(0, 1)]), ([2, 0], {"tp_size": 2}, [(2, 0)]),
                                        ([0, 1, 2, 3], {"tp_size": 2}, [(0, 1), (2, 3)]), ([0, 1], {"sp_size": 2}, [(0, 1)]),
                                        ([3, 1, 0, 2], {"sp_size": 2}, [(3, 1), (0, 2)]),
                                        ([0, 1, 2, 3], {"tp_size": 2, "sp_size": 2}, [(0, 1), (0, 2), (0, 3)])):
                if model == HYBRID and len(mesh) == 2:
                    continue  # its delta nets have two key heads
                with self.subTest(model=model.name, ranks=ranks, **mesh):
                    server = self.serve(model, node_groups=[group(["decoder"], ranks, **mesh)])
                    for _ in range(2):  # the second time prompts are found in the caches
                        self.assertEqual(self.answers(server, prompts), alone)
                    self.expect_nothing_left(server)
                    self.expect_equal_steps(server, *groups)
                    self.assertEqual(server.stop(), 0)

    def test_more_requests_than_places_and_clients_that_go(self):
        server = self.serve(node_groups=[group(["decoder"], [0, 1], tp_size=2)], max_concurrent_requests=2, options={"kv_tokens": 256})
        prompts = [ids(20 + i, i) for i in range(9)]
        alone = [complete(server, p)[0] for p in prompts]
        for i in range(6):
            gone = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)
            body = {"model": "m", "prompt": ids(9, i), "temperature": 0, "max_tokens": 200, "ignore_eos": True, "stream": True}
            gone.request("POST", COMPLETIONS, json.dumps(body), {"Content-Type": "application/json"})
            self.assertEqual(gone.getresponse().status, 200)
            gone.close()
        self.assertEqual(self.answers(server, prompts), alone)
        self.expect_nothing_left(server)
        self.expect_equal_steps(server, (0, 1))
        self.assertEqual(server.stop(), 0)

    def test_speech_too(self):
        tone = wav(b"".join(struct.pack("<h", int(9000 * math.sin(i / 5) * math.sin(i / 3000))) for i in range(16000)))
        answers = []
        # Alone; all in step, in one group and in two; and with ears that the leader has for itself.
        for groups in ([group(EARS + MOUTH, [0, 1])], [group(EARS + MOUTH, [0, 1], tp_size=2)],
                       [group(EARS, [0, 1], tp_size=2), group(MOUTH, [0, 1], tp_size=2)], [group(MOUTH, [0, 1], tp_size=2)],
                       [group(EARS + MOUTH, [0, 1], sp_size=2)], [group(EARS + MOUTH, [2, 0, 1, 3], sp_size=2)],
                       [group(EARS, [0, 1], sp_size=2), group(MOUTH, [0, 1], sp_size=2)]):
            server = self.serve(WHISPER, node_groups=groups)
            answers.append(server.ask("/v1/audio/transcriptions", {"model": "m", "temperature": "0", "max_tokens": "6", "language": "en"},
                                      "a.wav", tone)[::2])
            self.expect_nothing_left(server)
            self.assertEqual(server.stop(), 0)
        self.assertEqual(answers[0][0], 200)
        for each in answers[1:]:
            self.assertEqual(answers[0], each)

    def test_inspect_says_who_leads(self):
        said = self.call("inspect", self.config(node_groups=[group(["decoder"], [0, 1, 2, 3], tp_size=2)])).stdout
        for line in ("m: decoder, replica 1 of 2, leads rank 1 ", "m: decoder, replica 2 of 2, follows rank 2 ", "ranks 0, 1, 2, 3: decoder  (2 replicas)", "rank 3 together"):
            self.assertIn(line, said)


class Warmup(Case):
    def test_every_replica_is_warm_whatever_the_routing(self):
        for routing in ("least_loaded", "random"):
            for places in ({"max_concurrent_requests": 8}, {"max_concurrent_requests": 1, "max_queued_requests": 0}):
                server = self.serve(node_groups=[group(["decoder"], [0, 1, 2])], routing=routing,
                                    warmup_requests=[{"text": "Hello", "model_kwargs": {"max_tokens": 3, "temperature": 0, "ignore_eos": True}}], **places)
                metrics = server.wait_for(lambda m: min(steps(m, r) for r in range(3)) >= 3)
                self.assertEqual([steps(metrics, r) for r in range(3)], [3, 3, 3])  # a prompt and two tokens on each
                self.assertEqual(metrics['mstar_requests_total{outcome="finished"}'], 3)
                self.assertEqual(server.stop(), 0)

    def test_the_first_failure_stops_the_start_with_its_reason(self):
        config = self.config(node_groups=[group(["decoder"], [0, 1])],
                             warmup_requests=[{"text": "Hello"}, {"text": "Hello", "model_kwargs": {"temperature": -3}}])
        result = self.call("serve", config, "--port", "0")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, r"warmup request 2 \(warmup-1\.0\): .*temperature")


if __name__ == "__main__":
    unittest.main()
