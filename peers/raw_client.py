"""A blocking client of hand-made packets over TCP or TLS."""

from __future__ import annotations

from collections import deque
from typing import Any

import wire
from endpoint import STANDARD, dial
from suite import CLOCK_GRAIN, WAIT, Mismatch, expect


class RawClient:
    """Sends what a case tells it and nothing else: no keep-alive, no acknowledgement of its own."""

    def __init__(self, transport: str = "tcp", version: int = wire.V5, broker: str = STANDARD) -> None:
        self.version = version
        self._socket = dial(transport, WAIT, broker)
        self._decoder = wire.Decoder(version)
        self._pending: deque[wire.Packet] = deque()

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, *packets: bytes) -> None:
        """All packets in one write."""
        self._socket.sendall(b"".join(packets))

    def connect(self, client_id: str, **options: Any) -> wire.Packet:
        """CONNECT, and the CONNACK, which must accept."""
        self.send(wire.connect(self.version, client_id, **options))
        connack = self.receive(wire.CONNACK)
        expect(connack.reason, 0, "CONNACK reason")
        return connack

    def subscribe(self, *filters: tuple[str, int], packet_id: int = 1, **properties: Any) -> wire.Packet:
        """SUBSCRIBE, and the SUBACK to it."""
        self.send(wire.subscribe(self.version, packet_id, *filters, **properties))
        suback = self.receive(wire.SUBACK)
        expect(suback.packet_id, packet_id, "SUBACK packet id")
        return suback

    def receive(self, kind: int) -> wire.Packet:
        """The next packet, which must be of that type."""
        packet = self.next_packet()
        if packet is None:
            raise Mismatch(f"connection closed where packet type {kind} was due")
        if packet.kind != kind:
            raise Mismatch(f"got packet type {packet.kind} (reason {packet.reason:#04x}), wanted {kind}")
        return packet

    def next_packet(self) -> wire.Packet | None:
        """The next packet, or None when the broker closed the connection."""
        while not self._pending:
            try:
                chunk = self._socket.recv(65536)
            except ConnectionResetError:
                return None
            except TimeoutError:
                raise Mismatch(f"nothing from the broker within {WAIT:g} s") from None
            if not chunk:
                return None
            self._pending.extend(self._decoder.feed(chunk))
        return self._pending.popleft()

    def closed_with(self) -> int | None:
        """Waits until the broker closes; the reason of its DISCONNECT, if it sent one before."""
        reason = None
        while (packet := self.next_packet()) is not None:
            if packet.kind == wire.DISCONNECT:
                reason = packet.reason
        return reason

    def quiet(self) -> None:
        """Nothing is under way to this client: nothing but the answers to two PINGREQs comes.

        Two, because a PINGRESP may overtake deliveries, but not those that were due a round trip earlier.
        """
        for _ in range(2):
            self.send(wire.PINGREQ_BYTES)
            self.receive(wire.PINGRESP)

    def abandon(self) -> None:
        """Closes without DISCONNECT."""
        self._socket.close()


def pass_time(seconds: int, label: str) -> None:
    """Returns once the broker's clock has moved by at least that much: it published a Will delayed so long.

    Cases that need something to expire at the broker wait for this event. `label` is a topic level and client
    id prefix of the case alone.
    """
    delay = seconds + round(CLOCK_GRAIN)
    with RawClient() as watcher, RawClient() as dying:
        watcher.connect(f"{label}-w")
        watcher.subscribe((f"{label}/clock", 0))
        will = (f"{label}/clock", b"")
        dying.connect(f"{label}-d", will=will, will_delay=delay, session_expiry=delay + 60)
        dying.abandon()
        watcher.receive(wire.PUBLISH)
