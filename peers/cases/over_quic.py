"""MQTT on one QUIC stream: any fragmentation, one application protocol, one stream."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

import wire
from quic_client import CONTROL_STREAM, QuicClient, dial
from raw_client import RawClient
from suite import Case, expect, require
from wire import V5, V31, V311

EVERY_BYTE = bytes(range(256))
MEGABYTE = EVERY_BYTE * 4096
# TLS alert no_application_protocol (120) as a QUIC CRYPTO_ERROR, RFC 9001 section 4.8.
NO_APPLICATION_PROTOCOL = 0x100 + 120
NAMES = {V31: "v3.1", V311: "v3.1.1", V5: "v5"}
KEEP_ALIVE_TIMEOUT, SESSION_TAKEN_OVER = 0x8D, 0x8E

_quic_cases: list[Case] = []


def over_quic(*versions: int, **axes: tuple[Any, ...]) -> Callable[..., Any]:
    """Registers a coroutine as a case for these versions and at most one further axis."""

    def register(body: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        label = body.__name__.replace("_", "-")
        axis, values = next(iter(axes.items()), ("", (None,)))
        for version in versions or (V31, V311, V5):
            for value in values:
                chosen = {axis: value} if axis else {}
                tail = f"-{axis}{value}" if axis else ""
                own = f"q{os.getpid()}-{version}-{label}{tail}"

                def run(version: int = version, own: str = own, chosen: dict[str, Any] = chosen) -> None:
                    asyncio.run(body(version, own, **chosen))

                _quic_cases.append(Case(f"quic/{NAMES[version]}/{label}{tail}", run))
        return body

    return register


def quic_cases() -> list[Case]:
    """Every case of this module."""
    return list(_quic_cases)


# === Round trips ===


async def _publish(client: QuicClient, topic: str, payload: bytes, qos: int) -> None:
    """The whole exchange of that QoS, from the sender's side."""
    client.send(wire.publish(client.version, topic, payload, qos=qos, packet_id=21))
    if qos == 1:
        expect((await client.receive(wire.PUBACK)).packet_id, 21, "PUBACK")
    if qos == 2:
        expect((await client.receive(wire.PUBREC)).packet_id, 21, "PUBREC")
        client.send(wire.acknowledge(wire.PUBREL, 21))
        expect((await client.receive(wire.PUBCOMP)).packet_id, 21, "PUBCOMP")


async def _delivery(client: QuicClient, qos: int) -> wire.Packet:
    """The whole exchange of that QoS, from the receiver's side."""
    message = await client.receive(wire.PUBLISH)
    expect(message.qos, qos, "QoS of the delivery")
    if qos == 1:
        client.send(wire.acknowledge(wire.PUBACK, message.packet_id))
    if qos == 2:
        client.send(wire.acknowledge(wire.PUBREC, message.packet_id))
        expect((await client.receive(wire.PUBREL)).packet_id, message.packet_id, "PUBREL")
        client.send(wire.acknowledge(wire.PUBCOMP, message.packet_id))
    return message


async def _round_trip(version: int, own: str, payload: bytes, qos: int) -> None:
    async with dial(version) as subscriber, dial(version) as publisher:
        await subscriber.open(f"{own}-s")
        await publisher.open(f"{own}-p")
        await subscriber.subscribe((own, qos))
        await _publish(publisher, own, payload, qos)
        message = await _delivery(subscriber, qos)
        require(message.payload == payload, f"payload differs ({len(message.payload)} of {len(payload)} bytes)")
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
            await _publish(client, f"{own}/there", EVERY_BYTE, qos)
            expect(other.receive(wire.PUBLISH).payload, EVERY_BYTE, "payload on TCP")
            other.send(wire.publish(V311, f"{own}/back", EVERY_BYTE, qos=2, packet_id=1))
            other.receive(wire.PUBREC)
            other.send(wire.acknowledge(wire.PUBREL, 1))
            other.receive(wire.PUBCOMP)
            expect((await _delivery(client, qos)).payload, EVERY_BYTE, "payload on QUIC")


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
        seen = [await client.next_packet() for _ in range(21)]
        payloads = [packet.payload for packet in seen if packet and packet.kind == wire.PUBLISH]
        expect(payloads, [bytes([number]) for number in range(1, 11)], "payloads in order")


@over_quic()
async def one_packet_over_many_frames(version: int, own: str) -> None:
    async with dial(version) as client:
        for byte in wire.connect(version, own) + wire.subscribe(version, 1, (own, 0)):
            client.send(bytes([byte]))
        await client.receive(wire.CONNACK)
        await client.receive(wire.SUBACK)
        for byte in wire.publish(version, own, b"slow"):
            client.send(bytes([byte]))
            # A round trip for each byte: every one is decoded alone.
            await client.ping()
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
    def reset(client: QuicClient) -> None:
        client._quic.reset_stream(CONTROL_STREAM, 0)  # noqa: SLF001 - aioquic's only way to reset
        client.transmit()

    await _will_when(version, own, reset)


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
    async with dial(version, alpn="h3", wait=False) as client:
        ended = await client.termination()
        expect(ended.error_code, NO_APPLICATION_PROTOCOL, f"error code ({ended.reason_phrase})")


@over_quic(V5, name=("127.0.0.1", "localhost"))
async def server_name(version: int, own: str, name: str) -> None:
    """An IP address has no place in SNI (RFC 6066 section 3), but clients put it there."""
    async with dial(version, server_name=name) as client:
        await client.open(own)
        await client.quiet()


@over_quic()
async def second_stream_is_refused(version: int, own: str) -> None:
    async with dial(version) as client:
        await client.open(own)
        stream = client.new_stream()
        expect(stream, 4, "second bidirectional stream")
        client.send(wire.subscribe(version, 1, (own, 0)), stream=stream)
        await client.refusal(stream)
        await client.subscribe((own, 0), packet_id=2)
        await _publish(client, own, b"alive", 0)
        expect((await _delivery(client, 0)).payload, b"alive", "payload on the first stream")


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
