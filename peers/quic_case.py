"""The decorator that makes a coroutine a case, for the protocol versions it is about."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable
from typing import Any

from suite import Case
from wire import V5, V31, V311

NAMES = {V31: "v3.1", V311: "v3.1.1", V5: "v5"}

_serial = itertools.count(1)
_cases: list[Case] = []


def over_quic(*versions: int, **axes: tuple[Any, ...]) -> Callable[..., Any]:
    """Registers a coroutine as a case for these versions (all without any) and at most one further axis.

    It is called with the version, with a name of its own for client ids and topics, and with the axis.
    """

    def register(body: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        label = body.__name__.replace("_", "-")
        place = body.__module__.removeprefix("cases.").replace(".", "/").replace("_", "-")
        axis, values = next(iter(axes.items()), ("", (None,)))
        for version in versions or (V31, V311, V5):
            for value in values:
                chosen = {axis: value} if axis else {}
                tail = f"-{axis}{value}" if axis else ""

                def run(version: int = version, chosen: dict[str, Any] = chosen) -> None:
                    # Short enough for MQTT 3.1 with a letter behind it.
                    asyncio.run(body(version, f"q{os.getpid()}-{next(_serial)}", **chosen))

                _cases.append(Case(f"{place}/{NAMES[version]}/{label}{tail}", run))
        return body

    return register


def quic_cases() -> list[Case]:
    """Every case that a module registered."""
    return list(_cases)
