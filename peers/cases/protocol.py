"""Hand-made packets: flow control, aliases towards the client, timeouts, and what a client must not do."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping

import wire
from raw_client import RawClient, pass_time
from suite import CLOCK_GRAIN, KEEP_ALIVE_SLACK, Case, Mismatch, expect, require
from wire import V5, V31, V311

# Bodies with their versions and their known differences.
_bodies: list[tuple[Callable[[Wire], None], tuple[int, ...], Mapping[str, str]]] = []

NAMES = {V31: "v3.1", V311: "v3.1.1", V5: "v5"}
MALFORMED_PACKET, PROTOCOL_ERROR, UNSUPPORTED_VERSION, KEEP_ALIVE_TIMEOUT = 0x81, 0x82, 0x84, 0x8D
TOPIC_FILTER_INVALID, PACKET_ID_NOT_FOUND, RECEIVE_MAXIMUM_EXCEEDED, TOPIC_ALIAS_INVALID = 0x8F, 0x92, 0x93, 0x94


class Wire:
    """The axes of one case: a transport, a version, and names of its own."""

    def __init__(self, transport: str, version: int, label: str) -> None:
        self.transport, self.version = transport, version
        # The process id keeps a Session of an earlier run at the same broker out.
        self.label = f"raw{os.getpid()}-{transport}-{version}-{label}"

    def client(self, version: int | None = None) -> RawClient:
        """A dialled connection on which nothing was sent yet."""
        return RawClient(self.transport, version or self.version)

    def topic(self, leaf: str) -> str:
        """A topic of this case alone."""
        return f"{self.label}/{leaf}"


def protocol(
    *versions: int, known: Mapping[str, str] | None = None
) -> Callable[[Callable[[Wire], None]], Callable[[Wire], None]]:
    """Registers a case for these versions."""

    def register(body: Callable[[Wire], None]) -> Callable[[Wire], None]:
        _bodies.append((body, versions or (V31, V311, V5), known or {}))
        return body

    return register


def protocol_cases(*transports: str) -> list[Case]:
    """Every case of this module, over TCP and TLS or over these transports."""
    made = []
    for body, versions, known in _bodies:
        label = body.__name__.replace("_", "-")
        for transport, version in itertools.product(transports or ("tcp", "tls"), versions):
            on = Wire(transport, version, label)
            name = f"raw/{transport}/{NAMES[version]}/{label}"
            made.append(Case(name, lambda body=body, on=on: body(on), known))
    return made


def _closed_with(client: RawClient, version: int, *reasons: int) -> None:
    """The broker ends the connection; on v5 a DISCONNECT, if there is one, carries one of the reasons."""
    reason = client.closed_with()
    if version == V5 and reason is not None:
        require(reason in reasons, f"DISCONNECT reason {reason:#04x}, wanted one of {[hex(r) for r in reasons]}")


# === Connecting ===


@protocol(V5)
def unknown_protocol_version(on: Wire) -> None:
    # [MQTT-3.1.2-2] [MQTT3-3.1.2-2]
    with on.client() as client:
        client.send(wire.connect(6, on.label))
        connack = client.receive(wire.CONNACK)
        require(connack.reason in (UNSUPPORTED_VERSION, 1), f"CONNACK reason {connack.reason:#04x}")
        expect(client.next_packet(), None, "after the refusing CONNACK")


@protocol(V311, V5)
def unknown_protocol_name(on: Wire) -> None:
    # [MQTT-3.1.2-1]: may answer 0x84, must close
    with on.client() as client:
        client.send(wire.connect(on.version, on.label, name="MQTX"))
        packet = client.next_packet()
        if packet is not None:
            require(packet.kind == wire.CONNACK and packet.reason != 0, f"the broker answered {packet}")
            expect(client.next_packet(), None, "after the refusing CONNACK")


@protocol(V311)
def empty_client_id_needs_clean_session(on: Wire) -> None:
    # [MQTT3-3.1.3-8]
    with on.client() as client:
        client.send(wire.connect(V311, "", clean=False))
        expect(client.receive(wire.CONNACK).reason, 2, "CONNACK return code")
        expect(client.next_packet(), None, "after the refusing CONNACK")


@protocol()
def first_packet_must_be_connect(on: Wire) -> None:
    # [MQTT-3.1.0-1]
    with on.client() as client:
        client.send(wire.PINGREQ_BYTES)
        _closed_with(client, on.version, PROTOCOL_ERROR, MALFORMED_PACKET)


@protocol()
def second_connect_closes(on: Wire) -> None:
    # [MQTT-3.1.0-2]
    with on.client() as client:
        client.connect(on.label)
        client.send(wire.connect(on.version, on.label))
        _closed_with(client, on.version, PROTOCOL_ERROR)


@protocol()
def one_byte_at_a_time(on: Wire) -> None:
    flow = wire.connect(on.version, on.label) + wire.subscribe(on.version, 1, (on.topic("data"), 0))
    flow += wire.publish(on.version, on.topic("data"), b"slow")
    with on.client() as client:
        for byte in flow:
            client.send(bytes([byte]))
        expect(client.receive(wire.CONNACK).reason, 0, "CONNACK reason")
        # In any order: a PUBLISH may come before the SUBACK. (MQTT 5.0 section 3.8.4)
        answers = {packet.kind: packet for packet in (client.next_packet(), client.next_packet()) if packet}
        expect(sorted(answers), [wire.PUBLISH, wire.SUBACK], "packet types")
        expect(answers[wire.PUBLISH].payload, b"slow", "payload")


@protocol()
def everything_in_one_write(on: Wire) -> None:
    # A client may send before the CONNACK is in (MQTT 5.0 section 3.1.4, non-normative): every request in the
    # write is answered, without another byte from the client. Deliveries are not counted: none is promised.
    with on.client() as client:
        client.send(
            wire.connect(on.version, on.label),
            wire.subscribe(on.version, 1, (on.topic("data"), 0)),
            *(wire.publish(on.version, on.topic("data"), b"x", qos=1, packet_id=n) for n in range(1, 11)),
            wire.PINGREQ_BYTES,
        )
        due = [wire.CONNACK, wire.SUBACK, wire.PINGRESP, *[wire.PUBACK] * 10]
        expect(client.receive(wire.CONNACK).reason, 0, "CONNACK reason")
        due.remove(wire.CONNACK)
        while due:
            packet = client.next_packet()
            if packet is None:
                raise Mismatch(f"connection closed with answers of types {due} due")
            if packet.kind != wire.PUBLISH:
                require(packet.kind in due, f"packet type {packet.kind} answers nothing")
                due.remove(packet.kind)


@protocol()
def many_packets_in_one_write(on: Wire) -> None:
    # A client may send before the CONNACK is in (MQTT 5.0 section 3.1.4, non-normative).
    with on.client() as client:
        client.send(wire.connect(on.version, on.label), wire.subscribe(on.version, 1, (on.topic("data"), 1)))
        client.receive(wire.CONNACK)
        # Only what is published after the SUBACK is promised.
        client.receive(wire.SUBACK)
        client.send(
            *(wire.publish(on.version, on.topic("data"), bytes([n]), qos=1, packet_id=n) for n in range(1, 11)),
            wire.PINGREQ_BYTES,
        )
        seen = [client.next_packet() for _ in range(21)]
        payloads = [packet.payload for packet in seen if packet and packet.kind == wire.PUBLISH]
        acks = [packet.packet_id for packet in seen if packet and packet.kind == wire.PUBACK]
        expect(payloads, [bytes([n]) for n in range(1, 11)], "payloads in order")
        # [MQTT-4.6.0-2]
        expect(acks, list(range(1, 11)), "PUBACKs in order")


# === Keep Alive ===


@protocol()
def silent_client_is_closed(on: Wire) -> None:
    # [MQTT-3.1.2-22]
    with on.client(V311) as watcher, on.client() as silent:
        watcher.connect(f"{on.label}-w")
        watcher.subscribe((on.topic("will"), 0))
        silent.connect(on.label, keep_alive=1, will=(on.topic("will"), b"silent"))
        started = time.monotonic()
        _closed_with(silent, on.version, KEEP_ALIVE_TIMEOUT)
        waited = time.monotonic() - started
        bounds = (1.45 - CLOCK_GRAIN, 1.5 + KEEP_ALIVE_SLACK)
        require(bounds[0] <= waited <= bounds[1], f"closed after {waited:.2f} s, wanted 1.5 s")
        expect(watcher.receive(wire.PUBLISH).payload, b"silent", "Will Message of the silent client")


@protocol()
def a_ping_keeps_alive(on: Wire) -> None:
    with on.client() as pinging:
        pinging.connect(on.label, keep_alive=2)
        for _ in range(2):
            pass_time(2, f"{on.label}-t")
            pinging.quiet()


@protocol()
def keep_alive_zero_is_accepted(on: Wire) -> None:
    # [MQTT-3.1.2-22] binds non-zero values only
    with on.client() as lasting:
        lasting.connect(on.label, keep_alive=0)
        pass_time(2, f"{on.label}-t")
        lasting.quiet()


# === Flow control and acknowledgements ===


@protocol(V5, known={"mosquitto": "one PUBACK lets two messages go"})
def receive_maximum_of_the_client(on: Wire) -> None:
    # [MQTT-3.3.4-9]
    with on.client() as subscriber, on.client() as publisher:
        subscriber.connect(on.label, receive_maximum=2)
        subscriber.subscribe((on.topic("data"), 1))
        publisher.connect(f"{on.label}-p")
        for number in range(1, 6):
            publisher.send(wire.publish(V5, on.topic("data"), bytes([number]), qos=1, packet_id=number))
            expect(publisher.receive(wire.PUBACK).packet_id, number, "PUBACK")
        window = [subscriber.receive(wire.PUBLISH) for _ in range(2)]
        subscriber.quiet()
        for number in range(3, 6):
            subscriber.send(wire.acknowledge(wire.PUBACK, window.pop(0).packet_id))
            window.append(subscriber.receive(wire.PUBLISH))
            expect(window[-1].payload, bytes([number]), "next message after a PUBACK")
            subscriber.quiet()


@protocol(V5, known={"mosquitto": "does not enforce its own Receive Maximum"})
def receive_maximum_of_the_broker(on: Wire) -> None:
    # [MQTT-3.3.4-8]: QoS 2 without PUBREL fills the window; one more is 0x93
    with on.client() as client:
        connack = client.connect(on.label)
        window = connack.properties.get("receive_maximum", [65535])[0]
        require(window < 65535, "a Receive Maximum of 65535 can never be exceeded")
        everything = (wire.publish(V5, on.topic("x"), b"", qos=2, packet_id=n) for n in range(1, window + 2))
        client.send(*everything)
        _closed_with(client, V5, RECEIVE_MAXIMUM_EXCEEDED)


@protocol()
def qos2_repeated_is_delivered_once(on: Wire) -> None:
    # [MQTT-4.3.3-10]
    with on.client() as client:
        client.connect(on.label)
        client.subscribe((on.topic("data"), 0))
        for dup in (False, True):
            client.send(wire.publish(on.version, on.topic("data"), b"once", qos=2, packet_id=5, dup=dup))
        client.send(wire.acknowledge(wire.PUBREL, 5))
        # The delivery may come before, between or after the acknowledgements.
        kinds: list[int] = []
        while wire.PUBCOMP not in kinds or wire.PUBLISH not in kinds:
            packet = client.next_packet()
            if packet is None:
                raise Mismatch("connection closed before PUBCOMP and delivery")
            kinds.append(packet.kind)
        expect(kinds.count(wire.PUBREC), 2, "PUBRECs")
        expect(kinds.count(wire.PUBLISH), 1, "deliveries")
        client.quiet()


@protocol(V5, known={"mosquitto": "answers PUBREL for an unknown id with success"})
def pubrel_of_an_unknown_id(on: Wire) -> None:
    with on.client() as client:
        client.connect(on.label)
        client.send(wire.acknowledge(wire.PUBREL, 77))
        pubcomp = client.receive(wire.PUBCOMP)
        expect((pubcomp.packet_id, pubcomp.reason), (77, PACKET_ID_NOT_FOUND), "packet id and reason of the PUBCOMP")


@protocol()
def packet_ids_start_at_one(on: Wire) -> None:
    with on.client() as client:
        client.connect(on.label)
        client.subscribe((on.topic("data"), 1), packet_id=9)
        client.send(wire.publish(on.version, on.topic("data"), b"x", qos=1, packet_id=40))
        packets = [client.next_packet() for _ in range(2)]
        delivered = [packet.packet_id for packet in packets if packet and packet.kind == wire.PUBLISH]
        expect(delivered, [1], "packet id of the first delivery")


@protocol(V311, V5)
def inflight_comes_back_with_dup(on: Wire) -> None:
    # [MQTT-4.4.0-1]
    lasting = {"clean": False} | ({"session_expiry": 60} if on.version == V5 else {})
    with on.client() as first:
        first.connect(on.label, **lasting)
        first.subscribe((on.topic("data"), 1))
        first.send(wire.publish(on.version, on.topic("data"), b"again", qos=1, packet_id=3))
        sent = next(p for p in (first.next_packet(), first.next_packet()) if p and p.kind == wire.PUBLISH)
        expect(sent.dup, False, "DUP of the first delivery")
    with on.client() as second:
        expect(second.connect(on.label, **lasting).session_present, True, "Session Present")
        repeated = second.receive(wire.PUBLISH)
        expect((repeated.dup, repeated.packet_id, repeated.payload), (True, sent.packet_id, b"again"), "redelivery")
        second.send(wire.acknowledge(wire.PUBACK, repeated.packet_id))
        second.quiet()


@protocol(V311, V5)
def qos2_resumes_where_it_stood(on: Wire) -> None:
    # [MQTT-4.4.0-1]: the PUBLISH again before PUBREC, the PUBREL alone after it
    lasting = {"clean": False} | ({"session_expiry": 60} if on.version == V5 else {})
    with on.client() as first, on.client() as publisher:
        first.connect(on.label, **lasting)
        first.subscribe((on.topic("data"), 2))
        publisher.connect(f"{on.label}-p")
        publisher.send(wire.publish(on.version, on.topic("data"), b"exactly once", qos=2, packet_id=4))
        publisher.receive(wire.PUBREC)
        publisher.send(wire.acknowledge(wire.PUBREL, 4))
        publisher.receive(wire.PUBCOMP)
        sent = first.receive(wire.PUBLISH)
        expect((sent.qos, sent.dup), (2, False), "QoS and DUP of the first delivery")
    with on.client() as second:
        second.connect(on.label, **lasting)
        repeated = second.receive(wire.PUBLISH)
        expect((repeated.packet_id, repeated.dup), (sent.packet_id, True), "packet id and DUP of the redelivery")
        second.send(wire.acknowledge(wire.PUBREC, sent.packet_id))
        expect(second.receive(wire.PUBREL).packet_id, sent.packet_id, "packet id of the PUBREL")
    with on.client() as third:
        third.connect(on.label, **lasting)
        expect(third.receive(wire.PUBREL).packet_id, sent.packet_id, "packet id of the PUBREL after resume")
        third.send(wire.acknowledge(wire.PUBCOMP, sent.packet_id))
        third.quiet()


# === Topic Alias ===


@protocol(V5)
def topic_alias_towards_the_client(on: Wire) -> None:
    # [MQTT-3.1.2-26] [MQTT-3.1.2-27]: whether aliases are used is the broker's choice, within the maximum
    known: dict[int, str] = {}
    with on.client() as client:
        client.connect(on.label, topic_alias_maximum=1)
        client.subscribe((on.topic("+"), 0))
        for leaf in ("a", "b", "a", "b"):
            client.send(wire.publish(V5, on.topic(leaf), leaf.encode()))
            message = client.receive(wire.PUBLISH)
            alias = message.properties.get("topic_alias", [None])[0]
            require(alias in (None, 1), f"alias {alias}, allowed is 1")
            if alias and message.topic:
                known[alias] = message.topic
            expect(message.topic or known[alias], on.topic(leaf), "topic after resolving the alias")


@protocol(V5)
def no_alias_for_a_client_without(on: Wire) -> None:
    # [MQTT-3.1.2-27]
    with on.client() as client:
        client.connect(on.label)
        client.subscribe((on.topic("a"), 0))
        for _ in range(3):
            client.send(wire.publish(V5, on.topic("a"), b"x"))
            expect("topic_alias" in client.receive(wire.PUBLISH).properties, False, "alias present")


@protocol(V5)
def topic_alias_zero(on: Wire) -> None:
    # [MQTT-3.3.2-8]
    with on.client() as client:
        client.connect(on.label)
        client.send(wire.publish(V5, on.topic("a"), b"x", topic_alias=0))
        _closed_with(client, V5, TOPIC_ALIAS_INVALID, PROTOCOL_ERROR, MALFORMED_PACKET)


@protocol(V5)
def topic_alias_above_the_maximum(on: Wire) -> None:
    # [MQTT-3.3.2-9]
    with on.client() as client:
        granted = client.connect(on.label).properties.get("topic_alias_maximum", [0])[0]
        client.send(wire.publish(V5, on.topic("a"), b"x", topic_alias=granted + 1))
        _closed_with(client, V5, TOPIC_ALIAS_INVALID)


@protocol(V5)
def topic_alias_never_set(on: Wire) -> None:
    with on.client() as client:
        client.connect(on.label)
        client.send(wire.publish(V5, "", b"x", topic_alias=1))
        _closed_with(client, V5, PROTOCOL_ERROR, TOPIC_ALIAS_INVALID)


# === Malformed ===


@protocol()
def wildcard_in_a_topic_name(on: Wire) -> None:
    # [MQTT-3.3.2-2]
    with on.client() as client:
        client.connect(on.label)
        client.send(wire.publish(on.version, on.topic("+"), b"x"))
        _closed_with(client, on.version, 0x90, MALFORMED_PACKET, PROTOCOL_ERROR)


@protocol()
def qos_three(on: Wire) -> None:
    # [MQTT-3.3.1-4]
    with on.client() as client:
        client.connect(on.label)
        client.send(wire.publish(on.version, on.topic("a"), b"x", qos=3, packet_id=1))
        _closed_with(client, on.version, MALFORMED_PACKET, PROTOCOL_ERROR, 0x9B)


@protocol(V311, V5)
def subscribe_without_filter(on: Wire) -> None:
    # [MQTT-3.8.3-2]
    with on.client() as client:
        client.connect(on.label)
        client.send(wire.subscribe(on.version, 1))
        _closed_with(client, on.version, PROTOCOL_ERROR, MALFORMED_PACKET)


@protocol()
def filter_of_slashes(on: Wire) -> None:
    """A filter of 65,535 slashes is refused, and the broker lives on."""
    with on.client() as client:
        client.connect(on.label)
        client.send(wire.subscribe(on.version, 1, ("/" * 65535, 0)))
        packet = client.next_packet()
        if packet is not None and packet.kind == wire.SUBACK:
            require(packet.reasons[0] >= 0x80, f"SUBACK {packet.reasons} for 65,535 slashes")
    with on.client() as next_one:
        next_one.connect(on.label)
        next_one.quiet()


@protocol(V5, known={"mosquitto": "accepts No Local on a shared subscription"})
def no_local_on_a_shared_subscription(on: Wire) -> None:
    # [MQTT-3.8.3-4]
    with on.client() as client:
        client.connect(on.label)
        client.send(wire.subscribe(V5, 1, (f"$share/g/{on.topic('a')}", 4)))
        _closed_with(client, V5, PROTOCOL_ERROR)


@protocol(V5)
def a_bad_filter_among_good_ones(on: Wire) -> None:
    """Answered by its own reason code, or by closing: never granted."""
    with on.client() as client:
        client.connect(on.label)
        client.send(wire.subscribe(V5, 1, (on.topic("a"), 1), ("a/#/b", 1), (on.topic("b"), 0)))
        packet = client.next_packet()
        if packet is not None and packet.kind == wire.SUBACK:
            expect(packet.reasons, [1, TOPIC_FILTER_INVALID, 0], "SUBACK reason codes")
        elif packet is not None:
            require(packet.reason in (TOPIC_FILTER_INVALID, MALFORMED_PACKET), f"reason {packet.reason:#04x}")
