"""curl, a generated client of the API and the parser of Prometheus against the HTTP front of the broker."""

from __future__ import annotations

import sys

from cases.http import by_curl, generated, metrics
from cases.http.web import web_cases
from suite import run

# Importing a module registers its cases.
CHAPTERS = (by_curl, generated, metrics)

if __name__ == "__main__":
    sys.exit(run(web_cases()))
