"""Publisher and subscriber on different transports and protocol versions."""

from __future__ import annotations

from cases.delivery import EVERY_BYTE
from stage import TRANSPORTS, VERSIONS, Stage, scenario
from suite import expect


@scenario(to=TRANSPORTS, speaking=VERSIONS)
def crossing(stage: Stage, to: str, speaking: str) -> None:
    subscriber = stage.client("sub", transport=to, version=speaking)
    subscriber.subscribe((stage.topic("+"), 2))
    publisher = stage.client("pub")
    for qos in (0, 1, 2):
        publisher.publish(stage.topic(str(qos)), EVERY_BYTE, qos)
    # Order is promised per topic and QoS only.
    seen = sorted((subscriber.message() for _ in range(3)), key=lambda message: message.topic)
    expect([message.topic for message in seen], [stage.topic(str(qos)) for qos in (0, 1, 2)], "topics")
    expect([message.qos for message in seen], [0, 1, 2], "QoS")
    expect([message.payload for message in seen], [EVERY_BYTE] * 3, "payloads")
