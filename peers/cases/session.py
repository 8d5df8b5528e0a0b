"""The Session: resumed, discarded, expired, taken over."""

from __future__ import annotations

from raw_client import pass_time
from stage import SINCE_V311, TIMED, V5_ONLY, Stage, scenario
from suite import expect

SESSION_TAKEN_OVER = 0x8E


def _left_behind(stage: Stage, qos: int, **options: int) -> None:
    """A Session with one subscription and no connection."""
    first = stage.persistent("sub", clean=stage.version == "v5", **options)
    present, _ = first.connect()
    if stage.version != "v3.1":
        expect(present, False, "Session Present of a new Session")
    first.subscribe((stage.topic("data"), qos))
    first.disconnect()


@scenario(qos=(1, 2))
def resume(stage: Stage, qos: int) -> None:
    # [MQTT-4.1.0-1] [MQTT-3.1.2-5]
    _left_behind(stage, qos)
    publisher = stage.client("pub")
    wanted = [f"offline {number}".encode() for number in range(10)]
    for payload in wanted:
        publisher.publish(stage.topic("data"), payload, qos)
    again = stage.persistent("sub")
    present, _ = again.connect()
    if stage.version != "v3.1":  # MQTT 3.1 has no Session Present flag
        expect(present, True, "Session Present")
    seen = [again.message("offline message") for _ in wanted]
    expect([message.payload for message in seen], wanted, "offline messages")
    expect({message.qos for message in seen}, {qos}, "their QoS")
    publisher.publish(stage.topic("data"), b"live", qos)
    expect(again.message().payload, b"live", "first live message")


@scenario()
def resume_after_a_cut(stage: Stage) -> None:
    first = stage.persistent("sub")
    first.connect()
    first.subscribe((stage.topic("data"), 1))
    first.cut()
    stage.client("pub").publish(stage.topic("data"), b"kept", 1)
    again = stage.persistent("sub")
    again.connect()
    expect(again.message("offline message").payload, b"kept", "payload")


@scenario()
def clean_start_discards(stage: Stage) -> None:
    # [MQTT-3.1.2-4]
    _left_behind(stage, 1)
    publisher = stage.client("pub")
    publisher.publish(stage.topic("data"), b"lost", 1)
    fresh = stage.client("sub")
    fresh.subscribe((stage.topic("fence"), 1))
    expect(stage.fenced(publisher, fresh, 1), [], "messages of the discarded Session")


@scenario(versions=SINCE_V311)
def clean_start_is_not_present(stage: Stage) -> None:
    # [MQTT-3.2.2-2]
    _left_behind(stage, 1)
    present, _ = stage.peer("sub").connect()
    expect(present, False, "Session Present after Clean Start")


@scenario()
def unacknowledged_comes_again(stage: Stage) -> None:
    # [MQTT-4.4.0-1] [MQTT-3.3.1-1]
    first = stage.persistent("sub", manual_ack=True)
    first.connect()
    first.subscribe((stage.topic("data"), 1))
    stage.client("pub").publish(stage.topic("data"), b"twice", 1)
    expect(first.message().dup, False, "DUP of the first delivery")
    first.cut()
    again = stage.persistent("sub")
    again.connect()
    message = again.message("redelivery")
    expect((message.payload, message.dup), (b"twice", True), "payload and DUP of the redelivery")


@scenario(versions=V5_ONLY)
def session_ends_without_expiry(stage: Stage) -> None:
    first = stage.client("sub")
    first.subscribe((stage.topic("data"), 1))
    first.disconnect()
    present, _ = stage.peer("sub", clean=False).connect()
    expect(present, False, "Session Present after expiry 0")


@scenario(versions=V5_ONLY, transports=TIMED)
def session_expires(stage: Stage) -> None:
    # [MQTT-3.1.2-23]
    _left_behind(stage, 1, expiry=1)
    pass_time(2, stage.client_id("clock"))
    present, _ = stage.persistent("sub").connect()
    expect(present, False, "Session Present after the Session Expiry Interval")


@scenario(versions=V5_ONLY)
def disconnect_changes_expiry(stage: Stage) -> None:
    first = stage.persistent("sub", clean=True)
    first.connect()
    first.subscribe((stage.topic("data"), 1))
    first.disconnect(SessionExpiryInterval=0)
    present, _ = stage.persistent("sub").connect()
    expect(present, False, "Session Present after DISCONNECT with expiry 0")


@scenario()
def takeover(stage: Stage) -> None:
    # [MQTT-3.1.4-3]
    first = stage.client("twin")
    second = stage.client("twin")
    first.disconnected()
    second.subscribe((stage.topic("data"), 1))
    second.publish(stage.topic("data"), b"alive", 1)
    expect(second.message().payload, b"alive", "the second client's round trip")


@scenario(versions=V5_ONLY, known={"mosquitto": "takes over without telling the first client why"})
def takeover_says_why(stage: Stage) -> None:
    first = stage.client("twin")
    stage.client("twin")
    expect(first.disconnected(), SESSION_TAKEN_OVER, "reason of the DISCONNECT to the first")


@scenario()
def takeover_moves_the_session(stage: Stage) -> None:
    first = stage.persistent("twin")
    first.connect()
    first.subscribe((stage.topic("data"), 1))
    second = stage.persistent("twin")
    present, _ = second.connect()
    first.disconnected()
    if stage.version != "v3.1":
        expect(present, True, "Session Present")
    stage.client("pub").publish(stage.topic("data"), b"moved", 1)
    expect(second.message().payload, b"moved", "payload")
