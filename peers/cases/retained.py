"""Retained messages: set, replaced, replayed, cleared."""

from __future__ import annotations

from paho.mqtt.subscribeoptions import SubscribeOptions

from stage import QOS, V5_ONLY, Stage, scenario
from suite import expect


@scenario(qos=QOS)
def retained_replay(stage: Stage, qos: int) -> None:
    publisher, live = stage.client("pub"), stage.client("live")
    live.subscribe((stage.topic("data"), qos))
    for payload in (b"old", b"new"):
        publisher.publish(stage.topic("data"), payload, qos, retain=True)
        # [MQTT-3.3.1-12]: an established subscription sees the flag cleared
        message = live.message()
        expect((message.payload, message.retain), (payload, False), "live payload and RETAIN")
    late = stage.client("late")
    late.subscribe((stage.topic("fence"), qos), (stage.topic("data"), qos))
    message = late.message("retained message")
    expect((message.payload, message.retain, message.qos), (b"new", True, qos), "replayed payload, RETAIN, QoS")
    expect(stage.fenced(publisher, late, qos), [], "messages after the replay")


@scenario(qos=QOS)
def retained_clear(stage: Stage, qos: int) -> None:
    # [MQTT-3.3.1-6]: an empty retained PUBLISH removes, and is itself never stored [MQTT-3.3.1-7]
    publisher = stage.client("pub")
    publisher.publish(stage.topic("data"), b"there", 1, retain=True)
    publisher.publish(stage.topic("data"), b"", qos, retain=True)
    # One of QoS 0 has no acknowledgement: it is processed when this one is.
    publisher.publish(stage.topic("next"), b"", 1)
    late = stage.client("late")
    late.subscribe((stage.topic("fence"), qos), (stage.topic("data"), qos))
    expect(stage.fenced(publisher, late, qos), [], "messages on a cleared topic")


@scenario()
def retained_by_wildcard(stage: Stage) -> None:
    publisher = stage.client("pub")
    for leaf in ("a", "b/c", "b/d"):
        publisher.publish(stage.topic(leaf), leaf.encode(), 1, retain=True)
    late = stage.client("late")
    late.subscribe((stage.topic("#"), 1))
    seen = sorted(late.message("retained message").payload for _ in range(3))
    expect(seen, [b"a", b"b/c", b"b/d"], "retained messages under #")


@scenario()
def retained_survives_its_publisher(stage: Stage) -> None:
    publisher = stage.client("pub")
    publisher.publish(stage.topic("data"), b"left behind", 1, retain=True)
    publisher.disconnect()
    late = stage.client("late")
    late.subscribe((stage.topic("data"), 1))
    expect(late.message("retained message").payload, b"left behind", "payload")


@scenario(versions=V5_ONLY, handling=(0, 1, 2))
def retain_handling(stage: Stage, handling: int) -> None:
    # [MQTT-3.3.1-9] [MQTT-3.3.1-10] [MQTT-3.3.1-11]
    publisher, subscriber = stage.client("pub"), stage.client("sub")
    publisher.publish(stage.topic("data"), b"kept", 1, retain=True)
    subscriber.subscribe((stage.topic("fence"), 1))
    counts = []
    for _ in ("first", "again"):
        subscriber.subscribe((stage.topic("data"), SubscribeOptions(qos=1, retainHandling=handling)))
        counts.append(len(stage.fenced(publisher, subscriber, 1)))
    expect(counts, {0: [1, 1], 1: [1, 0], 2: [0, 0]}[handling], "replays on first and second SUBSCRIBE")


@scenario(versions=V5_ONLY, kept=(True, False))
def retain_as_published(stage: Stage, kept: bool) -> None:
    # [MQTT-3.3.1-12] [MQTT-3.3.1-13]
    publisher, subscriber = stage.client("pub"), stage.client("sub")
    subscriber.subscribe((stage.topic("data"), SubscribeOptions(qos=1, retainAsPublished=kept)))
    publisher.publish(stage.topic("data"), b"flagged", 1, retain=True)
    expect(subscriber.message().retain, kept, "RETAIN of a retained publish")
    publisher.publish(stage.topic("data"), b"plain", 1)
    expect(subscriber.message().retain, False, "RETAIN of a plain publish")
