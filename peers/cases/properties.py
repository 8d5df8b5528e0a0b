"""MQTT 5.0 properties that a message carries from publisher to subscriber."""

from __future__ import annotations

import time

from raw_client import pass_time
from stage import QOS, TIMED, V5_ONLY, Stage, scenario
from suite import expect, require

NO_MATCHING_SUBSCRIBERS = 0x10


@scenario(versions=V5_ONLY, qos=QOS)
def properties_pass_through(stage: Stage, qos: int) -> None:
    # [MQTT-3.3.2-17] [MQTT-3.3.2-18]: user properties unaltered and in order
    publisher, subscriber = stage.client("pub"), stage.client("sub")
    subscriber.subscribe((stage.topic("data"), qos))
    pairs = [("b", "1"), ("a", "2"), ("b", "3"), ("", ""), ("\u00fc", "\U0001f41d")]
    values = {
        "UserProperty": pairs,
        "ResponseTopic": stage.topic("answer"),
        "CorrelationData": bytes(range(256)),
        "ContentType": "application/json",
        "PayloadFormatIndicator": 1,
    }
    publisher.publish(stage.topic("data"), b"{}", qos, **values)
    found = subscriber.message().properties
    for name, wanted in values.items():
        expect(getattr(found, name, None), wanted, name)


@scenario(versions=V5_ONLY)
def request_and_response(stage: Stage) -> None:
    asking, answering = stage.client("asking"), stage.client("answering")
    answering.subscribe((stage.topic("ask"), 1))
    asking.subscribe((stage.topic("answer"), 1))
    asking.publish(stage.topic("ask"), b"2+2", 1, ResponseTopic=stage.topic("answer"), CorrelationData=b"\0\xff")
    question = answering.message("request").properties
    answering.publish(question.ResponseTopic, b"4", 1, CorrelationData=question.CorrelationData)
    answer = asking.message("response")
    expect((answer.payload, answer.properties.CorrelationData), (b"4", b"\0\xff"), "response")


@scenario(versions=V5_ONLY, transports=TIMED)
def expiry_counts_down(stage: Stage) -> None:
    # [MQTT-3.3.2-6]
    absent = stage.persistent("sub", clean=True)
    absent.connect()
    absent.subscribe((stage.topic("data"), 1))
    absent.disconnect()
    stage.client("pub").publish(stage.topic("data"), b"fresh", 1, MessageExpiryInterval=100)
    gone = time.monotonic()
    pass_time(2, stage.client_id("clock"))
    back = stage.persistent("sub")
    back.connect()
    left = back.message("offline message").properties.MessageExpiryInterval
    waited = time.monotonic() - gone
    require(100 - waited - 1 <= left <= 99, f"{left} s left of 100 after {waited:.1f} s")


@scenario(versions=V5_ONLY, transports=TIMED)
def expired_offline_message(stage: Stage) -> None:
    # [MQTT-3.3.2-5]
    absent = stage.persistent("sub", clean=True)
    absent.connect()
    absent.subscribe((stage.topic("data"), 1), (stage.topic("fence"), 1))
    absent.disconnect()
    publisher = stage.client("pub")
    publisher.publish(stage.topic("data"), b"short", 1, MessageExpiryInterval=1)
    publisher.publish(stage.topic("data"), b"long", 1)
    pass_time(2, stage.client_id("clock"))
    back = stage.persistent("sub")
    back.connect()
    seen = [message.payload for message in stage.fenced(publisher, back, 1)]
    expect(seen, [b"long"], "offline messages after the expiry of one")


@scenario(versions=V5_ONLY, transports=TIMED)
def expired_retained_message(stage: Stage) -> None:
    publisher, late = stage.client("pub"), stage.client("late")
    publisher.publish(stage.topic("data"), b"short", 1, retain=True, MessageExpiryInterval=1)
    pass_time(2, stage.client_id("clock"))
    late.subscribe((stage.topic("fence"), 1), (stage.topic("data"), 1))
    expect(stage.fenced(publisher, late, 1), [], "replay of an expired retained message")


@scenario(versions=V5_ONLY, qos=QOS)
def topic_alias_from_the_client(stage: Stage, qos: int) -> None:
    publisher, subscriber = stage.peer("pub"), stage.client("sub")
    _, granted = publisher.connect()
    require(getattr(granted, "TopicAliasMaximum", 0) >= 2, "the broker accepts no topic aliases")
    subscriber.subscribe((stage.topic("+"), qos))
    for alias, leaf in ((1, "a"), (2, "b"), (1, ""), (2, ""), (1, "c"), (1, "")):
        publisher.publish(stage.topic(leaf) if leaf else "", leaf.encode(), qos, TopicAlias=alias)
    seen = [subscriber.message() for _ in range(6)]
    expect([message.topic for message in seen], [stage.topic(leaf) for leaf in "ababcc"], "topics by alias")
    # [MQTT-3.3.2-7]: the publisher's alias stays on its connection
    require(not any(hasattr(message.properties, "TopicAlias") for message in seen), "an alias that nobody allowed")


@scenario(versions=V5_ONLY, qos=(1, 2))
def no_matching_subscribers(stage: Stage, qos: int) -> None:
    reason = stage.client("pub").publish(stage.topic("nobody"), b"x", qos)
    require(reason.value in (0, NO_MATCHING_SUBSCRIBERS), f"reason {reason} for a message without subscriber")


@scenario(versions=V5_ONLY)
def assigned_client_id(stage: Stage) -> None:
    # [MQTT-3.1.3-7]
    ids = set()
    for role in ("one", "two"):
        _, granted = stage.peer(role, client_id="").connect()
        ids.add(granted.AssignedClientIdentifier)
    expect(len(ids), 2, "different assigned client ids")


@scenario(versions=("v3.1.1",))
def empty_client_id(stage: Stage) -> None:
    # [MQTT3-3.1.3-6]
    both = stage.client("both", client_id="")
    both.subscribe((stage.topic("data"), 1))
    both.publish(stage.topic("data"), b"x", 1)
    expect(both.message().payload, b"x", "payload")


@scenario(versions=V5_ONLY)
def maximum_packet_size(stage: Stage) -> None:
    # [MQTT-3.1.2-24] [MQTT-3.1.2-25]: too large is as if delivered
    small = stage.client("small", connect_properties={"MaximumPacketSize": 200})
    publisher, witness = stage.client("pub"), stage.client("witness")
    for subscriber in (small, witness):
        subscriber.subscribe((stage.topic("data"), 1), (stage.topic("fence"), 1))
    for size in (50, 500, 51):
        publisher.publish(stage.topic("data"), b"." * size, 1)
    publisher.publish(stage.topic("fence"), b"fence", 1)
    sizes = [[len(message.payload) for message in one.until(stage.topic("fence"))] for one in (witness, small)]
    expect(sizes, [[50, 500, 51], [50, 51]], "payload sizes without and with a Maximum Packet Size")
