"""msquic, the library under EMQX's clients: streams, priorities, 0-RTT, another port, and how connections end."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import wire
from endpoint import HOST, endpoint
from msquic_relay import Relay
from raw_client import RawClient
from suite import Case, expect, require
from wire import V5

MEGABYTE = bytes(range(256)) * 4096
# Publications of a megabyte that wait for the link.
BULK = 16
_cases: list[Case] = []


def _case(*options: str) -> Callable[[Callable[[Relay, str], None]], Callable[[Relay, str], None]]:
    """Registers a case with a relay of its own, whose transport has the name of the case."""

    def register(body: Callable[[Relay, str], None]) -> Callable[[Relay, str], None]:
        name = body.__name__.replace("_", "-")

        def run() -> None:
            with Relay(name, *options) as relay:
                body(relay, name)

        _cases.append(Case(f"msquic/{name}", run))
        return body

    return register


def msquic_cases() -> list[Case]:
    """Every case of this module."""
    return list(_cases)


def _client(client_id: str) -> Any:
    """Facts of a connection from the API."""
    with urlopen(f"http://{HOST}:{endpoint('http').port}/api/v1/clients/{quote(client_id)}", timeout=8) as answer:
        return json.load(answer)


def _publish(client: RawClient, topic: str, payload: bytes, packet_id: int) -> None:
    client.send(wire.publish(V5, topic, payload, qos=1, packet_id=packet_id))


@_case("--streams", "topic")
def a_stream_for_each_topic(relay: Relay, name: str) -> None:
    # [BQ-1] [BQ-10]
    with RawClient(name) as client:
        client.connect(name)
        for number in range(1, 6):
            _publish(client, f"{name}/{number}", b"x", number)
            expect(client.receive(wire.PUBACK).packet_id, number, "packet id")
        found = _client(name)
        expect((found["transport"], found["streams"]), ("quic", 6), "transport and streams")


@_case("--streams", "topic", "--urgent", "alarms/")
def an_urgent_topic_overtakes_bulk(relay: Relay, name: str) -> None:
    """Its stream does not wait for what was written before. That it has a priority does no harm; what it does is
    measured by the laboratory's `foreign`."""
    with RawClient() as watcher, RawClient(name) as client:
        watcher.connect(f"{name}-w")
        watcher.subscribe((f"+/{name}/#", 0))
        client.connect(name)
        # Streams are there before the bulk.
        for number, topic in enumerate(("bulk", "alarms"), start=1):
            _publish(client, f"{topic}/{name}/first", b"", number)
            client.receive(wire.PUBACK)
            watcher.receive(wire.PUBLISH)
        for number in range(BULK):
            _publish(client, f"bulk/{name}/first", MEGABYTE, 10 + number)
        _publish(client, f"alarms/{name}/first", b"urgent", 9)
        topics = [watcher.receive(wire.PUBLISH).topic for _ in range(BULK + 1)]
        require(topics[-1].startswith("bulk/"), "all of the bulk came before the alarm")


@_case("--ticket", str(Path(tempfile.mkdtemp(prefix="msquic-")) / "ticket"))
def zero_rtt(relay: Relay, name: str) -> None:
    """The second connection sends its CONNECT with its first packet."""
    # [BQ-60]
    for attempt in ("false", "true"):
        with RawClient(name) as client:
            client.connect(name)
            expect(relay.told("connected"), f"resumed={attempt}", "resumption")
            expect(_client(name)["early"], attempt == "true", "early data accepted")
            client.quiet()


@_case()
def another_port_in_the_middle_of_a_message(relay: Relay, name: str) -> None:
    # [BQ-70]
    with RawClient() as watcher, RawClient(name) as client:
        watcher.connect(f"{name}-w")
        watcher.subscribe((name, 1))
        client.connect(name)
        whole = wire.publish(V5, name, MEGABYTE, qos=1, packet_id=1)
        client.send(whole[: len(whole) // 2])
        port = relay.move(len(whole) // 2)
        client.send(whole[len(whole) // 2 :])
        expect(client.receive(wire.PUBACK).packet_id, 1, "packet id")
        expect(watcher.receive(wire.PUBLISH).payload, MEGABYTE, "payload")
        client.quiet()
        expect(_client(name)["address"], f"{HOST}:{port}", "address at the broker")


@_case()
def another_port_while_nothing_is_sent(relay: Relay, name: str) -> None:
    """Deliveries come to the new port after one packet from there."""
    # [BQ-70]
    with RawClient() as publisher, RawClient(name) as client:
        publisher.connect(f"{name}-p")
        client.connect(name)
        client.subscribe((name, 0))
        relay.move()
        client.quiet()
        publisher.send(wire.publish(V5, name, MEGABYTE))
        expect(client.receive(wire.PUBLISH).payload, MEGABYTE, "payload")


@_case()
def closed_in_order(relay: Relay, name: str) -> None:
    """DISCONNECT is read although the connection ends behind it: there is no Will."""
    with RawClient() as watcher, RawClient(name) as client:
        watcher.connect(f"{name}-w")
        watcher.subscribe((f"{name}/#", 0))
        client.connect(name, will=(f"{name}/will", b""))
        client.send(wire.publish(V5, f"{name}/last", MEGABYTE), wire.disconnect())
        client.abandon()
        expect(watcher.receive(wire.PUBLISH).payload, MEGABYTE, "payload")
        relay.told("ended")
        watcher.quiet()


@_case()
def taken_over(relay: Relay, name: str) -> None:
    """The first connection of a client identifier is told why it ends."""
    with RawClient(name) as first, RawClient(name) as second:
        first.connect(name)
        second.connect(name)
        expect(first.closed_with(), 0x8E, "DISCONNECT reason")
        second.quiet()
