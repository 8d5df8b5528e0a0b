"""aioquic as an independent QUIC peer that carries hand-made MQTT packets on as many streams as a case wants."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aioquic.asyncio import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.logger import QuicLogger
from aioquic.tls import SessionTicket

import wire
from endpoint import HOST, STANDARD, ca_file, endpoint
from quic_stream import LOST, End, Stream, bounded
from suite import Mismatch, expect, require

ALPN = "mqtt"


class QuicClient(QuicConnectionProtocol):
    """One connection. `control` is its first stream, and `send`, `receive` and the like are about that one.

    aioquic has no public way to choose stream ids, to hold back credit or to change the local port, so the private
    names of its connection are used here, and nowhere else.
    """

    def __init__(self, *arguments: Any, version: int = wire.V5, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.version = version
        self.control: Stream
        self.handshake: events.HandshakeCompleted | None = None
        # Streams that the broker opened.
        self.uninvited: set[int] = set()
        # Every packet in the order of arrival, with the id of its stream.
        self.arrivals: list[tuple[int, wire.Packet]] = []
        # Every datagram that left.
        self.datagrams: list[bytes] = []
        self._silent = False
        self._arrived = asyncio.Event()
        self._streams: dict[int, Stream] = {}
        self._next_bidi, self._next_uni = 0, 2
        self._end: asyncio.Future[events.ConnectionTerminated] = self._loop.create_future()
        self._tickets: asyncio.Queue[SessionTicket] = asyncio.Queue()
        self._log: QuicLogger | None = self._quic.configuration.quic_logger

    def quic_event_received(self, event: events.QuicEvent) -> None:
        """Called by aioquic."""
        self._arrived.set()
        match event:
            case events.StreamDataReceived(stream_id=stream, data=data, end_stream=fin):
                if stream in self._streams:
                    self._streams[stream].handle_bytes(data, fin)
                else:
                    self.uninvited.add(stream)
            case events.StreamReset(stream_id=stream, error_code=code):
                self._streams[stream].handle_end(End("reset", code))
            case events.StopSendingReceived(stream_id=stream, error_code=code):
                self._streams[stream].handle_stop(code)
            case events.HandshakeCompleted():
                self.handshake = event
            case events.ConnectionTerminated():
                if not self._end.done():
                    self._end.set_result(event)
                for stream in self._streams.values():
                    stream.handle_end(LOST)

    def take_ticket(self, ticket: SessionTicket) -> None:
        """Called by aioquic."""
        self._tickets.put_nowait(ticket)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        super().connection_made(_Tap(transport, self.datagrams))

    def transmit(self) -> None:
        """Called by aioquic, whenever something may leave."""
        if not self._silent:
            super().transmit()

    # === streams ===

    def stream(self) -> Stream:
        """The next bidirectional stream."""
        stream_id, self._next_bidi = self._next_bidi, self._next_bidi + 4
        return self._made(stream_id)

    def uni(self) -> Stream:
        """The next unidirectional stream."""
        stream_id, self._next_uni = self._next_uni, self._next_uni + 4
        return self._made(stream_id)

    def _made(self, stream_id: int) -> Stream:
        # Streams are known to aioquic in the order of their ids, whatever the order of the first writes.
        self._quic._get_or_create_stream_for_send(stream_id)
        self._streams[stream_id] = made = Stream(self, stream_id)
        return made

    def write(self, stream: int, data: bytes, fin: bool) -> None:
        """Bytes on a stream."""
        self._quic.send_stream_data(stream, data, end_stream=fin)
        self.transmit()

    def reset(self, stream: int, code: int) -> None:
        """RESET_STREAM."""
        self._quic.reset_stream(stream, code)
        self.transmit()

    def stop(self, stream: int, code: int) -> None:
        """STOP_SENDING."""
        self._quic.stop_stream(stream, code)
        self.transmit()

    # === the control stream ===

    def send(self, *packets: bytes, fin: bool = False) -> None:
        """All packets in one write on the control stream."""
        self.control.send(*packets, fin=fin)

    async def open(self, client_id: str, **options: Any) -> wire.Packet:
        """CONNECT, and the CONNACK, which must accept."""
        self.send(wire.connect(self.version, client_id, **options))
        return await self.accepted()

    async def accepted(self) -> wire.Packet:
        """The CONNACK, which must accept."""
        connack = await self.receive(wire.CONNACK)
        expect(connack.reason, 0, "CONNACK reason")
        return connack

    async def subscribe(self, *filters: tuple[str, int], packet_id: int = 1) -> None:
        """SUBSCRIBE, and the SUBACK to it."""
        await self.control.subscribe(*filters, packet_id=packet_id)

    async def receive(self, kind: int) -> wire.Packet:
        """The next packet on the control stream, which must be of that type."""
        return await self.control.receive(kind)

    async def ended(self) -> int | None:
        """Waits for the end of the control stream; the reason of the DISCONNECT before it, if there was one."""
        reason = None
        while not isinstance(packet := await self.control.next(), End):
            if packet.kind == wire.DISCONNECT:
                reason = packet.reason
        return reason

    async def quiet(self) -> None:
        """Nothing is under way: nothing but the answers to two PINGREQs comes (a PINGRESP may overtake deliveries)."""
        for _ in range(2):
            self.send(wire.PINGREQ_BYTES)
            await self.receive(wire.PINGRESP)

    # === the connection ===

    async def next_of(self, *streams: Stream) -> wire.Packet | End:
        """The next packet, or end, on whichever of these streams."""
        while not (ready := [stream for stream in streams if stream.waiting()]):
            self._arrived.clear()
            await bounded(self._arrived.wait(), f"packet on streams {[stream.id for stream in streams]}")
        return await ready[0].next()

    async def round_trip(self) -> None:
        """A PING frame, and the acknowledgement of it."""
        await bounded(self.ping(), "acknowledgement of a PING frame")

    async def termination(self) -> events.ConnectionTerminated:
        """Waits for the end of the connection."""
        return await bounded(asyncio.shield(self._end), "end of the connection")

    async def closed_with(self, code: int) -> None:
        """Waits for the CONNECTION_CLOSE of the broker's MQTT, which must have that code."""
        ended = await self.termination()
        require(ended.frame_type is None, f"closed by QUIC: {ended.error_code:#x} {ended.reason_phrase}")
        expect(ended.error_code, code, "code of CONNECTION_CLOSE")

    async def lives_for(self, seconds: float) -> None:
        """The connection must not end within that time."""
        try:
            ended = await asyncio.wait_for(asyncio.shield(self._end), seconds)
        except TimeoutError:
            return
        raise Mismatch(f"the connection ended: {ended.error_code:#x} {ended.reason_phrase}")

    def now(self) -> float:
        """Seconds, on the clock of the event loop."""
        return self._loop.time()

    async def ticket(self) -> SessionTicket:
        """A ticket that the broker has sent."""
        return await bounded(self._tickets.get(), "session ticket")

    def frames(self, kind: str, stream: int | None = None) -> list[dict[str, Any]]:
        """The frames of that type that have come, as qlog names them; `dial` must be told to log."""
        if self._log is None:
            raise Mismatch("dial(logged=True) is what lets a case see frames")
        received = [
            event["data"]["frames"]
            for trace in self._log.to_dict()["traces"]
            for event in trace["events"]
            if event["name"] == "transport:packet_received"
        ]
        found = [frame for frames in received for frame in frames if frame["frame_type"] == kind]
        return [frame for frame in found if stream is None or frame["stream_id"] == stream]

    def hold_datagrams(self) -> Callable[[], None]:
        """Lets nothing out until the result is called."""
        self._silent = True
        return self.let_out

    def let_out(self) -> None:
        """Lets out what `hold_datagrams` held back."""
        self._silent = False
        self.transmit()

    def hold_credit(self, *streams: Stream) -> Callable[[], None]:
        """Grants no more credit: on these streams, or without any on the connection. The result ends that."""
        quic, held = self._quic, {stream.id for stream in streams}
        on_stream, on_connection = quic._write_stream_limits, quic._write_connection_limits

        def limit_of_stream(*, stream: Any, **options: Any) -> None:
            if held and stream.stream_id not in held:
                on_stream(stream=stream, **options)

        quic._write_stream_limits = limit_of_stream
        if not held:
            quic._write_connection_limits = lambda **_: None

        def release() -> None:
            quic._write_stream_limits, quic._write_connection_limits = on_stream, on_connection
            # Credit travels with whatever is sent next.
            quic.send_ping(0)
            self.transmit()

        return release

    def sent_bytes(self, *streams: Stream) -> int:
        """How many stream bytes the broker's credit has let out on these streams."""
        return sum(self._quic._streams[stream.id].sender.highest_offset for stream in streams)

    async def rebind(self) -> None:
        """Goes on from another local port, as behind a NAT that has forgotten this one."""
        old = self._transport
        await self._loop.create_datagram_endpoint(lambda: self, sock=_socket())
        require(old.get_extra_info("sockname")[1] != self.local_port, "the local port did not change")
        old.close()

    @property
    def local_port(self) -> int:
        """The UDP port that packets leave from."""
        return self._transport.get_extra_info("sockname")[1]


class _Tap:
    """A transport that remembers what was sent."""

    def __init__(self, transport: Any, datagrams: list[bytes]) -> None:
        self._transport, self._datagrams = transport, datagrams

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def sendto(self, data: bytes, address: Any = None) -> None:
        self._datagrams.append(data)
        self._transport.sendto(data, address)


def _socket() -> socket.socket:
    made = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    made.bind(("::", 0))
    return made


@asynccontextmanager
async def dial(
    version: int = wire.V5,
    *,
    broker: str = STANDARD,
    alpn: str = ALPN,
    server_name: str = "localhost",
    wait: bool = True,
    logged: bool = False,
    ticket: SessionTicket | None = None,
    **tuning: Any,
) -> AsyncIterator[QuicClient]:
    """A connection whose handshake is done; with `wait` false it has not even begun: the first write begins it.

    `tuning` is aioquic's: max_data, max_stream_data. With a `ticket` what is written before the handshake is early.
    """
    configuration = QuicConfiguration(
        is_client=True,
        alpn_protocols=[alpn],
        server_name=server_name,
        session_ticket=ticket,
        quic_logger=QuicLogger() if logged else None,
        **tuning,
    )
    configuration.load_verify_locations(ca_file(broker))
    made: QuicClient | None = None

    def protocol(*arguments: Any, **options: Any) -> QuicClient:
        nonlocal made
        made = QuicClient(*arguments, version=version, **options)
        return made

    async with connect(
        HOST,
        endpoint("quic", broker).port,
        configuration=configuration,
        create_protocol=protocol,
        session_ticket_handler=lambda ticket: made and made.take_ticket(ticket),
        # Not awaited inside connect, so that a refused handshake leaves its reason behind, and nothing unbounded.
        wait_connected=False,
    ) as client:
        client.control = client.stream()
        try:
            if wait:
                client.transmit()
                await bounded(client.wait_connected(), "QUIC handshake")
                expect(client._quic.tls.alpn_negotiated, ALPN, "ALPN")
            yield client
            expect(client.uninvited, set(), "streams that the broker opened")  # [BQ-4]
        finally:
            client.let_out()
            client.close()
            await client.wait_closed()
            client._transport.close()
