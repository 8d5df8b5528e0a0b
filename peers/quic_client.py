"""aioquic as an independent QUIC peer that carries hand-made MQTT packets on its first stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aioquic.asyncio import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration

import wire
from endpoint import HOST, ca_file, endpoint
from suite import WAIT, Mismatch, expect

ALPN = "mqtt"
CONTROL_STREAM = 0


class QuicClient(QuicConnectionProtocol):
    """One connection; packets, refusals of streams and the end of it all arrive as queue items."""

    def __init__(self, *arguments: Any, version: int = wire.V5, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.version = version
        self._decoder = wire.Decoder(version)
        self._packets: asyncio.Queue[wire.Packet | None] = asyncio.Queue()
        self._refusals: asyncio.Queue[tuple[int, int]] = asyncio.Queue()
        self._end: asyncio.Future[events.ConnectionTerminated] = self._loop.create_future()

    def quic_event_received(self, event: events.QuicEvent) -> None:
        """Called by aioquic."""
        match event:
            case events.StreamDataReceived(stream_id=stream, data=data, end_stream=fin):
                if stream != CONTROL_STREAM:
                    self._refusals.put_nowait((stream, -1))
                    return
                for packet in self._decoder.feed(data):
                    self._packets.put_nowait(packet)
                if fin:
                    self._packets.put_nowait(None)
            case events.StreamReset(stream_id=stream, error_code=code):
                self._refused(stream, code)
            case events.StopSendingReceived(stream_id=stream, error_code=code):
                self._refused(stream, code)
            case events.ConnectionTerminated():
                self._packets.put_nowait(None)
                if not self._end.done():
                    self._end.set_result(event)

    def _refused(self, stream: int, code: int) -> None:
        self._refusals.put_nowait((stream, code))
        if stream == CONTROL_STREAM:
            self._packets.put_nowait(None)

    # === commands ===

    def send(self, *packets: bytes, stream: int = CONTROL_STREAM, fin: bool = False) -> None:
        """All packets in one write: one STREAM frame as long as they fit a datagram."""
        self._quic.send_stream_data(stream, b"".join(packets), end_stream=fin)
        self.transmit()

    async def open(self, client_id: str, **options: Any) -> wire.Packet:
        """CONNECT, and the CONNACK, which must accept."""
        self.send(wire.connect(self.version, client_id, **options))
        connack = await self.receive(wire.CONNACK)
        expect(connack.reason, 0, "CONNACK reason")
        return connack

    async def subscribe(self, *filters: tuple[str, int], packet_id: int = 1) -> None:
        """SUBSCRIBE, and the SUBACK to it."""
        self.send(wire.subscribe(self.version, packet_id, *filters))
        suback = await self.receive(wire.SUBACK)
        expect(suback.reasons, [qos for _, qos in filters], "SUBACK reason codes")

    async def receive(self, kind: int) -> wire.Packet:
        """The next packet, which must be of that type."""
        packet = await self.next_packet()
        if packet is None:
            raise Mismatch(f"stream ended where packet type {kind} was due")
        if packet.kind != kind:
            raise Mismatch(f"got packet type {packet.kind} (reason {packet.reason:#04x}), wanted {kind}")
        return packet

    async def next_packet(self) -> wire.Packet | None:
        """The next packet, or None at the end of the stream or of the connection."""
        return await bounded(self._packets.get(), "packet on the control stream")

    async def ended(self) -> int | None:
        """Waits for the end of the control stream; the reason of the DISCONNECT before it, if there was one."""
        reason = None
        while (packet := await self.next_packet()) is not None:
            if packet.kind == wire.DISCONNECT:
                reason = packet.reason
        return reason

    async def refusal(self, stream: int) -> int:
        """Waits for RESET_STREAM or STOP_SENDING on that stream; its error code."""
        refused, code = await bounded(self._refusals.get(), f"refusal of stream {stream}")
        expect(refused, stream, "stream refused")
        return code

    async def termination(self) -> events.ConnectionTerminated:
        """Waits for the end of the connection."""
        return await bounded(asyncio.shield(self._end), "end of the connection")

    async def quiet(self) -> None:
        """Nothing is under way: nothing but the answers to two PINGREQs comes (a PINGRESP may overtake deliveries)."""
        for _ in range(2):
            self.send(wire.PINGREQ_BYTES)
            await self.receive(wire.PINGRESP)

    def new_stream(self) -> int:
        """The id of the next bidirectional stream."""
        return self._quic.get_next_available_stream_id()


async def bounded(wanted: Any, what: str) -> Any:
    """Awaits, or raises Mismatch after WAIT seconds."""
    try:
        return await asyncio.wait_for(wanted, WAIT)
    except TimeoutError:
        raise Mismatch(f"no {what} within {WAIT:g} s") from None


@asynccontextmanager
async def dial(
    version: int = wire.V5, *, alpn: str = ALPN, server_name: str = "localhost", wait: bool = True
) -> AsyncIterator[QuicClient]:
    """A connection whose handshake is done, unless `wait` is false."""
    configuration = QuicConfiguration(is_client=True, alpn_protocols=[alpn], server_name=server_name)
    configuration.load_verify_locations(ca_file())

    def protocol(*arguments: Any, **options: Any) -> QuicClient:
        return QuicClient(*arguments, version=version, **options)

    port = endpoint("quic").port
    # Not awaited inside connect, so that a refused handshake leaves its reason behind, and nothing unbounded.
    async with connect(HOST, port, configuration=configuration, create_protocol=protocol, wait_connected=False) as made:
        made.transmit()
        if wait:
            await bounded(made.wait_connected(), "QUIC handshake")
            expect(made._quic.tls.alpn_negotiated, ALPN, "ALPN")  # noqa: SLF001 - aioquic shows it nowhere else
        yield made
