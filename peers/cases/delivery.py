"""Publish and subscribe: bytes exact, in order, at the right QoS."""

from __future__ import annotations

from stage import QOS, Stage, scenario
from suite import expect, require

EVERY_BYTE = bytes(range(256))
MEGABYTE = EVERY_BYTE * 4096


def _round_trip(stage: Stage, payload: bytes, qos: int) -> None:
    subscriber, publisher = stage.client("sub"), stage.client("pub")
    expect(subscriber.subscribe((stage.topic("data"), qos)), [qos], "granted QoS")
    publisher.publish(stage.topic("data"), payload, qos)
    message = subscriber.message()
    require(message.payload == payload, f"payload differs ({len(message.payload)} of {len(payload)} bytes)")
    expect(message.topic, stage.topic("data"), "topic")
    expect((message.qos, message.retain, message.dup), (qos, False, False), "QoS, RETAIN and DUP")


@scenario(qos=QOS)
def round_trip(stage: Stage, qos: int) -> None:
    _round_trip(stage, EVERY_BYTE, qos)


@scenario(qos=QOS)
def empty_payload(stage: Stage, qos: int) -> None:
    _round_trip(stage, b"", qos)


def _large_over_websocket(transport: str, **_: object) -> dict[str, str]:
    return {"mosquitto": "stalls on a large message to a WebSocket subscriber"} if "ws" in transport else {}


@scenario(qos=QOS, known=_large_over_websocket)
def megabyte(stage: Stage, qos: int) -> None:
    _round_trip(stage, MEGABYTE, qos)


@scenario(qos=QOS)
def in_order(stage: Stage, qos: int) -> None:
    subscriber, publisher = stage.client("sub"), stage.client("pub")
    subscriber.subscribe((stage.topic("data"), qos))
    wanted = [str(number).encode() for number in range(15)]
    for payload in wanted:
        publisher.client.publish(stage.topic("data"), payload, qos)
    expect([subscriber.message().payload for _ in wanted], wanted, "order of payloads")


@scenario(qos=QOS, granted=QOS)
def lowest_qos_wins(stage: Stage, qos: int, granted: int) -> None:
    # [MQTT-3.8.4-8]
    subscriber, publisher = stage.client("sub"), stage.client("pub")
    subscriber.subscribe((stage.topic("data"), granted))
    publisher.publish(stage.topic("data"), b"x", qos)
    expect(subscriber.message().qos, min(qos, granted), "QoS of the delivery")


@scenario(qos=QOS)
def to_every_subscriber(stage: Stage, qos: int) -> None:
    subscribers = [stage.client(f"sub{number}") for number in range(5)]
    for subscriber in subscribers:
        subscriber.subscribe((stage.topic("data"), qos))
    stage.client("pub").publish(stage.topic("data"), b"for all", qos)
    for subscriber in subscribers:
        expect(subscriber.message().payload, b"for all", "payload")
