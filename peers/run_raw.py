"""Hand-made packets against the broker, over tcp and tls."""

from __future__ import annotations

import sys

from cases.protocol import protocol_cases
from suite import run

if __name__ == "__main__":
    sys.exit(run(protocol_cases()))
