"""Limits against abuse; the small broker has small ones."""

from __future__ import annotations

import wire
from cases.streams.subscriptions import leave
from endpoint import SMALL
from quic_case import over_quic
from quic_client import dial
from quic_stream import End
from suite import expect, require
from wire import V5

SERVER_BUSY = 0x89
STREAMS_PER_SECOND = 50


@over_quic(V5)
async def a_packet_that_never_goes_on_makes_room(version: int, own: str) -> None:
    # [BQ-45]
    async with dial(version, broker=SMALL) as client:
        await client.open(own)
        stalled, first, second = client.stream(), client.stream(), client.stream()
        stalled.send(wire.publish(version, own, bytes(150_000), qos=1, packet_id=1)[:90_000])
        await client.round_trip()
        for stream in (first, second):
            stream.send(wire.publish(version, own, bytes(150_000), qos=1, packet_id=1))
        await stalled.aborted(SERVER_BUSY)
        for stream in (first, second):
            await stream.receive(wire.PUBACK, 1)
        await client.quiet()
        await leave(client)


@over_quic(V5)
async def an_announcement_costs_nothing(version: int, own: str) -> None:
    """A hundred packets of 256 MB each are announced, and do not come."""
    # [BQ-45]
    async with dial(version) as client:
        await client.open(own)
        streams = [client.stream() for _ in range(100)]
        for stream in streams:
            stream.send(b"\x30\xf0\xff\xff\x7f" + wire.binary(own))
        await client.quiet()
        other = client.stream()
        await other.subscribe((own, 1))
        await other.publish(own, b"alive", 0)
        await other.delivery(b"alive", 0)
        for stream in streams:
            stream.reset(1)
        for stream in streams:
            expect(await stream.end(), End("reset", 1), "end of the stream")
        await client.quiet()


@over_quic(V5)
async def too_many_streams_a_second_wait(version: int, own: str) -> None:
    # [BQ-45]
    async with dial(version, broker=SMALL) as client:
        await client.open(own)
        begun = client.now()
        streams = [client.stream() for _ in range(3 * STREAMS_PER_SECOND)]
        for stream in streams:
            stream.send(wire.publish(version, own, b"", qos=1, packet_id=1))
        # Nothing else has to.
        await client.quiet()
        quick = client.now() - begun
        for stream in streams:
            await stream.receive(wire.PUBACK, 1)
        slow = client.now() - begun
        # A second's worth may come at once.
        require(slow > max(1.0, quick), f"{quick:.1f} s for a PINGREQ, {slow:.1f} s for {len(streams)} streams")
        await leave(client)
