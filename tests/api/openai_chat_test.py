#!/usr/bin/env python3
"""The official OpenAI client's chats and completions against a running server.

Usage: openai_chat_test.py [BASE_URL [MODEL]] [unittest options]
or the variables MSTAR_URL and MSTAR_MODEL. Defaults: http://127.0.0.1:8000 and the first model that is listed. With MSTAR_FAKE=1
the server is server_demo, whose every answer is "Hello there.". Needs the PyPI package openai.
"""
import json
import os
import sys
import unittest
import urllib.request

import openai


def positional(index, variable, default):
    values = [a for a in sys.argv[1:] if not a.startswith("-")]
    return values[index] if len(values) > index else os.environ.get(variable, default)


URL = positional(0, "MSTAR_URL", "http://127.0.0.1:8000").rstrip("/")
MODEL = positional(1, "MSTAR_MODEL", "")
FAKE = os.environ.get("MSTAR_FAKE") == "1"
QUESTION = [{"role": "user", "content": "Name three colours, then say goodbye."}]
TOOLS = [{"type": "function",
          "function": {"name": "weather", "description": "Weather of a town", "strict": False,
                       "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]}}}]


def post(path, body):
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.load(answer)


class Chat(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.client = openai.OpenAI(base_url=URL + "/v1", api_key=os.environ.get("MSTAR_API_KEY", "none"), max_retries=0, timeout=300)
        cls.model = MODEL or next(iter(cls.client.models.list())).id
        cls.whole = cls.ask()

    @classmethod
    def tearDownClass(cls):
        cls.client.close()

    @classmethod
    def ask(cls, **options):
        options = {"temperature": 0, "max_tokens": 24, "messages": QUESTION} | options
        return cls.client.chat.completions.create(model=cls.model, **options)

    @property
    def text(self):
        return self.whole.choices[0].message.content

    def test_whole(self):
        self.assertEqual((self.whole.object, self.whole.model), ("chat.completion", self.model))
        self.assertTrue(self.whole.id.startswith("chatcmpl-"))
        choice, usage = self.whole.choices[0], self.whole.usage
        self.assertEqual((choice.index, choice.message.role), (0, "assistant"))
        self.assertTrue(choice.message.content)
        self.assertIn(choice.finish_reason, ("stop", "length"))
        self.assertGreater(usage.prompt_tokens, 0)
        self.assertLessEqual(usage.completion_tokens, 24)
        self.assertEqual(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)
        self.assertEqual(self.ask().choices[0].message.content, self.text)
        if FAKE:
            self.assertEqual(self.text, "Hello there.")

    def test_stream(self):
        with self.ask(stream=True, stream_options={"include_usage": True}) as stream:
            chunks = list(stream)
        self.assertTrue(all(c.object == "chat.completion.chunk" and c.id == chunks[0].id for c in chunks))
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks[:-1]), self.text)
        reasons = [c.choices[0].finish_reason for c in chunks[:-1]]
        self.assertEqual(set(reasons[:-1]), {None})
        self.assertEqual(reasons[-1], self.whole.choices[0].finish_reason)
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual((chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens),
                         (self.whole.usage.prompt_tokens, self.whole.usage.completion_tokens))

    def test_the_streaming_reader_of_the_client(self):
        with self.client.chat.completions.stream(model=self.model, messages=QUESTION, temperature=0, max_tokens=24) as stream:
            done = [event for event in stream if event.type == "content.done"]
        self.assertEqual(done[0].content, self.text)

    def test_several_choices(self):
        many = self.ask(n=3, temperature=1, seed=5)
        self.assertEqual([c.index for c in many.choices], [0, 1, 2])
        self.assertEqual(many.usage.prompt_tokens, self.whole.usage.prompt_tokens)
        again = self.ask(n=3, temperature=1, seed=5)
        self.assertEqual([c.message.content for c in again.choices], [c.message.content for c in many.choices])
        second = self.ask(temperature=1, seed=6)
        self.assertEqual(second.choices[0].message.content, many.choices[1].message.content)
        with self.ask(n=3, temperature=1, seed=5, stream=True) as stream:
            texts = ["", "", ""]
            for chunk in stream:
                for choice in chunk.choices:
                    texts[choice.index] += choice.delta.content or ""
        self.assertEqual(texts, [c.message.content for c in many.choices])

    @unittest.skipIf(FAKE, "the fake model has none")
    def test_logprobs(self):
        answer = self.ask(logprobs=True, top_logprobs=3)
        items = answer.choices[0].logprobs.content
        self.assertEqual(answer.choices[0].message.content, self.text)
        self.assertTrue(bytes(b for item in items for b in item.bytes).decode("utf-8", "replace").startswith(self.text[:10]))
        for item in items:
            self.assertLessEqual(item.logprob, 0)
            self.assertEqual(len(item.top_logprobs), 3)
            self.assertEqual(item.top_logprobs[0].token, item.token)  # greedy
            self.assertGreaterEqual(item.top_logprobs[0].logprob, item.top_logprobs[1].logprob)
        with self.ask(logprobs=True, top_logprobs=3, stream=True) as stream:
            streamed = [item for chunk in stream if chunk.choices and chunk.choices[0].logprobs
                        for item in chunk.choices[0].logprobs.content]
        self.assertEqual([i.token for i in streamed], [i.token for i in items])
        for one, other in zip(streamed, items):
            self.assertAlmostEqual(one.logprob, other.logprob, places=3)

    @unittest.skipIf(FAKE, "the fake model does not stop")
    def test_stop_strings(self):
        stop = self.text[len(self.text) // 2:][:4]
        for wanted in (stop, [stop, "never said"]):
            answer = self.ask(stop=wanted)
            self.assertEqual(answer.choices[0].message.content, self.text[:self.text.index(stop)])
            self.assertEqual(answer.choices[0].finish_reason, "stop")
        with self.ask(stop=stop, stream=True) as stream:
            said = "".join(c.choices[0].delta.content or "" for c in stream if c.choices)
        self.assertEqual(said, self.text[:self.text.index(stop)])

    @unittest.skipIf(FAKE, "the fake model counts nothing")
    def test_counts(self):
        for limit in (1, 2, 7):
            for stream in (False, True):
                with self.subTest(limit=limit, stream=stream):
                    answer = self.ask(max_tokens=limit, stream=stream, extra_body={"ignore_eos": True},
                                      **({"stream_options": {"include_usage": True}} if stream else {}))
                    if stream:
                        with answer:
                            chunks = list(answer)
                        usage, reason = chunks[-1].usage, chunks[-2].choices[0].finish_reason
                    else:
                        usage, reason = answer.usage, answer.choices[0].finish_reason
                    self.assertEqual((usage.completion_tokens, reason), (limit, "length"))

    def test_messages_of_every_kind(self):
        call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"town": "Oslo"}'}}
        answer = self.ask(tools=TOOLS, tool_choice="auto", messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "How is"}, {"type": "text", "text": "Oslo?"}]},
            {"role": "assistant", "content": "Let me look.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "4 degrees"},
            {"role": "user", "content": "Well?"}])
        self.assertTrue(answer.choices)
        self.assertGreater(answer.usage.prompt_tokens, 0)

    def test_fields_that_clients_send(self):
        answer = self.ask(user="me", metadata={"a": "b"}, store=False, response_format={"type": "text"}, logit_bias={"5": 1},
                          presence_penalty=0, frequency_penalty=0, top_p=1, parallel_tool_calls=True, service_tier="auto")
        self.assertTrue(answer.choices[0].message.content)

    def test_a_stream_may_be_left(self):
        stream = self.ask(stream=True)
        next(iter(stream))
        stream.close()
        self.assertEqual(self.ask().choices[0].message.content, self.text)

    def test_errors(self):
        with self.assertRaises(openai.NotFoundError) as caught:
            self.client.chat.completions.create(model="no-such-model", messages=QUESTION)
        self.assertEqual((caught.exception.code, caught.exception.param), ("model_not_found", "model"))
        image = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
        for options, param in (({"temperature": 3}, "temperature"), ({"messages": []}, "messages"),
                               ({"messages": [{"role": "robot", "content": "x"}]}, "messages"),
                               ({"messages": [{"role": "user", "content": [image]}]}, "messages"),
                               ({"max_tokens": 0}, "max_tokens"), ({"n": 1000}, "n"), ({"stop": ["a"] * 10000}, "stop"),
                               ({"seed": "x"}, "seed"), ({"tool_choice": "required", "tools": TOOLS}, "tool_choice"),
                               ({"response_format": {"type": "json_object"}}, "response_format"),
                               ({"top_logprobs": 3}, "top_logprobs"), ({"logit_bias": {"x": 1}}, "logit_bias")):
            with self.subTest(param), self.assertRaises(openai.BadRequestError) as caught:
                self.ask(**options)
            self.assertEqual(caught.exception.param, param)
        if not FAKE:
            with self.assertRaises(openai.BadRequestError) as caught:
                self.ask(max_tokens=10**8)
            self.assertEqual(caught.exception.param, "messages")


class Completions(unittest.TestCase):
    PROMPT = "The capital of France is"

    @classmethod
    def setUpClass(cls):
        cls.client = openai.OpenAI(base_url=URL + "/v1", api_key=os.environ.get("MSTAR_API_KEY", "none"), max_retries=0, timeout=300)
        cls.model = MODEL or next(iter(cls.client.models.list())).id
        cls.whole = cls.ask()

    @classmethod
    def tearDownClass(cls):
        cls.client.close()

    @classmethod
    def ask(cls, prompt=PROMPT, **options):
        return cls.client.completions.create(model=cls.model, prompt=prompt, **({"temperature": 0} | options))

    def test_whole(self):
        self.assertEqual(self.whole.object, "text_completion")
        self.assertTrue(self.whole.choices[0].text)
        self.assertLessEqual(self.whole.usage.completion_tokens, 16)

    def test_stream_and_echo(self):
        with self.ask(stream=True, echo=True) as stream:
            said = "".join(c.choices[0].text for c in stream)
        self.assertEqual(said, self.PROMPT + self.whole.choices[0].text)
        self.assertEqual(self.ask(echo=True).choices[0].text, said)

    def test_prompts_of_every_kind(self):
        ids = post("/tokenize", {"model": self.model, "prompt": self.PROMPT})["tokens"]
        self.assertEqual(self.ask(ids).choices[0].text, self.whole.choices[0].text)
        two = self.ask([self.PROMPT, "One, two,"], n=2)
        self.assertEqual([c.index for c in two.choices], [0, 1, 2, 3])
        self.assertEqual(two.choices[0].text, self.whole.choices[0].text)
        self.assertEqual(two.choices[1].text, self.whole.choices[0].text)
        self.assertEqual(self.ask([ids, ids]).choices[1].text, self.whole.choices[0].text)

    @unittest.skipIf(FAKE, "the fake model has none")
    def test_logprobs(self):
        choice = self.ask(logprobs=2).choices[0]
        columns = choice.logprobs
        self.assertEqual("".join(columns.tokens), choice.text)
        self.assertEqual(len(columns.tokens), len(columns.token_logprobs))
        self.assertEqual(columns.text_offset[0], 0)
        self.assertEqual(columns.text_offset[-1] + len(columns.tokens[-1]), len(choice.text))
        for token, logprob, top in zip(columns.tokens, columns.token_logprobs, columns.top_logprobs):
            self.assertLessEqual(logprob, 0)
            self.assertIn(token, top)

    def test_tokens_and_back(self):
        cut = post("/tokenize", {"model": self.model, "prompt": self.PROMPT})
        self.assertEqual(cut["count"], len(cut["tokens"]))
        self.assertGreater(cut["max_model_len"], cut["count"])
        self.assertIn(self.PROMPT, post("/detokenize", {"model": self.model, "tokens": cut["tokens"]})["prompt"])
        chat = post("/tokenize", {"model": self.model, "messages": QUESTION})
        if not FAKE:
            answer = self.client.chat.completions.create(model=self.model, messages=QUESTION, max_tokens=1)
            self.assertEqual(answer.usage.prompt_tokens, chat["count"])

    def test_errors(self):
        for prompt, options, param in (([], {}, "prompt"), ("a", {"logprobs": 99}, "logprobs"),
                                       ("a", {"echo": True, "logprobs": 1}, "echo"), ("a", {"suffix": "b"}, "suffix")):
            with self.subTest(param), self.assertRaises(openai.BadRequestError) as caught:
                self.ask(prompt, **options)
            self.assertEqual(caught.exception.param, param)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]] + [a for a in sys.argv[1:] if a.startswith("-")])
