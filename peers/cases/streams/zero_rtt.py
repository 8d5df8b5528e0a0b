"""Early data (0-RTT): what may be in a first flight, and that a copy of one does nothing."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from aioquic.tls import SessionTicket

import wire
from cases.streams.subscriptions import leave
from endpoint import HOST, SMALL, STANDARD, STRICT, endpoint
from quic_case import over_quic
from quic_client import QuicClient, dial
from quic_stream import Stream
from suite import WAIT, Mismatch, expect, require
from wire import V5

IMPLEMENTATION_SPECIFIC = 0x83


async def _ticket(version: int, own: str, broker: str = STANDARD) -> SessionTicket:
    async with dial(version, broker=broker) as client:
        await client.open(own)
        ticket = await client.ticket()
        await leave(client)
        return ticket


def _early_data_accepted(client: QuicClient) -> bool:
    return client.handshake is not None and client.handshake.early_data_accepted


@over_quic()
async def connect_and_subscribe(version: int, own: str) -> None:
    # [BQ-60] [BQ-61]
    ticket = await _ticket(version, own)
    async with dial(version, ticket=ticket, wait=False) as client:
        release = client.hold_datagrams()
        stream = client.stream()
        client.send(wire.connect(version, own))
        stream.send(wire.subscribe(version, 1, (own, 0)))
        release()
        # Nothing but the first flight leaves, so the answers are to what was early.
        release = client.hold_datagrams()
        await client.accepted()
        await stream.receive(wire.SUBACK, 1)
        expect(_early_data_accepted(client), True, "early data accepted")
        release()
        await client.control.publish(own, b"later", 1)
        await stream.delivery(b"later", 0)


async def _early_publish(client: QuicClient, own: str, qos: int) -> tuple[Stream, Callable[[], None]]:
    """A first flight with CONNECT, SUBSCRIBE and a PUBLISH, of which the first two are answered.

    The stream of the PUBLISH, and what lets the client finish its handshake.
    """
    release = client.hold_datagrams()
    client.send(wire.connect(client.version, own))
    client.send(wire.subscribe(client.version, 1, (f"{own}/none", 0)))
    stream = client.stream()
    stream.send(wire.publish(client.version, own, b"early", qos=qos, packet_id=2))
    release()
    release = client.hold_datagrams()
    await client.accepted()
    await client.control.receive(wire.SUBACK, 1)
    expect(_early_data_accepted(client), True, "early data accepted")
    return stream, release


@over_quic(qos=(0, 1, 2))
async def publish_is_held_until_the_handshake_is_confirmed(version: int, own: str, qos: int) -> None:
    # [BQ-61]
    ticket = await _ticket(version, own)
    async with dial(version) as watcher, dial(version, ticket=ticket, wait=False) as client:
        await watcher.open(f"{own}-w")
        await watcher.subscribe((own, 0))
        stream, release = await _early_publish(client, own, qos)
        await watcher.quiet()
        release()
        if qos == 2:
            await stream.receive(wire.PUBREC, 2)
            stream.send(wire.acknowledge(wire.PUBREL, 2))
        await watcher.control.delivery(b"early", 0)
        if qos:
            await stream.receive(wire.PUBCOMP if qos == 2 else wire.PUBACK, 2)
        await watcher.quiet()


@over_quic()
async def publish_is_accepted_at_once(version: int, own: str) -> None:
    """The strict broker is told to."""
    # [BQ-61]
    ticket = await _ticket(version, own, STRICT)
    async with (
        dial(version, broker=STRICT) as watcher,
        dial(version, broker=STRICT, ticket=ticket, wait=False) as client,
    ):
        await watcher.open(f"{own}-w")
        await watcher.subscribe((own, 0))
        stream, release = await _early_publish(client, own, 1)
        await watcher.control.delivery(b"early", 0)
        release()
        await stream.receive(wire.PUBACK, 2)
        await watcher.quiet()


@over_quic(V5, qos=(1, 2))
async def publish_is_refused(version: int, own: str, qos: int) -> None:
    """The small broker is told to."""
    # [BQ-61]
    ticket = await _ticket(version, own, SMALL)
    async with dial(version, broker=SMALL, ticket=ticket, wait=False) as client:
        stream, release = await _early_publish(client, own, qos)
        release()
        answer = await stream.receive(wire.PUBREC if qos == 2 else wire.PUBACK, 2)
        expect(answer.reason, IMPLEMENTATION_SPECIFIC, "reason")
        # The same is welcome when it is early no more.
        await stream.publish(own, b"later", qos)
        await leave(client)


@over_quic()
async def a_ticket_is_good_once(version: int, own: str) -> None:
    # [BQ-60]
    ticket = await _ticket(version, own)
    async with dial(version) as watcher:
        await watcher.open(f"{own}-w")
        await watcher.subscribe((own, 0))
        for is_first in (True, False):
            async with dial(version, ticket=ticket, wait=False) as client:
                client.send(wire.connect(version, own), wire.publish(version, own, b"once", qos=1, packet_id=1))
                await client.accepted()
                await client.control.receive(wire.PUBACK, 1)
                expect(_early_data_accepted(client), is_first, "early data accepted")
                # aioquic sends again what was not taken.
                await watcher.control.delivery(b"once", 0)
        await watcher.quiet()


@over_quic()
async def the_next_ticket_is_another_one(version: int, own: str) -> None:
    # [BQ-60]
    ticket = await _ticket(version, own)
    for _ in range(3):
        async with dial(version, ticket=ticket, wait=False) as client:
            await client.open(own)
            ticket = await client.ticket()
            expect(_early_data_accepted(client), True, "early data accepted")


@over_quic()
async def a_copy_of_a_first_flight_does_nothing(version: int, own: str) -> None:
    """Sent to the broker that takes early PUBLISH at once. Its CONNECT would take the session over."""
    # [BQ-60]
    ticket = await _ticket(version, own, STRICT)
    async with dial(version, broker=STRICT) as watcher:
        await watcher.open(f"{own}-w")
        await watcher.subscribe((own, 0))
        async with dial(version, broker=STRICT, ticket=ticket, wait=False) as client:
            release = client.hold_datagrams()
            client.send(wire.connect(version, own), wire.publish(version, own, b"once", qos=1, packet_id=1))
            release()
            flight = list(client.datagrams)
            await client.accepted()
            expect(_early_data_accepted(client), True, "early data accepted")
            await watcher.control.delivery(b"once", 0)
            await leave(client)
        async with dial(version, broker=STRICT) as client:
            await client.open(own)
            await asyncio.to_thread(_answered, flight)
            await watcher.quiet()
            await client.quiet()


def _answered(flight: list[bytes]) -> None:
    """Sends the datagrams from another port until the broker answers: at first it may still remember the original."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as copy:
        copy.connect((HOST, endpoint("quic", STRICT).port))
        copy.settimeout(WAIT / 20)
        for _ in range(20):
            for datagram in flight:
                copy.send(datagram)
            try:
                require(len(copy.recv(2048)) > 0, "an empty datagram")
            except TimeoutError:
                continue
            return
    raise Mismatch(f"no answer to the copy of a first flight within {WAIT:g} s")
