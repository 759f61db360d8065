"""What the tests of the command line share. The binary is the first argument; the model is whisper-tiny.en of the user's
cache, or the directory that MSTAR_TEST_MODEL names."""
import math
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import urllib.request
import wave

MSTAR = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else "mstar"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
MODEL = os.environ.get("MSTAR_TEST_MODEL", str(CACHE / "mstar/weights/whisper-tiny.en"))
SPEECH = pathlib.Path("/usr/share/pocketsphinx/test/data/librivox/sense_and_sensibility_01_austen_64kb-0930.wav")
SAID = "He might even have been made amiable himself."
WAIT_S = 240  # sanitizers and busy machines are slow; nothing here measures time

needs_model = unittest.skipUnless(os.path.isdir(MODEL), "no weights in the cache: ./dev weights whisper-tiny.en")
needs_speech = unittest.skipUnless(os.path.isdir(MODEL) and SPEECH.exists(),
                                   "needs the weights and the package pocketsphinx-testdata")


def mstar(*arguments, **options):
    return subprocess.run([MSTAR, *map(str, arguments)], capture_output=True, timeout=WAIT_S, text=options.pop("text", True),
                          **options)


def write_tone(path, seconds=1.0):
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(b"".join(struct.pack("<h", int(3000 * math.sin(i / 5))) for i in range(int(16000 * seconds))))


def write_long_speech(path, times):
    with wave.open(str(SPEECH)) as source, wave.open(str(path), "wb") as out:
        frames = source.readframes(source.getnframes())
        out.setparams(source.getparams())
        for _ in range(times):
            out.writeframes(frames)


class Case(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="mstar_cli_"))
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)

    def check(self, result, status):
        self.assertEqual(result.returncode, status, f"stdout: {result.stdout}\nstderr: {result.stderr}")
        return result


class Served(Case):
    def start(self, *arguments):
        process = subprocess.Popen([MSTAR, "serve", *map(str, arguments)], stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.wait)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.kill)
        said = ""
        while True:
            line = process.stderr.readline()
            said += line
            if not line:
                self.fail("the server ended: " + said)
            if found := re.match(r"ready on (http://\S+)", line):
                return process, found.group(1), said

    def get(self, url):
        with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
            return answer.read().decode()
