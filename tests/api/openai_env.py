#!/usr/bin/env python3
"""Installs the official OpenAI client for the tests: pinned and hashed (requirements.txt), under the user's cache, away from
other Python packages. Does nothing when it is there. Exit 1, and what pip said last, when it cannot be had (offline, say)."""
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys

REQUIREMENTS = pathlib.Path(__file__).with_name("requirements.txt")


def directory():
    """Where it lies, or will lie: another one for other pins and for each Python."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    cache = pathlib.Path(base) if os.path.isabs(base) else pathlib.Path.home() / ".cache"
    pins = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:12]
    return cache / "mstar" / "python" / f"openai-{pins}-{sys.implementation.cache_tag}"


def install():
    final = directory()
    if final.is_dir():
        return 0
    partial = final.with_name(final.name + f".partial-{os.getpid()}")
    try:
        pip = subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "2",
                              "--only-binary", ":all:", "--require-hashes", "--target", str(partial), "-r", str(REQUIREMENTS)],
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if pip.returncode:
            print("the OpenAI client could not be installed:", *pip.stdout.strip().splitlines()[-3:], sep="\n  ", file=sys.stderr)
            return 1
        try:
            partial.rename(final)
        except OSError:  # another one was faster
            if not final.is_dir():
                raise
        print(f"the OpenAI client is in {final}")
        return 0
    finally:
        shutil.rmtree(partial, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(install())
