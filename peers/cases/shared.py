"""Shared subscriptions: each message once to each group."""

from __future__ import annotations

import queue
import time

import paho.mqtt.client as paho

from paho_client import PahoPeer
from stage import QOS, SINCE_V311, Stage, scenario
from suite import WAIT, Mismatch, expect, take

COUNT = 40


class Group:
    """Two members of a shared subscription. Their messages come into one queue.

    Nothing orders the messages of a shared subscription and others: a group has all when their number is right.
    """

    def __init__(self, stage: Stage, name: str, qos: int) -> None:
        self._stage, self._qos = stage, qos
        self._arrived: queue.Queue[tuple[int, paho.MQTTMessage]] = queue.Queue()
        self.filter = f"$share/{name}/{stage.topic('data')}"
        self.members = [self._member(f"{name}{number}", number) for number in (0, 1)]

    def _member(self, role: str, number: int) -> PahoPeer:
        member = self._stage.client(role)
        member.client.on_message = lambda _c, _u, message: self._arrived.put((number, message))
        member.subscribe((self._stage.topic("fence"), self._qos), (self.filter, self._qos))
        return member

    def receive(self, count: int = COUNT) -> list[tuple[int, bytes]]:
        """The next messages, each with the number of its member."""
        arrived = [take(self._arrived, "message of a group") for _ in range(count)]
        return [(number, message.payload) for number, message in arrived]

    def end(self, publisher: PahoPeer) -> None:
        """Proves that nothing else comes."""
        publisher.publish(self._stage.topic("fence"), b"fence", self._qos)
        last = [payload for _, payload in self.receive(len(self.members))]
        expect(last, [b"fence"] * len(self.members), "messages of the group behind the last one")


def _publish(stage: Stage, publisher: PahoPeer, qos: int) -> list[bytes]:
    payloads = [f"{number:03}".encode() for number in range(COUNT)]
    for payload in payloads:
        publisher.publish(stage.topic("data"), payload, qos)
    return payloads


def _payloads(received: list[tuple[int, bytes]]) -> list[bytes]:
    return sorted(payload for _, payload in received)


@scenario(versions=SINCE_V311, qos=QOS)
def shared_each_once(stage: Stage, qos: int) -> None:
    group, whole, publisher = Group(stage, "g", qos), stage.client("whole"), stage.client("pub")
    whole.subscribe((stage.topic("fence"), qos), (stage.topic("data"), qos))
    payloads = _publish(stage, publisher, qos)
    expect(_payloads(group.receive()), payloads, "messages of the group")
    group.end(publisher)
    expect([message.payload for message in whole.until(stage.topic("fence"))], payloads, "of the ordinary subscriber")


@scenario(versions=SINCE_V311, qos=QOS)
def shared_by_all_members(stage: Stage, qos: int) -> None:
    group, publisher = Group(stage, "g", qos), stage.client("pub")
    # A member of another node takes its share from a short time after its SUBACK on.
    deadline, selected = time.monotonic() + WAIT, []
    while set(selected) != {0, 1}:
        if time.monotonic() > deadline:
            raise Mismatch(f"one member got all {len(selected)} messages")
        publisher.publish(stage.topic("data"), b"x", qos)
        selected.extend(number for number, _ in group.receive(1))


@scenario(versions=SINCE_V311)
def shared_groups_are_apart(stage: Stage) -> None:
    groups, publisher = [Group(stage, name, 1) for name in ("a", "b")], stage.client("pub")
    payloads = _publish(stage, publisher, 1)
    for group in groups:
        expect(_payloads(group.receive()), payloads, "messages of one group")


@scenario(versions=SINCE_V311)
def shared_without_a_member_that_left(stage: Stage) -> None:
    group, publisher = Group(stage, "g", 1), stage.client("pub")
    group.members[0].unsubscribe(group.filter)
    payloads = _publish(stage, publisher, 1)
    received = group.receive()
    expect(_payloads(received), payloads, "messages of the group")
    expect({number for number, _ in received}, {1}, "members after one unsubscribed")
    group.end(publisher)


@scenario(versions=SINCE_V311, known={"mosquitto": "replays retained messages to shared subscriptions"})
def shared_gets_no_retained(stage: Stage) -> None:
    # MQTT 5.0 section 4.8.2: retained messages are not sent to a Shared Subscription
    publisher = stage.client("pub")
    publisher.publish(stage.topic("data"), b"kept", 1, retain=True)
    Group(stage, "g", 1).end(publisher)
