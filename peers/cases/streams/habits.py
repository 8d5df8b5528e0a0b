"""What the clients in the field do, done by hand: emqtt, and NanoNNG with its NanoMQ and NanoSDK."""

from __future__ import annotations

import random

import wire
from cases.streams.subscriptions import lasting, leave
from quic_case import over_quic
from quic_client import dial
from suite import expect
from wire import V5, V311


@over_quic(V311, V5)
async def emqtt(version: int, own: str) -> None:
    """One stream per logical id, packet ids counted for the client as a whole, answers expected where they belong.

    After a reconnect everything that is under way is repeated on the control stream, with DUP.
    """
    # [BQ-14] [BQ-20] [BQ-21] [BQ-42]
    async with dial(version) as watcher:
        await watcher.open(f"{own}-w")
        await watcher.subscribe((f"{own}/#", 2))
        under_way = {}
        async with dial(version) as client:
            await client.open(own, **lasting(version))
            streams = [client.control, *(client.stream() for _ in range(4))]
            for number in range(1, 16):
                stream, qos = streams[number % 5], number % 3
                packet = {"topic": f"{own}/{number % 5}", "payload": bytes([number]), "qos": qos, "packet_id": number}
                stream.send(wire.publish(version, **packet))
                if qos:
                    under_way[number] = packet
            # Of every exchange only the first answer was seen.
            for number, packet in under_way.items():
                await streams[number % 5].receive(wire.PUBREC if packet["qos"] == 2 else wire.PUBACK, number)
            client.close()
            await client.termination()
        async with dial(version) as client:
            expect((await client.open(own, **lasting(version))).session_present, True, "Session Present")
            for number, packet in under_way.items():
                client.send(wire.publish(version, dup=True, **packet))
            for number, packet in under_way.items():
                await client.control.receive(wire.PUBREC if packet["qos"] == 2 else wire.PUBACK, number)
            halves = [number for number, packet in under_way.items() if packet["qos"] == 2]
            for number in halves:
                client.send(wire.acknowledge(wire.PUBREL, number))
            for number in halves:
                await client.control.receive(wire.PUBCOMP, number)
            await leave(client)
        copies: dict[int, int] = {}
        # QoS 0 once, QoS 1 twice, QoS 2 once.
        for _ in range(5 + 10 + 5):
            message = await watcher.receive(wire.PUBLISH)
            copies[message.payload[0]] = copies.get(message.payload[0], 0) + 1
            if message.qos:
                watcher.send(wire.acknowledge(wire.PUBACK if message.qos == 1 else wire.PUBREC, message.packet_id))
        expect(copies, {number: 2 if number % 3 == 1 else 1 for number in range(1, 16)}, "copies of each")


@over_quic(V311, V5)
async def nanonng(version: int, own: str) -> None:
    """Five streams at once; PUBLISH on 3 or 4, SUBSCRIBE on 1 or 2, UNSUBSCRIBE and PINGREQ on the main one."""
    # [BQ-5] [BQ-11] [BQ-14] [BQ-15] [BQ-17] [BQ-20]
    dice = random.Random(own)
    async with dial(version) as client:
        main, streams = client.control, [client.stream() for _ in range(4)]
        client.send(wire.connect(version, own))
        await client.accepted()
        subscribed = {}
        for number in range(1, 9):
            stream, topic = dice.choice(streams[:2]), f"{own}/{number}"
            await stream.subscribe((topic, number % 3), packet_id=number)
            subscribed[topic] = (stream, number % 3)
        for number, (topic, (stream, qos)) in enumerate(subscribed.items(), 20):
            await dice.choice(streams[2:]).publish(topic, bytes([number]), number % 3, packet_id=number)
            await stream.delivery(bytes([number]), min(qos, number % 3))
            main.send(wire.PINGREQ_BYTES)
            await main.receive(wire.PINGRESP)
        for number, topic in enumerate(subscribed, 40):
            gone = [0] if version == V5 else []
            expect(list(await main.unsubscribe(topic, packet_id=number)), gone, "UNSUBACK on the main stream")
            await streams[2].publish(topic, b"gone", 1, packet_id=number)
        await client.quiet()
        expect([stream.waiting() for stream in streams], [0] * 4, "messages after UNSUBSCRIBE")
        await leave(client)


@over_quic(V5)
async def nanosdk(version: int, own: str) -> None:
    """One stream per topic, for both directions; UNSUBSCRIBE on the main one."""
    # [BQ-14] [BQ-15] [BQ-17]
    async with dial(version) as client:
        await client.open(own)
        topics = {f"{own}/{n}": client.stream() for n in range(20)}
        for n, (topic, stream) in enumerate(topics.items(), 1):
            await stream.subscribe((topic, 1), packet_id=n)
        for n, (topic, stream) in enumerate(topics.items(), 100):
            stream.send(wire.publish(version, topic, topic.encode(), qos=1, packet_id=n))
            seen = [await stream.receive_any() for _ in range(2)]
            expect({packet.kind for packet in seen}, {wire.PUBACK, wire.PUBLISH}, "answer and delivery")
        for n, topic in enumerate(topics, 200):
            expect(list(await client.control.unsubscribe(topic, packet_id=n)), [0], "UNSUBACK on the main stream")
        await client.quiet()
