#!/usr/bin/env python3
"""mstar serve and mstar bench as a user meets them.

Usage: cli_serve_test.py PATH_TO_MSTAR [unittest options]. Serve needs a model (see cli_support.py).
"""
import concurrent.futures
import json
import re
import signal
import socket
import subprocess
import time
import unittest
import urllib.error
import urllib.request

from cli_support import MODEL, MSTAR, WAIT_S, Served, mstar, needs_model, write_tone


@needs_model
class Serve(Served):
    def test_serves_and_ends_with_0_on_sigterm(self):
        process, url, said = self.start(MODEL, "--port", 0, "--alias", "whisper-1")
        self.assertIn("decoder.kv", said)
        self.assertIn("whisper-1", said)
        models = json.loads(self.get(url + "/v1/models"))["data"]
        self.assertIn("whisper-1", [m["id"] for m in models] + sum((m.get("aliases", []) for m in models), []))
        self.get(url + "/health")
        commands = [process.stderr.readline() for _ in range(6)]
        self.assertTrue(any("/v1/audio/transcriptions -F model=" in c for c in commands), commands)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(WAIT_S), 0)

    def test_interrupt_ends_with_0_too(self):
        process, _, _ = self.start(MODEL, "--port", 0)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(WAIT_S), 0)

    def test_a_config_with_two_workers(self):
        config = self.dir / "c.yaml"
        config.write_text(f"model: {MODEL}\nname: w\naliases: [whisper-1]\nserver: {{port: 0}}\nnode_groups:\n"
                          "- {components: [features, encoder], ranks: [0]}\n- {components: [cross, decoder], ranks: [1]}\n"
                          f"warmup_requests:\n- files: ['audio:{self.dir}/tone.wav']\n")
        write_tone(self.dir / "tone.wav")
        process, url, said = self.start(config)
        self.assertIn("     1  w", said)
        self.assertIn("w", self.get(url + "/v1/models"))
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(WAIT_S), 0)

    def test_a_warmup_request_that_fails_stops_the_start(self):
        config = self.dir / "c.yaml"
        config.write_text(f"model: {MODEL}\nserver: {{port: 0}}\nwarmup_requests:\n- text: no audio\n")
        self.assertIn("warmup request 1", self.check(mstar("serve", config), 1).stderr)

    def test_a_port_in_use(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            result = self.check(mstar("serve", MODEL, "--port", port), 1)
        self.assertIn(f"{port} is already in use", result.stderr)

    def test_a_port_that_is_none(self):
        self.assertIn("--port", self.check(mstar("serve", MODEL, "--port", 70000), 2).stderr)


class Bench(Served):
    """mstar bench against a model that computes nothing; what a server may do wrong is in src/mstar/load's tests."""

    def post(self, url, body):
        request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            return json.loads(answer.read())

    def bench(self, url, *arguments, status=0):
        figures = self.dir / "bench.json"
        result = self.check(mstar("bench", "--url", url, "--json", figures, *arguments), status)
        return result.stdout, json.loads(figures.read_text())

    def test_every_mode_and_route(self):
        server, url, _ = self.start("null", "--port", 0, "--max-requests", 64)
        for mode in (["--concurrency", 8], ["--rate", 500], ["--offline"]):
            for route in ("completions", "chat"):
                table, read = self.bench(url, "--route", route, *mode, "--requests", 40, "--input", "4-40", "--output", "1-30", "--seed",
                                         5, "--warmup", 3, "--server-pid", server.pid, "--api-key", "secret")
                figures = read["figures"]
                self.assertEqual((figures["requests"], figures["failed"], figures["counts_differ"], figures["short"]), (40, 0, 0, 0), table)
                self.assertEqual(figures["pieces"], figures["usage_tokens"])
                self.assertGreater(figures["pieces"], 40 * 8)
                self.assertIn("40 went well, 0 failed", table)
                self.assertIn("server's CPU", table)
                self.assertNotIn("secret", json.dumps(read))
                self.assertIn("--seed", read["command"])

    def test_a_profile_is_served_and_printed_at_the_end(self):
        trace = self.dir / "trace.json"
        process, url, _ = self.start("null", "--port", 0, "--max-requests", 8, "--profile", "phases", "--profile", f"trace={trace}")
        self.bench(url, "--concurrency", 4, "--requests", 20, "--output", "8")
        steps = json.loads(self.get(url + "/debug/profile"))["workers"][0]["steps"]
        self.assertGreater(sum(each["num_steps"] for each in steps), 8)
        for each in steps:
            self.assertLessEqual(each["exposed_us"]["mean"], each["host_us"]["mean"])
            self.assertAlmostEqual(sum(phase["mean_us"] for name, phase in each["phases"].items() if name != "idle"),
                                   each["step_us"]["mean"], delta=0.1)
        process.send_signal(signal.SIGTERM)
        said = process.stderr.read()
        self.assertEqual(process.wait(WAIT_S), 0)
        self.assertRegex(said, r"null/\w+: eager, [0-9-]+ rows")
        self.assertIn("= exposed", said)
        events = json.loads(trace.read_text())["traceEvents"]
        self.assertTrue(any(each["name"] == "route" for each in events))

    def test_a_server_without_a_profile_says_how_to_get_one(self):
        _, url, _ = self.start("null", "--port", 0)
        with self.assertRaises(urllib.error.HTTPError) as refused:
            self.get(url + "/debug/profile")
        self.assertEqual(refused.exception.code, 404)
        self.assertIn("--profile phases", refused.exception.read().decode())
        refused.exception.close()
        self.assertIn("--profile must be", self.check(mstar("serve", "null", "--profile", "all"), 2).stderr)

    def test_an_unknown_model_is_told_with_those_that_there_are(self):
        _, url, _ = self.start("null", "--port", 0)
        result = self.check(mstar("bench", "--url", url, "--model", "nil"), 1)
        self.assertIn("http 404", result.stderr)
        self.assertIn("it lists: null", result.stderr)

    def test_a_timed_null_model_answers_as_one_without_times_does(self):
        costs = self.dir / "costs.json"
        costs.write_text(json.dumps({"rows": [[1, 500], [8, 1000]], "prompt_tokens": [[0, 0], [16, 100]], "step_tokens": 16}))
        config = self.dir / "timed.yaml"
        config.write_text(json.dumps({"model": "null", "options": {"step_costs": str(costs), "max_rows": 3}, "max_concurrent_requests": 8}))
        bodies = [{"prompt": "x" * length + str(i), "max_tokens": 5 + i, "seed": i} for i, length in enumerate((1, 16, 40, 40, 64, 64, 100))]

        def answers(*arguments):
            _, url, _ = self.start(*arguments, "--port", 0)
            with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
                return list(pool.map(lambda body: self.post(url + "/v1/completions", {"model": "null", **body})["choices"][0]["text"], bodies))

        plain = answers("null")
        self.assertEqual(answers(config), plain)
        self.assertEqual([len(text.split()) for text in plain], [5 + i for i in range(len(bodies))])

    def test_step_costs_that_cannot_be_are_refused_with_the_reason(self):
        costs = self.dir / "wrong.json"
        costs.write_text('{"rows": [[2, 500], [1, 1000]]}')
        config = self.dir / "wrong.yaml"
        config.write_text(json.dumps({"model": "null", "options": {"step_costs": str(costs)}}))
        said = self.check(mstar("serve", config), 1).stderr
        self.assertIn("wrong.json: 'rows' must have its points in growing order", said)
        config.write_text(json.dumps({"model": "null", "options": {"step_costs": str(self.dir / "none.json")}}))
        self.assertIn("none.json", self.check(mstar("serve", config), 1).stderr)

    def test_refused_requests_are_failures_by_their_kind(self):
        config = self.dir / "narrow.yaml"
        config.write_text("model: 'null'\noptions: {step_us: 20000}\nmax_concurrent_requests: 1\nmax_queued_requests: 1\n")
        _, url, _ = self.start(config, "--port", 0)
        table, read = self.bench(url, "--offline", "--requests", 30, "--output", "5", status=1)
        figures = read["figures"]
        self.assertEqual(figures["failures"], {"http 429": figures["failed"]})
        self.assertEqual(figures["requests"] + figures["failed"], 30)
        self.assertGreater(figures["requests"], 0)
        self.assertIn(f"{figures['failed']} x http 429: ", table)

    def test_interrupt_prints_what_there_is(self):
        config = self.dir / "slow.yaml"
        config.write_text("model: 'null'\noptions: {step_us: 20000}\n")
        _, url, _ = self.start(config, "--port", 0)
        process = subprocess.Popen([MSTAR, "bench", "--url", url, "--requests", "100000", "--output", "2"],
                                   stdout=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        answered = r'mstar_http_requests_total{[^}]*completions[^}]*} ([0-9]+)'
        while int((re.findall(answered, self.get(url + "/metrics")) or [0])[0]) < 5:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=WAIT_S)
        self.assertEqual(process.returncode, 130)
        self.assertIn("Stopped before the end", out)


if __name__ == "__main__":
    unittest.main()
