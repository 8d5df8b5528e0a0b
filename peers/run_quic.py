"""aioquic against the broker: hand-made packets on one QUIC stream."""

from __future__ import annotations

import sys

from cases.over_quic import quic_cases
from suite import run

if __name__ == "__main__":
    sys.exit(run(quic_cases()))
