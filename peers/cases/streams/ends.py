"""How a data stream ends, by either side, and that nothing else ends with it."""

from __future__ import annotations

import struct

import wire
from endpoint import SMALL
from quic_case import over_quic
from quic_client import QuicClient, dial
from quic_stream import FIN, End, Stream
from suite import expect, require
from wire import V5

MALFORMED_PACKET, PROTOCOL_ERROR, PACKET_TOO_LARGE, SOME_CODE = 0x81, 0x82, 0x95, 0x1234
# No packet has type 0, reserved flags must be as MQTT says, a length has four bytes, a filter has a character.
BROKEN = {
    "type": (b"\x00\x00", MALFORMED_PACKET),
    "flags": (b"\x80\x02\x00\x01", MALFORMED_PACKET),
    "length": (b"\x30\xff\xff\xff\xff\x01", MALFORMED_PACKET),
    "qos": (b"\x36\x05\x00\x01a\x00\x01", MALFORMED_PACKET),
    "garbage": (b"GET / HTTP/1.1\r\n\r\n" * 10, MALFORMED_PACKET),
    "suback": (b"\x90\x03\x00\x01\x00", PROTOCOL_ERROR),
    "pingresp": (b"\xd0\x00", PROTOCOL_ERROR),
    "disconnect": (b"\xe0\x00", PROTOCOL_ERROR),
}


async def unharmed(client: QuicClient, own: str, *others: Stream) -> None:
    """The connection lives, and so do these streams."""
    await client.quiet()
    for stream in (client.control, *others):
        await stream.subscribe((f"{own}/alive/{stream.id}", 1), packet_id=99)
        await stream.publish(f"{own}/alive/{stream.id}", b"alive", 0)
        await stream.delivery(b"alive", 0)


# === FIN ===


@over_quic(qos=(0, 1, 2))
async def fin_after_the_last_packet(version: int, own: str, qos: int) -> None:
    # [BQ-30]
    async with dial(version) as client:
        await client.open(own)
        await client.subscribe((own, 1))
        stream = client.stream()
        stream.send(wire.publish(version, own, b"last", qos=qos, packet_id=5), fin=qos < 2)
        if qos == 1:
            await stream.receive(wire.PUBACK, 5)
        if qos == 2:
            await stream.receive(wire.PUBREC, 5)
            stream.send(wire.acknowledge(wire.PUBREL, 5), fin=True)
            await stream.receive(wire.PUBCOMP, 5)
        expect(await stream.end(), FIN, "end of the stream")
        await client.control.delivery(b"last", min(qos, 1))


@over_quic(V5, alone=(True, False))
async def fin_of_a_stream_that_said_nothing(version: int, own: str, alone: bool) -> None:
    # [BQ-30]
    async with dial(version) as client:
        await client.open(own)
        stream = client.stream()
        if not alone:
            await stream.subscribe((own, 0))
        stream.send(fin=True)
        expect(await stream.end(), FIN, "end of the stream")
        await client.quiet()


@over_quic(V5)
async def fin_comes_in_a_frame_of_its_own(version: int, own: str) -> None:
    # [BQ-31]
    async with dial(version, logged=True) as client:
        await client.open(own)
        streams = [client.stream() for _ in range(10)]
        for stream in streams:
            # Some are sent so much that it fills several QUIC packets.
            stream.send(wire.subscribe(version, 1, (own, 0)))
            stream.send(wire.publish(version, own, bytes(3000), qos=1, packet_id=1))
            stream.send(fin=True)
        for stream in streams:
            while isinstance(packet := await stream.next(), wire.Packet):
                pass
            expect(packet, FIN, "end of the stream")
        client.send(wire.disconnect())
        await client.closed_with(0)
        for stream in (client.control, *streams):
            frames = client.frames("stream", stream.id)
            last = [(frame["length"], frame["offset"]) for frame in frames if frame["fin"]]
            sent = max(frame["offset"] + frame["length"] for frame in frames)
            # One that comes again may have the data that was sent before in another frame.
            require((0, sent) in last[:1], f"FIN of stream {stream.id} came with data: {last} of {sent} bytes")


@over_quic()
async def fin_within_a_packet(version: int, own: str) -> None:
    # [BQ-30] [BQ-34]
    async with dial(version) as client:
        await client.open(own)
        stream, other = client.stream(), client.stream()
        stream.send(wire.publish(version, own, b"whole", qos=1, packet_id=5)[:-1], fin=True)
        expect(await stream.end(), End("reset", MALFORMED_PACKET), "end of the stream")
        await unharmed(client, own, other)


# === RESET_STREAM and STOP_SENDING of the client ===


@over_quic()
async def reset_by_the_client(version: int, own: str) -> None:
    # [BQ-32]
    async with dial(version) as client:
        await client.open(own)
        stream, other = client.stream(), client.stream()
        await stream.subscribe((own, 0))
        stream.reset(SOME_CODE)
        expect(await stream.end(), End("reset", SOME_CODE), "end of the stream")
        await unharmed(client, own, other)


@over_quic()
async def reset_within_a_packet(version: int, own: str) -> None:
    # [BQ-32]
    async with dial(version) as client:
        await client.open(own)
        await client.subscribe((own, 0))
        stream, other = client.stream(), client.stream()
        stream.send(wire.publish(version, own, bytes(1000))[:900])
        await client.round_trip()
        stream.reset(0)
        expect(await stream.end(), End("reset", 0), "end of the stream")
        await unharmed(client, own, other)


@over_quic()
async def stopped_by_the_client(version: int, own: str) -> None:
    """It hears nothing any more on that stream, and what it says there still counts."""
    # [BQ-33] [BQ-35]
    async with dial(version) as client:
        await client.open(own)
        await client.subscribe((f"{own}/control", 2))
        stream, other = client.stream(), client.stream()
        await stream.subscribe((f"{own}/gone", 0))
        whole = wire.publish(version, f"{own}/control", b"last", qos=2, packet_id=2)
        stream.send(whole[:5])
        stream.stop(SOME_CODE)
        expect(await stream.end(), End("reset", SOME_CODE), "end of the stream")
        stream.send(whole[5:], wire.publish(version, f"{own}/control", b"least", qos=1, packet_id=1))
        stream.send(wire.acknowledge(wire.PUBREL, 2), fin=True)
        seen = {(await client.receive(wire.PUBLISH)).payload for _ in range(2)}
        expect(seen, {b"last", b"least"}, "what was said after STOP_SENDING")
        await unharmed(client, own, other)


@over_quic()
async def acknowledgements_do_not_move(version: int, own: str) -> None:
    """What a stream that has ended still owes is said nowhere: its ids could be another stream's."""
    # [BQ-35]
    async with dial(version) as client:
        await client.open(own)
        for code in range(20):
            stream = client.stream()
            stream.send(*(wire.publish(version, own, b"", qos=1 + n % 2, packet_id=n) for n in range(1, 50)))
            stream.reset(code)
        await client.quiet()


# === Violations ===


async def _violation(version: int, own: str, packet: bytes, code: int | None, broker: str = "") -> None:
    async with dial(version, broker=broker) as client, dial(version, broker=broker) as watcher:
        await watcher.open(f"{own}-w")
        await watcher.subscribe((f"{own}/will", 0))
        await client.open(own, will=(f"{own}/will", b"gone"))
        bad, other = client.stream(), client.stream()
        await bad.subscribe((f"{own}/bad", 0))
        await other.subscribe((f"{own}/other", 0))
        bad.send(packet)
        end = await bad.end()
        expect((end.how, await bad.stopped()), ("reset", end.code), "end of the stream, and code of STOP_SENDING")
        if code is None:
            require(0x80 <= end.code <= 0xFF, f"{end.code:#x} is no reason code of MQTT")
        else:
            expect(end.code, code, "code")
        await unharmed(client, own, other)
        await watcher.quiet()


@over_quic(packet=tuple(BROKEN))
async def broken_packet(version: int, own: str, packet: str) -> None:
    # [BQ-10] [BQ-34]
    broken, code = BROKEN[packet]
    await _violation(version, own, broken, code)


@over_quic(name=("connect", "connect-again", "auth"))
async def packets_of_the_control_stream_only(version: int, own: str, name: str) -> None:
    # [BQ-10] [BQ-34]
    packets = {
        "connect": wire.connect(version, f"{own}x"),
        "connect-again": wire.connect(version, own),
        "auth": wire.packet(wire.AUTH, 0, b"" if version == V5 else b"\x00"),
    }
    auth_is_unknown = name == "auth" and version != V5
    await _violation(version, own, packets[name], None if auth_is_unknown else PROTOCOL_ERROR)


@over_quic(whole=(True, False))
async def oversize_packet(version: int, own: str, whole: bool) -> None:
    """Its length is enough to know it."""
    # [BQ-34]
    packet = wire.publish(version, own, bytes(200_000))
    await _violation(version, own, packet if whole else packet[:10], PACKET_TOO_LARGE, SMALL)


@over_quic()
async def violations_on_every_stream(version: int, own: str) -> None:
    # [BQ-34]
    async with dial(version) as client:
        await client.open(own)
        for n in range(20):
            stream = client.stream()
            stream.send(struct.pack("!BB", n % 16 << 4 | 15, 0))
            expect((await stream.end()).how, "reset", "end of the stream")
        await unharmed(client, own)
