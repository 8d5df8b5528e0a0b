"""What overtakes what on its way to a subscriber, and that a stream which is not read stops itself alone."""

from __future__ import annotations

import wire
from endpoint import STRICT
from quic_case import over_quic
from quic_client import QuicClient, dial
from quic_stream import Stream
from suite import expect, require
from wire import V5

IMPLEMENTATION_SPECIFIC = 0x83
# What a client grants for its whole connection at first, and what is sent to it on each of four streams behind that.
CREDIT, BULK, MESSAGES, LANES = 64 * 1024, bytes(10_000), 20, 4
# What a stream has encoded is not overtaken any more: 64 KiB, and one message that goes beyond it.
ENCODED = 64 * 1024 + 2 * len(BULK)


def of_priority(value: object) -> dict[str, tuple[str, str]]:
    """The property of a SUBSCRIBE that asks for it."""
    return {"user_property": ("braid-priority", str(value))}


async def _bulk_before_urgent(client: QuicClient, publisher: QuicClient, own: str, urgent: Stream) -> int:
    """Bulk that the client has no credit for, then an urgent message, then credit: bytes of bulk that came first."""
    release = client.hold_credit()
    for _ in range(MESSAGES):
        for lane in range(LANES):
            await publisher.control.publish(f"{own}/{lane}/bulk", BULK, 1)
    await publisher.control.publish(f"{own}/urgent", b"urgent", 1)
    await client.round_trip()
    client.arrivals.clear()
    release()
    while (await urgent.receive(wire.PUBLISH)).topic != f"{own}/urgent":
        pass
    topics = [packet.topic for _, packet in client.arrivals]
    return topics.index(f"{own}/urgent") * len(BULK)


@over_quic(V5, place=("streams", "control"))
async def urgent_on_a_stream_of_its_own(version: int, own: str, place: str) -> None:
    """It waits for nothing, although the bulk is older and its streams are."""
    # [BQ-50] [BQ-52] [BQ-56]
    async with dial(version, max_data=CREDIT) as client, dial(version) as publisher:
        await publisher.open(f"{own}-p")
        await client.open(own)
        for lane in range(LANES):
            await client.stream().subscribe((f"{own}/{lane}/bulk", 0), **of_priority(5))
        # The control stream is before all others, whatever is asked for.
        urgent, priority = (client.control, 0) if place == "control" else (client.stream(), 200)
        await urgent.subscribe((f"{own}/urgent", 0), **of_priority(priority))
        before = await _bulk_before_urgent(client, publisher, own, urgent)
        # No more than one message whose last bytes were missing.
        require(before <= LANES * len(BULK), f"{before} bytes of bulk came before the urgent message")


@over_quic(V5, place=("data", "control"))
async def urgent_on_the_same_stream(version: int, own: str, place: str) -> None:
    # [BQ-52] [BQ-53]
    async with dial(version, max_data=CREDIT) as client, dial(version) as publisher:
        await publisher.open(f"{own}-p")
        await client.open(own)
        stream = client.control if place == "control" else client.stream()
        await stream.subscribe((f"{own}/+/bulk", 0), **of_priority(5))
        await stream.subscribe((f"{own}/urgent", 0), packet_id=2, **of_priority(200))
        before = await _bulk_before_urgent(client, publisher, own, stream)
        require(before <= ENCODED, f"{before} bytes of bulk came before the urgent message")


@over_quic()
async def urgent_by_a_rule_of_the_broker(version: int, own: str) -> None:
    """The strict broker is told that the topic +/urgent is."""
    # [BQ-52]
    async with (
        dial(version, broker=STRICT, max_data=CREDIT) as client,
        dial(version, broker=STRICT) as publisher,
    ):
        await publisher.open(f"{own}-p")
        await client.open(own)
        stream = client.stream()
        await stream.subscribe((f"{own}/#", 0))
        before = await _bulk_before_urgent(client, publisher, own, stream)
        require(before <= ENCODED, f"{before} bytes of bulk came before the urgent message")


@over_quic(V5, value=("high", "-1", "65536", "1.5", ""))
async def a_priority_that_is_none(version: int, own: str, value: str) -> None:
    # [BQ-52]
    async with dial(version) as client:
        await client.open(own)
        stream = client.stream()
        stream.send(wire.subscribe(version, 1, (own, 0), **of_priority(value)))
        expect((await stream.receive(wire.SUBACK, 1)).reasons, [IMPLEMENTATION_SPECIFIC], "SUBACK")
        await stream.subscribe((own, 0), **of_priority(65535))


@over_quic(V5)
async def order_within_a_lane(version: int, own: str) -> None:
    # [BQ-54]
    async with dial(version) as client, dial(version) as publisher:
        await publisher.open(f"{own}-p")
        await client.open(own)
        lanes = [client.stream() for _ in range(3)]
        for priority, lane in enumerate(lanes):
            await lane.subscribe((f"{own}/#", 1), **of_priority(priority * 1000))
        # All of it fits into the queue of the session, or QoS 0 is dropped when this client is slow.
        for n in range(200):
            size = 1 + n % 7 * 5_000
            publisher.send(wire.publish(version, f"{own}/{n % 3}", n.to_bytes(2, "big") * size, qos=0))
        for lane in lanes:
            numbers = [int.from_bytes((await lane.receive(wire.PUBLISH)).payload[:2], "big") for _ in range(200)]
            expect(numbers, list(range(200)), "order of arrival")


@over_quic(qos=(0, 1))
async def a_stream_that_is_not_read_stops_itself(version: int, own: str, qos: int) -> None:
    # [BQ-55]
    async with dial(version, max_stream_data=32 * 1024) as client, dial(version) as publisher:
        await publisher.open(f"{own}-p")
        await client.open(own)
        stuck, alive = client.stream(), client.stream()
        await stuck.subscribe((f"{own}/stuck", qos))
        await alive.subscribe((f"{own}/alive", qos))
        release = client.hold_credit(stuck)
        for n in range(30):
            # The publisher is not held up: each is acknowledged.
            await publisher.control.publish(f"{own}/stuck", bytes([n]) * 100_000)
            await publisher.control.publish(f"{own}/alive", bytes([n]) * 50_000)
            await alive.delivery(bytes([n]) * 50_000, qos)
        await client.quiet()
        expect(stuck.waiting(), 0, "messages without credit")
        release()
        for n in range(30):
            await stuck.delivery(bytes([n]) * 100_000, qos)
