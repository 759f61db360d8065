#!/usr/bin/env python3
"""Replicas chosen by prefix: more of the prompts is found in the caches, and no replica is left idle or overrun.

Usage: routing_http_test.py PATH_TO_MSTAR [unittest options].
"""
import concurrent.futures
import unittest

from placement_support import Case, complete, group, ids, steps

NUM_CHATS, NUM_TURNS = 6, 5


class Prefix(Case):
    def talk(self, server):
        """Chats whose prompts grow, a turn of all of them at once: the answers, and the tokens that were found."""
        found, texts = 0, []
        with concurrent.futures.ThreadPoolExecutor(NUM_CHATS) as pool:
            for turn in range(NUM_TURNS):
                prompts = [ids(64 + 48 * turn, 10 + chat) for chat in range(NUM_CHATS)]
                for text, usage in pool.map(lambda prompt: complete(server, prompt), prompts):
                    texts.append(text)
                    found += usage["prompt_tokens_details"]["cached_tokens"]
        return texts, found

    def test_more_is_found_than_at_random(self):
        found, texts = {}, {}
        for routing in ("random", "prefix"):
            server = self.serve(node_groups=[group(["decoder"], [0, 1])], routing=routing, prefix_excess=2 * NUM_CHATS)
            texts[routing], found[routing] = self.talk(server)
            self.assertEqual(server.metrics()["mstar_routed_by_prefix_total"] > 0, routing == "prefix")
            self.expect_nothing_left(server)
            self.assertEqual(server.stop(), 0)
        self.assertEqual(texts["prefix"], texts["random"])
        # Each chat stays where it was, so each turn finds the whole pages of the one before it.
        whole = sum((64 + 48 * turn) // 16 * 16 for turn in range(NUM_TURNS - 1)) * NUM_CHATS
        self.assertGreaterEqual(found["prefix"], whole)
        self.assertGreater(found["prefix"], found["random"])

    def test_one_hot_beginning_does_not_overrun_its_replica(self):
        server = self.serve(node_groups=[group(["decoder"], [0, 1])], routing="prefix", prefix_excess=2)
        complete(server, ids(64, 1))
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            list(pool.map(lambda i: complete(server, ids(64, 1) + ids(8, i), max_tokens=64), range(24)))
        metrics = server.wait_for(lambda m: min(steps(m, 0), steps(m, 1)) > 0)
        self.assertGreater(min(steps(metrics, 0), steps(metrics, 1)), 0)
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main()
