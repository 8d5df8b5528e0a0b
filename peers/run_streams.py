"""aioquic against the broker: hand-made packets on many QUIC streams, through the points of the wire contract."""

from __future__ import annotations

import sys

from cases.streams import (
    abuse,
    closing,
    credit,
    early,
    ends,
    habits,
    identifiers,
    migration,
    packets,
    priority,
    subscriptions,
    unidirectional,
    zero_rtt,
)
from quic_case import quic_cases
from suite import run

# Importing a module registers its cases.
CHAPTERS = (
    packets,
    early,
    ends,
    closing,
    subscriptions,
    identifiers,
    unidirectional,
    credit,
    priority,
    abuse,
    zero_rtt,
    migration,
    habits,
)

if __name__ == "__main__":
    sys.exit(run(quic_cases()))
