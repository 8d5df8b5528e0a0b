"""A client whose address changes: what a NAT does that has forgotten it."""

from __future__ import annotations

import asyncio
import socket

import wire
from endpoint import HOST, endpoint
from quic_case import over_quic
from quic_client import dial
from suite import expect, require
from wire import V5

MEGABYTE = bytes(range(256)) * 4096
# Seconds without a datagram after which the broker has nothing more to send: its first probes come after one.
SILENCE = 1.5


@over_quic()
async def in_the_middle_of_a_message_to_the_broker(version: int, own: str) -> None:
    # [BQ-70]
    async with dial(version, logged=True) as client:
        await client.open(own)
        stream, other = client.stream(), client.stream()
        await other.subscribe((own, 1))
        whole = wire.publish(version, own, MEGABYTE, qos=1, packet_id=1)
        stream.send(whole[: len(whole) // 2])
        before = client.local_port
        await client.rebind()
        require(client.local_port != before, "the port did not change")
        stream.send(whole[len(whole) // 2 :])
        await stream.receive(wire.PUBACK, 1)
        await other.delivery(MEGABYTE)
        # The broker has asked whether there is somebody at the new address.
        require(len(client.frames("path_challenge")) > 0, "the new address was not validated")  # [BQ-71]
        await client.quiet()


@over_quic()
async def in_the_middle_of_a_message_from_the_broker(version: int, own: str) -> None:
    # [BQ-70]
    async with dial(version, max_stream_data=64 * 1024) as client, dial(version) as publisher:
        await publisher.open(f"{own}-p")
        await client.open(own)
        stream = client.stream()
        await stream.subscribe((own, 1))
        release = client.hold_credit(stream)
        await publisher.control.publish(own, MEGABYTE)
        await client.quiet()
        await client.rebind()
        release()
        await stream.delivery(MEGABYTE)
        await client.quiet()


@over_quic(V5)
async def again_and_again(version: int, own: str) -> None:
    # [BQ-70]
    async with dial(version) as client:
        await client.open(own)
        streams = [client.stream() for _ in range(4)]
        for stream in streams:
            await stream.subscribe((f"{own}/{stream.id}", 2))
        ports = {client.local_port}
        for n in range(10):
            await client.rebind()
            ports.add(client.local_port)
            for stream in streams:
                await client.control.publish(f"{own}/{stream.id}", bytes([n]), 1)
                await stream.delivery(bytes([n]), 1)
        require(len(ports) > 5, f"the client had few ports: {ports}")
        expect([stream.waiting() for stream in streams], [0] * 4, "copies too many")


@over_quic(V5)
async def an_address_that_never_answers_gets_little(version: int, _own: str) -> None:
    # [BQ-71]
    async with dial(version) as client:
        # The Initial packet, once more and from elsewhere, after the broker has forgotten the connection it began.
        flight = client.datagrams[:1]
        client.close()
        await client.termination()
    sent, got = await asyncio.to_thread(_traffic, flight[0])
    require(0 < got <= 3 * sent, f"{got} bytes for {sent}")


def _traffic(datagram: bytes) -> tuple[int, int]:
    """Sends it until the broker answers; the bytes that went, and those that came until it fell silent."""
    sent = got = 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mute:
        mute.connect((HOST, endpoint("quic").port))
        mute.settimeout(SILENCE)
        while sent < 10 * len(datagram):
            sent += mute.send(datagram)
            try:
                while True:
                    got += len(mute.recv(2048))
            except TimeoutError:
                if got:
                    break
    return sent, got
