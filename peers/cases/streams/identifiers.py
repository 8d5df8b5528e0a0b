"""Packet Identifiers: whose they are, and how many may be under way."""

from __future__ import annotations

import wire
from cases.streams.subscriptions import end, lasting, leave
from endpoint import STRICT
from quic_case import over_quic
from quic_client import dial
from suite import expect, require
from wire import V5, V311

RECEIVE_MAXIMUM_EXCEEDED = 0x93
# What the settings of the strict broker let one stream have.
RECEIVE_MAXIMUM = 10


@over_quic()
async def equal_identifiers_on_two_streams(version: int, own: str) -> None:
    # [BQ-20]
    async with dial(version) as client:
        await client.open(own)
        await client.subscribe((own, 2))
        streams = [client.stream() for _ in range(5)]
        for n, stream in enumerate(streams):
            stream.send(wire.publish(version, own, bytes([n]), qos=2, packet_id=1))
            await stream.receive(wire.PUBREC, 1)
        for n, stream in reversed(list(enumerate(streams))):
            # A repetition is of this stream's exchange alone.
            stream.send(wire.publish(version, own, bytes([n]), qos=2, packet_id=1, dup=True))
            await stream.receive(wire.PUBREC, 1)
            stream.send(wire.acknowledge(wire.PUBREL, 1))
            await stream.receive(wire.PUBCOMP, 1)
        seen = []
        while len(seen) < 5:
            message = await client.receive(wire.PUBLISH)
            client.send(wire.acknowledge(wire.PUBREC, message.packet_id))
            seen.append(message.payload[0])
        expect(sorted(seen), list(range(5)), "messages, each once")


@over_quic(how=("fin", "reset", "stop", "violation"))
async def goes_on_with_qos_2_elsewhere(version: int, own: str, how: str) -> None:
    # [BQ-21]
    async with dial(version) as client, dial(version) as watcher:
        await client.open(own)
        await watcher.open(f"{own}-w")
        await watcher.subscribe((own, 0))
        for n, second in enumerate((client.control, client.stream())):
            first = client.stream()
            first.send(wire.publish(version, own, bytes([n]), qos=2, packet_id=5))
            await first.receive(wire.PUBREC, 5)
            await end(first, how)
            second.send(wire.publish(version, own, bytes([n]), qos=2, packet_id=5, dup=True))
            await second.receive(wire.PUBREC, 5)
            second.send(wire.acknowledge(wire.PUBREL, 5))
            expect((await second.receive(wire.PUBCOMP, 5)).reason, 0, "reason of PUBCOMP")
            await watcher.control.delivery(bytes([n]), 0)
        await watcher.quiet()


@over_quic(V311, V5, stream=(True, False))
async def goes_on_with_qos_2_on_the_next_connection(version: int, own: str, stream: bool) -> None:
    # [BQ-21]
    async with dial(version) as watcher:
        await watcher.open(f"{own}-w")
        await watcher.subscribe((own, 0))
        async with dial(version) as client:
            await client.open(own, **lasting(version))
            for n in range(1, 4):
                first = client.stream()
                first.send(wire.publish(version, own, bytes([n]), qos=2, packet_id=n))
                await first.receive(wire.PUBREC, n)
            await leave(client)
        async with dial(version) as client:
            await client.open(own, **lasting(version))
            again = client.stream() if stream else client.control
            for n in range(1, 4):
                again.send(wire.publish(version, own, bytes([n]), qos=2, packet_id=n, dup=True))
                await again.receive(wire.PUBREC, n)
                again.send(wire.acknowledge(wire.PUBREL, n))
                await again.receive(wire.PUBCOMP, n)
                await watcher.control.delivery(bytes([n]), 0)
            await leave(client)
        await watcher.quiet()


@over_quic()
async def acknowledged_on_any_stream(version: int, own: str) -> None:
    # [BQ-22]
    async with dial(version) as client, dial(version) as publisher:
        await publisher.open(f"{own}-p")
        # With one under way at most, the next one shows that the one before is done with.
        await client.open(own, **({"receive_maximum": 1} if version == V5 else {}))
        first, second = client.stream(), client.stream()
        await first.subscribe((own, 1))
        for n, answer in enumerate((client.control, second, first, client.control)):
            await publisher.control.publish(own, bytes([n]))
            await first.delivery(bytes([n]), answer=answer)
        await client.quiet()


@over_quic(V5)
async def qos_2_answered_on_another_stream(version: int, own: str) -> None:
    # [BQ-22]
    async with dial(version) as client, dial(version) as publisher:
        await publisher.open(f"{own}-p")
        await client.open(own, receive_maximum=1)
        stream, other = client.stream(), client.stream()
        await stream.subscribe((own, 2))
        # With one under way at most, the next one shows that the one before is done with.
        for n in range(3):
            await publisher.control.publish(own, bytes([n]), 2)
        for n in range(3):
            message = await stream.receive(wire.PUBLISH)
            expect(message.payload, bytes([n]), "payload")
            other.send(wire.acknowledge(wire.PUBREC, message.packet_id))
            release = await client.next_of(stream, other, client.control)
            expect((release.kind, release.packet_id), (wire.PUBREL, message.packet_id), "answer to PUBREC")
            client.send(wire.acknowledge(wire.PUBCOMP, message.packet_id))
        await client.quiet()


@over_quic(V5)
async def identifiers_of_the_broker_are_unique(version: int, own: str) -> None:
    # [BQ-22]
    async with dial(version) as client, dial(version) as publisher:
        await publisher.open(f"{own}-p")
        await client.open(own)
        streams = [client.control, *(client.stream() for _ in range(5))]
        for stream in streams:
            await stream.subscribe((own, 1))
        for _ in range(10):
            await publisher.control.publish(own, b"")
        seen = [(await stream.receive(wire.PUBLISH)).packet_id for stream in streams for _ in range(10)]
        expect(len(set(seen)), 60, "different packet ids of 60 messages that nobody has acknowledged")


@over_quic(V5)
async def the_sum_may_exceed_receive_maximum(version: int, own: str) -> None:
    # [BQ-23]
    async with dial(version, broker=STRICT) as client:
        connack = await client.open(own)
        expect(connack.properties.get("receive_maximum"), [RECEIVE_MAXIMUM], "Receive Maximum")
        streams = [client.stream() for _ in range(5)]
        for stream in streams:
            for n in range(1, RECEIVE_MAXIMUM + 1):
                stream.send(wire.publish(version, own, b"", qos=2, packet_id=n))
        for stream in streams:
            for n in range(1, RECEIVE_MAXIMUM + 1):
                await stream.receive(wire.PUBREC, n)
        for stream in streams:
            for n in range(1, RECEIVE_MAXIMUM + 1):
                stream.send(wire.acknowledge(wire.PUBREL, n))
                await stream.receive(wire.PUBCOMP, n)
        await client.quiet()


@over_quic(V5)
async def one_stream_may_not(version: int, own: str) -> None:
    # [BQ-23]
    async with dial(version, broker=STRICT) as client:
        await client.open(own)
        bad, other = client.stream(), client.stream()
        for n in range(1, RECEIVE_MAXIMUM + 2):
            bad.send(wire.publish(version, own, b"", qos=2, packet_id=n))
        while isinstance(packet := await bad.next(), wire.Packet):
            pass
        expect((packet.how, packet.code), ("reset", RECEIVE_MAXIMUM_EXCEEDED), "end of the stream")
        await other.publish(own, b"")
        await client.quiet()


@over_quic(V5, used=(True, False))
async def a_lane_that_acknowledges_nothing_leaves_room(version: int, own: str, used: bool) -> None:
    """For the stream that was heard of before, and for one that only subscribed."""
    # [BQ-24] [BQ-55]
    async with dial(version) as client, dial(version) as publisher:
        await publisher.open(f"{own}-p")
        await client.open(own, receive_maximum=10)
        stuck, alive = client.stream(), client.stream()
        await stuck.subscribe((f"{own}/stuck", 1))
        await alive.subscribe((f"{own}/alive", 1))
        if used:
            await publisher.control.publish(f"{own}/alive", b"first")
            await alive.delivery(b"first")
        for n in range(50):
            await publisher.control.publish(f"{own}/stuck", bytes([n]))
        for n in range(20):
            await publisher.control.publish(f"{own}/alive", bytes([n]))
            await alive.delivery(bytes([n]))
        require(0 < stuck.waiting() < 10, f"{stuck.waiting()} of 10 are under way on one stream")
        for n in range(50):
            await stuck.delivery(bytes([n]))


@over_quic(V311, V5)
async def before_mqtt_5_there_is_no_maximum_to_exceed(version: int, own: str) -> None:
    # [BQ-23]
    async with dial(version, broker=STRICT) as client:
        await client.open(own)
        stream = client.stream()
        count = RECEIVE_MAXIMUM + 5 if version != V5 else RECEIVE_MAXIMUM
        for n in range(1, count + 1):
            stream.send(wire.publish(version, own, b"", qos=2, packet_id=n))
        for n in range(1, count + 1):
            await stream.receive(wire.PUBREC, n)
