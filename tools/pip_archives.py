"""Archives of Python packages: pip brings them, their sha256 is checked, and members are read out of them. Nothing is installed.
Needs Python 3.8 and pip; nothing else."""
import os
import shutil
import sys
import time

CHUNK_BYTES = 1 << 20


class FetchError(Exception):
    """What the user reads: one sentence, no traceback."""


def megabytes(count):
    return "%.1f MB" % (count / 1e6)


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
