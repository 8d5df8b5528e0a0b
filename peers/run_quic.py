"""aioquic against the broker: hand-made packets on one QUIC stream."""

from __future__ import annotations

import sys

from cases import over_quic
from quic_case import quic_cases
from suite import run

# Importing a module registers its cases.
CHAPTERS = (over_quic,)

if __name__ == "__main__":
    sys.exit(run(quic_cases()))
