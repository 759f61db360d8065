#!/usr/bin/env python3
"""Runs openai_client_test.py and openai_chat_test.py with the client that openai_env.py has installed.

Usage: openai_client.py fake PATH_TO_SERVER_DEMO | real PATH_TO_MSTAR | chat PATH_TO_MSTAR [MODEL]. "fake" is the server before a
model whose answers are known, "real" mstar with whisper-tiny.en and speech, "chat" mstar with a language model, by default
SmolLM2 of the cache. Exits with 77 when something is missing.
"""
import os
import pathlib
import signal
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from served import CACHE, MODEL, SPEECH, WAIT_S, Served, why_not  # noqa: E402

sys.path.insert(0, str(HERE))
import openai_env  # noqa: E402

SKIPPED = 77


def run_tests(url, arguments, script="openai_client_test.py", **environment):
    packages = openai_env.directory()
    return subprocess.run([sys.executable, HERE / script, url, *arguments, "-v"], timeout=2 * WAIT_S,
                          env=dict(os.environ, PYTHONPATH=str(packages), **environment)).returncode


def fake(binary):
    with subprocess.Popen([binary, "0"], stdout=subprocess.PIPE, text=True) as server:
        try:
            port = server.stdout.readline().strip()
            url = f"http://127.0.0.1:{port}"
            status = run_tests(url, ["whisper-1"], MSTAR_FAKE="1")
            return status or run_tests(url, ["lab/fake-llm"], "openai_chat_test.py", MSTAR_FAKE="1")
        finally:
            server.send_signal(signal.SIGTERM)


def real(binary):
    server = Served(binary, MODEL, "--alias", "whisper-1")
    try:
        status = run_tests(server.url, ["whisper-1", str(SPEECH)])
    finally:
        ended = server.stop()
    return status or ended


def chat(binary, model):
    server = Served(binary, model, "--alias", "chat")
    try:
        status = run_tests(server.url, ["chat"], "openai_chat_test.py")
    finally:
        ended = server.stop()
    return status or ended


def main():
    kind, binary = sys.argv[1:3]
    missing = why_not() if kind == "real" else None
    model = sys.argv[3] if len(sys.argv) > 3 else str(CACHE / "mstar/weights/smollm2-135m")
    if kind == "chat" and not os.path.exists(model):
        missing = "no weights in the cache: ./dev weights smollm2-135m"
    if not openai_env.directory().is_dir():
        missing = "the OpenAI client is not installed: tests/api/openai_env.py (./dev test does it) needs PyPI once"
    if missing:
        print("skipped:", missing)
        return SKIPPED
    if kind == "chat":
        return chat(binary, model)
    return fake(binary) if kind == "fake" else real(binary)


if __name__ == "__main__":
    sys.exit(main())
