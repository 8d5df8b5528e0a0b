"""Shared subscriptions: each message once to each group."""

from __future__ import annotations

import itertools

from paho_client import PahoPeer
from stage import QOS, SINCE_V311, Stage, scenario
from suite import expect, require

COUNT = 40


def _members(stage: Stage, group: str, qos: int) -> list[PahoPeer]:
    members = [stage.client(f"{group}{number}") for number in (1, 2)]
    for member in members:
        member.subscribe((stage.topic("fence"), qos), (f"$share/{group}/{stage.topic('data')}", qos))
    return members


def _publish(stage: Stage, publisher: PahoPeer, qos: int) -> list[bytes]:
    payloads = [f"{number:03}".encode() for number in range(COUNT)]
    for payload in payloads:
        publisher.publish(stage.topic("data"), payload, qos)
    publisher.publish(stage.topic("fence"), b"fence", qos)
    return payloads


def _received(stage: Stage, members: list[PahoPeer]) -> list[list[bytes]]:
    return [[message.payload for message in member.until(stage.topic("fence"))] for member in members]


@scenario(versions=SINCE_V311, qos=QOS)
def shared_each_once(stage: Stage, qos: int) -> None:
    members, whole = _members(stage, "g", qos), stage.client("whole")
    whole.subscribe((stage.topic("fence"), qos), (stage.topic("data"), qos))
    payloads = _publish(stage, stage.client("pub"), qos)
    first, second = _received(stage, members)
    expect(sorted(first + second), payloads, "messages of the group")
    require(bool(first) and bool(second), f"one member got all: {len(first)} and {len(second)}")
    expect(_received(stage, [whole]), [payloads], "messages of the ordinary subscriber")


@scenario(versions=SINCE_V311)
def shared_groups_are_apart(stage: Stage) -> None:
    groups = [_members(stage, name, 1) for name in ("a", "b")]
    payloads = _publish(stage, stage.client("pub"), 1)
    for members in groups:
        expect(sorted(itertools.chain(*_received(stage, members))), payloads, "messages of one group")


@scenario(versions=SINCE_V311)
def shared_without_a_member_that_left(stage: Stage) -> None:
    first, second = _members(stage, "g", 1)
    first.unsubscribe(f"$share/g/{stage.topic('data')}")
    payloads = _publish(stage, stage.client("pub"), 1)
    expect(_received(stage, [first, second]), [[], payloads], "messages after one unsubscribed")


@scenario(versions=SINCE_V311, known={"mosquitto": "replays retained messages to shared subscriptions"})
def shared_gets_no_retained(stage: Stage) -> None:
    # MQTT 5.0 section 4.8.2: retained messages are not sent to a Shared Subscription
    publisher = stage.client("pub")
    publisher.publish(stage.topic("data"), b"kept", 1, retain=True)
    member = _members(stage, "g", 1)[0]
    expect(stage.fenced(publisher, member, 1), [], "messages on subscribing")
