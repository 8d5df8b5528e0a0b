"""How the connection ends: with its control stream, by the broker, or because no CONNECT came."""

from __future__ import annotations

import wire
from endpoint import SMALL, STRICT
from quic_case import over_quic
from quic_client import QuicClient, dial
from quic_stream import FIN
from suite import WAIT, expect, require
from wire import V5, V31

NORMAL, ABNORMAL = 0, 1
MALFORMED_PACKET, PROTOCOL_ERROR, KEEP_ALIVE_TIMEOUT, SESSION_TAKEN_OVER = 0x81, 0x82, 0x8D, 0x8E
# RFC 9000 section 20.1.
CONNECTION_REFUSED = 0x2
# What the settings of the strict broker give a CONNECT.
PATIENCE = 1.0


async def _with_will(client: QuicClient, own: str) -> QuicClient:
    await client.open(f"{own}-c", will=(f"{own}/will", b"gone"))
    return client


@over_quic()
async def disconnect(version: int, own: str) -> None:
    # [BQ-40]
    async with dial(version) as client, dial(version) as watcher:
        await watcher.open(f"{own}-w")
        await watcher.subscribe((f"{own}/will", 0))
        await _with_will(client, own)
        stream = client.stream()
        await stream.subscribe((own, 1))
        client.send(wire.disconnect())
        await client.closed_with(NORMAL)
        await watcher.quiet()


@over_quic(how=("fin", "reset", "stop"))
async def end_of_the_control_stream(version: int, own: str, how: str) -> None:
    # [BQ-40]
    async with dial(version) as client, dial(version) as watcher:
        await watcher.open(f"{own}-w")
        await watcher.subscribe((f"{own}/will", 0))
        await _with_will(client, own)
        stream = client.stream()
        await stream.subscribe((own, 1))
        match how:
            case "fin":
                client.send(fin=True)
            case "reset":
                client.control.reset(0)
            case "stop":
                client.control.stop(0)
        await client.closed_with(ABNORMAL)
        await watcher.control.delivery(b"gone", 0)


@over_quic()
async def close_by_the_client(version: int, own: str) -> None:
    # [BQ-40]
    async with dial(version) as watcher:
        await watcher.open(f"{own}-w")
        await watcher.subscribe((f"{own}/will", 0))
        async with dial(version) as client:
            await _with_will(client, own)
            client.stream().send(wire.publish(version, own, b"whole")[:-1])
            await client.round_trip()
        await watcher.control.delivery(b"gone", 0)


@over_quic()
async def take_over(version: int, own: str) -> None:
    # [BQ-41]
    async with dial(version, logged=True) as first, dial(version) as second:
        await first.open(own)
        streams = [first.stream() for _ in range(3)]
        for stream in streams:
            await stream.subscribe((own, 1))
        # One more that is within a packet.
        streams[0].send(wire.publish(version, own, b"whole")[:-1])
        await first.round_trip()
        await second.open(own)
        if version == V5:
            expect((await first.receive(wire.DISCONNECT)).reason, SESSION_TAKEN_OVER, "reason of DISCONNECT")
        for stream in (first.control, *streams):
            expect(await stream.stopped(), SESSION_TAKEN_OVER, f"code of STOP_SENDING on stream {stream.id}")
        expect(await first.control.end(), FIN, "end of the control stream")
        ended = await first.termination()
        require(ended.frame_type is None, f"closed by QUIC: {ended.error_code:#x} {ended.reason_phrase}")
        await second.quiet()
        await second.stream().publish(own, b"alive", 1)


@over_quic()
async def violation_on_the_control_stream(version: int, own: str) -> None:
    # [BQ-41]
    async with dial(version) as client:
        await client.open(own)
        stream = client.stream()
        await stream.subscribe((own, 1))
        client.send(wire.connect(version, own))
        if version == V5:
            expect((await client.receive(wire.DISCONNECT)).reason, PROTOCOL_ERROR, "reason of DISCONNECT")
        for one in (client.control, stream):
            expect(await one.stopped(), PROTOCOL_ERROR, f"code of STOP_SENDING on stream {one.id}")
        expect(await client.control.end(), FIN, "end of the control stream")
        await client.closed_with(ABNORMAL)


# === Signs of life ===


@over_quic()
async def bytes_on_a_data_stream_are_signs_of_life(version: int, own: str) -> None:
    """One packet that takes longer than the Keep Alive, byte by byte."""
    # [BQ-44]
    async with dial(version) as client:
        await client.open(own, keep_alive=1)
        stream = client.stream()
        packet = wire.publish(version, own, bytes(100), qos=1, packet_id=1)
        for byte in packet[:6]:
            stream.send(bytes([byte]))
            await client.lives_for(0.5)
        stream.send(packet[6:])
        await stream.receive(wire.PUBACK, 1)
        # And silence is not one.
        expect(await client.ended(), KEEP_ALIVE_TIMEOUT if version == V5 else None, "reason of DISCONNECT")


# === Without CONNECT ===


@over_quic(V5, what=("nothing", "half-connect", "data-streams", "uni-streams", "pinging"))
async def no_connect_in_time(version: int, own: str, what: str) -> None:
    # [BQ-6]
    async with dial(version, broker=STRICT) as client:
        begun = client.now()
        match what:
            case "half-connect":
                client.send(wire.connect(version, own)[:-1])
            case "data-streams":
                for _ in range(10):
                    client.stream().send(wire.subscribe(version, 1, (own, 0)))
            case "uni-streams":
                client.uni().send(wire.publish(version, own, b""))
            case "pinging":
                # QUIC's PING is no sign of life of MQTT.
                await client.round_trip()
        await client.closed_with(ABNORMAL)
        waited = client.now() - begun
        # The handshake was done before, so the broker's clock has a lead.
        require(PATIENCE / 2 < waited < PATIENCE + WAIT / 2, f"the broker waited {waited:.1f} s")


@over_quic(V31, V5)
async def another_packet_than_connect(version: int, own: str) -> None:
    # [BQ-3]
    async with dial(version) as client:
        client.send(wire.publish(version, own, b"first"))
        await client.ended()
        await client.closed_with(ABNORMAL)


@over_quic(V5)
async def no_room(version: int, own: str) -> None:
    """The small broker takes two connections."""
    # [BQ-7]
    async with dial(version, broker=SMALL) as first, dial(version, broker=SMALL) as second:
        await first.open(f"{own}-1")
        await second.open(f"{own}-2")
        async with dial(version, broker=SMALL, wait=False) as third:
            third.transmit()
            ended = await third.termination()
            expect((ended.error_code, ended.frame_type is None), (CONNECTION_REFUSED, False), "error code")
            expect(third.handshake, None, "handshake of the third")
        await first.quiet()
        second.send(wire.disconnect())
        await second.closed_with(NORMAL)
