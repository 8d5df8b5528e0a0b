"""The two HTTP fronts under test, their users, curl, and the decorator that makes a function a case."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from endpoint import HOST, STANDARD, WEB, ca_file, endpoint
from raw_client import RawClient
from suite import WAIT, Case, brief, expect, require

# Users of `peers/http/users`, with their roles.
OPERATOR, VIEWER, NOBODY = ("olga", "operator-password"), ("vera", "viewer-password"), ("nora", "other-password")
# Versions of HTTP: option of curl, and the number that it reports.
VERSIONS = {"http1": ("--http1.1", "1.1"), "http2": ("--http2", "2")}

_cases: list[Case] = []


def web_case(program: str, **axis: tuple[str, ...]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Registers a function as a case, for each value of at most one axis."""

    def register(body: Callable[..., None]) -> Callable[..., None]:
        label = body.__name__.replace("_", "-")
        name, values = next(iter(axis.items()), ("", ("",)))
        for value in values:
            chosen = {name: value} if name else {}
            middle = f"{value}/" if value else ""

            def run(chosen: dict[str, str] = chosen) -> None:
                body(**chosen)

            _cases.append(Case(f"http/{program}/{middle}{label}", run))
        return body

    return register


def web_cases() -> list[Case]:
    """Every case that a module registered."""
    return list(_cases)


def url(path: str, broker: str = WEB) -> str:
    """URL on the front with TLS, or on the plain one of the standard broker."""
    scheme = "http" if broker == STANDARD else "https"
    return f"{scheme}://{HOST}:{endpoint('http', broker).port}{path}"


def mqtt_client(client_id: str, login: tuple[str, str] = VIEWER, **options: Any) -> RawClient:
    """An MQTT client of the front's broker, connected."""
    client = RawClient(broker=WEB)
    client.connect(client_id, login=login, **options)
    return client


@dataclass(frozen=True)
class Answer:
    """A response, as curl saw it. `exit_code` is that of curl; `status` is 0 without a response."""

    exit_code: int
    version: str
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON."""
        expect(self.headers.get("content-type"), "application/json", "content type")
        return json.loads(self.body)

    def problem(self, status: int) -> str:
        """The detail of a refusal, which must be a whole problem of RFC 9457 with this status."""
        require(self.exit_code == 0, f"curl ended with {self.exit_code}, status {self.status}: {brief(self.body)}")
        expect(self.status, status, f"status ({brief(self.body)})")
        expect(self.headers.get("content-type"), "application/problem+json", "content type")
        found = json.loads(self.body)
        expect(sorted(found), ["detail", "status", "title", "type"], "members of the problem")
        expect((found["type"], found["status"]), ("about:blank", status), "type and status of the problem")
        require(found["title"] != "" and found["detail"] != "", f"the problem says nothing: {found}")
        require("\n" not in found["detail"], f"the detail has lines: {found['detail']!r}")
        return str(found["detail"])


def curl(path: str, *options: str, broker: str = WEB, login: tuple[str, str] | None = None) -> Answer:
    """The answer to a request by curl, which checks the certificate of the broker. HTTP/2 unless an option says other."""
    with tempfile.TemporaryDirectory() as directory:
        head, body = Path(directory, "head"), Path(directory, "body")
        command = ["curl", "--silent", "--max-time", str(WAIT), "--cacert", ca_file(broker)]
        command += ["--dump-header", str(head), "--output", str(body), "--write-out", "%{http_version} %{response_code}"]
        if login is not None:
            command += ["--user", ":".join(login)]
        done = subprocess.run(
            [*command, *options, url(path, broker)], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        version, status = done.stdout.split()
        lines = head.read_text("latin-1").splitlines() if head.exists() else []
        fields = (line.split(":", 1) for line in lines if ":" in line)
        headers = {name.strip().lower(): value.strip() for name, value in fields}
        content = body.read_bytes() if body.exists() else b""
        return Answer(done.returncode, version, int(status), headers, content)


def send_json(value: Any, method: str = "POST") -> tuple[str, ...]:
    """Options of curl for a JSON body."""
    return ("--request", method, "--header", "Content-Type: application/json", "--data-binary", json.dumps(value))


def upstream_socket() -> socket.socket:
    """Socket of the server behind `/app`, which the program that started the broker holds."""
    return socket.socket(fileno=int(os.environ[f"PEERS_{WEB}UPSTREAM_FD"]))
