"""Filters, subscription options, Subscription Identifiers, unsubscribing."""

from __future__ import annotations

from paho.mqtt.subscribeoptions import SubscribeOptions

from stage import V5_ONLY, Stage, scenario
from suite import expect, require

NO_SUBSCRIPTION_EXISTED = 0x11


def _matching(stage: Stage, topic_filter: str, topics: list[str]) -> list[str]:
    """Which of the topics reach a subscriber of that filter."""
    publisher, subscriber = stage.client("pub"), stage.client("sub")
    subscriber.subscribe((stage.topic(topic_filter), 1), (stage.topic("fence"), 1))
    for leaf in topics:
        publisher.publish(stage.topic(leaf), b"x", 1)
    seen = [message.topic for message in stage.fenced(publisher, subscriber, 1)]
    return [leaf for leaf in topics if stage.topic(leaf) in seen]


@scenario()
def wildcard_of_one_level(stage: Stage) -> None:
    found = _matching(stage, "t/+/c", ["t/a/c", "t//c", "t/a", "t/a/b/c", "t/a/c/d"])
    expect(found, ["t/a/c", "t//c"], "topics under t/+/c")


@scenario()
def wildcard_of_many_levels(stage: Stage) -> None:
    # [MQTT-4.7.1-2]: # includes the parent level
    found = _matching(stage, "t/#", ["t", "t/a", "t/a/b", "t/", "tt", "u/t"])
    expect(found, ["t", "t/a", "t/a/b", "t/"], "topics under t/#")


@scenario()
def filters_are_case_sensitive(stage: Stage) -> None:
    expect(_matching(stage, "Town/Hall", ["Town/Hall", "town/hall", "Town/Hall/"]), ["Town/Hall"], "topics")


@scenario()
def sys_is_not_under_wildcards(stage: Stage) -> None:
    # [MQTT-4.7.2-1]
    reader, open_ended = stage.client("reader"), stage.client("open")
    open_ended.subscribe(("#", 0), ("+/broker/uptime", 0))
    reader.subscribe(("$SYS/broker/uptime", 0))
    reader.message("message on $SYS/broker/uptime")
    stage.client("pub").publish(stage.topic("fence"), b"x", 0)
    seen = {message.topic for message in open_ended.until(stage.topic("fence"))}
    require(not any(topic.startswith("$") for topic in seen), f"# or + matched {sorted(seen)}")


@scenario()
def sys_is_readable(stage: Stage) -> None:
    reader = stage.client("reader")
    reader.subscribe(("$SYS/broker/version", 0), ("$SYS/broker/uptime", 0))
    found = {}
    while len(found) < 2:
        message = reader.message("$SYS message")
        found[message.topic] = message.payload.decode()
    require(found["$SYS/broker/version"] != "", "an empty version")
    require(found["$SYS/broker/uptime"].split()[0].isdigit(), f"uptime is {found['$SYS/broker/uptime']!r}")


@scenario()
def unsubscribing(stage: Stage) -> None:
    # [MQTT-3.10.4-2]
    publisher, subscriber = stage.client("pub"), stage.client("sub")
    subscriber.subscribe((stage.topic("data"), 1), (stage.topic("fence"), 1))
    codes = subscriber.unsubscribe(stage.topic("data"), stage.topic("never"))
    if stage.version == "v5":
        expect(codes, [0, NO_SUBSCRIPTION_EXISTED], "UNSUBACK reason codes")
    publisher.publish(stage.topic("data"), b"x", 1)
    expect(stage.fenced(publisher, subscriber, 1), [], "messages after UNSUBSCRIBE")


@scenario()
def several_filters_in_one_packet(stage: Stage) -> None:
    # [MQTT-3.8.4-5] [MQTT-3.8.4-6]
    subscriber = stage.client("sub")
    granted = subscriber.subscribe(*((stage.topic(str(qos)), qos) for qos in (2, 0, 1)))
    expect(granted, [2, 0, 1], "granted QoS in the order asked")


@scenario()
def resubscribing_replaces(stage: Stage) -> None:
    # [MQTT-3.8.4-3]
    publisher, subscriber = stage.client("pub"), stage.client("sub")
    for qos in (2, 0):
        subscriber.subscribe((stage.topic("data"), qos))
    subscriber.subscribe((stage.topic("fence"), 1))
    publisher.publish(stage.topic("data"), b"x", 1)
    seen = stage.fenced(publisher, subscriber, 1)
    expect([message.qos for message in seen], [0], "QoS of the deliveries")


@scenario(versions=V5_ONLY, local=(True, False))
def no_local(stage: Stage, local: bool) -> None:
    # [MQTT-3.8.3-3]
    both, other = stage.client("both"), stage.client("other")
    both.subscribe((stage.topic("data"), SubscribeOptions(qos=1, noLocal=not local)), (stage.topic("fence"), 1))
    both.publish(stage.topic("data"), b"own", 1)
    other.publish(stage.topic("data"), b"other", 1)
    seen = [message.payload for message in stage.fenced(other, both, 1)]
    expect(seen, [b"own", b"other"] if local else [b"other"], "messages with and without No Local")


@scenario(versions=V5_ONLY)
def subscription_identifier(stage: Stage) -> None:
    # [MQTT-3.3.4-3]
    publisher, subscriber = stage.client("pub"), stage.client("sub")
    subscriber.subscribe((stage.topic("data"), 1), subscription_id=268_435_455)
    publisher.publish(stage.topic("data"), b"x", 1)
    expect(subscriber.message().properties.SubscriptionIdentifier, [268_435_455], "Subscription Identifier")


@scenario(versions=V5_ONLY)
def overlapping_identifiers(stage: Stage) -> None:
    # [MQTT-3.3.4-4] [MQTT-3.3.4-5]: one copy with all identifiers, or one copy each
    publisher, subscriber = stage.client("pub"), stage.client("sub")
    subscriber.subscribe((stage.topic("data"), 1), subscription_id=7)
    subscriber.subscribe((stage.topic("+"), 1), subscription_id=9)
    publisher.publish(stage.topic("data"), b"x", 1)
    copies = stage.fenced(publisher, subscriber, 1)
    found = sorted(number for copy in copies for number in copy.properties.SubscriptionIdentifier)
    expect(found, [7, 9], f"Subscription Identifiers over {len(copies)} copies")


def _first_filter_wins(version: str, **_: object) -> dict[str, str]:
    return {} if version == "v5" else {"mosquitto": "delivers once, at the QoS of the filter it meets first"}


@scenario(known=_first_filter_wins)
def overlapping_takes_the_highest_qos(stage: Stage) -> None:
    # [MQTT-3.3.4-2]
    publisher, subscriber = stage.client("pub"), stage.client("sub")
    subscriber.subscribe((stage.topic("data"), 0), (stage.topic("+"), 2))
    publisher.publish(stage.topic("data"), b"x", 2)
    copies = stage.fenced(publisher, subscriber, 2)
    require(bool(copies), "no delivery")
    expect(max(copy.qos for copy in copies), 2, "highest QoS")
