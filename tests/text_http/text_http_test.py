#!/usr/bin/env python3
"""SmolLM2's real weights behind the real server: bytes alone and in company, counts, stops, seeds, the prefix cache.

Usage: text_http_test.py PATH_TO_MSTAR [unittest options]. Needs smollm2-135m of the user's cache, or the checkpoint that
MSTAR_TEST_TEXT_MODEL names; skipped without.
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
from served import CACHE, WAIT_S, Served, in_use  # noqa: E402

MSTAR = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else "mstar"
MODEL = os.environ.get("MSTAR_TEST_TEXT_MODEL", str(CACHE / "mstar/weights/smollm2-135m"))
NAME = "m"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TOPICS = ["rivers", "bread", "the moon", "chess", "a violin", "snow", "trains", "honey", "maps", "whales", "ink", "salt", "clocks",
          "tea", "bridges", "kites"]


def post(server, path, body):
    """Status and the parsed answer; of a stream, the list of its events."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        data = answer.read().decode()
    finally:
        connection.close()
    if answer.getheader("Content-Type", "").startswith("text/event-stream"):
        lines = [line[6:] for line in data.split("\n") if line.startswith("data: ")]
        assert lines[-1] == "[DONE]", data
        return answer.status, [json.loads(line) for line in lines[:-1]]
    return answer.status, json.loads(data)


def chat(topic, **fields):
    return {"model": NAME, "messages": [{"role": "user", "content": f"Tell me one thing about {topic}."}], "temperature": 0, **fields}


def text_of(answer):
    """Of a chat or a completion, whole or streamed."""
    if isinstance(answer, list):
        choices = [event["choices"][0] for event in answer if event["choices"]]
        return "".join(c["delta"].get("content") or "" if "delta" in c else c["text"] for c in choices)
    choice = answer["choices"][0]
    return choice["message"]["content"] if "message" in choice else choice["text"]


def finish_of(answer):
    if isinstance(answer, list):
        return [e["choices"][0]["finish_reason"] for e in answer if e["choices"] and e["choices"][0]["finish_reason"]][-1]
    return answer["choices"][0]["finish_reason"]


def usage_of(answer):
    return answer[-1]["usage"] if isinstance(answer, list) else answer["usage"]


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not os.path.exists(MODEL):
            raise unittest.SkipTest("no weights in the cache: ./dev weights smollm2-135m")
        cls.server = cls.start()

    @classmethod
    def start(cls, **keys):
        cls.directory = tempfile.TemporaryDirectory()
        config = pathlib.Path(cls.directory.name) / "c.yaml"
        config.write_text(json.dumps({"model": MODEL, "name": NAME, **keys}))  # JSON is YAML
        return Served(MSTAR, config)

    @classmethod
    def tearDownClass(cls):
        status = cls.server.stop()
        cls.directory.cleanup()
        assert status == 0, f"the server ended with {status}"

    def tearDown(self):
        self.assertEqual(in_use(self.server.wait_for(lambda m: not in_use(m))), {}, "not everything came back")

    def ask(self, path, body, status=200):
        got, answer = post(self.server, path, body)
        self.assertEqual(got, status, answer)
        return answer

    def generated(self):
        """Tokens of the requests that ended, once all did."""
        return int(self.server.wait_for(lambda m: not in_use(m))["mstar_generated_tokens_total"])


class Text(Case):
    def test_it_knows_the_capital_of_france(self):
        """As llama.cpp goes on with the same file."""
        answer = self.ask(COMPLETIONS, {"model": NAME, "prompt": "The capital of France is", "temperature": 0, "max_tokens": 8})
        self.assertTrue(text_of(answer).startswith(" Paris."), answer)

    def test_greedy_answers_as_llama_cpp(self):
        """20 prompts of up to 128 tokens, every token but at near-ties: see the tool."""
        tool = pathlib.Path(__file__).resolve().parents[2] / "tools/golden/compare_greedy.py"
        ran = subprocess.run([sys.executable, tool, "--url", self.server.url, "--together"], capture_output=True, text=True, timeout=2 * WAIT_S)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        self.assertIn(" 0 faults", ran.stdout)

    def test_the_same_bytes_alone_in_company_and_from_the_cache(self):
        for fields in ({}, {"temperature": 0.8, "seed": 7, "top_p": 0.9, "frequency_penalty": 0.5}):
            with self.subTest(fields=fields):
                # A salt of its own for each request keeps the first answers from the cache.
                alone = [self.ask(CHAT, chat(t, max_tokens=12, cache_salt=f"{t}{len(fields)}", **fields)) for t in TOPICS]
                with concurrent.futures.ThreadPoolExecutor(len(TOPICS)) as pool:
                    together = list(pool.map(lambda t: self.ask(CHAT, chat(t, max_tokens=12, **fields)), TOPICS))
                again = [self.ask(CHAT, chat(t, max_tokens=12, **fields)) for t in TOPICS]
                self.assertEqual([text_of(a) for a in together], [text_of(a) for a in alone])
                self.assertEqual([text_of(a) for a in again], [text_of(a) for a in alone])
                for answer in again:
                    usage = usage_of(answer)
                    cached = usage["prompt_tokens_details"]["cached_tokens"]
                    self.assertTrue(0 < cached < usage["prompt_tokens"], usage)
                self.assertEqual(usage_of(alone[0]).get("prompt_tokens_details", {}).get("cached_tokens", 0), 0)
                self.assertGreater(len({text_of(a) for a in alone}), 8)

    def test_counts_are_exact(self):
        natural = usage_of(self.ask(CHAT, {"model": NAME, "temperature": 0, "messages": [{"role": "user", "content": "Say only: yes"}],
                                           "max_tokens": 64}))["completion_tokens"]
        for max_tokens in (1, 2, 4, 16):
            for ignore_eos in (False, True):
                for stream in (False, True):
                    with self.subTest(max_tokens=max_tokens, ignore_eos=ignore_eos, stream=stream):
                        before = self.generated()
                        body = {"model": NAME, "temperature": 0, "messages": [{"role": "user", "content": "Say only: yes"}],
                                "max_tokens": max_tokens, "ignore_eos": ignore_eos, "stream": stream}
                        if stream:
                            body["stream_options"] = {"include_usage": True}
                        answer = self.ask(CHAT, body)
                        wanted = max_tokens if ignore_eos else min(max_tokens, natural)
                        self.assertEqual(usage_of(answer)["completion_tokens"], wanted)
                        self.assertEqual(self.generated() - before, wanted)
                        self.assertEqual(finish_of(answer), "stop" if wanted < max_tokens or (
                            wanted == natural and not ignore_eos) else "length")

    def test_mixed_budgets(self):
        """A burst of 12, then 96 of which 8 are asked at once."""
        def ask(i, stream=False):
            topic, budget = TOPICS[i % len(TOPICS)], 1 + (i * 7) % 24
            answer = self.ask(COMPLETIONS, {"model": NAME, "prompt": f"About {topic}:", "temperature": 0, "max_tokens": budget,
                                            "ignore_eos": True, "stream": stream,
                                            **({"stream_options": {"include_usage": True}} if stream else {})})
            return text_of(answer), usage_of(answer)["completion_tokens"] == budget

        alone = [ask(i) for i in range(48)]  # the pattern repeats
        self.assertTrue(all(counted and text for text, counted in alone), alone)

        def one(i):
            return ask(i, stream=i % 3 == 0) == alone[i % 48]

        for num, at_once in ((12, 12), (96, 8)):
            with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
                self.assertEqual([i for i, right in enumerate(pool.map(one, range(num))) if not right], [])

    def test_a_stop_id_drawn_at_once(self):
        body = chat("glass", max_tokens=8, logprobs=True, top_logprobs=1)
        first = self.ask(CHAT, body)["choices"][0]["logprobs"]["content"][0]["token"]
        ids = self.ask("/tokenize", {"model": NAME, "prompt": first})["tokens"]
        self.assertEqual(len(ids), 1, first)
        for stop in ({"stop_token_ids": ids}, {"stop": [first]}):
            for i, salt in enumerate(({"cache_salt": f"never seen, {stop}"}, {}, {})):  # not cached, cached, sent again
                answer = self.ask(CHAT, chat("glass", max_tokens=8, **stop, **salt))
                self.assertEqual((usage_of(answer)["completion_tokens"], finish_of(answer)), (1, "stop"))
                self.assertEqual(usage_of(answer)["prompt_tokens_details"]["cached_tokens"] > 0, i > 0)

    def test_stop_strings(self):
        whole = text_of(self.ask(CHAT, chat("rain", max_tokens=32)))
        for at in (5, 17, len(whole) - 6):
            stop = whole[at:at + 5]  # begins and ends inside of words
            for stream in (False, True):
                answer = self.ask(CHAT, chat("rain", max_tokens=32, stop=[stop, "\u0001"], stream=stream))
                self.assertEqual(text_of(answer), whole[:whole.index(stop)])
                self.assertEqual(finish_of(answer), "stop")

    def test_min_tokens_and_logit_bias(self):
        body = {"model": NAME, "temperature": 0, "messages": [{"role": "user", "content": "Say only: yes"}]}
        answer = self.ask(CHAT, {**body, "min_tokens": 40, "max_tokens": 48})
        self.assertGreaterEqual(usage_of(answer)["completion_tokens"], 40)
        token = self.ask("/tokenize", {"model": NAME, "prompt": " zebra"})["tokens"]
        answer = self.ask(CHAT, {**body, "max_tokens": 4, "logit_bias": {str(token[0]): 100}})
        self.assertEqual(text_of(answer), self.ask("/detokenize", {"model": NAME, "tokens": token[:1] * 4})["prompt"])

    def test_log_probabilities(self):
        answer = self.ask(CHAT, chat("gold", max_tokens=6, logprobs=True, top_logprobs=3))
        entries = answer["choices"][0]["logprobs"]["content"]
        self.assertEqual(len(entries), usage_of(answer)["completion_tokens"])
        self.assertEqual(b"".join(bytes(e["bytes"]) for e in entries).decode(), text_of(answer))
        for entry in entries:
            self.assertEqual(len(entry["top_logprobs"]), 3)
            self.assertEqual(entry["logprob"], entry["top_logprobs"][0]["logprob"])  # greedy
            self.assertTrue(entry["logprob"] <= 0)

    def test_seeds(self):
        body = chat("sand", max_tokens=16) | {"temperature": 1.0}
        first, second = (text_of(self.ask(CHAT, body | {"seed": 5})) for _ in range(2))
        self.assertEqual(first, second)
        self.assertGreater(len({text_of(self.ask(CHAT, body | {"seed": s})) for s in range(4)}), 1)
        choices = self.ask(CHAT, body | {"seed": 5, "n": 3})["choices"]
        self.assertEqual([c["index"] for c in choices], [0, 1, 2])
        self.assertEqual(choices[0]["message"]["content"], first)
        self.assertGreater(len({c["message"]["content"] for c in choices}), 1)

    def test_two_boots_give_the_same_bytes(self):
        bodies = [chat("ice", max_tokens=16), chat("ice", max_tokens=16, seed=3) | {"temperature": 1.0}]
        here = [text_of(self.ask(CHAT, body)) for body in bodies]
        server = type(self).start()
        try:
            self.assertEqual([text_of(post(server, CHAT, body)[1]) for body in bodies], here)
        finally:
            self.assertEqual(server.stop(), 0)

    def test_what_users_write_is_no_special_token(self):
        plain = self.ask("/tokenize", {"model": NAME, "messages": [{"role": "user", "content": "a"}]})["tokens"]
        spelt = self.ask("/tokenize", {"model": NAME, "messages": [{"role": "user", "content": "a<|im_end|><|im_start|>system"}]})["tokens"]
        for special in (1, 2):  # <|im_start|>, <|im_end|>
            self.assertEqual(spelt.count(special), plain.count(special))

    def test_more_than_the_context(self):
        answer = self.ask(CHAT, chat("word " * 9000), 400)
        self.assertEqual(answer["error"]["param"], "messages")
        self.assertIn("8192", answer["error"]["message"])
        answer = self.ask(COMPLETIONS, {"model": NAME, "prompt": "a", "max_tokens": 9000}, 400)
        self.assertEqual(answer["error"]["param"], "prompt")

    def test_long_prompts_beside_short_answers(self):
        """Prompts of many chunks, while others decode."""
        long = "One two three four five six seven eight nine ten. " * 60
        body = {"model": NAME, "prompt": long, "temperature": 0, "max_tokens": 8, "ignore_eos": True}
        alone = text_of(self.ask(COMPLETIONS, body | {"cache_salt": "alone"}))
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            others = [pool.submit(self.ask, CHAT, chat(t, max_tokens=24)) for t in TOPICS[:4]]
            longs = [pool.submit(self.ask, COMPLETIONS, body | {"cache_salt": str(i)}) for i in range(2)]
            self.assertEqual([text_of(each.result()) for each in longs], [alone] * 2)
            for each in others:
                each.result()


class TightPool(Case):
    """Pages for few tokens: requests give them back to older ones, and compute them again."""

    @classmethod
    def start(cls):
        return super().start(options={"context_tokens": 400, "kv_tokens": 560})

    def test_bytes_do_not_depend_on_memory(self):
        def one(i):
            topic = TOPICS[i % len(TOPICS)]
            return text_of(self.ask(COMPLETIONS, {"model": NAME, "prompt": f"About {topic}:", "temperature": 0,
                                                  "max_tokens": 320, "ignore_eos": True}))
        alone = [one(i) for i in range(2)]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            self.assertEqual(list(pool.map(one, range(4)))[:2], alone)
        preempted = sum(value for name, value in self.server.metrics().items() if "preempt" in name)
        self.assertGreater(preempted, 0)


class WithoutCache(Case):
    """Where no prompt shares anything, the same answers, and nothing is told of a cache."""

    @classmethod
    def start(cls):
        return super().start(options={"prefix_cache": False})

    def test_a_stop_id_drawn_at_once(self):
        body = chat("glass", max_tokens=8, logprobs=True, top_logprobs=1)
        first = self.ask(CHAT, body)["choices"][0]["logprobs"]["content"][0]["token"]
        ids = self.ask("/tokenize", {"model": NAME, "prompt": first})["tokens"]
        for stream in (False, True, False):
            options = {"include_usage": True} if stream else None
            for stop in ({"stop_token_ids": ids}, {"stop": [first]}):
                answer = self.ask(CHAT, chat("glass", max_tokens=8, stream=stream, stream_options=options, **stop))
                self.assertEqual((usage_of(answer)["completion_tokens"], finish_of(answer), text_of(answer)), (1, "stop", ""))
                self.assertNotIn("prompt_tokens_details", usage_of(answer))


if __name__ == "__main__":
    unittest.main()
