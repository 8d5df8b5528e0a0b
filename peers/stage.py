"""What a paho case runs on, and the decorator that spreads a case over transports, versions and QoS."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from endpoint import endpoint
from paho_client import PahoPeer
from suite import Case

TRANSPORTS = ("tcp", "tls", "ws", "wss")
VERSIONS = ("v3.1", "v3.1.1", "v5")
SINCE_V311 = ("v3.1.1", "v5")
V5_ONLY = ("v5",)
# Cases that wait for seconds to pass do not need every transport.
TIMED = ("tcp", "wss")
QOS = (0, 1, 2)

_serial = itertools.count(1)
# Each makes the cases of one scenario, over its own transports or over those that it is told.
_scenarios: list[Callable[[tuple[str, ...] | None], Iterable[Case]]] = []


class Stage:
    """One run of a case: fresh topics, fresh client ids, and every client closed at the end."""

    def __init__(self, transport: str, version: str) -> None:
        self.transport, self.version = transport, version
        self._prefix = f"p{os.getpid()}/{next(_serial)}"
        self._clients: list[PahoPeer] = []

    def topic(self, leaf: str) -> str:
        """A topic of this case alone."""
        return f"{self._prefix}/{leaf}"

    def client_id(self, role: str) -> str:
        """A client id of this case alone, short enough for MQTT 3.1."""
        return f"{self._prefix.replace('/', '-')}-{role}"

    def peer(self, role: str, *, transport: str | None = None, version: str | None = None, **options: Any) -> PahoPeer:
        """A client that is not connected yet."""
        options.setdefault("client_id", self.client_id(role))
        made = PahoPeer(endpoint(transport or self.transport), version or self.version, **options)
        self._clients.append(made)
        return made

    def client(self, role: str, **options: Any) -> PahoPeer:
        """A connected client."""
        made = self.peer(role, **options)
        made.connect()
        return made

    def persistent(self, role: str, *, clean: bool = False, expiry: int = 300, **options: Any) -> PahoPeer:
        """A client, not connected yet, whose Session outlives its connection (by `expiry` seconds on v5)."""
        properties = {"SessionExpiryInterval": expiry} if self.version == "v5" else None
        return self.peer(role, clean=clean, connect_properties=properties, **options)

    def fenced(self, publisher: PahoPeer, subscriber: PahoPeer, qos: int = 0) -> list[Any]:
        """All messages on their way to the subscriber, proven complete by one more that closes the row.

        The subscriber must be subscribed to the topic "fence" of this stage.
        """
        publisher.publish(self.topic("fence"), b"fence", qos)
        return subscriber.until(self.topic("fence"))

    def close(self) -> None:
        """Ends every client."""
        for client in self._clients:
            client.close()


def scenario(
    *,
    versions: tuple[str, ...] = VERSIONS,
    transports: tuple[str, ...] = TRANSPORTS,
    known: Mapping[str, str] | Callable[..., Mapping[str, str]] | None = None,
    **axes: tuple[Any, ...],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Registers a case for every combination of transport, version and further axes.

    `known` names brokers whose own bug fails the case; as a callable it is asked with the transport, the
    version and the axes.
    """

    def register(body: Callable[..., None]) -> Callable[..., None]:
        def cases(instead: tuple[str, ...] | None) -> Iterator[Case]:
            for transport, version, chosen in _combinations(instead or transports, versions, axes):
                tail = "".join(f"-{axis}{value}" for axis, value in chosen.items())
                name = f"paho/{transport}/{version}/{body.__name__.replace('_', '-')}{tail}"
                differs = known(transport=transport, version=version, **chosen) if callable(known) else known
                yield Case(name, _staged(body, transport, version, chosen), differs or {})

        _scenarios.append(cases)
        return body

    return register


def scenarios(*transports: str) -> list[Case]:
    """Every case registered so far, over its own transports or over these."""
    return [case for cases in _scenarios for case in cases(transports or None)]


def _combinations(
    transports: tuple[str, ...], versions: tuple[str, ...], axes: dict[str, tuple[Any, ...]]
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for transport, version, *values in itertools.product(transports, versions, *axes.values()):
        yield transport, version, dict(zip(axes, values, strict=True))


def _staged(body: Callable[..., None], transport: str, version: str, chosen: dict[str, Any]) -> Callable[[], None]:
    def run() -> None:
        stage = Stage(transport, version)
        try:
            body(stage, **chosen)
        finally:
            stage.close()

    return run
