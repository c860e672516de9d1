"""A scripted provider that streams as the Messages API does, and keeps every request it got."""

from __future__ import annotations

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

USAGE = {
    "input_tokens": 100,
    "cache_read_input_tokens": 300,
    "cache_creation_input_tokens": 200,
    "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 200},
}


def says(text, **more):
    """A reply that ends the conversation."""
    return {"text": text, **more}


def calls(name, **arguments):
    """A reply that wants one tool."""
    return {"call": (name, arguments)}


def fails(status, kind="invalid_request_error"):
    """An error of the API."""
    return {"status": status, "body": {"type": "error", "error": {"type": kind, "message": "no"}}}


HANGS = {"hangs": True}


class Provider(ThreadingHTTPServer):
    """Answers the n-th turn of a conversation with the n-th step; `received` are request bodies."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, script):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script = script
        self.received = []
        self.over = threading.Event()

    @property
    def base_url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request, client_address):
        """A client that was ended is what some tests want."""


@contextlib.contextmanager
def streaming(*script):
    with Provider(script) as provider:
        threading.Thread(target=provider.serve_forever, args=(0.02,), daemon=True).start()
        yield provider
        provider.over.set()
        provider.shutdown()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        """Keep quiet."""

    def do_GET(self):
        self._document(404, {})

    def do_HEAD(self):
        self._document(404, {})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.received.append(body)
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        step = self.server.script[min(turn, len(self.server.script) - 1)]
        if "hangs" in step:
            self.server.over.wait(60)
            self.close_connection = True
        elif "status" in step:
            self._document(step["status"], step["body"])
        else:
            self._stream(body, turn, step)

    def _document(self, status, document):
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _stream(self, body, turn, step):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        message = {
            "id": f"msg_{len(self.server.received)}",
            "type": "message",
            "role": "assistant",
            "model": step.get("model", body["model"]),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {**USAGE, "output_tokens": 1},
        }
        self._event("message_start", message=message)
        if "call" in step:
            name, arguments = step["call"]
            block = {"type": "tool_use", "id": f"toolu_{turn}_{len(self.server.received)}"}
            start = {**block, "name": name, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
        else:
            start = {"type": "text", "text": ""}
            delta = {"type": "text_delta", "text": step["text"]}
        self._event("content_block_start", index=0, content_block=start)
        self._event("content_block_delta", index=0, delta=delta)
        self._event("content_block_stop", index=0)
        reason = "tool_use" if "call" in step else "end_turn"
        self._event(
            "message_delta",
            delta={"stop_reason": reason, "stop_sequence": None},
            usage={"output_tokens": step.get("output_tokens", 50)},
        )
        self._event("message_stop")

    def _event(self, name, **fields):
        data = json.dumps({"type": name, **fields})
        self.wfile.write(f"event: {name}\ndata: {data}\n\n".encode())
        self.wfile.flush()
