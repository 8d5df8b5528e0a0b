"""Writes the traces of this directory: synthetic LTE links in the format of mahimahi, the same each time.

A line is a millisecond at which 1500 bytes can leave. The logarithm of the rate is a random walk with a pull to its
middle, in steps of 100 ms; within a step the opportunities are spread at random, as a scheduler spreads them. Handovers
are times without any.
"""

import math
import random
from pathlib import Path

STEP = 0.1  # s


def trace(seed, seconds, low, high, pull, spread, handover_every, handover):
    """Milliseconds of the opportunities. low, high: Mbit/s; handover: shortest and longest, s."""
    draw = random.Random(seed)
    bottom, top = math.log(low), math.log(high)
    middle = (bottom + top) / 2
    level, silent_until, times = middle, 0.0, []
    for n in range(round(seconds / STEP)):
        begin = n * STEP
        level += pull * (middle - level) + draw.gauss(0, spread)
        level = min(max(level, bottom), top)
        if draw.random() < STEP / handover_every:
            silent_until = begin + draw.uniform(*handover)
        count = math.exp(level) * 1e6 * STEP / 8 / 1500
        whole = int(count) + (draw.random() < count % 1)
        at = (begin + draw.random() * STEP for _ in range(whole))
        times.extend(t for t in at if t >= silent_until)
    return sorted(int(t * 1000) for t in times)


def main():
    here = Path(__file__).parent
    for name, times in {
        "lte-driving": trace(1, 30, 2, 30, 0.03, 0.35, 6, (0.05, 0.3)),
        "lte-walking": trace(2, 30, 4, 20, 0.05, 0.15, 15, (0.03, 0.1)),
    }.items():
        (here / f"{name}.trace").write_text("".join(f"{t}\n" for t in times))
        print(name, len(times), "opportunities,", round(len(times) * 12 / times[-1], 2), "Mbit/s")


main()
