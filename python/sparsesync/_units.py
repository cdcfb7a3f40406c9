"""Numbers formatted with units, for reports and messages."""

from __future__ import annotations


def scaled(number: float, steps: list[tuple[float, float, str]], digits: int = 3) -> str:
    for limit, divisor, unit in steps:
        if abs(number) < limit:
            return f"{number / divisor:.{digits}g} {unit}"
    _, divisor, unit = steps[-1]
    return f"{number / divisor:.{digits}g} {unit}"


def seconds(number: float) -> str:
    return scaled(number, [(1e-6, 1e-9, "ns"), (1e-3, 1e-6, "µs"), (1, 1e-3, "ms"), (float("inf"), 1, "s")])


def size(number: float) -> str:
    return scaled(number, [(1e3, 1, "B"), (1e6, 1e3, "kB"), (1e9, 1e6, "MB"), (1e12, 1e9, "GB"), (float("inf"), 1e12, "TB")])


def rate(number: float) -> str:
    return scaled(number, [(1e6, 1e3, "kbit/s"), (1e9, 1e6, "Mbit/s"), (float("inf"), 1e9, "Gbit/s")])


def percent(share: float) -> str:
    return f"{100 * share:.4g}%"


def count(number: int) -> str:
    return f"{number:,}"
