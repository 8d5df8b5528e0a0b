"""msquic against the broker, by a relay: cases of its own, hand-made packets, and the cases of paho-mqtt."""

from __future__ import annotations

import sys

from cases import delivery, retained, session, shared, subscribing, will
from cases.msquic import msquic_cases
from cases.protocol import protocol_cases
from msquic_relay import Relay
from stage import scenarios
from suite import run

# Importing a module registers its cases.
CHAPTERS = (delivery, retained, will, session, shared, subscribing)

if __name__ == "__main__":
    with Relay("msquic"), Relay("msquic-topics", "--streams", "topic"):
        sys.exit(run([*msquic_cases(), *protocol_cases("msquic"), *scenarios("msquic", "msquic-topics")]))
