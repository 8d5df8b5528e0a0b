"""paho-mqtt with its callbacks turned into queues that a case waits on."""

from __future__ import annotations

import os
import queue
import socket
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from endpoint import HOST, WS_PATH, Endpoint, ca_file
from suite import Mismatch, expect, take

VERSIONS = {"v3.1": paho.MQTTv31, "v3.1.1": paho.MQTTv311, "v5": paho.MQTTv5}


def properties(packet: int, **values: Any) -> Properties:
    """MQTT 5.0 properties by paho's names, for example MessageExpiryInterval=1."""
    result = Properties(packet)
    for name, value in values.items():
        setattr(result, name, value)
    return result


class PahoPeer:
    """One paho client; `messages` and the other queues fill from paho's own thread."""

    def __init__(
        self,
        endpoint: Endpoint,
        version: str,
        client_id: str,
        *,
        clean: bool = True,
        will: dict[str, Any] | None = None,
        connect_properties: dict[str, Any] | None = None,
        manual_ack: bool = False,
    ) -> None:
        self.version = version
        self.messages: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self._connected: queue.Queue[tuple[Any, Any, Any]] = queue.Queue()
        self._disconnected: queue.Queue[Any] = queue.Queue()
        self._acknowledged: queue.Queue[tuple[int, list[Any]]] = queue.Queue()
        self._published: queue.Queue[tuple[int, Any]] = queue.Queue()
        self._endpoint, self._clean = endpoint, clean
        self._connect_properties = connect_properties
        self.client = self._build(client_id, manual_ack)
        if will:
            self.client.will_set(**will)

    def _build(self, client_id: str, manual_ack: bool) -> paho.Client:
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            clean_session=None if self.version == "v5" else self._clean,
            protocol=VERSIONS[self.version],
            transport="websockets" if self._endpoint.websocket else "tcp",
            reconnect_on_failure=False,
            manual_ack=manual_ack,
        )
        if self._endpoint.websocket:
            client.ws_set_options(path=WS_PATH)
        if self._endpoint.secure:
            client.tls_set(ca_certs=ca_file())
        client.on_connect = lambda _c, _u, flags, reason, props: self._connected.put((flags, reason, props))
        client.on_disconnect = lambda _c, _u, _flags, reason, _props: self._ended(reason)
        client.on_message = lambda _c, _u, message: self.messages.put(message)
        client.on_subscribe = lambda _c, _u, mid, reasons, _props: self._acknowledged.put((mid, reasons))
        client.on_unsubscribe = lambda _c, _u, mid, reasons, _props: self._acknowledged.put((mid, reasons))
        client.on_publish = lambda _c, _u, mid, reason, _props: self._published.put((mid, reason))
        return client

    # === commands ===

    def connect(self, keep_alive: int = 60) -> tuple[bool, Any]:
        """Connects and starts paho's thread; Session Present and the CONNACK properties."""
        options: dict[str, Any] = {}
        if self.version == "v5":
            wanted = properties(PacketTypes.CONNECT, **(self._connect_properties or {}))
            options = {"clean_start": self._clean, "properties": wanted}
        self.client.connect(HOST, self._endpoint.port, keepalive=keep_alive, **options)
        self.client.loop_start()
        flags, reason, found = take(self._connected, "CONNACK")
        if flags is None:
            raise Mismatch(f"paho gave up before a CONNACK it could read: {reason}")
        expect(reason.is_failure, False, f"CONNACK {reason}")
        return flags.session_present, found

    def subscribe(self, *filters: tuple[str, Any], subscription_id: int | None = None) -> list[int]:
        """Subscribes to (filter, QoS or SubscribeOptions) pairs; the reason codes of the SUBACK."""
        wanted = None
        if subscription_id is not None:
            wanted = properties(PacketTypes.SUBSCRIBE, SubscriptionIdentifier=subscription_id)
        _, mid = self.client.subscribe(list(filters), properties=wanted)
        return self._reasons_for(mid, "SUBACK")

    def unsubscribe(self, *filters: str) -> list[int]:
        """Unsubscribes; the reason codes of the UNSUBACK (none before v5)."""
        _, mid = self.client.unsubscribe(list(filters))
        return self._reasons_for(mid, "UNSUBACK")

    def publish(self, topic: str, payload: bytes = b"", qos: int = 0, retain: bool = False, **values: Any) -> Any:
        """Publishes and waits until the broker has acknowledged; the reason code."""
        wanted = properties(PacketTypes.PUBLISH, **values) if values else None
        sent = self.client.publish(topic, payload, qos, retain, wanted)
        mid, reason = take(self._published, f"acknowledgement of a QoS {qos} PUBLISH")
        expect(mid, sent.mid, "packet id acknowledged")
        return reason

    def message(self, what: str = "message") -> paho.MQTTMessage:
        """The next message."""
        return take(self.messages, what)

    def until(self, topic: str) -> list[paho.MQTTMessage]:
        """Every message that came before the first one on `topic`, which is taken away too."""
        before = []
        while (message := self.message(f"message on {topic}")).topic != topic:
            before.append(message)
        return before

    def disconnected(self) -> int:
        """Waits for the end of the connection; its reason code."""
        return take(self._disconnected, "end of the connection").value

    def disconnect(self, **values: Any) -> None:
        """DISCONNECT, and wait until the connection is gone."""
        wanted = properties(PacketTypes.DISCONNECT, **values) if values else None
        self.client.disconnect(properties=wanted)
        self.disconnected()
        self.client.loop_stop()

    def cut(self) -> None:
        """Ends the connection under paho's feet: no DISCONNECT reaches the broker."""
        with socket.socket(fileno=os.dup(self.client.socket().fileno())) as twin:
            twin.shutdown(socket.SHUT_RDWR)
        self.disconnected()
        self.client.loop_stop()

    def close(self) -> None:
        """Ends whatever is left, at the end of a case."""
        self.client.disconnect()
        self.client.loop_stop()

    def _ended(self, reason: Any) -> None:
        self._disconnected.put(reason)
        # A connection that ends while connect() waits shall not let it wait on.
        self._connected.put((None, reason, None))

    def _reasons_for(self, mid: int | None, what: str) -> list[int]:
        got, reasons = take(self._acknowledged, what)
        if got != mid:
            raise Mismatch(f"{what} for packet id {got}, wanted {mid}")
        return [reason.value for reason in reasons]
