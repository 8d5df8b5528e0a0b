"""Which packets go on which stream, and how they are cut into frames."""

from __future__ import annotations

import wire
from endpoint import STRICT
from quic_case import over_quic
from quic_client import dial
from suite import expect, require
from wire import V5, V311

EVERY_BYTE = bytes(range(256))
MEGABYTE = EVERY_BYTE * 4096
TOPIC_ALIAS_INVALID, PROTOCOL_ERROR = 0x94, 0x82


@over_quic(qos=(0, 1, 2))
async def each_stream_answers_for_itself(version: int, own: str, qos: int) -> None:
    """Four streams under way at once, each with the same packet ids, and each with its own answers."""
    # [BQ-2] [BQ-10] [BQ-11] [BQ-14] [BQ-15] [BQ-20]
    async with dial(version) as client:
        await client.open(own)
        streams = [client.stream() for _ in range(4)]
        for stream in streams:
            stream.send(wire.subscribe(version, 7, (f"{own}/{stream.id}", qos)))
        for stream in streams:
            expect((await stream.receive(wire.SUBACK, 7)).reasons, [qos], "SUBACK reason codes")
        writers = [client.stream() for _ in streams]
        for writer, stream in zip(writers, streams, strict=True):
            topic, payload = f"{own}/{stream.id}", bytes([writer.id])
            writer.send(wire.publish(version, topic, payload, qos=qos, packet_id=9))
        if qos == 2:
            for writer in writers:
                await writer.receive(wire.PUBREC, 9)
            for writer in reversed(writers):
                writer.send(wire.acknowledge(wire.PUBREL, 9))
        if qos:
            for writer in writers:
                await writer.receive(wire.PUBCOMP if qos == 2 else wire.PUBACK, 9)
        for writer, stream in zip(writers, streams, strict=True):
            await stream.delivery(bytes([writer.id]), qos)
        for stream in streams:
            expect(list(await stream.unsubscribe(f"{own}/{stream.id}")), [0] if version == V5 else [], "UNSUBACK")
        await client.quiet()
        expect([stream.waiting() for stream in streams + writers], [0] * 8, "packets too many")


@over_quic()
async def packets_in_single_bytes_and_many_in_one_frame(version: int, own: str) -> None:
    # [BQ-2]
    async with dial(version) as client:
        await client.open(own)
        slow, quick = client.stream(), client.stream()
        await slow.trickle(wire.subscribe(version, 1, (f"{own}/a", 1)))
        await slow.receive(wire.SUBACK, 1)
        packets = [wire.publish(version, f"{own}/a", bytes([n]), qos=1, packet_id=n) for n in range(1, 11)]
        quick.send(*packets, wire.subscribe(version, 11, (f"{own}/b", 0)), wire.unsubscribe(version, 12, f"{own}/b"))
        for n in range(1, 11):
            await quick.receive(wire.PUBACK, n)
        await quick.receive(wire.SUBACK, 11)
        await quick.receive(wire.UNSUBACK, 12)
        # Byte by byte on one stream while another has whole exchanges.
        message = wire.publish(version, f"{own}/a", b"slow", qos=2, packet_id=1)
        for n in range(1, 11):
            await slow.delivery(bytes([n]))
        for byte in message:
            slow.send(bytes([byte]))
            await quick.publish(f"{own}/b", b"between", 2)
        await slow.receive(wire.PUBREC, 1)
        slow.send(wire.acknowledge(wire.PUBREL, 1))
        seen = [await slow.next(), await slow.next()]
        kinds = {packet.kind for packet in seen if isinstance(packet, wire.Packet)}
        expect(kinds, {wire.PUBCOMP, wire.PUBLISH}, "the answer and the delivery")


@over_quic(qos=(0, 1, 2))
async def small_messages_pass_a_megabyte(version: int, own: str, qos: int) -> None:
    # [BQ-2] [BQ-15]
    async with dial(version) as client:
        await client.open(own)
        large, small, other = client.stream(), client.stream(), client.stream()
        await other.subscribe((f"{own}/large", qos))
        await client.subscribe((f"{own}/small", qos))
        whole = wire.publish(version, f"{own}/large", MEGABYTE, qos=qos, packet_id=1)
        large.send(whole[: len(whole) // 2])
        for n in range(10):
            await small.publish(f"{own}/small", bytes([n]), qos)
            await client.control.delivery(bytes([n]), qos)
        large.send(whole[len(whole) // 2 :])
        if qos == 1:
            await large.receive(wire.PUBACK, 1)
        if qos == 2:
            await large.receive(wire.PUBREC, 1)
            large.send(wire.acknowledge(wire.PUBREL, 1))
            await large.receive(wire.PUBCOMP, 1)
        await other.delivery(MEGABYTE, qos)


@over_quic()
async def pinging_on_a_data_stream(version: int, own: str) -> None:
    # [BQ-11]
    async with dial(version) as client:
        await client.open(own)
        stream = client.stream()
        for _ in range(3):
            stream.send(wire.PINGREQ_BYTES)
            await client.receive(wire.PINGRESP)
        await stream.publish(own, b"alive")
        expect(stream.waiting(), 0, "packets too many")


@over_quic()
async def retained_messages_go_to_the_stream_that_subscribes(version: int, own: str) -> None:
    # [BQ-15]
    async with dial(version) as client:
        await client.open(own)
        await client.control.publish(own, b"kept", retain=True)
        for stream in (client.stream(), client.stream()):
            await stream.subscribe((own, 1))
            await stream.delivery(b"kept")
        await client.quiet()
        await client.control.publish(own, b"", retain=True)


@over_quic(qos=(0, 1, 2))
async def one_filter_on_two_streams_is_two_copies(version: int, own: str, qos: int) -> None:
    # [BQ-16]
    async with dial(version) as client, dial(version) as publisher:
        await client.open(f"{own}-s")
        await publisher.open(f"{own}-p")
        first, second = client.stream(), client.stream()
        for stream in (first, second, client.control):
            await stream.subscribe((own, qos))
        # The same again on one of them replaces, as MQTT says.
        await second.subscribe((own, qos), packet_id=3)
        for n in range(3):
            await publisher.control.publish(own, bytes([n]), qos)
            for stream in (second, client.control, first):
                await stream.delivery(bytes([n]), qos)
        await client.quiet()
        expect([first.waiting(), second.waiting()], [0, 0], "copies too many")


@over_quic(V5)
async def overlapping_filters_of_one_stream_are_one_copy(version: int, own: str) -> None:
    """Before MQTT 5 a broker may send one for each."""
    # [BQ-16]
    async with dial(version) as client:
        await client.open(own)
        stream, other = client.stream(), client.stream()
        await stream.subscribe((f"{own}/#", 0), (f"{own}/+", 1))
        await other.publish(f"{own}/a", b"once")
        await stream.delivery(b"once")
        await other.publish(f"{own}/a", b"fence")
        await stream.delivery(b"fence")


@over_quic()
async def unsubscribing_from_another_stream(version: int, own: str) -> None:
    # [BQ-17]
    async with dial(version) as client:
        await client.open(own)
        stream, other = client.stream(), client.stream()
        await stream.subscribe((f"{own}/a", 1), (f"{own}/b", 1), (f"{own}/fence", 1))
        gone = [0] if version == V5 else []
        expect(list(await client.control.unsubscribe(f"{own}/a")), gone, "UNSUBACK on the control stream")
        expect(list(await other.unsubscribe(f"{own}/b")), gone, "UNSUBACK on another data stream")
        for leaf in ("a", "b", "fence"):
            await other.publish(f"{own}/{leaf}", leaf.encode())
        await stream.delivery(b"fence")
        if version == V5:
            expect(list(await other.unsubscribe(f"{own}/a")), [0x11], "the same again")


@over_quic(V311, V5)
async def unsubscribing_strictly(version: int, own: str) -> None:
    # [BQ-17]
    async with dial(version, broker=STRICT) as client:
        await client.open(own)
        stream, other = client.stream(), client.stream()
        await stream.subscribe((own, 1))
        for wrong in (client.control, other):
            expect(list(await wrong.unsubscribe(own)), [0x11] if version == V5 else [], "UNSUBACK on another stream")
        await other.publish(own, b"still")
        await stream.delivery(b"still")
        expect(list(await stream.unsubscribe(own, packet_id=3)), [0] if version == V5 else [], "UNSUBACK on its own")
        await other.publish(own, b"gone")
        await client.quiet()
        expect(stream.waiting(), 0, "messages after UNSUBSCRIBE")


@over_quic(V5)
async def aliases_of_the_client(version: int, own: str) -> None:
    # [BQ-18]
    async with dial(version) as client:
        await client.open(own)
        first, second, third = client.stream(), client.stream(), client.stream()
        await client.subscribe((f"{own}/#", 0))
        await client.control.publish(f"{own}/control", b"", 0, topic_alias=1)
        await first.publish(f"{own}/first", b"", 1, topic_alias=1)
        await first.publish("", b"", 1, topic_alias=1)
        await second.publish("", b"", 1, topic_alias=1)
        topics = [(await client.receive(wire.PUBLISH)).topic.removeprefix(own) for _ in range(4)]
        expect(topics, ["/control", "/first", "/first", "/control"], "topics")
        await first.publish(f"{own}/own", b"", 1, topic_alias=2)
        await client.receive(wire.PUBLISH)
        third.send(wire.publish(version, "", b"", qos=1, packet_id=1, topic_alias=2))
        end = await third.end()
        require(end.code in (TOPIC_ALIAS_INVALID, PROTOCOL_ERROR), f"an alias of another stream: {end}")
        await client.quiet()


@over_quic(V5)
async def aliases_of_the_broker(version: int, own: str) -> None:
    # [BQ-18]
    async with dial(version) as client:
        await client.open(own, topic_alias_maximum=10)
        stream = client.stream()
        await stream.subscribe((f"{own}/data", 1))
        await client.subscribe((f"{own}/control", 1))
        for n in range(3):
            await stream.publish(f"{own}/data", bytes([n]))
            expect("topic_alias" in (await stream.delivery(bytes([n]))).properties, False, "alias on a data stream")
        topics = []
        for n in range(2):
            await stream.publish(f"{own}/control", bytes([n]))
            message = await client.control.delivery(bytes([n]))
            topics.append((message.topic, message.properties.get("topic_alias")))
        expect(topics, [(f"{own}/control", [1]), ("", [1])], "aliases on the control stream")
