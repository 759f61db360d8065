#!/usr/bin/env python3
"""The text routes of the real binary with a tiny model of seeded weights: what bad input gets on either route, and the counts,
stops and cached tokens of good input. Needs no weights of the cache.

Usage: text_input_test.py PATH_TO_MSTAR [unittest options].
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
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
CONTEXT, VOCAB, PLACES = 256, 300, 4 + 60
CONFIG = {"model_type": "llama", "vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "intermediate_size": 96, "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-6, "hidden_act": "silu"}
A, B = 2 + ord("A"), 2 + ord("B")  # tokens of the dummy tokenizer: each byte is one


def user(content):
    return [{"role": "user", "content": content}]


def good(path, **fields):
    return {"model": "m", "temperature": 0, "max_tokens": 2, **({"messages": user("Hi")} if path == CHAT else {"prompt": "Hi"}), **fields}


def raw(path, text):
    """A body with that text in the place of a member."""
    return (json.dumps(good(path))[:-1] + "," + text + "}").encode()


# The values that each field of both routes refuses.
NUMBER = ["1", True, [], {}, "NaN"]
WHOLE = [*NUMBER, 1.5]
FLAG = ["true", 1, [], {}]
WRONG = {
    "model": [5, True, [], {}, "", "m" * 300],
    "temperature": [*NUMBER, -0.1, 2.1],
    "top_p": [*NUMBER, -0.1, 1.1],
    "min_p": [*NUMBER, -0.1, 1.1],
    "top_k": [*WHOLE, -2, 1 << 40],
    "presence_penalty": [*NUMBER, -2.1, 2.1],
    "frequency_penalty": [*NUMBER, -2.1, 2.1],
    "repetition_penalty": [*NUMBER, 0, -1, 101],
    "seed": [*WHOLE, 1 << 64],
    "max_tokens": [*WHOLE, 0, -1, 1 << 40],
    "min_tokens": [*WHOLE, -1, 3],  # more than max_tokens
    "n": [*WHOLE, 0, -1, 129, 10**12, 128, PLACES + 1],
    "best_of": [*WHOLE, 0, 2, 10**12],
    "stop": [5, True, {}, [5], [""], "", ["a", None], ["s%d" % i for i in range(10_000)], ["s"] * 17, "a" * 4097],
    "stop_token_ids": [5, "5", {}, ["5"], [-1], [1.5], [1 << 40], [VOCAB], [1] * 1025],
    "logit_bias": [5, [1], {"x": 1}, {"-1": 1}, {"1": 101}, {"1": "1"}, {"1": None}, {str(VOCAB): 1}, {"99999999999": 1}],
    "ignore_eos": FLAG,
    "stream": FLAG,
    "stream_options": [{"include_usage": True}],  # without a stream
    "cache_salt": [5, True, [], {}, "s" * 257],
    "response_format": ["text", [], {}, {"type": 5}, {"type": "json_object"},
                        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}],
    "suffix": ["tail", 5],
    "functions": [[{"name": "f"}]],
    "guided_json": [{"type": "object"}],
    "guided_regex": ["a+"],
    "structured_outputs": [{"json": {}}],
    "prompt_logprobs": [1],
    "use_beam_search": [True],
}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
AUDIO = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
CHAT_WRONG = {
    "messages": [None, 5, "Hi", {}, [], ["Hi"], [{}], [{"content": "x"}], [{"role": "user"}], [{"role": "robot", "content": "x"}],
                 [{"role": 5, "content": "x"}], [{"role": "User", "content": "x"}], user(None), user(5), user([]), user([5]),
                 user([{"type": "text"}]), user([{"type": "smell"}]), user([IMAGE]), user([AUDIO]), user([{"type": "text", "text": "x"}, IMAGE]),
                 [{"role": "tool", "content": "x"}], user("x" * (1 << 20)), user("x" * 5000), user("x " * CONTEXT)],
    "max_completion_tokens": [*WHOLE, 0, -1],
    "logprobs": ["true", 1, 5],
    "top_logprobs": [*WHOLE, -1, 21, 3],  # without logprobs
    "tools": [5, {}, ["x"], [{"type": "web"}], [{"type": "function"}], [{"type": "function", "function": {"name": ""}}]],
    "tool_choice": [5, "required", {"type": "function"}],
    "modalities": [["audio"], "text", []],
    "audio": [{"voice": "x"}],
    "chat_template_kwargs": [5, [], {"enable_thinking": "no"}],
    "add_generation_prompt": FLAG,
}
COMPLETIONS_WRONG = {
    "prompt": [None, 5, True, {}, [], "", [[]], [1, "a"], ["a", 1], [[1], "a"], [1.5], [-1], [VOCAB], [1 << 40], ["a", ""],
               "x" * (1 << 20), "x" * 5000, "x " * CONTEXT, [5] * CONTEXT, ["a"] * 1025, ["a"] * (PLACES + 1)],
    "logprobs": ["5", True, -1, 21, [], {}],
    "echo": FLAG,
    "parse_special": FLAG,
}
BOTH = (CHAT, COMPLETIONS)


class Case(unittest.TestCase):
    OPTIONS = {}
    GENERATION = {}

    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory()
        root = pathlib.Path(cls.directory.name)
        (root / "model").mkdir()
        (root / "model/config.json").write_text(json.dumps(CONFIG))
        (root / "model/generation_config.json").write_text(json.dumps(cls.GENERATION))
        config = {"model": str(root / "model"), "name": "m", "options": {"load_format": "dummy", **cls.OPTIONS},
                  "max_concurrent_requests": 4, "max_queued_requests": PLACES - 4}
        (root / "c.yaml").write_text(json.dumps(config))  # JSON is YAML
        cls.server = Served(MSTAR, root / "c.yaml")

    @classmethod
    def tearDownClass(cls):
        status = cls.server.stop()
        cls.directory.cleanup()
        assert status == 0, f"the server ended with {status}"

    def tearDown(self):
        self.assertEqual(in_use(self.server.wait_for(lambda m: not in_use(m))), {}, "not everything came back")

    def post(self, path, body):
        """Status and the parsed answer; of a stream, the list of its events."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=WAIT_S)
        try:
            connection.request("POST", path, body if isinstance(body, bytes) else json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            data = answer.read().decode()
        finally:
            connection.close()
        if answer.getheader("Content-Type", "").startswith("text/event-stream"):
            lines = [line[6:] for line in data.split("\n") if line.startswith("data: ")]
            self.assertEqual(lines[-1], "[DONE]", data)
            return answer.status, [json.loads(line) for line in lines[:-1]]
        return answer.status, json.loads(data)

    def ask(self, path, **fields):
        """(texts, finish reasons, usage) of an answer, whole or streamed."""
        if fields.get("stream"):
            fields["stream_options"] = {"include_usage": True}
        status, answer = self.post(path, good(path, **fields))
        self.assertEqual(status, 200, answer)
        if not isinstance(answer, list):
            texts = [c["message"]["content"] if path == CHAT else c["text"] for c in answer["choices"]]
            return texts, [c["finish_reason"] for c in answer["choices"]], answer["usage"]
        texts, reasons = {}, {}
        for choice in (c for event in answer for c in event["choices"]):
            at = choice["index"]
            texts[at] = texts.get(at, "") + (choice["delta"].get("content") or "" if path == CHAT else choice["text"])
            reasons[at] = choice["finish_reason"] or reasons.get(at)
        return [texts[i] for i in sorted(texts)], [reasons[i] for i in sorted(reasons)], answer[-1]["usage"]


class BadInput(Case):
    def refused(self, path, body, param, code=None):
        status, answer = self.post(path, body)
        self.assertEqual(status, 400, answer)
        error = answer["error"]
        self.assertEqual((error["param"], error["type"]), (param, "invalid_request_error"), error)
        if param:
            self.assertIn(param, error["message"])
        if code:
            self.assertEqual(error["code"], code, error)
        return error["message"]

    def test_each_field_of_a_wrong_type_or_out_of_range(self):
        for path in BOTH:
            for field, values in {**WRONG, **(CHAT_WRONG if path == CHAT else COMPLETIONS_WRONG)}.items():
                for value in values:
                    with self.subTest(path=path, field=field, value=str(value)[:80]):
                        self.refused(path, good(path, **{field: value}), field)
            for options in ([], 5, {"include_usage": 1}):
                self.refused(path, good(path, stream=True, stream_options=options), "stream_options")

    def test_numbers_that_are_none(self):
        for path in BOTH:
            for number in ("NaN", "Infinity", "-Infinity", "1e999", "nan", "0x10", "+1", "01", ".5"):
                with self.subTest(path=path, number=number):
                    self.refused(path, raw(path, f'"top_p":{number}'), "top_p")

    def test_bodies_that_are_no_json(self):
        for path in BOTH:
            for body in (b"", b"{", b"[]", b"3", b"null", b'"x"', b'{"model":"m"}x', b"[" * 100_000, b'{"a":' * 1000,
                         raw(path, '"x":' + "[" * 100 + "]" * 100), raw(path, '"x":{' + ",".join(f'"{i}":1' for i in range(2000)) + "}")):
                with self.subTest(path=path, body=body[:40]):
                    status, answer = self.post(path, body)
                    self.assertEqual((status, answer["error"]["type"]), (400, "invalid_request_error"))

    def test_text_that_is_not_utf_8(self):
        for path, field in ((CHAT, "messages"), (COMPLETIONS, "prompt")):
            for text in (b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\\ud800", b"\\udc00x", b"\xe2\x82"):
                value = b'[{"role":"user","content":"%s"}]' % text if path == CHAT else b'"%s"' % text
                self.refused(path, b'{"model":"m","%s":%s}' % (field.encode(), value), field)

    def test_more_than_the_context_says_both_numbers(self):
        for path, field in ((CHAT, "messages"), (COMPLETIONS, "prompt")):
            long = "x" * CONTEXT
            message = self.refused(path, good(path, **{field: user(long) if path == CHAT else long}), field, "context_length_exceeded")
            self.assertRegex(message, rf"has \d+ tokens.*{CONTEXT}")
            message = self.refused(path, good(path, max_tokens=CONTEXT), field, "context_length_exceeded")
            self.assertRegex(message, rf"has \d+ tokens and max_tokens is {CONTEXT}.*{CONTEXT}")
            huge = "x" * (1 << 20)
            message = self.refused(path, good(path, **{field: user(huge) if path == CHAT else huge}), field, "context_length_exceeded")
            self.assertRegex(message, rf"has \d+ bytes, at least \d+ tokens.*{CONTEXT}")

    def test_more_choices_than_places_says_how_many_there_are(self):
        for path in BOTH:
            self.assertIn(f"room for {PLACES} ", self.refused(path, good(path, n=PLACES + 1), "n"))
            self.server.wait_for(lambda m: not in_use(m))  # of the last call, too
            self.assertEqual(len(self.ask(path, n=PLACES)[0]), PLACES)
        self.assertIn(f"room for {PLACES} ", self.refused(COMPLETIONS, good(COMPLETIONS, prompt=["a"] * (PLACES + 1)), "prompt"))

    def test_log_probabilities_of_an_echoed_prompt(self):
        self.assertIn("logprobs", self.refused(COMPLETIONS, good(COMPLETIONS, echo=True, logprobs=0), "echo"))

    def test_unknown_models(self):
        for path in BOTH:
            status, answer = self.post(path, good(path, model="nobody"))
            self.assertEqual((status, answer["error"]["code"], answer["error"]["param"]), (404, "model_not_found", "model"))

    def test_what_is_good_beside_it(self):
        for path in BOTH:
            bad = good(path, temperature=9)
            with concurrent.futures.ThreadPoolExecutor(6) as pool:
                answers = list(pool.map(lambda i: self.post(path, bad if i % 2 else good(path))[0], range(60)))
            self.assertEqual(answers, [200, 400] * 30)


class Counts(Case):
    """Each answer is a run of A's: nothing but counts and stops decides where it ends."""
    def run_of_a(self, path, **fields):
        return self.ask(path, **{"logit_bias": {str(A): 100}, **fields})

    def prompt(self, path, text):
        return {"messages": user(text)} if path == CHAT else {"prompt": text}

    def test_budgets_are_exact(self):
        for path in BOTH:
            for max_tokens in (1, 2, 4, 16):
                for ignore_eos in (False, True):
                    for stream in (False, True):
                        with self.subTest(path=path, max_tokens=max_tokens, ignore_eos=ignore_eos, stream=stream):
                            texts, reasons, usage = self.run_of_a(path, max_tokens=max_tokens, ignore_eos=ignore_eos, stream=stream, n=2)
                            self.assertEqual((texts, reasons), (["A" * max_tokens] * 2, ["length"] * 2))
                            self.assertEqual(usage["completion_tokens"], 2 * max_tokens)
                            self.assertEqual(usage["total_tokens"], usage["prompt_tokens"] + 2 * max_tokens)

    def test_bursts_of_mixed_budgets(self):
        def wrong(i):
            path, budget = BOTH[i % 2], 1 + (i * 7) % 24
            texts, reasons, usage = self.run_of_a(path, max_tokens=budget, stream=i % 3 == 0, **self.prompt(path, f"About {i % 5}:"))
            return (texts, reasons, usage["completion_tokens"]) != (["A" * budget], ["length"], budget)
        for num, at_once in ((12, 12), (96, 8)):
            with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
                self.assertEqual([i for i, is_wrong in enumerate(pool.map(wrong, range(num))) if is_wrong], [])

    def test_stops_with_the_first_token(self):
        """By an id and by a string, which leave their marks differently; new, found in the cache and sent again."""
        long = "A prompt that fills some pages of the cache: " * 3
        for path in BOTH:
            for stop, text in (({"stop_token_ids": [A]}, ""), ({"stop": ["A"]}, ""), ({"stop": ["AA"]}, "A")):
                for stream in (False, True):
                    for n in (1, 3):
                        for turn in range(3):
                            with self.subTest(path=path, stop=stop, stream=stream, n=n, turn=turn):
                                salt = f"{path}{stop}{stream}{n}"
                                texts, reasons, usage = self.run_of_a(path, max_tokens=1 if text else 8, n=n, stream=stream, cache_salt=salt,
                                                                      **stop, **self.prompt(path, long))
                                self.assertEqual((texts, reasons), ([text] * n, ["length" if text else "stop"] * n))
                                self.assertEqual(usage["completion_tokens"], n)
                                self.check_cached(usage, turn)

    def check_cached(self, usage, turn):
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        if turn == 0:
            self.assertEqual(cached, 0)
        else:
            self.assertTrue(0 < cached < usage["prompt_tokens"], usage)

    def test_stop_strings_across_tokens(self):
        for path in BOTH:
            for stream in (False, True):
                texts, reasons, usage = self.run_of_a(path, max_tokens=32, stop=["AAAAA", "AAAAAAAAB", "B"], stream=stream)
                self.assertEqual((texts, reasons, usage["completion_tokens"]), ([""], ["stop"], 5))
                # What looked like one until the end is given back.
                texts, reasons, usage = self.run_of_a(path, max_tokens=7, stop=["A" * 8], stream=stream)
                self.assertEqual((texts, reasons, usage["completion_tokens"]), (["A" * 7], ["length"], 7))

    def test_choices_end_each_by_itself(self):
        """One in two draws is an A, the others are B, which stops: the reasons differ, and each is true."""
        bias = {"logit_bias": {str(A): 60, str(B): 60}, "temperature": 2, "max_tokens": 2, "seed": 1, "n": 12}
        for path in BOTH:
            texts, reasons, usage = self.ask(path, stop_token_ids=[B], **bias)
            self.assertEqual([("length" if len(text) == 2 else "stop") for text in texts], reasons)
            self.assertEqual(set(reasons), {"length", "stop"})
            self.assertEqual(usage["completion_tokens"], sum(len(t) + (r == "stop") for t, r in zip(texts, reasons)))
            self.assertEqual(self.ask(path, stop_token_ids=[B], stream=True, **bias)[:2], (texts, reasons))


class CountsWithoutCache(Counts):
    OPTIONS = {"prefix_cache": False}

    def check_cached(self, usage, turn):
        self.assertNotIn("prompt_tokens_details", usage)


class Defaults(Case):
    """The checkpoint says what a request leaves out."""
    GENERATION = {"do_sample": True, "temperature": 1.5, "top_k": 1, "max_new_tokens": 3}

    def test_they_are_those_of_requests_that_say_nothing(self):
        for path in BOTH:
            greedy = self.ask(path, max_tokens=24)
            for seed in range(3):
                said = {"temperature": None, "max_tokens": 24, "seed": seed}
                self.assertEqual(self.ask(path, **said)[:2], greedy[:2])  # the likeliest one, by top_k
                self.assertNotEqual(self.ask(path, top_k=0, **said)[0], greedy[0])
                self.assertEqual(self.ask(path, top_k=0, **said), self.ask(path, top_k=0, **said | {"temperature": 1.5}))

    def test_inspect_shows_them(self):
        directory = str(pathlib.Path(self.directory.name) / "c.yaml")
        shown = subprocess.run([MSTAR, "inspect", directory], capture_output=True, text=True, timeout=WAIT_S, check=True).stdout
        self.assertIn("where a request does not say: temperature 1.5, top_k 1\n", shown)
        shown = subprocess.run([MSTAR, "inspect", directory, "--json"], capture_output=True, text=True, timeout=WAIT_S, check=True).stdout
        self.assertEqual(json.loads(shown)[0]["defaults"], {"temperature": 1.5, "top_k": 1})


if __name__ == "__main__":
    unittest.main()
