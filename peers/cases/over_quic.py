"""MQTT on one QUIC stream: any fragmentation, one application protocol, every ending."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import wire
from quic_case import over_quic
from quic_client import QuicClient, dial
from raw_client import RawClient
from suite import expect, require
from wire import V5, V311

EVERY_BYTE = bytes(range(256))
MEGABYTE = EVERY_BYTE * 4096
# TLS alert no_application_protocol (120) as a QUIC CRYPTO_ERROR, RFC 9001 section 4.8.
NO_APPLICATION_PROTOCOL = 0x100 + 120
KEEP_ALIVE_TIMEOUT, SESSION_TAKEN_OVER = 0x8D, 0x8E

# === Round trips ===


async def _round_trip(version: int, own: str, payload: bytes, qos: int) -> None:
    async with dial(version) as subscriber, dial(version) as publisher:
        await subscriber.open(f"{own}-s")
        await publisher.open(f"{own}-p")
        await subscriber.subscribe((own, qos))
        await publisher.control.publish(own, payload, qos)
        message = await subscriber.control.delivery(payload, qos)
        expect(message.topic, own, "topic")
        await subscriber.quiet()


@over_quic(qos=(0, 1, 2))
async def round_trip(version: int, own: str, qos: int) -> None:
    await _round_trip(version, own, EVERY_BYTE, qos)


@over_quic(qos=(0, 1, 2))
async def empty_payload(version: int, own: str, qos: int) -> None:
    await _round_trip(version, own, b"", qos)


@over_quic(qos=(0, 1, 2))
async def megabyte(version: int, own: str, qos: int) -> None:
    await _round_trip(version, own, MEGABYTE, qos)


@over_quic(qos=(0, 1, 2))
async def crossing_to_tcp_and_back(version: int, own: str, qos: int) -> None:
    async with dial(version) as client:
        await client.open(own)
        await client.subscribe((f"{own}/back", qos))
        with RawClient("tcp", V311) as other:
            # Blocking, but every wait of it is for an answer that the QUIC side has no part in.
            other.connect(f"{own}-t")
            other.subscribe((f"{own}/there", 0))
            await client.control.publish(f"{own}/there", EVERY_BYTE, qos)
            expect(other.receive(wire.PUBLISH).payload, EVERY_BYTE, "payload on TCP")
            other.send(wire.publish(V311, f"{own}/back", EVERY_BYTE, qos=2, packet_id=1))
            other.receive(wire.PUBREC)
            other.send(wire.acknowledge(wire.PUBREL, 1))
            other.receive(wire.PUBCOMP)
            await client.control.delivery(EVERY_BYTE, qos)


# === Packets and frames ===


@over_quic()
async def several_packets_in_one_frame(version: int, own: str) -> None:
    async with dial(version) as client:
        client.send(wire.connect(version, own), wire.subscribe(version, 1, (own, 0)))
        await client.receive(wire.CONNACK)
        # Only what is published after the SUBACK is promised.
        await client.receive(wire.SUBACK)
        client.send(
            *(wire.publish(version, own, bytes([number]), qos=1, packet_id=number) for number in range(1, 11)),
            wire.PINGREQ_BYTES,
        )
        seen = [await client.control.next() for _ in range(21)]
        packets = [packet for packet in seen if isinstance(packet, wire.Packet)]
        payloads = [packet.payload for packet in packets if packet.kind == wire.PUBLISH]
        expect(payloads, [bytes([number]) for number in range(1, 11)], "payloads in order")


@over_quic()
async def one_packet_over_many_frames(version: int, own: str) -> None:
    async with dial(version) as client:
        await client.control.trickle(wire.connect(version, own), wire.subscribe(version, 1, (own, 0)))
        await client.receive(wire.CONNACK)
        await client.receive(wire.SUBACK)
        await client.control.trickle(wire.publish(version, own, b"slow"))
        expect((await client.receive(wire.PUBLISH)).payload, b"slow", "payload")


@over_quic()
async def pinging(version: int, own: str) -> None:
    async with dial(version) as client:
        await client.open(own)
        for _ in range(3):
            await client.quiet()


# === Endings ===


@over_quic()
async def disconnect_ends_the_stream_without_will(version: int, own: str) -> None:
    with RawClient("tcp", V311) as watcher:
        watcher.connect(f"{own}-w")
        watcher.subscribe((f"{own}/will", 0))
        async with dial(version) as client:
            await client.open(own, will=(f"{own}/will", b"gone"))
            client.send(wire.disconnect())
            await client.ended()
        watcher.quiet()


async def _will_when(version: int, own: str, ending: Callable[[QuicClient], None]) -> None:
    with RawClient("tcp", V311) as watcher:
        watcher.connect(f"{own}-w")
        watcher.subscribe((f"{own}/will", 0))
        async with dial(version) as client:
            await client.open(own, will=(f"{own}/will", b"gone"))
            ending(client)
            packet = await asyncio.to_thread(watcher.receive, wire.PUBLISH)
            expect(packet.payload, b"gone", "Will Message")


@over_quic()
async def will_when_the_connection_closes(version: int, own: str) -> None:
    await _will_when(version, own, lambda client: client.close())


@over_quic()
async def will_when_the_stream_finishes(version: int, own: str) -> None:
    await _will_when(version, own, lambda client: client.send(fin=True))


@over_quic()
async def will_when_the_stream_is_reset(version: int, own: str) -> None:
    await _will_when(version, own, lambda client: client.control.reset(0))


@over_quic()
async def silent_client_is_closed(version: int, own: str) -> None:
    # [MQTT-3.1.2-22]
    async with dial(version) as client:
        await client.open(own, keep_alive=1)
        require(await client.ended() in (None, KEEP_ALIVE_TIMEOUT), "another reason than Keep Alive timeout")


@over_quic()
async def takeover(version: int, own: str) -> None:
    async with dial(version) as first, dial(version) as second:
        await first.open(own)
        await second.open(own)
        expect(await first.ended(), SESSION_TAKEN_OVER if version == V5 else None, "reason for the first")
        await second.quiet()


@over_quic(V311, V5)
async def session_moves_to_tcp(version: int, own: str) -> None:
    lasting = {"clean": False} | ({"session_expiry": 60} if version == V5 else {})
    async with dial(version) as client:
        await client.open(own, **lasting)
        await client.subscribe((own, 1))
        client.send(wire.disconnect())
        await client.ended()
    with RawClient("tcp", version) as publisher, RawClient("tcp", version) as resumed:
        publisher.connect(f"{own}-p")
        publisher.send(wire.publish(version, own, b"kept", qos=1, packet_id=1))
        publisher.receive(wire.PUBACK)
        expect(resumed.connect(own, **lasting).session_present, True, "Session Present")
        expect(resumed.receive(wire.PUBLISH).payload, b"kept", "offline message")


# === What is refused ===


@over_quic(V5)
async def wrong_alpn_is_refused(version: int, _own: str) -> None:
    # [BQ-1]
    async with dial(version, alpn="h3", wait=False) as client:
        client.transmit()
        ended = await client.termination()
        expect(ended.error_code, NO_APPLICATION_PROTOCOL, f"error code ({ended.reason_phrase})")


@over_quic(V5, name=("127.0.0.1", "localhost"))
async def server_name(version: int, own: str, name: str) -> None:
    """An IP address has no place in SNI (RFC 6066 section 3), but clients put it there."""
    # [BQ-1]
    async with dial(version, server_name=name) as client:
        await client.open(own)
        await client.quiet()


@over_quic(V5)
async def unknown_protocol_version(version: int, own: str) -> None:
    async with dial(version) as client:
        client.send(wire.connect(6, own))
        require((await client.receive(wire.CONNACK)).reason in (0x84, 1), "another reason than unsupported version")
        await client.ended()


@over_quic()
async def garbage_ends_one_connection_only(version: int, own: str) -> None:
    async with dial(version) as good, dial(version) as bad:
        await good.open(own)
        bad.send(b"GET / HTTP/1.1\r\n\r\n" * 10)
        await bad.ended()
        await good.quiet()
