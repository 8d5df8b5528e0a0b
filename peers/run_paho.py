"""paho-mqtt against the broker: every case over tcp, tls, ws and wss, on every version it applies to."""

from __future__ import annotations

import sys

from cases import crossing, delivery, properties, retained, session, shared, subscribing, will
from stage import scenarios
from suite import run

# Importing a module registers its cases.
CHAPTERS = (delivery, crossing, retained, will, session, shared, subscribing, properties)

if __name__ == "__main__":
    sys.exit(run(scenarios()))
