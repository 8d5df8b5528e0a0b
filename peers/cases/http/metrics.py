"""`/metrics`, read by the parser of Prometheus' Python client, and the conventions of names."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import ExitStack

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

import wire
from cases.http.web import OPERATOR, VIEWER, curl, web_case
from endpoint import STANDARD, WEB
from raw_client import RawClient
from suite import expect, require

# Clients whose number must not change that of the series.
CLIENTS = 200
# Parts of a name that are units other than base units, or abbreviations of them.
OTHER_UNITS = {"ms", "us", "ns", "secs", "sec", "minutes", "hours", "days", "kb", "mb", "kib", "mib", "bits", "percent", "byte", "second"}
# Labels whose values the configuration or the program bounds.
LABELS = {"version", "status", "le", "listener", "transport", "address", "limit", "to", "reason"}
# Last parts of names that only histograms and summaries have.
RESERVED = {"sum", "bucket", "count", "info"}


def scrape(broker: str = WEB) -> tuple[str, list[Metric]]:
    """The text and its families."""
    answer = curl("/metrics", broker=broker, login=VIEWER if broker == WEB else None)
    expect((answer.status, answer.headers["content-type"]), (200, "text/plain; version=0.0.4; charset=utf-8"), "response")
    text = answer.body.decode()
    return text, list(text_string_to_metric_families(text))


def series(families: list[Metric]) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    """Name and labels of every sample."""
    return {(sample.name, tuple(sorted(sample.labels.items()))) for family in families for sample in family.samples}


def value(families: list[Metric], name: str) -> float:
    """The value of the only sample with this name."""
    [found] = [sample.value for family in families for sample in family.samples if sample.name == name]
    return float(found)


@web_case("metrics")
def conventions() -> None:
    """Every family has HELP, a type, a name with base units; none stands twice; counters end in _total."""
    text, families = scrape()
    require(len(families) > 30, f"{len(families)} families")
    declared = Counter(re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE))
    helped = Counter(re.findall(r"^# HELP (\S+) \S", text, re.MULTILINE))
    expect([name for name, times in (declared + helped).items() if times != 2], [], "families without one TYPE and one HELP")
    expect(declared.keys(), helped.keys(), "families with TYPE and those with HELP")
    expect([name for name, times in Counter(one.name for one in families).items() if times > 1], [], "families that stand twice")
    lines = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    expect(len(lines), len(set(lines)), "different series")
    expect(len(lines), len(series(families)), "series that the parser read")
    for family in families:
        name = family.name
        require(name.startswith("braidmq_"), f"{name} has not the prefix of the program")
        require(re.fullmatch(r"[a-z][a-z0-9_]*[a-z0-9]", name) is not None, f"{name} is not in snake case")
        require(family.type in ("counter", "gauge", "histogram"), f"{name} is a {family.type}")
        parts = name.split("_")
        require(not OTHER_UNITS & set(parts), f"{name} has another unit than seconds or bytes, or an abbreviation")
        require(not {"counter", "gauge", "histogram"} & set(parts), f"{name} has its type in its name")
        if name != "braidmq_build_info":
            require(parts[-1] not in RESERVED, f"{name} ends like a part of a histogram")
        require(not {"bytes", "seconds"} & set(parts[:-1]), f"{name}: the unit is not the last part")
        for sample in family.samples:
            expect(sample.name.endswith("_total"), family.type == "counter", f"{sample.name}, a {family.type}")
            if family.type == "histogram":
                require(sample.name.removeprefix(name) in ("_bucket", "_sum", "_count"), f"{sample.name} of a histogram")
            require("le" not in sample.labels or sample.name == f"{name}_bucket", f"{sample.name} with a bucket's label")
            require(sample.labels.keys() <= LABELS, f"labels of {sample.name}: {sample.labels}")
            require(family.type != "counter" or sample.value >= 0, f"{sample.name} is {sample.value}")


@web_case("metrics")
def bounded_series() -> None:
    """The series with 200 clients are those with one, and the numbers are right."""
    with ExitStack() as stack:
        one = stack.enter_context(RawClient())
        one.connect("metrics-one")
        one.subscribe(("metrics/#", 0))
        before = scrape(STANDARD)[1]
        clients = [stack.enter_context(RawClient()) for _ in range(CLIENTS)]
        for number, client in enumerate(clients):
            client.connect(f"metrics-{number}")
            client.send(wire.publish(wire.V5, f"metrics/{number}", b"x"))
        for _ in clients:
            one.receive(wire.PUBLISH)
        after = scrape(STANDARD)[1]
    expect(series(after) ^ series(before), set(), "series that came or went")
    for name, difference in (
        ("braidmq_clients_connected", CLIENTS),
        ("braidmq_connections_total", CLIENTS),
        ("braidmq_messages_received_total", CLIENTS),
        ("braidmq_messages_sent_total", CLIENTS),
    ):
        expect(value(after, name) - value(before, name), float(difference), f"growth of {name}")
    require(value(after, "braidmq_uptime_seconds") > value(before, "braidmq_uptime_seconds"), "uptime grows")


@web_case("metrics")
def formats() -> None:
    """OpenMetrics is not offered: who asks for it gets the text format. Unknown parameters are refused."""
    asked = "Accept: application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
    answer = curl("/metrics", "--header", asked, login=VIEWER)
    expect(answer.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8", "content type")
    curl("/metrics?x=1", login=VIEWER).problem(400)
    curl("/metrics", "--request", "POST", login=OPERATOR).problem(405)
    curl("/metrics").problem(401)
