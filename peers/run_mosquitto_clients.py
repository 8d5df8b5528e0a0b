"""mosquitto_pub, mosquitto_sub and mosquitto_rr against the broker, over tcp and tls."""

from __future__ import annotations

import sys

from cases.command_line import command_cases
from suite import run

if __name__ == "__main__":
    sys.exit(run(command_cases()))
