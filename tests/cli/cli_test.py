#!/usr/bin/env python3
"""The mstar binary as a user meets it: arguments, files, pipes, signals, exit status.

Usage: cli_test.py PATH_TO_MSTAR [unittest options]. Tests that need a model (see cli_support.py) are skipped without one.
"""
import json
import os
import pathlib
import pty
import re
import select
import signal
import socket
import subprocess
import time
import unittest

from cli_support import (MODEL, MSTAR, SAID, SPEECH, WAIT_S, Case,
                         mstar, needs_model, needs_speech, write_long_speech, write_tone)


class Calls(Case):
    """What needs no model."""

    def test_version(self):
        out = self.check(mstar("--version"), 0).stdout
        self.assertRegex(out, r"\Amstar \d+\.\d+\.\d+\nbuild: +\S+.*\nprocessor: .*threads\nkernels: ")

    def test_help_names_the_commands(self):
        out = self.check(mstar("--help"), 0).stdout
        for command in ("serve", "transcribe", "run", "inspect", "bench"):
            self.assertIn(command, out)
        self.assertIn("--format", self.check(mstar("transcribe", "--help"), 0).stdout)

    def test_wrong_calls_end_with_2(self):
        for call in ([], ["frob"], ["transcribe"], ["serve", "--frob"], ["transcribe", "a.wav", "--threads", "x"],
                     ["--log-level", "loud", "inspect", "x"]):
            self.check(mstar(*call), 2)

    def test_bench_says_what_is_wrong(self):
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))  # not listening
            nobody = f"http://127.0.0.1:{unused.getsockname()[1]}"
            for call, status, words in (
                    (["--url", nobody], 1, "nothing answers at " + nobody),
                    (["--url", "https://x"], 2, "only http"),
                    (["--rate", "1", "--offline"], 2, "one of --concurrency, --rate and --offline"),
                    (["--input", "5-1"], 2, "--input: '5-1'"), (["--output", "0"], 2, "--output must be at least 1"),
                    (["--requests", "0"], 2, "--requests must be from 1"), (["--route", "x"], 2, "--route must be"),
                    (["--server-pid", "99999999", "--url", nobody], 2, "--server-pid: there is no process"),
                    (["--api-key", "a b"], 2, "--api-key has")):
                self.assertIn(words, self.check(mstar("bench", *call), status).stderr)

    def test_bad_format(self):
        result = self.check(mstar("transcribe", "a.wav", "--format", "pdf"), 2)
        self.assertIn("--format must be txt, srt, vtt or json, not 'pdf'", result.stderr)

    def test_bad_task_and_param(self):
        self.assertIn("--task", self.check(mstar("transcribe", "a.wav", "--task", "sing"), 2).stderr)
        self.assertIn("NAME=VALUE", self.check(mstar("transcribe", "a.wav", "--param", "x"), 2).stderr)

    def test_missing_files_are_named_without_loading_a_model(self):
        result = self.check(mstar("transcribe", self.dir / "no.wav", self.dir, "--model", "/no/model"), 1)
        self.assertIn("no.wav: no such file", result.stderr)
        self.assertIn("no audio file in this directory", result.stderr)
        self.assertNotIn("/no/model", result.stderr)

    def test_output_that_is_no_directory(self):
        write_tone(self.dir / "a.wav")
        (self.dir / "out").write_text("a file")
        result = self.check(mstar("transcribe", self.dir / "a.wav", "--output", self.dir / "out"), 1)
        self.assertIn("out", result.stderr)

    def test_two_inputs_for_one_output(self):
        for name in ("x", "y"):
            (self.dir / name).mkdir()
            write_tone(self.dir / name / "a.wav")
        result = self.check(mstar("transcribe", self.dir / "x/a.wav", self.dir / "y/a.wav", "--output", self.dir / "o"), 2)
        self.assertIn("would both be written to", result.stderr)

    def test_no_model_anywhere(self):
        write_tone(self.dir / "a.wav")
        env = dict(os.environ, XDG_CACHE_HOME=str(self.dir / "cache"))
        result = self.check(mstar("transcribe", self.dir / "a.wav", env=env), 1)
        self.assertIn("./dev weights whisper-base", result.stderr)
        self.assertIn("no model", self.check(mstar("serve", env=env), 1).stderr)

    def test_names_of_several_models(self):
        both = ("serve", "toy-image", "toy-world", "--port", "0")
        self.assertIn("say x=MODEL", self.check(mstar(*both, "--alias", "x"), 2).stderr)
        self.assertIn("no model that is served", self.check(mstar(*both, "--alias", "x=nope"), 2).stderr)
        self.assertIn("'c.yaml'", self.check(mstar("serve", "toy-image", "c.yaml"), 2).stderr)

    def test_model_not_found(self):
        for command in ("serve", "inspect", "run"):
            self.assertIn("no model 'nope'", self.check(mstar(command, "nope"), 1).stderr)

    def test_a_directory_without_weights(self):
        self.assertIn(str(self.dir), self.check(mstar("inspect", self.dir), 1).stderr)

    def test_bad_yaml_is_told_with_its_place(self):
        config = self.dir / "c.yaml"
        config.write_text("model: whisper\nserver:\n  prot: 8000\nthreads: many\n")
        result = self.check(mstar("serve", config), 2)
        self.assertIn(f"{config}:3:3: unknown key 'prot' in 'server'; did you mean 'port'? Allowed: host, port", result.stderr)
        self.assertIn(f"{config}:4:10: 'threads' must be a whole number", result.stderr)
        config.write_text("model: [a\n")
        self.assertRegex(self.check(mstar("serve", config), 2).stderr, re.escape(str(config)) + r":\d+:\d+: ")
        self.assertIn("No such file", self.check(mstar("serve", self.dir / "none.yaml"), 1).stderr)

    def test_process_isolation_is_refused_or_works(self):
        config = self.dir / "c.yaml"
        config.write_text("model: nope\nisolation: fork\n")
        self.assertIn("must be one of thread, process", self.check(mstar("serve", config), 2).stderr)


@needs_model
class Models(Case):
    """What needs a model but no speech."""

    def test_inspect(self):
        out = self.check(mstar("inspect", MODEL), 0).stdout
        for text in ("family whisper", "walk decode", "`- decoder: token -> token, score", "paged_kv", "rank 0: ", "budget"):
            self.assertIn(text, out)
        models = json.loads(self.check(mstar("inspect", MODEL, "--json"), 0).stdout)
        self.assertEqual([c["name"] for c in models[0]["components"] if c["on"] == "host"], ["audio", "segment"])
        self.assertEqual({w["name"] for w in models[0]["walks"]}, {"detect", "listen", "prompt", "decode", "close", "align"})
        self.assertTrue(models[0]["weights"]["homes"])

    def test_inspect_of_a_config_shows_the_placement(self):
        config = self.dir / "c.yaml"
        config.write_text(f"model: {MODEL}\nname: w\nnode_groups:\n- {{components: [cross, decoder], ranks: [1, 2]}}\n")
        self.assertIn("ranks 1, 2: cross, decoder  (2 replicas)", self.check(mstar("inspect", config), 0).stdout)
        config.write_text(f"model: {MODEL}\nnode_groups:\n- {{components: [decodr], ranks: [1]}}\n")
        self.assertIn("did you mean 'decoder'?", self.check(mstar("inspect", config), 1).stderr)

    def test_a_bad_file_fails_alone(self):
        (self.dir / "in").mkdir()
        write_tone(self.dir / "in/good.wav")
        (self.dir / "in/empty.wav").write_bytes(b"")
        (self.dir / "in/text.wav").write_text("this is no audio")
        result = self.check(mstar("transcribe", self.dir / "in", "--output", self.dir / "out", "--model", MODEL), 1)
        self.assertEqual([p.name for p in (self.dir / "out").iterdir()], ["good.txt"])
        self.assertRegex(result.stderr, r"empty\.wav: .*empty")
        self.assertRegex(result.stderr, r"text\.wav: ")
        self.assertIn("1 of 3 files", result.stderr)
        self.assertIn("2 failed", result.stderr)

    def test_too_little_memory_is_refused_with_a_table(self):
        result = self.check(mstar("serve", MODEL, "--memory", "30M"), 1)
        for text in ("--memory", "decoder.cross", "together", "30 MiB"):
            self.assertIn(text, result.stderr)
        self.assertIn("no size", self.check(mstar("serve", MODEL, "--memory", "lots"), 2).stderr)

    def test_a_damaged_checkpoint_is_refused(self):
        copy = self.dir / "damaged"
        copy.mkdir()
        for file in pathlib.Path(MODEL).iterdir():
            if file.name != "model.bin":
                (copy / file.name).symlink_to(file.resolve())
        whole = (pathlib.Path(MODEL) / "model.bin").read_bytes()
        (copy / "model.bin").write_bytes(whole[:len(whole) // 2])
        result = self.check(mstar("transcribe", "-", "--model", copy, input=""), 1)
        self.assertIn("model.bin", result.stderr)


@needs_speech
class Transcribe(Case):
    def transcribe(self, *arguments, **options):
        return mstar("transcribe", *arguments, "--model", MODEL, **options)

    def test_one_file_to_a_pipe_is_just_its_text(self):
        result = self.check(self.transcribe(SPEECH), 0)
        self.assertEqual(result.stdout, SAID + "\n")
        self.assertRegex(result.stderr, r"0930\.wav: 3\.3 s of audio in [\d.]+ s, [\d.]+x real time\n\Z")
        self.assertNotIn("\x1b", result.stderr)
        self.assertNotIn("\r", result.stderr)

    def test_standard_input(self):
        with open(SPEECH, "rb") as file:
            result = self.check(self.transcribe("-", "--quiet", stdin=file), 0)
        self.assertEqual(result.stdout, SAID + "\n")
        self.assertEqual(result.stderr, "")

    def test_every_format_into_a_directory(self):
        for name in ("txt", "srt", "vtt", "json"):
            self.check(self.transcribe(SPEECH, "--format", name, "--output", self.dir / "out"), 0)
        out = {p.suffix: p.read_text() for p in (self.dir / "out").iterdir()}
        self.assertEqual(out[".txt"], SAID + "\n")
        self.assertRegex(out[".srt"], r"\A1\n00:00:00,000 --> 00:00:0\d,\d{3}\n" + SAID + r"\n\n\Z")
        self.assertRegex(out[".vtt"], r"\AWEBVTT\n\n00:00\.000 --> 00:0\d\.\d{3}\n" + SAID + r"\n\n\Z")
        result = json.loads(out[".json"])
        self.assertEqual((result["text"], result["language"]), (SAID, "en"))
        self.assertAlmostEqual(result["duration"], 3.29, places=2)
        self.assertEqual(result["segments"][0]["start"], 0.0)
        self.assertTrue(result["segments"][0]["tokens"])

    def test_existing_files_stay_unless_forced(self):
        out = self.dir / "out"
        out.mkdir()
        target = out / (SPEECH.stem + ".txt")
        target.write_text("mine")
        result = self.check(self.transcribe(SPEECH, "--output", out), 0)
        self.assertIn("skipped", result.stderr)
        self.assertEqual(target.read_text(), "mine")
        self.check(self.transcribe(SPEECH, "--output", out, "--force"), 0)
        self.assertEqual(target.read_text(), SAID + "\n")

    def test_several_files_come_in_the_order_of_the_arguments(self):
        files = []
        for i, seconds in enumerate((3, 0.5, 2)):
            files.append(self.dir / f"{i}.wav")
            write_tone(files[-1], seconds)
        out = self.check(self.transcribe(*files), 0).stdout
        self.assertEqual(re.findall(r"==> (.*) <==", out), [str(f) for f in files])
        lines = self.check(self.transcribe(*files, "--format", "json"), 0).stdout.splitlines()
        self.assertEqual([json.loads(line)["file"] for line in lines], [str(f) for f in files])

    def test_a_language_that_the_model_does_not_know(self):
        result = self.check(self.transcribe(SPEECH, "--language", "de"), 1)
        self.assertIn("English", result.stderr)

    def test_a_terminal_gets_one_line_that_is_redrawn(self):
        parent, child = pty.openpty()
        process = subprocess.Popen([MSTAR, "transcribe", str(SPEECH), "--model", MODEL], stdout=subprocess.PIPE, stderr=child)
        os.close(child)
        shown = b""
        try:
            while True:
                if not select.select([parent], [], [], WAIT_S)[0]:
                    break
                shown += os.read(parent, 4096)
        except OSError:  # how a pseudo terminal says that the other side closed
            pass
        out, _ = process.communicate(timeout=WAIT_S)
        os.close(parent)
        self.assertEqual(process.returncode, 0)
        self.assertEqual(out.decode(), SAID + "\n")
        text = shown.decode()
        self.assertIn("loading", text)
        self.assertRegex(text, r"0%  0:00/0:03")
        self.assertIn("\r\x1b[K", text)
        self.assertRegex(text, r"real time\r\n\Z")

    def start_long(self, *arguments):
        write_long_speech(self.dir / "long.wav", 200)
        process = subprocess.Popen([MSTAR, "transcribe", str(SPEECH), str(self.dir / "long.wav"), "--model", MODEL,
                                    "--max-requests", "1", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        # The first file is done: what comes now is inside the second one.
        line = process.stderr.readline()
        self.assertIn("real time", line)
        return process

    def test_interrupt_keeps_what_is_done(self):
        out = self.dir / "out"
        process = self.start_long("--output", str(out), "--format", "json")
        deadline = time.monotonic() + WAIT_S
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=max(1, deadline - time.monotonic()))
        self.assertEqual(process.returncode, 130, errors)
        self.assertTrue((out / (SPEECH.stem + ".json")).exists())
        self.assertFalse((out / "long.json").exists())
        partial = out / "long.partial.json"
        if partial.exists():  # a busy machine may not have ended one window
            self.assertTrue(json.loads(partial.read_text())["partial"])
            self.assertIn("only the first", errors)
        self.assertIn("interrupted", errors)
        self.assertEqual([p.name for p in out.iterdir() if ".tmp" in p.name], [])

    def test_a_second_interrupt_quits_at_once(self):
        process = self.start_long()
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=WAIT_S)
        self.assertIn(process.returncode, (130, 143))

    def test_run_prints_chunks_as_they_come(self):
        out = self.check(mstar("run", MODEL, "--file", SPEECH), 0).stdout
        self.assertEqual(json.loads(out.splitlines()[0])["text"].strip(), SAID)
        self.assertIn("Write audio:", self.check(mstar("run", MODEL, "--file", "x.unknown"), 2).stderr)


if __name__ == "__main__":
    unittest.main()
