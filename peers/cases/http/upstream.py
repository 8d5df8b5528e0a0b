"""A small HTTP server behind the proxy route `/app`: it echoes, it lies about its length, it says what it got."""

from __future__ import annotations

import functools
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cases.http.web import upstream_socket
from endpoint import HOST


class Upstream(ThreadingHTTPServer):
    """The server. `requests` has method and path of each."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__((HOST, 0), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = upstream_socket()
        self.requests: list[str] = []


def upstream() -> Upstream:
    """The server, without requests yet. It is one for all cases: the front keeps connections to it."""
    server = _running()
    server.requests.clear()
    return server


@functools.cache
def _running() -> Upstream:
    server = Upstream()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """JSON with the request line and the fields; at `/app/short` a body that breaks off."""
        server = self.server
        assert isinstance(server, Upstream)
        server.requests.append(f"{self.command} {self.path}")
        if self.path == "/app/short":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"ten bytes.")
            self.close_connection = True
            return
        seen = {name.lower(): value for name, value in self.headers.items()}
        self._respond("application/json", json.dumps({"path": self.path, "fields": seen}).encode())

    def do_POST(self) -> None:
        """The body, whose length is known."""
        server = self.server
        assert isinstance(server, Upstream)
        server.requests.append(f"{self.command} {self.path}")
        if "Content-Length" not in self.headers:
            self.send_error(411)
            self.close_connection = True
            return
        self._respond("application/octet-stream", self.rfile.read(int(self.headers["Content-Length"])))

    def _respond(self, kind: str, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Silent: standard output is that of the suite."""
