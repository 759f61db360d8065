#!/usr/bin/env python3
"""The pure parts of bench/gpu_report.py, gpu_bench.py and gpu_timeline.py: no GPU, no server."""
import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
import gpu_bench
import gpu_report
import gpu_timeline


class Part(unittest.TestCase):
    def test_the_table_is_last_and_the_json_whole(self):
        with tempfile.TemporaryDirectory() as directory:
            work = pathlib.Path(directory)
            (work / "machine.json").write_text(json.dumps({"binary": "abc", "gpu": "NVIDIA H200", "libraries": ["libcublasLt.so.13.1"],
                                                           "python": {"torch": "2.11.0", "transformers": "5.17.0"}}))
            (work / "steps.tsv").write_text("one\t0\t3\ntwo\t124\t200\n")
            (work / "one.log").write_text("a\n12 passed, 0 failed\n")
            (work / "two.log").write_text("")
            step = {"model": "m", "component": "decoder", "kind": "replay", "rows": "17-32", "num_steps": 900, "num_kept": 512, "mean_rows": 31.5,
                    "phases": {"wait": {"mean_us": 5, "p50_us": 5, "p95_us": 6}, "admit": {"mean_us": 4, "p50_us": 3.5, "p95_us": 9}}}
            for name in ("step_us", "wait_us", "host_us", "exposed_us"):
                step[name] = {"mean": 1.0, "p50": 1.5, "p95": 2.5}
            (work / "one.result.json").write_text(json.dumps({"table": ["m  1  9 tok/s"], "m, phases": {"phases": {"workers": [{"rank": 0, "steps": [step]}]}}}))
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                failed = gpu_report.part("bench", work, work / "out")
            self.assertTrue(failed)
            lines = said.getvalue().splitlines()
            self.assertEqual(lines[-1], "m  1  9 tok/s")
            self.assertIn("OUT OF TIME", lines[-2])
            self.assertIn("admit 3.5/9.0", said.getvalue())
            whole = json.loads((work / "out/bench.json").read_text())
            self.assertEqual(whole["machine"]["binary"], "abc")
            self.assertEqual(whole["results"]["one"]["table"], ["m  1  9 tok/s"])


class Timeline(unittest.TestCase):
    def test_lines_that_were_cut_off_are_left_out(self):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as trace:
            trace.write("kernel 3000 5000 32 128 void mstar::embed<float>(Args)\ncopy 1000 2000 4 1\nkernel 60\nkernel 6000 7000 8\n12 13 fill\nfill 8000 9000 64\n")
            trace.flush()
            events = gpu_timeline.read(trace.name)
        self.assertEqual([(begin, end, kind) for begin, end, kind, _ in events], [(1, 2, "copy"), (3, 5, "kernel"), (8, 9, "fill")])
        self.assertEqual(events[1][3], "embed<float> [32 x 128]")


class Floor(unittest.TestCase):
    def config(self, model):
        return json.loads((pathlib.Path(gpu_report.__file__).parent / "models" / model / "config.json").read_text())

    def test_it_is_that_of_the_notes(self):
        for rows, ms in ((1, 0.36), (32, 0.70), (64, 1.06)):
            self.assertEqual(round(gpu_report.floor_ms(self.config("qwen3.5-0.8b"), rows, 768), 2), ms)

    def test_a_dense_model_has_weights_and_keys_alone(self):
        config = self.config("qwen3-0.6b")
        none, one = gpu_report.floor_ms(config, 0, 768), gpu_report.floor_ms(config, 1, 768)
        self.assertAlmostEqual(none * 4.28e9 / 2, 0.596e9, delta=0.002e9)
        self.assertAlmostEqual((one - none) * 4.28e9, 28 * 2 * 8 * 128 * 2 * 768, delta=1)


class Lengths(unittest.TestCase):
    def test_the_mean_of_what_is_asked_for(self):
        self.assertEqual(gpu_bench.tokens_of("256"), 256)
        self.assertEqual(gpu_bench.tokens_of("16-512"), 264)


if __name__ == "__main__":
    unittest.main()
