#!/usr/bin/env python3
"""mstar chat as a user meets it, with a server of OpenAI's chats that is made here.

Usage: cli_chat_test.py PATH_TO_MSTAR [unittest options].
"""
import http.server
import json
import os
import pty
import select
import threading
import time
import unittest

from cli_support import MSTAR, WAIT_S, Case, mstar

WORDS = ["One", " two", " three"]


def event(text=None, finish=None):
    return {"choices": [{"index": 0, "delta": {"content": text} if text else {}, "finish_reason": finish}]}


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        pass

    def do_GET(self):
        known = self.path == "/v1/models"
        self.answer(200 if known else 404, {"data": [{"id": name} for name in self.server.models]} if known else {})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        question = body["messages"][-1]["content"]
        if question == "refuse":
            return self.answer(400, {"error": {"message": "'messages' has 9 tokens too many"}})
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for word in WORDS:
            self.say(event(word))
        if question == "drive":
            self.say(event("a\x1b[2J\x07\u009b2Jé\tb"))
        if question == "break":
            return None
        while question == "endless":
            time.sleep(0.02)
            self.say(event(" more"))
        self.say(event(finish="length" if question == "long" else "stop"))
        self.wfile.write(b"data: [DONE]\n\n")
        return None

    def say(self, value):
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")
        self.wfile.flush()

    def answer(self, status, value):
        text = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, models):
        super().__init__(("127.0.0.1", 0), Handler)
        self.models, self.bodies = models, []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, *arguments):
        pass  # a client that leaves


class Terminal:
    """mstar with a terminal for its three streams."""

    def __init__(self, *arguments):
        self.child, self.fd = pty.fork()
        if self.child == 0:
            os.execv(MSTAR, [MSTAR, *arguments])
        self.seen = ""

    def wait_for(self, text):
        """What came up to and with `text`, since the last call."""
        end = time.monotonic() + WAIT_S
        while text not in self.seen:
            if not select.select([self.fd], [], [], max(0, end - time.monotonic()))[0]:
                raise AssertionError(f"no {text!r} after {self.seen!r}")
            self.seen += os.read(self.fd, 4096).decode()
        at = self.seen.index(text) + len(text)
        out, self.seen = self.seen[:at], self.seen[at:]
        return out

    def type(self, text):
        os.write(self.fd, text.encode())

    def status(self):
        return os.waitstatus_to_exitcode(os.waitpid(self.child, 0)[1])


class Chat(Case):
    def start(self, *models):
        server = Server(models or ["fake"])
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def chat(self, server, lines, *flags, status=0):
        return self.check(mstar("chat", "--url", server.url, *flags, input="".join(line + "\n" for line in lines)), status)

    def test_the_models_own_sampling_unless_the_user_sets_one(self):
        server = self.start()
        self.chat(server, ["hi"])
        self.chat(server, ["hi"], "--temperature", 0.5, "--max-tokens", 7, "--param", "top_p=0.9")
        plain, chosen = server.bodies
        for field in ("temperature", "max_tokens", "top_p"):
            self.assertNotIn(field, plain)
        self.assertEqual((chosen["temperature"], chosen["max_tokens"], chosen["top_p"]), (0.5, 7, 0.9))

    def test_the_model_sees_what_was_said(self):
        server = self.start()
        result = self.chat(server, ["hi", "long"], "--system", "Be brief.")
        self.assertEqual(result.stdout, "One two three\nOne two three\n")
        self.assertIn("cut off", result.stderr)
        self.assertEqual([(m["role"], m["content"]) for m in server.bodies[1]["messages"]],
                         [("system", "Be brief."), ("user", "hi"), ("assistant", "One two three"), ("user", "long")])

    def test_a_failed_reply_is_told_and_forgotten(self):
        server = self.start()
        result = self.chat(server, ["break", "refuse", "hi"], status=1)
        self.assertIn("the reply broke off", result.stderr)
        self.assertIn("9 tokens too many", result.stderr)
        self.assertEqual([m["content"] for m in server.bodies[-1]["messages"]], ["hi"])

    def test_a_server_that_is_not_there(self):
        server = self.start()
        result = self.check(mstar("chat", "--url", server.url + "/elsewhere", input="hi\n"), 2)
        self.assertIn("/elsewhere/v1/models answers 404", result.stderr)
        server.shutdown()
        server.server_close()
        self.assertIn("mstar serve MODEL", self.check(mstar("chat", "--url", server.url, input="hi\n"), 1).stderr)

    def test_several_models_are_named(self):
        server = self.start("one", "two")
        self.assertIn("name one of one, two", self.chat(server, ["hi"], status=2).stderr)
        self.chat(server, ["hi"], "two")
        self.assertEqual(server.bodies[0]["model"], "two")

    def test_a_terminal(self):
        """An interrupt stops the reply only; a model's text does not drive the terminal; what that cut is not sent."""
        server = self.start()
        terminal = Terminal("chat", "--url", server.url)
        terminal.wait_for("> ")
        terminal.type("endless\n")
        terminal.wait_for("One two three more")
        terminal.type("\x03")
        terminal.wait_for("(stopped)")
        terminal.wait_for("> ")
        terminal.type("hi\n")
        terminal.wait_for("One two three")
        self.assertTrue(server.bodies[1]["messages"][1]["content"].startswith("One two three more"))
        terminal.wait_for("> ")
        terminal.type("drive\n")
        self.assertIn("One two threea[2J2Jé\tb\r\n", terminal.wait_for("> "))
        terminal.type("x" * 5000 + "\n")
        terminal.wait_for("is not sent")
        terminal.wait_for("> ")
        terminal.type("\x03")
        terminal.wait_for("Once more")
        terminal.type("\x04")
        self.assertEqual(terminal.status(), 0)
        self.assertEqual(len(server.bodies), 3)


if __name__ == "__main__":
    unittest.main()
