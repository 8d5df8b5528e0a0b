"""Runs cases one after another, each one bounded, and prints one line per case."""

from __future__ import annotations

import os
import queue
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

# One wait inside a case, and one case as a whole, in seconds.
WAIT = float(os.environ.get("PEERS_WAIT", "8"))
CASE_LIMIT = float(os.environ.get("PEERS_CASE_LIMIT", "30"))
BROKER = os.environ.get("PEERS_BROKER", "braidmq")
# By how many seconds a broker may be early: mosquitto's clock counts whole ones.
CLOCK_GRAIN = 1.0 if BROKER == "mosquitto" else 0.0
# By how many seconds it may be late to notice silence: mosquitto looks every five.
KEEP_ALIVE_SLACK = 6.0 if BROKER == "mosquitto" else 1.5


class Mismatch(AssertionError):
    """The broker did something else than the specification says."""


@dataclass(frozen=True)
class Case:
    """A named check; `known` maps a broker to its own bug that makes the case fail there."""

    name: str
    body: Callable[[], None]
    known: Mapping[str, str] = field(default_factory=dict)


def expect(actual: Any, wanted: Any, what: str) -> None:
    """Raises Mismatch unless `actual == wanted`."""
    if actual != wanted:
        raise Mismatch(f"{what}: got {brief(actual)}, wanted {brief(wanted)}")


def require(condition: bool, what: str) -> None:
    """Raises Mismatch unless `condition` holds."""
    if not condition:
        raise Mismatch(what)


def take(source: queue.Queue[Any], what: str, wait: float = WAIT) -> Any:
    """The next item of a queue that another thread feeds, or Mismatch after `wait` seconds."""
    try:
        return source.get(timeout=wait)
    except queue.Empty:
        raise Mismatch(f"no {what} within {wait:g} s") from None


def brief(value: Any) -> str:
    """A one-line rendering: payloads of a megabyte do not belong on a terminal."""
    text = repr(value).replace("\n", " ")
    return text if len(text) <= 160 else f"{text[:120]}... ({len(text)} characters)"


def run(cases: Iterable[Case]) -> int:
    """Runs the cases whose name holds PEERS_ONLY; returns the exit code of the suite."""
    only = os.environ.get("PEERS_ONLY", "")
    failed = 0
    for case in cases:
        if only in case.name:
            failed += not _run_one(case)
    return 1 if failed else 0


def _run_one(case: Case) -> bool:
    started = time.monotonic()
    reason = _outcome(case.body)
    elapsed = round((time.monotonic() - started) * 1000)
    known = case.known.get(BROKER)
    if reason is None and known is None:
        return _say(f"ok {case.name} ({elapsed} ms)")
    if reason is None:
        return not _say(f"FAIL {case.name}: marked as a known difference of {BROKER}, but it passes")
    if known is not None:
        return _say(f"known {case.name}: {BROKER}: {known} [{reason}]")
    return not _say(f"FAIL {case.name}: {reason}")


def _outcome(body: Callable[[], None]) -> str | None:
    """Why the body failed, or None. A body that hangs is left behind in its daemon thread."""
    outcome: queue.Queue[str | None] = queue.Queue()

    def guarded() -> None:
        try:
            body()
        except Mismatch as mismatch:
            outcome.put(str(mismatch))
        except Exception as error:  # whatever a client library raises is the result
            where = traceback.extract_tb(error.__traceback__)[-1]
            outcome.put(f"{type(error).__name__}: {error} ({os.path.basename(where.filename)}:{where.lineno})")
        else:
            outcome.put(None)

    threading.Thread(target=guarded, daemon=True).start()
    try:
        return outcome.get(timeout=CASE_LIMIT)
    except queue.Empty:
        return f"not finished within {CASE_LIMIT:g} s"


def _say(line: str) -> bool:
    print(line.replace("\n", " "), flush=True)
    return True
