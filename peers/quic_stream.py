"""One QUIC stream of a client: hand-made MQTT packets one way, decoded ones the other, and how each way ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import wire
from suite import WAIT, Mismatch, expect, require

if TYPE_CHECKING:
    from quic_client import QuicClient

PUBLISHED = {1: (wire.PUBACK,), 2: (wire.PUBREC, wire.PUBCOMP)}


@dataclass(frozen=True)
class End:
    """The end of what the broker sends on a stream: "fin", "reset" with a code, or "lost" with the connection."""

    how: str
    code: int = 0


FIN, LOST = End("fin"), End("lost")


async def bounded(wanted: Any, what: str) -> Any:
    """Awaits, or raises Mismatch after WAIT seconds."""
    try:
        return await asyncio.wait_for(wanted, WAIT)
    except TimeoutError:
        raise Mismatch(f"no {what} within {WAIT:g} s") from None


class Stream:
    """Made by `QuicClient.stream` and `QuicClient.uni`; packets and the end arrive in their order."""

    def __init__(self, client: QuicClient, stream_id: int) -> None:
        self.id = stream_id
        self._client = client
        self._decoder = wire.Decoder(client.version)
        self._arrivals: asyncio.Queue[wire.Packet | End] = asyncio.Queue()
        self._stopped: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    # === what the client is told by aioquic ===

    def handle_bytes(self, data: bytes, fin: bool) -> None:
        """Bytes in order, the last ones with `fin`."""
        for packet in self._decoder.feed(data):
            self._arrivals.put_nowait(packet)
            self._client.arrivals.append((self.id, packet))
        if fin:
            self._arrivals.put_nowait(FIN)

    def handle_end(self, end: End) -> None:
        """RESET_STREAM, or the connection is gone."""
        self._arrivals.put_nowait(end)

    def handle_stop(self, code: int) -> None:
        """STOP_SENDING."""
        if not self._stopped.done():
            self._stopped.set_result(code)

    # === commands ===

    def send(self, *packets: bytes, fin: bool = False) -> None:
        """All packets in one write: one STREAM frame as long as they fit a datagram."""
        self._client.write(self.id, b"".join(packets), fin)

    async def trickle(self, *packets: bytes) -> None:
        """Every byte in a datagram of its own, each acknowledged before the next."""
        for byte in b"".join(packets):
            self.send(bytes([byte]))
            await self._client.round_trip()

    def reset(self, code: int) -> None:
        """RESET_STREAM."""
        self._client.reset(self.id, code)

    def stop(self, code: int) -> None:
        """STOP_SENDING."""
        self._client.stop(self.id, code)

    async def subscribe(self, *filters: tuple[str, int], packet_id: int = 1, **properties: Any) -> wire.Packet:
        """SUBSCRIBE, and the SUBACK to it, which must grant what was asked for."""
        self.send(wire.subscribe(self._client.version, packet_id, *filters, **properties))
        suback = await self.receive(wire.SUBACK, packet_id)
        expect(suback.reasons, [options & 3 for _, options in filters], "SUBACK reason codes")
        return suback

    async def unsubscribe(self, *filters: str, packet_id: int = 2) -> Sequence[int]:
        """UNSUBSCRIBE; the reason codes of the UNSUBACK to it."""
        self.send(wire.unsubscribe(self._client.version, packet_id, *filters))
        return (await self.receive(wire.UNSUBACK, packet_id)).reasons

    async def publish(self, topic: str, payload: bytes, qos: int = 1, packet_id: int = 21, **options: Any) -> None:
        """The whole exchange of that QoS, from the sender's side, on this stream."""
        self.send(wire.publish(self._client.version, topic, payload, qos=qos, packet_id=packet_id, **options))
        for kind in PUBLISHED.get(qos, ()):
            reason = (await self.receive(kind, packet_id)).reason
            require(reason < 0x80, f"packet type {kind} refuses: {reason:#04x}")
            if kind == wire.PUBREC:
                self.send(wire.acknowledge(wire.PUBREL, packet_id))

    async def delivery(self, payload: bytes, qos: int = 1, answer: Stream | None = None) -> wire.Packet:
        """The whole exchange of that QoS, from the receiver's side; `answer` is the stream that acknowledges."""
        message = await self.receive(wire.PUBLISH)
        expect((message.payload, message.qos), (payload, qos), "payload and QoS of the delivery")
        back = answer or self
        if qos == 1:
            back.send(wire.acknowledge(wire.PUBACK, message.packet_id))
        if qos == 2:
            back.send(wire.acknowledge(wire.PUBREC, message.packet_id))
            await back.receive(wire.PUBREL, message.packet_id)
            back.send(wire.acknowledge(wire.PUBCOMP, message.packet_id))
        return message

    # === what came ===

    async def next(self, what: str = "packet") -> wire.Packet | End:
        """The next packet, or the end."""
        return await bounded(self._arrivals.get(), f"{what} on stream {self.id}")

    async def receive_any(self, what: str = "packet") -> wire.Packet:
        """The next packet, where the end must not come."""
        packet = await self.next(what)
        if isinstance(packet, End):
            raise Mismatch(f"stream {self.id} ended ({packet.how} {packet.code:#x}) where a {what} was due")
        return packet

    async def receive(self, kind: int, packet_id: int | None = None) -> wire.Packet:
        """The next packet, which must be of that type."""
        packet = await self.receive_any(f"packet of type {kind}")
        if packet.kind != kind:
            reason = f"reason {packet.reason:#04x}, payload of {len(packet.payload)} bytes"
            raise Mismatch(f"got packet type {packet.kind} on stream {self.id} ({reason}), wanted {kind}")
        if packet_id is not None:
            expect(packet.packet_id, packet_id, f"packet id in packet type {kind}")
        return packet

    async def end(self) -> End:
        """What comes next must be the end."""
        end = await self.next("end")
        if isinstance(end, End):
            return end
        raise Mismatch(f"got packet type {end.kind} on stream {self.id}, wanted its end")

    async def stopped(self) -> int:
        """Waits for STOP_SENDING; its code."""
        return await bounded(asyncio.shield(self._stopped), f"STOP_SENDING on stream {self.id}")

    async def aborted(self, code: int) -> None:
        """RESET_STREAM is what comes next, STOP_SENDING comes too, and both have that code."""
        expect(await self.end(), End("reset", code), f"end of stream {self.id}")
        expect(await self.stopped(), code, f"code of STOP_SENDING on stream {self.id}")

    def waiting(self) -> int:
        """Packets and ends that have come and that nobody has asked for."""
        return self._arrivals.qsize()
