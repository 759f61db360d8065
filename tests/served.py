"""A running mstar for the tests that speak HTTP with it: start, ask, look at the metrics, stop."""
import http.client
import io
import os
import pathlib
import re
import signal
import subprocess
import threading
import time
import uuid
import wave

CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
MODEL = os.environ.get("MSTAR_TEST_MODEL", str(CACHE / "mstar/weights/whisper-tiny.en"))
CLIPS = pathlib.Path("/usr/share/pocketsphinx/test/data/librivox")
SPEECH = CLIPS / "sense_and_sensibility_01_austen_64kb-0930.wav"
WAIT_S = 240  # sanitizers and busy machines are slow; nothing measures time


def why_not():
    """What is missing for tests with speech, or None."""
    if not os.path.isdir(MODEL):
        return "no weights in the cache: ./dev weights whisper-tiny.en"
    if not SPEECH.exists():
        return "no speech: the package pocketsphinx-testdata is not installed"
    return None


def children(pid):
    """Processes that `pid` started, the first one first; without those that have ended."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split() if entry.name.isdigit() else []
        except OSError:
            continue
        if fields and int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(entry.name))
    return sorted(found)


def wav(frames):
    """A file of 16-bit samples, one channel at 16 kHz."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(frames)
    return out.getvalue()


def form(fields, file_name="", data=b""):
    """A multipart body and its type."""
    boundary = uuid.uuid4().hex
    body = b""
    for name, value in fields.items():
        body += f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
    if file_name:
        body += (f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{file_name}"\r\n'
                 "Content-Type: application/octet-stream\r\n\r\n").encode() + data + b"\r\n"
    return body + f"--{boundary}--\r\n".encode(), f"multipart/form-data; boundary={boundary}"


class Served:
    """`mstar serve ARGUMENTS --port 0`, once it is ready; `options` are of Popen."""

    def __init__(self, binary, *arguments, **options):
        self.process = subprocess.Popen([binary, "serve", *map(str, arguments), "--port", "0"], stderr=subprocess.PIPE, text=True,
                                        **options)
        said, self.port = "", None
        while self.port is None:
            line = self.process.stderr.readline()
            said += line
            if not line:
                raise RuntimeError("the server ended: " + said)
            if found := re.match(r"ready on http://127\.0\.0\.1:(\d+)", line):
                self.port = int(found.group(1))
        # What it still says must not fill the pipe.
        threading.Thread(target=lambda: [None for _ in self.process.stderr], daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def stop(self):
        """Its exit status after SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(WAIT_S)
        finally:
            self.process.kill()
            self.process.stderr.close()

    def send(self, path, fields, file_name="", data=b""):
        """The connection on which a form was sent."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        body, content_type = form(fields, file_name, data)
        connection.request("POST", path, body, {"Content-Type": content_type})
        return connection

    def begin(self, path, fields, file_name="", data=b""):
        """The same, and the answer whose head has come."""
        connection = self.send(path, fields, file_name, data)
        return connection, connection.getresponse()

    def ask(self, path, fields, file_name="", data=b""):
        """Status, headers in lower case, body."""
        connection, answer = self.begin(path, fields, file_name, data)
        try:
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def metrics(self):
        """Sample, with its labels, to number."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        try:
            connection.request("GET", "/metrics")
            lines = connection.getresponse().read().decode().splitlines()
        finally:
            connection.close()
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line and line[0] != "#")}

    def wait_for(self, condition):
        """The first metrics that satisfy the condition, or the last ones when the wait was in vain."""
        deadline = time.monotonic() + WAIT_S
        while True:
            metrics = self.metrics()
            if condition(metrics) or time.monotonic() > deadline:
                return metrics
            time.sleep(0.02)


def in_use(metrics):
    """What requests hold: pages, slots and rows of every pool, and the requests themselves."""
    names = ("mstar_resource_used", "mstar_requests_running", "mstar_requests_waiting", "mstar_http_calls_in_flight")
    return {name: value for name, value in metrics.items() if name.split("{")[0] in names and value}
