"""The Will Message: when it is published, when it is not, and when it waits."""

from __future__ import annotations

import time
from typing import Any

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode

from paho_client import PahoPeer, properties
from raw_client import pass_time
from stage import QOS, TIMED, V5_ONLY, Stage, scenario
from suite import CLOCK_GRAIN, expect, require


def _watch(stage: Stage, qos: int = 1) -> PahoPeer:
    watcher = stage.client("watch")
    watcher.subscribe((stage.topic("will"), qos), (stage.topic("fence"), qos))
    return watcher


def _will(stage: Stage, qos: int = 1, retain: bool = False, **values: Any) -> dict[str, Any]:
    will: dict[str, Any] = {"topic": stage.topic("will"), "payload": b"gone", "qos": qos, "retain": retain}
    if values:
        will["properties"] = properties(PacketTypes.WILLMESSAGE, **values)
    return will


@scenario(qos=QOS)
def will_on_abnormal_close(stage: Stage, qos: int) -> None:
    # [MQTT-3.1.2-8]
    watcher = _watch(stage, qos)
    stage.client("dying", will=_will(stage, qos)).cut()
    message = watcher.message("Will Message")
    expect((message.payload, message.qos, message.retain), (b"gone", qos, False), "payload, QoS, RETAIN of the will")


@scenario()
def will_retained(stage: Stage) -> None:
    watcher = _watch(stage)
    stage.client("dying", will=_will(stage, retain=True)).cut()
    watcher.message("Will Message")
    late = stage.client("late")
    late.subscribe((stage.topic("will"), 1))
    expect(late.message("retained Will Message").retain, True, "RETAIN of the replayed will")


@scenario()
def no_will_after_disconnect(stage: Stage) -> None:
    # [MQTT-3.1.2-10]
    watcher = _watch(stage)
    stage.client("leaving", will=_will(stage)).disconnect()
    expect(stage.fenced(stage.client("pub"), watcher, 1), [], "messages after a normal DISCONNECT")


@scenario()
def will_on_takeover(stage: Stage) -> None:
    watcher = _watch(stage)
    stage.client("twin", will=_will(stage))
    stage.client("twin")
    expect(watcher.message("Will Message").payload, b"gone", "payload of the will")


@scenario(versions=V5_ONLY)
def will_on_disconnect_with_will(stage: Stage) -> None:
    watcher = _watch(stage)
    leaving = stage.client("leaving", will=_will(stage))
    reason = ReasonCode(PacketTypes.DISCONNECT, "Disconnect with will message")
    leaving.client.disconnect(reasoncode=reason)
    expect(watcher.message("Will Message").payload, b"gone", "payload of the will")


@scenario(versions=V5_ONLY, transports=TIMED)
def will_delay(stage: Stage) -> None:
    watcher = _watch(stage)
    options = {"SessionExpiryInterval": 60}
    dying = stage.client("dying", will=_will(stage, WillDelayInterval=1), connect_properties=options)
    cut = time.monotonic()
    dying.cut()
    watcher.message("Will Message")
    waited = time.monotonic() - cut
    require(waited >= 1 - CLOCK_GRAIN, f"a will delayed by 1 s came after {waited:.3f} s")


@scenario(versions=V5_ONLY, transports=TIMED)
def will_delay_ended_by_return(stage: Stage) -> None:
    # [MQTT-3.1.3-9]
    watcher = _watch(stage)
    options = {"SessionExpiryInterval": 60}
    dying = stage.client("dying", will=_will(stage, WillDelayInterval=1), connect_properties=options)
    dying.cut()
    present, _ = stage.peer("dying", clean=False, connect_properties=options).connect()
    expect(present, True, "Session Present")
    pass_time(2, stage.client_id("clock"))
    expect(stage.fenced(stage.client("pub"), watcher, 1), [], "messages after the client came back in time")


@scenario(versions=V5_ONLY, known={"mosquitto": "a Will Delay outlives the Session"})
def will_at_session_end(stage: Stage) -> None:
    # [MQTT-3.1.2-8]: the earlier of delay and session end, and without expiry the session ends at once
    watcher = _watch(stage)
    stage.client("dying", will=_will(stage, WillDelayInterval=600)).cut()
    expect(watcher.message("Will Message").payload, b"gone", "payload of the will")


@scenario(versions=V5_ONLY)
def will_properties(stage: Stage) -> None:
    watcher = _watch(stage)
    pairs = [("reason", "power"), ("reason", "again")]
    values = {"UserProperty": pairs, "ContentType": "text/plain", "ResponseTopic": "ask", "CorrelationData": b"\0\1"}
    stage.client("dying", will=_will(stage, **values)).cut()
    found = watcher.message("Will Message").properties
    expect(found.UserProperty, pairs, "user properties of the will")
    expect(
        (found.ContentType, found.ResponseTopic, found.CorrelationData), ("text/plain", "ask", b"\0\1"), "properties"
    )
    require(not hasattr(found, "WillDelayInterval"), "a Will Delay Interval travelled with the message")
