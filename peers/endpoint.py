"""Where the broker under test listens, as the orchestrator announced it in the environment."""

from __future__ import annotations

import os
import socket
import ssl
from dataclasses import dataclass

HOST = "127.0.0.1"
WS_PATH = "/mqtt"
# The brokers of a run: one with its defaults, and those that `cargo xtask peers` starts with other settings.
STANDARD, STRICT, SMALL, WEB = "", "STRICT_", "SMALL_", "WEB_"


@dataclass(frozen=True)
class Endpoint:
    """One listener: transport is tcp, tls, ws, wss, quic, http or, by a relay that takes TCP, msquic and the like."""

    transport: str
    port: int

    @property
    def secure(self) -> bool:
        """Whether TLS is spoken under MQTT."""
        return self.transport in ("tls", "wss", "quic")

    @property
    def websocket(self) -> bool:
        """Whether MQTT travels in WebSocket frames."""
        return self.transport in ("ws", "wss")


def ca_file(broker: str = STANDARD) -> str:
    """The PEM file that clients trust: the broker's own self-signed certificate."""
    return os.environ[f"PEERS_{broker}CA"]


def endpoint(transport: str, broker: str = STANDARD) -> Endpoint:
    """The listener of that transport; a KeyError names the variable that is missing."""
    return Endpoint(transport, int(os.environ[_variable(transport, broker)]))


def announce(transport: str, port: int) -> None:
    """Makes a relay to the broker with its defaults an endpoint."""
    os.environ[_variable(transport, STANDARD)] = str(port)


def _variable(transport: str, broker: str) -> str:
    return f"PEERS_{broker}{transport.upper().replace('-', '_')}"


def dial(transport: str, wait: float, broker: str = STANDARD) -> socket.socket:
    """A connected socket on the tcp or tls listener, or on a relay; every operation on it is bounded by `wait` seconds."""
    plain = socket.create_connection((HOST, endpoint(transport, broker).port), timeout=wait)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if transport != "tls":
        return plain
    return ssl.create_default_context(cafile=ca_file(broker)).wrap_socket(plain, server_hostname=HOST)
