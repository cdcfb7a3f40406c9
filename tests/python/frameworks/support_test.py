"""The checks of the tests of frameworks find what they must find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")

import framework_support as support

FAULTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "ranks differ": lambda rank: rank["bits"].append(rank["sent"]),
    "not the reference": lambda rank: rank.update(error=1e-3),
    "not a number": lambda rank: rank.update(error=float("nan")),
    "untrained": lambda rank: rank.update(moved=0.0),
    "nothing was sent": lambda rank: rank.update(sent=0),
    "sent for another number of steps": lambda rank: rank.update(sent=support.rows_bytes() // 2),
}


def found() -> list[dict[str, Any]]:
    return [{"bits": [1, 2], "error": 1e-7, "moved": 0.2, "sent": support.rows_bytes() + rank} for rank in range(support.WORKERS)]


def test_a_right_run_passes() -> None:
    support.expect_trained(found())


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_a_run_is_found(fault: str) -> None:
    ranks = found()
    FAULTS[fault](ranks[-1])
    with pytest.raises(AssertionError):
        support.expect_trained(ranks)


def test_training_alone_clips_and_accumulates() -> None:
    plain, clipped, accumulated = support.alone(), support.alone(clip=0.05), support.alone(accumulated=2)
    assert 0 < support.distance(clipped, support.Model()) < 0.5 * support.distance(plain, support.Model())
    assert support.distance(plain, accumulated) > 1e-3
    assert support.distance(plain, support.alone()) == 0
