"""What becomes of a subscription whose stream has ended, and of one whose connection has."""

from __future__ import annotations

from typing import Any

import wire
from quic_case import over_quic
from quic_client import QuicClient, dial
from quic_stream import Stream
from raw_client import RawClient
from suite import expect
from wire import V5, V311

ENDINGS = ("fin", "reset", "stop", "violation")


async def end(stream: Stream, how: str) -> None:
    """Ends a data stream, and waits until the broker has too."""
    match how:
        case "fin":
            stream.send(fin=True)
        case "reset":
            stream.reset(1)
        case "stop":
            stream.stop(1)
        case "violation":
            stream.send(b"\x00\x00")
    while isinstance(await stream.next(), wire.Packet):
        pass


def lasting(version: int) -> dict[str, Any]:
    """Options of a CONNECT that goes on with a session."""
    return {"clean": False} | ({"session_expiry": 60} if version == V5 else {})


async def leave(client: QuicClient) -> None:
    """DISCONNECT, and the end of the connection."""
    client.send(wire.disconnect())
    await client.closed_with(0)


@over_quic(how=ENDINGS)
async def goes_on_where_connect_was(version: int, own: str, how: str) -> None:
    # [BQ-42]
    async with dial(version) as client, dial(version) as publisher:
        await publisher.open(f"{own}-p")
        await client.open(f"{own}-s")
        stream = client.stream()
        await stream.subscribe((own, 2))
        await publisher.control.publish(own, b"before", 1)
        await stream.delivery(b"before", 1)
        # The broker has the acknowledgement.
        await client.quiet()
        await end(stream, how)
        for qos in (0, 1, 2):
            await publisher.control.publish(own, bytes([qos]), qos)
            await client.control.delivery(bytes([qos]), qos)


@over_quic(how=ENDINGS)
async def nothing_is_lost_with_the_stream(version: int, own: str, how: str) -> None:
    """Messages that were sent and not acknowledged, and one in the middle of QoS 2, go on there."""
    # [BQ-42]
    async with dial(version) as client, dial(version) as publisher:
        await publisher.open(f"{own}-p")
        await client.open(f"{own}-s")
        stream = client.stream()
        await stream.subscribe((own, 2))
        for qos in (1, 2, 2, 0):
            await publisher.control.publish(own, b"%d" % qos, qos)
        seen = [await stream.receive(wire.PUBLISH) for _ in range(4)]
        # The second one is half done.
        stream.send(wire.acknowledge(wire.PUBREC, seen[1].packet_id))
        await stream.receive(wire.PUBREL, seen[1].packet_id)
        await end(stream, how)
        again = {}
        for _ in range(3):
            packet = await client.control.next()
            again[packet.packet_id] = packet
        found = {number: (packet.kind, packet.dup, packet.payload) for number, packet in again.items()}
        wanted = {
            seen[0].packet_id: (wire.PUBLISH, True, b"1"),
            seen[1].packet_id: (wire.PUBREL, False, b""),
            seen[2].packet_id: (wire.PUBLISH, True, b"2"),
        }
        expect(found, wanted, "what came again by packet id")
        client.send(wire.acknowledge(wire.PUBACK, seen[0].packet_id))
        client.send(wire.acknowledge(wire.PUBCOMP, seen[1].packet_id))
        client.send(wire.acknowledge(wire.PUBREC, seen[2].packet_id))
        await client.control.receive(wire.PUBREL, seen[2].packet_id)
        client.send(wire.acknowledge(wire.PUBCOMP, seen[2].packet_id))
        await client.quiet()


@over_quic(V311, V5)
async def what_was_not_sent_goes_there_too(version: int, own: str) -> None:
    # [BQ-42] [BQ-55]
    async with dial(version) as client, dial(version) as publisher:
        await publisher.open(f"{own}-p")
        await client.open(f"{own}-s")
        stream = client.stream()
        await stream.subscribe((own, 1))
        release = client.hold_credit(stream)
        payloads = [bytes([n]) * 256 * 1024 for n in range(16)]
        for payload in payloads:
            await publisher.control.publish(own, payload, 1)
        await client.quiet()
        stream.stop(1)
        got = [await client.control.receive(wire.PUBLISH) for _ in payloads]
        release()
        for message in got:
            client.send(wire.acknowledge(wire.PUBACK, message.packet_id))
        expect([message.payload[0] for message in got], list(range(16)), "messages on the control stream")
        await client.quiet()


@over_quic(V311, V5)
async def subscribing_again_binds_it(version: int, own: str) -> None:
    # [BQ-43]
    async with dial(version) as client:
        await client.open(own)
        first, second, writer = client.stream(), client.stream(), client.stream()
        await first.subscribe((own, 1))
        await end(first, "fin")
        await writer.publish(own, b"on control")
        await client.control.delivery(b"on control")
        await second.subscribe((own, 1))
        await writer.publish(own, b"on second")
        await second.delivery(b"on second")
        await client.quiet()


@over_quic(V311, V5)
async def after_a_resumed_session(version: int, own: str) -> None:
    # [BQ-42] [BQ-43]
    async with dial(version) as publisher:
        await publisher.open(f"{own}-p")
        async with dial(version) as client:
            await client.open(own, **lasting(version))
            a, b = client.stream(), client.stream()
            await a.subscribe((f"{own}/a", 1))
            await b.subscribe((f"{own}/b", 1))
            await publisher.control.publish(f"{own}/a", b"unacknowledged")
            await a.receive(wire.PUBLISH)
            await leave(client)
        for leaf in ("a", "b"):
            await publisher.control.publish(f"{own}/{leaf}", b"offline")
        async with dial(version) as client:
            expect((await client.open(own, **lasting(version))).session_present, True, "Session Present")
            again = await client.control.delivery(b"unacknowledged")
            expect(again.dup, True, "DUP of what was sent before")
            for _ in range(2):
                await client.control.delivery(b"offline")
            stream = client.stream()
            await stream.subscribe((f"{own}/a", 1))
            for leaf in ("a", "b"):
                await publisher.control.publish(f"{own}/{leaf}", b"online")
            await stream.delivery(b"online")
            await client.control.delivery(b"online")
            await client.quiet()
            expect(stream.waiting(), 0, "copies too many")
            expect(list(await client.control.unsubscribe(f"{own}/a")), [0] if version == V5 else [], "UNSUBACK")
            await publisher.control.publish(f"{own}/a", b"gone")
            await client.quiet()
            expect(stream.waiting(), 0, "messages after UNSUBSCRIBE")
            await leave(client)


@over_quic(V311, V5)
async def a_session_moves_between_streams_and_tcp(version: int, own: str) -> None:
    # [BQ-42]
    async with dial(version) as client:
        await client.open(own, **lasting(version))
        stream = client.stream()
        await stream.subscribe((own, 1))
        await leave(client)
    with RawClient("tcp", version) as tcp:
        expect(tcp.connect(own, **lasting(version)).session_present, True, "Session Present")
        tcp.send(wire.publish(version, own, b"own", qos=1, packet_id=1))
        kinds = {tcp.next_packet().kind for _ in range(2)}
        expect(kinds, {wire.PUBACK, wire.PUBLISH}, "answer and delivery")
    async with dial(version) as client:
        expect((await client.open(own, **lasting(version))).session_present, True, "Session Present")
        await client.control.delivery(b"own")
        await leave(client)
