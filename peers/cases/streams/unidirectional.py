"""Unidirectional streams, which carry QoS 0 to the broker and nothing else."""

from __future__ import annotations

import wire
from quic_case import over_quic
from quic_client import dial
from suite import expect
from wire import V5, V31, V311

QOS_NOT_SUPPORTED, PROTOCOL_ERROR, MALFORMED_PACKET = 0x9B, 0x82, 0x81


@over_quic()
async def publishes_qos_0(version: int, own: str) -> None:
    # [BQ-12]
    async with dial(version) as client:
        await client.open(own)
        await client.subscribe((f"{own}/#", 0))
        streams = [client.uni() for _ in range(5)]
        for stream in streams:
            for n in range(3):
                stream.send(wire.publish(version, f"{own}/{stream.id}", bytes([n])), fin=n == 2)
        seen: dict[str, list[int]] = {}
        for _ in range(15):
            message = await client.receive(wire.PUBLISH)
            seen.setdefault(message.topic, []).append(message.payload[0])
        expect(seen, {f"{own}/{stream.id}": [0, 1, 2] for stream in streams}, "payloads by topic")
        await client.quiet()


@over_quic()
async def a_megabyte_among_small_ones(version: int, own: str) -> None:
    # [BQ-2] [BQ-12]
    async with dial(version) as client:
        await client.open(own)
        await client.subscribe((own, 0))
        large, small = client.uni(), client.uni()
        whole = wire.publish(version, own, bytes(1 << 20))
        large.send(whole[:-1])
        for n in range(10):
            small.send(wire.publish(version, own, bytes([n])))
            await client.control.delivery(bytes([n]), 0)
        large.send(whole[-1:])
        await client.control.delivery(bytes(1 << 20), 0)


@over_quic()
async def early(version: int, own: str) -> None:
    # [BQ-12] [BQ-13]
    async with dial(version) as client, dial(version) as watcher:
        await watcher.open(f"{own}-w")
        await watcher.subscribe((own, 0))
        stream = client.uni()
        stream.send(wire.publish(version, own, b"early"))
        await client.round_trip()
        await watcher.quiet()
        await client.open(own)
        await watcher.control.delivery(b"early", 0)


REFUSED = {
    "qos1": QOS_NOT_SUPPORTED,
    "qos2": QOS_NOT_SUPPORTED,
    "subscribe": PROTOCOL_ERROR,
    "unsubscribe": PROTOCOL_ERROR,
    "pingreq": PROTOCOL_ERROR,
    "puback": PROTOCOL_ERROR,
    "connect": PROTOCOL_ERROR,
    "disconnect": PROTOCOL_ERROR,
    "malformed": MALFORMED_PACKET,
}


@over_quic(V31, V311, V5, packet=tuple(REFUSED))
async def refuses(version: int, own: str, packet: str) -> None:
    # [BQ-12] [BQ-34]
    packets = {
        "qos1": wire.publish(version, own, b"", qos=1, packet_id=1),
        "qos2": wire.publish(version, own, b"", qos=2, packet_id=1),
        "subscribe": wire.subscribe(version, 1, (own, 0)),
        "unsubscribe": wire.unsubscribe(version, 1, own),
        "pingreq": wire.PINGREQ_BYTES,
        "puback": wire.acknowledge(wire.PUBACK, 1),
        "connect": wire.connect(version, own),
        "disconnect": wire.disconnect(),
        "malformed": b"\x00\x00",
    }
    async with dial(version) as client, dial(version) as watcher:
        await watcher.open(f"{own}-w")
        await watcher.subscribe((f"{own}/will", 0))
        await client.open(own, will=(f"{own}/will", b"gone"))
        stream, other = client.uni(), client.uni()
        stream.send(packets[packet])
        expect(await stream.stopped(), REFUSED[packet], "code of STOP_SENDING")
        await client.subscribe((own, 0))
        other.send(wire.publish(version, own, b"alive"))
        await client.control.delivery(b"alive", 0)
        await watcher.quiet()


@over_quic(V5)
async def many_in_sequence(version: int, own: str) -> None:
    # [BQ-5] [BQ-12]
    async with dial(version) as client:
        await client.open(own)
        await client.subscribe((own, 0))
        for n in range(100):
            client.uni().send(wire.publish(version, own, bytes([n])), fin=True)
            await client.control.delivery(bytes([n]), 0)
