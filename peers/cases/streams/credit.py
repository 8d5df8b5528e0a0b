"""How many streams there may be."""

from __future__ import annotations

import wire
from quic_case import over_quic
from quic_client import dial
from quic_stream import FIN, End
from suite import expect
from wire import V5

AT_ONCE, IN_SEQUENCE = 100, 300


@over_quic(V5)
async def a_hundred_at_once(version: int, own: str) -> None:
    # [BQ-5]
    async with dial(version) as client:
        await client.open(own)
        streams = [client.stream() for _ in range(AT_ONCE)]
        for stream in streams:
            stream.send(wire.subscribe(version, 1, (f"{own}/{stream.id}", 1)))
        for stream in streams:
            await stream.receive(wire.SUBACK, 1)
        for stream in streams:
            client.send(wire.publish(version, f"{own}/{stream.id}", b"%d" % stream.id))
        for stream in reversed(streams):
            await stream.delivery(b"%d" % stream.id, 0)


@over_quic(V5)
async def a_hundred_before_connect(version: int, own: str) -> None:
    # [BQ-5] [BQ-13]
    async with dial(version) as client:
        streams = [client.stream() for _ in range(AT_ONCE)]
        for stream in streams:
            stream.send(wire.publish(version, own, b"", qos=1, packet_id=1))
        await client.round_trip()
        await client.open(own)
        for stream in streams:
            await stream.receive(wire.PUBACK, 1)


@over_quic(V5, how=("fin", "reset", "stop"))
async def three_hundred_in_sequence(version: int, own: str, how: str) -> None:
    # [BQ-5] [BQ-30] [BQ-32] [BQ-33]
    async with dial(version) as client:
        await client.open(own)
        for n in range(IN_SEQUENCE):
            stream = client.stream()
            await stream.publish(own, b"%d" % n)
            match how:
                case "fin":
                    stream.send(fin=True)
                    expect(await stream.end(), FIN, "end of the stream")
                case "reset":
                    stream.reset(n)
                    await stream.end()
                case "stop":
                    stream.stop(n)
                    expect(await stream.end(), End("reset", n), "end of the stream")
                    stream.send(fin=True)
        await client.quiet()


@over_quic(V5)
async def more_than_there_is_room_for(version: int, own: str) -> None:
    """Those that wait for credit get it as others end."""
    # [BQ-5]
    async with dial(version) as client:
        await client.open(own)
        streams = [client.stream() for _ in range(2 * IN_SEQUENCE)]
        for stream in streams:
            stream.send(wire.publish(version, own, b"", qos=1, packet_id=1), fin=True)
        for stream in streams:
            await stream.receive(wire.PUBACK, 1)
            expect(await stream.end(), FIN, "end of the stream")
