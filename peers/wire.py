"""MQTT Control Packets made and read by hand, so that no library stands between a case and the bytes."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

V31, V311, V5 = 3, 4, 5

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = range(1, 8)
SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT, AUTH = range(8, 16)

PINGREQ_BYTES = bytes([PINGREQ << 4, 0])

# Property identifier -> name and type, MQTT 5.0 section 2.2.2.2.
PROPERTIES = {
    0x01: ("payload_format", "byte"),
    0x02: ("message_expiry", "u32"),
    0x03: ("content_type", "utf8"),
    0x08: ("response_topic", "utf8"),
    0x09: ("correlation_data", "binary"),
    0x0B: ("subscription_id", "varint"),
    0x11: ("session_expiry", "u32"),
    0x12: ("assigned_client_id", "utf8"),
    0x13: ("server_keep_alive", "u16"),
    0x15: ("authentication_method", "utf8"),
    0x16: ("authentication_data", "binary"),
    0x17: ("request_problem", "byte"),
    0x18: ("will_delay", "u32"),
    0x19: ("request_response", "byte"),
    0x1A: ("response_information", "utf8"),
    0x1C: ("server_reference", "utf8"),
    0x1F: ("reason_string", "utf8"),
    0x21: ("receive_maximum", "u16"),
    0x22: ("topic_alias_maximum", "u16"),
    0x23: ("topic_alias", "u16"),
    0x24: ("maximum_qos", "byte"),
    0x25: ("retain_available", "byte"),
    0x26: ("user_property", "pair"),
    0x27: ("maximum_packet_size", "u32"),
    0x28: ("wildcard_available", "byte"),
    0x29: ("subscription_id_available", "byte"),
    0x2A: ("shared_available", "byte"),
}
IDENTIFIERS = {name: (number, kind) for number, (name, kind) in PROPERTIES.items()}


@dataclass
class Packet:
    """One decoded Control Packet; fields that its type does not have keep their defaults."""

    kind: int
    flags: int = 0
    packet_id: int = 0
    topic: str = ""
    payload: bytes = b""
    reason: int = 0
    reasons: list[int] = field(default_factory=list)
    session_present: bool = False
    properties: dict[str, Any] = field(default_factory=dict)

    @property
    def qos(self) -> int:
        """The QoS of a PUBLISH."""
        return self.flags >> 1 & 3

    @property
    def dup(self) -> bool:
        """The DUP flag of a PUBLISH."""
        return bool(self.flags & 8)


# === encode ===


def varint(value: int) -> bytes:
    """A Variable Byte Integer."""
    out = bytearray()
    while True:
        value, digit = divmod(value, 128)
        out.append(digit | (128 if value else 0))
        if not value:
            return bytes(out)


def binary(value: bytes | str) -> bytes:
    """Two bytes of length, then the bytes."""
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("!H", len(raw)) + raw


def encode_properties(properties: dict[str, Any]) -> bytes:
    """The property block with its length; a list as value repeats the property."""
    out = b""
    for name, value in properties.items():
        number, kind = IDENTIFIERS[name]
        for one in value if isinstance(value, list) else [value]:
            out += bytes([number]) + _encode_value(kind, one)
    return varint(len(out)) + out


def _encode_value(kind: str, value: Any) -> bytes:
    if kind == "pair":
        return binary(value[0]) + binary(value[1])
    if kind == "varint":
        return varint(value)
    if kind in ("utf8", "binary"):
        return binary(value)
    return struct.pack({"byte": "!B", "u16": "!H", "u32": "!I"}[kind], value)


def packet(kind: int, flags: int, body: bytes) -> bytes:
    """Fixed header and body."""
    return bytes([kind << 4 | flags]) + varint(len(body)) + body


def connect(
    version: int,
    client_id: str,
    *,
    clean: bool = True,
    keep_alive: int = 60,
    will: tuple[str, bytes] | None = None,
    will_delay: int = 0,
    name: str | None = None,
    login: tuple[str, str] | None = None,
    **properties: Any,
) -> bytes:
    """A CONNECT; `will` is topic and payload at QoS 0, `will_delay` is v5's, `name` overrides the protocol name.

    `login` is user and password.
    """
    head = binary(name or ("MQIsdp" if version == V31 else "MQTT"))
    flags = (2 if clean else 0) | (4 if will else 0) | (0xC0 if login else 0)
    body = head + struct.pack("!BBH", version, flags, keep_alive)
    if version >= V5:
        body += encode_properties(properties)
    body += binary(client_id)
    if will:
        body += encode_properties({"will_delay": will_delay}) if version >= V5 else b""
        body += binary(will[0]) + binary(will[1])
    return packet(CONNECT, 0, body + b"".join(binary(one) for one in login or ()))


def publish(
    version: int,
    topic: str,
    payload: bytes,
    *,
    qos: int = 0,
    packet_id: int = 0,
    retain: bool = False,
    dup: bool = False,
    **properties: Any,
) -> bytes:
    """A PUBLISH."""
    body = binary(topic)
    if qos:
        body += struct.pack("!H", packet_id)
    if version >= V5:
        body += encode_properties(properties)
    return packet(PUBLISH, (8 if dup else 0) | qos << 1 | retain, body + payload)


def subscribe(version: int, packet_id: int, *filters: tuple[str, int], **properties: Any) -> bytes:
    """A SUBSCRIBE of (filter, options) pairs."""
    body = struct.pack("!H", packet_id)
    if version >= V5:
        body += encode_properties(properties)
    return packet(SUBSCRIBE, 2, body + b"".join(binary(one) + bytes([options]) for one, options in filters))


def unsubscribe(version: int, packet_id: int, *filters: str) -> bytes:
    """An UNSUBSCRIBE."""
    body = struct.pack("!H", packet_id) + (encode_properties({}) if version >= V5 else b"")
    return packet(UNSUBSCRIBE, 2, body + b"".join(binary(one) for one in filters))


def acknowledge(kind: int, packet_id: int) -> bytes:
    """A PUBACK, PUBREC, PUBREL or PUBCOMP without reason code: success in every version."""
    return packet(kind, 2 if kind == PUBREL else 0, struct.pack("!H", packet_id))


def disconnect() -> bytes:
    """A normal DISCONNECT, the same bytes in every version."""
    return packet(DISCONNECT, 0, b"")


# === decode ===


class Decoder:
    """Turns bytes in any fragmentation into packets of one protocol version."""

    def __init__(self, version: int) -> None:
        self._version = version
        self._bytes = bytearray()

    def feed(self, chunk: bytes) -> list[Packet]:
        """Every packet that became complete with this chunk."""
        self._bytes += chunk
        packets = []
        while (end := self._end_of_first()) is not None:
            start, stop = end
            packets.append(self._decode(self._bytes[0], bytes(self._bytes[start:stop])))
            del self._bytes[:stop]
        return packets

    def _end_of_first(self) -> tuple[int, int] | None:
        length = 0
        for place, byte in enumerate(self._bytes[1:5]):
            length |= (byte & 127) << 7 * place
            if byte < 128:
                stop = place + 2 + length
                return (place + 2, stop) if len(self._bytes) >= stop else None
        return None

    def _decode(self, first: int, body: bytes) -> Packet:
        result, rest = Packet(first >> 4, first & 15), _Reader(body)
        v5 = self._version >= V5
        if result.kind == CONNACK:
            result.session_present, result.reason = bool(rest.number(1)), rest.number(1)
            result.properties = rest.properties() if v5 and rest.left() else {}
        elif result.kind == PUBLISH:
            result.topic = rest.binary().decode()
            result.packet_id = rest.number(2) if result.qos else 0
            result.properties = rest.properties() if v5 else {}
            result.payload = rest.remainder()
        elif result.kind in (SUBACK, UNSUBACK):
            result.packet_id = rest.number(2)
            result.properties = rest.properties() if v5 else {}
            result.reasons = list(rest.remainder())
        elif result.kind == DISCONNECT:
            result.reason = rest.number(1) if rest.left() else 0
        elif result.kind in (PUBACK, PUBREC, PUBREL, PUBCOMP):
            result.packet_id = rest.number(2)
            result.reason = rest.number(1) if rest.left() else 0
        return result


class _Reader:
    def __init__(self, body: bytes) -> None:
        self._body, self._place = body, 0

    def left(self) -> int:
        return len(self._body) - self._place

    def number(self, size: int) -> int:
        return int.from_bytes(self._take(size), "big")

    def binary(self) -> bytes:
        return self._take(self.number(2))

    def remainder(self) -> bytes:
        return self._take(self.left())

    def properties(self) -> dict[str, Any]:
        """Name -> list of values, in the order of arrival."""
        found: dict[str, Any] = {}
        stop = self._varint() + self._place
        while self._place < stop:
            name, kind = PROPERTIES[self.number(1)]
            found.setdefault(name, []).append(self._value(kind))
        return found

    def _value(self, kind: str) -> Any:
        if kind == "pair":
            return (self.binary().decode(), self.binary().decode())
        if kind == "utf8":
            return self.binary().decode()
        if kind == "binary":
            return self.binary()
        if kind == "varint":
            return self._varint()
        return self.number({"byte": 1, "u16": 2, "u32": 4}[kind])

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.number(1)
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def _take(self, size: int) -> bytes:
        if size > self.left():
            raise ValueError(f"packet ends {size - self.left()} bytes early")
        self._place += size
        return self._body[self._place - size : self._place]
