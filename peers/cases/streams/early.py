"""Data streams that are opened, and filled, before CONNECT is answered."""

from __future__ import annotations

import wire
from endpoint import STRICT
from quic_case import over_quic
from quic_client import dial
from suite import expect
from wire import V5

# What a connection may keep waiting at the broker before its CONNECT is accepted.
UNTRUSTED_BYTES = 128 << 10
ABNORMAL = 1


@over_quic()
async def pipelined_behind_connect(version: int, own: str) -> None:
    # [BQ-13]
    async with dial(version) as client:
        subscriber, publisher = client.stream(), client.stream()
        client.send(wire.connect(version, own))
        subscriber.send(wire.subscribe(version, 1, (own, 1)))
        publisher.send(wire.publish(version, f"{own}/elsewhere", b"early", qos=2, packet_id=1))
        await client.accepted()
        await subscriber.receive(wire.SUBACK, 1)
        await publisher.receive(wire.PUBREC, 1)
        await publisher.publish(own, b"later", packet_id=2)
        await subscriber.delivery(b"later")


@over_quic()
async def filled_before_connect(version: int, own: str) -> None:
    # [BQ-13]
    async with dial(version) as client, dial(version) as watcher:
        await watcher.open(f"{own}-w")
        await watcher.subscribe((f"{own}/#", 1))
        first, second = client.stream(), client.stream()
        first.send(wire.subscribe(version, 1, (f"{own}/first", 1)))
        second.send(wire.publish(version, f"{own}/early", b"early", qos=1, packet_id=1), fin=True)
        # The broker has both, and does nothing.
        await client.round_trip()
        await client.round_trip()
        await watcher.quiet()
        expect([first.waiting(), second.waiting(), client.control.waiting()], [0, 0, 0], "answers before CONNECT")
        await client.open(own)
        await first.receive(wire.SUBACK, 1)
        await second.receive(wire.PUBACK, 1)
        expect((await second.end()).how, "fin", "end of the stream that was finished")
        await watcher.control.delivery(b"early")


@over_quic()
async def megabytes_behind_connect(version: int, own: str) -> None:
    # [BQ-13]
    async with dial(version) as client:
        streams = [client.stream() for _ in range(8)]
        client.send(wire.connect(version, own))
        for stream in streams:
            stream.send(wire.publish(version, own, bytes(512 * 1024), qos=1, packet_id=1))
        await client.accepted()
        for stream in streams:
            await stream.receive(wire.PUBACK, 1)


@over_quic(V5)
async def what_waits_is_bounded_for_the_connection(version: int, own: str) -> None:
    """It takes the credit of the CONNECT too: the broker's time ends a connection like that."""
    # [BQ-6] [BQ-13]
    async with dial(version, broker=STRICT) as client:
        streams = [client.stream() for _ in range(8)]
        for stream in streams:
            stream.send(wire.publish(version, own, bytes(512 * 1024), qos=1, packet_id=1))
        sent = -1
        while (now := client.sent_bytes(*streams)) != sent:
            sent = now
            await client.round_trip()
        expect(sent, UNTRUSTED_BYTES, "bytes that were taken before CONNECT")
        await client.closed_with(ABNORMAL)


@over_quic()
async def refused_connect_drops_them(version: int, own: str) -> None:
    # [BQ-13]
    async with dial(version) as client, dial(version) as watcher:
        await watcher.open(f"{own}-w")
        await watcher.subscribe((f"{own}/#", 0))
        streams = [client.stream() for _ in range(3)]
        for stream in streams:
            stream.send(wire.publish(version, f"{own}/{stream.id}", b"early", qos=1, packet_id=1))
            stream.send(wire.subscribe(version, 2, (f"{own}/#", 0)))
        client.send(wire.connect(6, own))
        await client.ended()
        await client.closed_with(ABNORMAL)
        for stream in streams:
            await stream.end()
        await watcher.quiet()


@over_quic()
async def a_stream_that_ends_before_connect(version: int, own: str) -> None:
    # [BQ-13] [BQ-32]
    async with dial(version) as client:
        gone, kept = client.stream(), client.stream()
        gone.send(wire.subscribe(version, 1, (own, 0)))
        gone.reset(7)
        kept.send(wire.subscribe(version, 2, (own, 0)))
        await client.round_trip()
        await client.open(own)
        await kept.receive(wire.SUBACK, 2)
        await kept.publish(own, b"one", 0)
        await kept.delivery(b"one", 0)
        await client.quiet()
